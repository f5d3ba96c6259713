"""Which questions two sets of tasks have in common."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

from selfcest_env.tasks.finite import FiniteSource
from selfcest_env.types import Task


@dataclass(frozen=True, slots=True)
class Leak:
    """One problem that stands on both sides: a task of each (there may be more), and whether their answers agree."""

    left: Task
    right: Task

    @property
    def same_answer(self) -> bool:
        return self.left.answer.strip() == self.right.answer.strip()


def overlaps(left: FiniteSource, right: FiniteSource) -> tuple[Leak, ...]:
    """The problems that two sources share, by `identity`: by the letters and digits of the question alone.

    So differences in case, space, punctuation and typesetting are seen through; a rephrased question is not.
    """
    known = _by_identity(right)
    return tuple(Leak(tasks[0], known[key][0]) for key, tasks in _by_identity(left).items() if key in known)


def leak_report(sources: Mapping[str, FiniteSource]) -> str:
    """A table of all pairs of sources: how many problems each has, how many they share, and one that they share."""
    sizes = {name: len(_by_identity(source)) for name, source in sources.items()}
    lines = ["| source | problems | source | problems | shared | for example |", "|---|---|---|---|---|---|"]
    for left, right in combinations(sources, 2):
        leaks = overlaps(sources[left], sources[right])
        example = _origin(leaks[0]) if leaks else ""
        lines.append(f"| {left} | {sizes[left]} | {right} | {sizes[right]} | {len(leaks)} | {example} |")
    return "\n".join(lines)


def _by_identity(source: FiniteSource) -> dict[str, list[Task]]:
    found: dict[str, list[Task]] = defaultdict(list)
    for task in source.tasks():
        found[source.identity(task)].append(task)
    return found


def _origin(leak: Leak) -> str:
    return " = ".join(
        f"{task.metadata.get('file', task.source)} {task.metadata.get('record', '')}".strip()
        for task in (leak.left, leak.right)
    )
