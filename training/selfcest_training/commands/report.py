"""`selfcest report`: the report of a run or of a study, again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from selfcest_env.errors import ConfigError
from selfcest_training.commands.study import print_study
from selfcest_training.config_file import load_config
from selfcest_training.evaluation.config import load_study
from selfcest_training.lock import locked
from selfcest_training.run.experiment import print_report


def report_folder(folder: Path, console: Console) -> None:
    """Write and print what a folder's stored results say, wherever it has been moved to.

    Raises:
        ConfigError: the folder holds neither a run nor a study, or another process writes into it.
    """
    study = (folder / "study.yaml").is_file()
    if not study and not (folder / "config.yaml").is_file():
        raise ConfigError(f"{folder} holds no config.yaml of a run and no study.yaml; give the folder of one of them")
    with locked(folder):
        _report(folder, study, console)


def _report(folder: Path, study: bool, console: Console) -> None:
    output, name = str(folder.parent), folder.resolve().name
    if study:
        print_study(replace(load_study(folder / "study.yaml"), output=output, name=name), console)
    else:
        print_report(replace(load_config(folder / "config.yaml"), output=output, name=name), console)
