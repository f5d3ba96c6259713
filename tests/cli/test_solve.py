"""`selfcest solve`: one question of one's own, from the command line to the file that `selfcest trace` reads."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rich.console
import study_players
from chat_models import CHATML, chat_tokenizer, tiny_llama
from test_job import config
from test_openai_engine import Reply, Serve, chat, serve

import selfcest_cli.main as cli
from selfcest_agents.language import language_of
from selfcest_agents.openai_client import ServerConfig
from selfcest_agents.policy import EnginePolicy, SamplingConfig
from selfcest_agents.rollout import RolloutRequest, rollout
from selfcest_agents.tiny import TinyLanguage
from selfcest_agents.transformers.engine import TransformersEngine
from selfcest_cli.live_tree import draw_tree
from selfcest_cli.solve import (
    LAST_WORDS,
    describe_unknown_question,
    make_solve_config,
    make_task,
    play_question,
    read_documents,
)
from selfcest_env.palette import ANSWERED
from selfcest_env.record import EpisodeRecord, read_episodes
from selfcest_env.render import Node, shorten
from selfcest_env.tasks import make_source
from selfcest_env.types import ROOT, Limits, Status, Task
from selfcest_eval.play.policies import ModelPolicy, ServerPolicy, make_policy
from selfcest_training.config_file import dump_config

__all__ = ["serve"]  # a fixture

SCRIPTED = ["--policy", "study_players:Scripted", "limits.reply_tokens=4"]  # plays as the experts of the tasks do
CALL = '<tool_call>{"name": "spawn_clone", "arguments": {"objectives": ["Read."], "shared_context": ["a"]}}</tool_call>'


class Console:
    """What a person sees: the exit code and both streams of a command."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: str) -> str:
        """Standard output of a command that ends well."""
        self._monkeypatch.setattr(sys, "argv", ["selfcest", *arguments])
        self._capsys.readouterr()  # what a fixture's libraries printed
        with pytest.raises(SystemExit) as caught:
            cli.main()
        printed = self._capsys.readouterr()
        assert caught.value.code == 0, printed.err
        self.turns = printed.err.splitlines()
        return printed.out

    def error(self, *arguments: str, code: int = 2) -> str:
        """The one line of a command that does not."""
        self._monkeypatch.setattr(sys, "argv", ["selfcest", *arguments])
        self._capsys.readouterr()  # what a fixture's libraries printed
        with pytest.raises(SystemExit) as caught:
            cli.main()
        printed = self._capsys.readouterr()
        assert caught.value.code == code
        (line,) = printed.err.splitlines()
        assert not printed.out
        return line


@pytest.fixture
def selfcest(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Console:
    monkeypatch.chdir(tmp_path)
    return Console(monkeypatch, capsys)


@pytest.fixture
def ledgers() -> Task:
    source = make_source("ledger_qa", mode="sum", min_documents=4, max_documents=4, min_named=2, max_named=2)
    return source.draw(np.random.default_rng(0))


@pytest.fixture
def run_model(tmp_path: Path) -> Path:
    """The model folder of a run with untrained weights, as a path from the working directory."""
    run = config(tmp_path / "runs", variants__delegating__limits={"max_turns": 2})
    folder = run.folder / "delegating" / "seed0" / "model"
    language = language_of(run.model)
    language.save(language.load(3), folder)
    (run.folder / "config.yaml").write_text(dump_config(run), encoding="utf-8")
    return folder.relative_to(tmp_path)


def write_json(value: Any, name: str = "documents.json") -> str:
    Path(name).write_text(json.dumps(value), encoding="utf-8")
    return name


def written(file: str = "asked.jsonl") -> list[EpisodeRecord]:
    return list(read_episodes(Path(file)))


# Episodes


def test_the_tree_the_answer_and_the_cost_are_printed_and_trace_reads_the_record(
    selfcest: Console, ledgers: Task
) -> None:
    documents = write_json(dict(ledgers.context))
    ask = ["solve", ledgers.prompt, *SCRIPTED, "--documents", documents, "--out", "asked.jsonl"]
    shown = selfcest(*ask)
    (record,) = written()
    cost = record.cost
    assert cost.clones == 2, "the expert sends a clone to each document"
    root = record.root.prompt_tokens + record.root.generated_tokens
    assert 0 < root < cost.total_tokens
    for words in (
        "├─ root.0",
        "└─ root.1",
        f"cost: {cost.total_tokens} tokens",
        f"critical path {cost.critical_path_tokens}",
        f"root: {root} tokens, clones: {cost.total_tokens - root} tokens",
        f'answer: "{ledgers.answer}"',
    ):
        assert words in shown
    traced = selfcest("trace", "asked.jsonl")
    assert shown.startswith(traced.rstrip("\n"))
    selfcest(*ask, "limits.max_clones=0")
    assert [record.episode_id for record in written()] == ["solve.0", "solve.1"]
    assert "0 clones" in selfcest("trace", "asked.jsonl")
    assert selfcest("trace", "asked.jsonl", "--episode", "solve.0") == traced


def test_without_a_terminal_every_turn_is_a_line_on_the_standard_error(selfcest: Console, ledgers: Task) -> None:
    selfcest("solve", ledgers.prompt, *SCRIPTED, "--documents", write_json(dict(ledgers.context)), "--out", "a.jsonl")
    (record,) = written("a.jsonl")
    first, *clones, last = selfcest.turns
    assert first.startswith("root turn 0: delegated, ")
    assert first.endswith(" generated tokens, 2 born")
    assert [line.split(",")[0] for line in clones] == ["root.0 turn 0: answered", "root.1 turn 0: answered"]
    facts = record.root.turns[1].facts
    assert last == (f"root turn 1: answered, {facts.prompt_tokens} prompt + {facts.generated_tokens} generated tokens")


def test_in_a_terminal_the_tree_grows(ledgers: Task, tmp_path: Path) -> None:
    def played(progress: rich.console.Console) -> EpisodeRecord:
        asked = make_solve_config("study_players:Scripted", None, None, ["limits.reply_tokens=4"])
        silent = rich.console.Console(file=io.StringIO())
        return play_question(ledgers, asked, temperature=0.0, seed=0, console=silent, progress=progress)

    screen = io.StringIO()
    record = played(rich.console.Console(file=screen, force_terminal=True, width=100, color_system="truecolor"))
    assert record == played(rich.console.Console(file=io.StringIO())), "nothing is played otherwise for being watched"
    shown = screen.getvalue()
    red, green, blue = ANSWERED.rgb
    assert f"48;2;{red};{green};{blue}m • .0 " in shown, "the colour and the mark of every picture"
    order = [" › root ", " … root ", " › .1 ", " • .1 ", " • root "]
    assert sorted(map(shown.index, order)) == list(map(shown.index, order))
    assert f"{record.cost.total_tokens:,} tokens, 2 clones" in shown
    assert "root turn" not in shown
    assert "\x1b[?25h" in shown, "the cursor is back"


def test_a_tree_shows_texts_of_models_as_texts() -> None:
    clone = Node(ROOT.child(0), "[red]\x1b[2Jdo", Status.READY, 10, 3, (), None)
    console = rich.console.Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    with console.capture() as caught:
        console.print(draw_tree([Node(ROOT, "all", Status.WAITING, None, 5, (), None), clone]))
    assert '"[red] [2Jdo"' in caught.get()
    assert "\x1b[2J" not in caught.get()
    assert "8 tokens, 1 clone\n" in caught.get()


def test_the_episode_as_a_page(selfcest: Console, ledgers: Task) -> None:
    documents = write_json(dict(ledgers.context))
    shown = selfcest("solve", ledgers.prompt, *SCRIPTED, "--documents", documents, "--html", "look.html")
    assert shown.splitlines()[-1].startswith("look.html: 1 episode, ")
    page = Path("look.html").read_text(encoding="utf-8")
    lines = re.search(r'id="episodes">(.*?)</script>', page, re.DOTALL)
    assert lines is not None
    episode = json.loads(lines[1])
    assert [agent["id"] for agent in episode["agents"]] == ["root", "root.0", "root.1"]
    assert episode["exact"], "it has accounts and what the environment wrote: its own rules are known"


def test_without_a_truth_nothing_is_called_right_or_wrong(selfcest: Console) -> None:
    shown = selfcest("solve", "5:[60]-[65]", *SCRIPTED, "--out", "asked.jsonl")
    assert 'answer: "3"' in shown
    assert "reward: not scored" in shown
    assert "right" not in shown
    assert "wrong" not in shown
    (record,) = written()
    assert record.reward_terms is None


@pytest.mark.parametrize(("truth", "verdict", "score"), [("3", "right", 1.0), ("4", "wrong", 0.0)])
def test_a_truth_is_what_an_answer_is_graded_by(selfcest: Console, truth: str, verdict: str, score: float) -> None:
    shown = selfcest("solve", "5:[60]-[65]", *SCRIPTED, "--answer", truth, "--out", "asked.jsonl")
    assert f'{verdict}: expected "{truth}"' in shown
    (record,) = written()
    assert record.reward_terms == {"correct": score}
    assert record.task.answer == truth


@pytest.mark.parametrize(("question", "known"), [("?[1]C[2]E", True), ("What is 2 + 2?", False)])
def test_a_question_in_no_language_of_the_policy_is_named(question: str, known: bool) -> None:
    config = make_solve_config("delegating", None, None, [])
    policy = make_policy(config.policy.name, config.policy.options, "policy")
    rules = policy.rules(config.limits)
    task = make_task(question, {"C": "k3a7q0", "E": "k1a5q9"}, None)
    lines = describe_unknown_question(task, policy, rules)
    assert len(lines) == (0 if known else 1)
    for line in lines:
        assert line.startswith('the question "What is 2 + 2?" is in no language that this policy has learned')
        assert "(ledgers)" in line
    chat = ServerPolicy(ServerConfig("http://localhost:1/v1", "m"))
    assert describe_unknown_question(task, chat, rules) == [], "a chat model reads any question"


@pytest.mark.slow
def test_a_language_that_only_another_variant_has_learned_is_named() -> None:
    lines = []
    for name in ("deciding", "delegating"):
        config = make_solve_config(name, None, None, [])
        policy = make_policy(config.policy.name, config.policy.options, "policy")
        assert isinstance(policy, ModelPolicy)
        if name == "deciding":
            priced = policy.trained_on()["priced"]
            task = make_source(priced.name, **priced.options).draw(np.random.default_rng(0))
        lines.append(describe_unknown_question(task, policy, policy.rules(config.limits)))
    assert lines[0] == []
    assert "(ledgers)" in lines[1][0]
    assert "(priced)" not in lines[1][0]


def test_a_run_s_model_plays_under_the_limits_of_its_variant(selfcest: Console, run_model: Path) -> None:
    ask = ["solve", "17?", "--policy", str(run_model), "--out", "asked.jsonl"]
    shown = selfcest(*ask)
    selfcest(*ask, "--temperature", "1", "--seed", "5", "limits.total_tokens=60", "limits.max_turns=1")
    greedy, sampled = written()
    allowed = config(Path()).limits
    assert greedy.limits == replace(allowed, max_turns=2), "those of the run, changed by the variant"
    assert sampled.limits == replace(allowed, max_turns=1, total_tokens=60)
    assert (greedy.seed, sampled.seed) == (0, 5)
    assert {turn.generation.temperature for _, turn in sampled.turns()} == {1.0}

    # The same folder through the engine itself.
    language = language_of(config(Path()).model)
    assert isinstance(language, TinyLanguage)
    engine = TransformersEngine(language.load(0, run_model), stop_ids=language.stop_ids)
    policy = EnginePolicy(engine, language.codec, SamplingConfig(0.0))
    (expected,) = rollout([RolloutRequest("solve.0", greedy.task, 0)], policy, language.rules(greedy.limits))
    assert greedy == expected

    # Untrained weights do not answer, and a person is told what became of them.
    assert greedy.root.status is Status.OUT_OF_TURNS
    assert "no answer: out_of_turns, the root has used all its turns; raise limits.max_turns" in shown
    assert f"last words: {shorten(greedy.root.turns[-1].generation.text, LAST_WORDS)}" in shown


@pytest.mark.parametrize(
    ("changes", "ending"),
    [
        (
            ["limits.turn_tokens=0", "limits.answer_reserve=0"],
            "out_of_tokens, the root has used up its tokens or its context",
        ),
        (["limits.max_turns=0"], "out_of_turns, the root has used all its turns"),
    ],
)
def test_an_episode_without_an_answer_says_why(selfcest: Console, changes: list[str], ending: str) -> None:
    shown = selfcest("solve", "5:[60]-[65]", *SCRIPTED, *changes, "--answer", "3")
    assert f"no answer: {ending}" in shown
    assert 'wrong: expected "3"' in shown


@pytest.mark.parametrize(
    ("changes", "found", "lifted"),
    [
        (["limits.total_tokens=4"], "limits.total_tokens is 4", "limits.total_tokens=263"),
        (["limits.context_tokens=7", "limits.turn_tokens=5"], "limits.context_tokens is 7", "limits.context_tokens=12"),
        (
            ["limits.total_tokens=1", "limits.context_tokens=2", "limits.turn_tokens=null"],
            "limits.total_tokens is 1 and limits.context_tokens is 2",
            "limits.total_tokens=8 limits.context_tokens=8",
        ),
        (["limits.generated_tokens=0"], "limits.generated_tokens is 0", "limits.generated_tokens=256"),
    ],
)
def test_a_prompt_that_is_too_long_names_its_length_the_limit_and_what_lifts_it(
    selfcest: Console, changes: list[str], found: str, lifted: str
) -> None:
    ask = ["solve", "5:[60]-[65]", *SCRIPTED, "limits.answer_reserve=0", *changes]
    prompt = "the question with its documents is a prompt of 7 tokens"  # <root> 5 :[ 60 ]-[ 65] <asst>
    assert f"no answer: prompt_too_long, {prompt}, but {found}; add {lifted}" in selfcest(*ask).splitlines()
    assert "too_long" not in selfcest(*ask, *lifted.split())


@pytest.mark.parametrize(
    ("changes", "ending"),
    [
        (["limits.max_turns=0"], "out_of_turns, the root has used all its turns"),
        (
            ["limits.total_tokens=4", "limits.answer_reserve=0", "limits.reply_tokens=4"],
            "prompt_too_long, the question with its documents is a prompt of 7 tokens, but limits.total_tokens is 4; "
            "add limits.total_tokens=",
        ),
    ],
)
def test_an_embedded_model_without_a_turn_says_why(selfcest: Console, changes: list[str], ending: str) -> None:
    assert f"no answer: {ending}" in selfcest("solve", "5:[60]-[65]", "--policy", "deciding", *changes)


def test_a_chat_model_as_it_comes_has_the_limits_of_the_game(selfcest: Console, tmp_path: Path) -> None:
    tokenizer = chat_tokenizer(CHATML)
    tokenizer.save_pretrained(tmp_path / "chat")
    tiny_llama(tokenizer, positions=2048).save_pretrained(tmp_path / "chat")
    selfcest("solve", "1 + 2?", "--policy", "chat", "--out", "asked.jsonl", "limits.turn_tokens=16")
    (record,) = written()
    assert record.limits == Limits(turn_tokens=16)
    assert record.root.turns[0].generation.token_ids, "token by token, so it could be learned from"


# Servers


def served(texts: Callable[[list[dict[str, str]]], str]) -> Callable[[str, dict[str, Any], int], Reply]:
    def answer(path: str, body: dict[str, Any], n: int) -> Reply:
        assert path.endswith("/chat/completions")
        return chat(texts(body["messages"]))

    return answer


def test_a_server_plays_root_and_clones(selfcest: Console, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    def play(messages: list[dict[str, str]]) -> str:
        if "You are a clone" in messages[0]["content"]:
            return "Answer: 42" if "it says 42" in messages[-1]["content"] else "Answer: nothing"
        return CALL if len(messages) == 2 else f"Answer: {messages[-1]['content'].rpartition(' ')[2]}"

    server = serve(served(play))
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    documents = write_json({"a": "it says 42", "b": "it says 43"})
    shown = selfcest("solve", "What does a say?", "--server", server.url, "--name", "m", "--documents", documents,
                     "--out", "asked.jsonl")  # fmt: skip
    assert 'answer: "42"' in shown
    assert "1 clones" in shown
    assert {body["model"] for _, body in server.seen} == {"m"}
    assert set(server.keys) == {"Bearer secret"}
    (record,) = written()
    assert record.limits == Limits()
    assert dict(record.task.context) == {"a": "it says 42", "b": "it says 43"}


def test_a_server_that_is_not_there_or_refuses_is_one_line(selfcest: Console, serve: Serve) -> None:
    ask = ["solve", "1 + 2?", "--name", "m", "policy.options.server.max_retries=0", "--server"]
    line = selfcest.error(*ask, "http://127.0.0.1:9/v1")  # the port that discards
    assert "cannot connect to http://127.0.0.1:9/v1 (ConnectError: " in line
    refuses = serve(lambda path, body, n: Reply({"error": "no such model"}, status=404))
    assert "answered 404 for model 'm'" in selfcest.error(*ask, refuses.url)


def test_a_server_that_fails_half_way_is_one_line_after_what_was_played(
    selfcest: Console, serve: Serve, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(path: str, body: dict[str, Any], n: int) -> Reply:
        clone = "You are a clone" in body["messages"][0]["content"]
        return Reply({"error": "down"}, status=500) if clone else chat(CALL)

    ask = ["--server", serve(answer).url, "--name", "m", "policy.options.server.max_retries=0", "--html", "look.html"]
    documents = write_json({"a": "it says 42"})
    monkeypatch.setattr(sys, "argv", ["selfcest", "solve", "What does a say?", "--documents", documents, *ask])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 3
    printed = capsys.readouterr()
    turn, line = printed.err.splitlines()
    assert turn.startswith("root turn 0: delegated, ")
    assert line.startswith("selfcest: episodes not played: 1")
    assert "500" in line
    assert not printed.out
    assert not Path("look.html").exists()


# Documents


def test_documents_of_a_folder_are_those_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "texts" / "may").mkdir(parents=True)
    (tmp_path / "texts" / "A.txt").write_text("first", encoding="utf-8")
    (tmp_path / "texts" / "may" / "notes.v2.md").write_text("sécond\n", encoding="utf-8")
    (tmp_path / "texts" / ".DS_Store").write_bytes(b"\xff\x00")
    file = tmp_path / "texts.json"
    file.write_text('{"A": "first", "may/notes.v2": "s\\u00e9cond\\n"}', encoding="utf-8")
    found = read_documents(tmp_path / "texts")
    assert found == read_documents(file) == {"A": "first", "may/notes.v2": "sécond\n"}
    assert make_task("?", found, None) == make_task("?", read_documents(file), None)
    assert make_task("?", found, None).task_id != make_task("?", {}, None).task_id
    assert read_documents(None) == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", ["documents.json is not valid JSON", "line 1"]),
        ("[" * 100_000, ["documents.json is not valid JSON"]),
        ('{"a": "x", "a": "y"}', ["documents.json", "the key 'a' appears twice"]),
        ('["a"]', ["documents.json holds ['a']", "expected an object of texts by key"]),
        ('{"a": 7}', ["documents.json: 'a' is 7; expected a text"]),
        ("{}", ["documents.json holds no document"]),
        ('{"a": "\\ud800"}', ["not valid Unicode"]),
        ('{"report": "x"}', ["cannot name the key 'report'", "one character"]),
    ],
)
def test_a_file_that_is_no_set_of_documents(selfcest: Console, text: str, words: list[str]) -> None:
    Path("documents.json").write_text(text, encoding="utf-8")
    line = selfcest.error("solve", "?", *SCRIPTED, "--documents", "documents.json")
    assert all(word in line for word in words), line


def test_a_folder_that_is_no_set_of_documents(selfcest: Console) -> None:
    ask = ["solve", "?", *SCRIPTED, "--documents"]
    assert "missing.json: cannot be read" in selfcest.error(*ask, "missing.json")
    Path("texts").mkdir()
    assert "texts holds no document" in selfcest.error(*ask, "texts")
    Path("texts/a.txt").write_bytes(b"\xff\xfe")
    assert "a.txt: not UTF-8 text at byte 0" in selfcest.error(*ask, "texts")
    Path("texts/a.txt").write_text("x", encoding="utf-8")
    Path("texts/a.md").write_text("y", encoding="utf-8")
    assert "has the same key 'a' as another file" in selfcest.error(*ask, "texts")


def test_keys_that_nobody_has_to_write_may_be_anything(selfcest: Console) -> None:
    documents = write_json({"report": "12"})
    shown = selfcest("solve", "5:[60]-[65]", *SCRIPTED, "--documents", documents, "limits.max_depth=0")
    assert 'answer: "3"' in shown


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["1?"], ["no policy given: pass --policy", "or --server and --name"]),
        (
            ["1?", "--policy", "p", "--server", "http://x/v1"],
            ["--policy p and --server http://x/v1 exclude each other"],
        ),
        (["1?", "--server", "http://x/v1"], ["--server and --name are needed together"]),
        (["1?", "--policy", "p", "--name", "m"], ["--server and --name are needed together"]),
        (["1?", "--server", "x", "--name", "m"], ["base_url is 'x'"]),
        (["1?", "--policy", "empty"], ["empty is not a model", "no config.json"]),
        (["1?", "--policy", "runs/quick/none/seed0/model"], ["there is no such folder; train first"]),
        (["1?", "--policy", "empty/model"], ["there is no such folder; train first"]),
        (["1?", "--policy", "./model"], ["there is no such folder; train first"]),
        (["1?", "--policy", "nowhere:Nobody"], ["importing 'nowhere' failed"]),
        (["1?", *SCRIPTED, "limits.total_token=9"], ["limits.total_token is unknown", "Did you mean 'total_tokens'"]),
        (["1?", *SCRIPTED, "limits.total_tokens=many"], ["limits.total_tokens", "'many'"]),
        (["1?", *SCRIPTED, "limits.answer_reserve=9999"], ["limits.answer_reserve is 9999"]),
        (["1?", *SCRIPTED, "total_tokens=9"], ["total_tokens is unknown; SolveConfig has policy, limits"]),
        (["1?", *SCRIPTED, "nine"], ["override 'nine' is not of the form key.path=value"]),
        (["1?", *SCRIPTED, "policy.options.version=x"], ["policy.options.version is 'x'; expected a whole number"]),
        (["1?", *SCRIPTED, "--temperature=-1"], ["temperature is -1.0"]),
        ([" ", *SCRIPTED], ["the question is ' '"]),
        (["", *SCRIPTED], ["the question is ''"]),
        (["1?", *SCRIPTED, "--html", "no/such.html"], ["--html no/such.html cannot be written"]),
        (["1?", *SCRIPTED, "--answer", ""], ["--answer is ''"]),
        (["1?", *SCRIPTED, "--out", "empty"], ["--out empty cannot be written"]),
        (["1?", *SCRIPTED, "--out", "no/such.jsonl"], ["--out no/such.jsonl cannot be written"]),
        (["1?", *SCRIPTED, "--out", "notes.txt"], ["--out: notes.txt, line 1", "name a file of episodes"]),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_loaded(
    selfcest: Console, arguments: list[str], words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study_players, "loads", [])
    Path("empty").mkdir()
    Path("notes.txt").write_text("buy milk\n", encoding="utf-8")
    line = selfcest.error("solve", *arguments)
    assert all(word in line for word in words), line
    assert study_players.loads == []
    assert Path("notes.txt").read_text(encoding="utf-8") == "buy milk\n"


def test_mistakes_about_a_run_s_model(selfcest: Console, run_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded(*_: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(TinyLanguage, "load", loaded)
    ask = ["solve", "17?", "--policy"]
    line = selfcest.error(*ask, str(run_model), "limits.total_tokens=4000")
    assert "limits.total_tokens is 4000" in line
    assert "max_positions = 96" in line
    assert "is not a model: the folder has no config.json" in selfcest.error(*ask, str(run_model.parent))
    seat = run_model.parents[1]
    seat.rename(seat.with_name("delegated"))
    moved = seat.with_name("delegated") / "seed0" / "model"
    assert "has no variant 'delegated'. Did you mean 'delegating'?" in selfcest.error(*ask, str(moved))


def test_overrides_reach_whoever_plays() -> None:
    asked = make_solve_config(None, "http://x/v1", "m", ["policy.options.server.timeout_s=3", "limits.max_reads=2"])
    assert asked.policy.name == "server"
    assert asked.policy.options == {"server": asdict(ServerConfig("http://x/v1", "m", timeout_s=3))}
    assert asked.limits == Limits(max_reads=2)
    hub = make_solve_config("hub:owner/name", None, None, ["policy.options.model.options.device=cuda"])
    assert hub.policy.options == {"model": {"name": "chat", "options": {"source": "hub:owner/name", "device": "cuda"}}}
