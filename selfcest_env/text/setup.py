"""What the text environment is built from: names and options become objects, or an error that says what to write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from selfcest_env.errors import ConfigError
from selfcest_env.plugin import one_of
from selfcest_env.tasks import TaskSource, make_source
from selfcest_env.text.counters import ByteCounter, WordCounter
from selfcest_env.types import Task, TokenCounter

COUNTERS: dict[str, type[TokenCounter]] = {"words": WordCounter, "bytes": ByteCounter}


def task_option(options: Mapping[str, Any]) -> Task | None:
    unknown = set(options) - {"task", "options"}  # PettingZoo's own tests pass {"options": 1}
    if unknown:
        raise ConfigError(f"reset options {sorted(unknown)} are unknown; expected 'task' alone")
    task = options.get("task")
    if task is not None and not isinstance(task, Task):
        raise ConfigError(f"reset option 'task' is a {type(task).__name__}; expected a selfcest_env.types.Task")
    return task


def built_in(argument: str, value: Any, known: Mapping[str, type[Any]]) -> Any:
    return known[one_of(argument, value, tuple(known))]() if isinstance(value, str) else value


def find_source(source: Any, options: Mapping[str, Any]) -> TaskSource:
    if isinstance(source, str):
        found: TaskSource = make_source(source, **options)
        return found
    if not callable(getattr(source, "draw", None)):
        raise ConfigError(f"task_source is {source!r}; expected a name or an object with draw(rng) -> Task")
    if options:
        raise ConfigError("source_options are for a task_source given by name; this one is an object already")
    return source  # type: ignore[no-any-return]
