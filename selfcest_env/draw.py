"""An episode as a picture: the tree that the page of `selfcest trace --html` draws, with its colours, marks and sizes.

A box per agent, its colour and its mark saying how it stands, with its name, the tokens that it has spent itself and
the share of its grant that these are. What is drawn is a list of shapes; here they are painted with NumPy alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from selfcest_env.palette import EDGE, INK, PAGE, SPENT, STATUS, SURFACE, Tone
from selfcest_env.render import Node, mark, one_line
from selfcest_env.strokes import Mask, along, write
from selfcest_env.types import ROOT, AgentId

Image = NDArray[np.uint8]
Name = Callable[[AgentId], str]
Write = Callable[[str, float, str], tuple[Mask, float]]  # text, size, face; see `strokes.write`

# Size of the environments' images, in pixels.
HEIGHT = 360
WIDTH = 640
MARGIN = 12

# Sizes on the page, in its pixels: a box, and the gaps between boxes side by side and between levels of the tree.
BOX_WIDTH = 104.0
BOX_HEIGHT = 50.0
ACROSS = 12.0
DOWN = 34.0
NARROW = 58.0
# A box that also shows the objective and the reply, the size of these texts, and the width of a monospaced letter as a
# share of its size.
TEXTS_WIDTH = 150.0
TEXTS_HEIGHT = 92.0
TEXT_SIZE = 11.0
LETTER = 0.602
ROOMY = 66.0  # width of a box for the name of the root, the longest mark and 13 units of letters
LEAST = 0.5  # below this share of their size letters are unreadable, so they are left out


class Box(NamedTuple):
    """A rectangle with round corners; its border, if any, is one unit wide and lies on its edge."""

    x: float
    y: float
    width: float
    height: float
    round: float
    fill: Tone
    stroke: Tone | None = None


class EdgeCurve(NamedTuple):
    """From (x1, y1) down to (x2, y2), upright at both ends."""

    x1: float
    y1: float
    x2: float
    y2: float
    width: float
    stroke: Tone


class Text(NamedTuple):
    """Begins at x, or ends or has its middle there as `anchor` says; its foot is at y. Faces: sans, bold, mono."""

    x: float
    y: float
    text: str
    size: float
    face: str = "sans"
    anchor: str = "start"
    fill: Tone = INK


Shape = Box | EdgeCurve | Text


def short_name(agent_id: AgentId) -> str:
    """`root`, `.0`, `.0.1`."""
    return str(agent_id) if agent_id == ROOT else str(agent_id).removeprefix(str(ROOT))


@dataclass(frozen=True)
class Layout:
    """Positions of boxes: leaves share the width, and a parent stands above the middle of its clones.

    Attributes:
        places: upper left corner (x, y) of every box.
        box: its width and height.
        unit: scale of lines, corners and letters; 1 on the page.
        size: width and height of the picture.
        texts: whether boxes show the objective and the reply.
    """

    places: dict[AgentId, tuple[float, float]]
    box: tuple[float, float]
    unit: float
    size: tuple[float, float]
    texts: bool = False

    @classmethod
    def with_texts(cls, nodes: Sequence[Node]) -> Layout:
        """At the page's size, with larger boxes."""
        columns, leaves, rows = _columns(nodes)
        across = TEXTS_WIDTH + ACROSS
        down = TEXTS_HEIGHT + DOWN
        places = {a: (MARGIN + column * across, MARGIN + a.depth * down) for a, column in columns.items()}
        size = (2 * MARGIN + leaves * across - ACROSS, 2 * MARGIN + rows * down - DOWN)
        return cls(places, (TEXTS_WIDTH, TEXTS_HEIGHT), 1.0, size, texts=True)

    @classmethod
    def fitted(cls, nodes: Sequence[Node], width: int = WIDTH, height: int = HEIGHT) -> Layout:
        """Within a picture of a given size: up to half as large again as the page has it, or as small as need be."""
        columns, leaves, rows = _columns(nodes)
        across = (width - 2 * MARGIN) / leaves
        down = (height - 2 * MARGIN) / rows
        box_height = min(1.5 * BOX_HEIGHT, down * 0.62)
        box_width = min(BOX_WIDTH * box_height / BOX_HEIGHT, across * 0.92)
        box_height = min(box_height, max(box_width * BOX_HEIGHT / NARROW, NARROW / 4))
        down = min(down, max(box_height * (1 + 1.4 * DOWN / BOX_HEIGHT), (height - 2 * MARGIN) / 4))
        across = min(across, box_width + 2 * ACROSS)
        left = (width - leaves * across) / 2 + (across - box_width) / 2
        top = (height - rows * down) / 2 + (down - box_height) / 2
        places = {a: (left + column * across, top + a.depth * down) for a, column in columns.items()}
        return cls(places, (box_width, box_height), min(box_height / BOX_HEIGHT, box_width / ROOMY), (width, height))


def _columns(nodes: Sequence[Node]) -> tuple[dict[AgentId, float], int, int]:
    """Return the column of every agent, the number of columns, and the number of rows."""
    below: dict[AgentId, list[AgentId]] = {}
    for node in nodes:
        if node.agent_id.parent is not None:
            below.setdefault(node.agent_id.parent, []).append(node.agent_id)
    leaves = [node.agent_id for node in nodes if node.agent_id not in below]
    columns = {leaf: float(i) for i, leaf in enumerate(leaves)}
    for node in reversed(nodes):  # children come after their parents in tree order
        if node.agent_id in below:
            children = below[node.agent_id]
            columns[node.agent_id] = (columns[children[0]] + columns[children[-1]]) / 2
    return columns, len(leaves), 1 + max(node.agent_id.depth for node in nodes)


def shapes(nodes: Sequence[Node], name: Name, layout: Layout, critical: Collection[AgentId] = ()) -> Iterator[Shape]:
    """The tree, from back to front.

    Args:
        nodes: all agents of the layout or some, in tree order.
        name: what stands in an agent's box.
        layout: where boxes are.
        critical: clones whose edges are drawn as part of the critical path.
    """
    width, height = layout.box
    unit = layout.unit
    for wanted in (False, True):  # critical edges are drawn last, so that they lie above the others
        for node in nodes:
            parent = node.agent_id.parent
            if parent is not None and (node.agent_id in critical) is wanted:
                x1, y1 = layout.places[parent]
                x2, y2 = layout.places[node.agent_id]
                line = (2.5, INK) if wanted else (1.25, EDGE)
                thick = line[0] * min(1.0, max(unit, LEAST))
                yield EdgeCurve(x1 + width / 2, y1 + height, x2 + width / 2, y2, thick, line[1])
    for node in nodes:
        yield from _agent(node, name(node.agent_id), layout)


def _agent(node: Node, name: str, layout: Layout) -> Iterator[Shape]:
    x, y = layout.places[node.agent_id]
    width, height = layout.box
    unit = layout.unit
    corner = (12 if node.agent_id == ROOT else 5) * unit
    border = EDGE if width >= 4 else None
    yield Box(x, y, width, height, min(corner, width / 2, height / 2), STATUS[node.status], border)
    inside = width - 16 * unit
    if unit > LEAST / 2:
        bar = (x + 8 * unit, y + height - 9 * unit)
        thick = max(2.0, 4 * unit)
        share = min(1.0, node.spent / node.granted) if node.granted else 0.0
        yield Box(*bar, inside, thick, 2 * unit, SURFACE)
        if share:
            yield Box(*bar, share * inside, thick, min(2 * unit, share * inside / 2), SPENT)
    if unit < LEAST:
        return
    room = int(inside / (13 * unit * 0.66)) - 2  # of the name, beside the mark
    short = name if len(name) <= room else name.rpartition("_")[2]
    yield Text(x + 8 * unit, y + 18 * unit, short, 13 * unit, "bold")
    yield Text(x + width - 8 * unit, y + 18 * unit, mark(node.status), 13 * unit, "bold", "end")
    if layout.texts:
        letters = int(inside / (TEXT_SIZE * unit * LETTER))
        replied = "" if node.reply is None else f"→ {one_line(node.reply)}"
        for down, text in ((37, one_line(node.objective)), (53, replied)):
            if text:
                yield Text(x + 8 * unit, y + down * unit, _cut(text, letters), TEXT_SIZE * unit, "mono")
    granted = "" if node.granted is None or not layout.texts else f" of {node.granted:,} tokens"
    yield Text(x + 8 * unit, y + height - 16 * unit, f"{node.spent:,}{granted}", 12 * unit)


def _cut(text: str, letters: int) -> str:
    return text if len(text) <= letters else text[: letters - 1] + "…"


def draw(nodes: Sequence[Node], name: Name) -> Image:
    """The tree as an image of shape (HEIGHT, WIDTH, 3), parents above their clones."""
    return paint(shapes(nodes, name, Layout.fitted(nodes)), WIDTH, HEIGHT)


def paint(shapes: Iterable[Shape], width: int, height: int, scale: float = 1.0, letters: Write | None = None) -> Image:
    """Shapes on the light page, as an image of shape (height, width, 3), `scale` pixels to a unit.

    Args:
        letters: who writes; by default `strokes.write`, which knows the letters of names and numbers alone.
    """
    image = np.empty((height, width, 3))
    image[:] = PAGE.rgb
    for shape in shapes:
        match shape:
            case Box():
                _box(image, shape, scale)
            case EdgeCurve():
                _blend(image, *_curve(shape, scale), shape.stroke)
            case Text():
                _text(image, shape, scale, letters or _stroke)
    return image.round().astype(np.uint8)


def _stroke(text: str, size: float, face: str) -> tuple[Mask, float]:
    return write(text, size, face == "bold")


def _blend(image: NDArray[np.float64], row: int, column: int, mask: Mask, tone: Tone) -> None:
    """Blend a colour into an image by a mask with its corner at (row, column). Parts outside the image are cropped."""
    top = max(0, -row)
    left = max(0, -column)
    here = image[max(0, row) : max(0, row + mask.shape[0]), max(0, column) : max(0, column + mask.shape[1])]
    cover = mask[top : top + here.shape[0], left : left + here.shape[1], None]
    here += cover * (np.array(tone.rgb, float) - here)


def _box(image: NDArray[np.float64], box: Box, scale: float) -> None:
    x, y, width, height, corner = (value * scale for value in box[:5])
    # The window is a little larger than the box, for the border and the smooth edge.
    row = int(y) - 2
    column = int(x) - 2
    rows, columns = np.mgrid[row : int(y + height) + 3, column : int(x + width) + 3] + 0.5
    away_x = np.abs(columns - x - width / 2) - width / 2 + corner
    away_y = np.abs(rows - y - height / 2) - height / 2 + corner
    # Signed distance to a rectangle with round corners: negative inside, positive outside.
    outside = np.hypot(away_x.clip(0), away_y.clip(0)) + np.minimum(np.maximum(away_x, away_y), 0) - corner
    _blend(image, row, column, np.clip(0.5 - outside, 0, 1), box.fill)
    if box.stroke is not None:
        _blend(image, row, column, np.clip(scale / 2 + 0.5 - np.abs(outside), 0, 1), box.stroke)


@lru_cache(maxsize=64)
def _curve(curve: EdgeCurve, scale: float) -> tuple[int, int, Mask]:
    """Return the row and column of a mask, and the mask of the pixels that the curve covers."""
    x1, y1, x2, y2, width = (value * scale for value in curve[:5])
    # A cubic Bezier curve whose control points lie halfway down, so that it is upright at both ends.
    time = np.linspace(0, 1, 25)
    bend = 3 * time * (1 - time) ** 2 + 3 * time**2 * (1 - time)
    rows = (1 - time) ** 3 * y1 + bend * (y1 + y2) / 2 + time**3 * y2
    columns = x1 + (x2 - x1) * (3 * time**2 - 2 * time**3)
    points = np.stack((columns, rows), -1)
    corner = np.floor(points.min(0) - width - 1)
    points -= corner
    across, down = np.ceil(points.max(0) + width + 1).astype(int)
    whole = np.zeros((down, across))
    for i in range(0, 24, 4):  # in pieces: the rectangle around a whole line is much larger than the line
        piece = points[i : i + 5]
        left, top = np.maximum(0, piece.min(0) - width - 1).astype(int)
        right, below = np.ceil(piece.max(0) + width + 1).astype(int)
        window = whole[top:below, left:right]
        np.maximum(window, along(piece - (left, top), window.shape, max(1.0, width)), out=window)
    return int(corner[1]), int(corner[0]), whole * min(1.0, width)


def _text(image: NDArray[np.float64], text: Text, scale: float, letters: Write) -> None:
    mask, foot = letters(text.text, text.size * scale, text.face)
    shift = {"start": 0.0, "middle": mask.shape[1] / 2, "end": mask.shape[1]}[text.anchor]
    _blend(image, round(text.y * scale - foot), round(text.x * scale - shift), mask, text.fill)
