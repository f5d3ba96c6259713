"""Gives the token counts of episodes: those of a recorded run, or the upper bounds of a config."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np

from selfcest_env.errors import ConfigError
from selfcest_env.record import read_episodes
from selfcest_env.replay import replayed_episode
from selfcest_env.types import Limits


@dataclass(frozen=True)
class EpisodeLengths:
    """Token counts of episodes.

    Attributes:
        source: origin of the numbers, for the reader of the plan.
        generated: mean number of generated tokens per episode.
        total: mean number of tokens per episode with prompts, an upper bound of what the learner computes.
        critical_paths: for each episode, the longest chain of generated tokens that wait for each other.
    """

    source: str
    generated: float
    total: float
    critical_paths: tuple[float, ...]

    def expected_longest_path(self, episodes: int) -> float:
        """The expected maximum of the critical paths of this many episodes, drawn with replacement."""
        paths = np.sort(self.critical_paths)
        # P(maximum <= paths[i]) is ((i + 1) / n)^episodes, so its differences are the weights of the mean.
        fractions = np.arange(len(paths) + 1) / len(paths)
        return float(paths @ np.diff(fractions**episodes))

    @property
    def mean_parallel_sequences(self) -> float:
        """Sequences that decode at the same time in a mean episode."""
        return self.generated / float(np.mean(self.critical_paths))


def read_lengths(file: Path) -> EpisodeLengths:
    """Read the lengths of a run's `episodes.jsonl`, without replays. Raises `ConfigError` if it has no episodes."""
    if not file.is_file():
        raise ConfigError(f"--episodes {file} is no file; give a run's episodes.jsonl, or leave it out")
    costs = [episode.cost for episode in read_episodes(file) if replayed_episode(episode.episode_id) is None]
    if not costs:
        raise ConfigError(f"--episodes {file} holds no episode; give a run's episodes.jsonl, or leave it out")
    return EpisodeLengths(
        f"{len(costs)} episodes of {file}",
        float(np.mean([cost.generated_tokens for cost in costs])),
        float(np.mean([cost.total_tokens for cost in costs])),
        tuple(float(cost.critical_path_tokens) for cost in costs),
    )


def compute_max_lengths(limits: Limits) -> EpisodeLengths:
    """Compute upper bounds of the lengths from limits. Most episodes are far shorter.

    Raises:
        ConfigError: no agent has a turn.
    """
    if limits.max_turns == 0:
        raise ConfigError("limits.max_turns is 0, so there is nothing to plan; expected at least 1")
    generated_tokens = _to_float(limits.generated_tokens)
    total_tokens = _to_float(limits.total_tokens)
    context_tokens = _to_float(limits.context_tokens)
    max_turns = _to_float(limits.max_turns)
    turn = min(_to_float(limits.turn_tokens), context_tokens, generated_tokens, total_tokens)
    agent = min(max_turns * turn, context_tokens)
    max_depth = limits.max_depth if limits.delegation else 0
    # An unlimited depth counts as 64 levels. The bounds on tokens below end the path long before.
    depth = 64 if max_depth is None else min(64, max_depth)
    path = agent
    for _ in range(depth):
        # Every turn of an agent except its last may wait for the path of a child.
        path = agent + max(0.0, max_turns - 1) * path
    num_agents = 1 + (_to_float(limits.max_clones) if limits.delegation else 0)
    tree = agent * num_agents
    generated = min(generated_tokens, total_tokens, tree)
    return EpisodeLengths(
        "the most that limits allow; recorded episodes (--episodes) are shorter",
        generated,
        min(total_tokens, inf if limits.context_tokens is None else context_tokens * (tree / agent)),
        (min(path, generated),),
    )


def _to_float(limit: int | None) -> float:
    return inf if limit is None else float(limit)
