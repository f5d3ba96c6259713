"""The loop with other models, samplers and learners: chat models, copies of the weights, LoRA, rollouts ahead."""

from __future__ import annotations

import threading
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from chat_models import CHATML, byte_level, chat_tokenizer, tiny_llama
from safetensors.torch import load_file
from test_job import Crash, config, crash_and_resume, play, play_from, rows, weights
from transformers import AutoModelForCausalLM, PreTrainedModel

from selfcest_agents import samplers
from selfcest_agents.language import language_of
from selfcest_agents.lora import add_lora, load_trainable_state, merged_weights
from selfcest_agents.lora_options import LoraOptions
from selfcest_agents.pretrained import ChatLanguage
from selfcest_agents.tiny import TinyLanguage
from selfcest_agents.transformers.engine import TransformersEngine
from selfcest_env.errors import ConfigError, SelfcestError, TaskError
from selfcest_env.protocol import Brief
from selfcest_env.record import EpisodeRecord, read_episodes
from selfcest_env.seeding import stream_seed
from selfcest_env.text.hermes import HermesProtocol
from selfcest_env.types import Boundary, Role
from selfcest_training.config import RunConfig
from selfcest_training.learner.options import OptimizerConfig
from selfcest_training.learner.update import Learner
from selfcest_training.run.checkpoint import list_checkpoints
from selfcest_training.run.job import Job, JobId
from selfcest_training.stages.async_rollouts import AsyncRollouts, RolloutPipeline
from selfcest_training.stages.rollout_batch import RolloutBatch
from selfcest_training.trainer import Trainer

RL = "variants__delegating__rl"
COPY = {"name": "transformers", "options": {"dtype": "float32"}}
LORA = {"rank": 4, "alpha": 8}
POSITIONS = 512
OPENING = HermesProtocol().open(Brief(Role.ROOT, "7?", (), {}, True, False, 480))


def save_chat_model(
    folder: Path, template: str | None = CHATML, positions: int = POSITIONS, hidden_size: int = 32
) -> Path:
    """Its tokenizer has been trained on the protocol, so that a prompt is about 150 ids."""
    texts = [part.text for message in OPENING for part in message.parts]
    tokenizer = chat_tokenizer(template, byte_level(texts * 5, vocab_size=700))
    tokenizer.save_pretrained(folder)
    tiny_llama(tokenizer, positions, hidden_size).save_pretrained(folder)
    return folder


def chat_config(source: Path, output: Path, **changes: Any) -> RunConfig:
    given: dict[str, Any] = {
        "model": {"name": "chat", "options": {"source": str(source)}},
        "limits": {"total_tokens": POSITIONS, "turn_tokens": 48, "reply_tokens": 4, "answer_reserve": 8, "max_turns": 2,
                   "max_clones": 1},
        "reward": {"name": "default", "options": {"token_cost": {"price": 0.5, "scale": 400.0}}},
        "variants__delegating__warmstart__phases": [
            {"tokens": 20_000, "mix": {"choice": {"share": 1, "styles": {"delegate": 1, "solve": 2}}}}
        ],
        "variants__delegating__warmstart__batch_tokens": 1024,
        f"{RL}__steps": 3,
        f"{RL}__tasks_per_step": 2,
        f"{RL}__group_size": 4,
    }  # fmt: skip
    return config(output, **given | changes)


def same_episodes(job: Job, other: Job) -> bool:
    def without_numbers(job: Job) -> list[tuple[Any, ...]]:
        records = read_episodes(job.folder / "episodes.jsonl")
        return [(turn.generation.token_ids, turn.facts) for record in records for _, turn in record.turns()]

    return without_numbers(job) == without_numbers(other)


def same_steps(job: Job, other: Job, start: Job) -> bool:
    """Whether two jobs moved their weights alike. AdamW makes a whole step of a gradient that is rounding alone, so
    single weights may differ by as much; all of them together do not."""
    moved = weights(other) - weights(start)
    return float((weights(job) - weights(other)).norm()) < 1e-2 * float(moved.norm())


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_chat_model(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def warm(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A chat model after its warm start."""
    job = Job(chat_config(source, tmp_path_factory.mktemp("warm")), JobId("delegating", 0), lambda *_: None)
    job.run(lambda: None, only_warm_start=True)
    return job


@pytest.fixture(scope="module")
def shared(warm: Job, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """RL with a sampler that shares the learner's model, all in float32."""
    return play_from(warm, chat_config(source, tmp_path_factory.mktemp("shared")))


# Chat models


@pytest.mark.slow
def test_a_chat_model_trains_and_samples_what_it_learns_from(warm: Job, shared: Job) -> None:
    losses = [row["loss"] for row in rows(warm, "warmstart")]
    assert losses[-1] < 0.5 * losses[0]
    found = rows(shared)
    assert [row["step"] for row in found] == [0, 1, 2]
    assert max(row["logprob_gap"] for row in found) < 1e-4
    assert min(row["grad_norm"] for row in found) > 0, "or there is nothing to learn in this test"
    assert not torch.equal(weights(warm), weights(shared))


def test_its_folders_load_with_transformers(source: Path, warm: Job, shared: Job) -> None:
    for job, name in ((warm, "warmstart_model"), (shared, "model")):
        loaded = AutoModelForCausalLM.from_pretrained(job.folder / name)
        assert torch.equal(torch.cat([p.detach().flatten() for p in loaded.parameters()]), weights(job))
        codec = ChatLanguage(str(job.folder / name)).codec
        expected = ChatLanguage(str(source)).codec
        assert codec.encode(OPENING, Boundary.OPENING) == expected.encode(OPENING, Boundary.OPENING)
        assert codec.stop_ids == expected.stop_ids


# Samplers with weights of their own


@pytest.mark.slow
def test_a_copy_in_float32_samples_as_the_shared_model_does(
    warm: Job, shared: Job, source: Path, tmp_path: Path
) -> None:
    job = play_from(warm, chat_config(source, tmp_path, sampler=COPY))
    assert job.sampler.engine is not shared.sampler.engine
    assert same_episodes(job, shared)
    assert same_steps(job, shared, warm)
    assert max(row["logprob_gap"] for row in rows(job)) < 1e-4


@pytest.mark.slow
def test_a_copy_in_bfloat16_is_corrected_for(warm: Job, source: Path, tmp_path: Path) -> None:
    sampler = {"name": "transformers", "options": {"dtype": "bfloat16"}}
    loss = {"importance": {"level": "token", "cap": 2.0}}
    found = rows(play_from(warm, chat_config(source, tmp_path, sampler=sampler, **{f"{RL}__loss": loss})))
    assert all(row["logprob_gap"] > 1e-4 and row["mean_logprob_gap"] < 0.1 for row in found)
    assert all(0 < row["mismatch/root/kl"] < 0.1 for row in found)
    assert {row["policy_lag"] for row in found} == {0}


def test_a_half_precision_tiny_model_keeps_the_frequencies_of_its_positions() -> None:
    """In bfloat16 they would be off by a thousandth, which is a radian at position 1000."""
    language = TinyLanguage(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=16)
    half = language.load(0, dtype="bfloat16")
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}
    (expected,), (found,) = (list(model.model.rotary_emb.buffers())[:1] for model in (language.load(0), half))
    assert torch.equal(found, expected)


# LoRA; the tiny model does


def lora_config(output: Path, **changes: Any) -> RunConfig:
    given: dict[str, Any] = {
        "lora": LORA,
        "variants__delegating__warmstart__phases": [
            {"tokens": 8000, "mix": {"choice": {"share": 1, "styles": {"delegate": 1, "solve": 1}}}}
        ],
        "variants__delegating__warmstart__pool_tokens": 2000,
        f"{RL}__steps": 4,
    }
    return config(output, **given | changes)


@pytest.mark.slow
def test_checkpoints_hold_the_adapter_alone_and_model_folders_the_sum(tmp_path: Path) -> None:
    spec = lora_config(tmp_path)
    job = Job(spec, JobId("delegating", 0), lambda *_: None)
    job.run(lambda: None, only_warm_start=True)
    (*_, last) = list_checkpoints(job.folder / "checkpoints")
    adapter = load_file(last / "model.safetensors")
    assert adapter
    assert all(".lora_A." in name or ".lora_B." in name for name in adapter)
    base = language_of(spec.model).load(stream_seed("weights", 0))
    add_lora(base, LoraOptions(**LORA), seed=0)
    load_trainable_state(base, adapter)
    folder = AutoModelForCausalLM.from_pretrained(job.folder / "warmstart_model")
    expected = dict(merged_weights(base))
    assert all(torch.equal(p, expected[name]) for name, p in folder.named_parameters())
    assert any(not torch.equal(p, base.state_dict().get(name, p + 1)) for name, p in folder.named_parameters())
    job = play(spec)
    (*_, last) = list_checkpoints(job.folder / "checkpoints")
    assert load_file(last / "model.safetensors").keys() == adapter.keys()
    assert max(row["logprob_gap"] for row in rows(job)) < 1e-4
    final = AutoModelForCausalLM.from_pretrained(job.folder / "model")
    assert torch.equal(torch.cat([p.detach().flatten() for p in final.parameters()]), weights(job))
    assert any(not torch.equal(p, q) for p, q in zip(final.parameters(), folder.parameters(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "count"), [("warm start", 3), ("RL", 4)])
def test_a_killed_run_with_lora_resumes_to_the_same_end(tmp_path: Path, stage: str, count: int) -> None:
    whole = play(lora_config(tmp_path / "whole", checkpoint_every=1))
    spec = lora_config(tmp_path / "killed", checkpoint_every=1)
    seen: list[str] = []

    def crash(at: str, share: float, line: str) -> None:
        seen.append(at)
        if seen.count(stage) == count:
            raise Crash

    with pytest.raises(Crash):
        Job(spec, JobId("delegating", 0), crash).run(lambda: None)
    resumed = play(spec)
    assert torch.equal(weights(resumed), weights(whole))
    assert (resumed.folder / "episodes.jsonl").read_text() == (whole.folder / "episodes.jsonl").read_text()
    assert resumed.state.compute_tokens == whole.state.compute_tokens


@pytest.mark.slow
@pytest.mark.parametrize("lora", [LORA, None])
def test_with_lora_the_kl_to_the_warm_start_needs_no_second_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lora: dict[str, int] | None
) -> None:
    load, folders = TinyLanguage.load, list[Path | None]()

    def counted(self: TinyLanguage, seed: int, folder: Path | None = None, dtype: str | None = None) -> PreTrainedModel:
        folders.append(folder)
        return load(self, seed, folder, dtype)

    monkeypatch.setattr(TinyLanguage, "load", counted)
    job = play(lora_config(tmp_path, lora=lora, **{f"{RL}__loss": {"terms": {"kl": {"weight": 0.1}}}}))
    found = [row["loss/kl"] for row in rows(job)]
    assert found[0] == (0 if lora else pytest.approx(0, abs=1e-6))
    assert found[-1] > 1e-6
    # The learner's and, with LoRA, the sampler's; without it, the learner's and the reference.
    assert folders == ([None, None] if lora else [None, job.folder / "warmstart_model"])


# Rollouts ahead of the learner


def ahead(output: Path, lag: int, **changes: Any) -> RunConfig:
    given: dict[str, Any] = {"lora": None, "sampler": COPY, "log_groups": 4, f"{RL}__max_staleness": lag}
    return lora_config(output, **given | changes)


def episodes(job: Job) -> list[EpisodeRecord]:
    return list(read_episodes(job.folder / "episodes.jsonl"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lag", "change"),
    [(2, {"lora": LORA, "sampler": {"name": "transformers"}}), (1, {})],
)
def test_a_step_is_played_with_the_weights_of_so_many_steps_before(
    tmp_path: Path, lag: int, change: dict[str, Any]
) -> None:
    first, again = play(ahead(tmp_path / "a", lag, **change)), play(ahead(tmp_path / "b", lag, **change))
    versions = {
        (int(record.episode_id.split(".")[0].removeprefix("s")), turn.generation.policy_version)
        for record in episodes(first)
        for _, turn in record.turns()
    }
    assert versions == {(step, max(0, step - lag)) for step in range(4)}
    assert [row["policy_lag"] for row in rows(first)] == [min(step, lag) for step in range(4)]
    gaps = [row["mean_logprob_gap"] for row in rows(first)]
    assert gaps[0] < 1e-5 < 1e-3 < gaps[-1], "what was sampled is from other weights than it trains"
    assert torch.equal(weights(first), weights(again))
    assert (first.folder / "episodes.jsonl").read_text() == (again.folder / "episodes.jsonl").read_text()


@pytest.mark.slow
def test_those_weights_are_the_ones_that_the_learner_had(tmp_path: Path) -> None:
    """With a lag of 1 the second step is played as if the first had changed nothing."""

    def sampled(job: Job, step: int) -> list[tuple[int, ...]]:
        played = [record for record in episodes(job) if record.episode_id.startswith(f"s{step}.")]
        return [turn.generation.token_ids for record in played for _, turn in record.turns()]

    without, one = play(ahead(tmp_path / "a", 0)), play(ahead(tmp_path / "b", 1))
    still = play(ahead(tmp_path / "c", 0, **{f"{RL}__optimizer": {"learning_rate": 1e-30}}))
    assert sampled(one, 0) == sampled(still, 0) == sampled(without, 0)
    assert sampled(one, 1) == sampled(still, 1) != sampled(without, 1)


def test_steps_that_begin_with_the_same_weights_share_one_push() -> None:
    model, pushed, kept = TinyLanguage(hidden_size=16, num_layers=1, num_heads=2).load(0), list[int](), list[Any]()

    class Engine(TransformersEngine):
        def load_weights(self, weights: Any, policy_version: int) -> None:
            pushed.append(policy_version)
            kept.append(weights)
            super().load_weights(weights, policy_version)

    def produce(step: int) -> RolloutBatch:
        played.append((step, engine.policy_version))
        return RolloutBatch((), (), (), 0, 1)

    engine, played = Engine(deepcopy(model), stop_ids=()), list[tuple[int, int]]()
    learner = Learner(model, OptimizerConfig(), pad_id=0, micro_batch_tokens=64)
    rollouts = AsyncRollouts(produce, samplers.Sampler(engine, False, True), learner, max_staleness=2, steps=5)
    for step in range(5):
        assert rollouts.take(step).staleness(step) == 0, "nobody played"
    rollouts.close()
    assert played == [(0, 0), (1, 0), (2, 0), (3, 1), (4, 2)]
    assert pushed == [0, 1, 2], "before the first step, which the two after it share, and for each later one"
    assert kept[1:] == [[], []], "the engine has its own, so the copies are gone"


def test_with_a_second_sampler_a_step_begins_before_the_one_in_front_has_ended_with_the_same_weights() -> None:
    """Whoever is free, a step has the weights that it has without; and which sampler plays it is fixed."""
    model = TinyLanguage(hidden_size=16, num_layers=1, num_heads=2).load(0)
    learner = Learner(model, OptimizerConfig(), pad_id=0, micro_batch_tokens=64)

    def run(lag: int, twice: bool, steps: int = 6) -> dict[int, tuple[int, int, float]]:
        engines = [TransformersEngine(deepcopy(model), stop_ids=()) for _ in range(1 + twice)]
        played, begun = dict[int, tuple[int, int, float]](), [threading.Event() for _ in range(steps)]

        def produce(step: int, lane: int) -> RolloutBatch:
            begun[step].set()
            if twice and step + 1 < steps:
                assert begun[step + 1].wait(20), "it waits for the one after it"
            weight = float(next(engines[lane]._model.parameters()).detach().sum())
            played[step] = (lane, engines[lane].policy_version, weight)
            return RolloutBatch((), (), (), 0, 1)

        own = [samplers.Sampler(engine, False, True) for engine in engines]
        second = RolloutPipeline(partial(produce, lane=1), own[1]) if twice else None
        rollouts = AsyncRollouts(
            partial(produce, lane=0), own[0], learner, max_staleness=lag, steps=steps, second=second
        )
        with torch.no_grad():
            weight = next(model.parameters())
            start = weight.clone()
            for step in range(steps):
                weight.copy_(start + step)  # what the update before it has made
                rollouts.take(step)
            weight.copy_(start)
        rollouts.close()
        return played

    for lag in (1, 2, 3):
        once, twice = run(lag, False), run(lag, True)
        assert sorted(twice) == [*range(6)]
        assert {step: version for step, (_, version, _) in twice.items()} == {s: max(0, s - lag) for s in range(6)}
        assert {step: found[1:] for step, found in twice.items()} == {step: found[1:] for step, found in once.items()}
        assert [twice[step][0] for step in range(6)] == [0, 1] * 3


@pytest.mark.slow
def test_budgets_count_what_the_learner_took(tmp_path: Path) -> None:
    job = play(ahead(tmp_path, 2, **{f"{RL}__sampled_tokens": 2500, f"{RL}__steps": 100}))
    spent = [row["sampled_tokens"] for row in rows(job)]
    assert spent[-2] < 2500 <= spent[-1]
    assert sum(record.cost.generated_tokens for record in episodes(job)) == spent[-1]


@pytest.mark.slow
@pytest.mark.parametrize("credit", ["grpo", "coma"])
def test_a_killed_run_with_a_lag_resumes_to_the_same_end(tmp_path: Path, credit: str) -> None:
    """What was rolled out ahead when the checkpoint was written is in it, replays and all."""
    changes = {"checkpoint_every": 2, f"{RL}__credit": {"name": credit}, f"{RL}__steps": 6}
    whole, spec = play(ahead(tmp_path / "whole", 2, **changes)), ahead(tmp_path / "killed", 2, **changes)
    resumed = crash_and_resume(spec)
    assert torch.equal(weights(resumed), weights(whole))
    assert (
        [row["policy_lag"] for row in rows(resumed)] == [row["policy_lag"] for row in rows(whole)] == [0, 1, 2, 2, 2, 2]
    )
    assert episodes(resumed) == episodes(whole)


@pytest.mark.slow
def test_what_goes_wrong_in_a_rollout_ahead_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    produce, threads = Trainer.produce, list[str]()

    def fail(self: Trainer, step: int) -> Any:
        threads.append(threading.current_thread().name)
        if step == 2:
            raise TaskError("no more tasks")
        return produce(self, step)

    monkeypatch.setattr(Trainer, "produce", fail)
    job = Job(ahead(tmp_path, 1), JobId("delegating", 0), lambda *_: None)
    with pytest.raises(TaskError, match="no more tasks"):
        job.run(lambda: None)
    assert [name.startswith("rollouts") for name in threads] == [False, True, True]
    assert len(rows(job)) == 2, "the steps before it were learned from"
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rollouts")]


# How the learner computes


@pytest.mark.slow
@pytest.mark.parametrize(
    "forward",
    [{"logit_chunk": 0}, {"logit_chunk": 7, "gradient_checkpointing": True}],
)
def test_chunks_and_checkpointed_layers_train_the_same_weights(
    warm: Job, shared: Job, source: Path, tmp_path: Path, forward: dict[str, Any]
) -> None:
    job = play_from(warm, chat_config(source, tmp_path, forward=forward))
    assert same_episodes(job, shared)
    assert same_steps(job, shared, warm)


@pytest.mark.slow
def test_the_learner_computes_in_bfloat16_and_trains_float32(warm: Job, source: Path, tmp_path: Path) -> None:
    job = play_from(warm, chat_config(source, tmp_path, forward={"autocast": "bfloat16"}))
    assert weights(job).dtype is torch.float32
    assert all(row["logprob_gap"] > 1e-4 and row["mean_logprob_gap"] < 0.1 for row in rows(job))
    assert not torch.equal(weights(job), weights(warm))


# What cannot be right


def refused(spec: RunConfig) -> str:
    with pytest.raises(SelfcestError) as error:
        Job(spec, JobId("delegating", 0), lambda *_: None)
    assert not spec.folder.exists(), "nothing was written"
    return str(error.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"limits__total_tokens": 97}, ["variants.delegating: limits.total_tokens is 97", "max_positions = 96"]),
        (
            {"limits__total_tokens": None, "limits__context_tokens": 120},
            ["limits.context_tokens is 120", "max_positions = 96"],
        ),
        ({"variants__delegating__limits": {"total_tokens": 97}}, ["variants.delegating: limits.total_tokens is 97"]),
        (
            {"variants__delegating__warmstart__phases": [
                {"tokens": 9, "mix": {"choice": {"share": 1, "styles": {"solve": 1}}}, "limits": {"total_tokens": 97}}
            ]},
            ["variants.delegating.warmstart.phases[0]: limits.total_tokens is 97"],
        ),
        ({"model": {"name": "chta"}}, ["unknown model 'chta'", "Did you mean 'chat'"]),
        ({"model": {"name": "chat"}}, ["model.options.source is missing; expected a text"]),
        ({"model": {"name": "tiny", "options": {"hidden_size": 30, "num_heads": 4}}}, ["hidden_size is 30"]),
        ({"model": {"name": "trivial:Choice"}}, ["model 'trivial:Choice': Choice lacks checkpoint, codec, load(), "]),
        ({"sampler": {"name": "transformer"}}, ["unknown sampler 'transformer'", "Did you mean 'transformers'"]),
        ({"sampler": {"name": "transformers", "options": {"dtype": "float16"}}}, ["dtype is 'float16'"]),
        ({"sampler": {"name": "transformers", "options": {"max_batch_size": 0}}}, ["max_batch_size is 0"]),
        ({"sampler": {"name": "trivial:NoSampler"}}, ["sampler 'trivial:NoSampler': NoSampler lacks start()"]),
        ({f"{RL}__loss": {"options": {"clip_low": -1}}}, ["rl.loss.options.clip_low is -1; expected a number >= 0"]),
        ({f"{RL}__loss": {"options": {"clip_lo": 0.1}}}, ["rl.loss.options.clip_lo is unknown", "'clip_low'"]),
        ({f"{RL}__max_staleness": 1}, ["variants.delegating.rl.max_staleness is 1", "set sampler.options.dtype"]),
    ],
)  # fmt: skip
def test_what_cannot_be_right_is_named_before_any_work(
    tmp_path: Path, change: dict[str, Any], words: list[str]
) -> None:
    message = refused(config(tmp_path, **change))
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("options", "change", "words"),
    [
        ({"source": "no/such/folder"}, {}, ["model.options", "there is no folder no/such/folder", "hub:OWNER/NAME"]),
        ({"source": "EMPTY"}, {}, ["has no config.json"]),
        ({"source": "BARE"}, {}, ["no chat template"]),
        ({"source": "SHORT"}, {}, ["the model holds 32 positions, but the prompt of an empty task has"]),
        ({"dtype": "float16"}, {}, ["model.options.dtype is 'float16'", "float32, bfloat16"]),
        ({"device": "gpu"}, {}, ["model.options", "gpu"]),
        ({"chat": {"template_options": {"thinking": True}}}, {}, ["chat.template_options has 'thinking'"]),
        (
            {},
            {"limits__total_tokens": 513},
            ["variants.delegating: limits", "limits.total_tokens is 513", "512 positions"],
        ),
        (
            {},
            {"variants__delegating__limits": {"total_tokens": None}},
            ["variants.delegating: limits.context_tokens is None"],
        ),
    ],
)
def test_a_chat_model_that_cannot_be_right_is_named_before_any_work(
    source: Path, tmp_path: Path, options: dict[str, Any], change: dict[str, Any], words: list[str]
) -> None:
    (tmp_path / "EMPTY").mkdir()
    save_chat_model(tmp_path / "BARE", template=None)
    save_chat_model(tmp_path / "SHORT", positions=32)
    given = str(options.get("source", source))
    found = tmp_path / given if (tmp_path / given).is_dir() else given
    model = {"name": "chat", "options": {**options, "source": str(found)}}
    message = refused(chat_config(source, tmp_path / "out", **{"model": model} | change))
    assert all(word in message for word in words), message


def test_an_absent_vllm_is_found_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samplers.importlib.util, "find_spec", lambda name: None)
    message = refused(config(tmp_path, sampler={"name": "vllm"}))
    assert "sampler.options: vLLM is not installed" in message
    assert "docs/models.md" in message


def test_vllm_starts_with_a_plain_model_where_the_learner_has_an_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a language without a checkpoint the engine is given a folder, whose names must be those of the pushes."""
    language, found = TinyLanguage(hidden_size=16, num_layers=1, num_heads=2), list[set[str]]()

    def start(folder: str, **_: Any) -> TransformersEngine:
        found.append(set(load_file(Path(folder) / "model.safetensors")))
        return TransformersEngine(language.load(0), stop_ids=())

    monkeypatch.setattr(samplers, "VllmEngine", start)
    model = language.load(0)
    add_lora(model, LoraOptions(**LORA), seed=0)
    monkeypatch.setattr(samplers.importlib.util, "find_spec", lambda name: name)
    samplers.VllmSampler().start(language, model)
    assert found == [{name for name, _ in merged_weights(model)}]


def test_contexts_that_outgrow_the_engine_are_found_before_any_work(tmp_path: Path) -> None:
    sampler = {"name": "trivial:Served", "options": {"max_positions": 60}}
    message = refused(config(tmp_path, sampler=sampler))
    assert "variants.delegating: contexts of 80 tokens could outgrow sampler.options.max_positions = 60" in message


def test_an_engine_that_takes_no_weights_is_refused_before_the_warm_start(tmp_path: Path) -> None:
    job = Job(config(tmp_path, sampler={"name": "trivial:Served"}), JobId("delegating", 0), lambda *_: None)
    with pytest.raises(ConfigError, match="OpenAIEngine takes no weights"):
        job.run(lambda: None)
    assert not (job.folder / "metrics.jsonl").exists()


def test_half_precision_weights_do_not_train(source: Path, tmp_path: Path) -> None:
    options = {"source": str(source), "dtype": "bfloat16"}
    job = Job(chat_config(source, tmp_path, model__options=options), JobId("delegating", 0), lambda *_: None)
    with pytest.raises(ConfigError, match=r"trains and is bfloat16.*forward.autocast"):
        job.run(lambda: None)
