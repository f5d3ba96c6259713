"""Base classes of task samplers that remember the outcomes of buckets, with less weight for earlier steps.

Papers keep a success rate per prompt. Tasks are drawn afresh here and are seldom seen twice, so a rate is kept per
bucket, which is the family and size of a task. It is a mean over the tasks of the bucket: where easy and hard tasks
share a bucket, it holds for neither.

All sums are over whole episodes: an episode succeeds if the answer of its root does, and costs the tokens of its tree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt

from selfcest_env.plugin import Stateful
from selfcest_env.record import EpisodeGroup
from selfcest_env.structure import Checked, Count, Positive, Share
from selfcest_env.types import Task
from selfcest_training.credit import succeeded
from selfcest_training.families import Bucket, draw_family, draw_task
from selfcest_training.stages.base import PlannedGroup, TaskMenu

Floats = npt.NDArray[np.float64]
FORGOTTEN = 1e-3  # sums over a smaller weighted number of rollouts are dropped


@dataclass(frozen=True)
class WeightedSums:
    """Base of weighted sums over groups and their rollouts; the fields of a subclass are further sums.

    Attributes:
        rollouts: weighted number of rollouts.
    """

    rollouts: float = 0.0

    def scaled(self, weight: float) -> Self:
        return type(self)(*(weight * value for value in astuple(self)))

    def __add__(self, other: Self) -> Self:
        return type(self)(*(left + right for left, right in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class SuccessSums(WeightedSums):
    """Sums of successes and tokens.

    Attributes:
        successes: weighted number of successful rollouts.
        tokens: weighted sum of the tokens of whole trees, by the cost measure of the sampler.
    """

    successes: float = 0.0
    tokens: float = 0.0

    @classmethod
    def of(cls, group: EpisodeGroup, term: str, cost: str = "total_tokens") -> SuccessSums:
        """Return the sums of a group.

        Args:
            group: scored episodes of a task.
            term: the reward term that is above 0 for a success.
            cost: the cost measure of tokens.

        Raises:
            RewardError: the reward has no such term.
        """
        successes = sum(succeeded(episode, term) for episode in group.episodes)
        tokens = sum(getattr(episode.cost, cost) for episode in group.episodes)
        return cls(float(len(group.episodes)), float(successes), float(tokens))

    @property
    def success_rate(self) -> float:
        """Mean success of a rollout; the sums must not be empty."""
        return self.successes / self.rollouts

    @property
    def tokens_per_rollout(self) -> float:
        """Mean tokens of a rollout; the sums must not be empty."""
        return self.tokens / self.rollouts


T = TypeVar("T", bound=WeightedSums)


@dataclass
class BucketMemory(Generic[T]):
    """Sums by bucket.

    Attributes:
        sums_class: class of the sums.
        step: the last step that was observed; -1 before any.
        sums_by_bucket: weighted as of this step.
    """

    sums_class: type[T]
    step: int = -1
    sums_by_bucket: dict[Bucket, T] = field(default_factory=dict)

    def begin_step(self, step: int, decay: float) -> None:
        """Multiply all sums by `decay` if the step is a new one, and drop those of very few rollouts (`FORGOTTEN`)."""
        if step == self.step:  # a later round of the same step
            return
        decayed = {bucket: sums.scaled(decay) for bucket, sums in self.sums_by_bucket.items()}
        self.sums_by_bucket = {bucket: sums for bucket, sums in decayed.items() if sums.rollouts > FORGOTTEN}
        self.step = step

    def add(self, bucket: Bucket, sums: T) -> None:
        if bucket in self.sums_by_bucket:
            sums = self.sums_by_bucket[bucket] + sums
        self.sums_by_bucket[bucket] = sums

    def state_dict(self) -> Mapping[str, Any]:
        rows = [[bucket.family, bucket.size, *astuple(sums)] for bucket, sums in self.sums_by_bucket.items()]
        return {"step": self.step, "tallies": rows}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.step = state["step"]
        self.sums_by_bucket = {Bucket(family, size): self.sums_class(*sums) for family, size, *sums in state["tallies"]}


@dataclass(frozen=True)
class BucketSamplerOptions(Checked):
    """Options of a `BucketSampler`.

    Attributes:
        decay: weight of a step's sums at the next step.
    """

    decay: Share = 0.9


class BucketSampler(Stateful[Any], Generic[T]):
    """Base of task samplers that choose by the outcomes of buckets."""

    sums_class: ClassVar[type[Any]]  # the class T

    Options: ClassVar[type[Any]] = BucketSamplerOptions
    options: BucketSamplerOptions

    def sum_group(self, group: EpisodeGroup) -> T:
        """Return the sums of a group. Raises `RewardError` if the reward lacks the term of the options."""
        raise NotImplementedError(f"{type(self).__name__} does not override sum_group")

    def initial_state(self) -> Any:
        return BucketMemory(self.sums_class)

    @property
    def memory(self) -> BucketMemory[T]:
        memory: BucketMemory[T] = self.state
        return memory

    def observe(self, step: int, groups: Sequence[EpisodeGroup]) -> None:
        self.memory.begin_step(step, self.options.decay)
        for group in groups:
            self.memory.add(Bucket.of(group.task), self.sum_group(group))


@dataclass(frozen=True)
class WorthSamplerOptions(BucketSamplerOptions):
    """Options in addition to those of `BucketSampler`.

    Attributes:
        floor: number that is added to the worth of every bucket, so that each can be drawn.
        pool: number of candidates per proposed task.
    """

    floor: Positive = 0.05
    pool: Annotated[Count, "1: no choice"] = 4


class WorthSampler(BucketSampler[T]):
    """Base of task samplers that draw tasks in proportion to a worth of their buckets."""

    Options: ClassVar[type[Any]] = WorthSamplerOptions
    options: WorthSamplerOptions

    def compute_worth(self, sums: T) -> float:
        """Return the worth of a bucket with these sums, at least 0."""
        raise NotImplementedError(f"{type(self).__name__} does not override compute_worth")

    def get_weight_function(self) -> Callable[[Bucket], float]:
        """Return the function from a bucket to its weight in the draw. Later observations do not change it."""
        worth_by_bucket = {bucket: self.compute_worth(sums) for bucket, sums in self.memory.sums_by_bucket.items()}
        # A bucket that was never seen counts as the best one, so that it is tried.
        unseen_worth = max(worth_by_bucket.values(), default=0.0)
        return lambda bucket: self.options.floor + worth_by_bucket.get(bucket, unseen_worth)

    def propose(self, step: int, num_tasks: int, menu: TaskMenu, rng: np.random.Generator) -> Sequence[PlannedGroup]:
        tasks = draw_by_weight(menu, num_tasks, self.options.pool, self.get_weight_function(), rng)
        return [PlannedGroup(task, menu.group_size) for task in tasks]


def draw_from_menu(menu: TaskMenu, rng: np.random.Generator) -> Task:
    """Draw a family by its configured weight, and a task of it whose metadata names the family."""
    family = draw_family(menu.weights, rng)
    return draw_task(family, menu.sources[family], rng)


def draw_by_weight(
    menu: TaskMenu, count: int, pool: int, weight: Callable[[Bucket], float], rng: np.random.Generator
) -> list[Task]:
    """Draw `count` of `count * pool` tasks without replacement, in proportion to the weights of their buckets.

    Tasks with weight 0 are taken only if the others are too few. Families come into the pool by their configured
    weights, so these weights still count.
    """
    tasks = [draw_from_menu(menu, rng) for _ in range(count * pool)]
    weights = np.array([weight(Bucket.of(task)) for task in tasks], dtype=float)
    # The largest of log weight + Gumbel noise are a weighted draw without replacement.
    with np.errstate(divide="ignore"):
        keys = np.log(weights) + rng.gumbel(size=len(tasks))
    chosen = np.argsort(-keys, kind="stable")[:count]
    return [tasks[i] for i in sorted(chosen)]
