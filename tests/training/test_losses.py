"""Losses by name, and importance weights, by hand; the same gradient however a batch is laid out."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from records import group, loss_inputs, three_agents
from test_tree_rows import in_double, random_samples, tiny
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from selfcest_env.errors import ConfigError, PlugInError, TrainingError
from selfcest_training.credit import Grpo
from selfcest_training.learner.batch import Sample, build_samples, collate
from selfcest_training.learner.losses import (
    LOSSES as LOSS_REGISTRY,
)
from selfcest_training.learner.losses import (
    Cispo,
    Clipped,
    Entropy,
    Kl,
    LossInputs,
    importance_weights,
    make_loss,
    make_loss_sum,
)
from selfcest_training.learner.metrics import average_metrics, check_agreement
from selfcest_training.learner.options import (
    Denominator,
    ForwardOptions,
    Importance,
    ImportanceLevel,
    LossConfig,
    LossTermConfig,
    OptimizerConfig,
    Rows,
)
from selfcest_training.learner.update import (
    ForwardOutput,
    Learner,
    attach_old_logprobs,
    select_old_logprobs,
)

# By hand: four tokens in two rows, the last of the second outside the mask.
OLD = torch.tensor([[-1.0, -1.0], [-1.0, 0.0]])
NOW = torch.tensor([[-0.5, -1.5], [-0.5, -9.0]], requires_grad=True)  # ratios 1.6487, .6065; 1.6487
MASK = torch.tensor([[True, True], [True, False]])


def weights(level: ImportanceLevel, old: Tensor, behavior: Tensor, mask: Tensor, cap: float = 2.0) -> Tensor:
    return importance_weights(Importance(level, cap), old, behavior, mask)


def slopes(loss: Tensor) -> list[float]:
    (found,) = torch.autograd.grad(loss[MASK].sum(), NOW)
    return found[MASK].tolist()


def test_clipped_by_sequence_by_hand() -> None:
    # mean log-ratios 0 and .5: ratios 1 and 1.6487. A = 1, 2 | -1.
    advantages = torch.tensor([[1.0, 2.0], [-1.0, 0.0]])
    loss = Clipped(level="sequence")(loss_inputs(NOW, OLD, advantages, MASK))
    assert loss[MASK].tolist() == pytest.approx([-1.0, -2.0, 1.648721], abs=1e-6)
    # the first row: - (1 + 2) / 2 for both tokens
    assert slopes(loss) == pytest.approx([-1.5, -1.5, 1.648721], abs=1e-6)


def test_delta_caps_what_only_a_negative_advantage_leaves_unbounded() -> None:
    advantages = torch.tensor([[1.0, -1.0], [-1.0, 0.0]])
    loss = Clipped(delta=1.5)(loss_inputs(NOW, OLD, advantages, MASK))
    # -min(1.5, 1.2) = -1.2; -min(-.6065, -.8) = .8; -min(-1.5, -1.2) = 1.5
    assert loss[MASK].tolist() == pytest.approx([-1.2, 0.8, 1.5])
    assert slopes(loss) == [0.0, 0.0, 0.0]


def test_cispo_by_hand_keeps_every_gradient() -> None:
    advantages = torch.tensor([[1.0, -1.0], [-2.0, 0.0]])
    loss = Cispo(epsilon_high=0.2)(loss_inputs(NOW, OLD, advantages, MASK))
    # -1.2 x -.5;  .6065 x -1.5;  2 x 1.2 x -.5
    assert loss[MASK].tolist() == pytest.approx([0.6, -0.909796, -1.2], abs=1e-6)
    assert slopes(loss) == pytest.approx([-1.2, 0.606531, 2.4], abs=1e-6)


def test_importance_weights_by_hand() -> None:
    # learner / sampler = 1.5, 4 | .5
    behavior = OLD - torch.tensor([[math.log(1.5), math.log(4)], [math.log(0.5), 100.0]])
    assert weights(ImportanceLevel.TOKEN, OLD, behavior, MASK)[MASK].tolist() == pytest.approx([1.5, 2.0, 0.5])
    # products 6 | .5; uncapped and capped
    assert weights(ImportanceLevel.SEQUENCE, OLD, behavior, MASK, cap=7)[MASK].tolist() == pytest.approx(
        [6.0, 6.0, 0.5]
    )
    assert weights(ImportanceLevel.SEQUENCE, OLD, behavior, MASK)[MASK].tolist() == pytest.approx([2.0, 2.0, 0.5])
    assert weights(ImportanceLevel.NONE, OLD, behavior, MASK).tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert not weights(ImportanceLevel.TOKEN, NOW, behavior, MASK).requires_grad


def test_a_huge_product_is_the_cap() -> None:
    old, behavior = torch.full((1, 2000), -1.0), torch.full((1, 2000), -2.0)
    found = weights(ImportanceLevel.SEQUENCE, old, behavior, torch.ones(1, 2000, dtype=torch.bool))
    assert found.unique().tolist() == [2.0]


# The learner


def learner_of(
    model: PreTrainedModel,
    *,
    rows: Rows = Rows.BUCKETED,
    micro_batch_tokens: int = 1000,
    forward: ForwardOptions = ForwardOptions(),
) -> Learner:
    optimizer = OptimizerConfig(learning_rate=0.02, warmup_steps=0, max_grad_norm=1e9)
    return Learner(model, optimizer, pad_id=0, micro_batch_tokens=micro_batch_tokens, rows=rows, forward=forward)


def gradients(learner: Learner) -> list[Tensor]:
    """Those of every step that the learner will make."""
    kept: list[Tensor] = []
    learner.optimizer.register_step_pre_hook(
        lambda *_: kept.append(torch.cat([p.grad.flatten() for p in learner.model.parameters() if p.grad is not None]))
    )
    return kept


def near(samples: Sequence[Sample], seed: int = 0) -> list[Sample]:
    """The samples, sampled with log-probs around those of an untrained model: weights on both sides of the cap."""
    rng = np.random.default_rng(seed)
    return [
        replace(s, behavior_logprobs=np.where(s.loss_mask, rng.normal(-5.3, 0.6, len(s)), 0).astype(np.float32))
        for s in samples
    ]


LOSSES = [
    LossConfig(name, options, Importance(level))
    for name, options in (
        ("clipped", {}),
        ("clipped", {"delta": 1.5}),
        ("clipped", {"level": "sequence"}),
        ("cispo", {"epsilon_high": 0.1}),
    )
    for level in ImportanceLevel
]
LOSSES.append(LossConfig(terms={"entropy": LossTermConfig(-0.1), "clones": LossTermConfig(0.5, "trivial:OfClones")}))


@pytest.mark.parametrize(
    "loss",
    [
        loss
        if loss.terms or loss.importance.level is ImportanceLevel.TOKEN
        else pytest.param(loss, marks=pytest.mark.slow)
        for loss in LOSSES
    ],
    ids=lambda loss: "-".join((loss.name, *loss.options, loss.importance.level, *loss.terms)),
)
def test_gradients_of_tree_and_bucketed_rows_are_equal_however_they_are_cut(loss: LossConfig) -> None:
    samples = near(random_samples(0)[0])
    model, before = in_double(tiny()), in_double(tiny())
    with torch.no_grad():  # so that the ratios are not 1
        for parameter in before.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    found = []
    for rows, micro_batch_tokens in ((Rows.BUCKETED, 100_000), (Rows.BUCKETED, 100), (Rows.TREE, 300)):
        settings = {"rows": rows, "micro_batch_tokens": micro_batch_tokens}
        _, frozen = attach_old_logprobs(learner_of(deepcopy(before), **settings), [[], samples], loss)  # type: ignore[arg-type]
        learner = learner_of(deepcopy(model), **settings)  # type: ignore[arg-type]
        kept = gradients(learner)
        metrics = learner.policy_step(frozen, loss)
        found.append((kept[0], metrics))
    (whole, metrics), *others = found
    assert whole.abs().max() > 1e-4
    if loss.name == "clipped":
        assert 0 < metrics.clip_share < 1
    else:
        assert metrics.clip_share == 0
    for gradient, other in others:
        assert float((gradient - whole).abs().max() / whole.abs().max()) < 1e-9
        for name in ("loss", "mean_ratio", "clip_share", "mean_logprob_gap"):
            assert getattr(other, name) == pytest.approx(getattr(metrics, name), rel=1e-6), name
        assert other.terms == pytest.approx(metrics.terms, rel=1e-6)
        assert other.mismatch.keys() == metrics.mismatch.keys()
        for name, mismatch in other.mismatch.items():
            assert mismatch.max_ratio == pytest.approx(metrics.mismatch[name].max_ratio, rel=1e-6)


def forward(model: PreTrainedModel, sample: Sample) -> Tensor:
    """Log-probs of a sample's trained ids at temperature 1, one sample at a time."""
    logits = model(input_ids=torch.tensor(sample.token_ids)[None]).logits[0]
    chosen = F.log_softmax(logits[:-1], -1).gather(1, torch.tensor(sample.token_ids[1:])[:, None])[:, 0]
    return chosen[torch.tensor(sample.loss_mask[1:])]


def by_hand(model: PreTrainedModel, samples: Sequence[Sample], old: Sequence[Tensor], level: ImportanceLevel) -> Tensor:
    """Gradient of the clipped surrogate with weights capped at 2, a line per sample."""
    total = torch.zeros((), dtype=torch.float64)
    for sample, then in zip(samples, old, strict=True):
        apart = then - torch.tensor(sample.behavior_logprobs[sample.loss_mask])
        weight = torch.exp(apart if level is ImportanceLevel.TOKEN else apart.sum()).clamp(max=2.0)
        ratio = torch.exp(forward(model, sample) - then)
        advantage = torch.tensor(sample.advantages[sample.loss_mask])
        pessimistic = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        total = total - (weight * pessimistic).sum() * sample.weight
    model.zero_grad()
    total.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("level", [ImportanceLevel.TOKEN, ImportanceLevel.SEQUENCE])
def test_later_mini_batches_take_the_ratio_against_the_learner_before_the_first(level: ImportanceLevel) -> None:
    episodes = (three_agents("a", 1.0), three_agents("b", 0.0))
    one = group(*episodes)
    samples = near(
        build_samples([one], [Grpo().assign(one, {})], denominator=Denominator.CONSTANT, constant=10.0), seed=3
    )
    minibatches = [samples[:3], samples[3:]]
    loss = LossConfig(importance=Importance(level))
    learner = learner_of(in_double(tiny()), micro_batch_tokens=8)
    with torch.no_grad():
        old = {id(s): forward(learner.model, s) for s in samples}
    kept = gradients(learner)
    frozen = attach_old_logprobs(learner, minibatches, loss)
    assert learner.num_steps == 0
    for expected_from, samples_now in zip(minibatches, frozen, strict=True):
        reference = [old[id(s)] for s in expected_from]
        expected = by_hand(deepcopy(learner.model), expected_from, reference, level)
        metrics = learner.policy_step(samples_now, loss)
        torch.testing.assert_close(kept[-1], expected, rtol=1e-6, atol=1e-9)
        assert metrics.mismatch["root"].max_ratio == pytest.approx(
            max(
                float(torch.exp(then - torch.tensor(s.behavior_logprobs[s.loss_mask])).max())
                for s, then in zip(expected_from, reference, strict=True)
                if s.agent_id.depth == 0
            ),
            rel=1e-5,
        )
    assert metrics.mean_ratio > 1.5, "the first update has moved the ratios of the second"


def test_without_weights_nothing_is_frozen_and_the_sampler_is_the_reference() -> None:
    samples, _ = random_samples(1)
    learner = learner_of(tiny())
    assert attach_old_logprobs(learner, [samples[:4], samples[4:]], LossConfig()) == [samples[:4], samples[4:]]
    batch = collate(samples, pad_id=0)
    logprobs = learner.logprobs(batch)
    assert select_old_logprobs(Importance(), batch, logprobs) is batch.behavior_logprobs
    own = select_old_logprobs(Importance(ImportanceLevel.TOKEN), batch, logprobs)
    assert torch.equal(own, logprobs)
    assert not own.requires_grad


def test_one_step_with_weights_is_reinforce_times_the_weights() -> None:
    samples = near(random_samples(2)[0])
    model = in_double(tiny())
    learner = learner_of(deepcopy(model))
    kept = gradients(learner)
    metrics = learner.policy_step(samples, LossConfig(importance=Importance(ImportanceLevel.TOKEN)))
    assert metrics.mean_ratio == 1.0
    batch = collate(samples, pad_id=0)
    logprobs = learner_of(model).logprobs(batch)
    weights = torch.exp(logprobs.detach() - batch.behavior_logprobs).clamp(max=2.0)
    (-weights * batch.advantages * logprobs * batch.weights)[batch.loss_mask].sum().backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(kept[0], expected, rtol=1e-6, atol=1e-9)


def test_samples_with_and_without_old_logprobs_are_not_mixed() -> None:
    samples, _ = random_samples(1)
    frozen = replace(samples[0], old_logprobs=samples[0].behavior_logprobs)
    with pytest.raises(AssertionError, match="either all samples"):
        collate([frozen, samples[1]], pad_id=0)


# By name


@dataclass(frozen=True)
class Plain:
    """REINFORCE, or what is no loss."""

    scale: float = 1.0
    summed: bool = False

    def __call__(self, inputs: LossInputs) -> Tensor:
        per_token = -self.scale * inputs.advantages * inputs.logprobs
        return per_token.sum() if self.summed else per_token


class NoLoss:
    pass


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with a loss, as a wheel leaves it behind."""
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[selfcest.loss]\nplain = plain_loss:Plain\n", encoding="utf-8")
    source = "import sys\nPlain, NoLoss = sys.modules[{!r}].Plain, sys.modules[{!r}].NoLoss\n".format(*[__name__] * 2)
    (tmp_path / "plain_loss.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", ["plain", "plain_loss:Plain"])
def test_a_loss_of_your_own_trains(name: str) -> None:
    config = LossConfig(name, {"scale": 2.0})
    assert make_loss(config.name, config.options, where="") == Plain(2.0)
    samples, _ = random_samples(1)
    doubled, usual = learner_of(in_double(tiny())), learner_of(in_double(tiny()))
    found, expected = gradients(doubled), gradients(usual)
    doubled.policy_step(samples, config)
    usual.policy_step(samples, LossConfig("cispo", importance=Importance(ImportanceLevel.TOKEN, cap=math.inf)))
    # The usual one weighs tokens by the ratio to the sampler; with a sampler that is the learner both are REINFORCE.
    assert not torch.allclose(found[0], 2 * expected[0])
    logprobs, _ = usual.compute(samples, ForwardOutput.LOGPROBS)
    fresh = [replace(sample, behavior_logprobs=row) for sample, row in zip(samples, logprobs, strict=True)]
    doubled.model.load_state_dict(usual.model.state_dict())
    doubled.policy_step(fresh, config)
    usual.policy_step(fresh, LossConfig("cispo", importance=Importance(ImportanceLevel.TOKEN, cap=math.inf)))
    torch.testing.assert_close(found[1], 2 * expected[1], rtol=1e-6, atol=1e-9)


def test_terms_add_up_with_their_weights() -> None:
    """The bonus's gradient by itself, from the whole softmax of every sample; and log-probs of clones, by depth."""
    samples, _ = random_samples(2)
    model = in_double(tiny())
    entropy = sum((of_sample(model, sample)[1] * sample.weight).sum() for sample in samples)
    clones = sum((of_sample(model, s)[0] * s.weight * s.agent_id.depth).sum() for s in samples)
    expected = torch.autograd.grad(-0.1 * entropy + 0.5 * clones, [p for p in model.parameters() if p.requires_grad])
    # What is left differs by the rounding of weights to float32.
    zero = [replace(sample, advantages=0 * sample.advantages) for sample in samples]
    for options in (ForwardOptions(), ForwardOptions(logit_chunk=0), ForwardOptions(logit_chunk=3)):
        learner = learner_of(deepcopy(model), forward=options)
        kept = gradients(learner)
        terms = {"entropy": LossTermConfig(-0.1), "clones": LossTermConfig(0.5, "trivial:OfClones")}
        metrics = learner.policy_step(zero, LossConfig(terms=terms))
        torch.testing.assert_close(
            kept[0], torch.cat([g.flatten() for g in expected]), rtol=1e-6, atol=1e-9
        )  # weights are float32
        tokens = sum(int(sample.loss_mask.sum()) for sample in samples)
        mean = sum(float(of_sample(model, sample)[1].detach().sum()) for sample in samples) / tokens
        assert average_metrics([metrics])["loss/entropy"] == pytest.approx(mean, rel=1e-6)


def of_sample(model: PreTrainedModel, sample: Sample) -> tuple[Tensor, Tensor]:
    """Log-probs of a sample's trained ids, and entropies where they were drawn, at their temperature."""
    logits = model(input_ids=torch.tensor(sample.token_ids)[None]).logits[0, :-1]
    logprobs = F.log_softmax(logits / torch.tensor(sample.temperature[1:])[:, None], -1)
    chosen = logprobs.gather(1, torch.tensor(sample.token_ids[1:])[:, None])[:, 0]
    mask = torch.tensor(sample.loss_mask[1:])
    return chosen[mask], torch.distributions.Categorical(logits=logprobs).entropy()[mask]


@pytest.mark.usefixtures("installed")
def test_what_is_no_loss_is_refused() -> None:
    with pytest.raises(PlugInError, match=r"'plain_loss:NoLoss': NoLoss lacks __call__\(\)"):
        LOSS_REGISTRY.load("plain_loss:NoLoss")
    samples, _ = random_samples(1)
    with pytest.raises(TrainingError, match=r"'plain' returned shape \(\) for log-probs of shape"):
        learner_of(tiny()).policy_step(samples, LossConfig("plain", {"summed": True}))
    with pytest.raises(PlugInError, match="'trivial:NeedsMuch': needs has 'everything' .*reference or entropy"):
        make_loss("trivial:NeedsMuch", {}, where="")
    with pytest.raises(ConfigError, match=r"unknown loss 'k'"):
        make_loss_sum(LossConfig(terms={"k": LossTermConfig(1.0)}))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("clipped", {"clip_low": -0.1}, "loss.options.clip_low is -0.1; expected a number >= 0"),
        ("clipped", {"clip_high": math.nan}, "clip_high is nan"),
        ("clipped", {"delta": 1.2}, r"delta is 1.2; expected a number > 1 \+ clip_high = 1.2, or null"),
        ("clipped", {"level": "episode"}, "loss.options.level is 'episode'; expected one of token, sequence"),
        (
            "clipped",
            {"clip": 0.1},
            "loss.options.clip is unknown. Did you mean 'clip_low'",
        ),
        ("cispo", {"epsilon_high": -1.0}, "epsilon_high is -1.0; expected a finite number > -1"),
        ("cispo", {"epsilon_high": math.inf}, "epsilon_high is inf"),
    ],
)
def test_a_wrong_option_is_an_error_when_the_loss_is_made(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_loss(name, options, where="loss.options")


def test_an_unknown_loss_or_importance_is_named() -> None:
    with pytest.raises(ConfigError, match="unknown loss 'clip'.*Did you mean 'clipped'"):
        LOSS_REGISTRY.load("clip")
    with pytest.raises(ConfigError, match=r"Importance.level is 'episode'; expected one of none, token, sequence"):
        Importance("episode")  # type: ignore[arg-type]
    for cap in (0.5, math.nan):
        with pytest.raises(ConfigError, match=f"Importance.cap is {cap}; expected a number >= 1"):
            Importance(ImportanceLevel.TOKEN, cap)


def test_agreement_allows_what_a_low_temperature_makes_of_rounding() -> None:
    """Logits that are off by 5e-4 are log-probs off by 0.02 at a temperature of 0.025; at 1 this would be a bug."""
    metrics = learner_of(tiny()).policy_step(random_samples(1)[0], LossConfig())
    for temperature, agrees in ((1.0, False), (0.025, True), (2.0, False)):
        found = replace(metrics, max_logprob_gap=0.02, temperature=temperature)
        if agrees:
            check_agreement(found)
        else:
            with pytest.raises(TrainingError, match="disagree by 0.02 in the log-prob of a token, more than 0.01"):
                check_agreement(found)
    cold = [replace(s, temperature=np.where(s.loss_mask, 0.025, 1).astype(np.float32)) for s in random_samples(1)[0]]
    assert learner_of(tiny()).policy_step(cold, LossConfig()).temperature == pytest.approx(0.025)


TERMS = {"clipped": Clipped, "cispo": Cispo, "kl": Kl, "entropy": Entropy}


def test_built_in_losses_are_found_by_name() -> None:
    assert {name: type(make_loss(name, {}, where="")) for name in LOSS_REGISTRY} == TERMS


# Sampler and learner


def test_agreement_is_exact_in_float32_and_on_average_otherwise() -> None:
    samples = random_samples(1)[0]
    learner = learner_of(tiny())
    for shift, exact, average in ((0.0, True, True), (0.1, False, True), (0.4, False, False)):
        rng = random.Random(0)
        logprobs, _ = learner.compute(samples, ForwardOutput.LOGPROBS)
        fresh = [
            replace(sample, behavior_logprobs=row + rng.choice((-shift, shift)) * sample.loss_mask)
            for sample, row in zip(samples, logprobs, strict=True)
        ]
        metrics = learner.policy_step(fresh, LossConfig())
        assert metrics.mean_logprob_gap == pytest.approx(shift, abs=1e-5)
        assert average_metrics([metrics])["mean_logprob_gap"] == metrics.mean_logprob_gap
        if exact:
            check_agreement(metrics, exact=True)
        else:
            with pytest.raises(TrainingError, match=f"disagree by {shift} in the log-prob of a token, more than 0.01"):
                check_agreement(metrics, exact=True)
        if average:
            check_agreement(metrics, exact=False)
        else:
            with pytest.raises(TrainingError, match="disagree by 0.4 in log-prob on average over the tokens"):
                check_agreement(metrics, exact=False)
