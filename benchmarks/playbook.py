"""Learns a playbook with a model that follows instructions, on tasks that no study plays (see `evaluation.playbook`).

    python benchmarks/playbook.py study.yaml --family musique --tasks 40 --playbook musique.json

The study says who plays (a server or a model on a GPU), under which limits, and how answers are judged. The playbook is
written after every task; if the file is there, learning goes on from it. Then play it by `strategies: {playbook:
{options: {file: musique.json}}}`. Tasks are those that training may draw, and none
of the fifth that is held out from it.
"""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path

import numpy as np

from selfcest_env.errors import ConfigError
from selfcest_env.reward import make_reward
from selfcest_env.seeding import stream_seed
from selfcest_env.tasks import source_of_config
from selfcest_env.tasks.splits import TRAIN, HashedSplit
from selfcest_training.evaluation.config import load_study
from selfcest_training.evaluation.playbook import Learner, Playbook
from selfcest_training.evaluation.policies import make_policy
from selfcest_training.evaluation.strategies import Instance, Seat
from selfcest_training.families import TEST_FRACTION
from selfcest_training.files import replace_text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path)
    parser.add_argument("--family", required=True)
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--playbook", type=Path, required=True)
    parser.add_argument("--most", type=int, default=30, help="bullets of a role")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    config, learner = load_study(chosen.study), Learner(chosen.most)
    if chosen.family not in config.tasks or config.policy is None:
        raise ConfigError(f"--family is {chosen.family}; expected one of {', '.join(config.tasks)}, and a policy")
    spec = config.tasks[chosen.family]
    source = source_of_config(spec.name, spec.options, f"tasks.{chosen.family}")
    drawn, rng = HashedSplit(source, TRAIN, TEST_FRACTION), np.random.default_rng(stream_seed("playbook", chosen.seed))
    tasks = [drawn.draw(rng) for _ in range(chosen.tasks)]
    instances = [Instance(task, stream_seed("playbook", chosen.seed, i)) for i, task in enumerate(tasks)]
    policy = make_policy(config.policy.name, config.policy.options, "policy")
    playbook = Playbook.from_file(chosen.playbook) if chosen.playbook.exists() else Playbook()
    seat = Seat(config.limits, config.temperature, source, policy.rules(config.limits).protocol)
    reward = make_reward(config.reward.name, **config.reward.options)
    with closing(policy.load(chosen.seed)) as player:
        for step in learner.learn(instances, playbook, seat, player, reward):
            replace_text(chosen.playbook, step.playbook.to_json())
            bullets = f"{len(step.playbook.root)} for roots, {len(step.playbook.clone)} for clones"
            unread = f", could not read the {', '.join(step.unread)}" if step.unread else ""
            print(f"{step.task_id}: {'right' if step.correct else 'wrong'}, {step.tokens} tokens; {bullets}{unread}")


if __name__ == "__main__":
    main()
