"""`selfcest bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def bench(
    scenario: Annotated[
        list[str] | None, typer.Argument(help="Scenarios, as chain-8m5-v1 (default: all).", show_default=False)
    ] = None,
    learner: Annotated[
        list[str] | None,
        typer.Option(
            help="A learner, or package.module:Class with options of its own after it, as in 'mine:Own steps=512'; may "
            "be repeated (default: all).",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many.", min=1)] = 5,
    first_seed: Annotated[int, typer.Option(help="The first of them.", min=0)] = 0,
    seconds: Annotated[float, typer.Option(help="CPU seconds of learning in each run.", min=0.01)] = 60.0,
    workers: Annotated[int, typer.Option(help="Runs side by side.", min=1)] = 1,
    out: Annotated[Path, typer.Option(help="The folder of the results; what it holds is not made again.")] = Path(
        "runs/bench"
    ),
    listed: Annotated[bool, typer.Option("--list", help="Say what there is, and run nothing.")] = False,
) -> None:
    """Learners on named symbolic scenarios: make the runs that OUT lacks, then print the table.

    OUT gets a file per scenario, results.json as marl-eval reads it, table.md, and profiles.png. A run that was
    interrupted goes on with the same command.
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
    cells = [
        BenchmarkCell(name, entry, seed)
        for seed in range(first_seed, first_seed + seeds)  # first, so that what an interruption leaves is whole seeds
        for name in scenario or SCENARIOS
        for entry in learner or ENTRIES
    ]
    errors, there = Terminal(stderr=True), len(load(out).keys() & set(cells))
    last_run = TextColumn("{task.description}", markup=False)
    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn(), last_run)
    with Progress(*columns, console=errors, transient=True) as progress:
        bar = progress.add_task("", total=len(cells), completed=there)

        def ended(cell: BenchmarkCell, run: Run) -> None:
            said = f"{cell.scenario} {cell.entry} seed {cell.seed}: {run.last:.3f}"
            progress.update(bar, advance=1, description=said)
            if not errors.is_terminal:  # where bars cannot be drawn
                errors.print(said, highlight=False, soft_wrap=True)

        play_all(cells, seconds, out, workers, ended)
    results = load(out)
    for path in write(results, out):
        console.print(f"wrote {path}", highlight=False)
    print(table({cell: run for cell, run in results.items() if cell in set(cells)}))
