"""Shared-prefix tree rows: what several samples begin with is computed once, and each continuation attends to it.

The episodes of a group share their prompt, clones their system prompt, a replay the context before it branches. Sorted
by their ids, samples that share a prefix are neighbours, and what a sample shares with the one before it is the longest
prefix that it shares with any before: a row is a trie of contexts laid out in that order, and needs no other structure.

Gradients equal those of padded rows up to rounding: a token sees its own context and nothing else, at the positions it
would have alone, and every sample keeps its own credit even where tokens are shared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from transformers import PreTrainedModel

from selfcest_env.errors import ConfigError
from selfcest_training.learner.batch import RowLayout, Sample, TokenBatch, bucketed, collate
from selfcest_training.learner.options import Rows
from selfcest_training.learner.packed_rows import DENSE, check_packed, collate_packed, packed


@dataclass(frozen=True)
class TreeRow:
    """Samples laid out in one row, shared prefixes once. `len` is the number of ids to compute.

    Attributes:
        samples: in order of their token ids.
        shared: leading ids that each sample shares with the one before it; 0 for the first.

    Example: contexts [1 2 10], [1 2 10 5], [1 2 11] have shared (0, 3, 2); the row is [1 2 10 5 11], its paths
        [0 1 2], [0 1 2 3], [0 1 4].
    """

    samples: tuple[Sample, ...]
    shared: tuple[int, ...]

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> TreeRow:
        """A row of these samples, which must be sorted by their token ids."""
        return cls(tuple(samples), (0, *(_common_prefix(before, after) for before, after in pairwise(samples))))

    def __len__(self) -> int:
        return sum(map(len, self.samples)) - sum(self.shared)

    def paths(self) -> Iterator[np.ndarray]:
        """Per sample, [T] columns of its tokens in the row."""
        path, width = np.empty(0, dtype=np.int64), 0
        for sample, shared in zip(self.samples, self.shared, strict=True):
            new = len(sample) - shared
            path = np.concatenate([path[:shared], np.arange(width, width + new)])
            width += new
            yield path


def tree_rows(samples: Sequence[Sample], *, max_tokens: int, hidden_size: int | None) -> list[TreeRow]:
    """Samples in rows of at most `max_tokens` ids (or a single sample), joined where that is less work than apart.

    Where a row's attention is dense, a long row of samples that share only a few ids would cost more than it saves.
    Work is then estimated for a Llama of width `hidden_size`: see `_work`. `None`: what is not seen costs nothing, so
    rows are as full as they go.
    """
    rows: list[list[Sample]] = []
    size = 0
    for sample in sorted(samples, key=lambda sample: sample.token_ids.tolist()):
        joined = size + len(sample) - (_common_prefix(rows[-1][-1], sample) if rows else 0)
        if rows and joined <= max_tokens and _is_less_work(joined, size, len(sample), hidden_size):
            rows[-1].append(sample)
            size = joined
        else:
            rows.append([sample])
            size = len(sample)
    return [TreeRow.of(row) for row in rows]


def _is_less_work(joined: int, first: int, second: int, hidden_size: int | None) -> bool:
    return hidden_size is None or _work(joined, hidden_size) < _work(first, hidden_size) + _work(second, hidden_size)


def _work(num_tokens: int, hidden_size: int) -> int:
    """Of a row, in units of 4 x hidden_size operations per layer.

    A token's linear maps take about 24 hidden_size^2 operations and its attention 4 hidden_size per id of the row.
    """
    return num_tokens * (6 * hidden_size + num_tokens)


def _common_prefix(first: Sample, second: Sample) -> int:
    length = min(len(first), len(second))
    differ = np.flatnonzero(first.token_ids[:length] != second.token_ids[:length])
    return int(differ[0]) if len(differ) else length


@dataclass(frozen=True)
class MicroBatch:
    """Samples that go through the model together, before they are tensors.

    Attributes:
        samples: in the order of the batch's rows.
        size: ids that the model computes for them, padding included.
        collate: makes the batch, given the id of a pad.
    """

    samples: tuple[Sample, ...]
    size: int
    collate: Callable[[int], TokenBatch]


def cut(samples: Sequence[Sample], rows: Rows, *, max_tokens: int, hidden_size: int | None) -> Iterator[MicroBatch]:
    """Every sample once, in micro-batches of at most `max_tokens` padded ids (or a single row)."""
    alone = samples
    if rows == Rows.PACKED:
        for row in packed(samples, max_tokens):
            yield MicroBatch(tuple(row), sum(map(len, row)), partial(collate_packed, row))
        return
    if rows == Rows.TREE:
        trees = tree_rows(samples, max_tokens=max_tokens, hidden_size=hidden_size)
        alone = [tree.samples[0] for tree in trees if len(tree.samples) == 1]
        for bucket in bucketed([tree for tree in trees if len(tree.samples) > 1], max_tokens):
            held = tuple(sample for tree in bucket for sample in tree.samples)
            yield MicroBatch(held, len(bucket) * max(map(len, bucket)), partial(collate_trees, bucket))
    for alike in bucketed(alone, max_tokens):
        yield MicroBatch(tuple(alike), len(alike) * max(map(len, alike)), partial(collate, alike))


def most_micro_batches(samples: int, longest: int, rows: Rows, *, max_tokens: int) -> int:
    """How many micro-batches `cut` can make of so many samples of at most `longest` ids.

    A micro-batch is closed when the next row would be too much, so it has as many of the longest as go into it. Tree
    rows are joined where that is less work, which depends on the ids.
    """
    each = 1 if rows == Rows.TREE else max(1, max_tokens // longest)
    return -(-samples // each)


def collate_trees(rows: Sequence[TreeRow], pad_id: int) -> TokenBatch:
    """The batch of all the rows' samples, with the layout in which the model computes them."""
    longest = max(map(len, rows))
    token_ids = np.full((len(rows), longest), pad_id, dtype=np.int64)
    positions = np.zeros_like(token_ids)
    # Pads see themselves: a softmax over nothing is NaN.
    visible = np.broadcast_to(np.eye(longest, dtype=bool), (len(rows), longest, longest)).copy()
    sources = []
    for i, row in enumerate(rows):
        for sample, shared, path in zip(row.samples, row.shared, row.paths(), strict=True):
            new = path[shared:]
            token_ids[i, new] = sample.token_ids[shared:]
            positions[i, new] = np.arange(shared, len(sample))
            visible[i, new[:, None], path] = np.tri(len(new), len(path), shared, dtype=bool)
            columns = path[:-1][sample.loss_mask[1:]]
            sources.append(np.stack([np.full_like(columns, i), columns]))
    layout = RowLayout(
        token_ids=torch.from_numpy(token_ids),
        positions=torch.from_numpy(positions),
        visible=torch.from_numpy(visible),
        sources=torch.from_numpy(np.concatenate(sources, axis=1)),
    )
    batch = collate([sample for row in rows for sample in row.samples], pad_id)
    return replace(batch, num_tokens=sum(map(len, rows)), layout=layout)


def check_model(model: PreTrainedModel, rows: Rows) -> None:
    """Raise `ConfigError` if the model's attention would not keep the contexts of such rows apart."""
    config = model.config.get_text_config()
    attention = config._attn_implementation
    layers = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None)
    if rows == Rows.PACKED:
        check_packed(type(model).__name__, attention, layers)
    if rows != Rows.TREE:
        return
    if attention not in DENSE:
        raise ConfigError(
            f"rows is 'tree' and the model's attention is '{attention}', which takes no dense mask; load the model "
            "with attn_implementation 'sdpa' or 'eager', or set rows to 'bucketed'"
        )
    if window is not None or layers != {"full_attention"}:
        raise ConfigError(
            f"rows is 'tree' and the model has layers {', '.join(sorted(layers))} with a sliding window of {window}; "
            "tree rows need full attention in every layer, so set rows to 'bucketed'"
        )
