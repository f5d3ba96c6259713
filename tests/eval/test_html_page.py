"""One page as one file: what stands in it, what may run in it, and that its colours can be read."""

import base64
import hashlib
import itertools
import json
import re
from importlib.resources import files

import pytest

from selfcest_env import palette
from selfcest_env.types import Status
from selfcest_eval.html.page import Page, dump_json

EVIL = "</script><script>alert(1)</script><!--\u2028\u2029\ud800&amp;\x00\r\n\"'<img src=x onerror=alert(1)>"


def test_what_goes_in_as_data_comes_out_again_and_is_nothing_else() -> None:
    html = Page("T", '<main id="main"></main>', data={"a": {EVIL: EVIL}}, lines={"b": [[EVIL], 2]}).render()
    html.encode()
    blocks = dict(re.findall(r'<script type="application/json" id="(\w)">(.*?)</script>', html, re.DOTALL))
    assert json.loads(blocks["a"]) == {EVIL: EVIL}
    assert [json.loads(line) for line in blocks["b"].split("\n")] == [[EVIL], 2]
    assert html.count("<script") == 3
    assert "onerror" not in html.replace(blocks["a"], "").replace(blocks["b"], "")
    assert "<" not in blocks["a"] + blocks["b"]


def test_a_title_is_text() -> None:
    html = Page("<b>&", "").render()
    assert "<b>" not in html
    assert html.count("&lt;b&gt;&amp;") == 2


def test_only_the_page_s_own_style_and_script_may_run() -> None:
    html = Page("T", "").render()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None
    for element, directive in (("style", "style-src"), ('script type="module"', "script-src")):
        text = html.split(f"<{element}>")[1].split(f"</{element.split()[0]}>")[0]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}';" in policy[1]
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]


def test_no_script_parses_html_and_no_style_loads_anything() -> None:
    shipped = [file for file in files("selfcest_eval.html").iterdir() if file.name.endswith((".js", ".css"))]
    assert {"page.css", "page.js"} <= {file.name for file in shipped}
    for file in shipped:
        text = file.read_text("utf-8")
        if file.name == "live.js":  # only on a served page, whose policy lets it ask its own server
            text = text.replace('await fetch("progress.json")', "")
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacent",
            "document.write",
            "eval(",
            "Function(",
            "fetch(",
            "XMLHttpRequest",
            "import(",
            "javascript:",
            "@import",
            "http://",
            "https://",
            "</",
            "<!--",
        ):
            assert word not in text.replace("http://www.w3.org/2000/svg", ""), (file.name, word)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_json_cannot_say_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        dump_json([value])


def contrast(one: str, other: str) -> float:
    """WCAG 2's ratio, 1 to 21."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


GROUNDS = (palette.PAGE, palette.SURFACE, palette.SUNKEN)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_can_be_read(scheme: str) -> None:
    def ratio(one: palette.Tone, other: palette.Tone) -> float:
        return contrast(getattr(one, scheme), getattr(other, scheme))

    names = ("ink", "muted", "accent", "root", "clone", "positive", "negative")
    texts = [palette.TONES[name] for name in names]
    assert [pair for pair in itertools.product(texts, GROUNDS) if ratio(*pair) < 4.5] == []
    fills = (*palette.STATUS.values(), palette.GENERATED)
    assert [fill for fill in fills if ratio(palette.INK, fill) < 4.5] == []
    marks = (*palette.SERIES, palette.EDGE, palette.SPENT)
    assert [pair for pair in itertools.product(marks, GROUNDS) if ratio(*pair) < 3] == []


def test_every_state_has_a_colour() -> None:
    assert set(palette.STATUS) == set(Status)
    assert palette.Tone("#0a0b0c", "#ffffff").rgb == (10, 11, 12)
