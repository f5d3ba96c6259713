"""Counterfactual replays: episodes that are played again without some clones, from the moment of their birth.

The clones are removed before they act, so they cost nothing and their reply is missing. What does not descend from them
is kept: siblings and cousins that were alive at that moment, and the clones that these start later, repeat their
recorded actions as long as they observe the same. Ancestors after the join, and the clones that they start, are sampled
again. Recorded actions would be biased there, because the missing reply would have changed them.

Agents are identified by their path in the tree. Seats are assigned in order of birth, which shifts if an agent is
missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selfcest_baselines.games import Games, KernelGames
from selfcest_baselines.rollout import Act, Rollout, collect_rollout
from selfcest_env.errors import ConfigError
from selfcest_env.symbolic.batch import BatchDelegation
from selfcest_env.symbolic.rules import SymbolicRules
from selfcest_env.symbolic.state import State
from selfcest_env.symbolic.streams import Keys, fold_in

Index = NDArray[np.intp]


class CloneBirths(NamedTuple):
    """The K clones of a batch of episodes, in order of birth."""

    game: Index  # [K]
    agent: Index  # [K] seat
    cycle: Index  # [K] first moment at which the clone exists


class Recording:
    """Recorded episodes, with what is needed to replay them from any moment.

    Args:
        rules: rules of the games.
        rollout: the decisions.
        moments: the state at each of the C + 1 moments.
    """

    def __init__(self, rules: SymbolicRules, rollout: Rollout, moments: list[State]) -> None:
        self.rules = rules
        self.rollout = rollout
        self.moments = moments
        game = rollout.game.numpy()
        agent = rollout.agent.numpy()
        cycle = rollout.cycle.numpy()
        turns = np.stack([moment.turns for moment in moments])[cycle, game, agent]
        keys = fold_in(compute_path_keys(moments[-1])[game, agent], game, turns)
        order = np.argsort(keys)  # sorted for a binary search
        self._keys = keys[order]
        self._observations = rollout.observations.numpy()[order]
        self._actions = rollout.actions.numpy()[order]

    def births(self) -> CloneBirths:
        """Return the births of all clones."""
        num_born = np.stack([moment.num_born for moment in self.moments])[:, :, None]  # [C + 1, G, 1]
        seats = np.arange(self.moments[0].status.shape[1])
        cycle, game, agent = np.nonzero((seats >= num_born[:-1]) & (seats < num_born[1:]))
        return CloneBirths(game, agent, cycle + 1)

    def find_actions(
        self, path: Keys, game: Index, turns: NDArray[np.int16], observations: NDArray[np.float32]
    ) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Look up the recorded actions of R decisions.

        Args:
            path: [R] path keys of the agents.
            game: [R] recorded games.
            turns: [R] turns of the agents.
            observations: [R, F] what the agents observe in the replay.

        Returns:
            Whether the agent observed the same at that turn of the recording, [R], and its recorded action, [R], which
            has no meaning where it did not.
        """
        keys = fold_in(path, game, turns)
        row = np.searchsorted(self._keys, keys).clip(max=len(self._keys) - 1)
        is_recorded = (self._keys[row] == keys) & (self._observations[row] == observations).all(1)
        return is_recorded, self._actions[row]


@dataclass(frozen=True)
class ReplayCost:
    """The cost of replays. Actions that repeat the recording cost nothing.

    Attributes:
        decisions: decisions that were sampled again.
        replays: number of replays.
    """

    decisions: int = 0
    replays: int = 0

    def __add__(self, other: ReplayCost) -> ReplayCost:
        return ReplayCost(self.decisions + other.decisions, self.replays + other.replays)


class ReplayResult(NamedTuple):
    """The result of R replays."""

    returns: Tensor  # [R] team returns
    cost: ReplayCost


def check_replayable(games: Games) -> KernelGames:
    """Return the games if they can be replayed from any moment.

    Raises:
        ConfigError: the games have no snapshots, or can be truncated.
    """
    if not isinstance(games, KernelGames):
        raise ConfigError(
            f"games are {type(games).__name__}; expected KernelGames, because counterfactual replays start in the "
            "middle of a game: take broadcast, value or coma for other games"
        )
    if games.kernel.max_cycles is not None:
        raise ConfigError(
            f"max_cycles is {games.kernel.max_cycles}; expected None, because counterfactual credit compares returns "
            "of whole games: remove max_cycles"
        )
    return games


def record_episodes(games: Games, act: Act) -> Recording:
    """Play one episode of every game and keep a snapshot of every moment.

    Raises:
        ConfigError: the games cannot be replayed; see `check_replayable`.
    """
    kernel = check_replayable(games).kernel
    moments: list[State] = []
    rollout = collect_rollout(games, act, before_step=lambda: moments.append(kernel.get_snapshot()))
    return Recording(kernel.rules, rollout, moments)


def replay_without(
    recording: Recording, game: Index, cycle: Index, absent: NDArray[np.bool_], act: Act
) -> ReplayResult:
    """Play R replays, each of one recorded game from one moment on, without some clones.

    Args:
        recording: the recorded episodes.
        game: [R] game of each replay.
        cycle: [R] moment at which its absent clones are born.
        absent: [R, N] clones to remove, all of them born at that moment.
        act: samples the actions that do not repeat the recording.

    Returns:
        Team returns in the order of the arguments, and the cost.
    """
    order = np.argsort(cycle, kind="stable")  # the states below are stacked by moment
    game = game[order]
    absent = absent[order]
    starts = cycle[order]
    states = [recording.moments[moment].take(game[starts == moment]) for moment in np.unique(starts)]
    kernel = BatchDelegation(recording.rules, len(game))
    kernel.set_snapshot(State.stack(states))
    repeats_recording = _find_unaffected(kernel.state, absent)  # [R, N]
    num_born_at_start = kernel.state.num_born.copy()
    replay, clone = np.nonzero(absent)
    kernel.remove(replay, clone)
    num_sampled = 0
    while not kernel.done.all():
        ready = kernel.ready_agents()
        decides = ready.action_masks.sum(-1) > 1
        row, seat, observations, masks = (column[decides] for column in ready)
        paths = compute_path_keys(kernel.state)[row, seat]
        is_recorded, chosen = recording.find_actions(paths, game[row], kernel.state.turns[row, seat], observations)
        must_sample = ~(is_recorded & repeats_recording[row, seat])
        if must_sample.any():
            sampled = act(torch.from_numpy(observations[must_sample]), torch.from_numpy(masks[must_sample]))
            chosen[must_sample] = np.asarray(sampled)
        actions = ready.action_masks.argmax(-1)  # the only legal action of agents without a choice
        actions[decides] = chosen
        kernel.step_ready(actions)
        _inherit_from_parents(repeats_recording, kernel.state, num_born_at_start)
        num_sampled += int(must_sample.sum())
    returns = np.empty(len(game), np.float32)
    returns[order] = kernel.state.team_return
    return ReplayResult(torch.from_numpy(returns), ReplayCost(num_sampled, len(game)))


def compute_path_keys(state: State) -> Keys:
    """Return a key for each agent's path in the tree, [G, N]. Keys of agents that are not born have no meaning."""
    keys = np.zeros(state.status.shape, np.uint64)
    games = np.arange(len(keys))
    # A parent has a lower seat than its clones, so its key is ready.
    for seat in range(1, state.status.shape[1]):
        keys[:, seat] = fold_in(keys[games, state.parent[:, seat]], state.birth_index[:, seat])
    return keys


def _find_unaffected(state: State, absent: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which agents are neither absent nor an ancestor of an absent agent, [R, N]."""
    affected = absent.copy()
    games = np.arange(len(absent))
    # From the highest seat down, so that a clone is final before its parent reads it.
    for seat in reversed(range(1, absent.shape[1])):
        affected[games, state.parent[:, seat]] |= affected[:, seat]
    return ~affected


def _inherit_from_parents(repeats_recording: NDArray[np.bool_], state: State, num_born: NDArray[np.int32]) -> None:
    """Mark agents that were born since the replay began as their parents are marked, in place."""
    games = np.arange(len(repeats_recording))
    for seat in range(int(num_born.min()), int(state.num_born.max())):
        of_parent = repeats_recording[games, state.parent[:, seat]]
        repeats_recording[:, seat] = np.where(seat < num_born, repeats_recording[:, seat], of_parent)
