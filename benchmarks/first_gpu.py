"""What to run first on a machine with a GPU: tests, parity with the CPU, a step of RL on each engine, speed.

    python benchmarks/first_gpu.py [--out first_gpu.json] [--rehearse]

It takes about ten minutes and writes one JSON file to attach to an issue. A part that fails is written down with its
error, the other parts run all the same, and the exit code is 1. With --rehearse a CUDA device that the CPU imitates
takes the place of the GPU: the script itself is tried, the tests are left out, and the speeds mean nothing.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import torch

from selfcest_agents.engine import TokenRequest
from selfcest_agents.pretrained import ChatLanguage, smollm2_path
from selfcest_agents.transformers.engine import TransformersEngine
from selfcest_env.types import ROOT
from selfcest_training.config_file import load_config
from selfcest_training.learner.batch import Sample
from selfcest_training.learner.options import ForwardOptions, LossConfig, OptimizerConfig, Precision, Rows
from selfcest_training.learner.update import ForwardOutput, Learner
from selfcest_training.run.fake_cuda import fake_cuda
from selfcest_training.run.job import Job, JobId
from selfcest_training.run.rehearsal import rehearse

HERE = Path(__file__).resolve().parents[1]
RECIPE = HERE / "training" / "configs" / "gpu" / "qwen3_ledger.yaml"
Result = Mapping[str, object]


@dataclass(frozen=True)
class Sizes:
    """How much is generated and trained.

    Attributes:
        requests: that generate at a time.
        prompt, new: ids of each prompt, and generated after it.
    """

    requests: int = 64
    prompt: int = 150
    new: int = 128


REHEARSAL = Sizes(requests=2, prompt=12, new=4)


def run_tests() -> Result:
    """Run every test that needs a GPU."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-m", "cuda", "-q", f"--junitxml={report}", "tests"]
        subprocess.run(command, cwd=HERE, check=False)
        suite = ElementTree.parse(report).getroot()[0]
    failed = [case.get("name") for case in suite if case.find("failure") is not None or case.find("error") is not None]
    skipped = {
        str(case.get("name")): node.get("message") for case in suite if (node := case.find("skipped")) is not None
    }
    return {"tests": int(suite.get("tests", 0)), "failed": failed, "skipped": skipped}


def random_samples(sizes: Sizes, vocabulary: int) -> list[Sample]:
    """Return samples with random ids, in which everything after the prompt is trained."""
    rng = np.random.default_rng(0)
    samples = []
    for i in range(min(sizes.requests, 16)):
        ids = rng.integers(vocabulary, size=sizes.prompt + sizes.new)
        mask = np.arange(len(ids)) >= sizes.prompt
        logprobs = np.where(mask, -10.0, 0.0).astype(np.float32)
        advantages = mask * np.float32(1 if i % 2 else -1)
        temperatures = np.ones(len(ids), dtype=np.float32)
        samples.append(Sample(f"e{i}", ROOT, ids, mask, logprobs, advantages, temperatures, 1 / (mask.sum() * 16)))
    return samples


def learner_on(device: str, precision: Precision) -> Learner:
    model = ChatLanguage("smollm2", device=device).load(0)
    forward = ForwardOptions(precision, logit_chunk=1024, gradient_checkpointing=True)
    return Learner(model, OptimizerConfig(), pad_id=0, micro_batch_tokens=8192, rows=Rows.TREE, forward=forward)


def compare_logprobs(sizes: Sizes) -> Result:
    """Compare log-probs of SmolLM2 on the GPU with those of float32 on the CPU."""
    differences: dict[str, object] = {}
    expected: list[np.ndarray] | None = None
    for device, precision in (("cpu", Precision.FLOAT32), ("cuda", Precision.FLOAT32), ("cuda", Precision.BFLOAT16)):
        learner = learner_on(device, precision)
        samples = random_samples(sizes, learner.model.config.vocab_size)[:4]
        logprobs, _ = learner.compute(samples, ForwardOutput.LOGPROBS)
        if expected is None:
            expected = logprobs
            continue
        gaps = np.concatenate([np.abs(ours - theirs) for ours, theirs in zip(logprobs, expected, strict=True)])
        differences[str(precision)] = {"max": float(gaps.max()), "mean": float(gaps.mean())}
    return differences


def train_on(engine: str, rehearsed: bool = False) -> Result:
    """Train the recipe for one GPU with SmolLM2: a short warm start and two steps of RL.

    Args:
        engine: that samples.
        rehearsed: train a small copy of the model instead.
    """
    if find_spec(engine) is None:
        return {"skipped": f"{engine} is not installed"}
    ledger = "{mode: sum, phrasing: plain, min_documents: 4, max_documents: 4, min_named: 2, max_named: 2}"
    with tempfile.TemporaryDirectory() as folder:
        overrides = [
            f"output={folder}",
            "model.options={source: smollm2, device: cuda}",
            "limits.turn_tokens=128",
            f"tasks.ledger.options={ledger}",
            "variants.delegating.warmstart.phases=[{tokens: 4000, mix: {ledger: {share: 1, styles: {delegate: 1}}}}]",
            "variants.delegating.warmstart.pool_tokens=4000",
            *(f"variants.delegating.rl.{change}" for change in ("steps=2", "tasks_per_step=2", "group_size=2")),
        ]
        if engine == "transformers":
            overrides.append("sampler={name: transformers, options: {dtype: bfloat16}}")
        config = load_config(RECIPE, overrides)
        if rehearsed:
            return {"sampled_tokens": rehearse(config, "delegating", Path(folder), lambda *_: None).sampled_tokens}
        with closing(Job(config, JobId("delegating", 0), lambda *_: None)) as job:
            job.run(lambda: None)
            rows = [
                json.loads(line) for line in (job.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
            ]
    names = ("step", "total_tokens", "loss", "grad_norm", "mean_logprob_gap", "logprob_gap")
    return {"steps": [{name: row[name] for name in names} for row in rows if row["stage"] == "rl"]}


def measure_sampling(sizes: Sizes) -> Result:
    """Measure generated tokens per second of the engine of transformers, in bfloat16."""
    model = ChatLanguage("smollm2", dtype="bfloat16", device="cuda").load(0)
    rng = np.random.default_rng(0)
    requests = []
    for i in range(sizes.requests):
        prompt_ids = tuple(int(token_id) for token_id in rng.integers(model.config.vocab_size, size=sizes.prompt))
        requests.append(TokenRequest(f"r{i}", prompt_ids, sizes.new, i, 1.0))
    engine = TransformersEngine(model, stop_ids=())
    start = time.perf_counter()
    engine.submit(requests)
    generated = 0
    while engine.pending:
        generated += sum(len(completion.token_ids) for completion in engine.poll())
    return {"generated_tokens": generated, "tokens_per_second": generated / (time.perf_counter() - start)}


def measure_learning(sizes: Sizes) -> Result:
    """Measure trained tokens per second of the learner, in bfloat16, in its second step."""
    learner = learner_on("cuda", Precision.BFLOAT16)
    samples = random_samples(sizes, learner.model.config.vocab_size)
    seconds, trained = 0.0, 0
    for _ in range(2):
        start = time.perf_counter()
        trained = learner.policy_step(samples, LossConfig()).trained_tokens
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    return {"trained_tokens": trained, "tokens_per_second": trained / seconds}


def describe_machine(rehearsed: bool) -> Result:
    versions = {name: version(name) for name in ("selfcest", "torch", "transformers")}
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, text=True, check=False)
    devices = ["imitated by the CPU"]
    if not rehearsed:
        devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "devices": devices,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "commit": commit.stdout.strip(),
        **versions,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("first_gpu.json"), help="file to write (default: %(default)s)")
    parser.add_argument("--rehearse", action="store_true", help="run on a CUDA device that the CPU imitates")
    options = parser.parse_args()
    if not options.rehearse and not torch.cuda.is_available():
        parser.error("torch sees no CUDA device; run this where there is one, or try the script with --rehearse")
    smollm2_path()  # unpacks the model on the CPU; says what to install if it is missing
    sizes = REHEARSAL if options.rehearse else Sizes()
    parts: dict[str, Callable[[], Result]] = {
        "logprobs_against_cpu": lambda: compare_logprobs(sizes),
        "transformers": lambda: train_on("transformers", options.rehearse),
        "sampling": lambda: measure_sampling(sizes),
        "learning": lambda: measure_learning(sizes),
    }
    if not options.rehearse:
        parts = {"tests": run_tests, **parts, "vllm": lambda: train_on("vllm")}
    results: dict[str, Result] = {"machine": describe_machine(options.rehearse)}
    failed = []
    for name, part in parts.items():
        print(f"{name} ...", flush=True)
        start = time.perf_counter()
        try:
            with fake_cuda() if options.rehearse and name != "transformers" else nullcontext():
                result = part()
        except Exception as error:  # whatever fails on a GPU is what this file is for
            result = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
        if "error" in result or result.get("failed"):
            failed.append(name)
        results[name] = {**result, "seconds": round(time.perf_counter() - start, 1)}
        print(json.dumps({key: value for key, value in results[name].items() if key != "traceback"}, indent=1))
        # After every part, so that a part that kills the process leaves the results before it.
        options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {options.out}" + (f"; failed: {', '.join(failed)}" if failed else ""))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
