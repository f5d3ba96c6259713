"""Sources of tables: what is asked, what stands in the documents, and what an official file must hold."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selfcest_env.errors import ConfigError, DataError, TaskError
from selfcest_env.graders.by_source import BySource
from selfcest_env.graders.wide import read_table, wide_scores
from selfcest_env.reward import make_reward
from selfcest_env.tasks import TaskSource, make_source
from selfcest_env.tasks.plan import appears_in
from selfcest_env.tasks.support import gold_support
from selfcest_env.tasks.tables import TableQuestion
from selfcest_env.tasks.two_wiki_tables import TwoWikiTables
from selfcest_env.tasks.wide_tables import COLUMNS, NOTES, WideTables
from selfcest_env.types import Task


def draw(source: TaskSource, count: int, seed: int = 0) -> list[Task]:
    rng = np.random.default_rng(seed)
    return [source.draw(rng) for _ in range(count)]


# Questions


@pytest.mark.parametrize(
    "question",
    [
        TableQuestion(("village", "river"), ("Ulby", "Orham")),
        TableQuestion(("title", "date of birth"), ("Harvest: 3,000 Years", "A | B; C.")),
        TableQuestion(("title", "a|b")),
    ],
)
def test_questions_read_back(question: TableQuestion) -> None:
    assert TableQuestion.read(question.write()) == question


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Make a Markdown table.",
        TableQuestion(("a", "b"), ("x",)).write() + "\n",
        TableQuestion(("a", "b"), ("x",)).write() + "\ny",
        TableQuestion(("a", "b")).write() + "\n- x",
        TableQuestion(("a", "b")).write().replace(" |", "|"),
    ],
)
def test_other_questions_are_foreign(text: str) -> None:
    assert TableQuestion.read(text) is None


# Villages


def test_a_drawn_table_is_what_the_documents_say() -> None:
    source = WideTables(min_rows=2, max_rows=5, min_columns=1, max_columns=8, unnamed=3, notes=4)
    widths, heights = set(), set()
    for task in draw(source, 100):
        question, table = TableQuestion.read(task.prompt), read_table(task.answer)
        assert question is not None
        assert table is not None
        assert table.columns == question.columns
        assert tuple(row[0] for row in table.rows) == question.keys
        assert len(task.context) == len(question.keys) + 3 == task.metadata["documents"]
        for row in table.rows:
            text = task.context[row[0]]
            assert all(value in text for value in row)
            assert sum(note in text for note in NOTES) == 4
            assert text.count(".") == 1 + len(COLUMNS) + 4
        assert gold_support(task) == {*question.keys}
        widths.add(len(table.columns) - 1)
        heights.add(task.metadata["size"])
    assert (widths, heights) == ({*range(1, 9)}, {2, 3, 4, 5})
    assert draw(source, 5) == draw(source, 5) != draw(source, 5, seed=1)


def test_rows_have_the_document_that_they_are_about() -> None:
    (task,) = draw(WideTables(min_rows=3, max_rows=3, min_columns=2, max_columns=2), 1)
    lines = task.answer.split("\n")
    grade = BySource().grade(task, "\n".join(lines[:3] + lines[4:]))
    keys = [line.split(" | ")[0].removeprefix("| ") for line in lines[2:]]
    assert [part.key for part in grade.parts] == keys
    assert [part.score for part in grade.parts] == pytest.approx([6 / 15, 0, 6 / 15])
    assert grade.score == pytest.approx(12 / 15)
    make_reward("by_source").check([task], "here")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"min_rows": 9}, "min_rows is 9, above max_rows = 8"),
        ({"max_rows": 201}, r"wide_tables.max_rows is 201; expected .* from 1 to 200"),
        ({"max_columns": 9}, r"wide_tables.max_columns is 9; expected .* from 1 to 8"),
        ({"notes": 13}, "wide_tables.notes is 13"),
        ({"per_clone": 0}, "wide_tables.per_clone is 0"),
        ({"reading": "twice"}, "wide_tables.reading is 'twice'; expected one of at_once, one_by_one"),
    ],
)
def test_bad_knobs_of_villages(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_source("wide_tables", **options)


# 2WikiMultihopQA


def wiki(number: int, evidences: list[list[str]], context: dict[str, str], support: Sequence[str]) -> dict[str, Any]:
    return {
        "_id": f"w{number}",
        "type": "comparison",
        "question": f"Question {number}?",
        "answer": "x",
        "context": [[title, text.split("/")] for title, text in context.items()],
        "supporting_facts": [[title, 0] for title in support],
        "evidences": evidences,
    }


RECORDS = [
    wiki(
        0,
        [["First Blood", "director", "Ann Lee"], ["Ann Lee", "date of birth", "3 May 1960"]],
        {"First Blood (film)": "First Blood is by Ann Lee.", "Ann Lee": "Ann Lee/(born 3 May 1960).", "Else": "No."},
        ["First Blood (film)", "Ann Lee"],
    ),
    wiki(
        1,
        [
            ["Later", "director", "Bo Ek"],
            ["Bo Ek", "date of birth", "July 9, 1960"],  # is spelled in another way
            ["Ann Lee", "country", "Sweden"],
            ["Ann Lee", "place of birth", "Ulm"],  # no paragraph of hers says so
        ],
        {"Later": "Later is by Bo Ek.", "Bo Ek": "Bo Ek, born 9 July 1960.", "Ann Lee": "Another text of Sweden."},
        ["Later", "Bo Ek", "Ann Lee"],
    ),
    wiki(
        2,
        [
            ["Third", "director", "Cy Dahl"],
            ["Third", "director", "Di Falk"],  # two
            ["Cy Dahl", "date of birth", "1 June 1950"],
            ["Ann Lee", "date of birth", "3 May 1960"],  # once more
            ["Nobody", "director", "Ann Lee"],  # without a paragraph
            ["Fourth", "director", "Cy Dahl"],  # whose paragraph supports nothing
        ],
        {
            "Third": "Third is by Cy Dahl and Di Falk.",
            "Cy Dahl": "Cy Dahl was born on 1 June 1950.",
            "Ann Lee": "Ann Lee (born 3 May 1960).",
            "Fourth": "Fourth is by Cy Dahl.",
        },
        ["Third", "Cy Dahl", "Ann Lee"],
    ),
    wiki(
        3,
        [["Fifth | Half", "director", "Ann Lee"], ["Later", "director", "Bo Ek"]],
        {"Fifth | Half": "Fifth | Half is by Ann Lee.", "Later": "Later is by Bo Ek, too."},
        ["Fifth | Half", "Later"],
    ),
]


def tables(tmp_path: Path, records: Sequence[dict[str, Any]] = RECORDS, **options: Any) -> TwoWikiTables:
    (tmp_path / "w.json").write_text(json.dumps(records), encoding="utf-8")
    return TwoWikiTables(str(tmp_path / "w.json"), **options)


def test_rows_are_facts_that_stand_in_their_own_paragraph(tmp_path: Path) -> None:
    films, people = tables(tmp_path, min_rows=2).tasks()
    assert films.answer.split("\n") == [
        "| title | director |",
        "| --- | --- |",
        "| First Blood (film) | Ann Lee |",
        "| Later | Bo Ek |",
        "| Fifth \\| Half | Ann Lee |",
    ]
    assert people.answer.split("\n")[2:] == ["| Ann Lee | 3 May 1960 |", "| Cy Dahl | 1 June 1950 |"]
    assert people.context == {"Ann Lee": "Ann Lee (born 3 May 1960).", "Cy Dahl": "Cy Dahl was born on 1 June 1950."}
    assert films.context["Later"] == "Later is by Bo Ek.", "the first paragraph with that title"
    assert (films.metadata["size"], films.metadata["record"], films.metadata["file"]) == (3, 1, "w.json")
    make_reward("by_source").check([films, people], "here")


def test_evidence_that_does_not_agree_makes_no_row(tmp_path: Path) -> None:
    other = wiki(4, [["Later", "director", "Cy"]], {"Later": "Later, by Cy."}, ["Later"])
    both = wiki(5, [["Later", "director", "Cy"]], {"Later": "Later, by Bo Ek or Cy."}, ["Later"])
    (films, _) = tables(tmp_path, [*RECORDS, other], min_rows=2).tasks()
    assert "| Later | Bo Ek |" in films.answer, "Cy does not stand in the first paragraph"
    (films, _) = tables(tmp_path, [both, *RECORDS], min_rows=2).tasks()
    assert "Later" not in films.answer


def test_no_table_that_the_grader_would_refuse(tmp_path: Path) -> None:
    """Titles that it takes for one, a relation named like the key, and what reads as a missing cell."""
    records = [
        wiki(4, [["Stop Loss", "director", "Cy"]], {"Stop Loss": "Stop Loss is by Cy."}, ["Stop Loss"]),
        wiki(5, [["Stoploss", "director", "Di"]], {"Stoploss": "Stoploss is by Di."}, ["Stoploss"]),
        wiki(6, [["Later", "Title", "Cy"]], {"Later": "Later, or Cy."}, ["Later"]),
        wiki(7, [["Stop Loss", "Title", "Cy"]], {"Stop Loss": "Stop Loss is by Cy."}, ["Stop Loss"]),
        wiki(8, [["NA", "director", "Cy"]], {"NA": "NA is by Cy."}, ["NA"]),
        wiki(9, [["Sixth", "director", "None"]], {"Sixth": "Sixth is by None."}, ["Sixth"]),
    ]
    films, _ = (found := tables(tmp_path, [*RECORDS, *records], min_rows=2).tasks())
    assert "| Stop Loss | Cy |" in films.answer
    assert not any(word in films.answer for word in ("Stoploss", "NA", "None"))
    make_reward("by_source").check(found, "here")
    for task in found:
        assert wide_scores(task, task.answer).success


def test_columns_rows_and_other_paragraphs(tmp_path: Path) -> None:
    assert [task.metadata["size"] for task in tables(tmp_path, min_rows=1, max_rows=2).tasks()] == [2, 1, 2]
    film = tables(tmp_path, min_rows=2, others=1).tasks()[0]
    assert sorted(film.context) == ["Ann Lee", "Bo Ek", "Fifth | Half", "First Blood (film)", "Later"]
    with pytest.raises(ConfigError, match=r"two_wiki_tables\.min_rows is 9, above max_rows = 8"):
        tables(tmp_path, min_rows=9)
    with pytest.raises(TaskError, match="two_wiki_tables: no task in"):
        tables(tmp_path, min_rows=4).tasks()


def test_several_relations_are_columns_of_one_table(tmp_path: Path) -> None:
    records = [
        wiki(i, [[name, "born", f"{1900 + i}"], [name, "died", f"{1980 + i}"], [name, "child", "Al"]],
             {name: f"{name} ({1900 + i} to {1980 + i})."}, [name])
        for i, name in enumerate("ABCD")
    ]  # fmt: skip
    (task,) = tables(tmp_path, records, relations=2).tasks()
    assert task.answer.split("\n")[::3] == ["| title | born | died |", "| B | 1901 | 1981 |"]
    assert len(tables(tmp_path, records).tasks()) == 2


def test_a_split_is_by_subject(tmp_path: Path) -> None:
    names = [f"Film {i}" for i in range(60)]
    records = [
        wiki(i, [[name, "director", "Al Ek"]], {name: f"{name} by Al Ek."}, [name]) for i, name in enumerate(names)
    ]
    rows = {
        part: {key for task in tables(tmp_path, records, part=part, test_fraction=0.4).tasks() for key in task.context}
        for part in ("train", "test")
    }
    assert not rows["train"] & rows["test"]
    assert len(rows["train"] | rows["test"]) >= 56, "at most two rows of each part are too few for a table"
    assert 10 < len(rows["test"]) < 40


def test_a_faulty_record_is_named_or_left_out_and_counted(tmp_path: Path) -> None:
    faulty = {**RECORDS[0], "evidences": [["a", "b"]]}
    with pytest.raises(DataError, match=r"w\.json:1, record 5: evidences is .*; expected a list of \[subject"):
        tables(tmp_path, [*RECORDS, faulty]).tasks()
    with pytest.warns(UserWarning, match="two_wiki_tables: left out 1 records of .*: faulty .*record 5: evidences"):
        assert len(tables(tmp_path, [*RECORDS, faulty], min_rows=2, skip_faulty=True).tasks()) == 2


def test_tables_of_the_official_sample() -> None:
    if "SELFCEST_DATA" not in os.environ:
        pytest.skip("SELFCEST_DATA names no folder with samples of the data sets")
    source = TwoWikiTables(str(Path(os.environ["SELFCEST_DATA"]) / "2wikimultihopqa"))
    tasks = source.tasks()
    cells = 0
    for task in tasks:
        table = read_table(task.answer)
        assert table is not None
        for title, *values in table.rows:
            assert all(appears_in(value, task.context[title]) for value in values)
            cells += len(values)
    assert (len(tasks), sum(int(task.metadata["size"]) for task in tasks), cells) == (18, 134, 134)
    make_reward("by_source").check(tasks, "here")
