"""The study of stopping: the optimal rule by hand and by Monte Carlo, and the regret of recorded episodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean
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
from selfcest_env.tasks.offers import Offers, look_up, parse
from selfcest_env.tasks.source import Style
from selfcest_training.config_file import load_config, read_config
from studies import trained
from studies.runner import CONFIGS, Rerun, read_json
from studies.stopping import study
from studies.stopping.episodes import PRICE_UNIT, describe, judge_episode, make_search
from studies.stopping.rules import (
    DIGITS,
    START,
    OfferSearch,
    Rule,
    SearchState,
    ask,
    ask_until,
    find_best_number,
    find_best_threshold,
)

PRICES = [price for prices in study.read_prices().values() for price in prices]


def test_the_optimal_rule_by_hand() -> None:
    # Two documents. The first offer is 4.5 on average, the better one of two 6.15 (the sum of 2m + 1 times m / 100).
    cheap = OfferSearch(price=0.02, documents=2)
    assert cheap.value_of_stopping(SearchState(1, 7)) == 0.7
    assert cheap.gain_of_one_more(7) == pytest.approx(0.03 - 0.02), "8 and 9 are better by 1 and 2"
    assert cheap.value_of_going_on(SearchState(1, 7)) == pytest.approx(0.71)
    assert cheap.gain_of_one_more(8) == pytest.approx(0.01 - 0.02)
    assert cheap.threshold == 8
    # After an offer from 0 to 7 the second clone gains .45 .36 .28 .21 .15 .10 .06 .03, less .02.
    assert cheap.optimal_value(START) == pytest.approx(0.45 - 0.02 + (1.64 - 8 * 0.02) / 10)
    assert cheap.value_of(ask(0)) == 0
    assert cheap.value_of(ask(1)) == pytest.approx(0.45 - 0.02)
    assert cheap.value_of(ask(2)) == pytest.approx(0.615 - 0.04)
    assert cheap.mean_number_of(ask_until(8)) == pytest.approx(1.8)
    assert cheap.regret_of(ask_until(8)) == pytest.approx(0)
    dear = OfferSearch(price=0.2, documents=2)
    assert dear.threshold == 4
    assert find_best_number([cheap]) == 2
    assert find_best_number([dear]) == 1
    assert find_best_number([cheap, dear]) == 2, "0.25 and 0.43 by one, 0.215 and 0.575 by two"
    assert find_best_threshold([dear]) == 4
    assert find_best_threshold([cheap, dear]) == 5, "after a 4 the gain is .15 in both, which is more than .11"


@pytest.mark.parametrize("documents", [1, 2, 6])
def test_the_optimal_rule_looks_one_step_ahead(documents: int) -> None:
    """Whatever the number of documents that are left, the rule stops at the same digit."""
    for price in PRICES:
        search = OfferSearch(price * PRICE_UNIT, documents)
        assert min(abs(search.gain_of_one_more(digit)) for digit in DIGITS) > 0.0059, "no choice is a tie"
        for asked in range(1, documents):
            for best in DIGITS:
                state = SearchState(asked, best)
                assert search.goes_on(state) == (search.gain_of_one_more(best) > 0) == (best < search.threshold)
        assert search.value_of(ask_until(search.threshold)) == pytest.approx(search.optimal_value(START))


def gain_before(search: OfferSearch, state: SearchState, value_of_rest: Callable[[SearchState], float]) -> float:
    """Return the value of one more clone, given the value of the choices after it."""
    after = [SearchState(state.asked + 1, max(state.best, digit)) for digit in DIGITS]
    return fmean(map(value_of_rest, after)) - search.price - search.value_of_stopping(state)


def list_choices(search: OfferSearch) -> list[SearchState]:
    return [SearchState(asked, best) for asked in range(1, search.documents) for best in DIGITS]


def test_stopping_too_early_is_no_local_optimum() -> None:
    """One more clone has the sign of the right decision if the root stops later at any digit up to the optimal one.

    For another root it is negative wherever the optimal rule stops, but it need not be positive where that goes on.
    """
    for price in PRICES:
        search = make_search(price)
        for threshold in DIGITS:
            value_of_rest = search.make_value(ask_until(threshold))
            for state in list_choices(search):
                gain = gain_before(search, state, value_of_rest)
                if threshold <= search.threshold or state.best >= search.threshold:
                    assert (gain > 0) == search.goes_on(state)
    dear = make_search(95)
    assert gain_before(dear, SearchState(1, 3), dear.make_value(ask_until(9))) < 0 < dear.gain_of_one_more(3)


def test_under_the_warm_start_one_more_clone_has_the_right_sign_but_for_one_digit() -> None:
    """The root stops later with probability 0.5. The sign can be wrong only at the last digit below the threshold."""
    num_wrong = 0
    for price in PRICES:
        search = make_search(price)

        @cache
        def value(state: SearchState, search: OfferSearch = search) -> float:
            if state.asked == search.documents:
                return search.value_of_stopping(state)
            return search.value_of_stopping(state) + gain_before(search, state, value) / 2

        for state in list_choices(search):
            if (gain_before(search, state, value) > 0) != search.goes_on(state):
                assert state.best == search.threshold - 1
                num_wrong += 1
    assert 0 < num_wrong < 0.05 * len(PRICES) * len(list_choices(make_search(0)))


def test_the_optimal_rule_is_worth_at_least_as_much_as_its_rivals() -> None:
    for price in PRICES:
        search = make_search(price)
        assert search.value_of(search.goes_on) == pytest.approx(search.optimal_value(START))
        rules = [*map(ask, range(7)), *map(ask_until, DIGITS)]
        assert all(search.regret_of(rule) > -1e-12 for rule in rules)


def test_values_agree_with_games() -> None:
    """Monte Carlo over the documents of real tasks."""
    source = Offers(prices=(20,))
    search = make_search(20)
    rules: list[Rule] = [search.goes_on, ask_until(9), ask(3)]
    rewards: list[list[float]] = [[] for _ in rules]
    rng = np.random.default_rng(0)
    for _ in range(3000):
        task = source.draw(rng)
        query = parse(task.prompt)
        assert query is not None
        digits = [int(look_up(document, query.field)) for document in task.context.values()]
        for rule, earned in zip(rules, rewards, strict=True):
            number = 0
            while number < len(digits) and rule(SearchState(number, max(digits[:number], default=0))):
                number += 1
            earned.append(max(digits[:number]) / 10 - 0.04 * number)
    for rule, earned in zip(rules, rewards, strict=True):
        error = np.std(earned) / len(earned) ** 0.5
        assert abs(np.mean(earned) - search.value_of(rule)) < 4 * error
        assert error < 0.01


def play(count: int, price: int = 40) -> list[EpisodeRecord]:
    """Play episodes whose root stops with probability 0.5."""
    config = load_config(CONFIGS / "stopping.yaml")
    language = TinyLanguage()
    rules = language.rules(config.limits)
    source = Offers(prices=(price,))
    rng = np.random.default_rng(0)
    requests = [RolloutRequest(str(i), source.draw(rng), i) for i in range(count)]
    reward = make_reward(config.reward.name, **config.reward.options)
    policy = ScriptedPolicy(OracleActor(source, rules.protocol, Style.DELEGATE), language.codec)
    return [reward.score(record) for record in rollout(requests, policy, rules)]


@pytest.mark.slow
def test_regret_of_episodes_is_that_of_their_rule() -> None:
    """A root that stops at random calls 1, 2, ... clones with probability 1/2, 1/4, ..., whatever they bring."""
    search = make_search(40)
    shares = [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 32]
    expected = sum(share * search.regret_of(ask(number)) for number, share in enumerate(shares, 1))
    judged = [judge_episode(record) for record in play(600)]
    regrets = [item.regret for item in judged]
    error = np.std(regrets) / len(regrets) ** 0.5
    assert abs(np.mean(regrets) - expected) < 4 * error
    assert error < 0.01
    assert all(item.is_best for item in judged)
    luck = [search.optimal_value(START) - item.reward - item.regret for item in judged]
    assert abs(np.mean(luck)) < 4 * np.std(luck) / len(luck) ** 0.5


def test_errors_count_as_regret() -> None:
    search = make_search(40)
    record = next(record for record in play(50) if record.cost.clones == 2 and record.answer == "B")
    right = judge_episode(record)
    query = parse(record.task.prompt)
    assert query is not None
    first, second = (int(look_up(record.task.context[key], query.field)) for key in "AB")
    after_one = SearchState(1, first)
    after_two = SearchState(2, second)
    by_hand = search.optimal_value(after_one) - search.value_of_going_on(after_one)
    by_hand += search.optimal_value(after_two) - second / 10
    assert right.regret == pytest.approx(by_hand)
    assert right.is_best
    assert len(right.agreed) == 2

    for answer, worth in (("A", first), ("C", 0), ("9", 0)):
        root = replace(record.root, reply=answer)
        other = judge_episode(replace(record, agents=(root, *record.agents[1:])))
        assert other.regret - right.regret == pytest.approx((second - worth) / 10)
        assert not other.is_best

    # The second clone gets the first document again: its price is lost, and the answer was not seen.
    again = replace(record.agents[2], shared_context=("A",))
    repeated = judge_episode(replace(record, agents=(record.agents[0], record.agents[1], again)))
    assert repeated.regret == pytest.approx(0.08 + search.optimal_value(after_one))


def test_the_config_plays_the_game_that_the_rules_are_about() -> None:
    config = load_config(CONFIGS / "stopping.yaml")
    assert config.tasks["offers"].options.keys() == {"prices"}
    assert config.limits.max_clones == OfferSearch(0.0).documents == Offers().documents
    assert config.reward.options["clone_cost"]["price"] == PRICE_UNIT
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


@pytest.mark.slow
def test_predictions_follow_the_regret() -> None:
    assert study.page([], []).count("not run yet") == 7
    page = study.page(make_cells(0.01), [])
    assert page.count("| held |") == 7
    assert "| 0.90 |" in page
    page = study.page(make_cells(0.5), [])
    assert page.count("**failed**") == 6
    assert page.count("| held |") == 1, "as much as rloo"


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
