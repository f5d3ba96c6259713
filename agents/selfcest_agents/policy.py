"""Who decides: a policy turns observations into generations. It never sees the kernel, an answer or a reward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Protocol

import numpy as np

from selfcest_agents.codec import Codec
from selfcest_agents.engine import Engine, FailedRequest, TokenRequest
from selfcest_env.errors import ConfigError, InfrastructureError, PolicyError, SelfcestError
from selfcest_env.record import Generation
from selfcest_env.structure import Checked, NotNegative
from selfcest_env.types import Role, TurnKey
from selfcest_env.views import Observation


@dataclass(frozen=True, slots=True)
class PolicyRequest:
    """One decision to make.

    Attributes:
        key: the turn's name.
        observation: all that the agent may know.
        history: the agent's earlier generations, oldest first; with them the context's ids are known exactly.
        seed: this turn's own random stream.
        start: ids that the turn begins with, as if the policy had written them; fewer than it may write.
    """

    key: TurnKey
    observation: Observation
    history: tuple[Generation, ...]
    seed: int
    start: tuple[int, ...] = ()


class Policy(Protocol):
    """Answers every submitted request exactly once, in any order."""

    def submit(self, requests: Sequence[PolicyRequest]) -> None: ...

    def poll(self) -> Sequence[tuple[TurnKey, Generation | InfrastructureError]]:
        """Advance the work a little and return what has finished; `[]` is allowed while busy.

        An `InfrastructureError` stands for a turn that nobody's fault but a server's has left unplayed.
        """
        ...


class Actor(Protocol):
    """A policy of one line: text at once, from the observation alone. See `scripted`."""

    def act(self, observation: Observation, rng: np.random.Generator) -> str: ...


@dataclass(frozen=True)
class SamplingConfig(Checked):
    """How tokens are drawn. There is no top-p and no top-k: the learner could not reproduce their log-probs."""

    temperature: Annotated[NotNegative, "0: greedy"] = 1.0


class EnginePolicy:
    """Token in, token out: every context is the concatenation of stored ids, and nothing is ever encoded twice."""

    def __init__(self, engine: Engine, codec: Codec, sampling: SamplingConfig) -> None:
        self._engine, self._codec, self._sampling = engine, codec, sampling
        self._pending: dict[str, tuple[PolicyRequest, tuple[int, ...]]] = {}

    def submit(self, requests: Sequence[PolicyRequest]) -> None:
        token_requests = []
        for request in requests:
            observation = request.observation
            if observation.max_new_tokens is None:
                raise PolicyError(f"{request.key} has no max_new_tokens; set limits.turn_tokens to play with a model")
            block = self._codec.encode(observation.block, observation.boundary)
            context = [i for past in request.history for ids in (past.prompt_ids, past.token_ids) for i in ids]
            name = str(request.key)
            self._pending[name] = request, block
            left = observation.max_new_tokens - len(request.start)
            token_requests.append(
                TokenRequest(name, (*context, *block, *request.start), left, request.seed, self._sampling.temperature)
            )
        with self._engine_s_faults():
            self._engine.submit(token_requests)

    def poll(self) -> list[tuple[TurnKey, Generation | InfrastructureError]]:
        finished: list[tuple[TurnKey, Generation | InfrastructureError]] = []
        with self._engine_s_faults():
            completions = self._engine.poll()
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
                # What was begun for it had no alternative: log-prob 0, as a script's.
                behavior_logprobs=((0.0,) * len(request.start) + tuple(completion.logprobs)),
                temperature=self._sampling.temperature,
                policy_version=completion.policy_version,
            )
            finished.append((request.key, generation))
        return finished

    @contextmanager
    def _engine_s_faults(self) -> Iterator[None]:
        """An engine that raises, as for want of memory, has no answers any more: that is nobody's answer either."""
        try:
            yield
        except SelfcestError:
            raise
        except Exception as error:
            said = " ".join(f"{type(error).__name__}: {error}".split())[:500]
            raise InfrastructureError(f"{type(self._engine).__name__} failed with {said}") from error


class ScriptedPolicy:
    """An `Actor` as a policy. With a codec its text is also encoded, so that it can serve as a demonstration.

    A script is deterministic given its stream, so the log-prob of each of its tokens is 0.
    """

    def __init__(self, actor: Actor, codec: Codec | None = None) -> None:
        self._actor, self._codec = actor, codec
        self._finished: list[tuple[TurnKey, Generation]] = []

    def submit(self, requests: Sequence[PolicyRequest]) -> None:
        for request in requests:
            observation = request.observation
            text = self._actor.act(observation, np.random.default_rng(request.seed))
            generation = Generation(text)
            if self._codec is not None:
                ids = self._codec.encode_own(text)
                block = self._codec.encode(observation.block, observation.boundary)
                generation = Generation(text, prompt_ids=block, token_ids=ids, behavior_logprobs=(0.0,) * len(ids))
            self._finished.append((request.key, generation))

    def poll(self) -> list[tuple[TurnKey, Generation]]:
        finished, self._finished = self._finished, []
        return finished


class RolePolicy:
    """Another policy per role: a learned root over scripted clones, or the other way round."""

    def __init__(self, by_role: Mapping[Role, Policy]) -> None:
        missing = [role for role in Role if role not in by_role]
        if missing:
            raise ConfigError(f"no policy for role {missing[0]}; give one for each of {', '.join(Role)}")
        self._by_role = by_role

    def submit(self, requests: Sequence[PolicyRequest]) -> None:
        for role, policy in self._by_role.items():
            chosen = [request for request in requests if request.observation.role is role]
            if chosen:
                policy.submit(chosen)

    def poll(self) -> list[tuple[TurnKey, Generation | InfrastructureError]]:
        return [done for policy in self._by_role.values() for done in policy.poll()]
