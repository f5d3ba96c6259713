"""Schemes with replays, per role and after the paper's code: advantages worked out by hand on a three-agent record."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from records import agent, group, three_agents, turn
from swap_scheme import Swap

from selfcest_env.errors import ConfigError, CreditError, PlugInError
from selfcest_env.plugin import PlugIn, build
from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.replay import Intervention, Replay
from selfcest_env.types import ROOT, AgentId, Outcome, Status, TurnKey
from selfcest_methods.branches import Branches
from selfcest_methods.wideseek import WideSeek
from selfcest_training.credit import (
    Coma,
    Credit,
    CreditAssigner,
    Difference,
    DiffLoo,
    Gated,
    GatedPaper,
    Grpo,
    Parts,
    PerRole,
    Rloo,
    Shapley,
    ToGo,
    assign,
    check_credit,
    check_replays,
    make_assigner,
    request_more_replays,
    request_replays,
)
from selfcest_training.learner.batch import build_samples
from selfcest_training.learner.options import Denominator

DEFAULT, RESAMPLE = Intervention.DEFAULT, Intervention.RESAMPLE
FIRST, SECOND = ROOT.child(0), ROOT.child(1)


def key(episode: str, agent_id: AgentId, turn: int = 0) -> TurnKey:
    return TurnKey(episode, agent_id, turn)


def advantages(credit: Credit, episode: str) -> tuple[Any, ...]:
    """Of the root's two turns and the two clones."""
    keys = (key(episode, ROOT), key(episode, ROOT, 1), key(episode, FIRST), key(episode, SECOND))
    return tuple(credit.advantage[name] for name in keys)


def pair(first: float = 1.0, second: float = 0.0) -> EpisodeGroup:
    return group(three_agents("a", first), three_agents("b", second))


def replayed(returns: dict[tuple[str, AgentId, int], float], what: Intervention) -> dict[Replay, EpisodeRecord]:
    replays = {Replay.of(episode, {c: what}, sample): value for (episode, c, sample), value in returns.items()}
    return {name: three_agents(str(name), value) for name, value in replays.items()}


def test_rloo_by_hand() -> None:
    # returns 1, .25, 0: 1 - .125 = .875; .25 - .5 = -.25; 0 - .625 = -.625
    credit = Rloo().assign(group(three_agents("a", 1.0), three_agents("b", 0.25), three_agents("c", 0.0)), {})
    assert advantages(credit, "a") == (0.875,) * 4
    assert advantages(credit, "b") == (-0.25,) * 4
    assert advantages(credit, "c") == (-0.625,) * 4


@pytest.mark.parametrize(("scheme", "what"), [(Difference, DEFAULT), (Coma, RESAMPLE)])
def test_counterfactual_schemes_by_hand(scheme: type[Difference | Coma], what: Intervention) -> None:
    one = pair(1.0, 0.0)
    asked = [("a", FIRST, 0), ("a", SECOND, 0), ("b", FIRST, 0), ("b", SECOND, 0)]
    assert request_replays(scheme(), one) == tuple(Replay.of(episode, {c: what}, n) for episode, c, n in asked)
    records = replayed(dict(zip(asked, (0.25, 1.0, 0.5, -0.5), strict=True)), what)
    credit = assign(scheme(), one, records)
    # roots: 1 - 0 and 0 - 1; clones: 1 - .25, 1 - 1, 0 - .5, 0 + .5
    assert advantages(credit, "a") == (1.0, 1.0, 0.75, 0.0)
    assert advantages(credit, "b") == (-1.0, -1.0, -0.5, 0.5)


def test_coma_takes_the_mean_over_samples() -> None:
    returns = {(e, c, n): 0.1 * n for e in "ab" for c in (FIRST, SECOND) for n in range(3)}
    credit = assign(Coma(samples=3), pair(1.0, 0.0), replayed(returns, RESAMPLE))
    assert credit.advantage[key("a", FIRST)] == pytest.approx(1 - 0.1)  # mean of 0, .1, .2
    assert credit.advantage[key("b", SECOND)] == pytest.approx(-0.1)


def test_all_turns_of_a_clone_share_its_baseline() -> None:
    episode = three_agents("a", 1.0)
    longer = replace(episode.agents[1], turns=(turn((6,), (13,), outcome=Outcome.MALFORMED), turn((8,), (14,))))
    one = group(replace(episode, agents=(episode.agents[0], longer, episode.agents[2])), three_agents("b", 0.0))
    returns = {(e, c, 0): 0.25 for e in "ab" for c in (FIRST, SECOND)}
    credit = assign(Coma(), one, replayed(returns, RESAMPLE))
    assert credit.advantage[key("a", FIRST, 0)] == credit.advantage[key("a", FIRST, 1)] == 0.75


def test_shapley_by_hand() -> None:
    # two clones, both orders: v() = .2, v(0) = .5, v(1) = .3, v(0, 1) = R = 1
    # A_0 = ((v(0) - v()) + (R - v(1))) / 2 = (.3 + .7) / 2 = .5;  A_1 = ((R - v(0)) + (v(1) - v())) / 2 = .3
    one = pair(1.0, 0.0)
    values = {(FIRST, SECOND): 0.2, (SECOND,): 0.5, (FIRST,): 0.3}  # by those that are absent
    records = {}
    for episode in "ab":
        for absent, value in values.items():
            name = Replay.of(episode, dict.fromkeys(absent, DEFAULT))
            records[name] = three_agents(str(name), value)
    assert set(request_replays(Shapley(orders=2), one)) == set(records)
    credit = assign(Shapley(orders=2), one, records)
    assert advantages(credit, "a") == pytest.approx((1.0, 1.0, 0.5, 0.3))
    # R = 0: A_0 = (.3 - .3) / 2 = 0;  A_1 = (-.5 + .1) / 2 = -.2;  they sum to R - v() = -.2
    assert advantages(credit, "b") == pytest.approx((-1.0, -1.0, 0.0, -0.2))


def test_shapley_samples_orders_by_the_episode_s_seed_and_asks_each_coalition_once() -> None:
    one = pair()
    asked = request_replays(Shapley(orders=1), one)
    assert len(asked) == len(set(asked)) == 2 * 2  # of one order: nobody, the first of it; the whole call is factual
    other = group(*(replace(episode, seed=episode.seed + 1 + i) for i, episode in enumerate(one.episodes)))
    orders = {
        request_replays(Shapley(orders=1), group(*(replace(e, seed=s) for e in other.episodes))) for s in range(8)
    }
    assert len(orders) > 1
    assert request_replays(Shapley(orders=1), one) == asked


def test_a_call_of_one_clone_is_difference() -> None:
    root = agent(ROOT, turn((1,), (10,), outcome=Outcome.DELEGATED, children=(FIRST,)), turn((3,), (12,)))
    episodes = [
        replace(three_agents(name, value), agents=(root, agent(FIRST, turn((6,), (13,))))) for name, value in
        (("a", 1.0), ("b", 0.0))
    ]  # fmt: skip
    one = group(*episodes)
    names = [Replay.of(name, {FIRST: DEFAULT}) for name in "ab"]
    records = {name: three_agents(str(name), 0.4) for name in names}
    assert assign(Shapley(), one, records) == assign(Difference(), one, records)


def test_a_share_of_the_clones_is_chosen_by_seed_alone_and_the_others_get_rloo() -> None:
    scheme = Difference(max_share=0.5)
    episodes = [replace(three_agents(str(i), float(i)), seed=i) for i in range(200)]
    one = group(*episodes)
    asked = request_replays(scheme, one)
    assert len(asked) == pytest.approx(200, abs=30)  # of 400 clones; the deviation is 10
    other_rewards = group(*(replace(episode, reward_terms={"x": 0.0}) for episode in episodes))
    assert request_replays(scheme, other_rewards) == asked
    credit = assign(scheme, one, {name: three_agents(str(name), -1.0) for name in asked})
    chosen = {(name.episode_id, name.interventions[0][0]) for name in asked}
    broadcast = Rloo().assign(one, {}).advantage
    for episode in episodes:
        for clone in (FIRST, SECOND):
            name = key(episode.episode_id, clone)
            counterfactual = (episode.episode_id, clone) in chosen
            assert credit.advantage[name] == (episode.team_return + 1 if counterfactual else broadcast[name])
    assert request_replays(Difference(max_share=0.0), one) == ()
    assert len(request_replays(Shapley(max_share=0.5), one)) < len(request_replays(Shapley(), one))


def test_clones_that_never_acted_are_not_replayed() -> None:
    episode = three_agents("a", 1.0)
    mute = replace(episode.agents[2], turns=(), status=Status.OUT_OF_TOKENS, reply=None)
    one = group(replace(episode, agents=(*episode.agents[:2], mute)), three_agents("b", 0.0))
    for scheme in (Difference(), Coma(), Shapley()):
        assert all(
            (SECOND not in dict(name.interventions)) for name in request_replays(scheme, one) if name.episode_id == "a"
        )


# The paper's code


def scored(episode_id: str, *, clone_tokens: int = 2, clone: Status = Status.ANSWERED, **terms: float) -> EpisodeRecord:
    """A root and two clones; the second generated so many tokens and ended so."""
    episode = three_agents(episode_id, 0.0)
    outcome = Outcome.ANSWERED if clone is Status.ANSWERED else Outcome.MALFORMED
    second = agent(SECOND, turn((7,), tuple(range(clone_tokens)), outcome=outcome), status=clone)
    return replace(episode, agents=(*episode.agents[:2], second), reward_terms=terms)


def paper(*episodes: EpisodeRecord, **options: Any) -> Credit:
    return assign(GatedPaper(**options), group(*episodes), {})


def test_gated_paper_roots_are_group_relative_without_a_floor() -> None:
    returns = np.array([0.9, 0.2, 0.4, 0.5])
    expected = (returns - returns.mean()) / (returns.std(ddof=1) + 1e-6)
    credit = paper(*(scored(str(i), score=value) for i, value in enumerate(returns)))
    assert [credit.advantage[key(str(i), ROOT)] for i in range(4)] == pytest.approx(expected.tolist())


def test_gated_paper_clones_get_the_root_s_advantage_and_malformed_ones_zero() -> None:
    # a: R = 1, ratio 1 / (1 + 1e-8); its second clone wrote 193 tokens and no answer: gated. b: 192 tokens: not gated
    credit = paper(
        scored("a", score=1.0, clone_tokens=193, clone=Status.OUT_OF_TURNS),
        scored("b", score=0.5, clone_tokens=192, clone=Status.OUT_OF_TURNS),
    )
    root = math.sqrt(0.5) * 0.25 / (0.25 + 1e-6 * math.sqrt(0.5))  # .25 / (.353553 + 1e-6)
    assert advantages(credit, "a") == pytest.approx((root, root, root, 0.0), rel=1e-6)
    assert advantages(credit, "b") == pytest.approx((-root,) * 4, rel=1e-6)
    assert credit.diagnostics["gated_share"] == 0.25
    assert not credit.excluded, "their gated clones stay in the batch"


@pytest.mark.parametrize("weight", [0.5, 2.0])
def test_gated_paper_s_clones_equal_their_root_at_any_weight(weight: float) -> None:
    whole = [
        replace(three_agents(name, value), weights={"correct": weight}) for name, value in (("a", 1.0), ("b", 0.0))
    ]
    advantage = paper(*whole).advantage
    assert advantage[key("a", ROOT.child(0))] == pytest.approx(advantage[key("a", ROOT)])


def test_gated_paper_of_mathematics_pays_clones_two_fifths() -> None:
    credit = paper(
        scored("a", score=1.0, clone_tokens=193, clone=Status.OUT_OF_TURNS), scored("b", score=-0.5), domain="math"
    )
    root, _, first, second = advantages(credit, "a")
    assert first == pytest.approx(0.4 * root)
    assert second == 0.0  # min(0, score)
    # R < 0: the score is negative too, so the ratio is positive and the clone follows its root
    assert advantages(credit, "b")[2] == pytest.approx(0.4 * advantages(credit, "b")[0])
    below = paper(
        scored("a", score=1.0), scored("b", score=-0.5, clone_tokens=193, clone=Status.OUT_OF_TURNS), domain="math"
    )
    # min(0, -.5) = -.5 is not scaled: ratio 1, more than the 0.4 of its well-formed sibling
    assert advantages(below, "b")[3] == pytest.approx(advantages(below, "b")[0])


def test_defect_a_root_reward_of_zero_teaches_clones_nothing() -> None:
    credit = paper(scored("a", score=1.0), scored("b", score=0.0))
    root, _, first, second = advantages(credit, "b")
    assert root == pytest.approx(-math.sqrt(0.5), rel=1e-5)
    assert first == second == 0.0
    assert advantages(Grpo(std_floor=0.0).assign(pair(), {}), "b")[2] == pytest.approx(root, rel=1e-5), "grpo does"


def test_defect_a_penalty_after_the_ratio_inflates_it_and_turns_its_sign() -> None:
    # b: score .04, penalty .05 afterwards: R = -.01, ratio .04 / -.01 = -4, clamped to -1.5
    credit = paper(scored("a", score=1.0), scored("b", score=0.04, malformed=-0.05))
    root, _, first, _ = advantages(credit, "b")
    assert root < 0 < first == pytest.approx(-1.5 * root)
    # score .2, penalty .1: R = .1, ratio 2, clamped to 1.5
    credit = paper(scored("a", score=1.0), scored("b", score=0.2, malformed=-0.1))
    assert advantages(credit, "b")[2] == pytest.approx(1.5 * advantages(credit, "b")[0])
    # a penalty that is not late is in both: ratio 1
    credit = paper(scored("a", score=1.0), scored("b", score=0.2, malformed=-0.1), late_terms=())
    assert advantages(credit, "b")[2] == pytest.approx(advantages(credit, "b")[0], rel=1e-6)
    # R = 0 by the penalty alone: .1 / 1e-8, clamped
    credit = paper(scored("a", score=1.0), scored("b", score=0.1, malformed=-0.1))
    assert advantages(credit, "b")[2] == pytest.approx(1.5 * advantages(credit, "b")[0])


# Per role


def test_per_role_by_hand() -> None:
    scheme = PerRole(roots=PlugIn("grpo", {"scale": False}), clones=PlugIn("coma", {"samples": 1}))
    one = pair(1.0, 0.0)
    assert request_replays(scheme, one) == request_replays(Coma(), one)
    records = replayed({(e, c, 0): 0.25 for e in "ab" for c in (FIRST, SECOND)}, RESAMPLE)
    credit = assign(scheme, one, records)
    assert advantages(credit, "a") == (0.5, 0.5, 0.75, 0.75)
    assert advantages(credit, "b") == (-0.5, -0.5, -0.25, -0.25)


@pytest.mark.parametrize("frozen", ["roots", "clones"])
def test_a_frozen_role_is_excluded(frozen: str) -> None:
    trained = {"roots": "clones", "clones": "roots"}[frozen]
    credit = assign(PerRole(**{trained: PlugIn("rloo")}), pair(), {})
    assert {name.agent_id == ROOT for name in credit.excluded} == {frozen == "roots"}
    assert {name.agent_id == ROOT for name in credit.advantage} == {frozen != "roots"}


def test_per_role_options_come_from_a_config() -> None:
    options = {"clones": {"name": "gated", "options": {"sides": "both"}}}
    assert build(PerRole, options, where="x").options == PerRole.Options(clones=PlugIn("gated", {"sides": "both"}))
    with pytest.raises(ConfigError, match="both null"):
        PerRole()
    with pytest.raises(ConfigError, match="clones.options.side is unknown. Did you mean 'sides'\\? Gated has"):
        PerRole(clones=PlugIn("gated", {"side": "both"}))
    with pytest.raises(ConfigError, match="unknown credit scheme 'comma'.*Did you mean 'coma'"):
        PerRole(roots=PlugIn("comma"))


# Bad input


class Asks(CreditAssigner):
    """Asks for what it was told to ask for."""

    def __init__(self, *replays: Any) -> None:
        self._replays = replays

    name, formula, source, null_player = "asks", "", "", False
    promise = Rloo.promise

    def replays(self, one: EpisodeGroup) -> Any:
        return self._replays

    def assign(self, one: EpisodeGroup, records: Any) -> Credit:
        return Credit({name: records["x"] for episode in one.episodes for name, _ in episode.turns()})


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (Replay.of("a", {ROOT.child(7): DEFAULT}), "a/root.7=default/sample0.*root.7 took no turn"),
        (Replay.of("z", {FIRST: DEFAULT}), "z/root.0=default/sample0.*no episode 'z'.*a, b"),
        (Replay.of("a", {ROOT: RESAMPLE, FIRST: DEFAULT}), "descends from root"),
        ("a/root.0", "expected a list of Replay"),
    ],
)
def test_a_replay_that_cannot_be_played_names_the_scheme_and_the_rule(asked: Any, words: str) -> None:
    with pytest.raises(CreditError, match=f"credit scheme 'asks'.*{words}"):
        request_replays(Asks(asked), pair())


def test_a_scheme_that_raises_is_named() -> None:
    with pytest.raises(CreditError, match="credit scheme 'asks': raised KeyError: 'x'"):
        assign(Asks(), pair(), {})


class Yields(Asks):
    """Asks one by one, as a generator."""

    def replays(self, one: EpisodeGroup) -> Any:
        yield from self._replays
        raise ZeroDivisionError


def test_replays_that_are_yielded_are_asked_and_what_goes_wrong_on_the_way_is_named() -> None:
    wanted = Replay.of("a", {FIRST: DEFAULT})
    lazy = Asks()
    lazy.replays = lambda one: iter([wanted])  # type: ignore[method-assign]
    assert request_replays(lazy, pair()) == (wanted,)
    with pytest.raises(CreditError, match="credit scheme 'asks': raised ZeroDivisionError"):
        request_replays(Yields(wanted), pair())
    lazy.replays = lambda one: None  # type: ignore[method-assign]
    with pytest.raises(CreditError, match="credit scheme 'asks': raised TypeError: 'NoneType'"):
        request_replays(lazy, pair())


@pytest.mark.parametrize("number", [math.nan, "many"])
def test_a_diagnostic_that_is_no_finite_number_is_named(number: Any) -> None:
    advantage = Rloo().assign(pair(), {}).advantage
    with pytest.raises(CreditError, match=f"credit scheme 'mine': diagnostic 'seen' is {number!r}"):
        check_credit("mine", pair(), Credit(advantage, diagnostics={"seen": number}))


def test_a_text_is_no_turn_key() -> None:
    credit = Credit({str(name): 0.0 for name in Rloo().assign(pair(), {}).advantage})  # type: ignore[misc]
    with pytest.raises(CreditError, match=r"names 'a/root/turn0' \(a str, no TurnKey\)"):
        check_credit("mine", pair(), credit)


def test_checked_replays_keeps_what_is_right() -> None:
    asked = (Replay.of("a", {FIRST: RESAMPLE, SECOND: DEFAULT}),)
    assert check_replays("mine", pair(), asked) == asked


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("coma", {"samples": 0}, "samples is 0"),
        ("coma", {"samples": 1.5}, "options.samples is 1.5; expected a whole number"),
        ("difference", {"max_share": 1.5}, "max_share is 1.5"),
        ("shapley", {"orders": 0}, "orders is 0"),
        (
            "gated_paper",
            {"domain": "maths"},
            "domain is 'maths'. Did you mean 'math'",
        ),
        ("gated_paper", {"late_terms": "malformed"}, "late_terms is 'malformed'"),
        ("per_role", {"clones": {"nam": "coma"}}, "clones"),
    ],
)
def test_bad_options_are_named(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_assigner(name, options, where="options")


def test_a_class_that_declares_nothing_is_no_scheme() -> None:
    with pytest.raises(PlugInError, match="Fraction is no subclass of .*:CreditAssigner; derive it from that"):
        make_assigner("fractions:Fraction", {}, where="options")


def test_every_scheme_declares_itself(subtests: Any) -> None:
    made: list[CreditAssigner] = [Grpo(), Rloo(), Coma(), Difference(), Shapley(), GatedPaper()]
    for scheme in made:
        with subtests.test(scheme.name):
            assert make_assigner(scheme.name, {}, where="") == scheme
            assert "=" in scheme.formula
            assert scheme.source


# Differences against other episodes, parts, and weights by agent


def test_diff_loo_by_hand() -> None:
    one = group(*(three_agents(name, value) for name, value in (("a", 1.0), ("b", 0.0), ("c", 0.5))))
    without = {("a", FIRST): 0.25, ("b", FIRST): 0.5, ("c", FIRST): 0.5}
    without |= {("a", SECOND): 1.0, ("b", SECOND): -0.5, ("c", SECOND): 0.5}
    records = replayed({(*who, 0): value for who, value in without.items()}, DEFAULT)
    credit = assign(DiffLoo(), one, records)
    # D of the first clone: .75 -.5 0; of the second: 0 .5 0
    assert advantages(credit, "a") == pytest.approx((0.75, 0.75, 0.75 + 0.25, 0 - 0.25))
    assert advantages(credit, "b") == pytest.approx((-0.75, -0.75, -0.5 - 0.375, 0.5))
    assert advantages(credit, "c") == pytest.approx((0.0, 0.0, 0 - 0.125, 0 - 0.25))


def test_swap_by_hand() -> None:
    """Replies 2 everywhere, but for one clone that failed; the next episode's, and the one after that."""
    failed = replace(three_agents("b", 0.0), agents=(*three_agents("b", 0.0).agents[:2],))
    silent = replace(failed.agents[1], status=Status.OUT_OF_TURNS, reply=None)
    one = group(three_agents("a", 1.0), replace(failed, agents=(failed.agents[0], silent)), three_agents("c", 0.5))
    put_in = Intervention.replace("2")
    asked = request_replays(Swap(samples=2), one)
    assert asked == (
        Replay.of("a", {FIRST: DEFAULT}), Replay.of("a", {FIRST: put_in}, 1), Replay.of("a", {SECOND: put_in}),
        Replay.of("b", {FIRST: put_in}), Replay.of("b", {FIRST: put_in}, 1),
        Replay.of("c", {FIRST: put_in}), Replay.of("c", {FIRST: DEFAULT}, 1), Replay.of("c", {SECOND: put_in}),
    )  # fmt: skip
    returns = dict(zip(asked, (0.2, 0.4, 1.0, 0.5, 0.7, 0.0, 0.1, 0.5), strict=True))
    credit = assign(Swap(samples=2), one, {name: three_agents(str(name), value) for name, value in returns.items()})
    assert credit.advantage[key("a", FIRST)] == pytest.approx(1 - 0.3)
    assert credit.advantage[key("a", SECOND)] == pytest.approx(0.0)
    assert credit.advantage[key("b", FIRST)] == pytest.approx(-0.6)
    assert credit.advantage[key("c", FIRST)] == pytest.approx(0.5 - 0.05)
    alone = assign(Swap(), group(three_agents("a", 1.0), replace(failed, agents=failed.agents[:1])), {})
    assert advantages(alone, "a") == (1.0,) * 4, "nobody to swap with: rloo"


def test_paired_compares_with_the_join_played_again() -> None:
    one = pair(1.0, 0.0)
    scheme = Difference(samples=2, paired=True)
    again = [Replay.of("a", {ROOT: Intervention.again(1)}, n) for n in (0, 1)]
    asked = request_replays(scheme, one)
    assert [name for name in asked if name.episode_id == "a"] == [
        again[0], Replay.of("a", {FIRST: DEFAULT}), again[1], Replay.of("a", {FIRST: DEFAULT}, 1),
        Replay.of("a", {SECOND: DEFAULT}), Replay.of("a", {SECOND: DEFAULT}, 1),
    ]  # fmt: skip
    values = dict.fromkeys(asked, 0.0) | {again[0]: 0.75, again[1]: 0.25, Replay.of("a", {FIRST: DEFAULT}): 0.5}
    credit = assign(scheme, one, {name: three_agents(str(name), value) for name, value in values.items()})
    # the factual return of 1 does not come in: (.75 - .5 + .25 - 0) / 2 and (.75 + .25) / 2
    assert advantages(credit, "a") == (1.0, 1.0, 0.25, 0.5)


def test_branches_by_hand() -> None:
    """Three draws of each clone, against each other; the replays' turns of that clone train, nothing else of theirs."""
    one, scheme = pair(1.0, 0.0), Branches(samples=2)
    asked = request_replays(scheme, one)
    assert len(asked) == 2 * 2 * 2
    values = dict.fromkeys(asked, 0.0) | {Replay.of("a", {FIRST: RESAMPLE}, n): v for n, v in ((0, 0.25), (1, 0.5))}
    records = {name: three_agents(str(name), value) for name, value in values.items()}
    credit = assign(scheme, one, records)
    # 1, .25, .5: 1 - .375, .25 - .75, .5 - .625, a third each
    assert credit.advantage[key("a", FIRST)] == pytest.approx(0.625)
    first = [credit.advantage[key(f"a/root.0=resample/sample{n}", FIRST)] for n in (0, 1)]
    assert first == pytest.approx([-0.5, -0.125])
    assert {credit.weight[name] for name in credit.advantage if name.agent_id != ROOT} == {1 / 3}
    assert not any(name.agent_id == ROOT for name in credit.weight)
    assert credit.advantage[key("a", ROOT)] == 1.0
    named = {(name.episode_id, name.agent_id) for name in credit.advantage if "/" in name.episode_id}
    assert named == {(str(name), name.interventions[0][0]) for name in asked}


def test_branches_of_root_turns_by_hand() -> None:
    """The root's last turn has two further draws. Its first turn has the group's other episodes instead."""
    one = pair(1.0, 0.0)
    scheme = Branches(samples=2, max_share=0.0, root_share=1.0)
    change = {ROOT: Intervention.resample(1)}
    asked = tuple(Replay.of(episode, change, sample) for episode in "ab" for sample in range(2))
    assert request_replays(scheme, one) == asked
    returns = (0.25, 0.5, 0.0, 1.0)
    records = {name: three_agents(str(name), value) for name, value in zip(asked, returns, strict=True)}
    credit = assign(scheme, one, records)
    # a: 1, .25, .5 give 1 - .375, .25 - .75, .5 - .625; all else is rloo: 1 - 0
    assert advantages(credit, "a") == pytest.approx((1.0, 0.625, 1.0, 1.0))
    alternatives = [credit.advantage[key(str(name), ROOT, 1)] for name in asked[:2]]
    assert alternatives == pytest.approx([-0.5, -0.125])
    assert {name: credit.weight[name] for name in credit.weight if name.episode_id in "ab"} == {
        key("a", ROOT, 1): pytest.approx(1 / 3),
        key("b", ROOT, 1): pytest.approx(1 / 3),
    }
    assert {name for name in credit.advantage if "/" in name.episode_id} == {key(str(name), ROOT, 1) for name in asked}


def test_branches_of_clones_that_alternatives_bore() -> None:
    """The first clone has one of its own in the episode; in its alternative too, with a second round of its own."""
    grandchild = FIRST.child(0)

    def bearing(name: str, value: float) -> EpisodeRecord:
        root, first, second = three_agents(name, value).agents
        calls = turn((6,), (13,), outcome=Outcome.DELEGATED, children=(grandchild,))
        return replace(
            three_agents(name, value),
            agents=(root, replace(first, turns=(calls, *first.turns)), agent(grandchild, turn((8,), (18,))), second),
        )

    one, scheme = group(bearing("a", 1.0), three_agents("b", 0.0)), Branches(nested=True)
    first = {name: bearing(str(name), 0.5) for name in request_replays(scheme, one)}
    first[Replay.of("b", {SECOND: RESAMPLE})] = three_agents("b/root.1=resample/sample0", 0.5)
    more = request_more_replays(scheme, one, first)
    assert list(map(str, more)) == [f"{name}/root.0=resample/sample0/root.0.0=resample/sample0" for name in "ab"], (
        "in the second clone's alternatives the first one is the episode's own"
    )
    second = {name: bearing(str(name), 0.75) for name in more}
    credit = assign(scheme, one, {**first, **second})
    born_in_a, born_in_alternative = key("a", grandchild), key("a/root.0=resample/sample0", grandchild)
    assert credit.advantage[born_in_a] == pytest.approx(1 - 0.5)
    assert credit.advantage[born_in_alternative] == pytest.approx(0.5 - 0.75)
    assert credit.advantage[key(str(more[0]), grandchild)] == pytest.approx(0.75 - 0.5)
    assert credit.weight[born_in_a] == credit.weight[born_in_alternative] == 1 / 4
    samples = build_samples(
        [one], [credit], denominator=Denominator.CONSTANT, constant=10.0, replayed=[{**first, **second}]
    )
    (deep,) = [s for s in samples if s.episode_id == str(more[0])]
    assert (deep.agent_id, float(deep.weight[-1])) == (grandchild, pytest.approx(0.05 / 4))
    assert request_more_replays(Branches(), one, first) == request_more_replays(Rloo(), one, first) == ()
    assert request_more_replays(Gated(PlugIn("branches", {"nested": True})), one, first) == more
    assert (
        request_more_replays(PerRole(roots=PlugIn("rloo"), clones=PlugIn("branches", {"nested": True})), one, first)
        == more
    )


def test_a_second_replay_of_nothing_that_was_played_is_refused() -> None:
    one, scheme = pair(), Branches(nested=True)
    first = {name: three_agents(str(name), 0.5) for name in request_replays(scheme, one)}
    nobody = Replay.of("a/root.7=resample/sample0", {FIRST: RESAMPLE})
    with pytest.raises(CreditError, match=r"its group has no episode 'a/root\.7=resample/sample0'"):
        check_replays("mine", one, [nobody], first)
    with pytest.raises(ConfigError, match=r"max_share is 0\.5 and nested true; expected a max_share of 1"):
        make_assigner("branches", {"nested": True, "max_share": 0.5}, where="credit.options")


def test_turns_of_replays_train_with_the_weight_of_their_episode() -> None:
    one, scheme = pair(1.0, 0.0), Branches()
    records = {name: three_agents(str(name), 0.5) for name in request_replays(scheme, one)}
    credit, options = assign(scheme, one, records), {"denominator": Denominator.CONSTANT, "constant": 10.0}
    alone, samples = (build_samples([one], [credit], **options, replayed=found) for found in (None, [records]))
    assert [(s.episode_id, s.agent_id) for s in samples[: len(alone)]] == [(s.episode_id, s.agent_id) for s in alone]
    assert len(samples) == len(alone) + 4
    weights = {s.agent_id: {round(float(w), 6) for w in np.unique(s.weight * s.loss_mask)} - {0.0} for s in samples}
    assert weights[ROOT] == {0.05}, "two episodes, whatever was replayed"
    assert weights[FIRST] == weights[SECOND] == {0.025}, "two draws that stand for one, in terms without advantage too"
    branch = next(s for s in samples if s.episode_id == "a/root.1=resample/sample0")
    assert (branch.agent_id, branch.loss_mask.tolist()) == (SECOND, [False, True, True])
    assert branch.advantages[1] == pytest.approx(0.5 - 1)


@pytest.mark.parametrize(
    ("agent_id", "turn", "words"),
    [
        (ROOT, 0, "credits a/root.0=resample/sample0/root/turn0, which the replay has kept .* credit a/root/turn0"),
        (SECOND, 0, "credits a/root.0=resample/sample0/root.1/turn0, which the replay has kept"),
        (FIRST, 3, "names a/root.0=resample/sample0/root.0/turn3; expected a turn of the group"),
    ],
)
def test_a_turn_that_a_replay_has_kept_is_not_credited_twice(agent_id: AgentId, turn: int, words: str) -> None:
    name = Replay.of("a", {FIRST: RESAMPLE})
    records, one = {name: three_agents(str(name), 0.0)}, pair()
    advantage = {**Rloo().assign(one, {}).advantage, key(str(name), ROOT, 1): 0.5}
    assert check_credit("mine", one, Credit(advantage), records).advantage == advantage
    with pytest.raises(CreditError, match=words):
        check_credit("mine", one, Credit({**advantage, key(str(name), agent_id, turn): 0.5}), records)
    with pytest.raises(CreditError, match="has nan|is nan; expected a finite number"):
        check_credit("mine", one, Credit({**advantage, key(str(name), ROOT, 1): math.nan}), records)
    left_out = Credit(Rloo().assign(one, {}).advantage, frozenset({key(str(name), ROOT, 1)}))
    with pytest.raises(
        CreditError, match="excludes a/root.0=resample/sample0/root/turn1, a turn of a replay.*leave it"
    ):
        check_credit("mine", one, left_out, records)


def test_every_turn_of_a_clone_has_a_baseline_of_its_own_if_asked() -> None:
    episode = three_agents("a", 1.0)
    longer = replace(episode.agents[1], turns=(turn((6,), (13,), outcome=Outcome.MALFORMED), turn((8,), (14,))))
    one = group(replace(episode, agents=(episode.agents[0], longer, episode.agents[2])), three_agents("b", 0.0))
    asked = request_replays(Coma(per_turn=True), one)
    assert [str(name) for name in asked[:3]] == [
        "a/root.0=resample/sample0", "a/root.0=resample@1/sample0", "a/root.1=resample/sample0",
    ]  # fmt: skip
    values = dict.fromkeys(asked, 0.0) | {asked[0]: 0.5, asked[1]: 0.75}
    credit = assign(Coma(per_turn=True), one, {name: three_agents(str(name), value) for name, value in values.items()})
    assert [credit.advantage[key("a", FIRST, n)] for n in (0, 1)] == [0.5, 0.25]


def test_a_clone_that_no_other_episode_has_gets_its_difference() -> None:
    alone = replace(three_agents("b", 0.0), agents=(agent(ROOT, turn((1,), (10,))),))
    one = group(three_agents("a", 1.0), alone)
    records = replayed({("a", FIRST, 0): 0.25, ("a", SECOND, 0): 1.0}, DEFAULT)
    assert advantages(assign(DiffLoo(), one, records), "a") == (1.0, 1.0, 0.75, 0.0)


def handed(name: str, base: float, first: float, second: float, weight: float = 1.0) -> EpisodeRecord:
    """Three agents of whom the clones were handed the documents A, and A and B; the return has parts of both."""
    root, one, two = three_agents(name, 0.0).agents
    agents = (root, replace(one, shared_context=("A",)), replace(two, shared_context=("B", "x")))
    terms = {"score": first + second, "base": base}
    parts = {"score": {"A": first, "B": second}}
    return replace(three_agents(name, 0.0), agents=agents, reward_terms=terms, parts=parts, weights={"score": weight})


def test_parts_by_hand() -> None:
    one = group(handed("a", 0.1, 1.0, 0.0), handed("b", 0.3, 0.0, 0.5), handed("c", -0.1, 0.5, 0.0))
    credit = assign(Parts(), one, {})
    # returns 1.1 .8 .4; rest .1 .3 -.1; A 1 0 .5; B 0 .5 0; each less the mean of the two others
    assert advantages(credit, "a") == pytest.approx((0.5, 0.5, 0.75 + 0.0, -0.25 + 0.0))
    assert advantages(credit, "b") == pytest.approx((0.05, 0.05, -0.75 + 0.3, 0.5 + 0.3))
    assert advantages(credit, "c") == pytest.approx((-0.55, -0.55, 0.0 - 0.3, -0.25 - 0.3))
    assert credit.diagnostics == {"clones_with_parts": 1.0}


def test_parts_weigh_what_their_term_weighs() -> None:
    plain, halved = (group(handed("a", 0, 1, 0, weight), handed("b", 0, 0, 1, weight)) for weight in (1.0, 0.5))
    for episode in "ab":
        twice = [2 * value for value in advantages(assign(Parts(), halved, {}), episode)]
        assert twice == list(advantages(assign(Parts(), plain, {}), episode)) != [0, 0, 0, 0]


def test_parts_and_what_is_no_part_add_up_to_leave_one_out() -> None:
    """Of a clone that was handed every document the credit is `rloo`; without parts, that of everybody."""
    episodes = [handed("a", 0.1, 1.0, 0.0), handed("b", 0.3, 0.0, 0.5)]
    every = [
        replace(e, agents=tuple(replace(agent, shared_context=("A", "B")) for agent in e.agents)) for e in episodes
    ]
    for one in (group(*every), group(*(replace(e, parts={}) for e in episodes))):
        found, plain = assign(Parts(), one, {}).advantage, assign(Rloo(), one, {}).advantage
        assert found == {name: pytest.approx(value) for name, value in plain.items()}


def priced(name: str, reward: float, root: tuple[float, float], first: float, second: float) -> EpisodeRecord:
    """Three agents whose turns add to the return besides."""
    turns = {ROOT: root, FIRST: (first,), SECOND: (second,)}
    terms = {"correct": reward, "judged": sum(root) + first + second}
    return replace(three_agents(name, 0.0), reward_terms=terms, by_turn={"judged": turns}, weights={"judged": 0.5})


def test_reward_to_go_by_hand() -> None:
    one = group(priced("a", 1.0, (0.2, 0.4), 0.6, 0.8), priced("b", 0.0, (0.0, 0.2), 0.2, 0.0))
    # returns 1 + 1 = 2 and 0 + .2 = .2; judgements weigh a half. The root's first turn moves everything: 2 - .2;
    # its last one leaves out .1 + .3 + .4 and 0 + .1 + 0; a clone the root's call and its sibling
    credit = assign(ToGo(), one, {})
    assert advantages(credit, "a") == pytest.approx((1.8, 1.2 - 0.1, 1.5 - 0.2, 1.6 - 0.1))
    assert advantages(credit, "b") == pytest.approx((-1.8, -1.1, -1.3, -1.5))


def test_reward_to_go_of_a_turn_that_nobody_else_has_is_leave_one_out() -> None:
    alone = replace(three_agents("b", 0.0), agents=(agent(ROOT, turn((1,), (10,))),))
    one = group(priced("a", 1.0, (0.2, 0.4), 0.6, 0.8), alone)
    assert advantages(assign(ToGo(), one, {}), "a") == pytest.approx((2.0,) * 4)
    plain = pair(1.0, 0.25)
    assert assign(ToGo(), plain, {}) == assign(Rloo(), plain, {}), "without terms by turn"


def test_wideseek_by_hand() -> None:
    # A = (1 - .5) / std(1, 0) = .7071; three agents; the root has 3 tokens, the clones 3 and 2; 12 x A / 3 / tokens
    credit = assign(WideSeek(std_floor=0.0, loss_denominator_tokens=12.0), pair(1.0, 0.0), {})
    weights = (4 / 3, 4 / 3, 4 / 3, 2.0)
    assert advantages(credit, "a") == pytest.approx((math.sqrt(0.5),) * 4)
    names = (key("a", ROOT), key("a", ROOT, 1), key("a", FIRST), key("a", SECOND))
    assert [credit.weight[name] for name in names] == pytest.approx(weights)
    tokens = {key("a", ROOT): 2, key("a", ROOT, 1): 1, key("a", FIRST): 3, key("a", SECOND): 2}
    whole = sum(tokens[name] * credit.weight[name] for name in tokens)
    assert whole == pytest.approx(12), "the weights of an episode add up to the constant"


def test_wideseek_leaves_out_agents_without_tokens() -> None:
    plain = pair(1.0, 0.0)
    first = plain.episodes[0]
    texts = []
    for member in first.agents:
        turns = member.turns
        if member.agent_id == FIRST:
            turns = tuple(
                replace(t, generation=replace(t.generation, token_ids=(), behavior_logprobs=())) for t in turns
            )
        texts.append(replace(member, turns=turns))
    credit = assign(
        WideSeek(loss_denominator_tokens=12.0), group(replace(first, agents=tuple(texts)), plain.episodes[1]), {}
    )
    assert key("a", FIRST) not in credit.weight
    assert credit.weight[key("a", SECOND)] == pytest.approx(12 / 2 / 2), "two agents have tokens, this one 2"


def test_gated_wraps_another_scheme() -> None:
    one = group(three_agents("a", 1.0, second_clone=Status.OUT_OF_TURNS), three_agents("b", 0.0))
    scheme = Gated(PlugIn("difference"))
    records = {name: three_agents(str(name), 0.25) for name in request_replays(scheme, one)}
    plain, gated = assign(Difference(), one, records), assign(scheme, one, records)
    assert gated.excluded == {key("a", SECOND)}
    assert {**gated.advantage, key("a", SECOND): plain.advantage[key("a", SECOND)]} == plain.advantage
    assert gated.diagnostics == {"gated_share": 0.25}
    blamed = {name: three_agents(str(name), 2.0) for name in records}
    assert not assign(scheme, one, blamed).excluded, "it keeps its blame"
    assert assign(Gated(PlugIn("difference"), sides="both"), one, blamed).excluded == {key("a", SECOND)}


def test_gated_looks_at_the_clones_of_replays_that_train_too() -> None:
    one, scheme = pair(1.0, 0.0), Gated(PlugIn("branches"), sides="both")
    records = {
        name: three_agents(str(name), 0.5, second_clone=Status.OUT_OF_TURNS) for name in request_replays(scheme, one)
    }
    credit = assign(scheme, one, records)
    trained = {(name.episode_id, name.agent_id) for name in credit.advantage if "/" in name.episode_id}
    assert {agent_id for _, agent_id in trained} == {FIRST}, "the second failed in every replay"
    assert credit.excluded == frozenset()
    assert credit.diagnostics["gated_share"] == 0.0


def test_a_document_that_was_handed_twice_counts_once() -> None:
    one = group(handed("a", 0.1, 1.0, 0.0), handed("b", 0.3, 0.0, 0.5))
    twice = group(
        *(
            replace(e, agents=(e.agents[0], replace(e.agents[1], shared_context=("A", "A")), e.agents[2]))
            for e in one.episodes
        )
    )
    assert assign(Parts(), twice, {}).advantage == assign(Parts(), one, {}).advantage


def test_gated_names_a_wrong_scheme() -> None:
    with pytest.raises(ConfigError, match="unknown credit scheme 'rlo'.*Did you mean 'rloo'"):
        make_assigner("gated", {"scheme": {"name": "rlo"}}, where="credit.options")
    with pytest.raises(ConfigError, match=r"scheme\.options\.std_floor is -1"):
        make_assigner("gated", {"scheme": {"name": "grpo", "options": {"std_floor": -1}}}, where="credit.options")
