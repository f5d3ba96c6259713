"""Actors without a model: the expert of a task source, and random actors.

Each has `act(observation, rng) -> str` and no state, because the observation holds all earlier turns.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from selfcest_env.errors import ConfigError
from selfcest_env.protocol import PromptFormat
from selfcest_env.structure import Checked, Count, Share
from selfcest_env.tasks.source import ExpertSource, Style, TaskSource
from selfcest_env.types import Answer, CloneRequest, Delegate, Read, Role
from selfcest_env.views import Observation


def _get_expert(source: TaskSource) -> ExpertSource:
    """Return the source if it has an expert. Actors cache this, because a check of a protocol class is slow."""
    if not isinstance(source, ExpertSource):
        raise ConfigError(f"{type(source).__name__} has no expert; expected a source with understands() and propose()")
    return source


@dataclass(frozen=True)
class OracleActor(Checked):
    """An actor that plays the proposals of a task source's expert.

    Attributes:
        source: task source with an expert.
        protocol: prompt format in which actions are written.
        style: style of roots.
        clone_style: style of clones; `None` for `style`. A clone that cannot delegate solves its task.
        p_delegate: probability that a root of style "delegate" delegates. It is drawn once, at the first turn.
        otherwise: style of a root that was drawn not to delegate.
    """

    source: TaskSource
    protocol: PromptFormat
    style: Style = Style.DELEGATE
    clone_style: Style | None = None
    p_delegate: Share = 1.0
    otherwise: Style = Style.SOLVE

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._expert

    @cached_property
    def _expert(self) -> ExpertSource:
        return _get_expert(self.source)

    def act(self, observation: Observation, rng: np.random.Generator) -> str:
        proposal = self._expert.propose(observation, rng, self._choose_style(observation, rng))
        return self.protocol.render(proposal.action, proposal.thought)

    def _choose_style(self, observation: Observation, rng: np.random.Generator) -> Style:
        if observation.role is Role.CLONE:
            return self.style if self.clone_style is None else self.clone_style
        if self.style is not Style.DELEGATE or self.p_delegate == 1.0:
            return self.style
        if observation.exchanges:  # the action of the first turn shows the drawn style
            return Style.DELEGATE if isinstance(observation.exchanges[0].action, Delegate) else self.otherwise
        return Style.DELEGATE if rng.random() < self.p_delegate else self.otherwise


@dataclass(frozen=True)
class RandomActor(Checked):
    """An actor that answers, delegates, reads or writes noise at random, as a baseline and to test invariants.

    Attributes:
        protocol: prompt format in which actions are written.
        p_answer, p_delegate, p_read: probabilities of these actions. Otherwise the actor writes noise. It delegates
            even if this is not allowed.
        max_objectives: maximum number of objectives of a call.
    """

    protocol: PromptFormat
    p_answer: Share = 0.4
    p_delegate: Share = 0.3
    p_read: Share = 0.15
    max_objectives: Count = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        chances = (self.p_answer, self.p_delegate, self.p_read)
        if sum(chances) > 1.0 + 1e-9:
            raise ConfigError(f"p_answer, p_delegate, p_read are {chances}; expected chances adding up to at most 1")

    def act(self, observation: Observation, rng: np.random.Generator) -> str:
        # The order of the draws must not change, because episodes are pinned by their seed.
        thought = _draw_noise(rng, int(rng.integers(0, 12)))
        draw = rng.random()
        if draw < self.p_answer:
            return self.protocol.render(Answer(str(rng.integers(0, 10))), thought)
        if draw < self.p_answer + self.p_delegate:
            count = int(rng.integers(1, self.max_objectives + 1))
            requests = tuple(
                CloneRequest(_draw_noise(rng, 6) or "0", _draw_keys(observation, rng)) for _ in range(count)
            )
            return self.protocol.render(Delegate(requests), thought)
        if draw < self.p_answer + self.p_delegate + self.p_read:
            return self.protocol.render(Read(_draw_keys(observation, rng) or ("Z",)), thought)
        return thought


def _draw_noise(rng: np.random.Generator, length: int) -> str:
    alphabet = "0123456789+-*()? abc"
    return "".join(alphabet[int(i)] for i in rng.integers(len(alphabet), size=length))


def _draw_keys(observation: Observation, rng: np.random.Generator) -> tuple[str, ...]:
    keys = observation.brief.keys
    count = int(rng.integers(0, min(3, len(keys)) + 1))
    return tuple(keys[int(i)] for i in rng.permutation(len(keys))[:count])
