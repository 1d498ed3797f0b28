"""Products of matrices by groups of rows, columns or contracted elements that are data."""

from __future__ import annotations

from tilewright.errors import ExtentMismatch
from tilewright.expr import dtypes
from tilewright.expr.core import Axis, Const, Expr, Tensor, const, select, static_shape
from tilewright.expr.dtypes import INDEX, DTypeLike
from tilewright.expr.ops.arguments import operator
from tilewright.expr.ops.counting import search_sorted
from tilewright.expr.ops.elementwise import clamp
from tilewright.expr.ops.nodes import contract, require_equal, require_rank
from tilewright.expr.ops.shape import iota


@operator
def grouped_matmul(
    x: Tensor, w: Tensor, ends: Tensor, *, out_dtype: DTypeLike | None = None, name: str = "grouped_matmul"
) -> Tensor:
    """One product per group, of which ``ends[g]`` is the end (the begin is the end before, or 0), along one of three:

    - rows: x [m, k] with w [g, k, n] is [m, n]; row i is multiplied by the matrix of its group
    - columns: x [g, m, k] with w [k, n] is [m, n]; column j likewise
    - the contracted dimension: x [m, k] with w [k, n] is [g, m, n]; each group sums over its part of k

    Rows and columns behind the last end belong to the last group.
    """
    b = x.builder
    require_rank(x, (2, 3), "a matrix, or one per group", where=name)
    require_rank(w, (2, 3), "a matrix, or one per group", where=name)
    require_rank(ends, 1, "the end of each group", where=name)
    require_equal(x.shape[-1], w.shape[-2], f"{x} and {w} contract different extents", where=name, help="equal ones")
    groups, (m, k, n) = static_shape(ends.shape)[0], static_shape((*x.shape[-2:], w.shape[-1]))
    if x.rank == w.rank == 3 or any(t.rank == 3 and t.shape[0] != groups for t in (x, w)) or not groups:
        raise ExtentMismatch(f"{groups} groups of {x} and {w}", where=name, help="one matrix per group on one side")
    i, j, r = Axis("i", m), Axis("j", n), Axis("k", k)
    if x.rank == w.rank:
        g = Axis("g", groups)
        begin = select(g > 0, ends[clamp(g - 1, 0, groups - 1)].cast(INDEX), const(0, INDEX))
        inside = (r >= begin) & (r < ends[g].cast(INDEX))
        factor: Expr = select(inside, x[i, r], Const(0, x.dtype))
        return contract(b, [g, i, j], [factor, w[r, j]], [r], accumulate=None, out_dtype=out_dtype, name=name)
    along = i if w.rank == 3 else j
    places = iota(b, along.size, dtype=ends.dtype, name=f"{name}.places")
    group = search_sorted(ends, places, right=True, dtype=dtypes.INDEX, name=f"{name}.group")
    mine = clamp(group[along], 0, groups - 1)
    factors: list[Expr] = [x[i, r], w[mine, r, j]] if w.rank == 3 else [x[mine, i, r], w[r, j]]
    return contract(b, [i, j], factors, [r], accumulate=None, out_dtype=out_dtype, name=name)
