"""The command line's surface, its errors, and one whole run in processes of its own."""

from __future__ import annotations

import csv
import inspect
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_job import config
from typer.main import get_command
from typer.testing import CliRunner

import selfcest_cli.main as cli
import selfcest_training.credit
from selfcest_cli.trace import find_newest, find_runs_files, name_jobs
from selfcest_env.errors import RecordError
from selfcest_eval.play.config import load_study
from selfcest_eval.play.results import Result, read_results
from selfcest_eval.report import study_report as report
from selfcest_training.config import RunConfig
from selfcest_training.config_file import dump_config, load_config
from selfcest_training.run import experiment
from selfcest_training.run.evaluator import Evaluator
from selfcest_training.run.job import JobId

ROOT = Path(__file__).parents[2]


def test_the_surface_is_this_and_nothing_else() -> None:
    commands = get_command(cli.app).commands  # type: ignore[attr-defined]
    commands = {name: command for name, command in commands.items() if not command.hidden}
    groups = {name: commands.pop(name).commands for name in ("credit",)}
    commands |= {f"{group} {name}": command for group, inner in groups.items() for name, command in inner.items()}
    found = {name: {opt for param in command.params for opt in param.opts} for name, command in commands.items()}
    assert found == {
        "config": {"--study"},
        "plan": {
            "--config",
            "-c",
            "--memory",
            "--episodes",
            "--curve",
            "--rehearse",
            "--calibrate",
            "--minutes",
            "--part-tokens",
            "--measure",
            "--trust",
            "overrides",
        },
        "train": {"--config", "-c", "--dry-run", "--ray-address", "--resume", "overrides"},
        "warmstart": {"--config", "-c", "--dry-run", "--resume", "overrides"},
        "evaluate": {"--config", "-c", "--dry-run", "--page", "--resume", "overrides"},
        "compare": {"--trust", "first", "second"},
        "contamination": {"--trust", "configs"},
        "solve": {
            "--policy",
            "--server",
            "--name",
            "--documents",
            "--answer",
            "--temperature",
            "--seed",
            "--out",
            "--html",
            "question",
            "overrides",
        },
        "report": {"--html", "--trust", "folders"},
        "watch": {"--serve", "--once", "--port", "--trust", "folder"},
        "trace": {
            "--episode",
            "--texts",
            "--strategy",
            "--wrong",
            "--html",
            "--credit",
            "--svg",
            "--png",
            "--gif",
            "--trust",
            "files",
        },
        "bench": {"scenario", "--learner", "--seeds", "--first-seed", "--seconds", "--workers", "--out", "--list"},
        "lab": {"--scheme", "--option", "--game", "--group-size", "--samples", "--seed", "--out"},
        "export": {"--format", "--credit", "--option", "--denominator", "--loss-denominator-tokens", "--out", "file"},
        "credit list": set(),
        "credit apply": {"--name", "--option", "--out", "file"},
    }
    core = {
        "grpo",
        "gated",
        "gated_paper",
        "rloo",
        "difference",
        "diff_loo",
        "coma",
        "shapley",
        "parts",
        "to_go",
        "per_role",
        "decision",
    }
    methods = {"branches", "critic", "gae", "wideseek"}
    methods |= {"adaptive_reward", "adora", "d3s", "downsampled", "frozen_clones", "hapo", "salt", "state_zero"}
    methods |= {"ccpo", "hierarchical_grpo", "rae", "sharp"}
    assert selfcest_training.credit.SCHEMES.builtins.keys() == core
    assert set(selfcest_training.credit.SCHEMES) == core | methods


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that help lists, with its path; the groups included."""
    yield path, command
    for name, subcommand in getattr(command, "commands", {}).items():
        if not subcommand.hidden:
            yield from commands(subcommand, (*path, name))


ALL_COMMANDS = dict(commands(get_command(cli.app)))


@pytest.mark.slow
def test_a_dry_run_prints_a_config_that_is_the_same_run_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    changes = ["name=mine", "seeds=[3]"]
    printed = CliRunner().invoke(cli.app, ["train", "--dry-run", *changes])
    assert printed.exit_code == 0, printed.output
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine.yaml").write_text(printed.output, encoding="utf-8")
    assert load_config(tmp_path / "mine.yaml") == load_config(experiment.default_config(), changes)
    wrong = CliRunner().invoke(cli.app, ["train", "--dry-run", "evaluation.eval_sets.0.family=nothing"])
    assert wrong.exit_code != 0
    option = "variants.deciding.rl.credit.options.nothing"
    wrong = CliRunner().invoke(cli.app, ["train", "--dry-run", f"{option}=1"])
    assert wrong.exit_code != 0
    assert option in str(wrong.exception)


@pytest.mark.parametrize(
    ("options", "command", "load"),
    [([], "train", load_config), ([], "warmstart", load_config), (["--study"], "evaluate", load_study)],
)
def test_a_config_to_start_from_passes_a_dry_run(
    options: list[str], command: str, load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    template = CliRunner().invoke(cli.app, ["config", *options]).output
    assert template.startswith("# "), "it explains itself"
    Path("mine.yaml").write_text(template, encoding="utf-8")
    printed = CliRunner().invoke(cli.app, [command, "--dry-run", "-c", "mine.yaml"])
    assert printed.exit_code == 0, printed.output
    assert [file.name for file in tmp_path.iterdir()] == ["mine.yaml"]
    Path("all.yaml").write_text(printed.output, encoding="utf-8")
    assert load(Path("all.yaml"), []) == load(Path("mine.yaml"), [])
    wrong = CliRunner().invoke(cli.app, [command, "--dry-run", "-c", "mine.yaml", "seeds=x"])
    assert wrong.exit_code != 0


def test_trace_finds_the_episodes_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    with pytest.raises(RecordError, match="is a run without episodes so far"):
        find_runs_files([tmp_path])
    jobs = [tmp_path / "deciding" / f"seed{seed}" for seed in (0, 1)]
    for age, job in enumerate(jobs):
        job.mkdir(parents=True)
        (job / "episodes.jsonl").touch()
        os.utime(job / "episodes.jsonl", (100 - age, 100 - age))
    files = [job / "episodes.jsonl" for job in jobs]
    other = tmp_path / "other.jsonl"
    assert find_runs_files([tmp_path, jobs[1], other]) == [*files, other], "no file counts twice in its groups"
    assert name_jobs(files[:1]) == [""]
    assert name_jobs(files) == ["seed0", "seed1"]
    assert name_jobs([*files, other]) == [f"deciding/seed{seed}/episodes.jsonl" for seed in (0, 1)] + ["other.jsonl"]
    assert find_newest(files) == files[0]


def test_every_command_stands_in_one_panel() -> None:
    listed = [name for names in cli.PANELS.values() for name in names]
    assert sorted(listed) == sorted(path[0] for path in ALL_COMMANDS if len(path) == 1)
    output = CliRunner().invoke(cli.app, ["--help"]).output
    assert [line[:-1] for line in output.splitlines() if line[:-1] in cli.PANELS] == list(cli.PANELS)


@pytest.mark.parametrize("path", ALL_COMMANDS, ids=" ".join)
def test_help_at_80_columns_cuts_no_word(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli.app, [*path, "--help"], env={"COLUMNS": "80"})
    assert result.exit_code == 0
    assert max(map(len, result.output.splitlines())) <= 80
    _, _, listed = result.output.partition("Commands:\n" if path else "Play:\n")
    assert "..." not in listed, "the first sentence is too long for the list"
    command = ALL_COMMANDS[path]
    if not getattr(command, "commands", None):
        assert f"Example: selfcest {' '.join(path)}" in result.output
    texts = [inspect.cleandoc(command.help or "")]
    for parameter in command.params:
        help_text = getattr(parameter, "help", None)
        assert help_text, f"{parameter.name} has no help"
        texts += [help_text, *parameter.opts] if parameter.param_type_name == "option" else [help_text]
    # A line may end after a hyphen, as in JSON-lines. A comma separates the names of an option.
    printed = set(re.split(r"[\s,-]+", result.output))
    assert set(re.split(r"[\s,-]+", " ".join(texts))) <= printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["plan", "--rehearse"],
            ["model is 'tiny' on cpu; a rehearsal needs a chat model with model.options.device=cuda"],
        ),
        (["plan", "--memory", "0"], ["--memory is 0; expected GiB"]),
        (["plan", "--memory", "inf"], ["--memory is inf; expected GiB"]),
        (["plan", "sampler={name: vlm}"], ["unknown sampler 'vlm'", "Did you mean 'vllm'"]),
        (["plan", "--minutes", "3"], ["--minutes and --part-tokens belong to --calibrate FILE"]),
        (
            ["plan", "--calibrate", "missing/t.jsonl"],
            ["--calibrate missing/t.jsonl cannot be written", "is not a folder"],
        ),
        (["train", "--dry-run", "sampler={name: vlm}"], ["unknown sampler 'vlm'", "Did you mean 'vllm'"]),
        (["train", "--dry-run", "variants.deciding.rl.max_staleness=1"], ["max_staleness is 1, and the sampler uses"]),
        (["plan", "--episodes", "missing.jsonl"], ["--episodes missing.jsonl is no file"]),
        (["plan", "--curve", "missing.json"], ["--curve missing.json cannot be read"]),
        (["train", "seedz=[1]"], ["seedz is unknown", "Did you mean 'seeds'"]),
        (["train", "-c", "missing.yaml"], ["no config file missing.yaml"]),
        (["train", "limits.answer_reserve=9999"], ["limits.answer_reserve is 9999"]),
        (["train", "tasks.short.name=nothing"], ["unknown task source 'nothing'"]),
        (["trace", "missing.jsonl"], ["no file missing.jsonl"]),
        (["credit", "apply", "missing.jsonl", "--name", "grpo"], ["no file missing.jsonl"]),
        (["credit", "apply", "x", "--name", "grpoo"], ["unknown credit scheme 'grpoo'", "Did you mean 'grpo'"]),
        (["credit", "apply", "x", "--name", "grpo", "--option", "scale"], ["'scale' is not of the form key=value"]),
        (["credit", "apply", "x", "--name", "coma", "--option", "samples=0"], ["--option.samples is 0"]),
        (["evaluate", "episodez=9"], ["episodez is unknown", "Did you mean 'episodes'"]),
        (["evaluate", "-c", "missing.yaml"], ["no config file missing.yaml"]),
        (["evaluate", "policy=runs/a/b/seed{seed}/model"], ["folder is runs/a/b/seed{seed}/model", "train first"]),
        (["solve", "1?", "--policy", "delegate"], ["nor a policy delegate", "Did you mean 'delegating'"]),
        (["compare", "a", "b"], ["a holds no config.yaml of a run and no study.yaml"]),
        (["report", "a"], ["a holds no config.yaml of a run and no study.yaml"]),
        (["report", "a", "b", "--html", "r.html"], ["a holds no config.yaml of a run and no study.yaml"]),
        (["report", "a", "--html", "r"], ["--html r does not end in .html"]),
        (["watch", "a"], ["a holds no config.yaml of a run and no study.yaml"]),
        (["watch", "a", "--port", "80"], ["--port 80 has no effect without --serve"]),
        (["solve", "1 + 2?"], ["no policy given: pass --policy"]),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["selfcest", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert all(word in error for word in words)
    assert len(error.splitlines()) == 1


def write(tmp_path: Path) -> Path:
    data = yaml.safe_load(dump_config(config(tmp_path / "runs")))
    data["evaluation"] = {"eval_sets": [{"family": "choice", "size": "any"}], "episodes": 8}
    data["variants"]["delegating"]["rl"]["steps"] = 2
    data["variants"]["monolithic"] = {
        "limits": {"max_depth": 0},
        "warmstart": {"phases": [{"tokens": 4000, "mix": {"choice": {"share": 1, "styles": {"solve": 1}}}}]},
        "rl": {"steps": 0},
    }
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return path


VARIANTS = ("delegating", "monolithic")
STUDY = """
name: s
budgets: [40, 80]
episodes: 8
limits: {turn_tokens: 32, reply_tokens: 8, answer_reserve: 8}
strategies: {delegate: {}, monolithic: {}}
tasks: {choice: {name: "trivial:Choice"}}
eval_sets: [{family: choice, size: any}]
"""
PYTHONPATH = ":".join(str(ROOT / part) for part in ("", "agents", "training", "tests/support"))
ENVIRONMENT = {"PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1", "PATH": ""}


def selfcest(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "selfcest_cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=ENVIRONMENT)


def timeless_table(path: Path) -> list[dict[str, str]]:
    """The rows of a results.csv but for what a clock said."""
    with path.open(encoding="utf-8") as file:
        return [{**row, "wall_seconds": ""} for row in csv.DictReader(file)]


@pytest.mark.slow
def test_a_whole_run_and_its_files(tmp_path: Path) -> None:
    done = selfcest("train", "-c", str(write(tmp_path)))
    assert done.returncode == 0, done.stderr
    for policy in ("delegating, after RL", "monolithic"):
        assert f"\nchoice  {policy}" in done.stdout
    run = tmp_path / "runs" / "t"
    files = {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()}
    job = "delegating/seed0"
    assert {"config.yaml", "table.md", "results.csv", "accuracy_vs_total_tokens.png"} <= files
    assert {f"{job}/metrics.jsonl", f"{job}/episodes.jsonl", f"{job}/model/config.json"} <= files
    assert any(name.startswith(f"{job}/tensorboard/") for name in files)
    again = selfcest("train", "-c", str(write(tmp_path)))
    assert again.returncode == 2
    assert "already holds a run; add --resume" in again.stderr
    resumed = selfcest("train", "-c", str(write(tmp_path)), "--resume")
    assert resumed.returncode == 0
    assert resumed.stdout.count("\nchoice ") == done.stdout.count("\nchoice ") == 2
    reported = selfcest("report", str(run))
    assert reported.stdout.count("\nchoice ") == done.stdout.count("\nchoice ") == 2
    traced = selfcest("trace", str(run / job / "episodes.jsonl"))
    assert "root" in traced.stdout
    study = tmp_path / "study.yaml"
    data = yaml.safe_load(STUDY)
    data |= {"output": str(tmp_path / "studies"), "policy": str(run / "delegating" / "seed{seed}" / "model")}
    study.write_text(yaml.safe_dump(data), encoding="utf-8")
    evaluated = selfcest("evaluate", "-c", str(study), "--page", str(tmp_path / "page.md"))
    assert "\nchoice  delegate " in evaluated.stdout
    assert "| choice | any | 80 | delegate |" in (tmp_path / "page.md").read_text(encoding="utf-8")
    assert selfcest("report", str(tmp_path / "studies" / "s")).stdout.count("\nchoice ") == 2
    assert "16/64 choice any: " in evaluated.stdout
    assert f"selfcest evaluate -c {study} --page" in (tmp_path / "page.md").read_text(encoding="utf-8")
    refused = selfcest("evaluate", "-c", str(study), "--resume", "--page", str(tmp_path))
    assert refused.returncode == 2
    assert "is a folder; expected the path of a file" in refused.stderr
    again = selfcest("evaluate", "-c", str(study), "--resume")
    assert "64 of 64 results are stored\n" in again.stdout
    other = selfcest("evaluate", "-c", str(study), "name=t", "episodes=4")
    assert other.returncode == 0, other.stderr
    both = selfcest("compare", str(tmp_path / "studies" / "s"), str(tmp_path / "studies" / "t"))
    assert "note: only" in both.stdout
    assert "delegate of s" in both.stdout


@pytest.mark.slow
def test_a_warm_start_ends_with_a_table_and_training_goes_on_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment, "_run_jobs", in_this_process)
    monkeypatch.setattr(report, "draw_frontiers", lambda *_: None)  # slow
    small = [
        f"variants.{variant}.warmstart.{key}=500" for variant in VARIANTS for key in ("phases.0.tokens", "pool_tokens")
    ]
    arguments = ["-c", str(write(tmp_path)), *small]
    accuracy = {}
    for command in (["warmstart"], ["train", "--resume"]):
        assert CliRunner().invoke(cli.app, [*command, *arguments]).exit_code == 0
        with (tmp_path / "runs" / "t" / "results.csv").open(encoding="utf-8") as file:
            accuracy[command[0]] = {row["strategy"]: row["accuracy"] for row in csv.DictReader(file)}
    assert accuracy["warmstart"].keys() == {"delegating, before RL", "monolithic"}
    assert accuracy["train"].keys() == {"delegating, before RL", "delegating, after RL", "monolithic"}
    assert accuracy["warmstart"].items() <= accuracy["train"].items()
    head, *jobs = CliRunner().invoke(cli.app, ["watch", str(tmp_path / "runs" / "t"), "--once"]).output.splitlines()
    assert head.endswith(": done")
    assert [job.split(", ")[:2] for job in jobs] == [[f"{variant}/seed0: done", "100%"] for variant in VARIANTS]
    assert re.search(r"return \S+, right 0\.\d\d, clones \S+, checkpoint rl_000002", jobs[0])


def in_this_process(
    config: RunConfig, jobs: list[JobId], only_warm_start: bool, display: object, stop: object, evaluator: Evaluator
) -> None:
    for job in jobs:
        experiment._run_job(config, job, only_warm_start, evaluator)


@pytest.mark.slow
def test_an_error_in_a_worker_reaches_the_user_as_one_line(tmp_path: Path) -> None:
    path = write(tmp_path)
    done = selfcest("train", "-c", str(path), "reward={name: correct, options: {mine: {name: 'trivial:Broken'}}}")
    assert done.returncode == 2
    assert "selfcest: " in done.stderr
    assert "seed0: reward term 'mine'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_run_killed_outright_resumes_to_the_same_table(tmp_path: Path) -> None:
    whole = selfcest("train", "-c", str(write(tmp_path)), "name=whole")
    assert whole.returncode == 0, whole.stderr
    command = [sys.executable, "-m", "selfcest_cli", "train", "-c", str(tmp_path / "c.yaml"), "name=killed"]
    victim = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    run = tmp_path / "runs" / "killed"
    deadline = time.monotonic() + 120
    while not list(run.glob("delegating/seed0/checkpoints/warmstart_*")):
        assert victim.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    time.sleep(2)  # its workers notice and end
    resumed = selfcest("train", "-c", str(tmp_path / "c.yaml"), "name=killed", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    whole_table, table = (timeless_table(tmp_path / "runs" / name / "results.csv") for name in ("whole", "killed"))
    assert whole_table == table


@pytest.mark.slow
def test_a_study_killed_outright_resumes_to_the_same_results(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    data = yaml.safe_load(STUDY)
    data |= {"output": str(tmp_path), "policy": {"name": "study_players:Scripted"}, "episodes": 300, "batch": 8}
    data |= {"tasks": {"range": {"name": "range_sum"}}, "eval_sets": [{"family": "range", "size": "any"}]}
    file.write_text(yaml.safe_dump(data), encoding="utf-8")
    whole = selfcest("evaluate", "-c", str(file), "name=whole")
    assert whole.returncode == 0, whole.stderr
    command = [sys.executable, "-m", "selfcest_cli", "evaluate", "-c", str(file), "name=killed"]
    victim = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    played, deadline = tmp_path / "killed" / "played.jsonl", time.monotonic() + 120
    while not played.exists() or played.stat().st_size < 100_000:
        assert victim.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    assert not (tmp_path / "killed" / "results.jsonl").exists()
    resumed = selfcest("evaluate", "-c", str(file), "name=killed", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    (num_stored,) = re.findall(r"^(\d+) of 2400 results are stored$", resumed.stdout, re.M)
    assert 0 < int(num_stored) < 2400

    def timeless(name: str) -> list[Result]:
        found = read_results(tmp_path / name / "results.jsonl", whole=True)
        return [replace(result, costs=result.costs and {**result.costs, "wall_seconds": 0.0}) for result in found]

    assert timeless("killed") == timeless("whole")
