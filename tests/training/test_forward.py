"""The forward pass of the learner: which logits exist, what is kept for the backward pass, in which precision."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import pytest
import torch
from rounding import rounding
from test_tree_rows import difference, gradient, in_double, random_samples, sample, tiny
from torch.autograd.graph import saved_tensors_hooks
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from selfcest_agents.transformers.engine import TransformersEngine
from selfcest_env.errors import ConfigError
from selfcest_training.learner import eager_attention
from selfcest_training.learner import forward as forward_module
from selfcest_training.learner.batch import TokenBatch, collate
from selfcest_training.learner.forward import Forward
from selfcest_training.learner.options import ForwardOptions, OptimizerConfig, Precision, Rows
from selfcest_training.learner.packed_rows import check_packed, collate_packed, pack_rows
from selfcest_training.learner.tree_rows import TreeRow, collate_trees
from selfcest_training.learner.update import Learner

SMALL = {
    "vocab_size": 180,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
HALF = Precision.BFLOAT16


def built(kind: Callable[[PreTrainedConfig], PreTrainedModel], config: PreTrainedConfig) -> PreTrainedModel:
    torch.manual_seed(0)
    model = kind(config)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)  # logits far from 0, where a cap bends them
    return model.eval()  # type: ignore[no-untyped-call]


def llama(**options: float) -> PreTrainedModel:
    return built(LlamaForCausalLM, LlamaConfig(**SMALL, **options))  # type: ignore[arg-type]


def some_batch() -> TokenBatch:
    return collate(random_samples(1)[0], pad_id=0)


def plain_logprobs(model: PreTrainedModel, batch: TokenBatch) -> torch.Tensor:
    """What the docstring says, with all logits at once."""
    logits = model(input_ids=batch.token_ids).logits[:, :-1] / batch.temperature[:, 1:, None]
    chosen = torch.log_softmax(logits, -1).gather(2, batch.token_ids[:, 1:, None])[..., 0]
    return torch.nn.functional.pad(torch.where(batch.loss_mask[:, 1:], chosen, 0.0), (1, 0))


@contextmanager
def kept_for_backward() -> Iterator[dict[int, torch.Size]]:
    """Shapes of what autograd keeps, by storage."""
    found: dict[int, torch.Size] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found[tensor.untyped_storage().data_ptr()] = tensor.shape
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        yield found


@pytest.mark.parametrize("chunk", [0, 1, 7, 100_000])
def test_logprobs_are_those_of_whole_logits_where_a_token_trains(chunk: int) -> None:
    model, batch = in_double(tiny()), some_batch()
    found = Forward(model, ForwardOptions(logit_chunk=chunk)).logprobs(batch)
    torch.testing.assert_close(found, plain_logprobs(model, batch), rtol=1e-9, atol=1e-9)
    assert int((found != 0).sum()) == int(batch.loss_mask.sum())


def test_an_id_that_nothing_precedes_has_no_logprob() -> None:
    batch = collate([sample(5, 6, 7, prompt=0)], pad_id=0)
    assert (Forward(tiny()).logprobs(batch)[0] != 0).tolist() == [False, True, True]


@pytest.mark.parametrize("rows", [collate, lambda samples, pad_id: collate_trees([TreeRow.of(samples)], pad_id)])
def test_logits_exist_a_chunk_at_a_time_and_are_not_kept(
    rows: Callable[..., TokenBatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward_module, "MAX_KEPT_LOGITS", 0)
    model, most = tiny("sdpa"), []
    samples = sorted(random_samples(2)[0], key=lambda sample: sample.token_ids.tolist())
    model.get_output_embeddings().register_forward_hook(lambda _, __, logits: most.append(logits.shape.numel()))  # type: ignore[union-attr]
    forward = Forward(model, ForwardOptions(logit_chunk=5))
    batch = rows(samples, pad_id=0)
    most.clear()
    with kept_for_backward() as kept:
        logprobs = forward.logprobs(batch)
    num_chunks = -(-int(batch.loss_mask.sum()) // 5)
    assert len(most) == num_chunks > 3
    logprobs.sum().backward()  # type: ignore[no-untyped-call]
    assert len(most) == 2 * num_chunks, "made again"
    assert max(most) == 5 * model.config.vocab_size
    assert not [shape for shape in kept.values() if shape[-1] == model.config.vocab_size]


def test_few_logits_are_kept_and_give_the_same_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = some_batch()
    num_logits = int(batch.loss_mask[:, 1:].sum()) * tiny().config.vocab_size
    gradients = []
    for limit in (num_logits - 1, num_logits):
        model, passes = tiny(), []
        monkeypatch.setattr(forward_module, "MAX_KEPT_LOGITS", limit)
        forward = Forward(model, ForwardOptions(logit_chunk=5))
        model.get_output_embeddings().register_forward_hook(lambda *_, passes=passes: passes.append(1))  # type: ignore[union-attr, misc]
        forward.logprobs(batch).sum().backward()  # type: ignore[no-untyped-call]
        num_chunks = -(-int(batch.loss_mask[:, 1:].sum()) // 5)
        assert len(passes) == (2 if limit < num_logits else 1) * num_chunks
        gradients.append(torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]))
    assert torch.equal(*gradients)


@pytest.mark.parametrize("heads", [2, 4])  # with 4 the scale is 1 / sqrt(8), no power of two
@pytest.mark.parametrize("max_scores", [1, 5000, 1 << 30])
@pytest.mark.parametrize("rows", [collate, lambda samples, pad_id: collate_trees([TreeRow.of(samples)], pad_id)])
def test_eager_attention_by_parts_is_that_of_transformers(
    rows: Callable[..., TokenBatch], max_scores: int, heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eager_attention, "MAX_SCORES", max_scores)
    samples = sorted(random_samples(heads)[0], key=lambda sample: sample.token_ids.tolist())
    batch = rows(samples, pad_id=0)
    results = []
    for by_parts in (False, True):
        options = {**SMALL, "num_attention_heads": heads, "num_key_value_heads": heads}
        model = built(LlamaForCausalLM, LlamaConfig(**options))
        model.set_attn_implementation("eager")
        forward = Forward(model)
        assert forward._uses_eager_attention
        forward._uses_eager_attention = by_parts
        logprobs = forward.logprobs(batch)
        assert model.config._attn_implementation == "eager"
        (logprobs * torch.linspace(-1, 1, logprobs.numel()).view_as(logprobs)).sum().backward()  # type: ignore[no-untyped-call]
        gradients = [weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]
        results.append(torch.cat([logprobs.flatten(), *gradients]))
    # Bit for bit on most processors. On some with AVX2 alone, a product by parts is rounded otherwise.
    torch.testing.assert_close(*results, rtol=0, atol=rounding(results[0], ulps=4))


def test_only_a_plain_llama_with_eager_attention_is_computed_by_parts() -> None:
    def uses(model: PreTrainedModel, **options: Any) -> bool:
        return Forward(model, ForwardOptions(**options))._uses_eager_attention

    assert uses(tiny("eager"))
    assert not uses(tiny("sdpa"))
    assert not uses(in_double(tiny("eager")))
    assert not uses(tiny("eager"), gradient_checkpointing=True)
    assert not uses(tiny("eager"), autocast=HALF)
    grouped = llama()  # two heads read the same keys
    grouped.set_attn_implementation("eager")
    assert not uses(grouped)
    other = built(Qwen2ForCausalLM, Qwen2Config(**{**SMALL, "num_key_value_heads": 4}))
    other.set_attn_implementation("eager")
    assert not uses(other)


def test_checkpointing_keeps_less_and_leaves_the_model_as_it_was() -> None:
    model, batch = tiny("sdpa"), some_batch()
    sizes = []
    for checkpointing in (False, True):
        forward = Forward(model, ForwardOptions(gradient_checkpointing=checkpointing))
        with kept_for_backward() as kept:
            forward.logprobs(batch)
        sizes.append(sum(shape.numel() for shape in kept.values()))
    assert sizes[1] < sizes[0] / 2
    assert not any(module.training for module in model.modules())
    # Layers in training mode would refuse a cache.
    ids = torch.tensor([[1, 2, 3]])
    assert model(input_ids=ids, use_cache=True).past_key_values.get_seq_length() == 3


def test_nothing_drops_out_in_the_learner() -> None:
    model, batch = llama(attention_dropout=0.9), some_batch()
    expected = Forward(model).logprobs(batch)
    found = Forward(model, ForwardOptions(gradient_checkpointing=True)).logprobs(batch)
    assert torch.equal(found, expected)
    model.zero_grad()
    expected.sum().backward()  # type: ignore[no-untyped-call]
    first = model.get_input_embeddings().weight.grad
    model.zero_grad()
    found.sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(model.get_input_embeddings().weight.grad, first)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("chunk", [0, 16])
@pytest.mark.parametrize("rows", [Rows.BUCKETED, Rows.TREE])
def test_bfloat16_computes_in_half_and_leaves_weights_gradients_and_logprobs_in_float32(
    attention: str, chunk: int, rows: Rows
) -> None:
    model, (samples, _) = tiny(attention), random_samples(3)
    half = ForwardOptions(autocast=HALF, logit_chunk=chunk)
    exact = gradient(model, samples, rows, 300)
    rounded = gradient(model, samples, rows, 300, half)
    assert 1e-4 < difference(rounded, exact) < 0.5  # of fresh weights, whose gradients nearly cancel
    learner = Learner(deepcopy(model), OptimizerConfig(), pad_id=0, micro_batch_tokens=300, rows=rows, forward=half)
    dtypes = []
    for layer in learner.model.get_decoder().layers:
        layer.mlp.register_forward_hook(lambda _, __, out: dtypes.append(out.dtype))
    for batch in learner.micro_batches(samples):
        logprobs = learner.logprobs(batch)
        assert logprobs.dtype == torch.float32
        assert float((logprobs - Forward(model).logprobs(batch)).abs().max().detach()) < 0.1
        logprobs.sum().backward()  # type: ignore[no-untyped-call]
    assert set(dtypes) == {torch.bfloat16}
    assert {weight.dtype for weight in learner.model.parameters()} == {torch.float32}
    assert {weight.grad.dtype for weight in learner.model.parameters() if weight.grad is not None} == {torch.float32}


OTHER_HEADS = [
    (Gemma2ForCausalLM, Gemma2Config(**SMALL, head_dim=8, final_logit_softcapping=5.0, query_pre_attn_scalar=8)),
    (GraniteForCausalLM, GraniteConfig(**SMALL, logits_scaling=4.0)),
    (CohereForCausalLM, CohereConfig(**SMALL, logit_scale=0.25)),
]


@pytest.mark.parametrize(("kind", "config"), OTHER_HEADS, ids=["capped", "divided", "scaled"])
def test_logits_that_are_more_than_their_output_layer_are_not_cut_into_chunks(
    kind: Callable[[PreTrainedConfig], PreTrainedModel], config: PreTrainedConfig
) -> None:
    model, batch = built(kind, config), some_batch()
    with pytest.raises(ConfigError, match=rf"logit_chunk is 256 and the logits of {kind.__name__}.*set .* to 0"):
        Forward(model)
    found = Forward(model, ForwardOptions(logit_chunk=0)).logprobs(batch)
    torch.testing.assert_close(found, plain_logprobs(model, batch), rtol=1e-4, atol=1e-4)


def test_other_families_are_cut_into_chunks() -> None:
    model, batch = built(Qwen2ForCausalLM, Qwen2Config(**SMALL)), some_batch()
    torch.testing.assert_close(Forward(model).logprobs(batch), plain_logprobs(model, batch), rtol=1e-4, atol=1e-4)


def test_models_that_order_their_arguments_otherwise_have_tree_rows_too() -> None:
    sizes = {"vocab_size": 180, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2}
    model, (samples, _) = built(GPT2LMHeadModel, GPT2Config(**sizes)), random_samples(0)
    expected = gradient(model, samples, Rows.BUCKETED, 300)
    assert difference(gradient(model, samples, Rows.TREE, 300), expected) < 1e-5


def test_a_model_that_gives_all_logits_is_not_read_at_the_wrong_places() -> None:
    class Generous(LlamaForCausalLM):
        def forward(self, *args: Any, logits_to_keep: object = 0, **given: Any) -> Any:
            return super().forward(*args, **given)

    model, batch = built(Generous, LlamaConfig(**SMALL)), some_batch()
    with pytest.raises(ConfigError, match="Generous computes the logits of all positions.*set forward.logit_chunk"):
        Forward(model, ForwardOptions(logit_chunk=0)).logprobs(batch)
    torch.testing.assert_close(Forward(model).logprobs(batch), plain_logprobs(model, batch), rtol=1e-4, atol=1e-4)


def test_options_may_be_plain_words() -> None:
    model, batch = llama(), some_batch()
    expected = Forward(model, ForwardOptions(HALF)).logprobs(batch)
    assert torch.equal(Forward(model, ForwardOptions("bfloat16")).logprobs(batch), expected)  # type: ignore[arg-type]
    assert not torch.equal(Forward(model).logprobs(batch), expected)


@pytest.mark.parametrize("supported", [True, False])
def test_a_cpu_without_bfloat16_is_named(supported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: supported)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        Forward(llama(), ForwardOptions(HALF))
        Forward(llama())
        TransformersEngine(llama().to(torch.bfloat16), stop_ids=())
        TransformersEngine(llama(), stop_ids=())
    advice = [str(item.message).rpartition("; ")[2] for item in found]
    expected = [
        "set forward.autocast to float32",
        "load the model in float32 (sampler.options.dtype: float32)",
    ]
    assert advice == ([] if supported else expected)


@pytest.mark.parametrize("forward", [ForwardOptions(), ForwardOptions(HALF, 16, gradient_checkpointing=True)])
@pytest.mark.parametrize("rows", [Rows.BUCKETED, Rows.TREE])
def test_adapters_alone_train_and_at_first_change_nothing(forward: ForwardOptions, rows: Rows) -> None:
    peft = pytest.importorskip("peft")
    model, (samples, _) = tiny("sdpa"), random_samples(4)
    config = peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(deepcopy(model), config).eval()
    adapted.gradient_checkpointing_enable = adapted.base_model.model.gradient_checkpointing_enable
    learner, plain = (
        Learner(m, OptimizerConfig(), pad_id=0, micro_batch_tokens=300, rows=rows, forward=forward)
        for m in (adapted, model)
    )
    for batch in learner.micro_batches(samples):
        logprobs = learner.logprobs(batch)
        assert torch.equal(logprobs, plain.logprobs(batch))
        logprobs.sum().backward()  # type: ignore[no-untyped-call]
    trained = {name for name, weight in adapted.named_parameters() if weight.grad is not None and weight.grad.any()}
    assert trained
    assert all("lora_B" in name for name in trained), "A meets B = 0"


def test_weights_in_half_precision_are_refused_unless_they_are_frozen() -> None:
    model = llama().to(torch.bfloat16)
    with pytest.raises(ConfigError, match=r"trains and is bfloat16.*load the model in float32.*forward.autocast"):
        Forward(model)
    Forward(model.requires_grad_(False))  # type: ignore[arg-type]


def test_options_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="autocast is 'float16'. Did you mean 'bfloat16'"):
        ForwardOptions(autocast="float16")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="logit_chunk is -1"):
        ForwardOptions(logit_chunk=-1)


@pytest.mark.slow
def test_a_compiled_model_has_the_same_gradient() -> None:
    model, (samples, _) = tiny("sdpa"), random_samples(0)
    expected = gradient(model, samples, Rows.TREE, 300)
    found = gradient(model, samples, Rows.TREE, 300, ForwardOptions(compile=True))
    assert difference(found, expected) < 1e-5


def test_a_packed_row_by_hand() -> None:
    contexts = [sample(1, 2, 11, prompt=2), sample(1, 7, 8, 9, prompt=1), sample(3, 4, prompt=1)]
    assert [[len(one) for one in row] for row in pack_rows(contexts, max_tokens=7)] == [[3, 4], [2]]
    batch = collate_packed(contexts, pad_id=0)
    layout = batch.layout
    assert layout is not None
    assert layout.positions is not None
    assert layout.token_ids.tolist() == [[1, 2, 11, 1, 7, 8, 9, 3, 4]]
    assert layout.positions.tolist() == [[0, 1, 2, 0, 1, 2, 3, 0, 1]]
    assert layout.sources.tolist() == [[0, 0, 0, 0, 0], [1, 3, 4, 5, 7]]
    assert batch.token_ids[batch.loss_mask].tolist() == [11, 7, 8, 9, 4]
    assert batch.num_tokens == 9


def test_packed_rows_warn_of_a_dense_mask_and_refuse_what_cannot_tell_contexts_apart() -> None:
    with pytest.warns(UserWarning, match="'sdpa' masks a row densely"):
        check_packed("M", "sdpa", {"full_attention"})
    check_packed("M", "flash_attention_2", {"full_attention", "sliding_attention"})
    with pytest.raises(ConfigError, match="layers of linear_attention"):
        check_packed("M", "flash_attention_2", {"full_attention", "linear_attention"})
    with pytest.raises(ConfigError, match="attention is 'paged'"):
        check_packed("M", "paged", {"full_attention"})
