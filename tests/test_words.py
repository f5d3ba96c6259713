"""`benchmarks/words.py`: what it counts, by hand, and that the documentation keeps to its limit."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]
WORDS = SimpleNamespace(**runpy.run_path(str(ROOT / "benchmarks" / "words.py"), run_name="words"))

PROGRAM = '''\
"""A docstring is no prose of the page."""

NAME = "three short words"
PROSE = """Four words and a
line break, in all nine."""


def page(cells: int) -> str:
    """No prose either."""
    return f"There are {cells} cells, {cells / 2:.1f} of them new." + joined("one more sentence " "in two parts")
'''


def test_prose_of_a_program_by_hand() -> None:
    # PROSE; the f-string, in which each value is a word; the two parts of one string.
    assert WORDS.count_prose(PROGRAM) == 9 + 8 + 6


def test_a_printed_part_is_counted_apart() -> None:
    page = "Two words.\n\n<!-- begin -->\n| a | b |\n<!-- end -->\n\nThree more words.\n"
    assert WORDS.split_page(page, WORDS.Source("p.py", "<!-- begin", "<!-- end -->")) == (8, 8)
    assert WORDS.split_page(page, WORDS.Source("p.py", "<!-- begin")) == (2, 14)
    assert WORDS.split_page(page, WORDS.Source("p.py")) == (0, 16)
    with pytest.raises(ValueError, match=r"the page has no '<!-- other'; expected the beginning of what p\.py prints"):
        WORDS.split_page(page, WORDS.Source("p.py", "<!-- other"))


def test_every_page_that_a_study_prints_is_known() -> None:
    counted = {words.page: words for words in WORDS.count()}
    assert {source.file for source in WORDS.PRINTED.values()} <= counted.keys()
    for page in WORDS.PRINTED:
        assert counted[page].generated > 0, page


def test_the_documentation_keeps_to_its_limit() -> None:
    written = {words.page: words.written for words in WORDS.count()}
    longest = sorted(written, key=written.__getitem__, reverse=True)[:5]
    assert sum(written.values()) <= WORDS.LIMIT, f"the longest pages are {', '.join(longest)}"
