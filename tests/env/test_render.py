"""The tree as text and as a picture."""

from __future__ import annotations

import dataclasses
import sys

import numpy as np
import pytest
from text_play import LIMITS, Sums, call, make, play

from selfcest_env import delegation_v0
from selfcest_env.counterfactual import replay_turns
from selfcest_env.draw import HEIGHT, WIDTH, Layout, draw
from selfcest_env.palette import ANSWERED, FAILED, PAGE, READY, SPENT, STATUS, SURFACE, WAITING
from selfcest_env.render import (
    Node,
    nodes_of_kernel,
    nodes_of_part,
    nodes_of_record,
    render_kernel,
    render_record,
    shorten,
)
from selfcest_env.strokes import _LETTERS, draw_text
from selfcest_env.types import ROOT, AgentId, Limits, Status, Task

TASK = Task("one", "What is 2 + 3?", "5", "test")


def start(**kwargs: str) -> delegation_v0.parallel_env:
    env = make(**kwargs)
    env.reset(seed=0, options={"task": TASK})
    env.step({"agent_0": call("part A", {"objective": "part B", "max_tokens": 3}, "part C")})
    return env


def test_a_running_game_is_shown_with_its_names() -> None:
    env = start(render_mode="ansi")
    env.step({"agent_1": "Answer: 2"})
    text = env.render()
    assert isinstance(text, str)
    assert [line.split("  ")[0] for line in text.splitlines() if "agent_" in line] == [
        "agent_0",
        "├─ agent_1",
        "└─ agent_2",
    ]
    lines = text.splitlines()
    assert lines[0] == 'task one from test: "What is 2 + 3?"'
    assert lines[1].startswith("agent_0  waiting  ")
    assert lines[1].endswith("/4000 tokens")
    assert "2 born, objective 2 refused: prompt_too_long" in lines[2]
    assert '"part A"' in lines[4]
    assert '"2"' in lines[6]


def test_what_a_turn_adds_stands_below_it_and_weights_in_the_sum() -> None:
    env = start()
    env.step({"agent_1": "Answer: 2", "agent_2": "Answer: 3"})
    env.step({"agent_0": "Answer: 5"})
    record = env.record()
    judged = dataclasses.replace(
        record,
        reward_terms={**(record.reward_terms or {}), "judged": 0.5},
        by_turn={"judged": {ROOT: tuple(0.5 * (turn == 0) for turn in range(len(record.root.turns)))}},
        weights={"judged": 0.5},
    )
    whole = render_record(judged, texts=True).splitlines()
    assert [line.strip(" │├─└") for line in whole if "adds" in line] == ["adds 0.5 judged"]
    assert "turn 0" in whole[next(i for i, line in enumerate(whole) if "adds" in line) - 1]
    assert whole[-1] == "reward: 1.25 = 1 exact_match + 0.5 x 0.5 judged"
    assert "adds" not in render_record(judged)


def test_a_record_is_shown_with_cost_and_reward() -> None:
    env = start()
    env.step({"agent_1": "Answer: 2", "agent_2": "Answer: 3"})
    env.step({"agent_0": "Answer: 5"})
    record, game = env.record(), env._game
    assert game is not None
    assert nodes_of_record(record) == nodes_of_kernel(game.kernel)
    shown, running = render_record(record).splitlines(), render_kernel(game.kernel).splitlines()
    assert shown[:-2] == running
    assert shown[-2].startswith(f"cost: {record.cost.total_tokens} tokens (")
    assert shown[-1] == "reward: 1 = 1 exact_match"
    spent = [node.spent for node in nodes_of_record(record)]
    assert sum(spent) == record.cost.total_tokens


@pytest.mark.parametrize("seed", range(12))
def test_a_record_and_its_game_look_alike(seed: int) -> None:
    env = make()
    record = play(env, seed)
    assert env._game is not None
    assert nodes_of_record(record) == nodes_of_kernel(env._game.kernel)


@pytest.mark.parametrize("late", [0, -1])
def test_a_record_tells_how_every_moment_of_its_game_looked(late: int) -> None:
    moments = 0
    for seed in range(10):
        env = make()
        record = play(env, seed)
        assert env._game is not None
        for kernel in replay_turns(record, env._game.kernel.rules, lambda kernel: kernel.ready()[late]):
            played = {agent_id: len(state.turns) for agent_id, state in kernel.agents.items()}
            assert nodes_of_part(record, played) == nodes_of_kernel(kernel)
            moments += 1
    assert moments > 40
    assert [node.agent_id for node in nodes_of_part(record, {})] == [ROOT]


def test_an_unscored_record_says_so() -> None:
    env = start()
    game = env._game
    assert game is not None
    env.step({"agent_1": "Answer: 2", "agent_2": "Answer: 3"})
    env.step({"agent_0": "Answer: 5"})
    assert render_record(game.record()).endswith("reward: not scored")


def test_texts_stand_whole_below_their_turns() -> None:
    env = make()
    task = Task("one", "Sum?", "5", "test", context={"a": "two\nand \x1b[31mthree", "b": "unseen"})
    env.reset(seed=0, options={"task": task})
    asked = call(f"add {'x' * 100}", shared=["a"])
    env.step({"agent_0": asked})
    env.step({"agent_1": "2 + 3\nAnswer: 5"})
    env.step({"agent_0": "Answer: 5"})
    record = env.record()
    plain, whole = render_record(record).splitlines(), render_record(record, texts=True).splitlines()
    added = [line.strip("│ ") for line in whole if line not in plain]
    assert added == [
        'truth "5"',
        f"> {asked}",
        "> Answer: 5",
        f'asked "add {"x" * 100}"',
        "given a: two and [31mthree",
        "> 2 + 3",
        "> Answer: 5",
    ]
    assert len(whole) == len(plain) + 6  # what was asked stands there in both, shortened or whole
    assert "unseen" not in "".join(whole)
    unknown = dataclasses.replace(record, task=dataclasses.replace(task, answer=""))
    assert "truth" not in render_record(unknown, texts=True)


def test_what_is_left_out_is_said_and_nothing_reaches_the_terminal() -> None:
    assert shorten("a\nb\t  c") == '"a b c"'
    assert shorten("x" * 70, 60) == f'"{"x" * 60}…" (+10 characters)'
    assert shorten("\x1b[31mred\x00\ud800") == '"[31mred"'
    env = make(render_mode="human")
    env.reset(seed=0, options={"task": Task("\x1b[2J", "hi \x1b[31m\ud800", "5", "evil\n")})
    text = render_kernel(env._game.kernel) if env._game else ""
    assert "\x1b" not in text
    assert text.encode()
    assert env.render() is None


def test_in_a_terminal_humans_see_the_colours_and_marks_of_every_picture(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start(render_mode="human")
    plain = capsys.readouterr().out.partition("\n\n")[0]
    assert "\x1b" not in plain
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    start(render_mode="human")
    shown = capsys.readouterr().out
    red, green, blue = WAITING.rgb
    assert f";48;2;{red};{green};{blue}m … \x1b[0m agent_0  waiting" in shown
    ends = [[line.rpartition("agent_")[2] for line in text.splitlines() if "agent_" in line] for text in (shown, plain)]
    assert ends[0] == ends[1]


def test_no_mode_renders_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert start().render() is None
    assert capsys.readouterr().out == ""


def test_the_picture_has_a_box_in_the_colour_of_every_state() -> None:
    env = start(render_mode="rgb_array")
    env.step({"agent_1": "Answer: 2"})
    image = env.render()
    assert isinstance(image, np.ndarray)
    assert image.shape == (HEIGHT, WIDTH, 3)
    assert image.dtype == np.uint8

    def seen(colour: tuple[int, int, int]) -> int:
        return int((image == colour).all(axis=2).sum())

    assert all(seen(STATUS[status].rgb) > 100 for status in (Status.WAITING, Status.ANSWERED, Status.READY))
    assert seen(FAILED.rgb) == 0
    assert seen(PAGE.rgb) > image.shape[0] * image.shape[1] // 2
    assert not np.shares_memory(image, env.render())


@pytest.mark.parametrize("clones", [1, 40, pytest.param(300, marks=pytest.mark.slow)])
def test_a_wide_tree_still_fits(clones: int) -> None:
    limits = Limits(total_tokens=10**7, max_clones=clones, max_clones_per_call=None, turn_tokens=None)
    env = delegation_v0.parallel_env(task_source=Sums(), limits=limits, render_mode="rgb_array", max_chars=10**5)
    env.reset(seed=0)
    env.step({"agent_0": call(*["a"] * clones)})
    assert len(env.agents) == 1 + clones
    image = env.render()
    assert isinstance(image, np.ndarray)
    assert image.shape == (HEIGHT, WIDTH, 3)


def test_a_deep_tree_still_fits() -> None:
    env = delegation_v0.parallel_env(
        task_source=Sums(),
        limits=Limits(total_tokens=10**6, max_clones=60, max_depth=None),
        render_mode="rgb_array",
    )
    env.reset(seed=0)
    for depth in range(60):
        env.step({f"agent_{depth}": call("deeper")})
    assert env._game is not None
    assert max(agent.depth for agent in env._game.kernel.agents) == 60
    image = env.render()
    assert isinstance(image, np.ndarray)
    assert image.shape == (HEIGHT, WIDTH, 3)
    assert "agent_60" in render_kernel(env._game.kernel, env._game.roster.name_of)


def node(agent_id: AgentId, status: Status, spent: int) -> Node:
    return Node(agent_id, "", status, 100, spent, (), None)


def test_a_box_has_its_state_s_colour_and_its_bar_the_share_that_is_spent() -> None:
    left, right = ROOT.child(0), ROOT.child(1)
    nodes = [
        node(ROOT, Status.WAITING, 0),
        node(left, Status.ANSWERED, 50),
        node(right, Status.OUT_OF_TURNS, 100),
    ]
    image, layout = draw(nodes, str), Layout.fitted(nodes)
    (width, height), unit = layout.box, layout.unit
    assert unit == 1.5, "three boxes fit at the largest size: 156 x 75"
    assert (width, height) == (156, 75)

    def at(agent_id: AgentId, across: float, down: float) -> tuple[int, ...]:
        x, y = layout.places[agent_id]
        return tuple(int(value) for value in image[int(y + down * height), int(x + across * width)])

    colours = {ROOT: WAITING, left: ANSWERED, right: FAILED}
    assert {agent_id: at(agent_id, 0.5, 0.7) for agent_id in colours} == {a: tone.rgb for a, tone in colours.items()}
    assert at(ROOT, -0.1, 0.5) == PAGE.rgb
    bar = 43 / 50  # the bar is 4 of 50 high and begins at 41
    assert at(ROOT, 0.2, bar) == SURFACE.rgb
    assert (at(left, 0.2, bar), at(left, 0.8, bar)) == (SPENT.rgb, SURFACE.rgb)
    assert at(right, 0.85, bar) == SPENT.rgb
    assert at(ROOT, 0.01, 0.02) == PAGE.rgb, "the root's corners are the roundest"
    grown = draw([dataclasses.replace(nodes[0], status=Status.READY)], str)
    assert (grown[HEIGHT // 2 + 15, WIDTH // 2] == READY.rgb).all(), "a root alone stands in the middle"


def test_letters_differ_and_grow_with_their_size() -> None:
    masks = {letter: draw_text(letter, 40)[0] for letter in _LETTERS}
    shapes = {(mask.shape, mask.tobytes()) for mask in masks.values()}
    assert len(shapes) == len(masks)
    assert not masks[" "].any()
    assert all(mask.max() == 1 for letter, mask in masks.items() if letter != " ")
    assert draw_text("0", 40)[0].sum() > 3 * draw_text("0", 20)[0].sum()
    assert draw_text("0", 40, bold=True)[0].sum() > draw_text("0", 40)[0].sum()
    assert np.array_equal(draw_text("0\x00", 40)[0], draw_text("0 ", 40)[0])


def test_every_agent_is_drawn_in_another_place() -> None:
    env = make(limits=LIMITS)
    play(env, 3)
    assert env._game is not None
    nodes = nodes_of_kernel(env._game.kernel)
    image = draw(nodes, str)
    fewer = draw(nodes[:1], str)
    assert not np.array_equal(image, fewer) or len(nodes) == 1
