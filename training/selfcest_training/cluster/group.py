"""The driver of a sharded learner: each method of `Learner` is a call on all ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from selfcest_agents.lora import load_trainable_state, trainable_state
from selfcest_agents.samplers import WeightSyncTarget
from selfcest_env.errors import InfrastructureError, SelfcestError
from selfcest_training.cluster.rank import LearnerSpec
from selfcest_training.cluster.timed_result import TimedResult
from selfcest_training.learner.batch import Sample
from selfcest_training.learner.metrics import ImitationMetrics, UpdateMetrics
from selfcest_training.learner.options import LossConfig
from selfcest_training.learner.state import LearnerState
from selfcest_training.learner.update import ForwardOutput


class Ranks(Protocol):
    """All ranks of a group, in any processes.

    Attributes:
        owner: the `LearnerGroup` whose learner the ranks hold. The group sets it; `None` at first.
        cpu_seconds: total CPU time of the ranks so far, in processes other than this one.
    """

    owner: object
    cpu_seconds: float

    def call(self, method: str, *args: Any) -> Any:
        """Call `Rank.call` on every rank at once and return the first rank's result.

        Raises:
            SelfcestError: a rank raised it.
            InfrastructureError: a rank has died. In both cases all ranks are ended, since the remaining ranks would
                wait for the failed one.
        """
        ...

    def close(self) -> None:
        """End all ranks."""
        ...


# Seconds to wait after a first failure for the rank that caused it: ranks that wait for a failed rank fail too.
_GRACE = 2.0


class HostedRanks(ABC):
    """`Ranks` in processes of their own, over any transport; use it in a `with`. A rank that fails ends all ranks.

    Args:
        count: number of ranks.
    """

    def __init__(self, count: int) -> None:
        self.owner: object = None
        self.cpu_seconds = 0.0
        self._count = count
        self._is_closed = False

    @abstractmethod
    def _send(self, method: str, args: tuple[Any, ...]) -> None:
        """Send a call to every rank."""

    @abstractmethod
    def _receive(self, seconds: float | None) -> Iterable[tuple[int, TimedResult | Exception]]:
        """Wait for ranks that have not answered yet, and return the answers that have arrived.

        Args:
            seconds: longest wait; `None`: no limit.

        Returns:
            Pairs of rank and result. An `InfrastructureError` means that the rank has died; the rank raised any other
            exception.
        """

    @abstractmethod
    def _kill(self) -> None:
        """End all ranks at once."""

    def call(self, method: str, *args: Any) -> Any:
        """See `Ranks`."""
        if self._is_closed:
            raise InfrastructureError("the ranks of the learner have ended; resume the run to start new ones")
        self._send(method, args)
        return self._wait_for_results()

    def _wait_for_results(self) -> Any:
        """Wait for all ranks and return the first rank's result."""
        results: dict[int, TimedResult] = {}
        errors: dict[int, Exception] = {}
        while len(results) + len(errors) < self._count:
            answers = list(self._receive(_GRACE if errors else None))
            if not answers:
                break
            for rank, answer in answers:
                if isinstance(answer, TimedResult):
                    results[rank] = answer
                else:
                    errors[rank] = answer
        self.cpu_seconds += sum(result.cpu_seconds for result in results.values())
        if errors:
            self.close()
            cause = min(errors, key=lambda rank: (_distance_from_cause(errors[rank]), rank))
            raise errors[cause]
        return results[0].value

    def close(self) -> None:
        """See `Ranks`."""
        self._is_closed = True
        self._kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _distance_from_cause(error: Exception) -> int:
    """Return 0 for the likeliest cause: ranks that wait for a rank that died or refused a call fail as well."""
    if isinstance(error, InfrastructureError):
        return 0
    return 1 if isinstance(error, SelfcestError) else 2


class LearnerGroup:
    """A learner on other processes with the interface of `Learner`.

    Args:
        ranks: that have joined their group. The caller closes them. They hold one learner at a time, the last built.
        spec: of the learner.
        sampler_dtype: dtype in which samplers are given weights, such as `bfloat16`; `None`: the model's own.

    Raises:
        ConfigError: `ShardedLearner` refuses the spec, or a rank finds other files than this process.
    """

    def __init__(self, ranks: Ranks, spec: LearnerSpec, sampler_dtype: str | None = None) -> None:
        self._ranks = ranks
        self._sampler_dtype = sampler_dtype
        ranks.owner = self
        self.pad_id = spec.pad_id
        self.num_steps = 0
        self.exact = bool(self._call("build", spec.resolve()))

    def _call(self, method: str, *args: Any) -> Any:
        assert self._ranks.owner is self, "the ranks hold another learner now"
        return self._ranks.call(method, *args)

    def policy_step(self, samples: Sequence[Sample], loss: LossConfig, progress: float = 0.0) -> UpdateMetrics:
        metrics: UpdateMetrics = self._call("policy_step", samples, loss, progress)
        self.num_steps += bool(metrics.num_rows)
        return metrics

    def imitation_step(self, samples: Sequence[Sample], progress: float) -> ImitationMetrics:
        metrics: ImitationMetrics = self._call("imitation_step", samples, progress)
        self.num_steps += 1
        return metrics

    def compute(self, samples: Sequence[Sample], output: ForwardOutput) -> tuple[list[np.ndarray], int]:
        result: tuple[list[np.ndarray], int] = self._call("compute", samples, output)
        return result

    def sync(self, sampler: WeightSyncTarget, policy_version: int) -> None:
        sampler.push(self.weights(), policy_version)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from self._call("weights", self._sampler_dtype).items()

    def state(self) -> LearnerState:
        state: LearnerState = self._call("state")
        return state

    def restore(self, state: LearnerState, num_steps: int) -> None:
        self._call("restore", state, num_steps)
        self.num_steps = num_steps

    def load_weights_from(self, model: PreTrainedModel) -> None:
        """Start training from the present trained weights of this model, with a new optimiser."""
        self.restore(LearnerState(trainable_state(model), {}).map_tensors(lambda _, tensor: tensor.cpu()), 0)

    def copy_weights_to(self, model: PreTrainedModel) -> None:
        load_trainable_state(model, self.state().weights)
