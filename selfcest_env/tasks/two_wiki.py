"""2WikiMultihopQA: questions of two to four hops over ten paragraphs, with triples of evidence (Apache-2.0)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

from selfcest_env.tasks.comparison import EARLIEST, FEWEST, LATEST, LONGEST, MOST, SAME, SHORTEST, Comparison
from selfcest_env.tasks.files import Record, read_records
from selfcest_env.tasks.hotpotqa import read_context, read_metadata, support_keys
from selfcest_env.tasks.plan import PlanStep, QuestionPlan, appears_in, normalize_words
from selfcest_env.tasks.qa import QuestionSource, make_unique_keys
from selfcest_env.types import Task

COMPARED = ("comparison", "bridge_comparison")
# Patterns of each kind of comparison. The order matters: "born first and lived longer" is about lifetimes.
_COMPARISON_PATTERNS = (
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
    """A subject, a relation, and all objects that the evidence names for them."""

    subject: str
    relation: str
    objects: tuple[str, ...]


@dataclass(frozen=True)
class TwoWiki(QuestionSource):
    """Source of the official JSON array, of any release.

    The triples of evidence are the gold decomposition. A step asks for the object of a triple, and the supporting
    paragraph answers it. Comparison questions end with a comparison of the steps' answers.

    Attributes:
        aliases: path of the official `id_aliases.json` (JSON lines with `Q_id`, `aliases`, `demonyms`), or empty.
    """

    name: ClassVar[str] = "two_wiki"
    aliases: str = ""

    def read(self, record: Record) -> Task | None:
        documents, support = read_documents(record)
        kind = record.text("type")
        question = record.text("question")
        answer = record.text("answer")
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
            metadata={**read_metadata(record), "hops": len(facts), "qa_rule": "hotpotqa"},
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
    """Return the paragraphs by unique key, and the keys of those that support the answer."""
    paragraphs = read_context(record)
    keys = make_unique_keys(title for title, _ in paragraphs)
    documents = {key: " ".join(lines).strip() for key, (_, lines) in zip(keys, paragraphs, strict=True)}
    return documents, support_keys(record, paragraphs, keys)


def read_evidences(record: Record) -> tuple[Fact, ...]:
    """Return the evidence of a record, with the objects of equal subjects and relations in one fact."""
    triples = record.items("evidences")
    objects: dict[tuple[str, str], list[str]] = {}
    for triple in triples:
        if not isinstance(triple, list) or [*map(type, triple)] != [str, str, str]:
            raise record.mismatch("evidences", "a list of [subject, relation, object]")
        subject, relation, value = map(str.strip, triple)
        objects.setdefault((subject, relation), []).append(value)
    return tuple(Fact(*key, tuple(dict.fromkeys(values))) for key, values in objects.items())


def make_plan(
    kind: str, question: str, facts: Sequence[Fact], support: Sequence[str], documents: Mapping[str, str]
) -> QuestionPlan | None:
    """Return the plan that follows from the evidence; `None` if the facts do not fit the kind of question."""
    links = _link_facts(kind, facts)
    if links is None:
        return None
    steps = []
    for index, (fact, link) in enumerate(zip(facts, links, strict=True)):
        subject = fact.subject if link is None else f"#{link + 1}"
        key = _find_supporting_key(index, fact, len(facts), support, documents)
        steps.append(PlanStep(f"What is the {fact.relation} of {subject}?", (key,) if key else (), fact.objects))
    if kind not in COMPARED:
        return QuestionPlan(tuple(steps))
    comparison = _make_comparison(question, facts, links, steps)
    return None if comparison is None else QuestionPlan(tuple(steps), comparison)


def _link_facts(kind: str, facts: Sequence[Fact]) -> list[int | None] | None:
    """Return for each fact the index of the earlier fact whose object is its subject, or `None` without such a fact.

    In a chain each fact is linked to the fact before it, whichever way the subject is spelled. In a bridge comparison
    two facts lead to the others, by name, or by position if the names differ. The whole result is `None` if the facts
    do not fit the kind of question.
    """
    if kind == "comparison":
        return [None] * len(facts)
    if kind != "bridge_comparison":
        return [None, *range(len(facts) - 1)] if facts else None
    links = [_find_fact_about(fact.subject, facts[:index]) for index, fact in enumerate(facts)]
    bridges = [index for index, link in enumerate(links) if link is None]
    if len(bridges) != 2:
        if len(facts) != 4:
            return None
        bridges = [0, 1]
        third_link = 0 if links[2] is None else links[2]
        fourth_link = 1 if links[3] is None else links[3]
        links = [None, None, third_link, fourth_link]
    return links if all(link is None or link in bridges for link in links) else None


def _find_fact_about(subject: str, facts: Sequence[Fact]) -> int | None:
    """Return the index of the first fact that has this subject as an object."""
    for index, fact in enumerate(facts):
        if normalize_words(subject) in map(normalize_words, fact.objects):
            return index
    return None


def _find_supporting_key(
    index: int, fact: Fact, num_facts: int, support: Sequence[str], documents: Mapping[str, str]
) -> str | None:
    """Return the key of the supporting paragraph that contains a fact's objects.

    The paragraph about the subject is tried first, then the one in the place of the fact, then all others.
    """
    by_title = [key for key in support if is_about(key, fact.subject)]
    by_place = [support[index]] if num_facts == len(support) else []
    for key in (*by_title, *by_place, *support):
        if all(appears_in(value, documents[key]) for value in fact.objects):
            return key
    return None


def is_about(title: str, subject: str) -> bool:
    """Return whether a paragraph's title is the name of a subject. Brackets at the end of either are ignored."""
    return normalize_words(_IN_BRACKETS.sub("", title)) == normalize_words(_IN_BRACKETS.sub("", subject))


def _make_comparison(
    question: str, facts: Sequence[Fact], links: Sequence[int | None], steps: Sequence[PlanStep]
) -> Comparison | None:
    """Return the comparison of two things, each named by the document of its first step; `None` if there is none."""
    first_facts = [index for index, link in enumerate(links) if link is None]
    facts_by_thing: list[list[int]]
    if len(first_facts) < len(facts):
        # A bridge comparison. Two films by one director share the facts about the director.
        facts_by_thing = [_find_bridged_facts(index, facts, links) for index in first_facts]
    else:
        indices_by_subject: dict[str, list[int]] = {}
        for index, fact in enumerate(facts):
            indices_by_subject.setdefault(normalize_words(fact.subject), []).append(index)
        facts_by_thing = list(indices_by_subject.values())
        first_facts = [indices[0] for indices in facts_by_thing]
    if not all(steps[index].keys for index in first_facts):
        return None
    names = tuple(steps[index].keys[0] for index in first_facts)
    kind = _find_comparison_kind(question, names)
    # A span needs its start and its end.
    num_values = 2 if kind in (LONGEST, SHORTEST) else 1
    if kind is None or [len(indices) for indices in facts_by_thing] != [num_values, num_values]:
        return None
    return Comparison(kind, names, tuple(map(tuple, facts_by_thing)))


def _find_bridged_facts(bridge: int, facts: Sequence[Fact], links: Sequence[int | None]) -> list[int]:
    """Return the indices of the facts to which a bridge leads."""
    later = [index for index, link in enumerate(links) if link is not None]
    by_name = [index for index in later if _find_fact_about(facts[index].subject, [facts[bridge]]) is not None]
    return by_name or [index for index in later if links[index] == bridge]


def _find_comparison_kind(question: str, names: Sequence[str]) -> str | None:
    """Return the kind of comparison by the words of the question, without the names in it; `None` if none fits."""
    for name in names:
        question = re.sub(re.escape(name), "", question, flags=re.I)
    return next((kind for kind, pattern in _COMPARISON_PATTERNS if re.search(pattern, question, re.I)), None)
