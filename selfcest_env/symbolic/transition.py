"""The transition function: it applies a joint step, a birth, a join or an ending to the arrays of a `State`.

Everything works on all environments at once. `agents` is always an array of flat agent indices: environment times
number of agents plus seat. Parts of a call are the first axis, because NumPy is slow at sums over a short last axis.
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

MAX_STOCK = 1024  # maximum number of problems drawn at once

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
        self.state = state
        self.flat = flatten_agents(state)
        all_agents = np.arange(len(state.keys) * rules.num_agents)
        self._env_of = all_agents // rules.num_agents
        self._seat_of = (all_agents % rules.num_agents).astype(np.int16)
        self._root_of = self._env_of * rules.num_agents
        self._tape_of = self._env_of * rules.tape_length  # first cell of the agent's tape
        self._roots = self._root_of[:: rules.num_agents]
        self._stock: ProblemStock | None = None
        self._ready: tuple[Index, Index] | None = None
        self._next: tuple[Index, Index] | None = None

    @property
    def ready(self) -> tuple[Index, Index]:
        """The agents that can act, in order, and the legality code of each (`SymbolicRules.legal_table`)."""
        if self._ready is None:
            agents = (self.flat.status == READY).nonzero()[0]
            truncated = self.state.truncated
            if np.count_nonzero(truncated):
                agents = agents[~truncated[self._env_of[agents]]]
            self._ready = agents, self._legality_codes(agents)
        return self._ready

    @property
    def next(self) -> tuple[Index, Index]:
        """The next agent of each environment (`BatchDelegation.next_agents`), and its legality code.

        The code is that of WAIT where an episode is over.
        """
        if self._next is None:
            agents: Index = (self.state.status == READY).argmax(axis=1) + self._roots
            codes = self._legality_codes(agents) * (self.flat.status[agents] == READY) * ~self.state.truncated
            self._next = agents, codes
        return self._next

    def locate(self, agents: Index) -> tuple[Index, Index]:
        """Return the environments and the seats of some agents."""
        return self._env_of[agents], agents - self._root_of[agents]

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
        self._charge_turn(agents, self.rules.action_prices[played])
        is_call = played >= self.rules.first_call
        calling = is_call.nonzero()[0]
        answering = (~is_call).nonzero()[0]
        if np.count_nonzero(played) < len(played):  # WAIT is 0
            self._wait(agents[played == WAIT])
            answering = answering[played[answering] != WAIT]
        self._answer(agents[answering], played[answering] - FIRST_ANSWER)
        if calling.size:
            self._call(agents[calling], played[calling])
        self._join()
        state = self.state
        playing = ~(state.terminated | state.truncated)
        state.cycle += playing
        self._terminate(playing)
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
        self._join()
        self._terminate(~(self.state.terminated | self.state.truncated))

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
        state.tape[envs] = tapes
        state.status[envs] = UNBORN
        roots = self._roots[envs]
        flat.parent[roots] = ROOT_PARENT
        for agent_values in (flat.depth, flat.birth_index, flat.reply_cell):
            agent_values[roots] = 0
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
        in_range = actions.view(np.uintp) < rules.num_actions
        legal = rules.legal_table.take(codes * rules.num_actions + actions, mode="clip")
        legal &= in_range
        if np.count_nonzero(legal) == len(legal):
            return actions
        self.flat.illegal[agents] += ~legal
        return np.where(legal, actions, WAIT)

    def _charge_turn(self, agents: Index, tokens: NDArray[np.int32]) -> None:
        """Count a turn of each agent and charge the tokens that it generated."""
        flat = self.flat
        flat.turns[agents] += np.int16(1)
        # Three additions over all agents are faster than three times indexing some of them.
        cost = np.zeros(len(flat.status), np.int32)
        cost[agents] = tokens
        flat.generated_tokens += cost
        flat.tokens_left -= cost
        flat.generated_left -= cost

    def _answer(self, agents: Index, values: Index) -> None:
        flat = self.flat
        if self.rules.reliability is not None:
            values = self._add_errors(agents, values)
        flat.status[agents] = ANSWERED
        flat.tape[self._tape_of[agents] + flat.reply_cell[agents].astype(np.intp)] = values.astype(np.int8)

    def _add_errors(self, agents: Index, values: Index) -> Index:
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
        return np.where(is_kept, values, draw_integers(keys, 2, rules.task.num_answers)[1])

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
        column = rules.action_columns[actions] + flat.segment_length[agents].astype(np.intp)
        balance = np.array([flat.tokens_left[agents], flat.generated_left[agents], flat.clones_left[agents]])
        grants = self._share_balance(balance, agents, actions)
        is_born = grants[0] >= rules.least_grants.take(column, axis=1)
        num_born = np.add.reduce(is_born, axis=0, dtype=np.int32)
        first_clone, first_cell = self._allocate(self._env_of[agents], np.array([num_born, parts]))
        balance -= grants * num_born
        balance[2] -= num_born
        flat.tokens_left[agents], flat.generated_left[agents], flat.clones_left[agents] = balance

        # From here on one entry per clone: its caller and its part.
        place = is_born.reshape(-1).nonzero()[0]
        part = place // len(agents)
        caller = place - part * len(agents)
        # Parts come longest first, so the refused ones are the first ones.
        num_refused = (parts - num_born).astype(np.intp)
        order = part - num_refused[caller]
        parents = agents[caller]
        clones = (self._root_of[agents] + first_clone)[caller] + order
        table_index = part * rules.part_starts.shape[1] + column[caller]
        start = flat.segment_start[parents] + rules.part_starts.take(table_index)
        if rules.task.num_facts:
            fact_cell = rules.action_fact_cells[actions][caller]
            start = np.where(fact_cell, fact_cell, start)
        flat.parent[clones] = self._seat_of[parents]
        flat.birth_index[clones] = flat.num_clones[parents] + order.astype(np.int16)
        flat.depth[clones] = flat.depth[parents] + np.int16(1)
        flat.segment_start[clones] = start
        flat.reply_cell[clones] = (first_cell[caller] + part).astype(np.int16)
        self._bear(clones, rules.part_lengths.take(table_index), grants.take(caller, axis=1))

        # The replies will be the caller's next segment.
        flat.status[agents] = WAITING
        flat.segment_start[agents] = first_cell.astype(np.int16)
        flat.segment_length[agents] = parts.astype(np.int16)
        flat.first_clone[agents] = first_clone.astype(np.int16)
        flat.call_clones[agents] = num_born.astype(np.int16)
        flat.num_clones[agents] += num_born.astype(np.int16)

    def _share_balance(self, balance: NDArray[np.int32], agents: Index, actions: Index) -> NDArray[np.int32]:
        """Return the grant of each clone of a call.

        Args:
            balance: tokens, generated tokens and clones that each caller has left, (3, callers).
            agents: the callers.
            actions: their calls.

        Returns:
            Equal shares of what the callers do not keep for themselves, (3, callers).
        """
        rules = self.rules
        shared = balance + rules.negative_reserves.take(actions, axis=1)
        shared[2] *= rules.clones_may_call[self.flat.depth[agents].astype(np.intp)]
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
        first_caller = np.arange(len(envs))  # the first caller of the same environment
        first_caller[1:][envs[1:] == envs[:-1]] = 0
        np.maximum.accumulate(first_caller, out=first_caller)
        before = np.add.accumulate(counts, axis=1, dtype=np.int32) - counts
        begin = np.array([state.num_born[envs], state.tape_end[envs]])
        begin += before - before.take(first_caller, axis=1)
        # An environment may occur several times; NumPy keeps the last assignment, that of its last caller.
        state.num_born[envs], state.tape_end[envs] = begin + counts
        return begin

    def _bear(self, agents: Index, lengths: NDArray[np.int16], grants: NDArray[np.int32]) -> None:
        """Set the fields that all newborn agents share; `grants` has shape (3, agents) or (3,)."""
        flat = self.flat
        prompt = lengths.astype(np.int32) + np.int32(OPENING)
        flat.status[agents] = READY
        flat.segment_length[agents] = lengths
        flat.granted[agents], flat.generated_left[agents], flat.clones_left[agents] = grants
        flat.tokens_left[agents] = grants[0] - prompt
        flat.prompt_tokens[agents] = prompt
        for values in (flat.generated_tokens, flat.turns, flat.num_clones, flat.illegal):
            values[agents] = 0

    def _join(self) -> None:
        """Where all clones of a call have ended, return their balances and deliver the replies as one message."""
        flat = self.flat
        rules = self.rules
        parents = (flat.status == WAITING).nonzero()[0]
        if not parents.size:
            return
        # All clones of all calls in flight; the clones of one call have neighbouring seats.
        count = flat.call_clones[parents].astype(np.intp)
        end = np.add.accumulate(count)
        first = self._root_of[parents] + flat.first_clone[parents].astype(np.intp)
        clones = (first - end + count).repeat(count) + np.arange(end[-1])
        num_running = _sum_stretches((flat.status[clones] < ANSWERED).astype(np.int32), end)
        has_ended = num_running == 0
        if not np.count_nonzero(has_ended):
            return
        clones = clones[has_ended.repeat(count)]
        parents = parents[has_ended]
        end = np.add.accumulate(count[has_ended])
        balances = (flat.tokens_left, flat.generated_left, flat.clones_left)
        returned = _sum_stretches(np.array([balance[clones] for balance in balances]), end)
        for balance, amount in zip(balances, returned, strict=True):
            balance[parents] += amount
            balance[clones] = 0
        message = flat.segment_length[parents] + np.int32(REPLIES)
        flat.tokens_left[parents] -= message
        flat.prompt_tokens[parents] += message
        flat.status[parents] = READY
        if rules.forced_join_task is not None:
            # The rules play the root's last turn: its answer is the replies as they stand.
            self._charge_turn(parents, np.full(len(parents), RESERVE, np.int32))
            flat.status[parents] = ANSWERED

    def _terminate(self, playing: NDArray[np.bool_]) -> None:
        """Terminate the episodes whose root has ended, among those that are still being played."""
        state = self.state
        rules = self.rules
        envs = (playing & (state.status[:, 0] >= ANSWERED)).nonzero()[0]
        if envs.size:
            returns = self.scores(envs)
            if rules.token_cost:
                # All clones have returned their balances, so the root's balance is that of the tree.
                spent = (rules.total_tokens or UNLIMITED) - self.flat.tokens_left[self._roots[envs]]
                returns -= rules.token_cost * spent
            state.team_return[envs] = returns
            state.terminated[envs] = True

    def _legality_codes(self, agents: Index) -> Index:
        """Return the legality codes of agents that can act."""
        flat = self.flat
        rules = self.rules
        length = flat.segment_length[agents].astype(np.intp)
        tokens = flat.tokens_left[agents]
        codes = rules.answerable[length]
        for kind in range(len(rules.call_parts)):
            can_pay = (tokens >= rules.least_tokens[rules.column(kind, length)]).astype(np.intp)
            can_pay <<= 1 + kind
            codes |= can_pay
        codes &= rules.codes_by_turns[flat.turns[agents].astype(np.intp)]
        codes &= rules.codes_by_depth[flat.depth[agents].astype(np.intp)]
        codes &= rules.codes_by_clones[flat.clones_left[agents].astype(np.intp)]
        codes &= rules.codes_by_generated.take(flat.generated_left[agents], mode="clip")
        return codes


def _sum_stretches(values: NDArray[np.int32], end: Index) -> NDArray[np.int32]:
    """Sum neighbours along the last axis; stretch i reaches from `end[i - 1]` to `end[i]`."""
    # Differences of cumulative sums, because `reduceat` is slow on short stretches. A cumulative sum may wrap around,
    # and the difference wraps back.
    sums: NDArray[np.int32] = np.add.accumulate(values, axis=-1, dtype=np.int32).take(end - 1, axis=-1)
    sums[..., 1:] -= sums[..., :-1]
    return sums
