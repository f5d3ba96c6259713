"""One page as one file: styles, scripts and data inside, and a policy that lets a browser load and run nothing else.

Whatever models wrote goes into a page as JSON, which no browser runs, and scripts show it as text alone.
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

# In JSON all of them stand in strings alone. A lone surrogate, which a model may write, has no UTF-8.
_UNSAFE = re.compile("[<>&\u2028\u2029\ud800-\udfff]")


@dataclass(frozen=True)
class Page:
    """A page.

    Attributes:
        title: in the browser's tab, and in the header.
        body: what stands below the header, a `<main id="main">` in it, as HTML of this project's own: no text of a
            model, of a task or of a file.
        styles, scripts: names of files in this folder, after `page.css` and `page.js`, which every page has. The
            scripts are one module, in this order: what `page.js` defines is there for the others.
        data: by name what `read(name)` gives a script, as JSON values.
        lines: by name JSON values that `lines(name)` gives a script as texts, one each, so that it reads those that it
            shows: for what is too much to read at once.
    """

    title: str
    body: str
    styles: Sequence[str] = ()
    scripts: Sequence[str] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    lines: Mapping[str, Iterable[Any]] = field(default_factory=dict)

    def render(self) -> str:
        """The page as HTML."""
        style = "\n".join([_colours(), *(asset(name) for name in ("page.css", *self.styles))])
        script = "\n".join(asset(name) for name in ("page.js", *self.scripts))
        policy = (
            f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:; "
            "base-uri 'none'; form-action 'none'"
        )
        blocks = [(name, dumps(value)) for name, value in self.data.items()]
        blocks += [(name, "\n".join(map(dumps, values))) for name, values in self.lines.items()]
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


def dumps(value: Any) -> str:
    """`value` as one line of JSON that can stand in a page: nothing in it ends or opens an element.

    Raises `ValueError` for what JSON has no word for, infinities and NaN.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def rounded(value: float) -> float | int | None:
    """With six digits, which no reader and no drawing tells from all; `None` for what JSON has no word for."""
    if isinstance(value, int):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def asset(name: str) -> str:
    """A file of this folder."""
    return (files(__package__) / name).read_text("utf-8")


def _colours() -> str:
    tones = (f"--{name}: light-dark({tone.light}, {tone.dark});" for name, tone in TONES.items())
    return ":root { " + " ".join(tones) + " }"
