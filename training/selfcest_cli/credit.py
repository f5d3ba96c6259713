"""`selfcest credit list | apply`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfcest_cli.terminal import Terminal
from selfcest_env.errors import PlugInError
from selfcest_training.files import check_new_file, write_text
from selfcest_training.printing import print_text
from selfcest_training.yaml_text import read_option

credit_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="List credit schemes, or apply one to stored episodes."
)


@credit_app.command("list", epilog="Example: selfcest credit list")
def list_schemes() -> None:
    """List the installed credit schemes.

    The command prints the name, promise, formula and source of each scheme, and the package of a plug-in.
    """
    from selfcest_training.credit import SCHEMES, find_scheme

    console = Terminal()
    broken = ""
    for name, reference in SCHEMES.items():
        try:
            scheme = find_scheme(name)
        except PlugInError as error:
            broken = broken or str(error)
            print_text(console, f"{name} ({reference}): cannot be loaded")
            continue
        print_text(console, f"{name} ({scheme.promise}{'' if name in SCHEMES.builtins else f'; {reference}'})")
        print_text(console, f"    {scheme.formula}")
        print_text(console, f"    {scheme.source}")
    if broken:
        raise PlugInError(broken)


@credit_app.command("apply", epilog="Example: selfcest credit apply episodes.jsonl --name rloo")
def apply_scheme(
    file: Annotated[
        Path, typer.Argument(help="JSON-lines file of scored episodes, as in runs/NAME/VARIANT/seed0/episodes.jsonl.")
    ],
    name: Annotated[
        str, typer.Option(help="Credit scheme, by a name of `selfcest credit list` or as package.module:Class.")
    ],
    option: Annotated[
        list[str] | None,
        typer.Option(help="Option of the credit scheme, key=value; may be repeated.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="New file for the lines (default: print them).", show_default=False)
    ] = None,
) -> None:
    """Recompute the advantages of stored episodes.

    The command writes one JSON line per turn and needs no policy. A scheme that needs replays finds them only in the
    file of a run with that scheme.
    """
    from selfcest_training.credit import make_assigner
    from selfcest_training.credit.offline import assign_stored, format_credit_lines, read_groups

    if out is not None:
        check_new_file("--out", out)
    assigner = make_assigner(name, dict(map(read_option, option or [])), where="--option")
    stored = read_groups(file)
    credits = assign_stored(assigner, stored)
    lines = "".join(line + "\n" for line in format_credit_lines(stored.groups, credits))
    if out is None:
        print(lines, end="")
        return
    write_text(out, lines)
    episodes = sum(len(group.episodes) for group in stored.groups)
    excluded = sum(len(credit.excluded) for credit in credits)
    turns = sum(len(credit.advantage) for credit in credits) + excluded
    line = f"{out}: {len(stored.groups)} groups, {episodes} episodes, {turns} turns, {excluded} of them excluded"
    print_text(Terminal(), line)
