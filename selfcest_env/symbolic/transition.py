"""The transition function: it applies a joint step, a birth, a join or an ending to the arrays of a `State`.

Everything works on all environments at once. `agents` is always an array of flat agent indices: environment times
number of agents plus seat. Parts of a call are the first axis, because NumPy is slow at sums over a short last axis.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from selfcest_env.errors import ConfigError, TaskError
from selfcest_env.symbolic import tasks
from selfcest_env.symbolic.rules import NOTICE, OPENING, REPLIES, RESERVE, UNLIMITED, WAIT, SymbolicRules
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
    OpenTurns,
    State,
    flatten_agents,
    pack_balances,
)
from selfcest_env.symbolic.streams import Keys, draw_integers, draw_uniforms, fold_in
from selfcest_env.symbolic.tasks import ProblemBatch

MAX_STOCK = 1024  # maximum number of problems drawn at once

# NumPy converts a Python number at every operation, which takes as long as the operation on a small array. An array
# without axes is used as it is.
_READY = np.array(READY, np.int8)
_ANSWERED = np.array(ANSWERED, np.int8)
_ONE = np.array(1, np.int16)
_ZERO = np.array(0, np.int16)
_OPENING = np.array(OPENING, np.int32)
_REPLIES = np.array(REPLIES, np.int32)

# Purposes of a key, for `fold_in`.
_PROBLEM_STREAM, _ERROR_STREAM = range(2)


class ProblemStock(NamedTuple):
    """Problems that are drawn ahead; those of one environment are neighbours."""

    depth: int  # problems per environment
    first_episode: NDArray[np.int64]  # episode of the first problem, (envs,)
    tapes: NDArray[np.int8]
    lengths: NDArray[np.int16]
    targets: NDArray[np.int8]


class Transition:
    """Applies the rules to one state, in place."""

    def __init__(self, rules: SymbolicRules, state: State) -> None:
        self.rules = rules
        self._checks_problems = True
        self.state, balances = pack_balances(state)
        self.flat = flatten_agents(self.state)
        self.balances = balances.reshape(len(balances), -1)  # tokens, generated tokens and clones, (3, agents)
        all_agents = np.arange(len(state.keys) * rules.num_agents)
        self._env_of = all_agents // rules.num_agents
        self._seat_of = (all_agents % rules.num_agents).astype(np.int16)
        self._root_of = self._env_of * rules.num_agents
        self._tape_of = self._env_of * rules.tape_length  # first cell of the agent's tape
        self._roots = self._root_of[:: rules.num_agents]
        self._first_statuses = _as_items(np.full((1, rules.num_agents), UNBORN, np.int8))
        # Part numbers of a call as a column.
        self._parts = np.arange(rules.max_parts)[:, None]
        self._parts_of_count = self._parts.astype(np.int16)
        self._row_of_turns = np.array(rules.max_depth + 1)
        self._row_of_length = np.array(rules.ample_tokens + 1)
        self._ample_tokens = np.array(rules.ample_tokens, np.int32)
        self._row_of_code = np.array(rules.num_actions + 1)
        self._num_actions = np.array(rules.num_actions, np.uintp)
        self._stock: ProblemStock | None = None
        self._ready: OpenTurns | None = None
        self._next: OpenTurns | None = None

    @property
    def ready(self) -> OpenTurns:
        """The turns of the agents that can act, in order."""
        if self._ready is None:
            agents = (self.flat.status == _READY).nonzero()[0]
            truncated = self.state.truncated
            if np.count_nonzero(truncated):
                agents = agents.compress(~truncated[self._env_of[agents]])
            self._ready = self.open_turns(agents)
        return self._ready

    @property
    def next(self) -> OpenTurns:
        """The turn of the next agent of each environment (`BatchDelegation.next_agents`).

        Its legality code is that of WAIT where an episode is over.
        """
        if self._next is None:
            agents: Index = (self.state.status == _READY).argmax(axis=1) + self._roots
            turns = self.open_turns(agents)
            can_act = self.flat.status[agents] == _READY
            can_act &= ~self.state.truncated
            np.multiply(turns.codes, can_act, out=turns.codes)
            self._next = turns
        return self._next

    def open_turns(self, agents: Index) -> OpenTurns:
        """Return the turns of some agents, with the legality codes that they have if they can act."""
        flat = self.flat
        rules = self.rules
        depth = flat.depth[agents]
        turns = flat.turns[agents]
        length = flat.segment_length[agents].astype(np.intp)
        balances = self.balances.take(agents, axis=1)
        row = length * self._row_of_length
        row += np.minimum(balances[0], self._ample_tokens)
        codes = rules.codes_by_segment[row]
        place = turns.astype(np.intp)
        place *= self._row_of_turns
        place += depth
        codes &= rules.codes_by_place[place]
        codes &= rules.codes_by_clones[balances[2].astype(np.intp)]
        if rules.generated_tokens is not None:
            codes &= rules.codes_by_generated.take(balances[1], mode="clip")
        return OpenTurns(agents, self._env_of[agents], codes, depth, turns, length, balances)

    def play(self, agents: Index, codes: Index, actions: NDArray[Any], max_cycles: int | None) -> None:
        """Play one joint step.

        Args:
            agents: agents that can act and do, in order.
            codes: their legality codes.
            actions: one action for each of them.
            max_cycles: joint steps before truncation, `None` for none.
        """
        played = self._replace_illegal(actions, codes, agents)
        self._forget_ready()
        rules = self.rules
        self._charge_turn(agents, rules.action_prices[played])
        answering = rules.is_answer[played].nonzero()[0]
        calling = rules.is_call[played].nonzero()[0]
        ended = agents[answering]
        self._answer(ended, played[answering])
        if calling.size:
            self._call(agents[calling], played[calling])
        if len(answering) + len(calling) < len(agents):
            self._wait(agents[played == WAIT])
            ended = agents[self.flat.status[agents] >= _ANSWERED]
        state = self.state
        state.cycle += ~(state.terminated | state.truncated)
        self._terminate(self._join(ended))
        if max_cycles is not None:
            state.truncated |= ~state.terminated & (state.cycle >= max_cycles)

    def scores(self, envs: Index) -> NDArray[np.float64]:
        """Return the scores of the roots' answers (`BatchDelegation.scores`) in some environments."""
        state = self.state
        flat = self.flat
        rules = self.rules
        roots = self._roots[envs]
        answered: NDArray[np.bool_] = flat.status[roots] == ANSWERED
        if rules.forced_join_task is None:
            answered &= flat.tape[self._tape_of[roots]] == state.target[envs]
            return answered.astype(np.float64)
        cells = (self._tape_of[roots] + flat.segment_start[roots])[:, None] + np.arange(rules.num_targets)
        right = flat.tape.take(cells, mode="clip") == state.target[envs]
        scores: NDArray[np.float64] = rules.forced_join_task.grade(right)
        return answered * scores

    def remove(self, agents: Index) -> None:
        """Remove agents that have just been born (`BatchDelegation.remove`)."""
        flat = self.flat
        if (flat.status[agents] != READY).any() or flat.turns[agents].any() or not self._seat_of[agents].all():
            raise ConfigError("only clones that have been born and have not acted can be removed")
        flat.status[agents] = ABSENT
        flat.tokens_left[agents] += flat.prompt_tokens[agents]
        flat.prompt_tokens[agents] = 0
        self._forget_ready()
        ended_roots = self._join(np.sort(agents))
        self._terminate(ended_roots[~(self.state.terminated | self.state.truncated)[self._env_of[ended_roots]]])

    def set_keys(self, envs: NDArray[np.bool_], keys: Keys) -> None:
        """Let some environments play the problems of new keys, from their next episode on."""
        self.state.keys[envs] = keys[envs]
        self.state.episode[envs] = 0
        self._stock = None

    def start(self, envs: Index) -> None:
        """Start the next episode of some environments."""
        state = self.state
        flat = self.flat
        rules = self.rules
        self._forget_ready()
        tapes, lengths, targets = self._draw_tapes(envs)
        state.episode[envs] += 1
        for values in (state.cycle, state.terminated, state.truncated, state.team_return):
            values[envs] = 0
        state.num_born[envs] = 1
        state.tape_end[envs] = rules.first_reply_cell
        state.target[envs] = targets
        _as_items(state.tape)[envs] = _as_items(tapes)
        _as_items(state.status)[envs] = self._first_statuses
        roots = self._roots[envs]
        flat.segment_start[roots] = 1
        self._bear(roots, lengths, rules.root_balance)

    def problems(self) -> ProblemBatch:
        """Return the problems that are being played, as they were drawn."""
        return self._draw_problems(self.state.keys, self.state.episode - 1)

    def _draw_problems(self, keys: Keys, episodes: NDArray[np.int64]) -> ProblemBatch:
        return self.rules.task.draw(fold_in(keys, episodes, _PROBLEM_STREAM))

    def _draw_tapes(self, envs: Index) -> tuple[NDArray[np.int8], NDArray[np.int16], NDArray[np.int8]]:
        """Return tapes, lengths of the roots' segments and right answers of the next episode of some environments.

        In a small batch, drawing many problems costs the same as drawing one. So a stock is drawn for all environments,
        and its depth doubles each time it runs out. Problems are hashes of keys, so they do not depend on the stock.
        """
        state = self.state
        max_depth = MAX_STOCK // len(state.keys)
        if max_depth < 2:
            return self._build_tapes(state.keys[envs], state.episode[envs])
        if self._stock is not None:
            place = state.episode[envs] - self._stock.first_episode[envs]
            # Read as unsigned, a negative place is too large as well.
            if np.count_nonzero(place.view(np.uint64) < self._stock.depth) == len(envs):
                row = envs * self._stock.depth + place
                return self._stock.tapes.take(row, axis=0), self._stock.lengths[row], self._stock.targets[row]
        depth = 1 if self._stock is None else min(2 * self._stock.depth, max_depth)
        episodes = (state.episode[:, None] + np.arange(depth)).reshape(-1)
        tapes = self._build_tapes(state.keys.repeat(depth), episodes)
        self._stock = ProblemStock(depth, state.episode.copy(), *tapes)
        return self._draw_tapes(envs)

    def _build_tapes(
        self, keys: Keys, episodes: NDArray[np.int64]
    ) -> tuple[NDArray[np.int8], NDArray[np.int16], NDArray[np.int8]]:
        rules = self.rules
        problems = self._draw_problems(keys, episodes)
        if self._checks_problems:
            _check_problems(rules, problems, len(keys))
            # Tests check the tasks of this package. Another task may draw a wrong problem at any time.
            self._checks_problems = type(rules.task).__module__ != tasks.__name__
        tapes = np.full((len(keys), rules.tape_length), rules.missing, np.int8)
        tapes[:, 1 : rules.first_fact_cell] = problems.segments
        tapes[:, rules.first_fact_cell : rules.first_reply_cell] = problems.facts
        return tapes, problems.lengths, problems.targets

    def _forget_ready(self) -> None:
        """Drop the cached agents that can act, because the state changes."""
        self._ready = None
        self._next = None

    def _replace_illegal(self, actions: NDArray[Any], codes: Index, agents: Index) -> Index:
        """Return the actions with WAIT in place of illegal ones, and count these."""
        rules = self.rules
        actions = actions.astype(np.intp, copy=False)
        # Read as unsigned, a negative action is too large as well.
        column = np.minimum(actions.view(np.uintp), self._num_actions).view(np.intp)
        column += codes * self._row_of_code
        legal = rules.is_legal[column]
        if np.count_nonzero(legal) == len(legal):
            return actions
        self.flat.illegal[agents] += ~legal
        return np.where(legal, actions, WAIT)

    def _charge_turn(self, agents: Index, tokens: NDArray[np.int32]) -> None:
        """Count a turn of each agent and charge the tokens that it generated."""
        flat = self.flat
        flat.turns[agents] += _ONE
        # Three additions over all agents are faster than three times indexing some of them.
        cost = np.zeros(len(flat.status), np.int32)
        cost[agents] = tokens
        flat.generated_tokens += cost
        flat.tokens_left -= cost
        flat.generated_left -= cost

    def _answer(self, agents: Index, actions: Index) -> None:
        flat = self.flat
        rules = self.rules
        symbols = rules.answer_symbols[actions]
        if rules.reliability is not None:
            symbols = self._add_errors(agents, symbols)
        flat.status[agents] = ANSWERED
        flat.tape[self._tape_of[agents] + flat.reply_cell[agents]] = symbols

    def _add_errors(self, agents: Index, symbols: NDArray[np.int8]) -> NDArray[np.int8]:
        """Return the answers with some of them replaced by uniform ones, as the task's reliability says."""
        state = self.state
        flat = self.flat
        rules = self.rules
        assert rules.reliability is not None
        envs = self._env_of.take(agents)
        turn_keys = fold_in(state.keys[envs], state.episode[envs], _ERROR_STREAM, flat.turns[agents])
        keys = self._fold_in_paths(turn_keys, agents)
        is_kept = draw_uniforms(keys) < rules.reliability[flat.segment_length[agents].astype(np.intp)]
        # Both numbers come from the same word: its high half has just decided, and its low half is independent of it.
        errors = draw_integers(keys, 2, rules.task.num_answers)[1].astype(np.int8)
        return np.where(is_kept, symbols, errors)

    def _fold_in_paths(self, keys: Keys, agents: Index) -> Keys:
        """Fold the path from each agent to the root into its key.

        Seats would not do: a clone's seat depends on which agents called first.
        """
        flat = self.flat
        while True:
            below_root = flat.parent.take(agents) != ROOT_PARENT
            if not below_root.any():
                return keys
            keys = np.where(below_root, fold_in(keys, flat.birth_index.take(agents)), keys)
            agents = self._root_of.take(agents) + flat.parent.take(agents) * below_root

    def _wait(self, agents: Index) -> None:
        """Charge the notice of a wasted turn, or end an agent that has no more turns or tokens."""
        flat = self.flat
        out_of_turns = flat.turns[agents] >= self.rules.max_turns
        # As `grants.compute_turn_grant` of the text game: a turn is the last one unless the balance covers an answer in
        # it, the notice, and an answer after it.
        out_of_tokens = (flat.tokens_left[agents] < NOTICE + 2 * RESERVE) | (flat.generated_left[agents] < 2 * RESERVE)
        flat.status[agents] = np.where(out_of_turns, OUT_OF_TURNS, np.where(out_of_tokens, OUT_OF_TOKENS, READY))
        continuing = agents[~(out_of_turns | out_of_tokens)]
        flat.tokens_left[continuing] -= NOTICE
        flat.prompt_tokens[continuing] += NOTICE

    def _call(self, agents: Index, actions: Index) -> None:
        """Start the clones of each call whose grant pays for an opening and an answer; refused ones cost nothing."""
        flat = self.flat
        rules = self.rules
        # One entry per caller; parts are the first axis.
        parts = rules.action_parts[actions]
        column = rules.action_columns[actions]
        column += flat.segment_length[agents]
        depth = flat.depth[agents]
        balance = self.balances.take(agents, axis=1)
        grants = self._share_balance(balance, depth, actions)
        is_born = grants[0] >= rules.least_grants.take(column, axis=1)
        num_born = np.add.reduce(is_born, axis=0, dtype=np.int32)
        balance -= grants * num_born
        balance[2] -= num_born
        for left, new_left in zip(self.balances, balance, strict=True):
            left[agents] = new_left
        counts = np.array([num_born, parts])
        begin = self._allocate(self._env_of[agents], counts)
        first_clone, first_cell, num_born, parts = np.concatenate([begin, counts]).astype(np.int16)

        # What the clones of a call have in common, or from where they are counted by part. Parts come longest first,
        # so the refused ones are the first ones.
        num_refused = parts - num_born
        common = np.empty((5, len(agents)), np.int16)
        common[0] = self._seat_of[agents]
        np.add(depth, _ONE, out=common[1])
        common[2] = flat.segment_start[agents]
        np.subtract(flat.num_clones[agents], num_refused, out=common[3])
        common[4] = first_cell
        part_zero = self._root_of[agents]
        part_zero += first_clone - num_refused

        # From here on one entry per clone, in order of seats: its caller and its part.
        caller, part = is_born.T.nonzero()
        clones = part_zero[caller]
        clones += part
        table_index = part * rules.part_starts.shape[1] + column[caller]
        parent, clone_depth, start, birth_index, reply_cell = common.take(caller, axis=1)
        part_count = part.astype(np.int16)
        birth_index += part_count
        reply_cell += part_count
        start += rules.part_starts.take(table_index)
        if rules.task.num_facts:
            fact_cell = rules.action_fact_cells[actions][caller]
            start = np.where(fact_cell, fact_cell, start)
        flat.parent[clones] = parent
        flat.depth[clones] = clone_depth
        flat.segment_start[clones] = start
        flat.birth_index[clones] = birth_index
        flat.reply_cell[clones] = reply_cell
        self._bear(clones, rules.part_lengths.take(table_index), grants.take(caller, axis=1))

        # The replies will be the caller's next segment.
        flat.status[agents] = WAITING
        flat.segment_start[agents] = first_cell
        flat.segment_length[agents] = parts
        flat.first_clone[agents] = first_clone
        flat.call_clones[agents] = num_born
        flat.num_clones[agents] += num_born

    def _share_balance(self, balance: NDArray[np.int32], depth: NDArray[np.int16], actions: Index) -> NDArray[np.int32]:
        """Return the grant of each clone of a call.

        Args:
            balance: tokens, generated tokens and clones that each caller has left, (3, callers).
            depth: depths of the callers.
            actions: their calls.

        Returns:
            Equal shares of what the callers do not keep for themselves, (3, callers).
        """
        rules = self.rules
        shared = balance + rules.negative_reserves.take(actions, axis=1)
        shared[2] *= rules.clones_may_call.take(depth)
        # Multiplication is six times as fast as floor division. Adding a half keeps the product clear of rounding
        # errors, so the result is exact below 2**50.
        return ((shared + 0.5) * rules.part_share[actions]).astype(np.int32)

    def _allocate(self, envs: Index, counts: NDArray[np.int32]) -> NDArray[np.int32]:
        """Allocate seats and reply cells to callers, one caller after another in each environment.

        Args:
            envs: the environment of each caller, ascending.
            counts: clones and replies of each caller, (2, callers).

        Returns:
            The first seat and the first cell of each caller, (2, callers).
        """
        state = self.state
        begin = np.array([state.num_born[envs], state.tape_end[envs]])
        is_same = envs[1:] == envs[:-1]
        if np.count_nonzero(is_same):
            first_caller = np.arange(len(envs))  # the first caller of the same environment
            first_caller[1:][is_same] = 0
            np.maximum.accumulate(first_caller, out=first_caller)
            before = np.add.accumulate(counts, axis=1, dtype=np.int32) - counts
            begin += before - before.take(first_caller, axis=1)
        # An environment may occur several times; NumPy keeps the last assignment, that of its last caller.
        state.num_born[envs], state.tape_end[envs] = begin + counts
        return begin

    def _bear(self, agents: Index, lengths: NDArray[np.int16], grants: NDArray[np.int32]) -> None:
        """Set the fields that all newborn agents share; `grants` has shape (3, agents) or (3,)."""
        flat = self.flat
        prompt = np.add(lengths, _OPENING)
        flat.status[agents] = READY
        flat.segment_length[agents] = lengths
        flat.granted[agents], flat.generated_left[agents], flat.clones_left[agents] = grants
        flat.tokens_left[agents] = grants[0] - prompt
        flat.prompt_tokens[agents] = prompt
        for values in (flat.generated_tokens, flat.turns, flat.num_clones, flat.illegal):
            values[agents] = 0

    def _join(self, ended: Index) -> Index:
        """Where the last clone of a call has ended, return the balances and deliver the replies as one message.

        Args:
            ended: the agents that have just ended, ascending.

        Returns:
            The roots that have ended, those whose join is forced included.
        """
        flat = self.flat
        rules = self.rules
        parent = flat.parent[ended]
        is_clone = parent >= _ZERO
        ended_roots = ended.compress(~is_clone)
        parents = (self._root_of[ended] + parent).compress(is_clone)
        if not parents.size:
            return ended_roots
        # Clones of one call are neighbours, so equal parents are neighbours too.
        is_last = np.ones(len(parents), bool)
        np.not_equal(parents[1:], parents[:-1], out=is_last[:-1])
        parents = parents.compress(is_last)
        first = self._root_of[parents]
        first += flat.first_clone[parents]
        clones = first + self._parts  # [max_parts, parents]; places beyond the last clone are masked
        is_born = flat.call_clones[parents] > self._parts_of_count
        is_running = flat.status.take(clones, mode="clip") < _ANSWERED
        is_running &= is_born
        has_joined = ~np.logical_or.reduce(is_running, axis=0)
        if np.count_nonzero(has_joined) < len(parents):
            parents = parents.compress(has_joined)
            clones = clones.compress(has_joined, axis=1)
            is_born = is_born.compress(has_joined, axis=1)
        amounts = self.balances.take(clones, axis=1, mode="clip")
        amounts *= is_born
        returned = np.add.reduce(amounts, axis=1, dtype=np.int32)
        message = np.add(flat.segment_length[parents], _REPLIES)
        returned[0] -= message
        clones = clones.reshape(-1).compress(is_born.reshape(-1))
        for balance, amount in zip(self.balances, returned, strict=True):
            balance[parents] += amount
            balance[clones] = 0
        flat.prompt_tokens[parents] += message
        flat.status[parents] = READY
        if rules.forced_join_task is None:
            return ended_roots
        # The rules play the root's last turn: its answer is the replies as they stand.
        self._charge_turn(parents, np.full(len(parents), RESERVE, np.int32))
        flat.status[parents] = ANSWERED
        return np.concatenate([ended_roots, parents])

    def _terminate(self, roots: Index) -> None:
        """Terminate the episodes of roots that have ended."""
        state = self.state
        rules = self.rules
        if roots.size:
            envs = self._env_of[roots]
            returns = self.scores(envs)
            if rules.token_cost:
                # All clones have returned their balances, so the root's balance is that of the tree.
                spent = (rules.total_tokens or UNLIMITED) - self.flat.tokens_left[roots]
                returns -= rules.token_cost * spent
            state.team_return[envs] = returns
            state.terminated[envs] = True


def _as_items(rows: NDArray[Any]) -> NDArray[np.void]:
    """Return a view of a matrix whose items are its rows: NumPy copies one item faster than a row."""
    items: NDArray[np.void] = rows.view(np.dtype((np.void, rows.shape[1] * rows.itemsize)))[:, 0]
    return items


def _check_problems(rules: SymbolicRules, problems: object, batch: int) -> None:
    """Raise `TaskError` unless drawn problems have the shapes, symbols, lengths and targets of their task."""
    task = rules.task
    name = f"{type(task).__name__}.draw"
    if not isinstance(problems, ProblemBatch):
        raise TaskError(f"{name} returned {type(problems).__name__}; expected a ProblemBatch")
    targets_shape = (batch,) if rules.forced_join_task is None else (batch, rules.num_targets)
    drawn: tuple[tuple[str, object, tuple[int, ...]], ...] = (
        ("segments", problems.segments, (batch, task.max_length)),
        ("lengths", problems.lengths, (batch,)),
        ("targets", problems.targets, targets_shape),
        ("facts", problems.facts, (batch, task.num_facts)),
    )
    for what, value, shape in drawn:
        is_whole = isinstance(value, np.ndarray) and (value.dtype.kind in "iu" or not value.size)
        if not isinstance(value, np.ndarray) or value.shape != shape or not is_whole:
            given = f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
            raise TaskError(f"{name}: {what} are {given}; expected an array {shape} of whole numbers")
    inside = np.arange(task.max_length) < problems.lengths[:, None]
    for what, values, low, high in (
        ("lengths", problems.lengths, 1, task.max_length),
        ("segments", problems.segments[inside], 0, task.num_symbols - 1),
        ("facts", problems.facts, 0, task.num_symbols - 1),
        ("targets", problems.targets, 0, task.num_answers - 1),
    ):
        if values.size and not low <= values.min() <= values.max() <= high:
            raise TaskError(
                f"{name}: {what} are from {values.min()} to {values.max()}; expected whole numbers from {low} to {high}"
            )
