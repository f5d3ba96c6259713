"""The page on the architecture: its paths exist, and every row of its table works from outside the packages."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import outside
import pytest
from rich.console import Console

from selfcest_baselines.bench import BenchmarkCell, play
from selfcest_baselines.learner import LEARNERS
from selfcest_baselines.train import train
from selfcest_cli.study import run_study
from selfcest_env import symbolic_v0
from selfcest_env.record import read_episodes
from selfcest_env.reward import TERMS
from selfcest_env.symbolic.rules import SymbolicRules
from selfcest_env.symbolic.tasks import make_task
from selfcest_env.tasks import SOURCES
from selfcest_eval.play.config import StudyConfig
from selfcest_eval.play.strategies import STRATEGIES
from selfcest_training.config_file import parse_as, parse_config
from selfcest_training.credit import SCHEMES
from selfcest_training.run.job import Job, JobId
from selfcest_training.stages.registry import GROUP_FILTERS, REWARD_SCHEDULES, TASK_SAMPLERS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.split("|")[1:-1]]
    for line in PAGE.partition("| to add |")[2].partition("\n\n")[0].splitlines()[2:]
]


def test_every_path_of_the_page_is_there() -> None:
    for path in re.findall(r"`((?:selfcest_env|agents|training|studies|tests|benchmarks)/[\w/.]+)`", PAGE):
        assert (ROOT / path).exists(), path
    for room in re.findall(r"^\| (`[^|]+`)", PAGE.partition("| room |")[2].partition("##")[0], flags=re.M):
        for name in re.findall(r"`([\w/.]+)`", room):
            assert (ROOT / name).exists() or (ROOT / "agents" / name).exists() or (ROOT / "training" / name).exists()


TINY = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 16, "max_positions": 64}
RUN: dict[str, Any] = {
    "name": "t",
    "model": {"name": "outside:Whisper", "options": {**TINY, "protocol": "outside:Polite"}},
    "sampler": {"name": "outside:WatchedSampler"},
    "limits": {"total_tokens": 48, "turn_tokens": 16, "answer_reserve": 4, "max_turns": 2, "max_depth": 0},
    "reward": {
        "name": "correct",
        "options": {
            "grader": {"name": "outside:LastCharacter"},
            "per_turn": {"name": "outside:PerTurn", "price": 0.1},
            "praise": {"name": "outside:Praise", "weight": 0.5},
        },
    },
    "tasks": {"echo": {"name": "outside:Echo", "options": {"largest": 7}}},
    "log_groups": 9,
    "variants": {
        "alone": {
            "warmstart": {
                "phases": [{"tokens": 500, "mix": {"echo": {"share": 1, "styles": {"solve": 1}}}}],
                "pool_tokens": 500,
            },
            "rl": {
                "steps": 2,
                "tasks": {"echo": 1},
                "tasks_per_step": 4,
                "group_size": 2,
                "task_sampler": {"name": "outside:Twins"},
                "group_filter": {"name": "outside:NotTheFirst"},
                "reward_schedule": {"name": "outside:Halving"},
                "credit": {"name": "outside:Raw"},
                "loss": {
                    "name": "outside:Reinforce",
                    "terms": {"surprise": {"weight": 0.01, "name": "outside:Surprise"}},
                },
            },
        }
    },
}
STUDY: dict[str, Any] = {
    "name": "s",
    "tasks": {"echo": {"name": "outside:Echo"}},
    "eval_sets": [{"family": "echo", "size": "any"}],
    "strategies": {"plain": {}, "frugal": {"name": "outside:Frugal"}},
    "policy": {"name": "study_players:Scripted"},
    "budgets": [60],
    "limits": {"max_depth": 0, "turn_tokens": 16},
    "costs": {"squared": {"name": "outside:Squared", "options": {"scale": 2.0}}},
    "episodes": 4,
}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training run, a study and a learner in which everything comes from outside; the run's folder."""
    outside.seen.clear()
    folder = tmp_path_factory.mktemp("outside")
    job = Job(parse_config({**RUN, "output": str(folder)}), JobId("alone", 0), lambda *_: None)
    job.run(lambda: None)
    run_study(parse_as(StudyConfig, {**STUDY, "output": str(folder)}), resume=False, console=Console(quiet=True))
    chain = SymbolicRules(make_task("outside:Short"), max_clones=2)
    train(LEARNERS.make("outside:Blunt", {"episodes": 16, "hidden": [8]}, where=""), chain, decisions=50)
    play(BenchmarkCell("chain-4m2-v1", "outside:Idle", 0), seconds=0.01)
    outside.seen["symbolic task"] += symbolic_v0.parallel_env("outside:Short").reset(seed=0)[0] != {}
    return job.folder


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_of_the_table_holds(trace: Path, row: list[str]) -> None:
    assert outside.seen[row[0]] > 0


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_it_is_named_where_the_row_says(row: list[str]) -> None:
    """Every key of the third column leads to a class from outside in the configs above."""
    for key in re.findall(r"`([\w.]+)`", row[3]):
        node: Any = STUDY if key.partition(".")[0] in ("strategies", "costs") else RUN
        for part in key.split("."):
            if part in ("VARIANT", "NAME"):
                node = next(value for name, value in node.items() if "outside:" in str(value) and name != "grader")
            else:
                node = node[part]
        assert node.startswith("outside:"), key


def test_the_table_has_every_row_and_no_other() -> None:
    assert [row[0] for row in ROWS] == [
        "task source", "grader", "reward term", "process reward", "reward schedule", "task sampler", "group filter",
        "credit scheme", "loss term", "engine", "language", "protocol", "strategy", "cost", "symbolic task",
        "MARL credit", "MARL learner",
    ]  # fmt: skip


def test_what_came_from_outside_is_in_the_records(trace: Path) -> None:
    episodes = list(read_episodes(trace / "episodes.jsonl"))
    assert {episode.weights["per_turn"] for episode in episodes} == {1.0, 0.5}
    assert {episode.task.source for episode in episodes} == {"echo"}
    assert {len(episode.by_turn.get("praise", {})) for episode in episodes} == {0, 1}, "some were brief"
    assert len(episodes) == 2 * (3 + 2 + 3), "the group filter leaves out the first of 2 + 3 + 2 + 3"


def test_every_method_is_found_as_a_strangers_plug_in_is() -> None:
    """Each entry point leads to a class of the kind of its group, and no registry has it built in."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    kinds = (SCHEMES, SOURCES, TASK_SAMPLERS, GROUP_FILTERS, REWARD_SCHEDULES, STRATEGIES, TERMS)
    registries = {registry.group: registry for registry in kinds}
    own = {group: references for group, references in project["entry-points"].items() if group.startswith("selfcest.")}
    assert registries.keys() == own.keys()
    for group, references in own.items():
        registry = registries[group]
        for name, reference in references.items():
            assert name not in registry.builtins
            assert registry[name] == reference
            assert registry.load(name).__module__.startswith("selfcest_methods.")
