"""Plug-ins: a class by built-in name or `package.module:Class`, built from typed options."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, TypeVar

from selfcest_env.errors import ConfigError, PlugInError, did_you_mean
from selfcest_env.structure import construct

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
    """`cls(**options)` with every option checked against the annotation of its field or parameter, see `structure`.

    Raises:
        ConfigError: an unknown, missing or wrongly typed option, named as `where.option`, or what the class refused.
    """
    return construct(cls, options, place=where)


def one_of(argument: str, value: Any, known: tuple[Any, ...]) -> Any:
    """The value, if it is among those known. Raises `ConfigError` that names the argument."""
    if value not in known:
        names = [str(name) for name in known]
        raise ConfigError(
            f"{argument} is {value!r}; expected one of {', '.join(names)}.{did_you_mean(str(value), names)}"
        )
    return value
