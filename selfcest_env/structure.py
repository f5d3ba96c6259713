"""Plain values to typed ones: the one way to check a value, and the one way to say what is wrong with it.

`structure` takes what JSON, YAML or a caller gives and makes what a type asks for: dataclasses from mappings, tuples
from lists, enums and literals from their values. Nothing else is converted: a bool is no number, "5" is no number, 2.0
is no whole number; an int where a float is asked for becomes one, and one value becomes a list where `OrOne` allows
it. Bounds stand on the field they bound,

    rank: Annotated[int, AtLeast(1)] = 16
    cap: Annotated[float, AtLeast(1), ".inf: not truncated"] = 2.0

where a text is a note for the message. They hold when a value is read and, in a dataclass that is `Checked`, however it
is made. Every message reads `place.key is VALUE; expected X`, and names the nearest key or choice for a misspelt one.
"""

from __future__ import annotations

import enum
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from numbers import Integral, Real
from typing import Annotated, Any, Literal, TypeVar

from selfcest_env.errors import ConfigError, PlugInError, SelfcestError, did_you_mean

T = TypeVar("T")
_Read = Callable[[Any], Any]


# Bounds


class Bound:
    """What a value must hold. `str` of it goes on after "expected a number"."""

    def holds(self, value: Any) -> bool:
        raise NotImplementedError


@dataclass(frozen=True)
class AtLeast(Bound):
    low: float

    def holds(self, value: Any) -> bool:
        return bool(value >= self.low)

    def __str__(self) -> str:
        return f">= {self.low}"


@dataclass(frozen=True)
class Above(Bound):
    low: float

    def holds(self, value: Any) -> bool:
        return bool(value > self.low)

    def __str__(self) -> str:
        return f"> {self.low}"


@dataclass(frozen=True)
class AtMost(Bound):
    high: float

    def holds(self, value: Any) -> bool:
        return bool(value <= self.high)

    def __str__(self) -> str:
        return f"<= {self.high}"


@dataclass(frozen=True)
class Below(Bound):
    high: float

    def holds(self, value: Any) -> bool:
        return bool(value < self.high)

    def __str__(self) -> str:
        return f"< {self.high}"


@dataclass(frozen=True)
class Between(Bound):
    low: float
    high: float

    def holds(self, value: Any) -> bool:
        return bool(self.low <= value <= self.high)

    def __str__(self) -> str:
        return f"from {self.low} to {self.high}"


@dataclass(frozen=True)
class Finite(Bound):
    def holds(self, value: Any) -> bool:
        return math.isfinite(value)

    def __str__(self) -> str:
        return "finite"


@dataclass(frozen=True, init=False)
class OneOf(Bound):
    """For choices that another table holds; those that are known where the field stands are an enum or `Literal`."""

    choices: tuple[Any, ...]

    def __init__(self, *choices: Any) -> None:
        object.__setattr__(self, "choices", choices)

    def holds(self, value: Any) -> bool:
        return value in self.choices

    def __str__(self) -> str:
        return _one_of(self.choices)


@dataclass(frozen=True)
class Printable(Bound):
    """No line break, NUL or half a surrogate, for what becomes a path or a line of a table."""

    def holds(self, value: Any) -> bool:
        return bool(value.isprintable())

    def __str__(self) -> str:
        return "of printable characters alone"


@dataclass(frozen=True)
class NotEmpty(Bound):
    def holds(self, value: Any) -> bool:
        return len(value) > 0

    def __str__(self) -> str:
        return "that is not empty"


@dataclass(frozen=True)
class Distinct(Bound):
    def holds(self, value: Any) -> bool:
        return len(set(value)) == len(value)

    def __str__(self) -> str:
        return "with each one once"


class OrOne:
    """Beside the bounds of a list that may hold one value only: `seeds: 3` is then read as `seeds: [3]`."""


Count = Annotated[int, AtLeast(1)]
Size = Annotated[int, AtLeast(0)]
Positive = Annotated[float, Above(0), Finite()]
NotNegative = Annotated[float, AtLeast(0), Finite()]
Seed = Annotated[int, AtLeast(0), Below(2**63)]
Name = Annotated[str, Printable()]
Share = Annotated[float, Between(0, 1)]


class Checked:
    """Mixin of a dataclass whose bounds, enums and literals are checked when it is made, by whoever makes it.

    Raises `ConfigError`. A `__post_init__` for what fields say only together begins with `super().__post_init__()`.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        for name, read in _bounded(typing.cast(Any, type(self))).items():
            try:
                read(getattr(self, name))
            except ValidationError as mismatch:
                owner = type(self).__qualname__.removesuffix(".Options").rpartition(".")[2]
                raise ConfigError(mismatch.at(f"{owner}.{name}")) from None


def check_order(holder: Any, low: str, high: str) -> None:
    """Raise `ConfigError` unless one field is not above another."""
    first, last = getattr(holder, low), getattr(holder, high)
    if first > last:
        raise ConfigError(
            f"{low} is {format_value(first)}, above {high} = {format_value(last)}; expected {low} <= {high}"
        )


def check_unused(holder: Any, why: str, *names: str) -> None:
    """Raise `ConfigError` for a field that differs from its default where, as `why` says, it changes nothing."""
    for item in fields(holder):
        if item.name in names and (value := getattr(holder, item.name)) != item.default:
            raise ConfigError(f"{item.name} is {format_value(value)}, which changes nothing: {why}; leave it out")


# Reading


def structure(value: Any, type_: type[T], *, place: str = "", error: type[SelfcestError] = ConfigError) -> T:
    """What `type_` asks for, made from plain values; objects that fit already are taken as they are.

    Args:
        value: None, bool, int, float, str, list and mapping, nested.
        type_: a dataclass, or any annotation made of what such values can say.
        place: what the value is called in a message.
        error: what is raised, with one line that names the key by its whole path.
    """
    made: T = _run(_reader(type_), value, place, error)
    return made


def construct(cls: type[T], options: Mapping[str, Any], *, place: str) -> T:
    """`cls(**options)`, each option checked against the annotation of its field or parameter. Raises `ConfigError`."""
    made: T = _run(_constructor(cls), options, place, ConfigError)
    return made


def to_builtins(value: Any) -> Any:
    """The inverse of `structure`: JSON's and YAML's kinds of value."""
    kind: Any = type(value)
    return value if kind in _PLAIN else _writer(kind)(value)


def register_text_type(cls: type, parse: Callable[[str], Any]) -> None:
    """Objects of this class are read by `parse` and written by `str`.

    Call it in the module that defines the class: readers and writers are kept, so one made before would not know it.
    """
    _TEXTS[cls] = parse


def format_value(value: Any) -> str:
    """A value for a message: one line, cut when long."""
    try:
        text = repr(value)
    except ValueError:  # from `int`, of more digits than Python writes
        return "a number of thousands of digits"
    text = " ".join(text.split()) if "\n" in text else text
    return text if len(text) <= 120 else f"{text[:100]}... ({len(text)} characters)"


class ValidationError(Exception):
    """A value that does not fit. The way to it is added on the way out, innermost step first."""

    def __init__(self, says: str) -> None:
        super().__init__(says)
        self.says = says
        self.path: list[str] = []

    @classmethod
    def of(cls, value: Any, expected: str, choices: Iterable[Any] = ()) -> ValidationError:
        meant = did_you_mean(value, map(str, choices)) if isinstance(value, str) else ""
        return cls(f" is {format_value(value)}; expected {expected}{meant and '.' + meant}")

    def at(self, place: str) -> str:
        text = place + "".join(reversed(self.path)) + self.says
        return "the value" + text if text.startswith(" ") else text.removeprefix(".").removeprefix(": ")


def _run(read: _Read, value: Any, place: str, error: type[SelfcestError]) -> Any:
    try:
        return read(value)
    except ValidationError as mismatch:
        raise error(mismatch.at(place)) from mismatch.__cause__


_PLAIN = frozenset[type]((bool, int, float, str, types.NoneType))
_NAMES: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
_TEXTS: dict[type, Callable[[str], Any]] = {}


def _expected(type_: Any) -> str:
    origin, args = typing.get_origin(type_), typing.get_args(type_)
    if type_ in _NAMES:
        return _NAMES[type_]
    if origin is Annotated:
        return _bound(args[0], args[1:])
    if _is_union(origin):
        members = " or ".join(_expected(member) for member in args if member is not types.NoneType)
        return members + (", or null" if types.NoneType in args else "")
    if origin is Literal or _is_enum(type_):
        return _one_of(args or [member.value for member in type_])
    if _is(origin, Sequence):
        return "a list" if origin is not tuple or Ellipsis in args else f"a list of {len(args)}"
    if _is(origin, Mapping) or is_dataclass(type_):
        return "a mapping"
    return type_.__name__ if isinstance(type_, type) else str(type_).replace("typing.", "")


def _bound(base: Any, metadata: Sequence[Any]) -> str:
    bounds = [bound for bound in metadata if isinstance(bound, Bound)]
    words = " and ".join(str(bound) for bound in bounds if not isinstance(bound, Finite))
    what = _expected(base).replace("a ", "a finite ", 1) if Finite() in bounds else _expected(base)
    if any(isinstance(bound, OneOf) for bound in bounds):
        what = ""  # the choices say it all
    notes = [f"({note})" for note in metadata if isinstance(note, str)]
    return " ".join(filter(None, (what, words, *notes)))


def _base(type_: Any) -> Any:
    return typing.get_args(type_)[0] if typing.get_origin(type_) is Annotated else type_


def _one_of(choices: Iterable[Any]) -> str:
    return "one of " + ", ".join(map(str, choices))


def _reader(type_: Any, expected: str = "") -> _Read:
    """A function that makes a value of this type from a plain one, or raises `ValidationError`."""
    origin, args, expected = typing.get_origin(type_), typing.get_args(type_), expected or _expected(type_)
    if type_ is Any or type_ is object:
        return lambda value: value
    if origin is Annotated:
        return _annotated(args[0], args[1:], expected)
    if type_ in _SCALARS:
        return _SCALARS[type_](expected)
    if _is_union(origin):
        return _union(args, expected)
    if origin is Literal or _is_enum(type_):
        return _choice(args or tuple(type_), expected)
    if _is(origin, Sequence) and (origin is not tuple or Ellipsis in args):
        return _sequence(args[0], list if origin is list else tuple, expected)
    if origin is tuple:
        return _fixed(args, expected)
    if _is(origin, Mapping):
        return _mapping(args[0], args[1], expected)
    if type_ in _TEXTS:
        return _text(type_, expected)
    if isinstance(type_, type) and is_dataclass(type_):
        return _dataclass(type_, expected)
    return _object(type_, expected)


def _is_union(origin: Any) -> bool:
    return origin is typing.Union or origin is types.UnionType


def _is_enum(type_: Any) -> bool:
    return isinstance(type_, type) and issubclass(type_, enum.Enum)


def _is(origin: Any, kind: type) -> bool:
    return isinstance(origin, type) and issubclass(origin, kind)


def _bool(expected: str) -> _Read:
    def read(value: Any) -> bool:
        if type(value) is not bool:
            raise ValidationError.of(value, expected)
        return value

    return read


def _int(expected: str) -> _Read:
    def read(value: Any) -> int:
        if type(value) is int:
            return value
        if isinstance(value, bool) or not isinstance(value, Integral):  # which those of NumPy are
            raise ValidationError.of(value, expected)
        return int(value)

    return read


def _float(expected: str) -> _Read:
    def read(value: Any) -> float:
        if type(value) is float:
            return value
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ValidationError.of(value, expected)
        try:
            return float(value)
        except OverflowError:
            raise ValidationError.of(value, expected) from None

    return read


def _str(expected: str) -> _Read:
    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise ValidationError.of(value, expected)
        return str.__str__(value)

    return read


_SCALARS: dict[Any, Callable[[str], _Read]] = {bool: _bool, int: _int, float: _float, str: _str}


def _annotated(base: Any, metadata: Sequence[Any], expected: str) -> _Read:
    read_base = _reader(base, expected)
    bounds = [bound for bound in metadata if isinstance(bound, Bound)]
    choices = [choice for bound in bounds if isinstance(bound, OneOf) for choice in bound.choices]

    def read(value: Any) -> Any:
        made = read_base(value)
        if not all(bound.holds(made) for bound in bounds):
            raise ValidationError.of(value, expected, choices)
        return made

    return _or_one(read, expected) if any(isinstance(item, OrOne) for item in metadata) else read


def _or_one(read_list: _Read, expected: str) -> _Read:
    def read(value: Any) -> Any:
        if value is None or isinstance(value, (list, tuple, Mapping)):
            return read_list(value)
        try:
            return read_list([value])
        except ValidationError as mismatch:
            if mismatch.path:  # the value itself is wrong, and the message must not say `[0]`
                raise ValidationError(mismatch.says) from None
            raise ValidationError.of(value, expected) from None

    return read


def _union(members: Sequence[Any], expected: str) -> _Read:
    # `float` takes whole numbers too, so it comes last: 1 stays 1 in `int | float`.
    types_ = sorted((member for member in members if member is not types.NoneType), key=lambda member: member is float)
    readers = [_reader(member, expected if len(types_) == 1 else "") for member in types_]
    as_it_is = _PLAIN.intersection(members)

    def read(value: Any) -> Any:
        if type(value) in as_it_is:
            return value
        mismatches = []
        for read_member in readers:
            try:
                return read_member(value)
            except ValidationError as mismatch:
                mismatches.append(mismatch)
        for found in mismatches:
            if found.path or len(mismatches) == 1:  # it got inside the value, or there is no other
                raise found
        raise ValidationError.of(value, expected)

    return read


def _choice(choices: Sequence[Any], expected: str) -> _Read:
    values = [choice.value if isinstance(choice, enum.Enum) else choice for choice in choices]
    # By type too: True equals 1, and a member of a `StrEnum` its value.
    known = {(type(value), value): choice for value, choice in zip([*values, *choices], [*choices] * 2, strict=True)}

    def read(value: Any) -> Any:
        try:
            return known[type(value), value]
        except (KeyError, TypeError):
            raise ValidationError.of(value, expected, values) from None

    return read


def _sequence(item: Any, make: Callable[[Iterable[Any]], Any], expected: str) -> _Read:
    read_item = _reader(item)
    as_it_is = _PLAIN.intersection([item])

    def read(value: Any) -> Any:
        if not isinstance(value, (list, tuple)):  # a text is a sequence too
            raise ValidationError.of(value, expected)
        if as_it_is.issuperset(map(type, value)):  # thousands of token ids at a time
            return make(value)
        return make([_at(f"[{i}]", read_item, item) for i, item in enumerate(value)])

    return read


def _fixed(items: Sequence[Any], expected: str) -> _Read:
    readers = [_reader(item) for item in items]

    def read(value: Any) -> Any:
        if not isinstance(value, (list, tuple)) or len(value) != len(readers):
            raise ValidationError.of(value, expected)
        return tuple(_at(f"[{i}]", readers[i], item) for i, item in enumerate(value))

    return read


def _mapping(key_type: Any, item_type: Any, expected: str) -> _Read:
    read_key, read_item = _reader(key_type), _reader(item_type)
    keys_as_they_are, as_it_is = _PLAIN.intersection([key_type]), _PLAIN.intersection([item_type])

    def key_of(key: Any) -> Any:
        if key_type is int and isinstance(key, str) and key.isdecimal() and len(key) < 20 and str(int(key)) == key:
            return int(key)  # JSON writes every key as a text
        try:
            return read_key(key)
        except ValidationError as mismatch:
            quotes = "; write it in quotes" if _base(key_type) is str and not isinstance(key, str) else ""
            raise ValidationError(f" has a key that{mismatch.says}{quotes}") from None

    def read(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise ValidationError.of(value, expected)
        if keys_as_they_are.issuperset(map(type, value)) and as_it_is.issuperset(map(type, value.values())):
            return dict(value)
        return {key_of(key): _at(_step(key), read_item, item) for key, item in value.items()}

    return read


def _text(cls: type, expected: str) -> _Read:
    def read(value: Any) -> Any:
        if isinstance(value, cls):
            return value
        if not isinstance(value, str):
            raise ValidationError.of(value, expected)
        try:
            return _TEXTS[cls](value)
        except ValueError as error:
            raise ValidationError(f": {error}") from error

    return read


def _dataclass(cls: type, expected: str) -> _Read:
    make = _constructor(cls, expected)
    return lambda value: value if isinstance(value, cls) else make(value)


def _object(type_: Any, expected: str) -> _Read:
    """Types that no file can write: taken as they are, if they fit as far as can be told."""
    checkable = isinstance(type_, type) and not getattr(type_, "_is_protocol", False)

    def read(value: Any) -> Any:
        if not isinstance(value, type_) if checkable else isinstance(value, (*_PLAIN, Mapping, list)):
            raise ValidationError.of(value, expected)
        return value

    return read


def _constructor(cls: type, expected: str = "a mapping") -> _Read:
    def read(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise ValidationError.of(value, expected)
        known = _parameters(cls)
        made = {}
        for key, item in value.items():
            read_item = known.readers.get(key, known.other)
            if read_item is None:
                names = ", ".join(known.readers)
                meant = did_you_mean(str(key), known.readers)
                raise ValidationError(f"{_step(key)} is unknown; {cls.__name__} has {names or 'no options'}.{meant}")
            try:
                made[key] = read_item(item)
            except ValidationError as mismatch:
                mismatch.path.append(f".{key}")
                raise
        for name, text in known.required.items():
            if name not in made:
                raise ValidationError(f".{name} is missing; expected {text}")
        try:
            return cls(**made)
        except SelfcestError as error:
            of_field = str(error).partition(" ")[0] in known.readers
            raise ValidationError(f"{'.' if of_field else ': '}{error}") from error
        except Exception as error:
            raise ValidationError(
                f": {cls.__name__} refused its options with {type(error).__name__}: {error}"
            ) from error

    return read


@dataclass(frozen=True)
class _Parameters:
    """What a class takes: readers by name, one for other names if it takes any, what it expects of those it needs."""

    readers: Mapping[str, _Read]
    other: _Read | None
    required: Mapping[str, str]


@cache
def _parameters(cls: type) -> _Parameters:
    options: Any = getattr(cls, "Options", None)  # see `plugin.Configured`
    described: type = options if isinstance(options, type) and is_dataclass(options) else cls
    hints = _hints(described)
    readers, required, other = {}, {}, None
    for name, parameter in inspect.signature(described).parameters.items():
        type_ = hints.get(name, Any)
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            other = _reader(Any)
        elif parameter.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
            readers[name] = _reader(type_)
            if parameter.default is inspect.Parameter.empty:
                required[name] = _expected(type_)
    return _Parameters(readers, other, required)


@cache
def _bounded(cls: Any) -> dict[str, _Read]:
    """Readers of the fields that do not take every value of their type."""
    hints = _hints(cls)
    return {item.name: _reader(hints[item.name]) for item in fields(cls) if _is_bounded(hints[item.name])}


def _is_bounded(type_: Any) -> bool:
    bounded = isinstance(type_, Bound) or _is_enum(type_) or typing.get_origin(type_) is Literal
    return bounded or any(map(_is_bounded, typing.get_args(type_)))


@cache
def _writer(kind: type) -> Callable[[Any], Any]:
    if kind in _TEXTS:
        return str
    if issubclass(kind, enum.Enum):
        return lambda member: member.value
    if is_dataclass(kind):
        names = [item.name for item in fields(kind) if item.init]
        return lambda value: {name: to_builtins(getattr(value, name)) for name in names}
    if issubclass(kind, Mapping):
        return lambda value: {to_builtins(key): to_builtins(item) for key, item in value.items()}
    if issubclass(kind, (list, tuple)):
        return lambda value: list(value) if _PLAIN.issuperset(map(type, value)) else list(map(to_builtins, value))
    return lambda value: value


def _hints(cls: type) -> dict[str, Any]:
    try:
        holder = cls if is_dataclass(cls) else inspect.getattr_static(cls, "__init__")
        return typing.get_type_hints(holder, include_extras=True)
    except Exception as error:
        raise PlugInError(f"the annotations of {cls.__name__} cannot be read: {error}") from error


def _at(step: str, read: _Read, value: Any) -> Any:
    try:
        return read(value)
    except ValidationError as mismatch:
        mismatch.path.append(step)
        raise


def _step(key: Any) -> str:
    text = str(key)
    return f".{text}" if text.isprintable() and len(text) <= 80 else f"[{format_value(key)}]"
