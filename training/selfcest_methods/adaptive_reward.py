"""`forced_alone` adds rollouts without clones, and `adaptive_reward` pays delegation less where those are right.

Source: Adaptive Policy Optimization (APO) of A2FM (Chen et al., arXiv 2510.12838). The text of the paper could not be
had, and its code is not released. This is built from its Figure 3, and the formula is from published notes on the
paper. In the paper three modes are forced by a prefix, and the policy names its mode. Here the root is forced to work
alone by `max_depth: 0`, and a free root has delegated if one of its calls was granted. Details: docs/methods.md.

    p = share of the task's forced rollouts that are right
    R = return - p^alpha * (weighted value of `term`) for a free rollout that delegated;   R = return for all others
    A = that of `scheme` over the free and the forced rollouts of the task together

Open in the source, and chosen here: p is of the cheap mode only (the notes disagree); the ratio of free and forced
rollouts; the deduction is from one term of the reward, so prices of tokens stay. A group without forced rollouts has
the credit of `scheme`, and the metric `credit/alone_rate` is the mean of p over the others.

In a config both are named: `rl: {group_filter: {name: forced_alone}, credit: {name: adaptive_reward}}`.

Expected effect: without a price of tokens, the policy stops delegating the tasks that it solves alone, and no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from selfcest_env.errors import ConfigError
from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.structure import Checked, Count, Positive
from selfcest_env.types import Limits, Outcome
from selfcest_training.credit import checks, succeeded
from selfcest_training.credit.base import Credit, Promise, ReadsTerm, ReplayRecords, get_term
from selfcest_training.credit.wrapping import WrapperOptions, WrapperScheme
from selfcest_training.stages.base import FilterResult, PlannedGroup

_DEDUCTION = "adaptive_reward"  # a reward term of the credit's own copies of records


@dataclass(frozen=True)
class ForcedAlone(Checked):
    """A group filter that rolls every task out again without delegation, and joins both kinds of rollouts.

    The forced rollouts train too, and loss denominators do not count them.

    Attributes:
        rollouts: number of forced rollouts per task.
    """

    rollouts: Count = 4

    def filter(self, step: int, groups: Sequence[EpisodeGroup], num_groups: int, rounds: int) -> FilterResult:
        if rounds == 1:
            return FilterResult(tuple(groups), further_rollouts=tuple(map(self._plan, groups)))
        free_groups = [group for group in groups if not _is_forced(group.episodes[0])]
        forced_groups = [group for group in groups if _is_forced(group.episodes[0])]
        joined = []
        for group in free_groups:
            limits = _without_delegation(group.episodes[0].limits)
            for position, forced in enumerate(forced_groups):
                if forced.task == group.task and forced.episodes[0].limits == limits:
                    group = EpisodeGroup(group.task, (*group.episodes, *forced.episodes))
                    # A task that was drawn twice has two groups, and each gets rollouts of its own.
                    del forced_groups[position]
                    break
            joined.append(group)
        return FilterResult(tuple(joined))

    def _plan(self, group: EpisodeGroup) -> PlannedGroup:
        if _is_forced(group.episodes[0]):
            raise ConfigError(
                "group filter 'forced_alone': limits.max_depth is 0, so every rollout is alone; expected limits that "
                "allow delegation: raise max_depth, or use another group filter"
            )
        return PlannedGroup(group.task, self.rollouts, _without_delegation(group.episodes[0].limits))


@dataclass(frozen=True)
class AdaptiveRewardOptions(ReadsTerm, WrapperOptions):
    """Options in addition to `scheme`.

    Attributes:
        term: reward term that is above 0 for a right episode, and that delegation can lose.
        alpha: exponent of the success rate. A larger exponent deducts less where forced rollouts are often wrong.
    """

    term: str = "correct"
    alpha: Positive = 2.0


class AdaptiveReward(WrapperScheme):
    """The credit of another scheme, by default `grpo`, with lower returns for delegation that was not needed."""

    name: ClassVar[str] = "adaptive_reward"
    formula: ClassVar[str] = "as `scheme`, with R - p^alpha * `term` for delegation; p: share right when forced alone"
    source: ClassVar[str] = "APO of A2FM, Chen et al. 2025, arXiv 2510.12838"
    promise: ClassVar[Promise] = Promise.BIASED
    null_player: ClassVar[bool] = False

    Options = AdaptiveRewardOptions
    options: AdaptiveRewardOptions

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        forced = [succeeded(episode, self.options.term) for episode in group.episodes if _is_forced(episode)]
        if not forced:
            return checks.assign(self.inner, group, replayed)
        rate = float(np.mean(forced))
        episodes = tuple(self._deduct(episode, rate) for episode in group.episodes)
        records = {replay: self._deduct(record, rate) for replay, record in replayed.items()}
        credit = checks.assign(self.inner, EpisodeGroup(group.task, episodes), records)
        return replace(credit, diagnostics={**credit.diagnostics, "alone_rate": rate})

    def _deduct(self, episode: EpisodeRecord, rate: float) -> EpisodeRecord:
        """Return a copy of the record whose return is lower if the root delegated."""
        if not any(turn.facts.outcome is Outcome.DELEGATED for turn in episode.root.turns):
            return episode
        deduction = -(rate**self.options.alpha) * get_term(episode, self.options.term)
        return replace(
            episode,
            reward_terms={**(episode.reward_terms or {}), _DEDUCTION: deduction},
            weights={**episode.weights, _DEDUCTION: episode.weights.get(self.options.term, 1.0)},
        )


def _without_delegation(limits: Limits) -> Limits:
    return replace(limits, max_depth=0)


def _is_forced(episode: EpisodeRecord) -> bool:
    return episode.limits.max_depth == 0
