"""The transition function: what a joint step, a birth, a join and an ending do to the arrays of a `State`.

Everything works on all environments at once. `who` is an index of agents over all environments (environment times
number of agents plus seat); parts of a call are the first axis, because sums over a short last axis are slow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfcest_env.errors import ConfigError
from selfcest_env.symbolic.rules import FIRST_ANSWER, NOTICE, OPENING, REPLIES, RESERVE, UNLIMITED, WAIT, SymbolicRules
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
    flattened,
)
from selfcest_env.symbolic.streams import Keys, fold, integers, uniforms
from selfcest_env.symbolic.tasks import Instances
from selfcest_env.symbolic.vectors import handed_in

# What a key is used for.
_PROBLEM, _ERRORS = range(2)


class Transition:
    """The rules at work on one state, in place."""

    def __init__(self, rules: SymbolicRules, state: State) -> None:
        self.rules, self.state, self.flat = rules, state, flattened(state)
        seats = np.arange(len(state.keys) * rules.num_agents)
        self._env = seats // rules.num_agents
        self._seat = (seats % rules.num_agents).astype(np.int16)
        self._root_of = self._env * rules.num_agents
        self._tape_of = self._env * rules.tape_length
        self._nth = np.arange(rules.max_parts)[:, None]
        self._turns: tuple[Index, Index] | None = None

    @property
    def turns(self) -> tuple[Index, Index]:
        """Who can act, in order, and the code of what is legal for each (`SymbolicRules.legal_table`)."""
        if self._turns is None:
            self._turns = self._open_turns()
        return self._turns

    def play(self, actions: NDArray[Any], acting: NDArray[np.bool_] | None, max_cycles: int | None) -> None:
        """One joint step; the arguments of `BatchDelegation.step`, with one axis for all agents."""
        who, code = self.turns
        if acting is not None:
            chosen = acting[who]
            who, code = who[chosen], code[chosen]
        action = self._checked(actions.take(who), code, who)
        self._turns = None
        self._charge(who, self.rules.prices.take(action))
        is_call, is_wait = action >= self.rules.first_call, action == WAIT
        answers, calls, waits = (~(is_call | is_wait)).nonzero()[0], is_call.nonzero()[0], is_wait.nonzero()[0]
        self._answer(who.take(answers), action.take(answers) - FIRST_ANSWER)
        if calls.size:
            self._call(who.take(calls), action.take(calls))
        if waits.size:
            self._wait(who.take(waits))
        self._join()
        state = self.state
        state.cycle += ~(state.terminated | state.truncated)
        self._finish()
        if max_cycles is not None:
            state.truncated |= ~state.terminated & (state.cycle >= max_cycles)

    def scores(self) -> NDArray[np.float64]:
        """See `BatchDelegation.scores`."""
        state, joined = self.state, self.rules.joined
        answered: NDArray[np.bool_] = state.status[:, 0] == ANSWERED
        if joined is None:
            right = state.tape[:, 0] == state.target
        else:
            right = joined.grade(handed_in(state, self.rules) == state.target)
        scores: NDArray[np.float64] = answered * right.astype(np.float64)
        return scores

    def remove(self, who: Index) -> None:
        """See `BatchDelegation.remove`."""
        flat = self.flat
        if (flat.status[who] != READY).any() or flat.turns[who].any() or not self._seat[who].all():
            raise ConfigError("only clones that have been born and have not acted can be removed")
        flat.status[who] = ABSENT
        flat.tokens_left[who] += flat.prompt_tokens[who]
        flat.prompt_tokens[who] = 0
        self._turns = None
        self._join()
        self._finish()

    def start(self, envs: Index) -> None:
        """Start the next episode of some environments."""
        state, flat, rules = self.state, self.flat, self.rules
        self._turns = None
        problem = self._problems(state.keys[envs], state.episode[envs])
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
        roots = envs * rules.num_agents
        flat.parent[roots] = ROOT_PARENT
        for place in (flat.depth, flat.birth, flat.cell):
            place[roots] = 0
        flat.start[roots] = 1
        purses = (rules.total_tokens or UNLIMITED, rules.generated_tokens or UNLIMITED, rules.max_clones)
        self._born(roots, problem.lengths, np.repeat(np.array([purses], np.int32).T, len(roots), axis=1))

    def problems(self) -> Instances:
        """The problems being played, as they were drawn."""
        return self._problems(self.state.keys, self.state.episode - 1)

    def _problems(self, keys: Keys, episode: NDArray[np.int64]) -> Instances:
        return self.rules.task.draw(fold(keys, episode, _PROBLEM))

    def _checked(self, action: NDArray[Any], code: Index, who: Index) -> Index:
        """The actions as played: WAIT for whatever is not legal."""
        inside = (action >= 0) & (action < self.rules.num_actions)
        if not inside.all():
            action = np.where(inside, action, WAIT)
        legal = self.rules.legal_table.take(code * self.rules.num_actions + action)
        legal &= inside
        if legal.all():
            return action.astype(np.intp, copy=False)
        self.flat.illegal[who] += ~legal
        return np.where(legal, action, WAIT).astype(np.intp)

    def _charge(self, who: Index, tokens: NDArray[np.int32]) -> None:
        """Count a turn, and charge what was generated in it."""
        flat, cost = self.flat, np.zeros(len(self.flat.status), np.int32)
        flat.turns[who] += np.int16(1)
        # Added for everybody: cheaper than to pick out those who generated, three times.
        cost[who] = tokens
        flat.generated_tokens += cost
        flat.tokens_left -= cost
        flat.generated_left -= cost

    def _answer(self, who: Index, value: Index) -> None:
        flat = self.flat
        if self.rules.reliability is not None:
            value = self._with_errors(who, value)
        flat.status[who] = ANSWERED
        flat.tape[self._tape_of.take(who) + flat.cell.take(who)] = value.astype(np.int8)

    def _with_errors(self, who: Index, value: Index) -> Index:
        """Answers as they come out: some are replaced by a uniform one."""
        state, flat, rules = self.state, self.flat, self.rules
        assert rules.reliability is not None
        env = self._env.take(who)
        keys = self._paths(fold(state.keys[env], state.episode[env], _ERRORS, flat.turns[who]), who)
        kept = uniforms(keys) < rules.reliability[flat.length[who]]
        # The low half of the word whose high half has just decided: independent of it.
        return np.where(kept, value, integers(keys, 2, rules.task.num_answers)[1])

    def _paths(self, keys: Keys, who: Index) -> Keys:
        """Keys told apart by the path from the root to each agent: its number depends on who happened to act first."""
        flat = self.flat
        while (below := flat.parent.take(who) != ROOT_PARENT).any():
            keys = np.where(below, fold(keys, flat.birth.take(who)), keys)
            who = self._root_of.take(who) + flat.parent.take(who) * below
        return keys

    def _wait(self, who: Index) -> None:
        """A turn that led to nothing: a line says so, or it was the agent's last."""
        flat = self.flat
        out_of_turns = flat.turns[who] >= self.rules.max_turns
        poor = (flat.tokens_left[who] < NOTICE + 2 * RESERVE) | (flat.generated_left[who] < 2 * RESERVE)
        flat.status[who] = np.where(out_of_turns, OUT_OF_TURNS, np.where(poor, OUT_OF_TOKENS, READY))
        on = who[~(out_of_turns | poor)]
        flat.tokens_left[on] -= NOTICE
        flat.prompt_tokens[on] += NOTICE

    def _call(self, who: Index, action: Index) -> None:
        """Give birth to every clone that its grant can carry; refused ones cost nothing. Parts are the first axis."""
        flat, rules = self.flat, self.rules
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
        place = born.reshape(-1).nonzero()[0]
        part = place // len(who)
        caller = place - part * len(who)
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
        flat, rules = self.flat, self.rules
        tokens = flat.tokens_left.take(who) - (REPLIES + parts + RESERVE)
        generated = flat.generated_left.take(who) - RESERVE
        clones = (flat.clones_left.take(who) - parts) * (flat.depth.take(who) + 1 < rules.max_depth)
        # Floor division by multiplication, six times as fast and exact below 2**50: the half keeps clear of rounding.
        return ((np.stack([tokens, generated, clones]) + 0.5) * (1.0 / parts)).astype(np.int32)

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
        flat = self.flat
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
        flat, rules = self.flat, self.rules
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
        if rules.joined is not None:
            # A turn of the rules' own: the replies as they stand are the answer.
            self._charge(who, np.full(len(who), RESERVE, np.int32))
            flat.status[who] = ANSWERED

    def _clones_of(self, who: Index) -> tuple[Index, NDArray[np.bool_]]:
        """The clones of the calls in flight, and which entries are any; both of shape (max_parts, callers)."""
        flat = self.flat
        first = self._root_of.take(who) + flat.first_clone.take(who)
        return first + self._nth, self._nth < flat.call_clones.take(who)

    def _finish(self) -> None:
        """End the episodes whose root has ended."""
        state, rules = self.state, self.rules
        playing = ~(state.terminated | state.truncated)
        over = (playing & (state.status[:, 0] >= ANSWERED)).nonzero()[0]
        if over.size:
            spent = (rules.total_tokens or UNLIMITED) - self.flat.tokens_left[over * rules.num_agents]
            state.team_return[over] = self.scores()[over] - rules.token_cost * spent
            state.terminated[over] = True

    def _open_turns(self) -> tuple[Index, Index]:
        flat, rules = self.flat, self.rules
        who = (flat.status == READY).nonzero()[0]
        if self.state.truncated.any():
            who = who[~self.state.truncated.take(self._env.take(who))]
        length = flat.length.take(who).astype(np.intp)
        code = rules.answerable.take(length).astype(np.intp)
        may_call = (flat.turns.take(who) < rules.max_turns - 1) & (flat.depth.take(who) < rules.max_depth)
        tokens, generated, clones = (p.take(who) for p in (flat.tokens_left, flat.generated_left, flat.clones_left))
        for kind, parts in enumerate(rules.call_parts):
            enough = tokens >= rules.least_tokens.take(rules.column(kind, length))
            enough &= may_call & (clones >= parts) & (generated >= 2 * parts + RESERVE)
            code += enough * (2 << kind)
        return who, code
