"""LoRA: what is added, what trains, and that the sum is what everybody else sees."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from rounding import logprob_rounding, rounding
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from selfcest_agents.engine import TokenRequest
from selfcest_agents.lora import (
    add_lora,
    export_model,
    has_lora,
    load_trainable_state,
    merge_lora,
    merged_weights,
    trainable_state,
    without_lora,
)
from selfcest_agents.lora_options import LoraOptions
from selfcest_agents.pretrained import load_chat_model, smollm2_path
from selfcest_agents.tiny import TinyConfig, build_tiny
from selfcest_agents.transformers.engine import TransformersEngine
from selfcest_env.errors import ConfigError, RecordError

OPTIONS = LoraOptions(rank=4, alpha=8)
IDS = torch.tensor([[1, 20, 21, 22, 23, 24, 25, 26]])


def tiny() -> PreTrainedModel:
    return build_tiny(TinyConfig(hidden_size=32, num_layers=2, num_heads=4, intermediate_size=48), seed=0)


def qwen2() -> PreTrainedModel:
    """Biases, shared key heads, and an output layer of its own."""
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = Qwen2Config(vocab_size=50, intermediate_size=48, tie_word_embeddings=False, **shape)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Qwen2ForCausalLM(config).eval()
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter)
    return model


MODELS = pytest.mark.parametrize("build", [tiny, qwen2])


def trained(model: PreTrainedModel, options: LoraOptions = OPTIONS) -> PreTrainedModel:
    """The model with an adapter that adds something."""
    add_lora(model, options, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(0, 0.1, generator=generator)
    return model


def logits(model: torch.nn.Module) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(input_ids=IDS, use_cache=False).logits
    return found


def far_apart(found: Tensor, other: Tensor) -> bool:
    return float((found - other).detach().abs().max()) > 1e-2


@MODELS
def test_a_new_adapter_changes_no_bit(build: Callable[[], PreTrainedModel]) -> None:
    model = build()
    before = logits(model)
    add_lora(model, OPTIONS, seed=0)
    assert type(model) is type(build())
    assert torch.equal(logits(model), before)


def test_its_size_by_hand() -> None:
    model = tiny()
    add_lora(model, OPTIONS, seed=0)
    # Per layer q, k, v, o are 32 x 32 and gate, up, down 32 x 48: 4 * (4 * (32 + 32) + 3 * (32 + 48)) = 1984.
    assert sum(tensor.numel() for tensor in trainable_state(model).values()) == 2 * 1984
    chosen = tiny()
    add_lora(chosen, LoraOptions(rank=4, target_modules=("q_proj", "mlp.down_proj")), seed=0)
    assert {name.split(".lora_")[0].rpartition(".")[2] for name in trainable_state(chosen)} == {"q_proj", "down_proj"}


def test_it_is_drawn_from_its_seed_alone() -> None:
    models = [tiny() for _ in range(3)]
    random_state = torch.random.get_rng_state()
    add_lora(models[0], OPTIONS, seed=2**63 - 1)
    assert torch.equal(torch.random.get_rng_state(), random_state)
    torch.rand(5)
    add_lora(models[1], OPTIONS, seed=2**63 - 1)
    add_lora(models[2], OPTIONS, seed=0)
    first, again, other = (trainable_state(model) for model in models)
    assert all(torch.equal(first[name], again[name]) for name in first)
    drawn = [name for name in first if ".lora_A." in name]
    assert not any(torch.equal(first[name], other[name]) for name in drawn)
    assert len({float(first[name].sum()) for name in drawn}) == len(drawn), "every layer its own"


@pytest.mark.parametrize("recomputed", [False, True], ids=["kept", "recomputed"])
def test_gradient_flows_into_adapters_alone(recomputed: bool) -> None:
    model = trained(tiny())
    if recomputed:
        model.gradient_checkpointing_enable()
        model.train()
    model(input_ids=IDS, use_cache=False).logits.log_softmax(-1).square().mean().backward()
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 0, name
        else:
            assert parameter.grad is None, name


@MODELS
def test_merged_weights_are_those_of_peft(build: Callable[[], PreTrainedModel]) -> None:
    model, plain = trained(build()), build()
    peft_model = get_peft_model(build(), LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"))
    theirs = dict(peft_model.named_parameters())
    with torch.no_grad():
        for name, tensor in trainable_state(model).items():
            theirs[f"base_model.model.{name}"].copy_(tensor)
    assert torch.equal(logits(peft_model), logits(model)), "the same layers have the same adapters"
    expected = dict(peft_model.merge_and_unload().named_parameters())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = dict(merged_weights(model))
    assert list(found) == [name for name, _ in plain.named_parameters()]
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name
        assert not tensor.requires_grad
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert far_apart(
        found["model.layers.0.mlp.up_proj.weight"], plain.get_parameter("model.layers.0.mlp.up_proj.weight")
    )


@MODELS
def test_merged_weights_compute_what_the_adapter_does(build: Callable[[], PreTrainedModel]) -> None:
    model, plain = trained(build()), build()
    base = logits(plain)
    with torch.no_grad():
        for name, tensor in merged_weights(model):
            plain.get_parameter(name).copy_(tensor)
    expected = logits(model)
    torch.testing.assert_close(logits(plain).log_softmax(-1), expected.log_softmax(-1), atol=rounding(expected), rtol=0)
    assert far_apart(logits(model), base)


def test_merged_weights_of_a_plain_model_are_its_own() -> None:
    model = tiny()
    found = dict(merged_weights(model))
    assert {name: tensor.data_ptr() for name, tensor in found.items()} == {
        name: parameter.data_ptr() for name, parameter in model.named_parameters()
    }


def test_half_precision_is_rounded_once() -> None:
    model = trained(tiny().to(torch.bfloat16))
    state = trainable_state(model)
    assert {tensor.dtype for tensor in state.values()} == {torch.float32}
    layer = "model.layers.1.self_attn.v_proj"
    a, b = (state[f"{layer}.lora_{which}.default.weight"] for which in "AB")
    expected = (model.get_parameter(f"{layer}.base_layer.weight").float() + b @ a * (8 / 4)).to(torch.bfloat16)
    assert torch.equal(dict(merged_weights(model))[f"{layer}.weight"], expected)


@MODELS
def test_without_it_the_model_is_what_it_was(build: Callable[[], PreTrainedModel]) -> None:
    model, base = build(), logits(build())
    trained(model)
    with without_lora(model):
        assert torch.equal(logits(model), base)
    assert far_apart(logits(model), base)
    with pytest.raises(KeyError), without_lora(model):
        raise KeyError
    assert far_apart(logits(model), base)
    assert len(trainable_state(model)) == 2 * 7 * 2, "adapters train as before"
    plain = build()
    with without_lora(plain):
        assert torch.equal(logits(plain), base)


def test_a_reference_inside_a_step_leaves_its_gradient_alone() -> None:
    def gradients(with_reference: bool) -> list[Tensor]:
        model = trained(tiny())
        model.gradient_checkpointing_enable()
        model.train()
        objective = model(input_ids=IDS, use_cache=False).logits.log_softmax(-1).square().mean()
        if with_reference:
            with without_lora(model):
                logits(model)
        objective.backward()
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    alone, beside = gradients(False), gradients(True)
    assert len(alone) == 28
    assert all(map(torch.equal, alone, beside))


@MODELS
def test_after_a_merge_the_next_adapter_begins_there(build: Callable[[], PreTrainedModel]) -> None:
    model = trained(build())
    expected = dict(merged_weights(model))
    merge_lora(model)
    assert not has_lora(model)
    assert {name: parameter.requires_grad for name, parameter in model.named_parameters()} == dict.fromkeys(
        expected, True
    )
    assert all(torch.equal(parameter, expected[name]) for name, parameter in model.named_parameters())
    warm_start = logits(model)
    trained(model, LoraOptions(rank=2))
    with without_lora(model):
        assert torch.equal(logits(model), warm_start)
    assert far_apart(logits(model), warm_start)


def test_there_is_nothing_to_merge_in_a_plain_model() -> None:
    model = tiny().requires_grad_(False)
    merge_lora(model)
    assert trainable_state(model) == {}


def test_state_goes_through_a_file(tmp_path: Path) -> None:
    model, other = trained(tiny()), tiny()
    save_file(trainable_state(model), tmp_path / "adapter.safetensors")
    add_lora(other, OPTIONS, seed=7)
    load_trainable_state(other, load_file(tmp_path / "adapter.safetensors"))
    assert torch.equal(logits(other), logits(model))
    plain, copy = build_tiny(TinyConfig(), seed=3), build_tiny(TinyConfig(), seed=4)
    load_trainable_state(copy, trainable_state(plain))
    assert torch.equal(logits(copy), logits(plain))


def test_state_of_another_rank_is_refused_whole() -> None:
    model = trained(tiny())
    before = {name: tensor.clone() for name, tensor in trainable_state(model).items()}
    state = dict(trainable_state(trained(tiny(), LoraOptions(rank=2))))
    with pytest.raises(
        RecordError,
        match=r"28 tensors .*'model.layers.0.mlp.down_proj.lora_A.default.weight': .* \(2, 48\), expected \(4, 48\)",
    ):
        load_trainable_state(model, state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in trainable_state(model).items())


@MODELS
def test_exported_it_is_a_plain_model(build: Callable[[], PreTrainedModel], tmp_path: Path) -> None:
    model = trained(build())
    expected = logits(model)
    export_model(model, tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    found = logits(loaded).log_softmax(-1)
    torch.testing.assert_close(found, expected.log_softmax(-1), atol=rounding(expected), rtol=0)
    assert not has_lora(loaded)
    assert sorted(p.name for p in tmp_path.iterdir() if "adapter" in p.name) == []
    assert torch.equal(logits(model), expected)


def test_an_engine_samples_from_the_sum() -> None:
    def sampled(engine: TransformersEngine) -> tuple[tuple[int, ...], tuple[float, ...]]:
        engine.submit([TokenRequest("a", tuple(IDS[0].tolist()), 24, seed=5, temperature=1.0)])
        (completion,) = engine.poll()
        return completion.token_ids, completion.logprobs

    model, copy = tiny(), tiny()
    shared, pushed = (TransformersEngine(each, stop_ids=()) for each in (model, copy))
    base = sampled(pushed)
    trained(model)
    shared.policy_version = 1
    pushed.load_weights(merged_weights(model), 1)
    (ids, logprobs), (pushed_ids, pushed_logprobs) = sampled(shared), sampled(pushed)
    assert ids == pushed_ids
    assert logprobs == pytest.approx(pushed_logprobs, abs=logprob_rounding(model))
    assert ids != base[0]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rank": 0}, "LoraOptions.rank is 0; expected a whole number >= 1 and <= 65536"),
        ({"alpha": math.nan}, "LoraOptions.alpha is nan"),
        ({"dropout": 0.1}, r"LoraOptions.dropout is 0.1; expected one of 0.0 \(with dropout"),
    ],
)
def test_wrong_options_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LoraOptions(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (("q_proj", "qproj"), "no such linear layer 'qproj' .* it has down_proj, gate_proj, .* Did you mean 'q_proj'"),
        (("lm_head",), "the output layer takes no adapter"),
        (("embed_tokens",), "no such linear layer 'embed_tokens'"),
        (("proj",), "no such linear layer 'proj'"),
    ],
)
def test_layers_that_are_not_there_are_refused(targets: tuple[str, ...], message: str) -> None:
    model = tiny()
    with pytest.raises(ConfigError, match=message):
        add_lora(model, LoraOptions(target_modules=targets), seed=0)
    assert not has_lora(model)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_second_adapter_is_refused() -> None:
    model = trained(tiny())
    with pytest.raises(ConfigError, match="merge it with merge_lora"):
        add_lora(model, OPTIONS, seed=0)


def test_without_peft_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny()
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[lora\]'"):
        add_lora(model, OPTIONS, seed=0)
    merge_lora(model)
    assert len(dict(merged_weights(model))) == len(list(model.parameters()))


@pytest.fixture
def smollm2() -> Iterator[PreTrainedModel]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield load_chat_model(smollm2_path()).model
    torch.set_num_threads(threads)


@pytest.mark.slow
def test_a_real_model(smollm2: PreTrainedModel, tmp_path: Path) -> None:
    base = logits(smollm2).log_softmax(-1)
    model = deepcopy(smollm2)
    add_lora(model, LoraOptions(), seed=0)
    assert torch.equal(logits(model).log_softmax(-1), base)
    # 30 layers: q and o 576 x 576, k and v 576 x 192, three of 576 x 1536; rank 16.
    assert sum(tensor.numel() for tensor in trainable_state(model).values()) == 30 * 16 * (
        2 * (576 + 576) + 2 * (576 + 192) + 3 * (576 + 1536)
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(0, 0.003)
    expected = logits(model).log_softmax(-1)
    assert far_apart(expected, base)
    with without_lora(model):
        assert torch.equal(logits(model).log_softmax(-1), base)
    export_model(model, tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    found = logits(loaded).log_softmax(-1)
    assert float((found - expected).abs().max()) < 1e-3, "float32, 30 layers; likely ids have smaller differences"
    assert float((found.exp() - expected.exp()).abs().max()) < 1e-5
