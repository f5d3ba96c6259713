"""A job's account: how far it has come, what it has used, and what is left of its budget."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from selfcest_training.config import RLConfig
from selfcest_training.run.checkpoint import TrainState


class JobAccount:
    """Keeps the state of a job; see `trainer.TokenAccount`.

    Args:
        state: what it goes on from.
        rl: says when RL ends.
        compute_tokens: of the whole job; `None`: no bound.
        cpu_seconds: used so far by whatever works for the job, from any beginning.
    """

    def __init__(
        self,
        state: TrainState,
        rl: RLConfig,
        compute_tokens: int | None,
        cpu_seconds: Callable[[], float] = time.process_time,
    ) -> None:
        self.state, self._rl, self._compute_tokens, self._cpu_seconds = state, rl, compute_tokens, cpu_seconds
        self._counted = cpu_seconds()

    def spend(self, *, sampled: int = 0, scored: int = 0, trained: int = 0) -> None:
        """Book tokens."""
        state = self.state
        self.state = replace(
            state,
            sampled_tokens=state.sampled_tokens + sampled,
            scored_tokens=state.scored_tokens + scored,
            trained_tokens=state.trained_tokens + trained,
        )

    def tick(self, num_updates: int, shown: int = 0) -> None:
        """A pool that has shown so many demonstration tokens or a step of RL is done, and its stage has made so many
        optimiser steps."""
        now = self._cpu_seconds()
        self.state = replace(
            self.state,
            step=self.state.step + 1,
            num_updates=num_updates,
            demonstration_tokens=self.state.demonstration_tokens + shown,
            cpu_seconds=self.state.cpu_seconds + now - self._counted,
        )
        self._counted = now

    def pause(self) -> None:
        """What this process did since the last tick, a probe, is no training."""
        self._counted = self._cpu_seconds()

    def begin_again(self) -> None:
        """Give up an attempt at the warm start. What it cost stays; pools go on counting, so none comes twice."""
        self.state = replace(self.state, attempt=self.state.attempt + 1, num_updates=0, demonstration_tokens=0)

    def begin_rl(self) -> None:
        """The warm start is over. What the job did since its last pool, an evaluation, is no training."""
        compute, sampled = self.state.compute_tokens, self.state.sampled_tokens
        begun = replace(self.state, stage="rl", step=0, num_updates=0)
        self.state = replace(begun, compute_at_rl=compute, sampled_at_rl=sampled)
        self.pause()

    def spent(self) -> bool:
        """Whether RL has used its budget."""
        compute, sampled = self._compute_tokens, self._rl.sampled_tokens
        over_compute = compute is not None and self.state.compute_tokens >= compute
        return over_compute or (sampled is not None and self.state.rl_sampled_tokens >= sampled)

    def progress(self) -> float:
        """How much of RL is done, by steps, compute or sampled tokens, whichever ends it first."""
        budget, start = self._compute_tokens, self.state.compute_at_rl
        share = self.state.step / max(1, self._rl.steps)
        if budget is not None and budget > start:
            share = max(share, (self.state.compute_tokens - start) / (budget - start))
        if self._rl.sampled_tokens is not None:
            share = max(share, self.state.rl_sampled_tokens / self._rl.sampled_tokens)
        return min(1.0, share)

    def metrics(self) -> dict[str, float]:
        """What has been used so far."""
        names = ("compute_tokens", "sampled_tokens", "scored_tokens", "cpu_seconds")
        return {name: getattr(self.state, name) for name in names}
