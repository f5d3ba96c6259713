"""What to change in a config whose run does not fit its devices: each change is tried, none is guessed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from selfcest_agents.lora_options import LoraOptions
from selfcest_env.errors import ConfigError
from selfcest_env.plugin import PlugIn
from selfcest_training.config import RunConfig
from selfcest_training.learner.options import Precision
from selfcest_training.planning.memory import plan_processes
from selfcest_training.planning.shapes import model_shape

Change = tuple[str, Callable[[RunConfig], RunConfig]]
_RANKS_KEY = "cluster.learner_ranks="


def missing_bytes(config: RunConfig, device: int) -> int:
    """Bytes that all kinds of processes of all variants lack on devices of this size; 0 if everything fits."""
    shape = model_shape(config.model)
    return sum(place.missing(device) for variant in config.variants for place in plan_processes(config, variant, shape))


def what_helps(config: RunConfig, device: int) -> Sequence[str]:
    """Changes, as overrides, with which everything fits; empty if none that is known here does.

    They are added one by one, those that cost least first, and then those are left out without which it fits too.
    """
    taken: list[Change] = []
    for change in _changes(config):
        before = missing_bytes(_with(config, taken), device)
        after = missing_bytes(_with(config, [*taken, change]), device)
        if after < before:
            taken.append(change)
        if not after:
            break
    if missing_bytes(_with(config, taken), device):
        return ()
    for change in list(taken):
        rest = [other for other in taken if other is not change]
        if not missing_bytes(_with(config, rest), device):
            taken = rest
    return [said for said, _ in taken]


def _with(config: RunConfig, changes: Sequence[Change]) -> RunConfig:
    for _, change in changes:
        config = change(config)
    return config


def _changes(config: RunConfig) -> Iterator[Change]:
    forward = config.forward
    if not forward.gradient_checkpointing:
        yield "forward.gradient_checkpointing=true", _forward(gradient_checkpointing=True)
    if not forward.logit_chunk:
        yield "forward.logit_chunk=256", _forward(logit_chunk=256)
    if config.workers > 1:
        yield "workers=1", lambda c: replace(c, workers=1)
    for tokens in (config.micro_batch_tokens // 2, config.micro_batch_tokens // 4):
        if tokens >= 1024:
            yield f"micro_batch_tokens={tokens}", _micro(tokens)
    if forward.autocast != Precision.BFLOAT16:
        yield "forward.autocast=bfloat16", _forward(autocast=Precision.BFLOAT16)
    ahead = [variant for variant, of_variant in config.variants.items() if of_variant.rl.max_staleness]
    if ahead:
        yield " ".join(f"variants.{variant}.rl.max_staleness=0" for variant in ahead), _no_lag
    cache = config.sampler.options.get("kv_cache_gib")
    for share in (2, 4):
        if cache is not None and cache / share >= 1:
            yield f"sampler.options.kv_cache_gib={cache / share:g}", _sampler({"kv_cache_gib": cache / share})
    now = 1 if config.cluster is None else config.cluster.learner_ranks
    for ranks in (2 * now, 4 * now, 8 * now) if now > 1 else ():
        yield f"{_RANKS_KEY}{ranks}", _ranks(ranks)
    if config.lora is None:
        yield "lora={rank: 32, alpha: 64}", lambda c: replace(c, lora=LoraOptions(32, 64))
    if config.model.name == "chat" and config.model.options.get("dtype", "float32") == "float32":
        yield "model.options.dtype=bfloat16", _half


def _forward(**options: Any) -> Callable[[RunConfig], RunConfig]:
    return lambda config: replace(config, forward=replace(config.forward, **options))


def _micro(tokens: int) -> Callable[[RunConfig], RunConfig]:
    return lambda config: replace(config, micro_batch_tokens=tokens)


def _no_lag(config: RunConfig) -> RunConfig:
    variants = {
        name: replace(variant, rl=replace(variant.rl, max_staleness=0)) for name, variant in config.variants.items()
    }
    return replace(config, variants=variants)


def _sampler(options: Mapping[str, object]) -> Callable[[RunConfig], RunConfig]:
    return lambda c: replace(c, sampler=PlugIn(c.sampler.name, {**c.sampler.options, **options}))


def _ranks(ranks: int) -> Callable[[RunConfig], RunConfig]:
    def change(config: RunConfig) -> RunConfig:
        assert config.cluster is not None
        return replace(config, cluster=replace(config.cluster, learner_ranks=ranks))

    return change


def _half(config: RunConfig) -> RunConfig:
    """Weights that train must be float32, so it stays as it is without LoRA."""
    if config.lora is None:
        return config
    return replace(config, model=PlugIn("chat", {**config.model.options, "dtype": "bfloat16"}))


def refuse(missing: str, config: RunConfig, changes: Sequence[str]) -> ConfigError:
    """What does not fit, by how much, and what to change."""
    said = " ".join(f'"{change}"' if "{" in change else change for change in changes)
    helps = f"with {said} it would" if changes else "no change of this config that is known here would make it fit"
    return ConfigError(f"{missing}; {helps}{hardware_note(config, changes)}")


def hardware_note(config: RunConfig, changes: Sequence[str]) -> str:
    """What changes of `what_helps` need beyond the hardware that the config has; empty if nothing."""
    ranks = [int(change.removeprefix(_RANKS_KEY)) for change in changes if change.startswith(_RANKS_KEY)]
    if config.cluster is None or not ranks:
        return ""
    now = config.cluster.learner_ranks
    each = config.cluster.learner_resources
    more = ", ".join(f"{(ranks[-1] - now) * amount:g} {name} more" for name, amount in each.items())
    return f", but that needs more hardware: {ranks[-1]} learner ranks in place of {now}{more and f' ({more})'}"
