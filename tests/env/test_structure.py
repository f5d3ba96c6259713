"""Plain values to typed ones: what is made, what is refused, and the one sentence that says so."""

import enum
import math
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from selfcest_env.errors import ConfigError, RecordError
from selfcest_env.structure import (
    Above,
    AtLeast,
    AtMost,
    Below,
    Checked,
    Count,
    Distinct,
    Finite,
    Name,
    NotEmpty,
    OneOf,
    Positive,
    Seed,
    construct,
    structure,
    to_builtins,
)

SHAPES = ("square", "round")


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


class Level(enum.Enum):
    LOW = 1
    HIGH = 2


@dataclass(frozen=True)
class Inner(Checked):
    size: Count = 1
    rate: Annotated[float, Above(0), Below(1), "as in 0.1"] = 0.5


@dataclass(frozen=True)
class Sample(Checked):
    name: Name = "x"
    cap: Annotated[float, AtLeast(1), ".inf: none"] = 2.0
    price: Positive = 1.0
    rank: Count | None = None
    parts: Annotated[tuple[Count, ...], NotEmpty(), Distinct()] = (1,)
    weights: Mapping[str, Annotated[float, AtLeast(0), AtMost(1)]] = field(default_factory=dict)
    colour: Colour = Colour.RED
    level: Level = Level.LOW
    mode: Literal["a", "b"] = "a"
    shape: Annotated[str, OneOf(*SHAPES)] = "round"
    flag: bool = False
    scalar: str | int | float | bool = ""
    pair: tuple[int, str] = (1, "a")
    inner: Inner = Inner()
    by_number: Mapping[int, Colour] = field(default_factory=dict)
    colours: tuple[Colour, ...] = ()
    anything: Any = None


@dataclass(frozen=True)
class Ordered(Checked):
    low: Count = 1
    high: Count = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low > self.high:
            raise ConfigError(f"low is {self.low}, above high = {self.high}")


@dataclass(frozen=True)
class Outer:
    named: Mapping[str, Ordered]


class Open:
    def __init__(self, width: Count = 1, **others: Any) -> None:
        self.width, self.others = width, others


def test_what_is_made_and_that_it_can_be_written_again() -> None:
    data = {
        "cap": math.inf,
        "price": 3,
        "rank": None,
        "parts": [3, 1],
        "weights": {"a": 1},
        "colour": "blue",
        "level": 2,
        "mode": "b",
        "shape": "square",
        "flag": True,
        "scalar": True,
        "pair": [4, "b"],
        "inner": {"size": 2},
        "by_number": {"7": "red", 8: "blue"},
        "colours": ["red", "red"],
        "anything": {"x": [1, "y"]},
    }
    made = structure(data, Sample)
    expected = Sample("x", math.inf, 3.0, None, (3, 1), {"a": 1.0}, Colour.BLUE, Level.HIGH, "b", "square", True, True)
    assert (made.price, made.scalar, made.pair, made.inner) == (3.0, True, (4, "b"), Inner(2))
    assert type(made.price) is type(made.weights["a"]) is float
    assert type(made.scalar) is bool
    assert (made.cap, made.parts, made.level, made.shape) == (expected.cap, expected.parts, Level.HIGH, "square")
    assert made.by_number == {7: Colour.RED, 8: Colour.BLUE}
    assert all(isinstance(colour, Colour) for colour in (made.colour, *made.colours, *made.by_number.values()))
    written = to_builtins(made)
    assert structure(written, Sample) == made
    assert (written["level"], written["pair"], written["inner"]) == (2, [4, "b"], {"size": 2, "rate": 0.5})
    assert {type(colour) for colour in (written["colour"], *written["colours"])} == {str}
    assert structure({"inner": Inner(3), "parts": (np.int64(2),)}, Sample).inner == Inner(3)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"cap": 0.5}, "at.cap is 0.5; expected a number >= 1 (.inf: none)"),
        ({"cap": math.nan}, "at.cap is nan; expected a number >= 1 (.inf: none)"),
        ({"cap": True}, "at.cap is True; expected a number >= 1 (.inf: none)"),
        ({"cap": "5"}, "at.cap is '5'; expected a number >= 1 (.inf: none)"),
        ({"price": math.inf}, "at.price is inf; expected a finite number > 0"),
        ({"price": 10**400}, "at.price is 1" + "0" * 99 + "... (401 characters); expected a finite number > 0"),
        ({"rank": 0}, "at.rank is 0; expected a whole number >= 1, or null"),
        ({"rank": "3"}, "at.rank is '3'; expected a whole number >= 1, or null"),
        ({"rank": 2.0}, "at.rank is 2.0; expected a whole number >= 1, or null"),
        ({"rank": -(10**5000)}, "at.rank is a number of thousands of digits; expected a whole number >= 1, or null"),
        (
            {"parts": []},
            "at.parts is []; expected a list that is not empty and with each one once",
        ),
        ({"parts": [2, 0]}, "at.parts[1] is 0; expected a whole number >= 1"),
        ({"parts": "12"}, "at.parts is '12'; expected a list*"),
        ({"weights": {"a": 2}}, "at.weights.a is 2; expected a number >= 0 and <= 1"),
        ({"weights": {1: 0}}, "at.weights has a key that is 1; expected a text; write it in quotes"),
        ({"weights": {"a\nb": 2}}, r"at.weights['a\nb'] is 2; expected a number >= 0 and <= 1"),
        ({"colour": "blu"}, "at.colour is 'blu'. Did you mean 'blue'? Expected one of red, blue"),
        ({"colour": 1}, "at.colour is 1; expected one of red, blue"),
        ({"colour": ["red"]}, "at.colour is ['red']; expected one of red, blue"),
        ({"colours": ["red", "x"]}, "at.colours[1] is 'x'; expected one of red, blue"),
        ({"level": True}, "at.level is True; expected one of 1, 2"),
        ({"level": 1.0}, "at.level is 1.0; expected one of 1, 2"),
        ({"mode": "c"}, "at.mode is 'c'; expected one of a, b"),
        ({"shape": "squar"}, "at.shape is 'squar'. Did you mean 'square'? Expected one of square, round"),
        ({"flag": 1}, "at.flag is 1; expected true or false"),
        ({"scalar": [1]}, "at.scalar is [1]; expected a text or a whole number or a number or true or false"),
        ({"pair": [1]}, "at.pair is [1]; expected a list of 2"),
        ({"pair": [1, 2]}, "at.pair[1] is 2; expected a text"),
        ({"inner": {"size": 0}}, "at.inner.size is 0; expected a whole number >= 1"),
        ({"inner": {"rate": 1}}, "at.inner.rate is 1; expected a number > 0 and < 1 (as in 0.1)"),
        ({"inner": {"sise": 2}}, "at.inner.sise is unknown. Did you mean 'size'? Inner has size, rate"),
        ({"inner": {3: 2}}, "at.inner.3 is unknown; Inner has size, rate"),
        ({"inner": None}, "at.inner is None; expected a mapping"),
        ({"by_number": {"07x": "red"}}, "at.by_number has a key that is '07x'; expected a whole number"),
        ({"by_number": {"7": "red", "07": "red"}}, "at.by_number has a key that is '07'; expected a whole number"),
        ({"by_number": {"9" * 5000: "red"}}, "at.by_number has a key that is '999*"),
        ({"name": "a\0b"}, r"at.name is 'a\x00b'; expected a text of printable characters only"),
        ([], "at is []; expected a mapping"),
    ],
)
def test_one_sentence_names_the_place_the_value_and_what_was_expected(data: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        structure(data, Sample, place="at")
    said = str(caught.value)
    assert said.startswith(message[:-1].rstrip(".")) if message.endswith("*") else said == message
    assert "\n" not in said
    assert len(said) < 300


def test_bounds_hold_for_objects_made_in_python() -> None:
    for wrong, message in (
        (lambda: Inner(0), "Inner.size is 0; expected a whole number >= 1"),
        (lambda: Inner(True), "Inner.size is True; expected a whole number >= 1"),
        (lambda: Inner(rate=math.nan), "Inner.rate is nan; expected a number > 0 and < 1 (as in 0.1)"),
        (lambda: Sample(parts=(1, 0)), "Sample.parts[1] is 0; expected a whole number >= 1"),
        (lambda: Sample(colour="green"), "Sample.colour is 'green'; expected one of red, blue"),  # type: ignore[arg-type]
        (lambda: Sample(mode="c"), "Sample.mode is 'c'; expected one of a, b"),  # type: ignore[arg-type]
        (lambda: Ordered(3, 2), "low is 3, above high = 2"),
        (lambda: Ordered(0, 2), "Ordered.low is 0; expected a whole number >= 1"),
    ):
        with pytest.raises(ConfigError) as caught:
            wrong()
        assert str(caught.value) == message
    assert Sample(rank=None, parts=(np.int64(1),)).parts == (1,)


def test_what_an_object_says_of_itself_is_said_with_its_place() -> None:
    with pytest.raises(ConfigError, match=r"^named\.x\.low is 3, above high = 2$"):
        structure({"named": {"x": {"low": 3}}}, Outer)
    with pytest.raises(RecordError, match=r"^named is missing; expected a mapping$"):
        structure({}, Outer, error=RecordError)
    with pytest.raises(ConfigError, match=r"^the value is -1; expected a whole number >= 0 and < 9223372036854775808$"):
        structure(-1, Seed)


def test_a_class_that_takes_any_keyword() -> None:
    made = construct(Open, {"width": 2, "height": "3"}, place="open")
    assert (made.width, made.others) == (2, {"height": "3"})
    with pytest.raises(ConfigError, match=r"^open\.width is 0; expected a whole number >= 1$"):
        construct(Open, {"width": 0}, place="open")


def test_finite_alone() -> None:
    with pytest.raises(ConfigError, match="expected a finite number$"):
        structure(math.inf, Annotated[float, Finite()], place="x")


def test_agent_ids_are_texts_whatever_was_imported() -> None:
    said = "from selfcest_env.structure import to_builtins, structure; from selfcest_env.types import AgentId\n"
    said += "assert structure({'root.1': 2}, dict[AgentId, int]) == {AgentId((1,)): 2}\n"
    said += "assert to_builtins({AgentId((1,)): 2}) == {'root.1': 2}"
    subprocess.run([sys.executable, "-c", said], check=True)
