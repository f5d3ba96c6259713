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
    """Source of the official JSON array or of the hub's layout. The file must have answers.

    The data set has no gold sub-questions. The expert asks the whole question of the paragraphs with supporting facts.
    It can solve only questions whose answer occurs in these paragraphs, so it cannot answer yes or no.
    """

    name: ClassVar[str] = "hotpotqa"

    def read(self, record: Record) -> Task | None:
        paragraphs = read_context(record)
        keys = make_unique_keys(title for title, _ in paragraphs)
        support = support_keys(record, paragraphs, keys)
        question = record.text("question")
        answer = record.text("answer")
        texts = ("".join(sentences).strip() for _, sentences in paragraphs)
        return self.question(
            record,
            question,
            answer,
            dict(zip(keys, texts, strict=True)),
            plan=single_step_plan(question, support, answer),
            support=support,
            metadata={**read_metadata(record), "hops": 2, "qa_rule": "hotpotqa"},
        )


def read_metadata(record: Record) -> Mapping[str, Scalar]:
    """Return the id (`_id` in the official files, `id` on the hub), and the type and level if the record has them."""
    if not (record.has("_id") or record.has("id")):
        raise record.mismatch("_id", "a string (id in the hub's layout)")
    metadata = {"id": record.text("_id" if record.has("_id") else "id")}
    return metadata | {key: record.text(key) for key in ("type", "level") if record.has(key)}


def read_context(record: Record) -> tuple[Paragraph, ...]:
    """Return the titles and sentences of all paragraphs, in the official layout or the hub's."""
    expected = "a list of [title, [sentence, ...]], or the hub's {title: [...], sentences: [[...]]}"
    context = record.data.get("context")
    pairs = _join_columns(context, "title", "sentences") if isinstance(context, dict) else context
    if not isinstance(pairs, list) or not all(_is_pair(pair, list) for pair in pairs):
        raise record.mismatch("context", expected)
    paragraphs: list[Paragraph] = []
    for title, sentences in pairs:
        if not all(isinstance(sentence, str) for sentence in sentences):
            raise record.mismatch("context", expected)
        paragraphs.append((title, tuple(sentences)))
    return tuple(paragraphs)


def read_facts(record: Record) -> tuple[Fact, ...]:
    """Return the title and the number, from 0, of each supporting sentence."""
    facts = record.data.get("supporting_facts")
    pairs = _join_columns(facts, "title", "sent_id") if isinstance(facts, dict) else facts
    if not isinstance(pairs, list) or not all(_is_pair(pair, int) for pair in pairs):
        raise record.mismatch(
            "supporting_facts", "a list of [title, sentence number], or the hub's {title: [], sent_id: []}"
        )
    return tuple((title, number) for title, number in pairs)


def support_keys(record: Record, paragraphs: Sequence[Paragraph], keys: Sequence[str]) -> tuple[str, ...]:
    """Return the keys of the paragraphs with supporting facts, in the order of the facts.

    Of several paragraphs with the same title the first is taken.

    Raises:
        DataError: a fact names no paragraph, or a sentence that its paragraph does not have.
    """
    key_by_title: dict[str, str] = {}
    lengths: dict[str, int] = {}
    for (title, sentences), key in zip(paragraphs, keys, strict=True):
        folded = title.casefold()
        key_by_title.setdefault(folded, key)
        lengths[folded] = max(len(sentences), lengths.get(folded, 0))
    facts = read_facts(record)
    for index, (title, number) in enumerate(facts):
        length = lengths.get(title.casefold())
        if length is not None and 0 <= number < length:
            continue
        if length is None:
            problem = f"names {shorten_repr(title)}, which is no title of the context"
        else:
            problem = f"is sentence {number} of {shorten_repr(title)}; expected 0 to {length - 1}"
        raise record.error(f"supporting_facts[{index}]", f"{problem} (skip_faulty: true leaves such records out)")
    return tuple(dict.fromkeys(key_by_title[title.casefold()] for title, _ in facts))


def _join_columns(columns: Mapping[str, Any], first: str, second: str) -> Any:
    """Return the pairs of two columns of the hub's layout; `None` if the columns do not match."""
    first_column = columns.get(first)
    second_column = columns.get(second)
    if not isinstance(first_column, list) or not isinstance(second_column, list):
        return None
    if len(first_column) != len(second_column):
        return None
    return [list(pair) for pair in zip(first_column, second_column, strict=True)]


def _is_pair(value: object, second: type) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and type(value[1]) is second
