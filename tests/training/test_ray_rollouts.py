"""Rollout workers on Ray, in the environment that has it: they play what one process plays, whoever dies."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
import torch
import yaml
from test_cli import ENVIRONMENT, PYTHONPATH
from test_job import config, play, rows, weights

from selfcest_agents.language import language_of
from selfcest_agents.lora import merged_weights
from selfcest_agents.player import ModelPlayer
from selfcest_agents.rollout import RolloutRequest
from selfcest_agents.samplers import TransformersSampler
from selfcest_env.errors import InfrastructureError, PolicyError, RewardError
from selfcest_env.record import EpisodeRecord, read_episodes
from selfcest_env.types import Task
from selfcest_training.cluster.config import ClusterConfig
from selfcest_training.cluster.connection import connected
from selfcest_training.cluster.rollouts import RolloutPool, RolloutWorkers
from selfcest_training.config import RunConfig
from selfcest_training.config_file import dump_config
from selfcest_training.run.checkpoint import list_checkpoints
from selfcest_training.run.job import Job, JobId
from selfcest_training.stages.warmstart import Pool

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow
OWN = {"name": "transformers", "options": {"dtype": "float32"}}
PHASE = {"tokens": 8000, "mix": {"choice": {"share": 1, "styles": {"delegate": 1, "solve": 1}}}}
SHORT: dict[str, Any] = {
    "workers": 1,
    "sampler": OWN,
    "variants__delegating__warmstart__phases": [PHASE],
    "variants__delegating__rl__steps": 4,
    "variants__delegating__rl__tasks_per_step": 8,
    "log_groups": 8,
    "checkpoint_every": 1,
}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of a cluster of this machine, whose workers find the tests' plug-ins."""
    torch.set_num_threads(1)
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    try:
        with connected(ClusterConfig()) as cluster:
            assert cluster.address is not None
            yield cluster.address
    finally:
        os.environ["PYTHONPATH"] = before


def on(address: str, **changes: Any) -> dict[str, Any]:
    return {"cluster": {"address": address, "rollout_workers": 2, "rollout_resources": {"CPU": 0.5}, **changes}}


def episodes(job: Job) -> list[EpisodeRecord]:
    return list(read_episodes(job.folder / "episodes.jsonl"))


def assert_same_tokens(found: Sequence[EpisodeRecord], expected: Sequence[EpisodeRecord]) -> None:
    """Every token is the same, and log-probs differ by the rounding of other batches alone."""
    assert [record.episode_id for record in found] == [record.episode_id for record in expected]
    for one, other in zip(found, expected, strict=True):
        assert [key for key, _ in one.turns()] == [key for key, _ in other.turns()]
        for (_, turn), (_, known) in zip(one.turns(), other.turns(), strict=True):
            assert turn.generation.token_ids == known.generation.token_ids
            assert turn.generation.policy_version == known.generation.policy_version
            assert turn.generation.behavior_logprobs == pytest.approx(known.generation.behavior_logprobs, abs=5e-5)
        assert one.reward_terms == other.reward_terms


def assert_same_weights(found: Job, expected: Job) -> None:
    """Up to the rounding of other batches.

    Adam divides each entry of a gradient by its own size, so one that cancels to its rounding may move either way, by
    the learning rate. There are a dozen such among 8,320, others on another kind of processor. With weights that are a
    step apart hardly any entry agrees.
    """
    (variant,) = found.config.variants.values()
    assert variant.rl is not None
    difference = (weights(found) - weights(expected)).abs()
    assert float(difference.quantile(0.99)) <= 1e-6
    assert float(difference.max()) <= variant.rl.optimizer.learning_rate


def count_differing(found: Job, expected: Job, prefix: str) -> int:
    """Return how many episodes of a step have other tokens."""
    count = 0
    for record, other in zip(episodes(found), episodes(expected), strict=True):
        if record.episode_id.startswith(prefix):
            turns = [turn.generation.token_ids for _, turn in record.turns()]
            count += turns != [turn.generation.token_ids for _, turn in other.turns()]
    return count


def assert_same_training(found: Job, expected: Job) -> None:
    """Two jobs train alike, up to rounding, until rounding moves the draw of a token.

    Other batches change log-probs by about 1e-6, and the weights after a step by what `assert_same_weights` says. On
    some processors a draw of a later step then falls on the other side of a boundary. It inverts a cumulative sum, so
    it gives a neighbouring id. From there on the runs are two samples.
    """
    num_same_steps = len(rows(expected))
    for record, other in zip(episodes(found), episodes(expected), strict=True):
        assert record.episode_id == other.episode_id
        tokens = [turn.generation.token_ids for _, turn in record.turns()]
        other_tokens = [turn.generation.token_ids for _, turn in other.turns()]
        if tokens != other_tokens:
            num_same_steps = int(record.episode_id.split(".")[0].removeprefix("s"))
            assert num_same_steps > 0, "before the first update both have the same weights"
            pairs_of_ids = zip(chain(*tokens), chain(*other_tokens), strict=False)  # one may be longer from there on
            token_id, other_id = next((a, b) for a, b in pairs_of_ids if a != b)
            assert abs(token_id - other_id) <= 2, "no neighbours"
            num_differing = count_differing(found, expected, f"s{num_same_steps}.")
            assert num_differing <= 3, "of 64 episodes; other weights would change most of them"
            break
    else:
        assert_same_tokens(episodes(found), episodes(expected))
        assert_same_weights(found, expected)
    pairs = list(zip(rows(found), rows(expected), strict=True))
    for row, other_row in pairs[:num_same_steps]:
        assert row["grad_norm"] == pytest.approx(other_row["grad_norm"], rel=1e-4)
    assert all(row["logprob_gap"] < 1e-4 for row, _ in pairs)


@contextmanager
def killed(monkeypatch: pytest.MonkeyPatch, i: int, when: Callable[[str], bool]) -> Iterator[None]:
    """Worker `i` gets no further than the call whose first episode is so named, and is killed in it."""
    ask, done = RolloutWorkers._call, []

    def asking(self: RolloutWorkers, method: str, parts: Sequence[tuple[Any, ...]], judged: bool) -> list[Any]:
        first = parts[0][0][0].episode_id
        if not done and when(first):
            done.append(first)
            os.kill(self.facts[i].pid, signal.SIGSTOP)
            Timer(0.3, os.kill, (self.facts[i].pid, signal.SIGKILL)).start()
        return ask(self, method, parts, judged)

    with monkeypatch.context() as patch, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        patch.setattr(RolloutWorkers, "_call", asking)
        yield
    assert done
    assert [f"rollout worker {i} died; another plays" in str(one.message) for one in said].count(True) == 1


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Four steps of 64 episodes in one process."""
    return play(config(tmp_path_factory.mktemp("alone"), **SHORT))


@pytest.fixture(scope="module")
def hit(address: str, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """The same on two workers, of which one is killed in step 2."""
    spec = config(tmp_path_factory.mktemp("hit"), **SHORT, **on(address))
    with pytest.MonkeyPatch.context() as patch, killed(patch, 1, lambda name: name.startswith("s2.")):
        job = play(spec)
    assert isinstance(job.sampler, RolloutWorkers)
    assert job.sampler.replaced == 1
    job.close()
    return job


def test_two_workers_of_whom_one_is_killed_train_as_one_process(alone: Job, hit: Job) -> None:
    assert len(episodes(hit)) == 4 * 64
    assert_same_training(hit, alone)


def workers_of(spec: RunConfig) -> RolloutPool:
    """What a job plays with, without its training."""
    job = Job(spec, JobId("delegating", 0), lambda *_: None)
    job.model = job.language.load(0)
    player = job._make_player()
    assert isinstance(player, RolloutPool)
    return player


def test_a_part_is_played_again_with_the_weights_of_its_step(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fresh actor has initial weights. If these were its state and no argument of the call, it would play them."""
    spec = config(tmp_path, **SHORT, **on(address))
    pool, language = workers_of(spec), language_of(spec.model)
    requests = [RolloutRequest(f"e{i}", Task(f"t{i % 4}", f"{i % 4}?", "1", "x"), i) for i in range(32)]
    with pytest.raises(PolicyError, match="no weights"):
        pool.play(requests, 1.0)
    here = ModelPlayer(language, TransformersSampler("float32").start(language, None), limits=spec.limits)
    played = {}
    for version, seed in ((1, 11), (2, 22)):
        given = list(merged_weights(language.load(seed)))
        pool.sampler.push(given, version)
        here.sampler.push(given, version)
        played[version] = pool.without_reward().play(requests, 1.0)
        assert_same_tokens(played[version], here.play(requests, 1.0))
    assert played[1] != played[2]
    for i in range(2):
        with killed(monkeypatch, i, lambda _: True):
            again = pool.without_reward().play(requests, 1.0)
        assert again == played[2], "bit for bit, and with their version"
        assert {turn.generation.policy_version for record in again for _, turn in record.turns()} == {2}
        pool.sampler.facts[i] = ray.get(pool.sampler._actors[i].start.remote())
    assert pool.sampler.replaced == 2
    pool.close()


def test_replays_go_through_the_same_workers(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {**SHORT, "variants__delegating__rl__steps": 2, "variants__delegating__rl__credit__name": "difference"}
    one = play(config(tmp_path / "one", **changes))
    spec, calls = config(tmp_path / "two", **changes, **on(address)), list[str]()
    monkeypatch.setattr(RolloutWorkers, "call", _noting(calls))
    two = play(spec)
    two.close()
    assert calls.count("play_replays") == 2
    found = episodes(two)
    assert sum("=" in record.episode_id for record in found) > 0
    assert_same_tokens(found, episodes(one))
    assert_same_weights(two, one)


def _noting(calls: list[str]) -> Callable[..., list[Any]]:
    ask = RolloutWorkers.call

    def asking(self: RolloutWorkers, method: str, parts: Sequence[tuple[Any, ...]], judged: bool) -> list[Any]:
        calls.append(method)
        return ask(self, method, parts, judged)

    return asking


def test_rollouts_run_ahead_of_the_learner_in_order(address: str, tmp_path: Path) -> None:
    changes = {**SHORT, "variants__delegating__rl__max_staleness": 1}
    one, two = play(config(tmp_path / "one", **changes)), play(config(tmp_path / "two", **changes, **on(address)))
    two.close()
    assert [row["policy_lag"] for row in rows(two)] == [0, 1, 1, 1]
    assert_same_tokens(episodes(two), episodes(one))
    assert_same_weights(two, one)


def test_steps_that_overlap_play_what_they_play_one_after_another(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit on as many workers; and the same tokens on one, and in one process."""
    under_way, most, ask = Counter[int](), Counter[int](), RolloutWorkers.call

    def asking(self: RolloutWorkers, method: str, parts: Sequence[tuple[Any, ...]], judged: bool) -> list[Any]:
        under_way[0] += 1
        most[0] = max(most[0], under_way[0])
        try:
            return ask(self, method, parts, judged)
        finally:
            under_way[0] -= 1

    monkeypatch.setattr(RolloutWorkers, "call", asking)
    changes, jobs = {**SHORT, "variants__delegating__rl__max_staleness": 1}, {}
    quarter = {"rollout_resources": {"CPU": 0.25}}
    for name, cluster in {
        "here": {},
        "apart": on(address, **quarter),
        "overlapped": on(address, **quarter, overlap=True),
        "overlapped, alone": on(address, **quarter, overlap=True, rollout_workers=1),
    }.items():
        most.clear()
        jobs[name] = play(config(tmp_path / name, **changes, **cluster))
        jobs[name].close()
        assert most[0] == (0 if name == "here" else 1 + ("overlapped" in name)), name
    found = jobs["overlapped"]
    assert [row["policy_lag"] for row in rows(found)] == [0, 1, 1, 1]
    assert episodes(found) == episodes(jobs["apart"])
    assert torch.equal(weights(found), weights(jobs["apart"]))
    for other in ("here", "overlapped, alone"):
        assert_same_tokens(episodes(jobs[other]), episodes(found))
    assert len(found._other_processes) == 2


def test_what_a_judge_could_not_judge_is_played_again(address: str, tmp_path: Path) -> None:
    judge = {"name": "flaky:FlakyJudge", "loses": ""}  # the first turn that a process judges
    changes = {**SHORT, "variants__delegating__rl__steps": 2}
    changes["reward"] = {"name": "correct", "options": {"judge": judge}}
    one, two = play(config(tmp_path / "one", **changes)), play(config(tmp_path / "two", **changes, **on(address)))
    two.close()
    assert [job_rows[0]["infrastructure_failures"] for job_rows in (rows(one), rows(two))] == [1, 2]
    assert rows(two)[0]["dropped_groups"] == 0
    assert_same_tokens(episodes(two), episodes(one))


def test_what_a_worker_raises_is_raised_here(address: str, tmp_path: Path) -> None:
    broken = {"name": "correct", "options": {"bad": {"name": "trivial:Broken"}}}
    job = Job(config(tmp_path, **SHORT, **on(address), reward=broken), JobId("delegating", 0), lambda *_: None)
    said = "reward term 'bad', episode s0.* raised KeyError: 'score'"
    with closing(job), pytest.raises(RewardError, match=said) as caught:
        job.run(lambda: None)
    assert "ray::RolloutWorker.play" in str(caught.value.__cause__)


def test_cpu_seconds_are_those_of_the_workers_too(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the system counts them; and where a warm start begins again with other workers none are lost."""
    psutil = pytest.importorskip("psutil")
    made = list[tuple[RolloutWorkers, list[Any]]]()

    def used(processes: list[Any]) -> float:
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    own, close = Job._make_player, RolloutWorkers.close
    begun, ended = list[float](), list[float]()

    def player(self: Job) -> Any:
        found = own(self)
        made.append((found.sampler, [psutil.Process(one.pid) for one in found.sampler.facts]))
        begun.append(used(made[-1][1]))
        return found

    def closing_down(self: RolloutWorkers) -> None:
        ended.append(used(made[-1][1]))
        close(self)

    monkeypatch.setattr(Job, "_make_player", player)
    monkeypatch.setattr(RolloutWorkers, "close", closing_down)
    monkeypatch.setattr(Pool, "passed", property(lambda self: not self.probes or len(made) == 2))
    warm = {"variants__delegating__warmstart__max_attempts": 2}
    warm["variants__delegating__warmstart__phases"] = [{**PHASE, "min_accuracy": 0.5}]
    spec = config(tmp_path, **{**SHORT, "variants__delegating__rl__steps": 2, **warm}, **on(address))
    before = time.process_time()
    job = play(spec)
    here = time.process_time() - before
    job.close()
    assert len(made) == 2
    workers = sum(ended) - sum(begun)
    assert workers > 0.1, "they have worked; how long depends on the processor"
    assert job.state.cpu_seconds >= workers - 0.2, "they go on for a moment after their last answer"
    assert job.state.cpu_seconds <= here + sum(one.cpu_seconds for one, _ in made), "and nothing twice"
    assert job.state.cpu_seconds == pytest.approx(rows(job)[-1]["cpu_seconds"])


# What a cluster lacks


def test_a_worker_that_no_other_can_replace_ends_the_run(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when its node is gone."""
    pool = workers_of(config(tmp_path, **SHORT, **on(address)))
    pool.sampler.push(merged_weights(pool.language.load(0)), 0)
    gone = ClusterConfig(address=address, rollout_resources={"CPU": 0.5, "gone": 1.0}, start_seconds=3.0)
    monkeypatch.setattr(pool.sampler, "_config", gone)
    os.kill(pool.sampler.facts[1].pid, signal.SIGKILL)
    said = r"worker 1 died, and a new one, which needs .*'gone': 1.0\}, did not start in .*start_seconds = 3; resume"
    with pytest.warns(UserWarning, match="worker 1 died"), pytest.raises(InfrastructureError, match=said):
        pool.play([RolloutRequest(f"e{i}", Task("t", "1?", "1", "x"), i) for i in range(4)], 1.0)
    assert pool.sampler.replaced == 0
    pool.close()


def test_a_worker_that_dies_too_often_ends_the_run(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = workers_of(config(tmp_path, **SHORT, **on(address, retries=0)))
    pool.sampler.push(merged_weights(pool.language.load(0)), 0)
    os.kill(pool.sampler.facts[0].pid, signal.SIGKILL)
    with pytest.raises(InfrastructureError, match="worker 0 died 1 times at the same part, and cluster.retries is 0"):
        pool.play([RolloutRequest("e", Task("t", "1?", "1", "x"), 0)], 1.0)
    pool.close()


def test_what_the_cluster_has_not_is_refused_before_any_work(address: str) -> None:
    wanted = ClusterConfig(address, rollout_workers=2, rollout_resources={"TPU": 1})
    # Of a process of its own: this one is connected.
    imports = "from selfcest_training.cluster.connection import connected\n"
    imports += "from selfcest_training.cluster.config import ClusterConfig\n"
    code, own = f"{imports}with connected({wanted!r}): pass", {**os.environ, "PYTHONPATH": PYTHONPATH}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=own)
    assert ended.returncode == 1
    assert "ConfigError: cluster.rollout_resources is {'TPU': 1}" in ended.stderr
    assert "room for 0: its nodes have 1 x (CPU" in ended.stderr


def test_a_stranger_s_token_is_an_error_that_says_so(address: str, tmp_path: Path) -> None:
    file = written(tmp_path, on(address))
    ended = selfcest("train", "-c", str(file), RAY_AUTH_TOKEN="0" * 40)
    assert ended.returncode == 2
    assert f"cluster.address is {address}, which cannot be joined" in ended.stderr
    assert "token" in ended.stderr
    assert not (tmp_path / "runs").exists()


def test_workers_that_find_no_place_are_not_waited_for_without_end(address: str, tmp_path: Path) -> None:
    cores = ray.cluster_resources()["CPU"]
    wait_for(lambda: ray.available_resources().get("CPU") == cores)
    spec = config(tmp_path, **SHORT, **on(address, rollout_resources={"CPU": cores}, start_seconds=20))
    with pytest.raises(InfrastructureError, match=r"1 of 2 rollout workers, .* did not start in .*start_seconds = 20"):
        workers_of(spec)
    wait_for(lambda: ray.available_resources().get("CPU") == cores)


# Ends


def written(tmp_path: Path, changes: dict[str, Any]) -> Path:
    data = yaml.safe_load(dump_config(config(tmp_path / "runs", **{**SHORT, **changes})))
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    return tmp_path / "c.yaml"


def environment(**more: str) -> dict[str, str]:
    return {**ENVIRONMENT, "PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **more}


def selfcest(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "selfcest_cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment(**more))


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "selfcest_cli", *arguments]
    heeds = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # tests in the background of a shell do not
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, **streams, text=True, env=environment(), preexec_fn=heeds)


def wait_for(holds: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def model_of(run: Path) -> bytes:
    """The trained weights of a run's folder."""
    return (run / "delegating" / "seed0" / "model" / "model.safetensors").read_bytes()


def test_a_lost_driver_goes_on_to_the_same_bits_and_without_a_cluster_to_the_same_tokens(
    address: str, tmp_path: Path, hit: Job, alone: Job
) -> None:
    file, run = written(tmp_path, on(address)), tmp_path / "runs" / "t"
    cores = ray.cluster_resources()["CPU"]
    wait_for(lambda: ray.available_resources().get("CPU") == cores)
    driver = start("train", "-c", str(file))
    try:
        wait_for(lambda: (run / "delegating/seed0/checkpoints/rl_000002").exists() or driver.poll() is not None)
    finally:
        driver.kill()
    _, said = driver.communicate()
    assert driver.returncode == -signal.SIGKILL, said
    wait_for(lambda: ray.available_resources().get("CPU") == cores)  # its actors are gone
    begun = [path.name for path in list_checkpoints(run / "delegating/seed0/checkpoints")]
    assert begun[-1] in ("rl_000002", "rl_000003")
    other = config(tmp_path / "other", **SHORT)
    shutil.copytree(run / "delegating" / "seed0", other.folder / "delegating" / "seed0")

    ended = selfcest("train", "-c", str(file), "--resume")
    assert ended.returncode == 0, ended.stderr
    assert model_of(run) == model_of(hit.folder.parents[1])
    resumed = list(read_episodes(run / "delegating/seed0/episodes.jsonl"))
    assert resumed == episodes(hit)

    one = Job(other, JobId("delegating", 0), lambda *_: None)
    one.run(lambda: None)
    assert_same_tokens(episodes(one), episodes(alone))
    assert_same_weights(one, alone)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_who_is_stopped_leaves_no_process_behind(tmp_path: Path, number: signal.Signals, code: int) -> None:
    psutil = pytest.importorskip("psutil")
    cluster = {"cluster": {"rollout_workers": 2, "rollout_resources": {"CPU": 0.5}}}
    file = written(tmp_path, {**cluster, "variants__delegating__rl__steps": 400})
    driver = start("train", "-c", str(file))
    folder = tmp_path / "runs/t/delegating/seed0/checkpoints"
    children: list[Any] = []
    try:
        wait_for(lambda: (folder / "rl_000001").exists() or driver.poll() is not None)
        children = psutil.Process(driver.pid).children(recursive=True)
        assert any("raylet" in child.name() for child in children)
        driver.send_signal(number)
        _, said = driver.communicate(timeout=60)
    finally:
        driver.kill()
    assert driver.returncode == code, said
    if number == signal.SIGTERM:
        assert "--resume resumes from the newest checkpoints" in said
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not [child for child in alive if child.status() != psutil.STATUS_ZOMBIE]
