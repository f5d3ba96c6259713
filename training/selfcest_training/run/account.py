"""The account of a job: its progress, the compute it has used, and whether its budget is spent."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from selfcest_training.config import RLConfig
from selfcest_training.run.checkpoint import TrainState


class JobAccount:
    """Holds the state of a job and updates it; see `trainer.TokenAccount`.

    Args:
        state: state of the checkpoint from which the job resumes, or a new one.
        rl: options of RL, with the bounds that end it.
        compute_tokens: compute budget of the job; `None` for no bound.
        cpu_seconds: returns the CPU seconds of all processes of the job. Only differences count.
    """

    def __init__(
        self,
        state: TrainState,
        rl: RLConfig,
        compute_tokens: int | None,
        cpu_seconds: Callable[[], float] = time.process_time,
    ) -> None:
        self.state = state
        self._rl = rl
        self._compute_tokens = compute_tokens
        self._cpu_seconds = cpu_seconds
        # CPU seconds that are in the state or were ignored.
        self._counted_seconds = cpu_seconds()

    def spend(self, *, sampled: int = 0, scored: int = 0, trained: int = 0) -> None:
        """Count tokens that were generated, scored for credit, or trained on."""
        state = self.state
        self.state = replace(
            state,
            sampled_tokens=state.sampled_tokens + sampled,
            scored_tokens=state.scored_tokens + scored,
            trained_tokens=state.trained_tokens + trained,
        )

    def tick(self, num_updates: int, demonstration_tokens: int = 0) -> None:
        """Count one step. Called after each demonstration pool and each RL step.

        Args:
            num_updates: number of optimizer steps of the stage so far.
            demonstration_tokens: number of demonstration tokens of the pool.
        """
        now = self._cpu_seconds()
        self.state = replace(
            self.state,
            step=self.state.step + 1,
            num_updates=num_updates,
            demonstration_tokens=self.state.demonstration_tokens + demonstration_tokens,
            cpu_seconds=self.state.cpu_seconds + now - self._counted_seconds,
        )
        self._counted_seconds = now

    def pause(self) -> None:
        """Ignore the CPU seconds since the last tick, which belong to a probe or an evaluation."""
        self._counted_seconds = self._cpu_seconds()

    def begin_again(self) -> None:
        """Begin a new attempt at the warm start. The cost of the old one stays, and no pool is drawn twice."""
        self.state = replace(self.state, attempt=self.state.attempt + 1, num_updates=0, demonstration_tokens=0)

    def begin_rl(self) -> None:
        """Switch from the warm start to RL."""
        self.state = replace(
            self.state,
            stage="rl",
            step=0,
            num_updates=0,
            compute_at_rl=self.state.compute_tokens,
            sampled_at_rl=self.state.sampled_tokens,
        )
        # The job has evaluated the policy since its last pool, which is not training.
        self.pause()

    def spent(self) -> bool:
        """Return whether RL has used its budget of compute or of sampled tokens."""
        max_compute = self._compute_tokens
        max_sampled = self._rl.sampled_tokens
        if max_compute is not None and self.state.compute_tokens >= max_compute:
            return True
        return max_sampled is not None and self.state.rl_sampled_tokens >= max_sampled

    def progress(self) -> float:
        """Return the share of RL that is done, by steps, compute or sampled tokens, whichever ends it first."""
        budget = self._compute_tokens
        start = self.state.compute_at_rl
        share = self.state.step / max(1, self._rl.steps)
        if budget is not None and budget > start:
            share = max(share, (self.state.compute_tokens - start) / (budget - start))
        if self._rl.sampled_tokens is not None:
            share = max(share, self.state.rl_sampled_tokens / self._rl.sampled_tokens)
        return min(1.0, share)

    def metrics(self) -> dict[str, float]:
        """Return the compute used so far, by the names of the metrics."""
        names = ("compute_tokens", "sampled_tokens", "scored_tokens", "cpu_seconds")
        return {name: getattr(self.state, name) for name in names}
