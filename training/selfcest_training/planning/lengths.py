"""How long episodes are: as a run has recorded them, or as a config allows at most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np

from selfcest_env.errors import ConfigError
from selfcest_env.record import read_episodes
from selfcest_env.replay import replayed_episode
from selfcest_env.types import Limits


@dataclass(frozen=True)
class Lengths:
    """Tokens of episodes.

    Attributes:
        source: where they come from, in words.
        generated: mean per episode.
        total: mean per episode, prompts included: what a learner computes of an episode at most.
        paths: longest chain of generated tokens that wait for each other, of each recorded episode; of a config one.
    """

    source: str
    generated: float
    total: float
    paths: tuple[float, ...]

    def longest_of(self, episodes: int) -> float:
        """Expected longest chain of so many episodes, drawn from these."""
        ordered = np.sort(self.paths)
        below = np.arange(len(ordered) + 1) / len(ordered)
        return float(ordered @ np.diff(below**episodes))


def recorded(file: Path) -> Lengths:
    """Of a run's `episodes.jsonl`, replays apart. Raises `ConfigError` if it has none."""
    if not file.is_file():
        raise ConfigError(f"--episodes {file} is no file; give a run's episodes.jsonl, or leave it out")
    costs = [episode.cost for episode in read_episodes(file) if replayed_episode(episode.episode_id) is None]
    if not costs:
        raise ConfigError(f"--episodes {file} holds no episode; give a run's episodes.jsonl, or leave it out")
    return Lengths(
        f"{len(costs)} episodes of {file}",
        float(np.mean([cost.generated_tokens for cost in costs])),
        float(np.mean([cost.total_tokens for cost in costs])),
        tuple(float(cost.critical_path_tokens) for cost in costs),
    )


def allowed(limits: Limits) -> Lengths:
    """What limits allow at most: no episode is longer, and most are far shorter."""
    bounds = [inf if bound is None else bound for bound in (limits.generated_tokens, limits.total_tokens)]
    turn = min(_finite(limits.turn_tokens), _finite(limits.context_tokens), *bounds)
    agent = min(_finite(limits.max_turns) * turn, _finite(limits.context_tokens))
    depth = limits.max_depth if limits.delegation else 0
    chain = agent
    for _ in range(min(64, 64 if depth is None else depth)):
        # Every turn of an agent but its last may wait for a child's whole chain.
        chain = agent + max(0.0, _finite(limits.max_turns) - 1) * chain
    tree = agent * (1 + (_finite(limits.max_clones) if limits.delegation else 0))
    generated = min(*bounds, tree)
    return Lengths(
        "the most that limits allow; recorded episodes (--episodes) are shorter",
        generated,
        min(bounds[1], inf if limits.context_tokens is None else limits.context_tokens * (tree / agent)),
        (min(chain, generated),),
    )


def _finite(limit: int | None) -> float:
    return inf if limit is None else float(limit)


def mean_parallel(lengths: Lengths) -> float:
    """Sequences that decode at a time in a mean episode."""
    return lengths.generated / float(np.mean(lengths.paths))


def check_sequences(values: Sequence[float]) -> None:
    """Raise `ConfigError` unless they rise."""
    if list(values) != sorted(set(values)):
        raise ConfigError(f"points have the sequences {list(values)}; expected rising numbers, each once")
