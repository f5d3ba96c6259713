"""Hermes-style calls that start a clone for each of many numbered documents by naming the first and the last one.

A call in `hermes` repeats the objective for every clone, so a root that hands 64 parts of a text to 64 clones writes
more than a thousand tokens, one after the other. Here it writes `{"objective": "...", "each": ["part 1", "part 64"]}`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from selfcest_env.protocol import Brief
from selfcest_env.text.hermes import MAX_SHARED_KEYS, HermesProtocol, read_request, write_document, write_request
from selfcest_env.types import CloneRequest, Part

# Most clones of one item, so that a short text cannot fill the memory. No limit of an episode is as large.
MAX_EACH = 10_000
_NUMBERED = re.compile(r"(.*?)([1-9][0-9]{0,8})")
_SPAWN_HELP = (
    "You can delegate. To start a clone of yourself for each document from a first to a last one, all in parallel and "
    "each in a fresh context, write\n"
    '<tool_call>{"name": "spawn_clone", "arguments": {"objectives": [{"objective": "...", "each": ["part 1", '
    '"part 9"]}]}}</tool_call>\n'
    "In the place of each, shared_context names the documents of one clone. A clone sees its objective and its "
    "documents, nothing else. All replies come back in one message."
)


class HermesEachProtocol(HermesProtocol):
    """`hermes` with the argument `each`: keys of the first and the last document, one clone for each of them.

    An agent sees its documents before its task.
    """

    spawn_help = _SPAWN_HELP

    def write_task(self, brief: Brief) -> list[Part]:
        """Return the documents and the task, so that a second question about a document finds it in a prefix cache."""
        parts: list[Part] = []
        for key, text in brief.documents.items():
            parts += [*write_document(key, text), Part("\n\n", True)]
        return [*parts, Part(brief.text)]

    def write_objectives(self, requests: Sequence[CloneRequest]) -> list[Any]:
        written: list[Any] = []
        start = 0
        while start < len(requests):
            stop = start + 1
            while stop < len(requests) and stop - start < MAX_EACH and _follows(requests[stop - 1], requests[stop]):
                stop += 1
            first = requests[start]
            if stop - start == 1:
                written.append(write_request(first))
            else:
                item = {
                    "objective": first.objective,
                    "each": [*first.shared_context, *requests[stop - 1].shared_context],
                }
                written.append(item if first.max_tokens is None else {**item, "max_tokens": first.max_tokens})
            start = stop
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


def _follows(previous: CloneRequest, request: CloneRequest) -> bool:
    """Return whether two requests differ only in the number of their one document, which is the next number."""
    if len(previous.shared_context) != 1 or len(request.shared_context) != 1:
        return False
    if replace(previous, shared_context=request.shared_context) != request:
        return False
    first = _NUMBERED.fullmatch(previous.shared_context[0])
    second = _NUMBERED.fullmatch(request.shared_context[0])
    return first is not None and second is not None and first[1] == second[1] and int(second[2]) == int(first[2]) + 1


def _expand(value: object) -> list[str]:
    """Return all keys from the first to the last one of a list of two."""
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(key, str) for key in value):
        raise TypeError("expected a list of two keys")
    first = _NUMBERED.fullmatch(value[0])
    last = _NUMBERED.fullmatch(value[1])
    if first is None or last is None or first[1] != last[1]:
        raise ValueError("expected two numbered keys that differ in their numbers only")
    first[1].encode()  # raises for half a surrogate pair
    numbers = range(int(first[2]), int(last[2]) + 1)
    if not 1 <= len(numbers) <= MAX_EACH:
        raise ValueError("the last number is below the first one, or too far from it")
    return [f"{first[1]}{number}" for number in numbers]
