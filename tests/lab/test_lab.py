"""The laboratory: what it enumerates is what happens, what it computes is the gradient, and it catches mistakes."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from lab_schemes import (
    Backwards,
    Centred,
    ComaLaterActionsKept,
    DifferenceLaterActionsKept,
    DifferenceSpendKept,
    Entangled,
    FlippedBelow,
    GoodOthers,
    MeanWithinClass,
    MeanWithinDepth,
    MeanWithinSize,
    MeanWithinTries,
    OneReplayed,
    OthersByValue,
    OwnCoins,
    OwnRewardsAlone,
)
from swap_scheme import Swap
from typer.testing import CliRunner

import selfcest_cli.main as cli
from selfcest_agents.replay import play_replays
from selfcest_agents.rollout import rollout
from selfcest_env.errors import ConfigError, PolicyError
from selfcest_env.plugin import PlugIn
from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.replay import Replay, replayed_episode
from selfcest_lab import GAMES, LabConfig, LabReport, run_lab
from selfcest_lab.estimate import compute_group_gradients, learn, make_request, sample_groups, score_replays
from selfcest_lab.exact import ScriptedNoise, SolvedGame, enumerate_outcomes, solve
from selfcest_lab.expectation import expected_gradient
from selfcest_lab.judge import (
    ALPHA,
    Evidence,
    contrast_directions,
    f_survival,
    find_broken,
    forbidden_part,
    hotelling_p_value,
    joint_p_value,
    judge_exact,
    judge_samples,
)
from selfcest_lab.measure import MeasuredValue, Measurement, find_blind, label, measure
from selfcest_lab.summary import describe_blind, describe_crossings, format_verdict, markdown, verdict, write_report
from selfcest_lab.tabular import Floats, SeededNoise, TabularPolicy
from selfcest_methods.branches import Branches
from selfcest_methods.gae import Gae
from selfcest_methods.state_zero import StateZero
from selfcest_training.credit import (
    Coma,
    Credit,
    CreditAssigner,
    Difference,
    DiffLoo,
    Gated,
    Grpo,
    Parts,
    PerRole,
    Promise,
    ReplayRecords,
    Rloo,
    Shapley,
    ToGo,
    TurnCounts,
    flip_coin,
)
from selfcest_training.stages.crediting import assign_step_credit, play_counterfactuals

each_game = pytest.mark.parametrize("name", GAMES)
LARGE = ("cells_misread", "coupled", "gated", "pair_noisy", "series")


@cache
def solved(name: str) -> SolvedGame:
    return solve(GAMES[name])


def texts(record: EpisodeRecord) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(turn.generation.text for turn in agent.turns) for agent in record.agents)


def bias(assigner: CreditAssigner, name: str) -> float:
    game = solved(name)
    mean = expected_gradient(assigner, game, group_size=2)
    assert mean is not None
    return float(np.linalg.norm(mean - game.gradient) / np.linalg.norm(game.gradient))


# Enumeration


@each_game
def test_probabilities_add_up_and_every_trajectory_is_different(name: str) -> None:
    found = solved(name).trajectories
    assert sum(outcome.probability for outcome in found) == pytest.approx(1.0, abs=1e-12)
    assert len({texts(outcome.value) for outcome in found}) == len(found)
    assert 0.7 <= sum(outcome.probability for outcome in found if len(outcome.value.agents) > 1) <= 0.95


@pytest.mark.slow
def test_the_rollout_plays_trajectories_as_often_as_they_are_probable() -> None:
    game, count = solved("coupled"), 800
    requests = [make_request(game, 5, index, 0) for index in range(count)]
    played = Counter(map(texts, rollout(requests, TabularPolicy(game.table, SeededNoise()), game.rules)))
    probable = {texts(outcome.value): outcome.probability for outcome in game.trajectories}
    assert set(played) <= set(probable)
    for trajectory, probability in probable.items():
        # Seven standard errors of a count, and a little for rare ones.
        assert abs(played[trajectory] - count * probability) < 7 * math.sqrt(count * probability) + 3


def test_one_uniform_used_twice_is_one_uniform() -> None:
    def play(noise: ScriptedNoise) -> tuple[int, int, int]:
        first = noise.pick(1, 0, np.array([0.3, 0.7]))
        again = noise.pick(1, 0, np.array([0.5, 0.5]))
        return first, again, noise.pick(2, 0, np.array([0.25, 0.75]))

    joint: Counter[tuple[int, int]] = Counter()
    for outcome in enumerate_outcomes(play):
        joint[outcome.value[:2]] += outcome.probability  # type: ignore[assignment]
    # u < 0.3: (0, 0); 0.3 <= u < 0.5: (1, 0); 0.5 <= u: (1, 1)
    assert joint == pytest.approx({(0, 0): 0.3, (1, 0): 0.2, (1, 1): 0.5})
    given = {outcome.value: outcome.probability for outcome in enumerate_outcomes(play, {(1, 0): (0.4, 0.6)})}
    # u uniform on [0.4, 0.6): the first draw is certain, the second is even.
    assert given == pytest.approx({(1, 0, 0): 0.125, (1, 0, 1): 0.375, (1, 1, 0): 0.125, (1, 1, 1): 0.375})


@each_game
def test_the_exact_gradient_against_finite_differences(name: str) -> None:
    """Every perturbed policy is enumerated anew, through kernel and rollout."""
    game, step = solved(name), 1e-5
    contexts = {row: context for context, row in game.parameters.row_of.items()}

    def value(place: tuple[object, int], change: float) -> float:
        table = GAMES[name].table()
        plain = table.logit
        table.logit = lambda context, token: plain(context, token) + change * ((context, token) == place)
        return solve(GAMES[name], table).value

    assert np.linalg.norm(game.gradient) > 0.01
    for index in range(0, game.parameters.size, 5):
        row, token = (game.parameters.index == index).nonzero()[0].tolist()
        place = contexts[row], token
        slope = (value(place, step) - value(place, -step)) / (2 * step)
        assert game.gradient[index] == pytest.approx(slope, abs=1e-8)


def test_a_grant_that_ends_early_cuts_a_generation() -> None:
    endings = {
        (agent.status, turn.generation.text)
        for outcome in solved("coupled").trajectories
        for agent in outcome.value.agents
        for turn in agent.turns
        if turn.generation.finish_reason == "length"
    }
    assert ("out_of_tokens", "9999<ans>") in endings


def test_a_menu_that_depends_on_what_the_context_does_not_show_is_an_error() -> None:
    menus = iter((["<ans>1<end>"], ["<ans>2<end>"]))
    game = replace(GAMES["pair"], menu=lambda observation: next(menus))
    policy = TabularPolicy(game.table(), SeededNoise())
    requests = [make_request(solved("pair"), 0, index, 0) for index in range(2)]
    with pytest.raises(PolicyError, match="the menu of root is"):
        rollout(requests, policy, game.rules())


# Expectation


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LARGE else []) for name in GAMES]
)
def test_rloo_is_unbiased_and_grpo_is_not(name: str) -> None:
    assert bias(Rloo(), name) < 1e-12
    assert bias(Grpo(), name) > 0.02


@dataclass(frozen=True)
class RootTurnsAtFullWeight(Branches):
    """The root's turns of alternatives count as much as if there were no other draw."""

    max_share: float = 0.0
    root_share: float = 1.0

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        return replace(super().assign(group, replayed), weight={})


@pytest.mark.slow
def test_alternatives_of_root_turns_are_unbiased() -> None:
    """In `words` and `pair_noisy` the root has a choice after the join."""
    for name in ("words", "pair_noisy"):
        assert bias(Branches(max_share=0.0, root_share=1.0), name) < 1e-12
        assert bias(Branches(max_share=0.0, root_share=0.5), name) < 1e-12
        assert bias(RootTurnsAtFullWeight(), name) > 0.1


@pytest.mark.parametrize("assigner", [Coma(), Branches()], ids=label)
def test_counterfactual_schemes_are_unbiased(assigner: CreditAssigner) -> None:
    """In one game here, and in every game in a slow test."""
    assert bias(assigner, "pair") < 1e-12


def test_a_value_of_earlier_groups_is_an_unbiased_baseline() -> None:
    game = solved("pair")
    scheme = learn(StateZero(), game, group_size=2, num_groups=5, seed=3)
    assert isinstance(scheme, StateZero)
    assert scheme.state.is_fitted
    assert bias(scheme, "pair") < 1e-12


@pytest.mark.slow
def test_gating_without_failures_is_grpo_and_with_them_is_another_bias() -> None:
    assert bias(Gated(), "pair") == pytest.approx(bias(Grpo(), "pair"), abs=1e-12)
    assert abs(bias(Gated(), "gated") - bias(Grpo(), "gated")) > 0.01


@pytest.mark.slow
def test_shapley_is_biased_where_clones_work_together_and_not_where_one_works_alone() -> None:
    assert bias(Shapley(), "pair") > 0.1
    assert bias(Shapley(), "dummy") < 1e-12


def of_whole_groups(assigner: CreditAssigner, game: SolvedGame) -> Floats:
    """One enumeration over two episodes and all their replays at once, each group through the loss on its own."""

    def play(noise: ScriptedNoise) -> Floats:
        policy = TabularPolicy(game.table, noise)
        requests = [make_request(game, 0, 0, k) for k in range(2)]
        records = tuple(game.reward.score(record) for record in rollout(requests, policy, game.rules))
        groups = [EpisodeGroup(game.game.task(), records)]
        replayed = play_counterfactuals(
            assigner,
            groups,
            lambda episodes, asked: score_replays(game, play_replays(episodes, asked, policy, game.rules)),
        )
        credit = assign_step_credit(assigner, groups, replayed)
        return compute_group_gradients(game.parameters, groups, credit.credits)[0]

    return np.asarray(np.sum([outcome.probability * outcome.value for outcome in enumerate_outcomes(play)], axis=0))


@pytest.mark.parametrize("assigner", [Difference(), Grpo()], ids=label)
def test_the_expectation_against_every_outcome_of_whole_groups(assigner: CreditAssigner) -> None:
    game = solved("pair")
    mean = expected_gradient(assigner, game, group_size=2)
    # A batch stores advantages in single precision.
    assert mean == pytest.approx(of_whole_groups(assigner, game), abs=1e-7)


def test_the_loss_denominator_is_the_constant_one() -> None:
    game = solved("pair")
    groups = [EpisodeGroup(game.game.task(), tuple(outcome.value for outcome in game.trajectories[:2]))]
    groups = [
        EpisodeGroup(game.game.task(), tuple(replace(e, episode_id=f"e{k}") for k, e in enumerate(groups[0].episodes)))
    ]
    credits = [Rloo().assign(groups[0], {})]
    one = compute_group_gradients(game.parameters, groups, credits)
    assert np.any(one)
    assert compute_group_gradients(game.parameters, groups, credits, constant=64.0) == pytest.approx(one, rel=1e-6)


@pytest.mark.slow
def test_pairing_takes_the_noise_of_the_join_off() -> None:
    """In `pair_noisy` the root misreads; played again on one stream for both, it misreads both alike."""
    game = solved("pair_noisy")
    assert bias(Difference(paired=True), "pair_noisy") < 1e-12
    clones = game.parameters.is_clone
    plain, paired = (
        sample_groups(scheme, game, group_size=2, num_groups=200, seed=0)
        for scheme in (Difference(samples=4), Difference(samples=4, paired=True))
    )
    assert paired.gradients[:, clones].var(axis=0).sum() < 0.75 * plain.gradients[:, clones].var(axis=0).sum()
    assert plain.replayed_tokens < paired.replayed_tokens < 1.6 * plain.replayed_tokens


@pytest.mark.slow
def test_the_others_replays_are_enumerated_together_where_they_matter() -> None:
    """Against one enumeration of everything, as above; where they are too many the scheme is sampled."""
    game = solved("pair")
    for assigner in (Entangled(), DiffLoo()):
        found = expected_gradient(assigner, game, group_size=2)
        assert found == pytest.approx(of_whole_groups(assigner, game), abs=1e-7)
    assert found == pytest.approx(game.gradient, abs=1e-12), "that of diff_loo"
    assert expected_gradient(Entangled(), game, group_size=2, max_outcomes=500) is None


@pytest.mark.slow
def test_a_scheme_with_random_numbers_of_its_own_is_sampled_instead() -> None:
    """One draw may ask for no replay at all, and would make a wrong counterfactual look right."""
    game = solved("pair")
    assert expected_gradient(OwnCoins(max_share=0.5), game, group_size=2) is None
    assert expected_gradient(OwnCoins(max_share=0.0), game, group_size=2) == pytest.approx(game.gradient, abs=1e-12)
    cell = measure(OwnCoins(max_share=0.5), game, LabConfig(num_groups=100))
    assert not cell.exact
    assert cell.bias.half_width > 0
    assert cell.evidence is not None
    assert cell.evidence.p_value is not None


def test_two_rows_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 schemes are called 'rloo' in the tables; expected each once"):
        run_lab([Rloo(), Rloo()], LabConfig(games=("pair",), num_groups=40))


@pytest.mark.slow
@pytest.mark.parametrize(
    "assigner",
    [
        Coma(max_share=0.5),
        Difference(max_share=0.3),
        Shapley(orders=1),
    ],
    ids=label,
)
def test_draws_by_the_seeds_are_enumerated(assigner: CreditAssigner) -> None:
    """Exactly unbiased where the schemes are."""
    game = solved("dummy")
    found = expected_gradient(assigner, game, group_size=2)
    assert found is not None
    assert np.linalg.norm(found - game.gradient) / np.linalg.norm(game.gradient) < 1e-12


@pytest.mark.slow
def test_a_wrong_scheme_is_wrong_as_often_as_its_coin_says() -> None:
    wrong = DifferenceLaterActionsKept(max_share=0.05)
    assert bias(wrong, "pair") == pytest.approx(0.05 * bias(DifferenceLaterActionsKept(), "pair"), rel=1e-6)


def test_too_many_outcomes_are_left_to_sampling() -> None:
    assert expected_gradient(Rloo(), solved("pair"), group_size=2, max_outcomes=97) is None  # 2 x 7 x 7 = 98
    assert expected_gradient(Rloo(), solved("pair"), group_size=2, max_outcomes=98) is not None


@pytest.mark.slow
@each_game
@pytest.mark.parametrize(
    "assigner",
    [
        Branches(),
        Branches(max_share=0.0, root_share=1.0),
        Coma(),
        Coma(per_turn=True),
        Difference(),
        Difference(paired=True),
        DiffLoo(),
        Swap(),
        Swap(paired=True),
    ],
    ids=label,
)
def test_counterfactual_schemes_are_unbiased_in_every_game(assigner: CreditAssigner, name: str) -> None:
    game = solved(name)
    mean = expected_gradient(assigner, game, group_size=2)
    if mean is None:
        pytest.skip("too many outcomes: the laboratory samples this cell")
    assert np.linalg.norm(mean - game.gradient) < 1e-12 * np.linalg.norm(game.gradient)


# Wrong schemes are caught


@pytest.mark.slow
@pytest.mark.parametrize(
    "assigner", [ComaLaterActionsKept(), DifferenceLaterActionsKept(), DifferenceSpendKept()], ids=label
)
def test_a_wrong_counterfactual_is_caught(assigner: CreditAssigner) -> None:
    report = run_lab([assigner], LabConfig(games=("pair",), num_groups=40))
    assert [cell.scheme for cell in report.broken] == [assigner.name]
    assert report.cells[0].exact
    assert report.cells[0].bias.value > 0.01


@pytest.mark.slow
@pytest.mark.parametrize(
    ("assigner", "game", "place"),
    [
        (OthersByValue(), "quartet", "clone at depth 1, turn 0"),
        (GoodOthers(), "quartet", "clone at depth 1, turn 0"),
        (OneReplayed(), "series", "clone at depth 1, turn 0"),
        (FlippedBelow(), "deep", "clone at depth 3, turn 0"),
        (OwnRewardsAlone(), "pair", "clone at depth 1, turn 0"),
    ],
    ids=str,
)
def test_what_groups_of_two_and_shallow_games_do_not_show_is_caught(
    assigner: CreditAssigner, game: str, place: str
) -> None:
    """Mistakes that an earlier laboratory missed. It says where: in the parameters of those who err."""
    blind = "dummy" if game in ("series", "pair") else "pair"
    report = run_lab([assigner], LabConfig(games=(game, blind), num_groups=40))
    caught, missed = report.cells
    assert caught.exact
    assert caught.bias.value > 0.01
    assert report.broken == (caught,)
    assert next(iter(caught.bias_shares)) == place
    assert sum(caught.bias_shares.values()) == pytest.approx(1)
    assert missed.exact
    assert missed.bias.value < 1e-12
    assert missed.bias_shares == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    "assigner",
    [
        MeanWithinClass(),
        MeanWithinTries(),
        MeanWithinSize(),
        MeanWithinDepth(),
    ],
    ids=label,
)
def test_a_baseline_within_a_class_that_the_episode_decides_is_caught(assigner: CreditAssigner) -> None:
    """In groups of two such a baseline is leave-one-out, so only larger groups of unequal trees tell."""
    (cell,) = run_lab([assigner], LabConfig(games=("uneven",), num_groups=40)).broken
    assert cell.exact
    assert cell.bias.value > 0.005
    assert bias(assigner, "gated") < 1e-12
    assert bias(assigner, "deep") < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("assigner", [Rloo(), Difference(), Coma()], ids=label)
def test_right_schemes_keep_their_promise_in_groups_of_three_and_four(assigner: CreditAssigner) -> None:
    report = run_lab([assigner], LabConfig(games=("uneven", "quartet"), num_groups=40))
    assert report.broken == ()
    assert all(cell.exact for cell in report.cells)


@pytest.mark.slow
def test_credit_by_parts_is_the_gradient_where_clones_move_their_own_parts_alone() -> None:
    game = solved("cells")
    assert bias(Parts(), "cells") < 1e-12
    assert all(episode.value.parts for episode in game.trajectories)
    parts, rloo = (sample_groups(a, game, group_size=2, num_groups=400, seed=0).gradients for a in (Parts(), Rloo()))
    clones = game.parameters.is_clone
    assert parts[:, clones].var(axis=0).sum() < 0.8 * rloo[:, clones].var(axis=0).sum()
    assert bias(Parts(), "pair") < 1e-12, "without parts it is rloo"
    assert bias(Parts(), "cells_misread") > 0.01, "where a reply changes how another one is read"


@dataclass(frozen=True)
class NestedAtFullWeight(Branches):
    """Clones of alternatives count as much as if there were no other draw of their parents."""

    nested: bool = True

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        credit = super().assign(group, replayed)
        weight = {key: value * (1 + (key.agent_id.depth > 1)) for key, value in credit.weight.items()}
        return replace(credit, weight=weight)


@dataclass(frozen=True)
class SecondThrownAway(Branches):
    """The second round is no more than a baseline, with the weights of one that is trained on."""

    nested: bool = True

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        credit = super().assign(group, replayed)
        second = {key for key in credit.advantage if replayed_episode(replayed_episode(key.episode_id) or "")}
        advantage = {key: value for key, value in credit.advantage.items() if key not in second}
        return replace(credit, advantage=advantage, weight={k: v for k, v in credit.weight.items() if k not in second})


@pytest.mark.slow
def test_a_second_round_of_replays_is_enumerated_and_sampled() -> None:
    game = solved("two_deep")

    def off(assigner: CreditAssigner) -> float:
        mean = expected_gradient(assigner, game, group_size=2)
        assert mean is not None
        return float(np.linalg.norm(mean - game.gradient) / np.linalg.norm(game.gradient))

    nested = Branches(nested=True)
    assert off(nested) < 1e-12
    assert off(Branches()) < 1e-12
    assert off(NestedAtFullWeight()) > 0.01
    assert off(SecondThrownAway()) > 0.01
    found, plain = (sample_groups(a, game, group_size=2, num_groups=400, seed=0) for a in (nested, Branches()))
    error = found.gradients.std(axis=0) / np.sqrt(len(found.gradients))
    assert (np.abs(found.gradients.mean(axis=0) - game.gradient) < 5 * error + 1e-9).all()
    assert found.sampled_tokens == plain.sampled_tokens
    assert found.replayed_tokens > plain.replayed_tokens


@dataclass(frozen=True)
class AsksAgain(Rloo):
    """`rloo` that asks for a quarter of the second replays that it could, by chance, and looks at none."""

    name: ClassVar[str] = "asks_again"
    by_hand: bool = False

    def replays(self, group: EpisodeGroup) -> Sequence[Replay]:
        return Branches().replays(group)

    def more_replays(self, episode: EpisodeRecord, turn_counts: TurnCounts) -> Sequence[Replay]:
        asked = Branches(nested=True).more_replays(episode, turn_counts)
        if self.by_hand:
            return [replay for replay in asked if (episode.seed + len(str(replay))) % 4 == 0]
        return [replay for n, replay in enumerate(asked) if flip_coin(0.25, episode, n)]


@pytest.mark.slow
@pytest.mark.parametrize("by_hand", [False, True])
def test_chance_in_a_second_round_is_left_to_sampling(by_hand: bool) -> None:
    game = solved("two_deep")
    assert expected_gradient(AsksAgain(by_hand), game, group_size=2) is None
    found = sample_groups(AsksAgain(by_hand), game, group_size=2, num_groups=40, seed=0)
    plain = sample_groups(Rloo(), game, group_size=2, num_groups=40, seed=0)
    assert np.array_equal(found.gradients, plain.gradients)
    assert found.replayed_tokens > sample_groups(Branches(), game, group_size=2, num_groups=40, seed=0).replayed_tokens


@pytest.mark.slow
def test_reward_to_go_is_the_gradient_with_less_noise_where_turns_are_judged() -> None:
    game = solved("judged")
    found, rloo = (sample_groups(a, game, group_size=2, num_groups=400, seed=0).gradients for a in (ToGo(), Rloo()))
    clones = game.parameters.is_clone
    assert found[:, clones].var(axis=0).sum() < 0.75 * rloo[:, clones].var(axis=0).sum()
    for name in ("judged", "series", "nested", "coupled"):
        assert bias(ToGo(), name) < 1e-12


@pytest.mark.slow
def test_a_wrong_counterfactual_is_caught_by_sampling_too() -> None:
    game = solved("pair")
    estimates = sample_groups(DifferenceLaterActionsKept(), game, group_size=2, num_groups=400, seed=0)
    evidence = judge_samples(Promise.UNBIASED, estimates.gradients, game)
    assert evidence.effect > 0.2
    assert find_broken([evidence]) == [0]


@pytest.mark.slow
def test_a_promise_up_to_scale_allows_a_positive_one() -> None:
    report = run_lab([Centred(), Backwards()], LabConfig(games=("pair",), num_groups=40))
    centred, backwards = report.cells
    assert centred.bias.value == pytest.approx(0.5)  # (K - 1) / K of the gradient
    assert centred.cosine == pytest.approx(1.0)
    assert report.broken == (backwards,)
    sampled = sample_groups(Backwards(), solved("pair"), group_size=2, num_groups=300, seed=0).gradients
    assert find_broken([judge_samples(Promise.UNBIASED_UP_TO_SCALE, sampled, solved("pair"))]) == [0]
    assert find_broken([judge_samples(Promise.UNBIASED_UP_TO_SCALE, -sampled, solved("pair"))]) == []


# The joint test


def test_the_survival_function_of_f() -> None:
    # Two numerator degrees: (1 + 2 x / d)^(-d / 2). Four, by quadrature of the density.
    assert f_survival(3.0, 2, 20) == pytest.approx((1 + 0.3) ** -10)
    x = np.linspace(2.5, 400, 2_000_001)
    constant = math.gamma(12) / (math.gamma(2) * math.gamma(10)) * (4 / 20) ** 2
    density = constant * x * (1 + 4 * x / 20) ** -12.0
    assert f_survival(2.5, 4, 20) == pytest.approx(float(np.trapezoid(density, x)), rel=1e-4)
    assert f_survival(0.0, 6, 100) == f_survival(1e-20, 6, 100) == 1.0
    assert 0 < f_survival(80.0, 6, 994) < 1e-70


def test_t_squared_is_that_of_a_hand_made_sample() -> None:
    # Mean (1, 0); covariance diag(4/3, 4/3); T^2 = 4 * 1 * 3/4 = 3; F = 3 * 2 / (2 * 3) = 1 with (2, 2): 1 / (1 + 1).
    samples = np.array([[2.0, 1.0], [0.0, 1.0], [2.0, -1.0], [0.0, -1.0]])
    assert hotelling_p_value(samples) == pytest.approx(0.5)


@pytest.mark.slow
def test_the_joint_test_is_calibrated() -> None:
    """On resampled errors of a real scheme, made exactly unbiased, p-values are as small as they should be."""
    game, rng = solved("pair"), np.random.default_rng(1)
    gradients = sample_groups(Rloo(), game, group_size=2, num_groups=800, seed=3).gradients
    errors = (gradients - gradients.mean(axis=0)) @ contrast_directions(game)
    p_values = np.array([hotelling_p_value(errors[rng.integers(len(errors), size=500)]) for _ in range(2000)])
    # Binomial counts of 2000: 200 +- 13, 20 +- 4.5, 2 +- 1.4.
    assert 140 < np.sum(p_values < 0.1) < 260
    assert np.sum(p_values < 0.01) < 45
    assert np.sum(p_values < ALPHA) < 5


def test_many_cells_are_one_test() -> None:
    cells = [Evidence(0.5, 3e-5), *[Evidence(0.5, 0.3)] * 9]
    assert joint_p_value(cells) == pytest.approx(3e-4)
    assert find_broken(cells) == []
    assert find_broken(cells[:3]) == [0]
    assert find_broken([Evidence(0.019, 1e-9), Evidence(0.021, 1e-9)]) == [1]  # too small an effect to matter
    assert find_broken([Evidence(1e-7), Evidence(1e-5)]) == [1]
    assert joint_p_value([Evidence(0.0)]) == 1.0


def test_an_exact_effect_is_a_share_of_the_gradient() -> None:
    gradient = np.array([3.0, 4.0])
    assert judge_exact(Promise.UNBIASED, np.array([3.0, 5.0]), gradient).effect == pytest.approx(0.2)
    assert judge_exact(Promise.UNBIASED_UP_TO_SCALE, 7 * gradient, gradient).effect == pytest.approx(0.0)
    assert judge_exact(Promise.UNBIASED_UP_TO_SCALE, -gradient, gradient).effect == 1.0
    off = forbidden_part(Promise.UNBIASED_UP_TO_SCALE, np.array([[4.0, -3.0]]), gradient)
    assert off == pytest.approx(np.array([[4.0, -3.0]]))


def test_an_estimate_without_noise_is_judged_all_the_same() -> None:
    game = solved("pair")
    constant = np.tile(game.gradient, (100, 1))
    assert find_broken([judge_samples(Promise.UNBIASED, constant, game)]) == []
    assert find_broken([judge_samples(Promise.UNBIASED, 1.1 * constant, game)]) == [0]


# Where a scheme is blind


@pytest.mark.slow
def test_a_scheme_that_follows_the_gradient_is_blind_nowhere_and_its_negative_everywhere() -> None:
    game = solved("words")
    right, scaled, wrong = (
        measure(a, game, LabConfig(num_groups=40)) for a in (Rloo(), Grpo(scale=False), Backwards())
    )
    assert (right.blind, scaled.blind) == ({}, {})
    assert wrong.blind == pytest.approx(dict.fromkeys(game.parameters.locations, -1.0))
    assert (right.scale, scaled.scale, wrong.scale) == pytest.approx((1.0, 0.5, -1.0))
    assert scaled.variance_cost == pytest.approx(right.variance_cost / 4), "half the estimate, at every group"
    assert describe_blind([right, wrong])[0].startswith("blind: backwards in words: root, turn 0 (-1); ")


def test_a_scheme_without_credit_for_clones_is_blind_to_them() -> None:
    silent = PerRole(roots=PlugIn("rloo"))
    exact = measure(silent, solved("quartet"), LabConfig(num_groups=40))
    assert exact.blind == {"clone at depth 1, turn 0": 0.0}
    assert exact.cosine < 1


def test_a_sampled_cell_is_blind_only_where_its_noise_allows_no_other_sign() -> None:
    game = solved("quartet")
    gradients = np.tile(-game.gradient, (100, 1))
    rng = np.random.default_rng(0)
    shown = gradients + 1e-3 * rng.standard_normal(gradients.shape)
    unclear = gradients + 1e3 * rng.standard_normal(gradients.shape)
    assert find_blind(shown.mean(axis=0), shown, game).keys() == set(game.parameters.locations)
    assert find_blind(unclear.mean(axis=0), unclear, game) == {}


# Reports


def cell(scheme: str, clone_variance: float, replayed: float, promise: Promise = Promise.UNBIASED) -> Measurement:
    evidence = None if promise is Promise.BIASED else Evidence(0.0)
    unit = MeasuredValue(1.0)
    return Measurement(
        scheme,
        "pair",
        promise,
        True,
        MeasuredValue(0.0),
        1.0,
        1.0,
        unit,
        MeasuredValue(clone_variance),
        10.0,
        replayed,
        {},
        {},
        evidence,
    )


def test_a_sampled_cell_is_never_said_to_be_kept() -> None:
    """A sample can only fail to refute, so its cell names its p-value instead."""
    exact = cell("rloo", 4.0, 0.0)
    low = replace(cell("one_replayed", 4.0, 0.0), exact=False, evidence=Evidence(0.3, 0.0014))
    high = replace(cell("coma", 4.0, 0.0), exact=False, evidence=Evidence(0.01, 0.4))
    wrong = replace(cell("difference", 4.0, 0.0), evidence=Evidence(0.3))
    silent = cell("grpo", 4.0, 0.0, Promise.BIASED)
    report = LabReport.of(LabConfig(), (exact, low, high, wrong, silent))
    assert [format_verdict(found, report) for found in report.cells] == [
        "kept",
        "not refuted, p = 0.0014",
        "not refuted, p = 0.4",
        "BROKEN",
        "",
    ]
    lines = verdict(report)
    assert "kept: 1 of 2 exact cells" in lines
    assert "not refuted, p = 0.0014: one_replayed in pair" in lines
    assert [line for line in lines if line.startswith("not refuted: 2 of 2 sampled cells")]
    assert not [line for line in lines if "coma" in line]
    assert "| not refuted, p = 0.0014 |" in markdown(report)


def test_crossings_by_hand() -> None:
    # Per token rloo costs 4 x 10 = 40; coma 5 x 20, 3 x 30, 1 x 38 = 38.
    cells = [cell("rloo", 4.0, 0.0), cell("coma(samples=4)", 1.0, 28.0), cell("coma", 5.0, 10.0)]
    assert describe_crossings([*cells, cell("coma(samples=2)", 3.0, 20.0)]) == [
        "pair: coma's clones' variance is below rloo's from n = 2, per sampled token from n = 4 (measured: n = 1, 2, 4)"
    ]
    assert describe_crossings(cells[1:]) == []


@pytest.mark.slow
def test_files_of_a_run(tmp_path: Path) -> None:
    config = LabConfig(games=("pair", "dummy"), num_groups=40)
    schemes = [Rloo(), Difference()]
    report = run_lab(schemes, config)
    paths = write_report(report, tmp_path / "out")
    assert [path.name for path in paths] == ["lab.md", "lab.csv", "lab.json", "lab.png"]
    assert all(path.stat().st_size for path in paths)
    rows = list(csv.DictReader(paths[1].read_text(encoding="utf-8").splitlines()))
    assert [(row["game"], row["scheme"]) for row in rows[:3]] == [
        ("pair", "rloo"),
        ("pair", "difference"),
        ("dummy", "rloo"),
    ]
    data = json.loads(paths[2].read_text(encoding="utf-8"))
    assert data["broken"] == []
    assert data["cells"][0]["replayed_tokens"] == 0 < data["cells"][1]["replayed_tokens"]
    second = data["cells"][1]
    tokens = second["sampled_tokens"] + second["replayed_tokens"]
    assert second["clone_variance_cost"] == pytest.approx(second["clone_variance"] * tokens)
    assert "kept: 4 of 4 exact cells" in markdown(report)
    assert run_lab(schemes, config) == report  # same seed, same figures


@pytest.mark.slow
def test_a_variance_is_that_of_independent_groups() -> None:
    """Against two lines of NumPy, and between seeds within the interval it gives."""
    game = solved("dummy")
    first = measure(Rloo(), game, LabConfig(num_groups=200))
    gradients = sample_groups(Rloo(), game, group_size=2, num_groups=200, seed=0).gradients
    assert first.variance.value == pytest.approx(np.trace(np.cov(gradients.T)) / (game.gradient @ game.gradient))
    other = measure(Rloo(), game, LabConfig(num_groups=200, seed=9))
    assert abs(first.variance.value - other.variance.value) < 3 * math.hypot(
        first.variance.half_width, other.variance.half_width
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LabConfig(games=("pear",)), "games\\[0\\] is 'pear'. Did you mean 'pair'\\? Expected one of pair"),
        (lambda: LabConfig(group_size=1), "group_size is 1"),
        (lambda: LabConfig(num_groups=10), "num_groups is 10; expected a whole number >= 40"),
    ],
)
def test_a_config_that_cannot_be_right(make: Callable[[], LabConfig], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


# The command


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli.app, ["lab", "--samples", "40", "--game", "pair", *arguments])
    return result.exit_code, " ".join(result.output.split())


@pytest.mark.slow
def test_the_command_passes_right_schemes_and_fails_wrong_ones(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, output = run("--scheme", "rloo", "--scheme", "difference samples=2", "--out", str(tmp_path))
    assert code == 0
    assert "kept: 2 of 2 exact cells" in output
    assert "difference(samples=2)" in (tmp_path / "lab.md").read_text(encoding="utf-8")
    code, output = run("--scheme", "rloo", "--scheme", "lab_schemes:DifferenceSpendKept", "--option", "max_share=1.0")
    assert code != 0  # rloo has no such option
    code, output = run("--scheme", "lab_schemes:DifferenceSpendKept", "--option", "samples=2")
    assert code == 1
    assert "BROKEN: difference_spend_kept(samples=2) promises to be unbiased" in output


def test_an_unknown_game_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["selfcest", "lab", "--game", "pairs"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.slow
def test_the_whole_laboratory() -> None:
    """Schemes whose expectation is enumerated in every game have a test of that."""
    report: LabReport = run_lab([Rloo(), Coma(samples=4)], LabConfig(num_groups=400))
    assert report.broken == ()
    cells = {(cell.game, cell.scheme): cell for cell in report.cells}
    for game in ("pair", "series", "gated", "dummy"):  # what follows the join is deterministic
        coma, rloo = cells[game, "coma(samples=4)"].clone_variance, cells[game, "rloo"].clone_variance
        assert coma.value < 0.8 * rloo.value, game


def test_a_wrapped_scheme_is_named_with_its_options() -> None:
    assert label(Gated(PlugIn("coma", {"samples": 4}))) == "gated(scheme=coma(samples=4))"
    assert label(Gated()) == "gated"
    assert label(PerRole(clones=PlugIn("parts"))) == "per_role(clones=parts)"


@pytest.mark.slow
def test_noise_has_no_place() -> None:
    """A sampled bias that its own interval covers is not said to sit anywhere."""
    (cell,) = run_lab([Gae(lam=1.0)], LabConfig(games=("pair",), num_groups=200)).cells
    assert not cell.exact
    assert 0 < cell.bias.value <= cell.bias.half_width
    assert cell.bias_shares == {}
