"""The command line of one run: `python -m selfcest_baselines coma --loss one_pass lambda_=0.9`."""

from __future__ import annotations

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # the working directory, which may be a stranger's folder

import json
import math
import os
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from selfcest_baselines.learner import LEARNERS
from selfcest_baselines.progress import CurvePoint
from selfcest_baselines.train import train
from selfcest_env.errors import ConfigError, SelfcestError
from selfcest_env.local_modules import search_folder
from selfcest_env.plugin import build
from selfcest_env.symbolic.rules import SymbolicRules
from selfcest_env.symbolic.tasks import TASKS, make_task
from selfcest_training.files import check_output_file, write_text
from selfcest_training.yaml_text import read_yaml

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    learner: Annotated[str, typer.Argument(help=f"{', '.join(LEARNERS)}, or package.module:Class.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(help="Options of the learner as key=value: learning_rate=0.001 samples=2 clip=0.1."),
    ] = None,
    loss: Annotated[
        str | None, typer.Option(help="Loss of the learner: one_pass or clipped.", show_default=False)
    ] = None,
    task: Annotated[str, typer.Option(help=f"{', '.join(TASKS)}, or package.module:Class.")] = "chain",
    option: Annotated[
        list[str] | None, typer.Option(help="Option of the task as key=value: items=[2,8]; may be repeated.")
    ] = None,
    limit: Annotated[
        list[str] | None, typer.Option(help="Limit of the game as key=value: max_depth=1; may be repeated.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    decisions: Annotated[float, typer.Option(help="Budget of agents' decisions, replays included.")] = math.inf,
    seconds: Annotated[float, typer.Option(help="Budget of CPU seconds, evaluations excluded.")] = 60.0,
    until: Annotated[float, typer.Option(help="Success of the greedy policy at which to stop.")] = math.inf,
    out: Annotated[Path | None, typer.Option(help="File for the learning curve as JSON.")] = None,
) -> None:
    """Train a learner on a symbolic game and print the learning curve of the greedy policy."""
    torch.set_num_threads(1)  # for networks as small as these, threads cost more time than they save
    try:
        if out is not None:
            check_output_file("--out", out)
        rules = build(
            SymbolicRules, {"task": make_task(task, _parse_pairs(option)), **_parse_pairs(limit)}, where="limit"
        )
        options = _parse_pairs(settings)
        if loss is not None:
            options["loss"] = loss
        configured = LEARNERS.make(learner, options, where="")
        print(f"{'decisions':>10} {'CPU s':>7} {'success':>8} {'return':>7}")
        budget = {"decisions": decisions, "seconds": seconds, "until": until, "report": _print_point}
        curve = train(configured, rules, seed, **budget)
    except SelfcestError as error:
        raise SystemExit(f"selfcest: {error}") from error
    if out is not None:
        points = [point._asdict() for point in curve.points]
        text = json.dumps({"learner": learner, "options": options, "seed": seed, "points": points}, indent=1)
        write_text(out, f"{text}\n")


def _parse_pairs(words: list[str] | None) -> dict[str, Any]:
    """Parse words of the form `key=value`, whose values are YAML."""
    pairs = {}
    for word in words or []:
        key, equals, value = word.partition("=")
        if not equals:
            raise ConfigError(f"{word!r} is no option; expected key=value, as in learning_rate=0.001")
        pairs[key] = read_yaml(value, f"the value of {key}")
    return pairs


def _print_point(point: CurvePoint) -> None:
    print(f"{point.decisions:>10} {point.seconds:>7.1f} {point.success:>8.3f} {point.team_return:>7.3f}", flush=True)


if __name__ == "__main__":
    search_folder(os.getcwd())
    app()
