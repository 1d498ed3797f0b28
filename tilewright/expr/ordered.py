"""Ordered accumulations: a compute whose reduction loops give a whole dimension of the result, not one element of it.

They are the third kind of `Compute`, beside maps and reductions, and each takes linear or n log n time:

*Prefix scan*. ``out[i, j] = combine of body(i, k) for k <= j``; `exclusive` leaves out k = j, `reverse` takes k >= j.
*Sort*. ``out[i, j]`` is the k of the element ``body(i, k)`` that stands at place j when the elements over k are sorted.
Equal elements keep their order, -0 equals 0, and NaN is larger than any number. The result may be shorter than k.
*Scatter*. The body is ``scatter(initial(i, f), value(k, f), place(k, f))``: the result begins as `initial`; then, in
the order of the reduction loops, ``out[place, f]`` becomes `value`, or is combined with it. There is one place per
dimension in `dims`. An update with a place outside of its dimension is left out.

`dim` and `dims` count dimensions of the result; the loops of these are not used in what depends on reduction loops.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.dataclass import dataclass

SCATTER = "scatter"
"""The function at the top of a scatter's body, and only there."""


@dataclass(frozen=True, slots=True)
class PrefixScan:
    """`combine` is sum, prod, max or min."""

    dim: int
    combine: str
    exclusive: bool = False
    reverse: bool = False


@dataclass(frozen=True, slots=True)
class Sort:
    """Positions in sorted order, i64."""

    dim: int
    descending: bool = False


@dataclass(frozen=True, slots=True)
class Scatter:
    """`combine` is sum, prod, max or min, or empty: an update replaces the element, and the last one stays."""

    dims: tuple[int, ...]
    combine: str = ""


Ordered = PrefixScan | Sort | Scatter


def behind(accum: str | Ordered | None, dims: int) -> str | Ordered | None:
    """The accumulation of a result that has so many dimensions more, in front."""
    if isinstance(accum, Scatter):
        return replace(accum, dims=tuple(dim + dims for dim in accum.dims))
    return replace(accum, dim=accum.dim + dims) if isinstance(accum, PrefixScan | Sort) else accum
