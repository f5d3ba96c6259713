"""`effort` tells the policy a share of the usual tokens, and pays right answers within this share only.

Source: e1, Adaptive Effort Control (Kleinman et al., arXiv 2510.27042). Its text could not be had: this is built from
the abstract, and from a published summary for the form of the reward. Details: docs/methods.md.

    r ~ uniform over `between`, in whole percent;   one draw per group, stated in the root's prompt by `form`
    T = mean total tokens of the tree over earlier rollouts of the task's bucket, with less weight for earlier steps
    reward = weight * 1[right] * 1[tokens / T <= r]

Open in the source, and chosen here: the distribution of r; the wording of the prompt; T per bucket and over all
efforts, where the summary has a mean per question and effort (tasks are seldom drawn twice); the reward of wrong
answers, 0; the first rollouts of a bucket, which are paid when right. Clones learn r only from the root. T counts
prompts too, which no policy can shorten, so small efforts may be out of reach.

The mean effort is 1 by default. If it is below 1, a policy that keeps to its efforts lowers T at every step, without an
end. The length is no limit of the game: a limit would cut the lengths of which T is the mean, with the same result.

Expected effect: one policy spends more tokens the more effort it is told, on an easy task fewer than on a hard one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from string import Formatter
from typing import ClassVar

import numpy as np

from selfcest_agents.player import Player
from selfcest_env.errors import ConfigError
from selfcest_env.graders import Grade
from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.stored import stored_as
from selfcest_env.structure import Checked, Positive
from selfcest_env.tasks.source import IDENTITY, ExpertSource, Proposal, Style, content_hash, identity_of
from selfcest_env.types import Task
from selfcest_env.views import Observation
from selfcest_eval.play.strategies import Episodes, Instance, PlayContext, Strategy
from selfcest_methods.buckets import BucketSampler, BucketSamplerOptions, WeightedSums, draw_from_menu
from selfcest_training.families import Bucket
from selfcest_training.stages.base import FixedSize, PlannedGroup, TaskMenu

FORM = "{task}\nSpend at most {percent}% of the tokens that you usually spend on such a task."
MIN_EFFORT = 0.01  # efforts are stated in whole percent
_ALLOWED_KEY = "allowed_tokens"


def check_form(form: str) -> None:
    """Raise `ConfigError` unless the form has a place for the task and one for the effort."""
    try:
        places = sorted(name for _, name, _, _ in Formatter().parse(form) if name is not None)
        form.format(task="", percent=1)
    except (ValueError, LookupError, AttributeError) as error:
        raise ConfigError(f"form is {form!r}: {error}; expected {{task}} and {{percent}}, braces doubled") from None
    if places != ["percent", "task"]:
        raise ConfigError(f"form is {form!r}; expected a text with {{task}} and {{percent}}, each once")


def check_between(between: tuple[float, float]) -> None:
    """Raise `ConfigError` unless the smaller effort comes first and both can be stated in whole percent."""
    if not MIN_EFFORT <= between[0] <= between[1]:
        raise ConfigError(f"between is {list(between)}; expected two shares from {MIN_EFFORT}, the smaller one first")


def draw_effort(between: tuple[float, float], rng: np.random.Generator) -> float:
    """Draw an effort and round it to whole percent, since the prompt states it so."""
    return round(100 * rng.uniform(*between)) / 100


def tell_effort(task: Task, effort: float, form: str) -> Task:
    """Return the task with the effort in its prompt, in whole percent."""
    return replace(task, prompt=form.format(task=task.prompt, percent=round(100 * effort)))


def hide_effort(prompt: str, form: str) -> str:
    """Return the prompt of the task without its effort, or the prompt itself if it states none."""
    pattern = ""
    for literal, name, _, _ in Formatter().parse(form):
        place = {"task": "(?P<task>.*)", "percent": "[0-9]+", None: ""}[name]
        pattern += re.escape(literal) + place
    match = re.fullmatch(pattern, prompt, re.S)
    return prompt if match is None else match["task"]


@dataclass(frozen=True)
class LengthSums(WeightedSums):
    """Sums of lengths.

    Attributes:
        tokens: weighted sum of the total tokens of whole trees.
    """

    tokens: float = 0.0


@dataclass(frozen=True)
class EffortOptions(BucketSamplerOptions):
    """Options in addition to those of `BucketSampler`.

    Attributes:
        between: the smallest and the largest effort, as shares of the usual tokens.
        form: text of the root's prompt, with places for `{task}` and `{percent}`; `{percent:03}` has three digits.
    """

    between: tuple[Positive, Positive] = (0.25, 1.75)
    form: str = FORM

    def __post_init__(self) -> None:
        super().__post_init__()
        check_form(self.form)
        check_between(self.between)


class Effort(FixedSize, BucketSampler[LengthSums]):
    """A task sampler that draws an effort for each group. The reward term `within_effort` holds rollouts to it."""

    sums_class: ClassVar = LengthSums

    Options = EffortOptions
    options: EffortOptions

    def sum_group(self, group: EpisodeGroup) -> LengthSums:
        tokens = sum(episode.cost.total_tokens for episode in group.episodes)
        return LengthSums(float(len(group.episodes)), float(tokens))

    def propose(self, step: int, num_tasks: int, menu: TaskMenu, rng: np.random.Generator) -> Sequence[PlannedGroup]:
        # One draw per group, so that a group baseline compares episodes of equal effort.
        return [PlannedGroup(self._draw_task(menu, rng), menu.group_size) for _ in range(num_tasks)]

    def _draw_task(self, menu: TaskMenu, rng: np.random.Generator) -> Task:
        task = draw_from_menu(menu, rng)
        effort = draw_effort(self.options.between, rng)
        facts = {"effort": effort}
        sums = self.memory.sums_by_bucket.get(Bucket.of(task))
        if sums is not None:
            facts[_ALLOWED_KEY] = effort * sums.tokens / sums.rollouts
        return replace(tell_effort(task, effort, self.options.form), metadata={**task.metadata, **facts})


@dataclass(frozen=True)
class WithinEffort:
    """A reward term: `weight` for a right answer whose tree has no more tokens than the sampler wrote into its task.

    Other tasks pay every right answer: those of a bucket that was never observed, and those of an evaluation.

    Attributes:
        weight: value of such an answer.
    """

    weight: float = 1.0

    def __call__(self, record: EpisodeRecord, grade: Grade) -> float:
        allowed = float(record.task.metadata.get(_ALLOWED_KEY, math.inf))
        return self.weight * (grade.correct and record.cost.total_tokens <= allowed)


@stored_as("selfcest_methods.effort:WithEffort", effort="effort", form="form")
@dataclass(frozen=True)
class WithEffort(Strategy, Checked):
    """The policy plays every task with one effort in its prompt.

    Attributes:
        effort: share of the usual tokens, stated in whole percent.
        form: text of the root's prompt, as in training.
    """

    effort: Positive = 0.5
    form: str = FORM

    def __post_init__(self) -> None:
        super().__post_init__()
        check_form(self.form)
        if self.effort < MIN_EFFORT:
            raise ConfigError(f"effort is {self.effort}; expected a share of at least {MIN_EFFORT}")

    def play(self, instances: Sequence[Instance], context: PlayContext, player: Player) -> list[Episodes]:
        told = [replace(one, task=tell_effort(one.task, self.effort, self.form)) for one in instances]
        return super().play(told, context, player)


@dataclass(frozen=True)
class TasksWithEffort(Checked):
    """Source of the tasks of another source, with an effort in the root's prompt, for demonstrations.

    Its expert is that of the other source, which does not see the effort. So demonstrations show the form of the
    prompt, and nothing says what follows from the effort. A split hashes the prompt with its effort, so `source` has to
    be a training part (`hashed_split`) if the same tasks are evaluated without an effort.

    Attributes:
        source: source of the tasks.
        between: the smallest and the largest effort, as shares of the usual tokens.
        form: text of the root's prompt, with places for `{task}` and `{percent}`, as in RL.
    """

    name: ClassVar[str] = "with_effort"
    source: ExpertSource
    between: tuple[Positive, Positive] = (0.25, 1.75)
    form: str = FORM

    def __post_init__(self) -> None:
        super().__post_init__()
        check_form(self.form)
        check_between(self.between)

    def draw(self, rng: np.random.Generator) -> Task:
        task = self.source.draw(rng)
        identity = identity_of(self.source, task)
        if identity is not None:
            task = replace(task, metadata={**task.metadata, IDENTITY: identity})
        task = tell_effort(task, draw_effort(self.between, rng), self.form)
        return replace(task, task_id=content_hash(task))

    def identity(self, task: Task) -> str | None:
        """Return the identity of the task without its effort, if its source gives one."""
        return str(task.metadata[IDENTITY]) if IDENTITY in task.metadata else None

    def understands(self, observation: Observation) -> bool:
        return self.source.understands(self._hide_effort(observation))

    def propose(self, observation: Observation, rng: np.random.Generator, style: Style) -> Proposal:
        return self.source.propose(self._hide_effort(observation), rng, style)

    def _hide_effort(self, observation: Observation) -> Observation:
        # A clone is told no effort.
        text = hide_effort(observation.brief.text, self.form)
        return replace(observation, brief=replace(observation.brief, text=text))
