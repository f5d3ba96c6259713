"""A check of the file format of a model's weights."""

from __future__ import annotations

from pathlib import Path

from selfcest_env.errors import ConfigError

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
