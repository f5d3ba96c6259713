"""Draw tokens. A draw depends only on the logits and temperature of its row, and on its own uniform."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

BLOCK = 256  # ids per block; the search for a draw reads the sums of blocks and then one block, not the vocabulary


def uniform_stream(seed: int, length: int) -> npt.NDArray[np.float64]:
    """Return uniforms in [0, 1), [length]. A longer stream of the same seed begins with the same numbers."""
    return np.random.Generator(np.random.Philox(seed)).random(length)


def draw(
    logits: torch.Tensor, temperatures: torch.Tensor, rows: torch.Tensor, uniforms: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample from softmax(logits / temperature) by inversion of its cumulative sum, any number of times per row.

    The weights of ids and their sums over a block are float32. All other sums and the results are float64.

    Args:
        logits: [rows, vocabulary].
        temperatures: [rows] float64; 0 is greedy and takes the lowest id in a tie.
        rows: [draws] int64 row of each draw.
        uniforms: [draws] float64 in [0, 1); unused if the temperature is 0.

    Returns:
        The ids [draws] int64, and their log-probabilities [draws] float64, which are 0.0 if the temperature is 0, and
        NaN if the row has a NaN among its logits.
    """
    # Every pass over a large vocabulary costs a considerable part of a decoding step, so this code has few passes.
    logits = logits.float()
    is_greedy = temperatures == 0
    if bool(is_greedy.all()):
        largest, likeliest = logits.max(dim=-1)
        return likeliest[rows], torch.where(largest.isnan(), largest.double(), 0.0)[rows]
    if bool((temperatures != 1).any()):
        # The largest logit is subtracted first, because a small temperature could otherwise overflow.
        scales = torch.where(is_greedy, 1.0, temperatures).clamp_(min=torch.finfo(torch.float32).tiny)
        logits = logits.sub(logits.amax(dim=-1, keepdim=True)).div_(scales[:, None].float())
    weights = logits.softmax(dim=-1)
    width = weights.shape[-1]
    block = min(width, BLOCK)
    # The last block of a vocabulary may be incomplete.
    complete = width - width % block
    block_sums = weights[:, :complete].view(len(weights), -1, block).sum(dim=-1)
    if complete < width:
        block_sums = torch.cat([block_sums, weights[:, complete:].sum(dim=-1, keepdim=True)], dim=-1)
    block_edges = block_sums.cumsum(dim=-1, dtype=torch.float64)[rows]
    total = block_edges[:, -1]
    # The first search finds the block, and the second one the id within it.
    block_index, remainder = _find_bins(block_edges, uniforms * total)
    columns = block_index[:, None] * block + torch.arange(block, device=weights.device)
    block_weights = weights[rows[:, None], columns.clamp(max=width - 1)].double().masked_fill_(columns >= width, 0.0)
    index_in_block, _ = _find_bins(block_weights.cumsum(dim=-1), remainder)
    ids = columns.gather(1, index_in_block[:, None])[:, 0]
    logprobs = weights[rows, ids].double().log() - total.log()
    if bool(is_greedy.any()):
        ids = torch.where(is_greedy[rows], logits.max(dim=-1).indices[rows], ids)
        logprobs = torch.where(is_greedy[rows] & ~logprobs.isnan(), 0.0, logprobs)
    return ids, logprobs


def _find_bins(edges: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the bin of each target.

    Args:
        edges: [draws, bins] cumulative sums of the widths of bins.
        targets: [draws]. A target that rounding has put at or behind the last edge belongs to the last non-empty bin.

    Returns:
        The index of the bin [draws] int64, and the distance of the target from the start of its bin [draws].
    """
    last = edges[:, -1]
    targets = torch.minimum(targets, torch.nextafter(last, torch.zeros_like(last)))
    bins = torch.searchsorted(edges, targets[:, None], right=True).clamp_(max=edges.shape[-1] - 1)
    starts = torch.where(bins > 0, edges.gather(1, (bins - 1).clamp_(min=0)), 0.0)
    return bins[:, 0], targets - starts[:, 0]
