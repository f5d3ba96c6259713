"""`selfcest plan`."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from selfcest_env.errors import ConfigError
from selfcest_training.config import RunConfig
from selfcest_training.planning.changes import missing_bytes, refuse, what_helps
from selfcest_training.planning.lengths import allowed, recorded
from selfcest_training.planning.memory import GIB, plan_processes, slots
from selfcest_training.planning.report import plan_lines
from selfcest_training.planning.shapes import device_memory, model_shape
from selfcest_training.planning.speed import read_curve, step_plan
from selfcest_training.planning.totals import job_totals


def print_plan(
    config: RunConfig, console: Console, *, memory: float | None, episodes: Path | None, curve: Path | None
) -> None:
    """Print what the run will need.

    Args:
        config: of the run.
        console: where to.
        memory: GiB of one device; `None`: what torch sees of the one that the config names, if it does.
        episodes: a run's episodes.jsonl.
        curve: a JSON file, see `speed.ThroughputCurve`.

    Raises:
        ConfigError: it does not fit; after the plan was printed.
    """
    if memory is not None and not memory > 0:
        raise ConfigError(f"--memory is {memory:g}; expected GiB of one device, as in 80")
    shape = model_shape(config.model)
    asked = device_memory(shape.device)
    device = (int(memory * GIB), "--memory") if memory is not None else (asked, "says torch") if asked else None
    measured = None if curve is None else read_curve(curve)
    lengths = {
        variant: allowed(config.limits_of(variant)) if episodes is None else recorded(episodes)
        for variant in config.variants
    }
    steps = {
        variant: step_plan(config, variant, lengths[variant], measured, slots(config))
        for variant, of_variant in config.variants.items()
        if of_variant.rl.steps
    }
    totals = {
        variant: job_totals(config, variant, lengths[variant], steps.get(variant), measured)
        for variant in config.variants
    }
    found = {variant: plan_processes(config, variant, shape) for variant in config.variants}
    of_variants = {variant: (lengths[variant], step) for variant, step in steps.items()}
    for line in plan_lines(config, shape, found, of_variants, totals, measured, device):
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    if device is None or not missing_bytes(config, device[0]):
        return
    misfit = max(
        (place for of_variant in found.values() for place in of_variant), key=lambda place: place.missing(device[0])
    )
    largest = sorted(misfit.parts, key=lambda part: -part.size)[:3]
    names = ", ".join(f"{part.name} {part.size / GIB:.1f}" for part in largest)
    room = device[0] * misfit.share / GIB
    raise refuse(
        f"does not fit: a {misfit.name} needs {misfit.size / GIB:.1f} GiB ({names}), "
        f"{misfit.missing(device[0]) / GIB:.1f} more than the {room:.1f} it has",
        config,
        what_helps(config, device[0]),
    )
