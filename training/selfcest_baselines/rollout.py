"""Whole episodes as rows of decisions, and what a decision is worth.

A decision is the turn of an agent that has more than one legal action. Networks see nothing else: where only WAIT is
legal, probability, gradient and entropy are trivial, and most agents wait most of the time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from selfcest_baselines.games import Games

Act = Callable[[Tensor, Tensor], Tensor]  # observations [B, F] and masks [B, A] to actions [B]; B is at least 1


@dataclass(frozen=True)
class Rollout:
    """One episode of each of G games; C joint steps, that of the longest; B decisions of N agents.

    Rows are in order of cycle, then game, then agent. A truncated game has rows for the moment after its last step too:
    values are needed there, and `learnable` is false.
    """

    game: Tensor  # [B]
    agent: Tensor  # [B]
    cycle: Tensor  # [B]
    learnable: Tensor  # [B] bool
    observations: Tensor  # [B, F]
    masks: Tensor  # [B, A] bool
    actions: Tensor  # [B]
    joint: Tensor  # [C + 1, G, N] actions of all, decisions or not
    states: Tensor  # [C + 1, G, S]; S is 0 unless asked for
    rewards: Tensor  # [C, G]
    goes_on: Tensor  # [C, G] bool: after this step the game was neither terminated nor had it been before
    truncated: Tensor  # [C + 1, G] bool: the game was cut before this moment

    @property
    def decisions(self) -> int:
        return int(self.learnable.sum())

    @property
    def learnable_rows(self) -> Tensor:
        """Their numbers."""
        return self.learnable.nonzero()[:, 0]

    @property
    def returns(self) -> Tensor:
        """[G]"""
        return self.rewards.sum(0)


def collect(games: Games, act: Act, *, central: bool = False, watch: Callable[[], object] = lambda: None) -> Rollout:
    """Play one episode of every game.

    Args:
        games: are started anew.
        act: chooses for whoever decides.
        central: keep the states that a centralised critic needs.
        watch: is called at each moment, before the step.
    """
    games.reset()
    rows, joint, states, rewards, goes_on, truncated = [], [], [], [], [], []
    closed = np.zeros(len(games.terminated), bool)
    for cycle in itertools.count():
        watch()
        view, over = games.view(), games.terminated | games.truncated
        decides = (view.masks.sum(-1) > 1) & ~(closed | games.terminated)[view.game]
        # A value of a truncated game's last moment is needed even if nobody has a choice there.
        unvalued = games.truncated & ~closed
        unvalued[view.game[decides]] = False
        decides |= unvalued[view.game]
        closed = over.copy()
        game, agent = view.game[decides], view.agent[decides]
        observations, masks = torch.from_numpy(view.observations[decides]), torch.from_numpy(view.masks[decides])
        actions = np.zeros((len(over), view.num_agents), np.int64)
        actions[view.game, view.agent] = view.masks.argmax(-1)
        if len(game):
            actions[game, agent] = act(observations, masks).numpy()
        rows.append((game, agent, np.full(len(game), cycle), ~over[game], observations, masks, actions[game, agent]))
        joint.append(actions)
        states.append(games.states() if central else np.empty((len(over), 0), np.float32))
        truncated.append(games.truncated.copy())
        if over.all():
            break
        rewards.append(games.step(actions).astype(np.float32))
        goes_on.append(~games.terminated)
    columns = (torch.cat([torch.as_tensor(part) for part in column]) for column in zip(*rows, strict=True))
    dense = (torch.from_numpy(np.array(item)) for item in (joint, states, rewards, goes_on, truncated))
    return Rollout(*columns, *dense)


def leave_one_out(returns: Tensor, group_size: int) -> Tensor:
    """Each return less the mean of the others of its group, [G] to [G]: unbiased (Kool et al. 2019)."""
    groups = returns.view(-1, group_size)
    return ((groups - groups.mean(1, keepdim=True)) * (group_size / (group_size - 1))).flatten()


def lambda_returns(rewards: Tensor, discounts: Tensor, values: Tensor, lambdas: Tensor) -> Tensor:
    """TD(λ) targets, all arguments and the result [T, ...]; `values` and `lambdas` at t belong to what follows step t.

        G_t = r_t + γ_t ((1 - λ_t) v_t + λ_t G_{t+1}),   G_T = v_{T-1}

    Where step t terminates, γ_t = 0: nothing is bootstrapped. Where an episode is cut after step t, λ_t = 0: the value
    of what follows stands for all the rest. Where no value is known, λ_t = 1. Source: Sutton and Barto 2018, 12.1.
    """
    following, targets = values[-1], torch.empty_like(rewards)
    for t in reversed(range(len(rewards))):
        following = rewards[t] + discounts[t] * ((1 - lambdas[t]) * values[t] + lambdas[t] * following)
        targets[t] = following
    return targets


def row_targets(rollout: Rollout, row_values: Tensor, *, gamma: float, lambda_: float) -> Tensor:
    """The λ-return of the team after every decision [B]; of rows that are not learnable it means nothing.

    All agents that decide at one moment estimate the same number, what the team will get: `row_values` [B] are averaged
    over them. A moment at which nobody decides has no estimate and the return passes through it.
    """
    moments, games = rollout.truncated.shape
    index = rollout.cycle * games + rollout.game
    total = torch.zeros(moments * games).index_add_(0, index, row_values)
    count = torch.zeros(moments * games).index_add_(0, index, torch.ones_like(row_values))
    values = (total / count.clamp(min=1)).view(moments, games)
    lambdas = torch.where(count.view(moments, games) > 0, lambda_, 1.0) * ~rollout.truncated
    targets = lambda_returns(rollout.rewards, gamma * rollout.goes_on, values[1:], lambdas[1:])
    return targets[rollout.cycle.clamp(max=len(targets) - 1), rollout.game]
