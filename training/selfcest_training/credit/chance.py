"""Random draws of credit schemes, for example of the clones that are replayed, keyed by the episode's seed.

No action of an agent can change such a draw, so a baseline that depends on it stays unbiased. The laboratory enumerates
these draws; a scheme with another generator can only be sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import accumulate

from selfcest_env.record import EpisodeRecord
from selfcest_env.seeding import stream_seed
from selfcest_env.types import AgentId

# Chooses an index. The arguments are the name of the draw (episode id, purpose, key) and the probabilities.
IndexChooser = Callable[[tuple[object, ...], Sequence[float]], int]
_CHOOSER: ContextVar[IndexChooser | None] = ContextVar("chooser", default=None)


def draw_index(probabilities: Sequence[float], purpose: str, episode: EpisodeRecord, *key: AgentId | int) -> int:
    """Draw an index with these probabilities. Equal purpose, episode and key give equal draws.

    Args:
        probabilities: non-negative numbers with sum 1.
        purpose: name of the draw, so that two draws about one agent are independent.
        episode: the episode. Only its seed is used.
        key: the agent, turn or number in the episode that the draw is about.
    """
    chooser = _CHOOSER.get()
    if chooser is not None:
        return chooser((episode.episode_id, purpose, *key), probabilities)
    uniform = stream_seed(purpose, episode.seed, *key) / 2**63
    for index, upper_end in enumerate(accumulate(probabilities)):
        if uniform < upper_end:
            return index
    # Rounding may leave the sum of the probabilities below 1.
    return len(probabilities) - 1


def flip_coin(share: float, episode: EpisodeRecord, *key: AgentId | int) -> bool:
    """Return True with probability `share`: whether an agent, or the call of a turn, is replayed."""
    return draw_index((share, 1 - share), "who is replayed", episode, *key) == 0


@contextmanager
def override_draws(chooser: IndexChooser) -> Iterator[None]:
    """Let `chooser` decide every draw inside the context, for example to enumerate all draws."""
    token = _CHOOSER.set(chooser)
    try:
        yield
    finally:
        _CHOOSER.reset(token)
