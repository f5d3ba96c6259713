"""The output of `render_mode="human"`: a window if matplotlib can open one, else printed text."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from selfcest_env.draw import Image

EVENT_LOOP_S = 0.001  # time for a window to draw each picture and to handle its buttons


class Screen:
    """Shows one environment. A window that the user closes stays closed, and the game continues."""

    def __init__(self) -> None:
        self._has_looked = False
        self._pyplot = None
        self._figure = None
        self._picture = None

    # Matplotlib is an optional dependency, so its types cannot be named here.
    _pyplot: Any
    _figure: Any
    _picture: Any

    def show(self, picture: Callable[[], Image], text: Callable[[bool], str]) -> None:
        """Show the state of the game.

        Args:
            picture: returns the picture for a window.
            text: returns the text to print without a window; its argument tells whether the output is a terminal.
        """
        if not self._has_looked:
            self._has_looked = True
            self._pyplot = _import_pyplot()
        if self._pyplot is None:
            sys.stdout.write(text(sys.stdout.isatty()) + "\n")
        elif self._figure is None:
            self._open(picture())
        elif self._is_open():
            self._picture.set_data(picture())
            self._pyplot.pause(EVENT_LOOP_S)

    def close(self) -> None:
        """Close the window, if there is one. The next picture opens a new one."""
        if self._figure is not None:
            self._pyplot.close(self._figure)
        self._figure = None
        self._picture = None

    def _open(self, image: Image) -> None:
        height, width, _ = image.shape
        self._figure = self._pyplot.figure(figsize=(width / 100, height / 100), dpi=100)
        axes = self._figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        self._picture = axes.imshow(image)
        self._figure.show()
        self._pyplot.pause(EVENT_LOOP_S)

    def _is_open(self) -> bool:
        """Return whether the window is open. A closed window's number is reused, so the figure is compared."""
        number = self._figure.number
        return bool(self._pyplot.fignum_exists(number)) and self._pyplot.figure(number) is self._figure


def _import_pyplot() -> Any:
    """Return `matplotlib.pyplot` if it can open a window here, else `None`."""
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return None  # without the slow import
    try:
        from matplotlib import pyplot
    except ImportError:
        return None
    probe = pyplot.figure()
    opens = probe.canvas.required_interactive_framework is not None
    pyplot.close(probe)
    return pyplot if opens else None
