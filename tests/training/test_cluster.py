"""A cluster as far as it goes without Ray: its config, who plays what, weights as arrays, what makes a run the same."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from test_job import config
from test_tree_rows import random_samples

from selfcest_agents.language import language_of
from selfcest_agents.lora import merged_weights
from selfcest_agents.samplers import TransformersSampler, VllmSampler
from selfcest_agents.vllm_engine import VllmOptions
from selfcest_env.errors import ConfigError
from selfcest_training.cluster import connection
from selfcest_training.cluster.config import ClusterConfig, check_resources, split_evenly
from selfcest_training.cluster.snapshot import WeightSnapshot
from selfcest_training.config_file import apply_override, dump_run, load_config
from selfcest_training.learner.options import Rows
from selfcest_training.learner.tree_rows import cut_into_micro_batches, max_micro_batches
from selfcest_training.run import experiment
from selfcest_training.run.job import Job, JobId, check_options
from selfcest_training.session import read_sessions, record_session

OWN = {"name": "transformers", "options": {"dtype": "float32"}}


def clustered(tmp_path: Path, **changes: Any) -> Any:
    return config(tmp_path, **{"workers": 1, "sampler": OWN, "cluster": {}, **changes})


# Config


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"workers": 2}, "workers is 2; expected 1 with a cluster block"),
        ({"sampler": {"name": "transformers"}}, "learner's own weights.*set sampler.options.dtype"),
        (
            {"cluster": {"learner_ranks": 2}, "forward": {"compile": True}},
            "cluster.learner_ranks is 2 and forward.compile",
        ),
        ({"cluster": {"learner_ranks": 2, "backend": "nccl"}}, "device is cpu and cluster.backend is nccl"),
        ({"cluster": {"rollout_workers": 0}}, "cluster.rollout_workers is 0; expected .*>= 1"),
        ({"cluster": {"address": "ray://head:10001"}}, "cluster.address is 'ray://head:10001'; expected HOST:PORT"),
        ({"cluster": {"rollout_resources": {"GPU": 0}}}, "cluster.rollout_resources.GPU is 0; expected .*> 0"),
        ({"cluster": {"backend": "mpi"}}, "cluster.backend is 'mpi'"),
        ({"cluster": {"rolout_workers": 2}}, "Did you mean 'rollout_workers'"),
    ],
)
def test_what_cannot_be_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Job(clustered(tmp_path, **changes), JobId("delegating", 0), lambda *_: None)
    assert not list(tmp_path.iterdir())


def test_weights_of_an_adapter_s_sampler_are_its_own(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    check_options(clustered(tmp_path, sampler={"name": "transformers"}, lora={}), "delegating", TransformersSampler())


def test_a_worker_has_the_gpus_that_its_engine_spreads_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    sampler = VllmSampler(tensor_parallel=4)
    gpus = {"rollout_resources": {"CPU": 4, "GPU": 4}}
    check_options(clustered(tmp_path, cluster=gpus), "delegating", sampler)
    gpus["rollout_resources"]["GPU"] = 2
    with pytest.raises(ConfigError, match=r"tensor_parallel is 4, and .* a worker 2 GPU; set .*\.GPU=4"):
        check_options(clustered(tmp_path, cluster=gpus), "delegating", sampler)


@pytest.mark.parametrize(
    ("changes", "most"),
    [
        # 24 tasks of 8 episodes, of a root and a clone each; 25 contexts of 80 ids go into 2,000.
        ({}, 384 // 25 + 1),
        ({"variants__delegating__rl__minibatches": 4}, 96 // 25 + 1),
        ({"micro_batch_tokens": 60}, 384),
        ({"rows": "tree"}, 384),
        ({"limits__context_tokens": 40}, 384 // 50 + 1),
        ({"variants__delegating__rl__group_filter__name": "varied"}, 384 // 25 + 1),
        # Who decides how many episodes there are, or what of replays trains, is asked when they are there.
        ({"variants__delegating__rl__group_filter__name": "reinforce_ada"}, None),
        ({"variants__delegating__rl__task_sampler__name": "knapsack"}, None),
        ({"variants__delegating__rl__credit": {"name": "branches"}}, None),
        ({"variants__delegating__rl__steps": 0}, None),
    ],
    ids=str,
)
def test_more_ranks_than_there_can_be_micro_batches_are_refused_before_work(
    tmp_path: Path, changes: dict[str, Any], most: int | None
) -> None:
    changes = {"micro_batch_tokens": 2000, "variants__delegating__rl__tasks_per_step": 24, **changes}
    changes |= {"variants__delegating__rl__group_size": 8}

    def build(ranks: int) -> None:
        cluster = {"learner_ranks": ranks}
        Job(clustered(tmp_path, **changes, cluster=cluster), JobId("delegating", 0), lambda *_: None)

    build(10_000 if most is None else most)
    if most is not None:
        with pytest.raises(ConfigError, match=f"is {most + 1} and .*, at its fullest, has {most} micro-batch"):
            build(most + 1)
    assert not list(tmp_path.iterdir())


SCHEDULE = {"term": "correct", "measure": "total_tokens", "at_most": 30}
LAG = {"variants__delegating__rl__max_staleness": 1, "cluster": {"overlap": True}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_staleness": 0}, "overlap is true and variants.delegating.rl.max_staleness is 0.*set max_staleness"),
        (
            {"task_sampler": {"name": "dots"}},
            "state of variants.delegating.rl.task_sampler .*set cluster.overlap=false",
        ),
        (
            {"reward_schedule": {"name": "lagrangian", "options": SCHEDULE}},
            "rl.reward_schedule depends on earlier steps",
        ),
    ],
)
def test_steps_overlap_where_none_depends_on_the_one_before(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    Job(clustered(tmp_path, **LAG), JobId("delegating", 0), lambda *_: None)
    of_rl = {f"variants__delegating__rl__{name}": value for name, value in changes.items()}
    Job(clustered(tmp_path, **{**LAG, **of_rl, "cluster": {}}), JobId("delegating", 0), lambda *_: None)
    with pytest.raises(ConfigError, match=words):
        Job(clustered(tmp_path, **{**LAG, **of_rl}), JobId("delegating", 0), lambda *_: None)


@pytest.mark.parametrize("rows", Rows)
def test_no_samples_are_cut_into_more_micro_batches_than_are_possible(rows: Rows) -> None:
    rng = np.random.default_rng(0)
    for seed in range(30):
        samples, _ = random_samples(seed)
        longest, limit = max(map(len, samples)), int(rng.integers(4, 400))
        found = list(cut_into_micro_batches(samples, rows, max_tokens=limit, hidden_size=32))
        assert len(found) <= max_micro_batches(len(samples), longest, rows, max_tokens=limit)
    alike = [replace(samples[0], episode_id=str(i)) for i in range(7)]
    if rows != Rows.TREE:  # which joins them
        found = list(cut_into_micro_batches(alike, rows, max_tokens=2 * len(samples[0]), hidden_size=32))
        assert len(found) == max_micro_batches(7, len(samples[0]), rows, max_tokens=2 * len(samples[0])) == 4


def test_weights_reach_several_processes_by_a_file() -> None:
    assert VllmOptions().shares_process
    assert not VllmOptions(tensor_parallel=2).shares_process
    assert not VllmOptions(in_process=False).shares_process


def test_without_ray_a_run_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"Ray cannot be imported .*, or run: pip install -e '\.\[cluster\]'"):
        experiment.run(clustered(tmp_path), resume=False, console=Console(file=io.StringIO()))
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(find_spec("ray") is None, reason="without Ray every test would fail at such an import")
def test_ray_is_imported_by_who_asks_for_it_alone() -> None:
    modules = ("selfcest_training", "selfcest_training.run.experiment", "selfcest_training.cluster.rollouts")
    code = f"import sys, {', '.join(modules)}; sys.exit('ray' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # where no package is installed
    assert subprocess.run([sys.executable, "-c", code], check=False, env=environment).returncode == 0


def test_an_address_where_nobody_listens_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "import_ray", lambda: pytest.fail("it must not come so far"))
    with pytest.raises(ConfigError, match=r"address is 127\.0\.0\.1:1, which does not accept connections .*refused"):
        connection._init_within(60, "127.0.0.1:1")


def test_an_override_fills_a_block_that_is_null() -> None:
    data: dict[str, Any] = {"cluster": None}
    apply_override(data, "cluster.address=head:6379")
    assert data == {"cluster": {"address": "head:6379"}}


# Resources

SMALL, LARGE = {"CPU": 4.0, "node:a": 1.0}, {"CPU": 8.0, "GPU": 2.0}


def test_what_fits_is_not_refused() -> None:
    check_resources(ClusterConfig(rollout_workers=12), [SMALL, LARGE])
    check_resources(ClusterConfig(rollout_workers=2, rollout_resources={"GPU": 1, "CPU": 4}), [SMALL, LARGE])
    check_resources(ClusterConfig(rollout_workers=9, rollout_resources={}), [])


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"rollout_workers": 13}, r"room for 12: its nodes have 1 x \(CPU 4\); 1 x \(CPU 8, GPU 2\); start"),
        ({"rollout_resources": {"CPU": 5, "GPU": 1}, "rollout_workers": 2}, "room for 1"),
        ({"rollout_workers": 7, "overlap": True}, "is 7, twice for cluster.overlap, but the cluster has room for 12"),
        ({"rollout_resources": {"TPU": 1}}, "TPU.* and cluster.rollout_workers is 1, but the cluster has room for 0"),
        ({"rollout_workers": 10, "learner_ranks": 3}, "ask for 13 CPU together, but the cluster has 12"),
    ],
)
def test_what_no_node_has_is_refused_with_what_they_have(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_resources(ClusterConfig(**asked), [SMALL, LARGE])


# Shares


@pytest.mark.parametrize("workers", range(1, 9))
@pytest.mark.parametrize("count", [0, 1, 2, 7, 192])
def test_shares_are_contiguous_even_and_whole(count: int, workers: int) -> None:
    parts = [list(range(count))[part] for part in split_evenly(count, workers)]
    assert [i for part in parts for i in part] == list(range(count))
    sizes = [len(part) for part in parts]
    assert len(sizes) == min(count, workers)
    assert max(sizes, default=0) - min(sizes, default=0) <= 1


# Snapshots


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_come_out_of_a_snapshot_bit_for_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    model = language_of(config(tmp_path).model).load(3)
    weights = [(name, tensor.to(dtype)) for name, tensor in merged_weights(model)]
    odd = torch.tensor([float("nan"), float("inf"), -0.0, 1e-40], dtype=dtype)  # and a matrix that lies across
    weights += [("odd", odd), ("across", torch.randn(5, 3).to(dtype).T), ("nothing", torch.zeros(0, 2, dtype=dtype))]
    found = pickle.loads(pickle.dumps(WeightSnapshot.of(weights, 7)))
    assert (found.version, found.names) == (7, tuple(name for name, _ in weights))
    assert found.num_bytes == sum(tensor.numel() for _, tensor in weights) * dtype.itemsize
    for (_, sent), (_, got) in zip(weights, found.tensors(), strict=True):
        assert got.dtype == dtype
        assert got.shape == sent.shape
        bits = torch.int32 if dtype == torch.float32 else torch.int16
        assert torch.equal(got.view(bits), sent.contiguous().view(bits))


def test_a_snapshot_is_rounded_as_an_engine_rounds() -> None:
    weight = torch.randn(1000)
    ((_, got),) = WeightSnapshot.of([("w", weight)], 0, torch.bfloat16).tensors()
    assert torch.equal(got, torch.empty(1000, dtype=torch.bfloat16).copy_(weight))


def test_arrays_that_nobody_may_write_are_read_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    array = np.arange(4, dtype=np.float32)
    array.setflags(write=False)
    ((_, got),) = WeightSnapshot(0, ("w",), (array,)).tensors()
    assert got.tolist() == [0, 1, 2, 3]
    assert not recwarn.list


def test_a_sampler_without_a_learner_has_weights_of_its_own(tmp_path: Path) -> None:
    language = language_of(config(tmp_path).model)
    first, second = (TransformersSampler().start(language, None) for _ in range(2))
    assert not first.shared
    first.push([(name, torch.zeros_like(tensor)) for name, tensor in language.load(0).named_parameters()], 1)
    assert (first.engine.policy_version, second.engine.policy_version) == (1, 0)


# The same run


def test_machines_are_no_part_of_a_run(tmp_path: Path) -> None:
    alone = config(tmp_path, workers=1, sampler=OWN)
    several = clustered(tmp_path, cluster={"rollout_workers": 8, "address": "head:6379"})
    assert dump_run(several) == dump_run(alone)
    assert dump_run(several) != dump_run(clustered(tmp_path, threads=2))
    alone.folder.mkdir()
    experiment.prepare_folder(several, resume=False)
    experiment.prepare_folder(alone, resume=True)
    assert load_config(alone.folder / "config.yaml") == alone
    with pytest.raises(ConfigError, match="differs from this config"):
        experiment.prepare_folder(clustered(tmp_path, threads=2), resume=True)


def test_what_a_run_ran_on_is_in_its_sessions(tmp_path: Path) -> None:
    with record_session(tmp_path, ClusterConfig(rollout_workers=3)):
        pass
    with record_session(tmp_path):
        pass
    on, alone = read_sessions(tmp_path)
    assert on["cluster"]["rollout_workers"] == 3
    assert "cluster" not in alone
