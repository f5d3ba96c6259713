"""The warm start: imitation of scripted demonstrations, which use the same game, rollout and codec as RL.

Demonstrations are drawn in pools, each keyed by (seed, pool), so none is seen twice. A resumed job continues with the
next pool, and so does the next attempt at a warm start.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np

from selfcest_agents.codec import Codec
from selfcest_agents.language import Language
from selfcest_agents.player import TrainedPlayer
from selfcest_agents.policy import ScriptedPolicy
from selfcest_agents.rollout import RolloutRequest, rollout
from selfcest_agents.scripted import OracleActor
from selfcest_env.errors import ConfigError, TaskError
from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.reward import Reward
from selfcest_env.rules import Rules
from selfcest_env.seeding import stream_seed
from selfcest_env.tasks import Style, TaskSource
from selfcest_env.types import Limits, Role
from selfcest_training.config import WarmStartConfig, WarmStartPhase, override_limits
from selfcest_training.credit import Credit
from selfcest_training.families import draw_family
from selfcest_training.learner.batch import Sample, bucket_by_length, build_samples
from selfcest_training.learner.options import Batches, Denominator
from selfcest_training.learner.tree_rows import bucket_by_prefix
from selfcest_training.learner.update import LearnerProtocol
from selfcest_training.stages.probe import draw_probe_requests, group_by_family

# Number of tasks of each phase, family and style that are played before any training.
_CHECKED_TASKS = 8


@dataclass(frozen=True)
class Probe:
    """The accuracy of the model at the end of a phase, playing greedily.

    Attributes:
        phase: the index of the phase in the config.
        threshold: the phase's `min_accuracy`.
        accuracy: by family of the phase's mix.
        sampled_tokens: tokens generated for the probe.
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
        verdict = "passed" if self.passed else "failed"
        return f"phase {self.phase + 1}: accuracy {accuracy}; required {self.threshold:g}: {verdict}"


@dataclass(frozen=True)
class Pool:
    """The result of training on one pool of demonstrations.

    Attributes:
        tokens: tokens of the demonstrations.
        loss: mean over the optimiser steps.
        trained_tokens: tokens that went through a forward and a backward pass.
        probes: of the phases that ended with this pool.
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
        player: plays probes with the learner's weights, under the variant's limits.
        learner: holds the weights that are trained.
        families: the training part of each task family.
        reward: grades demonstrations and probes.
        seed: the seed of the job. All randomness is keyed by it.
        attempt: the number of attempts before this one. It keys the probes.
        pool: the number of the next pool. An attempt continues the count of the one before.
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
        self.config = config
        self.player = player
        self.learner = learner
        self.families = families
        self.reward = reward
        self.seed = seed
        self.attempt = attempt
        self.pool = pool
        self.tokens = tokens
        self._phase_ends = list(accumulate(phase.tokens for phase in config.phases))

    @property
    def done(self) -> bool:
        return self.progress == 1.0

    @property
    def progress(self) -> float:
        """The share of the demonstration tokens that is done, in [0, 1]."""
        return min(1.0, self.tokens / self._phase_ends[-1]) if self._phase_ends else 1.0

    def step(self) -> Pool:
        """Train on the next pool, and probe the phases that end with it."""
        config = self.config
        tokens_before = self.tokens
        phases = list(zip(config.phases, self._phase_ends, strict=True))
        current_phase = next(phase for phase, end in phases if tokens_before < end)
        samples = play_demonstrations(
            self.player.language,
            self.player.limits,
            self.reward,
            self.families,
            current_phase,
            self.seed,
            self.pool,
            config,
        )
        order = np.random.default_rng(stream_seed("order", self.seed, self.pool))
        losses = []
        trained_tokens = 0
        cut = bucket_by_length if config.batches == Batches.LENGTH else bucket_by_prefix
        batches = list(cut(samples, config.batch_tokens))
        for index in order.permutation(len(batches)):
            metrics = self.learner.imitation_step(batches[index], self.progress)
            losses.append(metrics.loss)
            trained_tokens += metrics.trained_tokens
            self.tokens += sum(map(len, batches[index]))
        self.pool += 1
        probes = []
        for i, (phase, end) in enumerate(phases):
            if phase.min_accuracy is not None and tokens_before < end <= self.tokens:
                probes.append(self._probe(i, phase, phase.min_accuracy))
        return Pool(self.tokens - tokens_before, float(np.mean(losses)), trained_tokens, tuple(probes))

    def _probe(self, index: int, phase: WarmStartPhase, threshold: float) -> Probe:
        rng = np.random.default_rng(stream_seed("probe", self.seed, self.attempt, index))
        limits = override_limits(self.player.limits, phase.limits, "phase.limits")
        families = {name: self.families[name] for name in _list_families(phase)}
        self.learner.sync(self.player.sampler, 0)
        requests = draw_probe_requests(families, self.config.probe_episodes, rng, f"p{index}", limits)
        # Accuracy needs the grader only, so no judge is asked.
        records = self.player.without_reward().play(list(chain.from_iterable(requests.values())), 0.0)
        accuracy = {}
        for family, family_records in group_by_family(requests, records).items():
            num_correct = sum(self.reward.grade(record).correct for record in family_records)
            accuracy[family] = num_correct / len(family_records)
        sampled_tokens = sum(record.cost.generated_tokens for record in records)
        return Probe(index, threshold, accuracy, sampled_tokens)


def _list_families(phase: WarmStartPhase) -> list[str]:
    """List the families of a phase by name, so that the order of a config's keys changes no draw."""
    return sorted(family for family, spec in phase.mix.items() if spec.share > 0)


def check_demonstrations(
    language: Language,
    limits: Limits,
    reward: Reward,
    families: Mapping[str, TaskSource],
    config: WarmStartConfig,
    place: str,
) -> None:
    """Play some tasks of every phase, family and style, so that limits that are too tight show before any training.

    A root whose replies could outgrow its context is among them: the game reserves `reply_tokens` for each reply, so
    its call is refused whatever the clones say. So is a pool that would be full before each family has had its turn.

    Args:
        language: language of the model.
        limits: limits of the variant.
        reward: reward that grades the demonstrations.
        families: task sources by name.
        config: the warm start.
        place: config key of the warm start.

    Raises:
        ConfigError: a script fails a task of its own family, or a pool is too small or too large for its phase.
    """
    longest_draw = 0.0  # tokens by which a pool of the phase before may exceed `pool_tokens`
    for index, phase in enumerate(config.phases):
        rules = language.rules(override_limits(limits, phase.limits, "phase.limits"))
        rng = np.random.default_rng(stream_seed("checked demonstrations", index))
        drawn_tokens = dict.fromkeys(_list_families(phase), 0.0)
        for family in drawn_tokens:
            styles = phase.mix[family].styles
            roles = phase.mix[family].roles
            for style, share in styles.items():
                if not share:
                    continue
                demonstrations = _demonstrate(
                    language.codec,
                    rules,
                    reward,
                    families[family],
                    family,
                    {style: 1.0},
                    rng,
                    f"check{index}",
                    _CHECKED_TASKS,
                )
                try:
                    samples = [sample for record in demonstrations for sample in _make_samples(record, roles)]
                except TaskError as error:
                    raise ConfigError(f"{place}.phases[{index}]: {error}") from error
                if not samples:
                    raise ConfigError(
                        f"{place}.phases[{index}].mix.{family}.roles is {list(map(str, roles))}, and demonstrations "
                        f"in style '{style}' have no such agent; add the other role, or set the style to 0"
                    )
                played_tokens = sum(map(len, samples))
                style_share = share / sum(styles.values())
                drawn_tokens[family] += style_share * config.tasks_at_once * played_tokens / _CHECKED_TASKS
        if index and phase.tokens < config.pool_tokens + longest_draw:
            raise ConfigError(
                f"{place}.phases[{index}].tokens is {phase.tokens}, and the last pool of phases[{index - 1}], of up to "
                f"{config.pool_tokens + longest_draw:.0f} tokens, could take them all; lower {place}.pool_tokens, "
                f"which is {config.pool_tokens}, or tasks_at_once"
            )
        longest_draw = max(drawn_tokens.values())
        _check_pool(drawn_tokens, phase, config, place, index)


def _check_pool(
    drawn_tokens: Mapping[str, float], phase: WarmStartPhase, config: WarmStartConfig, place: str, index: int
) -> None:
    """Raise `ConfigError` if a pool is full before each family has had its turn, so the phase would never see some.

    Args:
        drawn_tokens: tokens of one draw from each family.
        phase: the phase.
        config: the warm start.
        place: config key of the warm start.
        index: index of the phase.
    """
    tokens = dict.fromkeys(drawn_tokens, 0)
    while sum(tokens.values()) < config.pool_tokens:
        family = _choose_family(tokens, phase)
        tokens[family] += max(1, round(drawn_tokens[family]))
    missing = [family for family, number in tokens.items() if not number]
    if missing:
        longest = max(drawn_tokens, key=lambda family: drawn_tokens[family])
        raise ConfigError(
            f"{place}.pool_tokens is {config.pool_tokens}, and no pool of phases[{index}] would have a demonstration "
            f"of {', '.join(missing)}: one draw of {longest} has about {drawn_tokens[longest]:.0f} tokens; set it to "
            f"{sum(drawn_tokens.values()):.0f} or more, or lower {place}.tasks_at_once, which is {config.tasks_at_once}"
        )


def play_demonstrations(
    language: Language,
    limits: Limits,
    reward: Reward,
    families: Mapping[str, TaskSource],
    phase: WarmStartPhase,
    seed: int,
    pool: int,
    config: WarmStartConfig,
) -> list[Sample]:
    """Play demonstrations of at least `config.pool_tokens`. Raises `TaskError` when a script fails its own task."""
    rules = language.rules(override_limits(limits, phase.limits, "phase.limits"))
    rng = np.random.default_rng(stream_seed("demonstrations", seed, pool))
    samples: list[Sample] = []
    tokens = dict.fromkeys(_list_families(phase), 0)
    batch = 0
    while sum(tokens.values()) < config.pool_tokens:
        family = _choose_family(tokens, phase)
        for record in _demonstrate(
            language.codec,
            rules,
            reward,
            families[family],
            family,
            phase.mix[family].styles,
            rng,
            f"w{pool}.{batch}",
            config.tasks_at_once,
        ):
            new = _make_samples(record, phase.mix[family].roles)
            tokens[family] += sum(map(len, new))
            samples += new
        batch += 1
    return samples


def _choose_family(tokens: Mapping[str, int], phase: WarmStartPhase) -> str:
    """Return the family that is furthest behind its share, which is one of tokens and not of tasks."""
    return min(tokens, key=lambda name: (tokens[name] + 1) / phase.mix[name].share)


def _make_samples(record: EpisodeRecord, roles: Collection[Role]) -> list[Sample]:
    """Return the samples of the agents of these roles."""
    group = EpisodeGroup(record.task, (record,))
    learners = {agent.agent_id for agent in record.agents if agent.role in roles}
    credit = Credit({key: 1.0 for key, _ in record.turns() if key.agent_id in learners})
    return build_samples([group], [credit], denominator=Denominator.CONSTANT, constant=1.0)


def _demonstrate(
    codec: Codec,
    rules: Rules,
    reward: Reward,
    source: TaskSource,
    family: str,
    styles: Mapping[Style, float],
    rng: np.random.Generator,
    name: str,
    num_tasks: int,
) -> Iterator[EpisodeRecord]:
    """Draw tasks, let the family's script play them in these styles, and check that its answers are right."""
    requests_by_style: dict[Style, list[RolloutRequest]] = {}
    for i in range(num_tasks):
        style = draw_family(styles, rng)
        request = RolloutRequest(f"{name}.{i}", source.draw(rng), int(rng.integers(2**62)))
        requests_by_style.setdefault(style, []).append(request)
    for style, requests in requests_by_style.items():
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
