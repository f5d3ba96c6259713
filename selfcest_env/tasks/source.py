"""The interfaces of a task source and of its expert, and functions that several sources share."""

from __future__ import annotations

import enum
import hashlib
import json
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from selfcest_env.plugin import implements
from selfcest_env.protocol import LABELS, Reply
from selfcest_env.types import Action, Answer, CloneRequest, Delegate, Read, Role, Scalar, Task
from selfcest_env.views import Exchange, Observation

TERSE = "terse"  # for the embedded model
PLAIN = "plain"  # English, for language models
PHRASINGS = (TERSE, PLAIN)
MAX_TRIES = 20_000
# Key of `Task.metadata` for an identity that cannot be computed from the task later.
IDENTITY = "identity"


class Style(enum.StrEnum):
    """The way in which an expert works. An agent falls back to another style if it cannot use this one."""

    DELEGATE = "delegate"  # call clones
    SOLVE = "solve"  # answer without clones, with a chain of thought
    READ = "read"  # read documents by key, then answer


@dataclass(frozen=True, slots=True)
class Proposal:
    """An expert's next action, and the chain of thought that precedes it."""

    action: Action
    thought: str = ""


class TaskSource(Protocol):
    """A source of tasks."""

    def draw(self, rng: np.random.Generator) -> Task:
        """Draw a task. All randomness comes from `rng`."""
        ...


@runtime_checkable
class Identifies(Protocol):
    """A source that can identify the problem of a task."""

    def identity(self, task: Task) -> str | None:
        """Return the identity of the problem.

        Two tasks with the same identity ask the same question, possibly with different documents. `None` means that the
        task comes from an inner source without identities.
        """
        ...


def identity_of(source: TaskSource, task: Task) -> str | None:
    """Return the identity of a task that this source drew, or `None` if it is unknown."""
    return source.identity(task) if implements(source, Identifies) else None


@runtime_checkable
class ExpertSource(Protocol):
    """A source whose tasks a script can solve, with and without clones."""

    def draw(self, rng: np.random.Generator) -> Task: ...

    def understands(self, observation: Observation) -> bool:
        """Return whether the agent's task or objective is of this family, in any phrasing and with any options."""
        ...

    def propose(self, observation: Observation, rng: np.random.Generator, style: Style) -> Proposal:
        """Return the next action of this agent, a root or a clone.

        The action depends only on the observation, `rng` and the style. It never raises.
        """
        ...


# An expert gives up if it does not understand its objective or lacks a document. It never guesses.
GIVE_UP = Proposal(Answer("?"))


# Instances


def content_hash(task: Task) -> str:
    """Return 16 hexadecimal digits that are equal for equal problems on every machine, in any order of documents."""
    content = [task.source, task.prompt, sorted(task.context.items()), task.answer]
    return hashlib.blake2b(json.dumps(content, ensure_ascii=True).encode(), digest_size=8).hexdigest()


def make_task(
    source: str,
    prompt: str,
    answer: str,
    metadata: Mapping[str, Scalar],
    context: Mapping[str, str] | None = None,
) -> Task:
    """Return a task whose id is the hash of its content."""
    task = Task("", prompt, answer, source, context or {}, metadata={"family": source, **metadata})
    return Task(content_hash(task), prompt, answer, source, task.context, metadata=task.metadata)


def draw_int(rng: np.random.Generator, low: int, high: int) -> int:
    """Draw an integer uniformly from [low, high], both included."""
    return int(rng.integers(low, high + 1))


# The view of an expert


def documents_read(observation: Observation) -> dict[str, str]:
    """Return the documents that the agent has read by key, without those that it was given."""
    documents: dict[str, str] = {}
    for exchange in observation.exchanges:
        documents.update(exchange.documents or {})
    return documents


def documents_in_sight(observation: Observation) -> dict[str, str]:
    """Return all documents whose text the agent can see: those that it was given, and those that it has read."""
    return dict(observation.brief.documents) | documents_read(observation)


class LastCall(NamedTuple):
    """The last call of an agent that was granted, with the reply to each of its requests."""

    requests: tuple[CloneRequest, ...]
    replies: tuple[Reply, ...]


def find_last_call(observation: Observation) -> LastCall | None:
    """Return the last granted call, or `None` if there was no such call."""
    for exchange in reversed(observation.exchanges):
        if isinstance(exchange.action, Delegate) and exchange.replies:
            return LastCall(exchange.action.requests, exchange.replies)
    return None


def _was_refused(exchanges: Sequence[Exchange], kind: type) -> bool:
    return any(isinstance(exchange.action, kind) and exchange.fault is not None for exchange in exchanges)


def may_delegate(observation: Observation, num_clones: int = 1) -> bool:
    """Return whether a call for so many clones can be granted: calls are allowed, and none was refused before."""
    clones_left = observation.budget.remaining.clones
    if not observation.can_delegate or _was_refused(observation.exchanges, Delegate):
        return False
    return clones_left is None or num_clones <= clones_left


def may_read(observation: Observation) -> bool:
    return observation.can_read and not observation.is_last and not _was_refused(observation.exchanges, Read)


def is_root(observation: Observation) -> bool:
    return observation.role is Role.ROOT


# Sums modulo 10, written as a thought


_DIGIT = re.compile(r"[0-9]")


def read_digit(reply: Reply) -> int:
    """Return the digit of a reply. A failed clone and any other reply count as 0."""
    text = (reply.text or "").strip()
    return int(text) if _DIGIT.fullmatch(text) else 0


def running_sum(items: Sequence[tuple[str, int]], phrasing: str) -> tuple[str, int]:
    """Add up labelled digits modulo 10, with every digit and running total in the thought.

    Args:
        items: labels and digits. An empty label is not written.
        phrasing: "terse" for a thought such as `a22b80c44`, "plain" for `a: 2 (2); b: 8 (0); c: 4 (4)`.

    Returns:
        The thought and the total.
    """
    total = 0
    pieces: list[str] = []
    for label, value in items:
        total = (total + value) % 10
        if phrasing == TERSE:
            pieces.append(f"{label}{value}{total}")
        else:
            pieces.append(f"{label}: {value} ({total})" if label else f"{value} ({total})")
    return ("" if phrasing == TERSE else "; ").join(pieces), total


def add_up_replies(values: Sequence[int], phrasing: str) -> Proposal:
    """Return the proposal that adds up the clones' digits, in the order of their objectives."""
    items = [(format_label(i, phrasing), value) for i, value in enumerate(values)]
    thought, total = running_sum(items, phrasing)
    return Proposal(Answer(str(total)), thought)


def format_label(index: int, phrasing: str) -> str:
    return LABELS[index % len(LABELS)] if phrasing == TERSE else f"clone {index + 1}"


KEYS = string.ascii_uppercase + string.ascii_lowercase
