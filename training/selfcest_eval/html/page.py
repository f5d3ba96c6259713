"""A page as one file, with its styles, scripts and data, and a policy that forbids everything else.

Texts of models go into a page as JSON, which no browser runs, and scripts show them only as text.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from typing import Any

from selfcest_env.palette import TONES

# JSON has these characters only inside strings. A lone surrogate, which a model may write, has no UTF-8.
_UNSAFE = re.compile("[<>&\u2028\u2029\ud800-\udfff]")

CONNECTS = "connect-src 'self'; "


@dataclass(frozen=True)
class Page:
    """A page.

    Attributes:
        title: title of the browser's tab and of the header.
        body: HTML below the header, with a `<main id="main">`. It must hold no text of a model, a task or a file.
        styles, scripts: names of files in this folder, after `page.css` and `page.js`, which every page has. The
            scripts become one module, in this order, so all of them can use the definitions of `page.js`.
        data: JSON values by name; a script gets one with `read(name)`.
        lines: lists of JSON values by name, for data that is too large to parse at once. A script gets the texts of a
            list with `lines(name)`, and parses those that it shows.
        connects: whether its script may ask the server of the page, which is for pages that follow a run.
    """

    title: str
    body: str
    styles: Sequence[str] = ()
    scripts: Sequence[str] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    lines: Mapping[str, Iterable[Any]] = field(default_factory=dict)
    connects: bool = False

    def _repr_html_(self) -> str:
        """Return the page in a frame, for a notebook."""
        # Scripts of the page run, but cannot reach the notebook around it.
        return f'<iframe sandbox="allow-scripts" srcdoc="{escape(self.render())}" width="100%" height="800"></iframe>'

    def render(self) -> str:
        """Return the page as HTML."""
        style = "\n".join([_format_colours(), *(read_asset(name) for name in ("page.css", *self.styles))])
        script = "\n".join(read_asset(name) for name in ("page.js", *self.scripts))
        policy = (
            f"default-src 'none'; style-src {_hash_source(style)}; script-src {_hash_source(script)}; img-src data:; "
            f"{CONNECTS if self.connects else ''}base-uri 'none'; form-action 'none'"
        )
        blocks = [(name, dump_json(value)) for name, value in self.data.items()]
        blocks += [(name, "\n".join(map(dump_json, values))) for name, values in self.lines.items()]
        return "\n".join(
            [
                "<!doctype html>",
                '<html lang="en">',
                "<head>",
                '<meta charset="utf-8">',
                f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
                '<meta name="viewport" content="width=device-width, initial-scale=1">',
                '<meta name="color-scheme" content="light dark">',
                f"<title>{escape(self.title)}</title>",
                '<link rel="icon" href="data:,">',
                f"<style>{style}</style>",
                "</head>",
                "<body>",
                '<a class="skip" href="#main">Skip to the content</a>',
                '<header class="bar">',
                f"<h1>{escape(self.title)}</h1>",
                '<button id="scheme" type="button"></button>',
                "</header>",
                '<noscript><p class="notice">This page shows nothing where scripts do not run.</p></noscript>',
                self.body,
                *(f'<script type="application/json" id="{escape(name)}">{text}</script>' for name, text in blocks),
                f'<script type="module">{script}</script>',
                "</body>",
                "</html>",
                "",
            ]
        )


def dump_json(value: Any) -> str:
    """Return a value as one line of JSON for a page: nothing in it ends or opens an element.

    Raises:
        ValueError: the value holds an infinity or NaN, which JSON lacks.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def round_number(value: float) -> float | int | None:
    """Return a number with six significant digits, or `None` for an infinity and NaN, which JSON lacks."""
    if isinstance(value, int):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _hash_source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def read_asset(name: str) -> str:
    """Return the text of a file of this folder."""
    return (files(__package__) / name).read_text("utf-8")


def _format_colours() -> str:
    tones = (f"--{name}: light-dark({tone.light}, {tone.dark});" for name, tone in TONES.items())
    return ":root { " + " ".join(tones) + " }"
