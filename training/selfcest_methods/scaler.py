"""`scaler` moves the difficulty level of each family with the policy's accuracy, and rests families that are learned.

Source: SCALER (arXiv 2601.04809), its difficulty controller and environment curation, with the constants of the
released code. In the paper a family that leaves is replaced by any other one, and active families have equal shares.
Here it is replaced by a resting one, and the config's weights decide. The paper's synthesis of families is left out: a
large model writes generators and checkers, and their code is executed. Details: docs/methods.md.

    d <- clip(d + clip(gain * (accuracy - target), -max_move, max_move), 0, top)      after every round, per family
    accuracy = (1 - f) acc(floor d) + f acc(ceil d), f = d - floor d; a task is of level ceil d with probability f
    a family leaves the active set after `stuck` rounds in a row without a right rollout, after `saturated` rounds in a
    row at its top, or when its d has not risen over the last `window` rounds (slope of a line through them <= 0)

Expected effect: accuracy in training stays near the target while the difficulty rises.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from selfcest_env.errors import ConfigError, did_you_mean
from selfcest_env.plugin import Stateful
from selfcest_env.record import EpisodeGroup
from selfcest_env.structure import (
    AtLeast,
    Checked,
    Count,
    Distinct,
    NotEmpty,
    NotNegative,
    Positive,
    Share,
    check_order,
)
from selfcest_env.tasks import TaskSource
from selfcest_training.credit import succeeded
from selfcest_training.credit.base import ReadsTerm
from selfcest_training.families import draw_family, draw_task
from selfcest_training.stages.base import PlannedGroup, TaskMenu


@dataclass(frozen=True)
class Knob(Checked):
    """A mapping from the level of a family to options of its task source.

    Attributes:
        options: names of the options; all are set to the value of the level.
        low, high: values of the lowest and of the highest level.
        step: difference between the values of two levels.
        start: level to begin with.
    """

    options: Annotated[tuple[str, ...], NotEmpty(), Distinct()]
    low: int
    high: int
    step: Count = 1
    start: NotNegative = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_order(self, "low", "high")
        if self.start > self.top:
            raise ConfigError(f"start is {self.start:g}; expected a level from 0 to {self.top}")

    @property
    def top(self) -> int:
        """The highest level."""
        return (self.high - self.low) // self.step

    def options_at(self, level: int) -> dict[str, int]:
        """Return the options of a level."""
        return dict.fromkeys(self.options, self.low + level * self.step)


@dataclass
class FamilyProgress:
    """The difficulty of a family.

    Attributes:
        level: d, the current level, between two whole levels.
        levels, accuracies: one for each round since the family became active, at most the last `window`.
    """

    level: float = 0.0
    levels: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)


@dataclass
class ScalerState:
    """State of `Scaler`.

    Attributes:
        active: names of the active families.
        progress: progress of each family that was ever active, by name.
    """

    active: list[str] = field(default_factory=list)
    progress: dict[str, FamilyProgress] = field(default_factory=dict)

    def state_dict(self) -> Mapping[str, Any]:
        tracks = {name: [family.level, family.levels, family.accuracies] for name, family in self.progress.items()}
        return {"active": self.active, "tracks": tracks}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.active = list(state["active"])
        self.progress = {name: FamilyProgress(*track) for name, track in state["tracks"].items()}


@dataclass(frozen=True)
class ScalerOptions(ReadsTerm, Checked):
    """Options of `Scaler`.

    Attributes:
        knobs: knob of each family by name; a family without a knob has one level.
        active: number of active families; `None` for all.
        target: accuracy to hold.
        gain: change of the level per unit of accuracy.
        max_move: largest change of a level in a round.
        stuck: number of rounds in a row without a right rollout after which a family leaves the active set.
        saturated: number of rounds in a row at the highest level after which it leaves.
        window: number of rounds without a rise of the level after which it leaves.
        term: reward term that is above 0 for a right episode.
    """

    knobs: Mapping[str, Knob]
    active: Annotated[Count | None, "null: all"] = None
    target: Share = 0.5
    gain: Positive = 2.0
    max_move: Positive = 1.0
    stuck: Count = 5
    saturated: Count = 5
    window: Annotated[int, AtLeast(2)] = 50
    term: str = "correct"


class Scaler(Stateful[ScalerState]):
    """A task sampler whose families have levels that follow their accuracy."""

    Options = ScalerOptions
    options: ScalerOptions

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # Making a source can read a file, so each one is made once.
        self._source_by_level: dict[tuple[str, int], TaskSource] = {}

    def check_menu(self, menu: TaskMenu) -> None:
        """Raise `ConfigError` for a knob of an unknown family, or one whose source refuses its lowest or top level."""
        names = _get_families(menu)
        for name, knob in self.options.knobs.items():
            if name not in names:
                raise ConfigError(
                    f"knobs has the family '{name}', which rl.tasks does not draw from.{did_you_mean(name, names)} "
                    f"Expected one of {', '.join(names)}"
                )
            for level in (0, knob.top):
                self._get_source(name, level, menu)

    def propose(self, step: int, num_tasks: int, menu: TaskMenu, rng: np.random.Generator) -> list[PlannedGroup]:
        self._update_active(_get_families(menu), rng)
        weights = {name: menu.weights[name] for name in self.state.active}
        plans = []
        for _ in range(num_tasks):
            family = draw_family(weights, rng)
            level = self._draw_level(family, rng)
            task = draw_task(family, self._get_source(family, level, menu), rng, level=level)
            plans.append(PlannedGroup(task, menu.group_size))
        return plans

    def observe(self, step: int, groups: Sequence[EpisodeGroup]) -> None:
        outcomes: dict[str, dict[int, list[bool]]] = {}  # by family and level
        for group in groups:
            family = str(group.task.metadata["family"])
            level = int(group.task.metadata.get("level", 0))
            level_outcomes = outcomes.setdefault(family, {}).setdefault(level, [])
            level_outcomes += [succeeded(episode, self.options.term) for episode in group.episodes]
        for family, by_level in outcomes.items():
            accuracies = {level: sum(successes) / len(successes) for level, successes in by_level.items()}
            self._move_level(family, accuracies)

    def _move_level(self, family: str, accuracies: Mapping[int, float]) -> None:
        """Move the level of a family by the accuracies of a round, which are by level."""
        progress = self._get_progress(family)
        # Only the two levels around d have a weight. Tasks of other levels were proposed before d moved.
        weights = {level: max(0.0, 1 - abs(progress.level - level)) for level in accuracies}
        total = sum(weights.values())
        if not total:
            return
        accuracy = sum(weights[level] * accuracies[level] for level in weights) / total
        # Only the last `window` rounds are needed to decide whether the family leaves.
        progress.levels = [*progress.levels, progress.level][-self.options.window :]
        progress.accuracies = [*progress.accuracies, accuracy][-self.options.window :]
        move = self.options.gain * (accuracy - self.options.target)
        move = min(self.options.max_move, max(-self.options.max_move, move))
        progress.level = min(float(self._get_top(family)), max(0.0, progress.level + move))

    def _update_active(self, names: Sequence[str], rng: np.random.Generator) -> None:
        """Fill the active set, and replace each learned or stuck family by a resting one, if there is any."""
        state = self.state
        count = len(names) if self.options.active is None else min(self.options.active, len(names))
        state.active = [name for name in state.active if name in names]
        state.active += [name for name in names if name not in state.active][: count - len(state.active)]
        for position, family in enumerate(state.active):
            resting = [name for name in names if name not in state.active]
            if resting and self._should_leave(family):
                progress = self._get_progress(family)
                # The level stays; the counts of rounds begin again when the family is active again.
                progress.levels = []
                progress.accuracies = []
                state.active[position] = resting[int(rng.integers(len(resting)))]

    def _should_leave(self, family: str) -> bool:
        progress = self._get_progress(family)
        top = self._get_top(family)
        last_accuracies = progress.accuracies[-self.options.stuck :]
        if len(last_accuracies) == self.options.stuck and not any(last_accuracies):
            return True
        # A family of one level is always at its top and cannot rise.
        if not top:
            return False
        last_levels = progress.levels[-self.options.saturated :]
        if len(last_levels) == self.options.saturated and all(level == top for level in last_levels):
            return True
        if len(progress.levels) < self.options.window:
            return False
        slope = np.polyfit(range(self.options.window), progress.levels, 1)[0]
        return bool(slope <= 0)

    def _draw_level(self, family: str, rng: np.random.Generator) -> int:
        """Return one of the two levels around d, whose mean is d."""
        level = self._get_progress(family).level
        lower = math.floor(level)
        return lower + int(rng.random() < level - lower)

    def _get_source(self, family: str, level: int, menu: TaskMenu) -> TaskSource:
        """Return the source of a family at a level. It is made once, as the menu never changes."""
        if family not in self.options.knobs:
            return menu.sources[family]
        if menu.remake is None:
            raise ConfigError(
                f"knobs.{family} changes options of a task source, and the sources of this menu cannot be made again; "
                "remove the knob"
            )
        if (family, level) not in self._source_by_level:
            options = self.options.knobs[family].options_at(level)
            self._source_by_level[family, level] = menu.remake(family, options)
        return self._source_by_level[family, level]

    def _get_top(self, family: str) -> int:
        return self.options.knobs[family].top if family in self.options.knobs else 0

    def _get_progress(self, family: str) -> FamilyProgress:
        start = self.options.knobs[family].start if family in self.options.knobs else 0.0
        return self.state.progress.setdefault(family, FamilyProgress(start))

    def initial_state(self) -> ScalerState:
        return ScalerState()


def _get_families(menu: TaskMenu) -> list[str]:
    """Return the names of the families with a weight above 0."""
    return [name for name, weight in menu.weights.items() if weight > 0]
