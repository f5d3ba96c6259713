"""Compare the documents that an episode used with those that its question needs."""

from __future__ import annotations

import json

from selfcest_env.errors import TaskError
from selfcest_env.graders.qa import Overlap, set_overlap
from selfcest_env.protocol import PromptFormat
from selfcest_env.record import EpisodeRecord
from selfcest_env.types import Outcome, Read, Task

SUPPORT = "support"  # key of `Task.metadata`


def says_support(task: Task) -> bool:
    """Return whether the metadata of a task name the documents that it needs."""
    return SUPPORT in task.metadata


def gold_support(task: Task) -> frozenset[str]:
    """Return the keys of the documents that a question needs.

    Raises:
        TaskError: the metadata of the task do not name them.
    """
    if not says_support(task):
        raise TaskError(
            f"task {task.task_id} of {task.source} has no metadata 'support'; expected a JSON list, the keys of "
            "the documents that it needs"
        )
    return frozenset(json.loads(str(task.metadata[SUPPORT])))


def used_documents(record: EpisodeRecord, protocol: PromptFormat) -> frozenset[str]:
    """Return the keys of all documents that an agent saw: given to a clone, read, or shown at the start.

    An agent without a turn saw nothing, because its prompt did not fit.
    """
    if not (record.limits.delegation or record.limits.reading):
        return frozenset(record.task.context if record.root.turns else ())
    keys: set[str] = set()
    for agent in record.agents[1:]:
        if agent.turns:
            keys.update(agent.shared_context)
    for _, turn in record.turns():
        if turn.facts.outcome is Outcome.READ:
            action = protocol.parse(turn.generation.text)
            if isinstance(action, Read):
                keys.update(action.keys)
    return frozenset(keys)


def support_overlap(record: EpisodeRecord, protocol: PromptFormat) -> Overlap:
    """Return the agreement of the documents that an episode used with those that its question needs."""
    return set_overlap(used_documents(record, protocol), gold_support(record.task))
