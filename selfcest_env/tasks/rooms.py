"""The expert for `Where is Mary?` over parts of a story: every part says where she was last, the last word counts."""

from __future__ import annotations

import re

from selfcest_env.tasks.source import GIVE_UP, Proposal, Style, last_replies, may_delegate, may_read
from selfcest_env.types import Action, Answer, CloneRequest, Delegate, Read
from selfcest_env.views import Observation

NOWHERE = "nowhere"
_WHERE = re.compile(r"Where is ([A-Z][a-z]+)\?")
_WHERE_IN_PART = re.compile(r"Where is ([A-Z][a-z]+) at the end of your part\? Answer 'nowhere' if it does not say\.")
_MOVE = (
    r"\b{name} (?:moved|went|journeyed|travelled|went back) to the (bathroom|bedroom|garden|hallway|kitchen|office)\b"
)


def understands(observation: Observation) -> bool:
    text = observation.brief.text
    return bool(_WHERE.fullmatch(text) or _WHERE_IN_PART.fullmatch(text))


def propose(observation: Observation, style: Style) -> Proposal:
    """Ask all parts at once, or read them, and believe the last that says something."""
    seen = dict(observation.brief.documents)
    for exchange in observation.exchanges:
        seen.update(exchange.documents or {})
    if match := _WHERE_IN_PART.fullmatch(observation.brief.text):
        return Proposal(Answer(_last_room(match[1], " ".join(seen.values())) or NOWHERE)) if seen else GIVE_UP
    match = _WHERE.fullmatch(observation.brief.text)
    if match is None:
        return GIVE_UP
    call = last_replies(observation)
    if call and all((reply.text or "").strip() not in ("", "?") for reply in call[1]):
        rooms = [reply.text.strip() for reply in call[1] if reply.text and reply.text.strip() != NOWHERE]
        return Proposal(Answer(rooms[-1])) if rooms else GIVE_UP
    keys = observation.brief.keys
    missing = tuple(key for key in keys if key not in seen)
    if not missing:
        room = _last_room(match[1], " ".join(seen[key] for key in keys) if keys else " ".join(seen.values()))
        return Proposal(Answer(room)) if room else GIVE_UP
    question = f"Where is {match[1]} at the end of your part? Answer 'nowhere' if it does not say."
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


def _last_room(name: str, text: str) -> str | None:
    found = re.findall(_MOVE.format(name=re.escape(name)), text)
    return found[-1] if found else None
