"""Expressions over large integers, with the constants of the paper's released generator (arXiv 2602.13262).

The defaults are 3 to 10 operations, the weights 4 : 3 : 6 of + - *, integers of 3 to 7 digits, and results of at most
16 digits. An expression has at most two pairs of parentheses: with probability 0.55 a local pair around two operands,
and with probability 0.22 a wide pair around three or more. With single digits and one or two operations of + and -, the
problems are so short that delegation is not worth its cost.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from selfcest_env.errors import ConfigError, TaskError
from selfcest_env.protocol import Reply
from selfcest_env.structure import Between, Checked, NotNegative, OneOf, Share, check_order
from selfcest_env.tasks.expressions import (
    MAX_DIGITS,
    ExpressionError,
    Node,
    Operation,
    apply,
    evaluate,
    operands,
    parse,
    write,
)
from selfcest_env.tasks.source import (
    GIVE_UP,
    MAX_TRIES,
    PHRASINGS,
    PLAIN,
    TERSE,
    Proposal,
    Style,
    draw_int,
    find_last_call,
    is_root,
    make_task,
    may_delegate,
)
from selfcest_env.types import Answer, CloneRequest, Delegate, Task
from selfcest_env.views import Observation

_PLAIN = re.compile(r"Compute (.*)\. Answer with the integer alone\.", re.S)
_INTEGER = re.compile(rf"-?[0-9]{{1,{MAX_DIGITS}}}")


@dataclass(frozen=True)
class Arithmetic(Checked):
    """Source of expressions.

    Attributes:
        min_operations, max_operations: number of operations. Two sources whose ranges are disjoint share no task.
        plus, minus, times: weights of the operators.
        min_digits, max_digits: number of digits of the integers.
        max_result_digits: maximum number of digits of the result.
        max_parentheses: maximum number of pairs of parentheses, 0 to 2.
        local: probability of a pair around two operands.
        wide: probability of a pair around three or more operands.
        phrasing: "terse" for the expression only, "plain" for an English sentence.
    """

    name: ClassVar[str] = "arithmetic"
    min_operations: Annotated[int, Between(1, 40)] = 3
    max_operations: Annotated[int, Between(1, 40)] = 10
    plus: NotNegative = 4.0
    minus: NotNegative = 3.0
    times: NotNegative = 6.0
    min_digits: Annotated[int, Between(1, 18)] = 3
    max_digits: Annotated[int, Between(1, 18)] = 7
    max_result_digits: Annotated[int, Between(1, MAX_DIGITS)] = 16
    max_parentheses: Annotated[int, Between(0, 2)] = 2
    local: Share = 0.55
    wide: Share = 0.22
    phrasing: Annotated[str, OneOf(*PHRASINGS)] = TERSE

    def __post_init__(self) -> None:
        super().__post_init__()
        check_order(self, "min_operations", "max_operations")
        check_order(self, "min_digits", "max_digits")
        if not self.plus + self.minus + self.times > 0:
            raise ConfigError("plus, minus and times are all 0; expected at least one weight above 0")

    def draw(self, rng: np.random.Generator) -> Task:
        count = draw_int(rng, self.min_operations, self.max_operations)
        # The count is drawn once. If it were drawn again after a failure, long expressions would be rarer.
        for _ in range(MAX_TRIES):
            node = parse(self._draw_expression(rng, count))
            try:
                value = evaluate(node)[0]
            except ExpressionError:
                continue
            if abs(value) < 10**self.max_result_digits:
                return make_task(self.name, _phrase(node, self.phrasing), str(value), {"size": count})
        raise TaskError(
            f"{self.name} found no expression of {count} operations with at most max_result_digits = "
            f"{self.max_result_digits} digits in {MAX_TRIES} tries; raise max_result_digits, or lower max_digits, "
            "times or max_operations"
        )

    def _draw_expression(self, rng: np.random.Generator, count: int) -> str:
        weights = np.array([self.plus, self.minus, self.times])
        pieces = [self._draw_number(rng) for _ in range(count + 1)]
        for start, end in self._draw_parentheses(rng, count + 1):
            pieces[start] = "(" + pieces[start]
            pieces[end] = pieces[end] + ")"
        operators = rng.choice(3, size=count, p=weights / weights.sum())
        return pieces[0] + "".join("+-*"[int(o)] + piece for o, piece in zip(operators, pieces[1:], strict=True))

    def _draw_number(self, rng: np.random.Generator) -> str:
        digits = draw_int(rng, self.min_digits, self.max_digits)
        return str(draw_int(rng, 10 ** (digits - 1) if digits > 1 else 0, 10**digits - 1))

    def _draw_parentheses(self, rng: np.random.Generator, num_operands: int) -> list[tuple[int, int]]:
        """Draw the first and last operand of every pair. Pairs are nested or disjoint, and none spans all operands."""
        pairs: list[tuple[int, int]] = []
        # Both draws come first, so that the second does not depend on the first pair.
        draw_local = rng.random() < self.local
        draw_wide = rng.random() < self.wide
        for is_drawn, shortest, longest in ((draw_local, 2, 2), (draw_wide, 3, num_operands - 1)):
            if is_drawn and len(pairs) < self.max_parentheses and shortest <= min(longest, num_operands - 1):
                length = draw_int(rng, shortest, longest)
                start = draw_int(rng, 0, num_operands - length)
                pair = (start, start + length - 1)
                if all(pair[1] < a or b < pair[0] or (pair[0] <= a and b <= pair[1]) for a, b in pairs):
                    pairs.append(pair)
        return pairs

    def understands(self, observation: Observation) -> bool:
        return _read(observation.brief.text) is not None

    def propose(self, observation: Observation, rng: np.random.Generator, style: Style) -> Proposal:
        question = _read(observation.brief.text)
        if question is None:
            return GIVE_UP
        node, phrasing = question
        try:
            if call := find_last_call(observation):
                return _insert_replies(node, call.replies, phrasing)
            if style is Style.DELEGATE:
                # A root may delegate an expression that cannot be split. A clone may not: delegation would never end.
                parts: list[Node] = list(_groups(node)) or ([node] if is_root(observation) else [])
                if parts and may_delegate(observation, len(parts)):
                    return Proposal(Delegate(tuple(CloneRequest(_phrase(part, phrasing)) for part in parts)))
            return _solve(node, phrasing)
        except ExpressionError:
            return GIVE_UP


def _phrase(node: Node, phrasing: str) -> str:
    text = write(node, spaces=phrasing == PLAIN)
    return text if phrasing == TERSE else f"Compute {text}. Answer with the integer alone."


def _read(text: str) -> tuple[Node, str] | None:
    """Return the expression and the phrasing of a question, or `None` for any other text."""
    match = _PLAIN.fullmatch(text.strip())
    try:
        return (parse(match.group(1)), PLAIN) if match else (parse(text), TERSE)
    except ExpressionError:
        return None


def _groups(node: Node) -> list[Operation]:
    """Return the parenthesised groups and products at the top level, which can be computed separately."""
    return [operand for _, operand in operands(node) if isinstance(operand, Operation)]


def _solve(node: Node, phrasing: str) -> Proposal:
    value, steps = evaluate(node, phrasing == PLAIN)
    return _answer(value, steps, phrasing)


def _insert_replies(node: Node, replies: tuple[Reply, ...], phrasing: str) -> Proposal:
    """Put the clones' values in place of the groups. If a reply is no integer, compute everything without clones."""
    groups = _groups(node)
    values = [value for value in map(_read_integer, replies) if value is not None]
    if len(values) != max(1, len(groups)) or len(values) != len(replies):
        return _solve(node, phrasing)
    if not groups:
        return Proposal(Answer(str(values[0])))
    unused_values = iter(values)
    chain: list[tuple[str, int]] = []
    for operator, operand in operands(node):
        chain.append((operator, operand if isinstance(operand, int) else next(unused_values)))
    value = chain[0][1]
    steps: list[str] = []
    for operator, right in chain[1:]:
        value, step = apply(operator, value, right, phrasing == PLAIN)
        steps.append(step)
    return _answer(value, steps, phrasing)


def _answer(value: int, steps: list[str], phrasing: str) -> Proposal:
    return Proposal(Answer(str(value)), (";" if phrasing == TERSE else "; ").join(steps))


def _read_integer(reply: Reply) -> int | None:
    text = (reply.text or "").strip()
    return int(text) if _INTEGER.fullmatch(text) else None
