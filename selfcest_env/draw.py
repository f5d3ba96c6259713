"""An episode as a picture, drawn with NumPy alone: one box per agent, its number, its state and its purse.

The colour of a box is its agent's status; the bar inside is the share of its grant that it has spent itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from selfcest_env.palette import EDGE, INK, PAGE, SPENT, STATUS
from selfcest_env.render import Node
from selfcest_env.types import AgentId

Image = NDArray[np.uint8]

HEIGHT, WIDTH = 360, 640
MARGIN = 12
# Three columns by five rows, a bit per cell, top row first.
DIGITS = ("75557", "26227", "71747", "71717", "55711", "74717", "74757", "71122", "75757", "75717")


def draw(nodes: Sequence[Node], number: Callable[[AgentId], int]) -> Image:
    """The tree as an image of shape (HEIGHT, WIDTH, 3), parents above their clones."""
    image = np.empty((HEIGHT, WIDTH, 3), np.uint8)
    image[:] = PAGE.rgb
    places, box = _layout(nodes)
    for node in nodes:
        if node.agent_id.parent is not None:
            _edge(image, places[node.agent_id.parent], places[node.agent_id])
    for node in nodes:
        _box(image, places[node.agent_id], box, node, str(number(node.agent_id)))
    return image


def _layout(nodes: Sequence[Node]) -> tuple[dict[AgentId, tuple[int, int]], tuple[int, int]]:
    """Centre (row, column) of every box, and half its size. Leaves share the width; parents sit above their clones."""
    parents = {node.agent_id.parent for node in nodes}
    leaves = [node.agent_id for node in nodes if node.agent_id not in parents]
    rows = 1 + max(node.agent_id.depth for node in nodes)
    column_width, row_height = (WIDTH - 2 * MARGIN) / len(leaves), (HEIGHT - 2 * MARGIN) / rows
    columns = {leaf: MARGIN + (i + 0.5) * column_width for i, leaf in enumerate(leaves)}
    for node in reversed(nodes):  # children come after their parents in tree order
        if node.agent_id not in columns:
            below = [columns[n.agent_id] for n in nodes if n.agent_id.parent == node.agent_id]
            columns[node.agent_id] = sum(below) / len(below)
    places = {a: (int(MARGIN + (a.depth + 0.5) * row_height), int(column)) for a, column in columns.items()}
    return places, (max(2, int(min(24, row_height / 3))), max(2, int(min(40, column_width * 0.45))))


def _edge(image: Image, start: tuple[int, int], end: tuple[int, int]) -> None:
    steps = 1 + max(abs(end[0] - start[0]), abs(end[1] - start[1]))
    rows = np.linspace(start[0], end[0], steps).round().astype(int)
    columns = np.linspace(start[1], end[1], steps).round().astype(int)
    image[rows, columns] = EDGE.rgb


def _box(image: Image, place: tuple[int, int], half: tuple[int, int], node: Node, number: str) -> None:
    (row, column), (high, wide) = place, half
    image[row - high : row + high + 1, column - wide : column + wide + 1] = INK.rgb
    inside = image[row - high + 1 : row + high, column - wide + 1 : column + wide]
    inside[:] = STATUS[node.status].rgb
    share = min(1.0, node.spent / node.granted) if node.granted else 0.0
    inside[-max(1, high // 5) :, : round(share * inside.shape[1])] = SPENT.rgb
    _write(inside, number)


def _write(area: Image, number: str) -> None:
    """Write a number into the middle of an area, as large as fits; nothing where not even the smallest does."""
    cells = np.zeros((5, 4 * len(number) - 1), bool)
    for i, digit in enumerate(number):
        for row, bits in enumerate(DIGITS[int(digit)]):
            cells[row, 4 * i : 4 * i + 3] = [int(bits) >> shift & 1 for shift in (2, 1, 0)]
    scale = min((area.shape[0] * 2 // 3) // 5, area.shape[1] // (cells.shape[1] + 1), 4)
    if scale < 1:
        return
    glyphs = cells.repeat(scale, axis=0).repeat(scale, axis=1)
    top, start = (area.shape[0] * 4 // 5 - glyphs.shape[0]) // 2, (area.shape[1] - glyphs.shape[1]) // 2
    top = max(0, top)
    area[top : top + glyphs.shape[0], start : start + glyphs.shape[1]][glyphs] = INK.rgb
