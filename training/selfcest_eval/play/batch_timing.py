"""Times the strategies of a study: the latency of one request, and the throughput of sixteen at once.

The seconds of a study's own batches include the first, slow ones. Here every cell plays a batch for the warm-up, and
then further batches of the same number of requests, one after the other and each timed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from selfcest_agents.player import Player
from selfcest_env.errors import ConfigError, RecordError
from selfcest_eval.play.digest import digest
from selfcest_eval.play.study import EvalCell, Study
from selfcest_training.files import replace_text

AT_ONCE = 16
REQUESTS = (1, AT_ONCE)
FILE = "timings.jsonl"


@dataclass(frozen=True)
class StudyTiming:
    """The seconds of the batches of one strategy on one eval set.

    Attributes:
        key: digest of everything that the batches follow from.
        family, size: of the eval set.
        strategy: label of the strategy.
        budget: swept limit in tokens; `None`: the limits of the study.
        requests: instances of a batch.
        seconds: wall-clock seconds of each batch after the warm-up.
    """

    key: str
    family: str
    size: str
    strategy: str
    budget: int | None
    requests: int
    seconds: tuple[float, ...]

    def per_request(self) -> tuple[float, float, float]:
        """Return median, minimum and maximum of the seconds of a batch, divided by its requests."""
        values = [seconds / self.requests for seconds in self.seconds]
        return median(values), min(values), max(values)


def check_batches(study: Study) -> None:
    """Raise `ConfigError` if an eval set has too few instances for the timed batches.

    All batches of a strategy, those of the warm-up too, have different instances, so that no context is in a cache.
    """
    if not study.config.timed_batches:
        return
    needed = (1 + study.config.timed_batches) * sum(REQUESTS)
    for (family, size), tasks in study.tasks.items():
        if len(tasks) < needed:
            raise ConfigError(
                f"timed_batches is {study.config.timed_batches}, and eval set {family} {size} has {len(tasks)} "
                f"instances; expected at least {needed}: raise episodes and the limit of its source, or set "
                "timed_batches to 0"
            )


def time_study(
    study: Study, folder: Path, report: Callable[[str], None], clock: Callable[[], float] = time.perf_counter
) -> list[StudyTiming]:
    """Time every cell of a study with its first seed, and return the timings.

    Stored timings are not measured again. Every timing is stored at once.

    Args:
        study: the study.
        folder: folder of the study.
        report: called with a line before each cell.
        clock: returns seconds.
    """
    file = folder / FILE
    stored = {timing.key: timing for timing in read_study_timings(folder)}
    timings: list[StudyTiming] = []
    cells = [cell for cell in study.cells() if cell.style is None and cell.seed == study.config.seeds[0]]
    for policy in study.policies:
        of_policy = [cell for cell in cells if study.policy_of(cell.strategy) is policy]
        jobs = [(cell, requests, _make_key(study, cell, requests)) for cell in of_policy for requests in REQUESTS]
        missing = [job for job in jobs if job[2] not in stored]
        if missing:
            with closing(policy.load(study.config.seeds[0])) as player:
                for cell, requests, key in missing:
                    report(f"timing {cell}, {requests} at once")
                    stored[key] = _time_cell(study, cell, requests, key, player, clock)
                    replace_text(file, "".join(json.dumps(asdict(timing)) + "\n" for timing in stored.values()))
        timings += [stored[key] for _, _, key in jobs]
    # Timings of an earlier config leave the file, since the report shows all that it has.
    replace_text(file, "".join(json.dumps(asdict(timing)) + "\n" for timing in timings))
    return timings


def read_study_timings(folder: Path) -> list[StudyTiming]:
    """Return the timings of a study's folder; none without a file. Raises `RecordError` for other content."""
    file = folder / FILE
    if not file.is_file():
        return []
    try:
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        return [StudyTiming(**{**line, "seconds": tuple(line["seconds"])}) for line in lines]
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{file} cannot be read: {error!r}; remove it, and the study is timed again") from error


def _make_key(study: Study, cell: EvalCell, requests: int) -> str:
    played = [item.played for item in study.items_of(cell)]
    return digest(played, requests, study.config.timed_batches, study.config.threads)


def _time_cell(
    study: Study, cell: EvalCell, requests: int, key: str, player: Player, clock: Callable[[], float]
) -> StudyTiming:
    strategy = study.strategies[cell.strategy]
    context = study.context(cell)
    instances = [item.instance for item in study.items_of(cell)]
    seconds: list[float] = []
    num_batches = 1 + study.config.timed_batches
    # Single requests have the instances behind those of the large batches.
    first = 0 if requests == AT_ONCE else num_batches * AT_ONCE
    for number in range(num_batches):
        start_at = first + number * requests
        batch = instances[start_at : start_at + requests]
        start = clock()
        strategy.play(batch, context, player)
        seconds.append(clock() - start)
    eval_set = cell.eval_set
    return StudyTiming(key, eval_set.family, eval_set.size, cell.strategy, cell.budget, requests, tuple(seconds[1:]))
