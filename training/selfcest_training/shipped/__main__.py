"""`python -m selfcest_training.shipped runs/quick --commit acec70f`: the models of a run into the package."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from selfcest_env.errors import SelfcestError
from selfcest_training.shipped import ship


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m selfcest_training.shipped", description="Models into the package.")
    parser.add_argument("run", type=Path, help="folder of a finished run, as runs/quick")
    parser.add_argument("--commit", required=True, help="of the checkout that trained it")
    parser.add_argument("--command", default="selfcest train", help="that trained it (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the run (default: %(default)s)")
    options = parser.parse_args()
    try:
        print(ship(options.run, command=options.command, commit=options.commit, seed=options.seed))
    except SelfcestError as error:
        print(f"selfcest: {error}", file=sys.stderr)
        raise SystemExit(2) from error


if __name__ == "__main__":
    main()
