"""The algorithm: propose -> play -> admit -> credit -> update. It knows no config file, no folder and no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

from selfcest_agents.player import Player, TrainedPlayer
from selfcest_agents.samplers import WeightSyncTarget
from selfcest_env.errors import TrainingError
from selfcest_env.record import EpisodeGroup
from selfcest_env.seeding import stream_seed
from selfcest_training.credit import fit
from selfcest_training.learner.batch import mini_batches
from selfcest_training.learner.internals import compute_internals
from selfcest_training.learner.options import Denominator, LossConfig
from selfcest_training.learner.update import LearnerProtocol, check_agreement, mean_metrics
from selfcest_training.stages.ahead import Lane, RolloutsAhead
from selfcest_training.stages.base import Admission, PlannedGroup, Stages, TaskMenu
from selfcest_training.stages.checks import admit, observe, propose, weights_at
from selfcest_training.stages.crediting import StepCredit, credit_step, records_of
from selfcest_training.stages.outages import NO_OUTAGES, replay_groups
from selfcest_training.stages.produced import Produced, play_groups, without


@dataclass(frozen=True)
class StepSettings:
    """The numbers of a step.

    Attributes:
        steps: none at or after this one is begun.
        tasks_per_step: groups that a step wants.
        minibatches: optimiser steps per step, however many clones, groups or drops there are.
        temperature: of sampling, and of the learner's log-probs.
        loss, denominator, constant_tokens: see `LossConfig` and `Denominator`.
        max_policy_lag: rollouts run so many steps ahead of the learner, with weights that many steps old.
        group_tries: at a group that an infrastructure failure hits, before it is dropped.
        max_dropped_share: share of a step's groups that may be dropped so.
    """

    steps: int
    tasks_per_step: int
    minibatches: int
    temperature: float
    loss: LossConfig
    denominator: Denominator
    constant_tokens: float
    max_policy_lag: int
    group_tries: int
    max_dropped_share: float


class Account(Protocol):
    """Where what a step costs is booked, and how much of the run is done."""

    def spend(self, *, sampled: int = 0, read: int = 0, trained: int = 0) -> None:
        """So many tokens were generated, went through a forward pass alone, or through forward and backward."""
        ...

    def progress(self) -> float:
        """The share of RL that is done, in [0, 1], for the learning rate."""
        ...


@dataclass(frozen=True)
class Step:
    """What one step did."""

    produced: Produced
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
        settings: how much, and how often.
        account: of tokens.
        seed: all randomness is keyed by it and the step.
        beside: plays every other step, so that one begins while another still decodes; see `RolloutsAhead`.
    """

    def __init__(
        self,
        player: Player,
        sampler: WeightSyncTarget,
        learner: LearnerProtocol,
        menu: TaskMenu,
        stages: Stages,
        settings: StepSettings,
        account: Account,
        *,
        seed: int,
        beside: TrainedPlayer | None = None,
    ) -> None:
        self.player, self.sampler, self.learner, self.menu = player, sampler, learner, menu
        self.stages, self.settings, self.account, self.seed = stages, settings, account, seed
        self.next_step = 0
        lane = None if beside is None else Lane(partial(self.produce, player=beside), beside.sampler)
        self._ahead = RolloutsAhead(
            self.produce, sampler, learner, max_policy_lag=settings.max_policy_lag, steps=settings.steps, beside=lane
        )

    def step(self) -> Step:
        """Take what was produced, credit it, update, and let what learns from a step learn."""
        produced = self._ahead.take(self.next_step)
        self.account.spend(sampled=produced.sampled_tokens)
        scheme, groups, internals = self.stages.credit, produced.learned_from, None
        if scheme.internals:
            internals, read = compute_internals(self.learner, groups, scheme.internals)
            self.account.spend(read=read)
        credit = credit_step(scheme, groups, produced.replayed, internals)
        metrics = self.update(produced, credit)
        fit(scheme, groups, internals)
        self.next_step += 1
        return Step(produced, credit, metrics)

    def produce(self, step: int, player: Player | None = None) -> Produced:
        """Propose, play, admit, and play what credit asks for; nothing else touches the player's sampler meanwhile."""
        stages, settings, player = self.stages, self.settings, player or self.player
        rng, weights = np.random.default_rng(stream_seed("tasks", self.seed, step)), weights_at(stages.rewards, step)
        play = partial(play_groups, player, step=step, seed=self.seed, temperature=settings.temperature)
        planned: list[PlannedGroup] = []
        groups: list[EpisodeGroup] = []
        admission, rounds, asked, outages = Admission((), more=settings.tasks_per_step), 0, 0, NO_OUTAGES
        while admission.more or admission.again:
            new = propose(stages.tasks, step, admission.more, self.menu, rng) if admission.more else []
            played, lost = play(new, weights=weights, after=planned, tries=settings.group_tries)
            planned, outages = [*planned, *new], outages + lost
            again, lost = play(admission.again, weights=weights, after=planned, tries=settings.group_tries)
            planned, outages = [*planned, *admission.again], outages + lost
            groups, rounds = [*groups, *played, *again], rounds + 1
            outages.check(step, len(planned), settings.max_dropped_share)
            asked = asked or sum(plan.num_rollouts for plan in planned)
            if played:  # which tasks are rolled out again is decided by outcomes, so their rate is not a task's
                observe(stages.tasks, step, played)
            if played or again:
                observe(stages.rewards, step, [*played, *again])
            admission = admit(stages.gate, step, groups, settings.tasks_per_step, rounds)
        replays = partial(player.play_replays, temperature=settings.temperature)
        kept, replayed, lost = replay_groups(stages.credit, admission.kept, replays, settings.group_tries)
        outages += lost
        outages.check(step, len(planned), settings.max_dropped_share)
        there = {id(group) for group in kept}
        groups = without(groups, [e for group in admission.kept if id(group) not in there for e in group.episodes])
        return Produced(tuple(groups), tuple(kept), replayed, planned_episodes=asked, rounds=rounds, outages=outages)

    def update(self, produced: Produced, credit: StepCredit) -> dict[str, float]:
        """Exactly `minibatches` optimiser steps; one without anything to train makes none and says so."""
        settings, lag = self.settings, produced.policy_lag(self.next_step)
        batches = mini_batches(
            produced.learned_from,
            credit.credits,
            settings.minibatches,
            denominator=settings.denominator,
            constant=settings.constant_tokens,
            planned_episodes=produced.planned_episodes,
            replayed=records_of(produced.replayed),
        )
        metrics = []
        for samples in self.learner.attach_old_logprobs(batches, settings.loss):
            metrics.append(self.learner.policy_step(samples, settings.loss, self.account.progress()))
            if lag == 0 and sum(step.num_rows > 0 for step in metrics) == 1:  # the first with anything to train
                check_agreement(metrics[-1], exact=self.sampler.exact and self.learner.exact)
            self.account.spend(trained=metrics[-1].trained_tokens)
        return {**mean_metrics(metrics), "policy_lag": lag}

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds beside weights and moments. Waits for the rollouts that are under way."""
        waiting = self._ahead.waiting()  # first: rollouts change what stages remember
        return {
            "next_step": self.next_step,
            "stages": {name: dict(stage.state_dict()) for name, stage in self.stages.remembering().items()},
            "waiting": {str(step): produced.to_json() for step, produced in waiting.items()},
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
            self._ahead.put(int(step), Produced.from_json(data, self.stages.credit))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._ahead.close()
