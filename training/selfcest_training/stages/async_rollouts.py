"""Plays the rollouts of later steps while the learner works, with a fixed staleness of their weights.

With `max_staleness` 0 a step is played with the weights that it then updates. With a staleness of n, step s is played
with the weights of exactly step s - n, in another thread, while the learner works on earlier steps. The age of the
weights never depends on speed, so such a run is repeatable too. The first n steps are played with the first weights.
A checkpoint waits for running rollouts and contains them.

With a second sampler, the steps alternate between two pipelines. A step begins as soon as its weights exist, while the
step before it still decodes its last episodes. The weights of each step stay the same. But a step is proposed before
the step before it was observed, so stages that influence rollouts must have no state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from selfcest_agents.samplers import WeightSyncTarget
from selfcest_training.stages.rollout_batch import RolloutBatch


class WeightSource(Protocol):
    """The part of `LearnerProtocol` that rollouts need: the weights, and their push to a sampler."""

    def weights(self) -> Iterator[tuple[str, Tensor]]: ...

    def sync(self, sampler: WeightSyncTarget, policy_version: int) -> None: ...


def _make_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="rollouts")


@dataclass
class RolloutPipeline:
    """Plays the rollouts of steps, one step after another.

    Attributes:
        produce: plays a step with the current weights of the sampler.
        sampler: the sampler that `produce` uses. With staleness it must have its own weights.
        version: version of the sampler's weights.
        thread: the thread in which steps are played.
    """

    produce: Callable[[int], RolloutBatch]
    sampler: WeightSyncTarget
    version: int | None = None
    thread: ThreadPoolExecutor = field(default_factory=_make_thread)


class AsyncRollouts:
    """Produces steps in order, at most `max_staleness` steps ahead of the learner.

    Args:
        produce: plays a step, see `RolloutPipeline`.
        sampler: the sampler of `produce`.
        learner: holds the trained weights. Each step that waits for earlier ones keeps a copy of them.
        max_staleness: see the module's docstring.
        steps: number of steps. No later step is produced.
        second: a second pipeline, which plays every other step. It needs a `max_staleness` above 0.
    """

    def __init__(
        self,
        produce: Callable[[int], RolloutBatch],
        sampler: WeightSyncTarget,
        learner: WeightSource,
        *,
        max_staleness: int,
        steps: int,
        second: RolloutPipeline | None = None,
    ) -> None:
        assert not (max_staleness and sampler.shared)
        assert max_staleness or second is None
        self._pipelines = [RolloutPipeline(produce, sampler)]
        if second is not None:
            self._pipelines.append(second)
        self._learner = learner
        self._max_staleness = max_staleness
        self._steps = steps
        # Steps that were submitted and not taken.
        self._submitted: dict[int, Future[RolloutBatch]] = {}

    def take(self, step: int) -> RolloutBatch:
        """Return the rollouts of a step, and submit the steps after it.

        It must be called in the order of the steps, between updates.
        """
        # With two pipelines the later steps do not wait for this one.
        if len(self._pipelines) > 1:
            self._submit(range(step, step + self._max_staleness + 1), step)
        if step in self._submitted:
            batch = self._submitted.pop(step).result()
        else:
            (pipeline,) = self._pipelines
            self._learner.sync(pipeline.sampler, step)
            pipeline.version = step
            batch = pipeline.produce(step)
        self._submit(range(step + 1, step + self._max_staleness + 1), step)
        return batch

    def _submit(self, steps: range, policy_version: int) -> None:
        """Submit the steps that were not submitted yet, with the current weights of the learner."""
        missing = [step for step in steps if step < self._steps and step not in self._submitted]
        if not missing:
            return
        weights = [(name, tensor.clone()) for name, tensor in self._learner.weights()]
        # The copies must be complete before the learner changes its weights, or an engine of another thread reads them.
        _synchronize(weights)
        for step in missing:
            pipeline = self._pipelines[step % len(self._pipelines)]
            self._submitted[step] = pipeline.thread.submit(self._run, pipeline, step, list(weights), policy_version)

    def waiting(self) -> dict[int, RolloutBatch]:
        """Wait for the submitted steps and return them. Steps that `close` cancelled are left out."""
        return {step: future.result() for step, future in self._submitted.items() if not future.cancelled()}

    def put(self, step: int, batch: RolloutBatch) -> None:
        """Restore a step that was waiting when a checkpoint was written. Called before the first `take`."""
        self._submitted[step] = Future()
        self._submitted[step].set_result(batch)

    def _run(
        self, pipeline: RolloutPipeline, step: int, weights: list[tuple[str, Tensor]], policy_version: int
    ) -> RolloutBatch:
        if pipeline.version != policy_version:
            pipeline.sampler.push(weights, policy_version)
            _synchronize(weights)
            pipeline.version = policy_version
        # Free this copy: the engine has its own, or loaded these weights for an earlier step.
        weights.clear()
        return pipeline.produce(step)

    def close(self) -> None:
        """Cancel steps that have not started, and wait for running ones."""
        # All pipelines are stopped before the first one is waited for.
        for wait in (False, True):
            for pipeline in self._pipelines:
                pipeline.thread.shutdown(wait=wait, cancel_futures=True)


def _synchronize(weights: list[tuple[str, Tensor]]) -> None:
    """Wait for the GPU's pending operations on weights, as every thread may use its own stream."""
    if weights and weights[0][1].is_cuda:
        torch.cuda.synchronize()
