"""A model at the table: rules, codec, engine and task families of one arm, built from the config."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from selfcest_agents.engine import Engine
from selfcest_agents.language import Language
from selfcest_agents.policy import EnginePolicy, SamplingConfig
from selfcest_agents.replay import PlayedReplay, play_replays
from selfcest_agents.rollout import RolloutRequest, rollout
from selfcest_env.errors import ConfigError
from selfcest_env.plugin import PlugIn
from selfcest_env.record import EpisodeRecord
from selfcest_env.replay import Replay
from selfcest_env.reward import Reward
from selfcest_env.tasks import TaskSource, make_source
from selfcest_env.tasks.splits import HashedSplit
from selfcest_env.types import Limits, Task

TEST_FRACTION = 0.2  # of all instances, by the hash of their content; the same for every family and size


def make_families(tasks: Mapping[str, PlugIn], part: str) -> dict[str, TaskSource]:
    """Task sources by family name, restricted to the training or the test part of their instances."""
    return {name: split(spec, part) for name, spec in tasks.items()}


def split(spec: PlugIn, part: str, changes: Mapping[str, Any] | None = None) -> HashedSplit:
    """The training or the test part of a source, with some of its options changed."""
    source = make_source(spec.name, **{**spec.options, **(changes or {})})
    return HashedSplit(source, part, TEST_FRACTION)


def draw_family(weights: Mapping[str, float], rng: np.random.Generator) -> str:
    """A name, drawn by weight."""
    names = [name for name, weight in weights.items() if weight > 0]
    if not names:
        raise ConfigError(f"no family has a weight above 0: {dict(weights)}")
    shares = np.array([weights[name] for name in names], dtype=float)
    return names[int(rng.choice(len(names), p=shares / shares.sum()))]


@dataclass
class Player:
    """Plays episodes with a model and scores them."""

    limits: Limits
    reward: Reward
    language: Language
    engine: Engine

    def __post_init__(self) -> None:
        self.rules = self.language.rules(self.limits)

    def play(
        self,
        requests: Sequence[RolloutRequest],
        temperature: float,
        on_finish: Callable[[EpisodeRecord], None] | None = None,
    ) -> list[EpisodeRecord]:
        """Scored records, in the order of the requests."""
        policy = EnginePolicy(self.engine, self.language.codec, SamplingConfig(temperature))
        records = rollout(requests, policy, self.rules, on_finish=on_finish)
        return [self.reward.score(record) for record in records]

    def play_replays(
        self, factual: Iterable[EpisodeRecord], replays: Sequence[Replay], temperature: float
    ) -> dict[Replay, PlayedReplay]:
        """Counterfactuals of episodes that this player played, all in one rollout, scored by the same reward."""
        policy = EnginePolicy(self.engine, self.language.codec, SamplingConfig(temperature))
        played = play_replays(factual, replays, policy, self.rules)
        return {replay: replace(found, record=self.reward.score(found.record)) for replay, found in played.items()}


def group_requests(tasks: Sequence[Task], group_size: int, name: str, seeds: Sequence[int]) -> list[RolloutRequest]:
    """`group_size` episodes per task, each with its own seed; ids are `name/g<task>e<episode>`."""
    return [
        RolloutRequest(f"{name}.g{i}.e{k}", task, seeds[i * group_size + k])
        for i, task in enumerate(tasks)
        for k in range(group_size)
    ]
