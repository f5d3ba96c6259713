"""The learner over ranks: what it computes is what one process computes. Real gloo processes, no Ray."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_internals import some_groups
from test_job import config, rows, weights
from test_tree_rows import random_samples
from torch import Tensor

from selfcest_agents.language import language_of
from selfcest_agents.lora import add_lora, merged_weights
from selfcest_agents.lora_options import LoraOptions
from selfcest_env.errors import ConfigError, InfrastructureError, RecordError
from selfcest_env.plugin import PlugIn
from selfcest_env.record import read_episodes
from selfcest_training.cluster.deal import busy_share, check_ranks, deal, dummy
from selfcest_training.cluster.group import LearnerGroup
from selfcest_training.cluster.processes import ProcessRanks
from selfcest_training.cluster.rank import LearnerSpec, Place, Rank
from selfcest_training.credit import Internal
from selfcest_training.learner.batch import Sample
from selfcest_training.learner.internals import look_into
from selfcest_training.learner.options import (
    ForwardOptions,
    Importance,
    ImportanceLevel,
    LossConfig,
    LossTermConfig,
    OptimizerConfig,
    Precision,
    Rows,
)
from selfcest_training.learner.state import LearnerState
from selfcest_training.learner.update import AnyLearner, Learner, UpdateMetrics
from selfcest_training.run.checkpoint import TrainState, load_checkpoint, save_checkpoint
from selfcest_training.run.job import Job, JobId

SHAPE = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "intermediate_size": 48}
TINY = PlugIn("uneven:Even", SHAPE)
HALF = Precision.BFLOAT16
# Without momentum and clipping, the first moment after a step is its gradient.
BARE = OptimizerConfig(learning_rate=1e-3, warmup_steps=0, beta1=0.0, max_grad_norm=float("inf"))
KL = LossConfig(terms={"kl": LossTermConfig(0.1)})


# The deal


def test_a_deal_is_rounds_of_similar_size_with_fewer_dummies_than_ranks() -> None:
    assert deal([10, 40, 30], 2) == [[1, 0], [2, None]]
    assert deal([5, 5, 5, 5], 1) == [[0, 1, 2, 3]]
    assert deal([7], 3) == [[0], [None], [None]]
    assert deal([], 2) == [[], []]
    rng = np.random.default_rng(0)
    for _ in range(200):
        sizes, ranks = rng.integers(1, 99, rng.integers(1, 40)).tolist(), int(rng.integers(1, 9))
        dealt = deal(sizes, ranks)
        assert len({len(own) for own in dealt}) == 1, "as many passes on every rank"
        given = [index for own in dealt for index in own if index is not None]
        assert sorted(given) == list(range(len(sizes)))
        assert sum(own.count(None) for own in dealt) < ranks
        rounds = [[sizes[i] for i in members if i is not None] for members in zip(*dealt, strict=True)]
        assert all(min(one) >= max(after) for one, after in pairwise(rounds))
        waited = sum(max(one) for one in rounds) * ranks
        assert busy_share(sizes, ranks) == pytest.approx(sum(sizes) / waited)


def test_more_ranks_than_micro_batches_are_refused_with_both_numbers() -> None:
    check_ranks(3, 3, "the first mini-batch")
    with pytest.raises(
        ConfigError, match=r"learner_ranks is 4 and the first mini-batch has 3 micro-batches.*at most 3"
    ):
        check_ranks(4, 3, "the first mini-batch")


# One rank in this process: fast, and through all of the code but sums over ranks


def samples_of(seed: int, scale: float = 0.02) -> list[Sample]:
    """Weighed so that gradients are about as large as those of a real run: 0.01 at most."""
    return [replace(sample, weight=sample.weight * scale) for sample in random_samples(seed)[0]]


def spec(**changes: Any) -> LearnerSpec:
    return replace(LearnerSpec(TINY, BARE, micro_batch_tokens=150), **changes)


def alone(spec: LearnerSpec) -> Learner:
    """What `Rank.build` builds, on one process."""
    language = language_of(spec.model)
    model = language.load(spec.seed, spec.folder)
    if spec.lora is not None:
        add_lora(model, spec.lora, spec.lora_seed)
    reference = None
    if spec.reference is not None:
        reference = model if spec.lora is not None else language.load(0, spec.reference)
    return Learner(
        model,
        spec.optimizer,
        pad_id=0,
        micro_batch_tokens=spec.micro_batch_tokens,
        reference=reference,
        rows=spec.rows,
        forward=spec.forward,
    )


def gradient(learner: AnyLearner) -> Tensor:
    """Of the one step that was made; see `BARE`."""
    moments = learner.state().moments
    return torch.cat([tensor.flatten() for name, tensor in moments.items() if name.endswith("/exp_avg")])


def assert_same_gradient(found: AnyLearner, expected: AnyLearner) -> None:
    """Up to the rounding of sums in another order: to 1e-8 where the largest is 0.01."""
    difference, size = (gradient(found) - gradient(expected)).abs().max(), gradient(expected).abs().max()
    assert 1e-3 < size < 2e-2
    assert difference <= 1e-6 * size, f"{difference} of {size}"


def assert_same_metrics(found: UpdateMetrics, expected: UpdateMetrics) -> None:
    assert found.grad_norm == pytest.approx(expected.grad_norm, rel=1e-5)
    plain = [
        {name: value for name, value in vars(each).items() if name not in ("grad_norm", "terms", "mismatch")}
        for each in (found, expected)
    ]
    assert plain[0] == pytest.approx(plain[1], rel=1e-5, abs=1e-9)
    assert found.terms == pytest.approx(expected.terms, rel=1e-5, abs=1e-9)
    assert found.mismatch.keys() == expected.mismatch.keys()
    for name, own in expected.mismatch.items():
        assert vars(found.mismatch[name]) == pytest.approx(vars(own), rel=1e-5, abs=1e-9)


class OneRank:
    """`Ranks` of one, in this process."""

    def __init__(self, folder: Path) -> None:
        self.built: object = None
        self.rank = Rank(Place(0, 1, (folder / "store").as_uri(), timeout=60.0))

    def call(self, method: str, *args: Any) -> Any:
        return self.rank.call(method, *args)

    def close(self) -> None:
        self.rank.close()


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneRank]:
    ranks = OneRank(tmp_path_factory.mktemp("one"))
    yield ranks
    ranks.close()


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with another model, for the reference."""
    folder = tmp_path_factory.mktemp("warm") / "model"
    language = language_of(TINY)
    language.save(language.load(1), folder)
    return folder


def test_one_rank_computes_what_no_rank_does_and_dummies_change_nothing(
    one: OneRank, warm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = spec(rows=Rows.TREE, reference=warm)
    found, expected = LearnerGroup(one, setting), alone(setting)
    monkeypatch.setattr("selfcest_training.cluster.sharded.deal", lambda sizes, _: [[None, *range(len(sizes)), None]])
    assert found.exact == expected.exact
    first, second = samples_of(3), samples_of(4)
    loss = replace(KL, importance=Importance(ImportanceLevel.TOKEN))
    batches, plain = (each.freeze([first, second], loss) for each in (found, expected))
    assert_same_metrics(found.policy_step(batches[0], loss), expected.policy_step(plain[0], loss))
    assert_same_gradient(found, expected)
    assert_same_metrics(found.policy_step(batches[1], loss), expected.policy_step(plain[1], loss))
    found.imitation_step(first, 0.0)
    expected.imitation_step(first, 0.0)
    assert found.num_steps == expected.num_steps == 3
    assert_same_weights(found, expected, 1e-6)
    assert found.policy_step([], loss) == expected.policy_step([], loss), "no step"
    written = found.state()
    again = LearnerGroup(one, setting)
    with pytest.raises(AssertionError, match="another learner"):
        found.state()
    again.restore(written, 3)
    for learner in (again, expected):
        learner.policy_step(first, loss)
    assert_same_weights(again, expected, 1e-6)


def assert_same_weights(found: AnyLearner, expected: AnyLearner, tolerance: float) -> None:
    own, others = dict(found.weights()), dict(expected.weights())
    assert own.keys() == others.keys()
    assert max(float((tensor - others[name]).abs().max()) for name, tensor in own.items()) <= tolerance


def test_what_cannot_be_is_refused_before_work(one: OneRank) -> None:
    with pytest.raises(ConfigError, match=r"forward.compile is true and cluster.learner_ranks is 1"):
        LearnerGroup(one, spec(forward=ForwardOptions(compile=True)))
    learner = LearnerGroup(one, spec())
    with pytest.raises(RecordError, match="load it with the model and LoRA options it had"):
        learner.restore(alone(spec(model=PlugIn("tiny", {**SHAPE, "hidden_size": 16}))).state(), 0)
    assert dummy().weight == 0


def test_a_learner_that_goes_on_does_not_mind_a_thin_step(one: OneRank, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[int]()
    monkeypatch.setattr("selfcest_training.cluster.sharded.check_ranks", lambda ranks, *_: asked.append(ranks))
    learner = LearnerGroup(one, spec())
    for steps in (0, 2):
        learner.restore(learner.state(), steps)
        learner.policy_step(samples_of(0), LossConfig())
        assert asked == [1], "before the first step of all, and not of a run that is resumed"


# Two processes, which the tests below share, since they take seconds to start


@pytest.fixture(scope="module")
def two() -> Iterator[ProcessRanks]:
    with ProcessRanks(2, timeout=120.0) as ranks:
        yield ranks


LORA = {"lora": LoraOptions(rank=4, alpha=8), "lora_seed": 1}
CASES: dict[str, dict[str, Any]] = {
    "rows": {},
    "rows, whole logits": {"forward": ForwardOptions(logit_chunk=0)},
    "rows, small chunks": {"forward": ForwardOptions(logit_chunk=7)},
    "rows, checkpointed": {"forward": ForwardOptions(gradient_checkpointing=True)},
    "rows, autocast": {"forward": ForwardOptions(HALF)},
    "tree": {"rows": Rows.TREE},
    "tree, whole logits": {"rows": Rows.TREE, "forward": ForwardOptions(logit_chunk=0)},
    "tree, checkpointed": {"rows": Rows.TREE, "forward": ForwardOptions(gradient_checkpointing=True)},
    "tree, autocast, checkpointed": {"rows": Rows.TREE, "forward": ForwardOptions(HALF, 16, True)},
    "packed": {"rows": Rows.PACKED},
    "packed, autocast, checkpointed": {"rows": Rows.PACKED, "forward": ForwardOptions(HALF, 16, True)},
    "adapter": LORA,
    "adapter, tree, autocast, checkpointed": {**LORA, "rows": Rows.TREE, "forward": ForwardOptions(HALF, 16, True)},
    "own output layer": {"model": PlugIn("uneven:Even", {**SHAPE, "tie_embeddings": False})},
    "all on one rank": {"model": PlugIn("uneven:Uneven", SHAPE)},
    "all on one rank, adapter": {**LORA, "model": PlugIn("uneven:Uneven", SHAPE)},
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:rows is 'packed'")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_two_ranks_have_the_gradient_of_one_process(two: ProcessRanks, warm: Path, case: str) -> None:
    setting = spec(**CASES[case], reference=warm)
    if setting.lora is not None:
        setting = replace(setting, folder=warm)
    found, expected = LearnerGroup(two, setting), alone(setting)
    assert len(list(expected.micro_batches(samples_of(3)))) == 5, "the last round has a dummy"
    loss = replace(KL, terms={**KL.terms, "entropy": LossTermConfig(-0.05)})
    steps = [each.policy_step(samples_of(3), loss) for each in (found, expected)]
    assert_same_metrics(*steps)
    if setting.lora is not None:
        # A meets B = 0: the adapter's second step is the first in which all of it has a gradient.
        for each in (found, expected):
            each.restore(shaken(each.state()), 0)
        for each in (found, expected):
            each.policy_step(samples_of(3), loss)
    assert_same_gradient(found, expected)
    steps = [each.policy_step(samples_of(4), loss) for each in (found, expected)]
    assert_same_metrics(*steps)
    assert found.num_steps == expected.num_steps
    assert_same_weights(found, expected, 1e-5)


def shaken(state: LearnerState) -> LearnerState:
    """Without moments, and with weights that are far from where they began."""
    moved = {name: 0.1 * torch.sin(torch.arange(w.numel()) + 1.0).view_as(w) for name, w in state.weights.items()}
    return LearnerState(moved, {})


LOSSES = {
    "sequence": LossConfig(options={"level": "sequence"}),
    "two-sided": LossConfig(options={"delta": 2.0}),
    "cispo": LossConfig("cispo", importance=Importance(ImportanceLevel.TOKEN)),
    "weighed by sequence": LossConfig(importance=Importance(ImportanceLevel.SEQUENCE)),
    **{kind: LossConfig(terms={"kl": LossTermConfig(0.5, options={"estimator": kind})}) for kind in ("k1", "k2", "k3")},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES, ids=str)
def test_two_ranks_have_the_gradient_of_every_loss(two: ProcessRanks, warm: Path, name: str) -> None:
    setting, loss = spec(rows=Rows.TREE, reference=warm), LOSSES[name]
    found, expected = LearnerGroup(two, setting), alone(setting)
    batches, plain = (each.freeze([[], samples_of(3)], loss) for each in (found, expected))
    assert_same_metrics(found.policy_step(batches[1], loss), expected.policy_step(plain[1], loss))
    assert_same_gradient(found, expected)


@pytest.mark.slow
def test_two_ranks_imitate_and_show_what_a_value_head_looks_at(two: ProcessRanks) -> None:
    setting = spec(rows=Rows.TREE)
    found, expected = LearnerGroup(two, setting), alone(setting)
    for samples in (samples_of(3), samples_of(4), samples_of(4)[:1]):  # the last one is a single micro-batch
        ours, theirs = (each.imitation_step(samples, 0.0) for each in (found, expected))
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)
        assert ours.trained_tokens == theirs.trained_tokens
    assert_same_weights(found, expected, 1e-5)
    (ours, counted), (theirs, count) = (
        look_into(each, some_groups(), frozenset(Internal)) for each in (found, expected)
    )
    assert counted == count
    assert ours.keys() == theirs.keys()
    for key, own in theirs.items():
        for name, value in vars(own).items():
            assert getattr(ours[key], name) == pytest.approx(value, abs=1e-4), name


@pytest.mark.slow
def test_ranks_have_parts_and_a_sampler_is_given_merged_weights_in_its_dtype(two: ProcessRanks, warm: Path) -> None:
    half = LearnerGroup(two, spec(rows=Rows.TREE))
    half.policy_step(samples_of(3), LossConfig())
    state = half.state()
    whole = sum(tensor.nbytes for own in (state.weights, state.moments) for tensor in own.values())
    assert two.call("held") == pytest.approx([whole / 2] * 2, rel=0.05), "each has a part of all"
    setting = spec(**LORA, folder=warm)
    learner, model = LearnerGroup(two, setting, sampled="bfloat16"), alone(setting).model
    learner.policy_step(samples_of(3), LossConfig())
    learner.fill(model)
    expected = dict(merged_weights(model))
    found = dict(learner.weights())
    assert found.keys() == expected.keys()
    assert {tensor.dtype for tensor in found.values()} == {torch.bfloat16}
    for name, tensor in found.items():
        torch.testing.assert_close(tensor.float(), expected[name], rtol=1e-2, atol=1e-6)


@pytest.mark.slow
def test_more_ranks_than_micro_batches_are_refused_at_the_first_update_alone(two: ProcessRanks) -> None:
    few = samples_of(3)[:1]
    learner = LearnerGroup(two, spec())
    assert learner.policy_step([], LossConfig()).num_rows == 0
    learner.policy_step(samples_of(3), LossConfig())
    assert learner.policy_step(few, LossConfig()).num_rows == 1, "a gate may leave one"


# Checkpoints


def steps(learner: AnyLearner, seeds: Sequence[int]) -> None:
    for seed in seeds:
        learner.policy_step(samples_of(seed), KL)


@pytest.mark.slow
@pytest.mark.parametrize("adapter", [False, True], ids=["weights", "adapter"])
def test_a_checkpoint_goes_on_on_any_number_of_ranks(
    two: ProcessRanks, warm: Path, tmp_path: Path, adapter: bool
) -> None:
    moving = OptimizerConfig(learning_rate=1e-3, warmup_steps=0)
    setting = spec(rows=Rows.TREE, reference=warm, optimizer=moving)
    if adapter:
        setting = replace(setting, **LORA, folder=warm)
    whole, one_process = LearnerGroup(two, setting), alone(setting)
    states = {}
    for name, learner in (("two", whole), ("one", one_process)):
        steps(learner, (3, 4))
        states[name] = save_checkpoint(tmp_path / name, learner.state(), TrainState("rl", 2, num_updates=2))
        steps(learner, (5, 6))
        states[f"{name}, later"] = learner.state()
    assert_close(states["two, later"], states["one, later"], 1e-5)
    for source in ("two", "one"):
        for ranks in ("two", "one"):
            learner = LearnerGroup(two, setting) if ranks == "two" else alone(setting)
            load_checkpoint(states[source], learner)
            assert learner.num_steps == 2
            steps(learner, (5, 6))
            exact = source == ranks
            assert_close(learner.state(), states[f"{source}, later"], 0.0 if exact else 1e-5)


@pytest.mark.slow
def test_a_checkpoint_of_three_ranks_goes_on_on_two_and_two_micro_batches_are_refused_on_three(
    two: ProcessRanks, warm: Path
) -> None:
    setting = spec(rows=Rows.BUCKETED, reference=warm, optimizer=OptimizerConfig(learning_rate=1e-3))
    with ProcessRanks(3, timeout=120.0) as three:
        learner = LearnerGroup(three, setting)
        steps(learner, (3, 4))
        middle = learner.state()
        steps(learner, (5, 6))
        later = learner.state()
        fresh = LearnerGroup(three, replace(setting, rows=Rows.PACKED, micro_batch_tokens=250))
        with pytest.raises(ConfigError, match=r"learner_ranks is 3 and the first mini-batch has 2 micro-batches:"):
            fresh.policy_step(samples_of(5), LossConfig())
        with pytest.raises(InfrastructureError, match="start them anew"):
            fresh.state()
    learner = LearnerGroup(two, setting)
    learner.restore(middle, 2)
    steps(learner, (5, 6))
    assert_close(learner.state(), later, 1e-5)


def assert_close(found: LearnerState, expected: LearnerState, tolerance: float) -> None:
    for ours, theirs in ((found.weights, expected.weights), (found.moments, expected.moments)):
        assert ours.keys() == theirs.keys()
        for name, tensor in ours.items():
            assert float((tensor - theirs[name]).abs().max()) <= tolerance, name


# Ranks that fail


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "error", "message"),
    [
        ("uneven:Fails", RuntimeError, r"(?s)rank 1 of 2 of the learner failed:.*ZeroDivisionError: on purpose"),
        ("uneven:Dies", InfrastructureError, "rank 1 of 2 of the learner has ended without a word"),
        ("uneven:Hangs", RuntimeError, r"(?s)rank 0 of 2 of the learner failed:.*[Tt]imed out"),
    ],
)
def test_nobody_waits_for_a_rank_that_has_failed(loss: str, error: type[Exception], message: str) -> None:
    with ProcessRanks(2, timeout=30.0 if loss == "uneven:Hangs" else 300.0) as ranks:
        learner = LearnerGroup(ranks, spec())
        start = time.monotonic()
        with pytest.raises(error, match=message):
            learner.policy_step(samples_of(3), LossConfig(loss))
        assert time.monotonic() - start < 120
        assert not any(process.is_alive() for process in ranks.processes)


# A job


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, {"rank": 4, "alpha": 8}], ids=["weights", "adapter"])
def test_a_job_on_two_ranks_plays_what_one_process_plays_and_goes_on_on_one(
    two: ProcessRanks, tmp_path: Path, lora: dict[str, int] | None
) -> None:
    phases = [{"tokens": 6000, "mix": {"choice": {"share": 1, "styles": {"delegate": 1, "solve": 1}}}}]
    changes = {
        "sampler": {"name": "transformers", "options": {"dtype": "float32"}},
        "micro_batch_tokens": 200,
        "lora": lora,
        "arms__delegating__warmstart__phases": phases,
        "arms__delegating__rl__steps": 2,
        "arms__delegating__rl__loss": {"terms": {"kl": {"weight": 0.1}}},
        "arms__delegating__rl__credit": {"name": "critic"},
        "checkpoint_every": 1,
    }
    jobs = {}
    for name, ranks in (("one", None), ("two", two)):
        jobs[name] = Job(config(tmp_path / name, **changes), JobId("delegating", 0), lambda *_: None, ranks=ranks)
        jobs[name].run(lambda: None)
    one_process, sharded = jobs["one"], jobs["two"]
    assert played(sharded) == played(one_process)
    for ours, theirs in zip(rows(sharded), rows(one_process), strict=True):
        assert comparable(ours) == pytest.approx(comparable(theirs), rel=1e-3, abs=1e-5)
    assert torch.allclose(weights(sharded), weights(one_process), rtol=0, atol=1e-5)
    shutil.rmtree(sharded.folder / "checkpoints" / "rl_000002")  # it was stopped after the first step
    again = Job(sharded.config, JobId("delegating", 0), lambda *_: None)
    again.run(lambda: None)
    assert played(again) == played(one_process)
    assert torch.allclose(weights(again), weights(one_process), rtol=0, atol=1e-5)


def played(job: Job) -> list[tuple[int, ...]]:
    """Ids of every turn that the job has logged."""
    episodes = read_episodes(job.folder / "episodes.jsonl")
    return [turn.generation.token_ids for episode in episodes for _, turn in episode.turns()]


def comparable(row: dict[str, float]) -> dict[str, float]:
    """All but times, and the critic's error: cut otherwise, one process has another too, as some of its features are
    nothing but rounding."""
    own = {name: value for name, value in row.items() if isinstance(value, float | int) and "seconds" not in name}
    return own | {"credit/critic_error": 0.0}


def test_a_job_on_ranks_wants_a_sampler_with_weights_of_its_own(one: OneRank, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="trained on ranks of their own.*set sampler.options.dtype"):
        Job(config(tmp_path), JobId("delegating", 0), lambda *_: None, ranks=one)
