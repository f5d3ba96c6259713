"""Find the questions that two sets of tasks have in common."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

from selfcest_env.tasks.finite import FiniteSource
from selfcest_env.types import Task


@dataclass(frozen=True, slots=True)
class SharedQuestion:
    """A question that two sources share, with the first task of each source that asks it."""

    left: Task
    right: Task


def find_shared_questions(left: FiniteSource, right: FiniteSource) -> tuple[SharedQuestion, ...]:
    """Return the questions that two sources share.

    Questions are compared by the `identity` of their sources, mostly their letters and digits. Differences in case,
    space, punctuation and typesetting do not matter. A rephrased question is not detected.
    """
    tasks_of_right = _group_by_identity(right)
    shared: list[SharedQuestion] = []
    for identity, tasks in _group_by_identity(left).items():
        if identity in tasks_of_right:
            shared.append(SharedQuestion(tasks[0], tasks_of_right[identity][0]))
    return tuple(shared)


def contamination_table(sources: Mapping[str, FiniteSource]) -> str:
    """Return a Markdown table of all pairs of sources: the questions of each, the shared ones, and an example."""
    sizes = {name: len(_group_by_identity(source)) for name, source in sources.items()}
    lines = ["| source | problems | source | problems | shared | for example |", "|---|---|---|---|---|---|"]
    for left, right in combinations(sources, 2):
        shared = find_shared_questions(sources[left], sources[right])
        example = _format_origin(shared[0]) if shared else ""
        lines.append(f"| {left} | {sizes[left]} | {right} | {sizes[right]} | {len(shared)} | {example} |")
    return "\n".join(lines)


def _group_by_identity(source: FiniteSource) -> dict[str, list[Task]]:
    tasks_by_identity: dict[str, list[Task]] = defaultdict(list)
    for task in source.tasks():
        tasks_by_identity[source.identity(task)].append(task)
    return tasks_by_identity


def _format_origin(question: SharedQuestion) -> str:
    return " = ".join(
        f"{task.metadata.get('file', task.source)} {task.metadata.get('record', '')}".strip()
        for task in (question.left, question.right)
    )
