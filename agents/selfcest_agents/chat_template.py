"""What a chat template writes around contents, found by probing it once, and whether it can be played append-only.

A template is a program over a whole conversation; a context here only ever grows. So the template is asked what it
writes around the texts of a probe conversation, and it is fit if it writes the same whatever follows: then appending
what stands between two turns gives what the template would give for the whole conversation. Thinking is the
exception: templates that drop it from earlier turns would rewrite the past, and here it stays where it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from jinja2.exceptions import TemplateError

from selfcest_env.errors import ConfigError
from selfcest_env.types import Boundary, Message, MessageRole, Part

Render = Callable[[Sequence[dict[str, str]]], str]
"""Messages with `role` and `content` to the template's text, the generation prompt included."""

_THINKING = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_GAP = "\n\n"


@dataclass(frozen=True, slots=True)
class ChatFrame:
    """The texts around contents, in the order in which a context meets them.

    Example, ChatML without a tool role: `<|im_start|>system\\n` SYSTEM `<|im_end|>\\n<|im_start|>user\\n` TASK
    `<|im_end|>\\n<|im_start|>assistant\\n` ANSWER `<|im_end|>` `\\n<|im_start|>user\\n` REPLY
    `<|im_end|>\\n<|im_start|>assistant\\n`.

    Attributes:
        before_system, before_user, after_user: around the two opening messages; the last holds the generation prompt.
        lead: what the model itself writes before its visible text: the space that some templates put there, or the
            end of the thinking that the generation prompt opened.
        end: the end-of-turn token.
        before_reply, after_reply: around the content of an environment block, `end` not included.
        has_system_role: false if protocol and task share the first user message.
        reply_role: the role that brings replies, `TOOL` or `USER`.
    """

    before_system: str
    before_user: str
    after_user: str
    lead: str
    end: str
    before_reply: str
    after_reply: str
    has_system_role: bool
    reply_role: MessageRole

    @property
    def opens_thinking(self) -> bool:
        """The generation prompt starts the model's thinking, so its own text has no `<think>`."""
        return _opens_thinking(self.after_user)

    def plain_roles(self, markers: Collection[str]) -> tuple[str, ...]:
        """What changes the role with none of `markers` in it, as `[/INST]` in plain text. White space is no role."""
        pieces = (self.before_system, self.before_user, self.after_user, self.before_reply, self.after_reply)
        plain = (p.strip() for p in pieces if not any(m.strip() and m in p for m in markers))
        return tuple(dict.fromkeys(filter(None, plain)))

    def parts(self, messages: Sequence[Message], boundary: Boundary) -> tuple[Part, ...]:
        """An environment block in pieces. Raises `ConfigError` for messages that are neither opening nor replies."""
        roles = [message.role for message in messages]
        if boundary is Boundary.OPENING:
            if roles != [MessageRole.SYSTEM, MessageRole.USER]:
                raise ConfigError(f"an opening has the roles {roles}; a chat needs system and user, as HermesProtocol")
            return self._framed(self.before_system, messages, self.before_user, self.after_user)
        if not roles or set(roles) != {MessageRole.TOOL}:
            raise ConfigError(f"a block within a chat has the roles {roles}; expected tool messages alone")
        before = (self.end if boundary is Boundary.AFTER_LENGTH else "") + self.before_reply
        return self._framed(before, messages, _GAP, self.after_reply)

    @staticmethod
    def _framed(before: str, messages: Sequence[Message], between: str, after: str) -> tuple[Part, ...]:
        parts = [Part(before, True)]
        for i, message in enumerate(messages):
            parts += [Part(between, True)] * (i > 0)
            parts += message.parts
        return (*parts, Part(after, True))


class _UnfitError(Exception):
    """Why a layout of messages cannot be used with a template."""


def find_frame(render: Render, markers: Collection[str]) -> ChatFrame:
    """The frame of the first layout that the template can extend: system role if it has one, tool role if it has one.

    Args:
        render: the template.
        markers: texts of the tokenizer's added tokens, one of which must end a turn.

    Raises:
        ConfigError: no layout can be extended; the message says why for each.
    """
    refusals = []
    for has_system_role in (True, False):
        for reply_role in (MessageRole.TOOL, MessageRole.USER):
            try:
                return _probe(render, markers, has_system_role, reply_role)
            # A template is somebody else's program: what it raises at a role it does not know is up to it.
            except (_UnfitError, TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
                system = "a system message" if has_system_role else "no system message"
                refusals.append(f"{system} and replies as {reply_role}: {error}")
    raise ConfigError(
        "this chat template cannot be extended turn by turn, so its model cannot be played token in, token out; give "
        "the tokenizer a template that writes every message the same way whatever follows. Tried " + "; ".join(refusals)
    )


def _probe(render: Render, markers: Collection[str], has_system_role: bool, reply_role: MessageRole) -> ChatFrame:
    # Quotes, line breaks and brackets, so that a template that escapes or reformats contents is found out.
    system, task, answer, reply, answer2, reply2 = (
        f'Probe of {name}: "é"\n<{name}> & so on.' for name in ("system", "task", "call", "reply", "answer", "error")
    )

    def say(role: str, content: str) -> dict[str, str]:
        return {"role": role, "content": content}

    def split(messages: Sequence[dict[str, str]], *contents: str) -> list[str]:
        return _split(render([*opening, *messages]), (system, task, *contents))

    opening = [say("system", system), say("user", task)] if has_system_role else [say("user", system + _GAP + task)]
    one_turn = [say("assistant", answer), say(reply_role, reply)]
    thought = f"<think>\nProbe of thinking\n</think>\n\n{answer2}"
    start = split([])
    once = split(one_turn, answer, reply)
    twice = split([*one_turn, say("assistant", thought), say(reply_role, reply2)], answer, reply, answer2, reply2)
    if not start[:2] == once[:2] == twice[:2]:
        raise _UnfitError("the opening messages change when turns follow")
    if not _bare(start[2]) == _bare(once[2]) == _bare(twice[2]) or _bare(once[4]) != _bare(twice[4]):
        raise _UnfitError("an answer does not follow the generation prompt as it was given")
    if not once[3] == twice[3] == twice[5] or once[4] != twice[6]:
        raise _UnfitError("replies are not written the same way at every turn")
    if reply_role is MessageRole.TOOL:
        _check_tool_role(split, once[3], answer, reply)
    end = max((marker for marker in markers if once[3].startswith(marker)), key=len, default="")
    if not end:
        raise _UnfitError(f"after an answer comes {once[3]!r}, which does not begin with an end-of-turn token")
    return ChatFrame(
        before_system=start[0],
        before_user=start[1],
        after_user=start[2],
        lead=_lead(start[2], once[2]),
        end=end,
        before_reply=once[3].removeprefix(end),
        after_reply=once[4],
        has_system_role=has_system_role,
        reply_role=reply_role,
    )


def _check_tool_role(split: Callable[..., list[str]], before_reply: str, answer: str, reply: str) -> None:
    """A template that writes out whatever role it is given has no tool role: its model has never seen one."""
    messages = [{"role": "assistant", "content": answer}, {"role": "nobody", "content": reply}]
    try:
        before_nobody = split(messages, answer, reply)[3]
    except (_UnfitError, TemplateError):
        return
    if before_nobody == before_reply.replace("tool", "nobody"):
        raise _UnfitError("the template has no tool role of its own, it writes any role's name")


def _split(text: str, contents: Sequence[str]) -> list[str]:
    pieces = []
    for content in contents:
        before, found, text = text.partition(content)
        if not found or content in text:
            raise _UnfitError(f"it does not write {content.split(':')[0]!r} once, in order and unchanged")
        pieces.append(before)
    return [*pieces, text]


def _bare(text: str) -> str:
    return _THINKING.sub("", text).rstrip()


def _opens_thinking(prompt: str) -> bool:
    return prompt.rstrip().endswith("<think>")


def _lead(prompt: str, written: str) -> str:
    if _opens_thinking(prompt):
        return "\n</think>\n\n"
    rest = written.removeprefix(prompt)
    return rest if rest.isspace() and written.startswith(prompt) else ""
