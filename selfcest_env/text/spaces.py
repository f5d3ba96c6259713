"""Gymnasium spaces for texts, and an upper bound on the length of a transcript."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from selfcest_env.protocol import (
    LONGEST_POST_KEY,
    Brief,
    ControlsTurns,
    KeepsBoard,
    PromptFormat,
    Reply,
    find_capability,
)
from selfcest_env.text.markers import Markers
from selfcest_env.types import ROOT, Fault, Limits, Message, MessageRole, Role, Status, Task

PRINTABLE = "".join(map(chr, range(32, 127)))
_MARKERS = Markers()
LONGEST_SAMPLE = 64
DOCUMENT_OVERHEAD = 64  # characters that a prompt format may write around one document


class FreeText(spaces.Text):
    """Any Unicode string of at most `max_length` characters, the empty one included.

    Membership is one comparison of lengths. Samples are printable ASCII of at most `LONGEST_SAMPLE` characters, so that
    the cost of a sample does not grow with `max_length`.
    """

    def __init__(self, max_length: int, *, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(max_length, min_length=0, charset=PRINTABLE, seed=seed)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(
        self,
        mask: tuple[int | None, NDArray[np.int8] | None] | None = None,
        probability: tuple[int | None, NDArray[np.float64] | None] | None = None,
    ) -> str:
        if mask is not None or probability is not None:
            return super().sample(mask, probability)
        length = self.np_random.integers(min(self.max_length, LONGEST_SAMPLE) + 1)
        return "".join(PRINTABLE[i] for i in self.np_random.integers(len(PRINTABLE), size=length))

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FreeText) and self.max_length == other.max_length

    def __repr__(self) -> str:
        return f"FreeText({self.max_length})"


def format_transcript(messages: tuple[Message, ...]) -> str:
    """Return a transcript as plain text, each message after a line `<|role|>`."""
    # Cleaned messages contain no marker, so no task and no agent can write such a line.
    return "\n".join(f"<|{message.role}|>\n{_MARKERS.clean(message).content}" for message in messages)


def count_task_chars(task: Task) -> int:
    """Return an upper bound on the characters that a task adds to one opening."""
    # A key may occur twice: in the list of keys, and above the document.
    documents = sum(2 * len(key) + len(text) + DOCUMENT_OVERHEAD for key, text in task.context.items())
    return len(task.prompt) + documents


def bound_transcript(limits: Limits, protocol: PromptFormat, max_chars: int, max_task_chars: int) -> int:
    """Return an upper bound on the characters of a transcript.

    A transcript is an opening, then turns of at most `max_chars`, each followed by one block. The reply of each clone
    occurs once. Each read adds at most all documents of the task.
    """
    assert limits.max_clones is not None
    tag = max(len(format_transcript((Message(role, ()),))) + 1 for role in MessageRole)
    briefs = []
    for role in Role:
        brief = Brief(
            role,
            "",
            can_delegate=True,
            can_read=True,
            total_tokens=limits.total_tokens or 0,
            reply_tokens=limits.reply_tokens,
            clones=limits.max_clones,
        )
        briefs.append(brief)
    system = max(_length(protocol.open(brief), tag) for brief in briefs)
    # A clone's opening contains its objective and its grant, which a turn of its parent wrote.
    opening = system + max_task_chars + 2 * max_chars + _board_bound(limits, protocol, max_chars)
    # Without max_turns, total_tokens bounds the turns: each costs a token, and `Limits` refuses both to be unlimited.
    turns = limits.max_turns if limits.max_turns is not None else (limits.total_tokens or 0) + 1
    per_call = min(limits.max_clones, limits.max_clones_per_call or limits.max_clones)
    failure = max((Fault.PROMPT_TOO_LONG, *Status), key=len)
    blocks = [protocol.fault(fault) for fault in Fault] + [protocol.replies([Reply(failure=failure)] * per_call)]
    turn_control = find_capability(protocol, ControlsTurns)
    if turn_control is not None:
        blocks_with_reminders = []
        for block in blocks:
            blocks_with_reminders += [turn_control.remind(block, turns_left) for turns_left in range(turns)]
        blocks = blocks_with_reminders
    longest_block = max(_length((block,), tag) for block in blocks)
    reads = turns if limits.max_reads is None else min(limits.max_reads, turns)  # read calls, one per turn at most
    return opening + turns * (max_chars + tag + longest_block) + limits.max_clones * max_chars + reads * max_task_chars


def _board_bound(limits: Limits, protocol: PromptFormat, max_chars: int) -> int:
    """Return an upper bound on the characters that posts add to a clone's opening."""
    keeper = find_capability(protocol, KeepsBoard)
    if keeper is None:
        return 0
    assert limits.max_clones is not None
    replies = limits.max_clones * max_chars
    depth = limits.max_clones if limits.max_depth is None else min(limits.max_depth, limits.max_clones)
    # A key contains the id of the author, in which each level below the root adds a dot and a number.
    key = LONGEST_POST_KEY + len(str(ROOT)) + depth * len(f".{limits.max_clones}")
    return replies + min(keeper.posts, replies) * (2 * key + DOCUMENT_OVERHEAD)


def _length(messages: tuple[Message, ...], tag: int) -> int:
    return sum(len(message.content) + tag for message in messages)
