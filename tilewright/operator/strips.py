"""Maps that write lines side by side which lie far apart where they are read, as copies into panels do.

A copy in the order of the result reads a line of each row, and so a page of memory for each line. A copy in the order
of the source writes a line to each panel. A strip is a few lines of the result, read from as many rows; the next strip
goes on along these rows. Then both sides have few pages, and lines are fetched before they are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.expr import dtypes
from tilewright.expr.affine import Affine, affine
from tilewright.expr.core import Axis, Expr, Read, walk
from tilewright.operator.statements import inner_loops, outer_loops
from tilewright.tiles.kernel import Statement

STRIP_LINES = 4  # lines of a strip: of 1, 4, 8 … 128, the fastest for matrices of 512 to 4096 rows on Zen 3
LONGEST_BYTES = 512  # of a line: long ones are fetched ahead in any order


def strip_loops(statements: Sequence[Statement], vector: Axis) -> tuple[Axis, Axis] | None:
    """In a map: the loop along which lines are written side by side, and the one along which they are read so.

    None where that is one loop, or the lines along the vector are long.
    """
    written = next((each for each in reversed(statements) if each.address is not None), None)
    target = None if written is None else _form(written.address)
    if inner_loops(statements) or written is None or target is None or target.coefficient(vector) != 1:
        return None
    if vector.size * dtypes.size_bytes(written.tensor.dtype) > LONGEST_BYTES:
        return None
    others = [axis for axis in outer_loops(statements) if axis != vector and axis.size > 1]
    beside = _nearest(target, others)
    for read in (node for node in walk(written.body) if isinstance(node, Read) and node.indices):
        source = _form(read.indices[0])
        if beside is None or source is None or source.coefficient(vector) != 1 or not source.coefficient(beside):
            continue
        along = _nearest(source, others)
        if along is not None and along != beside and target.coefficient(along):
            return beside, along
    return None


def _form(index: Expr | None) -> Affine | None:
    return None if index is None else affine(index)


def _nearest(form: Affine, loops: Sequence[Axis]) -> Axis | None:
    """The loop that moves an address least."""
    moving = [axis for axis in loops if form.coefficient(axis)]
    return min(moving, key=lambda axis: abs(form.coefficient(axis)), default=None)
