"""The multi-agent learners on forced joins: one grade for many clones, and nobody decides after the join."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from selfcest_baselines.counterfactual import ReplayCost, record_episodes, replay_without
from selfcest_baselines.games import KernelGames
from selfcest_baselines.networks import sample_actions
from selfcest_baselines.train import train
from selfcest_env.errors import ConfigError
from selfcest_env.symbolic import make_rules

EASY = make_rules("cells", {"cells": 4, "modulus": 2}, max_clones=4)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("learner", ["broadcast", "coma", "difference", "diff_loo", "shapley"])
def test_every_credit_learns_four_cells(learner: str) -> None:
    """A pair of bits has four values; chance is a half of the cells."""
    curve = train(learner, EASY, seed=0, decisions=200_000, seconds=20, until=0.98, every=0.2)
    assert curve.points[-1].success >= 0.98


def test_shapley_says_that_calls_are_too_large_for_it() -> None:
    with pytest.raises(ConfigError, match="a call can start 17 clones; expected at most 16"):
        train("shapley", make_rules("cells", {"cells": 17}, max_clones=17, total_tokens=400), decisions=1)


def test_without_a_clone_its_own_summand_is_missing() -> None:
    """With every coupling the replay's return is the grade of the others' replies: theirs are kept, nobody is asked."""
    for coupling in ("additive", "zipf", "coverage", "threshold"):
        options = {"cells": 6, "modulus": 2, "coupling": coupling}
        games = KernelGames(make_rules("cells", options, max_clones=6, token_cost=0.001), 32, 0)
        recording = record_episodes(
            games, lambda seen, masks: sample_actions(masks.float(), torch.Generator().manual_seed(1))
        )
        end = games.kernel.state
        cells = np.arange(1, 7)
        right = end.tape[:, end.segment_start[0, 0] + np.arange(6)] == end.target
        absent = (np.arange(7) == cells[:, None])[np.newaxis].repeat(32, axis=0).reshape(-1, 7)
        game = np.arange(32).repeat(6)

        def refuse(seen: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
            raise AssertionError("nobody descends from a clone of a forced join")

        replayed = replay_without(recording, game, np.ones(len(game), int), absent, refuse)
        graded = games.rules.task.grade(right[game] & ~absent[:, 1:])  # type: ignore[attr-defined]
        # 13 (opening), 6 (call), 7 (replies), 1 (handed in), and five clones for 3 + 1.
        assert replayed.returns.numpy() == pytest.approx(graded - 0.001 * (27 + 20), abs=1e-6)
        assert replayed.cost == ReplayCost(0, 32 * 6)  # what is kept costs nothing
