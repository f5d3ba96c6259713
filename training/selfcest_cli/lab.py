"""`selfcest lab`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from selfcest_training.printing import print_text

_DEFAULT_SCHEMES = (
    *("grpo", "gated", "gated_paper", "rloo", "parts", "difference", "diff_loo"),
    *("coma", "coma samples=4", "coma paired=true", "shapley"),
)


def lab(
    scheme: Annotated[
        list[str] | None,
        typer.Option(
            help="Credit scheme, by a name of `selfcest credit list` or as package.module:Class, with its options, as "
            "in 'coma samples=4'; may be repeated (default: the schemes of the trainer).",
            show_default=False,
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(help="Option of every credit scheme, key=value; may be repeated.", show_default=False),
    ] = None,
    game: Annotated[
        list[str] | None, typer.Option(help="Name of a game; may be repeated (default: all).", show_default=False)
    ] = None,
    group_size: Annotated[int, typer.Option(help="Number of episodes per group, for games that do not set it.")] = 2,
    samples: Annotated[int, typer.Option(help="Number of sampled groups per scheme and game.")] = 1000,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for lab.md, lab.csv, lab.json and lab.png.", show_default=False)
    ] = None,
) -> None:
    """Measure credit schemes against the exact gradient.

    The games are small enough to be solved exactly. The exit code is 1 if a scheme breaks its promise.
    """
    import torch

    from selfcest_cli.terminal import Terminal, progress_bar
    from selfcest_lab import GAMES, LabConfig, run_lab
    from selfcest_lab.summary import print_report, write_report
    from selfcest_training.credit import make_assigner
    from selfcest_training.files import check_output_folder
    from selfcest_training.yaml_text import read_option

    if out is not None:
        check_output_folder("--out", out)
    torch.set_num_threads(1)  # the tables are too small for several threads
    assigners = []
    for text in scheme or _DEFAULT_SCHEMES:
        name, *scheme_options = shlex.split(text) or [""]
        # An option of one scheme overrides the same option of every scheme.
        options = dict(map(read_option, [*(option or []), *scheme_options]))
        assigners.append(make_assigner(name, options, where="--option"))
    config = LabConfig(tuple(game or GAMES), group_size, samples, seed)
    num_cells = len(config.games) * len(assigners)
    # A cell is reported when it begins, so the first report leaves the count at 0.
    with progress_bar(num_cells, completed=-1) as advance:
        report = run_lab(assigners, config, lambda game, scheme: advance(f"{game}: {scheme}"))
    console = Terminal()
    print_report(report, console)
    for path in write_report(report, out) if out is not None else []:
        print_text(console, f"wrote {path}")
    if report.broken:
        raise typer.Exit(1)
