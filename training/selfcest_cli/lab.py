"""`selfcest lab`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

_SCHEMES = (
    *("grpo", "gated", "gated_paper", "rloo", "parts", "difference", "diff_loo"),
    *("coma", "coma samples=4", "coma paired=true", "shapley"),
)


def lab(
    scheme: Annotated[
        list[str] | None,
        typer.Option(
            help="A scheme of `selfcest credit list`, or package.module:Class, with options of its own after it, as in "
            "'coma samples=4'; may be repeated (default: those of the trainer).",
            show_default=False,
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(help="An option of every scheme, key=value; may be repeated.", show_default=False),
    ] = None,
    game: Annotated[
        list[str] | None, typer.Option(help="A game; may be repeated (default: all).", show_default=False)
    ] = None,
    group_size: Annotated[int, typer.Option(help="Episodes of a group, in games that do not name their own.")] = 2,
    samples: Annotated[int, typer.Option(help="Sampled groups per scheme and game.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of all sampling.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="A folder for lab.md, lab.csv, lab.json and lab.png.", show_default=False)
    ] = None,
) -> None:
    """Judge credit schemes against the exact gradient of small games; exit code 1 if one breaks its promise."""
    import torch
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from selfcest_cli.terminal import Terminal
    from selfcest_lab import GAMES, LabConfig, run_lab
    from selfcest_lab.summary import print_report, write_report
    from selfcest_training.credit import make_assigner
    from selfcest_training.yaml_text import read_option

    torch.set_num_threads(1)  # tables are small
    console, assigners = Terminal(), []
    for text in scheme or _SCHEMES:
        name, *own = shlex.split(text) or [""]
        options = dict(map(read_option, (*(option or []), *own)))
        assigners.append(make_assigner(name, options, where="--option"))
    config = LabConfig(tuple(game or GAMES), group_size, samples, seed)
    errors, size = Terminal(stderr=True), len(config.games) * len(assigners)
    current = TextColumn("{task.description}", markup=False)
    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn(), current)
    with Progress(*columns, console=errors, transient=True) as progress:
        bar = progress.add_task("", total=size, completed=-1)

        def begun(game: str, scheme: str) -> None:
            progress.update(bar, advance=1, description=f"{game}: {scheme}")
            if not errors.is_terminal:  # where bars cannot be drawn
                done = f"{progress.tasks[bar].completed:.0f}/{size}"
                errors.print(f"{done} {game}: {scheme}", highlight=False, soft_wrap=True)

        report = run_lab(assigners, config, begun)
    print_report(report, console)
    for path in write_report(report, out) if out is not None else []:
        console.print(f"wrote {path}", highlight=False)
    if report.broken:
        raise typer.Exit(1)
