"""The learner's part of a checkpoint: full tensors, also where ranks hold shards of them during training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

# These are slow to import, and commands that list checkpoints need no model.
if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class LearnerState:
    """Weights and optimiser moments.

    Attributes:
        weights: trained weights by name.
        moments: of the optimiser, by `INDEX/NAME` with the index of the weight among the trained weights.
    """

    weights: Mapping[str, Tensor]
    moments: Mapping[str, Tensor]

    @classmethod
    def of(cls, model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> LearnerState:
        """Return the state of a model and its optimiser; the tensors are not copies."""
        from selfcest_agents.lora import trainable_state

        moments: dict[str, Tensor] = {}
        for index, tensors in optimizer.state_dict()["state"].items():
            for name, tensor in tensors.items():
                moments[f"{index}/{name}"] = tensor
        return cls(trainable_state(model), moments)

    def load_into(self, model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> None:
        """Load the state into a model and its optimiser.

        Raises:
            RecordError: the state belongs to another model or to other `LoraOptions`.
        """
        from selfcest_agents.lora import load_trainable_state

        load_trainable_state(model, self.weights)
        state: dict[int, dict[str, Tensor]] = {}
        for key, tensor in self.moments.items():
            index, name = key.split("/")
            state.setdefault(int(index), {})[name] = tensor
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})

    def map_tensors(self, function: Callable[[str, Tensor], Tensor]) -> LearnerState:
        """Return the state with every tensor replaced by `function(name, tensor)`, weights first, in order."""
        weights = {name: function(name, tensor) for name, tensor in self.weights.items()}
        moments = {name: function(name, tensor) for name, tensor in self.moments.items()}
        return LearnerState(weights, moments)
