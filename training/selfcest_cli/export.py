"""`selfcest export`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from selfcest_cli.terminal import Terminal
from selfcest_training.learner.options import Denominator
from selfcest_training.printing import print_text
from selfcest_training.yaml_text import read_option


class Format(StrEnum):
    """The trainer whose rows are written."""

    VERL = "verl"
    PRIME_RL = "prime-rl"
    TINKER = "tinker"


def export(
    file: Annotated[
        Path, typer.Argument(help="JSON-lines file of scored episodes, as in runs/NAME/VARIANT/seed0/episodes.jsonl.")
    ],
    format: Annotated[Format, typer.Option(help="Trainer that reads the rows.", show_default=False)],
    credit: Annotated[
        str, typer.Option(help="Credit scheme, by a name of `selfcest credit list` or as package.module:Class.")
    ],
    out: Annotated[Path, typer.Option(help="New file for the rows.")],
    option: Annotated[
        list[str] | None,
        typer.Option(help="Option of the credit scheme, key=value; may be repeated.", show_default=False),
    ] = None,
    denominator: Annotated[
        Denominator, typer.Option(help="Divisor of the loss of an episode, like the config key rl.denominator.")
    ] = Denominator.CONSTANT,
    loss_denominator_tokens: Annotated[
        float, typer.Option(help="Divisor of --denominator constant, in tokens.")
    ] = 100.0,
) -> None:
    """Write stored episodes as training rows of another trainer.

    Each row is the context of one agent with its credit. All episodes of the file belong to one update. A scheme that
    needs replays finds them only in the file of a run with that scheme.
    """
    from selfcest_training.credit import make_assigner
    from selfcest_training.credit.offline import read_groups, refuse_learning
    from selfcest_training.export.stored import build_credited_samples
    from selfcest_training.files import check_new_file

    check_new_file("--out", out)
    assigner = make_assigner(credit, dict(map(read_option, option or [])), where="--option")
    refuse_learning(assigner, str(file))
    credited = build_credited_samples(
        read_groups(file), assigner, denominator=denominator, constant=loss_denominator_tokens
    )
    if format is Format.VERL:
        from selfcest_training.export.verl import build_batch, write_batch

        write_batch(out, build_batch(credited))
    elif format is Format.TINKER:
        from selfcest_training.export.tinker import build_datums, write_datums

        write_datums(out, build_datums(credited))
    else:
        from selfcest_training.export.prime_rl import build_training_samples, write_samples

        write_samples(out, build_training_samples(credited))
    episodes = len({sample.episode_id for sample in credited.samples})
    num_contexts = len(credited.samples)
    line = f"{out}: {num_contexts} contexts of {episodes} episodes, {credited.trained_tokens} trained tokens"
    print_text(Terminal(), line)
