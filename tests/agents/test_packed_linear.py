"""Packed layers against plain ones: same products, and never those of weights that have changed since."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from rounding import rounding
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from selfcest_agents.engine import TokenRequest
from selfcest_agents.transformers.engine import TransformersEngine
from selfcest_agents.transformers.packed_linear import PackedLinears


def layer(dtype: torch.dtype = torch.float32, bias: bool = True) -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(512, 768, bias=bias, dtype=dtype)


def is_packed(module: torch.nn.Module) -> bool:
    return "forward" in vars(module)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("dtype", "ulps"), [(torch.float32, 64), (torch.bfloat16, 4)])
def test_products_are_those_of_the_plain_layer(dtype: torch.dtype, ulps: int, bias: bool) -> None:
    linear = layer(dtype, bias)
    packs = dtype is torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported()  # older processors do not
    rows = torch.randn(3, 70, 512, dtype=dtype)
    with torch.inference_mode():
        inputs = (rows, rows[:, -1], rows[:, -1:], rows[0, :1], rows[:, ::7])
        want = [linear(x) for x in inputs]
        with PackedLinears(linear).use():
            assert is_packed(linear) == packs
            found = [linear(x) for x in inputs]
    assert not is_packed(linear)
    for a, b in zip(found, want, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        torch.testing.assert_close(a, b, atol=rounding(b, ulps), rtol=0)


def test_changed_weights_are_packed_anew() -> None:
    linear, rows = layer(), torch.randn(4, 512)
    packed = PackedLinears(linear)

    def check() -> None:
        with torch.inference_mode(), packed.use():
            found = linear(rows)
        expected = linear(rows)
        torch.testing.assert_close(found, expected, atol=rounding(expected), rtol=0)

    check()
    linear(rows).sum().backward()
    torch.optim.AdamW(linear.parameters(), lr=0.1).step()
    check()
    linear.weight.data = torch.randn(768, 512)
    check()
    linear.weight.data.mul_(2)  # which torch does not count
    packed.clear()
    check()
    torch.optim.AdamW(linear.parameters(), lr=0.1, fused=True).step()  # nor this
    packed.clear()
    check()


def test_cleared_nothing_is_kept() -> None:
    linear, kept = layer(), list[Tensor]()
    packed = PackedLinears(linear)
    with packed.use():
        kept = [tensor for tensor in gc.get_objects() if type(tensor) is Tensor and tensor.is_mkldnn]
        assert len(kept) == 1
    references = [weakref.ref(tensor) for tensor in kept]
    kept.clear()
    packed.clear()
    assert [reference() for reference in references] == [None]


def test_layers_are_given_back_after_an_error() -> None:
    linear = layer()
    with pytest.raises(KeyError), PackedLinears(linear).use():
        raise KeyError
    assert not is_packed(linear)


def test_small_and_foreign_layers_are_left_alone() -> None:
    class Scaled(torch.nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) * 2

    for module in (torch.nn.Linear(64, 64), Scaled(512, 768), layer(torch.float64), layer().to("meta")):
        with PackedLinears(module).use():
            assert not is_packed(module)


def test_an_engine_samples_from_what_the_learner_has_just_changed() -> None:
    """The weights are shared and nothing is said: in-place changes are noticed all the same."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 512, "intermediate_size": 512, "num_hidden_layers": 1}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, initializer_range=0.3)).eval()
    engine = TransformersEngine(model, stop_ids=())
    for step in range(2):
        engine.submit([TokenRequest(f"r{step}", (1, 2, 3), 8, 0)])
        (made,) = engine.poll()
        ids = torch.tensor([[1, 2, 3, *made.token_ids]])
        with torch.no_grad():
            logits = model(ids).logits[0, 2:-1]
            want = logits.double().log_softmax(-1).gather(1, ids[0, 3:, None])[:, 0]
            torch.testing.assert_close(torch.tensor(made.logprobs).double(), want, atol=rounding(logits), rtol=0)
            for parameter in model.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
