"""`selfcest playbook`: learns a playbook with a model that follows instructions (see `evaluation.playbook`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfcest_env.errors import ConfigError


def playbook(
    study: Annotated[Path, typer.Argument(help="YAML config of the study that says who plays, with which limits.")],
    family: Annotated[str, typer.Option(help="The family of the study's tasks to learn from.")],
    file: Annotated[Path, typer.Option("--playbook", help="The file that the playbook is written into.")],
    tasks: Annotated[int, typer.Option(help="Number of tasks to learn from.")] = 20,
    most: Annotated[int, typer.Option(help="Largest number of bullets of a role.")] = 30,
    gold: Annotated[str, typer.Option(help="none, verdict or answer: what the reflector is told.")] = "verdict",
    seed: Annotated[int, typer.Option(help="Random seed of the tasks and of sampling.", min=0)] = 0,
) -> None:
    """Learn a playbook on tasks that the study does not play, for the strategy `playbook`.

    Tasks are drawn from those that training may draw, without the fifth that is held out from it and without those
    that the study plays. The playbook is written after every task; the same command resumes from the file.
    """
    from selfcest_training.evaluation.playbook_tasks import learn_playbook

    if tasks < 1:
        raise ConfigError(f"--tasks is {tasks}; expected a whole number >= 1")
    if not file.absolute().parent.is_dir():
        raise ConfigError(f"--playbook is {file}, whose folder does not exist; make it, or name another")
    for line in learn_playbook(study, family, tasks, file, most, gold, seed):
        print(line, flush=True)
