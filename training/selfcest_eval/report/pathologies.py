"""Pathologies of delegation, each defined once as a function of records, and counted.

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
from selfcest_eval.play.costs import at_most
from selfcest_eval.play.results import Result
from selfcest_training.run.metrics import has_equal_returns

MIN_EPISODES = 20  # of a policy on a family, below which "never" and "always" are not counted

_TRAINING_STEP = re.compile(r"s(\d+)\.")

MEANINGS = MappingProxyType(
    {
        "never delegates": "No episode of the family has a clone, though its limits allow them and it has several "
        f"sizes, and at least {MIN_EPISODES} episodes were played. Counted in families.",
        "always delegates": "Likewise, every episode has a clone.",
        "serial collapse": "An agent that may call several clones at once calls twice or more, and none of its calls "
        "has more than one clone: nothing runs in parallel. Of episodes in which some agent calls twice.",
        "redundant objectives": "Two clones of one call have the same objective, up to case and spaces, and the same "
        "documents. Of episodes in which some call has two clones.",
        "ignored replies": "The root continues after a call, and nothing that it writes later contains any word of the "
        "reply of some clone of that call. Words are runs of letters and digits, and may be parts of longer ones; a "
        "root that uses a reply without writing it down is counted too. Of episodes in which the root continues after "
        "a reply.",
        "refused without recovery": "An agent's call for clones is refused, whole or in part, and the agent ends "
        "without an answer. Of episodes with a refused call.",
        "refused reads": "An agent's read of documents is refused, and the agent ends without an answer. Of episodes "
        "with a refused read. Records do not name the tool: an agent with both tools, whose refusal fits both, is "
        "counted neither here nor among calls.",
        "equal groups": "All episodes of a training group earn the same, so that no credit relative to the group "
        "learns from it. Of the groups that the run has stored.",
    }
)


@dataclass(frozen=True)
class Location:
    """A turn of an episode that shows a pathology, and its severity: more is worse."""

    agent_id: AgentId
    turn: int
    severity: int


@dataclass(frozen=True)
class Detection:
    """One pathology in one episode: whether the episode could have it, and where it is worst if it has."""

    possible: bool
    location: Location | None = None


def detect_serial_collapse(record: EpisodeRecord) -> Detection:
    """Find agents that call twice or more, one clone at a time. Severity: their calls."""
    locations = []
    is_possible = False
    for agent in record.agents:
        calls = [index for index, turn in enumerate(agent.turns) if turn.facts.children]
        if len(calls) > 1 and record.limits.max_clones_per_call != 1:
            is_possible = True
            if all(len(agent.turns[index].facts.children) == 1 for index in calls):
                locations.append(Location(agent.agent_id, calls[0], len(calls)))
    return Detection(is_possible, _find_worst(locations))


def detect_redundant_objectives(record: EpisodeRecord) -> Detection:
    """Find clones of a call that another clone of that call makes superfluous. Severity: their number."""
    locations = []
    is_possible = False
    for agent in record.agents:
        for index, turn in enumerate(agent.turns):
            clones = [record.by_id[child] for child in turn.facts.children]
            requests = {(" ".join(c.objective.casefold().split()), frozenset(c.shared_context)) for c in clones}
            is_possible |= len(clones) > 1
            if len(requests) < len(clones):
                locations.append(Location(agent.agent_id, index, len(clones) - len(requests)))
    return Detection(is_possible, _find_worst(locations))


def detect_ignored_replies(record: EpisodeRecord) -> Detection:
    """Find replies of which the root writes no word afterwards. Severity: their number in one call."""
    locations = []
    is_possible = False
    turns = record.root.turns
    # After its last turn the root writes nothing, so that call is left out.
    for index, turn in enumerate(turns[:-1]):
        later_text = " ".join(later.generation.text for later in turns[index + 1 :]).casefold()
        replies = [_words(record.by_id[child].reply or "") for child in turn.facts.children]
        is_possible |= any(replies)
        ignored = [reply for reply in replies if reply and not any(word in later_text for word in reply)]
        if ignored:
            locations.append(Location(ROOT, index, len(ignored)))
    return Detection(is_possible, _find_worst(locations))


def detect_unanswered_calls(record: EpisodeRecord) -> Detection:
    """Find refused calls for clones of agents that never answer. Severity: the calls of one agent."""
    return _find_unanswered_refusals(record, "call")


def detect_unanswered_reads(record: EpisodeRecord) -> Detection:
    """Find refused reads of agents that never answer. Severity: the reads of one agent."""
    return _find_unanswered_refusals(record, "read")


def _find_unanswered_refusals(record: EpisodeRecord, tool: str) -> Detection:
    locations = []
    is_possible = False
    limits = record.limits
    can_read = limits.reading and bool(record.task.context)
    for agent in record.agents:
        can_call = limits.delegation and (limits.max_depth is None or agent.agent_id.depth < limits.max_depth)
        refused = [i for i, turn in enumerate(agent.turns) if _refused_tool(turn.facts, can_call, can_read) == tool]
        is_possible |= bool(refused)
        if refused and agent.status is not Status.ANSWERED:
            locations.append(Location(agent.agent_id, refused[0], len(refused)))
    return Detection(is_possible, _find_worst(locations))


def _refused_tool(facts: TurnFacts, can_call: bool, can_read: bool) -> str | None:
    """Return the refused tool as far as a record tells it: by the fault, else by the only tool of the agent."""
    if facts.refused or facts.fault is Fault.TOO_MANY_CLONES:
        return "call"
    if facts.fault is Fault.TOO_MANY_READS:
        return "read"
    if facts.outcome is not Outcome.REFUSED or (can_call and can_read):
        return None
    return "read" if can_read else "call"


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.casefold()))


def _find_worst(locations: Iterable[Location]) -> Location | None:
    return max(locations, key=lambda location: location.severity, default=None)


EPISODE_DETECTORS: Mapping[str, Callable[[EpisodeRecord], Detection]] = MappingProxyType(
    {
        "serial collapse": detect_serial_collapse,
        "redundant objectives": detect_redundant_objectives,
        "ignored replies": detect_ignored_replies,
        "refused without recovery": detect_unanswered_calls,
        "refused reads": detect_unanswered_reads,
    }
)


@dataclass(frozen=True)
class Occurrence:
    """A turn of an episode that is stored in `file`, and in words the strategy and the eval set that it belongs to."""

    file: Path
    record: EpisodeRecord
    played_as: str
    agent_id: AgentId = ROOT
    turn: int = 0


ExampleKey = tuple[str, str, str, int | None]  # strategy, family, size and budget


@dataclass(frozen=True)
class Example:
    """An episode of one cell of a report: a wrong one if there is any."""

    occurrence: Occurrence
    is_right: bool


@dataclass
class Count:
    """The occurrences of a pathology, of all that were possible, and the worst occurrence."""

    found: int = 0
    possible: int = 0
    worst: Occurrence | None = None
    _rank: tuple[float, ...] = ()

    def add(self, occurrence: Occurrence | None, rank: tuple[float, ...] = ()) -> None:
        """Count one possible occurrence; `None`: the pathology was absent.

        The occurrence with the highest rank is the worst, of equal ones the first.
        """
        self.possible += 1
        if occurrence is not None:
            self.found += 1
            if self.worst is None or rank > self._rank:
                self.worst = occurrence
                self._rank = rank


@dataclass
class _FamilyCounts:
    """The episodes of one policy on one family.

    Attributes:
        sizes: their sizes.
        episodes, delegated: how many there are, and how many have a clone.
        poorest: by whether they have a clone, the lowest return and its episode.
    """

    sizes: set[str] = field(default_factory=set)
    episodes: int = 0
    delegated: int = 0
    poorest: dict[bool, tuple[float, Occurrence]] = field(default_factory=dict)


class PathologyCounter:
    """Counts of pathologies, over episodes that are read one by one. It keeps the worst episode of each, and examples.

    Attributes:
        counts: by pathology and owner: a strategy, or for training groups a variant.
        examples: an example for each strategy, family, size and budget.
        training_examples: the first stored episode of each variant and training step.
    """

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], Count] = {}
        self.examples: dict[ExampleKey, Example] = {}
        self.training_examples: dict[tuple[str, int], Occurrence] = {}
        self._families: dict[tuple[str, str], _FamilyCounts] = {}

    def add_result(self, file: Path, result: Result) -> None:
        """Count the pathologies of the episode of a result whose answer counts."""
        key = result.place
        record = result.episodes[result.chosen]
        self.add_episode(key.strategy, key.family, key.size, file, record)
        example_key = (key.strategy, key.family, key.size, key.budget)
        example = self.examples.get(example_key)
        if example is None or (example.is_right and not result.grade.correct):
            played_as = f"{key.strategy} on {key.family} {key.size}, {at_most(key.budget)}"
            self.examples[example_key] = Example(Occurrence(file, record, played_as), bool(result.grade.correct))

    def add_episode(self, owner: str, family: str, size: str, file: Path, record: EpisodeRecord) -> None:
        """Count the pathologies of one evaluated episode of a strategy."""
        played_as = f"{owner} on {family} {size}"
        for name, detect in EPISODE_DETECTORS.items():
            detection = detect(record)
            location = detection.location
            if location is not None:
                occurrence = Occurrence(file, record, played_as, location.agent_id, location.turn)
                self._count(name, owner).add(occurrence, (location.severity, -record.team_return))
            elif detection.possible:
                self._count(name, owner).add(None)
        if record.limits.delegation and record.root.turns:
            self._add_to_family(owner, family, size, Occurrence(file, record, played_as))

    def add_group(self, owner: str, file: Path, group: EpisodeGroup) -> None:
        """Count one training group of a variant. The worst group is the one with the most generated tokens."""
        occurrence = Occurrence(file, group.episodes[0], f"{owner} in training")
        step = _TRAINING_STEP.match(group.episodes[0].episode_id)
        if step is not None:
            self.training_examples.setdefault((owner, int(step[1])), occurrence)
        tokens = sum(episode.cost_of("generated_tokens") for episode in group.episodes)
        self._count("equal groups", owner).add(occurrence if has_equal_returns(group) else None, (tokens,))

    def finish(self) -> dict[tuple[str, str], Count]:
        """Return all counts, after the last episode."""
        for (owner, _), family in self._families.items():
            if len(family.sizes) > 1 and family.episodes >= MIN_EPISODES:
                never = family.poorest[False][1] if family.delegated == 0 else None
                always = family.poorest[True][1] if family.delegated == family.episodes else None
                self._count("never delegates", owner).add(never)
                self._count("always delegates", owner).add(always)
        self._families.clear()
        order = list(MEANINGS)
        return dict(sorted(self.counts.items(), key=lambda item: order.index(item[0][0])))

    def _count(self, name: str, owner: str) -> Count:
        return self.counts.setdefault((name, owner), Count())

    def _add_to_family(self, owner: str, family: str, size: str, occurrence: Occurrence) -> None:
        counts = self._families.setdefault((owner, family), _FamilyCounts())
        has_clones = occurrence.record.cost_of("clones") > 0
        team_return = occurrence.record.team_return
        counts.sizes.add(size)
        counts.episodes += 1
        counts.delegated += has_clones
        if has_clones not in counts.poorest or team_return < counts.poorest[has_clones][0]:
            counts.poorest[has_clones] = (team_return, occurrence)
