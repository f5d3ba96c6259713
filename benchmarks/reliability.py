"""The page of reliability, from what fuzz.py, soak.py and faults.py have found and stored."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
STORE = ROOT / "docs" / "evidence" / "reliability"


def commit() -> str:
    """Of this checkout; with a + where files differ from it."""
    head = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    dirty = subprocess.run(["git", "status", "--porcelain", "-uno"], cwd=ROOT, capture_output=True, text=True)
    return head.stdout.strip() + "+" * bool(dirty.stdout.strip())


def written(path: Path, found: Mapping[str, Any]) -> None:
    """Store evidence as JSON, with the commit it is of."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"commit": commit(), **found}, indent=1) + "\n", encoding="utf-8")
