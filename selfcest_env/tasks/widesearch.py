"""WideSearch: questions in English and Chinese for a table that the web would have to be searched for."""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Iterator
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
    """The official JSON lines (`instance_id`, `query`, `evaluation`, `language`), and a CSV file for each gold table.

    The questions come without documents: the answers are on the web, and no tool here searches it. What can be done:
    ask a policy what it knows, splitting a table among clones without anything to read, or grade tables that were made
    elsewhere with `selfcest_env.graders.wide.wide_scores`. There is no expert. Tables with documents are `wide_tables`
    and `two_wiki_tables`.

    Most questions have columns for a judge, a language model; see the grader `wide` for what becomes of them. Gold rows
    with equal keys are one row, as there: the first is kept, and a warning counts the others. Line breaks and runs of
    space within a cell become one space.

    Attributes:
        answers: folder of the gold tables, `ID.csv`; left empty, `widesearch_gold` beside the file of the questions.
        judged: keep questions with a column that asks for a judge.
    """

    name: ClassVar[str] = "widesearch"
    suffixes: ClassVar[tuple[str, ...]] = (".jsonl", ".json")
    answers: str = ""
    judged: bool = True

    def records(self) -> Iterator[Record]:
        if self.path.startswith(HUB):
            yield from read_records(self.path)
            return
        for file in list_files(self.path, self.suffixes):  # and not the gold tables, which may lie under it
            yield from read_records(str(file))

    def read(self, record: Record) -> Task | None:
        name, query = record.text("instance_id"), record.text("query")
        if not query.strip():
            raise record.mismatch("query", "a text that is not empty")
        evaluation = _evaluation(record)
        try:
            rules = TableRules.of(evaluation)
        except RewardError as error:
            raise record.error("evaluation", f"cannot be used: {error}") from error
        if not self.judged and any(JUDGE in column.metrics for column in rules.columns):
            return None
        rows = self._gold(record, name, rules)
        return self.make(
            record,
            query.strip(),
            write_table([column.name for column in rules.columns], rows),
            id=name,
            language=record.text("language") if record.has("language") else "",
            size=len(rows),
            columns=len(rules.columns),
            **{EVALUATION: json.dumps(evaluation, ensure_ascii=False)},
        )

    @cached_property
    def digest(self) -> str:
        """Of the questions and of the gold tables."""
        folders = [self.answers] if self.answers or self.path.startswith(HUB) else [*map(str, self._beside)]
        found = [content_digest(self.path, self.suffixes), *(content_digest(place, (".csv",)) for place in folders)]
        return hashlib.blake2b(" ".join(found).encode(), digest_size=8).hexdigest()

    @property
    def _beside(self) -> list[Path]:
        return sorted({file.parent / GOLD for file in list_files(self.path, self.suffixes)})

    def _gold(self, record: Record, name: str, rules: TableRules) -> list[tuple[str, ...]]:
        """The rows of the gold table, cells in the order of the rules' columns."""
        if not self.answers and record.file.startswith(HUB):
            raise record.error(
                "instance_id",
                f"is {name!r}, but the gold tables are no part of the data set's rows; download its folder {GOLD} and "
                f"name it in {self.name}.answers",
            )
        if not _ID.fullmatch(name):
            raise record.mismatch(
                "instance_id", "letters, digits, '_', '-' and '.': it names the file of the gold table"
            )
        file = (expand_path(self.answers) if self.answers else Path(record.file).parent / GOLD) / f"{name}.csv"
        if not file.is_file():
            raise record.error("instance_id", f"is {name!r}, but there is no gold table {file}")
        table = [*read_records(str(file))]
        names = {column_name(column): column for line in table for column in line.data}
        missing = [column.name for column in rules.columns if column.name not in names]
        if missing:
            found = ", ".join(names) or "no row"
            raise record.error("evaluation.required", f"names {', '.join(missing)}; found in {file}: {found}")
        rows = [tuple(" ".join(line.text(names[column.name]).split()) for column in rules.columns) for line in table]
        written = read_table(write_table([column.name for column in rules.columns], rows))
        if written is None or [*written.rows] != rows:
            raise record.error("instance_id", f"is {name!r}, whose gold table {file} no Markdown table can hold")
        kept: dict[tuple[str, ...], tuple[str, ...]] = {}
        for row in rows:
            cells = zip(rules.columns, row, strict=True)
            kept.setdefault(tuple(column.prepared(cell) for column, cell in cells if column.name in rules.unique), row)
        if len(kept) < len(rows):
            warnings.warn(
                f"{self.name}: {file}: left out {len(rows) - len(kept)} of {len(rows)} rows, whose "
                f"{', '.join(rules.unique)} an earlier row has",
                stacklevel=2,
            )
        return [*kept.values()]


def _evaluation(record: Record) -> Any:
    """The object under `evaluation`; on the hub it is JSON in a text."""
    found = record.data.get("evaluation")
    if not isinstance(found, str):
        return dict(record.part("evaluation").data)
    try:
        return json.loads(found)
    except (ValueError, RecursionError) as error:
        raise record.mismatch("evaluation", f"an object, or one as JSON ({error})") from error
