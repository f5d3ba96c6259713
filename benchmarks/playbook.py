"""Learns a playbook with a model that follows instructions, on tasks that no study plays (see `evaluation.playbook`).

    python benchmarks/playbook.py study.yaml --family musique --tasks 40 --playbook musique.json

The study says who plays (a server or a model on a GPU), under which limits, and how answers are judged. Tasks are the
first --tasks that the seed draws from those that training may draw, none of the fifth that is held out from it, and
none that the study plays. So their truth may be told: whether the answer was right by default (--gold verdict), the
right one too (answer), or nothing (none). The playbook is written after every task; if the file is there, the same
command goes on with the tasks that it was not learned from yet. Then play it by `strategies: {playbook: {options:
{file: musique.json}}}`.

Exit codes are those of `selfcest` (docs/faults.md): 2 for what was typed or configured, in one line.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from contextlib import closing
from pathlib import Path

import numpy as np

from selfcest_env.errors import ConfigError, TaskError
from selfcest_env.reward import make_reward
from selfcest_env.seeding import stream_seed
from selfcest_env.tasks import TaskSource, source_of_config
from selfcest_env.tasks.splits import TRAIN, HashedSplit
from selfcest_env.types import Task
from selfcest_eval.play.config import StudyConfig, load_study
from selfcest_eval.play.instances import instances_of, source_of
from selfcest_eval.play.policies import make_policy
from selfcest_eval.play.strategies import Instance, Seat
from selfcest_methods.playbook import Learner, Playbook, name_of
from selfcest_training.families import TEST_FRACTION
from selfcest_training.faults import Exit, exit_code, line_of
from selfcest_training.files import replace_text


def learn() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path)
    parser.add_argument("--family", required=True)
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--playbook", type=Path, required=True)
    parser.add_argument("--most", type=int, default=30, help="bullets of a role")
    parser.add_argument("--gold", default="verdict", help="none, verdict or answer: what the reflector is told")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    if chosen.tasks < 1:
        raise ConfigError(f"--tasks is {chosen.tasks}; expected a whole number >= 1")
    if not chosen.playbook.absolute().parent.is_dir():
        raise ConfigError(f"--playbook is {chosen.playbook}, whose folder does not exist; make it, or name another")
    config, learner = load_study(chosen.study), Learner(chosen.most, chosen.gold)
    if chosen.family not in config.tasks:
        raise ConfigError(f"--family is {chosen.family}; expected one of {', '.join(config.tasks)}")
    if config.policy is None:
        raise ConfigError(f"{chosen.study} has no policy, and somebody has to play; set policy")
    spec = config.tasks[chosen.family]
    source = source_of_config(spec.name, spec.options, f"tasks.{chosen.family}")
    tasks = distinct(source, chosen.seed, chosen.tasks, played(config, chosen.family))
    instances = [Instance(task, stream_seed("playbook", chosen.seed, i)) for i, task in enumerate(tasks)]
    policy = make_policy(config.policy.name, config.policy.options, "policy")
    playbook = Playbook.from_file(chosen.playbook) if chosen.playbook.exists() else Playbook()
    seat = Seat(config.limits, config.temperature, source, policy.rules(config.limits).protocol)
    reward = make_reward(config.reward.name, **config.reward.options)
    had = sum(name_of(task, source) in playbook.tasks for task in tasks)
    if had:
        print(f"{had} of {len(tasks)} tasks are in {chosen.playbook} and not played again")
    if had == len(tasks):
        return
    with closing(policy.load(chosen.seed)) as player:
        for step in learner.learn(instances, playbook, seat, player, reward):
            replace_text(chosen.playbook, step.playbook.to_json())
            bullets = f"{len(step.playbook.root)} for roots, {len(step.playbook.clone)} for clones"
            displaced = f", {step.displaced} made room" if step.displaced else ""
            unread = f", could not read the {', '.join(step.unread)}" if step.unread else ""
            right = "right" if step.correct else "wrong"
            print(f"{step.task_id}: {right}, {step.tokens} tokens; {bullets}{displaced}{unread}")


def played(config: StudyConfig, family: str) -> set[str]:
    """What a study plays of a family. Of a file that is whatever its cells say, if it is not `held_out`."""
    sources = [(cell, source_of(config, cell)) for cell in config.cells if cell.family == family]
    return {name_of(task, source) for cell, source in sources for task in instances_of(config, cell, source)}


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


def main() -> None:
    try:
        learn()
    except Exception as error:
        if exit_code(error) is Exit.DEFECT:
            traceback.print_exc()
        print(f"playbook: {line_of(error)}", file=sys.stderr)
        raise SystemExit(int(exit_code(error))) from error


if __name__ == "__main__":
    main()
