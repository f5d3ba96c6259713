"""2WikiMultihopQA: questions of two to four hops over ten paragraphs, with triples of evidence (Apache-2.0)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

from selfcest_env.tasks.comparison import EARLIEST, FEWEST, LATEST, LONGEST, MOST, SAME, SHORTEST, Comparison
from selfcest_env.tasks.files import Record, read_records
from selfcest_env.tasks.hotpotqa import described, read_context, support_keys
from selfcest_env.tasks.plan import PlanStep, QuestionPlan, appears_in, normalize_words
from selfcest_env.tasks.qa import QuestionSource, make_unique_keys
from selfcest_env.types import Task

COMPARED = ("comparison", "bridge_comparison")
_DIRECTIONS = (
    (SAME, r"\bsame\b|\bshare\b|\bboth\b"),
    (LONGEST, r"\blived longer\b|\blonger\b|\blongest\b"),
    (SHORTEST, r"\bshorter\b|\bshortest\b"),
    (LATEST, r"\byounger\b|\byoungest\b|\blater\b|\blatest\b|\brecently\b|\blast\b|\bnewer\b"),
    (MOST, r"\b(?:more|most) (?!recent)\w+"),
    (FEWEST, r"\b(?:fewer|fewest) \w+"),
    (EARLIEST, r"\bolder\b|\boldest\b|\bearlier\b|\bearliest\b|\bfirst\b|\bbefore\b"),
)
_IN_BRACKETS = re.compile(r"\s*\([^)]*\)\s*$")


class Fact(NamedTuple):
    """A subject, a relation, and all objects that the evidence gives for them."""

    subject: str
    relation: str
    objects: tuple[str, ...]


@dataclass(frozen=True)
class TwoWiki(QuestionSource):
    """The official JSON array, of any release.

    The triples of evidence are the gold decomposition: a step asks for the object, of the paragraph that supports it.
    Comparisons end with a comparison of what the steps brought.

    Attributes:
        aliases: path of the official `id_aliases.json` (JSON lines with `Q_id`, `aliases`, `demonyms`), or empty.
    """

    name: ClassVar[str] = "two_wiki"
    aliases: str = ""

    def read(self, record: Record) -> Task | None:
        documents, support = read_documents(record)
        kind, question, answer = record.text("type"), record.text("question"), record.text("answer")
        facts = read_evidences(record)
        answer_id = record.text("answer_id") if record.has("answer_id") else ""
        return self.question(
            record,
            question,
            answer,
            documents,
            plan=make_plan(kind, question, facts, support, documents),
            support=support,
            aliases=self._alias_table.get(answer_id, ()),
            metadata={**described(record), "hops": len(facts), "qa_rule": "hotpotqa"},
        )

    @cached_property
    def _alias_table(self) -> Mapping[str, tuple[str, ...]]:
        if not self.aliases:
            return {}
        return {
            line.text("Q_id"): tuple(dict.fromkeys(line.texts("aliases") + line.texts("demonyms")))
            for line in read_records(self.aliases)
        }


def read_documents(record: Record) -> tuple[dict[str, str], tuple[str, ...]]:
    """Paragraphs by unique key, and the keys of those that support the answer."""
    paragraphs = read_context(record)
    keys = make_unique_keys(title for title, _ in paragraphs)
    documents = {key: " ".join(lines).strip() for key, (_, lines) in zip(keys, paragraphs, strict=True)}
    return documents, support_keys(record, paragraphs, keys)


def read_evidences(record: Record) -> tuple[Fact, ...]:
    triples = record.items("evidences")
    if not all(isinstance(t, list) and len(t) == 3 and all(isinstance(part, str) for part in t) for t in triples):
        raise record.mismatch("evidences", "a list of [subject, relation, object]")
    objects: dict[tuple[str, str], list[str]] = {}
    for subject, relation, found in triples:
        objects.setdefault((subject.strip(), relation.strip()), []).append(found.strip())
    return tuple(Fact(*key, tuple(dict.fromkeys(found))) for key, found in objects.items())


def make_plan(
    kind: str, question: str, facts: Sequence[Fact], support: Sequence[str], documents: Mapping[str, str]
) -> QuestionPlan | None:
    """Steps from evidence; `None` if the facts do not fit the kind of question."""
    links = _links(kind, facts)
    if links is None:
        return None
    steps = []
    for index, (fact, link) in enumerate(zip(facts, links, strict=True)):
        subject = fact.subject if link is None else f"#{link + 1}"
        key = _supporting(index, fact, len(facts), support, documents)
        steps.append(PlanStep(f"What is the {fact.relation} of {subject}?", (key,) if key else (), fact.objects))
    if kind not in COMPARED:
        return QuestionPlan(tuple(steps))
    comparison = _comparison(question, facts, links, steps)
    return None if comparison is None else QuestionPlan(tuple(steps), comparison)


def _links(kind: str, facts: Sequence[Fact]) -> list[int | None] | None:
    """For each fact the earlier one whose object is its subject, `None` if there is none.

    A chain links each fact to the one before, however the subject is spelled. In a bridge comparison two facts lead to
    the others, by name or else by position.
    """
    if kind == "comparison":
        return [None] * len(facts)
    if kind != "bridge_comparison":
        return [None, *range(len(facts) - 1)] if facts else None
    links = [_named(fact.subject, facts[:index]) for index, fact in enumerate(facts)]
    bridges = [index for index, link in enumerate(links) if link is None]
    if len(bridges) != 2:
        if len(facts) != 4:
            return None
        bridges = [0, 1]
        links = [None, None, *(0 if links[2] is None else links[2], 1 if links[3] is None else links[3])]
    return links if all(link is None or link in bridges for link in links) else None


def _named(subject: str, facts: Sequence[Fact]) -> int | None:
    """The first fact that has this object."""
    found = (
        index for index, fact in enumerate(facts) if normalize_words(subject) in map(normalize_words, fact.objects)
    )
    return next(found, None)


def _supporting(
    index: int, fact: Fact, num_facts: int, support: Sequence[str], documents: Mapping[str, str]
) -> str | None:
    """The supporting paragraph in which a fact's objects stand: that of its subject, else the one in its place."""
    by_title = [key for key in support if is_about(key, fact.subject)]
    by_place = [support[index]] if num_facts == len(support) else []
    for key in (*by_title, *by_place, *support):
        if all(appears_in(found, documents[key]) for found in fact.objects):
            return key
    return None


def is_about(title: str, subject: str) -> bool:
    """Whether a paragraph's title is a subject's name, whatever stands in brackets after either."""
    return normalize_words(_IN_BRACKETS.sub("", title)) == normalize_words(_IN_BRACKETS.sub("", subject))


def _comparison(
    question: str, facts: Sequence[Fact], links: Sequence[int | None], steps: Sequence[PlanStep]
) -> Comparison | None:
    """What the question asks of the two things; each is named by the document of its first step."""
    first = [index for index, link in enumerate(links) if link is None]
    if len(first) < len(facts):  # two films by one director share the step about him
        things = [_about(index, facts, links) for index in first]
    else:
        subjects = dict.fromkeys(normalize_words(fact.subject) for fact in facts)
        things = [
            [i for i, fact in enumerate(facts) if normalize_words(fact.subject) == subject] for subject in subjects
        ]
        first = [thing[0] for thing in things]
    if not all(steps[index].keys for index in first):
        return None
    names = tuple(steps[index].keys[0] for index in first)
    kind = _direction(question, names)
    measured = 2 if kind in (LONGEST, SHORTEST) else 1
    if kind is None or [len(thing) for thing in things] != [measured, measured]:
        return None
    return Comparison(kind, names, tuple(map(tuple, things)))


def _about(bridge: int, facts: Sequence[Fact], links: Sequence[int | None]) -> list[int]:
    """The facts to which a bridge leads."""
    later = [index for index, link in enumerate(links) if link is not None]
    named = [index for index in later if _named(facts[index].subject, [facts[bridge]]) is not None]
    return named or [index for index in later if links[index] == bridge]


def _direction(question: str, names: Sequence[str]) -> str | None:
    """What is compared, by the words of the question; those of the names do not count."""
    for name in names:
        question = re.sub(re.escape(name), "", question, flags=re.I)
    return next((kind for kind, pattern in _DIRECTIONS if re.search(pattern, question, re.I)), None)
