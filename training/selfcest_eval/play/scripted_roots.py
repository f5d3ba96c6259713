"""Strategies whose root follows a script, in its first turn or in all turns. The policy plays the clones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

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
    """A policy whose root follows a script, while another policy plays all other turns.

    Tokens beyond a grant are cut off the generation: they would be in the model's context and in no account.

    Args:
        policy: policy of the other turns.
        codec: codec of the ids, if there is one.
        script: actor of the scripted turns.
        turns: number of scripted turns, the root's first ones; `None`: all of them.
        turn_tokens: largest number of tokens in a turn of the policy. It does not bound scripted turns, since the
            policy would continue a cut script. So the limits of the game must leave turns unbounded.
    """

    def __init__(
        self, policy: Policy, codec: Codec | None, *, script: Actor, turns: int | None, turn_tokens: int | None
    ) -> None:
        self._script = ScriptedPolicy(script, codec)
        self._policy = policy
        self._codec = codec
        self._turns = turns
        self._turn_tokens = turn_tokens
        self._grants: dict[TurnKey, int | None] = {}

    def submit(self, requests: Sequence[PolicyRequest]) -> None:
        scripted: list[PolicyRequest] = []
        sampled: list[PolicyRequest] = []
        for request in requests:
            if self._is_scripted(request.observation):
                scripted.append(request)
            else:
                sampled.append(self._bounded(request))
        for request in (*scripted, *sampled):
            self._grants[request.key] = request.observation.max_new_tokens
        if scripted:
            self._script.submit(scripted)
        if sampled:
            self._policy.submit(sampled)

    def poll(self) -> list[tuple[TurnKey, Generation | InfrastructureError]]:
        # The script is polled first, since polling a server may block.
        finished = self._script.poll() or self._policy.poll()
        return [(key, self._within(generation, self._grants.pop(key))) for key, generation in finished]

    def _bounded(self, request: PolicyRequest) -> PolicyRequest:
        """Return the request with the smaller of its grant and the bound of a turn."""
        bounds = [n for n in (request.observation.max_new_tokens, self._turn_tokens) if n is not None]
        return replace(request, observation=replace(request.observation, max_new_tokens=min(bounds, default=None)))

    def _within(
        self, generation: Generation | InfrastructureError, grant: int | None
    ) -> Generation | InfrastructureError:
        """Return the generation without the tokens beyond its grant."""
        if isinstance(generation, InfrastructureError) or self._codec is None or grant is None:
            return generation
        if len(generation.token_ids) <= grant:
            return generation
        ids = generation.token_ids[:grant]
        cut = replace(generation, token_ids=ids, behavior_logprobs=generation.behavior_logprobs[:grant])
        return replace(cut, text=self._codec.decode(ids), finish_reason=FinishReason.LENGTH)

    def _is_scripted(self, observation: Observation) -> bool:
        return observation.role is Role.ROOT and (self._turns is None or observation.turn < self._turns)


def were_executed(turns: Sequence[Turn]) -> bool:
    """Return whether the game executed every turn: none was cut or refused, and no clone of a call was refused.

    Without any turn nothing was executed.
    """
    failed_outcomes = (Outcome.MALFORMED, Outcome.REFUSED)
    return bool(turns) and not any(turn.facts.outcome in failed_outcomes or turn.facts.refused for turn in turns)


@dataclass(frozen=True)
class OneCall:
    """An `Actor` that delegates its task in one call, with the requests of a strategy."""

    strategy: ForkJoin
    protocol: PromptFormat

    def act(self, observation: Observation, rng: np.random.Generator) -> str:
        return self.protocol.render(Delegate(self.strategy.requests(observation.brief.text, observation.brief.keys)))


@dataclass(frozen=True)
class ForkJoin(Strategy):
    """The root's first turn is a scripted call. Then the policy plays the root, and answers from the replies."""

    def requests(self, text: str, keys: Sequence[str]) -> tuple[CloneRequest, ...]:
        """Return the scripted call: one request per clone."""
        raise NotImplementedError(f"{type(self).__name__} has no requests(text, keys)")

    def limits(self, limits: Limits, task: Task) -> Limits:
        clones = len(self.requests(task.prompt, tuple(task.context)))
        # No more clones are allowed than the script calls, so the policy as the root cannot call others.
        limits = replace(limits, max_depth=1, max_clones=clones, max_clones_per_call=clones, max_reads=0)
        return replace(limits, turn_tokens=None)  # `ScriptedRoot` bounds turns

    def check(self, context: PlayContext) -> None:
        check_delegation(context.limits, 1)

    def wrapper(self, context: PlayContext) -> PolicyWrapper:
        script = OneCall(self, context.protocol)
        return partial(ScriptedRoot, script=script, turns=1, turn_tokens=context.limits.turn_tokens)

    def executed(self, episodes: Episodes) -> bool | None:
        return all(were_executed(episode.root.turns[:1]) for episode in episodes)


@stored_as("selfcest_training.evaluation.scripted_roots:SpawnJoin", threads="threads")
@dataclass(frozen=True)
class SpawnJoin(ForkJoin, Checked):
    """A fixed number of parallel threads on the same question, each with all documents.

    It follows Adaptive Parallel Reasoning (arXiv 2504.15466), without the learned choice of when to fork.

    Attributes:
        threads: number of threads.
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
    """Every document goes to a clone with the question. A task without documents goes to one clone.

    The number of documents decides the number of clones, so `max_clones` and `max_clones_per_call` do not bound it. The
    token limits do.

    Attributes:
        documents_per_clone: number of documents that one clone gets.
    """

    documents_per_clone: Count = 1

    def requests(self, text: str, keys: Sequence[str]) -> tuple[CloneRequest, ...]:
        size = self.documents_per_clone
        shares = [tuple(keys[start : start + size]) for start in range(0, len(keys), size)] or [()]
        return tuple(CloneRequest(text, share) for share in shares)


@stored_as("selfcest_training.evaluation.scripted_roots:OracleDecomposition")
@dataclass(frozen=True)
class OracleDecomposition(Strategy):
    """The source's expert plays the root, and the policy its clones: an estimate for a policy that delegates well."""

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
        return replace(limits, turn_tokens=None)  # `ScriptedRoot` bounds turns

    def executed(self, episodes: Episodes) -> bool | None:
        # An expert that cannot afford a call works without clones.
        return all(
            were_executed(episode.root.turns) and not episode.root.failed and episode.cost.clones > 0
            for episode in episodes
        )
