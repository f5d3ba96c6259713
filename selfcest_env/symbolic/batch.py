"""The symbolic game for many environments at once, which every other view wraps.

The rules are those of the text game's kernel: nested accounts, equal shares, replies reserved before clones start,
money back when a whole call has joined. Agents that act in the same step cannot see or touch each other's accounts, so
all of them move at once and their order does not matter.
"""

from __future__ import annotations

import secrets
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from selfcest_env.errors import ConfigError, GameError, check_whole
from selfcest_env.symbolic.rules import MAX_COUNT, SymbolicRules
from selfcest_env.symbolic.state import READY, UNBORN, Index, State, make_blank_state
from selfcest_env.symbolic.streams import Keys, make_keys
from selfcest_env.symbolic.tasks import ProblemBatch
from selfcest_env.symbolic.transition import Transition
from selfcest_env.symbolic.vectors import build_observations, build_states, observation_size, write_observations

Scalar = TypeVar("Scalar", bound=np.generic)


class ReadyAgents(NamedTuple):
    """What R agents see and may do, in order of environment, then number."""

    envs: Index  # [R]
    agents: Index  # [R]
    observations: NDArray[np.float32]  # [R, features]
    action_masks: NDArray[np.bool_]  # [R, num_actions]


class BatchDelegation:
    """A batch of symbolic episodes. Agent 0 of an environment is its root, agent k the k-th clone to be born.

    Clones born in one step are numbered by their parent, then by part. An environment that is over stands still until
    it is started again.

    Args:
        rules: task, limits and prices (`make_rules`).
        num_envs: episodes played side by side.
        max_cycles: joint steps before truncation; `None` never truncates, and the limits end every game.
    """

    def __init__(self, rules: SymbolicRules, num_envs: int, *, max_cycles: int | None = None) -> None:
        if not isinstance(rules, SymbolicRules):
            raise ConfigError(f"rules is {rules!r}; expected SymbolicRules, as make_rules('chain') returns them")
        check_whole("num_envs", num_envs, 1, MAX_COUNT)
        if max_cycles is not None:
            check_whole("max_cycles", max_cycles, 1, MAX_COUNT)
        self.rules, self.max_cycles = rules, max_cycles
        self.num_agents, self.num_actions = rules.num_agents, rules.num_actions
        self._game, self._seeded = Transition(rules, make_blank_state(rules, num_envs)), False

    # What can be asked

    @property
    def state(self) -> State:
        """All that changes, live: an episode goes on in these arrays."""
        return self._game.state

    @property
    def num_envs(self) -> int:
        return len(self.state.keys)

    @property
    def can_act(self) -> NDArray[np.bool_]:
        """Whose turn is open, shape (num_envs, num_agents)."""
        able = np.zeros(self.state.status.shape, bool)
        able.reshape(-1)[self._game.turns[0]] = True
        return able

    @property
    def done(self) -> NDArray[np.bool_]:
        """Shape (num_envs,)."""
        return self.state.terminated | self.state.truncated

    @property
    def scores(self) -> NDArray[np.float64]:
        """What roots' answers are worth, from 0 to 1 and costs left out, shape (num_envs,); 0 where there is none."""
        return self._game.scores(np.arange(self.num_envs))

    @property
    def solved(self) -> NDArray[np.bool_]:
        """Where the root's answer is worth all that an answer can be, shape (num_envs,)."""
        solved: NDArray[np.bool_] = self.scores == 1
        return solved

    @property
    def next_agents(self) -> Index:
        """The lowest number whose turn is open, shape (num_envs,): who decides where one agent at a time does.

        In a truncated game it is who would have been next; where a game is over, the root.
        """
        return self._game.places(self._game.next[0])[1]

    def of_next(self, values: NDArray[Scalar]) -> NDArray[Scalar]:
        """What concerns `next_agents`, of values of all agents; shape (num_envs, ...)."""
        rows: NDArray[Scalar] = values[np.arange(self.num_envs), self.next_agents]
        return rows

    def ready_agents(self) -> ReadyAgents:
        """What those who can act see and may do, a row each: most agents of a batch cannot act most of the time."""
        (who, code), flat = self._game.turns, self._game.flat
        seen = np.empty((len(who), observation_size(self.rules)), np.float32)
        write_observations(flat, who, self.rules, seen)
        return ReadyAgents(*self._game.places(who), seen, self.rules.legal_table.take(code, axis=0))

    def next_observations(self) -> NDArray[np.float32]:
        """What `next_agents` see, shape (num_envs, features); zeros where a game is over and was not truncated."""
        who, flat = self._game.next[0], self._game.flat
        seen = np.empty((len(who), observation_size(self.rules)), np.float32)
        write_observations(flat, who, self.rules, seen)
        seen[flat.status[who] != READY] = 0
        return seen

    def next_action_masks(self) -> NDArray[np.bool_]:
        """What `next_agents` may do, shape (num_envs, num_actions)."""
        return self.rules.legal_table.take(self._game.next[1], axis=0)

    def action_masks(self) -> NDArray[np.bool_]:
        """Legal actions, shape (num_envs, num_agents, num_actions). Who cannot act can only wait."""
        who, code = self._game.turns
        codes = np.zeros(self.state.status.shape, np.intp)
        codes.reshape(-1)[who] = code
        return self.rules.legal_table.take(codes, axis=0)

    def observations(self, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """What every agent sees, shape (num_envs, num_agents, features); `vectors` says what stands where.

        Args:
            out: an array of that shape to write into; by default a new one.
        """
        # A truncated game is seen as it stands: learners bootstrap from there.
        flat = self._game.flat
        who = (flat.status == READY).nonzero()[0] if self.state.truncated.any() else self._game.turns[0]
        return build_observations(flat, who, self.rules, out)

    def states(self) -> NDArray[np.float32]:
        """The whole game, the right answer included, for centralised critics; shape (num_envs, features)."""
        return build_states(self.state, self.observations(), self.rules)

    def sample_actions(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """A uniform legal action for every agent, shape (num_envs, num_agents)."""
        actions: NDArray[np.int64] = np.zeros(self.state.status.shape, np.int64)
        actions.reshape(-1)[self._game.turns[0]] = self.sample_ready(rng)
        return actions

    def sample_ready(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """A uniform legal action for everyone who can act, in the order of `ready_agents`."""
        (counts, choices), (who, code) = self._choices, self._game.turns
        nth = (rng.random(len(who), np.float32) * counts[code]).astype(np.intp)
        nth *= len(counts)
        nth += code
        return choices.take(nth)

    def total_tokens(self) -> NDArray[np.int64]:
        """Tokens of the whole tree so far, prompts included, shape (num_envs,)."""
        spent = (self.state.prompt_tokens + self.state.generated_tokens) * (self.state.status != UNBORN)
        total: NDArray[np.int64] = spent.sum(axis=1, dtype=np.int64)
        return total

    def problems(self) -> ProblemBatch:
        """The problems being played, as they were drawn."""
        return self._game.problems()

    # What can be done

    def reset(
        self, seed: int | None = None, *, keys: Keys | None = None, envs: NDArray[np.bool_] | None = None
    ) -> None:
        """Start the first episode of every environment, or without seed and keys the next one.

        Args:
            seed: equal seeds give equal series of problems, whatever the size of the batch.
            keys: one per environment, shape (num_envs,), instead of a seed. Equal keys play the same problem.
            envs: which environments, same shape; by default all. Keys of others are not looked at.
        """
        if seed is not None and keys is not None:
            raise ConfigError(f"seed is {seed!r} and keys are given too; expected one of them, or none")
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, (int, np.integer))):
            raise ConfigError(f"seed is {seed!r}; expected a whole number, or None")
        if keys is not None:
            keys = whole_numbers(keys, (self.num_envs,), "environment", "keys").astype(np.uint64)
        which = np.ones(self.num_envs, bool) if envs is None else self._checked(envs)
        if seed is not None or keys is not None or not self._seeded:
            if keys is None:
                keys = make_keys(secrets.randbits(63) if seed is None else seed, self.num_envs)
            if envs is None or not self._seeded:
                self._bind(make_blank_state(self.rules, self.num_envs))
                self.state.keys[:] = keys
            else:
                self._game.begin(which, keys)
        self.restart(which)

    def restart(self, envs: NDArray[np.bool_] | None = None) -> None:
        """Start the next episode of some environments, by default of those that are over.

        Args:
            envs: which, shape (num_envs,).
        """
        which = (self.done if envs is None else self._checked(envs)).nonzero()[0]
        if which.size:
            self._game.start(which)

    def step(self, actions: NDArray[np.integer[Any]], acting: NDArray[np.bool_] | None = None) -> None:
        """Play one joint step.

        Args:
            actions: shape (num_envs, num_agents). Those of agents that cannot act are ignored. An illegal one is taken
                for WAIT and counted; an illegal one costs a turn and one prompt token, the notice of the fault.
            acting: of the agents that can act, those that do, same shape; by default all of them.
        """
        actions = whole_numbers(actions, self.state.status.shape, "environment and agent")
        if acting is not None:
            acting = _checked_mask("acting", acting, actions.shape)
        who, code = self._game.turns
        if acting is not None:
            chosen = acting.reshape(-1)[who]
            who, code = who[chosen], code[chosen]
        self._play(who, code, actions.reshape(-1)[who])

    def step_ready(self, actions: NDArray[np.integer[Any]]) -> None:
        """A joint step of all who can act.

        Args:
            actions: one for each, in the order of `ready_agents`; as in `step`.
        """
        who, code = self._game.turns
        self._play(who, code, whole_numbers(actions, (len(who),), "agent that can act"))

    def step_next(self, actions: NDArray[np.integer[Any]]) -> None:
        """One decision in every environment: that of its next agent (`next_agents`).

        Args:
            actions: shape (num_envs,), as in `step`.
        """
        actions, (who, code) = whole_numbers(actions, (self.num_envs,), "environment"), self._game.next
        playing = ~self.done
        self._play(who[playing], code[playing], actions[playing])

    def remove(self, envs: Index, agents: Index) -> None:
        """Take agents that have just been born out of the game: nothing of them is charged and their reply is missing.

        For counterfactuals: what would have been without them. Their parents' grants to others stay as they were. Their
        seats stay taken, so their births still count against `max_clones`.
        """
        self._game.remove(envs * self.num_agents + agents)

    def get_snapshot(self) -> State:
        """An independent copy of everything that changes."""
        return self.state.copy()

    def set_snapshot(self, state: State) -> None:
        """Go on from a snapshot, or from any state of these rules; the size of the batch becomes the state's."""
        if not isinstance(state, State):
            raise ConfigError(f"the snapshot is of type {type(state).__name__}; expected what get_snapshot() returns")
        sizes, own = ((s.status.shape[1], s.tape.shape[1]) for s in (state, self.state))
        if sizes != own:
            raise ConfigError(f"the state has {sizes[0]} agents and {sizes[1]} symbols per environment; expected {own}")
        self._bind(state.copy())

    def __getstate__(self) -> tuple[SymbolicRules, int | None, State, bool]:
        """What pickle and deepcopy keep: not the second view of the state's memory, which would become a copy."""
        return self.rules, self.max_cycles, self.state, self._seeded

    def __setstate__(self, saved: tuple[SymbolicRules, int | None, State, bool]) -> None:
        self.rules, self.max_cycles, state, seeded = saved
        self.num_agents, self.num_actions = self.rules.num_agents, self.rules.num_actions
        self._game, self._seeded = Transition(self.rules, state), seeded

    def _play(self, who: Index, code: Index, actions: NDArray[np.integer[Any]]) -> None:
        if not self._seeded:
            raise GameError("no episode has been started; call reset() first")
        self._game.play(who, code, actions, self.max_cycles)

    def _checked(self, envs: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return _checked_mask("envs", envs, (self.num_envs,))

    def _bind(self, state: State) -> None:
        self._game, self._seeded = Transition(self.rules, state), True

    @cached_property
    def _choices(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """By legality code: how many actions are legal, and which is the n-th, at n * codes + code."""
        legal = self.rules.legal_table
        nth = np.argsort(~legal, axis=1, kind="stable").astype(np.int64)
        return legal.sum(axis=1).astype(np.float32), nth.T.copy()


def whole_numbers(values: Any, shape: tuple[int, ...], each: str, name: str = "actions") -> NDArray[np.integer[Any]]:
    """`values` as an array of whole numbers of a shape, with one number per `each`.

    Raises `ConfigError` for anything else; a bool, a float and a text are no whole number.
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


def _checked_mask(name: str, mask: Any, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    array = np.asarray(mask)
    if array.dtype != bool or array.shape != shape:
        raise ConfigError(f"{name} is {array.dtype} of shape {array.shape}; expected bool of shape {shape}")
    return array
