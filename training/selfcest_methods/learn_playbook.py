"""Learns a playbook on tasks that no study plays, with a model that follows instructions.

python -m selfcest_methods.learn_playbook STUDY.yaml --family FAMILY --playbook FILE.json
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # the working directory, which may be a stranger's folder

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
from selfcest_methods.playbook import Gold, Playbook, PlaybookLearner, name_of
from selfcest_training.families import TEST_FRACTION
from selfcest_training.faults import exit_code, line_of
from selfcest_training.files import replace_text


def learn_playbook(study: Path, family: str, tasks: int, file: Path, most: int, gold: str, seed: int) -> Iterator[str]:
    """Learn from so many tasks of a study's family and write the playbook after each; yields a line per task.

    Tasks that the playbook in the file was learned from already are not played again.

    Raises:
        ConfigError: the study has no such family or no policy, or an option is none of the learner's.
        TaskError: there are not so many tasks that the study does not play.
    """
    config = load_study(study)
    learner = PlaybookLearner(most, cast(Gold, gold))  # which checks it
    if family not in config.tasks:
        raise ConfigError(f"--family is {family}; expected one of {', '.join(config.tasks)}")
    if config.policy is None:
        raise ConfigError(f"{study} has no policy, and somebody has to play; set policy")
    spec = config.tasks[family]
    source = source_of_config(spec.name, spec.options, f"tasks.{family}")
    drawn = distinct(source, seed, tasks, played(config, family))
    instances = [Instance(task, stream_seed("playbook", seed, i)) for i, task in enumerate(drawn)]
    policy = make_policy(config.policy.name, config.policy.options, "policy")
    playbook = Playbook.from_file(file) if file.exists() else Playbook()
    context = PlayContext(config.limits, config.temperature, source, policy.rules(config.limits).protocol)
    reward = make_reward(config.reward.name, **config.reward.options)
    had = sum(name_of(task, source) in playbook.tasks for task in drawn)
    if had:
        yield f"{had} of {len(drawn)} tasks are in {file} and not played again"
    if had == len(drawn):
        return
    with closing(policy.load(seed)) as player:
        for step in learner.learn(instances, playbook, context, player, reward):
            replace_text(file, step.playbook.to_json())
            bullets = f"{len(step.playbook.root)} for roots, {len(step.playbook.clone)} for clones"
            displaced = f", {step.displaced} made room" if step.displaced else ""
            unread = f", could not read the {', '.join(step.unread)}" if step.unread else ""
            right = "right" if step.correct else "wrong"
            yield f"{step.task_id}: {right}, {step.tokens} tokens; {bullets}{displaced}{unread}"


def played(config: StudyConfig, family: str) -> set[str]:
    """What a study plays of a family. Of a file that is whatever its eval sets say, if it is not `held_out`."""
    sources = [(eval_set, source_of(config, eval_set)) for eval_set in config.eval_sets if eval_set.family == family]
    return {name_of(task, source) for eval_set, source in sources for task in instances_of(config, eval_set, source)}


def distinct(source: TaskSource, seed: int, wanted: int, without: set[str]) -> list[Task]:
    """The first different tasks that training may draw, in the order in which this seed draws them.

    Raises:
        TaskError: there are not so many.
    """
    found: dict[str, Task] = {}
    drawn, rng = HashedSplit(source, TRAIN, TEST_FRACTION), np.random.default_rng(stream_seed("playbook", seed))
    for _ in range(100 * wanted):
        task = drawn.draw(rng)
        if (name := name_of(task, source)) not in without:
            found.setdefault(name, task)
        if len(found) == wanted:
            return list(found.values())
    raise TaskError(
        f"--tasks is {wanted}, and {100 * wanted} draws had {len(found)} different ones that training may draw and the "
        "study does not play; lower it, or have the study play fewer (held_out, episodes)"
    )


def main(
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
    if tasks < 1:
        raise ConfigError(f"--tasks is {tasks}; expected a whole number >= 1")
    if not file.absolute().parent.is_dir():
        raise ConfigError(f"--playbook is {file}, whose folder does not exist; make it, or name another")
    for line in learn_playbook(study, family, tasks, file, most, gold, seed):
        print(line, flush=True)


def run() -> None:
    """Entry point: an error of the user is one line and an exit code, as for the commands of `selfcest`."""
    try:
        typer.run(main)
    except (SelfcestError, OSError) as error:
        print(f"selfcest: {line_of(error)}", file=sys.stderr)
        raise SystemExit(int(exit_code(error))) from error


if __name__ == "__main__":
    search_folder(os.getcwd())
    run()
