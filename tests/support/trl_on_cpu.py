"""What TRL's `AsyncGRPOTrainer` needs to run without a GPU: attention over its packed trees, and no look at the GPU."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F


def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the test ends, TRL's trainer can be built and run on a CPU."""
    from trl.experimental.async_grpo import async_grpo_trainer, packing

    monkeypatch.setattr(async_grpo_trainer, "get_peak_flops_per_device", lambda *_: None)
    monkeypatch.setattr(packing, "tree_attention", tree_attention)  # its own is a kernel of a hub


def tree_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    tree_kv_index: Tensor,
    tree_cu_seqlens_q: Tensor,
    tree_cu_seqlens_k: Tensor,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """[1, N, heads, size] from queries, keys and values [1, heads, N, size]: segments see the path from the root to
    themselves, of which `tree_kv_index` holds the places and `tree_cu_seqlens_k` the ends."""
    assert not sliding_window
    assert not softcap
    (q, k, v), out = (x[0].transpose(0, 1) for x in (query, key, value)), []
    begins, paths = tree_cu_seqlens_q.tolist(), tree_cu_seqlens_k.tolist()
    for (start, end), (first, last) in zip(pairwise(begins), pairwise(paths), strict=True):
        path = tree_kv_index[first:last]
        seen = torch.ones(end - start, last - first, dtype=torch.bool).tril(last - first - (end - start))
        one = F.scaled_dot_product_attention(
            q[start:end].transpose(0, 1),
            k[path].transpose(0, 1),
            v[path].transpose(0, 1),
            attn_mask=seen,
            scale=scaling,
            enable_gqa=k.shape[1] != q.shape[1],
        )
        out.append(one.transpose(0, 1))
    return torch.cat(out)[None], None
