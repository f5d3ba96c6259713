"""Measure the cost of the text game: clones in small and large trees, demonstrations, and scripted players.

    OMP_NUM_THREADS=1 python benchmarks/kernel.py [--repeats 5] [--before FOLDER]

A root calls many clones at once, each answers at once, and then the root answers. This is played by the kernel with its
observations, and by `rollout`. The task's expert plays demonstrations, which are encoded for the tiny model as in a
warm start. A script plays the PettingZoo environments in texts, and `rollout` plays the same tasks with the expert; an
agent-step is one action of one agent, and for `rollout` one turn. Every figure is the best of several repeats, in CPU
time of one thread, and the cases take turns. `--before` measures another checkout as well, in turn with this one, and
adds how many times as fast this one is. Nothing is asserted here; `tests/env/test_kernel.py` asserts that a clone costs
the same in every tree.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from selfcest_agents.codec import TerseCodec
from selfcest_agents.policy import ScriptedPolicy
from selfcest_agents.rollout import RolloutRequest, rollout
from selfcest_agents.scripted import OracleActor
from selfcest_agents.tiny import TinyTokenizer
from selfcest_env import delegation_v0
from selfcest_env.kernel import Kernel
from selfcest_env.rules import Rules
from selfcest_env.tasks.ledger_qa import LedgerQA
from selfcest_env.tasks.range_sum import RangeSum
from selfcest_env.tasks.source import ExpertSource, Style
from selfcest_env.text.counters import WordCounter
from selfcest_env.text.hermes import HermesProtocol
from selfcest_env.text.protocols import make_protocol
from selfcest_env.text.terse import TerseProtocol
from selfcest_env.types import Answer, CloneRequest, Delegate, Limits, Task, Usage
from selfcest_env.views import Observation, observe

SIZES = (64, 256, 1024)
NUM_EPISODES = 100
NUM_BATCHES = 20  # a cached text must not come from an earlier repeat
TASK = Task("fan", "?", "7", "benchmark")
CODEC = TerseCodec(TinyTokenizer())
RULES = Rules(
    Limits(total_tokens=2**20, turn_tokens=2**14, reply_tokens=4, max_clones=None, max_clones_per_call=None),
    TerseProtocol(),
    CODEC,
)
ENVIRONMENTS: dict[str, Callable[..., Any]] = {
    "parallel_env": delegation_v0.parallel_env,
    "env": delegation_v0.env,
}
NAMED_KEYS = re.compile(r"\?([A-Za-z]+)")
COUNTERS = {"terse": "bytes", "hermes": "words"}  # by protocol


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


def make_rollout(source: ExpertSource, style: Style, rules: Rules, codec: TerseCodec | None) -> Callable[[], int]:
    """Return a function that plays the source's expert, on new tasks in each call, and returns the number of turns."""
    rng = np.random.default_rng(0)
    batches = []
    for _ in range(NUM_BATCHES):
        batches.append([RolloutRequest(f"e{i}", source.draw(rng), i) for i in range(NUM_EPISODES)])
    next_batch = itertools.cycle(batches)
    policy = ScriptedPolicy(OracleActor(source, rules.protocol, style), codec)

    def play() -> int:
        records = rollout(next(next_batch), policy, rules)
        assert all(record.answer == record.task.answer for record in records)
        return sum(len(agent.turns) for record in records for agent in record.agents)

    return play


def make_environment(name: str, protocol_name: str) -> Callable[[], int]:
    """Return a function that plays an environment and returns its number of agent-steps.

    Each call plays new tasks. The script reads texts: in the first turn the root calls one clone for each document that
    the task names.
    """
    seeds = itertools.count()
    protocol = make_protocol(protocol_name)
    answer = protocol.render(Answer("7"))
    env = ENVIRONMENTS[name]("ledger_qa", protocol=protocol_name, counter=COUNTERS[protocol_name])

    def act(agent: str, observation: Mapping[str, Any]) -> str:
        if agent != "agent_0" or "tool|>" in observation["text"]:
            return answer
        named = NAMED_KEYS.search(observation["text"])
        assert named is not None
        requests = tuple(CloneRequest("[1]", (key,)) for key in named[1])
        return protocol.render(Delegate(requests))

    def play_parallel() -> int:
        steps = 0
        seed = next(seeds)
        for episode in range(NUM_EPISODES):
            observations, _ = env.reset(seed=None if episode else seed)
            while env.agents:
                actions = {agent: act(agent, observations[agent]) for agent in env.agents}
                observations, *_ = env.step(actions)
                steps += len(actions)
            assert len(env.record().agents) > 1
        return steps

    def play_serial() -> int:
        steps = 0
        seed = next(seeds)
        for episode in range(NUM_EPISODES):
            env.reset(seed=None if episode else seed)
            for agent in env.agent_iter():
                observation, _, termination, truncation, _ = env.last()
                if termination or truncation:
                    env.step(None)
                else:
                    env.step(act(agent, observation))
                    steps += 1
            assert len(env.unwrapped.record().agents) > 1
        return steps

    return play_parallel if name == "parallel_env" else play_serial


def make_cases() -> dict[str, dict[str, Callable[[], int]]]:
    """Return the cases by table and name. Each plays its work and returns how many units it has played."""

    def play_all(play: Callable[[int], None], size: int) -> int:
        # Every case has the same number of clones in all.
        for _ in range(SIZES[-1] // size):
            play(size)
        return SIZES[-1]

    fans: dict[str, Callable[[], int]] = {}
    for name, play in (("kernel", play_kernel), ("rollout", play_rollout)):
        for size in SIZES:
            fans[f"{name}, {size} clones"] = partial(play_all, play, size)
    steps: dict[str, Callable[[], int]] = {}
    for name in ENVIRONMENTS:
        for protocol in COUNTERS:
            steps[f"{name}, {protocol}"] = make_environment(name, protocol)
    ranges = RangeSum(min_length=1, max_length=16)
    texts = Rules(Limits(), HermesProtocol(), WordCounter())
    steps["rollout, range_sum, delegating"] = make_rollout(ranges, Style.DELEGATE, RULES, CODEC)
    steps["rollout, range_sum, solving"] = make_rollout(ranges, Style.SOLVE, RULES, CODEC)
    steps["rollout, ledger_qa, delegating"] = make_rollout(LedgerQA(), Style.DELEGATE, RULES, CODEC)
    steps["rollout, ledger_qa, hermes"] = make_rollout(LedgerQA(), Style.DELEGATE, texts, None)
    return {"clones of one call": fans, "agent-steps": steps}


def measure(cases: Mapping[str, Callable[[], int]], repeats: int) -> dict[str, float]:
    """Return the units of each case per CPU-second, the best of `repeats`. The cases take turns."""
    best = dict.fromkeys(cases, 0.0)
    for _ in range(repeats):
        for name, play in cases.items():
            gc.collect()  # else one case pays for the garbage of another
            start = time.process_time()
            units = play()
            best[name] = max(best[name], units / (time.process_time() - start))
    return best


def measure_checkout(folder: Path) -> dict[str, dict[str, float]]:
    """Run one repeat of this script on the packages of a checkout, in a process of its own."""
    packages = os.pathsep.join(str(folder.resolve() / name) for name in ("", "agents", "training"))
    command = [sys.executable, __file__, "--repeats", "2", "--json"]
    output = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": packages}, check=True, text=True, stdout=subprocess.PIPE
    ).stdout
    rates: dict[str, dict[str, float]] = json.loads(output)
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="number of repeats, of which the best counts")
    parser.add_argument("--before", type=Path, metavar="FOLDER", help="another checkout, to be measured in turn")
    parser.add_argument("--json", action="store_true", help="print the rates as JSON")
    options = parser.parse_args()
    here = Path(__file__).resolve().parents[1]
    folders = [here] if options.before is None else [options.before, here]
    best: dict[Path, dict[str, dict[str, float]]] = {}
    if options.before is None:
        tables = make_cases()
        gc.freeze()  # the tasks of all cases are no garbage
        best[here] = {title: measure(cases, options.repeats) for title, cases in tables.items()}
    else:
        for _ in range(options.repeats):
            for folder in folders:
                for title, rates in measure_checkout(folder).items():
                    known = best.setdefault(folder, {}).setdefault(title, rates)
                    known |= {name: max(known[name], rate) for name, rate in rates.items()}
    if options.json:
        print(json.dumps(best[here]))
        return
    columns = ["per CPU-second"] if options.before is None else ["other checkout", "this one", "ratio"]
    for title, rates in best[here].items():
        table = Table("", *columns, title=f"{title} per CPU-second")
        for name, rate in rates.items():
            figures = [f"{best[folder][title][name]:,.0f}" for folder in folders]
            if options.before is not None:
                figures.append(f"{rate / best[options.before][title][name]:.2f}")
            table.add_row(name, *figures)
        Console().print(table)
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
