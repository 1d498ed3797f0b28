"""How searches converge: the best so far over the evaluations or the seconds that it took, as a picture."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.errors import InvalidArgument
from tilewright.reproduce.pictures import Curves
from tilewright.search.trace import Trace


def convergence(
    traces: Mapping[str, Trace], title: str = "convergence", *, seconds: bool = False, unit: str = "seconds"
) -> Curves:
    """One line per trace, by its name in the legend: the best so far over evaluations, or with `seconds` over time.

    `unit` is that of the values of the cost.

    Raises InvalidArgument where a trace has no valid point, or one of value 0, which no logarithm shows.
    """
    lines = {}
    for name, trace in traces.items():
        curve = trace.curve()
        if not curve or curve[-1][2] <= 0:
            fact = "has no valid point" if not curve else "has a point of value 0"
            raise InvalidArgument(f"the trace {name!r} {fact}", where="traces", help="leave it out")
        lines[name] = tuple((time if seconds else float(number), best) for number, time, best in curve)
    x = "seconds since the search began" if seconds else "evaluations"
    return Curves(title, x, f"best so far, in {unit}", lines, steps=True, logarithmic=True)
