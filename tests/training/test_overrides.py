"""Overrides and `extends`: a misspelt name is blamed first, and a clear value is taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from selfcest_env.errors import ConfigError
from selfcest_env.reward import make_reward
from selfcest_eval.play.config import load_study
from selfcest_training.config_file import load_config, read_config

CONFIGS = Path(__file__).parents[2] / "training" / "configs"
QUICK = CONFIGS / "quick.yaml"


def test_one_value_stands_for_a_list_of_one() -> None:
    config = load_config(QUICK, ["seeds=0", "evaluation.temperatures=0.8", "logging=tensorboard"])
    assert config.seeds == (0,)
    assert config.evaluation.temperatures == (0.8,)
    assert config.logging == ("tensorboard",)
    assert load_study(CONFIGS / "cpu" / "frontier.yaml", ["seeds=3", "budgets=240"]).budgets == (240,)


@pytest.mark.parametrize(("text", "expected"), [("5e7", 50_000_000), ("1e9", 10**9), ("2.5e7", 25_000_000)])
def test_a_whole_number_in_exponent_notation_is_a_number_of_tokens(text: str, expected: int) -> None:
    assert load_config(QUICK, [f"compute_tokens={text}"]).compute_tokens == expected


@pytest.mark.parametrize("text", ["5.5", "1e-3", "1.0"])
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="compute_tokens"):
        load_config(QUICK, [f"compute_tokens={text}"])


def test_a_misspelt_variant_is_blamed_and_not_its_missing_warm_start() -> None:
    with pytest.raises(ConfigError, match=r"names variants.decidng, which is not there. Did you mean 'deciding'\?"):
        load_config(QUICK, ["variants.decidng.rl.steps=3"])


@pytest.mark.parametrize("value", ["seeds=x", "seeds=-1", "seeds=[]", "seeds={}"])
def test_a_wrong_scalar_is_named_by_its_key(value: str) -> None:
    with pytest.raises(ConfigError, match="^seeds") as caught:
        load_config(QUICK, [value])
    assert "seeds[0]" not in str(caught.value)


def test_a_missing_extends_names_the_file_that_extends(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("extends: nowhere.yaml\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"mine.yaml: extends is 'nowhere.yaml': there is no config file"):
        load_config(file)


def test_a_plug_in_with_another_name_replaces_the_one_of_the_file_that_is_extended(tmp_path: Path) -> None:
    base = tmp_path / "base.yaml"
    base.write_text("one: {name: a, options: {x: 1, y: 2}}\ntwo: {name: a, options: {x: 1, y: 2}}\n", encoding="utf-8")
    file = tmp_path / "mine.yaml"
    file.write_text("extends: base.yaml\none: {name: b, options: {x: 3}}\ntwo: {options: {x: 3}}\n", encoding="utf-8")
    read = read_config(file)
    assert read["one"] == {"name": "b", "options": {"x": 3}}
    assert read["two"] == {"name": "a", "options": {"x": 3, "y": 2}}


def test_a_plug_in_with_another_name_has_no_options_of_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "base.yaml"
    file.write_text("name: mine\none: {name: a, options: {x: 1}}\n", encoding="utf-8")
    assert read_config(file, ["one.name=b"]) == {"name": "mine", "one": {"name": "b"}}
    assert read_config(file, ["one.name=a"])["one"] == {"name": "a", "options": {"x": 1}}
    assert read_config(file, ["name=other"])["one"] == {"name": "a", "options": {"x": 1}}
    # A name comes before new options in any order. Otherwise the last override counts.
    changed = read_config(file, ["one.options.y=2", "one.options.z=3", "one.name=b"])
    assert changed["one"] == {"name": "b", "options": {"y": 2, "z": 3}}
    assert read_config(file, ["one={name: b}", "one.name=c"])["one"] == {"name": "c"}
    nested = read_config(file, ["one.options.inner.name=z", "one.name=b"])
    assert nested["one"] == {"name": "b", "options": {"inner": {"name": "z"}}}


@pytest.mark.parametrize("path", ["three_arms.yaml", "quick.yaml"])
def test_null_removes_a_term_of_the_preset_with_and_without_options(path: str, tmp_path: Path) -> None:
    """Where the config extended had options for the term, `null` removed these, and the preset's price returned."""
    child = tmp_path / "free.yaml"
    child.write_text(f"extends: {CONFIGS / path}\nreward: {{options: {{token_cost: null}}}}\n", encoding="utf-8")
    for config in (load_config(child), load_config(CONFIGS / path, ["reward.options.token_cost=null"])):
        reward = make_reward(config.reward.name, **config.reward.options)
        assert "token_cost" not in reward.terms
        assert "correct" in reward.terms


def test_null_removes_a_term_that_an_extended_file_has_added(tmp_path: Path) -> None:
    base = tmp_path / "base.yaml"
    base.write_text(f"extends: {QUICK}\nreward: {{options: {{clone_cost: {{price: 1}}}}}}\n", encoding="utf-8")
    options = load_config(base, ["reward.options.clone_cost=null"]).reward.options
    assert "clone_cost" not in options
    assert "clone_cost" not in make_reward("default", **options).terms


def test_another_name_deletes_options_and_keeps_what_stands_beside_them(tmp_path: Path) -> None:
    """A loss that named its default lost the KL term of the file that it extends."""
    base = tmp_path / "base.yaml"
    base.write_text("loss: {terms: {kl: {weight: 0.05}}, options: {clip_low: 0.1}}\n", encoding="utf-8")
    file = tmp_path / "mine.yaml"
    file.write_text("extends: base.yaml\nloss: {name: cispo, options: {clip_high: 0.3}}\n", encoding="utf-8")
    kept = {"terms": {"kl": {"weight": 0.05}}}
    assert read_config(file)["loss"] == {"name": "cispo", "options": {"clip_high": 0.3}, **kept}
    assert read_config(base, ["loss.name=cispo"])["loss"] == {"name": "cispo", **kept}


@pytest.mark.parametrize("key", ["grader", "turns"])
def test_another_name_inside_options_deletes_everything_beside_it(key: str, tmp_path: Path) -> None:
    """There a plug-in has its options beside its name, and a price of tokens became one of clones."""
    base = tmp_path / "base.yaml"
    old = {"grader": "{name: math, symbolic: true}", "turns": "{name: token_cost, price: 1.0}"}[key]
    new = {"grader": "number", "turns": "clone_cost"}[key]
    base.write_text(f"reward: {{name: default, options: {{{key}: {old}}}}}\n", encoding="utf-8")
    file = tmp_path / "mine.yaml"
    file.write_text(f"extends: base.yaml\nreward: {{options: {{{key}: {{name: {new}}}}}}}\n", encoding="utf-8")
    override = f"reward.options.{key}.name={new}"
    for read in (read_config(file), read_config(base, [override])):
        assert read["reward"] == {"name": "default", "options": {key: {"name": new}}}
    option = f"reward.options.{key}.x=1"
    for overrides in ([option, override], [override, option], [override.replace(new, "a"), option, override]):
        assert read_config(base, overrides)["reward"]["options"][key] == {"name": new, "x": 1}
    whole = f"reward.options.{key}={{name: a, x: 1}}"
    assert read_config(base, [whole, override])["reward"]["options"][key] == {"name": new}
    assert read_config(base, [option, whole, override])["reward"]["options"][key] == {"name": new}


def test_an_option_that_is_called_name_deletes_no_other_option(tmp_path: Path) -> None:
    base = tmp_path / "base.yaml"
    base.write_text("one: {name: a, options: {name: x, y: 1}}\n", encoding="utf-8")
    file = tmp_path / "mine.yaml"
    file.write_text("extends: base.yaml\none: {options: {name: z}}\n", encoding="utf-8")
    for read in (read_config(file), read_config(base, ["one.options.name=z"])):
        assert read["one"] == {"name": "a", "options": {"name": "z", "y": 1}}
