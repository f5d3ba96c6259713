"""Rollout workers as Ray actors, and the player that splits its requests among them.

A worker keeps no state that matters. The weights are an argument of every call, so a worker that died is replaced, and
its part is played again with the same seeds and weights. (Ray's own retry would call a new actor with the initial
weights.) Parts are contiguous and depend on the numbers of requests and workers only, never on which worker is free,
because the requests that are sampled together decide how matrix products round.
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
from selfcest_agents.player import ModelPlayer, Player, PolicyWrapper
from selfcest_agents.replay import PlayedReplay
from selfcest_agents.rollout import FailedEpisode, RolloutRequest, collect_failures, raise_failures
from selfcest_agents.samplers import make_sampler
from selfcest_agents.server_counts import add_to_tallies, tally_requests
from selfcest_env.errors import InfrastructureError, PolicyError
from selfcest_env.local_modules import child_environment
from selfcest_env.plugin import PlugIn
from selfcest_env.record import EpisodeRecord
from selfcest_env.replay import Replay
from selfcest_env.reward import make_reward
from selfcest_env.types import Limits
from selfcest_training.cluster.config import ClusterConfig, split_evenly
from selfcest_training.cluster.connection import (
    actor_options,
    death_errors,
    get_result,
    import_ray,
    join,
    start_actors,
    to_one_line,
)
from selfcest_training.cluster.snapshot import WeightSnapshot
from selfcest_training.cluster.timed_result import CpuClock, TimedResult


@dataclass(frozen=True)
class WorkerSpec:
    """The options from which a worker builds its player.

    Attributes:
        model, sampler, reward: as in the run's config.
        limits: of requests that have no limits of their own.
        threads: of matrix products; equal to the job's, since their number changes rounding.
    """

    model: PlugIn
    sampler: PlugIn
    reward: PlugIn
    limits: Limits
    threads: int


@dataclass(frozen=True)
class WorkerFacts:
    """A started worker: process id, node id, and whether it samples in float32."""

    pid: int
    node: str
    exact: bool


class RolloutWorker:
    """The actor. It builds its player in the first call, so that an error there is raised and does not kill it."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._clock = CpuClock()
        self._loaded_weights = ""

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
        wrap: PolicyWrapper | None,
    ) -> TimedResult:
        """Play requests; the result holds records and the episodes that failed."""
        player = self._player_with(weights, judged)
        with tally_requests() as tally:
            played = collect_failures(lambda: player.play(requests, temperature, reward_weights, wrap))
        return self._clock.measure(played, tally.take())

    def play_replays(
        self,
        weights: Sequence[Any],
        judged: bool,
        factual: Sequence[EpisodeRecord],
        replays: Sequence[Replay],
        temperature: float,
    ) -> TimedResult:
        """Play replays; the result holds episodes by replay and the replays that failed."""
        player = self._player_with(weights, judged)
        with tally_requests() as tally:
            played = collect_failures(lambda: player.play_replays(factual, replays, temperature))
        return self._clock.measure(played, tally.take())

    def _player_with(self, weights: Sequence[Any], judged: bool) -> ModelPlayer:
        """Return the player after loading weights, unless it has them already.

        Args:
            weights: a list of one reference to a `WeightSnapshot`. Ray would fetch a bare reference for every call.
            judged: whether records are scored.
        """
        (reference,) = weights
        # Compare references and not versions: a warm start pushes several weights as version 0.
        if reference.hex() != self._loaded_weights:
            self._loaded_weights = ""
            snapshot: WeightSnapshot = import_ray().get(reference)
            self._player.sampler.push(snapshot.tensors(), snapshot.version)
            self._loaded_weights = reference.hex()
        return self._player if judged else replace(self._player, reward=None)


class RolloutWorkers:
    """The workers of a job and the weights that they play with; a `WeightSyncTarget`.

    Args:
        config: number of workers, their resources and retries.
        spec: options of each worker.
        dtype: dtype of the sampler, in which weights are sent; `None`: the model's own.

    Attributes:
        replaced: number of workers that died and were replaced.
        cpu_seconds: CPU time of all results so far. The time of a worker that died before its result is lost.

    Raises:
        ConfigError: Ray is not installed, the cluster cannot be joined, or a worker cannot build its player.
        InfrastructureError: not all workers started in time.
    """

    shared = False

    def __init__(self, config: ClusterConfig, spec: WorkerSpec, dtype: torch.dtype | None) -> None:
        self._config = config
        self._spec = spec
        self._dtype = dtype
        self._weights: Any = None
        # One call at a time, since asynchronous rollouts run in a thread of their own.
        self._lock = threading.Lock()
        self.address = join(config)
        self.replaced = 0
        self.cpu_seconds = 0.0
        self._actors = [self._start_actor() for _ in range(config.rollout_workers)]
        try:
            self.facts: list[WorkerFacts] = start_actors(
                self._actors, "rollout worker", config.rollout_resources, config.start_seconds
            )
        except BaseException:
            self.close()
            raise

    @property
    def number(self) -> int:
        return len(self._actors)

    @property
    def exact(self) -> bool:
        return all(facts.exact for facts in self.facts)

    def sync(self, model: PreTrainedModel, policy_version: int) -> None:
        """See `WeightSyncTarget`."""
        self.push(merged_weights(model), policy_version)

    def push(self, weights: Iterable[tuple[str, Tensor]], policy_version: int) -> None:
        """See `WeightSyncTarget`. Workers load the weights in their next call."""
        self.hand_over(import_ray().put(WeightSnapshot.of(weights, policy_version, self._dtype)))

    def hand_over(self, snapshot: Any) -> None:
        """Use a `WeightSnapshot` that is in the object store already; `snapshot` is its reference."""
        self._weights = snapshot

    def call(self, method: str, parts: Sequence[tuple[Any, ...]], judged: bool) -> list[Any]:
        """Call worker i for part i and return the results in the order of the parts.

        Raises:
            InfrastructureError: workers died more than `retries` times at one part.
            Exception: the exception that a worker raised.
        """
        if not parts:
            return []
        if self._weights is None:
            raise PolicyError("the rollout workers have no weights; sync or push before playing")
        with self._lock:
            return self._call(method, parts, judged)

    def _call(self, method: str, parts: Sequence[tuple[Any, ...]], judged: bool) -> list[Any]:
        ray = import_ray()
        weights = self._weights
        deaths = Counter[int]()

        def submit(i: int) -> Any:
            return getattr(self._actors[i], method).remote([weights], judged, *parts[i])

        pending = {submit(i): i for i in range(len(parts))}
        results: dict[int, Any] = {}
        while pending:
            (done,), _ = ray.wait(list(pending), num_returns=1)
            i = pending.pop(done)
            try:
                result: TimedResult = get_result(done)
            except death_errors() as error:
                deaths[i] += 1
                reason = to_one_line(error)
                if deaths[i] > self._config.retries:
                    raise InfrastructureError(
                        f"rollout worker {i} died {deaths[i]} times at the same part, and cluster.retries is "
                        f"{self._config.retries}; the last: {reason}"
                    ) from error
                warnings.warn(f"rollout worker {i} died; another plays its part again: {reason}", stacklevel=4)
                self._replace(i)
                pending[submit(i)] = i
                continue
            results[i] = result.value
            self.cpu_seconds += result.cpu_seconds
            add_to_tallies(result.servers)
        return [results[i] for i in range(len(parts))]

    def _replace(self, i: int) -> None:
        ray = import_ray()
        # An actor that does not answer may still run.
        ray.kill(self._actors[i])
        self._actors[i] = self._start_actor()
        started, _ = ray.wait([self._actors[i].start.remote()], timeout=self._config.start_seconds)
        # For example, a complete node may be gone.
        if not started:
            raise InfrastructureError(
                f"rollout worker {i} died, and a new one, which needs {dict(self._config.rollout_resources)}, did not "
                f"start in cluster.start_seconds = {self._config.start_seconds:g}; resume with --resume and fewer "
                "rollout_workers"
            )
        self.replaced += 1

    def _start_actor(self) -> Any:
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
    """A player that plays on the workers; the same requests give the same parts.

    Attributes:
        language: of the model.
        limits: of requests that have no limits of their own.
        sampler: the workers, which receive the weights.
        judged: whether the workers score the records.
    """

    language: Language
    limits: Limits
    sampler: RolloutWorkers
    judged: bool = True

    def without_reward(self) -> RolloutPool:
        return replace(self, judged=False)

    def play(
        self,
        requests: Sequence[RolloutRequest],
        temperature: float,
        weights: Mapping[str, float] | None = None,
        wrap: PolicyWrapper | None = None,
    ) -> list[EpisodeRecord]:
        if len({request.episode_id for request in requests}) != len(requests):
            raise PolicyError("episode ids of one rollout must be unique")
        slices = split_evenly(len(requests), self.sampler.number)
        parts = [(requests[part], temperature, weights, wrap) for part in slices]
        records: list[EpisodeRecord] = []
        failed: list[FailedEpisode] = []
        for part_records, part_failed in self.sampler.call("play", parts, self.judged):
            records += part_records
            failed += part_failed
        return raise_failures(records, failed)

    def play_replays(
        self, factual: Sequence[EpisodeRecord], replays: Sequence[Replay], temperature: float
    ) -> dict[Replay, PlayedReplay]:
        distinct = list(dict.fromkeys(replays))
        parts = []
        for part in split_evenly(len(distinct), self.sampler.number):
            episode_ids = {replay.episode_id for replay in distinct[part]}
            episodes = [episode for episode in factual if episode.episode_id in episode_ids]
            parts.append((episodes, distinct[part], temperature))
        played: dict[Replay, PlayedReplay] = {}
        failed: list[FailedEpisode] = []
        for part_played, part_failed in self.sampler.call("play_replays", parts, self.judged):
            played.update(part_played)
            failed += part_failed
        return raise_failures(played, failed)

    def close(self) -> None:
        self.sampler.close()
