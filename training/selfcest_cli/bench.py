"""`selfcest bench`."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Annotated

import typer


def bench(
    scenario: Annotated[
        list[str] | None,
        typer.Argument(help="Names of scenarios, as in chain-8m5-v1 (default: all).", show_default=False),
    ] = None,
    learner: Annotated[
        list[str] | None,
        typer.Option(
            help="Learner, by name or as package.module:Class with its options, as in 'mine:Learner steps=512'; may be "
            "repeated (default: all).",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds.", min=1)] = 5,
    first_seed: Annotated[int, typer.Option(help="First random seed; the others follow it.", min=0)] = 0,
    seconds: Annotated[float, typer.Option(help="Learning time of each run in CPU seconds.", min=0.01)] = 60.0,
    workers: Annotated[int, typer.Option(help="Number of runs that are played in parallel.", min=1)] = 1,
    out: Annotated[Path, typer.Option(help="Folder of the results; runs that it holds are not repeated.")] = Path(
        "runs/bench"
    ),
    listed: Annotated[bool, typer.Option("--list", help="List the scenarios and learners and exit.")] = False,
) -> None:
    """Train learners on symbolic scenarios and print the scores.

    The folder of --out gets a file per scenario, results.json in the format of marl-eval, table.md and profiles.png.
    The same command resumes an interrupted benchmark.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from selfcest_baselines.bench import ENTRIES, BenchmarkCell, Run
    from selfcest_baselines.bench.report import known_scenarios, table, write
    from selfcest_baselines.bench.runs import load, play_all
    from selfcest_cli.terminal import Terminal
    from selfcest_env.symbolic.scenarios import SCENARIOS

    console = Terminal()
    if listed:
        print(known_scenarios(), f"\nLearners: {', '.join(ENTRIES)}.", sep="\n")
        return
    # Seeds vary slowest, so that an interrupted benchmark has complete seeds.
    cells = []
    for seed in range(first_seed, first_seed + seeds):
        for name, entry in product(scenario or SCENARIOS, learner or ENTRIES):
            cells.append(BenchmarkCell(name, entry, seed))
    num_stored = len(load(out).keys() & set(cells))
    errors = Terminal(stderr=True)
    last_run = TextColumn("{task.description}", markup=False)
    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn(), last_run)
    with Progress(*columns, console=errors, transient=True) as progress:
        bar = progress.add_task("", total=len(cells), completed=num_stored)

        def ended(cell: BenchmarkCell, run: Run) -> None:
            line = f"{cell.scenario} {cell.entry} seed {cell.seed}: {run.last:.3f}"
            progress.update(bar, advance=1, description=line)
            if not errors.is_terminal:  # where bars cannot be drawn
                errors.print(line, highlight=False, soft_wrap=True)

        play_all(cells, seconds, out, workers, ended)
    results = load(out)
    for path in write(results, out):
        console.print(f"wrote {path}", highlight=False)
    print(table({cell: run for cell, run in results.items() if cell in set(cells)}))
