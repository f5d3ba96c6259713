"""The benchmark of learners on scenarios: statistics by hand, storage, resuming, entries of one's own."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

from selfcest_baselines.bench import ENTRIES, BenchmarkCell, Run, aggregate, interquartile_mean, play, profile, scores
from selfcest_baselines.bench.report import MAX_COLOURED, draw, format_scenarios, table
from selfcest_baselines.bench.runs import export, find_entry, load, play_all, settings_text, store
from selfcest_baselines.bench.summary import mean, paired
from selfcest_baselines.learner import LEARNERS, MarlLearner
from selfcest_cli.main import app
from selfcest_env.errors import ConfigError, PlugInError
from selfcest_env.structure import Checked, Count, Share
from selfcest_env.symbolic.scenarios import SCENARIOS

pytestmark = pytest.mark.usefixtures("one_thread")
ROOT = Path(__file__).parents[2]
QUICK = "chain-4m2-v1"


def run(*returns: float) -> Run:
    return Run(1.0, "made up", "0", tuple((10 * i, 0.1 * i, value) for i, value in enumerate(returns)))


class Guess(MarlLearner):
    """Plays the first legal action and learns nothing; never asks whether it is over before its third batch."""

    def learn(self, rules, seed, examiner):
        decisions = 0
        while not examiner(decisions, lambda observations, masks: masks.int().argmax(-1)):
            decisions += 10 + seed


@dataclass(frozen=True)
class Tuned(Checked, Guess):
    floor: Share = 0.5
    widths: tuple[Count, ...] = (8,)


class Silent(MarlLearner):
    def learn(self, rules, seed, examiner):
        pass


def test_the_learners_are_these() -> None:
    assert tuple(ENTRIES) == ("broadcast", "value", "coma", "difference", "diff_loo", "shapley", "maskable_ppo")
    assert tuple(LEARNERS) == tuple(ENTRIES)
    assert {name: type(entry) for name, entry in ENTRIES.items()} == {name: LEARNERS.load(name) for name in LEARNERS}


def test_interquartile_mean_by_hand() -> None:
    assert interquartile_mean(np.array([8.0, 1.0, 2.0, 100.0])) == 5.0  # of 2 and 8
    assert interquartile_mean(np.array([3.0, 1.0, 2.0])) == 2.0  # a quarter of three is none
    assert interquartile_mean(np.array([[0.0, 1.0, 1.0, 0.0], [4.0, 4.0, 4.0, 8.0]])).tolist() == [0.5, 4.0]


def test_intervals_are_stratified() -> None:
    """Two scenarios whose runs agree: nothing can be resampled but the same; were they mixed, anything could."""
    sure = aggregate([np.full(5, 0.2), np.full(5, 0.8)])
    assert sure == pytest.approx((0.5, 0.5, 0.5))
    spread = aggregate([np.array([0.0, 1.0, 0.0, 1.0]), np.full(4, 0.5)])
    assert spread.low < spread.value == 0.5 < spread.high
    assert str(aggregate([np.array([0.25]), np.array([0.75])])) == "0.50", "one run of each says nothing of others"


def test_aggregate_agrees_with_rliable() -> None:
    rliable = pytest.importorskip("rliable.metrics")
    values = np.random.default_rng(0).random((7, 5))  # [runs, tasks]
    assert aggregate(list(values.T)).value == pytest.approx(rliable.aggregate_iqm(values))


def test_profile_by_hand() -> None:
    found = profile([np.array([0.1, 0.5]), np.array([0.5, 0.9, 1.0, 1.0])], np.array([0.0, 0.5, 0.95]))
    assert found.tolist() == [1.0, (0 + 0.75) / 2, (0 + 0.5) / 2]


def test_scores_are_between_random_and_optimal_play() -> None:
    known = SCENARIOS[QUICK].reference
    results = {
        BenchmarkCell(QUICK, "coma", 0): run(0.9, known.random),
        BenchmarkCell(QUICK, "coma", 1): run(known.optimal),
    }
    assert scores(results, "coma")[QUICK].tolist() == [0.0, 1.0]
    assert "| `chain-4m2-v1` | 0.749 (1 of 2) |" in table(results)


def test_results_are_stored_and_read_back(tmp_path: Path) -> None:
    results = {BenchmarkCell(QUICK, "value", 0): run(0.5, 0.75), BenchmarkCell(QUICK, "mine:Own", 3): run(0.25)}
    store(results, tmp_path, QUICK)
    assert load(tmp_path) == results
    assert load(tmp_path / "nowhere") == {}
    (tmp_path / "deep-8-v1.json").write_text('{"coma": {"seed_0": [1]}}')
    with pytest.raises(ConfigError, match=r"deep-8-v1\.json cannot be read as runs of the benchmark"):
        load(tmp_path)


def test_the_layout_of_marl_eval(tmp_path: Path) -> None:
    known = SCENARIOS[QUICK].reference
    short, long = run(known.random, known.optimal), run(*[known.random] * 8, known.optimal)
    export({BenchmarkCell(QUICK, "coma", 2): short, BenchmarkCell(QUICK, "coma", 3): long}, tmp_path / "results.json")
    seeds = json.loads((tmp_path / "results.json").read_text())["selfcest"][QUICK]["coma"]
    seed = seeds["seed_2"]
    assert list(seed) == list(seeds["seed_3"]) == [*(f"step_{k}" for k in range(31)), "absolute_metrics"]
    assert seed["step_0"] == {"step_count": 0, "elapsed_time": 0.0, "return": [known.random], "score": [0.0]}
    # Points were at 0 and 0.1 s of 1 s, of which a thirtieth is a step.
    assert [seed[f"step_{k}"]["score"] for k in (2, 3, 30)] == [[0.0], [1.0], [1.0]]
    assert seed["step_3"]["step_count"] == 100
    assert seed["absolute_metrics"] == {"return": [known.optimal], "score": [1.0]}


@pytest.mark.parametrize("entry", [*ENTRIES])
def test_every_entry_plays(entry: str) -> None:
    made = play(BenchmarkCell("cells-16-v1" if entry == "shapley" else QUICK, entry, 0), seconds=0.3)
    assert made.points[0][0] <= made.points[-1][0]
    assert made.points[-1][0] > 0
    assert made.points[-1][1] >= 0.3


def test_an_entry_of_ones_own() -> None:
    made = play(BenchmarkCell(QUICK, f"{__name__}:Guess", 2), seconds=0.01)
    assert made.points[0][0] == 0
    assert made.points[-1][0] % 12 == 0
    with pytest.raises(PlugInError, match="never called its examiner"):
        play(BenchmarkCell(QUICK, f"{__name__}:Silent", 0), seconds=0.01)
    with pytest.raises(ConfigError, match=r"unknown learner 'comma'. Did you mean 'coma'"):
        play(BenchmarkCell(QUICK, "comma", 0), seconds=0.01)


def test_an_entry_of_ones_own_has_options() -> None:
    named = f"{__name__}:Tuned"
    made = play(BenchmarkCell(QUICK, f"{named} floor=1 widths=[4,2]", 0), seconds=0.01)
    assert made.settings == repr(Tuned(1.0, (4, 2))) != repr(find_entry(named))
    for said, match in {
        f"{named} flor=1": r"flor is unknown. Did you mean 'floor'\? Tuned has floor, widths",
        f"{named} floor=2": r"floor is 2; expected a number from 0 to 1",
        f"{named} floor": r"the option 'floor' is not of the form key=value",
        f"{__name__}:Guess floor=1": r"floor is unknown; Guess has no options",
        "coma floor=1": r"learner 'coma floor=1' has options; expected 'coma' alone",
        "": r"unknown learner ''",
    }.items():
        with pytest.raises(ConfigError, match=match):
            find_entry(said)


def test_entries_with_other_options_are_other_columns(tmp_path: Path) -> None:
    cells = [BenchmarkCell(QUICK, f"{__name__}:Tuned{words}", 7) for words in ("", " floor=1", " floor=0.5")]
    stored = {cell: replace(run(0.5), settings=repr(find_entry(cell.entry))) for cell in cells}
    store(stored, tmp_path, QUICK)
    play_all(cells, 1.0, tmp_path, 1, lambda cell, made: pytest.fail(f"{cell} was made again"))
    assert load(tmp_path) == stored
    assert table(stored).splitlines()[0].count("Tuned") == 3
    store({cells[1]: replace(stored[cells[1]], settings=repr(Tuned(0.25)))}, tmp_path, QUICK)
    with pytest.raises(ConfigError, match=r"Tuned floor=1 seed 7 with other settings, Tuned\(floor=0\.25"):
        play_all(cells, 1.0, tmp_path, 1, lambda cell, made: None)


def test_pairs_are_of_one_scenario_and_one_seed() -> None:
    """By hand: 0.3 and 0.5 more on the seeds that both have; what the rest of the pairs would be is far from it."""
    known = SCENARIOS[QUICK].reference
    ends = {("coma", 0): 0.5, ("coma", 1): 0.9, ("coma", 2): 0.0, ("value", 0): 0.2, ("value", 1): 0.4, ("value", 9): 1}
    results = {
        BenchmarkCell(QUICK, *cell): run(known.random + score * (known.optimal - known.random))
        for cell, score in ends.items()
    }
    assert paired(results, "coma", "value")[QUICK].tolist() == pytest.approx([0.3, 0.5])
    assert aggregate([*paired(results, "coma", "value").values()], mean) == pytest.approx((0.4, 0.3, 0.5))
    assert table(results).splitlines()[-1] == "| mean difference to `coma`, paired by seed | - | -0.40 [-0.50, -0.30] |"
    alone = {BenchmarkCell(QUICK, "coma", 0): run(1.0), BenchmarkCell(QUICK, "value", 1): run(1.0)}
    assert table(alone).splitlines()[-1] == "| mean difference to `coma`, paired by seed | - | - |"


def test_the_page_is_what_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    made = importlib.import_module("studies.scenarios.study")
    stored, outside, tuning = load(made.STORE), load(made.OUTSIDE), load(made.OUTSIDE / "tuning")
    assert made.page(stored, outside, tuning) == (ROOT / "docs" / "benchmark.md").read_text(encoding="utf-8")
    entries, seeds = (sorted({getattr(cell, part) for cell in stored}) for part in ("entry", "seed"))
    assert set(stored) == {BenchmarkCell(*cell) for cell in product(SCENARIOS, entries, range(len(seeds)))}
    assert len({run.budget for run in stored.values()}) == 1
    for cell, run in stored.items():
        assert run.settings == settings_text(ENTRIES[cell.entry], cell.entry), f"{cell} was made with other settings"
    played = ("chain-4m2-v1", "noisy-c005-v1", "cells-16-v1")
    assert set(outside) == {BenchmarkCell(name, "rllib_ppo:RllibPPO", seed) for name in played for seed in range(5)}
    assert {run.budget for run in (*outside.values(), *tuning.values())} == {run.budget for run in stored.values()}
    assert {run.settings for run in outside.values()} <= {run.settings for run in tuning.values()}
    assert not {cell.seed for cell in tuning} & set(seeds), "tuned on what is reported"


@pytest.mark.slow
def test_only_what_is_lacking_is_made(tmp_path: Path) -> None:
    there = {BenchmarkCell(QUICK, "coma", 0): replace(run(0.125), settings=settings_text(ENTRIES["coma"], "coma"))}
    store(there, tmp_path, QUICK)
    made: list[BenchmarkCell] = []
    cells = [BenchmarkCell(QUICK, "coma", 0), BenchmarkCell(QUICK, "broadcast", 0)]
    with pytest.raises(ConfigError, match=r"holds coma seed 0 with a budget of 1 CPU seconds; expected 0\.05: pass"):
        play_all(cells, 0.05, tmp_path, 1, lambda cell, _: made.append(cell))
    play_all(cells, 1.0, tmp_path, 1, lambda cell, _: made.append(cell))
    assert made == [BenchmarkCell(QUICK, "broadcast", 0)]
    assert load(tmp_path)[BenchmarkCell(QUICK, "coma", 0)] == there[BenchmarkCell(QUICK, "coma", 0)]
    store({BenchmarkCell(QUICK, "coma", 0): run(0.125)}, tmp_path, QUICK)
    with pytest.raises(ConfigError, match="holds coma seed 0 with other settings, made up; expected the current"):
        play_all(cells, 1.0, tmp_path, 1, lambda cell, _: made.append(cell))


def test_the_plot_names_the_best_learner_and_colours_five(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, *a, **b: figures.append(figure) or save(figure, *a, **b))
    returns = dict(zip(ENTRIES, (0.1, 0.2, 0.3, 0.4, 0.5, 1.0, 0.6), strict=True))
    results = {BenchmarkCell(QUICK, name, 0): run(value) for name, value in returns.items()}
    draw(results, tmp_path / "profiles.png")
    (axis,) = figures[0].axes
    assert axis.get_title() == "shapley passes half of optimal play most often (1 scenario)"
    assert axis.get_legend_handles_labels()[1][0] == "shapley (100%)"
    assert [line.get_linestyle() for line in axis.lines] == ["-"] * MAX_COLOURED + ["--"] * 2
    assert len({line.get_color() for line in axis.lines}) == MAX_COLOURED + 1


def test_the_command(tmp_path: Path) -> None:
    store(
        {BenchmarkCell(QUICK, "coma", 0): replace(run(0.125, 1.0), settings=settings_text(ENTRIES["coma"], "coma"))},
        tmp_path,
        QUICK,
    )
    asked = ["bench", QUICK, "--learner", "coma", "--seeds", "1", "--seconds", "1", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    assert "| `chain-4m2-v1` | 1.000 (1 of 1) |" in done.output
    made = {file.name for file in tmp_path.iterdir()}
    assert made == {f"{QUICK}.json", "results.json", "table.md", "profiles.png", ".lock"}
    listed = CliRunner().invoke(app, ["bench", "--list"])
    assert format_scenarios() in listed.output
    assert isinstance(CliRunner().invoke(app, ["bench", "chain"]).exception, ConfigError)
