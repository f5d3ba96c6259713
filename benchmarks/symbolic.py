"""Speed of the symbolic environment, as ratios to peers measured in the same run.

    pip install -e ".[bench]"
    pip install envpool pgx   # two peers more, each left out where it is not there
    python benchmarks/symbolic.py [--repeats 21]
    python benchmarks/symbolic.py --before ../another-checkout   # this code against that of another version

Speeds are the best of some repeats, in CPU time of one thread. All are repeated in turn; a ratio is that of one repeat
to the peer's in the same repeat: the median, with the lowest and the highest. Both depend on the processor, its caches
above all, and on what else runs there. Nothing is asserted: the figures are for the documentation.
"""

from __future__ import annotations

import argparse
import runpy
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from statistics import median
from typing import Any

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from rich.console import Console
from rich.table import Table

from selfcest_env import symbolic_v0
from selfcest_env.symbolic import BatchDelegation, SymbolicRules, make_rules
from selfcest_env.symbolic.serial import SymbolicSerialVectorEnv

Burst = Callable[[], int]  # does some work, returns how many units it was

SMALL: dict[str, Any] = {"task_options": {"items": 6}, "max_clones": 4}
# Built when this file is run, because tasks are imported by name: later, `--before` would get those of another version.
GAMES = {
    "chain, 6 items, 5 agents": make_rules(**SMALL),
    "chain, 16 items, 9 agents, nested": make_rules(task_options={"items": 16}, max_clones=8, max_depth=2),
    "cells=16, 17 agents": make_rules("cells", {"cells": 16}, max_clones=16, total_tokens=131),
}


def batch_kernel(num_envs: int, steps: int, rules: SymbolicRules) -> Burst:
    """Observations, masks, uniform legal actions, a joint step and the restart of finished episodes, every step."""
    kernel = BatchDelegation(rules, num_envs)
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


def batch_rows(num_envs: int, steps: int, rules: SymbolicRules) -> Burst:
    """The same with rows of the agents that can act."""
    kernel = BatchDelegation(rules, num_envs)
    kernel.reset(seed=0)
    rng = np.random.default_rng(0)

    def burst() -> int:
        for _ in range(steps):
            kernel.ready_agents()
            kernel.step_ready(kernel.sample_ready(rng))
            kernel.restart()
        return steps * num_envs

    return burst


def linear_policy(num_envs: int, steps: int, rules: SymbolicRules) -> Burst:
    """Decisions of a linear policy with random weights: what a learner does between two updates."""
    kernel = BatchDelegation(rules, num_envs)
    kernel.reset(seed=0)
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((kernel.ready_agents().observations.shape[1], kernel.num_actions), np.float32)

    def burst() -> int:
        decisions = 0
        for _ in range(steps):
            ready = kernel.ready_agents()
            logits = np.where(ready.action_masks, ready.observations @ weights, -np.inf)
            kernel.step_ready(logits.argmax(axis=1))
            kernel.restart()
            decisions += len(ready.envs)
        return decisions

    return burst


def serial(num_envs: int, steps: int, rules: SymbolicRules) -> Burst:
    """The vector environment of one decision per step, under uniform legal play."""
    limits = {item.name: getattr(rules, item.name) for item in fields(rules)}
    env = SymbolicSerialVectorEnv(num_envs, **limits)
    infos = env.reset(seed=0)[1]
    rng = np.random.default_rng(0)

    def burst() -> int:
        nonlocal infos
        for _ in range(steps):
            legal = infos["action_mask"]
            *_, infos = env.step((legal * rng.random(legal.shape, np.float32)).argmax(axis=1))
        return steps * num_envs

    return burst


def cart_pole(num_envs: int, steps: int) -> Burst:
    return _pushed(CartPoleVectorEnv(num_envs), num_envs, steps)


def envpool_cart_pole(num_envs: int, steps: int) -> Burst:
    import envpool

    return _pushed(envpool.make("CartPole-v1", env_type="gymnasium", num_envs=num_envs, num_threads=1), num_envs, steps)


def _pushed(env: Any, num_envs: int, steps: int) -> Burst:
    env.reset()
    rng = np.random.default_rng(0)

    def burst() -> int:
        for _ in range(steps):
            env.step(rng.integers(0, 2, num_envs))
        return steps * num_envs

    return burst


def pgx_tic_tac_toe(num_envs: int, steps: int) -> Burst:
    """Compiled: uniform legal actions, the step and the restart are one call."""
    import jax
    import pgx
    from pgx.experimental.wrappers import auto_reset

    env = pgx.make("tic_tac_toe")
    step = jax.vmap(auto_reset(env.step, env.init))

    def play(state: Any, key: Any) -> Any:
        keys = jax.random.split(key, num_envs + 2)
        legal = jax.numpy.log(state.legal_action_mask.astype(jax.numpy.float32))
        return step(state, jax.random.categorical(keys[0], legal), keys[2:]), keys[1]

    move = jax.jit(play)
    key = jax.random.key(0)
    state, key = move(jax.vmap(env.init)(jax.random.split(key, num_envs)), key)

    def burst() -> int:
        nonlocal state, key
        for _ in range(steps):
            state, key = move(state, key)
        jax.block_until_ready(state)
        return steps * num_envs

    return burst


PEERS = {"EnvPool CartPole-v1": envpool_cart_pole, "pgx tic_tac_toe": pgx_tic_tac_toe}


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


def bursts_of(checkout: str) -> dict[str, Any]:
    """The functions of this file, on the package of another checkout."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "selfcest_env"]:
        del sys.modules[name]
    sys.path.insert(0, checkout)
    try:
        return runpy.run_path(__file__, run_name="before")
    finally:
        sys.path.remove(checkout)


def compare(console: Console, checkout: str, repeats: int) -> None:
    """Environment-steps and decisions of this version and of another; the first tables have the peer too."""
    before = bursts_of(checkout)
    for num_envs in (64, 4096):
        steps = 80_000 // (num_envs + 100)
        for name, rules in GAMES.items():
            bursts = {
                "Gymnasium CartPoleVectorEnv": cart_pole(num_envs, 2 * steps),
                "before, rows": before["batch_rows"](num_envs, steps, before["GAMES"][name]),
                "now, rows": batch_rows(num_envs, steps, rules),
            }
            _show(console, f"{name}, {num_envs} environments, and the peer", speeds_of(bursts, repeats))
    for name, rules in GAMES.items():
        for num_envs in (1, 8, 64, 256, 4096):
            steps = 20_000 // (num_envs + 100)
            for play in (batch_kernel, batch_rows, linear_policy, serial):
                bursts = {
                    "before": before[play.__name__](num_envs, steps, before["GAMES"][name]),
                    "now": play(num_envs, steps, rules),
                }
                _show(console, f"{name}, {num_envs} environments, {play.__name__}", speeds_of(bursts, repeats))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--before", metavar="CHECKOUT", help="compare with the code of another checkout, and no peer")
    arguments = parser.parse_args()
    repeats: int = arguments.repeats
    if arguments.before is not None:
        compare(Console(), arguments.before, repeats)
        return
    console = Console()
    for num_envs, steps in ((64, 1000), (4096, 20)):
        bursts = {"Gymnasium CartPoleVectorEnv": cart_pole(num_envs, 2 * steps)}
        for name, peer in PEERS.items():
            try:
                bursts[name] = peer(num_envs, steps)
            except ModuleNotFoundError as error:
                console.print(f"[yellow]{name} is left out: {error}")
        for how, play in (("all agents", batch_kernel), ("rows", batch_rows), ("one decision a step", serial)):
            for name, rules in GAMES.items():
                bursts[f"{name}: {how}"] = play(num_envs, steps, rules)
        _show(console, f"environment-steps per second, {num_envs} environments, one core", speeds_of(bursts, repeats))
    for name, rules in GAMES.items():
        bursts = {}
        for num_envs in (64, 256, 1024, 4096):
            bursts[f"{num_envs} environments"] = linear_policy(num_envs, 60_000 // (num_envs + 100), rules)
        _show(console, f"{name}: decisions per second of a linear policy, rows", speeds_of(bursts, repeats))
    alone: dict[str, Burst] = {}
    try:
        from pettingzoo.classic import tictactoe_v3

        alone["PettingZoo tictactoe_v3"] = turns(tictactoe_v3.env(), 100)
    except ModuleNotFoundError as error:
        console.print(f"[yellow]PettingZoo's tictactoe_v3 is left out: {error}; the extra bench has it")
    objects: dict[str, Burst] = {}
    for agents, options in ((9, {}), (5, SMALL)):
        for population in ("fixed", "persistent", "dynamic"):
            env = symbolic_v0.env(population=population, **options)
            objects[f"symbolic_v0.env, {agents} agents, {population}"] = turns(env, 40)
    _show(console, "agent turns per second, one AEC environment", speeds_of(alone | objects, repeats))


def _show(console: Console, title: str, speeds: dict[str, list[float]]) -> None:
    """Print a table of the best speeds, with their ratios to the first case in the same repeat."""
    table = Table("what", "per second", "ratio", "lowest to highest", title=title)
    peer = next(iter(speeds.values()))
    for name, repeats in speeds.items():
        ratios = [speed / first for speed, first in zip(repeats, peer, strict=True)]
        span = f"{min(ratios):.3f} to {max(ratios):.3f}"
        table.add_row(name, f"{max(repeats):,.0f}", f"{median(ratios):.3f}", span)
    console.print(table)


if __name__ == "__main__":
    main()
