"""The epilogue of a register tile as a loop over its vectors, some of which are read from scratch memory at a time.

The schedule asks for it where the epilogue needs more registers than the sums of the tile leave. The sums of one tile
pass through scratch memory that stays in the first cache; those that wait in memory for other reasons are read there.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from xdsl.dialects import arith
from xdsl.ir import SSAValue

from tilewright.expr.affine import affine
from tilewright.expr.core import Axis, Const, Expr
from tilewright.expr.dtypes import INDEX
from tilewright.expr.rewrite import substitute
from tilewright.kernel import dialect as tile
from tilewright.lower.body import BodyEmitter
from tilewright.lower.loops import Point, Tiler
from tilewright.lower.output_tile import OutputTile
from tilewright.tiles.loops import SpatialLoop


def finish_in_loop(at: OutputTile, total: SSAValue, step: int) -> None:
    """Store the sums `total` of a tile in scratch memory; then compute and store `step` elements of a row at a time.

    Whole tiles are stored and read, beyond the edges of the loops too.
    """
    builder, dims = at.builder, at.point.dims
    place: Expr = Const(0, INDEX)
    for axis in dims:
        place = place * axis.size + axis
    sums = builder.alloc(at.work.total.name, at.dtype, prod(at.point.extents), at.loops)
    whole = BodyEmitter(builder, {}, {}, _positions(dims), at.point.extents)
    with at.of(at.work.total.name, bounds=at.point.bounds, own=True):
        whole.store(at.shaped(total), sums, place, at.dtype)
    builder.insert(tile.EmptyRegistersOp())
    finish_from(at, sums, place, step, whole=True)


def finish_from(at: OutputTile, sums: SSAValue, place: Expr, step: int, whole: bool = False) -> None:
    """Compute and store results from sums in memory, at a place of each tile point.

    A step has `step` elements of the last dimension, or all where they are fewer. Of a `whole` tile, sums beyond the
    edges of the loops are read too.
    """
    builder = at.builder

    def compute(inner: Point) -> None:
        point = _inside(at, inner)
        places = point.counters, _positions(point.dims), point.extents
        emitter = BodyEmitter(builder, at.memory, *places, point.bounds, branches=at.branches)
        form = affine(substitute(place, inner.replaced))
        assert form is not None, "places in a tile are affine"
        reader = replace(emitter, bounds={}) if whole else emitter
        with at.of(at.work.output.name, bounds=point.bounds if whole else {}):
            read = reader.load_at(sums, builder.affine(form, point.counters), form, at.dtype)
        at.finish_at(point, emitter, read)

    *rows, columns = at.point.dims
    quantum = min(step, columns.size)
    Tiler(builder, []).visit([*map(SpatialLoop, rows), SpatialLoop(columns, quantum)], compute)


def _positions(dims: tuple[Axis, ...]) -> dict[Axis, int]:
    return {axis: position for position, axis in enumerate(dims)}


def _inside(at: OutputTile, inner: Point) -> Point:
    """The point of one step: `inner`, which has places in the tile, in terms of the loops around the tile too."""
    builder, columns = at.builder, len(at.point.dims) - 1
    replaced = {loop: substitute(form, inner.replaced) for loop, form in at.point.replaced.items()}
    bounds: dict[int, SSAValue] = {}
    if columns in at.point.bounds:
        start = affine(inner.replaced[at.point.dims[columns]])
        assert start is not None, "places in a tile are affine"
        passed = builder.affine(start, inner.counters)
        bounds[len(inner.dims) - 1] = builder.insert(arith.SubiOp(at.point.bounds[columns], passed))
    return Point(replaced, {**at.point.counters, **inner.counters}, inner.dims, bounds)
