"""The driver's side of a sharded learner: the methods of `Learner`, each a call on all ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from selfcest_agents.lora import load_trainable_state, trainable_state
from selfcest_agents.samplers import TakesWeights
from selfcest_env.errors import InfrastructureError, SelfcestError
from selfcest_training.cluster.answers import Answer
from selfcest_training.cluster.rank import LearnerSpec
from selfcest_training.learner.batch import Sample
from selfcest_training.learner.options import LossConfig
from selfcest_training.learner.state import LearnerState
from selfcest_training.learner.update import ImitationMetrics, Reading, UpdateMetrics, freeze


class Ranks(Protocol):
    """All ranks of a group, wherever they are.

    Attributes:
        built: the `LearnerGroup` whose learner they hold, which that sets; `None` at first.
        cpu_seconds: that they have used so far, all together, in processes other than this one.
    """

    built: object
    cpu_seconds: float

    def call(self, method: str, *args: Any) -> Any:
        """`Rank.call` on every rank at once; what the first gives.

        Raises:
            SelfcestError: a rank raised it. `InfrastructureError`: a rank is gone. In either case all ranks have been
                ended, since those that are left would wait for it.
        """
        ...

    def close(self) -> None:
        """End all ranks."""
        ...


_GRACE = 2.0  # seconds in which another rank may turn out to be the cause


class HostedRanks(ABC):
    """`Ranks` in processes of their own, however these are reached; use it in a `with`. One that fails ends all.

    Args:
        count: of the ranks.
    """

    def __init__(self, count: int) -> None:
        self.built: object = None
        self.cpu_seconds = 0.0
        self._count, self._ended = count, False

    @abstractmethod
    def _ask(self, method: str, args: tuple[Any, ...]) -> None:
        """Send a call to every rank."""

    @abstractmethod
    def _hear(self, seconds: float | None) -> Iterable[tuple[int, Answer | Exception]]:
        """Wait that long (`None`: without end) for ranks that have not answered yet; what those say that now have.

        An `InfrastructureError` is of a rank that is gone, any other exception was raised by it.
        """

    @abstractmethod
    def _end(self) -> None:
        """End all ranks, whatever they are at."""

    def call(self, method: str, *args: Any) -> Any:
        """See `Ranks`."""
        if self._ended:
            raise InfrastructureError("the ranks of the learner have ended; start them anew and resume")
        self._ask(method, args)
        return self._answer()

    def _answer(self) -> Any:
        """What the first rank says, once all have."""
        found, failed = dict[int, Answer](), dict[int, Exception]()
        while len(found) + len(failed) < self._count:
            heard = list(self._hear(_GRACE if failed else None))
            if not heard:
                break
            for rank, said in heard:
                if isinstance(said, Answer):
                    found[rank] = said
                else:
                    failed[rank] = said
        self.cpu_seconds += sum(said.cpu_seconds for said in found.values())
        if failed:
            self.close()
            raise min(failed.items(), key=lambda one: (_remoteness(one[1]), one[0]))[1]
        return found[0].found

    def close(self) -> None:
        """See `Ranks`."""
        self._ended = True
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _remoteness(error: Exception) -> int:
    """From the cause: who waits for a rank that is gone, or that has refused something, fails too."""
    return 0 if isinstance(error, InfrastructureError) else 1 if isinstance(error, SelfcestError) else 2


class LearnerGroup:
    """A learner on other processes; for the trainer it is a `Learner`.

    Args:
        ranks: that have joined their group. They stay the caller's, and hold one learner at a time: the last.
        spec: of the learner.
        sampled: dtype in which samplers are given weights, as `bfloat16`; `None`: the model's own.

    Raises:
        ConfigError: what `ShardedLearner` refuses; a rank that finds other files than this process.
    """

    def __init__(self, ranks: Ranks, spec: LearnerSpec, sampled: str | None = None) -> None:
        self._ranks, self._sampled = ranks, sampled
        ranks.built = self
        self.pad_id, self.num_steps = spec.pad_id, 0
        self.exact = bool(self._call("build", spec.sent()))

    def _call(self, method: str, *args: Any) -> Any:
        assert self._ranks.built is self, "another learner has taken this one's place"
        return self._ranks.call(method, *args)

    def freeze(self, minibatches: Sequence[Sequence[Sample]], loss: LossConfig) -> list[Sequence[Sample]]:
        return freeze(self, minibatches, loss)

    def policy_step(self, samples: Sequence[Sample], loss: LossConfig, progress: float = 0.0) -> UpdateMetrics:
        metrics: UpdateMetrics = self._call("policy_step", samples, loss, progress)
        self.num_steps += bool(metrics.num_rows)
        return metrics

    def imitation_step(self, samples: Sequence[Sample], progress: float) -> ImitationMetrics:
        metrics: ImitationMetrics = self._call("imitation_step", samples, progress)
        self.num_steps += 1
        return metrics

    def read(self, samples: Sequence[Sample], what: Reading) -> tuple[list[np.ndarray], int]:
        found: tuple[list[np.ndarray], int] = self._call("read", samples, what)
        return found

    def sync(self, sampler: TakesWeights, policy_version: int) -> None:
        sampler.push(self.weights(), policy_version)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from self._call("weights", self._sampled).items()

    def state(self) -> LearnerState:
        found: LearnerState = self._call("state")
        return found

    def restore(self, state: LearnerState, num_steps: int) -> None:
        self._call("restore", state, num_steps)
        self.num_steps = num_steps

    def take(self, model: PreTrainedModel) -> None:
        """Begin with what trains in this model, as it is now."""
        self.restore(LearnerState(trainable_state(model), {}).mapped(lambda _, tensor: tensor.cpu()), 0)

    def fill(self, model: PreTrainedModel) -> None:
        load_trainable_state(model, self.state().weights)
