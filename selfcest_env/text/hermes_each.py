"""Hermes-style calls that start a clone for each of many numbered documents by naming the first and the last one.

A call in `hermes` repeats the objective for every clone, so a root that hands 64 parts of a text to 64 clones writes
more than a thousand tokens, one after the other. Here it writes `{"objective": "...", "each": ["part 1", "part 64"]}`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from selfcest_env.protocol import Brief
from selfcest_env.text.hermes import MAX_SHARED_KEYS, HermesProtocol, read_request, write_document, write_request
from selfcest_env.types import CloneRequest, Part

T = TypeVar("T")

# Most clones of one item, so that a short text cannot fill the memory. No limit of an episode is as large.
MAX_EACH = 10_000
_NUMBERED = re.compile(r"(.*?)([1-9][0-9]{0,8})")
_SPAWN_HELP = (
    "You can delegate. To start a clone of yourself for each document from a first to a last one, all in parallel and "
    "each in a fresh context, write\n"
    '<tool_call>{"name": "spawn_clone", "arguments": {"objectives": [{"objective": "...", "each": ["...", '
    '"..."]}]}}</tool_call>\n'
    "In the place of each, shared_context names the documents of one clone. A clone sees its objective and its "
    "documents, nothing else. All replies come back in one message."
)


class HermesEachProtocol(HermesProtocol):
    """`hermes` with the argument `each`: keys of the first and the last document, one clone for each of them.

    An agent sees its documents before its task. If it can only delegate, it sees consecutive keys as such a pair.
    """

    spawn_help = _SPAWN_HELP

    def write_task(self, brief: Brief) -> list[Part]:
        """Return the documents and the task, so that a second question about a document finds it in a prefix cache."""
        parts: list[Part] = []
        for key, text in brief.documents.items():
            parts += [*write_document(key, text), Part("\n\n", True)]
        return [*parts, Part(brief.text)]

    def write_keys(self, keys: Sequence[str], brief: Brief) -> list[Part]:
        if brief.can_read or not brief.can_delegate:
            return super().write_keys(keys, brief)  # reading needs the key of each document
        parts: list[Part] = []
        for run in _split_runs(keys, _is_next):
            if parts:
                parts.append(Part("; ", True))
            if len(run) == 1:
                parts.append(Part(run[0]))
            else:
                parts += [Part('each of ["', True), Part(run[0]), Part('", "', True), Part(run[-1]), Part('"]', True)]
        return parts

    def write_objectives(self, requests: Sequence[CloneRequest]) -> list[Any]:
        written: list[Any] = []
        for run in _split_runs(requests, _follows):
            first = run[0]
            if len(run) == 1:
                written.append(write_request(first))
            else:
                item = {"objective": first.objective, "each": [*first.shared_context, *run[-1].shared_context]}
                written.append(item if first.max_tokens is None else {**item, "max_tokens": first.max_tokens})
        return written

    def read_objective(self, objective: object, shared: Mapping[str, None]) -> Sequence[CloneRequest]:
        if not isinstance(objective, dict) or "each" not in objective:
            return super().read_objective(objective, shared)
        if "shared_context" in objective:
            raise ValueError("an objective has both each and shared_context")
        request = read_request({key: value for key, value in objective.items() if key != "each"}, shared)
        keys = _expand(objective["each"])
        if len(keys) * (len(shared) + 1) > MAX_SHARED_KEYS:
            raise ValueError("too many keys shared with too many clones")
        return [replace(request, shared_context=tuple(dict.fromkeys((*shared, key)))) for key in keys]


def _split_runs(items: Sequence[T], follows: Callable[[T, T], bool]) -> list[list[T]]:
    """Cut a sequence where an item does not follow the one before it, or a run has `MAX_EACH` items."""
    runs: list[list[T]] = []
    for item in items:
        if runs and len(runs[-1]) < MAX_EACH and follows(runs[-1][-1], item):
            runs[-1].append(item)
        else:
            runs.append([item])
    return runs


def _follows(previous: CloneRequest, request: CloneRequest) -> bool:
    """Return whether two requests differ only in the number of their one document, which is the next number."""
    if len(previous.shared_context) != 1 or len(request.shared_context) != 1:
        return False
    if replace(previous, shared_context=request.shared_context) != request:
        return False
    return _is_next(*previous.shared_context, *request.shared_context)


def _is_next(previous: str, key: str) -> bool:
    """Return whether two keys differ only in their number, and the second one has the next number.

    Keys that JSON would escape stand alone, since a model copies them as they are written.
    """
    if set(key) & set('"\\'):
        return False
    first = _NUMBERED.fullmatch(previous)
    second = _NUMBERED.fullmatch(key)
    return first is not None and second is not None and first[1] == second[1] and int(second[2]) == int(first[2]) + 1


def _expand(value: object) -> list[str]:
    """Return all keys from the first to the last one of a list of one key or two."""
    if not isinstance(value, list) or len(value) not in (1, 2) or not all(isinstance(key, str) for key in value):
        raise TypeError("expected a list of one key or two")
    # A trained root that sees a single key writes it once. It can only mean the range of this key.
    first = _NUMBERED.fullmatch(value[0])
    last = _NUMBERED.fullmatch(value[-1])
    if first is None or last is None or first[1] != last[1]:
        raise ValueError("expected numbered keys that differ in their numbers only")
    first[1].encode()  # raises for half a surrogate pair
    numbers = range(int(first[2]), int(last[2]) + 1)
    if not 1 <= len(numbers) <= MAX_EACH:
        raise ValueError("the last number is below the first one, or too far from it")
    return [f"{first[1]}{number}" for number in numbers]
