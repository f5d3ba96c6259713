"""`active` draws tasks of buckets in which the policy is less certain when it is wrong than when it is right.

Source: uncertainty consistency (arXiv 2601.22595, from the abstract). Learning to Actively Learn (arXiv 2010.15382) is
another paper, that of `learned_allocation`. The paper here chooses which queries to annotate. A task costs the rollouts
of its group, so the consistency of earlier groups chooses fresh tasks of their bucket. The measure below is a variant
of this project. Details: docs/methods.md.

    U_k = mean of -log pi over the generated tokens of rollout k
    A_k = (s_k - mean s) / std s,   s_k = 1 if rollout k is right, else 0
    consistency of a group = -mean_k A_k U_k;   0 if all rollouts are right or all are wrong
    P(task of bucket b) ~ floor + max(0, mean consistency of the groups of b)

Expected effect: a run reaches the accuracy of `mixture` with fewer rollouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.structure import Positive
from selfcest_methods.buckets import WeightedSums, WorthSampler, WorthSamplerOptions
from selfcest_training.credit import succeeded
from selfcest_training.credit.base import ReadsTerm


@dataclass(frozen=True)
class ConsistencySums(WeightedSums):
    """Sums over the groups of a bucket.

    Attributes:
        groups: weighted number of groups.
        consistency: weighted sum of the consistencies of groups, in nats.
    """

    groups: float = 0.0
    consistency: float = 0.0


@dataclass(frozen=True)
class ActiveOptions(ReadsTerm, WorthSamplerOptions):
    """Options in addition to those of `WorthSampler`.

    Attributes:
        floor: number that is added to the worth of every bucket, in nats.
        term: reward term that is above 0 for a right episode.
    """

    floor: Positive = 0.02
    term: str = "correct"


class Active(WorthSampler[ConsistencySums]):
    """A task sampler that draws buckets by the mean consistency of their groups."""

    sums_class: ClassVar = ConsistencySums

    Options = ActiveOptions
    options: ActiveOptions

    def sum_group(self, group: EpisodeGroup) -> ConsistencySums:
        outcomes = [succeeded(episode, self.options.term) for episode in group.episodes]
        uncertainties = [_compute_uncertainty(episode) for episode in group.episodes]
        return ConsistencySums(len(outcomes), 1.0, compute_consistency(outcomes, uncertainties))

    def compute_worth(self, sums: ConsistencySums) -> float:
        return max(0.0, sums.consistency / sums.groups)


def compute_consistency(outcomes: Sequence[bool], uncertainties: Sequence[float | None]) -> float:
    """Return the consistency of a group, in nats.

    Args:
        outcomes: whether each rollout is right.
        uncertainties: uncertainty of each rollout, in nats per token; `None` leaves the rollout out.
    """
    is_right = np.array([float(o) for o, u in zip(outcomes, uncertainties, strict=True) if u is not None])
    known_uncertainties = np.array([u for u in uncertainties if u is not None])
    if not len(is_right) or is_right.std() == 0:
        return 0.0
    # This is minus the point-biserial correlation times the std of the uncertainties. Without a division by this std,
    # a few rollouts of nearly equal uncertainty have little effect.
    advantages = (is_right - is_right.mean()) / is_right.std()
    return float(-np.mean(advantages * known_uncertainties))


def _compute_uncertainty(episode: EpisodeRecord) -> float | None:
    """Return the mean of -log pi over all generated tokens of a tree; `None` if there are none."""
    logprobs: list[float] = []
    for _, turn in episode.turns():
        logprobs += turn.generation.behavior_logprobs
    return -float(np.mean(logprobs)) if logprobs else None
