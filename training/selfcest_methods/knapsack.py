"""`knapsack` distributes rollouts by their expected value and price, after Knapsack RL (arXiv 2509.25849). If it
works, more groups have both outcomes for the tokens of a uniform allocation.

    value of N rollouts of a task with success rate p = (1 - p^N - (1-p)^N) * p (1-p)^2
    maximise the sum of values, with the sum of N * (tokens of a rollout) at most group_size * (tokens of all tasks)

docs/methods.md has what the paper leaves open and what was chosen here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt

from selfcest_env.errors import ConfigError
from selfcest_env.record import EpisodeGroup, cost_measures
from selfcest_env.structure import Between, Count, OneOf, check_order
from selfcest_env.types import Task
from selfcest_methods.buckets import Floats, RemembersBuckets, RemembersBucketsOptions, Tally, draw
from selfcest_training.families import Bucket
from selfcest_training.stages.base import PlannedGroup, TaskMenu

Ints = npt.NDArray[np.int64]
TokenCost = Annotated[str, OneOf(*cost_measures())]
_ENOUGH = 0.9  # probability of both outcomes that is enough, as released


@dataclass(frozen=True)
class KnapsackOptions(RemembersBucketsOptions):
    """Attributes, besides those of `RemembersBuckets`:

    term: an episode succeeds if this term of the reward is above 0.
    tokens: which cost of an episode is meant by its tokens.
    min_rollouts, max_rollouts: of a task.
    edge: rates no further from 0 or 1 count as these.
    resolution: units that the budget is cut into.
    """

    term: str = "correct"
    tokens: TokenCost = "total_tokens"
    min_rollouts: Count = 2
    max_rollouts: Count = 64
    edge: Annotated[float, Between(0, 0.5)] = 0.02
    resolution: Count = 4096

    def __post_init__(self) -> None:
        super().__post_init__()
        check_order(self, "min_rollouts", "max_rollouts")


class Knapsack(RemembersBuckets[Tally]):
    """Rollouts where they are expected to teach most."""

    kept: ClassVar = Tally

    Options: ClassVar[type[Any]] = KnapsackOptions
    options: KnapsackOptions

    def tally(self, group: EpisodeGroup) -> Tally:
        return Tally.of(group, self.options.term, self.options.tokens)

    def check_menu(self, menu: TaskMenu) -> None:
        fewest, most = self.options.min_rollouts, self.options.max_rollouts
        if not fewest <= menu.group_size <= most:
            raise ConfigError(
                f"min_rollouts is {fewest} and max_rollouts {most}, and rl.group_size is "
                f"{menu.group_size}; expected it between them: the budget is that of group_size rollouts of each task"
            )

    def propose(self, step: int, num_tasks: int, menu: TaskMenu, rng: np.random.Generator) -> list[PlannedGroup]:
        tasks = [draw(menu, rng) for _ in range(num_tasks)]
        rates, tokens = self.rates(tasks, menu), self.costs(tasks)
        return [PlannedGroup(*pair) for pair in zip(tasks, self.sizes(rates, tokens, menu.group_size), strict=True)]

    def rates(self, tasks: Sequence[Task], menu: TaskMenu) -> Floats:
        """[N] expected success rates; not a number where nothing is known."""
        tallies = self.tallies.by_bucket
        buckets = [Bucket.of(task) for task in tasks]
        return np.array([tallies[bucket].rate if bucket in tallies else np.nan for bucket in buckets])

    def costs(self, tasks: Sequence[Task]) -> Floats:
        """[N] expected tokens of a rollout of each; those of the mean bucket where nothing is known, or else 1."""
        each = {bucket: max(1.0, tally.tokens_each) for bucket, tally in self.seen()}
        usual = float(np.mean(list(each.values()))) if each else 1.0
        return np.array([each.get(Bucket.of(task), usual) for task in tasks])

    def sizes(self, rates: Floats, tokens: Floats, group_size: int) -> list[int]:
        """[N] rollouts of each task, of these rates and tokens a rollout."""
        sizes = np.full(len(rates), group_size)
        zero, one = rates <= self.options.edge, rates >= 1 - self.options.edge
        live = ~np.isnan(rates) & ~zero & ~one
        if not (live | zero).any():
            return sizes.tolist()
        sizes[zero | one] = self.options.min_rollouts
        left = group_size * tokens.sum() - (sizes * tokens)[~live].sum()
        if live.any():
            counts = np.arange(self.options.min_rollouts, self.options.max_rollouts + 1)
            need = np.log(1 - _ENOUGH) / np.log(np.maximum(rates[live], 1 - rates[live]))
            needed = np.clip(np.ceil(need), counts[0], counts[-1]) @ tokens[live]
            budget = min(left, needed) if zero.any() else left
            sizes[live] = counts[
                best_choice(value(rates[live], counts), counts, tokens[live], budget, self.options.resolution)
            ]
            left -= (sizes * tokens)[live].sum()
        given = True
        while given:  # what is left, one rollout each in turn
            given = False
            for i in np.flatnonzero(zero):
                if sizes[i] < self.options.max_rollouts and tokens[i] <= left:
                    sizes[i], left, given = sizes[i] + 1, left - tokens[i], True
        return sizes.tolist()


def value(rates: Floats, counts: Ints) -> Floats:
    """[N, C] value of every number of rollouts, of tasks of these rates."""
    p, n = rates[:, None], counts[None, :]
    return np.asarray((1 - p**n - (1 - p) ** n) * p * (1 - p) ** 2)


def best_choice(values: Floats, counts: Ints, tokens: Floats, budget: float, resolution: int) -> Ints:
    """[N] for every task the position of one of its `counts`: the choice of the largest sum of [N, C] values.

    Multiple-choice knapsack by dynamic programming over the budget; of equal sums the one of fewer rollouts. Where
    rounding leaves no room for the fewest of each, these.
    """
    unit = max(1, int(np.ceil(budget / resolution)))
    size = int(budget / unit + 1e-9)
    units = np.ceil(tokens[:, None] * counts / unit - 1e-9).astype(int)  # [N, C]
    if units[:, 0].sum() > size:
        return np.zeros(len(values), dtype=np.int64)
    best, choices = np.zeros(size + 1), []
    for costs, gains in zip(units, values, strict=True):
        found, choice = np.full(size + 1, -np.inf), np.zeros(size + 1, dtype=np.int64)
        for position, (cost, gain) in enumerate(zip(costs, gains, strict=True)):
            if cost > size:
                break
            total = best[: size + 1 - cost] + gain
            better = total > found[cost:]
            found[cost:][better], choice[cost:][better] = total[better], position
        best = found
        choices.append(choice)
    chosen, left = np.zeros(len(values), dtype=np.int64), size
    for i in reversed(range(len(values))):
        chosen[i] = choices[i][left]
        left -= units[i, chosen[i]]
    return chosen
