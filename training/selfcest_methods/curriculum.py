"""`curriculum` moves one limit of the game over training, around another task sampler.

Source: Train Long, Think Short (arXiv 2508.08940). In the paper the budget tightens by a schedule and is a term of the
reward. Here it is a limit that cannot be exceeded, and `by: success` is an addition. Details: docs/methods.md.

    limit = start + (end - start) * progress
    progress = step / steps, or (steps in which enough rollouts were right) / steps

Expected effect: accuracy under the final limit is higher than in a run that has this limit from the start.
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
from selfcest_methods.buckets import SuccessSums
from selfcest_methods.limit_changing import InnerSamplerState, LimitChangingOptions, LimitChangingSampler
from selfcest_training.config import override_limits
from selfcest_training.credit.base import ReadsTerm
from selfcest_training.stages.base import PlannedGroup, TaskMenu

_LIMITS = ("total_tokens", "generated_tokens", "turn_tokens", "max_turns", "max_clones", "max_reads")


@stored_as(moves="moves", step="step", rollouts="rollouts", right="right")
@dataclass
class _Progress(PlainState):
    """Progress by success.

    Attributes:
        moves: number of earlier steps in which enough rollouts were right.
        step: the current step.
        rollouts: number of rollouts of the current step.
        right: number of right rollouts of the current step.
    """

    moves: int = 0
    step: int = 0
    rollouts: int = 0
    right: int = 0


@dataclass(frozen=True)
class CurriculumOptions(ReadsTerm, LimitChangingOptions):
    """Options in addition to those of `LimitChangingSampler`.

    Attributes:
        start, end: first and last value of the limit.
        steps: number of steps from `start` to `end`.
        by: `steps` counts every step; `success` only those in which enough rollouts were right.
        limit: name of the limit.
        target: share of a step's rollouts that must be right, for `by: success`.
        term: reward term that is above 0 for a right episode.
    """

    start: Count
    end: Count
    steps: Count
    by: Literal["steps", "success"] = "steps"
    limit: Annotated[str, OneOf(*_LIMITS)] = "total_tokens"
    target: Share = 0.5
    term: str = "correct"


class Curriculum(LimitChangingSampler):
    """A task sampler with a limit that moves over training."""

    Options = CurriculumOptions
    options: CurriculumOptions
    state: _CurriculumState

    @property
    def changed_limit(self) -> str:
        return self.options.limit

    def check_menu(self, menu: TaskMenu) -> None:
        name = self.options.limit
        variant_limit = getattr(menu.limits, name)
        for value in (self.options.start, self.options.end):
            if variant_limit is not None and value > variant_limit:
                raise ConfigError(
                    f"start is {self.options.start} and end {self.options.end}, and {name} of the variant's limits is "
                    f"{variant_limit}; expected no more than that: raise limits.{name}"
                )
            override_limits(menu.limits, {name: value}, "task sampler 'curriculum': limits")
        super().check_menu(menu)

    def propose(self, step: int, num_tasks: int, menu: TaskMenu, rng: np.random.Generator) -> list[PlannedGroup]:
        change = {self.options.limit: self.limit_at(step)}
        limits = replace(menu.limits, **change)
        # The inner sampler sees the limit of this step, since its choice of tasks may depend on it.
        plans = self.inner.propose(step, num_tasks, replace(menu, limits=limits), rng)
        return [replace(plan, limits=replace(plan.limits or limits, **change)) for plan in plans]

    def limit_at(self, step: int) -> int:
        """Return the limit at a step, which must not be earlier than the last one."""
        self._begin_step(step)
        steps_done = step if self.options.by == "steps" else self.state.progress.moves
        share = min(1.0, steps_done / self.options.steps)
        return round(self.options.start + (self.options.end - self.options.start) * share)

    def observe(self, step: int, groups: Sequence[EpisodeGroup]) -> None:
        super().observe(step, groups)
        self._begin_step(step)
        if self.options.by == "success":
            for group in groups:
                sums = SuccessSums.of(group, self.options.term)
                self.state.progress.rollouts += int(sums.rollouts)
                self.state.progress.right += int(sums.successes)

    def _begin_step(self, step: int) -> None:
        """Begin a new step, and count the last one as a move if enough of its rollouts were right."""
        progress = self.state.progress
        if step == progress.step:
            return
        if progress.rollouts > 0 and progress.right >= self.options.target * progress.rollouts:
            progress.moves += 1
        progress.step = step
        progress.rollouts = 0
        progress.right = 0

    def initial_state(self) -> _CurriculumState:
        return _CurriculumState(super().initial_state().sampler)


@dataclass
class _CurriculumState(InnerSamplerState):
    progress: _Progress = field(default_factory=_Progress)

    def state_dict(self) -> Mapping[str, Any]:
        return {"progress": self.progress.state_dict(), **super().state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.progress.load_state_dict(state["progress"])
        super().load_state_dict(state)
