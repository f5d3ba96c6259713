"""A learner that trains an adapter: same rows, same gradients, and the warm start below it as its reference."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from selfcest_agents.lora import add_lora, merged_weights, trainable_state
from selfcest_agents.lora_options import LoraOptions
from selfcest_agents.tiny import TinyConfig, build_tiny
from selfcest_env.types import ROOT
from selfcest_training.learner.batch import Sample
from selfcest_training.learner.options import (
    ForwardOptions,
    LossConfig,
    LossTermConfig,
    OptimizerConfig,
    Precision,
    Rows,
)
from selfcest_training.learner.update import Learner

SHAPE = TinyConfig(hidden_size=32, num_layers=2, num_heads=4, intermediate_size=48)
OPTIMIZER = OptimizerConfig(learning_rate=0.01, warmup_steps=0, max_grad_norm=1e9)


def samples(count: int = 6) -> list[Sample]:
    """Contexts that share a prompt of 12 ids and go on differently."""
    generator = np.random.default_rng(0)
    prompt = generator.integers(20, 40, 12)
    made = []
    for i in range(count):
        ids = np.concatenate([prompt, generator.integers(20, 40, 4 + i)])
        mask = np.arange(len(ids)) >= len(prompt)
        numbers = (np.where(mask, value, 0).astype(np.float32) for value in (-5.0, (-1.0) ** i))
        made.append(Sample("e", ROOT, ids, mask, *numbers, np.ones(len(ids), np.float32), 0.1))
    return made


def adapted(*, moved: bool = True) -> PreTrainedModel:
    """A model with an adapter; `moved`: one that has been trained a little."""
    model = build_tiny(SHAPE, seed=0)
    add_lora(model, LoraOptions(rank=4, alpha=8), seed=1)
    if moved:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if ".lora_B." in name:
                    parameter.copy_(0.1 * torch.sin(torch.arange(parameter.numel())).view_as(parameter))
    return model


def learner_of(model: PreTrainedModel, rows: Rows = Rows.TREE, forward: ForwardOptions = ForwardOptions()) -> Learner:
    return Learner(model, OPTIMIZER, pad_id=0, micro_batch_tokens=60, reference=model, rows=rows, forward=forward)


def gradient(rows: Rows, forward: ForwardOptions = ForwardOptions()) -> Tensor:
    """Of the adapter, in one optimiser step with a KL term, of whatever has a gradient."""
    learner = learner_of(adapted(), rows, forward)
    kept: list[Tensor] = []
    learner.optimizer.register_step_pre_hook(
        lambda *_: kept.append(torch.cat([p.grad.flatten() for p in learner.model.parameters() if p.grad is not None]))
    )
    learner.policy_step(samples(), LossConfig(terms={"kl": LossTermConfig(0.1)}))
    (found,) = kept
    assert found.numel() == sum(tensor.numel() for tensor in trainable_state(learner.model).values())
    return found


def difference(found: Tensor, expected: Tensor) -> float:
    return float(((found - expected).abs().max() / expected.abs().max()).detach())


def test_tree_rows_and_recomputed_layers_have_the_gradient_of_padded_rows() -> None:
    expected = gradient(Rows.BUCKETED)
    assert difference(gradient(Rows.TREE), expected) < 1e-5
    recomputed = ForwardOptions(gradient_checkpointing=True, logit_chunk=7)
    assert difference(gradient(Rows.TREE, recomputed), expected) < 1e-5


def test_bfloat16_autocast_is_near() -> None:
    expected = gradient(Rows.TREE)
    assert 1e-6 < difference(gradient(Rows.TREE, ForwardOptions(autocast=Precision.BFLOAT16)), expected) < 0.1


def test_it_is_the_gradient_of_the_summed_weights_by_the_chain_rule() -> None:
    """Of W + s B A: s times (dW)^T B for A transposed, so dA = s B^T dW and dB = s dW A^T."""
    model = adapted()
    full = build_tiny(SHAPE, seed=0)
    with torch.no_grad():
        for name, tensor in merged_weights(model):
            full.get_parameter(name).copy_(tensor)
    found: dict[str, Tensor] = {}
    for each in (model, full):
        learner = learner_of(each)
        for batch in learner.micro_batches(samples()):
            learner.logprobs(batch).sum().backward()  # type: ignore[no-untyped-call]
        found |= {name: p.grad for name, p in each.named_parameters() if p.grad is not None}
    layer, scale = "model.layers.1.mlp.gate_proj", 8 / 4
    a, b = (f"{layer}.lora_{which}.default.weight" for which in "AB")
    slope = found[f"{layer}.weight"]
    weights = dict(model.named_parameters())
    assert difference(found[a], scale * weights[b].T @ slope) < 1e-5
    assert difference(found[b], scale * slope @ weights[a].T) < 1e-5


def test_its_own_base_is_the_reference_without_a_second_copy() -> None:
    model = adapted(moved=False)
    warm_start = deepcopy(model)
    base = {name: p.clone() for name, p in model.named_parameters() if not p.requires_grad}
    learner = learner_of(model)
    loss = LossConfig(terms={"kl": LossTermConfig(0.1)})
    first = learner.policy_step(samples(), loss)
    assert first.terms["kl"] == 0
    second = learner.policy_step(samples(), loss)
    assert second.terms["kl"] > 0
    assert all(torch.equal(p, base[name]) for name, p in model.named_parameters() if name in base)
    separate = Learner(
        deepcopy(model), OPTIMIZER, pad_id=0, micro_batch_tokens=60, reference=warm_start, rows=Rows.TREE
    )
    third = learner.policy_step(samples(), loss)
    assert third.terms["kl"] == pytest.approx(separate.policy_step(samples(), loss).terms["kl"], rel=1e-6)


def test_an_adapter_learns() -> None:
    learner = learner_of(adapted(moved=False))
    losses = [learner.imitation_step(samples(2), 0.0).loss for _ in range(60)]
    # Of 195 ids: about log 195 = 5.3 at first. The frozen head has rows of length 0.06 sqrt(32) = 0.34 and its input
    # has sqrt(32), so no logit exceeds 1.9 and no loss falls much below 5.3 - 1.9 = 3.4.
    assert losses[0] == pytest.approx(5.3, abs=0.3)
    assert losses[-1] < 3.7
