"""`adora` scales down the credit of groups whose right episodes are no longer than their wrong ones, after ADORA
(arXiv 2602.10019). If it works, right episodes grow longer where the extra tokens raise accuracy.

    A = A of the scheme `scheme` · (`gain` if the group is favoured, else `factor`)
    by length:      longest right episode > mean length of the wrong ones
    by difficulty:  0 < share of right episodes <= `at_most`

docs/methods.md has what the paper leaves open and what was chosen here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np

from selfcest_env.record import EpisodeGroup, EpisodeRecord, cost_measures
from selfcest_env.structure import NotNegative, OneOf, Share, check_unused
from selfcest_env.types import FinishReason, TurnKey
from selfcest_training.credit import checks
from selfcest_training.credit.base import Advantage, Credit, Promise, Replayed, succeeded
from selfcest_training.credit.wrapping import WrapperOptions, WrapperScheme


@dataclass(frozen=True)
class AdoraOptions(WrapperOptions):
    factor: NotNegative = 0.1
    length: Annotated[str, OneOf(*cost_measures())] = "generated_tokens"
    term: str = "correct"
    rule: Literal["length", "difficulty"] = "length"
    at_most: Share = 0.5
    gain: NotNegative = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_unused(self, f"rule is {self.rule}", "at_most" if self.rule == "length" else "length")


class Adora(WrapperScheme):
    """Options: `scheme`, `{name, options}` or null (default) for `grpo`; `factor` (default 0.1) and `gain` (default 1);
    `rule`, `length` (default) or `difficulty`; `length`, a cost (default `generated_tokens`); `at_most`, the share of
    right episodes (default 0.5); `term`, the reward term that is above 0 for a right episode (default `correct`).
    `length` is of the rule `length` alone, `at_most` of `difficulty` alone: with the other one it is refused."""

    name: ClassVar[str] = "adora"
    formula: ClassVar[str] = (
        "as `scheme`, times `factor` unless the longest right episode is longer than wrong ones are, or few are right"
    )
    source: ClassVar[str] = "ADORA, arXiv 2602.10019, its released code"
    promise: ClassVar[Promise] = Promise.BIASED
    null_player: ClassVar[bool] = False

    Options = AdoraOptions
    options: AdoraOptions

    def assign(self, group: EpisodeGroup, replayed: Replayed) -> Credit:
        credit = checks.assign(self.inner, group, replayed)
        right = [getattr(e.cost, self.options.length) for e in group.episodes if succeeded(e, self.options.term)]
        if self.options.rule == "length":
            wrong = [
                getattr(e.cost, self.options.length)
                for e in group.episodes
                if not succeeded(e, self.options.term) and not _was_cut(e)
            ]
            favoured = bool(right) and (not wrong or max(right) > np.mean(wrong))
        else:
            favoured = 0 < len(right) <= self.options.at_most * len(group.episodes)
        factor = self.options.gain if favoured else self.options.factor
        advantage: dict[TurnKey, Advantage] = {
            key: tuple(factor * one for one in value) if isinstance(value, tuple) else factor * value
            for key, value in credit.advantage.items()
        }
        return replace(
            credit, advantage=advantage, diagnostics={**credit.diagnostics, "favoured_share": float(favoured)}
        )


def _was_cut(episode: EpisodeRecord) -> bool:
    return any(turn.generation.finish_reason is FinishReason.LENGTH for _, turn in episode.turns())
