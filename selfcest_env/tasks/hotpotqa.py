"""HotpotQA: questions of two hops over ten paragraphs (CC BY-SA 4.0)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from selfcest_env.tasks.files import Record, shorten_repr
from selfcest_env.tasks.qa import QuestionSource, make_unique_keys, single_step_plan
from selfcest_env.types import Scalar, Task

Paragraph = tuple[str, tuple[str, ...]]
Fact = tuple[str, int]


@dataclass(frozen=True)
class HotpotQA(QuestionSource):
    """The official JSON array, or the hub's layout; the set must have answers.

    There are no gold sub-questions. The expert asks the whole question of the paragraphs with supporting facts, which
    only leads to answers that stand there: not to yes or no.
    """

    name: ClassVar[str] = "hotpotqa"

    def read(self, record: Record) -> Task | None:
        paragraphs = read_context(record)
        keys = make_unique_keys(title for title, _ in paragraphs)
        support = support_keys(record, paragraphs, keys)
        question, answer = record.text("question"), record.text("answer")
        texts = ("".join(sentences).strip() for _, sentences in paragraphs)
        return self.question(
            record,
            question,
            answer,
            dict(zip(keys, texts, strict=True)),
            plan=single_step_plan(question, support, answer),
            support=support,
            metadata={**described(record), "hops": 2, "qa_rule": "hotpotqa"},
        )


def described(record: Record) -> Mapping[str, Scalar]:
    """Id and kind, as far as they are given; the official files say `_id`, the hub `id`."""
    if not (record.has("_id") or record.has("id")):
        raise record.mismatch("_id", "a string (id in the hub's layout)")
    found = {"id": record.text("_id" if record.has("_id") else "id")}
    return found | {key: record.text(key) for key in ("type", "level") if record.has(key)}


def read_context(record: Record) -> tuple[Paragraph, ...]:
    """Titles and sentences, in the official layout or the hub's."""
    expected = "a list of [title, [sentence, ...]], or the hub's {title: [...], sentences: [[...]]}"
    found = record.data.get("context")
    pairs = _zipped(found, "title", "sentences") if isinstance(found, dict) else found
    if not isinstance(pairs, list) or not all(_is_pair(pair, list) for pair in pairs):
        raise record.mismatch("context", expected)
    if not all(isinstance(sentence, str) for _, sentences in pairs for sentence in sentences):
        raise record.mismatch("context", expected)
    return tuple((title, tuple(sentences)) for title, sentences in pairs)


def read_facts(record: Record) -> tuple[Fact, ...]:
    """Title and number of each supporting sentence, from 0."""
    found = record.data.get("supporting_facts")
    pairs = _zipped(found, "title", "sent_id") if isinstance(found, dict) else found
    if not isinstance(pairs, list) or not all(_is_pair(pair, int) for pair in pairs):
        raise record.mismatch(
            "supporting_facts", "a list of [title, sentence number], or the hub's {title: [], sent_id: []}"
        )
    return tuple((title, number) for title, number in pairs)


def support_keys(record: Record, paragraphs: Sequence[Paragraph], keys: Sequence[str]) -> tuple[str, ...]:
    """Keys of the paragraphs with supporting facts, in the order of the facts; of equal titles the first.

    Raises `DataError` for a fact that names no paragraph, or a sentence that its paragraph does not have.
    """
    named: dict[str, str] = {}
    lengths: dict[str, int] = {}
    for (title, sentences), key in zip(paragraphs, keys, strict=True):
        folded = title.casefold()
        named.setdefault(folded, key)
        lengths[folded] = max(len(sentences), lengths.get(folded, 0))
    facts = read_facts(record)
    for index, (title, number) in enumerate(facts):
        length = lengths.get(title.casefold())
        if length is not None and 0 <= number < length:
            continue
        said = (
            f"names {shorten_repr(title)}, no title of the context"
            if length is None
            else f"is sentence {number} of {shorten_repr(title)}; expected 0 to {length - 1}"
        )
        raise record.error(f"supporting_facts[{index}]", f"{said} (skip_faulty: true leaves such records out)")
    return tuple(dict.fromkeys(named[title.casefold()] for title, _ in facts))


def _zipped(columns: Mapping[str, Any], first: str, second: str) -> Any:
    left, right = columns.get(first), columns.get(second)
    if not isinstance(left, list) or not isinstance(right, list) or len(left) != len(right):
        return None
    return [list(pair) for pair in zip(left, right, strict=True)]


def _is_pair(value: object, second: type) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and type(value[1]) is second
