"""Measure the cost of the text game: a clone in small and large trees, and scripted demonstrations.

    OMP_NUM_THREADS=1 python benchmarks/kernel.py [--repeats 5]

A root calls many clones at once, each answers at once, and then the root answers. This is played by the kernel with its
observations, and by `rollout`. The task's expert plays demonstrations, which are encoded for the tiny model as in a
warm start. Every figure is the best of several repeats, in CPU time of one thread, and the cases take turns. Nothing is
asserted here; `tests/env/test_kernel.py` asserts that a clone costs the same in every tree.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from rich.console import Console
from rich.table import Table

from selfcest_agents.codec import TerseCodec
from selfcest_agents.policy import ScriptedPolicy
from selfcest_agents.rollout import RolloutRequest, rollout
from selfcest_agents.scripted import OracleActor
from selfcest_agents.tiny import TinyTokenizer
from selfcest_env.kernel import Kernel
from selfcest_env.rules import Rules
from selfcest_env.tasks.ledger_qa import LedgerQA
from selfcest_env.tasks.range_sum import RangeSum
from selfcest_env.tasks.source import ExpertSource, Style
from selfcest_env.text.terse import TerseProtocol
from selfcest_env.types import Answer, CloneRequest, Delegate, Limits, Task, Usage
from selfcest_env.views import Observation, observe

SIZES = (64, 256, 1024)
TASK = Task("fan", "?", "7", "benchmark")
CODEC = TerseCodec(TinyTokenizer())
RULES = Rules(
    Limits(total_tokens=2**20, turn_tokens=2**14, reply_tokens=4, max_clones=None, max_clones_per_call=None),
    TerseProtocol(),
    CODEC,
)


@dataclass(frozen=True)
class Tree:
    """Every agent above the last level calls `width` clones at once, and answers when they have answered."""

    width: int
    depth: int = 1

    def act(self, observation: Observation, rng: np.random.Generator) -> str:
        if observation.depth < self.depth and not observation.exchanges:
            return RULES.protocol.render(Delegate((CloneRequest("+"),) * self.width))
        return RULES.protocol.render(Answer("7"))


def play_kernel(num_clones: int) -> None:
    kernel = Kernel(TASK, RULES)
    tree = Tree(num_clones)
    rng = np.random.default_rng(0)
    while not kernel.done:
        for agent_id in kernel.ready():
            text = tree.act(observe(kernel, agent_id), rng)
            kernel.step(agent_id, RULES.protocol.parse(text), Usage(CODEC.count_text(text)), text)
    assert len(kernel.agents) == num_clones + 1


def play_rollout(num_clones: int) -> None:
    [record] = rollout([RolloutRequest("e", TASK, 0)], ScriptedPolicy(Tree(num_clones), CODEC), RULES)
    assert record.cost.clones == num_clones


def demonstrations(source: ExpertSource, style: Style, num_episodes: int) -> Callable[[], None]:
    rng = np.random.default_rng(0)
    requests = [RolloutRequest(f"e{i}", source.draw(rng), i) for i in range(num_episodes)]
    policy = ScriptedPolicy(OracleActor(source, RULES.protocol, style), CODEC)

    def play() -> None:
        assert all(record.answer == record.task.answer for record in rollout(requests, policy, RULES))

    return play


def fastest(cases: dict[str, Callable[[], None]], repeats: int) -> dict[str, float]:
    """Return the CPU-seconds of each case, the best of `repeats`. The cases take turns."""
    best = dict.fromkeys(cases, float("inf"))
    for _ in range(repeats):
        for name, work in cases.items():
            start = time.process_time()
            work()
            best[name] = min(best[name], time.process_time() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="number of repeats, of which the best counts")
    repeats = parser.parse_args().repeats
    console = Console()

    def play_all(play: Callable[[int], None], size: int) -> None:
        # Every case has the same number of clones in all.
        for _ in range(SIZES[-1] // size):
            play(size)

    fans: dict[str, Callable[[], None]] = {}
    for name, play in (("kernel", play_kernel), ("rollout", play_rollout)):
        for size in SIZES:
            fans[f"{name}, {size}"] = partial(play_all, play, size)
    seconds = fastest(fans, repeats)
    table = Table("", *(f"{size} clones" for size in SIZES), title="microseconds of CPU time per clone")
    for name in ("kernel", "rollout"):
        table.add_row(name, *(f"{seconds[f'{name}, {size}'] / SIZES[-1] * 1e6:.0f}" for size in SIZES))
    console.print(table)
    count = 100
    seconds = fastest(
        {
            "range_sum, delegating": demonstrations(RangeSum(min_length=1, max_length=16), Style.DELEGATE, count),
            "range_sum, solving": demonstrations(RangeSum(min_length=1, max_length=16), Style.SOLVE, count),
            "ledger_qa, delegating": demonstrations(LedgerQA(mode="sum"), Style.DELEGATE, count),
        },
        repeats,
    )
    table = Table("", "episodes", title="demonstrations per CPU-second")
    for name, spent in seconds.items():
        table.add_row(name, f"{count / spent:.0f}")
    console.print(table)


if __name__ == "__main__":
    main()
