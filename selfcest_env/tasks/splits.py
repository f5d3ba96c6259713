"""Train and test parts of a source that share no instance, without storing either."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np

from selfcest_env.errors import TaskError
from selfcest_env.structure import Checked, OneOf, Share
from selfcest_env.tasks.source import (
    GIVE_UP,
    MAX_TRIES,
    ExpertSource,
    Proposal,
    Style,
    TaskSource,
    content_hash,
    identity_of,
)
from selfcest_env.types import Task
from selfcest_env.views import Observation

TRAIN, TEST = "train", "test"


def part_of(task: Task, test_fraction: float, identity: str | None = None) -> str:
    """The part an instance belongs to: a function of its content alone, or of its identity where that is known."""
    known = content_hash(task) if identity is None else _hash(identity)
    return TEST if int(known, 16) < test_fraction * 2**64 else TRAIN


def _hash(identity: str) -> str:
    """Another one than that of a file's own `part`, so that a part of a part is no less random."""
    return hashlib.blake2b(identity.encode(), digest_size=8, person=b"hashed_split").hexdigest()


@dataclass(frozen=True)
class HashedSplit(Checked):
    """The instances of `source` that hash into one part; others are drawn again.

    A question of a file is on one side whatever documents surround it.

    Attributes:
        source: any source; in a config, a mapping with `name` and its options.
        part: "train" or "test".
        test_fraction: share of all instances that are test. Parts are disjoint only for equal fractions.
    """

    name: ClassVar[str] = "hashed_split"
    source: TaskSource
    part: Annotated[str, OneOf(TRAIN, TEST)]
    test_fraction: Share = 0.1

    def draw(self, rng: np.random.Generator) -> Task:
        for _ in range(MAX_TRIES):
            task = self.source.draw(rng)
            if part_of(task, self.test_fraction, self.identity(task)) == self.part:
                return task
        raise TaskError(
            f"no {self.part} instance in {MAX_TRIES} draws with test_fraction = {self.test_fraction}: the source has "
            "too few distinct tasks, or the fraction leaves this part empty"
        )

    def identity(self, task: Task) -> str | None:
        return identity_of(self.source, task)

    def understands(self, observation: Observation) -> bool:
        return self._expert is not None and self._expert.understands(observation)

    def propose(self, observation: Observation, rng: np.random.Generator, style: Style) -> Proposal:
        return GIVE_UP if self._expert is None else self._expert.propose(observation, rng, style)

    @cached_property
    def _expert(self) -> ExpertSource | None:
        return self.source if isinstance(self.source, ExpertSource) else None
