"""What a study stores: a line per strategy, instance, budget and seed, with every episode whole.

Tasks and documents are the same for many episodes, so each is written once, as a line of its own before the first
result that needs it, and named by a digest of its content.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from selfcest_env.errors import RecordError
from selfcest_env.graders import Grade
from selfcest_env.graders.grade import AnswerPart
from selfcest_env.graders.qa import Overlap
from selfcest_env.record import EpisodeRecord, from_json, json_line, read_json_lines, to_json
from selfcest_env.stored import by_field, stored_as, to_stored
from selfcest_env.structure import structure
from selfcest_env.tasks import Style
from selfcest_env.types import Status
from selfcest_eval.play.costs import Costs
from selfcest_eval.play.digest import digest

FORMAT = 2
SCORES = ("score", "support_precision", "support_recall", "support_f1")
ENDINGS = tuple(status for status in Status if status.is_terminal and status is not Status.ABSENT)


@stored_as(
    family="family",
    size="size",
    shift="shift",
    strategy="strategy",
    budget="budget",
    seed="seed",
    task_id="task_id",
    style="style",
)
@dataclass(frozen=True)
class ResultKey:
    """Where in a study a result belongs.

    Attributes:
        style: of the expert that played in the policy's place, see `perfect_execution`; `None`: the policy played.
    """

    family: str
    size: str
    shift: str
    strategy: str
    budget: int | None
    seed: int
    task_id: str
    style: Style | None = None

    @property
    def eval_set(self) -> tuple[str, str]:
        return self.family, self.size


@stored_as(
    key="key",
    played="played",
    place="place",
    episodes="episodes",
    chosen="chosen",
    grade="grade",
    ending="ending",
    costs="costs",
    executed="executed",
    support="support",
    lifted="lifted",
)
@dataclass(frozen=True)
class Result:
    """One strategy on one instance.

    Attributes:
        key: of all that the result follows from; equal keys, equal results.
        played: of all that the episodes follow from; another grader can judge them again.
        place: where it belongs.
        episodes: whole and scored, in the order played; empty when read without them, and of an expert, which plays the
            same again.
        chosen: the position of the episode whose answer counts.
        grade: of that answer.
        ending: how that episode's root ended.
        costs: of all episodes together, by name; `None` if no prompt fitted, and of an expert that made a mistake.
        executed: see `Strategy.executed`.
        support: how well the documents that this episode looked at agree with those that the task needs; `None` if the
            task does not say.
        lifted: limits that were lifted for an expert that did not fit in them.
    """

    key: str
    played: str
    place: ResultKey
    episodes: tuple[EpisodeRecord, ...]
    chosen: int
    grade: Grade
    ending: Status
    costs: Costs | None
    executed: bool | None = None
    support: Overlap | None = None
    lifted: tuple[str, ...] = ()

    @property
    def scores(self) -> Mapping[str, float]:
        """What there is to say beside right and wrong, by names of `SCORES`."""
        found = {"score": self.grade.score}
        for name in ("precision", "recall", "f1") if self.support is not None else ():
            found[f"support_{name}"] = getattr(self.support, name)
        return found


@stored_as(place="place", why="why")
@dataclass(frozen=True)
class Unplayable:
    """What a study has in the place of a result that no try could bring about, for a server's fault.

    Attributes:
        place: where the result would belong.
        why: the last failure.
    """

    place: ResultKey
    why: str


Share = Callable[[object], str]  # a value to the name that stands for it


def write_result(result: Result, share: Share) -> str:
    """The result as one line of a JSON-lines file, its tasks and documents shared."""
    plain = to_stored(replace(result, episodes=()))
    plain["episodes"] = [_shared(to_json(episode), share) for episode in result.episodes]
    return dump({"format": FORMAT, **plain})


def write_unplayable(item: Unplayable) -> str:
    """The same for what has no result."""
    return dump({"format": FORMAT, "unplayable": to_stored(item)})


def _shared(episode: dict[str, Any], share: Share) -> dict[str, Any]:
    task = episode["task"]
    context = {key: share(text) for key, text in task["context"].items()}
    return {**episode, "task": share({**task, "context": context})}


def at_place(data: Mapping[str, Any], place: ResultKey) -> str:
    """A written result at another place."""
    return dump({**data, "place": to_stored(place)})


def dump(data: Mapping[str, Any]) -> str:
    """A line, which ends in a digest of the rest of it: a number that turned into another one is seen."""
    return f'{json_line(data)[:-2]},"{_DIGEST}":"{_sha256(data)}"}}\n'


_DIGEST = "sha256"


def _sha256(data: Mapping[str, Any]) -> str:
    return hashlib.sha256(json_line(data).encode()).hexdigest()


def write_value(value: object) -> tuple[str, str]:
    """The name of a shared value, and its line."""
    name = digest(value)
    return name, dump({"shared": name, "value": value})


def names_in(data: Mapping[str, Any], value_of: Callable[[str], Any]) -> Iterator[str]:
    """What a written result shares, in the order in which it must be written."""
    for episode in data["episodes"]:
        yield from value_of(episode["task"])["context"].values()
        yield episode["task"]


def read_line(line: bytes | str) -> dict[str, Any]:
    """A line's plain values, a result's or a shared one's. Raises `RecordError` if this version wrote neither, or if
    it is damaged."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"not a result of a study ({type(error).__name__}: {error}); remove the line") from error
    return _known(data)


def _known(data: Any) -> dict[str, Any]:
    try:
        known = data["shared"] if "shared" in data else data.get("format")
    except (TypeError, AttributeError) as error:
        raise RecordError(f"not a result of a study ({type(error).__name__}: {error}); remove the line") from error
    if not isinstance(known, str) and known != FORMAT:
        raise RecordError(
            "not a result of this version, which writes costs, endings and tasks otherwise; give the study another "
            "name to play it again"
        )
    found = dict(data)
    known = found.pop(_DIGEST, None)  # lines of earlier versions have none
    if known is not None and known != _sha256(found):
        raise RecordError("damaged: it is not what was written; remove the line, and --resume plays it again")
    if isinstance(found.get("shared"), str) and "value" not in found:
        raise RecordError("a shared value that is none; remove the line")
    return found


def parse_result(data: Mapping[str, Any], value_of: Callable[[str], Any] | None) -> Result:
    """Inverse of `write_result`; without shared values the episodes are left out. Raises `RecordError`."""
    try:
        return Result(
            key=data["key"],
            played=data["played"],
            place=_place(data["place"]),
            episodes=tuple(_episode(e, value_of) for e in data["episodes"]) if value_of is not None else (),
            chosen=data["chosen"],
            grade=_grade(data["grade"]),
            ending=Status(data["ending"]),
            costs=data["costs"],
            executed=data["executed"],
            support=None if data["support"] is None else Overlap(**by_field(Overlap, data["support"])),
            lifted=tuple(data.get("lifted", ())),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"not a result of a study ({type(error).__name__}: {error}); remove the line") from error


def _place(data: Mapping[str, Any]) -> ResultKey:
    style = data.get("style")  # studies from before perfect players have none
    return ResultKey(**by_field(ResultKey, {**data, "style": None if style is None else Style(style)}))


def _grade(data: Mapping[str, Any]) -> Grade:
    fields = by_field(Grade, dict(data))
    fields["parts"] = [by_field(AnswerPart, part) for part in fields.get("parts", ())]
    return structure(fields, Grade, place="grade", error=RecordError)


def _episode(data: Mapping[str, Any], value_of: Callable[[str], Any]) -> EpisodeRecord:
    task = value_of(data["task"])
    context = {key: value_of(name) for key, name in task["context"].items()}
    return from_json({**data, "task": {**task, "context": context}})


def read_unplayable(path: Path) -> list[Unplayable]:
    """What a file says in the place of results that there are none of."""
    with path.open(encoding="utf-8") as lines:
        found = [
            read_line(line)["unplayable"] for line in lines if line.startswith(f'{{"format":{FORMAT},"unplayable"')
        ]
    return [Unplayable(_place(data["place"]), data["why"]) for data in found]


def read_results(path: Path, *, whole: bool = False, experts: bool = False) -> Iterator[Result]:
    """Results of a file, also of instances that another strategy could not be played on.

    A last line that was cut is skipped with a warning. Raises `RecordError` that names the line.

    Args:
        path: of the file.
        whole: with their episodes.
        experts: with those of perfect players, and not of the policies alone.
    """
    values: dict[str, Any] = {}
    for number, value in read_json_lines(path):
        try:
            data = _known(value)
            if "shared" in data:
                values[data["shared"]] = data["value"] if whole else None
                continue
            if "unplayable" in data:
                continue
            result = parse_result(data, values.__getitem__ if whole else None)
            if experts or result.place.style is None:
                yield result
        except RecordError as error:
            raise RecordError(f"{path}, line {number}: {error}") from error
