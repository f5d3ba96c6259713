"""The text game that is the twin of a symbolic one: the same rulebook, read by the kernel and its ledger.

Everything is a word, and a word is a token: a symbol, the objective of one clone (its symbols joined), the key of a
fact. So `SymbolicText` and `WordCounter` charge what `rules` says, and a game in numbers can be played again in words:

root     3 1 4 1
call     _3_1 _4_1       one word for each clone
clone    3 1
reply    4
replies  4 x             x is a reply that never came
wait                     nothing said, nothing charged; the line that answers it is empty and costs its message alone
join     4_x             where joins are forced, in the root's name: all replies as one word, its answer

Errors of `noisy` are the environment's: the twin is told the answer as it came out. The hidden part of `cells` is in
the right answer alone. What is charged is the same, what is seen is not everywhere: texts hold whole segments, of which
`deep` and `cells` show the first symbols alone (`SymbolicTask.visible_symbols`). Do not train on those texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfcest_env.errors import ConfigError
from selfcest_env.graders import NO_ANSWER, Grade
from selfcest_env.kernel import Kernel
from selfcest_env.protocol import Brief, Reply
from selfcest_env.record import EpisodeRecord, Generation, build_record
from selfcest_env.reward import Reward, Score, make_reward
from selfcest_env.rules import Rules
from selfcest_env.symbolic.batch import BatchDelegation
from selfcest_env.symbolic.rules import FIRST_ANSWER, WAIT, SymbolicRules
from selfcest_env.symbolic.state import ANSWERED, UNBORN, State, get_agent_ids
from selfcest_env.symbolic.tasks import ForcedJoinTask
from selfcest_env.symbolic.vectors import get_answer, get_replies, get_segments
from selfcest_env.text.counters import WordCounter
from selfcest_env.types import (
    ROOT,
    Action,
    AgentId,
    Answer,
    CloneRequest,
    Delegate,
    Fault,
    Malformed,
    Message,
    MessageRole,
    Part,
    Role,
    Task,
    Usage,
)

MISSING = "x"
_KEY = "key"


class SymbolicText:
    """The protocol of the twin (see `ProtocolText`). No reading: only clones see facts, and one each."""

    def open(self, brief: Brief) -> tuple[Message, ...]:
        # The root does not see the facts, not even where it cannot delegate.
        facts = brief.documents.values() if brief.role is Role.CLONE else ()
        return (Message(MessageRole.USER, (Part(" ".join(filter(None, (brief.text, *facts)))),)),)

    def replies(self, replies: Sequence[Reply]) -> Message:
        words = (MISSING if reply.text is None else reply.text for reply in replies)
        return Message(MessageRole.TOOL, tuple(Part(word) for word in words))

    def documents(self, documents: Mapping[str, str]) -> Message:
        return Message(MessageRole.TOOL, tuple(Part(text) for text in documents.values()))

    def fault(self, fault: Fault) -> Message:
        return Message(MessageRole.TOOL, ())

    def neutralise(self, reply: str) -> str:
        return reply

    def parse(self, text: str) -> Action:
        words = text.split()
        if words and all(word.startswith(("_", _KEY)) for word in words):
            return Delegate(tuple(map(self._request, words)))
        return Answer(words[0]) if len(words) == 1 else Malformed(Fault.NO_ANSWER)

    def render(self, action: Action, thought: str = "") -> str:
        match action:
            case Answer(text):
                return text
            case Delegate(requests):
                return " ".join(map(self._write_request, requests))
            case _:
                return ""

    @staticmethod
    def _write_request(request: CloneRequest) -> str:
        return request.shared_context[0] if request.shared_context else "_" + request.objective.replace(" ", "_")

    @staticmethod
    def _request(word: str) -> CloneRequest:
        if word.startswith("_"):
            return CloneRequest(word[1:].replace("_", " "))
        return CloneRequest("", (word,))


@dataclass(frozen=True)
class HandedIn:
    """A grader of replies handed in as one word: what the task in numbers says of them."""

    task: ForcedJoinTask

    def grade(self, task: Task, answer: str | None) -> Grade:
        if answer is None:
            return NO_ANSWER
        right = np.array([[said == true for said, true in zip(answer.split("_"), task.answer.split("_"), strict=True)]])
        score = float(self.task.grade(right)[0])
        return Grade(score, score == 1, True)


def text_rules(rules: SymbolicRules) -> Rules:
    """Limits, protocol and prices under which the text game plays as `rules` do."""
    return Rules(rules.limits, SymbolicText(), WordCounter())


def text_task(rules: SymbolicRules, start: State) -> Task:
    """The problem of an episode that has just begun; `start` is its state alone, a batch of one."""
    facts = start.tape[0, 1 + rules.task.max_length : rules.replies_at]
    return Task(
        task_id=f"{start.keys[0]}-{start.episode[0]}",
        prompt=_words(_held(rules, start, 0), rules),
        answer=_words(start.target.reshape(-1), rules, "_"),
        source="symbolic",
        context={f"{_KEY}{number}": str(symbol) for number, symbol in enumerate(facts)},
        metadata={"length": int(start.segment_length[0, 0])},
    )


def action_text(rules: SymbolicRules, state: State, seat: int, action: int) -> str:
    """What an agent writes to act as it does in a game of numbers; `state` is a batch of one, before the step."""
    if action == WAIT:
        return ""
    if action < rules.first_call:
        return str(action - FIRST_ANSWER)
    kind, symbols = int(rules.kinds[action]), _held(rules, state, seat)
    if place := int(rules.fact_at[action]):
        return f"{_KEY}{place - 1 - rules.task.max_length}"
    ends = np.cumsum(rules.task.part_lengths(kind, len(symbols)))[:-1]
    return " ".join("_" + _words(piece, rules).replace(" ", "_") for piece in np.split(symbols, ends))


def replay(
    rules: SymbolicRules,
    start: State,
    steps: Iterable[NDArray[np.integer[Any]]],
    absent: frozenset[AgentId] = frozenset(),
) -> Iterator[tuple[BatchDelegation, Kernel]]:
    """Play an episode in numbers and in words. Yields both games before the first joint step and after each.

    Args:
        rules: those it was played by.
        start: the episode as it began, a batch of one: `kernel.get_snapshot().take(np.array([env]))`.
        steps: the actions of every joint step, each of shape (num_agents,); those of agents that could not act are
            ignored, and illegal ones are WAIT, as they were.
        absent: clones that were removed at birth (`BatchDelegation.remove`).

    Raises:
        ConfigError: `start` is not one episode that has just begun.
    """
    if len(start.keys) != 1 or start.cycle[0] != 0 or start.terminated[0] or start.status[0, 0] == UNBORN:
        raise ConfigError(
            f"start holds {len(start.keys)} episodes after {start.cycle.tolist()} joint steps; "
            "expected the snapshot of one episode just after its reset"
        )
    batch, kernel = BatchDelegation(rules, 1), Kernel(text_task(rules, start), text_rules(rules), dict.fromkeys(absent))
    batch.set_snapshot(start)
    yield batch, kernel
    for actions in steps:
        ids, before, acting = get_agent_ids(batch.state), batch.get_snapshot(), np.flatnonzero(batch.can_act[0])
        legal = batch.action_masks()[0]
        batch.step(np.asarray(actions)[None])
        for seat in acting.tolist():
            action = int(actions[seat])
            if not 0 <= action < rules.num_actions or not legal[seat, action]:
                action = WAIT
            elif FIRST_ANSWER <= action < rules.first_call:
                action = FIRST_ANSWER + int(get_replies(batch.state)[0, seat])
            text = action_text(rules, before, seat, action)
            kernel.play(ids[seat], text, Usage(kernel.rules.counter.count_text(text)))
        newborn = get_agent_ids(batch.state).items() - ids.items()
        gone = np.array([seat for seat, agent_id in newborn if agent_id in absent], np.intp)
        batch.remove(np.zeros_like(gone), gone)
        if batch.state.status[0, 0] == ANSWERED and ROOT in kernel.ready():
            text = _words(get_answer(batch.state, rules, 0), rules, "_")
            kernel.play(ROOT, text, Usage(kernel.rules.counter.count_text(text)))
        yield batch, kernel


def episode_record(
    rules: SymbolicRules, start: State, steps: Iterable[NDArray[np.integer[Any]]], *, episode_id: str
) -> EpisodeRecord:
    """An episode in numbers as a scored record, for everything that reads records. Arguments are those of `replay`.

    Raises:
        RecordError: the episode has not ended (a truncated one never does).
    """
    *_, (_, kernel) = replay(rules, start, steps)
    generations = {(step.agent_id, step.turn): Generation(step.text) for step in kernel.log}
    record = build_record(kernel, generations, episode_id=episode_id, seed=int(start.keys[0]))
    cost = {"price": rules.token_cost, "scale": 1.0, "tokens": "total", "only_when_correct": False}
    reward = make_reward("correct", token_cost=cost)
    if rules.forced_join_task is not None:
        reward = Reward({"score": Score(), "token_cost": reward.terms["token_cost"]}, HandedIn(rules.forced_join_task))
    return reward.score(record)


def _held(rules: SymbolicRules, state: State, seat: int) -> NDArray[np.int8]:
    """The symbols an agent holds whose turn is open."""
    return get_segments(state, rules)[0, seat, : state.segment_length[0, seat]]


def _words(symbols: NDArray[np.int8], rules: SymbolicRules, between: str = " ") -> str:
    return between.join(MISSING if symbol == rules.missing else str(symbol) for symbol in symbols)
