"""`selfcest watch`: the progress of a run in the terminal, and as a live page."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from selfcest_cli.trace import renderers_of
from selfcest_env.errors import ConfigError
from selfcest_eval.report.serve import serve_report
from selfcest_eval.report.sources import load_folder_config
from selfcest_training.config import RunConfig
from selfcest_training.printing import print_text
from selfcest_training.run.display import UPDATE_SECONDS, Display, print_status
from selfcest_training.run.progress import read_run


def watch_run(folder: Path, console: Console, *, once: bool, serve: bool, port: int | None) -> None:
    """Show the jobs of a run until `KeyboardInterrupt`. The folder is only read, so the run may be active.

    Args:
        folder: folder of the run.
        console: output for the jobs.
        once: print the jobs once and return.
        serve: also serve progress and report on 127.0.0.1.
        port: port of the server; `None`: any free port.

    Raises:
        ConfigError: the folder holds no run, options contradict each other, or the port is not free.
    """
    if port is not None and not serve:
        raise ConfigError(f"--port {port} has no effect without --serve; add --serve, or leave --port out")
    if once and serve:
        raise ConfigError("--once and --serve cannot be combined: --serve serves until Ctrl-C; give one of them")
    config = load_folder_config(folder)
    if not isinstance(config, RunConfig):
        raise ConfigError(f"{folder} holds a study, which has no jobs to watch; give the folder of a run")
    if once:
        print_status(read_run(config), console)
        return
    with ExitStack() as stack:
        if serve:
            address = stack.enter_context(serve_report(folder, port or 0, renderers_of))
            print_text(console, f"progress and report are at {address}")
        display = stack.enter_context(Display(config, console))
        while True:
            display.update()
            time.sleep(UPDATE_SECONDS)
