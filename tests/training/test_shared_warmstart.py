"""A warm start that is handed over is the one that the variant would have trained; curves of what came after."""

from __future__ import annotations

import csv
import dataclasses
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from test_cli import ENVIRONMENT, selfcest, timeless_table
from test_job import config, play, rows, weights

from selfcest_eval.report.figures import draw_learning_curves
from selfcest_eval.report.jobs import read_jobs
from selfcest_eval.report.learning import average_ends, compute_return_curves, describe_returns, write_learning_csv
from selfcest_training.config import EvalSet, EvaluationConfig, RunConfig
from selfcest_training.config_file import dump_config, load_config
from selfcest_training.run.job import Job, JobId
from selfcest_training.run.shared_warmstart import copy_warm_start, find_shared_warm_starts

CONFIGS = Path(__file__).parents[2] / "training" / "configs"


def two_variants(output: Path, **changes: Any) -> RunConfig:
    """`delegating`, and `other` with the same warm start and another credit."""
    spec = config(output, variants__delegating__rl__steps=3, **changes)
    variant = spec.variants["delegating"]
    other = dataclasses.replace(
        variant, rl=dataclasses.replace(variant.rl, credit=dataclasses.replace(variant.rl.credit, name="rloo"))
    )
    return dataclasses.replace(spec, variants={**spec.variants, "other": other})


def run(spec: RunConfig, variant: str, only_warm_start: bool = False) -> Job:
    job = Job(spec, JobId(variant, 0), lambda *_: None)
    job.run(lambda: None, only_warm_start)
    return job


@pytest.mark.slow
@pytest.mark.parametrize("attempts", [1, 2])
def test_a_handed_over_warm_start_is_what_the_variant_would_have_trained(tmp_path: Path, attempts: int) -> None:
    """Also if it began again: a model that has seen so little does not get everything right."""
    mix = {"choice": {"share": 1, "styles": {"delegate": 1, "solve": 1}}}
    phases = [{"tokens": 5000, "mix": mix, "min_accuracy": 1.0 if attempts > 1 else None}]
    short = {
        "variants__delegating__warmstart__phases": phases,
        "variants__delegating__warmstart__max_attempts": attempts,
        "variants__delegating__warmstart__optimizer": {"learning_rate": 1e-3},
    }
    alone = run(two_variants(tmp_path / "alone", **short), "other")
    spec = two_variants(tmp_path / "shared", **short)
    leader, follower = JobId("delegating", 0), JobId("other", 0)
    assert find_shared_warm_starts(spec) == {leader: [follower]}
    run(spec, "delegating", only_warm_start=True)
    copy_warm_start(spec, leader, follower)
    assert find_shared_warm_starts(spec) == {}, "nobody waits any more"
    job = run(spec, "other")
    assert torch.equal(weights(job), weights(alone))
    assert (job.folder / "warmstart_model" / "model.safetensors").is_file()
    assert job.state.trained_tokens == alone.state.trained_tokens
    assert job.state.sampled_tokens == alone.state.sampled_tokens
    assert job.state.attempt == attempts - 1
    for stage in ("warmstart", "rl"):
        assert [row["loss"] for row in rows(job, stage)] == [row["loss"] for row in rows(alone, stage)]
    assert len(rows(job, "probe")) == (attempts if attempts > 1 else 0)
    # The leader goes on from its own; once it is in RL it has nothing to hand over to one who starts again.
    assert torch.equal(weights(run(spec, "delegating")), weights(play(two_variants(tmp_path / "leader", **short))))
    shutil.rmtree(job.folder)
    assert find_shared_warm_starts(spec) == {}


def test_variants_with_other_limits_or_phases_share_nothing() -> None:
    assert find_shared_warm_starts(load_config(CONFIGS / "quick.yaml")) == {}
    assert find_shared_warm_starts(load_config(CONFIGS / "three_arms_3seeds.yaml")) == {}


def test_the_credit_config_shares_one_warm_start_per_seed() -> None:
    spec = load_config(CONFIGS / "credit.yaml")
    shared = {str(leader): [job.variant for job in jobs] for leader, jobs in find_shared_warm_starts(spec).items()}
    assert shared == {f"grpo/seed{seed}": ["gated", "coma", "difference"] for seed in (0, 1, 2)}
    first, *others = spec.variants.values()
    plain = dataclasses.replace(first.rl, credit=others[0].rl.credit)
    assert all(dataclasses.replace(variant.rl, credit=others[0].rl.credit) == plain for variant in others), (
        "credit alone differs"
    )
    assert {variant.rl.credit.name for variant in spec.variants.values()} == set(spec.variants)
    assert {variant.rl.sampled_tokens for variant in spec.variants.values()} == {500_000}


@pytest.mark.slow
def test_a_run_with_a_shared_warm_start_is_killed_and_resumes_to_the_same_files(tmp_path: Path) -> None:
    spec = two_variants(tmp_path)
    eval_sets = EvaluationConfig((EvalSet("choice", "any"),), episodes=8)
    file = tmp_path / "c.yaml"
    file.write_text(dump_config(dataclasses.replace(spec, evaluation=eval_sets)), encoding="utf-8")
    whole = selfcest("train", "-c", str(file), "name=whole")
    assert whole.returncode == 0, whole.stderr
    command = [sys.executable, "-m", "selfcest_cli", "train", "-c", str(file), "name=killed"]
    for found in ("delegating/seed0/checkpoints/warmstart_*", "other/seed0/checkpoints/rl_*"):
        victim = subprocess.Popen([*command, "--resume"], env=ENVIRONMENT, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 240
        while not list((tmp_path / "killed").glob(found)):
            assert victim.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        time.sleep(2)  # its workers notice and end
    resumed = selfcest("train", "-c", str(file), "name=killed", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    tables = [timeless_table(tmp_path / name / "results.csv") for name in ("whole", "killed")]
    assert tables[0] == tables[1]
    for name in ("other/seed0/episodes.jsonl", "delegating/seed0/episodes.jsonl"):
        assert (tmp_path / "killed" / name).read_text() == (tmp_path / "whole" / name).read_text()


# Curves


def write_metrics(folder: Path, steps: list[tuple[float, int, int]]) -> None:
    """(return, tokens of the episodes, tokens of replays) of each step."""
    folder.mkdir(parents=True)
    used = {"step": 0, "sampled_tokens": 77, "compute_tokens": 0, "cpu_seconds": 0.0}
    probed = {**used, "stage": "probe", "attempt": 0, "phase": 0, "threshold": 0.0, "passed": True}
    sampled, lines = 77, [json.dumps({**used, "stage": "warmstart", "sampled_tokens": 0}), json.dumps(probed)]
    for step, (value, tokens, replayed) in enumerate(steps):
        sampled += tokens + replayed
        made = {"step": step, "return": value, "sampled_tokens": sampled, "replayed_tokens": replayed}
        lines.append(json.dumps({**used, **made, "stage": "rl"}))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_curves_by_hand(tmp_path: Path) -> None:
    spec = dataclasses.replace(config(tmp_path), seeds=(0, 1))
    assert read_jobs(spec) == []
    write_metrics(spec.folder / "delegating" / "seed0", [(0.0, 40, 10), (1.0, 50, 0), (0.5, 250, 250), (1.0, 400, 0)])
    write_metrics(spec.folder / "delegating" / "seed1", [(0.25, 100, 0), (0.5, 500, 0), (0.0, 400, 0)])
    jobs = read_jobs(spec)
    assert [job.replay_share for job in jobs] == [260 / 1000, 0]
    (curve,) = compute_return_curves(jobs)
    # The fourth step is only of seed 0, so no mean over both seeds has it.
    assert [bin_.seeds for bin_ in curve.bins] == [(0.0, 0.25), (1.0, 0.5), (0.5, 0.0)]
    assert [bin_.sampled for bin_ in curve.bins] == [75, 350, 800]
    half = 12.7062 * 0.125
    assert curve.bins[0].estimate.high == pytest.approx(0.125 + half, abs=1e-4)
    (line,) = describe_returns(jobs)
    assert line == (
        "delegating: return 0.12 [-1.46, 1.71] over the first tenth of its steps, 0.25 [-2.93, 3.43] over the last; "
        "4 steps, 13% of its tokens in replays"
    )
    write_learning_csv([curve], tmp_path / "c.csv")
    with (tmp_path / "c.csv").open(encoding="utf-8") as file:
        assert list(csv.reader(file))[:3] == [
            ["variant", "metric", "seed", "step", "sampled_tokens", "value"],
            ["delegating", "return", "0", "0.0", "75.0", "0.0"],
            ["delegating", "return", "1", "0.0", "75.0", "0.25"],
        ]
    draw_learning_curves([curve], ["return"], [tmp_path / "c.png"])
    assert (tmp_path / "c.png").stat().st_size > 1000


def test_the_first_and_the_last_tenth_are_means_over_several_bins(tmp_path: Path) -> None:
    spec = config(tmp_path)
    write_metrics(spec.folder / "delegating" / "seed0", [(float(step), 10, 0) for step in range(20)])
    (curve,) = compute_return_curves(read_jobs(spec))
    first, last = average_ends(curve)
    assert (first.mean, last.mean) == (0.5, 18.5)


def test_a_job_that_sampled_nothing_has_no_share_of_replays(tmp_path: Path) -> None:
    spec = config(tmp_path)
    write_metrics(spec.folder / "delegating" / "seed0", [(0.0, 0, 0)])  # as where no prompt fits
    (job,) = read_jobs(spec)
    assert job.replay_share == 0
