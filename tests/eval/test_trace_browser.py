"""The page of episodes in a real browser."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import beside, chromium, opened, serious
from pages import EVIL, RULES, groups, harmful, write
from rich.console import Console
from test_job import counterfactual, play

from selfcest_agents.policy import ScriptedPolicy
from selfcest_agents.rollout import RolloutRequest, rollout
from selfcest_cli.trace import write_page
from selfcest_env.record import EpisodeRecord, read_episodes
from selfcest_env.types import ROOT, CloneRequest, Delegate, Limits, Task
from selfcest_env.views import Observation
from selfcest_eval.html.playing import Renderer, replay_episode
from selfcest_eval.html.viewer import EpisodeView, SchemeCredit, make_viewer_page
from selfcest_training.credit import Credit


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def records(browser: Any) -> list[EpisodeRecord]:
    return [record for group in groups(3, replays=True) for record in group]


@pytest.fixture(scope="module")
def deep(records: list[EpisodeRecord]) -> EpisodeRecord:
    return next(record for record in records if "/" not in record.episode_id and record.cost.depth == 2)


@pytest.fixture(scope="module")
def file(records: list[EpisodeRecord], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    out = folder / "page.html"
    write_page([write(folder / "e.jsonl", *records)], out, Console(), schemes=["rloo", "coma"])
    return out


def search(page: Any, words: str) -> None:
    page.tab.fill("#find", words)
    page.tab.press("#find", "Enter")  # without it the page waits for a pause


@pytest.mark.slow
def test_somebody_finds_an_episode_and_reads_what_a_clone_wrote(browser: Any, file: Path, deep: EpisodeRecord) -> None:
    with opened(browser, file) as page:
        tab = page.tab
        search(page, deep.episode_id)
        assert page.text("#found").startswith("1 of 12 episodes")
        tab.locator('#list [role="option"]').click()
        page.shows("#episode-name", deep.episode_id)
        nodes = tab.locator('#tree [role="treeitem"]').evaluate_all("all => all.map(node => node.dataset.agent)")
        assert nodes == [str(agent.agent_id) for agent in deep.agents], "a screen reader needs the order of the tree"
        tab.locator('#tree [data-agent="root.0"]').click()
        clone = deep.agents[1]
        page.shows("#agent-name", "root.0")
        assert tab.locator(".generated .text").all_text_contents() == [t.generation.text for t in clone.turns]
        assert clone.objective in tab.locator(".environment .theirs").all_text_contents()
        assert tab.url.endswith(f"#{deep.episode_id}/root.0/0")


@pytest.mark.slow
def test_filters_leave_what_they_say(browser: Any, file: Path, records: list[EpisodeRecord]) -> None:
    factual = [record for record in records if "/" not in record.episode_id]
    with opened(browser, file) as page:
        tab = page.tab

        def found() -> int:
            return int(page.text("#found").split()[0])

        tab.select_option("#outcome", "right")
        assert found() == sum(record.reward_terms["correct"] == 1 for record in factual if record.reward_terms)
        tab.select_option("#outcome", "any")
        tab.select_option("#family", "ledger_qa")
        assert found() == sum(record.task.source == "ledger_qa" for record in factual)
        tab.select_option("#clones", "4 or more")
        assert found() == sum(r.task.source == "ledger_qa" and r.cost.clones >= 4 for r in factual)
        tab.select_option("#family", "any")
        tab.select_option("#clones", "any")
        tab.fill("#tokens", "700")
        assert found() == sum(record.cost.total_tokens <= 700 for record in factual)
        tab.fill("#tokens", "")
        tab.select_option("#return", "0 or less")
        assert found() == sum(record.team_return <= 0 for record in factual)
        tab.select_option("#return", "any")
        tab.check("#with-replays")
        assert found() == len(records)
        tab.select_option("#order", "tokens, many first")
        most = max(records, key=lambda record: record.cost.total_tokens)
        assert f"{most.cost.total_tokens:,} tokens" in page.text('#list [role="option"]')
        tab.uncheck("#with-replays")
        tab.select_option("#step", "1")
        assert found() == 4
        tab.select_option("#step", "any")
        tab.select_option("#order", "by group")
        heads = tab.locator("#list .row.group")
        right = [r.team_return for r in factual[:4] if r.reward_terms and r.reward_terms["correct"] == 1]
        assert heads.first.inner_text().splitlines() == ["s0.g0", heads.first.locator(".about").inner_text()]
        assert heads.first.locator(".about").inner_text().startswith(f"4 episodes · {len(right)} right · return ")
        tab.locator("#list").press("Home")
        page.shows("#episode-name", "s0.g0.e0")
        assert serious(tab) == []
        turn = next(turn for key, turn in factual[5].turns() if key.agent_id != ROOT)
        said = turn.generation.text.splitlines()[0]  # a search field holds one line
        search(page, said)
        assert found() == 0
        tab.check("#in-turns")
        written = [r for r in factual if any(said in t.generation.text for _, t in r.turns()) or said in blocks(r)]
        assert found() == len(written) > 0
        tab.locator('#list [role="option"]').first.click()
        agents = [str(agent.agent_id) for agent in written[0].agents]
        assert page.text("#agent-name") in agents
        assert said in tab.locator("#turns").text_content()
        assert tab.evaluate("CSS.highlights.get('wanted').size") > 0


@pytest.mark.slow
def test_filters_and_replays_leave_the_result_of_a_group(
    browser: Any, records: list[EpisodeRecord], tmp_path: Path
) -> None:
    def graded(record: EpisodeRecord, correct: float) -> EpisodeRecord:
        assert record.reward_terms is not None
        return replace(record, reward_terms={**record.reward_terms, "correct": correct})

    wrong = [graded(record, 0.0) for record in records]
    records = [graded(record, float(record.episode_id.startswith("s0.g0.e0"))) for record in records]
    files = []
    for name, episodes in (("a", records), ("b", wrong)):
        (tmp_path / name).mkdir()
        files.append(write(tmp_path / name / "episodes.jsonl", *episodes))
    write_page(files, tmp_path / "o.html", Console())
    factual = [record for record in records if record.episode_id in {f"s0.g0.e{k}" for k in range(4)}]
    returns = [record.team_return for record in factual]
    with opened(browser, tmp_path / "o.html") as page:
        tab = page.tab
        tab.select_option("#order", "by group")

        def heads() -> list[list[str]]:
            return [head.inner_text().splitlines() for head in tab.locator("#list .row.group").all()]

        tab.select_option("#step", "0")
        (name, about), (other, none) = heads()
        assert (name, other) == ("a s0.g0", "b s0.g0")
        result = about.removeprefix("4 episodes · ")
        assert result.startswith("1 right · return ")
        mean, spread = map(float, result.rpartition("return ")[2].replace("−", "-").split(" ± "))
        assert mean == pytest.approx(np.mean(returns), abs=0.005)
        assert spread == pytest.approx(np.std(returns, ddof=1), abs=0.005)
        assert none.startswith("4 episodes · 0 right")
        tab.check("#with-replays")
        assert heads()[0] == [name, about]
        tab.uncheck("#with-replays")
        tab.select_option("#outcome", "right")
        assert heads() == [[name, f"1 of 4 episodes · {result}"]]
        tab.select_option("#outcome", "any")
        tab.select_option("#job", "b")
        assert heads() == [[other, none]]


@dataclass(frozen=True)
class Saying:
    """Answers with the same text."""

    text: str

    def act(self, observation: Observation, rng: np.random.Generator) -> str:
        return self.text


@pytest.mark.slow
def test_a_search_marks_hits_in_any_text(browser: Any, tmp_path: Path) -> None:
    # "İ" is longer in lower case. The number of hits is more than a call of a function can take as arguments.
    policy = ScriptedPolicy(Saying(f"Answer: {'İ' * 9}{'a' * 200_000}(End"))
    (record,) = rollout([RolloutRequest("e", Task("t", "Q?", "7", "test"), 0)], policy, RULES)
    file = tmp_path / "o.html"
    file.write_text(make_viewer_page("T", [EpisodeView(record)], [Renderer(RULES)], ()).render(), encoding="utf-8")
    with opened(browser, file) as page:
        page.tab.check("#in-turns")
        for wanted, marked, number in (("(end", "(End", 1), ("İİİİİİİİİA", "İİİİİİİİİa", 1), ("A", "a", 10_000)):
            search(page, wanted)
            assert page.text("#found").startswith("1 of 1 episode")
            hits = page.tab.evaluate("[...CSS.highlights.get('wanted')].map(String)")
            assert (hits[0], len(hits)) == (marked, number)


@pytest.mark.slow
def test_a_search_opens_the_folds_with_hits_only(browser: Any, file: Path, deep: EpisodeRecord) -> None:
    with opened(browser, file, f"#{deep.episode_id}/root/0") as page:
        folds = page.tab.locator("#turns details")
        assert folds.count() == 1, "the prompt of the system"
        word = folds.locator(".text").text_content().split()[-1]
        search(page, "no such words")
        assert folds.first.get_attribute("open") is None
        search(page, word)
        assert folds.first.get_attribute("open") is not None
        search(page, "")
        assert folds.first.get_attribute("open") is None


@pytest.mark.slow
def test_a_folded_small_tree_shows_its_mark(browser: Any, file: Path, deep: EpisodeRecord) -> None:
    with opened(browser, file, f"#{deep.episode_id}/root/0") as page:
        marks = page.tab.locator("#tree .fold")
        assert marks.count() == 0
        page.tab.locator('#tree [data-agent="root"]').press("Space")
        assert page.tab.locator('#tree [role="treeitem"]').count() == 1
        num_clones = sum(agent.agent_id.depth == 1 for agent in deep.agents)
        assert marks.text_content() == f"+{num_clones}"
        marks.click()
        assert page.tab.locator('#tree [role="treeitem"]').count() == len(deep.agents)
        assert marks.count() == 0


def blocks(record: EpisodeRecord) -> str:
    """All that the environment wrote in an episode."""
    blocks = replay_episode(record, [Renderer(RULES)]).blocks
    messages = [message for of_agent in blocks.values() for block in of_agent for message in block]
    return "\n".join("".join(part.text for part in message.parts) for message in messages)


@pytest.mark.slow
def test_the_keyboard_alone_will_do(browser: Any, file: Path, deep: EpisodeRecord) -> None:
    with opened(browser, file) as page:
        keys = page.tab.keyboard
        keys.press("Tab")
        assert page.text(":focus") == "Skip to the content"
        keys.press("/")
        assert page.focused() == "find"
        keys.type(deep.episode_id)
        for _ in range(20):
            keys.press("Tab")
            if page.focused() == "list":
                break
        keys.press("ArrowDown")
        page.shows("#episode-name", deep.episode_id)
        for key, place in (
            ("Enter", "episode-name"),
            ("Tab", "question"),
            ("Tab", "root"),
            ("ArrowDown", "root.0"),
            ("ArrowRight", "root.1"),
            ("ArrowUp", "root"),
            ("End", str(deep.agents[-1].agent_id)),
            ("Enter", "agent-name"),
        ):
            keys.press(key)
            page.focuses(place)
        keys.press("n")
        page.tab.wait_for_url(f"**/{min(1, len(deep.agents[-1].turns) - 1)}")
        page.tab.evaluate(f"location.hash = '#{deep.episode_id}/root.0/0'")
        page.shows("#announced", f"{deep.episode_id}, root.0, turn 0 of {len(deep.agents[1].turns)}")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1500, 900, 400])
def test_everybody_can_use_it(browser: Any, file: Path, deep: EpisodeRecord, scheme: str, width: int) -> None:
    viewport = {"width": width, "height": 950}
    with opened(browser, file, f"#{deep.episode_id}/root.0/0", viewport=viewport, color_scheme=scheme) as page:
        ground = page.tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert serious(page.tab) == []
        assert beside(page.tab) == []
        page.tab.click("#scheme")
        assert page.tab.evaluate("getComputedStyle(document.body).backgroundColor") != ground
        assert serious(page.tab) == []


@pytest.mark.slow
def test_what_an_address_names_in_vain_is_said_and_the_address_is_corrected(
    browser: Any, file: Path, deep: EpisodeRecord
) -> None:
    name, last = deep.episode_id, len(deep.root.turns) - 1
    with opened(browser, file, f"#{name}%2Froot.0%3Dresample%2Fsample0/root.1/0") as page:
        assert page.text("#episode-name") == f"{name}/root.0=resample/sample0"
        assert page.text("#agent-name") == "root.1"
        page.shows("#missing", "")
        for place, said, true in (
            (f"{name}/root.77/0", "There is no agent root.77 in this episode; this is root.", f"{name}/root/0"),
            (f"{name}/root/99", f"There is no turn 99 of root; this is turn {last}.", f"{name}/root/{last}"),
            ("%E0%A4%A/'\"<>/0", "There is no episode %E0%A4%A here; this is s0.g0.e0.", "s0.g0.e0/root/0"),
            ("gone/root/0", "There is no episode gone here; this is s0.g0.e0.", "s0.g0.e0/root/0"),
        ):
            page.tab.evaluate("place => { location.hash = place }", place)
            page.shows("#missing", said)
            assert page.tab.evaluate("location.hash") == f"#{true}"
            assert page.text("#episode-name") == true.split("/")[0]
        page.tab.evaluate("place => { location.hash = place }", f"{name}/root.0/0")
        page.shows("#missing", "")


@pytest.mark.slow
def test_the_skip_link_leads_to_the_episode_and_leaves_the_place(browser: Any, file: Path, deep: EpisodeRecord) -> None:
    with opened(browser, file, f"#{deep.episode_id}/root.0/0") as page:
        page.tab.keyboard.press("Tab")
        assert page.text(":focus") == "Skip to the content"
        page.tab.keyboard.press("Enter")
        page.focuses("episode-name")
        assert page.text("#episode-name") == deep.episode_id
        assert page.text("#agent-name") == "root.0"
        assert page.tab.url.endswith(f"#{deep.episode_id}/root.0/0")


@pytest.mark.slow
def test_every_turn_is_scrolled_to_and_nodes_say_what_was_asked_and_replied(
    browser: Any, file: Path, deep: EpisodeRecord
) -> None:
    with opened(browser, file, f"#{deep.episode_id}/root.0/1", viewport={"width": 1500, "height": 300}) as page:
        page.tab.evaluate("document.querySelector('#agent').scrollTop = 1e6")
        page.tab.keyboard.press("p")
        page.tab.wait_for_url("**/0")
        ends = "id => { const box = document.querySelector(id).getBoundingClientRect(); return [box.top, box.bottom] }"
        (top, _), (_, bottom) = page.tab.evaluate(ends, "#agent"), page.tab.evaluate(ends, "#turn-0")
        assert bottom > top + 50, "the first turn is in view again"
        clone = deep.agents[1]
        node = page.tab.locator('#tree [data-agent="root.0"]')
        for said in (node.get_attribute("aria-label"), node.locator("title").text_content()):
            assert f"asked: {clone.objective[:150]}" in said
            assert clone.reply is None or f"replied: {clone.reply[:150]}" in said


@pytest.mark.slow
def test_credit_replays_and_accounts_are_the_record_s(
    browser: Any, file: Path, deep: EpisodeRecord, records: list[EpisodeRecord]
) -> None:
    replay = next(r for r in records if r.episode_id == f"{deep.episode_id}/root.0=resample/sample0")
    with opened(browser, file, f"#{deep.episode_id}/root.0/0") as page:
        assert page.tab.locator("#credit thead th").all_text_contents()[1].startswith("rloo")
        assert page.tab.locator("#credit tbody tr").count() == sum(len(agent.turns) for agent in deep.agents)
        cells = page.tab.locator("#replays tbody tr").nth(1).locator("td").all_text_contents()
        assert cells[0] == (replay.by_id[deep.agents[1].agent_id].reply or "no reply")
        assert cells[1] == (replay.answer or "no reply")
        gap = deep.team_return - replay.team_return
        assert float(cells[3].replace("−", "-")) == pytest.approx(gap, abs=0.006)
        for place in range(int(page.tab.get_attribute("#ledger input", "max")) + 1):
            page.tab.locator("#ledger input").fill(str(place))
            numbers = [
                int(word.replace(",", "")) for word in page.text("#moment").split(": ")[1].split() if word[0].isdigit()
            ]
            assert sum(numbers) == deep.limits.total_tokens
        rows = page.tab.locator("#accounts tbody tr").all_inner_texts()
        assert [row.split()[0] for row in rows] == [str(agent.agent_id) for agent in deep.agents]


@pytest.mark.slow
def test_credit_by_token_colours_tokens_and_exclusion_says_why(
    browser: Any, deep: EpisodeRecord, tmp_path: Path
) -> None:
    first, *others = [key for key, _ in deep.turns()]
    credit = Credit({first: (0.5, -1.0, 0.0)}, frozenset(others))
    shown = make_viewer_page("T", [EpisodeView(deep)], [Renderer(RULES)], [SchemeCredit("mine", "a rule", [[credit]])])
    (tmp_path / "p.html").write_text(shown.render(), encoding="utf-8")
    with opened(browser, tmp_path / "p.html") as page:
        tokens = page.tab.locator(".token")
        assert [tokens.nth(i).get_attribute("title") for i in range(3)] == ["mine +0.5", "mine −1", "mine 0"]
        colours = tokens.evaluate_all("all => all.map(one => getComputedStyle(one).backgroundColor)")
        assert len(set(colours)) == 3
        assert "excluded: the agent" in page.text("#credit tbody tr:nth-child(2) td")


@pytest.mark.slow
def test_tokens_are_coloured_by_log_prob_or_by_the_advantage_of_their_turn(browser: Any, tmp_path: Path) -> None:
    policy = ScriptedPolicy(Saying("Answer: 7"))
    (record,) = rollout([RolloutRequest("e", Task("t", "Q?", "7", "test"), 0)], policy, RULES)
    texts = ["Ans", "wer: ", "7"]
    (turn,) = record.root.turns
    generation = replace(turn.generation, token_ids=(0, 1, 2), behavior_logprobs=(-0.001, -0.5, -9.0))
    record = replace(record, agents=(replace(record.root, turns=(replace(turn, generation=generation),)),))
    renderer = Renderer(RULES, lambda ids: "".join(texts[i] for i in ids))
    scheme = SchemeCredit("mine", "a rule", [[Credit({key: -2.0 for key, _ in record.turns()})]])
    (tmp_path / "p.html").write_text(
        make_viewer_page("T", [EpisodeView(record)], [renderer], [scheme]).render(), encoding="utf-8"
    )
    with opened(browser, tmp_path / "p.html") as page:
        tokens = page.tab.locator(".token")
        assert page.tab.input_value("#colouring") == "nothing"
        assert tokens.count() == 0

        def colours(choice: str) -> list[str]:
            page.tab.select_option("#colouring", choice)
            assert tokens.all_text_contents() == texts
            return list(tokens.evaluate_all("all => all.map(one => getComputedStyle(one).backgroundColor)"))

        assert len(set(colours("log-prob"))) == 3
        assert len(set(colours("mine"))) == 1
        assert tokens.nth(1).get_attribute("title") == "log-prob −0.5, probability 0.607\nmine −2"
        assert serious(page.tab) == []


@pytest.mark.slow
def test_another_episode_of_the_instance_is_shown_beside(
    browser: Any, file: Path, records: list[EpisodeRecord], deep: EpisodeRecord
) -> None:
    others = [r for r in records if r.task == deep.task and "/" not in r.episode_id and r is not deep]
    with opened(browser, file, f"#{deep.episode_id}/root.0/0") as page:
        rows = page.tab.locator("#beside tbody tr")
        assert [row.split()[0] for row in rows.all_inner_texts()] == [deep.episode_id, *(r.episode_id for r in others)]
        assert page.tab.locator(".pair").count() == 0
        rows.nth(1).get_by_text("open").click()
        columns = page.tab.locator(".pair > section")
        for column, record in zip(columns.all(), (deep, others[0]), strict=True):
            written = column.locator(".generated").all_text_contents()
            assert written == [turn.generation.text for agent in record.agents for turn in agent.turns]
        address = f"#{deep.episode_id}/root.0/0/{others[0].episode_id}"
        assert page.tab.evaluate("location.hash") == address
        page.tab.keyboard.press("n")
        assert page.tab.evaluate("location.hash").endswith(f"/{others[0].episode_id}"), "it stays"
        assert serious(page.tab) == []
        page.tab.evaluate(f"location.hash = '{deep.episode_id}/root/0/gone'")
        page.shows("#missing", "There is no episode gone here to show beside this one.")
        assert page.tab.locator(".pair").count() == 0


@pytest.mark.slow
def test_the_frame_of_a_notebook_has_links_and_cannot_reach_the_notebook(
    browser: Any, deep: EpisodeRecord, tmp_path: Path
) -> None:
    notebook = tmp_path / "notebook.html"
    shown = make_viewer_page("T", [EpisodeView(deep)], [Renderer(RULES)], ())
    notebook.write_text(f"<!doctype html><body>{shown._repr_html_()}</body>", encoding="utf-8")
    tab = browser.new_page()
    tab.goto(notebook.as_uri())
    frame = tab.frames[1]
    frame.locator("#turns a.chip").first.click()
    frame.locator("#agent-name:has-text('root.0')").wait_for()
    frame.evaluate("location.hash = '#gone/root/0'")
    frame.locator("#missing:has-text('no episode gone')").wait_for()
    assert frame.evaluate("location.hash") == f"#{deep.episode_id}/root/0"
    assert frame.evaluate("(() => { try { return parent.document.title } catch { return 'blocked' } })()") == "blocked"
    assert tab.url == notebook.as_uri()
    tab.close()


@pytest.mark.slow
def test_harmful_texts_are_shown_and_run_nothing(browser: Any, tmp_path: Path) -> None:
    record = harmful()
    for name, renderers in (("exact", [Renderer(RULES)]), ("by_record", [])):
        file = tmp_path / f"{name}.html"
        shown = EpisodeView(record, played_as=EVIL)
        credit = Credit({key: 0.5 for key, _ in record.turns()})
        page_of = make_viewer_page(EVIL, [shown, shown], renderers, [SchemeCredit(EVIL, EVIL, [[credit]])], [EVIL])
        file.write_text(page_of.render(), encoding="utf-8", errors="xmlcharrefreplace")
        with opened(browser, file) as page:
            tab = page.tab
            units = list(array("H", EVIL.encode("utf-16-le", "surrogatepass")))
            same = (
                "([selector, units]) => document.querySelector(selector).textContent === String.fromCharCode(...units)"
            )
            assert tab.evaluate(same, ["#question", units])
            assert tab.evaluate(same, ["#played-as", units])
            assert tab.evaluate(same, ["#credit .left-out", [*map(ord, "Left out: "), *units]])
            for agent in record.agents:
                tab.locator(f'[data-agent="{agent.agent_id}"]').click()
                assert "<script>window.harmed=1</script>" in page.text("#turns")
            search(page, "onerror")
            assert page.text("#found").startswith("2 of 2 episodes")
            hrefs = tab.evaluate("[...document.querySelectorAll('a')].map(a => a.getAttribute('href'))")
            assert all(href.startswith("#") for href in hrefs)
            assert tab.locator("img, iframe, object, embed, base, form[action]").count() == 0
            assert tab.locator("script").count() == 1 + len(page_of.data) + len(page_of.lines)
            assert tab.evaluate("window.harmed") is None


@pytest.mark.slow
def test_the_policy_holds_even_against_the_page_s_own_mistakes(browser: Any, file: Path) -> None:
    tab = browser.new_page()
    tab.goto(file.as_uri())
    tab.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=data:x onerror=\"window.harmed=1\">')")
    tab.evaluate(
        "const s = document.createElement('script'); s.textContent = 'window.harmed=1'; document.body.append(s)"
    )
    assert "blocked" in tab.evaluate("fetch('https://example.org').then(() => 'sent', () => 'blocked')")
    tab.wait_for_timeout(100)
    assert tab.evaluate("window.harmed") is None
    tab.close()


@pytest.mark.slow
def test_a_printed_page_has_no_controls(browser: Any, file: Path, deep: EpisodeRecord) -> None:
    with opened(browser, file, f"#{deep.episode_id}/root.0/0", color_scheme="dark") as page:
        page.tab.emulate_media(media="print")
        assert not page.tab.locator("#list").is_visible()
        assert not page.tab.locator("#scheme").is_visible()
        assert page.tab.locator("#turns").is_visible()
        assert page.tab.evaluate("getComputedStyle(document.body).color") == "rgb(30, 32, 38)", "ink on white"


@pytest.mark.slow
def test_five_thousand_episodes_load_and_scroll(browser: Any, records: list[EpisodeRecord], tmp_path: Path) -> None:
    factual = [record for record in records if "/" not in record.episode_id]
    many = [EpisodeView(replace(factual[i % len(factual)], episode_id=f"s{i}.g0.e0")) for i in range(5000)]
    file = tmp_path / "many.html"
    file.write_text(make_viewer_page("Many", many, [Renderer(RULES)], ()).render(), encoding="utf-8")
    tab = browser.new_page(viewport={"width": 1500, "height": 950})
    metrics = tab.context.new_cdp_session(tab)
    metrics.send("Performance.enable", {"timeDomain": "threadTicks"})

    def seconds() -> float:  # of the page's own thread: other work on the machine does not count
        found = {one["name"]: one["value"] for one in metrics.send("Performance.getMetrics")["metrics"]}
        return float(found["TaskDuration"])

    tab.goto(file.as_uri())
    assert tab.inner_text("#found").startswith("5,000 of 5,000 episodes")
    assert seconds() < 3
    before, frames = seconds(), 100
    tab.evaluate(
        """async (frames) => {
          const list = document.querySelector("#list");
          for (let i = 1; i <= frames; i++) {
            list.scrollTop = (i / frames) * list.scrollHeight;
            await new Promise(requestAnimationFrame);
          }
        }""",
        frames,
    )
    assert (seconds() - before) / frames < 0.033, "less than two frames of a screen"
    assert tab.locator('#list [role="option"]').count() < 60
    assert "s4999.g0.e0" in tab.locator('#list [role="option"]').last.inner_text()
    tab.close()


@pytest.mark.slow
def test_the_pages_of_a_real_run_open(browser: Any, tmp_path: Path) -> None:
    job = play(counterfactual(tmp_path, log_groups=2))
    stored = job.folder / "episodes.jsonl"
    replays = [record.episode_id for record in read_episodes(stored) if "/root.0=" in record.episode_id]
    replayed = replays[0].partition("/")[0]
    out = tmp_path / "run.html"
    write_page([stored], out, Console(), schemes=["rloo", "coma"])
    with opened(browser, out) as page:
        page.shows("#episode-name", "s0.g0.e0")
        assert page.tab.locator("#ledger svg").count() > 0, "its rules are known"
        page.tab.select_option("#clones", "some")
        search(page, replayed)
        page.tab.locator(f'#list [role="option"]:has-text("{replayed},")').click()
        page.shows("#episode-name", replayed)
        page.tab.locator('#tree [data-agent="root.0"]').click()
        page.shows("#agent-name", "root.0")
        rows = page.tab.locator("#replays tbody tr")
        assert rows.count() == 1 + sum(name.startswith(f"{replayed}/root.0=") for name in replays) == 1 + 2


@pytest.mark.slow
def test_a_tree_of_thousands_opens_at_once_and_draws_what_is_in_view(browser: Any, tmp_path: Path) -> None:
    limits = Limits(10**6, turn_tokens=1000, reply_tokens=8, max_clones=None, max_clones_per_call=None, max_depth=2)
    policy = ScriptedPolicy(Wide((50, 40)))
    task = Task("wide", "How many?", "7", "test")
    (record,) = rollout([RolloutRequest("wide", task, 0)], policy, RULES.with_limits(limits))
    file = tmp_path / "wide.html"
    file.write_text(make_viewer_page("Wide", [EpisodeView(record)], [Renderer(RULES)], ()).render(), encoding="utf-8")
    with opened(browser, file) as page:
        tab = page.tab
        metrics = tab.context.new_cdp_session(tab)
        metrics.send("Performance.enable", {"timeDomain": "threadTicks"})
        (seconds,) = [
            one["value"] for one in metrics.send("Performance.getMetrics")["metrics"] if one["name"] == "TaskDuration"
        ]
        assert seconds < 2  # 0.3 s on an idle core
        tree, nodes = tab.locator("#tree"), tab.locator('#tree [role="treeitem"]')
        assert nodes.count() == 1 + 50 + 40, "all others are folded"
        assert tree.evaluate("box => box.scrollWidth <= box.clientWidth"), "the whole tree is in view"
        assert tab.locator('[data-agent="root.7"]').get_attribute("aria-expanded") == "false"
        tab.evaluate("location.hash = '#wide/root.7.39/0'")
        page.shows("#agent-name", "root.7.39")
        assert tab.locator('[data-agent="root.7"]').get_attribute("aria-expanded") == "true"
        tab.locator("#tree-tools").get_by_text("Unfold all").click()
        tab.locator('[data-agent="root.7.39"]').focus()
        for _ in range(12):
            tab.keyboard.press("+")
        assert 0 < nodes.count() < 200
        assert tree.evaluate("box => box.scrollWidth > 10 * box.clientWidth")
        box, node = tree.bounding_box(), tab.locator('[data-agent="root.7.39"]').bounding_box()
        assert box["x"] <= node["x"] <= box["x"] + box["width"]
        tree.evaluate("box => { box.scrollLeft = 1e9 }")
        tab.locator('[data-agent="root.49.39"]').wait_for()
        tab.locator('[data-agent="root.49"] .fold').click()
        assert tab.locator('[data-agent="root.49.39"]').count() == 0
        assert tab.locator('[data-agent="root.49"] .fold').text_content() == "+40"
        assert page.text("#agent-name") == "root.7.39"
        assert serious(tab) == []


@dataclass(frozen=True)
class Wide:
    """Agents at each depth call so many clones, and then answer 7."""

    widths: tuple[int, ...]

    def act(self, observation: Observation, rng: np.random.Generator) -> str:
        if observation.depth < len(self.widths) and not observation.exchanges:
            return RULES.protocol.render(Delegate((CloneRequest("count"),) * self.widths[observation.depth]))
        return "Answer: 7"
