"""The file layer: layouts, errors that name file, record and key, splits, shared questions, and the hub."""

import json
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from selfcest_env.errors import ConfigError, DataError, TaskError
from selfcest_env.tasks import make_source
from selfcest_env.tasks.contamination import contamination_table, find_shared_questions
from selfcest_env.tasks.files import Record, content_digest, read_records
from selfcest_env.tasks.finite import FileSource, FiniteSource, squeeze
from selfcest_env.tasks.long_context import Distractors
from selfcest_env.tasks.mixture import Mixture
from selfcest_env.tasks.qa import UserQuestions
from selfcest_env.tasks.range_sum import RangeSum
from selfcest_env.tasks.splits import HashedSplit, part_of
from selfcest_env.types import Task

ROWS = [{"q": "one?", "a": "1"}, {"q": "two?", "a": "2"}, {"q": "é\u2028?", "a": "3"}]


@dataclass(frozen=True)
class Pairs(FileSource):
    name: ClassVar[str] = "pairs"

    def read(self, record: Record) -> Task | None:
        return None if record.text("a") == "skip" else self.make(record, record.text("q"), record.text("a"))


def write(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return str(path)


def rows(path: str) -> list[dict]:
    return [dict(record.data) for record in read_records(path)]


def test_layouts_of_the_same_records(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS)
    for name, text in {
        "array.json": json.dumps(ROWS, indent=2),
        "compact.json": json.dumps(ROWS, ensure_ascii=False),
        "lines.jsonl": lines,
        "lines_with_gaps.jsonl": "\n" + lines.replace("\n", "\r\n\n") + "\n\n",
        "lines_named.json": lines,
        "with_bom.json": "\ufeff" + json.dumps(ROWS),
        "table.csv": 'q,a\r\none?,1\r\n"two?",2\n"é\u2028?",3\n',
    }.items():
        path = write(tmp_path / name, text)
        assert rows(path) == ROWS, name
        assert [record.number for record in read_records(path)] == [1, 2, 3]
    assert rows(write(tmp_path / "empty.json", " [ ] ")) == []
    # Cells of a table may hold line ends.
    assert rows(write(tmp_path / "cells.csv", 'q,a\n"1\r\n2",x\n')) == [{"q": "1\r\n2", "a": "x"}]


def test_a_folder_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    for number in (10, 9, 1):
        write(tmp_path / "test" / "algebra" / f"{number}.json", json.dumps({"q": str(number)}, indent=1))
    write(tmp_path / "README.md", "no data")
    records = list(read_records(str(tmp_path)))
    assert [record.text("q") for record in records] == ["1", "9", "10"]
    assert records[0].file.endswith("test/algebra/1.json")
    assert {record.number for record in records} == {1}


def test_environment_variables_are_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.json", json.dumps(ROWS))
    monkeypatch.setenv("SOME_DATA", str(tmp_path))
    assert rows("$SOME_DATA/a.json") == ROWS
    monkeypatch.delenv("SOME_DATA")
    with pytest.raises(DataError, match=r"^\$SOME_DATA/a.json: no such file .* is the environment variable set\?"):
        rows("$SOME_DATA/a.json")


GOOD = json.dumps(ROWS)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("cut.json", GOOD[:-2], "record 3: not valid JSON at line 1, column 83: Expecting ',' delimiter (is the file"),
        ("cut_in_text.json", GOOD[:11], "record 1: not valid JSON at line 1, column 8: Unterminated string"),
        ("cut_between.json", GOOD[: GOOD.index("},") + 1], "the file ends after record 1 without the closing ']'"),
        ("comma.json", GOOD.replace("},", "}", 1), "record 1: followed by '{'; expected ',' or ']'"),
        ("trailing.json", '[{"q": 1},]', "record 2: not valid JSON"),
        ("twice.json", GOOD + GOOD, "more text after the closing ']' of the array"),
        ("nested.json", "[[1, 2]]", "record 1: [1, 2]; expected an object"),
        ("cut.jsonl", '{"q": 1}\n{"q": ', "record 2: not valid JSON at line 2, column 7: Expecting value (is the"),
        ("text.json", "<!DOCTYPE html>", "neither a JSON array nor JSON lines; it begins with '<!DOCTYPE html>'"),
        ("nothing.jsonl", "", "neither a JSON array nor JSON lines"),
        ("deep.json", '[{"q": ' + "[" * 100_000, "deep.json:1, record 1: nested too deeply to be read"),
        ("long.jsonl", '{"q": 1}\n\n{"q": ' + "7" * 5000 + "}", "long.jsonl:3, record 2: holds an integer of more"),
        ("half.jsonl", r'{"q": "\ud83d\ude00", "a": [{"b": "x\ud83d"}]}', "half.jsonl:1, record 1: a[0].b holds half"),
        ("half_key.json", r'[{"a": {"\udc00": 1}}]', r"record 1: a.\udc00 holds half a character, a surrogate"),
        ("twice.jsonl", '{"d": {"x": 1, "y": 2, "x": 3}}', "record 1: the key 'x' occurs twice in one object"),
        ("columns.csv", "q,q\n1,2\n", "two columns have the same name: q, q"),
        ("short.csv", "q,a\n1,2\n3\n", "short.csv:3, record 2: 1 cells; expected 2: q, a"),
        ("open.csv", 'q,a\n1,2\n"3,4\n', "record 2: not valid CSV near line 3"),
        ("nothing.csv", "", "empty; expected a line of column names"),
    ],
)  # fmt: skip
def test_broken_files_say_where(tmp_path: Path, name: str, text: str, said: str) -> None:
    path = write(tmp_path / name, text)
    with pytest.raises(DataError) as caught:
        rows(path)
    assert str(caught.value).startswith(path)
    assert said in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_an_empty_line_of_a_csv_file_is_no_record(tmp_path: Path) -> None:
    assert rows(write(tmp_path / "a.csv", "q,a\n1,2\n\n3,4\n\n")) == [{"q": "1", "a": "2"}, {"q": "3", "a": "4"}]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"missing.json: no such file or folder; give a path, or hub:OWNER/NAME"):
        rows(str(tmp_path / "missing.json"))
    with pytest.raises(DataError, match=r"no file in this folder ends in .json, .jsonl, .csv"):
        rows(str(tmp_path))
    (tmp_path / "packed.json").write_bytes(b"[{\x1f\x8b\x08\x00")
    with pytest.raises(DataError, match=r"packed.json: not UTF-8 text at byte 3; is it compressed\?"):
        rows(str(tmp_path / "packed.json"))


DATA = {"text": "x", "n": 3, "yes": True, "names": ["a", "b"], "parts": [{"title": "t"}, {"title": 5}], "o": {"k": 1}}
RECORD = Record("f.json", 17, {**DATA, "none": None})


def test_typed_access() -> None:
    assert (RECORD.text("text"), RECORD.integer("n"), RECORD.flag("yes")) == ("x", 3, True)
    assert (RECORD.texts("names"), RECORD.items("names")) == (("a", "b"), ["a", "b"])
    assert RECORD.parts("parts")[0].text("title") == "t"
    assert RECORD.part("o").integer("k") == 1
    assert [RECORD.has(key) for key in ("n", "none", "other")] == [True, False, False]


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (
            lambda r: r.text("txt"),
            "txt is missing; expected a string. Did you mean 'text'? Keys found: text, n, yes, names, parts, o, none",
        ),
        (lambda r: r.text("n"), "n is 3; expected a string"),
        (lambda r: r.text("none"), "none is None; expected a string"),
        (lambda r: r.integer("yes"), "yes is True; expected a whole number"),
        (lambda r: r.flag("n"), "n is 3; expected true or false"),
        (lambda r: r.items("text"), "text is 'x'; expected a list"),
        (lambda r: r.texts("parts"), "parts is [{'title': 't'}, {'title': 5}]; expected a list of strings"),
        (lambda r: r.parts("names"), "names is ['a', 'b']; expected a list of objects"),
        (lambda r: r.part("names"), "names is ['a', 'b']; expected an object"),
        (lambda r: r.parts("parts")[1].text("title"), "parts[1].title is 5; expected a string"),
        (lambda r: r.part("o").text("j"), "o.j is missing; expected a string. Keys found: k"),
    ],
)  # fmt: skip
def test_wrong_keys_and_types_are_named(ask: Callable[[Record], object], said: str) -> None:
    with pytest.raises(DataError) as caught:
        ask(RECORD)
    assert str(caught.value) == f"f.json, record 17: {said}"


# Sources


def many(tmp_path: Path, count: int = 200, name: str = "many.jsonl", first: int = 0) -> str:
    lines = (json.dumps({"q": f"What is {i} plus {i}?", "a": str(2 * i)}) for i in range(first, first + count))
    return write(tmp_path / name, "\n".join(lines))


def test_a_source_is_finite_and_says_where_its_tasks_come_from(tmp_path: Path) -> None:
    path = write(tmp_path / "pairs.json", json.dumps([*ROWS, {"q": "three?", "a": "skip"}]))
    source = Pairs(path)
    assert isinstance(source, FiniteSource)
    assert len(source) == 3
    task = source.tasks()[1]
    assert (task.prompt, task.answer, task.source) == ("two?", "2", "pairs")
    assert task.metadata == {
        "family": "pairs",
        "file": "pairs.json",
        "file_digest": content_digest(path),
        "record": 2,
    }
    rng = np.random.default_rng(0)
    counts = [sum(source.draw(rng) is task for _ in range(300)) for task in source.tasks()]
    assert min(counts) > 70
    # Drawing from few tasks ends, and so does a part with none.
    with pytest.raises(TaskError, match=r"pairs: no task in .*pairs.json with part = 'test' and test_fraction = 0.0"):
        Pairs(path, part="test", test_fraction=0.0).draw(rng)


def test_a_file_is_read_when_it_is_needed(tmp_path: Path) -> None:
    source = Pairs(str(tmp_path / "later.json"))
    with pytest.raises(DataError):
        source.tasks()
    write(tmp_path / "later.json", GOOD)
    assert len(source) == 3


def test_the_digest_is_that_of_the_content(tmp_path: Path) -> None:
    one, two = write(tmp_path / "x" / "1.json", GOOD), write(tmp_path / "y.json", GOOD)
    assert content_digest(one) == content_digest(two)
    before = content_digest(str(tmp_path))
    write(tmp_path / "y.json", GOOD.replace("two", "TWO"))
    assert content_digest(one) != content_digest(two)
    assert content_digest(str(tmp_path)) != before


def test_splits_are_disjoint_seeded_and_recorded(tmp_path: Path) -> None:
    path = many(tmp_path)
    whole = {task.task_id for task in Pairs(path).tasks()}

    def part(name: str, seed: int = 0) -> set[str]:
        tasks = Pairs(path, name, 0.3, seed).tasks()
        facts = {"part": name, "test_fraction": 0.3, "split_seed": seed}
        assert all(task.metadata.items() >= facts.items() for task in tasks)
        return {task.task_id for task in tasks}

    train, test = part("train"), part("test")
    assert train | test == whole
    assert not train & test
    assert 0.2 < len(test) / len(whole) < 0.4
    assert part("test") == test
    assert part("test", seed=1) != test
    # The part depends on the question alone: not on order, spelling, or what else is in the file.
    loud = write(tmp_path / "loud.jsonl", Path(path).read_text(encoding="utf-8").replace("What is ", "WHAT IS: "))
    questions = [{squeeze(task.prompt) for task in Pairs(file, "test", 0.3).tasks()} for file in (path, loud)]
    assert questions[0] == questions[1]
    assert len(questions[0]) == len(test)
    assert Pairs(path, limit=7).tasks() == Pairs(path).tasks()[:7]


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({"part": "dev"}, "Pairs.part is 'dev'; expected one of all, train, test"),
        ({"test_fraction": 1.5}, "Pairs.test_fraction is 1.5"),
        ({"limit": 0}, "Pairs.limit is 0"),
        ({"split_seed": -1}, "Pairs.split_seed is -1"),
    ],
)
def test_bad_knobs(knobs: dict, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Pairs("x.json", **knobs)
    assert said in str(caught.value)


def test_a_question_is_on_one_side_whatever_surrounds_it(tmp_path: Path) -> None:
    """`distractors` draw new documents every time, and what was trained on must not come back among others."""
    lines = [{"question": f"Who is {i}?", "answer": f"{i}", "documents": {f"d{i}": f"It is {i}."}} for i in range(60)]
    path = write(tmp_path / "q.jsonl", "\n".join(map(json.dumps, lines)))
    source = make_source("distractors", source={"name": "questions", "path": path}, paragraphs=2)
    rng = np.random.default_rng(0)
    drawn = {part: [HashedSplit(source, part, 0.3).draw(rng) for _ in range(400)] for part in ("train", "test")}
    asked = {part: {task.prompt for task in tasks} for part, tasks in drawn.items()}
    assert len({task.task_id for task in drawn["train"]}) > len(asked["train"]), "one question, other documents"
    assert not asked["train"] & asked["test"]
    assert 0.15 * 60 < len(asked["test"]) < 0.45 * 60
    # A part of a file's part is no less random: the two do not hash alike.
    part = make_source("questions", path=path, part="test", test_fraction=0.3)
    assert {HashedSplit(part, "train", 0.3).draw(rng).prompt for _ in range(400)}


def test_a_question_in_a_mixture_is_on_one_side(tmp_path: Path) -> None:
    """Also where the same question comes from two of its sources, of one kind, among other documents."""
    lines = [{"question": f"Who is {i}?", "answer": f"{i}", "documents": {f"d{i}": f"It is {i}."}} for i in range(60)]
    path = write(tmp_path / "q.jsonl", "\n".join(map(json.dumps, lines)))
    near, far = (Distractors(UserQuestions(path), paragraphs) for paragraphs in (2, 4))
    inner = Mixture((far, HashedSplit(UserQuestions(path), "train", 0.05)))
    source, rng = Mixture((near, RangeSum(max_length=4), inner)), np.random.default_rng(0)
    drawn = {part: [HashedSplit(source, part, 0.3).draw(rng) for _ in range(600)] for part in ("train", "test")}
    asked = {part: {task.prompt for task in tasks if task.context} for part, tasks in drawn.items()}
    assert not asked["train"] & asked["test"]
    assert 0.15 * 60 < len(asked["test"]) < 0.45 * 60
    for part, tasks in drawn.items():
        sizes = {prompt: {len(task.context) for task in tasks if task.prompt == prompt} for prompt in asked[part]}
        assert max(map(len, sizes.values())) == 3, "one question from three sources"
        assert all(part_of(task, 0.3) == part for task in tasks if task.source == "range_sum"), "as without a mixture"


def test_shared_questions_are_found(tmp_path: Path) -> None:
    left = Pairs(many(tmp_path, 50, "left.jsonl"))
    right = Pairs(many(tmp_path, 50, "right.jsonl", first=40))
    shared = find_shared_questions(left, right)
    assert [question.left.prompt for question in shared] == [f"What is {i} plus {i}?" for i in range(40, 50)]
    spelled = write(tmp_path / "spelled.json", json.dumps([{"q": "  WHAT is $ 3 $\nplus 3 ??", "a": "7"}]))
    (question,) = find_shared_questions(left, Pairs(spelled))
    assert (question.left.answer, question.right.answer) == ("6", "7")
    path = left.path
    assert find_shared_questions(Pairs(path, "train"), Pairs(path, "test")) == ()
    report = contamination_table({"left": left, "right": right, "spelled": Pairs(spelled)}).splitlines()[2:]
    assert report == [
        "| left | 50 | right | 50 | 10 | left.jsonl 41 = right.jsonl 1 |",
        "| left | 50 | spelled | 1 | 1 | left.jsonl 4 = spelled.json 1 |",
        "| right | 50 | spelled | 1 | 0 |  |",
    ]


def test_a_place_is_a_line_of_its_file(tmp_path: Path) -> None:
    lines = write(tmp_path / "lines.jsonl", '\n{"q":\n 1}\n\n{"q": 2} {"q": 3}\n')
    array = write(tmp_path / "array.json", json.dumps(ROWS, indent=1))
    table = write(tmp_path / "cells.csv", 'q,a\n"1\n2",x\n3,y\n')
    assert [record.line for record in read_records(lines)] == [2, 5, 5]
    assert [record.line for record in read_records(array)] == [2, 6, 10]
    assert [record.line for record in read_records(table)] == [2, 4]


def test_ids_are_of_one_record_each(tmp_path: Path) -> None:
    lines = [{"question": f"{i}?", "answer": "x", "id": name} for i, name in enumerate("aba")]
    path = write(tmp_path / "q.jsonl", "\n".join(map(json.dumps, lines)))
    with pytest.raises(
        DataError, match=r"q\.jsonl:3, record 3: id is 'a', as in .*q\.jsonl:1, record 1; expected a unique id"
    ):
        UserQuestions(path).tasks()


def test_faulty_records_are_left_out_on_demand_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "p.json", json.dumps([*ROWS, {"q": "no answer"}, {"q": "four?", "a": "4"}, {"q": 5}]))
    source = Pairs(path, skip_faulty=True)
    with pytest.warns(UserWarning, match=r"pairs: left out 2 records of .*p\.json: faulty \(.*record 4: a is missing;"):
        assert [task.answer for task in source.tasks()] == ["1", "2", "3", "4"]
    assert [len(places) for places in source.skipped.values()] == [2]
    with pytest.raises(DataError, match="record 4: a is missing"):
        Pairs(path).tasks()


def test_what_a_source_does_not_foresee_is_named_by_its_place(tmp_path: Path) -> None:
    class Careless(Pairs):
        def read(self, record: Record) -> Task | None:
            return self.make(record, record.text("q"), str(int(record.text("a"))))

    path = write(tmp_path / "p.json", json.dumps([*ROWS, {"q": "four?", "a": "four"}]))
    with pytest.raises(DataError, match=r"p\.json:1, record 4: cannot be read: ValueError: invalid literal for int"):
        Careless(path).tasks()


# The hub


def test_the_hub_through_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def load_dataset(name: str, config: str | None, split: str) -> list[dict]:
        calls.append((name, config, split))
        if name == "no/such":
            raise ConnectionError("offline")
        return ROWS

    module = types.ModuleType("datasets")
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    source = Pairs("hub:someone/pairs-v1/main:validation[:10%]")
    assert [task.prompt for task in source.tasks()] == [row["q"] for row in ROWS]
    assert source.tasks()[0].metadata["file"] == source.path
    assert rows("hub:someone/pairs-v2") == ROWS
    assert calls == [("someone/pairs-v1", "main", "validation[:10%]"), ("someone/pairs-v2", None, "train")]
    with pytest.raises(DataError, match=r"hub:no/such: datasets could not load this: ConnectionError: offline; check"):
        rows("hub:no/such")
    with pytest.raises(DataError, match=r"hub:nonsense: expected hub:OWNER/NAME\[/CONFIG\]\[:SPLIT\]"):
        rows("hub:nonsense")


def test_the_hub_without_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"needs the package datasets; download .*, or run: pip install -e '\.\[hub\]'"):
        rows("hub:someone/pairs-v3")
