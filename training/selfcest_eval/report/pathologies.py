"""What goes wrong in delegation, each defined once as a function of records, and counted.

Of one episode: serial collapse, redundant objectives, ignored replies, calls or reads refused without recovery. Of all
episodes of a policy on a family: never or always delegating. Of a training group: nothing to learn from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.types import ROOT, AgentId, Fault, Outcome, Status, TurnFacts
from selfcest_training.run.metrics import equal_returns

MIN_EPISODES = 20  # of a policy on a family; with fewer nothing is said of never and always

MEANINGS = MappingProxyType(
    {
        "never delegates": "No episode of the family has a clone, though its limits allow them and it has several "
        f"sizes, and at least {MIN_EPISODES} episodes were played. Counted in families.",
        "always delegates": "Likewise, every episode has one.",
        "serial collapse": "An agent that may call several clones at once calls twice or more, and no call of its has "
        "more than one clone: nothing runs in parallel. Of episodes in which some agent calls twice.",
        "redundant objectives": "Two clones of one call have the same objective, up to case and spaces, and the same "
        "documents. Of episodes in which some call has two clones.",
        "ignored replies": "The root goes on after a call, and nothing that it writes later contains any word of the "
        "reply of some clone of that call. Words are runs of letters and digits, and may be parts of longer ones; who "
        "uses a reply without writing it down is counted too. Of episodes in which the root goes on after a reply.",
        "refused without recovery": "An agent's call for clones is refused, whole or in part, and the agent ends "
        "without an answer. Of episodes with a refused call.",
        "refused reads": "An agent's read of documents is refused, and the agent ends without an answer. Of episodes "
        "with a refused read. Records do not name the tool: who has both, and is refused for what both can be refused "
        "for, is counted here and among calls in neither.",
        "equal groups": "All episodes of a training group earn the same, so that no credit relative to the group "
        "learns from it. Of the groups that the run has stored.",
    }
)


@dataclass(frozen=True)
class Location:
    """A turn of an episode that shows a pathology, and how much of it there is (more is worse)."""

    agent_id: AgentId
    turn: int
    severity: int


@dataclass(frozen=True)
class Detection:
    """One episode looked at for one pathology: whether it could be there, and where it is worst if it is."""

    possible: bool
    location: Location | None = None


def serial_collapse(record: EpisodeRecord) -> Detection:
    """Agents that call twice or more, one clone at a time; severity: calls."""
    locations, possible = [], False
    for agent in record.agents:
        calls = [(turn, len(found.facts.children)) for turn, found in enumerate(agent.turns) if found.facts.children]
        if len(calls) > 1 and record.limits.max_clones_per_call != 1:
            possible = True
            if all(clones == 1 for _, clones in calls):
                locations.append(Location(agent.agent_id, calls[0][0], len(calls)))
    return Detection(possible, _worst(locations))


def redundant_objectives(record: EpisodeRecord) -> Detection:
    """Clones of a call that another one of that call makes superfluous; severity: how many."""
    locations, possible = [], False
    for agent in record.agents:
        for turn, found in enumerate(agent.turns):
            clones = [record.by_id[child] for child in found.facts.children]
            asked = {(" ".join(c.objective.casefold().split()), frozenset(c.shared_context)) for c in clones}
            possible |= len(clones) > 1
            if len(asked) < len(clones):
                locations.append(Location(agent.agent_id, turn, len(clones) - len(asked)))
    return Detection(possible, _worst(locations))


def ignored_replies(record: EpisodeRecord) -> Detection:
    """Replies of which the root writes no word afterwards; severity: how many of a call."""
    locations, possible, turns = [], False, record.root.turns
    for turn, found in enumerate(turns[:-1]):  # after the last turn nobody goes on
        later = " ".join(other.generation.text for other in turns[turn + 1 :]).casefold()
        replies = [_words(record.by_id[child].reply or "") for child in found.facts.children]
        possible |= any(replies)
        ignored = sum(bool(reply) and not any(word in later for word in reply) for reply in replies)
        if ignored:
            locations.append(Location(ROOT, turn, ignored))
    return Detection(possible, _worst(locations))


def refused_without_recovery(record: EpisodeRecord) -> Detection:
    """Refused calls for clones of agents that never answer; severity: calls."""
    return _never_answered(record, "call")


def refused_reads(record: EpisodeRecord) -> Detection:
    """Refused reads of agents that never answer; severity: reads."""
    return _never_answered(record, "read")


def _never_answered(record: EpisodeRecord, tool: str) -> Detection:
    locations, possible = [], False
    reading = record.limits.reading and bool(record.task.context)
    for agent in record.agents:
        calling = record.limits.delegation and (
            record.limits.max_depth is None or agent.agent_id.depth < record.limits.max_depth
        )
        refused = [i for i, turn in enumerate(agent.turns) if _refused(turn.facts, calling, reading) == tool]
        possible |= bool(refused)
        if refused and agent.status is not Status.ANSWERED:
            locations.append(Location(agent.agent_id, refused[0], len(refused)))
    return Detection(possible, _worst(locations))


def _refused(facts: TurnFacts, calling: bool, reading: bool) -> str | None:
    """What was refused, as far as a record tells: by the fault, else by the one tool that the agent has."""
    if facts.refused or facts.fault is Fault.TOO_MANY_CLONES:
        return "call"
    if facts.fault is Fault.TOO_MANY_READS:
        return "read"
    if facts.outcome is not Outcome.REFUSED or (calling and reading):
        return None
    return "read" if reading else "call"


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.casefold()))


def _worst(locations: Iterable[Location]) -> Location | None:
    return max(locations, key=lambda location: location.severity, default=None)


OF_EPISODES: Mapping[str, Callable[[EpisodeRecord], Detection]] = MappingProxyType(
    {
        "serial collapse": serial_collapse,
        "redundant objectives": redundant_objectives,
        "ignored replies": ignored_replies,
        "refused without recovery": refused_without_recovery,
        "refused reads": refused_reads,
    }
)


@dataclass(frozen=True)
class Occurrence:
    """A turn of an episode that is stored in `file`, and in words what the episode was played as."""

    file: Path
    record: EpisodeRecord
    played_as: str
    agent_id: AgentId = ROOT
    turn: int = 0


@dataclass
class Count:
    """How often a pathology was seen, of how often it could have been, and the worst place."""

    found: int = 0
    possible: int = 0
    worst: Occurrence | None = None
    _rank: tuple[float, ...] = ()

    def add(self, place: Occurrence | None, rank: tuple[float, ...] = ()) -> None:
        """One more that could have been; with a place it was. The highest rank is the worst, of equals the first."""
        self.possible += 1
        if place is not None:
            self.found += 1
            if self.worst is None or rank > self._rank:
                self.worst, self._rank = place, rank


@dataclass
class _Family:
    """Episodes of one policy on one family."""

    sizes: set[str] = field(default_factory=set)
    episodes: int = 0
    delegated: int = 0
    poorest: dict[bool, tuple[float, Occurrence]] = field(default_factory=dict)


class Pathologies:
    """Counts, of episodes as they are read one by one; it keeps the worst of each alone.

    Attributes:
        counts: by pathology and whose it is: a strategy's, or a variant's for groups.
    """

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], Count] = {}
        self._families: dict[tuple[str, str], _Family] = {}

    def episode(self, owner: str, family: str, size: str, file: Path, record: EpisodeRecord) -> None:
        """Look at one evaluated episode of a policy."""
        played_as = f"{owner} on {family} {size}"
        for name, look in OF_EPISODES.items():
            detection = look(record)
            if detection.possible:
                location = detection.location
                place = Occurrence(file, record, played_as, location.agent_id, location.turn) if location else None
                self._count(name, owner).add(place, (location.severity, -record.team_return) if location else ())
        if record.limits.delegation and record.root.turns:
            self._remember(owner, family, size, Occurrence(file, record, played_as))

    def group(self, owner: str, file: Path, group: EpisodeGroup) -> None:
        """Look at one training group of a variant; the worst is the one that cost most."""
        place = Occurrence(file, group.episodes[0], f"{owner} in training") if equal_returns(group) else None
        cost = sum(episode.cost.generated_tokens for episode in group.episodes)
        self._count("equal groups", owner).add(place, (cost,))

    def finish(self) -> dict[tuple[str, str], Count]:
        """All counts, once every episode has been looked at."""
        for (owner, _), family in self._families.items():
            if len(family.sizes) > 1 and family.episodes >= MIN_EPISODES:
                for name, share in (("never delegates", 0), ("always delegates", family.episodes)):
                    poorest = family.poorest.get(bool(share))
                    there = family.delegated == share and poorest is not None
                    self._count(name, owner).add(poorest[1] if there and poorest else None)
        self._families.clear()
        order = list(MEANINGS)
        return dict(sorted(self.counts.items(), key=lambda item: order.index(item[0][0])))

    def _count(self, name: str, owner: str) -> Count:
        return self.counts.setdefault((name, owner), Count())

    def _remember(self, owner: str, family: str, size: str, place: Occurrence) -> None:
        found = self._families.setdefault((owner, family), _Family())
        delegated, earned = place.record.cost.clones > 0, place.record.team_return
        found.sizes.add(size)
        found.episodes += 1
        found.delegated += delegated
        if delegated not in found.poorest or earned < found.poorest[delegated][0]:
            found.poorest[delegated] = earned, place
