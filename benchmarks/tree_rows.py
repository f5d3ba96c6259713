"""Compare tree rows and packed rows with bucketed rows: CPU time and peak memory of a forward and backward pass.

    OMP_NUM_THREADS=1 python benchmarks/tree_rows.py [--prompt 300] [--completion 64] [--group 8]

The model is a small Llama with random weights, on random ids, in a fresh process for each layout. Time is CPU time of
one thread, the least of three passes, so that other work on the machine matters less. Memory is the peak minus the
memory of the loaded model. Packed rows are made for attention kernels of a GPU and have a dense mask here. Nothing is
asserted.
"""

from __future__ import annotations

import argparse
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from selfcest_env.types import ROOT
from selfcest_training.learner.batch import Sample
from selfcest_training.learner.losses import weighted_sum
from selfcest_training.learner.options import OptimizerConfig, Rows
from selfcest_training.learner.update import Learner

VOCABULARY = 512
NUM_GROUPS = 2
NUM_PASSES = 3


def build() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=256, intermediate_size=768, num_hidden_layers=6, num_attention_heads=4
    )
    config._attn_implementation = "sdpa"
    model: LlamaForCausalLM = LlamaForCausalLM(config).eval()  # type: ignore[no-untyped-call]
    return model


def draw(prompt: int, completion: int, group: int) -> list[Sample]:
    rng = np.random.default_rng(0)
    samples = []
    for _ in range(NUM_GROUPS):
        shared = rng.integers(VOCABULARY, size=prompt)
        for _ in range(group):
            ids = np.concatenate([shared, rng.integers(VOCABULARY, size=completion)])
            mask = np.arange(len(ids)) >= prompt
            ones = np.ones(len(ids), dtype=np.float32)
            zeros = np.zeros(len(ids), dtype=np.float32)
            samples.append(Sample("e", ROOT, ids, mask, zeros, ones, ones, 1.0))
    return samples


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(rows: Rows, prompt: int, completion: int, group: int) -> tuple[int, float, float]:
    """Return the ids of a pass, its CPU-seconds, and the MiB of its peak memory."""
    torch.set_num_threads(1)
    samples = draw(prompt, completion, group)
    learner = Learner(build(), OptimizerConfig(), pad_id=0, micro_batch_tokens=8192, rows=rows)
    before = peak_mib()
    seconds: list[float] = []
    tokens = 0
    for _ in range(NUM_PASSES):
        start = time.process_time()
        tokens = 0
        for batch in learner.micro_batches(samples):
            torch.autograd.backward(weighted_sum(-learner.logprobs(batch), batch.weights, batch.loss_mask))
            tokens += batch.num_tokens
        seconds.append(time.process_time() - start)
    return tokens, min(seconds), peak_mib() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompt", type=int, default=300)
    parser.add_argument("--completion", type=int, default=64)
    parser.add_argument("--group", type=int, default=8)
    options = vars(parser.parse_args())
    measurements: dict[Rows, tuple[int, float, float]] = {}
    for rows in Rows:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            measurements[rows] = pool.submit(measure, rows, **options).result()
        tokens, seconds, memory = measurements[rows]
        print(f"{rows}: {tokens} ids, {seconds:.2f} CPU-seconds, {memory:.0f} MiB", flush=True)
    ratios = [slow / fast for slow, fast in zip(measurements[Rows.BUCKETED], measurements[Rows.TREE], strict=True)]
    print("bucketed / tree: {:.1f} x the ids, {:.1f} x the time, {:.1f} x the memory".format(*ratios))


if __name__ == "__main__":
    main()
