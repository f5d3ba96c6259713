"""A learner that trains an adapter: same rows, same gradients, and the warm start below it as its reference."""

from __future__ import annotations

import math
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from selfcest_agents.lora import add_lora, load_trainable_state, merged_weights, trainable_state, use_adapter
from selfcest_agents.lora_options import LoraOptions
from selfcest_agents.tiny import TinyConfig, build_tiny
from selfcest_env.errors import RecordError
from selfcest_env.types import ROOT, Role
from selfcest_training.learner.batch import Sample
from selfcest_training.learner.metrics import average_metrics
from selfcest_training.learner.options import (
    ForwardOptions,
    LossConfig,
    LossTermConfig,
    OptimizerConfig,
    Precision,
    Rows,
)
from selfcest_training.learner.update import ForwardOutput, Learner

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


@pytest.mark.slow
def test_an_adapter_learns() -> None:
    learner = learner_of(adapted(moved=False))
    losses = [learner.imitation_step(samples(2), 0.0).loss for _ in range(60)]
    # Of 195 ids: about log 195 = 5.3 at first. The frozen head has rows of length 0.06 sqrt(32) = 0.34 and its input
    # has sqrt(32), so no logit exceeds 1.9 and no loss falls much below 5.3 - 1.9 = 3.4.
    assert losses[0] == pytest.approx(5.3, abs=0.3)
    assert losses[-1] < 3.7


# An adapter for each role


def by_role() -> PreTrainedModel:
    model = build_tiny(SHAPE, seed=0)
    add_lora(model, LoraOptions(rank=4, alpha=8, per_role=True), seed=1)
    return model


def of_clones(made: list[Sample]) -> list[Sample]:
    return [replace(sample, agent_id=ROOT.child(i)) for i, sample in enumerate(made)]


def parameters_of(model: PreTrainedModel, role: str) -> dict[str, Tensor]:
    """By the names that the only adapter of a model would have."""
    named = model.named_parameters()
    return {name.replace(f".{role}.", ".default."): p for name, p in named if f".{role}." in name}


def moved(model: PreTrainedModel, role: str, before: PreTrainedModel) -> bool:
    return any(not torch.equal(p, parameters_of(before, role)[n]) for n, p in parameters_of(model, role).items())


def test_both_begin_as_the_base_and_alike() -> None:
    model, base = by_role(), build_tiny(SHAPE, seed=0)
    ids = torch.arange(20, 30)[None]
    for role in Role:
        with use_adapter(model, role), torch.no_grad():
            assert torch.equal(model(input_ids=ids).logits, base(input_ids=ids).logits)
            assert all(torch.equal(tensor, base.get_parameter(name)) for name, tensor in merged_weights(model))
    roots, clones = (parameters_of(model, role) for role in Role)
    assert roots.keys() == clones.keys() == trainable_state(adapted(moved=False)).keys()
    assert all(torch.equal(roots[name], clones[name]) for name in roots)
    assert trainable_state(model).keys() == {n for n, p in model.named_parameters() if ".lora_" in n}


@pytest.mark.slow
@pytest.mark.parametrize("rows", [Rows.BUCKETED, Rows.TREE])
def test_turns_of_clones_touch_the_adapter_of_clones_alone(rows: Rows) -> None:
    for made, trained, other in ((of_clones(samples()), "clone", "root"), (samples(), "root", "clone")):
        model = by_role()
        before, learner = deepcopy(model), learner_of(model, rows)
        learner.policy_step(made, LossConfig(terms={"kl": LossTermConfig(0.1)}))
        assert moved(model, trained, before)
        assert not moved(model, other, before)


@pytest.mark.slow
def test_both_make_the_steps_that_each_would_make_as_the_only_adapter() -> None:
    """In one step, whose loss is a sum: two shared models, one of which sees the roots and the other the clones."""
    model, roots, clones = by_role(), samples(), of_clones(samples(4))
    learner = learner_of(model, Rows.BUCKETED)
    for _ in range(3):
        metrics = learner.policy_step([*roots[:3], *clones, *roots[3:]], LossConfig())
    assert metrics.num_rows == 10
    for role, made in (("root", roots), ("clone", clones)):
        alone = adapted(moved=False)
        single = learner_of(alone, Rows.BUCKETED)
        for _ in range(3):
            single.policy_step(made, LossConfig())
        expected = trainable_state(alone)
        assert all(
            difference(p, expected[name]) < 1e-4 for name, p in parameters_of(model, role).items() if ".lora_B." in name
        )


def norm_of(parameters: Iterable[Tensor]) -> float:
    return math.hypot(*(float(p.grad.norm()) for p in parameters if p.grad is not None))


def test_a_large_gradient_of_one_role_does_not_make_the_other_s_smaller() -> None:
    """The clones' advantages are a thousand times as large; each gradient is clipped as that of an only adapter."""
    roots = samples()
    clones = [replace(sample, advantages=1000 * sample.advantages) for sample in of_clones(samples())]
    small = learner_of(adapted(moved=False)).policy_step(roots, LossConfig()).grad_norm
    bound = 2 * small
    kept: list[dict[str, float]] = []
    learner = Learner(by_role(), replace(OPTIMIZER, max_grad_norm=bound), pad_id=0, micro_batch_tokens=60)
    learner.optimizer.register_step_pre_hook(
        lambda *_: kept.append({role: norm_of(parameters_of(learner.model, role).values()) for role in Role})
    )
    metrics = learner.policy_step([*roots, *clones], LossConfig())
    assert kept == [{"root": pytest.approx(small, rel=1e-4), "clone": pytest.approx(bound, rel=1e-4)}]
    assert metrics.role_grad_norms == {"root": pytest.approx(small), "clone": pytest.approx(1000 * small, rel=1e-3)}
    assert metrics.grad_norm == pytest.approx(math.hypot(*metrics.role_grad_norms.values()))
    assert average_metrics([metrics])["grad_norm/root"] == metrics.role_grad_norms["root"]
    assert learner_of(adapted()).policy_step(roots, LossConfig()).role_grad_norms == {}


def test_what_is_read_of_a_context_is_its_role_s_and_in_order() -> None:
    model = by_role()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B.clone." in name:
                parameter.copy_(0.1 * torch.sin(torch.arange(parameter.numel())).view_as(parameter))
    learner, plain, trained = learner_of(model), learner_of(build_tiny(SHAPE, seed=0)), learner_of(adapted())
    roots, clones = samples(3), of_clones(samples(3))
    mixed = [sample for pair in zip(roots, clones, strict=True) for sample in pair]
    found, _ = learner.compute(mixed, ForwardOutput.LOGPROBS)
    for own, expected in (
        (found[::2], plain.compute(roots, ForwardOutput.LOGPROBS)[0]),
        (found[1::2], trained.compute(clones, ForwardOutput.LOGPROBS)[0]),
    ):
        for one, other in zip(own, expected, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
    assert not np.allclose(found[0], found[1], atol=1e-3)


def test_a_state_holds_both_and_goes_on_to_the_same_step() -> None:
    model = by_role()
    learner, made = learner_of(model), [*samples(), *of_clones(samples())]
    learner.policy_step(made, LossConfig())
    other = learner_of(by_role())
    other.restore(learner.state().map_tensors(lambda _, tensor: tensor.clone()), learner.num_steps)
    for each in (learner, other):
        each.policy_step(made, LossConfig())
    assert all(torch.equal(p, q) for p, q in zip(learner.model.parameters(), other.model.parameters(), strict=True))
    with pytest.raises(RecordError, match="tensors do not match the trainable parameters of this model"):
        load_trainable_state(adapted(), trainable_state(model))
