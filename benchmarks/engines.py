"""vLLM against our transformers engine: are they exact, what do they make per CPU-second, what does a push cost.

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive .venv-vllm/bin/python benchmarks/engines.py [--dtype bfloat16]

Greedy and sampled requests on a model that is perturbed and pushed in between. `tok/CPU-s` counts generated ids over
the CPU time of this process and of all that it started, so that other work on the machine matters less.
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

from selfcest_agents.engine import Completion, Engine, TokenRequest  # noqa: E402
from selfcest_agents.pretrained import smollm2_path  # noqa: E402
from selfcest_agents.transformers.engine import TransformersEngine  # noqa: E402
from selfcest_agents.vllm_engine import VllmEngine, VllmOptions  # noqa: E402

TIE = 1e-3  # logits closer than this are a tie: batches of different shape round differently


def requests(vocab_size: int, count: int, prompt: int, new: int) -> list[TokenRequest]:
    rng = random.Random(0)
    contexts = [tuple(rng.randrange(vocab_size) for _ in range(prompt)) for _ in range(count)]
    return [TokenRequest(f"r{i}", context, new, i, 0.0) for i, context in enumerate(contexts)]


def cpu_seconds() -> float:
    here = psutil.Process()
    return sum(sum(process.cpu_times()[:2]) for process in (here, *here.children(recursive=True)))


def play(engine: Engine, work: Sequence[TokenRequest], label: str) -> dict[str, Completion]:
    """Completions by key; prints how many ids a CPU-second made."""
    cpu, start = cpu_seconds(), time.perf_counter()
    engine.submit(work)
    found: dict[str, Completion] = {}
    while engine.pending:
        found |= {completion.key: completion for completion in engine.poll()}
    made = sum(len(completion.token_ids) for completion in found.values())
    wall = time.perf_counter() - start
    print(f"{label}: {made} ids, {made / (cpu_seconds() - cpu):.0f} tok/CPU-s, {made / wall:.0f} tok/s")
    return found


def compare(
    model: PreTrainedModel, work: Sequence[TokenRequest], ours: dict[str, Completion], vllm: dict[str, Completion]
) -> None:
    """Print at how many requests greedy ids part, and how far the two logits are apart there."""
    parted = []
    for request in work:
        a, b = ours[request.key].token_ids, vllm[request.key].token_ids
        place = next((i for i, pair in enumerate(zip(a, b, strict=False)) if pair[0] != pair[1]), None)
        if place is not None:
            with torch.inference_mode():
                logits = model(torch.tensor([[*request.context_ids, *a[:place]]])).logits[0, -1]
            parted.append(abs(float(logits[a[place]] - logits[b[place]])))
    ties = sum(gap < TIE for gap in parted)
    print(f"greedy: {len(work) - len(parted)} of {len(work)} equal, {ties} ties, logits apart {sorted(parted)[-3:]}")


def logprob_gap(model: PreTrainedModel, work: Sequence[TokenRequest], found: dict[str, Completion]) -> None:
    """Print how far vLLM's log-probs are from those of one uncached pass in float32."""
    gaps = []
    for request in work:
        made = found[request.key]
        ids = torch.tensor([[*request.context_ids, *made.token_ids]])
        first = len(request.context_ids)
        with torch.inference_mode():
            logits = model(ids).logits[0, first - 1 : -1].double() / request.temperature
        own = torch.log_softmax(logits, -1).gather(1, ids[0, first:, None])[:, 0]
        gaps.append((own - torch.tensor(made.logprobs, dtype=torch.float64)).abs())
    gap = torch.cat(gaps)
    print(f"log-probs: mean {float(gap.mean()):.1e}, max {float(gap.max()):.1e} apart from a float32 pass")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=None, help="a model folder; SmolLM2-135M-Instruct unless given")
    parser.add_argument("--dtype", default="float32", help="of vLLM; the transformers engine has float32")
    parser.add_argument("--own-process", action="store_true", help="give vLLM a process of its own")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=150, help="ids of a prompt")
    parser.add_argument("--new", type=int, default=64, help="ids to generate")
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    folder = options.model or smollm2_path()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    work = requests(model.config.vocab_size, options.requests, options.prompt, options.new)
    sampled = [replace(request, temperature=0.7) for request in work]
    start = time.perf_counter()
    asked = VllmOptions(options.dtype, max_positions=1024, in_process=not options.own_process)
    with VllmEngine(folder, stop_ids=(), options=asked) as engine:
        print(f"start: {time.perf_counter() - start:.1f} s")
        play(engine, [replace(request, max_new_tokens=2) for request in work], "vLLM, warming up")
        engine.load_weights(model.named_parameters(), 0)  # forgets the prompts
        compare(model, work, play(TransformersEngine(model, stop_ids=()), work, "ours"), play(engine, work, "vLLM"))
        logprob_gap(model, sampled, play(engine, sampled, "vLLM, prompts cached"))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
        for version in range(1, 4):
            cpu, start = cpu_seconds(), time.perf_counter()
            engine.load_weights(model.named_parameters(), version)
            print(f"push {version}: {time.perf_counter() - start:.2f} s, {cpu_seconds() - cpu:.2f} CPU-s")
        compare(model, work, play(TransformersEngine(model, stop_ids=()), work, "ours"), play(engine, work, "vLLM"))
        logprob_gap(model, sampled, play(engine, sampled, "vLLM, prompts cached"))


if __name__ == "__main__":
    main()
