"""Bad input: one clear error that names the key and the remedy, before any work."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from selfcest_env.errors import ConfigError
from selfcest_training.config import RunConfig
from selfcest_training.config_file import check_writable, dump_config, load_config, parse_config

SHIPPED = sorted(Path(__file__).parents[2].glob("training/configs/*.yaml"))


def small() -> dict[str, Any]:
    return {
        "name": "t",
        "tasks": {"range": {"name": "range_sum", "options": {"max_length": 4}}},
        "arms": {
            "delegating": {
                "warmstart": {"phases": [{"tokens": 10, "mix": {"range": {"share": 1, "styles": {"solve": 1}}}}]},
                "rl": {"steps": 1, "tasks": {"range": 1}},
            }
        },
        "evaluation": {"cells": [{"family": "range", "size": "4"}]},
    }


def edited(path: str, value: object) -> dict[str, Any]:
    data = small()
    node: Any = data
    *parents, leaf = path.split(".")
    for key in parents:
        node = node[int(key)] if isinstance(node, list) else node.setdefault(key, {})
    node[leaf] = value
    return data


def test_a_config_survives_being_written_and_read(tmp_path: Path) -> None:
    config = parse_config(small())
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(config), encoding="utf-8")
    assert load_config(path) == config


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_configs_load(path: Path) -> None:
    assert isinstance(load_config(path), RunConfig)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("seedz", [1], ["unknown config key 'seedz'", "Did you mean 'seeds'"]),
        ("arms.delegating.rl.step", 3, ["'arms.delegating.rl.step'", "Did you mean 'steps'"]),
        ("arms.delegating.warmstart.phases.0.token", 3, ["phases[0].token"]),
        ("limits.answer_reserve", 100_000, ["limits.answer_reserve is 100000", "lower answer_reserve or raise"]),
        ("limits.total_tokens", -1, ["limits.total_tokens is -1", "null for unlimited"]),
        ("limits.max_turns", True, ["max_turns", "True"]),
        ("arms.delegating.limits", {"max_dept": 0}, ["max_dept", "Did you mean 'max_depth'"]),
        ("arms.delegating.limits", {"max_depth": -2}, ["max_depth is -2"]),
        ("arms.delegating.rl.tasks", {"rangee": 1}, ["'rangee'", "Did you mean 'range'"]),
        ("arms.delegating.rl.tasks", {"range": -1}, ["weight >= 0"]),
        ("arms.delegating.rl.temperature", 0, ["temperature is 0"]),
        ("arms.delegating.rl.group_size", 1, ["at least 2"]),
        ("arms.delegating.rl.minibatches", 5, ["divisor of rl.tasks_per_step"]),
        ("arms.delegating.rl.denominator", "rows", ["'rows' is none of constant, episode_mean"]),
        ("arms.delegating.rl.optimizer", {"learning_rate": 0}, ["learning_rate is 0"]),
        ("arms.delegating.rl.steps", "many", ["'many' is no"]),
        ("arms.delegating.rl.steps", 1.5, ["no whole number"]),
        ("model", {"hidden_size": 30, "num_heads": 4}, ["hidden_size is 30"]),
        ("arms", {}, ["name at least one arm"]),
        ("name", 3, ["3 is no text"]),
        ("tasks", 7, ["tasks"]),
    ],
)
def test_a_wrong_key_or_value_is_named(path: str, value: object, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(edited(path, value))
    for word in words:
        assert word in str(caught.value)


def test_a_missing_key_is_named() -> None:
    data = small()
    del data["name"]
    with pytest.raises(ConfigError, match="'name' is missing"):
        parse_config(data)


def test_overrides(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(small()), encoding="utf-8")
    config = load_config(
        path, ["name=mine", "seeds=[3,4]", "arms.delegating.warmstart.phases.0.tokens=99", "compute_tokens=null"]
    )
    assert (config.name, config.seeds, config.compute_tokens) == ("mine", (3, 4), None)
    assert config.arms["delegating"].warmstart.phases[0].tokens == 99
    for wrong in ("name", "=3", "arms.delegating.warmstart.phases.7.tokens=1", "name.first=1", "seeds=[1"):
        with pytest.raises(ConfigError, match="override"):
            load_config(path, [wrong])


def test_a_missing_or_broken_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no config file"):
        load_config(tmp_path / "none.yaml")
    for text in ("[1, 2", "- 1\n"):
        (tmp_path / "broken.yaml").write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=r"broken\.yaml"):
            load_config(tmp_path / "broken.yaml")


def test_an_unwritable_run_folder(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be written"):
        check_writable(blocker / "runs")
    if os.geteuid() != 0:  # root may write anywhere
        (tmp_path / "closed").mkdir(mode=0o500)
        with pytest.raises(ConfigError, match="cannot be written"):
            check_writable(tmp_path / "closed")
