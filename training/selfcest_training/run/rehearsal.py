"""Rehearses a config for a GPU: runs a small job of the same kind on a fake CUDA device.

It finds mistakes of device and dtype before a GPU is rented. `NOT_REACHED` says what it cannot find.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from selfcest_agents.language import language_of
from selfcest_agents.pretrained import model_config
from selfcest_env.errors import ConfigError
from selfcest_env.plugin import PlugIn
from selfcest_training.config import RunConfig
from selfcest_training.run.checkpoint import TrainState
from selfcest_training.run.fake_cuda import fake_cuda
from selfcest_training.run.job import Job, JobId, OnProgress

NOT_REACHED = (
    "the kernels of CUDA and their rounding",
    "vLLM",
    "flash and flex attention",
    "compiled models",
    "several ranks and NCCL",
    "memory and speed",
)

# Sizes of the small copy of a model, where its config has them.
SMALL_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 2,
}
# Tokens of each phase of the warm start, which are one pool: a few demonstrations.
PHASE_TOKENS = 2000


@dataclass(frozen=True)
class Rehearsal:
    """One finished rehearsal.

    Attributes:
        replaced: for each part of the config that the small job replaced, a phrase `PART by REPLACEMENT`.
        steps: steps of RL, at most 2.
        sampled_tokens, compute_tokens: of the small job, as in the metrics of a run.
        seconds: wall-clock time.
    """

    replaced: tuple[str, ...]
    steps: int
    sampled_tokens: int
    compute_tokens: int
    seconds: float


def rehearse(config: RunConfig, variant: str, folder: Path, on_progress: OnProgress) -> Rehearsal:
    """Run a small job on a fake CUDA device: warm start, a step of RL, a resume from its checkpoint, a second step.

    Args:
        config: of the run; `model.options.device` must name a CUDA device.
        variant: which policy of the config.
        folder: for the small model and the files of the job.
        on_progress: as of a `Job`.

    Raises:
        ConfigError: the config has no chat model on a CUDA device, or its model has no small copy.
        RuntimeError: the job mixed tensors of the host with tensors of the device.
    """
    start = time.monotonic()
    small, replaced = make_small_config(config, variant, folder)
    policy = small.variants[variant]
    first_step = replace(policy, rl=replace(policy.rl, steps=min(policy.rl.steps, 1)))
    with fake_cuda():
        _run_job(replace(small, variants={variant: first_step}), variant, on_progress)
        state = _run_job(small, variant, on_progress)
    return Rehearsal(replaced, state.step, state.sampled_tokens, state.compute_tokens, time.monotonic() - start)


def _run_job(config: RunConfig, variant: str, on_progress: OnProgress) -> TrainState:
    with closing(Job(config, JobId(variant, 0), on_progress)) as job:
        job.run(lambda: None)
        return job.state


def make_small_config(config: RunConfig, variant: str, folder: Path) -> tuple[RunConfig, tuple[str, ...]]:
    """Return the config of a small job of the same kind, and a phrase for each part that it replaces.

    Limits, protocol, credit, losses, rows, adapters, precision and gradient checkpointing stay as they are.

    Raises:
        ConfigError: see `rehearse`.
    """
    device = str(config.model.options.get("device", "cpu"))
    if config.model.name != "chat" or not device.startswith("cuda"):
        raise ConfigError(
            f"model is '{config.model.name}' on {device}; a rehearsal needs a chat model with model.options.device=cuda"
        )
    replaced = [
        f"the model by a copy with random weights, {SMALL_SIZES['num_hidden_layers']} layers and a width of "
        f"{SMALL_SIZES['hidden_size']}"
    ]
    options = {**config.model.options, "device": "cpu"}
    if options.get("attention") not in (None, "sdpa", "eager"):
        replaced.append(f"attention {options['attention']} by sdpa")
        options["attention"] = "sdpa"
    source = folder / "small_model"
    language_of(PlugIn(config.model.name, options)).save(build_small_model(str(options["source"])), source)
    sampler = config.sampler
    if sampler.name != "transformers":
        replaced.append(f"the engine {sampler.name} by that of transformers")
        dtypes = {name: value for name, value in sampler.options.items() if name == "dtype"}
        sampler = PlugIn("transformers", dtypes)
    if config.forward.compile:
        replaced.append("the compiled model by one that is not compiled")
    if config.cluster is not None:
        replaced.append("the ranks and workers of the cluster by one process")
    policy = config.variants[variant]
    phases = tuple(
        replace(phase, tokens=min(phase.tokens, PHASE_TOKENS), min_accuracy=None) for phase in policy.warmstart.phases
    )
    # One task at a time, so that a pool has tasks of several families.
    warmstart = replace(policy.warmstart, phases=phases, pool_tokens=PHASE_TOKENS, tasks_at_once=1)
    rl = replace(
        policy.rl,
        steps=min(policy.rl.steps, 2),
        tasks_per_step=policy.rl.minibatches,
        group_size=2,
        probes=0,
        sampled_tokens=None,
    )
    small = replace(
        config,
        name="rehearsal",
        output=str(folder),
        model=PlugIn(config.model.name, {**options, "source": str(source), "device": "cuda"}),
        sampler=sampler,
        forward=replace(config.forward, compile=False),
        cluster=None,
        compute_tokens=None,
        checkpoint_every=1,
        logging=(),
        variants={variant: replace(policy, warmstart=warmstart, rl=rl)},
    )
    return small, tuple(replaced)


def build_small_model(source: str) -> PreTrainedModel:
    """Build a model of the same architecture as `source`, with `SMALL_SIZES` and random weights.

    Raises:
        ConfigError: the architecture has no such sizes, or no model can be built with them.
    """
    architecture = model_config(source)
    for name, size in SMALL_SIZES.items():
        if hasattr(architecture, name):
            setattr(architecture, name, size)
    layer_types = getattr(architecture, "layer_types", None)
    if layer_types:
        architecture.layer_types = layer_types[: architecture.num_hidden_layers]
    try:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model: PreTrainedModel = AutoModelForCausalLM.from_config(architecture)  # type: ignore[no-untyped-call]
    except (ValueError, RuntimeError, AttributeError, KeyError) as error:
        raise ConfigError(
            f"{source} is a {architecture.model_type} model, and no small copy of it can be built ({error}); rehearse "
            "with the folder of a small model of that kind as model.options.source"
        ) from error
    return model
