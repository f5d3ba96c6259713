"""Replays of stored episodes: the texts of the environment, the accounts over time, and the times of turns.

A record does not hold texts and accounts, but they follow from its replay under the rules of the episode. Other rules
make another episode of the same turns, so several rules can be tried.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass

from selfcest_env.budget import Account
from selfcest_env.counterfactual import replay_turns
from selfcest_env.errors import RecordError
from selfcest_env.kernel import Kernel
from selfcest_env.record import EpisodeRecord
from selfcest_env.rules import Rules
from selfcest_env.types import ROOT, AgentId, Message, MessageRole, Outcome, Part, Status

TurnPlace = tuple[AgentId, int]  # an agent and the index of its turn
Block = tuple[Message, ...]  # messages of the environment between two turns


@dataclass(frozen=True)
class Renderer:
    """Rules of episodes, whose limits are those of each record.

    Attributes:
        rules: candidate rules.
        decode: the text of token ids, if the model's tokenizer is known.
    """

    rules: Rules
    decode: Callable[[Sequence[int]], str] | None = None


@dataclass(frozen=True)
class LedgerChange:
    """The accounts that one turn changed; `turn` is `None` for the accounts before the first turn."""

    turn: TurnPlace | None
    accounts: Mapping[AgentId, Account]


@dataclass(frozen=True)
class ReplayedEpisode:
    """An episode with the texts and accounts of its replay.

    Attributes:
        timeline: the times of its turns.
        renderer: the renderer whose rules make this episode of its turns; `None`: none of those that were tried.
        blocks: by agent, the messages of the environment before each turn, and after the last one if there are any.
            Without a renderer they have the contents of the record, in another wording.
        ledger: changes of the accounts in order; empty without a renderer.
    """

    timeline: Timeline
    renderer: Renderer | None
    blocks: Mapping[AgentId, Sequence[Block]]
    ledger: Sequence[LedgerChange]


def replay_episode(record: EpisodeRecord, renderers: Sequence[Renderer]) -> ReplayedEpisode:
    """Replay an episode with the first renderer whose rules make this episode of its turns."""
    timeline = Timeline(record)
    for renderer in renderers:
        try:
            return _replay_with(record, renderer, timeline)
        except RecordError:
            continue
    blocks = {agent.agent_id: _blocks_of_record(record, agent.agent_id) for agent in record.agents}
    return ReplayedEpisode(timeline, None, blocks, ())


def _replay_with(record: EpisodeRecord, renderer: Renderer, timeline: Timeline) -> ReplayedEpisode:
    """Replay a record turn by turn, in the order of the timeline.

    Raises:
        RecordError: the game does not repeat the record by the rules of this renderer.
    """

    turns_in_order = iter(timeline.list_turns())
    turn: TurnPlace | None = None  # the last one played

    def choose(kernel: Kernel) -> AgentId:
        nonlocal turn
        agent_id = next(turns_in_order, (ROOT, 0))[0]
        if agent_id not in kernel.agents or kernel.agents[agent_id].status is not Status.READY:
            agent_id = kernel.ready()[0]  # under these rules it is another episode
        turn = (agent_id, len(kernel.agents[agent_id].turns))
        return agent_id

    changes: list[LedgerChange] = []
    before: dict[AgentId, Account] = {}
    kernel = None
    for kernel in replay_turns(record, renderer.rules.with_limits(record.limits), choose):
        changed = {}
        for agent_id in _list_touched(kernel, turn):
            # A clone that a replay leaves out has no account.
            account = kernel.ledger.accounts.get(agent_id)
            # Accounts are immutable, so an unchanged one is the same object.
            if account is not None and before.get(agent_id) is not account:
                changed[agent_id] = before[agent_id] = account
        changes.append(LedgerChange(turn, changed))
    assert kernel is not None
    blocks = {agent_id: _split_into_blocks(state.messages) for agent_id, state in kernel.agents.items()}
    return ReplayedEpisode(timeline, renderer, blocks, changes)


def _list_touched(kernel: Kernel, turn: TurnPlace | None) -> list[AgentId]:
    """Return the agents whose accounts a turn may have changed, in tree order.

    These are the agent, its new clones, and the agents above it. Where a call has joined, they are its clones too.
    """
    if turn is None:
        return [ROOT]
    agent_id: AgentId | None = turn[0]
    touched = set[AgentId]()
    while agent_id is not None:
        state = kernel.agents[agent_id]
        touched.add(agent_id)
        if state.turns and (agent_id == turn[0] or state.status is not Status.WAITING):
            touched.update(state.turns[-1].children)
        agent_id = agent_id.parent
    return sorted(touched)


def _split_into_blocks(messages: Sequence[Message]) -> list[Block]:
    blocks: list[list[Message]] = [[]]
    for message in messages:
        if message.role is MessageRole.ASSISTANT:
            blocks.append([])
        else:
            blocks[-1].append(message)
    if not blocks[-1]:
        blocks.pop()
    return [tuple(block) for block in blocks]


def _blocks_of_record(record: EpisodeRecord, agent_id: AgentId) -> list[Block]:
    agent = record.by_id[agent_id]
    documents = record.task.context if agent_id == ROOT and not record.limits.delegation else {}
    documents = {**documents, **{key: record.task.context[key] for key in agent.shared_context}}
    parts = [Part(agent.objective)]
    for key, text in documents.items():
        parts += [Part(f"\n\n{key}:\n", True), Part(text)]
    blocks: list[Block] = [(Message(MessageRole.USER, tuple(parts)),)]
    for turn in agent.turns[:-1]:
        facts = turn.facts
        parts = []
        for child_id in facts.children:
            child = record.by_id[child_id]
            reply = Part(f"({child.status})", True) if child.reply is None else Part(child.reply)
            parts += [Part(f"{child_id}: ", True), reply, Part("\n", True)]
        if facts.outcome is Outcome.READ:
            parts.append(Part("(the requested documents)", True))
        faults = [facts.fault, *facts.refused.values()]
        parts += [Part(f"({fault})\n", True) for fault in faults if fault is not None]
        blocks.append((Message(MessageRole.TOOL, tuple(parts)),))
    return blocks if agent.turns else []


class Timeline:
    """The times of turns, in generated tokens since the episode began. Every token takes the same time.

    The clones of a call start at once, and their parent continues when the last of them has ended, as
    `Cost.critical_path_tokens` counts it.

    Attributes:
        starts, ends: of every turn.
        critical: the turns of the critical path.
    """

    def __init__(self, record: EpisodeRecord) -> None:
        self.starts: dict[TurnPlace, int] = {}
        self.ends: dict[TurnPlace, int] = {}
        self.critical: set[TurnPlace] = set()
        self._record = record
        self._last_clone: dict[TurnPlace, AgentId] = {}  # of each call, the clone that ended last
        self._add_turns()
        self._mark_critical()

    def list_turns(self) -> list[TurnPlace]:
        """Return all turns in the order in which they end. A turn comes after those that it had to wait for."""
        # Python's sort is stable, and turns were added after those that they had to wait for.
        return sorted(self.ends, key=lambda place: self.ends[place])

    def first_to_end(self, ready: Iterable[TurnPlace]) -> AgentId:
        """Return the agent whose next turn ends first. A turn without a time comes before all others."""
        return min(ready, key=lambda place: (self.ends.get(place, 0), place))[0]

    def _add_turns(self) -> None:
        """Set the times of all turns. A recursion would end at Python's limit in a tree of a thousand levels."""
        agents = [self._add_agent(ROOT, 0)]
        ended_at: int | None = None  # of the clone that the last agent of the list waits for
        while agents:
            try:
                clone, start = agents[-1].send(ended_at)
            except StopIteration as done:
                agents.pop()
                ended_at = done.value
            else:
                agents.append(self._add_agent(clone, start))
                ended_at = None

    def _add_agent(self, agent_id: AgentId, start: int) -> Generator[tuple[AgentId, int], int | None, int]:
        """Set the times of an agent's turns. It yields each clone with its start and is sent the clone's end.

        Returns:
            The time at which the agent ends.
        """
        now = start
        for index, turn in enumerate(self._record.by_id[agent_id].turns):
            self.starts[agent_id, index] = now
            now += turn.facts.generated_tokens
            self.ends[agent_id, index] = now
            end_by_clone: dict[AgentId, int] = {}
            for child in turn.facts.children:
                ended_at = yield child, now
                assert ended_at is not None
                end_by_clone[child] = ended_at
            if end_by_clone:
                last_clone = max(end_by_clone, key=lambda child: end_by_clone[child])
                self._last_clone[agent_id, index] = last_clone
                now = end_by_clone[last_clone]
        return now

    def _mark_critical(self) -> None:
        agents = [ROOT]
        while agents:
            agent_id = agents.pop()
            for index in range(len(self._record.by_id[agent_id].turns)):
                self.critical.add((agent_id, index))
                if (agent_id, index) in self._last_clone:
                    agents.append(self._last_clone[agent_id, index])
