"""One run from the command line: `python -m selfcest_baselines coma --loss one_pass credit.lambda_=0.9`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from selfcest_baselines.credit import CREDITS
from selfcest_baselines.learner import Learner
from selfcest_baselines.loss import LOSSES
from selfcest_baselines.progress import Point
from selfcest_baselines.train import train
from selfcest_env.errors import ConfigError, SelfcestError
from selfcest_env.plugin import build
from selfcest_env.symbolic.rules import SymbolicRules
from selfcest_env.symbolic.tasks import TASKS, make_task
from selfcest_training.yaml_text import read_yaml

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    credit: Annotated[str, typer.Argument(help=f"{', '.join(CREDITS)}, or package.module:Class.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(help="learning_rate=0.001 of the learner, credit.samples=2 of the credit, loss.clip=0.1"),
    ] = None,
    loss: Annotated[str, typer.Option(help=f"{', '.join(LOSSES)}, or package.module:Class.")] = "clipped",
    task: Annotated[str, typer.Option(help=f"{', '.join(TASKS)}, or package.module:Class.")] = "chain",
    option: Annotated[list[str] | None, typer.Option(help="An option of the task: items=[2,8]")] = None,
    limit: Annotated[list[str] | None, typer.Option(help="A limit of the game: max_depth=1")] = None,
    seed: int = 0,
    decisions: Annotated[float, typer.Option(help="Budget of agents' decisions, replays included.")] = math.inf,
    seconds: Annotated[float, typer.Option(help="Budget of CPU seconds.")] = 60.0,
    until: Annotated[float, typer.Option(help="Success at which to stop.")] = math.inf,
    out: Annotated[Path | None, typer.Option(help="Where to store the curve as JSON.")] = None,
) -> None:
    """Learn a symbolic game and print the curve of the greedy policy."""
    torch.set_num_threads(1)  # networks so small lose time to threads
    try:
        made = make_task(task, _pairs(option))
        rules = build(SymbolicRules, {"task": made, **_pairs(limit)}, where="limit")
        words = settings or []
        learner = build(
            Learner, _pairs([word for word in words if not word.startswith(("credit.", "loss."))]), where=""
        )
        credited = CREDITS.make(credit, _of("credit", words), where="credit")
        lossy = LOSSES.make(loss, _of("loss", words), where="loss")
        print(f"{'decisions':>10} {'CPU s':>7} {'success':>8} {'return':>7}")
        budget = {"decisions": decisions, "seconds": seconds, "until": until, "report": _print}
        curve = train(credited, rules, seed, loss=lossy, learner=learner, **budget)
    except SelfcestError as error:
        raise SystemExit(f"selfcest: {error}") from error
    if out is not None:
        points = [point._asdict() for point in curve.points]
        out.write_text(json.dumps({"credit": credit, "loss": loss, "seed": seed, "points": points}, indent=1) + "\n")


def _of(what: str, words: list[str]) -> dict[str, Any]:
    """Settings that begin with this word and a dot."""
    return _pairs([word.removeprefix(f"{what}.") for word in words if word.startswith(f"{what}.")])


def _pairs(words: list[str] | None) -> dict[str, Any]:
    """`key=value` words; values are YAML."""
    pairs = {}
    for word in words or []:
        key, equals, value = word.partition("=")
        if not equals:
            raise ConfigError(f"{word!r} is no setting; expected key=value, as in learning_rate=0.001")
        pairs[key] = read_yaml(value, f"the value of {key}")
    return pairs


def _print(point: Point) -> None:
    print(f"{point.decisions:>10} {point.seconds:>7.1f} {point.success:>8.3f} {point.team_return:>7.3f}", flush=True)


if __name__ == "__main__":
    app()
