r"""Exact value of an arithmetic expression, in plain or LaTeX writing, within fixed limits.

Texts come from models, so nothing here hands them to Python's own parser or to another library.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

MAX_CHARACTERS = 1000
MAX_DEPTH = 50
MAX_BITS = 1 << 16  # of a numerator or denominator on the way; 2006! has 19,000
_MAX_POWER, _MAX_FACTORIAL = 4096, 4096

_TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<number>[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?(?![0-9])|[0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
    r"|(?P<fraction>\\frac)|(?P<symbol>\\times|\\cdot|\\div|\\?%|[-+*/^!(){}×÷·−])"
)
_SAME = {"\\times": "*", "×": "*", "\\cdot": "*", "·": "*", "\\div": "/", "÷": "/", "−": "-", "\\%": "%"}


class NotRational(ValueError):
    """A text that is no arithmetic expression with an exact value, or one beyond the limits."""


@dataclass(frozen=True)
class EvaluatedExpression:
    """A value and the numbers written to get it, in order."""

    value: Fraction
    numbers: tuple[Fraction, ...]


def evaluate(text: str) -> EvaluatedExpression:
    r"""The value of numbers under + - * / ^ ! %, `\frac`, parentheses and braces.

    Nothing may be left out between two factors, but a mixed number, `3\frac12`, is a sum. Raises `NotRational`.
    """
    parser = _RationalParser(_tokens(text))
    value = parser.sum(0)
    if parser.peek() is not None:
        raise NotRational(f"unexpected {parser.peek()!r}")
    return EvaluatedExpression(value, tuple(parser.numbers))


def parse_rational(text: str) -> Fraction | None:
    """The exact value of a text, `None` if it has none that can be told."""
    try:
        return evaluate(text).value
    except NotRational:
        return None


def _tokens(text: str) -> list[str]:
    if len(text) > MAX_CHARACTERS:
        raise NotRational(f"{len(text)} characters; at most {MAX_CHARACTERS} are read")
    tokens, position = list[str](), 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise NotRational(f"unexpected {text[position]!r}")
        if match.lastgroup != "space":
            tokens.append(_SAME.get(match[0], match[0]))
        position = match.end()
    return tokens


def _small(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise NotRational(f"a value of more than {MAX_BITS} bits")
    return value


class _RationalParser:
    """Recursive descent: sums of products of signed powers."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens, self.position = tokens, 0
        self.numbers: list[Fraction] = []

    def peek(self) -> str | None:
        return self.tokens[self.position] if self.position < len(self.tokens) else None

    def take(self, *wanted: str) -> str:
        token = self.peek()
        if token is None or (wanted and token not in wanted):
            raise NotRational(f"found {token!r}, expected {' or '.join(wanted) or 'more'}")
        self.position += 1
        return token

    def sum(self, depth: int) -> Fraction:
        value = self.product(depth)
        while self.peek() in ("+", "-"):
            operator, right = self.take(), self.product(depth)
            value = _small(value + right if operator == "+" else value - right)
        return value

    def product(self, depth: int) -> Fraction:
        value = self.signed(depth)
        while self.peek() in ("*", "/"):
            operator, right = self.take(), self.signed(depth)
            value = _small(value * right if operator == "*" else _divide(value, right))
        return value

    def signed(self, depth: int) -> Fraction:
        if depth > MAX_DEPTH:
            raise NotRational(f"more than {MAX_DEPTH} nested signs, powers or parentheses")
        if self.peek() in ("+", "-"):
            return self.signed(depth + 1) if self.take() == "+" else -self.signed(depth + 1)
        value = self.primary(depth)
        while self.peek() in ("!", "%"):
            value = _factorial(value) if self.take() == "!" else value / 100
        if self.peek() == "^":
            self.take()
            value = _power(value, self.signed(depth + 1))
        return value

    def primary(self, depth: int) -> Fraction:
        token = self.take()
        if token == "\\frac":
            return _divide(self.argument(depth), self.argument(depth))
        if token in ("(", "{"):
            value = self.sum(depth + 1)
            self.take(")" if token == "(" else "}")
            return value
        value = self.number(token)
        if self.peek() == "\\frac" and value.denominator == 1:
            self.take()
            value += _divide(self.argument(depth), self.argument(depth))
        return value

    def argument(self, depth: int) -> Fraction:
        r"""What `\frac` takes: a group in braces or one digit, so that `\frac12` is a half."""
        token = self.take()
        if token == "{":
            value = self.sum(depth + 1)
            self.take("}")
            return value
        if len(token) > 1:
            self.position -= 1
            self.tokens[self.position : self.position + 1] = [token[0], token[1:]]
            token = self.take()
        return self.number(token)

    def number(self, token: str) -> Fraction:
        if not token[-1:].isdecimal():
            raise NotRational(f"unexpected {token!r} where a number belongs")
        value = _small(Fraction(token.replace(",", "")))
        self.numbers.append(value)
        return value


def _divide(left: Fraction, right: Fraction) -> Fraction:
    if right == 0:
        raise NotRational("a division by zero")
    return _small(left / right)


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1 or abs(exponent) > _MAX_POWER:
        raise NotRational(f"the power is not a whole number up to {_MAX_POWER}")
    bits = max(base.numerator.bit_length(), base.denominator.bit_length()) * abs(exponent.numerator)
    if bits > MAX_BITS or (base == 0 and exponent < 0):
        raise NotRational("a power too large, or of zero to a negative number")
    return base**exponent.numerator


def _factorial(value: Fraction) -> Fraction:
    if value.denominator != 1 or not 0 <= value <= _MAX_FACTORIAL:
        raise NotRational(f"a factorial of something else than a whole number from 0 to {_MAX_FACTORIAL}")
    return _small(Fraction(math.factorial(value.numerator)))
