"""Writes samples as the batch that verl's trainer gives to its actor: tensors with the names of `DataProto`.

Names and padding follow verl 0.9.1 (`verl.experimental.agent_loop`, `verl.workers.utils.losses`; 0.7 has the same).
verl stores a batch as a pickle. Here it is a safetensors file with all other values in its header:
`DataProto.from_dict(tensors=batch.tensors, non_tensors=batch.non_tensors, meta_info=batch.meta_info)`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from selfcest_env.errors import ConfigError, RecordError
from selfcest_training.credit.offline import get_train_group
from selfcest_training.export.stored import CreditedSamples, list_temperatures, refuse_greedy
from selfcest_training.files import atomic_write

_HEADER = "selfcest_verl"


@dataclass(frozen=True)
class VerlBatch:
    """A batch of B contexts. A context's first trained token is its column P: the prompt is before it.

    Attributes:
        tensors: `prompts` [B, P], padded on the left, and `responses` [B, R], padded on the right. `input_ids`,
            `attention_mask` and `position_ids` [B, P + R] are of both. All others are [B, R]: `response_mask` (1 for a
            trained token), `rollout_log_probs`, `advantages`, `rollout_is_weights` (factor of each token's loss, so
            that verl's `token-mean` gives the sum of our learner) and `rm_scores` (the return, at the last token).
        non_tensors: one value per context: `uid` (one per group), `episode_id`, `agent_id`, `data_source`.
        meta_info: `temperature`, which verl's actor needs.
    """

    tensors: Mapping[str, Tensor]
    non_tensors: Mapping[str, list[str]]
    meta_info: Mapping[str, Any]


def build_batch(data: CreditedSamples, pad_id: int = 0) -> VerlBatch:
    """Build a batch of the samples, in order. Raises `ConfigError` unless all were sampled at one temperature > 0."""
    samples = data.samples
    refuse_greedy(samples)
    temperatures = list_temperatures(samples)
    if len(temperatures) > 1:
        raise ConfigError(
            f"the episodes were sampled at temperatures {temperatures}; expected one, as a batch of verl has only one"
        )
    prompt_lengths = [int(sample.loss_mask.argmax()) for sample in samples]
    prompt_width = max(prompt_lengths)
    response_width = max(len(sample) - length for sample, length in zip(samples, prompt_lengths, strict=True))

    def pad(arrays: Sequence[np.ndarray], fill: int = 0) -> Tensor:
        """Pad arrays [T] to [B, P + R], so that every response begins at column P."""
        padded = np.full((len(arrays), prompt_width + response_width), fill, arrays[0].dtype)
        for row, array, length in zip(padded, arrays, prompt_lengths, strict=True):
            start = prompt_width - length
            row[start : start + len(array)] = array
        return torch.from_numpy(padded)

    input_ids = pad([sample.token_ids for sample in samples], pad_id)
    scores = [np.zeros(len(sample), np.float32) for sample in samples]
    for score, sample in zip(scores, samples, strict=True):
        score[-1] = data.records[sample.episode_id].team_return
    response_arrays = {
        "response_mask": [sample.loss_mask.astype(np.int64) for sample in samples],
        "rollout_log_probs": [sample.behavior_logprobs for sample in samples],
        "advantages": [sample.advantages for sample in samples],
        "rollout_is_weights": [data.loss_weights(sample) for sample in samples],
        "rm_scores": scores,
    }
    tensors = {
        "prompts": input_ids[:, :prompt_width],
        "responses": input_ids[:, prompt_width:],
        "input_ids": input_ids,
        "attention_mask": pad([np.ones(len(sample), np.int64) for sample in samples]),
        "position_ids": pad([np.arange(len(sample)) for sample in samples]),
        **{name: pad(arrays)[:, prompt_width:] for name, arrays in response_arrays.items()},
    }
    return VerlBatch(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        {
            "uid": [get_train_group(data.records[sample.episode_id]) for sample in samples],
            "episode_id": [sample.episode_id for sample in samples],
            "agent_id": [str(sample.agent_id) for sample in samples],
            "data_source": [data.records[sample.episode_id].task.source for sample in samples],
        },
        {"temperature": temperatures[0]},
    )


def write_batch(path: Path, batch: VerlBatch) -> None:
    """Write a batch to a file, atomically."""
    header = json.dumps({"non_tensors": dict(batch.non_tensors), "meta_info": dict(batch.meta_info)})
    with atomic_write(path) as partial:
        save_file({name: tensor.clone() for name, tensor in batch.tensors.items()}, partial, {_HEADER: header})


def read_batch(path: Path) -> VerlBatch:
    """Read the file of `write_batch`. Raises `RecordError` for another file."""
    try:
        with safe_open(path, "pt") as file:
            header = json.loads((file.metadata() or {})[_HEADER])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, safe_open returns no mapping
    except (SafetensorError, KeyError) as error:
        raise RecordError(f"{path} is no batch that `selfcest export --format verl` wrote: {error}") from error
    return VerlBatch(tensors, header["non_tensors"], header["meta_info"])
