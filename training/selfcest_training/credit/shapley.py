"""`shapley`: the credit of a clone is its average marginal contribution over orders of its siblings.

    A_c = mean over orders of [v(S + c) - v(S)],   S = the siblings before c;   root turns: rloo

Every call is one cooperative game. v(S) is the team return when the siblings in S give their own replies and all others
are absent: these give the default reply, generate nothing and are charged nothing. v of the complete call is the
factual return. A coalition is played once per call and reused in every order.

Source: Shapley 1953; sampled orders, Castro et al. 2009. Credit within a call is efficient: it sums to R(tau) minus the
return with no clone of the call at all.
Biased for the team objective: the marginal over S measures the contribution to coalitions that were not played. It is
no baseline. Degenerate cases: a call of one clone gives `difference` with one sample; if `orders` is at least the
number of permutations, all of them are used and the value is exact; a clone that cannot matter gets zero in
expectation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.replay import Intervention, Replay
from selfcest_env.structure import Checked, Count, Share
from selfcest_env.types import AgentId, TurnKey
from selfcest_training.credit.base import Credit, CreditAssigner, Promise, ReplayRecords, broadcast, leave_one_out
from selfcest_training.credit.chance import draw_index, flip_coin


@dataclass(frozen=True)
class _CallGame:
    """The clones of one call that took turns, and the orders to average over."""

    episode: EpisodeRecord
    clones: tuple[AgentId, ...]
    orders: tuple[tuple[AgentId, ...], ...]

    def replay(self, present: frozenset[AgentId]) -> Replay | None:
        """The replay that gives the value of a coalition; `None` for the complete call, which was played."""
        absent = {clone: Intervention.DEFAULT for clone in self.clones if clone not in present}
        return Replay.of(self.episode.episode_id, absent) if absent else None

    def marginals(self) -> Iterator[tuple[AgentId, frozenset[AgentId], frozenset[AgentId]]]:
        """Yield (clone, coalition before it, coalition with it) for every order."""
        for order in self.orders:
            for i, clone in enumerate(order):
                yield clone, frozenset(order[:i]), frozenset(order[: i + 1])

    def coalitions(self) -> dict[frozenset[AgentId], None]:
        """Return each coalition once, in the order of first use."""
        coalitions: dict[frozenset[AgentId], None] = {}
        for _, before, after in self.marginals():
            coalitions[before] = None
            coalitions[after] = None
        return coalitions


@dataclass(frozen=True)
class Shapley(CreditAssigner, Checked):
    """Credits the clones of a call by sampled Shapley values.

    Attributes:
        orders: number of sampled orders per call; all orders if there are no more.
        max_share: share of the calls that are replayed.
    """

    name: ClassVar[str] = "shapley"
    formula: ClassVar[str] = "clone: A = mean over orders of v(S + c) - v(S) within its call; root: rloo"
    source: ClassVar[str] = "Shapley 1953; orders sampled as in Castro et al. 2009"
    promise: ClassVar[Promise] = Promise.BIASED
    null_player: ClassVar[bool] = True

    orders: Count = 4
    max_share: Share = 1.0

    def replays(self, group: EpisodeGroup) -> Sequence[Replay]:
        replays: list[Replay] = []
        for game in self._list_games(group):
            for coalition in game.coalitions():
                replay = game.replay(coalition)
                if replay is not None:
                    replays.append(replay)
        return replays

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        advantage = broadcast(group, leave_one_out(group))
        for game in self._list_games(group):
            values: dict[frozenset[AgentId], float] = {}
            for coalition in game.coalitions():
                replay = game.replay(coalition)
                record = game.episode if replay is None else replayed[replay]
                values[coalition] = record.team_return
            totals = dict.fromkeys(game.clones, 0.0)
            for clone, before, after in game.marginals():
                totals[clone] += values[after] - values[before]
            for key, _ in game.episode.turns():
                if key.agent_id in totals:
                    advantage[key] = totals[key.agent_id] / len(game.orders)
        return Credit(advantage)

    def _list_games(self, group: EpisodeGroup) -> Iterator[_CallGame]:
        for episode in group.episodes:
            for key, turn in episode.turns():
                clones = tuple(clone for clone in turn.facts.children if episode.by_id[clone].turns)
                if clones and flip_coin(self.max_share, episode, key.agent_id, key.turn):
                    yield _CallGame(episode, clones, tuple(self._list_orders(clones, episode, key)))

    def _list_orders(
        self, clones: tuple[AgentId, ...], episode: EpisodeRecord, key: TurnKey
    ) -> Iterator[tuple[AgentId, ...]]:
        if math.factorial(len(clones)) <= self.orders:
            yield from itertools.permutations(clones)
            return
        for number in range(self.orders):
            remaining = list(clones)
            order: list[AgentId] = []
            while remaining:
                size = len(remaining)
                index = draw_index((1 / size,) * size, "orders", episode, key.agent_id, key.turn, number, size)
                order.append(remaining.pop(index))
            yield tuple(order)
