"""Credit schemes that tell roles apart do on small cases what their sources say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from records import TASK, agent, group, three_agents, turn

from selfcest_env.errors import RewardError
from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.replay import Replay
from selfcest_env.types import ROOT, Limits, Outcome, TurnKey
from selfcest_lab.estimate import learn
from selfcest_lab.exact import solve
from selfcest_lab.expectation import expected_gradient
from selfcest_lab.games import GAMES
from selfcest_methods.ccpo import Ccpo
from selfcest_methods.hierarchical_grpo import HierarchicalGrpo
from selfcest_methods.rae import Rae
from selfcest_methods.sharp import Sharp
from selfcest_training.credit import Credit, CreditAssigner, assign, fit, request_replays

FIRST, SECOND = ROOT.child(0), ROOT.child(1)


def one_clone(episode_id: str, reward: float) -> EpisodeRecord:
    agents = (
        agent(ROOT, turn((1, 2), (10, 11), outcome=Outcome.DELEGATED, children=(FIRST,)), turn((3,), (12,))),
        agent(FIRST, turn((6,), (13, 14, 15))),
    )
    return EpisodeRecord(episode_id, TASK, Limits(), 0, agents, {"correct": reward})


def judged(episode_id: str, reward: float, first: float, second: float) -> EpisodeRecord:
    """Three agents, of which the clones' turns add to the return."""
    terms = {"correct": reward, "judged": first + second}
    return replace(
        three_agents(episode_id, 0.0), reward_terms=terms, by_turn={"judged": {FIRST: (first,), SECOND: (second,)}}
    )


def of(credit: Credit, episode_id: str) -> tuple[object, object, object]:
    """The credit of the root's first turn, of the first clone and of the second."""
    return tuple(credit.advantage.get(TurnKey(episode_id, name, 0)) for name in (ROOT, FIRST, SECOND))  # type: ignore[return-value]


def credit_with(scheme: CreditAssigner, whole: EpisodeGroup, without: Mapping[tuple[str, ...], float]) -> Credit:
    """Credit where each replay's return is that of its episode and absent clones."""
    records: dict[Replay, EpisodeRecord] = {}
    for replay in request_replays(scheme, whole):
        absent = tuple(str(name) for name, _ in replay.interventions)
        records[replay] = three_agents(str(replay), without[(replay.episode_id, *absent)])
    return assign(scheme, whole, records)


# hierarchical_grpo


def test_clones_are_compared_with_their_siblings_and_roots_with_roots() -> None:
    """Returns 1 + .2 + .6 and 0; a root has no turn of its own that is judged, a clone its own only."""
    whole = group(judged("a", 1.0, 0.2, 0.6), judged("b", 0.0, 0.0, 0.0))
    credit = assign(HierarchicalGrpo(own=True), whole, {})
    assert of(credit, "a") == pytest.approx((0.5, -0.2, 0.2))
    assert of(credit, "b") == pytest.approx((-0.5, 0.0, 0.0))
    other = assign(HierarchicalGrpo(own=True), group(whole.episodes[0], judged("b", 9.0, 0.0, 0.0)), {})
    assert of(other, "a")[1:] == of(credit, "a")[1:], "the difficulty of other episodes does not matter"
    assert of(other, "a")[0] != of(credit, "a")[0]


def test_siblings_with_one_return_have_no_credit() -> None:
    credit = assign(HierarchicalGrpo(), group(judged("a", 1.0, 0.2, 0.6), judged("b", 0.0, 0.0, 0.0)), {})
    assert of(credit, "a") == pytest.approx((0.9, 0.0, 0.0))


def test_an_episode_counts_for_rllm_once_per_clone() -> None:
    """Clones have the returns 1, 1, 0: mean 2/3 and population std sqrt(2)/3. Roots have 1 and 0."""
    whole = group(three_agents("a", 1.0), one_clone("b", 0.0))
    credit = assign(HierarchicalGrpo(clones="group", scale=True), whole, {})
    assert of(credit, "a") == pytest.approx((1.0, 1 / math.sqrt(2), 1 / math.sqrt(2)), abs=1e-5)
    assert of(credit, "b")[:2] == pytest.approx((-1.0, -math.sqrt(2)), abs=1e-5)
    equal = assign(HierarchicalGrpo(clones="group", scale=True), group(three_agents("a", 0.1), one_clone("b", 0.1)), {})
    assert set(equal.advantage.values()) == {0.0}


# rae


def test_a_role_s_average_moves_once_per_agent_after_its_episode() -> None:
    """Roots: 0, then .1 x 1. Clones: 0, then .9 x .1 + .1 = .19, as there are two."""
    scheme = Rae(decay=0.9)
    whole = group(three_agents("a", 1.0), one_clone("b", 0.0))
    credit = assign(scheme, whole, {})
    assert of(credit, "a") == pytest.approx((1.0, 1.0, 1.0))
    assert of(credit, "b")[:2] == pytest.approx((-0.1, -0.19))
    assert assign(scheme, whole, {}) == credit, "credit alone teaches nothing"
    fit(scheme, [whole])
    assert (scheme.state.root, scheme.state.clone) == pytest.approx((0.09, 0.171))
    other = Rae(decay=0.9)
    other.load_state_dict(scheme.state_dict())
    assert assign(other, whole, {}) == assign(scheme, whole, {}) != credit


def test_a_role_that_always_earns_as_much_gets_nothing_and_groups_of_one_learn() -> None:
    scheme = Rae(decay=0.9)
    for _ in range(100):
        fit(scheme, [group(three_agents("a", 1.0))])
    assert of(assign(scheme, group(three_agents("b", 1.0)), {}), "b") == pytest.approx((0.0, 0.0, 0.0), abs=1e-3)
    assert of(assign(scheme, group(three_agents("b", 2.0)), {}), "b") == pytest.approx((1.0, 1.0, 1.0), abs=1e-3)


def test_a_moving_average_is_an_unbiased_baseline() -> None:
    game = solve(GAMES["pair"])
    learned = learn(Rae(), game, group_size=2, num_groups=20, seed=0)
    assert isinstance(learned, Rae)
    assert learned.state.root > 0
    assert expected_gradient(learned, game, group_size=2) == pytest.approx(game.gradient, abs=1e-12)


# sharp


def test_the_clone_without_which_the_return_would_be_lower_gets_more() -> None:
    """Rewards 1 + (1 - .2), 1 + (1 - 1) and, in an episode with the return 0, 0 + (0 - 0) twice."""
    whole = group(three_agents("a", 1.0), three_agents("b", 0.0))
    without: dict[tuple[str, ...], float] = {
        ("a", "root.0"): 0.2,
        ("a", "root.1"): 1.0,
        ("b", "root.0"): 0.0,
        ("b", "root.1"): 0.0,
    }
    credit = credit_with(Sharp(process=0.0), whole, without)
    mean, std = 0.7, math.sqrt((1.1**2 + 0.3**2 + 2 * 0.7**2) / 3)
    assert of(credit, "a") == pytest.approx((math.sqrt(0.5), 1.1 / std, 0.3 / std), abs=1e-5)
    assert of(credit, "b") == pytest.approx((-math.sqrt(0.5), -mean / std, -mean / std), abs=1e-5)
    alone = Sharp(process=0.0, marginal=0.0)
    assert not request_replays(alone, whole)
    _root, first, second = of(assign(alone, whole, {}), "a")
    assert first == second, "a broadcast tells siblings apart by nothing"


def test_the_rewards_of_own_turns_are_added() -> None:
    whole = group(judged("a", 0.0, 0.5, 0.0), judged("b", 0.0, 0.5, 0.0))
    credit = assign(Sharp(broadcast=0.0, marginal=0.0, term="judged"), whole, {})
    assert of(credit, "a") == pytest.approx((0.0, 0.25 / math.sqrt(1 / 12), -0.25 / math.sqrt(1 / 12)), abs=1e-5)
    with pytest.raises(RewardError, match="term is 'malformed', but the reward has no such term. It has correct"):
        assign(Sharp(marginal=0.0), whole, {})


# ccpo

WITHOUT: dict[tuple[str, ...], float] = {
    ("a", "root.0"): 0.2,
    ("a", "root.1"): 1.0,
    ("b", "root.0"): 0.0,
    ("b", "root.1"): 0.0,
    ("a", "root.0", "root.1"): 0.5,
    ("b", "root.0", "root.1"): 0.5,
}


def test_a_clone_that_rides_on_others_gets_less() -> None:
    whole = group(three_agents("a", 1.0), three_agents("b", 0.0))
    credit = credit_with(Ccpo(), whole, WITHOUT)
    std = math.sqrt((0.6**2 + 3 * 0.2**2) / 3)
    assert of(credit, "a") == pytest.approx((math.sqrt(0.5), 0.6 / std, -0.2 / std), abs=1e-5), "D, before any history"


def test_history_bounds_contributions_and_gates_the_return_without_clones() -> None:
    """D are .8, 0, 0, 0: mean .2, variance .12. R are 1 and 0, S .5 twice, whose variance of 0 counts as 1."""
    whole = group(three_agents("a", 1.0), three_agents("b", 0.0))
    scheme = Ccpo(min_samples=4)
    before = credit_with(scheme, whole, WITHOUT)
    fit(scheme, [whole])
    state = scheme.state
    assert (state.contributions.mean, state.contributions.variance) == pytest.approx((0.2, 0.12))
    assert (state.returns.mean, state.returns_alone.mean, state.returns_alone.std) == pytest.approx((0.5, 0.5, 1.0))
    after = credit_with(scheme, whole, WITHOUT)
    high, low = math.tanh(0.6 / math.sqrt(0.12)), math.tanh(-0.2 / math.sqrt(0.12))
    mean = (high + 3 * low) / 4
    std = math.sqrt(((high - mean) ** 2 + 3 * (low - mean) ** 2) / 3)
    assert of(after, "a") == pytest.approx((math.sqrt(0.5), (high - mean) / std, (low - mean) / std), abs=1e-4)
    # Where removal of the clones changes the return, the root is credited for what it would earn alone, too.
    alone = {**WITHOUT, ("a", "root.0", "root.1"): -4.0}
    assert of(credit_with(scheme, whole, alone), "a")[0] == pytest.approx(-math.sqrt(0.5), abs=1e-5)
    other = Ccpo(min_samples=4)
    other.load_state_dict(scheme.state_dict())
    assert credit_with(other, whole, WITHOUT) == after != before


def test_the_second_step_moves_the_history_by_its_decay() -> None:
    whole = group(three_agents("a", 1.0), three_agents("b", 0.0))
    scheme = Ccpo(decay=0.9)
    for _ in range(2):
        credit_with(scheme, whole, WITHOUT)
        fit(scheme, [whole])
    assert scheme.state.contributions.count == 8
    assert scheme.state.contributions.mean == pytest.approx(0.2)
    credit_with(scheme, whole, {**WITHOUT, ("a", "root.0"): 1.0})
    fit(scheme, [whole])
    assert scheme.state.contributions.mean == pytest.approx(0.18), "D are now 0"
    fit(scheme, [whole])
    assert scheme.state.contributions.mean == pytest.approx(0.18), "a step without credit teaches nothing"
