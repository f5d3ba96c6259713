"""A router between strategies goes by what came of them on other tasks, and looks at nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from records import agent, turn
from study_players import CODEC, EXPERT, HERMES, PROTOCOL, Known, Scripted

from selfcest_env.errors import ConfigError
from selfcest_env.graders import Grade
from selfcest_env.plugin import PlugIn
from selfcest_env.record import EpisodeRecord
from selfcest_env.rules import Rules
from selfcest_env.tasks import make_source
from selfcest_env.text import prompt_variants
from selfcest_env.text.counters import WordCounter
from selfcest_env.types import ROOT, Limits, Status, Task
from selfcest_eval.play.config import StudyConfig
from selfcest_eval.play.costs import WALL
from selfcest_eval.play.digest import digest
from selfcest_eval.play.results import Result, ResultKey, read_results
from selfcest_eval.play.samples import SelfConsistency
from selfcest_eval.play.store import Store
from selfcest_eval.play.strategies import DelegatingStrategy, Instance, PlayContext, make_strategy
from selfcest_eval.play.study import Study
from selfcest_eval.stats.statistics import Resampler
from selfcest_eval.stats.table import make_curves, make_rows
from selfcest_methods.board import NoteBoard
from selfcest_methods.orchestrated import OrchestratedStrategy
from selfcest_methods.playbook import Bullet, Playbook, get_task_identity
from selfcest_methods.v0_router import V0Router
from selfcest_training.config_file import parse_as

LIMITS = Limits(total_tokens=600, turn_tokens=160, reply_tokens=4, answer_reserve=12, max_turns=8, max_clones=12)
SMALL, LARGE = 2, 8
TWO = {"alone": PlugIn("monolithic"), "tree": PlugIn("delegate")}


def task(size: int, name: str = "new") -> Task:
    return Task(f"{name}-{size}", "1?", "1", "t", metadata={"family": "t", "size": size})


def result(label: str, of: Task, right: bool, tokens: int | None) -> Result:
    """As a study stores it; `None`: the prompt did not fit."""
    episode = EpisodeRecord("e", of, LIMITS, 0, (agent(ROOT, turn((1,), (2,))),), {"correct": float(right)})
    place = ResultKey("t", str(of.metadata["size"]), "in", label, None, 0, of.task_id)
    costs = None if tokens is None else {"total_tokens": float(tokens)}
    name = f"{label}/{of.task_id}"
    return Result(name, name, place, (episode,), 0, Grade(float(right), right, True), Status.ANSWERED, costs)


def outcomes() -> Iterator[Result]:
    """Of ten tasks each: small ones are done by both, large ones by the tree alone, which is dearer by 200."""
    for k in range(10):
        yield result("alone", task(SMALL, f"s{k}"), True, 100)
        yield result("tree", task(SMALL, f"s{k}"), k < 9, 300)
        yield result("alone", task(LARGE, f"l{k}"), k < 1, 300)
        yield result("tree", task(LARGE, f"l{k}"), k < 9, 500)


@pytest.fixture
def history(tmp_path: Path) -> str:
    return stored(tmp_path, *outcomes())


def stored(folder: Path, *results: Result) -> str:
    store = Store(folder)
    store.add(results)
    return str(store.finish([(found.key, found.place) for found in results], {}))


def test_what_was_done_by_whom_is_predicted_of_other_tasks(history: str) -> None:
    router = V0Router(history=history, strategies=TWO, ridge=1e-6)
    found = {(label, size): router.predict(label, task(size), LIMITS) for label in TWO for size in (SMALL, LARGE)}
    assert found["tree", LARGE] == (pytest.approx(0.9, abs=1e-3), pytest.approx(500, abs=0.1))
    assert found["alone", LARGE] == (pytest.approx(0.1, abs=1e-3), pytest.approx(300, abs=0.1))
    assert found["alone", SMALL][0] > 0.99 > 0.91 > found["tree", SMALL][0] > 0.89
    middle = (np.log1p(5) - np.log1p(SMALL)) / (np.log1p(LARGE) - np.log1p(SMALL))
    assert router.predict("tree", task(5), LIMITS)[1] == pytest.approx(300 + 200 * middle, abs=0.1), "never seen"


@pytest.mark.parametrize(
    ("price", "small", "large"), [(0.0, "alone", "tree"), (3.9, "alone", "tree"), (4.1, "alone", "alone")]
)
def test_routes_by_hand(history: str, price: float, small: str, large: str) -> None:
    """Of a large task the tree is worth 0.8 more, and costs 200 tokens more: as much as at 4 for a thousand."""
    router = V0Router(history=history, strategies=TWO, price=price, ridge=1e-6)
    assert [router.route(task(size), LIMITS) for size in (SMALL, LARGE)] == [small, large]


def test_prompts_that_did_not_fit_say_nothing_of_costs(tmp_path: Path) -> None:
    lost = [replace(found, costs=None) for found in outcomes() if found.place.strategy == "alone"]
    router = V0Router(history=stored(tmp_path, *lost), strategies={"alone": TWO["alone"]}, price=1.0)
    assert router.predict("alone", task(SMALL), LIMITS)[1] == 0.0
    assert router.route(task(SMALL), LIMITS) == "alone"


def test_instances_are_played_by_whom_they_are_routed_to(history: str) -> None:
    """Sizes of the tasks are those of the history; the policy is the expert, who delegates where it may."""
    source = make_source("ledger_qa", min_documents=4, max_documents=4)
    drawn = [source.draw(np.random.default_rng(k)) for k in range(4)]
    tasks = [
        replace(each, metadata={**each.metadata, "family": "t", "size": size})
        for each, size in zip(drawn, (SMALL, LARGE, LARGE, SMALL), strict=True)
    ]
    router, context = V0Router(history=history, strategies=TWO), PlayContext(LIMITS, 0.0, EXPERT, PROTOCOL)
    router.check(context)
    asked = [Instance(each, k) for k, each in enumerate(tasks)]
    played = router.play(asked, context, Scripted().load(0))
    assert [episodes[0].task for episodes in played] == tasks
    assert [bool(episodes[0].cost.clones) for episodes in played] == [False, True, True, False]
    for label, chosen in (("alone", [0, 3]), ("tree", [1, 2])):
        own = router.inner[label].play([asked[i] for i in chosen], context, Scripted().load(0))
        assert [played[i] for i in chosen] == own
    assert router.limits(LIMITS, tasks[0]).max_depth == 0 != router.limits(LIMITS, tasks[1]).max_depth
    assert router.executed(played[0]) is None


def test_the_choice_among_samples_is_that_of_the_strategy_that_played(history: str) -> None:
    votes = SelfConsistency(samples=3)
    two = {"alone": PlugIn("self_consistency", {"samples": 3}), "tree": PlugIn("delegate")}
    router, context = V0Router(history=history, strategies=two), PlayContext(LIMITS, 0.8, EXPERT, PROTOCOL)
    (episodes,) = router.play([Instance(task(SMALL), 5)], context, Known(right=0.5, tokens=10).load(0))
    assert len(episodes) == 3
    grades = [Grade(0.0, False, True)] * 3
    assert router.choose(episodes, grades) == votes.choose(episodes, grades)


def test_equal_histories_share_episodes_wherever_they_lie(history: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(Path(history).read_bytes())
    first, second = (V0Router(history=str(where), strategies=TWO) for where in (history, copy))
    assert first.recipe == second.recipe
    other = V0Router(history=stored(tmp_path / "other", *list(outcomes())[:-4]), strategies=TWO)
    assert other.recipe != first.recipe != V0Router(history=history, strategies=TWO, price=1.0).recipe


def test_a_file_that_a_strategy_goes_by_is_in_the_recipe(tmp_path: Path) -> None:
    file, books = tmp_path / "book.json", [Playbook((Bullet("root-1", text),)) for text in ("Add.", "Double.")]
    inside = {"told": PlugIn("playbook", {"file": str(file)}), "plain": PlugIn("plain")}
    recipes = []
    for book in books:
        file.write_text(book.to_json(), encoding="utf-8")
        recipes.append(digest(V0Router(strategies=inside).recipe))
    turned = V0Router(strategies=dict(reversed(inside.items())))
    assert len({*recipes, digest(turned.recipe)}) == 3, "of equals the first plays"


# In a study


class Silent:
    """A protocol that can say nothing but what it must."""

    open, replies, documents, fault = PROTOCOL.open, PROTOCOL.replies, PROTOCOL.documents, PROTOCOL.fault
    neutralise, parse, render = PROTOCOL.neutralise, PROTOCOL.parse, PROTOCOL.render


@dataclass(frozen=True)
class Mute(Scripted):
    """A policy that plays by it."""

    def rules(self, limits: Limits) -> Rules:
        return Rules(limits, Silent(), CODEC)


def study(**changes: Any) -> Study:
    data = {
        "name": "s",
        "episodes": 4,
        "limits": {"turn_tokens": 160, "reply_tokens": 4, "answer_reserve": 12, "max_turns": 6, "total_tokens": 900},
        "policy": {"name": "study_players:Scripted"},
        "tasks": {"range": {"name": "range_sum", "options": {"max_length": 6}}},
        "eval_sets": [{"family": "range", "size": "2-6"}],
    }
    return Study(parse_as(StudyConfig, {**data, **changes}))


def routed(name: str, **options: Any) -> dict[str, Any]:
    """A router to one strategy."""
    return {"name": "v0_router", "options": {"strategies": {"it": {"name": name, "options": options}}}}


def test_costs_add_up_as_those_of_the_strategy_that_played(tmp_path: Path) -> None:
    """One episode waits for the other, or three are side by side."""
    votes = {"samples": 3}
    played = study(
        output=str(tmp_path),
        strategies={
            "decide_first": {},
            "self_consistency": {"options": votes, "temperature": 0.8},
            "to decide_first": routed("decide_first"),
            "to self_consistency": {**routed("self_consistency", **votes), "temperature": 0.8},
            "to router": {
                "name": "v0_router",
                "options": {"strategies": {"it": routed("decide_first")}},
            },
        },
    )
    costs: dict[str, dict[str, Any]] = {}
    for result in read_results(played.play(Store(tmp_path), lambda *_: None), whole=True):
        assert result.costs is not None
        own = {name: value for name, value in result.costs.items() if name != WALL}
        costs.setdefault(result.place.strategy, {})[result.place.task_id] = len(result.episodes), own
    assert costs["to decide_first"] == costs["to router"] == costs["decide_first"]
    assert costs["to self_consistency"] == costs["self_consistency"]
    assert {count for count, _ in costs["decide_first"].values()} == {2}


@pytest.mark.parametrize("inside", ["turn_limit", "decide_first"])
def test_a_protocol_that_could_not_say_what_a_strategy_says_is_found_before_work(inside: str) -> None:
    options = {"strategies": {"monolithic": {"name": "monolithic"}, "it": {"name": inside}}}
    with pytest.raises(ConfigError, match="strategies.router, range: the protocol Silent has no note"):
        study(policy={"name": f"{__name__}:Mute"}, strategies={"router": {"name": "v0_router", "options": options}})
    study(policy={"name": f"{__name__}:Mute"}, strategies={"router": routed("monolithic")})


def test_the_share_of_executed_scripts_is_of_those_who_had_one() -> None:
    """A router sends some instances to a strategy with a script; in whatever order its results stand."""
    scripts = {"s0": None, "s1": True, "s2": False, "s3": None, "s4": True, "s5": True}
    played = [replace(result("it", task(SMALL, name), True, 100), executed=how) for name, how in scripts.items()]
    for results in (played, played[::-1], played[1:] + played[:1]):
        (curves,) = make_curves(results)
        (row,) = make_rows(curves, Resampler(len(played), 1, crossed=False, resamples=50, confidence=0.95))
        assert row.executed is not None
        assert row.executed.mean == 0.75
    (curves,) = make_curves([replace(one, executed=None) for one in played])
    assert curves.strategies["it"][0].executed is None


def test_without_a_history_the_first_plays() -> None:
    router = make_strategy("v0_router", {}, "strategies.x")
    assert isinstance(router, V0Router)
    assert [router.route(task(size), LIMITS) for size in (SMALL, LARGE)] == ["monolithic", "monolithic"]


WORDED = {"thread_count": {}, "turn_limit": {}, "to thread_count": routed("thread_count")}
SCRIPTS = {"bandit": {}, "board": {}, "to bandit": routed("bandit")}


def names(strategies: dict[str, Any]) -> dict[str, set[str]]:
    """Of all that a study would look for in its folder, by strategy."""
    found: dict[str, set[str]] = {}
    for key, place in study(strategies=strategies, policy={"name": f"{__name__}:Chat"}).order():
        found.setdefault(place.strategy, set()).add(key)
    return found


@dataclass(frozen=True)
class Chat(Scripted):
    """A policy that reads sentences."""

    def rules(self, limits: Limits) -> Rules:
        return Rules(limits, HERMES, WordCounter())


def test_what_was_told_otherwise_is_played_again(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = {"plain": {}, "delegate": {}}
    before = names(WORDED | plain)
    monkeypatch.setattr(prompt_variants, "_format_turns", lambda number: f"{number} moves")
    moved = names(WORDED | plain)
    assert {label for label in before if before[label] != moved[label]} == {"turn_limit"}
    note = prompt_variants.Note
    monkeypatch.setattr(prompt_variants, "Note", lambda text, *rest: note(text.replace("You may", "You can"), *rest))
    other = names(WORDED | plain)
    assert {label for label in before if before[label].isdisjoint(other[label])} == set(WORDED)
    assert {label: other[label] for label in plain} == {label: before[label] for label in plain}


def test_reminders_are_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    before = names(WORDED)
    monkeypatch.setattr(prompt_variants._WithTurnLimit, "remind", lambda self, message, left: message)
    assert {label for label, found in names(WORDED).items() if found != before[label]} == {"turn_limit"}


def test_scripts_of_another_version_are_played_again(monkeypatch: pytest.MonkeyPatch) -> None:
    before = names(SCRIPTS | {"delegate": {}})
    for kind in (OrchestratedStrategy, NoteBoard):
        assert kind.version
        monkeypatch.setattr(kind, "version", 99)
    after = names(SCRIPTS | {"delegate": {}})
    assert {label for label in before if before[label].isdisjoint(after[label])} == set(SCRIPTS)
    assert after["delegate"] == before["delegate"]
    assert "version" not in DelegatingStrategy().recipe, "what was stored before there were versions is found"


def test_tasks_that_a_strategy_must_not_play_are_found_before_work(tmp_path: Path) -> None:
    """Not the first alone, and also where a router would send them elsewhere."""
    plain = study(strategies={"plain": {}})
    *_, last = plain.tasks["range", "2-6"]
    name = get_task_identity(last, plain.sources["range", "2-6"])
    book = tmp_path / "book.json"
    book.write_text(Playbook((Bullet("root-1", "Add."),), tasks=(name,)).to_json(), encoding="utf-8")
    told = {"name": "playbook", "options": {"file": str(book)}}
    inside = {"strategies": {"monolithic": {"name": "monolithic"}, "told": told}}
    message = rf"strategies.x, range: .*book.json was learned from the task {last.task_id} that"
    for strategy in (told, {"name": "v0_router", "options": inside}):
        with pytest.raises(ConfigError, match=message):
            study(strategies={"x": strategy})
    history = stored(tmp_path, result("monolithic", last, True, 100))
    options = {"history": history, "strategies": {"monolithic": {"name": "monolithic"}}}
    with pytest.raises(ConfigError, match=rf"strategies.x, range: history .* has the instance {last.task_id} that"):
        study(strategies={"x": {"name": "v0_router", "options": options}})
    study(task_seed=7, strategies={"x": {"name": "v0_router", "options": options}, "y": told})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"history": "nowhere.jsonl"}, "history nowhere.jsonl cannot be read"),
        ({"strategies": {}}, "strategies is empty"),
        ({"strategies": {"a": {"name": "best_of_n"}}}, "strategies.a uses an expert or the grades"),
        ({"strategies": {"a": {"name": "always_delegates"}}}, "strategies.a uses an expert or the grades"),
        ({"strategies": {"a": {"name": "monolitic"}}}, "strategies.a.*monolitic.*Did you mean 'monolithic'"),
        ({"price": -1}, "price is -1"),
    ],
)
def test_options_that_cannot_be_right_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_strategy("v0_router", options, "strategies.x")


def test_a_history_that_will_not_do_is_refused(history: str) -> None:
    with pytest.raises(ConfigError, match="no result of 'trees'. Did you mean 'tree'. It has results of alone, tree"):
        V0Router(history=history, strategies={"trees": PlugIn("delegate")})
    with pytest.raises(ConfigError, match="history .* has no cost 'tokens'"):
        V0Router(history=history, strategies=TWO, cost="tokens")
    with pytest.raises(ConfigError, match="has the instance s3-2 that is to be played, .* another task_seed"):
        V0Router(history=history, strategies=TWO).route(task(SMALL, "s3"), LIMITS)
