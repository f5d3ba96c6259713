"""Builds samples from records and credit, and token batches from samples. One sample is one agent's context.

Loss denominators count episodes and their generated tokens or a constant, never rows, clones or trained tokens. So the
way in which an episode is cut into rows cannot change its weight (rule 8 of the design).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from selfcest_env.errors import ConfigError
from selfcest_env.record import AgentRecord, EpisodeGroup
from selfcest_env.types import AgentId, TurnKey
from selfcest_training.credit import Credit, ReplayRecords
from selfcest_training.learner.options import Denominator


@dataclass(frozen=True)
class Sample:
    """One agent's context with its credit. All arrays are [T] and aligned.

    Attributes:
        episode_id, agent_id: the agent whose context it is.
        token_ids: prompt blocks and generations in order.
        loss_mask: True where a generated token is trained.
        behavior_logprobs, advantages: of the sampler and of the credit scheme; 0 where the mask is False.
        temperature: sampling temperature; 1 where the mask is False.
        weight: one over the loss denominator, a number that all tokens of an episode share; [T] where the credit
            scheme also weighs turns.
        old_logprobs: the learner's log-probs before the update, 0 where the mask is False; `None`: not computed, see
            `attach_old_logprobs`.

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
    """The rows in which the model computes a batch, where they differ from the batch's rows: R rows of N columns.

    Attributes:
        token_ids: [R, N].
        positions: [R, N] position of a token in its own context; `None`: its column.
        visible: [R, N, N] `visible[r, i, j]` is True where the token of column i attends to that of column j; `None`:
            each token attends to its own context, which begins at the last column with position 0.
        sources: [2, M] row and column of the token before each trained token, in the order of `loss_mask`.
    """

    token_ids: Tensor
    positions: Tensor | None
    visible: Tensor | None
    sources: Tensor


@dataclass(frozen=True)
class TokenBatch:
    """Samples as rows of similar length, padded on the right. All tensors are [B, T].

    Attributes:
        token_ids, loss_mask, behavior_logprobs, advantages, temperature, old_logprobs: as in `Sample`.
        weights: one over the loss denominator, per token.
        samples: B samples in the order of the rows.
        num_tokens: ids that the model computes, padding excluded.
        layout: other rows for the model's forward pass; `None`: the rows of the batch.
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
        """Return the batch with its tensors on the device."""
        return _move(self, device)

    def unpad(self, values: Tensor) -> list[np.ndarray]:
        """Return, for each sample, its row of `values` [B, ..., T] without the padding."""
        rows = zip(self.samples, values.detach().cpu().numpy(), strict=True)
        # Copies, because a view would keep the whole batch in memory.
        return [row[..., : len(sample)].copy() for sample, row in rows]


Tensors = TypeVar("Tensors", RowLayout, TokenBatch)


def _move(tensors: Tensors, device: torch.device) -> Tensors:
    values = {field.name: getattr(tensors, field.name) for field in fields(tensors)}
    for name, value in values.items():
        if isinstance(value, Tensor):
            values[name] = value.to(device)
        elif isinstance(value, RowLayout):
            values[name] = _move(value, device)
    return type(tensors)(**values)


def split_into_mini_batches(
    groups: Sequence[EpisodeGroup],
    credits: Sequence[Credit],
    count: int,
    *,
    denominator: Denominator,
    constant: float,
    planned_episodes: int,
    replayed: Sequence[ReplayRecords] | None = None,
) -> list[list[Sample]]:
    """Split a step into exactly `count` mini-batches of samples.

    Args:
        groups: of the step; they are split evenly, in order.
        credits: one per group.
        count: number of mini-batches.
        denominator, constant: see `build_samples`.
        planned_episodes: episodes that were planned for the step. Each mini-batch stands for an equal share of them,
            so groups that a filter dropped do not raise the weight of the others.
        replayed: counterfactual records per group, where the credit scheme trains them.
    """
    boundaries = [i * len(groups) // count for i in range(count + 1)]
    return [
        build_samples(
            groups[start:end],
            credits[start:end],
            denominator=denominator,
            constant=constant,
            num_episodes=planned_episodes / count,
            replayed=None if replayed is None else replayed[start:end],
        )
        for start, end in pairwise(boundaries)
    ]


def build_samples(
    groups: Sequence[EpisodeGroup],
    credits: Sequence[Credit],
    *,
    denominator: Denominator,
    constant: float,
    num_episodes: float | None = None,
    replayed: Sequence[ReplayRecords] | None = None,
) -> list[Sample]:
    """Build the samples of one mini-batch: one per agent with a trained turn, in an episode or in a replay.

    The weight of an episode's tokens is 1 / (num_episodes x denominator). Tokens of its replays, and of replays of
    these, have the same weight, and no denominator counts them. An agent whose turns are all excluded gives no sample
    and stays in the denominator.

    Args:
        groups: of the mini-batch.
        credits: one per group.
        denominator: a constant, or the episode's own number of generated tokens.
        constant: tokens, for the constant denominator.
        num_episodes: episodes that the mini-batch stands for; `None`: those of `groups`.
        replayed: counterfactual records per group.

    Raises:
        ConfigError: a record has no token ids (a text-only policy cannot be trained), or `constant` is not above 0.
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
        # A replay of a replay comes after the replay that it branches from, so its weight is known.
        for replay, record in branches.items():
            weights[record.episode_id] = weights[replay.episode_id]
            if record.episode_id in trained:
                records.append((record, weights[record.episode_id]))
        for record, weight in records:
            for agent in record.agents:
                sample = build_sample(record.episode_id, agent, credit, weight)
                if sample is not None:
                    samples.append(sample)
    return samples


def build_sample(episode_id: str, agent: AgentRecord, credit: Credit, weight: float) -> Sample | None:
    """Build the sample of one agent's context.

    Args:
        episode_id: of the agent's episode.
        agent: its record.
        credit: advantages by turn; turns without one are not trained.
        weight: of the episode's tokens.

    Returns:
        The sample, or `None` if no turn has an advantage.

    Raises:
        ConfigError: a turn has no token ids.
    """
    ids = np.array(agent.context_ids, dtype=np.int64)
    loss_mask = np.zeros(len(ids), dtype=bool)
    behavior = np.zeros(len(ids), dtype=np.float32)
    advantages = np.zeros(len(ids), dtype=np.float32)
    temperature = np.ones(len(ids), dtype=np.float32)
    turn_weights = np.ones(len(ids), dtype=np.float32)
    for (key, span), turn in zip(find_turn_spans(episode_id, agent).items(), agent.turns, strict=True):
        if not turn.generation.token_ids:
            raise ConfigError(
                f"{key} has no token ids; only episodes sampled by a token-level policy can be trained on"
            )
        if key in credit.advantage:
            loss_mask[span] = True
            behavior[span] = turn.generation.behavior_logprobs
            advantages[span] = credit.advantage[key]
            turn_weights[span] = credit.weight.get(key, 1.0)
            temperature[span] = turn.generation.temperature
    if not loss_mask.any():
        return None
    return Sample(
        episode_id=episode_id,
        agent_id=agent.agent_id,
        token_ids=ids,
        loss_mask=loss_mask,
        behavior_logprobs=behavior,
        advantages=advantages,
        temperature=temperature,
        weight=weight * turn_weights if credit.weight else weight,
    )


def find_turn_spans(episode_id: str, agent: AgentRecord) -> dict[TurnKey, slice]:
    """Find the generated ids of each turn in the agent's context."""
    spans = {}
    end = 0
    for index, turn in enumerate(agent.turns):
        start = end + len(turn.generation.prompt_ids)
        end = start + len(turn.generation.token_ids)
        spans[TurnKey(episode_id, agent.agent_id, index)] = slice(start, end)
    return spans


Row = TypeVar("Row", bound=Sized)


def bucket_by_length(rows: Sequence[Row], max_tokens: int) -> Iterator[list[Row]]:
    """Yield micro-batches of rows of similar length, of at most `max_tokens` padded ids each or of a single row."""
    bucket: list[Row] = []
    for row in sorted(rows, key=len):
        if bucket and (len(bucket) + 1) * len(row) > max_tokens:
            yield bucket
            bucket = []
        bucket.append(row)
    if bucket:
        yield bucket


def collate(samples: Sequence[Sample], pad_id: int) -> TokenBatch:
    """Pad the samples on the right into a batch.

    Under a causal mask no real token attends to a pad on its right, so no attention mask is needed.
    """
    longest = max(len(sample) for sample in samples)

    def pad(rows: Sequence[np.ndarray], fill: float) -> Tensor:
        padded = np.full((len(rows), longest), fill, dtype=rows[0].dtype)
        for i, row in enumerate(rows):
            padded[i, : len(row)] = row
        return torch.from_numpy(padded)

    old_logprobs = [sample.old_logprobs for sample in samples if sample.old_logprobs is not None]
    assert len(old_logprobs) in (0, len(samples)), "either all samples of a batch have old log-probs or none"
    return TokenBatch(
        token_ids=pad([s.token_ids for s in samples], pad_id),
        loss_mask=pad([s.loss_mask for s in samples], False),
        behavior_logprobs=pad([s.behavior_logprobs for s in samples], 0.0),
        advantages=pad([s.advantages for s in samples], 0.0),
        temperature=pad([s.temperature for s in samples], 1.0),
        weights=pad([np.full(len(s), s.weight, dtype=np.float32) for s in samples], 0.0),
        samples=tuple(samples),
        num_tokens=sum(map(len, samples)),
        old_logprobs=pad(old_logprobs, 0.0) if old_logprobs else None,
    )
