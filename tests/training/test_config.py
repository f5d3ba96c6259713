"""Bad input: one clear error that names the key and the remedy, before any work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
import yaml

from selfcest_env.errors import ConfigError
from selfcest_training.config import RunConfig
from selfcest_training.config_file import (
    apply_override,
    dump_config,
    dump_run,
    load_config,
    load_stored_config,
    parse_as,
    parse_config,
    run_digest,
    with_current_keys,
    with_stored_keys,
)
from selfcest_training.files import hash_text
from selfcest_training.learner.options import Denominator, ImportanceLevel, Precision, Rows
from selfcest_training.yaml_text import read_yaml, write_yaml

VARIANT = {"warmstart": {}, "rl": {"steps": 0}}
CELL = {"family": "range", "size": "4"}
PHASE, OPTIMIZER = "variants.delegating.warmstart.phases.0", "variants.delegating.rl.optimizer"
LOSS = "variants.delegating.rl.loss"
NAN, INF = float("nan"), float("inf")
CONFIGS = sorted(Path(__file__).parents[2].glob("training/configs/**/*.yaml"))
# The others are of studies.
SHIPPED = [path for path in CONFIGS if not path.stem.endswith(("frontier", "gate"))]


def small() -> dict[str, Any]:
    return {
        "name": "t",
        "limits": {"total_tokens": 480},
        "tasks": {"range": {"name": "range_sum", "options": {"max_length": 4}}},
        "variants": {
            "delegating": {
                "warmstart": {"phases": [{"tokens": 10, "mix": {"range": {"share": 1, "styles": {"delegate": 1}}}}]},
                "rl": {"steps": 1, "tasks": {"range": 1}},
            }
        },
        "evaluation": {"eval_sets": [dict(CELL)]},
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
        ("seedz", [1], ["seedz is unknown. Did you mean 'seeds'? RunConfig has name, tasks"]),
        ("variants.delegating.rl.step", 3, ["variants.delegating.rl.step is unknown", "Did you mean 'steps'"]),
        ("variants.delegating.warmstart.phases.0.token", 3, ["phases[0].token"]),
        ("limits.answer_reserve", 100_000, ["limits.answer_reserve is 100000", "lower answer_reserve or raise"]),
        ("limits.total_tokens", -1, ["limits.total_tokens is -1", "null: unlimited"]),
        ("limits.max_turns", True, ["max_turns", "True"]),
        ("variants.delegating.limits", {"max_dept": 0}, ["max_dept", "Did you mean 'max_depth'"]),
        ("variants.delegating.limits", {"max_depth": -2}, ["variants.delegating.limits.max_depth is -2"]),
        ("variants.delegating.rl.tasks", {"rangee": 1}, ["'rangee'", "Did you mean 'range'"]),
        (
            "variants.delegating.rl.tasks",
            {"range": -1},
            ["variants.delegating.rl.tasks.range is -1; expected a finite number >= 0"],
        ),
        ("variants.delegating.rl.temperature", 0, ["temperature is 0"]),
        ("variants.delegating.rl.group_size", 1, ["rl.group_size is 1; expected a whole number >= 2"]),
        ("variants.delegating.rl.minibatches", 5, ["rl.minibatches is 5; expected a divisor of tasks_per_step"]),
        (
            "variants.delegating.rl.denominator",
            "rows",
            ["rl.denominator is 'rows'; expected one of constant, episode_mean"],
        ),
        ("variants.delegating.rl.optimizer", {"learning_rate": 0}, ["learning_rate is 0"]),
        ("variants.delegating.rl.steps", "many", ["variants.delegating.rl.steps is 'many'; expected a whole number"]),
        ("variants.delegating.rl.steps", 1.5, ["variants.delegating.rl.steps is 1.5; expected a whole number"]),
        ("model", {"hidden_size": 30}, ["model.hidden_size is unknown; PlugIn has name, options"]),
        ("variants", {}, ["variants is {}; expected a mapping that is not empty"]),
        ("name", 3, ["name is 3; expected a text"]),
        ("tasks", 7, ["tasks"]),
        ("seeds", [], ["seeds is []", "not empty"]),
        ("seeds", [1, 1], ["seeds is [1, 1]", "each one once"]),
        ("workers", 0, ["workers is 0", ">= 1"]),
        ("threads", 0, ["threads is 0", ">= 1"]),
        ("lora", {"rank": 0}, ["lora.rank is 0"]),
        (
            "forward",
            {"autocast": "float16"},
            ["forward.autocast is 'float16'. Did you mean 'bfloat16'? Expected"],
        ),
        ("variants.delegating.rl.max_staleness", -1, ["rl.max_staleness is -1"]),
        ("checkpoint_every", 0, ["checkpoint_every is 0"]),
        ("micro_batch_tokens", 0, ["micro_batch_tokens is 0"]),
        ("rows", "trees", ["rows is 'trees'. Did you mean 'tree'? Expected one of bucketed, tree, packed"]),
        ("log_groups", -1, ["log_groups is -1", ">= 0"]),
        ("compute_tokens", 0, ["compute_tokens is 0", "null"]),
        (
            "compute_tokens",
            28,
            ["variants.delegating", "3 x 10 = 30", "compute_tokens = 28", "lower the phases' tokens"],
        ),
        *(("name", name, [f"name is {name!r}", "rename it"]) for name in ("", "a/b", "a\\b", "..", ".hidden")),
        *(
            ("variants", {name: VARIANT}, [f"variants has a key that is {name!r}", "rename it"])
            for name in ("a,b", "a/b", "..")
        ),
        (
            "variants.delegating.warmstart.batch_tokens",
            0,
            ["warmstart.batch_tokens is 0", "variants.delegating.warmstart"],
        ),
        ("variants.delegating.warmstart.pool_tokens", 0, ["warmstart.pool_tokens is 0"]),
        ("variants.delegating.warmstart.batches", "prefix", ["batches is 'prefix' and rows is 'bucketed'", "'tree'"]),
        (
            "variants.delegating.warmstart.max_attempts",
            0,
            ["warmstart.max_attempts is 0; expected a whole number >= 1"],
        ),
        ("variants.delegating.warmstart.probe_episodes", 0, ["warmstart.probe_episodes is 0"]),
        *(
            (f"{PHASE}.min_accuracy", x, ["phases[0].min_accuracy is", "from 0 to 1", "null: no probe"])
            for x in (-0.1, 1.1, NAN)
        ),
        (f"{PHASE}.tokens", 0, ["phases[0].tokens is 0"]),
        (f"{PHASE}.mix", {}, ["phases[0].mix has the shares {}", "a share > 0"]),
        (f"{PHASE}.mix.range.share", 0, ["phases[0].mix has the shares {'range': 0.0}"]),
        (f"{PHASE}.mix.range.share", -1, ["mix.range.share is -1; expected a finite number >= 0"]),
        (f"{PHASE}.mix.range.styles", {}, ["styles is {}"]),
        (f"{PHASE}.mix.range.styles", {"solve": 0}, ["mix.range.styles is {'solve': 0}", "weight > 0"]),
        (f"{PHASE}.mix.range.styles", {"solve": -1}, ["mix.range.styles.solve is -1; expected"]),
        (
            f"{PHASE}.mix.range.styles",
            {"solv": 1},
            ["mix.range.styles has a key that is 'solv'", "Did you mean 'solve'"],
        ),
        (f"{PHASE}.mix.range.styles", {"read": 1}, ["phases[0].mix.range.styles.read", "limits.max_reads is 0"]),
        ("variants.delegating.limits.max_depth", 0, ["mix.range.styles.delegate", "limits.max_depth is 0"]),
        (f"{PHASE}.limits", {"max_clones": 0}, ["mix.range.styles.delegate", "limits.max_clones is 0"]),
        ("variants.delegating.rl.steps", -1, ["rl.steps is -1"]),
        ("variants.delegating.rl.tasks", {}, ["variants.delegating.rl.tasks is {}", "weight > 0"]),
        ("variants.delegating.rl.tasks", {"range": 0}, ["variants.delegating.rl.tasks is {'range': 0.0}"]),
        ("variants.delegating.rl.tasks", {"range": INF}, ["variants.delegating.rl.tasks.range is inf"]),
        ("variants.delegating.rl.tasks_per_step", 0, ["rl.tasks_per_step is 0"]),
        *(
            ("variants.delegating.rl.loss_denominator_tokens", x, ["rl.loss_denominator_tokens is"])
            for x in (0, -1, NAN, INF)
        ),
        *(("variants.delegating.rl.temperature", x, ["rl.temperature is"]) for x in (NAN, INF, -1)),
        *((f"{OPTIMIZER}.warmup_steps", x, ["optimizer.warmup_steps is"]) for x in (-1,)),
        *((f"{OPTIMIZER}.beta1", x, ["optimizer.beta1 is", "< 1"]) for x in (-0.1, 1.0, NAN)),
        *((f"{OPTIMIZER}.beta2", x, ["optimizer.beta2 is", "< 1"]) for x in (-0.1, 1.0, NAN)),
        *((f"{OPTIMIZER}.weight_decay", x, ["optimizer.weight_decay is"]) for x in (-0.1, NAN, INF)),
        *((f"{OPTIMIZER}.learning_rate", x, ["optimizer.learning_rate is"]) for x in (NAN, INF, "nan")),
        *((f"{OPTIMIZER}.decay_share", x, ["optimizer.decay_share is"]) for x in (-0.1, 1.1, NAN)),
        *((f"{OPTIMIZER}.max_grad_norm", x, ["optimizer.max_grad_norm is"]) for x in (0, NAN)),
        (f"{LOSS}.terms", {"kl": {"weight": NAN}}, ["loss.terms.kl.weight is nan", "finite"]),
        (f"{LOSS}.clip_low", 0.1, ["variants.delegating.rl.loss.clip_low is unknown", "options"]),
        (f"{LOSS}.importance", {"level": "tokens"}, ["'tokens'", "none", "token", "sequence"]),
        (f"{LOSS}.importance", {"level": "token", "cap": 0.5}, ["importance.cap is 0.5"]),
        ("evaluation.episodes", 0, ["evaluation.episodes is 0"]),
        ("evaluation.temperatures", [], ["evaluation.temperatures is []", "not empty"]),
        ("evaluation.temperatures", [0.5, 0.5], ["evaluation.temperatures is", "each one once"]),
        *(("evaluation.temperatures", [0, x], ["evaluation.temperatures[1] is", "greedy"]) for x in (-1, NAN, INF)),
        (
            "evaluation.eval_sets",
            [CELL, {**CELL, "shift": "out"}],
            ["(family, size) is", "('range', '4')", "duplicates"],
        ),
        ("evaluation.eval_sets.0.shift", "off", ["evaluation.eval_sets[0].shift is 'off'; expected one of in, out"]),
    ],
)
def test_a_wrong_key_or_value_is_named(path: str, value: object, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(edited(path, value))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("compute_tokens", None),
        ("compute_tokens", 29),  # 3 x 10 is over it by less than 5 %
        ("variants.delegating.rl", {"steps": 0}),
        ("variants.delegating.rl", {"steps": 0, "tasks": {"range": 0}}),
        ("limits", {"total_tokens": None, "context_tokens": 2048}),
        ("limits", {"total_tokens": 2048}),
        (f"{PHASE}.mix.range.styles", {"solve": 1, "read": 0}),
        ("variants.delegating.warmstart.phases", []),
        *((f"{PHASE}.min_accuracy", share) for share in (None, 0, 1)),
        ("evaluation.temperatures", [0.0, 0.8]),
        (f"{OPTIMIZER}.max_grad_norm", INF),
        (LOSS, {"name": "cispo", "options": {"epsilon_high": 3}, "importance": {"level": "sequence", "cap": INF}}),
        (f"{LOSS}.options", {"clip_high": INF, "level": "sequence"}),
        (f"{LOSS}.name", "my_losses:Late"),
    ],
)
def test_a_value_at_the_edge_is_accepted(path: str, value: object) -> None:
    config = parse_config(edited(path, value))
    assert parse_config(yaml.safe_load(dump_config(config))) == config


def test_a_number_without_a_point_is_a_number(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(small()), encoding="utf-8")
    assert (
        load_config(path, [f"{OPTIMIZER}.learning_rate=3e-4"]).variants["delegating"].rl.optimizer.learning_rate == 3e-4
    )
    with pytest.raises(ConfigError, match="learning_rate is '3e-4x'; expected a finite number > 0"):
        load_config(path, [f"{OPTIMIZER}.learning_rate=3e-4x"])
    options = load_config(path, ["tasks.range.options={epsilon: 1e-4, text: '1e-4', e: e-4}"]).tasks["range"].options
    assert options == {"epsilon": 1e-4, "text": "1e-4", "e": "e-4"}
    assert read_yaml(write_yaml(options), "x") == options
    assert read_yaml("[1e3, -2.5E+3, .5e1, 1.0e5, 1_0e2, 12, 0x1e4]", "x") == [1e3, -2.5e3, 5.0, 1e5, 1e3, 12, 0x1E4]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("!!bool maybe", "has a value that is not what its tag"),
        ('!!int ""', "has a value that is not what its tag"),
        ('!!float ""', "has a value that is not what its tag"),
        ("!!timestamp x", "has a value that is not what its tag"),
        ("{a: [2026-01-01]}", "has datetime.date(2026, 1, 1), which YAML takes for a date; write it in quotes"),
        ("{2026-01-01: a}", "has datetime.date(2026, 1, 1), which YAML takes for a date; write it in quotes"),
        ("!!binary YQ==", "has b'a', which YAML takes for a bytes; write it in quotes"),
        ("!!set {a, b}", "which YAML takes for a set; write it in quotes"),
    ],
)
def test_values_that_json_does_not_know_are_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"^the text {re.escape(said)}" if said.startswith("has") else said):
        read_yaml(text, "the text")


OLD_KEYS = {
    "gate": {"name": "varied"}, "max_policy_lag": 2, "group_tries": 5, "max_dropped_share": 0.5, "constant_tokens": 7.0
}  # fmt: skip
NEW_KEYS = {
    "group_filter": {"name": "varied"}, "max_staleness": 2, "max_retries": 4, "max_failed_fraction": 0.5,
    "loss_denominator_tokens": 7.0,
}  # fmt: skip


def test_a_config_that_an_earlier_release_stored_is_read_and_has_its_digest(tmp_path: Path) -> None:
    data = small()
    data["variants"]["delegating"]["rl"] |= NEW_KEYS
    spec = parse_config(data)
    values = {{"variants": "arms"}.get(key, key): value for key, value in yaml.safe_load(dump_run(spec)).items()}
    policy = values["arms"]["delegating"]
    old_names = {new: old for old, new in zip(OLD_KEYS, NEW_KEYS, strict=True)}
    policy["rl"] = {old_names.get(key, key): value for key, value in policy["rl"].items()}
    policy["rl"]["group_tries"] = OLD_KEYS["group_tries"]
    policy["warmstart"] = {{"max_attempts": "attempts"}.get(key, key): x for key, x in policy["warmstart"].items()}
    policy["warmstart"]["phases"] = [
        {{"min_accuracy": "learned"}.get(key, key): value for key, value in phase.items()}
        for phase in policy["warmstart"]["phases"]
    ]
    values["evaluation"] = {{"eval_sets": "cells"}.get(key, key): x for key, x in values["evaluation"].items()}
    stored = tmp_path / "config.yaml"
    stored.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    assert load_stored_config(stored) == spec
    assert run_digest(spec) == hash_text(write_yaml(values)), "checkpoints of that release match"
    stored.write_text(dump_run(spec), encoding="utf-8")
    assert load_stored_config(stored) == spec, "a current one is read as it is"


def test_a_renamed_key_has_its_own_meaning_elsewhere() -> None:
    """`max_retries` is an option of the client of a server too, whose stored configs have that name."""
    values = {"reward": {"options": {"max_retries": 5}}, "gate": 1, "rl": {"max_retries": 2, "max_staleness": True}}
    assert with_stored_keys(values) == {
        "reward": {"options": {"max_retries": 5}}, "gate": 1, "rl": {"group_tries": 3, "max_policy_lag": True}
    }  # fmt: skip
    assert with_current_keys(with_stored_keys(values)) == values


def test_an_index_of_thousands_of_digits_leads_nowhere() -> None:
    with pytest.raises(ConfigError, match=r"is no position in a list of 1$") as caught:
        apply_override({"seeds": [0]}, f"seeds.{'7' * 5000}=1")
    assert len(str(caught.value)) < 400


BOMB = "a0: &a0 [1, 1]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}, *a{i - 1}]\n" for i in range(1, 40))
MERGES = "a0: &a0 {k: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}, *a{i - 1}]}}\n" for i in range(1, 40))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BOMB.encode(), "has more than 100000 values once its aliases"),
        (MERGES.encode(), "has more than 100000 values once its aliases"),
        (b"variants: &variants {again: *variants}", "an alias stands inside what it names"),
        ("name: caf\xe9".encode("latin-1"), "is not UTF-8 at byte 9; save it as UTF-8"),
        (b"name: a\0b", "is not valid YAML"),
        (b"seeds: [" + b"7" * 4400 + b"]", "cannot be read: Exceeds the limit"),
        (b"name: 2026-13-45", "cannot be read: month must be in 1..12"),
        (b"name: a\nlimits: {}\nname: b", "line 3: the key 'name' stands twice; remove one"),
        (b"[" * 20_000, "is nested too deeply"),
        (b"name: [1, 2\nb: }", "is not valid YAML: while parsing"),
        (b"name: !!python/object:os.system {}", "is not valid YAML: could not determine a constructor"),
        (b"extends: [a]", "extends is ['a']; expected the path"),
        (b'extends: "a\\0b"', r"extends is 'a\x00b'; expected the path"),
    ],
    ids=[
        "bomb",
        "merges",
        "cycle",
        "latin",
        "nul",
        "digits",
        "month",
        "twice",
        "deep",
        "broken",
        "tag",
        "list",
        "path",
    ],
)
def test_a_hostile_file_is_one_line(tmp_path: Path, text: bytes, said: str) -> None:
    (tmp_path / "c.yaml").write_bytes(text)
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "c.yaml")
    assert said in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "c.yaml"))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("tasks", {1: {"name": "quote"}}, "tasks has a key that is 1; expected a text of printable characters only"),
        ("variants", {True: VARIANT}, "variants has a key that is True; expected a text that can name a folder"),
        ("3", 4, "3 is unknown; RunConfig has name"),
        ("tasks.range.options", {7: 1}, "tasks.range.options has a key that is 7; expected a text; write it in quotes"),
        ("name", "a\0b", r"name is 'a\x00b'; expected a text that can name a folder"),
        ("name", "a\nb", r"name is 'a\nb'; expected a text that can name a folder"),
        ("output", "a\0b", r"output is 'a\x00b'; expected a text of printable"),
        ("variants", {"a\nb": VARIANT}, r"variants has a key that is 'a\nb'; expected a text that can name a folder"),
        ("tasks", {"a\nb": {"name": "quote"}}, r"tasks has a key that is 'a\nb'; expected a text of printable"),
        ("seeds", [10**4000], "seeds[0] is 1" + "0" * 99 + "... (4001 characters); expected a whole number >= 0 and <"),
        ("seeds", [10**5000], "seeds[0] is a number of thousands of digits; expected a whole number >= 0 and <"),
        ("seeds", [-1], "seeds[0] is -1; expected a whole number >= 0 and <"),
    ],
)
def test_a_hostile_key_or_name_is_one_line(path: str, value: object, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({**small(), **({3: 4} if path == "3" else edited(path, value))})  # type: ignore[dict-item]
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [Denominator, ImportanceLevel, Precision, Rows])
def test_every_enum_of_a_config_is_checked_without_being_named_anywhere(kind: type[StrEnum]) -> None:
    @dataclass(frozen=True)
    class Holder:
        choice: Any

    Holder.__annotations__["choice"] = kind
    assert isinstance(parse_as(Holder, {"choice": list(kind)[-1].value}).choice, kind)
    with pytest.raises(ConfigError, match="^choice is 'nothing of the kind'; expected one of "):
        parse_as(Holder, {"choice": "nothing of the kind"})


def test_a_config_is_read_without_torch() -> None:
    code = "import sys, selfcest_training.config_file; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ})
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_an_override_of_one_variant_leaves_the_others_alone(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        """
name: t
limits: {total_tokens: 480}
tasks: {range: {name: range_sum}}
variants:
  delegating: {warmstart: {phases: &phases [{tokens: 10, mix: {range: {share: 1, styles: {solve: 1}}}}]},
               rl: &rl {steps: 3, tasks: {range: 1}}}
  monolithic: {limits: {max_depth: 0}, warmstart: {phases: *phases}, rl: *rl}
""",
        encoding="utf-8",
    )
    variants = load_config(
        path, ["variants.delegating.rl.steps=7", "variants.monolithic.warmstart.phases.0.tokens=20"]
    ).variants
    assert {name: variant.rl.steps for name, variant in variants.items()} == {"delegating": 7, "monolithic": 3}
    assert {name: variant.warmstart.phases[0].tokens for name, variant in variants.items()} == {
        "delegating": 10,
        "monolithic": 20,
    }
    path.write_text("variants: &variants {again: *variants}", encoding="utf-8")
    with pytest.raises(ConfigError, match="an alias"):
        load_config(path)


def test_a_missing_key_is_named() -> None:
    data = small()
    del data["name"]
    with pytest.raises(ConfigError, match="^name is missing; expected a text"):
        parse_config(data)


def test_overrides(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(small()), encoding="utf-8")
    config = load_config(
        path, ["name=mine", "seeds=[3,4]", "variants.delegating.warmstart.phases.0.tokens=99", "compute_tokens=null"]
    )
    assert (config.name, config.seeds, config.compute_tokens) == ("mine", (3, 4), None)
    assert config.variants["delegating"].warmstart.phases[0].tokens == 99
    for wrong in ("name", "=3", "variants.delegating.warmstart.phases.7.tokens=1", "name.first=1", "seeds=[1"):
        with pytest.raises(ConfigError, match="override"):
            load_config(path, [wrong])


def test_a_missing_or_broken_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no config file"):
        load_config(tmp_path / "none.yaml")
    for text in ("[1, 2", "- 1\n"):
        (tmp_path / "broken.yaml").write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=r"broken\.yaml"):
            load_config(tmp_path / "broken.yaml")


@pytest.mark.parametrize("piece", ["[", "{", "[{a: "])
def test_brackets_without_end_are_refused_at_once(piece: str) -> None:
    """1600 of them took 1.7 s, and four times that for each doubling."""
    start = time.process_time()
    with pytest.raises(ConfigError, match="nested too deeply: more than 200 brackets"):
        read_yaml(piece * 20_000, "x")
    assert time.process_time() - start < 5
    assert read_yaml("[" * 100 + "]" * 100, "x") is not None
