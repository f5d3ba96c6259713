"""An infrastructure failure never becomes a reward: its group is played again whole, else dropped and counted."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flaky import FlakyJudge
from test_job import config, play_from, rows, warm, weights
from test_openai_engine import Reply, Serve, chat, serve

from selfcest_agents.player import LocalPlayer
from selfcest_agents.policy import Policy, PolicyRequest, ScriptedPolicy
from selfcest_agents.retries import FailureStats, RetryOptions
from selfcest_agents.rollout import RolloutRequest, UnplayedError
from selfcest_agents.scripted import RandomActor
from selfcest_agents.server_counts import (
    ServerCounts,
    ServerModel,
    add_to_tallies,
    format_server_counts,
    tally_requests,
)
from selfcest_env.errors import ConfigError, InfrastructureError
from selfcest_env.graders import Grade
from selfcest_env.record import EpisodeRecord, Generation, read_episodes
from selfcest_env.replay import Replay
from selfcest_env.reward import Reward, make_reward
from selfcest_env.rules import Rules
from selfcest_env.text.counters import WordCounter
from selfcest_env.text.terse import TerseProtocol
from selfcest_env.types import ROOT, Limits, Task, TurnKey
from selfcest_eval.report.run_report import RunEvaluation, report_run
from selfcest_eval.report.sources import read_sources
from selfcest_eval.report.training_run import list_server_folders
from selfcest_training.cluster.timed_result import CpuClock
from selfcest_training.credit import make_assigner
from selfcest_training.run import experiment
from selfcest_training.run.job import Job, JobId
from selfcest_training.servers import read_counts
from selfcest_training.stages.base import PlannedGroup
from selfcest_training.stages.crediting import play_counterfactuals
from selfcest_training.stages.failures import replay_groups
from selfcest_training.stages.rollout_batch import play_groups

__all__ = ["serve", "warm"]  # fixtures

RL = "variants__delegating__rl"
LIMITS = Limits(total_tokens=200, turn_tokens=40, reply_tokens=4, answer_reserve=4, max_turns=3)
TASKS = [Task(f"t{i}", f"{i}+2?", "3", "sum") for i in range(3)]
PLANS = [PlannedGroup(task, 4) for task in TASKS]
DOWN = InfrastructureError("request failed 6 times, at last by status 503")


class LosingPolicy(ScriptedPolicy):
    """Fails a turn as often as `fails` says."""

    def __init__(self, fails: Counter[str]) -> None:
        super().__init__(RandomActor(TerseProtocol(), p_answer=0.2, p_delegate=0.6))
        self._fails = fails

    def poll(self) -> list[tuple[TurnKey, Generation | InfrastructureError]]:  # type: ignore[override]
        return [(key, self._or_failure(key, generation)) for key, generation in super().poll()]

    def _or_failure(self, key: TurnKey, generation: Generation) -> Generation | InfrastructureError:
        name = str(key)
        if self._fails[name] <= 0:
            return generation
        self._fails[name] -= 1
        return DOWN


@dataclass(frozen=True, kw_only=True)
class LosingPlayer(LocalPlayer):
    """Scripts play, and turns are lost; remembers what it was asked to play."""

    fails: Counter[str] = field(default_factory=Counter)
    asked: list[list[str]] = field(default_factory=list)

    def rules(self, limits: Limits) -> Rules:
        return Rules(limits, TerseProtocol(), WordCounter())

    def policy(self, temperature: float) -> Policy:
        return LosingPolicy(self.fails)

    def play(self, requests: Sequence[RolloutRequest], *more: Any, **named: Any) -> list[EpisodeRecord]:
        self.asked.append([request.episode_id for request in requests])
        return super().play(requests, *more, **named)

    def play_replays(self, factual: Any, replays: Sequence[Replay], temperature: float) -> Any:
        self.asked.append([str(replay) for replay in replays])
        return super().play_replays(factual, replays, temperature)


def player(**fails: int) -> LosingPlayer:
    named = Counter({name.replace("__", "/").replace("_", "."): count for name, count in fails.items()})
    return LosingPlayer(limits=LIMITS, reward=make_reward("default"), fails=named)


def groups_of(player: LosingPlayer, tries: int = 1, **named: Any) -> Any:
    return play_groups(player, PLANS, step=0, seed=0, temperature=1.0, weights={}, max_retries=tries - 1, **named)


def test_a_failed_request_s_group_is_played_again_whole_with_the_same_seeds() -> None:
    """One failed request was the end of the run."""
    expected, none = groups_of(player())
    assert none == FailureStats()
    flaky = player(s0_g1_e2__root__turn0=1)
    groups, outages = groups_of(flaky, tries=2)
    assert groups == expected
    assert flaky.asked[1:] == [[f"s0.g1.e{k}" for k in range(4)]]
    others = [episode for episode in expected[1].episodes if episode.episode_id != "s0.g1.e2"]
    assert outages == FailureStats(0, 1, sum(e.cost.generated_tokens for e in others), str(DOWN))


def test_a_group_that_fails_in_every_try_is_dropped_and_counted() -> None:
    expected, _ = groups_of(player())
    flaky = player(s0_g1_e2__root__turn0=9)
    groups, outages = groups_of(flaky, tries=3)
    assert groups == [expected[0], expected[2]]
    assert (outages.dropped_groups, outages.failures, len(flaky.asked)) == (1, 3, 3)
    assert {name: outages.metrics()[name] for name in ("dropped_groups", "infrastructure_failures")} == {
        "dropped_groups": 1,
        "infrastructure_failures": 3,
    }


def test_a_later_round_shares_no_name_and_no_seed_with_a_dropped_group() -> None:
    first, _ = groups_of(player(s0_g2_e0__root__turn0=9))
    later, _ = groups_of(player(), after=PLANS)
    whole, _ = groups_of(player())
    episodes = [episode for group in [*whole, *later] for episode in group.episodes]
    assert len(first) == 2
    assert len({e.episode_id for e in episodes}) == len({e.seed for e in episodes}) == 24


def test_what_else_is_under_way_for_a_lost_episode_is_waited_for_and_paid() -> None:
    """A late answer would be taken for one of the next try, which has the same name."""

    class Slow(LosingPolicy):
        """Answers one request at a time, the last asked first."""

        waiting: list[PolicyRequest]

        def submit(self, requests: Sequence[PolicyRequest]) -> None:
            self.waiting = [*getattr(self, "waiting", []), *requests]

        def poll(self) -> list[tuple[TurnKey, Generation | InfrastructureError]]:  # type: ignore[override]
            if self.waiting:
                super().submit([self.waiting.pop()])
            return super().poll()

    @dataclass(frozen=True, kw_only=True)
    class SlowPlayer(LosingPlayer):
        slow: list[Slow] = field(default_factory=list)

        def policy(self, temperature: float) -> Policy:
            self.slow[:] = self.slow or [Slow(self.fails)]
            return self.slow[0]

    whole, _ = groups_of(player())
    wide = next(e for g in whole for e in g.episodes for _, t in e.turns() if len(t.facts.children) > 1)
    last = next(turn for _, turn in wide.turns() if len(turn.facts.children) > 1).facts.children[-1]
    lost = Counter({f"{wide.episode_id}/{last}/turn0": 1})
    slow = SlowPlayer(limits=LIMITS, reward=make_reward("default"), fails=lost)
    groups, outages = groups_of(slow, tries=2)
    assert groups == whole
    assert outages.failures == 1
    assert not slow.slow[0].waiting


def test_above_the_limit_the_run_stops_with_one_line() -> None:
    lost = FailureStats(2, 6, 100, "status 503")
    lost.check(3, 8, RetryOptions(2, 0.25))
    with pytest.raises(
        InfrastructureError, match=r"step 3: 2 of 7 groups were lost .* last error: status 503; check"
    ) as one:
        lost.check(3, 7, RetryOptions(2, 0.25))
    assert "\n" not in str(one.value)
    with pytest.raises(InfrastructureError, match="2 of 2"):
        lost.check(3, 2, RetryOptions(2, 1.0))
    FailureStats().check(3, 0, RetryOptions(2, 0.0))


def replays_of(flaky: LosingPlayer, tries: int) -> Any:
    scheme = make_assigner("difference", {}, where="credit.options")
    groups, _ = groups_of(player())

    def played(factual: Sequence[EpisodeRecord], replays: Sequence[Replay]) -> Any:
        return flaky.play_replays(factual, replays, 1.0)

    return (
        groups,
        play_counterfactuals(scheme, groups, lambda *a: player().play_replays(*a, 1.0)),
        replay_groups(scheme, groups, played, tries - 1),
    )


def a_replayed_turn() -> str:
    """A turn that a replay of the second group plays anew."""
    groups, _ = groups_of(player())
    scheme = make_assigner("difference", {}, where="credit.options")
    (played,) = play_counterfactuals(scheme, groups[1:2], lambda *a: player().play_replays(*a, 1.0))
    record = next(of.record for of in played.values() if of.generated_tokens)
    return str(TurnKey(record.episode_id, ROOT, len(record.root.turns) - 1))


def test_a_lost_replay_is_played_again_and_no_other() -> None:
    flaky = LosingPlayer(limits=LIMITS, reward=make_reward("default"), fails=Counter({a_replayed_turn(): 1}))
    groups, expected, (kept, replayed, outages) = replays_of(flaky, tries=2)
    assert (kept, replayed) == (groups, expected)
    assert (outages.dropped_groups, outages.failures) == (0, 1)
    assert [len(asked) for asked in flaky.asked[1:]] == [1]


def test_a_group_whose_replay_is_lost_in_every_try_is_dropped_with_all_that_it_cost() -> None:
    flaky = LosingPlayer(limits=LIMITS, reward=make_reward("default"), fails=Counter({a_replayed_turn(): 99}))
    groups, expected, (kept, replayed, outages) = replays_of(flaky, tries=2)
    assert kept == [groups[0], groups[2]]
    assert replayed == (expected[0], expected[2])
    assert (outages.dropped_groups, outages.failures) == (1, 2)
    episodes = sum(episode.cost.generated_tokens for episode in groups[1].episodes)
    assert episodes < outages.tokens <= episodes + sum(of.generated_tokens for of in expected[1].values()) + 400
    played = [name for asked in flaky.asked for name in asked]
    assert max(Counter(played).values()) == 2, "only what was lost is asked for twice"


def test_what_was_played_beside_it_crosses_a_process() -> None:
    with pytest.raises(UnplayedError) as caught:
        player(a__root__turn0=1).play([RolloutRequest("a", TASKS[0], 1), RolloutRequest("b", TASKS[1], 2)], 1.0)
    error = pickle.loads(pickle.dumps(caught.value))
    assert str(error) == f"episodes not played: 1, the first is a: {DOWN}"
    assert [record.episode_id for record in error.played] == ["b"]
    assert [lost.episode_id for lost in error.unplayed] == ["a"]


# Judges


def judged(judge: FlakyJudge) -> LosingPlayer:
    reward = make_reward("default")
    return replace(player(), reward=Reward({**reward.terms, "judged": judge}, reward.grader))


def texts_of(tries: int = 1) -> list[str]:
    groups, _ = groups_of(player(), tries)
    return [turn.generation.text for group in groups for episode in group.episodes for _, turn in episode.turns()]


def test_a_judge_s_outage_is_its_group_s() -> None:
    """The judge gave one turn no mark, and that was the end of the run."""
    rare = next(text for text, count in Counter(texts_of()).items() if count == 1)
    expected, _ = groups_of(judged(FlakyJudge("no such text", times=99)))
    asked = judged(judge := FlakyJudge(rare, times=1))
    groups, outages = groups_of(asked, tries=2)
    assert groups == expected
    assert outages.failures == 1
    assert len(asked.asked[1]) == 4
    assert judge.asked.count(rare) == 2, "once in each try"
    groups, outages = groups_of(judged(FlakyJudge(rare, times=99)), tries=2)
    assert len(groups) == 2
    assert (outages.dropped_groups, outages.failures) == (1, 2)


def test_a_grader_s_outage_is_no_grade() -> None:
    class Down:
        def grade(self, task: Task, answer: str | None) -> Grade:
            if task is TASKS[1]:
                raise DOWN
            return Grade(1.0, True, True)

    down = replace(player(), reward=Reward(make_reward("default").terms, Down()))
    groups, outages = groups_of(down, tries=2)
    assert [group.task for group in groups] == [TASKS[0], TASKS[2]]
    assert outages.dropped_groups == 1


def test_a_judge_that_is_down_altogether_judges_nothing() -> None:
    class Down(FlakyJudge):
        def judge(self, steps: Any) -> Any:
            raise DOWN

    groups, outages = groups_of(judged(Down("")), tries=1)
    assert groups == []
    assert outages.dropped_groups == 3


# In a run


def flaky_run(output: Path, loses: Sequence[str], times: int, **changes: Any) -> Any:
    sampler = {"name": "flaky:FlakySampler", "options": {"loses": list(loses), "times": times}}
    return config(output, **{f"{RL}__steps": 2, "log_groups": 9, "sampler": sampler, **changes})


@pytest.mark.slow
def test_a_run_with_an_outage_learns_what_it_would_have_learned(warm: Job, tmp_path: Path) -> None:
    whole = play_from(warm, config(tmp_path / "whole", **{f"{RL}__steps": 2, "log_groups": 9}))
    flaky = play_from(warm, flaky_run(tmp_path / "flaky", ["s1.g2.e3/root/turn0"], 1))
    counts = [(row["dropped_groups"], row["infrastructure_failures"]) for row in rows(flaky)]
    assert counts == [(0, 0), (0, 1)]
    assert [row["return"] for row in rows(flaky)] == [row["return"] for row in rows(whole)]
    texts = [[[t.generation.text for _, t in e.turns()] for e in read_episodes(job.folder / "episodes.jsonl")]
             for job in (whole, flaky)]  # fmt: skip
    assert texts[0] == texts[1]
    for mine, other in zip(weights(flaky), weights(whole), strict=True):
        assert torch.allclose(mine, other, atol=1e-5)
    spent = rows(flaky)[-1]["sampled_tokens"] - rows(whole)[-1]["sampled_tokens"]
    assert spent == rows(flaky)[1]["lost_tokens"] > 0


@pytest.mark.slow
def test_a_dropped_group_leaves_the_numerator_and_never_the_denominator(
    warm: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []
    from selfcest_training import trainer

    def spy(groups: Any, *arguments: Any, planned_episodes: int, **named: Any) -> Any:
        seen.append((len(groups), planned_episodes))
        return split_into_mini_batches(groups, *arguments, planned_episodes=planned_episodes, **named)

    split_into_mini_batches = trainer.split_into_mini_batches
    monkeypatch.setattr(trainer, "split_into_mini_batches", spy)
    job = play_from(warm, flaky_run(tmp_path, ["s0.g0.e1/root/turn0"], 99))
    assert seen == [(3, 32), (4, 32)]
    assert [row["dropped_groups"] for row in rows(job)] == [1, 0]
    assert [row["gate/dropped_groups"] for row in rows(job)] == [0, 0]


@pytest.mark.slow
def test_an_outage_of_everything_stops_the_run_with_its_cause(warm: Job, tmp_path: Path) -> None:
    spec = flaky_run(tmp_path, ["s1."], 99)
    with pytest.raises(InfrastructureError, match=r"step 1: 4 of 4 groups were lost .* at last by 503; check"):
        play_from(warm, spec)
    assert len(rows_of(spec)) == 1
    spec = flaky_run(tmp_path / "none", ["s0.g0.e1/root/turn0"], 99, **{f"{RL}__max_failed_fraction": 0.0})
    with pytest.raises(InfrastructureError, match="step 0: 1 of 4 groups were lost .* rl.max_failed_fraction is 0;"):
        play_from(warm, spec)


def rows_of(spec: Any) -> list[str]:
    lines = (spec.folder / "delegating" / "seed0" / "metrics.jsonl").read_text().splitlines()
    return [line for line in lines if '"stage": "rl"' in line]


@pytest.mark.parametrize(("key", "value"), [("max_retries", -1), ("max_failed_fraction", 1.5)])
def test_limits_that_cannot_be_are_refused(tmp_path: Path, key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{key} is {value}"):
        config(tmp_path, **{f"{RL}__{key}": value})


@pytest.mark.slow
def test_what_a_judge_s_server_did_is_in_metrics_and_in_the_report_of_a_run(tmp_path: Path, serve: Serve) -> None:
    """In the job's folder and its rows; what an evaluation asks is counted in the evaluation's folder, once."""

    def answer(path: str, body: dict[str, Any], n: int) -> Reply:
        if n == 0:
            return Reply("busy", status=503)
        return Reply({**chat("Mark: 7").body, "model": "other", "usage": {"completion_tokens": -1}})

    server = serve(answer)
    judge = {
        "name": "selfcest_agents.server_judge:ServerJudge",
        "server": {"base_url": server.url, "model": "m", "backoff_s": 0.001, "max_concurrent": 2},
        "role": "root",
    }
    evaluation = {"eval_sets": [{"family": "choice", "size": "any"}], "episodes": 3}
    phases = [{"tokens": 1000, "mix": {"choice": {"share": 1, "styles": {"delegate": 1, "solve": 1}}}}]
    spec = config(
        tmp_path,
        reward={"name": "correct", "options": {"judge": judge}},
        evaluation=evaluation,
        variants__delegating__warmstart__phases=phases,
        variants__delegating__rl__steps=2,
    )
    spec.folder.mkdir()
    experiment.prepare_folder(spec, resume=False)
    experiment._train_and_evaluate(spec, JobId("delegating", 0), False, RunEvaluation())
    folder = spec.folder / "delegating" / "seed0"
    of_rl = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    numbers = [row for row in of_rl if row["stage"] == "rl" and "server/answers" in row]
    assert numbers
    for row in numbers:
        assert row["server/answers"] == row["server/other_model"] == row["server/false_usage"] > 0
    by_folder = {name: read_counts([folder / name]) for name in (".", "evaluation_before_rl", "evaluation")}
    (of_job,) = by_folder["."].values()
    assert of_job.answers >= sum(row["server/answers"] for row in numbers)
    total = sum((counts for found in by_folder.values() for counts in found.values()), ServerCounts())
    assert total.retries > 0
    assert total.answers + total.retries == len(server.seen), "every request is counted once"
    (line,) = format_server_counts(read_counts(list_server_folders(spec)))
    start = f"server {server.url}, model m: {total.retries} retries; {total.answers} answers name another model"
    assert line.startswith(start)
    assert f"warning: {line}" in report_run(spec)
    (source,) = read_sources([spec.folder])
    assert line in source.warnings


def test_counts_cross_from_a_rollout_worker() -> None:
    counts = {ServerModel("u", "m"): ServerCounts(answers=2, retries=1)}
    answer = pickle.loads(pickle.dumps(CpuClock().measure("records", counts)))
    with tally_requests() as tally:
        add_to_tallies(answer.servers)
    assert tally.take() == counts
    assert CpuClock().measure("records").servers == {}
