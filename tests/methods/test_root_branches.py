"""Alternatives of the root's turns in a search among offers: credit has the sign and size of the value of one more."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from selfcest_agents.policy import ScriptedPolicy
from selfcest_agents.replay import play_replays
from selfcest_agents.rollout import RolloutRequest, rollout
from selfcest_agents.scripted import OracleActor
from selfcest_agents.tiny import TinyLanguage
from selfcest_env.record import EpisodeGroup
from selfcest_env.reward import make_reward
from selfcest_env.tasks.offers import Offers
from selfcest_env.tasks.source import Style
from selfcest_env.types import ROOT, Limits, Outcome, Task, TurnKey
from selfcest_methods.branches import Branches

LIMITS = Limits(total_tokens=400, turn_tokens=20, reply_tokens=1, answer_reserve=12, max_turns=7, max_depth=1)
PRICE = 0.04


def measure_credit(offers: str, turn: int, num_episodes: int = 600) -> tuple[float, float, float]:
    """Return the mean credit of calls and of answers at a turn, and the standard error of their difference.

    The root stops with probability 0.5 as demonstrations do.
    """
    context = {key: f"k{digit}" for key, digit in zip("ABC", offers, strict=True)}
    task = Task("stop", "?k;20", "A", "offers", context, metadata={"price": 20, "offers": offers})
    language = TinyLanguage()
    rules = language.rules(LIMITS)
    policy = ScriptedPolicy(OracleActor(Offers(), rules.protocol, Style.DELEGATE), language.codec)
    reward = make_reward("correct", correct=None, offer={}, clone_cost={"price": PRICE / 20, "price_key": "price"})
    played = rollout([RolloutRequest(str(i), task, i) for i in range(num_episodes)], policy, rules)
    group = EpisodeGroup(task, tuple(map(reward.score, played)))
    scheme = Branches(max_share=0.0, root_share=1.0)
    replays = play_replays(group.episodes, scheme.replays(group), policy, rules)
    records = {replay: reward.score(found.record) for replay, found in replays.items()}
    credit = scheme.assign(group, records)
    values: dict[bool, list[float]] = {True: [], False: []}
    for record in (*group.episodes, *records.values()):
        value = credit.advantage.get(TurnKey(record.episode_id, ROOT, turn))
        if value is not None:
            assert isinstance(value, float)
            values[record.root.turns[turn].facts.outcome is Outcome.DELEGATED].append(value)
    error = _compute_error(values[True]) + _compute_error(values[False])
    return float(np.mean(values[True])), float(np.mean(values[False])), error


def _compute_error(values: Sequence[float]) -> float:
    return float(np.std(values) / np.sqrt(len(values)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("offers", "turn", "value"),
    [
        # The second clone brings 9 in the place of 3 for .04, and half of the time the root calls the third one too.
        ("390", 1, 0.54),
        # The last clone brings 9 in the place of 3.
        ("339", 2, 0.56),
        # The first offer is the best: one more costs .04, and half of the time another .04.
        ("930", 1, -0.06),
        ("930", 2, -0.04),
    ],
)
def test_credit_of_one_more_clone_is_its_value(offers: str, turn: int, value: float) -> None:
    """Of two draws, a call has half of the value of one more as its credit, an answer minus as much."""
    called, answered, error = measure_credit(offers, turn)
    assert called * value > 0 > answered * value
    assert called == pytest.approx(value / 2, abs=4 * error)
    assert answered == pytest.approx(-value / 2, abs=4 * error)
    assert 4 * error < abs(value), "the test could not fail otherwise"
