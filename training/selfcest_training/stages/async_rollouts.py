"""Rollouts of coming steps while the learner works, with a bound on how old their weights may be.

With `max_staleness` 0 a step is rolled out with the weights that it then updates. With a lag of n, step s is rolled
out with the weights of step s - n, neither older nor younger, in a thread of its own, while the learner is still at
work on earlier ones; so a run with a lag repeats as one without does. The first n steps have the first weights. What is
under way when a checkpoint is written is waited for and goes into it.

With a second sampler steps take turns, and one begins as soon as its weights are there, while the one before it still
decodes its last episodes. What is played with which weights stays the same. Only what stages have seen does not: a step
is proposed before the one before it was observed, so no stage that says what is played may remember anything.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import torch
from torch import Tensor

from selfcest_agents.samplers import WeightSyncTarget
from selfcest_training.learner.update import LearnerProtocol
from selfcest_training.stages.rollout_batch import RolloutBatch


def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="rollouts")


@dataclass
class RolloutPipeline:
    """Plays the rollouts of steps, one step after another.

    Attributes:
        produce: plays a step with whatever weights the sampler has.
        sampler: what `produce` plays with; with a lag one that has weights of its own.
        version: of the weights that it was given.
    """

    produce: Callable[[int], RolloutBatch]
    sampler: WeightSyncTarget
    version: int | None = None
    thread: ThreadPoolExecutor = field(default_factory=_thread)


class AsyncRollouts:
    """Produces steps in order, at most `max_staleness` ahead of the one that is taken.

    Args:
        produce, sampler: see `RolloutPipeline`.
        learner: has the weights being trained. A copy is kept for each step that waits for those before it.
        max_staleness: see above.
        steps: none at or after this one is produced.
        second: a second pipeline, which has every other step; only with a `max_staleness` above 0.
    """

    def __init__(
        self,
        produce: Callable[[int], RolloutBatch],
        sampler: WeightSyncTarget,
        learner: LearnerProtocol,
        *,
        max_staleness: int,
        steps: int,
        second: RolloutPipeline | None = None,
    ) -> None:
        assert not (max_staleness and sampler.shared)
        assert max_staleness or second is None
        self._pipelines = [RolloutPipeline(produce, sampler), *([] if second is None else [second])]
        self._learner, self._max_staleness, self._steps = learner, max_staleness, steps
        self._begun: dict[int, Future[RolloutBatch]] = {}

    def take(self, step: int) -> RolloutBatch:
        """The rollouts that `step` learns from; steps after it begin before this returns.

        Call it in the order of the steps, between updates.
        """
        if len(self._pipelines) > 1:  # those after it need not wait for it
            self._begin(range(step, step + self._max_staleness + 1), step)
        if step in self._begun:
            batch = self._begun.pop(step).result()
        else:
            (pipeline,) = self._pipelines
            self._learner.sync(pipeline.sampler, step)
            pipeline.version = step
            batch = pipeline.produce(step)
        self._begin(range(step + 1, step + self._max_staleness + 1), step)
        return batch

    def _begin(self, steps: range, policy_version: int) -> None:
        """Have those of them that have not begun produced with the weights as they are now."""
        missing = [step for step in steps if step < self._steps and step not in self._begun]
        weights = [(name, tensor.clone()) for name, tensor in self._learner.weights()] if missing else []
        _settle(weights)  # before this thread's learner or the other's engine goes on
        for step in missing:
            pipeline = self._pipelines[step % len(self._pipelines)]
            self._begun[step] = pipeline.thread.submit(self._start, pipeline, step, list(weights), policy_version)

    def waiting(self) -> dict[int, RolloutBatch]:
        """Steps that were begun and not taken, once they are produced; after `close` without those it cancelled."""
        return {step: future.result() for step, future in self._begun.items() if not future.cancelled()}

    def put(self, step: int, batch: RolloutBatch) -> None:
        """What was waiting when a checkpoint was written waits again; before the first `take`."""
        self._begun[step] = Future()
        self._begun[step].set_result(batch)

    def _start(
        self, pipeline: RolloutPipeline, step: int, weights: list[tuple[str, Tensor]], policy_version: int
    ) -> RolloutBatch:
        if pipeline.version != policy_version:
            pipeline.sampler.push(weights, policy_version)
            _settle(weights)
            pipeline.version = policy_version
        weights.clear()  # the engine has its own by now
        return pipeline.produce(step)

    def close(self) -> None:
        """Wait for what is under way, and begin nothing more."""
        for wait in (False, True):
            for pipeline in self._pipelines:
                pipeline.thread.shutdown(wait=wait, cancel_futures=True)


def _settle(weights: list[tuple[str, Tensor]]) -> None:
    """Wait for what a GPU still does with them: threads may use streams of their own."""
    if weights and weights[0][1].is_cuda:
        torch.cuda.synchronize()
