"""One optimiser step of TRL's GRPOTrainer on fixed ids; `learner.py` starts it in an environment that has TRL.

Also what both sides of that benchmark share: the work, and how its time and memory are taken. Nothing of the project
is imported here.
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

NUM_COMPLETIONS, NUM_STEPS = 16, 2


@dataclass(frozen=True)
class Work:
    """An optimiser step on `NUM_COMPLETIONS` completions.

    Attributes:
        folder: holds the model.
        prompt, completion: lengths in ids.
        group: completions that share a prompt.
        bfloat16: autocast; weights are float32.
        checkpointing: gradient checkpointing.
        batch: completions in one forward and backward pass.
    """

    folder: str
    prompt: int
    completion: int
    group: int
    bfloat16: bool
    checkpointing: bool
    batch: int

    def ids(self) -> tuple[list[list[int]], list[list[int]]]:
        """Per completion its prompt's ids, the same for a group, and its own."""
        draw = random.Random(0)
        config = json.loads((Path(self.folder) / "config.json").read_text())
        ids = range(20, config["vocab_size"])
        prompts = [draw.choices(ids, k=self.prompt) for _ in range(NUM_COMPLETIONS // self.group)]
        completions = [draw.choices(ids, k=self.completion) for _ in range(NUM_COMPLETIONS)]
        return [prompt for prompt in prompts for _ in range(self.group)], completions


@dataclass(frozen=True)
class Cost:
    """CPU-seconds of one step, the least of `NUM_STEPS`; MiB at the peak above what was there after loading."""

    cpu_seconds: float
    mebibytes: float


class Meter:
    """Made when the model is loaded; `start` and `stop` around every step."""

    def __init__(self, model: torch.nn.Module) -> None:
        for weight in model.parameters():  # pages of a mapped file count once they are read
            weight.sum()
        Path("/proc/self/clear_refs").write_text("5")  # begins a new peak
        self.before, self.seconds = _status("VmRSS"), list[float]()
        self.started: float | None = None

    def start(self) -> None:
        """Of several calls in one step, one for each of its batches, the first counts."""
        if self.started is None:
            self.started = time.process_time()

    def stop(self) -> None:
        assert self.started is not None
        self.seconds.append(time.process_time() - self.started)
        self.started = None

    def cost(self) -> Cost:
        return Cost(min(self.seconds), _status("VmHWM") - self.before)


def _status(key: str) -> float:
    """MiB of this process, from the kernel."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1024


def trl_step(work: Work) -> Cost:
    """TRL's own defaults but for precision, checkpointing and batch, and without generation."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    model = AutoModelForCausalLM.from_pretrained(work.folder, dtype=torch.float32)
    meter, (prompts, completions) = Meter(model), work.ids()

    class Timed(GRPOTrainer):
        def compute_loss(self, *args: Any, **options: Any) -> torch.Tensor:
            meter.start()  # the rollout is over
            return super().compute_loss(*args, **options)

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
