"""Stories among the sentences of books: generator, filler, reader with a memory, and the package of novels."""

from __future__ import annotations

import hashlib
import io
import json
import re
import struct
import tarfile
import zlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selfcest_agents.policy import ScriptedPolicy
from selfcest_agents.rollout import RolloutRequest, rollout
from selfcest_agents.scripted import OracleActor
from selfcest_env.errors import ConfigError, DataError, SelfcestError, TaskError
from selfcest_env.record import EpisodeRecord
from selfcest_env.rules import Rules
from selfcest_env.tasks import Style, TaskSource, make_source, novels
from selfcest_env.tasks.babi import Babi
from selfcest_env.tasks.finite import FiniteSource
from selfcest_env.tasks.long_context import Babilong, split_sentences
from selfcest_env.tasks.memory import EMPTY_MEMORY, MemorySteps, MemoryTurn, Pass
from selfcest_env.tasks.prose import Prose, split_prose
from selfcest_env.tasks.room_stories import RoomStories
from selfcest_env.tasks.rooms import people
from selfcest_env.tasks.source import Proposal
from selfcest_env.text.counters import WordCounter
from selfcest_env.text.hermes import HermesProtocol
from selfcest_env.types import Answer, Limits, Task

SENTENCES = [f"Sentence {number} of the book has nothing to tell." for number in range(60)]
UNLIMITED = Limits(None, turn_tokens=2000, reply_tokens=None, max_clones=None, max_clones_per_call=None)
LIMITS = {Style.DELEGATE: UNLIMITED, Style.SOLVE: replace(UNLIMITED, max_depth=0)}


@pytest.fixture
def books(tmp_path: Path) -> str:
    folder = tmp_path / "books"
    folder.mkdir()
    (folder / "first.txt").write_text("CHAPTER I.\n\n" + "\n\n".join(SENTENCES), encoding="utf-8")
    novel = "\n\n".join(SENTENCES).replace("book", "novel")
    (folder / "second.txt").write_text(
        f"{novel}\n\nMary was told of it. Thornton went to the garden. Thornton got the apple there.", encoding="utf-8"
    )
    return str(folder)


def play(source: TaskSource, task: Task, style: Style) -> EpisodeRecord:
    policy = ScriptedPolicy(OracleActor(source, HermesProtocol(), style))
    (record,) = rollout([RolloutRequest("e", task, 0)], policy, Rules(LIMITS[style], HermesProtocol(), WordCounter()))
    return record


def read_list(task: Task, key: str) -> list[Any]:
    return list(json.loads(str(task.metadata[key])))


# Generated stories


@pytest.mark.parametrize("number", [1, 2, 3])
def test_generated_stories_and_their_expert(number: Any) -> None:
    """The generator's answers come from its world, those of the expert from the statements, or from the facts alone."""
    source = RoomStories(number, stories=60, people=("Anna", "Boris", "Clara"), things=("lamp", "key"))
    assert isinstance(source, FiniteSource)
    tasks = source.tasks()
    assert len({source.identity(task) for task in tasks}) == 60
    for task in tasks:
        statements = split_sentences(" ".join(task.context.values()))
        assert len(statements) == task.metadata["size"]
        assert people(task.prompt, statements) <= {"Anna", "Boris", "Clara"}
        facts = sorted(read_list(task, "facts"))
        only_facts = Task(
            "f", task.prompt, task.answer, "x", context={"part 1": " ".join(statements[i] for i in facts)}
        )
        for style in (Style.DELEGATE, Style.SOLVE):
            assert play(source, task, style).answer == task.answer
        assert play(source, only_facts, Style.SOLVE).answer == task.answer
    assert len(Counter(task.answer for task in tasks)) == 6  # rooms
    few = RoomStories(number, 30, 30, ("Anna", "Boris", "Clara"), people_per_story=2, stories=5)
    for task in few.tasks():
        assert len(people("", split_sentences(" ".join(task.context.values())))) == 2
    assert [task.prompt for task in RoomStories(number, stories=3).tasks()] == [
        RoomStories(number, stories=9).tasks()[index].prompt for index in range(3)
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"task": 3, "min_statements": 1, "max_statements": 2}, "max_statements is 2; expected at least 3"),
        ({"people": ["mary"]}, "people has 'mary'; expected a capital letter"),
        ({"people": ["Ann", "Mary Ann"]}, "people has 'Mary Ann'; expected a capital letter"),
        ({"things": ["Apple"]}, "things has 'Apple'; expected small letters"),
        ({"things": ["red apple"]}, "things has 'red apple'; expected small letters"),
        ({"min_statements": 9, "max_statements": 8}, "min_statements is 9, above max_statements = 8"),
    ],
)
def test_wrong_options_of_stories(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        make_source("room_stories", **options)


def test_the_last_question_of_each_official_story(tmp_path: Path) -> None:
    (tmp_path / "qa1.txt").write_text(
        "1 Mary went to the garden.\n2 Where is Mary?\tgarden\t1\n"
        "3 Mary went to the office.\n4 Where is Mary?\toffice\t3\n"
        "1 John went to the garden.\n2 Where is John?\tgarden\t1\n",
        encoding="utf-8",
    )
    tasks = Babi(str(tmp_path / "qa1.txt"), last_question=True).tasks()
    assert [(task.prompt, task.answer) for task in tasks] == [
        ("Where is Mary?", "office"),
        ("Where is John?", "garden"),
    ]
    assert len(Babi(str(tmp_path / "qa1.txt")).tasks()) == 3


# Prose


def test_sentences_of_prose() -> None:
    text = 'CHAPTER I.\n\nMr. Bent had\nwaited. "Is it late?" She\nasked him twice. Oh!\n\n'
    text += 'No end here\n\n_Who_ said so? "Not I."'
    assert split_prose(text) == ["Mr. Bent had waited.", '"Is it late?"', "She asked him twice.", "_Who_ said so?"]


def test_a_story_among_the_sentences_of_one_book(books: str) -> None:
    stories = RoomStories(2, stories=8)
    filler = Prose(books, "train", ("first",))
    source = Babilong(stories, filler, words=300, words_per_document=60)
    for task, story in zip(source.tasks(), stories.tasks(), strict=True):
        sentences = split_sentences(" ".join(task.context.values()))
        statements = split_sentences(" ".join(story.context.values()))
        filling = [sentence for sentence in sentences if sentence not in statements]
        assert [sentence for sentence in sentences if sentence in statements] == statements
        # 34 sentences of nine words are the first with at least 300 words. They are consecutive ones of the book, but
        # for the name of a person and two sentences that read like statements.
        numbers = [int(sentence.split()[1]) for sentence in filling]
        assert numbers == [(numbers[0] + i) % 60 for i in range(34)]
        assert task.metadata["book"] == "second"
        assert "novel" in filling[0]
        assert all(len(text.split()) <= 60 for text in task.context.values())
        assert [sentences[fact] for fact in read_list(task, "facts")] == [
            statements[fact] for fact in read_list(story, "facts")
        ]
        support = " ".join(task.context[key] for key in read_list(task, "support"))
        assert all(statements[fact] in support for fact in read_list(story, "facts"))
        assert play(source, task, Style.DELEGATE).answer == task.answer
    assert source.tasks()[0].context == Babilong(stories, filler, words=300, words_per_document=60).tasks()[0].context
    by_sentences = Babilong(stories, filler, sentences=30, sentences_per_document=10)
    assert by_sentences.tasks()[0].metadata["added"] == 30


def test_readers_quote_the_supporting_facts() -> None:
    source = RoomStories(2, stories=30)
    for task in source.tasks():
        statements = " ".join(task.context.values()).removesuffix(".").split(". ")
        _copied, quoted, _answer = play(source, task, Style.SOLVE).root.turns[-1].generation.text.split("\n")
        facts = read_list(task, "facts")
        # The file names the latest statement first, a reader the one about the thing.
        assert sorted(quoted.removesuffix(".").split(". ")) == sorted(statements[fact] for fact in facts)


THING_OBJECTIVE = (
    "Quote the last sentence of your part in which a person takes or drops the THING. If it is dropped, also quote the "
    "last sentence before that in which this person goes to a room. Answer 'nothing' if there is none."
)


def test_prompts_have_nothing_but_the_text(books: str) -> None:
    """Neither the answer nor the supporting facts are in a prompt, other than as a sentence of the text."""
    stories = RoomStories(2, stories=20)
    source = Babilong(stories, Prose(books), words=200, words_per_document=60)
    num_second = []
    for task in source.tasks():
        record = play(source, task, Style.DELEGATE)
        for clone in record.agents[1:]:
            assert not re.search(r"bathroom|bedroom|garden|hallway|kitchen|office", clone.objective)
        assert record.agents[0].turns[0].generation.text.count(task.answer) == 0
        num_parts = len(task.context)
        first, second = record.agents[1 : num_parts + 1], record.agents[num_parts + 1 :]
        thing = re.findall(r"[a-z]+", task.prompt)[-1]
        assert {re.sub(rf"\b{thing}\b", "THING", clone.objective) for clone in first} == {THING_OBJECTIVE}
        # The name of the person is known from the replies.
        replies = " ".join(clone.reply or "" for clone in first)
        assert all(re.findall(r"[A-Z][a-z]+", clone.objective)[1] in replies for clone in second)
        num_second.append(len(second))
    assert min(num_second) == 0 < max(num_second), "one root needs no second call, another does"


def test_books_are_kept_apart(books: str) -> None:
    assert list(Prose(books).books) == ["first", "second"]
    assert list(Prose(books, "train", ("second",)).books) == ["first"]
    assert list(Prose(books, "test", ("second",)).books) == ["second"]


def make_long(path: str, **options: Any) -> Babilong:
    filler = {"path": path, **options.pop("filler", {})}
    source = make_source("babilong", source={"name": "room_stories", "stories": 2}, filler=filler, **options)
    assert isinstance(source, Babilong)
    return source


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"words": 541}, TaskError, r"the book first of .* has 540 words in sentences, and 541 are asked for; lower"),
        (
            {"sentences": 99},
            TaskError,
            "babilong: the book .* has 60 usable sentences with 540 words, and 99 sentences",
        ),
        ({"words": 99, "sentences": 3}, ConfigError, "sentences is 3, which changes nothing: words decides the length"),
        ({"filler": {"part": "test"}}, ConfigError, "filler.part is 'test', and test_books is empty; name the books"),
        ({"filler": {"test_books": ["first"]}}, ConfigError, "filler.test_books is .*, which changes nothing: part is"),
        (
            {"filler": {"part": "train", "test_books": ["frist"]}},
            ConfigError,
            "test_books has 'frist', .* Did you mean 'first'",
        ),
        (
            {"filler": {"part": "train", "test_books": ["first", "second"]}},
            ConfigError,
            "test_books has all books of .*, so none is left for the part 'train'",
        ),
    ],
)
def test_wrong_options_of_prose(books: str, options: dict[str, Any], error: type[SelfcestError], said: str) -> None:
    with pytest.raises(error, match=said) as caught:
        make_long(books, **options).tasks()
    assert "\n" not in str(caught.value)


def test_books_of_one_name_are_refused(tmp_path: Path) -> None:
    """One of them was lost in silence."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "text.txt").write_text("One two three four five.", encoding="utf-8")
    with pytest.raises(DataError, match=r"a/text\.txt and .*b/text\.txt have one name; rename one of these books"):
        make_long(str(tmp_path)).tasks()


def test_no_prose(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file in this folder ends in \.txt"):
        make_long(str(tmp_path)).tasks()
    (tmp_path / "list.txt").write_text("CONTENTS\n\none\n\ntwo three four five", encoding="utf-8")
    with pytest.raises(DataError, match=r"list\.txt: no sentence was found; expected plain text in sentences"):
        make_long(str(tmp_path)).tasks()
    with pytest.raises(ConfigError, match="words needs prose as filler"):
        make_source("babilong", source={"name": "room_stories"}, filler={"name": "room_stories"}, words=9)


# A reader with a memory


def test_a_memory_is_carried_from_part_to_part() -> None:
    """By hand: what is kept of each part, and the answer from the last memory."""
    stories = RoomStories(3, stories=1)
    expert = Babilong(stories, Prose("none"))
    memory = EMPTY_MEMORY
    written: list[str] = []
    for text in (
        "Mary went to the kitchen. It rained. Mary got the milk there.",
        "John moved to the office.",
        "Mary travelled to the garden. Mary left the milk. Mary went back to the hallway.",
    ):
        proposal = expert.remember("Where was the milk before the garden?", memory, "part 1", text)
        memory = proposal.action.text  # type: ignore[union-attr]
        written.append(memory)
    assert written == [
        "Mary in kitchen; milk with Mary; milk in kitchen",
        "Mary in kitchen; John in office; milk with Mary; milk in kitchen",
        "Mary in hallway; John in office; milk in kitchen, garden",
    ]
    assert expert.conclude("Where was the milk before the garden?", memory).action.text == "kitchen"  # type: ignore[union-attr]


def test_a_memory_of_a_thing_asks_for_its_last_person() -> None:
    """By hand: the last report that has something is kept, and the text is read again if it has no room."""
    expert = Babilong(RoomStories(2, stories=1), Prose("none"))

    def read(question: str, *parts: str) -> list[str]:
        memory = EMPTY_MEMORY
        for number, text in enumerate(parts, 1):
            memory = expert.remember(question, memory, f"part {number}", text).action.text  # type: ignore[union-attr]
        return [memory, expert.conclude(question, memory).action.text]  # type: ignore[union-attr]

    found = expert.remember("Where is Mary?", "office", "part 2", "Mary moved to the kitchen. John went to the garden.")
    assert found == Proposal(Answer("kitchen"), "Mary moved to the kitchen.")
    kept = expert.remember("Where is Mary?", "office", "part 3", "John went to the garden.")
    assert kept == Proposal(Answer("office"), "nowhere")
    question = "Where is the milk?"
    taken = ("Mary moved to the kitchen.", "Mary got the milk.", "John got the ball.")
    assert read(question, *taken) == ["part 2: Mary got the milk.", "Where is Mary?"]
    assert read("Where is Mary?", *taken) == ["kitchen", "kitchen"]
    dropped = (*taken[:2], "Mary dropped the milk. Mary went to the office.")
    assert read(question, *dropped) == ["part 3: Mary dropped the milk.", "Where is Mary before part 3?"]
    known = "part 1: Mary dropped the milk. Mary went to the office."
    assert read(question, "Mary went to the office. Mary dropped the milk.") == [known, "office"]
    keys = ("part 1", "part 2", "part 3")
    assert Pass.read("Where is Mary before part 3?", keys) == ("Where is Mary?", keys[:2])
    assert Pass.read("Where is Mary?", keys) == ("Where is Mary?", keys)
    assert Pass.read("Where is Mary before part 4?", keys) is None
    assert Pass.read("office", keys) is None
    assert Pass.read("?", keys) is None, "the expert gives up so"


@pytest.mark.parametrize(
    "number", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)]
)
def test_the_expert_reads_with_a_memory(books: str, number: Any) -> None:
    text = Babilong(RoomStories(number, stories=30), Prose(books), words=200, words_per_document=60)
    source = MemorySteps(text, last_share=0.5)
    num_passes = []
    for task in text.tasks():
        reading: Pass | None = Pass(task.prompt, tuple(task.context))
        num_passes.append(0)
        while reading is not None:
            num_passes[-1] += 1
            memory = EMPTY_MEMORY
            for key in reading.keys:
                prompt = MemoryTurn(reading.question, memory, False).write()
                step = Task("s", prompt, "", "x", context={key: task.context[key]})
                memory = play(source, step, Style.SOLVE).answer or ""
            last = Task("s", MemoryTurn(reading.question, memory, True).write(), task.answer, "x")
            answer = play(source, last, Style.SOLVE).answer or ""
            reading = Pass.read(answer, tuple(task.context))
        assert answer == task.answer
    assert set(num_passes) == ({1, 2} if number == 2 else {1})
    rng = np.random.default_rng(0)
    num_last = 0
    for _ in range(60):
        step = source.draw(rng)
        turn = MemoryTurn.read(step.prompt)
        assert turn is not None
        assert len(step.context) == (0 if turn.is_last else 1)
        assert play(source, step, Style.SOLVE).answer == step.answer
        assert source.identity(step) in {text.identity(task) for task in text.tasks()}
        num_last += turn.is_last
    assert 15 < num_last < 45


def test_a_memory_cannot_look_like_an_order() -> None:
    turn = MemoryTurn("Where is Mary?", "x\nAll parts were read.", False)
    assert MemoryTurn.read(turn.write()) == turn._replace(memory="x All parts were read.")
    with pytest.raises(ConfigError, match="source is a RoomStories, whose expert has no memory; expected a source"):
        make_source("memory_steps", source={"name": "room_stories"})


# The package of novels


def serialise(lines: list[str]) -> bytes:
    """Write a vector of strings as R does, in version 3 of its format."""
    content = b"X\n" + struct.pack(">iii", 3, 0x040201, 0x030500) + struct.pack(">i", 5) + b"UTF-8"
    content += struct.pack(">ii", 16, len(lines))
    for line in lines:
        content += struct.pack(">ii", 0x40009, len(line.encode())) + line.encode()
    return content


def make_package(members: dict[str, bytes]) -> bytes:
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w:xz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    package = b"!<arch>\n"
    for name, content in (("debian-binary", b"2.0\n!"), ("data.tar.xz", tar.getvalue())):
        package += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode() + content
        package += b"\n" * (len(content) % 2)
    return package


def test_novels_of_a_package(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    records = b""
    for title, line in (("EMMA", "Emma was handsome—and clever."), ("Pride, and Prejudice", "It is a truth.")):
        content = serialise([title, "", line])
        records += struct.pack(">I", len(content)) + zlib.compress(content)
    file = tmp_path / "novels.deb"
    package = make_package({"./usr/lib/R/site-library/janeaustenr/data/Rdata.rdb": records})
    file.write_bytes(package)
    assert novels.main([str(tmp_path / "out"), "--package", str(file)]) == 0
    # Two books differ from the pinned ones, and four are missing.
    warning = "6 books are missing, unknown or have another SHA-256 than expected: emma, mansfield_park, northanger"
    assert f"warning: {file}: {warning}" in capsys.readouterr().err
    written = {path.stem: hashlib.sha256(path.read_bytes()).hexdigest() for path in (tmp_path / "out").iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(novels, "read_package", lambda _: package)
        patch.setattr(novels, "_PACKAGE_SHA256", hashlib.sha256(package).hexdigest())
        assert novels.main([str(tmp_path / "default")]) == 1
        assert warning in capsys.readouterr().err
        assert not (tmp_path / "default").exists()
        patch.setattr(novels, "_BOOK_SHA256", written)
        assert novels.main([str(tmp_path / "default")]) == 0
        assert not capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["emma.txt", "pride_and_prejudice.txt"]
    assert (tmp_path / "out" / "emma.txt").read_text(encoding="utf-8") == "EMMA\n\nEmma was handsome—and clever.\n"
    assert list(Prose(str(tmp_path / "out")).books) == ["emma", "pride_and_prejudice"]
    capsys.readouterr()
    file.write_bytes(make_package({"./usr/share/doc/copyright": b"none"}))
    for package, said in (
        (file, "the package has no janeaustenr/data/Rdata.rdb; expected r-cran-janeaustenr"),
        (tmp_path / "out" / "emma.txt", "not the expected package: it does not begin like a .deb file"),
        (tmp_path / "missing.deb", "cannot be read: No such file or directory; give the path or the URL"),
    ):
        assert novels.main([str(tmp_path / "other"), "--package", str(package)]) == 1
        assert said in capsys.readouterr().err
    monkeypatch.setattr(novels, "read_package", lambda _: file.read_bytes())
    assert novels.main([str(tmp_path / "other")]) == 1
    assert re.search(r"the download has the SHA-256 \w{64}; expected df6bddf2", capsys.readouterr().err)
    assert not (tmp_path / "other").exists()
