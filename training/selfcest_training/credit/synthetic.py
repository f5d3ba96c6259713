"""Made-up groups for the conformance suite: scored episodes, and replays of them, without a game or a policy.

Every episode is the same tree: two clones in a first call (the second has a clone of its own), one in a second call.
Its return is a number of the episode, plus what its clones happened to bring, plus noise. What a clone brings is a part
of the return, and it is handed the document of that part; some of it is said again by a judge of its last turn. Two
clones never matter. A replay draws anew what its rules
say (turns from those intervened on, what descends from them, and the noise) and keeps the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from types import MappingProxyType

from selfcest_env.counterfactual import is_replayed_turn
from selfcest_env.record import AgentRecord, EpisodeGroup, EpisodeRecord, Generation, Turn
from selfcest_env.replay import Replay
from selfcest_env.seeding import stream_seed
from selfcest_env.types import ROOT, AgentId, FinishReason, Limits, Outcome, Status, Task, TurnFacts, TurnKey
from selfcest_training.credit.base import Replayed

FIRST, SECOND, THIRD = (ROOT.child(i) for i in range(3))
NESTED = SECOND.child(0)
NULL = (FIRST, NESTED)
_VALUES = {FIRST: 0.0, SECOND: 1.0, THIRD: 0.5, NESTED: 0.0}
_DOCUMENTS = {FIRST: "A", SECOND: "B", THIRD: "C", NESTED: "D"}
_ENDINGS = ((4, "2"), (7, "12"), (5, "313"), (1, "x"))  # tokens and text of answers of the root and of a clone
_TASK = Task("synthetic", "?", "1", "synthetic")


def mirrored_id(agent_id: AgentId) -> AgentId:
    """The two clones of the first call, and all below them, under each other's ids; its own inverse."""
    if not agent_id.path:
        return agent_id
    head, *rest = agent_id.path
    return AgentId(({0: 1, 1: 0}.get(head, head), *rest))


def mirrored_key(key: TurnKey) -> TurnKey:
    return replace(key, agent_id=mirrored_id(key.agent_id))


def mirrored_replay(replay: Replay, names: Mapping[str, str] = MappingProxyType({})) -> Replay:
    """The same question under the other names; `names` has those of the first replays, which it may be about."""
    changes = {mirrored_id(agent_id): what for agent_id, what in replay.interventions}
    return Replay.of(names.get(replay.episode_id, replay.episode_id), changes, replay.sample)


def mirrored(record: EpisodeRecord) -> EpisodeRecord:
    """The same episode with the two clones of the first call named the other way round."""

    def turn(old: Turn) -> Turn:
        if not old.facts.children:
            return old
        children = tuple(sorted(mirrored_id(child) for child in old.facts.children))
        return replace(old, facts=replace(old.facts, children=children))

    agents = (
        replace(agent, agent_id=mirrored_id(agent.agent_id), turns=tuple(map(turn, agent.turns)))
        for agent in record.agents
    )
    by_turn = {term: {mirrored_id(a): values for a, values in of.items()} for term, of in record.by_turn.items()}
    return replace(record, agents=tuple(sorted(agents, key=lambda agent: agent.agent_id)), by_turn=by_turn)


_Tree = tuple[AgentRecord, ...]
# Of a clone the episode or replay in which its turns were played last.
Source = Callable[[AgentId], str]


def _named(name: str, _: AgentId) -> str:
    return name


def _source(replay: Replay, episode: EpisodeRecord, source: Source, clone: AgentId) -> str:
    """In a replay of an episode whose clones have this source."""
    last = len(episode.by_id[clone].turns) - 1  # which is played anew if any turn is
    return str(replay) if is_replayed_turn(replay, episode, clone, last) else source(clone)


class World:
    """Everything that is random is a function of `seed`.

    Attributes:
        group: `size` episodes.
    """

    def __init__(self, seed: int, size: int = 4) -> None:
        self.seed = seed
        self.group = EpisodeGroup(_TASK, tuple(self._episode(f"w{seed}.e{k}", k) for k in range(size)))

    def play(self, replays: Sequence[Replay], first: Replayed = MappingProxyType({})) -> dict[Replay, EpisodeRecord]:
        """Scored records of replays of `group`, or of the replays of it that are in `first`."""
        origins = {e.episode_id: (k, e, partial(_named, e.episode_id)) for k, e in enumerate(self.group.episodes)}
        for replay, record in first.items():
            k, episode, source = origins[replay.episode_id]
            origins[record.episode_id] = k, record, partial(_source, replay, episode, source)
        return {replay: self._replayed(replay, *origins[replay.episode_id]) for replay in replays}

    def _episode(self, name: str, k: int) -> EpisodeRecord:
        agents = _agents(failed=k == 1)
        seed = stream_seed("synthetic", self.seed, k)
        record = EpisodeRecord(name, _TASK, Limits(max_depth=2), seed, agents)
        return self._scored(record, k, name, lambda clone: self._brought(name, clone))

    def _replayed(self, replay: Replay, k: int, episode: EpisodeRecord, source: Source) -> EpisodeRecord:
        absent = {agent_id for agent_id, what in replay.interventions if what.absent}
        agents = tuple(
            replace(agent, turns=(), reply=None, status=Status.ABSENT) if agent.agent_id in absent else agent
            for agent in episode.agents
            if not any(agent.agent_id != other and agent.agent_id.is_under(other) for other in absent)
        )
        record = replace(episode, episode_id=str(replay), agents=agents)
        there = {agent.agent_id for agent in agents if agent.turns}

        def brought(clone: AgentId) -> float:
            return self._brought(_source(replay, episode, source, clone), clone) if clone in there else 0.0

        return self._scored(record, k, str(replay), brought)

    def _scored(self, record: EpisodeRecord, k: int, name: str, brought: Callable[[AgentId], float]) -> EpisodeRecord:
        found = {clone: brought(clone) for clone in _VALUES}
        parts = {_DOCUMENTS[clone]: value for clone, value in found.items()}
        judged = {
            agent.agent_id: (*(0.0,) * (len(agent.turns) - 1), 0.3 * found[agent.agent_id])
            for agent in record.agents
            if agent.turns and agent.agent_id in _VALUES
        }
        terms = {
            "score": sum(parts.values()),
            "judged": sum(sum(values) for values in judged.values()),
            "rest": 0.7 * k + 0.2 * self._uniform(name, "noise"),
        }
        return replace(record, reward_terms=terms, parts={"score": parts}, by_turn={"judged": judged})

    def _brought(self, name: str, clone: AgentId) -> float:
        return _VALUES[clone] * (self._uniform(name, str(clone)) < 0.5)

    def _uniform(self, *key: str) -> float:
        return stream_seed("synthetic", self.seed, *key) / 2**63


@cache
def _agents(failed: bool) -> tuple[AgentRecord, ...]:
    """The tree, with turns of different lengths; in a failed one the first clone never answers."""
    root = (_turn(2, children=(FIRST, SECOND)), _turn(1, children=(THIRD,)), _turn(3))
    first = (_turn(2, Outcome.MALFORMED), _turn(1, Outcome.MALFORMED if failed else Outcome.ANSWERED))
    return (
        _agent(ROOT, None, root),
        _agent(FIRST, 0, first, Status.OUT_OF_TURNS if failed else Status.ANSWERED),
        _agent(SECOND, 0, (_turn(1, children=(NESTED,)), _turn(2))),
        _agent(NESTED, 0, (_turn(3),)),
        _agent(THIRD, 1, (_turn(1),)),
    )


def trees_by_clone(brood: int = 24) -> dict[AgentId, tuple[tuple[AgentRecord, ...], ...]]:
    """For two clones, trees of agents that differ only in events that the clone's first turn can have caused.

    The first tree of a clone is the smallest one. The others change the clone's own turns and reply, give it, its
    parent or the root more clones after its first turn, or change what the root writes in the end and whether it
    answers.

    Args:
        brood: number of clones of the largest calls, more than a fixed number of replays is likely to be.
    """
    answer = (_turn(2),)
    sibling = _agent(SECOND, 0, answer)

    def born(parent: AgentId, start: int) -> tuple[AgentId, ...]:
        return tuple(parent.child(index) for index in range(start, start + brood))

    def tree(
        first: AgentRecord,
        second: AgentRecord,
        below: tuple[AgentId, ...] = (),
        at: int = 0,
        last: Turn | None = None,
        status: Status = Status.ANSWERED,
        reply: str | None = "1",
    ) -> _Tree:
        """The tree of a root that calls two clones; `below` are more clones, born at turn `at` of their parent.

        `last` is the root's last turn, an answer if left out; `status` and `reply` are what becomes of the root.
        """
        later = below if below and below[0].parent == ROOT else ()
        turns = (_turn(2, children=(FIRST, SECOND)), *((_turn(1, children=later),) if later else ()), last or _turn(3))
        root = replace(_agent(ROOT, None, turns, status), reply=reply)
        nested = (_agent(NESTED, 0, answer),) if len(second.turns) > 1 else ()
        agents = (root, first, second, *nested, *(_agent(child, at, answer) for child in below))
        return tuple(sorted(agents, key=lambda agent: agent.agent_id))

    plain = _agent(FIRST, 0, answer)
    failed = _agent(FIRST, 0, (_turn(2, Outcome.MALFORMED), _turn(1, Outcome.MALFORMED)), Status.OUT_OF_TURNS)
    wordy = replace(_agent(FIRST, 0, (_turn(40),)), reply="2")
    others = [replace(_agent(FIRST, 0, (_with_text(_turn(size), text),)), reply=text) for size, text in _ENDINGS]
    children = born(FIRST, 0)
    parent = _agent(FIRST, 0, (_turn(2, children=children), _turn(1)))
    siblings = born(ROOT, 2)

    # Several answers, so that a scheme that looks at a hash or a parity of one sees different values.
    endings: list[tuple[Turn, Status, str | None]] = [
        (_with_text(_turn(tokens), text), Status.ANSWERED, text) for tokens, text in _ENDINGS
    ]
    endings.append((_turn(2, Outcome.MALFORMED), Status.OUT_OF_TURNS, None))

    def endings_of(first: AgentRecord, second: AgentRecord) -> tuple[_Tree, ...]:
        return tuple(tree(first, second, last=last, status=status, reply=reply) for last, status, reply in endings)

    calls = _turn(1, children=(NESTED,))
    above = _agent(SECOND, 0, (calls, _turn(2)))
    cousins = born(SECOND, 1)
    above_twice = _agent(SECOND, 0, (calls, _turn(1, children=cousins), _turn(2)))
    return {
        FIRST: (
            tree(plain, sibling),
            tree(failed, sibling),
            tree(wordy, sibling),
            *(tree(first, sibling) for first in others),
            tree(parent, sibling, children),
            tree(plain, sibling, siblings, at=1),
            tree(plain, sibling, siblings[:1], at=1),
            *endings_of(plain, sibling),
        ),
        NESTED: (
            tree(plain, above),
            tree(plain, above_twice, cousins, at=1),
            tree(plain, above, siblings, at=1),
            tree(plain, above, siblings[:1], at=1),
            *endings_of(plain, above),
        ),
    }


def _agent(
    agent_id: AgentId, born_at: int | None, turns: tuple[Turn, ...], status: Status = Status.ANSWERED
) -> AgentRecord:
    documents = tuple(_DOCUMENTS[clone] for clone in _DOCUMENTS if clone.is_under(agent_id) and agent_id != ROOT)
    return AgentRecord(
        agent_id, "", documents, None, born_at, status, turns, "1" if status is Status.ANSWERED else None
    )


def _with_text(turn: Turn, text: str) -> Turn:
    return replace(turn, generation=replace(turn.generation, text=text))


def _turn(tokens: int, outcome: Outcome = Outcome.ANSWERED, children: tuple[AgentId, ...] = ()) -> Turn:
    outcome = Outcome.DELEGATED if children else outcome
    facts = TurnFacts(1, tokens, 8, FinishReason.STOP, outcome, children=children)
    ids = tuple(range(tokens))
    return Turn(facts, Generation("", FinishReason.STOP, (9,), ids, tuple(-0.1 - 0.2 * i for i in ids)))
