"""What pyproject.toml declares is what is imported, and what is missing is named with what to install."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import sys
import tomllib
from fnmatch import fnmatch
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SCRIPTS = sorted((ROOT / "docs" / "examples" / "marl").glob("*.py"))
# Runs in an environment of its own, which `benchmarks/learner.py` makes.
SCRIPT_FOLDERS = ("benchmarks/*.py", "studies/**/*.py", "tests/stress/*.py")
BENCHMARKS = sorted(
    {file for pattern in SCRIPT_FOLDERS for file in ROOT.glob(pattern)} - {ROOT / "benchmarks" / "learner_peer.py"}
)


owners_of_modules = functools.cache(packages_distributions)


def declared(requirements: list[str]) -> set[str]:
    """Names of distributions, those of the project's own extras in place of it."""
    names: set[str] = set()
    for requirement in requirements:
        name, extras = re.fullmatch(r"([\w.-]+)(?:\[([\w,-]+)\])?.*", requirement).groups()  # type: ignore[union-attr]
        if name == PROJECT["name"]:
            for extra in extras.split(","):
                names |= declared(PROJECT["optional-dependencies"][extra])
        names.add(name.lower().replace("_", "-"))
    return names


def undeclared(file: Path, requirements: list[str]) -> set[str]:
    """Modules that a file imports and that come with none of these requirements."""
    nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    roots = {module.partition(".")[0] for module in modules} - sys.stdlib_module_names
    roots -= {
        "selfcest_env",
        "selfcest_agents",
        "selfcest_training",
        "studies",
        *(path.stem for path in BENCHMARKS),
        "learner_peer",
        *(path.stem for path in (ROOT / "tests" / "agents").glob("*.py")),
    }
    owners, known = owners_of_modules(), declared([*PROJECT["dependencies"], *requirements])
    return {root for root in roots if not known & {name.lower().replace("_", "-") for name in owners.get(root, [root])}}


@pytest.mark.parametrize("file", BENCHMARKS, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_the_extra_bench_has_what_benchmarks_import(file: Path) -> None:
    peers = {"envpool", "jax", "pgx"} if file.stem == "symbolic" else set()  # left out by name where they are not there
    assert undeclared(file, ["selfcest[bench]"]) == peers


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.stem)
def test_an_example_says_how_to_install_what_it_imports(file: Path) -> None:
    """From a checkout: the project is in no registry."""
    said = re.search(r'pip install -e (?:"\.\[([\w,]+)\]"|\.)(.*?)  +# in a checkout', file.read_text(encoding="utf-8"))
    assert said is not None
    assert undeclared(file, [*([f"selfcest[{said[1]}]"] if said[1] else []), *said[2].split()]) == set()


@pytest.mark.parametrize(("adapter", "library"), [("rllib", "ray"), ("sb3", "stable_baselines3"), ("torchrl", "torch")])
def test_an_adapter_without_its_library_says_what_to_install(
    adapter: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [*sys.modules]:
        if module.partition(".")[0] == library:
            monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"selfcest_env.adapters.{adapter}", raising=False)
    with pytest.raises(ImportError, match=rf"needs .*{library}.*; run: pip install 'selfcest\[{adapter}\]'"):
        importlib.import_module(f"selfcest_env.adapters.{adapter}")


def test_the_source_archive_has_what_its_tests_read() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = pyproject["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    texts = [file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("*.py")]
    named = {name for text in texts for name in re.findall(r'ROOT / f?"(\.?\w[\w.]*)', text) if (ROOT / name).exists()}
    missing = {name for name in named if not any(fnmatch(f"/{name}", pattern) for pattern in included)}
    assert {"benchmarks", "studies", ".ci", "docs"} <= named
    assert missing <= {"pyproject.toml", ".git", ".gitignore"}, "hatchling adds its own; tests skip without .git"
