"""When to delegate: shares, threshold, regret and F1 by hand, and choices forced on one and the same model."""

from __future__ import annotations

import math
from dataclasses import astuple, replace

import numpy as np
import pytest

from selfcest_agents.player import ModelPlayer
from selfcest_agents.samplers import TransformersSampler
from selfcest_agents.tiny import TinyLanguage
from selfcest_env.errors import ConfigError, PolicyError
from selfcest_env.record import EpisodeRecord
from selfcest_env.tasks import ExpertSource, make_source
from selfcest_env.types import Limits
from selfcest_eval.play.strategies import Instance, PlayContext, make_strategy
from selfcest_eval.stats.decision import Choice, InstanceOutcome, find_best_threshold, judge_choices


def outcome(size: int, delegated: bool, reward: float, tokens: int = 10) -> InstanceOutcome:
    return InstanceOutcome(size, delegated, reward > 0, reward, tokens)


def choice(size: int, delegated: bool, always: float, never: float) -> Choice:
    ways = outcome(size, True, always, 40), outcome(size, False, never, 20)
    return Choice(ways[0] if delegated else ways[1], *ways)


# Delegating pays on 6 and on one of the 4s; nothing is to be decided on the other 4.
PLAYED = [
    choice(2, True, 0.5, 0.9),
    choice(4, True, 0.6, 0.0),
    choice(4, True, 0.0, 0.0),
    choice(6, False, 0.8, 0.3),
    choice(6, False, 0.8, 0.3),
]


def test_decisions_by_hand() -> None:
    found = judge_choices(PLAYED)
    # Played: 0.5 + 0.6 + 0 + 0.3 + 0.3 = 1.7 over 5; three of five delegated; four of five right.
    assert astuple(found.free) == pytest.approx((0.6, 0.8, 0.34, (3 * 40 + 2 * 20) / 5))
    assert astuple(found.always) == pytest.approx((1.0, 0.8, (0.5 + 0.6 + 0.8 + 0.8) / 5, 40))
    assert astuple(found.never) == pytest.approx((0.0, 0.6, (0.9 + 0.3 + 0.3) / 5, 20))
    # From 6 on: 0.9 + 0 + 0 + 1.6 = 2.5. From 4 on: 0.9 + 0.6 + 0 + 1.6 = 3.1. Always: 2.7. Never: 1.5.
    assert (found.threshold, found.threshold_reward) == (4, pytest.approx(3.1 / 5))
    assert found.regret == pytest.approx((3.1 - 1.7) / 5)
    # Worth it: 3 (a 4, both 6s). Of the 2 that it delegated, where it matters, 1 was worth it: F1 = 2 x 1 / (2 + 3).
    assert (found.precision, found.recall, found.f1) == (0.5, pytest.approx(1 / 3), 0.4)


def test_a_policy_that_is_always_right_has_no_regret() -> None:
    best = [choice(2, False, 0.5, 0.9), choice(6, True, 0.8, 0.0)]
    found = judge_choices(best)
    assert (found.regret, found.f1) == (0.0, 1.0)


def test_never_is_a_threshold_and_nothing_to_find_is_no_score() -> None:
    costly = [choice(2, False, 0.5, 0.9), choice(6, False, 0.5, 0.8)]
    found = judge_choices(costly)
    assert (found.threshold, found.precision, found.recall, found.f1) == (math.inf, None, None, None)
    assert find_best_threshold([choice(2, True, 0.9, 0.5)]) == (2, 0.9)


# Forced choices

LIMITS = Limits(turn_tokens=60, reply_tokens=4, answer_reserve=12, max_turns=3, max_clones=12, total_tokens=400)
SUMS = make_source("range_sum", min_length=12, max_length=12, pieces=(10,), size_step=5)
LEDGERS = make_source("long_ledgers", min_named=2, max_named=2, max_length=3)


def played(name: str, source: object, limits: Limits = LIMITS) -> list[EpisodeRecord]:
    assert isinstance(source, ExpertSource)
    rng = np.random.default_rng(0)
    language = TinyLanguage()
    player = ModelPlayer(language, TransformersSampler().start(language, language.load(0)))  # untrained
    strategy, context = (
        make_strategy(name, {}, "strategies.x"),
        PlayContext(limits, 1.0, source, player.rules(limits).protocol),
    )
    strategy.check(context)
    return [
        episodes[0] for episodes in strategy.play([Instance(source.draw(rng), i) for i in range(6)], context, player)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "source", "limits", "starts"),
    [
        ("always_delegates", SUMS, LIMITS, ("[15]<call>",)),
        ("never_delegates", SUMS, LIMITS, tuple(f"[15][{position}]" for position in range(1, 100))),
        ("always_delegates", LEDGERS, replace(LIMITS, max_reads=4), ("<call>",)),
        ("never_delegates", LEDGERS, replace(LIMITS, max_reads=4), ("=",)),
    ],
)
def test_the_root_begins_as_it_is_told_and_goes_on_by_itself(
    name: str, source: object, limits: Limits, starts: tuple[str, ...]
) -> None:
    records = played(name, source, limits)
    texts = [record.root.turns[0].generation.text for record in records]
    assert all(text.startswith(starts) for text in texts)
    assert len(set(texts)) == 6  # the rest is the model's own
    for record in records:
        turn = record.root.turns[0]
        assert turn.facts.generated_tokens == len(turn.generation.token_ids) <= 60
        assert turn.generation.behavior_logprobs[0] == 0.0 > turn.generation.behavior_logprobs[-1]


def test_a_start_leaves_the_policy_at_least_one_token() -> None:
    (record, *_) = played("always_delegates", SUMS, replace(LIMITS, turn_tokens=2, answer_reserve=2))
    assert record.root.turns[0].generation.text.startswith("[15]")
    assert record.root.turns[0].facts.generated_tokens == 2


def test_what_cannot_be_forced_says_so() -> None:
    with pytest.raises(PolicyError, match=r"could not do without clones on '\?\[1\][A-Z]\[2\][A-Z]'"):
        played("never_delegates", LEDGERS)
    with pytest.raises(ConfigError, match=r"limits.max_clones is 0"):
        played("always_delegates", SUMS, replace(LIMITS, max_clones=0))
