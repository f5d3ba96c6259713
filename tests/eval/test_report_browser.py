"""The page of a real run's report in a real browser: as a file, and served while the run goes on."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from browsing import api, beside, chromium, opened, serious
from pages import trained
from rich.console import Console

from selfcest_cli.report import report_page
from selfcest_cli.trace import renderers_of
from selfcest_eval.play.results import dump_line
from selfcest_eval.report import serve
from selfcest_eval.report.serve import LiveReport, serve_report
from selfcest_training.config import RunConfig

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def run(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    return trained(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def file(run: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("page") / "report.html"
    report_page([run.folder], out, Console(quiet=True))
    return out


def test_cells_points_and_steps_lead_to_episodes(browser: Any, file: Path) -> None:
    with opened(browser, file) as page:
        tables_and_figures = ("#results tbody", "#frontier tbody", "#frontier svg.chart", "#decisions svg.chart")
        links = [
            page.tab.locator(f"{place} a[href^='report_trace.html#']").first
            for place in (*tables_and_figures, "#learning")
        ]
        names = [str(link.get_attribute("href")).partition("#")[2].split("/")[0] for link in links]
    with opened(browser, file.with_name("report_trace.html")) as page:
        for name in names:
            page.tab.evaluate(f"location.hash = '{name}/root/0'")
            page.shows("#missing", "")


def results_of(file: Path) -> list[dict[str, str]]:
    text = (file.parent / "report_files" / "results.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 400])
def test_everybody_can_use_it(browser: Any, file: Path, scheme: str, width: int) -> None:
    with opened(browser, file, viewport={"width": width, "height": 950}, color_scheme=scheme) as page:
        tab = page.tab
        tab.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true })")
        ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert serious(tab) == []
        assert beside(tab) == []
        tab.click("#scheme")
        assert tab.evaluate("getComputedStyle(document.body).backgroundColor") != ground
        assert serious(tab) == []


def test_the_verdict_comes_first_and_numbers_are_those_of_the_files(browser: Any, file: Path) -> None:
    with opened(browser, file) as page:
        tab = page.tab
        assert tab.locator("#verdict dt").all_inner_texts() == [
            "What was learned", "Who wins on which cost", "How sure", "What failed", "What to try next",
        ]  # fmt: skip
        assert "alone does not solve the smallest choice" in page.text("#failures")
        top = tab.evaluate("document.querySelector('#failures').getBoundingClientRect().top")
        assert top < tab.evaluate("document.querySelector('#verdict').getBoundingClientRect().top")
        tab.click("#results summary")
        cells = tab.locator("#results details tbody tr")
        stored = [row for row in results_of(file) if row["pooled"] == "False"]
        assert cells.count() == len(stored) > 0
        for i, row in enumerate(stored):
            shown = cells.nth(i).locator("td").all_inner_texts()
            assert (shown[0], shown[3].removesuffix("no clones")) == (row["family"], row["strategy"])
            assert shown[4].split("[")[0] == f"{float(row['accuracy']):.2f}"
        assert tab.locator("#learning .panel").count() > 5
        assert tab.locator("#decisions table").count() > 0


def test_a_family_and_a_cost_are_picked_and_marks_say_their_intervals(browser: Any, file: Path) -> None:
    with opened(browser, file) as page:
        tab, frontier = page.tab, page.tab.locator("#frontier")
        frontier.get_by_label("Family").select_option("sums")
        frontier.get_by_label("Cost").select_option("critical_path_tokens")
        page.shows("#frontier .axis-name", "critical path tokens, mean per instance")
        page.shows("#frontier caption", "sums: a point a size")
        frontier.get_by_label("Family").select_option("choice")
        page.shows("#frontier caption", "choice: a point a size")
        (row,) = [
            row
            for row in results_of(file)
            if (row["family"], row["pooled"], row["strategy"]) == ("choice", "False", "alone")
        ]
        mark = frontier.locator(".point[aria-label^='alone, any']")
        low, high = (f"{float(row[f'critical_path_tokens_{end}']):.3g}" for end in ("low", "high"))
        told = mark.get_attribute("aria-label")
        assert told.splitlines()[-1].endswith(f"[{low}, {high}]")
        assert mark.locator(".whisker").count() == 2
        mark.locator(".hit").hover(force=True)
        page.shows("#tip", told)
        tab.mouse.move(5, 5)
        assert tab.locator("#tip").is_hidden()
        mark.focus()
        page.shows("#tip", told)
        tab.keyboard.press("Escape")
        assert tab.locator("#tip").is_hidden()
        tab.locator("#learning .panel svg.chart").first.hover()
        assert page.text("#tip").startswith("step ")


def test_links_lead_to_sections_and_into_the_tree(browser: Any, file: Path) -> None:
    with opened(browser, file) as page:
        tab = page.tab
        for link in tab.locator("nav.contents a, .see a").all():
            place = link.get_attribute("href")
            assert tab.locator(place).count() == 1
        tab.locator(".see a", has_text="pathologies").first.click()
        tab.wait_for_function(
            "() => document.querySelector('#pathologies').getBoundingClientRect().top < innerHeight / 2"
        )
        link = tab.locator("#pathologies td a").first
        episode, place = link.inner_text(), tab.locator("#pathologies td:has(a) .interval").first.inner_text()
        page.expected.add((file.parent / "report_trace.html").as_uri())
        link.click()
        page.shows("#episode-name", episode)
        page.shows("#agent-name", place.split(",")[0])
        assert tab.locator("#ledger svg").count() > 0, "its rules are known"


@pytest.mark.parametrize("width", [1400, 400])
def test_a_section_lies_below_the_contents_and_letters_can_be_read(browser: Any, file: Path, width: int) -> None:
    with opened(browser, file, "#%E0%A4%A", viewport={"width": width, "height": 700}) as page:
        tab = page.tab
        hidden = """() => {
          const contents = document.querySelector(".contents");
          if (getComputedStyle(contents).position !== "sticky") return [];
          const short = (one) => parseFloat(getComputedStyle(one).scrollMarginTop) < contents.offsetHeight;
          return [...document.querySelectorAll("main section[id]")].filter(short).map((one) => one.id);
        }"""
        assert tab.evaluate(hidden) == []
        assert tab.evaluate("document.querySelector('.contents').offsetHeight") < 60 or width < 960
        sizes = tab.evaluate(
            """[...document.querySelectorAll("svg.chart")].map((svg) =>
              11 * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width)"""
        )
        assert min(filter(None, sizes)) > 8


def test_paper_shows_what_is_folded_and_whole_tables(browser: Any, file: Path) -> None:
    with opened(browser, file, viewport={"width": 718, "height": 1000}) as page:
        page.tab.emulate_media(media="print")
        page.tab.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.tab.locator("details:not([open])").count() == 0
        cut = """[...document.querySelectorAll(".wide")].filter((one) =>
          one.scrollWidth > one.clientWidth + 1 || one.scrollHeight > one.clientHeight + 1
        ).map((one) => `${one.getAttribute("aria-label")} ${one.scrollWidth} of ${one.clientWidth}`)"""
        assert page.tab.evaluate(cut) == []


def test_every_file_beside_it_is_there(browser: Any, file: Path) -> None:
    with opened(browser, file) as page:
        links = page.tab.locator("#cost li a")
        hrefs = [links.nth(i).get_attribute("href") for i in range(links.count())]
    beside = {path.relative_to(file.parent).as_posix() for path in file.parent.rglob("*") if path.is_file()}
    assert beside - set(hrefs) == {"report.html", "report_trace.html"}
    assert {".png", ".svg", ".csv"} == {Path(href).suffix for href in hrefs}


def test_the_keyboard_alone_will_do(browser: Any, file: Path) -> None:
    with opened(browser, file) as page:
        tab, keys = page.tab, page.tab.keyboard

        def walk(selector: str) -> None:
            """To the next place with the focus that `selector` names."""
            for _ in range(200):
                keys.press("Tab")
                if tab.evaluate("selector => document.activeElement.matches(selector)", selector):
                    return
            raise AssertionError(f"no tab stop at {selector}")

        keys.press("Tab")
        assert page.text(":focus") == "Skip to the content"
        walk("#results summary")
        keys.press("Enter")
        assert tab.locator("#results details").get_attribute("open") is not None
        walk("#frontier select")
        keys.press("s")  # of its two families
        page.shows("#frontier caption", "sums: a point a size")
        walk("#frontier .legend button[aria-pressed=true]")
        left_out = page.text(":focus")
        points = tab.locator("#frontier .point").count()
        keys.press("Space")
        assert page.text(":focus") == left_out, "the button is there still"
        assert tab.locator(":focus").get_attribute("aria-pressed") == "false"
        assert tab.locator("#frontier .point").count() == points - 2, "a point for each of two sizes"
        walk("#frontier .point")
        page.shows("#tip", tab.locator(":focus").get_attribute("aria-label"))
        walk("#pathologies td a")
        page.expected.add((file.parent / "report_trace.html").as_uri())
        episode = page.text(":focus")
        keys.press("Enter")
        page.shows("#episode-name", episode)


# What a run can carry

NAMED = "<img src=x onerror=window.harmed=1>"  # a folder can be called so
FAMILY = f"</script><script>window.harmed=1</script>{NAMED}<!-- ${{1}} &lt;"  # printable, as all keys must be
SAID = f"{FAMILY} \u2028\x00\u202e javascript:window.harmed=1"
WORDS = {"delegating": NAMED, "alone": f"{NAMED}2", "choice": FAMILY, "sums": f"{FAMILY}2"}
TEXTS = ("text", "reply", "objective", "prompt", "grade_note", "note", "command", "system")


def harm(value: Any, key: str = "") -> Any:
    """The value with names, and what models, tasks and the machine said, that mean harm."""
    if isinstance(value, dict):
        return {harm(name): harm(one, name) for name, one in value.items()}
    if isinstance(value, list):
        return [harm(one) for one in value]
    if not isinstance(value, str):
        return value
    for word, other in WORDS.items():
        value = value.replace(word, other)
    if key == "episode_id" and not value.startswith("s"):  # of a group in training
        value += NAMED
    return SAID if key in TEXTS else value


def harmed(run: RunConfig, folder: Path) -> Path:
    """A copy of a run with harm in all of its names and texts."""
    shutil.copytree(run.folder, folder)
    for path in (path for path in folder.rglob("*.jsonl")):
        lines = []
        for line in path.read_text(encoding="utf-8").splitlines():
            data = json.loads(line)
            signed = data.pop("sha256", None) is not None
            lines.append(dump_line(harm(data)) if signed else json.dumps(harm(data)) + "\n")
        path.write_text("".join(lines), encoding="utf-8")
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(harm(yaml.safe_load(config.read_text(encoding="utf-8")))), encoding="utf-8")
    for variant in run.variants:
        (folder / variant).rename(folder / WORDS[variant])
    return folder


def test_names_and_texts_that_mean_harm_are_shown_and_run_nothing(browser: Any, run: RunConfig, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    report_page([harmed(run, tmp_path / NAMED)], out, Console(quiet=True))
    with opened(browser, out) as page:
        tab = page.tab
        tab.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true })")
        assert page.text("h1") == f"Report: {NAMED}"
        for where in ("#failures", "#verdict", "#results td", "#frontier caption", "#frontier .legend", "#decisions h4",
                      "#learning .legend", "#pathologies td.name:nth-child(2)", "#pathologies td a", "#cost td code",
                      "#cost pre"):  # fmt: skip
            shown = tab.locator(where).all_text_contents()
            assert any(NAMED in text for text in shown), where
        options = tab.locator("#frontier select").first.locator("option").all_text_contents()
        assert options == [FAMILY, f"{FAMILY}2"]
        for mark in tab.locator("#frontier .point").all()[:2]:
            mark.focus()
            assert NAMED in page.text("#tip")
        assert tab.locator("img, iframe, object, embed, base").count() == 0
        hrefs = tab.evaluate("[...document.querySelectorAll('a')].map(a => a.getAttribute('href'))")
        assert all(href.startswith(("#", "report_trace.html#", "report_files/")) for href in hrefs)
        assert tab.evaluate("window.harmed") is None
        link = tab.locator("#pathologies td a").first
        name = link.text_content()
        page.expected.add((out.parent / "report_trace.html").as_uri())
        link.click()
        page.shows("#episode-name", name)
        assert SAID in page.tab.locator("#turns").text_content()
        assert tab.locator("img").count() == 0
        assert tab.evaluate("window.harmed") is None


# Served


def test_a_watched_run_s_page_renews_itself_and_keeps_what_its_reader_chose(
    browser: Any, run: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "MIN_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(serve, "_PAUSE_FACTOR", 0)
    folder = tmp_path / run.name
    shutil.copytree(run.folder, folder)
    stored = folder / "delegating" / "seed0" / "metrics.jsonl"
    lines = stored.read_text(encoding="utf-8").splitlines(keepends=True)
    stored.write_text("".join(lines[:-1]), encoding="utf-8")
    with serve_report(folder, 0, renderers_of) as address, opened(browser, address, color_scheme="dark") as page:
        tab = page.tab
        page.expected.add(f"{address}progress.json")
        assert page.text("#progress td") == "delegating/seed0"
        assert tab.locator("#cost").count() == 0, "the progress comes first"
        steps = "#cost table tbody tr:first-child td:nth-child(3)"
        page.shows(steps, "1", within=30)
        assert tab.evaluate("document.querySelector('meta[http-equiv=Content-Security-Policy]') !== null")
        assert serious(tab) == []
        tab.locator("#frontier").get_by_label("Cost").select_option("critical_path_tokens")
        tab.click("#results summary")
        stored.write_text("".join(lines), encoding="utf-8")
        page.shows(steps, "2", within=60)
        page.shows("#frontier .axis-name", "critical path tokens, mean per instance")
        assert tab.locator("#results details").get_attribute("open") is not None
        page.expected.add(f"{address}report_trace.html")
        tab.locator("#pathologies td a").first.click()
        tab.locator("#agent-name").wait_for()
        assert tab.url.startswith(f"{address}report_trace.html#")


def test_a_live_page_asks_again_after_a_failure(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "live.html"
    live = LiveReport(tmp_path, tmp_path, renderers_of)
    file.write_bytes(live.page())
    progress = {**live.progress(), "headline": "Here again"}
    tab = browser.new_page()
    tab.clock.install()
    tab.add_init_script(
        """
        window.requests = 0;
        window.respond = () => { throw new TypeError("no connection"); };
        window.fetch = async () => { window.requests += 1; return window.respond(); };
        """
    )
    tab.goto(file.as_uri())
    state = tab.locator("#progress [role=status]")

    def ask_within(seconds: int, expected: str) -> None:
        before = tab.evaluate("window.requests")
        tab.clock.run_for(1000 * seconds)
        assert tab.evaluate("window.requests") == before + 1
        api.expect(state).to_contain_text(expected)

    ask_within(1, "no answer for 1 second,")
    tab.evaluate("window.respond = () => ({ ok: false, status: 500, json: async () => ({}) })")
    ask_within(2, "no answer for 3 seconds,")
    tab.evaluate("now => { window.respond = () => ({ ok: true, json: async () => now }) }", progress)
    ask_within(4, "There is no report yet.")
    assert "Here again" in tab.inner_text("#progress")
    tab.close()
