"""Writes samples in the format that prime-rl's orchestrator sends to its trainer: a msgpack list of `TrainingSample`.

The fields are those of prime-rl 0.8.0 (`prime_rl.transports.rollouts.types` at 559b447), in that order, since a sample
is an array there. `prime_rl.trainer.batch.prepare_batch` packs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from selfcest_env.errors import ConfigError, RecordError, install_hint
from selfcest_training.export.stored import CreditedSamples, refuse_greedy
from selfcest_training.files import atomic_write

try:
    import msgspec
except ImportError as error:
    raise ConfigError(f"{error}; run: {install_hint('prime-rl')}") from error


class TrainingSample(msgspec.Struct, array_like=True, omit_defaults=True):
    """One context. Lists are [T], aligned.

    Attributes:
        token_ids, mask, logprobs, temperatures, advantages: as in `Sample`.
        env_name: the source of its task.
        rl_weights: factor of each token's loss, before prime-rl's trainer divides by the number of trained tokens.

    The other fields belong to models and components that this project does not export.
    """

    token_ids: list[int]
    mask: list[bool]
    logprobs: list[float]
    temperatures: list[float]
    env_name: str
    ref_logprobs: list[float] | None = None
    mm_kwargs: None = None
    routed_experts: None = None
    mm_token_type_ids: list[int] | None = None
    rl_weights: list[float] | None = None
    ce_weights: list[float] | None = None
    ref_kl_weights: list[float] | None = None
    advantages: list[float] | None = None


def build_training_samples(data: CreditedSamples) -> list[TrainingSample]:
    """Build one sample per context, in order.

    Raises:
        ConfigError: a turn has weight 0, which prime-rl excludes, or tokens were chosen greedily.
    """
    refuse_greedy(data.samples)
    samples = []
    for sample in data.samples:
        weights = data.loss_weights(sample)
        if not np.all(weights[sample.loss_mask]):
            raise ConfigError(
                f"{sample.episode_id}/{sample.agent_id} has a turn of weight 0, which prime-rl leaves out of its "
                "denominator and this project does not; exclude it in the credit scheme"
            )
        samples.append(
            TrainingSample(
                sample.token_ids.tolist(),
                sample.loss_mask.tolist(),
                sample.behavior_logprobs.tolist(),
                sample.temperature.tolist(),
                data.records[sample.episode_id].task.source,
                rl_weights=weights.tolist(),
                advantages=sample.advantages.tolist(),
            )
        )
    return samples


def write_samples(path: Path, samples: Sequence[TrainingSample]) -> None:
    """Write samples to a file, atomically."""
    with atomic_write(path) as partial:
        partial.write_bytes(msgspec.msgpack.encode(list(samples)))


def read_samples(path: Path) -> list[TrainingSample]:
    """Read the file of `write_samples`. Raises `RecordError` for content that prime-rl would refuse."""
    try:
        samples = msgspec.msgpack.decode(path.read_bytes(), type=list[TrainingSample])
    except msgspec.DecodeError as error:
        raise RecordError(f"{path} holds no training samples of prime-rl: {error}") from error
    for i, sample in enumerate(samples):
        streams = (sample.mask, sample.logprobs, sample.temperatures, sample.rl_weights, sample.advantages)
        if any(stream is not None and len(stream) != len(sample.token_ids) for stream in streams):
            raise RecordError(f"{path}: sample {i} has {len(sample.token_ids)} ids and a list of another length")
    return samples
