"""Makes the parts of the text environment from names and options, and checks parts that are given as objects."""

from __future__ import annotations

import inspect
import reprlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from typing_extensions import get_protocol_members

from selfcest_env.checks import check_mapping, check_options
from selfcest_env.errors import ConfigError, TaskError, is_integer_within
from selfcest_env.plugin import check_choice
from selfcest_env.protocol import PromptFormat
from selfcest_env.reward import PRESETS, Reward, make_reward
from selfcest_env.tasks import TaskSource, make_source
from selfcest_env.text.counters import ByteCounter, WordCounter
from selfcest_env.text.game import RewardFunction
from selfcest_env.text.protocols import PROTOCOLS, make_protocol
from selfcest_env.types import Task, TokenCounter

COUNTERS: dict[str, type[TokenCounter]] = {"words": WordCounter, "bytes": ByteCounter}


def get_task_option(options: Mapping[str, Any] | None) -> Task | None:
    """Return the task in the options of `reset`, if there is one."""
    check_options(options, ("task",))
    task: Task | None = (options or {}).get("task")
    if task is not None and not isinstance(task, Task):
        raise ConfigError(f"reset option 'task' is a {type(task).__name__}; expected a selfcest_env.types.Task")
    if task is not None:
        check_task(task, "reset option 'task' is")
    return task


def check_task(task: object, what: str) -> None:
    """Raise `TaskError` unless this is a `Task` with fields of the right types; `what` begins the message."""
    if not isinstance(task, Task):
        raise TaskError(
            f"{what} {reprlib.repr(task)}, of type {type(task).__name__}; expected a selfcest_env.types.Task"
        )
    for name in ("task_id", "prompt", "answer", "source"):
        value = getattr(task, name)
        if not isinstance(value, str):
            raise TaskError(f"{what} a Task whose {name} is {reprlib.repr(value)}; expected a text")
    aliases: Any = task.aliases
    if not isinstance(aliases, (tuple, list)) or not all(isinstance(alias, str) for alias in aliases):
        raise TaskError(f"{what} a Task whose aliases are {reprlib.repr(aliases)}; expected a tuple of texts")
    context: Any = task.context
    if not isinstance(context, Mapping):
        raise TaskError(f"{what} a Task whose context is {reprlib.repr(context)}; expected texts by key")
    for key, text in context.items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise TaskError(
                f"{what} a Task whose context has {reprlib.repr(text)} under {reprlib.repr(key)}; expected texts"
            )
    tokens: object = task.context_tokens
    if tokens is not None and not is_integer_within(tokens, 1, sys.maxsize):
        raise TaskError(f"{what} a Task whose context_tokens are {tokens!r}; expected a whole number >= 1, or None")
    for key, fact in task.metadata.items():
        if not isinstance(fact, (str, int, float)):
            raise TaskError(
                f"{what} a Task whose metadata has {reprlib.repr(fact)}, of type {type(fact).__name__}, under "
                f"{reprlib.repr(key)}; expected a text, a number or a truth value of Python"
            )


def resolve_counter(counter: TokenCounter | str) -> TokenCounter:
    """Return a counter by its name, or the given one."""
    if isinstance(counter, str):
        return COUNTERS[check_choice("counter", counter, tuple(COUNTERS))]()
    _check_members("counter", counter, TokenCounter, tuple(COUNTERS))
    return counter


def resolve_protocol(protocol: PromptFormat | str) -> PromptFormat:
    """Return a prompt format by its name or reference, or the given one."""
    if isinstance(protocol, str):
        return make_protocol(protocol)
    _check_members("protocol", protocol, PromptFormat, tuple(PROTOCOLS))
    return protocol


def resolve_source(source: TaskSource | str, options: Mapping[str, Any] | None) -> TaskSource:
    """Return a task source by its name and options, or the given one."""
    check_mapping("source_options", options)
    if isinstance(source, str):
        return make_source(source, **(options or {}))
    if isinstance(source, type) or not callable(getattr(source, "draw", None)):
        raise ConfigError(f"task_source is {source!r}; expected a name or an object with draw(rng) -> Task")
    if options:
        raise ConfigError(
            f"source_options are {options!r}; expected None, because task_source is an object and no name"
        )
    return source


def resolve_reward(reward: Reward | RewardFunction | str) -> Reward | RewardFunction:
    """Return the reward of a preset, or the given one, which must take one record."""
    if isinstance(reward, str):
        return make_reward(reward)
    if isinstance(reward, Reward):
        return reward
    presets = ", ".join(PRESETS)
    expected = f"expected one of {presets}, what make_reward returns, or a function from a record to named terms"
    if isinstance(reward, type) or not callable(reward):
        raise ConfigError(f"reward is {reward!r}; {expected}")
    try:
        inspect.signature(reward).bind(None)
    except ValueError:  # a builtin without a signature: `score_record` reports a call that fails
        return reward
    except TypeError as error:
        raise ConfigError(f"reward is {reward!r}, which cannot take one record ({error}); {expected}") from error
    return reward


def check_callable(argument: str, value: Callable[..., Any] | None) -> Any:
    """Return the value. Raises `ConfigError` unless it is `None` or can be called."""
    if value is not None and not callable(value):
        raise ConfigError(f"{argument} is {value!r}; expected a function, or None")
    return value


def _check_members(argument: str, value: object, kind: type, names: tuple[str, ...]) -> None:
    missing = [name for name in sorted(get_protocol_members(kind)) if not hasattr(value, name)]
    if isinstance(value, type) or missing:
        problem = "which is a class" if isinstance(value, type) else f"which lacks {', '.join(missing)}"
        raise ConfigError(
            f"{argument} is {value!r}, {problem}; expected one of {', '.join(names)}, or a {kind.__name__} object"
        )
