"""The requirements of the game, or of an extra too, at one end of their ranges, for the Python that runs this.

    python requirements/bounds.py lowest            # gymnasium==1.1, ...
    python requirements/bounds.py newest train      # gymnasium>=1.1, ..., torch left out: requirements/torch.txt has it

`.ci/run` tests the game with both. Needs no package.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

MARKER = re.compile(r"python_version (<|>=) '3\.(\d+)'")


def is_needed(marker: str, minor: int) -> bool:
    """Whether a marker of `pyproject.toml` holds on Python 3.`minor`; an empty one does."""
    if not marker:
        return True
    match = MARKER.fullmatch(marker)
    if match is None:
        raise SystemExit(f"pyproject.toml has the marker {marker!r}; expected \"python_version < '3.N'\" or >=")
    return minor < int(match[2]) if match[1] == "<" else minor >= int(match[2])


def requirements(end: str, minor: int, extra: str | None = None) -> list[str]:
    """What to install on Python 3.`minor`.

    Args:
        end: "lowest" pins every package to its lower bound, "newest" leaves the range as it is.
        extra: an extra whose packages are wanted too.
    """
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    chosen: list[str] = []
    for requirement in [*project["dependencies"], *(project["optional-dependencies"][extra] if extra else [])]:
        name, _, marker = (part.strip() for part in requirement.partition(";"))
        if name.startswith("torch>=") or not is_needed(marker, minor):
            continue
        chosen.append(name.partition(",")[0].replace(">=", "==") if end == "lowest" else name)
    return chosen


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or sys.argv[1] not in ("lowest", "newest"):
        raise SystemExit(__doc__)
    print(*requirements(sys.argv[1], sys.version_info.minor, *sys.argv[2:]), sep="\n")
