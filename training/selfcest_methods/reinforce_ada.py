"""`reinforce_ada` rolls a task out again until it has enough of both outcomes, after Reinforce-Ada (arXiv 2510.04996).
If it works, hardly any group has equal returns, and hard tasks are learned earlier.

    balanced: a task is done with n/2 right and n - n/2 wrong rollouts     positive: with a right one
    those that are not are rolled out again, at most `max_rounds` rounds in all; a group is all rollouts of its task

docs/methods.md has what the paper leaves open and what was chosen here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.structure import AtLeast, Checked, Count
from selfcest_env.types import Limits
from selfcest_training.credit import succeeded
from selfcest_training.stages.base import FilterResult, PlannedGroup


@dataclass(frozen=True)
class ReinforceAda(Checked):
    """Attributes:

    size: n, rollouts of which a task should have both outcomes; that of `downsampled`.
    enough: the exit.
    max_rounds: of rollouts in a step, the first included.
    term: an episode is right if this term of the reward is above 0.
    """

    size: Annotated[int, AtLeast(2)] = 8
    enough: Literal["balanced", "positive"] = "balanced"
    max_rounds: Count = 4
    term: str = "correct"

    def filter(self, step: int, groups: Sequence[EpisodeGroup], wanted: int, rounds: int) -> FilterResult:
        joined: list[_Joined] = []
        for group in groups:
            limits = group.episodes[0].limits
            one = next((j for j in joined if j.first.task == group.task and j.limits == limits), None)
            if one is None:
                joined.append(one := _Joined(group))
            one.episodes += group.episodes
        open_ = [one for one in joined if not self._done(one.episodes)] if rounds < self.max_rounds else []
        again = [PlannedGroup(one.first.task, len(one.first.episodes), one.limits) for one in open_]
        return FilterResult(
            tuple(EpisodeGroup(one.first.task, tuple(one.episodes)) for one in joined), again=tuple(again)
        )

    def _done(self, episodes: Sequence[EpisodeRecord]) -> bool:
        right = sum(succeeded(episode, self.term) for episode in episodes)
        half = self.size // 2
        return right >= 1 if self.enough == "positive" else right >= half and len(episodes) - right >= self.size - half


@dataclass
class _Joined:
    """The groups of one task so far, as one."""

    first: EpisodeGroup
    episodes: list[EpisodeRecord] = field(default_factory=list)

    @property
    def limits(self) -> Limits:
        return self.first.episodes[0].limits
