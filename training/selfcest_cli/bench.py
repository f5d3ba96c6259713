"""`selfcest bench`."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Annotated

import typer

from selfcest_training.printing import print_text


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
    from selfcest_baselines.bench import ENTRIES, BenchmarkCell, Run
    from selfcest_baselines.bench.report import format_scenarios, table, write
    from selfcest_baselines.bench.runs import load, play_all
    from selfcest_cli.terminal import Terminal, progress_bar
    from selfcest_env.symbolic.scenarios import SCENARIOS

    if listed:
        print(format_scenarios(), f"\nLearners: {', '.join(ENTRIES)}.", sep="\n")
        return
    # Seeds vary slowest, so that an interrupted benchmark has complete seeds.
    cells = []
    for seed in range(first_seed, first_seed + seeds):
        for name, entry in product(scenario or SCENARIOS, learner or ENTRIES):
            cells.append(BenchmarkCell(name, entry, seed))
    num_stored = len(load(out).keys() & set(cells))
    with progress_bar(len(cells), num_stored) as advance:

        def report_run(cell: BenchmarkCell, run: Run) -> None:
            advance(f"{cell.scenario} {cell.entry} seed {cell.seed}: {run.last:.3f}")

        play_all(cells, seconds, out, workers, report_run)
    results = load(out)
    console = Terminal()
    for path in write(results, out):
        print_text(console, f"wrote {path}")
    print(table({cell: run for cell, run in results.items() if cell in set(cells)}))
