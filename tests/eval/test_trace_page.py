"""The data of the page of episodes: it agrees with the records, says nothing twice, and takes no mistake for data."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from pages import EVIL, RULES, groups, harmful, write
from records import TASK
from records import agent as make_agent
from records import turn as make_turn

import selfcest_cli.main as cli
from selfcest_cli import plain
from selfcest_env.budget import Account
from selfcest_env.counterfactual import replay_turns, restore
from selfcest_env.kernel import Kernel
from selfcest_env.record import EpisodeRecord
from selfcest_env.rules import Rules
from selfcest_env.text.counters import ByteCounter
from selfcest_env.text.hermes import HermesProtocol
from selfcest_env.types import ROOT, AgentId, Limits, MessageRole, Outcome, Status
from selfcest_eval.html.playing import Renderer, Timeline, replay_episode
from selfcest_eval.html.viewer import EpisodeView, SchemeCredit, make_viewer_page
from selfcest_training.credit import Coma, Credit, Rloo
from selfcest_training.credit.offline import assign_stored, group_episodes

RENDERERS = (Renderer(Rules(RULES.limits, HermesProtocol(), ByteCounter())), Renderer(RULES))


@pytest.fixture(scope="module")
def records() -> list[EpisodeRecord]:
    return [record for group in groups(4, replays=True) for record in group]


class Read:
    """A page's data, as its script reads it."""

    def __init__(self, html: str) -> None:
        blocks = re.findall(r'<script type="application/json" id="(\w+)">(.*?)</script>', html, re.DOTALL)
        self.blocks = dict(blocks)
        self.index = json.loads(self.blocks["index"])
        self.texts, self.tasks, self.episodes = (
            [json.loads(line) for line in self.blocks[name].split("\n")] for name in ("texts", "tasks", "episodes")
        )

    def words(self, block: list[Any]) -> list[str]:
        return ["".join(self.texts[number][0] for number in parts) for _, *parts in block]


def page(records: list[EpisodeRecord], *schemes: SchemeCredit) -> Read:
    return Read(make_viewer_page("T", [EpisodeView(record) for record in records], RENDERERS, schemes).render())


def test_the_page_says_what_the_records_say(records: list[EpisodeRecord]) -> None:
    read = page(records)
    assert read.index["name"] == [record.episode_id for record in records]
    assert read.index["tokens"] == [record.cost.total_tokens for record in records]
    assert read.index["return"] == pytest.approx([record.team_return for record in records], rel=1e-5)
    assert set(read.index["outcome"]) == {"right", "wrong"}
    for record, shown in zip(records, read.episodes, strict=True):
        assert [agent["id"] for agent in shown["agents"]] == [str(agent.agent_id) for agent in record.agents]
        for agent, told in zip(record.agents, shown["agents"], strict=True):
            assert [read.texts[turn["text"]] for turn in told["turns"]] == [[t.generation.text] for t in agent.turns]
            assert None if told["reply"] is None else read.texts[told["reply"]][0] == agent.reply


def test_what_the_environment_wrote_is_there_word_for_word(records: list[EpisodeRecord]) -> None:
    read = page(records)
    for record, shown in zip(records, read.episodes, strict=True):
        kernel = restore(record, RULES.with_limits(record.limits))
        for agent, told in zip(record.agents, shown["agents"], strict=True):
            blocks = [turn["wrote"] for turn in told["turns"]] + ([told["after"]] if told["after"] else [])
            expected = [
                m.content for m in kernel.agents[agent.agent_id].messages if m.role is not MessageRole.ASSISTANT
            ]
            assert [words for block in blocks for words in read.words(block)] == expected


def test_accounts_add_up_after_every_turn_and_end_as_the_game_s(records: list[EpisodeRecord]) -> None:
    for record, shown in zip(records, page(records).episodes, strict=True):
        assert len(shown["ledger"]) == 1 + sum(len(agent.turns) for agent in record.agents)
        now: dict[int, tuple[int, ...]] = {}
        for _, changes in shown["ledger"]:
            now |= {agent: tuple(amounts) for agent, *amounts in changes}
            open_ = {agent: amounts[0] - sum(amounts[1:]) for agent, amounts in now.items()}
            spent, reserved = (sum(amounts[i] for amounts in now.values()) for i in (1, 2))
            assert min(open_.values()) >= 0
            assert spent + reserved + sum(open_.values()) == record.limits.total_tokens
        accounts = restore(record, RULES.with_limits(record.limits)).ledger.accounts
        assert {record.agents[place].agent_id: amounts for place, amounts in now.items()} == {
            agent: tuple(part.total_tokens for part in account[:4]) for agent, account in accounts.items()
        }
        assert isinstance(accounts[ROOT], Account)


def choose(timeline: Timeline, kernel: Kernel) -> AgentId:
    """The ready agent whose turn ends first."""
    return timeline.first_to_end((agent_id, len(kernel.agents[agent_id].turns)) for agent_id in kernel.ready())


def test_the_clock_ends_with_the_critical_path(records: list[EpisodeRecord]) -> None:
    assert any(record.cost.depth == 2 for record in records)
    for record in records:
        timeline = Timeline(record)
        *_, kernel = replay_turns(record, RULES.with_limits(record.limits), partial(choose, timeline))
        assert timeline.list_turns() == [(step.agent_id, step.turn) for step in kernel.log]
        clock = Timeline(record)
        assert max(clock.ends.values()) == record.cost.critical_path_tokens
        turns = {(key.agent_id, key.turn): turn.facts.generated_tokens for key, turn in record.turns()}
        assert sum(turns[place] for place in clock.critical) == record.cost.critical_path_tokens
        for agent in record.agents:
            if agent.parent_id is not None and agent.turns:
                assert clock.starts[agent.agent_id, 0] == clock.ends[agent.parent_id, agent.born_at]


def test_the_clock_runs_in_a_tree_of_two_thousand_levels() -> None:
    """It ended at Python's limit of recursions."""
    agents, agent_id = [], ROOT
    for level in range(2000):
        calls = make_turn((1,), (10,), outcome=Outcome.DELEGATED, children=(agent_id.child(0),))
        agents.append(make_agent(agent_id, *([calls] if level < 1999 else []), make_turn((1,), (10, 11))))
        agent_id = agent_id.child(0)
    record = EpisodeRecord("e", TASK, Limits(), 0, tuple(agents), {"correct": 1.0})
    clock = Timeline(record)
    assert max(clock.ends.values()) == clock.ends[ROOT, 1] == record.cost.critical_path_tokens == 1999 + 2 * 2000
    assert len(clock.critical) == 1999 + 2000


def test_rules_that_make_another_episode_are_not_believed(records: list[EpisodeRecord]) -> None:
    record = next(record for record in records if record.cost.clones and record.root.reply)
    played = replay_episode(record, RENDERERS[:1])
    assert played.renderer is None
    assert not played.ledger
    said = "".join(part.text for block in played.blocks[ROOT] for message in block for part in message.parts)
    assert record.task.prompt in said
    children = [record.by_id[child] for turn in record.root.turns for child in turn.facts.children]
    assert all((child.reply or str(child.status)) in said for child in children)
    read = Read(make_viewer_page("T", [EpisodeView(record)], RENDERERS[:1], ()).render())
    assert (read.episodes[0]["exact"], read.episodes[0]["ledger"]) == (False, [])


def test_advantages_are_those_of_the_schemes_side_by_side(records: list[EpisodeRecord]) -> None:
    stored = group_episodes(records, "here")
    credits = [assign_stored(assigner, stored) for assigner in (Rloo(), Coma())]
    read = page(records, SchemeCredit("rloo", "f", [credits[0]]), SchemeCredit("coma", "g", [credits[1]]))
    seen = 0
    for record, shown in zip(records, read.episodes, strict=True):
        for key, _ in record.turns():
            place = [str(agent.agent_id) for agent in record.agents].index(str(key.agent_id))
            told = shown["agents"][place]["turns"][key.turn]["credit"]
            said = [next((c.advantage[key] for c in of if key in c.advantage), None) for of in credits]
            assert told == [None if value is None else pytest.approx(value, rel=1e-5) for value in said]
            seen += None not in said
    assert seen == sum(len(list(e.turns())) for g in stored.groups for e in g.episodes)


def test_credit_by_token_and_exclusion_are_told(records: list[EpisodeRecord]) -> None:
    record = next(record for record in records if "/" not in record.episode_id and record.cost.clones)
    first, *others = [key for key, _ in record.turns()]
    credit = Credit({first: (0.5, -1.0)}, frozenset(others), weight={first: 0.25})
    turns = [t for a in page([record], SchemeCredit("x", "f", [[credit]])).episodes[0]["agents"] for t in a["turns"]]
    assert [turn["credit"] for turn in turns] == [[[0.5, -1.0]], *[["excluded"]] * len(others)]
    assert turns[0]["weight"] == {"0": 0.25}


def test_replays_stand_under_their_episode(records: list[EpisodeRecord]) -> None:
    read = page(records)
    of = read.index["of"]
    clones = [record.cost.clones for record in records if "/" not in record.episode_id]
    assert sum(number is not None for number in of) == sum(clones) > 0
    for number, (record, shown) in enumerate(zip(records, read.episodes, strict=True)):
        assert shown["replays"] == [i for i, other in enumerate(of) if other == number]
        assert all(records[i].episode_id.startswith(f"{record.episode_id}/") for i in shown["replays"])


def test_what_repeats_is_stored_once(records: list[EpisodeRecord]) -> None:
    read = page(records)
    assert len({json.dumps(text) for text in read.texts}) == len(read.texts)
    assert len(read.tasks) == 4
    longest = max((record.task.prompt for record in records), key=len)
    assert sum(line.count(json.dumps(longest)[1:-1]) for line in read.blocks.values()) < 2 * len(records)
    assert sum(text[0] == longest for text in read.texts) == 1
    twice = page([*records, *(replace(record, episode_id=f"again.{record.episode_id}") for record in records)])
    assert len(twice.blocks["texts"]) == len(read.blocks["texts"])


def test_groups_steps_and_troubles_are_filters(records: list[EpisodeRecord]) -> None:
    failed = replace(records[0].root, status=Status.OUT_OF_TURNS, reply=None)
    other = replace(records[0], episode_id="mine", agents=(failed, *records[0].agents[1:]))
    read = page([*records, other])
    groups = [record.episode_id.split("/")[0].rpartition(".e")[0] for record in records]
    assert read.index["group"] == [*groups, other.task.task_id]
    assert read.index["step"] == [*(int(group[1:].split(".")[0]) for group in groups), None]
    faults = [{turn.facts.fault for _, turn in record.turns()} - {None} for record in records]
    assert [set(troubles) for troubles in read.index["troubles"][:-1]] == [
        fault | {agent.status for agent in record.agents if agent.failed}
        | {found for _, turn in record.turns() for found in turn.facts.refused.values()}
        for fault, record in zip(faults, records, strict=True)
    ]  # fmt: skip
    assert "out_of_turns" in read.index["troubles"][-1]


def test_groups_of_two_jobs_are_apart(
    records: list[EpisodeRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    jobs = ["a/seed0", "b/seed0"]
    for job in jobs:
        folder = Path("run", job)
        folder.mkdir(parents=True)
        write(folder / "episodes.jsonl", *records)
    assert selfcest(monkeypatch, "trace", "run", "--html", "o.html") == 0
    index = Read(Path("o.html").read_text("utf-8")).index
    (alone,) = {tuple(page(records).index["group"])}
    assert index["job"] == [job for job in jobs for _ in records]
    assert index["group"] == [f"{job} {group}" for job in jobs for group in alone]


class Elements(HTMLParser):
    """The elements of a text of HTML with their attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_a_notebook_shows_views_and_pages(records: list[EpisodeRecord]) -> None:
    evil = EpisodeView(harmful())
    assert not {"script", "img"} & {tag for tag, _ in Elements(evil._repr_html_()).found}
    shown = make_viewer_page(f'"{EVIL}', [evil], (), ())
    # The frame is the only element, and its document is the page.
    assert Elements(shown._repr_html_()).found == [
        ("iframe", {"sandbox": "allow-scripts", "srcdoc": shown.render(), "width": "100%", "height": "800"})
    ]
    assert "✓ right" in EpisodeView(records[0], right=True)._repr_html_()


def test_two_episodes_of_one_name_are_two(records: list[EpisodeRecord]) -> None:
    assert page([records[0], records[0]]).index["name"] == [records[0].episode_id, f"{records[0].episode_id}~2"]


def test_harmful_texts_come_out_as_they_went_in() -> None:
    record = harmful()
    assert len(record.agents) == 3
    read = page([record])
    assert read.index["name"] == [record.episode_id.replace("\ud800", "?")], "no address holds half a pair"
    assert [EVIL] in read.texts
    assert read.episodes[0]["terms"] == [[EVIL, 0.5, 2.0]]
    assert all("<" not in block for block in read.blocks.values())


def test_what_json_cannot_say_is_left_open(records: list[EpisodeRecord]) -> None:
    record = replace(records[-1], reward_terms={"correct": float("nan")})
    assert page([record]).index["return"] == [None]


def selfcest(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["selfcest", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return int(str(caught.value.code or 0))


@pytest.fixture(scope="module")
def file(records: list[EpisodeRecord], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("run") / "episodes.jsonl", *records)


def test_the_command_writes_a_page(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.html"
    assert selfcest(monkeypatch, "trace", file, "--html", out, "--credit", "rloo", "--credit", "coma") == 0
    assert f"{out}: " in capsys.readouterr().out
    read = Read(out.read_text("utf-8"))
    assert [scheme["name"] for scheme in json.loads(read.blocks["schemes"])] == ["rloo", "coma"]
    assert all(episode["exact"] for episode in read.episodes)
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(file.read_bytes()[:-100])
    assert selfcest(monkeypatch, "trace", cut, file, "--html", out, "--credit", "rloo") == 0
    assert "was cut and is skipped" in capsys.readouterr().err
    both = Read(out.read_text("utf-8"))
    assert len(both.index["name"]) == 2 * len(read.index["name"]) - 1
    assert set(both.index["played_as"]) == {str(cut), str(file)}
    assert selfcest(monkeypatch, "trace", file, "--html", out, "--episode", "s1.g0.e2") == 0
    assert {name.partition("/")[0] for name in Read(out.read_text("utf-8")).index["name"]} == {"s1.g0.e2"}


def test_a_scheme_that_a_file_has_not_enough_for_is_left_out_and_said(
    file: Path, records: list[EpisodeRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    played = [record for record in records if "/" not in record.episode_id]
    write(Path("bare.jsonl"), *played)
    write(Path("single.jsonl"), played[0])

    def page_of(*arguments: object) -> tuple[list[str], list[str], Read]:
        assert selfcest(monkeypatch, "trace", *arguments, "--html", "o.html") == 0
        read = Read(Path("o.html").read_text("utf-8"))
        names = [scheme["name"] for scheme in json.loads(read.blocks["schemes"])]
        said = capsys.readouterr().err.splitlines()
        assert [f"warning: left out: {line}" for line in json.loads(read.blocks["left_out"])] == said
        return names, said, read

    assert page_of(file, "--credit", "rloo", "--credit", "coma")[:2] == (["rloo", "coma"], [])
    names, (line,), _ = page_of("bare.jsonl", "--credit", "coma", "--credit", "rloo")
    assert names == ["rloo"]
    assert all(word in line for word in ("bare.jsonl", "'coma'", "are not in the file")), line
    # Of two files the one that has it shows it.
    names, (line,), read = page_of("bare.jsonl", file, "--credit", "coma")
    assert names == ["coma"]
    assert "bare.jsonl" in line
    shown = [episode["agents"][0]["turns"][0].get("credit") for episode in read.episodes]
    assert shown[: len(played)] == [[None]] * len(played)
    assert sum(said != [None] for said in shown) == len(played)
    for arguments, words in (
        (["bare.jsonl", "--credit", "coma", "--credit", "shapley"], ["bare.jsonl", "'coma'", "; ", "'shapley'"]),
        (["single.jsonl", "--credit", "rloo"], ["single.jsonl", "'rloo'", played[0].episode_id, "at least 2 episodes"]),
    ):
        assert selfcest(monkeypatch, "trace", *arguments, "--html", "none.html") == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert all(word in line for word in words), line
        assert not Path("none.html").exists()


def test_an_episode_of_a_run_is_found_in_any_job(
    records: list[EpisodeRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    files = [Path("run", job, "seed0", "episodes.jsonl") for job in "ab"]
    only_in_first = replace(records[0], episode_id="s7.g0.e0")
    for file, episodes in zip(files, ([*records, only_in_first], records), strict=True):
        file.parent.mkdir(parents=True)
        write(file, *episodes)
    Path("run", "config.yaml").touch()
    plain.main(["trace", "run", "--episode", "s7.g0.e0"])
    shown = capsys.readouterr().out
    assert selfcest(monkeypatch, "trace", "run", "--episode", "s7.g0.e0") == 0
    assert capsys.readouterr().out == shown
    assert shown.splitlines()[0] == str(files[0])
    os.utime(files[0], (100, 100))
    assert selfcest(monkeypatch, "trace", "run") == 0
    assert capsys.readouterr().out.splitlines()[0] == str(files[1]), "the newest"
    assert selfcest(monkeypatch, "trace", files[1]) == 0
    assert str(files[1]) not in capsys.readouterr().out
    for episode_id, words in (
        (records[-1].episode_id, f"2 files hold an episode '{records[-1].episode_id}': {files[0]}, {files[1]}; give"),
        ("s7.g0.e1", "no file holds an episode 's7.g0.e1'. Did you mean"),
    ):
        assert selfcest(monkeypatch, "trace", "run", "--episode", episode_id) == 2
        assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing.jsonl", "--html", "o.html"], ["there is no file missing.jsonl"]),
        (["FILE", "--html", "no/such/o.html"], ["no/such/o.html cannot be written"]),
        (["FILE", "--html", "."], ["--html . is a folder"]),
        (
            ["FILE", "--html", "o.html", "--episode", "s1.g0.e9"],
            ["no file holds an episode 's1.g0.e9'", "Did you mean"],
        ),
        (["FILE", "--html", "o.html", "--credit", "rlo"], ["unknown credit scheme 'rlo'", "Did you mean 'rloo'"]),
        (["FILE", "--html", "o.html", "--credit", "shapley"], ["'shapley' needs", "are not in the file"]),
        (["FILE", "--credit", "rloo"], ["--credit needs a page", "--html PAGE"]),
        (["FILE", "FILE"], ["2 files need a page", "--html PAGE"]),
        (["DAMAGED", "--html", "o.html"], ["line 1"]),
        (["EMPTY", "--html", "o.html"], ["no episode"]),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], words: list[str], file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("DAMAGED").write_text("{}\n{}\n", encoding="utf-8")
    Path("EMPTY").touch()
    assert selfcest(monkeypatch, "trace", *(str(file) if word == "FILE" else word for word in arguments)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert all(word in line for word in words), line
    assert not Path("o.html").exists()
