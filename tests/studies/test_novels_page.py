"""The page on facts in a novel, on cells written by hand, and the configs of its cells."""

from __future__ import annotations

from dataclasses import asdict, replace
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from selfcest_cli.calibrate import Play, list_shapes
from selfcest_env.graders.qa import Overlap
from selfcest_eval.play.config import parse_study
from selfcest_eval.play.results import ResultKey
from selfcest_training.config_file import load_config, read_config
from selfcest_training.planning.crossing import DELEGATE, FULL_READER, MEMORY, STRATEGIES, LinearCount, TextLengths
from selfcest_training.planning.shapes import get_model_shape
from studies.novels import seconds, study
from studies.novels.study import (
    EVERY_SEED,
    PLAYED,
    STORIES,
    TRAINED,
    TUNED_ON,
    VARIANTS,
    _bound,
    _compare,
    _loses_at_most,
    _share_of_path,
    check_stories,
    collect,
    configure_play,
    configure_training,
    digest_stories,
    draw,
    get_accuracy,
    page,
    rerun,
    split_by_size,
)
from studies.runner import Rerun

COSTS = {"total_tokens": 900.0, "critical_path_tokens": 30.0, "flops": 3e12, "ideal_memory": 4e8}


def make_cell(variant: str, seed: int, **strategies: dict[str, str]) -> dict[str, Any]:
    path = 3000.0 if variant == "memory" else 30.0
    return {
        "experiment": "novels",
        "arm": variant,
        "seed": seed,
        "config": "c0",
        "version": "0",
        "commit": "1234567890",
        "cpu_seconds": 60.0,
        "gpus": ["H100"],
        "gpu_seconds": 50.0 + seed,
        "compute_tokens": 1200000,
        "attempts": 1,
        "strategies": {
            strategy: {size: {"right": right, **COSTS, "critical_path_tokens": path} for size, right in sizes.items()}
            for strategy, sizes in strategies.items()
        },
    }


CELLS = [
    make_cell("delegating", 0, delegate={"4k": "1110", "16k": "1100"}, bm25={"4k": "1000"}),
    make_cell("delegating", 1, delegate={"4k": "1111", "16k": "1111"}),
    make_cell("memory", 0, memory_agent={"4k": "1100"}),
]


def make_result(
    size: str,
    task: str,
    *,
    right: bool,
    style: str | None = None,
    exact: float | None = None,
) -> Any:
    place = ResultKey("qa2", size, "out", "delegate", None, 0, task, style)  # type: ignore[arg-type]
    reports = None if exact is None else Overlap(exact, exact, exact, exact)
    costs = {"total_tokens": 100.0 if right else 300.0, "failed_episodes": 0.0}
    return SimpleNamespace(place=place, grade=SimpleNamespace(correct=right), costs=costs, reports=reports)


def test_right_answers_stand_in_the_order_of_the_stories_and_means_leave_out_what_is_missing() -> None:
    results = [
        make_result("4k", "b", right=False, exact=0.5),
        make_result("4k", "a", right=True),
        make_result("16k", "a", right=True, exact=1.0),
        make_result("4k", "a", right=True, style="solve"),  # of an expert
    ]
    assert collect(results) == {
        "delegate": {
            "4k": {"right": "10", "total_tokens": 200.0, "report_exact": 0.5, "report_f1": 0.5},
            "16k": {"right": "1", "total_tokens": 100.0, "report_exact": 1.0, "report_f1": 1.0},
        }
    }


def test_predictions_are_judged_for_each_seed() -> None:
    assert get_accuracy(CELLS, "delegate", "4k") == {0: 0.75, 1: 1.0}
    assert _compare("delegate", "memory_agent", "4k")(CELLS) == [0.25], "the rival has one seed"
    assert _compare("delegate", "memory_agent", "16k")(CELLS) is None
    assert _bound("delegate", "16k", low=0.6)(CELLS) == pytest.approx([-0.1, 0.0])
    assert _bound("delegate", "16k", low=0.5, high=0.9)(CELLS) == pytest.approx([0.0, -0.1])
    assert _loses_at_most("delegate", 0.2, "4k", "16k")(CELLS) == pytest.approx([-0.05, 0.2])
    assert _share_of_path("delegate", "memory_agent", "4k", 0.25)(CELLS) == pytest.approx([0.24])


def test_the_page_shows_every_seed_and_names_what_is_missing() -> None:
    text = page(CELLS, None, [])
    assert "| `delegate` | 0.75 1.00 | 0.50 1.00 |" in text
    assert "| `memory_agent` | 0.50 | – |" in text
    assert "| `memory_agent` | 4k | 900 | 3,000 | 3.00 | 0.40 |" in text
    assert "delegating/seed2, memory/seed1, memory/seed2, full_reader/seed0" in text
    assert "| delegating/seed1 | H100 | 51 |" in text
    assert "Cells that have not been run yet: delegating/seed0" in page([], None, [])


def test_the_page_first_says_how_the_clones_stand_against_the_memory() -> None:
    assert "the memory** at" not in page(CELLS, None, []), "no seed has both at 16,000 tokens"
    cells = [
        make_cell("delegating", 0, delegate={"4k": "1" * 40, "16k": "1100"}),
        make_cell("memory", 0, memory_agent={"4k": "0" * 40, "16k": "0110"}),
        make_cell("delegating", 1, delegate={"4k": "1" * 40, "16k": "1111"}),
        make_cell("memory", 1, memory_agent={"4k": "0" * 20 + "1" * 20, "16k": "1111"}),
        make_cell("delegating", 2, delegate={"4k": "0" * 40, "16k": "0000"}),  # no memory has this seed
    ]
    cells[-1]["strategies"]["delegate"]["16k"]["flops"] = 1e15
    text = page(cells, None, []).replace("\n", " ")
    assert "**Clones are right more often than the memory** at 4,000 tokens" in text
    assert "right answers is +0.75" in text
    assert "by seed 1.00 0.50, and +0.00" in text
    # The critical paths of `make_cell` have 30 and 3,000 tokens.
    assert "There they compute 1.00 of its FLOPs, and generate 0.01 of its tokens in series." in text
    even = [
        make_cell("delegating", 0, delegate={"4k": "10", "16k": "1"}),
        make_cell("memory", 0, memory_agent={"4k": "01", "16k": "1"}),
    ]
    assert "**Clones cannot be told apart from the memory** at 4,000 tokens" in page(even, None, [])


@pytest.mark.parametrize(("clones", "calls"), [(1.0, True), (0.25, False)])
def test_a_search_is_not_judged_by_clones_that_were_trained_on_other_texts(clones: float, calls: bool) -> None:
    played = {"4k": "0" * 40, "16k": "0000"}
    cell = make_cell("delegating", 0, delegate={"4k": "1" * 40, "16k": "1111"}, bm25_sentences_one_hop=played)
    cell["strategies"]["bm25_sentences_one_hop"]["4k"]["clones"] = clones
    text = page([cell], None, [])
    assert "**Clones are right more often than the same clones on the sentences that a search finds**" in text
    assert "**It says nothing of search**" in text
    assert ("And the root called 0.25 clones a story" in text) is not calls
    # All differences are 1. If 3 / 40 of the stories differ by -1, the mean is 1 - 6 / 40.
    assert "+1.00 [+0.85, +1.00]" in text


def test_the_picture_has_a_line_for_each_seed_and_no_size_of_few_stories(tmp_path: Path) -> None:
    cells = [make_cell("delegating", 0, delegate={"4k": "1110", "128k": "10"})]
    draw([*cells, make_cell("delegating", 1, delegate={"4k": "1"})], tmp_path / "two.png")
    draw(cells, tmp_path / "one.png")
    assert (tmp_path / "two.png").read_bytes() != (tmp_path / "one.png").read_bytes()
    draw([make_cell("delegating", 0, delegate={"4k": "1110"})], tmp_path / "without.png")
    assert (tmp_path / "without.png").read_bytes() == (tmp_path / "one.png").read_bytes()


def test_a_cell_plays_no_other_stories_than_the_frozen_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    (config, *_) = split_by_size(configure_play("memory", 1, "run"))
    source = {"name": "ledger_qa", "options": {}}
    config = {**config, "tasks": {"qa1_4k": source}, "episodes": 2}
    first = digest_stories(config)
    assert digest_stories({**config, "task_seed": 1}) != first
    monkeypatch.setattr(study, "FROZEN_STORIES", {"4k": first})
    check_stories(config)
    monkeypatch.setattr(study, "FROZEN_STORIES", {"4k": "other"})
    with pytest.raises(SystemExit, match=f"stories of 4k tokens have the digest {first}; expected other: compare"):
        check_stories(config)


def test_the_page_judges_its_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    predictions = {"above": _bound("delegate", "4k", low=0.7), "below": _bound("delegate", "4k", high=0.9)}
    predictions["missing"] = _compare("delegate", "memory_agent", "16k")
    monkeypatch.setattr(study, "PREDICTIONS", predictions)
    text = page(CELLS, None, [])
    # 0.75 and 1.00 are right. A bound has the smaller of the distances to both of its ends as its margin.
    assert "| above | 0.05 0.00 | held |" in text
    assert "| below | 0.15 -0.10 | **failed** |" in text
    assert "| missing | not run yet |  |" in text


# One length for one text and for sixteen. The memory was not measured for sixteen.
LENGTHS = TextLengths("by hand", 512, 100, LinearCount(80, 5), LinearCount(40, 0), LinearCount(10, 4), 8, 16)
PLAYS = [
    Play(FULL_READER, 1, 4096, 3.0, (3.0,)),
    Play(DELEGATE, 1, 4096, 6.0, (5.0, 6.0, 9.0)),
    Play(MEMORY, 1, 4096, 7.0, (8.0,)),
    Play(FULL_READER, 1, 8192, 10.0, (10.0,)),
    Play(DELEGATE, 1, 8192, 5.0, (5.0,)),
    Play(MEMORY, 1, 8192, 7.0, (8.0,)),
    Play(FULL_READER, 16, 4096, 90.0, (100.0,)),
    Play(DELEGATE, 16, 4096, 50.0, (60.0,)),
    Play(MEMORY, 16, 4096, 70.0, (), "it would take more than 60 s"),
]
TIMED = {
    "machine": "Linux, 2 CPUs",
    "threads": 2,
    "commit": "1234567890",
    "lengths": asdict(LENGTHS),
    "flops_crossing": 4032.0,
    "crossings": [
        {"at_once": 1, "length": 5200.0, "low": 5100.0, "high": 5300.0},
        {"at_once": 16, "length": 2600.0, "low": 2100.0, "high": None},
    ],
    "plays": [asdict(play) for play in PLAYS],
    "costs": [{"strategy": name, "text_tokens": 8192, "flops": 1e12, "memory": 7e8} for name in STRATEGIES],
}


def test_the_page_shows_predicted_and_measured_seconds() -> None:
    text = page([], TIMED, [])
    # From 2 to 1/2 between 4,096 and 8,192 tokens; 1 is in the middle of powers.
    assert "| 1 | 4,032 | 5,200 (5,100 to 5,300) | 5,793 | 5,793 | 1.00 |" in text
    assert "| 16 | 4,032 | 2,600 (2,100 to none) | none | none | - |" in text
    assert "| 1 | 4,096 | 3 (3) | 6 (6) | 8 (7) |" in text
    assert "| 16 | 4,096 | 100 (90) | 60 (50) | - (70) |" in text
    assert "from 5,800 tokens on, and from\nnone with 16" in text
    assert "predicted 5,200 and 2,600. Against\nthe memory it takes not measured of" in text
    assert "| 8,192 | 1.00 | 1.00 | 1.00 | 0.70 | 0.70 | 0.70 |" in text
    assert "(Linux, 2 CPUs, 2 threads, float32, commit `1234567`)" in text


def test_predictions_of_seconds_are_judged_on_the_measured_ones() -> None:
    margins = [(margin, verdict) for _, margin, verdict in seconds.make_prediction_lines(TIMED)]
    missing = ("not measured", "")
    # 0.2 - 0; both crossings of 16 are below all lengths; 0.67 - 5 / 10; no text has 16,384 tokens.
    expected = [("0.20", "held"), ("0.20", "held"), ("0.17", "held"), missing, missing, missing]
    assert margins == expected
    assert seconds.make_prediction_lines(None)[0][1] == "not run yet"
    # The formula says that delegation is slower at each length, and the clock does not.
    slow = [replace(play, predicted=100.0) if play.strategy == DELEGATE else play for play in PLAYS]
    failed = {**TIMED, "plays": [asdict(play) for play in slow]}
    assert seconds._predicts_within(0.2, 1)(failed) == -inf
    assert seconds.make_prediction_lines(failed)[0][1:] == ["no crossing", "**failed**"]
    assert seconds._predicts_within(0.2, 1)({**TIMED, "plays": []}) is None
    # Neither has a crossing for 16 texts: by the formula delegation is slower, on the clock it is faster.
    assert seconds._predicts_within(0.2, 16)(failed) == -inf
    # 5 of 8 seconds.
    between = seconds._takes_between(0.7, 1.0, DELEGATE, MEMORY, 8192, 1)
    assert between(TIMED) == pytest.approx(5 / 8 - 0.7)


def test_every_text_of_the_cell_fits_the_window() -> None:
    config = load_config(seconds.TIMED, seconds.CHANGES)
    window = get_model_shape(config.model).config.max_position_embeddings
    assert window == 4 * 8192
    assert get_model_shape(replace(config.model, options={"source": "smollm2"})).config.max_position_embeddings == 8192
    for at_once, lengths in seconds.LENGTHS.items():
        for length in lengths:
            for strategy in STRATEGIES:
                shapes = list_shapes(strategy, LENGTHS, length, at_once)
                assert max(shape.prompt_tokens + shape.new_tokens for shape in shapes) <= window


def test_a_root_waits_in_memory_for_its_clones() -> None:
    # Two parts: a root of 90 + 40 tokens, and two clones of 100 + 512 + 8; at its end the root has 130 + 18 + 16 + 16.
    assert seconds.count_cached_tokens(DELEGATE, LENGTHS, 1024) == 130 + 2 * 620
    assert seconds.count_cached_tokens(FULL_READER, LENGTHS, 1024) == 100 + 1024 + 16
    assert seconds.count_cached_tokens(MEMORY, LENGTHS, 1024) == 100 + 8 + 512 + 8


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_cell_plays_the_strategies_of_its_policy(variant: str) -> None:
    first = configure_play(variant, 0, "run")
    assert parse_study(first).seeds == (0,)
    assert f"runs/run/{variant}/seed{{seed}}/model" in str(first)
    assert "runs/novels" not in str(first)
    later = configure_play(variant, 2, "run")["strategies"].keys()
    assert later == first["strategies"].keys() & set(EVERY_SEED)
    tuned = configure_play(variant, 100, "run")
    assert tuned["tasks"] == read_config(TUNED_ON)["tasks"]
    assert [*configure_training(variant)["variants"]] == [variant]


def test_sizes_are_played_apart_each_with_the_strategies_that_play_it() -> None:
    played = {config["name"]: config for config in split_by_size(configure_play("delegating", 0, "run"))}
    assert list(played) == ["run_4k", "run_16k", "run_32k", "run_128k"]
    assert "bm25_16" not in played["run_4k"]["strategies"]
    assert "bm25" not in played["run_128k"]["strategies"]
    assert all("delegate" in config["strategies"] for config in played.values())
    for config in played.values():
        parsed = parse_study(config)
        assert len(parsed.eval_sets) == 1
        assert parsed.tasks.keys() == {parsed.eval_sets[0].family}
    for size in ("4k", "16k"):
        (task,) = played[f"run_{size}"]["tasks"].values()
        assert task["options"]["source"]["limit"] == STORIES[size]
    gate = {
        label for config in split_by_size(configure_play("full_reader", 100, "run")) for label in config["strategies"]
    }
    assert gate == {"full_reader"}, "16,000 tokens are more than its window"
    later = [config["name"] for config in split_by_size(configure_play("memory", 1, "run"))]
    assert later == ["run_4k", "run_16k", "run_32k"], "one seed plays 128,000 tokens"


def test_a_policy_with_a_model_of_its_own_is_on_the_device_of_the_others() -> None:
    options = configure_play("full_reader", 0, "run")["strategies"]["full_reader_scaled_not_fine_tuned"]["policy"][
        "options"
    ]
    trained = read_config(TRAINED)
    assert options["model"]["options"] == {**trained["model"]["options"], "rope_factor": 4}
    assert options["sampler"]["options"]["dtype"] == trained["sampler"]["options"]["dtype"]
    assert options["sampler"]["options"]["max_batch_size"] == 2


def test_every_strategy_belongs_to_one_cell() -> None:
    played = [label for variant in VARIANTS for label in configure_play(variant, 0, "run")["strategies"]]
    assert sorted(played) == sorted(read_config(PLAYED)["strategies"])


@pytest.mark.parametrize("name", ["delegating", "other/seed0", "memory/seedx"])
def test_a_cell_that_is_not_there_is_refused(name: str, tmp_path: Any) -> None:
    with pytest.raises(SystemExit, match="expected seconds, or VARIANT/seedN with a variant of delegating, memory"):
        rerun(name, Rerun(tmp_path, tmp_path))
