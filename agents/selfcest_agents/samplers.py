"""Samplers: an engine, and the way in which it receives the trained weights.

By default the engine samples from the learner's own model, without a copy. In float32 its log-probs are then those of
the learner. Other engines (with another dtype, merged LoRA, vLLM) have their own weights, and every update is copied to
them.
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
from selfcest_agents.tiny import TinyLanguage
from selfcest_agents.vllm_engine import VllmEngine, VllmOptions
from selfcest_env.errors import ConfigError, install_hint
from selfcest_env.plugin import Registry
from selfcest_env.structure import Checked, Count, OneOf, Size
from selfcest_env.types import Role

# torch and transformers take seconds to import, so only functions that start an engine or copy weights import them.
if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel


class WeightSyncTarget(Protocol):
    """The interface by which a trainer sends weights: to an engine of this process, or to workers.

    Attributes:
        shared: whether it samples from the learner's own model, so that updates need no copy.
        exact: whether it computes in float32, so that a float32 learner must agree with all its tokens.
    """

    @property
    def shared(self) -> bool: ...

    @property
    def exact(self) -> bool: ...

    def sync(self, model: PreTrainedModel, policy_version: int) -> None:
        """Use the weights of a model from now on."""
        ...

    def push(self, weights: Iterable[tuple[str, Tensor]], policy_version: int) -> None:
        """Use these weights from now on. It must not be called if the weights are shared."""
        ...


@dataclass(frozen=True)
class Sampler:
    """A started engine.

    Attributes:
        engine: the engine.
        shared: whether it samples from the learner's own model, so that updates need no copy.
        exact: whether it computes in float32, so that a float32 learner must agree with all its tokens.

    Raises:
        ConfigError: the weights of the engine cannot be replaced.
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
        """Close an engine that has processes of its own, such as vLLM."""
        close: Callable[[], None] | None = getattr(self.engine, "close", None)
        if close is not None:
            close()


@dataclass(frozen=True)
class SamplerByRole:
    """A sampler for each role, with its own weights: of a model with an adapter per role, or of two models."""

    by_role: Mapping[Role, Sampler]

    @property
    def shared(self) -> bool:
        return False

    @property
    def exact(self) -> bool:
        return all(sampler.exact for sampler in self.by_role.values())

    def sync(self, model: PreTrainedModel, policy_version: int) -> None:
        """See `WeightSyncTarget`."""
        from selfcest_agents.lora import use_adapter

        for role, sampler in self.by_role.items():
            with use_adapter(model, role):
                sampler.sync(model, policy_version)

    def push(self, weights: Iterable[tuple[str, Tensor]], policy_version: int) -> None:
        """See `WeightSyncTarget`. Every role gets the same weights."""
        weights = list(weights)  # an iterator could be read only once
        for sampler in self.by_role.values():
            sampler.push(weights, policy_version)

    def close(self) -> None:
        for sampler in self.by_role.values():
            sampler.close()


class SamplerSpec(Protocol):
    """Options of a sampler in a config. They are checked when the config is read; `start` makes the engine later."""

    @property
    def shared(self) -> bool:
        """Whether the engine will sample from the learner's own model, unless a LoRA adapter is merged."""
        ...

    @property
    def max_positions(self) -> int | None:
        """Maximum number of ids of a context in the engine; `None` for that of the model."""
        ...

    def start(self, language: Language, model: PreTrainedModel | None) -> Sampler:
        """Start the engine. Its first weights have no effect, because it receives the learner's before it plays.

        Args:
            language: language of the model.
            model: model of the learner; `None` if this process has none, as in a rollout worker.
        """
        ...


@dataclass(frozen=True)
class TransformersSampler(Checked):
    """transformers in this process, by a `TransformersEngine`.

    Attributes:
        dtype: dtype of a copy of the weights for sampling; `None` to sample from the learner's model without a copy.
        max_batch_size: largest number of sequences that are decoded together. It bounds the cache.
        prefill_tokens: largest number of ids of one prefill pass, padding included.
        prefix_tokens: largest number of ids of finished contexts whose keys and values are kept for reuse; 0 for none.
        draft_tokens: largest number of ids that are guessed for a row and step; 0 for none.
        merge_lora: whether LoRA adapters are merged into copies of the weights, one for each adapter. If false, one
            engine samples from the learner's model without a copy, and adds the adapter of each agent's role.
    """

    dtype: Annotated[str, OneOf("float32", "bfloat16")] | None = None
    max_batch_size: Count = 256
    prefill_tokens: Count = 8192
    prefix_tokens: Size = 0
    draft_tokens: Size = 0
    merge_lora: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.merge_lora and self.dtype is not None:
            raise ConfigError(
                f"merge_lora is false and dtype is {self.dtype}; expected no dtype, because the engine then samples "
                "from the learner's own weights; set dtype to null, or merge_lora to true"
            )

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

        if model is not None and self.shared and not (self.merge_lora and has_lora(model)):
            is_shared = True
            sampled_model = model
        else:
            is_shared = False
            sampled_model = language.load(0, dtype=self.dtype)
        engine = TransformersEngine(
            sampled_model,
            stop_ids=language.stop_ids,
            max_batch_size=self.max_batch_size,
            prefill_tokens=self.prefill_tokens,
            prefix_tokens=self.prefix_tokens,
            draft_tokens=self.draft_tokens,
        )
        return Sampler(engine, shared=is_shared, exact=sampled_model.dtype == torch.float32)


@dataclass(frozen=True)
class VllmSampler(VllmOptions):
    """vLLM, by a `VllmEngine`. Raises `ConfigError` if vLLM is not installed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if importlib.util.find_spec("vllm") is None:
            raise ConfigError(
                "vLLM is not installed; set sampler.name to transformers, install it for a CPU as docs/models.md "
                f"says, or run: {install_hint('vllm')}"
            )

    @property
    def shared(self) -> bool:
        return False

    def start(self, language: Language, model: PreTrainedModel | None) -> Sampler:
        if isinstance(language, TinyLanguage) and language.attention_window is not None:
            raise ConfigError(
                f"model.options.attention_window is {language.attention_window}, which vLLM would ignore; set "
                "sampler.name to transformers, or set attention_window to null"
            )
        with tempfile.TemporaryDirectory() as scratch:
            if language.checkpoint is None:
                # Not the learner's model, which may have an adapter.
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
    """Make the sampler `transformers`, `vllm` or `package.module:Class`. Raises `ConfigError` for invalid options."""
    return SAMPLERS.make(name, options, where="sampler.options")


def check_positions(spec: SamplerSpec, max_context: int | None, place: str) -> None:
    """Raise `ConfigError` if contexts could be too long for the engine.

    Args:
        spec: options of the sampler.
        max_context: maximum number of ids of a context; `None` if it is unlimited.
        place: key of the limits in the config.
    """
    if spec.max_positions is not None and (max_context is None or max_context > spec.max_positions):
        raise ConfigError(
            f"{place}: contexts of {'inf' if max_context is None else max_context} tokens could outgrow "
            f"sampler.options.max_positions = {spec.max_positions}; raise it, or lower limits.context_tokens"
        )


def check_own_weights(
    spec: SamplerSpec, place: str, *, max_staleness: int, on_cluster: bool, on_ranks: bool = False
) -> None:
    """Raise `ConfigError` if the sampler would share this process's weights where it needs its own.

    Args:
        spec: options of the sampler, of a model without an adapter or with one that is not merged.
        place: config key of the block that holds `max_staleness`.
        max_staleness: number of steps that rollouts run ahead of the learner.
        on_cluster: whether workers of a cluster play.
        on_ranks: whether several processes train the weights.
    """
    if not spec.shared:
        return
    if max_staleness:
        reason = f"{place}.max_staleness is {max_staleness}, and the sampler uses the learner's own, changing weights"
    elif on_cluster:
        reason = "there is a cluster block, and the sampler uses the learner's own weights, which no rollout worker has"
    elif on_ranks:
        reason = "the weights are trained on ranks of their own, and the sampler uses the weights of this process"
    else:
        return
    option = "dtype (as float32)" if getattr(spec, "merge_lora", True) else "merge_lora to true"
    raise ConfigError(f"{reason}; set sampler.options.{option}, so that the sampler has its own weights")
