"""The report of sampler against learner, worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from selfcest_env.types import ROOT, AgentId
from selfcest_training.learner.batch import Sample
from selfcest_training.learner.mismatch import Mismatch, flatten_mismatch, measure_mismatch

NAN = math.nan


def sample(agent_id: AgentId, *log_ratios: float) -> Sample:
    """A context whose trained ids have these log-ratios, learner to sampler; NaN is an id of the environment."""
    differences = np.array([NAN, *log_ratios], dtype=np.float32)
    mask = ~np.isnan(differences)
    behavior = np.where(mask, -2, 0).astype(np.float32)
    old = np.where(mask, behavior + differences, 0).astype(np.float32)
    zeros = np.zeros(len(mask), dtype=np.float32)
    return Sample("e", agent_id, np.arange(len(mask)), mask, behavior, zeros, zeros + 1, 1.0, old)


def test_a_root_by_hand() -> None:
    # ratios 1, 2 | 1, 1, .5: the first turn diverges at its second id, the other at its third
    found = measure_mismatch([sample(ROOT, 0.0, math.log(2), NAN, NAN, 0.0, 0.05, -math.log(2))])["root"]
    assert found.tokens == 5
    assert found.mean_ratio == pytest.approx((1 + 2 + 1 + math.exp(0.05) + 0.5) / 5)
    assert found.max_ratio == pytest.approx(2.0)
    # ratio - 1 - log ratio: 0, 1 - ln 2, 0, e^.05 - 1.05, ln 2 - .5
    assert found.kl == pytest.approx((0.5 + math.exp(0.05) - 1.05) / 5, abs=1e-6)
    assert found.divergent_turns == 1.0
    assert found.first_divergent_token == 1.5


def test_roles_and_depths_are_apart() -> None:
    clone, clone_of_clone = ROOT.child(1), ROOT.child(1).child(0)
    samples = [sample(ROOT, 0.0, 0.2), sample(clone, 0.5), sample(clone_of_clone, 0.0, NAN, 0.0, 0.0, 0.0, -0.5)]
    found = measure_mismatch(samples)
    assert list(found) == ["root", "clone", "depth1", "depth2"]
    assert [found[name].tokens for name in found] == [2, 6, 1, 5]
    assert found["root"].first_divergent_token == 1.0
    assert found["depth1"].first_divergent_token == 0.0
    assert (found["depth2"].divergent_turns, found["depth2"].first_divergent_token) == (0.5, 3.0)
    assert (found["clone"].divergent_turns, found["clone"].first_divergent_token) == (2 / 3, 1.5)
    assert found["clone"].max_ratio == pytest.approx(math.exp(0.5))


def test_kl_is_that_of_two_coins() -> None:
    # Sampler p = .5, learner p = .8: KL = .5 ln(.5 / .8) + .5 ln(.5 / .2) = .2231, the mean over what the sampler drew
    heads, tails = math.log(0.8 / 0.5), math.log(0.2 / 0.5)
    assert measure_mismatch([sample(ROOT, heads, tails)])["root"].kl == pytest.approx(0.223144, abs=1e-6)


def test_names_in_the_log_and_what_is_missing() -> None:
    assert flatten_mismatch({}) == {} == measure_mismatch([])
    row = flatten_mismatch({"root": Mismatch(3, 1.0, 1.1, 0.0, 0.0, None)})
    assert row == {
        "mismatch/root/tokens": 3.0,
        "mismatch/root/mean_ratio": 1.0,
        "mismatch/root/max_ratio": 1.1,
        "mismatch/root/kl": 0.0,
        "mismatch/root/divergent_turns": 0.0,
    }
    assert (
        flatten_mismatch({"root": Mismatch(3, 1.0, 1.1, 0.0, 0.5, 2.0)})["mismatch/root/first_divergent_token"] == 2.0
    )
