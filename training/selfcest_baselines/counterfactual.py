"""What would have been without some clones: episodes are played again from the moment of their birth.

The clones are taken out before they act, so they cost nothing and their reply is missing. Whatever does not descend
from them is kept: siblings and cousins that lived at that moment, and all whom these go on to start, play what they
played, as long as they see what they saw. All the rest, ancestors after the join and whom they start, is sampled anew.
To replay recorded later actions instead would hold fixed what the clone's reply caused, and is biased.

Agents are known by their path in the tree: seats are given in order of birth, which shifts when someone is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selfcest_baselines.games import Games, KernelGames
from selfcest_baselines.rollout import Act, Rollout, collect
from selfcest_env.errors import ConfigError
from selfcest_env.symbolic.batch import BatchDelegation
from selfcest_env.symbolic.rules import SymbolicRules
from selfcest_env.symbolic.state import State
from selfcest_env.symbolic.streams import Keys, fold

Index = NDArray[np.intp]


class Births(NamedTuple):
    """Clones in order of birth: game, seat, and the first moment at which they are there; each [K]."""

    game: Index
    agent: Index
    cycle: Index


class Recording:
    """Episodes with all that is needed to play them again.

    Attributes:
        rollout: what was decided.
        moments: the state at each moment, C + 1.
    """

    def __init__(self, rules: SymbolicRules, rollout: Rollout, moments: list[State]) -> None:
        self.rules, self.rollout, self.moments = rules, rollout, moments
        game, agent, cycle = (item.numpy() for item in (rollout.game, rollout.agent, rollout.cycle))
        turns = np.stack([moment.turns for moment in moments])[cycle, game, agent]
        names = fold(paths(moments[-1])[game, agent], game, turns)
        order = np.argsort(names)
        self._names = names[order]
        self._observations, self._actions = rollout.observations.numpy()[order], rollout.actions.numpy()[order]

    def births(self) -> Births:
        born = np.stack([moment.num_born for moment in self.moments])[:, :, None]
        seats = np.arange(self.moments[0].status.shape[1])
        cycle, game, agent = np.nonzero((seats >= born[:-1]) & (seats < born[1:]))
        return Births(game, agent, cycle + 1)

    def find(
        self, path: Keys, game: Index, turns: NDArray[np.int16], seen: NDArray[np.float32]
    ) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Who is recorded to have seen the same at that turn, and what they did."""
        names = fold(path, game, turns)
        row = np.searchsorted(self._names, names).clip(max=len(self._names) - 1)
        return (self._names[row] == names) & (self._observations[row] == seen).all(1), self._actions[row]


@dataclass(frozen=True)
class ReplayCost:
    """Of replays, all together. What is kept in them costs nothing."""

    decisions: int = 0  # sampled anew
    replays: int = 0

    def __add__(self, other: ReplayCost) -> ReplayCost:
        return ReplayCost(self.decisions + other.decisions, self.replays + other.replays)


class Replayed(NamedTuple):
    returns: Tensor  # [R] of the team
    cost: ReplayCost


def check_replayable(games: Games) -> KernelGames:
    """The games, if they can be played again from any moment. Raises `ConfigError`."""
    if not isinstance(games, KernelGames):
        raise ConfigError(
            f"games are {type(games).__name__}; expected KernelGames: counterfactuals play on from the middle of a game"
        )
    if games.kernel.max_cycles is not None:
        raise ConfigError(
            f"max_cycles is {games.kernel.max_cycles}; expected None: counterfactuals compare whole returns, and a "
            "truncated game has none"
        )
    return games


def record(games: Games, act: Act) -> Recording:
    """Play one episode of every game, and keep every moment of it. Raises as `check_replayable` does."""
    kernel = check_replayable(games).kernel
    moments: list[State] = []
    rollout = collect(games, act, watch=lambda: moments.append(kernel.get_snapshot()))
    return Recording(kernel.rules, rollout, moments)


def play_without(recording: Recording, game: Index, cycle: Index, absent: NDArray[np.bool_], act: Act) -> Replayed:
    """Play R replays, each of one recorded game from one moment on.

    Args:
        recording: the episodes.
        game: the game of each replay, [R].
        cycle: the moment at which its absent clones are born, [R].
        absent: who is taken out, [R, N]; all of them clones born at that moment.
        act: chooses for whoever descends from the absent.
    """
    order = np.argsort(cycle, kind="stable")
    game, absent, starts = game[order], absent[order], cycle[order]
    kernel = BatchDelegation(recording.rules, len(game))
    kernel.set_snapshot(State.stack([recording.moments[t].take(game[starts == t]) for t in np.unique(starts)]))
    kept, born = _unaffected(kernel.state, absent), kernel.state.num_born.copy()
    replay, clone = np.nonzero(absent)
    kernel.remove(replay, clone)
    sampled = 0
    while not kernel.done.all():
        rows = kernel.rows()
        decides = rows.masks.sum(-1) > 1
        row, seat, seen, legal = (column[decides] for column in rows)
        found, chosen = recording.find(paths(kernel.state)[row, seat], game[row], kernel.state.turns[row, seat], seen)
        anew = ~(found & kept[row, seat])
        if anew.any():
            chosen[anew] = act(torch.from_numpy(seen[anew]), torch.from_numpy(legal[anew])).numpy()
        actions = rows.masks.argmax(-1)
        actions[decides] = chosen
        kernel.step_rows(actions)
        _inherit(kept, kernel.state, born)
        sampled += int(anew.sum())
    returns = np.empty(len(game), np.float32)
    returns[order] = kernel.state.team_return
    return Replayed(torch.from_numpy(returns), ReplayCost(sampled, len(game)))


def paths(state: State) -> Keys:
    """A name for every agent that says whose clone it is, and which; [G, N]. Those of the unborn mean nothing."""
    names = np.zeros(state.status.shape, np.uint64)
    games = np.arange(len(names))
    for seat in range(1, state.status.shape[1]):
        names[:, seat] = fold(names[games, state.parent[:, seat]], state.birth[:, seat])
    return names


def _unaffected(state: State, absent: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Who is neither absent nor waits, at whatever distance, for somebody who is; [R, N]."""
    affected, games = absent.copy(), np.arange(len(absent))
    for seat in reversed(range(1, absent.shape[1])):
        affected[games, state.parent[:, seat]] |= affected[:, seat]
    return ~affected


def _inherit(kept: NDArray[np.bool_], state: State, born: NDArray[np.int32]) -> None:
    """Whoever was started since the replay began is kept if its parent is."""
    games = np.arange(len(kept))
    for seat in range(int(born.min()), int(state.num_born.max())):
        kept[:, seat] = np.where(seat < born, kept[:, seat], kept[games, state.parent[:, seat]])
