"""Gradient estimates of a credit scheme in a game, computed by the code of training.

Groups are played by the ordinary rollout, and the credit stage of the training loop plays the replays and asks the
scheme for credit. `build_samples`, `collate` and the loss with the constant denominator turn that into a gradient.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from selfcest_agents.replay import PlayedReplay, play_replays
from selfcest_agents.rollout import RolloutRequest, rollout
from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.replay import Replay
from selfcest_env.seeding import stream_seed
from selfcest_lab.exact import Parameters, SolvedGame
from selfcest_lab.internals import compute_internals
from selfcest_lab.tabular import Floats, SeededNoise, TabularPolicy
from selfcest_training.credit import Credit, CreditAssigner, ReplayRecords, Rloo, fit, overrides
from selfcest_training.learner.batch import Sample, build_samples, collate
from selfcest_training.learner.losses import Clipped, LossInputs, token_logprobs, weighted_sum
from selfcest_training.learner.options import Denominator
from selfcest_training.stages.crediting import (
    PlayReplays,
    StepCredit,
    assign_step_credit,
    get_records,
    play_counterfactuals,
)

_FORWARD_SAMPLES = 512  # samples of one forward pass
_GROUPS_AT_ONCE = 256  # groups that are played together
_LOSS = Clipped()  # on policy the ratio is 1, so clipping leaves the gradient as it is


@dataclass(frozen=True)
class Estimates:
    """Sampled gradient estimates of G groups, and their cost.

    Attributes:
        gradients: [G, D] the scheme's estimate for each group.
        reference: [G, D] the estimate of `rloo` for the same groups.
        sampled_tokens: mean number of tokens generated in a group's episodes.
        replayed_tokens: mean number of tokens generated in a group's replays.
    """

    gradients: Floats
    reference: Floats
    sampled_tokens: float
    replayed_tokens: float


def compute_group_gradients(
    parameters: Parameters,
    groups: Sequence[EpisodeGroup],
    credits: Sequence[Credit],
    replayed: Sequence[ReplayRecords] | None = None,
    *,
    constant: float = 1.0,
) -> Floats:
    """Return minus the gradient of the loss on each group, as if the group were a mini-batch of its own.

    Args:
        parameters: the policy's parameters.
        groups: G groups.
        credits: the credit of each group.
        replayed: the played replays of each group, for schemes that train on turns of replays.
        constant: the loss denominator, which the result is multiplied by again.

    Returns:
        [G, D]
    """
    samples: list[Sample] = []
    group_indices: list[int] = []
    for index, (group, credit) in enumerate(zip(groups, credits, strict=True)):
        branches = None if replayed is None else [replayed[index]]
        group_samples = build_samples(
            [group], [credit], denominator=Denominator.CONSTANT, constant=constant, replayed=branches
        )
        samples += group_samples
        group_indices += [index] * len(group_samples)
    gradients = torch.zeros(len(groups), parameters.size, dtype=torch.float64)
    for start in range(0, len(samples), _FORWARD_SAMPLES):
        chunk = slice(start, start + _FORWARD_SAMPLES)
        _add_gradients(gradients, parameters, samples[chunk], torch.tensor(group_indices[chunk]))
    return np.asarray(gradients.numpy()) * constant


def _add_gradients(
    gradients: torch.Tensor, parameters: Parameters, samples: Sequence[Sample], group_indices: torch.Tensor
) -> None:
    """Add minus the gradient of each sample's loss to its group's row of `gradients`, [G, D]."""
    batch = collate(samples, pad_id=0)
    rows = torch.zeros(batch.token_ids.shape, dtype=torch.int64)
    for i, sample in enumerate(samples):
        ids = tuple(sample.token_ids.tolist())
        trained = np.flatnonzero(sample.loss_mask)
        # The logits at position t - 1 predict the id at position t.
        rows[i, trained - 1] = torch.tensor([parameters.row_of[ids[:position]] for position in trained])
    # The copy has one row of logits per position. Its gradient is added up by parameter below, which is the chain rule
    # of a table.
    logits = parameters.logits[rows].requires_grad_()
    logprobs = token_logprobs(logits, batch.token_ids, batch.temperature)
    # The stored log-probs are the same numbers in single precision. With these the ratio is exactly 1.
    old_logprobs = logprobs.detach()
    depth = torch.zeros(len(samples), 1, dtype=torch.int64)
    inputs = LossInputs(logprobs, old_logprobs, old_logprobs, batch.advantages.double(), batch.loss_mask, depth)
    loss = weighted_sum(_LOSS(inputs), batch.weights.double(), batch.loss_mask)
    (gradient,) = torch.autograd.grad(loss, logits)
    index = parameters.index[rows]
    is_parameter = index >= 0
    group_of_entry = group_indices[:, None, None].expand_as(index)
    gradients.index_put_((group_of_entry[is_parameter], index[is_parameter]), -gradient[is_parameter], accumulate=True)


def learn(
    assigner: CreditAssigner, solved: SolvedGame, *, group_size: int, num_groups: int, seed: int
) -> CreditAssigner:
    """Return a copy of a scheme that has learned from groups of other seeds; the scheme itself if it does not learn.

    As in a training step, a chunk of groups is credited before the scheme is fitted to it.

    Args:
        assigner: the scheme.
        solved: the game.
        group_size: episodes of a group.
        num_groups: number of groups to learn from.
        seed: seed of the groups that `sample_groups` plays. These must not be among those learned from.
    """
    if not (assigner.internals or overrides(assigner, "fit")):
        return assigner
    assigner = copy.deepcopy(assigner)
    learned_seed = stream_seed("lab learns", seed)
    for indices in _split_into_chunks(num_groups):
        groups = _play_groups(solved, indices, group_size, learned_seed)
        internals = compute_internals(groups, solved.table)
        assign_step_credit(assigner, groups, play_counterfactuals(assigner, groups, _make_player(solved)), internals)
        fit(assigner, groups, internals)
    return assigner


def sample_groups(
    assigner: CreditAssigner, solved: SolvedGame, *, group_size: int, num_groups: int, seed: int
) -> Estimates:
    """Play groups and their replays with pseudo-random streams, and estimate the gradient from each group.

    Args:
        assigner: the scheme, which is not fitted; see `learn`.
        solved: the game.
        group_size: episodes of a group.
        num_groups: the number G of groups.
        seed: equal seeds play the same groups for every scheme.
    """
    gradients: list[Floats] = []
    reference: list[Floats] = []
    sampled_tokens = 0
    replayed_tokens = 0
    chunks = credit_groups(assigner, solved, group_size=group_size, num_groups=num_groups, seed=seed)
    for groups, replayed, credit in chunks:
        gradients.append(compute_group_gradients(solved.parameters, groups, credit.credits, replayed))
        rloo_credits = [Rloo().assign(group, {}) for group in groups]
        reference.append(compute_group_gradients(solved.parameters, groups, rloo_credits))
        for group in groups:
            sampled_tokens += sum(episode.cost.generated_tokens for episode in group.episodes)
        replayed_tokens += credit.sampled_tokens
    return Estimates(
        np.concatenate(gradients),
        np.concatenate(reference),
        sampled_tokens / num_groups,
        replayed_tokens / num_groups,
    )


def credit_groups(
    assigner: CreditAssigner, solved: SolvedGame, *, group_size: int, num_groups: int, seed: int
) -> Iterator[tuple[list[EpisodeGroup], list[dict[Replay, EpisodeRecord]], StepCredit]]:
    """Play groups in chunks, and yield the groups of each chunk with the records of their replays and their credit.

    The arguments are those of `sample_groups`.
    """
    for indices in _split_into_chunks(num_groups):
        groups = _play_groups(solved, indices, group_size, seed)
        played = play_counterfactuals(assigner, groups, _make_player(solved))
        internals = compute_internals(groups, solved.table) if assigner.internals else None
        yield groups, get_records(played), assign_step_credit(assigner, groups, played, internals)


def _split_into_chunks(num_groups: int) -> Iterator[range]:
    for first in range(0, num_groups, _GROUPS_AT_ONCE):
        yield range(first, min(first + _GROUPS_AT_ONCE, num_groups))


def _play_groups(solved: SolvedGame, indices: range, group_size: int, seed: int) -> list[EpisodeGroup]:
    requests: list[RolloutRequest] = []
    for index in indices:
        requests += [make_request(solved, seed, index, episode) for episode in range(group_size)]
    policy = TabularPolicy(solved.table, SeededNoise())
    records = [solved.reward.score(record) for record in rollout(requests, policy, solved.rules)]
    groups = []
    for first in range(0, len(records), group_size):
        groups.append(EpisodeGroup(solved.game.task(), tuple(records[first : first + group_size])))
    return groups


def _make_player(solved: SolvedGame) -> PlayReplays:
    """Return a function that plays and scores replays."""
    policy = TabularPolicy(solved.table, SeededNoise())

    def play(records: Sequence[EpisodeRecord], replays: Sequence[Replay]) -> dict[Replay, PlayedReplay]:
        return score_replays(solved, play_replays(records, replays, policy, solved.rules))

    return play


def make_request(solved: SolvedGame, seed: int, group: int, episode: int) -> RolloutRequest:
    """Return the request of one episode of one group, with a seed that differs by game and group."""
    name = f"g{group}.e{episode}"
    return RolloutRequest(name, solved.game.task(), stream_seed("lab", seed, solved.game.name, name))


def score_replays(solved: SolvedGame, played: Mapping[Replay, PlayedReplay]) -> dict[Replay, PlayedReplay]:
    """Return played replays whose records are scored as the episodes are."""
    return {replay: replace(play, record=solved.reward.score(play.record)) for replay, play in played.items()}
