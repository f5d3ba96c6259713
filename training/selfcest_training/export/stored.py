"""Stored episodes with credit, as the samples that our learner would train on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from selfcest_env.errors import RecordError
from selfcest_env.record import EpisodeRecord
from selfcest_env.replay import root_episode
from selfcest_training.credit import CreditAssigner
from selfcest_training.credit.offline import StoredEpisodes, credit_of, replays_of
from selfcest_training.learner.batch import Sample, build_samples
from selfcest_training.learner.options import Denominator


def group_of(episode_id: str) -> str:
    """What the episodes of one task share: the id up to its last dot; a replay's is its episode's."""
    return root_episode(episode_id).rpartition(".")[0]


@dataclass(frozen=True)
class Credited:
    """One update's worth of samples.

    Attributes:
        samples: one per context that trains; their weights count the episodes that there are.
        records: of their episodes and replays, by id.
    """

    samples: tuple[Sample, ...]
    records: Mapping[str, EpisodeRecord]

    @property
    def trained_tokens(self) -> int:
        return sum(int(sample.loss_mask.sum()) for sample in self.samples)

    def loss_weights(self, sample: Sample) -> np.ndarray:
        """[T] what a trainer that divides by `trained_tokens` multiplies a token's loss by to sum as ours does."""
        return np.where(sample.loss_mask, sample.weight * self.trained_tokens, 0).astype(np.float32)


def credited(
    stored: StoredEpisodes, assigner: CreditAssigner, *, denominator: Denominator, constant: float
) -> Credited:
    """Credit of these episodes under a scheme.

    Raises:
        NotInRecordsError: something that the scheme needs is not there.
        ConfigError: episodes without token ids.
        RecordError: nothing is left to train.
    """
    replayed = [replays_of(assigner, group, stored) for group in stored.groups]
    credits = [credit_of(assigner, *pair, stored) for pair in zip(stored.groups, replayed, strict=True)]
    samples = build_samples(stored.groups, credits, denominator=denominator, constant=constant, replayed=replayed)
    if not samples:
        raise RecordError(f"credit scheme '{assigner.name}' excludes every turn of these episodes; nothing is left")
    records = [episode for group in stored.groups for episode in group.episodes]
    records += [record for of_group in replayed for record in of_group.values()]
    return Credited(tuple(samples), {record.episode_id: record for record in records})
