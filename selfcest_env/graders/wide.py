"""Tables, graded item by item and row by row as WideSearch grades them (Wong et al. 2025, arXiv 2508.07999).

A task's answer is a Markdown table; its metadata hold in `evaluation`, as JSON, what the official files say of it:
`required` columns, `unique_columns` by which rows are aligned, and in `eval_pipeline` for each column how both sides
are prepared (`norm_str`, `extract_number`, `norm_date`) and compared (`exact_match`, `number_near` within `criterion`
times the truth, `url_match` of hosts, `date_near` within 31 days, `in_match`). Of rows with equal keys the first
counts. An item is a cell; those of the key are right where a row is aligned. A row is right if all its items are.
Precision is by what was answered, recall by the truth, and success is a table without a fault.

Where this differs from the official evaluation, and why:

- No language model. There it renames columns, aligns keys and judges `llm_judge` columns. Here other columns are no
  answer, keys are equal after preparation or another row's, and a judged column is an error unless it is read as
  `exact_match`: such scores are not to be compared with published ones.
- Cells are texts. There pandas guesses a type per column, so that 5 beside an empty cell becomes 5.0. What it reads as
  missing (`N/A`, `null`, nothing, ...) is one value here too.
- A score stays within [0, 1]. There rows whose keys grow equal by preparation all count, and an item counts once for
  each metric of its column, so that recall can be above 1. Here equal keys are one row, and an item is right if every
  metric says so.
- Cells without an address, or without a date, agree there with each other; here only if they are equal. An empty cell
  is `in_match` there with everything; here with an empty one.
- Dates are year first (2024-05-03, also of year and month) or with an English month; there a parser of many languages
  reads `yesterday` too.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import Any, ClassVar, Literal

from selfcest_env.errors import RewardError, did_you_mean
from selfcest_env.graders.grade import NO_ANSWER, AnswerPart, Grade
from selfcest_env.graders.number import parse_only_number
from selfcest_env.structure import Checked
from selfcest_env.types import Task

EVALUATION, ROW_DOCUMENTS = "evaluation", "row_documents"  # keys of `Task.metadata`
JUDGE = "llm_judge"
Judged = Literal["refuse", "exact"]

# What pandas reads as missing where nothing is said about it.
MISSING = frozenset(
    [
        *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A"),
        *("NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
    ]
)
_PIPE = re.compile(r"(?<!\\)\|")
_FENCE = "```markdown"


# Tables


@dataclass(frozen=True, slots=True)
class Table:
    """Columns by name as `column_name` gives it, and rows of at most as many cells, the last ones may be missing."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def column_name(text: str) -> str:
    """How columns are compared: in lower case, without spaces."""
    return text.strip().lower().replace(" ", "")


def read_table(text: str) -> Table | None:
    """The table of an answer: in the first ```markdown block, else the first lines in a row that hold a `|` each.

    `a | b` is read as `| a | b |`, a line of dashes is not needed, a pipe of a cell is `\\|`. What stands below no name
    is no column. `None`: there is no table, a row is longer than the header, or two columns have one name.
    """
    lines = [line.strip() for line in _table_lines(text)]
    kept = [read_row(line) for line in lines if "|" in line and line.strip("|-: \t")]
    columns = tuple(map(column_name, kept[0])) if kept else ()
    named = [name for name in columns if name]
    if not named or len({*named}) < len(named) or any(len(row) > len(columns) for row in kept):
        return None
    return Table(columns, tuple(kept[1:]))


def _table_lines(text: str) -> list[str]:
    start = text.find(_FENCE)
    stop = text.find("```", start + len(_FENCE)) if start >= 0 else -1
    if stop >= 0:
        return text[start + len(_FENCE) : stop].split("\n")
    found: list[str] = []
    for line in text.split("\n"):
        if "|" in line:
            found.append(line)
        elif len(found) > 1:
            break
        else:
            found = []
    return found if len(found) > 1 else []


def read_row(line: str) -> tuple[str, ...]:
    """The cells of a line; inverse of `write_row`."""
    line = line.strip().removeprefix("|")
    if line.endswith("|") and not line.endswith("\\|"):
        line = line[:-1]
    return tuple(cell.strip().replace("\\|", "|") for cell in _PIPE.split(line))


def write_row(cells: Iterable[str]) -> str:
    """One line of a Markdown table; space within a cell becomes single spaces."""
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def write_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join([write_row(columns), write_row("---" for _ in columns), *map(write_row, rows)])


# Preparing and comparing cells

_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)%?")
_MAX_NUMBER, _MAX_DATE, _MAX_DAYS = 100, 40, 31  # characters, characters, days
_HOST = re.compile(r"https?://([^\s/?#|()\[\]<>\"',;]+)")
_DAY, _MONTH, _YEAR = r"(?P<day>[0-9]{1,2})(?:st|nd|rd|th)?", r"(?P<month>[A-Za-z]{3,9})\.?", r"(?P<year>[0-9]{4})"
_DATES = tuple(
    map(
        re.compile,
        (
            r"(?P<year>[0-9]{4})(?P<s>[-/.])(?P<number>[0-9]{1,2})(?:(?P=s)(?P<day>[0-9]{1,2}))?",
            r"(?P<year>[0-9]{4})年(?P<number>[0-9]{1,2})月(?:(?P<day>[0-9]{1,2})日)?",
            rf"{_DAY}\s*{_MONTH},?\s*{_YEAR}",
            rf"{_MONTH}\s*{_DAY},?\s*{_YEAR}",
            rf"{_MONTH},?\s*{_YEAR}",
        ),
    )
)
_MONTHS = (
    *("january", "february", "march", "april", "may", "june", "july"),
    *("august", "september", "october", "november", "december"),
)


def _norm_str(text: str) -> str:
    return text.lower().strip().replace(" ", "").replace("*", "")


def _extract_number(text: str) -> str:
    found = _NUMBER.search(text.replace(",", ""))
    return found[0] if found else "NULL"


def _norm_date(text: str) -> str:
    found = read_date(text)
    return text if found is None else found.isoformat()


def read_date(text: str) -> date | None:
    """The date that a text is; without a day it is the first of the month, and a year alone is none."""
    text = text.strip()
    found = next((m for pattern in _DATES if (m := pattern.fullmatch(text))), None) if len(text) <= _MAX_DATE else None
    if found is None:
        return None
    groups = found.groupdict()
    name = (groups.get("month") or "").lower()
    number = groups.get("number") or next(
        (i for i, month in enumerate(_MONTHS, 1) if name and month.startswith(name)), 0
    )
    try:
        return date(int(groups["year"]), int(number), int(groups.get("day") or 1))
    except ValueError:
        return None


def _number(text: str) -> float | None:
    try:
        value = float(text.replace("%", "")) if len(text) <= _MAX_NUMBER else math.nan
    except ValueError:
        return None
    return (value / 100.0 if "%" in text else value) if math.isfinite(value) else None


def _near(ours: str, truth: str, criterion: float) -> bool:
    left, right = _number(ours), _number(truth)
    return left is not None and right is not None and abs(left - right) <= abs(right) * criterion


def _same_hosts(ours: str, truth: str, criterion: float) -> bool:
    hosts = {*_HOST.findall(truth)}
    return bool(hosts) and hosts == {*_HOST.findall(ours)}


def _near_date(ours: str, truth: str, criterion: float) -> bool:
    left, right = read_date(ours), read_date(truth)
    return left is not None and right is not None and abs((left - right).days) <= _MAX_DAYS


PREPARE: Mapping[str, Callable[[str], str]] = {
    "norm_str": _norm_str,
    "extract_number": _extract_number,
    "norm_date": _norm_date,
}
# Asked of texts that are not equal; equal ones agree by every metric.
METRICS: Mapping[str, Callable[[str, str, float], bool]] = {
    "exact_match": lambda ours, truth, criterion: ours.lower() == truth.lower(),
    "number_near": _near,
    "url_match": _same_hosts,
    "date_near": _near_date,
    "in_match": lambda ours, truth, criterion: bool(ours) and ours in truth,
}


def _strict_number(text: str, *sources: str) -> float | None:
    """The one number of a cell with no other words than those of the sources; a percent is a hundredth."""
    value = parse_only_number(text, drop_percent=False, sources=sources) if len(text) <= _MAX_NUMBER else None
    return None if value is None else float(value)


_LIST_OF_PARTS = re.compile(r"[,;/&()]|\b(?:and|or)\b")


def _is_most_of(ours: str, truth: str) -> bool:
    """Whether a text is whole words of another one, at least half of it or of a part that is listed in it."""
    ours, truth = _words(ours), _words(truth)
    if not ours:
        return not truth
    for part in (truth, *map(_words, _LIST_OF_PARTS.split(truth))):
        if f" {ours} " in f" {part} " and 2 * len(ours) >= len(part):
            return True
    return False


def _words(text: str) -> str:
    return " ".join(text.lower().replace("*", "").split())


# Rules


@dataclass(frozen=True, slots=True)
class Column:
    """How one column is graded.

    Attributes:
        name: as `column_name` gives it.
        prepare: keys of `PREPARE`, in order, applied to both sides.
        metrics: keys of `METRICS`, or `llm_judge`; a cell is right if all of them say so. Of a key they are not asked.
        criterion: of `number_near`, relative to the truth.
    """

    name: str
    prepare: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ("exact_match",)
    criterion: float = 0.0

    def prepared(self, cell: str) -> str:
        cell = "" if cell in MISSING else cell
        for name in self.prepare:
            cell = PREPARE[name](cell)
        return cell

    def strictly_agrees(self, ours: str, truth: str, question: str) -> bool:
        """Whether two raw cells mean the same beyond doubt; asked of those whose prepared texts agree.

        A number may not be one of several, nor stand beside a word that could change it: only words of the question
        and of the truth, units and plain words may. Of `in_match` the answer has to be
        whole words, at least half of the truth or of one of its listed parts. A truth that is no single number itself
        is left to the official rule.
        """
        if "extract_number" in self.prepare:
            value = _strict_number(truth, question, truth)
            answer = _strict_number(ours, question, truth)
            if value is not None:
                return answer is not None and abs(answer - value) <= abs(value) * self.criterion
        return "in_match" not in self.metrics or _is_most_of(ours, truth)

    def agrees(self, ours: str, truth: str) -> bool:
        return ours == truth or all(METRICS[name](ours, truth, self.criterion) for name in self.metrics)


@dataclass(frozen=True, slots=True)
class KeyedRow:
    """The cells of a row as they are compared, and as they were written."""

    prepared: tuple[str, ...]
    raw: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableRules:
    """How a table is graded: its columns, and the names of those by which rows are aligned."""

    columns: tuple[Column, ...]
    unique: tuple[str, ...]

    @classmethod
    def of(cls, evaluation: Any) -> TableRules:
        """From the object `evaluation` of an official file. Raises `RewardError` that names the key and the column."""
        if not isinstance(evaluation, Mapping):
            raise RewardError(f"evaluation is {evaluation!r:.80}; expected an object")
        names = _names(evaluation, "required")
        unique = _names(evaluation, "unique_columns")
        pipeline = evaluation.get("eval_pipeline")
        if not isinstance(pipeline, Mapping):
            raise RewardError(f"eval_pipeline is {pipeline!r:.80}; expected an object of columns")
        steps = {column_name(str(name)): step for name, step in pipeline.items()}
        for what, found in (("unique_columns", unique), ("eval_pipeline", tuple(steps))):
            for name in found:
                if name not in names:
                    raise RewardError(
                        f"{what} names {name!r}, no required column; expected {', '.join(names)}."
                        f"{did_you_mean(name, names)}"
                    )
        return cls(tuple(_column(name, steps.get(name), name in unique) for name in names), unique)

    def decided(self, judged: Judged) -> TableRules:
        """The rules without a judge. Raises `RewardError` if one is asked for and `judged` is "refuse"."""
        asking = [column.name for column in self.columns if JUDGE in column.metrics]
        if asking and judged == "refuse":
            raise RewardError(
                f"the columns {', '.join(asking)} ask for a judge ({JUDGE}), a language model, which no grader here "
                "calls; compare them as texts (judged: exact of the grader wide), or leave such tasks out (judged: "
                "false of the source widesearch)"
            )
        return TableRules(tuple(_exact(column) for column in self.columns), self.unique)

    def keyed(self, table: Table) -> dict[tuple[str, ...], KeyedRow]:
        """Rows by their prepared key, the first of each, with cells in the order of `columns`."""
        columns = [(column, table.columns.index(column.name)) for column in self.columns]
        keys = [place for place, column in enumerate(self.columns) if column.name in self.unique]
        rows: dict[tuple[str, ...], KeyedRow] = {}
        for row in table.rows:
            raw = tuple(row[place] if place < len(row) else "" for _, place in columns)
            prepared = tuple(column.prepared(cell) for (column, _), cell in zip(columns, raw, strict=True))
            rows.setdefault(tuple(prepared[place] for place in keys), KeyedRow(prepared, raw))
        return rows

    def right_cells(self, ours: KeyedRow, truth: KeyedRow, strict_question: str | None) -> int:
        """How many cells of two rows with equal keys agree, strictly where there is a question to be strict about."""
        count = 0
        for place, column in enumerate(self.columns):
            agrees = column.agrees(ours.prepared[place], truth.prepared[place])
            if agrees and strict_question is not None and column.name not in self.unique:
                agrees = column.strictly_agrees(ours.raw[place], truth.raw[place], strict_question)
            count += agrees
        return count

    def fits(self, table: Table) -> bool:
        """Whether the table has the required columns and no other, in any order."""
        return {*table.columns} - {""} == {column.name for column in self.columns}


def _names(evaluation: Mapping[str, Any], key: str) -> tuple[str, ...]:
    names = evaluation.get(key)
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise RewardError(f"{key} is {names!r:.80}; expected a list of column names")
    found = tuple(map(column_name, names))
    if len({*found}) < len(found):
        raise RewardError(f"{key} is {', '.join(names)}; expected each column once, in whatever case and spacing")
    return found


def _column(name: str, step: Any, is_key: bool) -> Column:
    if step is None and is_key:
        return Column(name)
    if not isinstance(step, Mapping):
        raise RewardError(f"eval_pipeline.{name} is {step!r:.80}; expected an object with 'preprocess' and 'metric'")
    prepare, metrics = step.get("preprocess", []), step.get("metric", [])
    for key, found, known in (("preprocess", prepare, [*PREPARE]), ("metric", metrics, [*METRICS, JUDGE])):
        if not isinstance(found, list) or not all(item in known for item in found):
            raise RewardError(
                f"eval_pipeline.{name}.{key} is {found!r:.80}; expected a list of names among {', '.join(known)}"
            )
    if not metrics and not is_key:
        raise RewardError(
            f"eval_pipeline.{name}.metric is {metrics!r:.80}; expected at least one of {', '.join(METRICS)}"
        )
    criterion = step.get("criterion")
    if "number_near" not in metrics:
        criterion = 0.0
    if isinstance(criterion, bool) or not isinstance(criterion, int | float) or not 0 <= criterion < 1e300:
        raise RewardError(
            f"eval_pipeline.{name}.criterion is {criterion!r:.80}; expected a number >= 0 for number_near"
        )
    return Column(name, tuple(prepare), tuple(metrics) or ("exact_match",), float(criterion))


def _exact(column: Column) -> Column:
    metrics = tuple(dict.fromkeys("exact_match" if name == JUDGE else name for name in column.metrics))
    return Column(column.name, column.prepare, metrics, column.criterion)


@lru_cache(maxsize=1024)
def _rules(evaluation: str) -> TableRules:
    return TableRules.of(json.loads(evaluation))


# Scores


@dataclass(frozen=True, slots=True)
class Hits:
    """How many of what was answered, and of what is true, are right: items or rows."""

    right: int
    answered: int
    true: int

    @property
    def precision(self) -> float:
        return self.right / self.answered if self.answered else 0.0

    @property
    def recall(self) -> float:
        return self.right / self.true if self.true else 0.0

    @property
    def f1(self) -> float:
        """2 right / (answered + true), the harmonic mean of precision and recall."""
        return 2 * self.right / (self.answered + self.true) if self.right else 0.0


@dataclass(frozen=True, slots=True)
class WideScores:
    """What is right of a table.

    Attributes:
        items, rows: counts, with precision, recall and F1.
        by_row: right items of each row of the truth, in its order; 0 for one that was not answered.
        readable: whether the answer is a table with the required columns and no other.
    """

    items: Hits
    rows: Hits
    by_row: tuple[int, ...]
    readable: bool

    @property
    def success(self) -> bool:
        return self.rows.right == self.rows.answered == self.rows.true


def wide_scores(task: Task, answer: str | None, judged: Judged = "refuse", strict: bool = False) -> WideScores:
    """All that WideSearch counts of an answer.

    Args:
        task: its answer is a Markdown table, its metadata have `evaluation`.
        answer: the text with the table; `None` counts as none.
        judged: what to do with a column that asks for a judge: "refuse", or compare texts, "exact".
        strict: whether a cell also has to agree by `Column.strictly_agrees`.

    Raises:
        RewardError: the task's own table, or what says how to grade it, cannot be read; with what is wrong.
    """
    where = f"task {task.task_id} of {task.source!r}"
    if EVALUATION not in task.metadata:
        raise RewardError(
            f"{where} has no metadata '{EVALUATION}'; expected required, unique_columns and eval_pipeline as JSON"
        )
    try:
        rules = _rules(str(task.metadata[EVALUATION])).decided(judged)
    except ValueError as error:
        raise RewardError(f"{where}: {error}") from error
    gold = read_table(task.answer)
    if gold is None or not gold.rows or not rules.fits(gold):
        wanted = ", ".join(column.name for column in rules.columns)
        raise RewardError(
            f"{where} has the answer {task.answer!r:.80}; expected a Markdown table of the columns {wanted}"
        )
    truth = rules.keyed(gold)
    if len(truth) < len(gold.rows):
        raise RewardError(
            f"{where}: {len(gold.rows)} rows, but {len(truth)} different values of {', '.join(rules.unique)}; expected "
            "keys that tell the rows of the truth apart"
        )
    found = None if answer is None else read_table(answer)
    readable = found is not None and rules.fits(found)
    ours = rules.keyed(found) if found is not None and readable else {}
    width = len(rules.columns)
    question = task.prompt if strict else None
    by_row = tuple(rules.right_cells(ours[key], row, question) if key in ours else 0 for key, row in truth.items())
    return WideScores(
        Hits(sum(by_row), len(ours) * width, len(truth) * width),
        Hits(sum(right == width for right in by_row), len(ours), len(truth)),
        by_row,
        readable,
    )


@dataclass(frozen=True)
class Wide(Checked):
    """F1 of a table's items or rows, or success; right is a table without a fault.

    Attributes:
        score: `item_f1`, `row_f1`, or `success`, which is 1 or 0.
        judged: what to do with a column that asks for a judge: `refuse` the task, or compare texts, `exact`.
        strict: whether a number cell may hold one number only, with its sign and scale, and a cell of `in_match` has to
            be most of the truth. For training; the official rules are without.

    Where the task says in `row_documents` (a JSON list) which document each row of the truth is about, an F1 has parts:
    2 right / (answered + true) is a sum over the rows of the truth, and a document's part is that of its rows. The
    parts add up, but they are not independent, and credit by `parts` is unbiased only where a clone moves no part but
    its own. It moves others' if its reply makes the root write a row more or less, as `answered` stands below every
    part; if it holds another document's key, whose row it then writes; or if a cell too many makes the whole table
    unreadable. Neither is it blamed for the first two, nor are its siblings spared.
    """

    max_characters: ClassVar[int] = 300_000
    score: Literal["item_f1", "row_f1", "success"] = "item_f1"
    judged: Judged = "refuse"
    strict: bool = False

    def grade(self, task: Task, answer: str | None) -> Grade:
        if len(task.answer) > self.max_characters:
            raise RewardError(
                f"task {task.task_id} has an answer of {len(task.answer)} characters; expected at most "
                f"{self.max_characters}, which is what is read"
            )
        too_long = answer is not None and len(answer) > self.max_characters
        scores = wide_scores(task, None if too_long else answer, self.judged, self.strict)
        if too_long:
            return Grade(0.0, False, False, "answer too long")
        if not scores.readable:
            return NO_ANSWER
        if self.score == "success":
            return Grade(float(scores.success), scores.success, True)
        hits = scores.items if self.score == "item_f1" else scores.rows
        width = scores.items.true // scores.rows.true
        right = scores.by_row if self.score == "item_f1" else [count == width for count in scores.by_row]
        return Grade(hits.f1, scores.success, True, parts=_parts(task, right, hits.answered + hits.true))


def _parts(task: Task, right: Sequence[int], below: int) -> tuple[AnswerPart, ...]:
    if ROW_DOCUMENTS not in task.metadata:
        return ()
    documents = json.loads(str(task.metadata[ROW_DOCUMENTS]))
    if not isinstance(documents, list) or len(documents) != len(right):
        raise RewardError(
            f"task {task.task_id}: {ROW_DOCUMENTS} is {documents!r:.80}; expected a key for each of {len(right)} rows"
        )
    by_document: dict[str, int] = dict.fromkeys(map(str, documents), 0)
    for key, count in zip(documents, right, strict=True):
        by_document[str(key)] += count
    return tuple(AnswerPart(key, 2 * count / below) for key, count in by_document.items())
