"""Games small enough to be listed in full, for the tests of the multi-agent learners."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from selfcest_baselines.broadcast import BroadcastLearner
from selfcest_baselines.counterfactual import Recording
from selfcest_baselines.diff_loo import DiffLooLearner
from selfcest_baselines.difference import DifferenceLearner
from selfcest_baselines.games import KernelGames
from selfcest_baselines.learner import PolicyGradientLearner
from selfcest_baselines.networks import ActorNetwork
from selfcest_baselines.rollout import Act
from selfcest_baselines.shapley import ShapleyLearner
from selfcest_env.symbolic import BatchDelegation, State, SymbolicRules, make_rules
from selfcest_env.symbolic.streams import Keys
from selfcest_env.symbolic.tasks import Chain, ProblemBatch

ANSWER_0, ANSWER_1, SPLIT = 1, 2, 3

# Two items, 0 or 1. The root answers at once, or splits; then two clones answer at once, then the root must answer.
TWO_CLONES: SymbolicRules = make_rules(
    "chain",
    {"items": 2, "modulus": 2, "window": 2, "splits": [2]},
    max_clones=2,
    max_depth=1,
    max_turns=2,
    total_tokens=None,
)
SEED = 3


@dataclass(frozen=True)
class Same(Chain):
    """All items are the same, and the answer is that one: two clones and the root say again what they see."""

    name: ClassVar[str] = "same"
    items: int | tuple[int, int] = 4
    modulus: int = 2
    window: int | None = 2
    splits: tuple[int, ...] = (2,)

    def draw(self, keys: Keys) -> ProblemBatch:
        drawn = super().draw(keys)
        first = drawn.segments[:, :1]
        return drawn._replace(segments=np.repeat(first, drawn.segments.shape[1], axis=1), targets=first[:, 0])


def games(num_games: int = 1) -> KernelGames:
    """The same problem in every game."""
    return KernelGames(TWO_CLONES, num_games, SEED, group_size=num_games)


def first_state() -> State:
    start = games()
    start.reset()
    return start.kernel.get_snapshot()


def kernel_at(state: State, copies: int = 1) -> BatchDelegation:
    kernel = BatchDelegation(TWO_CLONES, copies)
    kernel.set_snapshot(state.take(np.zeros(copies, np.intp)))
    return kernel


def actor(seed: int = 0) -> ActorNetwork:
    """A policy that is far from uniform, in double precision."""
    torch.manual_seed(seed)
    kernel = kernel_at(first_state())
    policy = ActorNetwork(
        kernel.observations().shape[-1], kernel.num_actions, (8,), torch.Generator().manual_seed(seed)
    )
    for parameter in policy.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return policy.double()


def log_probs(policy: ActorNetwork, state: State) -> Tensor:
    """Of all agents, [N, A]."""
    kernel = kernel_at(state)
    return policy(torch.from_numpy(kernel.observations()[0]).double(), torch.from_numpy(kernel.action_masks()[0]))


def after(state: State, joint: tuple[int, ...]) -> State:
    kernel = kernel_at(state)
    kernel.step(np.array([joint]))
    return kernel.get_snapshot()


def joints(state: State) -> list[tuple[int, ...]]:
    """Every legal joint action."""
    masks = kernel_at(state).action_masks()[0]
    return list(itertools.product(*(np.flatnonzero(mask) for mask in masks)))


def value(policy: ActorNetwork, state: State) -> Tensor:
    """Expected team return, with its gradient, by listing everything that can happen."""
    if state.terminated[0]:
        return torch.tensor(state.team_return[0])
    logs = log_probs(policy, state)
    parts = [joint_log_prob(logs, joint).exp() * value(policy, after(state, joint)) for joint in joints(state)]
    return torch.stack(parts).sum()


def joint_log_prob(logs: Tensor, joint: tuple[int, ...]) -> Tensor:
    return logs[torch.arange(len(joint)), torch.tensor(joint)].sum()


def action_values(policy: ActorNetwork, state: State, joint: tuple[int, ...], agent: int) -> Tensor:
    """Q of each action of an agent while the others keep theirs, [A]; 1e6 for illegal ones, which nothing may read."""
    legal = kernel_at(state).action_masks()[0, agent]
    values = [
        value(policy, after(state, (*joint[:agent], action, *joint[agent + 1 :]))).detach() if legal[action] else 1e6
        for action in range(len(legal))
    ]
    return torch.tensor(values, dtype=torch.float64)


def steps(policy: ActorNetwork, state: State, reach: float = 1.0) -> Iterator[tuple[float, State, tuple[int, ...]]]:
    """Every (probability, state, joint action) that can occur."""
    if state.terminated[0]:
        return
    logs = log_probs(policy, state).detach()
    for joint in joints(state):
        probability = reach * float(joint_log_prob(logs, joint).exp())
        yield probability, state, joint
        yield from steps(policy, after(state, joint), probability)


def gradient(policy: ActorNetwork, objective: Tensor) -> Tensor:
    parts = torch.autograd.grad(objective, list(policy.parameters()), retain_graph=True)
    return torch.cat([part.flatten() for part in parts])


def advantages_of(learner: PolicyGradientLearner, recording: Recording, act: Act) -> Tensor:
    """What a learner without a critic gives the decisions of these episodes, [B]."""
    if isinstance(learner, BroadcastLearner):
        return learner.advantages(recording.rollout)
    if isinstance(learner, ShapleyLearner):
        return learner.advantages(recording, act, np.random.default_rng(0))[0]
    assert isinstance(learner, DifferenceLearner | DiffLooLearner)
    return learner.advantages(recording, act)[0]
