"""What a task source is, and what its expert does. The rest of this module is what the sources share."""

from __future__ import annotations

import enum
import hashlib
import json
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from selfcest_env.errors import ConfigError, did_you_mean
from selfcest_env.protocol import LABELS, Reply
from selfcest_env.types import Action, Answer, Delegate, Read, Role, Scalar, Task
from selfcest_env.views import Exchange, Observation

TERSE, PLAIN = "terse", "plain"
PHRASINGS = (TERSE, PLAIN)
MAX_TRIES = 20_000
IDENTITY = "identity"  # the key of `Task.metadata` for what nobody could tell from the task afterwards


class Style(enum.StrEnum):
    """How an expert works. An agent that has no means for a style falls back to one it has."""

    DELEGATE = "delegate"
    SOLVE = "solve"  # by oneself, with a chain of thought
    READ = "read"  # read documents by key, then answer


@dataclass(frozen=True, slots=True)
class Proposal:
    """What an expert would do now, and the chain of thought it would write before."""

    action: Action
    thought: str = ""


class TaskSource(Protocol):
    """Where tasks come from. All its randomness is `rng`."""

    def draw(self, rng: np.random.Generator) -> Task: ...


@runtime_checkable
class Identifies(Protocol):
    """A source that knows the problem behind a task."""

    def identity(self, task: Task) -> str | None:
        """What makes the problem: two tasks with one identity ask the same question, whatever surrounds it.

        `None`: the task is one of a source inside this one that does not know.
        """
        ...


def identity_of(source: TaskSource, task: Task) -> str | None:
    """The identity of a task that this source drew; `None` where it is not known."""
    return source.identity(task) if isinstance(source, Identifies) else None


@runtime_checkable
class ExpertSource(Protocol):
    """A source whose tasks a script can solve, delegating or not."""

    def draw(self, rng: np.random.Generator) -> Task: ...

    def understands(self, observation: Observation) -> bool:
        """Whether the agent's task or objective is of this family, in any phrasing, whatever the knobs."""
        ...

    def propose(self, observation: Observation, rng: np.random.Generator, style: Style) -> Proposal:
        """What this agent, root or clone, should do next; decided only from what it sees. Never raises."""
        ...


# An expert that does not understand its objective, or cannot see what it needs, says so; it never guesses.
GIVE_UP = Proposal(Answer("?"))


# Instances


def content_hash(task: Task) -> str:
    """The same 16 hexadecimal digits for equal problems, on every machine; the order of documents does not matter."""
    content = [task.source, task.prompt, sorted(task.context.items()), task.answer]
    return hashlib.blake2b(json.dumps(content, ensure_ascii=True).encode(), digest_size=8).hexdigest()


def make_task(
    source: str,
    prompt: str,
    answer: str,
    metadata: Mapping[str, Scalar],
    context: Mapping[str, str] | None = None,
) -> Task:
    """A task whose id is its content."""
    task = Task("", prompt, answer, source, context or {}, metadata={"family": source, **metadata})
    return Task(content_hash(task), prompt, answer, source, task.context, metadata=task.metadata)


def draw_int(rng: np.random.Generator, low: int, high: int) -> int:
    """Uniform in [low, high], both included."""
    return int(rng.integers(low, high + 1))


# Knobs


def check_int(source: str, name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"{source}.{name} is {value!r}; expected a whole number from {low} to {high}")


def check_span(source: str, names: tuple[str, str], values: tuple[int, int], low: int, high: int) -> None:
    """Both ends in [low, high], in order."""
    for name, value in zip(names, values, strict=True):
        check_int(source, name, value, low, high)
    if values[0] > values[1]:
        raise ConfigError(
            f"{source}.{names[0]} is {values[0]}, above {source}.{names[1]} = {values[1]}; expected {low} <= "
            f"{names[0]} <= {names[1]} <= {high}"
        )


def check_choice(source: str, name: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ConfigError(
            f"{source}.{name} is {value!r}; expected one of {', '.join(choices)}.{did_you_mean(str(value), choices)}"
        )


# What an expert sees


def last_replies(observation: Observation) -> tuple[Delegate, tuple[Reply, ...]] | None:
    """The last call that was granted, and what came back for each of its objectives."""
    for exchange in reversed(observation.exchanges):
        if isinstance(exchange.action, Delegate) and exchange.replies:
            return exchange.action, exchange.replies
    return None


def _was_refused(exchanges: Sequence[Exchange], kind: type) -> bool:
    return any(isinstance(exchange.action, kind) and exchange.fault is not None for exchange in exchanges)


def may_delegate(observation: Observation, num_clones: int = 1) -> bool:
    """Whether a call for so many clones makes sense: it is allowed, affordable in clones, and none was refused."""
    left = observation.budget.remaining.clones
    if not observation.can_delegate or _was_refused(observation.exchanges, Delegate):
        return False
    return left is None or num_clones <= left


def may_read(observation: Observation) -> bool:
    return observation.can_read and not observation.is_last and not _was_refused(observation.exchanges, Read)


def is_root(observation: Observation) -> bool:
    return observation.role is Role.ROOT


# Sums modulo 10, written as a thought


_DIGIT = re.compile(r"[0-9]")


def read_digit(reply: Reply) -> int:
    """The digit of a reply; a clone that failed or says anything else counts as 0."""
    text = (reply.text or "").strip()
    return int(text) if _DIGIT.fullmatch(text) else 0


def running_sum(items: Sequence[tuple[str, int]], phrasing: str) -> tuple[str, int]:
    """The thought and the total modulo 10 of labelled digits: `a22b80c44`, or `a: 2 (2); b: 8 (0); c: 4 (4)`.

    An empty label writes nothing, or only the digit.
    """
    total, pieces = 0, []
    for label, value in items:
        total = (total + value) % 10
        if phrasing == TERSE:
            pieces.append(f"{label}{value}{total}")
        else:
            pieces.append(f"{label}: {value} ({total})" if label else f"{value} ({total})")
    return ("" if phrasing == TERSE else "; ").join(pieces), total


def add_up_replies(values: Sequence[int], phrasing: str) -> Proposal:
    """Add up what the clones said, by label in the order of the objectives."""
    items = [(format_label(i, phrasing), value) for i, value in enumerate(values)]
    thought, total = running_sum(items, phrasing)
    return Proposal(Answer(str(total)), thought)


def format_label(index: int, phrasing: str) -> str:
    return LABELS[index % len(LABELS)] if phrasing == TERSE else f"clone {index + 1}"


KEYS = string.ascii_uppercase + string.ascii_lowercase
