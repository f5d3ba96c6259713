"""Imitation of scripted demonstrations, played through the same game, rollout and codec as everything else.

Demonstrations are drawn in pools, each keyed by (seed, pool), and never seen twice; a resumed job goes on with the next
pool, and so does a warm start that begins again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from selfcest_agents.codec import Codec
from selfcest_agents.language import Language
from selfcest_agents.player import TrainedPlayer
from selfcest_agents.policy import ScriptedPolicy
from selfcest_agents.rollout import RolloutRequest, rollout
from selfcest_agents.scripted import OracleActor
from selfcest_env.errors import TaskError
from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.reward import Reward
from selfcest_env.rules import Rules
from selfcest_env.seeding import stream_seed
from selfcest_env.tasks import Style, TaskSource
from selfcest_env.types import Limits
from selfcest_training.config import Phase, WarmStartConfig, changed_limits
from selfcest_training.credit import Credit
from selfcest_training.families import draw_family
from selfcest_training.learner.batch import Sample, bucketed, build_samples
from selfcest_training.learner.options import Denominator
from selfcest_training.learner.update import LearnerProtocol
from selfcest_training.stages.probe import by_family, probe_requests

_DRAWS = 8


@dataclass(frozen=True)
class Probe:
    """What a model could do when a phase had ended, playing greedily by itself.

    Attributes:
        phase: its place in the config.
        threshold: the phase's `min_accuracy`.
        accuracy: by family of the phase's mix.
        sampled_tokens: generated for it.
    """

    phase: int
    threshold: float
    accuracy: Mapping[str, float]
    sampled_tokens: int

    @property
    def passed(self) -> bool:
        return all(value >= self.threshold for value in self.accuracy.values())

    def metrics(self) -> dict[str, float]:
        accuracy = {f"accuracy/{family}": value for family, value in self.accuracy.items()}
        return {"phase": self.phase, "threshold": self.threshold, "passed": self.passed, **accuracy}

    def __str__(self) -> str:
        accuracy = ", ".join(f"{family} {value:.2f}" for family, value in self.accuracy.items())
        verdict = "learned" if self.passed else "not learned"
        return f"phase {self.phase + 1}: {accuracy}; {self.threshold:g} asked for, {verdict}"


@dataclass(frozen=True)
class Pool:
    """What one pool did.

    Attributes:
        tokens: of its demonstrations.
        loss: mean over its optimiser steps.
        trained_tokens: that went through forward and backward.
        probes: of the phases that ended with it.
    """

    tokens: int
    loss: float
    trained_tokens: int
    probes: tuple[Probe, ...]

    @property
    def sampled_tokens(self) -> int:
        return sum(probe.sampled_tokens for probe in self.probes)

    @property
    def passed(self) -> bool:
        return all(probe.passed for probe in self.probes)


class WarmStart:
    """One attempt at a policy's warm start, pool by pool. The caller gives the attempt up when a pool has not `passed`.

    Args:
        config: phases and sizes.
        player: plays with the learner's weights, under the variant's limits.
        learner: holds the weights being trained.
        families: the training part of each.
        reward: says what is right.
        seed: all randomness is keyed by it.
        attempt: how many came before; keys probes.
        pool: the next one. An attempt goes on counting where the one before ended.
        tokens: demonstration tokens of this attempt so far.
    """

    def __init__(
        self,
        config: WarmStartConfig,
        player: TrainedPlayer,
        learner: LearnerProtocol,
        families: Mapping[str, TaskSource],
        reward: Reward,
        *,
        seed: int,
        attempt: int,
        pool: int,
        tokens: int,
    ) -> None:
        self.config, self.player, self.learner, self.families, self.reward = config, player, learner, families, reward
        self.seed, self.attempt, self.pool, self.tokens = seed, attempt, pool, tokens
        self._ends = list(accumulate(phase.tokens for phase in config.phases))

    @property
    def done(self) -> bool:
        return self.progress == 1.0

    @property
    def progress(self) -> float:
        """In [0, 1], by tokens."""
        return min(1.0, self.tokens / self._ends[-1]) if self._ends else 1.0

    def step(self) -> Pool:
        """Train on the next pool, and probe the phases that end with it."""
        config, before = self.config, self.tokens
        phase = next(phase for phase, end in zip(config.phases, self._ends, strict=True) if before < end)
        samples = demonstration_pool(
            self.player.language,
            self.player.limits,
            self.reward,
            self.families,
            phase,
            self.seed,
            self.pool,
            config.pool_tokens,
        )
        order = np.random.default_rng(stream_seed("order", self.seed, self.pool))
        losses, trained = [], 0
        for batch in cut_batches(samples, config.batch_tokens, order):
            metrics = self.learner.imitation_step(batch, self.progress)
            losses.append(metrics.loss)
            trained += metrics.trained_tokens
            self.tokens += sum(map(len, batch))
        self.pool += 1
        probes = [
            self._probe(i, phase, phase.min_accuracy)
            for i, (phase, end) in enumerate(zip(config.phases, self._ends, strict=True))
            if phase.min_accuracy is not None and before < end <= self.tokens
        ]
        return Pool(self.tokens - before, float(np.mean(losses)), trained, tuple(probes))

    def _probe(self, index: int, phase: Phase, threshold: float) -> Probe:
        rng = np.random.default_rng(stream_seed("probe", self.seed, self.attempt, index))
        limits = changed_limits(self.player.limits, phase.limits, "phase.limits")
        families = {name: self.families[name] for name, spec in phase.mix.items() if spec.share > 0}
        self.learner.sync(self.player.sampler, 0)
        asked = probe_requests(families, self.config.probe_episodes, rng, f"p{index}", limits)
        played = by_family(asked, self.player.unjudged().play([r for each in asked.values() for r in each], 0.0))
        accuracy = {
            name: sum(self.reward.grade(record).correct for record in records) / len(records)
            for name, records in played.items()
        }
        sampled = sum(record.cost.generated_tokens for records in played.values() for record in records)
        return Probe(index, threshold, accuracy, sampled)


def demonstration_pool(
    language: Language,
    limits: Limits,
    reward: Reward,
    families: Mapping[str, TaskSource],
    phase: Phase,
    seed: int,
    pool: int,
    pool_tokens: int,
) -> list[Sample]:
    """At least `pool_tokens` of demonstrations. Raises `TaskError` when a script fails its own task."""
    rules = language.rules(changed_limits(limits, phase.limits, "phase.limits"))
    rng = np.random.default_rng(stream_seed("demonstrations", seed, pool))
    samples: list[Sample] = []
    tokens = {family: 0 for family, spec in phase.mix.items() if spec.share > 0}
    batch = 0
    while sum(tokens.values()) < pool_tokens:
        # Shares are of tokens, not of tasks: always the family that is furthest behind.
        family = min(tokens, key=lambda name: (tokens[name] + 1) / phase.mix[name].share)
        for record in _demonstrate(
            language.codec, rules, reward, families[family], family, phase.mix[family].styles, rng, f"w{pool}.{batch}"
        ):
            group = EpisodeGroup(record.task, (record,))
            credit = Credit({key: 1.0 for key, _ in record.turns()})
            new = build_samples([group], [credit], denominator=Denominator.CONSTANT, constant=1.0)
            tokens[family] += sum(len(sample) for sample in new)
            samples += new
        batch += 1
    return samples


def _demonstrate(
    codec: Codec,
    rules: Rules,
    reward: Reward,
    source: TaskSource,
    family: str,
    styles: Mapping[Style, float],
    rng: np.random.Generator,
    name: str,
) -> Iterator[EpisodeRecord]:
    """Draw tasks, let the family's script play them in these styles, and check that it was right."""
    drawn: dict[Style, list[RolloutRequest]] = {}
    for i in range(_DRAWS):
        style = draw_family(styles, rng)
        request = RolloutRequest(f"{name}.{i}", source.draw(rng), int(rng.integers(2**62)))
        drawn.setdefault(style, []).append(request)
    for style, requests in drawn.items():
        actor = OracleActor(source, rules.protocol, style)
        for record in rollout(requests, ScriptedPolicy(actor, codec), rules):
            faults = [turn.facts.fault for _, turn in record.turns() if turn.facts.fault is not None]
            if faults or not reward.grade(record).correct:
                raise TaskError(
                    f"the demonstration of family '{family}' in style '{style}' is wrong: task {record.task.prompt!r}, "
                    f"expected {record.task.answer!r}, got {record.answer!r} ({record.root.status}; faults: "
                    f"{', '.join(faults) or 'none'}); the variant's limits may be too tight for this style"
                )
            yield record


def cut_batches(samples: list[Sample], batch_tokens: int, rng: np.random.Generator) -> list[list[Sample]]:
    """Batches of similar length, in random order."""
    batches = list(bucketed(samples, batch_tokens))
    return [batches[i] for i in rng.permutation(len(batches))]
