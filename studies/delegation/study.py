"""Where delegating pays, and when a policy does it: the page of all experiments, from what their runs left behind.

The page is a function of the stored cells. `studies/trained.py` says what a cell is; `--rerun quick/deciding/seed0`
trains and plays one again, in 3 to 10 minutes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING

from selfcest_env.palette import INK, LINE, MUTED, SERIES, SURFACE
from selfcest_eval.stats.statistics import over_seeds
from studies.runner import (
    DOCS,
    STUDIES,
    Cell,
    Rerun,
    Study,
    cell_name,
    cells_in,
    each,
    evidence_line,
    joined,
    of,
    provenance,
    read_json,
    shown,
    table,
    tuning_table,
)
from studies.trained import CHAT, COSTS, ROTARY, SCARCE, SEPARATE, VARIANTS, rerun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EVIDENCE = STUDIES / "delegation" / "evidence"
FIRST = EVIDENCE / "first"  # by the configuration before the one that is there now
CHAT_STYLES = {"delegating": "delegate", "full_text": "solve", "reading": "read"}
REACH, TRAINED_REACH = EVIDENCE / "reach.json", EVIDENCE / "rotary.json"  # of studies/delegation/reach.py
LEFT_OUT = STUDIES / "gallery" / "evidence" / "left_out.json"  # of studies/gallery/study.py
TOLD = EVIDENCE / "told.json"  # of studies/delegation/reach.py
_WINDOW_TERMS, _CLASS = 10, 5  # terms that the window of `quick` holds, and that a size in its prompts stands for
NEW = 5  # the first seed that no earlier configuration was reported or looked at with
LEARNED = 0.9  # the accuracy on sizes of training below which a cell is no evidence on others
READERS = {"delegating": "delegating", "reading": "reading", "reading_long": "reading, shown up to 168 entries"}
FRONTIER_COSTS = {"total_tokens": "total tokens", "critical_path_tokens": "critical path, tokens"}
LOOKS = [(tone.light, mark) for tone, mark in zip(SERIES, "os^Dv*", strict=True)]  # no meaning hangs on colour alone
DPI = 200


# The page


def stored() -> tuple[list[Cell], list[Cell], list[Cell]]:
    """All cells, those of the first configuration, and the log of tuning runs."""
    tuning: list[Cell] = read_json(EVIDENCE / "tuning.json")
    return cells_in(EVIDENCE), cells_in(FIRST), tuning


def page(cells: Sequence[Cell], first: Sequence[Cell], tuning: Sequence[Cell]) -> str:
    """`docs/delegation.md`."""
    ledgers, sums = of(cells, "quick", "long_ledgers"), of(cells, "quick").get("deciding", [])
    ledgers = {variant: found for variant, found in ledgers.items() if variant != "deciding"}
    line = evidence_line((*cells, *first), "`--rerun`")
    parts = [HEAD.replace("EVIDENCE_LINE", line), *_failures(cells), PREDICTIONS, _predictions(ledgers, sums)]
    parts += [_ledgers(ledgers)] if ledgers else []
    parts += [_reach(read_json(REACH))] if REACH.exists() else []
    rotary = of(cells, ROTARY).get("reading", [])
    parts += [_rotary(rotary)] if rotary else []
    parts += [WINDOWED] if ledgers else []
    scarce = of(cells, SCARCE).get("delegating", [])
    parts += [_scarce(scarce)] if scarce else []
    parts += [_when(sums)] if sums else []
    parts += [_told(json.loads(TOLD.read_text(encoding="utf-8")))] if TOLD.exists() else []
    varied = [cell for cell in cells if cell["experiment"] in VARIANTS]
    parts += [_varied(varied, sums)] if varied else []
    separate = of(cells, SEPARATE)
    parts += [_separate(separate, sums)] if separate and sums else []
    chat = of(cells, CHAT)
    parts += [_chat(chat)] if chat else []
    parts.append(_first(first))
    parts += [PROVENANCE, provenance(cells), TUNING, tuning_table(tuning)]
    return joined(parts)


def spread(values: Sequence[float]) -> str:
    """Of accuracies, whose distribution over seeds has an end at 1 and may have two humps: no interval says it."""
    return f"median {median(values):.2f}, lowest {min(values):.2f}"


def separated(high: Sequence[float], low: Sequence[float]) -> float:
    """Exact two-sided p of a permutation test on two samples of which one lies above the other entirely; else `nan`."""
    return 2 / math.comb(len(high) + len(low), len(low)) if min(high) > max(low) else math.nan


def sign_test(gaps: Sequence[float]) -> float:
    """Two-sided p of so many gaps above 0, or more, or as few, if either sign is as likely."""
    above = sum(gap > 0 for gap in gaps)
    tail = sum(math.comb(len(gaps), k) for k in range(max(above, len(gaps) - above), len(gaps) + 1))
    return min(1.0, 2 * tail / 2 ** len(gaps))


def _accuracy(cells: Iterable[Cell], size: str) -> list[float]:
    return [cell["sizes"][size]["accuracy"] for cell in cells]


def _inside(cell: Cell) -> dict[str, float]:
    """Accuracy by size of training."""
    return {size: found["accuracy"] for size, found in cell["sizes"].items() if found["shift"] == "in"}


def _failures(cells: Sequence[Cell]) -> list[str]:
    """A line for every cell that did not learn what it was shown, and so says nothing of what it was not."""
    lines = []
    for cell in cells:
        if cell["experiment"] in VARIANTS:
            continue
        low = {size: value for size, value in _inside(cell).items() if value < LEARNED}
        if low:
            sizes = ", ".join(f"{size} {value:.2f}" for size, value in low.items())
            lines.append(f"- {cell_name(cell)} is below {LEARNED} on sizes that it was trained on: {sizes}")
        if cell["attempts"] > 1:
            end = "" if cell["learned"] else ", and had not learned when it ended"
            lines.append(f"- {cell_name(cell)}: the warm start began {cell['attempts']} times{end}")
    return ["**What did not come out:**\n\n" + "\n".join(lines)] if lines else [NO_FAILURE]


def _ledgers(variants: Mapping[str, Sequence[Cell]]) -> str:
    lines = []
    for size, first in next(iter(variants.values()))[0]["sizes"].items():
        for variant, found in variants.items():
            accuracy = _accuracy(found, size)
            parts = [[cell for cell in found if (cell["seed"] >= NEW) is new] for new in (False, True)]
            lines.append(
                [
                    size + ("" if first["shift"] == "in" else ", more than trained on"),
                    variant,
                    *(each(_accuracy(part, size)) for part in parts),
                    *(f"{median(accuracy):.2f}", f"{min(accuracy):.2f}"),
                    f"{sum(value >= LEARNED for value in accuracy)} of {len(accuracy)}",
                ]
            )
    heads = [
        "named x entries",
        "variant",
        f"seeds below {NEW}",
        f"from {NEW} on",
        "median",
        "lowest",
        f"at {LEARNED} or more",
    ]
    parts = [LEDGERS, table(heads, lines)]
    if "reading" in variants and "delegating" in variants:
        high, low = (_accuracy(variants[variant], "8x20") for variant in ("delegating", "reading"))
        p = separated(high, low)
        if not math.isnan(p):
            seeds = f"all {len(high)} seeds of `delegating` above all {len(low)} of `reading`"
            parts.append(f"At 8x20 stand {seeds}: p = {p:.1g} in an exact permutation test.")
    if "reading_long" in variants and "delegating" in variants:
        parts += [EQUAL, _equal(variants["delegating"], variants["reading_long"])]
    return "\n\n".join([*parts, BESIDE, _beside(variants)])


def _equal(first: Sequence[Cell], second: Sequence[Cell]) -> str:
    """Ratios of mean costs by size, of the seeds in which both are accurate; the seeds are no pairs."""
    lines = []
    for size in first[0]["sizes"]:
        pair = [[cell for cell in cells if cell["sizes"][size]["accuracy"] >= LEARNED] for cells in (first, second)]
        line = [
            size,
            " and ".join(f"{len(good)} of {len(all_)}" for good, all_ in zip(pair, (first, second), strict=True)),
        ]
        for cost in COSTS:
            paid = [[cell["sizes"][size][cost] for cell in good] for good in pair]
            line.append(f"x{mean(paid[0]) / mean(paid[1]):.2f}" if all(paid) else "not comparable")
        lines.append(line)
    return table(["named x entries", f"seeds at {LEARNED} or more", *map(_words, COSTS)], lines)


def _beside(variants: Mapping[str, Sequence[Cell]]) -> str:
    """Mean costs of accurate seeds, and in brackets those of the perfect player of the variant's strategy."""
    lines = []
    for size in next(iter(variants.values()))[0]["sizes"]:
        for variant, every in variants.items():
            found = [cell for cell in every if cell["sizes"][size]["accuracy"] >= LEARNED]
            line = [size, variant, f"{len(found)} of {len(every)}"]
            for cost in COSTS if found else ():
                own = mean(cell["sizes"][size][cost] for cell in found)
                style = "delegate" if variant == "delegating" else "read"
                line.append(f"{own:.0f} ({mean(cell['errorless'][size][style][cost] for cell in found):.0f})")
            lines += [line] if found else []
    return table(["named x entries", "variant", f"seeds at {LEARNED} or more", *map(_words, COSTS)], lines)


def _reach(found: Cell) -> str:
    """What `studies/delegation/reach.py` found out."""
    names, sizes = list(next(iter(found["asked"].values()))), list(found["asked"])
    contexts = [
        [
            name,
            str(found["shown"].get(name, "")),
            *(str(found["asked"][size][name]["longest_context"]) for size in sizes),
        ]
        for name in names
    ]
    contexts += [
        [variant, str(found["shown"][variant]), *[""] * len(sizes)]
        for variant in found["shown"]
        if variant not in names
    ]
    at_once = []
    for size in sizes:
        ours, theirs = found["asked"][size]["delegating"], found["asked"][size]["reading at once"]
        at_once.append([size, *(f"x{ours[cost] / theirs[cost]:.2f}" for cost in COSTS if cost in ours)])
    costs = [_words(cost) for cost in COSTS if cost in found["asked"][sizes[0]]["delegating"]]
    parts = [REACHED, table(["longest context", "in demonstrations", *sizes], contexts)]
    for words, cells in ((SCALED, found["scaled"] | found["far"]), (BEYOND, found["beyond"])):
        strategies = list(dict.fromkeys(name for cell in cells.values() for name in cell))
        lines = [[name, *(each(cell.get(name, ())) or "-" for cell in cells.values())] for name in strategies]
        parts += [words, table(["", *cells], lines)]
    return "\n\n".join([*parts, AT_ONCE, table(["named x entries", *costs], at_once)])


def _rotary(cells: Sequence[Cell]) -> str:
    """Readers trained with another rotary base, and what setting it after training does to them."""
    lines = []
    for size, first in cells[0]["sizes"].items():
        accuracy = _accuracy(cells, size)
        where = size + ("" if first["shift"] == "in" else ", more than trained on")
        lines.append([where, each(accuracy), f"{median(accuracy):.2f}", f"{min(accuracy):.2f}"])
    heads = ["named x entries", f"seeds {' '.join(str(cell['seed']) for cell in cells)}", "median", "lowest"]
    parts = [ROTATED, table(heads, lines)]
    if TRAINED_REACH.exists():
        sizes = json.loads(TRAINED_REACH.read_text(encoding="utf-8"))["ledgers"]
        names = list(dict.fromkeys(name for cell in sizes.values() for name in cell))
        lines = [[name, *(each(cell[name]) for cell in sizes.values())] for name in names]
        parts += [AFTERWARDS, table(["", *sizes], lines)]
    return "\n\n".join(parts)


def _scarce(cells: Sequence[Cell]) -> str:
    lines = []
    for size, first in cells[0]["sizes"].items():
        before, after = ([cell[when][size]["accuracy"] for cell in cells] for when in ("before_rl", "sizes"))
        gains = [late - early for early, late in zip(before, after, strict=True)]
        line = [size + ("" if first["shift"] == "in" else ", more than trained on"), each(before), each(after)]
        lines.append([*line, f"{mean(gains):+.3f}", f"{sum(gain > 0 for gain in gains)} of {len(gains)}"])
    heads = ["named x entries", f"before RL, seeds {' '.join(str(cell['seed']) for cell in cells)}", "after RL"]
    return f"{SCARCELY}\n\n{table([*heads, 'mean gain', 'higher'], lines)}"


def _words(cost: str) -> str:
    return cost.replace("_", " ").removesuffix(" tokens")


# When


_POLICIES = (
    ("before RL", "before", "free"),
    ("after RL", "after", "free"),
    ("forced always, weights after RL", "after", "always"),
    ("forced never, weights after RL", "after", "never"),
)
_JUDGED: Sequence[tuple[str, str, Callable[[Cell], float | None]]] = (
    ("reward before RL", "before", lambda found: found["free"]["reward"]),
    ("always delegating, weights before RL", "before", lambda found: found["always"]["reward"]),
    ("best threshold, weights before RL", "before", lambda found: found["threshold_reward"]),
    ("**reward after RL**", "after", lambda found: found["free"]["reward"]),
    ("after RL - always, same weights", "after", lambda found: found["free"]["reward"] - found["always"]["reward"]),
    ("after RL - never, same weights", "after", lambda found: found["free"]["reward"] - found["never"]["reward"]),
    ("best threshold, weights after RL", "after", lambda found: found["threshold_reward"]),
    ("its size, terms", "after", lambda found: found["threshold"]),
    ("regret before RL", "before", lambda found: found["regret"]),
    ("**regret after RL**", "after", lambda found: found["regret"]),
    ("decision F1 before RL", "before", lambda found: found["f1"]),
    ("decision F1 after RL", "after", lambda found: found["f1"]),
)


def _told(figures: Cell) -> str:
    """Decisions of the shipped policy by the size that its prompt says."""
    hints = list(next(iter(figures["sizes"].values())))

    def share(cell: Mapping[str, float]) -> str:
        return f"{cell['called']:.2f} / {cell['accuracy']:.2f}"

    heads = ["terms", *("no size" if hint == "0" else f"`[{hint}]`" for hint in hints)]
    lines = [[size, *(share(by_hint[hint]) for hint in hints)] for size, by_hint in figures["sizes"].items()]
    sizes = list(figures["sizes"])
    windows = [
        ["none" if window == "0" else f"{window} tokens", *(share(by_size[size]) for size in sizes)]
        for window, by_size in figures["windows"].items()
    ]
    # A size of 15 or more in the prompt says to call, because a window of the default holds ten terms.
    obeyed = [
        cell["called"] if int(hint) > _WINDOW_TERMS else 1 - cell["called"]
        for size, by_hint in figures["sizes"].items()
        for hint, cell in by_hint.items()
        if int(hint) and not 0 <= int(hint) - int(size) < _CLASS
    ]
    words = SIZE_TOLD.format(episodes=figures["episodes"], version=figures["version"], least=min(obeyed))
    return "\n\n".join([words, table(heads, lines), WINDOW_TOLD, table(["window", *sizes], windows)])


def _when(cells: Sequence[Cell]) -> str:
    sizes = list(cells[0]["decisions"]["after"]["sizes"])
    lines = []
    for name, when, way in _POLICIES:
        found = [cell["decisions"][when] for cell in cells]
        line = [_shares([judged["sizes"][size][way] for judged in found]) for size in sizes]
        lines.append([name, *line, _shares([judged[way] for judged in found])])
    for style, words in (("delegate", "always"), ("solve", "never")):
        totals = [mean(cell["errorless"][size][style]["total_tokens"] for cell in cells) for size in sizes]
        lines.append(
            [f"perfect execution, {words}: total tokens", *(f"{total:.0f}" for total in (*totals, mean(totals)))]
        )
    parts = [WHEN, table(["policy", *(f"{size} terms" for size in sizes), "all"], lines), DECISIONS, _moved(cells)]
    lines = []
    for name, when, read in _JUDGED:
        values = [read(cell["decisions"][when]) for cell in cells]
        known = [value for value in values if value is not None]
        lines.append([name, *(each([value], 3) for value in values), shown(over_seeds(known), 3) if known else "-"])
    heads = ["", *(f"seed {cell['seed']}" for cell in cells), "mean"]
    counts = json.loads(LEFT_OUT.read_text(encoding="utf-8"))
    by_heart = BY_HEART.format(**{kind: "{} of {}".format(*count) for kind, count in counts.items()})
    return "\n\n".join([*parts, table(heads, lines), by_heart])


def _share(cell: Cell, when: str) -> list[float]:
    """Delegated, by size."""
    return [found["free"]["delegated"] for found in cell["decisions"][when]["sizes"].values()]


def _moved(cells: Sequence[Cell]) -> str:
    sizes = " ".join(cells[0]["decisions"]["after"]["sizes"])
    lines = [[str(cell["seed"]), each(_share(cell, "before")), each(_share(cell, "after"))] for cell in cells]
    return table(["seed", f"share delegated at {sizes} terms, before RL", "after"], lines)


def _shares(found: Sequence[Mapping[str, float]]) -> str:
    average = {key: mean(part[key] for part in found) for key in found[0]}
    return f"{average['delegated']:.2f} / {average['accuracy']:.2f} / {average['tokens']:.0f} / {average['reward']:.2f}"


def _varied(cells: Sequence[Cell], sums: Sequence[Cell]) -> str:
    lines = []
    seeds = {cell["seed"] for cell in cells}
    for cell in [*(cell for cell in sums if cell["seed"] in seeds), *cells]:
        judged = cell["decisions"]["after"]
        threshold = "never" if judged["threshold"] is None else str(judged["threshold"])
        rewards = [judged[way]["reward"] for way in ("free", "always", "never")]
        lines.append([cell_name(cell), threshold, each(_share(cell, "before")), each(_share(cell, "after"))])
        lines[-1] += [each(rewards, 3), each([judged["regret"]], 3), each([judged["f1"]])]
    heads = ["cell", "best threshold", "share delegated by size, before RL", "after", "reward after, always, never"]
    guessing = [_guessed(cell) for cell in cells if cell["experiment"] == "dear"]
    return "\n\n".join([VARIED, *guessing, table([*heads, "regret", "F1"], lines)])


def _guessed(cell: Cell) -> str:
    """What was left out of the prediction, from what the sizes earned for which calls were predicted."""
    before, after = (cell["decisions"][when]["sizes"]["11-15"] for when in ("before", "after"))
    return GUESSED.format(
        tokens=after["free"]["tokens"],
        guess=after["free"]["reward"],
        call=before["always"]["reward"],
        alone=before["never"]["reward"],
    )


def _separate(variants: Mapping[str, Sequence[Cell]], sums: Sequence[Cell]) -> str:
    """By size: accuracy, total tokens and reward of policies taught one way, beside the one that was taught both."""
    seeds = {cell["seed"] for found in variants.values() for cell in found}
    shown_here = {"deciding, taught both": [cell for cell in sums if cell["seed"] in seeds]}
    shown_here |= {f"{variant}, taught that alone": list(found) for variant, found in variants.items()}
    lines = []
    for name, found in shown_here.items():
        for cell in found:
            sizes = list(cell["sizes"].values())
            line = [_triple([size]) for size in sizes]
            lines.append([f"{name}, seed {cell['seed']}", *line, _triple(sizes)])
    heads = ["policy after RL", *(f"{size} terms" for size in sums[0]["sizes"]), "all"]
    return f"{SEPARATELY}\n\n{table(heads, lines)}"


def _triple(sizes: Sequence[Cell]) -> str:
    accuracy, tokens, reward = (mean(size[key] for size in sizes) for key in ("accuracy", "total_tokens", "reward"))
    return f"{accuracy:.2f} / {tokens:.0f} / {reward:.2f}"


def _chat(variants: Mapping[str, Sequence[Cell]]) -> str:
    """Accuracy of every seed before and after RL, and mean costs beside those of the perfect player."""
    lines = []
    for size, first in next(iter(variants.values()))[0]["sizes"].items():
        for variant, cells in variants.items():
            before = [cell["before_rl"][size] for cell in cells]
            line = [size + ("" if first["shift"] == "in" else ", more than trained on"), variant]
            line += [each([one["accuracy"] for one in before]), each(_accuracy(cells, size))]
            line.append(f"{mean(one['total_tokens'] for one in before):.0f}")
            for cost in COSTS:
                own = mean(cell["sizes"][size][cost] for cell in cells)
                style = CHAT_STYLES[variant]
                line.append(f"{own:.0f} ({mean(cell['errorless'][size][style][cost] for cell in cells):.0f})")
            lines.append(line)
    heads = ["named x entries", "variant", "before RL, every seed", "after RL", "total before RL", *map(_words, COSTS)]
    return f"{CHATTED}\n\n{table(heads, lines)}"


def _first(cells: Sequence[Cell]) -> str:
    """What the first configuration's reported seeds came to."""
    variants = of(cells, "quick", "long_ledgers")
    sizes = variants["delegating"][0]["sizes"]
    accuracy = table(
        ["variant", *sizes],
        [
            [variant, *(each(_accuracy(found, size)) for size in sizes)]
            for variant, found in variants.items()
            if variant != "deciding"
        ],
    )
    lines = [
        [str(cell["seed"]), each(_share(cell, "after")), each([judged["regret"]], 3), each([judged["f1"]])]
        for cell in variants["deciding"]
        for judged in [cell["decisions"]["after"]]
    ]
    decisions = table(["seed", "share delegated by size, after RL", "regret", "F1"], lines)
    return f"{EARLIER}\n\n{accuracy}\n\n{decisions}"


# Predictions, written before the runs


def _predictions(ledgers: Mapping[str, Sequence[Cell]], sums: Sequence[Cell]) -> str:
    lines: list[list[str]] = []

    def say(prediction: str, criterion: str, found: str, held: bool) -> None:
        lines.append([prediction, criterion, found, "held" if held else "**failed**"])

    def accuracy(variant: str, size: str) -> list[float]:
        return _accuracy(ledgers.get(variant, ()), size)

    cells = [cell for found in (*ledgers.values(), sums) for cell in found]
    for least, among in ((0.95, [cell for found in ledgers.values() for cell in found]), (0.9, cells)):
        inside = {cell_name(cell): min(_inside(cell).values()) for cell in among}
        lowest = min(inside, key=lambda name: inside[name])
        what = (
            "ledgers, on sizes of training: every variant"
            if among is not cells
            else "every variant on sizes of training"
        )
        say(f"{what} {least} or more", "lowest", f"{inside[lowest]:.2f} ({lowest})", inside[lowest] >= least)
    for size, least in (("4x18", 0.99), ("6x20", 0.97)):
        found = accuracy("delegating", size)
        say(f"delegating, {size}: {least}", "mean, rounded", spread(found), round(mean(found), 2) >= least)
        found = accuracy("reading", size)
        say(f"reading, {size}: 0.06", "highest 0.2", f"{min(found):.2f} to {max(found):.2f}", max(found) <= 0.2)
    if found := accuracy("reading_long", "4x18"):
        for size in ("4x18", "6x20"):
            found = accuracy("reading_long", size)
            say(f"reading_long, {size}: 0.9 to 1.0", "mean", spread(found), mean(found) >= 0.9)
            paths = [
                mean(cell["sizes"][size]["critical_path_tokens"] for cell in ledgers[variant])
                for variant in ("reading_long", "delegating")
            ]
            ratio = paths[0] / paths[1]
            say(f"its critical path, {size}: 3 to 4 times", "to a digit", f"{ratio:.1f}", 3 <= round(ratio, 1) <= 4)
    for size in ("4x18", "6x20"):
        ratio = _total_over(ledgers["delegating"], ledgers["reading"], size)
        say(f"at most 1.05 of the tokens of a perfect reader, {size}", "mean", f"{ratio:.2f}", ratio <= 1.05)
    small = max(max(_share(cell, "after")[:2]) for cell in sums)
    large = min(min(_share(cell, "after")[2:]) for cell in sums)
    say("share delegated under 0.3 up to 10 terms", "every seed", f"at most {small:.2f}", small < 0.3)
    say("and above 0.9 from 11 on", "every seed", f"at least {large:.2f}", large > 0.9)
    for way in ("always", "never"):
        gaps = [
            cell["decisions"]["after"]["free"]["reward"] - cell["decisions"]["after"][way]["reward"] for cell in sums
        ]
        above = sum(gap > 0 for gap in gaps)
        says = f"{shown(over_seeds(gaps), 3)}, {above} of {len(gaps)}, p = {sign_test(gaps):.2g}"
        say(f"reward above *{way}*", "sign test, p < 0.05", says, above > len(gaps) / 2 and sign_test(gaps) < 0.05)
    regrets = [cell["decisions"]["after"]["regret"] for cell in sums]
    say("regret at most 0.025", "every seed", f"at most {max(regrets):.3f}", max(regrets) <= 0.025)
    return table(["predicted", "held if", "found", ""], lines)


def _total_over(cells: Sequence[Cell], readers: Sequence[Cell], size: str) -> float:
    """Mean total tokens over those of a perfect reader of the same instances."""
    perfect_tokens = mean(cell["errorless"][size]["read"]["total_tokens"] for cell in readers)
    return mean(cell["sizes"][size]["total_tokens"] for cell in cells) / perfect_tokens


# The pictures


def draw(cells: Sequence[Cell], path: Path) -> None:
    """Left: accuracy against named entries, every seed and the mean. Right: share delegated against size."""
    figure, (left, right) = _panels()
    ledgers = of(cells, "quick", "long_ledgers")
    for (variant, label), (colour, mark) in zip(READERS.items(), LOOKS, strict=False):
        curves = [_against_entries(cell) for cell in ledgers.get(variant, [])]
        for curve in curves:
            left.plot(*zip(*curve, strict=True), color=colour, alpha=0.3, linewidth=0.8)
        if curves:
            entries = [point[0] for point in curves[0]]
            means_of = [mean(c[j][1] for c in curves) for j in range(len(entries))]
            left.plot(entries, means_of, mark, linestyle="-", color=colour, label=label)
    if REACH.exists():
        reach = read_json(REACH)
        played = {**reach["scaled"], **reach["far"]}
        points = [
            (math.prod(map(int, size.split("x"))), mean(cell["reading, base x 2"])) for size, cell in played.items()
        ]
        colour, mark = LOOKS[3]
        left.plot(
            *zip(*points, strict=True), mark, linestyle="--", color=colour, label="reading, rotary base x 2 afterwards"
        )
    left.axvspan(0, 36, color=LINE.light, alpha=0.6, linewidth=0)
    left.text(18, 0.5, "shown in\ntraining", ha="center", color=MUTED.light)
    left.set(xlabel="named entries", ylabel="accuracy", title="Long keyed ledgers", ylim=(-0.03, 1.05))
    sums = ledgers.get("deciding", [])
    for when, style, (colour, mark) in (("before", "--", (MUTED.light, "s")), ("after", "-", LOOKS[0])):
        for cell in sums:
            right.plot(_share(cell, when), style, color=colour, alpha=0.3, linewidth=0.8)
        if sums:
            average = [mean(values) for values in zip(*(_share(cell, when) for cell in sums), strict=True)]
            right.plot(average, mark, linestyle=style, color=colour, label=f"{when} RL")
    if sums:
        right.set_xticks(range(5), list(sums[0]["decisions"]["after"]["sizes"]))
    right.axvline(1.5, color=MUTED.light, linestyle=":")
    right.text(1.4, 0.84, "one context\nis enough", ha="right", color=MUTED.light)
    right.set(xlabel="terms of the sum", ylabel="share delegated", title="When it delegates", ylim=(-0.03, 1.05))
    for axis in (left, right):
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, frameon=False)
    figure.savefig(path, dpi=DPI)


def draw_frontier(cells: Sequence[Cell], path: Path) -> None:
    """Accuracy against two costs on the long ledgers: a variant's mean by named entries, and every seed as a dot."""
    figure, panels = _panels()
    ledgers = of(cells, "quick", "long_ledgers")
    for axis, (cost, words) in zip(panels, FRONTIER_COSTS.items(), strict=True):
        for (variant, label), (colour, mark) in zip(READERS.items(), LOOKS, strict=False):
            paid = [_against_entries(cell, cost) for cell in ledgers.get(variant, [])]
            right = [_against_entries(cell) for cell in ledgers.get(variant, [])]
            for costs, found in zip(paid, right, strict=True):
                axis.plot([c for _, c in costs], [a for _, a in found], ".", color=colour, alpha=0.3, markersize=4)
            if not paid:
                continue
            x, y = (
                [mean(v for _, v in points) for points in zip(*of_seeds, strict=True)] for of_seeds in (paid, right)
            )
            axis.plot(x, y, mark, linestyle="-", color=colour, label=label)
            place = {"delegating": (0, 7), "reading": (0, 9), "reading_long": (0, -16)}[variant]
            style = {"color": colour, "ha": "center", "textcoords": "offset points"}
            axis.annotate(f"{paid[0][-1][0]} entries", (x[-1], y[-1]), place, **style)
        axis.margins(x=0.12)
        axis.set(xlabel=words, ylabel="accuracy", xlim=(0, None), ylim=(-0.03, 1.13), title=f"By {words.split(',')[0]}")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, dpi=DPI)


def _panels() -> tuple[Figure, Sequence[Axes]]:
    """Two panels on light ground, of the width that a page has."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"axes.edgecolor": MUTED.light, "axes.labelcolor": INK.light, "text.color": INK.light}):
        figure = Figure(figsize=(8.6, 3.7), layout="constrained", facecolor=SURFACE.light)
        panels = figure.subplots(1, 2)
    for axis in panels:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color=LINE.light, linewidth=0.6)
        axis.set_axisbelow(True)
    return figure, panels


def _against_entries(cell: Cell, figure: str = "accuracy") -> list[tuple[int, float]]:
    points: dict[int, list[float]] = {}
    for size, found in cell["sizes"].items():
        points.setdefault(math.prod(map(int, size.split("x"))), []).append(found[figure])
    return sorted((entries, mean(values)) for entries, values in points.items())


HEAD = """# Where delegating pays, and when

Experiments with the embedded model (0.17 M parameters) on made tasks, copying and sums modulo ten; nothing follows for
a large model. `python -m studies delegation` prints this page from the files in `studies/delegation/evidence`, one
for every variant and seed; `--rerun EXPERIMENT/VARIANT/seedN` makes any of them again. The configuration was tuned on
seeds from 100 on and then frozen; every reported seed that was run stands here, and so do those of [the one
before](#the-first-configuration), of which two failed. A seed is an independent repetition of everything: initial
weights, demonstrations, rollouts. Test instances are the same for all seeds; play is greedy. ± is a 95 % interval over
seeds (Student's t). [What a hostile reader would say](hostile.md) is answered apart.

EVIDENCE_LINE

![Accuracy against named entries, and share delegated against size](delegation.png)

![Accuracy on long ledgers against total tokens, and against the critical path](frontier.png)

- **Where.** Trained on at most 36 named entries, agents that hand each ledger to a clone are right on 160 of them with
  every seed, where those that read them into their own context with full attention are at chance from 72 on with every
  seed. No agent of a tree meets a longer context than in training, and that reader does. **Delegating is one way to a
  bounded visible context, and it is not necessary**: a reader with a window of attention of 160 tokens, fine-tuned on
  the same sizes, is right at 72 to 160 entries in .92 to 1.00. An outside reader measured that, with one seed; no
  command here prints it yet ([figures](#a-reader-with-a-window)). **A known trick without training moves the reader's
  end too**: with twice the rotary base, set after training, readers are right again at 72 entries (0.44 to 0.98)
  and still at chance at 120; readers *trained* with another base reach no farther ([below](#how-far-and-why)). Where a
  part is itself longer than in training, delegating fails too.
- **What it saves** against a reader that was shown the long ones is critical path, peak context and cache reads, not
  tokens. These are counts; nothing was timed.
- **When.** From about half everywhere RL moves the decision to where the window ends, with every seed, and without a
  window to where a price on memory traffic says. It finds a rule that no demonstration has, and is no better than it.
  **The rule is a lookup of the size in the prompt**: told a wrong size, the shipped policy follows it in 20 of 20
  combinations, and another window at test changes nothing ([table](#what-the-decision-follows)).
  With wider windows it fails: half way with 15 terms, never delegating with 19 (one seed each).
- **RL has no part in *where*** with all demonstrations. With a thirteenth of them it had with one seed of two: the
  other warm start was at chance, and RL left it there.
- **What is not there yet**: `reading_long` with five seeds, variants with more than one seed, any time in seconds."""

NO_FAILURE = "Every cell learned the sizes that it was trained on, at the first attempt."

PREDICTIONS = """## Predictions

Figures of a prototype, taken over before any seed of this recipe was reported. The criteria are ours."""

LEDGERS = f"""## Where: long keyed ledgers

`?[1]C[2]E` names ledgers of letter fields with a digit each; the answer is the last digit of the sum of all their
entries. `delegating` hands each ledger to a clone. `reading` reads ledger by ledger into its own context, with a
subtotal of each. Both learn by imitation alone and see at most 36 named entries, in documents of up to 24.
`reading_far` is that reader, shown quotations of up to 1,000 tokens beside; `reading_long` was shown up to 168
entries. Every seed; those from {NEW} on were never run before this configuration was frozen."""

EQUAL = """Costs of `delegating` over those of `reading_long`, of the seeds in which each is accurate; elsewhere
nothing is compared. They are counts of tokens, no times: the critical path is the longest chain of generated tokens,
peak context the longest single context (all contexts of a tree together hold what the reader's one holds), `kv token
steps` the cache entries that generation reads. Billed tokens are those of a server that keeps nothing between calls,
and of one that takes a tenth for what an agent has sent before."""

BESIDE = """Costs per instance of the seeds that are accurate, and in brackets those of the perfect player of the
variant's own strategy: the expert on the same instances."""

REACHED = """## How far, and why

`python -m studies delegation --rerun reach`. Contexts are in tokens. The reader is asked for contexts that it has not
seen; no agent of a delegating tree ever is: **that is what delegating does here**. It keeps every context within what
was learned."""

SCALED = """Readers whose rotary positions are changed after training, to bring long contexts into what was learned:
`positions / 2` divides them, `base x 2` and `base x 4` slow the slower rotations more than the faster ones. Every
seed:"""

BEYOND = """Where does delegating end? At 3x26 a document, at 12x13 the number of ledgers is larger than any in
training; 10x16 and 10x24 are within it in each, 3x18 and 3x20 are between the reader's last success and its first
failure. Every seed:"""

AT_ONCE = """Who reads all ledgers at once, without a turn and a subtotal for each, is cheaper than the reader above
(no model here has learned it). With perfect execution, delegating over reading at once:"""

WINDOWED = """### A reader with a window

**A reader needs no clones to see a bounded context.** An outside reader took `reading/seed0`, gave it a window of
attention and fine-tuned it on demonstrations of at most 36 named entries. A key is visible if it is in the prompt or
among the last 160 tokens. Everything here is one seed, greedy play, measured outside of this repository; no command
here prints it yet.

| reader | extra tokens | 4x18 | 3x24 | 6x20 | 8x20 | n |
| --- | --- | --- | --- | --- | --- | --- |
| full attention | – | .11 | .11 | .10 | .07 | 200 |
| window of 160 | 0.6 M (+20 %) | 1.00 | .98 | .96 | .16 | 100 |
| the same, shown up to 10 ledgers, still 36 entries | 1.45 M | 1.00 | .92 | 1.00 | .95 | 60 |
| no window, the same extra demonstrations | 0.6 M | .05 to .08 | – | .10 to .13 | .05 to .08 | 40 |

The root that delegates had been shown ten names and this reader six ledgers, so 8x20 lies within the tree's training in
shape and outside of the reader's; the third row makes that equal. Against the window reader at 6x20 delegating needs
x0.43 of its cache reads, x0.59 of its largest context and x0.25 of its critical path."""

ROTATED = """Readers *trained* with ten times the rotary base (`base_100000.yaml`), fresh seeds, predicted at chance
from 72 entries on like the others:"""

AFTERWARDS = """The same with two and four times their own base, set after training, as
`python -m studies delegation --rerun rotary` found. Every seed:"""

SCARCELY = """## Has RL a part in where?

In the variants above it has none: imitation does it all. `scarce` is `delegating` with 150,000 tokens of its last phase
in the place of 2,000,000, the only demonstrations in which several long ledgers stand together, and then 60 steps of RL
on tasks of at most 36 named entries. Predicted from one tuning run: nothing to gain on those, higher at 120 and 160."""

WHEN = """## When: range sums under a window

A range sum of 1 to 24 terms, whose prompt shows the number of terms rounded up to fives, which the root restates
before it decides. An agent's window holds 10 terms; clones of 10 hold them all. A token costs reward, right answers
alone pay. The warm start shows both styles half and half at every size and without the window, so that nothing in it
says *when*; RL has to find out.

Share delegated / accuracy / total tokens / reward, mean over seeds. The forced rows begin the root's first turn for
it, with a call or with work of its own, and leave all else to the same weights. The rows of perfect execution are the
expert's by either choice, without the window where it does not hold the sum."""

DECISIONS = """An instance is worth delegating if forced *always* earns more on it than forced *never*. The best
threshold is the size from which on to delegate that earns most on these very instances; regret is how much more it
earns than the policy. Decision F1 is that of delegating where it is worth it."""

BY_HEART = """\
**The root knows many of its clones' answers by heart.** Of the `deciding` policy that comes with the package,
`python -m studies gallery --rerun episodes` leaves out the clones of 100 questions one by one, greedily, where the
answer was right: the root is right all the same without {whole} that had a whole ten of digits, of which there are only
100 with their shifts, and without {part} that had less ([one of them](gallery.md#a-clone-that-did-not-matter-and-why)).
It learned *when* to call clones on sums of which it could have done a part alone."""

SIZE_TOLD = """### What the decision follows

**The policy follows the size in its prompt, not the size of the sum and not the window.** The shipped `deciding`
(seed 0 of `quick`) was asked {episodes} sums of each size, greedily, with every size in the prompt that it knows, and
with none. Each cell is the share in which the root's first turn calls clones, then the accuracy. Told a wrong size, it
follows that size in all 20 combinations, in {least:.2f} or more of the sums: it calls clones for 4 terms and none for
23. Told no size, it never calls. `python -m studies delegation --rerun told` makes both tables again in 20
seconds (here by version {version}); `selfcest solve "5:[40]-[59];[10]" --policy deciding` shows one such sum."""

WINDOW_TOLD = """With the right size in the prompt and another window at test, the decision does not move. Under 40
tokens every call is refused for want of room, and the policy makes it all the same."""

VARIED = """## When window, price or shown size differ

The same but for what is named, and predicted before these were run. `window_76` and `window_88` hold 15 and 19 terms:
delegated from 16 and 20 on, which among classes of five is from the fourth size and from the last but a fifth of the
fourth on. `exact` shows the exact number of terms under a window of 13, in the middle of a class: delegated from 14
on. `no_window`: at no size. `kv` has no window and a price on memory traffic, 0.25 for 1,000 entries of a cache read,
of which a sum in one context needs ever more: the perfect players cross at 16 to 20 terms, with little at stake
there. `dear` has four times the price, which wrong answers pay too: at 11 to 15 terms alone.

**The wider the window, the less the decision follows it.** With 15 terms RL stops half way, with 19 it ends at never,
where only the last size and a bit are left to win by delegating: what calls lose on the many small sums is learned
first, and then nothing is left to explore with."""

GUESSED = """**At four times the price RL ends at never too**, and not, as predicted, at calls for 11 to 15 terms. The
prediction had forgotten a third way: to guess at once. There it costs {tokens:.0f} tokens, for a reward of {guess:.2f},
where calls earned {call:.2f} before RL and the forced way on one's own {alone:.2f}; hence the regret below 0, against
forced ways alone."""

SEPARATELY = """## Beside policies that were taught one way alone

`always` has seen calls alone and `never` work of its own alone, with as many demonstrations and the same RL; `never`
cannot call. Accuracy / total tokens / reward."""

CHATTED = """## One real model

SmolLM2-135M-Instruct on the same family in words (`smollm2_long.yaml`), chosen before training because perfect
delegating needs shorter contexts and a shorter critical path there. It is shown at most 12 named entries. All variants
may use the same compute; 30 instances a size, one seed. **The reader by key is as accurate or more so at every size,
for x0.53 to x0.63 of the tokens.** Where both are right (3x4), delegating has x0.84 of its critical path and of its
peak context. Both lose beyond what they were shown, at 32 entries already. RL mended calls: at 3x4 from 0.63 right
for 995 tokens to 0.97 for the 855 of a perfect player. Costs per instance, and in brackets those of the perfect
player of the variant's strategy."""

EARLIER = """## The first configuration

Reported before the one above, frozen at commit `19121d6`, seeds 0 to 4, every seed in order. Rates fell over the last
40 % of a warm start in the place of 70 %, last phases were shorter (1.0 M and 1.3 M tokens), a warm start began again
below 0.9 of 64 probes, `deciding` had 80 steps at a rate of 4e-4. One `delegating` seed of five passed its probe at
.94 and lost with length, one `deciding` seed was half way: what the configuration above was tuned against, on seeds
from 100 on."""

PROVENANCE = "## Cells\n\nCPU-s are of training, on a shared machine. A warm start that has not learned begins again."

TUNING = """## Tuning

Every run that led to the frozen configurations, in order, those of an earlier recipe first. CPU-s are of training on
a shared machine. Before them a prototype, which no command here repeats, failed
so: no size in the prompt, or not restated by the root: always delegating after 25 steps; 0.03 of reward at stake, no
change; 65 small sums to 35 large ones, never after 20 steps; a rate of 1.5e-3 at temperature 1, competence lost;
ledgers both ways half and half, with unreliable calls, never, 60 to 40 always; readers that carry the total, join
labelled subtotals at the end, or read all at once, .08, .15 and .17 on 4x6."""


def rerun_delegation(name: str, how: Rerun) -> list[Path]:
    """Play `reach`, `rotary` or `told`, or train a cell."""
    if name in (REACH.stem, TRAINED_REACH.stem, TOLD.stem):
        from studies.delegation import reach  # imports torch, which the page does not need

        return [reach.measure(name, how)]
    return rerun(name, how)


STUDY = Study(
    page_file=DOCS / "delegation.md",
    page=lambda: page(*stored()),
    figures={
        DOCS / "delegation.png": lambda file: draw(stored()[0], file),
        DOCS / "frontier.png": lambda file: draw_frontier(stored()[0], file),
    },
    rerun=rerun_delegation,
    cells="EXPERIMENT[/VARIANT]/seedN, reach, rotary or told",
)
