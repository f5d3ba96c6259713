"""`selfcest report`: the report of runs and studies in the terminal, or as a page with files beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from selfcest_cli.study import print_study
from selfcest_cli.trace import renderers_of
from selfcest_env.errors import ConfigError
from selfcest_eval.report.page import write_report_page
from selfcest_eval.report.run_report import RunEvaluation
from selfcest_eval.report.sources import load_folder_config, read_sources
from selfcest_eval.report.verdict import report_on
from selfcest_training.config import RunConfig
from selfcest_training.files import check_output_file
from selfcest_training.lock import lock_folder
from selfcest_training.printing import print_text
from selfcest_training.run.display import print_report


def report_folder(folder: Path, console: Console) -> None:
    """Rewrite the report in a folder from its stored results, and print it. The folder may have been moved.

    Raises:
        ConfigError: the folder holds neither a run nor a study, or another process writes into it.
    """
    config = load_folder_config(folder)
    with lock_folder(folder):
        if isinstance(config, RunConfig):
            print_report(config, console, RunEvaluation())
        else:
            print_study(config, console)


def report_page(folders: Sequence[Path], out: Path, console: Console) -> None:
    """Write one page about all folders, and print the findings. The folders are only read, so a run may be active.

    Raises:
        ConfigError: a folder holds neither a run nor a study or is named twice, or `out` is not the path of a page.
        RecordError: a file of a folder is damaged; the message names file and line.
    """
    if out.suffix != ".html":
        raise ConfigError(f"--html {out} does not end in .html; name a file that does")
    check_output_file("--html", out)
    reports = [report_on(source) for source in read_sources(folders)]
    written = write_report_page(reports, out, renderers_of)
    lines = []
    for report in reports:
        if len(reports) > 1:
            lines.append(report.source.name)
        lines += [f"warning: {line}" for line in report.failures]
        lines += [report.headline] if report.headline else []
        lines += [f"{answer.question}: {answer.text}" for answer in report.answers]
    lines.append(f"written to {out}, with {len(written) - 1} files beside it")
    print_text(console, "\n".join(lines))
