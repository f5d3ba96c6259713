"""The command line, the stored evidence and the tables that all studies share.

python -m studies NAME                # prints the page from the stored evidence
python -m studies NAME --check        # ends with code 1 if the page in docs/ differs from the evidence
python -m studies NAME --write        # writes the page and its figures into docs/
python -m studies NAME --rerun CELL   # plays a cell anew into runs/rerun/NAME; with --store into the evidence
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import wrap
from typing import Any

from selfcest_eval.stats.statistics import Estimate

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
STUDIES = ROOT / "studies"
CONFIGS = ROOT / "training" / "configs"
FIRST_VERSION = "0.1.0"  # of stored results that name a commit and no version
MAX_COMMITS = 3  # that a page's line names one by one; its table of cells names each
LINE_WIDTH = 120  # of stored evidence
TUNING_COLUMNS = ("experiment", "arm", "seed", "tried", "outcome", "cpu_seconds")

Cell = Mapping[str, Any]


@dataclass(frozen=True)
class Rerun:
    """How cells are played again.

    Attributes:
        evidence: folder of the study's evidence.
        folder: where results are written; the evidence itself with `--store`.
        workers: processes, where a study plays cells side by side.
        resume: whether results that are there already are kept, and only the missing ones played.
    """

    evidence: Path
    folder: Path
    workers: int = 2
    resume: bool = False

    def input(self, name: str) -> Path:
        """A file that results are made from: of this rerun if it has made one, else of the evidence."""
        own = self.folder / name
        return own if own.exists() else self.evidence / name

    def check_new(self, folder: Path) -> None:
        """End with one line if a command has written into a folder before, and would play nothing again there."""
        if not self.resume and folder.exists():
            sys.exit(
                f"{folder} holds what an earlier rerun has trained or played; expected no such folder: remove it to "
                "play the cell anew, or add --resume to play only what it lacks and to write its results again"
            )


@dataclass(frozen=True)
class Study:
    """One study, as the command line needs it.

    Attributes:
        page_file: the page in docs/.
        page: returns the text of that file; a page that is written by hand has none.
        figures: for each picture of the page, the function that draws it into a file.
        more_pages: for each further page in docs/, the function that returns its text.
        rerun: plays the cell of a name, and returns the files that it wrote.
        cells: the names that `rerun` takes, in words.
    """

    page_file: Path
    page: Callable[[], str] | None = None
    figures: Mapping[Path, Callable[[Path], None]] = field(default_factory=dict)
    more_pages: Mapping[Path, Callable[[], str]] = field(default_factory=dict)
    rerun: Callable[[str, Rerun], Iterable[Path]] | None = None
    cells: str = ""


def run_study(name: str, study: Study, arguments: Sequence[str]) -> None:
    """Do what the command line asks of a study. Ends with code 1 where `--check` finds a difference."""
    parser = argparse.ArgumentParser(prog=f"python -m studies {name}")
    if study.rerun:
        parser.add_argument("--rerun", nargs="+", default=[], metavar="CELL", help=f"play anew: {study.cells}")
        parser.add_argument("--store", action="store_true", help="write the results into the evidence")
        parser.add_argument("--resume", action="store_true", help="keep what the last rerun wrote, and play the rest")
        parser.add_argument("--workers", type=int, default=2, help="processes, where a study plays cells side by side")
    if study.page:
        parser.add_argument("--check", action="store_true", help="compare the page in docs/ with the evidence")
        parser.add_argument("--write", action="store_true", help="write the page and its figures into docs/")
    options = vars(parser.parse_args(arguments))
    cells = options.get("rerun", [])
    if cells:
        assert study.rerun is not None
        evidence = STUDIES / name / "evidence"
        folder = evidence if options["store"] else rerun_folder(name, resume=options["resume"])
        how = Rerun(evidence, folder, options["workers"], options["resume"])
        for cell in cells:
            for file in study.rerun(cell, how):
                print(f"written to {file}")
    elif options.get("store") or options.get("resume"):
        parser.error("--store and --resume say how a cell is played again; give --rerun CELL")
    if study.page is None:
        if not cells:
            parser.error(f"{study.page_file.relative_to(ROOT)} is written by hand; give --rerun")
        return
    pages = {study.page_file: study.page, **study.more_pages}
    if options["write"]:
        for file, page in pages.items():
            file.write_text(page(), encoding="utf-8")
        for file, draw in study.figures.items():
            draw(file)
    elif options["check"]:
        for file, page in pages.items():
            if page() != file.read_text(encoding="utf-8"):
                sys.exit(f"{file.relative_to(ROOT)} differs from its evidence; write it with --write")
    elif not cells:
        print("\n".join(page() for page in pages.values()), end="")


def rerun_folder(name: str, *, resume: bool) -> Path:
    """A new folder for the results of a rerun; to resume, that of the last one."""
    folder = Path("runs") / "rerun" / name
    numbers = [int(path.name) for path in folder.glob("*") if path.name.isdecimal()]
    last = max(numbers, default=0)
    if resume and not last:
        sys.exit(f"{folder} holds no rerun to resume; expected one: leave --resume out, or add --store")
    new = folder / str(last if resume else last + 1)
    new.mkdir(parents=True, exist_ok=resume)
    return new


# Evidence


def git(*arguments: str) -> str:
    """What git prints about this checkout."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def name_commit() -> str:
    """Return the commit of this checkout, and that there are changes if there are."""
    changed = " and changes" if git("status", "--porcelain", "--untracked-files=no") else ""
    return git("rev-parse", "HEAD") + changed


def selfcest(*arguments: str) -> None:
    """Run a command of `selfcest` in a process of its own. Raises `CalledProcessError` if it fails."""
    subprocess.run([sys.executable, "-m", "selfcest_cli", *arguments], check=True)


def read_json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def store_json(file: Path, values: Mapping[str, Any]) -> Path:
    """Write evidence, and return its file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(format_json(values) + "\n", encoding="utf-8")
    return file


def format_json(value: Any, indent: int = 0, used: int = 0) -> str:
    """Return JSON for readers: what fits a line stands on one line, and long lists of numbers fill their lines.

    Args:
        value: what `json` can write.
        indent: columns before the lines that follow the first one.
        used: columns of the first line that are not free.
    """
    text = json.dumps(value)
    if used + len(text) < LINE_WIDTH or not isinstance(value, dict | list | tuple):
        return text
    margin = "\n" + " " * (indent + 1)
    if isinstance(value, dict):
        entries = []
        for key, entry in value.items():
            name = f"{json.dumps(str(key))}: "
            entries.append(name + format_json(entry, indent + 1, indent + 1 + len(name)))
        return f"{{{margin}{f',{margin}'.join(entries)}\n{' ' * indent}}}"
    if all(isinstance(entry, int | float | None) for entry in value):
        body = margin.join(wrap(text[1:-1], LINE_WIDTH - indent))
    else:
        body = f",{margin}".join(format_json(entry, indent + 1, indent + 1) for entry in value)
    return f"[{margin}{body}\n{' ' * indent}]"


def cells_in(folder: Path) -> list[Cell]:
    files = sorted(folder.glob("*_seed*.json"), key=lambda file: (len(file.stem), file.stem))
    return [read_json(file) for file in files]


def of(cells: Iterable[Cell], *experiments: str) -> dict[str, list[Cell]]:
    """Cells of experiments by variant."""
    variants: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell["experiment"] in experiments:
            variants.setdefault(cell["arm"], []).append(cell)
    return variants


# Pages


def joined(parts: Iterable[str]) -> str:
    """The parts of a page, with an empty line between them."""
    return "\n\n".join(part.strip() for part in parts) + "\n"


def fold(title: str, *parts: str) -> str:
    """Return parts of a page that a reader opens by a click on their title."""
    return joined([f'<details markdown="1">\n<summary>{title}</summary>', *parts, "</details>"])


def table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, ["---"] * len(heads), *lines))


def shown(found: Estimate, digits: int = 2, sign: str = "") -> str:
    """A mean with its 95 % interval over seeds; `sign` is "+" where it is a difference."""
    half = "" if math.isnan(found.high) else f" ± {found.high - found.mean:.{digits}f}"
    return f"{found.mean:{sign}.{digits}f}{half}"


def each(values: Iterable[float | None], digits: int = 2) -> str:
    return " ".join("-" if value is None else f"{value:.{digits}f}" for value in values)


def cell_name(cell: Cell) -> str:
    return f"{cell['experiment']}/{cell['arm']}/seed{cell['seed']}"


def evidence_line(results: Iterable[Mapping[str, Any]], repeat: str) -> str:
    """The line of a page of evidence: which version ran it, at which commits, and what running it again repeats.

    Args:
        results: as they are stored, with `commit`, and with `version` unless they are older than that key.
        repeat: the command or option that makes a result again, in code marks.
    """
    results = list(results)
    versions = ", ".join(sorted({result.get("version", FIRST_VERSION) for result in results}))
    hashes = sorted({result["commit"][:7] for result in results})
    named = ", ".join(f"`{name}`" for name in hashes) if len(hashes) <= MAX_COMMITS else f"{len(hashes)} commits"
    return (
        f"*Results of version {versions} ({named}). {repeat} repeats the distribution of these figures, not "
        "their digits.*"
    )


def provenance(cells: Sequence[Cell]) -> str:
    """Where each cell comes from: digest of its config, commit and compute."""
    lines = [
        [
            *(cell_name(cell), f"`{cell['config']}`", f"`{cell['commit'][:7]}`", str(cell["attempts"])),
            *(f"{cell['compute_tokens'] / 1e6:.2f}", f"{cell['cpu_seconds']:.0f}"),
        ]
        for cell in cells
    ]
    return table(["cell", "config", "commit", "warm starts", "compute, M tokens", "CPU-s of training"], lines)


def tuning_table(runs: Iterable[Cell], outcome: str = "outcome") -> str:
    """The log of tuning runs."""
    lines = [[str(run[column]) for column in TUNING_COLUMNS] for run in runs]
    return table(["", "variant", "seed", "tried", outcome, "CPU-s"], lines)
