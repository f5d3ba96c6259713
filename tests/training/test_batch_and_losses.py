"""Losses on four tokens, worked out by hand; batches that weigh the same however they are cut."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from records import agent, group, loss_inputs, three_agents, turn
from torch.nn import functional as F

from selfcest_agents.tiny import TinyConfig, build_tiny
from selfcest_env.errors import ConfigError
from selfcest_env.record import EpisodeRecord
from selfcest_env.types import ROOT, Status
from selfcest_training.credit import Gated, Grpo
from selfcest_training.learner.batch import Sample, bucket_by_length, build_samples, collate
from selfcest_training.learner.losses import Clipped, Kl, entropies, token_logprobs, weighted_sum
from selfcest_training.learner.options import Denominator, LossConfig, LossTermConfig, OptimizerConfig
from selfcest_training.learner.update import Learner


def samples_of(
    *episodes: EpisodeRecord, denominator: Denominator = Denominator.CONSTANT, constant: float = 10.0
) -> list[Sample]:
    one = group(*episodes)
    return build_samples([one], [Gated().assign(one, {})], denominator=denominator, constant=constant)


def test_clipped_surrogate_by_hand() -> None:
    # ratios e^0 = 1, e^.5 = 1.6487, e^-.5 = .6065, e^.5
    now, then = torch.tensor([-1.0, -0.5, -1.5, -0.5]), torch.tensor([-1.0, -1.0, -1.0, -1.0])
    advantages = torch.tensor([2.0, 1.0, -1.0, -1.0])
    # -min(1*2, 1*2) = -2;  -min(1.6487, 1.2) = -1.2;  -min(-.6065, -.8) = .8;  -min(-1.6487, -1.2) = 1.6487
    loss = Clipped(clip_low=0.2, clip_high=0.2)(loss_inputs(now, then, advantages))
    assert loss.tolist() == pytest.approx([-2.0, -1.2, 0.8, 1.648721], abs=1e-6)


def test_on_policy_gradient_is_reinforce() -> None:
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    advantages = torch.tensor([0.5, -3.0])
    Clipped()(loss_inputs(logprobs, logprobs.detach(), advantages)).sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [-0.5, 3.0]


def test_kl_by_hand() -> None:
    # d = ref - now = -.1: e^-.1 + .1 - 1 = .0048374; equal log-probs: 0
    logprobs = torch.tensor([-1.0, -2.0])
    inputs = replace(loss_inputs(logprobs, logprobs, logprobs), reference_logprobs=torch.tensor([-1.1, -2.0]))
    assert Kl()(inputs).tolist() == pytest.approx([0.0048374, 0.0], abs=1e-6)
    # -d = .1, d^2 / 2 = .005
    assert Kl("k1")(inputs).tolist() == pytest.approx([0.1, 0.0], abs=1e-6)
    assert Kl("k2")(inputs).tolist() == pytest.approx([0.005, 0.0], abs=1e-6)


def test_entropies_by_hand() -> None:
    # At temperature 2, logits (0, 2 ln 3) give (1/4, 3/4): ln 4 - 3/4 ln 3. Equal ones give ln 2.
    logits = torch.tensor([[0.0, 2 * math.log(3)], [5.0, 5.0]])
    found = entropies(logits, torch.tensor([2.0, 1.0]))
    assert found.tolist() == pytest.approx([math.log(4) - 0.75 * math.log(3), math.log(2)], abs=1e-6)


def test_token_logprobs_by_hand() -> None:
    # two ids, logits (0, log 3) after the first: p = 1/4, 3/4; at T = .5 the odds are squared: 1/10, 9/10
    logits = torch.tensor([[[0.0, math.log(3.0)], [0.0, 0.0]]])
    ids = torch.tensor([[0, 1]])
    assert token_logprobs(logits, ids, torch.ones(1, 2))[0].tolist() == pytest.approx([0.0, math.log(0.75)])
    assert token_logprobs(logits, ids, torch.full((1, 2), 0.5))[0, 1].item() == pytest.approx(math.log(0.9))


def test_masked_positions_may_hold_nan() -> None:
    loss = weighted_sum(torch.tensor([1.0, math.nan]), torch.tensor([0.5, math.nan]), torch.tensor([True, False]))
    assert loss.item() == 0.5


def test_samples_by_hand() -> None:
    root, first, second = samples_of(three_agents("a", 1.0), three_agents("b", 0.0))[:3]
    assert root.token_ids.tolist() == [1, 2, 10, 11, 3, 4, 5, 12]
    assert root.loss_mask.tolist() == [False, False, True, True, False, False, False, True]
    assert first.token_ids.tolist() == [6, 13, 14, 15]
    assert second.advantages.tolist() == pytest.approx([0.0, math.sqrt(0.5), math.sqrt(0.5)])
    assert root.weight == pytest.approx(1 / (2 * 10))


def test_episode_mean_divides_by_all_generated_tokens() -> None:
    # 2 + 1 + 3 + 2 = 8 generated tokens in each of two episodes
    assert (
        samples_of(three_agents("a", 1.0), three_agents("b", 0.0), denominator=Denominator.EPISODE_MEAN)[0].weight
        == 1 / 16
    )


def test_episode_mean_of_one_token_and_of_none() -> None:
    """One token weighs 1 over the episodes; an episode that could not begin has no sample and divides nothing by 0."""
    one = replace(three_agents("a", 1.0), agents=(agent(ROOT, turn((1,), (9,))),))
    none = replace(three_agents("b", 0.0), agents=(agent(ROOT, status=Status.PROMPT_TOO_LONG),))
    (sample,) = samples_of(one, none, denominator=Denominator.EPISODE_MEAN)
    assert (sample.episode_id, sample.weight) == ("a", 1 / 2)


def test_an_excluded_turn_is_not_in_the_batch_and_the_denominator_does_not_notice() -> None:
    failed = three_agents("a", 1.0, second_clone=Status.OUT_OF_TURNS)
    samples = samples_of(failed, three_agents("b", 0.0))
    assert ("a", ROOT.child(1)) not in {(s.episode_id, s.agent_id) for s in samples}
    assert ("b", ROOT.child(1)) in {(s.episode_id, s.agent_id) for s in samples}
    assert {s.weight for s in samples} == {1 / 20}


def test_text_only_records_are_refused() -> None:
    record = three_agents("a", 1.0)
    stripped = record.agents[0].turns[0].generation
    object.__setattr__(stripped, "token_ids", ())
    with pytest.raises(ConfigError, match="a/root/turn0 has no token ids"):
        samples_of(record, three_agents("b", 0.0))


def test_a_denominator_of_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match="constant is 0"):
        samples_of(three_agents("a", 1.0), three_agents("b", 0.0), constant=0.0)


def test_buckets_hold_every_sample_once_within_the_limit() -> None:
    samples = samples_of(three_agents("a", 1.0), three_agents("b", 0.0))
    buckets = list(bucket_by_length(samples, max_tokens=12))
    assert sorted(id(s) for bucket in buckets for s in bucket) == sorted(id(s) for s in samples)
    assert all(len(bucket) * max(len(s) for s in bucket) <= 12 for bucket in buckets)


def test_padding_is_outside_every_mask() -> None:
    batch = collate(samples_of(three_agents("a", 1.0), three_agents("b", 0.0)), pad_id=0)
    assert batch.token_ids.shape == (6, 8)
    assert int(batch.loss_mask.sum()) == 16  # 8 generated tokens in each episode


def gradient(samples: list[Sample], micro_batch_tokens: int, denominator_scale: float = 1.0) -> torch.Tensor:
    model = build_tiny(TinyConfig(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=16), seed=0).double()
    learner = Learner(
        model, OptimizerConfig(max_grad_norm=1e9, learning_rate=1e-9), pad_id=0, micro_batch_tokens=micro_batch_tokens
    )
    kept: list[torch.Tensor] = []
    learner._optimizer_step = lambda progress: (
        kept.append(  # type: ignore[method-assign]
            torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        )
        or (0.0, {})
    )
    learner.policy_step(samples, LossConfig())
    assert len(kept) == 1, "exactly one optimiser step"
    return kept[0]


def test_gradient_does_not_depend_on_the_micro_batches_or_on_row_order() -> None:
    samples = samples_of(three_agents("a", 1.0), three_agents("b", 0.0))
    whole = gradient(samples, 10_000)
    assert whole.abs().max() > 1e-6
    torch.testing.assert_close(gradient(samples, 1), whole, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(gradient(samples[::-1], 12), whole, rtol=1e-6, atol=1e-9)


def test_gradient_equals_an_independent_policy_gradient() -> None:
    episodes = [three_agents("a", 1.0), three_agents("b", 0.0)]
    model = build_tiny(TinyConfig(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=16), seed=0).double()
    one = group(*episodes)
    advantages = Grpo().assign(one, {}).advantage
    total = torch.zeros(())
    for episode in episodes:
        for record in episode.agents:
            context: list[int] = []
            for i, played in enumerate(record.turns):
                context += played.generation.prompt_ids
                for token in played.generation.token_ids:
                    logits = model(input_ids=torch.tensor([context])).logits[0, -1]
                    logprob = F.log_softmax(logits, -1)[token]
                    key = next(
                        k
                        for k in advantages
                        if k.episode_id == episode.episode_id and k.agent_id == record.agent_id and k.turn == i
                    )
                    ratio = torch.exp(logprob - played.generation.behavior_logprobs[0])
                    a = advantages[key]
                    assert isinstance(a, float)
                    total = total - torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a) / (2 * 10)
                    context.append(token)
    total.backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(gradient(samples_of(*episodes), 10_000), expected, rtol=1e-5, atol=1e-8)


def test_a_mini_batch_with_nothing_to_train_makes_no_step_and_says_so() -> None:
    model = build_tiny(TinyConfig(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=16), seed=0)
    learner = Learner(model, OptimizerConfig(), pad_id=0, micro_batch_tokens=100)
    assert learner.policy_step([], LossConfig()).num_rows == 0
    assert learner.num_steps == 0


def test_a_step_counts_as_a_change_of_every_weight() -> None:
    """A sampler that shares the model tells by torch's counters whether what it keeps of the weights is still true."""
    model = build_tiny(TinyConfig(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=24), seed=0)
    learner = Learner(model, OptimizerConfig(), pad_id=0, micro_batch_tokens=64)
    before = [weight._version for weight in model.parameters()]
    learner.imitation_step(samples_of(three_agents("a", 1.0), three_agents("b", 0.0)), progress=0.0)
    assert all(weight._version > count for weight, count in zip(model.parameters(), before, strict=True))


def test_kl_without_a_reference_is_refused() -> None:
    model = build_tiny(TinyConfig(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=16), seed=0)
    learner = Learner(model, OptimizerConfig(), pad_id=0, micro_batch_tokens=100)
    with pytest.raises(ConfigError, match="needs the reference model"):
        learner.policy_step(
            samples_of(three_agents("a", 1.0), three_agents("b", 0.0)), LossConfig(terms={"kl": LossTermConfig(0.1)})
        )


def test_learning_rate_schedule_by_hand() -> None:
    config = OptimizerConfig(learning_rate=1.0, warmup_steps=4, decay_share=0.5)
    assert [config.learning_rate_at(step, 0.0) for step in (0, 1, 3, 9)] == [0.25, 0.5, 1.0, 1.0]
    assert config.learning_rate_at(9, 0.75) == pytest.approx(0.5)
    assert config.learning_rate_at(9, 1.0) == pytest.approx(0.02)


def test_arrays_are_aligned() -> None:
    for sample in samples_of(three_agents("a", 1.0), three_agents("b", 0.0)):
        arrays = (sample.loss_mask, sample.behavior_logprobs, sample.advantages, sample.temperature)
        assert {len(array) for array in arrays} == {len(sample)}
        assert np.all(sample.behavior_logprobs[sample.loss_mask] == -1.0)
