"""What pyproject.toml declares is what is imported, and what is missing is named with what to install."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from fnmatch import fnmatch
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from typer.main import get_command

import selfcest_cli.main as cli
from selfcest_env.errors import ConfigError, install_hint
from selfcest_training.faults import EXTRA_OF_MODULE

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
        "selfcest_eval",
        "selfcest_methods",
        "selfcest_lab",
        "selfcest_baselines",
        "selfcest_cli",
        "selfcest_verifiers",
        "studies",
        *(path.stem for path in BENCHMARKS),
        "learner_peer",
        *(path.stem for path in (ROOT / "tests" / "support").glob("*.py")),
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
    with pytest.raises(ImportError, match=rf"needs .*{library}.*; run: pip install -e '\.\[{adapter}\]' in a checkout"):
        importlib.import_module(f"selfcest_env.adapters.{adapter}")


@pytest.mark.parametrize(
    ("module", "library", "extra"),
    [
        ("selfcest_verifiers", "verifiers", "verifiers"),
        ("selfcest_agents.inspect_game", "inspect_ai", "inspect"),
        ("selfcest_agents.tinker_engine", "tinker", "tinker"),
        ("selfcest_training.export.tinker", "tinker", "tinker"),
        ("selfcest_training.export.prime_rl", "msgspec", "prime-rl"),
    ],
)
def test_an_integration_without_its_library_says_what_to_install(
    module: str, library: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for loaded in [*sys.modules]:
        if loaded == module or loaded.partition(".")[0] == library:
            monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigError, match=rf"{library}.*; run: pip install -e '\.\[{extra}\]' in a checkout"):
        importlib.import_module(module)


def test_hints_name_extras_that_exist_and_commands_that_work() -> None:
    """No package index has the project, so `pip install 'selfcest[...]'` without a URL fails."""
    hinted = set()
    files = [*ROOT.glob("selfcest_env/**/*.py"), *ROOT.glob("agents/**/*.py"), *ROOT.glob("training/**/*.py")]
    for file in files:
        source = file.read_text(encoding="utf-8")
        hinted |= set(re.findall(r"""install_hint\(["']([\w-]+)["']\)""", source))
        if file.name != "errors.py":
            assert "pip install 'selfcest" not in source, file
    assert hinted == {"gguf", "hub", "lora", "math", "reasoning-gym", "rllib", "sb3", "torchrl", "vllm"} | {
        "cluster",
        "inspect",
        "prime-rl",
        "retrieval",
        "tinker",
        "train",
        "trl",
        "verifiers",
    }
    assert hinted <= PROJECT["optional-dependencies"].keys()
    assert install_hint("sb3").startswith("pip install -e '.[sb3]' in a checkout")
    assert "pip install 'selfcest[sb3] @ git+URL' anywhere" in install_hint("sb3")


def test_modules_that_commands_import_late_are_of_the_extra_that_the_error_names() -> None:
    for module, extra in EXTRA_OF_MODULE.items():
        owners = {name.lower() for name in owners_of_modules()[module]}
        assert owners & declared(PROJECT["optional-dependencies"][extra]), module


@pytest.fixture(scope="module")
def plain_install(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `selfcest` where only the packages of a plain install can be imported."""
    folder = tmp_path_factory.mktemp("plain")
    owners = owners_of_modules()
    allowed = declared(PROJECT["dependencies"]) | {"cloudpickle", "farama-notifications"}  # what these ask for
    hidden = {module for module in owners if not allowed & {name.lower().replace("_", "-") for name in owners[module]}}
    hidden = {name for name in hidden if not name.startswith("selfcest_")}
    (folder / "plain.py").write_text(PLAIN.format(hidden), encoding="utf-8")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(folder / "plain.py"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)

    return run


PLAIN = """
import sys
hidden = {!r}

class Hides:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hides())
from selfcest_cli.main import main
main()
"""
EPISODES = ROOT / "studies" / "gallery" / "evidence" / "pays.jsonl"


@pytest.mark.slow
def test_a_plain_install_traces_an_episode_as_the_whole_one_does(
    plain_install: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    traced = plain_install("trace", str(EPISODES), "--texts")
    assert (traced.returncode, traced.stderr) == (0, "")
    whole = [sys.executable, "-m", "selfcest_cli", "trace", str(EPISODES), "--texts"]
    assert traced.stdout == subprocess.run(whole, capture_output=True, text=True, check=True).stdout
    assert "root" in traced.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["train"], "this is a plain install, which has only `selfcest trace`"),
        (["trace", str(EPISODES), "--html", "page.html"], "trace --html page.html: not an option of a plain install"),
        (["trace", str(EPISODES), str(EPISODES)], "not an option of a plain install"),
        (["trace", "missing.jsonl"], "there is no file missing.jsonl"),
        (["trace", str(EPISODES), "--episode", "nothing"], "holds no such episode 'nothing'"),
        (["trace", str(EPISODES), "--wrong"], "is not the results.jsonl of a study"),
    ],
)
def test_a_plain_install_says_in_one_line_what_it_lacks(
    arguments: list[str], expected: str, plain_install: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = plain_install(*arguments)
    (line,) = done.stderr.splitlines()
    assert line.startswith("selfcest: ")
    assert expected in line
    assert (done.returncode, done.stdout) == (2, "")
    if arguments[0] == "train" or "--html" in arguments:
        assert install_hint("train") in line


def test_help_of_a_plain_install_says_how_to_get_the_rest(
    plain_install: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    for arguments in ([], ["--help"]):
        done = plain_install(*arguments)
        assert (done.returncode, done.stderr) == (0, "")
        assert install_hint("train") in done.stdout
        assert len(done.stdout.splitlines()) == 1


def test_options_of_trace_in_a_plain_install_are_those_of_the_whole_command() -> None:
    source = (ROOT / "training" / "selfcest_cli" / "plain.py").read_text(encoding="utf-8")
    whole = {option for parameter in get_command(cli.app).commands["trace"].params for option in parameter.opts}  # type: ignore[attr-defined]
    assert set(re.findall(r'add_argument\(\s*"(--[a-z]+)"', source)) == whole - {
        "--html",
        "--credit",
        "--svg",
        "--gif",
        "--png",
        "--trust",  # of a page's model and protocol
        "files",
    }


def test_the_source_archive_has_what_its_tests_read() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = pyproject["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    texts = [file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("*.py")]
    named = {name for text in texts for name in re.findall(r'ROOT / f?"(\.?\w[\w.]*)', text) if (ROOT / name).exists()}
    missing = {name for name in named if not any(fnmatch(f"/{name}", pattern) for pattern in included)}
    assert {"benchmarks", "studies", ".ci", "docs"} <= named
    assert missing <= {"pyproject.toml", ".git", ".gitignore"}, "hatchling adds its own; tests skip without .git"
