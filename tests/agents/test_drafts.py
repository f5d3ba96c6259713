"""Guessed ids are computed in fewer steps, and no token depends on them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from rounding import logprob_rounding
from transformers import LlamaConfig, LlamaForCausalLM

from selfcest_agents.engine import Completion, TokenRequest
from selfcest_agents.tiny import TinyConfig, build_tiny
from selfcest_agents.transformers import drafts
from selfcest_agents.transformers.drafts import DraftTable
from selfcest_agents.transformers.engine import TransformersEngine
from selfcest_env.errors import PolicyError
from selfcest_env.types import FinishReason

STOPS = (20, 21, 22)
MAX_POSITIONS = 160


def make_model(kv_heads: int) -> LlamaForCausalLM:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = {"vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": kv_heads}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, max_position_embeddings=MAX_POSITIONS)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(12)  # far from uniform, so that sequences repeat themselves and each other
    return model


@pytest.fixture(scope="module", params=[2, 4])
def model(request: pytest.FixtureRequest) -> LlamaForCausalLM:
    return make_model(request.param)


def make_requests(seed: int, count: int = 24) -> list[TokenRequest]:
    """Make requests on a few contexts that repeat themselves."""
    rng = random.Random(seed)
    contexts = []
    for _ in range(5):
        words = [[rng.randrange(60) for _ in range(rng.randint(1, 6))] for _ in range(2)]
        contexts.append(tuple(token for _ in range(rng.randint(1, 5)) for token in rng.choice(words)))
    return [
        TokenRequest(f"r{i}", rng.choice(contexts), rng.randint(1, 60), i, rng.choice((0.0, 0.2, 0.5, 1.0)))
        for i in range(count)
    ]


def play(engine: TransformersEngine, requests: Sequence[TokenRequest], seed: int = 0) -> dict[str, Completion]:
    """Submit the requests a few at a time, between polls."""
    rng = random.Random(seed)
    waiting = list(requests)
    completions: dict[str, Completion] = {}
    while waiting or engine.pending:
        count = rng.randint(0 if engine.pending else 1, 6)
        engine.submit(waiting[:count])
        del waiting[:count]
        completions |= {completion.key: completion for completion in engine.poll()}
    return completions


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
@pytest.mark.parametrize(("draft_tokens", "prefix_tokens"), [(1, 0), (4, 500), (16, 80)])
def test_random_play_gives_the_completions_without_guesses(
    model: LlamaForCausalLM, seed: int, draft_tokens: int, prefix_tokens: int
) -> None:
    requests = make_requests(seed)
    expected = play(TransformersEngine(model, stop_ids=STOPS, max_batch_size=7), requests)
    engine = TransformersEngine(
        model, stop_ids=STOPS, max_batch_size=7, prefix_tokens=prefix_tokens, draft_tokens=draft_tokens
    )
    completions = play(engine, requests, seed)
    assert completions.keys() == expected.keys()
    for request in requests:
        completion = completions[request.key]
        assert completion.token_ids == expected[request.key].token_ids
        assert completion.finish_reason is expected[request.key].finish_reason
        if request.temperature:
            exact = logprob_rounding(model, request.temperature)
            assert completion.logprobs == pytest.approx(expected[request.key].logprobs, abs=exact)


def test_guesses_save_passes(model: LlamaForCausalLM) -> None:
    engine = TransformersEngine(model, stop_ids=(), draft_tokens=8)
    passes: list[int] = []
    handle = model.register_forward_pre_hook(lambda *_: passes.append(1))
    counts = []
    for key in ("first", "again"):
        passes.clear()
        play(engine, [TokenRequest(key, tuple(range(40, 55)), 45, 0, 0.0)])
        counts.append(len(passes))
    handle.remove()
    assert counts[0] <= 46
    assert counts[1] == 1 + 45 / 9  # the prefill, and steps with eight guessed ids


def test_sequences_go_on_with_loaded_weights_and_forget_their_guesses(model: LlamaForCausalLM) -> None:
    other = make_model(model.config.num_key_value_heads)
    requests = [replace(request, max_new_tokens=50, temperature=0.2) for request in make_requests(3, 8)]
    results = []
    for draft_tokens in (0, 8):
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.mul_(0.9)
        engine = TransformersEngine(other, stop_ids=(), draft_tokens=draft_tokens)
        # All sequences are at the same place when the weights change, with guesses or without.
        engine.submit([TokenRequest("tick", (40,), 1, 0), *requests])
        engine.poll()
        engine.load_weights(model.named_parameters(), 1)
        assert not engine._drafts._places
        results.append(play(engine, []))
    for key, completion in results[0].items():
        if key.startswith("r"):
            assert results[1][key].token_ids[1:] == completion.token_ids[1:]


def test_a_guess_is_what_followed_the_last_place_of_the_same_ids() -> None:
    table = DraftTable(4, stop_ids=(9,))
    ids = [1, 2, 3, 4, 5, 6, 7, 8]
    table.note(ids, 0)
    assert table.guess([0, 1, 2, 3], 4) == [4, 5, 6, 7]
    assert table.guess([1, 2, 3], 2) == [4, 5]
    assert table.guess([2, 3], 4) == []
    assert table.guess([6, 7, 8], 4) == []  # nothing has followed yet
    ids += [1, 9, 2]
    table.note(ids, 8)
    assert table.guess([6, 7, 8], 4) == [1]  # nothing follows a stop id
    table.note([1, 2, 3, 30], 3)
    assert table.guess([1, 2, 3], 4) == [30]
    table.clear()
    assert table.guess([1, 2, 3], 4) == []


def test_a_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafts, "MAX_ENTRIES", 3)
    table = DraftTable(4, stop_ids=())
    table.note(list(range(8)), 0)
    table.note(list(range(20, 24)), 0)
    assert table.guess([0, 1, 2], 4) == []
    assert table.guess([20, 21, 22], 4) == [23]


def test_draft_tokens_that_cannot_be_computed_are_refused() -> None:
    model = build_tiny(TinyConfig(hidden_size=8, num_layers=1, num_heads=1), 0)
    with pytest.raises(PolicyError, match="draft_tokens is -1"):
        TransformersEngine(model, stop_ids=(), draft_tokens=-1)
    model.set_attn_implementation("eager")
    with pytest.raises(PolicyError, match="attention is 'eager'"):
        TransformersEngine(model, stop_ids=(), draft_tokens=4)


def test_the_last_token_needs_no_guess(model: LlamaForCausalLM) -> None:
    context = tuple(range(30, 40)) * 3
    engine = TransformersEngine(model, stop_ids=(), draft_tokens=8)
    engine.submit([TokenRequest("one", context, 1, 0), TokenRequest("full", context, MAX_POSITIONS - 30, 0)])
    completions = play(engine, [])
    assert {key: len(completion.token_ids) for key, completion in completions.items()} == {"one": 1, "full": 130}
    assert completions["full"].token_ids[:1] == completions["one"].token_ids
    assert {completion.finish_reason for completion in completions.values()} == {FinishReason.LENGTH}
