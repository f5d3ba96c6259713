"""Tokens per CPU-second of SmolLM2: our transformers engine, with and without prefix reuse, and transformers' generate.

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive python benchmarks/generation.py [--dtype bfloat16]

Random prompts, sampled at temperature 1, nobody stops early. CPU time of one thread, so that other work on the machine
matters less. Nothing is asserted: the figures are for the documentation.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable

import torch
from transformers import PreTrainedModel

from selfcest_agents.engine import TokenRequest
from selfcest_agents.pretrained import load_chat_model, smollm2_path
from selfcest_agents.transformers.engine import TransformersEngine

Contexts = list[tuple[int, ...]]


def by_engine(model: PreTrainedModel, contexts: Contexts, new: int, prefix_tokens: int) -> None:
    engine = TransformersEngine(model, stop_ids=(), prefix_tokens=prefix_tokens)
    engine.submit([TokenRequest(f"r{i}", context, new, i) for i, context in enumerate(contexts)])
    while engine.pending:
        engine.poll()


def by_generate(model: PreTrainedModel, contexts: Contexts, new: int) -> None:
    ids = torch.tensor(contexts)
    mask = torch.ones_like(ids)
    # Transformers types `generate` for a class that exists in type checks only.
    model.generate(  # type: ignore[operator]
        ids, attention_mask=mask, max_new_tokens=new, min_new_tokens=new, do_sample=True, top_k=0
    )


def rate(work: Callable[[], None], tokens: int) -> float:
    start = time.process_time()
    work()
    return tokens / (time.process_time() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    dtype = parser.parse_args().dtype
    torch.set_num_threads(1)
    model = load_chat_model(smollm2_path(), dtype=dtype).model
    rng = random.Random(0)

    def prompt(length: int) -> tuple[int, ...]:
        return tuple(rng.randrange(100, 40_000) for _ in range(length))

    by_engine(model, [prompt(8)], 2, 0)  # warm up
    print(f"{dtype}, tokens per CPU-second: engine, engine with prefix reuse, generate")
    for name, contexts, new in (
        ("16 x (40 + 64)", [prompt(40) for _ in range(16)], 64),
        ("8 x (300 shared + 64)", [prompt(300)] * 8, 64),
    ):
        tokens = len(contexts) * new
        rates = (
            rate(lambda: by_engine(model, contexts, new, 0), tokens),  # noqa: B023
            rate(lambda: by_engine(model, contexts, new, 16384), tokens),  # noqa: B023
            rate(lambda: by_generate(model, contexts, new), tokens),  # noqa: B023
        )
        print(f"{name}:", ", ".join(f"{value:.0f}" for value in rates), flush=True)


if __name__ == "__main__":
    main()
