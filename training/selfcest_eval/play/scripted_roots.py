"""Strategies whose root follows a script, for its first turn or throughout, over clones that the policy plays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Protocol

import numpy as np

from selfcest_agents.codec import Codec
from selfcest_agents.player import PolicyWrapper
from selfcest_agents.policy import Actor, Policy, PolicyRequest, ScriptedPolicy
from selfcest_agents.scripted import OracleActor
from selfcest_env.errors import ConfigError, InfrastructureError
from selfcest_env.protocol import PromptFormat
from selfcest_env.record import Generation, Turn
from selfcest_env.stored import stored_as
from selfcest_env.structure import Checked, Count
from selfcest_env.tasks import Style
from selfcest_env.types import CloneRequest, Delegate, FinishReason, Limits, Outcome, Role, Task, TurnKey
from selfcest_env.views import Observation
from selfcest_eval.play.strategies import Episodes, PlayContext, Strategy, check_delegation, expert_of


class ScriptedRoot:
    """A policy: the root's first `turns` turns by a script (`None`: all of them), everything else by another policy.

    `turn_tokens` bounds the policy's turns and not the script's: it is there for who may ramble, and a script that it
    cut would be played by the policy under the script's name. So the game itself must leave turns unbounded. Tokens
    behind the end of an account, or of a turn, are cut off: they would stand in the model's context and in no account.
    """

    def __init__(
        self, policy: Policy, codec: Codec | None, *, script: Actor, turns: int | None, turn_tokens: int | None
    ) -> None:
        self._script, self._policy = ScriptedPolicy(script, codec), policy
        self._codec, self._turns, self._turn_tokens = codec, turns, turn_tokens
        self._grants: dict[TurnKey, int | None] = {}

    def submit(self, requests: Sequence[PolicyRequest]) -> None:
        scripted = [request for request in requests if self._is_scripted(request.observation)]
        others = [self._bounded(request) for request in requests if not self._is_scripted(request.observation)]
        for policy, chosen in ((self._script, scripted), (self._policy, others)):
            self._grants.update((request.key, request.observation.max_new_tokens) for request in chosen)
            if chosen:
                policy.submit(chosen)

    def poll(self) -> list[tuple[TurnKey, Generation | InfrastructureError]]:
        # A server waits for an answer, so what the script has said comes first.
        said = self._script.poll() or self._policy.poll()
        return [(key, self._within(generation, self._grants.pop(key))) for key, generation in said]

    def _bounded(self, request: PolicyRequest) -> PolicyRequest:
        bounds = [n for n in (request.observation.max_new_tokens, self._turn_tokens) if n is not None]
        return replace(request, observation=replace(request.observation, max_new_tokens=min(bounds, default=None)))

    def _within(
        self, generation: Generation | InfrastructureError, grant: int | None
    ) -> Generation | InfrastructureError:
        if isinstance(generation, InfrastructureError) or self._codec is None or grant is None:
            return generation
        if len(generation.token_ids) <= grant:
            return generation
        ids = generation.token_ids[:grant]
        cut = replace(generation, token_ids=ids, behavior_logprobs=generation.behavior_logprobs[:grant])
        return replace(cut, text=self._codec.decode(ids), finish_reason=FinishReason.LENGTH)

    def _is_scripted(self, observation: Observation) -> bool:
        return observation.role is Role.ROOT and (self._turns is None or observation.turn < self._turns)


def obeyed(turns: Sequence[Turn]) -> bool:
    """Whether there are turns and the game did what they said: nothing cut, refused, or refused to one clone."""
    wrong = (Outcome.MALFORMED, Outcome.REFUSED)
    return bool(turns) and not any(turn.facts.outcome in wrong or turn.facts.refused for turn in turns)


class Split(Protocol):
    """How a task is handed out to clones."""

    def requests(self, text: str, keys: Sequence[str]) -> tuple[CloneRequest, ...]: ...


@dataclass(frozen=True)
class OneCall:
    """An `Actor` that hands its task out."""

    split: Split
    protocol: PromptFormat

    def act(self, observation: Observation, rng: np.random.Generator) -> str:
        return self.protocol.render(Delegate(self.split.requests(observation.brief.text, observation.brief.keys)))


@dataclass(frozen=True)
class ForkJoin(Strategy):
    """The root's first turn is a scripted call; then the policy, as the root, makes an answer of the replies."""

    def requests(self, text: str, keys: Sequence[str]) -> tuple[CloneRequest, ...]:
        """The scripted call: one request per clone."""
        raise NotImplementedError(f"{type(self).__name__} has no requests(text, keys)")

    def limits(self, limits: Limits, task: Task) -> Limits:
        clones = len(self.requests(task.prompt, tuple(task.context)))
        # Just so many, that the policy as the root joins and calls nobody else.
        limits = replace(limits, max_depth=1, max_clones=clones, max_clones_per_call=clones, max_reads=0)
        return replace(limits, turn_tokens=None)  # ScriptedRoot keeps it

    def check(self, context: PlayContext) -> None:
        check_delegation(context.limits, 1)

    def wrapper(self, context: PlayContext) -> PolicyWrapper:
        script = OneCall(self, context.protocol)
        return partial(ScriptedRoot, script=script, turns=1, turn_tokens=context.limits.turn_tokens)

    def executed(self, episodes: Episodes) -> bool | None:
        return all(obeyed(episode.root.turns[:1]) for episode in episodes)


@stored_as("selfcest_training.evaluation.scripted_roots:SpawnJoin", threads="threads")
@dataclass(frozen=True)
class SpawnJoin(ForkJoin, Checked):
    """A fixed number of parallel threads on the same question, each with all documents, after Adaptive Parallel
    Reasoning (arXiv 2504.15466) without its learned choice of when to fork.

    Attributes:
        threads: how many.
    """

    threads: Count = 4

    def requests(self, text: str, keys: Sequence[str]) -> tuple[CloneRequest, ...]:
        return (CloneRequest(text, tuple(keys)),) * self.threads

    def check(self, context: PlayContext) -> None:
        check_delegation(context.limits, self.threads)
        if self.threads > 1 and context.temperature == 0:
            raise ConfigError("temperature is 0, so all threads would be equal; set the strategy's temperature above 0")


@stored_as("selfcest_training.evaluation.scripted_roots:MapReduce", documents_per_clone="documents_per_clone")
@dataclass(frozen=True)
class MapReduce(ForkJoin, Checked):
    """Every document goes to a clone with the question; a task without documents goes to one clone.

    As the fan-out is the number of documents, `max_clones` and `max_clones_per_call` do not bound it; tokens do.

    Attributes:
        documents_per_clone: how many documents one clone is given.
    """

    documents_per_clone: Count = 1

    def requests(self, text: str, keys: Sequence[str]) -> tuple[CloneRequest, ...]:
        size = self.documents_per_clone
        shares = [tuple(keys[start : start + size]) for start in range(0, len(keys), size)] or [()]
        return tuple(CloneRequest(text, share) for share in shares)


@stored_as("selfcest_training.evaluation.scripted_roots:OracleDecomposition")
@dataclass(frozen=True)
class OracleDecomposition(Strategy):
    """The source's expert plays the root, the policy its clones: what it could do if it knew how to delegate."""

    oracle: ClassVar[bool] = True
    uses_expert: ClassVar[bool] = True

    def check(self, context: PlayContext) -> None:
        check_delegation(context.limits, 1)
        expert_of(context)

    def styles(self) -> tuple[Style, ...]:
        return (Style.DELEGATE,)

    def wrapper(self, context: PlayContext) -> PolicyWrapper:
        script = OracleActor(expert_of(context), context.protocol)
        return partial(ScriptedRoot, script=script, turns=None, turn_tokens=context.limits.turn_tokens)

    def limits(self, limits: Limits, task: Task) -> Limits:
        return replace(limits, turn_tokens=None)  # ScriptedRoot keeps it

    def executed(self, episodes: Episodes) -> bool | None:
        # An expert that can pay for no call works alone.
        return all(
            obeyed(episode.root.turns) and not episode.root.failed and episode.cost.clones > 0 for episode in episodes
        )
