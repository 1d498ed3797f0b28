"""Pictures as plain values: what a plot shows, not how it is drawn. Experiments make them, `report` draws them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from tilewright.dataclass import dataclass

Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Scatter:
    """Two measures of the same thing, (x, y) in one unit and positive: a panel per name, logarithmic, with x = y."""

    title: str
    x: str
    y: str
    panels: Mapping[str, Points]


@dataclass(frozen=True)
class Bars:
    """In each series one value per group. `levels` are lines to compare with, by name.

    Bars of `ratios`, which are positive, begin at 1 on a logarithmic axis; others begin at 0.
    """

    title: str
    y: str
    groups: tuple[str, ...]
    series: Mapping[str, tuple[float, ...]]
    levels: Mapping[str, float] = field(default_factory=dict)
    ratios: bool = False


@dataclass(frozen=True)
class Curves:
    """Lines through points, single `marks` beside them, and the `diagonal` that has this name.

    With `steps` a line keeps its value up to the next point. On a `logarithmic` y axis all values are positive.
    """

    title: str
    x: str
    y: str
    lines: Mapping[str, Points]
    marks: Mapping[str, Points] = field(default_factory=dict)
    diagonal: str = ""
    steps: bool = False
    logarithmic: bool = False


Picture = Scatter | Bars | Curves
