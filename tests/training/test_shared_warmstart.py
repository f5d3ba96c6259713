"""Shared phases of warm starts are those that the variant would have trained; curves of the training after them."""

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
from selfcest_eval.report.learning import compute_return_curves, describe_returns, write_learning_csv
from selfcest_training.config import EvalSet, EvaluationConfig, RunConfig
from selfcest_training.config_file import dump_config, load_config
from selfcest_training.run import experiment
from selfcest_training.run.checkpoint import TrainState, list_checkpoints, read_state
from selfcest_training.run.job import Job, JobId
from selfcest_training.run.shared_warmstart import SharedPhases, find_leader, find_shared_phases

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
    phases = [phase(5000, min_accuracy=1.0 if attempts > 1 else None)]
    short = {
        "variants__delegating__warmstart__phases": phases,
        "variants__delegating__warmstart__max_attempts": attempts,
        "variants__delegating__warmstart__optimizer": {"learning_rate": 1e-3},
    }
    alone = run(two_variants(tmp_path / "alone", **short), "other")
    spec = two_variants(tmp_path / "shared", **short)
    assert find_leader(spec, "other", 0) == "delegating"
    assert find_leader(spec, "delegating", 0) is None
    run(spec, "delegating", only_warm_start=True)
    assert find_leader(spec, "other", 0) is None, "nobody waits any more"
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
    assert find_leader(spec, "other", 0) is None


def mix(**styles: int) -> dict[str, Any]:
    return {"choice": {"share": 1, "styles": styles}}


def phase(tokens: int, **changes: Any) -> dict[str, Any]:
    return {"tokens": tokens, "mix": mix(delegate=1, solve=1), **changes}


def with_phases(output: Path, first: list[dict[str, Any]], second: list[dict[str, Any]], **changes: Any) -> RunConfig:
    """Two variants with these phases, `delegating` and `other`, which may never delegate in RL."""
    limits = {"max_depth": 0, "max_clones": 0}
    changes |= {"variants__delegating__rl__steps": 0, "variants__delegating__warmstart__pool_tokens": 1500}
    short = config(output, variants__delegating__warmstart__phases=first, **changes)
    other = config(output, variants__delegating__warmstart__phases=second, **changes)
    answering = dataclasses.replace(other.variants["delegating"], limits=limits)
    return dataclasses.replace(short, variants={**short.variants, "other": answering})


CLONES = {"max_depth": 1, "max_clones": 1}
SHARED = [phase(4000, limits=CLONES), phase(2000, mix=mix(solve=1), limits=CLONES)]
FIRST = [*SHARED, phase(3000)]
ANSWERS = phase(3000, mix=mix(solve=1))
SECOND = [*SHARED, ANSWERS]


def assert_same_warm_start(folders: list[Path]) -> None:
    models = [(folder / "model" / "model.safetensors").read_bytes() for folder in folders]
    assert models[0] == models[1]
    logs = [[json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()] for folder in folders]
    for row in (*logs[0], *logs[1]):
        del row["cpu_seconds"]
    assert logs[0] == logs[1]


@pytest.mark.slow
def test_shared_first_phases_are_what_the_variant_would_have_trained(tmp_path: Path) -> None:
    """The pools of 1500 tokens overlap the ends of phases, and there are fewer checkpoints than pools."""
    alone = run(with_phases(tmp_path / "alone", FIRST, SECOND, checkpoint_every=3), "other")
    spec = with_phases(tmp_path / "shared", FIRST, SECOND, checkpoint_every=3)
    assert find_leader(spec, "other", 0) == "delegating"
    leader = run(spec, "delegating")
    (handed_over,) = list_checkpoints(spec.job_folder("other", 0) / "checkpoints")
    assert 6000 <= read_state(handed_over).demonstration_tokens < leader.state.demonstration_tokens
    assert find_leader(spec, "other", 0) is None
    assert_same_warm_start([alone.folder, run(spec, "other").folder])


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_starts_a_job_when_its_shared_phases_are_trained(tmp_path: Path, workers: int) -> None:
    alone = run(with_phases(tmp_path / "alone", FIRST, SECOND), "other")
    spec = with_phases(tmp_path / "shared", FIRST, SECOND, workers=workers)
    experiment.run(spec, resume=False)
    assert_same_warm_start([alone.folder, spec.job_folder("other", 0)])
    # The follower has not trained the shared phases: the compute of its log includes that of the leader.
    first_rows = []
    for variant in ("delegating", "other"):
        first_rows.append((spec.job_folder(variant, 0) / "metrics.jsonl").read_text().splitlines()[0])
    assert first_rows[0] == first_rows[1]


def test_phases_are_shared_up_to_the_first_difference() -> None:
    probed = [{**SHARED[0], "min_accuracy": 0.0}, SHARED[1]]
    turned = {"share": 1, "styles": {"solve": 1, "delegate": 1}}
    decaying = {"variants__delegating__warmstart__optimizer": {"decay_share": 0.5}}
    for first, second, changes, tokens in [
        (FIRST, SECOND, {}, 6000),
        (FIRST, [*SHARED, phase(9000, limits=CLONES)], {}, 6000),  # without decay the learning rate is that of the step
        (FIRST, [*SHARED, phase(9000, limits=CLONES)], decaying, None),
        (FIRST, SECOND, decaying, 6000),
        ([ANSWERS, *FIRST], [ANSWERS, *SECOND], {}, None),  # under other limits
        (FIRST, [{**SHARED[0], "mix": {"choice": turned}}, *SECOND[1:]], {}, None),  # another order of draws
        ([*probed, FIRST[2]], [*probed, SECOND[2]], {}, None),  # a failed probe begins again
        (probed, probed, {}, 6000),  # as both of them do
        ([SHARED[0], probed[0], FIRST[2]], [SHARED[0], probed[0], SECOND[2]], {}, 4000),
        (SHARED, SECOND, {}, 6000),
    ]:
        shared = find_shared_phases(with_phases(Path("runs"), first, second, **changes))
        assert [pair.tokens for pair in shared] == ([] if tokens is None else [tokens])
        assert all(pair.whole == (len(first) == len(second) == 2) for pair in shared)


@pytest.mark.parametrize(
    ("whole", "progress", "ahead"),
    [
        (False, {"demonstration_tokens": 5999}, True),
        (False, {"demonstration_tokens": 6000}, False),
        (False, {"demonstration_tokens": 0, "attempt": 1}, False),
        (True, {"demonstration_tokens": 0, "attempt": 1}, True),
        (True, {"demonstration_tokens": 0, "stage": "rl"}, False),
    ],
)
def test_a_leader_is_ahead_of_phases_that_it_will_train(whole: bool, progress: dict[str, Any], ahead: bool) -> None:
    assert SharedPhases("delegating", "other", 6000, whole).are_ahead_of(TrainState(**progress)) == ahead


def test_shipped_configs_share_their_equal_phases() -> None:
    quick = find_shared_phases(load_config(CONFIGS / "quick.yaml"))
    assert quick == [SharedPhases("delegating", "reading", 1_250_000, False)]
    assert find_shared_phases(load_config(CONFIGS / "three_arms_3seeds.yaml")) == []


def test_the_credit_config_shares_one_warm_start_per_seed() -> None:
    spec = load_config(CONFIGS / "credit.yaml")
    followers = ["gated", "coma", "difference"]
    assert find_shared_phases(spec) == [SharedPhases("grpo", name, 1_200_000, True) for name in followers]
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


def test_the_first_and_the_last_tenth_are_means_over_steps(tmp_path: Path) -> None:
    spec = config(tmp_path)
    write_metrics(spec.folder / "delegating" / "seed0", [(float(step), 10, 0) for step in range(90)])
    (curve,) = compute_return_curves(read_jobs(spec))
    assert (curve.first.mean, curve.last.mean) == (4.0, 85.0), "0 to 8, and 81 to 89"
    assert [len(curve.bins), curve.bins[0].step, curve.bins[-1].step] == [45, 0.5, 88.5], "two steps in every bin"


def test_a_job_that_sampled_nothing_has_no_share_of_replays(tmp_path: Path) -> None:
    spec = config(tmp_path)
    write_metrics(spec.folder / "delegating" / "seed0", [(0.0, 0, 0)])  # as where no prompt fits
    (job,) = read_jobs(spec)
    assert job.replay_share == 0
