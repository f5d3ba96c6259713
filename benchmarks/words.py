"""How many words the documentation has, by page, as a Markdown table.

    python benchmarks/words.py [--check]

Words are what `wc -w` counts, code blocks and tables included; of a notebook, those of its cells without outputs.
Columns:

* hand-written: words that a person wrote. Of a page that a command prints, these are the prose strings of its source.
* generated: words that a command prints from code or stored evidence, tables first of all.

`--check` ends with code 1 if more than LIMIT words are hand-written.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMIT = 55_000
SHORTEST_PROSE = 4  # words: a shorter string is a name, a key or the head of a column
REFERENCE = "docs/reference/"  # a command writes every page of this folder from code


@dataclass(frozen=True)
class Source:
    """The program that prints a page, or a part of it.

    Attributes:
        file: the program, whose prose strings are hand-written.
        begin: a text of the page with which the printed part begins; empty if the whole page is printed.
        end: a text that ends the part; without it the part ends with the page.
    """

    file: str
    begin: str = ""
    end: str = ""


PRINTED = {
    "docs/benchmark.md": Source("studies/scenarios/study.py"),
    "docs/cells.md": Source("studies/cells/study.py"),
    "docs/claims.md": Source("studies/claims/study.py"),
    "docs/credit_map.md": Source("studies/credit_map/study.py"),
    "docs/league.md": Source("studies/league/study.py"),
    "docs/methods.md": Source("studies/methods/study.py", "<!-- compared: ", "<!-- end of what is compared -->"),
    "docs/paper.md": Source("benchmarks/paper_cost.py", "| config | episodes of a variant", "\n\n"),
    "docs/reliability.md": Source("tests/stress/reliability.py"),
    "docs/scale.md": Source("studies/scaling/study.py", "\n## How far it scales", "\n## "),
    "docs/novels_results.md": Source("studies/novels/study.py"),
    "docs/stopping.md": Source("studies/stopping/study.py"),
    "docs/when.md": Source("studies/when/study.py"),
    "docs/where.md": Source("studies/where/study.py"),
}


@dataclass(frozen=True)
class Words:
    """Words of one page or program."""

    page: str
    written: int
    generated: int = 0
    printed_by: str = ""


def split_page(text: str, source: Source) -> tuple[int, int]:
    """Words of a page outside and inside of the part that its source prints.

    Raises:
        ValueError: if the page has no such part.
    """
    if not source.begin:
        return 0, len(text.split())
    _, begin, rest = text.partition(source.begin)
    if not begin:
        raise ValueError(f"the page has no {source.begin!r}; expected the beginning of what {source.file} prints")
    part, _, _ = rest.partition(source.end) if source.end else (rest, "", "")
    generated = len((begin + part).split())
    return len(text.split()) - generated, generated


def count_prose(source: str) -> int:
    """Words of the strings of a program that are prose: no docstrings, and no strings below SHORTEST_PROSE words."""
    return sum(words for words in map(_count_string, _strings(ast.parse(source))) if words >= SHORTEST_PROSE)


def _strings(node: ast.AST) -> Iterator[ast.Constant | ast.JoinedStr]:
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        yield node
        return
    for child in ast.iter_child_nodes(node):
        is_docstring = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
        if not is_docstring:
            yield from _strings(child)


def _count_string(string: ast.Constant | ast.JoinedStr) -> int:
    """Words of a string; every value in braces is part of a word, or a word."""
    parts = string.values if isinstance(string, ast.JoinedStr) else [string]
    text = "".join(str(part.value) if isinstance(part, ast.Constant) else "0" for part in parts)
    return len(text.split())


def count_page(page: str) -> Iterator[Words]:
    """The words of one page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    if page.endswith(".ipynb"):
        cells = json.loads(text)["cells"]
        yield Words(page, sum(len("".join(cell["source"]).split()) for cell in cells))
    elif page.startswith(REFERENCE):
        yield Words(page, 0, len(text.split()), "its first lines name the command")
    elif page in PRINTED:
        source = PRINTED[page]
        written, generated = split_page(text, source)
        yield Words(page, written, generated, source.file)
    else:
        yield Words(page, len(text.split()))


def count() -> list[Words]:
    """The words of every page, and of the programs that print pages."""
    docs = ROOT / "docs"
    files = [
        ROOT / "README.md",
        *sorted(docs.glob("*.md")),
        *sorted(docs.glob("*/*.md")),
        *sorted(docs.glob("*/*.ipynb")),
    ]
    pages = [words for file in files for words in count_page(file.relative_to(ROOT).as_posix())]
    programs = sorted({source.file for source in PRINTED.values()} | set(_studies()))
    for program in programs:
        pages.append(Words(program, count_prose((ROOT / program).read_text(encoding="utf-8"))))
    return pages


def _studies() -> Iterator[str]:
    for file in (ROOT / "studies").glob("*/study.py"):
        yield file.relative_to(ROOT).as_posix()


def table(pages: list[Words]) -> str:
    """The words by page, the longest first, and their sums."""
    written = sum(words.written for words in pages)
    generated = sum(words.generated for words in pages)
    rows = ["| page | hand-written | generated | generated by |", "|---|---:|---:|---|"]
    for words in [Words("all", written, generated), *sorted(pages, key=lambda words: -words.written)]:
        rows.append(f"| {words.page} | {words.written:,} | {words.generated:,} | {words.printed_by} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help=f"end with code 1 above {LIMIT:,} hand-written words")
    options = parser.parse_args()
    pages = count()
    print(table(pages))
    written = sum(words.written for words in pages)
    if options.check and written > LIMIT:
        sys.exit(f"{written:,} words are hand-written, and the limit is {LIMIT:,}: shorten the longest pages above")


if __name__ == "__main__":
    main()
