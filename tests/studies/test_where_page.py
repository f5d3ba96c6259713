"""The study of where delegation is worth its cost: random positions, and the page from made cells."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from selfcest_agents.tiny import TinyConfig
from studies.where import study
from studies.where.random_positions import RandomPositionLanguage, draw_positions


def test_random_positions_are_sorted_subsets() -> None:
    positions = draw_positions(8, 30, 100, torch.Generator().manual_seed(0))
    assert positions.shape == (8, 30)
    assert bool((positions.diff(dim=1) > 0).all())
    assert int(positions.min()) >= 0
    assert int(positions.max()) < 100
    assert len(positions.unique(dim=0)) > 2


def test_ranges_of_random_positions_go_from_the_length_to_four_times_that() -> None:
    generator = torch.Generator().manual_seed(0)
    largest = draw_positions(4000, 100, 2000, generator)[:, -1].float()
    assert largest.min() == 99 < 350 < largest.max() < 400
    # Half of the rows are consecutive. The ranges of the others are log-uniform, so half of them are within 200.
    assert abs((largest == 99).float().mean() - 0.5) < 0.05
    assert abs((largest < 200).float().mean() - 0.75) < 0.05
    largest = draw_positions(400, 100, 150, generator)[:, -1]
    assert largest.max() == 149, "the model has no more positions"


def test_only_training_has_random_positions() -> None:
    model = RandomPositionLanguage(max_positions=200).load(0)
    ids = torch.randint(20, 60, (2, 40))
    first = model.model(input_ids=ids).last_hidden_state
    assert not torch.allclose(first, model.model(input_ids=ids).last_hidden_state)
    with torch.no_grad():
        played = model.model(input_ids=ids).last_hidden_state
        assert torch.equal(played, model.model(input_ids=ids).last_hidden_state)
        assert torch.equal(played, model.model(input_ids=ids, position_ids=torch.arange(40)[None]).last_hidden_state)
    assert TinyConfig().max_positions == 2048


PAIR_SIZES = ("2x12", "4x6", "4x12", "5x12")


def make_cell(experiment: str, variant: str, seed: int, accuracy: float, path: float) -> dict[str, Any]:
    costs = dict.fromkeys((*study.COSTS, *study.WINDOW_COSTS), 100.0)
    sizes = {
        size: {**costs, "accuracy": accuracy, "shift": "in", "critical_path_tokens": path}
        for size in (PAIR_SIZES if experiment == "pairs" else (*study.INSIDE, *study.LONG, "3x26", "12x13"))
    }
    return {
        "experiment": experiment,
        "arm": variant,
        "seed": seed,
        "config": "c",
        "commit": "0" * 40,
        "version": "0",
        "attempts": 1,
        "compute_tokens": 1,
        "cpu_seconds": 1,
        "sizes": sizes,
    }


def test_ratios_are_of_accurate_seeds_alone() -> None:
    delegating = [make_cell("where", "delegating", seed, 0.99, 50) for seed in range(2)]
    window = [make_cell("where", "reading", 0, 0.95, 200), make_cell("where", "reading", 1, 0.5, 9000)]
    groups = study.group_by_variant([*delegating, *window])
    assert {name: len(cells) for name, cells in groups.items()} == {"delegating": 2, "reading_window": 2}
    found, held = study.predict_ratio("6x20", "critical_path_tokens", 0.2, 0.3).find(groups)
    assert (found, held) == ("x0.25", True)
    found, held = study.predict_accuracy("reading_window", ["6x20"], least=0.9).find(groups)
    assert (found, held) == ("6x20 0.72", False)


def test_readers_of_different_models_are_not_mixed() -> None:
    experiments = ("where", "where_full", "where_random")
    groups = study.group_by_variant([make_cell(name, "reading", 0, 1.0, 10) for name in experiments])
    assert {name: [cell["experiment"] for cell in cells] for name, cells in groups.items()} == {
        "reading": ["where_full"],
        "reading_window": ["where"],
        "reading_random": ["where_random"],
    }


def test_pairs_of_ledgers_have_tables_of_their_own() -> None:
    cells = [make_cell("where", "delegating", 0, 1.0, 10), make_cell("pairs", "pairs_table", 0, 0.25, 10)]
    text = study.page(cells, [])
    before, _, pairs = text.partition("## Pairs of ledgers")
    assert "| delegating |" in before
    assert "| pairs_table |" not in before
    assert "| 2x12 | pairs_table | 0.25 |" in pairs
    assert "pairs/pairs_table 1 2" in before
    predictions = [line for line in before.splitlines() if line.startswith("| pairs_table, ")]
    assert [line.endswith("**failed** |") for line in predictions] == [True, False], "on sizes of training, and beyond"
    assert "## Pairs of ledgers" not in study.page(cells[:1], [])


def test_a_model_without_a_window_sees_its_whole_context() -> None:
    cell = make_cell("where", "reading", 0, 1.0, 10)
    del cell["sizes"]["6x20"]["visible_context"]
    cell["sizes"]["6x20"]["peak_context"] = 717.0
    assert study.get_cost(cell, "6x20", "visible_context") == pytest.approx(717.0)
