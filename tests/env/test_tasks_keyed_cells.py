"""Keyed cells: what is asked, how the expert works, and how answers are graded cell by cell."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from selfcest_env.errors import ConfigError, RewardError
from selfcest_env.graders import AnswerPart, Grade
from selfcest_env.graders.cells import CellMatch
from selfcest_env.kernel import Kernel
from selfcest_env.protocol import PromptFormat
from selfcest_env.record import EpisodeRecord, Generation, build_record, from_json, to_json
from selfcest_env.reward import make_reward
from selfcest_env.rules import Rules
from selfcest_env.tasks import make_source
from selfcest_env.tasks.keyed_cells import KeyedCells
from selfcest_env.tasks.source import GIVE_UP, Style
from selfcest_env.text.counters import WordCounter
from selfcest_env.text.hermes import HermesProtocol
from selfcest_env.text.terse import TerseProtocol
from selfcest_env.types import ROOT, AgentId, Answer, CloneRequest, Delegate, Limits, Read, Task, Usage
from selfcest_env.views import observe

TASK = Task("t", "?CaAb", "a7b0", "keyed_cells", {"A": "a1b0", "C": "b2a7"}, metadata={"cells": "CA"})
LIMITS = Limits(total_tokens=None, max_clones=30, max_clones_per_call=26, turn_tokens=500)


def play(
    task: Task,
    style: Style,
    limits: Limits,
    protocol: PromptFormat,
    spoilt: Sequence[AgentId] = (),
    source: KeyedCells = KeyedCells(),  # noqa: B008 (frozen)
) -> EpisodeRecord:
    """The expert's episode; the clones in `spoilt` say 9."""
    kernel = Kernel(task, Rules(limits, protocol, WordCounter()))
    generations = {}
    while not kernel.done:
        agent = kernel.ready()[0]
        seen = observe(kernel, agent)
        proposal = source.propose(seen, np.random.default_rng(0), style)
        action = Answer("9") if agent in spoilt else proposal.action
        text = protocol.render(action, proposal.thought)
        generations[agent, seen.turn] = Generation(text)
        kernel.step(agent, protocol.parse(text), Usage(WordCounter().count_text(text)), text)
    return build_record(kernel, generations, episode_id="e", seed=0)


def test_a_drawn_task_asks_for_a_digit_of_each_document() -> None:
    source, rng = KeyedCells(min_cells=2, max_cells=5, min_fields=1, max_fields=3), np.random.default_rng(0)
    sizes = set()
    for _ in range(50):
        task = source.draw(rng)
        pairs = [task.prompt[i : i + 2] for i in range(1, len(task.prompt), 2)]
        assert task.prompt[0] == "?"
        assert task.metadata["cells"] == "".join(pair[0] for pair in pairs)
        assert set(task.context) == {pair[0] for pair in pairs}
        assert task.answer[::2] == "abcde"[: len(pairs)]
        for (key, field), digit in zip(pairs, task.answer[1::2], strict=True):
            fields = task.context[key][::2]
            assert len(set(fields)) == len(fields) <= 3
            assert task.context[key][2 * fields.index(field) + 1] == digit
        sizes.add(task.metadata["size"])
    assert sizes == {2, 3, 4, 5}
    assert source.draw(np.random.default_rng(3)) == source.draw(np.random.default_rng(3))


@pytest.mark.parametrize("protocol", [TerseProtocol(), HermesProtocol()], ids=["terse", "hermes"])
@pytest.mark.parametrize(("style", "clones", "turns"), [("delegate", 2, 2), ("read", 0, 2), ("solve", 0, 2)])
def test_the_expert_is_right_in_every_style(protocol: PromptFormat, style: str, clones: int, turns: int) -> None:
    record = play(TASK, Style(style), replace(LIMITS, max_reads=9), protocol)
    assert (record.answer, record.cost.clones, len(record.root.turns)) == ("a7b0", clones, turns)
    assert play(TASK, Style(style), replace(LIMITS, max_depth=0), protocol).answer == "a7b0", "with all texts in view"
    task = make_source("keyed_cells").draw(np.random.default_rng(0))
    assert play(task, Style(style), replace(LIMITS, max_reads=99), protocol).answer == task.answer


def test_each_clone_is_told_its_field_and_handed_its_document() -> None:
    kernel = Kernel(TASK, Rules(LIMITS, TerseProtocol(), WordCounter()))
    proposal = KeyedCells().propose(observe(kernel, ROOT), np.random.default_rng(0), Style.DELEGATE)
    assert proposal.action == Delegate((CloneRequest("a", ("C",)), CloneRequest("b", ("A",))))


def test_the_next_field_is_asked_for_and_clones_are_told_the_same() -> None:
    source, rng = KeyedCells(min_cells=3, max_cells=3, asks="next"), np.random.default_rng(0)
    for _ in range(20):
        task = source.draw(rng)
        assert task.prompt[0] == "!"
        pairs = [task.prompt[i : i + 2] for i in range(1, len(task.prompt), 2)]
        for (key, field), digit in zip(pairs, task.answer[1::2], strict=True):
            assert task.context[key][task.context[key].index(field) + 3] == digit
        for style in Style:
            assert play(task, style, replace(LIMITS, max_reads=9), TerseProtocol(), source=source).answer == task.answer
    own, other = replace(TASK, prompt="?CaAa"), replace(TASK, prompt="!CbAa", answer="a7b0")
    assert play(other, Style.DELEGATE, LIMITS, TerseProtocol(), source=source).answer == "a7b0"
    played = [
        play(task, Style.DELEGATE, LIMITS, TerseProtocol(), source=s)
        for task, s in ((own, KeyedCells()), (other, source))
    ]
    briefs = [[agent.objective for agent in record.agents[1:]] for record in played]
    assert briefs == [["a", "a"], ["b", "a"]]
    with pytest.raises(ConfigError, match=r"min_fields is 1; expected a whole number from 2"):
        KeyedCells(asks="next", min_fields=1)
    with pytest.raises(ConfigError, match="asks is 'other'; expected"):
        KeyedCells(asks="other")  # type: ignore[arg-type]


def test_each_letter_has_a_convention_of_its_own() -> None:
    source, rng = KeyedCells(asks="by_letter"), np.random.default_rng(0)
    seen = set()
    for _ in range(20):
        task = source.draw(rng)
        assert task.prompt[0] == "?"
        pairs = [task.prompt[i : i + 2] for i in range(1, len(task.prompt), 2)]
        for (key, field), digit in zip(pairs, task.answer[1::2], strict=True):
            further = 0 if field in "acegikmoqsuwy" else 2
            assert task.context[key][task.context[key].index(field) + 1 + further] == digit
            seen.add(field)
        for style in Style:
            assert (
                play(task, style, replace(LIMITS, max_reads=99), TerseProtocol(), source=source).answer == task.answer
            )
    assert len(seen) == 26
    with pytest.raises(ConfigError, match=r"min_fields is 1; expected a whole number from 2"):
        KeyedCells(asks="by_letter", min_fields=1)


@pytest.mark.parametrize("prompt", ["?", "a", "?Ca ", "?CaA", "2+2", "?ca", "!Ca"])
def test_another_question_is_not_understood(prompt: str) -> None:
    seen = observe(Kernel(Task("t", prompt, "", "x", {"A": "a1"}), Rules(LIMITS, TerseProtocol(), WordCounter())), ROOT)
    assert not KeyedCells().understands(seen)
    assert KeyedCells().propose(seen, np.random.default_rng(0), Style.SOLVE) == GIVE_UP


@pytest.mark.parametrize("documents", [{"A": "b1"}, {"A": "a1 b2"}, {"A": "a12"}, {"B": "a1"}])
def test_what_cannot_be_found_is_not_guessed(documents: dict[str, str]) -> None:
    task = Task("t", "?Aa", "1", "x", documents)
    seen = observe(Kernel(task, Rules(replace(LIMITS, max_depth=0), TerseProtocol(), WordCounter())), ROOT)
    assert KeyedCells().propose(seen, np.random.default_rng(0), Style.SOLVE) == GIVE_UP


def test_a_reader_asks_for_all_documents_at_once() -> None:
    limits = replace(LIMITS, max_reads=1)
    kernel = Kernel(TASK, Rules(limits, TerseProtocol(), WordCounter()))
    assert KeyedCells().propose(observe(kernel, ROOT), np.random.default_rng(0), Style.READ).action == Read(("C", "A"))


@pytest.mark.parametrize(
    ("answer", "score", "correct", "well_formed", "cells"),
    [
        ("a7b0", 1.0, True, True, (0.5, 0.5)),
        (" a7b0\n", 1.0, True, True, (0.5, 0.5)),
        ("a7b1", 0.5, False, True, (0.5, 0.0)),
        ("a0b0", 0.5, False, True, (0.0, 0.5)),
        ("c7b0", 0.5, False, True, (0.0, 0.5)),
        ("b0a7", 0.0, False, True, (0.0, 0.0)),
        ("a7", 0.5, False, False, (0.5, 0.0)),
        ("a7b", 0.5, False, False, (0.5, 0.0)),
        ("a7b00", 1.0, False, False, (0.5, 0.5)),
        ("", 0.0, False, False, (0.0, 0.0)),
        (None, 0.0, False, False, (0.0, 0.0)),
    ],
)
def test_cells_are_graded_one_by_one_or_as_a_whole(
    answer: str | None, score: float, correct: bool, well_formed: bool, cells: tuple[float, ...]
) -> None:
    parts = tuple(AnswerPart(key, value) for key, value in zip("CA", cells, strict=True))
    assert CellMatch().grade(TASK, answer) == Grade(score, correct, well_formed, parts=parts)
    assert CellMatch("all").grade(TASK, answer) == Grade(float(correct), correct, well_formed)


@pytest.mark.parametrize(("metadata", "answer"), [({}, "a7b0"), ({"cells": "ABC"}, "a7b0"), ({"cells": ""}, "")])
def test_a_task_without_a_key_for_every_cell_is_an_error(metadata: dict[str, str], answer: str) -> None:
    reward = make_reward("correct", grader={"name": "cells"})
    with pytest.raises(RewardError, match="cannot judge task t .*expected a key for every cell of the answer"):
        reward.check([replace(TASK, answer=answer, metadata=metadata)], "here")


def test_an_unknown_coupling_is_refused() -> None:
    with pytest.raises(ConfigError, match="coupling is 'and'; expected"):
        make_reward("correct", grader={"name": "cells", "coupling": "and"})
    with pytest.raises(ConfigError, match=r"KeyedCells\.max_cells is 27"):
        KeyedCells(max_cells=27)


def test_a_scored_record_says_what_each_part_brought() -> None:
    spoilt = (AgentId((1,)),)
    record = play(TASK, Style.DELEGATE, LIMITS, TerseProtocol(), spoilt)
    options = {"correct": None, "score": {"weight": 4.0}, "grader": {"name": "cells"}}
    scored = make_reward("default", **options).score(record, {"score": 0.5})
    assert record.answer == "a7b9"
    assert scored.parts == {"score": {"C": 2.0, "A": 0.0}}, "unweighted by the step's weight, as the terms are"
    assert scored.returns_by_part == {"C": 1.0, "A": 0.0}
    assert from_json(to_json(scored)) == scored
    as_a_whole = {**options, "grader": {"name": "cells", "coupling": "all"}}
    assert make_reward("default", **as_a_whole).score(record).returns_by_part == {}
