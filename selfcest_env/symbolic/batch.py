"""The symbolic game for many environments at once: the one transition function that every other view wraps.

The rules are those of the text game's kernel: nested accounts, equal shares, replies reserved before clones start,
money back when a whole call has joined. Agents that act in the same step cannot see or touch each other's accounts, so
all of them move at once and their order does not matter.
"""

from __future__ import annotations

import secrets
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfcest_env.errors import ConfigError
from selfcest_env.symbolic.rules import (
    FIRST_ANSWER,
    MAX_TOKENS,
    NOTICE,
    OPENING,
    REPLIES,
    RESERVE,
    UNLIMITED,
    WAIT,
    SymbolicRules,
    check_within,
)
from selfcest_env.symbolic.state import (
    ABSENT,
    ANSWERED,
    OUT_OF_TOKENS,
    OUT_OF_TURNS,
    READY,
    ROOT_PARENT,
    UNBORN,
    WAITING,
    Index,
    State,
    blank,
    flattened,
)
from selfcest_env.symbolic.streams import Keys, fold, integers, seeds_of, uniforms
from selfcest_env.symbolic.tasks import Instances
from selfcest_env.symbolic.vectors import observations, states

# What a key is used for.
_PROBLEM, _ERRORS = range(2)


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
        check_within("num_envs", num_envs, 1, MAX_TOKENS)
        if max_cycles is not None:
            check_within("max_cycles", max_cycles, 1, MAX_TOKENS)
        self.rules, self.num_envs, self.max_cycles = rules, num_envs, max_cycles
        self._cached_turns: tuple[Index, Index] | None = None
        self.num_agents, self.num_actions = rules.num_agents, rules.num_actions
        self._bind(blank(rules, num_envs))
        self._seeded = False

    # What can be asked

    @property
    def can_act(self) -> NDArray[np.bool_]:
        """Whose turn is open, shape (num_envs, num_agents)."""
        able = np.zeros(self.state.status.shape, bool)
        able.reshape(-1)[self._turns[0]] = True
        return able

    @property
    def done(self) -> NDArray[np.bool_]:
        """Shape (num_envs,)."""
        return self.state.terminated | self.state.truncated

    def action_masks(self) -> NDArray[np.bool_]:
        """Legal actions, shape (num_envs, num_agents, num_actions). Who cannot act can only wait."""
        who, code = self._turns
        codes = np.zeros(self.state.status.shape, np.intp)
        codes.reshape(-1)[who] = code
        return self.rules.legal_table.take(codes, axis=0)

    def observations(self, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """What every agent sees, shape (num_envs, num_agents, features); `vectors` says what stands where.

        Args:
            out: an array of that shape to write into; by default a new one.
        """
        # A truncated game is seen as it stands: learners bootstrap from there.
        who = self._turns[0] if self.max_cycles is None else (self._flat.status == READY).nonzero()[0]
        return observations(self._flat, who, self.rules, out)

    def states(self) -> NDArray[np.float32]:
        """The whole game, the right answer included, for centralised critics; shape (num_envs, features)."""
        return states(self.state, self.observations(), self.rules)

    def sample_actions(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """A uniform legal action for every agent, shape (num_envs, num_agents)."""
        counts, choices = self._choices
        actions: NDArray[np.int64] = np.zeros(self.state.status.shape, np.int64)
        who, code = self._turns
        nth = (rng.random(len(who), np.float32) * counts.take(code)).astype(np.intp)
        actions.reshape(-1)[who] = choices.take(nth * len(counts) + code)
        return actions

    def total_tokens(self) -> NDArray[np.int64]:
        """Tokens of the whole tree so far, prompts included, shape (num_envs,)."""
        spent = (self.state.prompt_tokens + self.state.generated_tokens) * (self.state.status != UNBORN)
        total: NDArray[np.int64] = spent.sum(axis=1, dtype=np.int64)
        return total

    def problems(self) -> Instances:
        """The problems being played, as they were drawn."""
        return self.rules.task.draw(fold(self.state.keys, self.state.episode - 1, _PROBLEM))

    # What can be done

    def reset(self, seed: int | None = None, *, keys: Keys | None = None) -> None:
        """Start the first episode of every environment, or without arguments the next one.

        Args:
            seed: equal seeds give equal series of problems, whatever the size of the batch.
            keys: one per environment, shape (num_envs,), instead of a seed. Equal keys play the same problem.
        """
        if seed is not None or keys is not None or not self._seeded:
            if keys is None:
                keys = seeds_of(secrets.randbits(63) if seed is None else seed, self.num_envs)
            self._bind(blank(self.rules, self.num_envs))
            self.state.keys[:] = keys
            self._seeded = True
        self.restart(np.ones(self.num_envs, bool))

    def restart(self, envs: NDArray[np.bool_] | None = None) -> None:
        """Start the next episode of some environments, by default of those that are over."""
        which = np.flatnonzero(self.done if envs is None else envs)
        if which.size:
            self._start(which)

    def step(self, actions: NDArray[np.integer[Any]], acting: NDArray[np.bool_] | None = None) -> None:
        """Play one joint step.

        Args:
            actions: shape (num_envs, num_agents). Those of agents that cannot act are ignored. An illegal one is taken
                for WAIT and counted; a WAIT of an agent that could act costs it a turn and a line of notice.
            acting: of the agents that can act, those that do, same shape; by default all of them.
        """
        rules = self.rules
        who, code = self._turns
        if acting is not None:
            chosen = acting.reshape(-1)[who]
            who, code = who[chosen], code[chosen]
        if np.shape(actions) != self.state.status.shape:
            expected = f"(num_envs, num_agents) = {self.state.status.shape}"
            raise ConfigError(f"actions have the shape {np.shape(actions)}; expected {expected}")
        action = self._checked(np.asarray(actions).reshape(-1).take(who), code, who)
        self._cached_turns = None
        self._charge(who, rules.prices.take(action))
        is_call, is_wait = action >= rules.first_call, action == WAIT
        answers, calls, waits = (~(is_call | is_wait)).nonzero()[0], is_call.nonzero()[0], is_wait.nonzero()[0]
        self._answer(who.take(answers), action.take(answers) - FIRST_ANSWER)
        if calls.size:
            self._call(who.take(calls), action.take(calls))
        if waits.size:
            self._wait(who.take(waits))
        self._join()
        self._finish()

    def remove(self, envs: Index, agents: Index) -> None:
        """Take agents that have just been born out of the game: nothing of them is charged and their reply is missing.

        For counterfactuals: what would have been without them. Their parents' grants to others stay as they were. Their
        seats stay taken, so their births still count against `max_clones`.
        """
        flat, who = self._flat, envs * self.num_agents + agents
        if (flat.status[who] != READY).any() or flat.turns[who].any() or not agents.all():
            raise ConfigError("only clones that have been born and have not acted can be removed")
        flat.status[who] = ABSENT
        flat.tokens_left[who] += flat.prompt_tokens[who]
        flat.prompt_tokens[who] = 0
        self._cached_turns = None
        self._join()

    def get_snapshot(self) -> State:
        """An independent copy of everything that changes."""
        return self.state.copy()

    def set_snapshot(self, state: State) -> None:
        """Go on from a snapshot, or from any state of these rules; the size of the batch becomes the state's."""
        self._bind(state.copy())
        self._seeded = True

    def __getstate__(self) -> tuple[SymbolicRules, int | None, State, bool]:
        """What pickle and deepcopy keep: not the second view of the state's memory, which would become a copy."""
        return self.rules, self.max_cycles, self.state, self._seeded

    def __setstate__(self, saved: tuple[SymbolicRules, int | None, State, bool]) -> None:
        rules, max_cycles, state, seeded = saved
        self.__init__(rules, len(state.keys), max_cycles=max_cycles)  # type: ignore[misc]
        self._bind(state)
        self._seeded = seeded

    def _bind(self, state: State) -> None:
        self.state, self.num_envs = state, len(state.keys)
        self._flat = flattened(state)
        count = self.num_envs * self.num_agents
        self._env = np.arange(count) // self.num_agents
        self._seat = (np.arange(count) % self.num_agents).astype(np.int16)
        self._root_of = self._env * self.num_agents
        self._tape_of = self._env * self.rules.tape_length
        self._cached_turns = None

    @property
    def _turns(self) -> tuple[Index, Index]:
        """Who can act, in order, and the code of what is legal for each (`SymbolicRules.legal_table`)."""
        if self._cached_turns is None:
            self._cached_turns = self._open_turns()
        return self._cached_turns

    # The transition

    def _checked(self, action: NDArray[Any], code: Index, who: Index) -> Index:
        """The actions as played: WAIT for whatever is not legal."""
        if action.dtype.kind not in "iu":
            raise ConfigError(f"actions are {action.dtype}; expected whole numbers")
        inside = (action >= 0) & (action < self.num_actions)
        if not inside.all():
            action = np.where(inside, action, WAIT)
        legal = self.rules.legal_table.take(code * self.num_actions + action)
        legal &= inside
        if legal.all():
            return action.astype(np.intp, copy=False)
        self._flat.illegal[who] += ~legal
        return np.where(legal, action, WAIT).astype(np.intp)

    def _charge(self, who: Index, tokens: NDArray[np.int32]) -> None:
        """Count a turn, and charge what was generated in it."""
        flat, cost = self._flat, np.zeros(len(self._flat.status), np.int32)
        flat.turns[who] += np.int16(1)
        # Added for everybody: cheaper than to pick out those who generated, three times.
        cost[who] = tokens
        flat.generated_tokens += cost
        flat.tokens_left -= cost
        flat.generated_left -= cost

    def _answer(self, who: Index, value: Index) -> None:
        flat = self._flat
        if self.rules.reliability is not None:
            value = self._with_errors(who, value)
        flat.status[who] = ANSWERED
        flat.tape[self._tape_of.take(who) + flat.cell.take(who)] = value.astype(np.int8)

    def _with_errors(self, who: Index, value: Index) -> Index:
        """Answers as they come out: some are replaced by a uniform one."""
        state, flat, rules = self.state, self._flat, self.rules
        assert rules.reliability is not None
        env = self._env.take(who)
        keys = self._paths(fold(state.keys[env], state.episode[env], _ERRORS, flat.turns[who]), who)
        kept = uniforms(keys) < rules.reliability[flat.length[who]]
        # The low half of the word whose high half has just decided: independent of it.
        return np.where(kept, value, integers(keys, 2, rules.task.num_answers)[1])

    def _paths(self, keys: Keys, who: Index) -> Keys:
        """Keys told apart by the path from the root to each agent: its number depends on who happened to act first."""
        flat = self._flat
        while (below := flat.parent.take(who) != ROOT_PARENT).any():
            keys = np.where(below, fold(keys, flat.birth.take(who)), keys)
            who = self._root_of.take(who) + flat.parent.take(who) * below
        return keys

    def _wait(self, who: Index) -> None:
        """A turn that led to nothing: a line says so, or it was the agent's last."""
        flat = self._flat
        out_of_turns = flat.turns[who] >= self.rules.max_turns
        poor = (flat.tokens_left[who] < NOTICE + 2 * RESERVE) | (flat.generated_left[who] < 2 * RESERVE)
        flat.status[who] = np.where(out_of_turns, OUT_OF_TURNS, np.where(poor, OUT_OF_TOKENS, READY))
        on = who[~(out_of_turns | poor)]
        flat.tokens_left[on] -= NOTICE
        flat.prompt_tokens[on] += NOTICE

    def _call(self, who: Index, action: Index) -> None:
        """Give birth to every clone that its grant can carry; refused ones cost nothing. Parts are the first axis."""
        flat, rules = self._flat, self.rules
        kind = rules.kinds.take(action)
        parts = rules.part_counts.take(kind)
        column = rules.column(kind, flat.length.take(who))
        grants = self._grants(who, parts)
        born = grants[0] >= rules.least_grants.take(column, axis=1)
        count = born.sum(axis=0, dtype=np.int32)
        refused = parts - count  # the longest parts, which come first
        env = self._env.take(who)
        first_clone = self._in_turn(env, self.state.num_born, count).astype(np.int16)
        first_cell = self._in_turn(env, self.state.tape_end, parts).astype(np.int16)
        for purse, grant in zip((flat.tokens_left, flat.generated_left, flat.clones_left), grants, strict=True):
            purse[who] -= grant * count
        flat.clones_left[who] -= count
        # One entry per clone from here on: who called, and for which part.
        part, caller = born.nonzero()
        parent, nth = who.take(caller), (part - refused.take(caller)).astype(np.int16)
        clone = (self._root_of.take(who) + first_clone).take(caller) + nth
        cut = part * rules.part_starts.shape[1] + column.take(caller)
        begin = flat.start.take(parent) + rules.part_starts.take(cut)
        fact = rules.fact_at.take(action).take(caller)
        flat.parent[clone] = self._seat.take(parent)
        flat.birth[clone] = flat.num_clones.take(parent) + nth
        flat.depth[clone] = flat.depth.take(parent) + np.int16(1)
        flat.start[clone] = np.where(fact, fact, begin) if fact.any() else begin
        flat.cell[clone] = first_cell.take(caller) + part.astype(np.int16)
        self._born(clone, rules.part_lengths.take(cut), grants.take(caller, axis=1))
        flat.status[who] = WAITING
        flat.start[who], flat.length[who] = first_cell, parts.astype(np.int16)
        flat.first_clone[who], flat.call_clones[who] = first_clone, count.astype(np.int16)
        flat.num_clones[who] += count.astype(np.int16)

    def _grants(self, who: Index, parts: NDArray[np.int32]) -> NDArray[np.int32]:
        """What each clone of a call gets of tokens, generated tokens and clones; shape (3, callers)."""
        flat, rules = self._flat, self.rules
        tokens = flat.tokens_left.take(who) - (REPLIES + parts + RESERVE)
        generated = flat.generated_left.take(who) - RESERVE
        clones = (flat.clones_left.take(who) - parts) * (flat.depth.take(who) + 1 < rules.max_depth)
        return np.stack([tokens, generated, clones]) // parts

    def _in_turn(self, env: Index, ends: NDArray[np.int32], count: NDArray[np.int32]) -> NDArray[np.int32]:
        """Where each caller's stretch of `count` places begins, one caller after another in each environment."""
        opens = np.empty(len(env), bool)
        opens[0] = True
        np.not_equal(env[1:], env[:-1], out=opens[1:])
        begin = ends.take(env)
        if opens.all():
            ends[env] += count
            return begin
        before = np.cumsum(count) - count
        # What stands before the first caller of an environment belongs to other environments.
        begin += (before - np.maximum.accumulate(np.where(opens, before, 0))).astype(np.int32)
        np.add.at(ends, env, count)
        return begin

    def _born(self, who: Index, length: NDArray[np.int16], grants: NDArray[np.int32]) -> None:
        flat = self._flat
        prompt = length.astype(np.int32) + np.int32(OPENING)
        flat.status[who] = READY
        flat.length[who] = length
        flat.granted[who], flat.generated_left[who], flat.clones_left[who] = grants
        flat.tokens_left[who] = grants[0] - prompt
        flat.prompt_tokens[who] = prompt
        for count in (flat.generated_tokens, flat.turns, flat.num_clones, flat.illegal):
            count[who] = 0

    def _join(self) -> None:
        """Where a whole call has ended: what is left flows back, then all replies arrive as one message."""
        flat = self._flat
        who = (flat.status == WAITING).nonzero()[0]
        if not who.size:
            return
        clones, born = self._clones_of(who)
        over = ((flat.status.take(clones, mode="clip") >= ANSWERED) | ~born).all(axis=0)
        if not over.all():
            who = who[over]
            if not who.size:
                return
            clones, born = self._clones_of(who)
        theirs = clones[born]
        for purse in (flat.tokens_left, flat.generated_left, flat.clones_left):
            purse[who] += (purse.take(clones, mode="clip") * born).sum(axis=0, dtype=np.int32)
            purse[theirs] = 0
        message = flat.length.take(who) + np.int32(REPLIES)
        flat.tokens_left[who] -= message
        flat.prompt_tokens[who] += message
        flat.status[who] = READY

    def _clones_of(self, who: Index) -> tuple[Index, NDArray[np.bool_]]:
        """The clones of the calls in flight, and which entries are any; both of shape (max_parts, callers)."""
        flat, number = self._flat, np.arange(self.rules.max_parts)[:, None]
        first = self._root_of.take(who) + flat.first_clone.take(who)
        return first + number, number < flat.call_clones.take(who)

    def _finish(self) -> None:
        """End the episodes whose root has ended, and those that have lasted too long."""
        state, rules = self.state, self.rules
        playing = ~(state.terminated | state.truncated)
        state.cycle += playing
        over = (playing & (state.status[:, 0] >= ANSWERED)).nonzero()[0]
        if over.size:
            status, roots = state.status[over, 0], over * self.num_agents
            right = (status == ANSWERED) & (state.tape[over, 0] == state.target[over])
            spent = (rules.total_tokens or UNLIMITED) - self._flat.tokens_left[roots]
            state.team_return[over] = right - rules.token_cost * spent
            state.terminated[over] = True
            playing[over] = False
        if self.max_cycles is not None:
            state.truncated |= playing & (state.cycle >= self.max_cycles)

    def _open_turns(self) -> tuple[Index, Index]:
        flat, rules = self._flat, self.rules
        who = (flat.status == READY).nonzero()[0]
        if self.max_cycles is not None:
            who = who[~self.state.truncated.take(self._env.take(who))]
        length = flat.length.take(who).astype(np.intp)
        code = rules.answerable.take(length).astype(np.intp)
        may_call = (flat.turns.take(who) < rules.max_turns - 1) & (flat.depth.take(who) < rules.max_depth)
        tokens, generated, clones = (p.take(who) for p in (flat.tokens_left, flat.generated_left, flat.clones_left))
        for kind, parts in enumerate(rules.part_counts[: len(rules.task.calls)]):
            enough = tokens >= rules.least_tokens.take(rules.column(kind, length))
            enough &= may_call & (clones >= parts) & (generated >= 2 * parts + RESERVE)
            code += enough * (2 << kind)
        return who, code

    def _start(self, envs: Index) -> None:
        """Start the next episode of some environments."""
        state, flat, rules = self.state, self._flat, self.rules
        self._cached_turns = None
        problem = rules.task.draw(fold(state.keys[envs], state.episode[envs], _PROBLEM))
        state.episode[envs] += 1
        for count in (state.cycle, state.terminated, state.truncated, state.team_return):
            count[envs] = 0
        state.num_born[envs], state.tape_end[envs] = 1, rules.replies_at
        state.target[envs] = problem.targets
        tape = np.full((len(envs), rules.tape_length), rules.missing, np.int8)
        tape[:, 1 : 1 + rules.task.max_length] = problem.segments
        tape[:, 1 + rules.task.max_length : rules.replies_at] = problem.facts
        state.tape[envs] = tape
        state.status[envs] = UNBORN
        roots = envs * self.num_agents
        flat.parent[roots] = ROOT_PARENT
        for place in (flat.depth, flat.birth, flat.cell):
            place[roots] = 0
        flat.start[roots] = 1
        purses = (rules.total_tokens or UNLIMITED, rules.generated_tokens or UNLIMITED, rules.max_clones)
        self._born(roots, problem.lengths, np.repeat(np.array([purses], np.int32).T, len(roots), axis=1))

    @cached_property
    def _choices(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """By legality code: how many actions are legal, and which is the n-th, at n * codes + code."""
        legal = self.rules.legal_table
        nth = np.argsort(~legal, axis=1, kind="stable").astype(np.int64)
        return legal.sum(axis=1).astype(np.float32), nth.T.copy()
