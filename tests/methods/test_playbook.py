"""A playbook by a scripted model: what is learned, how it is merged, who is told it, and what it costs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, get_args

import numpy as np
import pytest
from study_players import EXPERT, HERMES, ScriptedPlayer

from selfcest_env.errors import ConfigError
from selfcest_env.protocol import Brief
from selfcest_env.reward import make_reward
from selfcest_env.rules import Rules
from selfcest_env.text.counters import WordCounter
from selfcest_env.types import Answer, CloneRequest, Delegate, Limits, MessageRole, Role, Task
from selfcest_env.views import Observation
from selfcest_eval.play.config import load_study
from selfcest_eval.play.instances import instances_of, source_of
from selfcest_eval.play.strategies import Instance, PlayContext, make_strategy
from selfcest_methods.atlas import Memory
from selfcest_methods.learn_playbook import run as run_command
from selfcest_methods.playbook import (
    HEADING,
    Addition,
    Bullet,
    Gold,
    LearningStep,
    Playbook,
    PlaybookLearner,
    WithPlaybook,
    get_task_identity,
)

ROOT = Path(__file__).parents[2]
Script = Callable[..., tuple[int, str, str]]
WORDS = WordCounter()
PLAY_CONTEXT = PlayContext(Limits(total_tokens=9000, turn_tokens=200, answer_reserve=8), 0.0, EXPERT, HERMES)
DOUBLE = "Double the sum."


class Model:
    """Adds by a clone and doubles only when it is told to; reflects and curates in JSON."""

    def act(self, observation: Observation, rng: np.random.Generator) -> str:
        system, prompt = observation.messages[0].content, observation.brief.text
        if "Find what to do" in system:
            shown = json.loads(prompt)
            if "Twice" in shown["task"]:
                assert shown["right"] or "10" not in prompt  # a verdict is no answer
            marks = dict.fromkeys(shown["advice"], "helpful" if shown["right"] else "harmful")
            lesson = "all well" if shown["right"] else "it was not doubled"
            return HERMES.render(Answer(json.dumps({"lesson": lesson, "marks": marks})))
        if "what the lesson adds" in " ".join(system.split()) or "nothing that is there" in system:
            wrong = "not" in json.loads(prompt)["lesson"]
            new = [{"role": "root", "text": DOUBLE}, {"role": "clone", "text": "Be exact."}]
            return HERMES.render(Answer(json.dumps(new if wrong else [])))
        if observation.role is Role.CLONE:
            return HERMES.render(Answer("5"))
        if not observation.exchanges:
            return HERMES.render(Delegate((CloneRequest("2 + 3"),)))
        return HERMES.render(Answer("10" if DOUBLE in system else "5"))


class Babbles(Model):
    """Whoever is to write JSON does not."""

    def act(self, observation: Observation, rng: np.random.Generator) -> str:
        text = super().act(observation, rng)
        return "Answer: be good" if '"lesson"' in text or text.endswith("]") else text


@dataclass
class Reflects(Model):
    """Whoever reflects writes this, and what it was shown is kept."""

    wrote: str = ""
    shown: list[dict[str, object]] = field(default_factory=list)

    def act(self, observation: Observation, rng: np.random.Generator) -> str:
        if "Find what to do" not in observation.messages[0].content:
            return super().act(observation, rng)
        self.shown.append(json.loads(observation.brief.text))
        return self.wrote


LESSON = '{"lesson": "it was not doubled", "marks": {}}'


def learn(
    count: int, actor: Model | None = None, gold: Gold = "verdict", playbook: Playbook | None = None
) -> list[LearningStep]:
    player = ScriptedPlayer(actor or Model(), lambda own: Rules(own, HERMES, WORDS), codec=None)
    learner = PlaybookLearner(gold=gold)
    return list(learner.learn(instances(count), playbook or Playbook(), PLAY_CONTEXT, player, make_reward("correct")))


def instances(count: int) -> list[Instance]:
    return [Instance(Task(f"t{i}", "Twice 2 + 3?", "10", "own"), i) for i in range(count)]


def test_a_playbook_grows_by_what_went_wrong_and_counts_what_helped() -> None:
    first, second, third = learn(3)
    assert [step.correct for step in (first, second, third)] == [False, True, True]
    assert first.playbook == Playbook((Bullet("root-1", DOUBLE),), (Bullet("clone-2", "Be exact."),), 2, ("t0",))
    assert third.playbook.root == (Bullet("root-1", DOUBLE, helpful=2),)
    assert third.playbook.clone == (Bullet("clone-2", "Be exact.", helpful=2),)
    assert [step.unread for step in (first, second, third)] == [(), (), ()]


def test_what_cannot_be_read_changes_nothing_and_is_counted() -> None:
    (step,) = learn(1, Babbles())
    assert (step.playbook, step.unread, step.correct) == (Playbook(tasks=("t0",)), ("reflector",), False)


@pytest.mark.parametrize(
    "wrote",
    [
        f"Answer: {LESSON}",
        f"Answer: ```json\n{LESSON}\n```",
        f"Answer:\n```\n{LESSON}\n```\nThat is all.",
        f"**Answer:** {LESSON}",
        f"Answer: The lesson is {LESSON}.",
        f"Answer: for {{every}} task\n```JSON\n{LESSON}\n```",
        "Answer: " + LESSON.replace("it was", "end with 'Answer: X'; it was"),
        "```json\n" + LESSON.replace("it was", "end with 'Answer: X'; it was") + "\n```",
    ],
)
def test_json_is_read_with_words_and_fences_around_it(wrote: str) -> None:
    (step,) = learn(1, Reflects(wrote))
    assert (step.unread, step.playbook.added) == ((), 2)


@pytest.mark.parametrize(
    "wrote",
    [
        LESSON,  # no answer
        f"Before: {LESSON}\nAnswer: none",
        f"Answer: [{LESSON}, {LESSON}]",
        f"Answer: {LESSON} {LESSON}",
        "Answer: " + LESSON.replace("lesson", "lessons"),
        "Answer: " + "{" * 5000 + "}",
        "Answer: }{",
        "Answer: __import__('os').getcwd()",
    ],
)
def test_json_of_another_form_is_not_read(wrote: str) -> None:
    (step,) = learn(1, Reflects(wrote))
    assert (step.unread, step.playbook) == (("reflector",), Playbook(tasks=("t0",)))


def test_a_list_is_read_with_words_and_fences_around_it() -> None:
    class Curates(Model):
        def act(self, observation: Observation, rng: np.random.Generator) -> str:
            text = super().act(observation, rng)
            return text.replace("[", "Here:\n```json\n[") + "\n```" if text.endswith("]") else text

    (step,) = learn(1, Curates())
    assert (step.unread, step.playbook.added) == ((), 2)


def test_what_the_reflector_is_told_of_the_truth() -> None:
    told = {}
    for gold in get_args(Gold):
        reflects = Reflects(f"Answer: {LESSON}")
        learn(1, reflects, gold)
        (told[gold],) = reflects.shown
    known = {"task", "agents", "advice"}
    assert {gold: set(shown) - known for gold, shown in told.items()} == {
        "none": set(), "verdict": {"right"}, "answer": {"right", "right answer"}
    }  # fmt: skip
    assert told["answer"]["right answer"] == "10"
    assert "10" not in json.dumps([told["none"], told["verdict"]])
    assert PlaybookLearner().gold == "none"


def test_no_task_is_learned_from_twice() -> None:
    first, second, third = learn(3)
    assert third.playbook.tasks == ("t0", "t1", "t2")
    assert learn(3, playbook=first.playbook) == [second, third]
    assert learn(3, playbook=third.playbook) == []


def test_a_task_that_was_learned_from_is_not_played(tmp_path: Path) -> None:
    file = tmp_path / "book.json"
    file.write_text(learn(1)[0].playbook.to_json())
    player = ScriptedPlayer(Model(), lambda own: Rules(own, HERMES, WORDS), codec=None)
    with pytest.raises(ConfigError, match="was learned from the task t0 that is to be played, and may hold its answer"):
        WithPlaybook(str(file)).play(instances(2)[::-1], PLAY_CONTEXT, player)
    assert len(WithPlaybook(str(file)).play(instances(2)[1:], PLAY_CONTEXT, player)) == 1


def test_a_question_is_known_whatever_documents_surround_it() -> None:
    @dataclass(frozen=True)
    class Questions:
        name: ClassVar[str] = "questions"

        def draw(self, rng: np.random.Generator) -> Task:
            raise NotImplementedError

        def identity(self, task: Task) -> str | None:
            return task.prompt

    context = replace(PLAY_CONTEXT, source=Questions())
    player = ScriptedPlayer(Model(), lambda own: Rules(own, HERMES, WORDS), codec=None)
    learner = PlaybookLearner(gold="verdict")
    steps = list(learner.learn(instances(2), Playbook(), context, player, make_reward("correct")))
    assert [step.playbook.tasks for step in steps] == [("Twice 2 + 3?",)]


def test_a_playbook_is_told_by_role_and_is_not_trusted() -> None:
    told = learn(1)[0].playbook.prompt_variant()(HERMES)
    for role, line in ((Role.ROOT, f"[root-1] {DOUBLE}"), (Role.CLONE, "[clone-2] Be exact.")):
        system = told.open(Brief(role, "x"))[0]
        assert system.role is MessageRole.SYSTEM
        assert (system.parts[-1].text, system.parts[-1].trusted) == (f"{HEADING}\n{line}", False)
    assert Playbook().prompt_variant()(HERMES).open(Brief(Role.ROOT, "x")) == HERMES.open(Brief(Role.ROOT, "x"))


def test_its_tokens_are_charged_in_every_context_that_holds_it(tmp_path: Path) -> None:
    book = replace(learn(1)[0].playbook, root=(), tasks=())
    file = tmp_path / "book.json"
    file.write_text(book.to_json())
    strategy = make_strategy("playbook", {"file": str(file)}, "strategies.x")
    player = ScriptedPlayer(Model(), lambda own: Rules(own, HERMES, WORDS), codec=None)
    prices = []
    for one in (strategy, WithPlaybook()):
        one.check(PLAY_CONTEXT)
        ((record,),) = one.play(instances(1), PLAY_CONTEXT, player)
        prices.append([agent.prompt_tokens for agent in record.agents])
    note = book.note(Role.CLONE)
    assert note is not None
    # Roots are told nothing, and a clone all of it.
    assert np.subtract(*prices).tolist() == [0, WORDS.count_text(note.text)]


def test_a_changed_file_is_another_recipe(tmp_path: Path) -> None:
    file = tmp_path / "book.json"
    recipes = []
    for text in ("Add.", "Double."):
        file.write_text(Playbook().with_additions([Addition(Role.ROOT, text)], 9).to_json())
        recipes.append(json.dumps(WithPlaybook(str(file)).recipe))
    assert recipes[0] != recipes[1]


def test_merging_by_hand() -> None:
    texts = ("Add  it.", "add it", " ", "Halve it.", "Stop.")
    book = Playbook().with_additions([Addition(Role.ROOT, text) for text in texts], max_bullets=9)
    assert [(bullet.key, bullet.text) for bullet in book.root] == [
        ("root-1", "Add it."), ("root-2", "Halve it."), ("root-3", "Stop.")
    ]  # fmt: skip
    book = book.with_marks({"root-1": "helpful", "root-2": "harmful", "root-3": "neutral", "root-9": "harmful"})
    assert [(bullet.helpful, bullet.harmful) for bullet in book.root] == [(1, 0), (0, 1), (0, 0)]
    # Of four the one that harmed goes, then of two that neither helped nor harmed the older one. No key comes again.
    small = book.with_additions([Addition(Role.ROOT, "Check.")], max_bullets=2)
    assert [bullet.key for bullet in small.root] == ["root-1", "root-4"]
    assert small.with_additions([Addition(Role.CLONE, "Check.")], max_bullets=2).clone[0].key == "clone-5"


def test_what_is_new_displaces_what_helped_least() -> None:
    def texts(book: Playbook) -> list[str]:
        return [bullet.text for bullet in book.root]

    def grown(book: Playbook, *texts: str) -> Playbook:
        return book.with_additions([Addition(Role.ROOT, text) for text in texts], max_bullets=3)

    book = grown(Playbook(), "a", "b", "c")
    for marks in ({1: "helpful", 2: "helpful", 3: "helpful"}, {1: "helpful", 3: "helpful"}):
        book = book.with_marks({f"root-{key}": mark for key, mark in marks.items()})  # type: ignore[misc]
    # All have helped, b least: the new one has its place, and until it has helped it makes room for the next.
    assert texts(grown(book, "d")) == ["a", "c", "d"]
    assert texts(grown(grown(book, "d"), "e")) == ["a", "c", "e"]
    proven = grown(book, "d")
    for _ in range(3):
        proven = proven.with_marks({"root-4": "helpful"})
    assert texts(grown(proven, "e")) == ["c", "d", "e"]  # of a and c, equally helpful, the older
    # However many are added, one that has helped is lost, and the last one is tried.
    assert texts(grown(book, *"defgh")) == ["a", "c", "h"]
    assert texts(grown(book.with_marks({"root-1": "harmful"}), "a", "B", "c!")) == ["a", "b", "c"]  # no news, no room
    full = Playbook(tuple(Bullet(f"root-{i}", f"{i}", helpful=1) for i in range(20, 50)), (), 50)
    (step,) = learn(1, Reflects(f"Answer: {LESSON}"), playbook=full)
    assert (len(step.playbook.root), step.displaced, step.playbook.root[-1].text) == (30, 1, DOUBLE)


def test_files_that_are_no_playbook(tmp_path: Path) -> None:
    context = PLAY_CONTEXT
    with pytest.raises(ConfigError, match=r"the playbook .*none.json does not exist; make one with"):
        WithPlaybook(str(tmp_path / "none.json")).check(context)
    bullet = '{"root": [{"key": "root-1", "text": "Add."}]'
    for text, message in (
        ("{", "is no JSON"),
        (bullet + "}", "has bullets and no list of the tasks that it was learned from; make it again"),
        ('{"roots": []}', "roots is unknown"),
        ('{"root": [1]}', "root.0"),
    ):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(ConfigError, match=message):
            WithPlaybook(str(tmp_path / "bad.json")).check(context)
    for text in (bullet + ', "tasks": []}', "{}"):
        (tmp_path / "good.json").write_text(text)
        WithPlaybook(str(tmp_path / "good.json")).check(context)


STUDY = "name: s\ntasks: {range_sum: {name: range_sum}}\nstrategies: {plain: {}}\npolicy: test_playbook:Source\n"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Script:
    """The command as a function of the study and of its arguments; gives its exit code and what it printed."""

    def run(study: str, *arguments: str) -> tuple[int, str, str]:
        (tmp_path / "study.yaml").write_text(study)
        given = [
            "learn_playbook",
            str(tmp_path / "study.yaml"),
            "--playbook",
            str(tmp_path / "book.json"),
            *arguments,
        ]
        monkeypatch.setattr(sys, "argv", given)
        try:
            run_command()
            code = 0
        except SystemExit as end:
            code = int(str(end.code))
        return (code, *capsys.readouterr())

    return run


def test_the_script_goes_on_where_it_stopped(script: Script, tmp_path: Path) -> None:
    book = tmp_path / "book.json"
    family = ("--family", "range_sum")
    code, whole, _ = script(STUDY, *family, "--tasks", "3")
    assert (code, whole.count(" tokens; 1 for roots, 1 for clones")) == (0, 3)
    learned = book.read_text()
    assert len(set(Playbook.from_file(book).tasks)) == 3
    assert script(STUDY, *family, "--tasks", "3")[1] == f"3 of 3 tasks are in {book} and not played again\n"
    book.unlink()
    script(STUDY, *family, "--tasks", "1")
    code, rest, _ = script(STUDY, *family, "--tasks", "3")
    assert rest.splitlines() == [f"1 of 3 tasks are in {book} and not played again", *whole.splitlines()[1:]]
    assert book.read_text() == learned


def test_the_script_also_learns_the_memory_of_atlas(script: Script, tmp_path: Path) -> None:
    arguments = ("--family", "range_sum", "--tasks", "2", "--strategy", "atlas")
    code, out, _ = script(STUDY, *arguments)
    assert (code, out.count(" tokens, paired; 0 entries")) == (0, 2)
    book = tmp_path / "book.json"
    assert len(Memory.from_file(book).tasks) == 2
    assert script(STUDY, *arguments)[1] == f"2 of 2 tasks are in {book} and not played again\n"


def test_the_script_learns_from_nothing_that_the_study_plays(script: Script, tmp_path: Path) -> None:
    rows = [{"question": f"What is {i} and {i}?", "answer": str(2 * i)} for i in range(30)]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tasks = f"{{name: questions, options: {{path: {tmp_path / 'own.jsonl'}}}}}"
    study = STUDY.replace("{name: range_sum}", tasks) + "episodes: 20\n"
    code, _, said = script(study, "--family", "range_sum", "--tasks", "30")
    assert (code, "different ones that training may draw and the study does not play" in said) == (2, True)
    assert script(study, "--family", "range_sum", "--tasks", "2")[0] == 0
    config = load_study(tmp_path / "study.yaml")
    (cell,) = config.eval_sets
    source = source_of(config, cell)
    played = {get_task_identity(task, source) for task in instances_of(config, cell, source)}
    assert len(played) == 20
    assert not played & set(Playbook.from_file(tmp_path / "book.json").tasks)


@pytest.mark.parametrize(
    ("study", "arguments", "said"),
    [
        (STUDY, ("--family", "sums"), "--family is sums; expected one of range_sum"),
        (STUDY, ("--family", "range_sum", "--tasks", "0"), "--tasks is 0; expected a whole number >= 1"),
        (STUDY, ("--family", "range_sum", "--max-bullets", "0"), "max_bullets is 0; expected a whole number >= 1"),
        (STUDY, ("--family", "range_sum", "--gold", "all"), "gold is 'all'; expected one of none, verdict, answer"),
        (
            STUDY,
            ("--family", "range_sum", "--strategy", "board"),
            "--strategy is board; expected one of playbook, atlas",
        ),
        (STUDY, ("--family", "range_sum", "--playbook", "/none/x.json"), "whose folder does not exist"),
        (STUDY + "stategies: {}\n", ("--family", "range_sum"), "stategies"),
        (STUDY + "limits: {total_tokens: -1}\n", ("--family", "range_sum"), "total_tokens is -1"),
        (STUDY.replace("test_playbook", "no_module"), ("--family", "range_sum"), "no_module"),
        ("tasks: [", ("--family", "range_sum"), "study.yaml"),
    ],
)
def test_what_is_configured_wrongly_is_one_line(
    script: Script, study: str, arguments: tuple[str, ...], said: str
) -> None:
    code, out, err = script(study, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("selfcest: ")
    assert said in err


@pytest.mark.slow
def test_the_script_is_a_command(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(STUDY)
    for family, code in (("range_sum", 0), ("sums", 2)):
        done = subprocess.run(
            [sys.executable, "-m", "selfcest_methods.learn_playbook", str(tmp_path / "study.yaml"),
             "--family", family, "--tasks", "2", "--playbook", str(tmp_path / "book.json")],
            check=False, capture_output=True, text=True,
            env={"PYTHONPATH": ":".join(sys.path)},
        )  # fmt: skip
        assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert Playbook.from_file(tmp_path / "book.json").added == 2


class Source:
    """The scripted model as a study's policy."""

    seeded = False

    def rules(self, limits: Limits) -> Rules:
        return Rules(limits, HERMES, WORDS)

    def fingerprint(self, seed: int) -> str:
        return "scripted"

    def load(self, seed: int) -> ScriptedPlayer:
        return ScriptedPlayer(Model(), self.rules, codec=None)
