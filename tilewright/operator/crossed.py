"""Maps that read along another loop than they write along: squares of elements that are transposed in registers.

A square has as many lines of a cache on each side as a vector has lanes. The next square continues the lines that are
written, or those that are read. On the other side it begins new lines, whose addresses are multiples of the stride.
Multiples of a large power of two share few sets of the first cache. A line that two squares share is then evicted
before the second one needs it, and stores wait for evictions from the same set.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, inf

from tilewright.expr import dtypes
from tilewright.expr.affine import affine
from tilewright.expr.core import Axis, Read, Tensor, walk
from tilewright.machine.description import Cache
from tilewright.operator.statements import inner_loops, outer_loops
from tilewright.tiles.kernel import Statement


def crossed_read(statements: Sequence[Statement], vector: Axis, lanes: int) -> tuple[Axis, Read] | None:
    """In a map: another loop with stride 1 in a read that is strided along the vector, and the read.

    Both loops have at least `lanes` points, so that they make a square to transpose.
    """
    if inner_loops(statements) or vector.size < lanes:
        return None
    for each in statements:
        for read in walk(each.body):
            form = affine(read.indices[0]) if isinstance(read, Read) and read.indices else None
            if form is None or form.coefficient(vector) in (0, 1):
                continue
            for axis in outer_loops(statements):
                if axis != vector and form.coefficient(axis) == 1 and axis.size >= lanes:
                    assert isinstance(read, Read)
                    return axis, read
    return None


def interleaved_loop(statements: Sequence[Statement], vector: Axis, lanes: int) -> Axis | None:
    """In a map: the loop whose points are written between those of the vector's loop, all of them side by side.

    It has two, four or eight points, fewer than a vector has lanes.
    """
    written = next((each for each in reversed(statements) if each.address is not None), None)
    target = None if written is None or written.address is None else affine(written.address)
    if inner_loops(statements) or target is None or target.coefficient(vector) not in (2, 4, 8):
        return None
    count = target.coefficient(vector)
    between = (axis for axis in outer_loops(statements) if target.coefficient(axis) == 1 and axis.size == count)
    return next(between, None) if count < lanes else None


def order_of_squares(
    statements: Sequence[Statement], vector: Axis, crossed: Axis, read: Read, cache: Cache
) -> tuple[str, ...]:
    """The outer loops, outermost first, if squares should follow the lines that are read; else none.

    They do where lines that are read lie in fewer sets of `cache` than lines that are written.
    """
    written = next((each for each in statements if each.address is not None), None)
    source, target = affine(read.indices[0]), affine(written.address) if written and written.address else None
    if written is None or source is None or target is None:
        return ()
    read_sets = _sets(source.coefficient(vector), read.tensor, cache)
    if read_sets >= _sets(target.coefficient(crossed), written.tensor, cache):
        return ()
    # A loop that the read does not depend on stays outside.
    steps = {axis: abs(source.coefficient(axis)) or inf for axis in outer_loops(statements)}
    return tuple(axis.name for axis in sorted(steps, key=lambda axis: -steps[axis]))


def _sets(stride: int, tensor: Tensor, cache: Cache) -> int:
    """In how many sets of a cache addresses lie that are multiples of `stride` elements apart."""
    lines, rest = divmod(abs(stride) * dtypes.size_bytes(tensor.dtype), cache.line_bytes)
    return cache.sets if rest or not lines else cache.sets // gcd(cache.sets, lines)
