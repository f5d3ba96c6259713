"""The expert of tables through the real rollout: it makes no mistake, and a clone knows its documents alone."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from selfcest_agents.policy import RolePolicy, ScriptedPolicy
from selfcest_agents.rollout import RolloutRequest, rollout
from selfcest_agents.scripted import OracleActor
from selfcest_env.graders.wide import Wide, wide_scores
from selfcest_env.record import EpisodeRecord
from selfcest_env.reward import make_reward
from selfcest_env.rules import Rules
from selfcest_env.tasks.mixture import Mixture
from selfcest_env.tasks.source import ExpertSource, Style
from selfcest_env.tasks.support import support_overlap, used_documents
from selfcest_env.tasks.tables import TableQuestion
from selfcest_env.tasks.two_wiki_tables import TwoWikiTables
from selfcest_env.tasks.wide_tables import WideTables
from selfcest_env.text.counters import WordCounter
from selfcest_env.text.hermes import HermesProtocol
from selfcest_env.types import Answer, Limits, Outcome, Role, Task
from selfcest_env.views import Observation

WIDE = {"total_tokens": 400_000, "turn_tokens": 4000, "max_turns": 12, "reply_tokens": 200, "max_clones": 64}
LIMITS_OF_STYLE = {
    Style.DELEGATE: Limits(**WIDE, max_clones_per_call=32),
    Style.READ: Limits(**WIDE, max_depth=0, max_reads=64),
    Style.SOLVE: Limits(**WIDE, max_depth=0),
}


def play(
    source: ExpertSource, tasks: Sequence[Task], style: Style, limits: Limits | None = None
) -> list[EpisodeRecord]:
    rules = Rules(limits or LIMITS_OF_STYLE[style], HermesProtocol(), WordCounter())
    requests = [RolloutRequest(f"e{i}", task, i) for i, task in enumerate(tasks)]
    return rollout(requests, ScriptedPolicy(OracleActor(source, HermesProtocol(), style)), rules)


def draw(source: WideTables, count: int) -> list[Task]:
    rng = np.random.default_rng(0)
    return [source.draw(rng) for _ in range(count)]


def films(tmp_path: Path) -> TwoWikiTables:
    records = [
        {
            "_id": f"{i}",
            "type": "compositional",
            "question": "?",
            "answer": "x",
            "supporting_facts": [[f"Film {i}", 0]],
            "evidences": [[f"Film {i}", "director", f"Al {i} Ek"], [f"Film {i}", "date", f"{1900 + i}"]],
            "context": [[f"Film {i}", [f"Film {i} ({1900 + i}).", f"It is by Al {i} Ek."]], [f"Else {i}", ["No."]]],
        }
        for i in range(7)
    ]
    (tmp_path / "w.json").write_text(json.dumps(records), encoding="utf-8")
    return TwoWikiTables(str(tmp_path / "w.json"), relations=2, max_rows=4, others=1, per_clone=2)


@pytest.mark.parametrize("style", Style)
@pytest.mark.parametrize(("per_clone", "reading"), [(1, "at_once"), (3, "one_by_one")])
def test_villages_are_played_without_mistake_in_every_style(style: Style, per_clone: int, reading: str) -> None:
    source = WideTables(max_columns=8, per_clone=per_clone, reading=reading)
    records = play(source, draw(source, 20), style)
    assert [Wide().grade(record.task, record.answer).correct for record in records] == [True] * 20
    for record in records:
        rows = int(record.task.metadata["size"])
        assert record.cost.clones == (-(-rows // per_clone) if style is Style.DELEGATE else 0)
        reads = sum(turn.facts.outcome is Outcome.READ for turn in record.root.turns)
        assert reads == ((rows if reading == "one_by_one" else 1) if style is Style.READ else 0)
        if style is not Style.SOLVE:
            assert support_overlap(record, HermesProtocol()).exact == 1.0, "no document of another village"


@pytest.mark.parametrize("style", Style)
def test_films_are_played_without_mistake_in_every_style(tmp_path: Path, style: Style) -> None:
    source = films(tmp_path)
    records = play(source, source.tasks(), style)
    assert [wide_scores(record.task, record.answer).success for record in records] == [True, True]
    assert [record.cost.clones for record in records] == ([2, 2] if style is Style.DELEGATE else [0, 0])
    assert [len(record.task.context) for record in records] == [8, 6]


def test_tables_of_the_official_sample() -> None:
    if "SELFCEST_DATA" not in os.environ:
        pytest.skip("SELFCEST_DATA names no folder with samples of the data sets")
    source = TwoWikiTables(str(Path(os.environ["SELFCEST_DATA"]) / "2wikimultihopqa"), others=2)
    for style in Style:
        records = play(source, source.tasks(), style)
        assert all(wide_scores(record.task, record.answer).success for record in records)


def test_what_each_agent_is_told_and_writes() -> None:
    source = WideTables(min_rows=3, max_rows=3, min_columns=1, max_columns=1, per_clone=2)
    (task,) = draw(source, 1)
    header, _, *rows = task.answer.split("\n")
    (record,) = play(source, [task], Style.DELEGATE)
    question = TableQuestion.read(task.prompt)
    assert question is not None
    told = f"Write one line for each of your documents, without a header: {header}"
    assert [(agent.objective, agent.shared_context, agent.reply) for agent in record.agents[1:]] == [
        (told, question.keys[:2], "\n".join(rows[:2])),
        (told, question.keys[2:], rows[2]),
    ]
    assert record.answer == task.answer
    (record,) = play(replace(source, reading="one_by_one"), [task], Style.READ)
    thoughts = [turn.generation.text.split("\n")[0] for turn in record.root.turns]
    assert thoughts[1:3] == rows[:2]
    assert used_documents(record, HermesProtocol()) == {*question.keys}


@dataclass(frozen=True)
class Spoilt:
    """An expert that says something else of one village."""

    expert: OracleActor
    key: str
    says: str

    def act(self, observation: Observation, rng: np.random.Generator) -> str:
        if self.key in observation.brief.documents:
            return HermesProtocol().render(Answer(self.says))
        return self.expert.act(observation, rng)


@pytest.mark.parametrize(
    ("says", "answered", "right"), [("?", 2, 0), ("| {} | wrong |", 3, 1), ("| Nowhere | 7 |\n| {} | wrong |", 3, 1)]
)
def test_a_clone_moves_its_own_part_and_the_number_of_rows(says: str, answered: int, right: int) -> None:
    source = WideTables(min_rows=3, max_rows=3, min_columns=1, max_columns=1)
    (task,) = draw(source, 1)
    question = TableQuestion.read(task.prompt)
    assert question is not None
    spoilt, honest = question.keys[1], OracleActor(source, HermesProtocol())
    clones = ScriptedPolicy(Spoilt(honest, spoilt, says.format(spoilt)))
    policy = RolePolicy({Role.ROOT: ScriptedPolicy(honest), Role.CLONE: clones})
    rules = Rules(LIMITS_OF_STYLE[Style.DELEGATE], HermesProtocol(), WordCounter())
    (record,) = rollout([RolloutRequest("e", task, 0)], policy, rules)
    assert wide_scores(task, record.answer).rows.answered == answered
    scored = make_reward("correct", correct=None, score={}, grader={"name": "wide"}).score(record)
    items = {key: right if key == spoilt else 2 for key in question.keys}
    assert scored.returns_by_part == pytest.approx({key: 2 * n / (2 * (answered + 3)) for key, n in items.items()})
    assert scored.team_return == pytest.approx(sum(scored.returns_by_part.values()))


def test_a_document_that_says_nothing_is_not_made_up() -> None:
    source = WideTables(min_rows=2, max_rows=2)
    (task,) = draw(source, 1)
    key = next(iter(json.loads(str(task.metadata["row_documents"]))))
    emptied = replace(task, context={**task.context, key: f"{key} is a village."})
    for style in (Style.READ, Style.SOLVE):
        (record,) = play(source, [emptied], style)
        assert record.answer == "?"
    (record,) = play(source, [emptied], Style.DELEGATE)
    assert wide_scores(task, record.answer).rows.answered == 1
    (record,) = play(source, [task], Style.READ, Limits(max_depth=0, max_reads=1))
    assert record.answer == "?", "what it may not read"


def test_each_source_knows_its_own_tables(tmp_path: Path) -> None:
    wiki, villages = films(tmp_path), WideTables()
    mixture = Mixture((villages, wiki))
    tasks = [wiki.tasks()[0], *draw(villages, 1)]
    records = play(mixture, tasks, Style.DELEGATE)
    assert all(make_reward("by_source").grade(record).correct for record in records)
    assert play(villages, tasks[:1], Style.DELEGATE)[0].answer == "?"
    assert play(wiki, tasks[1:], Style.DELEGATE)[0].answer == "?"
