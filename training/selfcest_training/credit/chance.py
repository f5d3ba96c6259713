"""Draws of a scheme: which clones are replayed, which orders are tried. By the episode's seed, and by nothing else.

Nothing that anybody did can move such a draw, so what is drawn by it biases no baseline. A scheme that draws here has
its draws enumerated by the laboratory; one with a generator of its own is sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import accumulate

from selfcest_env.record import EpisodeRecord
from selfcest_env.seeding import stream_seed
from selfcest_env.types import AgentId

# Of a name, made of the episode's id and the key, and probabilities: the index that comes.
Pick = Callable[[tuple[object, ...], Sequence[float]], int]
_PICK: ContextVar[Pick | None] = ContextVar("pick", default=None)


def draw(probabilities: Sequence[float], what: str, episode: EpisodeRecord, *key: AgentId | int) -> int:
    """An index, by these probabilities. The same `what`, episode and key always draw the same.

    Args:
        probabilities: not negative, of sum 1.
        what: names the question, so that two questions about one agent are two draws.
        key: whom or what in the episode it is about.
    """
    if pick := _PICK.get():
        return pick((episode.episode_id, what, *key), probabilities)
    uniform = stream_seed(what, episode.seed, *key) / 2**63
    ends = list(accumulate(probabilities))
    return next((index for index, end in enumerate(ends) if uniform < end), len(ends) - 1)


def coin(share: float, episode: EpisodeRecord, *key: AgentId | int) -> bool:
    """True with this probability: whether this agent, or the call of this turn, is replayed."""
    return draw((share, 1 - share), "who is replayed", episode, *key) == 0


@contextmanager
def picked(pick: Pick) -> Iterator[None]:
    """Within it `pick` decides every draw: for whoever wants to see them all."""
    token = _PICK.set(pick)
    try:
        yield
    finally:
        _PICK.reset(token)
