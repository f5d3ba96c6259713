"""Tree rows: a prefix that several samples share is computed once, and each continuation attends to it.

The episodes of a group share their prompt, clones share their system prompt, and a replay shares the context before its
branch. Samples that share a prefix are neighbours when sorted by their ids. The prefix that a sample shares with its
predecessor is the longest that it shares with any earlier sample. So a row is a trie of contexts in sorted order, and
needs no other data structure.

Gradients equal those of padded rows up to rounding. A token attends to its own context only, at its own positions, and
every sample keeps its own credit even where tokens are shared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise

import numpy as np
import torch
from transformers import PreTrainedModel

from selfcest_agents.window_attention import NAME as WINDOW
from selfcest_env.errors import ConfigError
from selfcest_training.learner.batch import RowLayout, Sample, TokenBatch, bucket_by_length, collate
from selfcest_training.learner.options import Rows
from selfcest_training.learner.packed_rows import DENSE, check_packed, collate_packed, pack_rows


@dataclass(frozen=True)
class TreeRow:
    """Samples in one row with shared prefixes once; `len` is the number of ids to compute.

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
        """Build a row of samples, which must be sorted by their token ids."""
        shared = [_common_prefix(before, after) for before, after in pairwise(samples)]
        return cls(tuple(samples), (0, *shared))

    def __len__(self) -> int:
        return sum(map(len, self.samples)) - sum(self.shared)

    def paths(self) -> Iterator[np.ndarray]:
        """Yield, for each sample, the columns [T] of its tokens in the row."""
        path = np.empty(0, dtype=np.int64)
        width = 0
        for sample, shared in zip(self.samples, self.shared, strict=True):
            num_new = len(sample) - shared
            path = np.concatenate([path[:shared], np.arange(width, width + num_new)])
            width += num_new
            yield path


def bucket_by_prefix(samples: Sequence[Sample], max_tokens: int) -> list[list[Sample]]:
    """Cut samples, sorted by their ids, into batches whose tree rows have at most `max_tokens` ids, or one sample."""
    return [list(row.samples) for row in build_tree_rows(samples, max_tokens=max_tokens, hidden_size=None)]


def build_tree_rows(samples: Sequence[Sample], *, max_tokens: int, hidden_size: int | None) -> list[TreeRow]:
    """Join samples into rows of at most `max_tokens` ids (or of a single sample), where joining saves work.

    Args:
        samples: in any order.
        max_tokens: ids of a row.
        hidden_size: width of the model, for an estimate of the work (`_estimate_work`). With dense attention a long row
            of samples that share few ids costs more than it saves. `None`: attention in blocks, where pairs of tokens
            that do not attend cost nothing, so rows are filled up.
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
    if hidden_size is None:
        return True
    separate_work = _estimate_work(first, hidden_size) + _estimate_work(second, hidden_size)
    return _estimate_work(joined, hidden_size) < separate_work


def _estimate_work(num_tokens: int, hidden_size: int) -> int:
    """Estimate the work of a row with dense attention, in units of 4 x hidden_size operations per layer."""
    # For a Llama: the linear maps of a token take about 24 hidden_size^2 operations, its attention 4 hidden_size per
    # id of the row.
    return num_tokens * (6 * hidden_size + num_tokens)


def _common_prefix(first: Sample, second: Sample) -> int:
    length = min(len(first), len(second))
    differ = np.flatnonzero(first.token_ids[:length] != second.token_ids[:length])
    return int(differ[0]) if len(differ) else length


@dataclass(frozen=True)
class MicroBatch:
    """Samples that go through the model together, before they become tensors.

    Attributes:
        samples: in the order of the batch's rows.
        size: ids that the model computes, padding included.
        collate: builds the batch from the id of a pad.
    """

    samples: tuple[Sample, ...]
    size: int
    collate: Callable[[int], TokenBatch]


def cut_into_micro_batches(
    samples: Sequence[Sample], rows: Rows, *, max_tokens: int, hidden_size: int | None
) -> Iterator[MicroBatch]:
    """Yield micro-batches of at most `max_tokens` padded ids (or of a single row) that hold every sample once."""
    if rows == Rows.PACKED:
        for row in pack_rows(samples, max_tokens):
            yield MicroBatch(tuple(row), sum(map(len, row)), partial(collate_packed, row))
        return
    # Samples that share no row with others are padded, as with `bucketed`.
    unshared = samples
    if rows == Rows.TREE:
        trees = build_tree_rows(samples, max_tokens=max_tokens, hidden_size=hidden_size)
        unshared = [tree.samples[0] for tree in trees if len(tree.samples) == 1]
        for bucket in bucket_by_length([tree for tree in trees if len(tree.samples) > 1], max_tokens):
            tree_samples = tuple(chain.from_iterable(tree.samples for tree in bucket))
            yield MicroBatch(tree_samples, len(bucket) * max(map(len, bucket)), partial(collate_trees, bucket))
    for row_samples in bucket_by_length(unshared, max_tokens):
        size = len(row_samples) * max(map(len, row_samples))
        yield MicroBatch(tuple(row_samples), size, partial(collate, row_samples))


def max_micro_batches(samples: int, longest: int, rows: Rows, *, max_tokens: int) -> int:
    """Return an upper bound on the number of micro-batches of `samples` samples with at most `longest` ids each."""
    # Tree rows are joined depending on their ids, so each sample may stay in a micro-batch of its own. Otherwise a
    # micro-batch holds at least as many samples as the longest ones fit into it.
    least_per_batch = 1 if rows == Rows.TREE else max(1, max_tokens // longest)
    return -(-samples // least_per_batch)


def collate_trees(rows: Sequence[TreeRow], pad_id: int) -> TokenBatch:
    """Build the batch of the rows' samples, with the layout in which the model computes them."""
    longest = max(map(len, rows))
    token_ids = np.full((len(rows), longest), pad_id, dtype=np.int64)
    positions = np.zeros_like(token_ids)
    # Pads attend to themselves, since a softmax over nothing is NaN.
    visible = np.broadcast_to(np.eye(longest, dtype=bool), (len(rows), longest, longest)).copy()
    sources = []
    for i, row in enumerate(rows):
        for sample, shared, path in zip(row.samples, row.shared, row.paths(), strict=True):
            new_columns = path[shared:]
            token_ids[i, new_columns] = sample.token_ids[shared:]
            positions[i, new_columns] = np.arange(shared, len(sample))
            visible[i, new_columns[:, None], path] = np.tri(len(new_columns), len(path), shared, dtype=bool)
            columns = path[:-1][sample.loss_mask[1:]]
            sources.append(np.stack([np.full_like(columns, i), columns]))
    layout = RowLayout(
        token_ids=torch.from_numpy(token_ids),
        positions=torch.from_numpy(positions),
        visible=torch.from_numpy(visible),
        sources=torch.from_numpy(np.concatenate(sources, axis=1)),
    )
    samples = list(chain.from_iterable(row.samples for row in rows))
    batch = collate(samples, pad_id)
    return replace(batch, num_tokens=sum(map(len, rows)), layout=layout)


def check_model(model: PreTrainedModel, rows: Rows) -> None:
    """Raise `ConfigError` if the model's attention would not keep the contexts of such rows apart."""
    config = model.config.get_text_config()
    attention = config._attn_implementation
    layers = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None)
    if attention == WINDOW and rows != Rows.BUCKETED:
        raise ConfigError(
            f"rows is '{rows}' and model.options.attention_window is {config.attention_window}, which needs one "
            "context per row; set rows to 'bucketed'"
        )
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
