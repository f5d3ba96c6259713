"""Grade tables by their cells and rows, by rules after those of WideSearch (Wong et al. 2025, arXiv 2508.07999).

The answer of a task is a Markdown table. The metadata key `evaluation` holds the rules as JSON:

- `required`: the columns;
- `unique_columns`: the key columns, by which rows of the answer and of the truth are aligned;
- `eval_pipeline`: for each column, functions that prepare both cells (`norm_str`, `extract_number`) and metrics that
  compare them (`exact_match`, `number_near` within `criterion` times the truth).

An item is a cell. A row is right if all its items are right. The key items of an aligned row are always right. Of rows
with equal keys the first counts. Precision divides by the items (or rows) of the answer and recall by those of the
truth. Success is a table whose rows are exactly those of the truth.

Differences from the official evaluation:

- No language model is called to rename columns, to align keys or to judge free text. A table with other columns is no
  answer, and keys must be equal after preparation. Such scores must not be compared with published ones.
- Cells are texts. The official evaluation reads tables with pandas, which guesses a type for each column, so that 5
  beside an empty cell becomes 5.0. The texts that pandas reads as missing (`N/A`, `null`, ...) are one value here too.
- Scores are in [0, 1]. Officially, rows whose keys become equal by preparation all count, and an item counts once for
  each metric of its column, so that recall can exceed 1. Here equal keys are one row, and an item is right if all
  metrics agree.
- The metrics of addresses, dates and parts of texts are missing, since no task here needs them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal

from selfcest_env.errors import RewardError, did_you_mean
from selfcest_env.graders.grade import NO_ANSWER, AnswerPart, Grade
from selfcest_env.graders.number import parse_only_number
from selfcest_env.structure import Checked
from selfcest_env.types import Task

# Keys of `Task.metadata`.
EVALUATION = "evaluation"
ROW_DOCUMENTS = "row_documents"

# Texts that pandas reads as missing values by default.
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
    """A table: column names as `column_name` returns them, and rows. A short row lacks its last cells."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def column_name(text: str) -> str:
    """Return the form in which names of columns are compared: in lower case, without spaces."""
    return text.strip().lower().replace(" ", "")


def read_table(text: str) -> Table | None:
    """Read the Markdown table of an answer.

    The table is the first ```markdown block, else the first run of two or more lines with a `|`. Outer pipes and the
    line of dashes are optional. A pipe inside a cell is written `\\|`. A column with an empty name is ignored.

    Returns:
        The table; `None` if there is none, if a row is longer than the header, or if two columns have the same name.
    """
    lines = [line.strip() for line in _table_lines(text)]
    rows = [read_row(line) for line in lines if "|" in line and line.strip("|-: \t")]
    columns = tuple(map(column_name, rows[0])) if rows else ()
    names = [name for name in columns if name]
    has_repeated_name = len({*names}) < len(names)
    has_long_row = any(len(row) > len(columns) for row in rows)
    if not names or has_repeated_name or has_long_row:
        return None
    return Table(columns, tuple(rows[1:]))


def _table_lines(text: str) -> list[str]:
    start = text.find(_FENCE)
    stop = text.find("```", start + len(_FENCE)) if start >= 0 else -1
    if stop >= 0:
        return text[start + len(_FENCE) : stop].split("\n")
    lines: list[str] = []
    for line in text.split("\n"):
        if "|" in line:
            lines.append(line)
        elif len(lines) > 1:
            break
        else:
            # A single line with a pipe is prose.
            lines = []
    return lines if len(lines) > 1 else []


def read_row(line: str) -> tuple[str, ...]:
    """Return the cells of a line. It is the inverse of `write_row`."""
    line = line.strip().removeprefix("|")
    if line.endswith("|") and not line.endswith("\\|"):
        line = line[:-1]
    return tuple(cell.strip().replace("\\|", "|") for cell in _PIPE.split(line))


def write_row(cells: Iterable[str]) -> str:
    """Return one line of a Markdown table. Runs of space within a cell become single spaces."""
    escaped_cells = [" ".join(cell.split()).replace("|", "\\|") for cell in cells]
    return "| " + " | ".join(escaped_cells) + " |"


def write_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join([write_row(columns), write_row("---" for _ in columns), *map(write_row, rows)])


# Preparing and comparing cells

_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)%?")
_MAX_NUMBER_CHARACTERS = 100


def _norm_str(text: str) -> str:
    return text.lower().strip().replace(" ", "").replace("*", "")


def _extract_number(text: str) -> str:
    match = _NUMBER.search(text.replace(",", ""))
    # The official function returns this text, so that two cells without a number agree.
    return match[0] if match else "NULL"


def _read_number(text: str) -> float | None:
    if len(text) > _MAX_NUMBER_CHARACTERS:
        return None
    try:
        value = float(text.replace("%", ""))
    except ValueError:
        return None
    if not math.isfinite(value):
        return None
    return value / 100.0 if "%" in text else value


def _is_near_number(answered: str, truth: str, criterion: float) -> bool:
    answered_value = _read_number(answered)
    true_value = _read_number(truth)
    if answered_value is None or true_value is None:
        return False
    return abs(answered_value - true_value) <= abs(true_value) * criterion


PREPARE: Mapping[str, Callable[[str], str]] = {
    "norm_str": _norm_str,
    "extract_number": _extract_number,
}
# Each takes the prepared cell of the answer, that of the truth, and `criterion`. Equal cells agree by every metric, so
# metrics are called only for unequal cells.
METRICS: Mapping[str, Callable[[str, str, float], bool]] = {
    "exact_match": lambda answered, truth, criterion: answered.lower() == truth.lower(),
    "number_near": _is_near_number,
}


def _strict_number(text: str, *sources: str) -> float | None:
    """Return the only number of a cell; `None` if the cell has words that neither a source nor a fixed list has."""
    if len(text) > _MAX_NUMBER_CHARACTERS:
        return None
    value = parse_only_number(text, drop_percent=False, sources=sources)
    return None if value is None else float(value)


# Rules


@dataclass(frozen=True, slots=True)
class Column:
    """The rule by which one column is graded.

    Attributes:
        name: name of the column, as `column_name` returns it.
        prepare: keys of `PREPARE`, applied to both cells in this order.
        metrics: keys of `METRICS`. A cell is right if all metrics agree. Key columns do not use them.
        criterion: tolerance of `number_near`, relative to the truth.
    """

    name: str
    prepare: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ("exact_match",)
    criterion: float = 0.0

    def prepare_cell(self, cell: str) -> str:
        cell = "" if cell in MISSING else cell
        for name in self.prepare:
            cell = PREPARE[name](cell)
        return cell

    def agrees(self, answered: str, truth: str) -> bool:
        """Return whether two prepared cells agree."""
        return answered == truth or all(METRICS[name](answered, truth, self.criterion) for name in self.metrics)

    def strictly_agrees(self, answered: str, truth: str, question: str) -> bool:
        """Return whether two raw cells, which agree after preparation, also mean the same without doubt.

        A number must be the only one of its cell. It may stand beside words of the question and of the truth, units and
        plain words, but beside no word that could change it. If the truth is not a single number, the lenient rule
        stands.
        """
        if "extract_number" in self.prepare:
            true_value = _strict_number(truth, question, truth)
            answered_value = _strict_number(answered, question, truth)
            if true_value is not None:
                tolerance = abs(true_value) * self.criterion
                return answered_value is not None and abs(answered_value - true_value) <= tolerance
        return True


@dataclass(frozen=True, slots=True)
class KeyedRow:
    """The cells of a row, prepared for the comparison and as they were written."""

    prepared: tuple[str, ...]
    raw: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableRules:
    """The rules by which a table is graded: its columns, and the names of the key columns that align the rows."""

    columns: tuple[Column, ...]
    unique: tuple[str, ...]

    @classmethod
    def of(cls, evaluation: Any) -> TableRules:
        """Read the object `evaluation` of an official file.

        Raises:
            RewardError: the object cannot be used. The message names the key and the column.
        """
        if not isinstance(evaluation, Mapping):
            raise RewardError(f"evaluation is {evaluation!r:.80}; expected an object")
        names = _read_names(evaluation, "required")
        unique = _read_names(evaluation, "unique_columns")
        pipeline = evaluation.get("eval_pipeline")
        if not isinstance(pipeline, Mapping):
            raise RewardError(f"eval_pipeline is {pipeline!r:.80}; expected an object of columns")
        steps = {column_name(str(name)): step for name, step in pipeline.items()}
        for key, key_names in (("unique_columns", unique), ("eval_pipeline", tuple(steps))):
            for name in key_names:
                if name not in names:
                    raise RewardError(
                        f"{key} names {name!r}, which is no required column.{did_you_mean(name, names)} "
                        f"Expected one of {', '.join(names)}"
                    )
        return cls(tuple(_read_column(name, steps.get(name), name in unique) for name in names), unique)

    def index_rows(self, table: Table) -> dict[tuple[str, ...], KeyedRow]:
        """Return the first row of each prepared key, with cells in the order of `columns`."""
        positions = [table.columns.index(column.name) for column in self.columns]
        key_indices = [index for index, column in enumerate(self.columns) if column.name in self.unique]
        rows: dict[tuple[str, ...], KeyedRow] = {}
        for row in table.rows:
            raw = tuple(row[position] if position < len(row) else "" for position in positions)
            prepared = tuple(column.prepare_cell(cell) for column, cell in zip(self.columns, raw, strict=True))
            key = tuple(prepared[index] for index in key_indices)
            rows.setdefault(key, KeyedRow(prepared, raw))
        return rows

    def count_right_cells(self, answered: KeyedRow, truth: KeyedRow, strict_question: str | None) -> int:
        """Count the cells of two rows with equal keys that agree. With a question they must agree strictly."""
        num_right = 0
        for index, column in enumerate(self.columns):
            is_right = column.agrees(answered.prepared[index], truth.prepared[index])
            if is_right and strict_question is not None and column.name not in self.unique:
                is_right = column.strictly_agrees(answered.raw[index], truth.raw[index], strict_question)
            num_right += is_right
        return num_right

    def match_columns(self, table: Table) -> bool:
        """Return whether the table has exactly the required columns, in any order."""
        return {*table.columns} - {""} == {column.name for column in self.columns}


def _read_names(evaluation: Mapping[str, Any], key: str) -> tuple[str, ...]:
    names = evaluation.get(key)
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise RewardError(f"{key} is {names!r:.80}; expected a list of column names")
    normalized_names = tuple(map(column_name, names))
    if len({*normalized_names}) < len(normalized_names):
        raise RewardError(f"{key} is {', '.join(names)}; expected each column once. Case and spacing do not count")
    return normalized_names


def _read_column(name: str, step: Any, is_key: bool) -> Column:
    if step is None and is_key:
        return Column(name)
    if not isinstance(step, Mapping):
        raise RewardError(f"eval_pipeline.{name} is {step!r:.80}; expected an object with 'preprocess' and 'metric'")
    prepare = step.get("preprocess", [])
    metrics = step.get("metric", [])
    for key, functions, known in (("preprocess", prepare, [*PREPARE]), ("metric", metrics, [*METRICS])):
        if not isinstance(functions, list) or not all(item in known for item in functions):
            raise RewardError(
                f"eval_pipeline.{name}.{key} is {functions!r:.80}; expected a list of names among {', '.join(known)}"
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


@lru_cache(maxsize=1024)
def _read_rules(evaluation: str) -> TableRules:
    return TableRules.of(json.loads(evaluation))


# Scores


@dataclass(frozen=True, slots=True)
class Hits:
    """Counts of items or rows: the right ones, those of the answer, and those of the truth."""

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
    """The scores of a table.

    Attributes:
        items, rows: counts, with precision, recall and F1.
        by_row: number of right items of each row of the truth, in the order of the truth; 0 for a missing row.
        readable: whether the answer is a table with exactly the required columns.
    """

    items: Hits
    rows: Hits
    by_row: tuple[int, ...]
    readable: bool

    @property
    def success(self) -> bool:
        return self.rows.right == self.rows.answered == self.rows.true


def wide_scores(task: Task, answer: str | None, strict: bool = False) -> WideScores:
    """Compute the scores of an answer.

    Args:
        task: task whose answer is a Markdown table, with `evaluation` in its metadata.
        answer: text with a table, or `None` for no answer.
        strict: whether cells must also agree by `Column.strictly_agrees`.

    Raises:
        RewardError: the table of the task or its rules cannot be read.
    """
    where = f"task {task.task_id} of {task.source!r}"
    if EVALUATION not in task.metadata:
        raise RewardError(
            f"{where} has no metadata '{EVALUATION}'; expected required, unique_columns and eval_pipeline as JSON"
        )
    try:
        rules = _read_rules(str(task.metadata[EVALUATION]))
    except ValueError as error:
        raise RewardError(f"{where}: {error}") from error
    gold_table = read_table(task.answer)
    if gold_table is None or not gold_table.rows or not rules.match_columns(gold_table):
        wanted = ", ".join(column.name for column in rules.columns)
        raise RewardError(
            f"{where} has the answer {task.answer!r:.80}; expected a Markdown table of the columns {wanted}"
        )
    true_rows = rules.index_rows(gold_table)
    if len(true_rows) < len(gold_table.rows):
        raise RewardError(
            f"{where}: {len(gold_table.rows)} rows, but {len(true_rows)} different values of "
            f"{', '.join(rules.unique)}; expected keys that tell the rows of the truth apart"
        )
    table = None if answer is None else read_table(answer)
    answered_rows: dict[tuple[str, ...], KeyedRow] = {}
    readable = False
    if table is not None and rules.match_columns(table):
        answered_rows = rules.index_rows(table)
        readable = True
    question = task.prompt if strict else None
    by_row: list[int] = []
    for key, true_row in true_rows.items():
        is_answered = key in answered_rows
        by_row.append(rules.count_right_cells(answered_rows[key], true_row, question) if is_answered else 0)
    width = len(rules.columns)
    return WideScores(
        Hits(sum(by_row), len(answered_rows) * width, len(true_rows) * width),
        Hits(sum(num_right == width for num_right in by_row), len(answered_rows), len(true_rows)),
        tuple(by_row),
        readable,
    )


@dataclass(frozen=True)
class Wide(Checked):
    """Scores a table by the F1 of its items or rows, or by success. A table is right if it is a success.

    If the metadata key `row_documents` (a JSON list) names the document of each row of the truth, an F1 has parts. The
    F1 is 2 right / (answered + true), a sum over the rows of the truth, and a document's part is the sum of its rows.

    Credit by `parts` is unbiased only if a clone changes no part but its own. A reply changes the parts of other
    documents in three cases: the root writes a row more or less, which changes `answered`; the reply names another
    document's key; or an extra cell makes the whole table unreadable. The clone is not blamed for the first two cases,
    and its siblings bear the third.

    Attributes:
        score: `item_f1`, `row_f1`, or `success`, which is 1 or 0.
        strict: whether a number cell must have exactly one number, with its sign and scale. For training; the official
            rules are lenient.
    """

    max_characters: ClassVar[int] = 300_000
    score: Literal["item_f1", "row_f1", "success"] = "item_f1"
    strict: bool = False

    def grade(self, task: Task, answer: str | None) -> Grade:
        if len(task.answer) > self.max_characters:
            raise RewardError(
                f"task {task.task_id} has an answer of {len(task.answer)} characters; expected at most "
                f"{self.max_characters}"
            )
        too_long = answer is not None and len(answer) > self.max_characters
        # The task is checked even if the answer is too long, so that a broken task always raises.
        scores = wide_scores(task, None if too_long else answer, self.strict)
        if too_long:
            return Grade(0.0, correct=False, well_formed=False, note="answer too long")
        if not scores.readable:
            return NO_ANSWER
        if self.score == "success":
            return Grade(float(scores.success), scores.success, True)
        hits = scores.items if self.score == "item_f1" else scores.rows
        right_by_row: Sequence[int] = scores.by_row
        if self.score == "row_f1":
            width = scores.items.true // scores.rows.true
            right_by_row = [num_right == width for num_right in scores.by_row]
        parts = _split_by_document(task, right_by_row, hits.answered + hits.true)
        return Grade(hits.f1, correct=scores.success, well_formed=True, parts=parts)


def _split_by_document(task: Task, right_by_row: Sequence[int], denominator: int) -> tuple[AnswerPart, ...]:
    """Return the part of an F1 that each document contributes.

    Args:
        task: task with `row_documents`; without it there are no parts.
        right_by_row: right items of each row of the truth, or whether the row is right.
        denominator: denominator of the F1.
    """
    if ROW_DOCUMENTS not in task.metadata:
        return ()
    documents = json.loads(str(task.metadata[ROW_DOCUMENTS]))
    if not isinstance(documents, list) or len(documents) != len(right_by_row):
        raise RewardError(
            f"task {task.task_id}: {ROW_DOCUMENTS} is {documents!r:.80}; expected a key for each of the "
            f"{len(right_by_row)} rows"
        )
    right_by_document: dict[str, int] = dict.fromkeys(map(str, documents), 0)
    for key, num_right in zip(documents, right_by_row, strict=True):
        right_by_document[str(key)] += num_right
    return tuple(AnswerPart(key, 2 * num_right / denominator) for key, num_right in right_by_document.items())
