"""Packed rows: samples one after another in one row without padding, for variable-length attention kernels.

transformers tells the contexts of a row apart by their positions, which restart at 0. Its flash attention gets their
lengths, and flex attention a block mask. `sdpa` and `eager` get a dense mask, which is exact but whose work is
quadratic in the length of the row.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace

import numpy as np
import torch

from selfcest_env.errors import ConfigError
from selfcest_training.learner.batch import RowLayout, Sample, TokenBatch, collate

DENSE = ("eager", "sdpa")
SPARSE = ("flash_attention_2", "flash_attention_3", "flex_attention")


def pack_rows(samples: Sequence[Sample], max_tokens: int) -> Iterator[list[Sample]]:
    """Yield rows of consecutive samples, each of at most `max_tokens` ids or of a single sample."""
    row: list[Sample] = []
    for sample in samples:
        if row and sum(map(len, row)) + len(sample) > max_tokens:
            yield row
            row = []
        row.append(sample)
    if row:
        yield row


def collate_packed(samples: Sequence[Sample], pad_id: int) -> TokenBatch:
    """Build the batch of the samples, which the model computes in a single row."""
    starts = np.cumsum([0, *map(len, samples)])
    trained = [np.flatnonzero(sample.loss_mask[1:]) + start for sample, start in zip(samples, starts, strict=False)]
    columns = np.concatenate(trained)
    layout = RowLayout(
        token_ids=torch.from_numpy(np.concatenate([sample.token_ids for sample in samples]))[None],
        positions=torch.from_numpy(np.concatenate([np.arange(len(sample)) for sample in samples]))[None],
        visible=None,
        sources=torch.from_numpy(np.stack([np.zeros_like(columns), columns])),
    )
    return replace(collate(samples, pad_id), layout=layout)


def check_packed(model: str, attention: str, layers: Set[str]) -> None:
    """Check that a model keeps the contexts of a packed row apart, and warn if it does so with a dense mask.

    Args:
        model: name of its class.
        attention: name of its attention implementation.
        layers: the types of its layers.

    Raises:
        ConfigError: transformers would mix the contexts of a row in these layers or with this attention.
    """
    unsupported = layers - {"full_attention", "sliding_attention"}
    if unsupported:
        raise ConfigError(
            f"rows is 'packed' and {model} has layers of {', '.join(sorted(unsupported))}, which carry state from one "
            "context of a row into the next; set rows to 'bucketed'"
        )
    if attention not in (*DENSE, *SPARSE):
        raise ConfigError(
            f"rows is 'packed' and the model's attention is '{attention}'; load the model with attn_implementation "
            f"{', '.join(SPARSE)}, or set rows to 'bucketed'"
        )
    if attention in DENSE:
        warnings.warn(
            f"rows is 'packed' and the model's attention '{attention}' masks a row densely, slower than padding; load "
            f"the model with attn_implementation {' or '.join(SPARSE)} on a GPU, or set rows to 'bucketed'",
            stacklevel=2,
        )
