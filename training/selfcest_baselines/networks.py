"""The networks of every learner here: multi-layer perceptrons, and a policy over legal actions."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

ILLEGAL = -1e9  # a logit whose probability is exactly 0, and still finite so that 0 * log 0 is 0


def mlp(sizes: list[int], generator: torch.Generator, *, last_gain: float) -> nn.Sequential:
    """Linear layers with ReLU between them; orthogonal weights, zero biases."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layer = nn.Linear(inputs, outputs)
        nn.init.orthogonal_(layer.weight, 2**0.5, generator=generator)
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.ReLU()]
    last = layers[-2]
    assert isinstance(last, nn.Linear)
    last.weight.data *= last_gain / 2**0.5
    return nn.Sequential(*layers[:-1])


class ActorNetwork(nn.Module):
    """One policy for all agents: log-probabilities of the legal actions given an agent's own observation.

    Attributes:
        floor: ε of (1 - ε) softmax + ε / number of legal actions.
    """

    def __init__(self, features: int, actions: int, hidden: tuple[int, ...], generator: torch.Generator) -> None:
        super().__init__()
        self.logits = mlp([features, *hidden, actions], generator, last_gain=0.01)
        self.generator, self.floor = generator, 0.0

    def forward(self, observations: Tensor, masks: Tensor) -> Tensor:
        """[B, F] and [B, A] to [B, A]; about `ILLEGAL` where the mask is false."""
        logits: Tensor = self.logits(observations)
        return floored(logits.masked_fill(~masks, ILLEGAL).log_softmax(-1), masks, self.floor)

    @torch.no_grad()
    def sample(self, observations: Tensor, masks: Tensor) -> Tensor:
        return draw(self(observations, masks).exp(), self.generator)

    @torch.no_grad()
    def best(self, observations: Tensor, masks: Tensor) -> Tensor:
        best: Tensor = self(observations, masks).argmax(-1)
        return best


def floored(log_probs: Tensor, masks: Tensor, floor: float) -> Tensor:
    """Log-probabilities of (1 - floor) pi + floor * uniform over the legal actions."""
    if floor == 0:
        return log_probs
    mixed = (1 - floor) * log_probs.exp() + floor * masks / masks.sum(-1, keepdim=True)
    return torch.where(masks, mixed.clamp(min=torch.finfo(mixed.dtype).tiny).log(), log_probs)


def draw(probs: Tensor, generator: torch.Generator) -> Tensor:
    """One action per row of probabilities [B, A]: the first to ring of exponential clocks with these rates."""
    return (probs / torch.empty_like(probs).exponential_(generator=generator)).argmax(-1)


def entropy(log_probs: Tensor) -> Tensor:
    """[B, A] to [B]."""
    return -(log_probs.exp() * log_probs).sum(-1)


def taken(values: Tensor, actions: Tensor) -> Tensor:
    """The entry of every row that its action names: [B, A] and [B] to [B]."""
    return values.gather(-1, actions[:, None])[:, 0]


def clipped_gain(new: Tensor, old: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """PPO's clipped surrogate, min(ρ A, clip(ρ, 1 ± clip) A) with ρ = new probability / old probability; all [b].

    Source: Schulman et al. 2017 (arXiv 1707.06347), equation 7.

    Args:
        new: log-probabilities of the actions taken, by the policy as it is now; the gradient flows through these.
        old: log-probabilities of the same actions, by the policy that played.
        advantages: of the same decisions.
        clip: how far ρ may leave 1.
    """
    ratio = (new - old).exp()
    return torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)


def descend(optimizer: torch.optim.Optimizer, loss: Tensor, max_gradient: float) -> None:
    """One step of the optimiser, whose gradient is cut to a norm."""
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], max_gradient)
    optimizer.step()
