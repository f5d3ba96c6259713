"""The stored lines of a study: one result per strategy, instance, budget and seed, with its complete episodes.

Many episodes share tasks and documents. So each is written once, on a line before the first result that needs it, and
results name it by a digest of its content.
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
from selfcest_env.record import EpisodeRecord, format_json_line, from_json, read_lines_and_values, to_json
from selfcest_env.stored import by_field, stored_as, to_stored
from selfcest_env.structure import structure
from selfcest_env.tasks import Style
from selfcest_env.types import Status
from selfcest_eval.play.costs import Costs
from selfcest_eval.play.digest import digest

FORMAT = 2
# Scores of single reports (`grade_reports`). Only instances with a report have them, so not all strategies do.
REPORT_SCORES = ("report_exact", "report_f1")
EPISODE_SCORES = ("score", "support_precision", "support_recall", "support_f1")
SCORES = (*EPISODE_SCORES, *REPORT_SCORES)
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
    """The place of a result in a study.

    Attributes:
        family, size, shift: of the eval set.
        strategy: label of the strategy.
        budget: swept limit in tokens; `None`: the limits of the study.
        seed: seed of the study.
        task_id: id of the task.
        style: style of the expert that played instead of the policy, see `perfect_execution`; `None`: the policy.
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
    reports="reports",
)
@dataclass(frozen=True)
class Result:
    """The result of one strategy on one instance.

    Attributes:
        key: digest of everything that the result follows from.
        played: digest of everything that the episodes follow from. Another grader can grade these episodes.
        place: place of the result in the study.
        episodes: complete and scored episodes, in the order of play; empty if the result was read without them, and for
            an expert, which can play the same again.
        chosen: position of the episode whose answer counts.
        grade: grade of that answer.
        ending: status of that episode's root at its end.
        costs: costs of all episodes together, by name; `None` if no prompt fitted, and for an expert that made a
            mistake.
        executed: see `Strategy.executed`.
        support: agreement of the documents that the chosen episode looked at with those that the task needs; `None` if
            the task does not name them.
        lifted: limits that were lifted for an expert.
        reports: mean agreement of single reports with those of the source's expert; `None` if the study does not grade
            them, or if there is none.
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
    reports: Overlap | None = None

    @property
    def scores(self) -> Mapping[str, float]:
        """The scores beside right and wrong, by names of `SCORES`."""
        scores = {"score": self.grade.score}
        if self.support is not None:
            for name in ("precision", "recall", "f1"):
                scores[f"support_{name}"] = getattr(self.support, name)
        if self.reports is not None:
            scores |= {"report_exact": self.reports.exact, "report_f1": self.reports.f1}
        return scores


@stored_as(place="place", why="why")
@dataclass(frozen=True)
class Unplayable:
    """The place of a result that could not be played in any attempt, because a server failed.

    Attributes:
        place: place of the result in the study.
        why: last failure.
    """

    place: ResultKey
    why: str


Share = Callable[[object], str]  # takes a value and returns the name that results have instead of it


def write_result(result: Result, share: Share) -> str:
    """Return the result as one line, with names in the place of its tasks and documents."""
    plain = to_stored(replace(result, episodes=()))
    if result.reports is None:
        del plain["reports"]  # the lines of studies that grade no reports stay as those of earlier versions
    plain["episodes"] = [_shared(to_json(episode), share) for episode in result.episodes]
    return dump_line({"format": FORMAT, **plain})


def write_unplayable(item: Unplayable) -> str:
    """Return the line of an unplayable result."""
    return dump_line({"format": FORMAT, "unplayable": to_stored(item)})


def _shared(episode: dict[str, Any], share: Share) -> dict[str, Any]:
    task = episode["task"]
    context = {key: share(text) for key, text in task["context"].items()}
    return {**episode, "task": share({**task, "context": context})}


def write_at(data: Mapping[str, Any], place: ResultKey) -> str:
    """Return the line of a stored result at another place."""
    return dump_line({**data, "place": to_stored(place)})


def dump_line(data: Mapping[str, Any]) -> str:
    """Return plain values as a line that ends in a digest of the values, so that a changed number is noticed."""
    # The slice removes the closing brace and the line end.
    return f'{format_json_line(data)[:-2]},"{_DIGEST}":"{_sha256(data)}"}}\n'


_DIGEST = "sha256"


def _sha256(data: Mapping[str, Any]) -> str:
    return hashlib.sha256(format_json_line(data).encode()).hexdigest()


def write_value(value: object) -> tuple[str, str]:
    """Return the name of a shared value, and its line."""
    name = digest(value)
    return name, dump_line({"shared": name, "value": value})


def iter_shared_names(data: Mapping[str, Any], value_of: Callable[[str], Any]) -> Iterator[str]:
    """Yield the names of the tasks and documents of a stored result, in the order in which they must be written."""
    for episode in data["episodes"]:
        yield from value_of(episode["task"])["context"].values()
        yield episode["task"]


def read_line(line: bytes | str) -> dict[str, Any]:
    """Return the plain values of a line: a result, an unplayable result or a shared value.

    Raises:
        RecordError: the line is damaged, or another version wrote it.
    """
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"not a result of a study ({type(error).__name__}: {error}); remove the line") from error
    return _check_line(line if isinstance(line, bytes) else line.encode(), data)


def _check_line(line: bytes, data: Any) -> dict[str, Any]:
    """Return the values of a line without their digest. Raises `RecordError` as `read_line`."""
    try:
        line_format = data["shared"] if "shared" in data else data.get("format")
    except (TypeError, AttributeError) as error:
        raise RecordError(f"not a result of a study ({type(error).__name__}: {error}); remove the line") from error
    # Shared values have a name and no format.
    if not isinstance(line_format, str) and line_format != FORMAT:
        raise RecordError(
            "not a result of this version, which writes costs, endings and tasks otherwise; give the study another "
            "name to play it again"
        )
    values = dict(data)
    stored_digest = values.pop(_DIGEST, None)  # lines of earlier versions have none
    # The values are written again, which is slow, only if the line is not as `dump_line` has written it.
    if stored_digest is not None and not _is_as_written(line) and stored_digest != _sha256(values):
        raise RecordError("damaged: its digest does not match; remove the line, and --resume plays it again")
    if isinstance(values.get("shared"), str) and "value" not in values:
        raise RecordError("a shared value without a value; remove the line")
    return values


def _is_as_written(line: bytes) -> bool:
    """Return whether a line ends in the digest of its text, as `dump_line` writes it."""
    length = len(f',"{_DIGEST}":""}}\n') + hashlib.sha256().digest_size * 2
    text = line[:-length] + b"}\n"
    return line.endswith(f',"{_DIGEST}":"{hashlib.sha256(text).hexdigest()}"}}\n'.encode())


def parse_result(data: Mapping[str, Any], value_of: Callable[[str], Any] | None) -> Result:
    """Return the result of a line's values.

    Args:
        data: values of `read_line`.
        value_of: function that returns a shared value by its name; `None`: the episodes are left out.

    Raises:
        RecordError: the values are not those of a result.
    """
    try:
        return Result(
            key=data["key"],
            played=data["played"],
            place=_place(data["place"]),
            episodes=() if value_of is None else tuple(_episode(e, value_of) for e in data["episodes"]),
            chosen=data["chosen"],
            grade=_grade(data["grade"]),
            ending=Status(data["ending"]),
            costs=data["costs"],
            executed=data["executed"],
            support=None if data["support"] is None else Overlap(**by_field(Overlap, data["support"])),
            lifted=tuple(data.get("lifted", ())),
            # Earlier versions graded no reports.
            reports=None if data.get("reports") is None else Overlap(**by_field(Overlap, data["reports"])),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"not a result of a study ({type(error).__name__}: {error}); remove the line") from error


def _place(data: Mapping[str, Any]) -> ResultKey:
    style = data.get("style")  # earlier versions had no perfect players
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
    """Return the unplayable results of a file."""
    items = []
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            # Only these lines are parsed, since those of results are long.
            if line.startswith(f'{{"format":{FORMAT},"unplayable"'):
                data = read_line(line)["unplayable"]
                items.append(Unplayable(_place(data["place"]), data["why"]))
    return items


def read_results(path: Path, *, whole: bool = False, experts: bool = False) -> Iterator[Result]:
    """Yield the results of a file, also of instances that are unplayable for another strategy.

    An incomplete last line is skipped with a warning.

    Args:
        path: path of the file.
        whole: whether the results have their episodes.
        experts: whether the results of perfect players are included.

    Raises:
        RecordError: a line is damaged; the message names it.
    """
    values: dict[str, Any] = {}
    for number, line, value in read_lines_and_values(path):
        try:
            data = _check_line(line, value)
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
