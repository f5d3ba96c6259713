"""Task families of a config, and the parts that training and evaluation keep apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from selfcest_env.errors import ConfigError
from selfcest_env.plugin import PlugIn
from selfcest_env.tasks import TaskSource, source_of_config
from selfcest_env.tasks.splits import HashedSplit

Name = TypeVar("Name", bound=str)
TEST_FRACTION = 0.2  # of all instances, by the hash of their content; the same for every family and size


def make_families(tasks: Mapping[str, PlugIn], part: str) -> dict[str, TaskSource]:
    """Task sources by family name, restricted to the training or the test part of their instances."""
    return {name: split(spec, part, where=f"tasks.{name}") for name, spec in tasks.items()}


def split(spec: PlugIn, part: str, changes: Mapping[str, Any] | None = None, *, where: str = "task") -> HashedSplit:
    """The training or the test part of a source, with some of its options changed, which the config has at `where`."""
    source = source_of_config(spec.name, {**spec.options, **(changes or {})}, where)
    return HashedSplit(source, part, TEST_FRACTION)


def draw_family(weights: Mapping[Name, float], rng: np.random.Generator) -> Name:
    """A name, drawn by weight."""
    names = [name for name, weight in weights.items() if weight > 0]
    if not names:
        raise ConfigError(f"no family has a weight above 0: {dict(weights)}")
    shares = np.array([weights[name] for name in names], dtype=float)
    return names[int(rng.choice(len(names), p=shares / shares.sum()))]
