"""Measure an optimiser step of TRL's GRPOTrainer on fixed ids. `learner.py` starts it in an environment with TRL.

The module also defines the work of both sides and the meter of time and memory. It imports nothing of the project,
because that environment lacks the project's dependencies.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

NUM_COMPLETIONS = 16
NUM_STEPS = 2


@dataclass(frozen=True)
class Work:
    """An optimiser step on `NUM_COMPLETIONS` completions.

    Attributes:
        folder: folder of the model.
        prompt, completion: lengths in ids.
        group: number of completions of a prompt.
        bfloat16: whether to use autocast to bfloat16; the weights are float32.
        checkpointing: whether to use gradient checkpointing.
        batch: number of completions in one forward and backward pass.
    """

    folder: str
    prompt: int
    completion: int
    group: int
    bfloat16: bool
    checkpointing: bool
    batch: int

    def ids(self) -> tuple[list[list[int]], list[list[int]]]:
        """Return the ids of all prompts, each repeated for its group, and of all completions."""
        draw = random.Random(0)
        config = json.loads((Path(self.folder) / "config.json").read_text())
        ids = range(20, config["vocab_size"])
        prompts = [draw.choices(ids, k=self.prompt) for _ in range(NUM_COMPLETIONS // self.group)]
        completions = [draw.choices(ids, k=self.completion) for _ in range(NUM_COMPLETIONS)]
        return [prompts[i // self.group] for i in range(NUM_COMPLETIONS)], completions


@dataclass(frozen=True)
class Cost:
    """CPU-seconds of one step, the least of `NUM_STEPS`, and MiB of the peak above the memory after loading."""

    cpu_seconds: float
    mebibytes: float


class Meter:
    """Measures time and memory. Create it after the model is loaded, and call `start` and `stop` for every step."""

    def __init__(self, model: torch.nn.Module) -> None:
        # The pages of a memory-mapped file count only after they have been read.
        for weight in model.parameters():
            weight.sum()
        # This resets the peak that the kernel reports.
        Path("/proc/self/clear_refs").write_text("5")
        self.before = _status("VmRSS")
        self.seconds: list[float] = []
        self.started: float | None = None

    def start(self) -> None:
        """Start the clock of a step. Later calls in the same step, one for each batch, do nothing."""
        if self.started is None:
            self.started = time.process_time()

    def stop(self) -> None:
        assert self.started is not None
        self.seconds.append(time.process_time() - self.started)
        self.started = None

    def cost(self) -> Cost:
        return Cost(min(self.seconds), _status("VmHWM") - self.before)


def _status(key: str) -> float:
    """Return a memory figure of this process in MiB, as the kernel reports it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1024


def trl_step(work: Work) -> Cost:
    """Measure steps with TRL's defaults, except for precision, checkpointing and batch, and without generation."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    model = AutoModelForCausalLM.from_pretrained(work.folder, dtype=torch.float32)
    meter = Meter(model)
    prompts, completions = work.ids()

    class Timed(GRPOTrainer):  # type: ignore[misc]  # TRL is not in the environment that types are checked in
        def compute_loss(self, *args: Any, **options: Any) -> torch.Tensor:
            meter.start()  # the first loss comes after the rollout
            loss: torch.Tensor = super().compute_loss(*args, **options)
            return loss

    class Stop(TrainerCallback):
        def on_step_end(self, *args: Any, **options: Any) -> None:
            meter.stop()

    def rollout(_: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        logprobs = [[-1.0] * work.completion for _ in completions]
        return {"prompt_ids": prompts, "completion_ids": completions, "logprobs": logprobs}

    with tempfile.TemporaryDirectory() as folder:
        options = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=work.bfloat16,
            gradient_checkpointing=work.checkpointing,
            per_device_train_batch_size=work.batch,
            gradient_accumulation_steps=NUM_COMPLETIONS // work.batch,
            num_generations=work.group,
            max_completion_length=work.completion,
            max_steps=NUM_STEPS,
            save_strategy="no",
            report_to="none",
        )
        Timed(
            model=model,
            args=options,
            reward_funcs=lambda completions, **_: [float(i % work.group) for i in range(len(completions))],
            train_dataset=Dataset.from_dict({"prompt": ["-"] * (NUM_COMPLETIONS // work.group * NUM_STEPS)}),
            rollout_func=rollout,
            callbacks=[Stop()],
        ).train()
    return meter.cost()


if __name__ == "__main__":
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    torch.set_num_threads(1)
    print(json.dumps(asdict(trl_step(Work(**json.loads(sys.argv[1]))))))
