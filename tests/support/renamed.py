"""Classes under the names that they could have after a refactoring."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

NAMES = ("__module__", "__qualname__", "__name__")


@contextmanager
def renamed(classes: Iterable[type]) -> Iterator[None]:
    """Give every class another module and name, and its own ones back at the end."""
    before = [(cls, {name: getattr(cls, name) for name in NAMES}) for cls in classes]
    for cls, _ in before:
        cls.__module__, cls.__qualname__, cls.__name__ = "somewhere.moved", "Moved", "Moved"
    try:
        yield
    finally:
        for cls, names in before:
            for name, value in names.items():
                setattr(cls, name, value)
