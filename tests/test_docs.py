"""The documentation runs: Python blocks, links, commands, config keys, and tables that claim to be complete."""

from __future__ import annotations

import importlib.util
import re
import runpy
import shlex
import sys
import types
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer.main
import yaml

from selfcest_cli.main import app
from selfcest_cli.study import default_study
from selfcest_eval.play.config import load_study
from selfcest_training.config_file import load_config
from selfcest_training.run.experiment import default_config

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("*/*.md"))]
MADE = runpy.run_path(str(DOCS / "hook.py"))["PAGES"]  # by the build of the site; test_gallery.py opens them
ALL_COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
COMMANDS = {name: command for name, command in ALL_COMMANDS.items() if not command.hidden}  # hidden: old names

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).with_suffix("").as_posix())


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """(first line, text) of every fenced block in this language."""
    text = page.read_text(encoding="utf-8")
    found = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)
    return [(text.count("\n", 0, match.start(1)), match.group(1)) for match in found]


def write_files(page: Path, folder: Path) -> None:
    """Blocks whose first line names a file, as that file."""
    for language in ("python", "yaml"):
        for _, text in blocks(page, language):
            if named := re.match(r"# (\w+\.(?:py|yaml))\n", text):
                (folder / named[1]).write_text(text, encoding="utf-8")


@each_page
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType(f"docs_{page.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for line, text in blocks(page, "python"):
        # Empty lines in front, so that a traceback gives the line of the page.
        exec(compile("\n" * line + text, str(page), "exec"), module.__dict__)


def test_every_page_is_on_the_site() -> None:
    def pages(item: object) -> set[str]:
        if isinstance(item, str):
            return {item}
        assert isinstance(item, (list, dict))
        return {page for part in (item.values() if isinstance(item, dict) else item) for page in pages(part)}

    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert pages(nav) == {page.relative_to(DOCS).as_posix() for page in PAGES[1:]}
    assert nav[0] == {"Home": "index.md"}


def test_the_reference_names_modules_that_are_there_and_each_once() -> None:
    pages = [page.read_text(encoding="utf-8") for page in sorted(DOCS.glob("api/*.md"))]
    names = [name for page in pages for name in re.findall(r"^::: (\S+)$", page, re.MULTILINE)]
    assert len(names) == len(set(names)) >= 60
    for name in names:
        assert importlib.util.find_spec(name) is not None, name  # an adapter imports the library that it is for


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@each_page
def test_internal_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"https?://", target):
            continue
        name, _, anchor = target.partition("#")
        if name in MADE and page.parent == DOCS:
            continue
        linked = (page.parent / name).resolve() if name else page
        assert linked.is_file(), f"{page.name}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.M)
            assert anchor in map(slug, headings), f"{page.name}: {target}"


def load_any(path: Path, overrides: Sequence[str] = (), *, study: bool) -> None:
    (load_study if study else load_config)(path, overrides)


def command_lines(page: Path) -> list[list[str]]:
    """Words after `selfcest`, of direct calls and of `make train`."""
    found = []
    for _, text in blocks(page, "bash"):
        for line in text.splitlines():
            words = [word for word in shlex.split(line, comments=True) if not re.match(r"[A-Z_]+=(?!.*\s)", word)]
            if words[:2] == ["make", "train"]:
                arguments = [word.removeprefix("ARGS=") for word in words[2:]]
                found.append(["train", *shlex.split(" ".join(arguments))])
            elif words[:1] == ["selfcest"]:
                found.append(words[1:])
    return found


@each_page
def test_commands_and_config_keys_exist(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(page, tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name, *words in command_lines(page):
        assert name in COMMANDS, name
        command = COMMANDS[name]
        if hasattr(command, "commands"):  # a group, as `selfcest credit`
            command = command.commands[words.pop(0)]
        options = {flag: option for option in command.params for flag in option.opts}
        config, overrides = default_study() if name == "evaluate" else default_config(), []
        rest = iter(words)
        for word in rest:
            if word.startswith("-"):
                assert word in options, f"selfcest {name} {word}"
                value = None if options[word].is_flag else next(rest)
                if options[word].name == "config" and value is not None:
                    config = next((folder / value for folder in (ROOT, tmp_path) if (folder / value).is_file()), config)
            elif "=" in word:
                overrides.append(word)
        load_any(config, overrides, study=name == "evaluate")


@each_page
def test_yaml_blocks_are_configs(page: Path, tmp_path: Path) -> None:
    for number, (_, text) in enumerate(blocks(page, "yaml")):
        data = yaml.safe_load(text)
        extended = data.get("extends", "")
        if extended:
            assert (ROOT / extended).is_file(), extended
            data["extends"] = str(ROOT / extended)
        file = tmp_path / f"{number}.yaml"
        file.write_text(yaml.safe_dump(data), encoding="utf-8")
        load_any(file, study="frontier" in extended or "strategies" in data)


@each_page
def test_no_path_of_a_machine(page: Path) -> None:
    found = re.search(r"(?<![\w.])/(?:work|home|tmp|root|Users|mnt|opt|usr)/", page.read_text(encoding="utf-8"))
    assert found is None, f"{page.name}: {found}"


@pytest.mark.parametrize("page", ["hostile.md"])
def test_every_figure_of_a_point_stands_on_the_page_that_is_linked_after_it(page: str) -> None:
    for point in (ROOT / "docs" / page).read_text(encoding="utf-8").split("\n- ")[1:]:
        *parts, rest = re.split(r"\]\(([\w/]+\.md)[^)]*\)", point.partition("\n\n")[0])
        assert parts, point
        assert not re.search(r"\d", rest), point
        for text, name in zip(parts[::2], parts[1::2], strict=True):
            there = " ".join((ROOT / "docs" / name).read_text(encoding="utf-8").split())
            for figure in re.findall(r"x?\d+\.\d+(?: \[\d+\.\d+, \d+\.\d+\])?", " ".join(text.split())):
                assert re.search(rf"(?<![\d.]){re.escape(figure)}(?!\d)", there), f"{figure} is not on {name}"


def test_the_readme_is_short_and_its_prose_has_no_figure_of_its_own() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```$", "", readme, flags=re.M | re.S)
    assert len(prose.split()) <= 500
    assert re.findall(r"\d+\.\d+", prose) == ["2602.13262", "2602.13262", "0.6", "2.0"]


def test_every_page_has_a_description_of_one_line() -> None:
    describe_page = runpy.run_path(str(DOCS / "hook.py"))["describe_page"]
    for page in PAGES[1:]:
        text = re.sub(r"\A---\n.*?^---\n", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        described = describe_page(text)
        assert 30 <= len(described) <= 200, page.name
        assert not re.search(r"[\n`\[\]]|\*\*", described), page.name
