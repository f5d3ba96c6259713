"""Rewards of single turns: what a judge sees, how often it is asked, and what records keep of it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from selfcest_env import process
from selfcest_env.errors import RewardError
from selfcest_env.graders import ExactMatch, Grade
from selfcest_env.kernel import Kernel
from selfcest_env.process import PastTurn, ProcessStep, ProcessTerm
from selfcest_env.record import EpisodeRecord, Generation, Turn, build_record, from_json, to_json
from selfcest_env.reward import CloneCost, Correct, MalformedCost, Reward, RewardTerm, TokenCost, TurnTerm
from selfcest_env.rules import Rules
from selfcest_env.text.counters import WordCounter
from selfcest_env.text.terse import TerseProtocol
from selfcest_env.types import ROOT, AgentId, Limits, Outcome, Status, Task, TurnKey, Usage

TASK = Task("t", "1+1", "7", "arithmetic", {"A": "1 " * 400})
FIRST, SECOND = ROOT.child(0), ROOT.child(1)


LIMITS = Limits(total_tokens=None, turn_tokens=1000)


def play(*root: str, clones: Mapping[str, Sequence[str]] | None = None, limits: Limits = LIMITS) -> EpisodeRecord:
    """An episode in which every turn costs as many tokens as its text has characters."""
    kernel = Kernel(TASK, Rules(limits, TerseProtocol(), WordCounter()))
    generations: dict[tuple[AgentId, int], Generation] = {}
    while not kernel.done:
        agent = kernel.ready()[0]
        state = kernel.agents[agent]
        text = (root if agent == ROOT else (clones or {})[state.brief.text])[len(state.turns)]
        generations[agent, len(state.turns)] = Generation(text)
        kernel.step(agent, TerseProtocol().parse(text), Usage(len(text)), text)
    return build_record(kernel, generations, episode_id="e3", seed=0)


CALL = "<call>x<sep>y</call>"
TREE = {"x": ["junk", "<ans>1<end>"], "y": ["<ans>2<end>"]}


@dataclass(frozen=True)
class Lengths(ProcessTerm):
    """A tenth of the characters of a clone's turn; it writes down what it was asked."""

    asked: list[tuple[ProcessStep, ...]] = field(default_factory=list, compare=False)

    def judge(self, steps: Sequence[ProcessStep]) -> list[float]:
        self.asked.append(tuple(steps))
        return [len(step.text) / 10 if step.depth else 0.0 for step in steps]


def reward_of(**terms: RewardTerm) -> Reward:
    return Reward({"correct": Correct(), **terms}, ExactMatch())


def test_a_judge_sees_a_turn_and_what_its_agent_had_seen() -> None:
    term = Lengths()
    reward_of(judged=term).score(play(CALL, "<ans>7<end>", clones=TREE))
    (steps,) = term.asked
    by_text = {step.text: step for step in steps}
    called, answered = by_text[CALL], by_text["<ans>7<end>"]
    assert (called.depth, called.objective, called.past) == (0, "1+1", ())
    assert (called.outcome, called.generated_tokens) == (Outcome.DELEGATED, len(CALL))
    assert answered.past == (PastTurn(CALL, Outcome.DELEGATED, None, ("1", "2")),)
    recovered = by_text["<ans>1<end>"]
    assert (recovered.depth, recovered.objective) == (1, "x")
    assert [(past.text, past.outcome) for past in recovered.past] == [("junk", Outcome.MALFORMED)]
    assert all(step.task == TASK for step in steps)


def test_every_step_is_judged_once_and_all_new_ones_together() -> None:
    term = Lengths()
    reward = reward_of(judged=term)
    one, other = (play(CALL, end, clones=TREE) for end in ("<ans>7<end>", "<ans>8<end>"))
    reward.prepare([one, other, replace(one, episode_id="again")])
    for record in (one, other):
        reward.score(record)
    assert [len(steps) for steps in term.asked] == [6], "five of one, and the last turn of the other"
    reward.score(play("<ans>7<end>"))
    assert [len(steps) for steps in term.asked] == [6, 1]


def test_the_record_keeps_what_each_turn_adds() -> None:
    scored = reward_of(judged=Lengths()).score(play(CALL, "<ans>7<end>", clones=TREE), {"judged": 0.5})
    assert scored.by_turn == {"judged": {FIRST: (0.4, 1.1), SECOND: (1.1,)}}
    assert scored.reward_terms == {"correct": 1.0, "judged": pytest.approx(2.6)}
    assert scored.team_return == pytest.approx(2.3)
    keys = [TurnKey("e3", FIRST, 0), TurnKey("e3", FIRST, 1), TurnKey("e3", SECOND, 0)]
    assert scored.returns_by_turn == pytest.approx(dict(zip(keys, (0.2, 0.55, 0.55), strict=True)))
    assert from_json(json.loads(json.dumps(to_json(scored)))) == scored


def test_records_of_the_format_before_are_read() -> None:
    scored = reward_of(malformed=MalformedCost()).score(play("<ans>7<end>"))
    data = {key: value for key, value in to_json(scored).items() if key != "by_turn"} | {"format": 3}
    assert from_json(data) == scored


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        (TokenCost(1.0, 1.0, "generated"), {ROOT: (-20, -11), FIRST: (-4, -11), SECOND: (-11,)}),
        (MalformedCost(0.5), {FIRST: (-0.5, 0)}),
        (CloneCost(0.25), {ROOT: (-0.5, 0)}),
        (TokenCost(1.0, 1.0, "generated", only_when_correct=True), None),
        (TokenCost(1.0, 1.0, "critical_path"), None),
    ],
)
def test_prices_by_hand(term: RewardTerm, expected: Mapping[AgentId, tuple[float, ...]] | None) -> None:
    scored = reward_of(price=term).score(play(CALL, "<ans>7<end>", clones=TREE))
    assert scored.by_turn == ({} if expected is None else {"price": expected})


def test_the_price_of_all_tokens_has_prompts_in_it() -> None:
    term = TokenCost(1.0, 1.0)
    record = play(CALL, "<ans>7<end>", clones=TREE)
    scored = reward_of(price=term).score(record)
    assert isinstance(term, TurnTerm)
    assert -scored.returns_by_turn[TurnKey("e3", SECOND, 0)] == record.by_id[SECOND].context_tokens > 11
    assert -sum(scored.returns_by_turn.values()) == record.cost.total_tokens


def test_a_judge_of_single_precision_is_taken_at_its_word() -> None:
    scored = reward_of(judged=Says(np.array([0.1, 0.2, 0.3, 0.6, 0.7], dtype=np.float32))).score(
        play(CALL, "<ans>7<end>", clones=TREE)
    )
    assert scored.reward_terms is not None
    assert scored.reward_terms["judged"] == pytest.approx(1.9)
    assert all(type(value) is float for values in scored.by_turn["judged"].values() for value in values)
    again = reward_of(judged=Says(map(float, [1] * 5))).score(play(CALL, "<ans>7<end>", clones=TREE))
    assert again.reward_terms == {"correct": 1.0, "judged": 5.0}


def test_the_last_turn_says_how_its_agent_ended_and_a_call_what_was_refused() -> None:
    term = Lengths()
    limits, call = replace(LIMITS, max_turns=2, context_tokens=300), "<call>x@A<sep>y</call>"  # no context holds A
    reward_of(judged=term).score(play(call, "<ans>7<end>", clones={"y": ["junk", "junk"]}, limits=limits))
    reward_of(judged=term).score(play(call, "<ans>7<end>", clones=TREE, limits=limits))
    first, second = term.asked
    ends = {(step.depth, len(step.past)): step.status for step in first}
    assert ends == {(0, 0): None, (0, 1): Status.ANSWERED, (1, 0): None, (1, 1): Status.OUT_OF_TURNS}
    replies = [step.past[0].replies for steps in (first, second) for step in steps if not step.depth and step.past]
    assert replies == [(None, None), (None, "2")]


CHANGES = {
    "task": lambda e: replace(e, task=replace(TASK, answer="8")),
    "objective": lambda e: changed(e, SECOND, objective="z"),
    "shared_context": lambda e: changed(e, SECOND, shared_context=("A",)),
    "status": lambda e: changed(e, SECOND, status=Status.REPLY_TOO_LONG),
    "text": lambda e: turned(e, SECOND, lambda t: replace(t, generation=Generation("other"))),
    "outcome": lambda e: turned(e, SECOND, lambda t: replace(t, facts=replace(t.facts, outcome=Outcome.MALFORMED))),
    "tokens": lambda e: turned(e, SECOND, lambda t: replace(t, facts=replace(t.facts, generated_tokens=99))),
    "depth": lambda e: replace(e, agents=(*e.agents, replace(e.by_id[SECOND], agent_id=SECOND.child(0)))),
    "replies": lambda e: changed(e, SECOND, reply="9"),
}


def changed(episode: EpisodeRecord, who: AgentId, **changes: Any) -> EpisodeRecord:
    agents = (replace(agent, **changes) if agent.agent_id == who else agent for agent in episode.agents)
    return replace(episode, agents=tuple(agents))


def turned(episode: EpisodeRecord, who: AgentId, change: Callable[[Turn], Turn]) -> EpisodeRecord:
    return changed(episode, who, turns=tuple(map(change, episode.by_id[who].turns)))


@pytest.mark.parametrize(("what", "new"), [(w, 5 if w == "task" else 1) for w in CHANGES])
def test_a_step_that_differs_in_anything_is_judged_anew(what: str, new: int) -> None:
    term, record = Lengths(), play(CALL, "<ans>7<end>", clones=TREE)
    term.prepare([record])
    term.prepare([CHANGES[what](record)])
    assert [len(steps) for steps in term.asked] == [5, new]


def test_what_was_judged_together_is_not_forgotten_before_it_is_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MAX_CACHED", 4)
    term = Lengths()
    reward, records = reward_of(judged=term), [play(CALL, f"<ans>{n}<end>", clones=TREE) for n in (7, 8, 9)]
    reward.prepare(records)
    for record in records:
        reward.score(record)
    assert [len(steps) for steps in term.asked] == [7]
    reward.prepare(records)
    assert [len(steps) for steps in term.asked] == [7, 3], "the oldest three are forgotten"


@dataclass(frozen=True)
class Says(ProcessTerm):
    """Says this of all steps together."""

    judgements: Any

    def judge(self, steps: Sequence[ProcessStep]) -> Any:
        if isinstance(self.judgements, Exception):
            raise self.judgements
        return self.judgements


@pytest.mark.parametrize(
    ("judgements", "message"),
    [
        (OSError("gone"), "'judged'.*: raised OSError: gone"),
        ((0.5,), r"'judged'.*: raised ValueError: Says\.judge returned 1 numbers for 5 steps"),
        (dict.fromkeys(range(5), 1.0), r"Says\.judge returned \{0: 1\.0, .*; expected a list of numbers"),
        (None, r"Says\.judge returned None; expected a list of numbers"),
        ({0.5}, r"Says\.judge returned \{0\.5\}; expected a list of numbers"),
        ((0.5, True, 0.5, 0.5, 0.5), r"Says\.judge returned \[0\.5, True, .*; expected a list of numbers"),
        (
            (0.5, 0.5, math.nan, 0.5, 0.5),
            r"'judged'.*: raised ValueError: Says\.judge returned nan for e3/root\.0/turn0; exp",
        ),
    ],
)
def test_a_bad_judge_stops_the_run_with_the_cause(judgements: Any, message: str) -> None:
    record = play(CALL, "<ans>7<end>", clones=TREE)
    with pytest.raises(RewardError, match=message):
        reward_of(judged=Says(judgements)).score(record)
    with pytest.raises(RewardError, match="reward term 'judged': raised"):
        reward_of(judged=Says(judgements)).prepare([record])


@dataclass(frozen=True)
class Claims:
    """A term that says this of its turns."""

    turns: Mapping[AgentId, tuple[float, ...]]

    def __call__(self, record: EpisodeRecord, grade: Grade) -> float:
        return 1.0

    def by_turn(self, record: EpisodeRecord) -> Mapping[AgentId, tuple[float, ...]]:
        return self.turns


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        ({ROOT: (0.5, 0.25)}, r"'claims', episode e3: its turns add up to 0\.75; expected its value 1 "),
        ({ROOT: (1.0,)}, "it gives 1 numbers for the turns of root, which took 2 turns"),
        ({ROOT.child(7): (1.0,)}, r"it gives 1 numbers for the turns of root\.7, which is not in the episode"),
        ({"root": (1.0,)}, r"its turns have \{'root': .*; expected a tuple of numbers by AgentId"),
        ({ROOT: 1.0}, "expected a tuple of numbers by AgentId"),
        ({ROOT: np.array([0.5, 0.25])}, r"its turns add up to 0\.75; expected its value 1 "),
    ],
)
def test_turns_that_are_not_the_term_are_an_error(turns: Mapping[AgentId, tuple[float, ...]], message: str) -> None:
    with pytest.raises(RewardError, match=message):
        reward_of(claims=Claims(turns)).score(play(CALL, "<ans>7<end>", clones=TREE))
