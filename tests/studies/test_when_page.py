"""The study of when delegation is worth its cost: rules by hand, and what is read from a rollout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from selfcest_agents.policy import ScriptedPolicy
from selfcest_agents.rollout import RolloutRequest, rollout
from selfcest_agents.scripted import OracleActor
from selfcest_agents.tiny import TinyLanguage
from selfcest_env.record import EpisodeRecord, write_episode
from selfcest_env.reward import make_reward
from selfcest_env.tasks.priced_ledgers import PricedLedgers
from selfcest_env.tasks.source import Style
from selfcest_env.types import Limits
from selfcest_training.config_file import read_config
from studies import trained
from studies.runner import CONFIGS, Rerun, read_json
from studies.when import study
from studies.when.choices import (
    NO_ROOM,
    Instance,
    Observed,
    Prompt,
    describe,
    evaluate_rule,
    fit_table,
    fit_threshold_rule,
    read_training_values,
)


def observe(size: int | None, room: int, price: int, gain: float) -> Observed:
    return Observed(Prompt(size, room, price), gain)


def make_instance(size: int, room: int, price: int, always: float, never: float, *, delegated: bool) -> Instance:
    free = always if delegated else never
    return Instance(Prompt(size, room, price), size, free, always, never, delegated, is_right=free > 0)


def test_a_threshold_rule_has_one_threshold_for_each_price() -> None:
    observed = [
        observe(9, 12, 4, -0.3),
        observe(11, 12, 4, -0.2),
        observe(14, 12, 4, 0.5),
        observe(15, 12, 4, 0.6),
        observe(6, 12, 0, 0.1),
        observe(None, 9, 4, 0.2),
        observe(None, 18, 4, -0.2),
    ]
    rule = fit_threshold_rule(observed)
    assert not rule(Prompt(13, 12, 4))
    assert rule(Prompt(16, 14, 4))
    assert rule(Prompt(6, 12, 0))
    assert not rule(Prompt(5, 12, 0))
    assert rule(Prompt(None, 8, 4))
    assert not rule(Prompt(None, 12, 4))


def test_a_table_knows_what_it_has_seen_and_takes_the_better_choice_elsewhere() -> None:
    table = fit_table([observe(9, 12, 4, -0.3), observe(9, 12, 4, 0.1), observe(15, 12, 4, 0.9)])
    assert not table(Prompt(9, 12, 4))
    assert table(Prompt(15, 12, 4))
    assert table(Prompt(14, 12, 4)), "all gains add up to more than 0"


def test_a_rule_without_the_size_is_a_table_of_comparison_and_price() -> None:
    observed = [observe(9, 12, 4, -0.3), observe(15, 12, 4, 0.9), observe(9, 12, 0, 0.2), observe(None, 12, 4, -0.1)]
    rule = fit_threshold_rule(observed, "size")
    assert not rule(Prompt(20, 21, 4))
    assert rule(Prompt(22, 21, 4))
    assert rule(Prompt(3, 21, 0))
    assert not rule(Prompt(None, 5, 4))


def test_a_rule_without_the_price_has_one_threshold_for_all_prices() -> None:
    observed = [observe(9, 12, 4, -0.3), observe(11, 12, 4, 0.1), observe(9, 12, 5, -0.4), observe(11, 12, 5, 0.1)]
    rule = fit_threshold_rule(observed, "price")
    assert rule(Prompt(11, 20, 7))
    assert not rule(Prompt(10, 20, 0))
    assert not rule(Prompt(21, 20, 4)), "no size above the window was observed"


def test_a_rule_without_the_window_looks_at_size_and_price() -> None:
    observed = [observe(9, 12, 4, -0.3), observe(15, 12, 4, 0.9), observe(9, 30, 5, 0.2), observe(None, 12, 4, 0.1)]
    rule = fit_threshold_rule(observed, "window")
    assert rule(Prompt(15, 30, 4))
    assert not rule(Prompt(14, 10, 4))
    assert rule(Prompt(9, 30, 5))
    assert rule(Prompt(None, 30, 4))


def test_figures_of_an_eval_set_by_hand() -> None:
    instances = [
        make_instance(9, 12, 4, 0.4, 0.7, delegated=False),
        make_instance(15, 12, 4, 0.4, -0.4, delegated=False),
        make_instance(10, 12, 4, 0.5, 0.51, delegated=True),
    ]
    found = describe(instances, {"always": lambda prompt: True})
    assert found["n"] == 3
    assert found["delegated"] == pytest.approx(1 / 3, abs=1e-4)
    assert found["counted"] == 2, "a gain of 0.01 does not count"
    assert found["agreement"] == {"policy": 0.5, "always": 0.5}
    assert found["rewards"]["policy"] == pytest.approx((0.7 - 0.4 + 0.5) / 3, abs=1e-4)
    assert (
        found["rewards"]["oracle"] == found["rewards"]["hindsight"] == pytest.approx((0.7 + 0.4 + 0.51) / 3, abs=1e-4)
    )
    assert found["choices"] == {"3 to 9": {"4": [0, 0, 1]}, NO_ROOM: {"4": [0, 1, 1]}, "10 to 13": {"4": [1, 0, 1]}}
    assert evaluate_rule(lambda prompt: prompt.size == 15, instances) == pytest.approx((0.7 + 0.4 + 0.51) / 3)


def test_a_seed_whose_warm_start_cannot_read_has_no_choice() -> None:
    def make_cell(seed: int, never: float) -> dict[str, Any]:
        return {"seed": seed, "choices": {"before": {"seen": {"rewards": {"always": 0.4, "never": never}}}}}

    cells = [make_cell(1, 0.21), make_cell(2, 0.19)]
    assert study.list_without_a_choice(cells) == cells[1:]


def test_a_page_of_seeds_without_a_choice_gives_no_means_of_the_rest() -> None:
    page = study.page([read_json(study.EVIDENCE / "when_deciding_seed19.json")], [], [])
    assert "In seed 19 the warm start cannot read" in page
    assert "Without it" not in page


@pytest.mark.slow
def test_a_cell_is_trained_played_and_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = read_config(CONFIGS / "when.yaml")
    data |= {"log_groups": 16, "threads": 1}
    deciding = data["variants"]["deciding"]
    for phase in deciding["warmstart"]["phases"]:
        phase["tokens"] = 2000
        phase.pop("min_accuracy", None)
    deciding["rl"] |= {"steps": 1, "tasks_per_step": 2, "group_size": 4}
    data["evaluation"]["episodes"] = 3
    config = tmp_path / "when.yaml"
    config.write_text(yaml.safe_dump(data), encoding="utf-8")
    monkeypatch.setitem(trained.EXPERIMENTS, "when", config)
    monkeypatch.chdir(tmp_path)
    (file,) = study.rerun_cell("when/deciding/seed10", Rerun(study.EVIDENCE, tmp_path / "cells"))
    cell = read_json(file)
    assert cell["left_out"].keys() == {"right", "clones"}
    assert cell["choices"].keys() == {"before", "after"}
    for sets in cell["choices"].values():
        assert sets.keys() == study.EVAL_SETS.keys()
        assert all(found["n"] == 3 and found["rewards"].keys() == study.REWARDS.keys() for found in sets.values())
    page = study.page([cell], [], [])
    assert page.count("held") + page.count("failed") >= 8


def test_training_values_are_differences_within_groups(tmp_path: Path) -> None:
    language = TinyLanguage()
    limits = Limits(total_tokens=480, turn_tokens=100, reply_tokens=4, answer_reserve=1, max_turns=6, max_reads=4)
    rules = language.rules(limits)
    source = PricedLedgers(sizes=(6,), rooms=(9,), prices=(2,))
    reward = make_reward("default", clone_cost={"price": 0.03, "price_key": "price"}, token_cost={"price": 0.0})
    rng = np.random.default_rng(0)
    lines = []
    for number in range(3):
        task = source.draw(rng)
        # The last group has no episode that reads, so nothing is learned from it.
        styles = (Style.DELEGATE, Style.READ if number < 2 else Style.DELEGATE)
        for style in styles:
            policy = ScriptedPolicy(OracleActor(source, rules.protocol, style), language.codec)
            (record,) = rollout([RolloutRequest(f"{number}.{style}", task, number)], policy, rules)
            assert isinstance(record, EpisodeRecord)
            lines.append(write_episode(reward.score(record)))
    file = tmp_path / "episodes.jsonl"
    file.write_text("".join(lines), encoding="utf-8")
    values = read_training_values(file)
    assert [item.prompt for item in values] == [Prompt(6, 9, 2)] * 2
    assert [item.gain for item in values] == pytest.approx([-0.18, -0.18])
