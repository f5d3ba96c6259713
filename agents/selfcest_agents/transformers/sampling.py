"""Drawing one token per row, so that a row's draw depends on its own logits, temperature and uniform alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch


def uniform_stream(seed: int, length: int) -> npt.NDArray[np.float64]:
    """The first `length` uniforms in [0, 1) of the stream named by `seed`; a longer stream starts the same way."""
    return np.random.Generator(np.random.Philox(seed)).random(length)


def draw(logits: torch.Tensor, temperatures: torch.Tensor, uniforms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample from softmax(logits / temperature) by inverting its cumulative sum.

    Weights of single ids are of float32, what is summed up and returned of float64.

    Args:
        logits: [rows, vocabulary].
        temperatures: [rows] float64; 0 takes the likeliest id, the lowest one in a tie.
        uniforms: [rows] float64 in [0, 1); unused where the temperature is 0.

    Returns:
        ids [rows] int64 and their log-probabilities [rows] float64 (0.0 where the temperature is 0), NaN for a row with
        a NaN among its logits.
    """
    # Over a large vocabulary every pass costs a good part of a decoding step, so there are no more than these.
    logits = logits.float()
    best, likeliest = logits.max(dim=-1)
    greedy = temperatures == 0
    if bool(greedy.all()):
        return likeliest, torch.where(best.isnan(), best.double(), 0.0)
    scales = torch.where(greedy, 1.0, temperatures).clamp_(min=torch.finfo(torch.float32).tiny)
    weights = logits.sub(best[:, None]).div_(scales[:, None].float()).exp_()
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    total = cumulative[:, -1]
    # u * total may round up to total itself, where the search would run past the last id that has any probability.
    target = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    sampled = torch.searchsorted(cumulative, target[:, None], right=True)[:, 0].clamp_(max=logits.shape[-1] - 1)
    ids = torch.where(greedy, likeliest, sampled)
    chosen = (logits.gather(1, ids[:, None])[:, 0].double() - best.double()) / scales - total.log()
    return ids, torch.where(greedy & ~best.isnan(), 0.0, chosen)
