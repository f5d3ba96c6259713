"""The algorithm: propose -> play -> filter -> credit -> update. It knows no config file, no folder and no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
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
from selfcest_training.learner.batch import mini_batches
from selfcest_training.learner.internals import compute_internals
from selfcest_training.learner.update import LearnerProtocol, check_agreement, mean_metrics
from selfcest_training.stages.async_rollouts import AsyncRollouts, RolloutPipeline
from selfcest_training.stages.base import FilterResult, PlannedGroup, Stages, TaskMenu
from selfcest_training.stages.checks import filter_groups, observe, propose, weights_at
from selfcest_training.stages.crediting import StepCredit, credit_step, records_of
from selfcest_training.stages.failures import replay_groups
from selfcest_training.stages.rollout_batch import RolloutBatch, play_groups, without


class TokenAccount(Protocol):
    """Where what a step costs is booked, and how much of the run is done."""

    def spend(self, *, sampled: int = 0, scored: int = 0, trained: int = 0) -> None:
        """So many tokens were generated, went through a forward pass alone, or through forward and backward."""
        ...

    def progress(self) -> float:
        """The share of RL that is done, in [0, 1], for the learning rate."""
        ...


@dataclass(frozen=True)
class TrainStep:
    """What one step did."""

    batch: RolloutBatch
    credit: StepCredit
    metrics: Mapping[str, float]


class Trainer:
    """One policy's reinforcement learning, step by step; use it in a `with`.

    Args:
        player: plays with the sampler's weights.
        sampler: is told the learner's weights before it plays with them.
        learner: holds the weights being trained.
        menu: the task families.
        stages: what is done in a step.
        config: of RL; its stages are those of `stages`.
        account: of tokens.
        seed: all randomness is keyed by it and the step.
        beside: plays every other step, so that one begins while another still decodes; see `AsyncRollouts`.
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
        beside: TrainedPlayer | None = None,
    ) -> None:
        self.player, self.sampler, self.learner, self.menu = player, sampler, learner, menu
        self.stages, self.config, self.account, self.seed = stages, config, account, seed
        self.next_step = 0
        second = None if beside is None else RolloutPipeline(partial(self.produce, player=beside), beside.sampler)
        self._rollouts = AsyncRollouts(
            self.produce, sampler, learner, max_staleness=config.max_staleness, steps=config.steps, second=second
        )

    def step(self) -> TrainStep:
        """Take the rollouts of the next step, credit them, update, and let what learns from a step learn."""
        batch = self._rollouts.take(self.next_step)
        self.account.spend(sampled=batch.sampled_tokens)
        scheme, groups, internals = self.stages.credit, batch.train_groups, None
        if scheme.internals:
            internals, scored_tokens = compute_internals(self.learner, groups, scheme.internals)
            self.account.spend(scored=scored_tokens)
        credit = credit_step(scheme, groups, batch.replayed, internals)
        metrics = self.update(batch, credit)
        fit(scheme, groups, internals)
        self.next_step += 1
        return TrainStep(batch, credit, metrics)

    def produce(self, step: int, player: Player | None = None) -> RolloutBatch:
        """Propose, play, filter, and play what credit asks for; nothing else touches the player's sampler meanwhile."""
        stages, config, player = self.stages, self.config, player or self.player
        rng, weights = np.random.default_rng(stream_seed("tasks", self.seed, step)), weights_at(stages.rewards, step)
        play = partial(
            play_groups,
            player,
            step=step,
            seed=self.seed,
            temperature=config.temperature,
            weights=weights,
            max_retries=config.max_retries,
        )
        planned: list[PlannedGroup] = []
        groups: list[EpisodeGroup] = []
        result, rounds, first_episodes, failures = FilterResult((), more=config.tasks_per_step), 0, 0, FailureStats()
        while result.more or result.again:
            new = propose(stages.tasks, step, result.more, self.menu, rng) if result.more else []
            played, failed = play(new, after=planned)
            planned, failures = [*planned, *new], failures + failed
            again, failed = play(result.again, after=planned)
            planned, failures = [*planned, *result.again], failures + failed
            groups, rounds = [*groups, *played, *again], rounds + 1
            failures.check(step, len(planned), config.retry)
            first_episodes = first_episodes or sum(plan.num_rollouts for plan in planned)
            if played:  # which tasks are rolled out again is decided by outcomes, so their rate is not a task's
                observe(stages.tasks, step, played)
            if played or again:
                observe(stages.rewards, step, [*played, *again])
            result = filter_groups(stages.group_filter, step, groups, config.tasks_per_step, rounds)
        replays = partial(player.play_replays, temperature=config.temperature)
        kept, replayed, failed = replay_groups(stages.credit, result.kept, replays, config.max_retries)
        failures += failed
        failures.check(step, len(planned), config.retry)
        kept_ids = {id(group) for group in kept}
        groups = without(groups, [e for group in result.kept if id(group) not in kept_ids for e in group.episodes])
        return RolloutBatch(tuple(groups), tuple(kept), replayed, first_episodes, rounds, failures)

    def update(self, batch: RolloutBatch, credit: StepCredit) -> dict[str, float]:
        """Exactly `minibatches` optimiser steps; one without anything to train makes none and says so."""
        config, staleness = self.config, batch.staleness(self.next_step)
        batches = mini_batches(
            batch.train_groups,
            credit.credits,
            config.minibatches,
            denominator=config.denominator,
            constant=config.loss_denominator_tokens,
            planned_episodes=batch.planned_episodes,
            replayed=records_of(batch.replayed),
        )
        metrics = []
        for samples in self.learner.attach_old_logprobs(batches, config.loss):
            metrics.append(self.learner.policy_step(samples, config.loss, self.account.progress()))
            if staleness == 0 and sum(step.num_rows > 0 for step in metrics) == 1:  # the first with anything to train
                check_agreement(metrics[-1], exact=self.sampler.exact and self.learner.exact)
            self.account.spend(trained=metrics[-1].trained_tokens)
        return {**mean_metrics(metrics), "policy_lag": staleness}  # the name that stored metrics have

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds beside weights and moments. Waits for the rollouts that are under way."""
        waiting = self._rollouts.waiting()  # first: rollouts change what stages remember
        return {
            "next_step": self.next_step,
            "stages": {name: dict(stage.state_dict()) for name, stage in self.stages.remembering().items()},
            "waiting": {str(step): batch.to_json() for step, batch in waiting.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there; before the first step. Raises `TrainingError` for what another set of stages wrote."""
        stages = self.stages.remembering()
        if stages.keys() != state["stages"].keys():
            raise TrainingError(
                f"the checkpoint holds the memory of the stages {sorted(state['stages'])}, and here {sorted(stages)} "
                "have one; go on with the config that it was written with"
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
