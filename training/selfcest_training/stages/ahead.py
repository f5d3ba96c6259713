"""Rollouts of coming steps while the learner works, with a bound on how old their weights may be.

With `max_policy_lag` 0 a step is rolled out with the weights that it then updates. With a lag of n, step s is rolled
out with the weights of step s - n, neither older nor younger, in a thread of its own, while the learner is still at
work on earlier ones; so a run with a lag repeats as one without does. The first n steps have the first weights. What is
under way when a checkpoint is written is waited for and goes into it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from selfcest_agents.samplers import TakesWeights
from selfcest_training.learner.update import AnyLearner
from selfcest_training.stages.produced import Produced


class RolloutsAhead:
    """Produces steps in order, at most `max_policy_lag` ahead of the one that is taken.

    Args:
        produce: plays a step with whatever weights the sampler has.
        sampler: what `produce` plays with; with a lag one that has weights of its own.
        learner: has the weights being trained. A copy is kept for each step that waits for those before it.
        max_policy_lag: see above.
        steps: none at or after this one is produced.
    """

    def __init__(
        self,
        produce: Callable[[int], Produced],
        sampler: TakesWeights,
        learner: AnyLearner,
        *,
        max_policy_lag: int,
        steps: int,
    ) -> None:
        assert not (max_policy_lag and sampler.shared)
        self._produce, self._sampler, self._learner = produce, sampler, learner
        self._lag, self._steps = max_policy_lag, steps
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rollouts")
        self._ahead: dict[int, Future[Produced]] = {}

    def take(self, step: int) -> Produced:
        """What `step` learns from; steps after it begin before this returns. Call it in order, between updates."""
        if step in self._ahead:
            produced = self._ahead.pop(step).result()
        else:
            self._learner.sync(self._sampler, step)
            produced = self._produce(step)
        missing = [s for s in range(step + 1, min(step + self._lag + 1, self._steps)) if s not in self._ahead]
        weights = [(name, tensor.clone()) for name, tensor in self._learner.weights()] if missing else []
        _settle(weights)  # before this thread's learner or the other's engine goes on
        for later in missing:
            self._ahead[later] = self._thread.submit(self._start, later, weights, step)
        return produced

    def waiting(self) -> dict[int, Produced]:
        """Steps that were begun and not taken, once they are produced; after `close` without those it cancelled."""
        return {step: future.result() for step, future in self._ahead.items() if not future.cancelled()}

    def put(self, step: int, produced: Produced) -> None:
        """What was waiting when a checkpoint was written waits again; before the first `take`."""
        self._ahead[step] = Future()
        self._ahead[step].set_result(produced)

    def _start(self, step: int, weights: list[tuple[str, Tensor]], policy_version: int) -> Produced:
        if weights:  # else the step before this one began with the same
            self._sampler.push(weights, policy_version)
            _settle(weights)
            weights.clear()  # the engine has its own by now
        return self._produce(step)

    def close(self) -> None:
        """Wait for what is under way, and begin nothing more."""
        self._thread.shutdown(wait=True, cancel_futures=True)


def _settle(weights: list[tuple[str, Tensor]]) -> None:
    """Wait for what a GPU still does with them: threads may use streams of their own."""
    if weights and weights[0][1].is_cuda:
        torch.cuda.synchronize()
