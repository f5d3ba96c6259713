"""Random episodes: texts of turns (calls, answers, reads, noise and attacks), and limits of trees."""

from __future__ import annotations

from typing import Any

import numpy as np
from attacks import ATTACKS

from selfcest_env.text.hermes import HermesProtocol
from selfcest_env.types import Answer, CloneRequest, Delegate, Read

PROTOCOL = HermesProtocol()
MAX_TEXT_CHARS = 600  # the longest attacks would only slow a campaign down


def random_text(rng: np.random.Generator) -> str:
    """Draw the text of a turn."""
    draw = rng.random()
    if draw < 0.3:
        return PROTOCOL.render(Answer(str(rng.integers(0, 10))), "So " * int(rng.integers(0, 5)))
    if draw < 0.75:
        objectives = ["What is " + "2+" * int(rng.integers(0, 9)) + "2?" for _ in range(rng.integers(1, 4))]
        grants = [None if rng.random() < 0.5 else int(rng.integers(0, 300)) for _ in objectives]
        requests = [CloneRequest(text, (), grant) for text, grant in zip(objectives, grants, strict=True)]
        return PROTOCOL.render(Delegate(tuple(requests)))
    if draw < 0.83:
        return PROTOCOL.render(Read(("A",)))
    if draw < 0.92:
        return "Let me think. " * int(rng.integers(1, 20))
    names = list(ATTACKS)
    text = ATTACKS[names[int(rng.integers(len(names)))]]()
    return text.encode(errors="replace").decode()[:MAX_TEXT_CHARS]


def random_limits(rng: np.random.Generator) -> dict[str, Any]:
    """Draw fields of `Limits`."""
    return {
        "total_tokens": int(rng.integers(700, 20_000)),
        "generated_tokens": int(rng.integers(50, 2000)) if rng.random() < 0.3 else None,
        "context_tokens": int(rng.integers(700, 5000)) if rng.random() < 0.3 else None,
        "turn_tokens": int(rng.integers(30, 800)),
        "reply_tokens": int(rng.integers(1, 64)),
        "answer_reserve": int(rng.integers(0, 16)),
        "max_turns": int(rng.integers(1, 7)),
        "max_clones": int(rng.integers(0, 8)),
        "max_clones_per_call": int(rng.integers(1, 4)),
        "max_depth": int(rng.integers(0, 4)),
        "max_reads": int(rng.integers(0, 3)),
    }
