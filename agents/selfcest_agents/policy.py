"""Policies turn observations into generations. They never see the kernel, the ground truth or a reward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from traceback import clear_frames
from typing import Annotated, Any, Protocol

import numpy as np

from selfcest_agents.codec import Codec
from selfcest_agents.engine import Completion, Engine, FailedRequest, TokenRequest
from selfcest_env.errors import ConfigError, InfrastructureError, PolicyError, SelfcestError
from selfcest_env.record import Generation
from selfcest_env.structure import Checked, NotNegative
from selfcest_env.types import Role, TurnKey
from selfcest_env.views import Observation


@dataclass(frozen=True, slots=True)
class PolicyRequest:
    """A turn for which the policy must generate text.

    Attributes:
        key: key of the turn.
        observation: all information that the agent may have.
        history: earlier generations of the agent, oldest first. They hold the exact ids of its context.
        seed: seed of this turn.
        start: ids with which the generation must begin. There are fewer of them than `observation.max_new_tokens`.
    """

    key: TurnKey
    observation: Observation
    history: tuple[Generation, ...]
    seed: int
    start: tuple[int, ...] = ()


class Policy(Protocol):
    """A policy answers every submitted request exactly once, in any order."""

    def submit(self, requests: Sequence[PolicyRequest]) -> None: ...

    def poll(self) -> Sequence[tuple[TurnKey, Generation | InfrastructureError]]:
        """Advance the work and return the finished turns; `[]` is allowed while the policy is busy.

        The value of a turn is an `InfrastructureError` if a failure of a server or of the machine prevented it.
        """
        ...


class Actor(Protocol):
    """An actor computes the text of a turn from the observation only. See `scripted`."""

    def act(self, observation: Observation, rng: np.random.Generator) -> str: ...


@dataclass(frozen=True)
class SamplingConfig(Checked):
    """Options of sampling. Top-p and top-k are missing, because the learner could not reproduce their log-probs."""

    temperature: Annotated[NotNegative, "0: greedy"] = 1.0


class EnginePolicy:
    """A policy over an engine. Every context is the concatenation of stored ids, and no text is encoded twice."""

    def __init__(self, engine: Engine, codec: Codec, sampling: SamplingConfig) -> None:
        self._engine = engine
        self._codec = codec
        self._sampling = sampling
        self._pending: dict[str, tuple[PolicyRequest, tuple[int, ...]]] = {}
        self._failed: list[tuple[TurnKey, Generation | InfrastructureError]] = []  # turns that an engine's error ended

    def submit(self, requests: Sequence[PolicyRequest]) -> None:
        token_requests = []
        pending: dict[str, tuple[PolicyRequest, tuple[int, ...]]] = {}
        for request in requests:
            observation = request.observation
            if observation.max_new_tokens is None:
                raise PolicyError(f"{request.key} has no max_new_tokens; set limits.turn_tokens to play with a model")
            block = self._codec.encode(observation.block, observation.boundary)
            context: list[int] = []
            for generation in request.history:
                context += generation.prompt_ids
                context += generation.token_ids
            context += block
            context += request.start
            name = str(request.key)
            pending[name] = request, block
            max_new_tokens = observation.max_new_tokens - len(request.start)
            temperature = self._sampling.temperature
            token_requests.append(
                TokenRequest(name, tuple(context), max_new_tokens, request.seed, temperature, observation.role)
            )
        with self._failing_pending():
            self._pending |= pending
            self._engine.submit(token_requests)

    def poll(self) -> list[tuple[TurnKey, Generation | InfrastructureError]]:
        completions: Sequence[Completion | FailedRequest] = []
        if not self._failed:
            with self._failing_pending():
                completions = self._engine.poll()
        finished, self._failed = self._failed, []
        for completion in completions:
            request, block = self._pending.pop(completion.key)
            if isinstance(completion, FailedRequest):
                finished.append((request.key, completion.error))
                continue
            ids = (*request.start, *completion.token_ids)
            generation = Generation(
                text=self._codec.decode(ids),
                finish_reason=completion.finish_reason,
                prompt_ids=block,
                token_ids=ids,
                # The given start had no alternative, so its log-probs are 0, like those of a script.
                behavior_logprobs=(0.0,) * len(request.start) + tuple(completion.logprobs),
                temperature=self._sampling.temperature,
                policy_version=completion.policy_version,
            )
            finished.append((request.key, generation))
        return finished

    @contextmanager
    def _failing_pending(self) -> Iterator[None]:
        """Let an error of the engine, such as missing memory, fail all pending turns, which can then be retried.

        An error of ours and an interrupt are raised. In any case no request stays pending, and the policy can play on.
        """
        try:
            yield
        except BaseException as error:
            pending, self._pending = self._pending, {}
            with suppress(Exception):  # what a broken engine raises here would hide the first error
                self._engine.cancel(list(pending))
            if isinstance(error, SelfcestError) and not isinstance(error, InfrastructureError):
                raise
            if not isinstance(error, Exception):
                raise
            cause = " ".join(f"{type(error).__name__}: {error}".split())[:500]
            failure = InfrastructureError(f"{type(self._engine).__name__} failed with {cause}")
            clear_frames(error.__traceback__)  # their tensors would take memory from the next try
            failure.__cause__ = error
            self._failed += [(request.key, failure) for request, _ in pending.values()]


class TurnGenerator(np.random.Generator):
    """The generator `np.random.default_rng(seed)`, which is seeded at its first use.

    Most scripted turns draw nothing, and seeding takes longer than the script itself.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(_UNUSED_BITS)
        self.__dict__["seed"] = seed

    def __getattribute__(self, name: str) -> Any:
        if name in ("__dict__", "__class__"):
            return super().__getattribute__(name)
        state = super().__getattribute__("__dict__")
        if "generator" not in state:
            state["generator"] = np.random.default_rng(state["seed"])
        return getattr(state["generator"], name)

    def __reduce__(self) -> Any:
        return self.__reduce_ex__(2)  # of the seeded generator, so that a copy has its state


# A `Generator` must be made with a bit generator. No turn draws from this one.
_UNUSED_BITS = np.random.PCG64(0)


class ScriptedPolicy:
    """A policy whose texts come from an `Actor`. With a codec they are also encoded, to serve as demonstrations.

    A script is deterministic given its seed, so the log-prob of each of its tokens is 0.
    """

    def __init__(self, actor: Actor, codec: Codec | None = None) -> None:
        self._actor = actor
        self._codec = codec
        self._finished: list[tuple[TurnKey, Generation]] = []

    def submit(self, requests: Sequence[PolicyRequest]) -> None:
        for request in requests:
            observation = request.observation
            text = self._actor.act(observation, TurnGenerator(request.seed))
            if self._codec is None:
                generation = Generation(text)
            else:
                ids = self._codec.encode_scripted(text)
                block = self._codec.encode(observation.block, observation.boundary)
                generation = Generation(text, prompt_ids=block, token_ids=ids, behavior_logprobs=(0.0,) * len(ids))
            self._finished.append((request.key, generation))

    def poll(self) -> list[tuple[TurnKey, Generation]]:
        finished = self._finished
        self._finished = []
        return finished


class RolePolicy:
    """A policy with one policy for each role, such as a learned root over scripted clones."""

    def __init__(self, by_role: Mapping[Role, Policy]) -> None:
        missing = [role for role in Role if role not in by_role]
        if missing:
            raise ConfigError(f"no policy for role {missing[0]}; expected a policy for each of {', '.join(Role)}")
        policies = {id(policy): policy for policy in by_role.values() if isinstance(policy, EnginePolicy)}
        if len({id(policy._engine) for policy in policies.values()}) < len(policies):
            raise ConfigError(
                "two roles have policies over one engine, of which each would get the other's turns; give one policy "
                "to both roles, or each an engine of its own"
            )
        self._by_role = by_role

    def submit(self, requests: Sequence[PolicyRequest]) -> None:
        for role, policy in self._by_role.items():
            requests_of_role = [request for request in requests if request.observation.role is role]
            if requests_of_role:
                policy.submit(requests_of_role)

    def poll(self) -> list[tuple[TurnKey, Generation | InfrastructureError]]:
        finished: list[tuple[TurnKey, Generation | InfrastructureError]] = []
        for policy in self._by_role.values():
            finished += policy.poll()
        return finished
