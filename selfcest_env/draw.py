"""Draws the tree of agents as an image, with the colours, marks and sizes of the page of `selfcest trace --html`.

Every agent is a box with its name, the colour and the mark of its status, and the tokens that it has spent itself, also
as a share of its grant. `list_shapes` lays the tree out as shapes, and `paint` draws shapes with NumPy only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from selfcest_env import strokes
from selfcest_env.palette import EDGE, INK, NEGATIVE, PAGE, POSITIVE, SPENT, STATUS, SURFACE, Tone
from selfcest_env.render import OUTCOME_MARKS, Node, one_line, status_mark
from selfcest_env.strokes import Mask
from selfcest_env.types import ROOT, AgentId

Image = NDArray[np.uint8]
Name = Callable[[AgentId], str]
# From a text, its size and its face to a mask and the height of the baseline below the mask's upper edge.
DrawText = Callable[[str, float, str], tuple[Mask, float]]

# Size of the environments' images, in pixels.
HEIGHT = 360
WIDTH = 640
MARGIN = 12

# Sizes on the page in pixels: a box, and the gaps between neighbours and between levels of the tree.
BOX_WIDTH = 104.0
BOX_HEIGHT = 50.0
GAP_X = 12.0
GAP_Y = 34.0
NARROW_WIDTH = 58.0  # of a box in a wide tree
# A box that also shows the objective and the reply, and the size of these texts.
TEXTS_WIDTH = 150.0
TEXTS_HEIGHT = 92.0
TEXT_SIZE = 11.0
LETTER_WIDTH = 0.602  # of a monospaced letter, as a share of its size
ROOMY_WIDTH = 66.0  # of a box in which the name of the root and the longest mark fit at full size
MIN_LETTER_UNIT = 0.5  # scale below which letters are unreadable, so they are left out


class Box(NamedTuple):
    """A rectangle with round corners. Its border, if any, is one unit wide and centred on its edge."""

    x: float
    y: float
    width: float
    height: float
    round: float
    fill: Tone
    stroke: Tone | None = None


class EdgeCurve(NamedTuple):
    """A curve from (x1, y1) down to (x2, y2), vertical at both ends."""

    x1: float
    y1: float
    x2: float
    y2: float
    width: float
    stroke: Tone


class Text(NamedTuple):
    """A text on the baseline y. The anchor "start", "middle" or "end" is at x; the faces are sans, bold and mono."""

    x: float
    y: float
    text: str
    size: float
    face: str = "sans"
    anchor: str = "start"
    fill: Tone = INK


Shape = Box | EdgeCurve | Text


def format_short_id(agent_id: AgentId) -> str:
    """Return an agent's id without its root: `root`, `.0`, `.0.1`."""
    return str(agent_id) if agent_id == ROOT else str(agent_id).removeprefix(str(ROOT))


@dataclass(frozen=True)
class Layout:
    """Positions of boxes: leaves share the width, and a parent stands above the middle of its clones.

    Attributes:
        places: upper left corner (x, y) of every box.
        box: width and height of every box.
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
        """Return a layout of larger boxes at the page's size, as large as the tree needs."""
        columns, leaves, rows = _columns(nodes)
        across = TEXTS_WIDTH + GAP_X
        down = TEXTS_HEIGHT + GAP_Y
        places = {
            agent_id: (MARGIN + column * across, MARGIN + agent_id.depth * down) for agent_id, column in columns.items()
        }
        size = (2 * MARGIN + leaves * across - GAP_X, 2 * MARGIN + rows * down - GAP_Y)
        return cls(places, (TEXTS_WIDTH, TEXTS_HEIGHT), 1.0, size, texts=True)

    @classmethod
    def fitted(cls, nodes: Sequence[Node], width: int = WIDTH, height: int = HEIGHT) -> Layout:
        """Return a layout that fills a picture of this size. Boxes are at most 1.5 times as large as on the page."""
        columns, leaves, rows = _columns(nodes)
        across = (width - 2 * MARGIN) / leaves
        down = (height - 2 * MARGIN) / rows
        # The rest of each cell is for the gaps and the edges.
        box_height = min(1.5 * BOX_HEIGHT, down * 0.62)
        box_width = min(BOX_WIDTH * box_height / BOX_HEIGHT, across * 0.92)
        # A box that many neighbours make narrow may be taller in proportion, up to the shape of a narrow box.
        box_height = min(box_height, max(box_width * BOX_HEIGHT / NARROW_WIDTH, NARROW_WIDTH / 4))
        # A small tree stays together in the middle.
        down = min(down, max(box_height * (1 + 1.4 * GAP_Y / BOX_HEIGHT), (height - 2 * MARGIN) / 4))
        across = min(across, box_width + 2 * GAP_X)
        left = (width - leaves * across) / 2 + (across - box_width) / 2
        top = (height - rows * down) / 2 + (down - box_height) / 2
        places = {
            agent_id: (left + column * across, top + agent_id.depth * down) for agent_id, column in columns.items()
        }
        unit = min(box_height / BOX_HEIGHT, box_width / ROOMY_WIDTH)
        return cls(places, (box_width, box_height), unit, (width, height))


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


def list_shapes(
    nodes: Sequence[Node], name: Name, layout: Layout, critical: Collection[AgentId] = ()
) -> Iterator[Shape]:
    """Yield the shapes of a tree, from back to front.

    Args:
        nodes: agents of the layout, or some of them, in tree order.
        name: returns the text in an agent's box.
        layout: positions of the boxes.
        critical: clones whose edges belong to the critical path.
    """
    width, height = layout.box
    unit = layout.unit
    for is_critical in (False, True):  # critical edges are drawn last, so that they lie above the others
        for node in nodes:
            parent = node.agent_id.parent
            if parent is not None and (node.agent_id in critical) is is_critical:
                x1, y1 = layout.places[parent]
                x2, y2 = layout.places[node.agent_id]
                thickness = (2.5 if is_critical else 1.25) * min(1.0, max(unit, MIN_LETTER_UNIT))
                tone = INK if is_critical else EDGE
                yield EdgeCurve(x1 + width / 2, y1 + height, x2 + width / 2, y2, thickness, tone)
    for node in nodes:
        yield from _list_box_shapes(node, name(node.agent_id), layout)


def _list_box_shapes(node: Node, name: str, layout: Layout) -> Iterator[Shape]:
    x, y = layout.places[node.agent_id]
    width, height = layout.box
    unit = layout.unit
    corner = (12 if node.agent_id == ROOT else 5) * unit
    border = EDGE if width >= 4 else None
    yield Box(x, y, width, height, min(corner, width / 2, height / 2), STATUS[node.status], border)
    inside = width - 16 * unit
    if unit > MIN_LETTER_UNIT / 2:
        bar = (x + 8 * unit, y + height - 9 * unit)
        thick = max(2.0, 4 * unit)
        share = min(1.0, node.spent / node.granted) if node.granted else 0.0
        yield Box(*bar, inside, thick, 2 * unit, SURFACE)
        if share:
            yield Box(*bar, share * inside, thick, min(2 * unit, share * inside / 2), SPENT)
    if unit < MIN_LETTER_UNIT:
        return
    num_letters = int(inside / (13 * unit * 0.66)) - 2  # that fit beside the mark
    short = name if len(name) <= num_letters else name.rpartition("_")[2]
    yield Text(x + 8 * unit, y + 18 * unit, short, 13 * unit, "bold")
    yield Text(x + width - 8 * unit, y + 18 * unit, status_mark(node.status), 13 * unit, "bold", "end")
    if node.outcome:
        yield from _list_outcome_shapes(node.outcome, layout, x + width - 8 * unit, y)
    if layout.texts:
        line_letters = int(inside / (TEXT_SIZE * unit * LETTER_WIDTH))
        reply = "" if node.reply is None else f"→ {one_line(node.reply)}"
        for down, text in ((37, one_line(node.objective)), (53, reply)):
            if text:
                yield Text(x + 8 * unit, y + down * unit, _cut(text, line_letters), TEXT_SIZE * unit, "mono")
    granted = "" if node.granted is None or not layout.texts else f" of {node.granted:,} tokens"
    yield Text(x + 8 * unit, y + height - 16 * unit, f"{node.spent:,}{granted}", 12 * unit)


def _list_outcome_shapes(outcome: str, layout: Layout, right: float, y: float) -> Iterator[Shape]:
    """Yield the mark of an episode's outcome on a light ground, which ends at `right` in the box whose top is `y`.

    A box with texts has the word too, beside the mark of its status; a smaller one has the mark beside its tokens.
    """
    unit = layout.unit
    tone = {"right": POSITIVE, "wrong": NEGATIVE}.get(outcome, INK)
    text = OUTCOME_MARKS[outcome]
    height = 17 * unit
    if layout.texts:
        text += f" {outcome}"
        right -= 15 * unit
        top = y + 5 * unit
    else:
        top = y + layout.box[1] - 29 * unit
    width = (8 + 12 + 6.6 * (len(text) - 1)) * unit
    yield Box(right - width, top, width, height, height / 2, SURFACE, EDGE)
    yield Text(right - width / 2, top + 12.5 * unit, text, 11 * unit, "bold", "middle", tone)


def _cut(text: str, num_letters: int) -> str:
    return text if len(text) <= num_letters else text[: num_letters - 1] + "…"


def draw(nodes: Sequence[Node], name: Name) -> Image:
    """Draw a tree as an image of shape (HEIGHT, WIDTH, 3)."""
    return paint(list_shapes(nodes, name, Layout.fitted(nodes)), WIDTH, HEIGHT)


def paint(
    shapes: Iterable[Shape], width: int, height: int, scale: float = 1.0, draw_text: DrawText | None = None
) -> Image:
    """Draw shapes on the light page, as an image of shape (height, width, 3).

    Args:
        shapes: the shapes, from back to front.
        width: width of the image in pixels.
        height: height of the image in pixels.
        scale: pixels per unit of the shapes.
        draw_text: draws texts; by default `strokes.draw_text`, which has only the letters of names and numbers.
    """
    image = np.empty((height, width, 3))
    image[:] = PAGE.rgb
    for shape in shapes:
        match shape:
            case Box():
                _paint_box(image, shape, scale)
            case EdgeCurve():
                _blend(image, *_mask_of_curve(shape, scale), shape.stroke)
            case Text():
                _paint_text(image, shape, scale, draw_text or _draw_strokes)
    return image.round().astype(np.uint8)


def _draw_strokes(text: str, size: float, face: str) -> tuple[Mask, float]:
    return strokes.draw_text(text, size, face == "bold")


def _blend(image: NDArray[np.float64], row: int, column: int, mask: Mask, tone: Tone) -> None:
    """Blend a colour into an image by a mask with its corner at (row, column). Parts outside the image are cropped."""
    top = max(0, -row)
    left = max(0, -column)
    # Indexing returns a view, so that the addition writes into the image.
    window = image[max(0, row) : max(0, row + mask.shape[0]), max(0, column) : max(0, column + mask.shape[1])]
    opacity = mask[top : top + window.shape[0], left : left + window.shape[1], None]
    window += opacity * (np.array(tone.rgb, float) - window)


def _paint_box(image: NDArray[np.float64], box: Box, scale: float) -> None:
    x, y, width, height, corner = (value * scale for value in box[:5])
    # The window is a little larger than the box, for the border and the smooth edge.
    row = int(y) - 2
    column = int(x) - 2
    rows, columns = np.mgrid[row : int(y + height) + 3, column : int(x + width) + 3] + 0.5
    # The signed distance to a rectangle with round corners is negative inside and positive outside.
    away_x = np.abs(columns - x - width / 2) - width / 2 + corner
    away_y = np.abs(rows - y - height / 2) - height / 2 + corner
    distance = np.hypot(away_x.clip(0), away_y.clip(0)) + np.minimum(np.maximum(away_x, away_y), 0) - corner
    _blend(image, row, column, np.clip(0.5 - distance, 0, 1), box.fill)
    if box.stroke is not None:
        _blend(image, row, column, np.clip(scale / 2 + 0.5 - np.abs(distance), 0, 1), box.stroke)


@lru_cache(maxsize=64)
def _mask_of_curve(curve: EdgeCurve, scale: float) -> tuple[int, int, Mask]:
    """Return the row and column of a mask, and the mask of the pixels that the curve covers."""
    x1, y1, x2, y2, width = (value * scale for value in curve[:5])
    # A cubic Bezier curve whose control points lie halfway down, so that it is vertical at both ends.
    time = np.linspace(0, 1, 25)
    bend = 3 * time * (1 - time) ** 2 + 3 * time**2 * (1 - time)
    rows = (1 - time) ** 3 * y1 + bend * (y1 + y2) / 2 + time**3 * y2
    columns = x1 + (x2 - x1) * (3 * time**2 - 2 * time**3)
    points = np.stack((columns, rows), -1)
    corner = np.floor(points.min(0) - width - 1)
    points -= corner
    across, down = np.ceil(points.max(0) + width + 1).astype(int)
    mask = np.zeros((down, across))
    for i in range(0, 24, 4):  # in pieces, because the rectangle around a whole curve is mostly empty
        piece = points[i : i + 5]
        left, top = np.maximum(0, piece.min(0) - width - 1).astype(int)
        right, below = np.ceil(piece.max(0) + width + 1).astype(int)
        window = mask[top:below, left:right]
        np.maximum(window, strokes.draw_line(piece - (left, top), window.shape, max(1.0, width)), out=window)
    return int(corner[1]), int(corner[0]), mask * min(1.0, width)


def _paint_text(image: NDArray[np.float64], text: Text, scale: float, draw_text: DrawText) -> None:
    mask, baseline = draw_text(text.text, text.size * scale, text.face)
    shift = {"start": 0.0, "middle": mask.shape[1] / 2, "end": mask.shape[1]}[text.anchor]
    _blend(image, round(text.y * scale - baseline), round(text.x * scale - shift), mask, text.fill)
