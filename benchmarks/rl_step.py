"""CPU-seconds of whole steps of RL with SmolLM2: sampling and update, of this checkout and of another one in turn.

    selfcest train -c training/configs/smollm2.yaml name=warm variants.delegating.rl.steps=0
    OMP_NUM_THREADS=1 python benchmarks/rl_step.py --model runs/warm/delegating/seed0/model [--base CHECKOUT]

The first command makes a warm-started model once. A step is the first one of RL of a shipped config, with its own
options: tasks, rollouts, credit, update, and the transfer of weights. Every measurement is a new process, because an
update changes the weights. With `--base` the processes of both checkouts alternate, each with the config of its own
checkout, and the last lines are ratios. Figures are the least of the repeats. CPU time of one thread is measured, so
that other work on the machine matters less. `--dtype float32` also compares the sampled tokens, which must be equal;
in bfloat16 another order of sums changes some.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("", "agents", "training")
PARTS = ("sampling", "update", "step")


def measure_step(model_folder: Path, config_path: Path, overrides: list[str], step: int) -> dict[str, Any]:
    """Make one step of RL in this process, from the weights in the folder."""
    # Of the checkout that is on the path of this process.
    import torch

    from selfcest_agents.language import language_of
    from selfcest_agents.player import ModelPlayer
    from selfcest_agents.samplers import make_sampler
    from selfcest_env.reward import make_reward
    from selfcest_training.config_file import load_config
    from selfcest_training.families import make_families
    from selfcest_training.learner.update import Learner
    from selfcest_training.run.account import JobAccount
    from selfcest_training.run.checkpoint import TrainState
    from selfcest_training.stages.crediting import assign_step_credit
    from selfcest_training.stages.registry import make_stages, make_task_menu
    from selfcest_training.trainer import Trainer

    torch.set_num_threads(1)
    config = load_config(config_path, overrides)
    variant = next(iter(config.variants))
    rl = config.variants[variant].rl
    language = language_of(config.model)
    model = language.load(0, model_folder)
    sampler = make_sampler(config.sampler.name, config.sampler.options).start(language, model)
    reward = make_reward(config.reward.name, **config.reward.options)
    player = ModelPlayer(language, sampler, limits=config.limits_of(variant), reward=reward)
    learner = Learner(
        model,
        rl.optimizer,
        pad_id=0,
        micro_batch_tokens=config.micro_batch_tokens,
        rows=config.rows,
        forward=config.forward,
    )
    menu = make_task_menu(config, variant, make_families(config.tasks, "train"))
    account = JobAccount(TrainState(), rl, config.compute_tokens)
    trainer = Trainer(player, sampler, learner, menu, make_stages(rl, "rl"), rl, account, seed=0)
    trainer.next_step = step
    start = time.process_time()
    # The transfer of the weights and the rollouts.
    batch = trainer._rollouts.take(step)
    sampled = time.process_time()
    credit = assign_step_credit(trainer.stages.credit, batch.train_groups, batch.replayed, None)
    metrics = trainer.update(batch, credit)
    updated = time.process_time()
    seconds = {"sampling": sampled - start, "update": updated - sampled, "step": updated - start}
    digest = hashlib.sha256()
    generated = 0
    for group in batch.groups:
        for episode in group.episodes:
            for _, turn in episode.turns():
                digest.update(str((turn.generation.prompt_ids, turn.generation.token_ids)).encode())
                generated += len(turn.generation.token_ids)
    return {
        "seconds": seconds,
        "generated": generated,
        "trained": account.state.trained_tokens,
        "tokens": digest.hexdigest()[:12],
        "grad_norm": metrics["grad_norm"],
    }


def measure(checkout: Path, arguments: list[str]) -> dict[str, Any]:
    """Measure a step of a checkout in a new process."""
    path = os.pathsep.join(str(checkout / package) for package in PACKAGES)
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    config = str(checkout / "training/configs/smollm2.yaml")
    command = [sys.executable, __file__, "--child", "--config", config, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of a warm-started model")
    parser.add_argument("--base", type=Path, help="another checkout, such as a git worktree of an older commit")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--step", type=int, default=0, help="number of the step, which draws the tasks")
    parser.add_argument("--tasks", type=int, default=4, help="tasks of the step, with eight episodes each")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--config", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        overrides = [
            f"sampler.options.dtype={options.dtype}",
            f"forward.autocast={options.dtype}",
            f"variants.delegating.rl.tasks_per_step={options.tasks}",
        ]
        print(json.dumps(measure_step(options.model, options.config, overrides, options.step)))
        return
    arguments = ["--model", str(options.model.resolve()), "--step", str(options.step), "--dtype", options.dtype]
    arguments += ["--tasks", str(options.tasks)]
    checkouts = {"here": ROOT} if options.base is None else {"base": options.base.resolve(), "here": ROOT}
    least: dict[str, dict[str, float]] = {name: {} for name in checkouts}
    for repeat in range(options.repeats):
        for name, checkout in checkouts.items():
            result = measure(checkout, arguments)
            for part, seconds in result["seconds"].items():
                least[name][part] = min(seconds, least[name].get(part, seconds))
            load = os.getloadavg()[0]
            print(f"repeat {repeat}, {name}, load {load:.1f}: {json.dumps(result)}", flush=True)
    for name, seconds in least.items():
        print(f"{name}: " + ", ".join(f"{part} {seconds[part]:.2f}" for part in PARTS) + " CPU-seconds")
    if "base" in least:
        ratios = [f"{part} {least['base'][part] / least['here'][part]:.2f}" for part in PARTS]
        print("base / here: " + ", ".join(ratios))


if __name__ == "__main__":
    main()
