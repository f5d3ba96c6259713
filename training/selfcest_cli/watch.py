"""`selfcest watch`: how far a run is, from outside; in the terminal, and as a page that renews itself."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from selfcest_cli.trace import renderers_of
from selfcest_env.errors import ConfigError
from selfcest_eval.report.serve import served
from selfcest_eval.report.sources import config_of
from selfcest_training.config import RunConfig
from selfcest_training.run.display import EVERY, Display, show
from selfcest_training.run.progress import read_run


def watch_run(folder: Path, console: Console, *, once: bool, html: bool, port: int | None) -> None:
    """Show a run's jobs until `KeyboardInterrupt`, or `once`. Its folder is read alone, whoever works there.

    Args:
        folder: of the run.
        console: where to.
        once: print them and end.
        html: also serve the report to this machine.
        port: for that; `None`: any that is free.

    Raises:
        ConfigError: the folder holds no run, options contradict each other, or the port cannot be had.
    """
    if port is not None and not html:
        raise ConfigError(f"--port {port} is for the page; add --html")
    if once and html:
        raise ConfigError("--once ends where --html serves; give one of them")
    config = config_of(folder)
    if not isinstance(config, RunConfig):
        raise ConfigError(f"{folder} holds a study, which has no jobs to watch; give the folder of a run")
    if once:
        show(read_run(config), console)
        return
    with ExitStack() as stack:
        if html:
            address = stack.enter_context(served(folder, port or 0, renderers_of))
            console.print(f"the report is at {address}", soft_wrap=True, highlight=False, markup=False)
        display = stack.enter_context(Display(config, console))
        while True:
            display.update()
            time.sleep(EVERY)
