"""Trains and plays the cells of the studies that compare variants of a config, and stores them.

A cell is a variant of an experiment with one seed. Its JSON holds the digest of its config, the commit, the CPU seconds
of training, the figures of every size and the learning curves.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import yaml

from selfcest_env import __version__
from selfcest_eval.play.results import Result
from selfcest_eval.report.training_run import EvaluatedPolicy, read_run_results
from selfcest_training.config import RunConfig
from selfcest_training.config_file import load_config, read_config, with_stored_keys
from selfcest_training.run.evaluator import EvaluationStage
from studies.runner import CONFIGS, STUDIES, Cell, Rerun, name_commit, selfcest, store_json

WHERE = ("where", "where_full", "where_random", "where_tight", "pairs")  # on the page of studies/where/study.py
WHEN = ("when", "when_hidden")  # likewise, by studies/when/study.py
STOPPING = ("stopping",)  # likewise, by studies/stopping/study.py
CREDIT = ("cells", "cells_one", "cells_all", "cells_width")  # on a page of their own, by studies/cells/study.py
METHODS = (
    "when",
    "cells",
    "budgets",
    "budgets_hidden",
    "effort",
    "confirm_when",
    "confirm_cells",
)  # likewise, by studies/methods/study.py, and in a folder of their own
EXPERIMENTS = {
    **{name: CONFIGS / f"{name}.yaml" for name in (*CREDIT, *WHERE, *WHEN, *STOPPING)},
    **{f"methods_{name}": CONFIGS / "methods" / f"{name}.yaml" for name in METHODS},
}
COSTS = (
    "total_tokens",
    "generated_tokens",
    "critical_path_tokens",
    "peak_context",
    "kv_token_steps",
    "billed_tokens",
    "billed_tokens_cached",
)
WINDOW_COSTS = ("concurrent_context", "visible_context", "visible_token_steps")  # which some configs add
CURVE_POINTS = 40


Measure = Callable[[RunConfig, str, Sequence[Result]], Mapping[str, Any]]
"""From the config of a run, a variant and its results with episodes to further figures of the variant's cell."""


def rerun(name: str, how: Rerun, measure: Measure | None = None) -> list[Path]:
    """Train, play and store one cell, or all variants of a seed in one run.

    Variants that differ only in RL share their warm start.

    Args:
        name: EXPERIMENT/seedN or EXPERIMENT/VARIANT/seedN.
        how: where results are written.
        measure: computes further figures of each cell.

    Returns:
        The files of the cells.
    """
    experiment, *variant, seed = name.split("/")
    if experiment not in EXPERIMENTS or len(variant) > 1 or not seed.removeprefix("seed").isdecimal():
        known = ", ".join(EXPERIMENTS)
        raise SystemExit(f"--rerun is {name!r}; expected EXPERIMENT[/VARIANT]/seedN with an experiment of {known}")
    variants = list(read_config(EXPERIMENTS[experiment])["variants"])
    if set(variant) - set(variants):
        raise SystemExit(f"--rerun is {name!r}, and the variants of {experiment} are {', '.join(variants)}")
    number, label = int(seed.removeprefix("seed")), name.replace("/", "_")
    folder = Path("runs") / label
    how.check_new(folder)
    folder.mkdir(parents=True, exist_ok=True)
    alone, trained_by = folder / "cell.yaml", folder / "commit.txt"
    alone.write_text(config_of(experiment, *(variant or variants)), encoding="utf-8")
    if not trained_by.exists():
        trained_by.write_text(name_commit(), encoding="utf-8")
    options = [f"seeds=[{number}]", f"name={label}", "workers=1"]
    selfcest("train", "-c", str(alone), "--resume", *options)
    config = load_config(alone, options)
    played: list[Result] = []
    results, _ = read_run_results(config, on_result=lambda _, result: played.append(result))
    # With their episodes, which `read_run_results` drops; a perfect player has none.
    results = [*played, *(result for result in results if result.place.style is not None)]
    files = []
    for one in variant or variants:
        first, last = (
            EvaluatedPolicy(one, stage, config.evaluation.temperatures[0]).label(config) for stage in EvaluationStage
        )
        by_itself = [result for result in results if result.place.strategy == last]
        before = [result for result in results if result.place.strategy == first and first != last]
        cell = {
            "experiment": experiment,
            "arm": one,
            "seed": number,
            "config": digest_of(experiment, one),
            "version": __version__,
            "commit": trained_by.read_text(encoding="utf-8"),
            **describe_training(folder / one / f"seed{number}"),
            "sizes": _figures(result for result in by_itself if result.place.style is None),
            "before_rl": _figures(result for result in before if result.place.style is None),
            "errorless": _perfect_execution(result for result in by_itself if result.place.style is not None),
            **(measure(config, one, played) if measure else {}),
        }
        owner = _find_study(experiment)
        stored_in = STUDIES / owner / "evidence" if how.folder == how.evidence else how.folder
        files.append(store_json(stored_in / f"{experiment}_{one}_seed{number}.json", cell))
    return files


def list_missing(cells: Iterable[Cell], experiments: Sequence[str]) -> str:
    """Return a sentence on the seeds of these experiments that have no cell yet; empty if there are none."""
    stored = {(cell["experiment"], cell["arm"], cell["seed"]) for cell in cells}
    missing = []
    for experiment in experiments:
        config = read_config(EXPERIMENTS[experiment])
        for variant in config["variants"]:
            seeds = [str(seed) for seed in config["seeds"] if (experiment, variant, seed) not in stored]
            if seeds:
                missing.append(f"{experiment}/{variant} {' '.join(seeds)}")
    return f"*Seeds that have not been run yet: {'; '.join(missing)}.*" if missing else ""


def _find_study(experiment: str) -> str:
    """Return the name of the study whose page has the cells of an experiment."""
    if experiment.startswith("methods_"):
        return "methods"
    if experiment in CREDIT:
        return "cells"
    if experiment in STOPPING:
        return "stopping"
    return "when" if experiment in WHEN else "where"


def config_of(experiment: str, *variants: str) -> str:
    """The config of these variants alone, as YAML."""
    data = read_config(EXPERIMENTS[experiment])
    return yaml.safe_dump({**data, "variants": {variant: data["variants"][variant] for variant in variants}})


def digest_of(experiment: str, variant: str) -> str:
    """Of all that decides what a cell is, apart from its seed and the code."""
    data = with_stored_keys(yaml.safe_load(config_of(experiment, variant)))
    return hashlib.blake2b(yaml.safe_dump({**data, "seeds": None}).encode(), digest_size=8).hexdigest()


def describe_training(folder: Path) -> dict[str, Any]:
    """Return what a job used, its probes and its curves.

    A curve has means of neighbouring rows: loss of the warm start, return and tokens of RL, each against the tokens
    used when the last of them was done. Probes in RL are stored as they are.
    """
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    names_by_stage = {"warmstart": ("loss",), "rl": ("return", "total_tokens", "clones")}
    curves: dict[str, dict[str, list[float]]] = {}
    for stage, names in names_by_stage.items():
        found = [row for row in rows if row["stage"] == stage]
        count = min(len(found), CURVE_POINTS)
        points = [found[i * len(found) // count : (i + 1) * len(found) // count] for i in range(count)]
        if points:
            curve = {name: [part[-1][name] for part in points] for name in ("compute_tokens", "sampled_tokens")}
            for name in names:
                curve[name] = [round(mean(row[name] for row in part), 4) for part in points]
            curves[stage] = curve
    probed = [row for row in rows if any(name.startswith("probe/") for name in row)]
    if probed:
        probe_names = ["compute_tokens", *(name for name in probed[0] if name.startswith("probe/"))]
        curves["probes"] = {name: [round(row[name], 4) for row in probed] for name in probe_names}
    probes = [row for row in rows if row["stage"] == "probe"]
    return {
        "cpu_seconds": round(rows[-1]["cpu_seconds"], 1),
        "compute_tokens": int(rows[-1]["compute_tokens"]),
        "attempts": 1 + max((row["attempt"] for row in probes), default=0),
        "learned": all(row["passed"] for row in probes[-1:]),
        "curves": curves,
    }


def _by_size(results: Iterable[Result]) -> dict[str, list[Result]]:
    sizes: dict[str, list[Result]] = {}
    for result in results:
        sizes.setdefault(result.place.size, []).append(result)
    return sizes


def _costs(results: Sequence[Result]) -> dict[str, float]:
    paid = [result.costs for result in results if result.costs is not None]
    known = paid[0].keys() if paid else ()
    return {cost: round(mean(costs[cost] for costs in paid), 1) for cost in (*COSTS, *WINDOW_COSTS) if cost in known}


def _terms(results: Sequence[Result]) -> dict[str, float]:
    scored = [result.episodes[result.chosen].reward_terms or {} for result in results]
    return {name: round(mean(terms.get(name, 0.0) for terms in scored), 4) for name in scored[0]}


def _figures(results: Iterable[Result]) -> dict[str, Any]:
    """By size: accuracy, reward and what each of its terms adds, share delegated and mean costs."""
    return {
        size: {
            "n": len(found),
            "shift": found[0].place.shift,
            "accuracy": round(mean(result.grade.correct for result in found), 4),
            "reward": round(mean(result.episodes[result.chosen].team_return for result in found), 4),
            "delegated": round(mean(result.episodes[result.chosen].cost.clones > 0 for result in found), 4),
            "terms": _terms(found),
            **_costs(found),
        }
        for size, found in _by_size(results).items()
    }


def _perfect_execution(results: Iterable[Result]) -> dict[str, Any]:
    """By size and style: mean costs of perfect players; `lifted` of `n` instances needed limits lifted."""
    return {
        size: {
            str(style): {
                "n": sum(result.costs is not None for result in played),
                "lifted": sum(bool(result.lifted) for result in played),
                **_costs(played),
            }
            for style in dict.fromkeys(result.place.style for result in found)
            for played in [[result for result in found if result.place.style is style]]
        }
        for size, found in _by_size(results).items()
    }
