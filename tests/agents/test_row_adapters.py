"""One engine with an adapter per role, against an engine with merged weights for each role."""

from __future__ import annotations

import random
from copy import deepcopy

import pytest
import torch
from rounding import logprob_rounding, rounding
from transformers import LlamaForCausalLM, PreTrainedModel

from selfcest_agents.engine import Completion, TokenRequest
from selfcest_agents.lora import add_lora, merged_weights, use_adapter
from selfcest_agents.lora_options import LoraOptions
from selfcest_agents.samplers import TransformersSampler
from selfcest_agents.tiny import TinyConfig, build_tiny
from selfcest_agents.transformers.engine import TransformersEngine
from selfcest_agents.transformers.prefix_store import BLOCK
from selfcest_agents.transformers.row_adapters import RowAdapters
from selfcest_env.errors import ConfigError
from selfcest_env.protocol import Brief
from selfcest_env.text.protocols import make_protocol
from selfcest_env.types import Role

STOPS = tuple(range(20, 30))
VOCAB = 195


def base_model() -> LlamaForCausalLM:
    model = build_tiny(TinyConfig(hidden_size=32, num_layers=2, max_positions=256), 0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(8)  # far from uniform, so that mistakes show
    return model


def model_with_roles(dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Return a model whose two adapters differ and change its outputs much."""
    model = base_model().to(dtype)
    model.set_attn_implementation("sdpa")  # guesses need it
    add_lora(model, LoraOptions(rank=4, alpha=8, per_role=True), seed=1)
    change_adapters(model, seed=2)
    return model


def change_adapters(model: PreTrainedModel, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(0, 0.3, generator=generator)


def make_requests() -> list[TokenRequest]:
    """Return requests of both roles. Each context is asked by both, and half of the contexts share a long prefix."""
    rng = random.Random(0)
    prefix = tuple(rng.randrange(VOCAB) for _ in range(40))
    requests = []
    for i in range(16):
        context = tuple(rng.randrange(VOCAB) for _ in range(rng.randint(1, 30)))
        context = (*prefix, *context) if i % 2 else context
        for role in rng.sample(list(Role), 2):
            requests.append(TokenRequest(f"{role}{i}", context, rng.randint(1, 30), i, 0.8, role))
    return requests


def drain(engine: TransformersEngine) -> dict[str, Completion]:
    completions: dict[str, Completion] = {}
    while engine.pending:
        completions |= {completion.key: completion for completion in engine.poll()}
    return completions


def play_merged(model: PreTrainedModel, requests: list[TokenRequest]) -> dict[str, Completion]:
    """Play each role's requests with a plain engine, whose weights have the adapter of this role merged."""
    completions: dict[str, Completion] = {}
    for role in Role:
        engine = TransformersEngine(base_model(), stop_ids=STOPS, max_batch_size=7)
        with use_adapter(model, role):
            engine.load_weights(merged_weights(model), 0)
        engine.submit([request for request in requests if request.role is role])
        completions |= drain(engine)
    return completions


def check_equal(model: PreTrainedModel, found: dict[str, Completion], expected: dict[str, Completion]) -> None:
    assert found.keys() == expected.keys()
    for key, completion in expected.items():
        assert found[key].token_ids == completion.token_ids
        assert found[key].logprobs == pytest.approx(completion.logprobs, abs=logprob_rounding(model, 0.8))


@pytest.mark.parametrize(
    ("prefix_tokens", "draft_tokens"),
    [
        pytest.param(0, 0, marks=pytest.mark.slow),
        pytest.param(500, 0, marks=pytest.mark.slow),
        pytest.param(100_000, 0, marks=pytest.mark.slow),
        (500, 4),
    ],
)
def test_rows_of_both_roles_in_one_engine_are_those_of_two_merged_models(prefix_tokens: int, draft_tokens: int) -> None:
    model = model_with_roles()
    engine = TransformersEngine(
        model, stop_ids=STOPS, max_batch_size=7, prefix_tokens=prefix_tokens, draft_tokens=draft_tokens
    )
    requests = make_requests()
    engine.submit(requests)
    found = drain(engine)
    check_equal(model, found, play_merged(model, requests))
    different = [found[f"{Role.ROOT}{i}"].token_ids != found[f"{Role.CLONE}{i}"].token_ids for i in range(16)]
    assert sum(different) > 8, "the same context and seed, another adapter"


def test_a_step_of_both_roles_is_one_pass() -> None:
    model = model_with_roles()
    engine = TransformersEngine(model, stop_ids=())
    engine.submit([TokenRequest(str(i), (40 + i,), 5, i, 1.0, role) for i, role in enumerate([*Role] * 4)])
    batch_sizes: list[int] = []
    hook = model.register_forward_hook(
        lambda _module, _args, kwargs, _output: batch_sizes.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    drain(engine)
    hook.remove()
    assert batch_sizes == [8] * 5


@pytest.mark.slow
def test_changed_adapters_are_used_at_once() -> None:
    model = model_with_roles()
    engine = TransformersEngine(model, stop_ids=STOPS, prefix_tokens=500)
    requests = make_requests()
    for version in (1, 2):
        engine.submit(requests)
        check_equal(model, drain(engine), play_merged(model, requests))
        change_adapters(model, seed=2 + version)
        engine.policy_version = version


def test_the_layers_are_given_back() -> None:
    model = model_with_roles()
    adapters = RowAdapters(model)
    with pytest.raises(KeyError), adapters.use():
        raise KeyError
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_mixed_pass_computes_what_peft_does(dtype: torch.dtype) -> None:
    model = model_with_roles(dtype)
    ids = torch.tensor([[1, 20, 21, 22, 23], [1, 30, 31, 32, 33], [1, 40, 41, 42, 43]])
    roles = [Role.CLONE, Role.ROOT, Role.CLONE]
    adapters = RowAdapters(model)
    with torch.no_grad(), adapters.use():
        adapters.select(roles)
        found = model(input_ids=ids, use_cache=False).logits
    for row, role in enumerate(roles):
        with torch.no_grad(), use_adapter(model, role):
            expected = model(input_ids=ids[row : row + 1], use_cache=False).logits[0]
        # bfloat16 has 8 bits, and its layers round the sums of this pass and of peft's at other places.
        ulps = 256 if dtype is torch.float32 else 16
        torch.testing.assert_close(found[row], expected, atol=rounding(expected, ulps), rtol=0)


def test_roles_of_one_adapter_share_rows() -> None:
    """Without an adapter per role, a root and a clone with the same context are one row."""
    model = base_model()
    add_lora(model, LoraOptions(rank=4), seed=1)
    engine = TransformersEngine(deepcopy(model), stop_ids=())
    engine.submit([TokenRequest(role, (40, 41), 3, 0, 0.0, role) for role in Role])
    sizes: list[int] = []
    hook = engine._model.register_forward_hook(
        lambda _module, _args, kwargs, _output: sizes.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    drain(engine)
    hook.remove()
    assert sizes == [1] * 4


@pytest.mark.parametrize("protocol", ["hermes", "hermes_each", "terse", "terse_budget"])
def test_contexts_of_root_and_clone_share_no_block(protocol: str) -> None:
    """A cache that adapters of both roles share (LRAgent, arXiv 2602.01053) would have nothing to share."""
    briefs = [Brief(role, "Add all entries.", ("A",), {"A": "1 2 3"}, True, True, 4000) for role in Role]
    texts = []
    for brief in briefs:
        messages = make_protocol(protocol).open(brief)
        texts.append("".join(part.text for message in messages for part in message.parts))
    num_equal = next(i for i, (root, clone) in enumerate(zip(*texts, strict=False)) if root != clone)
    assert num_equal < BLOCK


def test_a_copy_of_another_dtype_needs_merged_adapters() -> None:
    with pytest.raises(ConfigError, match="merge_lora is false and dtype is bfloat16; expected no dtype"):
        TransformersSampler(dtype="bfloat16", merge_lora=False)
