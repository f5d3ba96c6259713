"""The expert for bAbI's people, things and rooms: what each part of a story says, and what follows from all of them.

Task 1 asks where a person is, 6 whether one is in a room, 2 where a thing is, 3 where it was before another room.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from selfcest_env.tasks.source import GIVE_UP, Proposal, Style, last_replies, may_delegate, may_read
from selfcest_env.types import Action, Answer, CloneRequest, Delegate, Read
from selfcest_env.views import Observation

NOWHERE, NOTHING = "nowhere", "nothing"
TAKES, DROPS = "takes", "drops"
_QUESTIONS = (
    re.compile(r"Where is (?P<person>[A-Z][a-z]+)\?"),
    re.compile(r"Is (?P<person>[A-Z][a-z]+) in the (?P<room>[a-z]+)\?"),
    re.compile(r"Where is the (?P<thing>[a-z]+)\?"),
    re.compile(r"Where was the (?P<thing>[a-z]+) before the (?P<room>[a-z]+)\?"),
)
_PERSON_IN_PART = "Where is {} at the end of your part? Answer 'nowhere' if it does not say."
_THING_IN_PART = (
    "Say in order who goes where and who takes or drops the {} in your part. Answer 'nothing' if it does not say."
)
_OF_PART = tuple(
    re.compile(re.escape(text).replace(r"\{\}", f"(?P<{name}>[A-Za-z]+)"))
    for name, text in (("person", _PERSON_IN_PART), ("thing", _THING_IN_PART))
)
_EVENT = re.compile(
    r"\b(?P<person>[A-Z][a-z]+) (?:"
    r"(?:moved|went|went back|journeyed|travelled) to the (?P<room>bathroom|bedroom|garden|hallway|kitchen|office)"
    r"|(?:(?P<takes>got|took|picked up|grabbed)|(?:dropped|discarded|put down|left)) the (?P<thing>[a-z]+))\b"
)
_SAID = re.compile(r"(?P<person>[A-Z][a-z]+) (?:to (?P<room>[a-z]+)|(?P<does>takes|drops))")


@dataclass(frozen=True, slots=True)
class Event:
    """What a person does: goes to a room, `TAKES` a thing, or `DROPS` it."""

    person: str
    does: str
    thing: str = ""


def understands(observation: Observation) -> bool:
    return _asked(observation.brief.text, (*_QUESTIONS, *_OF_PART)) is not None


def propose(observation: Observation, style: Style) -> Proposal:
    """Ask all parts at once, or read them, and conclude from what they say."""
    seen = dict(observation.brief.documents)
    for exchange in observation.exchanges:
        seen.update(exchange.documents or {})
    if asked := _asked(observation.brief.text, _OF_PART):
        return Proposal(Answer(_say(asked, " ".join(seen.values())))) if seen else GIVE_UP
    asked = _asked(observation.brief.text, _QUESTIONS)
    if asked is None:
        return GIVE_UP
    call = last_replies(observation)
    if call and all(_is_said(asked, reply.text or "") for reply in call[1]):
        return _conclude(asked, [reply.text or "" for reply in call[1]])
    keys = observation.brief.keys
    missing = tuple(key for key in keys if key not in seen)
    if not missing:
        return _conclude(asked, [_say(asked, text) for text in ([seen[key] for key in keys] or seen.values())])
    question = _PERSON_IN_PART.format(asked["person"]) if "person" in asked else _THING_IN_PART.format(asked["thing"])
    ways: list[tuple[bool, Action]] = [
        (may_read(observation), Read(missing)),
        (
            call is None and may_delegate(observation, len(missing)),
            Delegate(tuple(CloneRequest(question, (key,)) for key in missing)),
        ),
    ]
    if style is Style.DELEGATE:
        ways.reverse()
    return next((Proposal(action) for possible, action in ways if possible), GIVE_UP)


def people(question: str, statements: Iterable[str]) -> frozenset[str]:
    """Everyone whom a question names, or whose doings in its story are understood."""
    named = re.findall(r"(?<!^)\b[A-Z][a-z]+", question)
    return frozenset([*named, *(event.person for event in _events(" ".join(statements)))])


def _asked(text: str, patterns: Iterable[re.Pattern[str]]) -> dict[str, str] | None:
    matches = (pattern.fullmatch(text) for pattern in patterns)
    return next((match.groupdict() for match in matches if match), None)


def _events(text: str) -> list[Event]:
    return [
        Event(match["person"], match["room"] or (TAKES if match["takes"] else DROPS), match["thing"] or "")
        for match in _EVENT.finditer(text)
    ]


def _say(asked: dict[str, str], text: str) -> str:
    """What a text says about a person or a thing."""
    events = _events(text)
    if "person" in asked:
        rooms = [event.does for event in events if event.person == asked["person"] and not event.thing]
        return rooms[-1] if rooms else NOWHERE
    told = [event for event in events if event.thing in ("", asked["thing"])]
    return "; ".join(f"{e.person} {e.does if e.thing else f'to {e.does}'}" for e in told) or NOTHING


def _is_said(asked: dict[str, str], reply: str) -> bool:
    """Whether a reply is of the kind that `_say` gives."""
    if "person" in asked:
        return reply.strip() not in ("", "?")
    return reply.strip() == NOTHING or all(_SAID.fullmatch(piece.strip()) for piece in reply.split(";"))


def _conclude(asked: dict[str, str], said: Sequence[str]) -> Proposal:
    """The answer to a question, from what all parts of the story say."""
    room = asked.get("room")
    if "person" in asked:
        rooms = [text.strip() for text in said if text.strip() != NOWHERE]
        if not rooms:
            return GIVE_UP
        if room is None:
            return Proposal(Answer(rooms[-1]))
        return Proposal(Answer("yes" if rooms[-1] == room else "no"), f"{asked['person']}: {rooms[-1]}")
    rooms = _rooms_of_thing(match for text in said for match in _SAID.finditer(text))
    thought = f"{asked['thing']}: {', '.join(rooms)}"
    if room is not None:
        rooms = rooms[: len(rooms) - 1 - rooms[::-1].index(room)] if room in rooms else []
    return Proposal(Answer(rooms[-1]), thought) if rooms else GIVE_UP


def _rooms_of_thing(said: Iterable[re.Match[str]]) -> list[str]:
    """The rooms in which a thing was, one after another: those of who had it."""
    where: dict[str, str] = {}
    holder, rooms = "", list[str]()
    for match in said:
        if match["room"]:
            where[match["person"]] = match["room"]
        else:
            holder = match["person"]
        room = where.get(holder)
        if room is not None and rooms[-1:] != [room]:
            rooms.append(room)
        if match["does"] == DROPS:
            holder = ""
    return rooms
