"""The scripts of docs/adapters.md learn, as the page's commands run them.

Two need libraries that pin other versions than the lock's; `.ci/run` tests them in environments of their own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "docs" / "examples" / "marl"
# The library that a script needs, and a share of right answers that cannot be reached without delegating: the shares of
# games that the root alone may answer, and luck at the others.
RECIPES = {
    "benchmarl_mappo": ("benchmarl", 0.9),
    "cleanrl_ppo": ("torch", 0.9),
    "pettingzoo_variable_agents": ("torch", 0.9),
    "rllib_ppo": ("ray", 0.9),
    "sb3_maskable_ppo": ("sb3_contrib", 0.95),
    "sb3_ppo": ("stable_baselines3", 0.9),
    "supersuit_ppo": ("supersuit", 0.8),
    "torchrl_ppo": ("torchrl", 0.8),
}


def success(name: str, *arguments: str) -> float:
    """What the script prints when all is done."""
    script = [sys.executable, str(SCRIPTS / f"{name}.py"), *arguments]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in (".", "agents", "training"))}
    played = subprocess.run(script, env=env, capture_output=True, text=True)
    assert played.returncode == 0, played.stderr[-4000:]
    said = re.search(r"^success (\d\.\d+)$", played.stdout, re.MULTILINE)
    assert said is not None, played.stdout
    return float(said[1])


def test_every_script_has_a_threshold() -> None:
    assert {script.stem for script in SCRIPTS.glob("*.py")} == set(RECIPES)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(RECIPES))
def test_the_script_learns(name: str) -> None:
    library, threshold = RECIPES[name]
    pytest.importorskip(library)
    assert success(name) > threshold


@pytest.mark.slow
def test_the_script_for_maskable_ppo_learns_whatever_the_seed() -> None:
    """With Tanh, SB3's default, seed 2 ended at 0.668."""
    pytest.importorskip("sb3_contrib")
    assert min(success("sb3_maskable_ppo", seed) for seed in "123") > RECIPES["sb3_maskable_ppo"][1]
