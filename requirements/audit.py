"""Looks up known weaknesses of what locks pin, with pip-audit, and says so when its data cannot be reached.

    .venv-tools/bin/python requirements/audit.py requirements/dev.txt requirements/docs.txt

pip-audit alone ends with "No known vulnerabilities found" where an index answers no question about any package.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

COMMAND = ["-m", "pip_audit", "--disable-pip", "--require-hashes", "--progress-spinner", "off", "--format", "json"]


def verdict(lock: str, packages: list[dict[str, Any]]) -> str:
    """One line about one lock; `packages` is what pip-audit prints as `dependencies`."""
    asked = [package for package in packages if "skip_reason" not in package]
    if not asked:
        return f"audit of {lock}: not done, the data cannot be reached: 0 of {len(packages)} packages were found there"
    weak = [
        f"{package['name']} {package['version']} ({', '.join(known['id'] for known in package['vulns'])})"
        for package in asked
        if package["vulns"]
    ]
    known = f"warning: known weaknesses: {', '.join(weak)}" if weak else "no known weakness"
    return f"audit of {lock}: {known}, {len(asked)} of {len(packages)} packages looked up"


def main(locks: list[str]) -> None:
    for lock in locks:
        run = subprocess.run([sys.executable, *COMMAND, "-r", lock], capture_output=True, text=True, check=False)
        if not run.stdout.startswith("{"):
            last = (run.stderr.strip().splitlines() or [f"exit {run.returncode}"])[-1]
            print(f"audit of {Path(lock).name}: not done, pip-audit failed: {last[:200]}", flush=True)
            return
        line = verdict(Path(lock).name, json.loads(run.stdout)["dependencies"])
        print(line, flush=True)
        if "not done" in line:
            return


if __name__ == "__main__":
    main(sys.argv[1:])
