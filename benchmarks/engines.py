"""Compare vLLM with our transformers engine: exactness, tokens per CPU-second, and the cost of a weight push.

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive .venv-vllm/bin/python benchmarks/engines.py [--dtype bfloat16]

Both engines play greedy and sampled requests, on a model that is perturbed and pushed in between. `tok/CPU-s` divides
the generated ids by the CPU time of this process and of its children, so that other work on the machine matters less.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "agents")]  # the environment of vLLM does not install the project

from selfcest_agents.engine import Completion, Engine, FailedRequest, TokenRequest  # noqa: E402
from selfcest_agents.pretrained import smollm2_path  # noqa: E402
from selfcest_agents.transformers.engine import TransformersEngine  # noqa: E402
from selfcest_agents.vllm_engine import VllmEngine, VllmOptions  # noqa: E402

TIE = 1e-3  # logits closer than this are a tie: batches of different shape round differently


def requests(vocab_size: int, count: int, prompt: int, new: int) -> list[TokenRequest]:
    rng = random.Random(0)
    work: list[TokenRequest] = []
    for i in range(count):
        context = tuple(rng.randrange(vocab_size) for _ in range(prompt))
        work.append(TokenRequest(f"r{i}", context, new, i, 0.0))
    return work


def cpu_seconds() -> float:
    this_process = psutil.Process()
    processes = (this_process, *this_process.children(recursive=True))
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def play(engine: Engine, work: Sequence[TokenRequest], label: str) -> dict[str, Completion]:
    """Play all requests, print the rates, and return the completions by key."""
    start_cpu = cpu_seconds()
    start = time.perf_counter()
    engine.submit(work)
    completions: dict[str, Completion] = {}
    while engine.pending:
        for result in engine.poll():
            if isinstance(result, FailedRequest):
                raise result.error
            completions[result.key] = result
    num_ids = sum(len(completion.token_ids) for completion in completions.values())
    wall = time.perf_counter() - start
    print(f"{label}: {num_ids} ids, {num_ids / (cpu_seconds() - start_cpu):.0f} tok/CPU-s, {num_ids / wall:.0f} tok/s")
    return completions


def compare(
    model: PreTrainedModel, work: Sequence[TokenRequest], ours: dict[str, Completion], vllm: dict[str, Completion]
) -> None:
    """Print how many requests have different greedy ids, and the gap of the two logits at the first difference."""
    gaps: list[float] = []
    for request in work:
        our_ids = ours[request.key].token_ids
        vllm_ids = vllm[request.key].token_ids
        pairs = enumerate(zip(our_ids, vllm_ids, strict=False))
        position = next((i for i, (our_id, vllm_id) in pairs if our_id != vllm_id), None)
        if position is not None:
            with torch.inference_mode():
                logits = model(torch.tensor([[*request.context_ids, *our_ids[:position]]])).logits[0, -1]
            gaps.append(abs(float(logits[our_ids[position]] - logits[vllm_ids[position]])))
    ties = sum(gap < TIE for gap in gaps)
    print(f"greedy: {len(work) - len(gaps)} of {len(work)} equal, {ties} ties, logits apart {sorted(gaps)[-3:]}")


def logprob_gap(model: PreTrainedModel, work: Sequence[TokenRequest], completions: dict[str, Completion]) -> None:
    """Print the difference of vLLM's log-probs to those of one uncached pass in float32."""
    gaps = []
    for request in work:
        completion = completions[request.key]
        ids = torch.tensor([[*request.context_ids, *completion.token_ids]])
        first = len(request.context_ids)
        with torch.inference_mode():
            logits = model(ids).logits[0, first - 1 : -1].double() / request.temperature
        expected = torch.log_softmax(logits, -1).gather(1, ids[0, first:, None])[:, 0]
        gaps.append((expected - torch.tensor(completion.logprobs, dtype=torch.float64)).abs())
    gap = torch.cat(gaps)
    print(f"log-probs: mean {float(gap.mean()):.1e}, max {float(gap.max()):.1e} apart from a float32 pass")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=None, help="a model folder (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--dtype", default="float32", help="dtype of vLLM; the transformers engine uses float32")
    parser.add_argument("--own-process", action="store_true", help="run vLLM in its own process")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=150, help="number of ids of a prompt")
    parser.add_argument("--new", type=int, default=64, help="number of ids to generate")
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    folder = options.model or smollm2_path()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    work = requests(model.config.vocab_size, options.requests, options.prompt, options.new)
    sampled = [replace(request, temperature=0.7) for request in work]
    start = time.perf_counter()
    vllm_options = VllmOptions(options.dtype, max_positions=1024, in_process=not options.own_process)
    with VllmEngine(folder, stop_ids=(), options=vllm_options) as engine:
        print(f"start: {time.perf_counter() - start:.1f} s")
        play(engine, [replace(request, max_new_tokens=2) for request in work], "vLLM, warming up")
        engine.load_weights(model.named_parameters(), 0)  # forgets the prompts
        compare(model, work, play(TransformersEngine(model, stop_ids=()), work, "ours"), play(engine, work, "vLLM"))
        logprob_gap(model, sampled, play(engine, sampled, "vLLM, prompts cached"))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
        for version in range(1, 4):
            start_cpu = cpu_seconds()
            start = time.perf_counter()
            engine.load_weights(model.named_parameters(), version)
            print(f"push {version}: {time.perf_counter() - start:.2f} s, {cpu_seconds() - start_cpu:.2f} CPU-s")
        compare(model, work, play(TransformersEngine(model, stop_ids=()), work, "ours"), play(engine, work, "vLLM"))
        logprob_gap(model, sampled, play(engine, sampled, "vLLM, prompts cached"))


if __name__ == "__main__":
    main()
