"""Axes that several pictures have."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axis import Axis


def logarithmic(axis: Axis, low: float, high: float) -> None:
    """Label a logarithmic axis from `low` to `high` in plain numbers, few enough to stand beside each other."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    if high / low < 4:
        axis.set_major_locator(MaxNLocator(5, steps=(1, 2, 5, 10)))
    else:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 100 else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
    axis.set_minor_locator(NullLocator())
