"""The page of claims: figures from made cells, and a small run of the evidence made again."""

from __future__ import annotations

from typing import Any

import pytest

from studies.claims import study
from studies.credit_map import study as credit_map
from studies.when import study as when
from studies.where import study as where


def make_cell(experiment: str, variant: str, accuracy: float, **costs: float) -> dict[str, Any]:
    every = dict.fromkeys((*where.COSTS, *where.WINDOW_COSTS), 100.0)
    found = {size: {**every, "accuracy": accuracy, "shift": "out", **costs} for size in ("6x20", study.LARGEST)}
    return {"experiment": experiment, "arm": variant, "seed": 0, "cpu_seconds": 60.0, "sizes": found}


def test_claims_have_the_figures_of_their_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [
        make_cell("where", "delegating", 0.97, critical_path_tokens=20),
        make_cell("where", "delegating", 0.91, critical_path_tokens=30),
        make_cell("where", "reading", 0.95, visible_token_steps=200),
        make_cell("where_tight", "reading", 0.99, visible_token_steps=125),
        make_cell("where_full", "reading", 0.1),
    ]
    rewards = {"policy": 0.5, "always": 0.4, "never": 0.3, "table": 0.2, "threshold": 0.51}
    rewards |= {"without_size": 0.49, "without_price": 0.48, "without_window": 0.47}
    deciding: dict[str, Any] = {"experiment": "when", "arm": "deciding", "cpu_seconds": 90.0}
    deciding["choices"] = {"after": {"both_new": {"rewards": rewards, "agreement": {"policy": 0.9}}}}
    monkeypatch.setattr(where, "stored", lambda: (cells, []))
    monkeypatch.setattr(when, "stored", lambda: ([{**deciding, "seed": seed} for seed in range(10, 20)], [], []))
    length, costs, decision, *_ = study.make_claims()
    assert (
        "in 0.94 of the cases (median of seeds, lowest 0.91), and a reader with full attention in 0.10." in length.text
    )
    assert "need no clones, but are less robust: 0.95 and 0.99, lowest 0.95 and 0.99." in length.rival
    assert "Clones need x0.25 of the critical path of a reader with an attention window, and x0.80 of the" in costs.text
    assert "with a looser window, clones need x0.50 of the keys" in costs.rival
    assert "the clones together x1.0 of them" in costs.rival
    assert "with 10 of 10 seeds" in decision.text
    assert "reward 0.500 ± 0.000, always 0.400 ± 0.000, never 0.300 ± 0.000. Of the" in decision.text
    assert "matters, 0.90 ± 0.00 are decided well" in decision.text
    assert "earns 0.510 ± 0.000, without the window 0.470 ± 0.000, without the size 0.490" in decision.rival
    page = study.page([costs, decision])
    assert "--rerun where_tight/reading/seed0` | 1 | 3 |" in page
    assert "--rerun when/deciding/seed10` | 10 | 15 |" in page


def test_a_claim_without_cells_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(where, "stored", lambda: ([], []))
    monkeypatch.setattr(when, "stored", lambda: ([], [], []))
    assert [claim.page for claim in study.make_claims()] == ["credit_map", "cells", "methods"]


@pytest.mark.slow
def test_a_small_part_of_the_evidence_is_made_again() -> None:
    """The same seeds are at the goal again, for about as many decisions. Bits differ between processors."""
    stored = {
        run["scheme"]: run
        for run in credit_map.stored(credit_map.STORE)
        if run["game"] == "additive-4" and run["seed"] == 1 and run["scheme"] in ("difference", "broadcast")
    }
    for run in stored.values():
        decisions, _ = credit_map.play(credit_map.job_of(run))["reached"]
        assert run["reached"][0] / 1.5 <= decisions <= run["reached"][0] * 1.5
