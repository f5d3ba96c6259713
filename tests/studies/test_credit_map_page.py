"""The credit map: its arithmetic by hand, what its policies are taught, and what its runs are of."""

from __future__ import annotations

import importlib
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from marl_games import advantages_of

from selfcest_baselines.counterfactual import record_episodes
from selfcest_baselines.games import KernelGames
from selfcest_baselines.networks import ActorNetwork
from selfcest_env.stored import stored_fields
from selfcest_env.symbolic import BatchDelegation, RandomPolicy, evaluate_policy
from selfcest_env.symbolic.vectors import observation_size
from studies.runner import Rerun

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def credit_map() -> ModuleType:
    return importlib.import_module("studies.credit_map.study")


def run(reached: tuple[int, int] | None = None, last: tuple[int, int, float] = (100, 10, 0.5), **more: Any) -> Any:
    return {"reached": reached, "curve": [list(last)], "game": "additive-4", "scheme": "broadcast", **more}


def test_a_join_has_a_price(credit_map: ModuleType) -> None:
    assert credit_map.cost(run((40, 5)), 0) == 40
    assert credit_map.cost(run((40, 5)), 1) == 45
    assert credit_map.cost(run(), 1) == 110, "a run that never got there costs what it was given"


def test_speed_up_by_hand(credit_map: ModuleType) -> None:
    slow, fast = [run((300, 0)), run((500, 0))], [run((100, 0)), run((100, 0))]
    found = credit_map.speed_up(fast, slow, 0)
    assert (found.mean, found.low, found.high) == (4.0, 3.0, 5.0)  # of 100 against 300, 400 and 500


def test_the_rate_is_that_of_the_lowest_mean_cost(credit_map: ModuleType) -> None:
    tried = [run((50, 0), rate=1e-3), run((70, 0), rate=1e-3), run((10, 0), rate=2e-3), run((90, 0), rate=2e-3)]
    assert credit_map.chosen(tried) == {("additive-4", "broadcast"): 2e-3}  # 50 against 60
    assert credit_map.chosen([*tried[:3], run(rate=2e-3)]) == {("additive-4", "broadcast"): 1e-3}, "one did not arrive"
    level = [run(rate=1e-3, last=(100, 10, 0.2)), run(rate=2e-3, last=(100, 10, 0.6))]
    assert credit_map.chosen(level) == {("additive-4", "broadcast"): 2e-3}, "of equals the one that came closest"


def test_outer_rates_are_tried_where_their_neighbour_is_best(credit_map: ModuleType) -> None:
    first = list(credit_map.tuning_jobs([]))
    assert len(first) == len(credit_map.GAMES) * len(credit_map.SCHEMES) * 3 * 2
    assert {job.seed for job in first} == {100, 101}
    tried = [run((90 if rate < 4e-3 else 10, 0), rate=rate) for rate in credit_map.RATES[1:-1]]
    more = set(credit_map.tuning_jobs(tried)) - set(first)
    assert {(job.game, job.scheme, job.rate) for job in more} == {("additive-4", "broadcast", 8e-3)}


def test_random_play_is_what_is_computed(credit_map: ModuleType) -> None:
    for game in credit_map.GAMES.values():
        played = evaluate_policy(RandomPolicy(0), game.rules, 4000)
        assert played.success == pytest.approx(credit_map._random(game), abs=max(5 * played.standard_error, 1e-3))


@pytest.mark.slow
def test_what_a_policy_is_taught_is_the_share_that_is_said(credit_map: ModuleType) -> None:
    game = credit_map.GAMES["and-4"]
    actor = ActorNetwork(
        observation_size(game.rules), game.rules.num_actions, (64, 64), torch.Generator().manual_seed(0)
    )
    credit_map.teach(actor, game, seed=3)
    kernel = BatchDelegation(game.rules, 2000)
    kernel.reset(7)
    kernel.step_ready(np.full(2000, game.rules.first_call))
    seen = torch.from_numpy(kernel.ready_agents().observations)
    with torch.no_grad():
        probabilities = actor(seen, torch.from_numpy(kernel.ready_agents().action_masks)).exp()
    held = seen[:, -2 * game.rules.task.num_symbols :].view(len(seen), 2, -1).argmax(-1)
    right = probabilities.gather(1, (1 + held.sum(1) % 8)[:, None])[:, 0]
    number = held[:, 0] * 8 + held[:, 1]
    by_sum = torch.stack([right[number == n].mean() for n in range(64)])
    assert sum(by_sum > 0.9) == round(game.known * 64)
    assert by_sum[by_sum < 0.9].max() < 0.4
    untaught = ActorNetwork(
        observation_size(game.rules), game.rules.num_actions, (64, 64), torch.Generator().manual_seed(0)
    )
    before = [weight.clone() for weight in untaught.parameters()]
    credit_map.teach(untaught, credit_map.GAMES["additive-4"], seed=3)
    assert all(torch.equal(*pair) for pair in zip(before, untaught.parameters(), strict=True))


@pytest.mark.slow
def test_credits_that_are_the_same_learner(credit_map: ModuleType) -> None:
    """What the page marks as equal: under AND `diff_loo` and `broadcast`, of a sum `shapley` and `difference`."""
    equals = {name: dict(game.same) for name, game in credit_map.GAMES.items()}
    assert equals["and-4"] == equals["and-16"] == {"diff_loo": "broadcast"}
    assert equals["additive-16"] == equals["hidden-16"] == {"shapley": "difference"}
    assert equals["threshold-4"] == {}
    for name in ("and-4", "additive-4"):
        game = credit_map.GAMES[name]
        games = KernelGames(game.rules, 64, 0, group_size=8)
        actor = ActorNetwork(
            observation_size(game.rules), game.rules.num_actions, (8,), torch.Generator().manual_seed(0)
        )
        credit_map.teach(actor, credit_map.GAMES["and-4"], 0)
        recording = record_episodes(games, actor.sample)
        for credit, other in game.same.items():
            own, its = (advantages_of(credit_map.SCHEMES[one], recording, actor.sample) for one in (credit, other))
            factor = 8 / 7 if name == "and-4" else 1.0  # the mean of a group holds one's own return
            assert own.abs().max() > 0
            assert torch.allclose(own, factor * its, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("budget", [4000, 8000])
def test_a_run_is_stored_whole_and_again_the_same(
    credit_map: ModuleType, monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    monkeypatch.setattr(credit_map, "BUDGET", budget)
    job = credit_map.Job("threshold-4", "diff_loo", 4e-3, 0)
    first, again = credit_map.play(job), credit_map.play(job)
    assert first["curve"] == again["curve"]
    assert first["curve"][-1][1] * 4 == first["curve"][-1][0] * 5, "a replay for every clone, and no decision in it"
    assert {**first, "cpu_seconds": 0} == {**again, "cpu_seconds": 0}


def test_a_rerun_plays_stored_runs_again(
    credit_map: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It found every run of the cell in the evidence, played none and said that it was written."""
    played: list[Any] = []

    class Pool:
        _processes: ClassVar[dict[int, object]] = {}

        def __init__(self, *_: object, **__: object) -> None: ...

        def __enter__(self) -> Pool:
            return self

        def __exit__(self, *_: object) -> None: ...

        def submit(self, play: object, job: Any) -> Future[Any]:
            played.append(job)
            future: Future[Any] = Future()
            rate = (400 if job.rate == credit_map.RATES[1] else 500, 10)
            future.set_result({**stored_fields(job), "reached": rate, "curve": [[*rate, 1.0]], "cpu_seconds": 0.0})
            return future

    monkeypatch.setattr(credit_map, "ProcessPoolExecutor", Pool)
    how = Rerun(credit_map.STORE.parent, tmp_path)
    before = credit_map.STORE.read_bytes(), credit_map.TUNED.read_bytes()
    assert credit_map.rerun("additive-16/diff_loo", how) == [tmp_path / "cells.jsonl"]
    assert [(job.game, job.scheme, job.seed) for job in played] == [("additive-16", "diff_loo", n) for n in range(10)]
    assert len(credit_map.stored(tmp_path / "cells.jsonl")) == 10
    credit_map.rerun("additive-16/diff_loo", replace(how, resume=True))
    assert len(played) == 10, "with --resume what the rerun has stored is kept"
    credit_map.rerun("additive-16/diff_loo", how)
    assert len(played) == 20
    played.clear()
    credit_map.rerun("tuning", how)
    inner, cells = list(credit_map.tuning_jobs([])), len(credit_map.GAMES) * len(credit_map.SCHEMES)
    assert played[: len(inner)] == inner
    assert [job.rate for job in played[len(inner) :]] == [credit_map.RATES[0]] * 2 * cells
    assert (credit_map.STORE.read_bytes(), credit_map.TUNED.read_bytes()) == before


def test_the_runs_have_the_chosen_rates_and_every_seed(credit_map: ModuleType) -> None:
    runs, tuning = credit_map.stored(credit_map.STORE), credit_map.stored(credit_map.TUNED)
    assert {found["seed"] for found in tuning} == {100, 101}
    rates = credit_map.chosen(tuning)
    for (game, scheme), made in credit_map.cells(runs).items():
        assert [found["seed"] for found in sorted(made, key=lambda found: found["seed"])] == [*range(len(made))]
        for found in made:
            assert found["rate"] == rates[game, scheme]
            assert found["config"] == credit_map.Job(game, scheme, found["rate"], found["seed"]).config
