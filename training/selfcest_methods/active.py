"""`active` draws tasks on which the policy's uncertainty agrees with its errors, after uncertainty consistency (arXiv
2601.22595). If it works, a run reaches the accuracy of `mixture` with fewer rollouts.

    U_k = mean of -log pi over the generated tokens of rollout k             what the policy itself doubts
    A_k = (s_k - mean s) / std s, s_k whether it is right; 0 if all are alike
    consistency of a group = -mean_k A_k U_k                                 above 0: it doubts what is wrong
    a task of bucket b is drawn in proportion to floor + max(0, mean consistency of b's groups)

docs/methods.md has what the paper leaves open and what was chosen here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.structure import Count, Positive
from selfcest_methods.buckets import RemembersBuckets, RemembersBucketsOptions, Sums, pick
from selfcest_training.credit import succeeded
from selfcest_training.families import Bucket
from selfcest_training.stages.base import PlannedGroup, TaskMenu


@dataclass(frozen=True)
class Doubts(Sums):
    """Attributes:
    groups: their number.
    consistency: see above.
    """

    groups: float = 0.0
    consistency: float = 0.0


@dataclass(frozen=True)
class ActiveOptions(RemembersBucketsOptions):
    """Attributes, besides those of `RemembersBuckets`:

    term: an episode succeeds if this term of the reward is above 0.
    floor: what every bucket is worth besides, in nats.
    pool: tasks to choose each from.
    """

    term: str = "correct"
    floor: Positive = 0.02
    pool: Annotated[Count, "1: no choice"] = 4


class Active(RemembersBuckets[Doubts]):
    """Tasks of buckets whose rollouts tell right from wrong by their doubt."""

    kept: ClassVar = Doubts

    Options = ActiveOptions
    options: ActiveOptions

    def tally(self, group: EpisodeGroup) -> Doubts:
        found = [(succeeded(e, self.options.term), _doubt(e)) for e in group.episodes]
        return Doubts(len(found), 1.0, consistency([pair for pair in found if not np.isnan(pair[1])]))

    def propose(self, step: int, num_tasks: int, menu: TaskMenu, rng: np.random.Generator) -> Sequence[PlannedGroup]:
        tasks = pick(menu, num_tasks, self.options.pool, self.weigher(), rng)
        return [PlannedGroup(task, menu.group_size) for task in tasks]

    def weigher(self) -> Callable[[Bucket], float]:
        """What the probability of a bucket is in proportion to, as of now."""
        known = {bucket: max(0.0, tally.consistency / tally.groups) for bucket, tally in self.seen()}
        most = max(known.values(), default=0.0)
        return lambda bucket: self.options.floor + known.get(bucket, most)


def consistency(found: Sequence[tuple[bool, float]]) -> float:
    """Of rollouts, each right or wrong and with its doubt; 0 if all are right, all wrong, or there is none."""
    right = np.array([float(one) for one, _ in found])
    if not found or right.std() == 0:
        return 0.0
    advantages = (right - right.mean()) / right.std()
    return float(-np.mean(advantages * np.array([doubt for _, doubt in found])))


def _doubt(episode: EpisodeRecord) -> float:
    """Not a number where nobody spoke."""
    logprobs = [value for _, turn in episode.turns() for value in turn.generation.behavior_logprobs]
    return -float(np.mean(logprobs)) if logprobs else float("nan")
