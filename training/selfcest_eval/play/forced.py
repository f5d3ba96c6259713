"""Strategies that force the root's choice whether to delegate. The policy makes all other choices.

They measure the reward of the same weights under either choice.
"""

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
    """A policy whose root begins its first turn like the source's expert that delegates, or like the one that does not.

    Both experts write the same ids up to the decision. The start ends with the first id in which they differ.

    Args:
        policy: policy that continues the first turn and plays all others.
        codec: codec of the policy's ids.
        source: task source with the experts.
        protocol: prompt format of the experts' actions.
        delegate: forced choice.

    Raises:
        ConfigError: the policy has no codec, since it generates text only.
    """

    def __init__(
        self, policy: Policy, codec: Codec | None, *, source: ExpertSource, protocol: PromptFormat, delegate: bool
    ) -> None:
        if codec is None:
            raise ConfigError(
                "the policy has no token ids, so no turn can be begun for it; expected a model in this process"
            )
        self._policy = policy
        self._codec = codec
        self._source = source
        self._protocol = protocol
        self._delegate = delegate
        self._starts: dict[TurnKey, tuple[int, ...]] = {}

    def submit(self, requests: Sequence[PolicyRequest]) -> None:
        self._policy.submit([self._with_start(request) for request in requests])

    def _with_start(self, request: PolicyRequest) -> PolicyRequest:
        """Return the request with the ids that its turn begins with, if it is the root's first turn."""
        observation = request.observation
        if observation.role is not Role.ROOT or observation.turn:
            return request
        start = self._forced_start(request)
        if observation.max_new_tokens is not None:
            # One token is left to generate. A start that does not fit is cut, and its turn is malformed.
            start = start[: observation.max_new_tokens - 1]
        self._starts[request.key] = start
        return replace(request, start=start)

    def _forced_start(self, request: PolicyRequest) -> tuple[int, ...]:
        """Return the ids up to the forced decision, which they include.

        Raises:
            PolicyError: an expert cannot make its choice on this task.
        """
        observation = request.observation
        ids_by_choice: dict[bool, tuple[int, ...]] = {}
        for delegate, style in ((True, Style.DELEGATE), (False, Style.READ)):
            proposal = self._source.propose(observation, np.random.default_rng(request.seed), style)
            if isinstance(proposal.action, Delegate) is not delegate:
                choice = "delegate" if delegate else "do without clones"
                raise PolicyError(
                    f"{request.key}: the task's expert could not {choice} on {observation.brief.text!r}, so that "
                    "choice cannot be forced; change the limits, or leave the family out of this strategy's families"
                )
            ids_by_choice[delegate] = self._codec.encode_scripted(
                self._protocol.render(proposal.action, proposal.thought)
            )
        num_shared = 0
        for delegating_id, working_id in zip(ids_by_choice[True], ids_by_choice[False], strict=False):
            if delegating_id != working_id:
                break
            num_shared += 1
        return ids_by_choice[self._delegate][: num_shared + 1]

    def poll(self) -> Sequence[tuple[TurnKey, Generation | InfrastructureError]]:
        finished = self._policy.poll()
        for key, generation in finished:
            start = self._starts.pop(key, ())
            if isinstance(generation, Generation) and generation.token_ids[: len(start)] != start:
                raise PolicyError(
                    f"{key}: the policy ignores the ids that a turn begins with; expected a model in this process"
                )
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
