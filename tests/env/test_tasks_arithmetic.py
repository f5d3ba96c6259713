"""Expressions: an own evaluator against Python's integers, the generator's constants, the expert's steps."""

import contextlib
import operator
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfcest_env.errors import ConfigError, TaskError
from selfcest_env.kernel import Kernel
from selfcest_env.protocol import Reply
from selfcest_env.rules import Rules
from selfcest_env.tasks import Style, arithmetic
from selfcest_env.tasks.arithmetic import Arithmetic
from selfcest_env.tasks.expressions import ExpressionError, evaluate, operands, parse, write
from selfcest_env.tasks.source import Proposal
from selfcest_env.text.counters import WordCounter
from selfcest_env.text.terse import TerseProtocol
from selfcest_env.types import ROOT, Answer, CloneRequest, Delegate, Limits, Task
from selfcest_env.views import Exchange, Observation, observe

PYTHON = {"+": operator.add, "-": operator.sub, "*": operator.mul}

numbers = st.integers(0, 999).map(lambda value: (str(value), value, 3))


def _bind(left: tuple, symbol: str, right: tuple) -> tuple:
    """Text and value of an operation, worked out by Python's own operators; parentheses only where they are needed."""
    level = 2 if symbol == "*" else 1
    a = left[0] if left[2] >= level else f"({left[0]})"
    b = right[0] if right[2] > level else f"({right[0]})"
    return f"{a}{symbol}{b}", PYTHON[symbol](left[1], right[1]), level


trees = st.recursive(numbers, lambda inner: st.builds(_bind, inner, st.sampled_from(list("+-*")), inner), max_leaves=12)


@given(trees)
@settings(max_examples=300, deadline=None)
def test_evaluator_agrees_with_python(tree: tuple) -> None:
    text, value, _ = tree
    node = parse(text)
    assert evaluate(node)[0] == value
    assert evaluate(parse(write(node, spaces=True)))[0] == value


@given(st.text(alphabet="0123456789+-*() x", max_size=40))
@settings(max_examples=300, deadline=None)
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        node = parse(text)
    except ExpressionError:
        return
    again = parse(write(node))
    with contextlib.suppress(ExpressionError):
        assert evaluate(again)[0] == evaluate(node)[0]


@pytest.mark.parametrize(
    ("text", "value", "steps"),
    [
        ("7", 7, []),
        ("3+4*5", 23, ["4*5=20", "3+20=23"]),
        ("(3+4)*5", 35, ["3+4=7", "7*5=35"]),
        ("10-3-2", 5, ["10-3=7", "7-2=5"]),
        ("2-(3-9)", 8, ["3-9=-6", "2-(-6)=8"]),
        ("-3*(-2)", 6, ["-3*(-2)=6"]),
    ],
)
def test_steps_by_hand(text: str, value: int, steps: list[str]) -> None:
    assert evaluate(parse(text)) == (value, steps)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1+",
        "(1",
        "1)",
        "2**3",
        "1 2",
        "a",
        "1.5",
        "+" * 3,
        "(" * 60 + "1" + ")" * 60,
        "-" * 60 + "1",
        "1" * 65,
        "1+" * 300 + "1",
        "9" * 3000,
        "٣+1",
    ],
)
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse(text)


def test_results_are_bounded() -> None:
    with pytest.raises(ExpressionError, match="64 digits"):
        evaluate(parse("*".join(["9" * 60] * 5)))


def test_top_level_chain() -> None:
    assert [(op, node if isinstance(node, int) else write(node)) for op, node in operands(parse("2*3+(4-1)-5"))] == [
        ("+", "2*3"),
        ("+", "4-1"),
        ("-", 5),
    ]


def test_draws_keep_to_the_papers_constants() -> None:
    source, rng = Arithmetic(), np.random.default_rng(0)
    counts, pairs, symbols = set[int](), set[int](), list[str]()
    for _ in range(400):
        task = source.draw(rng)
        integers = re.findall(r"[0-9]+", task.prompt)
        assert all(3 <= len(integer) <= 7 for integer in integers)
        assert len(integers) == task.metadata["size"] + 1
        assert len(task.answer.lstrip("-")) <= 16
        assert task.prompt == write(parse(task.prompt))
        assert str(evaluate(parse(task.prompt))[0]) == task.answer
        counts.add(len(integers) - 1)
        pairs.add(task.prompt.count("("))
        symbols += re.findall(r"[-+*]", task.prompt)
    assert counts == set(range(3, 11))
    assert pairs == {0, 1, 2}
    # Weights are 4 : 3 before products that are too large are drawn again, which does not touch this ratio.
    assert 1.1 < symbols.count("+") / symbols.count("-") < 1.6


def first_turn(prompt: str) -> Observation:
    task = Task("t", prompt, "", "arithmetic")
    return observe(Kernel(task, Rules(Limits(), TerseProtocol(), WordCounter())), ROOT)


def after_replies(prompt: str, *replies: str | None) -> Observation:
    seen, source = first_turn(prompt), Arithmetic()
    call = source.propose(seen, np.random.default_rng(0), Style.DELEGATE).action
    texts = tuple(Reply(text=text) for text in replies)
    fields = {name: getattr(seen, name) for name in seen.__dataclass_fields__}
    return Observation(**{**fields, "exchanges": (Exchange(call, replies=texts),)})


def propose(seen: Observation, style: Style = Style.DELEGATE) -> Proposal:
    return Arithmetic().propose(seen, np.random.default_rng(0), style)


def test_the_expert_hands_out_groups_and_combines() -> None:
    prompt = "2*3+(4-1)-5"
    groups = Delegate((CloneRequest("2*3"), CloneRequest("4-1")))
    assert propose(first_turn(prompt)) == Proposal(groups)
    assert propose(after_replies(prompt, "6", "3")) == Proposal(Answer("4"), "6+3=9;9-5=4")
    assert propose(first_turn(prompt), Style.SOLVE) == Proposal(Answer("4"), "2*3=6;4-1=3;6+3=9;9-5=4")
    # A clone's wrong value is taken over; a failed or unreadable reply is worked out alone.
    assert propose(after_replies(prompt, "7", "3")).action == Answer("5")
    assert propose(after_replies(prompt, None, "3")) == propose(first_turn(prompt), Style.SOLVE)
    assert propose(after_replies(prompt, "9" * 5000, "3")).action == Answer("4")


def test_what_is_too_small_to_split_is_handed_over_whole() -> None:
    assert propose(first_turn("3+4")) == Proposal(Delegate((CloneRequest("3+4"),)))
    assert propose(after_replies("3+4", "7")) == Proposal(Answer("7"))
    assert propose(first_turn("Compute 3 + 4. Answer with the integer alone.")).action == Delegate(
        (CloneRequest("Compute 3 + 4. Answer with the integer alone."),)
    )


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({"min_operations": 0}, "Arithmetic.min_operations is 0; expected a whole number from 1 to 40"),
        ({"min_operations": 5, "max_operations": 4}, "min_operations is 5, above max_operations"),
        ({"plus": -1}, "Arithmetic.plus is -1"),
        ({"plus": 0, "minus": 0, "times": 0}, "at least one weight above 0"),
        ({"times": float("nan")}, "Arithmetic.times is nan"),
        ({"local": 1.5}, "Arithmetic.local is 1.5; expected a number from 0 to 1"),
        ({"max_parentheses": 3}, "whole number from 0 to 2"),
        ({"phrasing": "tres"}, "Did you mean 'terse'"),
    ],
)
def test_bad_knobs_are_named(knobs: dict, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Arithmetic(**knobs)
    assert said in str(caught.value)


def test_an_impossible_request_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "MAX_TRIES", 50)
    with pytest.raises(TaskError, match="max_result_digits = 1 digits in 50 tries"):
        Arithmetic(max_result_digits=1, plus=0, minus=0, max_parentheses=0).draw(np.random.default_rng(0))
