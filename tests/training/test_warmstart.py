"""A warm start is judged at the end of its phases, and begins again if it has not learned: bounded, counted, said."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_job import PINNED, Crash, config, play, rows, weights

from selfcest_agents.language import language_of
from selfcest_agents.player import ModelPlayer
from selfcest_agents.rollout import RolloutRequest
from selfcest_agents.tiny import load_pretrained
from selfcest_env.errors import ConfigError
from selfcest_env.record import EpisodeRecord
from selfcest_env.reward import make_reward
from selfcest_env.seeding import stream_seed
from selfcest_env.tasks.splits import part_of
from selfcest_eval.report.jobs import describe_failed_warm_starts, describe_restarts, read_jobs
from selfcest_training.config import RunConfig
from selfcest_training.families import TEST_FRACTION, make_families
from selfcest_training.run.job import Job, JobId
from selfcest_training.stages.warmstart import Probe, play_demonstrations

BOTH = {"choice": {"share": 1, "styles": {"delegate": 1, "solve": 1}}}
DELEGATING = JobId("delegating", 0)


def hopeless(tmp_path: Path, attempts: int = 2, **changes: Any) -> RunConfig:
    """The config of `test_job` with a warm start of one phase and three pools that cannot learn."""
    warm_start = {
        "phases": [{"tokens": 3500, "mix": BOTH, "min_accuracy": 0.9}],
        "pool_tokens": 1200,
        "probe_episodes": 16,
        "optimizer": {"learning_rate": 1e-9},
        "max_attempts": attempts,
    }
    changes = {f"variants__delegating__warmstart__{name}": value for name, value in warm_start.items()} | changes
    return config(tmp_path, **{"variants__delegating__rl__steps": 1, **changes})


def shown(spec: RunConfig, pools: int) -> int:
    """Demonstration tokens of the first pools."""
    warm_start, families = spec.variants["delegating"].warmstart, make_families(spec.tasks, "train")
    language, reward = language_of(spec.model), make_reward(spec.reward.name)
    drawn = (
        play_demonstrations(language, spec.limits, reward, families, warm_start.phases[0], 0, pool, warm_start)
        for pool in range(pools)
    )
    return sum(len(sample) for samples in drawn for sample in samples)


@pytest.mark.slow
def test_a_warm_start_that_cannot_learn_begins_again_once_counts_twice_and_says_so(tmp_path: Path) -> None:
    spec, said = hopeless(tmp_path, attempts=2), list[tuple[str, str]]()
    job = Job(spec, DELEGATING, lambda stage, share, line: said.append((stage, line)))
    job.run(lambda: None, only_warm_start=True)
    assert job.state.attempt == 1
    pools = rows(job, "warmstart")
    assert [row["step"] for row in pools] == list(range(6)), "no pool is shown twice"
    assert job.state.trained_tokens == shown(spec, 6)
    probes = rows(job, "probe")
    assert [(row["step"], row["attempt"], row["phase"], row["passed"]) for row in probes] == [
        (2, 0, 0, False),
        (5, 1, 0, False),
    ]
    assert probes[0]["compute_tokens"] == 3 * shown(spec, 3) + probes[0]["sampled_tokens"]
    assert probes[1]["compute_tokens"] == job.state.compute_tokens == job.state.compute_at_rl
    assert 0 < probes[0]["sampled_tokens"] < probes[1]["sampled_tokens"] == job.state.sampled_at_rl
    assert all(first["cpu_seconds"] < second["cpu_seconds"] for first, second in pairwise(pools))
    assert {stage for stage, _ in said} == {"warm start"}
    lines = [line for _, line in said]
    assert [lines[0], lines[5]] == ["attempt 1 of 2", "attempt 2 of 2"]
    for probe in (lines[4], lines[9]):
        assert probe.startswith("phase 1: accuracy choice 0.")
        assert probe.endswith("required 0.9: failed")
    assert all(line.startswith("loss ") for line in (*lines[1:4], *lines[6:9]))
    assert len(lines) == 10
    wrong = [f"choice {row['accuracy/choice']:.2f} after phase 1" for row in probes]
    lost = probes[0]["compute_tokens"] / 1e6
    assert describe_restarts(read_jobs(spec)) == [
        f"delegating/seed0: the warm start began 2 times ({wrong[0]}); the discarded attempts cost {lost:.2f} M "
        "tokens of compute"
    ]
    assert warnings_of(spec) == [
        f"delegating/seed0: the warm start has not learned in 2 attempts, and was kept ({wrong[1]})"
    ]


def warnings_of(spec: RunConfig) -> list[str]:
    return describe_failed_warm_starts(read_jobs(spec), spec.compute_tokens)


def test_agents_of_other_roles_do_not_learn(tmp_path: Path) -> None:
    agents: dict[tuple[str, ...], set[str]] = {}
    for roles in (["root"], ["clone"], ["root", "clone"]):
        mix = {"choice": {"share": 1, "styles": {"delegate": 1}, "roles": roles}}
        spec = hopeless(tmp_path, variants__delegating__warmstart__phases=[{"tokens": 3500, "mix": mix}])
        warm_start = spec.variants["delegating"].warmstart
        samples = play_demonstrations(
            language_of(spec.model),
            spec.limits,
            make_reward(spec.reward.name),
            make_families(spec.tasks, "train"),
            warm_start.phases[0],
            0,
            0,
            warm_start,
        )
        assert sum(map(len, samples)) >= warm_start.pool_tokens
        agents[tuple(roles)] = {str(sample.agent_id) for sample in samples}
    assert agents["root",] == {"root"}
    assert agents["clone",] == {"root.0"}
    assert agents["root", "clone"] == {"root", "root.0"}


def test_demonstrations_without_an_agent_of_the_roles_are_refused(tmp_path: Path) -> None:
    mix = {"choice": {"share": 1, "styles": {"solve": 1}, "roles": ["clone"]}}
    spec = hopeless(tmp_path, variants__delegating__warmstart__phases=[{"tokens": 3500, "mix": mix}])
    with pytest.raises(ConfigError, match=r"mix\.choice\.roles is \['clone'\], and demonstrations in style 'solve'"):
        Job(spec, DELEGATING, lambda *_: None).check_demonstrations()


@pytest.mark.slow
def test_another_attempt_begins_with_other_weights(tmp_path: Path) -> None:
    """With a rate of 1e-9 the weights that come out are those that went in."""
    spec = hopeless(tmp_path, attempts=3)
    job = Job(spec, DELEGATING, lambda *_: None)
    begun: list[torch.Tensor] = []
    opened = job._open

    def watched() -> None:
        opened()
        begun.append(weights(job).clone())

    job._open = watched  # type: ignore[method-assign]
    job.run(lambda: None, only_warm_start=True)
    first, *_, last = begun
    assert len(begun) == 3
    plain = Job(config(tmp_path / "plain"), DELEGATING, lambda *_: None)
    plain._open()
    assert torch.equal(weights(plain), first), "the first attempt is what it would be without another"
    assert not any(torch.equal(*pair) for pair in pairwise(begun))
    assert float((weights(job) - last).abs().max()) < 1e-5


@pytest.mark.slow
def test_a_warm_start_that_has_learned_goes_on_as_if_nobody_had_looked(tmp_path: Path) -> None:
    """As the run that `test_job` has pinned, to the last token of RL."""
    phases = [{"tokens": 24000, "mix": BOTH, "min_accuracy": 0.9}]
    job = play(config(tmp_path, variants__delegating__warmstart__phases=phases, variants__delegating__rl__steps=3))
    (probe,) = rows(job, "probe")
    assert probe["passed"]
    assert probe["accuracy/choice"] >= 0.9
    assert job.state.sampled_at_rl == probe["sampled_tokens"] > 0
    found = [(row["return"], row["clones"], row["total_tokens"]) for row in rows(job)]
    assert np.array(found) == pytest.approx(np.array(PINNED[:3]), abs=1e-6)
    assert describe_restarts(read_jobs(job.config)) == warnings_of(job.config) == []


@pytest.mark.slow
def test_the_last_attempt_is_kept_and_all_its_phases_are_judged(tmp_path: Path) -> None:
    phases = [
        {"tokens": 1200, "mix": BOTH, "min_accuracy": 0.9},
        {"tokens": 1200, "mix": BOTH},
        {"tokens": 1200, "mix": BOTH, "min_accuracy": 0.8},
    ]
    spec = hopeless(tmp_path, attempts=2, variants__delegating__warmstart__phases=phases)
    job = play(spec)
    assert [(row["attempt"], row["phase"]) for row in rows(job, "probe")] == [(0, 0), (1, 0), (1, 2)]
    assert [row["step"] for row in rows(job, "warmstart")] == [0, 1, 2, 3]
    (line,) = warnings_of(spec)
    assert "after phase 1, choice 0." in line
    assert line.endswith("after phase 3)")
    assert len(rows(job)) == 1, "RL goes on all the same"


@pytest.mark.slow
def test_a_phase_that_a_pool_has_jumped_over_is_judged_too(tmp_path: Path) -> None:
    phases = [{"tokens": tokens, "mix": BOTH, "min_accuracy": 0.9} for tokens in (500, 500, 1000)]
    job = play(hopeless(tmp_path, attempts=1, variants__delegating__warmstart__phases=phases))
    assert [(row["step"], row["phase"]) for row in rows(job, "probe")] == [(0, 0), (0, 1), (1, 2)]
    assert warnings_of(job.config)[0].startswith(
        "delegating/seed0: the warm start has not learned in its one attempt, and was kept (choice 0."
    )


LORA = {"rank": 2, "alpha": 4, "target_modules": ["q_proj", "up_proj"]}


@pytest.mark.slow
@pytest.mark.parametrize(("count", "lora"), [(5, False), (7, False), (8, False), (8, True)])
def test_a_run_killed_around_a_new_beginning_resumes_to_the_same_end(
    twice: dict[bool, Job], tmp_path: Path, count: int, lora: bool
) -> None:
    """Between probe and new beginning, after its first pool, and after its first checkpoint."""
    whole, spec = twice[lora], hopeless(tmp_path, lora=LORA if lora else None)
    seen: list[str] = []

    def crash(now: str, share: float, line: str) -> None:
        seen.append(now)
        if seen.count("warm start") == count:
            raise Crash

    with pytest.raises(Crash):
        Job(spec, DELEGATING, crash).run(lambda: None)
    resumed = play(spec)
    assert torch.equal(weights(resumed), weights(whole))
    assert dataclasses.replace(resumed.state, cpu_seconds=0) == dataclasses.replace(whole.state, cpu_seconds=0)
    logs = [(job.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines() for job in (resumed, whole)]
    timeless = [[{**json.loads(line), "cpu_seconds": 0} for line in log] for log in logs]
    assert timeless[0] == timeless[1]


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Job]:
    """Runs that began twice, without and with an adapter. The checkpoints are of pools 2, 4 and 6."""
    folder = tmp_path_factory.mktemp("twice")
    return {lora: play(hopeless(folder / str(lora), lora=LORA if lora else None)) for lora in (False, True)}


@pytest.mark.slow
@pytest.mark.parametrize("lora", [False, True])
def test_what_is_handed_to_rl_stands_on_the_weights_of_the_last_attempt(twice: dict[bool, Job], lora: bool) -> None:
    job = twice[lora]
    found, _ = load_pretrained(job.folder / "warmstart_model")
    first, second = (job.language.load(stream_seed("weights", 0, *again)) for again in ((), (1,)))
    gaps = [
        max(float((a - b).detach().abs().max()) for a, b in zip(found.parameters(), other.parameters(), strict=True))
        for other in (first, second)
    ]
    assert gaps[0] > 0.01
    assert gaps[1] < 1e-5


@pytest.mark.slow
def test_what_a_warm_start_sampled_is_not_taken_from_the_sampled_tokens_of_rl(tmp_path: Path) -> None:
    budget = {"variants__delegating__rl__sampled_tokens": 600, "variants__delegating__rl__steps": 1000}
    plain, probed = (
        play(
            hopeless(
                tmp_path / str(learned),
                variants__delegating__warmstart__phases=[{"tokens": 1200, "mix": BOTH, "min_accuracy": learned}],
                variants__delegating__warmstart__probe_episodes=32,
                **budget,
            )
        )
        for learned in (None, 0)
    )
    assert probed.state.sampled_at_rl > 600
    assert probed.state.rl_sampled_tokens == plain.state.sampled_tokens >= 600
    assert torch.equal(weights(plain), weights(probed))
    assert rows(probed, "probe")[0]["passed"], "0 asks for nothing, and measures"


@pytest.mark.slow
def test_a_budget_that_the_warm_start_has_used_leaves_no_rl_and_says_so(tmp_path: Path) -> None:
    spec = hopeless(tmp_path, attempts=3, compute_tokens=20_000)
    job = play(spec)
    assert rows(job) == []
    warning = "delegating/seed0: the warm start used all of compute_tokens = 20000, so there is no RL"
    assert warning in warnings_of(spec)


# One probe

ONE_DIGIT = {"min_operations": 1, "max_operations": 1, "min_digits": 1, "max_digits": 1, "times": 0}


@pytest.mark.slow
def test_a_probe_plays_training_instances_of_every_family_greedily_under_the_limits_of_the_phase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mix = {**BOTH, "sums": {"share": 1, "styles": {"solve": 1}}, "absent": {"share": 0, "styles": {"solve": 1}}}
    tasks = {
        "choice": {"name": "trivial:Choice"},
        "sums": {"name": "arithmetic", "options": ONE_DIGIT},
        "absent": {"name": "trivial:Choice"},
    }
    phases = [{"tokens": 16000, "mix": mix, "limits": {"total_tokens": 70}, "min_accuracy": 0.5}]
    sizes = {"variants__delegating__warmstart__max_attempts": 1, "variants__delegating__warmstart__probe_episodes": 20}
    spec = config(tmp_path, tasks=tasks, variants__delegating__warmstart__phases=phases, **sizes)
    played: list[tuple[RolloutRequest, EpisodeRecord]] = []
    play = ModelPlayer.play

    def watched(self: ModelPlayer, requests: Sequence[RolloutRequest], temperature: float) -> list[EpisodeRecord]:
        assert temperature == 0
        records = play(self, requests, temperature)
        played.extend(zip(requests, records, strict=True))
        return records

    monkeypatch.setattr(ModelPlayer, "play", watched)
    job = Job(spec, DELEGATING, lambda *_: None)
    job.run(lambda: None, only_warm_start=True)
    assert [request.task.source for request, _ in played] == ["choice"] * 20 + ["arithmetic"] * 20
    assert {request.limits and request.limits.total_tokens for request, _ in played} == {70}
    assert {part_of(request.task, TEST_FRACTION) for request, _ in played} == {"train"}
    assert len({request.seed for request, _ in played}) == len({request.episode_id for request, _ in played}) == 40
    right = [record.answer == request.task.answer for request, record in played]
    (probe,) = rows(job, "probe")
    assert (probe["accuracy/choice"], probe["accuracy/sums"]) == (sum(right[:20]) / 20, sum(right[20:]) / 20)
    assert probe["accuracy/choice"] >= 0.5 > probe["accuracy/sums"], "or one of the two does not matter here"
    assert not probe["passed"], "every family must have been learned"
    assert "accuracy/absent" not in probe
    assert probe["sampled_tokens"] == sum(record.cost.generated_tokens for _, record in played)
    (line,) = warnings_of(spec)
    assert "sums 0." in line
    assert "choice" not in line, "it has been learned"


@pytest.mark.parametrize(("accuracy", "passed"), [((0.9, 1.0), True), ((0.89, 1.0), False), ((1.0, 0.0), False)])
def test_a_probe_passes_where_every_family_does(accuracy: tuple[float, float], passed: bool) -> None:
    probe = Probe(1, 0.9, dict(zip(("a", "b"), accuracy, strict=True)), 5)
    assert probe.passed is passed
    assert str(probe) == (
        f"phase 2: accuracy a {accuracy[0]:.2f}, b {accuracy[1]:.2f}; required 0.9: {'passed' if passed else 'failed'}"
    )


def test_what_a_probe_plays_must_fit_the_engine(tmp_path: Path) -> None:
    sampler = {"name": "trivial:Served", "options": {"max_positions": 85}}
    phase = {"tokens": 4000, "mix": BOTH, "limits": {"total_tokens": 90}}
    changes = {"sampler": sampler, "variants__delegating__warmstart__phases": [phase]}
    Job(config(tmp_path, **changes), DELEGATING, lambda *_: None)  # nothing is sampled there
    changes = {"sampler": sampler, "variants__delegating__warmstart__phases": [{**phase, "min_accuracy": 0.9}]}
    with pytest.raises(ConfigError, match=r"delegating.warmstart.phases\[0\]: contexts of 90 tokens could outgrow"):
        Job(config(tmp_path, **changes), DELEGATING, lambda *_: None)
