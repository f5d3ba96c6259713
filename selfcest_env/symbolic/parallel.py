"""The symbolic game as a PettingZoo environment on a batch of one; import it from `symbolic_v0`."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar

import numpy as np
import pettingzoo  # type: ignore[import-untyped, unused-ignore]
from gymnasium import spaces
from numpy.typing import NDArray

from selfcest_env.checks import check_actions, check_agent, check_options, check_seed, check_snapshot
from selfcest_env.draw import Image
from selfcest_env.errors import ConfigError, GameError
from selfcest_env.plugin import check_choice
from selfcest_env.roster import Population
from selfcest_env.screen import Screen
from selfcest_env.symbolic.batch import BatchDelegation
from selfcest_env.symbolic.picture import RENDER_MODES, STATUSES, render, show
from selfcest_env.symbolic.rules import WAIT, SymbolicRules, make_rules
from selfcest_env.symbolic.state import ANSWERED, UNBORN, State
from selfcest_env.symbolic.tasks import SymbolicTask
from selfcest_env.symbolic.vectors import observation_size, state_size
from selfcest_env.types import Status

OBSERVATION_MODES = ("dict", "flat")
# Values of infos.
NONE = -1  # status and parent of an agent that has not been born, and parent of the root
NO_LIMIT = -1

OUT_OF_SPACE = -1  # stands for every number outside the action space; the kernel counts it as illegal
_STATUS_NUMBERS = tuple(NONE if status is None else list(Status).index(status) for status in STATUSES)


@dataclass(frozen=True)
class SymbolicSnapshot:
    """The changeable state of an environment. It can be pickled, and set on any environment with the same arguments."""

    rules: SymbolicRules
    population: str
    max_cycles: int | None
    agents: tuple[str, ...]
    state: State | None  # `None` before the first reset
    streams: Mapping[str, Any]


class SymbolicEnv(pettingzoo.ParallelEnv):  # type: ignore[misc, name-defined, unused-ignore]
    """The symbolic game as a PettingZoo `ParallelEnv`; see `symbolic_v0`.

    Args:
        task: "chain", "lookup", "noisy", "cells", "deep", `package.module:Class` or a `SymbolicTask`.
        task_options: options of a task given by name.
        max_clones: clones of one episode, at all depths together.
        max_depth: 0 switches delegation off, 1 lets the root delegate, 2 its clones too; `None` is 1 where only the
            root has something to delegate (lookup), else 2.
        max_turns: turns of one agent.
        total_tokens: tree-wide limit on prompt and generated tokens of all agents; `None` is unlimited.
        generated_tokens: tree-wide limit on generated tokens; `None` is unlimited.
        token_cost: cost in team reward per token of the whole tree.
        max_cycles: joint steps before truncation; `None` never truncates, and the limits end every episode.
        population: "dynamic", "persistent" or "fixed".
        observation_mode: "dict" (observation and action mask) or "flat" (the observation; action masks in the infos).
        render_mode: "human", "ansi", "rgb_array" or `None`.
    """

    metadata: ClassVar[dict[str, Any]] = {
        "name": "symbolic_v0",
        "render_modes": list(RENDER_MODES),
        "render_fps": 2,
        "is_parallelizable": True,
    }

    def __init__(
        self,
        task: SymbolicTask | str = "chain",
        *,
        task_options: Mapping[str, Any] | None = None,
        max_clones: int = 8,
        max_depth: int | None = None,
        max_turns: int = 4,
        total_tokens: int | None = 96,
        generated_tokens: int | None = None,
        token_cost: float = 0.0,
        max_cycles: int | None = None,
        population: str = "fixed",
        observation_mode: str = "dict",
        render_mode: str | None = None,
    ) -> None:
        self.rules = make_rules(
            task,
            task_options,
            max_clones=max_clones,
            max_depth=max_depth,
            max_turns=max_turns,
            total_tokens=total_tokens,
            generated_tokens=generated_tokens,
            token_cost=token_cost,
        )
        self.population = Population(check_choice("population", population, tuple(Population)))
        self.observation_mode = check_choice("observation_mode", observation_mode, OBSERVATION_MODES)
        self.render_mode = check_choice("render_mode", render_mode, (None, *RENDER_MODES))
        self._batch = BatchDelegation(self.rules, 1, max_cycles=max_cycles)
        self._screen = Screen()
        self._started = False
        self.agents: list[str] = []
        self.possible_agents = [f"agent_{k}" for k in range(self.rules.num_agents)]
        self._seats = {agent: k for k, agent in enumerate(self.possible_agents)}
        self.observation_spaces = {agent: self._observation_space() for agent in self.possible_agents}
        self.action_spaces = {agent: spaces.Discrete(self.rules.num_actions) for agent in self.possible_agents}
        self.state_space = spaces.Box(0.0, 1.0, (state_size(self.rules),), np.float32)

    @property
    def max_cycles(self) -> int | None:
        """Joint steps before truncation. It can be set because PettingZoo's tests set it."""
        return self._batch.max_cycles

    @max_cycles.setter
    def max_cycles(self, cycles: int | None) -> None:
        self._batch.max_cycles = cycles

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        check_agent(agent, self.possible_agents)
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Discrete:
        check_agent(agent, self.possible_agents)
        return self.action_spaces[agent]

    def _check_action(self, agent: str, action: object) -> None:
        """Raise `GameError` for an action that `step` would reject; the AEC environment calls it."""
        parse_action(action, self._batch.num_actions, f"the action of {agent}")

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Start an episode: the first one of a seed, or without a seed the next one.

        Args:
            seed: equal seeds give equal series of problems. It also seeds the spaces of all possible agents.
            options: this environment has none.
        """
        check_seed(seed)
        check_options(options)
        if seed is not None:
            seed = int(seed)
            self._seed_spaces(seed)
        self._batch.reset(seed)
        self._started = True
        self.agents = self.possible_agents[: None if self.population is Population.FIXED else 1]
        self._show()
        return self._observe(self.agents)

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """Play one joint step; after the end of the episode it returns empty dicts.

        Args:
            actions: a whole number, or `None` for WAIT, by agent. Actions of possible agents that are not in `agents`
                are ignored.

        Raises:
            GameError: there is no episode, `actions` is no mapping, a name is unknown, or an action is no whole number.
                The game has not changed.
        """
        self._check_started()
        if not self.agents:
            return {}, {}, {}, {}, {}
        check_actions(actions, self.possible_agents)
        num_actions = self._batch.num_actions
        numbers = [
            parse_action(actions.get(agent), num_actions, f"the action of {agent}") for agent in self.possible_agents
        ]
        born_before = int(self._batch.state.num_born[0])
        self._batch.step(np.array([numbers]))
        state = self._batch.state
        terminated = bool(state.terminated[0])
        truncated = bool(state.truncated[0])
        # Agents with a result of this step: those that were live, and clones born in it.
        agents = self.agents
        if self.population is not Population.FIXED and not terminated and not truncated:
            agents = agents + self.possible_agents[born_before : int(state.num_born[0])]
        terminations = dict.fromkeys(agents, terminated)
        if self.population is Population.DYNAMIC:
            status = state.status[0].tolist()
            terminations = {agent: terminated or status[self._seats[agent]] >= ANSWERED for agent in agents}
        truncations = {agent: truncated and not terminations[agent] for agent in agents}
        rewards = dict.fromkeys(agents, float(state.team_return[0]))
        self.agents = [] if truncated else [agent for agent in agents if not terminations[agent]]
        self._show()
        observations, infos = self._observe(agents)
        return observations, rewards, terminations, truncations, infos

    def state(self) -> NDArray[np.float32]:
        """Return the whole game for centralised critics, the right answer included; shape `state_space.shape`."""
        self._check_started()
        state: NDArray[np.float32] = self._batch.states()[0]
        return state

    def render(self) -> str | Image | None:
        """Return the tree of agents: a text in "ansi", an image in "rgb_array". "human" shows it after every step."""
        self._check_started()
        return render(self._batch.state, self.rules, self.render_mode)

    def _show(self) -> None:
        if self.render_mode == "human":
            show(self._screen, self._batch.state, self.rules)

    def close(self) -> None:
        """Close the window of the render mode "human", if one is open."""
        self._screen.close()

    @property
    def team_return(self) -> float:
        """The team reward of the finished episode, even if no agent was left to receive it; 0 after a truncation."""
        if not self._started or self.agents:
            raise GameError("the episode is not over; play until agents is empty")
        return float(self._batch.state.team_return[0])

    def get_snapshot(self) -> SymbolicSnapshot:
        """Return a copy of the exact state of the environment, with the random generators of its spaces."""
        return SymbolicSnapshot(
            self.rules,
            self.population,
            self.max_cycles,
            tuple(self.agents),
            self._batch.get_snapshot() if self._started else None,
            {name: space.np_random.bit_generator.state for name, space in self._streams()},
        )

    def set_snapshot(self, snapshot: SymbolicSnapshot) -> None:
        """Return to a snapshot of this environment or of one with the same arguments, as often as you like."""
        check_snapshot(snapshot, SymbolicSnapshot)
        same_rules = _describe_rules(snapshot.rules) == _describe_rules(self.rules)
        if not same_rules or (snapshot.population, snapshot.max_cycles) != (self.population, self.max_cycles):
            raise ConfigError(
                "the snapshot is of an environment with other arguments; expected one with the same arguments"
            )
        self.agents = list(snapshot.agents)
        self._started = snapshot.state is not None
        if snapshot.state is None:
            self._batch = BatchDelegation(self.rules, 1, max_cycles=self.max_cycles)
        else:
            self._batch.set_snapshot(snapshot.state)
        for name, space in self._streams():
            space.np_random.bit_generator.state = snapshot.streams[name]

    def __str__(self) -> str:
        return str(self.metadata["name"])

    def _observation_space(self) -> spaces.Space[Any]:
        box = spaces.Box(0.0, 1.0, (observation_size(self.rules),), np.float32)
        if self.observation_mode == "flat":
            return box
        return spaces.Dict({"observation": box, "action_mask": spaces.Box(0, 1, (self.rules.num_actions,), np.int8)})

    def _check_started(self) -> None:
        if not self._started:
            raise GameError("no episode has been started; call reset() first")

    def _seed_spaces(self, seed: int) -> None:
        for i, agent in enumerate(self.possible_agents):
            self.action_spaces[agent].seed(seed + i)
            self.observation_spaces[agent].seed(seed + i)

    def _streams(self) -> list[tuple[str, spaces.Space[Any]]]:
        named: list[tuple[str, spaces.Space[Any]]] = [("state", self.state_space)]
        for agent in self.possible_agents:
            space = self.observation_spaces[agent]
            named.append((f"{agent} action", self.action_spaces[agent]))
            named.append((f"{agent} observation", space))
            if isinstance(space, spaces.Dict):
                named += [(f"{agent} {key}", part) for key, part in space.spaces.items()]
        return named

    def _observe(self, agents: list[str]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Return the observations and infos of agents; agents share no memory, because rows do not overlap."""
        rows = list(self._batch.observations()[0])
        masks = list(self._batch.action_masks()[0].view(np.int8))
        infos = self._infos(agents)
        observations: dict[str, Any] = {}
        for agent in agents:
            seat = self._seats[agent]
            if self.observation_mode == "dict":
                observations[agent] = {"observation": rows[seat], "action_mask": masks[seat]}
            else:
                observations[agent] = rows[seat]
                infos[agent]["action_mask"] = masks[seat]
        return observations, infos

    def _infos(self, agents: list[str]) -> dict[str, dict[str, Any]]:
        state = self._batch.state
        is_limited = self.rules.total_tokens is not None
        # Lists, because indexing a list is faster than indexing an array.
        can_act = self._batch.can_act[0].tolist()
        columns = (state.status, state.depth, state.parent, state.tokens_left, state.illegal)
        status, depth, parent, tokens, illegal = [column[0].tolist() for column in columns]
        infos: dict[str, dict[str, Any]] = {}
        for agent in agents:
            seat = self._seats[agent]
            code = status[seat]
            born = code != UNBORN
            alive = UNBORN < code < ANSWERED
            infos[agent] = {
                "can_act": int(can_act[seat]),
                "depth": depth[seat] if born else 0,
                "parent": parent[seat] if born else NONE,
                "tokens_left": (tokens[seat] if is_limited else NO_LIMIT) if alive else 0,
                "status": _STATUS_NUMBERS[code],
                "illegal": illegal[seat] if born else 0,
            }
        return infos


def parse_action(action: Any, num_actions: int, what: str) -> int:
    """Return one agent's action as a number for the kernel.

    Args:
        action: a whole number, also as 1.0 or as an array with one entry, or `None` for WAIT.
        num_actions: size of the action space.
        what: the beginning of the error message.

    Returns:
        The number, or `OUT_OF_SPACE` if it is outside the action space.

    Raises:
        GameError: the action is no whole number.
    """
    if action is None:
        return WAIT
    try:
        number = operator.index(action)
    except TypeError:
        value = action.item() if getattr(action, "size", None) == 1 else action
        if not isinstance(value, int) and not (isinstance(value, float) and value.is_integer()):
            raise GameError(f"{what} is {action!r}; expected a whole number from 0 to {num_actions - 1}") from None
        number = int(value)
    return number if 0 <= number < num_actions else OUT_OF_SPACE


def _describe_rules(rules: SymbolicRules) -> list[object]:
    """Return what tells rules apart. A task that is no dataclass has no values to compare, so its class counts."""
    task: object = rules.task
    limits: list[object] = [getattr(rules, field.name) for field in fields(rules) if field.name != "task"]
    return [type(task), repr(task) if is_dataclass(task) else "", *limits]
