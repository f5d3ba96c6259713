"""Makes the task families of a config, and separates their training instances from their test instances."""

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
# Fraction of test instances, by the hash of their content. The same for every family and size.
TEST_FRACTION = 0.2


def make_families(tasks: Mapping[str, PlugIn], part: str) -> dict[str, TaskSource]:
    """Make the task sources by family name, restricted to the training or the test part of their instances."""
    return {name: split(spec, part, where=f"tasks.{name}") for name, spec in tasks.items()}


def split(spec: PlugIn, part: str, changes: Mapping[str, Any] | None = None, *, where: str = "task") -> HashedSplit:
    """Make the training or the test part of a task source.

    Args:
        spec: the source.
        part: `train` or `test`.
        changes: changes of its options.
        where: the config key of the source, for errors.
    """
    source = source_of_config(spec.name, {**spec.options, **(changes or {})}, where)
    return HashedSplit(source, part, TEST_FRACTION)


@stored_as(family="family", size="size")
@dataclass(frozen=True)
class Bucket:
    """A class of similar tasks: those of one family and size. The size is `None` if the tasks have none."""

    family: str
    size: Size

    @classmethod
    def of(cls, task: Task) -> Bucket:
        """Get the bucket of a task. Its family is that of the config if `draw_task` drew it, else its source."""
        family = str(task.metadata.get("family", task.source))
        return cls(family, task.metadata.get("size"))

    @property
    def number(self) -> float | None:
        """The size if it is a number, else `None`."""
        return float(self.size) if isinstance(self.size, int | float) else None


def draw_task(family: str, source: TaskSource, rng: np.random.Generator, **facts: int) -> Task:
    """Draw a task, with the family's name in the config and other facts in its metadata.

    So code that only sees the task can distinguish two families of one source.
    """
    task = source.draw(rng)
    return replace(task, metadata={**task.metadata, "family": family, **facts})


def draw_family(weights: Mapping[Name, float], rng: np.random.Generator) -> Name:
    """Draw a name by weight. The order of the weights has no effect. Raises `ConfigError` if none is above 0."""
    names = sorted(name for name, weight in weights.items() if weight > 0)
    if not names:
        raise ConfigError(f"no family has a weight above 0: {dict(weights)}")
    shares = np.array([weights[name] for name in names], dtype=float)
    return names[int(rng.choice(len(names), p=shares / shares.sum()))]
