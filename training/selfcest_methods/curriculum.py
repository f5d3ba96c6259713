"""`curriculum` moves one limit of the game over training, after Train Long, Think Short (arXiv 2508.08940). If it
works, accuracy under the final limit is higher than in a run that has this limit from the start.

    budget = start + (end - start) * progress      progress: step / steps, or the share of `steps` steps that went well

docs/methods.md has what the paper leaves open and what was chosen here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import numpy as np

from selfcest_env.errors import ConfigError
from selfcest_env.plugin import PlainState
from selfcest_env.record import EpisodeGroup
from selfcest_env.stored import stored_as
from selfcest_env.structure import Count, OneOf, Share
from selfcest_methods.limit_changing import Inside, SetsLimit, SetsLimitOptions
from selfcest_training.config import changed_limits
from selfcest_training.credit import succeeded
from selfcest_training.stages.base import PlannedGroup, TaskMenu

_LIMITS = ("total_tokens", "generated_tokens", "turn_tokens", "max_turns", "max_clones", "max_reads")


@stored_as(moves="moves", step="step", rollouts="rollouts", right="right")
@dataclass
class _Progress(PlainState):
    """Steps that moved it on, the step under way, and what came of its rollouts."""

    moves: int = 0
    step: int = 0
    rollouts: int = 0
    right: int = 0


@dataclass(frozen=True)
class CurriculumOptions(SetsLimitOptions):
    """Attributes, besides those of `SetsLimit`:

    start, end: of the limit.
    steps: from one to the other.
    by: `steps` or `success`.
    limit: which.
    target: share of a step's rollouts that must be right to move on.
    term: an episode is right if this term of the reward is above 0.
    """

    start: Count
    end: Count
    steps: Count
    by: Literal["steps", "success"] = "steps"
    limit: Annotated[str, OneOf(*_LIMITS)] = "total_tokens"
    target: Share = 0.5
    term: str = "correct"


class Curriculum(SetsLimit):
    """A limit that moves over training."""

    Options = CurriculumOptions
    options: CurriculumOptions
    state: _CurriculumState

    @property
    def limit_set(self) -> str:
        return self.options.limit

    def check_menu(self, menu: TaskMenu) -> None:
        start, end, limit = self.options.start, self.options.end, self.options.limit
        most = getattr(menu.limits, limit)
        if most is not None and max(start, end) > most:
            raise ConfigError(
                f"start is {start} and end {end}, and {limit} of the variant's limits is {most}; expected no more than "
                f"that: raise limits.{limit}"
            )
        for value in (start, end):
            changed_limits(menu.limits, {limit: value}, "task sampler 'curriculum': limits")
        super().check_menu(menu)

    def propose(self, step: int, num_tasks: int, menu: TaskMenu, rng: np.random.Generator) -> list[PlannedGroup]:
        now = {self.options.limit: self.at(step)}
        limits = replace(menu.limits, **now)
        plans = self.inside.propose(step, num_tasks, replace(menu, limits=limits), rng)
        return [replace(plan, limits=replace(plan.limits or limits, **now)) for plan in plans]

    def at(self, step: int) -> int:
        """The limit at a step."""
        self._close(step)
        share = min(1.0, (step if self.options.by == "steps" else self.state.progress.moves) / self.options.steps)
        return round(self.options.start + (self.options.end - self.options.start) * share)

    def observe(self, step: int, groups: Sequence[EpisodeGroup]) -> None:
        super().observe(step, groups)
        self._close(step)
        if self.options.by == "success":
            right = [succeeded(episode, self.options.term) for group in groups for episode in group.episodes]
            self.state.progress.rollouts += len(right)
            self.state.progress.right += sum(right)

    def _close(self, step: int) -> None:
        """End the step before this one."""
        now = self.state.progress
        if step != now.step:
            now.moves += now.rollouts > 0 and now.right >= self.options.target * now.rollouts
            now.step, now.rollouts, now.right = step, 0, 0

    def initial_state(self) -> _CurriculumState:
        return _CurriculumState(super().initial_state().sampler)


@dataclass
class _CurriculumState(Inside):
    progress: _Progress = field(default_factory=_Progress)

    def state_dict(self) -> Mapping[str, Any]:
        return {"progress": self.progress.state_dict(), **super().state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.progress.load_state_dict(state["progress"])
        super().load_state_dict(state)
