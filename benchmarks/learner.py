"""Compare an optimiser step of this trainer with one of TRL's GRPOTrainer: ids per CPU-second, and peak memory.

    OMP_NUM_THREADS=1 python benchmarks/learner.py [--models smollm2 tiny] [--shapes 300+64 48+64] [--group 8] [--json]

A step has sixteen completions of fixed random ids, `--group` of them on each prompt, so nothing is generated. It
consists of forward, backward, clipping and AdamW on float32 weights. Each line is measured in a fresh process. TRL
needs another version of transformers, so the script builds an environment for it once, in the cache folder.
`--peer-python` names an existing environment with TRL.

This trainer takes all completions in one batch of tree rows, with gradient checkpointing off and on. TRL has its
defaults, except for the options that trade speed for memory: gradient checkpointing, and the completions of one pass
(`per_device_train_batch_size`, default 8), with accumulation over the sixteen. All combinations of these are measured.
The verdicts compare the fastest settings of both, and each of our settings with the fastest setting of TRL that needs
no more memory. Tree rows save more the larger `--group` and the longer the prompt.

Time is CPU time of one thread, the least of two steps, so that other work on the machine matters less. Memory is the
peak minus the memory of the process with its model loaded.

    OMP_NUM_THREADS=1 python benchmarks/learner.py --default-run [--repeats 3]

compares the steps of the warm starts of `selfcest train` with the same steps under transformers' eager attention and
with recomputed logits, without TRL. Each pair of steps is interleaved, and the weights must stay equal bit for bit.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from learner_peer import NUM_COMPLETIONS, NUM_STEPS, Cost, Meter, Work
from transformers import AutoModelForCausalLM

from selfcest_agents.language import language_of
from selfcest_agents.pretrained import smollm2_path
from selfcest_agents.tiny import TinyConfig, TinyTokenizer, build_tiny, save_pretrained
from selfcest_env.reward import make_reward
from selfcest_env.types import ROOT
from selfcest_training.config_file import load_config
from selfcest_training.families import make_families
from selfcest_training.learner import forward
from selfcest_training.learner.batch import Sample, bucket_by_length
from selfcest_training.learner.forward import MAX_KEPT_LOGITS
from selfcest_training.learner.options import ForwardOptions, LossConfig, OptimizerConfig, Precision, Rows
from selfcest_training.learner.update import Learner
from selfcest_training.run.experiment import default_config
from selfcest_training.stages.warmstart import play_demonstrations

PEER = ("trl==1.16.0", "torch==2.13.0")
HERE = Path(__file__).parent
TINY = TinyConfig(hidden_size=128, num_layers=5, intermediate_size=384)


def our_step(work: Work) -> Cost:
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(work.folder, dtype=torch.float32, attn_implementation="sdpa")
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
        logprobs = np.where(mask, -11, 0).astype(np.float32)
        advantages = mask * np.float32(i % work.group - (work.group - 1) / 2)
        yield Sample(f"e{i}", ROOT, ids, mask, logprobs, advantages, ones, 1 / (work.completion * NUM_COMPLETIONS))


def peer_python() -> Path:
    """Return the Python of an environment with TRL, and build the environment on first use."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "selfcest"
    python = cache / "-".join(PEER).replace("==", "") / "bin" / "python"
    if not python.exists():
        print(f"making an environment with {' and '.join(PEER)} in {python.parents[1]}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", python.parents[1]], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PEER], check=True)
    return python


@dataclass(frozen=True)
class Setting:
    """The setting of one side, and its measured cost."""

    side: str
    work: Work
    cost: Cost

    @property
    def speed(self) -> float:
        """Completion ids per CPU-second."""
        return self.work.completion * NUM_COMPLETIONS / self.cost.cpu_seconds

    def __str__(self) -> str:
        checkpointing = "on" if self.work.checkpointing else "off"
        batch = f"batch {self.work.batch}, checkpointing {checkpointing}"
        return f"{self.side}, {batch}: {self.speed:.1f} /s, {self.cost.mebibytes:.0f} MiB"


def measured(python: Path, script: str, *arguments: str) -> Cost:
    """Run a script in a new process, and return the cost that its last line holds."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [str(python), str(HERE / script), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return Cost(**json.loads(done.stdout.splitlines()[-1]))


def settings(work: Work, batches: Sequence[int], peer: Path) -> Iterator[Setting]:
    """Measure our settings and then TRL's, each when the iterator reaches it."""
    both = [replace(work, checkpointing=checkpointing) for checkpointing in (False, True)]
    for ours in both:
        yield Setting("ours", ours, measured(Path(sys.executable), "learner.py", "--work", json.dumps(asdict(ours))))
    for batch in batches:
        for theirs in (replace(ours, batch=batch) for ours in both):
            yield Setting("TRL", theirs, measured(peer, "learner_peer.py", json.dumps(asdict(theirs))))


def verdicts(measurements: Sequence[Setting]) -> Iterator[str]:
    """Yield the ratio of the fastest settings, then for each of our settings the ratio to TRL at no more memory."""
    ours = [setting for setting in measurements if setting.side == "ours"]
    theirs = [setting for setting in measurements if setting.side == "TRL"]
    fastest = max(ours, key=lambda setting: setting.speed)
    peer = max(theirs, key=lambda setting: setting.speed)
    yield f"best speed: {fastest.speed / peer.speed:.2f} x | {fastest} | {peer}"
    for setting in ours:
        small = [candidate for candidate in theirs if candidate.cost.mebibytes <= setting.cost.mebibytes]
        if small:
            peer = max(small, key=lambda candidate: candidate.speed)
            yield f"equal memory: {setting.speed / peer.speed:.2f} x | {setting} | {peer}"
        else:
            peer = min(theirs, key=lambda candidate: candidate.cost.mebibytes)
            yield f"equal memory: no setting of TRL needs as little; {setting} | {peer}"


def compare_default_run(repeats: int) -> Iterator[str]:
    """Yield a line for the last phase of each warm start of the default run: CPU time of a step, and their ratio."""
    torch.set_num_threads(1)
    config = load_config(default_config(), [])
    language = language_of(config.model)
    families = make_families(config.tasks, "train")
    reward = make_reward(config.reward.name, **config.reward.options)
    for name, variant in config.variants.items():
        warm_start = variant.warmstart
        limits = config.limits_of(name)
        samples = play_demonstrations(language, limits, reward, families, warm_start.phases[-1], 0, 0, warm_start)
        batches = list(bucket_by_length(samples, warm_start.batch_tokens))
        models = [language.load(0), language.load(0)]
        learners = [
            Learner(model, warm_start.optimizer, pad_id=0, micro_batch_tokens=config.micro_batch_tokens)
            for model in models
        ]
        learners[0]._forward._uses_eager_attention = False
        seconds = np.full((2, len(batches)), np.inf)
        for _, (i, batch) in itertools.product(range(repeats), enumerate(batches)):
            for side, max_kept_logits in enumerate((0, MAX_KEPT_LOGITS)):
                forward.MAX_KEPT_LOGITS = max_kept_logits
                start = time.process_time()
                learners[side].imitation_step(batch, 0.0)
                seconds[side, i] = min(seconds[side, i], time.process_time() - start)
        pairs = zip(models[0].parameters(), models[1].parameters(), strict=True)
        assert all(torch.equal(*pair) for pair in pairs), "the weights differ"
        before, after = 1000 * seconds.mean(axis=1)
        longest = max(map(len, samples))
        yield (
            f"{name}: {before:.1f} -> {after:.1f} ms a step, ratio {after / before:.2f}; n = {len(batches)} steps of "
            f"rows of up to {longest} ids, least of {repeats}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=("smollm2", "tiny"), default=["smollm2", "tiny"])
    parser.add_argument("--shapes", nargs="+", default=["300+64", "48+64"], help="prompt+completion, in ids")
    parser.add_argument("--group", type=int, choices=(2, 4, 8, 16), default=8, help="completions on one prompt")
    parser.add_argument("--batches", nargs="+", type=int, choices=(1, 2, 4, 8, 16), default=[1, 2, 4, 8, 16])
    parser.add_argument("--precision", choices=list(Precision), default=Precision.BFLOAT16)
    parser.add_argument("--peer-python", type=Path, help="Python of an environment with TRL")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each setting, and no verdicts")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--default-run", action="store_true", help="the steps of the warm starts of selfcest train")
    parser.add_argument("--repeats", type=int, default=3, help="repeats of --default-run")
    given = parser.parse_args()
    if given.default_run:
        for line in compare_default_run(given.repeats):
            print(line, flush=True)
        print(f"load {os.getloadavg()[0]:.1f}")
        return
    if given.work:
        print(json.dumps(asdict(our_step(Work(**json.loads(given.work))))))
        return
    peer = given.peer_python or peer_python()
    with tempfile.TemporaryDirectory() as tiny:
        save_pretrained(build_tiny(TINY, seed=0), TinyTokenizer(), tiny)
        folders = {"tiny": tiny, "smollm2": str(smollm2_path()) if "smollm2" in given.models else ""}
        bfloat16 = given.precision == Precision.BFLOAT16
        for name, shape in itertools.product(given.models, given.shapes):
            prompt, completion = map(int, shape.split("+"))
            work = Work(
                folders[name], prompt, completion, given.group, bfloat16, checkpointing=False, batch=NUM_COMPLETIONS
            )
            measurements = []
            for setting in settings(work, given.batches, peer):
                measurements.append(setting)
                line = f"{name} {shape} {given.precision}, {given.group} on a prompt: {setting}"
                print(json.dumps(asdict(setting) | {"model": name}) if given.json else line, flush=True)
            if not given.json:
                print(*verdicts(measurements), sep="\n", flush=True)


if __name__ == "__main__":
    main()
