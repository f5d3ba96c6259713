"""Tree rows' attention in blocks against a dense one: the same numbers, and fewer of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from test_tree_rows import difference, gradient, in_double, learner_of, sample, tiny
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from selfcest_training.learner import block_attention
from selfcest_training.learner.batch import Sample
from selfcest_training.learner.block_attention import NAME
from selfcest_training.learner.options import ForwardOptions, Rows
from selfcest_training.learner.tree_rows import TreeRow, build_tree_rows, collate_trees

BLOCK = 128


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_attention, "BLOCK", BLOCK)


def group(prompt: int, completion: int, size: int, seed: int = 0) -> list[Sample]:
    """Sorted; each completion begins with an id of its own, so that no more than the prompt is shared."""
    rng = np.random.default_rng(seed)
    first = rng.integers(20, 90, prompt)
    contexts = [(*first, 90 + i, *rng.integers(20, 90, completion - 1)) for i in range(size)]
    return [sample(*map(int, ids), prompt=prompt, advantage=(-1.0) ** i) for i, ids in enumerate(contexts)]


def grouped_llama() -> PreTrainedModel:
    shape = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48}
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=180, num_hidden_layers=2, **shape))  # type: ignore[arg-type, no-untyped-call]


class Heads(torch.nn.Module):
    is_causal, num_key_value_groups = True, 2


def test_the_numbers_are_those_of_a_dense_product() -> None:
    rows = [TreeRow.of(group(70, 60, 4)), TreeRow.of(group(40, 30, 7))]
    layout = collate_trees(rows, pad_id=0).layout
    assert layout is not None
    assert layout.visible is not None
    length = layout.visible.shape[1]
    assert length == 70 + 4 * 60 > 2 * BLOCK
    mask = torch.zeros(layout.visible.shape, dtype=torch.float64).masked_fill_(~layout.visible, float("-inf"))[:, None]
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, heads, length, 8, dtype=torch.float64) for heads in (4, 2, 2))
    want, _ = sdpa_attention_forward(Heads(), query, key, value, mask, scaling=0.3)
    weights = torch.randn_like(want)
    states = [query, key, value]
    gradients = []
    for attend in (sdpa_attention_forward, block_attention.block_attention):
        leaves = [tensor.clone().requires_grad_() for tensor in states]
        found, _ = attend(Heads(), *leaves, mask, scaling=0.3)
        torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-9)
        gradients.append(torch.autograd.grad((found * weights).sum(), leaves))
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-9, atol=1e-9)


def test_half_precision_sums_a_shared_prefix_in_float32() -> None:
    layout = collate_trees([TreeRow.of(group(200, 100, 8))], pad_id=0).layout
    assert layout is not None
    assert layout.visible is not None
    torch.manual_seed(0)
    shapes = [(1, heads, layout.visible.shape[1], 64) for heads in (4, 2, 2)]
    states = [torch.randn(shape).bfloat16().float() for shape in shapes]
    gradients = []
    for dtype in (torch.float32, torch.bfloat16):
        mask = torch.zeros(layout.visible.shape, dtype=dtype).masked_fill_(~layout.visible, float("-inf"))[:, None]
        leaves = [tensor.clone().requires_grad_() for tensor in states]
        # Under autocast queries and keys are float32 and the mask is not.
        output, _ = block_attention.block_attention(Heads(), *leaves, mask)
        assert output.dtype == dtype
        gradients.append(torch.autograd.grad(output.float().square().sum(), leaves))
    for half, exact in zip(gradients[1], gradients[0], strict=True):
        assert float((half - exact).norm() / exact.norm()) < 0.01


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("chunk", [0, 7])
def test_gradients_are_those_of_padded_rows_and_other_tokens_are_not_looked_at(
    monkeypatch: pytest.MonkeyPatch, checkpointing: bool, chunk: int
) -> None:
    pairs: list[int] = []

    flash = block_attention._FLASH

    def counted(query: Any, key: Any, *rest: Any, **options: Any) -> Any:
        pairs.append(query.shape[2] // Heads.num_key_value_groups * key.shape[2])
        return flash(query, key, *rest, **options)

    monkeypatch.setattr(block_attention, "_FLASH", counted)
    samples, model = group(50, 40, 8) + group(60, 50, 6, seed=1), in_double(grouped_llama())
    forward = ForwardOptions(logit_chunk=chunk, gradient_checkpointing=checkpointing)
    padded = gradient(model, samples, Rows.BUCKETED, 10_000)
    assert not pairs
    assert difference(gradient(model, samples, Rows.TREE, 10_000, forward), padded) < 1e-9
    length = 50 + 8 * 40 + 60 + 6 * 50
    times = 2 * (2 if checkpointing else 1)  # layers; the reference model keeps all it computes for itself
    assert sum(pairs) < (times + 2) * length**2 / 2
    assert len(pairs) == (times + 2) * -(-length // BLOCK)


def test_strangers_share_a_row_where_what_is_not_seen_costs_nothing() -> None:
    samples = group(300, 64, 8) + group(300, 64, 8, seed=1)
    assert [len(row) for row in build_tree_rows(samples, max_tokens=10_000, hidden_size=64)] == [812, 812]
    assert [len(row) for row in build_tree_rows(samples, max_tokens=10_000, hidden_size=None)] == [1624]
    assert [len(row) for row in build_tree_rows(samples, max_tokens=1200, hidden_size=None)] == [1176, 748]
    for attention, expected in (("sdpa", 1), ("eager", 2)):
        learner = learner_of(tiny(attention), Rows.TREE, 10_000)
        layouts = [batch.layout for batch in learner.micro_batches(samples)]
        assert sum(len(layout.token_ids) for layout in layouts if layout is not None) == expected


def test_the_model_is_left_as_it_was() -> None:
    model = tiny("sdpa")
    learners = [learner_of(model, rows, 1000) for rows in (Rows.TREE, Rows.BUCKETED)]
    seen: list[str] = []
    model.get_decoder().layers[0].register_forward_hook(lambda *_: seen.append(model.config._attn_implementation))
    for learner in learners:
        for batch in learner.micro_batches(group(20, 10, 3)):
            learner.logprobs(batch)
    assert seen == [NAME, "sdpa"]
    assert model.config._attn_implementation == "sdpa"
