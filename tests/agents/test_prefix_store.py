"""Prefix reuse: fewer positions computed, the same tokens, and nothing kept across a change of weights."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from rounding import logprob_rounding
from transformers import LlamaForCausalLM

from selfcest_agents.engine import Completion, TokenRequest
from selfcest_agents.tiny import TinyConfig, build_tiny
from selfcest_agents.transformers.engine import TransformersEngine
from selfcest_agents.transformers.prefix_store import BLOCK, PrefixStore
from selfcest_env.errors import PolicyError

VOCAB = 195
STOPS = tuple(range(20, 30))


def make_model() -> LlamaForCausalLM:
    torch.set_num_threads(1)
    model = build_tiny(TinyConfig(hidden_size=32, num_layers=2, max_positions=400), 0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(8)  # far from uniform, so that a wrong prefix shows
    return model


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return make_model()


@contextmanager
def counted(model: LlamaForCausalLM) -> Iterator[list[int]]:
    """Positions of every forward pass, padding included."""
    sizes: list[int] = []

    def note(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        sizes.append(kwargs["input_ids"].numel())

    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield sizes
    finally:
        handle.remove()


def ids(seed: int, count: int) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(VOCAB) for _ in range(count))


def drain(engine: TransformersEngine) -> dict[str, Completion]:
    found: dict[str, Completion] = {}
    while engine.pending:
        found |= {completion.key: completion for completion in engine.poll()}
    return found


def run(model: LlamaForCausalLM, work: list[TokenRequest], prefix_tokens: int) -> dict[str, Completion]:
    engine = TransformersEngine(model, stop_ids=STOPS, max_batch_size=7, prefix_tokens=prefix_tokens)
    engine.submit(work)
    return drain(engine)


@pytest.mark.parametrize("prefix_tokens", [64, 1000, 100_000])
def test_a_forest_of_prompts_gives_the_tokens_it_gives_without_reuse(
    model: LlamaForCausalLM, prefix_tokens: int
) -> None:
    """Prompts that share a system text, tasks that share a prompt, and contexts that are another one's beginning."""
    system, tasks = ids(0, 37), [ids(seed, 21) for seed in (1, 2, 3)]
    contexts = [(*system, *task, *ids(k, k)) for task in tasks for k in (0, 0, 5, 40)] + [system, ids(9, 3), (5,)]
    work = [TokenRequest(f"r{i}", context, 30, i, 0.8) for i, context in enumerate(contexts)]
    want, found = run(model, work, 0), run(model, work, prefix_tokens)
    assert found.keys() == want.keys()
    for key, completion in want.items():
        assert found[key].token_ids == completion.token_ids
        assert found[key].logprobs == pytest.approx(completion.logprobs, abs=logprob_rounding(model, 0.8))
    assert run(model, work, prefix_tokens) == found


def test_siblings_compute_their_prompt_once(model: LlamaForCausalLM) -> None:
    engine = TransformersEngine(model, stop_ids=(), prefix_tokens=1000)
    engine.submit([TokenRequest(f"r{i}", (*ids(0, 100), i), 1, i) for i in range(8)])
    with counted(model) as sizes:
        drain(engine)
    # Of 101 ids the last, its own, is each row's input. The first row computes 100; the others copy six blocks of 16
    # and compute the 4 that are left. Then comes one step of 8 rows.
    assert sizes == [100, 7 * 4, 8]


def test_the_next_turn_computes_what_is_new(model: LlamaForCausalLM) -> None:
    engine = TransformersEngine(model, stop_ids=(), prefix_tokens=1000)
    prompt, reply = ids(0, 60), ids(1, 30)
    engine.submit([TokenRequest("turn0", prompt, 20, 0)])
    first = drain(engine)["turn0"].token_ids
    context = (*prompt, *first, *reply)
    engine.submit([TokenRequest("turn1", context, 5, 1)])
    with counted(model) as sizes:
        second = drain(engine)["turn1"]
    # 79 positions of the first turn are known (its last id was never fed): 4 whole blocks. 109 - 64 are left.
    assert sizes == [45, 1, 1, 1, 1, 1]
    [alone] = run(model, [TokenRequest("turn1", context, 5, 1)], 0).values()
    if len(alone.token_ids) == 5:
        assert second.token_ids == alone.token_ids


def test_new_weights_forget_what_was_kept() -> None:
    model = make_model()
    engine = TransformersEngine(model, stop_ids=(), prefix_tokens=1000)
    request = TokenRequest("a", ids(0, 70), 8, 0, 0.8)
    engine.submit([request])
    before = drain(engine)["a"]
    with torch.no_grad():
        model.model.layers[0].self_attn.k_proj.weight.mul_(-1)
    engine.policy_version = 1
    engine.submit([request])
    with counted(model) as sizes:
        after = drain(engine)["a"]
    assert sizes[0] == 69
    exact = logprob_rounding(model, 0.8)
    assert after.logprobs != pytest.approx(before.logprobs, abs=10 * exact)
    fresh = TransformersEngine(model, stop_ids=())
    fresh.submit([request])
    assert drain(fresh)["a"].logprobs == pytest.approx(after.logprobs, abs=exact)


def test_a_row_that_began_under_older_weights_is_not_kept(model: LlamaForCausalLM) -> None:
    engine = TransformersEngine(model, stop_ids=(), prefix_tokens=1000)
    engine.submit([TokenRequest("tick", (1,), 1, 0), TokenRequest("old", ids(0, 50), 9, 0)])
    engine.poll()
    engine.policy_version = 1
    drain(engine)
    engine.submit([TokenRequest("again", ids(0, 50), 1, 0)])
    with counted(model) as sizes:
        drain(engine)
    assert sizes == [49, 1]


def test_the_store_finds_whole_blocks_and_drops_what_was_not_used() -> None:
    store, saved = PrefixStore(5 * BLOCK), torch.zeros(1)
    a, b, c = ids(1, 2 * BLOCK), (*ids(1, BLOCK), *ids(2, BLOCK)), ids(3, 2 * BLOCK)
    store.put(a, saved)
    store.put(b, saved)
    assert store.find(b[:-1])[0] == BLOCK
    assert store.find((*a, 7))[0] == 2 * BLOCK
    assert store.find(ids(4, 99)) == (0, None)
    assert store.find_first_missing(a) is None
    assert store.find_first_missing((*a, *c)) == store.find_first_missing((*a, *c[:BLOCK], 1, 2))
    store.put(c, saved)  # 6 blocks are one too many: b goes, a was used since
    assert [store.find(ids)[0] for ids in (a, c)] == [2 * BLOCK, 2 * BLOCK]
    assert store.find(b)[0] == BLOCK  # which a has as well
    store.put(ids(5, 6 * BLOCK), saved)
    assert store.find(ids(5, 6 * BLOCK)) == (0, None)  # longer than the store
    store.clear()
    assert store.find(a) == (0, None)


def test_bounds_are_checked(model: LlamaForCausalLM) -> None:
    with pytest.raises(PolicyError, match="prefix_tokens is -1 and draft_tokens is 0; expected at least 1, 1, 0 and 0"):
        TransformersEngine(model, stop_ids=(), prefix_tokens=-1)
