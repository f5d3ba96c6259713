"""Find the constant texts that a chat template writes around contents, and check that it can be extended turn by turn.

A template is a program over a whole conversation, but a context of this project only grows. The template is therefore
rendered for a probe conversation. It is suitable if it writes the same texts around a message whatever follows. A
context that is extended by these texts then equals the template's text of the whole conversation.

Thinking is the exception. Some templates remove it from earlier turns, which would change the context; here it stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from jinja2.exceptions import TemplateError

from selfcest_env.errors import ConfigError
from selfcest_env.types import Boundary, Message, MessageRole, Part

Render = Callable[[Sequence[dict[str, str]]], str]
"""Renders messages with `role` and `content`, and adds the generation prompt."""

_THINKING = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_GAP = "\n\n"  # between two contents of one message: protocol and task, or several replies


@dataclass(frozen=True, slots=True)
class ChatFrame:
    """Constant texts around contents, in the order in which they stand in a context.

    Example, ChatML without a tool role: `<|im_start|>system\\n` SYSTEM `<|im_end|>\\n<|im_start|>user\\n` TASK
    `<|im_end|>\\n<|im_start|>assistant\\n` ANSWER `<|im_end|>` `\\n<|im_start|>user\\n` REPLY
    `<|im_end|>\\n<|im_start|>assistant\\n`.

    Attributes:
        before_system, before_user, after_user: texts around the two opening messages. `after_user` includes the
            generation prompt.
        lead: text that the model writes before its visible text: the space that some templates put there, or the end
            of the thinking that the generation prompt opened.
        end: end-of-turn token.
        before_reply, after_reply: texts around the content of an environment block, without `end`.
        has_system_role: whether there is a system message. If not, protocol and task share the first user message.
        reply_role: role of replies, `TOOL` or `USER`.
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
        """Whether the generation prompt ends with `<think>`, so that the model does not generate it."""
        return _opens_thinking(self.after_user)

    def find_plain_roles(self, markers: Collection[str]) -> tuple[str, ...]:
        """Return the texts that mark a role without any of `markers`, such as `[/INST]` in plain text."""
        roles = []
        for piece in (self.before_system, self.before_user, self.after_user, self.before_reply, self.after_reply):
            has_marker = any(marker.strip() and marker in piece for marker in markers)
            if piece.strip() and not has_marker:
                roles.append(piece.strip())
        return tuple(dict.fromkeys(roles))

    def split_into_parts(self, messages: Sequence[Message], boundary: Boundary) -> tuple[Part, ...]:
        """Return the trusted and untrusted parts of an environment block, in order.

        Raises:
            ConfigError: the messages are neither an opening nor replies.
        """
        roles = [message.role for message in messages]
        if boundary is Boundary.OPENING:
            if roles != [MessageRole.SYSTEM, MessageRole.USER]:
                raise ConfigError(f"an opening has the roles {roles}; expected system and user, as of HermesProtocol")
            return self._add_frame(self.before_system, messages, self.before_user, self.after_user)
        if not roles or set(roles) != {MessageRole.TOOL}:
            raise ConfigError(f"a block within a chat has the roles {roles}; expected only tool messages")
        # A turn that was cut by length has no end-of-turn token of its own.
        before = (self.end if boundary is Boundary.AFTER_LENGTH else "") + self.before_reply
        return self._add_frame(before, messages, _GAP, self.after_reply)

    @staticmethod
    def _add_frame(before: str, messages: Sequence[Message], between: str, after: str) -> tuple[Part, ...]:
        parts = [Part(before, True)]
        for i, message in enumerate(messages):
            if i > 0:
                parts.append(Part(between, True))
            parts += message.parts
        return (*parts, Part(after, True))


class _LayoutError(Exception):
    """A layout of messages cannot be used with a template."""


def find_frame(render: Render, markers: Collection[str]) -> ChatFrame:
    """Return the frame of the first suitable layout. Layouts with a system role and with a tool role are tried first.

    Args:
        render: renders the template.
        markers: texts of the tokenizer's added tokens. One of them must end a turn.

    Raises:
        ConfigError: no layout is suitable. The message gives the reason for each.
    """
    reasons = []
    for has_system_role in (True, False):
        for reply_role in (MessageRole.TOOL, MessageRole.USER):
            try:
                return _probe(render, markers, has_system_role, reply_role)
            # A template is a foreign program, which may raise any of these for a role that it does not support.
            except (_LayoutError, TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
                system = "a system message" if has_system_role else "no system message"
                reasons.append(f"{system} and replies as {reply_role}: {error}")
    raise ConfigError(
        "this chat template cannot be extended turn by turn, so its model cannot be played token in, token out; give "
        "the tokenizer a template that writes every message the same way whatever follows. Tried " + "; ".join(reasons)
    )


def _probe(render: Render, markers: Collection[str], has_system_role: bool, reply_role: MessageRole) -> ChatFrame:
    """Return the frame of a layout. Raises `_LayoutError`, or an error of the template."""
    system, task, answer, reply, second_answer, second_reply = map(
        _make_probe, ("system", "task", "call", "reply", "answer", "error")
    )
    if has_system_role:
        opening = [_make_message("system", system), _make_message("user", task)]
    else:
        opening = [_make_message("user", system + _GAP + task)]

    def split(messages: Sequence[dict[str, str]], *contents: str) -> list[str]:
        return _split_at_contents(render([*opening, *messages]), (system, task, *contents))

    one_turn = [_make_message("assistant", answer), _make_message(reply_role, reply)]
    thought = f"<think>\nProbe of thinking\n</think>\n\n{second_answer}"
    two_turns = [*one_turn, _make_message("assistant", thought), _make_message(reply_role, second_reply)]
    # The constant texts of conversations with no turn, one turn and two turns.
    *opening_texts, prompt = split([])
    *opening_of_one, prompt_of_one, before_reply, after_reply = split(one_turn, answer, reply)
    *opening_of_two, prompt_of_two, before_first, after_first, before_second, after_second = split(
        two_turns, answer, reply, second_answer, second_reply
    )
    if not opening_texts == opening_of_one == opening_of_two:
        raise _LayoutError("the opening messages change when turns follow")
    prompts = {_remove_thinking(text) for text in (prompt, prompt_of_one, prompt_of_two)}
    if len(prompts) > 1 or _remove_thinking(after_reply) != _remove_thinking(after_first):
        raise _LayoutError("an answer does not follow the generation prompt as it was given")
    if not before_reply == before_first == before_second or after_reply != after_second:
        raise _LayoutError("replies are not written the same way at every turn")
    if reply_role is MessageRole.TOOL:
        _check_tool_role(split, before_reply, answer, reply)
    end = max((marker for marker in markers if before_reply.startswith(marker)), key=len, default="")
    if not end:
        raise _LayoutError(f"after an answer comes {before_reply!r}, which does not begin with an end-of-turn token")
    before_system, before_user = opening_texts
    return ChatFrame(
        before_system=before_system,
        before_user=before_user,
        after_user=prompt,
        lead=_find_lead(prompt, prompt_of_one),
        end=end,
        before_reply=before_reply.removeprefix(end),
        after_reply=after_reply,
        has_system_role=has_system_role,
        reply_role=reply_role,
    )


def _check_tool_role(split: Callable[..., list[str]], before_reply: str, answer: str, reply: str) -> None:
    """Raise `_LayoutError` if the template copies any role name. Its model was then not trained with a tool role."""
    messages = [_make_message("assistant", answer), _make_message("nobody", reply)]
    try:
        before_nobody = split(messages, answer, reply)[3]
    except (_LayoutError, TemplateError):
        return  # the template refuses or drops an unknown role
    if before_nobody == before_reply.replace("tool", "nobody"):
        raise _LayoutError("the template has no tool role, since it writes the name of any role")


def _make_probe(name: str) -> str:
    """Return a content with quotes, line breaks and brackets, which reveals a template that escapes or reformats it."""
    return f'Probe of {name}: "é"\n<{name}> & so on.'


def _make_message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _split_at_contents(text: str, contents: Sequence[str]) -> list[str]:
    """Return the texts before, between and after the contents, each of which must occur exactly once, in order."""
    pieces = []
    for content in contents:
        before, separator, text = text.partition(content)
        if not separator or content in text:
            raise _LayoutError(f"it does not write {content.split(':')[0]!r} once, in order and unchanged")
        pieces.append(before)
    return [*pieces, text]


def _remove_thinking(text: str) -> str:
    return _THINKING.sub("", text).rstrip()


def _opens_thinking(prompt: str) -> bool:
    return prompt.rstrip().endswith("<think>")


def _find_lead(prompt: str, before_answer: str) -> str:
    """Return the text that the template writes between the generation prompt and an answer."""
    if _opens_thinking(prompt):
        return "\n</think>\n\n"
    # Only white space: the rest of the difference would be a thinking block, which the model writes itself.
    lead = before_answer.removeprefix(prompt)
    return lead if lead.isspace() and before_answer.startswith(prompt) else ""
