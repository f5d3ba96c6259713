"""Rollout workers as Ray actors, and the player that shares its requests out to them.

A worker holds nothing that matters: the weights are an argument of every call, so one that died is replaced, and its
part is played again by the same seeds with the same weights. (Ray's own retry would call a fresh actor, which has the
initial weights.) Parts are contiguous and a function of the numbers of requests and workers alone, never of who is
free: what is sampled together decides how matrix products round.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from selfcest_agents.language import Language, language_of
from selfcest_agents.lora import merged_weights
from selfcest_agents.player import ModelPlayer, Player, Wrapper
from selfcest_agents.replay import PlayedReplay
from selfcest_agents.rollout import RolloutRequest, Unplayed, all_of, what_played
from selfcest_agents.samplers import make_sampler
from selfcest_agents.server_counts import count, tallied
from selfcest_env.errors import InfrastructureError, PolicyError
from selfcest_env.local_modules import child_environment
from selfcest_env.plugin import PlugIn
from selfcest_env.record import EpisodeRecord
from selfcest_env.replay import Replay
from selfcest_env.reward import make_reward
from selfcest_env.types import Limits
from selfcest_training.cluster.answers import Answer, CpuClock
from selfcest_training.cluster.config import ClusterConfig, shares
from selfcest_training.cluster.connection import actor_options, death_errors, import_ray, join, result_of, started_of
from selfcest_training.cluster.snapshot import WeightSnapshot


@dataclass(frozen=True)
class WorkerSpec:
    """What a worker builds its player from.

    Attributes:
        model, sampler, reward: as in the run's config.
        limits: of requests without limits of their own.
        threads: of its matrix products; as many as the job's, or they round differently.
    """

    model: PlugIn
    sampler: PlugIn
    reward: PlugIn
    limits: Limits
    threads: int


@dataclass(frozen=True)
class WorkerFacts:
    """A worker that has started: its process, its node, and whether it samples in float32."""

    pid: int
    node: str
    exact: bool


class RolloutWorker:
    """The actor. What it cannot build is an error of the first call, not of its process."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec, self._clock = spec, CpuClock()
        self._loaded = ""

    @cached_property
    def _player(self) -> ModelPlayer:
        spec = self._spec
        torch.set_num_threads(spec.threads)
        disable_progress_bar()  # type: ignore[no-untyped-call]
        language = language_of(spec.model)
        sampler = make_sampler(spec.sampler.name, spec.sampler.options).start(language, None)
        reward = make_reward(spec.reward.name, **spec.reward.options)
        return ModelPlayer(language, sampler, limits=spec.limits, reward=reward)

    def start(self) -> WorkerFacts:
        ray = import_ray()
        return WorkerFacts(os.getpid(), ray.get_runtime_context().get_node_id(), self._player.sampler.exact)

    def play(
        self,
        weights: Sequence[Any],
        judged: bool,
        requests: Sequence[RolloutRequest],
        temperature: float,
        reward_weights: Mapping[str, float] | None,
        wrap: Wrapper | None,
    ) -> Answer:
        """Records, and what could not be played."""
        player = self._with(weights, judged)
        with tallied() as tally:
            played = what_played(lambda: player.play(requests, temperature, reward_weights, wrap))
        return self._clock.answer(played, tally.take())

    def play_replays(
        self,
        weights: Sequence[Any],
        judged: bool,
        factual: Sequence[EpisodeRecord],
        replays: Sequence[Replay],
        temperature: float,
    ) -> Answer:
        """Episodes by replay, and what could not be played."""
        player = self._with(weights, judged)
        with tallied() as tally:
            played = what_played(lambda: player.play_replays(factual, replays, temperature))
        return self._clock.answer(played, tally.take())

    def _with(self, weights: Sequence[Any], judged: bool) -> ModelPlayer:
        """The player with the weights that a reference, in a list lest Ray fetch it for every call, stands for."""
        (reference,) = weights
        # By the reference, not the version: a warm start pushes several weights as version 0.
        if reference.hex() != self._loaded:
            self._loaded = ""
            snapshot: WeightSnapshot = import_ray().get(reference)
            self._player.sampler.push(snapshot.tensors(), snapshot.version)
            self._loaded = reference.hex()
        return self._player if judged else replace(self._player, reward=None)


class RolloutWorkers:
    """The actors of a job, and the weights that they play with: `TakesWeights`.

    Args:
        config: how many, and on what.
        spec: what they are built from.
        dtype: that the sampler computes in, and weights travel in; `None`: the model's.

    Attributes:
        replaced: how many have died and were replaced.
        cpu_seconds: of all answers so far. What a worker used for one that it did not live to give is lost.

    Raises:
        ConfigError: Ray cannot be had, or a worker cannot be built so.
        InfrastructureError: not all have started in time.
    """

    shared = False

    def __init__(self, config: ClusterConfig, spec: WorkerSpec, dtype: torch.dtype | None) -> None:
        self._config, self._spec, self._dtype = config, spec, dtype
        self._weights: Any = None
        self._calls = threading.Lock()  # parts of one call at a time: rollouts may run ahead in a thread of their own
        self.address = join(config)
        self.replaced = 0
        self.cpu_seconds = 0.0
        ray = import_ray()
        self._actors = [self._new() for _ in range(config.rollout_workers)]
        try:
            starting = [actor.start.remote() for actor in self._actors]
            ready, missing = ray.wait(starting, num_returns=len(starting), timeout=config.start_seconds)
            self.facts: list[WorkerFacts] = [started_of(one, "rollout worker") for one in ready]
            if missing:
                raise InfrastructureError(
                    f"{len(missing)} of {len(starting)} rollout workers, which want {dict(config.rollout_resources)} "
                    f"each, did not start in cluster.start_seconds = {config.start_seconds:g}; look at `ray status`"
                )
        except BaseException:
            self.close()
            raise

    @property
    def number(self) -> int:
        return len(self._actors)

    @property
    def exact(self) -> bool:
        return all(one.exact for one in self.facts)

    def sync(self, model: PreTrainedModel, policy_version: int) -> None:
        """See `TakesWeights`."""
        self.push(merged_weights(model), policy_version)

    def push(self, weights: Iterable[tuple[str, Tensor]], policy_version: int) -> None:
        """See `TakesWeights`. Nothing is sent to a worker before its next call."""
        self.hand_over(import_ray().put(WeightSnapshot.of(weights, policy_version, self._dtype)))

    def hand_over(self, snapshot: Any) -> None:
        """Play with a `WeightSnapshot` that is in the object store already, of which this is the reference."""
        self._weights = snapshot

    def ask(self, method: str, parts: Sequence[tuple[Any, ...]], judged: bool) -> list[Any]:
        """Call a worker for each part, the first for the first; results in the order of the parts.

        Raises:
            InfrastructureError: a part whose workers have died once too often.
            Exception: whatever a worker raised.
        """
        if not parts:
            return []
        if self._weights is None:
            raise PolicyError("the rollout workers have no weights; sync or push before playing")
        with self._calls:
            return self._ask(method, parts, judged)

    def _ask(self, method: str, parts: Sequence[tuple[Any, ...]], judged: bool) -> list[Any]:
        ray, weights, deaths = import_ray(), self._weights, Counter[int]()

        def call(i: int) -> Any:
            return getattr(self._actors[i], method).remote([weights], judged, *parts[i])

        asked, found = {call(i): i for i in range(len(parts))}, dict[int, Any]()
        while asked:
            (done,), _ = ray.wait(list(asked), num_returns=1)
            i = asked.pop(done)
            try:
                answer: Answer = result_of(done)
            except death_errors() as error:
                deaths[i] += 1
                said = " ".join(str(error).split())[:300]
                if deaths[i] > self._config.retries:
                    raise InfrastructureError(
                        f"rollout worker {i} died {deaths[i]} times at the same part, and cluster.retries is "
                        f"{self._config.retries}; the last: {said}"
                    ) from error
                warnings.warn(f"rollout worker {i} died; another plays its part again: {said}", stacklevel=4)
                self._replace(i)
                asked[call(i)] = i
                continue
            found[i] = answer.found
            self.cpu_seconds += answer.cpu_seconds
            count(answer.servers)
        return [found[i] for i in range(len(parts))]

    def _replace(self, i: int) -> None:
        ray = import_ray()
        ray.kill(self._actors[i])  # of whom nothing was heard may be alive
        self._actors[i] = self._new()
        started, _ = ray.wait([self._actors[i].start.remote()], timeout=self._config.start_seconds)
        if not started:  # as when a whole node is gone
            raise InfrastructureError(
                f"rollout worker {i} died, and no other, which wants {dict(self._config.rollout_resources)}, started "
                f"in cluster.start_seconds = {self._config.start_seconds:g}; go on with --resume and fewer "
                "rollout_workers"
            )
        self.replaced += 1

    def _new(self) -> Any:
        threads = {"OMP_NUM_THREADS": str(self._spec.threads), "OMP_WAIT_POLICY": "passive"}
        environment = threads | child_environment()
        options = actor_options(self._config.rollout_resources)
        actor = import_ray().remote(RolloutWorker)
        return actor.options(**options, max_restarts=0, runtime_env={"env_vars": environment}).remote(self._spec)

    def close(self) -> None:
        """End the actors; the cluster stays."""
        ray = import_ray()
        if ray.is_initialized():
            for actor in self._actors:
                ray.kill(actor)
        self._actors = []


@dataclass(frozen=True)
class RolloutPool(Player):
    """Plays on the workers; the same requests give the same parts.

    Attributes:
        language: of the model.
        limits: of requests without limits of their own.
        sampler: the workers, which are told the weights.
        judged: records are scored, by the workers.
    """

    language: Language
    limits: Limits
    sampler: RolloutWorkers
    judged: bool = True

    def unjudged(self) -> RolloutPool:
        return replace(self, judged=False)

    def play(
        self,
        requests: Sequence[RolloutRequest],
        temperature: float,
        weights: Mapping[str, float] | None = None,
        wrap: Wrapper | None = None,
    ) -> list[EpisodeRecord]:
        if len({request.episode_id for request in requests}) != len(requests):
            raise PolicyError("episode ids of one rollout must be unique")
        parts = [(requests[part], temperature, weights, wrap) for part in shares(len(requests), self.sampler.number)]
        found = self.sampler.ask("play", parts, self.judged)
        return all_of([record for records, _ in found for record in records], _unplayed(found))

    def play_replays(
        self, factual: Sequence[EpisodeRecord], replays: Sequence[Replay], temperature: float
    ) -> dict[Replay, PlayedReplay]:
        wanted = list(dict.fromkeys(replays))
        parts = []
        for part in shares(len(wanted), self.sampler.number):
            names = {replay.episode_id for replay in wanted[part]}
            parts.append(([one for one in factual if one.episode_id in names], wanted[part], temperature))
        found = self.sampler.ask("play_replays", parts, self.judged)
        return all_of({replay: one for played, _ in found for replay, one in played.items()}, _unplayed(found))

    def close(self) -> None:
        self.sampler.close()


def _unplayed(found: Sequence[tuple[Any, tuple[Unplayed, ...]]]) -> list[Unplayed]:
    return [one for _, unplayed in found for one in unplayed]
