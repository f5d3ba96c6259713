"""Measure the page of `selfcest trace --html`: its size, the time to build it, and the time to open it in a browser.

    OMP_NUM_THREADS=1 python benchmarks/viewer.py [--episodes 5000] [--repeats 3] [--chromium /usr/bin/chromium]

Experts play groups of four on sums and ledgers. They delegate most of these tasks to clones, which may delegate again.
Building is CPU time of this process, the best of the repeats; the time to read the records is measured separately.
Opening is CPU time of the page's thread until it shows the list and the first episode, in a headless Chromium. A step
of scrolling is one of many through the whole list. Without Chromium or Playwright these two are left out with a note.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from selfcest_agents.policy import ScriptedPolicy
from selfcest_agents.rollout import RolloutRequest, rollout
from selfcest_agents.scripted import OracleActor
from selfcest_cli.trace import write_page
from selfcest_env.record import EpisodeRecord, read_episodes, write_episode
from selfcest_env.reward import make_reward
from selfcest_env.rules import Rules
from selfcest_env.tasks import make_source
from selfcest_env.text.counters import WordCounter
from selfcest_env.text.hermes import HermesProtocol
from selfcest_env.types import Limits

STEPS = 100  # of scrolling, from one end of the list to the other
SCROLL = """async (steps) => {
  const list = document.querySelector("#list");
  for (let i = 1; i <= steps; i++) {
    list.scrollTop = (i / steps) * list.scrollHeight;
    await new Promise(requestAnimationFrame);
  }
}"""


def play(episodes: int) -> list[EpisodeRecord]:
    rules = Rules(
        Limits(total_tokens=3000, turn_tokens=512, reply_tokens=32, max_depth=2), HermesProtocol(), WordCounter()
    )
    sources = (
        make_source("range_sum", min_length=12, max_length=30, pieces=(3, 12), phrasing="plain"),
        make_source("ledger_qa", min_documents=4, max_documents=9, min_named=2, max_named=5),
    )
    reward = make_reward("default")
    rng = np.random.default_rng(0)
    records: list[EpisodeRecord] = []
    while len(records) < episodes:
        group = len(records) // 4
        source = sources[group % 2]
        policy = ScriptedPolicy(OracleActor(source, rules.protocol, p_delegate=0.8))
        task = source.draw(rng)
        requests = [RolloutRequest(f"s{group}.g0.e{i}", task, seed=4 * group + i) for i in range(4)]
        records += [reward.score(record) for record in rollout(requests, policy, rules)]
    return records[:episodes]


def best(repeats: int, work: Callable[[], Any]) -> float:
    """Return the CPU-seconds of this process, the best of the repeats."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def open_in(chromium: str, page: Path, repeats: int) -> tuple[float, float]:
    """Return the CPU-seconds of the page's thread to open the page, and for one step of scrolling."""
    from playwright.sync_api import sync_playwright

    opened: list[float] = []
    scrolled: list[float] = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium)
        for _ in range(repeats):
            tab = browser.new_page(viewport={"width": 1500, "height": 950})
            metrics = tab.context.new_cdp_session(tab)
            metrics.send("Performance.enable", {"timeDomain": "threadTicks"})

            def busy() -> float:
                values = metrics.send("Performance.getMetrics")["metrics"]  # noqa: B023
                return float(next(metric["value"] for metric in values if metric["name"] == "TaskDuration"))

            tab.goto(page.as_uri())
            tab.wait_for_selector("#episode-name:not(:empty)")
            opened.append(busy())
            tab.evaluate(SCROLL, STEPS)
            scrolled.append((busy() - opened[-1]) / STEPS)
            tab.close()
        browser.close()
    return min(opened), min(scrolled)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--episodes", type=int, default=5000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("google-chrome"))
    arguments = parser.parse_args()
    console = Console()
    records = play(arguments.episodes)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "episodes.jsonl"
        page = Path(folder) / "page.html"
        file.write_text("".join(map(write_episode, records)), encoding="utf-8")
        reading = best(arguments.repeats, lambda: list(read_episodes(file)))
        making = best(
            arguments.repeats, lambda: write_page([file], page, Console(quiet=True), schemes=["rloo", "grpo"])
        )
        clones = sum(record.cost.clones for record in records)
        table = Table(title=f"{len(records)} episodes, {clones} clones")
        table.add_column("what")
        table.add_column("figure", justify="right")
        table.add_row("records", f"{file.stat().st_size / 1e6:.1f} MB")
        table.add_row("page", f"{page.stat().st_size / 1e6:.1f} MB")
        table.add_row("reading the records", f"{reading:.1f} s")
        table.add_row("making the page, reading and two schemes included", f"{making:.1f} s")
        try:
            if arguments.chromium is None:
                raise ImportError("no Chromium; name one with --chromium")
            opening, step = open_in(arguments.chromium, page, arguments.repeats)
            table.add_row("opening it", f"{opening:.2f} s")
            table.add_row("a step of scrolling", f"{1000 * step:.1f} ms")
        except ImportError as error:
            table.add_row("opening it", f"left out: {error}")
    console.print(table)


if __name__ == "__main__":
    main()
