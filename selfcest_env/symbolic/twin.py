"""The text game that is the twin of a symbolic one: the same rules, applied by the kernel and its ledger.

Every text consists of words, and a word is a token: a symbol, the objective of one clone (its symbols joined), or the
key of a fact. So `SymbolicText` and `WordCounter` charge what `rules` says, and a symbolic episode can be replayed as a
text episode:

root     3 1 4 1
call     _3_1 _4_1       one word for each clone
clone    3 1
reply    4
replies  4 x             x is a missing reply
wait                     an empty text costs nothing; the line that answers it is empty and costs its message only
join     4_x             where joins are forced, the root's answer: all replies as one word

The twin receives answers after the errors of `noisy`, and the right answers of `cells` with their hidden part. Charges
are the same in both games, but observations are not: texts hold whole segments, and `deep` and `cells` show the first
symbols only (`SymbolicTask.visible_symbols`). Do not train on those texts.
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
    """The prompt format of the twin. Agents cannot read documents: only clones see facts, one each."""

    def open(self, brief: Brief) -> tuple[Message, ...]:
        # The root sees no facts, even where it cannot delegate.
        facts = brief.documents.values() if brief.role is Role.CLONE else ()
        words = " ".join(filter(None, (brief.text, *facts)))
        return (Message(MessageRole.USER, (Part(words),)),)

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
            return Delegate(tuple(map(self._parse_request, words)))
        return Answer(words[0]) if len(words) == 1 else Malformed(Fault.NO_ANSWER)

    def render(self, action: Action, thought: str = "") -> str:
        match action:
            case Answer(text):
                return text
            case Delegate(requests):
                return " ".join(map(self._render_request, requests))
            case _:
                return ""

    @staticmethod
    def _render_request(request: CloneRequest) -> str:
        return request.shared_context[0] if request.shared_context else "_" + request.objective.replace(" ", "_")

    @staticmethod
    def _parse_request(word: str) -> CloneRequest:
        if word.startswith("_"):
            return CloneRequest(word[1:].replace("_", " "))
        return CloneRequest("", (word,))


@dataclass(frozen=True)
class JoinedRepliesGrader:
    """Grades the replies of a forced join, given as one word, by the symbolic task."""

    task: ForcedJoinTask

    def grade(self, task: Task, answer: str | None) -> Grade:
        if answer is None:
            return NO_ANSWER
        replies = answer.split("_")
        targets = task.answer.split("_")
        right = np.array([[reply == target for reply, target in zip(replies, targets, strict=True)]])
        score = float(self.task.grade(right)[0])
        return Grade(score, correct=score == 1, well_formed=True)


def make_text_rules(rules: SymbolicRules) -> Rules:
    """Return the rules of the text game that lead to the same grants, charges and endings."""
    return Rules(rules.limits, SymbolicText(), WordCounter())


def make_text_task(rules: SymbolicRules, start: State) -> Task:
    """Return the problem of an episode that has just begun; `start` is its state, a batch of one."""
    facts = start.tape[0, rules.first_fact_cell : rules.first_reply_cell]
    return Task(
        task_id=f"{start.keys[0]}-{start.episode[0]}",
        prompt=_join_symbols(_get_segment(rules, start, 0), rules),
        answer=_join_symbols(start.target.reshape(-1), rules, "_"),
        source="symbolic",
        context={f"{_KEY}{number}": str(symbol) for number, symbol in enumerate(facts)},
        metadata={"length": int(start.segment_length[0, 0])},
    )


def write_action(rules: SymbolicRules, state: State, seat: int, action: int) -> str:
    """Return the text that equals a symbolic action; `state` is a batch of one, before the step."""
    if action == WAIT:
        return ""
    if action < rules.first_call:
        return str(action - FIRST_ANSWER)
    fact_cell = int(rules.action_fact_cells[action])
    if fact_cell:
        return f"{_KEY}{fact_cell - rules.first_fact_cell}"
    segment = _get_segment(rules, state, seat)
    lengths = rules.task.part_lengths(int(rules.action_kinds[action]), len(segment))
    parts = np.split(segment, np.cumsum(lengths)[:-1])
    return " ".join("_" + _join_symbols(part, rules, "_") for part in parts)


def replay(
    rules: SymbolicRules,
    start: State,
    steps: Iterable[NDArray[np.integer[Any]]],
    absent: frozenset[AgentId] = frozenset(),
) -> Iterator[tuple[BatchDelegation, Kernel]]:
    """Play an episode in both games, and yield both before the first joint step and after each.

    Args:
        rules: rules of the episode.
        start: the episode as it began, a batch of one: `kernel.get_snapshot().take(np.array([env]))`.
        steps: the actions of each joint step, each of shape (num_agents,). Actions of agents that could not act are
            ignored, and illegal ones are played as WAIT.
        absent: clones that were removed at birth (`BatchDelegation.remove`).

    Raises:
        ConfigError: `start` is not one episode that has just begun.
    """
    if len(start.keys) != 1 or start.cycle[0] != 0 or start.terminated[0] or start.status[0, 0] == UNBORN:
        raise ConfigError(
            f"start holds {len(start.keys)} episodes after {start.cycle.tolist()} joint steps; "
            "expected the snapshot of one episode just after its reset"
        )
    batch = BatchDelegation(rules, 1)
    batch.set_snapshot(start)
    kernel = Kernel(make_text_task(rules, start), make_text_rules(rules), dict.fromkeys(absent))
    yield batch, kernel
    for actions in steps:
        before = batch.get_snapshot()
        ids_before = get_agent_ids(before)
        acting = np.flatnonzero(batch.can_act[0])
        legal = batch.action_masks()[0]
        batch.step(np.asarray(actions)[None])
        for seat in acting.tolist():
            action = int(actions[seat])
            if not 0 <= action < rules.num_actions or not legal[seat, action]:
                action = WAIT
            elif FIRST_ANSWER <= action < rules.first_call:
                # The answer after the errors of `noisy`.
                action = FIRST_ANSWER + int(get_replies(batch.state)[0, seat])
            _play_text(kernel, ids_before[seat], write_action(rules, before, seat, action))
        newborn = get_agent_ids(batch.state).items() - ids_before.items()
        removed = np.array([seat for seat, agent_id in newborn if agent_id in absent], np.intp)
        batch.remove(np.zeros_like(removed), removed)
        # After a forced join the symbolic root has answered; the text root has its replies, and its turn is open.
        if batch.state.status[0, 0] == ANSWERED and ROOT in kernel.ready():
            _play_text(kernel, ROOT, _join_symbols(get_answer(batch.state, rules, 0), rules, "_"))
        yield batch, kernel


def episode_record(
    rules: SymbolicRules, start: State, steps: Iterable[NDArray[np.integer[Any]]], *, episode_id: str
) -> EpisodeRecord:
    """Return a symbolic episode as a scored record.

    Args:
        rules: as in `replay`.
        start: as in `replay`.
        steps: as in `replay`.
        episode_id: id of the record.

    Raises:
        RecordError: the episode has not ended; a truncated episode never ends.
    """
    *_, (_, kernel) = replay(rules, start, steps)
    generations = {(step.agent_id, step.turn): Generation(step.text) for step in kernel.log}
    record = build_record(kernel, generations, episode_id=episode_id, seed=int(start.keys[0]))
    cost = {"price": rules.token_cost, "scale": 1.0, "tokens": "total", "only_when_correct": False}
    reward = make_reward("correct", token_cost=cost)
    if rules.forced_join_task is not None:
        terms = {"score": Score(), "token_cost": reward.terms["token_cost"]}
        reward = Reward(terms, JoinedRepliesGrader(rules.forced_join_task))
    return reward.score(record)


def _play_text(kernel: Kernel, agent_id: AgentId, text: str) -> None:
    kernel.play(agent_id, text, Usage(kernel.rules.counter.count_text(text)))


def _get_segment(rules: SymbolicRules, state: State, seat: int) -> NDArray[np.int8]:
    """Return the segment of an agent that can act."""
    return get_segments(state, rules)[0, seat, : state.segment_length[0, seat]]


def _join_symbols(symbols: NDArray[np.int8], rules: SymbolicRules, separator: str = " ") -> str:
    return separator.join(MISSING if symbol == rules.missing else str(symbol) for symbol in symbols)
