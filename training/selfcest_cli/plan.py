"""The command `selfcest plan`."""

from __future__ import annotations

from itertools import chain
from math import inf
from pathlib import Path

from rich.console import Console

from selfcest_agents.samplers import SAMPLERS
from selfcest_env.errors import ConfigError
from selfcest_training.config import RunConfig
from selfcest_training.planning.changes import find_changes, make_misfit_error, total_excess_bytes
from selfcest_training.planning.lengths import compute_max_lengths, read_lengths
from selfcest_training.planning.memory import GIB, get_max_batch_size, plan_processes
from selfcest_training.planning.report import DeviceMemory, format_plan
from selfcest_training.planning.shapes import device_memory, get_model_shape
from selfcest_training.planning.speed import plan_step, read_curve
from selfcest_training.planning.totals import plan_job
from selfcest_training.printing import print_text


def print_plan(
    config: RunConfig, console: Console, *, memory: float | None, episodes: Path | None, curve: Path | None
) -> None:
    """Print the memory, time and tokens that a run needs.

    Args:
        config: the run's config.
        console: console to print to.
        memory: GiB of one device; `None` takes the memory of the GPU that the config names, if there is one.
        episodes: a run's episodes.jsonl.
        curve: a JSON file, see `speed.ThroughputCurve`.

    Raises:
        ConfigError: the run does not fit its devices. The plan is printed first.
    """
    SAMPLERS.load(config.sampler.name, "sampler.name")  # refuses an unknown one; making it would need its package
    shape = get_model_shape(config.model)
    device = _find_device(memory, shape.device)
    throughput = None if curve is None else read_curve(curve)
    processes = {}
    steps = {}
    totals = {}
    for variant, variant_config in config.variants.items():
        if episodes is None:
            lengths = compute_max_lengths(config.limits_of(variant))
        else:
            lengths = read_lengths(episodes)
        step = None
        if variant_config.rl.steps:
            step = plan_step(config, variant, lengths, throughput, get_max_batch_size(config))
            steps[variant] = lengths, step
        totals[variant] = plan_job(config, variant, lengths, step, throughput)
        processes[variant] = plan_processes(config, variant, shape)
    for line in format_plan(config, shape, processes, steps, totals, throughput, device):
        print_text(console, line)
    if device is None or not total_excess_bytes(config, device.size):
        return
    misfit = max(chain.from_iterable(processes.values()), key=lambda process: process.excess_bytes(device.size))
    largest = sorted(misfit.parts, key=lambda part: -part.size)[:3]
    sizes = ", ".join(f"{part.name} {part.size / GIB:.1f}" for part in largest)
    available = device.size * misfit.share / GIB
    raise make_misfit_error(
        f"does not fit: a {misfit.name} needs {misfit.size / GIB:.1f} GiB ({sizes}), "
        f"{misfit.excess_bytes(device.size) / GIB:.1f} more than its {available:.1f}",
        config,
        find_changes(config, device.size),
    )


def _find_device(memory: float | None, name: str) -> DeviceMemory | None:
    """Return the memory of one device from `--memory`, or else from the GPU of this name; `None` without both."""
    if memory is None:
        size = device_memory(name)
        return None if size is None else DeviceMemory(size, "as torch reports it")
    if not 0 < memory < inf:
        raise ConfigError(f"--memory is {memory:g}; expected GiB of one device, as in 80")
    return DeviceMemory(int(memory * GIB), "--memory")
