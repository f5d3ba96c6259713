"""docs/hostile.md says no figure that the page of the experiments does not have."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_every_figure_stands_on_the_page_of_the_experiments() -> None:
    said = (DOCS / "hostile.md").read_text(encoding="utf-8")
    there = (DOCS / "delegation.md").read_text(encoding="utf-8")
    figures = re.findall(r"x?\d+\.\d+", said)
    assert len(figures) > 20
    missing = [figure for figure in figures if not re.search(rf"(?<![\d.]){re.escape(figure)}", there)]
    assert missing == []
