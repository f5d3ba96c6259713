"""Sends the metrics of a job to TensorBoard, Weights & Biases and trackio, beside `metrics.jsonl`.

No checkpoint depends on them. After a resume they hold the steps since the checkpoint twice.
"""

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
    """The job whose metrics a board receives.

    Attributes:
        run: name of the run.
        name: name of the job, as `VARIANT/seedN`.
        folder: the job's folder.
        config: the run's config as plain values.
    """

    run: str
    name: str
    folder: Path
    config: Mapping[str, Any]


class Board(Protocol):
    """Receives the metrics of one job."""

    def write(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        """Write a row. Rows of a stage come in order, and every stage counts its steps from 0."""
        ...

    def close(self) -> None: ...


class TensorBoard:
    """Writes files in the job's folder `tensorboard`."""

    def __init__(self, job: BoardJob) -> None:
        # Imported here, because it is slow to import.
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(job.folder / "tensorboard"))

    def write(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(f"{stage}/{name}", value, step)

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """Writes a run of W&B for every job, in one group per run. The environment variables of W&B choose the server.

    A resumed job continues its run of W&B, whose id is in the job's folder `wandb`. Offline files become one run when
    they are synced.

    Raises:
        ConfigError: W&B needs its server, and the user is not logged in.
        InfrastructureError: the server does not answer.
    """

    def __init__(self, job: BoardJob) -> None:
        wandb = importlib.import_module("wandb")
        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "selfcest"),
                group=job.run,
                name=job.name,
                id=_read_or_make_id(job.folder / "wandb" / "id"),
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


def _read_or_make_id(path: Path) -> str:
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, uuid.uuid4().hex)
    return path.read_text(encoding="utf-8").strip()


class Trackio:
    """Writes a run of trackio for every job, in one project per run. The environment variables of trackio choose the
    folder."""

    def __init__(self, job: BoardJob) -> None:
        self._trackio = importlib.import_module("trackio")
        # Output of trackio would disturb the display of the jobs.
        with redirect_stdout(StringIO()):
            self._run = self._trackio.init(
                project=job.run, name=job.name, config=dict(job.config), resume="allow", embed=False, auto_log_gpu=False
            )

    def write(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        self._run.log({f"{stage}/{name}": value for name, value in {"step": step, **values}.items()})

    def close(self) -> None:
        with redirect_stdout(StringIO()):
            # Not the method of the run, which trackio would call again when the process ends.
            self._trackio.finish()


BOARDS: Mapping[BoardName, Callable[[BoardJob], Board]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "trackio": Trackio,
}


def check_boards(names: Sequence[BoardName]) -> None:
    """Raise `ConfigError` for a board whose package is not installed."""
    for name in names:
        if find_spec(name) is None:
            raise ConfigError(f"logging names {name}, which is not installed: pip install {name}, or leave it out")
