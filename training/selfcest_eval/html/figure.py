"""One episode as a figure: the tree of its page with what was asked and replied, as SVG, or growing as a GIF."""

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
    DOWN,
    MARGIN,
    Box,
    EdgeCurve,
    Image,
    Layout,
    Shape,
    Text,
    paint,
    shapes,
    short_name,
)
from selfcest_env.palette import MUTED, PAGE, TONES
from selfcest_env.record import EpisodeRecord
from selfcest_env.render import Node, nodes_of_part, nodes_of_record, shorten
from selfcest_env.strokes import Mask
from selfcest_env.types import AgentId, Status
from selfcest_eval.html.playing import Clock

LARGEST = (1400, 1000)  # of a figure that shows texts; a larger tree does without and is fitted into it
LEAST_WIDTH = 320  # of one that shows texts, for the line below the tree
BELOW, FOOT = 26, 12  # room for the price below the tree, and the size of its letters
PIXELS = 1200  # of a GIF's width, about: small trees get more pixels, twice as many as units at most
FRAME_MS, LAST_MS = 900, 4000
SANS = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif'
MONO = 'ui-monospace, "SF Mono", "Cascadia Mono", "Noto Sans Mono", "DejaVu Sans Mono", monospace'
FONTS = {"sans": "DejaVuSans.ttf", "bold": "DejaVuSans-Bold.ttf", "mono": "DejaVuSansMono.ttf"}


def svg(record: EpisodeRecord) -> str:
    """The whole episode, on light and on dark ground; colours of dark ground need a browser."""
    layout = _layout(nodes_of_record(record))
    width, height = layout.size[0], layout.size[1] + BELOW
    words = f"{shorten(record.task.prompt)}: {_price(record)}"
    drawn = "\n".join(_element(shape) for shape in _shapes(record, nodes_of_record(record), layout, _price(record)))
    used = {name for names in re.findall(r'class="([^"]*)"', drawn) for name in names.split()} | {"page"}
    dark = "".join(f".{name}{{fill:{tone.dark}}}" for name, tone in TONES.items() if name in used)
    dark += "".join(f".{name}-line{{stroke:{tone.dark}}}" for name, tone in TONES.items() if f"{name}-line" in used)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(words)}" width="{width:g}" '
        f'height="{height:g}" viewBox="0 0 {width:g} {height:g}">\n'
        f"<style>.sans,.bold{{font-family:{SANS}}}.bold{{font-weight:600}}.mono{{font-family:{MONO}}}"
        f"text{{white-space:pre}}@media (prefers-color-scheme:dark){{{dark}}}</style>\n"
        f'<rect class="page" width="{width:g}" height="{height:g}" rx="8" fill="{PAGE.light}"/>\n'
        f"{drawn}\n</svg>\n"
    )


def frames(record: EpisodeRecord) -> Iterator[Image]:
    """The episode at its beginning and after each of its turns, in the order in which they ended."""
    whole = nodes_of_record(record)
    layout = _layout(whole)
    scale = min(2.0, PIXELS / layout.size[0]) if layout.texts else 1.0
    width, height = (round(side * scale) for side in (layout.size[0], layout.size[1] + BELOW))
    clock, turns, played = Clock(record), record.cost.turns, dict[AgentId, int]()
    for done in range(turns + 1):
        nodes = nodes_of_part(record, played)
        spent = sum(node.spent for node in nodes)
        foot = _price(record) if done == turns else f"{done} of {turns} turns, {spent:,} tokens"
        yield paint(_shapes(record, nodes, layout, foot, done == turns), width, height, scale, _letters)
        ready = [(node.agent_id, played.get(node.agent_id, 0)) for node in nodes if node.status is Status.READY]
        if ready:
            agent_id = clock.first_to_end(ready)
            played[agent_id] = played.get(agent_id, 0) + 1


def gif(record: EpisodeRecord) -> bytes:
    """The frames as a GIF that plays on; what colours it has are those of the frames, the most frequent 256 of them."""
    drawn = list(frames(record))
    codes = [(frame.astype(np.uint32) << np.array([16, 8, 0], np.uint32)).sum(-1, dtype=np.uint32) for frame in drawn]
    colours, counts = np.unique(np.concatenate([code.ravel() for code in codes]), return_counts=True)
    kept = np.sort(colours[np.argsort(-counts, kind="stable")[:256]])
    table = _nearest(_rgb(colours), _rgb(kept))
    images = []
    for code in codes:
        image = Pillow.fromarray(table[np.searchsorted(colours, code)])
        image.putpalette(_rgb(kept).astype(np.uint8).tobytes())
        images.append(image)
    stream = BytesIO()
    times = [FRAME_MS] * (len(images) - 1) + [LAST_MS]
    images[0].save(stream, "GIF", save_all=True, append_images=images[1:], duration=times, loop=0, optimize=False)
    return stream.getvalue()


def _rgb(codes: NDArray[np.uint32]) -> NDArray[np.int64]:
    return np.stack([(codes >> shift) & 255 for shift in (16, 8, 0)], -1).astype(np.int64)


def _nearest(colours: NDArray[np.int64], kept: NDArray[np.int64]) -> NDArray[np.uint8]:
    """For every colour the number of the nearest that is kept."""
    parts = np.array_split(colours, 1 + len(colours) // 4096)
    found = [((part[:, None] - kept) ** 2).sum(-1).argmin(1) for part in parts]
    return np.concatenate(found).astype(np.uint8)


def _layout(nodes: Sequence[Node]) -> Layout:
    layout = Layout.with_texts(nodes)
    if layout.size[0] <= LARGEST[0] and layout.size[1] <= LARGEST[1]:
        lacking = max(0.0, LEAST_WIDTH - layout.size[0])
        places = {agent_id: (x + lacking / 2, y) for agent_id, (x, y) in layout.places.items()}
        return replace(layout, places=places, size=(layout.size[0] + lacking, layout.size[1]))
    rows = 1 + max(node.agent_id.depth for node in nodes)
    return Layout.fitted(nodes, LARGEST[0], int(min(LARGEST[1], 2 * MARGIN + rows * 2 * (BOX_HEIGHT + DOWN))))


def _shapes(
    record: EpisodeRecord, nodes: Sequence[Node], layout: Layout, foot: str, ended: bool = True
) -> Iterator[Shape]:
    critical = {agent_id for agent_id, _ in Clock(record).critical} if ended else set[AgentId]()
    yield from shapes(nodes, short_name, layout, critical)
    yield Text(layout.size[0] / 2, layout.size[1] + BELOW - MARGIN, foot, FOOT, "sans", "middle", MUTED)


def _price(record: EpisodeRecord) -> str:
    cost = record.cost
    clones = f"{cost.clones} clone" + "s" * (cost.clones != 1)
    return f"{cost.total_tokens:,} tokens, {clones}, critical path {cost.critical_path_tokens:,}"


# SVG

_NAMES = {tone: name for name, tone in TONES.items()}


def _element(shape: Shape) -> str:
    match shape:
        case Box():
            line = "" if shape.stroke is None else f' stroke="{shape.stroke.light}"'
            classes = _NAMES[shape.fill] + ("" if shape.stroke is None else f" {_NAMES[shape.stroke]}-line")
            return (
                f'<rect class="{classes}" x="{shape.x:.4g}" y="{shape.y:.4g}" width="{shape.width:.4g}" '
                f'height="{shape.height:.4g}" rx="{shape.round:.3g}" fill="{shape.fill.light}"{line}/>'
            )
        case EdgeCurve():
            middle = (shape.y1 + shape.y2) / 2
            return (
                f'<path class="{_NAMES[shape.stroke]}-line" d="M{shape.x1:.4g} {shape.y1:.4g}C{shape.x1:.4g} '
                f'{middle:.4g} {shape.x2:.4g} {middle:.4g} {shape.x2:.4g} {shape.y2:.4g}" fill="none" '
                f'stroke="{shape.stroke.light}" stroke-width="{shape.width:.3g}"/>'
            )
        case Text():
            anchor = "" if shape.anchor == "start" else f' text-anchor="{shape.anchor}"'
            text = escape(shape.text, quote=False)
            return (
                f'<text class="{shape.face} {_NAMES[shape.fill]}" x="{shape.x:.4g}" y="{shape.y:.4g}" '
                f'font-size="{shape.size:.3g}"{anchor} fill="{shape.fill.light}">{text}</text>'
            )


# Letters of a GIF


def _letters(text: str, size: float, face: str) -> tuple[Mask, float]:
    font = _font(face, round(size))
    ascent, descent = font.getmetrics()
    ink = Pillow.new("L", (max(1, int(np.ceil(font.getlength(text)))), ascent + descent))
    ImageDraw.Draw(ink).text((0, 0), text, 255, font)
    return np.asarray(ink, float) / 255, float(ascent)


@lru_cache
def _font(face: str, size: int) -> ImageFont.FreeTypeFont:
    """The fonts that come with matplotlib, which have the marks of states too."""
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / FONTS[face]), size)
