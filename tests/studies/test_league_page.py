"""The league of credit: its arithmetic by hand, and influence and fidelity where both are known."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selfcest_lab.exact import SolvedGame, solve
from selfcest_lab.games import GAMES
from selfcest_training.credit import Difference, Grpo, Rloo
from studies.league import audit, study
from studies.league.study import Row
from studies.runner import Rerun

CLONE = "clone at depth 1, turn 0"


@cache
def solved(name: str) -> SolvedGame:
    return solve(GAMES[name])


def cell(**values: Any) -> dict[str, Any]:
    """An unbiased cell with a variance of 2 for 10 tokens."""
    return {
        "exact": True,
        "bias": 0.0,
        "bias_half": 0.0,
        "cosine": 1.0,
        "scale": 1.0,
        "variance": 2.0,
        "tokens": 10.0,
        "clone_variance": 2.0,
        "replayed_tokens": 0.0,
        "blind": {},
        "fidelity": None,
        **values,
    }


BASELINE = Row({"pair": cell(), "series": cell()}, {"pair": 0.3})


# The table


def test_a_cost_is_of_an_estimate_of_the_gradient_s_length() -> None:
    """Twice the estimate has four times the variance; in the second game it costs x4."""
    row = Row({"pair": cell(scale=2.0, variance=8.0), "series": cell(variance=8.0)}, {})
    assert study.get_scaled_cost(row.cells["pair"]) == 20.0
    assert row.compute_cost_ratio(BASELINE) == pytest.approx(2.0), "the geometric mean of 1 and 4"
    opposed = Row({"pair": cell(), "series": cell(scale=-0.1)}, {})
    assert math.isinf(opposed.compute_cost_ratio(BASELINE))
    assert study.format_ratio(opposed.compute_cost_ratio(BASELINE)) == "–"


def test_blind_games_are_named_by_role() -> None:
    row = Row({"pair": cell(blind={CLONE: 0.0, "root, turn 0": -1.0}), "series": cell(blind={CLONE: -0.4})}, {})
    assert study.format_blind(row) == "roots: `pair`; clones: all"
    assert study.format_blind(BASELINE) == "none"


def test_verdicts_follow_the_figures() -> None:
    biased = Row({"pair": cell(bias=0.4), "series": cell(cosine=0.5)}, {"pair": 0.1})
    assert study.judge_unbiased(BASELINE, BASELINE) == "yes: bias 0 in 2 of 2 exact cells"
    assert study.judge_unbiased(biased, BASELINE) == "no: bias up to 0.4"
    assert study.judge_individual(biased, BASELINE) == "no: fidelity 0.10, that of `rloo` 0.30; cosine down to 0.50"
    near = replace(biased, fidelity={"pair": 0.33})
    assert study.compare_fidelity(near, BASELINE).startswith("no clear difference: ")
    dear = Row({"pair": cell(tokens=20.0, clone_variance=1.0), "series": cell(tokens=20.0)}, {})
    assert study.judge_cheaper(dear, BASELINE) == "per token no: x2 of `rloo`; clones' variance is lower in 1 of 2"


def test_a_sampled_bias_has_its_interval() -> None:
    assert [study.format_bias(cell(bias=bias)) for bias in (0.0, 1e-9, 0.25)] == ["0", "0", "0.25"]
    assert study.format_bias(cell(exact=False, bias=0.25, bias_half=0.1)) == "0.25 ± 0.1"


def test_every_scheme_of_the_league_can_be_made_and_is_entered_once() -> None:
    names = [entry.scheme for entry in study.ENTRIES]
    assert len(set(names)) == len(names)
    assert all(study.make_scheme(name).name == name.split()[0] for name in names)


def test_an_unknown_cell_measures_nothing(tmp_path: Path) -> None:
    for name in ("pear", "pair/rlo"):
        with pytest.raises(
            SystemExit, match=f"no cell is named {name}; expected all, influence, sizes, GAME or GAME/SCHEME"
        ):
            list(study.rerun(name, Rerun(study.EVIDENCE, tmp_path)))
    assert not list(tmp_path.iterdir())


# Fidelity


def test_ranks_of_equal_values_are_their_mean() -> None:
    assert audit.compute_spearman([1.0, 2.0, 3.0], [10.0, 20.0, 15.0]) == pytest.approx(0.5)
    # Ranks 1.5, 1.5, 3 and 1, 2, 3.
    assert audit.compute_spearman([0.0, 0.0, 5.0], [1.0, 2.0, 3.0]) == pytest.approx(1.5 / math.sqrt(1.5 * 2))
    assert audit.compute_spearman([1.0, 1.0], [1.0, 2.0]) == 0.0


@pytest.mark.parametrize("name", ["pair", "trio"])
def test_exact_advantages_have_mean_zero_and_give_the_gradient(name: str) -> None:
    """Their expected product with the score of a clone's turn is the clones' part of the exact gradient."""
    game = solved(name)
    advantages = audit.compute_exact_advantages(game)
    total = 0.0
    for outcome in game.trajectories:
        for turn in audit.list_first_turns(outcome.value):
            total += outcome.probability * advantages[turn]
    assert total == pytest.approx(0.0, abs=1e-12)
    gradient = np.zeros(game.parameters.size)
    for outcome in game.trajectories:
        for turn in audit.list_first_turns(outcome.value):
            context = turn.context
            for token in turn.ids:
                row = game.parameters.row_of[context]
                here = game.parameters.index[row].numpy()
                is_parameter = here >= 0
                if is_parameter.any():
                    score = -np.exp(game.parameters.logits[row].log_softmax(0).numpy())
                    score[token] += 1
                    weight = outcome.probability * advantages[turn]
                    gradient[here[is_parameter]] += weight * score[is_parameter]
                context = (*context, token)
    clones = game.parameters.is_clone
    assert gradient[clones] == pytest.approx(game.gradient[clones], abs=1e-12)


def test_fidelity_is_between_what_knows_the_advantage_and_what_ignores_it() -> None:
    game = solved("quartet")
    sizes: dict[str, int] = {"group_size": 4, "num_groups": 60, "seed": 0}
    rloo = audit.measure_fidelity(Rloo(), game, **sizes)
    grpo = audit.measure_fidelity(Grpo(), game, **sizes)
    difference = audit.measure_fidelity(Difference(), game, **sizes)
    assert rloo is not None
    assert grpo is not None
    # The reply of the only clone decides the return, so its difference has the order of the advantage.
    assert difference == pytest.approx(1.0)
    assert 0.2 < rloo < 1
    assert 0.2 < grpo < 1


# Influence


def test_the_influence_of_a_reply_that_is_copied_is_its_entropy() -> None:
    game = solved("quartet")
    taken: dict[object, float] = {}
    for outcome in game.trajectories:
        for turn in audit.list_first_turns(outcome.value):
            taken[turn.ids] = taken.get(turn.ids, 0.0) + outcome.probability
    shares = np.array(list(taken.values())) / sum(taken.values())
    exact, estimate = audit.measure_influence(game)
    assert exact == pytest.approx(-float(shares @ np.log(shares)))
    assert 0 < estimate < exact, "eight candidates hold less information than all"


def test_an_ignored_reply_has_no_influence_but_the_estimate_sees_chance() -> None:
    def menu(observation: Any) -> list[str]:
        if observation.agent_id.depth:
            return ["<ans>1<end>", "<ans>2<end>"]
        return ["<ans>1<end>", "<ans>2<end>"] if observation.exchanges else ["<call>x</call>", "<ans>0<end>"]

    game = replace(GAMES["quartet"], name="ignored", menu=menu)
    table = replace(game.table(), logit=lambda context, token: 0.1 * (token % 3))  # the same in every context
    exact, estimate = audit.measure_influence(solve(game, table))
    assert exact == pytest.approx(0.0, abs=1e-12)
    assert estimate > 0.3
