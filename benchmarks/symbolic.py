"""Speed of the symbolic environment, as ratios to peers measured in the same run.

    pip install -e ".[bench]"
    python benchmarks/symbolic.py [--repeats 21]

Speeds are the best of some repeats, in CPU time of one thread. All are repeated in turn; a ratio is that of one repeat
to the peer's in the same repeat: the median, with the lowest and the highest. Both depend on the processor, its caches
above all, and on what else runs there. Nothing is asserted: the figures are for the documentation.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from rich.console import Console
from rich.table import Table

from selfcest_env import symbolic_v0
from selfcest_env.symbolic import BatchDelegation, make_rules

Burst = Callable[[], int]  # does some work, returns how many units it was


def batch_kernel(num_envs: int, steps: int, **rules: Any) -> Burst:
    """Observations, masks, uniform legal actions, a joint step and the restart of finished episodes, every step."""
    kernel = BatchDelegation(make_rules("chain", rules.pop("task_options"), **rules), num_envs)
    kernel.reset(seed=0)
    rng = np.random.default_rng(0)
    seen = kernel.observations()

    def burst() -> int:
        for _ in range(steps):
            kernel.action_masks()
            kernel.step(kernel.sample_actions(rng))
            kernel.restart()
            kernel.observations(seen)
        return steps * num_envs

    return burst


def cart_pole(num_envs: int, steps: int) -> Burst:
    env = CartPoleVectorEnv(num_envs)
    env.reset(seed=0)
    rng = np.random.default_rng(0)

    def burst() -> int:
        for _ in range(steps):
            env.step(rng.integers(0, 2, num_envs))
        return steps * num_envs

    return burst


def turns(env: Any, episodes: int) -> Burst:
    """Turns of an AEC environment under uniform legal play, as PettingZoo's own benchmark counts them."""
    env.reset(seed=0)
    rng = np.random.default_rng(0)

    def burst() -> int:
        count = 0
        for _ in range(episodes):
            env.reset()
            for _ in env.agent_iter():
                observation, _, terminated, truncated, _ = env.last()
                legal = observation["action_mask"].nonzero()[0]
                over = terminated or truncated
                env.step(None if over else int(legal[rng.integers(len(legal))]))
                count += 1
        return count

    return burst


def speeds_of(bursts: dict[str, Burst], repeats: int) -> dict[str, list[float]]:
    """Units per second of CPU time, one for each of `repeats`, taken in turn."""
    speeds: dict[str, list[float]] = {name: [] for name in bursts}
    for _ in range(repeats):
        for name, burst in bursts.items():
            start = time.process_time()
            units = burst()
            speeds[name].append(units / (time.process_time() - start))
    return speeds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=21)
    repeats = parser.parse_args().repeats
    small: dict[str, Any] = {"task_options": {"items": 6}, "max_clones": 4}
    nested: dict[str, Any] = {"task_options": {"items": 16}, "max_clones": 8, "max_depth": 2}
    console, num_envs = Console(), 4096
    vector = speeds_of(
        {
            "Gymnasium CartPoleVectorEnv": cart_pole(num_envs, 40),
            "chain, 6 items, 5 agents": batch_kernel(num_envs, 20, **small),
            "chain, 16 items, 9 agents, nested": batch_kernel(num_envs, 20, **nested),
        },
        repeats,
    )
    _show(console, f"environment-steps per second, {num_envs} environments, one core", vector)
    peers: dict[str, Burst] = {}
    try:
        from pettingzoo.classic import tictactoe_v3

        peers["PettingZoo tictactoe_v3"] = turns(tictactoe_v3.env(), 100)
    except ModuleNotFoundError as error:
        console.print(f"[yellow]PettingZoo's tictactoe_v3 is left out: {error}; the extra bench has it")
    objects = {
        f"symbolic_v0.env, {agents} agents, {population}": turns(symbolic_v0.env(population=population, **options), 40)
        for agents, options in ((9, {}), (5, small))
        for population in ("fixed", "persistent", "dynamic")
    }
    _show(console, "agent turns per second, one AEC environment", speeds_of(peers | objects, repeats))


def _show(console: Console, title: str, speeds: dict[str, list[float]]) -> None:
    """A table of best speeds, each beside its ratio to the first of the same repeat."""
    table = Table("what", "per second", "ratio", "lowest to highest", title=title)
    peer = next(iter(speeds.values()))
    for name, found in speeds.items():
        ratios = [speed / first for speed, first in zip(found, peer, strict=True)]
        span = f"{min(ratios):.3f} to {max(ratios):.3f}"
        table.add_row(name, f"{max(found):,.0f}", f"{median(ratios):.3f}", span)
    console.print(table)


if __name__ == "__main__":
    main()
