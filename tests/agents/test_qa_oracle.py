"""The gold decompositions win through the real rollout: a clone answers only from the paragraph it was given.

Samples of the official files are read from the folder in `SELFCEST_DATA`.
"""

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from selfcest_agents.policy import RolePolicy, ScriptedPolicy
from selfcest_agents.rollout import RolloutRequest, rollout
from selfcest_agents.scripted import OracleActor
from selfcest_env.graders.qa import QuestionAnswer
from selfcest_env.record import EpisodeRecord
from selfcest_env.rules import Rules
from selfcest_env.tasks.babi import Babi
from selfcest_env.tasks.hotpotqa import HotpotQA
from selfcest_env.tasks.long_context import Babilong, Distractors
from selfcest_env.tasks.musique import Musique
from selfcest_env.tasks.qa import QuestionSource, UserQuestions
from selfcest_env.tasks.source import ExpertSource, Proposal, Style
from selfcest_env.tasks.support import support_overlap, used_documents
from selfcest_env.tasks.two_wiki import TwoWiki
from selfcest_env.text.counters import WordCounter
from selfcest_env.text.hermes import HermesProtocol
from selfcest_env.types import Answer, Limits, Outcome, Role, Task
from selfcest_env.views import Observation

WIDE = {"total_tokens": 400_000, "turn_tokens": 4000, "max_turns": 12, "reply_tokens": 100, "max_clones": 64}
LIMITS_OF_STYLE = {
    Style.DELEGATE: Limits(**WIDE, max_clones_per_call=32),
    Style.READ: Limits(**WIDE, max_depth=0, max_reads=64),
    Style.SOLVE: Limits(**WIDE, max_depth=0),
}


def folder(name: str) -> str:
    if "SELFCEST_DATA" not in os.environ:
        pytest.skip("SELFCEST_DATA names no folder with samples of the data sets")
    return str(Path(os.environ["SELFCEST_DATA"]) / name)


def play(
    source: ExpertSource, tasks: Sequence[Task], style: Style, limits: Limits | None = None
) -> list[EpisodeRecord]:
    rules = Rules(limits or LIMITS_OF_STYLE[style], HermesProtocol(), WordCounter())
    requests = [RolloutRequest(f"e{i}", task, i) for i, task in enumerate(tasks)]
    return rollout(requests, ScriptedPolicy(OracleActor(source, HermesProtocol(), style)), rules)


def accuracy(records: Sequence[EpisodeRecord]) -> float:
    return sum(QuestionAnswer().grade(record.task, record.answer).correct for record in records) / len(records)


def shapes(records: Sequence[EpisodeRecord]) -> Counter[tuple[int, ...]]:
    """How many clones each call started."""
    return Counter(
        tuple(len(turn.facts.children) for turn in record.root.turns if turn.facts.outcome is Outcome.DELEGATED)
        for record in records
    )


# Records invented here


def paragraph(idx: int, title: str, text: str) -> dict[str, object]:
    return {"idx": idx, "title": title, "paragraph_text": text, "is_supporting": True}


def hop(number: int, question: str, answer: str, support: int) -> dict[str, object]:
    return {"id": number, "question": question, "answer": answer, "paragraph_support_idx": support}


BRANCHES = {
    "id": "3hop2__1_2_3",
    "paragraphs": [
        paragraph(0, "Ulm", "Ulm is a city."),
        paragraph(1, "Anna Ahl", "Anna Ahl was born in Ulm."),
        paragraph(2, "Ulm", "Ulm and Bonn share the Rhine Prize."),
        paragraph(3, "Bert Bo", "Bert Bo lives in Bonn."),
    ],
    "question": "What do the birthplace of Anna Ahl and the home of Bert Bo share?",
    "question_decomposition": [
        hop(1, "Anna Ahl >> place of birth", "Ulm", 1),
        hop(2, "Where does Bert Bo live?", "Bonn", 3),
        hop(3, "What do #1 and #2 share?", "Rhine Prize", 2),
    ],
    "answer": "Rhine Prize",
    "answer_aliases": [],
    "answerable": True,
}


def branches(tmp_path: Path) -> Musique:
    (tmp_path / "m.jsonl").write_text(json.dumps(BRANCHES), encoding="utf-8")
    return Musique(str(tmp_path / "m.jsonl"))


def objectives(record: EpisodeRecord) -> list[tuple[str, tuple[str, ...], str | None]]:
    return [(agent.objective, agent.shared_context, agent.reply) for agent in record.agents[1:]]


ASKED = [
    ("Anna Ahl >> place of birth", ("Anna Ahl",), "Ulm"),
    ("Where does Bert Bo live?", ("Bert Bo",), "Bonn"),
    ("What do Ulm and Bonn share?", ("Ulm (2)",), "Rhine Prize"),
]


@pytest.mark.parametrize("style", Style)
def test_branches_then_a_step_that_needs_both(tmp_path: Path, style: Style) -> None:
    source = branches(tmp_path)
    (record,) = play(source, source.tasks(), style)
    assert record.answer == "Rhine Prize"
    assert objectives(record) == (ASKED if style is Style.DELEGATE else [])
    turns = {Style.DELEGATE: 3, Style.READ: 3, Style.SOLVE: 1}
    assert len(record.root.turns) == turns[style]
    if style is Style.SOLVE:
        thought = record.root.turns[0].generation.text.splitlines()
        assert thought == [f"{question} {answer}" for question, _, answer in ASKED] + ["Answer: Rhine Prize"]


def test_who_cannot_see_documents_asks_clones(tmp_path: Path) -> None:
    source = branches(tmp_path)
    (record,) = play(source, source.tasks(), Style.SOLVE, LIMITS_OF_STYLE[Style.DELEGATE])
    assert objectives(record) == ASKED


def test_a_refused_call_is_made_good_by_reading(tmp_path: Path) -> None:
    source = branches(tmp_path)
    one_clone = replace(LIMITS_OF_STYLE[Style.DELEGATE], max_clones_per_call=1)
    (record,) = play(source, source.tasks(), Style.DELEGATE, one_clone)
    assert record.answer == "?"
    (record,) = play(source, source.tasks(), Style.DELEGATE, replace(one_clone, max_reads=8))
    outcomes = [turn.facts.outcome for turn in record.root.turns]
    assert outcomes == [Outcome.REFUSED, Outcome.READ, Outcome.READ, Outcome.ANSWERED]
    assert record.answer == "Rhine Prize"
    assert used_documents(record, HermesProtocol()) == {"Anna Ahl", "Bert Bo", "Ulm (2)"}


@pytest.mark.parametrize("style", Style)
@pytest.mark.parametrize("emptied", ["Anna Ahl", "Bert Bo", "Ulm (2)"])
def test_what_does_not_stand_there_is_not_known(tmp_path: Path, emptied: str, style: Style) -> None:
    """The other document of that title says as much as a wrong key would bring."""
    source = branches(tmp_path)
    (task,) = source.tasks()
    (record,) = play(source, [replace(task, context={**task.context, emptied: "Ulm is a city, or not."})], style)
    # Anna Ahl's birthplace still stands in the text that took the place of hers.
    assert record.answer == ("Rhine Prize" if emptied == "Anna Ahl" else "?")


def test_the_root_compares_what_clones_bring(tmp_path: Path) -> None:
    bridge = {
        "_id": "1",
        "type": "bridge_comparison",
        "question": "Which film has the director who is younger, First Film or Later Film?",
        "answer": "First Film",
        "supporting_facts": [["First film", 0], ["Later film", 0], ["Ann Lee", 0], ["Bo Ek", 0]],
        "evidences": [
            ["First film", "director", "Ann Lee"],
            ["Later film", "director", "Bo Ek"],
            ["Ann Lee", "date of birth", "May 3, 1960"],
            ["Bo Ek", "date of birth", "9 July 1958"],
        ],
        "context": [
            ["First film", ["First film is by Ann Lee."]],
            ["Later film", ["Later film is by Bo Ek."]],
            ["Ann Lee", ["Ann Lee was born on May 3, 1960."]],
            ["Bo Ek", ["Bo Ek (born 9 July 1958) is a director."]],
        ],
    }
    (tmp_path / "w.json").write_text(json.dumps([bridge]), encoding="utf-8")
    source = TwoWiki(str(tmp_path / "w.json"))
    (record,) = play(source, source.tasks(), Style.DELEGATE)
    assert QuestionAnswer().grade(record.task, record.answer).correct
    assert objectives(record)[2:] == [
        ("What is the date of birth of Ann Lee?", ("Ann Lee",), "May 3, 1960"),
        ("What is the date of birth of Bo Ek?", ("Bo Ek",), "9 July 1958"),
    ]
    last = record.root.turns[-1].generation.text
    assert last == "First film: May 3, 1960; Later film: 9 July 1958\nAnswer: First film"
    # The comparison is the root's own: a clone that brings another date turns it round.
    honest = OracleActor(source, HermesProtocol())
    roles = {Role.ROOT: ScriptedPolicy(honest), Role.CLONE: ScriptedPolicy(Mistaken(honest))}
    rules = Rules(LIMITS_OF_STYLE[Style.DELEGATE], HermesProtocol(), WordCounter())
    (record,) = rollout([RolloutRequest("e0", source.tasks()[0], 0)], RolePolicy(roles), rules)
    assert record.answer == "Later film"


@dataclass(frozen=True)
class Mistaken:
    """An expert that misreads one date."""

    expert: OracleActor

    def act(self, observation: Observation, rng: np.random.Generator) -> str:
        return self.expert.act(observation, rng).replace("9 July 1958", "9 July 1968")


def test_tasks_without_a_plan_are_given_up(tmp_path: Path) -> None:
    (tmp_path / "q.json").write_text(json.dumps([{"question": "Who?", "answer": "I", "documents": ["I do."]}]))
    source = UserQuestions(str(tmp_path / "q.json"))
    for style in Style:
        (record,) = play(source, source.tasks(), style)
        assert (record.answer, len(record.agents)) == ("?", 1)


# bAbI


STORY = """1 Mary moved to the bathroom.
2 John went back to the hallway.
3 John picked up the football there.
4 Sandra journeyed to the garden.
5 John travelled to the kitchen.
6 John left the football.
7 John went to the office.
8 Sandra got the apple there.
9 Mary went to the kitchen.
10 Mary took the football there.
11 Where is the football? \tkitchen\t10 9
12 Mary journeyed to the garden.
13 Where is the football? \tgarden\t10 12
14 Where was the football before the garden? \tkitchen\t10 12 9
15 Where was the football before the kitchen? \thallway\t3 5 2
16 Is John in the kitchen? \tno\t7
17 Is Mary in the garden? \tyes\t12
18 Where is the apple? \tgarden\t8 4
19 Where was the apple before the garden? \t?\t8
20 Where is the milk? \t?\t8
"""


@pytest.mark.parametrize("style", Style)
def test_people_and_things_of_a_story(tmp_path: Path, style: Style) -> None:
    (tmp_path / "qa.txt").write_text(STORY, encoding="utf-8")
    source = Babi(str(tmp_path / "qa.txt"), statements_per_document=3)
    for task, record in zip(source.tasks(), play(source, source.tasks(), style), strict=True):
        assert record.answer == task.answer, task.prompt
        if style is Style.DELEGATE:
            is_known_thing = task.prompt.startswith("Where is the") and task.answer != "?"
            assert len(record.agents) - 1 == (2 if is_known_thing else 1) * len(task.context)
        else:
            assert len(record.agents) == 1


def test_the_clones_are_asked_for_the_thing_and_then_for_its_person(tmp_path: Path) -> None:
    (tmp_path / "qa.txt").write_text(STORY, encoding="utf-8")
    source = Babi(str(tmp_path / "qa.txt"), statements_per_document=3)
    taken, held, before, *_ = play(source, source.tasks()[:3], Style.DELEGATE)
    quote = (
        "Quote the last sentence of your part in which a person takes or drops the football. If it is dropped, also "
        "quote the last sentence before that in which this person goes to a room. Answer 'nothing' if there is none."
    )
    where = "Where is Mary at the end of your part? Answer 'nowhere' if it does not say."
    quotes = ["John picked up the football there.", "John left the football. John travelled to the kitchen.", "nothing"]
    for record, rooms in (
        (taken, ["bathroom", "nowhere", "kitchen", "nowhere"]),
        (held, ["bathroom", "nowhere", "kitchen", "garden"]),
    ):
        assert objectives(record) == [
            (objective, (f"part {number}",), part)
            for objective, parts in ((quote, [*quotes, "Mary took the football there."]), (where, rooms))
            for number, part in enumerate(parts, 1)
        ]
        assert record.root.turns[1].generation.text.startswith("Mary took the football there.\n")
    # A clone that finds the person quotes the statement before it answers.
    assert [agent.turns[-1].generation.text for agent in held.agents[5:]] == [
        "Mary moved to the bathroom.\nAnswer: bathroom",
        "Answer: nowhere",
        "Mary went to the kitchen.\nAnswer: kitchen",
        "Mary journeyed to the garden.\nAnswer: garden",
    ]
    # An earlier room needs the path of the thing.
    copied = [" ".join(line.partition(" ")[2] for line in STORY.splitlines()[i : i + 3]) for i in (0, 3, 6)]
    assert [part for _, _, part in objectives(before)[:3]] == copied
    assert before.root.turns[-1].generation.text == (
        "John takes: hallway; John to kitchen: kitchen; John drops; Mary takes; Mary to garden: garden\nAnswer: kitchen"
    )


def write_story(folder: Path) -> Babi:
    story = ["Mary went to the garden.", "Mary got the milk.", "Mary left the milk.", "Mary went to the office."]
    lines = [f"{number} {statement}" for number, statement in enumerate([*story, "Mary went to the kitchen."], 1)]
    (folder / "qa.txt").write_text("\n".join([*lines, "6 Where is the milk? \tgarden\t3 1"]), encoding="utf-8")
    return Babi(str(folder / "qa.txt"), statements_per_document=2)


def test_a_drop_asks_only_earlier_parts(tmp_path: Path) -> None:
    """A movement after the drop does not count."""
    source = write_story(tmp_path)
    (record,) = play(source, source.tasks(), Style.DELEGATE)
    assert record.answer == "garden"
    assert [(documents, reply) for _, documents, reply in objectives(record)] == [
        (("part 1",), "Mary got the milk."),
        (("part 2",), "Mary left the milk."),
        (("part 3",), "nothing"),
        (("part 1",), "garden"),
    ]
    assert record.root.turns[1].generation.text.startswith("Mary left the milk. Before part 2.\n")


def test_without_a_second_call_the_root_reads_or_gives_up(tmp_path: Path) -> None:
    source = write_story(tmp_path)
    limits = replace(LIMITS_OF_STYLE[Style.DELEGATE], max_clones=3)
    (record,) = play(source, source.tasks(), Style.DELEGATE, replace(limits, max_reads=3))
    assert (record.answer, len(record.agents)) == ("garden", 4)
    (record,) = play(source, source.tasks(), Style.DELEGATE, limits)
    assert (record.answer, len(record.agents)) == ("?", 4)


@pytest.mark.parametrize(
    "reply",
    [
        "Mary went to the garden. Mary got the milk.",  # all statements
        "Mary got the apple.",
        "Mary left the milk. John went to the garden.",
        "Mary got the milk. Mary went to the garden.",  # a clone quotes the room of a drop alone
        "Mary left the milk. It was late.",
        "",
    ],
)
def test_replies_of_another_form_are_not_concluded_from(tmp_path: Path, reply: str) -> None:
    @dataclass(frozen=True)
    class Clones(Babi):
        def propose(self, observation: Observation, rng: np.random.Generator, style: Style) -> Proposal:
            if observation.role is Role.CLONE:
                return Proposal(Answer(reply))
            return super().propose(observation, rng, style)

    source = write_story(tmp_path)
    (record,) = play(Clones(source.path, statements_per_document=2), source.tasks(), Style.DELEGATE)
    assert (record.answer, len(record.agents)) == ("?", 4)


def test_the_quoted_movement_is_before_the_dropping(tmp_path: Path) -> None:
    story = ["Mary went to the garden.", "Mary got the milk.", "Mary left the milk.", "Mary got the milk."]
    story += ["Mary went to the office.", "Mary left the milk.", "Mary went to the kitchen."]
    lines = [f"{number} {statement}" for number, statement in enumerate(story, 1)]
    (tmp_path / "qa.txt").write_text("\n".join([*lines, "8 Where is the milk? \toffice\t6 5"]), encoding="utf-8")
    source = Babi(str(tmp_path / "qa.txt"), statements_per_document=7)
    (record,) = play(source, source.tasks(), Style.DELEGATE)
    assert record.agents[1].reply == f"{story[5]} {story[4]}"
    (record,) = play(source, source.tasks(), Style.SOLVE)
    assert record.root.turns[-1].generation.text.endswith(f"\n{story[5]} {story[4]}\nAnswer: office")


@pytest.mark.parametrize("style", Style)
def test_the_expert_follows_things_through_any_story(tmp_path: Path, style: Style) -> None:
    """Against a simulation that moves people and things itself."""
    rng, people, things = np.random.default_rng(0), ("Mary", "John", "Daniel"), ("milk", "apple")
    rooms = ("kitchen", "garden", "office", "hallway")
    lines, asked = list[str](), 0

    def pick(items: Sequence[str]) -> str:
        return items[int(rng.integers(len(items)))]

    for _ in range(20):
        where = {person: pick(rooms) for person in people}
        been: dict[str, list[str]] = {thing: [] for thing in things}
        holder: dict[str, str | None] = dict.fromkeys(things)
        story = [f"{person} moved to the {room}." for person, room in where.items()]
        for _ in range(15):
            person, thing = pick(people), pick(things)
            lying = holder[thing] is None and (not been[thing] or been[thing][-1] == where[person])
            if holder[thing] == person and rng.random() < 0.5:
                holder[thing] = None
                story.append(f"{person} dropped the {thing}.")
            elif lying:
                holder[thing] = person
                been[thing] = been[thing] or [where[person]]
                story.append(f"{person} grabbed the {thing} there.")
            else:
                where[person] = pick([room for room in rooms if room != where[person]])
                story.append(f"{person} went back to the {where[person]}.")
                for held in things:
                    if holder[held] == person:
                        been[held].append(where[person])
        lines += [f"{number} {line}" for number, line in enumerate(story, 1)]
        questions = [(f"Is {person} in the {room}?", "yes" if where[person] == room else "no")
                     for person, room in zip(people, rooms, strict=False)]  # fmt: skip
        for thing, path in been.items():
            questions += [(f"Where is the {thing}?", path[-1])] if path else []
            last = {room: i for i, room in enumerate(path)}
            questions += [(f"Where was the {thing} before the {room}?", path[i - 1]) for room, i in last.items() if i]
        asked += len(questions)
        lines += [f"{len(story) + 1 + i} {text} \t{answer}\t1" for i, (text, answer) in enumerate(questions)]
    (tmp_path / "qa.txt").write_text("\n".join(lines), encoding="utf-8")
    source = Babi(str(tmp_path / "qa.txt"), statements_per_document=4)
    assert len(source) == asked > 150
    assert accuracy(play(source, source.tasks(), style)) == 1.0


# Samples of the official files


@pytest.mark.parametrize("style", Style)
@pytest.mark.parametrize(
    ("source", "name", "num_tasks", "num_decomposable"),
    [(Musique, "musique", 100, 99), (TwoWiki, "2wikimultihopqa", 64, 64)],
)
def test_samples(source: type[QuestionSource], name: str, num_tasks: int, num_decomposable: int, style: Style) -> None:
    everything, solvable = source(folder(name)), source(folder(name), decomposable_only=True)
    assert (len(everything), len(solvable)) == (num_tasks, num_decomposable)
    records = play(solvable, solvable.tasks(), style)
    assert accuracy(records) > 0.95
    # The rest is given up, never guessed.
    rest = [task for task in everything.tasks() if "plan_fault" in task.metadata]
    assert {record.answer for record in play(everything, rest, style)} <= {"?"}
    if style is not Style.SOLVE:
        protocol = HermesProtocol()
        assert all(support_overlap(record, protocol).exact == 1.0 for record in records)


def test_calls_on_samples() -> None:
    """Chains call once per hop; branches that do not depend on each other share a call."""
    musique, two_wiki = (
        source(folder(name), decomposable_only=True)
        for source, name in ((Musique, "musique"), (TwoWiki, "2wikimultihopqa"))
    )
    by_shape: dict[str, set[tuple[int, ...]]] = {}
    for record in play(musique, musique.tasks(), Style.DELEGATE):
        by_shape.setdefault(str(record.task.metadata["shape"]), set()).update(shapes([record]))
    assert by_shape == {
        "2hop": {(1, 1)},
        "3hop1": {(1, 1, 1)},
        "3hop2": {(2, 1)},
        "4hop1": {(1, 1, 1, 1)},
        "4hop3": {(2, 1, 1)},
    }
    kinds: dict[str, set[tuple[int, ...]]] = {}
    for record in play(two_wiki, two_wiki.tasks(), Style.DELEGATE):
        kinds.setdefault(str(record.task.metadata["type"]), set()).update(shapes([record]))
    chain, parallel = {(1, 1)}, {(2,)}
    assert kinds == {
        "compositional": chain,
        "inference": chain,
        "comparison": parallel,
        "bridge_comparison": {(2, 2)},
    }


@pytest.mark.parametrize(("source", "name"), [(Musique, "musique"), (TwoWiki, "2wikimultihopqa")])
def test_a_clone_with_another_paragraph_gives_up(source: type[QuestionSource], name: str) -> None:
    """Swap the texts of all documents: the keys lead to paragraphs in which nothing stands."""
    questions = source(folder(name), decomposable_only=True)
    swapped = []
    for task in questions.tasks():
        used = used_documents(play(questions, [task], Style.DELEGATE)[0], HermesProtocol())
        swapped.append(replace(task, context={k: "Nothing." if k in used else v for k, v in task.context.items()}))
    for record in play(questions, swapped, Style.DELEGATE):
        assert record.answer == "?"
        assert all(agent.reply == "?" for agent in record.agents)


def test_long_contexts_of_samples() -> None:
    long = Distractors(Musique(folder("musique"), decomposable_only=True, limit=20), 100, Musique(folder("musique")))
    tasks = long.tasks()
    assert {len(task.context) for task in tasks} == {120}
    delegated, solved = play(long, tasks, Style.DELEGATE), play(long, tasks, Style.SOLVE)
    assert accuracy(delegated) == accuracy(solved) == 1.0
    # Delegating by key looks at the supporting paragraphs alone; the monolithic variant pays for all of them.
    assert sum(r.cost.total_tokens for r in solved) > 5 * sum(r.cost.total_tokens for r in delegated)


def test_hotpotqa_samples() -> None:
    hotpot = HotpotQA(folder("hotpotqa"))
    solvable = [task for task in hotpot.tasks() if "plan" in task.metadata]
    assert (len(hotpot), len(solvable)) == (100, 91)
    assert {task.answer for task in hotpot.tasks() if "plan" not in task.metadata} == {"yes", "no"}
    assert accuracy(play(hotpot, solvable, Style.DELEGATE)) == 1.0


@pytest.mark.parametrize("file", ["qa1_single-supporting-fact_test.txt", "qa2_two-supporting-facts_test.txt"])
def test_stories_of_samples(file: str) -> None:
    stories = Babi(folder(f"babi/tasks_1-20_v1-2/en/{file}"), limit=100)
    for source in (stories, Babilong(stories, Musique(folder("musique"), limit=5), 60, 10)):
        for style in Style:
            records = play(source, source.tasks(), style)
            assert accuracy(records) == 1.0
    if file.startswith("qa2"):
        return
    first = stories.tasks()[0]
    assert (first.prompt, first.answer) == ("Where is John?", "hallway")
    assert json.dumps(dict(first.context)) == (
        '{"part 1": "John travelled to the hallway. Mary journeyed to the bathroom."}'
    )
