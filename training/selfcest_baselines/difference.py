"""`difference`: the team's return, less its return without this clone.

    clone c, all its decisions:  A = D_c = R - mean over n replays without c
    root:                        A = R - mean R of the group's others

Source: the wonderful life utility of Wolpert and Tumer 2001, on returns, since rewards before the end are all zero
here. Without c: the clone is taken out when it is born and its reply is missing. What does not descend from it is kept,
and the rest is sampled anew (`counterfactual.py`). The baseline does not depend on what c does, so this is unbiased.
The credit needs snapshots, games that are never cut, and groups of at least two. Where a missing reply is bad in
itself, every clone that exists looks good; `diff_loo` corrects for that. An episode without clones costs no replay. A
clone that cannot matter gets 0, in expectation where what comes after it is sampled anew.

For a credit of your own that needs replays, derive from `DifferenceLearner` and override `advantages`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from selfcest_baselines.counterfactual import Recording, ReplayCost, play_without, record
from selfcest_baselines.games import Games
from selfcest_baselines.learner import PolicyGradientLearner
from selfcest_baselines.networks import ActorNetwork, clipped_gain, descend, entropy, taken
from selfcest_baselines.progress import Progress
from selfcest_baselines.rollout import Act, leave_one_out
from selfcest_env.stored import stored_as
from selfcest_env.structure import Count


@stored_as("Difference", samples="samples")
@dataclass(frozen=True)
class DifferenceLearner(PolicyGradientLearner):
    """Options.

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
            actor.floor = self.exploration(decisions)
            recording = record(games, actor.sample)
            rollout = recording.rollout

            # Credit.
            advantages, cost = self.advantages(recording, actor.sample)  # [B]
            self.check_advantages(advantages, rollout)

            # Loss and update.
            with torch.no_grad():
                old = taken(actor(rollout.observations, rollout.masks), rollout.actions)  # [B]
            for rows in self.minibatches(rollout.learnable_rows, actor.generator):
                log_probs = actor(rollout.observations[rows], rollout.masks[rows])  # [b, A]
                new = taken(log_probs, rollout.actions[rows])  # [b]
                if self.loss == "one_pass":
                    gain = advantages[rows] * new
                else:
                    gain = clipped_gain(new, old[rows], advantages[rows], self.clip)
                objective = (gain + self.entropy * entropy(log_probs)).mean()
                descend(optimizer, -objective * self.objective_scale(rollout), self.max_gradient)

            decisions += rollout.decisions + cost.decisions
            episodes += self.episodes + cost.replays
            yield Progress(decisions, episodes, actor)

    def advantages(self, recording: Recording, act: Act) -> tuple[Tensor, ReplayCost]:
        """The advantage of each decision of the batch, [B], and the cost of the replays.

        Args:
            recording: the episodes of the batch; `recording.rollout` holds their decisions.
            act: samples the actions in replays.
        """
        rollout = recording.rollout
        credit, cost = difference_returns(recording, act, self.samples)  # [G, N]
        credit[:, 0] = leave_one_out(rollout.returns, self.group_size)
        return credit[rollout.game, rollout.agent], cost


def difference_returns(recording: Recording, act: Act, samples: int) -> tuple[Tensor, ReplayCost]:
    """D of each clone, [G, N], with 0 for roots and the unborn; and the cost of the replays."""
    returns = recording.rollout.returns  # [G]
    births = recording.births()
    num_seats = recording.moments[0].status.shape[1]
    credit = torch.zeros(len(returns), num_seats)
    if not len(births.game):
        return credit, ReplayCost()
    game, agent, cycle = (column.repeat(samples) for column in births)  # [K samples]
    absent = np.arange(num_seats) == agent[:, None]  # [K samples, N]
    replayed = play_without(recording, game, cycle, absent, act)
    without_clone = replayed.returns.view(-1, samples).mean(1)  # [K]
    credit[births.game, births.agent] = returns[births.game] - without_clone
    return credit, replayed.cost
