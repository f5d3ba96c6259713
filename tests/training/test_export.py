"""Rows for other trainers hold what our learner would train on, and sum to its loss; formats are read back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from records import agent, group, three_agents, turn
from test_job import config
from typer.testing import CliRunner

from selfcest_cli.main import app
from selfcest_env.errors import ConfigError, CreditError, PolicyError, RecordError, TrainingError
from selfcest_env.record import EpisodeGroup, write_episode
from selfcest_env.replay import Intervention, Replay
from selfcest_env.types import ROOT
from selfcest_training.credit import Credit, ReplayRecords, Rloo, make_assigner
from selfcest_training.credit.offline import get_group_id, group_episodes
from selfcest_training.export.prime_rl import TrainingSample, build_training_samples, read_samples, write_samples
from selfcest_training.export.stored import CreditedSamples, build_credited_samples
from selfcest_training.export.trl import (
    TrlRolloutWorker,
    build_rows,
    make_padding_row,
    open_trainer,
    split_micro_batches,
)
from selfcest_training.export.verl import build_batch, read_batch, write_batch
from selfcest_training.learner.batch import Sample, build_samples
from selfcest_training.learner.options import Denominator
from selfcest_training.run.job import Job, JobId

RL = "variants__delegating__rl"
_SHORT, _LONG = three_agents("s0.g0.e0", 1.0), three_agents("s0.g0.e1", 0.25)
_TALKATIVE = agent(ROOT.child(1), turn((7,), (16, 17)), turn((8, 9), (18, 19)))
EPISODES = (_SHORT, replace(_LONG, agents=(*_LONG.agents[:2], _TALKATIVE)))  # of 8 and 10 tokens


def data(credit: str = "rloo", denominator: Denominator = Denominator.CONSTANT, **options: Any) -> CreditedSamples:
    return build_credited_samples(
        group_episodes(EPISODES, "here"),
        make_assigner(credit, options, where="options"),
        denominator=denominator,
        constant=10.0,
    )


def sums(samples: tuple[Sample, ...]) -> dict[tuple[str, int], float]:
    """By episode and id: what multiplies the slope of a token's loss in our learner. Ids are unique in an episode."""
    return {
        (sample.episode_id, int(token)): float(advantage * weight)
        for sample in samples
        for token, advantage, weight in zip(
            sample.token_ids[sample.loss_mask],
            sample.advantages[sample.loss_mask],
            np.broadcast_to(sample.weight, len(sample))[sample.loss_mask],
            strict=True,
        )
    }


# Stored episodes


def test_samples_are_those_of_our_learner() -> None:
    found = data()
    expected = build_samples(
        [group(*EPISODES)], [Rloo().assign(group(*EPISODES), {})], denominator=Denominator.CONSTANT, constant=10.0
    )
    assert sums(found.samples) == sums(tuple(expected))
    # 2 + 1 + 3 + 2 tokens, and two more in the second; 0.75 and -0.75 over two episodes and ten tokens.
    assert found.trained_tokens == 18
    assert sorted(sums(found.samples).values()) == pytest.approx([-0.75 / 20] * 10 + [0.75 / 20] * 8)
    by_own = sums(data(denominator=Denominator.EPISODE_MEAN).samples)
    assert sorted(by_own.values()) == pytest.approx([-0.75 / 2 / 10] * 10 + [0.75 / 2 / 8] * 8)
    assert {get_group_id(sample.episode_id) for sample in found.samples} == {"s0.g0"}


def test_turns_of_replays_are_exported_with_their_group() -> None:
    asked = [Replay.of(e.episode_id, {ROOT.child(i): Intervention.RESAMPLE}) for e in EPISODES for i in range(2)]
    stored = group_episodes([*(three_agents(str(replay), 0.5) for replay in asked), *EPISODES], "here")
    scheme = make_assigner("branches", {"samples": 1}, where="options")
    found = build_credited_samples(stored, scheme, denominator=Denominator.CONSTANT, constant=10.0)
    names = {sample.episode_id for sample in found.samples}
    assert names == {*map(str, asked), *(episode.episode_id for episode in EPISODES)}
    assert {get_group_id(sample.episode_id) for sample in found.samples} == {"s0.g0"}
    with pytest.raises(CreditError, match="4 are not in the file"):
        build_credited_samples(
            group_episodes(EPISODES, "here"), scheme, denominator=Denominator.CONSTANT, constant=10.0
        )


def test_nothing_to_train_is_an_error() -> None:
    class Nobody(Rloo):
        name = "nobody"

        def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
            return Credit({}, excluded=frozenset(super().assign(group, replayed).advantage))

    with pytest.raises(RecordError, match="'nobody' excludes every turn"):
        build_credited_samples(
            group_episodes(EPISODES, "here"), Nobody(), denominator=Denominator.CONSTANT, constant=1.0
        )


# verl


@pytest.mark.parametrize("denominator", list(Denominator))
def test_a_batch_of_verl_is_read_back_and_sums_to_our_loss(tmp_path: Path, denominator: Denominator) -> None:
    made = data("rloo", denominator)
    write_batch(tmp_path / "b.safetensors", build_batch(made, pad_id=99))
    batch = read_batch(tmp_path / "b.safetensors")
    t = batch.tensors
    assert set(t) == {
        *("prompts", "responses", "input_ids", "attention_mask", "position_ids"),
        *("response_mask", "rollout_log_probs", "advantages", "rollout_is_weights", "rm_scores"),
    }
    assert torch.equal(t["input_ids"], torch.cat([t["prompts"], t["responses"]], 1))
    assert t["prompts"].shape == (6, 2), "the root's first prompt is the longest"
    mask, width = t["response_mask"].bool(), t["prompts"].shape[1]
    for i, sample in enumerate(made.samples):
        own = t["attention_mask"][i].bool()
        assert t["input_ids"][i, own].tolist() == sample.token_ids.tolist()
        assert (t["input_ids"][i, ~own] == 99).all()
        assert t["position_ids"][i, own].tolist() == list(range(len(sample)))
        assert t["responses"][i, mask[i]].tolist() == sample.token_ids[sample.loss_mask].tolist()
        assert t["rollout_log_probs"][i, mask[i]].tolist() == sample.behavior_logprobs[sample.loss_mask].tolist()
        assert t["advantages"][i, mask[i]].tolist() == sample.advantages[sample.loss_mask].tolist()
        assert float(t["rm_scores"][i].sum()) == made.records[sample.episode_id].team_return
        assert int(t["rm_scores"][i].argmax()) == int(own.nonzero().max()) - width
    # What verl's `token-mean` makes of it: the sum over the mask, divided by the mask's tokens.
    slopes = (t["advantages"] * t["rollout_is_weights"] / mask.sum())[mask]
    names = [batch.non_tensors["episode_id"][i] for i in mask.nonzero()[:, 0].tolist()]
    found = dict(zip(zip(names, t["responses"][mask].tolist(), strict=True), slopes.tolist(), strict=True))
    assert found == pytest.approx(sums(made.samples), rel=1e-6)
    assert batch.meta_info == {"temperature": 1.0}
    assert batch.non_tensors["uid"] == ["s0.g0"] * 6
    assert batch.non_tensors["agent_id"] == ["root", "root.0", "root.1"] * 2


def test_verl_has_one_temperature(tmp_path: Path) -> None:
    hot = three_agents("s0.g0.e0", 1.0)
    hot = replace(hot, agents=(*hot.agents[:2], agent(ROOT.child(1), turn((7,), (16, 17), temperature=0.5))))
    made = build_credited_samples(
        group_episodes([hot, EPISODES[1]], ""), Rloo(), denominator=Denominator.CONSTANT, constant=1.0
    )
    with pytest.raises(ConfigError, match=r"temperatures \[0.5, 1.0\]; expected one"):
        build_batch(made)


def test_greedy_episodes_are_refused() -> None:
    greedy = replace(EPISODES[0], agents=(agent(ROOT, turn((7,), (16, 17), temperature=0.0)),))
    made = build_credited_samples(
        group_episodes([greedy, EPISODES[1]], ""), Rloo(), denominator=Denominator.CONSTANT, constant=1.0
    )
    for build in (build_batch, build_training_samples):
        with pytest.raises(ConfigError, match="tokens of temperature 0, which were not sampled"):
            build(made)


# prime-rl


@pytest.mark.parametrize("denominator", list(Denominator))
def test_samples_of_prime_rl_are_read_back_and_sum_to_our_loss(tmp_path: Path, denominator: Denominator) -> None:
    made = data("rloo", denominator)
    write_samples(tmp_path / "s.bin", build_training_samples(made))
    samples = read_samples(tmp_path / "s.bin")
    for found, sample in zip(samples, made.samples, strict=True):
        assert found.token_ids == sample.token_ids.tolist()
        assert found.mask == sample.loss_mask.tolist()
        assert found.logprobs == sample.behavior_logprobs.tolist()
        assert found.temperatures == sample.temperature.tolist()
        assert found.advantages == sample.advantages.tolist()
        assert found.env_name == "test"
    # What prime-rl makes of it: advantages times weights over the mask, divided by the tokens that have a weight.
    count = sum(weight != 0 for found in samples for weight in found.rl_weights or ())
    slopes = {
        (sample.episode_id, token): advantage * weight / count
        for found, sample in zip(samples, made.samples, strict=True)
        for token, on, advantage, weight in zip(
            found.token_ids, found.mask, found.advantages or (), found.rl_weights or (), strict=True
        )
        if on
    }
    assert slopes == pytest.approx(sums(made.samples), rel=1e-6)


def test_the_wire_is_an_array_in_prime_rl_s_order(tmp_path: Path) -> None:
    import msgspec

    write_samples(tmp_path / "s.bin", build_training_samples(data())[:1])
    (array,) = msgspec.msgpack.decode((tmp_path / "s.bin").read_bytes())
    assert TrainingSample.__struct_fields__ == (
        *("token_ids", "mask", "logprobs", "temperatures", "env_name", "ref_logprobs", "mm_kwargs", "routed_experts"),
        *("mm_token_type_ids", "rl_weights", "ce_weights", "ref_kl_weights", "advantages"),
    )
    assert array[0] == [1, 2, 10, 11, 3, 4, 5, 12]
    assert array[1] == [False, False, True, True, False, False, False, True]
    assert array[5:9] + array[10:12] == [None] * 6
    assert array[12] == pytest.approx([0, 0, 0.75, 0.75, 0, 0, 0, 0.75])


def test_a_file_that_prime_rl_would_not_take_says_so(tmp_path: Path) -> None:
    (sample, *_) = build_training_samples(data())
    write_samples(tmp_path / "short.bin", [TrainingSample([1, 2], [True], [0.0, 0.0], [1.0, 1.0], "x")])
    with pytest.raises(RecordError, match="sample 0 has 2 ids and a list of another length"):
        read_samples(tmp_path / "short.bin")
    (tmp_path / "text.bin").write_text("{}", encoding="utf-8")
    with pytest.raises(RecordError, match=r"text.bin holds no training samples of prime-rl"):
        read_samples(tmp_path / "text.bin")
    with pytest.raises(RecordError, match=r"text.bin is no batch that `selfcest export --format verl` wrote"):
        read_batch(tmp_path / "text.bin")
    made = data()
    weightless = replace(made.samples[0], weight=np.zeros(len(made.samples[0]), np.float32))
    with pytest.raises(ConfigError, match=r"s0.g0.e0/root has a turn of weight 0"):
        build_training_samples(replace(made, samples=(weightless,)))
    assert sample.rl_weights is not None


# The command


@pytest.mark.parametrize(("name", "read"), [("verl", read_batch), ("prime-rl", read_samples)])
def test_the_command_writes_a_file_once(tmp_path: Path, name: str, read: Callable[[Path], Any]) -> None:
    file, out = tmp_path / "e.jsonl", tmp_path / "rows"
    file.write_text("".join(map(write_episode, EPISODES)), encoding="utf-8")
    arguments = [
        "export",
        str(file),
        "--format",
        name,
        "--credit",
        "grpo",
        "--option",
        "std_floor=0.5",
        "--out",
        str(out),
    ]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "6 contexts of 2 episodes, 18 trained tokens" in result.output
    read(out)
    again = CliRunner().invoke(app, arguments)
    assert isinstance(again.exception, ConfigError)
    assert "exists; expected a new file" in str(again.exception)


# TRL, as far as it goes without TRL


@pytest.mark.parametrize(("size", "count"), [(6, 1), (7, 1), (9, 3), (2, 5), (1, 40)])
def test_trl_s_mean_over_a_micro_batch_is_our_sum(size: int, count: int) -> None:
    made = data("to_go", Denominator.EPISODE_MEAN)
    rows = build_rows(made.samples)
    batches = split_micro_batches(rows, size, count)
    assert [len(batch) for batch in batches] == [size] * count
    found = {}
    for batch in batches:
        tokens = sum(row.trained_tokens for row, _ in batch)
        assert tokens > 0, "TRL divides by them"
        for row, advantage in batch:
            assert row.group in ("s0.g0", "")
            for token in row.token_ids[row.mask] if row.group else ():
                found[(row.advantage > 0, int(token))] = advantage / tokens / count
    assert found == pytest.approx({(slope > 0, token): slope for (_, token), slope in sums(made.samples).items()})
    idle = sum(row.trained_tokens for batch in batches for row, _ in batch if not row.group)
    assert idle == max(0, count - len(rows)), "only a micro-batch without anything else has a token that is not ours"


def test_a_context_is_a_row_per_distinct_advantage() -> None:
    (sample, *_) = data().samples
    advantages = np.array([0, 0, 0.5, 0.5, 0, 0, 0, -1.0], np.float32)
    rows = build_rows([replace(sample, advantages=advantages, weight=0.5)])
    assert [(row.advantage, row.mask.nonzero()[0].tolist()) for row in rows] == [(-0.5, [7]), (0.25, [2, 3])]
    assert all(row.token_ids.tolist() == sample.token_ids.tolist() for row in rows)
    assert rows[0].logprobs.tolist() == [0, 0, 0, 0, 0, 0, 0, -1]


def test_more_rows_than_places_are_an_error() -> None:
    with pytest.raises(TrainingError, match="a step has 6 rows, and TRL expects 1 micro-batches of 5; raise `rows`"):
        split_micro_batches([make_padding_row(1)] * 6, 5, 1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    job = Job(config(tmp_path_factory.mktemp("model")), JobId("delegating", 0), lambda *_: None)
    path = tmp_path_factory.mktemp("weights") / "model"
    job.language.save(job.language.load(0), path)
    return path


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({f"{RL}__loss": {"name": "cispo"}}, "only has `clipped` with level `token`"),
        ({f"{RL}__loss": {"options": {"level": "sequence"}}}, "only has `clipped` with level `token`"),
        (
            {f"{RL}__loss": {"terms": {"entropy": {"weight": -0.1}}}},
            "only has `clipped` with level `token`",
        ),
        ({f"{RL}__minibatches": 2}, "rl.minibatches is 2"),
        ({f"{RL}__credit": {"name": "critic"}}, "'critic' needs internals of the learner"),
        ({f"{RL}__max_staleness": 2}, "variants.delegating.rl.max_staleness is 2; set it to 1"),
        ({f"{RL}__sampled_tokens": 500}, "variants.delegating.rl.sampled_tokens is 500; set it to null: TRL ends"),
        ({"compute_tokens": 500000}, "compute_tokens is 500000; set it to null: TRL ends"),
        ({"lora": {"rank": 2}}, "set it to null, and give TRL a peft_config"),
    ],
)
def test_what_trl_cannot_do_is_refused(tmp_path: Path, model: Path, changes: dict[str, Any], words: str) -> None:
    with (
        pytest.raises(ConfigError, match=words),
        open_trainer(config(tmp_path, **changes), "delegating", 0, model) as trainer,
    ):
        TrlRolloutWorker(trainer, rows=8)


def test_weights_are_taken_whole_or_not_at_all(tmp_path: Path, model: Path) -> None:
    with open_trainer(config(tmp_path), "delegating", 0, model) as trainer:
        rollouts, own = TrlRolloutWorker(trainer, rows=8), trainer.learner.model
        sent = {name: torch.ones_like(tensor) for name, tensor in own.named_parameters()}
        for version in range(2):
            rollouts.send_weights(iter(sent.items()))
            assert trainer.sampler.engine.policy_version == version, "the first are those of step 0"
        assert all((tensor == 1).all() for tensor in own.parameters())
        del sent["model.norm.weight"]
        with pytest.raises(PolicyError, match="model.norm.weight"):
            rollouts.send_weights((name, tensor * 2) for name, tensor in sent.items())
        assert all((tensor == 1).all() for tensor in own.parameters())
