"""Strategies of play at equal total tokens: the part of docs/methods.md that one study of the shipped policies fills.

The evidence has one digit per instance, 1 for a right answer, so every comparison is paired over instances.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from selfcest_env import __version__
from selfcest_eval.play.digest import digest
from selfcest_eval.play.results import Result, read_results
from selfcest_eval.stats.statistics import Estimate, Resampler, Values
from selfcest_training.config_file import read_config
from studies.runner import CONFIGS, Cell, Rerun, name_commit, selfcest, store_json, table

CONFIG = CONFIGS / "methods" / "play_frontier.yaml"
BASELINE = "plain"
UNTOLD = "_untold"  # ends the label of a strategy that has the limit of another one, but no number in its prompts
RESAMPLES = 10_000

# They were committed before the first instance of CONFIG was played.
PREDICTIONS = {
    ("ledgers", "threads_4"): "worse",
    ("ledgers", "threads_4_untold"): "equal",
    ("ledgers", "turns_2"): "worse",
    ("ledgers", "turns_2_untold"): "equal",
    ("ledgers", "turns_4"): "worse",
    ("ledgers", "turns_4_untold"): "equal",
    ("ledgers", "read"): "undecided",
    ("ledgers", "vote"): "undecided",
    ("ledgers", "best"): "undecided",
    ("priced", "threads_4"): "undecided",
    ("priced", "threads_4_untold"): "equal",
    ("priced", "turns_2"): "worse",
    ("priced", "turns_2_untold"): "worse",
    ("priced", "turns_4"): "worse",
    ("priced", "turns_4_untold"): "equal",
    ("priced", "read"): "worse",
    ("priced", "vote"): "worse",
    ("priced", "best"): "worse",
}


def rerun_play(how: Rerun) -> Path:
    """Play the study, and store which instances each strategy answered right."""
    study = Path("studies") / "methods_play"
    how.check_new(study)
    # Read before the study is played, because a commit or a change during it is no part of the result.
    commit = name_commit()
    selfcest("evaluate", "-c", str(CONFIG), "--resume", f"name={study.name}")
    evidence = {
        "version": __version__,
        "commit": commit,
        "config": digest(read_config(CONFIG)),
        "families": collect(read_results(study / "results.jsonl", whole=True)),
    }
    return store_json(how.folder / "play.json", evidence)


def collect(results: Iterable[Result]) -> dict[str, Any]:
    """Return right answers and mean total tokens, by family, strategy and budget.

    The instances of a family are in the same order for every strategy and budget.
    """
    played: dict[tuple[str, str, str], dict[tuple[str, str], tuple[bool, int]]] = {}
    for result in results:
        place = result.place
        if place.style is not None:
            continue
        tokens = sum(episode.cost.total_tokens for episode in result.episodes)
        strategy = place.strategy.removeprefix(f"{place.family}_")
        outcomes = played.setdefault((place.family, strategy, str(place.budget)), {})
        outcomes[place.size, place.task_id] = (result.grade.correct, tokens)
    families: dict[str, Any] = {}
    for (family, strategy, budget), outcomes in played.items():
        in_order = [outcomes[instance] for instance in sorted(outcomes)]
        families.setdefault(family, {}).setdefault(strategy, {})[budget] = {
            "right": "".join(str(int(right)) for right, _ in in_order),
            "tokens": round(mean(tokens for _, tokens in in_order), 1),
        }
    return families


def get_right(budgets: Mapping[str, Cell]) -> Values:
    """Return the right answers of a strategy as 0 and 1, [budgets, instances]."""
    return np.array([[float(digit) for digit in cell["right"]] for cell in budgets.values()])


def compare(budgets: Mapping[str, Cell], other: Mapping[str, Cell]) -> Estimate:
    """Return the accuracy of a strategy minus that of another one: mean over budgets, 95 % interval over instances."""
    gaps = (get_right(budgets) - get_right(other)).mean(axis=0)[:, None]
    return _make_resampler(len(gaps)).estimate(gaps)


@cache
def _make_resampler(instances: int) -> Resampler:
    """Return the resampler of all comparisons with so many instances. Its draws take longer than a comparison."""
    return Resampler(instances, 1, crossed=False, resamples=RESAMPLES, confidence=0.95)


def judge(difference: Estimate) -> str:
    """Return the verdict on a difference; `equal` if no resample differs from 0."""
    if difference.low == difference.high == 0:
        return "equal"
    if difference.low > 0:
        return "better"
    return "worse" if difference.high < 0 else "undecided"


def judge_all(families: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """Return the verdict on each strategy against plain play, by family and strategy."""
    verdicts = {}
    for family, strategies in families.items():
        for strategy, budgets in strategies.items():
            if strategy != BASELINE:
                verdicts[family, strategy] = judge(compare(budgets, strategies[BASELINE]))
    return verdicts


def make_table(families: Mapping[str, Any]) -> str:
    """Return a row for each family and strategy: accuracy by budget, tokens, and differences with their intervals."""
    first = next(iter(families.values()))[BASELINE]
    largest = list(first)[-1]
    verdicts = judge_all(families)
    lines = []
    for family, strategies in families.items():
        for strategy, budgets in strategies.items():
            line = [family, f"`{strategy}`", *(f"{row.mean():.2f}" for row in get_right(budgets))]
            line.append(f"{budgets[largest]['tokens']:.0f}")
            if strategy == BASELINE:
                lines.append([*line, "", "", "", ""])
                continue
            untold = strategies.get(strategy + UNTOLD)
            line.append(compare(budgets, strategies[BASELINE]).signed)
            line.append(compare(budgets, untold).signed if untold else "")
            lines.append([*line, PREDICTIONS.get((family, strategy), "–"), verdicts[family, strategy]])
    heads = ["", "strategy", *(f"right at {budget}" for budget in first), f"tokens at {largest}"]
    return table([*heads, f"less `{BASELINE}`", "less the same limit, untold", "predicted", "found"], lines)


def summarize(families: Mapping[str, Any]) -> dict[str, object]:
    """Return what the text of the page names: numbers, and the verdicts on each kind of strategy."""
    verdicts = judge_all(families)
    by_kind: dict[str, list[str]] = {"told limits": [], "untold limits": [], "rivals": []}
    for (family, strategy), verdict in verdicts.items():
        if strategy.endswith(UNTOLD):
            kind = "untold limits"
        else:
            kind = "told limits" if strategy + UNTOLD in families[family] else "rivals"
        by_kind[kind].append(verdict)
    parts = []
    for kind, found in by_kind.items():
        counts = [f"{found.count(word)} {word}" for word in ("better", "worse", "equal", "undecided") if word in found]
        parts.append(f"{kind} {', '.join(counts)}")
    first = next(iter(families.values()))[BASELINE]
    return {
        "verdicts": "; ".join(parts),
        "held": sum(PREDICTIONS.get(place) == verdict for place, verdict in verdicts.items()),
        "strategies": len(verdicts),
        "instances": get_right(first).shape[1],
    }
