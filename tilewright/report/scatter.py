"""Points of two measures, one panel per name: on the line they agree, in its order they rank alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.report.axes import logarithmic
from tilewright.reproduce.pictures import Scatter

if TYPE_CHECKING:
    from matplotlib.figure import SubFigure

_COLUMNS = 4
_MARGIN = 1.2  # times the largest, and below the smallest value


def height(picture: Scatter) -> float:
    """In inches."""
    return 0.6 + 2.4 * -(-len(picture.panels) // _COLUMNS)


def draw(picture: Scatter, figure: SubFigure) -> None:
    """Every panel has equal limits on both axes."""
    rows = -(-len(picture.panels) // _COLUMNS)
    grid = figure.subplots(rows, min(_COLUMNS, len(picture.panels)), squeeze=False).flat
    for (name, points), axes in zip(picture.panels.items(), grid, strict=False):
        values = [value for point in points for value in point]
        low, high = min(values) / _MARGIN, max(values) * _MARGIN
        axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), title=name)
        axes.set_box_aspect(1)
        axes.plot(*zip(*points, strict=True), "o", markersize=3, alpha=0.6, markeredgewidth=0)
        axes.axline((low, low), (high, high), color="0.4", linewidth=0.8)
        logarithmic(axes.xaxis, low, high)
        logarithmic(axes.yaxis, low, high)
    for axes in list(grid):
        axes.remove()  # left over in the last row
    figure.supxlabel(picture.x)
    figure.supylabel(picture.y)
