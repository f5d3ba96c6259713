"""A wheel, installed away from the checkout: the game in an empty environment, the command with the extras at hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow
GAME = """
import importlib.util, selfcest_env
from selfcest_env import delegation_v0, symbolic_v0

env = delegation_v0.parallel_env("arithmetic")
env.reset(seed=42)
while env.agents:
    env.step({agent: "Answer: 42" for agent in env.agents})
print(env.team_return, selfcest_env.__version__, importlib.util.find_spec("torch"), selfcest_env.__file__)
"""


def run(folder: Path, *command: str | Path, **environment: str) -> str:
    """What a command prints, from another folder and without what this environment tells Python."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    found = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=clean | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(ROOT, sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder)
    (built,) = folder.glob("*.whl")
    return built


def test_the_game_alone_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    run(tmp_path, sys.executable, "-m", "venv", "venv")
    python = tmp_path / "venv" / "bin" / "python"
    run(tmp_path, python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "requirements" / "dev.in", wheel)
    team_return, version, torch, file = run(tmp_path, python, "-c", GAME).split()
    assert float(team_return) == 0.0
    assert f"-{version}-" in wheel.name
    assert torch == "None"
    assert Path(file).is_relative_to(tmp_path)


def test_the_command_and_a_policy_that_comes_with_it(wheel: Path, tmp_path: Path) -> None:
    """With the libraries of this environment, which its extra `train` names, and not with this checkout."""
    site = tmp_path / "site"
    run(tmp_path, sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", site, wheel)
    where = run(
        tmp_path, sys.executable, "-c", "import selfcest_training as t; print(t.__file__)", PYTHONPATH=str(site)
    )
    assert Path(where.strip()).is_relative_to(site)
    command = ("-m", "selfcest_training", "solve", "5:[40]-[59];[20]", "--policy", "deciding")
    assert "139" in run(tmp_path, sys.executable, *command, PYTHONPATH=str(site))
