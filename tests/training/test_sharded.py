"""The learner over ranks: what it computes is what one process computes. Real gloo processes, no Ray."""

from __future__ import annotations

import re
import shutil
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from chat_models import VICUNA, chat_tokenizer, tiny_llama
from test_internals import some_groups
from test_job import config, rows, weights
from test_tree_rows import random_samples
from torch import Tensor
from transformers import PreTrainedModel
from uneven import LOADED

from selfcest_agents.language import language_of
from selfcest_agents.lora import add_lora, merged_weights
from selfcest_agents.lora_options import LoraOptions
from selfcest_env.errors import ConfigError, InfrastructureError, RecordError
from selfcest_env.plugin import PlugIn
from selfcest_env.record import read_episodes
from selfcest_training.cluster import sharded
from selfcest_training.cluster.group import HostedRanks, LearnerGroup
from selfcest_training.cluster.partition import busy_share, check_ranks, make_zero_weight_sample, partition
from selfcest_training.cluster.processes import ProcessRanks
from selfcest_training.cluster.rank import LearnerSpec, Rank, RankSpec
from selfcest_training.cluster.timed_result import TimedResult
from selfcest_training.credit import Internal
from selfcest_training.learner.batch import Sample
from selfcest_training.learner.internals import compute_internals
from selfcest_training.learner.metrics import UpdateMetrics
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
from selfcest_training.learner.update import Learner, LearnerProtocol, attach_old_logprobs
from selfcest_training.run.checkpoint import TrainState, load_checkpoint, save_checkpoint
from selfcest_training.run.job import Job, JobId

SHAPE = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "intermediate_size": 48}
TINY = PlugIn("uneven:Even", SHAPE)
HALF = Precision.BFLOAT16
# Without momentum and clipping, the first moment after a step is its gradient.
BARE = OptimizerConfig(learning_rate=1e-3, warmup_steps=0, beta1=0.0, max_grad_norm=float("inf"))
KL = LossConfig(terms={"kl": LossTermConfig(0.1)})


# Partition


def test_a_deal_is_rounds_of_similar_size_with_fewer_dummies_than_ranks() -> None:
    assert partition([10, 40, 30], 2) == [[1, 0], [2, None]]
    assert partition([5, 5, 5, 5], 1) == [[0, 1, 2, 3]]
    assert partition([7], 3) == [[0], [None], [None]]
    assert partition([], 2) == [[], []]
    rng = np.random.default_rng(0)
    for _ in range(200):
        sizes, ranks = rng.integers(1, 99, rng.integers(1, 40)).tolist(), int(rng.integers(1, 9))
        dealt = partition(sizes, ranks)
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


# Who is told what when ranks fail


class Scripted(HostedRanks):
    """Ranks of whom each hearing says what is written, and which note that they were ended."""

    def __init__(self, count: int, *hearings: dict[int, TimedResult | Exception]) -> None:
        super().__init__(count)
        self.hearings, self.waits = list(hearings), list[float | None]()

    def _send(self, method: str, args: tuple[Any, ...]) -> None:
        pass

    def _receive(self, seconds: float | None) -> list[tuple[int, TimedResult | Exception]]:
        self.waits.append(seconds)
        return list(self.hearings.pop(0).items())

    def _kill(self) -> None:
        self.hearings = []


def test_the_first_rank_s_answer_counts_and_everybody_s_seconds() -> None:
    ranks = Scripted(3, {2: TimedResult(None, 3.0)}, {0: TimedResult("found", 1.0), 1: TimedResult(None, 2.0)})
    assert ranks.call("read") == "found"
    assert ranks.cpu_seconds == 6.0
    assert ranks.waits == [None, None], "however long it takes"


@pytest.mark.parametrize(
    ("hearings", "cause"),
    [
        ([{0: RuntimeError("waits for 2")}, {2: InfrastructureError("gone"), 1: ConfigError("refused")}], "gone"),
        ([{1: RuntimeError("waits for 2"), 0: RuntimeError("so do I")}, {2: ConfigError("refused")}], "refused"),
        ([{1: RuntimeError("waits"), 0: TimedResult(None, 0.0)}, {}], "waits"),
        ([{1: RuntimeError("second")}, {0: RuntimeError("first"), 2: TimedResult(None, 0.0)}], "first"),
    ],
)
def test_of_several_failures_the_cause_is_raised_and_all_ranks_are_ended(
    hearings: list[dict[int, TimedResult | Exception]], cause: str
) -> None:
    ranks = Scripted(3, *hearings)
    with pytest.raises(Exception, match=f"^{cause}$"), ranks:
        ranks.call("state")
    assert ranks.waits == [None, 2.0], "for a moment, once something is wrong"
    assert not ranks.hearings
    with pytest.raises(InfrastructureError, match="resume the run to start new ones"):
        ranks.call("state")


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


def gradient(learner: LearnerProtocol) -> Tensor:
    """Of the one step that was made; see `BARE`."""
    moments = learner.state().moments
    return torch.cat([tensor.flatten() for name, tensor in moments.items() if name.endswith("/exp_avg")])


def assert_same_gradient(found: LearnerProtocol, expected: LearnerProtocol) -> None:
    """Up to the rounding of sums in another order: to 1e-8 where the largest is 0.01."""
    difference, size = (gradient(found) - gradient(expected)).abs().max(), gradient(expected).abs().max()
    assert 1e-3 < size < 2e-2
    assert difference <= 1e-6 * size, f"{difference} of {size}"


def assert_same_metrics(found: UpdateMetrics, expected: UpdateMetrics) -> None:
    assert found.grad_norm == pytest.approx(expected.grad_norm, rel=1e-5)
    assert found.role_grad_norms == expected.role_grad_norms == {}
    nested = ("grad_norm", "role_grad_norms", "terms", "mismatch")
    plain = [{name: value for name, value in vars(each).items() if name not in nested} for each in (found, expected)]
    assert plain[0] == pytest.approx(plain[1], rel=1e-5, abs=1e-9)
    assert found.terms == pytest.approx(expected.terms, rel=1e-5, abs=1e-9)
    assert found.mismatch.keys() == expected.mismatch.keys()
    for name, own in expected.mismatch.items():
        assert vars(found.mismatch[name]) == pytest.approx(vars(own), rel=1e-5, abs=1e-9)


class OneRank:
    """`Ranks` of one, in this process."""

    def __init__(self, folder: Path) -> None:
        self.owner: object = None
        self.cpu_seconds = 0.0  # it is not elsewhere
        self.rank = Rank(RankSpec(0, 1, (folder / "store").as_uri(), timeout=60.0))

    def call(self, method: str, *args: Any) -> Any:
        return self.rank.call(method, *args).value

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


@pytest.mark.slow
def test_one_rank_computes_what_no_rank_does_and_dummies_change_nothing(
    one: OneRank, warm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = spec(rows=Rows.TREE, reference=warm)
    found, expected = LearnerGroup(one, setting), alone(setting)
    monkeypatch.setattr(
        "selfcest_training.cluster.sharded.partition", lambda sizes, _: [[None, *range(len(sizes)), None]]
    )
    assert found.exact == expected.exact
    first, second = samples_of(3), samples_of(4)
    loss = replace(KL, importance=Importance(ImportanceLevel.TOKEN))
    batches, plain = (attach_old_logprobs(each, [first, second], loss) for each in (found, expected))
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


def assert_same_weights(found: LearnerProtocol, expected: LearnerProtocol, tolerance: float) -> None:
    own, others = dict(found.weights()), dict(expected.weights())
    assert own.keys() == others.keys()
    assert max(float((tensor - others[name]).abs().max()) for name, tensor in own.items()) <= tolerance


def test_what_cannot_be_is_refused_before_work(one: OneRank) -> None:
    with pytest.raises(ConfigError, match=r"forward.compile is true and cluster.learner_ranks is 1"):
        LearnerGroup(one, spec(forward=ForwardOptions(compile=True)))
    with pytest.raises(ConfigError, match=r"lora.per_role is true and cluster.learner_ranks is 1"):
        LearnerGroup(one, spec(lora=LoraOptions(rank=4, alpha=8, per_role=True)))
    learner = LearnerGroup(one, spec())
    with pytest.raises(RecordError, match="load them with the model and LoRA options"):
        learner.restore(alone(spec(model=PlugIn("tiny", {**SHAPE, "hidden_size": 16}))).state(), 0)
    assert make_zero_weight_sample().weight == 0


def test_a_rank_loads_on_the_cpu_and_computes_when_it_is_sharded(one: OneRank, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU is to hold parts alone, so nothing may put the whole there, not even to look at its output layer."""
    seen, check = list[bool](), sharded.check_output_layer

    def checked(model: PreTrainedModel, options: ForwardOptions) -> None:
        assert model.lm_head.weight.shape == (model.config.vocab_size, 32), "gathered for the time of the pass"
        check(model, options)
        seen.append(True)

    monkeypatch.setattr(sharded, "check_output_layer", checked)
    monkeypatch.setattr("selfcest_training.learner.forward.check_output_layer", lambda *_: pytest.fail("too early"))
    found = LearnerGroup(one, spec(model=PlugIn("uneven:Placed", {**SHAPE, "device": "cuda"})))
    assert [("cpu", sum(tensor.nbytes for _, tensor in found.weights()))] == LOADED
    assert seen == [True]
    monkeypatch.undo()
    assert_same_weights(found, alone(spec()), 0.0)


def test_a_model_whose_logits_are_more_than_its_head_s_is_refused_on_ranks_too(one: OneRank) -> None:
    with pytest.raises(ConfigError, match="logit_chunk is 256 and the logits of Scaled are not those of its output"):
        LearnerGroup(one, spec(model=PlugIn("uneven:Scales", SHAPE)))


def test_a_rank_takes_no_other_files_than_those_of_who_sent_it(
    one: OneRank, warm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(warm, "run/model")
    (Path("run/model") / ".cache").mkdir()
    (Path("run/model") / ".cache" / "when").write_text("which no model is read from")
    setting = spec(folder=Path("run/model"), reference=Path("run/model"), **LORA)
    sent = setting.resolve()
    assert sent.folder == sent.reference == tmp_path / "run" / "model"
    assert list(sent.files) == ["weights"], "once"
    assert set(sent.files["weights"]) == {path.name for path in warm.iterdir()}
    monkeypatch.chdir("/")  # where a rank may be
    (tmp_path / "run" / "model" / ".cache" / "when").unlink()
    one.call("build", sent)
    assert spec(reference=warm).resolve().files.keys() == {"reference"}
    (tmp_path / "run" / "model" / "more.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"more\.json exists here but not where the run was started: rank 0"):
        one.call("build", sent)
    (tmp_path / "run" / "model" / "more.json").unlink()
    weights = tmp_path / "run" / "model" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    host, to_do = re.escape(socket.gethostname()), "share the folder between the machines, or copy it to the same path"
    where = rf"where the run was started: rank 0 of 1 of the learner is on {host}; {to_do}"
    with pytest.raises(ConfigError, match=rf"^{re.escape(str(weights))} differs from the file {where}"):
        one.call("build", sent)
    weights.unlink()
    with pytest.raises(ConfigError, match=rf"^{re.escape(str(weights))} is missing here but exists {where}"):
        one.call("build", sent)


def test_a_chat_model_s_folder_is_the_same_for_ranks_elsewhere(
    one: OneRank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tokenizer = chat_tokenizer(VICUNA)
    tiny_llama(tokenizer).save_pretrained("models/x")
    tokenizer.save_pretrained("models/x")
    sent = LearnerSpec(PlugIn("chat", {"source": "models/x"}), OptimizerConfig(), 512).resolve()
    assert sent.model.options["source"] == str(tmp_path / "models" / "x")
    assert list(sent.files) == ["weights"]
    monkeypatch.chdir("/")
    shutil.rmtree(tmp_path / "models")
    with pytest.raises(
        ConfigError, match=rf"models/x.*: rank 0 of 1 of the learner is on {socket.gethostname()}; share"
    ):
        one.call("build", sent)


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
    batches, plain = (attach_old_logprobs(each, [[], samples_of(3)], loss) for each in (found, expected))
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
        compute_internals(each, some_groups(), frozenset(Internal)) for each in (found, expected)
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
    assert two.call("local_bytes") == pytest.approx([whole / 2] * 2, rel=0.05), "each has a part of all"
    setting = spec(**LORA, folder=warm)
    learner, model = LearnerGroup(two, setting, sampler_dtype="bfloat16"), alone(setting).model
    learner.policy_step(samples_of(3), LossConfig())
    learner.copy_weights_to(model)
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
    assert learner.policy_step(few, LossConfig()).num_rows == 1, "a group filter may leave one"


# Checkpoints


def steps(learner: LearnerProtocol, seeds: Sequence[int]) -> None:
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
        with pytest.raises(InfrastructureError, match="resume the run to start new ones"):
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
        (
            "uneven:Dies",
            InfrastructureError,
            r"rank 1 of 2 of the learner was killed by signal 9 \(SIGKILL\), often the out-of-memory killer before",
        ),
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
def test_a_rank_that_finds_other_files_ends_the_job_before_any_step(tmp_path: Path) -> None:
    spec = config(tmp_path / "run", sampler={"name": "transformers", "options": {"dtype": "float32"}})
    own = language_of(spec.model)
    for seed, name in enumerate(("others", "last")):
        own.save(own.load(seed), tmp_path / name)
    model = PlugIn("uneven:Elsewhere", {**spec.model.options, "folders": str(tmp_path)})
    with ProcessRanks(2, timeout=120.0) as ranks:
        job = Job(replace(spec, model=model), JobId("delegating", 0), lambda *_: None, ranks=ranks)
        with pytest.raises(
            ConfigError, match=r"last/model\.safetensors differs from the file .*: rank 1 of 2"
        ) as caught:
            job.run(lambda: None)
    assert "\n" not in str(caught.value)
    assert not (job.folder / "metrics.jsonl").exists()


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, {"rank": 4, "alpha": 8}], ids=["weights", "adapter"])
def test_a_job_on_two_ranks_plays_what_one_process_plays_and_goes_on_on_one(
    two: ProcessRanks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lora: dict[str, int] | None
) -> None:
    phases = [{"tokens": 6000, "mix": {"choice": {"share": 1, "styles": {"delegate": 1, "solve": 1}}}}]
    changes = {
        "sampler": {"name": "transformers", "options": {"dtype": "float32"}},
        "micro_batch_tokens": 200,
        "lora": lora,
        "variants__delegating__warmstart__phases": phases,
        "variants__delegating__rl__steps": 2,
        "variants__delegating__rl__loss": {"terms": {"kl": {"weight": 0.1}}},
        "variants__delegating__rl__credit": {"name": "critic"},
        "checkpoint_every": 1,
    }
    jobs = {}
    rank_seconds_before = two.cpu_seconds
    # Without the time of this process, only that of the ranks is left in the account.
    monkeypatch.setattr("selfcest_training.run.job.time.process_time", lambda: 0.0)
    for name, ranks in (("one", None), ("two", two)):
        jobs[name] = Job(config(tmp_path / name, **changes), JobId("delegating", 0), lambda *_: None, ranks=ranks)
        jobs[name].run(lambda: None)
    one_process, sharded = jobs["one"], jobs["two"]
    assert one_process.state.cpu_seconds == 0
    assert 0 < sharded.state.cpu_seconds <= two.cpu_seconds - rank_seconds_before
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
