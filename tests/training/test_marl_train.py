"""The multi-agent learners: that they learn, that their faces agree, and what they refuse."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from selfcest_env.adapters.smac import SymbolicSMAC
from selfcest_env.errors import ConfigError
from selfcest_env.symbolic import make_rules
from selfcest_env.symbolic.streams import seeds_of
from selfcest_training.marl import coma, ppo
from selfcest_training.marl.__main__ import app
from selfcest_training.marl.broadcast import group_advantages, leave_one_out
from selfcest_training.marl.counterfactual import record
from selfcest_training.marl.games import KernelGames, SmacGames
from selfcest_training.marl.networks import draw
from selfcest_training.marl.progress import Curve, Point, evaluate
from selfcest_training.marl.rollout import Rollout, collect
from selfcest_training.marl.surrogate import clipped_surrogate
from selfcest_training.marl.train import ALGORITHMS, train

SMALL = make_rules("chain", {"items": (2, 4), "modulus": 2, "window": 2, "splits": [2]}, max_depth=1, max_clones=2)


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def uniform(seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    return lambda observations, masks: draw(masks.float(), generator)


def rollouts_agree(one: Rollout, other: Rollout) -> None:
    for item in dataclasses.fields(Rollout):
        assert torch.equal(getattr(one, item.name), getattr(other, item.name)), item.name


def test_the_table_of_algorithms() -> None:
    assert list(ALGORITHMS) == ["ppo", "coma", "broadcast", "difference", "shapley"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_same_seed_same_run(algorithm: str) -> None:
    config = {"episodes": 16, "hidden": [8]}
    runs = [train(algorithm, SMALL, 5, decisions=300, every=0.0, config=config) for _ in range(2)]
    first, second = ([point._replace(seconds=0.0) for point in run.points] for run in runs)
    assert first == second
    assert len(first) > 1
    assert first[-2].decisions < 300 <= first[-1].decisions


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_updates_change_the_policy_and_decisions_are_counted(algorithm: str) -> None:
    learn, config_type = ALGORITHMS[algorithm]
    config = config_type(episodes=16, hidden=(8,))
    games = KernelGames(SMALL, 16, 0, group_size=config.group_size)
    learner = learn(games, 0, config)
    first = next(learner)
    before = [parameter.clone() for parameter in first.actor.parameters()]
    second = next(learner)
    assert any(not torch.equal(a, b) for a, b in zip(before, second.actor.parameters(), strict=True))
    assert second.decisions > first.decisions >= 16
    assert all(torch.isfinite(parameter).all() for parameter in second.actor.parameters())


def test_smac_and_kernel_play_the_same() -> None:
    """The same problems and the same random draws behind both faces, decision by decision; also where games are cut."""
    keys = seeds_of(7, 6)
    for max_cycles in (None, 2):
        kernel = KernelGames(SMALL, 6, 7, max_cycles=max_cycles)
        envs = [SymbolicSMAC(SMALL.task, max_clones=2, max_depth=1, max_cycles=max_cycles) for _ in range(6)]
        smac = SmacGames(envs)
        for env, key in zip(envs, keys, strict=True):
            env.kernel.reset(keys=np.array([key], np.uint64))
            env.reset = lambda env=env: None  # the first episode of this key
        smac.terminated[:] = False
        one, other = collect(kernel, uniform(), central=True), collect(smac, uniform(), central=True)
        if max_cycles is None:
            rollouts_agree(one, other)
            assert smac.terminated.all()
        else:
            assert torch.equal(one.truncated, other.truncated)
            assert torch.equal(one.goes_on, other.goes_on)
            assert one.truncated.any()
            assert not one.truncated.all()


def test_a_rollout_holds_every_decision_and_no_other() -> None:
    games = KernelGames(SMALL, 64, 0)
    rollout = collect(games, uniform())
    assert rollout.learnable.all()
    assert (rollout.masks.sum(1) > 1).all()
    assert torch.equal(rollout.joint[rollout.cycle, rollout.game, rollout.agent], rollout.actions)
    assert rollout.masks.gather(1, rollout.actions[:, None]).all()
    # SMALL has no dead ends and every legal action is chosen from at least two: a decision per turn.
    turns = games.kernel.state.turns * (games.kernel.state.status > 0)
    forced = (rollout.decisions, turns.sum())
    assert forced[0] <= forced[1]
    assert rollout.returns.tolist() == games.kernel.state.team_return.tolist()
    assert int((~rollout.goes_on).sum(0).min()) >= 1


def test_truncated_games_are_valued_after_their_last_step() -> None:
    games = KernelGames(SMALL, 64, 0, max_cycles=1)
    rollout = collect(games, uniform())
    cut = games.truncated
    assert cut.any()
    assert not cut.all()
    after = rollout.game[~rollout.learnable]
    assert set(after.tolist()) == set(np.flatnonzero(cut).tolist())
    assert (rollout.cycle[~rollout.learnable] == 1).all()


def test_group_advantages_by_hand() -> None:
    # 1, 0, 0, 0: mean 0.25, deviations 0.75, -0.25 three times, variance (0.5625 + 3 * 0.0625) / 3 = 0.25, std 0.5.
    returns = torch.tensor([1.0, 0, 0, 0, 0.9, 1.0, 1.0, 1.1])
    advantages = group_advantages(returns, 4, 0.25)
    assert advantages[:4].tolist() == pytest.approx([1.5, -0.5, -0.5, -0.5])
    # 0.9, 1, 1, 1.1: std 0.08 is below the floor, so deviations are divided by 0.25.
    assert advantages[4:].tolist() == pytest.approx([-0.4, 0, 0, 0.4], abs=1e-6)
    assert leave_one_out(returns, 4)[:2].tolist() == pytest.approx([1.0, -1 / 3])


def test_clipped_surrogate_by_hand() -> None:
    # ratios 2, 2, 0.5, 0.5 with advantages of both signs, clipped to 0.8 .. 1.2; the lesser of clipped and not.
    ratio = torch.tensor([2.0, 2.0, 0.5, 0.5])
    gain = clipped_surrogate(ratio.log(), torch.zeros(4), torch.tensor([1.0, -1.0, 1.0, -1.0]), 0.2)
    assert gain.tolist() == pytest.approx([1.2, -2.0, 0.5, -0.8])


def test_the_critic_does_not_see_the_agents_own_action() -> None:
    games = KernelGames(SMALL, 32, 0)
    rollout = collect(games, uniform(), central=True)
    before = coma.critic_inputs(rollout)
    joint = rollout.joint.clone()
    row = int((rollout.agent == 1).nonzero()[0])
    moment = rollout.cycle[row], rollout.game[row]
    joint[(*moment, rollout.agent[row])] = 0
    after = coma.critic_inputs(dataclasses.replace(rollout, joint=joint))
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


def test_curves_say_when_a_success_was_reached() -> None:
    curve = Curve("ppo", 0, (Point(10, 1.0, 0.5, 0.5), Point(20, 2.0, 0.95, 0.9), Point(30, 3.0, 0.9, 0.9)))
    assert curve.reached(0.9) == Point(20, 2.0, 0.95, 0.9)
    assert curve.reached(0.96) is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: train("comma", SMALL, decisions=1), "unknown algorithm 'comma'.*Did you mean 'coma'"),
        (lambda: train("ppo", SMALL), "no budget is given"),
        (lambda: train("ppo", SMALL, decisions=1, config={"learning_rat": 1}), "ppo.learning_rat is unknown"),
        (lambda: train("ppo", SMALL, decisions=1, config={"episodes": "9"}), "ppo.episodes is '9'"),
        (lambda: KernelGames(SMALL, 10, 0, group_size=4), "num_games is 10.*multiple of group_size = 4"),
        (lambda: SmacGames([]), "envs is empty"),
        (lambda: record(KernelGames(SMALL, 4, 0, max_cycles=3), uniform()), "max_cycles is 3; expected None"),
        (lambda: train("broadcast", SMALL, decisions=1, config={"group_size": 1}), "group_size is 1; expected 2"),
        (lambda: train("ppo", SMALL, decisions=1, config={"learning_rate": 0.0}), "learning_rate is 0.0"),
        (lambda: train("difference", SMALL, decisions=1, config={"samples": 0}), "samples is 0"),
        (lambda: train("shapley", SMALL, decisions=1, config={"orders": 0}), "orders is 0"),
        (lambda: train("coma", SMALL, decisions=1, config={"lambda_": 1.5}), "lambda_ is 1.5"),
    ],
)
def test_bad_input(call, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
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
    done = CliRunner().invoke(app, [*words, "--out", str(out), "episodes=16"])
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["decisions", "CPU", "s", "success", "return"]
    stored = json.loads(out.read_text())
    assert (stored["algorithm"], stored["seed"]) == ("difference", 0)
    assert int(lines[-1].split()[0]) == stored["points"][-1]["decisions"] >= 200
    wrong = CliRunner().invoke(app, [*words, "episode=16"])
    assert wrong.exit_code == 1
    assert "Did you mean 'episodes'" in str(wrong.exception)


def test_command_as_a_module() -> None:
    """`-W error`: Python warns if the package has imported the module before it is run."""
    command = [sys.executable, "-W", "error::RuntimeWarning", "-m", "selfcest_training.marl", "coma", "learning_rat=1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "Did you mean 'learning_rate'" in done.stderr
    assert "Traceback" not in done.stderr


FAST = {"learning_rate": 3e-3, "hidden": [64, 64]}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_learns_a_small_chain(algorithm: str) -> None:
    """Chance is a half; without delegation only problems of two items can be solved, a third of them."""
    curve = train(algorithm, SMALL, 0, decisions=400_000, seconds=60, until=0.95, config=FAST)
    assert curve.points[0].success < 0.8
    assert curve.reached(0.95) is not None, curve.points[-1]


@pytest.mark.slow
def test_coma_learns_through_smac() -> None:
    games = SmacGames([SymbolicSMAC(SMALL.task, max_clones=2, max_depth=1, seed=seed) for seed in range(32)])
    config = coma.Config(episodes=32, hidden=(64, 64), learning_rate=3e-3, critic_learning_rate=3e-3)
    for progress in coma.learn(games, 0, config):
        if progress.decisions > 40_000:
            break
    assert evaluate(progress.actor.best, SMALL).success > 0.9


@pytest.mark.slow
def test_ppo_plays_noisy_within_five_percent_of_the_optimum() -> None:
    from selfcest_env.symbolic.optimum import optimal_return

    rules = make_rules("noisy", token_cost=0.002)
    best = optimal_return(rules).team_return
    config = ppo.Config(learning_rate=3e-3, value_learning_rate=3e-3, hidden=(64, 64))
    learner = ppo.learn(KernelGames(rules, config.episodes, 0), 0, config)
    assert evaluate(next(learner).actor.best, rules).team_return < 0.8 * best
    for update, progress in enumerate(learner):
        if update % 20 == 0 and evaluate(progress.actor.best, rules).team_return >= 0.97 * best:
            break
        assert progress.decisions < 2_000_000, "learned too slowly"
    # On problems that did not decide when to stop; four standard errors of a mean of 10,000 are below 0.02.
    assert evaluate(progress.actor.best, rules, episodes=10_000, seed=1).team_return >= 0.95 * best
