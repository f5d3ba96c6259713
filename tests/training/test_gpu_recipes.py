"""The recipes for GPUs: all is built but the model, which stops at the device that is not here, and each is planned."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from selfcest_agents.samplers import make_sampler
from selfcest_agents.vllm_engine import VllmOptions
from selfcest_cli.plan import print_plan
from selfcest_env.errors import ConfigError
from selfcest_env.plugin import PlugIn
from selfcest_env.structure import construct
from selfcest_eval.report.training_run import make_run_study
from selfcest_training.cluster.config import check_resources
from selfcest_training.config_file import load_config
from selfcest_training.planning.memory import max_context_length
from selfcest_training.planning.shapes import get_model_shape
from selfcest_training.run.job import Job, JobId, check_options, check_stages
from selfcest_training.stages.registry import make_stages

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "training" / "configs" / "gpu").glob("*.yaml"))
pytestmark = pytest.mark.usefixtures("one_thread")


def names() -> list[str]:
    return [path.stem for path in RECIPES]


@pytest.mark.parametrize("path", RECIPES, ids=names())
def test_a_recipe_is_built_up_to_the_missing_device(path: Path) -> None:
    config = load_config(path)
    for variant in config.variants:
        if not torch.cuda.is_available():
            with pytest.raises(ConfigError, match="device is 'cuda', but torch sees 0 CUDA devices"):
                Job(config, JobId(variant, 0), lambda *_: None)
        small = PlugIn("tiny", {"max_positions": 4096})  # in the place of what needs the device
        built = replace(config, model=small, sampler=PlugIn("transformers", {"dtype": "float32"}), cluster=None)
        Job(built, JobId(variant, 0), lambda *_: None).close()
        vllm = construct(VllmOptions, config.sampler.options, place="sampler.options")
        assert max_context_length(config.limits_of(variant), get_model_shape(config.model)) <= (vllm.max_positions or 0)
    assert len(make_run_study(config).eval_sets) == len(config.evaluation.eval_sets)


# What its first lines start Ray on; the job's own process has a GPU that Ray does not see.
NODES = {"qwen25_7b_8gpus": [7], "qwen25_7b_2nodes": [7, 8]}
CLUSTERED = [path for path in RECIPES if load_config(path).cluster is not None]


@pytest.mark.parametrize("path", CLUSTERED, ids=lambda path: path.stem)
def test_a_recipe_for_a_cluster_can_be_placed_on_it_and_on_nothing_less(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {one.stem for one in CLUSTERED} == NODES.keys()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())  # vLLM, which need not be here
    config = load_config(path)
    cluster, sampler = config.cluster, make_sampler(config.sampler.name, config.sampler.options)
    assert cluster is not None
    for variant in config.variants:
        check_options(config, variant, sampler)
        check_stages(config, variant, make_stages(config.variants[variant].rl))
    nodes = [{"CPU": 32.0, "GPU": float(gpus)} for gpus in NODES[path.stem]]
    check_resources(cluster, nodes)
    assert sum(NODES[path.stem]) == cluster.rollout_workers + cluster.learner_ranks, "none is left idle"
    nodes[-1]["GPU"] -= 1
    with pytest.raises(ConfigError, match="GPU together, but the cluster has|but the cluster has room for"):
        check_resources(cluster, nodes)
    with pytest.raises(ConfigError, match="device is cuda and cluster.backend is gloo.*set cluster.backend=nccl"):
        check_options(replace(config, cluster=replace(cluster, backend="gloo")), variant, sampler)
    with pytest.raises(ConfigError, match=r"cluster.learner_resources gives none; set cluster.learner_resources.GPU=1"):
        check_options(replace(config, cluster=replace(cluster, learner_resources={"CPU": 2})), variant, sampler)


@pytest.mark.parametrize("path", CLUSTERED, ids=lambda path: path.stem)
def test_a_recipe_s_job_stops_at_the_missing_device_with_its_cluster_block(path: Path) -> None:
    """With a small model on the CPU in the place of its own, and what must go with that, all else is as it stands."""
    config = load_config(path)
    assert config.cluster is not None
    small = PlugIn("tiny", {"max_positions": 4096})
    here = replace(config.cluster, backend="gloo")
    built = replace(config, model=small, sampler=PlugIn("transformers", {"dtype": "float32"}), cluster=here)
    for variant in built.variants:
        Job(built, JobId(variant, 0), lambda *_: None).close()
    too_many = replace(here, learner_ranks=100_000)
    with pytest.raises(
        ConfigError, match=r"cluster.learner_ranks is 100000 and a mini-batch of variants.*at its fullest"
    ):
        Job(replace(built, cluster=too_many), JobId("delegating", 0), lambda *_: None)


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
