"""Tables as Markdown and as CSV files."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from selfcest_eval.stats.statistics import Estimate
from selfcest_training.files import atomic_write


def format_markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return the table as Markdown, a line for each row."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def write_csv(path: Path, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write the table as a CSV file; `None` is an empty field."""
    with atomic_write(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(heads)
        writer.writerows(rows)


def interval_heads(names: Iterable[str]) -> list[str]:
    """Return the three columns of each estimate: its mean and both ends of its interval."""
    heads = []
    for name in names:
        heads += [name, f"{name}_low", f"{name}_high"]
    return heads


def interval_fields(estimates: Iterable[Estimate | None]) -> list[str]:
    """Return the fields of `interval_heads`; a number that is missing is an empty field."""
    fields = []
    for estimate in estimates:
        ends = (None, None, None) if estimate is None else (estimate.mean, estimate.low, estimate.high)
        fields += ["" if value is None or value != value else f"{value:.6g}" for value in ends]
    return fields
