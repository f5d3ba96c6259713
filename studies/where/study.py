"""The page on where delegation is worth its cost: clones against readers with and without an attention window.

The page is a function of the stored cells. `studies/trained.py` says what a cell is; `--rerun where/delegating/seed0`
trains and plays one again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING

from selfcest_env.palette import SERIES
from studies.figures import style_axis
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
from studies.trained import COSTS, WINDOW_COSTS, list_missing, rerun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EVIDENCE = Path(__file__).parent / "evidence"
VARIANTS = {
    "delegating": "a clone for each ledger",
    "reading": "a reader with full attention",
    "reading_window": "a reader with an attention window",
    "reading_random": "a reader trained at random positions",
    "reading_tight": "a reader with a tighter window, which carries the sum",
}
# The experiment and the variant in it, for each variant of the page.
CELLS = {
    "delegating": ("where", "delegating"),
    "reading": ("where_full", "reading"),
    "reading_window": ("where", "reading"),
    "reading_random": ("where_random", "reading"),
    "reading_tight": ("where_tight", "reading"),
}
PAIR_CELLS = {name: ("pairs", name) for name in ("pairs_delegating", "pairs_again", "pairs_table")}
EXPERIMENTS = ("where", "where_full", "where_random", "where_tight", "pairs")
LEARNED = 0.9  # accuracy from which on the costs of a seed are compared
NO_WINDOW = {"visible_context": "peak_context", "visible_token_steps": "kv_token_steps"}

CellsByVariant = Mapping[str, Sequence[Cell]]


@dataclass(frozen=True)
class Prediction:
    """A prediction that was committed before the first reported seed.

    Attributes:
        text: what was predicted, with its criterion.
        variants: the variants that it is about.
        find: returns what was found, in words, and whether the prediction held. It needs cells of these variants.
    """

    text: str
    variants: tuple[str, ...]
    find: Callable[[CellsByVariant], tuple[str, bool]]


def stored() -> tuple[list[Cell], list[Cell]]:
    """Return the reported cells and the log of tuning runs."""
    tuning: list[Cell] = read_json(EVIDENCE / "tuning.json")
    return cells_in(EVIDENCE), tuning


def group_by_variant(cells: Sequence[Cell], variants: Mapping[str, tuple[str, str]] = CELLS) -> dict[str, list[Cell]]:
    """Group cells by the name that the page gives their variant: another model makes another reader."""
    groups = {name: of(cells, experiment).get(variant, []) for name, (experiment, variant) in variants.items()}
    return {name: found for name, found in groups.items() if found}


def get_accuracy(cells: Sequence[Cell], size: str) -> list[float]:
    return [cell["sizes"][size]["accuracy"] for cell in cells]


def list_accurate(cells: Sequence[Cell], size: str) -> list[Cell]:
    """List the cells that are accurate at a size, whose costs can be compared."""
    return [cell for cell in cells if cell["sizes"][size]["accuracy"] >= LEARNED]


def get_cost(cell: Cell, size: str, cost: str) -> float:
    """Return a mean cost. A model without a window sees its whole context."""
    costs = cell["sizes"][size]
    value: float = costs[cost] if cost in costs else costs[NO_WINDOW[cost]]
    return value


def get_kept_keys(cell: Cell, size: str) -> float:
    """Return the most keys that are kept at one time, if a reader with a window drops those that it no longer sees.

    No context of a delegating agent is longer than the window, so all its keys are kept.
    """
    return get_cost(cell, size, "concurrent_context" if cell["arm"] == "delegating" else "visible_context")


def page(cells: Sequence[Cell], tuning: Sequence[Cell]) -> str:
    """Return the text of `docs/where.md`."""
    variants, pairs = group_by_variant(cells), group_by_variant(cells, PAIR_CELLS)
    parts = [HEAD, *([evidence_line(cells, "`--rerun`")] if cells else []), list_missing(cells, EXPERIMENTS)]
    if "delegating" in variants:
        for variant, text in RATIOS.items():
            if variant in variants:
                parts += [text, _make_ratio_table(variants["delegating"], variants[variant])]
    parts += [PREDICTED, _make_prediction_table({**variants, **pairs})]
    if variants:
        parts += [ACCURACY, _make_accuracy_table(variants), COST, _make_cost_table(variants)]
    if pairs:
        parts += [PAIRS_TEXT, _make_accuracy_table(pairs), _make_cost_table(pairs)]
    if cells:
        parts += [PROVENANCE, provenance(cells)]
    return joined([*filter(None, parts), TUNING, tuning_table(tuning)])


def _list_sizes(variants: CellsByVariant) -> dict[str, str]:
    """Return the sizes, and for each whether it is within training."""
    first = next(iter(variants.values()))[0]
    return {size: found["shift"] for size, found in first["sizes"].items()}


def _make_accuracy_table(variants: CellsByVariant) -> str:
    lines = []
    for size, shift in _list_sizes(variants).items():
        for variant, cells in variants.items():
            accuracy = get_accuracy(cells, size)
            num_learned = sum(value >= LEARNED for value in accuracy)
            name = size if shift == "in" else f"{size}, not in training"
            ends = [f"{median(accuracy):.2f}", f"{min(accuracy):.2f}", f"{num_learned} of {len(accuracy)}"]
            lines.append([name, variant, each(accuracy), *ends])
    return table(
        ["ledgers x entries", "variant", "accuracy of every seed", "median", "lowest", f"at {LEARNED} or more"], lines
    )


def _make_ratio_table(numerator: Sequence[Cell], denominator: Sequence[Cell]) -> str:
    """Return ratios of mean costs by size, over the seeds in which each variant is accurate."""
    columns: list[tuple[str, Callable[[Cell, str], float]]] = [
        (cost.replace("_", " "), partial(get_cost, cost=cost)) for cost in (*COSTS, *WINDOW_COSTS)
    ]
    columns.append(("kept keys", get_kept_keys))
    lines = []
    for size in numerator[0]["sizes"]:
        accurate = [list_accurate(cells, size) for cells in (numerator, denominator)]
        line = [size, f"{len(accurate[0])} of {len(numerator)} and {len(accurate[1])} of {len(denominator)}"]
        for _, get in columns:
            if accurate[0] and accurate[1]:
                above, below = (mean(get(cell, size) for cell in cells) for cells in accurate)
                line.append(f"x{above / below:.2f}")
            else:
                line.append("-")
        lines.append(line)
    return table(["ledgers x entries", f"seeds at {LEARNED} or more", *(name for name, _ in columns)], lines)


def _make_cost_table(variants: CellsByVariant) -> str:
    """Return mean costs of the accurate seeds."""
    lines = []
    for size in _list_sizes(variants):
        for variant, cells in variants.items():
            accurate = list_accurate(cells, size)
            if accurate:
                costs = [mean(get_cost(cell, size, cost) for cell in accurate) for cost in (*COSTS, *WINDOW_COSTS)]
                count = f"{len(accurate)} of {len(cells)}"
                lines.append([size, variant, count, *(f"{cost:.0f}" for cost in costs)])
    heads = [cost.replace("_", " ") for cost in (*COSTS, *WINDOW_COSTS)]
    return table(["ledgers x entries", "variant", f"seeds at {LEARNED} or more", *heads], lines)


def _make_prediction_table(variants: CellsByVariant) -> str:
    lines = []
    for prediction in PREDICTIONS:
        if not set(prediction.variants) <= variants.keys():
            lines.append([prediction.text, "not run yet", ""])
            continue
        found, held = prediction.find(variants)
        lines.append([prediction.text, found, "held" if held else "**failed**"])
    return table(["predicted", "found", ""], lines)


def predict_accuracy(variant: str, sizes: Sequence[str], *, least: float = 0.0, most: float = 1.0) -> Prediction:
    """Predict that the median accuracy over seeds lies in an interval, at every one of these sizes."""

    def find(variants: CellsByVariant) -> tuple[str, bool]:
        medians = {size: median(get_accuracy(variants[variant], size)) for size in sizes}
        words = ", ".join(f"{size} {value:.2f}" for size, value in medians.items())
        return words, all(least <= value <= most for value in medians.values())

    bound = f"at least {least}" if most == 1.0 else f"at most {most}"
    return Prediction(f"{variant}, {', '.join(sizes)}: median accuracy {bound}", (variant,), find)


def predict_ratio(
    size: str, cost: str, low: float, high: float, reader: str = "reading_window", delegating: str = "delegating"
) -> Prediction:
    """Predict the cost of delegating over that of a reader with a window, of the seeds that are accurate."""

    def find(variants: CellsByVariant) -> tuple[str, bool]:
        means = []
        for variant in (delegating, reader):
            accurate = list_accurate(variants[variant], size)
            if not accurate:
                return f"no accurate seed of {variant}", False
            means.append(mean(get_cost(cell, size, cost) for cell in accurate))
        ratio = means[0] / means[1]
        return f"x{ratio:.2f}", low <= ratio <= high

    words = cost.replace("_", " ")
    text = f"{delegating} over {reader}, {size}, {words}: x{low:.2f} to x{high:.2f}"
    return Prediction(text, (delegating, reader), find)


INSIDE = ("1x16", "4x6", "9x4")
LONG = ("4x18", "3x24", "6x20", "8x20", "10x16", "10x24")
PREDICTIONS = (
    predict_accuracy("delegating", INSIDE, least=0.97),
    predict_accuracy("reading", INSIDE, least=0.97),
    predict_accuracy("reading_window", INSIDE, least=0.97),
    predict_accuracy("delegating", LONG, least=0.95),
    predict_accuracy("reading", LONG, most=0.2),
    predict_accuracy("reading_window", LONG, least=0.85),
    predict_accuracy("delegating", ("3x26",), most=0.6),
    predict_accuracy("delegating", ("12x13",), most=0.2),
    predict_accuracy("reading_window", ("12x13",), most=0.5),
    predict_ratio("6x20", "total_tokens", 0.98, 1.06),
    predict_ratio("6x20", "critical_path_tokens", 0.22, 0.28),
    predict_ratio("6x20", "visible_token_steps", 0.38, 0.48),
    predict_ratio("6x20", "visible_context", 0.45, 0.55),
    predict_ratio("6x20", "concurrent_context", 0.9, 1.1),
    # Of the outside reader's variant, committed before its first reported seed.
    predict_accuracy("reading_tight", INSIDE, least=0.97),
    predict_accuracy("reading_tight", LONG, least=0.9),
    predict_accuracy("reading_tight", ("12x13",), most=0.5),
    predict_accuracy("reading_tight", ("3x26",), most=0.6),
    predict_ratio("6x20", "total_tokens", 0.98, 1.06, "reading_tight"),
    predict_ratio("6x20", "critical_path_tokens", 0.22, 0.28, "reading_tight"),
    predict_ratio("6x20", "visible_token_steps", 0.56, 0.66, "reading_tight"),
    predict_ratio("6x20", "visible_context", 0.85, 0.95, "reading_tight"),
    # Of random positions, committed before their first reported seed.
    predict_accuracy("reading_random", INSIDE, most=0.9),
    predict_accuracy("reading_random", LONG, most=0.3),
    # Of pairs, committed before the first reported seed of each variant.
    predict_accuracy("pairs_delegating", ("2x12", "4x6"), least=0.97),
    predict_accuracy("pairs_again", ("2x12", "4x6"), least=0.95),
    predict_accuracy("pairs_table", ("2x12", "4x6"), least=0.9),
    predict_accuracy("pairs_delegating", ("4x12", "5x12"), least=0.9),
    predict_accuracy("pairs_again", ("4x12", "5x12"), most=0.3),
    predict_accuracy("pairs_table", ("4x12", "5x12"), most=0.3),
    predict_ratio("4x6", "total_tokens", 1.0, 1.12, "pairs_again", "pairs_delegating"),
    predict_ratio("4x6", "critical_path_tokens", 0.3, 0.42, "pairs_again", "pairs_delegating"),
    predict_ratio("4x6", "visible_token_steps", 0.22, 0.32, "pairs_again", "pairs_delegating"),
    predict_ratio("4x6", "total_tokens", 1.65, 2.0, "pairs_table", "pairs_delegating"),
    predict_ratio("4x6", "critical_path_tokens", 0.45, 0.6, "pairs_table", "pairs_delegating"),
    predict_ratio("4x6", "visible_token_steps", 0.38, 0.52, "pairs_table", "pairs_delegating"),
)


def draw(cells: Sequence[Cell], file: Path) -> None:
    """Draw accuracy against the number of entries, and the critical path against it, for each variant.

    A band goes from the lowest to the highest seed.
    """
    from matplotlib.figure import Figure

    figure: Figure = Figure(figsize=(8.6, 4.1), layout="constrained")
    accuracy_axis, path_axis = figure.subplots(1, 2)
    for (variant, found), colour, mark in zip(group_by_variant(cells).items(), SERIES, "os^Dv", strict=False):
        sizes = {size: _count_entries(size) for size in found[0]["sizes"] if size not in ("3x26", "12x13")}
        entries = sorted(set(sizes.values()))
        by_entries = [[size for size in sizes if sizes[size] == count] for count in entries]
        values = [[value for size in group for value in get_accuracy(found, size)] for group in by_entries]
        medians = [median(of_entries) for of_entries in values]
        paths = [
            mean(get_cost(cell, size, "critical_path_tokens") for size in group for cell in found)
            for group in by_entries
        ]
        options = {"color": colour.light, "marker": mark, "label": VARIANTS[variant]}
        accuracy_axis.plot(entries, medians, **options)
        accuracy_axis.fill_between(
            entries, [*map(min, values)], [*map(max, values)], color=colour.light, alpha=0.15, linewidth=0
        )
        accurate = [i for i, value in enumerate(medians) if value >= LEARNED]
        path_axis.plot([entries[i] for i in accurate], [paths[i] for i in accurate], **options)
    accuracy_axis.axvline(36, color="0.6", linewidth=0.8, linestyle=":")
    accuracy_axis.set(
        xlabel="named entries (at most 36 in training)", ylabel="accuracy, median of seeds", ylim=(0, 1.05)
    )
    style_axis(accuracy_axis, "A bounded view reaches longer ledgers")
    path_axis.set(xlabel="named entries", ylabel="critical path, tokens")
    path_axis.set_ylim(0)
    style_axis(path_axis, "Clones keep the critical path short")
    handles, labels = accuracy_axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    figure.savefig(file, dpi=200)


def _count_entries(size: str) -> int:
    named, length = size.split("x")
    return int(named) * int(length)


HEAD = """# Where delegation is worth its cost

Experiments with the embedded model (0.17 M parameters) on sums over long keyed ledgers; nothing follows for a large
model. `?[1]C[2]E` names ledgers, and the answer is the last digit of the sum of all their entries. `delegating` calls a
clone for each ledger. `reading` reads ledger by ledger into its own context and writes a subtotal of each.
`reading_window` does the same, and each of its tokens sees the 64 first tokens of the context, which hold the question,
and the last 160. `delegating` has this window, too, but none of its contexts is that long. `reading_tight` is the best
rival that an outside reader found after the freeze, tuned with seeds 200 and 201: each thought carries the sum, so
that 40 first and 80 last tokens are enough up to 120 entries. Four of its ten planned seeds were not run, for lack of
CPU time. `reading_random` has full attention, and was trained at random positions (arXiv 2305.16843), with one attempt:
its failure says little about the method.

All learn by imitation alone, from scratch, from equally many tokens (5 M) and equal shapes: up to ten ledgers, at most
36 named entries in all, at most 24 in one ledger. 0.8 M tokens of the first two readers demonstrate calls, which they
cannot use. Test instances are the same for all seeds, and play is greedy.

`python -m studies where` prints this page from `studies/where/evidence`, and `--rerun where/delegating/seed0` makes a
cell again. The configuration was tuned on seeds from 100 on; configuration and predictions were then committed, and
every reported seed was run once."""

RATIOS = {
    "reading_window": """## What is left to clones

Costs of `delegating` over those of `reading_window`, of the seeds in which each is accurate. A perfect play of the
scripts has the same costs, so seeds show only whether these were learned. Costs are counts, not times: the *critical
path* is the longest chain of generated tokens, *visible token steps* are the keys that all decoding steps see,
*visible context* is the most keys that one step sees, and *concurrent context* is the largest sum of all contexts at
one time, if nothing limits how many agents run at once. *Kept keys* are the same, but a reader drops what it no longer
sees; the clones together keep more.""",
    "reading_tight": "The same over `reading_tight`:",
}

PREDICTED = """## Predictions

They are committed before the first reported seed, those of `reading_tight` when the costs of `delegating` were
known, and those of pairs and random positions after tuning runs on the same instances."""

ACCURACY = "## Accuracy"

PAIRS_TEXT = """## Pairs of ledgers

`*[1]C[2]E[3]A` names ledgers: for each pair of them, the fields with equal digits are counted, and the answer is the
sum modulo 10. Each pair needs both texts at once. `pairs_delegating` gives each pair to a clone, `pairs_again` reads
both ledgers of each pair again, and `pairs_table` reads each ledger once and writes a table of all digits so far. All
see the first 64 and the last 160 tokens. They were shown up to five ledgers and 36 comparisons, in 5.25 M tokens. The
tree has also seen the parts of larger tasks: its clones pairs of twelve entries, its root sums of up to ten replies.
The readers have not; one that is trained on larger tasks may do them as well."""

COST = """## Costs

Means per instance, of the seeds that are accurate."""

PROVENANCE = "## Cells\n\nCPU-s are of training, on a shared machine. A warm start that has not learned begins again."

TUNING = "## Tuning\n\nEvery run that led to the frozen configuration, in order."


STUDY = Study(
    page_file=DOCS / "where.md",
    page=lambda: page(*stored()),
    figures={DOCS / "where.png": lambda file: draw(stored()[0], file)} if stored()[0] else {},
    rerun=rerun,
    cells="EXPERIMENT[/VARIANT]/seedN",
)
