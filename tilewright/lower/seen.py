"""How far along a loop the points of other loops see, where a mask hides what is behind a bound that follows them.

`expr.hidden` finds the bound in an expression; tiles behind it for all points of a block do not run.
"""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.ir import SSAValue

from tilewright.expr.affine import Affine, affine
from tilewright.expr.core import Axis, Expr
from tilewright.expr.rewrite import substitute
from tilewright.lower.builder import KernelBuilder
from tilewright.lower.loops import Point, TileAxis


def units_seen(builder: KernelBuilder, last: Affine, unit: int, point: Point) -> SSAValue:
    """How many units of so many points hold all that some loop point sees, at least one; `last` is the last one seen.

    There may be more than the loop has. The last block of a loop may have places behind its end, which see no further
    than the last point of the loop does.
    """
    most = builder.index(int(last.bounds()[1]))
    reached = builder.insert(arith.MinSIOp(extreme_at(builder, last, point, largest=True), most))
    reached = builder.insert(arith.MaxSIOp(reached, builder.index(0)))
    return builder.add(builder.insert(arith.DivUIOp(reached, builder.index(unit))), builder.index(1))


def extreme_at(builder: KernelBuilder, form: Affine, point: Point, largest: bool) -> SSAValue:
    """The largest or smallest value of a form over the dimensions of a tile.

    A loop that the point has not reached takes all its places in the block, or in the loop, around it.
    """
    replaced: dict[Axis, Expr] = dict(point.replaced)
    for axis in form.terms:
        if axis in replaced:
            continue
        block = point.blocks.get(axis)
        inside = TileAxis(f"{axis.name}.i", axis.size if block is None else block.loop.quantum)
        replaced[axis] = inside if block is None else block.places(inside)[axis]
    found = affine(substitute(form.expression(), replaced))
    assert found is not None, "what was affine is affine in counters"
    for axis, step in list(found.terms.items()):
        if axis not in point.counters:
            end = max(0, step) if largest else min(0, step)
            found += Affine(end * (axis.size - 1), {axis: -step})
    return builder.affine(found, point.counters)
