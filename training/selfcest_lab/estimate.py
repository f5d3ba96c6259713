"""Gradient estimates of a credit scheme in a game, by training's own code.

Groups are played by the ordinary rollout, the scheme is asked and answered by the training loop's own stage, and its
credit becomes a gradient by `build_samples`, `collate` and the loss, with the constant denominator.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from selfcest_agents.replay import PlayedReplay, play_replays
from selfcest_agents.rollout import RolloutRequest, rollout
from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.replay import Replay
from selfcest_env.seeding import stream_seed
from selfcest_lab.exact import Parameters, Solved
from selfcest_lab.internals import internals_of
from selfcest_lab.tabular import Floats, Streams, TabularPolicy
from selfcest_training.credit import Credit, CreditAssigner, Replayed, Rloo, fit, overrides
from selfcest_training.learner.batch import Sample, build_samples, collate
from selfcest_training.learner.losses import Clipped, LossInputs, token_logprobs, weighted_sum
from selfcest_training.learner.options import Denominator
from selfcest_training.stages.crediting import counterfactuals, credit_step, records_of

_ROWS = 512  # samples of one forward pass
_GROUPS = 256  # groups played at once
_LOSS = Clipped()  # on policy the ratio is 1, so any clip leaves the gradient as it is


@dataclass(frozen=True)
class Estimates:
    """Sampled gradient estimates, and what they cost.

    Attributes:
        gradients: [G, D], one per group.
        reference: [G, D] those of `rloo` for the same groups.
        sampled_tokens, replayed_tokens: generated per group, in its episodes and for its replays.
    """

    gradients: Floats
    reference: Floats
    sampled_tokens: float
    replayed_tokens: float


def group_gradients(
    parameters: Parameters,
    groups: Sequence[EpisodeGroup],
    credits: Sequence[Credit],
    replayed: Sequence[Replayed] | None = None,
    *,
    constant: float = 1.0,
) -> Floats:
    """[G, D]: minus the gradient of the loss on every group, as a mini-batch of its own."""
    samples: list[Sample] = []
    owners: list[int] = []
    for index, (group, credit) in enumerate(zip(groups, credits, strict=True)):
        branches = None if replayed is None else [replayed[index]]
        own = build_samples([group], [credit], denominator=Denominator.CONSTANT, constant=constant, replayed=branches)
        samples += own
        owners += [index] * len(own)
    result = torch.zeros(len(groups), parameters.size, dtype=torch.float64)
    for start in range(0, len(samples), _ROWS):
        chunk = slice(start, start + _ROWS)
        _accumulate(result, parameters, samples[chunk], torch.tensor(owners[chunk]))
    return np.asarray(result.numpy()) * constant


def _accumulate(result: torch.Tensor, parameters: Parameters, samples: Sequence[Sample], owners: torch.Tensor) -> None:
    """Differentiate the loss by the logits at every position and add up by parameter: the chain rule of a table."""
    batch = collate(samples, pad_id=0)
    rows = torch.zeros(batch.token_ids.shape, dtype=torch.int64)
    for i, sample in enumerate(samples):
        ids = tuple(sample.token_ids.tolist())
        trained = np.flatnonzero(sample.loss_mask)
        rows[i, trained - 1] = torch.tensor([parameters.row_of[ids[:position]] for position in trained])
    logits = parameters.logits[rows].requires_grad_()
    logprobs = token_logprobs(logits, batch.token_ids, batch.temperature)
    # The stored log-probs are these, rounded; without the rounding the ratio is 1 exactly.
    same, depth = logprobs.detach(), torch.zeros(len(samples), 1, dtype=torch.int64)
    surrogate = _LOSS(LossInputs(logprobs, same, same, batch.advantages.double(), batch.loss_mask, depth))
    (gradient,) = torch.autograd.grad(weighted_sum(surrogate, batch.weights.double(), batch.loss_mask), logits)
    place = parameters.place[rows]
    used = place >= 0
    result.index_put_((owners[:, None, None].expand_as(place)[used], place[used]), -gradient[used], accumulate=True)


def sample_groups(
    assigner: CreditAssigner, solved: Solved, *, group_size: int, num_groups: int, seed: int
) -> Estimates:
    """Play groups and their replays with pseudo-random streams; equal seeds play the same groups for every scheme.

    One that learns has learned from as many groups of other seeds before.
    """
    policy = TabularPolicy(solved.table, Streams())
    gradients, reference = [], []
    sampled = replayed = 0

    def play(records: Sequence[EpisodeRecord], replays: Sequence[Replay]) -> dict[Replay, PlayedReplay]:
        return scored(solved, play_replays(records, replays, policy, solved.rules))

    def groups_of(indices: range, seed: int) -> list[EpisodeGroup]:
        requests = [lab_request(solved, seed, index, k) for index in indices for k in range(group_size)]
        records = [solved.reward.score(record) for record in rollout(requests, policy, solved.rules)]
        parts = (tuple(records[i : i + group_size]) for i in range(0, len(records), group_size))
        return [EpisodeGroup(solved.game.task(), part) for part in parts]

    parts = [range(start, min(start + _GROUPS, num_groups)) for start in range(0, num_groups, _GROUPS)]
    if assigner.internals or overrides(assigner, "fit"):
        assigner = copy.deepcopy(assigner)
        for indices in parts:
            groups = groups_of(indices, stream_seed("lab learns", seed))
            fit(assigner, groups, internals_of(groups, solved.table))
    for indices in parts:
        groups = groups_of(indices, seed)
        played = counterfactuals(assigner, groups, play)
        internals = internals_of(groups, solved.table) if assigner.internals else None
        credit = credit_step(assigner, groups, played, internals)
        gradients.append(group_gradients(solved.parameters, groups, credit.credits, records_of(played)))
        reference.append(group_gradients(solved.parameters, groups, [Rloo().assign(group, {}) for group in groups]))
        sampled += sum(episode.cost.generated_tokens for group in groups for episode in group.episodes)
        replayed += credit.sampled_tokens
    return Estimates(np.concatenate(gradients), np.concatenate(reference), sampled / num_groups, replayed / num_groups)


def lab_request(solved: Solved, seed: int, group: int, episode: int) -> RolloutRequest:
    """The request of one episode of one group; seeds differ by game and group."""
    name = f"g{group}.e{episode}"
    return RolloutRequest(name, solved.game.task(), stream_seed("lab", seed, solved.game.name, name))


def scored(solved: Solved, played: Mapping[Replay, PlayedReplay]) -> dict[Replay, PlayedReplay]:
    """Played replays with their records scored as the episodes are."""
    return {replay: replace(play, record=solved.reward.score(play.record)) for replay, play in played.items()}
