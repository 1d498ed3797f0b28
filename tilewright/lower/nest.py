"""Loop nests of element-wise work and reductions to one kernel: maps, pools, row reductions, softmax, norms, relayouts.

A nest walks *outer* loops; at each outer point its nodes run in order, each as its own pass over the *inner* loops (the
reduction loops, absent in a map), or, in a pipeline of rows, each on a row of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.expr.core import Tensor
from tilewright.kernel import dialect as tile
from tilewright.lower.body import argument_types
from tilewright.lower.builder import KernelBuilder
from tilewright.lower.loops import Point, for_each_tile, grid_of
from tilewright.lower.passes import Passes, Scratch
from tilewright.lower.row_pipeline import RowPipeline
from tilewright.lower.steps import Parameter
from tilewright.operator.nest import Nest, NestSchedule, nest_loops


def lower_nest(
    name: str,
    nest: Nest,
    schedule: NestSchedule,
    views: Sequence[tuple[Tensor, int]],
    parameters: Sequence[Parameter] = (),
) -> tile.FuncOp:
    """The kernel of a nest. Its arguments are `views`, tensors with the elements of their storage, and then numbers."""
    loops = nest_loops(nest, schedule)
    func = tile.FuncOp(name, argument_types(views, parameters), grid_of(loops))
    builder = KernelBuilder(func.body.block)
    names = [*(tensor.name for tensor, _ in views), *(parameter.name for parameter in parameters)]
    memory = dict(zip(names, func.body.block.args, strict=True))
    if schedule.stages:
        (loop,) = loops
        RowPipeline(builder, nest, schedule, memory, loop).run()
    else:
        scratch = Scratch(builder, nest, schedule)
        names = [loop.axis.name for loop in loops if loop.axis.name in (schedule.unroll, schedule.vector)]
        swapped = names == [schedule.vector, schedule.unroll]  # a tile has the vector as its last dimension

        def run(point: Point) -> None:
            Passes(builder, nest, schedule, memory, scratch, point.swapped() if swapped else point).run()

        for_each_tile(builder, loops, run)
    builder.insert(tile.ReturnOp())
    return func
