"""Learning signals compared on delegation: the middle of docs/methods.md, from what their runs left behind.

    python benchmarks/methods.py                                     # prints docs/methods.md from docs/evidence/methods
    python benchmarks/methods.py --figure docs/methods.png           # draws its picture
    python benchmarks/methods.py --sweep 10                          # plays the policies of budgets.yaml of a seed
    python benchmarks/delegation.py --rerun methods_when/seed10      # all arms of a seed again, from one warm start
    python benchmarks/delegation.py --rerun methods_when/dots/seed10 # one of them

What stands between the page's two marks is a function of the stored cells alone; the rest of the page stays as it is.
What a cell is stands in benchmarks/delegation.py.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from delegation import CONFIGS, EVIDENCE, ROOT, cells_in, each, of, provenance, table

from selfcest_env.palette import MUTED, SERIES
from selfcest_training.evaluation.results import read_results
from selfcest_training.evaluation.statistics import over_seeds

Cell = Mapping[str, Any]
FOLDER, PAGE = EVIDENCE / "methods", ROOT / "docs" / "methods.md"
SWEEP = CONFIGS / "methods" / "budgets_frontier.yaml"
BEGIN, END = "<!-- compared: by benchmarks/methods.py -->", "<!-- end of what is compared -->"


HEAD = """![What a greedy policy earns on the way, by compute](methods.png)

The embedded model of 0.17 M parameters, made tasks; nothing follows for a large model. Negative results first.

- **Three seeds decide nothing here.** No arm is told apart from the plain recipe, in either family, at equal compute:
  what seeds differ by is larger than what signals differ by. `default` itself ends between 0.53 and 0.63, and with
  one seed of three falls back to never delegating. Of seven predictions of *better* or *worse* none is confirmed.
- **What chooses tasks by mixed outcomes moves the mistake and does not mend it.** `knapsack`, `v0` and `dots` give
  large sums the rollouts, and PARL pays for calls at first: with them the largest sums are right far more often with
  every seed (last column of the first table), but they call for small ones as well, which costs what they won.
- Seeds agree on one thing more: `default`, which divides by a group's std, ends by calling for hardly any small sum,
  and once for hardly any at all; `rloo`, `state_zero` and `hypervolume`, which do not divide, still call for some of
  all. At this compute neither is ahead.
- **No combination was chosen**, since nothing stood out to be combined, and the defaults stay. `salt` was ahead of
  `rloo` with every seed of the cells; on [fresh seeds](#on-fresh-seeds), where *better* was predicted, it was not.
- **One policy that is told its budget earned what five separate ones earned, with a fifth of their compute**, at each
  budget within 0.02 or above, on the [one seed](#one-policy-for-many-budgets) that was run.
- Found while the baseline was tuned, on one seed: 8 rollouts of a task in the place of 16 learn about twice as fast
  ([tuning](#tuning))."""

WHEN = """### When to delegate

`training/configs/methods/when.yaml`: sums of 2 to 24 terms under a window that holds 15, where the policy must find
out from which size on calls pay. All arms of a seed have one warm start and may use 2 M tokens of compute in RL
(sampled, read for credit, and three times those trained on). *Earned* is right answers less what tokens cost,
greedily on 500 held-out instances, mean over five sizes; then what that is above `default` with the same seed, with a
95 % interval over three seeds (Student's t, two degrees of freedom: wide), the same for the mean over eight probes on
the way, and how many times fewer tokens of compute it took to come to where `default` ended (-: it did not, or
`default` had not risen). An arm is called better or worse if its interval leaves out 0: of thirteen that do nothing,
one in two such tables has one."""

CELLS = """### Sixteen clones and a graded sum

`training/configs/methods/cells.yaml`: the 26 conventions of [keyed cells](cells.md), with the baseline that did best
there, 1.65 M tokens of compute in RL. *Earned* is the share of right cells on 100 held-out instances."""

CONFIRM_CELLS = """### On fresh seeds

`training/configs/methods/confirm_cells.yaml`. `salt` was ahead with every seed above, so it was put to five that
nothing had been run with, as written down and committed before the first of them."""

BUDGETS = """### One policy for many budgets

`training/configs/methods/budgets.yaml`: `every` is trained under five budgets of total tokens, drawn for each group
and shown to every agent, `only_B` under one of them. Each has 2 M tokens of compute in RL from one warm start, so the
five have five times what `every` has. Earned as above, 40 held-out instances a size, mean over sizes and seeds.
**`every` less the policy that was trained for the budget: {distance}, mean over budgets with its interval over seeds;
at worst {worst:+.3f} at one budget of one seed.**"""

PREDICTED = """### Predictions

Written down after the tuning runs below and before any reported seed was run."""

PROVENANCE = """### Where it comes from

A cell is an arm with one seed; `python benchmarks/delegation.py --rerun methods_when/seed10` makes those of a seed
again. CPU-s are of training, its warm start included, on a shared machine."""

TUNING = """### Tuning

All on seed 100. The baseline of *when* was tried with four settings, and every arm has the best of them; that of the
cells was tuned for [another page](cells.md). The options of the others are those of their sources or ours, and were
not tuned: what is undecided or worse here may do better with others."""


@dataclass(frozen=True)
class Family:
    """One of the comparisons.

    Attributes:
        experiment: of its cells.
        baseline: the arm that the others are compared with.
        terms: of the reward, whose sum is compared.
        sizes: of the held-out instances that are shown by themselves.
        words: above its tables.
    """

    experiment: str
    baseline: str
    terms: tuple[str, ...]
    sizes: tuple[str, ...]
    words: str

    @property
    def title(self) -> str:
        """As its section of the page."""
        return self.words.partition("\n")[0].removeprefix("### ")


def final(cell: Cell, family: Family, when: str = "sizes") -> float:
    """Mean over the sizes of what a greedy policy earns on held-out instances."""
    return mean(sum(size["terms"][term] for term in family.terms) for size in cell[when].values())


def probed(cell: Cell, family: Family) -> tuple[np.ndarray, np.ndarray]:
    """Compute tokens of RL at each probe, and what the policy earned there, mean over the families of its tasks."""
    found = cell["curves"]["probes"]
    tasks = {name.split("/")[1] for name in found if name.startswith("probe/")}
    earned = [sum(np.array(found[f"probe/{task}/term/{term}"]) for term in family.terms) for task in sorted(tasks)]
    start = cell["curves"]["warmstart"]["compute_tokens"][-1]
    return np.array(found["compute_tokens"], dtype=float) - start, np.mean(earned, axis=0)


def times_fewer(cell: Cell, baseline: Cell, family: Family) -> float | None:
    """How many times fewer tokens of compute than the baseline this cell needed to come to the score at which the
    baseline ended, both by their probes; `None` if it did not, or if the baseline had not risen at all."""
    (tokens, scores), (their_tokens, their_scores) = probed(cell, family), probed(baseline, family)
    if their_scores[-1] <= their_scores[0]:
        return None
    there, their_own = np.flatnonzero(scores >= their_scores[-1]), np.flatnonzero(their_scores >= their_scores[-1])
    return float(their_tokens[their_own[0]] / tokens[there[0]]) if len(there) else None


def signed(differences: Sequence[float]) -> str:
    """Their mean with its 95 % interval over seeds (Student's t)."""
    found = over_seeds(differences)
    return f"{found.mean:+.3f}" + ("" if math.isnan(found.high) else f" ± {found.high - found.mean:.3f}")


def verdict(differences: Sequence[float]) -> str:
    """Whether the interval of the mean leaves 0 out; on which side."""
    found = over_seeds(differences)
    if not (found.low > 0 or found.high < 0):
        return "undecided"
    return "**better**" if found.mean > 0 else "**worse**"


def compared(family: Family, arms: Mapping[str, Sequence[Cell]]) -> str:
    """Pairs of cells with the same seed, and so with the same warm start. Largest mean difference first."""
    baseline = {cell["seed"]: cell for cell in arms[family.baseline]}
    lines = []
    for arm, cells in arms.items():
        pairs = [(cell, baseline[cell["seed"]]) for cell in cells if cell["seed"] in baseline]
        scores = [final(cell, family) for cell, _ in pairs]
        gaps = [score - final(other, family) for score, (_, other) in zip(scores, pairs, strict=True)]
        risen = [mean(probed(cell, family)[1]) - mean(probed(other, family)[1]) for cell, other in pairs]
        shown = [mean(cell["sizes"][size]["accuracy"] for cell in cells) for size in family.sizes]
        own = arm == family.baseline
        line = [
            f"`{arm}`",
            each(scores, 3),
            *(f"{value:.2f}" for value in shown),
            "" if own else signed(gaps),
            "" if own else signed(risen),
            "" if own else each([times_fewer(cell, other, family) for cell, other in pairs], 1),
            "" if own else verdict(gaps),
        ]
        lines.append((mean(gaps), line))
    heads = [
        "arm",
        "earned, by seed",
        *(f"right at {size}" for size in family.sizes),
        f"less `{family.baseline}`",
        "the same, mean over probes",
        "times fewer tokens",
        "",
    ]
    return table(heads, [line for _, line in sorted(lines, key=lambda pair: -pair[0])])


def predicted(found: Mapping[tuple[str, str], str]) -> str:
    """What was written down before any reported seed was run, beside what came."""
    lines = [
        [experiment.removeprefix("methods_"), f"`{arm}`", words, found.get((experiment, arm), "not run")]
        for (experiment, arm), words in PREDICTIONS.items()
    ]
    return table(["", "arm", "predicted", "found"], lines)


# One policy for many budgets


def sweep(seed: int) -> Path:
    """Play the policies of budgets.yaml, which must have been trained here, at every budget; store what they earned."""
    name, kept = f"methods_budgets_seed{seed}", FOLDER / f"sweep-{seed}.json"
    config = Path("runs") / f"{name}_sweep.yaml"
    text = SWEEP.read_text(encoding="utf-8").replace("seed10", f"seed{seed}").replace("[10]", f"[{seed}]")
    config.write_text(text, encoding="utf-8")
    study = [sys.executable, "-m", "selfcest_training", "evaluate", "-c", str(config), "--resume"]
    subprocess.run([*study, f"name={name}"], check=True)
    earned: dict[str, dict[str, dict[str, list[float]]]] = {}
    for result in read_results(Path("studies") / name / "results.jsonl", whole=True):
        place, episode = result.place, result.episodes[result.chosen]
        sizes = earned.setdefault(place.strategy, {}).setdefault(str(place.budget), {})
        sizes.setdefault(place.size, []).append(episode.team_return)
    means = {
        strategy: {
            budget: {size: round(mean(each), 4) for size, each in sizes.items()} for budget, sizes in row.items()
        }
        for strategy, row in earned.items()
    }
    kept.write_text(json.dumps({"seed": seed, "earned": means}, indent=1) + "\n", encoding="utf-8")
    return kept


def swept() -> dict[int, Mapping[str, Mapping[str, float]]]:
    """By seed, policy and budget: what was earned, mean over sizes."""
    files = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(FOLDER.glob("sweep-*.json"))]
    return {
        file["seed"]: {
            policy: {budget: mean(sizes.values()) for budget, sizes in row.items()}
            for policy, row in file["earned"].items()
        }
        for file in files
    }


def distances(earned: Mapping[str, Mapping[str, float]]) -> list[float]:
    """Of the one policy to the one that was trained for a budget, at each budget; below 0 where it earns less."""
    return [value - earned[f"only_{budget}"][budget] for budget, value in earned["every"].items()]


def budgets_table(seeds: Mapping[int, Mapping[str, Mapping[str, float]]]) -> str:
    """A row per policy, a column per budget: means over seeds; that policy's own budget is bold."""
    first = next(iter(seeds.values()))
    lines = []
    for policy, row in first.items():
        values = {budget: mean(seeds[seed][policy][budget] for seed in seeds) for budget in row}
        own = policy.removeprefix("only_")
        lines.append([f"`{policy}`", *(f"**{v:.3f}**" if b == own else f"{v:.3f}" for b, v in values.items())])
    return table(["policy", *(f"{budget} tokens" for budget in next(iter(first.values())))], lines)


# The page


def page(cells: Sequence[Cell], text: str) -> str:
    """`text` with what stands between its marks made anew from the cells."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    found: dict[tuple[str, str], str] = {}
    parts = [HEAD]
    for family in FAMILIES:
        arms = of(cells, family.experiment)
        if arms:
            parts += [family.words, compared(family, arms)]
            found |= {(family.experiment, arm): outcome(family, arms, arm) for arm in arms}
    if seeds := swept():
        gaps = {seed: distances(earned) for seed, earned in seeds.items()}
        said = signed([mean(values) for values in gaps.values()])
        found["methods_budgets", "every"] = f"{said} on average"
        worst = min(min(values) for values in gaps.values())
        parts += [BUDGETS.format(distance=said, worst=worst), budgets_table(seeds)]
    tuning = json.loads((FOLDER / "tuning.json").read_text(encoding="utf-8"))
    columns = ("experiment", "arm", "seed", "tried", "outcome", "cpu_seconds")
    lines = [[str(run[column]) for column in columns] for run in tuning]
    parts += [PREDICTED, predicted(found), PROVENANCE, provenance(cells)]
    parts += [TUNING, table(["", "arm", "seed", "tried", "earned by each probe", "CPU-s"], lines)]
    return "".join([before, BEGIN, "\n\n", "\n\n".join(part.strip() for part in parts), "\n\n", END, after])


def outcome(family: Family, arms: Mapping[str, Sequence[Cell]], arm: str) -> str:
    """The verdict on an arm with its difference, in a few words."""
    baseline = {cell["seed"]: cell for cell in arms[family.baseline]}
    gaps = [
        final(cell, family) - final(baseline[cell["seed"]], family) for cell in arms[arm] if cell["seed"] in baseline
    ]
    return f"{verdict(gaps).strip('*')}, {signed(gaps)}"


def draw(cells: Sequence[Cell], path: Path) -> None:
    """What probes earned against compute, mean over seeds: the baseline and the arms that differ from it, by name; the
    others grey."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * len(FAMILIES), 3.6), layout="constrained")
    for axes, family in zip(np.atleast_1d(figure.subplots(1, len(FAMILIES))), FAMILIES, strict=True):
        arms, places = of(cells, family.experiment), iter(SERIES)
        for arm in sorted(arms, key=lambda arm: arm != family.baseline):
            curves = [probed(cell, family) for cell in arms[arm]]
            tokens, earned = (np.mean([curve[i] for curve in curves], axis=0) for i in (0, 1))
            named = arm == family.baseline or not outcome(family, arms, arm).startswith("undecided")
            colour = next(places).light if named else MUTED.light
            style = {"linewidth": 1.8, "label": arm} if named else {"linewidth": 0.8, "alpha": 0.5}
            axes.plot(tokens / 1e6, earned, color=colour, **style)
        axes.set(xlabel="compute tokens of RL, millions", ylabel="earned, greedy", title=family.title)
        axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=4, frameon=False)
    figure.savefig(path, dpi=130)


FAMILIES = (
    Family("methods_when", "default", ("correct", "token_cost"), ("11-15", "16-20", "21-24"), WHEN),
    Family("methods_cells", "rloo", ("score",), (), CELLS),
    Family("methods_confirm_cells", "rloo", ("score",), (), CONFIRM_CELLS),
)


# Written down before any reported seed of the experiment was run.
PREDICTIONS = {
    ("methods_when", "knapsack"): "better: rollouts go where outcomes are mixed",
    ("methods_when", "dots"): "better: the same",
    ("methods_when", "v0"): "level with `knapsack`",
    ("methods_when", "parl"): "better: clones are paid for while nothing is known of them",
    ("methods_when", "lagrangian"): "better: right answers weigh more until 0.9 are right",
    ("methods_when", "reinforce_ada"): "undecided",
    ("methods_when", "state_zero"): "worse: what it misses of a task stays in the variance",
    ("methods_when", "scaler"): "undecided",
    ("methods_when", "d3s"): "undecided",
    ("methods_when", "hypervolume"): "undecided",
    ("methods_when", "salt"): "undecided",
    ("methods_when", "hapo"): "undecided",
    ("methods_cells", "state_zero"): "worse, as on seed 100",
    ("methods_cells", "d3s"): "worse, as on seed 100",
    ("methods_cells", "salt"): "undecided: equal steps have equal gradients",
    ("methods_cells", "hapo"): "undecided",
    ("methods_budgets", "every"): "within 0.02 of the five on average",
    ("methods_confirm_cells", "salt"): "better",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", metavar="SEED", type=int, help="play a seed's policies of budgets.yaml, store it")
    parser.add_argument("--figure", metavar="FILE", type=Path, help="draw the picture of the page")
    options = parser.parse_args()
    if options.sweep is not None:
        print(f"written to {sweep(options.sweep)}")
    elif options.figure:
        draw(cells_in(FOLDER), options.figure)
    else:
        print(page(cells_in(FOLDER), PAGE.read_text(encoding="utf-8")), end="")


if __name__ == "__main__":
    main()
