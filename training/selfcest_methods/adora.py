"""`adora` scales down the credit of groups whose right episodes are no longer than their wrong ones.

Source: ADORA (arXiv 2602.10019), its rule by length and the factor 0.1 as in the released code. The rule by difficulty
is the paper's with a threshold of this project. Details: docs/methods.md.

    A = A of the scheme `scheme` * (`gain` if the group is favoured, else `factor`)
    by length:      max length of right episodes > mean length of wrong ones
    by difficulty:  0 < share of right episodes <= `at_most`

Expected effect: right episodes grow longer where the extra tokens raise accuracy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np

from selfcest_env.record import EpisodeGroup, EpisodeRecord, cost_measures
from selfcest_env.structure import NotNegative, OneOf, Share, check_unused
from selfcest_env.types import FinishReason
from selfcest_training.credit import checks
from selfcest_training.credit.base import Advantage, Credit, Promise, ReadsTerm, ReplayRecords, succeeded
from selfcest_training.credit.wrapping import WrapperOptions, WrapperScheme


@dataclass(frozen=True)
class AdoraOptions(ReadsTerm, WrapperOptions):
    """Options in addition to `scheme`.

    Attributes:
        factor: factor of the credit of a group that is not favoured.
        length: cost measure of the length of an episode, for the rule `length` only.
        term: reward term that is above 0 for a right episode.
        rule: rule by which groups are favoured: `length`, or `difficulty`, the share of right episodes.
        at_most: largest share of right episodes in a favoured group, for the rule `difficulty` only.
        gain: factor of the credit of a favoured group.
    """

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
    """Scales the credit of another scheme, by default `grpo`, by whether the group is favoured."""

    name: ClassVar[str] = "adora"
    formula: ClassVar[str] = (
        "A = A of `scheme`, times `factor` unless right episodes are longer than wrong ones, or rare (by `rule`)"
    )
    source: ClassVar[str] = "ADORA, arXiv 2602.10019, its released code"
    promise: ClassVar[Promise] = Promise.BIASED
    null_player: ClassVar[bool] = False

    Options = AdoraOptions
    options: AdoraOptions

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        credit = checks.assign(self.inner, group, replayed)
        is_favoured = self._is_favoured(group)
        factor = self.options.gain if is_favoured else self.options.factor
        advantage = {key: _scale(value, factor) for key, value in credit.advantage.items()}
        diagnostics = {**credit.diagnostics, "favoured_share": float(is_favoured)}
        return replace(credit, advantage=advantage, diagnostics=diagnostics)

    def _is_favoured(self, group: EpisodeGroup) -> bool:
        right_episodes = [episode for episode in group.episodes if succeeded(episode, self.options.term)]
        if self.options.rule == "difficulty":
            return 0 < len(right_episodes) <= self.options.at_most * len(group.episodes)
        if not right_episodes:
            return False
        # A wrong episode that was cut says nothing about the length of wrong answers.
        wrong_episodes = [e for e in group.episodes if not succeeded(e, self.options.term) and not _was_cut(e)]
        if not wrong_episodes:
            return True
        right_lengths = [self._get_length(episode) for episode in right_episodes]
        wrong_lengths = [self._get_length(episode) for episode in wrong_episodes]
        return bool(max(right_lengths) > np.mean(wrong_lengths))

    def _get_length(self, episode: EpisodeRecord) -> int:
        length: int = getattr(episode.cost, self.options.length)
        return length


def _scale(value: Advantage, factor: float) -> Advantage:
    if isinstance(value, tuple):
        return tuple(factor * token_value for token_value in value)
    return factor * value


def _was_cut(episode: EpisodeRecord) -> bool:
    return any(turn.generation.finish_reason is FinishReason.LENGTH for _, turn in episode.turns())
