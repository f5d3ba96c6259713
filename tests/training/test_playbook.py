"""A playbook by a scripted model: what is learned, how it is merged, who is told it, and what it costs."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

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
from selfcest_training.evaluation.playbook import (
    HEADING,
    Addition,
    Bullet,
    Learned,
    Learner,
    Playbook,
    WithPlaybook,
)
from selfcest_training.evaluation.strategies import Instance, Seat, make_strategy

WORDS = WordCounter()
SEAT = Seat(Limits(total_tokens=9000, turn_tokens=200, answer_reserve=8), 0.0, EXPERT, HERMES)
DOUBLE = "Double the sum."


class Model:
    """Adds by a clone and doubles only when it is told to; reflects and curates in JSON."""

    def act(self, observation: Observation, rng: np.random.Generator) -> str:
        system, prompt = observation.messages[0].content, observation.brief.text
        if "Find what to do" in system:
            shown = json.loads(prompt)
            if "Twice" in shown["task"]:
                assert shown["right"] or "10" not in prompt  # the truth is told to nobody
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


def learn(count: int, actor: Model | None = None) -> list[Learned]:
    player = ScriptedPlayer(actor or Model(), lambda own: Rules(own, HERMES, WORDS), codec=None)
    return list(Learner().learn(instances(count), Playbook(), SEAT, player, make_reward("correct")))


def instances(count: int) -> list[Instance]:
    return [Instance(Task(f"t{i}", "Twice 2 + 3?", "10", "own"), i) for i in range(count)]


def test_a_playbook_grows_by_what_went_wrong_and_counts_what_helped() -> None:
    first, second, third = learn(3)
    assert [step.correct for step in (first, second, third)] == [False, True, True]
    assert first.playbook == Playbook((Bullet("root-1", DOUBLE),), (Bullet("clone-2", "Be exact."),), 2)
    assert third.playbook.root == (Bullet("root-1", DOUBLE, helpful=2),)
    assert third.playbook.clone == (Bullet("clone-2", "Be exact.", helpful=2),)
    assert [step.unread for step in (first, second, third)] == [(), (), ()]


def test_what_cannot_be_read_changes_nothing_and_is_counted() -> None:
    (step,) = learn(1, Babbles())
    assert (step.playbook, step.unread, step.correct) == (Playbook(), ("reflector",), False)


def test_a_playbook_is_told_by_role_and_is_not_trusted() -> None:
    told = learn(1)[0].playbook.wording()(HERMES)
    for role, line in ((Role.ROOT, f"[root-1] {DOUBLE}"), (Role.CLONE, "[clone-2] Be exact.")):
        system = told.open(Brief(role, "x"))[0]
        assert system.role is MessageRole.SYSTEM
        assert (system.parts[-1].text, system.parts[-1].trusted) == (f"{HEADING}\n{line}", False)
    assert Playbook().wording()(HERMES).open(Brief(Role.ROOT, "x")) == HERMES.open(Brief(Role.ROOT, "x"))


def test_its_tokens_are_charged_in_every_context_that_holds_it(tmp_path: Path) -> None:
    book = replace(learn(1)[0].playbook, root=())
    file = tmp_path / "book.json"
    file.write_text(book.to_json())
    strategy = make_strategy("playbook", {"file": str(file)}, "strategies.x")
    player = ScriptedPlayer(Model(), lambda own: Rules(own, HERMES, WORDS), codec=None)
    prices = []
    for one in (strategy, WithPlaybook()):
        one.check(SEAT)
        ((record,),) = one.play(instances(1), SEAT, player)
        prices.append([agent.prompt_tokens for agent in record.agents])
    note = book.note(Role.CLONE)
    assert note is not None
    # Roots are told nothing, and a clone all of it.
    assert np.subtract(*prices).tolist() == [0, WORDS.count_text(note.text)]


def test_a_changed_file_is_another_recipe(tmp_path: Path) -> None:
    file = tmp_path / "book.json"
    recipes = []
    for text in ("Add.", "Double."):
        file.write_text(Playbook().grown([Addition(Role.ROOT, text)], 9).to_json())
        recipes.append(json.dumps(WithPlaybook(str(file)).recipe))
    assert recipes[0] != recipes[1]


def test_merging_by_hand() -> None:
    book = Playbook().grown([Addition(Role.ROOT, t) for t in ("Add  it.", "add it", " ", "Halve it.", "Stop.")], most=9)
    assert [(bullet.key, bullet.text) for bullet in book.root] == [
        ("root-1", "Add it."), ("root-2", "Halve it."), ("root-3", "Stop.")
    ]  # fmt: skip
    book = book.marked({"root-1": "helpful", "root-2": "harmful", "root-3": "neutral", "root-9": "harmful"})
    assert [(bullet.helpful, bullet.harmful) for bullet in book.root] == [(1, 0), (0, 1), (0, 0)]
    # Of four the one that harmed goes, then of two that neither helped nor harmed the older one. No key comes again.
    small = book.grown([Addition(Role.ROOT, "Check.")], most=2)
    assert [bullet.key for bullet in small.root] == ["root-1", "root-4"]
    assert small.grown([Addition(Role.CLONE, "Check.")], most=2).clone[0].key == "clone-5"


def test_files_that_are_no_playbook(tmp_path: Path) -> None:
    seat = SEAT
    with pytest.raises(ConfigError, match=r"the playbook .*none.json does not exist; make one with"):
        WithPlaybook(str(tmp_path / "none.json")).check(seat)
    for text, message in (("{", "is no JSON"), ('{"roots": []}', "roots is unknown"), ('{"root": [1]}', "root.0")):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(ConfigError, match=message):
            WithPlaybook(str(tmp_path / "bad.json")).check(seat)


@pytest.mark.slow
def test_the_script_learns_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(
        "name: s\ntasks: {range_sum: {name: range_sum}}\nstrategies: {plain: {}}\npolicy: test_playbook:Source\n"
    )
    root, book = Path(__file__).parents[2], tmp_path / "book.json"
    command = [sys.executable, str(root / "benchmarks" / "playbook.py"), str(tmp_path / "study.yaml"), "--family"]
    for _ in range(2):
        done = subprocess.run(
            [*command, "range_sum", "--tasks", "2", "--playbook", str(book)],
            check=False, capture_output=True, text=True,
            env={"PYTHONPATH": ":".join([*sys.path, str(Path(__file__).parent)])},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("1 for roots, 1 for clones") == 2
    assert Playbook.from_file(book).added == 2


class Source:
    """The scripted model as a study's policy."""

    seeded = False

    def rules(self, limits: Limits) -> Rules:
        return Rules(limits, HERMES, WORDS)

    def fingerprint(self, seed: int) -> str:
        return "scripted"

    def load(self, seed: int) -> ScriptedPlayer:
        return ScriptedPlayer(Model(), self.rules, codec=None)
