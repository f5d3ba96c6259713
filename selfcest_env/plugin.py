"""Plug-ins: a class by built-in name or `package.module:Class`, built from typed options."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, TypeVar

import cattrs

from selfcest_env.errors import ConfigError, PlugInError, did_you_mean

T = TypeVar("T")


@dataclass(frozen=True)
class PlugIn:
    """Something pluggable: a built-in name or `package.module:Class`, and its constructor's options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


def load(reference: str, builtins: Mapping[str, str | type], *, what: str) -> type:
    """The class that `reference` names.

    Args:
        reference: a key of `builtins`, or `package.module:Class`.
        builtins: built-in names; a value is the class, or its own `package.module:Class` so that it loads late.
        what: what is being looked for, for the message: "task source", "grader".

    Raises:
        ConfigError: no such built-in name. `PlugInError`: the reference leads to no class.
    """
    found = builtins.get(reference, reference)
    if isinstance(found, type):
        return found
    module_name, colon, class_name = found.partition(":")
    if not colon:
        raise ConfigError(
            f"unknown {what} {reference!r}; expected one of {', '.join(sorted(builtins))}, or 'package.module:Class'."
            f"{did_you_mean(reference, builtins)}"
        )
    if not module_name or not class_name:
        raise PlugInError(f"{what} {reference!r}: expected 'package.module:Class' with both sides filled in")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise PlugInError(
            f"{what} {reference!r}: importing {module_name!r} failed with {type(error).__name__}: {error}; "
            "check the spelling and that the package is installed"
        ) from error
    cls = getattr(module, class_name, None)
    if cls is None:
        raise PlugInError(
            f"{what} {reference!r}: {module_name!r} has no {class_name!r}.{did_you_mean(class_name, dir(module))}"
        )
    if not isinstance(cls, type):
        raise PlugInError(f"{what} {reference!r} is a {type(cls).__name__}; expected a class")
    return cls


def with_entry_points(builtins: Mapping[str, str], group: str) -> dict[str, str]:
    """References by name: built-in ones and those that installed packages declare in an entry point group.

    Nothing is imported. Raises `PlugInError` if two packages claim one name.
    """
    found = dict(builtins)
    for entry in entry_points(group=group):
        reference = f"{entry.module}:{entry.attr}"
        if found.setdefault(entry.name, reference) != reference:
            owner = entry.dist.name if entry.dist is not None else "a package"
            raise PlugInError(
                f"the entry point '{entry.name}' = {entry.value} of {owner} in the group {group} clashes with "
                f"{found[entry.name]}; rename it there, or uninstall {owner}"
            )
    return found


def build(cls: type[T], options: Mapping[str, Any], *, where: str) -> T:
    """`cls(**options)` with every option checked against the annotation of its field or parameter.

    A list becomes a tuple where a tuple is asked for, a string its enum, a mapping its dataclass; nothing else is
    converted ("5" is no number). Values of other types, such as an object built before, pass unchecked if they fit.

    Raises:
        ConfigError: an unknown, missing or wrongly typed option, named as `where.option`, or what the class refused.
    """
    known, open_ended = _parameters(cls, where)
    for key in options:
        if key not in known and not open_ended:
            raise ConfigError(
                f"{where}: {cls.__name__} has no option {key!r}; known: {', '.join(known) or 'none'}."
                f"{did_you_mean(key, known)}"
            )
    missing = [key for key, (_, required) in known.items() if required and key not in options]
    if missing:
        raise ConfigError(f"{where}: {cls.__name__} needs {', '.join(missing)}; add it to the options")
    values = {key: _typed(value, known[key][0] if key in known else Any, where, key) for key, value in options.items()}
    try:
        return cls(**values)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{where}: {cls.__name__} refused its options with {cause}") from error


def one_of(argument: str, value: Any, known: tuple[Any, ...]) -> Any:
    """The value, if it is among those known. Raises `ConfigError` that names the argument."""
    if value not in known:
        names = [str(name) for name in known]
        raise ConfigError(
            f"{argument} is {value!r}; expected one of {', '.join(names)}.{did_you_mean(str(value), names)}"
        )
    return value


def _parameters(cls: type, where: str) -> tuple[dict[str, tuple[Any, bool]], bool]:
    """Every option with (its type, whether it is required), and whether others are accepted too."""
    try:
        hints = typing.get_type_hints(cls if dataclasses.is_dataclass(cls) else inspect.getattr_static(cls, "__init__"))
    except Exception as error:
        raise PlugInError(f"{where}: the annotations of {cls.__name__} cannot be read: {error}") from error
    known: dict[str, tuple[Any, bool]] = {}
    open_ended = False
    for name, parameter in inspect.signature(cls).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            open_ended = True
        elif parameter.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
            known[name] = (hints.get(name, Any), parameter.default is inspect.Parameter.empty)
    return known, open_ended


def _typed(value: Any, type_: Any, where: str, key: str) -> Any:
    if dataclasses.is_dataclass(type_) and isinstance(type_, type) and isinstance(value, type_):
        return value
    try:
        return _converter.structure(value, type_)
    except Exception as error:
        detail = ""
        if not _is_plain(type_):
            detail = " (" + "; ".join(cattrs.transform_error(error, format_exception=_cause)) + ")"
        raise ConfigError(f"{where}.{key} is {value!r}; expected {_describe(type_)}{detail}") from error


def _cause(error: BaseException, type_: type | None) -> str:
    """What a nested dataclass said of its own values is said again; cattrs would say "invalid value"."""
    return str(error) if isinstance(error, ConfigError) else cattrs.v.format_exception(error, type_)


def _describe(type_: Any) -> str:
    if typing.get_origin(type_) is typing.Literal:
        return "one of " + ", ".join(repr(choice) for choice in typing.get_args(type_))
    if isinstance(type_, type) and hasattr(type_, "__members__"):
        return "one of " + ", ".join(repr(member.value) for member in type_)  # type: ignore[attr-defined]
    if isinstance(type_, type) and not typing.get_args(type_):
        return type_.__name__
    return str(type_).replace("typing.", "")


_PLAIN = (bool, int, float, str)


def _is_plain(type_: Any) -> bool:
    return type_ in _PLAIN or typing.get_origin(type_) is typing.Literal


def _structure_plain(value: Any, type_: Any) -> Any:
    if issubclass(type_, enum.Enum):  # a StrEnum is dispatched as a str
        return type_(value)
    allowed = (int, float) if type_ is float else (type_,)
    if not isinstance(value, allowed) or (isinstance(value, bool) and type_ is not bool):
        raise TypeError(f"{value!r} is no {type_.__name__}")
    return float(value) if type_ is float else value


def _structure_union(value: Any, type_: Any) -> Any:
    """The first member that takes the value as it is; `int` before `float`, so that 1 stays 1 in `int | float`."""
    for member in typing.get_args(type_):
        if member is type(None):
            if value is None:
                return None
            continue
        try:
            return _converter.structure(value, member)
        except Exception:
            continue
    raise TypeError(f"{value!r} is none of {type_}")


def _structure_sequence(value: Any, type_: Any) -> Any:
    # Without this a string would be taken for a sequence of letters.
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{value!r} is no list")
    args = typing.get_args(type_)
    if typing.get_origin(type_) is tuple and not (len(args) == 2 and args[1] is Ellipsis):
        if len(args) != len(value):
            raise TypeError(f"{value!r} has {len(value)} items; expected {len(args)}")
        return tuple(_converter.structure(item, arg) for item, arg in zip(value, args, strict=True))
    items = [_converter.structure(item, args[0]) for item in value]
    return items if typing.get_origin(type_) is list else tuple(items)


def _structure_object(value: Any, type_: Any) -> Any:
    """Types that no config file can write: taken as they are, if they fit as far as can be told."""
    checkable = isinstance(type_, type) and not getattr(type_, "_is_protocol", False)
    if (checkable and not isinstance(value, type_)) or (not checkable and isinstance(value, (*_PLAIN, Mapping, list))):
        raise TypeError(f"{value!r} is no {type_}")
    return value


def _is_sequence(type_: Any) -> bool:
    origin = typing.get_origin(type_)
    return isinstance(origin, type) and origin is not dict and issubclass(origin, typing.Sequence)


def _is_union(type_: Any) -> bool:
    origin: Any = typing.get_origin(type_)
    return origin is typing.Union or origin is types.UnionType


def _is_object(type_: Any) -> bool:
    if getattr(type_, "_is_protocol", False):
        return True
    if not isinstance(type_, type) or typing.get_origin(type_) is not None:
        return False
    return not (type_ in _PLAIN or dataclasses.is_dataclass(type_) or hasattr(type_, "__members__"))


_converter = cattrs.Converter(forbid_extra_keys=True)
_converter.register_structure_hook_func(_is_object, _structure_object)
_converter.register_structure_hook_func(_is_sequence, _structure_sequence)
_converter.register_structure_hook_func(_is_union, _structure_union)
for _type in _PLAIN:
    _converter.register_structure_hook(_type, _structure_plain)
_converter.register_structure_hook_func(lambda type_: type_ is Any, lambda value, _: value)
