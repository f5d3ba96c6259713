"""What samplers remember of tasks that are seldom seen twice: sums per bucket, in which earlier steps count for less.

Papers keep a success rate per prompt. Tasks here are drawn afresh, so it is kept per bucket, the family and size of a
task. A rate of a bucket is a mean over its tasks: what is worked out from it is right for tasks that are alike, and
where easy and hard tasks share a bucket an average stands for both.

All of it is of whole episodes: an episode succeeds if its root's answer does, and costs the tokens of its whole tree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt

from selfcest_env.plugin import Stateful
from selfcest_env.record import EpisodeGroup
from selfcest_env.structure import Checked, Share
from selfcest_env.types import Task
from selfcest_methods.state_zero import FORGOTTEN
from selfcest_training.credit import succeeded
from selfcest_training.families import Bucket, draw_family, draw_task
from selfcest_training.stages.base import TaskMenu

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Sums:
    """Weighted sums over groups and their rollouts.

    Attributes:
        rollouts: their number.
    """

    rollouts: float = 0.0

    def times(self, weight: float) -> Self:
        return type(self)(*(weight * value for value in astuple(self)))

    def __add__(self, other: Self) -> Self:
        return type(self)(*(one + another for one, another in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class Tally(Sums):
    """Attributes:
    successes: their number.
    tokens: of whole trees, by the cost that is asked for.
    """

    successes: float = 0.0
    tokens: float = 0.0

    @classmethod
    def of(cls, group: EpisodeGroup, term: str, cost: str = "total_tokens") -> Tally:
        right = sum(succeeded(episode, term) for episode in group.episodes)
        tokens = sum(getattr(episode.cost, cost) for episode in group.episodes)
        return cls(float(len(group.episodes)), float(right), float(tokens))

    @property
    def rate(self) -> float:
        """Of success, of a tally that is not empty."""
        return self.successes / self.rollouts

    @property
    def tokens_each(self) -> float:
        """Tokens of a rollout."""
        return self.tokens / self.rollouts


T = TypeVar("T", bound=Sums)


@dataclass
class Tallies(Generic[T]):
    """Sums by bucket, as of a step.

    Attributes:
        kept: the class of the sums.
    """

    kept: type[T]
    step: int = -1
    by_bucket: dict[Bucket, T] = field(default_factory=dict)

    def begin(self, step: int, decay: float) -> None:
        """Let sums of earlier steps count for less, if this is another one; forget what next to nothing is left of."""
        if step != self.step:
            faded = {bucket: tally.times(decay) for bucket, tally in self.by_bucket.items()}
            self.by_bucket = {bucket: tally for bucket, tally in faded.items() if tally.rollouts > FORGOTTEN}
            self.step = step

    def add(self, bucket: Bucket, tally: T) -> None:
        self.by_bucket[bucket] = self.by_bucket[bucket] + tally if bucket in self.by_bucket else tally

    def state_dict(self) -> Mapping[str, Any]:
        rows = [[bucket.family, bucket.size, *astuple(tally)] for bucket, tally in self.by_bucket.items()]
        return {"step": self.step, "tallies": rows}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.step = state["step"]
        self.by_bucket = {Bucket(family, size): self.kept(*sums) for family, size, *sums in state["tallies"]}


@dataclass(frozen=True)
class RemembersBucketsOptions(Checked):
    """Base of the samplers that go by what came of buckets.

    Attributes:
        decay: what a step's sums count of the next one's. A bucket of which next to nothing is left is forgotten.
    """

    decay: Share = 0.9


class RemembersBuckets(Stateful[Any], Generic[T]):
    """Base of the samplers that go by what came of buckets."""

    kept: ClassVar[type[Any]]  # the sums, T

    Options: ClassVar[type[Any]] = RemembersBucketsOptions
    options: RemembersBucketsOptions

    def tally(self, group: EpisodeGroup) -> T:
        """What is kept of a group. Raises `RewardError` if the reward has no such term."""
        raise NotImplementedError

    def initial_state(self) -> Any:
        return Tallies(self.kept)

    @property
    def tallies(self) -> Tallies[T]:
        """What is remembered of buckets."""
        tallies: Tallies[T] = self.state
        return tallies

    def observe(self, step: int, groups: Sequence[EpisodeGroup]) -> None:
        self.tallies.begin(step, self.options.decay)
        for group in groups:
            self.tallies.add(Bucket.of(group.task), self.tally(group))

    def seen(self) -> list[tuple[Bucket, T]]:
        """Every bucket that is remembered, with its sums."""
        return list(self.tallies.by_bucket.items())


def draw(menu: TaskMenu, rng: np.random.Generator) -> Task:
    """A task of a family drawn by its configured weight, which knows its family."""
    family = draw_family(menu.weights, rng)
    return draw_task(family, menu.sources[family], rng)


def pick(
    menu: TaskMenu, count: int, pool: int, weigh: Callable[[Bucket], float], rng: np.random.Generator
) -> list[Task]:
    """So many of `pool` times as many tasks, none twice, drawn by a weight of their buckets; one of 0 comes last.

    Families come into the pool by their configured weights, so these still count.
    """
    tasks = [draw(menu, rng) for _ in range(count * pool)]
    weights = np.array([weigh(Bucket.of(task)) for task in tasks], dtype=float)
    with np.errstate(divide="ignore"):
        keys = np.log(weights) + rng.gumbel(size=len(tasks))  # the largest are a draw without replacement
    return [tasks[i] for i in sorted(np.argsort(-keys, kind="stable")[:count])]
