"""`selfcest plan --rehearse`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from selfcest_training.config import RunConfig
from selfcest_training.printing import print_text
from selfcest_training.run.rehearsal import NOT_REACHED, rehearse


def print_rehearsal(config: RunConfig, console: Console) -> None:
    """Rehearse every variant of the config, and print the rehearsed, the replaced and the omitted parts.

    Raises:
        ConfigError, RuntimeError: see `rehearse`.
    """
    for variant in config.variants:
        _rehearse(config, variant, console)
    print_text(console, f"A rehearsal does not reach {', '.join(NOT_REACHED)}.")


def _rehearse(config: RunConfig, variant: str, console: Console) -> None:
    title = f"rehearsal of {variant}"
    with tempfile.TemporaryDirectory() as folder, Progress(console=console, transient=True) as progress:
        bar = progress.add_task(title, total=1.0)

        def show_progress(stage: str, share: float, text: str) -> None:
            progress.update(bar, completed=share, description=f"{title}: {stage}, {text}")

        result = rehearse(config, variant, Path(folder), show_progress)
    lines = [
        f"{title}: passed in {result.seconds:.0f} s on a fake CUDA device, {result.sampled_tokens:,} sampled tokens: "
        f"warm start, {result.steps} steps of RL, checkpoints, resume",
    ]
    lines += [f"  It replaced {phrase}." for phrase in result.replaced]
    print_text(console, "\n".join(lines))
