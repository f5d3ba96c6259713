"""Split a source into train and test parts that share no instance, without storing the instances."""

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

TRAIN = "train"
TEST = "test"


def part_of(task: Task, test_fraction: float, identity: str | None = None) -> str:
    """Return the part of an instance, from its identity, or from its content if the identity is `None`."""
    digits = content_hash(task) if identity is None else _hash_identity(identity)
    return TEST if int(digits, 16) < test_fraction * 2**64 else TRAIN


def _hash_identity(identity: str) -> str:
    # A file source splits by a hash too (`identity_part`). `person` makes this hash independent of that one, so that
    # the part of a part is still random.
    return hashlib.blake2b(identity.encode(), digest_size=8, person=b"hashed_split").hexdigest()


@dataclass(frozen=True)
class HashedSplit(Checked):
    """Source of the instances of another source whose hash falls into one part. Other instances are drawn again.

    A question of a file is always in the same part, whichever documents surround it.

    Attributes:
        source: any task source. In a config it is a mapping with `name` and the options of that source.
        part: "train" or "test".
        test_fraction: share of all instances in the part "test". Two parts are disjoint only if their fractions are
            equal.
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
