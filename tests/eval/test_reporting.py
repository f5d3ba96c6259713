"""The report as a page: pathologies, curves and findings by hand; the page of a small study as text."""

from __future__ import annotations

import csv
import gc
import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from records import agent, group, three_agents, turn
from rich.console import Console
from test_job import config
from test_study_run import small

from selfcest_cli.report import report_page
from selfcest_cli.study import run_study
from selfcest_env.errors import ConfigError, RecordError
from selfcest_env.graders import Grade
from selfcest_env.record import AgentRecord, EpisodeGroup, EpisodeRecord, Turn
from selfcest_env.types import ROOT, AgentId, Fault, Limits, Outcome, Status, Task
from selfcest_eval.play.config import StudyConfig
from selfcest_eval.play.results import Result, ResultKey
from selfcest_eval.report import page, sources
from selfcest_eval.report import study_report as report
from selfcest_eval.report.figures import _rank_by_accuracy, _rank_row, draw_delegation
from selfcest_eval.report.findings import analyze, compare_best_baselines
from selfcest_eval.report.jobs import JobLog
from selfcest_eval.report.learning import compute_learning_curves, group_metrics
from selfcest_eval.report.page import LinkedEpisodes, make_delegation_rows, make_result_rows, make_source_data
from selfcest_eval.report.pathologies import (
    EPISODE_DETECTORS,
    MEANINGS,
    MIN_EPISODES,
    Count,
    Detection,
    Location,
    Occurrence,
    PathologyCounter,
    detect_ignored_replies,
    detect_redundant_objectives,
    detect_serial_collapse,
    detect_unanswered_calls,
    detect_unanswered_reads,
)
from selfcest_eval.report.settings import make_settings
from selfcest_eval.report.sources import Source, load_folder_config, read_sources
from selfcest_eval.report.verdict import report_on
from selfcest_eval.stats.decision import Choice, InstanceOutcome, judge_choices
from selfcest_eval.stats.decision_table import FamilyDecisions, ForcedTriple
from selfcest_eval.stats.frontier import Point
from selfcest_eval.stats.table import Curves
from selfcest_training.config import RunConfig, VariantConfig, WarmStartConfig
from selfcest_training.config_file import dump_config, parse_as
from selfcest_training.run.metrics import compute_rollout_metrics
from selfcest_training.session import read_sessions, record_session, sum_gpu_seconds

A, B, C = (ROOT.child(i) for i in range(3))
TASK = Task("t", "?", "1", "test")


def said(text: str, *children: AgentId, outcome: Outcome = Outcome.ANSWERED, refused: bool = False) -> Turn:
    made = turn((1,), (2,), outcome=Outcome.DELEGATED if children else outcome, children=children)
    faults = {0: Fault.OVER_BUDGET} if refused else {}
    return Turn(replace(made.facts, refused=faults), replace(made.generation, text=text))


def clone(agent_id: AgentId, objective: str, reply: str | None, *documents: str) -> AgentRecord:
    status = Status.OUT_OF_TURNS if reply is None else Status.ANSWERED
    return replace(
        agent(agent_id, said("x"), status=status), objective=objective, reply=reply, shared_context=documents
    )


def episode(*agents: AgentRecord, reward: float = 1.0, limits: Limits | None = None, name: str = "e") -> EpisodeRecord:
    return EpisodeRecord(name, TASK, limits or Limits(), 0, agents, {"correct": reward})


# Pathologies


def test_serial_collapse_is_two_calls_or_more_of_one_clone_each() -> None:
    clones = (clone(A, "a", "1"), clone(B, "b", "2"))
    one_by_one = agent(ROOT, said("c", A), said("c", B), said("ans"))
    assert detect_serial_collapse(episode(one_by_one, *clones)) == Detection(True, Location(ROOT, 0, 2))
    at_once = agent(ROOT, said("c", A, B), said("ans"))
    assert detect_serial_collapse(episode(at_once, *clones)) == Detection(False), "one call"
    mixed = agent(ROOT, said("c", A, B), said("c", C), said("ans"))
    assert detect_serial_collapse(episode(mixed, *clones, clone(C, "c", "3"))) == Detection(True)
    bound = Limits(max_clones_per_call=1)
    assert detect_serial_collapse(episode(one_by_one, *clones, limits=bound)) == Detection(False), (
        "it could not do otherwise"
    )


def test_redundant_objectives_are_equal_up_to_case_and_spaces_with_equal_documents() -> None:
    root = agent(ROOT, said("c", A, B, C), said("ans"))

    def look(*clones: AgentRecord) -> Detection:
        return detect_redundant_objectives(episode(root, *clones))

    assert look(clone(A, "Sum  it", "1"), clone(B, "sum it ", "1"), clone(C, "SUM IT", "1")).location == Location(
        ROOT, 0, 2
    )
    assert look(clone(A, "a", "1"), clone(B, "b", "1"), clone(C, "c", "1")) == Detection(True)
    assert look(clone(A, "a", "1", "d1"), clone(B, "a", "1", "d2"), clone(C, "c", "1")) == Detection(True)
    same = look(clone(A, "a", "1", "d1", "d2"), clone(B, "a", "1", "d2", "d1"), clone(C, "c", "1"))
    assert same.location == Location(ROOT, 0, 1), "the order of documents is no difference"
    alone = episode(agent(ROOT, said("c", A), said("ans")), clone(A, "a", "1"))
    assert detect_redundant_objectives(alone) == Detection(False)


def test_replies_are_ignored_if_the_root_writes_none_of_their_words_later() -> None:
    def look(text: str, first: str | None, second: str | None) -> Detection:
        root = agent(ROOT, said("12 7", A, B), said(text))
        return detect_ignored_replies(episode(root, clone(A, "a", first), clone(B, "b", second)))

    assert look("12+7=19", "12", "7") == Detection(True)
    assert look("so 12", "12", "7").location == Location(ROOT, 0, 1), (
        "what it wrote before the replies came is no use of them"
    )
    assert look("so 127", "12", "7") == Detection(True), "a word may be a part of a longer one"
    assert look("so 3", "12", "7").location == Location(ROOT, 0, 2)
    assert look("the TOWER", "tower!", None) == Detection(True), "a clone without a reply is not ignored"
    assert look("x", None, None) == Detection(False)
    silent = episode(agent(ROOT, said("c", A), status=Status.OUT_OF_TURNS), clone(A, "a", "1"))
    assert detect_ignored_replies(silent) == Detection(False), "the root had no turn after the replies"


def test_a_refused_call_without_recovery_ends_without_an_answer() -> None:
    refused = said("c", outcome=Outcome.REFUSED)
    lost = agent(ROOT, refused, refused, status=Status.OUT_OF_TURNS)
    assert detect_unanswered_calls(episode(lost)).location == Location(ROOT, 0, 2)
    assert detect_unanswered_calls(episode(agent(ROOT, refused, said("ans")))) == Detection(True)
    in_part = agent(ROOT, said("ok"), said("c", A, refused=True), status=Status.OUT_OF_TOKENS)
    assert detect_unanswered_calls(episode(in_part, clone(A, "a", "1"))).location == Location(ROOT, 1, 1)
    assert detect_unanswered_calls(episode(agent(ROOT, said("ans")))) == Detection(False)


def test_a_refused_read_is_no_refused_call() -> None:
    def look(fault: Fault, **limits: Any) -> tuple[bool, bool]:
        facts = replace(said("r", outcome=Outcome.REFUSED).facts, fault=fault)
        lost = agent(ROOT, replace(said("r"), facts=facts), status=Status.OUT_OF_TOKENS)
        record = replace(episode(lost, limits=Limits(**limits)), task=replace(TASK, context={"d": "text"}))
        detections = detect_unanswered_calls(record), detect_unanswered_reads(record)
        return detections[0].location is not None, detections[1].location is not None

    for fault in (Fault.OVER_BUDGET, Fault.TOO_MANY_READS, Fault.UNKNOWN_KEY):
        assert look(fault, max_depth=0, max_reads=2) == (False, True), "a reader has no clones to call"
    assert look(Fault.OVER_BUDGET) == (True, False), "a root that may not read"
    assert look(Fault.TOO_MANY_READS, max_reads=2) == (False, True)
    assert look(Fault.TOO_MANY_CLONES, max_reads=2) == (True, False)
    assert look(Fault.OVER_BUDGET, max_reads=2) == (False, False), "either tool"


def test_what_to_do_against_refused_reads_speaks_of_reads(tmp_path: Path) -> None:
    sick = {("refused reads", "monolithic"): Count(9, 10)}
    after = report_on(source(tmp_path, {"delegate": 1.0, "monolithic": 1.0}, pathologies=sick)).answers[-1].text
    assert "Against refused reads of monolithic: raise limits.max_reads" in after
    assert "total_tokens" not in after


def test_never_and_always_are_of_a_family_with_several_sizes_and_episodes_enough() -> None:
    alone, helped = agent(ROOT, said("ans")), agent(ROOT, said("c", A), said("1"))

    def count(*plays: tuple[str, bool, float], limits: Limits | None = None) -> dict[tuple[str, str], Count]:
        found = PathologyCounter()
        for i, (size, delegates, reward) in enumerate(plays):
            agents = (helped, clone(A, "a", "1")) if delegates else (alone,)
            found.add_episode("p", "f", size, Path("r"), episode(*agents, reward=reward, limits=limits, name=f"e{i}"))
        return found.finish()

    half = MIN_EPISODES // 2
    never = [*([("s", False, 1.0)] * half), *([("l", False, 1.0)] * (half - 1)), ("l", False, 0.0)]
    found = count(*never)
    assert (found["never delegates", "p"].found, found["always delegates", "p"].found) == (1, 0)
    worst = found["never delegates", "p"].worst
    assert worst is not None
    assert (worst.record.episode_id, worst.played_as) == (f"e{2 * half - 1}", "p on f l"), "the one that earns least"
    assert count(*[(size, True, reward) for size, _, reward in never])["always delegates", "p"].found == 1
    assert count(*never[:-1], ("l", True, 0.0))["never delegates", "p"].found == 0
    assert ("never delegates", "p") not in count(*never[:-1]), "too few"
    assert ("never delegates", "p") not in count(*[("s", False, 1.0)] * 2 * half), "one size says nothing of when"
    assert not count(*never, limits=Limits(max_depth=0)), "who cannot delegate is not sick"


def test_groups_are_equal_where_nobody_earns_more_and_the_worst_of_a_pathology_is_the_severest() -> None:
    found = PathologyCounter()
    found.add_group("variant", Path("x"), group(three_agents("a", 1.0), three_agents("b", 1.0)))
    found.add_group("variant", Path("x"), group(three_agents("c", 1.0), three_agents("d", 0.0)))
    clones = (clone(A, "a", "1"), clone(B, "A", "2"), clone(C, "a ", "3"))
    for name, reward, called in (("e0", 0.0, (A, B)), ("e1", 1.0, (A, B, C)), ("e2", 0.0, (A, B, C))):
        root = agent(ROOT, said("c", *called), said("1 2 3"))
        found.add_episode("p", "f", "s", Path("y"), episode(root, *clones[: len(called)], reward=reward, name=name))
    counts = found.finish()
    assert list(counts) == [("redundant objectives", "p"), ("ignored replies", "p"), ("equal groups", "variant")]
    equal, redundant = counts["equal groups", "variant"], counts["redundant objectives", "p"]
    assert (equal.found, equal.possible) == (1, 2)
    assert (redundant.found, redundant.possible) == (3, 3)
    assert redundant.worst is not None
    assert redundant.worst.record.episode_id == "e2", "as severe as e1, and it earns less"
    assert {*EPISODE_DETECTORS} < {*MEANINGS}


def test_a_step_is_described_by_terms_entropy_and_equal_groups() -> None:
    first = replace(three_agents("a", 1.0), reward_terms={"correct": 1.0, "cost": -0.2}, weights={"cost": 0.5})
    second = replace(three_agents("b", 0.0), reward_terms={"correct": 0.0, "cost": -0.4}, weights={"cost": 0.5})
    found = compute_rollout_metrics([group(first, second), group(first, replace(first, episode_id="c"))])
    assert found["term/correct"] + found["term/cost"] == pytest.approx(found["return"])
    assert found["term/cost"] == pytest.approx(-0.125)
    assert found["equal_groups"] == 0.5
    assert found["entropy"] == 1.0, "every token of these records has a log-prob of -1"


# Curves


def job(seed: int, returns: list[float], variant: str = "a") -> JobLog:
    used = {"compute_tokens": 0, "sampled_tokens": 5, "cpu_seconds": 2.0}
    rows: list[dict[str, Any]] = [{"stage": "warmstart", "step": 0, "loss": 9.0, **used}]
    for step, value in enumerate(returns):
        tokens, seconds = 5 + 10 * (step + 1), 2.0 + step + 1
        used = {"compute_tokens": 100 * (step + 1), "sampled_tokens": tokens, "cpu_seconds": seconds}
        rows.append({"stage": "rl", "step": step, "return": value, "term/x": value / 2, **used})
    return JobLog(variant, seed, VariantConfig(WarmStartConfig()), Path(variant), rows)


def test_curves_are_means_over_seeds_in_bins_of_steps_with_throughput() -> None:
    found = {one.metric: one for one in compute_learning_curves([job(0, [0.0, 1.0]), job(1, [1.0, 2.0])])}
    assert [(b.step, b.sampled, b.seeds) for b in found["return"].bins] == [(0, 10, (0.0, 1.0)), (1, 20, (1.0, 2.0))]
    last = found["return"].bins[-1].estimate
    assert last.mean == 1.5
    assert last.high - last.mean == pytest.approx(12.706 * math.sqrt(0.5) / math.sqrt(2), rel=1e-4), "t, one degree"
    assert [b.estimate.mean for b in found["tokens_per_cpu_second"].bins] == [100.0, 100.0]
    assert found["return"].seeds == (0, 1)
    assert group_metrics(list(found.values())) == {
        "What it earns": ["return", "term/x"],
        "Throughput": ["tokens_per_cpu_second"],
    }
    [warm] = [one for one in compute_learning_curves([job(0, [])], "warmstart") if one.metric == "loss"]
    assert [b.seeds for b in warm.bins] == [(9.0,)]


def test_a_bin_that_a_seed_has_not_reached_is_left_out() -> None:
    [returns] = [
        one for one in compute_learning_curves([job(0, [0.0] * 4), job(1, [1.0] * 2)]) if one.metric == "return"
    ]
    assert [b.step for b in returns.bins] == [0, 1]
    [long] = [
        one for one in compute_learning_curves([job(0, [float(i) for i in range(240)])]) if one.metric == "return"
    ]
    assert len(long.bins) == 60
    assert (long.bins[0].step, long.bins[0].seeds) == (1.5, (1.5,)), "four steps a bin"
    assert math.isnan(long.bins[0].estimate.low), "one seed has no interval"
    [odd] = [one for one in compute_learning_curves([job(0, [float(i) for i in range(61)])]) if one.metric == "return"]
    assert [b.step for b in odd.bins] == [*np.arange(0.5, 57, 2), 59.0], "29 bins of two steps and one of three"


# Findings

HOSTILE = "</script><script>alert(1)</script>"


def source(
    tmp_path: Path, accuracy: dict[str, float], family: str = "range", min_difference: float = 0.02, **changes: Any
) -> Source:
    """A study of one family with two sizes, 40 instances, a policy that is right on a share and costs 10 or 20."""
    data = small(tmp_path, seeds=[0], budgets=[240], strategies={name: {} for name in accuracy}, subject="delegate")
    data["min_difference"] = min_difference
    data["tasks"] = {family: {"name": "range_sum"}}
    data["eval_sets"] = [{"family": family, "size": "s"}, {"family": family, "size": "l", "options": {"min_length": 3}}]
    config = parse_as(StudyConfig, data)

    def point(name: str, share: float) -> Point:
        correct = (np.arange(40) < round(share * 40)).astype(float)[:, None]
        tokens, clones = (10.0, 2.0) if name == "delegate" else (20.0, 0.0)
        costs = {cost: np.full((40, 1), tokens) for cost in config.measures}
        return Point(240, correct, {**costs, "clones": np.full((40, 1), clones)})

    points = {name: [point(name, share)] for name, share in accuracy.items()}
    cells = [Curves(family, size, "in", tuple(f"{size}{i}" for i in range(40)), (0,), points) for size in ("s", "l")]
    settings = make_settings(config, crossed=True)
    made = Source("s", [tmp_path], config, cells, settings, [], list(accuracy), {}, [], [])
    return replace(made, **changes)


def test_the_five_lines_follow_from_the_numbers(tmp_path: Path) -> None:
    clear = source(tmp_path, {"delegate": 1.0, "monolithic": 0.95})
    lines = report_on(clear).answers
    assert [one.question for one in lines] == [
        "What was learned", "Who wins on which cost", "How sure", "What failed", "What to try next",
    ]  # fmt: skip
    text = {one.question: one.text for one in lines}
    assert text["Who wins on which cost"].startswith("On range, delegate against monolithic is ahead at equal cost of ")
    assert "1 seed; " in text["How sure"]
    assert "another seed may give another result" in text["How sure"]
    assert text["What failed"] == "Nothing that this page counts."
    assert text["What to try next"].startswith("More seeds, as seeds=[0, 1, 2]: 1 cannot separate")


def test_sizes_beyond_training_are_told_from_trained_ones_and_costs_that_agree_are_one(tmp_path: Path) -> None:
    plain, far = (source(tmp_path, {"delegate": share, "monolithic": share / 2}) for share in (1.0, 0.25))
    beyond = replace(plain, cells=[plain.cells[0], replace(far.cells[1], shift="out")])
    apart = "delegate: 1.00 on trained sizes, 0.25 beyond; monolithic: 0.50 on trained sizes, 0.12 beyond"
    wins = report_on(beyond).answers[1].text
    assert apart in wins
    assert "beyond" not in report_on(plain).answers[1].text
    assert "is ahead at equal cost of every kind" in report_on(plain).answers[1].text
    assert "critical path" not in report_on(plain).answers[1].text
    equal = report_on(source(tmp_path, {"delegate": 1.0, "monolithic": 1.0}, min_difference=0.08)).answers[1].text
    assert "(as accurate, for 0.50 times the cost of every kind)" in equal


def test_who_does_not_win_is_not_said_to(tmp_path: Path) -> None:
    behind = report_on(source(tmp_path, {"delegate": 0.2, "monolithic": 1.0})).answers[1].text
    assert "ahead" not in behind.replace("ahead at some", "")
    few = source(tmp_path, {"delegate": 1.0, "monolithic": 0.9})
    few = replace(few, cells=[_cut(curves, 8) for curves in few.cells])
    assert "not judged, on fewer than 20 instances, at any equal cost" in report_on(few).answers[1].text
    [pair] = compare_best_baselines(source(tmp_path, {"delegate": 1.0, "monolithic": 0.8, "best_of_n": 1.0}))
    assert pair.strategy == "monolithic", "an oracle is no baseline"


def test_every_output_has_the_same_headline_and_names_with_a_comma_are_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "draw_frontiers", lambda *_: None)
    labels = {"delegate": "delegate, T 1", "monolithic": "monolithic"}
    plain = source(tmp_path, {"delegate": 1.0, "monolithic": 0.2})
    ahead = replace(plain, settings=replace(plain.settings, labels=labels))
    few = replace(ahead, cells=[_cut(curves, 8) for curves in ahead.cells])
    counts = '"delegate, T 1" is ahead at equal total tokens in {} of 2 comparisons'
    for shown, headline in (
        (ahead, f"{counts.format(2)} and behind in 0."),
        (few, f"{counts.format(0)}, behind in 0 and not judged (fewer than 20 instances) in 2."),
    ):
        of_page = report_on(shown)
        lines, table = report.write_report(shown, [])
        assert make_source_data(of_page, LinkedEpisodes("t.html"))["headline"] == headline
        assert headline in lines.splitlines()
        assert f"## Verdict\n\n```text\n{headline}\n" in table
        sentences = [*of_page.failures, *(answer.text for answer in of_page.answers), table.split("## In words")[1]]
        quoted = "".join(sentences).replace('"delegate, T 1"', "")
        assert len(quoted) < len("".join(sentences))
        assert "delegate, T 1" not in quoted


def _cut(curves: Curves, count: int) -> Curves:
    def few(point: Point) -> Point:
        return replace(point, correct=point.correct[:count], costs={k: v[:count] for k, v in point.costs.items()})

    points = {name: [few(point) for point in found] for name, found in curves.strategies.items()}
    return replace(curves, task_ids=curves.task_ids[:count], strategies=points)


def test_an_incompetent_baseline_and_a_common_pathology_are_said_first_and_what_to_do_follows(tmp_path: Path) -> None:
    sick = {("ignored replies", "delegate"): Count(9, 10), ("serial collapse", "delegate"): Count(9, 100)}
    sick |= {("refused without recovery", "delegate"): Count(1, 1)}
    weak = source(tmp_path, {"delegate": 1.0, "monolithic": 0.5}, pathologies=sick)
    said_first = report_on(weak).failures
    assert said_first[0].startswith("monolithic does not solve the smallest range (0.50 [")
    assert said_first[-1] == "delegate: ignored replies, 9 of 10", "neither 9 of 100 nor 1 of 1 is common"
    after = report_on(weak).answers[-1].text
    assert after.startswith("Before comparing, give monolithic a policy that was trained for it")
    assert "against ignored replies of delegate: check that replies fit" in after


def test_a_choice_is_judged_by_its_gap_to_the_better_forced_one(tmp_path: Path) -> None:
    def choice(size: int, reward: float) -> Choice:
        ways = [InstanceOutcome(size, d, True, r, 10) for d, r in ((size > 5, reward), (True, size / 10), (False, 0.5))]
        return Choice(*ways)

    played = {"s": [choice(2, 0.5)] * 10, "l": [choice(9, 0.9)] * 10}
    judged = {0: judge_choices([one for found in played.values() for one in found])}
    item = FamilyDecisions(ForcedTriple("delegate", "always", "never"), "range", 240, played, judged)
    made = source(tmp_path, {"delegate": 1.0, "monolithic": 1.0}, decisions=[item])
    assert "delegate earns 0.700 by its own choice, more than the 0.550 of the better forced choice, always" in (
        report_on(made).answers[1].text
    )
    [row] = make_source_data(report_on(made), LinkedEpisodes("t.html"))["decisions"][0]["seeds"]
    assert (row["threshold"], row["f1"], row["regret"]) == (9, 1.0, pytest.approx(0.0))


def test_rows_of_results_and_of_delegation(tmp_path: Path) -> None:
    made = source(tmp_path, {"delegate": 0.75, "monolithic": 1.0})
    rows = make_result_rows(made, analyze(made).rows)
    assert [(row["size"], row["strategy"], row["pooled"]) for row in rows] == [
        ("s", "delegate", False), ("s", "monolithic", False), ("l", "delegate", False), ("l", "monolithic", False),
        ("all sizes", "delegate", True), ("all sizes", "monolithic", True),
    ]  # fmt: skip
    assert rows[4]["accuracy"][0] == 0.75
    assert rows[4]["costs"]["total_tokens"][0] == 10
    assert rows[4]["instances"] == 80
    assert rows[1]["accuracy"] == [1.0, pytest.approx(1 - 3 / 40), 1.0], "40 of 40 are not known to be all"
    assert rows[5]["accuracy"] == [1.0, pytest.approx(1 - 3 / 80), 1.0]
    failing = source(tmp_path, {"delegate": 0.0, "monolithic": 1.0})
    wrong = make_result_rows(failing, analyze(failing).rows)
    assert wrong[0]["accuracy"] == [0.0, 0.0, pytest.approx(3 / 40)]
    shares = make_delegation_rows(made)
    assert [(row["size"], row["share"][0], row["clones"][0]) for row in shares] == [("s", 1.0, 2.0), ("l", 1.0, 2.0)]


def test_cells_and_steps_link_to_an_episode_and_cells_to_a_wrong_one_if_there_is_any(tmp_path: Path) -> None:
    def result(name: str, size: str, correct: bool, strategy: str = "delegate") -> Result:
        place = ResultKey("range", size, "in", strategy, 240, 0, name)
        record = replace(three_agents("x", float(correct)), episode_id=name)
        return Result(name, name, place, (record,), 0, Grade(float(correct), correct, True), Status.ANSWERED, None)

    counter = PathologyCounter()
    for played in (
        result("s1", "s", True), result("s2", "s", True), result("l1", "l", True), result("l2", "l", False),
        result("l3", "l", False), result("m1", "s", True, "monolithic"),
    ):  # fmt: skip
        counter.add_result(tmp_path / "results.jsonl", played)
    for step in range(30):
        records = (replace(three_agents("x", 0.0), episode_id=f"s{step}.g0.e0"),)
        counter.add_group("v", tmp_path / "episodes.jsonl", EpisodeGroup(records[0].task, records))
    shares = {"delegate": 1.0, "monolithic": 1.0}
    examples = {"examples": counter.examples, "training_examples": counter.training_examples}
    data = make_source_data(report_on(source(tmp_path, shares, **examples)), LinkedEpisodes("t.html"))
    hrefs = {(row["strategy"], row["size"]): row["href"] for row in data["rows"]}
    assert hrefs == {
        ("delegate", "s"): "t.html#s1/root/0", ("delegate", "l"): "t.html#l2/root/0",
        ("delegate", "all sizes"): "t.html#l2/root/0",
        ("monolithic", "s"): "t.html#m1/root/0", ("monolithic", "l"): None,
        ("monolithic", "all sizes"): "t.html#m1/root/0",
    }  # fmt: skip
    steps = data["training_episodes"]["v"]
    assert (len(steps), steps[0], steps[-1]) == (12, [0, "t.html#s0.g0.e0/root/0"], [29, "t.html#s29.g0.e0/root/0"])


# The page


@pytest.fixture
def _no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("draw_learning_curves", "draw_frontiers", "draw_delegation"):
        monkeypatch.setattr(page, name, lambda *_: None)


def data_of(html: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="report">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    return dict(json.loads(found[1]))


@pytest.mark.usefixtures("_no_figures")
def test_no_name_and_no_text_becomes_a_part_of_the_page(tmp_path: Path) -> None:
    record = replace(three_agents(HOSTILE, 0.0), task=replace(TASK, prompt=HOSTILE))
    sick = {("ignored replies", HOSTILE): Count(1, 1, Occurrence(tmp_path / HOSTILE[:5], record, HOSTILE, A, 0))}
    made = source(tmp_path, {"delegate": 1.0, "monolithic": 0.1}, family=HOSTILE, pathologies=sick, warnings=[HOSTILE])
    made = replace(made, name=HOSTILE, sessions=[{"command": HOSTILE, "versions": {}, "gpus": [], "cores": 1}])
    written = page.write_report_page([report_on(made)], tmp_path / "r.html", lambda _: [])
    names = {path.relative_to(tmp_path).as_posix() for path in written}
    assert {"r.html", "r_trace.html", "r_files/results.csv", "r_files/frontier_total_tokens.svg"} <= names
    for name in ("r.html", "r_trace.html"):
        html = (tmp_path / name).read_text(encoding="utf-8")
        assert "alert(1)" in html
        assert "<script>alert" not in html
        policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
        assert policy is not None
        assert policy[1].startswith("default-src 'none'; ")
        assert "unsafe" not in policy[1]
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", html), "it asks no host for anything"
    html = (tmp_path / "r.html").read_text(encoding="utf-8")
    [shown] = data_of(html)["sources"]
    assert shown["rows"][0]["family"] == HOSTILE
    assert HOSTILE in shown["failures"]
    assert shown["pathologies"][0]["worst"]["file"] == HOSTILE[:5], "no place of this machine"
    assert shown["pathologies"][0]["worst"]["href"] == (
        "r_trace.html#%3C%2Fscript%3E%3Cscript%3Ealert%281%29%3C%2Fscript%3E/root.0/0"
    )
    assert shown["config"].startswith("name: s\n")
    assert all(finding["text"] for finding in shown["findings"])


def test_the_page_of_a_study_and_the_files_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "draw_frontiers", lambda *_: None)  # slow; those of this page are drawn
    config = parse_as(
        StudyConfig,
        small(tmp_path, seeds=[0], compared=["total_tokens"], strategies={"delegate": {}, "monolithic": {}}),
    )
    run_study(config, resume=False, console=Console(quiet=True))
    before = {path: path.stat().st_mtime_ns for path in config.folder.iterdir()}
    console = Console(file=io.StringIO(), width=80)
    (tmp_path / "out").mkdir()
    report_page([config.folder], tmp_path / "out" / "r.html", console)
    assert before == {path: path.stat().st_mtime_ns for path in config.folder.iterdir()}, "it reads alone"
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [line.split(":")[0] for line in lines[-6:-1]] == [
        "What was learned", "Who wins on which cost", "How sure", "What failed", "What to try next",
    ]  # fmt: skip
    assert lines[-1].startswith(f"written to {tmp_path / 'out' / 'r.html'}, with ")
    [shown] = data_of((tmp_path / "out" / "r.html").read_text(encoding="utf-8"))["sources"]
    assert shown["kind"] == "study"
    assert shown["sessions"][0]["versions"]["selfcest"]
    assert shown["gpu_seconds"] == 0.0 or shown["sessions"][0]["gpus"]
    for name in shown["files"]:
        file = tmp_path / "out" / name
        head = file.read_bytes()[:8]
        assert head.startswith({".png": b"\x89PNG", ".svg": b"<?xml", ".csv": head[:1]}[file.suffix]), name
    rows = list(csv.DictReader((tmp_path / "out/r_files/results.csv").read_text(encoding="utf-8").splitlines()))
    assert len(rows) == len(shown["rows"]) == 2 * 2 * 2 + 2 * 2 * 2, "cells, and families with all their sizes"
    assert {float(row["accuracy"]) for row in rows} == {row["accuracy"][0] for row in shown["rows"]}


def test_a_figure_is_drawn_once_for_each_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    draw = Figure.draw
    monkeypatch.setattr(Figure, "draw", lambda figure, renderer: drawn.append(figure) or draw(figure, renderer))
    shares = [{"family": "f", "strategy": "s", "size": size, "share": [0.5], "before": False} for size in ("1", "2")]
    draw_delegation(shares, [tmp_path / "d.png", tmp_path / "d.svg"])
    assert len(drawn) == 2
    bottom = drawn[0].axes[0].get_position().y0
    assert 0.15 < bottom < 0.4, "the layout leaves room for the legend below the panel"


def test_a_forced_choice_is_no_best_strategy_and_gets_a_colour_last() -> None:
    def row(strategy: str, accuracy: float) -> Any:
        return SimpleNamespace(strategy=strategy, accuracy=SimpleNamespace(mean=accuracy))

    rows = [row("always", 1.0), row("oracle", 0.9), row("policy", 0.2), row("policy", 0.8), row("other", 0.7)]
    labels = {"always": "always", "oracle": "oracle (oracle)", "policy": "policy", "other": "other"}
    assert _rank_by_accuracy(rows, {"always"}) == ["oracle", "policy", "other", "always"]
    best = max(rows, key=lambda row: _rank_row(row, labels, {"always"}))
    assert best is rows[3]


# What is given, and who wrote it


def test_no_cycles_are_searched_while_records_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "load_folder_config", lambda _: pytest.fail("collects") if gc.isenabled() else 1 / 0)
    with pytest.raises(ZeroDivisionError):
        read_sources([tmp_path])
    assert gc.isenabled()


def test_a_run_that_is_not_evaluated_has_a_source_too(tmp_path: Path) -> None:
    spec = config(tmp_path)
    assert not spec.evaluation.eval_sets
    spec.folder.mkdir()
    (spec.folder / "config.yaml").write_text(dump_config(spec), encoding="utf-8")
    (found,) = read_sources([spec.folder])
    assert (found.cells, found.final) == ([], ["delegating, after RL"])
    assert "evaluation.eval_sets is empty, so nothing was evaluated" in found.warnings


def test_bad_folders_are_one_error(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for folder in (empty, tmp_path / "missing"):
        with pytest.raises(ConfigError, match=f"{folder} holds no config.yaml of a run and no study.yaml"):
            read_sources([folder])
    with pytest.raises(ConfigError, match="a folder is named twice"):
        read_sources([empty, tmp_path / "x" / ".." / "empty"])
    for out, problem in ((tmp_path / "page.htm", "does not end in"), (tmp_path / "missing" / "page.html", "cannot be")):
        with pytest.raises(ConfigError, match=f"--html {out} {problem}"):
            report_page([empty], out, Console(quiet=True))


def test_a_session_says_what_wrote_a_folder_and_survives_a_cut_line(tmp_path: Path) -> None:
    assert read_sessions(tmp_path) == []
    with pytest.raises(RecordError), record_session(tmp_path):
        raise RecordError("what ended it")
    file = tmp_path / "sessions.jsonl"
    with file.open("a", encoding="utf-8") as lines:
        lines.write('{"star')  # a kill
    with record_session(tmp_path):
        pass
    with file.open("a", encoding="utf-8") as lines:
        lines.write('{"started": "now", "gpus": ["one", "two"]}\n')  # killed before it ended
    found = read_sessions(tmp_path)
    assert [("ended" in one, one["started"] != "") for one in found] == [(True, True), (True, True), (False, True)]
    assert set(found[0]["versions"]) == {"python", "selfcest", "torch", "transformers", "numpy"}
    assert sum_gpu_seconds(found) is None, "nobody knows how long the last one held them"
    assert sum_gpu_seconds([{"gpus": ["one", "two"], "seconds": 3.0}, {"gpus": [], "seconds": 9.0}]) == 6.0
    with file.open("a", encoding="utf-8") as lines:
        lines.write("7\n")
    with pytest.raises(RecordError, match=r"sessions\.jsonl, line 6: 7 is no session"):
        read_sessions(tmp_path)


def test_a_folder_is_itself_by_whatever_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`.` and `..` have no name and no parent of their own, and beside a link lies something else."""
    run = tmp_path / "runs" / "mine"
    (run / "variant").mkdir(parents=True)
    (run / "config.yaml").write_text(dump_config(config(tmp_path, name="other")), encoding="utf-8")
    (tmp_path / "link").symlink_to(run)
    for here, named in (
        (run, "."),
        (run / "variant", ".."),
        (run / "variant", "../"),
        (tmp_path, "link"),
        (tmp_path, "runs/mine"),
    ):
        monkeypatch.chdir(here)
        found = load_folder_config(Path(named))
        assert isinstance(found, RunConfig)
        assert found.folder.resolve() == run
        assert found.name == "mine"
    assert str(found.folder) == "runs/mine", "what was named stays as it was named"
