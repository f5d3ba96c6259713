"""Runs one of the project's studies: `python -m studies NAME`, in a checkout."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from studies.runner import run_study

NAMES = sorted(file.parent.name for file in Path(__file__).parent.glob("*/study.py"))


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in NAMES:
        found = f"no study is named {name}" if name and not name.startswith("-") else "usage: python -m studies NAME"
        sys.exit(f"{found}; NAME is one of {', '.join(NAMES)}")
    run_study(name, import_module(f"studies.{name}.study").STUDY, sys.argv[2:])


if __name__ == "__main__":
    main()
