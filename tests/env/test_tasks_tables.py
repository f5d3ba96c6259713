"""Sources of tables: what is asked, what stands in the documents, and what an official file must hold."""

import json
import os
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selfcest_env.errors import ConfigError, DataError, TaskError
from selfcest_env.graders.by_source import BySource
from selfcest_env.graders.wide import read_table, wide_scores
from selfcest_env.reward import make_reward
from selfcest_env.tasks import ExpertSource, TaskSource, make_source
from selfcest_env.tasks.finite import FiniteSource
from selfcest_env.tasks.plan import appears_in
from selfcest_env.tasks.support import gold_support
from selfcest_env.tasks.tables import TableQuestion
from selfcest_env.tasks.two_wiki_tables import TwoWikiTables
from selfcest_env.tasks.wide_tables import COLUMNS, NOTES, WideTables
from selfcest_env.tasks.widesearch import WideSearch
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


# WideSearch


QUERY: dict[str, Any] = {
    "instance_id": "ws_en_001",
    "query": "List the rivers. The column names are as follows: River, Length (km), Source.",
    "evaluation": {
        "unique_columns": ["river"],
        "required": ["river", "length(km)", "source"],
        "eval_pipeline": {
            "river": {"preprocess": ["norm_str"], "metric": ["exact_match"]},
            "length(km)": {"preprocess": ["extract_number"], "metric": ["number_near"], "criterion": 0.05},
            "source": {"preprocess": ["norm_str"], "metric": ["url_match"]},
        },
    },
    "language": "en",
}
JUDGED = {
    **QUERY,
    "instance_id": "ws_zh_002",
    "query": "列出河流。",
    "evaluation": {
        "unique_columns": ["river"],
        "required": ["river", "note"],
        "eval_pipeline": {
            "river": {"preprocess": ["norm_str"], "metric": ["exact_match"]},
            "note": {"preprocess": ["norm_str"], "metric": ["llm_judge"], "criterion": "Roughly the same is right."},
        },
    },
    "language": "zh",
}
CSV = {
    "ws_en_001": 'River,Length (km),Source,Remark\r\nRhine,"1,233",https://a.org/r,x\r\nDanube,2850,https://a.org/d,y\r\n',
    "ws_zh_002": 'River,Note\nRhine,"two\nlines | a pipe"\nElbe,\n',
}


def official(
    tmp_path: Path, queries: Sequence[dict[str, Any]] = (QUERY, JUDGED), tables: dict[str, str] = CSV, **options: Any
) -> WideSearch:
    (tmp_path / "widesearch_gold").mkdir(exist_ok=True)
    for name, text in tables.items():
        (tmp_path / "widesearch_gold" / f"{name}.csv").write_text(text, encoding="utf-8", newline="")
    (tmp_path / "widesearch.jsonl").write_text("\n".join(map(json.dumps, queries)), encoding="utf-8")
    return WideSearch(str(options.pop("path", tmp_path / "widesearch.jsonl")), **options)


def test_official_files_are_read(tmp_path: Path) -> None:
    first, second = official(tmp_path).tasks()
    assert first.prompt == QUERY["query"]
    assert first.answer.split("\n") == [
        "| river | length(km) | source |",
        "| --- | --- | --- |",
        "| Rhine | 1,233 | https://a.org/r |",
        "| Danube | 2850 | https://a.org/d |",
    ]
    assert first.context == {}
    facts = {"id": "ws_en_001", "language": "en", "size": 2, "columns": 3, "record": 1}
    assert first.metadata.items() >= facts.items()
    assert second.answer.split("\n")[2:] == ["| Rhine | two lines \\| a pipe |", "| Elbe |  |"]
    answer = "River | Length (km) | Source\nrhine | about 1200 km | https://a.org\nVolga | 3530 | https://b.org"
    scores = wide_scores(first, f"```markdown\n{answer}\n```")
    assert (scores.items.right, scores.rows.right, scores.rows.answered) == (3, 1, 2)
    source = official(tmp_path)
    assert isinstance(source, FiniteSource)
    assert not isinstance(source, ExpertSource)


def test_layouts_of_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = official(tmp_path).tasks()
    assert [task.answer for task in official(tmp_path, path=tmp_path).tasks()] == [task.answer for task in tasks]
    hub = [{**query, "evaluation": json.dumps(query["evaluation"])} for query in (QUERY, JUDGED)]
    assert [task.answer for task in official(tmp_path, hub).tasks()] == [task.answer for task in tasks]
    (tmp_path / "widesearch_gold").rename(tmp_path / "elsewhere")
    monkeypatch.setenv("SOME_GOLD", str(tmp_path))
    source = WideSearch(str(tmp_path / "widesearch.jsonl"), answers="$SOME_GOLD/elsewhere")
    assert [task.answer for task in source.tasks()] == [task.answer for task in tasks]


def test_a_changed_gold_table_is_another_digest(tmp_path: Path) -> None:
    before = official(tmp_path).tasks()[1].metadata["file_digest"]
    assert re.fullmatch("[0-9a-f]{16}", str(before))
    assert official(tmp_path).tasks()[1].metadata["file_digest"] == before
    changed = {**CSV, "ws_en_001": CSV["ws_en_001"].replace("2850", "2851")}
    assert official(tmp_path, tables=changed).tasks()[1].metadata["file_digest"] != before


def test_a_judged_column_is_an_error_before_anything_is_played(tmp_path: Path) -> None:
    tasks = official(tmp_path).tasks()
    reward = make_reward("by_source")
    reward.check(tasks[:1], "here")
    with pytest.raises(ValueError, match=r"here: .* columns note need a judge \(llm_judge\).*judged: exact"):
        reward.check(tasks, "here")
    make_reward("by_source", grader={"name": "wide", "judged": "exact"}).check(tasks, "here")
    assert [task.metadata["id"] for task in official(tmp_path, judged=False).tasks()] == ["ws_en_001"]


def test_rows_with_equal_keys_are_left_out_and_counted(tmp_path: Path) -> None:
    twice = {**CSV, "ws_en_001": CSV["ws_en_001"] + "rhine,1,https://c.org,z\n"}
    with pytest.warns(UserWarning, match=r"ws_en_001\.csv: left out 1 of 3 rows, whose river an earlier row has"):
        task = official(tmp_path, tables=twice).tasks()[0]
    assert task.answer == official(tmp_path).tasks()[0].answer


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in QUERY.items() if name != key}


def evaluation(**keys: Any) -> dict[str, Any]:
    return {**QUERY, "evaluation": {**QUERY["evaluation"], **keys}}


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (without("query"), "query is missing; expected a string"),
        ({**QUERY, "query": " "}, "query is ' '; expected a text that is not empty"),
        (without("instance_id"), "instance_id is missing; expected a string"),
        ({**QUERY, "instance_id": "ws_en_009"}, r"instance_id is 'ws_en_009', but there is no gold table .*9\.csv"),
        ({**QUERY, "instance_id": "../x"}, r"instance_id is '\.\./x'; expected letters, digits"),
        (without("evaluation"), "evaluation is missing; expected an object"),
        ({**QUERY, "evaluation": "{"}, "evaluation is '{'; expected an object, or one as JSON"),
        (evaluation(required=[]), r"evaluation cannot be used: required is \[\]; expected a list of column names"),
        (
            evaluation(required=["river", "depth"], eval_pipeline={"depth": {"metric": ["exact_match"]}}),
            r"evaluation.required names depth; found in .*ws_en_001\.csv: river, length\(km\), source, remark",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_names_file_record_and_key(tmp_path: Path, query: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=rf"widesearch\.jsonl:2, record 2: {said}"):
        official(tmp_path, [JUDGED, query]).tasks()
    with pytest.warns(UserWarning, match="left out 1 records"):
        assert len(official(tmp_path, [JUDGED, query], skip_faulty=True).tasks()) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("River,Length (km),Source\n", "names river, length\\(km\\), source; found in .*: no row"),
        ("River,Length (km),Source\nRhine,1\n", r"ws_en_001\.csv:2, record 1: 2 cells; expected 3"),
        ("River,Length (km),Source\n-,-,-\n", "whose gold table .* no Markdown table can hold"),
    ],
)
def test_a_gold_table_that_cannot_be_used_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        official(tmp_path, [QUERY], {"ws_en_001": text}).tasks()


def test_the_hub_has_no_gold_tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub = [replace_evaluation(query) for query in (QUERY, JUDGED)]
    monkeypatch.setattr("selfcest_env.tasks.files._hub_rows", lambda path: tuple(hub))
    with pytest.raises(
        DataError, match="do not contain the gold tables; download the folder widesearch_gold of .* name"
    ):
        WideSearch("hub:ByteDance-Seed/WideSearch:full").tasks()
    official(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tasks = WideSearch("hub:ByteDance-Seed/WideSearch:full", answers=str(tmp_path / "widesearch_gold")).tasks()
    assert [task.metadata["id"] for task in tasks] == ["ws_en_001", "ws_zh_002"]


def replace_evaluation(query: dict[str, Any]) -> dict[str, Any]:
    return {**query, "evaluation": json.dumps(query["evaluation"])}
