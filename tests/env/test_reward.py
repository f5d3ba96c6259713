"""Graders, terms and presets by hand, and loud failures."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from selfcest_env.errors import ConfigError, PlugInError, RewardError
from selfcest_env.graders import AnswerPart, ExactInteger, ExactMatch, Grade
from selfcest_env.graders.paper import PaperArithmetic, PaperMultihop
from selfcest_env.kernel import Kernel
from selfcest_env.record import EpisodeRecord, Generation, build_record, from_json, to_json
from selfcest_env.reward import (
    PRESETS,
    Correct,
    PaperCallPenalty,
    PaperMathPenalty,
    PaperTokenPenalty,
    Reward,
    Score,
    make_reward,
)
from selfcest_env.rules import Rules
from selfcest_env.text.counters import WordCounter
from selfcest_env.text.terse import TerseProtocol
from selfcest_env.types import Limits, Role, Task, Usage

TASK = Task("t", "1+1", "7", "arithmetic", aliases=("seven ",))


def episode(
    answer: str = "<ans>7<end>", root_tokens: int = 10, clones: tuple[int, ...] = (), malformed: int = 0
) -> EpisodeRecord:
    """A root that errs, then calls, then answers; every turn of the root costs `root_tokens`."""
    limits = Limits(total_tokens=None, turn_tokens=50_000)
    kernel = Kernel(TASK, Rules(limits, TerseProtocol(), WordCounter()))
    generations: dict[Any, Generation] = {}
    texts = (
        ["junk"] * malformed + (["<call>" + "<sep>".join("1" * len(clones)) + "</call>"] if clones else []) + [answer]
    )
    while not kernel.done:
        agent = kernel.ready()[0]
        turn = len(kernel.agents[agent].turns)
        text, tokens = (texts[turn], root_tokens) if agent.depth == 0 else ("<ans>1<end>", clones[agent.path[0]])
        generations[agent, turn] = Generation(text)
        kernel.step(agent, TerseProtocol().parse(text), Usage(tokens), text)
    return build_record(kernel, generations, episode_id="e3", seed=0)


@pytest.mark.parametrize(
    ("answer", "score", "well_formed"),
    [("7", 1, True), (" 7\n", 1, True), ("seven", 1, True), ("8", 0, True), ("", 0, False), (None, 0, False)],
)
def test_exact_match(answer: str | None, score: float, well_formed: bool) -> None:
    assert ExactMatch().grade(TASK, answer) == Grade(score, score == 1, well_formed)


@pytest.mark.parametrize(
    ("answer", "score", "well_formed"),
    [
        ("007", 1, True),
        ("+7 ", 1, True),
        ("-7", 0, True),
        ("7.0", 0, False),
        ("9" * 6000, 0, False),
        ("٧", 0, False),
        ("7_0", 0, False),
        (None, 0, False),
    ],
)
def test_exact_integer(answer: str | None, score: float, well_formed: bool) -> None:
    assert ExactInteger().grade(TASK, answer) == Grade(score, score == 1, well_formed)


def test_a_truth_that_is_no_integer_is_an_error() -> None:
    reward = Reward({"correct": Correct()}, ExactInteger())
    record = episode()
    with pytest.raises(
        RewardError,
        match=r"grader ExactInteger, episode e3: raised ValueError: the ground truth is 'x'; expected an integer",
    ):
        reward.score(EpisodeRecord("e3", Task("t", "", "x", "s"), record.limits, 0, record.agents))


@pytest.mark.parametrize(
    ("truth", "answer", "score", "note"),
    [
        ("7", "it is 7", 1.0, ""),
        # |5 - 7| / sqrt|2 + 7| = 2/3; 0.2 / log2(2 + 2/3) = 0.14134...
        ("7", "5", 0.2 / math.log2(8 / 3), ""),
        # |14 - 7| / sqrt(16) = 1.75; the last integer counts.
        ("7", "5, no 14", 0.2 / math.log2(3.75), ""),
        ("-2", "-5", 0.0, "zero denominator"),
        ("7", "9" * 900, 0.0, "integer too large"),
        ("7", "9" * 6000, 0.0, "integer too long"),
        ("seven", "about seven", 0.1, ""),
        ("7", "no idea", 0.0, ""),
    ],
)
def test_paper_arithmetic(truth: str, answer: str, score: float, note: str) -> None:
    grade = PaperArithmetic().grade(Task("t", "", truth, "s"), answer)
    assert grade.score == pytest.approx(score)
    assert grade.note == note
    assert grade.correct == (score == 1.0)


@pytest.mark.parametrize(
    ("tokens", "root", "clone"),
    [(512, 0, 0), (600, 0.0873, 0.0316), (768, 0.1896, 0.0787), (1024, 0.2594, 0.1264), (2000, 0.2991, 0.1891)],
)
def test_paper_token_penalties(tokens: int, root: float, clone: float) -> None:
    grade = Grade(1.0, True, True)
    alone, pair = episode(root_tokens=tokens), episode(clones=(100, tokens))
    assert PaperTokenPenalty(Role.ROOT, 0.3, 256)(alone, grade) == pytest.approx(-root, abs=1e-4)
    assert PaperTokenPenalty(Role.CLONE, 0.2, 512)(pair, grade) == pytest.approx(-clone, abs=1e-4)
    assert PaperTokenPenalty(Role.CLONE, 0.2, 512)(alone, grade) == 0.0


@pytest.mark.parametrize(("calls", "penalty"), [(0, 0.0), (2, 0.0), (3, -0.1), (5, -0.3)])
def test_paper_call_penalty_by_hand(calls: int, penalty: float) -> None:
    # The released rule gives two calls for nothing, then 0.1 each.
    record = episode("<tool_call>" * calls + "<ans>7<end>")
    assert PaperCallPenalty()(record, Grade(1.0, True, True)) == pytest.approx(penalty)
    assert PaperCallPenalty(marker="<call>")(record, Grade(1.0, True, True)) == 0.0


def test_calls_of_clones_cost_the_root_nothing_in_the_paper() -> None:
    record = episode(clones=(5, 5))
    assert PaperCallPenalty(marker="<ans>", free=0.0)(record, Grade(1.0, True, True)) == pytest.approx(-0.1)


@pytest.mark.parametrize(
    ("score", "tokens", "penalty"),
    [
        (1.0, (10, 10), 0.0),
        (1.0, (1024, 600), -(0.2594 + 0.0316)),
        # 0.3 + 0.2 for very long ones: the cap of 0.5 is reached, never passed.
        (1.0, (40_000, 40_000), -0.5),
        # A wrong answer has nothing to lose: max(0, 0 - penalty) = 0.
        (0.0, (40_000, 40_000), 0.0),
        (0.1, (40_000, 40_000), -0.1),
    ],
)
def test_paper_math_penalty_by_hand(score: float, tokens: tuple[int, int], penalty: float) -> None:
    # The root generates twice: before and after its clone.
    record = episode(root_tokens=tokens[0] // 2, clones=(tokens[1],))
    assert PaperMathPenalty()(record, Grade(score, score == 1, True)) == pytest.approx(penalty, abs=1e-4)


@pytest.mark.parametrize("cap", [0.2, 0.5])
def test_paper_math_is_the_released_score(cap: float) -> None:
    record = episode(root_tokens=20_000)
    scored = make_reward("paper_math", token_penalty={"cap": cap}).score(record)
    assert scored.reward_terms == {"score": 1.0, "token_penalty": pytest.approx(-min(0.3, cap), abs=1e-4)}
    wrong = make_reward("paper_math").score(episode("<ans>8<end>", root_tokens=20_000))
    assert wrong.team_return == 0.0


def test_paper_multihop_only_lowers_and_strips() -> None:
    task = Task("t", "", "Paris", "musique", aliases=("City of Light",))
    rights = ("paris ", "CITY OF LIGHT")
    assert [PaperMultihop().grade(task, text).correct for text in rights] == [True, True]
    assert [PaperMultihop(aliases=False).grade(task, text).correct for text in rights] == [True, False]
    assert [PaperMultihop().grade(task, text).correct for text in ("Paris.", "", None)] == [False, False, False]


def test_terms_of_the_papers_presets_by_name() -> None:
    for preset in ("paper_arithmetic", "paper_multihop"):
        terms = make_reward(preset).score(episode()).reward_terms
        assert terms == {"score": 1.0, "root_penalty": 0.0, "clone_penalty": 0.0, "call_penalty": 0.0}


def test_the_default_for_chat_models_prices_the_tokens_of_clones() -> None:
    alone, with_clones = episode(root_tokens=100), episode(root_tokens=100, clones=(3000, 4000))
    for record in (alone, with_clones):
        terms = make_reward("by_source").score(record).reward_terms
        assert terms is not None
        assert terms["token_cost"] == pytest.approx(-0.1 * record.cost.total_tokens / 4096)
    assert with_clones.cost.total_tokens - alone.cost.total_tokens > 7000


def test_default_terms_by_hand() -> None:
    record = episode(root_tokens=10, clones=(20, 30), malformed=1)
    # Generated: three turns of the root at 10, clones 20 and 30: 80.
    assert record.cost.generated_tokens == 80
    scored = make_reward("default").score(record)
    assert scored.reward_terms == {
        "correct": 1.0,
        "token_cost": pytest.approx(-0.02 * record.cost.total_tokens / 200),
        "malformed": -0.02,
    }
    assert record.reward_terms is None
    assert scored.team_return == pytest.approx(1.0 - 0.02 * record.cost.total_tokens / 200 - 0.02)


def test_a_wrong_episode_pays_no_tokens_unless_asked() -> None:
    wrong = episode("<ans>8<end>")
    assert make_reward("default").score(wrong).team_return == 0.0
    changes = {"token_cost": {"only_when_correct": False, "tokens": "generated", "price": 0.1, "scale": 10}}
    assert make_reward("default", **changes).score(wrong).team_return == pytest.approx(-0.1)


def test_changes_to_a_preset() -> None:
    reward = make_reward("default", malformed=None, token_cost=None, clone_cost={"price": 0.25}, correct={"weight": 2})
    assert reward.score(episode(clones=(1, 1))).reward_terms == {"correct": 2.0, "clone_cost": -0.5}
    named = make_reward("correct", mine={"name": f"{Correct.__module__}:Correct", "weight": 3})
    assert named.score(episode()).reward_terms == {"correct": 1.0, "mine": 3.0}
    assert make_reward("correct", grader={"name": "exact_integer"}).grade(episode("<ans>07<end>")).correct


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_scores(preset: str) -> None:
    assert make_reward(preset).score(episode()).team_return > 0.9


def test_bad_presets_and_changes() -> None:
    with pytest.raises(ConfigError, match="unknown reward 'defualt'.*Did you mean 'default'"):
        make_reward("defualt")
    with pytest.raises(ConfigError, match="unknown reward term 'token_csot'.*Did you mean 'token_cost'"):
        make_reward("default", token_csot={"price": 1})
    with pytest.raises(ConfigError, match=r"reward\.token_cost\.prize is unknown. Did you mean 'price'"):
        make_reward("default", token_cost={"prize": 1})
    with pytest.raises(ConfigError, match=r"reward\.token_cost\.price is 'low'; expected a finite number"):
        make_reward("default", token_cost={"price": "low"})
    with pytest.raises(ConfigError, match=r"scale is 0; expected"):
        make_reward("default", token_cost={"scale": 0})
    with pytest.raises(ConfigError, match="has no term 'clone_cost'"):
        make_reward("default", clone_cost=None)
    with pytest.raises(ConfigError, match="grader cannot be left out"):
        make_reward("default", grader=None)
    with pytest.raises(ConfigError, match=r"reward\.correct is 3; expected a mapping"):
        make_reward("default", correct=3)  # type: ignore[arg-type]
    with pytest.raises(PlugInError, match=r"no_such_module:Term"):
        make_reward("default", mine={"name": "no_such_module:Term"})
    with pytest.raises(PlugInError, match=r"reward term .*Limits lacks __call__\(\)"):
        make_reward("default", mine={"name": "selfcest_env.types:Limits"})


@dataclass(frozen=True)
class Returns:
    value: Any

    def __call__(self, record: EpisodeRecord, grade: Grade) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value

    def grade(self, task: Task, answer: str | None) -> Any:
        return self({}, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        (float("nan"), "returned nan"),
        (float("-inf"), "returned -inf"),
        (None, "returned None"),
        ("1", "returned '1'"),
        (True, "returned True"),
        (10**400, "returned 1000"),
        (KeyError("price"), "raised KeyError: 'price'"),
    ],
)
def test_a_bad_term_stops_the_run_with_the_cause(value: Any, cause: str) -> None:
    reward = Reward({"mine": Returns(value)}, ExactMatch())
    with pytest.raises(RewardError) as caught:
        reward.score(episode())
    assert "reward term 'mine', episode e3" in str(caught.value)
    assert cause in str(caught.value)


@pytest.mark.parametrize(
    "value", [None, 1.0, Grade(1.5, True, True), Grade(float("nan"), False, True), OSError("gone")]
)
def test_a_bad_grader_stops_the_run_with_the_cause(value: Any) -> None:
    with pytest.raises(RewardError, match="grader Returns, episode e3"):
        Reward({}, Returns(value)).score(episode())


def test_numpy_numbers_are_numbers() -> None:
    scored = Reward({"mine": Returns(np.float32(0.5)), "ours": Returns(np.int64(2))}, ExactMatch()).score(episode())
    assert scored.reward_terms == {"mine": 0.5, "ours": 2.0}
    assert type(scored.reward_terms["mine"]) is float


@dataclass(frozen=True)
class Halves:
    """A grader whose answer has two parts."""

    parts: tuple[AnswerPart, ...]
    score: float = 0.75

    def grade(self, task: Task, answer: str | None) -> Grade:
        return Grade(self.score, False, True, parts=self.parts)


@dataclass(frozen=True)
class Squared:
    """A term that is no sum of what it says its parts are."""

    def __call__(self, record: EpisodeRecord, grade: Grade) -> float:
        return grade.score**2

    def parts(self, grade: Grade) -> dict[str, float]:
        return {part.key: part.score for part in grade.parts}


def test_only_terms_that_are_sums_over_parts_are_stored_by_part() -> None:
    reward = Reward({"score": Score(2.0), "correct": Correct()}, Halves((AnswerPart("A", 0.5), AnswerPart("B", 0.25))))
    assert reward.score(episode()).parts == {"score": {"A": 1.0, "B": 0.5}}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            (AnswerPart("A", 0.5), AnswerPart("A", 0.25)),
            "grader Halves, episode e3: its parts are A, A; expected each key once",
        ),
        (
            (AnswerPart("A", 0.5),),
            r"grader Halves, episode e3, score: its parts add up to 0\.5; expected its value 0\.75",
        ),
        (
            (AnswerPart("A", math.nan),),
            "grader Halves, episode e3, part: returned nan; expected a finite number",
        ),
    ],
)
def test_parts_that_are_not_the_score_are_an_error(parts: tuple[AnswerPart, ...], message: str) -> None:
    with pytest.raises(RewardError, match=message):
        Reward({"score": Score()}, Halves(parts)).score(episode())


@dataclass(frozen=True)
class Says:
    """A grader that returns this."""

    grade_of_all: Any

    def grade(self, task: Task, answer: str | None) -> Any:
        return self.grade_of_all


@pytest.mark.parametrize(
    ("grade", "message"),
    [
        (None, "episode e3: returned None; expected a Grade"),
        (Grade(0.5, 0.5, True), "correct is 0.5; expected True or False"),  # type: ignore[arg-type]
        (Grade(0.5, True, 1), "well_formed is 1; expected True or False"),  # type: ignore[arg-type]
        (Grade(0.5, True, True, note=3), "note is 3; expected a text"),  # type: ignore[arg-type]
        (Grade(0.5, True, True, parts={"A": 0.5}), "parts is {'A': 0.5}; expected a tuple of"),  # type: ignore[arg-type]
        (Grade(0.5, True, True, parts=(AnswerPart(3, 0.5),)), "its parts are 3; .* as a text"),  # type: ignore[arg-type]
    ],
)
def test_a_grade_of_other_types_is_an_error(grade: Any, message: str) -> None:
    with pytest.raises(RewardError, match=message):
        Reward({"score": Score()}, Says(grade)).score(episode())


def test_numbers_of_numpy_in_a_grade_become_plain_ones() -> None:
    """They passed and could not be written as JSON, so that a run ended at its first evaluation."""
    half = np.float32(0.5)
    grade = Grade(half, np.bool_(True), np.bool_(False), parts=(AnswerPart("A", half),))  # type: ignore[arg-type]
    reward = Reward({"score": Score()}, Says(grade))
    found = reward.grade(episode())
    assert (type(found.score), found.correct, found.well_formed) == (float, True, False)
    assert from_json(to_json(reward.score(episode()))).parts == {"score": {"A": 0.5}}


def test_a_term_that_is_no_sum_of_its_parts_is_an_error() -> None:
    with pytest.raises(RewardError, match=r"'squared', episode e3: its parts add up to 0\.75; .* 0\.5625"):
        Reward({"squared": Squared()}, Halves((AnswerPart("A", 0.5), AnswerPart("B", 0.25)))).score(episode())
