"""Learning signals compared on delegation: the middle of docs/methods.md, from what their runs left behind.

    python benchmarks/methods.py                                     # prints docs/methods.md from docs/evidence/methods
    python benchmarks/methods.py --figure docs/methods.png           # draws its picture
    python benchmarks/delegation.py --rerun methods_when/seed10      # all arms of a seed again, from one warm start
    python benchmarks/delegation.py --rerun methods_when/dots/seed10 # one of them

What stands between the page's two marks is a function of the stored cells alone; the rest of the page stays as it is.
What a cell is stands in benchmarks/delegation.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import numpy as np
from delegation import EVIDENCE, ROOT, each, table

from selfcest_training.evaluation.statistics import over_seeds

Cell = Mapping[str, Any]
FOLDER, PAGE = EVIDENCE / "methods", ROOT / "docs" / "methods.md"
BEGIN, END = "<!-- compared: by benchmarks/methods.py -->", "<!-- end of what is compared -->"


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


def final(cell: Cell, family: Family, when: str = "sizes") -> float:
    """Mean over the sizes of what a greedy policy earns on held-out instances."""
    return mean(sum(size["terms"][term] for term in family.terms) for size in cell[when].values())


def probed(cell: Cell, family: Family) -> tuple[np.ndarray, np.ndarray]:
    """Compute tokens of RL at each probe, and what the policy earned there, mean over the families of its tasks. The
    first is the policy before RL, by its own evaluation."""
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


# Written down before any reported seed was run.
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
}
