"""Imitation of scripted demonstrations, played through the same game, rollout and codec as everything else.

Demonstrations are drawn in pools, each keyed by (seed, pool), and never seen twice; a resumed job goes on with the next
pool.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from selfcest_agents.codec import Codec
from selfcest_agents.language import Language
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

_DRAWS = 8


def phase_at(config: WarmStartConfig, tokens: int) -> Phase | None:
    """The phase that comes after so many tokens, `None` at the end of the warm start."""
    end = 0
    for phase in config.phases:
        end += phase.tokens
        if tokens < end:
            return phase
    return None


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
                    f"{', '.join(faults) or 'none'}); the arm's limits may be too tight for this style"
                )
            yield record


def cut_batches(samples: list[Sample], batch_tokens: int, rng: np.random.Generator) -> list[list[Sample]]:
    """Batches of similar length, in random order."""
    batches = list(bucketed(samples, batch_tokens))
    return [batches[i] for i in rng.permutation(len(batches))]
