r"""Evaluate arithmetic expressions exactly, in plain or LaTeX notation, within fixed limits.

The texts come from models, so no text reaches Python's own parser or another library.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

MAX_CHARACTERS = 1000
MAX_DEPTH = 50
# Limit of every numerator and denominator, intermediate ones too. 2006!, which a real task asks for, has 19,000 bits.
MAX_BITS = 1 << 16
_MAX_POWER = 4096
_MAX_FACTORIAL = 4096

_TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<number>(?!0)[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?(?![0-9])|[0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
    r"|(?P<fraction>\\frac)|(?P<symbol>\\times|\\cdot|\\div|\\?%|[-+*/^!(){}×÷·−])"
)
_SYNONYMS = {"\\times": "*", "×": "*", "\\cdot": "*", "·": "*", "\\div": "/", "÷": "/", "−": "-", "\\%": "%"}


class NotRational(ValueError):
    """Raised for a text that is not an arithmetic expression with an exact value, or that exceeds a limit."""


@dataclass(frozen=True)
class EvaluatedExpression:
    """The value of an expression, and the numbers that it contains, in order."""

    value: Fraction
    numbers: tuple[Fraction, ...]


def evaluate(text: str) -> EvaluatedExpression:
    r"""Evaluate an expression of numbers, + - * / ^ ! %, `\frac`, parentheses and braces.

    A multiplication sign may not be omitted. A mixed number, `3\frac12`, is a sum.

    Raises:
        NotRational: the text is no such expression, or it exceeds a limit.
    """
    parser = _RationalParser(_tokens(text))
    value = parser.sum(0)
    if parser.peek() is not None:
        raise NotRational(f"unexpected {parser.peek()!r}")
    return EvaluatedExpression(value, tuple(parser.numbers))


def parse_rational(text: str) -> Fraction | None:
    """Return the exact value of a text, or `None` if `evaluate` raises `NotRational`."""
    try:
        return evaluate(text).value
    except NotRational:
        return None


def _tokens(text: str) -> list[str]:
    if len(text) > MAX_CHARACTERS:
        raise NotRational(f"{len(text)} characters; expected at most {MAX_CHARACTERS}")
    tokens: list[str] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise NotRational(f"unexpected {text[position]!r}")
        if match.lastgroup != "space":
            tokens.append(_SYNONYMS.get(match[0], match[0]))
        position = match.end()
    return tokens


def _check_size(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise NotRational(f"a value of more than {MAX_BITS} bits; expected at most {MAX_BITS}")
    return value


class _RationalParser:
    """A recursive descent parser. The grammar: sums of products of signed powers."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.position = 0
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
            operator = self.take()
            right = self.product(depth)
            value = _check_size(value + right if operator == "+" else value - right)
        return value

    def product(self, depth: int) -> Fraction:
        value = self.signed(depth)
        while self.peek() in ("*", "/"):
            operator = self.take()
            right = self.signed(depth)
            value = _check_size(value * right if operator == "*" else _divide(value, right))
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
            # The exponent is parsed first, so that 2^3^2 is 2^9.
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
        r"""Parse an argument of `\frac`: a group in braces or one digit, so that `\frac12` is one half."""
        token = self.take()
        if token == "{":
            value = self.sum(depth + 1)
            self.take("}")
            return value
        if len(token) > 1:
            # Only the first digit belongs to this argument; the rest of the number is the next one.
            self.position -= 1
            self.tokens[self.position : self.position + 1] = [token[0], token[1:]]
            token = self.take()
        return self.number(token)

    def number(self, token: str) -> Fraction:
        if not token[-1:].isdecimal():
            raise NotRational(f"found {token!r}, expected a number")
        value = _check_size(Fraction(token.replace(",", "")))
        self.numbers.append(value)
        return value


def _divide(left: Fraction, right: Fraction) -> Fraction:
    if right == 0:
        raise NotRational("a division by zero")
    return _check_size(left / right)


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1 or abs(exponent) > _MAX_POWER:
        raise NotRational(f"a power that is not a whole number up to {_MAX_POWER}")
    # The size is estimated before the power is computed, because the computation itself would take too long.
    bits = max(base.numerator.bit_length(), base.denominator.bit_length()) * abs(exponent.numerator)
    if bits > MAX_BITS or (base == 0 and exponent < 0):
        raise NotRational("a power too large, or of zero to a negative number")
    return base**exponent.numerator


def _factorial(value: Fraction) -> Fraction:
    if value.denominator != 1 or not 0 <= value <= _MAX_FACTORIAL:
        raise NotRational(f"a factorial of a value that is not a whole number from 0 to {_MAX_FACTORIAL}")
    return _check_size(Fraction(math.factorial(value.numerator)))
