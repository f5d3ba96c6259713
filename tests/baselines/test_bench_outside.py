"""RLlib's PPO as a row of the benchmark. Ray needs an environment of its own, in which `.ci/run` tests this."""

from __future__ import annotations

from pathlib import Path

import pytest

from selfcest_baselines.bench import BenchmarkCell, play
from selfcest_baselines.bench.runs import find_entry, load
from selfcest_baselines.progress import Examiner
from selfcest_env.errors import ConfigError
from selfcest_env.symbolic.scenarios import get_scenario

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
NAME = "rllib_ppo:RllibPPO"


@pytest.fixture(autouse=True)
def at_hand(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "examples" / "marl"))
    yield
    ray.shutdown()


def test_it_plays_another_scenario_with_options() -> None:
    made = play(BenchmarkCell("cells-16-v1", f"{NAME} epochs=4", 3), seconds=8)
    assert made.settings == repr(find_entry(f"{NAME} epochs=4"))
    assert made.points[-1][0] > made.points[0][0] == 0
    assert made.points[-1][1] >= 8
    with pytest.raises(ConfigError, match="epochs is 0; expected a whole number >= 1"):
        find_entry(f"{NAME} epochs=0")


def test_its_settings_are_those_of_the_stored_runs() -> None:
    stored = load(ROOT / "studies" / "scenarios" / "evidence" / "outside")
    assert {run.settings for run in stored.values()} == {repr(find_entry(NAME))}


def test_it_learns() -> None:
    """Random play earns 0.50; what fits the root's window and luck at the rest make 0.67."""
    entry, rules = find_entry(NAME), get_scenario("chain-4m2-v1").rules
    entry.load()
    examiner = Examiner(rules, seconds=30, until=0.7)
    entry.learn(rules, 0, examiner)
    assert examiner.points[-1].success >= 0.7
