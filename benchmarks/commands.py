"""CPU seconds of commands that play nothing, paired with those of another checkout.

    OMP_NUM_THREADS=1 python benchmarks/commands.py runs/quick [--beside ../other-checkout] [--repeats 3]

RUN is the folder of a finished run; it is copied, since a report rewrites tables and plots. Each command runs in a
process of its own, and the least CPU time of the repeats counts, user and system time together. With --beside, both
checkouts take turns in one pass over the commands, under this Python, so that load changes both alike.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]


def commands(run: Path, out: Path) -> dict[str, list[str]]:
    """Arguments of `selfcest` by what a reader would type."""
    episodes = str(next(run.glob("*/seed*/episodes.jsonl")))
    return {
        "--help": ["--help"],
        "trace EPISODES": ["trace", episodes],
        "trace EPISODES --html": ["trace", episodes, "--html", str(out / "trace.html")],
        "watch RUN --once": ["watch", str(run), "--once"],
        "report RUN": ["report", str(run)],
        "report RUN --html": ["report", str(run), "--html", str(out / "report.html")],
    }


def cpu_seconds(checkout: Path, arguments: list[str]) -> float:
    """User and system time of one command and of what it starts."""
    places = [checkout, checkout / "agents", checkout / "training"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, places))}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "selfcest_cli", *arguments],
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a finished run")
    parser.add_argument("--beside", type=Path, help="another checkout, as of an earlier commit")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    checkouts = [ROOT] if options.beside is None else [options.beside.resolve(), ROOT]
    table = Table("command", *(f"{checkout.name}, CPU s" for checkout in checkouts))
    with tempfile.TemporaryDirectory() as folder:
        run = Path(shutil.copytree(options.run, Path(folder) / options.run.resolve().name))
        for name, arguments in commands(run, Path(folder)).items():
            least = [float("inf")] * len(checkouts)
            for _ in range(options.repeats):
                for index, checkout in enumerate(checkouts):
                    least[index] = min(least[index], cpu_seconds(checkout, arguments))
            table.add_row(name, *(f"{seconds:.2f}" for seconds in least))
    Console().print(table)
    load = os.getloadavg()[0]
    print(f"least of {options.repeats}; Python {platform.python_version()}, load {load:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
