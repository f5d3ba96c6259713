"""`d3s` trains on the rollouts whose advantages vary most, and on their tokens with the largest |A| times entropy.

Source: D3S (Wang et al., arXiv 2509.22115). In the paper a rollout is one sequence. Here it is a tree, so rollouts are
chosen by their mean advantage. Details: docs/methods.md.

    rollouts: the m = ceil(s_r n) of n episodes whose mean advantages have the largest variance
    tokens: of these episodes the ceil(s_t T) of T with the largest |A_t| · H_t
    s(step) = s_0 + (1 - s_0) min(1, step / steps)

Expected effect: accuracy rises earlier per trained token, and ends no lower.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.replay import root_episode
from selfcest_env.structure import Above, AtMost, Count
from selfcest_env.types import TurnKey
from selfcest_training.credit import checks
from selfcest_training.credit.base import Advantage, Credit, Internal, Internals, Promise, ReplayRecords
from selfcest_training.credit.wrapping import CountsSteps, WrapperOptions, WrapperScheme, select_turns

KeptShare = Annotated[float, Above(0), AtMost(1)]


@dataclass(frozen=True)
class D3sOptions(WrapperOptions):
    """Options in addition to `scheme`.

    Attributes:
        rollouts: share of the rollouts that is kept at step 0.
        tokens: share of the tokens that is kept at step 0.
        steps: number of steps after which all rollouts and tokens are kept.
        across: rollouts that compete with each other: all of a `step`, or those of each `group`.
    """

    rollouts: KeptShare = 0.5
    tokens: KeptShare = 0.5
    steps: Count = 100
    across: Literal["step", "group"] = "step"


class D3s(CountsSteps, WrapperScheme):
    """Takes the credit of another scheme, by default `grpo`, for some rollouts and tokens only."""

    name: ClassVar[str] = "d3s"
    formula: ClassVar[str] = (
        "A of `scheme` for the rollouts of largest Var(A) and their tokens of largest |A| H; shares grow to 1"
    )
    source: ClassVar[str] = "D3S, Wang et al. 2025, arXiv 2509.22115"
    promise: ClassVar[Promise] = Promise.BIASED
    null_player: ClassVar[bool] = False
    internals: ClassVar[frozenset[Internal]] = frozenset({Internal.ENTROPY})

    Options = D3sOptions
    options: D3sOptions

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        """Return the credit without entropies, which is that of the inner scheme."""
        return checks.assign(self.inner, group, replayed)

    def assign_step(
        self, groups: Sequence[EpisodeGroup], replayed: Sequence[ReplayRecords], internals: Internals
    ) -> Sequence[Credit]:
        inner_credits = super().assign_step(groups, replayed, internals)
        pairs = list(zip(groups, inner_credits, strict=True))
        if self.options.across == "step":
            return self._down_sample(pairs, internals)
        credits: list[Credit] = []
        for pair in pairs:
            credits += self._down_sample([pair], internals)
        return credits

    def _down_sample(self, pool: Sequence[tuple[EpisodeGroup, Credit]], internals: Internals) -> list[Credit]:
        """Return the credits of a pool of groups, without the rollouts and tokens that are dropped."""
        # The kept shares grow from their options to 1 over `steps` steps.
        progress = min(1.0, self.state.steps / self.options.steps)
        rollout_share = self.options.rollouts + (1 - self.options.rollouts) * progress
        token_share = self.options.tokens + (1 - self.options.tokens) * progress
        episodes: list[tuple[EpisodeRecord, Credit]] = []
        for group, credit in pool:
            episodes += [(episode, credit) for episode in group.episodes]
        mean_advantages = [_compute_mean_advantage(episode, credit) for episode, credit in episodes]
        kept_ids = {episodes[i][0].episode_id for i in find_most_varied(mean_advantages, rollout_share)}
        scores: dict[TurnKey, npt.NDArray[Any]] = {}  # |A| H of every token of the kept episodes
        for episode, credit in episodes:
            if episode.episode_id not in kept_ids:
                continue
            for key, turn in episode.turns():
                if key in credit.advantage:
                    advantages = _per_token(credit.advantage[key], len(turn.generation.token_ids))
                    scores[key] = np.abs(advantages) * internals[key].entropies
        # The empty list is there because numpy cannot concatenate nothing.
        descending = np.sort(np.concatenate([*scores.values(), []]))[::-1]
        # Tokens of equal scores are kept together, so that no order among them decides.
        threshold = 0.0
        if len(descending) and token_share < 1:
            threshold = descending[math.ceil(token_share * len(descending)) - 1]
        return [_keep_highest(group, credit, kept_ids, scores, threshold) for group, credit in pool]


def find_most_varied(values: Sequence[float], share: float) -> set[int]:
    """Return the positions of the share of the values that has the largest variance."""
    count = math.ceil(share * len(values))
    if not count:
        return set()
    order = np.argsort(values, kind="stable")
    ranked = np.asarray(values)[order]
    # The subset of a size with the largest variance consists of some lowest and some highest values.
    subsets = [np.r_[0:lowest, len(values) - (count - lowest) : len(values)] for lowest in range(count, -1, -1)]
    best = max(subsets, key=lambda positions: float(np.var(ranked[positions])))
    return {int(order[position]) for position in best}


def _compute_mean_advantage(episode: EpisodeRecord, credit: Credit) -> float:
    advantages = [
        _per_token(credit.advantage.get(key, 0.0), len(turn.generation.token_ids)) for key, turn in episode.turns()
    ]
    per_token = np.concatenate([*advantages, []])
    return float(per_token.mean()) if len(per_token) else 0.0


def _keep_highest(
    group: EpisodeGroup,
    credit: Credit,
    kept_ids: set[str],
    scores: Mapping[TurnKey, npt.NDArray[Any]],
    threshold: float,
) -> Credit:
    """Return the credit of a group without the dropped episodes, and with 0 for the dropped tokens.

    Args:
        group: the group.
        credit: credit of the inner scheme.
        kept_ids: ids of the episodes that are kept.
        scores: |A| H of every token of these episodes, by turn.
        threshold: lowest score of a token that is kept.
    """
    advantage: dict[TurnKey, Advantage] = {}
    for key, value in credit.advantage.items():
        if key in scores and (scores[key] < threshold).any():
            advantage[key] = tuple(np.where(scores[key] < threshold, 0.0, value).tolist())
        elif root_episode(key.episode_id) in kept_ids:
            advantage[key] = value
    diagnostics = {"kept_rollouts": float(np.mean([episode.episode_id in kept_ids for episode in group.episodes]))}
    is_kept: list[npt.NDArray[Any]] = []  # whether each token of a kept episode is kept, by turn
    for episode in group.episodes:
        is_kept += [scores[key] >= threshold for key, _ in episode.turns() if key in scores]
    if sum(map(len, is_kept)):
        diagnostics["kept_tokens"] = float(np.mean(np.concatenate(is_kept)))
    return select_turns(credit, group, advantage, diagnostics)


def _per_token(value: Advantage, length: int) -> npt.NDArray[Any]:
    return np.broadcast_to(np.asarray(value, dtype=np.float64), length)
