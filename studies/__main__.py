"""Runs one of the project's studies: `python -m studies NAME`, in a checkout."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

NAMES = sorted(file.parent.name for file in Path(__file__).parent.glob("*/study.py"))


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in NAMES:
        sys.exit(f"usage: python -m studies NAME [--help]; NAME is one of {', '.join(NAMES)}")
    sys.argv[:2] = [f"python -m studies {name}"]
    import_module(f"studies.{name}.study").main()


if __name__ == "__main__":
    main()
