"""Random texts of turns: calls, answers, reads, noise and attacks."""

from __future__ import annotations

import numpy as np

from selfcest_agents.scripted import ATTACKS
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
