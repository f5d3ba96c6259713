"""The policies that come with the package: models of a run, by the names of its variants.

A folder here has the layout of a run, so limits and model come from its config.yaml. Its manifest.json names the
command that made it. `python -m selfcest_training.shipped` writes a folder.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from selfcest_env.errors import ConfigError
from selfcest_env.stored import stored_as, to_stored
from selfcest_training.config_file import dump_config, load_stored_config
from selfcest_training.files import atomic_write, hash_file

HERE = Path(__file__).parent
_WEIGHTS = "model.safetensors"


@stored_as(command="command", commit="commit", seed="seed", weights="weights")
@dataclass(frozen=True)
class ShippedManifest:
    """The origin of the models in a folder.

    Attributes:
        command: the command that trained them, in a checkout of `commit`.
        commit: commit of this project.
        seed: the run's seed of the models.
        weights: SHA-256 of each variant's model.safetensors, in hexadecimal digits.
    """

    command: str
    commit: str
    seed: int
    weights: dict[str, str]


def list_shipped_policies() -> dict[str, Path]:
    """List the model folders by the names of their variants."""
    return {file.parents[2].name: file.parent for file in sorted(HERE.glob(f"*/*/seed*/model/{_WEIGHTS}"))}


def find_model_folder(text: str) -> Path:
    """Find the folder of a model: that of a shipped policy with this name, or the path itself.

    Raises:
        ConfigError: there is both a shipped policy and a folder of a model with this name.
    """
    shipped = list_shipped_policies()
    path = Path(text)
    if text in shipped and (path / "config.json").is_file():
        raise ConfigError(
            f"{text} is a policy that comes with the package, and also a folder with a model; write ./{text} for the "
            "folder, or rename it"
        )
    return shipped.get(text, path)


def ship(run: Path, *, command: str, commit: str, seed: int, place: Path = HERE) -> Path:
    """Copy the models of a finished run into a folder of its name in `place`, and return the folder.

    An old folder of this name is replaced.

    Raises:
        ConfigError: a variant has no model of this seed. Nothing is changed.
    """
    config = load_stored_config(run / "config.yaml")
    models = {variant: Path(variant, f"seed{seed}", "model") for variant in config.variants}
    for model in models.values():
        if not (run / model / _WEIGHTS).is_file():
            raise ConfigError(f"{run / model} holds no {_WEIGHTS}; finish the run first (--resume), or name its seed")
    folder = place / config.name
    with atomic_write(folder) as new:
        for model in models.values():
            # copyfile, because weights are written with permissions for one user.
            shutil.copytree(run / model, new / model, copy_function=shutil.copyfile)
        (new / "config.yaml").write_text(dump_config(config), encoding="utf-8")
        manifest = ShippedManifest(
            command, commit, seed, {variant: hash_file(new / model / _WEIGHTS) for variant, model in models.items()}
        )
        (new / "manifest.json").write_text(json.dumps(to_stored(manifest), indent=2) + "\n", encoding="utf-8")
    return folder
