"""Tables from the evidence of 2WikiMultihopQA: a row for each of several subjects, a column for each relation.

The triples (subject, relation, object) of all records are grouped by relation. The document of a row is the supporting
paragraph whose title is the subject's name. A triple is used only if this paragraph contains the object word for word,
so that the documents are sufficient to answer the table. HotpotQA has no triples, so there are no tables from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Annotated, ClassVar, NamedTuple

from selfcest_env.errors import ConfigError
from selfcest_env.graders.wide import MISSING, PREPARE, column_name, read_row, write_row, write_table
from selfcest_env.structure import Between
from selfcest_env.tasks.files import Record
from selfcest_env.tasks.finite import ALL, FileSource, Skipped, identity_part, squeeze
from selfcest_env.tasks.plan import appears_in
from selfcest_env.tasks.tables import TableExpert, TableQuestion, table_metadata
from selfcest_env.tasks.two_wiki import is_about, read_documents, read_evidences
from selfcest_env.types import Task
from selfcest_env.views import Observation

KEY = "title"
_TEXT = {"preprocess": ["norm_str"], "metric": ["exact_match"]}


class _Subject(NamedTuple):
    """A paragraph about a subject, and the evidence of all records about it.

    Attributes:
        record: the first record with the paragraph.
        text: the paragraph.
        distractors: the other paragraphs of that record, by title; empty if the option `others` is 0.
        values: all objects, by relation. A relation has several if it names several, or if records disagree.
    """

    record: Record
    text: str
    distractors: Mapping[str, str]
    values: dict[str, set[str]]


@dataclass(frozen=True)
class TwoWikiTables(TableExpert, FileSource):
    """Source of tables from the official JSON array of 2WikiMultihopQA, of any release.

    For every combination of relations, the subjects with exactly one object for each of them are cut into tables, in
    the order of the file. The split is by subject, so that no title is a row in both parts. A title may occur in tables
    of several combinations.

    Attributes:
        relations: number of columns beside the title.
        min_rows, max_rows: number of rows of a table. The last subjects are left out if they are fewer than `min_rows`.
        others: maximum number of further paragraphs for each row, the first of its record that are about no row.
    """

    name: ClassVar[str] = "two_wiki_tables"
    relations: Annotated[int, Between(1, 8)] = 1
    min_rows: Annotated[int, Between(1, 1000)] = 3
    max_rows: Annotated[int, Between(1, 1000)] = 8
    others: Annotated[int, Between(0, 9)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_rows > self.max_rows:
            raise ConfigError(
                f"{self.name}.min_rows is {self.min_rows}, above max_rows = {self.max_rows}; expected at most max_rows"
            )

    def read_question(self, observation: Observation) -> TableQuestion | None:
        question = TableQuestion.read(observation.brief.text)
        return question if question is not None and question.columns[0] == KEY else None

    def find_value(self, key: str, text: str, column: str) -> str | None:
        """Return the object of the evidence if the text contains it, else `None`."""
        value = self._cells.get((key, column))
        return value if value is not None and appears_in(value, text) else None

    @cached_property
    def _cells(self) -> dict[tuple[str, str], str]:
        """The cells of all tables, by title and column."""
        cells: dict[tuple[str, str], str] = {}
        for task in self.tasks():
            question = TableQuestion.read(task.prompt)
            assert question is not None
            rows = task.answer.split("\n")[2:]  # without the header and the line of dashes
            for row, key in zip(rows, question.keys, strict=True):
                for column, cell in zip(question.columns, read_row(row), strict=True):
                    cells[key, column] = cell
        return cells

    def _read_all(self) -> Iterator[Task | Skipped | None]:
        subjects: dict[str, _Subject] = {}
        for record in self.records():
            result = self._call_guarded(lambda record: _gather(record, subjects, bool(self.others)), record)
            if isinstance(result, Skipped):
                yield result
        subjects = {title: subject for title, subject in subjects.items() if self._is_in_part(title)}
        value_by_title: dict[str, dict[str, str]] = {}  # for each relation
        for title, subject in subjects.items():
            for relation, values in subject.values.items():
                if len(values) == 1 and column_name(relation) != KEY:
                    value_by_title.setdefault(relation, {})[title] = next(iter(values))
        for relations in combinations(value_by_title, self.relations):
            columns = {relation: value_by_title[relation] for relation in relations}
            # Titles that the grader cannot tell apart would be one row, so only the first is kept. It moves to the
            # place of the last, because tables of earlier versions have this order.
            title_by_key: dict[str, str] = {}
            for title in columns[relations[0]]:
                if all(title in column for column in columns.values()):
                    key = PREPARE["norm_str"](title)
                    title_by_key[key] = title_by_key.pop(key, title)
            titles = list(title_by_key.values())
            for start in range(0, len(titles), self.max_rows):
                rows = titles[start : start + self.max_rows]
                if len(rows) >= self.min_rows:
                    yield self._make_table(rows, columns, subjects)

    def _is_in_part(self, title: str) -> bool:
        return self.part in (ALL, identity_part(squeeze(title), self.test_fraction, self.split_seed))

    def _part(self, task: Task) -> str:
        # All subjects of a table are of this part already.
        return self.part

    def _make_table(
        self, titles: Sequence[str], columns: Mapping[str, Mapping[str, str]], subjects: Mapping[str, _Subject]
    ) -> Task:
        question = TableQuestion((KEY, *columns), tuple(titles))
        rows: list[tuple[str, ...]] = []
        for title in titles:
            rows.append((title, *(values[title] for values in columns.values())))
        context = {title: subjects[title].text for title in titles}
        for title in titles:
            distractors = [item for item in subjects[title].distractors.items() if item[0] not in context]
            context |= dict(distractors[: self.others])
        metadata = table_metadata(question, dict.fromkeys(question.columns, _TEXT), len(context))
        # Sorted, so that the order of the documents does not tell which of them are needed.
        sorted_context = {key: context[key] for key in sorted(context)}
        answer = write_table(question.columns, rows)
        return self.make(subjects[titles[0]].record, question.write(), answer, sorted_context, **metadata)


def _gather(record: Record, subjects: dict[str, _Subject], keep_distractors: bool) -> None:
    """Add a record's evidence about the subjects of its supporting paragraphs to `subjects`."""
    documents, support = read_documents(record)
    for fact in read_evidences(record):
        for key in support:
            if not is_about(key, fact.subject) or not _is_writable(key):
                continue
            distractors: dict[str, str] = {}
            if keep_distractors:
                distractors = {title: text for title, text in documents.items() if title != key}
            subject = subjects.setdefault(key, _Subject(record, documents[key], distractors, {}))
            if all(_is_writable(value) and appears_in(value, subject.text) for value in fact.objects):
                subject.values.setdefault(fact.relation, set()).update(fact.objects)


def _is_writable(cell: str) -> bool:
    """Return whether a cell of a Markdown table can hold a text unchanged, and the text does not mean "missing"."""
    return cell not in MISSING and read_row(write_row((cell, "x"))) == (cell, "x")
