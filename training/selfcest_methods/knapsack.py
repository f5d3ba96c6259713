"""`knapsack` gives each task as many rollouts as maximise their expected value under a budget of tokens.

Source: Knapsack RL (arXiv 2509.25849), and its released code. In the paper rates are of prompts and the budget is in
rollouts. Here rates are of buckets, and the budget is the tokens of a uniform allocation. Details: docs/methods.md.

    value of N rollouts of a task with success rate p = (1 - p^N - (1-p)^N) * p (1-p)^2
    maximise the sum of values, with the sum of N * (tokens of a rollout) at most group_size * (tokens of all tasks)

Expected effect: more groups have both outcomes than with a uniform allocation of the same tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt

from selfcest_env.errors import ConfigError
from selfcest_env.record import EpisodeGroup, cost_measures
from selfcest_env.structure import AtLeast, Between, Count, OneOf, check_order
from selfcest_env.types import Task
from selfcest_methods.buckets import BucketSampler, BucketSamplerOptions, Floats, SuccessSums, draw_from_menu
from selfcest_training.credit.base import ReadsTerm
from selfcest_training.families import Bucket
from selfcest_training.stages.base import PlannedGroup, TaskMenu

Ints = npt.NDArray[np.int64]
TokenCost = Annotated[str, OneOf(*cost_measures())]
_SUFFICIENT_PROBABILITY = 0.9  # of both outcomes in a group, as in the released code


@dataclass(frozen=True)
class KnapsackOptions(ReadsTerm, BucketSamplerOptions):
    """Options in addition to those of `BucketSampler`.

    Attributes:
        term: reward term that is above 0 for a right episode.
        tokens: cost measure that is the price of an episode.
        min_rollouts: smallest number of rollouts of a task.
        max_rollouts: largest number of rollouts of a task.
        edge: distance from 0 or 1 up to which a success rate counts as 0 or 1.
        resolution: number of units that the budget is divided into.
    """

    term: str = "correct"
    tokens: TokenCost = "total_tokens"
    min_rollouts: Annotated[int, AtLeast(2), "episodes of a task are compared with one another"] = 2
    max_rollouts: Count = 64
    edge: Annotated[float, Between(0, 0.5)] = 0.02
    resolution: Count = 4096

    def __post_init__(self) -> None:
        super().__post_init__()
        check_order(self, "min_rollouts", "max_rollouts")


class Knapsack(BucketSampler[SuccessSums]):
    """A task sampler that distributes the rollouts of a step by their expected value."""

    sums_class: ClassVar = SuccessSums

    Options: ClassVar[type[Any]] = KnapsackOptions
    options: KnapsackOptions

    def sum_group(self, group: EpisodeGroup) -> SuccessSums:
        return SuccessSums.of(group, self.options.term, self.options.tokens)

    def check_menu(self, menu: TaskMenu) -> None:
        if not self.options.min_rollouts <= menu.group_size <= self.options.max_rollouts:
            raise ConfigError(
                f"rl.group_size is {menu.group_size}; expected a number from min_rollouts = "
                f"{self.options.min_rollouts} to max_rollouts = {self.options.max_rollouts}, because the budget is "
                "that of group_size rollouts of each task"
            )

    def propose(self, step: int, num_tasks: int, menu: TaskMenu, rng: np.random.Generator) -> list[PlannedGroup]:
        tasks = [draw_from_menu(menu, rng) for _ in range(num_tasks)]
        sizes = self.allocate(self.predict_rates(tasks, menu), self.predict_tokens(tasks), menu.group_size)
        return [PlannedGroup(task, size) for task, size in zip(tasks, sizes, strict=True)]

    def predict_rates(self, tasks: Sequence[Task], menu: TaskMenu) -> Floats:
        """Return the expected success rates, [N]; `nan` where nothing is known."""
        sums_by_bucket = self.memory.sums_by_bucket
        buckets = [Bucket.of(task) for task in tasks]
        return np.array([sums_by_bucket[b].success_rate if b in sums_by_bucket else np.nan for b in buckets])

    def predict_tokens(self, tasks: Sequence[Task]) -> Floats:
        """Return the expected tokens of a rollout of each task, [N].

        An unknown bucket counts as the mean of the known ones, or as 1 token if none is known.
        """
        tokens_by_bucket = {b: max(1.0, sums.tokens_per_rollout) for b, sums in self.memory.sums_by_bucket.items()}
        default = float(np.mean(list(tokens_by_bucket.values()))) if tokens_by_bucket else 1.0
        return np.array([tokens_by_bucket.get(Bucket.of(task), default) for task in tasks])

    def allocate(self, rates: Floats, tokens: Floats, group_size: int) -> list[int]:
        """Return the number of rollouts of each task, [N].

        Args:
            rates: expected success rates, [N]; `nan` where nothing is known.
            tokens: expected tokens of a rollout, [N].
            group_size: rollouts of each task in the uniform allocation, whose tokens are the budget.
        """
        sizes = np.full(len(rates), group_size)
        is_hopeless = rates <= self.options.edge
        is_solved = rates >= 1 - self.options.edge
        is_open = ~np.isnan(rates) & ~is_hopeless & ~is_solved
        if not (is_open | is_hopeless).any():
            return sizes.tolist()
        # Tasks of unknown rate keep group_size rollouts.
        sizes[is_hopeless | is_solved] = self.options.min_rollouts
        tokens_left = group_size * tokens.sum() - (sizes * tokens)[~is_open].sum()
        if is_open.any():
            counts = np.arange(self.options.min_rollouts, self.options.max_rollouts + 1)
            # n rollouts have both outcomes with a probability of about 1 - max(p, 1 - p)^n. Rollouts beyond the n for
            # which this is sufficient are worth little.
            likelier = np.maximum(rates[is_open], 1 - rates[is_open])
            sufficient_counts = np.ceil(np.log(1 - _SUFFICIENT_PROBABILITY) / np.log(likelier))
            needed_tokens = np.clip(sufficient_counts, counts[0], counts[-1]) @ tokens[is_open]
            # Hopeless tasks get the tokens that the open ones do not need, as in the released code.
            budget = min(tokens_left, needed_tokens) if is_hopeless.any() else tokens_left
            values = compute_values(rates[is_open], counts)
            sizes[is_open] = counts[solve_knapsack(values, counts, tokens[is_open], budget, self.options.resolution)]
            tokens_left -= (sizes * tokens)[is_open].sum()
        # The rest goes to the hopeless tasks, one rollout each in turn.
        has_changed = True
        while has_changed:
            has_changed = False
            for i in np.flatnonzero(is_hopeless):
                if sizes[i] < self.options.max_rollouts and tokens[i] <= tokens_left:
                    sizes[i] += 1
                    tokens_left -= tokens[i]
                    has_changed = True
        return sizes.tolist()


def compute_values(rates: Floats, counts: Ints) -> Floats:
    """Return the value of every number of rollouts of tasks with these success rates, [N, C]."""
    p = rates[:, None]
    n = counts[None, :]
    # Without both outcomes a group baseline gives no gradient.
    both_outcomes = 1 - p**n - (1 - p) ** n
    # p (1 - p)^2 is the expected gain of the success rate, to first order. It is largest at p = 1/3.
    return np.asarray(both_outcomes * p * (1 - p) ** 2)


def solve_knapsack(values: Floats, counts: Ints, tokens: Floats, budget: float, resolution: int) -> Ints:
    """Return the position in `counts` of each task's number of rollouts, [N], for the largest sum of values.

    This is the multiple-choice knapsack by dynamic programming over the budget. Of equal sums the one with fewer
    rollouts wins. Where rounding leaves no room for the fewest rollouts of each task, these are returned.

    Args:
        values: value of every number of rollouts of each task, [N, C].
        counts: numbers of rollouts in ascending order, [C].
        tokens: tokens of a rollout of each task, [N].
        budget: largest sum of the tokens of all rollouts.
        resolution: number of units that the budget is divided into.
    """
    unit = max(1, int(np.ceil(budget / resolution)))
    # 1e-9 keeps a quotient that is whole but for rounding from becoming another unit.
    size = int(budget / unit + 1e-9)
    units = np.ceil(tokens[:, None] * counts / unit - 1e-9).astype(int)  # [N, C]
    if units[:, 0].sum() > size:
        return np.zeros(len(values), dtype=np.int64)
    best = np.zeros(size + 1)  # largest sum of values of the tasks so far, by the number of units that they may use
    choices = []
    for costs, gains in zip(units, values, strict=True):
        best_with_task = np.full(size + 1, -np.inf)
        choice = np.zeros(size + 1, dtype=np.int64)
        for position, (cost, gain) in enumerate(zip(costs, gains, strict=True)):
            if cost > size:
                break
            total = best[: size + 1 - cost] + gain
            better = total > best_with_task[cost:]
            best_with_task[cost:][better] = total[better]
            choice[cost:][better] = position
        best = best_with_task
        choices.append(choice)
    # From the last task back, each choice says how many units the earlier tasks had.
    chosen = np.zeros(len(values), dtype=np.int64)
    units_left = size
    for i in reversed(range(len(values))):
        chosen[i] = choices[i][units_left]
        units_left -= units[i, chosen[i]]
    return chosen
