"""`shapley`: one cooperative game per call; a clone's average marginal contribution over orders of its siblings.

    A_c = mean over orders of [v(S + c) - v(S)],   S = the siblings before c;   root turns: rloo

v(S) is the team return when only the siblings in S give their own replies and every other one gives the default; absent
siblings generate nothing and are charged nothing. v of the whole call is the factual return. A coalition is played once
per call and reused in every order.

Source: Shapley 1953; sampled orders, Castro et al. 2009. Credit within a call is efficient: it sums to R(tau) minus the
return with no clone of the call at all.
Biased for the team objective: the marginal over S asks what c brings to coalitions that were not played. Do not take
it for a baseline. Degenerate cases: a call of one clone is `difference` with one sample; with no more orders than there
are permutations asked for, all of them are used and the value is exact; a clone that cannot matter gets zero in
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
from selfcest_training.credit.base import Credit, CreditAssigner, Promise, Replayed, broadcast, leave_one_out
from selfcest_training.credit.chance import coin, draw


@dataclass(frozen=True)
class _CallGame:
    """The clones of one call that acted, and the orders to average over."""

    episode: EpisodeRecord
    clones: tuple[AgentId, ...]
    orders: tuple[tuple[AgentId, ...], ...]

    def replay(self, present: frozenset[AgentId]) -> Replay | None:
        """What must be played to know the value of a coalition; nothing for the whole call."""
        absent = {clone: Intervention.DEFAULT for clone in self.clones if clone not in present}
        return Replay.of(self.episode.episode_id, absent) if absent else None

    def marginals(self) -> Iterator[tuple[AgentId, frozenset[AgentId], frozenset[AgentId]]]:
        """(clone, coalition before it, coalition with it) of every order."""
        for order in self.orders:
            for i, clone in enumerate(order):
                yield clone, frozenset(order[:i]), frozenset(order[: i + 1])

    def coalitions(self) -> dict[frozenset[AgentId], None]:
        """Each coalition once, in the order in which it is first asked for."""
        return dict.fromkeys(coalition for _, *pair in self.marginals() for coalition in pair)


@dataclass(frozen=True)
class Shapley(CreditAssigner, Checked):
    """Options: `orders` per call (default 4) and `max_share` of the calls that are replayed (default 1)."""

    name: ClassVar[str] = "shapley"
    formula: ClassVar[str] = "clone: A = mean over orders of v(S + c) - v(S) within its call; root: rloo"
    source: ClassVar[str] = "Shapley 1953; orders sampled as in Castro et al. 2009"
    promise: ClassVar[Promise] = Promise.BIASED
    null_player: ClassVar[bool] = True

    orders: Count = 4
    max_share: Share = 1.0

    def replays(self, group: EpisodeGroup) -> Sequence[Replay]:
        asked = (game.replay(coalition) for game in self._games(group) for coalition in game.coalitions())
        return [replay for replay in asked if replay is not None]

    def assign(self, group: EpisodeGroup, replayed: Replayed) -> Credit:
        advantage = broadcast(group, leave_one_out(group))
        for game in self._games(group):
            value = {}
            for coalition in game.coalitions():
                replay = game.replay(coalition)
                value[coalition] = (game.episode if replay is None else replayed[replay]).team_return
            total = dict.fromkeys(game.clones, 0.0)
            for clone, before, after in game.marginals():
                total[clone] += value[after] - value[before]
            for key, _ in game.episode.turns():
                if key.agent_id in total:
                    advantage[key] = total[key.agent_id] / len(game.orders)
        return Credit(advantage)

    def _games(self, group: EpisodeGroup) -> Iterator[_CallGame]:
        for episode in group.episodes:
            for key, turn in episode.turns():
                clones = tuple(clone for clone in turn.facts.children if episode.by_id[clone].turns)
                if clones and coin(self.max_share, episode, key.agent_id, key.turn):
                    yield _CallGame(episode, clones, tuple(self._orders(clones, episode, key)))

    def _orders(
        self, clones: tuple[AgentId, ...], episode: EpisodeRecord, key: TurnKey
    ) -> Iterator[tuple[AgentId, ...]]:
        if math.factorial(len(clones)) <= self.orders:
            yield from itertools.permutations(clones)
            return
        for number in range(self.orders):
            left = list(clones)
            places = [
                draw((1 / size,) * size, "orders", episode, key.agent_id, key.turn, number, size)
                for size in range(len(left), 0, -1)
            ]
            yield tuple(left.pop(place) for place in places)
