"""A laboratory run as tables, files and a plot."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from selfcest_lab.games import GAMES
from selfcest_lab.judge import ALPHA, MIN_EXACT_EFFECT, MIN_SAMPLED_EFFECT
from selfcest_lab.measure import LabReport, Measurement
from selfcest_training.credit import Promise
from selfcest_training.files import whole, write_text

_NOTABLE = 0.05  # p-value before correction below which a sampled cell that is not refuted is named in the verdict
HEADS = (
    "game",
    "scheme",
    "promise",
    "verdict",
    "bias",
    "where",
    "cosine",
    "variance",
    "clones' variance",
    "tokens",
    "variance x tokens",
)
# Of a game's table on the screen, which fits 80 columns; the files have everything.
_SHOWN = {
    **{head: head for head in ("scheme", "bias", "cosine")},
    "clones' variance": "clones' var.",
    "tokens": "tokens",
    "variance x tokens": "var. x tok.",
}


def rows(report: LabReport) -> list[tuple[str, ...]]:
    """The table's cells as text; a bias without an interval is exact."""
    return [
        (
            cell.game,
            cell.scheme,
            cell.promise,
            verdict_on(cell, report),
            "0" if cell.exact and cell.bias.value < MIN_EXACT_EFFECT else str(cell.bias),
            where(cell, 1),
            f"{cell.cosine:.3f}",
            str(cell.variance),
            str(cell.clone_variance),
            f"{cell.sampled_tokens:.0f}" + (f" + {cell.replayed_tokens:.0f}" if cell.replayed_tokens else ""),
            f"{cell.variance_cost:.0f}",
        )
        for cell in report.cells
    ]


def verdict_on(cell: Measurement, report: LabReport) -> str:
    """The verdict on one cell; only an exact expectation says `kept`, because a sample can only fail to refute."""
    if cell.evidence is None:
        return ""
    if cell in report.broken:
        return "BROKEN"
    p_value = cell.evidence.p_value
    return "kept" if p_value is None else f"not refuted, p = {p_value:.2g}"


def where(cell: Measurement, most: int) -> str:
    """Where the bias sits, the largest shares first, as `71 % clone at depth 1, turn 0`."""
    return "; ".join(f"{share:.0%} {place}" for place, share in list(cell.where.items())[:most])


def print_report(report: LabReport, console: Console) -> None:
    """A table for every game, the crossings and the verdict."""
    texts = [dict(zip(HEADS, row, strict=True)) for row in rows(report)]
    for game in dict.fromkeys(cell.game for cell in report.cells):
        console.print(Text.assemble((game, "bold"), f": {GAMES[game].about}"), highlight=False, soft_wrap=True)
        # On a narrow screen numbers may wrap; a name that is cut short says nothing.
        columns = [Column(head, no_wrap=head == "scheme", overflow="fold") for head in _SHOWN.values()]
        table = Table(*columns, box=None, pad_edge=False)
        for by_head, cell in zip(texts, report.cells, strict=True):
            if cell.game == game:
                style = "red" if cell in report.broken else None
                table.add_row(*(by_head[head] for head in _SHOWN), style=style)
        console.print(table)
    for line in (*crossings(report.cells), *verdict(report)):
        console.print(line, highlight=False, soft_wrap=True)


def verdict(report: LabReport) -> list[str]:
    """What came of the promises, in sentences."""
    judged = [cell for cell in report.cells if cell.evidence is not None]
    exact = sum(cell.exact for cell in judged)
    sampled = len(judged) - exact
    lines = [
        f"{len(judged)} cells with a promise: {exact} exact (bias below {MIN_EXACT_EFFECT:g} asked), {sampled} "
        f"sampled (one joint test at {ALPHA:g}: p = {report.p_value:.2g}; bias above {MIN_SAMPLED_EFFECT:g} asked)"
    ]
    for cell in report.broken:
        assert cell.evidence is not None
        how = "exact" if cell.evidence.p_value is None else f"p = {cell.evidence.p_value:.2g} before correction"
        lines.append(f"BROKEN: {cell.scheme} promises to be {cell.promise}; in {cell.game} it is off by "
                     f"{cell.evidence.effect:.3g} of the gradient ({how}): {where(cell, 3)}")  # fmt: skip
    unbroken = [cell for cell in judged if cell not in report.broken]
    not_refuted = [cell for cell in unbroken if not cell.exact]
    if len(not_refuted) < len(unbroken):
        lines.append(f"kept: {len(unbroken) - len(not_refuted)} of {exact} exact cells")
    if not_refuted:
        lines.append(
            f"not refuted: {len(not_refuted)} of {sampled} sampled cells; a small bias can hide there, and those with "
            f"p below {_NOTABLE:g} before correction follow: repeat them with more --samples"
        )
    for cell in not_refuted:
        if cell.evidence is not None and (cell.evidence.p_value or 0.0) < _NOTABLE:
            lines.append(f"{verdict_on(cell, report)}: {cell.scheme} in {cell.game}")
    return lines


def crossings(cells: Sequence[Measurement]) -> list[str]:
    """Per game, from how many samples a scheme has less clones' variance than `rloo`, and less per token."""
    lines = []
    for game in dict.fromkeys(cell.game for cell in cells):
        here = {cell.scheme: cell for cell in cells if cell.game == game}
        if "rloo" not in here:
            continue
        rivals: dict[str, list[tuple[int, Measurement]]] = {}
        for name, cell in here.items():
            if (match := re.fullmatch(r"(\w+)(?:\(samples=(\d+)\))?", name)) and cell.replayed_tokens:
                rivals.setdefault(match[1], []).append((int(match[2] or 1), cell))
        for scheme, found in rivals.items():
            if len(found) > 1:
                lines.append(_crossing(game, scheme, sorted(found, key=lambda pair: pair[0]), here["rloo"]))
    return lines


def _crossing(game: str, scheme: str, found: Sequence[tuple[int, Measurement]], rloo: Measurement) -> str:
    tried = ", ".join(str(count) for count, _ in found)
    below = next((n for n, cell in found if cell.clone_variance.value < rloo.clone_variance.value), None)
    cheaper = next((n for n, cell in found if cell.clone_variance_cost < rloo.clone_variance_cost), None)
    return (
        f"{game}: {scheme}'s clones' variance is below rloo's from n = {below or 'none'}, per sampled token from "
        f"n = {cheaper or 'none'} (tried: {tried})"
    )


def markdown(report: LabReport) -> str:
    """The table, the crossings and the verdict as Markdown, then schemes against games, a table for every number."""
    by_head = [dict(zip(HEADS, row, strict=True)) for row in rows(report)]
    text = _table([HEADS, *(tuple(row.values()) for row in by_head)])
    text += "".join(f"\n{line}\n" for line in (*crossings(report.cells), *verdict(report)))
    games, schemes = (list(dict.fromkeys(row[head] for row in by_head)) for head in ("game", "scheme"))
    cells = {(row["scheme"], row["game"]): row for row in by_head}
    for head in ("bias", "clones' variance", "variance x tokens"):
        lines = [[scheme, *(cells[scheme, game][head] for game in games)] for scheme in schemes]
        text += f"\n{head}:\n\n" + _table([["scheme", *games], *lines])
    return text


def _table(lines: Sequence[Sequence[str]]) -> str:
    head, *rest = lines
    return "".join("| " + " | ".join(line) + " |\n" for line in (head, ["---"] * len(head), *rest))


def write_report(report: LabReport, folder: Path) -> list[Path]:
    """Write lab.md, lab.csv, lab.json and lab.png; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"lab.{kind}" for kind in ("md", "csv", "json", "png")]
    write_text(paths[0], markdown(report))
    flat = [_flat(cell) for cell in report.cells]
    with whole(paths[1]) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(flat[0]))
        writer.writeheader()
        writer.writerows(flat)
    everything = {
        "config": asdict(report.config),
        "p_value": report.p_value,
        "broken": [[cell.scheme, cell.game] for cell in report.broken],
        "cells": flat,
    }
    write_text(paths[2], json.dumps(everything, indent=1) + "\n")
    plot(report, paths[3])
    return paths


def _flat(cell: Measurement) -> dict[str, str | float | bool | None]:
    """One level of names, for files."""
    return {
        "game": cell.game,
        "scheme": cell.scheme,
        "promise": str(cell.promise),
        "exact": cell.exact,
        "bias": cell.bias.value,
        "bias_half": cell.bias.half,
        "where": where(cell, 9),
        "cosine": cell.cosine,
        "variance": cell.variance.value,
        "variance_half": cell.variance.half,
        "clone_variance": cell.clone_variance.value,
        "clone_variance_half": cell.clone_variance.half,
        "sampled_tokens": cell.sampled_tokens,
        "replayed_tokens": cell.replayed_tokens,
        "variance_cost": cell.variance_cost,
        "clone_variance_cost": cell.clone_variance_cost,
        "effect": None if cell.evidence is None else cell.evidence.effect,
        "p_value": None if cell.evidence is None else cell.evidence.p_value,
    }


def plot(report: LabReport, path: Path) -> None:
    """The clones' variance against tokens per group, one panel per game; hollow: biased by its own account."""
    from matplotlib.figure import Figure  # slow to import, and only plots need it

    games = list(dict.fromkeys(cell.game for cell in report.cells))
    schemes = list(dict.fromkeys(cell.scheme for cell in report.cells))
    across = min(4, len(games))
    down = -(-len(games) // across)
    figure = Figure(figsize=(3.4 * across, 3.2 * down + 0.6), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False).flatten()
    for axis in axes[len(games) :]:
        axis.remove()
    for axis, game in zip(axes, games, strict=False):
        for cell in (cell for cell in report.cells if cell.game == game):
            axis.errorbar(
                cell.tokens,
                cell.clone_variance.value,
                yerr=cell.clone_variance.half,
                marker="o",
                color=f"C{schemes.index(cell.scheme) % 10}",
                fillstyle="none" if cell.promise is Promise.BIASED else "full",
                label=cell.scheme,
            )
        axis.set(title=game, xlabel="tokens per group", ylim=(0, None))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("clones' variance / squared gradient")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
    with whole(path) as partial:
        figure.savefig(partial, dpi=130)
