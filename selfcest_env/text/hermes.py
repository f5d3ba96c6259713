"""The prompt format of chat models: Hermes-style tool calls in chat messages."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from selfcest_env.protocol import Brief, Note, Reply, split_sections
from selfcest_env.types import (
    Action,
    Answer,
    CloneRequest,
    Delegate,
    Fault,
    Malformed,
    Message,
    MessageRole,
    Part,
    Read,
    Role,
)

# Servers whose template writes `<think>` into the prompt return a text that begins within the thought.
_REST_OF_THOUGHT = r"\A[^<]*+(?:<(?!/?think>)[^<]*+)*+</think>"
THINKING = re.compile(_REST_OF_THOUGHT + r"(?=\s*+\S)|<think>.*?(?:</think>|\Z)", re.DOTALL)
# A text that ends with its thought: what it drafted is no call. A last "Answer:" still counts, for there is no other.
_ONLY_THOUGHT = re.compile(_REST_OF_THOUGHT + r"\s*+\Z")
# Possessive quantifiers: without them, long white space before no marker would take quadratic time.
_MARKERS = re.compile(
    r"<(?=\s*+(?:/\s*+)?(?:\||\uff5c|<?/?SYS|tool|think|im_|s>|bos|eos|pad|start|end|unk))|(?<=[|\uff5c])>"
    r"|\[(?=/?(?:INST|SYS|TOOL|AVAILABLE_TOOLS))",
    re.I,
)

# Most objectives times shared keys of one call. Each clone gets a copy of the shared keys, so a short text could
# otherwise fill the memory.
MAX_SHARED_KEYS = 100_000
# Most requests of one turn, since a short text can ask for many (`hermes_each`).
_MAX_REQUESTS = 100_000

# A line up to the marker of an answer, with emphasis that begins there: `**Answer:** 5`, `**Final Answer: 5**`.
_EMPHASIS = re.compile(r"\s*(?:(?:[-+*>]|#{1,6}|[0-9]{1,3}[.)])\s+)*(\*{1,3}|_{1,3})(?:[A-Za-z]+[ -])*")

_OWN_TAGS = re.compile(r"<(?=/?(?:tool_call|think)>)")
_ESCAPED = r"\\u003c"

_FAULT_TEXT = {
    Fault.NO_ANSWER: "no call and no 'Answer:' found",
    Fault.BAD_CALL: "the call is not valid JSON with the arguments of a known tool",
    Fault.CUT_BY_LENGTH: "the turn was cut by its token limit and does not count",
    Fault.OVER_GRANT: "the turn was longer than granted and was dropped",
    Fault.NOT_ALLOWED: "this tool is not available to you",
    Fault.TOO_MANY_CLONES: "too many objectives for one call or for the clones left",
    Fault.TOO_MANY_READS: "no such reads are left",
    Fault.UNKNOWN_KEY: "shared_context names a document that you do not have",
    Fault.OVER_BUDGET: "your budget cannot pay for this call",
    Fault.CONTEXT_FULL: "the replies would not fit your context",
    Fault.PROMPT_TOO_LONG: "the clone's prompt does not fit its grant",
}

_SPAWN_HELP = (
    "You can delegate. To start clones of yourself that work in parallel, each in a fresh context, write\n"
    '<tool_call>{"name": "spawn_clone", "arguments": {"objectives": ["..."], "shared_context": ["..."]}}</tool_call>\n'
    "An objective is a string, or an object with objective, shared_context (keys of documents for that clone) and "
    "max_tokens. A clone sees its objective and its documents, nothing else. All replies come back in one message."
)
_READ_HELP = (
    "You can read documents by key. Write\n"
    '<tool_call>{"name": "read_document", "arguments": {"keys": ["..."]}}</tool_call>\n'
    "and their text comes back in the next message."
)


class HermesProtocol:
    """Chat messages with Hermes-style tool calls.

    A turn with a call is a call, whatever its other text; several calls in one turn are joined in order. Otherwise the
    answer is the text after the last `Answer:` outside of thinking.

    Attributes:
        spawn_help: the sentences that tell an agent how to delegate.
    """

    spawn_help = _SPAWN_HELP

    def open(self, brief: Brief) -> tuple[Message, ...]:
        lines = [_ROOT_LINE if brief.role is Role.ROOT else _CLONE_LINE]
        if brief.can_delegate:
            lines.append(self.spawn_help)
        if brief.can_read:
            lines.append(_READ_HELP)
        if brief.total_tokens is not None:
            lines.append(f"You may use {brief.total_tokens} tokens in all, prompts and replies included.")
        if brief.role is Role.CLONE and brief.reply_tokens is not None:
            lines.append(f"Your answer may have at most {brief.reply_tokens} tokens.")
        user_parts = self.write_task(brief)
        hidden = [key for key in brief.keys if key not in brief.documents]
        if hidden:
            user_parts += [Part("\n\nKeys of the documents: ", True), *self.write_keys(hidden, brief)]
        return (
            Message(MessageRole.SYSTEM, (Part("\n".join(lines), True),)),
            Message(MessageRole.USER, tuple(user_parts)),
        )

    def write_task(self, brief: Brief) -> list[Part]:
        """Return the task and the documents of an agent's first message."""
        parts = [Part(brief.text)]
        for key, text in brief.documents.items():
            parts += write_document(key, text, before="\n\n")
        return parts

    def write_keys(self, keys: Sequence[str], brief: Brief) -> list[Part]:
        """Return the keys of the documents that an agent has and does not see."""
        parts = []
        for key in keys:
            parts += [Part("; ", True), Part(key)]
        return parts[1:]

    def replies(self, replies: Sequence[Reply]) -> Message:
        parts: list[Part] = []
        for i, reply in enumerate(replies):
            line_break = "\n" if i else ""
            parts.append(Part(f"{line_break}clone {i + 1}: ", True))
            if reply.text is not None:
                parts.append(Part(self.neutralise(reply.text)))
            else:
                parts.append(Part(f"failed due to {reply.failure}"))
        return Message(MessageRole.TOOL, tuple(parts))

    def documents(self, documents: Mapping[str, str]) -> Message:
        parts: list[Part] = []
        for key, text in documents.items():
            parts += [*write_document(key, text), Part("\n", True)]
        return Message(MessageRole.TOOL, tuple(parts))

    def fault(self, fault: Fault) -> Message:
        return Message(MessageRole.TOOL, (Part(f"Error {fault}: {_FAULT_TEXT[fault]}.", True),))

    def note(self, message: Message, note: Note) -> Message:
        return Message(message.role, (*message.parts, Part("\n", True), Part(note.text, note.trusted)))

    def neutralise(self, reply: str) -> str:
        return _MARKERS.sub(lambda match: {"<": "\u2039", ">": "\u203a", "[": "("}[match.group()], reply)

    def parse(self, text: str) -> Action:
        # A line break replaces thinking, so the texts on its two sides cannot form a marker.
        visible = THINKING.sub("\n", text)
        calls, outside = split_sections(visible, "<tool_call>", "</tool_call>")
        if _ONLY_THOUGHT.match(text):
            calls, visible = [], outside
        if calls is None:
            return Malformed(Fault.BAD_CALL)
        if calls:
            return _join_calls(calls, self.read_objective)
        before, marker, answer = visible.rpartition("Answer:")
        answer = _strip_emphasis(before, answer).strip()
        return Answer(answer) if marker and answer else Malformed(Fault.NO_ANSWER)

    def render(self, action: Action, thought: str = "") -> str:
        head = f"{thought}\n" if thought else ""
        match action:
            case Answer(text):
                return f"{head}Answer: {text}"
            case Read(keys):
                return head + _write_call("read_document", {"keys": list(keys)})
            case Delegate(requests):
                return head + _write_call("spawn_clone", {"objectives": self.write_objectives(requests)})
            case Malformed():
                return head

    def write_objectives(self, requests: Sequence[CloneRequest]) -> list[Any]:
        """Return the items of `objectives` in a call."""
        return [write_request(request) for request in requests]

    def read_objective(self, objective: object, shared: Mapping[str, None]) -> Sequence[CloneRequest]:
        """Return the requests of an item of `objectives`, the inverse of `write_objectives`.

        Args:
            objective: the item.
            shared: keys of the documents that all clones of the call see.

        Raises:
            ValueError, TypeError, KeyError: the item is malformed.
        """
        return [read_request(objective, shared)]


_ROOT_LINE = "Solve the task. Think as briefly as you can, and end with one line 'Answer: ' and the answer alone."
_CLONE_LINE = (
    "You are a clone working on one objective for your parent. Be brief. End with one line 'Answer: ' and the result "
    "alone; if you cannot reach it, say why after 'Answer:'."
)


def _strip_emphasis(before: str, answer: str) -> str:
    """Return the text after a marker without the end of the emphasis that begins in the line before it."""
    emphasis = _EMPHASIS.fullmatch(before.rpartition("\n")[2])
    if emphasis is None:
        return answer
    mark = emphasis[1]
    return answer.removeprefix(mark) if answer.startswith(mark) else answer.rstrip().removesuffix(mark)


def _write_call(name: str, arguments: Mapping[str, Any]) -> str:
    written = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    # Only strings can contain these tags. JSON reads the escape as the same character, and the call does not end.
    return f"<tool_call>{_OWN_TAGS.sub(_ESCAPED, written)}</tool_call>"


def write_document(key: str, text: str, before: str = "") -> list[Part]:
    return [Part(f"{before}Document ", True), Part(key), Part(":\n", True), Part(text)]


def write_request(request: CloneRequest) -> str | dict[str, Any]:
    if not request.shared_context and request.max_tokens is None:
        return request.objective
    written: dict[str, Any] = {
        "objective": request.objective,
        "shared_context": list(request.shared_context),
    }
    return written | ({} if request.max_tokens is None else {"max_tokens": request.max_tokens})


# Reads an item of `objectives`, see `HermesProtocol.read_objective`.
_ReadObjective = Callable[[object, Mapping[str, None]], Sequence[CloneRequest]]


def _join_calls(calls: Sequence[str], read_objective: _ReadObjective) -> Action:
    """Join all calls of one turn to one action; a mixture of tools, or a call that does not parse, is a bad call."""
    requests: list[CloneRequest] = []
    keys: list[str] = []
    for call in calls:
        try:
            payload = json.loads(call)
            name = payload["name"]
            arguments = payload["arguments"]
            if name == "spawn_clone":
                requests += _read_requests(arguments, read_objective)
                _check_number(requests)
            elif name == "read_document":
                if set(arguments) != {"keys"}:
                    raise ValueError("read_document has the one argument keys")
                keys += _strings(arguments["keys"])
            else:
                return Malformed(Fault.BAD_CALL)
        except (ValueError, KeyError, TypeError, RecursionError):
            return Malformed(Fault.BAD_CALL)
    if bool(requests) == bool(keys):
        return Malformed(Fault.BAD_CALL)
    return Delegate(tuple(requests)) if requests else Read(tuple(keys))


def _read_requests(arguments: Mapping[str, Any], read_objective: _ReadObjective) -> list[CloneRequest]:
    # The model must not choose sampling parameters or tools, so no other argument is accepted.
    if not isinstance(arguments, dict) or not set(arguments) <= {"objectives", "shared_context"}:
        raise ValueError("unknown argument")
    shared = dict.fromkeys(_strings(arguments.get("shared_context", [])))
    objectives = arguments["objectives"]
    if not isinstance(objectives, list):
        raise TypeError("objectives is no list")
    if len(objectives) * len(shared) > MAX_SHARED_KEYS:
        raise ValueError("too many keys shared with too many objectives")
    requests: list[CloneRequest] = []
    for objective in objectives:
        requests += read_objective(objective, shared)
        _check_number(requests)
    return requests


def _check_number(requests: Sequence[CloneRequest]) -> None:
    if len(requests) > _MAX_REQUESTS:
        raise ValueError("too many requests")


def read_request(objective: object, shared: Mapping[str, None]) -> CloneRequest:
    if isinstance(objective, str):
        return CloneRequest(_string(objective), tuple(shared))
    if not isinstance(objective, dict) or not set(objective) <= {
        "objective",
        "shared_context",
        "max_tokens",
    }:
        raise TypeError("an objective is a string or an object")
    text = objective["objective"]
    tokens = objective.get("max_tokens")
    if isinstance(tokens, bool) or not (tokens is None or isinstance(tokens, int)):
        raise TypeError("wrong type in an objective")
    if tokens is not None and tokens < 0:
        raise ValueError("max_tokens is negative")
    keys = [key for key in _strings(objective.get("shared_context", [])) if key not in shared]
    return CloneRequest(_string(text), (*shared, *keys), tokens)


def _strings(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError("expected a list of strings")
    return tuple(map(_string, value))


def _string(value: object) -> str:
    """Return a string of a call.

    Raises:
        TypeError: it is no string.
        ValueError: it cannot be encoded, because it has half a surrogate pair.
    """
    if not isinstance(value, str):
        raise TypeError("expected a string")
    value.encode()
    return value
