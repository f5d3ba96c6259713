"""Integer expressions with + - * and parentheses: parsed, evaluated step by step and written, within fixed limits.

Texts may come from a model, so nothing here hands them to Python's own parser.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

MAX_CHARACTERS = 2000
MAX_TOKENS = 400
MAX_DEPTH = 50
MAX_DIGITS = 64  # of a literal or of any result on the way


class ExpressionError(ValueError):
    """A text that is no expression, or one beyond the limits."""


@dataclass(frozen=True, slots=True)
class Operation:
    """`left operator right`; `grouped` if it was written in parentheses."""

    operator: str
    left: Node
    right: Node
    grouped: bool = False


Node = int | Operation

_TOKEN = re.compile(r"\s*(?:([0-9]+)|([-+*()]))")
_APPLY: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
}


def parse(text: str) -> Node:
    """The tree of an expression. Raises `ExpressionError`."""
    return _Parser(_tokens(text)).run()


def write(node: Node, spaces: bool = False) -> str:
    """The expression as text, without parentheses around all of it."""
    return _write(replace(node, grouped=False) if isinstance(node, Operation) else node, " " if spaces else "")


def evaluate(node: Node, spaces: bool = False) -> tuple[int, list[str]]:
    """Value and one line per operation, `3*4=12`, in the order of computation. Raises `ExpressionError`."""
    if isinstance(node, int):
        return node, []
    left, steps = evaluate(node.left, spaces)
    right, more = evaluate(node.right, spaces)
    value, step = apply(node.operator, left, right, spaces)
    return value, [*steps, *more, step]


def apply(operator: str, left: int, right: int, spaces: bool = False) -> tuple[int, str]:
    """One operation and its line. Raises `ExpressionError` beyond `MAX_DIGITS`."""
    value = _APPLY[operator](left, right)
    if abs(value) >= 10**MAX_DIGITS:
        raise ExpressionError(f"a result has more than {MAX_DIGITS} digits")
    gap = " " if spaces else ""
    return value, f"{left}{gap}{operator}{gap}{_write(right, gap)}{gap}={gap}{value}"


def operands(node: Node) -> list[tuple[str, Node]]:
    """The top level as a chain: each operand with the operator before it; a chain of sums or one of products.

    `2*3+(4-1)-5` gives `("+", 2*3), ("+", (4-1)), ("-", 5)`.
    """
    if isinstance(node, int):
        return [("+", node)]
    level = "*" if node.operator == "*" else "+-"
    chain: list[tuple[str, Node]] = []
    current: Node = node
    while isinstance(current, Operation) and current.operator in level and (current is node or not current.grouped):
        chain.append((current.operator, current.right))
        current = current.left
    return [("+", current), *reversed(chain)]


def _write(node: Node, gap: str) -> str:
    if isinstance(node, int):
        return str(node) if node >= 0 else f"({node})"
    text = f"{_write(node.left, gap)}{gap}{node.operator}{gap}{_write(node.right, gap)}"
    return f"({text})" if node.grouped else text


def _tokens(text: str) -> list[str]:
    if len(text) > MAX_CHARACTERS:
        raise ExpressionError(f"the text has {len(text)} characters; at most {MAX_CHARACTERS} are read")
    text = text.rstrip()
    tokens, position = list[str](), 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ExpressionError(f"unexpected {text[position : position + 1]!r} at character {position}")
        token = match.group(1) or match.group(2)
        if len(token) > MAX_DIGITS:
            raise ExpressionError(f"a number has {len(token)} digits; at most {MAX_DIGITS} are read")
        tokens.append(token)
        position = match.end()
    if len(tokens) > MAX_TOKENS:
        raise ExpressionError(f"the expression has {len(tokens)} tokens; at most {MAX_TOKENS} are read")
    return tokens


class _Parser:
    """Recursive descent: a sum of products of numbers and groups."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens, self.position = tokens, 0

    def run(self) -> Node:
        node = self.chain("+-", 0)
        if self.peek() is not None:
            raise ExpressionError(f"unexpected {self.peek()!r} after the expression")
        return node

    def peek(self) -> str | None:
        return self.tokens[self.position] if self.position < len(self.tokens) else None

    def take(self) -> str:
        token = self.peek()
        if token is None:
            raise ExpressionError("the expression ends too early")
        self.position += 1
        return token

    def chain(self, level: str, depth: int) -> Node:
        node = self.chain("*", depth) if level == "+-" else self.primary(depth)
        while (token := self.peek()) is not None and token in level:
            operator = self.take()
            node = Operation(operator, node, self.chain("*", depth) if level == "+-" else self.primary(depth))
        return node

    def primary(self, depth: int) -> Node:
        token = self.take()
        if token.isdecimal():
            return int(token)
        if depth >= MAX_DEPTH:
            raise ExpressionError(f"more than {MAX_DEPTH} nested parentheses or signs")
        if token == "-":
            inner = self.primary(depth + 1)
            return -inner if isinstance(inner, int) else Operation("*", -1, inner)
        if token != "(":
            raise ExpressionError(f"unexpected {token!r} where a number or a parenthesis belongs")
        node = self.chain("+-", depth + 1)
        if self.take() != ")":
            raise ExpressionError("a parenthesis is not closed")
        return replace(node, grouped=True) if isinstance(node, Operation) else node
