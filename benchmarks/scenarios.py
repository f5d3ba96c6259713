"""The page of the benchmark, from the runs that are stored.

selfcest bench --seconds 20 --workers 2 --out docs/evidence/bench   # makes what is missing: 7 learners, 5 seeds
python benchmarks/scenarios.py > docs/benchmark.md
"""

from __future__ import annotations

import sys
from pathlib import Path

from selfcest_env.symbolic.scenarios import EVALUATION_EPISODES, EVALUATION_SEED, SOLVED
from selfcest_training.marl.bench.report import known_scenarios, table
from selfcest_training.marl.bench.runs import Results, load

STORE = Path(__file__).parents[1] / "docs" / "evidence" / "bench"


def page(results: Results) -> str:
    """`docs/benchmark.md`."""
    budgets = sorted({run.budget for run in results.values()})
    seeds = sorted({cell.seed for cell in results})
    made = RUNS.format(seconds=" or ".join(f"{budget:g}" for budget in budgets), seeds=", ".join(map(str, seeds)))
    settings = {cell.entry: run.settings for cell, run in results.items()}
    listed = "\n".join(f"- `{entry}`: `{said}`" for entry, said in settings.items())
    return "\n\n".join([HEAD, known_scenarios(), MEANING, made, table(results), HOW, SETTINGS, listed]) + "\n"


HEAD = """# The benchmark

Twelve named, versioned games of [the symbolic environment](symbolic.md) on which learners of delegation can be
compared, from seconds of learning to what nobody here solves. A scenario freezes rules, the problems of its evaluation
and the references that returns are held against; whatever may change what is learned makes a new version.

```python
import gymnasium
import pettingzoo

import selfcest_env.symbolic_v0  # puts the names into both registries

env = pettingzoo.make("parallel", "selfcest/chain-8m5-v1", population="persistent")  # PettingZoo 1.27
serial = gymnasium.make("selfcest/chain-8m5-v1")  # one decision per step
vector = gymnasium.make_vec("selfcest/cells-16-v1", num_envs=64)
imports_itself = gymnasium.make("selfcest_env.symbolic_v0:selfcest/deep-64-v1")
print(serial.spec.reward_threshold)
```

Gymnasium has no plug-ins since its version 1.0, so nothing can be registered by being installed: import the module, or
write it before the id. With an older PettingZoo take
`symbolic_v0.parallel_env(**scenario("chain-8m5-v1").arguments)` from `selfcest_env.symbolic.scenarios`.

## Scenarios"""

MEANING = f"""Mean team returns: *random* of uniform legal play, *never* of the best play without delegation, *optimal*
of the [best plan](symbolic.md#references). *Solved from* is {SOLVED:g} of the way from random to optimal. *Horizon*
bounds the joint steps of legal play, *idle* is the share of the agent-steps of random play in which an agent can only
wait. A policy is evaluated greedily on the first {EVALUATION_EPISODES:,} problems of seed {EVALUATION_SEED}; of small
games most are trained on too, so this is learning and not generalisation.

`alone-8m5-v1` is the control: there the best policy never delegates. In `noisy-c005-v1` delegating has to be *found*:
answering alone pays at once, and a call pays only for whoever has learned to add. `cells-16-and-v1` pays random play
once in 10^14 episodes."""

RUNS = """## Results

Median team return at the end of {seconds} CPU seconds of learning, evaluations off the clock, and in brackets how many
of the runs solved it; seeds {seeds}. The last line is the interquartile mean of the returns, 0 for random and 1 for
optimal play, over the scenarios that all have played, with a 95 % interval of a bootstrap stratified by scenario
(Agarwal et al. 2021). [Settings](#settings) are one per learner for all scenarios.
**Two seeds are no result yet**: five were planned, and 60 s; the machine was shared with other work while these ran."""

HOW = """![Share of runs above each normalised return](evidence/bench/profiles.png)

Curves are in `docs/evidence/bench`, a file per scenario, and in `results.json` as marl-eval reads them. CPU seconds
depend on the machine and on what else runs there: compare columns of one table, not of two.

```bash
selfcest bench --list
selfcest bench chain-8m5-v1 --learner coma --seeds 1 --seconds 20
selfcest bench --seconds 60 --workers 2 --out runs/bench
```

A run is stored when it ends and not made again, so an interrupted command goes on when it is given again.

## A row of your own

A learner is a class with `learn`, in a module of your own. It may use any library: what it must do is to call the
examiner with its decisions so far and a greedy policy, and to stop when that says so.

```python
import torch

from selfcest_env.symbolic import BatchDelegation
from selfcest_training.marl.bench import Cell, Entry, play


class Uniform(Entry):
    \"\"\"Answers or calls as the first legal action has it; learns nothing.\"\"\"

    def learn(self, rules, seed, examiner):
        kernel, decisions = BatchDelegation(rules, num_envs=64), 0
        kernel.reset(seed)
        while not examiner(decisions, lambda observations, masks: masks.int().argmax(-1)):
            while not kernel.done.all():
                rows = kernel.rows()
                decisions += len(rows.envs)
                kernel.step_rows(rows.masks.argmax(-1))
            kernel.restart()


run = play(Cell("chain-4m2-v1", f"{__name__}:Uniform", seed=0), seconds=0.2)
print(run.last)
```

`selfcest bench --learner my_package.my_module:Uniform` plays it on every scenario beside what is stored."""


SETTINGS = """## Settings

What every learner was run with. The policies' learning rates were the better of 0.001 and 0.003 on one seed of `chain`
modulo 2; nothing was tuned on any other scenario."""

if __name__ == "__main__":
    sys.stdout.write(page(load(STORE)))
