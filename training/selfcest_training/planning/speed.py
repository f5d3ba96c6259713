"""Computes tokens and time of an RL step. Times are unknown unless the engine's throughput was measured."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from math import ceil, isfinite
from pathlib import Path

import numpy as np

from selfcest_env.errors import ConfigError
from selfcest_env.structure import Checked, Count, Positive, construct
from selfcest_training.config import RunConfig
from selfcest_training.planning.lengths import EpisodeLengths

Point = tuple[Count, Positive]


@dataclass(frozen=True)
class ThroughputCurve(Checked):
    """Throughput of an engine, as read from a JSON file.

    Attributes:
        engine, model, machine: names for the reader of the plan.
        measured: how the numbers were measured, or "assumed" and the reason.
        points: pairs of sequences that decode together, in ascending order, and their tokens per second in total.
        trained_tokens_per_second: throughput of one learner rank, forward and backward; `None` is unknown.
    """

    engine: str
    model: str
    machine: str
    measured: str
    points: tuple[Point, ...]
    trained_tokens_per_second: Positive | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.points:
            raise ConfigError("points is empty; expected [sequences, tokens per second] at least once")
        counts = [count for count, _ in self.points]
        if counts != sorted(set(counts)):
            raise ConfigError(f"points have the sequences {counts}; expected ascending numbers without repetition")

    def step_seconds(self, sequences: float) -> float:
        """Seconds of one decoding step of this many sequences.

        The time is linear between points. Below the first point it is that point's; above the last one the tokens per
        second stay constant.
        """
        counts = np.array([count for count, _ in self.points], dtype=float)
        seconds = counts / [rate for _, rate in self.points]
        if sequences <= counts[0]:
            return float(seconds[0])
        if sequences >= counts[-1]:
            return float(seconds[-1] * sequences / counts[-1])
        return float(np.interp(sequences, counts, seconds))

    def tokens_per_second(self, sequences: float) -> float:
        """Tokens per second of this many sequences together."""
        return sequences / self.step_seconds(sequences)


def read_curve(file: Path) -> ThroughputCurve:
    """Read a curve. Raises `ConfigError` for a file that holds none."""
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--curve {file} cannot be read: {error}; expected JSON with the keys of a curve") from error
    if not isinstance(values, dict):
        raise ConfigError(f"--curve {file} holds {type(values).__name__}; expected an object with the keys of a curve")
    return construct(ThroughputCurve, values, place=f"--curve {file}")


@dataclass(frozen=True)
class StepPlan:
    """Tokens and seconds of one RL step, without replays, refills and faults. Unknown seconds are `None`.

    Attributes:
        episodes: number of episodes.
        workers: rollout workers that share the episodes.
        ranks: learner ranks that share the update.
        sampled: generated tokens.
        critical_path: expected longest chain of tokens that wait for each other, over all episodes.
        trained: upper bound of the ids that the learner computes; a prefix that samples share counts for each.
        rollout: lower and upper bound of the rollouts' seconds.
        update: seconds of the update.
        workers_at_limit: number of workers from which on the critical path bounds the rollouts.
    """

    episodes: int
    workers: int
    ranks: int
    sampled: float
    critical_path: float
    trained: float
    rollout: tuple[float, float] | None
    update: float | None
    workers_at_limit: int | None

    def seconds(self, max_staleness: int) -> tuple[float, float] | None:
        """Lower and upper bound of the step's seconds. With staleness, rollouts and update overlap."""
        if self.rollout is None or self.update is None:
            return None
        low, high = self.rollout
        if max_staleness:
            return max(low, self.update), max(high, self.update)
        return low + self.update, high + self.update


def plan_step(
    config: RunConfig, variant: str, lengths: EpisodeLengths, curve: ThroughputCurve | None, max_batch_size: int
) -> StepPlan:
    """Plan one RL step of a variant.

    Args:
        config: the run's config.
        variant: name of the variant.
        lengths: token counts of its episodes.
        curve: throughput of the engine of one worker, if it is known.
        max_batch_size: the largest number of sequences that an engine decodes together.
    """
    rl = config.variants[variant].rl
    workers = 1 if config.cluster is None else config.cluster.rollout_workers
    ranks = 1 if config.cluster is None else config.cluster.learner_ranks
    episodes = rl.tasks_per_step * rl.group_size
    step = StepPlan(
        episodes=episodes,
        workers=workers,
        ranks=ranks,
        sampled=episodes * lengths.generated,
        critical_path=lengths.expected_longest_path(episodes),
        trained=episodes * lengths.total,
        rollout=None,
        update=None,
        workers_at_limit=None,
    )
    if curve is None:
        return step
    parallel = lengths.mean_parallel_sequences
    batch_size = max(1.0, min(max_batch_size, ceil(episodes / workers) * parallel))
    work_seconds = step.sampled / (workers * curve.tokens_per_second(batch_size))
    # The critical path takes least time if it decodes alone, and most if all its steps share a full batch.
    path_seconds = step.critical_path * curve.step_seconds(1)
    crowded_path_seconds = step.critical_path * curve.step_seconds(batch_size)
    # Work and critical path are each a lower bound; their sum is an upper one.
    rollout = max(work_seconds, path_seconds), work_seconds + crowded_path_seconds
    one_worker_seconds = step.sampled / curve.tokens_per_second(min(max_batch_size, episodes * parallel))
    busy_workers = one_worker_seconds / path_seconds
    update = None
    if curve.trained_tokens_per_second is not None:
        update = step.trained / (ranks * curve.trained_tokens_per_second)
    return replace(
        step,
        rollout=rollout,
        update=update,
        workers_at_limit=max(1, ceil(busy_workers)) if isfinite(busy_workers) else None,
    )
