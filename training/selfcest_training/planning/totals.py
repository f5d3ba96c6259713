"""Tokens and time of whole jobs: the warm start, every step of RL, and the evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, isfinite, nan

from selfcest_training.config import RunConfig
from selfcest_training.planning.lengths import Lengths
from selfcest_training.planning.speed import StepPlan, ThroughputCurve


@dataclass(frozen=True)
class JobTotals:
    """One variant with one seed, without replays, refills, probes, faults and further attempts at the warm start.

    Attributes:
        demonstrations: tokens of the warm start, prompts included, each trained on once.
        steps: of RL, until the first of its bounds ends it.
        ended_by: config key of that bound.
        sampled: generated tokens of RL.
        trained: ids that the learner computes in RL, at most.
        evaluated: generated tokens of the evaluation, before and after RL.
        seconds: of warm start and RL, at least and at most; `None`: unknown.
    """

    demonstrations: int
    steps: int
    ended_by: str
    sampled: float
    trained: float
    evaluated: float
    seconds: tuple[float, float] | None

    @property
    def compute(self) -> float:
        """Sampled + 3 x trained tokens, as `compute_tokens` counts them."""
        return self.sampled + 3 * (self.demonstrations + self.trained)


def job_totals(
    config: RunConfig, variant: str, lengths: Lengths, step: StepPlan | None, curve: ThroughputCurve | None
) -> JobTotals:
    """Totals of one job of a variant.

    Args:
        config: of the run.
        variant: its name.
        lengths: of its episodes.
        step: one step of its RL; `None`: it has none.
        curve: of the engine of one worker.
    """
    spec = config.variants[variant]
    shown = sum(phase.tokens for phase in spec.warmstart.phases)
    steps, ended_by = (0, "rl.steps") if step is None else _steps(config, variant, shown, step)
    ranks = 1 if config.cluster is None else config.cluster.learner_ranks
    episodes = _evaluated_episodes(config, variant)
    seconds = None
    if curve is not None and curve.trained_tokens_per_second is not None:
        warm = shown / (ranks * curve.trained_tokens_per_second)
        of_step = (0.0, 0.0) if step is None else step.seconds(spec.rl.max_staleness)
        if of_step is not None:
            seconds = warm + steps * of_step[0], warm + steps * of_step[1]
    return JobTotals(
        demonstrations=shown,
        steps=steps,
        ended_by=ended_by,
        sampled=steps * step.sampled if step is not None and steps else 0.0,
        trained=steps * step.trained if step is not None and steps else 0.0,
        evaluated=episodes * lengths.generated if episodes else 0.0,
        seconds=seconds,
    )


def _steps(config: RunConfig, variant: str, shown: int, step: StepPlan) -> tuple[int, str]:
    """Steps of RL, which ends with the first one at or above a bound, and the key of that bound."""
    rl = config.variants[variant].rl
    bounds: list[tuple[float, float, str]] = []
    if rl.sampled_tokens is not None:
        bounds.append((rl.sampled_tokens, step.sampled, "rl.sampled_tokens"))
    if config.compute_tokens is not None:
        left = max(0, config.compute_tokens - 3 * shown)
        bounds.append((left, step.sampled + 3 * step.trained, "compute_tokens"))
    ends = [(rl.steps, "rl.steps")]
    for tokens, of_step, key in bounds:
        share = tokens / of_step if isfinite(of_step) else nan
        if isfinite(share):
            ends.append((ceil(share), key))
    return min(ends, key=lambda end: end[0])


def _evaluated_episodes(config: RunConfig, variant: str) -> int:
    """Episodes of one job's evaluation: before RL at the first temperature, after it at all, forced choices too."""
    spec, evaluation = config.variants[variant], config.evaluation
    ways = 3 if spec.forced else 1
    plays = ways * (2 if spec.rl.steps else 1) + len(evaluation.temperatures) - 1
    eval_sets = [
        eval_set for eval_set in evaluation.eval_sets if not spec.evaluated_on or eval_set.family in spec.evaluated_on
    ]
    return plays * len(eval_sets) * evaluation.episodes
