"""Stages that remember, each in a way that changes what is trained on. Loaded as plug-ins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from selfcest_env.plugin import PlainState, Stateful
from selfcest_env.record import EpisodeGroup
from selfcest_env.structure import Checked, Count
from selfcest_training.credit import Credit, Internals, ReplayRecords, Rloo, broadcast
from selfcest_training.stages.base import FilterResult, PlannedGroup, TaskMenu


@dataclass
class EasyGroups(PlainState):
    easy: int = 0


class SparesTheEasy(Stateful[EasyGroups]):
    """A task sampler: one rollout fewer per task for every group so far whose returns were all equal, two at least."""

    @dataclass(frozen=True)
    class Options(Checked):
        least: Count = 2

    options: Options

    def initial_state(self) -> EasyGroups:
        return EasyGroups()

    def propose(self, step: int, num_tasks: int, menu: TaskMenu, rng: np.random.Generator) -> list[PlannedGroup]:
        (source,) = menu.sources.values()
        count = max(self.options.least, menu.group_size - self.state.easy)
        return [PlannedGroup(source.draw(rng), count) for _ in range(num_tasks)]

    def observe(self, step: int, groups: Sequence[EpisodeGroup]) -> None:
        self.state.easy += sum(len({episode.team_return for episode in group.episodes}) == 1 for group in groups)


class AsksOnceMore:
    """A group filter: every second step it asks for one more task, and it drops the first group that it is shown."""

    def __init__(self) -> None:
        self.steps = 0

    def filter(self, step: int, groups: Sequence[EpisodeGroup], num_groups: int, rounds: int) -> FilterResult:
        if rounds == 1 and self.steps % 2:
            return FilterResult((), num_new_tasks=1)
        self.steps += 1
        return FilterResult(tuple(groups[1:]))

    def state_dict(self) -> Mapping[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.steps = state["steps"]


class ByMeanTokens:
    """A reward schedule: `token_cost` weighs as many tenths as the last rollouts had tokens on average."""

    def __init__(self) -> None:
        self.mean = 10.0

    def weights(self, step: int) -> Mapping[str, float]:
        return {"token_cost": self.mean / 10}

    def observe(self, step: int, groups: Sequence[EpisodeGroup]) -> None:
        costs = [episode.cost.total_tokens for group in groups for episode in group.episodes]
        self.mean = sum(costs) / len(costs)

    def state_dict(self) -> Mapping[str, Any]:
        return {"mean": self.mean}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.mean = state["mean"]


class RunningMean(Rloo):
    """A scheme that sees a whole step and learns: the baseline is the mean return of all earlier steps."""

    name = "running_mean"

    def __init__(self) -> None:
        self.sums = torch.zeros(2, dtype=torch.float64)  # of returns, of episodes

    def assign_step(
        self, groups: Sequence[EpisodeGroup], replayed: Sequence[ReplayRecords], internals: Internals
    ) -> list[Credit]:
        total, count = self.sums.tolist()
        mean = total / count if count else 0.0
        return [Credit(broadcast(group, [e.team_return - mean for e in group.episodes])) for group in groups]

    def fit(self, groups: Sequence[EpisodeGroup], internals: Internals) -> None:
        returns = [episode.team_return for group in groups for episode in group.episodes]
        self.sums = self.sums + torch.tensor([sum(returns), len(returns)], dtype=torch.float64)

    def state_dict(self) -> Mapping[str, Any]:
        return {"sums": self.sums}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.sums = state["sums"]


class FitsAlone(Rloo):
    """Learns, and says nothing of what."""

    name = "fits_alone"

    def fit(self, groups: Sequence[EpisodeGroup], internals: Internals) -> None: ...


class Forgets(AsksOnceMore):
    """Tells what it remembers and does not want it back."""

    load_state_dict = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Melts(AsksOnceMore):
    """A frozen dataclass that remembers."""


class KeepsOne:
    """A group filter for the last group."""

    def filter(self, step: int, groups: Sequence[EpisodeGroup], num_groups: int, rounds: int) -> FilterResult:
        return FilterResult(tuple(groups[-1:]))
