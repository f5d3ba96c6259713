"""Checks of a model's weights: their file format, and whether their device computes fast in their dtype."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from selfcest_env.errors import ConfigError

if TYPE_CHECKING:
    import torch

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def check_no_pickle(folder: Path) -> None:
    """Raise `ConfigError` if a model's weights are a pickle, which can run code, and there are no safetensors."""
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    pickles = [file for file in files if file.suffix in _PICKLES and file.name != "training_args.bin"]
    if pickles and not any(file.suffix == ".safetensors" for file in files):
        raise ConfigError(
            f"the weights in {folder} are a pickle ({pickles[0].name}), which can run code when it is read; save them "
            "as safetensors, or if you trust them set allow_pickle: true in the options of the model 'chat'"
        )


def warn_of_slow_bfloat16(device: torch.device, advice: str) -> None:
    """Warn that this CPU has no instructions for bfloat16, in which its products take many times as long as in float32.

    oneDNN says whether it computes bfloat16 on this CPU. Builds of torch without oneDNN, and CPUs with AVX-512 but
    without its bfloat16, give no warning.

    Args:
        device: where the model computes in bfloat16. There is no warning for other devices than a CPU.
        advice: how the user sets float32; the end of the message.
    """
    import torch

    if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        text = "this CPU has no instructions for bfloat16, in which it computes many times slower than in float32"
        warnings.warn(f"{text}; {advice}", stacklevel=3)
