"""`selfcest evaluate`, and the report of a study for `selfcest report`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from signal import SIGINT

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from selfcest_env.errors import ConfigError, signal_name
from selfcest_eval.play.batch_timing import check_batches, time_study
from selfcest_eval.play.config import StudyConfig
from selfcest_eval.play.contamination import find_contamination
from selfcest_eval.play.store import Store
from selfcest_eval.play.study import Study
from selfcest_eval.report.sources import read_study
from selfcest_eval.report.study_report import write_page, write_report
from selfcest_training.config_file import dump_config, find_shipped_config
from selfcest_training.faults import SignalExit, log_faults
from selfcest_training.files import check_kind, check_output_file, write_text
from selfcest_training.lock import lock_folder
from selfcest_training.printing import print_text
from selfcest_training.session import SESSIONS, record_session

RESUME_HINT = "the same command with --resume plays the missing results"


def run_study(
    config: StudyConfig, *, resume: bool, page: Path | None = None, command: str = "", console: Console | None = None
) -> Path:
    """Play the missing results of a study and write its folder; return the folder.

    Args:
        config: config of the study.
        resume: whether the folder may hold results, which are not played again.
        page: Markdown page to write, if any.
        command: command line that the page shows.
        console: output for progress and verdict.

    Raises:
        ConfigError: the folder holds a study and `resume` is not set, another process uses the folder, or the config
            is wrong. It is raised before any episode is played.
    """
    study = Study(config)
    check_batches(study)
    if page is not None:
        check_output_file("--page", page, makes_folders=True)
    with lock_folder(config.folder), log_faults(config.folder):
        return _run(study, resume, page, command, console or Console())


def _run(study: Study, resume: bool, page: Path | None, command: str, console: Console) -> Path:
    import torch  # slow to import, and `report` uses this module without torch

    config = study.config
    folder = config.folder
    # A folder at the path of one of these files is refused now, and not after hours of play.
    for name in ("study.yaml", "played.jsonl", "results.jsonl", "table.md", "results.csv", SESSIONS):
        check_kind(folder / name, folder=False)
    if not resume and any((folder / name).exists() for name in ("played.jsonl", "results.jsonl")):
        raise ConfigError(
            f"{folder} already holds a study; add --resume to play only what it lacks, or set name= to start another"
        )
    # Stored before any result, so that the results of a killed study can be read.
    write_text(folder / "study.yaml", dump_config(config))
    notes = find_contamination(study)
    for note in notes:
        print_text(console, f"warning: {note}")
    torch.set_num_threads(config.threads)
    try:
        store = Store(folder)  # opened before the session, so that a refused file leaves no session behind
        if resume:
            print_text(console, f"{study.count_stored(store)} of {study.size} results are stored")
        with record_session(folder):
            _play(study, store, console)
            if config.timed_batches:
                time_study(study, folder, lambda line: print_text(console, line))
    except KeyboardInterrupt:
        print_text(console, f"interrupted by {signal_name(SIGINT)}; {RESUME_HINT}")
        raise
    except SignalExit as error:
        error.add_note(RESUME_HINT)
        raise
    text = print_study(config, console, notes, study.crossed)
    if page is not None:
        write_page(page, folder, f"Study: {config.name}", command, text, config.compared_costs)
        print_text(console, f"page written to {page}")
    return folder


def print_study(config: StudyConfig, console: Console, notes: Sequence[str] = (), crossed: bool | None = None) -> str:
    """Write the report of a finished study and print its verdict; return the text of table.md.

    Args:
        config: config of the study.
        console: output for the verdict.
        notes: further lines that the report begins with.
        crossed: whether seeds are crossed with instances, see `Resampler`; `None` to take it from the config.
    """
    source = read_study(config, crossed=crossed, for_page=False)
    shown, text = write_report(source, notes)
    print_text(console, shown)
    print_text(console, f"written to {config.folder}; the whole report is its table.md")
    return text


def _play(study: Study, store: Store, console: Console) -> None:
    columns = (TextColumn("playing"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[line]}", markup=False), console=console) as progress:
        bar = progress.add_task("", total=study.size, line="")
        tenths = 0

        def report(num_played: int, line: str) -> None:
            nonlocal tenths
            progress.update(bar, advance=num_played, line=line)
            completed = progress.tasks[bar].completed
            # Where bars cannot be drawn, a line is printed for each tenth.
            if not console.is_terminal and int(10 * completed / study.size) > tenths:
                print_text(console, f"{completed:.0f}/{study.size} {line}")
                tenths = int(10 * completed / study.size)

        study.play(store, report)


def default_study() -> Path:
    """Return the config of `selfcest evaluate` without --config."""
    return find_shipped_config("cpu/frontier.yaml")


def format_command(config: Path | None, page: Path | None, overrides: Sequence[str]) -> str:
    """Return the command line that writes a page, quoted for a shell."""
    words = ["selfcest", "evaluate"]
    words += ["-c", str(config)] if config else []
    words += ["--page", str(page)] if page else []
    return shlex.join([*words, *overrides])
