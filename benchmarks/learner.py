"""One optimiser step of ours against one of TRL's GRPOTrainer: completion ids per CPU-second, and peak memory.

    OMP_NUM_THREADS=1 python benchmarks/learner.py [--models smollm2 tiny] [--shapes 300+64 48+64] [--json]

Two prompts with 8 completions each, as fixed random ids, so that nothing is generated: forward, backward, clipping and
AdamW on float32 weights, in a fresh process for each line. TRL wants another transformers than ours, so an environment
is made for it in the cache folder, once; `--peer-python` names one that has TRL. TRL has its own defaults, one batch of
all completions; ours has tree rows in one batch. Both are measured with and without gradient checkpointing, which is on
by default in TRL and off in ours. Time is CPU time of one thread, the least of two steps, so that other work on the
machine matters less; memory is the peak less what the process had with its model loaded.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from learner_peer import GROUP, NUM_PROMPTS, NUM_STEPS, Cost, Meter, Work
from transformers import AutoModelForCausalLM

from selfcest_agents.pretrained import smollm2_path
from selfcest_agents.tiny import TinyConfig, TinyTokenizer, build_tiny, save_pretrained
from selfcest_env.types import ROOT
from selfcest_training.learner.batch import Sample
from selfcest_training.learner.options import ForwardOptions, LossConfig, OptimizerConfig, Precision, Rows
from selfcest_training.learner.update import Learner

PEER = ("trl==1.16.0", "torch==2.13.0")
HERE = Path(__file__).parent
TINY = TinyConfig(hidden_size=128, num_layers=5, intermediate_size=384)


def our_step(work: Work) -> Cost:
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(work.folder, dtype=torch.float32, attn_implementation="sdpa").eval()
    meter = Meter(model)
    precision = Precision.BFLOAT16 if work.bfloat16 else Precision.FLOAT32
    learner = Learner(
        model,
        OptimizerConfig(),
        pad_id=0,
        micro_batch_tokens=1 << 20,
        rows=Rows.TREE,
        forward=ForwardOptions(precision, gradient_checkpointing=work.checkpointing),
    )
    for _ in range(NUM_STEPS):
        meter.start()
        learner.policy_step(list(samples(work)), LossConfig())
        meter.stop()
    return meter.cost()


def samples(work: Work) -> Iterator[Sample]:
    for i, (prompt, completion) in enumerate(zip(*work.ids(), strict=True)):
        ids = np.array([*prompt, *completion])
        mask = np.arange(len(ids)) >= len(prompt)
        ones = np.ones(len(ids), dtype=np.float32)
        # On policy, as TRL takes it: a ratio of 1 is not known before the step, so the sampler's are of this size.
        logprobs, advantages = np.where(mask, -11, 0).astype(np.float32), mask * np.float32(i % GROUP - 3.5)
        yield Sample(f"e{i}", ROOT, ids, mask, logprobs, advantages, ones, 1 / (work.completion * NUM_PROMPTS * GROUP))


def peer_python() -> Path:
    """Python of an environment with TRL, made on first use."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "selfcest"
    python = cache / "-".join(PEER).replace("==", "") / "bin" / "python"
    if not python.exists():
        print(f"making an environment with {' and '.join(PEER)} in {python.parents[1]}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", python.parents[1]], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PEER], check=True)
    return python


def measured(python: Path, script: str, *arguments: str) -> Cost:
    """The last line that the script prints in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [str(python), str(HERE / script), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return Cost(**json.loads(done.stdout.splitlines()[-1]))


def compare(name: str, work: Work, peer: Path) -> dict[str, object]:
    ours = measured(Path(sys.executable), "learner.py", "--work", json.dumps(asdict(work)))
    theirs = measured(peer, "learner_peer.py", json.dumps(asdict(work)))
    made = work.completion * NUM_PROMPTS * GROUP
    return {
        "model": name,
        "shape": f"{work.prompt}+{work.completion}",
        "precision": "bfloat16" if work.bfloat16 else "float32",
        "checkpointing": work.checkpointing,
        "ours_tokens_per_cpu_second": made / ours.cpu_seconds,
        "trl_tokens_per_cpu_second": made / theirs.cpu_seconds,
        "speed_ratio": theirs.cpu_seconds / ours.cpu_seconds,
        "ours_mebibytes": ours.mebibytes,
        "trl_mebibytes": theirs.mebibytes,
        "memory_share": ours.mebibytes / theirs.mebibytes,
    }


def line(values: Iterable[object]) -> str:
    return " | ".join(f"{value:.2f}" if isinstance(value, float) else str(value) for value in values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=("smollm2", "tiny"), default=["smollm2", "tiny"])
    parser.add_argument("--shapes", nargs="+", default=["300+64", "48+64"], help="prompt+completion, in ids")
    parser.add_argument("--precisions", nargs="+", choices=list(Precision), default=list(Precision)[::-1])
    parser.add_argument("--checkpointing", nargs="+", choices=("off", "on"), default=["off", "on"])
    parser.add_argument("--peer-python", type=Path, help="of an environment that has TRL")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each comparison, and no table")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        print(json.dumps(asdict(our_step(Work(**json.loads(given.work))))))
        return
    peer = given.peer_python or peer_python()
    with tempfile.TemporaryDirectory() as tiny:
        save_pretrained(build_tiny(TINY, seed=0), TinyTokenizer(), tiny)
        folders = {"tiny": tiny, "smollm2": str(smollm2_path()) if "smollm2" in given.models else ""}
        cases = [
            (name, Work(folders[name], *map(int, shape.split("+")), precision == Precision.BFLOAT16, again == "on"))
            for name in given.models
            for shape in given.shapes
            for precision in given.precisions
            for again in given.checkpointing
        ]
        for i, (name, work) in enumerate(cases):
            found = compare(name, work, peer)
            if given.json:
                print(json.dumps(found), flush=True)
                continue
            if i == 0:
                print(line(found))
            print(line(found.values()), flush=True)


if __name__ == "__main__":
    main()
