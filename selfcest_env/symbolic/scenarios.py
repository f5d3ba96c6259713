"""Named games to compare learners on, each frozen: rules, evaluation, and what to hold returns against.

A scenario is a set of rules with a name and a version. Whatever may change what is learned makes a new version; the old
one stays. References are stored as numbers and checked against what the reference players earn by the tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from selfcest_env.errors import ConfigError, did_you_mean
from selfcest_env.symbolic.rules import SymbolicRules, make_rules

EVALUATION_SEED = 2**40  # of the series of problems that policies are evaluated on
EVALUATION_EPISODES = 1000
SOLVED = 0.95  # of the way from random to optimal play


@dataclass(frozen=True)
class Reference:
    """What is known of a scenario before anybody learns.

    Attributes:
        random: mean team return of uniform legal play.
        never: of the best play that delegates nothing; `None` where there is no such play.
        optimal: of the best plan (`optimal_return`).
        horizon: joint steps that no episode of legal play exceeds (`find_horizon`).
        idle: share of the agent-steps of random play in which an agent can only wait, all possible agents counted.
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
        name: with its version, as in "chain-8m5-v1".
        description: one line about the skill that it needs.
        task, task_options, limits: as `make_rules` takes them.
        reference: what play without learning earns.
    """

    name: str
    description: str
    task: str
    reference: Reference
    task_options: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)

    @property
    def env_kwargs(self) -> dict[str, Any]:
        """What the environments take."""
        return {"task": self.task, "task_options": dict(self.task_options), **self.limits}

    @cached_property
    def rules(self) -> SymbolicRules:
        return make_rules(self.task, self.task_options, **self.limits)

    @property
    def threshold(self) -> float:
        """Mean team return from which on it counts as solved: `SOLVED` of the way from random to optimal play."""
        return round(self.reference.random + SOLVED * (self.reference.optimal - self.reference.random), 3)

    def normalize_return(self, team_return: float) -> float:
        """0 for random play, 1 for optimal play."""
        return (team_return - self.reference.random) / (self.reference.optimal - self.reference.random)


_SIXTEEN = {"max_clones": 16, "total_tokens": 131}  # just enough for as many cells
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
        "long segments force delegation, one skill serves all",
        "chain",
        Reference(0.2039, 0.4286, 1.0, 17, 0.824),
        {"items": (2, 8)},
    ),
    Scenario("chain-16m5-v1", "the same with more of it", "chain", Reference(0.2031, 0.2, 1.0, 17, 0.799)),
    Scenario(
        "alone-8m5-v1",
        "anybody may answer, clones only cost: leave delegation alone",
        "chain",
        Reference(0.1768, 0.986, 0.986, 17, 0.85),
        {"items": (2, 8), "window": None},
        {"token_cost": 0.002},
    ),
    Scenario("lookup-3-v1", "serial: go on asking, or answer?", "lookup", Reference(0.1229, 0.25, 1.0, 7, 0.889)),
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
        "exploration: answering alone pays at once, calls only for whoever has learned to add",
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
        _SIXTEEN,
    ),
    Scenario(
        "cells-16-hidden-v1",
        "the same, and right replies are graded wrong now and then",
        "cells",
        Reference(0.1247, None, 0.7375, 2, 0.5),
        {"cells": 16, "hidden": 0.3},
        _SIXTEEN,
    ),
    Scenario(
        "cells-16-and-v1",
        "one bit for sixteen clones, all of them right",
        "cells",
        Reference(0.0, None, 1.0, 2, 0.5),
        {"cells": 16, "coupling": "and"},
        _SIXTEEN,
    ),
    Scenario("deep-8-v1", "one bit for a tree of sums of depth two", "deep", Reference(0.199, 0.0, 1.0, 17, 0.781)),
    Scenario(
        "deep-64-v1",
        "one bit for a tree of 63 sums of depth six, and just enough to pay it",
        "deep",
        Reference(0.1941, 0.0, 1.0, 125, 0.864),
        {"items": 64},
        {"max_clones": 62, "max_depth": 6, "total_tokens": 665},
    ),
)
SCENARIOS: dict[str, Scenario] = {scenario.name: scenario for scenario in _ALL}


def get_scenario(name: str) -> Scenario:
    """By name. Raises `ConfigError` for an unknown one."""
    if name not in SCENARIOS:
        raise ConfigError(
            f"unknown scenario {name!r}; there are {', '.join(SCENARIOS)}.{did_you_mean(name, SCENARIOS)}"
        )
    return SCENARIOS[name]


def find_horizon(rules: SymbolicRules) -> int:
    """A bound on the joint steps of an episode in which nobody plays what is illegal; tokens may end it earlier."""

    @cache
    def life(depth: int, clones: int, turns: int) -> int:
        """Steps from an agent's next turn to its end, if that many clones may still be born of it and below it."""
        longest = 1  # an answer
        if depth < rules.max_depth and turns > 1 and rules.call_parts:
            for below in range(clones):  # of a call one clone at least is born, and the longest of them matters
                after = 0 if rules.forced_join_task else life(depth, clones - 1 - below, turns - 1)
                longest = max(longest, 1 + life(depth + 1, below, rules.max_turns) + after)
        return longest

    return life(0, rules.max_clones, rules.max_turns)
