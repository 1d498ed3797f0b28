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
from tilewright.lower.loops import for_each_tile, grid_of
from tilewright.lower.passes import Passes, Scratch
from tilewright.lower.row_pipeline import RowPipeline
from tilewright.lower.steps import Parameter
from tilewright.operator.nest import Nest, NestSchedule
from tilewright.operator.tiling import SpatialLoop


def nest_loops(nest: Nest, schedule: NestSchedule) -> list[SpatialLoop]:
    """The outer loops as the schedule tiles them; tile dimensions come last, the unrolled one before the vector."""
    loops = []
    for axis in nest.outer:
        blocks = schedule.blocks.get(axis.name, 1)
        if axis.name == schedule.vector:
            loops.append(SpatialLoop(axis, schedule.vector_extent, blocks, schedule.lanes))
        elif axis.name == schedule.unroll:
            loops.append(SpatialLoop(axis, schedule.unroll_extent, blocks))
        else:
            loops.append(SpatialLoop(axis, 1, blocks))
    order = {schedule.unroll: 1, schedule.vector: 2}
    return sorted(loops, key=lambda loop: order.get(loop.axis.name, 0))


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
        for_each_tile(builder, loops, lambda point: Passes(builder, nest, schedule, memory, scratch, point).run())
    builder.insert(tile.ReturnOp())
    return func
