"""Calls the methods of stages and checks the results. Nothing else calls a stage; errors name it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from selfcest_env.errors import ConfigError, TrainingError
from selfcest_env.record import EpisodeGroup
from selfcest_env.reward import Reward
from selfcest_env.types import Limits
from selfcest_training.credit.base import check_reads
from selfcest_training.credit.checks import call_plugin
from selfcest_training.stages.base import (
    FilterResult,
    GroupFilter,
    MenuBound,
    PlannedGroup,
    RewardSchedule,
    TaskMenu,
    TaskSampler,
)

# Number of rounds after which a group filter counts as one that never ends.
MAX_ROUNDS = 1000


def check_menu(sampler: TaskSampler, menu: TaskMenu) -> None:
    """Raise `ConfigError` if the sampler's options do not fit the menu."""
    if isinstance(sampler, MenuBound):
        sampler.check_menu(menu)


def check_reward(stage: object, reward: Reward, place: str) -> None:
    """Raise `ConfigError` if a stage, or one that it wraps, reads a term that the reward lacks.

    Args:
        stage: the stage.
        reward: the reward of the run.
        place: config key of the stage, for the message.
    """
    try:
        check_reads(stage, reward)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from error


def propose(
    sampler: TaskSampler, step: int, num_tasks: int, menu: TaskMenu, rng: np.random.Generator
) -> list[PlannedGroup]:
    """Propose tasks. Raises `TrainingError` unless the sampler proposes at least one valid plan."""
    label = f"task sampler {type(sampler).__name__}, step {step}"
    planned = call_plugin(label, lambda: list(sampler.propose(step, num_tasks, menu, rng)), TrainingError)
    # A plug-in may return values of any type.
    plans: list[object] = [*planned]
    if not plans or not all(isinstance(plan, PlannedGroup) and _is_playable(plan) for plan in plans):
        raise TrainingError(
            f"{label}: proposed {planned!r}; expected at least one PlannedGroup with num_rollouts >= 1, its limits a "
            "Limits or None"
        )
    return planned


def _is_playable(plan: PlannedGroup) -> bool:
    limits: object = plan.limits
    return plan.num_rollouts >= 1 and (limits is None or isinstance(limits, Limits))


def get_reward_weights(schedule: RewardSchedule, step: int) -> Mapping[str, float]:
    """Get the weights of a step. Raises `TrainingError` unless they are a mapping. The reward checks their values."""
    label = f"reward schedule {type(schedule).__name__}, step {step}"
    weights: object = call_plugin(label, lambda: schedule.weights(step), TrainingError)
    if not isinstance(weights, Mapping):
        raise TrainingError(f"{label}: weights are {weights!r}; expected a mapping from names of terms to numbers")
    return weights


def observe(stage: TaskSampler | RewardSchedule, step: int, groups: Sequence[EpisodeGroup]) -> None:
    """Give a stage the results of a round. Raises `TrainingError` if the stage fails."""
    call_plugin(f"{type(stage).__name__}.observe, step {step}", lambda: stage.observe(step, groups), TrainingError)


def filter_groups(
    group_filter: GroupFilter, step: int, groups: Sequence[EpisodeGroup], num_groups: int, rounds: int
) -> FilterResult:
    """Filter groups. Raises `TrainingError` for an invalid result, or for a filter that never ends."""
    label = f"group filter {type(group_filter).__name__}, step {step}"
    result: object = call_plugin(label, lambda: group_filter.filter(step, groups, num_groups, rounds), TrainingError)
    if not isinstance(result, FilterResult) or result.num_new_tasks < 0:
        raise TrainingError(f"{label}: returned {result!r}; expected a FilterResult with num_new_tasks >= 0")
    plans: tuple[object, ...] = result.further_rollouts
    if not all(isinstance(plan, PlannedGroup) and _is_playable(plan) for plan in plans):
        raise TrainingError(f"{label}: further_rollouts is {plans!r}; expected PlannedGroups with num_rollouts >= 1")
    if (result.num_new_tasks or result.further_rollouts) and rounds >= MAX_ROUNDS:
        raise TrainingError(f"{label}: asks for more after {rounds} rounds; bound the rounds of the group filter")
    # Compared by identity: a filter may not change an episode.
    available: set[int] = set()
    for group in groups:
        available.update(map(id, group.episodes))
    for group in result.groups:
        for episode in group.episodes:
            if id(episode) not in available:
                raise TrainingError(
                    f"{label}: kept episode {episode.episode_id}, which it was not given, or kept it twice; expected "
                    "given episodes, each at most once"
                )
            available.remove(id(episode))
    return result
