"""An episode as a figure: SVG and GIF show what the environment's picture and the page show."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from records import three_agents
from typer.testing import CliRunner

import selfcest_cli.main as cli
from selfcest_env import draw, render
from selfcest_env.palette import ANSWERED, FAILED, INK, PAGE, READY, STATUS, SURFACE, WAITING, Tone
from selfcest_env.record import AgentRecord, EpisodeRecord, write_episode
from selfcest_env.render import nodes_of_record
from selfcest_env.types import ROOT, Status
from selfcest_eval.html.figure import FOOT_HEIGHT, FOOT_SIZE, GIF_PIXELS, draw_gif, draw_svg
from selfcest_eval.html.page import read_asset

LEFT, RIGHT = ROOT.child(0), ROOT.child(1)
HOSTILE = '</text><script>alert(1)</script> & "'


@pytest.fixture(scope="module")
def record() -> EpisodeRecord:
    """Four turns in the order root, right (2 tokens), left (3 tokens), root; the right clone fails."""
    made = three_agents("e", 1.0, second_clone=Status.OUT_OF_TURNS)
    return replace(made, agents=tuple(replace(agent, granted_tokens=64) for agent in made.agents))


def texts_of(drawn: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]


def test_a_gif_has_a_frame_before_the_first_turn_and_one_after_each(record: EpisodeRecord) -> None:
    image = Image.open(BytesIO(draw_gif(record)))
    turns = sum(len(agent.turns) for agent in record.agents)
    assert turns == 4
    assert image.n_frames == turns + 1  # type: ignore[attr-defined]
    layout = draw.Layout.with_texts(nodes_of_record(record))
    scale = min(2, GIF_PIXELS / layout.size[0])
    assert image.size == (round(layout.size[0] * scale), round((layout.size[1] + FOOT_HEIGHT) * scale))

    def seen(frame: int) -> list[Tone | None]:
        """The colours in the middle of the three boxes' lower halves, where no letters are."""
        image.seek(frame)
        pixels: NDArray[np.uint8] = np.asarray(image.convert("RGB"))
        found = list[Tone | None]()
        for agent_id in (ROOT, LEFT, RIGHT):
            x, y = layout.places[agent_id]
            colour = tuple(pixels[round((y + 46) * scale), round((x + 143) * scale)])
            found.append(next((tone for tone in (PAGE, *STATUS.values()) if tone.rgb == colour), None))
        return found

    assert [seen(frame) for frame in range(5)] == [
        [READY, PAGE, PAGE],
        [WAITING, READY, READY],
        [WAITING, READY, FAILED],  # two tokens end before three
        [READY, ANSWERED, FAILED],
        [ANSWERED, ANSWERED, FAILED],
    ]


def test_an_svg_is_the_same_drawing_with_letters_of_the_reader_s(record: EpisodeRecord) -> None:
    drawn = draw_svg(record)
    tree = ElementTree.fromstring(drawn)
    boxes = [e for e in tree.iter("{http://www.w3.org/2000/svg}rect") if "edge-line" in e.get("class", "")]
    fills = [box.get("fill") for box in boxes]
    assert fills == [ANSWERED.light, SURFACE.light, ANSWERED.light, FAILED.light], "the second is below the outcome"
    del boxes[1]
    layout = draw.Layout.with_texts(nodes_of_record(record))
    assert [(float(box.get("x", "")), float(box.get("y", ""))) for box in boxes] == [
        layout.places[agent_id] for agent_id in (ROOT, LEFT, RIGHT)
    ]
    assert {"root", ".0", ".1", "•", "✓ right", "✕", "→ 2", "8 of 64 tokens", "4 of 64 tokens"} <= set(texts_of(drawn))
    assert texts_of(drawn)[-1] == "15 tokens, 2 clones, critical path 6"
    lines = [e.get("stroke") for e in tree.iter("{http://www.w3.org/2000/svg}path")]
    assert lines.count(INK.light) == 1, "of two clones the end waited for the one with three tokens"
    assert f".status-answered{{fill:{ANSWERED.dark}}}" in drawn


@pytest.mark.parametrize(
    ("terms", "graded", "mark"),
    [({"correct": 0.0}, None, "✕ wrong"), ({"correct": 0.5}, None, "◐ partly right"), (None, None, None),
     ({"other": 1.0}, None, None), (None, "wrong", "✕ wrong"), ({"correct": 0.0}, "right", "✓ right")],
)  # fmt: skip
def test_an_answer_and_its_outcome_have_two_marks(
    terms: dict[str, float] | None, graded: str | None, mark: str | None, record: EpisodeRecord
) -> None:
    drawn = texts_of(draw_svg(replace(record, reward_terms=terms), graded))
    assert [text for text in drawn if text[:1] in render.OUTCOME_MARKS.values() and text != "✕"] == [mark] * bool(mark)
    assert drawn.count("•") == 2, "the root and one clone answered"
    unanswered = replace(record.agents[0], status=Status.OUT_OF_TURNS, reply=None)
    assert render.judge(replace(record, reward_terms=terms, agents=(unanswered, *record.agents[1:]))) == ""


def test_the_line_below_a_small_tree_has_room(record: EpisodeRecord) -> None:
    """It was cut off on both sides; docs/gallery.md has such a tree."""
    alone = replace(record, agents=(replace(record.agents[0], turns=record.agents[0].turns[1:]),))
    tree = ElementTree.fromstring(draw_svg(alone))
    box = next(e for e in tree.iter("{http://www.w3.org/2000/svg}rect") if "edge-line" in e.get("class", ""))
    width, line = float(tree.get("width", "")), texts_of(draw_svg(alone))[-1]
    assert width > 0.62 * FOOT_SIZE * len(line), "as wide as letters are in the widest of the faces"
    assert float(box.get("x", "")) + float(box.get("width", "")) / 2 == width / 2


def test_texts_of_models_are_texts(record: EpisodeRecord) -> None:
    root, left, right = record.agents
    drawn = draw_svg(
        replace(record, agents=(root, replace(left, reply=HOSTILE, objective="a\x00\ud800\u202eb"), right))
    )
    assert "<script" not in drawn
    assert "→ </text><script>al…" in texts_of(drawn)
    assert "a b" in texts_of(drawn)
    assert "\u202e" not in drawn


def test_a_large_tree_is_fitted_and_goes_without_texts(record: EpisodeRecord) -> None:
    root, left, _ = record.agents
    clones = tuple(ROOT.child(i) for i in range(30))
    first = replace(root.turns[0], facts=replace(root.turns[0].facts, children=clones))
    agents: tuple[AgentRecord, ...] = (replace(root, turns=(first, root.turns[1])),)
    agents += tuple(replace(left, agent_id=clone) for clone in clones)
    drawn = draw_svg(replace(record, agents=agents))
    assert 'width="1400"' in drawn
    assert "→ 2" not in texts_of(drawn)
    assert (texts_of(drawn).count("•"), texts_of(drawn).count("✓")) == (31, 1)


def test_marks_and_sizes_are_those_of_the_page() -> None:
    viewer, tree = read_asset("viewer.js"), read_asset("viewer_tree.js")
    (marks,) = re.findall(r"const MARKS = {(.*)};", viewer)
    assert {Status(state): sign for state, sign in re.findall(r'(\w+): "(.)"', marks)} == render.MARKS
    assert f'MARKS[status] ?? "{render.FAILED_MARK}"' in viewer
    (outcomes,) = re.findall(r"const OUTCOMES = {(.*)};", viewer)
    assert dict(re.findall(r'"?(\w[\w ]*)"?: "(.)"', outcomes)) == render.OUTCOME_MARKS
    assert f"const NODE = {{ height: {draw.BOX_HEIGHT:g}, down: {draw.GAP_Y:g} }};" in tree
    assert f"wide: {{ width: {draw.BOX_WIDTH:g}, across: {draw.GAP_X:g} }}" in tree
    assert f"narrow: {{ width: {draw.NARROW_WIDTH:g}, " in tree


def test_the_command_writes_both_of_one_episode(record: EpisodeRecord, tmp_path: Path) -> None:
    file = tmp_path / "episodes.jsonl"
    other = replace(record, episode_id="last", agents=(replace(record.agents[0], turns=()),))
    file.write_text(write_episode(record) + write_episode(other), encoding="utf-8")
    places = ["--svg", str(tmp_path / "a.svg"), "--png", str(tmp_path / "a.png"), "--gif", str(tmp_path / "a.gif")]
    result = CliRunner().invoke(cli.app, ["trace", str(file), "--episode", "e", *places])
    assert result.exit_code == 0, result.output
    first, png, second = result.output.splitlines()
    assert png.startswith(f"{tmp_path / 'a.png'}: episode e, ")
    assert first.startswith(f"{tmp_path / 'a.svg'}: episode e, ")
    assert second.startswith(f"{tmp_path / 'a.gif'}: episode e, ")
    assert (tmp_path / "a.svg").read_text(encoding="utf-8") == draw_svg(record)
    assert (tmp_path / "a.gif").read_bytes() == draw_gif(record)
    layout = draw.Layout.with_texts(nodes_of_record(record))
    image = Image.open(tmp_path / "a.png")
    assert image.size == (round(2 * layout.size[0]), round(2 * (layout.size[1] + FOOT_HEIGHT)))
    x, y = layout.places[RIGHT]
    assert image.getpixel((round(2 * x) + 286, round(2 * y) + 92)) == FAILED.rgb


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--gif", "a.gif", "--html", "a.html"], "--html and --gif cannot be combined"),
        (["--gif", "no/a.gif"], "--gif no/a.gif cannot be written"),
        (["--svg", "."], "--svg . is a folder"),
        (["--svg", "a.svg", "--episode", "f"], "holds no such episode 'f'"),
        (["second.jsonl", "--svg", "a.svg"], "2 files need a page"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(
    options: list[str], words: str, record: EpisodeRecord, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("e.jsonl").write_text(write_episode(record), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["selfcest", "trace", "e.jsonl", *options])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert not Path("a.svg").exists()
