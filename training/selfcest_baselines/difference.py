"""`difference`: the team's return minus its return without this clone.

    clone c, all its decisions:  A = D_c = R - mean over n replays without c
    root:                        A = R - mean R of the group's other episodes

Source: the wonderful life utility of Wolpert and Tumer 2001, on returns, because all rewards before the end are zero
here. A replay without c removes the clone at its birth, so its reply is missing; `counterfactual.py` defines what is
kept and what is sampled again. The baseline does not depend on what c does, so the credit is unbiased. Where a missing
reply is bad in itself, every clone that exists looks good; `diff_loo` corrects for that. `docs/learners.md` lists what
each learner needs.

For a credit of your own with replays, derive from `DifferenceLearner` and override `advantages`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from selfcest_baselines.counterfactual import Recording, ReplayCost, record_episodes, replay_without
from selfcest_baselines.games import Games
from selfcest_baselines.learner import PolicyGradientLearner
from selfcest_baselines.networks import ActorNetwork, clipped_surrogate, compute_entropy, gather_actions, step_optimizer
from selfcest_baselines.progress import Progress
from selfcest_baselines.rollout import Act, leave_one_out
from selfcest_env.stored import stored_as
from selfcest_env.structure import Count


@stored_as("Difference", samples="samples")
@dataclass(frozen=True)
class DifferenceLearner(PolicyGradientLearner):
    """Policy gradient with difference rewards by replays.

    Attributes:
        samples: replays per clone.
    """

    samples: Count = 1

    least_group: ClassVar[int] = 2
    replays: ClassVar[bool] = True

    def train_actor(self, games: Games, actor: ActorNetwork) -> Iterator[Progress]:
        optimizer = torch.optim.Adam(actor.parameters(), self.learning_rate)
        decisions = 0
        episodes = 0
        while True:
            # Rollout: one episode of each game, with a snapshot of each moment; rows are decisions.
            actor.floor = self.exploration_rate(decisions)
            recording = record_episodes(games, actor.sample)
            rollout = recording.rollout

            # Credit.
            advantages, cost = self.advantages(recording, actor.sample)  # [B]
            self.check_advantages(advantages, rollout)

            # Loss and update.
            with torch.no_grad():
                old_log_prob = gather_actions(actor(rollout.observations, rollout.masks), rollout.actions)  # [B]
            for rows in self.minibatches(rollout.learnable_rows, actor.generator):
                log_probs = actor(rollout.observations[rows], rollout.masks[rows])  # [b, A]
                new_log_prob = gather_actions(log_probs, rollout.actions[rows])  # [b]
                if self.loss == "one_pass":
                    surrogate = advantages[rows] * new_log_prob
                else:
                    surrogate = clipped_surrogate(new_log_prob, old_log_prob[rows], advantages[rows], self.clip)
                objective = (surrogate + self.entropy * compute_entropy(log_probs)).mean()
                step_optimizer(optimizer, -objective * self.objective_scale(rollout), self.max_gradient)

            decisions += rollout.decisions + cost.decisions
            episodes += self.episodes + cost.replays
            yield Progress(decisions, episodes, actor)

    def advantages(self, recording: Recording, act: Act) -> tuple[Tensor, ReplayCost]:
        """Return the advantage of each decision of the batch, [B], and the cost of the replays.

        Args:
            recording: episodes of the batch, whose decisions are in `recording.rollout`.
            act: samples actions in replays.
        """
        rollout = recording.rollout
        credit, cost = compute_difference_returns(recording, act, self.samples)  # [G, N]
        credit[:, 0] = leave_one_out(rollout.returns, self.group_size)
        return credit[rollout.game, rollout.agent], cost


def compute_difference_returns(recording: Recording, act: Act, samples: int) -> tuple[Tensor, ReplayCost]:
    """Return D of each clone, [G, N], with 0 for roots and agents that are not born, and the cost of the replays.

    Args:
        recording: the recorded episodes.
        act: samples actions in replays.
        samples: replays per clone.
    """
    returns = recording.rollout.returns  # [G]
    births = recording.births()
    num_seats = recording.moments[0].status.shape[1]
    credit = torch.zeros(len(returns), num_seats)
    if not len(births.game):
        return credit, ReplayCost()
    game, agent, cycle = (column.repeat(samples) for column in births)  # [K samples]
    absent = np.arange(num_seats) == agent[:, None]  # [K samples, N]
    # All replays of the batch are played as one batch of games.
    replayed = replay_without(recording, game, cycle, absent, act)
    without_clone = replayed.returns.view(-1, samples).mean(1)  # [K]
    credit[births.game, births.agent] = returns[births.game] - without_clone
    return credit, replayed.cost
