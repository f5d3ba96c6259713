"""The recipes for GPUs: all is built but the model, which stops at the device that is not here, and each is planned."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from selfcest_agents.vllm_engine import VllmOptions
from selfcest_env.errors import ConfigError
from selfcest_env.plugin import PlugIn
from selfcest_env.structure import construct
from selfcest_training.commands.plan import print_plan
from selfcest_training.config_file import load_config
from selfcest_training.evaluation.training_run import study_of
from selfcest_training.planning.memory import longest_context
from selfcest_training.planning.shapes import model_shape
from selfcest_training.run.job import Job, JobId

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "training" / "configs" / "gpu").glob("*.yaml"))
pytestmark = pytest.mark.usefixtures("one_thread")


def names() -> list[str]:
    return [path.stem for path in RECIPES]


@pytest.mark.parametrize("path", RECIPES, ids=names())
def test_a_recipe_is_built_up_to_the_missing_device(path: Path) -> None:
    config = load_config(path)
    for arm in config.arms:
        if not torch.cuda.is_available():
            with pytest.raises(ConfigError, match="device is 'cuda', but torch sees 0 CUDA devices"):
                Job(config, JobId(arm, 0), lambda *_: None)
        small = PlugIn("tiny", {"max_positions": 4096})  # in the place of what needs the device
        built = replace(config, model=small, sampler=PlugIn("transformers", {"dtype": "float32"}), cluster=None)
        Job(built, JobId(arm, 0), lambda *_: None).close()
        vllm = construct(VllmOptions, config.sampler.options, place="sampler.options")
        assert longest_context(config.limits_of(arm), model_shape(config.model)) <= (vllm.max_positions or 0)
    assert len(study_of(config).cells) == len(config.evaluation.cells)


@pytest.mark.slow
@pytest.mark.parametrize("path", RECIPES, ids=names())
def test_a_recipe_fits_where_it_says(path: Path) -> None:
    """One GPU of 80 GiB each; the smallest one of 24 GiB."""
    console = Console(width=200, record=True, file=io.StringIO())
    memory = 24.0 if "06b" in path.stem else 80.0
    print_plan(load_config(path), console, memory=memory, episodes=None, curve=None)
    said = console.export_text()
    assert ": fits" in said
    assert "tight" not in said
    assert "too much" not in said


def test_every_recipe_is_on_the_page() -> None:
    page = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    for path in RECIPES:
        assert f"`{path.name}`" in page
