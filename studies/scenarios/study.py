"""The page of the benchmark, from the runs that are stored.

    selfcest bench --seconds 20 --workers 2 --out studies/scenarios/evidence   # makes what is missing

The runs of the learner from outside are made in its own environment; the page has its commands.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from selfcest_baselines.bench.report import draw, format_scenarios, table
from selfcest_baselines.bench.runs import Results, load
from selfcest_env.symbolic.scenarios import EVALUATION_EPISODES, EVALUATION_SEED, SCENARIOS, SOLVED
from studies.runner import DOCS, Study, fold, joined

STORE = Path(__file__).parent / "evidence"
OUTSIDE = STORE / "outside"  # a learner of a library that is no dependency; in it `tuning`, on other seeds
PLANNED_SEEDS, PLANNED_SECONDS = 5, 60


def page(results: Results, outside: Results, tuning: Results) -> str:
    """`docs/benchmark.md`."""
    played = {cell.scenario for cell in outside}
    beside = {cell: run for cell, run in results.items() if cell.scenario in played} | outside
    settings = {cell.entry: run.settings for cell, run in (results | outside).items()}
    listed = "\n".join(f"- `{entry}`: `{said}`" for entry, said in settings.items())
    parts = [HEAD, format_scenarios(), MEANING]
    versions, versions_outside = (", ".join(sorted({run.version for run in of.values()})) for of in (results, outside))
    parts.append(RUNS.format(solved=solved(results), runs=runs_of(results), note=note_on(results), version=versions))
    parts += [
        table(results),
        HOW,
        LIBRARY.format(version=versions_outside, runs=runs_of(outside), played=PLAYED_OUTSIDE),
        table(beside),
    ]
    theirs = {cell: run for cell, run in beside.items() if cell not in outside}
    building = spread([run.points[0][1] for run in outside.values()])
    parts += [TUNING.format(rate=rates(outside), rate_of_others=rates(theirs), building=building, runs=runs_of(tuning))]
    parts += [ends(tuning), SETTINGS, fold("The settings of every learner", listed)]
    return joined(parts)


def runs_of(results: Results) -> str:
    """Their budget and seeds, in words."""
    budgets = " or ".join(f"{budget:g}" for budget in sorted({run.budget for run in results.values()}))
    return f"{budgets} CPU seconds of learning, seeds {', '.join(map(str, sorted({cell.seed for cell in results})))}"


def solved(results: Results) -> str:
    """Which scenarios some learner solved with every seed, in words."""
    by_pair: dict[tuple[str, str], list[bool]] = {}
    for cell, run in results.items():
        by_pair.setdefault((cell.scenario, cell.entry), []).append(run.last >= SCENARIOS[cell.scenario].threshold)
    names = sorted({scenario for (scenario, _), runs in by_pair.items() if all(runs)})
    listed = ", ".join(f"`{name}`" for name in names)
    return f"{len(names)} of {len(SCENARIOS)} scenarios are solved with every seed by some learner: {listed}."


def ends(results: Results) -> str:
    """Team returns at the end by the options of the learner, seed by seed."""
    found: dict[str, list[str]] = {}
    for cell, run in results.items():
        found.setdefault(cell.entry.partition(" ")[2], []).append(f"{run.last:.3f}")
    return "\n".join(f"- `{options}`: {', '.join(returns)}" for options, returns in found.items())


def rates(results: Results) -> str:
    """Decisions per CPU second."""
    return spread([run.points[-1][0] / run.points[-1][1] for run in results.values()])


def spread(values: Sequence[float]) -> str:
    """The least and the greatest, rounded to two digits."""
    low, high = (f"{float(f'{value:.1e}'):,g}" for value in (min(values), max(values)))
    return f"{low} to {high}"


def note_on(results: Results) -> str:
    """How far they are from what was planned."""
    seeds, seconds = len({cell.seed for cell in results}), min(run.budget for run in results.values())
    notes = [] if seeds >= PLANNED_SEEDS else [f"**{seeds} seeds are no result yet**: {PLANNED_SEEDS} were planned."]
    notes += [] if seconds >= PLANNED_SECONDS else [f"{PLANNED_SECONDS} CPU seconds were planned."]
    return " ".join([*notes, "The machine was shared with other work while these ran."])


HEAD = """# The benchmark

This page is for multi-agent researchers who want to compare a learner with others. After it you can play twelve named,
versioned scenarios of [the symbolic game](symbolic.md), read the results of seven learners, and add a row of your own.
A scenario freezes the rules, the problems of its evaluation and the reference returns. A change of any of these makes
a new version.

The scenarios need only `pip install .`. `selfcest bench` and a row of your own need the trainer:
`pip install -e '.[train]'`.

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

Gymnasium registers nothing at installation: import the module, or write it before the id. With an older PettingZoo, use
`symbolic_v0.parallel_env(**get_scenario("chain-8m5-v1").env_kwargs)` (`selfcest_env.symbolic.scenarios`).

## Scenarios"""

MEANING = f"""| column | meaning |
| --- | --- |
| random | mean team return of uniform legal play |
| never | mean team return of the best play without delegation |
| optimal | mean team return of the [best plan](symbolic.md#references) |
| solved from | {SOLVED:g} of the way from random to optimal |
| horizon | upper bound of the joint steps of legal play |
| idle | share of the agent-steps of random play in which an agent can only wait |

A policy is evaluated greedily on the first {EVALUATION_EPISODES:,} problems of seed {EVALUATION_SEED}. In small games
most of them are also trained on, so this measures learning and not generalisation.

- `alone-8m5-v1` is the control: there the best policy never delegates.
- In `noisy-c005-v1` delegation must be *found*: a call is worth its cost only after the agents have learned to add.
- `cells-16-and-v1` rewards random play once in 10^14 episodes."""

RUNS = """## Results

**{solved}** Each run had {runs}. {note} The table has the median team return at the end and, in brackets, the number
of runs that solved the scenario. Evaluations are not on the clock.

The last two lines use returns scaled to 0 for random and 1 for optimal play: their interquartile mean (Agarwal et al.
2021), and the mean difference to the first learner on the same scenario with the same seed. Brackets are 95 %
intervals of a bootstrap stratified by scenario. Each learner has one setting for all scenarios
([settings](#settings)).

*Results of version {version}. A rerun repeats the distribution of these figures, not their digits.*"""

HOW = """![Share of runs above each normalised return](benchmark.png)

Learning curves are in `studies/scenarios/evidence`, one file per scenario, and in `results.json` in the format of
marl-eval. CPU seconds depend on the machine: compare columns of one table, not of two.

```bash
selfcest bench --list
selfcest bench chain-8m5-v1 --learner coma --seeds 1 --seconds 20 --out runs/try
selfcest bench --seconds 60 --workers 2 --out runs/bench
```

A run is stored when it ends. After an interruption, the same command makes only the runs that are missing.

## A row of your own

A learner is a class with `learn`, in a module of your own, and may use any library. It must call the examiner with its
number of decisions so far and a greedy policy, and stop when the examiner returns true. The policy gets tensors of
observations [rows, features] and of legal actions [rows, actions]. It returns one action for each row, as a tensor or
an array.

```python
import torch

from selfcest_env.symbolic import BatchDelegation
from selfcest_baselines.bench import BenchmarkCell, play
from selfcest_baselines.learner import MarlLearner


class Uniform(MarlLearner):
    \"\"\"Takes the first legal action; learns nothing.\"\"\"

    def learn(self, rules, seed, examiner):
        kernel, decisions = BatchDelegation(rules, num_envs=64), 0
        kernel.reset(seed)
        while not examiner(decisions, lambda observations, masks: masks.int().argmax(-1)):
            while not kernel.done.all():
                ready = kernel.ready_agents()
                decisions += len(ready.envs)
                kernel.step_ready(ready.action_masks.argmax(-1))
            kernel.restart()


run = play(BenchmarkCell("chain-4m2-v1", f"{__name__}:Uniform", seed=0), seconds=0.2)
print(run.last)
```

`selfcest bench --learner my_package.my_module:Uniform` plays it on every scenario. Options follow the name and are
checked against the class's annotations. Other options make another column:

```bash
selfcest bench chain-4m2-v1 --learner "my_package.my_module:Mine learning_rate=0.001 hidden=[64,64]"
```"""

PLAYED_OUTSIDE = "chain-4m2-v1 noisy-c005-v1 cells-16-v1 --learner rllib_ppo:RllibPPO"
LIBRARY = """## A library from outside

The class `RllibPPO` in [rllib_ppo.py](examples/marl/rllib_ppo.py) is RLlib's PPO with masks, configured as in [the
adapter's script](adapters.md#rllib). It had {runs}, on three scenarios, in a
checkout that was not installed (version {version}). The other columns are from the table above.

```bash
export PYTHONPATH=.:agents:training:docs/examples/marl
.venv-rllib/bin/python -m selfcest_cli bench {played} --seconds 20 --out studies/scenarios/evidence/outside
```"""

TUNING = """On `noisy-c005-v1` it ends below the best play without delegation. It samples {rate} decisions per CPU
second; the other learners here sample {rate_of_others}. Most of its time is RLlib's bookkeeping of single games. Of its
clock, building the algorithm takes {building} s. Ray's other processes are idle and not on the clock.

Three settings were tried, only on `chain-4m2-v1` (`--first-seed 100 --seeds 2`): {runs}.
The one with the highest mean return was taken. Returns at the end:"""


SETTINGS = """## Settings

The learning rate of each policy was the better of 0.001 and 0.003 on one seed of `chain` modulo 2. Nothing was tuned
on any other scenario. The text is that of version 0.1.0: the groups `credit`, `loss` and `learner` are options of one
learner today."""

STUDY = Study(
    page_file=DOCS / "benchmark.md",
    page=lambda: page(load(STORE), load(OUTSIDE), load(OUTSIDE / "tuning")),
    figures={DOCS / "benchmark.png": lambda file: draw(load(STORE), file)},
)
