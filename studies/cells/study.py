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
        ).replace("EVIDENCE_LINE", evidence_line((*cells, *first), "`--rerun`"))
    ]
    for experiment, words in zip(CREDIT, (MAIN, ONE, ALL, WIDTH), strict=True):
        variants = _sorted(of(cells, experiment))
        if variants:
            parts += [words, _returns(variants), SPEED, _speed(variants), GREEDY, _greedy(variants)]
    if first:
        parts += [MENDED, _returns(_sorted(of(first, CREDIT[0])))]
    parts += [PROVENANCE, provenance(cells), TUNING, tuning_table(tuning)]
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


HEAD = """# Where credit pays

Sixteen clones each find a digit in a document of their own, the root copies their replies, and the return is the share
of right cells: many clones, a graded sum, a quiet join, where counterfactual and per-part credit should win by a factor
of k ([theory](credit.md#why-the-counterfactual-baselines-are-unbiased)). The embedded model of 0.17 M parameters, made
tasks; nothing follows for a large model. `python -m studies cells` prints this page from `studies/cells/evidence`,
`python -m studies cells --rerun cells/seed0` makes the cells of a seed again. Tuned on seed 100 and frozen, but
for the value head of `critic` and `gae`, [mended](#before-a-mend) after its cells were seen; every reported seed is
shown.

EVIDENCE_LINE

Variants differ in more than credit: `parts` sees sixteen grades and the others one sum; `rloo` alone has a KL term,
with which it did better; the bound on the gradient's norm is 0.075 for `grpo` and `wideseek`, whose advantages are
larger, and 0.02 for the others.

![Share of right cells against sampled tokens](cells.png)

**What did not come out:**

- **Predicted: `parts` comes to the end of a broadcast in 2.5 times (1.5 to 4) fewer sampled tokens.** One seed of five
  reached 1.5. It is ahead of `rloo` with four seeds, by 1.1 to 1.7 times, and five seeds do not tell this from luck
  (sign test, p = 0.38; they could not have gone below 0.06).
- **Replays did not pay**: `difference`, `coma` and `branches`, for a quarter of the clones each, end below `rloo` on
  average; of sampled `coma` that was predicted.
- **What was tuned on one warm start does not carry to another.** With one that shows [every number of
  cells](#by-the-number-of-clones), one seed of four learns as much as seeds did before, and `parts` ends level with
  `rloo`.
- **Learned values did not pay, and can do harm**: `critic`, whose clones are credited by values alone, learns with no
  seed and breaks the policy with two; `gae` ends below `rloo` on average and breaks it with one. In [the
  laboratory](lab.md#learned-values), where values are linear in what they are given, both are the best; the states of
  this model were never taught to hold values.
- With seed 1 none of the nine schemes learns; why is not known.
- **The twin with [one grade for all cells](#all-cells-or-nothing)** shows nothing for counterfactuals, as predicted,
  and less than that: `rloo` learns a little, and `difference` unlearns what imitation had taught, with every seed.
- Sizes that the last phase of imitation did not show (1 and 4 cells) are hardly ever done at all, before RL or after.
- **Tuning was uneven and on one seed**: RUNS. The first settings were tried with `parts` and `rloo` alone, and most
  broke.

**Why so little?** A conjecture, not tested: a factor of k needs noise to be what limits learning. Clones with the same
weights share decisions, whose signals add up as fast as their noise, and broadcast learns them as soon as the step size
allows: with [one convention](#one-convention) `parts` is ahead in the first fifth of the tokens and then level. What
bounds the step size in turn is the root, whose long calls break first (see the log of tuning; runs with the root's
turns left out of the loss broke too)."""

MAIN = """## Twenty-six conventions

A clone is told a field's letter. After imitation it answers with that field's digit or with the next one's, half and
half; the return wants the one at every other letter of the alphabet. 160,000 sampled tokens, replays included.

Mean return in training over each fifth of the tokens, seeds 0 to 4:"""

ONE = """## One convention

The same, with the field's own digit wanted at every letter (`cells_one.yaml`), seeds 0 to 2. Predicted from tuning:
level. It is learned within the first fifth of the tokens by either scheme."""

ALL = """## All cells or nothing

Four cells, and a return of 1 if all are right (`cells_all.yaml`), from the warm start of the next section; seeds 0 to
4. A grade without parts makes `parts` `rloo`, so it has no variant. Predicted: no difference."""

WIDTH = """## By the number of clones

After a warm start whose last phase shows every number of cells (`cells_width.yaml`); RL asks for sixteen, and policies
are asked for fewer as well; seeds 0 to 3. Before RL a clone more costs hardly anything in accuracy; what RL teaches at
sixteen reaches one and two cells in part, and eight lose. The share of the last phase that shows any number was
[tuned](#tuning) on seed 100."""

SPEED = f"""Against `{BASELINE}` with the same seed, from the same warm start: how many times fewer sampled tokens than
`{BASELINE}` it took to come to where the running mean of `{BASELINE}` over a fifth of the tokens ended (-: it did not,
or `{BASELINE}` had gained less than {LEARNED}), and the difference of mean returns over all tokens."""

GREEDY = """Share of right cells in greedy play, by the number of cells, each of which takes a clone: median, lowest and
highest seed."""

PROVENANCE = """## Where it comes from

A cell is a variant with one seed. CPU-s are of training, on a shared machine."""

MENDED = """## Before a mend

The first cells of `critic` and `gae` were those of a value head that shrank its intercept with its weights. It was
mended after these were seen, and the ones above are new. The mean return over each fifth of the tokens was:"""

TUNING = """## Tuning

On seed 100, every run of more than four steps; mean return over every 30,000 tokens. Those before `letters_s` are of
other settings of the task or of RL, of which most broke."""

STUDY = Study(
    page_file=DOCS / "cells.md",
    page=lambda: page(*stored()),
    figures={DOCS / "cells.png": lambda file: draw(stored()[0], file)},
    rerun=rerun,
    cells="EXPERIMENT[/VARIANT]/seedN",
)
