"""Task families of a config, and the parts that training and evaluation keep apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from selfcest_env.errors import ConfigError
from selfcest_env.plugin import PlugIn
from selfcest_env.stored import stored_as
from selfcest_env.tasks import TaskSource, source_of_config
from selfcest_env.tasks.splits import HashedSplit
from selfcest_env.types import Task

Name = TypeVar("Name", bound=str)
Size = int | float | str | None
TEST_FRACTION = 0.2  # of all instances, by the hash of their content; the same for every family and size


def make_families(tasks: Mapping[str, PlugIn], part: str) -> dict[str, TaskSource]:
    """Task sources by family name, restricted to the training or the test part of their instances."""
    return {name: split(spec, part, where=f"tasks.{name}") for name, spec in tasks.items()}


def split(spec: PlugIn, part: str, changes: Mapping[str, Any] | None = None, *, where: str = "task") -> HashedSplit:
    """The training or the test part of a source, with some of its options changed, which the config has at `where`."""
    source = source_of_config(spec.name, {**spec.options, **(changes or {})}, where)
    return HashedSplit(source, part, TEST_FRACTION)


@stored_as(family="family", size="size")
@dataclass(frozen=True)
class Bucket:
    """Tasks that are taken for alike: of one family and size. `None`: tasks of the family say no size."""

    family: str
    size: Size

    @classmethod
    def of(cls, task: Task) -> Bucket:
        """The family is that of the config where `draw_task` drew the task, else the one that its source names."""
        size = task.metadata.get("size")
        return cls(str(task.metadata.get("family", task.source)), size)

    @property
    def number(self) -> float | None:
        """Its size, where that is a number."""
        return float(self.size) if isinstance(self.size, int | float) else None


def draw_task(family: str, source: TaskSource, rng: np.random.Generator, **facts: int) -> Task:
    """A task whose metadata hold the family by its name in the config, and other facts about how it was drawn.

    Two families of one source are then told apart by who sees no more than the task.
    """
    task = source.draw(rng)
    return replace(task, metadata={**task.metadata, "family": family, **facts})


def draw_family(weights: Mapping[Name, float], rng: np.random.Generator) -> Name:
    """A name, drawn by weight."""
    names = [name for name, weight in weights.items() if weight > 0]
    if not names:
        raise ConfigError(f"no family has a weight above 0: {dict(weights)}")
    shares = np.array([weights[name] for name in names], dtype=float)
    return names[int(rng.choice(len(names), p=shares / shares.sum()))]
