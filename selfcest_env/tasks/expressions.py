"""Parse, evaluate and write integer expressions with + - * and parentheses, within fixed limits.

The texts may come from a model, so no text reaches Python's own parser.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

MAX_CHARACTERS = 2000
MAX_TOKENS = 400
MAX_DEPTH = 50
MAX_DIGITS = 64  # of a literal and of every result, intermediate ones too


class ExpressionError(ValueError):
    """Raised for a text that is not an expression, or that exceeds a limit."""


@dataclass(frozen=True, slots=True)
class Operation:
    """The operation `left operator right`. It is `grouped` if it was written in parentheses."""

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
    """Return the tree of an expression.

    Raises:
        ExpressionError: the text is not an expression, or it exceeds a limit.
    """
    return _Parser(_tokens(text)).run()


def write(node: Node, spaces: bool = False) -> str:
    """Return the expression as a text, without parentheses around the whole."""
    return _write(replace(node, grouped=False) if isinstance(node, Operation) else node, " " if spaces else "")


def evaluate(node: Node, spaces: bool = False) -> tuple[int, list[str]]:
    """Evaluate an expression.

    Returns:
        The value, and one line for each operation, `3*4=12`, in the order of computation.

    Raises:
        ExpressionError: a result exceeds `MAX_DIGITS`.
    """
    if isinstance(node, int):
        return node, []
    left, left_steps = evaluate(node.left, spaces)
    right, right_steps = evaluate(node.right, spaces)
    value, step = apply(node.operator, left, right, spaces)
    return value, [*left_steps, *right_steps, step]


def apply(operator: str, left: int, right: int, spaces: bool = False) -> tuple[int, str]:
    """Return the value of one operation and its line. Raises `ExpressionError` if the value exceeds `MAX_DIGITS`."""
    value = _APPLY[operator](left, right)
    if abs(value) >= 10**MAX_DIGITS:
        raise ExpressionError(f"a result has more than {MAX_DIGITS} digits")
    gap = " " if spaces else ""
    return value, f"{left}{gap}{operator}{gap}{_write(right, gap)}{gap}={gap}{value}"


def operands(node: Node) -> list[tuple[str, Node]]:
    """Return the operands of the top level, a sum or a product, each with the operator before it.

    `2*3+(4-1)-5` returns `("+", 2*3), ("+", (4-1)), ("-", 5)`.
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
        raise ExpressionError(f"the text has {len(text)} characters; expected at most {MAX_CHARACTERS}")
    text = text.rstrip()
    tokens: list[str] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ExpressionError(f"unexpected {text[position : position + 1]!r} at character {position}")
        token = match.group(1) or match.group(2)
        if len(token) > MAX_DIGITS:
            raise ExpressionError(f"a number has {len(token)} digits; expected at most {MAX_DIGITS}")
        tokens.append(token)
        position = match.end()
    if len(tokens) > MAX_TOKENS:
        raise ExpressionError(f"the expression has {len(tokens)} tokens; expected at most {MAX_TOKENS}")
    return tokens


class _Parser:
    """A recursive descent parser. The grammar: a sum of products of numbers and groups."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.position = 0

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
            raise ExpressionError(f"found {token!r}; expected a number or a parenthesis")
        node = self.chain("+-", depth + 1)
        if self.take() != ")":
            raise ExpressionError("a parenthesis is not closed")
        return replace(node, grouped=True) if isinstance(node, Operation) else node
