"""Measure agent-steps per second of Stable-Baselines3's PPO through our `SymbolicVecEnv` and through SuperSuit.

Both have the same game, hyper-parameters, network and number of agent rows, in one process with one thread, and take
turns. `collect` is play with the forward passes of the policy, `learn` is all of PPO.

    OMP_NUM_THREADS=1 python benchmarks/sb3_adapters.py --markdown table.md --json table.json
"""

from __future__ import annotations

import json
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import supersuit
import torch
import typer
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecEnv

from selfcest_env import symbolic_v0
from selfcest_env.adapters.sb3 import SymbolicVecEnv
from selfcest_env.symbolic import make_rules

ITEMS = 6
CLONES = 4
GAME: dict[str, Any] = {"task": "chain", "task_options": {"items": ITEMS}, "max_clones": CLONES}


@dataclass(frozen=True)
class Measurement:
    """Agent-steps per second, by processor time and by the clock."""

    adapter: str
    phase: str
    per_cpu_second: float
    per_second: float


def own(games: int) -> VecEnv:
    return SymbolicVecEnv(make_rules(**GAME), games, per="agent")


def through_supersuit(games: int) -> VecEnv:
    env = symbolic_v0.parallel_env(**GAME, population="fixed", observation_mode="flat")
    rows = supersuit.pettingzoo_env_to_vec_env_v1(env)
    batch: VecEnv = supersuit.concat_vec_envs_v1(rows, games, num_cpus=0, base_class="stable_baselines3")
    return batch


ADAPTERS: dict[str, Callable[[int], VecEnv]] = {"SymbolicVecEnv": own, "SuperSuit": through_supersuit}


def make_model(make_env: Callable[[int], VecEnv], games: int, rollout: int, epochs: int) -> PPO:
    """PPO on rollouts of `rollout` steps per row, four mini-batches per epoch; `learn` has been prepared."""
    env = make_env(games)
    model = PPO(
        "MlpPolicy", env, n_steps=rollout, batch_size=rollout * env.num_envs // 4, n_epochs=epochs, device="cpu"
    )
    # Sets up logging, resets the environment and warms every path up.
    return model.learn(rollout * env.num_envs)


def measure(name: str, model: PPO, steps: int, *, learn: bool) -> Measurement:
    """Time at least `steps` agent-steps; without `learn` only their collection."""
    env = model.get_env()
    assert env is not None
    _, callback = model._setup_learn(steps, None, reset_num_timesteps=True)
    start_clock = time.perf_counter()
    start_cpu = time.process_time()
    while model.num_timesteps < steps:
        model.collect_rollouts(env, callback, model.rollout_buffer, n_rollout_steps=model.n_steps)
        if learn:
            model.train()
    cpu = time.process_time() - start_cpu
    clock = time.perf_counter() - start_clock
    phase = "learn" if learn else "collect"
    return Measurement(name, phase, model.num_timesteps / cpu, model.num_timesteps / clock)


def table(measured: list[Measurement]) -> str:
    """Medians and their ratios, as Markdown."""
    lines = [
        "| phase | adapter | agent-steps/s (CPU time) | agent-steps/s (wall) | ratio (CPU time) | ratio (wall) |",
        "|---|---|---|---|---|---|",
    ]
    for phase in ("collect", "learn"):
        speeds: dict[str, tuple[float, float]] = {}
        for name in ADAPTERS:
            rows = [row for row in measured if (row.adapter, row.phase) == (name, phase)]
            cpu_speed = statistics.median(row.per_cpu_second for row in rows)
            wall_speed = statistics.median(row.per_second for row in rows)
            speeds[name] = (cpu_speed, wall_speed)
        for name, (cpu, wall) in speeds.items():
            slow_cpu, slow_wall = speeds["SuperSuit"]
            lines.append(
                f"| {phase} | {name} | {cpu:,.0f} | {wall:,.0f} | {cpu / slow_cpu:.1f} | {wall / slow_wall:.1f} |"
            )
    return "\n".join(lines)


def main(
    games: Annotated[int, typer.Option(help="Games side by side; each has five agents.")] = 512,
    rollout: Annotated[int, typer.Option(help="Steps per row and rollout.")] = 16,
    epochs: Annotated[int, typer.Option(help="Passes of PPO over each rollout.")] = 1,
    steps: Annotated[int, typer.Option(help="Agent-steps per measurement, at least.")] = 120_000,
    repeats: Annotated[int, typer.Option(help="Measurements of each kind, turn about.")] = 3,
    markdown: Annotated[Path | None, typer.Option(help="Write the table here.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every measurement here.")] = None,
) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    models = {name: make_model(make_env, games, rollout, epochs) for name, make_env in ADAPTERS.items()}
    measured: list[Measurement] = []
    # The adapters take turns, so that a slow minute of the machine hits all of them.
    for _ in range(repeats):
        for learn in (False, True):
            for name, model in models.items():
                measured.append(measure(name, model, steps, learn=learn))
    text = (
        f"{games} games of {1 + CLONES} agents, {rollout} steps per rollout, {epochs} epoch(s), one thread.\n\n"
        + table(measured)
    )
    print(text)
    if markdown is not None:
        markdown.write_text(text + "\n", encoding="utf-8")
    if json_file is not None:
        json_file.write_text(json.dumps([asdict(row) for row in measured], indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
