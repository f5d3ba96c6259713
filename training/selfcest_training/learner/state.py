"""What a checkpoint holds of a learner: whole tensors, whoever has which parts of them while it learns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # slow to import, and checkpoints are also listed where no model is
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class LearnerState:
    """Attributes:
    weights: those that train, by name.
    moments: of the optimiser, as `INDEX/NAME` with the weight's place among those that train.
    """

    weights: Mapping[str, Tensor]
    moments: Mapping[str, Tensor]

    @classmethod
    def of(cls, model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> LearnerState:
        """The tensors themselves, not copies."""
        from selfcest_agents.lora import trainable_state

        moments = {
            f"{index}/{name}": tensor
            for index, own in optimizer.state_dict()["state"].items()
            for name, tensor in own.items()
        }
        return cls(trainable_state(model), moments)

    def put(self, model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> None:
        """Put them back. Raises `RecordError` where they are of another model, or of other `LoraOptions`."""
        from selfcest_agents.lora import load_trainable_state

        load_trainable_state(model, self.weights)
        state: dict[int, dict[str, Tensor]] = {}
        for key, tensor in self.moments.items():
            index, name = key.split("/")
            state.setdefault(int(index), {})[name] = tensor
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})

    def mapped(self, of: Callable[[str, Tensor], Tensor]) -> LearnerState:
        """Every tensor replaced by what `of` gives for its name and itself, weights first, in order."""
        weights = {name: of(name, tensor) for name, tensor in self.weights.items()}
        return LearnerState(weights, {name: of(name, tensor) for name, tensor in self.moments.items()})
