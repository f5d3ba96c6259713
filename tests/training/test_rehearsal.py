"""The CUDA device that is not there: it computes as the CPU does, and refuses what a GPU refuses."""

from __future__ import annotations

import copy
import io
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from chat_models import QWEN3
from test_forward import llama
from test_job import rows
from test_models import save_chat_model
from test_tree_rows import gradient, random_samples
from torch import Tensor

from selfcest_env.errors import ConfigError
from selfcest_training.config import RunConfig
from selfcest_training.config_file import load_config
from selfcest_training.learner.batch import TokenBatch
from selfcest_training.learner.options import ForwardOptions, Precision, Rows
from selfcest_training.run.fake_cuda import FakeCudaTensor, fake_cuda
from selfcest_training.run.job import Job, JobId, OnProgress
from selfcest_training.run.rehearsal import make_small_config, rehearse

RECIPES = Path(__file__).parents[2] / "training" / "configs" / "gpu"
SHORT = (
    "limits.turn_tokens=200",
    "limits.max_turns=2",
    "tasks.ledger.options={mode: sum, min_documents: 4, max_documents: 4, min_named: 2, max_named: 2}",
)
NO_PROGRESS: OnProgress = lambda stage, share, text: None  # noqa: E731
pytestmark = pytest.mark.usefixtures("one_thread")


def recipe(folder: Path, name: str, *overrides: str) -> RunConfig:
    save_chat_model(folder / "chat", template=QWEN3, positions=8192)
    return load_config(RECIPES / name, [f"model.options.source={folder / 'chat'}", *overrides])


@pytest.mark.parametrize(
    "mix",
    [
        lambda device, host: device + host,
        lambda device, host: host.add_(device),
        lambda device, host: torch.cat([device, host]),
        lambda device, host: torch.where(device > 0, device, host),
        lambda device, host: torch.nn.functional.linear(device, host[None]),
        lambda device, host: host[device.long()],
        lambda device, host: device.index_put_((torch.tensor([0]),), host[:1]),
    ],
)
def test_host_and_device_cannot_be_mixed(mix: Callable[[Tensor, Tensor], Tensor]) -> None:
    host = torch.ones(3)
    with fake_cuda():
        device = torch.zeros(3, device="cuda")
        with pytest.raises(RuntimeError, match=r"all tensors on one device: aten.* on cpu and another on cuda:0"):
            mix(device, host)


def test_what_a_gpu_takes_from_the_host_is_taken() -> None:
    with fake_cuda():
        device = torch.arange(3.0, device="cuda")
        assert (device * torch.tensor(2.0)).tolist() == [0.0, 2.0, 4.0]
        assert device[torch.tensor([2, 0])].tolist() == [2.0, 0.0]
        assert device.copy_(torch.ones(3)).tolist() == [1.0, 1.0, 1.0]


def test_numpy_cannot_read_the_device() -> None:
    with fake_cuda():
        device = torch.zeros(3, device="cuda")
        for read in (lambda tensor: tensor.numpy(), np.asarray):
            with pytest.raises(TypeError, match="copy it to the host with Tensor.cpu"):
                read(device)
        assert device.cpu().numpy().tolist() == [0.0, 0.0, 0.0]


def test_views_copies_and_files_are_those_of_other_tensors() -> None:
    with fake_cuda():
        device = torch.ones(2, 2, device="cuda")
        device[:, 1] += 1
        device[device > 1] = 5
        assert device.tolist() == [[1.0, 5.0], [1.0, 5.0]]
        copied = copy.deepcopy(device)
        copied.zero_()
        assert device.sum().item() == 12.0
        stored = io.BytesIO()
        torch.save(device, stored)
        stored.seek(0)
        assert type(torch.load(stored)) is Tensor
        layer = torch.nn.Linear(2, 2).to("cuda").double()
        assert layer.weight.dtype == layer.weight.host_values.dtype == torch.float64


def test_another_thread_has_the_device_too() -> None:
    devices: list[torch.device] = []
    with fake_cuda():
        thread = threading.Thread(target=lambda: devices.append(torch.zeros(1, device="cuda").device))
        thread.start()
        thread.join()
    assert devices == [torch.device("cuda:0")]


def test_the_device_is_gone_afterwards() -> None:
    with fake_cuda():
        pass
    assert torch.cuda.device_count() == 0
    with pytest.raises((AssertionError, RuntimeError)):
        torch.zeros(1, device="cuda")


@pytest.mark.slow
@pytest.mark.parametrize("layout", [Rows.BUCKETED, Rows.TREE])
def test_the_gradient_is_that_of_the_cpu(layout: Rows) -> None:
    samples, _ = random_samples(0)
    forward = ForwardOptions(logit_chunk=16, gradient_checkpointing=True)
    expected = gradient(llama(), samples, Rows.BUCKETED, 300, forward)
    with fake_cuda():
        model = llama().to("cuda")
        found = gradient(model, samples, layout, 300, forward)
        assert isinstance(found, FakeCudaTensor)
        assert torch.allclose(found.cpu(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_autocast_computes_layers_in_half_precision() -> None:
    samples, _ = random_samples(0)
    expected = gradient(llama(), samples, Rows.BUCKETED, 300)
    with fake_cuda():
        found = gradient(llama().to("cuda"), samples, Rows.BUCKETED, 300, ForwardOptions(Precision.BFLOAT16)).cpu()
    difference = float((found - expected).norm() / expected.norm())
    assert 1e-4 < difference < 0.1, "rounded to bfloat16, and no more than that"


@pytest.mark.slow
def test_a_job_on_the_device_is_the_job_on_the_cpu(tmp_path: Path) -> None:
    """In float32 and with rows of one layout, the numbers of the log are equal."""
    config = recipe(tmp_path, "qwen3_06b_ledger.yaml", *SHORT)
    small, _ = make_small_config(config, "delegating", tmp_path)
    small = replace(small, forward=ForwardOptions(), rows=Rows.BUCKETED)
    logs = {}
    for device, context in (("cpu", nullcontext()), ("cuda", fake_cuda())):
        model = replace(small.model, options={**small.model.options, "device": device})
        with (
            context,
            closing(Job(replace(small, name=device, model=model), JobId("delegating", 0), NO_PROGRESS)) as job,
        ):
            job.run(lambda: None)
            logs[device] = rows(job)
    for row_on_cpu, row_on_device in zip(logs["cpu"], logs["cuda"], strict=True):
        for name, value in row_on_cpu.items():
            if name != "cpu_seconds":
                expected = pytest.approx(value, rel=1e-3, abs=1e-5) if isinstance(value, float) else value
                assert row_on_device[name] == expected, name


@pytest.mark.slow
def test_the_script_for_the_first_gpu_can_be_rehearsed(tmp_path: Path) -> None:
    """Its recipe has adapters, rows of trees, bfloat16, gradient checkpointing and rollouts a step ahead."""
    script = RECIPES.parents[2] / "benchmarks" / "first_gpu.py"
    out = tmp_path / "first_gpu.json"
    subprocess.run([sys.executable, str(script), "--rehearse", "--out", str(out)], check=True, cwd=tmp_path)
    results = json.loads(out.read_text(encoding="utf-8"))
    assert results.keys() == {"machine", "logprobs_against_cpu", "transformers", "sampling", "learning"}
    assert results["logprobs_against_cpu"]["float32"]["max"] < 1e-3
    assert results["transformers"]["sampled_tokens"] > 0


def test_a_rehearsal_finds_a_batch_that_stays_on_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TokenBatch, "to", lambda batch, device: batch)
    config = recipe(tmp_path, "qwen3_06b_ledger.yaml")
    with pytest.raises(RuntimeError, match="all tensors on one device: aten.embedding.default"):
        rehearse(config, "delegating", tmp_path / "rehearsal", NO_PROGRESS)


def test_a_config_without_a_gpu_has_nothing_to_rehearse(tmp_path: Path) -> None:
    config = recipe(tmp_path, "qwen3_06b_ledger.yaml", "model.options.device=cpu")
    with pytest.raises(ConfigError, match="model is 'chat' on cpu; .* model.options.device=cuda"):
        rehearse(config, "delegating", tmp_path / "rehearsal", NO_PROGRESS)
