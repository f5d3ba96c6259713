"""Equal contexts are computed once, for as long as they stay equal, and nobody can tell from the tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from rounding import logprob_rounding
from transformers import LlamaForCausalLM

from selfcest_agents.engine import Completion, TokenRequest
from selfcest_agents.tiny import TinyConfig, build_tiny
from selfcest_agents.transformers.engine import TransformersEngine
from selfcest_agents.transformers.sampling import BLOCK, draw
from selfcest_env.types import FinishReason

STOPS = tuple(range(20, 30))
CONTEXT = tuple(range(40, 75))


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.set_num_threads(1)
    model = build_tiny(TinyConfig(hidden_size=32, num_layers=2, max_positions=160), 0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(8)
    return model


def group(size: int, temperature: float = 0.3, new: int = 40) -> list[TokenRequest]:
    """Cold enough that some draw alike for a while."""
    return [TokenRequest(f"r{i}", CONTEXT, new, i, temperature) for i in range(size)]


@contextmanager
def rows_computed(model: LlamaForCausalLM) -> Iterator[list[int]]:
    """Rows of every decoding step."""
    found: list[int] = []

    def note(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if kwargs["input_ids"].shape[1] == 1:
            found.append(kwargs["input_ids"].shape[0])

    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield found
    finally:
        handle.remove()


def drain(engine: TransformersEngine) -> dict[str, Completion]:
    found: dict[str, Completion] = {}
    while engine.pending:
        found |= {completion.key: completion for completion in engine.poll()}
    return found


def alone(model: LlamaForCausalLM, work: Sequence[TokenRequest]) -> dict[str, Completion]:
    """One after another, so that no two share anything."""
    engine = TransformersEngine(model, stop_ids=STOPS, max_batch_size=1)
    engine.submit(work)
    return drain(engine)


def check(model: LlamaForCausalLM, found: dict[str, Completion], want: dict[str, Completion]) -> None:
    assert found.keys() == want.keys()
    for key, completion in want.items():
        assert found[key].token_ids == completion.token_ids
        assert found[key].finish_reason is completion.finish_reason
        assert found[key].logprobs == pytest.approx(completion.logprobs, abs=logprob_rounding(model, 0.3))


def num_different(found: dict[str, Completion]) -> list[int]:
    """How many different beginnings of each length go on: what has to be computed at the least."""
    made = [completion.token_ids for completion in found.values()]
    return [len({ids[:t] for ids in made if len(ids) > t}) for t in range(max(map(len, made)))]


@pytest.mark.slow
@pytest.mark.parametrize("prefix_tokens", [0, 1000])
def test_a_row_is_computed_once_until_its_sequences_differ(model: LlamaForCausalLM, prefix_tokens: int) -> None:
    work = group(12)
    engine = TransformersEngine(model, stop_ids=STOPS, prefix_tokens=prefix_tokens)
    engine.submit(work)
    with rows_computed(model) as rows:
        found = drain(engine)
    check(model, found, alone(model, work))
    assert rows == num_different(found)
    assert rows[0] == 1
    assert max(rows) > 2  # they did part
    assert sum(rows) < sum(len(completion.token_ids) for completion in found.values())


def test_rows_part_and_leave_among_others(model: LlamaForCausalLM) -> None:
    others = [TokenRequest(f"o{i}", CONTEXT[i:], 30, 50 + i, 0.8) for i in range(9)]
    work = [request for pair in zip(group(9), others, strict=True) for request in pair]
    engine = TransformersEngine(model, stop_ids=STOPS, max_batch_size=7)
    engine.submit(work)
    check(model, drain(engine), alone(model, work))


def test_the_greedy_never_part(model: LlamaForCausalLM) -> None:
    work = [replace(request, temperature=0.0, max_new_tokens=5 + i) for i, request in enumerate(group(4))]
    engine = TransformersEngine(model, stop_ids=())
    engine.submit(work)
    with rows_computed(model) as rows:
        found = drain(engine)
    assert rows == [1] * 8
    longest = found["r3"].token_ids
    assert [found[f"r{i}"].token_ids for i in range(4)] == [longest[: 5 + i] for i in range(4)]
    assert {completion.finish_reason for completion in found.values()} == {FinishReason.LENGTH}


def test_other_temperatures_are_other_rows(model: LlamaForCausalLM) -> None:
    work = [replace(request, temperature=0.3 + 0.5 * (i % 2)) for i, request in enumerate(group(6))]
    engine = TransformersEngine(model, stop_ids=STOPS)
    engine.submit(work)
    with rows_computed(model) as rows:
        found = drain(engine)
    check(model, found, alone(model, work))
    assert rows[0] == 2


def test_one_of_a_row_is_cancelled(model: LlamaForCausalLM) -> None:
    work = group(5, new=30)
    engine = TransformersEngine(model, stop_ids=())
    engine.submit([TokenRequest("tick", (40,), 1, 0), *work])
    assert [completion.key for completion in engine.poll()] == ["tick"]
    engine.cancel(["r0", "r3"])  # r0 is the first of its row
    assert engine.pending == 3
    full = TransformersEngine(model, stop_ids=(), max_batch_size=1)
    full.submit(work)
    want = drain(full)
    check(model, drain(engine), {key: want[key] for key in ("r1", "r2", "r4")})


def test_sequences_of_a_row_go_on_with_loaded_weights(model: LlamaForCausalLM) -> None:
    first = build_tiny(TinyConfig(hidden_size=32, num_layers=2, max_positions=160), 1)
    made = []
    for size in (1, 8):  # once alone, once at the side of nobody else than its own row
        with torch.no_grad():
            before = build_tiny(TinyConfig(hidden_size=32, num_layers=2, max_positions=160), 1)
            first.load_state_dict(before.state_dict())
        engine = TransformersEngine(first, stop_ids=())
        engine.submit([TokenRequest("tick", (40,), 3, 0), *group(8, temperature=1e-3)[:size]])
        engine.poll()
        engine.load_weights(model.named_parameters(), 1)
        made.append(drain(engine)["r0"])
    assert made[0].token_ids == made[1].token_ids
    assert made[0].policy_version == made[1].policy_version == 0


@pytest.mark.parametrize("width", [3, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
def test_many_draws_from_one_row_are_those_of_its_cumulative_sum(width: int) -> None:
    torch.manual_seed(0)
    logits = 3 * torch.randn(2, width)
    rows = torch.arange(2).repeat_interleave(500)
    uniforms = torch.rand(1000, dtype=torch.float64)
    ids, logprobs = draw(logits, torch.tensor([1.0, 0.7]).double(), rows, uniforms)
    probs = (logits.double() / torch.tensor([1.0, 0.7]).double()[:, None]).softmax(-1)[rows]
    upper = probs.cumsum(-1).gather(1, ids[:, None])[:, 0]
    chosen = probs.gather(1, ids[:, None])[:, 0]
    torch.testing.assert_close(logprobs, chosen.log(), atol=1e-6, rtol=0)
    assert bool((uniforms < upper + 1e-6).all())
    assert bool((uniforms > upper - chosen - 1e-6).all())


def test_a_draw_at_the_end_of_a_block_stays_among_the_possible() -> None:
    logits = torch.full((1, 2 * BLOCK), float("-inf"))
    logits[0, [5, BLOCK + 9]] = 0.0
    uniforms = torch.tensor([0.0, 0.5 - 2**-54, 0.5, 1 - 2**-53], dtype=torch.float64)
    ids, _ = draw(logits, torch.ones(1).double(), torch.zeros(4, dtype=torch.long), uniforms)
    assert ids.tolist() == [5, 5, BLOCK + 9, BLOCK + 9]
