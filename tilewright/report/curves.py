"""Lines on one pair of axes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.report.axes import logarithmic
from tilewright.reproduce.pictures import Curves

if TYPE_CHECKING:
    from matplotlib.figure import SubFigure


def height(picture: Curves) -> float:
    """In inches."""
    return 3.6


def draw(picture: Curves, figure: SubFigure) -> None:
    """Where colours do not suffice, lines are dashed."""
    from cycler import cycler
    from matplotlib import rcParams

    axes = figure.subplots()
    axes.set(xlabel=picture.x, ylabel=picture.y, yscale="log" if picture.logarithmic else "linear")
    axes.set_prop_cycle(cycler(linestyle=["-", "--", ":"]) * rcParams["axes.prop_cycle"])
    for name, points in picture.lines.items():
        drawstyle = "steps-post" if picture.steps else "default"
        axes.plot(*zip(*points, strict=True), linewidth=1, label=name, drawstyle=drawstyle)
    for name, points in picture.marks.items():
        axes.plot(*zip(*points, strict=True), "D", color="black", markersize=4, label=name)
    if picture.diagonal:
        axes.axline((0, 0), slope=1, color="0.4", linewidth=0.8, label=picture.diagonal)
    if picture.logarithmic:
        logarithmic(axes.yaxis, *axes.get_ylim())
    figure.legend(loc="outside right upper")
