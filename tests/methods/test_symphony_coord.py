"""Symphony-Coord: parts go to agents by LinUCB over features, after a screening, and learn from the whole task."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from test_plays import LIMITS, Say, objectives, play

from selfcest_env.errors import ConfigError
from selfcest_eval.play.strategies import make_strategy
from selfcest_methods.bandit import Bandit
from selfcest_methods.symphony_coord import LinUcbRouter, SymphonyCoord, compute_match

AGENTS = ("Count apples.", "Quote songs.", "Draw maps.")
COUNT, QUOTE, DRAW = range(3)


def make_router(top: int = 3, alpha: float = 0.0, agents: tuple[str, ...] = AGENTS) -> LinUcbRouter:
    return LinUcbRouter(agents, top, alpha, 0.05)


def test_a_bound_by_hand() -> None:
    router = make_router(alpha=1.0)
    assert compute_match("Count the apples", AGENTS[COUNT]) == pytest.approx(2 / math.sqrt(3 * 2))
    features = np.array([1.0, 0.0, 0.0, 0.0])
    radius = 1 + math.sqrt(4 * math.log(2) + 2 * math.log(20))
    assert router.compute_bound(features) == pytest.approx(radius), "θ is 0 and A is I"
    (choice,) = router.choose(["Sing."])
    assert choice.features == pytest.approx(np.array([1, 0, 0, 0.5]) / math.sqrt(1.25)), (
        "no word matches; no reward yet"
    )
    router.learn([choice], 0.8)
    # A x = 2 x for the x of the choice, so θ·x = 0.8 / 2 and x' inv(A) x = 1 / 2.
    assert router.compute_bound(choice.features) == pytest.approx(0.4 + radius * math.sqrt(0.5))
    router.learn([choice], 0.2)
    radius = 1 + math.sqrt(4 * math.log(3) + 2 * math.log(20))
    assert router.compute_bound(choice.features) == pytest.approx(1.0 / 3 + radius * math.sqrt(1 / 3))


@pytest.mark.parametrize("match_is_good", [True, False])
def test_what_was_learned_of_some_parts_routes_a_part_of_a_new_kind(match_is_good: bool) -> None:
    """The agent of the new part was never chosen, so a bandit with one mean per arm knows nothing of it."""
    router = make_router()
    for _ in range(5):
        for part, best in (("Count the apples", COUNT), ("Quote the songs", QUOTE)):
            for choice in (make_choice(router, part, COUNT), make_choice(router, part, QUOTE)):
                router.learn([choice], float((choice.agent == best) == match_is_good))
    (choice,) = router.choose(["Draw the maps"])
    assert (choice.agent == DRAW) == match_is_good
    assert DRAW not in router.rewards
    arms = Bandit(arms=AGENTS, alpha=0.0)
    assert arms.choose_arm([(COUNT, 1.0), (QUOTE, 0.0)] * 5) == COUNT


def make_choice(router: LinUcbRouter, part: str, agent: int) -> Any:
    """The choice that a router would make if the agent were alone."""
    alone = make_router(agents=(router.agents[agent],))
    alone.rewards = {0: router.rewards[agent]} if agent in router.rewards else {}
    (choice,) = alone.choose([part])
    return type(choice)(agent, choice.features)


def test_agents_below_the_screening_are_never_tried() -> None:
    parts = ["Count apples and quote songs"]
    for top, expected in ((2, {COUNT, QUOTE}), (3, {COUNT, QUOTE, DRAW})):
        router = make_router(top=top, alpha=1.0)
        chosen = set()
        for _ in range(20):
            choices = router.choose(parts)
            chosen.add(choices[0].agent)
            router.learn(choices, 0.0)
        assert chosen == expected


def test_a_learned_penalty_of_load_spreads_the_parts_of_a_round() -> None:
    router = make_router(alpha=0.0)
    parts = ["Sing.", "Sing.", "Sing."]
    first = router.choose(parts)
    assert [choice.agent for choice in router.choose(parts)] == [choice.agent for choice in first], "nothing is learned"
    assert len({choice.agent for choice in first}) == 1
    loads = [choice.features[2] / choice.features[0] for choice in first]
    assert loads == pytest.approx([0, 1 / 3, 2 / 3])
    # An agent without load earned 1, and the same agent with load nothing.
    for choice, load in zip(first, loads, strict=True):
        for _ in range(5):
            router.learn([choice], float(load == 0))
    assert len({choice.agent for choice in router.choose(parts)}) > 1


def says(value_of: dict[str, float], asked: list[str]) -> Say:
    """Clones that answer with their agent's letter. The judge values the answer to the whole task by those letters."""

    def say(observation: Any) -> str:
        text = observation.brief.text
        asked.append(text)
        if text.startswith("Write a plan"):
            return "Answer: Count the apples\nQuote the songs"
        if text.startswith("Answer the task"):
            return "Answer: " + "".join(line[-1] for line in text.splitlines()[-2:])
        if text.startswith("How good"):
            return f"Answer: {value_of[text[-2:]]} 1"
        return f"Answer: {text[0]}"

    return say


def test_feedback_comes_after_the_round_and_reaches_all_of_its_choices() -> None:
    strategy = SymphonyCoord(agents=AGENTS, rounds=3, parts=2, top=2, alpha=0.0)
    asked: list[str] = []
    values = {"CQ": 0.1, "QQ": 0.6, "CC": 0.6, "QC": 0.9}
    (record,) = play(strategy, says(values, asked), LIMITS)
    rounds = [call for call in objectives(record) if len(call) == 2]
    assert len(rounds) == 3
    assert strategy.executed((record,))
    assert record.cost.clones == strategy.max_script_clones
    letters = ["".join(objective[0] for objective in call) for call in rounds]
    assert record.answer == max(letters, key=lambda pair: values[pair])
    # The scores are what a router computes that learns only between rounds, and once for each choice.
    router = strategy.make_router()
    parts = ["Count the apples", "Quote the songs"]
    for pair in letters:
        choices = router.choose(parts)
        assert "".join(AGENTS[choice.agent][0] for choice in choices) == pair
        router.learn(choices, values[pair])
    assert router.num_choices == 6


def test_a_judgement_that_cannot_be_read_teaches_nothing() -> None:
    router = make_router(alpha=1.0)
    before = router.compute_bound(np.array([1.0, 0.0, 0.0, 0.0]))
    router.learn(router.choose(["Sing."]), None)
    assert (router.compute_bound(np.array([1.0, 0.0, 0.0, 0.0])), router.num_choices) == (before, 0)


def test_agents_must_differ() -> None:
    with pytest.raises(ConfigError, match=r"agents are \['a', 'a'\]; expected one or more different instructions"):
        make_strategy("symphony_coord", {"agents": ["a", "a"]}, "strategies.x")
    with pytest.raises(ConfigError, match="delta is 0"):
        make_strategy("symphony_coord", {"delta": 0.0}, "strategies.x")
