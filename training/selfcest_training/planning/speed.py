"""Tokens and time of a step. An engine's speed is measured, or it is unknown."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import ceil, isfinite
from pathlib import Path

import numpy as np

from selfcest_env.errors import ConfigError
from selfcest_env.structure import Checked, Count, Positive, construct
from selfcest_training.config import RunConfig
from selfcest_training.planning.lengths import Lengths, check_sequences, mean_parallel

Point = tuple[Count, Positive]


@dataclass(frozen=True)
class ThroughputCurve(Checked):
    """Throughput of an engine, as a JSON file says it.

    Attributes:
        engine, model, machine: what it is of, for people.
        measured: how; or, of figures that nobody measured, "assumed" and why.
        points: sequences decoding together, rising, and the tokens per second that they make in all.
        prompt_tokens_per_second: of prefill; `None`: prompts are taken to cost nothing.
        trained_tokens_per_second: of one learner rank, forward and backward; `None`: unknown.
    """

    engine: str
    model: str
    machine: str
    measured: str
    points: tuple[Point, ...]
    prompt_tokens_per_second: Positive | None = None
    trained_tokens_per_second: Positive | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.points:
            raise ConfigError("points is empty; expected [sequences, tokens per second] at least once")
        check_sequences([count for count, _ in self.points])

    def seconds(self, sequences: float) -> float:
        """Of one decoding step of so many: straight between points; outside them the tokens per second of the end."""
        counts = np.array([count for count, _ in self.points], dtype=float)
        steps = counts / [rate for _, rate in self.points]
        if sequences <= counts[0]:
            return float(steps[0])
        if sequences >= counts[-1]:
            return float(steps[-1] * sequences / counts[-1])
        return float(np.interp(sequences, counts, steps))

    def rate(self, sequences: float) -> float:
        """Tokens per second of so many together."""
        return sequences / self.seconds(sequences)


def read_curve(file: Path) -> ThroughputCurve:
    """Raises `ConfigError` for a file that is no curve."""
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--curve {file} cannot be read: {error}; expected JSON with the keys of a curve") from error
    if not isinstance(values, dict):
        raise ConfigError(f"--curve {file} holds {type(values).__name__}; expected an object with the keys of a curve")
    return construct(ThroughputCurve, values, place=f"--curve {file}")


@dataclass(frozen=True)
class StepPlan:
    """Tokens and seconds of one RL step, without replays, refills and faults. Seconds are `None` where unknown.

    Attributes:
        episodes: of the step.
        workers, ranks: that share its rollouts and its update.
        sampled: generated tokens.
        chain: the longest chain of tokens that wait for each other, expected over the step's episodes.
        trained: ids that the learner computes at most: what samples share counts once more for each.
        rollout: at least and at most: work and the longest chain are each a lower bound, their sum is an upper one.
        update: seconds of the learner.
        workers_at_limit: more of them leave the longest chain alone to wait for.
    """

    episodes: int
    workers: int
    ranks: int
    sampled: float
    chain: float
    trained: float
    rollout: tuple[float, float] | None
    update: float | None
    workers_at_limit: int | None

    def seconds(self, lag: int) -> tuple[float, float] | None:
        """Of a step: one after the other, or with a lag side by side."""
        if self.rollout is None or self.update is None:
            return None
        if lag:
            return max(self.rollout[0], self.update), max(self.rollout[1], self.update)
        return self.rollout[0] + self.update, self.rollout[1] + self.update


def step_plan(config: RunConfig, variant: str, lengths: Lengths, curve: ThroughputCurve | None, slots: int) -> StepPlan:
    """One step of a variant.

    Args:
        config: of the run.
        variant: its name.
        lengths: of its episodes.
        curve: of the engine of one worker.
        slots: sequences that an engine decodes together at most.
    """
    rl, cluster = config.variants[variant].rl, config.cluster
    workers, ranks = (1, 1) if cluster is None else (cluster.rollout_workers, cluster.learner_ranks)
    episodes = rl.tasks_per_step * rl.group_size
    sampled, trained, chain = episodes * lengths.generated, episodes * lengths.total, lengths.longest_of(episodes)
    rollout = limit = update = None
    if curve is not None:
        together = max(1.0, min(slots, ceil(episodes / workers) * mean_parallel(lengths)))
        work, wait = sampled / (workers * curve.rate(together)), chain * curve.seconds(1)
        rollout = max(work, wait), work + chain * curve.seconds(together)
        workers_of_work = sampled / curve.rate(min(slots, episodes * mean_parallel(lengths))) / wait
        limit = max(1, ceil(workers_of_work)) if isfinite(workers_of_work) else None
        if curve.trained_tokens_per_second is not None:
            update = trained / (ranks * curve.trained_tokens_per_second)
    return StepPlan(episodes, workers, ranks, sampled, chain, trained, rollout, update, limit)
