"""Costs that a study adds, by hand: what a window of attention sees, and what contexts hold that run at once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from chat_models import CHATML, chat_tokenizer, tiny_llama
from transformers import Gemma3TextConfig, MistralConfig, MixtralConfig

from selfcest_env.errors import ConfigError
from selfcest_env.record import AgentRecord, EpisodeRecord, Generation, Turn
from selfcest_env.types import ROOT, AgentId, FinishReason, Limits, Outcome, Status, Task, TurnFacts
from selfcest_eval.play.costs import COSTS, ConcurrentContext, VisibleContext, VisibleTokenSteps
from selfcest_eval.play.model_costs import Flops, IdealMemory, read_shape
from selfcest_training.planning.shapes import KNOWN


def turn(prompt: int, generated: int, *children: AgentId) -> Turn:
    facts = TurnFacts(prompt, generated, 99, FinishReason.STOP, Outcome.ANSWERED, children=children)
    return Turn(facts, Generation("x"))


def agent(agent_id: AgentId, *turns: Turn, status: Status = Status.ANSWERED) -> AgentRecord:
    born_at = None if agent_id == ROOT else 0
    return AgentRecord(agent_id, "do", (), 50, born_at, status, turns, "7")


def episode(*agents: AgentRecord) -> EpisodeRecord:
    return EpisodeRecord("e", Task("t", "2+2", "4", "test"), Limits(), 5, agents)


A, B, C = map(ROOT.child, range(3))
ALONE = episode(agent(ROOT, turn(3, 2), turn(1, 4)))
TREE = episode(
    agent(ROOT, turn(20, 10, A, B), turn(4, 5, C), turn(3, 2)),
    agent(A, turn(6, 30)),
    agent(B, turn(6, 7, B.child(0)), turn(2, 8)),
    agent(B.child(0), turn(5, 20)),
    agent(C, turn(6, 1)),
)


def test_a_step_sees_the_sinks_and_the_window() -> None:
    assert ALONE.cost.kv_token_steps == (3 + 4) + (6 + 7 + 8 + 9)
    assert VisibleTokenSteps(window=5, sinks=2).of(ALONE) == (3 + 4) + (6 + 7 + 7 + 7)
    assert VisibleContext(window=5, sinks=2).of(ALONE) == 7
    assert VisibleContext(window=50).of(ALONE) == ALONE.cost.peak_context == 10


@pytest.mark.parametrize("record", [ALONE, TREE])
def test_without_a_window_a_step_sees_its_whole_context(record: EpisodeRecord) -> None:
    assert VisibleContext().of(record) == record.cost.peak_context
    assert VisibleTokenSteps().of(record) == record.cost.kv_token_steps


def test_contexts_that_run_at_once_by_hand() -> None:
    # The sum is largest at step 37, when the second clone's own clone ends: the waiting root has 30 tokens, the first
    # clone 6 + 27, the second 13, and its clone 25.
    assert ConcurrentContext().of(TREE) == 30 + 33 + 13 + 25
    assert ConcurrentContext().of(ALONE) == ALONE.cost.peak_context


def test_contexts_that_run_at_once_step_by_step() -> None:
    sums: Counter[int] = Counter()
    start_by_agent = {ROOT: 0}
    for record in TREE.agents:
        step = start_by_agent[record.agent_id]
        context = 0
        for index, part in enumerate(record.turns):
            context += part.facts.prompt_tokens
            for _ in range(part.facts.generated_tokens):
                step += 1
                context += 1
                sums[step] += context
            children = part.facts.children
            start_by_agent.update((child, step) for child in children)
            waiting = max((TREE.critical_paths[child] for child in children), default=0)
            for _ in range(waiting):
                step += 1
                sums[step] += context
            assert index < len(record.turns) - 1 or not children
    assert ConcurrentContext().of(TREE) == max(sums.values())


def test_an_absent_clone_holds_no_context() -> None:
    record = episode(
        agent(ROOT, turn(20, 10, A, B), turn(2, 3)),
        agent(A, turn(6, 30)),
        agent(B, status=Status.ABSENT),
    )
    assert ConcurrentContext().of(record) == 30 + 36


def test_samples_run_at_once() -> None:
    assert ConcurrentContext().over_samples([5, 7]) == 12
    assert VisibleContext(window=3).over_samples([5, 7]) == 7
    assert VisibleTokenSteps(window=3).over_samples([5, 7]) == 12


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="window is 0"):
        COSTS.make("visible_context", {"window": 0}, where="costs.x.options")


# Costs of a model: tiny_llama has 2 layers, 4 query heads and 2 key heads of dimension 8, width 32 and inner width 48.

LAYER = 32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 48 + 2 * 32  # queries, keys and values, output, MLP, norms
WEIGHTS = 2 * LAYER + 32  # with the last norm


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    tokenizer = chat_tokenizer(CHATML)
    tiny_llama(tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_operations_by_hand(model: str) -> None:
    shape = read_shape(model)
    embeddings = shape.weights - WEIGHTS
    assert shape.output_weights == embeddings
    output = 2 * embeddings  # of one generated token
    assert (shape.layer_weights, shape.layers, shape.query_width, shape.key_width) == (WEIGHTS, 2, 32, 16)
    assert embeddings == 32 * len(chat_tokenizer(CHATML))  # tied, so counted once
    # ALONE has a prompt of 3, 2 generated tokens, 1 more of a prompt and 4 generated ones, in one context of 10.
    keys = (1 + 2 + 3) + (4 + 5) + 6 + (7 + 8 + 9 + 10)
    assert Flops(model=model).of(ALONE) == 2 * WEIGHTS * 10 + 4 * 2 * 32 * keys + 6 * output
    assert Flops(model=model, phase="prefill").of(ALONE) == 2 * WEIGHTS * 4 + 4 * 2 * 32 * (6 + 6)
    assert Flops(model=model, phase="decoding").of(ALONE) == 2 * WEIGHTS * 6 + 4 * 2 * 32 * (9 + 34) + 6 * output
    # Every agent has a context of its own.
    contexts = (44, 36, 23, 25, 7)
    keys = sum(length * (length + 1) // 2 for length in contexts)
    generated = 17 + 30 + 15 + 20 + 1
    assert Flops(model=model).of(TREE) == 2 * WEIGHTS * sum(contexts) + 4 * 2 * 32 * keys + generated * output


def test_the_shape_of_smollm2_by_hand(tmp_path: Path) -> None:
    KNOWN["HuggingFaceTB/SmolLM2-135M-Instruct"].save_pretrained(tmp_path)
    shape = read_shape(str(tmp_path))
    assert shape.layer_weights == 106_203_456
    assert shape.weights == 134_515_008
    assert shape.output_weights == 49152 * 576
    assert shape.flops(1, 2) - shape.flops(0, 1) == 69_120  # one more key
    assert shape.cached_numbers == 11_520
    per_token = shape.flops(0, 1000) / 1000
    ratios = [shape.flops(0, length) / length / per_token for length in (8000, 16_000, 32_000)]
    assert ratios == pytest.approx([1.98, 3.10, 5.34], abs=0.005)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (Gemma3TextConfig(), "which has layers of sliding_attention; expected full attention in every layer"),
        (MistralConfig(sliding_window=8), "which has an attention window of 8; expected full attention in every layer"),
        (MixtralConfig(), "which has 8 experts; expected a model without experts"),
    ],
)
def test_models_whose_costs_have_another_formula_are_refused(config: Any, said: str, tmp_path: Path) -> None:
    config.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=said):
        Flops(model=str(tmp_path)).check()


def test_memory_by_hand(model: str) -> None:
    shape = read_shape(model)
    token = 2 * 2 * 16  # keys and values of two layers
    weights = 4 * shape.weights
    assert IdealMemory(model=model).of(TREE) == weights + 4 * token * (30 + 33 + 13 + 25)
    small = IdealMemory(model=model, weight_bytes=2, cache_bytes=1)
    assert small.of(ALONE) == 2 * shape.weights + token * 10
    # One agent at a time: the clone of the second clone has 25 tokens, its parent 23 and the root 44.
    assert IdealMemory(model=model, concurrent=False).of(TREE) == weights + 4 * token * (44 + 23 + 25)
    # Samples that run at once share the weights; of episodes in series the largest counts.
    values = [IdealMemory(model=model).of(record) for record in (ALONE, ALONE)]
    assert IdealMemory(model=model).over_samples(values) == weights + 4 * token * 20
    assert IdealMemory(model=model).in_series(values) == values[0]
