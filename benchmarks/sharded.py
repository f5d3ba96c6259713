"""Compare the learner over several ranks with the learner of one process: the difference of gradients, and the cost.

    OMP_NUM_THREADS=1 python benchmarks/sharded.py [--ranks 2] [--smollm2] [--steps 3]

The ranks use Gloo on the CPU of this machine, without Ray, on random contexts that share prompts. Each case prints the
largest entry of the gradient, and the largest difference to the gradient of one process. The last case also prints the
CPU-seconds of a step in one process and in each rank, the bytes of weights and moments, and the seconds until the
driver has a checkpoint. The CPU-seconds are the least of all steps, so that other work on the machine matters less.
`--smollm2` uses SmolLM2-135M instead of the embedded model, with one case. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import psutil
import torch

from selfcest_agents.language import language_of
from selfcest_agents.lora import add_lora
from selfcest_agents.lora_options import LoraOptions
from selfcest_env.plugin import PlugIn
from selfcest_env.types import ROOT
from selfcest_training.cluster.group import LearnerGroup
from selfcest_training.cluster.processes import ProcessRanks
from selfcest_training.cluster.rank import LearnerSpec
from selfcest_training.learner.batch import Sample
from selfcest_training.learner.options import ForwardOptions, LossConfig, OptimizerConfig, Precision, Rows
from selfcest_training.learner.update import Learner, LearnerProtocol

# Without momentum and clipping, the first moment after a step is its gradient.
BARE = OptimizerConfig(warmup_steps=0, beta1=0.0, max_grad_norm=float("inf"))
LOSS = LossConfig()
HALF = ForwardOptions(Precision.BFLOAT16, gradient_checkpointing=True)
CASES: dict[str, dict[str, Any]] = {
    "adapter, rank 4": {"lora": LoraOptions(rank=4)},
    "packed rows": {"rows": Rows.PACKED},
    "bucketed rows": {},
    "whole logits": {"forward": ForwardOptions(logit_chunk=0)},
    "tree rows, bfloat16 autocast, checkpointed layers": {"rows": Rows.TREE, "forward": HALF},
    "tree rows": {"rows": Rows.TREE},
}


def draw(vocabulary: int, prompt: int, completion: int, groups: int) -> list[Sample]:
    """Draw groups of four contexts that share a prompt, with the weights of a mini-batch of all of them."""
    rng = np.random.default_rng(0)
    samples = []
    for _ in range(groups):
        shared = rng.integers(20, vocabulary, prompt)
        for _ in range(4):
            ids = np.concatenate([shared, rng.integers(20, vocabulary, int(rng.integers(completion // 2, completion)))])
            mask = np.arange(len(ids)) >= prompt
            behavior = np.where(mask, -np.log(vocabulary), 0).astype(np.float32)
            advantage = np.where(mask, rng.normal(), 0).astype(np.float32)
            ones = np.ones(len(ids), dtype=np.float32)
            weight = 1.0 / (4 * groups * completion)
            samples.append(Sample("e", ROOT, ids, mask, behavior, advantage, ones, weight))
    return samples


def alone(spec: LearnerSpec) -> Learner:
    model = language_of(spec.model).load(spec.seed)
    if spec.lora is not None:
        add_lora(model, spec.lora, spec.lora_seed)
    tokens = spec.micro_batch_tokens
    return Learner(model, spec.optimizer, pad_id=0, micro_batch_tokens=tokens, rows=spec.rows, forward=spec.forward)


def gradient(learner: LearnerProtocol) -> Mapping[str, torch.Tensor]:
    return {name: tensor for name, tensor in learner.state().moments.items() if name.endswith("/exp_avg")}


def compare(
    name: str, spec: LearnerSpec, ranks: ProcessRanks, samples: Sequence[Sample]
) -> tuple[Learner, LearnerGroup]:
    """Print how far the gradients of one process and of the ranks are apart. Return both learners, after that step."""
    single_learner = alone(spec)
    group = LearnerGroup(ranks, spec)
    num_micro_batches = len(list(single_learner.micro_batches(samples)))
    for learner in (single_learner, group):
        learner.policy_step(samples, LOSS)
    expected = gradient(single_learner)
    sharded = gradient(group)
    largest = max(float(tensor.abs().max()) for tensor in expected.values())
    difference = max(float((tensor - expected[key]).abs().max()) for key, tensor in sharded.items())
    print(
        f"{name}: {num_micro_batches} micro-batches, largest gradient {largest:.1e}, "
        f"largest difference {difference:.1e}",
        flush=True,
    )
    return single_learner, group


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def stepped(processes: list[psutil.Process], step: Callable[[], object], count: int) -> list[float]:
    """Return the CPU-seconds of a step in each process, the least of `count` steps."""
    least = [float("inf")] * len(processes)
    for _ in range(count):
        before = list(map(cpu_seconds, processes))
        step()
        after = list(map(cpu_seconds, processes))
        least = [min(known, end - start) for known, start, end in zip(least, before, after, strict=True)]
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--smollm2", action="store_true")
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    if options.smollm2:
        model = PlugIn("chat", {"source": "smollm2"})
        cases = {"tree rows": CASES["tree rows"]}
        samples = draw(49_000, 120, 40, 2 * options.ranks)
    else:
        model = PlugIn("tiny")
        cases = CASES
        # The number of groups is odd, so that the ranks get different numbers of micro-batches.
        samples = draw(190, 120, 40, 2 * options.ranks + 1)
    micro_batch_tokens = 400
    torch.set_num_threads(1)
    driver_process = psutil.Process()
    with ProcessRanks(options.ranks) as ranks:
        rank_processes = [psutil.Process(process.pid) for process in ranks.processes]
        specs = {name: replace(LearnerSpec(model, BARE, micro_batch_tokens), **case) for name, case in cases.items()}
        *first_names, last_name = specs
        for name in first_names:
            compare(name, specs[name], ranks, samples)
        single_learner, group = compare(last_name, specs[last_name], ranks, samples)
        single_seconds = stepped([driver_process], lambda: single_learner.policy_step(samples, LOSS), options.steps)
        rank_seconds = stepped(rank_processes, lambda: group.policy_step(samples, LOSS), options.steps)
        in_ranks = ", ".join(f"{seconds:.2f}" for seconds in rank_seconds)
        print(f"a step: {single_seconds[0]:.2f} CPU-seconds in one process, {in_ranks} in ranks")
        rank_mib = ", ".join(f"{size / 2**20:.1f}" for size in ranks.call("local_bytes"))
        start = time.monotonic()
        state = group.state()
        seconds = time.monotonic() - start
        num_bytes = sum(tensor.nbytes for tensor in (*state.weights.values(), *state.moments.values()))
        print(f"weights and moments: {num_bytes / 2**20:.1f} MiB in one process, {rank_mib} in ranks")
        print(f"gathered, and sent to the driver, in {seconds:.2f} s")


if __name__ == "__main__":
    main()
