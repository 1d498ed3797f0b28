"""Where the loads and stores of a kernel stand: of which statement each one is, at which point of its loops.

Lowering notes it beside the program, which has nothing of it. With the addresses that a run touches it says in which
step of the tile tree each of them is touched (`compiler.counting`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

import numpy as np
from xdsl.ir import Operation, SSAValue

from tilewright.dataclass import dataclass
from tilewright.expr.affine import Affine, affine
from tilewright.expr.core import Axis, Expr

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Whereabouts:
    """The first point of one access: the loops of `statement` in terms of counters, whose values the program has.

    `statement` is the name of a leaf; it is empty where the access gives a sum in memory its first value, or the border
    of a buffer, and where it `copies` values within memory, a read and then the write. Of several loops with one name,
    the last one in `places` counts. Of the elements along a dimension in `bounds` only those before this number are
    points of the loops. `begins` has the points of loops that the first element of the buffer stands for: where the
    block around the access begins, or the tile whose sums the buffer holds.
    """

    statement: str
    places: Mapping[Axis, Expr]
    counters: Mapping[Axis, SSAValue]
    bounds: Mapping[int, SSAValue] = field(default_factory=dict)
    begins: Mapping[Axis, Expr] = field(default_factory=dict)
    copies: bool = False

    def values(self) -> tuple[SSAValue, ...]:
        """The values of the program from which follows which point an access is at."""
        forms = (*self.forms(self.places).values(), *self.forms(self.begins).values())
        counters = (self.counters[axis] for form in forms for axis in form.terms)
        return tuple(dict.fromkeys((*counters, *self.bounds.values())))

    def forms(self, places: Mapping[Axis, Expr]) -> dict[str, Affine]:
        """Places of loops, by name, as affine forms over the counters; points inside a tile are left out.

        Loops that the access does not know are missing.
        """
        found = {}
        for axis, place in places.items():
            form = affine(place)
            if form is not None:
                found[axis.name] = Affine(form.constant, {a: c for a, c in form.terms.items() if a in self.counters})
        return found

    def at(self, forms: Mapping[str, Affine], value: Callable[[SSAValue], Any]) -> dict[str, Any]:
        """The values of the loops, where `value` gives those of the program: numbers, or arrays of several runs."""
        return {
            name: form.constant + sum(factor * value(self.counters[axis]) for axis, factor in form.terms.items())
            for name, form in forms.items()
        }

    def are_points(self, extents: tuple[int, ...], runs: int, value: Callable[[SSAValue], Array]) -> Array:
        """Which elements of an access with these extents are points of the loops, in each of so many runs."""
        found = np.ones((runs, *extents), np.bool_)
        for dim, bound in self.bounds.items():
            along = [-1 if n == dim else 1 for n in range(len(extents))]
            found &= np.arange(extents[dim]).reshape(along) < value(bound).reshape([-1, *[1] * len(extents)])
        return found


@dataclass
class Notes:
    """What lowering notes about one kernel: the whereabouts of its accesses, and what its scratch memory holds.

    `extents` has the elements along each loop of buffers of which accesses say where they begin, outermost first: those
    of a block of a value that is read through windows, and those of the sums of one register tile.
    """

    accesses: dict[Operation, Whereabouts] = field(default_factory=dict)
    buffers: dict[SSAValue, str] = field(default_factory=dict)
    extents: dict[SSAValue, tuple[tuple[str, int], ...]] = field(default_factory=dict)
