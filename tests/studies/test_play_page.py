"""Strategies of play on docs/methods.md: figures by hand, and evidence that belongs to the config."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from study_players import EXPERT, HERMES, ScriptedPlayer

from selfcest_env.graders import Grade
from selfcest_env.rules import Rules
from selfcest_env.tasks import Style
from selfcest_env.text.counters import WordCounter
from selfcest_env.types import Limits, Status, Task
from selfcest_env.views import Observation
from selfcest_eval.play.digest import digest
from selfcest_eval.play.results import Result, ResultKey
from selfcest_eval.play.strategies import Instance, PlayContext, Strategy
from selfcest_eval.stats.statistics import Estimate
from selfcest_training.config_file import read_config
from studies.methods import study
from studies.methods.play import (
    BASELINE,
    CONFIG,
    PREDICTIONS,
    collect,
    compare,
    get_right,
    judge,
    make_table,
    summarize,
)
from studies.runner import read_json

LIMITS = Limits(total_tokens=1000, turn_tokens=20, reply_tokens=4, answer_reserve=4)


def budgets(*right: str) -> dict[str, Any]:
    return {str(100 * (i + 1)): {"right": digits, "tokens": 10.4 * (i + 1)} for i, digits in enumerate(right)}


FAMILIES = {
    "sums": {
        "plain": budgets("0000", "0000"),
        "turns_2": budgets("1111", "1111"),
        "turns_2_untold": budgets("0000", "1111"),
        "vote": budgets("0000", "0000"),
    }
}


class Answers:
    def act(self, observation: Observation, rng: np.random.Generator) -> str:
        return "Answer: 5"


def test_results_become_one_digit_an_instance() -> None:
    """The instances of both strategies are in the same order, however they were played; experts are left out."""
    task = Task("t", "Add 2 and 3.", "5", "own")
    context = PlayContext(LIMITS, 0.0, EXPERT, HERMES)
    player = ScriptedPlayer(Answers(), lambda own: Rules(own, HERMES, WordCounter()), codec=None)
    (episodes,) = Strategy().play([Instance(task, 0)], context, player)
    tokens = episodes[0].cost.total_tokens

    def result(strategy: str, size: str, task_id: str, correct: bool, style: Style | None = None) -> Result:
        place = ResultKey("sums", size, "in", f"sums_{strategy}", 100, 0, task_id, style)
        grade = Grade(float(correct), correct, True)
        return Result("k", "p", place, episodes, 0, grade, ending=Status.ANSWERED, costs=None)

    results = [
        result("plain", "4", "b", True),
        result("plain", "2", "z", False),
        result("plain", "4", "a", False),
        result("vote", "4", "a", True),
        result("vote", "4", "b", False),
        replace(result("vote", "2", "z", True), episodes=episodes * 2),
        result("vote", "2", "z", False, Style.READ),
    ]
    assert collect(results) == {
        "sums": {
            "plain": {"100": {"right": "001", "tokens": tokens}},
            "vote": {"100": {"right": "110", "tokens": round(tokens * 4 / 3, 1)}},
        }
    }


def test_a_difference_is_paired_and_a_mean_over_budgets() -> None:
    assert get_right(budgets("01", "11")).tolist() == [[0, 1], [1, 1]]
    gap = compare(budgets("1100", "1111"), budgets("0000", "1111"))
    # Two instances of four gain 1 at one of two budgets, so a resample with k of them gains k / 8.
    assert gap.mean == 0.25
    assert (gap.low * 8, gap.high * 8) == (0, 4)
    assert compare(budgets("0110"), budgets("0110")) == Estimate(0.0, 0.0, 0.0)
    # Every instance gains the same, so no resample differs.
    assert compare(budgets("1111", "0000"), budgets("0000", "0000")) == Estimate(0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.0, 0.0, "equal"), (0.01, 0.2, "better"), (-0.2, -0.01, "worse"), (0.0, 0.2, "undecided"), (-1, 1, "undecided")],
)
def test_a_verdict_needs_an_interval_without_zero(low: float, high: float, verdict: str) -> None:
    assert judge(Estimate((low + high) / 2, low, high)) == verdict


def test_the_table_and_the_numbers_of_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PREDICTIONS, ("sums", "turns_2"), "worse")
    monkeypatch.setitem(PREDICTIONS, ("sums", "vote"), "equal")
    heads, _, *lines = make_table(FAMILIES).splitlines()
    assert heads.startswith(
        "|  | strategy | right at 100 | right at 200 | tokens at 200 | less `plain` | less the same"
    )
    assert lines == [
        "| sums | `plain` | 0.00 | 0.00 | 21 |  |  |  |  |",
        "| sums | `turns_2` | 1.00 | 1.00 | 21 | +1.00 [+1.00, +1.00] | +0.50 [+0.50, +0.50] | worse | better |",
        "| sums | `turns_2_untold` | 0.00 | 1.00 | 21 | +0.50 [+0.50, +0.50] |  | – | better |",
        "| sums | `vote` | 0.00 | 0.00 | 21 | +0.00 [+0.00, +0.00] |  | equal | equal |",
    ]
    verdicts = "told limits 1 better; untold limits 1 better; rivals 1 equal"
    assert summarize(FAMILIES) == {"verdicts": verdicts, "held": 1, "strategies": 3, "instances": 4}


def test_the_evidence_belongs_to_the_config() -> None:
    config = read_config(CONFIG)
    evidence = read_json(study.FOLDER / "play.json")
    assert evidence["config"] == digest(config)
    assert len(evidence["commit"]) == 40, "of a tree without changes"
    families: dict[str, Any] = evidence["families"]
    labels = {f"{family}_{strategy}" for family, strategies in families.items() for strategy in strategies}
    assert labels == set(config["strategies"])
    places = {(family, strategy) for family, strategies in families.items() for strategy in strategies}
    assert places - set(PREDICTIONS) == {(family, BASELINE) for family in families}, "every strategy has a prediction"
    for strategies in families.values():
        for cells in strategies.values():
            assert list(cells) == [str(budget) for budget in config["budgets"]]
            assert {len(cell["right"]) for cell in cells.values()} == {102}, "34 instances of each of three eval sets"
            assert all(cell["tokens"] <= int(budget) for budget, cell in cells.items()), "no budget is exceeded"
