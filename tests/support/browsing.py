"""A real browser for tests of pages. Where there is none the tests are skipped, and say what they lack."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

try:
    from playwright import sync_api as api
except ImportError:
    api = None
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@contextmanager
def chromium() -> Iterator[Any]:
    """Playwright's browser; skips the test that has none."""
    if api is None:
        pytest.skip("no playwright: pip install -r requirements/dev.txt")
    if CHROMIUM is None:
        pytest.skip("no Chromium, so no page is opened in a browser: apt-get install chromium")
    with api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


class Opened:
    """A page of a file or an address, with what it said to the console and asked the network for."""

    def __init__(self, browser: Any, file: Path | str, place: str = "", **options: Any) -> None:
        self.tab = browser.new_page(**{"viewport": {"width": 1500, "height": 950}, **options})
        self.said: list[str] = []
        self.asked: list[str] = []
        self.tab.on("console", lambda message: self.said.append(message.text))
        self.tab.on("pageerror", lambda error: self.said.append(str(error)))
        self.tab.on("dialog", lambda dialog: self.said.append(f"dialog {dialog.message}"))
        self.tab.on("request", lambda request: self.asked.append(request.url.partition("#")[0]))
        address = file.as_uri() if isinstance(file, Path) else file
        self.expected = {address}
        self.tab.set_default_navigation_timeout(120_000)
        self.tab.goto(address + place)

    def text(self, selector: str) -> str:
        return str(self.tab.locator(selector).first.inner_text())

    def focused(self) -> str:
        return str(self.tab.evaluate("document.activeElement.id || document.activeElement.dataset.agent"))

    def shows(self, selector: str, text: str, within: float = 5.0) -> None:
        """Waits seconds until the element has this text. Raises `AssertionError` with what it has instead."""
        api.expect(self.tab.locator(selector).first).to_have_text(text, timeout=1000 * within)

    def focuses(self, name: str) -> None:
        """Waits until the element of this id, or the agent of this name in the tree, has the focus."""
        api.expect(self.tab.locator(f'[id="{name}"]:focus, [data-agent="{name}"]:focus')).to_have_count(1)

    def close(self) -> None:
        """Raises `AssertionError` for a page that complained, or loaded anything but itself and what is `expected`."""
        self.tab.close()
        assert self.said == []
        assert set(self.asked) == self.expected


@contextmanager
def opened(browser: Any, file: Path | str, place: str = "", **options: Any) -> Iterator[Opened]:
    page = Opened(browser, file, place, **options)
    yield page
    page.close()


def serious(tab: Any) -> list[str]:
    """What axe-core finds that keeps somebody from using the page."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe-playwright-python")
    found = axe.Axe().run(tab).response["violations"]
    return [
        f"{one['id']}: {node['html']} {node['failureSummary']}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


def beside(tab: Any) -> list[str]:
    """What the page itself has to be scrolled sideways for: elements wider than the window that scroll in no other."""
    return list(
        tab.evaluate(
            """() => {
              if (document.documentElement.scrollWidth <= innerWidth) return [];
              const own = (one) => getComputedStyle(one).overflowX !== "visible";
              const scrolls = (one) => one && (own(one) || scrolls(one.parentElement));
              return [...document.querySelectorAll("body *")]
                .filter((one) => one.getBoundingClientRect().right > innerWidth + 1 && !scrolls(one.parentElement))
                .map((one) => `${one.tagName} ${one.id} ${one.getAttribute("class")} ${one.textContent.slice(0, 40)}`);
            }"""
        )
    )
