"""Loop nests of element-wise work and reductions to one kernel: maps, pools, row reductions, softmax, norms, relayouts.

A nest walks *outer* loops; at each outer point its passes run in order over the *inner* loops (the reduction loops,
absent in a map), or, in a pipeline of rows, each on a row of its own. The tree says all of it (`row_tree`).
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.expr.core import Tensor
from tilewright.kernel import dialect as tile
from tilewright.lower.body import argument_types
from tilewright.lower.builder import KernelBuilder
from tilewright.lower.loops import Point, Tiler, grid_of
from tilewright.lower.passes import Passes, Scratch
from tilewright.lower.row_pipeline import RowPipeline
from tilewright.lower.row_tree import RowTree
from tilewright.lower.steps import Parameter
from tilewright.lower.whereabouts import Notes
from tilewright.tiles.kernel import Kernel


def lower_nest(
    name: str,
    kernel: Kernel,
    views: Sequence[tuple[Tensor, int]],
    parameters: Sequence[Parameter] = (),
    notes: Notes | None = None,
) -> tile.FuncOp:
    """The kernel of a nest. Its arguments are `views`, tensors with the elements of their storage, and then numbers."""
    tree = RowTree(kernel)
    func = tile.FuncOp(name, argument_types(views, parameters), grid_of(tree.grid))
    builder = KernelBuilder(func.body.block, notes)
    names = [*(tensor.name for tensor, _ in views), *(parameter.name for parameter in parameters)]
    memory = dict(zip(names, func.body.block.args, strict=True))
    if tree.pipelined:
        RowPipeline(builder, tree, memory).run()
    else:
        scratch = Scratch(builder, tree)

        def run(point: Point) -> None:
            Passes(builder, tree, memory, scratch, point if tree.vector_last else point.swapped()).run()

        Tiler(builder, tree.grid).visit(tree.loops, run)
    builder.insert(tile.ReturnOp())
    return func
