"""Which documents an episode looked at, and which it needed."""

from __future__ import annotations

import json

from selfcest_env.errors import TaskError
from selfcest_env.graders.qa import Overlap, set_overlap
from selfcest_env.protocol import ProtocolText
from selfcest_env.record import EpisodeRecord
from selfcest_env.types import Outcome, Read, Task


def says_support(task: Task) -> bool:
    """Whether a task says which documents it needs."""
    return "support" in task.metadata


def gold_support(task: Task) -> frozenset[str]:
    """Keys of the documents that a question needs. Raises `TaskError` for a task that does not say."""
    if not says_support(task):
        raise TaskError(f"task {task.task_id} of {task.source} does not say which documents it needs")
    return frozenset(json.loads(str(task.metadata["support"])))


def used_documents(record: EpisodeRecord, protocol: ProtocolText) -> frozenset[str]:
    """Keys of all documents whose text some agent saw: given to a clone, read, or shown at the start.

    An agent without a turn, whose prompt did not fit, saw nothing.
    """
    if not (record.limits.delegation or record.limits.reading):
        return frozenset(record.task.context if record.root.turns else ())
    given = {key for agent in record.agents[1:] if agent.turns for key in agent.shared_context}
    reads = (protocol.parse(turn.generation.text) for _, turn in record.turns() if turn.facts.outcome is Outcome.READ)
    return frozenset(given).union(*(action.keys for action in reads if isinstance(action, Read)))


def support_overlap(record: EpisodeRecord, protocol: ProtocolText) -> Overlap:
    """Supporting paragraphs: how well the documents an episode looked at agree with those that the question needs."""
    return set_overlap(used_documents(record, protocol), gold_support(record.task))
