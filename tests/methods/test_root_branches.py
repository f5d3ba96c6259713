"""Alternatives of the root's turns in a game of witnesses: credit has the sign and size of the value of one more."""

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
from selfcest_env.tasks.source import Style
from selfcest_env.tasks.witnesses import Witnesses
from selfcest_env.types import ROOT, Limits, Outcome, Task, TurnKey
from selfcest_methods.branches import Branches

LIMITS = Limits(total_tokens=400, turn_tokens=40, reply_tokens=1, answer_reserve=16, max_turns=8, max_depth=1)
PRICE = 0.04


def measure_credit(replies: str, turn: int, num_episodes: int = 600) -> tuple[float, float, float]:
    """Return the mean credit of calls and of answers at a turn, and the standard error of their difference.

    The root stops at random as demonstrations do. The true answer is 1.
    """
    context = {key: f"k{digit}" for key, digit in zip("ABCDEFG", replies, strict=False)}
    task = Task("stop", "?k;40", "1", "witnesses", context, metadata={"price": 40})
    language = TinyLanguage()
    rules = language.rules(LIMITS)
    policy = ScriptedPolicy(OracleActor(Witnesses(), rules.protocol, Style.DELEGATE), language.codec)
    reward = make_reward("correct", clone_cost={"price": PRICE / 40, "price_key": "price"})
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


@pytest.mark.parametrize(
    ("replies", "turn", "value"),
    [
        # The first witness is wrong, the other two are right, and a tie leaves the answer as it is. With two unasked
        # witnesses the root goes on with probability 2/3, then with 1/2: (-.08 + .88) / 2 against -.04.
        ("011", 1, 0.44),
        # The last witness turns the answer: .88 against -.08.
        ("011", 2, 0.96),
        # All are right: one more costs .04, and half of the time another .04.
        ("111", 1, -0.06),
        ("111", 2, -0.04),
    ],
)
def test_credit_of_one_more_witness_is_its_value(replies: str, turn: int, value: float) -> None:
    """Of two draws, a call has a credit of (1 - p) times the value of one more, an answer of -p times it."""
    goes_on = {1: 2 / 3, 2: 1 / 2}[turn]
    called, answered, error = measure_credit(replies, turn)
    assert called * value > 0 > answered * value
    assert called == pytest.approx((1 - goes_on) * value, abs=4 * error)
    assert answered == pytest.approx(-goes_on * value, abs=4 * error)
    assert 4 * error < abs(value), "the test could not fail otherwise"
