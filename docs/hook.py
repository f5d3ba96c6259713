"""Makes the pages that the site embeds while the site is built: they are what the commands write, never a copy of it.

They need the project with its extra `train`, which the environment of the documentation has not; so a Python that has
it writes them: `$SELFCEST_PYTHON`, else that of `.venv`, else this one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = ("look/trees.html", "look/credit.html", "look/report.html")  # that pages of the documentation link to


@cache
def made() -> Mapping[str, bytes]:
    """By path on the site what lies there. Raises `RuntimeError` if they could not be made, with what was said."""
    own = ROOT / ".venv" / "bin" / "python"
    python = os.environ.get("SELFCEST_PYTHON") or (str(own) if own.is_file() else sys.executable)
    paths = os.pathsep.join(str(ROOT / part) for part in (".", "agents", "training"))
    with TemporaryDirectory() as folder:
        done = subprocess.run(
            [python, "-m", "studies.gallery.study", folder],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(
                f"{python} could not make the pages that the site embeds: {done.stderr.strip()[-2000:]}\n"
                "`make test` sets up a .venv that can; SELFCEST_PYTHON names another Python with the extra `train`"
            )
        files = [path for path in sorted(Path(folder).rglob("*")) if path.is_file()]
        return {f"look/{path.relative_to(folder).as_posix()}": path.read_bytes() for path in files}


def on_files(files: Any, config: Any) -> Any:
    """Called by mkdocs with the files of the site."""
    from mkdocs.exceptions import PluginError  # only the environment of the documentation has it
    from mkdocs.structure.files import File

    try:
        pages = made()
    except RuntimeError as error:
        raise PluginError(str(error)) from error
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))
    return files
