"""The driver's side of a sharded learner: the methods of `Learner`, each a call on all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from selfcest_agents.lora import load_trainable_state, trainable_state
from selfcest_agents.samplers import TakesWeights
from selfcest_training.cluster.rank import LearnerSpec
from selfcest_training.learner.batch import Sample
from selfcest_training.learner.options import LossConfig
from selfcest_training.learner.state import LearnerState
from selfcest_training.learner.update import ImitationMetrics, Reading, UpdateMetrics, freeze


class Ranks(Protocol):
    """All ranks of a group, wherever they are.

    Attributes:
        built: the `LearnerGroup` whose learner they hold, which that sets; `None` at first.
    """

    built: object

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


class LearnerGroup:
    """A learner on other processes; for the trainer it is a `Learner`.

    Args:
        ranks: that have joined their group. They stay the caller's, and hold one learner at a time: the last.
        spec: of the learner.
        sampled: dtype in which samplers are given weights, as `bfloat16`; `None`: the model's own.

    Raises:
        ConfigError: what `ShardedLearner` refuses.
    """

    def __init__(self, ranks: Ranks, spec: LearnerSpec, sampled: str | None = None) -> None:
        self._ranks, self._sampled = ranks, sampled
        ranks.built = self
        self.pad_id, self.num_steps = spec.pad_id, 0
        self.exact = bool(self._call("build", spec))

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
