"""Perfect players beside a study's strategies, costs at equal accuracy, and money; by hand."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import study_players
from rich.console import Console
from study_players import CODEC, PROTOCOL
from test_study_run import QUIET, TWO_TURNS, played, run, small
from test_study_statistics import point, resampler, share

from selfcest_agents.language import language_of
from selfcest_cli.report import report_folder
from selfcest_env.errors import ConfigError, SelfcestError
from selfcest_env.plugin import PlugIn
from selfcest_env.reward import make_reward
from selfcest_env.rules import Rules
from selfcest_env.tasks import Proposal, Style, make_source
from selfcest_env.text.counters import WordCounter
from selfcest_env.text.hermes import HermesProtocol
from selfcest_env.types import Answer, CloneRequest, Delegate, Limits, Role, Task
from selfcest_env.views import Observation
from selfcest_eval.play import study as play
from selfcest_eval.play.config import StudyConfig
from selfcest_eval.play.costs import Price
from selfcest_eval.play.perfect_execution import PerfectPlay, play_perfect_execution, styles_on
from selfcest_eval.play.results import read_results
from selfcest_eval.play.strategies import STRATEGIES, Instance, PlayContext, Strategy, make_strategy
from selfcest_eval.report import study_report as report
from selfcest_eval.report.comparison import compare_studies
from selfcest_eval.report.training_run import get_shown_styles
from selfcest_eval.report.words import describe_cost_ratios
from selfcest_eval.stats.frontier import PerfectExecution, Point, compare_points
from selfcest_training.config_file import load_config, parse_as

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "draw_frontiers", lambda *_: None)  # half a second each
    study_players.loads.clear()
    study_players.roots.clear()


@dataclass(frozen=True)
class Errands:
    """Two digits and a question mark, and the answer is 1: alone after a thought of 7 tokens, or by two clones."""

    wrong: bool = False
    delegates: bool = True

    def draw(self, rng: np.random.Generator) -> Task:
        number = int(rng.integers(10, 100))
        return Task(f"errand{number}", f"{number}?", "1", "errands")

    def understands(self, observation: Observation) -> bool:
        return True

    def propose(self, observation: Observation, rng: np.random.Generator, style: Style) -> Proposal:
        answer = Answer("0" if self.wrong else "1")
        if observation.exchanges:
            return Proposal(answer, "++")
        if observation.role is Role.CLONE:
            return Proposal(answer)
        if style is Style.DELEGATE and self.delegates and observation.can_delegate:
            return Proposal(Delegate((CloneRequest("+"), CloneRequest("-"))))
        return Proposal(answer, "+" * 7)


@dataclass(frozen=True)
class Nobody:
    """The same tasks without an expert."""

    def draw(self, rng: np.random.Generator) -> Task:
        return Errands().draw(rng)


# <root>, three of the task, <asst>; seven of thought, <ans>, the answer, <end>. It reads 5 + ... + 14 keys.
SOLVED = {
    "total_tokens": 15, "prompt_tokens": 5, "generated_tokens": 10, "critical_path_tokens": 10, "peak_context": 15,
    "billed_tokens": 15, "kv_token_steps": 95, "clones": 0, "turns": 1, "depth": 0,
}  # fmt: skip
# The root: 5, <call>+<sep>-</call>, <tool>a1b1<asst>, ++<ans>1<end>: 5 + 5 + 6 + 5. A clone: 3 and 3, twice.
DELEGATED = {
    "total_tokens": 21 + 12, "prompt_tokens": 11 + 6, "generated_tokens": 10 + 6, "critical_path_tokens": 5 + 3 + 5,
    "peak_context": 21, "billed_tokens": 10 + 21 + 12, "kv_token_steps": (5 * 5 + 10) + (5 * 16 + 10) + 2 * (3 * 3 + 3),
    "clones": 2, "turns": 4, "depth": 1,
}  # fmt: skip


def errands(output: Path, **changes: Any) -> dict[str, Any]:
    """A study of who delegates and who does not, both always wrong after 5 generated tokens."""
    data = {
        "tasks": {"errands": {"name": f"{__name__}:Errands"}},
        "eval_sets": [{"family": "errands", "size": "any"}],
        "policy": {"name": "study_players:Known", "options": {"right": 0.0, "tokens": 5}},
        "strategies": {"delegate": {}, "monolithic": {}},
        "budgets": [100],
        "seeds": [0],
        "episodes": 6,
    }
    return small(output, **{**data, **changes})


def rows_of(folder: Path, name: str = "results.csv") -> list[dict[str, str]]:
    return list(csv.DictReader((folder / name).read_text(encoding="utf-8").splitlines()))


def perfect_costs_of(row: dict[str, str]) -> dict[str, float]:
    names = SOLVED if "perfect_execution_total_tokens" in row else {}
    return {name: float(row[f"perfect_execution_{name}"]) for name in names if row[f"perfect_execution_{name}"]}


# Who plays


def test_costs_of_perfect_execution_by_hand(tmp_path: Path) -> None:
    folder = run(errands(tmp_path))
    delegate, monolithic = rows_of(folder)
    assert (delegate["perfect_execution_style"], delegate["perfect_execution_instances"]) == ("delegate", "6")
    assert perfect_costs_of(delegate) == DELEGATED
    assert perfect_costs_of(monolithic) == SOLVED
    # With a discount of 0.9 the root's second call sends 10 known tokens for 1.
    assert float(delegate["perfect_execution_billed_tokens_cached"]) == 43 - 9
    assert played() == 2 * 6, "no policy plays for an expert"
    text = (folder / "table.md").read_text(encoding="utf-8")
    assert "| errands | any | 100 | monolithic | 0.00 [0.00, 0.50] | solve | 10.0 (15.0) | 5.0 (10.0) | " in text
    assert "| delegate | 10.0 (33.0) | 5.0 (16.0) | 5.0 (13.0) | 10.0 (21.0) | 10.0 (43.0) | 35.0 (149.0) | " in text
    # Of the costs the lowest: 10 of 43, and of 95 reads 5 + 6 + 7 + 8 + 9.
    for said in ("delegate is cheap because it fails", "errands any (accuracy 0.00, billed tokens x0.23)"):
        assert said in text
    assert "monolithic is cheap because it fails (its costs over those of its perfect player, at the larg" in text
    assert "errands any (accuracy 0.00, kv token steps x0.37)" in text


def test_who_is_right_is_not_cheap_by_failing(tmp_path: Path) -> None:
    policy = {"name": "study_players:Known", "options": {"right": 1.0, "tokens": 5}}
    text = (run(errands(tmp_path, policy=policy)) / "table.md").read_text(encoding="utf-8")
    assert "10.0 (15.0)" in text
    assert "cheap because" not in text
    policy = {"name": "study_players:Known", "options": {"right": 0.0, "tokens": 10}}
    text = (run(errands(tmp_path, name="dear", policy=policy, strategies={"monolithic": {}})) / "table.md").read_text()
    assert "15.0 (15.0)" in text
    assert "cheap because" not in text


def test_what_does_not_fit_is_played_under_lifted_limits_and_says_so(tmp_path: Path) -> None:
    folder = run(errands(tmp_path, budgets=[14, 15], strategies={"monolithic": {}}))
    text = (folder / "table.md").read_text(encoding="utf-8")
    assert "| 14 | monolithic | 0.00 [0.00, 0.50] | solve (total tokens lifted on 6) | 10.0 (15.0) |" in text
    assert "| 15 | monolithic | 0.00 [0.00, 0.50] | solve | 10.0 (15.0) |" in text
    for name, limit, said in (("window", "context_tokens", 14), ("turn", "turn_tokens", 9)):
        limits = {**small(tmp_path)["limits"], "answer_reserve": 2, limit: said}
        folder = run(errands(tmp_path, name=name, limits=limits, strategies={"monolithic": {}}))
        (row,) = rows_of(folder)
        assert perfect_costs_of(row) == SOLVED
        lifted = {r.lifted for r in read_results(folder / "results.jsonl", experts=True) if r.place.style}
        # turn_tokens has a limit in every study here, and the two are lifted together.
        assert lifted == {("context_tokens", "turn_tokens") if name == "window" else ("turn_tokens",)}


@pytest.mark.parametrize(
    ("source", "strategies", "styles"),
    [
        ("Nobody", {"delegate": {}, "monolithic": {}}, ["delegate", "solve"]),
        ("Errands", {"delegate": {}}, ["delegate"]),  # it solves by itself what it is asked to delegate
    ],
)
def test_without_an_expert_in_the_style_there_is_no_cost_and_no_zero(
    tmp_path: Path, source: str, strategies: dict[str, Any], styles: list[str]
) -> None:
    options = {"delegates": False} if source == "Errands" else {}
    tasks = {"errands": {"name": f"{__name__}:{source}", "options": options}}
    folder = run(errands(tmp_path, tasks=tasks, strategies=strategies))
    text = (folder / "table.md").read_text(encoding="utf-8")
    for row, style in zip(rows_of(folder), styles, strict=True):
        assert (row["perfect_execution_style"], row["perfect_execution_instances"]) == (style, "0")
        assert {row[f"perfect_execution_{name}"] for name in SOLVED} == {""}, "missing, not zero"
        assert f"| {style}: no expert | – | – | " in text
    assert "cheap because" not in text


def test_an_expert_that_is_wrong_is_no_perfect_player(tmp_path: Path) -> None:
    tasks = {"errands": {"name": f"{__name__}:Errands", "options": {"wrong": True}}}
    folder = run(errands(tmp_path, tasks=tasks))
    assert {row["perfect_execution_instances"] for row in rows_of(folder)} == {"0"}
    assert "| solve: no expert | – |" in (folder / "table.md").read_text(encoding="utf-8")


def test_of_a_policy_that_chooses_every_style_is_shown(tmp_path: Path) -> None:
    chooser = {"styles": ["delegate", "solve", "read"], "limits": {"max_reads": 4}}
    folder = run(errands(tmp_path, strategies={"delegate": chooser, "monolithic": {}}))
    text = (folder / "table.md").read_text(encoding="utf-8")
    assert "| delegate | 0.00 [0.00, 0.50] | delegate | 10.0 (33.0) |" in text
    assert "| delegate | 0.00 [0.00, 0.50] | solve | 10.0 (15.0) |" in text, "and who reads, where there is nothing"
    both, alone = rows_of(folder)
    assert (both["perfect_execution_total_tokens"], both["perfect_execution_solve_total_tokens"]) == ("33", "15")
    assert (alone["perfect_execution_total_tokens"], alone["perfect_execution_solve_total_tokens"]) == ("15", "")
    # What fails is held against the cheaper of the two.
    line = next(line for line in text.splitlines() if line.startswith("- delegate is cheap because it fails"))
    assert line.endswith(": errands any (accuracy 0.00, kv token steps x0.37)")


def test_styles_are_off_with_an_empty_list(tmp_path: Path) -> None:
    folder = run(errands(tmp_path, strategies={"monolithic": {"styles": []}, "map_reduce": {}}))
    assert {row["perfect_execution_style"] for row in rows_of(folder)} == {""}
    assert "perfect execution" not in (folder / "table.md").read_text(encoding="utf-8").lower()


def test_a_style_without_its_tool_is_an_error_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"strategies.monolithic.styles has 'delegate', which its limits do not.*max"):
        run(errands(tmp_path, strategies={"monolithic": {"styles": ["delegate"]}}))
    with pytest.raises(ConfigError, match=r"strategies.delegate.styles has 'read', .* raise max_reads"):
        run(errands(tmp_path, strategies={"delegate": {"styles": ["read"]}}))
    with pytest.raises(SelfcestError, match=r"strategies.delegate.styles\[0\] is 'solved'"):
        run(errands(tmp_path, strategies={"delegate": {"styles": ["solved"]}}))


def test_every_built_in_strategy_says_its_style() -> None:
    styles = {name: make_strategy(name, {}, "strategies.x").styles() for name in STRATEGIES}
    assert styles == {
        "plain": (), "delegate": (Style.DELEGATE,), "monolithic": (Style.SOLVE,), "monolithic_read": (Style.READ,),
        "self_consistency": (Style.SOLVE,), "best_of_n": (Style.SOLVE,), "spawn_join": (), "map_reduce": (),
        "v0_router": (),
        "oracle_decomposition": (Style.DELEGATE,), "always_delegates": (Style.DELEGATE,),
        "never_delegates": (Style.READ,), "turn_limit": (), "turn_extension": (), "thread_count": (),
        "effort": (), "symphony_coord": (), "atlas": (),
        "decide_first": (), "modes": (), "scale": (), "bandit": (), "planner": (), "playbook": (), "board": (),
        "bm25": (Style.DELEGATE,), "bm25_read": (Style.SOLVE,), "bm25_sentences": (Style.DELEGATE,),
        "oracle_documents": (Style.DELEGATE,),
        "full_reader": (Style.SOLVE,), "memory_agent": (),
    }  # fmt: skip
    assert make_strategy("best_of_n", {"max_reads": 3}, "strategies.x").styles() == (Style.READ,)


def test_styles_that_there_are_means_for() -> None:
    with_documents, without = [Task("t", "?", "1", "s", {"a": "1"})], [Task("t", "?", "1", "s")]
    everything = tuple(Style)
    assert styles_on(everything, Limits(), without) == (Style.DELEGATE, Style.SOLVE)
    assert styles_on(everything, Limits(max_depth=0), without) == (Style.SOLVE,)
    assert styles_on(everything, Limits(), with_documents) == (Style.DELEGATE,), "the root sees keys alone"
    assert styles_on(everything, Limits(max_depth=0, max_reads=None), with_documents) == (Style.READ,)
    assert styles_on(everything, Limits(max_depth=0), with_documents) == (Style.SOLVE,)


LIMITS = Limits(total_tokens=480, turn_tokens=160, reply_tokens=4, answer_reserve=12, max_turns=8, max_clones=12)


def expert(name: str, style: Style, source: object, limits: Limits, game: Rules) -> tuple[Strategy, list[PerfectPlay]]:
    rng = np.random.default_rng(0)
    instances = [Instance(source.draw(rng), i) for i in range(8)]  # type: ignore[attr-defined]
    strategy, context = make_strategy(name, {}, "strategies.x"), PlayContext(limits, 0.8, source, game.protocol)  # type: ignore[arg-type]
    return strategy, play_perfect_execution(strategy, style, instances, context, game, make_reward("correct"))


# They leave out documents that the expert of these families needs; tests/methods/test_long_texts.py plays them.
CHOOSE = ("bm25", "bm25_read", "bm25_sentences", "oracle_documents")
WITH_EXPERTS = [name for name in STRATEGIES if make_strategy(name, {}, "x").styles() and name not in CHOOSE]


@pytest.mark.parametrize("family", ["range_sum", "ledger_qa", "long_ledgers"])
@pytest.mark.parametrize("name", WITH_EXPERTS)
def test_experts_play_every_strategy_in_the_policys_own_ids(name: str, family: str) -> None:
    options = {"size_step": 5} if family == "range_sum" else {}
    limits = replace(LIMITS, max_reads=12) if "delegates" in name else LIMITS  # both choices must be there
    game = language_of(PlugIn("tiny")).rules(LIMITS)
    style = make_strategy(name, {}, "x").styles()[0]
    _, found = expert(name, style, make_source(family, **options), limits, game)
    assert all(played.is_perfect for played in found)
    for played_ in found:
        for episode in played_.episodes:
            called = bool(episode.cost.clones)
            assert called == (style is Style.DELEGATE)
            for _, turn in episode.turns():
                assert len(turn.generation.token_ids) == turn.facts.generated_tokens
                assert len(turn.generation.prompt_ids) == turn.facts.prompt_tokens


def test_by_text_an_expert_is_priced_by_the_rules() -> None:
    """A server without a tokenizer has no ids; words are counted."""
    game = Rules(LIMITS, HermesProtocol(), WordCounter())
    _, found = expert("monolithic", Style.SOLVE, make_source("range_sum", phrasing="plain"), LIMITS, game)
    assert all(played.is_perfect for played in found)
    for played_ in found:
        (turn,) = played_.episodes[0].root.turns
        assert turn.facts.generated_tokens == WordCounter().count_text(turn.generation.text)
        assert turn.generation.token_ids == ()


def test_an_expert_that_falls_back_on_another_way_is_not_perfect() -> None:
    """With two clones at most it reads what it cannot ask for: right, and no delegating player."""
    source = make_source("ledger_qa", min_documents=6, min_named=3, max_named=3)
    limits = replace(LIMITS, max_clones=2, max_reads=12)
    _, found = expert("delegate", Style.DELEGATE, source, limits, Rules(limits, PROTOCOL, CODEC))
    assert all(played.grades[0].correct and not played.is_perfect for played in found)


# Files


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    asked: list[int] = []

    def counting(strategy: Strategy, style: Style, instances: Sequence[Instance], *rest: Any) -> list[PerfectPlay]:
        asked.append(len(instances))
        return play_perfect_execution(strategy, style, instances, *rest)

    monkeypatch.setattr(play, "play_perfect_execution", counting)
    return asked


def test_an_expert_plays_once_whatever_the_seeds_and_not_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = counted(monkeypatch)
    folder = run(errands(tmp_path, seeds=[0, 1, 2]))
    assert sum(asked) == 2 * 6
    before = [result for result in read_results(folder / "results.jsonl", experts=True) if result.place.style]
    asked.clear()
    run(errands(tmp_path, seeds=[0, 1, 2]), resume=True)
    assert sum(asked) == 0
    assert [r for r in read_results(folder / "results.jsonl", experts=True) if r.place.style] == before
    assert all(result.place.style is None for result in read_results(folder / "results.jsonl"))
    floor = {"name": "correct", "options": {"grader": {"name": "study_players:Floors"}}}
    study_players.roots.clear()
    run(errands(tmp_path, seeds=[0, 1, 2], reward=floor), resume=True)
    assert (sum(asked), played()) == (2 * 6, 0), "another grader asks the expert again, and no model"


def test_samples_of_an_expert_are_shared_as_those_of_a_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = counted(monkeypatch)
    sampled = {name: {"options": {"samples": 3}, "temperature": 0.8} for name in ("self_consistency", "best_of_n")}
    folder = run(errands(tmp_path, strategies=sampled))
    assert sum(asked) == 6
    for row in rows_of(folder):
        assert perfect_costs_of(row) == {
            **{name: 3 * cost for name, cost in SOLVED.items()}, "critical_path_tokens": 10, "peak_context": 15,
        }  # fmt: skip


def test_a_study_from_before_perfect_execution_is_read_and_completed(tmp_path: Path) -> None:
    folder = run(errands(tmp_path))
    file, whole = folder / "results.jsonl", (folder / "table.md").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    old = [line for line in lines if "shared" in line or line["place"].pop("style") is None]
    assert len(old) < len(lines)
    for line in old:
        line.pop("lifted", None)
        del line["sha256"]
    file.write_text("".join(json.dumps(line) + "\n" for line in old), encoding="utf-8")
    report_folder(folder, QUIET)
    assert "perfect execution" not in (folder / "table.md").read_text(encoding="utf-8")
    assert {row["perfect_execution_total_tokens"] for row in rows_of(folder)} == {""}
    study_players.roots.clear()
    run(errands(tmp_path), resume=True)
    assert played() == 0
    again = (folder / "table.md").read_text(encoding="utf-8")
    assert again.partition("## Beside")[2].partition("## Endings")[0] == whole.partition("## Beside")[2].partition(
        "## Endings"
    )[0]  # fmt: skip


@pytest.mark.parametrize(
    ("config", "variant", "styles"),
    [
        ("quick", "delegating", (Style.DELEGATE, Style.SOLVE)),
        ("quick", "reading", (Style.SOLVE, Style.READ)),  # its first phases call clones, which it cannot
        ("quick", "deciding", (Style.DELEGATE, Style.SOLVE, Style.READ)),
        ("three_arms", "monolithic", (Style.SOLVE,)),
        ("three_arms", "monolithic_read", (Style.SOLVE, Style.READ)),  # quotations from full texts, then reading
        ("paper/musique", "delegating", (Style.DELEGATE, Style.SOLVE)),  # no warm start: whatever it may do
    ],
)
def test_the_variants_of_a_run_work_as_their_warm_start_shows(
    config: str, variant: str, styles: tuple[Style, ...]
) -> None:
    spec = load_config(ROOT / "training" / "configs" / f"{config}.yaml")
    assert get_shown_styles(spec, variant) == styles


# At equal accuracy

COSTS = ("total_tokens",)


def said(first: Point, second: Point, least: float) -> str:
    found = compare_points(first, second, resampler(len(first.correct)), COSTS, least)
    return describe_cost_ratios(found, "a", "b", least)


def test_costs_are_compared_where_accuracies_are_equal() -> None:
    # Costs 10 and 30 by turns against 20: a ratio of 1 with an interval; against 40 of 1/2.
    # The same 36 of 40 are right, so the difference is within 3 / 40 = .075.
    half = np.array([[10.0], [30.0]] * 20)
    assert said(point(1, share(36), half), point(1, share(36), 20.0), 0.08).startswith(
        "a against b, equally accurate: total tokens x1.00 [0."
    )
    assert said(point(1, share(36), 20.0), point(1, share(36), 40.0), 0.08) == (
        "a against b, equally accurate: total tokens x0.50 [0.50, 0.50]"
    )


def test_where_accuracies_differ_or_may_differ_costs_are_not_compared() -> None:
    far = said(point(1, share(39), 20.0), point(1, share(4), 10.0), 0.02)
    assert far == "a against b: costs are not comparable: accuracies 0.97 and 0.10"
    # One of 40 instances apart: a gap of .025 [.00, .075], which .02 does not hold and .1 does.
    first, second = point(1, share(40), 20.0), point(1, share(39), 10.0)
    near = said(first, second, 0.02)
    assert near.startswith("a against b: costs are not comparable: accuracies 1.00 and 0.97, whose difference, +0.0")
    assert near.endswith("may be more than 0.02")
    assert said(first, second, 0.1) == "a against b, equally accurate: total tokens x2.00 [2.00, 2.00]"
    few = said(point(1, share(10, 10), 20.0), point(1, share(10, 10), 10.0), 0.02)
    assert few == "a against b: costs are not comparable: fewer than 20 instances"


@pytest.mark.slow
def test_equal_accuracy_is_a_section_a_csv_and_a_line_of_the_verdict(tmp_path: Path) -> None:
    half = {"name": "study_players:Known", "options": {"right": 1.0, "tokens": 5}}
    wrong = {"name": "study_players:Known", "options": {"right": 0.0, "tokens": 4}}
    strategies = {
        "monolithic": {"policy": {"name": "study_players:Known", "options": {"right": 1.0, "tokens": 15}}},
        "half": {"name": "monolithic", "policy": half},
        "wrong": {"name": "monolithic", "policy": wrong},
    }
    folder = run(errands(tmp_path, strategies=strategies, episodes=12, budgets=[12, 100]))
    text = (folder / "table.md").read_text(encoding="utf-8")
    assert text.count("not comparable: fewer than 20 instances") == 2 * 2, "twelve are too few, in a table and in words"
    data = errands(tmp_path, strategies=strategies, episodes=None, budgets=[12, 100], tasks=listed(tmp_path, 40))
    folder = run({**data, "name": "enough", "min_difference": 0.08})
    text = (folder / "table.md").read_text(encoding="utf-8")
    # 5 + 15 tokens against 5 + 5: twice as many; generated three times.
    assert "| monolithic against half | 1.00 and 1.00 | x2.00 [2.00, 2.00] | x3.00 [3.00, 3.00] |" in text
    assert "| errands | any | monolithic against wrong | not comparable: accuracies 1.00 and 0.00 | – | – |" in text
    assert "- at most 100, monolithic against half, equally accurate: total tokens x2.00 [2.00, 2.00], " in text
    assert "- at most 100, monolithic against wrong: costs are not comparable: accuracies 1.00 and 0.00\n" in text
    assert "  at equal accuracy, in 1 at the largest budget: total tokens x2.00, generated tokens x3.00, " in text
    equal, apart = rows_of(folder, "equal_accuracy.csv")
    assert (equal["strategy"], equal["against"], equal["budget"], equal["comparable"]) == (
        "monolithic", "half", "100", "1",
    )  # fmt: skip
    assert [equal[f"total_tokens_ratio{end}"] for end in ("", "_low", "_high")] == ["2", "2", "2"]
    assert (apart["comparable"], apart["accuracy_against"], apart["total_tokens_ratio"]) == ("0", "0", "")
    lines = compare_studies(folder, folder, Console(quiet=True))
    assert sum("equally accurate: total tokens x1.00 [1.00, 1.00], " in line for line in lines) == 3


def listed(folder: Path, count: int) -> dict[str, Any]:
    """A file of as many questions, all with the answer 1."""
    rows = [json.dumps({"question": f"{i}?", "answer": "1"}) for i in range(10, 10 + count)]
    (folder / "errands.jsonl").write_text("\n".join(rows), encoding="utf-8")
    return {"errands": {"name": "questions", "options": {"path": str(folder / "errands.jsonl")}}}


# Money


def test_money_by_hand() -> None:
    # Two calls: 3 tokens are sent and 2 generated, then 6 sent, of which 5 are known, and 3 generated.
    assert Price(prompt=1.0, generated=4.0).of(TWO_TURNS) == pytest.approx((9 * 1 + 5 * 4) / 1e6)
    assert Price(1.0, 4.0, cached=0.5).of(TWO_TURNS) == pytest.approx((4 * 1 + 5 * 0.5 + 5 * 4) / 1e6)
    assert Price(1.0, 4.0, cached=1.0).of(TWO_TURNS) == Price(1.0, 4.0).of(TWO_TURNS)
    # At one price for everything it is the bill in tokens, and with a free cache each token is paid once.
    assert Price(1.0, 1.0).of(TWO_TURNS) * 1e6 == TWO_TURNS.cost.billed_tokens == 14
    assert Price(1.0, 1.0, cached=0.0).of(TWO_TURNS) * 1e6 == TWO_TURNS.cost.total_tokens == 9


def test_a_price_is_a_cost_of_the_study_and_of_its_perfect_execution(tmp_path: Path) -> None:
    price = {"prompt": 1.0, "cached": 0.5, "generated": 4.0, "currency": "USD"}
    folder = run(errands(tmp_path))
    study_players.roots.clear()
    run(errands(tmp_path, price=price), resume=True)
    assert played() == 0, "stored episodes are measured again"
    delegate, monolithic = rows_of(folder)
    # 5 sent and 5 generated; the expert alone 5 and 10; delegating 17 new, 10 known and 16 generated.
    assert float(delegate["money"]) == float(monolithic["money"]) == pytest.approx(25e-6)
    assert float(monolithic["perfect_execution_money"]) == pytest.approx(45e-6)
    assert float(delegate["perfect_execution_money"]) == pytest.approx((17 + 5 + 64) / 1e6)
    text = (folder / "table.md").read_text(encoding="utf-8")
    assert "Money is USD 1 per million tokens sent, 0.5 for cached ones, and 4 for generated ones." in text
    assert "| 0.000025 (0.000045) |" in text
    uncached = run(errands(tmp_path, name="uncached", price={**price, "cached": None, "currency": ""}))
    delegate, _ = rows_of(uncached)
    assert float(delegate["perfect_execution_money"]) == pytest.approx((17 + 10 + 64) / 1e6)
    text = (uncached / "table.md").read_text(encoding="utf-8")
    assert "Money is 1 per million tokens sent, with no cache, and 4 for generated ones." in text
    with pytest.raises(ConfigError, match=r"their price is USD 1 per million tokens sent, 0.5 for .* and 1 per"):
        compare_studies(folder, uncached, Console(quiet=True))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"price": {"prompt": -1, "generated": 1}}, ["price.prompt is -1"]),
        ({"price": {"prompt": 1}}, ["price", "generated"]),
        ({"price": {"prompt": 1, "generated": 1, "cache": 1}}, ["price.cache is unknown", "Did you mean 'cached'"]),
        (
            {"price": {"prompt": 1, "generated": 1}, "costs": {"money": {"name": "prompt_cache"}}},
            ["costs.money: there is a cost of this name"],
        ),
    ],
)
def test_mistakes_in_prices(tmp_path: Path, changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(SelfcestError) as caught:
        parse_as(StudyConfig, errands(tmp_path, **changes))
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_no_cost_but_zero_is_shown_as_zero() -> None:
    shown = {value: report._format_number(value) for value in (0.0, 12.34, 0.25, 0.0625, 0.000_012_34, 6e-7)}
    assert shown == {
        0.0: "0.0", 12.34: "12.3", 0.25: "0.25", 0.0625: "0.0625", 1.234e-5: "0.0000123", 6e-7: "0.0000006",
    }  # fmt: skip


# By hand


def test_means_beside_perfect_execution_are_over_what_both_could_play() -> None:
    # Three instances with two seeds: the second could not begin, on the third the expert fails.
    own = np.array([[10.0, 20.0], [np.nan, np.nan], [90.0, 90.0]])
    costs = {"total_tokens": np.array([30.0, 50.0, np.nan])}
    found = Point(1, np.zeros((3, 2)), {"total_tokens": own}, perfect_execution={Style.SOLVE: PerfectExecution(costs)})
    assert found.mean_costs(Style.SOLVE, "total_tokens") == (15.0, 30.0)
    assert found.mean_costs(Style.SOLVE, "clones") is None
    assert found.perfect_execution[Style.SOLVE].instances == 2
