"""Bytes that a run holds on each kind of device, part by part."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from selfcest_agents.lora_options import LoraOptions
from selfcest_agents.samplers import TransformersSampler
from selfcest_agents.transformers.packed_linear import MIN_WEIGHTS
from selfcest_agents.vllm_engine import VllmOptions
from selfcest_env.errors import ConfigError
from selfcest_env.structure import construct
from selfcest_env.types import Limits, Role
from selfcest_training.config import RunConfig
from selfcest_training.learner.footprint import RowShape, pass_bytes, without_weights
from selfcest_training.learner.losses import Need, make_loss_sum
from selfcest_training.learner.options import ForwardOptions, Rows
from selfcest_training.planning.shapes import ModelShape, device_memory, model_shape

GIB = 2**30
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class MemoryPart:
    """What is held, in bytes, and where the number comes from. `weights`: whether it is there before anything runs."""

    name: str
    size: int
    how: str
    weights: bool = False


@dataclass(frozen=True)
class ProcessMemory:
    """What one process holds on its device.

    Attributes:
        name: of the process, for people.
        parts: what it holds.
        count: how many such processes the run has.
        share: of a device that it may use; 0: it is on none.
        loading: bytes of the machine's memory that it holds before its weights are spread over ranks.
        unknown: what cannot be said.
    """

    name: str
    parts: tuple[MemoryPart, ...]
    count: int = 1
    share: float = 1.0
    loading: int = 0
    unknown: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    def missing(self, device: int, *, weights_alone: bool = False) -> int:
        """Bytes by which it does not fit a device of so many; 0 if it does."""
        held = sum(part.size for part in self.parts if part.weights or not weights_alone)
        return max(0, math.ceil(held - device * self.share)) if self.share else 0


def longest_context(limits: Limits, shape: ModelShape) -> int:
    """Ids of one context at most."""
    model: Any = shape.config
    bounds = (limits.context_tokens, limits.total_tokens, getattr(model, "max_position_embeddings", None))
    return int(min(bound for bound in bounds if bound is not None))


def row_shape(config: RunConfig, longest: int, attention: str) -> RowShape:
    """The rows of a full micro-batch that need most. A row that is longer than a micro-batch is one by itself."""
    tokens = config.micro_batch_tokens
    if config.rows == Rows.BUCKETED:
        length = max(2, longest)
        return RowShape(max(1, tokens // length), length, dense=False)
    flash = config.rows == Rows.PACKED and attention not in ("sdpa", "eager")
    return RowShape(1, max(2, tokens, longest), dense=not flash)


def plan_processes(
    config: RunConfig, variant: str, shape: ModelShape, *, passes: bool = True
) -> tuple[ProcessMemory, ...]:
    """Every kind of process of one variant's job and what it holds; without a cluster that is one process.

    `passes`: whether to find out what forward and backward hold, which takes seconds. Raises `ConfigError` for options
    of sampler, loss or LoRA that are wrong.
    """
    cluster = config.cluster
    ranks = 1 if cluster is None else cluster.learner_ranks
    learner = learner_parts(config, variant, shape, ranks, passes=passes)
    sampler, unknown = sampler_parts(config, variant, shape, 1 if cluster is None else cluster.rollout_workers)
    if cluster is None:
        jobs = min(config.workers, len(config.variants) * len(config.seeds))
        return (ProcessMemory("job (learner and sampler)", (*learner, *sampler), jobs, 1 / jobs, unknown=unknown),)
    gpu, own = shape.device != "cpu", cluster.learner_resources.get("GPU", 0.0)
    learner_share = 1.0 if ranks == 1 else min(1.0, float(own))  # a single rank is the job's own process
    rollout_share = min(1.0, float(cluster.rollout_resources.get("GPU", 0.0)))
    host = (
        "the machine's memory for a checkpoint: all weights and moments, on the first rank and in the job's process",
    )
    loading = _loaded(config, variant, shape) if ranks > 1 else 0
    # With ranks the job's own process keeps the whole model beside them, to begin with and to save.
    driver = (ProcessMemory("job's own process", (_copy(shape, _dtype(shape.dtype)),)),) if ranks > 1 else ()
    return (
        *driver,
        ProcessMemory(
            "learner rank" if ranks > 1 else "job (learner)",
            learner,
            ranks,
            learner_share if gpu else 1.0,
            loading,
            host,
        ),
        ProcessMemory(
            "rollout worker", sampler, cluster.requested["rollout"][0], rollout_share if gpu else 1.0, unknown=unknown
        ),
    )


def learner_parts(
    config: RunConfig, variant: str, shape: ModelShape, ranks: int, *, passes: bool = True
) -> tuple[MemoryPart, ...]:
    """What the learner, or one of its ranks, holds."""
    model = shape.with_lora(config.lora)
    weights = list(model.parameters())
    trained = [weight for weight in weights if weight.requires_grad]
    of = "" if ranks == 1 else f", the largest of {ranks} shards"
    what = "adapters" if config.lora is not None else "all weights"
    parts = [
        MemoryPart("weights", _sharded(weights, ranks), f"{_dtype(shape.dtype)}{of}", weights=True),
        MemoryPart("gradients", _sharded(trained, ranks), f"of {what}, float32{of}"),
        MemoryPart("moments", 2 * _sharded(trained, ranks), f"AdamW's two of {what}, float32{of}"),
    ]
    rl = config.variants[variant].rl
    if _has_reference(config, variant):
        parts.append(
            MemoryPart("reference model", _sharded(weights, ranks), f"for a term of the loss{of}", weights=True)
        )
    if ranks > 1:
        parts.append(
            MemoryPart("gathered layers", _gathered(model), "two layers and the embeddings whole, with gradients")
        )
    elif rl.max_staleness:
        size = rl.max_staleness * _bytes(shape.model.parameters())
        parts.append(MemoryPart("copies that wait", size, f"of the weights, for max_staleness {rl.max_staleness}"))
    if not passes:
        return tuple(parts)
    rows = row_shape(config, longest_context(config.limits_of(variant), shape), shape.attention)
    said = f"forward and backward of {rows.rows} x {rows.length} ids, {_forward(config.forward)}"
    return (*parts, MemoryPart("activations", activation_bytes(shape, config.lora, config.forward, rows), said))


def _has_reference(config: RunConfig, variant: str) -> bool:
    """Whether there is a second model; with LoRA the first is its own."""
    needs = make_loss_sum(config.variants[variant].rl.loss, where=f"variants.{variant}.rl.loss").needs
    return Need.REFERENCE in needs and config.lora is None


def _loaded(config: RunConfig, variant: str, shape: ModelShape) -> int:
    """Bytes that `Rank.build` loads before it shards them."""
    reference = _bytes(shape.model.parameters()) if _has_reference(config, variant) else 0
    return _bytes(shape.with_lora(config.lora).parameters()) + reference


@lru_cache(maxsize=64)
def activation_bytes(shape: ModelShape, lora: LoraOptions | None, forward: ForwardOptions, rows: RowShape) -> int:
    """See `footprint.pass_bytes`."""
    make = partial(without_weights, dtype=shape.dtype, attention=shape.attention, lora=lora)
    chunk = forward.logit_chunk or rows.rows * rows.length
    return pass_bytes(make, shape.config, replace(forward, logit_chunk=chunk, compile=False), rows)


def sampler_parts(
    config: RunConfig, variant: str, shape: ModelShape, workers: int
) -> tuple[tuple[MemoryPart, ...], tuple[str, ...]]:
    """What the engine of one process holds beside the learner, and what of it cannot be said."""
    rl, limits, name = config.variants[variant].rl, config.limits_of(variant), config.sampler.name
    longest = longest_context(limits, shape)
    episodes = math.ceil(rl.tasks_per_step * rl.group_size / workers)
    wanted = episodes * wide(limits)
    if name == "vllm":
        vllm = construct(VllmOptions, config.sampler.options, place="sampler.options")
        spread = vllm.tensor_parallel
        weights = _copy(shape, vllm.dtype)
        of = f", of {spread} GPUs each" if spread > 1 else ""
        parts = [replace(weights, size=weights.size // spread, how=f"{weights.how}{of}")]
        if vllm.kv_cache_gib is None:
            return tuple(parts), ("the KV cache: kv_cache_gib is null, so vLLM takes what it finds free",)
        size, token = int(vllm.kv_cache_gib * GIB), token_bytes(shape, vllm.dtype) // spread
        rows = min(vllm.max_batch_size, wanted)
        held = f"{size // token:,} ids; {rows} contexts of at most {longest} would be {rows * longest:,}"
        cache = MemoryPart("KV cache", size, f"kv_cache_gib{of}: {held}")
        return (*parts, cache), ("what vLLM takes for its own passes and CUDA graphs",)
    if name != "transformers":
        return (), (f"what the sampler {name!r} holds",)
    own = construct(TransformersSampler, config.sampler.options, place="sampler.options")
    dtype = own.dtype or _dtype(shape.dtype)
    parts, engines = [], engines_of(config)
    if own.dtype is not None or config.lora is not None or config.cluster is not None:
        parts.append(_copy(shape, dtype, engines))
    if shape.device == "cpu":
        packed = engines * shape.linear_numbers(MIN_WEIGHTS) * _BYTES[dtype]
        parts += (
            [MemoryPart("packed layers", packed, "a second copy of large linear layers, on a CPU")] if packed else []
        )
    slots, token = engines * min(own.max_batch_size, wanted), token_bytes(shape, dtype)
    said = f"{slots} slots x {longest} ids x {token:,} bytes, all as long as limits allow"
    parts.append(MemoryPart("KV cache", slots * longest * token, said))
    if own.prefix_tokens:
        parts.append(
            MemoryPart(
                "kept prefixes", engines * own.prefix_tokens * token, f"prefix_tokens: {own.prefix_tokens:,} ids"
            )
        )
    return tuple(parts), ("what a prefill holds while it runs",)


def wide(limits: Limits) -> int:
    """Agents of one episode that decode at a time at most: a parent waits for its clones."""
    bounds = (limits.max_clones, limits.total_tokens, limits.generated_tokens)
    return max(1, min((bound for bound in bounds if bound is not None), default=1)) if limits.delegation else 1


def slots(config: RunConfig) -> int:
    """Sequences that one engine decodes together at most."""
    options = config.sampler.options
    return int(options.get("max_batch_size", VllmOptions.max_batch_size))


def token_bytes(shape: ModelShape, dtype: str) -> int:
    """Bytes of one token in a KV cache."""
    return shape.cached_numbers * _BYTES[dtype]


def pushed_bytes(config: RunConfig, shape: ModelShape) -> int:
    """Bytes that one sampler is sent after a step; 0 if it samples from the learner's own model."""
    name, cluster = config.sampler.name, config.cluster
    dtype = config.sampler.options.get("dtype", VllmOptions.dtype if name == "vllm" else None)
    if name == "transformers" and dtype is None and config.lora is None and cluster is None:
        return 0
    sent = str(dtype) if cluster is not None and dtype is not None else _dtype(shape.dtype)  # in one process it casts
    return engines_of(config) * shape.parameters * _BYTES.get(sent, 4)


def engines_of(config: RunConfig) -> int:
    """Engines of one sampler: one for each role where these have adapters of their own."""
    return len(Role) if config.lora is not None and config.lora.per_role else 1


def _copy(shape: ModelShape, dtype: str, engines: int = 1) -> MemoryPart:
    of = dtype if engines == 1 else f"{dtype}, one for each of {engines} roles"
    return MemoryPart("copy of the weights", engines * shape.parameters * _BYTES[dtype], of, weights=True)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _sharded(weights: Iterable[nn.Parameter], ranks: int) -> int:
    """Bytes of the largest shard: every tensor is cut along its first dimension."""
    rows = [(math.ceil(weight.shape[0] / ranks) if weight.dim() else 1, weight) for weight in weights]
    return sum(
        count * (weight.numel() // max(1, weight.shape[0] if weight.dim() else 1)) * weight.element_size()
        for count, weight in rows
    )


def _gathered(model: nn.Module) -> int:
    """Bytes of what a rank has whole while it computes: a layer and the next, and what belongs to no layer."""
    layers = max(
        (module for module in model.modules() if isinstance(module, nn.ModuleList)), key=len, default=nn.ModuleList()
    )
    each = [_with_gradients(layer.parameters()) for layer in layers]
    inside = {id(weight) for weight in layers.parameters()}
    rest = [weight for weight in model.parameters() if id(weight) not in inside]
    return sum(sorted(each)[-2:]) + _with_gradients(rest)


def _with_gradients(weights: Iterable[nn.Parameter]) -> int:
    return sum(w.numel() * w.element_size() * (2 if w.requires_grad else 1) for w in weights)


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _forward(options: ForwardOptions) -> str:
    chunk = f"logits of {options.logit_chunk} at a time" if options.logit_chunk else "all logits at once"
    again = "layers checkpointed" if options.gradient_checkpointing else "all layers kept"
    return f"{options.autocast}, {again}, {chunk}"


def check_device(config: RunConfig) -> None:
    """Raise `ConfigError` if weights alone are more than the GPU that the config names has, where there is one."""
    device = device_memory(str(config.model.options.get("device", "cpu")))
    if device is not None:
        check_weights(config, device)


def check_weights(config: RunConfig, device: int) -> None:
    """Raise `ConfigError` if weights alone are more than a device of so many bytes has."""
    shape = model_shape(config.model)
    for variant in config.variants:
        for place in plan_processes(config, variant, shape, passes=False):
            if missing := place.missing(device, weights_alone=True):
                names = ", ".join(f"{part.name} {part.size / GIB:.1f}" for part in place.parts if part.weights)
                raise ConfigError(
                    f"variants.{variant}: the weights of a {place.name} alone ({names} GiB) are {missing / GIB:.1f} "
                    f"GiB more than its share of a device of {device / GIB:.1f} GiB; `selfcest plan` with the same "
                    "arguments says what to change"
                )
