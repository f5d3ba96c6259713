"""The colours of the environment's images, of the HTML pages and of their figures.

A colour has the same meaning everywhere, and a mark, number or word always repeats the meaning. For colour-blind
readers positive and negative are blue and orange, and statuses also differ in lightness.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple

from selfcest_env.types import Status


class Tone(NamedTuple):
    """One colour on a light and on a dark background, each as `#rrggbb`."""

    light: str
    dark: str

    @property
    def rgb(self) -> tuple[int, int, int]:
        """Red, green and blue on a light background, from 0 to 255."""
        return int(self.light[1:3], 16), int(self.light[3:5], 16), int(self.light[5:], 16)


# Backgrounds and text. `INK` and `MUTED` have a contrast of at least 4.5 on all three backgrounds and on all fills.
PAGE = Tone("#fafaf7", "#14161b")
SURFACE = Tone("#ffffff", "#1c1f26")
SUNKEN = Tone("#f0f0ec", "#0f1115")
INK = Tone("#1e2026", "#e9eaee")
MUTED = Tone("#575c67", "#a7adba")
LINE = Tone("#d8d9d6", "#363b46")
EDGE = Tone("#828792", "#6d7482")
ACCENT = Tone("#0a5aa8", "#85bcff")

# Authors of texts. Texts of the environment are `MUTED`.
ROOT = Tone("#5a46a0", "#b9a9f7")
CLONE = Tone("#0c6c80", "#63cbe0")
GENERATED = Tone("#e3ecfb", "#1d3152")

# Statuses of agents, as fills behind `INK`.
READY = Tone("#ffd968", "#675012")
WAITING = Tone("#a9c9f2", "#274b78")
# An answer may be wrong, so the colour of an agent that answered is no colour of success.
ANSWERED = Tone("#d5caec", "#473c68")
FAILED = Tone("#f2a78d", "#7c3622")
ABSENT = Tone("#dcdce0", "#3a3e48")
STATUS = MappingProxyType(
    dict.fromkeys(Status, FAILED)
    | {
        Status.READY: READY,
        Status.WAITING: WAITING,
        Status.ANSWERED: ANSWERED,
        Status.ABSENT: ABSENT,
    }
)

# Parts of an account.
SPENT = Tone("#48505f", "#a3abbb")
RESERVED = Tone("#d99a1c", "#d9a232")
LENT = Tone("#1f93aa", "#3aa3b9")
FREE = Tone("#dfe6dc", "#2a3a30")

# Outcomes of episodes, credit and differences: better and worse.
POSITIVE = Tone("#1867b7", "#6fb1ff")
NEGATIVE = Tone("#b84a08", "#ff9a5c")

# Curves of a figure, in this order; each differs from its neighbours in lightness as well.
SERIES = (
    Tone("#0072b2", "#56b4e9"),
    Tone("#c25a00", "#f2a33c"),
    Tone("#00664b", "#35c99d"),
    Tone("#b0508c", "#e493c5"),
    Tone("#3c3f46", "#d5d7dc"),
    Tone("#8a6d00", "#e6d458"),
)

# Names in stylesheets and figures.
TONES = MappingProxyType(
    {
        "page": PAGE,
        "surface": SURFACE,
        "sunken": SUNKEN,
        "ink": INK,
        "muted": MUTED,
        "line": LINE,
        "edge": EDGE,
        "accent": ACCENT,
        "root": ROOT,
        "clone": CLONE,
        "generated": GENERATED,
        "spent": SPENT,
        "reserved": RESERVED,
        "lent": LENT,
        "free": FREE,
        "positive": POSITIVE,
        "negative": NEGATIVE,
    }
    | {f"status-{status.value.replace('_', '-')}": tone for status, tone in STATUS.items()}
    | {f"series-{number}": tone for number, tone in enumerate(SERIES, 1)}
)
