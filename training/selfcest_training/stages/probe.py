"""Probes: what a policy can do at some point of its training, playing greedily, by family."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from selfcest_agents.player import Player
from selfcest_agents.rollout import RolloutRequest
from selfcest_env.record import EpisodeRecord
from selfcest_env.tasks import TaskSource
from selfcest_env.types import Limits


def play_greedily(
    player: Player,
    families: Mapping[str, TaskSource],
    episodes: int,
    rng: np.random.Generator,
    name: str,
    limits: Limits | None = None,
) -> dict[str, list[EpisodeRecord]]:
    """By family so many episodes of new instances, which are called `name.0`, `name.1`, ...; `limits` as of a request.
    Nothing that trains is touched."""
    drawn = [family for family in families for _ in range(episodes)]
    requests = [
        RolloutRequest(f"{name}.{i}", families[family].draw(rng), int(rng.integers(2**62)), limits)
        for i, family in enumerate(drawn)
    ]
    found: dict[str, list[EpisodeRecord]] = {family: [] for family in families}
    for family, record in zip(drawn, player.play(requests, temperature=0.0), strict=True):
        found[family].append(record)
    return found
