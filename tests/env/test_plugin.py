"""Plug-ins by name, and classes built from typed options."""

import enum
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import pytest

from selfcest_env.errors import ConfigError, PlugInError, SelfcestError
from selfcest_env.plugin import Registry, build, check_kind, only_trusted
from selfcest_env.reward import make_reward
from selfcest_env.symbolic import make_task
from selfcest_env.tasks import SOURCES, make_source, source_of_config
from selfcest_env.types import Limits


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


class Source(Protocol):
    def draw(self) -> int: ...


@dataclass(frozen=True)
class Inner:
    size: int = 1

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(f"size is {self.size}; expected at least 1")


@dataclass(frozen=True)
class Sample:
    count: int
    rate: float = 0.5
    colour: Colour = Colour.RED
    pieces: tuple[int, ...] = (1,)
    mode: Literal["a", "b"] = "a"
    limit: int | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    inner: Inner = Inner()
    sources: tuple[Source, ...] = ()
    text: str = ""
    anything: Any = None

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ConfigError(f"count is {self.count}; expected a number >= 0")


class Plain:
    def __init__(self, width: int, *, name: str = "x") -> None:
        self.width, self.name = width, name


class Broken:
    def __init__(self) -> None:
        raise RuntimeError("no disk")


THINGS = Registry(
    object, "thing", "selfcest.thing", {"sample": f"{__name__}:Sample", "limits": "selfcest_env.types:Limits"}
)


def test_load_by_name_by_late_name_and_by_reference() -> None:
    assert THINGS.load("sample") is Sample
    assert THINGS.load("limits") is Limits
    assert THINGS.load("selfcest_env.types:Limits") is Limits


@pytest.mark.parametrize(
    ("reference", "error", "said"),
    [
        ("sampel", ConfigError, ["unknown thing 'sampel'", "Did you mean 'sample'?", "package.module:Class"]),
        ("selfcest_env.types:Limit", PlugInError, ["selfcest_env.types:Limit", "Did you mean 'Limits'?"]),
        ("no_such_package.x:Y", PlugInError, ["no_such_package.x:Y", "ModuleNotFoundError"]),
        ("selfcest_env.types:ROOT", PlugInError, ["is a AgentId; expected a class"]),
        (":Limits", PlugInError, ["both sides"]),
        ("selfcest_env.types:", PlugInError, ["both sides"]),
    ],
)
def test_load_says_what_is_wrong(reference: str, error: type[Exception], said: list[str]) -> None:
    with pytest.raises(error) as caught:
        THINGS.load(reference)
    assert all(words in str(caught.value) for words in said), caught.value


@pytest.mark.parametrize(
    ("reference", "options", "said"),
    [
        ("sampel", {}, "^rl.gate: unknown thing 'sampel'"),
        ("selfcest_env.types:Limit", {}, "^rl.gate: thing 'selfcest_env.types:Limit'"),
        ("sample", {"count": "x"}, "^rl.gate.options.count is 'x'"),
    ],
)
def test_messages_begin_with_the_place_in_the_config(reference: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(SelfcestError, match=said):
        THINGS.make(reference, options, where="rl.gate.options")


def test_a_task_source_is_named_by_its_place_in_the_config() -> None:
    with pytest.raises(ConfigError, match=r"^tasks\.x: unknown task source 'arithmetik'"):
        source_of_config("arithmetik", {}, "tasks.x")
    with pytest.raises(ConfigError, match=r"^tasks\.x\.options\.zzz is unknown"):
        source_of_config("arithmetic", {"zzz": 1}, "tasks.x")


def test_build_structures_what_a_config_file_can_say() -> None:
    source = type("S", (), {"draw": lambda self: 1})()
    options = {
        "count": 3,
        "rate": 1,
        "colour": "blue",
        "pieces": [5, 10],
        "mode": "b",
        "limit": 4,
        "weights": {"a": 1},
        "inner": {"size": 2},
        "sources": [source],
        "text": "t",
        "anything": [1, "x"],
    }
    built = build(Sample, options, where="here")
    assert built == Sample(3, 1.0, Colour.BLUE, (5, 10), "b", 4, {"a": 1.0}, Inner(2), (source,), "t", [1, "x"])
    assert isinstance(built.rate, float)
    assert build(Sample, {"count": 1, "colour": Colour.BLUE, "inner": Inner(7)}, where="x").inner.size == 7
    assert build(Plain, {"width": 3}, where="here").width == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"count": 1, "colur": "red"}, ["here.colur is unknown. Did you mean 'colour'? Sample has count, rate"]),
        ({}, ["here.count is missing; expected a whole number"]),
        ({"count": "3"}, ["here.count is '3'; expected a whole number"]),
        ({"count": True}, ["here.count is True; expected a whole number"]),
        ({"count": 1, "rate": "fast"}, ["here.rate is 'fast'; expected a number"]),
        ({"count": 1, "colour": "green"}, ["here.colour is 'green'; expected one of red, blue"]),
        ({"count": 1, "pieces": "510"}, ["here.pieces is '510'; expected a list"]),
        ({"count": 1, "pieces": [1, "2"]}, ["here.pieces[1] is '2'; expected a whole number"]),
        ({"count": 1, "mode": "c"}, ["here.mode is 'c'; expected one of a, b"]),
        ({"count": 1, "limit": "4"}, ["here.limit is '4'; expected a whole number, or null"]),
        ({"count": 1, "inner": {"sise": 2}}, ["here.inner.sise is unknown. Did you mean 'size'? Inner has size"]),
        ({"count": 1, "inner": {"size": 0}}, ["here.inner.size is 0; expected at least 1"]),
        ({"count": 1, "sources": ["range_sum"]}, ["here.sources[0] is 'range_sum'; expected Source"]),
        ({"count": -1}, ["here.count is -1; expected a number >= 0"]),
    ],
)
def test_build_names_the_option_and_what_was_expected(options: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        build(Sample, options, where="here")
    assert all(words in str(caught.value) for words in said), caught.value


def test_build_of_a_plain_class_names_its_parameters() -> None:
    with pytest.raises(ConfigError, match=r"here.widht is unknown. Did you mean 'width'\? Plain has width, name"):
        build(Plain, {"widht": 3}, where="here")
    with pytest.raises(ConfigError, match=r"refused its options with RuntimeError: no disk"):
        build(Broken, {}, where="here")


# What a class must be, before any object of it is made


class Shape(Protocol):
    """A kind with a member of every sort."""

    label: ClassVar[str]

    @property
    def sides(self) -> int: ...

    def area(self, scale: float) -> float: ...

    def __call__(self) -> None: ...


class Whole:
    label, sides = "square", 4

    def area(self, scale: float) -> float:
        return scale

    def __call__(self) -> None: ...


@dataclass
class Declared(Whole):
    sides: int = field(init=False)  # type: ignore[assignment]  # an annotation is enough: a constructor may set it


class NotWhole(Shape):
    """Derives from the protocol, which does nothing by itself."""


class Wrong(Whole):
    label, area = 7, 0.5  # type: ignore[assignment]


made = list[object]()


class Popen:
    """What it does, it does when it is made; one command starts with `args`."""

    def __init__(self, args: Any = None, path: Any = None) -> None:
        made.append(args)


class Painting(Popen):
    """Has the names that a kind asks for, and no methods."""

    draw = grade = start = "with a brush"


@pytest.mark.parametrize("cls", [Whole, Declared])
def test_a_class_with_all_members_is_of_the_kind(cls: type) -> None:
    check_kind(cls, Shape, "shape 'x'")


@pytest.mark.parametrize(
    ("cls", "lacks"),
    [
        (Popen, "__call__(), area(), label: str, sides; declare it on the class, as "),
        (NotWhole, "__call__(), area(), label: str, sides; "),
        (Wrong, "area(), label: str; "),
    ],
)
def test_a_class_that_lacks_members_is_named_with_them(cls: type, lacks: str) -> None:
    with pytest.raises(PlugInError) as caught:
        check_kind(cls, Shape, "shape 'x'")
    assert f"shape 'x': {cls.__name__} lacks {lacks}" in str(caught.value)
    with pytest.raises(PlugInError, match=r"shape 'x': Whole is no subclass of .*:Wrong"):
        check_kind(Whole, Wrong, "shape 'x'")


@pytest.mark.parametrize("name", ["Popen", "Painting"])
def test_nothing_is_made_of_a_class_of_another_kind(name: str) -> None:
    stranger: dict[str, Any] = {"name": f"{__name__}:{name}", "args": ["touch", "x"]}
    for build_it in (
        lambda: make_source(**stranger),
        lambda: make_source("mixture", sources=[{"name": "range_sum"}, stranger]),
        lambda: make_source("hashed_split", source=stranger, part="train"),
        lambda: make_task(stranger["name"], {"args": 1}),
        lambda: make_reward("correct", grader=stranger),
        lambda: make_reward("correct", mine=stranger),
        lambda: make_reward("correct", grader={"name": "by_source", "graders": {"math": stranger}}),
        lambda: Registry(Shape, "shape", "selfcest.shape", {}).make(stranger["name"], {}, where="here"),
    ):
        with pytest.raises((PlugInError, ConfigError), match=f"{name} lacks"):
            build_it()
    assert made == []


# Who may be imported at all


def test_where_only_some_are_trusted_no_other_module_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "outsider"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "tasks.py").write_text("class Mine:\n    def draw(self, rng): ...\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    nested = {"source": {"name": "outsider.tasks:Mine"}, "part": "train"}
    for trusted in ((), ("outside",), ("outsider.task",), ("outsider.tasks.mine",)):
        with only_trusted(trusted), pytest.raises(PlugInError, match="if you trust it, add --trust outsider.tasks"):
            make_source("hashed_split", **nested)
    assert not [name for name in sys.modules if name.startswith("outsider")]
    with only_trusted(()):
        assert SOURCES.load("quote").__name__ == "Quote"
    for trusted in (("outsider",), ("other", "outsider.tasks")):
        with only_trusted(trusted):
            make_source("hashed_split", **nested)
    make_source("hashed_split", **nested)
