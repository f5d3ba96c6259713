"""`selfcest credit list | apply`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfcest_env.errors import ConfigError
from selfcest_training.files import write_text
from selfcest_training.yaml_text import read_option

credit_app = typer.Typer(no_args_is_help=True, help="Credit schemes: what is installed, and what they say of records.")


@credit_app.command("list")
def list_schemes() -> None:
    """Installed credit schemes: name, what they promise, formula, source, and where they come from."""
    from selfcest_training.credit import SCHEMES, find_scheme

    for name, reference in SCHEMES.items():
        scheme = find_scheme(name)
        print(f"{name} ({scheme.promise}{'' if name in SCHEMES.builtins else f'; {reference}'})")
        print(f"    {scheme.formula}")
        print(f"    {scheme.source}")


@credit_app.command("apply")
def apply_scheme(
    file: Annotated[
        Path, typer.Argument(help="A JSON-lines file of scored episodes, as in runs/NAME/VARIANT/seed0/episodes.jsonl")
    ],
    name: Annotated[str, typer.Option(help="A scheme of `selfcest credit list`, or package.module:Class.")],
    option: Annotated[
        list[str] | None, typer.Option(help="An option of the scheme, key=value; may be repeated.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where to write the lines (default: print them).", show_default=False)
    ] = None,
) -> None:
    """Recompute the advantages of stored episodes, one JSON line per turn; no policy is needed.

    A scheme with replays needs them in the file; a run with that scheme stores them there.
    """
    from selfcest_training.credit import make_assigner
    from selfcest_training.credit.offline import apply, credit_lines, read_groups

    assigner = make_assigner(name, dict(map(read_option, option or [])), where="--option")
    stored = read_groups(file)
    credits = apply(assigner, stored)
    lines = "".join(line + "\n" for line in credit_lines(stored.groups, credits))
    if out is None:
        print(lines, end="")
        return
    if out.exists():
        raise ConfigError(f"{out} exists already; name another file with --out, or remove it")
    write_text(out, lines)
    episodes = sum(len(group.episodes) for group in stored.groups)
    excluded = sum(len(credit.excluded) for credit in credits)
    turns = sum(len(credit.advantage) for credit in credits) + excluded
    print(f"{out}: {len(stored.groups)} groups, {episodes} episodes, {turns} turns, {excluded} of them excluded")
