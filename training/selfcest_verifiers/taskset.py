"""The task sources of this project as a taskset of verifiers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import verifiers.v1 as vf
from pydantic import Field

from selfcest_env.errors import TaskError
from selfcest_env.seeding import stream_seed
from selfcest_env.structure import structure, to_builtins
from selfcest_env.tasks import make_source
from selfcest_env.types import Task


class DelegationTaskData(vf.TaskData):  # type: ignore[misc]  # verifiers is not installed where types are checked
    """A task as verifiers stores and sends it.

    Attributes:
        game: JSON values of the `selfcest_env.types.Task`. `prompt` repeats its text for viewers.
    """

    game: dict[str, Any]


class DelegationTask(vf.Task[DelegationTaskData]):  # type: ignore[misc]
    """A task of the game. `DelegationEnv` rewards it, since only the whole tree has a reward."""

    @property
    def key(self) -> str:
        return self.game.task_id

    @property
    def game(self) -> Task:
        return structure(self.data.game, Task, place="task.game", error=TaskError)


class DelegationTasksetConfig(vf.TasksetConfig):  # type: ignore[misc]
    """Options of the taskset.

    Attributes:
        source: task source, a registered name or `package.module:Class`.
        source_options: options of the source.
        num_tasks: number of tasks to draw.
        seed: random seed of the tasks.
    """

    source: str = "arithmetic"
    source_options: dict[str, Any] = Field(default_factory=dict)
    num_tasks: int = Field(100, ge=1)
    seed: int = 0


class DelegationTaskset(vf.Taskset[DelegationTask, DelegationTasksetConfig]):  # type: ignore[misc]
    """Draws tasks of a source. Task number i depends on the seed and on i only."""

    def load(self) -> Iterator[DelegationTask]:
        config = self.config
        source = make_source(config.source, **config.source_options)
        for index in range(config.num_tasks):
            game = source.draw(np.random.default_rng(stream_seed("verifiers", config.seed, index)))
            yield DelegationTask(DelegationTaskData(prompt=game.prompt, game=to_builtins(game)), config.task)
