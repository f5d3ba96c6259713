"""How figures of studies look: colours of the project, medians with bands, and titles that say the message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from selfcest_env.palette import INK, LINE, MUTED, SERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    Numbers = NDArray[np.float64]

QUARTILES = (25, 75)


def draw_median(axis: Axes, positions: Numbers, curves: Sequence[Numbers], index: int, label: str) -> None:
    """Draw the median of curves, and a band from the lower to the upper quartile.

    Args:
        axis: where to draw.
        positions: along the axis, [positions].
        curves: one for each seed, each [positions].
        index: of the colour.
        label: in the legend.
    """
    colour = SERIES[index].light
    low, high = np.percentile(curves, QUARTILES, axis=0)
    axis.fill_between(positions, low, high, color=colour, alpha=0.15, linewidth=0)
    axis.plot(positions, np.median(curves, axis=0), color=colour, linewidth=1.8, label=label)


def style_axis(axis: Axes, title: str) -> None:
    """Set the title, and a light grid without a frame."""
    axis.set_title(title, fontsize=10, color=INK.light)
    axis.grid(color=LINE.light, linewidth=0.6)
    axis.set_axisbelow(True)
    axis.tick_params(labelsize=9, colors=MUTED.light)
    axis.spines[["top", "right"]].set_visible(False)
