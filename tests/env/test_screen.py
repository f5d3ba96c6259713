"""What "human" shows: a window of matplotlib's where one can open, and printed text elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from selfcest_env import screen
from selfcest_env.delegation_v0 import parallel_env
from selfcest_env.palette import PAGE

ASK = {"agent_0": "Answer: 42"}


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Matplotlib with a backend that says it opens windows, and draws in memory."""
    from matplotlib import pyplot
    from matplotlib.backends.backend_agg import FigureCanvasAgg, FigureManagerBase

    class Canvas(FigureCanvasAgg):
        required_interactive_framework = "headless"  # which every machine has

    class Manager(FigureManagerBase):
        def show(self) -> None:
            pass

    Canvas.manager_class = Manager  # type: ignore[assignment]
    backend = ModuleType("window_in_memory")
    backend.FigureCanvas, backend.FigureManager = Canvas, Manager  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "window_in_memory", backend)
    monkeypatch.setenv("DISPLAY", ":0")
    before = pyplot.get_backend()
    pyplot.switch_backend("module://window_in_memory")
    yield pyplot
    pyplot.close("all")
    pyplot.switch_backend(before)


def test_a_window_shows_the_picture_after_every_step(windows: Any, capsys: pytest.CaptureFixture[str]) -> None:
    env, other = (parallel_env("arithmetic", render_mode=mode) for mode in ("human", "rgb_array"))
    for one in (env, other):
        one.reset(seed=42)
    (number,) = windows.get_fignums()
    (axes,) = windows.figure(number).axes
    (picture,) = axes.images
    assert np.array_equal(picture.get_array(), other.render())
    for one in (env, other):
        one.step(ASK)
    assert np.array_equal(picture.get_array(), other.render())
    assert (other.render()[0, 0] == PAGE.rgb).all()
    assert windows.get_fignums() == [number], "one window an environment"
    assert env.render() is None
    assert capsys.readouterr().out == ""
    env.close()
    assert windows.get_fignums() == []


def test_a_window_that_was_closed_stays_closed(windows: Any, capsys: pytest.CaptureFixture[str]) -> None:
    env = parallel_env("arithmetic", render_mode="human")
    env.reset(seed=42)
    windows.close("all")
    env.step(ASK)
    assert windows.get_fignums() == []
    assert env.team_return is not None
    assert capsys.readouterr().out == ""


def test_every_environment_has_a_window_of_its_own(windows: Any) -> None:
    first, second = (parallel_env("arithmetic", render_mode="human") for _ in range(2))
    first.reset(seed=42)
    shown = windows.figure(windows.get_fignums()[0])
    second.reset(seed=43)
    assert len(windows.get_fignums()) == 2
    picture = shown.axes[0].images[0]
    before = picture.get_array().copy()
    first.step(ASK)
    assert not np.array_equal(picture.get_array(), before), "the second opened and the first goes on"
    # The number of the one that was closed is the next one's, whose window stays when the first is done.
    windows.close(shown)
    third = parallel_env("arithmetic", render_mode="human")
    third.reset(seed=44)
    others = windows.get_fignums()
    first.step(ASK)
    first.close()
    assert windows.get_fignums() == others
    for env in (second, third):
        env.close()
    assert windows.get_fignums() == []


def test_without_a_window_it_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """No display; one, and a backend that draws files alone; one, and no matplotlib."""
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert screen._import_pyplot() is None
    from matplotlib import pyplot

    monkeypatch.setenv("DISPLAY", ":0")
    pyplot.switch_backend("agg")
    assert screen._import_pyplot() is None
    assert pyplot.get_fignums() == []
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    env = parallel_env("arithmetic", render_mode="human")
    env.reset(seed=42)
    env.step(ASK)
    assert capsys.readouterr().out.count("agent_0") == 2, "after the reset and after the step"
