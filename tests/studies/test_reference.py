"""The generated reference: what its tables say of classes written here."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

import pytest
import typer.main

from selfcest_env.plugin import PlugIn
from selfcest_env.record import Cost
from selfcest_env.structure import AtLeast
from selfcest_env.types import Fault, Limits, Status
from studies.reference.study import (
    REQUIRED,
    Block,
    config_tables,
    describe_command,
    list_options,
    option_table,
    rules_page,
)


class Level(StrEnum):
    """A level.

    LOW: near the
        ground.
    """

    LOW = "low"


@dataclass(frozen=True)
class Base:
    """The base.

    Attributes:
        rate: rate of the base,
            in two lines.
    """

    rate: Annotated[float, AtLeast(0)] = 0.5


@dataclass(frozen=True)
class Inner:
    """The inner block. A second sentence.

    Attributes:
        size: number of a|b.
    """

    size: int = 1


@dataclass(frozen=True)
class Outer(Base):
    """The outer block.

    Attributes:
        level: level of the block.
        inner: a block.
        many: blocks by name.
        plug: a plug-in.
        names: names.
    """

    level: Level = Level.LOW
    inner: Inner = Inner(size=7)
    many: dict[str, Inner] = field(default_factory=dict)
    plug: PlugIn = PlugIn("mixture")
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Undescribed:
    """Nothing about its option."""

    rate: float


def test_options_have_their_defaults_bounds_and_descriptions_also_those_of_a_base() -> None:
    rate, level, _, _, plug, names = list_options(Outer)
    assert (rate.default, rate.expected, rate.meaning) == ("`0.5`", "number >= 0", "rate of the base, in two lines.")
    assert (level.default, level.meaning) == ("`low`", "level of the block. `low`: near the ground")
    assert (plug.default, plug.expected) == ("`mixture`", "`name` and `options`")
    assert names.default == "`[]`"


def test_an_option_without_a_description_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Undescribed has no description of its rate"):
        list(list_options(Undescribed))


def test_blocks_inside_a_config_have_a_table_each_with_the_defaults_of_their_place() -> None:
    assert [block.path for block in Block("", Outer, None).inner()] == ["inner", "many.NAME"]
    text = "\n".join(config_tables(Outer, "It"))
    _, inner, many = text.split("### ")[1:]
    assert inner.startswith("It: inner\nThe inner block.\n")
    assert "| `size` | `7` | whole number | number of a\\|b. |" in inner
    assert "| `size` | `1` | whole number | number of a\\|b. |" in many
    assert "| `inner` | below | mapping | a block. |" in text


def test_equal_options_of_several_plug_ins_are_one_row() -> None:
    rows = option_table({"a": Base, "b": Outer}, "part").splitlines()[2:]
    assert rows[0] == "| `a`, `b` | `rate` | `0.5` | number >= 0 | rate of the base, in two lines. |"
    assert len(rows) == 6


def test_a_command_shows_what_is_required_and_a_default_of_zero() -> None:
    app = typer.Typer(add_completion=False)

    @app.command(epilog="Example: it x")
    def it(
        name: str,
        seed: Annotated[int, typer.Option(help="The seed.")] = 0,
        fast: Annotated[bool, typer.Option("--fast", help="Be fast.")] = False,
    ) -> None:
        """Do it."""

    parts = describe_command("it", typer.main.get_command(app))
    assert parts[:3] == ["### it", "Do it.", "```bash\nit x\n```"]
    rows = parts[3].splitlines()[2:]
    assert rows[:3] == [f"| `NAME` | {REQUIRED} |  |", "| `--seed` | `0` | The seed. |", "| `--fast` |  | Be fast. |"]


def test_the_page_of_rules_names_every_limit_fault_status_and_cost() -> None:
    text = rules_page()
    names = [*Fault, *Status, *(item.name for cls in (Limits, Cost) for item in dataclasses.fields(cls))]
    assert [name for name in names if f"| `{name}` |" not in text] == []
