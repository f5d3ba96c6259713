"""Checks of the arguments of `reset`, `step` and the spaces, for the text game and the symbolic game."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from selfcest_env.errors import ConfigError, GameError, did_you_mean, is_integer_within

MAX_SEED = 1 << 128


def check_agent(name: object, possible_agents: Sequence[str]) -> None:
    """Raise `GameError` unless `name` is the name of a possible agent."""
    if name not in possible_agents:
        raise GameError(
            f"{reprlib.repr(name)} is no agent of this game.{did_you_mean(str(name), possible_agents)} Expected a name "
            f"from {possible_agents[0]!r}, the root, to {possible_agents[-1]!r}"
        )


def check_actions(actions: object, possible_agents: Sequence[str]) -> None:
    """Raise `GameError` unless `actions` is a mapping whose keys are names of possible agents."""
    if not isinstance(actions, Mapping):
        raise GameError(
            f"the actions are of type {type(actions).__name__}; expected a mapping from names of agents to their "
            f"actions, as in {{{possible_agents[0]!r}: ...}}"
        )
    known = set(possible_agents)
    for name in actions:
        if name not in known:
            check_agent(name, possible_agents)


def check_text(agent: str, action: object) -> None:
    """Raise `GameError` unless the action of an agent is a text or `None`."""
    if action is not None and not isinstance(action, str):
        raise GameError(
            f"the action of {agent} is {reprlib.repr(action)}, of type {type(action).__name__}; expected a text, or "
            "None for no text"
        )


def check_seed(seed: object) -> None:
    """Raise `ConfigError` unless the seed is `None` or a whole number >= 0."""
    if seed is not None and not is_integer_within(seed, 0, MAX_SEED):
        raise ConfigError(f"seed is {reprlib.repr(seed)}; expected a whole number >= 0, or None")


def check_options(options: object, known: Sequence[str] = ()) -> None:
    """Raise `ConfigError` unless the options of `reset` are `None` or a mapping with known keys."""
    if options is None:
        return
    if not isinstance(options, Mapping):
        raise ConfigError(f"the reset options are of type {type(options).__name__}; expected a mapping, or None")
    unknown = sorted(set(map(str, options)) - {*known, "options"})  # PettingZoo's own tests pass {"options": 1}
    if unknown:
        expected = f"expected {' or '.join(map(repr, known))}" if known else "there are none"
        raise ConfigError(f"reset options {unknown} are unknown; {expected}.{did_you_mean(unknown[0], known)}")


def check_snapshot(snapshot: object, kind: type) -> None:
    """Raise `GameError` unless the snapshot is of the kind that this environment takes."""
    if not isinstance(snapshot, kind):
        raise GameError(
            f"the snapshot is of type {type(snapshot).__name__}; expected what get_snapshot() returns, a "
            f"{kind.__module__}.{kind.__name__}"
        )


def check_mapping(argument: str, value: Any) -> None:
    """Raise `ConfigError` unless an argument is `None` or a mapping from names."""
    if value is not None and not (isinstance(value, Mapping) and all(isinstance(name, str) for name in value)):
        raise ConfigError(f"{argument} is {reprlib.repr(value)}; expected a mapping from names to values, or None")
