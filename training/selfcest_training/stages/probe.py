"""Probes: greedy episodes of each family, which measure a policy during training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count

import numpy as np

from selfcest_agents.rollout import RolloutRequest
from selfcest_env.record import EpisodeRecord
from selfcest_env.tasks import TaskSource
from selfcest_env.types import Limits


def draw_probe_requests(
    families: Mapping[str, TaskSource],
    episodes: int,
    rng: np.random.Generator,
    name: str,
    limits: Limits | None = None,
) -> dict[str, list[RolloutRequest]]:
    """Draw the tasks of a probe.

    Args:
        families: task sources by name.
        episodes: number of episodes of each family.
        rng: draws tasks and seeds.
        name: the ids of the episodes are `name.0`, `name.1`, ...
        limits: of every request; `None`: those of the player.

    Returns:
        The requests of each family.
    """
    requests: dict[str, list[RolloutRequest]] = {}
    numbers = count()
    for family, source in families.items():
        requests[family] = []
        for _ in range(episodes):
            task = source.draw(rng)
            requests[family].append(RolloutRequest(f"{name}.{next(numbers)}", task, int(rng.integers(2**62)), limits))
    return requests


def group_by_family(
    requests: Mapping[str, Sequence[RolloutRequest]], records: Sequence[EpisodeRecord]
) -> dict[str, list[EpisodeRecord]]:
    """Sort records by the family of their requests. Requests that failed have no record."""
    family_by_id: dict[str, str] = {}
    for family, family_requests in requests.items():
        family_by_id.update({request.episode_id: family for request in family_requests})
    records_by_family: dict[str, list[EpisodeRecord]] = {family: [] for family in requests}
    for record in records:
        records_by_family[family_by_id[record.episode_id]].append(record)
    return records_by_family
