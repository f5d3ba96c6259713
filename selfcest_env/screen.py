"""What `render_mode="human"` shows: a window where matplotlib can open one, else printed text."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from selfcest_env.draw import Image

BREATH_S = 0.001  # that a window has after each picture, to be drawn and to hear its buttons


class Screen:
    """Shows one environment to a person. A window that was closed stays closed, and the game goes on."""

    def __init__(self) -> None:
        self._has_looked = False
        self._pyplot = None
        self._figure = None
        self._picture = None

    # Matplotlib is an extra, and without its types here.
    _pyplot: Any
    _figure: Any
    _picture: Any

    def show(self, picture: Callable[[], Image], text: Callable[[bool], str]) -> None:
        """Show how the game stands.

        Args:
            picture: for a window.
            text: to be printed where there is no window; it is told whether a terminal reads it.
        """
        if not self._has_looked:
            self._has_looked = True
            self._pyplot = _pyplot()
        if self._pyplot is None:
            sys.stdout.write(text(sys.stdout.isatty()) + "\n")
        elif self._figure is None:
            self._open(picture())
        elif self._is_open():
            self._picture.set_data(picture())
            self._pyplot.pause(BREATH_S)

    def close(self) -> None:
        """Close the window, if there is one; the next picture opens another."""
        if self._figure is not None:
            self._pyplot.close(self._figure)
        self._figure = self._picture = None

    def _open(self, image: Image) -> None:
        height, width, _ = image.shape
        self._figure = self._pyplot.figure(figsize=(width / 100, height / 100), dpi=100)
        axes = self._figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        self._picture = axes.imshow(image)
        self._figure.show()
        self._pyplot.pause(BREATH_S)

    def _is_open(self) -> bool:
        """Return whether the window is open. A closed window's number is reused, so the figure is compared."""
        number = self._figure.number
        return bool(self._pyplot.fignum_exists(number)) and self._pyplot.figure(number) is self._figure


def _pyplot() -> Any:
    """`matplotlib.pyplot` if it can open a window here, else `None`."""
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return None  # and nothing is imported
    try:
        from matplotlib import pyplot
    except ImportError:
        return None
    probe = pyplot.figure()
    opens = probe.canvas.required_interactive_framework is not None
    pyplot.close(probe)
    return pyplot if opens else None
