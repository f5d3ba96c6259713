"""Memory and CPU time of sampling with an adapter per role: a merged copy for each, and one engine that adds them.

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive python benchmarks/role_adapters.py

A model of 27 M random weights in float32 with rank 16 plays rounds of root and clone requests. The adapters change
before each round, and the sampler is synced. Each variant runs in a process of its own, with one thread. Its memory is
the growth of the process since the learner's model was built. Nothing is asserted: the figures are for the
documentation.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from pathlib import Path

import torch

from selfcest_agents.engine import Completion, TokenRequest
from selfcest_agents.language import language_of
from selfcest_agents.lora import add_lora
from selfcest_agents.lora_options import LoraOptions
from selfcest_agents.samplers import Sampler, SamplerByRole, TransformersSampler
from selfcest_env.plugin import PlugIn
from selfcest_env.types import Role

MODEL = PlugIn(
    "tiny", {"hidden_size": 512, "num_layers": 8, "num_heads": 8, "intermediate_size": 1536, "max_positions": 512}
)
CONTEXT = 200  # ids of each context
NEW = 32  # ids that each request generates at most
ROUNDS = 2
VARIANTS = ("merged", "added")


def make_requests(count: int) -> list[TokenRequest]:
    rng = random.Random(0)
    requests = []
    for i in range(count):
        context = tuple(rng.randrange(30, 90) for _ in range(CONTEXT))
        requests.append(TokenRequest(f"r{i}", context, NEW, i, 1.0, list(Role)[i % 2]))
    return requests


def play(sampler: Sampler | SamplerByRole, requests: list[TokenRequest]) -> int:
    """Play all requests and return the number of generated ids."""
    samplers = sampler.by_role if isinstance(sampler, SamplerByRole) else dict.fromkeys(Role, sampler)
    for role, role_sampler in samplers.items():
        role_sampler.engine.submit([request for request in requests if request.role is role])
    num_ids = 0
    for engine in {id(each.engine): each.engine for each in samplers.values()}.values():
        while engine.pending:
            completions = [result for result in engine.poll() if isinstance(result, Completion)]
            num_ids += sum(len(completion.token_ids) for completion in completions)
    return num_ids


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096


def measure(variant: str, count: int) -> None:
    """Print memory in MB, and CPU milliseconds per generated id and per sync."""
    torch.set_num_threads(1)
    language = language_of(MODEL)
    model = language.load(0)
    add_lora(model, LoraOptions(rank=16, per_role=True), seed=0)
    before = resident_bytes()
    spec = TransformersSampler(merge_lora=variant == "merged")
    sampler: Sampler | SamplerByRole
    if variant == "merged":
        sampler = SamplerByRole({role: spec.start(language, model) for role in Role})
    else:
        sampler = spec.start(language, model)
    requests = make_requests(count)
    sync_seconds = 0.0
    play_seconds = 0.0
    num_ids = 0
    for version in range(ROUNDS):
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if ".lora_B." in name:
                    parameter.normal_(0, 0.003)
        start = time.process_time()
        sampler.sync(model, version)
        synced = time.process_time()
        num_ids += play(sampler, requests)
        sync_seconds += synced - start
        play_seconds += time.process_time() - synced
    print((resident_bytes() - before) / 1e6, 1e3 * play_seconds / num_ids, 1e3 * sync_seconds / ROUNDS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variant", choices=VARIANTS, help="measure one variant only, in this process")
    parser.add_argument("--requests", type=int, default=8, help="requests of both roles in a round")
    arguments = parser.parse_args()
    if arguments.variant is not None:
        measure(arguments.variant, arguments.requests)
        return
    print(f"{arguments.requests} requests: memory MB, CPU ms per id, CPU ms per sync")
    figures = []
    for variant in VARIANTS:
        command = [sys.executable, __file__, "--variant", variant, "--requests", str(arguments.requests)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        figures.append([float(figure) for figure in output.split()])
        print(f"{variant:14}", "  ".join(f"{figure:.1f}" for figure in figures[-1]), flush=True)
    ratios = [added / merged for merged, added in zip(*figures, strict=True)]
    print("added / merged", "  ".join(f"{ratio:.2f}" for ratio in ratios))


if __name__ == "__main__":
    main()
