"""Bars in groups, one colour per series."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.report.axes import logarithmic
from tilewright.reproduce.pictures import Bars

if TYPE_CHECKING:
    from matplotlib.figure import SubFigure

_FILLED = 0.8  # of the room of a group


def height(picture: Bars) -> float:
    """In inches."""
    return 3.0


def draw(picture: Bars, figure: SubFigure) -> None:
    """Names of levels stand beside the axes, at their lines."""
    axes = figure.subplots()
    axes.set(ylabel=picture.y, yscale="log" if picture.ratios else "linear")
    base = 1.0 if picture.ratios else 0.0
    width = _FILLED / len(picture.series)
    for number, (name, values) in enumerate(picture.series.items()):
        offset = (number - (len(picture.series) - 1) / 2) * width
        places = [group + offset for group in range(len(picture.groups))]
        axes.bar(places, [value - base for value in values], width, base, label=name)
    if picture.ratios:
        axes.axhline(1.0, color="black", linewidth=0.8)
        logarithmic(axes.yaxis, *axes.get_ylim())
    for name, level in picture.levels.items():
        axes.axhline(level, color="0.3", linewidth=0.8, linestyle="--")
        axes.annotate(name, (1.0, level), (4, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
                      va="center", annotation_clip=False)  # fmt: skip
    axes.set_xticks(range(len(picture.groups)), picture.groups)
    axes.grid(visible=False, axis="x")
    if len(picture.series) > 1:
        figure.legend(loc="outside right upper")
