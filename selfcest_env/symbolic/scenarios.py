"""Named games on which learners are compared, each with frozen rules and reference returns.

A scenario is a set of rules with a name and a version. A change that may affect learning makes a new version, and the
old version stays. References are stored as numbers, and tests compare them with the returns of the reference policies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from selfcest_env.errors import ConfigError, did_you_mean
from selfcest_env.symbolic.rules import SymbolicRules, make_rules

EVALUATION_SEED = 2**40  # seed of the problems on which policies are evaluated
EVALUATION_EPISODES = 1000
SOLVED = 0.95  # normalised return from which on a scenario counts as solved


@dataclass(frozen=True)
class Reference:
    """Facts about a scenario that need no learning.

    Attributes:
        random: mean team return of uniform legal actions.
        never: mean team return of the best policy that never delegates; `None` where no such policy exists.
        optimal: mean team return of the best plan (`optimal_return`).
        horizon: upper bound on the joint steps of an episode with legal actions (`find_horizon`).
        idle: fraction of agent-steps under random actions in which WAIT is the only legal action, counted over all
            possible agents.
    """

    random: float
    never: float | None
    optimal: float
    horizon: int
    idle: float


@dataclass(frozen=True)
class Scenario:
    """A named game.

    Attributes:
        name: name and version, for example "chain-8m5-v1".
        description: one line about the skill that it needs.
        task, task_options, limits: arguments of `make_rules`.
        reference: reference returns.
    """

    name: str
    description: str
    task: str
    reference: Reference
    task_options: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)

    @property
    def env_kwargs(self) -> dict[str, Any]:
        """Keyword arguments of the environments."""
        return {"task": self.task, "task_options": dict(self.task_options), **self.limits}

    @cached_property
    def rules(self) -> SymbolicRules:
        return make_rules(self.task, self.task_options, **self.limits)

    @property
    def threshold(self) -> float:
        """The mean team return from which on the scenario counts as solved (`SOLVED`)."""
        return round(self.reference.random + SOLVED * (self.reference.optimal - self.reference.random), 3)

    def normalize_return(self, team_return: float) -> float:
        """Return the team return on a scale from 0 for random to 1 for optimal play."""
        return (team_return - self.reference.random) / (self.reference.optimal - self.reference.random)


_SIXTEEN_CELLS = {"max_clones": 16, "total_tokens": 131}  # the smallest limits for 16 cells
_ALL = (
    Scenario(
        "chain-4m2-v1",
        "seconds: add up to four bits, two at a time",
        "chain",
        Reference(0.4985, 0.3333, 1.0, 5, 0.565),
        {"items": (2, 4), "modulus": 2, "window": 2, "splits": (2,)},
        {"max_clones": 2, "max_depth": 1},
    ),
    Scenario(
        "chain-8m5-v1",
        "long segments force delegation, and one skill serves all agents",
        "chain",
        Reference(0.2039, 0.4286, 1.0, 17, 0.824),
        {"items": (2, 8)},
    ),
    Scenario("chain-16m5-v1", "the same with longer segments", "chain", Reference(0.2031, 0.2, 1.0, 17, 0.799)),
    Scenario(
        "alone-8m5-v1",
        "every agent may answer and clones only cost tokens: do not delegate",
        "chain",
        Reference(0.1768, 0.986, 0.986, 17, 0.85),
        {"items": (2, 8), "window": None},
        {"token_cost": 0.002},
    ),
    Scenario(
        "lookup-3-v1", "serial delegation: ask again, or answer?", "lookup", Reference(0.1229, 0.25, 1.0, 7, 0.889)
    ),
    Scenario(
        "lookup-6-v1",
        "the same with trails of up to six facts among eight",
        "lookup",
        Reference(0.059, 0.125, 1.0, 13, 0.889),
        {"hops": (1, 6), "keys": 8, "values": 8},
        {"max_turns": 7},
    ),
    Scenario(
        "noisy-c005-v1",
        "exploration: answering without clones pays at once, a call only after the agents have learned to add",
        "noisy",
        Reference(0.2496, 0.6747, 0.8493, 17, 0.84),
        {},
        {"token_cost": 0.005},
    ),
    Scenario(
        "cells-16-v1",
        "one graded reward for sixteen clones",
        "cells",
        Reference(0.1234, None, 1.0, 2, 0.5),
        {"cells": 16},
        _SIXTEEN_CELLS,
    ),
    Scenario(
        "cells-16-hidden-v1",
        "the same, but some right replies are graded as wrong",
        "cells",
        Reference(0.1247, None, 0.7375, 2, 0.5),
        {"cells": 16, "hidden": 0.3},
        _SIXTEEN_CELLS,
    ),
    Scenario(
        "cells-16-and-v1",
        "one bit for sixteen clones, which must all be right",
        "cells",
        Reference(0.0, None, 1.0, 2, 0.5),
        {"cells": 16, "coupling": "and"},
        _SIXTEEN_CELLS,
    ),
    Scenario("deep-8-v1", "one bit for a tree of sums of depth two", "deep", Reference(0.199, 0.0, 1.0, 17, 0.781)),
    Scenario(
        "deep-64-v1",
        "one bit for a tree of 63 sums of depth six, with barely enough tokens",
        "deep",
        Reference(0.1941, 0.0, 1.0, 125, 0.864),
        {"items": 64},
        {"max_clones": 62, "max_depth": 6, "total_tokens": 665},
    ),
)
SCENARIOS: dict[str, Scenario] = {scenario.name: scenario for scenario in _ALL}


def get_scenario(name: str) -> Scenario:
    """Return a scenario by name.

    Raises:
        ConfigError: no scenario has this name.
    """
    if name not in SCENARIOS:
        raise ConfigError(
            f"unknown scenario {name!r}.{did_you_mean(name, SCENARIOS)} The scenarios are {', '.join(SCENARIOS)}"
        )
    return SCENARIOS[name]


def find_horizon(rules: SymbolicRules) -> int:
    """Return an upper bound on the joint steps of an episode without illegal actions; tokens may end it earlier."""

    @cache
    def count_steps(depth: int, clones: int, turns: int) -> int:
        """Return the most steps from an agent's next turn to its end.

        Args:
            depth: its depth.
            clones: clones that it and its subtree may still start.
            turns: turns that it has left.
        """
        longest = 1  # an answer
        if depth < rules.max_depth and turns > 1 and rules.call_parts:
            # At least one clone of a call is born. A call lasts as long as its longest-lived clone, so the longest
            # episode gives one clone `clones_below` and leaves the rest to later calls.
            for clones_below in range(clones):
                after_join = 0 if rules.forced_join_task else count_steps(depth, clones - 1 - clones_below, turns - 1)
                clone_steps = count_steps(depth + 1, clones_below, rules.max_turns)
                longest = max(longest, 1 + clone_steps + after_join)
        return longest

    return count_steps(0, rules.max_clones, rules.max_turns)
