"""A plan in words: what is known, where from, and what is not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite

from selfcest_training.config import RunConfig
from selfcest_training.planning.lengths import Lengths, mean_parallel
from selfcest_training.planning.memory import GIB, ProcessMemory, pushed_bytes
from selfcest_training.planning.shapes import ModelShape
from selfcest_training.planning.speed import StepPlan, ThroughputCurve
from selfcest_training.planning.totals import JobTotals

TIGHT = 0.9  # of a device: what is not counted (context, workspaces, fragments) needs some of the rest


def plan_lines(
    config: RunConfig,
    shape: ModelShape,
    found: Mapping[str, Sequence[ProcessMemory]],
    steps: Mapping[str, tuple[Lengths, StepPlan]],
    totals: Mapping[str, JobTotals],
    curve: ThroughputCurve | None,
    device: tuple[int, str] | None,
) -> Iterator[str]:
    """The plan, line by line.

    Args:
        config: of the run.
        shape: of its model.
        found: places by variant.
        steps: lengths and one step by variant.
        totals: of one job by variant.
        curve: of the engine, if there is one.
        device: its bytes and who says so, if anybody does.
    """
    yield f"{shape.name}: {shape.parameters:,} parameters, from {shape.source}"
    yield f"device: {'unknown (--memory GIB)' if device is None else f'{device[0] / GIB:.1f} GiB, {device[1]}'}"
    needed = {variant: max(place.size for place in of_variant) for variant, of_variant in found.items()}
    variant = max(needed, key=lambda name: needed[name])
    others = f", the most of {len(found)} variants" if len(found) > 1 else ""
    yield f"\nMemory, GiB (variant {variant}{others})"
    for place in found[variant]:
        yield from _place_lines(place, device)
    yield "  not counted: the device's context, workspaces of kernels, buffers of communication, fragments"
    yield f"\nSpeed\n  pushed after a step: {_pushed(config, shape)}"
    yield f"  engine: {_curve(curve)}"
    for name, (lengths, step) in steps.items():
        yield from _step_lines(name, config.variants[name].rl.max_staleness, lengths, step, curve)
    yield from _total_lines(config, totals)


def _place_lines(place: ProcessMemory, device: tuple[int, str] | None) -> Iterator[str]:
    times = f", {place.count} of them" if place.count > 1 else ""
    yield f"  {place.name}{times}"
    for part in place.parts:
        yield f"    {part.size / GIB:9.3f}  {part.name}: {part.how}"
    yield f"    {place.size / GIB:9.3f}  in all{_verdict(place, device)}"
    if place.loading:
        yield f"    {place.loading / GIB:9.3f}  of the machine's memory while it loads, whole, before it is sharded"
    for what in place.unknown:
        yield f"      unknown  {what}"


def _verdict(place: ProcessMemory, device: tuple[int, str] | None) -> str:
    if not place.share:
        return "; its resources name no GPU, so it is held against no device"
    if device is None:
        return ""
    room = device[0] * place.share
    said = f" of {room / GIB:.1f}"
    if missing := place.missing(device[0]):
        return f"{said}: {missing / GIB:.1f} too much"
    return f"{said}: fits" if place.size <= TIGHT * room else f"{said}: tight, with what is not counted it may not fit"


def _pushed(config: RunConfig, shape: ModelShape) -> str:
    size = pushed_bytes(config, shape)
    return f"{size:,} bytes to each sampler" if size else "nothing, the sampler uses the learner's own weights"


def _curve(curve: ThroughputCurve | None) -> str:
    if curve is None:
        return "its speed is unknown (--curve FILE), so times are too"
    return f"{curve.engine}, {curve.model}, {curve.machine}; {curve.measured}"


def _step_lines(
    variant: str, lag: int, lengths: Lengths, step: StepPlan, curve: ThroughputCurve | None
) -> Iterator[str]:
    yield f"  variant {variant}, a step of {step.episodes} episodes; lengths: {lengths.source}"
    yield f"    generated tokens {_number(step.sampled)}, learner computes at most {_number(step.trained)} ids"
    chain = f"    longest chain of tokens that wait for each other {_number(step.chain)}"
    busy = step.sampled / step.chain
    yield f"{chain}: {_number(busy)} sequences busy on average at most, however many workers"
    if len(lengths.paths) > 1:
        yield f"    sequences of a mean episode at a time {mean_parallel(lengths):.1f}"
    if curve is None or step.rollout is None:
        return
    low, high = step.rollout
    made = f"{_number(step.sampled / high)} to {_number(step.sampled / low)} tokens per second"
    prompts = ", prompts taken to cost nothing" if curve.prompt_tokens_per_second is None else ", prompts not counted"
    yield f"    rollouts on {step.workers} workers {low:.1f} to {high:.1f} s: {made}{prompts}"
    if step.workers_at_limit is not None:
        yield f"    from {step.workers_at_limit} workers on the longest chain is what a step waits for"
    whole = step.seconds(lag)
    if step.update is None or whole is None:
        yield "    update and step: unknown, the curve has no trained_tokens_per_second"
    else:
        update = f"    update on {step.ranks} ranks {step.update:.1f} s"
        yield f"{update}; a step {whole[0]:.1f} to {whole[1]:.1f} s at max_staleness {lag}"


def _total_lines(config: RunConfig, totals: Mapping[str, JobTotals]) -> Iterator[str]:
    seeds, jobs = len(config.seeds), totals.values()
    yield f"\nWhole run: {len(totals)} variant(s) x {seeds} seed(s), with episodes of the lengths above"
    for variant, job in totals.items():
        rl = "no RL"
        if job.steps:
            rl = f"{job.steps:,} steps of RL (until {job.ended_by}) that generate {_number(job.sampled)} tokens"
        yield f"  a job of variant {variant}: warm start on {job.demonstrations:,} tokens, {rl}"
        yield f"    compute (sampled + 3 x trained) at most {_number(job.compute)} tokens"
        yield f"    evaluation generates {_number(job.evaluated)} tokens"
    sampled = seeds * sum(job.sampled for job in jobs)
    compute = seeds * sum(job.compute for job in jobs)
    evaluated = seeds * sum(job.evaluated for job in jobs)
    yield f"  in all: RL generates {_number(sampled)} tokens, the evaluation {_number(evaluated)}"
    yield f"    compute at most {_number(compute)} tokens"
    yield "  not counted: replays, probes, refills, further attempts at the warm start"
    known = [job.seconds for job in jobs if job.seconds is not None]
    if len(known) < len(totals):
        yield "  time: unknown without a curve (--curve FILE) that has trained_tokens_per_second"
        return
    low, high = (seeds * sum(seconds[end] for seconds in known) / 3600 for end in (0, 1))
    yield f"  time: {_hours(low)} to {_hours(high)} h, one job after another, without the evaluation"


def _hours(value: float) -> str:
    return f"{value:,.2f}" if isfinite(value) else "without a bound"


def _number(value: float) -> str:
    return f"{value:,.0f}" if isfinite(value) else "without a bound"
