"""Assigns micro-batches to ranks: a pure function of sizes, so that every rank computes the same assignment.

Micro-batches are cut as in a single process and assigned in rounds. All ranks must make the same number of passes,
since each pass gathers every layer from all of them. Missing micro-batches of the last round are padded with
zero-weight dummies. In a round all ranks wait for the largest micro-batch, so a round holds micro-batches of similar
size.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from selfcest_env.errors import ConfigError
from selfcest_env.types import ROOT
from selfcest_training.learner.batch import Sample


def partition(sizes: Sequence[int], ranks: int) -> list[list[int | None]]:
    """Assign micro-batches to ranks.

    Args:
        sizes: ids of each micro-batch, padding included.
        ranks: number of ranks.

    Returns:
        For each rank, indices into `sizes`; `None` is a dummy. All ranks get the same number, the largest first, so
        that a micro-batch that does not fit into memory fails at once. The last round has fewer dummies than ranks.

    Example: sizes [10, 40, 30], two ranks: [[1, 0], [2, None]].
    """
    largest_first = sorted(range(len(sizes)), key=lambda index: -sizes[index])
    num_dummies = -len(sizes) % ranks
    order = [*largest_first, *[None] * num_dummies]
    return [order[rank::ranks] for rank in range(ranks)]


def busy_share(sizes: Sequence[int], ranks: int) -> float:
    """Return the share of the ranks' time that is spent computing, in (0, 1], if time is proportional to size."""
    # The first rank gets the largest micro-batch of every round, and the others wait for it.
    largest_of_rounds = [sizes[index] for index in partition(sizes, ranks)[0] if index is not None]
    return sum(sizes) / (ranks * sum(largest_of_rounds))


def check_ranks(ranks: int, micro_batches: int, source: str) -> None:
    """Raise `ConfigError` if some ranks would compute dummies only."""
    if ranks > micro_batches:
        raise ConfigError(
            f"cluster.learner_ranks is {ranks} and {source} has {micro_batches} "
            f"micro-batch{'' if micro_batches == 1 else 'es'}: some ranks would have nothing to compute; set "
            f"learner_ranks to at most {micro_batches}, lower micro_batch_tokens, or raise tasks_per_step"
        )


def make_zero_weight_sample() -> Sample:
    """Make a sample of two ids whose second id is trained with weight 0, so that its gradient is zero."""
    zeros = np.zeros(2, dtype=np.float32)
    return Sample(
        episode_id="dummy",
        agent_id=ROOT,
        token_ids=np.zeros(2, dtype=np.int64),
        loss_mask=np.array([False, True]),
        behavior_logprobs=zeros,
        advantages=zeros,
        temperature=zeros + 1,
        weight=0.0,
    )
