"""The transformers engine on a GPU against itself on a CPU, in float32: `python -m pytest -m cuda` runs such tests."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from test_transformers_engine import STOPS, check, drain, other, requests
from test_vllm_engine import check_same_but_ties
from transformers import LlamaConfig, LlamaForCausalLM

from selfcest_agents.engine import TokenRequest
from selfcest_agents.tiny import TinyConfig, build_tiny
from selfcest_agents.transformers.engine import TransformersEngine

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here"),
]


@pytest.fixture(params=["tiny", "grouped"])
def model(request: pytest.FixtureRequest) -> LlamaForCausalLM:
    """On the CPU: the tiny model with its eager attention, and one with grouped heads and `sdpa`."""
    if request.param == "tiny":
        return other(build_tiny(TinyConfig(hidden_size=64, num_layers=2, max_positions=160), 0))
    sizes = {"vocab_size": 195, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return other(LlamaForCausalLM(LlamaConfig(**sizes, **heads, max_position_embeddings=160)))


def engine_of(model: LlamaForCausalLM) -> TransformersEngine:
    """Few slots and kept prefixes, so that sequences join, move and copy."""
    return TransformersEngine(model, stop_ids=STOPS, max_batch_size=7, prefix_tokens=2048)


def alike(temperature: float) -> list[TokenRequest]:
    """Every second request begins as its neighbour does."""
    work = requests(40, temperature)
    prompt = tuple(range(30, 80))
    return [
        TokenRequest(each.key, prompt[: 50 * (i % 2)] + each.context_ids, min(each.max_new_tokens, 60), i, temperature)
        for i, each in enumerate(work)
    ]


def test_greedy_ids_on_a_gpu_are_those_of_a_cpu(model: LlamaForCausalLM) -> None:
    work, engines = alike(0.0), (engine_of(model), engine_of(deepcopy(model).to("cuda")))
    for engine in engines:
        engine.submit(work)
    want, found = map(drain, engines)
    for request in work:
        check_same_but_ties(model, request, found[request.key].token_ids, want[request.key].token_ids)


@pytest.mark.parametrize("model", ["grouped"], indirect=True)
def test_guesses_on_a_gpu_change_no_id(model: LlamaForCausalLM) -> None:
    """Rows with guesses are computed without padding."""
    work = alike(0.0)
    gpu = deepcopy(model).to("cuda")
    engines = (engine_of(gpu), TransformersEngine(gpu, stop_ids=STOPS, max_batch_size=7, draft_tokens=4))
    for engine in engines:
        engine.submit(work)
    want, found = map(drain, engines)
    for request in work:
        check_same_but_ties(model, request, found[request.key].token_ids, want[request.key].token_ids)


def test_logprobs_on_a_gpu_are_those_of_a_plain_pass_on_a_cpu(model: LlamaForCausalLM) -> None:
    work, engine = alike(0.8), engine_of(deepcopy(model).to("cuda"))
    engine.submit(work)
    check(model, work, drain(engine))


def test_weights_of_a_model_on_a_cpu_are_loaded_into_one_on_a_gpu(model: LlamaForCausalLM) -> None:
    """In the middle of the work, so that contexts are computed anew there."""
    work, engine = alike(0.8), engine_of(deepcopy(model).to("cuda"))
    engine.submit([TokenRequest("first", (40,), 1, 0), *(TokenRequest(f"long{i}", (41, i), 9, i) for i in range(3))])
    assert "first" in {completion.key for completion in engine.poll()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.7)
    engine.load_weights(model.named_parameters(), 1)
    drain(engine)
    engine.submit(work)
    check(model, work, drain(engine))
