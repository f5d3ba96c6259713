"""`selfcest export`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from selfcest_env.errors import ConfigError
from selfcest_training.learner.options import Denominator
from selfcest_training.yaml_text import read_option


class Format(StrEnum):
    """Of which trainer."""

    VERL = "verl"
    PRIME_RL = "prime-rl"


def export(
    file: Annotated[
        Path, typer.Argument(help="A JSON-lines file of scored episodes, as in runs/NAME/VARIANT/seed0/episodes.jsonl")
    ],
    format: Annotated[Format, typer.Option(help="Whose rows.", show_default=False)],
    credit: Annotated[str, typer.Option(help="A scheme of `selfcest credit list`, or package.module:Class.")],
    out: Annotated[Path, typer.Option(help="The file to write.")],
    option: Annotated[
        list[str] | None, typer.Option(help="An option of the scheme, key=value; may be repeated.", show_default=False)
    ] = None,
    denominator: Annotated[
        Denominator, typer.Option(help="What an episode's loss is divided by, as rl.denominator.")
    ] = Denominator.CONSTANT,
    loss_denominator_tokens: Annotated[float, typer.Option(help="As rl.loss_denominator_tokens.")] = 100.0,
) -> None:
    """Write stored episodes with their credit as training rows of another trainer: one row per context.

    All episodes of the file are one update. A scheme with replays needs them in the file, as a run with it stores them.
    """
    from selfcest_training.credit import make_assigner
    from selfcest_training.credit.offline import read_groups
    from selfcest_training.export.stored import build_credited_samples

    if out.exists():
        raise ConfigError(f"{out} exists already; name another file with --out, or remove it")
    assigner = make_assigner(credit, dict(map(read_option, option or [])), where="--option")
    data = build_credited_samples(
        read_groups(file), assigner, denominator=denominator, constant=loss_denominator_tokens
    )
    if format is Format.VERL:
        from selfcest_training.export.verl import build_batch, write_batch

        write_batch(out, build_batch(data))
    else:
        from selfcest_training.export.prime_rl import build_training_samples, write_samples

        write_samples(out, build_training_samples(data))
    episodes = len({sample.episode_id for sample in data.samples})
    print(f"{out}: {len(data.samples)} contexts of {episodes} episodes, {data.trained_tokens} tokens that train")
