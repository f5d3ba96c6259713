"""The gallery and the pages that the site embeds: pictures, figures and links are what the recorded episodes say."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from functools import cache
from pathlib import Path
from tempfile import gettempdir
from types import ModuleType
from urllib.parse import unquote

import pytest
from browsing import chromium, opened
from typer.testing import CliRunner

import selfcest_cli.main as cli
from selfcest_env.record import EpisodeRecord, read_episodes
from selfcest_env.types import AgentId

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GALLERY, LOOK, HOME = ((DOCS / name).read_text(encoding="utf-8") for name in ("gallery.md", "look.md", "index.md"))
COMMANDS = re.findall(r"^selfcest trace .*$", GALLERY, re.MULTILINE)
PLACES = re.findall(r'(?:look/|src=")(\w+\.html)#([^)"]+)', GALLERY + LOOK + HOME)


@pytest.fixture(scope="module")
def gallery() -> ModuleType:
    return importlib.import_module("studies.gallery.study")


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    """What mkdocs calls."""
    spec = importlib.util.spec_from_file_location("hook", DOCS / "hook.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def episodes() -> dict[str, EpisodeRecord]:
    files = sorted((ROOT / "studies" / "gallery" / "evidence").glob("*.jsonl"))
    return {record.episode_id: record for file in files for record in read_episodes(file)}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda line: shlex.split(line)[-1])
def test_every_picture_is_what_the_command_below_it_draws(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    *words, picture = shlex.split(command)[1:]
    assert f"({Path(picture).relative_to('docs').as_posix()})\n\n```bash\n{command}\n```" in GALLERY
    result = CliRunner().invoke(cli.app, [*words, str(tmp_path / "drawn.svg")])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "drawn.svg").read_bytes() == Path(picture).read_bytes()


def test_episodes_without_one_of_their_clones_have_a_page(tmp_path: Path) -> None:
    file = ROOT / "studies" / "gallery" / "evidence" / "replayed.jsonl"
    result = CliRunner().invoke(cli.app, ["trace", str(file), "--html", str(tmp_path / "page.html")])
    assert result.exit_code == 0, result.output
    assert '"status":"absent"' in (tmp_path / "page.html").read_text(encoding="utf-8").replace(" ", "")


def test_nothing_lies_there_that_no_page_shows(gallery: ModuleType) -> None:
    assert {path.name for path in (DOCS / "trees").iterdir()} == {Path(line).name for line in COMMANDS}
    assert {path.stem for path in gallery.TREES.glob("*.jsonl")} == set(gallery.EPISODES)
    assert all(f"evidence/{name}.jsonl" in GALLERY for name in gallery.EPISODES)


@pytest.mark.parametrize(("page", "place"), PLACES, ids=lambda one: str(one))
def test_every_link_into_a_tree_leads_to_a_turn(page: str, place: str, gallery: ModuleType) -> None:
    name, agent, turn = unquote(place).split("/")
    record = episodes()[name]
    assert int(turn) < len(record.by_id[AgentId.parse(agent)].turns)
    assert page == "trees.html" or name in {r.episode_id for r in read_episodes(gallery.TREES / "replayed.jsonl")}


@pytest.mark.parametrize("section", GALLERY.split("\n## ")[1:], ids=lambda text: text.partition("\n")[0])
def test_figures_are_those_of_the_episodes_that_the_section_links_to(section: str) -> None:
    section = " ".join(section.split())
    named = {unquote(place).split("/")[0] for _, place in PLACES if f"#{place}" in section}
    named |= {shlex.split(line)[4] for line in COMMANDS if line in section and "--episode" in line}
    shown = [episodes()[name] for name in named]
    costs = [record.cost for record in shown]
    assert {int(n) for n in re.findall(r"critical path\s+(?:of\s+)?(\d+)", section)} <= {
        cost.critical_path_tokens for cost in costs
    }
    spent = {cost.total_tokens for cost in costs}
    turns = [turn.facts for record in shown for agent in record.agents for turn in agent.turns]
    spent |= {turn.generated_tokens for turn in turns} | {turn.prompt_tokens for turn in turns}
    spent |= {record.limits.total_tokens for record in shown}
    assert {int(n) for n in re.findall(r"(\d+)\s+tokens", section)} <= spent
    earned = {f"{record.team_return:.3g}" for record in shown}
    assert set(re.findall(r"(?:return|return is|earns) (-?\d\.\d+)", section)) <= earned
    scripts = [name for name in named if name.startswith("script.")]
    assert bool(scripts) == ("script" in section.lower().partition("play them again")[0]), "who plays is said"


def test_the_pages_that_the_documentation_names_are_those_that_are_made(hook: ModuleType) -> None:
    linked = set(re.findall(r"\]\((look/\w+\.html)", GALLERY + LOOK))
    framed = re.findall(r'<iframe src="(\w+\.html)[^"]*" title="[^"]{10,}"', LOOK)
    assert linked == {f"look/{name}" for name in framed} == set(hook.PAGES)


@pytest.mark.slow
def test_the_build_makes_them_and_they_open_at_their_places(
    hook: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SELFCEST_PYTHON", sys.executable)
    made = hook.made()
    assert {name for name in made if name.endswith(".html")} == {*hook.PAGES, "look/report_trace.html"}
    for name, content in made.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
        assert str(ROOT).encode() not in content, name
        assert gettempdir().encode() not in content, name
    hook.made.cache_clear()
    again = hook.made()
    written = re.compile(rb'"made":"[^"]*"')
    assert {name: written.sub(b"", content) for name, content in made.items()} == {
        name: written.sub(b"", content) for name, content in again.items()
    }
    framing = tmp_path / "look" / "index.html"
    framing.write_text("\n".join(re.findall(r"<iframe .*</iframe>", LOOK)), encoding="utf-8")
    with chromium() as browser:
        for name, place in dict(PLACES).items():
            with opened(browser, tmp_path / "look" / name, f"#{place}") as page:
                assert page.text("#episode-name").startswith(unquote(place).split("/")[0])
        tab = browser.new_page()
        said: list[str] = []
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.goto(framing.as_uri())
        inside = {Path(frame.url.partition("#")[0]).name: frame for frame in tab.frames[1:]}
        for name in hook.PAGES:
            inside[Path(name).name].locator("main :is(h2, .card)").first.wait_for()
        assert "What was learned" in inside["report.html"].locator("main").inner_text()
        assert said == []


@pytest.mark.slow
def test_a_python_that_cannot_make_them_is_named(hook: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFCEST_PYTHON", "/bin/false")
    hook.made.cache_clear()
    with pytest.raises(RuntimeError, match="/bin/false could not make the pages"):
        hook.made()


@pytest.mark.slow
def test_episodes_played_again_are_those_that_are_stored(gallery: ModuleType) -> None:
    for name, made in gallery.EPISODES.items():
        stored = list(read_episodes(gallery.TREES / f"{name}.jsonl"))
        assert texts(made()) == texts(stored), name


def texts(records: list[EpisodeRecord]) -> list[tuple[str, list[str]]]:
    return [
        (record.episode_id, [turn.generation.text for agent in record.agents for turn in agent.turns])
        for record in records
    ]
