"""Formats a plan: memory, speed and totals, with the origin of every number and the unknown quantities."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from selfcest_training.config import RunConfig
from selfcest_training.planning.lengths import EpisodeLengths
from selfcest_training.planning.memory import GIB, ProcessMemory, sync_bytes
from selfcest_training.planning.shapes import ModelShape
from selfcest_training.planning.speed import StepPlan, ThroughputCurve
from selfcest_training.planning.totals import JobTotals

# Fraction of a device above which a process may fail: contexts, workspaces and fragments are not counted.
TIGHT_FRACTION = 0.9


@dataclass(frozen=True)
class DeviceMemory:
    """The memory of one device in bytes, and the origin of the number."""

    size: int
    source: str


def format_plan(
    config: RunConfig,
    shape: ModelShape,
    processes: Mapping[str, Sequence[ProcessMemory]],
    steps: Mapping[str, tuple[EpisodeLengths, StepPlan]],
    totals: Mapping[str, JobTotals],
    curve: ThroughputCurve | None,
    device: DeviceMemory | None,
) -> Iterator[str]:
    """Yield the lines of a plan.

    Args:
        config: the run's config.
        shape: the shape of its model.
        processes: memory of the processes by variant.
        steps: episode lengths and one RL step by variant.
        totals: totals of one job by variant.
        curve: throughput of the engine, if it is known.
        device: memory of one device, if it is known.
    """
    yield f"{shape.name}: {shape.parameters:,} parameters, from {shape.source}"
    yield "device: " + ("unknown (--memory GIB)" if device is None else f"{device.size / GIB:.1f} GiB, {device.source}")
    variant = max(processes, key=lambda name: max(process.size for process in processes[name]))
    comparison = f", the largest of {len(processes)} variants" if len(processes) > 1 else ""
    yield f"\nMemory, GiB (variant {variant}{comparison})"
    for process in processes[variant]:
        yield from _format_process(process, device)
    yield "  not counted: the device's context, workspaces of kernels, communication buffers, fragmentation"
    yield f"\nSpeed\n  weights sent after a step: {_describe_sync(config, shape)}"
    yield f"  engine: {_describe_curve(curve)}"
    for name, (lengths, step) in steps.items():
        yield from _format_step(name, config.variants[name].rl.max_staleness, lengths, step, curve)
    yield from _format_totals(config, totals)


def _format_process(process: ProcessMemory, device: DeviceMemory | None) -> Iterator[str]:
    count = f", {process.count} of them" if process.count > 1 else ""
    yield f"  {process.name}{count}"
    for part in process.parts:
        yield f"    {part.size / GIB:9.3f}  {part.name}: {part.note}"
    yield f"    {process.size / GIB:9.3f}  total{_judge_fit(process, device)}"
    if process.loading:
        yield f"    {process.loading / GIB:9.3f}  of host memory while it loads the model, before it shards the weights"
    for item in process.unknown:
        yield f"      unknown  {item}"


def _judge_fit(process: ProcessMemory, device: DeviceMemory | None) -> str:
    if not process.share:
        return "; its resources name no GPU, so it is not compared with a device"
    if device is None:
        return ""
    available = device.size * process.share
    excess = process.excess_bytes(device.size)
    if excess:
        verdict = f"{excess / GIB:.1f} too much"
    elif process.size <= TIGHT_FRACTION * available:
        verdict = "fits"
    else:
        verdict = "tight, it may not fit with the memory that is not counted"
    return f" of {available / GIB:.1f}: {verdict}"


def _describe_sync(config: RunConfig, shape: ModelShape) -> str:
    size = sync_bytes(config, shape)
    return f"{size:,} bytes to each sampler" if size else "none, the sampler uses the learner's own weights"


def _describe_curve(curve: ThroughputCurve | None) -> str:
    if curve is None:
        return "its speed is unknown (--curve FILE), so times are unknown too"
    return f"{curve.engine}, {curve.model}, {curve.machine}; {curve.measured}"


def _format_step(
    variant: str, max_staleness: int, lengths: EpisodeLengths, step: StepPlan, curve: ThroughputCurve | None
) -> Iterator[str]:
    yield f"  variant {variant}, a step of {step.episodes} episodes; lengths: {lengths.source}"
    yield f"    generated tokens {_number(step.sampled)}, learner computes at most {_number(step.trained)} ids"
    yield (
        f"    critical path of {_number(step.critical_path)} tokens: at most "
        f"{_number(step.sampled / step.critical_path)} sequences decode together on average, with any number of workers"
    )
    # Upper bounds from a config have one path, so their mean is not that of episodes.
    if len(lengths.critical_paths) > 1:
        yield f"    sequences that decode together in a mean episode {lengths.mean_parallel_sequences:.1f}"
    if curve is None or step.rollout is None:
        return
    low, high = step.rollout
    throughput = f"{_number(step.sampled / high)} to {_number(step.sampled / low)} tokens per second"
    yield f"    rollouts on {step.workers} workers {low:.1f} to {high:.1f} s, without prefill: {throughput}"
    if step.workers_at_limit is not None:
        yield f"    with {step.workers_at_limit} workers or more, the critical path bounds the rollouts"
    step_seconds = step.seconds(max_staleness)
    if step.update is None or step_seconds is None:
        yield "    update and step: unknown, the curve has no trained_tokens_per_second"
        return
    yield (
        f"    update on {step.ranks} ranks {step.update:.1f} s; "
        f"a step {step_seconds[0]:.1f} to {step_seconds[1]:.1f} s at max_staleness {max_staleness}"
    )


def _format_totals(config: RunConfig, totals: Mapping[str, JobTotals]) -> Iterator[str]:
    seeds = len(config.seeds)
    jobs = totals.values()
    yield f"\nWhole run: {len(totals)} variant(s) x {seeds} seed(s), with episodes of the lengths above"
    for variant, job in totals.items():
        rl = "no RL"
        if job.steps:
            rl = f"{job.steps:,} steps of RL (until {job.ended_by}) that generate {_number(job.sampled)} tokens"
        yield f"  a job of variant {variant}: warm start on up to about {job.demonstrations:,} tokens, {rl}"
        yield f"    compute (sampled + 3 x trained) up to about {_number(job.compute)} tokens"
        yield f"    evaluation generates {_number(job.evaluated)} tokens"
    sampled = seeds * sum(job.sampled for job in jobs)
    compute = seeds * sum(job.compute for job in jobs)
    evaluated = seeds * sum(job.evaluated for job in jobs)
    yield f"  total: RL generates {_number(sampled)} tokens, the evaluation {_number(evaluated)}"
    yield f"    compute up to about {_number(compute)} tokens"
    yield "  not counted: replays, probes, refills, retries of the warm start"
    known_seconds = [job.seconds for job in jobs if job.seconds is not None]
    if len(known_seconds) < len(totals):
        yield "  time: unknown without a curve (--curve FILE) that has trained_tokens_per_second"
        return
    low = seeds * sum(seconds[0] for seconds in known_seconds) / 3600
    high = seeds * sum(seconds[1] for seconds in known_seconds) / 3600
    yield f"  time: {_format_hours(low)} to {_format_hours(high)} h, one job after another, without the evaluation"


def _format_hours(value: float) -> str:
    return f"{value:,.2f}" if isfinite(value) else "without a bound"


def _number(value: float) -> str:
    return f"{value:,.0f}" if isfinite(value) else "without a bound"
