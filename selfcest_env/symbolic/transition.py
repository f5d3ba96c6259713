"""The transition function: what a joint step, a birth, a join and an ending do to the arrays of a `State`.

Everything works on all environments at once. `who` is an index of agents over all environments (environment times
number of agents plus seat); parts of a call are the first axis, because sums over a short last axis are slow.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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
    flatten_agents,
)
from selfcest_env.symbolic.streams import Keys, draw_integers, draw_uniforms, fold_in
from selfcest_env.symbolic.tasks import ProblemBatch

STOCK = 1024  # problems that are drawn at once, at most

# What a key is used for.
_PROBLEM, _ERRORS = range(2)


class Stock(NamedTuple):
    """Problems drawn ahead, those of an environment side by side."""

    depth: int  # problems per environment
    first: NDArray[np.int64]  # of which episode the first one is; shape (envs,)
    tapes: NDArray[np.int8]
    lengths: NDArray[np.int16]
    targets: NDArray[np.int8]


class Transition:
    """The rules at work on one state, in place."""

    def __init__(self, rules: SymbolicRules, state: State) -> None:
        self.rules, self.state, self.flat = rules, state, flatten_agents(state)
        seats = np.arange(len(state.keys) * rules.num_agents)
        self._env = seats // rules.num_agents
        self._seat = (seats % rules.num_agents).astype(np.int16)
        self._root_of = self._env * rules.num_agents
        self._tape_of = self._env * rules.tape_length
        self._roots = self._root_of[:: rules.num_agents]
        self._stock: Stock | None = None
        self._turns: tuple[Index, Index] | None = None
        self._next: tuple[Index, Index] | None = None

    @property
    def turns(self) -> tuple[Index, Index]:
        """Who can act, in order, and the code of what is legal for each (`SymbolicRules.legal_table`)."""
        if self._turns is None:
            who, truncated = (self.flat.status == READY).nonzero()[0], self.state.truncated
            if np.count_nonzero(truncated):
                who = who[~truncated[self._env[who]]]
            self._turns = who, self._codes(who)
        return self._turns

    @property
    def next(self) -> tuple[Index, Index]:
        """Who is next (`BatchDelegation.next_agents`), one per environment, and its code, that of WAIT where a game is
        over."""
        if self._next is None:
            who: Index = (self.state.status == READY).argmax(axis=1) + self._roots
            self._next = who, self._codes(who) * (self.flat.status[who] == READY) * ~self.state.truncated
        return self._next

    def places(self, who: Index) -> tuple[Index, Index]:
        """Environments and seats."""
        return self._env[who], who - self._root_of[who]

    def play(self, who: Index, code: Index, actions: NDArray[Any], max_cycles: int | None) -> None:
        """One joint step of some agents that can act, in order; one action for each."""
        action = self._checked(actions, code, who)
        self._forget()
        self._charge(who, self.rules.prices[action])
        is_call = action >= self.rules.first_call
        calls, others = is_call.nonzero()[0], (~is_call).nonzero()[0]
        if np.count_nonzero(action) < len(action):
            self._wait(who[action == WAIT])
            others = others[action[others] != WAIT]
        self._answer(who[others], action[others] - FIRST_ANSWER)
        if calls.size:
            self._call(who[calls], action[calls])
        self._join()
        state = self.state
        playing = ~(state.terminated | state.truncated)
        state.cycle += playing
        self._finish(playing)
        if max_cycles is not None:
            state.truncated |= ~state.terminated & (state.cycle >= max_cycles)

    def scores(self, envs: Index) -> NDArray[np.float64]:
        """What roots' answers are worth (`BatchDelegation.scores`), in some environments."""
        state, flat, rules, roots = self.state, self.flat, self.rules, self._roots[envs]
        answered: NDArray[np.bool_] = flat.status[roots] == ANSWERED
        if rules.forced_join_task is None:
            answered &= flat.tape[self._tape_of[roots]] == state.target[envs]
            return answered.astype(np.float64)
        handed_in = (self._tape_of[roots] + flat.segment_start[roots])[:, None] + np.arange(rules.num_targets)
        scores: NDArray[np.float64] = rules.forced_join_task.grade(
            flat.tape.take(handed_in, mode="clip") == state.target[envs]
        )
        return answered * scores

    def remove(self, who: Index) -> None:
        """See `BatchDelegation.remove`."""
        flat = self.flat
        if (flat.status[who] != READY).any() or flat.turns[who].any() or not self._seat[who].all():
            raise ConfigError("only clones that have been born and have not acted can be removed")
        flat.status[who] = ABSENT
        flat.tokens_left[who] += flat.prompt_tokens[who]
        flat.prompt_tokens[who] = 0
        self._forget()
        self._join()
        self._finish(~(self.state.terminated | self.state.truncated))

    def begin(self, envs: NDArray[np.bool_], keys: Keys) -> None:
        """Let some environments begin series of their own, with the next episode they start."""
        self.state.keys[envs], self.state.episode[envs] = keys[envs], 0
        self._stock = None

    def start(self, envs: Index) -> None:
        """Start the next episode of some environments."""
        state, flat, rules = self.state, self.flat, self.rules
        self._forget()
        tapes, lengths, targets = self._drawn(envs)
        state.episode[envs] += 1
        for count in (state.cycle, state.terminated, state.truncated, state.team_return):
            count[envs] = 0
        state.num_born[envs], state.tape_end[envs] = 1, rules.replies_at
        state.target[envs] = targets
        state.tape[envs] = tapes
        state.status[envs] = UNBORN
        roots = self._roots[envs]
        flat.parent[roots] = ROOT_PARENT
        for place in (flat.depth, flat.birth_index, flat.reply_cell):
            place[roots] = 0
        flat.segment_start[roots] = 1
        self._born(roots, lengths, rules.purses)

    def problems(self) -> ProblemBatch:
        """The problems being played, as they were drawn."""
        return self._problems(self.state.keys, self.state.episode - 1)

    def _problems(self, keys: Keys, episode: NDArray[np.int64]) -> ProblemBatch:
        return self.rules.task.draw(fold_in(keys, episode, _PROBLEM))

    def _drawn(self, envs: Index) -> tuple[NDArray[np.int8], NDArray[np.int16], NDArray[np.int8]]:
        """Of the next episode of some environments: the tape, the length of the root's segment and the right answer.

        A draw costs a small batch the same for many problems as for one. So a stock is drawn for all environments, of
        twice as many episodes each time it runs out; problems are hashes of keys, and the same whenever they are drawn.
        """
        state, most = self.state, STOCK // len(self.state.keys)
        if most < 2:
            return self._tapes(state.keys[envs], state.episode[envs])
        if self._stock is not None:
            nth = state.episode[envs] - self._stock.first[envs]
            if np.count_nonzero(nth.view(np.uint64) < self._stock.depth) == len(envs):
                row = envs * self._stock.depth + nth
                return self._stock.tapes.take(row, axis=0), self._stock.lengths[row], self._stock.targets[row]
        depth = 1 if self._stock is None else min(2 * self._stock.depth, most)
        episodes = (state.episode[:, None] + np.arange(depth)).reshape(-1)
        self._stock = Stock(depth, state.episode.copy(), *self._tapes(state.keys.repeat(depth), episodes))
        return self._drawn(envs)

    def _tapes(
        self, keys: Keys, episodes: NDArray[np.int64]
    ) -> tuple[NDArray[np.int8], NDArray[np.int16], NDArray[np.int8]]:
        rules, problem = self.rules, self._problems(keys, episodes)
        tapes = np.full((len(keys), rules.tape_length), rules.missing, np.int8)
        tapes[:, 1 : 1 + rules.task.max_length] = problem.segments
        tapes[:, 1 + rules.task.max_length : rules.replies_at] = problem.facts
        return tapes, problem.lengths, problem.targets

    def _forget(self) -> None:
        """Whose turn it was."""
        self._turns = self._next = None

    def _checked(self, action: NDArray[Any], code: Index, who: Index) -> Index:
        """The actions as played: WAIT for whatever is not legal."""
        rules, action = self.rules, action.astype(np.intp, copy=False)
        # Read as unsigned, what is below 0 is too large.
        inside = action.view(np.uintp) < rules.num_actions
        legal = rules.legal_table.take(code * rules.num_actions + action, mode="clip")
        legal &= inside
        if np.count_nonzero(legal) == len(legal):
            return action
        self.flat.illegal[who] += ~legal
        return np.where(legal, action, WAIT)

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
        flat.tape[self._tape_of[who] + flat.reply_cell[who].astype(np.intp)] = value.astype(np.int8)

    def _with_errors(self, who: Index, value: Index) -> Index:
        """Answers as they come out: some are replaced by a uniform one."""
        state, flat, rules = self.state, self.flat, self.rules
        assert rules.reliability is not None
        env = self._env.take(who)
        keys = self._paths(fold_in(state.keys[env], state.episode[env], _ERRORS, flat.turns[who]), who)
        kept = draw_uniforms(keys) < rules.reliability[flat.segment_length[who].astype(np.intp)]
        # The low half of the word whose high half has just decided: independent of it.
        return np.where(kept, value, draw_integers(keys, 2, rules.task.num_answers)[1])

    def _paths(self, keys: Keys, who: Index) -> Keys:
        """Keys told apart by the path from the root to each agent: its number depends on who happened to act first."""
        flat = self.flat
        while (below := flat.parent.take(who) != ROOT_PARENT).any():
            keys = np.where(below, fold_in(keys, flat.birth_index.take(who)), keys)
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
        parts, column = rules.parts[action], rules.columns[action] + flat.segment_length[who].astype(np.intp)
        left = np.array([flat.tokens_left[who], flat.generated_left[who], flat.clones_left[who]])
        grants = self._grants(left, who, action)
        born = grants[0] >= rules.least_grants.take(column, axis=1)
        count = np.add.reduce(born, axis=0, dtype=np.int32)
        first_clone, first_cell = self._in_turn(self._env[who], np.array([count, parts]))
        left -= grants * count
        left[2] -= count
        flat.tokens_left[who], flat.generated_left[who], flat.clones_left[who] = left
        # One entry per clone from here on: who called, and for which part.
        place = born.reshape(-1).nonzero()[0]
        part = place // len(who)
        caller = place - part * len(who)
        refused = (parts - count).astype(np.intp)  # the longest parts, which come first
        parent, nth = who[caller], part - refused[caller]
        clone = (self._root_of[who] + first_clone)[caller] + nth
        cut = part * rules.part_starts.shape[1] + column[caller]
        begin = flat.segment_start[parent] + rules.part_starts.take(cut)
        if rules.task.num_facts:
            fact = rules.fact_at[action][caller]
            begin = np.where(fact, fact, begin)
        flat.parent[clone] = self._seat[parent]
        flat.birth_index[clone] = flat.num_clones[parent] + nth.astype(np.int16)
        flat.depth[clone] = flat.depth[parent] + np.int16(1)
        flat.segment_start[clone] = begin
        flat.reply_cell[clone] = (first_cell[caller] + part).astype(np.int16)
        self._born(clone, rules.part_lengths.take(cut), grants.take(caller, axis=1))
        clones = count.astype(np.int16)
        flat.status[who] = WAITING
        flat.segment_start[who], flat.segment_length[who] = first_cell.astype(np.int16), parts.astype(np.int16)
        flat.first_clone[who], flat.call_clones[who] = first_clone.astype(np.int16), clones
        flat.num_clones[who] += clones

    def _grants(self, left: NDArray[np.int32], who: Index, action: Index) -> NDArray[np.int32]:
        """What each clone of a call gets of tokens, generated tokens and clones, as what callers have left of them;
        both of shape (3, callers)."""
        flat, rules = self.flat, self.rules
        rest = left + rules.kept_back.take(action, axis=1)
        rest[2] *= rules.clones_call[flat.depth[who].astype(np.intp)]
        # Floor division by multiplication, six times as fast and exact below 2**50: the half keeps clear of rounding.
        return ((rest + 0.5) * rules.share[action]).astype(np.int32)

    def _in_turn(self, env: Index, counts: NDArray[np.int32]) -> NDArray[np.int32]:
        """Where the clones and the replies of each caller begin, one caller after another in each environment.

        Args:
            counts: clones and replies of each, shape (2, callers).
        """
        state = self.state
        first = np.arange(len(env))  # of the callers of an environment
        first[1:][env[1:] == env[:-1]] = 0
        np.maximum.accumulate(first, out=first)
        before = np.add.accumulate(counts, axis=1, dtype=np.int32) - counts
        begin = np.array([state.num_born[env], state.tape_end[env]])
        begin += before - before.take(first, axis=1)
        # Of several entries for an environment the last one stays.
        state.num_born[env], state.tape_end[env] = begin + counts
        return begin

    def _born(self, who: Index, length: NDArray[np.int16], grants: NDArray[np.int32]) -> None:
        flat = self.flat
        prompt = length.astype(np.int32) + np.int32(OPENING)
        flat.status[who] = READY
        flat.segment_length[who] = length
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
        # All clones of all calls in flight: those of a call have neighbouring seats.
        count = flat.call_clones[who].astype(np.intp)
        end = np.add.accumulate(count)
        first = self._root_of[who] + flat.first_clone[who].astype(np.intp)
        clones = (first - end + count).repeat(count) + np.arange(end[-1])
        over = _sums((flat.status[clones] < ANSWERED).astype(np.int32), end) == 0
        if not np.count_nonzero(over):
            return
        clones, who, end = clones[over.repeat(count)], who[over], np.add.accumulate(count[over])
        purses = flat.tokens_left, flat.generated_left, flat.clones_left
        for purse, back in zip(purses, _sums(np.array([purse[clones] for purse in purses]), end), strict=True):
            purse[who] += back
            purse[clones] = 0
        message = flat.segment_length[who] + np.int32(REPLIES)
        flat.tokens_left[who] -= message
        flat.prompt_tokens[who] += message
        flat.status[who] = READY
        if rules.forced_join_task is not None:
            # A turn of the rules' own: the replies as they stand are the answer.
            self._charge(who, np.full(len(who), RESERVE, np.int32))
            flat.status[who] = ANSWERED

    def _finish(self, playing: NDArray[np.bool_]) -> None:
        """End the episodes whose root has ended."""
        state, rules = self.state, self.rules
        over = (playing & (state.status[:, 0] >= ANSWERED)).nonzero()[0]
        if over.size:
            returns = self.scores(over)
            if rules.token_cost:
                spent = (rules.total_tokens or UNLIMITED) - self.flat.tokens_left[self._roots[over]]
                returns -= rules.token_cost * spent
            state.team_return[over] = returns
            state.terminated[over] = True

    def _codes(self, who: Index) -> Index:
        """What is legal for some agents whose turn is open."""
        flat, rules = self.flat, self.rules
        length, tokens = flat.segment_length[who].astype(np.intp), flat.tokens_left[who]
        code = rules.answerable[length]
        for kind in range(len(rules.call_parts)):
            enough = (tokens >= rules.least_tokens[rules.column(kind, length)]).astype(np.intp)
            enough <<= 1 + kind
            code |= enough
        code &= rules.codes_at_turn[flat.turns[who].astype(np.intp)]
        code &= rules.codes_at_depth[flat.depth[who].astype(np.intp)]
        code &= rules.codes_of_clones[flat.clones_left[who].astype(np.intp)]
        code &= rules.codes_of_generated.take(flat.generated_left[who], mode="clip")
        return code


def _sums(values: NDArray[np.int32], end: Index) -> NDArray[np.int32]:
    """Sums over neighbours along the last axis, each stretch of them up to the next of `end`."""
    # By sums of all that came before: `reduceat` is slow where stretches are short. What is too large wraps around, and
    # back in the differences.
    sums: NDArray[np.int32] = np.add.accumulate(values, axis=-1, dtype=np.int32).take(end - 1, axis=-1)
    sums[..., 1:] -= sums[..., :-1]
    return sums
