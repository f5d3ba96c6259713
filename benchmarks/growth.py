"""Measure how time and memory grow: of an episode with its clones and its depth, of a study, its resume and its report.

    OMP_NUM_THREADS=1 python benchmarks/growth.py [--most 10000]

Every case runs in a process of its own, once at each size. A row shows the CPU time in all and for each unit, and the
peak memory above that of the smallest size. Growth is linear where the time for a unit no longer falls or rises. An
episode is played, written, and read again with its cost. The names of agents grow with their depth, so a chain of
clones takes time with the square of its length. A study's units are episodes: scripts play it, then the same command
resumes it with nothing left to play, and then its report is printed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from kernel import CODEC, RULES, TASK, Tree
from rich.console import Console
from rich.table import Table

from selfcest_agents.player import LocalPlayer
from selfcest_agents.policy import Actor, Policy, ScriptedPolicy
from selfcest_agents.rollout import RolloutRequest, rollout
from selfcest_agents.scripted import OracleActor
from selfcest_cli.report import report_folder
from selfcest_cli.study import run_study
from selfcest_env.record import read_episodes, write_episode
from selfcest_env.rules import Rules
from selfcest_env.tasks.ledger_qa import LedgerQA
from selfcest_env.types import Limits
from selfcest_eval.play.config import parse_study

SIZES = (1, 10, 100, 1_000, 10_000, 100_000)
QUIET = Console(quiet=True)


def play_episode(actor: Actor, depth: int, folder: Path) -> dict[str, float]:
    """Play one episode, write its record, and read it again. Return the CPU-seconds of each of the three."""
    limits = Limits(
        total_tokens=2**40,
        turn_tokens=2**30,
        reply_tokens=4,
        max_clones=None,
        max_clones_per_call=None,
        max_depth=depth,
    )
    times = [time.process_time()]
    rules = Rules(limits, RULES.protocol, CODEC)
    [record] = rollout([RolloutRequest("e", TASK, 0)], ScriptedPolicy(actor, CODEC), rules)
    times.append(time.process_time())
    path = folder / "episodes.jsonl"
    path.write_text(write_episode(record), encoding="utf-8")
    times.append(time.process_time())
    [stored] = read_episodes(path)
    assert (stored, stored.cost.depth) == (record, depth)
    times.append(time.process_time())
    return dict(zip(("played", "written", "read"), np.diff(times).tolist(), strict=True))


def clones(size: int, folder: Path) -> dict[str, float]:
    return play_episode(Tree(width=size, depth=1), 1, folder)


def depth(size: int, folder: Path) -> dict[str, float]:
    return play_episode(Tree(width=1, depth=size), size, folder)


@dataclass(frozen=True)
class ScriptedPlayer(LocalPlayer):
    """Plays the script of `ledger_qa`."""

    def rules(self, limits: Limits) -> Rules:
        return Rules(limits, RULES.protocol, CODEC)

    def policy(self, temperature: float) -> Policy:
        return ScriptedPolicy(OracleActor(LedgerQA(), RULES.protocol), CODEC)

    def close(self) -> None:
        """There is no process and no connection to release."""


@dataclass(frozen=True)
class ScriptedSource:
    """A study's policy that needs no model."""

    seeded: bool = False

    def rules(self, limits: Limits) -> Rules:
        return Rules(limits, RULES.protocol, CODEC)

    def fingerprint(self, seed: int) -> str:
        return "growth"

    def load(self, seed: int) -> ScriptedPlayer:
        return ScriptedPlayer()


def study(size: int, folder: Path) -> dict[str, float]:
    """Play a study of `size` episodes, resume it, and report it. Return the CPU-seconds of each of the three."""
    config = parse_study(
        {
            "name": "growth",
            "output": str(folder),
            "episodes": size,
            "limits": {"turn_tokens": 160, "reply_tokens": 4, "answer_reserve": 12, "total_tokens": 480},
            "policy": {"name": f"{Path(__file__).stem}:ScriptedSource"},
            "strategies": {"delegate": {}},
            "tasks": {"ledger": {"name": "ledger_qa"}},
            "eval_sets": [{"family": "ledger", "size": "all"}],
        }
    )
    times = [time.process_time()]
    run_study(config, resume=False, console=QUIET)
    times.append(time.process_time())
    run_study(config, resume=True, console=QUIET)
    times.append(time.process_time())
    report_folder(config.folder, QUIET)
    times.append(time.process_time())
    return dict(zip(("played", "resumed", "reported"), np.diff(times).tolist(), strict=True))


CASES: dict[str, Callable[[int, Path], dict[str, float]]] = {"clones": clones, "depth": depth, "study": study}


def measure(case: str, size: int) -> tuple[dict[str, float], float]:
    """Run a case at a size. Return the CPU-seconds of its parts, and the peak memory of the process in MiB."""
    with tempfile.TemporaryDirectory() as folder:
        CASES[case](1, Path(folder))  # imports and caches
    with tempfile.TemporaryDirectory() as folder:
        seconds = CASES[case](size, Path(folder))
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=10_000, help="largest size, of 1, 10, 100, ...")
    parser.add_argument("--case", choices=CASES, nargs="+", default=list(CASES), help="cases to run")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    for case in options.case:
        rows: list[list[str]] = []
        names: list[str] = []
        base_memory = 0.0
        for size in SIZES:
            if size > options.most:
                break
            with context.Pool(1) as pool:
                seconds, memory = pool.apply(measure, (case, size))
            base_memory = base_memory or memory
            names = list(seconds)
            per_unit = [f"{value:.2f} s, {value / size * 1e6:.0f} us" for value in seconds.values()]
            rows.append([f"{size:,}", *per_unit, f"{memory - base_memory:.0f} MiB"])
        table = Table(case, *(f"{name}, CPU" for name in names), "memory", title=f"growth with {case}")
        for row in rows:
            table.add_row(*row)
        Console().print(table)
    load = os.getloadavg()[0]
    print(f"Python {platform.python_version()}, load {load:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
