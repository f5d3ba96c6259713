"""What a credit scheme is: a pure function from the records of a group to one advantage per generated turn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from selfcest_env.errors import ConfigError, CreditError
from selfcest_env.record import EpisodeGroup
from selfcest_env.types import TurnKey

Advantage = float | tuple[float, ...]


@dataclass(frozen=True)
class Credit:
    """Credit of one group.

    Attributes:
        advantage: per turn one number, or one number per generated token.
        excluded: turns that take no part in the loss. Not the same as an advantage of 0, which still enters a KL term.
        diagnostics: numbers for the metrics, free of choice.
    """

    advantage: Mapping[TurnKey, Advantage]
    excluded: frozenset[TurnKey] = frozenset()
    diagnostics: Mapping[str, float] = field(default_factory=dict)


class CreditAssigner(Protocol):
    """A scheme. It holds neither the environment nor the policy; its options are its constructor's arguments."""

    def assign(self, group: EpisodeGroup) -> Credit: ...


def group_advantages(group: EpisodeGroup, *, scale: bool, std_floor: float, epsilon: float) -> list[float]:
    """Group-relative advantage per episode: (R_k - mean R) / (max(std R, std_floor) + epsilon).

    The standard deviation has n - 1 in its denominator. With `scale=False` the division is left out.
    Raises `ConfigError` for a group of one, whose advantage would always be 0.
    """
    returns = [episode.team_return for episode in group.episodes]
    count = len(returns)
    if count < 2:
        raise ConfigError("group_size is 1: a group baseline needs at least 2 episodes of the same task")
    mean = sum(returns) / count
    centred = [value - mean for value in returns]
    if not scale:
        return centred
    std = math.sqrt(sum(value * value for value in centred) / (count - 1))
    divisor = max(std, std_floor) + epsilon
    return [value / divisor if divisor else 0.0 for value in centred]


def checked_credit(scheme: str, group: EpisodeGroup, credit: Credit) -> Credit:
    """The credit itself, once every generated turn is in exactly one of its two parts and every number is finite."""
    turns = {key: turn for episode in group.episodes for key, turn in episode.turns()}
    for key in (*credit.advantage, *credit.excluded):
        if key not in turns:
            raise CreditError(f"credit scheme '{scheme}' names {key}, which is no turn of the group it was given")
    for key, turn in turns.items():
        covered = (key in credit.advantage) + (key in credit.excluded)
        if covered != 1:
            said = "is neither in advantage nor in excluded" if not covered else "is in advantage and in excluded"
            raise CreditError(f"credit scheme '{scheme}': {key} {said}; every generated turn must be in exactly one")
        value = credit.advantage.get(key, 0.0)
        length = len(turn.generation.token_ids)
        if isinstance(value, tuple) and len(value) != length:
            raise CreditError(f"credit scheme '{scheme}': {key} has {len(value)} advantages for {length} tokens")
        if not all(math.isfinite(number) for number in (value if isinstance(value, tuple) else (value,))):
            raise CreditError(f"credit scheme '{scheme}': the advantage of {key} is {value}; expected a finite number")
    return credit
