"""Adaptive effort control beside the policy that is told a budget: accuracy against tokens, on the same instances."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import yaml

from selfcest_env import __version__
from selfcest_eval.play.digest import digest
from selfcest_eval.play.results import Result, read_results
from selfcest_training.config_file import read_config
from studies.runner import CONFIGS, Rerun, each, name_commit, selfcest, store_json, table
from studies.trained import EXPERIMENTS

Point = Mapping[str, float]
"""Accuracy, total tokens and earned reward, means over sizes."""

FRONTIERS = {
    "methods_budgets": CONFIGS / "methods" / "budgets_frontier.yaml",
    "methods_effort": CONFIGS / "methods" / "effort_frontier.yaml",
}


def rerun_effort(seed: int, how: Rerun) -> Path:
    """Train `every` of budgets.yaml and of effort.yaml with one seed, play both, and store their points."""
    # A commit or a change during the run is no part of the result.
    commit = name_commit()
    points: dict[str, dict[str, Point]] = {}
    digests = {}
    for experiment, frontier in FRONTIERS.items():
        run = f"{experiment}_every_seed{seed}"
        for parent in ("runs", "studies"):
            how.check_new(Path(parent) / run)
        training = read_config(EXPERIMENTS[experiment])
        training = {**training, "variants": {"every": training["variants"]["every"]}}
        policy = f"runs/{run}/every/seed{seed}/model"
        playing = read_config(frontier)
        strategies = {
            label: {**spec, "policy": policy}
            for label, spec in playing["strategies"].items()
            if label == "every" or spec["name"] == "effort"
        }
        playing = {**playing, "seeds": [seed], "strategies": strategies}
        digests[experiment] = digest(training)
        selfcest("train", "-c", _write(f"{run}_train", training), "--resume", f"seeds=[{seed}]", f"name={run}")
        selfcest("evaluate", "-c", _write(f"{run}_play", playing), "--resume", f"name={run}")
        points[experiment] = collect(read_results(Path("studies") / run / "results.jsonl", whole=True))
    values = {"seed": seed, "commit": commit, "version": __version__, "configs": digests, "points": points}
    return store_json(how.folder / f"effort-{seed}.json", values)


def _write(name: str, config: Mapping[str, Any]) -> str:
    file = Path("runs") / f"{name}.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(yaml.safe_dump(dict(config), sort_keys=False), encoding="utf-8")
    return str(file)


def collect(results: Iterable[Result]) -> dict[str, Point]:
    """Return the point of each strategy and budget, whose name is `STRATEGY at BUDGET`."""
    by_place: dict[str, dict[str, list[Point]]] = {}
    for result in results:
        place, episode = result.place, result.episodes[result.chosen]
        point = {
            "accuracy": float(result.grade.correct),
            "tokens": float(episode.cost.total_tokens),
            "earned": episode.team_return,
        }
        by_place.setdefault(f"{place.strategy} at {place.budget}", {}).setdefault(place.size, []).append(point)
    return {
        name: {
            figure: round(mean(mean(point[figure] for point in size) for size in sizes.values()), 4)
            for figure in ("accuracy", "tokens", "earned")
        }
        for name, sizes in by_place.items()
    }


def make_effort_table(stored: Sequence[Mapping[str, Any]]) -> str:
    """A row for each budget of the one policy, and for each effort of the other one: every seed."""
    lines = []
    for experiment in FRONTIERS:
        for name in stored[0]["points"][experiment]:
            points = [one["points"][experiment][name] for one in stored]
            line = [f"`{experiment.removeprefix('methods_')}`", name, each(point["accuracy"] for point in points)]
            line += [each((point["tokens"] for point in points), 0), each(point["earned"] for point in points)]
            lines.append(line)
    return table(["trained by", "told", "accuracy, every seed", "total tokens", "earned"], lines)


def judge_effort(stored: Sequence[Mapping[str, Any]]) -> str:
    """Judge what was predicted before the first of these seeds was run."""
    lowest = []
    rises = []
    gaps = []
    for cell in stored:
        efforts = cell["points"]["methods_effort"]
        budgets = cell["points"]["methods_budgets"]
        lowest.append(min(point["accuracy"] for point in efforts.values()))
        rises.append(find_point(efforts, "effort_175")["tokens"] / find_point(efforts, "effort_25")["tokens"] - 1)
        best_effort = max(point["earned"] for point in efforts.values())
        best_budget = max(point["earned"] for point in budgets.values())
        gaps.append(best_effort - best_budget)
    lines = [
        ["accuracy at least 0.6 at every effort, with every seed", each(lowest), _verdict(min(lowest) >= 0.6)],
        ["tokens rise from effort 25 to 175: a mean within 0.05 of 0", each(rises), _verdict(abs(mean(rises)) <= 0.05)],
        [
            "best effort less best budget, earned: a mean within 0.1 of 0",
            each(gaps, 3),
            _verdict(abs(mean(gaps)) <= 0.1),
        ],
    ]
    return table(["predicted", "every seed", ""], lines)


def find_point(points: Mapping[str, Point], strategy: str) -> Point:
    """Return the point of a strategy that played at one budget."""
    (point,) = [point for name, point in points.items() if name.startswith(f"{strategy} at ")]
    return point


def _verdict(held: bool) -> str:
    return "held" if held else "**failed**"
