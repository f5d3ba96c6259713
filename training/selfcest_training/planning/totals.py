"""Computes tokens and time of whole jobs: the warm start, all steps of RL, and the evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, isfinite

from selfcest_training.config import RunConfig
from selfcest_training.planning.lengths import EpisodeLengths
from selfcest_training.planning.speed import StepPlan, ThroughputCurve


@dataclass(frozen=True)
class JobTotals:
    """Totals of one variant with one seed, without replays, refills, probes, faults and retries of the warm start.

    Attributes:
        demonstrations: most tokens of the warm start with prompts, each trained on once, but for the last draw's end.
        steps: steps of RL until it reaches the first of its bounds.
        ended_by: config key of that bound.
        sampled: generated tokens of RL.
        trained: upper bound of the ids that the learner computes in RL.
        evaluated: generated tokens of the evaluation, before and after RL.
        seconds: lower and upper bound for warm start and RL; `None` if unknown.
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


def plan_job(
    config: RunConfig, variant: str, lengths: EpisodeLengths, step: StepPlan | None, curve: ThroughputCurve | None
) -> JobTotals:
    """Compute the totals of one job of a variant.

    Args:
        config: the run's config.
        variant: name of the variant.
        lengths: token counts of its episodes.
        step: one step of its RL; `None` if it has no RL.
        curve: throughput of the engine of one worker, if it is known.
    """
    variant_config = config.variants[variant]
    warmstart = variant_config.warmstart
    planned = sum(phase.tokens for phase in warmstart.phases)
    demonstrations = planned + warmstart.pool_tokens if warmstart.phases else 0  # the last pool is not cut
    steps, ended_by = (0, "rl.steps") if step is None else _find_last_step(config, variant, planned, step)
    ranks = 1 if config.cluster is None else config.cluster.learner_ranks
    episodes = _count_evaluated_episodes(config, variant)
    seconds = None
    if curve is not None and curve.trained_tokens_per_second is not None:
        per_second = ranks * curve.trained_tokens_per_second
        step_seconds = (0.0, 0.0) if step is None else step.seconds(variant_config.rl.max_staleness)
        if step_seconds is not None:
            low, high = step_seconds
            seconds = planned / per_second + steps * low, demonstrations / per_second + steps * high
    # Without steps or episodes, the products below would be nan for lengths without a bound.
    return JobTotals(
        demonstrations=demonstrations,
        steps=steps,
        ended_by=ended_by,
        sampled=steps * step.sampled if step is not None and steps else 0.0,
        trained=steps * step.trained if step is not None and steps else 0.0,
        evaluated=episodes * lengths.generated if episodes else 0.0,
        seconds=seconds,
    )


def _find_last_step(config: RunConfig, variant: str, demonstrations: int, step: StepPlan) -> tuple[int, str]:
    """Find the number of RL steps until the first bound is reached, and the config key of that bound."""
    rl = config.variants[variant].rl
    last_steps = [(rl.steps, "rl.steps")]
    if rl.sampled_tokens is not None and isfinite(step.sampled):
        last_steps.append((ceil(rl.sampled_tokens / step.sampled), "rl.sampled_tokens"))
    compute_per_step = step.sampled + 3 * step.trained
    if config.compute_tokens is not None and isfinite(compute_per_step):
        compute_left = max(0, config.compute_tokens - 3 * demonstrations)
        last_steps.append((ceil(compute_left / compute_per_step), "compute_tokens"))
    return min(last_steps, key=lambda last_step: last_step[0])


def _count_evaluated_episodes(config: RunConfig, variant: str) -> int:
    """Count the episodes of one job's evaluation.

    It plays at the first temperature before and after RL, with forced choices too, and at all others after RL.
    """
    variant_config = config.variants[variant]
    evaluation = config.evaluation
    # The policy's own choice, forced delegation and forced answers.
    modes = 3 if variant_config.forced else 1
    times = 2 if variant_config.rl.steps else 1
    plays = modes * times + len(evaluation.temperatures) - 1
    families = variant_config.evaluated_on
    eval_sets = [eval_set for eval_set in evaluation.eval_sets if not families or eval_set.family in families]
    return plays * len(eval_sets) * evaluation.episodes
