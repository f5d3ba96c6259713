"""A job: one arm with one seed, its stages, its account, and its files, from which it resumes exactly."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from selfcest_agents.language import Language, language_of
from selfcest_agents.lora import add_lora, merge_lora
from selfcest_agents.player import ModelPlayer
from selfcest_agents.samplers import SamplerSpec, make_sampler
from selfcest_env.errors import ConfigError
from selfcest_env.reward import make_reward
from selfcest_env.seeding import stream_seed
from selfcest_training.config import RLConfig, RunConfig, changed_limits
from selfcest_training.credit import make_assigner
from selfcest_training.families import make_families
from selfcest_training.learner.losses import Need, make_loss_sum
from selfcest_training.learner.memory import release_memory
from selfcest_training.learner.update import Learner
from selfcest_training.run.checkpoint import (
    TrainState,
    checkpoints,
    load_checkpoint,
    read_memory,
    read_state,
    save_checkpoint,
)
from selfcest_training.run.metrics import MetricsLog, describe, drop_episodes, log_episodes
from selfcest_training.stages.base import Stages, TaskMenu
from selfcest_training.stages.checks import weights_at
from selfcest_training.stages.registry import make_gate, make_reward_schedule, make_task_sampler
from selfcest_training.stages.warmstart import cut_batches, demonstration_pool, phase_at
from selfcest_training.trainer import Step, StepSettings, Trainer

OnProgress = Callable[[str, float, str], None]  # stage, share done, a line of numbers


@dataclass(frozen=True)
class JobId:
    """One arm of a run with one seed."""

    arm: str
    seed: int

    def __str__(self) -> str:
        return f"{self.arm}/seed{self.seed}"


class Job:
    """Trains one arm with one seed, in `folder`. Nothing is written before the config has been found right."""

    def __init__(self, config: RunConfig, job_id: JobId, on_progress: OnProgress) -> None:
        self.config, self.id, self.on_progress = config, job_id, on_progress
        self.arm = config.arms[job_id.arm]
        self.folder = config.folder / job_id.arm / f"seed{job_id.seed}"
        self.language = language_of(config.model)
        self.sampler_spec = make_sampler(config.sampler.name, config.sampler.options)
        self.reward = make_reward(config.reward.name, **config.reward.options)
        check_contexts(config, job_id.arm, self.language, self.sampler_spec)
        check_policy_lag(config, job_id.arm, self.sampler_spec)
        self.families = make_families(config.tasks, "train")
        for name, source in self.families.items():
            self.reward.check([source.draw(np.random.default_rng(0))], f"tasks.{name}")
        place = f"arms.{job_id.arm}.rl"
        self.stages = make_stages(self.arm.rl, place)
        # Of a schedule of its own: the run's is asked once per step.
        schedule = make_reward_schedule(self.arm.rl.reward_schedule, f"{place}.reward_schedule")
        self.reward.checked_weights(weights_at(schedule, 0))
        self.loss_needs = make_loss_sum(self.arm.rl.loss, where=f"{place}.loss").needs
        self.state = TrainState()
        self._clock = time.process_time()
        self._opened = ExitStack()

    def close(self) -> None:
        """End the engine; the next job of this process may need what it holds."""
        self._opened.close()

    # Stages

    def run(self, on_warm: Callable[[], None], only_warm_start: bool = False) -> None:
        """Warm start, `on_warm`, then RL; from the newest checkpoint if there is one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        found = checkpoints(self.folder / "checkpoints")
        self.state = read_state(found[-1]) if found else TrainState()
        in_rl = self.state.stage == "rl"
        resume_at = {"warmstart": 1 << 60 if in_rl else self.state.step, "rl": self.state.step if in_rl else 0}
        self._open()
        with MetricsLog(self.folder, resume_at) as log:
            if not in_rl:
                self._warm_start(found[-1] if found else None, log)
                merge_lora(self.model)
                self.language.save(self.model, self.folder / "warmstart_model")
                self.sampler.sync(self.model, 0)
                on_warm()
                self._clock = time.process_time()  # evaluation is no training
                compute = self.state.compute_tokens
                self.state = replace(self.state, stage="rl", step=0, num_updates=0, compute_at_rl=compute)
                self._add_lora()
            if not only_warm_start:
                self._reinforce(found[-1] if found and in_rl else None, log)
                merge_lora(self.model)
                self.language.save(self.model, self.folder / "model")

    def _open(self) -> None:
        """Load the model and start its sampler. Every arm starts from the same initial weights for the same seed."""
        # An adapter of RL belongs to the warm start, which then is the frozen reference as well.
        base = self.folder / "warmstart_model" if self.config.lora and self.state.stage == "rl" else None
        self.model = self.language.load(stream_seed("weights", self.id.seed), base)
        self._add_lora()
        self.sampler = self.sampler_spec.start(self.language, self.model)
        limits = self.config.limits_of(self.id.arm)
        self.player = ModelPlayer(self.language, self.sampler, limits=limits, reward=self.reward)
        self._opened.callback(self.player.close)

    def _add_lora(self) -> None:
        if self.config.lora is not None:
            add_lora(self.model, self.config.lora, stream_seed("lora", self.id.seed, self.state.stage))

    def _learner(self, stage: str, checkpoint: Path | None = None) -> Learner:
        optimizer = self.arm.warmstart.optimizer if stage == "warmstart" else self.arm.rl.optimizer
        reference = None
        if stage == "rl" and Need.REFERENCE in self.loss_needs:
            own = self.config.lora is not None  # which has the warm start in it, below the adapter
            reference = self.model if own else self.language.load(0, self.folder / "warmstart_model")
        learner = Learner(
            self.model,
            optimizer,
            pad_id=0,
            micro_batch_tokens=self.config.micro_batch_tokens,
            reference=reference,
            rows=self.config.rows,
            forward=self.config.forward,
        )
        if checkpoint is not None:
            load_checkpoint(checkpoint, self.model, learner.optimizer)
            learner.num_steps = self.state.num_updates
        return learner

    def _warm_start(self, checkpoint: Path | None, log: MetricsLog) -> None:
        config, learner = self.arm.warmstart, self._learner("warmstart", checkpoint)
        total, limits = sum(phase.tokens for phase in config.phases), self.config.limits_of(self.id.arm)
        while (phase := phase_at(config, self.state.demonstration_tokens)) is not None:
            pool = self.state.step
            samples = demonstration_pool(
                self.language, limits, self.reward, self.families, phase, self.id.seed, pool, config.pool_tokens
            )
            order = np.random.default_rng(stream_seed("order", self.id.seed, pool))
            losses = []
            for batch in cut_batches(samples, config.batch_tokens, order):
                metrics = learner.imitation_step(batch, min(1.0, self.state.demonstration_tokens / total))
                losses.append(metrics.loss)
                shown = self.state.demonstration_tokens + sum(map(len, batch))
                self.state = replace(self.state, demonstration_tokens=shown)
                self.spend(trained=metrics.trained_tokens)
            self._tick("warmstart", learner.num_steps)
            loss = float(np.mean(losses))
            log.write("warmstart", pool, {"loss": loss, **self._compute()})
            self.on_progress("warm start", min(1.0, self.state.demonstration_tokens / total), f"loss {loss:.3f}")
            if self.state.step % self.config.checkpoint_every == 0:
                self._checkpoint(learner)
        self._checkpoint(learner)

    def _reinforce(self, checkpoint: Path | None, log: MetricsLog) -> None:
        config, learner = self.arm.rl, self._learner("rl", checkpoint)
        drop_episodes(self.folder / "episodes.jsonl", self.state.step)
        settings = StepSettings(
            steps=config.steps,
            tasks_per_step=config.tasks_per_step,
            minibatches=config.minibatches,
            temperature=config.temperature,
            loss=config.loss,
            denominator=config.denominator,
            constant_tokens=config.constant_tokens,
            max_policy_lag=config.max_policy_lag,
        )
        menu = TaskMenu(self.families, config.tasks, config.group_size)
        with Trainer(
            self.player, self.sampler, learner, menu, self.stages, settings, account=self, seed=self.id.seed
        ) as trainer:
            if checkpoint is not None:
                trainer.load_state_dict(read_memory(checkpoint))
            while self.state.step < config.steps and not self._budget_spent():
                step = trainer.step()
                self._tick("rl", learner.num_steps)
                self._log(log, step)
                if self.state.step % self.config.checkpoint_every == 0:
                    self._checkpoint(learner, trainer)
        self._checkpoint(learner, trainer)
        self.sampler.sync(self.model, self.state.step)

    def _log(self, log: MetricsLog, step: Step) -> None:
        produced, credit = step.produced, step.credit
        found = {**describe(produced.groups), **produced.diagnostics(), **credit.diagnostics(), **step.metrics}
        log.write("rl", self.state.step - 1, {**found, **self._compute()})
        logged = self.config.log_groups
        log_episodes(self.folder / "episodes.jsonl", produced.learned_from[:logged], credit.replayed[:logged])
        line = f"return {found['return']:.2f}  tokens {found['total_tokens']:.0f}  clones {found['clones']:.1f}"
        self.on_progress("RL", self.progress(), line)

    # Accounts and files

    def spend(self, *, sampled: int = 0, trained: int = 0) -> None:
        """Book tokens; see `Account`."""
        self.state = replace(
            self.state,
            sampled_tokens=self.state.sampled_tokens + sampled,
            trained_tokens=self.state.trained_tokens + trained,
        )

    def _tick(self, stage: str, num_updates: int) -> None:
        release_memory()
        now = time.process_time()
        self.state = replace(
            self.state,
            stage=stage,
            step=self.state.step + 1,
            num_updates=num_updates,
            cpu_seconds=self.state.cpu_seconds + now - self._clock,
        )
        self._clock = now

    def _budget_spent(self) -> bool:
        compute, sampled = self.config.compute_tokens, self.arm.rl.sampled_tokens
        over_compute = compute is not None and self.state.compute_tokens >= compute
        return over_compute or (sampled is not None and self.state.sampled_tokens >= sampled)

    def progress(self) -> float:
        """How much of RL is done, by steps, compute or sampled tokens, whichever ends it first."""
        budget, start = self.config.compute_tokens, self.state.compute_at_rl
        share = self.state.step / max(1, self.arm.rl.steps)
        if budget is not None and budget > start:
            share = max(share, (self.state.compute_tokens - start) / (budget - start))
        if self.arm.rl.sampled_tokens is not None:
            share = max(share, self.state.sampled_tokens / self.arm.rl.sampled_tokens)
        return min(1.0, share)

    def _compute(self) -> dict[str, float]:
        state = self.state
        return {
            "compute_tokens": state.compute_tokens,
            "sampled_tokens": state.sampled_tokens,
            "cpu_seconds": state.cpu_seconds,
        }

    def _checkpoint(self, learner: Learner, trainer: Trainer | None = None) -> None:
        name, memory = f"{self.state.stage}_{self.state.step:06d}", {} if trainer is None else trainer.state_dict()
        save_checkpoint(self.folder / "checkpoints", name, self.model, learner.optimizer, self.state, memory)


def make_stages(config: RLConfig, place: str = "rl") -> Stages:
    """Raises `ConfigError` or `PlugInError` that names the place in the config."""
    return Stages(
        make_task_sampler(config.task_sampler, f"{place}.task_sampler"),
        make_gate(config.gate, f"{place}.gate"),
        make_reward_schedule(config.reward_schedule, f"{place}.reward_schedule"),
        make_assigner(config.credit.name, config.credit.options, where=f"{place}.credit.options"),
    )


def check_contexts(config: RunConfig, arm: str, language: Language, sampler: SamplerSpec) -> None:
    """Raise `ConfigError` if a context of the arm, or of a phase of its warm start, could outgrow model or engine."""
    limits = config.limits_of(arm)
    longest = min(bound for bound in (limits.context_tokens, limits.total_tokens, math.inf) if bound is not None)
    if sampler.max_positions is not None and longest > sampler.max_positions:
        raise ConfigError(
            f"arms.{arm}: contexts of {longest} tokens could outgrow sampler.options.max_positions = "
            f"{sampler.max_positions}; raise it, or lower limits.context_tokens"
        )
    places = {f"arms.{arm}": limits} | {
        f"arms.{arm}.warmstart.phases[{i}]": changed_limits(limits, phase.limits, "limits")
        for i, phase in enumerate(config.arms[arm].warmstart.phases)
    }
    for place, limits in places.items():
        try:
            language.rules(limits)
        except ConfigError as error:
            raise ConfigError(f"{place}: {error}") from error


def check_policy_lag(config: RunConfig, arm: str, sampler: SamplerSpec) -> None:
    """Raise `ConfigError` if rollouts should run ahead with a sampler that sees the learner's weights change."""
    lag = config.arms[arm].rl.max_policy_lag
    if lag and sampler.shared and config.lora is None:
        raise ConfigError(
            f"arms.{arm}.rl.max_policy_lag is {lag}, but the sampler uses the learner's own weights, which change "
            "under it; set sampler.options.dtype (as float32), so that it has weights of its own"
        )
