"""`benchmarks/code_lines.py`: what it counts, by hand, and one revision of this repository."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]
CODE_LINES = SimpleNamespace(**runpy.run_path(str(ROOT / "benchmarks" / "code_lines.py"), run_name="code_lines"))

MODULE = '''\
"""A docstring of
two lines."""

from __future__ import annotations

# A comment.
import os  # not counted


class Step:
    size: int = 3
    """A docstring of an attribute."""


def f(said: int, other: int) -> list[int]:
    """One line."""
    found, rows = said + 1, [
        # A comment within a statement.
        1,
    ]
    found, rows = rows, found
    first, *rest = 1, 2
    (one, two), three = (1, 2), 3
    text = """# no comment,
    but code"""

    def inner() -> int:
        found = sum(a * b for a in rest for b in rest)
        return found

    class Local:
        kept = 4

    return [x for x in [y for y in range(3)] if (kept := x)]
'''


def test_each_count_by_hand() -> None:
    counts = CODE_LINES.Counts()
    counts.add(MODULE)
    assert (counts.files, counts.lines) == (1, 34)
    # Two imports; class and size; def; 4 lines of the first statement, of which one is a comment; the three below it;
    # the text of two lines; inner's three; Local's two; the return.
    assert counts.code == 2 + 2 + 1 + 3 + 3 + 2 + 3 + 2 + 1
    assert counts.comments == 2
    # Not the swap, and no starred target with another number of values than names.
    assert counts.packed == 3, "found, rows; first, *rest; (one, two), three"
    assert counts.nested == 2, "two `for`s, and the list inside the list"
    # f: found, rows, first, rest, one, two, three, text, x, y, kept. inner: found, a, b. No parameters, no attributes.
    assert counts.local_names == 11 + 3
    assert counts.empty_names == 3 + 1, "found, one, kept; found"
    assert counts.classes == {"Step": 1, "Local": 1}


def test_a_class_name_counts_where_it_is_and_once_in_all() -> None:
    sources = {
        "agents/selfcest_agents/a.py": "class Step: ...\nclass Plan: ...\n",
        "training/selfcest_eval/a.py": "class Step: ...\nclass Part: ...\nclass Curve: ...\n",
        "training/selfcest_eval/b.py": "class Curve: ...\n",
        "tests/test_a.py": "class Plan: ...\n",
    }
    lines = CODE_LINES.table(CODE_LINES.count(iter(sources.items()))).splitlines()
    cells = {row[1]: row for row in ([cell.strip() for cell in line.split("|")] for line in lines[2:])}
    assert {name: (row[2], row[3], row[9]) for name, row in cells.items()} == {
        "selfcest_agents": ("1", "2", "1"),
        "selfcest_eval": ("2", "4", "2"),
        "all": ("3", "6", "2"),
    }


def test_a_revision_has_the_packages_that_it_has() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout")
    for rev in ("HEAD", None):
        packages = {CODE_LINES.package_of(path) for path, _ in CODE_LINES.sources_of(rev)}
        assert packages >= {"selfcest_env", "selfcest_agents", "selfcest_training", None}
    with pytest.raises(SystemExit, match="no-such-revision"):
        list(CODE_LINES.sources_of("no-such-revision"))
