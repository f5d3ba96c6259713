"""Synthetic groups for the conformance suite: scored episodes and their replays, without a game or a policy.

Every episode is the same tree: two clones in a first call (the second one has a clone), and one in a second call. The
return is a number of the episode, plus random values of its clones, plus noise. The value of a clone is one part of the
return, and the clone has the document of that part; a fraction of it is also the judgement of the clone's last turn.
Two clones have the value 0. A replay draws again the values of clones that were replayed, and the noise.
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
from selfcest_training.credit.base import ReplayRecords

FIRST, SECOND, THIRD = (ROOT.child(i) for i in range(3))
NESTED = SECOND.child(0)
# Clones that never matter.
NULL_PLAYERS = (FIRST, NESTED)
_VALUES = {FIRST: 0.0, SECOND: 1.0, THIRD: 0.5, NESTED: 0.0}
_DOCUMENTS = {FIRST: "A", SECOND: "B", THIRD: "C", NESTED: "D"}
# Numbers of tokens and texts of answers.
_ANSWERS = ((4, "2"), (7, "12"), (5, "313"), (1, "x"))
_TASK = Task("synthetic", "?", "1", "synthetic")


def mirror_id(agent_id: AgentId) -> AgentId:
    """Swap the ids of the two clones of the first call, and of all below them. It is its own inverse."""
    if not agent_id.path:
        return agent_id
    head, *rest = agent_id.path
    return AgentId(({0: 1, 1: 0}.get(head, head), *rest))


def mirror_key(key: TurnKey) -> TurnKey:
    return replace(key, agent_id=mirror_id(key.agent_id))


def mirror_replay(replay: Replay, episode_ids: Mapping[str, str] = MappingProxyType({})) -> Replay:
    """Swap the two clones in a replay. `episode_ids` maps ids of first replays to those of their mirrored replays."""
    interventions = {mirror_id(agent_id): intervention for agent_id, intervention in replay.interventions}
    return Replay.of(episode_ids.get(replay.episode_id, replay.episode_id), interventions, replay.sample)


def mirror_record(record: EpisodeRecord) -> EpisodeRecord:
    """Swap the two clones of the first call in an episode."""
    agents = [
        replace(agent, agent_id=mirror_id(agent.agent_id), turns=tuple(map(_mirror_turn, agent.turns)))
        for agent in record.agents
    ]
    by_turn = {}
    for term, values_by_agent in record.by_turn.items():
        by_turn[term] = {mirror_id(agent_id): values for agent_id, values in values_by_agent.items()}
    return replace(record, agents=tuple(sorted(agents, key=lambda agent: agent.agent_id)), by_turn=by_turn)


def _mirror_turn(turn: Turn) -> Turn:
    if not turn.facts.children:
        return turn
    children = tuple(sorted(mirror_id(child) for child in turn.facts.children))
    return replace(turn, facts=replace(turn.facts, children=children))


_Tree = tuple[AgentRecord, ...]
# Gives for a clone the id of the episode or replay in which its turns were played last.
_OriginOf = Callable[[AgentId], str]


def _get_episode_origin(episode_id: str, _: AgentId) -> str:
    return episode_id


def _get_replay_origin(replay: Replay, episode: EpisodeRecord, origin_of: _OriginOf, clone: AgentId) -> str:
    """Get the origin of a clone in a replay of `episode`, whose clones have the origins of `origin_of`."""
    # The last turn is played again if any turn of the clone is.
    last_turn = len(episode.by_id[clone].turns) - 1
    return str(replay) if is_replayed_turn(replay, episode, clone, last_turn) else origin_of(clone)


class SyntheticGroup:
    """A group of `size` episodes and their replays. All random values are functions of `seed`."""

    def __init__(self, seed: int, size: int = 4) -> None:
        self.seed = seed
        self.group = EpisodeGroup(_TASK, tuple(self._make_episode(f"w{seed}.e{k}", k) for k in range(size)))

    def play(
        self, replays: Sequence[Replay], first: ReplayRecords = MappingProxyType({})
    ) -> dict[Replay, EpisodeRecord]:
        """Play replays and return their scored records.

        Args:
            replays: replays of episodes of `group`, or of replays in `first`.
            first: the records of a first round of replays.
        """
        # Number, record and origins of the clones' turns, for every episode and replay by id.
        played: dict[str, tuple[int, EpisodeRecord, _OriginOf]] = {}
        for k, episode in enumerate(self.group.episodes):
            played[episode.episode_id] = k, episode, partial(_get_episode_origin, episode.episode_id)
        for replay, record in first.items():
            k, episode, origin_of = played[replay.episode_id]
            played[record.episode_id] = k, record, partial(_get_replay_origin, replay, episode, origin_of)
        return {replay: self._play_replay(replay, *played[replay.episode_id]) for replay in replays}

    def _make_episode(self, episode_id: str, k: int) -> EpisodeRecord:
        agents = _make_agents(failed=k == 1)
        seed = stream_seed("synthetic", self.seed, k)
        record = EpisodeRecord(episode_id, _TASK, Limits(max_depth=2), seed, agents)
        return self._score(record, k, {clone: self._draw_value(episode_id, clone) for clone in _VALUES})

    def _play_replay(self, replay: Replay, k: int, episode: EpisodeRecord, origin_of: _OriginOf) -> EpisodeRecord:
        absent = [agent_id for agent_id, intervention in replay.interventions if intervention.absent]
        agents = []
        for agent in episode.agents:
            # The clones of an absent clone do not exist.
            if any(agent.agent_id != clone and agent.agent_id.is_under(clone) for clone in absent):
                continue
            if agent.agent_id in absent:
                agent = replace(agent, turns=(), reply=None, status=Status.ABSENT)
            agents.append(agent)
        record = replace(episode, episode_id=str(replay), agents=tuple(agents))
        values = dict.fromkeys(_VALUES, 0.0)
        for agent in agents:
            if agent.turns and agent.agent_id in _VALUES:
                origin = _get_replay_origin(replay, episode, origin_of, agent.agent_id)
                values[agent.agent_id] = self._draw_value(origin, agent.agent_id)
        return self._score(record, k, values)

    def _score(self, record: EpisodeRecord, k: int, values: Mapping[AgentId, float]) -> EpisodeRecord:
        """Score the record of episode number `k`, or of its replay, by the values of its clones."""
        parts = {_DOCUMENTS[clone]: value for clone, value in values.items()}
        judgements: dict[AgentId, tuple[float, ...]] = {}
        for agent in record.agents:
            if agent.turns and agent.agent_id in values:
                earlier_turns = (0.0,) * (len(agent.turns) - 1)
                judgements[agent.agent_id] = (*earlier_turns, 0.3 * values[agent.agent_id])
        terms = {
            "score": sum(parts.values()),
            "judged": sum(sum(by_turn) for by_turn in judgements.values()),
            "rest": 0.7 * k + 0.2 * self._draw_uniform(record.episode_id, "noise"),
        }
        return replace(record, reward_terms=terms, parts={"score": parts}, by_turn={"judged": judgements})

    def _draw_value(self, origin: str, clone: AgentId) -> float:
        return _VALUES[clone] * (self._draw_uniform(origin, str(clone)) < 0.5)

    def _draw_uniform(self, *key: str) -> float:
        return stream_seed("synthetic", self.seed, *key) / 2**63


@cache
def _make_agents(failed: bool) -> tuple[AgentRecord, ...]:
    """Make the tree of agents, with turns of different lengths. If it failed, the first clone never answers."""
    root = (_turn(2, children=(FIRST, SECOND)), _turn(1, children=(THIRD,)), _turn(3))
    first = (_turn(2, Outcome.MALFORMED), _turn(1, Outcome.MALFORMED if failed else Outcome.ANSWERED))
    return (
        _agent(ROOT, None, root),
        _agent(FIRST, 0, first, Status.OUT_OF_TURNS if failed else Status.ANSWERED),
        _agent(SECOND, 0, (_turn(1, children=(NESTED,)), _turn(2))),
        _agent(NESTED, 0, (_turn(3),)),
        _agent(THIRD, 1, (_turn(1),)),
    )


def make_trees(num_children: int = 24) -> dict[AgentId, tuple[tuple[AgentRecord, ...], ...]]:
    """Make for two clones trees of agents that differ only in consequences of the clone's first turn.

    The first tree of a clone is the smallest one. The others change the clone's turns and reply, give more clones to
    it, its parent or the root after its first turn, or change the root's last turn and status.

    Args:
        num_children: clones of the largest calls. More than any likely fixed number of replays.
    """
    answer = (_turn(2),)
    sibling = _agent(SECOND, 0, answer)

    def list_children(parent: AgentId, start: int) -> tuple[AgentId, ...]:
        return tuple(parent.child(index) for index in range(start, start + num_children))

    def make_tree(
        first: AgentRecord,
        second: AgentRecord,
        more_clones: tuple[AgentId, ...] = (),
        born_at: int = 0,
        last_turn: Turn | None = None,
        status: Status = Status.ANSWERED,
        reply: str | None = "1",
    ) -> _Tree:
        """Make the tree of a root that calls two clones.

        Args:
            first, second: the two clones.
            more_clones: clones of one further call.
            born_at: the turn of that call.
            last_turn: the root's last turn; an answer by default.
            status, reply: of the root.
        """
        turns = [_turn(2, children=(FIRST, SECOND))]
        if more_clones and more_clones[0].parent == ROOT:
            turns.append(_turn(1, children=more_clones))
        turns.append(last_turn or _turn(3))
        agents = [replace(_agent(ROOT, None, tuple(turns), status), reply=reply), first, second]
        # A second clone with more than one turn has called NESTED in its first one.
        if len(second.turns) > 1:
            agents.append(_agent(NESTED, 0, answer))
        agents += [_agent(child, born_at, answer) for child in more_clones]
        return tuple(sorted(agents, key=lambda agent: agent.agent_id))

    def make_trees_with_endings(first: AgentRecord, second: AgentRecord) -> list[_Tree]:
        """Make trees with different last turns of the root."""
        # Several answers, so that a hash or a parity of the answer has different values.
        trees = [
            make_tree(first, second, last_turn=_with_text(_turn(tokens), text), reply=text) for tokens, text in _ANSWERS
        ]
        malformed = _turn(2, Outcome.MALFORMED)
        trees.append(make_tree(first, second, last_turn=malformed, status=Status.OUT_OF_TURNS, reply=None))
        return trees

    clone = _agent(FIRST, 0, answer)
    failed = _agent(FIRST, 0, (_turn(2, Outcome.MALFORMED), _turn(1, Outcome.MALFORMED)), Status.OUT_OF_TURNS)
    long_clone = replace(_agent(FIRST, 0, (_turn(40),)), reply="2")
    answering = [replace(_agent(FIRST, 0, (_with_text(_turn(size), text),)), reply=text) for size, text in _ANSWERS]
    children = list_children(FIRST, 0)
    parent = _agent(FIRST, 0, (_turn(2, children=children), _turn(1)))
    siblings = list_children(ROOT, 2)

    call = _turn(1, children=(NESTED,))
    nested_parent = _agent(SECOND, 0, (call, _turn(2)))
    nested_siblings = list_children(SECOND, 1)
    calling_twice = _agent(SECOND, 0, (call, _turn(1, children=nested_siblings), _turn(2)))
    return {
        FIRST: (
            make_tree(clone, sibling),
            make_tree(failed, sibling),
            make_tree(long_clone, sibling),
            *(make_tree(first, sibling) for first in answering),
            make_tree(parent, sibling, children),
            make_tree(clone, sibling, siblings, born_at=1),
            make_tree(clone, sibling, siblings[:1], born_at=1),
            *make_trees_with_endings(clone, sibling),
        ),
        NESTED: (
            make_tree(clone, nested_parent),
            make_tree(clone, calling_twice, nested_siblings, born_at=1),
            make_tree(clone, nested_parent, siblings, born_at=1),
            make_tree(clone, nested_parent, siblings[:1], born_at=1),
            *make_trees_with_endings(clone, nested_parent),
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
