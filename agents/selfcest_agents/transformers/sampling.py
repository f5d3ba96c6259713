"""Drawing tokens, so that a draw depends on its row's logits and temperature and on its own uniform alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

BLOCK = 256  # ids are summed up by so many, so that the search for a draw reads one block and not the vocabulary


def uniform_stream(seed: int, length: int) -> npt.NDArray[np.float64]:
    """The first `length` uniforms in [0, 1) of the stream named by `seed`; a longer stream starts the same way."""
    return np.random.Generator(np.random.Philox(seed)).random(length)


def draw(
    logits: torch.Tensor, temperatures: torch.Tensor, rows: torch.Tensor, uniforms: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample from softmax(logits / temperature) by inverting its cumulative sum, any number of times per row.

    Weights of single ids and their sums over a block are of float32, all other sums and what is returned of float64.

    Args:
        logits: [rows, vocabulary].
        temperatures: [rows] float64; 0 takes the likeliest id, the lowest one in a tie.
        rows: [draws] int64, the row that each is from.
        uniforms: [draws] float64 in [0, 1); unused where the temperature is 0.

    Returns:
        ids [draws] int64 and their log-probabilities [draws] float64 (0.0 where the temperature is 0), NaN for a row
        with a NaN among its logits.
    """
    # Over a large vocabulary every pass costs a good part of a decoding step, so there are no more than these.
    logits, greedy = logits.float(), temperatures == 0
    if bool(greedy.all()):
        best, likeliest = logits.max(dim=-1)
        return likeliest[rows], torch.where(best.isnan(), best.double(), 0.0)[rows]
    if bool((temperatures != 1).any()):
        scales = torch.where(greedy, 1.0, temperatures).clamp_(min=torch.finfo(torch.float32).tiny)
        logits = logits.sub(logits.amax(dim=-1, keepdim=True)).div_(scales[:, None].float())
    weights = logits.softmax(dim=-1)
    width = weights.shape[-1]
    block = min(width, BLOCK)
    whole = width - width % block
    sums = weights[:, :whole].view(len(weights), -1, block).sum(dim=-1)
    if whole < width:
        sums = torch.cat([sums, weights[:, whole:].sum(dim=-1, keepdim=True)], dim=-1)
    edges = sums.cumsum(dim=-1, dtype=torch.float64)[rows]
    total = edges[:, -1]
    found, left = _invert(edges, uniforms * total)
    columns = found[:, None] * block + torch.arange(block, device=weights.device)
    inside = weights[rows[:, None], columns.clamp(max=width - 1)].double().masked_fill_(columns >= width, 0.0)
    place, _ = _invert(inside.cumsum(dim=-1), left)
    ids = columns.gather(1, place[:, None])[:, 0]
    logprobs = weights[rows, ids].double().log() - total.log()
    if bool(greedy.any()):
        ids = torch.where(greedy[rows], logits.max(dim=-1).indices[rows], ids)
        logprobs = torch.where(greedy[rows] & ~logprobs.isnan(), 0.0, logprobs)
    return ids, logprobs


def _invert(edges: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Which bin each target falls into, and how far: of `edges` [draws, bins], cumulative sums, and `targets` [draws].

    A target that rounding has put at the end or behind it falls into the last bin of any width.
    """
    last = edges[:, -1]
    targets = torch.minimum(targets, torch.nextafter(last, torch.zeros_like(last)))
    found = torch.searchsorted(edges, targets[:, None], right=True).clamp_(max=edges.shape[-1] - 1)
    before = torch.where(found > 0, edges.gather(1, (found - 1).clamp_(min=0)), 0.0)
    return found[:, 0], targets - before[:, 0]
