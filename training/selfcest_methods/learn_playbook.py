"""Learn a playbook, or the memory of `atlas`, on tasks that a study does not play.

python -m selfcest_methods.learn_playbook STUDY.yaml --family FAMILY --playbook FILE.json [--strategy atlas]

The model must follow instructions.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    # `python -m` puts the working directory first, where a foreign file could shadow a module.
    del sys.path[0]

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, cast

import numpy as np
import typer

from selfcest_env.errors import ConfigError, SelfcestError, TaskError
from selfcest_env.local_modules import search_folder
from selfcest_env.reward import make_reward
from selfcest_env.seeding import stream_seed
from selfcest_env.tasks import TaskSource, source_of_config
from selfcest_env.tasks.splits import TRAIN, HashedSplit
from selfcest_env.types import Task
from selfcest_eval.play.config import StudyConfig, load_study
from selfcest_eval.play.instances import instances_of, source_of
from selfcest_eval.play.policies import make_policy
from selfcest_eval.play.strategies import Instance, PlayContext
from selfcest_methods.atlas import AtlasLearner, AtlasStep, Memory
from selfcest_methods.playbook import Gold, LearningStep, Playbook, PlaybookLearner, get_task_identity
from selfcest_training.families import TEST_FRACTION
from selfcest_training.faults import format_error_line, get_exit_code
from selfcest_training.files import replace_text

STRATEGIES = ("playbook", "atlas")


def learn_playbook(
    study: Path, family: str, tasks: int, file: Path, max_bullets: int, gold: str, seed: int, strategy: str = "playbook"
) -> Iterator[str]:
    """Learn from tasks of a study's family, write the file after each one, and yield a line per task.

    Tasks that the file was learned from already are not played again.

    Args:
        study: YAML config of the study.
        family: task family of the study.
        tasks: number of tasks.
        file: path of the playbook or memory, which may exist already.
        max_bullets: see `PlaybookLearner`.
        gold: see `PlaybookLearner`.
        seed: random seed of the tasks and of sampling.
        strategy: strategy that the file is for, `playbook` or `atlas`.

    Raises:
        ConfigError: the study has no such family or no policy, or an option of the learner is wrong.
        TaskError: too few tasks are left that the study does not play.
    """
    config = load_study(study)
    if strategy not in STRATEGIES:
        raise ConfigError(f"--strategy is {strategy}; expected one of {', '.join(STRATEGIES)}")
    playbook_learner = PlaybookLearner(max_bullets, cast(Gold, gold))  # raises for another text
    if family not in config.tasks:
        raise ConfigError(f"--family is {family}; expected one of {', '.join(config.tasks)}")
    if config.policy is None:
        raise ConfigError(f"{study} has no policy to learn with; set the key policy")
    spec = config.tasks[family]
    source = source_of_config(spec.name, spec.options, f"tasks.{family}")
    drawn_tasks = draw_distinct_tasks(source, seed, tasks, find_played_tasks(config, family))
    instances = [Instance(task, stream_seed("playbook", seed, i)) for i, task in enumerate(drawn_tasks)]
    policy = make_policy(config.policy.name, config.policy.options, "policy")
    learned: Playbook | Memory
    if strategy == "atlas":
        learned = Memory.from_file(file) if file.exists() else Memory()
    else:
        learned = Playbook.from_file(file) if file.exists() else Playbook()
    context = PlayContext(config.limits, config.temperature, source, policy.rules(config.limits).protocol)
    reward = make_reward(config.reward.name, **config.reward.options)
    num_learned = sum(get_task_identity(task, source) in learned.tasks for task in drawn_tasks)
    if num_learned:
        yield f"{num_learned} of {len(drawn_tasks)} tasks are in {file} and not played again"
    # The policy is loaded only if it is needed, because loading is slow.
    if num_learned == len(drawn_tasks):
        return
    with closing(policy.load(seed)) as player:
        steps: Iterator[LearningStep] | Iterator[AtlasStep]
        if isinstance(learned, Memory):
            steps = AtlasLearner().learn(instances, learned, context, player, reward)
        else:
            steps = playbook_learner.learn(instances, learned, context, player, reward)
        for step in steps:
            # The file is complete after every task, so that a stopped command loses one task at most.
            replace_text(file, step.to_json())
            yield step.describe()


def find_played_tasks(config: StudyConfig, family: str) -> set[str]:
    """Return the identities of all tasks of a family that a study plays.

    A study without `held_out` also plays tasks of the training part.
    """
    identities: set[str] = set()
    for eval_set in config.eval_sets:
        if eval_set.family == family:
            source = source_of(config, eval_set)
            identities.update(get_task_identity(task, source) for task in instances_of(config, eval_set, source))
    return identities


def draw_distinct_tasks(source: TaskSource, seed: int, count: int, excluded: set[str]) -> list[Task]:
    """Return the first `count` different tasks of the training part, in the order in which the seed draws them.

    Args:
        source: source of the tasks.
        seed: random seed of the draws.
        count: number of tasks.
        excluded: identities of tasks that are left out.

    Raises:
        TaskError: 100 draws for each task do not have so many different ones.
    """
    task_by_identity: dict[str, Task] = {}
    training_part = HashedSplit(source, TRAIN, TEST_FRACTION)
    rng = np.random.default_rng(stream_seed("playbook", seed))
    # A small source repeats its tasks, so the search must end.
    for _ in range(100 * count):
        task = training_part.draw(rng)
        identity = get_task_identity(task, source)
        if identity not in excluded:
            task_by_identity.setdefault(identity, task)
        if len(task_by_identity) == count:
            return list(task_by_identity.values())
    raise TaskError(
        f"--tasks is {count}, and {100 * count} draws had {len(task_by_identity)} different ones that training may "
        "draw and the study does not play; lower --tasks, or have the study play fewer (held_out, episodes)"
    )


def main(
    study: Annotated[Path, typer.Argument(help="YAML config of the study; its policy and limits are used.")],
    family: Annotated[str, typer.Option(help="Task family of the study to learn from.")],
    file: Annotated[
        Path, typer.Option("--playbook", help="JSON file of the playbook or memory; an existing one is extended.")
    ],
    tasks: Annotated[int, typer.Option(help="Number of tasks to learn from.")] = 20,
    max_bullets: Annotated[int, typer.Option(help="Largest number of bullets of a role in a playbook.")] = 30,
    gold: Annotated[
        str, typer.Option(help="Truth that the reflector of a playbook is told: none, verdict or answer.")
    ] = "verdict",
    seed: Annotated[int, typer.Option(help="Random seed of the tasks and of sampling.", min=0)] = 0,
    strategy: Annotated[str, typer.Option(help="Strategy that the file is for: playbook or atlas.")] = "playbook",
) -> None:
    """Learn a playbook on tasks that the study does not play, for the strategy `playbook`, or the memory of `atlas`.

    The command draws tasks from the training part of the family, which has four fifths of its instances. It leaves out
    tasks that the study plays. It writes the file after every task, and resumes from it.
    """
    if tasks < 1:
        raise ConfigError(f"--tasks is {tasks}; expected a whole number >= 1")
    if not file.absolute().parent.is_dir():
        raise ConfigError(f"--playbook is {file}, whose folder does not exist; make the folder, or name another file")
    for line in learn_playbook(study, family, tasks, file, max_bullets, gold, seed, strategy):
        print(line, flush=True)


def run() -> None:
    """Run the command. A user's error is printed as one line, with the exit codes of `selfcest`."""
    # As `selfcest`: the tables that Rich draws break words at 80 columns.
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(main)
    try:
        app()
    except (SelfcestError, OSError) as error:
        print(f"selfcest: {format_error_line(error)}", file=sys.stderr)
        raise SystemExit(int(get_exit_code(error))) from error


if __name__ == "__main__":
    search_folder(os.getcwd())
    run()
