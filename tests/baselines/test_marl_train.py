"""The multi-agent learners: that they learn, that their faces agree, and what they refuse."""

from __future__ import annotations

import dataclasses
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from marl_games import Same
from typer.testing import CliRunner

from selfcest_baselines.__main__ import app
from selfcest_baselines.bench.entries import ENTRIES
from selfcest_baselines.broadcast import BroadcastLearner, compute_group_advantages
from selfcest_baselines.coma import ComaLearner, build_critic_inputs
from selfcest_baselines.counterfactual import ReplayCost, record_episodes
from selfcest_baselines.difference import DifferenceLearner
from selfcest_baselines.games import KernelGames, SmacGames
from selfcest_baselines.learner import LEARNERS, PolicyGradientLearner
from selfcest_baselines.networks import clipped_surrogate, sample_actions
from selfcest_baselines.progress import CurvePoint, LearningCurve, evaluate
from selfcest_baselines.rollout import Rollout, collect_rollout, leave_one_out
from selfcest_baselines.shapley import ShapleyLearner
from selfcest_baselines.train import train
from selfcest_baselines.value import ValueLearner
from selfcest_env.adapters.smac import SymbolicSMAC
from selfcest_env.errors import ConfigError, PlugInError, SelfcestError
from selfcest_env.symbolic import make_rules
from selfcest_env.symbolic.scenarios import get_scenario
from selfcest_env.symbolic.streams import make_keys

SMALL = make_rules("chain", {"items": (2, 4), "modulus": 2, "window": 2, "splits": [2]}, max_depth=1, max_clones=2)


pytestmark = pytest.mark.usefixtures("one_thread")


NAMES = ("broadcast", "value", "coma", "difference", "diff_loo", "shapley")
BOTH_LOSSES = pytest.mark.parametrize(("name", "loss"), list(itertools.product(NAMES, ("one_pass", "clipped"))))


def make(name: str, **options: Any) -> PolicyGradientLearner:
    learner = LEARNERS.make(name, options, where="")
    assert isinstance(learner, PolicyGradientLearner)
    return learner


def first_updates(learner: PolicyGradientLearner, seed: int) -> list[tuple[int, float]]:
    """Decisions so far and mean return of the batch after each of five updates on `chain-4m2-v1`."""
    games = KernelGames(get_scenario("chain-4m2-v1").rules, learner.episodes, seed, group_size=learner.group_size)
    updates = itertools.islice(learner.updates(games, seed), 5)
    return [(update.decisions, float(games.kernel.state.team_return.mean())) for update in updates]


# Decisions so far and mean return of the batch after each of the first updates on `chain-4m2-v1` with seed 3.
FIRST_UPDATES = {
    "broadcast": [(653, 0.4296875), (1331, 0.4765625), (2006, 0.53125), (2706, 0.51171875), (3340, 0.5859375)],
    "value": [(682, 0.53125), (1353, 0.45703125), (2011, 0.54296875), (2685, 0.50390625), (3336, 0.5703125)],
    "coma": [(163, 0.53125), (340, 0.546875), (490, 0.46875), (679, 0.609375), (839, 0.5)],
    "difference": [(1035, 0.4296875), (2051, 0.53125), (3153, 0.53515625), (4267, 0.55859375), (5300, 0.59375)],
    "diff_loo": [(1035, 0.4296875), (2041, 0.5234375), (3143, 0.5234375), (4257, 0.546875), (5280, 0.62109375)],
    "shapley": [(1226, 0.4296875), (2474, 0.484375), (3728, 0.4921875), (5052, 0.53125), (6298, 0.51953125)],
}


@pytest.mark.parametrize("name", FIRST_UPDATES)
def test_learning_curves_are_pinned(name: str) -> None:
    learner = ENTRIES[name]
    assert isinstance(learner, PolicyGradientLearner)
    assert first_updates(learner, 3) == FIRST_UPDATES[name]


# The same with seed 1 and settings that no learner of the benchmark has: the other loss, exploration, small networks.
FIRST_UPDATES_ONE_PASS = {
    "broadcast": [(182, 0.53125), (362, 0.359375), (518, 0.453125), (712, 0.546875), (853, 0.578125)],
    "value": [(179, 0.515625), (341, 0.4375), (506, 0.453125), (688, 0.484375), (835, 0.515625)],
    "coma": [(188, 0.515625), (356, 0.484375), (539, 0.453125), (721, 0.453125), (862, 0.4375)],
    "difference": [(298, 0.53125), (587, 0.453125), (861, 0.484375), (1159, 0.5), (1337, 0.46875)],
    "diff_loo": [(298, 0.53125), (587, 0.453125), (861, 0.484375), (1159, 0.5), (1337, 0.46875)],
    "shapley": [(356, 0.53125), (650, 0.46875), (968, 0.484375), (1330, 0.5), (1570, 0.421875)],
}


@pytest.mark.parametrize("name", FIRST_UPDATES_ONE_PASS)
def test_learning_curves_of_the_policy_gradient_are_pinned(name: str) -> None:
    options = {"episodes": 64, "hidden": (64, 64), "learning_rate": 3e-3, "floor": (0.1, 0.0), "anneal": 2000}
    assert first_updates(make(name, loss="one_pass", **options), 1) == FIRST_UPDATES_ONE_PASS[name]


def uniform(seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    return lambda observations, masks: sample_actions(masks.float(), generator)


def rollouts_agree(one: Rollout, other: Rollout) -> None:
    for item in dataclasses.fields(Rollout):
        assert torch.equal(getattr(one, item.name), getattr(other, item.name)), item.name


@BOTH_LOSSES
def test_same_seed_same_run(name: str, loss: str) -> None:
    learner = make(name, loss=loss, episodes=16, hidden=(8,))
    runs = [train(learner, SMALL, 5, decisions=300, every=0.0) for _ in range(2)]
    first, second = ([point._replace(seconds=0.0) for point in run.points] for run in runs)
    assert first == second
    assert len(first) > 1
    assert first[-2].decisions < 300 <= first[-1].decisions


@BOTH_LOSSES
def test_updates_change_the_policy_and_decisions_are_counted(name: str, loss: str) -> None:
    learner = make(name, loss=loss, episodes=16, hidden=(8,))
    updates = learner.updates(KernelGames(SMALL, 16, 0, group_size=8), 0)
    first = next(updates)
    before = [parameter.clone() for parameter in first.actor.parameters()]
    second = next(updates)
    assert any(not torch.equal(a, b) for a, b in zip(before, second.actor.parameters(), strict=True))
    assert second.decisions > first.decisions >= 16
    assert all(torch.isfinite(parameter).all() for parameter in second.actor.parameters())


def test_replays_are_what_costs_more() -> None:
    costs = {}
    for name in NAMES:
        learner = make(name, loss="one_pass", episodes=16, hidden=(8,))
        costs[name] = next(learner.updates(KernelGames(SMALL, 16, 0, group_size=8), 0)).decisions
    assert costs["broadcast"] < costs["difference"] == costs["diff_loo"] < costs["shapley"]


def test_a_floor_falls_from_first_to_last() -> None:
    learner = BroadcastLearner(episodes=16, hidden=(8,), floor=(0.5, 0.25), anneal=100, loss="one_pass")
    floors = []
    for progress in learner.updates(KernelGames(SMALL, 16, 0, group_size=8), 0):
        seen = torch.rand(4, progress.actor.logits[0].in_features)
        probs = progress.actor(seen, torch.tensor([False, True, True, False]).expand(4, 4)).exp()
        assert float(probs.detach()[:, 1:3].min()) >= progress.actor.floor / 2 - 1e-6
        floors.append((progress.decisions, progress.actor.floor))
        if len(floors) == 4:
            break
    assert floors[0][1] == 0.5
    assert floors[1][1] == pytest.approx(0.25 + 0.25 * max(0, 1 - floors[0][0] / 100))
    assert floors[3][1] == 0.25


def test_smac_and_kernel_play_the_same() -> None:
    """The same problems and the same random draws behind both faces, decision by decision; also where games are cut."""
    keys = make_keys(7, 6)
    for max_cycles in (None, 2):
        kernel = KernelGames(SMALL, 6, 7, max_cycles=max_cycles)
        envs = [SymbolicSMAC(SMALL.task, max_clones=2, max_depth=1, max_cycles=max_cycles) for _ in range(6)]
        smac = SmacGames(envs)
        for env, key in zip(envs, keys, strict=True):
            env.kernel.reset(keys=np.array([key], np.uint64))
            env.reset = lambda env=env: None  # the first episode of this key
        smac.terminated[:] = False
        one, other = (
            collect_rollout(kernel, uniform(), with_states=True),
            collect_rollout(smac, uniform(), with_states=True),
        )
        if max_cycles is None:
            rollouts_agree(one, other)
            assert smac.terminated.all()
        else:
            assert torch.equal(one.truncated, other.truncated)
            assert torch.equal(one.continues, other.continues)
            assert one.truncated.any()
            assert not one.truncated.all()


def test_a_rollout_holds_every_decision_and_no_other() -> None:
    games = KernelGames(SMALL, 64, 0)
    rollout = collect_rollout(games, uniform())
    assert rollout.learnable.all()
    assert (rollout.masks.sum(1) > 1).all()
    assert torch.equal(rollout.joint_actions[rollout.cycle, rollout.game, rollout.agent], rollout.actions)
    assert rollout.masks.gather(1, rollout.actions[:, None]).all()
    # SMALL has no dead ends and every legal action is chosen from at least two: a decision per turn.
    turns = games.kernel.state.turns * (games.kernel.state.status > 0)
    forced = (rollout.decisions, turns.sum())
    assert forced[0] <= forced[1]
    assert rollout.returns.tolist() == games.kernel.state.team_return.tolist()
    assert int((~rollout.continues).sum(0).min()) >= 1


def test_truncated_games_are_valued_after_their_last_step() -> None:
    games = KernelGames(SMALL, 64, 0, max_cycles=1)
    rollout = collect_rollout(games, uniform())
    cut = games.truncated
    assert cut.any()
    assert not cut.all()
    after = rollout.game[~rollout.learnable]
    assert set(after.tolist()) == set(np.flatnonzero(cut).tolist())
    assert (rollout.cycle[~rollout.learnable] == 1).all()


def test_group_advantages_by_hand() -> None:
    # 1, 0, 0, 0: mean 0.25, deviations 0.75, -0.25 three times, variance (0.5625 + 3 * 0.0625) / 3 = 0.25, std 0.5.
    returns = torch.tensor([1.0, 0, 0, 0, 0.9, 1.0, 1.0, 1.1])
    advantages = compute_group_advantages(returns, 4, 0.25)
    assert advantages[:4].tolist() == pytest.approx([1.5, -0.5, -0.5, -0.5])
    # 0.9, 1, 1, 1.1: std 0.08 is below the floor, so deviations are divided by 0.25.
    assert advantages[4:].tolist() == pytest.approx([-0.4, 0, 0, 0.4], abs=1e-6)
    assert leave_one_out(returns, 4)[:2].tolist() == pytest.approx([1.0, -1 / 3])


def test_the_clipped_surrogate_by_hand() -> None:
    # ratios 2, 2, 0.5, 0.5 with advantages of both signs, clipped to 0.8 .. 1.2; the lesser of clipped and not.
    logs, advantages = torch.tensor([2.0, 2.0, 0.5, 0.5]).log(), torch.tensor([1.0, -1.0, 1.0, -1.0])
    assert clipped_surrogate(logs, torch.zeros(4), advantages, 0.2).tolist() == pytest.approx([1.2, -2.0, 0.5, -0.8])


def test_every_pass_takes_every_row_once() -> None:
    rows, generator = torch.arange(10, 23), torch.Generator().manual_seed(0)
    one_pass = BroadcastLearner(loss="one_pass")
    assert [step.tolist() for step in one_pass.minibatches(rows, generator)] == [rows.tolist()]
    steps = [step.tolist() for step in BroadcastLearner(passes=2, steps=3).minibatches(rows, generator)]
    assert [len(step) for step in steps] == [5, 4, 4] * 2
    for one in (steps[:3], steps[3:]):
        assert sorted(itertools.chain.from_iterable(one)) == rows.tolist()
    assert len(list(BroadcastLearner(passes=1, steps=4).minibatches(rows[:2], generator))) == 2
    for learner in (one_pass, BroadcastLearner()):
        assert not list(learner.minibatches(rows[:0], generator))


def test_one_pass_of_one_step_is_clipped_without_its_clip() -> None:
    """The gradient of a ratio that is 1 is that of its log-probability."""
    policies = []
    for options in ({"loss": "one_pass"}, {"loss": "clipped", "passes": 1, "steps": 1}):
        learner = make("broadcast", episodes=64, hidden=(8,), **options)
        progress = next(learner.updates(KernelGames(SMALL, 64, 0, group_size=8), 0))
        policies.append(torch.cat([parameter.detach().flatten() for parameter in progress.actor.parameters()]))
    torch.testing.assert_close(*policies, rtol=0, atol=1e-4)  # Adam's first step is 1e-3 however small the gradient


def test_the_critic_does_not_see_the_agents_own_action() -> None:
    games = KernelGames(SMALL, 32, 0)
    rollout = collect_rollout(games, uniform(), with_states=True)
    before = build_critic_inputs(rollout)
    joint = rollout.joint_actions.clone()
    row = int((rollout.agent == 1).nonzero()[0])
    moment = rollout.cycle[row], rollout.game[row]
    joint[(*moment, rollout.agent[row])] = 0
    after = build_critic_inputs(dataclasses.replace(rollout, joint_actions=joint))
    assert torch.equal(before[row], after[row])
    sibling = (rollout.agent == 2) & (rollout.cycle == moment[0]) & (rollout.game == moment[1])
    assert sibling.sum() == 1
    assert not torch.equal(before[sibling], after[sibling])
    agents, actions = 3, SMALL.num_actions
    assert before.shape[1] == rollout.states.shape[-1] + rollout.observations.shape[1] + agents * actions + agents


def test_evaluation_of_a_known_policy() -> None:
    """Always answering 0 to one item of 0 or 1 is right half the time, and costs 2 + 1 tokens."""
    rules = make_rules("chain", {"items": 1, "modulus": 2}, token_cost=0.01)
    score = evaluate(lambda observations, masks: torch.ones(len(masks), dtype=torch.long), rules, episodes=4000)
    assert score.success == pytest.approx(0.5, abs=4 * 0.5 / 4000**0.5)
    assert score.team_return == pytest.approx(score.success - 0.03)
    assert (score.tokens, score.clones) == (3, 0)


def test_a_policy_may_return_an_array_and_nothing_but_one_action_for_each_row() -> None:
    rules = make_rules("chain", {"items": 1, "modulus": 2})
    assert evaluate(lambda observations, masks: np.ones(len(masks), np.int64), rules, episodes=8).clones == 0
    for wrong in (lambda observations, masks: masks.float().mean(-1), lambda observations, masks: masks.int()):
        with pytest.raises(PlugInError, match=r"the policy returned .*; expected \d+ whole numbers"):
            evaluate(wrong, rules, episodes=8)


def test_curves_say_when_a_success_was_reached() -> None:
    curve = LearningCurve(
        (CurvePoint(10, 1.0, 0.5, 0.5), CurvePoint(20, 2.0, 0.95, 0.9), CurvePoint(30, 3.0, 0.9, 0.9))
    )
    assert curve.reached(0.9) == CurvePoint(20, 2.0, 0.95, 0.9)
    assert curve.reached(0.96) is None


PAIRS: dict[str, Any] = {"loss": "one_pass", "episodes": 4, "group_size": 2, "hidden": (8,)}


def learn_cut(name: str):
    return make(name, **PAIRS).updates(KernelGames(SMALL, 4, 0, group_size=2, max_cycles=3), 0)


def learn_smac(name: str):
    envs = [SymbolicSMAC(SMALL.task, max_clones=2, max_depth=1, seed=seed) for seed in (0, 0, 1, 1)]
    return make(name, **PAIRS).updates(SmacGames(envs, group_size=2), 0)


@pytest.mark.parametrize("name", ["broadcast", "difference", "diff_loo", "shapley"])
def test_groups_of_one_have_nothing_to_compare(name: str) -> None:
    with pytest.raises(ConfigError, match="group_size is 1; expected 2 or more episodes of the same problem"):
        make(name, group_size=1)


@pytest.mark.parametrize(
    ("give", "words"),
    [
        (lambda played: played.returns, "advantages of shape .*; expected one number per decision, "),
        (lambda played: torch.ones(()), r"advantages of shape \(\); expected one number per decision, "),
        (lambda played: played.actions / 0.0, "[0-9]+ advantages that are nan or infinite, for [0-9]+ decisions"),
    ],
)
def test_a_credit_that_gives_something_else_is_an_error(give, words: str) -> None:
    class Broken(BroadcastLearner):
        def advantages(self, rollout):
            return give(rollout)

    class BrokenWithReplays(DifferenceLearner):
        def advantages(self, recording, act):
            return give(recording.rollout), ReplayCost()

    for learner in (Broken, BrokenWithReplays):
        games = KernelGames(SMALL, 4, 0, group_size=2)
        with pytest.raises(PlugInError, match=f"{learner.__name__} returned {words}"):
            next(learner(**PAIRS).updates(games, 0))


def test_the_cost_of_replays_of_ones_own_credit_is_counted() -> None:
    class Dear(DifferenceLearner):
        def advantages(self, recording, act):
            advantages, cost = super().advantages(recording, act)
            return advantages, cost + ReplayCost(1000, 7)

    plain, dear = (
        next(learner(**PAIRS).updates(KernelGames(SMALL, 4, 0, group_size=2), 0))
        for learner in (DifferenceLearner, Dear)
    )
    assert (dear.decisions, dear.episodes) == (plain.decisions + 1000, plain.episodes + 7)


@pytest.mark.parametrize("name", ["broadcast", "value", "coma"])
def test_learners_without_replays_play_smac_and_games_that_are_cut(name: str) -> None:
    for updates in (learn_smac(name), learn_cut(name)):
        first = next(updates)
        assert 4 <= first.decisions < next(updates).decisions
        assert all(torch.isfinite(parameter).all() for parameter in first.actor.parameters())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: train("comma", SMALL, decisions=1), "^unknown learner 'comma'.*Did you mean 'coma'"),
        (
            lambda: make("coma", loss="clip"),
            "loss is 'clip'. Did you mean 'clipped'",
        ),
        (lambda: make("coma", loss="one_pass", clip=0.1), "clip is 0.1, which changes nothing: loss is one_pass"),
        (lambda: train("selfcest_baselines.games:KernelGames", SMALL, decisions=1), "no subclass of .*MarlLearner"),
        (lambda: train("coma", SMALL), "no budget was given"),
        (lambda: BroadcastLearner(episodes="9"), "episodes is '9'"),
        (lambda: BroadcastLearner(learning_rate=0.0), "learning_rate is 0.0"),
        (lambda: BroadcastLearner(episodes=10, group_size=4), "episodes is 10; expected a multiple of group_size = 4"),
        (lambda: BroadcastLearner(floor=(1.0, 0.0)), "floor.* is 1.0"),
        (lambda: DifferenceLearner(samples=0), "samples is 0"),
        (lambda: ShapleyLearner(orders=0), "orders is 0"),
        (lambda: ComaLearner(lambda_=1.5), "lambda_ is 1.5"),
        (lambda: BroadcastLearner(clip=0.0), "clip is 0.0"),
        (
            lambda: KernelGames(SMALL, 10, 0, group_size=4),
            "there are 10 games and group_size is 4; expected a multiple",
        ),
        (lambda: SmacGames([]), "envs is empty"),
        (lambda: record_episodes(KernelGames(SMALL, 4, 0, max_cycles=3), uniform()), "max_cycles is 3; expected None"),
        (
            lambda: ValueLearner(episodes=4, group_size=1).updates(KernelGames(SMALL, 2, 0), 0),
            "there are 2 games with group_size 1; expected 4 games with group_size 1",
        ),
        (lambda: learn_cut("difference"), "max_cycles is 3; expected None"),
        (lambda: learn_cut("shapley"), "max_cycles is 3; expected None"),
        (lambda: learn_smac("difference"), "games are SmacGames; expected KernelGames"),
    ],
)
def test_bad_input(call, message: str) -> None:
    with pytest.raises(SelfcestError, match=message):
        call()


def test_command(tmp_path: Path) -> None:
    out = tmp_path / "curve.json"
    words = [
        "difference",
        "--option",
        "items=2",
        "--option",
        "modulus=2",
        "--limit",
        "max_clones=2",
        "--decisions",
        "200",
    ]
    settings = ["episodes=16", "samples=2", "passes=1"]
    done = CliRunner().invoke(app, [*words, "--out", str(out), *settings])
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["decisions", "CPU", "s", "success", "return"]
    stored = json.loads(out.read_text())
    assert (stored["learner"], stored["seed"]) == ("difference", 0)
    assert stored["options"] == {"episodes": 16, "samples": 2, "passes": 1}
    assert int(lines[-1].split()[0]) == stored["points"][-1]["decisions"] >= 200
    for word, meant in (("episode=16", "episodes"), ("sample=1", "samples"), ("clipp=1", "clip")):
        wrong = CliRunner().invoke(app, [*words, word])
        assert wrong.exit_code == 1
        assert f"Did you mean '{meant}'" in str(wrong.exception)
    wrong = CliRunner().invoke(app, [*words, "--loss", "one_pass", "clip=0.1"])
    assert "clip is 0.1, which changes nothing: loss is one_pass" in str(wrong.exception)


@pytest.mark.slow
def test_command_as_a_module() -> None:
    """`-W error`: Python warns if the package has imported the module before it is run."""
    command = [sys.executable, "-W", "error::RuntimeWarning", "-m", "selfcest_baselines", "coma", "learning_rat=1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "Did you mean 'learning_rate'" in done.stderr
    assert "Traceback" not in done.stderr


TRIVIAL = make_rules(Same(), max_depth=1, max_clones=2)


def test_the_trivial_game_is_not_solved_by_chance() -> None:
    assert evaluate(uniform(), TRIVIAL).success < 0.6


@pytest.mark.slow
@BOTH_LOSSES
@pytest.mark.parametrize("seed", [0, 1])
def test_every_learner_learns_a_trivial_game(name: str, loss: str, seed: int) -> None:
    options = {"critic_learning_rate": 1e-2} if name in ("value", "coma") else {}
    learner = make(name, loss=loss, episodes=64, learning_rate=1e-2, hidden=(32, 32), **options)
    curve = train(learner, TRIVIAL, seed, decisions=250_000, until=0.99, every=0.1)
    assert curve.reached(0.99) is not None, curve.points[-1]


@pytest.mark.slow
def test_coma_learns_through_smac() -> None:
    games = SmacGames([SymbolicSMAC(SMALL.task, max_clones=2, max_depth=1, seed=seed) for seed in range(32)])
    learner = ComaLearner(
        loss="one_pass",
        episodes=32,
        group_size=1,
        hidden=(64, 64),
        learning_rate=3e-3,
        critic_learning_rate=3e-3,
        floor=(0.1, 0.0),
    )
    for progress in learner.updates(games, 0):
        if progress.decisions > 40_000:
            break
    assert evaluate(progress.actor.greedy, SMALL).success > 0.9


@pytest.mark.slow
def test_a_value_plays_noisy_within_five_percent_of_the_optimum() -> None:
    from selfcest_env.symbolic.optimum import optimal_return

    rules = make_rules("noisy", token_cost=0.002)
    best = optimal_return(rules).team_return
    learner = ValueLearner(group_size=1, learning_rate=3e-3, critic_learning_rate=3e-3, hidden=(64, 64), per="decision")
    # Some seeds stay at a local optimum of 0.6. Which ones depends on the rounding of the processor.
    for seed in (2, 1, 0, 3):
        updates = learner.updates(KernelGames(rules, 256, seed), seed)
        assert evaluate(next(updates).actor.greedy, rules).team_return < 0.8 * best
        learned = False
        for update, progress in enumerate(updates):
            learned = update % 20 == 0 and evaluate(progress.actor.greedy, rules).team_return >= 0.97 * best
            if learned or progress.decisions >= 1_000_000:
                break
        if learned:
            break
    assert learned, "no seed has learned in 1,000,000 decisions"
    # On problems that did not decide when to stop; four standard errors of a mean of 10,000 are below 0.02.
    assert evaluate(progress.actor.greedy, rules, episodes=10_000, seed=1).team_return >= 0.95 * best
