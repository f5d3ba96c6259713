"""What a study stores: a line per strategy, instance, budget and seed, with every episode whole."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from selfcest_env.errors import RecordError
from selfcest_env.graders import Grade
from selfcest_env.graders.qa import Overlap
from selfcest_env.record import EpisodeRecord, from_json, to_json

COSTS = ("total_tokens", "generated_tokens", "critical_path_tokens", "peak_context", "wall_seconds")
TOKEN_COSTS = COSTS[:4]
SCORES = ("score", "support_precision", "support_recall", "support_f1")


@dataclass(frozen=True)
class Place:
    """Where in a study a result belongs."""

    family: str
    size: str
    shift: str
    strategy: str
    budget: int
    seed: int
    task_id: str

    @property
    def cell(self) -> tuple[str, str]:
        return self.family, self.size


@dataclass(frozen=True)
class Costs:
    """What a strategy used on an instance, all its episodes together.

    Attributes:
        total_tokens, generated_tokens, clones: sums over episodes.
        critical_path_tokens: the largest of any episode. Samples could run side by side, so only the chain within one
            counts, although the budget is handed from one to the next.
        peak_context: the largest of any episode.
        wall_seconds: of the batch, divided by its instances. It depends on machine, engine and batch.
    """

    total_tokens: int
    generated_tokens: int
    critical_path_tokens: int
    peak_context: int
    clones: int
    wall_seconds: float


@dataclass(frozen=True)
class Result:
    """One strategy on one instance.

    Attributes:
        key: of all that the result follows from; equal keys, equal results.
        played: of all that the episodes follow from; another grader can judge them again.
        place: where it belongs.
        episodes: whole and scored, in the order played; empty when read without them.
        chosen: the position of the episode whose answer counts.
        grade: of that answer.
        costs: see `Costs`.
        support: how well the documents that this episode looked at agree with those that the task needs; `None` if the
            task does not say.
    """

    key: str
    played: str
    place: Place
    episodes: tuple[EpisodeRecord, ...]
    chosen: int
    grade: Grade
    costs: Costs
    support: Overlap | None = None

    @property
    def scores(self) -> Mapping[str, float]:
        """What there is to say beside right and wrong, by names of `SCORES`."""
        found = {"score": self.grade.score}
        for name in ("precision", "recall", "f1") if self.support is not None else ():
            found[f"support_{name}"] = getattr(self.support, name)
        return found


def costs_of(episodes: Sequence[EpisodeRecord], wall_seconds: float) -> Costs:
    costs = [episode.cost for episode in episodes]
    return Costs(
        total_tokens=sum(cost.total_tokens for cost in costs),
        generated_tokens=sum(cost.generated_tokens for cost in costs),
        critical_path_tokens=max(cost.critical_path_tokens for cost in costs),
        peak_context=max(cost.peak_context for cost in costs),
        clones=sum(cost.clones for cost in costs),
        wall_seconds=wall_seconds,
    )


def write_result(result: Result) -> str:
    """The result as one line of a JSON-lines file."""
    plain = asdict(replace(result, episodes=()))
    plain["episodes"] = [to_json(episode) for episode in result.episodes]
    return _dump(plain)


def at_place(line: str, place: Place) -> str:
    """A written result at another place."""
    data: dict[str, Any] = json.loads(line)
    return _dump({**data, "place": asdict(place)})


def _dump(data: Mapping[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n"


def read_result(line: str, *, whole: bool = True) -> Result:
    """Inverse of `write_result`; without `whole` the episodes are left out. Raises `RecordError`."""
    try:
        data: dict[str, Any] = json.loads(line)
        return Result(
            key=data["key"],
            played=data["played"],
            place=Place(**data["place"]),
            episodes=tuple(from_json(episode) for episode in data["episodes"]) if whole else (),
            chosen=data["chosen"],
            grade=Grade(**data["grade"]),
            costs=Costs(**data["costs"]),
            # Older lines lack it; their episodes are judged again under another key.
            support=None if data.get("support") is None else Overlap(**data["support"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"not a result of a study: {type(error).__name__}: {error}") from error


def read_results(path: Path, *, whole: bool = False) -> Iterator[Result]:
    """Results of a file, by default without their episodes. Raises `RecordError` that names the line."""
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield read_result(line, whole=whole)
            except RecordError as error:
                raise RecordError(f"{path}, line {number}: {error}") from error
