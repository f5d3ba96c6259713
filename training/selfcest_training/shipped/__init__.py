"""The policies that come with the package: the models of a run, by the names of its variants.

A folder here is laid out as a run's, so that limits and model come from its config.yaml as from any run's, and has a
manifest.json that says what made it. `python -m selfcest_training.shipped` writes one.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from selfcest_env.errors import ConfigError
from selfcest_env.stored import stored_as, to_stored
from selfcest_training.config_file import dump_config, load_stored_config
from selfcest_training.files import atomic_write

HERE = Path(__file__).parent
_WEIGHTS = "model.safetensors"


@stored_as(command="command", commit="commit", seed="seed", weights="weights")
@dataclass(frozen=True)
class ShippedManifest:
    """What made the models of a folder.

    Attributes:
        command: that trained them, in a checkout of `commit`.
        commit: of this project.
        seed: which of the run's seeds they are.
        weights: sha256 of each variant's model.safetensors, in hexadecimal digits.
    """

    command: str
    commit: str
    seed: int
    weights: dict[str, str]


def shipped_policies() -> dict[str, Path]:
    """Model folders by the names of their variants."""
    return {file.parents[2].name: file.parent for file in sorted(HERE.glob(f"*/*/seed*/model/{_WEIGHTS}"))}


def model_folder(text: str) -> Path:
    """The folder that a text names: that of a policy that comes with the package, else the path itself.

    Raises `ConfigError` if a model of one's own lies under the same name.
    """
    known, own = shipped_policies(), Path(text)
    if text in known and (own / "config.json").is_file():
        raise ConfigError(
            f"{text} is a policy that comes with the package, and a model lies in the folder {text} here; write "
            f"./{text} for the folder, or rename it"
        )
    return known.get(text, own)


def ship(run: Path, *, command: str, commit: str, seed: int, place: Path = HERE) -> Path:
    """Copy the models of a finished run under its name into `place`, instead of what was there. Returns the folder.

    Raises:
        ConfigError: a variant has no model of this seed yet. Nothing has changed then.
    """
    config = load_stored_config(run / "config.yaml")
    models = {variant: Path(variant, f"seed{seed}", "model") for variant in config.variants}
    for model in models.values():
        if not (run / model / _WEIGHTS).is_file():
            raise ConfigError(f"{run / model} holds no {_WEIGHTS}; finish the run first (--resume), or name its seed")
    folder = place / config.name
    with atomic_write(folder) as new:
        for model in models.values():
            shutil.copytree(run / model, new / model, copy_function=shutil.copyfile)  # weights are written for one user
        (new / "config.yaml").write_text(dump_config(config), encoding="utf-8")
        manifest = ShippedManifest(
            command, commit, seed, {variant: weights_digest(new / model) for variant, model in models.items()}
        )
        (new / "manifest.json").write_text(json.dumps(to_stored(manifest), indent=2) + "\n", encoding="utf-8")
    return folder


def weights_digest(model: Path) -> str:
    """As in a manifest, of a model's folder."""
    with (model / _WEIGHTS).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
