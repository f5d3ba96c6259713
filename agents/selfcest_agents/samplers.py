"""Samplers: an engine, and how the weights being trained get there.

By default the engine samples from the very model that is trained: nothing is copied, and in float32 its log-probs are
the learner's. Any other (another dtype, LoRA, vLLM) has weights of its own, which each update is pushed to.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

from selfcest_agents.engine import TrainableEngine, check_trainable
from selfcest_agents.language import Language
from selfcest_agents.vllm_engine import VllmEngine, VllmOptions
from selfcest_env.errors import ConfigError, install_hint
from selfcest_env.plugin import Registry
from selfcest_env.structure import Checked, Count, OneOf, Size
from selfcest_env.types import Role

# torch and transformers take seconds to import, so only what starts an engine or moves weights imports them.
if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel


class WeightSyncTarget(Protocol):
    """Whoever samples, as a trainer knows it: an engine of this process, or workers elsewhere.

    Attributes:
        shared: it samples from the learner's own model, which it sees change.
        exact: it computes in float32, so that a float32 learner must agree with it token for token.
    """

    @property
    def shared(self) -> bool: ...

    @property
    def exact(self) -> bool: ...

    def sync(self, model: PreTrainedModel, policy_version: int) -> None:
        """The weights are now the model's."""
        ...

    def push(self, weights: Iterable[tuple[str, Tensor]], policy_version: int) -> None:
        """The weights are now these; not to be called if they are shared."""
        ...


@dataclass(frozen=True)
class Sampler:
    """A started engine.

    Attributes:
        engine: what samples.
        shared: it samples from the learner's own model, which it sees change.
        exact: it computes in float32, so that a float32 learner must agree with it token for token.

    Raises:
        ConfigError: the engine takes no weights.
    """

    engine: TrainableEngine
    shared: bool
    exact: bool

    def __post_init__(self) -> None:
        check_trainable(self.engine)

    def sync(self, model: PreTrainedModel, policy_version: int) -> None:
        """See `WeightSyncTarget`."""
        if self.shared:
            self.engine.policy_version = policy_version
        else:
            from selfcest_agents.lora import merged_weights

            self.push(merged_weights(model), policy_version)

    def push(self, weights: Iterable[tuple[str, Tensor]], policy_version: int) -> None:
        """See `WeightSyncTarget`."""
        self.engine.load_weights(weights, policy_version)

    def close(self) -> None:
        """End an engine that holds more than this process's memory, as vLLM does."""
        close: Callable[[], None] | None = getattr(self.engine, "close", None)
        if close is not None:
            close()


@dataclass(frozen=True)
class SamplerByRole:
    """A sampler for each role, with weights of its own: of a model that has an adapter per role, or of two models."""

    by_role: Mapping[Role, Sampler]

    @property
    def shared(self) -> bool:
        return False

    @property
    def exact(self) -> bool:
        return all(sampler.exact for sampler in self.by_role.values())

    def sync(self, model: PreTrainedModel, policy_version: int) -> None:
        """See `WeightSyncTarget`."""
        from selfcest_agents.lora import acting_as

        for role, sampler in self.by_role.items():
            with acting_as(model, role):
                sampler.sync(model, policy_version)

    def push(self, weights: Iterable[tuple[str, Tensor]], policy_version: int) -> None:
        """See `WeightSyncTarget`: the same weights for every role."""
        weights = list(weights)
        for sampler in self.by_role.values():
            sampler.push(weights, policy_version)

    def close(self) -> None:
        for sampler in self.by_role.values():
            sampler.close()


class SamplerSpec(Protocol):
    """What a config's `sampler` is built to. Its options can be wrong at once; the engine starts with a job."""

    @property
    def shared(self) -> bool:
        """Whether the engine will sample from the learner's own model, unless that has a LoRA adapter."""
        ...

    @property
    def max_positions(self) -> int | None:
        """Ids of one context that the engine will hold; `None`: as many as the model."""
        ...

    def start(self, language: Language, model: PreTrainedModel | None) -> Sampler:
        """Start it. An engine with weights of its own may begin with any: it is given the learner's before it plays.

        `model`: the learner's; `None` where there is none, as in a rollout worker, so that nothing can be shared.
        """
        ...


@dataclass(frozen=True)
class TransformersSampler(Checked):
    """`TransformersEngine` in this process.

    Attributes:
        dtype: of a copy of the weights to sample from; `None`: no copy, the learner's own (with LoRA there is always a
            copy, with the adapter merged into it).
        max_batch_size, prefill_tokens, prefix_tokens: see `TransformersEngine`.
    """

    dtype: Annotated[str, OneOf("float32", "bfloat16")] | None = None
    max_batch_size: Count = 256
    prefill_tokens: Count = 8192
    prefix_tokens: Size = 0

    @property
    def shared(self) -> bool:
        return self.dtype is None

    @property
    def max_positions(self) -> None:
        return None

    def start(self, language: Language, model: PreTrainedModel | None) -> Sampler:
        import torch

        from selfcest_agents.lora import has_lora
        from selfcest_agents.transformers.engine import TransformersEngine

        own = model if self.shared and model is not None and not has_lora(model) else None
        sampled = language.load(0, dtype=self.dtype) if own is None else own
        engine = TransformersEngine(
            sampled,
            stop_ids=language.stop_ids,
            max_batch_size=self.max_batch_size,
            prefill_tokens=self.prefill_tokens,
            prefix_tokens=self.prefix_tokens,
        )
        return Sampler(engine, own is not None, exact=sampled.dtype == torch.float32)


@dataclass(frozen=True)
class VllmSampler(VllmOptions):
    """`VllmEngine`; its options are those of `VllmOptions`. Raises `ConfigError` where vLLM is not installed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if importlib.util.find_spec("vllm") is None:
            raise ConfigError(
                "vLLM is not installed; set sampler.name to transformers, install it for a CPU as docs/engines.md "
                f"says, or run: {install_hint('vllm')}"
            )

    @property
    def shared(self) -> bool:
        return False

    def start(self, language: Language, model: PreTrainedModel | None) -> Sampler:
        with tempfile.TemporaryDirectory() as scratch:
            if language.checkpoint is None:  # a model of its own: the learner's may have an adapter in it
                language.save(language.load(0), Path(scratch))
            engine = VllmEngine(language.checkpoint or scratch, stop_ids=language.stop_ids, options=self)
        return Sampler(engine, shared=False, exact=self.dtype == "float32")


SAMPLERS = Registry(
    SamplerSpec,
    "sampler",
    "selfcest.sampler",
    {
        "transformers": "selfcest_agents.samplers:TransformersSampler",
        "vllm": "selfcest_agents.samplers:VllmSampler",
    },
)


def make_sampler(name: str, options: Mapping[str, object]) -> SamplerSpec:
    """`transformers`, `vllm` or `package.module:Class` with its options. Raises `ConfigError`."""
    return SAMPLERS.make(name, options, where="sampler.options")


def check_positions(spec: SamplerSpec, longest: int | None, place: str) -> None:
    """Raise `ConfigError` if contexts of `longest` ids, `None`: of any length, could outgrow the engine.

    `place` has the limits in the config.
    """
    if spec.max_positions is not None and (longest is None or longest > spec.max_positions):
        raise ConfigError(
            f"{place}: contexts of {'inf' if longest is None else longest} tokens could outgrow "
            f"sampler.options.max_positions = {spec.max_positions}; raise it, or lower limits.context_tokens"
        )


def check_own_weights(
    spec: SamplerSpec, place: str, *, max_staleness: int, on_cluster: bool, on_ranks: bool = False
) -> None:
    """Raise `ConfigError` if the sampler sees this process's weights where it must have its own.

    Args:
        spec: of a model without adapters, which always have a copy.
        place: of the block in the config that `max_staleness` stands in.
        max_staleness: steps that rollouts run ahead of the learner.
        on_cluster: other processes play.
        on_ranks: other processes learn.
    """
    if not spec.shared:
        return
    if max_staleness:
        why = f"{place}.max_staleness is {max_staleness}, and the sampler uses the learner's own weights, which change"
    elif on_cluster:
        why = "there is a cluster block, and the sampler uses the learner's own weights, which no rollout worker has"
    elif on_ranks:
        why = "the weights are trained on ranks of their own, and the sampler uses this process's"
    else:
        return
    raise ConfigError(f"{why}; set sampler.options.dtype (as float32), so that it has weights of its own")
