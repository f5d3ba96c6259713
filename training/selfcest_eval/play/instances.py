"""The instances of an eval set: distinct tasks that no training has drawn, the same for every strategy and seed."""

from __future__ import annotations

import numpy as np

from selfcest_env.errors import TaskError
from selfcest_env.plugin import PlugIn
from selfcest_env.seeding import stream_seed
from selfcest_env.tasks import TaskSource, source_of_config
from selfcest_env.tasks.finite import FiniteSource
from selfcest_env.tasks.splits import TEST, HashedSplit, part_of
from selfcest_env.types import Task
from selfcest_eval.play.config import StudyConfig
from selfcest_training.config import EvalSet
from selfcest_training.families import TEST_FRACTION


def source_spec(config: StudyConfig, eval_set: EvalSet) -> PlugIn:
    """Return the source of the eval set's family, with the options of the eval set."""
    spec = config.tasks[eval_set.family]
    return PlugIn(spec.name, {**spec.options, **eval_set.options})


def source_of(config: StudyConfig, eval_set: EvalSet) -> TaskSource:
    """Return the task source of an eval set, with its expert."""
    spec = source_spec(config, eval_set)
    return source_of_config(spec.name, spec.options, f"tasks.{eval_set.family}")


def instances_of(config: StudyConfig, eval_set: EvalSet, source: TaskSource) -> list[Task]:
    """Return the tasks of an eval set.

    A finite source gives all its tasks, or `episodes` of them that `task_seed` draws. With `held_out` only the tasks
    that training never draws are used. Any other source gives distinct tasks that training never draws.

    Raises:
        TaskError: the source has fewer than `episodes` such tasks.
    """
    rng = np.random.default_rng(stream_seed("evaluation", config.task_seed, eval_set.family, eval_set.size))
    place = f"eval set {eval_set.family} {eval_set.size}"
    if isinstance(source, FiniteSource):
        tasks = list({task.task_id: task for task in source.tasks()}.values())
        if config.held_out:
            tasks = [task for task in tasks if part_of(task, TEST_FRACTION, source.identity(task)) == TEST]
        if config.episodes is None:
            return tasks
        if len(tasks) < config.episodes:
            raise TaskError(
                f"episodes is {config.episodes}, but {place} has {len(tasks)} tasks"
                + (" that are held out" if config.held_out else "")
                + "; lower episodes, or set it to null for all there are"
            )
        # The drawn tasks keep the order of the source.
        return [tasks[int(i)] for i in sorted(rng.permutation(len(tasks))[: config.episodes])]
    if config.episodes is None:
        raise TaskError(f"episodes is null, but {place} has endlessly many tasks; set episodes to a number")
    return _draw_distinct(HashedSplit(source, TEST, TEST_FRACTION), config.episodes, rng, place)


def _draw_distinct(source: TaskSource, num_tasks: int, rng: np.random.Generator, place: str) -> list[Task]:
    tasks: dict[str, Task] = {}
    for _ in range(100 * num_tasks):
        task = source.draw(rng)
        tasks.setdefault(task.task_id, task)
        if len(tasks) == num_tasks:
            return list(tasks.values())
    raise TaskError(
        f"{place} has about {len(tasks)} distinct test instances, and episodes is {num_tasks}; lower episodes or widen "
        "the eval set"
    )
