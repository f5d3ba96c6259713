"""The policies that come with the package: what they are, by whose name they are found, and how they get there."""

from __future__ import annotations

import json
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from test_job import config
from test_solve import Console, run_model, selfcest, written

from selfcest_agents.language import language_of
from selfcest_env.errors import ConfigError
from selfcest_env.plugin import PlugIn
from selfcest_eval.play.config import load_study
from selfcest_eval.play.policies import ModelPolicy, parse_policy
from selfcest_training import shipped
from selfcest_training.config import RunConfig
from selfcest_training.config_file import dump_config, load_config
from selfcest_training.files import hash_file
from selfcest_training.run.experiment import default_config
from selfcest_training.shipped.__main__ import main

__all__ = ["run_model", "selfcest"]  # fixtures

ROOT = Path(__file__).parents[2]
QUICK = shipped.HERE / "quick"
VARIANTS = ("delegating", "reading", "deciding")


# What they are


def test_they_are_the_variants_of_the_default_run_small_and_in_float32() -> None:
    assert set(shipped.list_shipped_policies()) == set(VARIANTS)
    for variant, folder in shipped.list_shipped_policies().items():
        assert folder == QUICK / variant / "seed0" / "model"
        weights = load_file(folder / "model.safetensors")
        assert {tensor.dtype for tensor in weights.values()} == {np.dtype(np.float32)}
        assert 160_000 < sum(tensor.size for tensor in weights.values()) < 180_000
        assert sum(file.stat().st_size for file in folder.iterdir()) < 1_000_000


def test_the_manifest_says_what_made_them() -> None:
    manifest = json.loads((QUICK / "manifest.json").read_text(encoding="utf-8"))
    weights = {
        variant: hash_file(folder / "model.safetensors") for variant, folder in shipped.list_shipped_policies().items()
    }
    assert manifest.pop("weights") == weights
    assert manifest == {"command": "selfcest train", "commit": "58c4407", "seed": 0}


def test_the_default_run_still_trains_them() -> None:
    def trained(run: RunConfig) -> RunConfig:
        # How often a checkpoint is written changes no bit of a run; see test_resume.py.
        return replace(run, evaluation=default.evaluation, checkpoint_every=default.checkpoint_every)

    default = load_config(default_config())
    assert trained(load_config(QUICK / "config.yaml")) == trained(default)


def test_a_wheel_and_a_source_distribution_have_them() -> None:
    wheel = pytest.importorskip("hatchling.builders.wheel").WheelBuilder(str(ROOT))
    source = pytest.importorskip("hatchling.builders.sdist").SdistBuilder(str(ROOT))
    own = {file.relative_to(shipped.HERE).as_posix() for file in QUICK.rglob("*") if file.is_file()}
    assert len([name for name in own if name.endswith("model.safetensors")]) == 3
    for builder, place in ((wheel, "selfcest_training/shipped/"), (source, "training/selfcest_training/shipped/")):
        there = {file.distribution_path for file in builder.recurse_included_files()}
        assert {place + name for name in own} <= there


def test_nothing_in_them_names_the_machine_that_made_them() -> None:
    for file in QUICK.rglob("*.*"):
        if file.suffix in (".json", ".yaml"):
            text = file.read_text(encoding="utf-8")
            assert not re.search(r"(?<![\w.:/<])/\w", text), f"{file} holds an absolute path"


# By their names


def test_a_plain_solve_in_an_empty_folder(selfcest: Console) -> None:
    # 3 + 7 + 0, 1 + 5 + 9 and 8 + 2 + 4 make 39.
    Path("ledgers.json").write_text('{"C": "k3a7q0", "E": "k1a5q9", "F": "k8a2q4"}', encoding="utf-8")
    arguments = ("--policy", "deciding", "--documents", "ledgers.json", "--answer", "9", "--out", "asked.jsonl")
    shown = selfcest("solve", "?[1]C[2]E[3]F;09,20,7", *arguments)
    assert 'right: expected "9"' in shown
    (record,) = written()
    assert record.limits == load_config(QUICK / "config.yaml").limits_of("deciding")
    assert record.limits.total_tokens == 480


@pytest.mark.slow
def test_the_quickstart_begins_with_them(selfcest: Console) -> None:
    """The first block of commands on the page runs in an empty folder, and what the page says of them is so."""
    page = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    printed = []
    for line in re.search(r"^## 1\..*?^```bash\n(.*?)^```$", page, re.M | re.S)[1].splitlines():  # type: ignore[index]
        program, *arguments = shlex.split(line)
        if program == "echo":
            text, _, file = arguments
            Path(file).write_text(text, encoding="utf-8")
        else:
            printed.append(selfcest(*arguments))
    *asked, traced, drawn = printed
    assert f"```text\n{asked[0]}```" in page
    assert len(asked) == 4
    assert all("\nright: expected" in shown for shown in asked)
    assert "turn 0" in traced
    assert [record.cost.clones for record in written()] == [2, 0, 0, 3]
    assert drawn.startswith("tree.svg: episode solve.3, ")
    assert Path("tree.svg").read_bytes() == (ROOT / "docs" / "tree.svg").read_bytes()


def test_the_names_in_the_help_are_those_that_there_are(selfcest: Console) -> None:
    assert all(variant in " ".join(selfcest("solve", "--help").split()) for variant in shipped.list_shipped_policies())


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_study_names_them_as_solve_does(variant: str, tmp_path: Path) -> None:
    assert parse_policy(variant) == PlugIn("model", {"folder": variant})
    policy = ModelPolicy(folder=variant)
    assert not policy.seeded
    assert policy.fingerprint(0) == ModelPolicy(folder=str(QUICK / variant / "seed0" / "model")).fingerprint(0)
    run = load_config(QUICK / "config.yaml")
    assert policy.trained_on() == {name: run.tasks[name] for name in run.variants[variant].families}


def test_the_default_study_is_played_by_them_alone() -> None:
    study = load_study(ROOT / "training/configs/cpu/frontier.yaml")
    folders = {study.policy_of(label).options["folder"] for label in study.strategies}
    assert folders == set(VARIANTS)
    run = load_config(QUICK / "config.yaml")
    for label, variant in (("delegate", "delegating"), ("deciding", "deciding")):
        allowed = study.limits_at(run.limits_of(variant).total_tokens, label)
        assert allowed == run.limits_of(variant), "so that they play as they were trained to"


def test_a_model_of_ones_own_under_such_a_name_is_neither_taken_nor_passed_over(
    selfcest: Console, tmp_path: Path
) -> None:
    Path("deciding").mkdir()
    assert parse_policy("deciding") == PlugIn("model", {"folder": "deciding"}), "texts, say: no model lies there"
    ModelPolicy(folder="deciding").load(0).close()
    language = language_of(PlugIn("tiny"))
    language.save(language.load(3), Path("deciding"))
    line = selfcest.error("solve", "?[1]C", "--policy", "deciding")
    assert "deciding is a policy that comes with the package" in line
    assert "write ./deciding for the folder" in line
    with pytest.raises(ConfigError, match=r"write ./deciding"):
        ModelPolicy(folder="deciding")
    # The embedded model has no chat template: it was looked at, and nothing else.
    assert "comes with the package" not in selfcest.error("solve", "?[1]C", "--policy", "./deciding")


def test_a_policy_longer_than_any_path_is_refused_in_one_line() -> None:
    """It was a traceback; tests/stress/fuzz.py found it."""
    with pytest.raises(ConfigError, match=r"policy is 'a{40}'\.\.\., which cannot be a path: File name too long"):
        parse_policy("a" * 5000)


# How they get there


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a package would keep them."""
    monkeypatch.setattr(shipped, "HERE", tmp_path / "package")
    return tmp_path / "package"


def test_a_run_is_shipped_whole_or_not_at_all(run_model: Path, place: Path, tmp_path: Path) -> None:
    run = config(tmp_path / "runs", variants__delegating__limits={"max_turns": 2})
    old = place / run.name / "gone" / "seed0" / "model"
    old.mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"seed1/model holds no model.safetensors; finish the run first"):
        shipped.ship(run.folder, command="selfcest train", commit="abc1234", seed=1, place=place)
    assert old.is_dir()
    folder = shipped.ship(run.folder, command="selfcest train", commit="abc1234", seed=0, place=place)
    assert not old.exists()
    found = shipped.list_shipped_policies()
    assert found == {"delegating": folder / "delegating" / "seed0" / "model"}
    model = tmp_path / run_model
    assert {file.name: file.read_bytes() for file in found["delegating"].iterdir()} == {
        file.name: file.read_bytes() for file in model.iterdir()
    }
    assert (folder / "config.yaml").read_text(encoding="utf-8") == dump_config(run)
    assert ModelPolicy(folder="delegating").fingerprint(0) == ModelPolicy(folder=str(model)).fingerprint(0)
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert manifest == {
        "command": "selfcest train",
        "commit": "abc1234",
        "seed": 0,
        "weights": {"delegating": hash_file(model / "model.safetensors")},
    }


def test_the_command_says_in_one_line_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["shipped", str(tmp_path / "none"), "--commit", "abc1234"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    assert "there is no config file" in capsys.readouterr().err
