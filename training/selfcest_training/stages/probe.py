"""Probes: what a policy can do at some point of its training, playing greedily, by family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count

import numpy as np

from selfcest_agents.rollout import RolloutRequest
from selfcest_env.record import EpisodeRecord
from selfcest_env.tasks import TaskSource
from selfcest_env.types import Limits

Asked = Mapping[str, Sequence[RolloutRequest]]  # by family


def probe_requests(
    families: Mapping[str, TaskSource],
    episodes: int,
    rng: np.random.Generator,
    name: str,
    limits: Limits | None = None,
) -> dict[str, list[RolloutRequest]]:
    """So many episodes of each family, called `name.0`, `name.1`, ...; `limits` as of a request."""
    numbers = count()
    return {
        family: [
            RolloutRequest(f"{name}.{next(numbers)}", source.draw(rng), int(rng.integers(2**62)), limits)
            for _ in range(episodes)
        ]
        for family, source in families.items()
    }


def by_family(asked: Asked, records: Sequence[EpisodeRecord]) -> dict[str, list[EpisodeRecord]]:
    """Records of these requests, of as many as were played."""
    families = {request.episode_id: family for family, requests in asked.items() for request in requests}
    found: dict[str, list[EpisodeRecord]] = {family: [] for family in asked}
    for record in records:
        found[families[record.episode_id]].append(record)
    return found
