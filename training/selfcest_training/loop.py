"""The page that reads like the algorithm: imitate, then roll out, score, credit, update; checkpoint on the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from selfcest_agents.tiny import TinyTokenizer, build_tiny, load_pretrained, save_pretrained
from selfcest_env.record import EpisodeGroup
from selfcest_env.reward import make_reward
from selfcest_env.seeding import stream_seed
from selfcest_training.batch import Sample, build_samples
from selfcest_training.checkpoint import TrainState, checkpoints, load_checkpoint, save_checkpoint
from selfcest_training.config import RunConfig
from selfcest_training.credit import Credit, make_assigner
from selfcest_training.crediting import StepCredit, credit_step
from selfcest_training.metrics import MetricsLog, describe, drop_episodes, log_episodes
from selfcest_training.player import Player, draw_family, group_requests, make_families
from selfcest_training.update import Learner, UpdateMetrics, check_agreement, mean_metrics
from selfcest_training.warmstart import cut_batches, demonstration_pool, phase_at

Report = Callable[[str, float, str], None]  # stage, share done, a line of numbers


@dataclass(frozen=True)
class JobId:
    """One arm of a run with one seed."""

    arm: str
    seed: int

    def __str__(self) -> str:
        return f"{self.arm}/seed{self.seed}"


class Job:
    """Trains one arm with one seed, in `folder`. Nothing is written before the config has been found right."""

    def __init__(self, config: RunConfig, job_id: JobId, report: Report) -> None:
        self.config, self.id, self.report = config, job_id, report
        self.arm = config.arms[job_id.arm]
        self.folder = config.folder / job_id.arm / f"seed{job_id.seed}"
        # Every arm starts from the same initial weights for the same seed.
        self.model = build_tiny(config.model, stream_seed("weights", job_id.seed))
        reward = make_reward(config.reward.name, **config.reward.options)
        self.player = Player.build(self.model, config.limits_of(job_id.arm), reward)
        self.families = make_families(config.tasks, "train")
        credit = self.arm.rl.credit
        self.assigner = make_assigner(credit.name, credit.options, where="rl.credit.options")
        self.state = TrainState()
        self._clock = time.process_time()

    # Stages

    def run(self, on_warm: Callable[[], None], only_warm_start: bool = False) -> None:
        """Warm start, `on_warm`, then RL; from the newest checkpoint if there is one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        found = checkpoints(self.folder / "checkpoints")
        if found:
            self.state = load_checkpoint(found[-1], self.model, None)
        in_rl = self.state.stage == "rl"
        resume_at = {"warmstart": 1 << 60 if in_rl else self.state.step, "rl": self.state.step if in_rl else 0}
        with MetricsLog(self.folder, resume_at) as log:
            if not in_rl:
                learner = self._learner("warmstart", found[-1] if found else None)
                self._warm_start(learner, log)
                save_pretrained(self.model, TinyTokenizer(), self.folder / "warmstart_model")
                on_warm()
                self._clock = time.process_time()  # evaluation is no training
                compute = self.state.compute_tokens
                self.state = replace(self.state, stage="rl", step=0, num_updates=0, compute_at_rl=compute)
            if not only_warm_start:
                learner = self._learner("rl", found[-1] if found and in_rl else None)
                self._reinforce(learner, log)
                save_pretrained(self.model, TinyTokenizer(), self.folder / "model")

    def _learner(self, stage: str, checkpoint: Path | None = None) -> Learner:
        optimizer = self.arm.warmstart.optimizer if stage == "warmstart" else self.arm.rl.optimizer
        reference = None
        if stage == "rl" and self.arm.rl.loss.kl_coefficient:
            reference, _ = load_pretrained(self.folder / "warmstart_model")
        learner = Learner(
            self.model,
            optimizer,
            pad_id=TinyTokenizer().pad_id,
            micro_batch_tokens=self.config.micro_batch_tokens,
            reference=reference,
            rows=self.config.rows,
        )
        if checkpoint is not None:
            load_checkpoint(checkpoint, self.model, learner.optimizer)
            learner.num_steps = self.state.num_updates
        return learner

    def _warm_start(self, learner: Learner, log: MetricsLog) -> None:
        config = self.arm.warmstart
        total = sum(phase.tokens for phase in config.phases)
        while (phase := phase_at(config, self.state.trained_tokens)) is not None:
            pool = self.state.step
            samples = demonstration_pool(self.player, self.families, phase, self.id.seed, pool, config.pool_tokens)
            order = np.random.default_rng(stream_seed("order", self.id.seed, pool))
            losses = []
            for batch in cut_batches(samples, config.batch_tokens, order):
                losses.append(learner.imitation_step(batch, min(1.0, self.state.trained_tokens / total)))
                self._spend(trained=sum(len(sample) for sample in batch))
            self._tick("warmstart", learner.num_steps)
            loss = float(np.mean(losses))
            log.write("warmstart", pool, {"loss": loss, **self._compute()})
            self.report("warm start", min(1.0, self.state.trained_tokens / total), f"loss {loss:.3f}")
            if self.state.step % self.config.checkpoint_every == 0:
                self._checkpoint(learner)
        self._checkpoint(learner)

    def _reinforce(self, learner: Learner, log: MetricsLog) -> None:
        config = self.arm.rl
        drop_episodes(self.folder / "episodes.jsonl", self.state.step)
        self.player.engine.policy_version = self.state.step
        while self.state.step < config.steps and not self._budget_spent():
            step = self.state.step
            groups = self._rollout(step)
            credit = self._credit(groups)
            metrics = self._update(learner, groups, credit.credits)
            self._tick("rl", learner.num_steps)
            self.player.engine.policy_version = self.state.step
            values = {**describe(groups), **credit.diagnostics(), **metrics, **self._compute()}
            log.write("rl", step, values)
            logged = self.config.log_groups
            log_episodes(self.folder / "episodes.jsonl", groups[:logged], credit.replayed[:logged])
            line = f"return {values['return']:.2f}  tokens {values['total_tokens']:.0f}  clones {values['clones']:.1f}"
            self.report("RL", self._share_done(), line)
            if self.state.step % self.config.checkpoint_every == 0:
                self._checkpoint(learner)
        self._checkpoint(learner)

    # One step of RL

    def _rollout(self, step: int) -> list[EpisodeGroup]:
        config = self.arm.rl
        rng = np.random.default_rng(stream_seed("tasks", self.id.seed, step))
        tasks = [self.families[draw_family(config.tasks, rng)].draw(rng) for _ in range(config.tasks_per_step)]
        seeds = [stream_seed("episode", self.id.seed, step, i) for i in range(len(tasks) * config.group_size)]
        requests = group_requests(tasks, config.group_size, f"s{step}", seeds)
        records = self.player.play(requests, config.temperature)
        self._spend(sampled=sum(record.cost.generated_tokens for record in records))
        size = config.group_size
        return [EpisodeGroup(task, tuple(records[i * size : (i + 1) * size])) for i, task in enumerate(tasks)]

    def _credit(self, groups: Sequence[EpisodeGroup]) -> StepCredit:
        play = partial(self.player.play_replays, temperature=self.arm.rl.temperature)
        credit = credit_step(self.assigner, groups, play)
        self._spend(sampled=credit.sampled_tokens)
        return credit

    def _update(self, learner: Learner, groups: Sequence[EpisodeGroup], credits: Sequence[Credit]) -> dict[str, float]:
        """One optimiser step per mini-batch of tasks, and never another."""
        config = self.arm.rl
        per_batch = len(groups) // config.minibatches
        metrics: list[UpdateMetrics] = []
        for start in range(0, len(groups), per_batch):
            chosen = slice(start, start + per_batch)
            samples: list[Sample] = build_samples(
                groups[chosen], credits[chosen], denominator=config.denominator, constant=config.constant_tokens
            )
            metrics.append(learner.policy_step(samples, config.loss, self._share_done()))
            if start == 0:
                check_agreement(metrics[0])
            self._spend(trained=metrics[-1].trained_tokens)
        return mean_metrics(metrics)

    # Accounts and files

    def _spend(self, sampled: int = 0, trained: int = 0) -> None:
        self.state = replace(
            self.state,
            sampled_tokens=self.state.sampled_tokens + sampled,
            trained_tokens=self.state.trained_tokens + trained,
        )

    def _tick(self, stage: str, num_updates: int) -> None:
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

    def _share_done(self) -> float:
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

    def _checkpoint(self, learner: Learner) -> None:
        name = f"{self.state.stage}_{self.state.step:06d}"
        save_checkpoint(self.folder / "checkpoints", name, self.model, learner.optimizer, self.state)
