"""A study on a server that fails: no instance is wrong for it, and none is left out of one strategy alone."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import flaky
import pytest
from flaky import FlakyJudge
from rich.console import Console
from study_players import CODEC, EXPERT
from test_openai_engine import Reply, Serve, chat, serve
from test_study_run import run, small

from selfcest_agents.policy import PolicyRequest, ScriptedPolicy
from selfcest_agents.scripted import RandomActor
from selfcest_cli.study import print_study
from selfcest_env.errors import ConfigError, InfrastructureError
from selfcest_env.text.terse import TerseProtocol
from selfcest_env.types import ROOT, TurnKey
from selfcest_eval.play.config import StudyConfig, load_study
from selfcest_eval.play.forced import ForcedDecision
from selfcest_eval.play.results import Result, read_results, read_unplayable
from selfcest_eval.play.store import Store
from selfcest_eval.play.study import Study
from selfcest_eval.play.unplayable import describe_unplayable, drop_unplayable
from selfcest_eval.report import study_report as report
from selfcest_eval.report.comparison import compare_studies
from selfcest_eval.stats.table import make_curves
from selfcest_training.config_file import parse_as

__all__ = ["serve"]  # the fixture


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(report, "draw_frontiers", lambda *_: None)
    flaky.loses.clear()
    yield
    flaky.loses.clear()


STRATEGIES = {
    "delegate": {},
    "monolithic": {},
    "self_consistency": {"options": {"samples": 3}, "temperature": 0.8},
    "best_of_n": {"options": {"samples": 3}, "temperature": 0.8},
}


def study(output: Path, **changes: Any) -> dict[str, Any]:
    policy = {"name": "flaky:LosingSource", "options": {"right": 0.6, "tokens": 10}}
    named = {"policy": policy, "strategies": STRATEGIES, "budgets": [240], "episodes": 10, "seeds": [0]}
    eval_sets = [{"family": "range", "size": "2-6"}]
    return small(output, **{**named, "eval_sets": eval_sets, "max_failed_fraction": 0.5, **changes})


def results(folder: Path) -> list[Result]:
    return list(read_results(folder / "results.jsonl"))


def losing(tasks: Sequence[str], where: Callable[[PolicyRequest], bool] = lambda _: True) -> None:
    flaky.loses.append(lambda request: request.key.episode_id.split(".")[0] in tasks and where(request))


def delegating(request: PolicyRequest) -> bool:
    return request.observation.can_delegate


def tasks_of(tmp_path: Path) -> list[str]:
    whole = run(study(tmp_path, name="whole"))
    return list(dict.fromkeys(result.place.task_id for result in results(whole)))


def test_an_instance_that_fails_at_first_is_played_by_the_same_seed(tmp_path: Path) -> None:
    """One failed request was the end of the study."""
    tasks = tasks_of(tmp_path)
    tried: Counter[str] = Counter()

    def twice(request: PolicyRequest) -> bool:
        tried[str(request.key)] += 1
        return tried[str(request.key)] <= 2

    losing(tasks[:2], twice)
    again = run(study(tmp_path, name="again"))
    strip = [replace(result, costs=None) for result in results(again)]
    assert strip == [replace(result, costs=None) for result in results(tmp_path / "whole")]
    assert not read_unplayable(again / "results.jsonl")


def test_what_one_strategy_could_not_play_is_left_out_of_all_and_bounded(tmp_path: Path) -> None:
    tasks = tasks_of(tmp_path)
    whole = results(tmp_path / "whole")
    losing(tasks[:2], delegating)
    folder = run(study(tmp_path, name="lost"))
    found, lost = results(folder), read_unplayable(folder / "results.jsonl")
    assert [(one.place.strategy, one.place.task_id) for one in lost] == [("delegate", task) for task in tasks[:2]]
    (curves,) = make_curves(drop_unplayable(found, lost))
    assert curves.task_ids == tuple(tasks[2:])
    assert set(curves.strategies) == set(STRATEGIES), "every one without both"

    def right(strategy: str, among: Sequence[str]) -> int:
        return sum(r.grade.correct for r in whole if r.place.strategy == strategy and r.place.task_id in among)

    head, *lines = describe_unplayable(found, lost)
    assert head.startswith("range 2-6: 2 of 10 instances could not be played and are left out of every strategy")
    assert head.endswith("at last by status 503")
    known = right("delegate", tasks[2:])
    assert lines[0] == (
        f"range 2-6, at most 240, delegate: 2 of 10 not played; accuracy over all instances {known / 10:.3f} to "
        f"{(known + 2) / 10:.3f}, were they all wrong or all right"
    )
    everything = right("monolithic", tasks) / 10
    assert lines[1].endswith(f"monolithic: 0 of 10 not played; accuracy over all instances {everything:.3f}")
    table = (folder / "table.md").read_text(encoding="utf-8")
    assert all(line in table for line in (head, *lines))


def test_a_question_that_a_server_filters_is_left_out(tmp_path: Path, serve: Serve) -> None:
    filtered: list[Any] = []

    def answer(path: str, body: dict[str, Any], n: int) -> Reply:
        filtered[:] = filtered or [body["messages"][1]]
        return chat("Answer: 7", finish="content_filter" if body["messages"][1] in filtered else "stop")

    server = {"base_url": serve(answer).url, "model": "m", "max_retries": 1, "backoff_s": 0.001}
    policy = {"name": "server", "options": {"server": server}}
    folder = run(study(tmp_path, policy=policy, strategies={"monolithic": {}}, budgets=[1000]))
    (lost,) = read_unplayable(folder / "results.jsonl")
    assert "failed 2 times; last error:" in lost.why
    assert "ended by 'content_filter'" in lost.why
    assert len(results(folder)) == 9


@pytest.mark.parametrize("strategy", ["spawn_join", "map_reduce", "oracle_decomposition"])
def test_strategies_around_the_policy_let_a_failure_through(tmp_path: Path, strategy: str) -> None:
    clones: list[str] = []

    def first_clone(request: PolicyRequest) -> bool:
        clones.extend([request.key.episode_id.split(".")[0]] * (request.observation.depth > 0))
        return request.observation.depth > 0 and request.key.episode_id.startswith(f"{clones[0]}.")

    flaky.loses.append(first_clone)
    eval_sets = [{"family": "ledger", "size": "4-12"}]
    data = study(tmp_path, name="lost", strategies={strategy: {"temperature": 0.8}}, eval_sets=eval_sets, budgets=[600])
    data["policy"] = {"name": "flaky:LosingExpert"}
    folder = run(data)
    assert [one.place.task_id for one in read_unplayable(folder / "results.jsonl")] == clones[:1]


def test_a_forced_decision_lets_a_failure_through() -> None:
    class Down(ScriptedPolicy):
        def poll(self) -> Any:
            return [(key, down)]

    key, down = TurnKey("e", ROOT, 0), InfrastructureError("down")
    policy = Down(RandomActor(TerseProtocol()))
    forced = ForcedDecision(policy, CODEC, source=EXPERT, protocol=TerseProtocol(), delegate=True)
    assert forced.poll() == [(key, down)]


def test_it_is_said_where_a_verdict_is_printed(tmp_path: Path) -> None:
    losing(tasks_of(tmp_path)[:1], delegating)
    folder = run(study(tmp_path, name="lost"))
    console = Console(record=True, width=400, file=io.StringIO())
    print_study(load_study(folder / "study.yaml"), console)
    assert "warning: range 2-6: 1 of 10 instances could not be played" in console.export_text()
    lines = compare_studies(tmp_path / "whole", folder, Console(quiet=True), ["flaky"])
    assert any("has the instance" in line for line in lines)


@pytest.mark.slow
def test_resuming_tries_again_what_was_unplayable_and_nothing_else(tmp_path: Path) -> None:
    tasks = tasks_of(tmp_path)
    losing(tasks[:2], delegating)
    folder = run(study(tmp_path, name="lost"))
    flaky.loses.clear()
    asked: list[str] = []

    def seen(request: PolicyRequest) -> bool:
        asked.append(request.key.episode_id.split(".")[0])
        return False

    flaky.loses.append(seen)
    run(study(tmp_path, name="lost"), resume=True)
    assert set(asked) == set(tasks[:2])
    assert not read_unplayable(folder / "results.jsonl")
    strip = [replace(result, costs=None) for result in results(folder)]
    assert strip == [replace(result, costs=None) for result in results(tmp_path / "whole")]


def test_samples_that_were_played_are_not_played_again_for_one_that_was_lost(tmp_path: Path) -> None:
    tasks = tasks_of(tmp_path)
    losing(tasks[:1], lambda request: request.key.episode_id.endswith(".2"))
    asked: Counter[str] = Counter()

    def seen(request: PolicyRequest) -> bool:
        asked[str(request.key)] += 1
        return False

    flaky.loses.insert(0, seen)
    folder = run(study(tmp_path, name="lost", strategies={"self_consistency": STRATEGIES["self_consistency"]}))
    tries = {key: count for key, count in asked.items() if count > 1}
    assert set(tries.values()) == {3}
    assert {key.split("/")[0].split(".")[::2][0] for key in tries} == {tasks[0]}
    assert len(read_unplayable(folder / "results.jsonl")) == 1


def test_another_choice_among_lost_samples_is_lost_without_another_try(tmp_path: Path) -> None:
    tasks = tasks_of(tmp_path)
    asked: Counter[str] = Counter()

    def sampled(request: PolicyRequest) -> bool:
        found = request.key.episode_id.split(".")[0] == tasks[0] and not request.observation.can_delegate
        asked[str(request.key)] += found
        return found

    flaky.loses.append(sampled)
    chosen = {name: STRATEGIES[name] for name in ("self_consistency", "best_of_n")}
    folder = run(study(tmp_path, name="lost", strategies=chosen))
    assert [one.place.strategy for one in read_unplayable(folder / "results.jsonl")] == list(chosen)
    assert max(asked.values()) == 3


def test_above_the_limit_a_study_stops_and_what_was_played_stays(tmp_path: Path) -> None:
    tasks = tasks_of(tmp_path)
    losing(tasks[4:6], delegating)
    said = r"range 2-6: 2 of 10 instances could not .* max_failed_fraction is 0\.1; the last failure: .* 503\. Check"
    with pytest.raises(InfrastructureError, match=said):
        run(study(tmp_path, name="lost", max_failed_fraction=0.1))
    flaky.loses.clear()
    folder = run(study(tmp_path, name="lost", max_failed_fraction=0.1), resume=True)
    assert len(results(folder)) == len(results(tmp_path / "whole"))


def test_a_judge_s_outage_leaves_its_instance_unplayed(tmp_path: Path) -> None:
    reward = {"name": "correct", "options": {"judged": {"name": "flaky:FlakyJudge", "loses": "+", "times": 1}}}
    config = parse_as(StudyConfig, study(tmp_path, name="judged", reward=reward, strategies={"monolithic": {}}))
    found = Study(config)
    config.folder.mkdir(parents=True)
    file = found.play(Store(config.folder), lambda *_: None)
    assert isinstance(found.reward.terms["judged"], FlakyJudge)
    (lost,) = read_unplayable(file)
    assert lost.why == "the judge gave a turn no mark in 3 tries"
    assert len(list(read_results(file))) == 9


def test_a_judge_that_is_down_for_what_was_played_stops_the_study(tmp_path: Path) -> None:
    run(study(tmp_path, name="judged", strategies={"monolithic": {}}))
    reward = {"name": "correct", "options": {"judged": {"name": "flaky:FlakyJudge", "loses": "+", "times": 99}}}
    with pytest.raises(InfrastructureError, match="10 of 10 instances could not be played"):
        run(study(tmp_path, name="judged", strategies={"monolithic": {}}, reward=reward), resume=True)


@pytest.mark.parametrize(("key", "value"), [("max_retries", -1), ("max_failed_fraction", 1.0)])
def test_limits_that_cannot_be_are_refused(tmp_path: Path, key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{key} is {value}"):
        run(study(tmp_path, **{key: value}))
