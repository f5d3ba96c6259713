"""What samplers remember of tasks that are seldom seen twice: sums per bucket, in which earlier steps count for less.

Papers keep a success rate per prompt. Tasks here are drawn afresh, so it is kept per bucket, the family and size of a
task. A rate of a bucket is a mean over its tasks: what is worked out from it is right for tasks that are alike, and
where easy and hard tasks share a bucket an average stands for both.

All of it is of whole episodes: an episode succeeds if its root's answer does, and costs the tokens of its whole tree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from selfcest_env.record import EpisodeGroup, cost_measures
from selfcest_env.structure import Checked, OneOf, Share
from selfcest_env.types import Task
from selfcest_training.credit import succeeded
from selfcest_training.families import Bucket, draw_family, draw_task
from selfcest_training.stages.base import TaskMenu

Floats = npt.NDArray[np.float64]
TokenCost = Annotated[str, OneOf(*cost_measures())]


@dataclass(frozen=True)
class Tally:
    """Weighted sums over groups and their rollouts.

    Attributes:
        groups, rollouts, successes: counts.
        tokens: of whole trees, by the cost that is asked for.
        variance: of the returns of each group, with n in the denominator.
        gap, mean_gap: of each group the best return less the worst, and less the mean.
    """

    groups: float = 0.0
    rollouts: float = 0.0
    successes: float = 0.0
    tokens: float = 0.0
    variance: float = 0.0
    gap: float = 0.0
    mean_gap: float = 0.0

    @classmethod
    def of(cls, group: EpisodeGroup, term: str, cost: str) -> Tally:
        returns = np.array([episode.team_return for episode in group.episodes])
        return cls(
            groups=1.0,
            rollouts=float(len(returns)),
            successes=float(sum(succeeded(episode, term) for episode in group.episodes)),
            tokens=float(sum(getattr(episode.cost, cost) for episode in group.episodes)),
            variance=float(returns.var()),
            gap=float(returns.max() - returns.min()),
            mean_gap=float(returns.max() - returns.mean()),
        )

    def plus(self, other: Tally, weight: float = 1.0) -> Tally:
        """These sums times `weight`, and the other's."""
        return Tally(**{f.name: weight * getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    @property
    def rate(self) -> float:
        """Of success, of a tally that is not empty."""
        return self.successes / self.rollouts

    @property
    def tokens_each(self) -> float:
        """Tokens of a rollout."""
        return self.tokens / self.rollouts


@dataclass
class Memory:
    """Tallies by bucket, as of a step."""

    step: int = -1
    tallies: dict[Bucket, Tally] = field(default_factory=dict)


@dataclass(frozen=True)
class RemembersBuckets(Checked):
    """Base of the samplers that go by what came of buckets.

    Attributes:
        term: an episode succeeds if this term of the reward is above 0.
        decay: what a step's sums count of the next one's.
        tokens: which cost of an episode is meant by its tokens.
    """

    term: str = "correct"
    decay: Share = 0.9
    tokens: TokenCost = "total_tokens"

    def observe(self, step: int, groups: Sequence[EpisodeGroup]) -> None:
        """Raises `RewardError` if the reward has no such term."""
        memory = self.memory
        if step != memory.step:
            memory.tallies = {bucket: tally.plus(Tally(), self.decay) for bucket, tally in self.seen()}
            memory.step = step
        for group in groups:
            bucket = Bucket.of(group.task)
            memory.tallies[bucket] = memory.tallies.get(bucket, Tally()).plus(Tally.of(group, self.term, self.tokens))

    def seen(self) -> list[tuple[Bucket, Tally]]:
        """Every bucket that was observed, with its sums."""
        return list(self.memory.tallies.items())

    def state_dict(self) -> Mapping[str, Any]:
        found = [[bucket.family, bucket.size, *asdict(tally).values()] for bucket, tally in self.seen()]
        return {"step": self.memory.step, "tallies": found}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.memory.step = state["step"]
        self.memory.tallies = {Bucket(family, size): Tally(*sums) for family, size, *sums in state["tallies"]}

    @cached_property
    def memory(self) -> Memory:
        return Memory()


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
