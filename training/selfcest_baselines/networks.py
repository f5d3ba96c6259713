"""Networks that all learners share: multi-layer perceptrons, and a policy over legal actions.

Shapes: B decisions, b of them in a minibatch, F features, A actions.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

# A logit whose probability is exactly 0. It is finite, because the entropy computes 0 * log 0 and needs 0, not nan.
ILLEGAL = -1e9


def build_mlp(sizes: list[int], generator: torch.Generator, *, last_gain: float) -> nn.Sequential:
    """Return linear layers with ReLU between them, with orthogonal weights and zero biases.

    Args:
        sizes: widths from the input to the output.
        generator: source of the initial weights.
        last_gain: gain of the last layer. A small one makes the first policy nearly uniform.
    """
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layer = nn.Linear(inputs, outputs)
        nn.init.orthogonal_(layer.weight, 2**0.5, generator=generator)
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.ReLU()]
    last = layers[-2]
    assert isinstance(last, nn.Linear)
    last.weight.data *= last_gain / 2**0.5  # every layer was initialised with ReLU's gain
    return nn.Sequential(*layers[:-1])


class ActorNetwork(nn.Module):
    """One policy for all agents, from an agent's own observation to log-probabilities of its legal actions.

    Args:
        features: length F of an observation.
        actions: number A of actions.
        hidden: widths of the hidden layers.
        generator: source of the initial weights and of the sampled actions.

    Attributes:
        floor: exploration rate ε of (1 - ε) softmax + ε / number of legal actions.
    """

    def __init__(self, features: int, actions: int, hidden: tuple[int, ...], generator: torch.Generator) -> None:
        super().__init__()
        self.logits = build_mlp([features, *hidden, actions], generator, last_gain=0.01)
        self.generator = generator
        self.floor = 0.0

    def forward(self, observations: Tensor, masks: Tensor) -> Tensor:
        """Return log-probabilities [B, A], about `ILLEGAL` for illegal actions.

        Args:
            observations: [B, F]
            masks: [B, A] true for legal actions.
        """
        logits: Tensor = self.logits(observations)
        return mix_with_uniform(logits.masked_fill(~masks, ILLEGAL).log_softmax(-1), masks, self.floor)

    @torch.no_grad()
    def sample(self, observations: Tensor, masks: Tensor) -> Tensor:
        """Sample an action per decision, [B]."""
        return sample_actions(self(observations, masks).exp(), self.generator)

    @torch.no_grad()
    def greedy(self, observations: Tensor, masks: Tensor) -> Tensor:
        """Return the most probable action per decision, [B]."""
        actions: Tensor = self(observations, masks).argmax(-1)
        return actions


def mix_with_uniform(log_probs: Tensor, masks: Tensor, floor: float) -> Tensor:
    """Return log-probabilities of (1 - floor) pi + floor * uniform over the legal actions, [B, A] to [B, A].

    Source: the bounded softmax of COMA, Foerster et al. 2018 (arXiv 1705.08926).
    """
    if floor == 0:
        return log_probs
    # Illegal actions keep their log-probability. The clamp keeps the unused branch of `where` finite, since a gradient
    # through log 0 would be nan there too.
    mixed = (1 - floor) * log_probs.exp() + floor * masks / masks.sum(-1, keepdim=True)
    return torch.where(masks, mixed.clamp(min=torch.finfo(mixed.dtype).tiny).log(), log_probs)


def sample_actions(probs: Tensor, generator: torch.Generator) -> Tensor:
    """Sample an action per row of probabilities, [B, A] to [B]."""
    # Of exponential clocks with these rates, each rings first with its probability. It is a vectorised exact sampler.
    return (probs / torch.empty_like(probs).exponential_(generator=generator)).argmax(-1)


def compute_entropy(log_probs: Tensor) -> Tensor:
    """Return the entropy of each row of log-probabilities in nats, [B, A] to [B]."""
    return -(log_probs.exp() * log_probs).sum(-1)


def gather_actions(values: Tensor, actions: Tensor) -> Tensor:
    """Return each row's value of the action taken, [B, A] and [B] to [B]."""
    return values.gather(-1, actions[:, None])[:, 0]


def clipped_surrogate(new: Tensor, old: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """Return PPO's clipped surrogate, min(ρ A, clip(ρ, 1 ± clip) A) with ρ = exp(new - old), [b].

    Source: Schulman et al. 2017 (arXiv 1707.06347), equation 7.

    Args:
        new: [b] log-probabilities of the actions taken under the current policy, with gradient.
        old: [b] log-probabilities of the same actions under the policy that played.
        advantages: [b] advantages of the same decisions.
        clip: maximum distance of ρ from 1.
    """
    ratio = (new - old).exp()
    return torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)


def step_optimizer(optimizer: torch.optim.Optimizer, loss: Tensor, max_gradient: float) -> None:
    """Make one optimiser step with the gradient of a loss, clipped to a norm."""
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], max_gradient)
    optimizer.step()
