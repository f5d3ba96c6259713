"""Faults of the machine: files that are damaged, disks that are full, processes that are killed. No run is lost."""

from __future__ import annotations

import errno
import io
import json
import multiprocessing
import os
import pickle
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from rich.console import Console
from test_cli import ENVIRONMENT, selfcest, timeless_table, write
from test_job import config, play, rows, weights
from transformers import LlamaConfig, LlamaForCausalLM

import selfcest_cli.main as cli
from selfcest_cli.solve import _count_episodes
from selfcest_cli.trace import print_trace
from selfcest_env.errors import ConfigError, RecordError, StoppedError
from selfcest_env.record import read_episodes
from selfcest_eval.report.jobs import read_metrics
from selfcest_eval.report.run_report import RunEvaluation
from selfcest_training import files
from selfcest_training.config import RunConfig
from selfcest_training.config_file import describe_differences, dump_run, run_digest
from selfcest_training.credit.offline import read_groups
from selfcest_training.faults import ENDING_SIGNALS, describe_first_end, get_exit_code, report_killed_worker
from selfcest_training.files import (
    AppendLog,
    FileOffset,
    atomic_write,
    hash_files,
    hash_text,
    remove_partials,
    write_text,
)
from selfcest_training.learner.state import LearnerState
from selfcest_training.run import experiment
from selfcest_training.run.checkpoint import (
    TrainState,
    find_newest_checkpoint,
    list_checkpoints,
    read_state,
    save_checkpoint,
)
from selfcest_training.run.job import Job, JobId

QUIET = Console(quiet=True)
COPY = {"dtype": "float32"}  # a sampler with weights of its own, as rollouts ahead need
ID = JobId("delegating", 0)
SHORT = {
    "variants__delegating__warmstart__phases": [
        {"tokens": 1000, "mix": {"choice": {"share": 1, "styles": {"delegate": 1, "solve": 1}}}}
    ],
    "variants__delegating__warmstart__pool_tokens": 1000,
    "variants__delegating__rl__steps": 3,
    "checkpoint_every": 1,
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A whole run of three steps, with checkpoints after the second and the third."""
    return play(config(tmp_path_factory.mktemp("base"), **SHORT))


def copy(base: Job, tmp_path: Path) -> tuple[RunConfig, Path]:
    """Another run's folder with the files of this one, which a resumed job finds."""
    spec = config(tmp_path, **SHORT)
    folder = spec.folder / "delegating" / "seed0"
    shutil.copytree(base.folder, folder)
    return spec, folder


def sign_checkpoints(spec: RunConfig, folder: Path) -> None:
    """Change copied checkpoints as if they had been written under this config."""
    for path in folder.glob("checkpoints/*/manifest.json"):
        contents = json.loads(path.read_bytes())["contents"] | {"config": run_digest(spec)}
        path.write_text(json.dumps({"sha256": hash_text(json.dumps(contents)), "contents": contents}), encoding="utf-8")


def assert_same_end(job: Job, base: Job) -> None:
    assert torch.equal(weights(job), weights(base))
    assert (job.folder / "episodes.jsonl").read_bytes() == (base.folder / "episodes.jsonl").read_bytes()
    for stage in ("warmstart", "rl"):
        assert [{**row, "cpu_seconds": 0} for row in rows(job, stage)] == [
            {**row, "cpu_seconds": 0} for row in rows(base, stage)
        ]
    assert replace(job.state, cpu_seconds=0) == replace(base.state, cpu_seconds=0)
    assert [path.name for path in list_checkpoints(job.folder / "checkpoints")] == ["rl_000002", "rl_000003"]
    assert not list(job.folder.rglob(".*"))


# What a checkpoint holds and counts on


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def lose_last_line(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def text_for_number(path: Path) -> None:
    path.write_text(path.read_text().replace('"step": 3', '"step": "3"'))


CHECKPOINT = "checkpoints/rl_000003"


@pytest.mark.parametrize(
    ("name", "fault", "words"),
    [
        (f"{CHECKPOINT}/model.safetensors", flip, "model.safetensors is damaged"),
        (f"{CHECKPOINT}/optimizer.safetensors", halve, "optimizer.safetensors is damaged"),
        (f"{CHECKPOINT}/trainer.json", Path.unlink, "trainer.json is gone"),
        (f"{CHECKPOINT}/state.json", text_for_number, "state.json is damaged"),
        (f"{CHECKPOINT}/manifest.json", flip, "manifest.json is damaged"),
        (f"{CHECKPOINT}/manifest.json", halve, "manifest.json is damaged"),
        ("metrics.jsonl", lose_last_line, "metrics.jsonl is cut"),
        ("episodes.jsonl", lose_last_line, "episodes.jsonl is cut"),
    ],
)  # fmt: skip
def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    base: Job, tmp_path: Path, name: str, fault: Callable[[Path], None], words: str
) -> None:
    _, folder = copy(base, tmp_path)
    fault(folder / name)
    said = rf"resuming from .*rl_000002, as newer .* damaged: rl_000003: .*{words}"
    with pytest.warns(UserWarning, match=said):
        found = find_newest_checkpoint(folder)
    assert found is not None
    assert found[0].name == "rl_000002"


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        (f"{CHECKPOINT}/model.safetensors", flip),
        pytest.param(f"{CHECKPOINT}/state.json", text_for_number, marks=pytest.mark.slow),
        pytest.param(CHECKPOINT, shutil.rmtree, marks=pytest.mark.slow),
        ("metrics.jsonl", lose_last_line),
        pytest.param("episodes.jsonl", lose_last_line, marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore:resuming from")
def test_a_run_that_falls_back_comes_to_the_same_end(
    base: Job, tmp_path: Path, name: str, fault: Callable[[Path], None]
) -> None:
    spec, folder = copy(base, tmp_path)
    fault(folder / name)
    assert_same_end(play(spec), base)


def change_a_digit(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"step": 0', b'"step": 7', 1))


@pytest.mark.parametrize(
    ("name", "fault", "words"),
    [
        ("metrics.jsonl", halve, "metrics.jsonl is cut"),
        ("metrics.jsonl", change_a_digit, "metrics.jsonl is damaged"),
        ("episodes.jsonl", Path.unlink, "episodes.jsonl is gone"),
        ("warmstart_model", shutil.rmtree, "warmstart_model/config.json is gone"),
        ("warmstart_model/model.safetensors", flip, "model.safetensors is damaged"),
    ],
)
def test_where_no_checkpoint_is_whole_nothing_is_touched_and_one_line_says_what_to_do(
    base: Job, tmp_path: Path, name: str, fault: Callable[[Path], None], words: str
) -> None:
    spec, folder = copy(base, tmp_path)
    fault(folder / name)
    before = files.hash_files(folder)
    with pytest.raises(RecordError) as caught:
        play(spec)
    said = str(caught.value)
    assert words in said
    assert f"remove {folder} to train this job from its beginning with the same result" in said
    assert len(said.splitlines()) == 1
    assert files.hash_files(folder) == before


@pytest.mark.slow
@pytest.mark.parametrize("fault", [halve, flip, Path.unlink])
def test_an_evaluation_that_is_not_made_again_is_counted_on(tmp_path: Path, fault: Callable[[Path], None]) -> None:
    """A table came of the half of it that was left."""
    spec = config(tmp_path, **SHORT)
    job = Job(spec, ID, lambda *_: None)
    file = job.folder / "evaluation_before_rl" / "results.jsonl"

    def evaluate() -> None:
        file.parent.mkdir()
        file.write_text("a line\n" * 9, encoding="utf-8")

    job.run(evaluate)
    whole, newest = file.read_bytes(), find_newest_checkpoint(job.folder)
    assert newest is not None
    play(spec)
    assert find_newest_checkpoint(job.folder) is not None, "a resumed job's checkpoints count on it too"
    fault(file)
    with pytest.raises(RecordError, match=r"evaluation_before_rl/results.jsonl is (cut|damaged|gone)"):
        play(spec)
    file.write_bytes(whole)
    play(spec)


def test_what_comes_after_the_newest_checkpoint_is_played_again(base: Job, tmp_path: Path) -> None:
    """Whatever it is: also a strange line, as no job writes, and half of one."""
    spec, folder = copy(base, tmp_path)
    for name, rest in (
        ("metrics.jsonl", b'[null, {"step": {}}]\n{"stage'),
        ("episodes.jsonl", b'7\n{"episode_id": "\xff'),
    ):
        with (folder / name).open("ab") as file:
            file.write(rest)
    assert_same_end(play(spec), base)


def test_another_config_does_not_go_on_where_config_yaml_is_gone_and_a_damaged_one_is_written_again(
    tmp_path: Path,
) -> None:
    spec = config(tmp_path, **SHORT)
    folder = spec.folder
    Job(spec, ID, lambda *_: None).run(lambda: None, only_warm_start=True)
    with pytest.raises(ConfigError, match="already holds a run; add --resume"):
        experiment.prepare_folder(spec, resume=False)
    with pytest.raises(ConfigError, match=r"config.yaml differs from this config"):
        experiment.prepare_folder(replace(spec, micro_batch_tokens=77), resume=True)
    experiment.prepare_folder(spec, resume=True)
    halve(folder / "config.yaml")
    with pytest.warns(UserWarning, match=r"config.yaml is not the config of its checkpoints"):
        experiment.prepare_folder(spec, resume=True)
    assert yaml.safe_load((folder / "config.yaml").read_text())["micro_batch_tokens"] == spec.micro_batch_tokens


@pytest.mark.parametrize("begun", [True, False])
def test_a_run_of_an_earlier_release_goes_on_though_keys_were_renamed(begun: bool, tmp_path: Path) -> None:
    spec = config(tmp_path, **SHORT)
    spec.folder.mkdir(parents=True)
    if begun:
        Job(spec, ID, lambda *_: None).run(lambda: None, only_warm_start=True)
    stored = spec.folder / "config.yaml"
    old = dump_run(spec).replace("max_retries: 2", "group_tries: 3").replace("max_staleness:", "max_policy_lag:")
    assert old != dump_run(spec)
    stored.write_text(old, encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        experiment.prepare_folder(spec, resume=True)
    assert stored.read_text(encoding="utf-8") == dump_run(spec)
    stored.write_text(old.replace("group_tries: 3", "group_tries: 4"), encoding="utf-8")
    if not begun:
        with pytest.raises(ConfigError, match=r"config.yaml differs from this config"):
            experiment.prepare_folder(spec, resume=True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seeds": (0, 1)}, r"(seeds is [0] in the stored file and [0, 1] here), so --resume would mix two runs"),
        (
            {"threads": 2, "checkpoint_every": 5},
            "(threads is 1 in the stored file and 2 here; checkpoint_every is 1 in the stored file and 5",
        ),
        ({"micro_batch_tokens": 77, "threads": 2, "workers": 1, "checkpoint_every": 5, "seeds": (3,)}, "; and 1 more)"),
        ({"logging": ("tensorboard", "wandb")}, "(logging is ['tensorboard'] in the stored file and ['tensorboard', "),
    ],
)
def test_a_resume_with_another_config_names_the_keys_that_differ(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    spec = config(tmp_path, **SHORT)
    spec.folder.mkdir()
    experiment.prepare_folder(spec, resume=False)
    with pytest.raises(ConfigError, match=re.escape(words)) as caught:
        experiment.prepare_folder(replace(spec, **changes), resume=True)
    assert len(str(caught.value).splitlines()) == 1
    assert yaml.safe_load((spec.folder / "config.yaml").read_text())["threads"] == spec.threads


@pytest.mark.parametrize(
    ("path", "value", "phrases"),
    [
        ("variants__delegating__rl__steps", 4, ["variants.delegating.rl.steps is 3 in the stored file and 4 here"]),
        (
            "variants__delegating__warmstart__phases",
            [{"tokens": 900, "mix": {"choice": {"share": 1, "styles": {"delegate": 1}}}}],
            [
                "variants.delegating.warmstart.phases[0].tokens is 1000 in the stored file and 900 here",
                "variants.delegating.warmstart.phases[0].mix.choice.styles.solve stands only in the stored file, as "
                "1.0",
            ],
        ),
        ("tasks__other", {"name": "trivial:Choice"}, ["tasks.other stands only here, as {'name': 'trivial:Choice', "]),
    ],
)
def test_differing_keys_are_named_by_their_whole_path(
    tmp_path: Path, path: str, value: object, phrases: list[str]
) -> None:
    spec, given = config(tmp_path, **SHORT), config(tmp_path, **{**SHORT, path: value})
    differences = describe_differences(dump_run(spec), given, "config.yaml")
    for difference, phrase in zip(differences, phrases, strict=True):
        assert difference.startswith(phrase)
    assert describe_differences(dump_run(spec), spec, "config.yaml") == []


def test_a_stored_config_in_another_form_is_the_same_run(tmp_path: Path) -> None:
    """A comment in it, before there is a checkpoint, refused every resume."""
    spec = config(tmp_path, **SHORT)
    spec.folder.mkdir()
    experiment.prepare_folder(spec, resume=False)
    stored = spec.folder / "config.yaml"
    stored.write_text(f"# mine\n{stored.read_text()}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        experiment.prepare_folder(spec, resume=True)
    assert stored.read_text() == dump_run(spec)


@pytest.mark.parametrize(
    ("name", "as_folder"),
    [
        ("delegating/seed0/checkpoints/rl_000003", False),
        ("delegating/seed0/checkpoints/rl_000099", False),
        ("delegating/seed0/checkpoints", False),
        ("delegating/seed0/warmstart_model", False),
        ("delegating/seed0/model", False),
        ("delegating/seed0/evaluation", False),
        ("delegating/seed0", False),
        ("delegating", False),
        ("delegating/seed0/metrics.jsonl", True),
        ("delegating/seed0/evaluation/results.jsonl", True),
        ("config.yaml", True),
        ("table.md", True),
    ],
)
def test_a_file_in_the_place_of_a_folder_is_refused_before_any_work(
    base: Job, tmp_path: Path, name: str, as_folder: bool
) -> None:
    """Each ended hours later with exit code 3 and a promise to resume, which no resumed run could keep."""
    spec, _ = copy(base, tmp_path)
    write_text(spec.folder / "config.yaml", dump_run(spec))
    path = spec.folder / name
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    if as_folder:
        path.mkdir()
    else:
        path.write_text("?")
    before = {file: file.read_bytes() for file in spec.folder.rglob("*") if file.is_file() and file.name != ".lock"}
    kinds = ("a folder", "a file") if as_folder else ("a file", "a folder")
    with pytest.raises(ConfigError, match=rf"{name} is {kinds[0]}; expected {kinds[1]}: move it away, then resume"):
        experiment.run(spec, resume=True, console=Console(quiet=True))
    after = {file: file.read_bytes() for file in spec.folder.rglob("*") if file.is_file() and file.name != ".lock"}
    assert after == before


# Kills


def small_model() -> tuple[LlamaForCausalLM, torch.optim.Optimizer]:
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=8, hidden_size=4, intermediate_size=4, num_hidden_layers=1, num_attention_heads=1)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.tensor([[1, 2]])).logits.sum().backward()
    optimizer.step()
    return model, optimizer


def killed_at(number: int, act: Callable[[], object]) -> bool:
    """Do something in a child that dies at its n-th touch of a file. False: it came to its end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads: the child starts none
        child = os.fork()
    if child == 0:
        left = number

        def count(event: str, _: object) -> None:
            nonlocal left
            if event in ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"):
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        try:
            act()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_kill_at_any_moment_of_a_save_leaves_a_whole_checkpoint_and_nothing_else(tmp_path: Path, every: int) -> None:
    """The third one, at which the first is removed, and one that takes the place of another of its name."""
    model, optimizer = small_model()
    for step in (1, 2):
        save_checkpoint(tmp_path / "before", LearnerState.of(model, optimizer), TrainState("rl", step))
    moments = 0
    for last in (3, 2):
        for moment in range(0, 200, every):
            folder = tmp_path / f"{last}.{moment}" / "checkpoints"
            shutil.copytree(tmp_path / "before", folder)
            state = TrainState("rl", last, cpu_seconds=1.0)
            killed = killed_at(moment, lambda: save_checkpoint(folder, LearnerState.of(model, optimizer), state))  # noqa: B023
            remove_partials(folder)
            found = find_newest_checkpoint(folder.parent)
            assert found is not None
            assert read_state(found[0]) in (TrainState("rl", 1), TrainState("rl", 2), state)
            assert {path.name for path in folder.iterdir()} <= {"rl_000001", "rl_000002", "rl_000003"}
            assert all(len(list(path.iterdir())) == 6 for path in folder.iterdir())
            if not killed:
                break
            moments += 1
        assert read_state(found[0]) == state
    assert moments * every > 40


def test_a_file_is_there_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for moment in range(20):
        path.write_text("before", encoding="utf-8")
        killed = killed_at(moment, lambda: write_text(path, "after" * 10_000))
        assert path.read_text(encoding="utf-8") in ("before", "after" * 10_000)
        remove_partials(tmp_path)
        assert [path] == list(tmp_path.iterdir())
        if not killed:
            break
    assert moment > 1
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "half" * 10_000 + "\ud800")
    assert [path] == list(tmp_path.iterdir())


@pytest.mark.slow
def test_who_is_asked_to_stop_does_so_after_a_checkpoint_and_resumes_to_the_same_end(base: Job, tmp_path: Path) -> None:
    spec = replace(config(tmp_path, **SHORT), checkpoint_every=100)
    for expected in ("warmstart_000001", "rl_000001", "rl_000002"):
        with pytest.raises(StoppedError, match="after a checkpoint"):
            Job(spec, ID, lambda *_: None, lambda: True).run(lambda: None)
        assert list_checkpoints(spec.folder / "delegating" / "seed0" / "checkpoints")[-1].name == expected
    assert_same_end(play(spec), base)


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [False, True])
def test_the_bits_do_not_depend_on_when_checkpoints_are_written(tmp_path: Path, ahead: bool) -> None:
    lag = {"variants__delegating__rl__max_staleness": 1, "sampler": {"name": "transformers", "options": COPY}}
    often, seldom = (
        play(config(tmp_path / str(every), **SHORT | {"checkpoint_every": every} | (lag if ahead else {})))
        for every in (1, 100)
    )
    assert torch.equal(weights(often), weights(seldom))
    assert (often.folder / "episodes.jsonl").read_bytes() == (seldom.folder / "episodes.jsonl").read_bytes()
    for stage in ("warmstart", "rl"):
        timeless = [[{**row, "cpu_seconds": 0} for row in rows(job, stage)] for job in (often, seldom)]
        assert timeless[0] == timeless[1]
    assert [path.name for path in list_checkpoints(often.folder / "checkpoints")] == ["rl_000002", "rl_000003"]
    assert [path.name for path in list_checkpoints(seldom.folder / "checkpoints")] == ["warmstart_000001", "rl_000003"]


@pytest.mark.parametrize("name", ["metrics.jsonl", "evaluation/results.jsonl", "evaluation/played.jsonl"])
def test_a_refused_run_is_no_session_and_nothing_of_it_changes(base: Job, tmp_path: Path, name: str) -> None:
    spec, folder = copy(base, tmp_path)
    (folder / "evaluation").mkdir(exist_ok=True)
    write_text(spec.folder / "config.yaml", dump_run(spec))
    sign_checkpoints(spec, folder)
    (folder / name).write_text("{}\n{}\n", encoding="utf-8")
    before = hash_files(spec.folder)
    with pytest.raises(RecordError, match=f"^delegating/seed0: .*{name}"):
        experiment.run(spec, resume=True, evaluator=RunEvaluation())
    after = hash_files(spec.folder)
    assert {key: after[key] for key in before} == before
    assert after.keys() - before.keys() == {".lock", "errors.log"}


# Full disks


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """After so many more writes to a disk there is no space left."""
    left = [1 << 30]
    fsync = os.fsync

    def full(handle: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(handle)

    monkeypatch.setattr(files.os, "fsync", full)
    yield lambda writes: left.__setitem__(0, writes)
    left[0] = 1 << 30


def test_a_full_disk_leaves_what_was_there(base: Job, tmp_path: Path, full_disk: Callable[[int], None]) -> None:
    spec, folder = copy(base, tmp_path)
    shutil.rmtree(folder / "checkpoints" / "rl_000003")
    full_disk(4)
    with pytest.raises(OSError, match="No space left"):
        play(spec)
    full_disk(1 << 30)
    found = find_newest_checkpoint(folder)
    assert found is not None
    assert found[0].name == "rl_000002"
    assert not list(folder.rglob(".partial*"))
    assert_same_end(play(spec), base)


def test_a_library_that_says_full_in_its_own_way_is_understood(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left on device: '.*model'") as caught, atomic_write(tmp_path / "model"):
        raise ValueError("Error while serializing: I/O error: No space left on device (os error 28)")
    assert caught.value.errno == errno.ENOSPC


def test_a_log_that_does_not_fit_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        files, "open_for_append", lambda path, **_: path.open("ab", buffering=0)
    )  # which takes no device by itself
    log = AppendLog(Path("/dev/full"), FileOffset())
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        log.append("row\n")
    log.close()


def test_a_run_that_is_stopped_says_in_one_line_where_it_goes_on(
    base: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, folder = copy(base, tmp_path)
    (spec.folder / "other" / "seed0").mkdir(parents=True)
    variants = {**spec.variants, "other": spec.variants["delegating"]}
    spec = replace(spec, variants=variants, evaluation=replace(spec.evaluation, eval_sets=()))
    shutil.rmtree(folder / "checkpoints")
    save_checkpoint(folder / "checkpoints", LearnerState.of(*small_model()), TrainState("rl", 7))

    def fail(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", "metrics.jsonl")

    monkeypatch.setattr(experiment, "_run_jobs", fail)
    monkeypatch.setattr(experiment, "prepare_folder", lambda *_: None)
    monkeypatch.setattr(
        cli, "app", lambda standalone_mode: experiment.run(spec, resume=True, console=Console(quiet=True))
    )
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 3
    assert capsys.readouterr().err == (
        "selfcest: [Errno 30] Read-only file system: 'metrics.jsonl'; the same command with --resume resumes from the "
        f"newest checkpoints in {spec.folder}: delegating/seed0/checkpoints/rl_000007, other/seed0 from its beginning\n"
    )


def test_who_is_asked_to_stop_in_the_report_finishes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended the command without a line: all had been played, and there was no table."""
    seen: list[int] = []
    monkeypatch.setattr(experiment, "_run_jobs", lambda *_: None)
    monkeypatch.setattr(experiment, "print_report", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    try:
        experiment.run(config(tmp_path, **SHORT), resume=False, console=Console(quiet=True))
        assert seen == []
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("number", ENDING_SIGNALS)
def test_a_run_says_which_signal_has_stopped_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
) -> None:
    def stop(*_: object) -> None:
        os.kill(os.getpid(), number)
        raise StoppedError("delegating/seed0: stopped after a checkpoint")

    monkeypatch.setattr(experiment, "_run_jobs", stop)
    spec = config(tmp_path, **SHORT)
    monkeypatch.setattr(cli, "app", lambda standalone_mode: experiment.run(spec, resume=False, console=QUIET))
    before = signal.signal(number, signal.SIG_DFL)  # tests in the background of a shell may ignore it
    try:
        with pytest.raises(SystemExit) as caught:
            cli.main()
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert caught.value.code == 128 + number
    said = capsys.readouterr().err
    words = (
        f"selfcest: delegating/seed0: stopped after a checkpoint, as signal {number:d} ({number.name}) asked; the same"
    )
    assert said.startswith(words)
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_second_signal_ends_a_run_in_one_line_that_names_it(
    second: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ended the process without a line."""

    def work(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.1)
        os.kill(os.getpid(), second)
        time.sleep(60)

    monkeypatch.setattr(experiment, "_run_jobs", work)
    spec = config(tmp_path, **SHORT)
    monkeypatch.setattr(cli, "app", lambda standalone_mode: experiment.run(spec, resume=False, console=QUIET))
    before = {number: signal.signal(number, signal.SIG_DFL) for number in {signal.SIGTERM, second}}
    try:
        with pytest.raises(SystemExit) as caught:
            cli.main()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert caught.value.code == 128 + second
    assert capsys.readouterr().err == f"selfcest: ended by signal {second:d} ({second.name})\n"


def wait_for_a_killed_worker(pool: ProcessPoolExecutor) -> None:
    future = pool.submit(time.sleep, 60)
    with report_killed_worker(pool, "run it again"):
        os.kill(next(iter(pool._processes)), signal.SIGKILL)
        future.result()


def test_a_pool_whose_worker_is_killed_says_by_which_signal() -> None:
    words = r"a worker process was killed by signal 9 \(SIGKILL\), often the out-of-memory killer; run it again"
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool, pytest.raises(StoppedError, match=words):
        wait_for_a_killed_worker(pool)


@pytest.mark.parametrize("name", ["manifest.json", "model.safetensors", "state.json"])
def test_a_checkpoint_that_cannot_be_read_is_named_and_promises_nothing(
    name: str, base: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended with a promise to resume, which could never be kept. Root may read all, so its rights are imitated."""
    spec, folder = copy(base, tmp_path)
    write_text(spec.folder / "config.yaml", dump_run(spec))
    sign_checkpoints(spec, folder)
    closed = list_checkpoints(folder / "checkpoints")[-1] / name
    assert closed.is_file()
    real = io.open

    def refuse(file: Any, *arguments: Any, **options: Any) -> Any:
        if not isinstance(file, int) and Path(file) == closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(file))
        return real(file, *arguments, **options)

    monkeypatch.setattr(io, "open", refuse)
    with pytest.raises((ConfigError, RecordError), match=f"{name} cannot be read.*fix its permissions") as caught:
        experiment.run(spec, resume=True, console=QUIET)
    assert "resumes from the newest" not in str(caught.value)


def test_a_terminal_that_is_gone_is_a_hangup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was printed after it failed: exit code 3, and a line about input and output."""

    def stop(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(experiment, "_run_jobs", stop)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with pytest.raises(
            StoppedError, match=r"stopped \(.*Input/output error\), as signal 1 \(SIGHUP\) asked"
        ) as caught:
            experiment.run(config(tmp_path, **SHORT), resume=False, console=QUIET)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert get_exit_code(caught.value) == 129


def test_a_run_under_nohup_goes_on_after_sighup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "_run_jobs", lambda *_: os.kill(os.getpid(), signal.SIGHUP))
    monkeypatch.setattr(experiment, "print_report", lambda *_: None)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        experiment.run(config(tmp_path, **SHORT), resume=False, console=QUIET)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGKILL, "was killed by signal 9 (SIGKILL), often the out-of-memory killer"),
        (signal.SIGSEGV, "was killed by signal 11 (SIGSEGV)"),
        (signal.SIGTERM, "was killed by signal 15 (SIGTERM)"),
    ],
)
def test_a_worker_that_was_killed_is_named_by_its_signal(number: signal.Signals, words: str) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=time.sleep, args=(60,)) for _ in range(2)]
    try:
        for process in processes:
            process.start()
        assert processes[0].pid is not None
        os.kill(processes[0].pid, number)
        assert describe_first_end(processes) == words
    finally:
        for process in processes:
            process.kill()
            process.join()


def test_errors_come_back_from_a_worker_as_they_are() -> None:
    for error in (StoppedError("why"), OSError(errno.ENOSPC, "No space left on device", "file")):
        assert str(pickle.loads(pickle.dumps(error))) == str(error)


# Readers


def cut(path: Path) -> None:
    """As a kill in the middle of the last line does."""
    os.truncate(path, path.stat().st_size - 20)


def test_a_cut_last_line_is_skipped_with_a_warning(base: Job, tmp_path: Path) -> None:
    _, folder = copy(base, tmp_path)
    metrics, episodes = rows(base, "warmstart") + rows(base), list(read_episodes(folder / "episodes.jsonl"))
    for name in ("metrics.jsonl", "episodes.jsonl"):
        cut(folder / name)
    with pytest.warns(UserWarning, match=r"metrics.jsonl, line \d+, was cut and is skipped"):
        assert read_metrics(folder / "metrics.jsonl") == metrics[:-1]
    with pytest.warns(UserWarning, match=r"episodes.jsonl, line \d+, was cut and is skipped"):
        assert list(read_episodes(folder / "episodes.jsonl")) == episodes[:-1]
    groups = read_groups(base.folder / "episodes.jsonl").groups
    with pytest.warns(UserWarning, match=r"was cut and is skipped, and so is its group s2\.g"):
        assert read_groups(folder / "episodes.jsonl").groups == groups[:-1], "none is taken for a group of seven"


def test_trace_reads_a_cut_file(base: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, folder = copy(base, tmp_path)
    cut(folder / "episodes.jsonl")
    before_last = list(read_episodes(base.folder / "episodes.jsonl"))[-2].episode_id
    shown = [Console(record=True, file=io.StringIO()) for _ in range(2)]
    print_trace(folder / "episodes.jsonl", None, shown[0])
    print_trace(base.folder / "episodes.jsonl", before_last, shown[1])
    (warning,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"warning: .*episodes\.jsonl, line \d+, was cut and is skipped", warning)
    assert shown[0].export_text() == shown[1].export_text()


def test_nothing_is_added_to_half_a_line(base: Job, tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    path.write_bytes((base.folder / "episodes.jsonl").read_bytes()[:-20])
    with pytest.raises(ConfigError, match=r"--out: .*line \d+, was cut and is skipped; name a file of episodes"):
        _count_episodes(path)


def test_a_last_line_without_its_end_is_whole_all_the_same(base: Job, tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    path.write_bytes((base.folder / "episodes.jsonl").read_bytes()[:-1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(read_episodes(path)) == list(read_episodes(base.folder / "episodes.jsonl"))


STRANGE = [b"7", b"[]", b"\xff", b"null", b"[" * 100_000, b'{"stage": []}', b'{"stage": "rl", "step": "4"}']


@pytest.mark.parametrize("line", STRANGE, ids=range(len(STRANGE)))
def test_a_strange_line_is_named(base: Job, tmp_path: Path, line: bytes) -> None:
    _, folder = copy(base, tmp_path)
    for name in ("metrics.jsonl", "episodes.jsonl"):
        path = folder / name
        first, *others = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join([first, line + b"\n", *others]))
    with pytest.raises(RecordError, match=r"metrics.jsonl, line 2"):
        read_metrics(folder / "metrics.jsonl")
    with pytest.raises(RecordError, match=r"episodes.jsonl, line 2"):
        list(read_episodes(folder / "episodes.jsonl"))


# Processes


def start(*arguments: str, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "selfcest_cli", *arguments],
        env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
    )  # fmt: skip


def wait_for(path: Path, pattern: str) -> None:
    deadline = time.monotonic() + 400
    while not list(path.glob(pattern)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def children(process: int) -> list[int]:
    found = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="utf-8").split()
    return [int(child) for child in found if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def train(output: Path, name: str) -> tuple[str, ...]:
    steps = ("variants.delegating.rl.steps=12", "checkpoint_every=4", "workers=1")
    return ("train", "-c", str(write(output)), *steps, f"name={name}")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """The rows of its table."""
    output = tmp_path_factory.mktemp("undisturbed")
    assert selfcest(*train(output, "whole")).returncode == 0
    return timeless_table(output / "runs" / "whole" / "results.csv")


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["SIGTERM", "SIGTERM to all", "SIGHUP to all", "a killed worker", "a full disk"])
def test_a_run_that_the_machine_stops_ends_in_one_line_and_resumes_to_the_same_table(
    tmp_path: Path, undisturbed: list[dict[str, str]], fault: str
) -> None:
    command = train(tmp_path, "stopped")
    limits: dict[str, object] = {"start_new_session": True}
    if fault == "a full disk":  # as far as a process can have one of its own
        size = 40_000
        limits["preexec_fn"] = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    process = start(*command, **limits)
    folder = tmp_path / "runs" / "stopped"
    if fault != "a full disk":
        wait_for(folder, "delegating/seed0/checkpoints/rl_*")
        if fault == "SIGTERM":
            process.terminate()
        elif fault.endswith("to all"):
            os.killpg(process.pid, getattr(signal, fault.split()[0]))
        else:
            for child in children(process.pid):
                os.kill(child, signal.SIGKILL)
    _, said = process.communicate(timeout=400)
    ending = {
        "SIGTERM": (143, "as signal 15 (SIGTERM) asked; the same command"),
        "SIGTERM to all": (143, "as signal 15 (SIGTERM) asked; the same command"),
        "SIGHUP to all": (129, "as signal 1 (SIGHUP) asked; the same command"),
        "a killed worker": (
            3,
            "a worker process was killed by signal 9 (SIGKILL), often the out-of-memory killer; the",
        ),
        "a full disk": (3, ""),
    }
    assert process.returncode == ending[fault][0], said
    assert ending[fault][1] in said
    assert len(said.splitlines()) == 1
    assert f"the same command with --resume resumes from the newest checkpoints in {folder}" in said
    assert ("delegating/seed0/checkpoints/" in said) or fault == "a full disk"
    assert (folder / "config.yaml").read_text().startswith("name: stopped\n")
    done = selfcest(*command, "--resume")
    assert done.returncode == 0, done.stderr
    assert timeless_table(folder / "results.csv") == undisturbed
    assert not [found for found in folder.rglob(".*") if found.name != ".lock"]
