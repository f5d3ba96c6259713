"""The distance between the sampler's and the learner's probabilities of the sampled tokens.

With equal ids, weights and temperature the distance is rounding: about 1e-5 in float32, 0.04 a token on average with
bfloat16 on either side. With a stale sampler it includes the staleness of its weights.
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
    """Statistics over the samples of one role or depth; a token's ratio is exp(learner's log-prob - sampler's).

    A turn is a run of trained tokens. It diverges at the first token whose log-probs differ by more than `DIVERGENCE`.

    Attributes:
        tokens: number of trained tokens.
        mean_ratio, max_ratio: over tokens.
        kl: estimate of KL(sampler || learner) per token, never negative: mean of ratio - 1 - log ratio (Schulman 2020,
            k3).
        divergent_turns: share of turns that diverge.
        first_divergent_token: mean index, from 0, of the first divergent token in the turns that diverge; `None` if
            none does. An index near 0 points to a wrong context, since noise spreads over the length of a turn.
    """

    tokens: int
    mean_ratio: float
    max_ratio: float
    kl: float
    divergent_turns: float
    first_divergent_token: float | None


def measure_mismatch(samples: Sequence[Sample]) -> dict[str, Mismatch]:
    """Measure the mismatch by role (`root`, `clone`) and by depth (`depth1`, ...; depth 0 is the root).

    Args:
        samples: all with `old_logprobs` of the learner that the sampler should agree with.

    Returns:
        Statistics of each role and depth that occurs, `root` first.
    """
    turns_by_group: dict[str, list[np.ndarray]] = {}
    for sample in samples:
        depth = sample.agent_id.depth
        for name in ("clone", f"depth{depth}") if depth else ("root",):
            turns_by_group.setdefault(name, []).extend(_log_ratios_by_turn(sample))
    names = sorted(turns_by_group, key=lambda name: (name != "root", name))
    return {name: _summarise(turns_by_group[name]) for name in names}


def flatten_mismatch(mismatch: Mapping[str, Mismatch]) -> dict[str, float]:
    """Flatten to metrics such as `mismatch/root/mean_ratio`, without those that are `None`."""
    metrics: dict[str, float] = {}
    for group, statistics in mismatch.items():
        for item in fields(statistics):
            value = getattr(statistics, item.name)
            if value is not None:
                metrics[f"mismatch/{group}/{item.name}"] = float(value)
    return metrics


def _log_ratios_by_turn(sample: Sample) -> list[np.ndarray]:
    """Return, for each trained turn, [tokens] the learner's log-prob minus the sampler's."""
    assert sample.old_logprobs is not None
    trained = np.flatnonzero(sample.loss_mask)
    difference = sample.old_logprobs.astype(np.float64)[trained] - sample.behavior_logprobs[trained]
    return np.split(difference, np.flatnonzero(np.diff(trained) > 1) + 1)


def _summarise(turns: Sequence[np.ndarray]) -> Mismatch:
    log_ratio = np.concatenate(turns)
    ratio = np.exp(log_ratio)
    first_indices = []
    for turn in turns:
        divergent = np.flatnonzero(np.abs(turn) > DIVERGENCE)
        if len(divergent):
            first_indices.append(divergent[0])
    return Mismatch(
        tokens=len(log_ratio),
        mean_ratio=float(ratio.mean()),
        max_ratio=float(ratio.max()),
        kl=float((ratio - 1 - log_ratio).mean()),
        divergent_turns=len(first_indices) / len(turns),
        first_divergent_token=float(np.mean(first_indices)) if first_indices else None,
    )
