"""The expert of all questions over documents: it follows a plan and believes only what stands in a document it sees.

The plan says what to ask of which document; the answers come from the documents alone. An agent that sees a document
finds a step's gold answer if it stands there and gives up if not, so a clone that was given the wrong document fails.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np

from selfcest_env.protocol import Reply
from selfcest_env.tasks.plan import PlanStep, QuestionPlan
from selfcest_env.tasks.source import GIVE_UP, Proposal, Style, may_delegate, may_read
from selfcest_env.types import Action, Answer, CloneRequest, Delegate, Read, Task
from selfcest_env.views import Observation

PLAN = "plan"  # the key of `Task.metadata` under which a plan is written


class Reader:
    """Plans the tasks it knows; an agent's task or objective is looked up by its text.

    Args:
        tasks: those with a plan in their metadata can be solved; of the others the reader knows only that they exist.
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
        texts = _in_sight(observation)
        for step in self._steps.get(observation.brief.text, ()):
            if step.answered_by(list(texts.values())):
                return Proposal(Answer(step.answer))
        reachable = {*observation.brief.keys, *texts}
        for plan in self._plans.get(observation.brief.text, ()):
            if all(key in reachable for step in plan.steps for key in step.keys):
                return _follow(plan, observation, style)
        return GIVE_UP


def _in_sight(observation: Observation) -> dict[str, str]:
    texts = dict(observation.brief.documents)
    for exchange in observation.exchanges:
        texts.update(exchange.documents or {})
    return texts


def _follow(plan: QuestionPlan, observation: Observation, style: Style) -> Proposal:
    """Answer what can be answered, ask for what can be asked for, and conclude when nothing is open."""
    known, failed = _brought(plan, observation)
    thought = _read_off(plan, known, _in_sight(observation), _news(observation))
    if len(known) == len(plan.steps):
        answer = plan.conclude(known)
        return GIVE_UP if answer is None else Proposal(Answer(answer), "\n".join([*thought, *_weigh(plan, known)]))
    texts = _in_sight(observation)
    ready = [index for index in plan.ready(known) if not texts.keys() >= {*plan.steps[index].keys}]
    if not ready or len(ready) < len(plan.ready(known)):  # a document in sight does not say what it should
        return GIVE_UP
    missing = dict.fromkeys(key for index in ready for key in plan.steps[index].keys if key not in texts)
    requests = tuple(CloneRequest(plan.steps[index].ask(index, known), plan.steps[index].keys) for index in ready)
    ways: list[tuple[bool, Action]] = [
        (may_read(observation), Read(tuple(missing))),
        (failed.isdisjoint(ready) and may_delegate(observation, len(requests)), Delegate(requests)),
    ]
    if style is Style.DELEGATE:
        ways.reverse()
    return next((Proposal(action, "\n".join(thought)) for possible, action in ways if possible), GIVE_UP)


def _brought(plan: QuestionPlan, observation: Observation) -> tuple[dict[int, str], set[int]]:
    """What clones answered, by step, and the steps on which one failed."""
    known: dict[int, str] = {}
    failed: set[int] = set()
    for exchange in observation.exchanges:
        if not isinstance(exchange.action, Delegate) or not exchange.replies:
            continue
        asked = {(plan.steps[index].ask(index, known), plan.steps[index].keys): index for index in plan.ready(known)}
        for request, reply in zip(exchange.action.requests, exchange.replies, strict=True):
            index = asked.get((request.objective, request.shared_context))
            if index is not None and _says_something(reply):
                known[index] = (reply.text or "").strip()
            elif index is not None:
                failed.add(index)
    return known, failed


def _says_something(reply: Reply) -> bool:
    return reply.text is not None and reply.text.strip() not in ("", "?")


def _news(observation: Observation) -> Mapping[str, str]:
    """The documents that came into sight just before this turn."""
    return (observation.exchanges[-1].documents or {}) if observation.exchanges else observation.brief.documents


def _read_off(
    plan: QuestionPlan, known: dict[int, str], texts: Mapping[str, str], news: Mapping[str, str]
) -> list[str]:
    """Add to `known` what stands in documents in sight; returns a line for each answer that is new."""
    lines = []
    while found := [index for index in plan.ready(known) if _stands(plan.steps[index], texts)]:
        asked = {index: plan.steps[index].ask(index, known) for index in found}
        for index, question in asked.items():
            step = plan.steps[index]
            known[index] = step.answer
            if not news.keys().isdisjoint(step.keys):
                lines.append(f"{question} {step.answer}")
    return lines


def _stands(step: PlanStep, texts: Mapping[str, str]) -> bool:
    return all(key in texts for key in step.keys) and step.answered_by([texts[key] for key in step.keys])


def _weigh(plan: QuestionPlan, known: Mapping[int, str]) -> list[str]:
    """The line of thought of a comparison."""
    if plan.comparison is None:
        return []
    named = zip(plan.comparison.options, plan.comparison.steps, strict=True)
    return ["; ".join(f"{name}: {' to '.join(known[index] for index in steps)}" for name, steps in named)]
