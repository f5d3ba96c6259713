"""Strategies that decide for the root whether it delegates and leave all else to the policy.

They show what the same weights would have earned by the other choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np

from selfcest_agents.codec import Codec
from selfcest_agents.player import PolicyWrapper
from selfcest_agents.policy import Policy, PolicyRequest
from selfcest_env.errors import ConfigError, InfrastructureError, PolicyError
from selfcest_env.protocol import PromptFormat
from selfcest_env.record import Generation
from selfcest_env.stored import stored_as
from selfcest_env.tasks import ExpertSource, Style
from selfcest_env.types import Delegate, Role, TurnKey
from selfcest_eval.play.strategies import PlayContext, Strategy, check_delegation, expert_of


class ForcedDecision:
    """A policy whose root begins its first turn as the source's expert begins it who delegates, or who does not.

    The two experts write the same up to the decision; the start ends with the first token in which they differ.
    """

    def __init__(
        self, policy: Policy, codec: Codec | None, *, source: ExpertSource, protocol: PromptFormat, delegate: bool
    ) -> None:
        if codec is None:
            raise ConfigError("a policy of text alone cannot go on from a begun turn; expected a model in this process")
        self._policy, self._codec, self._source, self._protocol = policy, codec, source, protocol
        self._delegate = delegate
        self._starts: dict[TurnKey, tuple[int, ...]] = {}

    def submit(self, requests: Sequence[PolicyRequest]) -> None:
        self._policy.submit([self._begun(request) for request in requests])

    def _begun(self, request: PolicyRequest) -> PolicyRequest:
        seen = request.observation
        if seen.role is not Role.ROOT or seen.turn:
            return request
        # A turn too short for the start is cut off in it, and is malformed as any other that is cut.
        start = self.start_of(request)[: None if seen.max_new_tokens is None else seen.max_new_tokens - 1]
        self._starts[request.key] = start
        return replace(request, start=start)

    def start_of(self, request: PolicyRequest) -> tuple[int, ...]:
        """Ids up to the decision, the decision included. Raises `PolicyError` if there is none to make."""
        seen, ids = request.observation, dict[bool, tuple[int, ...]]()
        for delegate, style in ((True, Style.DELEGATE), (False, Style.READ)):
            proposal = self._source.propose(seen, np.random.default_rng(request.seed), style)
            if isinstance(proposal.action, Delegate) is not delegate:
                able = "delegate" if delegate else "do without clones"
                raise PolicyError(
                    f"{request.key}: the task's expert could not {able} on {seen.brief.text!r}, so that choice cannot "
                    "be forced; change the limits, or leave the family out of this strategy's families"
                )
            ids[delegate] = self._codec.encode_scripted(self._protocol.render(proposal.action, proposal.thought))
        shared = next(i for i, (a, b) in enumerate(zip(ids[True], ids[False], strict=False)) if a != b)
        return ids[self._delegate][: shared + 1]

    def poll(self) -> Sequence[tuple[TurnKey, Generation | InfrastructureError]]:
        finished = self._policy.poll()
        for key, generation in finished:
            start = self._starts.pop(key, ())
            if isinstance(generation, Generation) and generation.token_ids[: len(start)] != start:
                raise PolicyError(f"{key}: the policy cannot go on from a begun turn; expected a model in this process")
        return finished


@dataclass(frozen=True)
class _Forced(Strategy):
    uses_expert: ClassVar[bool] = True

    def check(self, context: PlayContext) -> None:
        check_delegation(context.limits, 1)
        expert_of(context)

    def styles(self) -> tuple[Style, ...]:
        return (Style.DELEGATE if self.delegates else Style.READ,)

    def wrapper(self, context: PlayContext) -> PolicyWrapper:
        return partial(ForcedDecision, source=expert_of(context), protocol=context.protocol, delegate=self.delegates)


@stored_as("selfcest_training.evaluation.forced:AlwaysDelegates")
@dataclass(frozen=True)
class AlwaysDelegates(_Forced):
    """The root's first turn begins with a call."""


@stored_as("selfcest_training.evaluation.forced:NeverDelegates")
@dataclass(frozen=True)
class NeverDelegates(_Forced):
    """The root's first turn begins with work of its own."""

    delegates: ClassVar[bool] = False
