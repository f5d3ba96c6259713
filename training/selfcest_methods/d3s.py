"""`d3s` trains on the rollouts whose advantages vary most and on their tokens of largest |A| times entropy, after D3S
(Wang et al., arXiv 2509.22115). If it works, accuracy rises earlier per trained token, and ends no lower.

    rollouts: the m = ceil(s_r n) of n episodes whose mean advantages have the largest variance
    tokens: of these episodes the ceil(s_t T) of T with the largest |A_t| · H_t
    s(step) = s_0 + (1 - s_0) min(1, step / steps)

docs/methods.md has what the paper leaves open and what was chosen here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.replay import root_episode
from selfcest_env.structure import Above, AtMost, Count
from selfcest_env.types import TurnKey
from selfcest_training.credit import checks
from selfcest_training.credit.base import Advantage, Credit, Internal, Internals, Promise, Replayed
from selfcest_training.credit.wrapping import CountsSteps, WrapperOptions, WrapperScheme

Kept = Annotated[float, Above(0), AtMost(1)]


@dataclass(frozen=True)
class D3sOptions(WrapperOptions):
    rollouts: Kept = 0.5
    tokens: Kept = 0.5
    steps: Count = 100
    across: Literal["step", "group"] = "step"


class D3s(CountsSteps, WrapperScheme):
    """Options: `scheme`, `{name, options}` or null (default) for `grpo`; `rollouts`, `tokens` (default 0.5 each), the
    shares kept at first; `steps` (default 100), after which all are; `across`, `step` (default) or `group`."""

    name: ClassVar[str] = "d3s"
    formula: ClassVar[str] = (
        "as `scheme`; rollouts of largest Var(A), of these tokens of largest |A| H, ever more of them"
    )
    source: ClassVar[str] = "D3S, Wang et al. 2025, arXiv 2509.22115"
    promise: ClassVar[Promise] = Promise.BIASED
    null_player: ClassVar[bool] = False
    internals: ClassVar[frozenset[Internal]] = frozenset({Internal.ENTROPY})

    Options = D3sOptions
    options: D3sOptions

    def assign(self, group: EpisodeGroup, replayed: Replayed) -> Credit:
        """What it is without entropies: the scheme inside."""
        return checks.assign(self.inner, group, replayed)

    def assign_step(
        self, groups: Sequence[EpisodeGroup], replayed: Sequence[Replayed], internals: Internals
    ) -> Sequence[Credit]:
        credits = [self.assign(group, found) for group, found in zip(groups, replayed, strict=True)]
        pairs = list(zip(groups, credits, strict=True))
        pools = [pairs] if self.options.across == "step" else [[pair] for pair in pairs]
        return [one for pool in pools for one in self._down_sampled(pool, internals)]

    def _down_sampled(self, pool: Sequence[tuple[EpisodeGroup, Credit]], internals: Internals) -> list[Credit]:
        relaxed = min(1.0, self.state.steps / self.options.steps)
        rollouts, tokens = (share + (1 - share) * relaxed for share in (self.options.rollouts, self.options.tokens))
        episodes = [(episode, credit) for group, credit in pool for episode in group.episodes]
        chosen = _most_varied([_mean_advantage(*pair) for pair in episodes], rollouts)
        kept = {episodes[i][0].episode_id for i in chosen}
        worth = {
            key: np.abs(_per_token(credit.advantage[key], len(turn.generation.token_ids))) * internals[key].entropies
            for episode, credit in episodes
            if episode.episode_id in kept
            for key, turn in episode.turns()
            if key in credit.advantage
        }
        every = np.sort(np.concatenate([*worth.values(), []]))[::-1]
        floor = every[math.ceil(tokens * len(every)) - 1] if len(every) and tokens < 1 else 0.0
        return [_without(group, credit, kept, worth, floor) for group, credit in pool]


def _most_varied(values: Sequence[float], share: float) -> set[int]:
    """Places of the share of the values that has the largest variance."""
    order, count = np.argsort(values, kind="stable"), math.ceil(share * len(values))
    ranked = np.asarray(values)[order]
    ends = [np.r_[0:low, len(values) - (count - low) : len(values)] for low in range(count, -1, -1)]
    best = max(ends, key=lambda places: float(np.var(ranked[places]))) if count else ()
    return {int(order[place]) for place in best}


def _mean_advantage(episode: EpisodeRecord, credit: Credit) -> float:
    found = [
        _per_token(credit.advantage.get(key, 0.0), len(turn.generation.token_ids)) for key, turn in episode.turns()
    ]
    every = np.concatenate([*found, []])
    return float(every.mean()) if len(every) else 0.0


def _without(
    group: EpisodeGroup, credit: Credit, kept: set[str], worth: Mapping[TurnKey, npt.NDArray[Any]], floor: float
) -> Credit:
    """The credit of a group without the episodes and the tokens that are dropped."""
    advantage: dict[TurnKey, Advantage] = {}
    for key, value in credit.advantage.items():
        if key in worth and (worth[key] < floor).any():
            advantage[key] = tuple(np.where(worth[key] < floor, 0.0, value).tolist())
        elif root_episode(key.episode_id) in kept:
            advantage[key] = value
    turns = [key for episode in group.episodes for key, _ in episode.turns()]
    tokens = [bool(one) for key in turns if key in worth for one in worth[key] >= floor]
    diagnostics = {
        "kept_rollouts": float(np.mean([episode.episode_id in kept for episode in group.episodes])),
        **({"kept_tokens": float(np.mean(tokens))} if tokens else {}),
    }
    return replace(
        credit,
        advantage=advantage,
        excluded=frozenset(key for key in turns if key not in advantage),
        diagnostics={**credit.diagnostics, **diagnostics},
        weight={key: value for key, value in credit.weight.items() if key in advantage},
    )


def _per_token(value: Advantage, length: int) -> npt.NDArray[Any]:
    return np.broadcast_to(np.asarray(value, dtype=np.float64), length)
