"""Fixed sets, every cost, one row per episode. Nothing is averaged before it is stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from selfcest_agents.player import ModelPlayer
from selfcest_agents.rollout import RolloutRequest
from selfcest_env.errors import TaskError
from selfcest_env.record import EpisodeRecord
from selfcest_env.seeding import stream_seed
from selfcest_env.tasks import TaskSource
from selfcest_env.types import Task
from selfcest_training.config import Cell, RunConfig
from selfcest_training.families import split

COSTS = ("total_tokens", "generated_tokens", "critical_path_tokens", "peak_context", "clones")


@dataclass(frozen=True)
class EpisodeResult:
    """One evaluated episode. Costs are those of `record.Cost`: root and all clones, prompts included."""

    family: str
    size: str
    shift: str
    temperature: float
    task_id: str
    correct: bool
    status: str
    total_tokens: int
    generated_tokens: int
    critical_path_tokens: int
    peak_context: int
    clones: int


def evaluation_tasks(config: RunConfig, cell: Cell) -> list[Task]:
    """The cell's instances: distinct, from the test part alone, the same for every arm and every seed.

    Raises `TaskError` when the test part has too few distinct instances of this cell.
    """
    source, wanted = split(config.tasks[cell.family], "test", cell.options), config.evaluation.episodes
    rng = np.random.default_rng(stream_seed("evaluation", config.evaluation.seed, cell.family, cell.size))
    return draw_instances(source, wanted, rng, f"evaluation cell {cell.family} {cell.size}")


def draw_instances(source: TaskSource, wanted: int, rng: np.random.Generator, place: str) -> list[Task]:
    """So many distinct tasks. Raises `TaskError` that names the place when the source has too few."""
    tasks: dict[str, Task] = {}
    for _ in range(100 * wanted):
        task = source.draw(rng)
        tasks.setdefault(task.task_id, task)
        if len(tasks) == wanted:
            return list(tasks.values())
    raise TaskError(
        f"{place} has about {len(tasks)} distinct test instances, and episodes is {wanted}; lower episodes or widen "
        "the cell"
    )


def evaluate(
    player: ModelPlayer,
    config: RunConfig,
    path: Path,
    report: Callable[[float, str], None],
    *,
    only_first_temperature: bool = False,
) -> list[EpisodeResult]:
    """Play every cell at every temperature and store the results in `path`; if they are there already, read them."""
    if path.exists():
        return list(read_results(path))
    results: list[EpisodeResult] = []
    temperatures = config.evaluation.temperatures[: 1 if only_first_temperature else None]
    pairs = [(cell, t) for cell in config.evaluation.cells for t in temperatures]
    for done, (cell, temperature) in enumerate(pairs):
        report(done / len(pairs), f"{cell.family} {cell.size}")
        requests = [
            RolloutRequest(f"{cell.family}.{cell.size}.{i}", task, stream_seed("evaluate", config.evaluation.seed, i))
            for i, task in enumerate(evaluation_tasks(config, cell))
        ]
        records = player.play(requests, temperature)
        results += [_result(player, cell, temperature, record) for record in records]
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text("".join(json.dumps(asdict(result)) + "\n" for result in results), encoding="utf-8")
    partial.rename(path)
    return results


def read_results(path: Path) -> Iterator[EpisodeResult]:
    """Results of a file that `evaluate` wrote."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield EpisodeResult(**json.loads(line))


def _result(player: ModelPlayer, cell: Cell, temperature: float, record: EpisodeRecord) -> EpisodeResult:
    cost = record.cost
    return EpisodeResult(
        family=cell.family,
        size=cell.size,
        shift=cell.shift,
        temperature=temperature,
        task_id=record.task.task_id,
        correct=player.reward.grade(record).correct,
        status=record.root.status.value,
        total_tokens=cost.total_tokens,
        generated_tokens=cost.generated_tokens,
        critical_path_tokens=cost.critical_path_tokens,
        peak_context=cost.peak_context,
        clones=cost.clones,
    )
