"""The expert for bAbI's questions about people, things and rooms.

Task 1 asks where a person is, task 6 whether a person is in a room, task 2 where a thing is, task 3 where it was before
another room. The expert extracts from each part of a story the last room of a person. For a thing (task 2) it asks a
clone for each part for the last taking or dropping. Unless that reply has the room, it asks for the last room of that
person; a thing whose last person has no room gets no answer. For task 3 it copies all statements. A reader of task 2
quotes the two statements from which the room follows: bAbI's supporting facts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from selfcest_env.tasks.source import (
    GIVE_UP,
    LastCall,
    Proposal,
    Style,
    documents_in_sight,
    find_last_call,
    may_delegate,
    may_read,
)
from selfcest_env.types import Action, Answer, CloneRequest, Delegate, Read
from selfcest_env.views import Observation

NOWHERE = "nowhere"
NOTHING = "nothing"
TAKES = "takes"
DROPS = "drops"
# The official grammar of tasks 1 to 3.
ROOMS = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
MOVE_VERBS = ("moved", "went", "went back", "journeyed", "travelled")
TAKE_VERBS = ("got", "took", "picked up", "grabbed")
DROP_VERBS = ("dropped", "discarded", "put down", "left")
_QUESTIONS = (
    re.compile(r"Where is (?P<person>[A-Z][a-z]+)\?"),
    re.compile(r"Is (?P<person>[A-Z][a-z]+) in the (?P<room>[a-z]+)\?"),
    re.compile(r"Where is the (?P<thing>[a-z]+)\?"),
    re.compile(r"Where was the (?P<thing>[a-z]+) before the (?P<room>[a-z]+)\?"),
)
_PERSON_IN_PART = "Where is {} at the end of your part? Answer 'nowhere' if it does not say."
_THING_IN_PART = (
    "Quote the last sentence of your part in which a person takes or drops the {}. If it is dropped, also quote the "
    "last sentence before that in which this person goes to a room. Answer 'nothing' if there is none."
)
_ALL_IN_PART = (
    "Copy each sentence of your part in which a person goes to a room, or takes or drops a thing. "
    "Answer 'nothing' if there is none."
)
_PART_QUESTIONS = (
    re.compile(re.escape(_PERSON_IN_PART).replace(r"\{\}", "(?P<person>[A-Za-z]+)")),
    re.compile(re.escape(_THING_IN_PART).replace(r"\{\}", "(?P<thing>[a-z]+)")),
    re.compile(re.escape(_ALL_IN_PART)),
)
_EVENT = re.compile(
    r"\b(?P<person>[A-Z][a-z]+) (?:"
    rf"(?:{'|'.join(MOVE_VERBS)}) to the (?P<room>{'|'.join(ROOMS)})"
    rf"|(?:(?P<takes>{'|'.join(TAKE_VERBS)})|(?:{'|'.join(DROP_VERBS)})) the (?P<thing>[a-z]+))\b[^.]*\.?"
)
_PERSON_IN_MEMORY = re.compile(r"([A-Z][a-z]+) in ([a-z]+)")
_HOLDER_IN_MEMORY = re.compile(r"[a-z]+ with ([A-Z][a-z]+)")
_ROOMS_IN_MEMORY = re.compile(r"[a-z]+ in ([a-z]+(?:, [a-z]+)*)")


@dataclass(frozen=True, slots=True)
class Event:
    """An act of a person.

    Attributes:
        person: name of the person.
        does: the room to which the person goes, `TAKES` or `DROPS`.
        thing: the thing that the person takes or drops.
        statement: the sentence that says it.
    """

    person: str
    does: str
    thing: str
    statement: str


def understands(observation: Observation) -> bool:
    return _match_question(observation.brief.text, (*_QUESTIONS, *_PART_QUESTIONS)) is not None


def propose(observation: Observation, style: Style) -> Proposal:
    """Ask clones about their parts, or read all parts, and conclude from the events."""
    seen = documents_in_sight(observation)
    objective = _match_question(observation.brief.text, _PART_QUESTIONS)
    if objective is not None:
        text = " ".join(seen.values())
        return Proposal(Answer(_report(objective, text)), _quote(objective, text)) if seen else GIVE_UP
    question = _match_question(observation.brief.text, _QUESTIONS)
    if question is None:
        return GIVE_UP
    call = find_last_call(observation)
    if call:
        proposal = _conclude_from_clones(observation, question, call)
        if proposal is not None:
            return proposal
    keys = observation.brief.keys
    missing = tuple(key for key in keys if key not in seen)
    if not missing:
        texts = [seen[key] for key in keys] or list(seen.values())
        if "person" in question:
            proposal = _conclude(question, [_report(question, text) for text in texts])
            return replace(proposal, thought=proposal.thought or _quote(question, " ".join(texts)))
        copied = [_copy(text) for text in texts]
        proposal = _conclude(question, copied)
        # A reader copies the statements as well, before it follows the thing.
        thought = " ".join(report for report in copied if report != NOTHING)
        return replace(proposal, thought=f"{thought}\n{proposal.thought}") if thought else proposal
    # Whether an action is possible, and the action; the preferred one first.
    options: list[tuple[bool, Action]] = [
        (may_read(observation), Read(missing)),
        (
            call is None and may_delegate(observation, len(missing)),
            Delegate(tuple(CloneRequest(_write_objective(question), (key,)) for key in missing)),
        ),
    ]
    if style is Style.DELEGATE:
        options.reverse()
    return next((Proposal(action) for is_possible, action in options if is_possible), GIVE_UP)


def people(question: str, statements: Iterable[str]) -> frozenset[str]:
    """Return the people that a question names, and those of the events in its story."""
    # The first word of a question has a capital without being a name.
    names_in_question = re.findall(r"(?<!^)\b[A-Z][a-z]+", question)
    return frozenset([*names_in_question, *(event.person for event in _find_events(" ".join(statements)))])


def is_event(sentence: str) -> bool:
    """Return whether the expert would read an event in a sentence."""
    return _EVENT.search(sentence) is not None


def remember(question: str, memory: str, key: str, text: str) -> Proposal:
    """Answer with the memory after a part of the story. The thought is the report of that part.

    For a person the thought is the statement from which the report follows. The memory of task 2 is the last report
    that has something, after the key of its part.

    Args:
        question: question about the whole story.
        memory: memory before the part; a text without facts, such as `NOTHING`, at the start.
        key: key of the part.
        text: text of the part.
    """
    asked = _match_question(question, _QUESTIONS)
    if asked is None:
        return GIVE_UP
    if "person" in asked:
        report = _report(asked, text)
        return Proposal(Answer(memory if report == NOWHERE else report), _quote(asked, text) or NOWHERE)
    if "room" not in asked:
        report = _report(asked, text)
        return Proposal(Answer(memory if report == NOTHING else f"{key}: {report}"), report)
    report = _copy(text)
    world = _World.read(memory)
    world.follow(report, asked["thing"])
    return Proposal(Answer(world.write(asked["thing"])), report)


def conclude_from_memory(question: str, memory: str) -> Proposal:
    """Answer a question from the memory after the whole story, or ask for the room of the person with the thing."""
    asked = _match_question(question, _QUESTIONS)
    if asked is None:
        return GIVE_UP
    if "person" in asked:
        return _conclude(asked, [NOWHERE if memory == NOTHING else memory])
    if "room" in asked:
        return _pick_room(asked, _World.read(memory).rooms, "")
    key, _, report = memory.partition(": ")
    events = _find_events(report)
    if not events:
        return GIVE_UP
    last, *move = events
    if move:
        return Proposal(Answer(move[-1].does))
    # The room of a drop stands in an earlier part, or the report would have it.
    end = f" before {key}" if last.does == DROPS else ""
    return Proposal(Answer(f"Where is {last.person}{end}?"))


def _match_question(text: str, patterns: Iterable[re.Pattern[str]]) -> dict[str, str] | None:
    matches = (pattern.fullmatch(text) for pattern in patterns)
    return next((match.groupdict() for match in matches if match), None)


def _find_events(text: str) -> list[Event]:
    events: list[Event] = []
    for match in _EVENT.finditer(text):
        does = match["room"] or (TAKES if match["takes"] else DROPS)
        events.append(Event(match["person"], does, match["thing"] or "", match[0]))
    return events


def _write_objective(question: dict[str, str]) -> str:
    """Return what each clone is asked first for a question about the whole story."""
    if "person" in question:
        return _PERSON_IN_PART.format(question["person"])
    return _ALL_IN_PART if "room" in question else _THING_IN_PART.format(question["thing"])


def _report(asked: dict[str, str], text: str) -> str:
    """Return a clone's reply: the last room of a person, the last statement about a thing, or all statements."""
    if "person" in asked:
        moves = _find_moves(asked["person"], text)
        return moves[-1].does if moves else NOWHERE
    if "thing" not in asked:
        return _copy(text)
    quoted = _find_last(asked["thing"], _find_events(text))
    # A thing that was taken may be carried on in any later part, so its room is not quoted.
    return " ".join(event.statement for event in quoted if event.thing or quoted[0].does == DROPS) or NOTHING


def _quote(asked: dict[str, str], text: str) -> str:
    """Return the statement from which the report about a person follows, which a clone writes first.

    A small model that wrote the room alone often took that of a neighbouring statement about another person.
    """
    moves = _find_moves(asked["person"], text) if "person" in asked else []
    return moves[-1].statement if moves else ""


def _find_moves(person: str, text: str) -> list[Event]:
    return [event for event in _find_events(text) if event.person == person and not event.thing]


def _copy(text: str) -> str:
    """Return all statements of a text."""
    return " ".join(event.statement for event in _find_events(text)) or NOTHING


def _is_report(asked: dict[str, str], reply: str) -> bool:
    """Return whether a reply has the form that `_report` returns."""
    if "person" in asked:
        return reply.strip() not in ("", "?")
    if reply.strip() == NOTHING:
        return True
    events = _find_events(reply)
    if not events or " ".join(event.statement for event in events) != reply.strip():
        return False
    if "thing" not in asked:
        return True
    last, *moves = events
    has_form = not moves or [(last.does, last.person, "")] == [(DROPS, move.person, move.thing) for move in moves]
    return last.thing == asked["thing"] and has_form


def _conclude_from_clones(observation: Observation, question: dict[str, str], call: LastCall) -> Proposal | None:
    """Answer from the replies of a call, or ask in a second call for the room of the person who had the thing last.

    Returns:
        `None` if a reply has another form than the expert's, or a second call is needed and cannot be granted.
    """
    asked = _match_question(call.requests[0].objective, _PART_QUESTIONS)
    reports = [reply.text or "" for reply in call.replies]
    if asked is None or not all(_is_report(asked, report) for report in reports):
        return None
    if "thing" not in asked:
        return _conclude({**question, **asked}, reports)
    place = max((place for place, report in enumerate(reports) if report.strip() != NOTHING), default=None)
    if place is None:
        return GIVE_UP
    last, *move = _find_events(reports[place])
    thought = reports[place]
    if move:
        return Proposal(Answer(move[-1].does), thought)
    requests = call.requests
    if last.does == DROPS:
        # The room of a drop stands in an earlier part, or the clone would have quoted it. The thought names this part
        # after the quote, since a small model that named it first did not find it.
        thought += f" Before {' '.join(requests[place].shared_context)}."
        requests = requests[:place]
    if not requests:
        return GIVE_UP
    if not may_delegate(observation, len(requests)):
        return None
    objective = _PERSON_IN_PART.format(last.person)
    return Proposal(Delegate(tuple(replace(request, objective=objective) for request in requests)), thought)


def _conclude(question: dict[str, str], reports: Sequence[str]) -> Proposal:
    """Infer the answer to a question from the reports of all parts of the story, in order."""
    if "person" in question:
        room = question.get("room")
        rooms = [report.strip() for report in reports if report.strip() != NOWHERE]
        if not rooms:
            return GIVE_UP
        if room is None:
            return Proposal(Answer(rooms[-1]))
        return Proposal(Answer("yes" if rooms[-1] == room else "no"), f"{question['person']}: {rooms[-1]}")
    world = _World()
    clauses: list[str] = []
    for report in reports:
        clauses += world.follow(report, question["thing"])
    if "room" in question:
        thought = "; ".join(clauses)
    else:
        last = _find_last(question["thing"], _find_events(" ".join(reports)))
        thought = " ".join(event.statement for event in last)
    return _pick_room(question, world.rooms, thought)


def _find_last(thing: str, events: Sequence[Event]) -> list[Event]:
    """Return the last event of a thing and the last movement of its person, before the dropping if it is one."""
    places = [place for place, event in enumerate(events) if event.thing == thing]
    if not places:
        return []
    last = events[places[-1]]
    before = events[: places[-1]] if last.does == DROPS else events
    moves = [event for event in before if event.person == last.person and not event.thing]
    return [last, *moves[-1:]]


def _pick_room(question: dict[str, str], rooms: Sequence[str], thought: str) -> Proposal:
    """Answer a question about a thing from its rooms, in order."""
    room = question.get("room")
    if room is not None:
        # The question is about the room before the last visit to `room`.
        rooms = rooms[: len(rooms) - 1 - rooms[::-1].index(room)] if room in rooms else []
    return Proposal(Answer(rooms[-1]), thought) if rooms else GIVE_UP


@dataclass
class _World:
    """The events so far, as far as a question about a thing needs them.

    Attributes:
        room_by_person: room of each person.
        holder: person who holds the thing; empty if nobody does.
        rooms: rooms in which the thing was, in order: the rooms of the person who held it.
    """

    room_by_person: dict[str, str] = field(default_factory=dict)
    holder: str = ""
    rooms: list[str] = field(default_factory=list)

    def follow(self, report: str, thing: str) -> list[str]:
        """Apply the events of a report without those of other things.

        Returns:
            The events that concern the thing or its holder, in short, each with the room into which it brings the
            thing, such as `Mary takes: kitchen`.
        """
        clauses: list[str] = []
        for event in _find_events(report):
            if event.thing not in ("", thing):
                continue
            if event.thing:
                self.holder = event.person
            else:
                self.room_by_person[event.person] = event.does
            if event.person != self.holder:
                continue
            clause = f"{event.person} {event.does if event.thing else f'to {event.does}'}"
            room = self.room_by_person.get(self.holder)
            if room is not None and self.rooms[-1:] != [room]:
                self.rooms.append(room)
                clause += f": {room}"
            if event.does == DROPS:
                self.holder = ""
            clauses.append(clause)
        return clauses

    def write(self, thing: str) -> str:
        """Return the memory of these facts."""
        clauses = [f"{person} in {room}" for person, room in self.room_by_person.items()]
        if self.holder:
            clauses.append(f"{thing} with {self.holder}")
        if self.rooms:
            clauses.append(f"{thing} in {', '.join(self.rooms)}")
        return "; ".join(clauses) or NOTHING

    @classmethod
    def read(cls, memory: str) -> _World:
        """Return the facts of a memory. Clauses of another form are left out."""
        world = cls()
        for clause in memory.split("; "):
            if match := _PERSON_IN_MEMORY.fullmatch(clause):
                world.room_by_person[match[1]] = match[2]
            elif match := _HOLDER_IN_MEMORY.fullmatch(clause):
                world.holder = match[1]
            elif match := _ROOMS_IN_MEMORY.fullmatch(clause):
                world.rooms = match[1].split(", ")
        return world
