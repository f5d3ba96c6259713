"""Turns stored episodes and a credit scheme into the samples that this project's learner would train on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from selfcest_env.errors import ConfigError, RecordError
from selfcest_env.record import EpisodeRecord
from selfcest_training.credit import CreditAssigner
from selfcest_training.credit.offline import StoredEpisodes, assign_stored_group, find_stored_replays
from selfcest_training.learner.batch import Sample, build_samples
from selfcest_training.learner.options import Denominator


def list_temperatures(samples: Sequence[Sample]) -> list[float]:
    """List the distinct temperatures at which the trained tokens were sampled, in ascending order."""
    temperatures: set[float] = set()
    for sample in samples:
        temperatures.update(map(float, sample.temperature[sample.loss_mask]))
    return sorted(temperatures)


def refuse_greedy(samples: Sequence[Sample]) -> None:
    """Raise `ConfigError` if trained tokens were chosen greedily: a trainer divides logits by their temperature."""
    if 0.0 in list_temperatures(samples):
        raise ConfigError(
            "the file has tokens of temperature 0, which were not sampled; expected episodes of a temperature above 0, "
            "as those of a run: play them again with one"
        )


@dataclass(frozen=True)
class CreditedSamples:
    """The samples of one update.

    Attributes:
        samples: one per context with trained tokens. Their weights are for an update of exactly these episodes.
        records: the records of their episodes and replays, by id.
    """

    samples: tuple[Sample, ...]
    records: Mapping[str, EpisodeRecord]

    @property
    def trained_tokens(self) -> int:
        return sum(int(sample.loss_mask.sum()) for sample in self.samples)

    def loss_weights(self, sample: Sample) -> np.ndarray:
        """[T] factor of each token's loss that gives the sum of our learner in a trainer that divides by
        `trained_tokens`."""
        return np.where(sample.loss_mask, sample.weight * self.trained_tokens, 0).astype(np.float32)


def build_credited_samples(
    stored: StoredEpisodes, assigner: CreditAssigner, *, denominator: Denominator, constant: float
) -> CreditedSamples:
    """Build the samples of stored episodes with a scheme's credit.

    Args:
        stored: the episodes and their replays.
        assigner: the credit scheme.
        denominator, constant: see `build_samples`.

    Raises:
        NotInRecordsError: the records lack something that the scheme needs.
        ConfigError: an episode has no token ids, or the scheme does not work with this denominator.
        RecordError: the scheme excludes every turn.
    """
    assigner.check_constant(constant if denominator is Denominator.CONSTANT else None)
    replayed = [find_stored_replays(assigner, group, stored) for group in stored.groups]
    credits = [
        assign_stored_group(assigner, group, records, stored)
        for group, records in zip(stored.groups, replayed, strict=True)
    ]
    samples = build_samples(stored.groups, credits, denominator=denominator, constant=constant, replayed=replayed)
    if not samples:
        raise RecordError(f"credit scheme '{assigner.name}' excludes every turn of the file; choose another")
    records: dict[str, EpisodeRecord] = {}
    for group, replay_records in zip(stored.groups, replayed, strict=True):
        for record in (*group.episodes, *replay_records.values()):
            records[record.episode_id] = record
    return CreditedSamples(tuple(samples), records)
