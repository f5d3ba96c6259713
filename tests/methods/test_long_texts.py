"""Strategies for texts longer than a context: a memory, a search, the documents with the facts, and one context."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from chat_models import CHATML, chat_tokenizer, tiny_llama
from rich.console import Console
from study_players import HERMES, ScriptedPlayer

from selfcest_agents.scripted import OracleActor
from selfcest_cli.study import run_study
from selfcest_env.errors import ConfigError
from selfcest_env.rules import Rules
from selfcest_env.stored import to_stored
from selfcest_env.tasks.long_context import Babilong, split_sentences
from selfcest_env.tasks.memory import EMPTY_MEMORY, MemorySteps, MemoryTurn, Pass
from selfcest_env.tasks.mixture import Mixture
from selfcest_env.tasks.prose import Prose
from selfcest_env.tasks.room_stories import RoomStories
from selfcest_env.tasks.rooms import is_event
from selfcest_env.text.counters import WordCounter
from selfcest_env.types import Answer, Limits, Role, Task
from selfcest_env.views import Observation
from selfcest_eval.play.config import StudyConfig, load_stored_study, parse_study
from selfcest_eval.play.costs import FailedEpisodes, costs_of
from selfcest_eval.play.model_costs import read_shape
from selfcest_eval.play.reports import grade_reports
from selfcest_eval.play.results import Result, read_results
from selfcest_eval.play.store import Store
from selfcest_eval.play.strategies import DelegatingStrategy, Episodes, FullReader, Instance, PlayContext, Strategy
from selfcest_eval.play.study import Study
from selfcest_eval.report import study_report
from selfcest_methods.memory_agent import MemoryAgent
from selfcest_methods.retrieval import Bm25, Bm25Read, Bm25Sentences, OracleDocuments, keep_documents

WORDS = WordCounter()
LIMITS = Limits(None, turn_tokens=800, reply_tokens=None, max_clones=None, max_clones_per_call=None)


def make_source(folder: Path) -> Babilong:
    folder.mkdir(exist_ok=True)
    text = "\n\n".join(f"The day number {number} of the year was rather quiet." for number in range(200))
    (folder / "year.txt").write_text(text, encoding="utf-8")
    return Babilong(RoomStories(2, 6, 12, stories=6), Prose(str(folder)), words=300, words_per_document=60)


@dataclass(frozen=True)
class Expert:
    """A policy without mistakes, on the texts in a folder, as a plug-in."""

    folder: str = ""
    seeded: bool = False

    def rules(self, limits: Limits) -> Rules:
        return Rules(limits, HERMES, WORDS)

    def fingerprint(self, seed: int) -> str:
        return "expert"

    def load(self, seed: int) -> ScriptedPlayer:
        source = make_source(Path(self.folder))
        actor = OracleActor(Mixture((MemorySteps(source), source)), HERMES)
        return ScriptedPlayer(actor, self.rules, codec=None)


def play(strategy: Strategy, source: Babilong, folder: Path, limits: Limits = LIMITS) -> list[tuple[Task, Episodes]]:
    context = PlayContext(limits, 0.0, source, HERMES)
    strategy.check(context)
    tasks = source.tasks()
    strategy.check_tasks(tasks, source)
    player = Expert(str(folder)).load(0)
    played = strategy.play([Instance(task, i) for i, task in enumerate(tasks)], context, player)
    return list(zip(tasks, played, strict=True))


# A memory


def test_a_memory_reads_part_after_part(tmp_path: Path) -> None:
    source = make_source(tmp_path)
    strategy = MemoryAgent()
    num_passes = []
    for task, episodes in play(strategy, source, tmp_path):
        keys = tuple(task.context)
        assert len(keys) > 4
        reading, memory, num_read = Pass(task.prompt, keys), EMPTY_MEMORY, 0
        num_passes.append(1)
        for episode in episodes:
            is_last = num_read == len(reading.keys)
            assert MemoryTurn.read(episode.task.prompt) == (reading.question, memory, is_last)
            assert tuple(episode.task.context) == reading.keys[num_read : num_read + 1]
            # The context has one part, however long the text is.
            assert len(episode.agents) == len(episode.root.turns) == 1
            memory, num_read = episode.answer or memory, num_read + 1
            if is_last and episode is not episodes[-1]:
                again = Pass.read(episode.answer or "", keys)
                assert again is not None
                reading, memory, num_read = again, EMPTY_MEMORY, 0
                num_passes[-1] += 1
        assert episodes[strategy.choose(episodes, [])].answer == task.answer
        costs = costs_of(episodes, 1.0, in_series=strategy.ran_in_series(episodes))
        assert costs is not None
        assert costs["critical_path_tokens"] == costs["generated_tokens"]
        assert costs["peak_context"] < 220
    assert set(num_passes) == {1, 2}


def test_a_memory_reads_no_more_often_than_its_passes(tmp_path: Path) -> None:
    source = make_source(tmp_path)
    once = play(MemoryAgent(passes=1), source, tmp_path)
    assert all(len(episodes) == len(task.context) + 1 for task, episodes in once)
    twice = play(MemoryAgent(), source, tmp_path)
    for (_, first), (task, both) in zip(once, twice, strict=True):
        is_over = len(first) == len(both)
        assert is_over == (first[-1].answer == task.answer)
        assert is_over or (first[-1].answer or "").endswith("?")


def test_a_memory_stays_within_its_budget_and_forgets_nothing_by_a_fault(tmp_path: Path) -> None:
    source = make_source(tmp_path)
    for budget in (150, 600, 1200):
        for _, episodes in play(MemoryAgent(), source, tmp_path, replace(LIMITS, total_tokens=budget, reply_tokens=64)):
            assert sum(episode.cost.total_tokens for episode in episodes) <= budget
            # The memory of an update must not be graded as the answer.
            turn = MemoryTurn.read(episodes[-1].task.prompt)
            assert turn is not None
            assert (episodes[-1].answer is not None) <= turn.is_last
            assert episodes[-1].answer or not episodes[-1].root.turns or turn.is_last

    @dataclass(frozen=True)
    class FailsAtSecond:
        def act(self, observation: Observation, rng: object) -> str:
            turn = MemoryTurn.read(observation.brief.text)
            assert turn is not None
            if "part 2" in observation.brief.documents:
                return "I do not know."
            return HERMES.render(Answer(f"{turn.memory} and {next(iter(observation.brief.documents), 'the end')}"))

    player = ScriptedPlayer(FailsAtSecond(), partial(Rules, protocol=HERMES, counter=WORDS), codec=None)
    task = Task("t", "Where?", "x", "own", context={f"part {n}": "Text." for n in (1, 2, 3)})
    context = PlayContext(replace(LIMITS, max_turns=1), 0.0, source, HERMES)
    (episodes,) = MemoryAgent().play([Instance(task, 0)], context, player)
    assert episodes[-1].answer == "nothing and part 1 and part 3 and the end"
    assert sum(map(FailedEpisodes().of, episodes)) == 1
    # The rest of the budget is below the cost of the first turn, so the second ends before its prompt, at no cost.
    limits = replace(context.limits, total_tokens=2 * episodes[0].cost.total_tokens - 1, reply_tokens=64)
    context = replace(context, limits=limits)
    (short,) = MemoryAgent().play([Instance(task, 0)], context, player)
    assert [episode.answer for episode in short] == ["nothing and part 1", None]
    assert short[MemoryAgent().choose(short, [])].cost.total_tokens == 0


def test_a_memory_needs_no_more_budget_than_it_spends(tmp_path: Path) -> None:
    """Each turn had to leave as much as the dearest one had cost, and the last, without a document, is the cheapest."""
    source = make_source(tmp_path)
    # A prompt states a finite budget, whatever its size.
    limits = replace(LIMITS, total_tokens=100_000, answer_reserve=0, reply_tokens=64)
    for task, episodes in play(MemoryAgent(), source, tmp_path, limits)[:3]:
        spent = sum(episode.cost.total_tokens for episode in episodes)
        player = Expert(str(tmp_path)).load(0)
        for budget, answer in ((spent, task.answer), (spent - 1, None)):
            context = PlayContext(replace(limits, total_tokens=budget), 0.0, source, HERMES)
            (again,) = MemoryAgent().play([Instance(task, 0)], context, player)
            assert again[-1].answer == answer


# A search

STORY = {
    "part 1": "It rained. Nobody was there.",
    "part 2": "Clara got the lamp there. Tuesday was windy.",
    "part 3": "Boris moved to the garden. The lamps of the street were lit.",
    "part 4": "Clara journeyed to the office. It was late.",
    "part 5": "The sea was calm.",
}


@pytest.mark.parametrize(
    ("strategy", "kept"),
    [
        (Bm25(documents=1), ["part 2"]),
        (Bm25(documents=2), ["part 1", "part 2"]),  # no other part has a word of the question
        (Bm25(documents=2, hops=2), ["part 2", "part 4"]),
        (Bm25(documents=9, hops=2), list(STORY)),
        (Bm25Read(documents=2, hops=2), ["part 2", "part 4"]),
        (OracleDocuments(), ["part 2", "part 4"]),
    ],
)
def test_what_a_search_finds(strategy: Any, kept: list[str]) -> None:
    if not isinstance(strategy, OracleDocuments):
        pytest.importorskip("bm25s")
    support = json.dumps(["part 4", "part 2"])
    task = Task("t", "Where is the lamp?", "office", "own", context=STORY, metadata={"support": support})
    assert sorted(strategy.choose_documents(task)) == kept
    short = keep_documents(task, kept)
    assert dict(short.context) == {f"part {i}": STORY[key] for i, key in enumerate(kept, 1)}


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"hops": 1}, ["Clara got the lamp there."]),
        ({}, ["Clara got the lamp there.", "Clara journeyed to the office."]),
        ({"words": 10}, ["Clara got the lamp there.", "Clara journeyed to the office."]),
        # Half of 9 words are too few for the first search, so the first sentences stay.
        ({"words": 9}, ["It rained. Nobody was there."]),
    ],
)
def test_what_a_search_for_sentences_finds(options: Any, parts: list[str]) -> None:
    """The parts have at most as many words as the longest of the task, which is 8."""
    pytest.importorskip("bm25s")
    story = STORY | {"part 3": "Mr. Boris moved on. The street was lit."}
    task = Task("t", "Where is the lamp?", "office", "own", context=story)
    short = Bm25Sentences(**options).shorten(task)
    assert list(short.context.values()) == parts
    assert list(short.context) == [f"part {number}" for number, _ in enumerate(parts, 1)]


@pytest.mark.parametrize(
    ("documents", "prompt", "found"),
    [
        ({"Dune Road": "A novel from Ulm.", "Sea Wind": "A novel from Bonn."}, "Who wrote Sea Wind?", "Sea Wind"),
        ({f"d{n}": f"Agent {n} lives in Ulm." for n in range(4)}, "Where does Agent 3 live?", "d3"),
        ({"a": "A", "b": "B", "c": ""}, "Where is Mary?", "a"),
    ],
)
def test_a_search_reads_titles_and_words_of_one_character(documents: Any, prompt: str, found: str) -> None:
    pytest.importorskip("bm25s")
    assert list(Bm25(documents=1).choose_documents(Task("t", prompt, "x", "own", context=documents))) == [found]


@pytest.mark.parametrize("name", ["Anna Ahl", "Élodie Müller", "Øystein Åsen", "LeBron McGee"])
def test_a_second_hop_follows_names_of_any_letters(name: str) -> None:
    pytest.importorskip("bm25s")
    documents = {
        "film": f"The film of the lamp was made by {name}.",
        "other": "The lamp shines.",
        "life": f"{name} was born in Ulm.",
    }
    task = Task("t", "Where was the maker of the film of the lamp born?", "Ulm", "own", context=documents)
    assert sorted(Bm25(documents=2, hops=2).choose_documents(task)) == ["film", "life"]


def test_a_sentence_that_is_too_long_alone_does_not_hide_the_others() -> None:
    pytest.importorskip("bm25s")
    text = f"The lamp {'and the lamp ' * 9}shines. Clara got the lamp there."
    task = Task("t", "Where is the lamp?", "x", "own", context={"part 1": text})
    short = Bm25Sentences(words=8, hops=1).shorten(task)
    assert list(short.context.values()) == ["Clara got the lamp there."]


def test_a_router_knows_who_played_although_the_episodes_had_other_documents(tmp_path: Path) -> None:
    """It routed again by an episode's documents, of which a memory has one, and graded the wrong episode."""

    def play_stories(name: str, strategies: dict[str, Any], seed: int) -> tuple[Path, list[Result]]:
        stories = {"name": "room_stories", "task": 1, "stories": 3, "seed": seed}
        tasks = {}
        for family, words in (("short", 40), ("long", 400)):
            options = {"filler": {"path": str(tmp_path / "books")}, "words": words, "words_per_document": 60}
            size = {"min_statements": 8, "max_statements": 8}
            tasks[family] = {"name": "babilong", "options": {"source": stories | size, **options}}
        limits = {"total_tokens": None, "context_tokens": 330, "turn_tokens": 500, "reply_tokens": 64}
        changes = {"name": name, "tasks": tasks, "strategies": strategies, "limits": limits}
        config = make_study(tmp_path, episodes=None, compared=["total_tokens"], costs={}, **changes)
        file = Study(config).play(Store(config.folder), lambda *_: None)
        return file, [result for result in read_results(file, whole=True) if result.place.style is None]

    history, _ = play_stories("history", {"monolithic": {}, "memory_agent": {}}, 0)
    inner = {"monolithic": {"name": "monolithic"}, "memory_agent": {"name": "memory_agent"}}
    router = {"name": "v0_router", "options": {"history": str(history), "strategies": inner}}
    _, routed = play_stories("routed", {"router": router}, 7)
    long = [result for result in routed if result.place.family == "long"]
    assert [len(result.episodes) > 4 for result in long] == [True] * 3, "the memory reads what one context cannot hold"
    for result in long:
        assert result.chosen == len(result.episodes) - 1
        assert result.grade.correct
        assert result.costs is not None
        assert result.costs["critical_path_tokens"] == result.costs["generated_tokens"]


def test_a_program_that_takes_the_last_sentence_found_is_always_right(tmp_path: Path) -> None:
    """As the page says: on one fact the task is to read, not to search."""
    pytest.importorskip("bm25s")
    books = tmp_path / "books"
    make_source(books)
    source = Babilong(RoomStories(1, 4, 20, stories=30), Prose(str(books)), words=400, words_per_document=60)
    for task in source.tasks():
        found = " ".join(Bm25Sentences(hops=1).shorten(task).context.values())
        assert found.rstrip(".").split()[-1] == task.answer


def test_documents_with_titles_keep_them() -> None:
    task = Task("t", "?", "x", "own", context={"Ulm": "A town.", "Rhine": "A river.", "part 1": "A part."})
    assert dict(keep_documents(task, ["Rhine", "part 1"]).context) == {"Rhine": "A river.", "part 1": "A part."}


def test_the_oracle_needs_to_know_the_facts() -> None:
    task = Task("t", "?", "x", "own")
    with pytest.raises(ConfigError, match="task t of RoomStories does not say which documents it needs; name only"):
        OracleDocuments().check_tasks([task], RoomStories())


@dataclass(frozen=True)
class ForgetsPartTwo:
    """The expert, but its clone finds no thing in a part 2, and its memory does not change there."""

    source: Babilong

    def act(self, observation: Observation, rng: Any) -> str:
        turn = MemoryTurn.read(observation.brief.text)
        brief = observation.brief
        if observation.role is Role.CLONE and "part 2" in brief.documents and brief.text.startswith("Quote"):
            return HERMES.render(Answer("nothing"))
        if turn is not None and "part 2" in brief.documents:
            return HERMES.render(Answer(turn.memory))
        return OracleActor(Mixture((MemorySteps(self.source), self.source)), HERMES).act(observation, rng)


def test_single_reports_are_graded(tmp_path: Path) -> None:
    """One report is wrong if its part has the thing. The last turn of a memory is no report."""
    source = make_source(tmp_path)
    context = PlayContext(LIMITS, 0.0, source, HERMES)
    player = ScriptedPlayer(ForgetsPartTwo(source), partial(Rules, protocol=HERMES, counter=WORDS), codec=None)
    instances = [Instance(task, i) for i, task in enumerate(source.tasks())]
    shares = set()
    for strategy in (DelegatingStrategy(), MemoryAgent()):
        for instance, episodes in zip(instances, strategy.play(instances, context, player), strict=True):
            parts = instance.task.context
            reports = grade_reports(episodes, source)
            assert reports is not None
            assert reports.exact <= reports.f1 <= 1
            if strategy.delegates:
                thing = instance.task.prompt.removeprefix("Where is the").removesuffix("?")
                has_thing = any(is_event(text) and thing in text for text in split_sentences(parts["part 2"]))
                num_clones = len(episodes[0].agents) - 1
                assert reports.exact == pytest.approx(1 - has_thing / num_clones)
            else:
                turns = [MemoryTurn.read(episode.task.prompt) for episode in episodes]
                num_passes = sum(turn is not None and turn.is_last for turn in turns)
                num_wrong = (1 - reports.exact) * (len(turns) - num_passes)
                assert num_wrong == pytest.approx(round(num_wrong))
                assert num_wrong < num_passes + 0.5
            shares.add((strategy.delegates, reports.exact < 1))
    # Each strategy has a wrong report on one text, and none on another.
    assert shares == {(True, True), (True, False), (False, True), (False, False)}
    # An agent without clones reports nothing.
    assert grade_reports(FullReader().play(instances[:1], context, player)[0], source) is None


def test_the_documents_with_the_facts_are_enough(tmp_path: Path) -> None:
    source = make_source(tmp_path)
    num_calls = set()
    for task, (episode,) in play(OracleDocuments(), source, tmp_path):
        assert episode.answer == task.answer
        calls = [turn.facts.children for turn in episode.root.turns if turn.facts.children]
        assert 1 <= len(calls[0]) <= 2
        num_calls.add(len(calls))
        assert {clone.shared_context for clone in episode.agents[1:]} <= {("part 1",), ("part 2",)}
    assert num_calls == {1, 2}


# A study with all of them


def make_study(tmp_path: Path, **changes: Any) -> StudyConfig:
    make_source(tmp_path / "books")
    model = tmp_path / "model"
    if not model.exists():
        tokenizer = chat_tokenizer(CHATML)
        tiny_llama(tokenizer).save_pretrained(model)
        tokenizer.save_pretrained(model)
    data = {
        "name": "s",
        "output": str(tmp_path),
        "episodes": 4,
        "grade_reports": True,
        "resamples": 100,
        "limits": {
            "total_tokens": None,
            "context_tokens": 3000,
            "turn_tokens": 500,
            "reply_tokens": 64,
            "max_clones": None,
            "max_clones_per_call": None,
        },
        "policy": {"name": "test_long_texts:Expert", "options": {"folder": str(tmp_path / "books")}},
        "strategies": {"delegate": {}, "memory_agent": {}, "oracle_documents": {}, "full_reader": {}},
        "tasks": {
            "novel": {
                "name": "babilong",
                "options": {
                    "source": {"name": "room_stories", "max_statements": 12, "stories": 4},
                    "filler": {"path": str(tmp_path / "books")},
                    "words": 300,
                    "words_per_document": 60,
                },
            }
        },
        "costs": {
            "flops": {"name": "flops", "options": {"model": str(model)}},
            "memory": {"name": "ideal_memory", "options": {"model": str(model)}},
        },
        "compared": ["total_tokens", "critical_path_tokens", "flops", "memory", "wall_seconds"],
    }
    return parse_study({**data, **changes})


def test_a_study_compares_operations_memory_and_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_report, "draw_frontiers", lambda *_: None)  # half a second each
    config = make_study(tmp_path)
    folder = run_study(config, resume=False, command="selfcest evaluate", console=Console(quiet=True))
    results = list(read_results(folder / "results.jsonl", whole=True))
    assert len(results) == 16
    shape = read_shape(str(tmp_path / "model"))
    for result in results:
        assert result.grade.correct
        assert result.costs is not None
        assert result.costs["wall_seconds"] > 0
        has_reports = result.place.strategy != "full_reader"
        assert ("report_exact" in result.scores) is has_reports
        assert result.scores.get("report_exact", 1.0) == result.scores.get("report_f1", 1.0) == 1.0
        if result.place.strategy == "full_reader":
            tokens = int(result.costs["total_tokens"])
            output = shape.output_flops * int(result.costs["generated_tokens"])
            assert result.costs["flops"] == shape.flops(0, tokens) + output
            assert result.costs["memory"] == 4 * (shape.weights + shape.cached_numbers * tokens)
            assert result.support is None or result.support.recall == 1
        else:
            # The documents that a strategy played are in its records.
            assert all(episode.task.metadata["base"] == "room_stories" for episode in result.episodes)
        if result.place.strategy == "memory_agent":
            assert len(result.episodes) > 5
            assert all(len(episode.task.context) <= 1 for episode in result.episodes)
    report = (folder / "table.md").read_text(encoding="utf-8")
    assert "| strategies | total tokens | critical path tokens | flops | memory | wall-clock seconds" in report
    assert re.search(r"delegate against memory_agent: .* flops x.*, memory x.*, wall-clock seconds .* x", report)
    assert "nan" not in report
    assert re.search(r"\| delegate \|( [^|]+\|)* 1.00 [^|]*\| 1.00 [^|]*\|$", report, re.MULTILINE)
    assert "with those of the source's expert: the share that has the same words" in report


def test_a_text_above_the_window_is_refused_for_the_full_reader(tmp_path: Path) -> None:
    limits = {"total_tokens": None, "context_tokens": 300, "turn_tokens": 200}
    with pytest.raises(ConfigError) as error:
        Study(make_study(tmp_path, limits=limits))
    message = (
        r"strategies\.full_reader, novel: the prompt of task \w+ has \d+ tokens, which do not fit limits\.context_"
        r"tokens = 300 and limits\.total_tokens = None; leave its family out"
    )
    assert re.match(message, str(error.value))
    # Without that strategy the others may be played.
    Study(make_study(tmp_path, limits=limits, strategies={"monolithic": {}, "memory_agent": {}}))
    assert FullReader.must_fit


def test_costs_of_a_model_that_is_not_there_are_refused_before_any_work(tmp_path: Path) -> None:
    costs = {"flops": {"name": "flops", "options": {"model": "nowhere"}}}
    config = make_study(tmp_path, costs=costs, compared=["flops"])
    with pytest.raises(ConfigError, match=r"^costs\.flops\.options: there is no folder nowhere; expected a model"):
        Study(config)


def test_a_renamed_cost_of_a_stored_study_is_read(tmp_path: Path) -> None:
    costs = {"memory": {"name": "peak_memory", "options": {"model": "somewhere"}}}
    with pytest.raises(ConfigError, match=r"'peak_memory'.*Did you mean 'ideal_memory'"):
        make_study(tmp_path, costs=costs, compared=["memory"])
    study = tmp_path / "study.yaml"
    values = to_stored(make_study(tmp_path, costs={}, compared=["total_tokens"]))
    assert isinstance(values, dict)
    study.write_text(json.dumps({**values, "costs": costs}), encoding="utf-8")
    stored = load_stored_study(study)
    assert stored.costs["memory"].name == "ideal_memory"
    assert "memory" in stored.measures
