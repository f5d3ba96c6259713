"""What a record does not say outright: what the environment wrote, what accounts stood at, what waited for what.

The first two follow from playing the record again by the rules it was played with. Rules under which its texts make
another episode are told by that, so several can be tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from selfcest_env.budget import Account
from selfcest_env.counterfactual import replay_turns
from selfcest_env.errors import RecordError
from selfcest_env.kernel import Kernel
from selfcest_env.record import EpisodeRecord
from selfcest_env.rules import Rules
from selfcest_env.types import ROOT, AgentId, Message, MessageRole, Outcome, Part

Place = tuple[AgentId, int]  # an agent and its turn
Block = tuple[Message, ...]  # what the environment wrote in one go


@dataclass(frozen=True)
class Renderer:
    """Rules that episodes may have been played by, under whatever limits, and what reads their token ids, if any."""

    rules: Rules
    decode: Callable[[Sequence[int]], str] | None = None


@dataclass(frozen=True)
class Entry:
    """What one turn changed in the accounts; `turn` is `None` for what stood before the first."""

    turn: Place | None
    accounts: Mapping[AgentId, Account]


@dataclass(frozen=True)
class ReplayedEpisode:
    """An episode as it was played.

    Attributes:
        renderer: whose rules make this episode of its texts; `None`: none of those that were tried.
        blocks: per agent what the environment wrote before each of its turns, and after the last one if it wrote
            something; without a renderer contents that the record has, in no particular wording.
        ledger: the accounts over time, empty without a renderer.
    """

    renderer: Renderer | None
    blocks: Mapping[AgentId, Sequence[Block]]
    ledger: Sequence[Entry]


def play_again(record: EpisodeRecord, renderers: Sequence[Renderer], clock: Clock) -> ReplayedEpisode:
    """The episode by the first renderer whose rules make it of its texts."""
    for renderer in renderers:
        try:
            return _played(record, renderer, clock)
        except RecordError:
            continue
    return ReplayedEpisode(None, {agent.agent_id: _contents(record, agent.agent_id) for agent in record.agents}, ())


def _played(record: EpisodeRecord, renderer: Renderer, clock: Clock) -> ReplayedEpisode:
    def choose(kernel: Kernel) -> AgentId:
        return clock.first_to_end((agent, len(kernel.agents[agent].turns)) for agent in kernel.ready())

    entries, before, kernel = list[Entry](), dict[AgentId, Account](), None
    for kernel in replay_turns(record, renderer.rules.with_limits(record.limits), choose):
        accounts = dict(kernel.ledger.accounts)
        changed = {agent: account for agent, account in accounts.items() if before.get(agent) is not account}
        last = kernel.log[-1] if kernel.log else None
        entries.append(Entry(None if last is None else (last.agent_id, last.turn), changed))
        before = accounts
    assert kernel is not None
    return ReplayedEpisode(
        renderer, {agent: _blocks(state.messages) for agent, state in kernel.agents.items()}, entries
    )


def _blocks(messages: Sequence[Message]) -> list[Block]:
    blocks = [list[Message]()]
    for message in messages:
        if message.role is MessageRole.ASSISTANT:
            blocks.append([])
        else:
            blocks[-1].append(message)
    return [tuple(block) for block in (blocks if blocks[-1] else blocks[:-1])]


def _contents(record: EpisodeRecord, agent_id: AgentId) -> list[Block]:
    agent = record.by_id[agent_id]
    documents = record.task.context if agent_id == ROOT and not record.limits.delegation else {}
    documents = {**documents, **{key: record.task.context[key] for key in agent.shared_context}}
    parts = [Part(agent.objective)]
    for key, text in documents.items():
        parts += [Part(f"\n\n{key}:\n", True), Part(text)]
    blocks: list[Block] = [(Message(MessageRole.USER, tuple(parts)),)]
    for turn in agent.turns[:-1]:
        facts, parts = turn.facts, []
        for child_id in facts.children:
            child = record.by_id[child_id]
            said = Part(f"({child.status})", True) if child.reply is None else Part(child.reply)
            parts += [Part(f"{child_id}: ", True), said, Part("\n", True)]
        if facts.outcome is Outcome.READ:
            parts.append(Part("(the documents that it asked for)", True))
        faults = [*([facts.fault] if facts.fault is not None else []), *facts.refused.values()]
        parts += [Part(f"({fault})\n", True) for fault in faults]
        blocks.append((Message(MessageRole.TOOL, tuple(parts)),))
    return blocks if agent.turns else []


class Clock:
    """When turns were generated, in generated tokens since the episode began, as if each token took as long.

    A call's clones start at once, and their parent goes on when the last of them has ended: that is what
    `Cost.critical_path_tokens` counts.

    Attributes:
        starts, ends: of every turn.
        critical: the turns that the episode's end had to wait for.
    """

    def __init__(self, record: EpisodeRecord) -> None:
        self.starts: dict[Place, int] = {}
        self.ends: dict[Place, int] = {}
        self.critical: set[Place] = set()
        self._record = record
        self._last: dict[Place, AgentId] = {}  # of a call the clone that ended last
        self._run(ROOT, 0)
        self._mark(ROOT)

    def first_to_end(self, ready: Iterable[Place]) -> AgentId:
        """Whose turn is next, of agents that are ready: one whose turn was never played, else what ends first."""
        return min(ready, key=lambda place: (self.ends.get(place, 0), place))[0]

    def _run(self, agent_id: AgentId, now: int) -> int:
        for index, turn in enumerate(self._record.by_id[agent_id].turns):
            self.starts[agent_id, index] = now
            now = self.ends[agent_id, index] = now + turn.facts.generated_tokens
            joined = [(self._run(child, now), child) for child in turn.facts.children]
            if joined:
                latest = max(end for end, _ in joined)
                self._last[agent_id, index] = next(child for end, child in joined if end == latest)
                now = latest
        return now

    def _mark(self, agent_id: AgentId) -> None:
        for index in range(len(self._record.by_id[agent_id].turns)):
            self.critical.add((agent_id, index))
            if (agent_id, index) in self._last:
                self._mark(self._last[agent_id, index])
