"""One episode as a figure: its tree with objectives and replies, as SVG or PNG, or growing as a GIF."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from html import escape
from io import BytesIO
from pathlib import Path

import matplotlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow
from PIL import ImageDraw, ImageFont

from selfcest_env.draw import (
    BOX_HEIGHT,
    GAP_Y,
    MARGIN,
    Box,
    EdgeCurve,
    Image,
    Layout,
    Shape,
    Text,
    format_short_id,
    list_shapes,
    paint,
)
from selfcest_env.palette import MUTED, PAGE, TONES
from selfcest_env.record import EpisodeRecord
from selfcest_env.render import Node, nodes_of_part, nodes_of_record, shorten
from selfcest_env.strokes import Mask
from selfcest_env.types import AgentId, Status
from selfcest_eval.html.playing import Timeline

MAX_SIZE = (1400, 1000)  # largest figure with texts; a larger tree is drawn without texts, scaled to this size
MIN_WIDTH = 320  # smallest width of a figure with texts, so that the line below the tree fits
FOOT_HEIGHT = 26  # room for the line below the tree
FOOT_SIZE = 12  # font size of this line
GIF_PIXELS = 1200  # width of a GIF; small trees are enlarged to it, at most to twice their size
FRAME_MS = 900
LAST_FRAME_MS = 4000
SANS = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif'
MONO = 'ui-monospace, "SF Mono", "Cascadia Mono", "Noto Sans Mono", "DejaVu Sans Mono", monospace'
FONTS = {"sans": "DejaVuSans.ttf", "bold": "DejaVuSans-Bold.ttf", "mono": "DejaVuSansMono.ttf"}


def draw_svg(record: EpisodeRecord, outcome: str | None = None) -> str:
    """Return the whole episode as SVG. The colours of dark mode need a browser.

    Args:
        record: the episode.
        outcome: key of `OUTCOME_MARKS`, or ""; `None`: that of `judge`.
    """
    nodes = _set_outcome(nodes_of_record(record), outcome)
    layout = _make_layout(nodes)
    width = layout.size[0]
    height = layout.size[1] + FOOT_HEIGHT
    label = f"{shorten(record.task.prompt)}: {_describe_cost(record)}"
    drawn = "\n".join(_format_element(shape) for shape in _list_shapes(record, nodes, layout, _describe_cost(record)))
    classes = {"page", *" ".join(re.findall(r'class="([^"]*)"', drawn)).split()}
    dark = "".join(f".{name}{{fill:{tone.dark}}}" for name, tone in TONES.items() if name in classes)
    dark += "".join(f".{name}-line{{stroke:{tone.dark}}}" for name, tone in TONES.items() if f"{name}-line" in classes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(label)}" width="{width:g}" '
        f'height="{height:g}" viewBox="0 0 {width:g} {height:g}">\n'
        f"<style>.sans,.bold{{font-family:{SANS}}}.bold{{font-weight:600}}.mono{{font-family:{MONO}}}"
        f"text{{white-space:pre}}@media (prefers-color-scheme:dark){{{dark}}}</style>\n"
        f'<rect class="page" width="{width:g}" height="{height:g}" rx="8" fill="{PAGE.light}"/>\n'
        f"{drawn}\n</svg>\n"
    )


def draw_png(record: EpisodeRecord, outcome: str | None = None) -> bytes:
    """Return the whole episode as PNG, on a light background, at twice the size of the SVG if it has texts."""
    nodes = _set_outcome(nodes_of_record(record), outcome)
    layout = _make_layout(nodes)
    scale = 2.0 if layout.texts else 1.0
    width = round(layout.size[0] * scale)
    height = round((layout.size[1] + FOOT_HEIGHT) * scale)
    shapes = _list_shapes(record, nodes, layout, _describe_cost(record))
    stream = BytesIO()
    Pillow.fromarray(paint(shapes, width, height, scale, _draw_letters)).save(stream, "PNG")
    return stream.getvalue()


def draw_frames(record: EpisodeRecord, outcome: str | None = None) -> Iterator[Image]:
    """Yield the episode at its beginning and after each of its turns, in the order in which they ended."""
    layout = _make_layout(nodes_of_record(record))
    scale = min(2.0, GIF_PIXELS / layout.size[0]) if layout.texts else 1.0
    width = round(layout.size[0] * scale)
    height = round((layout.size[1] + FOOT_HEIGHT) * scale)
    timeline = Timeline(record)
    num_turns = record.cost.turns
    turns_played: dict[AgentId, int] = {}
    for done in range(num_turns + 1):
        nodes = nodes_of_part(record, turns_played)
        spent = sum(node.spent for node in nodes)
        has_ended = done == num_turns
        if has_ended:
            nodes = _set_outcome(nodes, outcome)
        foot = _describe_cost(record) if has_ended else f"{done} of {num_turns} turns, {spent:,} tokens"
        yield paint(_list_shapes(record, nodes, layout, foot, has_ended), width, height, scale, _draw_letters)
        ready = [(node.agent_id, turns_played.get(node.agent_id, 0)) for node in nodes if node.status is Status.READY]
        if ready:
            agent_id = timeline.first_to_end(ready)
            turns_played[agent_id] = turns_played.get(agent_id, 0) + 1


def draw_gif(record: EpisodeRecord, outcome: str | None = None) -> bytes:
    """Return the frames as a GIF that repeats. Its palette has the 256 most frequent colours of the frames."""
    codes = []
    for frame in draw_frames(record, outcome):
        # One integer for red, green and blue.
        shifted = frame.astype(np.uint32) << np.array([16, 8, 0], np.uint32)
        codes.append(shifted.sum(-1, dtype=np.uint32))
    colours, counts = np.unique(np.concatenate([code.ravel() for code in codes]), return_counts=True)
    palette = np.sort(colours[np.argsort(-counts, kind="stable")[:256]])
    table = _find_nearest(_split_rgb(colours), _split_rgb(palette))
    images = []
    for code in codes:
        image = Pillow.fromarray(table[np.searchsorted(colours, code)])
        image.putpalette(_split_rgb(palette).astype(np.uint8).tobytes())
        images.append(image)
    stream = BytesIO()
    times = [FRAME_MS] * (len(images) - 1) + [LAST_FRAME_MS]
    images[0].save(stream, "GIF", save_all=True, append_images=images[1:], duration=times, loop=0, optimize=False)
    return stream.getvalue()


def _split_rgb(codes: NDArray[np.uint32]) -> NDArray[np.int64]:
    return np.stack([(codes >> shift) & 255 for shift in (16, 8, 0)], -1).astype(np.int64)


def _find_nearest(colours: NDArray[np.int64], palette: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return for each colour the index of the nearest colour of the palette."""
    # In parts, since all pairs of colours at once take too much memory.
    parts = np.array_split(colours, 1 + len(colours) // 4096)
    indices = [((part[:, None] - palette) ** 2).sum(-1).argmin(1) for part in parts]
    return np.concatenate(indices).astype(np.uint8)


def _set_outcome(nodes: list[Node], outcome: str | None) -> list[Node]:
    return nodes if outcome is None else [replace(nodes[0], outcome=outcome), *nodes[1:]]


def _make_layout(nodes: Sequence[Node]) -> Layout:
    layout = Layout.with_texts(nodes)
    if layout.size[0] <= MAX_SIZE[0] and layout.size[1] <= MAX_SIZE[1]:
        lacking = max(0.0, MIN_WIDTH - layout.size[0])
        places = {agent_id: (x + lacking / 2, y) for agent_id, (x, y) in layout.places.items()}
        return replace(layout, places=places, size=(layout.size[0] + lacking, layout.size[1]))
    rows = 1 + max(node.agent_id.depth for node in nodes)
    return Layout.fitted(nodes, MAX_SIZE[0], int(min(MAX_SIZE[1], 2 * MARGIN + rows * 2 * (BOX_HEIGHT + GAP_Y))))


def _list_shapes(
    record: EpisodeRecord, nodes: Sequence[Node], layout: Layout, foot: str, has_ended: bool = True
) -> Iterator[Shape]:
    critical = {agent_id for agent_id, _ in Timeline(record).critical} if has_ended else set()
    yield from list_shapes(nodes, format_short_id, layout, critical)
    foot_y = layout.size[1] + FOOT_HEIGHT - MARGIN
    yield Text(layout.size[0] / 2, foot_y, foot, FOOT_SIZE, "sans", "middle", MUTED)


def _describe_cost(record: EpisodeRecord) -> str:
    cost = record.cost
    clones = f"{cost.clones} clone" + "s" * (cost.clones != 1)
    return f"{cost.total_tokens:,} tokens, {clones}, critical path {cost.critical_path_tokens:,}"


# SVG

_TONE_NAMES = {tone: name for name, tone in TONES.items()}


def _format_element(shape: Shape) -> str:
    match shape:
        case Box():
            line = "" if shape.stroke is None else f' stroke="{shape.stroke.light}"'
            classes = _TONE_NAMES[shape.fill] + ("" if shape.stroke is None else f" {_TONE_NAMES[shape.stroke]}-line")
            return (
                f'<rect class="{classes}" x="{shape.x:.4g}" y="{shape.y:.4g}" width="{shape.width:.4g}" '
                f'height="{shape.height:.4g}" rx="{shape.round:.3g}" fill="{shape.fill.light}"{line}/>'
            )
        case EdgeCurve():
            middle = (shape.y1 + shape.y2) / 2
            return (
                f'<path class="{_TONE_NAMES[shape.stroke]}-line" d="M{shape.x1:.4g} {shape.y1:.4g}C{shape.x1:.4g} '
                f'{middle:.4g} {shape.x2:.4g} {middle:.4g} {shape.x2:.4g} {shape.y2:.4g}" fill="none" '
                f'stroke="{shape.stroke.light}" stroke-width="{shape.width:.3g}"/>'
            )
        case Text():
            anchor = "" if shape.anchor == "start" else f' text-anchor="{shape.anchor}"'
            text = escape(shape.text, quote=False)
            return (
                f'<text class="{shape.face} {_TONE_NAMES[shape.fill]}" x="{shape.x:.4g}" y="{shape.y:.4g}" '
                f'font-size="{shape.size:.3g}"{anchor} fill="{shape.fill.light}">{text}</text>'
            )


# Letters of a GIF


def _draw_letters(text: str, size: float, face: str) -> tuple[Mask, float]:
    font = _load_font(face, round(size))
    ascent, descent = font.getmetrics()
    ink = Pillow.new("L", (max(1, int(np.ceil(font.getlength(text)))), ascent + descent))
    ImageDraw.Draw(ink).text((0, 0), text, 255, font)
    return np.asarray(ink, float) / 255, float(ascent)


@lru_cache
def _load_font(face: str, size: int) -> ImageFont.FreeTypeFont:
    """Return a font of matplotlib's, which have the marks of states."""
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / FONTS[face]), size)
