"""WideSearch: questions in English and Chinese whose answer is a table of facts from the web."""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from selfcest_env.errors import RewardError
from selfcest_env.graders.wide import EVALUATION, JUDGE, TableRules, column_name, read_table, write_table
from selfcest_env.tasks.files import HUB, Record, content_digest, expand_path, list_files, read_records
from selfcest_env.tasks.finite import FileSource
from selfcest_env.types import Task

GOLD = "widesearch_gold"
_ID = re.compile(r"[\w-][\w.-]*")


@dataclass(frozen=True)
class WideSearch(FileSource):
    """Source of the official JSON lines (`instance_id`, `query`, `evaluation`, `language`), with gold tables as CSV.

    The questions have no documents, because their answers are on the web, which no tool of this project searches. A
    policy can answer only from memory. `selfcest_env.graders.wide.wide_scores` grades tables that another system made.
    There is no expert. The sources `wide_tables` and `two_wiki_tables` have documents.

    Most questions have columns that need a judge, a language model; the grader `wide` says how it treats them. Of gold
    rows with equal keys the first is kept, and a warning counts the others. Line breaks and runs of space within a cell
    become one space.

    Attributes:
        answers: folder of the gold tables, `ID.csv`. Empty means `widesearch_gold` beside the questions.
        judged: whether to keep questions with a column that needs a judge.
    """

    name: ClassVar[str] = "widesearch"
    suffixes: ClassVar[tuple[str, ...]] = (".jsonl", ".json")
    answers: str = ""
    judged: bool = True

    def records(self) -> Iterator[Record]:
        if self.path.startswith(HUB):
            yield from read_records(self.path)
            return
        # `read_records(self.path)` would also read the gold tables, which may be in the same folder.
        for file in list_files(self.path, self.suffixes):
            yield from read_records(str(file))

    def read(self, record: Record) -> Task | None:
        instance_id = record.text("instance_id")
        query = record.text("query")
        if not query.strip():
            raise record.mismatch("query", "a text that is not empty")
        evaluation = _evaluation(record)
        try:
            rules = TableRules.of(evaluation)
        except RewardError as error:
            raise record.error("evaluation", f"cannot be used: {error}") from error
        if not self.judged and any(JUDGE in column.metrics for column in rules.columns):
            return None
        rows = self._read_gold_rows(record, instance_id, rules)
        return self.make(
            record,
            query.strip(),
            write_table([column.name for column in rules.columns], rows),
            id=instance_id,
            language=record.text("language") if record.has("language") else "",
            size=len(rows),
            columns=len(rules.columns),
            **{EVALUATION: json.dumps(evaluation, ensure_ascii=False)},
        )

    @cached_property
    def digest(self) -> str:
        """A digest of the questions and of the gold tables."""
        if self.answers or self.path.startswith(HUB):
            gold_folders = [self.answers]
        else:
            gold_folders = [str(folder) for folder in self._gold_folders]
        digests = [content_digest(self.path, self.suffixes)]
        digests += [content_digest(folder, (".csv",)) for folder in gold_folders]
        return hashlib.blake2b(" ".join(digests).encode(), digest_size=8).hexdigest()

    @property
    def _gold_folders(self) -> list[Path]:
        return sorted({file.parent / GOLD for file in list_files(self.path, self.suffixes)})

    def _read_gold_rows(self, record: Record, instance_id: str, rules: TableRules) -> list[tuple[str, ...]]:
        """Return the rows of the gold table, with cells in the order of the rules' columns."""
        if not self.answers and record.file.startswith(HUB):
            raise record.error(
                "instance_id",
                f"is {instance_id!r}, but the hub's rows do not contain the gold tables; download the folder {GOLD} of "
                f"the data set and name it in {self.name}.answers",
            )
        if not _ID.fullmatch(instance_id):
            raise record.mismatch(
                "instance_id", "letters, digits, '_', '-' and '.': it names the file of the gold table"
            )
        file = (expand_path(self.answers) if self.answers else Path(record.file).parent / GOLD) / f"{instance_id}.csv"
        if not file.is_file():
            raise record.error("instance_id", f"is {instance_id!r}, but there is no gold table {file}")
        lines = list(read_records(str(file)))
        header: dict[str, str] = {}
        for line in lines:
            header |= {column_name(column): column for column in line.data}
        missing = [column.name for column in rules.columns if column.name not in header]
        if missing:
            columns = ", ".join(header) or "no row"
            raise record.error("evaluation.required", f"names {', '.join(missing)}; found in {file}: {columns}")
        rows = [_read_row(line, header, rules) for line in lines]
        # A cell that Markdown changes could never be answered.
        table = read_table(write_table([column.name for column in rules.columns], rows))
        if table is None or list(table.rows) != rows:
            raise record.error("instance_id", f"is {instance_id!r}, whose gold table {file} no Markdown table can hold")
        row_by_key: dict[tuple[str, ...], tuple[str, ...]] = {}
        for row in rows:
            cells = zip(rules.columns, row, strict=True)
            key = tuple(column.prepare_cell(cell) for column, cell in cells if column.name in rules.unique)
            row_by_key.setdefault(key, row)
        if len(row_by_key) < len(rows):
            warnings.warn(
                f"{self.name}: {file}: left out {len(rows) - len(row_by_key)} of {len(rows)} rows, whose "
                f"{', '.join(rules.unique)} an earlier row has",
                stacklevel=2,
            )
        return list(row_by_key.values())


def _read_row(line: Record, header: Mapping[str, str], rules: TableRules) -> tuple[str, ...]:
    """Return the cells of a line in the order of the rules' columns, with single spaces."""
    cells = (line.text(header[column.name]) for column in rules.columns)
    return tuple(" ".join(cell.split()) for cell in cells)


def _evaluation(record: Record) -> Any:
    """Return the object under `evaluation`. On the hub it is a text of JSON."""
    evaluation = record.data.get("evaluation")
    if not isinstance(evaluation, str):
        return dict(record.part("evaluation").data)
    try:
        return json.loads(evaluation)
    except (ValueError, RecursionError) as error:
        raise record.mismatch("evaluation", f"an object, or one as JSON ({error})") from error
