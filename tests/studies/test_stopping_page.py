"""The study of stopping: the optimal rule by hand and by Monte Carlo, and the regret of recorded episodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from selfcest_agents.policy import ScriptedPolicy
from selfcest_agents.rollout import RolloutRequest, rollout
from selfcest_agents.scripted import OracleActor
from selfcest_agents.tiny import TinyLanguage
from selfcest_env.record import EpisodeRecord
from selfcest_env.reward import make_reward
from selfcest_env.tasks.source import Style
from selfcest_env.tasks.witnesses import Witnesses, group_replies, look_up, parse
from selfcest_env.types import Limits
from selfcest_training.config_file import load_config, read_config
from studies import trained
from studies.runner import CONFIGS, Rerun, read_json
from studies.stopping import study
from studies.stopping.episodes import describe, judge_episode, make_test
from studies.stopping.rules import (
    Rule,
    SequentialTest,
    add_reply,
    ask,
    ask_until_agreed,
    count_replies,
    find_best_agreement,
    find_best_number,
)

# Two digits, accuracy 0.8, at most three witnesses, price 0.1. With a lead of l replies the plurality is right with
# probability 4^l / (4^l + 1): 1/2, 4/5, 16/17, 64/65.
SMALL = SequentialTest(price=0.1, witnesses=3, accuracy=0.8, digits=2)


def test_the_optimal_rule_by_hand() -> None:
    assert SMALL.value_of_stopping((0, 0)) == 0.5
    assert SMALL.value_of_stopping((1, 0)) == pytest.approx(0.8)
    assert SMALL.value_of_stopping((2, 0)) == pytest.approx(16 / 17)
    # At (1, 1) the last witness decides: 0.8 - 0.1 against 0.5.
    assert SMALL.optimal_value((1, 1)) == pytest.approx(0.7)
    # At (1, 0) the second witness agrees with probability 0.8^2 + 0.2^2 = 0.68: 0.68 x 16/17 + 0.32 x 0.7 - 0.1.
    assert SMALL.value_of_going_on((1, 0)) == pytest.approx(0.68 * 16 / 17 + 0.32 * 0.7 - 0.1)
    assert not SMALL.goes_on((1, 0)), "0.764 is less than 0.8"
    assert SMALL.optimal_value(SMALL.start) == pytest.approx(0.7), "one witness"
    cheap = SequentialTest(price=0.05, witnesses=3, accuracy=0.8, digits=2)
    # 0.68 x 16/17 + 0.32 x 0.75 - 0.05 = 0.83 is more than 0.8; then 2:0 stops.
    assert cheap.goes_on((1, 0))
    assert cheap.goes_on((1, 1))
    assert not cheap.goes_on((2, 0))
    assert cheap.optimal_value(cheap.start) == pytest.approx(0.78)


def test_values_of_rules_by_hand() -> None:
    assert SMALL.value_of(ask(0)) == 0.5
    assert SMALL.value_of(ask(1)) == pytest.approx(0.8 - 0.1)
    # The plurality of three is right with probability 0.8^3 + 3 x 0.8^2 x 0.2 = 0.896.
    assert SMALL.value_of(ask(3)) == pytest.approx(0.896 - 0.3)
    # Until two agree: as right as three, with a third witness in 0.32 of the cases.
    assert SMALL.value_of(ask_until_agreed(2)) == pytest.approx(0.896 - 0.2 - 0.032)
    assert find_best_number([SMALL]) == find_best_agreement(SMALL) == 1
    assert SMALL.regret_of(ask(3)) == pytest.approx(0.7 - 0.596)
    assert SMALL.mean_number_of(ask_until_agreed(2)) == pytest.approx(2.32)
    assert SMALL.mean_number_of(ask(3)) == pytest.approx(3)


def test_the_optimal_rule_is_worth_its_value_and_at_least_as_much_as_its_rivals() -> None:
    for price in (0.01, 0.025, 0.04, 0.065, 0.085):
        test = SequentialTest(price)
        best = test.optimal_value(test.start)
        assert test.value_of(test.goes_on) == pytest.approx(best)
        rivals = [*map(ask, range(8)), ask_until_agreed(2), ask_until_agreed(3)]
        assert all(test.value_of(rule) <= best + 1e-12 for rule in rivals)


def test_values_agree_with_games() -> None:
    """Monte Carlo over the documents of real tasks, without Bayes' rule."""
    source = Witnesses(prices=(40,))
    test = SequentialTest(0.04, source.witnesses, source.accuracy, source.digits)
    rules: list[Rule] = [test.goes_on, ask_until_agreed(2), ask(4)]
    rewards: list[list[float]] = [[] for _ in rules]
    rng = np.random.default_rng(0)
    for _ in range(3000):
        task = source.draw(rng)
        query = parse(task.prompt)
        assert query is not None
        digits = [look_up(document, query.field) for document in task.context.values()]
        for rule, earned in zip(rules, rewards, strict=True):
            number = 0
            while number < len(digits) and rule(count_replies("".join(digits[:number]), source.digits)):
                number += 1
            earned.append((group_replies(digits[:number])[0] == task.answer) - 0.04 * number)
    for rule, earned in zip(rules, rewards, strict=True):
        error = np.std(earned) / len(earned) ** 0.5
        assert abs(np.mean(earned) - test.value_of(rule)) < 4 * error
        assert error < 0.01


def test_counts_are_sorted() -> None:
    assert count_replies("30033", 4) == (3, 2, 0, 0)
    assert add_reply((2, 1, 0, 0), 2) == (2, 1, 1, 0)
    assert add_reply((2, 1, 0, 0), 1) == (2, 2, 0, 0)


def play(count: int, price: int = 40) -> list[EpisodeRecord]:
    """Play episodes whose root stops at random."""
    language = TinyLanguage()
    rules = language.rules(Limits(total_tokens=400, turn_tokens=40, reply_tokens=1, answer_reserve=16, max_depth=1))
    source = Witnesses(prices=(price,))
    rng = np.random.default_rng(0)
    requests = [RolloutRequest(str(i), source.draw(rng), i) for i in range(count)]
    reward = make_reward("correct", clone_cost={"price": 0.001, "price_key": "price"})
    policy = ScriptedPolicy(OracleActor(source, rules.protocol, Style.DELEGATE), language.codec)
    return [reward.score(record) for record in rollout(requests, policy, rules)]


def test_regret_of_episodes_is_that_of_their_rule() -> None:
    """A root that stops at random is as good as the mean of all fixed numbers."""
    test = make_test(40)
    expected = np.mean([test.regret_of(ask(number)) for number in range(1, 8)])
    judged = [judge_episode(record) for record in play(300)]
    regrets = [item.regret for item in judged]
    error = np.std(regrets) / len(regrets) ** 0.5
    assert abs(np.mean(regrets) - expected) < 4 * error
    assert error < 0.007
    assert all(item.is_plurality for item in judged)
    luck = [test.optimal_value(test.start) - item.reward - item.regret for item in judged]
    assert abs(np.mean(luck)) < 4 * np.std(luck) / len(luck) ** 0.5
    assert np.std(luck) > 3 * np.std(regrets), "the reward is mostly luck"


def test_errors_count_as_regret() -> None:
    test = make_test(40)
    record = next(record for record in play(50) if record.cost.clones == 2)
    right = judge_episode(record)
    query = parse(record.task.prompt)
    assert query is not None
    first, second = (look_up(record.task.context[key], query.field) for key in "AB")
    counts = count_replies(first + second, 4)
    by_hand = test.optimal_value((1, 0, 0, 0)) - test.value_of_going_on((1, 0, 0, 0))
    by_hand += test.optimal_value(counts) - test.value_of_stopping(counts)
    assert right.regret == pytest.approx(by_hand)
    assert len(right.agreed) <= 2

    wrong = next(digit for digit in "0123" if digit not in (first, second))
    root = replace(record.root, reply=wrong)
    guess = judge_episode(replace(record, agents=(root, *record.agents[1:])))
    lowest = test.compute_posterior(counts)[-1]
    assert guess.regret - right.regret == pytest.approx(test.value_of_stopping(counts) - lowest)
    assert not guess.is_plurality

    # The second clone gets the first document again: its price is lost, and one reply decides.
    again = replace(record.agents[2], shared_context=("A",))
    repeated = judge_episode(replace(record, agents=(record.agents[0], record.agents[1], again)))
    after_one = (1, 0, 0, 0)
    probability = test.value_of_stopping(after_one) if record.answer == first else test.compute_posterior(after_one)[1]
    assert repeated.regret == pytest.approx(0.04 + test.optimal_value(after_one) - probability)


def test_the_config_plays_the_game_that_the_rules_are_about() -> None:
    config = load_config(CONFIGS / "stopping.yaml")
    default = Witnesses()
    test = SequentialTest(0.0)
    assert (test.witnesses, test.accuracy, test.digits) == (default.witnesses, default.accuracy, default.digits)
    for task in config.tasks.values():
        if task.name == "witnesses":
            assert set(task.options) <= {"prices", "accepts_pluralities"}
    prices = study.read_prices()
    assert list(prices) == list(study.EVAL_SETS)
    assert not set(prices["seen"]) & set(prices["new_prices"])
    assert list(config.variants) == list(study.VARIANTS)


def make_cells(regret: float) -> list[dict[str, Any]]:
    by_price = describe(play(5))["40"] | {"regret": regret, "choices": 10, "agreed": 9}
    sets = {name: dict.fromkeys(map(str, prices), by_price) for name, prices in study.read_prices().items()}
    cell = {"experiment": "stopping", "seed": 0, "config": "0", "commit": "0", "attempts": 1, "compute_tokens": 1}
    figures = {"cpu_seconds": 1.0, "stopping": {"before": sets, "after": sets}}
    return [{**cell, **figures, "arm": variant} for variant in study.VARIANTS]


def test_predictions_follow_the_regret() -> None:
    assert study.page([], []).count("not run yet") == 7
    page = study.page(make_cells(0.01), [])
    assert page.count("| held |") == 6
    assert page.count("**failed**") == 1, "as much as rloo"
    assert study.page(make_cells(0.5), []).count("**failed**") == 7
    assert "| 0.90 |" in page


@pytest.mark.slow
def test_a_seed_is_trained_played_and_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = read_config(CONFIGS / "stopping.yaml")
    for variant in data["variants"].values():
        for phase in variant["warmstart"]["phases"]:
            phase["tokens"] = 2000
        variant["rl"] |= {"steps": 1, "tasks_per_step": 2, "group_size": 2}
    data["evaluation"]["episodes"] = 4
    config = tmp_path / "stopping.yaml"
    config.write_text(yaml.safe_dump(data), encoding="utf-8")
    monkeypatch.setitem(trained.EXPERIMENTS, "stopping", config)
    monkeypatch.chdir(tmp_path)
    files = study.rerun_cell("stopping/seed0", Rerun(study.EVIDENCE, tmp_path / "cells"))
    cells = [read_json(file) for file in files]
    assert {cell["arm"] for cell in cells} == set(study.VARIANTS)
    for cell in cells:
        for stage in ("before", "after"):
            for figures in cell["stopping"][stage].values():
                assert sum(values["n"] for values in figures.values()) == 4
