"""Where the numbers of a job go beside `metrics.jsonl`: TensorBoard, Weights & Biases, trackio. No checkpoint counts on
any of them: after a resume they hold the steps since the checkpoint twice."""

from __future__ import annotations

import importlib
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any, Protocol

from selfcest_env.errors import ConfigError, InfrastructureError
from selfcest_training.config import BoardName
from selfcest_training.files import write_text


@dataclass(frozen=True)
class BoardJob:
    """Whose numbers they are.

    Attributes:
        run: name of the run.
        name: of the job, as `VARIANT/seedN`.
        folder: of the job.
        config: of the run, as plain values.
    """

    run: str
    name: str
    folder: Path
    config: Mapping[str, Any]


class Board(Protocol):
    """Takes the numbers of one job."""

    def write(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        """Rows come in order within a stage; every stage counts its steps from 0."""
        ...

    def close(self) -> None: ...


class TensorBoard:
    """Files in the job's folder `tensorboard`."""

    def __init__(self, job: BoardJob) -> None:
        from torch.utils.tensorboard import SummaryWriter  # slow to import, and only a job writes

        self._writer = SummaryWriter(str(job.folder / "tensorboard"))

    def write(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(f"{stage}/{name}", value, step)

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """A run of W&B for every job, in one group for all of them; its own environment variables say where it goes.

    A job that is resumed goes on in its run of W&B, whose id is in the job's folder `wandb`; offline files are one run
    once they are synced.

    Raises:
        ConfigError: W&B is asked to reach its server, and nobody is logged in.
        InfrastructureError: the server does not answer.
    """

    def __init__(self, job: BoardJob) -> None:
        wandb = importlib.import_module("wandb")
        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "selfcest"),
                group=job.run,
                name=job.name,
                id=_kept_id(job.folder / "wandb" / "id"),
                resume="allow",
                dir=str(job.folder),
                config=dict(job.config),
                settings=wandb.Settings(console="off", silent=True),
            )
        except wandb.errors.CommError as error:
            raise InfrastructureError(f"W&B: {error}; with WANDB_MODE=offline it needs no server") from error
        except wandb.errors.Error as error:
            raise ConfigError(f"W&B: {error}; log in (`wandb login`) or set WANDB_MODE=offline") from error
        for stage in ("warmstart", "probe", "rl"):
            self._run.define_metric(f"{stage}/*", step_metric=f"{stage}/step")

    def write(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        self._run.log({f"{stage}/{name}": value for name, value in {"step": step, **values}.items()})

    def close(self) -> None:
        self._run.finish()


def _kept_id(path: Path) -> str:
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, uuid.uuid4().hex)
    return path.read_text(encoding="utf-8").strip()


class Trackio:
    """A run of trackio for every job, in a project for all of them; its own environment variables say where it lies."""

    def __init__(self, job: BoardJob) -> None:
        self._trackio = importlib.import_module("trackio")
        with redirect_stdout(StringIO()):  # which the display of all jobs draws on
            self._run = self._trackio.init(
                project=job.run, name=job.name, config=dict(job.config), resume="allow", embed=False, auto_log_gpu=False
            )

    def write(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        self._run.log({f"{stage}/{name}": value for name, value in {"step": step, **values}.items()})

    def close(self) -> None:
        with redirect_stdout(StringIO()):
            self._trackio.finish()  # the run's own method would be called again when the process ends


BOARDS: Mapping[BoardName, Callable[[BoardJob], Board]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "trackio": Trackio,
}


def check_boards(names: Sequence[BoardName]) -> None:
    """Raise `ConfigError` for one whose package is not installed."""
    for name in names:
        if find_spec(name) is None:
            raise ConfigError(f"logging names {name}, which is not installed: pip install {name}, or leave it out")
