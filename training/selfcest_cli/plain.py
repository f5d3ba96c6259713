"""The command line of a plain install, which has only the packages of the game: `selfcest trace` in the terminal."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from selfcest_cli.masking import masked_output
from selfcest_cli.trace import find_file_of, find_runs_files, trace_text
from selfcest_env import __version__
from selfcest_env.errors import ConfigError, SelfcestError, install_hint
from selfcest_training.faults import format_error_line, get_exit_code

NEEDS_EXTRA = f"all other commands and options need the extra train: {install_hint('train')}"


@masked_output()
def main(arguments: Sequence[str]) -> int:
    """Run `selfcest trace`, or explain how to install the other commands; return the exit code."""
    if arguments[:1] == ["--version"]:
        print(f"selfcest {__version__}")
        return 0
    try:
        if arguments[:1] == ["trace"]:
            print(_trace(arguments[1:]))
        elif not arguments or arguments[0] in ("--help", "-h"):
            print(f"This is a plain install of selfcest, which has `selfcest trace FILE` ({NEEDS_EXTRA}).")
        else:
            raise ConfigError(f"this is a plain install, which has only `selfcest trace`; {NEEDS_EXTRA}")
    except (SelfcestError, OSError) as error:
        print(f"selfcest: {format_error_line(error)}", file=sys.stderr)
        return int(get_exit_code(error))
    return 0


def _trace(arguments: Sequence[str]) -> str:
    """Return the text of `selfcest trace`. Its options for the terminal are parsed without typer."""
    parser = ArgumentParser(
        prog="selfcest trace",
        description="Print the tree, texts, cost and reward of an episode.",
        epilog=f"Pages and figures: {NEEDS_EXTRA}",
        allow_abbrev=False,
    )
    parser.add_argument("file", type=Path, help="JSON-lines file of episodes, or folder of a run or a study")
    parser.add_argument("--episode", help="id of the episode (default: the last episode)")
    parser.add_argument("--texts", action="store_true", help="print the full texts")
    parser.add_argument("--strategy", help="strategy of the study whose episodes are shown (default: all)")
    parser.add_argument(
        "--wrong", action="store_true", help="show only episodes of the study with a wrong answer or none"
    )
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        raise ConfigError(f"trace {' '.join(unknown)}: not an option of a plain install; {NEEDS_EXTRA}")
    file = find_file_of(find_runs_files([options.file]), options.episode)
    text = trace_text(
        file,
        options.episode,
        texts=options.texts,
        strategy=options.strategy,
        wrong=options.wrong,
    )
    return text if file == options.file else f"{file}\n{text}"
