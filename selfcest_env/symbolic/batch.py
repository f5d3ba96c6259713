"""The symbolic game for many environments at once; every other symbolic environment wraps it.

The rules are those of the text game's kernel: nested accounts, equal shares, replies reserved before clones start, and
balances that return when a whole call has joined. Agents that act in the same step cannot read or change each other's
accounts, so all of them act at once and their order does not matter.
"""

from __future__ import annotations

import secrets
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from selfcest_env.errors import ConfigError, GameError, check_integer
from selfcest_env.symbolic.rules import MAX_COUNT, SymbolicRules
from selfcest_env.symbolic.state import READY, UNBORN, Index, State, make_blank_state
from selfcest_env.symbolic.streams import Keys, make_keys
from selfcest_env.symbolic.tasks import ProblemBatch
from selfcest_env.symbolic.transition import Transition
from selfcest_env.symbolic.vectors import ObservationWriter, build_states

Scalar = TypeVar("Scalar", bound=np.generic)


class ReadyAgents(NamedTuple):
    """Observations and action masks of the R agents that can act, in order of environment, then seat."""

    envs: Index  # [R]
    agents: Index  # [R], seats
    observations: NDArray[np.float32]  # [R, features]
    action_masks: NDArray[np.bool_]  # [R, num_actions]


class BatchDelegation:
    """A batch of symbolic episodes. Agent 0 of an environment is its root, agent k the k-th clone to be born.

    Clones born in one step are numbered by their parent, then by part. An environment whose episode is over does not
    change until it starts another episode.

    Args:
        rules: task, limits and prices (`make_rules`).
        num_envs: number of environments.
        max_cycles: joint steps before truncation; `None` never truncates, and the limits end every episode.
    """

    def __init__(self, rules: SymbolicRules, num_envs: int, *, max_cycles: int | None = None) -> None:
        if not isinstance(rules, SymbolicRules):
            raise ConfigError(f"rules is {rules!r}; expected SymbolicRules, as make_rules('chain') returns them")
        check_integer("num_envs", num_envs, 1, MAX_COUNT)
        if max_cycles is not None:
            check_integer("max_cycles", max_cycles, 1, MAX_COUNT)
        self.rules = rules
        self.max_cycles = max_cycles
        self.num_agents = rules.num_agents
        self.num_actions = rules.num_actions
        self._load(make_blank_state(rules, num_envs))
        self._has_keys = False

    # State

    @property
    def state(self) -> State:
        """The live state: later steps write into these arrays."""
        return self._transition.state

    @property
    def num_envs(self) -> int:
        return len(self.state.keys)

    @property
    def can_act(self) -> NDArray[np.bool_]:
        """Whether each agent can act, shape (num_envs, num_agents)."""
        can_act = np.zeros(self.state.status.shape, bool)
        can_act.reshape(-1)[self._transition.ready.agents] = True
        return can_act

    @property
    def done(self) -> NDArray[np.bool_]:
        """Whether each episode is terminated or truncated, shape (num_envs,)."""
        return self.state.terminated | self.state.truncated

    @property
    def scores(self) -> NDArray[np.float64]:
        """Score of each root's answer from 0 to 1, costs not subtracted, 0 without an answer; shape (num_envs,)."""
        return self._transition.scores(np.arange(self.num_envs))

    @property
    def solved(self) -> NDArray[np.bool_]:
        """Whether each root's answer has the full score, shape (num_envs,)."""
        solved: NDArray[np.bool_] = self.scores == 1
        return solved

    def total_tokens(self) -> NDArray[np.int64]:
        """Return the tokens of each whole tree so far, prompts included, shape (num_envs,)."""
        spent = (self.state.prompt_tokens + self.state.generated_tokens) * (self.state.status != UNBORN)
        total: NDArray[np.int64] = spent.sum(axis=1, dtype=np.int64)
        return total

    def problems(self) -> ProblemBatch:
        """Return the problems that are being played, as they were drawn."""
        return self._transition.problems()

    # Observations and actions of all agents

    def observations(self, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """Return the observations of all agents, shape (num_envs, num_agents, features).

        Args:
            out: an array of that shape to write into; by default a new one.
        """
        # Learners bootstrap from the last observation of a truncated episode, so its agents are observed too.
        transition = self._transition
        if not np.count_nonzero(self.state.truncated):
            return self._writer.build(transition.ready, out)
        agents = (transition.flat.status == READY).nonzero()[0]
        return self._writer.build(transition.open_turns(agents), out)

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the action masks, shape (num_envs, num_agents, num_actions).

        WAIT is the only legal action of agents that cannot act.
        """
        turns = self._transition.ready
        codes = np.zeros(self.state.status.shape, np.intp)
        codes.reshape(-1)[turns.agents] = turns.codes
        return self.rules.legal_table.take(codes, axis=0)

    def states(self) -> NDArray[np.float32]:
        """Return the whole games for centralised critics, right answers included, shape (num_envs, state features)."""
        return build_states(self.state, self.observations(), self.rules)

    def sample_actions(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw a uniform legal action for every agent, shape (num_envs, num_agents)."""
        actions: NDArray[np.int64] = np.zeros(self.state.status.shape, np.int64)
        actions.reshape(-1)[self._transition.ready.agents] = self.sample_ready(rng)
        return actions

    # Observations and actions of the agents that can act: most agents cannot act most of the time

    def ready_agents(self) -> ReadyAgents:
        """Return observations and action masks of the agents that can act."""
        turns = self._transition.ready
        masks = self.rules.legal_table.take(turns.codes, axis=0)
        return ReadyAgents(turns.envs.copy(), turns.seats(self.num_agents), self._writer.build_rows(turns), masks)

    def sample_ready(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw a uniform legal action for each agent that can act, in the order of `ready_agents`."""
        counts, choices = self._choices
        codes = self._transition.ready.codes
        index = (rng.random(len(codes), np.float32) * counts[codes]).astype(np.intp)
        index *= len(counts)
        index += codes
        return choices.take(index)

    # Observations and actions of one agent per environment

    @property
    def next_agents(self) -> Index:
        """The lowest seat that can act in each environment, shape (num_envs,).

        In a truncated episode it is the agent that would have been next; in a terminated one it is the root.
        """
        return self._transition.next.seats(self.num_agents)

    def select_next(self, values: NDArray[Scalar]) -> NDArray[Scalar]:
        """Return the entries of `next_agents` from values of all agents; shape (num_envs, ...)."""
        selected: NDArray[Scalar] = values[np.arange(self.num_envs), self.next_agents]
        return selected

    def next_observations(self) -> NDArray[np.float32]:
        """Return the observations of `next_agents`, shape (num_envs, features); zeros in a terminated episode."""
        turns = self._transition.next
        observations = self._writer.build_rows(turns)
        observations[self._transition.flat.status[turns.agents] != READY] = 0
        return observations

    def next_action_masks(self) -> NDArray[np.bool_]:
        """Return the action masks of `next_agents`, shape (num_envs, num_actions)."""
        return self.rules.legal_table.take(self._transition.next.codes, axis=0)

    # Episodes

    def reset(
        self, seed: int | None = None, *, keys: Keys | None = None, envs: NDArray[np.bool_] | None = None
    ) -> None:
        """Start the first episode of every environment; without seed and keys, the next one.

        Args:
            seed: equal seeds give equal series of problems, whatever the size of the batch.
            keys: one per environment, shape (num_envs,), instead of a seed. Equal keys play the same problems.
            envs: mask of the environments to reset, same shape; by default all. Keys of other environments are ignored.
        """
        if seed is not None and keys is not None:
            raise ConfigError(f"seed is {seed!r} and keys are given too; expected one of them, or none")
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, (int, np.integer))):
            raise ConfigError(f"seed is {seed!r}; expected a whole number, or None")
        if keys is not None:
            keys = whole_numbers(keys, (self.num_envs,), "environment", "keys").astype(np.uint64)
        mask = np.ones(self.num_envs, bool) if envs is None else self._check_env_mask(envs)
        if seed is not None or keys is not None or not self._has_keys:
            if keys is None:
                keys = make_keys(secrets.randbits(63) if seed is None else seed, self.num_envs)
            if envs is None or not self._has_keys:
                self._bind(make_blank_state(self.rules, self.num_envs))
                self.state.keys[:] = keys
            else:
                self._transition.set_keys(mask, keys)
        self.restart(mask)

    def restart(self, envs: NDArray[np.bool_] | None = None) -> None:
        """Start the next episode of some environments.

        Args:
            envs: mask of the environments, shape (num_envs,); by default those whose episode is over.
        """
        restarted = (self.done if envs is None else self._check_env_mask(envs)).nonzero()[0]
        if restarted.size:
            self._transition.start(restarted)

    def step(self, actions: NDArray[np.integer[Any]], acting: NDArray[np.bool_] | None = None) -> None:
        """Play one joint step.

        Args:
            actions: shape (num_envs, num_agents). Actions of agents that cannot act are ignored. An illegal action is
                played as WAIT and counted; it costs a turn and one prompt token, the notice of the fault.
            acting: mask of the agents that act, same shape; by default all agents that can act.
        """
        actions = whole_numbers(actions, self.state.status.shape, "environment and agent")
        if acting is not None:
            acting = _check_mask("acting", acting, actions.shape)
        turns = self._transition.ready
        agents = turns.agents
        codes = turns.codes
        if acting is not None:
            is_acting = acting.reshape(-1)[agents]
            agents = agents[is_acting]
            codes = codes[is_acting]
        self._play(agents, codes, actions.reshape(-1)[agents])

    def step_ready(self, actions: NDArray[np.integer[Any]]) -> None:
        """Play one joint step of all agents that can act.

        Args:
            actions: one per agent that can act, in the order of `ready_agents`; see `step`.
        """
        turns = self._transition.ready
        actions = whole_numbers(actions, turns.agents.shape, "agent that can act")
        self._play(turns.agents, turns.codes, actions)

    def step_next(self, actions: NDArray[np.integer[Any]]) -> None:
        """Play one action in each environment, that of `next_agents`.

        Args:
            actions: shape (num_envs,); see `step`.
        """
        actions = whole_numbers(actions, (self.num_envs,), "environment")
        turns = self._transition.next
        playing = ~self.done
        self._play(turns.agents.compress(playing), turns.codes.compress(playing), actions.compress(playing))

    def remove(self, envs: Index, agents: Index) -> None:
        """Remove agents that have just been born, for counterfactual episodes without them.

        Nothing of a removed agent is charged, and its reply is missing. Its siblings keep their grants. Its seat stays
        taken, so its birth still counts against `max_clones`.

        Args:
            envs: environment of each removed agent.
            agents: seat of each removed agent, same shape.
        """
        self._transition.remove(envs * self.num_agents + agents)

    # Snapshots

    def get_snapshot(self) -> State:
        """Return an independent copy of the state."""
        return self.state.copy()

    def set_snapshot(self, state: State) -> None:
        """Continue from a snapshot, or from any state of these rules; its number of environments may differ."""
        if not isinstance(state, State):
            raise ConfigError(f"the snapshot is of type {type(state).__name__}; expected what get_snapshot() returns")
        num_agents = state.status.shape[1]
        num_symbols = state.tape.shape[1]
        expected = (self.num_agents, self.rules.tape_length)
        if (num_agents, num_symbols) != expected:
            raise ConfigError(
                f"the state has {num_agents} agents and {num_symbols} symbols per environment; expected {expected}"
            )
        self._bind(state.copy())

    def __getstate__(self) -> tuple[SymbolicRules, int | None, State, bool]:
        """Leave the flat view of the state out of pickles and deep copies, where it would become a second array."""
        return self.rules, self.max_cycles, self.state, self._has_keys

    def __setstate__(self, saved: tuple[SymbolicRules, int | None, State, bool]) -> None:
        self.rules, self.max_cycles, state, self._has_keys = saved
        self.num_agents = self.rules.num_agents
        self.num_actions = self.rules.num_actions
        self._load(state)

    def _load(self, state: State) -> None:
        """Continue from a state; its arrays become those of this batch."""
        self._transition = Transition(self.rules, state)
        self._writer = ObservationWriter(self._transition.flat, self.rules)

    def _play(self, agents: Index, codes: Index, actions: NDArray[np.integer[Any]]) -> None:
        if not self._has_keys:
            raise GameError("no episode has been started; call reset() first")
        self._transition.play(agents, codes, actions, self.max_cycles)

    def _check_env_mask(self, envs: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return _check_mask("envs", envs, (self.num_envs,))

    def _bind(self, state: State) -> None:
        self._load(state)
        self._has_keys = True

    @cached_property
    def _choices(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """The number of legal actions by legality code, and the n-th legal action at n * number of codes + code."""
        legal = self.rules.legal_table
        # A stable sort puts the legal actions of each code first and keeps their order.
        ordered = np.argsort(~legal, axis=1, kind="stable").astype(np.int64)
        return legal.sum(axis=1).astype(np.float32), ordered.T.copy()


def whole_numbers(values: Any, shape: tuple[int, ...], each: str, name: str = "actions") -> NDArray[np.integer[Any]]:
    """Return `values` as an array of whole numbers.

    Args:
        values: an array, or nested sequences of numbers.
        shape: the expected shape.
        each: the thing that has one number, for the message.
        name: name of the argument, for the message.

    Raises:
        ConfigError: the shape differs, or the entries are bools, floats or texts.
    """
    try:
        array = np.asarray(values)
    except ValueError:  # rows of different lengths
        array = np.empty(0, object)
    if array.shape != shape or array.dtype.kind not in "iu":
        raise ConfigError(
            f"{name} are {array.dtype} of shape {array.shape}; expected whole numbers, one per {each}: {shape}"
        )
    return array


def _check_mask(name: str, mask: Any, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    array = np.asarray(mask)
    if array.dtype != bool or array.shape != shape:
        raise ConfigError(f"{name} is {array.dtype} of shape {array.shape}; expected bool of shape {shape}")
    return array
