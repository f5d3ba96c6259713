"""Guess the next ids of a sequence from what followed the same ids before, in any sequence of these weights.

Agents of a group write alike, and a call repeats its own objective, so such guesses are often right (prompt lookup
decoding, Saxena 2023, and SuffixDecoding, arXiv 2411.04975). The engine computes guesses in the step that reads the
weights anyway. A token is drawn at every guessed position from the model's own distribution, with the uniform that the
position has without a guess. So a wrong guess costs time, and no guess changes a token.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import takewhile

NGRAM = 3  # number of last ids that must be equal
MAX_ENTRIES = 2**18  # n-grams that are remembered; all are forgotten when there are more


class DraftTable:
    """Where every n-gram of the noted sequences was followed by an id, the latest place only.

    Args:
        max_length: largest number of ids of a guess; 0: guess nothing.
        stop_ids: ids behind which no sequence continues.
    """

    def __init__(self, max_length: int, stop_ids: Collection[int]) -> None:
        self.max_length = max_length
        self._stop_ids = stop_ids
        self._places: dict[tuple[int, ...], tuple[Sequence[int], int]] = {}

    def clear(self) -> None:
        """Forget all sequences, as after a change of the weights. A resumed run then guesses as this one does."""
        self._places.clear()

    def note(self, ids: Sequence[int], start: int) -> None:
        """Remember that the ids from index `start` on followed the ids before them.

        Args:
            ids: a sequence so far. It is not copied, so ids that are appended later lengthen the guesses.
            start: index of the first id that was not noted yet.
        """
        if not self.max_length:
            return
        if len(self._places) > MAX_ENTRIES:
            self.clear()
        for end in range(max(start, NGRAM), len(ids)):
            self._places[tuple(ids[end - NGRAM : end])] = (ids, end)

    def guess(self, ids: Sequence[int], max_length: int) -> Sequence[int]:
        """Return at most `max_length` ids that may follow `ids`."""
        if not max_length:
            return ()
        ids_before, start = self._places.get(tuple(ids[-NGRAM:]), ((), 0))
        return list(takewhile(self._continues, ids_before[start : start + max_length]))

    def _continues(self, token: int) -> bool:
        return token not in self._stop_ids
