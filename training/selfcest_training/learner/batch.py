"""Records and credit to samples, samples to token batches. One sample is one agent's context.

Denominators count episodes or a constant, never rows, clones or tokens that happen to train: how an episode is cut into
rows cannot change its weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from selfcest_env.errors import ConfigError
from selfcest_env.record import AgentRecord, EpisodeGroup
from selfcest_env.types import AgentId, TurnKey
from selfcest_training.credit import Credit, Replayed
from selfcest_training.learner.options import Denominator


@dataclass(frozen=True)
class Sample:
    """One agent's context with its credit. All arrays are [T], aligned.

    Attributes:
        episode_id, agent_id: whose context.
        token_ids: prompt blocks and generations in order.
        loss_mask: True where a generated token trains.
        behavior_logprobs, advantages: 0 where the mask is False.
        temperature: 1 where the mask is False.
        weight: one over the loss denominator, the same for every token of an episode, or where credit weighs turns [T]
            with its factors.
        old_logprobs: the learner's at a moment before this sample's update, 0 where the mask is False; `None`: not
            computed, see `Learner.freeze`.

    Example (a prompt of two ids, one turn of three):
        token_ids [2, 9, 21, 17, 13]; loss_mask [F, F, T, T, T]; advantages [0, 0, .5, .5, .5]
    """

    episode_id: str
    agent_id: AgentId
    token_ids: np.ndarray
    loss_mask: np.ndarray
    behavior_logprobs: np.ndarray
    advantages: np.ndarray
    temperature: np.ndarray
    weight: float | np.ndarray
    old_logprobs: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True)
class RowLayout:
    """Where the model computes a batch's tokens if not where the batch has them: R rows of N columns.

    Attributes:
        token_ids: [R, N].
        positions: [R, N], a token's place in its own context; `None`: its column.
        visible: [R, N, N], True where the second column is in the context of the first; `None`: where its context
            begins, at position 0, up to its column.
        sources: [2, M] row and column of the token before each one that trains, in the order of `loss_mask`.
    """

    token_ids: Tensor
    positions: Tensor | None
    visible: Tensor | None
    sources: Tensor


@dataclass(frozen=True)
class TokenBatch:
    """Rows of similar length, padded on the right. All tensors are [B, T].

    `samples` are the rows', in order; `old_logprobs` is `None` if theirs are. `num_tokens` is how many ids the model
    computes, padding not counted; without a `layout`, those of the rows.
    """

    token_ids: Tensor
    loss_mask: Tensor
    behavior_logprobs: Tensor
    advantages: Tensor
    temperature: Tensor
    weights: Tensor
    samples: tuple[Sample, ...]
    num_tokens: int
    old_logprobs: Tensor | None = None
    layout: RowLayout | None = None

    def to(self, device: torch.device) -> TokenBatch:
        """The same batch with its tensors there."""
        return _moved(self, device)

    def measured(self, logprobs: Tensor) -> list[Sample]:
        """The samples with their rows of `logprobs` [B, T], from any device, as `old_logprobs`."""
        found = torch.where(self.loss_mask, logprobs.detach(), 0.0).cpu().numpy()
        pairs = zip(self.samples, found, strict=True)
        return [replace(sample, old_logprobs=row[: len(sample)].copy()) for sample, row in pairs]


Tensors = TypeVar("Tensors", RowLayout, TokenBatch)


def _moved(tensors: Tensors, device: torch.device) -> Tensors:
    values = {field.name: getattr(tensors, field.name) for field in fields(tensors)}
    for name, value in values.items():
        if isinstance(value, Tensor):
            values[name] = value.to(device)
        elif isinstance(value, RowLayout):
            values[name] = _moved(value, device)
    return type(tensors)(**values)


def mini_batches(
    groups: Sequence[EpisodeGroup],
    credits: Sequence[Credit],
    count: int,
    *,
    denominator: Denominator,
    constant: float,
    planned_episodes: int,
    replayed: Sequence[Replayed] | None = None,
) -> list[list[Sample]]:
    """A step's samples in exactly `count` mini-batches, their groups as even as they go, in order.

    Each stands for its share of the episodes that were planned for the step, whatever a group filter has dropped.
    """
    cuts = [i * len(groups) // count for i in range(count + 1)]
    return [
        build_samples(
            groups[start:end],
            credits[start:end],
            denominator=denominator,
            constant=constant,
            num_episodes=planned_episodes / count,
            replayed=None if replayed is None else replayed[start:end],
        )
        for start, end in pairwise(cuts)
    ]


def build_samples(
    groups: Sequence[EpisodeGroup],
    credits: Sequence[Credit],
    *,
    denominator: Denominator,
    constant: float,
    num_episodes: float | None = None,
    replayed: Sequence[Replayed] | None = None,
) -> list[Sample]:
    """Samples of one mini-batch of tasks: one per agent that has a turn to train, in an episode or in a replay.

    The weight of an episode's tokens is 1 / (episodes that the mini-batch stands for x denominator); by default those
    that it has. Tokens of its replays, and of replays of these, weigh the same, and no denominator counts them. An
    agent whose turns are all excluded gives no sample, and the denominator does not notice.

    Raises:
        ConfigError: a record without token ids: text-only policies cannot be trained.
    """
    if not constant > 0:
        raise ConfigError(f"the loss denominator constant is {constant!r}; expected a number > 0")
    if num_episodes is None:
        num_episodes = sum(len(group.episodes) for group in groups)
    samples = []
    for group, credit, branches in zip(groups, credits, replayed or [{}] * len(groups), strict=True):
        weights: dict[str, float] = {}
        for episode in group.episodes:
            tokens = constant if denominator == Denominator.CONSTANT else float(max(1, episode.cost.generated_tokens))
            weights[episode.episode_id] = 1.0 / (num_episodes * tokens)
        records = [(episode, weights[episode.episode_id]) for episode in group.episodes]
        trained = {key.episode_id for key in credit.advantage} - weights.keys()
        for replay, record in branches.items():  # replays of replays come after these
            weights[record.episode_id] = weights[replay.episode_id]
            if record.episode_id in trained:
                records.append((record, weights[record.episode_id]))
        for record, weight in records:
            for agent in record.agents:
                sample = agent_sample(record.episode_id, agent, credit, weight)
                if sample is not None:
                    samples.append(sample)
    return samples


def agent_sample(episode_id: str, agent: AgentRecord, credit: Credit, weight: float) -> Sample | None:
    """One agent's context; `None` if none of its turns has an advantage. Raises `ConfigError` without token ids."""
    ids = np.array(agent.context_ids, dtype=np.int64)
    loss_mask = np.zeros(len(ids), dtype=bool)
    behavior, advantages = np.zeros(len(ids), dtype=np.float32), np.zeros(len(ids), dtype=np.float32)
    temperature, weights = np.ones((2, len(ids)), dtype=np.float32)
    position = 0
    for index, turn in enumerate(agent.turns):
        generation, key = turn.generation, TurnKey(episode_id, agent.agent_id, index)
        if not generation.token_ids:
            raise ConfigError(
                f"{key} has no token ids; only episodes sampled by a token-level policy can be trained on"
            )
        start = position + len(generation.prompt_ids)
        position = start + len(generation.token_ids)
        if key in credit.advantage:
            loss_mask[start:position] = True
            behavior[start:position] = generation.behavior_logprobs
            advantages[start:position] = credit.advantage[key]
            weights[start:position] = credit.weight.get(key, 1.0)
            temperature[start:position] = generation.temperature
    if not loss_mask.any():
        return None
    scaled = weight * weights if credit.weight else weight
    return Sample(episode_id, agent.agent_id, ids, loss_mask, behavior, advantages, temperature, scaled)


Row = TypeVar("Row", bound=Sized)


def bucketed(rows: Sequence[Row], max_tokens: int) -> Iterator[list[Row]]:
    """Cut rows into micro-batches of similar length, each at most `max_tokens` when padded (or a single row)."""
    bucket: list[Row] = []
    for row in sorted(rows, key=len):
        if bucket and (len(bucket) + 1) * len(row) > max_tokens:
            yield bucket
            bucket = []
        bucket.append(row)
    if bucket:
        yield bucket


def collate(samples: Sequence[Sample], pad_id: int) -> TokenBatch:
    """Pad rows on the right. Under a causal mask no real position ever sees a pad, so no attention mask is needed."""
    longest = max(len(sample) for sample in samples)

    def pad(rows: Sequence[np.ndarray], fill: float) -> Tensor:
        out = np.full((len(rows), longest), fill, dtype=rows[0].dtype)
        for i, row in enumerate(rows):
            out[i, : len(row)] = row
        return torch.from_numpy(out)

    old = [sample.old_logprobs for sample in samples if sample.old_logprobs is not None]
    assert len(old) in (0, len(samples)), "either all samples of a batch have old log-probs or none"
    return TokenBatch(
        token_ids=pad([s.token_ids for s in samples], pad_id),
        loss_mask=pad([s.loss_mask for s in samples], False),
        behavior_logprobs=pad([s.behavior_logprobs for s in samples], 0.0),
        advantages=pad([s.advantages for s in samples], 0.0),
        temperature=pad([s.temperature for s in samples], 1.0),
        weights=pad([np.full(len(s), s.weight, dtype=np.float32) for s in samples], 0.0),
        samples=tuple(samples),
        num_tokens=sum(map(len, samples)),
        old_logprobs=pad(old, 0.0) if old else None,
    )
