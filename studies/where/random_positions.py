"""A reader that is trained at random positions, which is to help with contexts that are longer than in training.

Ruoss et al. 2023 (arXiv 2305.16843, section 3): in training the positions of a sequence are a sorted random subset of a
longer range, so that no distance within that range is new at test. In the paper the range is fixed, and positions are
random at test, too. Here play has consecutive positions, as half of the sequences in training. For the others the range
is drawn, from the length of the batch up to four times that. With a range up to 2,048 a tuning run was right on .12 of
its probe, with four times the length on .36 (seeds 101 and 102).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from selfcest_agents.tiny import TinyLanguage

MOST_STRETCH = 4  # largest range over the length of a sequence


@dataclass(frozen=True)
class RandomPositionLanguage(TinyLanguage):
    """The tiny model with random positions wherever it is trained, and positions from 0 on wherever it plays."""

    def load(self, seed: int, folder: Path | None = None, dtype: str | None = None) -> LlamaForCausalLM:
        model = super().load(seed, folder, dtype)
        generator = torch.Generator().manual_seed(seed)

        def randomize(_: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            # Only training needs gradients.
            if torch.is_grad_enabled() and kwargs.get("position_ids") is None:
                rows, length = kwargs["input_ids"].shape
                kwargs = {**kwargs, "position_ids": draw_positions(rows, length, self.max_positions, generator)}
            return args, kwargs

        model.model.register_forward_pre_hook(randomize, with_kwargs=True)
        return model


def draw_positions(rows: int, length: int, num_positions: int, generator: torch.Generator) -> Tensor:
    """Draw for each row a sorted random subset of a range from 0 on. Returns [rows, length].

    The size of the range is `length` for half of the rows. For the others it is log-uniform, up to `MOST_STRETCH` times
    the length, and no position is above `num_positions`.
    """
    spread = (2 * torch.rand(rows, 1, generator=generator) - 1).clamp(min=0)
    sizes = (length * MOST_STRETCH**spread).ceil()
    keys = torch.rand(rows, num_positions, generator=generator)
    keys = keys.masked_fill(torch.arange(num_positions) >= sizes, -1.0)
    return keys.topk(length, dim=1).indices.sort(dim=1).values
