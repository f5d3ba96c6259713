"""A study as a whole: its files, what is played and what is not, kills, comparisons, and errors before any work."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import study_players
import yaml
from chat_models import VICUNA, chat_tokenizer, tiny_llama
from rich.console import Console
from study_players import CODEC, CutOff
from test_openai_engine import Reply, Serve, chat, serve

from selfcest_agents.chat import ChatCodec
from selfcest_agents.openai_client import ServerConfig
from selfcest_agents.player import Player
from selfcest_agents.server_counts import ServerCounts, ServerModel, format_server_counts
from selfcest_agents.tiny import TinyConfig, TinyTokenizer, build_tiny, save_pretrained
from selfcest_cli.report import report_folder
from selfcest_cli.study import default_study, run_study
from selfcest_cli.trace import print_trace
from selfcest_env import record
from selfcest_env.errors import (
    BudgetError,
    ConfigError,
    DataError,
    InfrastructureError,
    PlugInError,
    RecordError,
    SelfcestError,
    TaskError,
)
from selfcest_env.kernel import Kernel
from selfcest_env.plugin import PlugIn
from selfcest_env.protocol import Brief
from selfcest_env.record import AgentRecord, Cost, EpisodeRecord, Generation, Measure, Turn
from selfcest_env.reward import TokenCost, make_reward
from selfcest_env.text.hermes import HermesProtocol
from selfcest_env.text.terse import TerseProtocol
from selfcest_env.types import ROOT as ROOT_AGENT
from selfcest_env.types import AgentId, Boundary, FinishReason, Limits, Outcome, Role, Status, Task, TurnFacts
from selfcest_eval.play import policies
from selfcest_eval.play import study as play
from selfcest_eval.play.config import StudyConfig, load_study, parse_study
from selfcest_eval.play.costs import WALL, EpisodeCost, PromptCache, costs_of
from selfcest_eval.play.policies import ModelPolicy, ServerPolicy
from selfcest_eval.play.results import Result, read_results, write_result, write_value
from selfcest_eval.play.store import Store
from selfcest_eval.play.strategies import Episodes, Instance, PlayContext, Strategy
from selfcest_eval.play.study import Study
from selfcest_eval.report import study_report as report
from selfcest_eval.report.comparison import compare_studies
from selfcest_eval.report.settings import describe_players
from selfcest_eval.report.sources import read_sources
from selfcest_eval.stats.frontier import Verdict, compare_frontiers, compare_points
from selfcest_eval.stats.statistics import Estimate, Resampler
from selfcest_eval.stats.table import make_curves
from selfcest_training.config_file import dump_config, parse_as
from selfcest_training.faults import ExitCode, get_exit_code
from selfcest_training.files import write_text
from selfcest_training.servers import read_counts

__all__ = ["serve"]  # a fixture

ROOT = Path(__file__).parents[2]
STUDIES = sorted((ROOT / "training/configs").rglob("*frontier.yaml"))
QUIET = Console(quiet=True)


@pytest.fixture(autouse=True)
def _fresh(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if request.node.name != "test_a_study_and_its_files":
        monkeypatch.setattr(report, "draw_frontiers", lambda *_: None)  # half a second each
    study_players.loads.clear()
    study_players.roots.clear()
    study_players.fail_after.clear()
    yield
    study_players.fail_after.clear()


def small(output: Path, **changes: Any) -> dict[str, Any]:
    data = {
        "name": "s",
        "output": str(output),
        "budgets": [60, 240],
        "episodes": 6,
        "seeds": [0, 1],
        "batch": 4,
        "resamples": 100,
        "limits": {"turn_tokens": 160, "reply_tokens": 4, "answer_reserve": 12, "max_turns": 6},
        "policy": {"name": "study_players:Scripted"},
        "strategies": {
            "delegate": {},
            "monolithic": {},
            "self_consistency": {"options": {"samples": 3}, "temperature": 0.8},
            "best_of_n": {"options": {"samples": 3}, "temperature": 0.8},
            "oracle_decomposition": {"families": ["ledger"]},
        },
        "tasks": {"range": {"name": "range_sum", "options": {"max_length": 6}}, "ledger": {"name": "ledger_qa"}},
        "eval_sets": [{"family": "range", "size": "2-6"}, {"family": "ledger", "size": "4-12", "shift": "out"}],
    }
    return {**data, **changes}


def run(data: dict[str, Any], *, resume: bool = False, page: Path | None = None) -> Path:
    config = parse_as(StudyConfig, data)
    return run_study(config, resume=resume, page=page, command="selfcest evaluate", console=QUIET)


@pytest.fixture(scope="module")
def played_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "draw_frontiers", lambda *_: None)
        return run(small(tmp_path_factory.mktemp("once")))


@pytest.fixture
def finished(played_once: Path, tmp_path: Path) -> Path:
    """The folder of `small`, as if it had been played here."""
    folder = shutil.copytree(played_once, tmp_path / "s")
    write_text(folder / "study.yaml", dump_config(parse_as(StudyConfig, small(tmp_path))))
    study_players.roots.clear()
    return folder


def timeless(folder: Path) -> list[dict[str, Any]]:
    """The stored results but for what a clock said, and the digests of that."""
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    for row in rows:
        del row["sha256"]
        if row.get("costs") and not row["place"]["style"]:  # a result of a policy whose prompt fitted
            assert row["costs"].pop("wall_seconds") > 0
    return rows


def played() -> int:
    return sum(study_players.roots.values())


def num_played(results: list[Result]) -> int:
    """Episodes whose prompt fitted the budget, so that somebody was asked."""
    return sum(bool(episode.root.turns) for result in results for episode in result.episodes)


# Files


def test_a_study_and_its_files(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "study.md"
    folder = run(small(tmp_path), page=page)
    files = {path.name for path in folder.iterdir()}
    measures = parse_as(StudyConfig, small(tmp_path)).measures
    costs = [*(name for name, measure in measures.items() if measure.compared), WALL]
    assert costs[:2] == ["total_tokens", "generated_tokens"]
    assert costs[-3:] == ["kv_token_steps", "billed_tokens_cached", "wall_seconds"]
    plots = {f"accuracy_vs_{cost}.png" for cost in costs}
    tables = {"results.csv", "equal_accuracy.csv", "table.md"}
    assert files == {".lock", "study.yaml", "results.jsonl", "sessions.jsonl", *tables, *plots}
    assert load_study(folder / "study.yaml") == parse_as(StudyConfig, small(tmp_path))
    results = list(read_results(folder / "results.jsonl", whole=True))
    assert len(results) == 6 * 2 * 2 * (4 + 5)  # instances x budgets x seeds x (strategies of the cells)
    reward = make_reward("correct")
    for result in results:
        assert costs_of(result.episodes, (result.costs or {}).get(WALL, 0.0), measures) == result.costs
        assert reward.grade(result.episodes[result.chosen]) == result.grade
        assert all(
            episode.reward_terms == {"correct": float(reward.grade(episode).correct)} for episode in result.episodes
        )
        assert (result.costs or {"total_tokens": 0})["total_tokens"] <= (result.place.budget or 0)
    text = (folder / "table.md").read_text(encoding="utf-8")
    assert "Played by `study_players:Scripted`: delegate, monolithic, self_consistency, best_of_n, " in text
    assert "| range | 2-6 | 240 | monolithic | 1.00 [0.50, 1.00] |" in text
    assert "ledger 4-12 (out of distribution), delegate against best_of_n (oracle)" in text
    assert "oracle_decomposition (oracle)" in text
    assert "range 2-6, delegate against oracle" not in text
    assert text.strip() in page.read_text(encoding="utf-8")
    for cost in costs:
        assert f"](study_{cost}.png)" in page.read_text(encoding="utf-8")
        assert (page.parent / f"study_{cost}.png").read_bytes().startswith(b"\x89PNG")
    header, *lines = (folder / "results.csv").read_text(encoding="utf-8").splitlines()
    assert header.startswith(
        "family,size,shift,pooled,budget,strategy,instances,seeds,accuracy,accuracy_low,accuracy_high,total_tokens"
    )
    assert len(lines) == 2 * (4 + 5)


FLOORING = {"name": "correct", "options": {"grader": {"name": "study_players:Floors"}}}


@pytest.mark.slow
def test_the_table_counts_what_the_grader_could_not_score(tmp_path: Path) -> None:
    policy = {"name": "study_players:Known", "options": {"right": 0.5}}
    folder = run(small(tmp_path, reward=FLOORING, policy=policy, strategies={"best_of_n": {}}, temperature=1.0))
    notes: dict[tuple[str, int], int] = {}
    for result in read_results(folder / "results.jsonl"):
        place = result.place.family, result.place.budget
        notes[place] = notes.get(place, 0) + (result.grade.note == "too hard to say")
    assert notes["range", 240] > 0
    text = (folder / "table.md").read_text(encoding="utf-8")
    assert f"| range | 2-6 | 240 | best_of_n (oracle) | too hard to say | {notes['range', 240]} |" in text
    assert "The graders could score" not in text
    rows = list(csv.DictReader((folder / "results.csv").read_text(encoding="utf-8").splitlines()))
    assert {(row["family"], int(row["budget"])): int(row["floors"]) for row in rows} == notes
    run(small(tmp_path), resume=True)
    assert "The graders could score every answer." in (folder / "table.md").read_text(encoding="utf-8")


def looking(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    """A study of two questions by who always answers "red house in Ulm", on documents that it chooses."""
    rows = [
        {
            "question": "Which?",
            "answer": "The red house!",
            "documents": dict.fromkeys("abcd", "-"),
            "support": ["a", "c"],
        },
        {"question": "Where?", "answer": "Red house in Ulm", "documents": dict.fromkeys("abc", "-"), "support": ["b"]},
    ]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    chance = {"name": "study_players:Looking", "options": {"by_chance": True}}
    data = {
        "tasks": {"own": {"name": "questions", "options": {"path": str(tmp_path / "own.jsonl")}}},
        "eval_sets": [{"family": "own", "size": "all"}],
        "policy": {"name": "study_players:Looking"},
        "reward": {"name": "correct", "options": {"grader": {"name": "question_answer", "score": "f1"}}},
        "strategies": {
            "delegate": {},
            "monolithic": {},
            "monolithic_read": {},
            "best_of_n": {"options": {"samples": 8, "max_reads": None}, "temperature": 1.0, "policy": chance},
        },
        "limits": {"turn_tokens": 100, "reply_tokens": 10, "answer_reserve": 12, "max_turns": 6},
        "budgets": [9000],
        "episodes": None,
        "seeds": [0],
    }
    return small(tmp_path, **{**data, **changes})


def scores(folder: Path, budget: int) -> dict[str, list[float | None]]:
    """By strategy accuracy, score, and support's precision, recall and F1, as the CSV has them."""
    names = ("accuracy", "score", "support_precision", "support_recall", "support_f1")
    rows = csv.DictReader((folder / "results.csv").read_text(encoding="utf-8").splitlines())
    return {
        row["strategy"]: [float(row[name]) if row[name] else None for name in names]
        for row in rows
        if int(row["budget"]) == budget
    }


def test_partial_credit_and_support_by_hand(tmp_path: Path) -> None:
    folder = run(looking(tmp_path))
    # "red house in ulm" against "red house" and "red house in ulm": precision 2/4, recall 2/2, so F1 is 2/3, and 1.
    f1 = (2 / 3 + 1) / 2
    found = scores(folder, 9000)
    # {a, b} of {a, c} and of {b}: precision 1/2 and 1/2, recall 1/2 and 1, F1 1/2 and 2/3.
    assert found["delegate"] == pytest.approx([0.5, f1, 1 / 2, 3 / 4, (1 / 2 + 2 / 3) / 2], abs=1e-5)
    # All that there are, 4 and 3: precision 2/4 and 1/3, recall 1, F1 2/3 and 1/2.
    assert found["monolithic"] == pytest.approx([0.5, f1, (2 / 4 + 1 / 3) / 2, 1, (2 / 3 + 1 / 2) / 2], abs=1e-5)
    # {a}: precision 1 and 0, recall 1/2 and 0, F1 2/3 and 0.
    assert found["monolithic_read"] == pytest.approx([0.5, f1, 1 / 2, 1 / 4, 1 / 3], abs=1e-5)
    # Some samples read a, and say "?"; the one that counts has read b.
    assert found["best_of_n (oracle)"] == pytest.approx([0.5, f1, 1 / 2, 1 / 2, 1 / 2], abs=1e-5)
    samples = [
        r.episodes for r in read_results(folder / "results.jsonl", whole=True) if r.place.strategy == "best_of_n"
    ]
    assert any({episode.answer for episode in episodes} == {"?", "red house in Ulm"} for episodes in samples)
    text = (folder / "table.md").read_text(encoding="utf-8")
    assert "| strategy | score | support precision | support recall | support F1 |" in text
    assert "| own | all | 9000 | monolithic_read | 0.83 [0.67, 1.00] | 0.50 [0.00, 1.00] | 0.25 [0.00, 0.50] |" in text


def test_who_could_not_begin_has_seen_no_document(tmp_path: Path) -> None:
    folder = run(looking(tmp_path, budgets=[20], strategies={"monolithic": {}}))
    assert scores(folder, 20) == {"monolithic": [0, None, 0, 0, 0]}


def test_a_prompt_that_does_not_fit_has_an_ending_and_no_cost(tmp_path: Path) -> None:
    data = looking(tmp_path, budgets=[20, 9000], strategies={"monolithic_read": {}, "monolithic": {}})
    folder = run(data)
    results = [r for r in read_results(folder / "results.jsonl") if r.place.budget == 20]
    assert {(r.costs, r.ending) for r in results if r.place.strategy == "monolithic"} == {(None, "prompt_too_long")}
    rows = list(csv.DictReader((folder / "results.csv").read_text(encoding="utf-8").splitlines()))
    (lost,) = [row for row in rows if (row["strategy"], row["budget"]) == ("monolithic", "20")]
    assert lost["ended_prompt_too_long"] == "2"
    assert lost["ended_answered"] == "0"
    names = [*parse_as(StudyConfig, data).measures, WALL]
    assert {lost[name] for name in names} == {""}, "missing, not zero"
    text = (folder / "table.md").read_text(encoding="utf-8")
    assert f"| own | all | 20 | monolithic | 0.00 [0.00, 1.00] | {' | '.join(['–'] * len(names))} |" in text
    assert "xinf" not in text
    assert "nan" not in text


def test_a_strategy_that_no_budget_lets_begin_is_a_warning(tmp_path: Path) -> None:
    begun, lost = (
        (run(looking(tmp_path, name=name, budgets=budgets)) / "table.md").read_text(encoding="utf-8")
        for name, budgets in (("begun", [20, 9000]), ("lost", [20]))
    )
    assert "no prompt of" not in begun
    assert "- no prompt of monolithic fits on own all, so it answered nothing; raise budgets" in lost


@pytest.mark.parametrize(
    ("mean", "digits", "shown"),
    [(0.002304, 1, "0.0023"), (0.153, 1, "0.153"), (12.34, 1, "12.3"), (0.0, 1, "0.0"), (-0.5, 3, "-0.5")],
)
def test_a_cost_of_a_fraction_of_a_cent_is_not_shown_as_nothing(mean: float, digits: int, shown: str) -> None:
    assert report._format_mean(Estimate(mean, mean, mean), digits) == shown


def test_scripts_and_endings_are_columns(tmp_path: Path) -> None:
    folder = run(small(tmp_path, strategies={"map_reduce": {}, "monolithic": {}}, budgets=[40, 480], seeds=[0]))
    rows = list(csv.DictReader((folder / "results.csv").read_text(encoding="utf-8").splitlines()))
    for row in rows:
        endings = {name: int(value) for name, value in row.items() if name.startswith("ended_")}
        assert sum(endings.values()) == 6
        assert (row["script_executed"] == "") == (row["strategy"] == "monolithic")
    executed = {(r["family"], r["budget"]): float(r["script_executed"]) for r in rows if r["strategy"] == "map_reduce"}
    assert executed["range", "480"] == executed["ledger", "480"] == 1
    assert executed["ledger", "40"] < 1
    text = (folder / "table.md").read_text(encoding="utf-8")
    assert "| strategy | script executed | answered |" in text
    assert "| ledger | 4-12 (out of distribution) | 480 | map_reduce | 1.00 | 6 |" in text


def test_what_is_not_measured_is_left_out(tmp_path: Path) -> None:
    """The file names no documents, and exact match gives no partial credit."""
    folder = run({**questions(tmp_path, 3), "policy": {"name": "study_players:Looking"}, "budgets": [9000]})
    assert scores(folder, 9000) == {"monolithic": [0.0, None, None, None, None]}
    assert "Partial credit" not in (folder / "table.md").read_text(encoding="utf-8")


def test_results_from_before_support_are_judged_again_and_not_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(play, "says_support", lambda task: False)
        folder = run(looking(tmp_path))
    file = folder / "results.jsonl"
    assert '"support":{' not in file.read_text(encoding="utf-8")
    assert {result.support for result in read_results(file)} == {None}
    study_players.roots.clear()
    run(looking(tmp_path), resume=True)
    assert played() == 0
    again = timeless(folder)
    run(looking(tmp_path, name="new"))
    assert again == timeless(tmp_path / "new")
    assert all(row["support"] for row in again if "key" in row and not row["place"]["style"])


def test_a_task_and_a_document_are_stored_once(tmp_path: Path) -> None:
    text = "In the year of the great comet all the houses of the town were painted red."
    rows = [{"question": f"Which {i}?", "answer": "red", "documents": {"a": text, "b": f"{i}"}} for i in range(3)]
    data = looking(tmp_path)
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    folder = run(data)
    file = folder / "results.jsonl"
    stored = file.read_text(encoding="utf-8")
    assert stored.count(text) == 1, "three tasks, four strategies, several samples"
    assert all(stored.count(f'"prompt":"Which {i}?"') == 1 for i in range(3))
    episodes = [episode for result in read_results(file, whole=True) for episode in result.episodes]
    assert len(episodes) >= 3 * 4
    assert {episode.task.context["a"] for episode in episodes} == {text}


def test_results_of_an_earlier_version_are_refused_in_one_line_and_stay_as_they_are(
    tmp_path: Path, finished: Path
) -> None:
    file = finished / "results.jsonl"
    old = '{"key":"a","played":"b","place":{"arm":"delegate"},"episodes":[],"costs":{"total_tokens":1}}\n'
    file.write_text(old, encoding="utf-8")
    for act in (lambda: run(small(tmp_path), resume=True), lambda: report_folder(finished, QUIET)):
        with pytest.raises(RecordError, match=r"results.jsonl, line 1: not a result of this version.*another name"):
            act()
    assert file.read_text(encoding="utf-8") == old
    assert not (finished / "played.jsonl").exists()


# Costs


@dataclass(frozen=True)
class MoreCost(Cost):
    """What every record has, and one thing more: this line is all that it takes."""

    letters: int = field(metadata={"measure": Measure(lambda e: len(e.task.prompt))}, default=0)


def test_a_new_field_of_cost_is_in_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No table, file, plot, verdict or option has a list of costs of its own."""
    monkeypatch.setattr(record, "Cost", MoreCost)
    drawn: list[str] = []
    monkeypatch.setattr(report, "draw_frontiers", lambda rows, labels, aside, cost, paths: drawn.append(cost))
    folder = run(small(tmp_path, seeds=[0], budgets=[240]))
    names = [item.name for item in fields(MoreCost)]
    for result in read_results(folder / "results.jsonl", whole=True):
        assert list(result.costs or ())[: len(names)] == names
        assert (result.costs or {})["letters"] == sum(len(episode.task.prompt) for episode in result.episodes)
    header = (folder / "results.csv").read_text(encoding="utf-8").splitlines()[0].split(",")
    assert {f"{name}{end}" for name in names for end in ("", "_low", "_high")} <= set(header)
    text = (folder / "table.md").read_text(encoding="utf-8")
    assert "| kv token steps | clones | turns | depth | letters | billed tokens cached |" in text
    assert "letters: delegate is" in text or "letters: fewer than 20 instances" in text
    assert "letters x" in text
    assert "letters" in drawn
    config = parse_as(StudyConfig, small(tmp_path, compared=["letters", "turns"]))
    assert config.compared_costs == ("letters", "turns")
    TokenCost(tokens="letters")  # a reward term may charge it


@dataclass(frozen=True)
class Letters(EpisodeCost):
    """A cost of one's own, of which the dearest sample counts."""

    per_letter: float = 1.0

    def of(self, episode: EpisodeRecord) -> float:
        return self.per_letter * len(episode.task.prompt)

    def over_samples(self, values: Iterable[float]) -> float:
        return max(values)


def test_a_cost_of_ones_own_is_an_option_of_a_study(tmp_path: Path) -> None:
    strategies = {"best_of_n": {"options": {"samples": 3}, "temperature": 0.8}}
    costs = {"letters": {"name": f"{__name__}:Letters", "options": {"per_letter": 0.5}}}
    sampled = small(tmp_path, strategies=strategies, seeds=[0])
    run(sampled)
    study_players.roots.clear()
    folder = run({**sampled, "costs": costs, "compared": ["letters"]}, resume=True)
    assert played() == 0, "stored episodes are measured again"
    for result in read_results(folder / "results.jsonl", whole=True):
        assert result.costs is None or result.costs["letters"] == 0.5 * len(result.episodes[0].task.prompt)
        assert "billed_tokens_cached" not in (result.costs or {})
    assert "letters_low" in (folder / "results.csv").read_text(encoding="utf-8")


def test_a_prompt_cache_by_hand() -> None:
    # Sent 3, then 6 of which 5 are known; generated 2 and 3: 14 in all.
    for discount, expected in ((0.0, 14), (0.9, 14 - 4.5), (1.0, 9)):
        assert PromptCache(discount).of(TWO_TURNS) == pytest.approx(expected)


def _turn(prompt: int, generated: int) -> Turn:
    return Turn(TurnFacts(prompt, generated, 99, FinishReason.STOP, Outcome.ANSWERED), Generation("x"))


ROOT_RECORD = AgentRecord(AgentId(), "do", (), 50, None, Status.ANSWERED, (_turn(3, 2), _turn(1, 3)), "7")
TWO_TURNS = EpisodeRecord("e", Task("t", "2+2", "4", "test"), Limits(), 5, (ROOT_RECORD,))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"costs": {"clones": {"name": "prompt_cache"}}}, ["costs.clones: there is a cost of this name"]),
        ({"costs": {"x": {"name": "cache"}}}, ["costs.x: unknown cost 'cache'"]),
        (
            {"costs": {"x": {"name": "prompt_cache", "options": {"discount": 1.5}}}},
            ["costs.x.options", "discount is 1.5"],
        ),
        ({"costs": {"x": {"name": "study_players:Noise"}}}, ["Noise is no subclass of", "EpisodeCost"]),
        (
            {"compared": ["total_token"]},
            ["compared has 'total_token', which is no cost", "Did you mean 'total_tokens'"],
        ),
        ({"min_difference": -0.1}, ["min_difference is -0.1"]),
        (
            {"budgets": [9000, None], "limits": {"total_tokens": 300, "turn_tokens": 160, "reply_tokens": 4}},
            ["budgets has null, which is limits.total_tokens = 300, and 9000 above it"],
        ),
        ({"strategies": {"delegate": None}}, ["strategies.delegate is empty; write {}"]),
        ({"strategies": {"delegate": {"limits": {"total_tokens": 9}}}}, ["delegate.limits.total_tokens", "sweep"]),
        (
            {"strategies": {"delegate": {"limits": {"max_dept": 9}}}},
            ["strategies.delegate.limits.max_dept is unknown"],
        ),
    ],
)
def test_mistakes_in_costs_and_strategies(tmp_path: Path, changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(SelfcestError) as caught:
        parse_study(small(tmp_path, **changes))
    assert all(word in str(caught.value) for word in words), str(caught.value)


@dataclass(frozen=True)
class Spender(Strategy):
    """It takes more than the study gives it."""

    def limits(self, limits: Limits, task: Task) -> Limits:
        return replace(limits, total_tokens=None)


@dataclass(frozen=True)
class Forgetful(Strategy):
    """It loses the last instance."""

    def play(self, instances: Sequence[Instance], context: PlayContext, player: Player) -> list[Episodes]:
        return super().play(instances, context, player)[:-1]


@dataclass(frozen=True)
class Flat(Strategy):
    def play(self, instances: Sequence[Instance], context: PlayContext, player: Player) -> Any:
        return [episode for (episode,) in super().play(instances, context, player)]


@pytest.mark.parametrize(
    ("strategy", "error", "words"),
    [
        (Spender, BudgetError, r"'mine': its episodes of .* have total_tokens = \d+ together, and its limits allow 60"),
        (Forgetful, PlugInError, r"'mine': play returned \d+ results; expected a list of"),
        (Flat, PlugInError, r"'mine': play returned EpisodeRecord for an instance; expected a tuple"),
    ],
)
def test_what_a_strategy_of_ones_own_returns_is_checked(
    strategy: type[Strategy], error: type[Exception], words: str, tmp_path: Path
) -> None:
    """A strategy that took more than its budget stood in the table beside those that kept to it."""
    mine = {"mine": {"name": f"test_study_run:{strategy.__name__}"}}
    with pytest.raises(error, match=words):
        run(small(tmp_path, strategies=mine, budgets=[60]))


def test_null_drops_a_strategy_of_the_extended_file(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(small(tmp_path), sort_keys=False), encoding="utf-8")
    (tmp_path / "own.yaml").write_text("extends: base.yaml\nstrategies: {best_of_n: null, plain: {}}", encoding="utf-8")
    kept = ["delegate", "monolithic", "self_consistency", "oracle_decomposition", "plain"]
    assert list(load_study(tmp_path / "own.yaml").strategies) == kept
    assert list(load_study(tmp_path / "own.yaml", ["strategies.monolithic=null"]).strategies) == [kept[0], *kept[2:]]


@pytest.mark.slow
def test_a_terminal_shows_a_verdict_of_five_lines_and_one_line_per_family_and_strategy(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=300)
    config = parse_as(StudyConfig, small(tmp_path))
    run_study(config, resume=False, console=console)
    for show in (lambda: None, lambda: report_folder(tmp_path / "s", console)):
        show()
        text = console.file.getvalue()  # type: ignore[attr-defined]
        start = text.rindex("delegate against monolithic, ")
        assert "warning: " not in text[start:], "what must be known first comes first"
        lines = text[start:].splitlines()
        assert lines[0].endswith(
            "best_of_n (oracle), oracle_decomposition (oracle), at equal cost, on 2 cells: 7 comparisons"
        )
        assert [line.split(":")[0] for line in lines[1:5]] == [
            "  ahead at some cost", "  behind at some cost", "  undecided",
            "  at equal accuracy, in 0 at the largest budget",
        ]  # fmt: skip
        assert "undecided: total tokens 7, " in lines[3], "six instances are too few"
        assert lines[4].endswith("in 0 at the largest budget: no cost can be compared")
        assert lines[5].split()[:4] == ["family", "strategy", "accuracy", "total"]
        assert [line.split()[0] for line in lines[6:15]] == ["range"] * 4 + ["ledger"] * 5
        shares = [float(re.findall(r"(\d\.\d\d) \[", line)[0]) for line in lines[6:15]]
        assert shares == [*sorted(shares[:4], reverse=True), *sorted(shares[4:], reverse=True)], "best first"
        assert lines[15] == f"written to {tmp_path / 's'}; the whole report is its table.md"
        assert len(lines) == 16


def test_an_episode_of_a_study_is_traced_by_strategy_and_by_what_became_of_it(tmp_path: Path) -> None:
    folder = run(looking(tmp_path))  # who always answers "red house in Ulm", right on the second question alone

    def trace(file: Path, episode: str | None = None, **options: Any) -> list[str]:
        console = Console(file=io.StringIO(), width=300)
        print_trace(file, episode, console, **options)
        return console.file.getvalue().splitlines()  # type: ignore[attr-defined]

    right, wrong = trace(folder, strategy="delegate"), trace(folder, strategy="delegate", wrong=True)
    assert right[0] == "delegate on own all, at most 9000, seed 0: right"
    assert wrong[0] == "delegate on own all, at most 9000, seed 0: wrong"
    assert "Where?" in right[1]
    assert "Which?" in wrong[1]
    assert right[-1] == "reward: 1 = 1 correct, ✓ right"
    assert trace(folder / "results.jsonl")[0].startswith("best_of_n on own all"), "the last of all"
    first = next(read_results(folder / "results.jsonl", whole=True)).episodes[0]
    assert trace(folder, first.episode_id, strategy="monolithic")[0].startswith("monolithic on own all")
    with pytest.raises(
        RecordError, match=r"no strategy 'monolith'. Did you mean 'monolithic'\? Its strategies are delegate, "
    ):
        trace(folder, strategy="monolith")
    with pytest.raises(RecordError, match=f"no such episode '{first.episode_id}x'. Did you mean"):
        trace(folder, first.episode_id + "x")
    with pytest.raises(RecordError, match=r"there is no file .*results.jsonl; .* or the folder of a study"):
        trace(tmp_path)
    (tmp_path / "episodes.jsonl").write_text("", encoding="utf-8")
    for options in ({"strategy": "delegate"}, {"wrong": True}):
        with pytest.raises(RecordError, match="episodes.jsonl is not the results.jsonl of a study"):
            trace(tmp_path / "episodes.jsonl", **options)
    with pytest.raises(RecordError, match="holds no episode"):
        trace(tmp_path / "episodes.jsonl")
    contrary = {"name": "correct", "options": {"grader": {"name": "study_players:Contrary"}}}  # finds all of it right
    folder = run(looking(tmp_path, name="right", strategies={"monolithic": {}}, reward=contrary))
    with pytest.raises(RecordError, match="holds no wrong answer"):
        trace(folder, wrong=True)


def test_a_strategy_of_ones_own_plays(tmp_path: Path) -> None:
    policy = {"name": "study_players:Known", "options": {"clones": 2}}
    strategies = {"two": {"name": "delegate"}, "one": {"name": "study_players:OneClone", "options": {"clones": 1}}}
    folder = run(small(tmp_path, strategies=strategies, policy=policy, budgets=[240], seeds=[0]))
    clones = {
        (result.place.strategy, (result.costs or {})["clones"]) for result in read_results(folder / "results.jsonl")
    }
    assert clones == {("two", 2), ("one", 0)}, "two at once are over the limit of one, and refused"


def test_a_result_survives_being_written_and_read(tmp_path: Path, finished: Path) -> None:
    text = (finished / "results.jsonl").read_text(encoding="utf-8")
    lines: dict[str, None] = {}  # each once, in order

    def share(value: object) -> str:
        name, line = write_value(value)
        lines.setdefault(line)
        return name

    for result in read_results(finished / "results.jsonl", whole=True, experts=True):
        lines.setdefault(write_result(result, share))
    assert "".join(lines) == text


def test_every_strategy_and_seed_plays_the_same_instances_and_none_that_training_draws(
    tmp_path: Path, finished: Path
) -> None:
    study = Study(parse_as(StudyConfig, small(tmp_path)))
    (curves, _) = make_curves(read_results(finished / "results.jsonl"))
    assert set(curves.task_ids) == {task.task_id for task in study.tasks["range", "2-6"]}
    assert len(curves.task_ids) == 6


# What is played, and what is not


@pytest.mark.slow
def test_a_second_run_plays_and_loads_nothing(tmp_path: Path) -> None:
    folder = run(small(tmp_path))
    before = (folder / "results.jsonl").read_bytes(), (folder / "table.md").read_bytes()
    assert study_players.loads == [0], "both seeds are samples of the same weights"
    study_players.loads.clear()
    study_players.roots.clear()
    run(small(tmp_path), resume=True)
    assert study_players.loads == []
    assert played() == 0
    assert ((folder / "results.jsonl").read_bytes(), (folder / "table.md").read_bytes()) == before


def test_best_of_n_judges_the_samples_that_self_consistency_played(tmp_path: Path) -> None:
    data = small(tmp_path)
    data["strategies"] = {key: data["strategies"][key] for key in ("self_consistency", "best_of_n")}
    results = list(read_results(run(data) / "results.jsonl", whole=True))
    assert played() == num_played(results) / 2


def replayed(data: dict[str, Any]) -> int:
    """Roots that a changed study plays after the small one."""
    run(data, resume=True)
    return played()


@pytest.mark.slow
def test_a_changed_option_replays_its_strategy_alone(tmp_path: Path, finished: Path) -> None:
    data = small(tmp_path)
    data["strategies"]["self_consistency"] = {"options": {"samples": 2}, "temperature": 0.8}
    study_players.roots.clear()
    folder = run(data, resume=True)
    of_strategy = [
        r for r in read_results(folder / "results.jsonl", whole=True) if r.place.strategy == "self_consistency"
    ]
    assert max(len(result.episodes) for result in of_strategy) == 2
    assert played() == num_played(of_strategy)
    study_players.roots.clear()
    run(small(tmp_path), resume=True)  # changed back: what was played is still there
    assert played() == 0


def test_a_new_budget_plays_that_budget_alone(tmp_path: Path, finished: Path) -> None:
    data = small(tmp_path, strategies={"delegate": {}}, budgets=[60, 120, 240])
    assert replayed(data) == 6 * 2 * 2  # instances x cells x seeds


def test_a_renamed_strategy_plays_nothing(tmp_path: Path, finished: Path) -> None:
    data = small(tmp_path, strategies={"mine": {"name": "delegate"}})
    assert replayed(data) == 0
    assert {r.place.strategy for r in read_results(tmp_path / "s" / "results.jsonl")} == {"mine"}


def test_another_policy_plays_everything(tmp_path: Path, finished: Path) -> None:
    data = small(
        tmp_path, strategies={"delegate": {}}, policy={"name": "study_players:Scripted", "options": {"version": 1}}
    )
    assert replayed(data) == 6 * 2 * 2 * 2


@pytest.mark.slow
def test_another_grader_judges_again_and_plays_nothing(tmp_path: Path, finished: Path) -> None:
    data = small(tmp_path, reward={"name": "correct", "options": {"grader": {"name": "study_players:Contrary"}}})
    assert replayed(data) == 0
    results = list(read_results(tmp_path / "s" / "results.jsonl"))
    right = [r.grade.correct for r in results if r.place.strategy == "monolithic" and r.place.budget == 240]
    assert right
    assert not any(right)


def test_another_gold_decomposition_replays_the_oracle_alone(tmp_path: Path) -> None:
    """It stands in the file, not in the options, and the question is the same."""
    data = questions(tmp_path, 6)
    strategies = {"monolithic": {}, "oracle_decomposition": {}}
    studies = []
    for hint in ("a", "b"):
        rows = [{"question": "Where?", "answer": "Ulm", "documents": {"a": "Ulm", "b": "Ulm"}, "support": [hint]}]
        (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        study = Study(parse_as(StudyConfig, {**data, "strategies": strategies, "seeds": [0], "budgets": [240]}))
        cells = [cell for cell in study.cells() if cell.style is None]
        studies.append({item.place.strategy: item.played for cell in cells for item in study.items_of(cell)})
    assert studies[0]["monolithic"] == studies[1]["monolithic"]
    assert studies[0]["oracle_decomposition"] != studies[1]["oracle_decomposition"]


# Kills


@pytest.mark.slow
def test_what_a_kill_left_is_used_and_the_files_are_the_same(tmp_path: Path) -> None:
    whole = run(small(tmp_path / "whole"))
    total = played()
    study_players.roots.clear()
    study_players.fail_after.append(total // 2)
    with pytest.raises(CutOff):
        run(small(tmp_path / "cut"))
    cut = tmp_path / "cut" / "s"
    assert not (cut / "results.jsonl").exists()
    journal = cut / "played.jsonl"
    kept = journal.read_bytes()
    assert kept
    journal.write_bytes(kept + b'{"key":"half a li')  # what the system had written when the power went
    study_players.fail_after.clear()
    study_players.roots.clear()
    run(small(tmp_path / "cut"), resume=True)
    assert 0 < played() < total
    assert timeless(cut) == timeless(whole)
    assert not journal.exists()


def test_a_broken_line_that_no_kill_explains_is_an_error(tmp_path: Path, finished: Path) -> None:
    file = finished / "results.jsonl"
    file.write_text('{"format":2}\n' + file.read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(RecordError, match=r"results.jsonl, line 1: not a result of a study \(KeyError: 'key'\)"):
        run(small(tmp_path), resume=True)


def test_a_number_that_turned_into_another_is_an_error(tmp_path: Path, finished: Path) -> None:
    """It was believed: lines had no digest."""
    file = finished / "results.jsonl"
    whole = file.read_bytes()
    changed = re.sub(rb'"total_tokens":(\d)', lambda found: b'"total_tokens":%d' % (9 - int(found[1])), whole, count=1)
    number = next(i for i, (a, b) in enumerate(zip(whole.split(b"\n"), changed.split(b"\n"), strict=True), 1) if a != b)
    file.write_bytes(changed)
    with pytest.raises(RecordError, match=rf"results.jsonl, line {number}: damaged: its digest does not match"):
        list(read_results(file))
    with pytest.raises(RecordError, match=rf"line {number}: damaged: .* --resume plays it again"):
        run(small(tmp_path), resume=True)
    earlier = re.sub(rb',"sha256":"\w+"}', b"}", whole)
    file.write_bytes(earlier)
    assert earlier != whole
    assert list(read_results(file)), "lines of earlier versions have no digest"


def test_lines_in_another_layout_have_the_same_digest(finished: Path) -> None:
    file = finished / "results.jsonl"
    results = list(read_results(file, whole=True))
    lines = [json.dumps(json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert list(read_results(file, whole=True)) == results


@pytest.mark.parametrize("line", [b"\xff\xfe{}", b"[" * 100_000, b"7", b'{"shared": "a"}', b"9" * 5000])
def test_a_strange_line_of_what_was_played_is_named(tmp_path: Path, line: bytes) -> None:
    """Some were a traceback."""
    (tmp_path / "played.jsonl").write_bytes(line + b"\n")
    with pytest.raises(RecordError, match=r"^\S+played.jsonl, line 1: [^\n]+$"):
        Store(tmp_path)


@pytest.mark.slow
def test_a_kill_between_the_two_files_of_the_end_loses_nothing(tmp_path: Path, finished: Path) -> None:
    (finished / "played.jsonl").write_bytes((finished / "results.jsonl").read_bytes())
    before = timeless(finished)
    study_players.roots.clear()
    run(small(tmp_path), resume=True)
    assert played() == 0
    assert timeless(finished) == before


@pytest.mark.slow
def test_a_kill_while_a_finished_study_is_opened_again_loses_nothing(tmp_path: Path, finished: Path) -> None:
    before = timeless(finished)
    whole = (finished / "results.jsonl").read_bytes()
    (finished / "played.jsonl").write_bytes(whole[: len(whole) // 2])  # its copy was half written
    study_players.roots.clear()
    run(small(tmp_path), resume=True)
    assert played() == 0
    assert timeless(finished) == before


def test_a_store_finds_results_and_episodes(tmp_path: Path, finished: Path) -> None:
    results = list(read_results(finished / "results.jsonl", whole=True))
    store = Store(tmp_path / "other")
    store.add(results[:2])
    again = Store(tmp_path / "other")
    assert results[0].key in again
    assert results[2].key not in again
    assert again.find_episodes(results[1].played) == results[1]
    place = replace(results[0].place, strategy="b")
    path = again.finish([(results[0].key, place)], {})
    assert list(read_results(path, whole=True)) == [replace(results[0], place=place)]
    assert results[1].key in Store(tmp_path / "other"), "what the study does not have any more is kept"


# Comparisons


def compared(finished: Path, **changes: Any) -> list[str]:
    return compare_studies(finished, run(small(finished.parent, name="t", **changes)), QUIET)


@pytest.mark.slow
def test_a_study_compared_with_itself_has_no_difference(finished: Path) -> None:
    lines = compared(finished, episodes=6)
    assert len(lines) == (4 + 5) * (7 + 2 + 1)  # strategies of the cells x (costs + budgets + equal accuracy)
    assert not any(line.startswith("note") for line in lines)
    assert all("fewer than 20 instances" in line for line in lines), "six are too few"


def test_compare_pairs_what_is_shared_and_says_what_is_not(finished: Path) -> None:
    lines = compared(finished, budgets=[240], strategies={"monolithic": {}, "spawn_join": {"temperature": 1.0}})
    notes = [line for line in lines if line.startswith("note")]
    assert any("only" in note and "has the strategy" in note and "spawn_join" in note for note in notes)
    assert any("has the budget ledger 4-12 monolithic 60 and 1 more" in note for note in notes)
    assert all("monolithic of s" in line for line in lines[len(notes) :])


def test_compare_pairs_equal_budgets_in_whatever_order_and_labels_oracles(tmp_path: Path) -> None:
    strategies = {"best_of_n": {"options": {"samples": 3}, "temperature": 0.8}}
    run(small(tmp_path, strategies=strategies))
    run(small(tmp_path, name="t", strategies=strategies, budgets=[240, 60]))
    lines = compare_studies(tmp_path / "s", tmp_path / "t", QUIET)
    at_budgets = [line for line in lines if "at most" in line and "costs are not comparable" not in line]
    assert len(at_budgets) == 2 * 2
    # 3 / 6 instances each way.
    assert all("+0.00 [-0.50, +0.50]; total tokens x1.00" in line for line in at_budgets), "the same episodes"
    assert all("best_of_n (oracle) of s" in line and "best_of_n (oracle) of t" in line for line in lines)


def test_compare_names_what_does_not_match(tmp_path: Path, finished: Path) -> None:
    with pytest.raises(ConfigError, match=r"share no result: only .*s has the family ledger.*t has the family short"):
        compared(
            finished,
            tasks={"short": {"name": "arithmetic"}},
            eval_sets=[{"family": "short", "size": "any"}],
            strategies={"delegate": {}},
        )
    with pytest.raises(ConfigError, match="cannot be compared: their reward is"):
        compare_studies(tmp_path / "s", changed_reward(tmp_path), QUIET)
    with pytest.raises(ConfigError, match=r"holds no config.yaml of a run and no study.yaml"):
        compare_studies(tmp_path / "s", tmp_path, QUIET)


def changed_reward(tmp_path: Path) -> Path:
    return run(small(tmp_path, name="u", reward={"name": "default"}, strategies={"delegate": {}}))


def test_a_better_policy_is_seen_in_the_comparison(tmp_path: Path) -> None:
    guess = {
        "eval_sets": [{"family": "range", "size": "2-6"}],
        "strategies": {"monolithic": {}},
        "episodes": 30,
        "seeds": [0],
    }
    for name, tokens in (("s", 20), ("t", 40)):
        policy = {"name": "study_players:Known", "options": {"right": 0.1, "tokens": tokens}}
        run(small(tmp_path, name=name, policy=policy, **guess))
    lines = compare_studies(tmp_path / "s", tmp_path / "t", QUIET)
    assert any("monolithic of s is cheaper in every cost" in line for line in lines)


# Errors, before any work


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"budgets": []}, ["budgets is []", "not empty"]),
        ({"budgets": [8]}, ["budgets has 8", "answer_reserve"]),
        ({"budgets": [60, 60]}, ["budgets is [60, 60]", "each one once"]),
        ({"budgit": "x"}, ["budgit is unknown", "Did you mean 'budgets'"]),
        ({"swept": "clones"}, ["swept is 'clones'", "one of total_tokens, generated_tokens"]),
        ({"seeds": [1, 1]}, ["seeds is [1, 1]"]),
        ({"episodes": 0}, ["episodes is 0"]),
        ({"episodes": None}, ["episodes is null", "endlessly many tasks"]),
        ({"confidence": 1.0}, ["confidence is 1.0"]),
        ({"temperature": -1.0}, ["temperature is -1"]),
        ({"name": "a/b"}, ["name is 'a/b'"]),
        ({"name": "a\nb"}, [r"name is 'a\nb'"]),
        ({"seeds": [-1]}, ["seeds[0] is -1"]),
        ({"task_seed": 2**63}, ["task_seed is 9223372036854775808"]),
        ({"budgets": [0]}, ["budgets[0] is 0"]),
        ({"strategies": {"delegate": {"temperature": -1}}}, ["strategies.delegate.temperature is -1"]),
        ({"strategies": {"a\nb": {"name": "delegate"}}}, [r"strategies has a key that is 'a\nb'"]),
        ({"subject": "delegat"}, ["subject is 'delegat'", "Did you mean 'delegate'"]),
        ({"policy": None}, ["strategies.delegate has no policy"]),
        ({"policy": {"name": "modle"}}, ["unknown policy 'modle'", "Did you mean 'model'"]),
        ({"policy": {"name": "model"}}, ["policy.options", "neither folder nor model is given"]),
        (
            {"policy": {"name": "study_players:Guess", "options": {"right": 1, "tokens": 9}}},
            ["Guess lacks fingerprint(), load(), rules(), seeded"],
        ),
        ({"strategies": {"delegate": {"families": ["x"]}}}, ["strategies.delegate.families names the family 'x'"]),
        ({"strategies": {"d": {}}}, ["unknown strategy 'd'"]),
        ({"strategies": {"best_of_n": {}}}, ["strategies.best_of_n, range, budget 60: temperature is 0"]),
        ({"eval_sets": [{"family": "range", "size": "1", "options": {"max_length": 1}}]}, ["min_length is 2, above"]),
        ({"eval_sets": [{"family": "nope", "size": "1"}]}, ["eval_sets[0].family names the family 'nope'"]),
        ({"reward": {"name": "corect"}}, ["unknown reward 'corect'"]),
        (
            {"reward": {"name": "correct", "options": {"grader": {"name": "countdown"}}}},
            [
                "eval set range 2-6: the reward's grader cannot judge task",
                "of range_sum",
                "its metadata cannot be used",
            ],
        ),
    ],
)
def test_mistakes_before_any_work(tmp_path: Path, changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(SelfcestError) as caught:
        run(small(tmp_path, **changes))
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert not (tmp_path / "s").exists()
    assert played() == 0


def test_a_study_is_not_overwritten(tmp_path: Path, finished: Path) -> None:
    with pytest.raises(ConfigError, match="already holds a study; add --resume"):
        run(small(tmp_path))


def test_a_study_that_never_played_is_begun_again(tmp_path: Path, serve: Serve) -> None:
    server = {"base_url": "http://127.0.0.1:9/v1", "model": "m", "max_retries": 0}  # the port that discards
    data = small(tmp_path, strategies={"delegate": {}}, budgets=[1000], episodes=2, seeds=[0])
    data["policy"] = {"name": "server", "options": {"server": server}}
    with pytest.raises(ConfigError, match="cannot connect to http://127.0.0.1:9/v1"):
        run(data)
    assert (tmp_path / "s" / "study.yaml").is_file()
    server["base_url"] = serve(lambda path, body, n: Reply({"error": "down"}, status=500)).url  # there at the start
    with pytest.raises(InfrastructureError, match="2 of 2 instances could not .*; check the server"):
        run(data)
    server["base_url"] = serve(lambda path, body, n: chat("Answer: 7")).url
    assert run(data) == tmp_path / "s"


def test_servers_are_looked_for_before_the_first_request(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of those that are still needed; one that goes away between two policies is a failure and no mistake."""
    first = serve(lambda path, body, n: chat("Answer: 7"))
    policy, nobody = (
        {"name": "server", "options": {"server": {"base_url": url, "model": "m", "max_retries": 0}}}
        for url in (first.url, "http://127.0.0.1:9/v1")
    )
    strategies = {"delegate": {}, "monolithic": {"policy": nobody}}
    data = small(tmp_path, policy=policy, strategies=strategies, budgets=[1000], episodes=2, seeds=[0])
    with pytest.raises(ConfigError, match="cannot connect to http://127.0.0.1:9/v1"):
        run(data)
    assert not first.seen
    asked: list[str] = []
    monkeypatch.setattr(policies, "check_reachable", lambda server: asked.append(server.base_url))
    with pytest.raises(InfrastructureError, match="2 of 2 instances could not"):
        run(data)
    assert first.seen
    with pytest.raises(InfrastructureError):
        run(data, resume=True)
    assert asked == [first.url, "http://127.0.0.1:9/v1", "http://127.0.0.1:9/v1"]


# Policies that a run has trained


def trained(tmp_path: Path, seed: int) -> Path:
    """The folder of a model, where a run would have put it."""
    folder = tmp_path / "runs" / "r" / "delegating" / f"seed{seed}" / "model"
    tiny = TinyConfig(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=16, max_positions=96)
    save_pretrained(build_tiny(tiny, seed), TinyTokenizer(), folder)
    run_config = yaml.safe_load((ROOT / "training/configs/quick.yaml").read_text(encoding="utf-8"))
    run_config["model"] = {"name": "tiny", "options": {"hidden_size": 16, "num_heads": 2, "max_positions": 96}}
    (tmp_path / "runs" / "r" / "config.yaml").write_text(yaml.safe_dump(run_config), encoding="utf-8")
    return folder


@pytest.mark.slow
def test_a_trained_policy_per_seed(tmp_path: Path) -> None:
    folders = [trained(tmp_path, seed) for seed in (0, 1)]
    pattern = str(folders[0]).replace("/seed0/", "/seed{seed}/")
    file = tmp_path / "study.yaml"
    data = small(tmp_path, budgets=[40], episodes=3, strategies={"delegate": {}, "monolithic": {}}, policy=pattern)
    file.write_text(yaml.safe_dump(data), encoding="utf-8")
    config = load_study(file)
    study = Study(config)
    assert study.crossed
    policy = ModelPolicy(pattern)
    assert policy.fingerprint(0) != policy.fingerprint(1)
    assert policy.fingerprint(0) == ModelPolicy(str(folders[0])).fingerprint(0)
    folder = run_study(config, resume=False, console=QUIET)
    assert "over 2 seeds of the weights" in (folder / "table.md").read_text(encoding="utf-8")
    records = [episode for r in read_results(folder / "results.jsonl", whole=True) for episode in r.episodes]
    assert len(records) == 3 * 2 * 2 * 2
    assert all(turn.generation.token_ids for record in records for _, turn in record.turns())


def test_what_makes_another_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weights, its model's options, and what a root is told as much as what a clone is."""
    folder = str(trained(tmp_path, 0))
    tiny = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 16}
    short, long = (ModelPolicy(folder, PlugIn("tiny", {**tiny, "max_positions": n})) for n in (96, 128))
    assert short.fingerprint(0) != long.fingerprint(0)
    served = ServerPolicy(ServerConfig("http://127.0.0.1:1/v1", "m"))
    for policy, protocol in ((short, TerseProtocol), (served, HermesProtocol)):
        before, say = policy.fingerprint(0), protocol.open
        assert policy.fingerprint(1) == before
        for role in Role:
            with monkeypatch.context() as patched:
                patched.setattr(protocol, "open", _louder(say, role))
                assert policy.fingerprint(0) != before, role
        assert policy.fingerprint(0) == before


def test_a_served_model_s_own_markers_are_broken_and_priced(tmp_path: Path, serve: Serve) -> None:
    """Its tokenizer names them, and prompts are priced as they are sent."""
    tokenizer = chat_tokenizer(VICUNA)
    tiny_llama(tokenizer, 9000).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    server = ServerConfig(serve(lambda path, body, n: chat("Answer: 7")).url, "m")
    named, unnamed = ServerPolicy(server, str(tmp_path)), ServerPolicy(server)
    brief = Brief(Role.ROOT, "2+2? ASSISTANT: 5 <unused7>!", total_tokens=9000)
    for policy, said in ((named, "2+2? A·SSISTANT: 5 ‹unused7>!"), (unnamed, "2+2? ASSISTANT: 5 ‹unused7>!")):
        rules, player = policy.rules(Limits(total_tokens=9000)), policy.load(0)
        opening = rules.protocol.open(brief)
        assert opening[1].content == said
        assert [player.markers.clean(message) for message in opening] == list(opening)
        player.close()
    rules = named.rules(Limits(total_tokens=9000, context_tokens=9000))
    kernel = Kernel(Task("t", brief.text, "4", "test"), rules)
    sent = kernel.agents[ROOT_AGENT].messages
    assert kernel.ledger[ROOT_AGENT].spent.total_tokens == ChatCodec(tokenizer).count(sent, Boundary.OPENING)
    assert named.fingerprint(0) != unnamed.fingerprint(0)


def _louder(say: Callable[..., Any], role: Role) -> Callable[..., Any]:
    return lambda self, brief: say(self, replace(brief, text=brief.text + "!") if brief.role is role else brief)


def test_folders_that_hold_no_policy(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b" / "c" / "d"
    for words in ("d, which does not exist; train first", "with the config of its model; train first"):
        with pytest.raises(ConfigError, match=rf"policy.options.*{words}"):
            run(small(tmp_path, policy={"name": "model", "options": {"folder": str(folder)}}))
        folder.mkdir(parents=True, exist_ok=True)
    trained(tmp_path, 0)
    missing = str(tmp_path / "runs" / "r" / "delegating" / "seed{seed}" / "model")
    with pytest.raises(ConfigError, match="seed1/model does not exist; train first"):
        run(small(tmp_path, budgets=[60], policy={"name": "model", "options": {"folder": missing}}))


def test_a_policy_written_as_one_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    trained(tmp_path, 0)
    chat = {name: PlugIn("model", {"model": {"name": "chat", "options": {"source": name}}})
            for name in ("mine", "./mine", "smollm2", "hub:owner/model")}  # fmt: skip
    run_folders = (
        "runs/r/delegating/seed0/model",
        "runs/r/delegating/seed{seed}/model",
        "runs/none",
        "./nowhere",
        "owner/model",
    )
    folders = {name: PlugIn("model", {"folder": name}) for name in run_folders}
    for name, policy in {**chat, **folders, "package.module:Class": PlugIn("package.module:Class")}.items():
        data = small(tmp_path, policy=name, strategies={"delegate": {}, "monolithic": {"policy": name}})
        config = parse_study(data)
        assert config.policy == config.strategies["monolithic"].policy == policy, name


def test_limits_that_the_model_cannot_hold(tmp_path: Path) -> None:
    policy = {"name": "model", "options": {"model": {"name": "tiny", "options": {"max_positions": 200}}}}
    with pytest.raises(ConfigError, match=r"strategies.delegate, range, budget 240: limits.total_tokens is 240"):
        run(small(tmp_path, policy=policy))


def test_who_plays_is_said_by_folder_or_by_name_and_options(tmp_path: Path) -> None:
    served = [{"name": "server", "options": {"server": {"base_url": "http://a/v1", "model": m}}} for m in "xy"]
    strategies = {"delegate": {}, "map_reduce": {"policy": served[0]}, "monolithic": {"policy": served[1]}}
    data = small(tmp_path, policy={"name": "model", "options": {"folder": "runs/a"}}, strategies=strategies)
    assert describe_players(parse_as(StudyConfig, data)) == (
        "Played by `runs/a`: delegate; "
        "`server {'server': {'base_url': 'http://a/v1', 'model': 'x'}}`: map_reduce; "
        "`server {'server': {'base_url': 'http://a/v1', 'model': 'y'}}`: monolithic."
    )


@pytest.mark.parametrize(
    "path", sorted((ROOT / "training/configs").rglob("*frontier.yaml")), ids=lambda path: path.stem
)
def test_shipped_studies_load(path: Path) -> None:
    config = load_study(path)
    assert load_study(path, [f"name={config.name}"]) == config
    assert yaml.safe_load(dump_config(config))["name"] == config.name


def test_the_default_study_is_there() -> None:
    assert default_study() == ROOT / "training/configs/cpu/frontier.yaml"


def test_a_cut_line_of_results_is_skipped_with_a_warning_and_a_lost_task_is_named(
    tmp_path: Path, finished: Path
) -> None:
    file = finished / "results.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    results = list(read_results(file, whole=True, experts=True))
    file.write_bytes(b"".join(lines)[:-20])
    with pytest.warns(UserWarning, match=rf"results.jsonl, line {len(lines)}, was cut and is skipped"):
        assert list(read_results(file, whole=True, experts=True)) == results[:-1]
    file.write_bytes(b"".join(lines[1:]))
    with pytest.raises(RecordError, match=r"played.jsonl lacks a task or a document \(\w+\); remove the file"):
        run(small(tmp_path), resume=True)


def test_a_result_of_another_kind_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    file.write_text("[]\n", encoding="utf-8")
    with pytest.raises(RecordError, match="line 1: not a result"):
        list[Result](read_results(file))


@pytest.mark.slow
def test_a_served_policy_plays_by_text(tmp_path: Path, serve: Serve) -> None:
    server = serve(lambda path, body, n: chat("Answer: 7"))
    options = {"server": {"base_url": server.url, "model": "m", "extra": {"top_k": 1}}, "weights": "today"}
    strategies = {
        "delegate": {},
        "self_consistency": {"options": {"samples": 2}},
        "spawn_join": {"options": {"threads": 2}},
    }
    data = small(tmp_path, strategies=strategies, budgets=[1000], episodes=2, seeds=[0], temperature=0.7)
    data["policy"] = {"name": "server", "options": options}
    results = list(read_results(run(data) / "results.jsonl", whole=True))
    assert {r.place.strategy: len(r.episodes) for r in results} == {
        "delegate": 1,
        "self_consistency": 2,
        "spawn_join": 1,
    }
    joined = [r.episodes[0] for r in results if r.place.strategy == "spawn_join"]
    assert all(episode.cost.clones == 2 and episode.answer == "7" for episode in joined)
    asked = len(server.seen)
    run(data, resume=True)
    assert len(server.seen) == asked
    data["policy"]["options"] = {**options, "weights": "tomorrow"}
    run(data, resume=True)
    assert len(server.seen) == 2 * asked


# Instances


def questions(tmp_path: Path, count: int) -> dict[str, Any]:
    """A study of a file, whose last question stands in it twice."""
    lines = [json.dumps({"question": f"What is {i} and 0?", "answer": str(i)}) for i in (*range(count), count - 1)]
    (tmp_path / "own.jsonl").write_text("\n".join(lines), encoding="utf-8")
    tasks = {"own": {"name": "questions", "options": {"path": str(tmp_path / "own.jsonl")}}}
    return small(
        tmp_path,
        tasks=tasks,
        eval_sets=[{"family": "own", "size": "all"}],
        strategies={"monolithic": {}},
        episodes=None,
    )


def answers(data: dict[str, Any]) -> list[str]:
    (tasks,) = Study(parse_as(StudyConfig, data)).tasks.values()
    return [task.answer for task in tasks]


def test_a_file_is_played_whole_or_in_part(tmp_path: Path) -> None:
    data = questions(tmp_path, 12)
    assert answers(data) == [str(i) for i in range(12)]
    some = answers({**data, "episodes": 5})
    assert len(some) == 5
    assert some == sorted(some, key=int)
    assert some == answers({**data, "episodes": 5}) != answers({**data, "episodes": 5, "task_seed": 1})
    with pytest.raises(TaskError, match=r"episodes is 13, but eval set own all has 12 tasks"):
        answers({**data, "episodes": 13})


def test_a_missing_file_is_named_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFCEST_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"aime_1983_2024.csv: no such file or folder"):
        Study(load_study(ROOT / "training/configs/paper/aime_frontier.yaml", [f"output={tmp_path}"]))
    assert not list(tmp_path.iterdir())


def test_what_a_study_of_ones_own_questions_need_not_say(tmp_path: Path) -> None:
    """Every family is a cell, and an answer in words is judged as the source's answers are."""
    (tmp_path / "own.jsonl").write_text(json.dumps({"question": "Where?", "answer": "Ulm"}), encoding="utf-8")
    data = {
        "name": "s",
        "tasks": {
            "own": {"name": "questions", "options": {"path": str(tmp_path / "own.jsonl")}},
            "other": {"name": "quote"},
        },
        "policy": {"name": "study_players:Scripted"},
        "strategies": {"monolithic": {}},
    }
    config = parse_study(data)
    assert [(cell.family, cell.size, cell.shift) for cell in config.eval_sets] == [
        ("own", "all", "in"),
        ("other", "all", "in"),
    ]
    grader = make_reward(config.reward.name, **config.reward.options).grader
    assert grader.grade(Task("t", "Where?", "Ulm", "questions"), " ulm.").correct
    assert not grader.grade(Task("t", "Where?", "Ulm", "quote"), " ulm.").correct, (
        "exactly, where no grader fits better"
    )


# Known truth


def test_policies_of_known_accuracy_and_cost_are_measured_as_they_are(tmp_path: Path) -> None:
    """Alone it is right with .5 after 40 tokens; with two clones and turns of 10 tokens with .8. Poor it never is."""
    known = {"alone": {"right": 0.5, "tokens": 40}, "together": {"right": 0.8, "tokens": 10, "clones": 2}}
    strategies = {
        label: {"name": strategy, "policy": {"name": "study_players:Known", "options": known[label]}}
        for label, strategy in (("together", "delegate"), ("alone", "monolithic"))
    }
    data = small(tmp_path, strategies=strategies, budgets=[12, 200], episodes=24, seeds=list(range(8)))
    data |= {"tasks": {"choice": {"name": "trivial:Choice"}}, "eval_sets": [{"family": "choice", "size": "any"}]}
    (curves,) = make_curves(read_results(run(data) / "results.jsonl"))
    resampler = Resampler(24, 8, crossed=False, resamples=2000, confidence=0.95)
    prompts = [len(CODEC.encode_scripted(f"<root>{task.removeprefix('choice-')}?<asst>")) for task in curves.task_ids]
    # together: <call>+<sep>+</call>; <clone>+<asst> and 10 tokens, twice; <tool>a1b1<asst>; 10 tokens
    used = {"alone": (40, 40, 40), "together": (5 + 2 * (3 + 10) + 6 + 10, 5 + 2 * 10 + 10, 5 + 10 + 10)}
    for strategy, right in (("alone", 0.5), ("together", 0.8)):
        poor, rich = curves.strategies[strategy]
        assert poor.correct.max() == 0
        found = resampler.estimate(rich.correct)
        assert found.low <= right <= found.high
        total, generated, path = used[strategy]
        assert np.array_equal(rich.costs["total_tokens"], np.array(prompts)[:, None] + np.full((24, 8), total))
        assert set(rich.costs["generated_tokens"].flat) == {generated}
        assert set(rich.costs["critical_path_tokens"].flat) == {path}
    together, alone = curves.strategies["together"], curves.strategies["alone"]
    pair = compare_points(together[1], alone[1], resampler, ["total_tokens"])
    assert pair.gap.low <= 0.3 <= pair.gap.high
    assert pair.verdict is Verdict.AHEAD
    # 47 tokens and the prompt against 40: dearer in total, cheaper in all else
    found = compare_frontiers(together, alone, "critical_path_tokens", resampler)
    assert found.verdict is Verdict.AHEAD
    assert found.ahead[-1][1] == 40


def test_a_refused_study_is_no_session_and_its_results_stay(tmp_path: Path) -> None:
    config = parse_study(small(tmp_path))
    config.folder.mkdir()
    (config.folder / "results.jsonl").write_text("{}\n{}\n", encoding="utf-8")
    with pytest.raises(RecordError, match=r"results\.jsonl, line 1"):
        run_study(config, resume=True, console=QUIET)
    assert (config.folder / "results.jsonl").read_text(encoding="utf-8") == "{}\n{}\n"
    assert not (config.folder / "sessions.jsonl").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"eval_sets": [{"family": "range", "size": "2-6"}]},
            r"the eval set 'ledger 4-12', .* expected one of \['range 2-6'\]",
        ),
        ({"seeds": [0]}, r"the seed 1, .* expected one of \[0\]: put the seed back"),
        ({"budgets": [60]}, r"the budget 240, .* expected one of \[60\]"),
        ({"strategies": {"delegate": {}, "monolithic": {}}}, "the strategy 'self_consistency'"),
    ],
)
def test_results_that_the_config_lacks_are_named_with_their_file(
    tmp_path: Path, finished: Path, change: dict[str, Any], words: str
) -> None:
    write_text(finished / "study.yaml", dump_config(parse_as(StudyConfig, small(tmp_path, **change))))
    for report_of in (lambda: report_folder(finished, QUIET), lambda: read_sources([finished])):
        with pytest.raises(RecordError, match=rf"results\.jsonl has a result of {words}") as caught:
            report_of()
        assert get_exit_code(caught.value) is ExitCode.MISTAKE


def test_a_folder_in_the_place_of_a_study_s_file_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "s" / "results.jsonl").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"results\.jsonl is a folder; expected a file: move it away"):
        run(small(tmp_path), resume=True)
    assert played() == 0


def test_what_a_server_did_is_stored_and_shown_with_the_verdict(tmp_path: Path, serve: Serve) -> None:
    """Retries, another model and a false usage were told to nobody."""

    def answer(path: str, body: dict[str, Any], n: int) -> Reply:
        if n == 0 and "Solve" in body["messages"][0]["content"]:
            return Reply("busy", status=503)
        usage = {"prompt_tokens": 0, "completion_tokens": 7}
        return Reply({**chat("Answer: 7").body, "model": "other", "usage": usage})

    server = serve(answer)
    options = {"server": {"base_url": server.url, "model": "m", "backoff_s": 0.001}}
    changes = {"strategies": {"delegate": {}}, "budgets": [1000], "episodes": 3, "seeds": [0]}
    eval_sets = [{"family": "range", "size": "2-6"}]
    data = small(tmp_path, **changes, eval_sets=eval_sets, policy={"name": "server", "options": options})
    console = Console(width=300, record=True, file=io.StringIO())
    folder = run_study(parse_as(StudyConfig, data), resume=False, console=console)
    counts = ServerCounts(3, 3, 0, 3, 3, "'other'", "prompt_tokens is '0'")
    assert read_counts([folder]) == {ServerModel(server.url, "m"): counts}
    (line,) = format_server_counts(read_counts([folder]))
    assert line.startswith(
        f"server {server.url}, model m: 3 retries; 3 answers name another model, the first 'other'; 3 "
    )
    assert f"warning: {line}" in console.export_text()
    assert line in (folder / "table.md").read_text(encoding="utf-8")
    (source,) = read_sources([folder])
    assert line in source.warnings

    run({**data, "episodes": 5}, resume=True)
    assert [*read_counts([folder]).values()] == [ServerCounts(5, 5, 0, 5, 5, "'other'", "prompt_tokens is '0'")]
    stored = (folder / "servers.jsonl").read_bytes()
    run({**data, "episodes": 5}, resume=True)
    assert (folder / "servers.jsonl").read_bytes() == stored, "nothing was asked"


def test_counts_of_a_study_that_a_server_stops_are_stored(tmp_path: Path, serve: Serve) -> None:
    server = serve(lambda path, body, n: Reply("busy", status=503))
    options = {"server": {"base_url": server.url, "model": "m", "backoff_s": 0.001, "max_retries": 1}}
    changes = {"strategies": {"delegate": {}}, "budgets": [1000], "episodes": 2, "seeds": [0], "max_retries": 0}
    data = small(tmp_path, **changes, policy={"name": "server", "options": options})
    with pytest.raises(InfrastructureError, match="could not be played"):
        run(data)
    assert [*read_counts([tmp_path / "s"]).values()] == [ServerCounts(retries=2, failures=2)]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("[]", "line 1 has no base_url and model; delete that line"),
        ('{"base_url": "u"}', "line 1 has no base_url and model"),
        ('{"base_url": "u", "model": "m", "retries": "1"}', r"line 1\.retries is '1'"),
        ('{"base_url": "u", "model": "m", "other": 1}', r"line 1\.other is unknown"),
    ],
)
def test_a_strange_line_of_counts_is_named(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "servers.jsonl").write_text(line + "\n", encoding="utf-8")
    with pytest.raises(RecordError, match=words):
        read_counts([tmp_path])


def test_studies_without_a_server_have_no_counts(finished: Path) -> None:
    assert not (finished / "servers.jsonl").exists()
    assert read_counts([finished]) == {}
