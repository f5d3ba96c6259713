"""Which rank computes which micro-batch. Pure: a function of sizes, so that every rank comes to the same answer.

Micro-batches are cut as a single process cuts them, then dealt out in rounds. All ranks must make the same number of
passes, since each pass gathers every layer from all of them: who has no micro-batch left in the last round computes a
dummy. Within a round everybody waits for the largest, so the members of a round are of similar size.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from selfcest_env.errors import ConfigError
from selfcest_env.types import ROOT
from selfcest_training.learner.batch import Sample


def deal(sizes: Sequence[int], ranks: int) -> list[list[int | None]]:
    """Per rank, the micro-batches that it computes, by their place in `sizes`; `None` is a dummy.

    All ranks get equally many, the largest first (what does not fit into memory fails at once), and the last round has
    fewer dummies than there are ranks.

    Example: sizes [10, 40, 30], two ranks: [[1, 0], [2, None]].
    """
    order = [*sorted(range(len(sizes)), key=lambda index: -sizes[index]), *[None] * (-len(sizes) % ranks)]
    return [order[rank::ranks] for rank in range(ranks)]


def busy_share(sizes: Sequence[int], ranks: int) -> float:
    """The share of the ranks' time that computes, in (0, 1], if time is in proportion to size."""
    largest = [sizes[index] for index in deal(sizes, ranks)[0] if index is not None]  # of every round
    return sum(sizes) / (ranks * sum(largest))


def check_ranks(ranks: int, micro_batches: int, where: str) -> None:
    """Raise `ConfigError` if some ranks could compute nothing but dummies."""
    if ranks > micro_batches:
        raise ConfigError(
            f"cluster.learner_ranks is {ranks} and {where} has {micro_batches} "
            f"micro-batch{'' if micro_batches == 1 else 'es'}: some ranks would have nothing to compute; set "
            f"learner_ranks to at most {micro_batches}, lower micro_batch_tokens, or raise tasks_per_step"
        )


def dummy() -> Sample:
    """Two ids, the second of which trains and weighs nothing: a pass whose gradient is zero."""
    zeros = np.zeros(2, dtype=np.float32)
    return Sample("dummy", ROOT, np.zeros(2, dtype=np.int64), np.array([False, True]), zeros, zeros, zeros + 1, 0.0)
