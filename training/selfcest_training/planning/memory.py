"""Computes the memory that each process of a run needs on its device, part by part."""

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
from selfcest_training.learner.footprint import RowShape, build_weightless_model, measure_pass_bytes
from selfcest_training.learner.losses import Need, make_loss_sum
from selfcest_training.learner.options import ForwardOptions, Rows
from selfcest_training.planning.shapes import ModelShape, device_memory, get_model_shape

GIB = 2**30
_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class MemoryPart:
    """One item of a process's memory.

    Attributes:
        name: the item.
        size: bytes.
        note: how the number is computed, for the reader of the plan.
        weights: whether the item is in memory before the first step.
    """

    name: str
    size: int
    note: str
    weights: bool = False


@dataclass(frozen=True)
class ProcessMemory:
    """The memory of one kind of process on its device.

    Attributes:
        name: name of the process in the plan.
        parts: items of its memory.
        count: number of such processes in the run.
        share: fraction of a device that the process may use; 0 means that it uses no device.
        loading: bytes of host memory that it needs before its weights are sharded over ranks.
        unknown: items whose size is not known.
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

    def excess_bytes(self, device_bytes: int, *, weights_only: bool = False) -> int:
        """Bytes by which the process exceeds its share of a device; 0 if it fits."""
        if not self.share:
            return 0
        needed = sum(part.size for part in self.parts if part.weights or not weights_only)
        return max(0, math.ceil(needed - device_bytes * self.share))


def max_context_length(limits: Limits, shape: ModelShape) -> int:
    """The largest number of ids that one context can have."""
    model: Any = shape.config
    bounds = (limits.context_tokens, limits.total_tokens, getattr(model, "max_position_embeddings", None))
    return int(min(bound for bound in bounds if bound is not None))


def largest_row_shape(config: RunConfig, context_length: int, attention: str) -> RowShape:
    """The shape of a full micro-batch that needs most memory, for contexts of at most this length."""
    tokens = config.micro_batch_tokens
    # A row that is longer than `micro_batch_tokens` is a micro-batch of its own.
    if config.rows == Rows.BUCKETED:
        length = max(2, context_length)
        return RowShape(max(1, tokens // length), length, dense=False)
    flash = config.rows == Rows.PACKED and attention not in ("sdpa", "eager")
    return RowShape(1, max(2, tokens, context_length), dense=not flash)


def plan_processes(
    config: RunConfig, variant: str, shape: ModelShape, *, passes: bool = True
) -> tuple[ProcessMemory, ...]:
    """Compute the memory of every kind of process of one variant's job. Without a cluster there is one process.

    Args:
        config: the run's config.
        variant: name of the variant.
        shape: the shape of its model.
        passes: whether to measure forward and backward passes, which takes seconds.

    Raises:
        ConfigError: the options of sampler, loss or LoRA are wrong.
    """
    cluster = config.cluster
    if cluster is None:
        parts, unknown = list_sampler_parts(config, variant, shape, workers=1)
        parts = (*list_learner_parts(config, variant, shape, ranks=1, passes=passes), *parts)
        jobs = min(config.workers, len(config.variants) * len(config.seeds))
        return (ProcessMemory("job (learner and sampler)", parts, jobs, share=1 / jobs, unknown=unknown),)
    ranks = cluster.learner_ranks
    on_gpu = shape.device != "cpu"
    # A single rank is the job's own process, which has a device to itself.
    learner_share = 1.0
    if on_gpu and ranks > 1:
        learner_share = min(1.0, float(cluster.learner_resources.get("GPU", 0.0)))
    rollout_share = min(1.0, float(cluster.rollout_resources.get("GPU", 0.0))) if on_gpu else 1.0
    learner = ProcessMemory(
        "learner rank" if ranks > 1 else "job (learner)",
        list_learner_parts(config, variant, shape, ranks, passes=passes),
        ranks,
        learner_share,
        loading=_loading_bytes(config, variant, shape) if ranks > 1 else 0,
        unknown=("host memory for a checkpoint: all weights and moments, on the first rank and in the job's process",),
    )
    sampler_parts, sampler_unknown = list_sampler_parts(config, variant, shape, cluster.rollout_workers)
    rollout_worker = ProcessMemory(
        "rollout worker", sampler_parts, cluster.requested["rollout"][0], rollout_share, unknown=sampler_unknown
    )
    if ranks == 1:
        return learner, rollout_worker
    # With ranks the job's own process also has the complete model: it distributes it at the start, and saves it.
    driver = ProcessMemory("job's own process", (_weights_copy(shape, _dtype_name(shape.dtype)),))
    return driver, learner, rollout_worker


def list_learner_parts(
    config: RunConfig, variant: str, shape: ModelShape, ranks: int, *, passes: bool = True
) -> tuple[MemoryPart, ...]:
    """List the memory of the learner, or of each of its ranks."""
    model = shape.with_lora(config.lora)
    weights = list(model.parameters())
    trained = [weight for weight in weights if weight.requires_grad]
    trained_name = "adapters" if config.lora is not None else "all weights"
    shard_note = "" if ranks == 1 else f", the largest of {ranks} shards"
    weights_size = _largest_shard_bytes(weights, ranks)
    trained_size = _largest_shard_bytes(trained, ranks)
    parts = [
        MemoryPart("weights", weights_size, f"{_dtype_name(shape.dtype)}{shard_note}", weights=True),
        MemoryPart("gradients", trained_size, f"of {trained_name}, float32{shard_note}"),
        # AdamW has two moments per weight.
        MemoryPart("moments", 2 * trained_size, f"two of AdamW for {trained_name}, float32{shard_note}"),
    ]
    if _has_reference_model(config, variant):
        parts.append(MemoryPart("reference model", weights_size, f"for a term of the loss{shard_note}", weights=True))
    staleness = config.variants[variant].rl.max_staleness
    if ranks > 1:
        note = "two complete layers, and all weights outside layers, with gradients"
        parts.append(MemoryPart("gathered layers", _gathered_bytes(model), note))
    elif staleness:
        size = staleness * _tensor_bytes(shape.model.parameters())
        parts.append(MemoryPart("copies of waiting steps", size, f"weights, for max_staleness {staleness}"))
    if passes:
        rows = largest_row_shape(config, max_context_length(config.limits_of(variant), shape), shape.attention)
        note = f"forward and backward of {rows.rows} x {rows.length} ids, {_describe_forward(config.forward)}"
        parts.append(MemoryPart("activations", activation_bytes(shape, config.lora, config.forward, rows), note))
    return tuple(parts)


def _has_reference_model(config: RunConfig, variant: str) -> bool:
    """Whether the learner keeps a second model as the reference. With LoRA the base model is the reference."""
    needs = make_loss_sum(config.variants[variant].rl.loss, where=f"variants.{variant}.rl.loss").needs
    return Need.REFERENCE in needs and config.lora is None


def _loading_bytes(config: RunConfig, variant: str, shape: ModelShape) -> int:
    """Bytes that `Rank.build` loads before it shards them."""
    reference = _tensor_bytes(shape.model.parameters()) if _has_reference_model(config, variant) else 0
    return _tensor_bytes(shape.with_lora(config.lora).parameters()) + reference


@lru_cache(maxsize=64)
def activation_bytes(shape: ModelShape, lora: LoraOptions | None, forward: ForwardOptions, rows: RowShape) -> int:
    """See `footprint.measure_pass_bytes`."""
    make = partial(build_weightless_model, dtype=shape.dtype, attention=shape.attention, lora=lora)
    chunk = forward.logit_chunk or rows.rows * rows.length
    return measure_pass_bytes(make, shape.config, replace(forward, logit_chunk=chunk, compile=False), rows)


def list_sampler_parts(
    config: RunConfig, variant: str, shape: ModelShape, workers: int
) -> tuple[tuple[MemoryPart, ...], tuple[str, ...]]:
    """List the memory of the engine in one process, without the learner's, and the items of unknown size."""
    rl = config.variants[variant].rl
    limits = config.limits_of(variant)
    episodes = math.ceil(rl.tasks_per_step * rl.group_size / workers)
    sequences = episodes * max_parallel_agents(limits)
    context_length = max_context_length(limits, shape)
    match config.sampler.name:
        case "vllm":
            return _list_vllm_parts(config, shape, sequences, context_length)
        case "transformers":
            return _list_transformers_parts(config, shape, sequences, context_length)
        case name:
            return (), (f"memory of the sampler {name!r}",)


def _list_vllm_parts(
    config: RunConfig, shape: ModelShape, sequences: int, context_length: int
) -> tuple[tuple[MemoryPart, ...], tuple[str, ...]]:
    options = construct(VllmOptions, config.sampler.options, place="sampler.options")
    num_gpus = options.tensor_parallel
    gpus_note = f", on each of {num_gpus} GPUs" if num_gpus > 1 else ""
    weights = _weights_copy(shape, options.dtype)
    weights = replace(weights, size=weights.size // num_gpus, note=f"{weights.note}{gpus_note}")
    if options.kv_cache_gib is None:
        return (weights,), ("KV cache: kv_cache_gib is null, so vLLM takes all memory that is free",)
    cache_size = int(options.kv_cache_gib * GIB)
    token_size = cache_bytes_per_token(shape, options.dtype) // num_gpus
    rows = min(options.max_batch_size, sequences)
    cache_note = (
        f"kv_cache_gib{gpus_note}: {cache_size // token_size:,} ids; {rows} contexts of at most {context_length} ids "
        f"are {rows * context_length:,}"
    )
    cache = MemoryPart("KV cache", cache_size, cache_note)
    return (weights, cache), ("memory of vLLM's own passes and CUDA graphs",)


def _list_transformers_parts(
    config: RunConfig, shape: ModelShape, sequences: int, context_length: int
) -> tuple[tuple[MemoryPart, ...], tuple[str, ...]]:
    options = construct(TransformersSampler, config.sampler.options, place="sampler.options")
    dtype = options.dtype or _dtype_name(shape.dtype)
    engines = count_engines(config)
    token_size = cache_bytes_per_token(shape, dtype)
    parts = []
    if not _shares_weights(config):
        parts.append(_weights_copy(shape, dtype, engines))
    if shape.device == "cpu":
        packed_size = engines * shape.linear_weights(MIN_WEIGHTS) * _DTYPE_BYTES[dtype]
        if packed_size:
            parts.append(MemoryPart("packed layers", packed_size, "a second copy of large linear layers, on a CPU"))
    slots = engines * min(options.max_batch_size, sequences)
    note = f"{slots} slots x {context_length} ids x {token_size:,} bytes, every context at its longest"
    parts.append(MemoryPart("KV cache", slots * context_length * token_size, note))
    if options.prefix_tokens:
        size = _count_adapters(config) * options.prefix_tokens * token_size
        parts.append(MemoryPart("prefix cache", size, f"prefix_tokens: {options.prefix_tokens:,} ids"))
    return tuple(parts), ("memory of a prefill while it runs",)


def max_parallel_agents(limits: Limits) -> int:
    """The largest number of agents of one episode that decode together. A parent waits while its clones decode."""
    if not limits.delegation:
        return 1
    bounds = [limits.max_clones, limits.total_tokens, limits.generated_tokens]
    return max(1, min((bound for bound in bounds if bound is not None), default=1))


def get_max_batch_size(config: RunConfig) -> int:
    """The largest number of sequences that one engine decodes together."""
    options = config.sampler.options
    return int(options.get("max_batch_size", VllmOptions.max_batch_size))


def cache_bytes_per_token(shape: ModelShape, dtype: str) -> int:
    """Bytes of one token in a KV cache."""
    return shape.cache_numbers_per_token * _DTYPE_BYTES[dtype]


def sync_bytes(config: RunConfig, shape: ModelShape) -> int:
    """Bytes that one sampler receives after a step; 0 if it samples from the learner's own model."""
    name = config.sampler.name
    default_dtype = VllmOptions.dtype if name == "vllm" else None
    sampler_dtype = config.sampler.options.get("dtype", default_dtype)
    if _shares_weights(config):
        return 0
    # In one process the sampler casts the weights; with a cluster they are cast before they are sent.
    is_cast_before = config.cluster is not None and sampler_dtype is not None
    dtype = str(sampler_dtype) if is_cast_before else _dtype_name(shape.dtype)
    return count_engines(config) * shape.parameters * _DTYPE_BYTES.get(dtype, 4)


def count_engines(config: RunConfig) -> int:
    """Count the engines of one sampler: one for each adapter, unless one engine adds them to the learner's weights."""
    return 1 if _shares_weights(config) else _count_adapters(config)


def _count_adapters(config: RunConfig) -> int:
    """Count the adapters that differ by role; 1 for a model without."""
    return len(Role) if config.lora is not None and config.lora.per_role else 1


def _shares_weights(config: RunConfig) -> bool:
    """Whether the sampler samples from the learner's own model."""
    options = config.sampler.options
    merges_lora = config.lora is not None and options.get("merge_lora", True)
    has_copy = options.get("dtype") is not None or merges_lora or config.cluster is not None
    return config.sampler.name == "transformers" and not has_copy


def _weights_copy(shape: ModelShape, dtype: str, engines: int = 1) -> MemoryPart:
    note = dtype if engines == 1 else f"{dtype}, one for each of {engines} roles"
    return MemoryPart("copy of the weights", engines * shape.parameters * _DTYPE_BYTES[dtype], note, weights=True)


def _tensor_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _largest_shard_bytes(weights: Iterable[nn.Parameter], ranks: int) -> int:
    """Bytes of the largest shard. FSDP2 cuts every tensor along its first dimension."""
    size = 0
    for weight in weights:
        rows = weight.shape[0] if weight.dim() else 1
        numbers_per_row = weight.numel() // max(1, rows)
        size += math.ceil(rows / ranks) * numbers_per_row * weight.element_size()
    return size


def _gathered_bytes(model: nn.Module) -> int:
    """Bytes of the complete tensors that a rank gathers: a layer and the next one, and all weights outside layers."""
    module_lists = (module for module in model.modules() if isinstance(module, nn.ModuleList))
    layers = max(module_lists, key=len, default=nn.ModuleList())
    layer_sizes = sorted(_bytes_with_gradients(layer.parameters()) for layer in layers)
    layer_weights = set(map(id, layers.parameters()))
    other_weights = [weight for weight in model.parameters() if id(weight) not in layer_weights]
    return sum(layer_sizes[-2:]) + _bytes_with_gradients(other_weights)


def _bytes_with_gradients(weights: Iterable[nn.Parameter]) -> int:
    return sum(w.numel() * w.element_size() * (2 if w.requires_grad else 1) for w in weights)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _describe_forward(options: ForwardOptions) -> str:
    chunk = f"logits of {options.logit_chunk} ids at a time" if options.logit_chunk else "all logits at once"
    layers = "gradient checkpointing" if options.gradient_checkpointing else "no gradient checkpointing"
    return f"{options.autocast}, {layers}, {chunk}"


def check_device(config: RunConfig) -> None:
    """Raise `ConfigError` if the weights do not fit the GPU of the config. Nothing is checked without a GPU."""
    device_bytes = device_memory(str(config.model.options.get("device", "cpu")))
    if device_bytes is not None:
        check_weights(config, device_bytes)


def check_weights(config: RunConfig, device_bytes: int) -> None:
    """Raise `ConfigError` if the weights of a process do not fit its share of a device."""
    shape = get_model_shape(config.model)
    for variant in config.variants:
        for process in plan_processes(config, variant, shape, passes=False):
            excess = process.excess_bytes(device_bytes, weights_only=True)
            if excess:
                sizes = ", ".join(f"{part.name} {part.size / GIB:.1f}" for part in process.parts if part.weights)
                raise ConfigError(
                    f"variants.{variant}: the weights of a {process.name} alone ({sizes} GiB) are {excess / GIB:.1f} "
                    f"GiB more than its share of a device of {device_bytes / GIB:.1f} GiB; `selfcest plan` with the "
                    "same arguments says what to change"
                )
