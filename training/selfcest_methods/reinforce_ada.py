"""`reinforce_ada` is a group filter that rolls a task out again until it has enough right and wrong rollouts.

Source: Reinforce-Ada (arXiv 2510.04996), its sequential sampling, and its released code. Here it is a filter, so any
task sampler may choose the tasks; use it with the credit scheme `downsampled`. Details and its bias: docs/methods.md.

    balanced: a task is done with n // 2 right and n - n // 2 wrong rollouts
    positive: a task is done with one right rollout
    other tasks are rolled out again, in at most `max_rounds` rounds; a group has all rollouts of its task

Expected effect: hardly any group has equal returns, and hard tasks are learned earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.structure import AtLeast, Checked, Count
from selfcest_env.types import Limits
from selfcest_training.credit import succeeded
from selfcest_training.credit.base import ReadsTerm
from selfcest_training.stages.base import FilterResult, PlannedGroup


@dataclass(frozen=True)
class ReinforceAda(ReadsTerm, Checked):
    """A group filter that asks for more rounds of a task until it has enough right and wrong rollouts.

    Attributes:
        size: n, the number of rollouts with both outcomes; equal to `size` of `downsampled`.
        enough: condition under which a task is done.
        max_rounds: largest number of rounds of rollouts in a step, the first included.
        term: reward term that is above 0 for a right episode.
    """

    size: Annotated[int, AtLeast(2)] = 8
    enough: Literal["balanced", "positive"] = "balanced"
    max_rounds: Count = 4
    term: str = "correct"

    def filter(self, step: int, groups: Sequence[EpisodeGroup], num_groups: int, rounds: int) -> FilterResult:
        joined = _join_by_task(groups)
        again = []
        for rollouts in joined:
            if rounds < self.max_rounds and not self._is_done(rollouts.episodes):
                first_group = rollouts.first_group
                again.append(PlannedGroup(first_group.task, len(first_group.episodes), rollouts.limits))
        joined_groups = [EpisodeGroup(rollouts.first_group.task, tuple(rollouts.episodes)) for rollouts in joined]
        return FilterResult(tuple(joined_groups), further_rollouts=tuple(again))

    def _is_done(self, episodes: Sequence[EpisodeRecord]) -> bool:
        num_right = sum(succeeded(episode, self.term) for episode in episodes)
        if self.enough == "positive":
            return num_right >= 1
        half = self.size // 2
        return num_right >= half and len(episodes) - num_right >= self.size - half


@dataclass
class _TaskRollouts:
    """All rollouts of a task under the same limits.

    Attributes:
        first_group: first group of the task.
        episodes: episodes of all its groups.
    """

    first_group: EpisodeGroup
    episodes: list[EpisodeRecord]

    @property
    def limits(self) -> Limits:
        return self.first_group.episodes[0].limits


def _join_by_task(groups: Sequence[EpisodeGroup]) -> list[_TaskRollouts]:
    """Return the rollouts of each task and limits, in the order of their first groups."""
    joined: list[_TaskRollouts] = []
    for group in groups:
        limits = group.episodes[0].limits
        for rollouts in joined:
            # A task that was drawn twice under different budgets has two groups: their returns do not compare.
            if rollouts.first_group.task == group.task and rollouts.limits == limits:
                rollouts.episodes += group.episodes
                break
        else:
            joined.append(_TaskRollouts(group, list(group.episodes)))
    return joined
