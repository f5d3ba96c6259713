"""What a policy loss is: a pure function from log-probs and advantages to one number per token."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Loss(Protocol):
    """A policy loss; its options are its constructor's arguments."""

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, loss_mask: Tensor) -> Tensor:
        """The loss of every token, before importance weights, KL and denominator. All are [B, T].

        Only positions where `loss_mask` is True count. The others hold finite numbers, and what is returned there must
        be finite too. A row is one sample, that is one agent's context; rows must not influence each other, because
        which rows share a batch is a matter of memory.

        Args:
            logprobs: under the weights being trained; the only argument with a gradient.
            old_logprobs: the fixed reference point of the ratio exp(logprobs - old_logprobs): those of the sampler, or
                with importance weights those of the learner before the first update.
            advantages: of every token.
            loss_mask: True where a token trains.
        """
        ...
