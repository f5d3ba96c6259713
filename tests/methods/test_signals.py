"""Which reward, which credit: the methods of the field do on small cases what their papers say."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from records import TASK, agent, group, three_agents, turn
from test_job import config, crash_and_resume, play, rows, weights
from trivial import Choice

from selfcest_env.errors import ConfigError, RewardError
from selfcest_env.graders import Grade
from selfcest_env.plugin import HasState, PlugIn
from selfcest_env.record import EpisodeGroup, EpisodeRecord, Turn, read_episodes
from selfcest_env.reward import make_reward
from selfcest_env.text.terse import bucket
from selfcest_env.types import ROOT, AgentId, Fault, FinishReason, Limits, Outcome, Status, TurnKey
from selfcest_env.views import Observation
from selfcest_lab import LabConfig, run_lab
from selfcest_lab.exact import solve
from selfcest_lab.expectation import expected_gradient
from selfcest_lab.games import GAMES, Game
from selfcest_methods.adora import Adora
from selfcest_methods.aligned import Aligned
from selfcest_methods.d3s import D3s, find_most_varied
from selfcest_methods.frozen_clones import FrozenClones
from selfcest_methods.hapo import Hapo
from selfcest_methods.hypervolume import Hypervolume, compute_volume
from selfcest_methods.lagrangian import Lagrangian
from selfcest_methods.salt import Salt
from selfcest_training.config_file import load_config
from selfcest_training.credit import (
    Credit,
    CreditAssigner,
    Decision,
    Grpo,
    ReplayRecords,
    Rloo,
    TurnInternals,
    assign,
    assign_step,
    fit,
    make_assigner,
)
from selfcest_training.credit.testing import check_assigner
from selfcest_training.run.job import Job, JobId
from selfcest_training.stages.base import RewardSchedule, TaskMenu, TaskSampler
from selfcest_training.stages.registry import make_reward_schedule, make_task_sampler
from selfcest_training.stages.warmstart import play_demonstrations

RIGHT = Grade(1.0, True, True)
CLONES = (ROOT.child(0), ROOT.child(1))


def alone(name: str, reward: float, tokens: int = 2, text: str = "") -> EpisodeRecord:
    """A root that answers in one turn."""
    answered = turn((1, 2), (10,) * tokens)
    said = replace(answered, generation=replace(answered.generation, text=text))
    return EpisodeRecord(name, TASK, Limits(), 0, (agent(ROOT, said),), {"correct": reward})


def key(episode: str, agent_id: AgentId = ROOT, index: int = 0) -> TurnKey:
    return TurnKey(episode, agent_id, index)


# PARL


def test_parallel_pays_for_what_runs_side_by_side_and_no_more() -> None:
    term = make_reward("correct", parallel={"weight": 0.5, "full": 2}).terms["parallel"]
    two, none = three_agents("a", 1.0), alone("b", 1.0)
    one = replace(two, agents=tuple(replace(a, status=Status.ABSENT, turns=()) if a.agent_id == CLONES[1] else a
                                    for a in two.agents))  # fmt: skip
    assert [term(episode, RIGHT) for episode in (two, one, none)] == [0.5, 0.25, 0.0]
    assert make_reward("correct", parallel={"full": 1}).terms["parallel"](two, RIGHT) == 1.0, "bounded"
    with pytest.raises(ConfigError, match=r"reward\.parallel\.full is 0; expected a whole number >= 1"):
        make_reward("correct", parallel={"full": 0})


def test_parallel_looks_at_the_widest_call_at_any_depth() -> None:
    """Two calls in series of one clone each are no more than one; a clone's call of two is."""
    below = tuple(CLONES[0].child(i) for i in range(2))
    calls = [turn((1,), (9,), outcome=Outcome.DELEGATED, children=(clone,)) for clone in CLONES]
    agents = [agent(ROOT, *calls, turn((2,), (8,))), *(agent(clone, turn((3,), (7,))) for clone in CLONES)]
    series = EpisodeRecord("s", TASK, Limits(), 0, tuple(agents), {"correct": 1.0})
    term = make_reward("correct", parallel={}).terms["parallel"]
    assert term(series, RIGHT) == 0.5
    nested = agent(CLONES[0], turn((3,), (7,), outcome=Outcome.DELEGATED, children=below), turn((4,), (6,)))
    agents[1:2] = [nested, *(agent(clone, turn((5,), (5,))) for clone in below)]
    assert term(replace(series, agents=tuple(agents)), RIGHT) == 1.0


def test_finish_is_the_share_of_clones_that_answered() -> None:
    term = make_reward("correct", finish={"weight": 2.0}).terms["finish"]
    half = three_agents("a", 0.0, second_clone=Status.OUT_OF_TURNS)
    assert [term(e, RIGHT) for e in (three_agents("b", 0.0), half, alone("c", 1.0))] == [2.0, 1.0, 0.0]
    gone = replace(half.agents[2], status=Status.ABSENT, turns=())
    assert term(replace(half, agents=(*half.agents[:2], gone)), RIGHT) == 2.0, "who was left out did not start"


def test_the_critical_path_is_a_price_of_the_token_cost() -> None:
    term = make_reward("correct", path={"name": "token_cost", "tokens": "critical_path", "price": 1.0, "scale": 1.0})
    assert term.terms["path"](three_agents("a", 0.0), RIGHT) == -(2 + 3 + 1), "the longer clone alone"


def test_frozen_clones_join_in_after_so_many_steps() -> None:
    scheme, groups = FrozenClones(PlugIn("rloo"), steps=2), [group(three_agents("a", 1.0), three_agents("b", 0.0))]
    clones = {key(name, clone) for name in "ab" for clone in CLONES}
    for _ in range(2):
        credit = assign(scheme, groups[0], {})
        assert credit.excluded == clones
        roots = {key(name, ROOT, i): sign for name, sign in (("a", 1.0), ("b", -1.0)) for i in (0, 1)}
        assert credit.advantage == roots
        fit(scheme, groups)
    assert assign(scheme, groups[0], {}) == Rloo().assign(groups[0], {})
    other = FrozenClones(PlugIn("rloo"), steps=2)
    other.load_state_dict(scheme.state_dict())
    assert assign(other, groups[0], {}).excluded == frozenset()


# Schedules


DEAR, CHEAP, CHEAP_AND_RIGHT = alone("d", 1.0, 298), alone("c", 0.0, 98), alone("r", 1.0, 98)


def spending(share: float) -> EpisodeGroup:
    """A hundred episodes: a share spends 300 tokens and is right, the others 100, right in six of ten."""
    dear = round(100 * share)
    right = round(0.6 * (100 - dear))
    return group(*[DEAR] * dear, *[CHEAP_AND_RIGHT] * right, *[CHEAP] * (100 - dear - right))


def bandit(schedule: RewardSchedule, steps: int, gain: Callable[[Mapping[str, float]], float]) -> list[float]:
    """A policy that takes the dear arm with the probability sigmoid(gain of its return / temperature)."""
    shares = []
    for step in range(steps):
        share = 1 / (1 + math.exp(-gain(schedule.weights(step)) / 0.05))
        schedule.observe(step, [spending(share)])
        shares.append(share)
    return shares


def test_a_multiplier_settles_where_the_bound_on_tokens_holds() -> None:
    """The dear arm is worth 0.4 more and costs 200 tokens at 0.001 each: both arms are equal at a multiplier of 2."""
    schedule = Lagrangian("token_cost", "total_tokens", at_most=200, rate=0.5, proportional=0.5, start=0.0)
    shares = bandit(schedule, 120, lambda w: 0.4 - 0.001 * 200 * w["token_cost"])
    assert shares[0] > 0.99
    assert schedule.weights(120)["token_cost"] == pytest.approx(2.0, abs=0.05)
    assert np.mean(shares[-20:]) == pytest.approx(0.5, abs=0.02), "200 tokens on average"


def test_a_multiplier_buys_no_more_accuracy_than_was_asked_for() -> None:
    """The arms are right in 1 and 0.6: for 0.8 half of each is needed, and a right answer's weight settles at 0.5."""
    schedule = Lagrangian("correct", "correct", at_least=0.8, rate=0.2, proportional=0.2, start=2.0)
    shares = bandit(schedule, 150, lambda w: 0.4 * w["correct"] - 0.2)
    assert schedule.weights(150)["correct"] == pytest.approx(0.5, abs=0.05)
    assert np.mean(shares[-20:]) == pytest.approx(0.5, abs=0.03)


def test_a_bound_that_always_holds_costs_nothing_and_one_that_cannot_is_clamped() -> None:
    slack, tight = (Lagrangian("token_cost", "total_tokens", at_most=b, most=3.0) for b in (1000, 10))
    for schedule in (slack, tight):
        bandit(schedule, 40, lambda w: 0.0)
    assert slack.weights(40) == {"token_cost": 0.0}
    assert tight.weights(40) == {"token_cost": 3.0}


def test_the_proportional_part_is_of_the_last_step_alone() -> None:
    schedule = Lagrangian("c", "total_tokens", at_most=100, rate=0.1, proportional=1.0, start=1.0)
    assert schedule.weights(0) == {"c": 1.0}
    schedule.observe(0, [group(alone("a", 1.0, 148)), group(alone("b", 1.0, 148))])
    assert schedule.weights(1)["c"] == pytest.approx(1.0 + 0.1 * 0.5 + 1.0 * 0.5)
    schedule.observe(0, [group(alone("c", 1.0, 28), alone("d", 1.0, 28))])  # another round of the step
    assert schedule.weights(1)["c"] == pytest.approx(1.0 + 0.1 * -0.1 - 0.1), "the mean of both"
    schedule.observe(1, [group(alone("e", 1.0, 98))])
    assert schedule.weights(2)["c"] == pytest.approx(1.0 - 0.01)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"term": "a", "measure": "b"}, "at_most is None and at_least is None; set one of the two"),
        ({"term": "a", "measure": "b", "at_most": 1, "at_least": 1}, "set one of the two"),
        ({"term": "a", "measure": "b", "at_most": 1, "start": 20.0}, "start is 20, above most = 10"),
        ({"term": "a", "measure": "b", "at_most": 1, "rate": 0}, "rate is 0; expected a finite number > 0"),
        ({"measure": "b", "at_most": 1}, "term is missing"),
    ],
)
def test_a_controller_that_cannot_be_right_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=rf"rl\.options.*{words}"):
        make_reward_schedule(PlugIn("lagrangian", options), "rl")


def test_what_is_measured_must_be_there() -> None:
    schedule = Lagrangian("token_cost", "total_token", at_most=1)
    with pytest.raises(ConfigError, match="measures 'total_token'.*Did you mean 'total_tokens'"):
        schedule.observe(0, [group(alone("a", 1.0))])


def test_volumes_by_hand_and_by_counting() -> None:
    assert compute_volume([]) == 0
    assert compute_volume([(0.5, 0.5)]) == 0.25
    assert compute_volume([(0.5, 0.5), (0.25, 1.0), (0.1, 0.4)]) == 0.375
    points = np.random.default_rng(0).random((6, 3)).round(1)
    grid = np.stack(np.meshgrid(*[np.arange(0.05, 1, 0.1)] * 3), -1).reshape(-1, 3)
    inside = (grid[:, None] < points[None]).all(-1).any(-1)
    assert compute_volume([tuple(point) for point in points]) == pytest.approx(inside.mean())


def test_weights_grow_while_the_frontier_moves() -> None:
    schedule = Hypervolume({"correct": 2.0, "token_cost": 1.0}, {"correct": 0.0, "total_tokens": 200})
    assert schedule.weights(0) == {"correct": 2.0, "token_cost": 1.0}, "as in the source, the first has factor 1"
    gains = []
    for step, (reward, tokens) in enumerate([(1.0, 98), (1.0, 98), (1.0, 48), (0.0, 8), (1.0, 298)]):
        schedule.observe(step, [group(alone("a", reward, tokens))])
        gains.append(math.atanh((schedule.weights(step + 1)["token_cost"] - 0.5) / 1.5))
    assert gains == pytest.approx([0.5, 0.0, 0.25, 0.0, 0.0])
    assert schedule.state_dict()["front"] == [[1.0, 0.5], [1.0, 0.75]]
    wide = Hypervolume({"correct": 2.0}, {"correct": 0.0, "total_tokens": 200}, scale=3.0)
    wide.observe(0, [group(alone("a", 1.0, 98))])
    assert wide.weights(1)["correct"] == pytest.approx(2 * (0.5 + 1.5 * math.tanh(3 * 0.5)))
    with pytest.raises(ConfigError, match=r"reference\.total_tokens is 0; expected a number > 0"):
        Hypervolume({"a": 1.0}, {"total_tokens": 0})


def tilted(prior: Sequence[float], reward: Sequence[float], beta: float) -> Any:
    """The policy of four episodes that maximises E[reward] - beta KL(policy || prior)."""
    weight = np.array(prior) * np.exp(np.array(reward) / beta)
    return weight / weight.sum()


PRIOR = np.array([0.1, 0.2, 0.3, 0.4])
GAIN, HELPS, MISLEADS = np.array([1.0, 0.0, 1.0, 0.0]), np.array([0.9, 0.1, 0.3, 0.2]), np.array([0.0, 1.0, 0.1, 0.8])


def test_the_bi_level_gradient_is_a_covariance() -> None:
    """d E[primary] / d weight through the inner optimum, by central differences."""

    def outer(helps: float, misleads: float) -> float:
        return float(tilted(PRIOR, GAIN + helps * HELPS + misleads * MISLEADS, 0.5) @ GAIN)

    policy, h = tilted(PRIOR, GAIN + 0.7 * HELPS + 0.4 * MISLEADS, 0.5), 1e-5
    for term, slope in (
        (HELPS, (outer(0.7 + h, 0.4) - outer(0.7 - h, 0.4)) / (2 * h)),
        (MISLEADS, (outer(0.7, 0.4 + h) - outer(0.7, 0.4 - h)) / (2 * h)),
    ):
        covariance = policy @ (GAIN * term) - (policy @ GAIN) * (policy @ term)
        assert slope == pytest.approx(covariance / 0.5, rel=1e-6)


def blended(name: str, correct: float, **terms: float) -> EpisodeRecord:
    episode = alone(name, correct)
    return replace(episode, reward_terms={"correct": correct, **terms})


def test_weights_follow_correlations_within_groups_by_hand() -> None:
    """Primary +-1/2; the term +-1/2 in the first group and 3/2 the other way round in the second."""
    schedule = Aligned({"hint": 1.0, "flat": 0.5}, rate=0.2, shrink=0.5)
    assert schedule.weights(0) == {"correct": 1.0, "hint": 1.0, "flat": 0.5}
    schedule.observe(0, [group(blended("a", 1, hint=1, flat=7), blended("b", 0, hint=0, flat=7))])
    assert schedule.weights(1)["hint"] == pytest.approx(1 + 0.2 * (1 - 0.5))
    assert schedule.weights(1)["flat"] == pytest.approx(0.5 - 0.2 * 0.25), "nothing to say: it shrinks"
    schedule.observe(0, [group(blended("c", 1, hint=5, flat=9), blended("d", 0, hint=8, flat=9))])
    sums = (0.5 - 1.5, 0.5 + 0.5, 0.5 + 4.5)
    after = 1 + 0.2 * (sums[0] / math.sqrt(sums[1] * sums[2]) - 0.5)
    assert schedule.weights(1)["hint"] == pytest.approx(after), "both rounds; how far groups are apart is nothing"
    schedule.observe(1, [group(blended("e", 1, hint=9, flat=0), blended("f", 1, hint=0, flat=0))])
    assert schedule.weights(2)["hint"] == pytest.approx(after - 0.2 * 0.5 * after), "all right: nothing to learn"


def test_groups_that_say_nothing_of_the_primary_term_make_no_correlation_smaller() -> None:
    says = group(blended("a", 1, hint=1), blended("b", 0, hint=0))
    alike = [group(blended("c", right, hint=9), blended("d", right, hint=0)) for right in (0.0, 0.1, 1.0)]
    for groups in ([says], [says, *alike], [*alike, says]):
        schedule = Aligned({"hint": 1.0}, rate=0.2)
        schedule.observe(0, groups)
        assert schedule.weights(1)["hint"] == pytest.approx(1.2)
    schedule = Aligned({"hint": 1.0}, rate=0.2)
    schedule.observe(0, alike)
    assert schedule.weights(1)["hint"] == 1.0


def test_what_helps_gains_weight_and_what_misleads_loses_it() -> None:
    """Groups of a policy that has answered to its weights; the designer trusted the wrong term, and loses by it."""
    rng, schedule, rates = np.random.default_rng(0), Aligned({"helps": 0.5, "misleads": 2.0}, rate=0.1), []
    for step in range(60):
        weights = schedule.weights(step)
        policy = tilted(PRIOR, GAIN + weights["helps"] * HELPS + weights["misleads"] * MISLEADS, 0.5)
        rates.append(float(policy @ GAIN))
        groups = []
        for _ in range(8):
            drawn = rng.choice(4, size=8, p=policy)
            groups.append(
                group(*(blended(f"e{k}", GAIN[i], helps=HELPS[i], misleads=MISLEADS[i]) for k, i in enumerate(drawn)))
            )
        schedule.observe(step, groups)
    assert schedule.weights(60) == {"correct": 1.0, "helps": pytest.approx(2.0, abs=0.2), "misleads": 0.0}
    alone_rate = float(tilted(PRIOR, GAIN, 0.5) @ GAIN)
    assert rates[0] < 0.5 < alone_rate < np.mean(rates[-10:]), "and is right more often than without any"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"terms": {}}, "terms is"),
        ({"terms": {"correct": 1.0}}, "terms has 'correct', the primary term"),
        ({"terms": {"hint": 3.0}}, "terms.hint is 3, above most = 2"),
        ({"terms": {"hint": -1.0}}, "hint is -1"),
        ({"terms": {"hint": 1.0}, "rate": 0}, "rate is 0"),
    ],
)
def test_an_alignment_that_cannot_be_right_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=rf"rl\.options.*{words}"):
        make_reward_schedule(PlugIn("aligned", options), "rl")


def test_a_heuristic_that_the_reward_lacks_is_named() -> None:
    with pytest.raises(ConfigError, match="measures 'hnt'.*Did you mean 'hint'"):
        Aligned({"hnt": 1.0}).observe(0, [group(blended("a", 1, hint=1))])


@pytest.mark.parametrize(
    "make",
    [
        lambda: Aligned({"correct": 0.5}, primary="total_tokens", shrink=0.2),
        lambda: Lagrangian("c", "total_tokens", at_most=100, proportional=0.1),
        lambda: Hypervolume({"c": 1.0}, {"correct": 0.0, "total_tokens": 900, "critical_path_tokens": 900}),
    ],
)
def test_a_schedule_goes_on_from_its_state(make: Callable[[], Any]) -> None:
    def told(schedule: Any, steps: Sequence[int]) -> Any:
        for step in steps:
            schedule.observe(step, [spending(0.9 - 0.1 * step)])
        return schedule

    whole, half, other = told(make(), range(6)), told(make(), range(3)), make()
    other.load_state_dict(half.state_dict())
    assert told(other, range(3, 6)).weights(6) == whole.weights(6) != half.weights(6)


# Credit


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "scheme",
    [
        FrozenClones(), Salt(), Decision(), Decision(average=False), Adora(term="score"), Hapo(),
        D3s(PlugIn("rloo"), across="group"), Hapo(std_floor=0.0, limit=0.5), D3s(),
        *(pytest.param(scheme, marks=SLOW) for scheme in (
            FrozenClones(PlugIn("coma"), steps=1), Salt(PlugIn("branches"), history=1, thoughts=True),
            D3s(PlugIn("branches", {"samples": 2})),
        )),
    ],
    ids=str,
)  # fmt: skip
def test_each_passes_the_conformance_suite(scheme: CreditAssigner) -> None:
    check_assigner(scheme, seeds=20)


def unheeded() -> Game:
    """As `words`, but the root's last turn has no choice."""

    def menu(observation: Observation) -> Sequence[str]:
        if not observation.exchanges:
            return GAMES["words"].menu(observation)
        (reply,) = observation.exchanges[0].replies
        return [f"<ans>{reply.text}<end>"]

    return replace(GAMES["words"], menu=menu)


def bias(scheme: CreditAssigner, game: Game) -> float:
    solved = solve(game)
    expected = expected_gradient(scheme, solved, group_size=2)
    assert expected is not None
    return float(np.linalg.norm(expected - solved.gradient) / np.linalg.norm(solved.gradient))


@pytest.mark.slow
def test_salt_is_biased_where_later_turns_heed_what_it_merges_and_nowhere_else() -> None:
    salt = Salt(PlugIn("rloo"))
    assert bias(salt, GAMES["words"]) == pytest.approx(0.0805, abs=1e-4), "as docs/lab.md says"
    assert bias(Salt(PlugIn("rloo"), thoughts=True), GAMES["words"]) < 1e-9, "equal texts, equal gradients"
    assert bias(salt, unheeded()) < 1e-9
    assert bias(salt, GAMES["dummy"]) < 1e-9, "where nobody thinks it is what it wraps"


def test_salt_by_hand() -> None:
    """The clone that took the same step in both shares its credit; the root's words differ, and what it was told."""
    first, other = three_agents("a", 1.0), three_agents("b", 0.0)
    told = replace(other.agents[2], turns=(turn((8,), (16, 17)),))
    other = replace(other, agents=(*other.agents[:2], told))
    credit = assign(Salt(PlugIn("rloo")), group(first, other), {})
    assert credit.advantage[key("a", CLONES[0])] == credit.advantage[key("b", CLONES[0])] == 0.0
    assert credit.advantage[key("a", CLONES[1])] == 1.0, "another prompt is another state"
    assert credit.diagnostics["shared_steps"] == 6 / 8
    changed = replace(first.agents[0].turns[0], generation=replace(first.agents[0].turns[0].generation, text="hm"))
    thought = replace(
        first, agents=(replace(first.agents[0], turns=(changed, *first.agents[0].turns[1:])), *first.agents[1:])
    )
    for thoughts, own in ((False, 0.0), (True, 1.0)):
        credit = assign(Salt(PlugIn("rloo"), thoughts=thoughts), group(thought, three_agents("b", 0.0)), {})
        assert credit.advantage[key("a")] == own


def test_salt_looks_back_as_far_as_it_is_told() -> None:
    episodes = [three_agents("a", 1.0), three_agents("b", 0.0)]
    root = episodes[1].agents[0]
    episodes[1] = replace(episodes[1], agents=(replace(root, turns=(turn((9,), (10, 11), outcome=Outcome.DELEGATED,
                          children=CLONES), root.turns[1])), *episodes[1].agents[1:]))  # fmt: skip
    for history, own in ((None, 1.0), (1, 0.0), (2, 1.0)):
        credit = assign(Salt(PlugIn("rloo"), history=history), group(*episodes), {})
        assert credit.advantage[key("a", ROOT, 1)] == own


def test_the_decision_alone_gets_the_difference_between_the_two_choices() -> None:
    called = [three_agents("a", 1.0), three_agents("b", 0.5)]
    answered = [alone("c", 0.0, 3), alone("d", 0.5, 3)]
    credit = assign(Decision(), group(*called, *answered), {})
    own = assign(Rloo(), group(*called, *answered), {}).advantage
    mean = (own[key("a")] + own[key("b")]) / 2  # type: ignore[operator]
    assert credit.advantage == pytest.approx({key("a"): mean, key("b"): mean, key("c"): -mean, key("d"): -mean})
    assert credit.diagnostics["gap"] == pytest.approx(2 * mean)
    assert key("a", ROOT, 1) in credit.excluded
    assert {k.agent_id for k in credit.excluded} == {ROOT, *CLONES}
    each = assign(Decision(average=False), group(*called, *answered), {}).advantage
    assert each == {key(name): own[key(name)] for name in "abcd"}
    held = assign(Decision(holds_others=True), group(*called, *answered), {})
    assert not held.excluded
    assert held.advantage == {k: credit.advantage.get(k, 0.0) for k in own}
    same = assign(Decision(), group(*answered), {})
    assert list(same.advantage.values()) == pytest.approx([0.0, 0.0]), "nobody chose otherwise"
    assert "gap" not in same.diagnostics


@pytest.mark.parametrize(
    ("fault", "limits", "delegates"),
    [
        (Fault.OVER_BUDGET, Limits(), True),
        (Fault.TOO_MANY_CLONES, Limits(), True),
        (Fault.TOO_MANY_READS, Limits(), False),
        (Fault.UNKNOWN_KEY, Limits(max_depth=0), False),
        (Fault.NOT_ALLOWED, Limits(max_reads=0), False),
    ],
)
def test_a_refused_call_is_a_decision_to_delegate_and_a_refused_read_is_none(
    fault: Fault, limits: Limits, delegates: bool
) -> None:
    root = alone("c", 0.5, 3).root
    (first,) = root.turns
    refused = replace(first, facts=replace(first.facts, outcome=Outcome.REFUSED, fault=fault))
    odd = replace(alone("c", 0.5, 3), agents=(replace(root, turns=(refused, first)),), limits=limits)
    credit = assign(Decision(), group(three_agents("a", 1.0), alone("b", 0.0, 3), odd), {})
    like, unlike = ("a", "b") if delegates else ("b", "a")
    assert credit.advantage[key("c")] == credit.advantage[key(like)] != credit.advantage[key(unlike)]


def test_adora_weighs_groups_by_the_length_of_right_and_wrong_episodes() -> None:
    def factor(*episodes: EpisodeRecord, **options: Any) -> float:
        scheme, whole = Adora(PlugIn("rloo"), **options), group(*episodes)
        found, own = assign(scheme, whole, {}).advantage, assign(Rloo(), whole, {}).advantage
        (ratio,) = {round(value / own[k], 9) for k, value in found.items() if own[k]}  # type: ignore[operator]
        return ratio

    assert factor(alone("a", 1.0, 9), alone("b", 0.0, 5)) == 1.0
    assert factor(alone("a", 1.0, 5), alone("b", 0.0, 9)) == 0.1
    assert factor(alone("a", 1.0, 5), alone("b", 0.0, 5), factor=0.5) == 0.5
    cut = replace(alone("b", 0.0, 9), agents=(agent(ROOT, _cut(turn((1,), (2,) * 9))),))
    assert factor(alone("a", 1.0, 5), cut) == 1.0, "a wrong episode that was cut says nothing"
    tree = three_agents("a", 1.0)  # 8 tokens, 6 of them one after the other
    assert factor(tree, alone("b", 0.0, 7)) == 1.0
    assert factor(tree, alone("b", 0.0, 7), length="critical_path_tokens") == 0.1
    right, wrong = alone("r", 1.0, 9), [alone(f"w{k}", 0.0, 5) for k in range(3)]
    hard: dict[str, Any] = {"rule": "difficulty", "gain": 2.0}
    assert factor(right, *wrong, **hard) == 2.0, "one of four"
    assert factor(right, alone("s", 1.0), *wrong[:2], **hard) == 2.0, "a half, and no longer than wrong ones"
    assert factor(right, alone("s", 1.0), wrong[0], **hard) == 0.1, "two of three"
    assert factor(right, alone("s", 1.0), wrong[0], at_most=0.7, **hard) == 2.0
    assert factor(alone("h", 0.0), replace(wrong[0], reward_terms={"correct": -1.0}), **hard) == 0.1, "hopeless"
    with pytest.raises(RewardError, match="term is 'right', but the reward has no such term.*It has correct"):
        assign(Adora(term="right"), group(tree, tree), {})


def _cut(cut: Turn) -> Turn:
    return replace(cut, generation=replace(cut.generation, finish_reason=FinishReason.LENGTH))


# What looks at entropies


def seen(
    *groups: EpisodeGroup, entropy: Callable[[TurnKey, int], float], moved: float = 0.0
) -> dict[TurnKey, TurnInternals]:
    """Entropies by turn and token; log-probs as they were sampled, `moved` by what the learner has learned since."""
    found = {}
    for episode in (episode for one in groups for episode in one.episodes):
        for name, of in episode.turns():
            logprobs = np.array(of.generation.behavior_logprobs, dtype=np.float32) + moved
            entropies = np.array([entropy(name, i) for i in range(len(logprobs))], dtype=np.float32)
            found[name] = TurnInternals(np.zeros(1, np.float32), np.zeros(1, np.float32), logprobs, entropies)
    return found


def credit_of(scheme: CreditAssigner, *groups: EpisodeGroup, **what: Any) -> list[Credit]:
    assert scheme.internals
    nothing: Sequence[ReplayRecords] = [{}] * len(groups)
    return assign_step(scheme, groups, nothing, seen(*groups, **what))


def test_d3s_keeps_the_rollouts_that_vary_most_and_whole_trees_of_them() -> None:
    """Returns 1, .5, .5, 0 and four times 1: of eight the two that vary most are the first's best and worst."""
    episodes = [three_agents(f"a{i}", reward) for i, reward in enumerate((1.0, 0.5, 0.5, 0.0))]
    varied, equal = group(*episodes), group(*(three_agents(f"b{i}", 1.0) for i in range(4)))
    first, second = credit_of(D3s(PlugIn("rloo"), rollouts=0.25, tokens=1.0), varied, equal, entropy=lambda *_: 1.0)
    assert {k.episode_id for k in first.advantage} == {"a0", "a3"}
    assert first.excluded == {k for e in episodes[1:3] for k, _ in e.turns()}
    assert (first.diagnostics["kept_rollouts"], second.diagnostics["kept_rollouts"]) == (0.5, 0.0)
    assert not second.advantage
    own = assign(Rloo(), varied, {}).advantage
    assert first.advantage == {k: own[k] for k in first.advantage}
    within = credit_of(
        D3s(PlugIn("rloo"), rollouts=0.5, tokens=1.0, across="group"), varied, equal, entropy=lambda *_: 1.0
    )
    assert [len({k.episode_id for k in one.advantage}) for one in within] == [2, 2]


def test_d3s_keeps_tokens_of_large_advantage_and_entropy_and_relaxes_to_all() -> None:
    whole = group(three_agents("a", 1.0), three_agents("b", 0.0))
    scheme = D3s(PlugIn("rloo"), rollouts=1.0, tokens=0.25, steps=2)

    def entropy(name: TurnKey, token: int) -> float:
        return 1.0 if name.agent_id == CLONES[0] and token < 2 else 0.1

    (credit,) = credit_of(scheme, whole, entropy=entropy)
    assert credit.advantage[key("a", CLONES[0])] == (1.0, 1.0, 0.0)
    assert credit.advantage[key("b", CLONES[0])] == (-1.0, -1.0, 0.0)
    assert credit.advantage[key("a")] == (0.0, 0.0)
    assert not credit.excluded
    assert credit.diagnostics["kept_tokens"] == 0.25
    for _ in range(2):
        fit(scheme, [whole], seen(whole, entropy=entropy))
    (credit,) = credit_of(scheme, whole, entropy=entropy)
    assert credit.advantage == assign(Rloo(), whole, {}).advantage, "relaxed to all"
    other = D3s(PlugIn("rloo"), rollouts=1.0, tokens=0.25, steps=2)
    other.load_state_dict(scheme.state_dict())
    assert credit_of(other, whole, entropy=entropy) == [credit]


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_no_subset_varies_more(share: float) -> None:
    values = list(np.random.default_rng(3).standard_normal(8))
    best = max(np.var([values[i] for i in places]) for places in combinations(range(8), int(8 * share)))
    assert np.var([values[i] for i in find_most_varied(values, share)]) == pytest.approx(best)
    assert find_most_varied([], share) == set()


def test_hapo_s_average_is_over_tokens() -> None:
    """Returns 1 of 8 tokens and 0 of 2: the mean is .8, and the population's std .4."""
    whole = group(three_agents("a", 1.0), alone("b", 0.0, 2))
    credit = Hapo(epsilon=0.0).assign(whole, {})
    assert credit.advantage[key("a", CLONES[0])] == pytest.approx(0.5)
    assert credit.advantage[key("b")] == pytest.approx(-2.0)
    assert Hapo(epsilon=0.0, limit=1.5).assign(whole, {}) == Grpo().assign(whole, {}), "too large: falls back"
    with pytest.raises(ConfigError, match="group of a has 1 episode"):
        Hapo().assign(group(alone("a", 1.0)), {})


def test_hapo_redistributes_by_entropy_and_by_how_far_the_learner_has_moved() -> None:
    whole = group(alone("a", 1.0, 4), alone("b", 0.0, 4))
    logs = [-4.0, -2.0, 0.0, 1.0]
    scheme = Hapo(epsilon=0.0, pivot=0.7)  # the nearest of eight is ln H = 0
    what: dict[str, Any] = {"entropy": lambda name, i: math.exp(logs[i])}
    (near,) = credit_of(scheme, whole, **what)
    assert near.advantage[key("a")] == pytest.approx((0.0, 0.5, 1.0, 1.0), abs=1e-6), "low entropies get less"
    (moved,) = credit_of(scheme, whole, moved=0.5, **what)
    assert moved.advantage[key("b")] == pytest.approx((-1.0, -1.0, -1.0, -2.0), abs=1e-6), "high ones get more"
    (plain,) = credit_of(scheme, whole, entropy=lambda *_: 0.3)
    assert plain.advantage[key("a")] == pytest.approx((1.0,) * 4)


def entropy_after_training(beta: float, seed: int) -> float:
    """Train a policy of six tokens, each right or wrong, by the real scheme; return the sum of their entropies."""
    rng = np.random.default_rng(seed)
    logits = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 2.5])  # of the right id; the first token is the least certain
    scheme = Hapo(beta=beta)
    for _ in range(60):
        right = 1 / (1 + np.exp(-logits))
        entropies = -(right * np.log(right) + (1 - right) * np.log(1 - right))
        choices = rng.random((8, 6)) < right
        episodes = [alone(f"e{k}", float(all(chosen)), 6) for k, chosen in enumerate(choices)]
        (credit,) = credit_of(scheme, group(*episodes), entropy=lambda _, i, now=entropies: now[i])
        advantages = np.array([credit.advantage[key(episode.episode_id)] for episode in episodes])
        logits = logits + 0.2 * np.mean(advantages * (choices - right), axis=0)
    right = 1 / (1 + np.exp(-logits))
    return float(-np.sum(right * np.log(right) + (1 - right) * np.log(1 - right)))


@pytest.mark.slow
def test_entropy_falls_more_slowly_where_hapo_redistributes() -> None:
    """Equal seeds, so that the difference is of the redistribution alone."""
    gains = [entropy_after_training(1.0, seed) - entropy_after_training(0.0, seed) for seed in range(6)]
    assert min(gains) > 0, gains


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [D3s(PlugIn("rloo")), Hapo()], ids=str)
def test_the_laboratory_sees_what_entropies_cost(scheme: CreditAssigner) -> None:
    (cell,) = run_lab([scheme], LabConfig(games=("trio",), num_groups=400)).cells
    assert not cell.exact
    assert cell.bias.value > cell.bias.half_width
    assert cell.evidence is None, "it promises nothing"


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("d3s", {"rollouts": 0.0}, "rollouts is 0"),
        ("d3s", {"across": "batch"}, "across is 'batch'; expected one of step, group"),
        ("salt", {"history": 0}, "history is 0"),
        ("hapo", {"pivot": 2.0}, "pivot is 2"),
        ("hapo", {"beta": 1.5}, "beta is 1.5"),
        ("adora", {"length": "tokens"}, "length is 'tokens'"),
        ("adora", {"rule": "hard"}, "rule is 'hard'; expected one of length, difficulty"),
        ("adora", {"at_most": 1.5}, "at_most is 1.5"),
        ("adora", {"at_most": 0.25}, "at_most is 0.25, which changes nothing: rule is length; leave it out"),
        ("adora", {"rule": "difficulty", "length": "turns"}, "length is 'turns', which changes nothing"),
        ("decision", {"scheme": {"name": "gae"}}, "scheme is 'gae', which learns"),
        ("frozen_clones", {"scheme": {"name": "d3s"}}, "scheme is 'd3s', which learns, needs internals of the policy"),
        ("frozen_clones", {"steps": -1}, "steps is -1"),
    ],
)
def test_options_that_cannot_be_right_are_named(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_assigner(name, options, where="credit.options")


# Budgets

LIMITS = Limits(total_tokens=400, max_depth=1)


def menu(limits: Limits = LIMITS) -> TaskMenu:
    return TaskMenu({"choice": Choice()}, {"choice": 1.0}, 4, limits)


def drawn(sampler: TaskSampler, count: int = 200) -> list[int | None]:
    plans = sampler.propose(0, count, menu(), np.random.default_rng(0))
    assert {plan.num_rollouts for plan in plans} == {4}
    assert {replace(plan.limits, total_tokens=400) for plan in plans if plan.limits} == {LIMITS}, "all else stays"
    return [plan.limits.total_tokens if plan.limits else None for plan in plans]


def test_every_group_has_a_budget_of_its_own() -> None:
    found = drawn(make_task_sampler(PlugIn("budgets", {"totals": [100, 200, 400]}), "rl"))
    assert {total: found.count(total) > 50 for total in set(found)} == {100: True, 200: True, 400: True}
    ranged = drawn(make_task_sampler(PlugIn("budgets", {"between": [100, 400]}), "rl"))
    assert all(total is not None and 100 <= total <= 400 for total in ranged)
    below = sum(total is not None and total < 200 for total in ranged)
    assert 75 < below < 125, "as many in one doubling as in the next"
    assert drawn(make_task_sampler(PlugIn("budgets", {"between": [100, 100]}), "rl")) == [100] * 200


def test_tasks_are_those_of_the_sampler_inside_and_its_memory_is_kept() -> None:
    spec = {"name": "remembering:SparesTheEasy"}
    sampler, other = (make_task_sampler(PlugIn("budgets", {"totals": [100], "sampler": spec}), "rl") for _ in "ab")
    sampler.observe(0, [group(alone("a", 1.0), alone("b", 1.0))])
    (plan,) = sampler.propose(1, 1, menu(), np.random.default_rng(1))
    assert plan.num_rollouts == 3, "a group without variance takes one away"
    assert isinstance(sampler, HasState)
    assert isinstance(other, HasState)
    other.load_state_dict(sampler.state_dict())
    assert other.propose(1, 1, menu(), np.random.default_rng(1)) == [plan]
    alike = make_task_sampler(PlugIn("mixture"), "rl").propose(0, 1, menu(), np.random.default_rng(5))
    (budgeted,) = make_task_sampler(PlugIn("budgets", {"totals": [100]}), "rl").propose(
        0, 1, menu(), np.random.default_rng(5)
    )
    assert budgeted == replace(alike[0], limits=replace(LIMITS, total_tokens=100)), "the budget is drawn after the task"


TOKENS = {"start": 9, "end": 5, "steps": 2}
AROUND_V0 = {**TOKENS, "limit": "max_turns", "sampler": {"name": "v0"}}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, r"totals is \[\] and between is None; set one of the two"),
        ({"totals": [10], "between": [1, 2]}, "set one of the two"),
        ({"between": [20, 10]}, r"between is \[20, 10\]; expected the smaller number first"),
        ({"totals": [0]}, r"totals\[0\] is 0"),
        ({"totals": [10], "sampler": {"name": "mixtur"}}, "unknown task sampler 'mixtur'"),
        ({"totals": [10], "sampler": {"name": "knapsack"}}, "inner sampler 'knapsack' allocates rollouts"),
        (
            {"totals": [10], "sampler": {"name": "curriculum", "options": AROUND_V0}},
            "'v0' allocates rollouts",
        ),
        ({"totals": [10], "sampler": {"name": "budgets", "options": {"totals": [9]}}}, "'budgets' sets total_tokens"),
        ({"totals": [10], "sampler": {"name": "curriculum", "options": TOKENS}}, "'curriculum' sets total_tokens"),
    ],
)
def test_budgets_that_cannot_be_right_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_task_sampler(PlugIn("budgets", options), "rl")


@pytest.mark.parametrize(
    ("total", "words"), [(81, "draws total_tokens = 81, above limits.total_tokens = 80"), (3, "answer_reserve")]
)
def test_a_budget_that_the_variant_cannot_have_stops_before_any_work(tmp_path: Path, total: int, words: str) -> None:
    sampler = {"name": "budgets", "options": {"totals": [40, total]}}
    with pytest.raises(ConfigError, match=words):
        Job(config(tmp_path, variants__delegating__rl__task_sampler=sampler), JobId("delegating", 0), lambda *_: None)


# Recipes

CONFIGS = Path(__file__).parents[2] / "training" / "configs"


@pytest.mark.parametrize(("name", "variant"), [("parl", "parl"), ("budgets", "deciding")])
def test_recipes_are_built_and_their_warm_starts_can_be_shown(name: str, variant: str) -> None:
    spec = load_config(CONFIGS / f"{name}.yaml")
    assert tuple(spec.variants) == (variant,)
    job = Job(spec, JobId(variant, 0), lambda *_: None)
    limits = spec.limits_of(variant)
    openings = set()
    for index, phase in enumerate(job.variant.warmstart.phases):
        small = replace(job.variant.warmstart, pool_tokens=1000)
        pool = play_demonstrations(job.language, limits, job.reward, job.families, phase, 0, index, small)
        openings |= {job.language.codec.decode(one.token_ids[:2].tolist()) for one in pool if one.agent_id == ROOT}
    if name == "budgets":
        totals = job.stages.tasks.options.totals  # type: ignore[attr-defined]
        assert openings == {f"<root>[{bucket(total)}]" for total in totals}, "RL meets no budget for the first time"
        assert len(openings) == len(totals)
    else:
        schedule = job.stages.rewards
        assert [schedule.weights(step)["parallel"] for step in (0, 30, 60, 99)] == [1.0, 0.5, 0.0, 0.0]
        assert job.stages.credit.name == "frozen_clones"
        assert {"parallel", "finish", "token_cost", "correct"} <= job.reward.terms.keys()


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 2])
def test_a_killed_run_with_all_of_it_resumes_to_the_same_end(tmp_path: Path, lag: int) -> None:
    """Budgets, a controller and clones that are frozen for three of six steps, on policy and with rollouts ahead."""
    rl = "variants__delegating__rl"
    changes: dict[str, Any] = {
        f"{rl}__steps": 6,
        f"{rl}__max_staleness": lag,
        f"{rl}__task_sampler": {"name": "budgets", "options": {"totals": [40, 60, 80]}},
        f"{rl}__reward_schedule": {
            "name": "lagrangian",
            "options": {"term": "token_cost", "measure": "total_tokens", "at_most": 30, "proportional": 0.2},
        },
        f"{rl}__credit": {"name": "frozen_clones", "options": {"steps": 3, "scheme": {"name": "rloo"}}},
        "log_groups": 9,
    }
    if lag:
        changes["sampler"] = {"name": "transformers", "options": {"dtype": "float32"}}
    whole, spec = play(config(tmp_path / "whole", **changes)), config(tmp_path / "killed", **changes)
    resumed = crash_and_resume(spec)
    assert torch.equal(weights(resumed), weights(whole))
    records = list(read_episodes(whole.folder / "episodes.jsonl"))
    by_group: dict[str, set[int | None]] = {}
    for record in records:
        by_group.setdefault(record.episode_id.rpartition(".")[0], set()).add(record.limits.total_tokens)
        assert record.cost.total_tokens <= (record.limits.total_tokens or 0)
    assert {len(totals) for totals in by_group.values()} == {1}
    assert set().union(*by_group.values()) == {40, 60, 80}
    prices = {record.episode_id.partition(".")[0]: record.weights["token_cost"] for record in records}
    assert len(set(prices.values())) == 6, "rolled out in order, each after the ones before were observed"
    shares = [row["excluded_share"] for row in rows(whole)]
    assert all(share > 0 for share in shares[:3])
    assert shares[3:] == [0, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "credit", [{"name": "d3s", "options": {"steps": 2}}, {"name": "hapo"}], ids=lambda spec: spec["name"]
)
def test_what_looks_at_entropies_trains(tmp_path: Path, credit: dict[str, Any]) -> None:
    """Beside weights that are guided by the hypervolume; what is kept relaxes to all within the run."""
    schedule = {
        "terms": {"token_cost": 1.0},
        "reference": {"correct": 0.0, "total_tokens": 80, "critical_path_tokens": 40},
    }
    job = play(
        config(
            tmp_path,
            variants__delegating__rl__steps=3,
            variants__delegating__rl__credit=credit,
            variants__delegating__rl__reward_schedule={"name": "hypervolume", "options": schedule},
            log_groups=9,
        )
    )
    found = rows(job)
    prices = [record.weights["token_cost"] for record in read_episodes(job.folder / "episodes.jsonl")]
    assert prices[0] == 1.0
    assert all(0.5 <= price <= 2.0 for price in prices)
    assert len(set(prices)) > 1
    if credit["name"] == "d3s":
        assert [row["credit/kept_rollouts"] for row in found] == [0.5, 0.75, 1.0]
        assert found[0]["excluded_share"] > 0 == found[2]["excluded_share"]
