"""Finds changes of a config with which its run fits its devices. The memory of every change is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from selfcest_agents.lora_options import LoraOptions
from selfcest_env.errors import ConfigError
from selfcest_env.plugin import PlugIn
from selfcest_training.config import RunConfig
from selfcest_training.learner.options import Precision
from selfcest_training.planning.memory import plan_processes
from selfcest_training.planning.shapes import get_model_shape

_RANKS_KEY = "cluster.learner_ranks="


@dataclass(frozen=True, eq=False)
class ConfigChange:
    """A change of a config: its text as overrides of the command line, and the function that makes it."""

    overrides: str
    apply: Callable[[RunConfig], RunConfig]


def total_excess_bytes(config: RunConfig, device_bytes: int) -> int:
    """Sum the bytes by which processes of all variants exceed their devices; 0 if everything fits."""
    shape = get_model_shape(config.model)
    total = 0
    for variant in config.variants:
        for process in plan_processes(config, variant, shape):
            total += process.excess_bytes(device_bytes)
    return total


def find_changes(config: RunConfig, device_bytes: int) -> list[str]:
    """Find changes, as overrides, with which the run fits its devices; an empty list if no known changes suffice."""
    # Changes that cost least are tried first. Each one that saves memory is added, until the run fits.
    selected: list[ConfigChange] = []
    for change in _list_changes(config):
        before = total_excess_bytes(_apply_changes(config, selected), device_bytes)
        after = total_excess_bytes(_apply_changes(config, [*selected, change]), device_bytes)
        if after < before:
            selected.append(change)
        if after == 0:
            break
    if total_excess_bytes(_apply_changes(config, selected), device_bytes):
        return []
    # A later change may have made an earlier one superfluous.
    for change in list(selected):
        rest = [other for other in selected if other is not change]
        if not total_excess_bytes(_apply_changes(config, rest), device_bytes):
            selected = rest
    return [change.overrides for change in selected]


def _apply_changes(config: RunConfig, changes: Sequence[ConfigChange]) -> RunConfig:
    for change in changes:
        config = change.apply(config)
    return config


def _list_changes(config: RunConfig) -> Iterator[ConfigChange]:
    """List the changes that a config allows, those that cost least first."""
    forward = config.forward
    if not forward.gradient_checkpointing:
        yield ConfigChange("forward.gradient_checkpointing=true", _set_forward(gradient_checkpointing=True))
    if not forward.logit_chunk:
        yield ConfigChange("forward.logit_chunk=256", _set_forward(logit_chunk=256))
    if config.workers > 1:
        yield ConfigChange("workers=1", lambda c: replace(c, workers=1))
    for tokens in (config.micro_batch_tokens // 2, config.micro_batch_tokens // 4):
        if tokens >= 1024:
            yield ConfigChange(f"micro_batch_tokens={tokens}", _set_micro_batch_tokens(tokens))
    if forward.autocast != Precision.BFLOAT16:
        yield ConfigChange("forward.autocast=bfloat16", _set_forward(autocast=Precision.BFLOAT16))
    stale_variants = [name for name, variant in config.variants.items() if variant.rl.max_staleness]
    if stale_variants:
        overrides = " ".join(f"variants.{variant}.rl.max_staleness=0" for variant in stale_variants)
        yield ConfigChange(overrides, _set_no_staleness)
    cache_gib = config.sampler.options.get("kv_cache_gib")
    for divisor in (2, 4):
        if cache_gib is not None and cache_gib / divisor >= 1:
            smaller = cache_gib / divisor
            yield ConfigChange(
                f"sampler.options.kv_cache_gib={smaller:g}", _set_sampler_options({"kv_cache_gib": smaller})
            )
    current_ranks = 1 if config.cluster is None else config.cluster.learner_ranks
    if current_ranks > 1:
        for factor in (2, 4, 8):
            ranks = factor * current_ranks
            yield ConfigChange(f"{_RANKS_KEY}{ranks}", _set_ranks(ranks))
    if config.lora is None:
        yield ConfigChange("lora={rank: 32, alpha: 64}", lambda c: replace(c, lora=LoraOptions(32, 64)))
    if config.model.name == "chat" and config.model.options.get("dtype", "float32") == "float32":
        yield ConfigChange("model.options.dtype=bfloat16", _set_bfloat16_weights)


def _set_forward(**options: Any) -> Callable[[RunConfig], RunConfig]:
    return lambda config: replace(config, forward=replace(config.forward, **options))


def _set_micro_batch_tokens(tokens: int) -> Callable[[RunConfig], RunConfig]:
    return lambda config: replace(config, micro_batch_tokens=tokens)


def _set_no_staleness(config: RunConfig) -> RunConfig:
    variants = {
        name: replace(variant, rl=replace(variant.rl, max_staleness=0)) for name, variant in config.variants.items()
    }
    return replace(config, variants=variants)


def _set_sampler_options(options: Mapping[str, object]) -> Callable[[RunConfig], RunConfig]:
    return lambda c: replace(c, sampler=PlugIn(c.sampler.name, {**c.sampler.options, **options}))


def _set_ranks(ranks: int) -> Callable[[RunConfig], RunConfig]:
    def change(config: RunConfig) -> RunConfig:
        assert config.cluster is not None
        return replace(config, cluster=replace(config.cluster, learner_ranks=ranks))

    return change


def _set_bfloat16_weights(config: RunConfig) -> RunConfig:
    """Load the weights in bfloat16, but only with LoRA: weights that are trained must be float32."""
    if config.lora is None:
        return config
    return replace(config, model=PlugIn("chat", {**config.model.options, "dtype": "bfloat16"}))


def make_misfit_error(problem: str, config: RunConfig, changes: Sequence[str]) -> ConfigError:
    """Make the error for a run that does not fit.

    Args:
        problem: the process that does not fit, and by how much.
        config: the run's config.
        changes: the changes of `find_changes`.
    """
    if not changes:
        return ConfigError(f"{problem}; no known change of this config makes it fit")
    # An override with braces needs quotes in a shell.
    quoted = " ".join(f'"{change}"' if "{" in change else change for change in changes)
    return ConfigError(f"{problem}; it fits with {quoted}{_describe_hardware(config, changes)}")


def _describe_hardware(config: RunConfig, changes: Sequence[str]) -> str:
    """Describe the hardware that changes need beyond that of the config; an empty text if they need none."""
    ranks = [int(change.removeprefix(_RANKS_KEY)) for change in changes if change.startswith(_RANKS_KEY)]
    if config.cluster is None or not ranks:
        return ""
    current_ranks = config.cluster.learner_ranks
    new_ranks = ranks[-1]
    more = [
        f"{(new_ranks - current_ranks) * amount:g} more {name}"
        for name, amount in config.cluster.learner_resources.items()
    ]
    resources = f" ({', '.join(more)})" if more else ""
    return f", but that needs more hardware: {new_ranks} learner ranks instead of {current_ranks}{resources}"
