"""Tables from the evidence of 2WikiMultihopQA: a row for each of several subjects, a column for each of its relations.

The triples (subject, relation, object) of all records are put together by relation. The document of a row is the
supporting paragraph that has the subject's name as its title, and a cell is filled in only where the object stands in
that paragraph, word for word, so that the table can be answered from what is there. HotpotQA has no triples, so nothing
says what of its paragraphs is a value of what; there are no tables from it.
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
from selfcest_env.tasks.tables import TableExpert, TableQuestion, table_facts
from selfcest_env.tasks.two_wiki import is_about, read_documents, read_evidences
from selfcest_env.types import Task
from selfcest_env.views import Observation

KEY = "title"
_TEXT = {"preprocess": ["norm_str"], "metric": ["exact_match"]}


class _Subject(NamedTuple):
    """A paragraph about one subject, and what the evidence of all records says of it.

    Attributes:
        record: where the paragraph stands first.
        text: the paragraph.
        others: the other paragraphs of that record, by title; none where nobody asks for them.
        values: by relation all objects; more than one where the evidence does not agree, or gives several.
    """

    record: Record
    text: str
    others: Mapping[str, str]
    values: dict[str, set[str]]


@dataclass(frozen=True)
class TwoWikiTables(TableExpert, FileSource):
    """Tables from the official JSON array of 2WikiMultihopQA, of any release.

    For every choice of `relations` relations the subjects that have them all, each with one object, are cut into tables
    in the order of the file. A split is by subject: no title is a row in both parts. One title may stand in tables of
    several relations.

    Attributes:
        relations: columns beside the title.
        min_rows, max_rows: of one table; what is left of the subjects is a table if it has `min_rows`.
        others: for each row up to so many more paragraphs, the first of its record that are about no row.
    """

    name: ClassVar[str] = "two_wiki_tables"
    relations: Annotated[int, Between(1, 8)] = 1
    min_rows: Annotated[int, Between(1, 1000)] = 3
    max_rows: Annotated[int, Between(1, 1000)] = 8
    others: Annotated[int, Between(0, 9)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_rows > self.max_rows:
            raise ConfigError(f"{self.name}.min_rows is {self.min_rows}, above max_rows = {self.max_rows}")

    def asked(self, observation: Observation) -> TableQuestion | None:
        question = TableQuestion.read(observation.brief.text)
        return question if question is not None and question.columns[0] == KEY else None

    def find(self, key: str, text: str, column: str) -> str | None:
        """The object that the evidence gives, if it stands in the text."""
        value = self._values.get((key, column))
        return value if value is not None and appears_in(value, text) else None

    @cached_property
    def _values(self) -> dict[tuple[str, str], str]:
        found: dict[tuple[str, str], str] = {}
        for task in self.tasks():
            question = TableQuestion.read(task.prompt)
            assert question is not None
            for line, key in zip(task.answer.split("\n")[2:], question.keys, strict=True):
                found |= {(key, column): cell for column, cell in zip(question.columns, read_row(line), strict=True)}
        return found

    def _read_all(self) -> Iterator[Task | Skipped | None]:
        subjects: dict[str, _Subject] = {}
        for record in self.records():
            found = self._call_guarded(lambda record: _gather(record, subjects, bool(self.others)), record)
            if isinstance(found, Skipped):
                yield found
        mine = {title: subject for title, subject in subjects.items() if self._is_mine(title)}
        by_relation: dict[str, dict[str, str]] = {}
        for title, subject in mine.items():
            for relation, values in subject.values.items():
                if len(values) == 1 and column_name(relation) != KEY:
                    by_relation.setdefault(relation, {})[title] = next(iter(values))
        for chosen in combinations(by_relation, self.relations):
            every = [title for title in by_relation[chosen[0]] if all(title in by_relation[c] for c in chosen[1:])]
            # Of titles that the grader takes for one the first is kept.
            titles = list({PREPARE["norm_str"](title): title for title in reversed(every)}.values())[::-1]
            for start in range(0, len(titles), self.max_rows):
                rows = titles[start : start + self.max_rows]
                if len(rows) >= self.min_rows:
                    yield self._table(rows, {relation: by_relation[relation] for relation in chosen}, mine)

    def _is_mine(self, title: str) -> bool:
        return self.part in (ALL, identity_part(squeeze(title), self.test_fraction, self.split_seed))

    def _part(self, task: Task) -> str:
        """Tables are made of the part's own subjects."""
        return self.part

    def _table(
        self, titles: Sequence[str], values: Mapping[str, Mapping[str, str]], subjects: Mapping[str, _Subject]
    ) -> Task:
        question = TableQuestion((KEY, *values), tuple(titles))
        answer = write_table(question.columns, [(title, *(of[title] for of in values.values())) for title in titles])
        context = {title: subjects[title].text for title in titles}
        for title in titles:
            more = [(key, text) for key, text in subjects[title].others.items() if key not in context]
            context |= dict(more[: self.others])
        facts = table_facts(question, dict.fromkeys(question.columns, _TEXT), len(context))
        listed = {key: context[key] for key in sorted(context)}
        return self.make(subjects[titles[0]].record, question.write(), answer, listed, **facts)


def _gather(record: Record, subjects: dict[str, _Subject], keep_others: bool) -> None:
    """Add what a record's evidence says of the subjects of its supporting paragraphs."""
    documents, support = read_documents(record)
    for fact in read_evidences(record):
        for key in support:
            if not is_about(key, fact.subject) or not _writable(key):
                continue
            others = {other: text for other, text in documents.items() if keep_others and other != key}
            subject = subjects.setdefault(key, _Subject(record, documents[key], others, {}))
            standing = [found for found in fact.objects if _writable(found) and appears_in(found, subject.text)]
            if len(standing) == len(fact.objects):
                subject.values.setdefault(fact.relation, set()).update(standing)


def _writable(cell: str) -> bool:
    """Whether a text comes back as it is from a cell of a Markdown table, and does not read as a missing one."""
    return cell not in MISSING and read_row(write_row((cell, "x"))) == (cell, "x")
