"""How far apart float32 results may lie that differ by the order of their sums alone: another batch, another processor.

The error of a sum of products grows with the products, so it is allowed for by the largest result, never absolutely.
"""

from __future__ import annotations

import torch


def rounding(values: torch.Tensor, ulps: int = 256) -> float:
    """So many units in the last place of the largest value; 256 are 3e-5 of it in float32."""
    return ulps * torch.finfo(values.dtype).eps * float(values.detach().abs().max())


def logprob_rounding(model: torch.nn.Module, temperature: float = 1.0) -> float:
    """The same for log-probs of a causal language model: they are as exact as its logits."""
    ids = torch.arange(32)[None] + 1
    with torch.inference_mode():
        return rounding(model(input_ids=ids).logits) / temperature
