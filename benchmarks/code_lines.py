"""How much code there is and how it reads, by package, as a Markdown table. It sets no limit.

    python benchmarks/code_lines.py [--rev v0.1.0]

Without --rev it reads the working tree, else that revision of git. Columns:

* code: lines with code, without docstrings, comments and blank lines.
* comments: lines that are a comment. One behind code is not counted: most of those are directives of tools.
* packed: assignments of several values to as many names in one statement (`a, b = x, y`), for each 1,000 lines. A swap
  of names is none.
* nested: comprehensions with more than one `for`, or inside another comprehension.
* empty names: local names that say nothing of what they hold (EMPTY_NAMES), and their share of all local names. A name
  counts once for each function that binds it.
* classes: class names of the package that are defined more than once in the packages together; in the last row each of
  them counts once.
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import tarfile
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
EMPTY_NAMES = frozenset({"found", "kept", "made", "one", "others", "own", "said", "there"})
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
NO_CODE = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}


@dataclass
class Counts:
    """Sums over modules. `classes` has the names of all class definitions."""

    files: int = 0
    lines: int = 0
    code: int = 0
    comments: int = 0
    packed: int = 0
    nested: int = 0
    local_names: int = 0
    empty_names: int = 0
    classes: Counter[str] = field(default_factory=Counter)

    def add(self, source: str) -> None:
        tree = ast.parse(source)
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
        nodes = list(ast.walk(tree))
        local_names = [name for node in nodes if isinstance(node, FUNCTIONS) for name in set(_bound_in(node))]
        self.files += 1
        self.lines += len(source.splitlines())
        self.code += len(_code_lines(tokens) - _docstring_lines(nodes))
        self.comments += sum(_is_comment_line(token) for token in tokens)
        self.packed += sum(map(_is_packed, nodes))
        self.nested += len(_nested_comprehensions(nodes))
        self.local_names += len(local_names)
        self.empty_names += sum(name in EMPTY_NAMES for name in local_names)
        self.classes.update(node.name for node in nodes if isinstance(node, ast.ClassDef))

    def include(self, other: Counts) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def _code_lines(tokens: list[tokenize.TokenInfo]) -> set[int]:
    return {line for token in tokens if token.type not in NO_CODE for line in range(token.start[0], token.end[0] + 1)}


def _is_comment_line(token: tokenize.TokenInfo) -> bool:
    return token.type == tokenize.COMMENT and token.line.lstrip().startswith("#")


def _docstring_lines(nodes: list[ast.AST]) -> set[int]:
    """The lines of statements that are only a string; those below an attribute are docstrings too."""
    lines: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def _is_packed(node: ast.AST) -> bool:
    """Whether a statement assigns several values to as many targets. A swap has the same names on both sides."""
    if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)):
        return False
    values = sorted(map(ast.unparse, node.value.elts))
    return any(
        isinstance(target, ast.Tuple)
        and len(target.elts) == len(values)
        and sorted(map(ast.unparse, target.elts)) != values
        for target in node.targets
    )


def _nested_comprehensions(nodes: list[ast.AST]) -> set[ast.AST]:
    nested: set[ast.AST] = set()
    for node in nodes:
        if isinstance(node, COMPREHENSIONS):
            if len(node.generators) > 1:
                nested.add(node)
            nested.update(inner for inner in ast.walk(node) if inner is not node and isinstance(inner, COMPREHENSIONS))
    return nested


def _bound_in(function: ast.AST) -> Iterator[str]:
    """The names that a function binds in its own body: no parameters, and not those of functions and classes in it."""
    for node in ast.iter_child_nodes(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            yield from _bound_in(node)


def sources_of(rev: str | None) -> Iterator[tuple[str, str]]:
    """Path and text of every Python module: those of the working tree that git does not ignore, or of a revision."""
    if rev is None:
        listed = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.py").decode()
        for path in sorted(filter(None, listed.split("\0"))):
            if (ROOT / path).is_file():  # git lists deleted files until they are staged
                yield path, (ROOT / path).read_text(encoding="utf-8")
    else:
        with tarfile.open(fileobj=io.BytesIO(_git("archive", "--format=tar", rev))) as archive:
            for member in archive:
                file = archive.extractfile(member) if member.name.endswith(".py") else None
                if file is not None:
                    yield member.name, file.read().decode("utf-8")


def _git(*arguments: str) -> bytes:
    ended = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True)
    if ended.returncode != 0:
        raise SystemExit(f"git {' '.join(arguments)} failed: {ended.stderr.decode().strip()}")
    return ended.stdout


def package_of(path: str) -> str | None:
    """The import package of a module of the product; `None` for tests, studies and scripts."""
    folder = path.removeprefix("agents/").removeprefix("training/").partition("/")[0]
    return folder if folder.startswith("selfcest_") else None


def count(sources: Iterator[tuple[str, str]]) -> dict[str, Counts]:
    """The counts of each package."""
    packages: dict[str, Counts] = {}
    for path, source in sources:
        package = package_of(path)
        if package is not None:
            packages.setdefault(package, Counts()).add(source)
    return packages


def table(packages: Mapping[str, Counts]) -> str:
    total = Counts()
    for counts in packages.values():
        total.include(counts)
    repeated = {name for name, times in total.classes.items() if times > 1}
    rows = [
        "| package | files | lines | code | comments | packed per 1,000 | nested | empty names | classes |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, counts in [*sorted(packages.items()), ("all", total)]:
        packed = 1000 * counts.packed / counts.lines if counts.lines else 0.0
        share = 100 * counts.empty_names / counts.local_names if counts.local_names else 0.0
        cells = [
            name,
            f"{counts.files:,}",
            f"{counts.lines:,}",
            f"{counts.code:,}",
            f"{counts.comments:,}",
            f"{packed:.1f}",
            f"{counts.nested:,}",
            f"{counts.empty_names:,} ({share:.1f} %)",
            f"{len(repeated & counts.classes.keys()):,}",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rev", help="a tag, branch or commit; the working tree if left out")
    print(table(count(sources_of(parser.parse_args().rev))))


if __name__ == "__main__":
    main()
