"""Advantages worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from records import agent, group, three_agents, turn

from selfcest_env.errors import ConfigError, CreditError
from selfcest_env.types import ROOT, Outcome, Status, TurnKey
from selfcest_training.credit import Credit, Gated, Grpo, Rloo, check_credit
from selfcest_training.credit.gated import has_failed


def key(episode: str, agent: int | None, turn: int = 0) -> TurnKey:
    return TurnKey(episode, ROOT if agent is None else ROOT.child(agent), turn)


def test_grpo_by_hand() -> None:
    # returns 1, 0, 0: mean 1/3; centred 2/3, -1/3, -1/3; std = sqrt((4/9 + 1/9 + 1/9) / 2) = sqrt(1/3) = .57735
    # A = (2/3) / .57735 = 1.154701 and (-1/3) / .57735 = -.577350
    credit = Grpo().assign(group(three_agents("a", 1.0), three_agents("b", 0.0), three_agents("c", 0.0)), {})
    assert credit.advantage[key("a", None, 0)] == pytest.approx(1.154701, abs=1e-6)
    assert credit.advantage[key("a", None, 1)] == credit.advantage[key("a", 1)] == credit.advantage[key("a", None, 0)]
    assert credit.advantage[key("b", 0)] == pytest.approx(-0.577350, abs=1e-6)
    assert not credit.excluded
    assert len(credit.advantage) == 3 * 4


def test_std_floor_bounds_pure_cost_differences() -> None:
    # returns 1.00 and 0.98: centred .01; std = .01414 < floor .25, so A = .01 / .25 = .04 instead of .7071
    both = group(three_agents("a", 1.0), three_agents("b", 0.98))
    assert Grpo().assign(both, {}).advantage[key("a", None)] == pytest.approx(0.04)
    assert Grpo(std_floor=0.0).assign(both, {}).advantage[key("a", None)] == pytest.approx(1 / math.sqrt(2))


def test_parity_form_matches_an_independent_numpy_line() -> None:
    returns = np.array([0.3, 1.0, 0.7, 0.1])
    expected = (returns - returns.mean()) / (returns.std(ddof=1) + 1e-4)
    credit = Grpo(std_floor=0.0, epsilon=1e-4).assign(
        group(*(three_agents(str(i), r) for i, r in enumerate(returns))), {}
    )
    assert [credit.advantage[key(str(i), 0)] for i in range(4)] == pytest.approx(expected.tolist())


def test_without_scale_it_is_a_multiple_of_leave_one_out() -> None:
    returns = [1.0, 0.0, 0.5]
    credit = Grpo(scale=False).assign(group(*(three_agents(str(i), r) for i, r in enumerate(returns))), {})
    for i, value in enumerate(returns):
        others = [r for j, r in enumerate(returns) if j != i]
        assert credit.advantage[key(str(i), None)] == pytest.approx((value - sum(others) / 2) * 2 / 3)


def test_equal_returns_give_zero_and_not_nan() -> None:
    """The mean of eight times 0.7 is not 0.7, and the deviation was as small: the advantage was -0.94."""
    for value, size in ((1.0, 2), (0.7, 8), (0.1, 3)):
        whole = group(*(three_agents(str(i), value) for i in range(size)))
        for scheme in (Grpo(std_floor=0.0), Grpo(scale=False), Rloo()):
            assert set(scheme.assign(whole, {}).advantage.values()) == {0.0}


def test_a_group_of_one_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="at least 2"):
        Grpo().assign(group(three_agents("a", 1.0)), {})


def test_gated_excludes_a_failed_clone_only_under_a_good_episode() -> None:
    good = three_agents("good", 1.0, second_clone=Status.OUT_OF_TURNS)
    bad = three_agents("bad", 0.0, second_clone=Status.OUT_OF_TURNS)
    credit = Gated().assign(group(good, bad), {})
    assert credit.excluded == {key("good", 1)}
    # returns 1, 0: centred +-.5, std .7071: A = +-.7071; the failed clone under the bad root keeps its blame
    assert credit.advantage[key("bad", 1)] == pytest.approx(-math.sqrt(0.5))
    assert credit.advantage[key("good", 0)] == pytest.approx(math.sqrt(0.5))
    assert credit.diagnostics["gated_share"] == pytest.approx(1 / 4)


def test_a_clone_that_answered_after_a_malformed_turn_has_failed() -> None:
    first = three_agents("a", 1.0)
    late = agent(ROOT.child(1), turn((7,), (16,), outcome=Outcome.MALFORMED), turn((8,), (17,)))
    stumbled = replace(first, agents=(*first.agents[:2], late))
    assert [has_failed(agent) for agent in stumbled.agents] == [False, False, True]
    credit = Gated().assign(group(stumbled, three_agents("b", 0.0)), {})
    assert credit.excluded == {key("a", 1, 0), key("a", 1, 1)}


def test_gated_both_sides_is_figure_2_of_the_paper() -> None:
    good = three_agents("good", 1.0, second_clone=Status.OUT_OF_TURNS)
    bad = three_agents("bad", 0.0, second_clone=Status.OUT_OF_TOKENS)
    assert Gated(sides="both").assign(group(good, bad), {}).excluded == {key("good", 1), key("bad", 1)}


def test_gated_without_failures_is_grpo() -> None:
    episodes = group(three_agents("a", 1.0), three_agents("b", 0.25))
    assert Gated().assign(episodes, {}).advantage == Grpo().assign(episodes, {}).advantage


def test_bad_options_are_named() -> None:
    with pytest.raises(ConfigError, match="sides is 'left'"):
        Gated(sides="left")
    with pytest.raises(ConfigError, match="std_floor is -1"):
        Grpo(std_floor=-1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: {k: v for k, v in a.items() if k != key("a", 1)}, "a/root.1/turn0 is neither"),
        (lambda a: {**a, key("a", 1): math.nan}, "finite"),
        (lambda a: {**a, key("a", 0): (0.1, 0.2)}, "2 advantages for 3 tokens"),
        (lambda a: {**a, key("x", 0): 0.0}, "names x/root.0/turn0"),
    ],
)
def test_wrong_credit_names_the_scheme_and_the_turn(change, message) -> None:  # type: ignore[no-untyped-def]
    episodes = group(three_agents("a", 1.0), three_agents("b", 0.0))
    credit = Credit(change(dict(Grpo().assign(episodes, {}).advantage)))
    with pytest.raises(CreditError, match=message) as caught:
        check_credit("mine", episodes, credit)
    assert "'mine'" in str(caught.value)


@pytest.mark.parametrize("field", ["advantage", "excluded", "weight", "diagnostics"])
def test_credit_of_other_types_is_refused(field: str) -> None:
    episodes = group(three_agents("a", 1.0), three_agents("b", 0.0))
    credit = replace(Grpo().assign(episodes, {}), **{field: None})
    with pytest.raises(CreditError, match=f"scheme 'mine': {field} is of type NoneType; expected a (mapping|set)"):
        check_credit("mine", episodes, credit)


def test_a_turn_in_both_parts_is_refused() -> None:
    episodes = group(three_agents("a", 1.0), three_agents("b", 0.0))
    credit = Credit(Grpo().assign(episodes, {}).advantage, frozenset({key("a", 1)}))
    with pytest.raises(CreditError, match="exactly one"):
        check_credit("mine", episodes, credit)
