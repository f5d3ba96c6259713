"""Grades single reports: a clone's reply about its documents, and a memory after one part of a text.

The right report is that of the source's expert on the same objective and documents. So a rival with a memory can be
tuned until its reports are as exact as those of the clones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from selfcest_env.graders.qa import NO_OVERLAP, Overlap, answer_overlap
from selfcest_env.kernel import Kernel
from selfcest_env.record import EpisodeRecord
from selfcest_env.rules import Rules
from selfcest_env.tasks import ExpertSource, Style, TaskSource
from selfcest_env.tasks.memory import MemoryTurn, RemembersSource
from selfcest_env.tasks.source import GIVE_UP, Proposal
from selfcest_env.text.counters import WordCounter
from selfcest_env.text.hermes import HermesProtocol
from selfcest_env.types import ROOT, Answer, Limits, Task
from selfcest_env.views import observe

# The expert sees all documents of a report, and answers at once.
_RULES = Rules(Limits(total_tokens=None, max_depth=0, max_reads=0), HermesProtocol(), WordCounter())


def grade_reports(episodes: Iterable[EpisodeRecord], source: TaskSource) -> Overlap | None:
    """Return the mean agreement of all reports with those of the expert, by words.

    A clone without a reply has no word right. A report is left out if the expert does not understand its objective, as
    of a root that asks for something else, and so is the conclusion of a root.

    Args:
        episodes: all episodes of an instance.
        source: source of the task.

    Returns:
        The mean over reports; `None` if there is none.
    """
    overlaps = []
    for episode in episodes:
        for right, report in _list_reports(episode, source):
            overlaps.append(NO_OVERLAP if report is None else answer_overlap(report, right))
    return _mean(overlaps) if overlaps else None


def _list_reports(episode: EpisodeRecord, source: TaskSource) -> list[tuple[str, str | None]]:
    """Return the expert's report and the episode's for each report of an episode."""
    task = episode.task
    reports = []
    turn = MemoryTurn.read(task.prompt)
    if turn is not None and not turn.is_last and isinstance(source, RemembersSource) and episode.root.turns:
        ((key, text),) = task.context.items()
        right = _find_answer(source.remember(turn.question, turn.memory, key, text))
        if right is not None:
            reports.append((right, episode.answer))
    for agent in episode.agents[1:]:
        if agent.absent:
            continue
        documents = {key: task.context[key] for key in agent.shared_context if key in task.context}
        right = _ask_expert(source, agent.objective, documents)
        if right is not None:
            reports.append((right, agent.reply))
    return reports


def _ask_expert(source: TaskSource, objective: str, documents: Mapping[str, str]) -> str | None:
    """Return the expert's answer to a clone's objective; `None` if it has none."""
    if not isinstance(source, ExpertSource):
        return None
    kernel = Kernel(Task("report", objective, "", "report", context=documents), _RULES)
    observation = observe(kernel, ROOT)
    if not source.understands(observation):
        return None
    return _find_answer(source.propose(observation, np.random.default_rng(0), Style.SOLVE))


def _find_answer(proposal: Proposal) -> str | None:
    return proposal.action.text if isinstance(proposal.action, Answer) and proposal != GIVE_UP else None


def _mean(overlaps: Sequence[Overlap]) -> Overlap:
    count = len(overlaps)
    return Overlap(
        exact=sum(overlap.exact for overlap in overlaps) / count,
        f1=sum(overlap.f1 for overlap in overlaps) / count,
        precision=sum(overlap.precision for overlap in overlaps) / count,
        recall=sum(overlap.recall for overlap in overlaps) / count,
    )
