"""Where credit pays: the page of the experiments on `keyed_cells`, from what their runs left behind.

The page is a function of the stored cells. `studies/trained.py` says what a cell is; `--rerun cells/seed0` trains all
variants of a seed again, from one warm start, and `--rerun cells/parts/seed0` one of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING

import numpy as np

from selfcest_env.palette import MUTED, SERIES
from selfcest_eval.stats.statistics import sign_test
from studies.figures import draw_median, style_axis
from studies.runner import (
    DOCS,
    Cell,
    Study,
    cells_in,
    each,
    evidence_line,
    fold,
    joined,
    of,
    provenance,
    read_json,
    table,
    tuning_table,
)
from studies.trained import CREDIT, rerun

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EVIDENCE = Path(__file__).parent / "evidence"
BASELINE = "rloo"
WINDOWS = 5  # of the sampled tokens, of which means are shown
LEARNED = 0.05  # of return that a baseline must have gained for its end to be a mark
SMOOTH = 0.2  # share of the tokens that a running mean of the return goes over


def stored() -> tuple[list[Cell], list[Cell], list[Cell]]:
    """The cells of these experiments, those before a mend, and the log of tuning runs."""
    tuning: list[Cell] = read_json(EVIDENCE / "tuning.json")
    return cells_in(EVIDENCE), cells_in(EVIDENCE / "first"), tuning


def curve(cell: Cell) -> tuple[np.ndarray, np.ndarray]:
    """Sampled tokens of RL at the end of each point, replays included, and the point's mean return."""
    found = cell["curves"]["rl"]
    tokens = np.array(found["sampled_tokens"], dtype=float)
    return tokens, np.array(found["return"])


def smoothed(cell: Cell) -> tuple[np.ndarray, np.ndarray]:
    """Tokens, and the mean return over the share `SMOOTH` of all tokens before; where there are as many."""
    tokens, returns = curve(cell)
    width = SMOOTH * tokens[-1]
    steps = np.diff(tokens, prepend=0.0)
    late = tokens >= width
    running = [
        np.average(returns[inside], weights=steps[inside])
        for end in tokens[late]
        for inside in [(tokens > end - width + 1e-9) & (tokens <= end)]
    ]
    return tokens[late], np.array(running)


def windows(cell: Cell) -> list[float]:
    """Mean return in each of `WINDOWS` equal parts of the tokens."""
    tokens, returns = curve(cell)
    steps, edges = np.diff(tokens, prepend=0.0), np.linspace(0, tokens[-1], WINDOWS + 1)
    parts = [(tokens > low) & (tokens <= high) for low, high in pairwise(edges)]
    return [float(np.average(returns[part], weights=steps[part])) for part in parts]


def speed_up(cell: Cell, baseline: Cell) -> float | None:
    """How many times fewer tokens than the baseline itself took this cell to the baseline's last running mean; `None`
    if it never got there, or if the baseline has not learned, so that there is nowhere to get."""
    tokens, returns = smoothed(cell)
    last_tokens, last = smoothed(baseline)
    if last[-1] < last[0] + LEARNED:
        return None
    there, its_own = np.flatnonzero(returns >= last[-1]), np.flatnonzero(last >= last[-1])
    return float(last_tokens[its_own[0]] / tokens[there[0]]) if len(there) else None


def get_gaps(cells: Sequence[Cell], baseline: Mapping[int, Cell]) -> list[float]:
    """Return how much higher the mean return of each cell is than that of the baseline with its seed."""
    return [mean(windows(cell)) - mean(windows(baseline[cell["seed"]])) for cell in cells]


def page(cells: Sequence[Cell], first: Sequence[Cell], tuning: Sequence[Cell]) -> str:
    """`docs/cells.md`."""
    runs = Counter(run["arm"].partition(",")[0] for run in tuning)
    parts = [
        HEAD.replace(
            "RUNS",
            ", ".join(
                f"{count} {'run' if count == 1 else 'runs'} of `{variant}`" for variant, count in runs.most_common()
            ),
        )
        .replace("EVIDENCE_LINE", evidence_line((*cells, *first), "`--rerun`"))
        .replace("LEARNED", f"{LEARNED}")
    ]
    for experiment, words in zip(CREDIT, (MAIN, ONE, ALL, WIDTH), strict=True):
        variants = _sorted(of(cells, experiment))
        if variants:
            parts += [words, _speed(variants), fold(RETURNS, _returns(variants)), fold(GREEDY, _greedy(variants))]
    if first:
        parts += [MENDED, fold(RETURNS, _returns(_sorted(of(first, CREDIT[0]))))]
    parts += [PROVENANCE, fold("Config, commit and compute of every cell", provenance(cells))]
    parts += [TUNING, fold("Mean return over every 30,000 tokens", tuning_table(tuning))]
    return joined(parts)


def _sorted(variants: Mapping[str, list[Cell]]) -> dict[str, list[Cell]]:
    """Highest mean return in the last part of the tokens first."""
    return dict(sorted(variants.items(), key=lambda pair: -mean(windows(cell)[-1] for cell in pair[1])))


def _returns(variants: Mapping[str, Sequence[Cell]]) -> str:
    lines = []
    for variant, found in variants.items():
        parts = np.array([windows(cell) for cell in found])
        lines.append([variant, *(each(column) for column in parts.T), f"{mean(parts[:, -1]):.2f}"])
    heads = [f"tokens {i + 1}/{WINDOWS}" for i in range(WINDOWS)]
    return table(["variant", *heads, "mean of the last"], lines)


def _greedy(variants: Mapping[str, Sequence[Cell]]) -> str:
    """Share of right cells of the greedy policy by number of cells, median and span over seeds, before RL and after."""
    sizes = list(next(iter(variants.values()))[0]["sizes"])
    lines = [
        [
            variant,
            *(
                _span([cell[when][size]["reward"] for cell in found])
                for size in sizes
                for when in ("before_rl", "sizes")
            ),
        ]
        for variant, found in variants.items()
    ]
    heads = [
        f"{size} {'clone' if size == '1' else 'clones'}, {when} RL" for size in sizes for when in ("before", "after")
    ]
    return table(["variant", *heads], lines)


def _span(values: Sequence[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _speed(variants: Mapping[str, Sequence[Cell]]) -> str:
    """Pairs of cells with the same seed, and so with the same warm start."""
    baseline = {cell["seed"]: cell for cell in variants[BASELINE]}
    lines = []
    for variant, found in variants.items():
        if variant == BASELINE:
            continue
        ratios = [speed_up(cell, baseline[cell["seed"]]) for cell in found]
        gaps = get_gaps(found, baseline)
        above = sum(gap > 0 for gap in gaps)
        test = f"{above} of {len(gaps)}, p = {sign_test(gaps):.2g}"
        lines.append([variant, each(ratios), each(gaps, 3), f"{mean(gaps):+.3f}", test])
    heads = ["variant", f"times fewer tokens to `{BASELINE}`'s end", "mean return less its own", "mean", "above"]
    return table(heads, lines)


def draw(cells: Sequence[Cell], path: Path) -> None:
    """Draw the running mean of the return against sampled tokens, and right cells against the number of clones.

    Lines are medians over seeds. Bands of curves are quartiles, bars go from the lowest to the highest seed.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13.2, 4.2), layout="constrained")
    panels = figure.subplots(1, 3)
    main = of(cells, CREDIT[0])
    for axis, (title, variants) in zip(panels, MAIN_PANELS.items(), strict=False):
        for variant in variants:
            curves = [smoothed(cell) for cell in main.get(variant, [])]
            if curves:
                shared = np.linspace(max(c[0][0] for c in curves), min(c[0][-1] for c in curves), 50)
                returns = [np.interp(shared, *one) for one in curves]
                draw_median(axis, shared / 1000, returns, COLOURED.index(variant), variant)
        style_axis(axis, title)
        axis.set(xlabel="sampled tokens, thousands", ylabel="mean return", ylim=(0, 1))
        axis.legend(fontsize=8, frameon=False, loc="lower left")
    _draw_sizes(panels[-1], of(cells, CREDIT[3]))
    figure.savefig(path, dpi=120, metadata={"Software": None})


def _draw_sizes(axis: Axes, variants: Mapping[str, list[Cell]]) -> None:
    sizes = list(variants[BASELINE][0]["sizes"])
    # All variants have one warm start.
    lines = [("before RL", "before_rl", variants[BASELINE], MUTED.light, "--")]
    for variant, found in _sorted(variants).items():
        lines.append((variant, "sizes", found, SERIES[COLOURED.index(variant)].light, "-"))
    for label, when, found, colour, style in lines:
        shares = [[cell[when][size]["reward"] for cell in found] for size in sizes]
        middle = [median(of_size) for of_size in shares]
        below = [median(of_size) - min(of_size) for of_size in shares]
        above = [max(of_size) - median(of_size) for of_size in shares]
        axis.errorbar(
            [*map(int, sizes)], middle, [below, above], color=colour, ls=style, marker="o", capsize=2, label=label
        )
    style_axis(axis, "Seeds differ more than credit schemes")
    axis.set(xscale="log", xlabel="clones", ylabel="share of right cells", ylim=(0, 1))
    axis.set_xticks([*map(int, sizes)], sizes)
    axis.minorticks_off()
    axis.legend(fontsize=8, frameon=False, loc="lower left")


COLOURED = ("rloo", "parts", "difference", "critic", "gae", "grpo")
MAIN_PANELS = {
    "Credit by parts may be ahead of one return (five seeds)": ("rloo", "parts", "grpo", "difference"),
    "Learned values can do harm": ("rloo", "critic", "gae"),
}

RETURNS = "Mean return in training over each fifth of the tokens, seed by seed"
GREEDY = "Share of right cells in greedy play before and after RL: median, lowest and highest seed"

HEAD = """# Where credit pays

This page is for researchers who want finer credit for a language model's clones. After it you know what eight schemes
gained over `rloo` in one small experiment: little. The policy is the embedded model of 0.17 M parameters on made
tasks, so nothing follows for a large model.

![Share of right cells against sampled tokens](cells.png)

Sixteen clones each find a digit in a document of their own, and the root copies their replies. The return is the share
of right cells. Here counterfactual and per-part credit should win by a factor of k
([theory](credit.md#why-the-counterfactual-baselines-are-unbiased)). They did not:

- **Predicted: `parts` reaches the end of a broadcast in 2.5 times (1.5 to 4) fewer sampled tokens.** One seed of five
  reached 1.5. `parts` is ahead of `rloo` with four seeds, by 1.1 to 1.7 times. Five seeds do not tell this from luck
  (sign test, p = 0.38; they could not have gone below 0.06).
- **Replays were not worth their cost**: `difference`, `coma` and `branches`, for a quarter of the clones each, end
  below `rloo` on average. For sampled `coma` that was predicted.
- **Learned values were not worth their cost, and can do harm**: `critic` learns with no seed and breaks the policy
  with two; `gae` ends below `rloo` on average and breaks it with one. In [the laboratory](lab.md#learned-values),
  where values are linear in their input, both are the best. The states of this model were never trained to hold
  values.
- **One setting does not carry to another warm start.** With one that shows [every number of
  cells](#by-the-number-of-clones), one seed of four learns as much as before, and `parts` ends level with `rloo`.
- **With [one grade for all cells](#all-cells-or-nothing)**, `rloo` learns a little. `difference` unlearns what
  imitation had taught, with every seed.
- With seed 1 none of the nine schemes learns. The reason is not known.
- Sizes that the last phase of imitation did not show (1 and 4 cells) are hardly ever solved, before RL or after.

**Why so little?** This conjecture is not tested. A factor of k needs noise to limit learning. Clones with the same
weights share decisions, whose signals add up as fast as their noise, so broadcast learns them as soon as the step size
allows. The root limits the step size, because its long calls break first.

## What was measured

`python -m studies cells` prints this page from `studies/cells/evidence`; `python -m studies cells --rerun cells/seed0`
makes the cells of a seed again. Everything was tuned on seed 100 and frozen, except the value head of `critic` and
`gae`, which was [changed](#before-a-mend) after its cells were seen. Every reported seed is shown.

EVIDENCE_LINE

- Variants differ in more than credit. `parts` sees sixteen grades and the others one sum. Only `rloo` has a KL term,
  with which it did better. The bound on the gradient's norm is 0.075 for `grpo` and `wideseek`, whose advantages are
  larger, and 0.02 for the others.
- Tuning was uneven: RUNS. The first settings were tried only with `parts` and `rloo`, and most broke.

In all tables, "times fewer tokens" compares with `rloo` of the same seed and warm start: how many times fewer sampled
tokens a variant took to reach the point where the running mean of `rloo` over a fifth of the tokens ended. "-": it did
not reach it, or `rloo` had gained less than LEARNED."""

MAIN = """## Twenty-six conventions

A clone is told a field's letter. After imitation it answers with that field's digit or with the next one's, half and
half. The return requires the first of the two at every other letter and the second at the others. Seeds 0 to 4;
160,000 sampled tokens, replays included."""

ONE = """## One convention

The same, with the field's own digit required at every letter (`cells_one.yaml`), seeds 0 to 2. Predicted from tuning:
level. Both schemes learn it within the first fifth of the tokens."""

ALL = """## All cells or nothing

Four cells, and a return of 1 if all are right (`cells_all.yaml`), from the warm start of the next section; seeds 0 to
4. A grade without parts makes `parts` equal to `rloo`, so it has no variant. Predicted: no difference."""

WIDTH = """## By the number of clones

After a warm start whose last phase shows every number of cells (`cells_width.yaml`); RL asks for sixteen; seeds 0 to
3. Before RL one more clone costs hardly any accuracy. What RL teaches at sixteen reaches one and two cells in part,
and eight lose. The share of the last phase that shows any number was [tuned](#tuning) on seed 100."""

PROVENANCE = """## Where it comes from

A cell is a variant with one seed. CPU-s are of training, on a shared machine."""

MENDED = """## Before a mend

The first value head of `critic` and `gae` shrank its intercept with its weights. It was changed after these cells were
seen, and the ones above are new."""

TUNING = """## Tuning

All runs of more than four steps on seed 100. Those before `letters_s` have other settings of the task or of RL, of
which most broke."""

STUDY = Study(
    page_file=DOCS / "cells.md",
    page=lambda: page(*stored()),
    figures={DOCS / "cells.png": lambda file: draw(stored()[0], file)},
    rerun=rerun,
    cells="EXPERIMENT[/VARIANT]/seedN",
)
