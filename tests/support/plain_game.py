"""A game whose prices add up on paper.

`Plain` says exactly what it is told and `Unit` prices it: a root prompt costs 5, a clone's prompt 3, a reply message
2 + the length of its replies (a failure is 1 long), a fault line 1, a read 4.
"""

from selfcest_env.kernel import Kernel
from selfcest_env.rules import Rules
from selfcest_env.text.terse import TerseProtocol
from selfcest_env.types import (
    ROOT,
    CloneRequest,
    Delegate,
    FinishReason,
    Limits,
    Message,
    MessageRole,
    Part,
    Role,
    Task,
    Usage,
)

A, B = ROOT.child(0), ROOT.child(1)


class Plain(TerseProtocol):
    """Prompts 5 and 3 long, whatever the brief says; an objective that starts with 'long' makes a prompt 50 long."""

    def open(self, brief):
        size = 5 if brief.role is Role.ROOT else 50 if brief.text.startswith("long") else 3
        return (Message(MessageRole.USER, (Part("." * size, True),)),)

    def replies(self, replies):
        parts = [Part("!" if r.text is None else self.neutralise(r.text)) for r in replies]
        return Message(MessageRole.TOOL, (Part("..", True), *parts))

    def documents(self, documents):
        return Message(MessageRole.TOOL, (Part("....", True),))

    def fault(self, fault):
        return Message(MessageRole.TOOL, (Part(".", True),))


class Unit:
    def count(self, messages, boundary):
        return sum(len(m.content) for m in messages)

    def count_text(self, text):
        return len(text)


def game(protocol=None, **limits):
    base = {"total_tokens": 100, "turn_tokens": 20, "reply_tokens": 4, "answer_reserve": 6, "max_turns": 4}
    task = Task("t", "q", "7", "test", {"A": "doc a", "B": "doc b"})
    return Kernel(task, Rules(Limits(**{**base, **limits}), protocol or Plain(), Unit()))


def play(kernel, agent, action, tokens=2, finish=FinishReason.STOP, text="said"):
    kernel.step(agent, action, Usage(tokens, finish), text)
    kernel.ledger.check()


def ask(*objectives):
    return Delegate(tuple(o if isinstance(o, CloneRequest) else CloneRequest(o) for o in objectives))
