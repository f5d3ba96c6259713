"""Stored names of classes and fields, for keys of results, digests and names in records.

A stored result is found again by a digest of all its inputs. This digest must not change when a class, a module or a
field is renamed, so classes declare the names that are written:

    @stored_as("TellTurns", turns="turns", extension="extension")
    @dataclass(frozen=True)
    class AddTurnLimit: ...

A renamed field keeps its stored name: `more_turns="extension"`. A class without declared names is written by its
current names.

Some declared names look like module paths. They are the texts of the first release, and need not exist as modules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

C = TypeVar("C", bound=type)

_CLASS_NAME = "__stored_name__"
_FIELD_NAMES = "__stored_field_names__"


def stored_as(name: str = "", /, **field_names: str) -> Callable[[C], C]:
    """Return a class decorator, for use above `@dataclass`, that declares stored names.

    Args:
        name: stored name of the class, if its name is written; subclasses do not inherit it.
        field_names: the stored name of each field, by the field's name. Subclasses inherit them.

    Raises:
        TypeError: a field has no stored name, or a stored name belongs to no field or to two.
    """

    def declare(cls: C) -> C:
        inherited: Mapping[str, str] = getattr(cls, _FIELD_NAMES, {})
        names = {**inherited, **field_names}
        expected = [item.name for item in fields(cls)]
        if set(names) != set(expected) or len(set(names.values())) < len(names):
            raise TypeError(
                f"{cls.__qualname__} declares the stored names {names}; expected one for each of its fields, "
                f"{', '.join(expected) or 'of which it has none'}, and no name twice"
            )
        setattr(cls, _FIELD_NAMES, names)
        setattr(cls, _CLASS_NAME, name)
        return cls

    return declare


def stored_name(cls: type) -> str:
    """Return the declared stored name of a class, else its current name."""
    return declared_name(cls) or cls.__qualname__


def declared_name(cls: type) -> str:
    """Return the stored name that a class itself declares; empty if it declares none."""
    name: str = vars(cls).get(_CLASS_NAME, "")
    return name


def stored_fields(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass instance by their stored names, in the order of the class."""
    names: Mapping[str, str] = getattr(type(value), _FIELD_NAMES, {})
    return {names.get(item.name, item.name): getattr(value, item.name) for item in fields(value)}


def to_stored(value: Any) -> Any:
    """Convert a value as `dataclasses.asdict` does, with the stored names of the fields."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: to_stored(item) for name, item in stored_fields(value).items()}
    if isinstance(value, dict):
        return {key: to_stored(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_stored(item) for item in value]
    return value


def by_field(cls: type, data: Any) -> Any:
    """Replace stored names of a class's fields by the fields' names in a stored mapping. Other keys stay.

    A value that is no mapping is returned unchanged; the caller's validation refuses it.
    """
    if not isinstance(data, Mapping):
        return data
    field_names = {stored: name for name, stored in getattr(cls, _FIELD_NAMES, {}).items()}
    return {field_names.get(key, key): item for key, item in data.items()}


def stored_text(value: Any) -> str:
    """Return the `repr` of a value, with declared classes and their fields under their stored names."""
    if vars(type(value)).get(_CLASS_NAME):
        texts = [f"{name}={stored_text(item)}" for name, item in stored_fields(value).items()]
        return f"{stored_name(type(value))}({', '.join(texts)})"
    if type(value) is tuple:
        texts = [stored_text(item) for item in value]
        return f"({', '.join(texts)}{',' * (len(texts) == 1)})"
    return repr(value)
