"""Questions over documents in the official formats: records invented here, and the samples where they are."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selfcest_env.errors import ConfigError, DataError, TaskError
from selfcest_env.tasks import ExpertSource, make_source
from selfcest_env.tasks.babi import Babi
from selfcest_env.tasks.comparison import Comparison, read_point
from selfcest_env.tasks.contamination import find_shared_questions
from selfcest_env.tasks.finite import FiniteSource
from selfcest_env.tasks.hotpotqa import HotpotQA
from selfcest_env.tasks.long_context import Babilong, Distractors, split_sentences
from selfcest_env.tasks.musique import Musique
from selfcest_env.tasks.plan import PlanStep, QuestionPlan, appears_in
from selfcest_env.tasks.qa import UserQuestions, make_unique_keys
from selfcest_env.tasks.support import gold_support, says_support
from selfcest_env.tasks.two_wiki import TwoWiki
from selfcest_env.types import Task

HOTPOT: dict[str, Any] = {
    "_id": "5a77",
    "question": "Which came first, the Alpha Post or the Beta Post?",
    "answer": "Beta Post",
    "supporting_facts": [["Alpha Post", 0], ["Beta Post", 1]],
    "context": [
        ["Gamma", ["Gamma is a letter.", " It is Greek."]],
        ["Alpha Post", ["Alpha Post began in 1901."]],
        ["Beta Post", ["Beta Post is a paper.", " It began in 1899."]],
    ],
    "type": "comparison",
    "level": "hard",
}
HUB_LAYOUT = {
    **{key: HOTPOT[key] for key in ("question", "answer", "type", "level")},
    "id": "5a77",
    "supporting_facts": {"title": ["Alpha Post", "Beta Post"], "sent_id": [0, 1]},
    "context": {
        "title": [title for title, _ in HOTPOT["context"]],
        "sentences": [sentences for _, sentences in HOTPOT["context"]],
    },
}
MUSIQUE: dict[str, Any] = {
    "id": "3hop2__1_2_3",
    "paragraphs": [
        {"idx": 0, "title": "Anna Ahl", "paragraph_text": "Anna Ahl was born in Ulm.", "is_supporting": True},
        {"idx": 1, "title": "Ulm", "paragraph_text": "Ulm is a city.", "is_supporting": False},
        {"idx": 2, "title": "Ulm", "paragraph_text": "Ulm and Bonn share the Rhine Prize.", "is_supporting": True},
        {"idx": 3, "title": "Bert Bo", "paragraph_text": "Bert Bo, a painter, lives in Bonn.", "is_supporting": True},
    ],
    "question": "What do the birthplace of Anna Ahl and the home of Bert Bo share?",
    "question_decomposition": [
        {"id": 1, "question": "Anna Ahl >> place of birth", "answer": "Ulm", "paragraph_support_idx": 0},
        {"id": 2, "question": "Where does Bert Bo live?", "answer": "Bonn", "paragraph_support_idx": 3},
        {"id": 3, "question": "What do #1 and #2 share?", "answer": "Rhine Prize", "paragraph_support_idx": 2},
    ],
    "answer": "Rhine Prize",
    "answer_aliases": ["the Prize"],
    "answerable": True,
}


def two_wiki(
    kind: str, question: str, answer: str, evidences: list[list[str]], context: dict[str, str], **more: Any
) -> dict:
    return {
        "_id": "470e",
        "type": kind,
        "question": question,
        "context": [[title, text.split("|")] for title, text in context.items()],
        "entity_ids": "Q1_Q2",
        "supporting_facts": [[title, 0] for title in context if title != "Other"],
        "evidences": evidences,
        "answer": answer,
        **more,
    }  # fmt: skip


FILMS = {
    "First Blood (1999 film)": "First Blood is by Ann Lee.|It is long.",
    "Other": "Nothing here.",
    "Later": "Later is by Bo Ek.",
    "Ann Lee": "Ann Lee (born 3 May 1960) is Swedish.",
    "Bo Ek": "Bo Ek was born on July 9, 1960. He is Swedish and Danish.",
}
DIRECTORS = [["First Blood", "director", "Ann Lee"], ["Later", "director", "Bo Ek"]]
BORN = [["Ann Lee", "date of birth", "3 May 1960"], ["Bo Ek", "date of birth", "July 9, 1960"]]


def write(path: Path, data: object, lines: bool = False) -> str:
    items = data if isinstance(data, list) else [data]
    path.write_text("\n".join(map(json.dumps, items)) if lines else json.dumps(items), encoding="utf-8")
    return str(path)


def only(source: FiniteSource) -> Task:
    (task,) = source.tasks()
    return task


def plan_of(task: Task) -> QuestionPlan:
    return QuestionPlan.read(str(task.metadata["plan"]))


# Keys


def test_keys_are_unique() -> None:
    assert make_unique_keys(["A", "B", "A", "A (2)", "A", " ", ""]) == (
        "A", "B", "A (2)", "A (2) (2)", "A (3)", "untitled", "untitled (2)",
    )  # fmt: skip


# HotpotQA


def test_hotpotqa_in_both_layouts(tmp_path: Path) -> None:
    official = only(HotpotQA(write(tmp_path / "a.json", HOTPOT)))
    hub = only(HotpotQA(write(tmp_path / "b.jsonl", HUB_LAYOUT, lines=True)))
    for task in (official, hub):
        assert (task.prompt, task.answer, task.source) == (HOTPOT["question"], "Beta Post", "hotpotqa")
        assert dict(task.context) == {
            "Gamma": "Gamma is a letter. It is Greek.",
            "Alpha Post": "Alpha Post began in 1901.",
            "Beta Post": "Beta Post is a paper. It began in 1899.",
        }
        assert gold_support(task) == {"Alpha Post", "Beta Post"}
        assert {key: task.metadata[key] for key in ("id", "type", "level", "qa_rule", "documents")} == {
            "id": "5a77", "type": "comparison", "level": "hard", "qa_rule": "hotpotqa", "documents": 3,
        }  # fmt: skip
        assert plan_of(task).steps == (PlanStep(task.prompt, ("Alpha Post", "Beta Post"), ("Beta Post",)),)
    assert official.task_id == hub.task_id


def test_yes_and_no_stand_nowhere(tmp_path: Path) -> None:
    source = HotpotQA(write(tmp_path / "a.json", {**HOTPOT, "answer": "no"}))
    assert only(source).metadata["plan_fault"] == "a step's answer does not stand in its document"
    with pytest.raises(TaskError, match="no task in"):
        HotpotQA(source.path, decomposable_only=True).tasks()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"answer": None}, "answer is None; expected a string"),
        ({"_id": None}, "_id is None; expected a string (id in the hub's layout)"),
        (
            {"context": [["A", "text"]]},
            "context is [['A', 'text']]; expected a list of [title, [sentence, ...]], or the",
        ),
        ({"context": {"title": ["A"], "sentences": []}}, "context is {'title': ['A'], 'sentences': []}; expected"),
        ({"context": [["A", [1]]]}, "context is [['A', [1]]]; expected"),
        (
            {"supporting_facts": [["Alpha Post", True]]},
            "supporting_facts is [['Alpha Post', True]]; expected a list of",
        ),
        ({"supporting_facts": [["Delta", 0]]}, "supporting_facts[0] names 'Delta', which is no title of the context"),
        (
            {"supporting_facts": [["Gamma", 1], ["Beta Post", 2]]},
            "supporting_facts[1] is sentence 2 of 'Beta Post'; expected 0 to 1",
        ),
        ({"supporting_facts": [["Gamma", -1]]}, "supporting_facts[0] is sentence -1 of 'Gamma'; expected 0 to 1"),
        ({"_id": "5a77"}, "id is '5a77', as in "),
        ({"supporting_facts": [["A"]]}, "supporting_facts is [['A']]; expected a list of [title, sentence number]"),
    ],
)
def test_hotpotqa_errors_name_file_record_and_key(tmp_path: Path, change: dict, said: str) -> None:
    path = write(tmp_path / "hotpot.json", [HOTPOT, {**HOTPOT, "_id": "other", **change}])
    with pytest.raises(DataError) as caught:
        HotpotQA(path).tasks()
    assert f"{path}:1, record 2: {said}" in str(caught.value)


@pytest.mark.parametrize(
    ("source", "record", "said"),
    [
        (HotpotQA, MUSIQUE, "record 1: context is missing; expected a list of [title, [sentence, ...]]"),
        (Musique, HOTPOT, "record 1: paragraphs is missing; expected a list. Keys found: _id, question"),
        (TwoWiki, HOTPOT, "record 1: evidences is missing; expected a list."),
        (UserQuestions, {"prompt": "?", "answer": "x"}, "record 1: question is missing; expected a string. Keys found"),
    ],
)
def test_another_layout_is_refused(tmp_path: Path, source: Any, record: dict, said: str) -> None:
    with pytest.raises(DataError) as caught:
        source(write(tmp_path / "x.json", record)).tasks()
    assert said in str(caught.value)


# MuSiQue


def test_musique(tmp_path: Path) -> None:
    unanswerable = {**MUSIQUE, "id": "u", "answerable": False}
    source = Musique(write(tmp_path / "m.jsonl", [unanswerable, MUSIQUE], lines=True))
    with pytest.warns(
        UserWarning, match=r"musique: left out 1 records of .*: not answerable \(.*m\.jsonl:1, record 1\)"
    ):
        task = only(source)
    assert (task.answer, task.aliases) == ("Rhine Prize", ("the Prize",))
    assert list(task.context) == ["Anna Ahl", "Ulm", "Ulm (2)", "Bert Bo"]
    assert gold_support(task) == {"Anna Ahl", "Ulm (2)", "Bert Bo"}
    plan = plan_of(task)
    assert [step.keys for step in plan.steps] == [("Anna Ahl",), ("Bert Bo",), ("Ulm (2)",)]
    assert plan.ready({}) == (0, 1)
    assert plan.ready({0: "Ulm", 1: "Bonn"}) == (2,)
    assert plan.steps[2].ask(2, {0: "Ulm", 1: "Bonn"}) == "What do Ulm and Bonn share?"
    assert {key: task.metadata[key] for key in ("id", "shape", "hops", "size", "record")} == {
        "id": "3hop2__1_2_3", "shape": "3hop2", "hops": 3, "size": 3, "record": 2,
    }  # fmt: skip


def test_musique_points_to_a_paragraph(tmp_path: Path) -> None:
    hops = [{**MUSIQUE["question_decomposition"][0], "paragraph_support_idx": None}]
    path = write(tmp_path / "m.jsonl", {**MUSIQUE, "question_decomposition": hops}, lines=True)
    with pytest.raises(
        DataError, match=r"record 1: question_decomposition\[0\].paragraph_support_idx is None; expected"
    ):
        Musique(path).tasks()


def test_a_paragraph_has_a_number_of_its_own(tmp_path: Path) -> None:
    paragraphs = [{**paragraph, "idx": 0} for paragraph in MUSIQUE["paragraphs"]]
    path = write(tmp_path / "m.jsonl", {**MUSIQUE, "paragraphs": paragraphs}, lines=True)
    with pytest.raises(DataError, match=r"paragraphs\[1\].idx is 0; expected a number that no other paragraph has"):
        Musique(path).tasks()


def test_a_step_whose_answer_stands_elsewhere_is_no_plan(tmp_path: Path) -> None:
    hops = [dict(hop) for hop in MUSIQUE["question_decomposition"]]
    hops[1]["paragraph_support_idx"] = 0
    task = only(Musique(write(tmp_path / "m.jsonl", {**MUSIQUE, "question_decomposition": hops}, lines=True)))
    assert task.metadata["plan_fault"] == "a step's answer does not stand in its document"
    assert "plan" not in task.metadata


def test_a_number_sign_that_names_no_earlier_step_is_text() -> None:
    assert PlanStep("Who had a #1 hit?", ("A",), ("x",)).links(0) == frozenset()
    assert PlanStep("Who had a #1 hit?", ("A",), ("x",)).ask(0, {}) == "Who had a #1 hit?"
    assert PlanStep("#1 and #3 of #12", ("A",), ("x",)).ask(1, {0: "Ulm"}) == "Ulm and #3 of #12"


def test_an_answer_stands_in_a_text_by_its_words() -> None:
    assert appears_in("Schleswig-Holstein", "of Schleswig- Holstein.")
    assert appears_in("35", "has 35 stores")
    assert not appears_in("35", "in 1935")
    assert not appears_in("America", "an American actor")
    assert not appears_in("?", "?")


# 2WikiMultihopQA


@pytest.mark.parametrize(
    ("kind", "question", "answer", "evidences", "asked"),
    [
        (
            "compositional", "When was the director of First Blood born?", "3 May 1960", [DIRECTORS[0], BORN[0]],
            ["What is the director of First Blood?", "What is the date of birth of Ann Lee?"],
        ),
        (
            "bridge_comparison", "Which film has the director born first, First Blood (1999 Film) or Later?",
            "First Blood (1999 Film)", DIRECTORS + BORN,
            ["What is the director of First Blood?", "What is the director of Later?",
             "What is the date of birth of Ann Lee?", "What is the date of birth of Bo Ek?"],
        ),
        (
            "bridge_comparison", "Which film whose director is younger, First Blood (1999 Film) or Later?", "Later",
            DIRECTORS + BORN, None,
        ),
        (
            "bridge_comparison", "Do First Blood (1999 Film) and Later have directors of the same nationality?", "yes",
            [*DIRECTORS, ["Ann Lee", "nationality", "Swedish"], ["Bo Ek", "nationality", "Danish"],
             ["Bo Ek", "nationality", "Swedish"]], None,
        ),
        ("comparison", "Who was born earlier, Ann Lee or Bo Ek?", "Ann Lee", BORN, None),
    ],
)  # fmt: skip
def test_two_wiki_plans(
    tmp_path: Path, kind: str, question: str, answer: str, evidences: list, asked: list | None
) -> None:
    things = {"comparison": ["Ann Lee", "Bo Ek"], "compositional": ["Other", "First Blood (1999 film)", "Ann Lee"]}
    context = {key: FILMS[key] for key in things.get(kind, FILMS)}
    task = only(TwoWiki(write(tmp_path / "w.json", two_wiki(kind, question, answer, evidences, context))))
    assert "plan_fault" not in task.metadata
    plan = plan_of(task)
    gold = plan.gold()
    conclusion = plan.conclude(gold)
    assert conclusion is not None
    assert conclusion.lower() == answer.lower()
    if asked is not None:
        assert [step.ask(i, gold) for i, step in enumerate(plan.steps)] == asked
    if kind == "bridge_comparison":
        assert task.context["First Blood (1999 film)"] == "First Blood is by Ann Lee. It is long."
        assert plan.ready({}) == (0, 1)
        assert plan.ready({0: "Ann Lee", 1: "Bo Ek"}) == (2, 3)


def test_two_films_by_one_director(tmp_path: Path) -> None:
    evidences = [DIRECTORS[0], ["Later", "director", "Ann Lee"], ["Ann Lee", "nationality", "Swedish"]]
    context = {**FILMS, "Later": "Later is by Ann Lee, too."}
    del context["Bo Ek"]
    question = "Are the directors of First Blood (1999 Film) and Later both from the same country?"
    record = two_wiki("bridge_comparison", question, "yes", evidences, context)
    plan = plan_of(only(TwoWiki(write(tmp_path / "w.json", record))))
    assert plan.comparison == Comparison("same", ("First Blood (1999 film)", "Later"), ((2,), (2,)))


def test_who_lived_longer(tmp_path: Path) -> None:
    context = {"Al": "Al (1 May 1900 - 2 June 1950)", "Bo": "Bo (1920 - 1 January 1980)"}
    evidences = [["Al", "date of birth", "1 May 1900"], ["Al", "date of death", "2 June 1950"],
                 ["Bo", "date of birth", "1920"], ["Bo", "date of death", "1 January 1980"]]  # fmt: skip
    record = two_wiki("comparison", "Who lived longer, Al or Bo?", "Bo", evidences, context)
    plan = plan_of(only(TwoWiki(write(tmp_path / "w.json", record))))
    assert plan.comparison == Comparison("longest", ("Al", "Bo"), ((0, 1), (2, 3)))


@pytest.mark.parametrize(
    ("question", "answer", "kind"),
    [
        ("Which film has more directors, First Blood (1999 Film) or Later?", "First Blood (1999 Film)", "most"),
        ("Which film had the most directors: Later or First Blood (1999 Film)?", "First Blood (1999 Film)", "most"),
        ("Which film has fewer directors, First Blood (1999 Film) or Later?", "Later", "fewest"),
    ],
)
def test_which_film_has_more_directors(tmp_path: Path, question: str, answer: str, kind: str) -> None:
    context = {**FILMS, "First Blood (1999 film)": "First Blood is by Ann Lee and Cy Oh."}
    evidences = [DIRECTORS[0], ["First Blood", "director", "Cy Oh"], DIRECTORS[1]]
    del context["Ann Lee"], context["Bo Ek"]
    plan = plan_of(
        only(TwoWiki(write(tmp_path / "w.json", two_wiki("comparison", question, answer, evidences, context))))
    )
    assert plan.comparison == Comparison(kind, ("First Blood (1999 film)", "Later"), ((0,), (1,)))
    assert (plan.conclude(plan.gold()) or "").lower() == answer.lower()
    # As many on both sides is no answer, and a director told twice is one.
    assert plan.conclude({0: "Ann Lee", 1: "Bo Ek"}) is None
    assert plan.conclude({0: "Ann Lee; ann lee ", 1: "Bo Ek; Cy Oh"}) != plan.conclude(plan.gold())


def test_evidence_that_contradicts_the_answer_is_no_plan(tmp_path: Path) -> None:
    context = {key: FILMS[key] for key in ("Ann Lee", "Bo Ek")}
    record = two_wiki("comparison", "Who was born earlier, Ann Lee or Bo Ek?", "Bo Ek", BORN, context)
    task = only(TwoWiki(write(tmp_path / "w.json", record)))
    assert task.metadata["plan_fault"] == "the answers of the steps do not lead to the answer"


def test_two_wiki_aliases(tmp_path: Path) -> None:
    rows = [{"Q_id": "Q7", "aliases": ["3/5/60"], "demonyms": ["x"]}, {"Q_id": "Q8", "aliases": [], "demonyms": []}]
    table = write(tmp_path / "id_aliases.json", rows, lines=True)
    context = {key: FILMS[key] for key in ("First Blood (1999 film)", "Ann Lee")}
    for answer_id, aliases in (("Q7", ("3/5/60", "x")), ("Q8", ()), ("Q9", ()), (None, ())):
        record = two_wiki(
            "compositional", "When?", "3 May 1960", [DIRECTORS[0], BORN[0]], context, answer_id=answer_id
        )  # fmt: skip
        assert only(TwoWiki(write(tmp_path / "w.json", record), aliases=table)).aliases == aliases


@pytest.mark.parametrize(
    ("text", "point"),
    [
        ("27 October 1964", (1964, 10, 27)), ("July 23, 1968", (1968, 7, 23)), ("March 1950", (1950, 3)),
        ("9" * 5000, None), ("c. 1127", (1127,)), ("1,204 people", (1204,)),
        ("44 BC", (-44,)), ("unknown", None), ("", None),
    ],
)  # fmt: skip
def test_points(text: str, point: tuple[int, ...] | None) -> None:
    assert read_point(text) == point


def test_what_cannot_be_told_apart_is_not_decided() -> None:
    earliest = Comparison("earliest", ("A", "B"), ((0,), (1,)))
    assert earliest.decide({0: "1960", 1: "3 May 1960"}) is None
    assert earliest.decide({0: "1960", 1: "unknown"}) is None
    assert earliest.decide({0: "2 May 1960", 1: "3 May 1960"}) == "A"
    assert Comparison("same", ("A", "B"), ((0,), (1,))).decide({0: "French; Thai", 1: "thai"}) == "yes"
    assert Comparison("same", ("A", "B"), ((0,), (1,))).decide({0: "French", 1: "Thai"}) == "no"


# A user's own questions


def test_user_questions(tmp_path: Path) -> None:
    rows = [
        {"question": "Who?", "answer": ["Al", "Al Bo"], "documents": {"x": "It was Al."}, "support": ["x"], "id": "1"},
        {"question": "What?", "answer": "it", "documents": [{"title": "T", "text": "1"}, {"title": "T", "text": "2"}]},
        {"question": "Where?", "answer": "here", "documents": ["one", "two"]},
        {"question": "1 + 1?", "answer": "2"},
    ]
    tasks = UserQuestions(write(tmp_path / "own.jsonl", rows, lines=True)).tasks()
    assert [dict(task.context) for task in tasks] == [
        {"x": "It was Al."}, {"T": "1", "T (2)": "2"}, {"document 1": "one", "document 2": "two"}, {},
    ]  # fmt: skip
    assert (tasks[0].answer, tasks[0].aliases, tasks[0].metadata["id"]) == ("Al", ("Al Bo",), "1")
    assert ["plan" in task.metadata for task in tasks] == [True, False, False, False]
    assert [says_support(task) for task in tasks] == [True, False, False, False]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"answer": 5}, "answer is 5; expected a string, or a list of strings that all count as right"),
        ({"answer": []}, "answer is []; expected"),
        ({"answer": ["a", 5]}, "answer is ['a', 5]; expected a list of strings"),
        ({"documents": {"x": 1}}, "documents.x is 1; expected a string"),
        ({"documents": [{"title": "T"}]}, "documents[0].text is missing"),
        ({"answer": " "}, "answer is ' '; expected a text that is not empty"),
        ({"answer": ["Ulm", ""]}, "one of its right answers is empty; remove it"),
        ({"question": ""}, "question is ''; expected a text that is not empty"),
        ({"documents": "text"}, "documents is 'text'; expected a list"),
        ({"documents": {"x": "1"}, "support": ["y"]}, "support is ['y']; expected keys of its documents, which are x"),
    ],
)
def test_user_questions_errors(tmp_path: Path, change: dict, said: str) -> None:
    with pytest.raises(DataError) as caught:
        UserQuestions(write(tmp_path / "own.json", {"question": "q", "answer": "a", **change})).tasks()
    assert f"own.json:1, record 1: {said}" in str(caught.value)


@pytest.mark.parametrize("record", [HOTPOT, MUSIQUE, {"question": "q", "answer": "a", "context": "Texts."}])
def test_another_data_set_does_not_load_without_its_texts(tmp_path: Path, record: dict) -> None:
    said = (
        r"own\.json:1, record 1: (context|paragraphs) is not read, and there are no 'documents'; give texts under that"
    )
    with pytest.raises(DataError, match=said):
        UserQuestions(write(tmp_path / "own.json", record)).tasks()


def test_keys_that_are_not_read_are_named_once(tmp_path: Path) -> None:
    row = {"question": "q", "answer": "a", "documents": {"x": "a"}, "suport": ["x"], "context": "c"}
    source = UserQuestions(write(tmp_path / "own.jsonl", [row, {**row, "level": 3}], lines=True))
    with pytest.warns(UserWarning, match="questions: .* is not read") as caught:
        assert len(source) == 2
    said = sorted(str(warning.message) for warning in caught)
    expected = "Expected question, answer, documents, support, id"
    places = [f"own.jsonl:{line}, record {line}: {key}" for key, line in (("context", 1), ("suport", 1), ("level", 2))]
    assert len(said) == 3
    assert all(any(f"{place} is not read." in text for text in said) for place in places)
    assert all(text.endswith(expected) for text in said)
    assert any("Did you mean 'support'?" in text for text in said)


def test_a_file_without_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"questions: no task in .*own\.json "):
        UserQuestions(write(tmp_path / "own.json", [])).tasks()


# bAbI and long contexts

STORY = (
    "1 Mary moved to the bathroom.\n2 John went to the hallway.\n3 Where is Mary? \tbathroom\t1\n"
    "4 Mary went back to the garden.\n5 Where is Mary? \tgarden\t4\n"
    "1 Mary went to the kitchen.\n2 Where is Mary?\tkitchen\t1\n"
)


def babi(tmp_path: Path, **knobs: Any) -> Babi:
    (tmp_path / "qa1.txt").write_text(STORY, encoding="utf-8")
    return Babi(str(tmp_path / "qa1.txt"), **knobs)


def test_babi(tmp_path: Path) -> None:
    tasks = babi(tmp_path, statements_per_document=2).tasks()
    assert [(task.prompt, task.answer, task.metadata["record"]) for task in tasks] == [
        ("Where is Mary?", "bathroom", 3), ("Where is Mary?", "garden", 5), ("Where is Mary?", "kitchen", 7),
    ]  # fmt: skip
    assert dict(tasks[1].context) == {
        "part 1": "Mary moved to the bathroom. John went to the hallway.",
        "part 2": "Mary went back to the garden.",
    }
    assert dict(tasks[2].context) == {"part 1": "Mary went to the kitchen."}
    assert [json.loads(str(task.metadata["facts"])) for task in tasks] == [[0], [2], [0]]
    assert [gold_support(task) for task in tasks] == [{"part 1"}, {"part 2"}, {"part 1"}]
    source = babi(tmp_path)
    assert len({source.identity(task) for task in source.tasks()}) == 3


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("Mary went home.", "expected a number, a space and a text"),
        ("2 Where? \thall", "expected question, answer and ids"),
        ("2 Where? \thall\t1 3", "supporting fact '3' is no statement before the question"),
        ("2 Where? \thall\t2", "supporting fact '2' is no statement before the question"),
        ("2 Where? \thall\t" + "7" * 5000, "supporting fact '77777777777777777777' is no statement"),
        ("2 Mary went home.\n2 Mary went out.", "a statement of this story has that number"),
    ],
)
def test_babi_errors(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "qa1.txt").write_text(f"1 Mary moved to the hall.\n{line}\n", encoding="utf-8")
    with pytest.raises(DataError) as caught:
        Babi(str(tmp_path / "qa1.txt")).tasks()
    assert f"qa1.txt, line {line.count(chr(10)) + 2}: " in str(caught.value)
    assert said in str(caught.value)


def test_babilong(tmp_path: Path) -> None:
    filler = Musique(write(tmp_path / "m.jsonl", MUSIQUE, lines=True))
    stories = babi(tmp_path)
    source = Babilong(stories, filler, sentences=25, sentences_per_document=10)
    for task, story in zip(source.tasks(), stories.tasks(), strict=True):
        sentences = split_sentences(" ".join(task.context.values()))
        statements = split_sentences(" ".join(story.context.values()))
        assert len(sentences) == 25 + len(statements)
        assert [sentence for sentence in sentences if sentence in statements] == statements
        assert len(task.context) == 3
        assert (task.source, task.metadata["base"], task.answer) == ("babilong", "babi", story.answer)
        facts, told = (json.loads(str(of.metadata["facts"])) for of in (task, story))
        assert [sentences[fact] for fact in facts] == [statements[fact] for fact in told]
        assert gold_support(task) == {f"part {fact // 10 + 1}" for fact in facts}
    assert source.tasks() == source.tasks()
    assert [task.context for task in Babilong(stories, filler, 25, 10, seed=1).tasks()] != [
        task.context for task in source.tasks()
    ]
    assert len(find_shared_questions(source, stories)) == 3


def test_filler_names_nobody_of_the_story(tmp_path: Path) -> None:
    """Neither who is asked about, nor who may have had the thing."""
    (tmp_path / "qa2.txt").write_text(
        "1 John got the football there.\n2 Mary went to the garden.\n3 Where is the football? \tattic\t1\n"
    )
    text = "John went to the kitchen. Johnny left. It was Mary's. Ann went to the office. The Maryland clock is old."
    filler = UserQuestions(write(tmp_path / "f.json", {"question": "?", "answer": "x", "documents": [text]}))
    (task,) = Babilong(Babi(str(tmp_path / "qa2.txt")), filler, sentences=6, sentences_per_document=20).tasks()
    assert sorted(split_sentences(task.context["part 1"])) == sorted(
        ["John got the football there.", "Mary went to the garden."]
        + 2 * ["Johnny left.", "Ann went to the office.", "The Maryland clock is old."]
    )
    only_john = UserQuestions(write(tmp_path / "g.json", {"question": "?", "answer": "x", "documents": ["John ran."]}))
    with pytest.raises(TaskError, match="babilong: every sentence of the filler names one of John, Mary"):
        Babilong(Babi(str(tmp_path / "qa2.txt")), only_john).tasks()


def donors(tmp_path: Path, count: int = 30) -> UserQuestions:
    documents = [{"title": f"T{i}", "text": f"Text {i}."} for i in range(count)]
    documents += [{"title": "ULM", "text": "Same title."}, {"title": "P", "text": "The Rhine Prize is old."}]
    return UserQuestions(write(tmp_path / "d.json", {"question": "?", "answer": "x", "documents": documents}))


def test_a_number_that_belongs_to_a_title_stays(tmp_path: Path) -> None:
    """`Siege of Cassel (1761)` lost its year, and was the same title as one of another year."""
    titles = ("Siege (1761)", "Siege (1762)", "Siege", "Ulm")
    documents = [{"title": title, "text": f"About {title}."} for title in titles]
    given = UserQuestions(write(tmp_path / "d.json", {"question": "?", "answer": "x", "documents": documents}))
    base = UserQuestions(write(tmp_path / "q.json", {"question": "Who?", "answer": "Bo", "documents": []}))
    assert set(only(Distractors(base, 4, given)).context) == set(titles)


def test_distractors(tmp_path: Path) -> None:
    base = Musique(write(tmp_path / "m.jsonl", MUSIQUE, lines=True))
    source = Distractors(base, 20, donors(tmp_path))
    task = only(source)
    assert len(task.context) == 24
    original = only(base)
    assert {key: task.context[key] for key in original.context} == dict(original.context)
    assert list(task.context)[:4] != list(original.context)
    # Neither a paragraph with a title that is there, nor one with the answer.
    added = set(task.context) - set(original.context)
    assert added < {f"T{i}" for i in range(30)}
    assert (task.metadata["plan"], task.metadata["added"]) == (original.metadata["plan"], 20)
    draws = [source.draw(np.random.default_rng(seed)) for seed in (0, 0, 1)]
    assert draws[0] == draws[1]
    assert draws[0].task_id != draws[2].task_id
    assert len(find_shared_questions(source, base)) == 1
    with pytest.raises(TaskError, match=r"distractors: found 30 of 31 paragraphs for 'What do the birthplace"):
        Distractors(base, 31, donors(tmp_path)).tasks()


def test_sources_by_name(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", MUSIQUE, lines=True)
    source = make_source("distractors", source={"name": "musique", "path": path}, paragraphs=2,
                         donors={"name": "questions", "path": donors(tmp_path).path})  # fmt: skip
    assert isinstance(source, ExpertSource)
    assert isinstance(source, FiniteSource)
    assert source.draw(np.random.default_rng(0)).source == "distractors"
    long = make_source(
        "babilong", source={"name": "babi", "path": babi(tmp_path).path}, filler={"name": "musique", "path": path}
    )
    assert long.draw(np.random.default_rng(0)).source == "babilong"
    with pytest.raises(ConfigError, match="distractors"):
        make_source("distractors", source={"name": "range_sum"})
    with pytest.raises(ConfigError, match="distractors.donors is a RangeSum; expected a source that reads"):
        make_source("distractors", source={"name": "musique", "path": path}, donors={"name": "range_sum"})
    for name in ("hotpotqa", "two_wiki"):
        assert isinstance(make_source(name, path="not there yet.json", part="test"), ExpertSource)


# Samples of the official files


def folder(name: str) -> Path:
    if "SELFCEST_DATA" not in os.environ:
        pytest.skip("SELFCEST_DATA names no folder with samples of the data sets")
    return Path(os.environ["SELFCEST_DATA"]) / name


def test_samples_load() -> None:
    counts = {
        source.name: len(source(str(folder(name))))
        for source, name in ((HotpotQA, "hotpotqa"), (TwoWiki, "2wikimultihopqa"), (Musique, "musique"))
    }
    assert counts == {"hotpotqa": 100, "two_wiki": 64, "musique": 100}
    stories = folder("babi") / "tasks_1-20_v1-2" / "en"
    for file in sorted(stories.iterdir()):
        assert len(Babi(str(file))) == 1000


def test_keys_of_samples_are_unique() -> None:
    tasks = Musique(str(folder("musique"))).tasks()
    assert {len(task.context) for task in tasks} == {20}
    assert sum(any(key.endswith(" (2)") for key in task.context) for task in tasks) == 37
    assert {len(task.context) for task in TwoWiki(str(folder("2wikimultihopqa"))).tasks()} == {10}
    assert all(gold_support(task) <= task.context.keys() for task in tasks)


def test_samples_share_no_question() -> None:
    sources = [
        HotpotQA(str(folder("hotpotqa"))),
        TwoWiki(str(folder("2wikimultihopqa"))),
        Musique(str(folder("musique"))),
    ]
    counts = [len(find_shared_questions(left, right)) for left in sources for right in sources]
    assert counts == [
        100,
        0,
        0,
        0,
        64,
        0,
        0,
        0,
        100,
    ]
