"""Samples as the batch that verl's trainer hands to its actor: tensors by the names that `DataProto` has for them.

The names and their padding are those of verl 0.9.1 (`verl.experimental.agent_loop`, `verl.workers.utils.losses`; 0.7
has the same). verl stores a batch as a pickle; here it is a safetensors file, whose header has what is no tensor:
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
from selfcest_training.export.stored import Credited, group_of
from selfcest_training.files import atomic_write

_HEADER = "selfcest_verl"


@dataclass(frozen=True)
class Batch:
    """B contexts. A prompt ends before the first token that trains, at column P; the rest is the response, R columns.

    Attributes:
        tensors: `prompts` [B, P], padded on the left; `responses` [B, R], padded on the right; `input_ids`,
            `attention_mask` and `position_ids` [B, P + R] of both; and [B, R] each `response_mask`, 1 where a token
            trains, `rollout_log_probs`, `advantages`, `rollout_is_weights`, what verl's `token-mean` multiplies a
            token's loss by to sum as our learner does, and `rm_scores`, the return at the last token of a response.
        non_tensors: a value per context: `uid` (one per group), `episode_id`, `agent_id`, `data_source`.
        meta_info: `temperature`, which verl's actor asks for.
    """

    tensors: Mapping[str, Tensor]
    non_tensors: Mapping[str, list[str]]
    meta_info: Mapping[str, Any]


def batch_of(data: Credited, pad_id: int = 0) -> Batch:
    """The samples in order. Raises `ConfigError` unless all were sampled at one temperature."""
    samples = data.samples
    hot = sorted({float(value) for sample in samples for value in sample.temperature[sample.loss_mask]})
    if len(hot) > 1:
        raise ConfigError(f"the episodes were sampled at temperatures {hot}; verl has one for a batch")
    starts = [int(sample.loss_mask.argmax()) for sample in samples]
    left, right = max(starts), max(len(sample) - start for sample, start in zip(samples, starts, strict=True))

    def placed(rows: Sequence[np.ndarray], fill: int = 0) -> Tensor:
        """[B, P + R], every row where its response begins at column P."""
        out = np.full((len(rows), left + right), fill, rows[0].dtype)
        for line, row, start in zip(out, rows, starts, strict=True):
            line[left - start : left - start + len(row)] = row
        return torch.from_numpy(out)

    input_ids = placed([sample.token_ids for sample in samples], pad_id)
    scores = [np.zeros(len(sample), np.float32) for sample in samples]
    for score, sample in zip(scores, samples, strict=True):
        score[-1] = data.records[sample.episode_id].team_return
    streams = {
        "response_mask": [sample.loss_mask.astype(np.int64) for sample in samples],
        "rollout_log_probs": [sample.behavior_logprobs for sample in samples],
        "advantages": [sample.advantages for sample in samples],
        "rollout_is_weights": [data.loss_weights(sample) for sample in samples],
        "rm_scores": scores,
    }
    tensors = {
        "prompts": input_ids[:, :left],
        "responses": input_ids[:, left:],
        "input_ids": input_ids,
        "attention_mask": placed([np.ones(len(sample), np.int64) for sample in samples]),
        "position_ids": placed([np.arange(len(sample)) for sample in samples]),
        **{name: placed(rows)[:, left:] for name, rows in streams.items()},
    }
    return Batch(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        {
            "uid": [group_of(sample.episode_id) for sample in samples],
            "episode_id": [sample.episode_id for sample in samples],
            "agent_id": [str(sample.agent_id) for sample in samples],
            "data_source": [data.records[sample.episode_id].task.source for sample in samples],
        },
        {"temperature": hot[0]},
    )


def write_batch(path: Path, batch: Batch) -> None:
    """A file of it, there whole or not at all."""
    header = json.dumps({"non_tensors": dict(batch.non_tensors), "meta_info": dict(batch.meta_info)})
    with atomic_write(path) as partial:
        save_file({name: tensor.clone() for name, tensor in batch.tensors.items()}, partial, {_HEADER: header})


def read_batch(path: Path) -> Batch:
    """Inverse of `write_batch`. Raises `RecordError` for another file."""
    try:
        with safe_open(path, "pt") as file:
            header = json.loads((file.metadata() or {})[_HEADER])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, it is no mapping
    except (SafetensorError, KeyError) as error:
        raise RecordError(f"{path} is no batch that `selfcest export --format verl` wrote: {error}") from error
    return Batch(tensors, header["non_tensors"], header["meta_info"])
