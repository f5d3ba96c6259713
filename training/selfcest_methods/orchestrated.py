"""The base of strategies whose root is a script that asks clones in words what to do, and does it.

The root's turns are scripted calls; decomposing, judging, planning and solving are work of clones. So they are in the
one tree, under the one ledger, and the critical path is the game's own. The script writes an answer when it has one,
when it may call nobody any more, or when a call is refused: then it is the last that was found, and the script was not
executed. Objectives are sentences, so these are for models that follow instructions. `limits.reply_tokens` must hold a
plan.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np

from selfcest_agents.player import Wrapper
from selfcest_env.errors import ConfigError
from selfcest_env.protocol import PromptFormat
from selfcest_env.record import EpisodeRecord
from selfcest_env.types import Action, Answer, CloneRequest, Delegate, Limits, Outcome, Task
from selfcest_env.views import Observation
from selfcest_eval.play.scripted_roots import ScriptedRoot, obeyed
from selfcest_eval.play.strategies import Episodes, PlayContext, Strategy, check_delegation

NOTHING = "?"  # the answer of who has found none


@dataclass(frozen=True)
class Asked:
    """A call that has joined: what every clone was told, and what it said; `None`: nothing."""

    requests: tuple[CloneRequest, ...]
    replies: tuple[str | None, ...]


@dataclass(frozen=True)
class Orchestrated(Strategy):
    """The root follows `step` throughout."""

    version: ClassVar[int] = 1  # what the scripts ask, how replies are read, and when one was executed

    def step(self, task: str, keys: tuple[str, ...], past: Sequence[Asked]) -> Action:
        """What the root does after these calls. It must come to an answer within `turns`."""
        raise NotImplementedError(f"{type(self).__name__} has no step(task, keys, past)")

    def found(self, past: Sequence[Asked]) -> str | None:
        """The best answer so far."""
        raise NotImplementedError(f"{type(self).__name__} has no found(past)")

    @property
    def turns(self) -> int:
        """Most turns that the script takes."""
        raise NotImplementedError(f"{type(self).__name__} has no turns")

    @property
    def widest(self) -> int:
        """Clones of its widest call."""
        return 1

    @property
    def clones(self) -> int | None:
        """Most clones that the script starts in all; those that clones start come on top. `None`: it does not say."""
        return None

    def limits(self, limits: Limits, task: Task) -> Limits:
        most = None if limits.max_turns is None else max(limits.max_turns, self.turns)
        return replace(limits, turn_tokens=None, max_turns=most, max_reads=0)  # ScriptedRoot keeps the policy's turns

    def check(self, context: PlayContext) -> None:
        check_delegation(context.limits, self.widest)
        most, clones = context.limits.max_clones, self.clones
        if most is not None and clones is not None and most < clones:
            raise ConfigError(
                f"limits.max_clones is {most}, and the script may start {clones} clones, {self.widest} at once; "
                "raise it, or let the script ask less"
            )

    def wrapper(self, context: PlayContext) -> Wrapper:
        script = Script(self, context.protocol)
        return partial(ScriptedRoot, script=script, turns=None, turn_tokens=context.limits.turn_tokens)

    def readable(self, past: Sequence[Asked]) -> bool:
        """Whether all plans and scores in the replies to these calls could be read."""
        return True

    def executed(self, episodes: Episodes) -> bool | None:
        return all(
            obeyed(episode.root.turns) and not episode.root.failed and self._came_to_its_end(episode)
            for episode in episodes
        )

    def _came_to_its_end(self, episode: EpisodeRecord) -> bool:
        """Whether the root answered because the script did, which could read all that it was told, and not because
        nobody could be called any more. The script is asked again, with replies as clones wrote them: markers that a
        protocol had broken are whole."""
        past = calls_of(episode)
        answered = isinstance(self.step(episode.task.prompt, tuple(episode.task.context), past), Answer)
        return answered and self.readable(past)


@dataclass(frozen=True)
class Script:
    """An `Actor`: an orchestrated root. What it knows of its past stands in the observation."""

    strategy: Orchestrated
    protocol: PromptFormat

    def act(self, observation: Observation, rng: np.random.Generator) -> str:
        past = [
            Asked(exchange.action.requests, tuple(reply.text for reply in exchange.replies))
            for exchange in observation.exchanges
            if isinstance(exchange.action, Delegate) and exchange.replies
        ]
        action = self.strategy.step(observation.brief.text, observation.brief.keys, past)
        stuck = len(past) < len(observation.exchanges) or not observation.can_delegate
        if isinstance(action, Delegate) and stuck:
            action = Answer(self.strategy.found(past) or NOTHING)
        return self.protocol.render(action)


def calls_of(episode: EpisodeRecord) -> list[Asked]:
    """What the root of an episode has asked and heard."""
    called = [turn.facts.children for turn in episode.root.turns if turn.facts.outcome is Outcome.DELEGATED]
    asked = [[episode.by_id[child] for child in children] for children in called]
    return [
        Asked(
            tuple(CloneRequest(clone.objective, clone.shared_context) for clone in clones),
            tuple(clone.reply for clone in clones),
        )
        for clones in asked
    ]


def call(*objectives: str, keys: tuple[str, ...] = ()) -> Delegate:
    return Delegate(tuple(CloneRequest(objective, keys) for objective in objectives))


def lines_of(text: str | None, at: str = r"[\n;]") -> list[str]:
    """Lines, or what else `at` parts, by default semicolons too, without their numbers."""
    pieces = re.split(at, text or "")
    stripped = (re.sub(r"^\s*(?:[0-9]+[.):]|[-*])\s*", "", piece).strip() for piece in pieces)
    return [piece for piece in stripped if piece]
