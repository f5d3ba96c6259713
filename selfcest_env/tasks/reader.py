"""The expert of all questions over documents. It follows a plan, and takes answers only from documents that it sees.

The plan says which question to ask about which document. An agent finds the gold answer of a step only if a document in
sight contains it, and gives up otherwise. A clone with the wrong document therefore fails.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np

from selfcest_env.tasks.plan import PlanStep, QuestionPlan
from selfcest_env.tasks.source import GIVE_UP, Proposal, Style, documents_in_sight, may_delegate, may_read
from selfcest_env.types import Action, Answer, CloneRequest, Delegate, Read, Task
from selfcest_env.views import Observation

PLAN = "plan"  # key of `Task.metadata`


class Reader:
    """Solves known tasks by their plans. It looks up the task or objective of an agent by its text.

    Args:
        tasks: the known tasks. The reader gives up on those without a plan in their metadata.
    """

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._plans: dict[str, list[QuestionPlan]] = defaultdict(list)
        self._steps: dict[str, list[PlanStep]] = defaultdict(list)
        for task in tasks:
            plans = self._plans[task.prompt]
            if PLAN in task.metadata:
                plan = QuestionPlan.read(str(task.metadata[PLAN]))
                plans.append(plan)
                for index, step in enumerate(plan.steps):
                    self._steps[step.ask(index, plan.gold())].append(step)

    def understands(self, observation: Observation) -> bool:
        return observation.brief.text in self._plans or observation.brief.text in self._steps

    def propose(self, observation: Observation, rng: np.random.Generator, style: Style) -> Proposal:
        texts = documents_in_sight(observation)
        for step in self._steps.get(observation.brief.text, ()):
            if step.answered_by(list(texts.values())):
                return Proposal(Answer(step.answer))
        reachable = {*observation.brief.keys, *texts}
        for plan in self._plans.get(observation.brief.text, ()):
            if all(reachable.issuperset(step.keys) for step in plan.steps):
                return _follow(plan, observation, style)
        return GIVE_UP


def _follow(plan: QuestionPlan, observation: Observation, style: Style) -> Proposal:
    """Answer the steps whose documents are in sight, ask about those that are ready, and conclude if none is open."""
    texts = documents_in_sight(observation)
    known, failed = _collect_replies(plan, observation)
    thought = _answer_from_texts(plan, known, texts, _newest_documents(observation))
    if len(known) == len(plan.steps):
        answer = plan.conclude(known)
        if answer is None:
            return GIVE_UP
        return Proposal(Answer(answer), "\n".join([*thought, *_describe_comparison(plan, known)]))
    ready = plan.ready(known)
    # A ready step whose documents are all in sight was not answered, so its documents lack the answer.
    if not ready or any(texts.keys() >= {*plan.steps[index].keys} for index in ready):
        return GIVE_UP
    missing: dict[str, None] = {}  # keys in order, each once
    requests: list[CloneRequest] = []
    for index in ready:
        step = plan.steps[index]
        missing |= dict.fromkeys(key for key in step.keys if key not in texts)
        requests.append(CloneRequest(step.ask(index, known), step.keys))
    can_delegate = failed.isdisjoint(ready) and may_delegate(observation, len(requests))
    # Whether an action is possible, and the action; the preferred one first.
    options: list[tuple[bool, Action]] = [
        (may_read(observation), Read(tuple(missing))),
        (can_delegate, Delegate(tuple(requests))),
    ]
    if style is Style.DELEGATE:
        options.reverse()
    return next((Proposal(action, "\n".join(thought)) for is_possible, action in options if is_possible), GIVE_UP)


def _collect_replies(plan: QuestionPlan, observation: Observation) -> tuple[dict[int, str], set[int]]:
    """Return the clones' answers by step, and the steps on which a clone failed."""
    known: dict[int, str] = {}
    failed: set[int] = set()
    for exchange in observation.exchanges:
        if not isinstance(exchange.action, Delegate) or not exchange.replies:
            continue
        step_by_request = {
            (plan.steps[index].ask(index, known), plan.steps[index].keys): index for index in plan.ready(known)
        }
        for request, reply in zip(exchange.action.requests, exchange.replies, strict=True):
            index = step_by_request.get((request.objective, request.shared_context))
            if index is None:
                continue
            answer = (reply.text or "").strip()
            if answer in ("", "?"):
                failed.add(index)
            else:
                known[index] = answer
    return known, failed


def _newest_documents(observation: Observation) -> Mapping[str, str]:
    """Return the documents that came into sight just before this turn."""
    return (observation.exchanges[-1].documents or {}) if observation.exchanges else observation.brief.documents


def _answer_from_texts(
    plan: QuestionPlan, known: dict[int, str], texts: Mapping[str, str], newest_documents: Mapping[str, str]
) -> list[str]:
    """Add to `known` the answers that documents in sight contain.

    Returns:
        A line of thought for each answer from the newest documents. Earlier turns wrote the other answers down.
    """
    lines: list[str] = []
    # An answer can make further steps ready, so this repeats until nothing changes.
    while answerable := [index for index in plan.ready(known) if _is_answered(plan.steps[index], texts)]:
        questions = {index: plan.steps[index].ask(index, known) for index in answerable}
        for index, question in questions.items():
            step = plan.steps[index]
            known[index] = step.answer
            if not newest_documents.keys().isdisjoint(step.keys):
                lines.append(f"{question} {step.answer}")
    return lines


def _is_answered(step: PlanStep, texts: Mapping[str, str]) -> bool:
    return all(key in texts for key in step.keys) and step.answered_by([texts[key] for key in step.keys])


def _describe_comparison(plan: QuestionPlan, known: Mapping[int, str]) -> list[str]:
    """Return the line of thought of a comparison; none without a comparison."""
    if plan.comparison is None:
        return []
    clauses: list[str] = []
    for name, steps in zip(plan.comparison.options, plan.comparison.steps, strict=True):
        values = " to ".join(known[index] for index in steps)
        clauses.append(f"{name}: {values}")
    return ["; ".join(clauses)]
