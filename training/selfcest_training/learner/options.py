"""The learner's options: what a config says of it. Nothing here computes, and nothing imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

from selfcest_env.structure import Above, AtLeast, Below, Checked, Finite, NotNegative, Positive, Share, Size


class Denominator(StrEnum):
    """What an episode's summed token losses are divided by.

    CONSTANT: a constant number of tokens; this is the policy gradient.
    EPISODE_MEAN: the episode's own number of generated tokens, excluded ones too; equal weight per episode, biased.
    """

    CONSTANT = "constant"
    EPISODE_MEAN = "episode_mean"


class Rows(StrEnum):
    """How samples become rows.

    BUCKETED: a row per sample, rows of similar length together, padded.
    TREE: samples that share enough of a prefix in one row; bucketed where nothing is shared.
    PACKED: samples one after another in one row, without padding; for attention that knows where each begins.
    """

    BUCKETED = "bucketed"
    TREE = "tree"
    PACKED = "packed"


class Precision(StrEnum):
    """What the layers compute in. Weights, gradients, optimiser and log-softmax are float32 in both."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


@dataclass(frozen=True)
class ForwardOptions(Checked):
    """Speed and memory of the learner. None of them but `autocast` changes a gradient by more than rounding.

    Attributes:
        autocast: what the layers compute in.
        logit_chunk: positions whose logits exist at a time; the backward pass makes them again. 0: the logits of all
            positions that train, made once and kept.
        gradient_checkpointing: keep what enters each layer only; the backward pass computes the layers again.
        compile: `torch.compile`; minutes at first, and once more for a new kind of rows.
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
    """AdamW. `warmup_steps` rise linearly; `decay_share` is the last share of a run of known length that falls to 0."""

    learning_rate: Annotated[Positive, "as in 4e-4"] = 4e-4
    warmup_steps: Annotated[Size, "0: full rate at once"] = 5
    decay_share: Annotated[Share, "0: no decay"] = 0.0
    beta1: Annotated[float, AtLeast(0), Below(1), "as in 0.9"] = 0.9
    beta2: Annotated[float, AtLeast(0), Below(1), "as in 0.95"] = 0.95
    weight_decay: Annotated[NotNegative, "0: none"] = 0.0
    max_grad_norm: Annotated[float, Above(0), ".inf: no clipping"] = 1.0

    def rate(self, step: int, progress: float) -> float:
        """Learning rate of step `step` (from 0), at `progress` in [0, 1] of the run."""
        rate = self.learning_rate * min(1.0, (step + 1) / max(1, self.warmup_steps))
        if self.decay_share and progress > 1 - self.decay_share:
            rate *= max(0.02, (1 - progress) / self.decay_share)
        return rate


class ImportanceLevel(StrEnum):
    """What a weight belongs to.

    NONE: no weights; the surrogate's ratio is against the sampler.
    TOKEN: each token has its own.
    SEQUENCE: a sample, that is one agent's context: the product over its trained tokens. Exact for the sample but for
        the cap, and of a variance that grows with length.
    """

    NONE = "none"
    TOKEN = "token"
    SEQUENCE = "sequence"


@dataclass(frozen=True)
class Importance(Checked):
    """How the mismatch between sampler and learner is weighed. `cap` is the largest weight."""

    level: ImportanceLevel = ImportanceLevel.NONE
    cap: Annotated[float, AtLeast(1), ".inf: not truncated"] = 2.0

    @property
    def on(self) -> bool:
        return self.level != ImportanceLevel.NONE


@dataclass(frozen=True)
class LossTermConfig(Checked):
    """Something added to the policy's loss.

    Attributes:
        weight: of the term in the sum; a bonus has a negative one.
        name: built in (`kl`, `entropy`), installed, or `package.module:Class`; empty: the term's key.
        options: of the term.
    """

    weight: Annotated[float, Finite()]
    name: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LossConfig(Checked):
    """The loss: the policy's term, and others that are added to it.

    Attributes:
        name, options: the policy's term: built in (`clipped`, `cispo`), installed, or `package.module:Class`.
        importance: weights of the policy's term for a sampler that is not quite the learner.
        terms: what is added, by name, as `kl: {weight: 0.05}` for the KL to the warm start.
    """

    name: str = "clipped"
    options: Mapping[str, Any] = field(default_factory=dict)
    importance: Importance = Importance()
    terms: Mapping[str, LossTermConfig] = field(default_factory=dict)
