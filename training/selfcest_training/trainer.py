"""The algorithm: propose tasks, play episodes, filter groups, assign credit, update the weights.

This module knows no config file, no folder and no clock. `run/job.py` builds the parts and stores the results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

from selfcest_agents.player import Player, TrainedPlayer
from selfcest_agents.retries import FailureStats
from selfcest_agents.samplers import WeightSyncTarget
from selfcest_env.errors import TrainingError
from selfcest_env.record import EpisodeGroup
from selfcest_env.seeding import stream_seed
from selfcest_training.config import RLConfig
from selfcest_training.credit import fit
from selfcest_training.learner.batch import split_into_mini_batches
from selfcest_training.learner.internals import compute_internals
from selfcest_training.learner.metrics import UpdateMetrics, average_metrics, check_agreement
from selfcest_training.learner.update import LearnerProtocol, attach_old_logprobs
from selfcest_training.stages.async_rollouts import AsyncRollouts, RolloutPipeline
from selfcest_training.stages.base import FilterResult, PlannedGroup, Stages, TaskMenu
from selfcest_training.stages.checks import filter_groups, get_reward_weights, observe, propose
from selfcest_training.stages.crediting import StepCredit, assign_step_credit, get_records
from selfcest_training.stages.failures import replay_groups
from selfcest_training.stages.rollout_batch import RolloutBatch, play_groups, remove_episodes


class TokenAccount(Protocol):
    """Counts the tokens that a job spends, and knows how much of RL is done."""

    def spend(self, *, sampled: int = 0, scored: int = 0, trained: int = 0) -> None:
        """Count tokens.

        Args:
            sampled: tokens that were generated.
            scored: tokens that only went through a forward pass, for a credit scheme.
            trained: tokens that went through a forward and a backward pass.
        """
        ...

    def progress(self) -> float:
        """Return the share of RL that is done, in [0, 1]. The learning rate depends on it."""
        ...


@dataclass(frozen=True)
class TrainStep:
    """The rollouts, the credit and the metrics of one step."""

    batch: RolloutBatch
    credit: StepCredit
    metrics: Mapping[str, float]


class Trainer:
    """Trains one policy by reinforcement learning, step by step. It is a context manager.

    Args:
        player: plays episodes with the weights of the sampler.
        sampler: receives the weights of the learner before the player plays with them.
        learner: holds the weights that are trained.
        menu: the task families that the task sampler chooses from.
        stages: the exchangeable parts of a step.
        config: options of RL. The stages that it names are already built, in `stages`.
        account: counts tokens.
        seed: the seed of the job. All randomness is keyed by it and by the step.
        second_player: plays every other step, so that a step begins while the one before it still decodes; see
            `AsyncRollouts`.
    """

    def __init__(
        self,
        player: Player,
        sampler: WeightSyncTarget,
        learner: LearnerProtocol,
        menu: TaskMenu,
        stages: Stages,
        config: RLConfig,
        account: TokenAccount,
        *,
        seed: int,
        second_player: TrainedPlayer | None = None,
    ) -> None:
        self.player = player
        self.sampler = sampler
        self.learner = learner
        self.menu = menu
        self.stages = stages
        self.config = config
        self.account = account
        self.seed = seed
        self.next_step = 0
        second = None
        if second_player is not None:
            second = RolloutPipeline(partial(self.produce, player=second_player), second_player.sampler)
        self._rollouts = AsyncRollouts(
            self.produce, sampler, learner, max_staleness=config.max_staleness, steps=config.steps, second=second
        )

    def step(self) -> TrainStep:
        """Run one step: take its rollouts, assign credit, update the weights, fit the credit scheme."""
        batch = self._rollouts.take(self.next_step)
        self.account.spend(sampled=batch.sampled_tokens)
        scheme = self.stages.credit
        internals = None
        if scheme.internals:
            # Before the update: the scheme sees the policy that the gradient is taken of.
            internals, scored_tokens = compute_internals(self.learner, batch.train_groups, scheme.internals)
            self.account.spend(scored=scored_tokens)
        credit = assign_step_credit(scheme, batch.train_groups, batch.replayed, internals)
        metrics = self.update(batch, credit)
        # After the credit: a critic that has seen this step's returns would bias this step's advantages.
        fit(scheme, batch.train_groups, internals)
        self.next_step += 1
        return TrainStep(batch, credit, metrics)

    def produce(self, step: int, player: Player | None = None) -> RolloutBatch:
        """Play the episodes of a step and the replays that its credit scheme asks for.

        Nothing else may use the player's sampler meanwhile.
        """
        stages = self.stages
        config = self.config
        player = player or self.player
        rng = np.random.default_rng(stream_seed("tasks", self.seed, step))
        play = partial(
            play_groups,
            player,
            step=step,
            seed=self.seed,
            temperature=config.temperature,
            weights=get_reward_weights(stages.rewards, step),
            max_retries=config.max_retries,
        )
        planned: list[PlannedGroup] = []
        groups: list[EpisodeGroup] = []
        failures = FailureStats()
        rounds = 0
        planned_episodes = 0
        result = FilterResult((), num_new_tasks=config.tasks_per_step)
        while result.num_new_tasks or result.further_rollouts:
            new_plans: list[PlannedGroup] = []
            if result.num_new_tasks:
                new_plans = propose(stages.tasks, step, result.num_new_tasks, self.menu, rng)
            new_groups, new_failures = play(new_plans, after=planned)
            planned = [*planned, *new_plans]
            further_groups, further_failures = play(result.further_rollouts, after=planned)
            planned = [*planned, *result.further_rollouts]
            groups = [*groups, *new_groups, *further_groups]
            failures = failures + new_failures + further_failures
            failures.check(step, len(planned), config.retry)
            rounds += 1
            if not planned_episodes:
                # Loss denominators count the first round only: they must not depend on what a filter drops or refills.
                planned_episodes = sum(plan.num_rollouts for plan in planned)
            if new_groups:
                # Not the further groups: outcomes decided which tasks they repeat, so they would bias success rates.
                observe(stages.tasks, step, new_groups)
            if new_groups or further_groups:
                observe(stages.rewards, step, [*new_groups, *further_groups])
            result = filter_groups(stages.group_filter, step, groups, config.tasks_per_step, rounds)
        # The weights that played the episodes play the replays too, so replays belong to the rollouts.
        play_replays = partial(player.play_replays, temperature=config.temperature)
        train_groups, replayed, replay_failures = replay_groups(
            stages.credit, result.groups, play_replays, config.max_retries
        )
        failures += replay_failures
        failures.check(step, len(planned), config.retry)
        # By identity: to compare groups by value would compare all their episodes.
        train_group_ids = {id(group) for group in train_groups}
        failed_groups = [group for group in result.groups if id(group) not in train_group_ids]
        failed_episodes = list(chain.from_iterable(group.episodes for group in failed_groups))
        played_groups = remove_episodes(groups, failed_episodes)
        return RolloutBatch(tuple(played_groups), tuple(train_groups), replayed, planned_episodes, rounds, failures)

    def update(self, batch: RolloutBatch, credit: StepCredit) -> dict[str, float]:
        """Make `minibatches` optimiser steps. A mini-batch without anything to train makes none, and metrics say so."""
        staleness = batch.staleness(self.next_step)
        batches = split_into_mini_batches(
            batch.train_groups,
            credit.credits,
            self.config.minibatches,
            denominator=self.config.denominator,
            constant=self.config.loss_denominator_tokens,
            planned_episodes=batch.planned_episodes,
            replayed=get_records(batch.replayed),
        )
        updates: list[UpdateMetrics] = []
        for samples in attach_old_logprobs(self.learner, batches, self.config.loss):
            is_first_update = not any(update.num_rows for update in updates)
            update = self.learner.policy_step(samples, self.config.loss, self.account.progress())
            # Until the first update of fresh rollouts the learner holds the weights that sampled them.
            if staleness == 0 and is_first_update:
                check_agreement(update, exact=self.sampler.exact and self.learner.exact)
            self.account.spend(trained=update.trained_tokens)
            updates.append(update)
        # `policy_lag` is the name in stored metrics.
        return {**average_metrics(updates), "policy_lag": staleness}

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, without weights and moments. Waits for rollouts under way."""
        # First, since rollouts change the states of stages.
        waiting = self._rollouts.waiting()
        return {
            "next_step": self.next_step,
            "stages": {name: dict(stage.state_dict()) for name, stage in self.stages.with_state().items()},
            "waiting": {str(step): batch.to_json() for step, batch in waiting.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of a checkpoint, before the first step.

        Raises:
            TrainingError: other stages have a state than in the run that wrote the checkpoint.
        """
        stages = self.stages.with_state()
        if stages.keys() != state["stages"].keys():
            raise TrainingError(
                f"the checkpoint holds the states of the stages {sorted(state['stages'])}; expected those of "
                f"{sorted(stages)}: resume with the config that wrote the checkpoint"
            )
        for name, stage in stages.items():
            stage.load_state_dict(state["stages"][name])
        self.next_step = state["next_step"]
        for step, data in state["waiting"].items():
            self._rollouts.put(int(step), RolloutBatch.from_json(data, self.stages.credit))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._rollouts.close()
