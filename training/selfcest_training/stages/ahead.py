"""Rollouts of coming steps while the learner works, with a bound on how old their weights may be.

With `max_policy_lag` 0 a step is rolled out with the weights that it then updates. With a lag of n, step s is rolled
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
from selfcest_training.stages.produced import Produced


def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="rollouts")


@dataclass
class Lane:
    """Where steps are produced one after another.

    Attributes:
        produce: plays a step with whatever weights the sampler has.
        sampler: what `produce` plays with; with a lag one that has weights of its own.
        version: of the weights that it was given.
    """

    produce: Callable[[int], Produced]
    sampler: WeightSyncTarget
    version: int | None = None
    thread: ThreadPoolExecutor = field(default_factory=_thread)


class RolloutsAhead:
    """Produces steps in order, at most `max_policy_lag` ahead of the one that is taken.

    Args:
        produce, sampler: see `Lane`.
        learner: has the weights being trained. A copy is kept for each step that waits for those before it.
        max_policy_lag: see above.
        steps: none at or after this one is produced.
        beside: a second lane, which has every other step; with a lag alone.
    """

    def __init__(
        self,
        produce: Callable[[int], Produced],
        sampler: WeightSyncTarget,
        learner: LearnerProtocol,
        *,
        max_policy_lag: int,
        steps: int,
        beside: Lane | None = None,
    ) -> None:
        assert not (max_policy_lag and sampler.shared)
        assert max_policy_lag or beside is None
        self._lanes, self._learner = [Lane(produce, sampler), *([] if beside is None else [beside])], learner
        self._lag, self._steps = max_policy_lag, steps
        self._ahead: dict[int, Future[Produced]] = {}

    def take(self, step: int) -> Produced:
        """What `step` learns from; steps after it begin before this returns. Call it in order, between updates."""
        if len(self._lanes) > 1:  # those after it need not wait for it
            self._begin(range(step, step + self._lag + 1), step)
        if step in self._ahead:
            produced = self._ahead.pop(step).result()
        else:
            (lane,) = self._lanes
            self._learner.sync(lane.sampler, step)
            lane.version = step
            produced = lane.produce(step)
        self._begin(range(step + 1, step + self._lag + 1), step)
        return produced

    def _begin(self, steps: range, policy_version: int) -> None:
        """Have those of them that have not begun produced with the weights as they are now."""
        missing = [step for step in steps if step < self._steps and step not in self._ahead]
        weights = [(name, tensor.clone()) for name, tensor in self._learner.weights()] if missing else []
        _settle(weights)  # before this thread's learner or the other's engine goes on
        for step in missing:
            lane = self._lanes[step % len(self._lanes)]
            self._ahead[step] = lane.thread.submit(self._start, lane, step, list(weights), policy_version)

    def waiting(self) -> dict[int, Produced]:
        """Steps that were begun and not taken, once they are produced; after `close` without those it cancelled."""
        return {step: future.result() for step, future in self._ahead.items() if not future.cancelled()}

    def put(self, step: int, produced: Produced) -> None:
        """What was waiting when a checkpoint was written waits again; before the first `take`."""
        self._ahead[step] = Future()
        self._ahead[step].set_result(produced)

    def _start(self, lane: Lane, step: int, weights: list[tuple[str, Tensor]], policy_version: int) -> Produced:
        if lane.version != policy_version:
            lane.sampler.push(weights, policy_version)
            _settle(weights)
            lane.version = policy_version
        weights.clear()  # the engine has its own by now
        return lane.produce(step)

    def close(self) -> None:
        """Wait for what is under way, and begin nothing more."""
        for wait in (False, True):
            for lane in self._lanes:
                lane.thread.shutdown(wait=wait, cancel_futures=True)


def _settle(weights: list[tuple[str, Tensor]]) -> None:
    """Wait for what a GPU still does with them: threads may use streams of their own."""
    if weights and weights[0][1].is_cuda:
        torch.cuda.synchronize()
