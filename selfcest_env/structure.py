"""The validator of the project: it converts plain values to typed ones, and writes all validation messages.

`structure` converts values of JSON, YAML or a caller to a type: mappings to dataclasses, lists to tuples, and values to
enums and literals. Where the type is float, an int becomes a float, and `OrOne` lets one value become a list. Nothing
else is converted: a bool is no number, "5" is no number, and 2.0 is no whole number. Bounds stand in the annotation of
their field,

    rank: Annotated[int, AtLeast(1)] = 16
    cap: Annotated[float, AtLeast(1), ".inf: not truncated"] = 2.0

where a text is a note for the message. `structure` checks bounds, and a `Checked` dataclass checks them whenever an
instance is made. Every message reads `place.key is VALUE; expected X`, with the nearest key or choice for a misspelt
one.
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

from selfcest_env.errors import ConfigError, PlugInError, SelfcestError, did_you_mean, refuse_name

T = TypeVar("T")
_Read = Callable[[Any], Any]


# Bounds


class Bound:
    """A condition on a value. Its `str` completes a message that begins with "expected a number"."""

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
    """One of several computed values, for example the keys of a table. For fixed values use an enum or a `Literal`."""

    choices: tuple[Any, ...]

    def __init__(self, *choices: Any) -> None:
        object.__setattr__(self, "choices", choices)

    def holds(self, value: Any) -> bool:
        return value in self.choices

    def __str__(self) -> str:
        return _one_of(self.choices)


@dataclass(frozen=True)
class Printable(Bound):
    """Text without line breaks, NUL or lone surrogates, as paths and lines of a table need it."""

    def holds(self, value: Any) -> bool:
        return bool(value.isprintable())

    def __str__(self) -> str:
        return "of printable characters only"


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
    """Marks a list that may be written as one value: `seeds: 3` is read as `seeds: [3]`."""


Count = Annotated[int, AtLeast(1)]
Size = Annotated[int, AtLeast(0)]
Number = Annotated[float, Finite()]
Positive = Annotated[float, Above(0), Finite()]
NotNegative = Annotated[float, AtLeast(0), Finite()]
Seed = Annotated[int, AtLeast(0), Below(2**63)]
Name = Annotated[str, Printable()]
Share = Annotated[float, Between(0, 1)]


class Checked:
    """Mixin of a dataclass that checks the bounds, enums and literals of its fields whenever an instance is made.

    A subclass checks relations between fields in `__post_init__`, after `super().__post_init__()`.

    Raises:
        ConfigError: a value does not fit.
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
    first = getattr(holder, low)
    last = getattr(holder, high)
    if first > last:
        raise ConfigError(
            f"{low} is {format_value(first)}, above {high} = {format_value(last)}; expected {low} <= {high}"
        )


def check_unused(holder: Any, why: str, *names: str) -> None:
    """Raise `ConfigError` for a field that differs from its default although it has no effect; `why` is the reason."""
    for item in fields(holder):
        value = getattr(holder, item.name)
        if item.name in names and value != item.default:
            raise ConfigError(f"{item.name} is {format_value(value)}, which changes nothing: {why}; leave it out")


# Reading


def structure(value: Any, type_: type[T], *, place: str = "", error: type[SelfcestError] = ConfigError) -> T:
    """Convert a plain value to `type_`. An object that has the type already is returned unchanged.

    Args:
        value: None, bool, int, float, str, list and mapping, nested.
        type_: a dataclass, or any annotation that such values can express.
        place: name of the value, for messages.
        error: class of the raised error. Its message is one line with the whole path of the key.
    """
    kind: Any = type_  # may be an annotation that is no class
    read = _class_reader(kind) if isinstance(kind, type) else _reader(kind)
    typed: T = _run(read, value, place, error)
    return typed


def construct(cls: type[T], options: Mapping[str, Any], *, place: str) -> T:
    """Return `cls(**options)`. Each option is checked against its annotation. Raises `ConfigError`."""
    instance: T = _run(_constructor(cls), options, place, ConfigError)
    return instance


def to_builtins(value: Any) -> Any:
    """Convert a typed value to the kinds of value that JSON and YAML have; the inverse of `structure`."""
    kind: Any = type(value)
    return value if kind in _PLAIN else _writer(kind)(value)


def register_text_type(cls: type, parse: Callable[[str], Any]) -> None:
    """Register a class whose objects are read by `parse` and written by `str`.

    Call this in the module that defines the class, because a reader that is cached before the call lacks the entry.
    """
    _TEXTS[cls] = parse


def format_value(value: Any) -> str:
    """Format a value for a message: on one line, cut after 100 characters if it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to write an `int` of thousands of digits
        return "a number of thousands of digits"
    text = " ".join(text.split()) if "\n" in text else text
    return text if len(text) <= 120 else f"{text[:100]}... ({len(text)} characters)"


class ValidationError(Exception):
    """A value that does not fit its type.

    Attributes:
        problem: the message after the name of the value.
        path: keys and indices that lead to the value, innermost first. Callers append theirs.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path: list[str] = []

    @classmethod
    def of(cls, value: Any, expected: str, choices: Iterable[Any] = ()) -> ValidationError:
        problem = f" is {format_value(value)}"
        if isinstance(value, str):
            return cls(refuse_name(problem, value, map(str, choices), expected))
        return cls(f"{problem}; expected {expected}")

    def at(self, place: str) -> str:
        """Return the whole message, for a value that is or lies in `place`."""
        text = place + "".join(reversed(self.path)) + self.problem
        return "the value" + text if text.startswith(" ") else text.removeprefix(".").removeprefix(": ")


def _run(read: _Read, value: Any, place: str, error: type[SelfcestError]) -> Any:
    try:
        return read(value)
    except ValidationError as mismatch:
        raise error(mismatch.at(place)) from mismatch.__cause__


_PLAIN = frozenset[type]((bool, int, float, str, types.NoneType))
_NAMES: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
_TEXTS: dict[type, Callable[[str], Any]] = {}


def describe_type(type_: Any) -> str:
    """Return a description of a type, for messages."""
    origin = typing.get_origin(type_)
    args = typing.get_args(type_)
    if type_ in _NAMES:
        return _NAMES[type_]
    if origin is Annotated:
        return _bound(args[0], args[1:])
    if _is_union(origin):
        members = " or ".join(describe_type(member) for member in args if member is not types.NoneType)
        return members + (", or null" if types.NoneType in args else "")
    if origin is Literal or _is_enum(type_):
        return _one_of(args or [member.value for member in type_])
    if _is(origin, Sequence):
        return "a list" if origin is not tuple or Ellipsis in args else f"a list of {len(args)}"
    if _is(origin, Mapping) or is_dataclass(type_):
        return "a mapping"
    return type_.__name__ if isinstance(type_, type) else str(type_).replace("typing.", "")


def _bound(base: Any, metadata: Sequence[Any]) -> str:
    """Return a description of an annotated type with its bounds and notes."""
    bounds = [bound for bound in metadata if isinstance(bound, Bound)]
    words = " and ".join(str(bound) for bound in bounds if not isinstance(bound, Finite))
    what = describe_type(base).replace("a ", "a finite ", 1) if Finite() in bounds else describe_type(base)
    if any(isinstance(bound, OneOf) for bound in bounds):
        what = ""  # the list of choices makes "a text" redundant
    notes = [f"({note})" for note in metadata if isinstance(note, str)]
    return " ".join(filter(None, (what, words, *notes)))


def _base(type_: Any) -> Any:
    return typing.get_args(type_)[0] if typing.get_origin(type_) is Annotated else type_


def _one_of(choices: Iterable[Any]) -> str:
    return "one of " + ", ".join(map(str, choices))


def _reader(type_: Any, expected: str = "") -> _Read:
    """Return a function that converts a plain value to this type or raises `ValidationError`."""
    origin = typing.get_origin(type_)
    args = typing.get_args(type_)
    expected = expected or describe_type(type_)
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


# Records are read one by one, and their readers are the same.
_class_reader = cache(_reader)


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
        if isinstance(value, bool) or not isinstance(value, Integral):  # NumPy integers are
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
    choices: list[Any] = []
    for bound in bounds:
        if isinstance(bound, OneOf):
            choices += bound.choices

    def read(value: Any) -> Any:
        typed = read_base(value)
        for bound in bounds:
            if not bound.holds(typed):
                raise ValidationError.of(value, expected, choices)
        return typed

    return _or_one(read, expected) if any(isinstance(item, OrOne) for item in metadata) else read


def _or_one(read_list: _Read, expected: str) -> _Read:
    def read(value: Any) -> Any:
        if value is None or isinstance(value, (list, tuple, Mapping)):
            return read_list(value)
        try:
            return read_list([value])
        except ValidationError as mismatch:
            if mismatch.path:  # the value is at fault; without the path, the message does not say `[0]`
                raise ValidationError(mismatch.problem) from None
            raise ValidationError.of(value, expected) from None

    return read


def _union(members: Sequence[Any], expected: str) -> _Read:
    # `float` comes last, because it accepts whole numbers too: in `int | float`, 1 stays an int.
    types_ = sorted((member for member in members if member is not types.NoneType), key=lambda member: member is float)
    readers = [_reader(member, expected if len(types_) == 1 else "") for member in types_]
    unchanged_types = _PLAIN.intersection(members)

    def read(value: Any) -> Any:
        if type(value) in unchanged_types:
            return value
        mismatches = []
        for read_member in readers:
            try:
                return read_member(value)
            except ValidationError as mismatch:
                mismatches.append(mismatch)
        for candidate in mismatches:
            # A member that failed inside the value, or that refused its fields, is the intended one, so its message is
            # the most precise.
            if candidate.path or candidate.problem.startswith((".", ":")) or len(mismatches) == 1:
                raise candidate
        raise ValidationError.of(value, expected)

    return read


def _choice(choices: Sequence[Any], expected: str) -> _Read:
    values = [choice.value if isinstance(choice, enum.Enum) else choice for choice in choices]
    # The type is part of the key, because True equals 1, and a member of a `StrEnum` equals its value.
    known = {(type(value), value): choice for value, choice in zip(values, choices, strict=True)}
    known |= {(type(choice), choice): choice for choice in choices}

    def read(value: Any) -> Any:
        try:
            return known[type(value), value]
        except (KeyError, TypeError):
            raise ValidationError.of(value, expected, values) from None

    return read


def _sequence(item: Any, make: Callable[[Iterable[Any]], Any], expected: str) -> _Read:
    read_item = _reader(item)
    unchanged_types = _PLAIN.intersection([item])

    def read(value: Any) -> Any:
        if not isinstance(value, (list, tuple)):  # a text is a sequence too
            raise ValidationError.of(value, expected)
        if unchanged_types.issuperset(map(type, value)):  # a fast path for thousands of token ids
            return make(value)
        try:
            return make(list(map(read_item, value)))
        except ValidationError:  # read again, to find which item is wrong
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
    read_key = _reader(key_type)
    read_item = _reader(item_type)
    unchanged_keys = _PLAIN.intersection([key_type])
    unchanged_items = _PLAIN.intersection([item_type])

    def convert_key(key: Any) -> Any:
        if key_type is int and isinstance(key, str) and key.isdecimal() and len(key) < 20 and str(int(key)) == key:
            return int(key)  # JSON writes every key as a string
        try:
            return read_key(key)
        except ValidationError as mismatch:
            quotes = "; write it in quotes" if _base(key_type) is str and not isinstance(key, str) else ""
            raise ValidationError(f" has a key that{mismatch.problem}{quotes}") from None

    def read(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise ValidationError.of(value, expected)
        if unchanged_keys.issuperset(map(type, value)) and unchanged_items.issuperset(map(type, value.values())):
            return dict(value)
        return {convert_key(key): _at(_step(key), read_item, item) for key, item in value.items()}

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
    """Return a reader for a type that no file can express. It accepts every object that may have the type."""
    # A protocol does not allow `isinstance` in general, so only plain values are refused for it.
    checkable = isinstance(type_, type) and not getattr(type_, "_is_protocol", False)

    def read(value: Any) -> Any:
        if not isinstance(value, type_) if checkable else isinstance(value, (*_PLAIN, Mapping, list)):
            raise ValidationError.of(value, expected)
        return value

    return read


def _constructor(cls: type, expected: str = "a mapping") -> _Read:
    def read(value: Any) -> Any:
        if not isinstance(value, (dict, Mapping)):  # `isinstance` with `dict` is several times faster
            raise ValidationError.of(value, expected)
        known = _parameters(cls)
        arguments = {}
        for key, item in value.items():
            if type(item) in known.unchanged_types.get(key, ()):  # most fields of a record
                arguments[key] = item
                continue
            read_item = known.readers.get(key, known.other)
            if read_item is None:
                names = ", ".join(known.readers) or "no options"
                hint = did_you_mean(str(key), known.readers)
                end = f".{hint}" if hint else ";"
                raise ValidationError(f"{_step(key)} is unknown{end} {cls.__name__} has {names}")
            try:
                arguments[key] = read_item(item)
            except ValidationError as mismatch:
                mismatch.path.append(f".{key}")
                raise
        if not known.required.keys() <= arguments.keys():
            name, text = next(item for item in known.required.items() if item[0] not in arguments)
            raise ValidationError(f".{name} is missing; expected {text}")
        try:
            return cls(**arguments)
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
    """The parameters of a class.

    Attributes:
        readers: reader of each parameter by name.
        unchanged_types: types of the plain values that a reader returns unchanged, by the name of its parameter.
        other: reader of further keyword arguments; `None` if the class takes none.
        required: description of each parameter without a default, by name.
    """

    readers: Mapping[str, _Read]
    unchanged_types: Mapping[str, frozenset[type]]
    other: _Read | None
    required: Mapping[str, str]


@cache
def _parameters(cls: type) -> _Parameters:
    options: Any = getattr(cls, "Options", None)  # see `plugin.Configured`
    described: type = options if isinstance(options, type) and is_dataclass(options) else cls
    hints = _hints(described)
    readers: dict[str, _Read] = {}
    unchanged_types: dict[str, frozenset[type]] = {}
    required: dict[str, str] = {}
    other: _Read | None = None
    for name, parameter in inspect.signature(described).parameters.items():
        type_ = hints.get(name, Any)
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            other = _reader(Any)
        elif parameter.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
            readers[name] = _reader(type_)
            unchanged_types[name] = _unchanged_types(type_)
            if parameter.default is inspect.Parameter.empty:
                required[name] = describe_type(type_)
    return _Parameters(readers, unchanged_types, other, required)


def _unchanged_types(type_: Any) -> frozenset[type]:
    """Return the types of plain values that are values of a type as they are."""
    members = typing.get_args(type_) if _is_union(typing.get_origin(type_)) else [type_]
    return _PLAIN.intersection(members)


@cache
def _bounded(cls: Any) -> dict[str, _Read]:
    """Return readers of the fields with bounds, enums or literals, which refuse some values of their type."""
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
