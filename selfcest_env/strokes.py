"""A small font of strokes for images, because a machine may have no font. It scales to every size.

It has only the letters that images of the game need: digits, the letters of agents' names, and the marks of statuses.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.float64]  # share of each pixel that is covered, 0 to 1
Points = NDArray[np.float64]  # (n, 2), x and y

CAP = 0.72  # height of a digit, as a share of the size
_BEARING = 1.7  # gap between two letters, in the table's units
# The strokes of each letter as points x,y. A digit is 6 high, and the baseline is y = 6. "~" begins a smooth curve.
_BOWL = "~2,2.2 0,2.2 0,4.1 0,6 2,6 4,6 4,4.1 4,2.2 2,2.2"
_ROUND = "~1.8,2 0,2 0,4 0,6 1.8,6 3.6,6 3.6,4 3.6,2 1.8,2"
_LETTERS = {
    "0": ("~2,0 0,0 0,3 0,6 2,6 4,6 4,3 4,0 2,0",),
    "1": ("0.4,1.2 2,0 2,6", "0.5,6 3.5,6"),
    "2": ("~0.1,1.6 0.3,0 3.8,0 3.8,2.4 2.6,3.5 0.1,6", "0.1,6 4,6"),
    "3": ("~0.2,0.9 0.8,0 3.8,0 3.8,2.8 1.5,2.8", "~1.5,2.8 4.1,2.8 4.1,6 0.5,6 0,4.9"),
    "4": ("3.1,6 3.1,0 0,4.3 4.1,4.3",),
    "5": ("3.6,0 0.6,0 0.4,2.7", "~0.4,2.7 1.2,2 4.1,1.9 4.1,6 0.4,6 0,5"),
    "6": ("~3.5,0.6 3,0 0,-0.4 0,4.1", _BOWL),
    "7": ("0,0 4,0 1.4,6",),
    "8": ("~2,0 0.3,0 0.3,1.4 0.3,2.8 2,2.8 3.7,2.8 3.7,1.4 3.7,0 2,0",
          "~2,2.8 0,2.8 0,4.4 0,6 2,6 4,6 4,4.4 4,2.8 2,2.8"),
    "9": ("~0.5,5.4 1,6 4,6.4 4,1.9", "~2,0 0,0 0,1.9 0,3.8 2,3.8 4,3.8 4,1.9 4,0 2,0"),
    "a": (_ROUND, "3.6,2 3.6,6"),
    "e": ("0.1,4 3.6,4", "~3.6,4 3.6,2 1.8,2 0,2 0,4 0,6 1.9,6 2.9,6 3.5,5.3"),
    "g": (_ROUND, "~3.6,2 3.6,5 3.6,8.1 0.6,8.1 0.2,7.3"),
    "n": ("0.3,2 0.3,6", "~0.3,4 0.3,2 3.5,2 3.5,4 3.5,6"),
    "o": (_ROUND,),
    "r": ("0.3,2 0.3,6", "~0.3,4 0.4,2.1 1.6,1.9 2.3,2.1"),
    "t": ("~1,0.6 1,4 1,6.1 2.5,6", "0,2 2.4,2"),
    "_": ("0,6.9 3.6,6.9",),
    ".": ("0.3,5.9 0.31,5.9",),
    ",": ("0.5,5.8 0.1,7.1",),
    "…": ("0.3,5.7 0.31,5.7", "2.4,5.7 2.41,5.7", "4.5,5.7 4.51,5.7"),
    "•": ("1.3,3.5 1.31,3.5", "1.3,3.3 1.31,3.7", "1.1,3.5 1.5,3.5"),
    "✓": ("0.2,3.5 1.7,5.4 4.4,0.9",),
    "✕": ("0.3,1.1 4.1,5.3", "4.1,1.1 0.3,5.3"),
    "›": ("0.6,1.7 2.4,3.7 0.6,5.7",),
    "∅": ("~2.2,1.2 0.1,1.2 0.1,3.3 0.1,5.4 2.2,5.4 4.3,5.4 4.3,3.3 4.3,1.2 2.2,1.2", "4.4,0.7 0,5.9"),
    " ": (),
}  # fmt: skip


def draw_line(points: Points, shape: tuple[int, int], width: float) -> Mask:
    """Return the mask, shape (rows, columns), of a line of this width through the points. Its corner is (0, 0)."""
    rows, columns = np.mgrid[: shape[0], : shape[1]] + 0.5
    pixels = np.stack((columns, rows), -1)[:, :, None]  # (rows, columns, 1, 2)
    start = points[:-1]
    step = np.diff(points, axis=0)
    length = np.maximum((step**2).sum(-1), 1e-12)
    # The point of each segment that is nearest to each pixel, as a share of the segment.
    share = (((pixels - start) * step).sum(-1) / length).clip(0, 1)[..., None]
    distance = np.sqrt(((pixels - start - share * step) ** 2).sum(-1).min(-1))
    covered: Mask = np.clip(width / 2 + 0.5 - distance, 0, 1)
    return covered


def draw_text(text: str, size: float, bold: bool = False) -> tuple[Mask, float]:
    """Return the mask of a text, and the height of the baseline below its upper edge. Unknown letters are blanks."""
    letters = [_letter(letter if letter in _LETTERS else " ", round(size, 2), bold) for letter in text]
    if not letters:
        return np.zeros((1, 1)), 0.0
    height = letters[0][0].shape[0]
    text_mask = np.zeros((height, int(np.ceil(sum(advance for _, advance in letters))) + int(size)))
    position = 0.0
    for mask, advance in letters:
        window = text_mask[:, round(position) : round(position) + mask.shape[1]]
        np.maximum(window, mask[:, : window.shape[1]], out=window)
        position += advance
    return text_mask[:, : int(np.ceil(position))], size


@lru_cache(maxsize=512)
def _letter(letter: str, size: float, bold: bool) -> tuple[Mask, float]:
    """Return the mask of a letter, whose baseline is `size` below its upper edge, and the width that it takes."""
    unit = size * CAP / 6  # a digit is 6 units high
    width = size * (0.125 if bold else 0.09)
    strokes = [_points(stroke) for stroke in _LETTERS[letter]]
    right = max((float(stroke[:, 0].max()) for stroke in strokes), default=1.0)
    mask = np.zeros((int(np.ceil(size * 1.4)), int(np.ceil((right + 2) * unit + width))))
    for stroke in strokes:
        placed = (stroke - (0, 6)) * unit + (width, size - width / 2)
        dot_factor = 1.5 if len(stroke) == 2 and np.abs(np.diff(stroke, axis=0)).max() < 0.1 else 1.0
        np.maximum(mask, draw_line(placed, mask.shape, width * dot_factor), out=mask)
    return mask, (right + _BEARING) * unit + width / 2


def _points(stroke: str) -> Points:
    pairs = [point.split(",") for point in stroke.lstrip("~").split()]
    points = np.array(pairs, float)
    if stroke.startswith("~"):
        for _ in range(3):
            points = cut_corners(points)
    return points


def cut_corners(points: Points) -> Points:
    """Cut every corner of a line once (Chaikin 1974). Its ends stay, unless it is a loop that ends where it begins."""
    before = points[:-1]
    after = points[1:]
    cut = np.stack((0.75 * before + 0.25 * after, 0.25 * before + 0.75 * after), 1).reshape(-1, 2)
    if np.array_equal(points[0], points[-1]):
        return np.vstack((cut, cut[:1]))
    return np.vstack((points[:1], cut[1:-1], points[-1:]))
