"""`learned_allocation` draws tasks by a policy that was learned in simulation, against an adversary over problems.

Source: Learning to Actively Learn: A Robust Approach (arXiv 2010.15382), from its abstract; the text of its algorithm
could not be read. It is not the paper of `active` (arXiv 2601.22595). A problem is the success rate of every bucket, a
query is a group of rollouts, and the budget is a few dozen queries. A policy over buckets sees the outcomes so far and
the budget left:

    P(bucket b) ~ exp(weights . features(b));   value(p) = 1 - p^G - (1 - p)^G, the chance that G outcomes differ
    loss = mean over the queries of 1 - value(queried bucket) / value(best bucket)
    complexity of a problem = sum_b gap_b max(1, 1 / (G KL_b)), with gap_b = 1 - value(b) / value(best bucket)
    classes are ranges of the complexity;   best_k = loss of the policy that was learned on class k only
    min over weights, max over classes k of loss_k - best_k,   by policy gradient against multiplicative weights

KL_b is the divergence from the rate of b to the nearest rate with the value of the best bucket. A bucket takes one
query, or the 1 / (G KL_b) of the bound of Lai and Robbins (1985), to be told apart from the best one.

Open in the source as far as it was read, and chosen here: the bound, the classes, the form of the policy, the
optimisers, and that problems of one class weigh alike. The source asks for an answer after the last query. Here every
query trains the model, so that each one counts.

Expected effect: fewer groups have equal returns, also where few buckets have mixed outcomes and these are rare.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import numpy as np

from selfcest_env.errors import ConfigError
from selfcest_env.plugin import Stateful
from selfcest_env.record import EpisodeGroup
from selfcest_env.structure import Checked, Count, NotNegative, Seed
from selfcest_methods.buckets import BucketMemory, Floats, SuccessSums, draw_from_menu
from selfcest_training.credit.base import ReadsTerm
from selfcest_training.families import Bucket
from selfcest_training.stages.base import PlannedGroup, TaskMenu

NUM_FAMILIES = 2  # families of a simulated problem
NUM_SIZES = 6  # sizes of each family
CLASS_SHARES = (0.5, 0.45, 0.05)  # shares of the drawn problems in each class, from the least complexity
PROBLEMS_PER_CLASS = 32
NEIGHBOUR_WEIGHT = 0.5  # weight of the outcomes of the next size, squared for the size after it
NUM_FEATURES = 10
ITERATIONS = 120  # of the policy gradient
REPEATS = 4  # episodes of each problem per iteration
LEARNING_RATE = 0.3  # of Adam, annealed to 0 on a straight line

_NOTHING_SEEN = SuccessSums()


def compute_value(rates: Floats, group_size: int) -> Floats:
    """Return the chances that a group has both outcomes, in the shape of the success rates."""
    chances: Floats = 1 - rates**group_size - (1 - rates) ** group_size
    return chances


def draw_problems(count: int, rng: np.random.Generator) -> Floats:
    """Draw success rates of shape (count, buckets); those of a family fall with the size, on a logistic curve."""
    thresholds = rng.uniform(-2, NUM_SIZES + 1, (count, NUM_FAMILIES, 1))  # some families are all right or all wrong
    widths = rng.uniform(0.2, 1, (count, NUM_FAMILIES, 1))
    rates: Floats = 1 / (1 + np.exp((np.arange(NUM_SIZES) - thresholds) / widths))
    return rates.reshape(count, -1).clip(0.002, 0.998)


def compute_complexity(rates: Floats, group_size: int) -> Floats:
    """Return the complexity of each problem, in wasted groups; `rates` has the shape (problems, buckets)."""
    values = compute_value(rates, group_size)
    best = np.take_along_axis(rates, values.argmax(1)[:, None], 1)
    gaps = 1 - values / values.max(1, keepdims=True)
    # A rate and its mirror image have the same value.
    divergences = np.minimum(_compute_divergence(rates, best), _compute_divergence(rates, 1 - best))
    queries = np.maximum(1, 1 / np.maximum(group_size * divergences, 1e-9))
    wasted: Floats = (gaps * queries).sum(1)
    return wasted


def _compute_divergence(rates: Floats, other_rates: Floats) -> Floats:
    """Return the Kullback-Leibler divergences of one outcome, in nats."""
    rights = rates * np.log(rates / other_rates)
    wrongs = (1 - rates) * np.log((1 - rates) / (1 - other_rates))
    return np.asarray(rights + wrongs)


def draw_classes(group_size: int, rng: np.random.Generator, problems_per_class: int = PROBLEMS_PER_CLASS) -> Floats:
    """Draw problems of each class. The result has the shape (classes, problems, buckets)."""
    # The hardest class is the rarest, so many problems are drawn to fill it.
    rates = draw_problems(2 * round(problems_per_class / min(CLASS_SHARES)), rng)
    by_complexity = rates[np.argsort(compute_complexity(rates, group_size), kind="stable")]
    ends = np.round(np.cumsum(CLASS_SHARES) * len(rates)).astype(int)
    classes = np.split(by_complexity, ends[:-1])
    return np.stack([rng.choice(problems, problems_per_class, replace=False) for problems in classes])


def compute_features(rollouts: Floats, successes: Floats, neighbours: Floats, left: float, group_size: int) -> Floats:
    """Return the features of buckets.

    Args:
        rollouts, successes: numbers so far, of shape (..., buckets).
        neighbours: weights of the outcomes of one bucket for another one, of shape (buckets, buckets).
        left: share of the budget that is left.
        group_size: number of rollouts per group.

    Returns:
        An array of shape (..., buckets, `NUM_FEATURES`).
    """
    near_rollouts = rollouts + rollouts @ neighbours
    near_successes = successes + successes @ neighbours
    # The mean of the posterior under a prior of one rollout. A bucket without outcomes has a rate of a half.
    rates = (successes + 0.5) / (rollouts + 1)
    near_rates = (near_successes + 0.5) / (near_rollouts + 1)
    features = [
        compute_value(rates, group_size),
        1 / np.sqrt(1 + rollouts / group_size),
        compute_value(near_rates, group_size),
        1 / np.sqrt(1 + near_rollouts / group_size),
        4 * near_rates * (1 - near_rates),
    ]
    return np.stack([*features, *(left * feature for feature in features)], axis=-1)


def compute_neighbours(buckets: Sequence[Bucket]) -> Floats:
    """Return the weights of outcomes between buckets of one family, by the difference of the ranks of their sizes."""
    ranks = np.full(len(buckets), np.nan)  # a bucket whose size is no number has no neighbours
    for family in {bucket.family for bucket in buckets}:
        sizes = sorted({b.number for b in buckets if b.family == family and b.number is not None})
        for position, bucket in enumerate(buckets):
            if bucket.family == family and bucket.number is not None:
                ranks[position] = sizes.index(bucket.number)
    distances = np.abs(np.subtract.outer(ranks, ranks))
    families = np.array([bucket.family for bucket in buckets])
    is_neighbour = (families[:, None] == families) & (distances > 0)
    return np.where(is_neighbour, NEIGHBOUR_WEIGHT**distances, 0.0)


_SIMULATED_BUCKETS = [Bucket(str(family), size) for family in range(NUM_FAMILIES) for size in range(NUM_SIZES)]


@dataclass(frozen=True)
class Simulation:
    """Episodes in which a policy spends its budget on simulated problems.

    Attributes:
        group_size: number of rollouts per query.
        tasks: number of queries between two observations.
        rounds: number of observations.
    """

    group_size: int
    tasks: int
    rounds: int

    def play(self, weights: Floats, rates: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Play an episode of each problem.

        Args:
            weights: weights of the features.
            rates: success rates, of shape (problems, buckets).
            rng: generator of queries and outcomes.

        Returns:
            The losses of each round, of shape (problems, rounds), which add up to the loss of an episode. The gradients
            of the log-probabilities of the queries, of shape (problems, rounds, `NUM_FEATURES`).
        """
        values = compute_value(rates, self.group_size)
        gaps = 1 - values / values.max(1, keepdims=True)
        neighbours = compute_neighbours(_SIMULATED_BUCKETS)
        rollouts = np.zeros(rates.shape)
        successes = np.zeros(rates.shape)
        losses = []
        scores = []
        for index in range(self.rounds):
            left = 1 - index / self.rounds
            features = compute_features(rollouts, successes, neighbours, left, self.group_size)
            probabilities = compute_probabilities(features @ weights)
            queries = rng.multinomial(self.tasks, probabilities)
            losses.append((queries * gaps).sum(1) / (self.tasks * self.rounds))
            scores.append(np.einsum("pb,pbf->pf", queries - self.tasks * probabilities, features))
            rollouts = rollouts + queries * self.group_size
            successes = successes + rng.binomial(queries * self.group_size, rates)
        return np.stack(losses, 1), np.stack(scores, 1)

    def compute_losses(self, weights: Floats, classes: Floats, repeats: int, rng: np.random.Generator) -> Floats:
        """Return the mean loss of each class over `repeats` episodes of each of its problems."""
        rates = np.repeat(classes.reshape(-1, classes.shape[-1]), repeats, axis=0)
        losses, _ = self.play(weights, rates, rng)
        return np.asarray(losses.sum(1).reshape(len(classes), -1).mean(1))


def compute_probabilities(logits: Floats) -> Floats:
    """Return the softmax over the last axis."""
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(-1, keepdims=True))


def learn_weights(
    simulation: Simulation,
    classes: Floats,
    shares: Sequence[float],
    best_losses: Floats,
    adversary: float,
    rng: np.random.Generator,
) -> Floats:
    """Learn the weights of a policy against an adversary that weighs classes.

    Args:
        simulation: the episodes.
        classes: problems of each class, of shape (classes, problems, buckets).
        shares: weights of the classes at the start.
        best_losses: the loss in each class of the policy to compete with.
        adversary: rate of the multiplicative weights; with 0 the shares stay, and the mean over problems is minimised.
        rng: generator of the episodes.
    """
    num_classes, num_problems, num_buckets = classes.shape
    rates = np.repeat(classes.reshape(-1, num_buckets), REPEATS, axis=0)
    shape = (num_classes, num_problems, REPEATS, simulation.rounds)
    class_logits = np.log(shares)
    weights = np.zeros(NUM_FEATURES)
    mean_weights = np.zeros(NUM_FEATURES)
    first_moment = np.zeros(NUM_FEATURES)
    second_moment = np.zeros(NUM_FEATURES)
    for iteration in range(ITERATIONS):
        losses, scores = simulation.play(weights, rates, rng)
        class_weights = compute_probabilities(class_logits)
        # The loss from each round on, less its mean over the other episodes of the same problem.
        later_losses = losses[:, ::-1].cumsum(1)[:, ::-1].reshape(shape)
        centred = (later_losses - later_losses.mean(2, keepdims=True)) * REPEATS / (REPEATS - 1)
        gradient = np.einsum("k,kprt,kprtf->f", class_weights, centred, scores.reshape(*shape, -1))
        gradient /= num_problems * REPEATS
        first_moment = 0.9 * first_moment + 0.1 * gradient
        second_moment = 0.99 * second_moment + 0.01 * gradient**2
        direction = first_moment / (1 - 0.9 ** (iteration + 1))
        direction /= np.sqrt(second_moment / (1 - 0.99 ** (iteration + 1))) + 1e-8
        weights = weights - LEARNING_RATE * (1 - iteration / ITERATIONS) * direction
        class_logits = class_logits + adversary * (losses.sum(1).reshape(num_classes, -1).mean(1) - best_losses)
        # Both players of a minimax game can circle around its solution. Their means do not.
        if iteration >= ITERATIONS // 2:
            mean_weights += weights / (ITERATIONS - ITERATIONS // 2)
    return mean_weights


@lru_cache
def learn_policy(simulation: Simulation, adversary: float, seed: int) -> tuple[float, ...]:
    """Return the weights of a policy that competes in every class with the policy that was learned on this class only.

    The same arguments give the same weights. It takes a few CPU-seconds, once per process.
    """
    rng = np.random.default_rng(seed)
    classes = draw_classes(simulation.group_size, rng)
    best_losses = learn_best_losses(simulation, classes, rng)
    weights = learn_weights(simulation, classes, CLASS_SHARES, best_losses, adversary, rng)
    return tuple(weights.tolist())


def learn_best_losses(simulation: Simulation, classes: Floats, rng: np.random.Generator) -> Floats:
    """Return the loss in each class of the policy that is learned on this class only."""
    best_losses = []
    for index in range(len(classes)):
        only = classes[index : index + 1]
        weights = learn_weights(simulation, only, [1.0], np.zeros(1), 0.0, rng)
        best_losses.append(simulation.compute_losses(weights, only, 32, rng)[0])
    return np.array(best_losses)


@dataclass(frozen=True)
class LearnedAllocationOptions(ReadsTerm, Checked):
    """Options of `LearnedAllocation`.

    Attributes:
        term: reward term that is above 0 for a right episode.
        budget: number of groups after which all outcomes are forgotten, since the policy has changed.
        tasks: number of groups between two observations in the simulation; set it to the tasks of a step.
        pool: number of candidates per proposed task.
        adversary: rate of the adversary; 0 for a policy that is learned on the mean over all problems.
        seed: seed of the simulation.
    """

    term: str = "correct"
    budget: Count = 24
    tasks: Count = 4
    pool: Annotated[Count, "1: no choice"] = 8
    adversary: NotNegative = 5.0
    seed: Seed = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.budget % self.tasks:
            raise ConfigError(f"budget is {self.budget}; expected a multiple of tasks, which is {self.tasks}")


class LearnedAllocation(Stateful[BucketMemory[SuccessSums]]):
    """A task sampler whose allocation was learned against an adversary over classes of problems."""

    Options = LearnedAllocationOptions
    options: LearnedAllocationOptions

    def initial_state(self) -> BucketMemory[SuccessSums]:
        return BucketMemory(SuccessSums)

    def observe(self, step: int, groups: Sequence[EpisodeGroup]) -> None:
        for group in groups:
            self.state.add(Bucket.of(group.task), SuccessSums.of(group, self.options.term))

    def propose(self, step: int, num_tasks: int, menu: TaskMenu, rng: np.random.Generator) -> Sequence[PlannedGroup]:
        tasks = [draw_from_menu(menu, rng) for _ in range(num_tasks * self.options.pool)]
        task_buckets = [Bucket.of(task) for task in tasks]
        probabilities = self.get_probabilities(task_buckets, menu.group_size)
        # The pool has several tasks of a bucket, which share its probability.
        logits = [np.log(probabilities[bucket] / task_buckets.count(bucket)) for bucket in task_buckets]
        # The largest of logit + Gumbel noise are a weighted draw without replacement.
        keys = np.array(logits) + rng.gumbel(size=len(tasks))
        chosen = np.argsort(-keys, kind="stable")[:num_tasks]
        return [PlannedGroup(tasks[i], menu.group_size) for i in sorted(chosen)]

    def get_probabilities(self, candidates: Sequence[Bucket], group_size: int) -> dict[Bucket, float]:
        """Return the probabilities of the buckets of the candidates. Starts a new budget if the last one is spent."""
        left = 1 - self._count_groups(group_size) / self.options.budget
        if left <= 0:
            self.state.sums_by_bucket = {}
            left = 1.0
        buckets = list(dict.fromkeys([*self.state.sums_by_bucket, *candidates]))
        sums = [self.state.sums_by_bucket.get(bucket, _NOTHING_SEEN) for bucket in buckets]
        rollouts = np.array([bucket_sums.rollouts for bucket_sums in sums])
        successes = np.array([bucket_sums.successes for bucket_sums in sums])
        features = compute_features(rollouts, successes, compute_neighbours(buckets), left, group_size)
        simulation = Simulation(group_size, self.options.tasks, self.options.budget // self.options.tasks)
        logits = features @ np.array(learn_policy(simulation, self.options.adversary, self.options.seed))
        is_candidate = np.array([bucket in set(candidates) for bucket in buckets])
        probabilities = compute_probabilities(np.where(is_candidate, logits, -np.inf))
        return {bucket: float(p) for bucket, p in zip(buckets, probabilities, strict=True) if bucket in candidates}

    def _count_groups(self, group_size: int) -> float:
        return sum(sums.rollouts for sums in self.state.sums_by_bucket.values()) / group_size
