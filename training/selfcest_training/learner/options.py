"""The options of the learner in a config. This module imports no torch, so that reading a config is fast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

from selfcest_env.structure import Above, AtLeast, Below, Checked, NotNegative, Number, Positive, Share, Size


class Denominator(StrEnum):
    """The divisor of an episode's summed token losses (rule 8 of the design).

    CONSTANT: a constant number of tokens; the sum is the policy gradient.
    EPISODE_MEAN: the episode's own number of generated tokens, excluded turns included. Episodes have equal
        weight; biased.
    """

    CONSTANT = "constant"
    EPISODE_MEAN = "episode_mean"


class Rows(StrEnum):
    """The layout of samples in rows.

    BUCKETED: one row per sample, padded, with rows of similar length in a batch.
    TREE: samples that share a long prefix in one row; bucketed rows for the others.
    PACKED: samples one after another in one row, without padding; for variable-length attention.
    """

    BUCKETED = "bucketed"
    TREE = "tree"
    PACKED = "packed"


class Batches(StrEnum):
    """The samples that make up a batch of the warm start.

    LENGTH: samples of similar length, for little padding.
    PREFIX: samples that share long prefixes, such as two questions about a document, which tree rows compute once.
    """

    LENGTH = "length"
    PREFIX = "prefix"


class Precision(StrEnum):
    """The dtype of the layers' computation. Weights, gradients, optimiser and log-softmax are float32 in both cases."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


@dataclass(frozen=True)
class ForwardOptions(Checked):
    """Speed and memory of the learner. Only `autocast` changes a gradient by more than rounding.

    Attributes:
        autocast: dtype of the layers' computation.
        logit_chunk: number of positions whose logits exist at a time; the backward pass recomputes them, unless all of
            a pass take less than 16 MiB. 0: the logits of all trained positions, computed once and kept.
        gradient_checkpointing: whether to keep the inputs of layers only and recompute the layers in the backward pass.
        compile: whether to use `torch.compile`, which takes minutes at the start and again for a new shape of rows.
    """

    autocast: Precision = Precision.FLOAT32
    logit_chunk: Annotated[Size, "0: all at once"] = 256
    gradient_checkpointing: bool = False
    compile: bool = False

    @property
    def exact(self) -> bool:
        """Whether log-probs are those of float32, up to rounding."""
        return self.autocast == Precision.FLOAT32


@dataclass(frozen=True)
class OptimizerConfig(Checked):
    """Options of AdamW.

    Attributes:
        learning_rate: largest learning rate.
        warmup_steps: steps of linear warmup.
        decay_share: last share of the run over which the learning rate decays linearly to 2 % of `learning_rate`.
        beta1: decay of the first moment per step.
        beta2: decay of the second moment per step.
        weight_decay: decoupled weight decay.
        max_grad_norm: norm at which gradients are clipped.
    """

    learning_rate: Annotated[Positive, "as in 4e-4"] = 4e-4
    warmup_steps: Annotated[Size, "0: full rate at once"] = 5
    decay_share: Annotated[Share, "0: no decay"] = 0.0
    beta1: Annotated[float, AtLeast(0), Below(1), "as in 0.9"] = 0.9
    beta2: Annotated[float, AtLeast(0), Below(1), "as in 0.95"] = 0.95
    weight_decay: Annotated[NotNegative, "0: none"] = 0.0
    max_grad_norm: Annotated[float, Above(0), ".inf: no clipping"] = 1.0

    def learning_rate_at(self, step: int, progress: float) -> float:
        """Return the learning rate of a step (from 0) at `progress` in [0, 1] of the run."""
        rate = self.learning_rate * min(1.0, (step + 1) / max(1, self.warmup_steps))
        if self.decay_share and progress > 1 - self.decay_share:
            rate *= max(0.02, (1 - progress) / self.decay_share)
        return rate


class ImportanceLevel(StrEnum):
    """The unit of an importance weight.

    NONE: no weights; the loss's ratio is against the sampler.
    TOKEN: one weight per token.
    SEQUENCE: one weight per sample (an agent's context), the product over its trained tokens. Exact up to the cap, with
        a variance that grows with the length.
    """

    NONE = "none"
    TOKEN = "token"
    SEQUENCE = "sequence"


@dataclass(frozen=True)
class Importance(Checked):
    """Truncated importance weights for the mismatch between sampler and learner.

    Attributes:
        level: unit of a weight.
        cap: largest weight.
    """

    level: ImportanceLevel = ImportanceLevel.NONE
    cap: Annotated[float, AtLeast(1), ".inf: not truncated"] = 2.0

    @property
    def on(self) -> bool:
        return self.level != ImportanceLevel.NONE


@dataclass(frozen=True)
class LossTermConfig(Checked):
    """A term that is added to the policy's loss.

    Attributes:
        weight: factor of the term in the sum; negative for a bonus.
        name: a built-in name (`kl`, `entropy`), an installed one, or `package.module:Class`; empty: the term's key.
        options: options of the term.
    """

    weight: Number
    name: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LossConfig(Checked):
    """The loss: the policy's term and added terms.

    Attributes:
        name: the policy's term, a built-in name (`clipped`, `cispo`), an installed one, or `package.module:Class`.
        options: options of the policy's term.
        importance: weights of the policy's term for a sampler whose probabilities differ from the learner's.
        terms: added terms by name, such as `kl: {weight: 0.05}` for the KL to the warm start.
    """

    name: str = "clipped"
    options: Mapping[str, Any] = field(default_factory=dict)
    importance: Importance = Importance()
    terms: Mapping[str, LossTermConfig] = field(default_factory=dict)
