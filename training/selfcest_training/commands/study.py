"""`selfcest evaluate` and `selfcest compare`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from transformers.utils.logging import disable_progress_bar

from selfcest_env.errors import ConfigError
from selfcest_training.config_file import dump_config
from selfcest_training.evaluation.config import StudyConfig
from selfcest_training.evaluation.leaks import leaked
from selfcest_training.evaluation.play import Study
from selfcest_training.evaluation.report import Reading, write_page, write_report
from selfcest_training.evaluation.results import read_results
from selfcest_training.evaluation.store import Store
from selfcest_training.evaluation.table import curves_of
from selfcest_training.lock import locked
from selfcest_training.run.experiment import shipped_config


def run_study(
    config: StudyConfig, *, resume: bool, page: Path | None = None, command: str = "", console: Console | None = None
) -> Path:
    """Play what is missing and write the study's folder. Returns the folder.

    Raises:
        ConfigError: the folder holds a study and `resume` is not set, or it is in use, or something cannot be right;
            before any work.
    """
    study = Study(config)
    with locked(config.folder):
        return _run(study, resume, page, command, console or Console())


def _run(study: Study, resume: bool, page: Path | None, command: str, console: Console) -> Path:
    config, folder = study.config, study.config.folder
    if (folder / "study.yaml").exists() and not resume:
        raise ConfigError(
            f"{folder} already holds a study; add --resume to play only what it lacks, or set name= to start another"
        )
    (folder / "study.yaml").write_text(dump_config(config), encoding="utf-8")
    notes = leaked(study)
    for note in notes:
        console.print(f"warning: {note}", soft_wrap=True, highlight=False, markup=False)
    torch.set_num_threads(config.threads)
    disable_progress_bar()  # type: ignore[no-untyped-call]  # of loading models: ours is the one that counts
    try:
        results = _play(study, Store(folder), console)
    except KeyboardInterrupt:
        console.print("interrupted; the same command with --resume plays what is missing")
        raise
    reading = reading_of(study)
    text = write_report(folder, curves_of(read_results(results)), reading, " ".join([headline(study), *notes]))
    if page is not None:
        write_page(page, folder, f"Study: {config.name}", command, text)
    console.print(text, soft_wrap=True, highlight=False, markup=False)
    console.print(f"written to {folder}" + (f" and {page}" if page else ""), highlight=False)
    return folder


def reading_of(study: Study) -> Reading:
    config = study.config
    return Reading(
        subject=config.subject_arm,
        labels={arm: study.label(arm) for arm in study.arms},
        swept=config.swept,
        crossed=study.crossed,
        resamples=config.resamples,
        confidence=config.confidence,
    )


def headline(study: Study) -> str:
    config = study.config
    sizes = sorted({len(tasks) for tasks in study.tasks.values()})
    instances = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    oracles = [study.label(arm) for arm in study.arms if study.arms[arm].oracle]
    knows = f" {', '.join(oracles)}: no policy, since it uses what no player can know." if oracles else ""
    return (
        f"{instances} instances a cell, the same for all arms; {len(config.seeds)} seed(s). A budget bounds "
        f"{config.swept.replace('_', ' ')} of the whole arm on an instance, clones and samples included; costs are "
        f"means per instance.{knows} {players(config)}"
    )


def players(config: StudyConfig) -> str:
    """Which arms each policy plays, by its folder, or else by its name and options."""
    arms: dict[str, list[str]] = {}
    for arm in config.arms:
        policy = config.policy_of(arm)
        name = f"{policy.name} {dict(policy.options)}" if policy.options else policy.name
        arms.setdefault(str(policy.options.get("folder") or name), []).append(arm)
    return "Played by " + "; ".join(f"`{policy}`: {', '.join(played)}" for policy, played in arms.items()) + "."


def _play(study: Study, store: Store, console: Console) -> Path:
    columns = (TextColumn("playing"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[line]}"), console=console) as progress:
        bar = progress.add_task("", total=study.size, line="")
        last = ""

        def report(done: int, line: str) -> None:
            nonlocal last
            progress.update(bar, advance=done, line=line)
            if not console.is_terminal and line != last:  # where bars cannot be drawn
                console.print(f"{progress.tasks[bar].completed:.0f}/{study.size} {line}", highlight=False)
            last = line

        return study.play(store, report)


def default_study() -> Path:
    """The config of a plain `selfcest evaluate`."""
    return shipped_config("cpu/frontier.yaml")


def command_line(config: Path | None, page: Path | None, overrides: Sequence[str]) -> str:
    """The command that writes a page, as a reader would type it."""
    words = ["selfcest", "evaluate"]
    words += ["-c", str(config)] if config else []
    words += ["--page", str(page)] if page else []
    return shlex.join([*words, *overrides])
