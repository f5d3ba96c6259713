"""`scaler` moves the difficulty of each family with the policy's accuracy, after SCALER (arXiv 2601.04809). If it
works, accuracy in training stays near the target while the difficulty rises.

    d <- clip(d + clip(gain * (accuracy - target), -max_move, max_move), 0, top)      after every round, per family
    accuracy = (1 - f) acc(floor d) + f acc(ceil d), f = d - floor d; a task is of level ceil d with probability f
    a family leaves the active set after `stuck` rounds in a row without a right rollout, after `saturated` rounds in a
    row at its top, or when its d has not risen over the last `window` rounds (slope of a line through them <= 0)

docs/methods.md has what the paper leaves open and what was chosen here.
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
from selfcest_training.families import draw_family, draw_task
from selfcest_training.stages.base import PlannedGroup, TaskMenu


@dataclass(frozen=True)
class Knob(Checked):
    """What makes a family harder.

    Attributes:
        options: of its source, all set to the level's value.
        low, high: values of the lowest and of the highest level.
        step: between levels.
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

    def at(self, level: int) -> dict[str, int]:
        """The options of a level."""
        return dict.fromkeys(self.options, self.low + level * self.step)


@dataclass
class Track:
    """How a family stands.

    Attributes:
        level: d.
        levels, accuracies: of the rounds since it became active, the last `window` of them.
    """

    level: float = 0.0
    levels: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)


@dataclass
class Standings:
    """Active families, and how all stand."""

    active: list[str] = field(default_factory=list)
    tracks: dict[str, Track] = field(default_factory=dict)

    def state_dict(self) -> Mapping[str, Any]:
        tracks = {name: [track.level, track.levels, track.accuracies] for name, track in self.tracks.items()}
        return {"active": self.active, "tracks": tracks}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.active = list(state["active"])
        self.tracks = {name: Track(*track) for name, track in state["tracks"].items()}


@dataclass(frozen=True)
class ScalerOptions(Checked):
    """Attributes:

    knobs: by family.
    active: families that are drawn from at a time; `None`: all.
    target: accuracy to hold.
    gain, max_move: levels per unit of accuracy, and per round at most.
    stuck, saturated, window: rounds, see above.
    term: an episode is right if this term of the reward is above 0.
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


class Scaler(Stateful[Standings]):
    """Families whose level follows their accuracy."""

    Options = ScalerOptions
    options: ScalerOptions

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._sources: dict[tuple[str, int], TaskSource] = {}  # made once for each family and level

    def check_menu(self, menu: TaskMenu) -> None:
        """That every knob is of a family that is drawn from, and that its source takes the lowest and highest level."""
        names = _families(menu)
        for name, knob in self.options.knobs.items():
            if name not in names:
                raise ConfigError(
                    f"knobs has the family '{name}', which rl.tasks does not draw from ({', '.join(names)})."
                    + did_you_mean(name, names)
                )
            for level in (0, knob.top):
                self._source(name, level, menu)

    def propose(self, step: int, num_tasks: int, menu: TaskMenu, rng: np.random.Generator) -> list[PlannedGroup]:
        self._curate(_families(menu), rng)
        weights = {name: menu.weights[name] for name in self.state.active}
        plans = []
        for _ in range(num_tasks):
            family = draw_family(weights, rng)
            level = self._draw_level(family, rng)
            plans.append(
                PlannedGroup(draw_task(family, self._source(family, level, menu), rng, level=level), menu.group_size)
            )
        return plans

    def observe(self, step: int, groups: Sequence[EpisodeGroup]) -> None:
        found: dict[str, dict[int, list[bool]]] = {}
        for group in groups:
            family, level = str(group.task.metadata["family"]), int(group.task.metadata.get("level", 0))
            right = found.setdefault(family, {}).setdefault(level, [])
            right += [succeeded(episode, self.options.term) for episode in group.episodes]
        for family, by_level in found.items():
            self._move(family, {level: sum(right) / len(right) for level, right in by_level.items()})

    def _move(self, family: str, accuracies: Mapping[int, float]) -> None:
        track = self._track(family)
        share = {level: max(0.0, 1 - abs(track.level - level)) for level in accuracies}
        total = sum(share.values())
        if not total:  # levels that the family has left say nothing of where it is
            return
        accuracy = sum(share[level] * accuracies[level] for level in share) / total
        track.levels = [*track.levels, track.level][-self.options.window :]
        track.accuracies = [*track.accuracies, accuracy][-self.options.window :]
        move = min(
            self.options.max_move, max(-self.options.max_move, self.options.gain * (accuracy - self.options.target))
        )
        track.level = min(float(self._top(family)), max(0.0, track.level + move))

    def _curate(self, names: Sequence[str], rng: np.random.Generator) -> None:
        """Fill the active set, and let those rest that teach no more, one each for one that rests."""
        state = self.state
        count = len(names) if self.options.active is None else min(self.options.active, len(names))
        state.active = [name for name in state.active if name in names]
        state.active += [name for name in names if name not in state.active][: count - len(state.active)]
        for place, family in enumerate(state.active):
            resting = [name for name in names if name not in state.active]
            if resting and self._teaches_no_more(family):
                track = self._track(family)
                track.levels, track.accuracies = [], []
                state.active[place] = resting[int(rng.integers(len(resting)))]

    def _teaches_no_more(self, family: str) -> bool:
        track, top = self._track(family), self._top(family)
        wrong = track.accuracies[-self.options.stuck :]
        if len(wrong) == self.options.stuck and not any(wrong):
            return True
        if not top:
            return False
        high = track.levels[-self.options.saturated :]
        if len(high) == self.options.saturated and all(level == top for level in high):
            return True
        return (
            len(track.levels) == self.options.window and np.polyfit(range(self.options.window), track.levels, 1)[0] <= 0
        )

    def _draw_level(self, family: str, rng: np.random.Generator) -> int:
        low = math.floor(level := self._track(family).level)
        return low + int(rng.random() < level - low)

    def _source(self, family: str, level: int, menu: TaskMenu) -> TaskSource:
        if family not in self.options.knobs:
            return menu.sources[family]
        if menu.remake is None:
            raise ConfigError(f"knobs.{family} changes options of a source, and these families are as they are")
        known = self._sources
        if (family, level) not in known:
            known[family, level] = menu.remake(family, self.options.knobs[family].at(level))
        return known[family, level]

    def _top(self, family: str) -> int:
        return self.options.knobs[family].top if family in self.options.knobs else 0

    def _track(self, family: str) -> Track:
        start = self.options.knobs[family].start if family in self.options.knobs else 0.0
        return self.state.tracks.setdefault(family, Track(start))

    def initial_state(self) -> Standings:
        return Standings()


def _families(menu: TaskMenu) -> list[str]:
    return [name for name, weight in menu.weights.items() if weight > 0]
