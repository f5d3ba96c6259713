"""Tree rows: laid out as worked out by hand, and with the gradients of rows that share nothing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from records import TASK, agent, turn
from test_job import config, play
from test_job import rows as metrics
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from selfcest_agents.tiny import TinyConfig, build_tiny
from selfcest_env.errors import ConfigError
from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.types import ROOT, Limits, Outcome, Status, TurnKey
from selfcest_training.credit import Credit
from selfcest_training.learner.batch import Sample, build_samples, collate
from selfcest_training.learner.options import (
    Batches,
    Denominator,
    ForwardOptions,
    LossConfig,
    LossTermConfig,
    OptimizerConfig,
    Rows,
)
from selfcest_training.learner.tree_rows import TreeRow, bucket_by_prefix, build_tree_rows, collate_trees
from selfcest_training.learner.update import Learner

SHAPE = TinyConfig(hidden_size=32, num_layers=2, num_heads=4, intermediate_size=48)
SHARED = (1, 2, 3)


def sample(*ids: int, prompt: int = 0, advantage: float = 1.0, weight: float = 1.0) -> Sample:
    """A context whose ids after the first `prompt` train."""
    mask = np.arange(len(ids)) >= prompt
    values = {name: np.where(mask, value, 0).astype(np.float32) for name, value in (("b", -5.0), ("a", advantage))}
    temperature = np.where(mask, 0.8, 1).astype(np.float32)
    return Sample("e", ROOT, np.array(ids), mask, values["b"], values["a"], temperature, weight)


def random_ids(rng: random.Random, low: int, high: int) -> tuple[int, ...]:
    return tuple(rng.randrange(20, 28) for _ in range(rng.randint(low, high)))


def random_episode(rng: random.Random, name: str, prompt: tuple[int, ...]) -> EpisodeRecord:
    """A root of one to three turns that calls clones; the episodes of a group share `prompt`, all clones a prefix.

    Eight ids only, so that what was generated is sometimes shared as well.
    """

    def turns(first: tuple[int, ...], count: int) -> list[dict[str, tuple[int, ...]]]:
        prompts = [first, *(random_ids(rng, 1, 6) for _ in range(count - 1))]
        return [{"prompt": given, "ids": random_ids(rng, 1, 8)} for given in prompts]

    def play(each: dict[str, tuple[int, ...]], outcome: Outcome) -> object:
        return turn(each["prompt"], each["ids"], outcome=outcome, logprob=-5.0 - rng.random() / 2, temperature=0.8)

    clones = [
        agent(ROOT.child(i), *(play(each, Outcome.ANSWERED) for each in turns((*SHARED, *random_ids(rng, 8, 12)), 2)))  # type: ignore[arg-type]
        for i in range(rng.randint(0, 3))
    ]
    root = agent(ROOT, *(play(each, Outcome.DELEGATED) for each in turns(prompt, rng.randint(1, 3))))  # type: ignore[arg-type]
    return EpisodeRecord(name, TASK, Limits(), 0, (root, *clones), {"correct": rng.random()})


def random_samples(seed: int, excluded_share: float = 0.3) -> tuple[list[Sample], int]:
    """Samples of two groups, some turns excluded, and how many turns are."""
    rng = random.Random(seed)
    groups, credits = [], []
    for g in range(2):
        prompt = random_ids(rng, 20, 30)
        one = EpisodeGroup(TASK, tuple(random_episode(rng, f"g{g}e{k}", prompt) for k in range(4)))
        keys = [
            TurnKey(e.episode_id, a.agent_id, i) for e in one.episodes for a in e.agents for i in range(len(a.turns))
        ]
        excluded = {key for key in keys if rng.random() < excluded_share}
        groups.append(one)
        credits.append(Credit({key: rng.gauss(0, 1) for key in keys if key not in excluded}, frozenset(excluded)))
    samples = build_samples(groups, credits, denominator=Denominator.CONSTANT, constant=10.0)
    return samples, sum(len(credit.excluded) for credit in credits)


def tiny(attention: str = "eager") -> PreTrainedModel:
    model = build_tiny(SHAPE, seed=0)
    model.set_attn_implementation(attention)
    return model


def in_double(model: PreTrainedModel) -> PreTrainedModel:
    """The model in float64 throughout: transformers' own norm rounds to float32, and so does its eager softmax."""
    model.set_attn_implementation("sdpa")
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, LlamaRMSNorm):
                norm = torch.nn.RMSNorm(child.weight.shape, eps=child.variance_epsilon)
                setattr(parent, name, norm)
    return model.double()


def learner_of(
    model: PreTrainedModel, rows: Rows, micro_batch_tokens: int, forward: ForwardOptions = ForwardOptions()
) -> Learner:
    return Learner(
        model,
        OptimizerConfig(max_grad_norm=1e9),
        pad_id=0,
        micro_batch_tokens=micro_batch_tokens,
        reference=in_double(build_tiny(SHAPE, seed=1)).to(model.device),
        rows=rows,
        forward=forward,
    )


def gradient(
    model: PreTrainedModel,
    samples: Sequence[Sample],
    rows: Rows,
    micro_batch_tokens: int,
    forward: ForwardOptions = ForwardOptions(),
) -> torch.Tensor:
    """Of one optimiser step of a copy of the model, KL to another model included."""
    model = deepcopy(model)
    learner = learner_of(model, rows, micro_batch_tokens, forward)
    kept: list[torch.Tensor] = []
    learner.optimizer.register_step_pre_hook(
        lambda *_: kept.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    )
    learner.policy_step(samples, LossConfig(terms={"kl": LossTermConfig(0.1)}))
    assert len(kept) == 1, "exactly one optimiser step"
    return kept[0].double()


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference of an entry, relative to the largest entry."""
    return float((found - expected).abs().max() / expected.abs().max())


CONTEXTS = [sample(1, 2, 11, prompt=2), sample(1, 2, 10, prompt=2), sample(1, 2, 10, 5, prompt=3)]


def test_a_row_by_hand() -> None:
    (row,) = build_tree_rows(CONTEXTS, max_tokens=100, hidden_size=1000)
    assert [s.token_ids.tolist() for s in row.samples] == [[1, 2, 10], [1, 2, 10, 5], [1, 2, 11]]
    assert row.shared == (0, 3, 2)
    assert len(row) == 5
    assert [path.tolist() for path in row.paths()] == [[0, 1, 2], [0, 1, 2, 3], [0, 1, 4]]


def test_batches_by_prefix_by_hand() -> None:
    stranger = sample(7, 8, 9, 7, prompt=3)
    batches = bucket_by_prefix([stranger, *CONTEXTS], max_tokens=5)
    shared = [[1, 2, 10], [1, 2, 10, 5], [1, 2, 11]]
    assert [[s.token_ids.tolist() for s in batch] for batch in batches] == [shared, [[7, 8, 9, 7]]]


def test_a_batch_by_hand() -> None:
    row = TreeRow.of([CONTEXTS[1], CONTEXTS[2], CONTEXTS[0]])
    other = TreeRow.of([sample(7, 8, 9, 7, 7, 9, prompt=5)])
    batch = collate_trees([row, other], pad_id=0)
    tree = batch.layout
    assert tree is not None
    assert tree.positions is not None
    assert tree.visible is not None
    assert tree.token_ids.tolist() == [[1, 2, 10, 5, 11, 0], [7, 8, 9, 7, 7, 9]]
    assert tree.positions.tolist() == [[0, 1, 2, 3, 2, 0], [0, 1, 2, 3, 4, 5]]
    assert tree.visible[0].int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 0, 0, 1, 0],  # 11 follows 2, not 5
        [0, 0, 0, 0, 0, 1],  # a pad
    ]
    assert torch.equal(tree.visible[1], torch.ones(6, 6).tril().bool())
    # 10 and 11 are predicted after 2, the last token that they share; 5 after 10; the 9 after its row's fifth.
    assert tree.sources.tolist() == [[0, 0, 0, 1], [1, 2, 1, 4]]
    assert batch.token_ids[batch.loss_mask].tolist() == [10, 5, 11, 9]
    assert batch.num_tokens == 11
    assert collate(row.samples, pad_id=0).num_tokens == 3 + 4 + 3


def test_a_group_shares_its_prompt_and_strangers_do_not_meet() -> None:
    rng = np.random.default_rng(0)
    prompts = [rng.integers(20, 90, 300).tolist() for _ in range(2)]
    samples = [sample(5, *prompts[i % 2], *rng.integers(20, 90, 63), prompt=301) for i in range(16)]
    rows = build_tree_rows(samples, max_tokens=10_000, hidden_size=64)
    # 1 + 300 + 8 x 63 ids; that both begin with 5 is worth no common attention
    assert [len(row) for row in rows] == [805, 805]
    # 1 + 300 + 5 x 63 = 616 fit into 620, and the other three begin another row
    assert [len(row) for row in build_tree_rows(samples, max_tokens=620, hidden_size=64)] == [616, 490, 616, 490]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("max_tokens", [1, 60, 10_000])
def test_rows_hold_every_sample_once_within_the_limit_and_every_prefix_once(seed: int, max_tokens: int) -> None:
    samples, _ = random_samples(seed)
    rows = build_tree_rows(samples, max_tokens=max_tokens, hidden_size=64)
    assert sorted(id(s) for row in rows for s in row.samples) == sorted(map(id, samples))
    for row in rows:
        assert len(row) <= max_tokens or len(row.samples) == 1
        contexts = [tuple(s.token_ids.tolist()) for s in row.samples]
        assert len(row) == len({context[: i + 1] for context in contexts for i in range(len(context))})


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("model", "tolerance"),
    [(tiny("eager"), 1e-5), (tiny("sdpa"), 1e-5), (in_double(tiny()), 1e-9)],
    ids=["eager", "sdpa", "float64"],
)
def test_gradients_of_tree_padded_and_bucketed_rows_are_equal(
    seed: int, model: PreTrainedModel, tolerance: float
) -> None:
    samples, num_excluded = random_samples(seed)
    assert num_excluded > 3
    padded = gradient(model, samples, Rows.BUCKETED, 100_000)
    assert padded.abs().max() > 1e-3
    assert difference(gradient(model, samples, Rows.BUCKETED, 100), padded) < tolerance
    for micro_batch_tokens in (100, 300, 100_000):
        tree = gradient(model, samples, Rows.TREE, micro_batch_tokens)
        assert difference(tree, padded) < tolerance
    batches = list(learner_of(model, Rows.TREE, 300).micro_batches(samples))
    alone = {True, False} if model.config._attn_implementation == "eager" else {False}
    assert {batch.layout is None for batch in batches} == alone, "both kinds of row are in the test"


@pytest.mark.parametrize("rows", [Rows.BUCKETED, Rows.TREE, Rows.PACKED])
@pytest.mark.parametrize(
    "forward",
    [
        ForwardOptions(logit_chunk=0),
        ForwardOptions(logit_chunk=7),
        ForwardOptions(gradient_checkpointing=True),
        ForwardOptions(logit_chunk=0, gradient_checkpointing=True),
    ],
    ids=["whole logits", "chunks of 7", "checkpointing", "whole logits, checkpointing"],
)
@pytest.mark.parametrize(
    ("model", "tolerance"),
    [pytest.param(tiny("sdpa"), 1e-5, marks=pytest.mark.slow), (in_double(tiny()), 1e-9)],
    ids=["float32", "float64"],
)
@pytest.mark.filterwarnings("ignore:rows is 'packed'")
def test_no_option_of_the_forward_pass_changes_the_gradient(
    rows: Rows, forward: ForwardOptions, model: PreTrainedModel, tolerance: float
) -> None:
    samples, _ = random_samples(5)
    padded = gradient(model, samples, Rows.BUCKETED, 100_000, ForwardOptions(logit_chunk=100_000))
    assert difference(gradient(model, samples, rows, 300, forward), padded) < tolerance


def test_grouped_query_attention_has_the_same_gradient() -> None:
    shape = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48}
    torch.manual_seed(0)
    llama = LlamaConfig(vocab_size=180, num_hidden_layers=2, **shape)  # type: ignore[arg-type]
    model = in_double(LlamaForCausalLM(llama))  # type: ignore[no-untyped-call]
    samples = [sample(*SHARED, *random_ids(random.Random(i), 5, 9), prompt=3, advantage=(-1.0) ** i) for i in range(5)]
    padded = gradient(model, samples, Rows.BUCKETED, 1000)
    assert difference(gradient(model, samples, Rows.TREE, 1000), padded) < 1e-9
    assert len(build_tree_rows(samples, max_tokens=1000, hidden_size=32)) == 1


def test_samples_that_share_every_id_keep_their_own_credit() -> None:
    twins = [sample(1, 2, 3, 4, 5, prompt=3, advantage=a, weight=w) for a, w in ((2.0, 0.5), (-1.0, 0.25))]
    (row,) = build_tree_rows(twins, max_tokens=100, hidden_size=64)
    assert len(row) == 5
    model = in_double(tiny())
    expected = gradient(model, twins[:1], Rows.BUCKETED, 100) + gradient(model, twins[1:], Rows.BUCKETED, 100)
    assert difference(gradient(model, twins, Rows.TREE, 100), expected) < 1e-9


def test_metrics_and_denominators_are_those_of_bucketed_rows_and_shared_ids_count_once() -> None:
    samples, _ = random_samples(0)
    loss = LossConfig(terms={"kl": LossTermConfig(0.1)})
    bucketed = learner_of(tiny(), Rows.BUCKETED, 500).policy_step(samples, loss)
    learner = learner_of(tiny(), Rows.TREE, 500)
    tree = learner.policy_step(samples, loss)
    for name in ("loss", "grad_norm", "mean_ratio", "clip_share", "max_logprob_gap"):
        assert getattr(tree, name) == pytest.approx(getattr(bucketed, name), rel=1e-4), name
    assert tree.terms == pytest.approx(bucketed.terms, rel=1e-4)
    assert tree.num_rows == bucketed.num_rows == len(samples)
    assert bucketed.trained_tokens == sum(map(len, samples))
    assert tree.trained_tokens == sum(map(len, build_tree_rows(samples, max_tokens=500, hidden_size=SHAPE.hidden_size)))
    assert tree.trained_tokens < bucketed.trained_tokens


def test_a_temperature_is_divided_by_in_tree_rows_too() -> None:
    model = in_double(tiny())
    pair = [sample(1, 2, 3, 4, prompt=3), sample(1, 2, 3, 5, prompt=3)]
    batch = collate_trees([TreeRow.of(pair)], pad_id=0)
    logits = model(input_ids=torch.tensor([[1, 2, 3]])).logits[0, -1]
    expected = torch.log_softmax(logits / torch.tensor(0.8, dtype=torch.float32), -1)[[4, 5]]
    found = learner_of(model, Rows.TREE, 100).logprobs(batch)
    torch.testing.assert_close(found[:, 3], expected, rtol=1e-9, atol=1e-9)
    assert found[:, :3].abs().max() == 0


def test_a_model_whose_attention_cannot_have_a_mask_is_refused() -> None:
    model = tiny()
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ConfigError, match=r"attention is 'flash_attention_2'.*'sdpa' or 'eager'"):
        learner_of(model, Rows.TREE, 100)
    shape = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48}
    mistral = MistralConfig(vocab_size=180, num_hidden_layers=1, sliding_window=8, **shape)  # type: ignore[arg-type]
    windowed: PreTrainedModel = MistralForCausalLM(mistral)
    with pytest.raises(ConfigError, match="sliding window of 8"):
        learner_of(windowed, Rows.TREE, 100)
    learner_of(windowed, Rows.BUCKETED, 100)


def test_an_excluded_agent_gives_no_row_and_leaves_the_weights() -> None:
    failed = agent(ROOT.child(0), turn((1, 2, 3), (4, 5)), status=Status.OUT_OF_TURNS)
    root = agent(ROOT, turn((1, 2, 3, 6), (7, 8)))
    one = EpisodeGroup(TASK, (EpisodeRecord("e", TASK, Limits(), 0, (root, failed), {"correct": 1.0}),))
    credit = Credit({TurnKey("e", ROOT, 0): 1.0}, frozenset({TurnKey("e", ROOT.child(0), 0)}))
    samples = build_samples([one], [credit], denominator=Denominator.EPISODE_MEAN, constant=1.0)
    (row,) = build_tree_rows(samples, max_tokens=100, hidden_size=64)
    # 2 + 2 generated ids of one episode, excluded ones too
    assert [(s.agent_id, s.weight) for s in row.samples] == [(ROOT, 1 / 4)]


@pytest.mark.slow
def test_a_run_with_tree_rows_has_the_same_loss_for_less_compute(tmp_path: Path) -> None:
    bucketed, tree = (
        metrics(play(config(tmp_path / kind, rows=kind, variants__delegating__rl__steps=1)))[0]
        for kind in (Rows.BUCKETED, Rows.TREE)
    )
    assert tree["logprob_gap"] < 1e-4
    assert bucketed["loss"] != 0
    assert tree["loss"] == pytest.approx(bucketed["loss"], rel=1e-4)
    assert tree["compute_tokens"] < bucketed["compute_tokens"]


@pytest.mark.slow
def test_a_warm_start_of_batches_by_prefix_computes_less_and_learns(tmp_path: Path) -> None:
    by_length, by_prefix = (
        metrics(
            play(config(tmp_path / kind, rows=Rows.TREE, variants__delegating__warmstart__batches=kind)), "warmstart"
        )
        for kind in Batches
    )
    assert by_prefix[-1]["compute_tokens"] < by_length[-1]["compute_tokens"]
    assert by_prefix[-1]["loss"] < 0.5 * by_prefix[0]["loss"]
