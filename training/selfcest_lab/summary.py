"""Reports of a laboratory run: tables on the screen, files and a plot."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from selfcest_env.palette import SERIES
from selfcest_lab.games import GAMES
from selfcest_lab.judge import ALPHA, MIN_EXACT_EFFECT, MIN_SAMPLED_EFFECT
from selfcest_lab.measure import LabReport, Measurement
from selfcest_training.credit import Promise
from selfcest_training.files import atomic_write, write_text
from selfcest_training.printing import print_text

_NOTABLE = 0.05  # p-value before correction below which the verdict names a sampled cell that is not refuted
# Column heads are keys of the stored tables.
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
# Columns of a game's table on the screen, which fit 80 characters, with their heads there.
_SCREEN_HEADS = {
    "scheme": "scheme",
    "bias": "bias",
    "cosine": "cosine",
    "clones' variance": "clones' var.",
    "tokens": "tokens",
    "variance x tokens": "var. x tok.",
}


def rows(report: LabReport) -> list[tuple[str, ...]]:
    """Return a row of text per cell, with a column per head of `HEADS`; a bias without an interval is exact."""
    return [_row(cell, report) for cell in report.cells]


def _row(cell: Measurement, report: LabReport) -> tuple[str, ...]:
    is_unbiased = cell.exact and cell.bias.value < MIN_EXACT_EFFECT
    tokens = f"{cell.sampled_tokens:.0f}"
    if cell.replayed_tokens:
        tokens += f" + {cell.replayed_tokens:.0f}"
    return (
        cell.game,
        cell.scheme,
        cell.promise,
        format_verdict(cell, report),
        "0" if is_unbiased else str(cell.bias),
        format_bias_shares(cell, 1),
        f"{cell.cosine:.3f}",
        str(cell.variance),
        str(cell.clone_variance),
        tokens,
        f"{cell.variance_cost:.0f}",
    )


def format_verdict(cell: Measurement, report: LabReport) -> str:
    """Return the verdict on one cell: `kept`, `not refuted, p = ...`, `BROKEN`, or nothing without a promise."""
    if cell.evidence is None:
        return ""
    if cell in report.broken:
        return "BROKEN"
    # A sample can fail to refute a promise, but only an exact expectation can prove it.
    p_value = cell.evidence.p_value
    return "kept" if p_value is None else f"not refuted, p = {p_value:.2g}"


def format_bias_shares(cell: Measurement, limit: int) -> str:
    """Return the largest shares of the squared bias, as `71 % clone at depth 1, turn 0`."""
    shares = list(cell.bias_shares.items())[:limit]
    return "; ".join(f"{share:.0%} {location}" for location, share in shares)


def format_blind(cell: Measurement) -> str:
    """Return the locations at which a scheme is blind with the cosine there, as `clone at depth 1, turn 0 (-0.31)`."""
    return "; ".join(f"{location} ({cosine:.2g})" for location, cosine in cell.blind.items())


def describe_blind(cells: Sequence[Measurement]) -> list[str]:
    """Return a line per cell with a location at which a step along the expectation does not raise the return."""
    return [f"blind: {cell.scheme} in {cell.game}: {format_blind(cell)}" for cell in cells if cell.blind]


def print_report(report: LabReport, console: Console) -> None:
    """Print a table for each game, the crossings and the verdict."""
    row_by_head = [dict(zip(HEADS, row, strict=True)) for row in rows(report)]
    for game in dict.fromkeys(cell.game for cell in report.cells):
        print_text(console, f"{game}: {GAMES[game].about}")
        # On a narrow screen numbers may wrap, but a name that is cut short cannot be told from another.
        columns = [Column(head, no_wrap=head == "scheme", overflow="fold") for head in _SCREEN_HEADS.values()]
        table = Table(*columns, box=None, pad_edge=False)
        for row, cell in zip(row_by_head, report.cells, strict=True):
            if cell.game == game:
                style = "red" if cell in report.broken else None
                table.add_row(*(row[head] for head in _SCREEN_HEADS), style=style)
        console.print(table)
    for line in (*describe_crossings(report.cells), *describe_blind(report.cells), *verdict(report)):
        print_text(console, line)


def verdict(report: LabReport) -> list[str]:
    """Return the verdict on all promises, a sentence per line."""
    judged = [cell for cell in report.cells if cell.evidence is not None]
    num_exact = sum(cell.exact for cell in judged)
    num_sampled = len(judged) - num_exact
    lines = [
        f"{len(judged)} cells have a promise: {num_exact} exact (limit of the bias: {MIN_EXACT_EFFECT:g}), "
        f"{num_sampled} sampled (limit of the bias: {MIN_SAMPLED_EFFECT:g}; one joint test at level {ALPHA:g}: "
        f"p = {report.p_value:.2g})"
    ]
    for cell in report.broken:
        assert cell.evidence is not None
        p_value = cell.evidence.p_value
        method = "exact" if p_value is None else f"p = {p_value:.2g} before correction"
        lines.append(
            f"BROKEN: {cell.scheme} promises to be {cell.promise}; in {cell.game} its bias is "
            f"{cell.evidence.effect:.3g} of the gradient ({method}), found in: {format_bias_shares(cell, 3)}"
        )
    unbroken = [cell for cell in judged if cell not in report.broken]
    not_refuted = [cell for cell in unbroken if not cell.exact]
    num_kept = len(unbroken) - len(not_refuted)
    if num_kept:
        lines.append(f"kept: {num_kept} of {num_exact} exact cells")
    if not_refuted:
        lines.append(
            f"not refuted: {len(not_refuted)} of {num_sampled} sampled cells, where a small bias can be hidden. Cells "
            f"with p below {_NOTABLE:g} before correction are listed here; repeat them with more --samples"
        )
    for cell in not_refuted:
        if cell.evidence is not None and (cell.evidence.p_value or 0.0) < _NOTABLE:
            lines.append(f"{format_verdict(cell, report)}: {cell.scheme} in {cell.game}")
    return lines


def describe_crossings(cells: Sequence[Measurement]) -> list[str]:
    """Return per game and scheme from how many samples on it has less clones' variance than `rloo`.

    Only schemes that were measured with several numbers of samples have a crossing.
    """
    lines = []
    for game in dict.fromkeys(cell.game for cell in cells):
        cell_by_scheme = {cell.scheme: cell for cell in cells if cell.game == game}
        if "rloo" not in cell_by_scheme:
            continue
        by_samples: dict[str, dict[int, Measurement]] = {}  # per scheme its cells by number of samples
        for name, cell in cell_by_scheme.items():
            match = re.fullmatch(r"(\w+)(?:\(samples=(\d+)\))?", name)
            if match and cell.replayed_tokens:
                by_samples.setdefault(match[1], {})[int(match[2] or 1)] = cell
        for scheme, cell_by_samples in by_samples.items():
            if len(cell_by_samples) > 1:
                lines.append(_describe_crossing(game, scheme, cell_by_samples, cell_by_scheme["rloo"]))
    return lines


def _describe_crossing(game: str, scheme: str, cell_by_samples: Mapping[int, Measurement], rloo: Measurement) -> str:
    counts = sorted(cell_by_samples)
    below = [n for n in counts if cell_by_samples[n].clone_variance.value < rloo.clone_variance.value]
    cheaper = [n for n in counts if cell_by_samples[n].clone_variance_cost < rloo.clone_variance_cost]
    return (
        f"{game}: {scheme}'s clones' variance is below rloo's from n = {below[0] if below else 'none'}, per sampled "
        f"token from n = {cheaper[0] if cheaper else 'none'} (measured: n = {', '.join(map(str, counts))})"
    )


def markdown(report: LabReport) -> str:
    """Return the table of cells, the crossings and the verdict, then a table of schemes by games for each quantity."""
    row_by_head = [dict(zip(HEADS, row, strict=True)) for row in rows(report)]
    text = _markdown_table([HEADS, *(tuple(row.values()) for row in row_by_head)])
    for line in (*describe_crossings(report.cells), *describe_blind(report.cells), *verdict(report)):
        text += f"\n{line}\n"
    games = list(dict.fromkeys(row["game"] for row in row_by_head))
    schemes = list(dict.fromkeys(row["scheme"] for row in row_by_head))
    row_by_cell = {(row["scheme"], row["game"]): row for row in row_by_head}
    for head in ("bias", "clones' variance", "variance x tokens"):
        lines = [["scheme", *games]]
        for scheme in schemes:
            lines.append([scheme, *(row_by_cell[scheme, game][head] for game in games)])
        text += f"\n{head}:\n\n" + _markdown_table(lines)
    return text


def _markdown_table(lines: Sequence[Sequence[str]]) -> str:
    """Format lines of cells, of which the first is the head."""
    head = lines[0]
    return "".join("| " + " | ".join(line) + " |\n" for line in (head, ["---"] * len(head), *lines[1:]))


def write_report(report: LabReport, folder: Path) -> list[Path]:
    """Write lab.md, lab.csv, lab.json and lab.png into a folder, and return their paths in this order."""
    folder.mkdir(parents=True, exist_ok=True)
    markdown_path = folder / "lab.md"
    csv_path = folder / "lab.csv"
    json_path = folder / "lab.json"
    plot_path = folder / "lab.png"
    write_text(markdown_path, markdown(report))
    records = [_flat_record(cell) for cell in report.cells]
    with atomic_write(csv_path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(records[0]))
        writer.writeheader()
        writer.writerows(records)
    data = {
        "config": asdict(report.config),
        "p_value": report.p_value,
        "broken": [[cell.scheme, cell.game] for cell in report.broken],
        "cells": records,
    }
    write_text(json_path, json.dumps(data, indent=1) + "\n")
    plot(report, plot_path)
    return [markdown_path, csv_path, json_path, plot_path]


def _flat_record(cell: Measurement) -> dict[str, str | float | bool | None]:
    """Return a cell as one flat record; its keys are columns of the stored files."""
    return {
        "game": cell.game,
        "scheme": cell.scheme,
        "promise": str(cell.promise),
        "exact": cell.exact,
        "bias": cell.bias.value,
        "bias_half": cell.bias.half_width,
        "where": format_bias_shares(cell, 9),
        "cosine": cell.cosine,
        "scale": cell.scale,
        "blind": format_blind(cell),
        "variance": cell.variance.value,
        "variance_half": cell.variance.half_width,
        "clone_variance": cell.clone_variance.value,
        "clone_variance_half": cell.clone_variance.half_width,
        "sampled_tokens": cell.sampled_tokens,
        "replayed_tokens": cell.replayed_tokens,
        "variance_cost": cell.variance_cost,
        "clone_variance_cost": cell.clone_variance_cost,
        "effect": None if cell.evidence is None else cell.evidence.effect,
        "p_value": None if cell.evidence is None else cell.evidence.p_value,
    }


def plot(report: LabReport, path: Path) -> None:
    """Plot the clones' variance against tokens per group, a panel per game; hollow marks are declared biased.

    With few schemes each has a colour of the project; with more, a colour of matplotlib's.
    """
    from matplotlib.figure import Figure  # slow to import, and only plots need it

    games = list(dict.fromkeys(cell.game for cell in report.cells))
    schemes = list(dict.fromkeys(cell.scheme for cell in report.cells))
    num_columns = min(4, len(games))
    num_rows = -(-len(games) // num_columns)
    figure = Figure(figsize=(3.4 * num_columns, 3.2 * num_rows + 0.6), layout="constrained")
    figure.suptitle("Less variance for fewer tokens is at the lower left; hollow marks are biased", fontsize=11)
    colours = [tone.light for tone in SERIES] if len(schemes) <= len(SERIES) else [f"C{index}" for index in range(10)]
    axes = figure.subplots(num_rows, num_columns, squeeze=False).flatten()
    for axis in axes[len(games) :]:
        axis.remove()
    for axis, game in zip(axes, games, strict=False):
        for cell in report.cells:
            if cell.game != game:
                continue
            # A scheme has the same colour in every panel.
            axis.errorbar(
                cell.tokens,
                cell.clone_variance.value,
                yerr=cell.clone_variance.half_width,
                marker="o",
                color=colours[schemes.index(cell.scheme) % len(colours)],
                fillstyle="none" if cell.promise is Promise.BIASED else "full",
                label=cell.scheme,
            )
        axis.set(title=game, xlabel="tokens per group", ylim=(0, None))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("clones' variance / squared gradient")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
    with atomic_write(path) as partial:
        figure.savefig(partial, dpi=130)
