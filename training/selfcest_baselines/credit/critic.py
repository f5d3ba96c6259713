"""The critic of the credits that have one: a network fitted to λ-returns of the team."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selfcest_baselines.credit.base import Credit, Start
from selfcest_baselines.networks import descend, mlp, taken
from selfcest_env.stored import stored_as
from selfcest_env.structure import Count, Positive, Share


@stored_as(
    gamma="gamma",
    lambda_="lambda_",
    critic_learning_rate="critic_learning_rate",
    critic_passes="critic_passes",
    critic_batch="critic_batch",
)
@dataclass(frozen=True)
class CriticCredit(Credit, ABC):
    """Settings of a critic.

    Attributes:
        gamma: discount per joint step.
        lambda_: of the λ-return; 1 is the return itself.
        critic_passes: over every batch, in minibatches of at most `critic_batch` decisions; small ones, since a policy
            that delegates little makes few decisions.
    """

    gamma: Share = 1.0
    lambda_: Share = 0.95
    critic_learning_rate: Positive = 1e-3
    critic_passes: Count = 4
    critic_batch: Count = 128


class Critic:
    """A network with hidden layers of the policy's widths, and its optimiser."""

    def __init__(self, inputs: int, outputs: int, settings: CriticCredit, start: Start) -> None:
        self.network: nn.Module = mlp([inputs, *start.hidden, outputs], start.generator, last_gain=1.0)
        self._optimizer = torch.optim.Adam(self.network.parameters(), settings.critic_learning_rate)
        self._settings, self._start = settings, start

    def fit(self, inputs: Tensor, outputs: Tensor, targets: Tensor, rows: Tensor) -> None:
        """Mean squared error of one output per row, over the rows given.

        Args:
            inputs: [B, F].
            outputs: which one, [B].
            targets: [B].
            rows: of these, [b].
        """
        for _ in range(self._settings.critic_passes):
            order = rows[torch.randperm(len(rows), generator=self._start.generator)]
            for some in order.tensor_split(1 + len(order) // self._settings.critic_batch):
                loss = F.mse_loss(taken(self.network(inputs[some]), outputs[some]), targets[some])
                descend(self._optimizer, loss, self._start.max_gradient)
