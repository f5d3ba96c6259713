"""The learner on a GPU against itself on a CPU, and the config for a GPU with a small model in the place of Qwen3.

`python -m pytest -m cuda` runs all tests that need one.
"""

from __future__ import annotations

from copy import deepcopy
from importlib.util import find_spec
from math import isfinite
from pathlib import Path

import pytest
import torch
from chat_models import QWEN3
from test_forward import llama
from test_job import rows, weights
from test_models import save_chat_model
from test_tree_rows import difference, gradient, learner_of, random_samples

from selfcest_training.config_file import load_config
from selfcest_training.learner.options import ForwardOptions, LossConfig, LossTermConfig, Precision, Rows
from selfcest_training.run.job import Job, JobId

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here"),
    pytest.mark.filterwarnings("ignore:rows is 'packed'"),  # `sdpa` masks densely, and is checked all the same
]
CONFIG = Path(__file__).parents[2] / "training" / "configs" / "gpu" / "qwen3_ledger.yaml"
HEADS = {"head_dim": 16}  # flex attention has no kernel for less
KINDS = [
    (Rows.BUCKETED, "sdpa"),
    (Rows.TREE, "sdpa"),
    (Rows.PACKED, "sdpa"),
    (Rows.PACKED, "flex_attention"),
    (Rows.PACKED, "flash_attention_2"),
]


@pytest.mark.parametrize("precision", Precision)
@pytest.mark.parametrize(("layout", "attention"), KINDS)
def test_gradients_on_a_gpu_are_those_of_padded_rows_on_a_cpu(
    layout: Rows, attention: str, precision: Precision
) -> None:
    if attention == "flash_attention_2":
        pytest.importorskip("flash_attn")
        if precision is Precision.FLOAT32:
            pytest.skip("flash attention computes in half precision alone")
    samples, _ = random_samples(0)
    expected = gradient(llama(**HEADS), samples, Rows.BUCKETED, 300)
    model = llama(**HEADS).to("cuda")
    model.set_attn_implementation(attention)
    found = gradient(model, samples, layout, 300, ForwardOptions(autocast=precision)).cpu()
    assert difference(found, expected) < (1e-4 if precision is Precision.FLOAT32 else 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [Rows.BUCKETED, Rows.TREE])
def test_a_compiled_model_has_the_same_gradient_on_a_gpu(layout: Rows) -> None:
    samples, _ = random_samples(0)
    expected = gradient(llama(**HEADS), samples, Rows.BUCKETED, 300)
    model = llama(**HEADS).to("cuda")
    found = gradient(model, samples, layout, 300, ForwardOptions(compile=True)).cpu()
    assert difference(found, expected) < 1e-4


def test_a_step_in_bfloat16_on_a_gpu_is_finite_and_moves_float32_weights() -> None:
    samples, _ = random_samples(0)
    model = llama(**HEADS).to("cuda")
    before = deepcopy(model.state_dict())
    forward = ForwardOptions(Precision.BFLOAT16, logit_chunk=16, gradient_checkpointing=True)
    made = learner_of(model, Rows.TREE, 300, forward).policy_step(
        samples, LossConfig(terms={"kl": LossTermConfig(0.1)})
    )
    assert made.num_rows
    assert made.grad_norm > 0
    assert all(map(isfinite, (made.loss, made.grad_norm, made.terms["kl"], made.mean_ratio, made.max_logprob_gap)))
    for name, weight in model.named_parameters():
        assert weight.dtype is torch.float32
        assert bool(weight.isfinite().all())
        assert not torch.equal(weight, before[name]), name


@pytest.mark.parametrize("sampler", ["vllm", "transformers"])
def test_the_config_for_a_gpu_trains_a_small_model(tmp_path: Path, sampler: str) -> None:
    """All of it but the weights and the sizes: LoRA, tree rows, bfloat16, rollouts a step ahead, templates of Qwen3."""
    if sampler == "vllm" and find_spec("vllm") is None:
        pytest.skip("vLLM is not installed; docs/models.md says how")
    save_chat_model(tmp_path / "small", template=QWEN3, positions=4096, hidden_size=128)
    kept = [] if sampler == "vllm" else ["sampler={name: transformers, options: {dtype: bfloat16}}"]
    small = ["steps=3", "tasks_per_step=2", "group_size=2"]
    phase = "{tokens: 20000, mix: {ledger: {share: 1, styles: {delegate: 1}}}}"
    warmstart = [f"phases=[{phase}]", "pool_tokens=8000"]
    config = load_config(
        CONFIG,
        [
            f"output={tmp_path}",
            f"model.options.source={tmp_path / 'small'}",
            "limits.turn_tokens=200",
            "tasks.ledger.options={mode: sum, min_documents: 4, max_documents: 4, min_named: 2, max_named: 2}",
            *kept,
            *(f"variants.delegating.rl.{change}" for change in small),
            *(f"variants.delegating.warmstart.{change}" for change in warmstart),
        ],
    )
    job = Job(config, JobId("delegating", 0), lambda *_: None)
    try:
        job.run(lambda: None)
        assert [row["policy_lag"] for row in rows(job)] == [0, 1, 1]
        assert all(isfinite(number) for row in rows(job) for number in row.values() if isinstance(number, float))
        assert bool(weights(job).isfinite().all())
    finally:
        job.close()
