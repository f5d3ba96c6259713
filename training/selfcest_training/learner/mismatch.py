"""How far the sampler's probabilities are from the learner's, on the tokens that were sampled.

With equal ids, weights and temperature what is left is arithmetic: about 1e-5 in float32, 0.04 a token on average with
bfloat16 on either side. With an older sampler it is the age of its weights as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from selfcest_training.learner.batch import Sample

# A tenth in log-prob is a ratio outside 0.9 to 1.11: far above float32's rounding, above most of bfloat16's.
DIVERGENCE = 0.1


@dataclass(frozen=True)
class Mismatch:
    """Of the samples of one role or depth; the ratio of a token is exp(learner's log-prob - sampler's).

    A turn is a run of trained tokens. It diverges where the two log-probs are first more than `DIVERGENCE` apart.

    Attributes:
        tokens: that train.
        mean_ratio, max_ratio: over tokens.
        kl: estimate of KL(sampler || learner) per token, never negative: mean of ratio - 1 - log ratio (Schulman 2020,
            k3).
        divergent_turns: share of turns that diverge.
        first_divergent_token: where in the turn's generated ids, from 0, as a mean over the turns that diverge; `None`
            if none does. Near 0 the context is in doubt; noise spreads over the length of a turn.
    """

    tokens: int
    mean_ratio: float
    max_ratio: float
    kl: float
    divergent_turns: float
    first_divergent_token: float | None


def measure(samples: Sequence[Sample]) -> dict[str, Mismatch]:
    """By role (`root`, `clone`) and depth (`depth1`, ...; depth 0 is the root); only those that there are.

    All samples must have `old_logprobs`: those of the learner that the sampler should agree with.
    """
    groups: dict[str, list[np.ndarray]] = {}
    for sample in samples:
        depth = sample.agent_id.depth
        for name in ("clone", f"depth{depth}") if depth else ("root",):
            groups.setdefault(name, []).extend(_turns(sample))
    return {name: _of_turns(groups[name]) for name in sorted(groups, key=lambda name: (name != "root", name))}


def flattened(mismatch: Mapping[str, Mismatch]) -> dict[str, float]:
    """`mismatch/root/mean_ratio` and so on, for a log; what is `None` is left out."""
    named = (
        (f"mismatch/{group}/{item.name}", getattr(found, item.name))
        for group, found in mismatch.items()
        for item in fields(found)
    )
    return {name: float(value) for name, value in named if value is not None}


def _turns(sample: Sample) -> list[np.ndarray]:
    """Per turn that trains, [ids] the learner's log-prob less the sampler's."""
    assert sample.old_logprobs is not None
    trained = np.flatnonzero(sample.loss_mask)
    difference = sample.old_logprobs.astype(np.float64)[trained] - sample.behavior_logprobs[trained]
    return np.split(difference, np.flatnonzero(np.diff(trained) > 1) + 1)


def _of_turns(turns: Sequence[np.ndarray]) -> Mismatch:
    log_ratio = np.concatenate(turns)
    ratio = np.exp(log_ratio)
    firsts = [apart[0] for turn in turns if len(apart := np.flatnonzero(np.abs(turn) > DIVERGENCE))]
    return Mismatch(
        tokens=len(log_ratio),
        mean_ratio=float(ratio.mean()),
        max_ratio=float(ratio.max()),
        kl=float((ratio - 1 - log_ratio).mean()),
        divergent_turns=len(firsts) / len(turns),
        first_divergent_token=float(np.mean(firsts)) if firsts else None,
    )
