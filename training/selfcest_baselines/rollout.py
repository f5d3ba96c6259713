"""Rollouts of whole episodes as rows of decisions, and the targets of decisions.

A decision is the turn of an agent with more than one legal action. Networks see decisions only: where only WAIT is
legal, probability, gradient and entropy are trivial, and most agents wait most of the time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selfcest_baselines.games import Games
from selfcest_env.errors import PlugInError

# Observations [B, F] and masks [B, A] to actions [B]; B is at least 1.
Act = Callable[[Tensor, Tensor], Tensor | NDArray[np.integer[Any]]]


@dataclass(frozen=True)
class Rollout:
    """One episode of each of G games, with C joint steps (those of the longest game) and B decisions of N agents.

    Rows are in order of cycle, then game, then agent. A truncated game also has rows for the moment after its last
    step, with `learnable` false, because bootstrapping needs their values.
    """

    game: Tensor  # [B]
    agent: Tensor  # [B]
    cycle: Tensor  # [B]
    learnable: Tensor  # [B] bool; false after the last step of a truncated game
    observations: Tensor  # [B, F]
    masks: Tensor  # [B, A] bool
    actions: Tensor  # [B]
    joint_actions: Tensor  # [C + 1, G, N] actions of all agents, decisions or not
    states: Tensor  # [C + 1, G, S] for a centralised critic; S is 0 without `with_states`
    rewards: Tensor  # [C, G] team rewards
    continues: Tensor  # [C, G] bool: the game was not terminated at this step or earlier
    truncated: Tensor  # [C + 1, G] bool: the game was truncated before this moment

    @property
    def decisions(self) -> int:
        """The number of decisions that can be learned from."""
        return int(self.learnable.sum())

    @property
    def learnable_rows(self) -> Tensor:
        """The row numbers of decisions that can be learned from."""
        return self.learnable.nonzero()[:, 0]

    @property
    def returns(self) -> Tensor:
        """The team return of each game, [G]."""
        return self.rewards.sum(0)


def collect_rollout(
    games: Games, act: Act, *, with_states: bool = False, before_step: Callable[[], object] = lambda: None
) -> Rollout:
    """Play one episode of every game.

    Args:
        games: the games, which are reset first.
        act: chooses the actions of all decisions of a moment.
        with_states: keep the states that a centralised critic needs.
        before_step: called at each moment, before the step.
    """
    games.reset()
    rows = []
    joint_actions = []
    states = []
    rewards = []
    continues = []
    truncated = []
    was_over = np.zeros(len(games.terminated), bool)  # [G] over at the moment before
    for cycle in itertools.count():
        before_step()
        view = games.view()
        over = games.terminated | games.truncated
        decides = (view.masks.sum(-1) > 1) & ~(was_over | games.terminated)[view.game]
        # The last moment of a truncated game needs a value. Without a decision there, it keeps rows of all agents.
        needs_value = games.truncated & ~was_over
        needs_value[view.game[decides]] = False
        decides |= needs_value[view.game]
        was_over = over.copy()
        game = view.game[decides]
        agent = view.agent[decides]
        observations = torch.from_numpy(view.observations[decides])
        masks = torch.from_numpy(view.masks[decides])
        actions = np.zeros((len(over), view.num_agents), np.int64)
        actions[view.game, view.agent] = view.masks.argmax(-1)  # the only legal action of agents without a choice
        if len(game):
            chosen = np.asarray(act(observations, masks))
            if chosen.shape != game.shape or chosen.dtype.kind not in "iu":
                raise PlugInError(
                    f"the policy returned {chosen.dtype} of shape {chosen.shape}; expected {len(game)} whole numbers, "
                    "one action for each row"
                )
            actions[game, agent] = chosen
        # The columns are in the order of the fields of `Rollout`.
        rows.append((game, agent, np.full(len(game), cycle), ~over[game], observations, masks, actions[game, agent]))
        joint_actions.append(actions)
        states.append(games.states() if with_states else np.empty((len(over), 0), np.float32))
        truncated.append(games.truncated.copy())
        if over.all():
            break
        rewards.append(games.step(actions).astype(np.float32))
        continues.append(~games.terminated)
    columns = (torch.cat([torch.as_tensor(part) for part in column]) for column in zip(*rows, strict=True))
    dense = (torch.from_numpy(np.array(item)) for item in (joint_actions, states, rewards, continues, truncated))
    return Rollout(*columns, *dense)


def leave_one_out(returns: Tensor, group_size: int) -> Tensor:
    """Return each return minus the mean of the group's other returns, [G] to [G].

    The baseline is independent of the episode, so it is unbiased. Source: Kool et al. 2019.
    """
    groups = returns.view(-1, group_size)
    # R_k - mean of the K - 1 others = (R_k - mean of all K) K / (K - 1)
    return ((groups - groups.mean(1, keepdim=True)) * (group_size / (group_size - 1))).flatten()


def lambda_returns(rewards: Tensor, discounts: Tensor, values: Tensor, lambdas: Tensor) -> Tensor:
    """Return the λ-returns of T steps.

        G_t = r_t + γ_t ((1 - λ_t) v_t + λ_t G_{t+1}),   G_T = v_{T-1}

    Source: Sutton and Barto 2018, section 12.1.

    Args:
        rewards: [T, ...] r_t.
        discounts: [T, ...] γ_t, 0 where step t terminates, so that nothing is bootstrapped.
        values: [T, ...] v_t, the value of the moment after step t.
        lambdas: [T, ...] λ_t, 0 where the episode is truncated after step t, so that the value stands for the rest; 1
            where v_t is unknown.

    Returns:
        [T, ...]
    """
    target = values[-1]
    targets = torch.empty_like(rewards)
    for t in reversed(range(len(rewards))):
        target = rewards[t] + discounts[t] * ((1 - lambdas[t]) * values[t] + lambdas[t] * target)
        targets[t] = target
    return targets


def compute_row_targets(rollout: Rollout, row_values: Tensor, *, gamma: float, lambda_: float) -> Tensor:
    """Return the team's λ-return after each decision, [B]; entries of rows that are not learnable have no meaning.

    Args:
        rollout: the decisions.
        row_values: [B] values. All agents that decide at one moment estimate the same team return, so their values are
            averaged. A moment without a decision has no value, and λ is 1 there.
        gamma: discount per joint step.
        lambda_: λ of the λ-return.
    """
    moments, games = rollout.truncated.shape
    index = rollout.cycle * games + rollout.game
    # Mean value of each moment of each game, [C + 1, G].
    total = torch.zeros(moments * games).index_add_(0, index, row_values)
    count = torch.zeros(moments * games).index_add_(0, index, torch.ones_like(row_values))
    values = (total / count.clamp(min=1)).view(moments, games)
    lambdas = torch.where(count.view(moments, games) > 0, lambda_, 1.0) * ~rollout.truncated
    targets = lambda_returns(rollout.rewards, gamma * rollout.continues, values[1:], lambdas[1:])
    return targets[rollout.cycle.clamp(max=len(targets) - 1), rollout.game]
