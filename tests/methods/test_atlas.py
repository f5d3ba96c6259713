"""ATLAS by a scripted model: when the teacher is asked, what is distilled, and what later tasks cost."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from study_players import EXPERT, HERMES, ScriptedPlayer
from test_plays import Says, objectives, play

from selfcest_env.errors import ConfigError
from selfcest_env.reward import make_reward
from selfcest_env.rules import Rules
from selfcest_env.text.counters import WordCounter
from selfcest_env.types import Answer, Limits, Task
from selfcest_env.views import Observation
from selfcest_eval.play.strategies import Instance, PlayContext, make_strategy
from selfcest_methods.atlas import Atlas, AtlasLearner, AtlasStep, Guidance, Memory, Mode

CONTEXT = PlayContext(
    Limits(total_tokens=9000, turn_tokens=200, reply_tokens=60, answer_reserve=8, max_turns=8), 0.0, EXPERT, HERMES
)
DOUBLE = "Double the sum."
ENTRY = Guidance("Twice", DOUBLE)
TASK = Task("t", "Twice 2 + 3?", "10", "own")


def act(observation: Observation, cue: str = "Twice") -> str:
    """Play a student that doubles only when it is told to, a teacher that tells it, and the model that distils."""
    text = observation.brief.text
    if text.startswith("Solve the task."):
        return HERMES.render(Answer("10" if DOUBLE in text else "5"))
    if text.startswith("You teach"):
        return HERMES.render(Answer("right" if "Answer: 10" in text else DOUBLE))
    if text.startswith("Write a short plan"):
        return HERMES.render(Answer("Add."))
    assert json.loads(text)["guidance"] == [DOUBLE]
    return HERMES.render(Answer(json.dumps({"cue": cue, "text": DOUBLE})))


def learn(count: int, memory: Memory | None = None, cue: str = "Twice") -> list[AtlasStep]:
    player = ScriptedPlayer(Says(lambda own: act(own, cue)), lambda own: Rules(own, HERMES, WordCounter()), codec=None)
    instances = [Instance(replace(TASK, task_id=f"t{i}"), i) for i in range(count)]
    return list(AtlasLearner().learn(instances, memory or Memory(), CONTEXT, player, make_reward("correct")))


def write(folder: Path, *entries: Guidance) -> str:
    file = folder / "memory.json"
    file.write_text(Memory(entries).to_json())
    return str(file)


def test_later_tasks_of_a_kind_cost_less_at_equal_accuracy() -> None:
    steps = learn(8)
    assert all(step.correct for step in steps)
    assert [step.mode for step in steps] == [Mode.PAIRED] * 4 + [Mode.AUTO] * 4
    tokens = [step.tokens for step in steps]
    assert tokens[0] > tokens[1], "the guidance is there from the start, so the student answers once"
    assert tokens[1:4] == [tokens[1]] * 3
    assert tokens[3] > tokens[4], "after three successes the teacher is not asked"
    assert tokens[4:] == [tokens[4]] * 4
    assert steps[-1].memory.entries == (replace(ENTRY, uses=7, successes=7),)
    assert steps[-1].describe() == f"t7: right, {tokens[4]} tokens, auto; 1 entries"


def test_guidance_is_chosen_for_the_tasks_of_its_cue(tmp_path: Path) -> None:
    strategy = Atlas(write(tmp_path, replace(ENTRY, uses=3, successes=3)))
    (record,) = play(strategy, act, task=TASK)
    assert (record.answer, len(objectives(record))) == ("10", 1)
    (other,) = play(strategy, act, task=Task("u", "2 + 3, doubled?", "10", "own"))
    assert [call[0].split(".")[0] for call in objectives(other)] == [
        "Solve the task",
        "You teach and do not solve",
        "Solve the task",
    ]
    assert DOUBLE not in objectives(other)[0][0]
    assert other.answer == "10", "by the teacher's guidance"
    assert strategy.executed((other,))


def test_little_success_calls_for_a_plan(tmp_path: Path) -> None:
    strategy = Atlas(write(tmp_path, replace(ENTRY, text="Halve it.", uses=4, successes=1)))
    (record,) = play(strategy, act, task=TASK)
    calls = [call[0] for call in objectives(record)]
    assert [call.splitlines()[0] for call in calls] == [
        "Write a short plan for the task. Do not solve it.",
        "You teach and do not solve. Write a better plan, as short as this one.",
        "Solve the task.",
        calls[3].splitlines()[0],
    ]
    assert "Plan: Add." in calls[1]
    assert f"- Halve it.\n- {DOUBLE}" in calls[2], "the revised plan"
    assert record.answer == "10"


@pytest.mark.parametrize(
    ("uses", "successes", "mode"),
    [(0, 0, Mode.PAIRED), (2, 2, Mode.PAIRED), (20, 17, Mode.AUTO), (20, 16, Mode.PAIRED), (20, 13, Mode.PAIRED),
     (20, 12, Mode.COACH)],
)  # fmt: skip
def test_modes_by_hand(uses: int, successes: int, mode: Mode) -> None:
    assert Atlas().choose_mode([replace(ENTRY, uses=uses, successes=successes)]) is mode


def test_choosing_by_hand() -> None:
    entries = (Guidance("twice", "a", 3, 1), Guidance("2 + 3", "b", 9, 9), Guidance("half", "c"), Guidance("?", "d"))
    memory = Memory(entries)
    assert [entry.text for entry in memory.choose(TASK.prompt, 3)] == ["b", "a", "d"]
    assert [entry.text for entry in memory.choose(TASK.prompt, 1)] == ["b"]
    assert memory.choose("Three.", 3) == ()


@pytest.mark.parametrize("cue", ["Half", "", " "])
def test_a_cue_that_is_not_in_its_task_is_not_kept(cue: str) -> None:
    (step,) = learn(1, cue=cue)
    assert step.correct
    assert step.memory == Memory(tasks=("t0",))


def test_failures_count_and_nothing_is_distilled_from_them() -> None:
    (step,) = learn(1, Memory((Guidance("2 + 3", "Halve it.", 2, 2), Guidance("Twice", "Stop.", 9, 9))))
    assert [(entry.uses, entry.successes) for entry in step.memory.entries] == [(3, 2), (10, 9)]
    assert (step.mode, step.correct) == (Mode.AUTO, False)


def test_a_learned_memory_goes_on_and_is_refused_for_its_own_tasks(tmp_path: Path) -> None:
    first, *rest = learn(3)
    file = tmp_path / "memory.json"
    file.write_text(first.to_json())
    memory = Memory.from_file(file)
    assert memory == first.memory
    assert learn(3, memory) == rest
    strategy = make_strategy("atlas", {"file": str(file)}, "strategies.atlas")
    with pytest.raises(ConfigError, match="was learned from the task t0 that is to be played"):
        strategy.check_tasks([replace(TASK, task_id="t0")], EXPERT)
    with pytest.raises(ConfigError, match="make another with .* --strategy atlas"):
        strategy.check_tasks([replace(TASK, task_id="t0")], EXPERT)
    assert strategy.recipe != Atlas().recipe


def test_files_and_options_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the memory .*none.json does not exist; make one with .* --strategy atlas"):
        Atlas(str(tmp_path / "none.json")).check(CONTEXT)
    (tmp_path / "bad.json").write_text('{"entries": [{"cue": "", "text": "Add."}]}')
    with pytest.raises(ConfigError, match="entries.0"):
        Atlas(str(tmp_path / "bad.json")).check(CONTEXT)
    (tmp_path / "origin.json").write_text('{"entries": [{"cue": "Add", "text": "Add."}]}')
    with pytest.raises(ConfigError, match="has entries and no list of the tasks that it was learned from"):
        Atlas(str(tmp_path / "origin.json")).check(CONTEXT)
    with pytest.raises(ConfigError, match="doubted is 0.9 and trusted is 0.5; expected trusted >= doubted"):
        Atlas(trusted=0.5, doubted=0.9)


def test_a_reply_that_is_missing_is_no_answer(tmp_path: Path) -> None:
    def silent(observation: Observation) -> str:
        return "?" if observation.brief.text.startswith("You teach") else act(observation)

    (record,) = play(Atlas(), silent, task=TASK)
    assert record.answer == "5", "the student's own, since the teacher gave no guidance"
    assert not Atlas().executed((record,))
    assert record.cost.clones == 3
