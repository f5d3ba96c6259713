"""What mkdocs calls while it builds the site.

The commands write the pages that the site embeds, so the site never has a copy of them. They need the project with its
extra `train`, which the environment of the documentation lacks. A Python that has it writes them: `$SELFCEST_PYTHON`,
else that of `.venv`, else this one.

Every page gets a description for search engines and link previews, and the footer has the version of the project.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
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


MAX_DESCRIPTION = 200  # characters; link previews cut longer ones


def describe_page(markdown: str) -> str:
    """Return the first paragraph of a page as plain text, cut after a whole sentence if possible.

    A paragraph that names the command of a generated page is passed over.
    """
    paragraphs = re.split(r"\n\s*\n", re.sub(r"^```.*?^```$", "", markdown, flags=re.MULTILINE | re.DOTALL))
    prose = [text for text in paragraphs if re.match(r"[A-Za-z*](?!This page is generated)", text.strip())]
    if not prose:
        return ""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", prose[0])
    text = " ".join(re.sub(r"[*`]", "", text).split())
    if len(text) <= MAX_DESCRIPTION:
        return text
    sentences = text[:MAX_DESCRIPTION].rpartition(". ")[0]
    return f"{sentences}." if sentences else f"{text[: MAX_DESCRIPTION - 2].rpartition(' ')[0]} …"


def on_config(config: Any) -> Any:
    """Called by mkdocs with its settings: put the version into the footer, and set the address of the site.

    Link previews need the address with its path, as in `SELFCEST_SITE_URL=https://example.org/selfcest/`.
    """
    if address := os.environ.get("SELFCEST_SITE_URL"):
        config["site_url"] = address
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    config["copyright"] = f"selfcest {project['version']}, {project['license']}"
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs with the text of each page: describe the page by its first paragraph, unless it says more."""
    page.meta.setdefault("description", describe_page(markdown) or page.title)
    return markdown
