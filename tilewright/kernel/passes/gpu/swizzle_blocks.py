"""The order in which blocks walk over a result: groups of rows of blocks, so that they find operands in the cache."""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from tilewright.dataclass import dataclass
from tilewright.kernel.circular_buffer import StagedDotOp
from tilewright.kernel.dialect import INDEX, DotOp, FuncOp, ProgramIdOp, operations
from tilewright.kernel.passes.common.settings import at_least
from tilewright.kernel.rewrite import insert_before, uniform


@dataclass(frozen=True)
class SwizzleBlocksPass(ModulePass):
    """Number the blocks of the last two axes of a grid anew: `group` rows of blocks go column by column.

    Before:  %m = tile.program_id 0   %n = tile.program_id 1
    After:   %id = %m * N + %n        %g = %id / (group * N)   rows = min(group, M - %g * group)
             %m = %g * group + (%id mod (group * N)) mod rows  %n = (%id mod (group * N)) / rows
    Legal for any grid, as the numbers are the same in another order; blocks run in any order anyway. For kernels with
    products, which read a row of A's tiles and a column of B's; one that reads only %id has an order of its own. Comes
    before `assign-layouts`.
    """

    name = "swizzle-blocks"
    group: int = 8

    def __post_init__(self) -> None:
        at_least(1, self, "group")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.body.ops:
            if isinstance(kernel, FuncOp) and not kernel.block and self.group > 1:
                ops = operations(kernel.body)
                wide = len(kernel.extents) > 1 and min(kernel.extents[-2:]) > 1
                if wide and any(isinstance(each, DotOp | StagedDotOp) for each in ops):
                    ids = [each for each in ops if isinstance(each, ProgramIdOp)]
                    if not _is_numbered(kernel, ids):
                        _renumber(kernel, ids, self.group)


def ordered(number: int, rows: int, columns: int, group: int) -> tuple[int, int]:
    """Row and column of the block with this number, in a grid of `rows` x `columns`.

    >>> [ordered(number, 12, 5, 8) for number in (0, 7, 8, 39, 40, 43, 44, 59)]
    [(0, 0), (7, 0), (0, 1), (7, 4), (8, 0), (11, 0), (8, 1), (11, 4)]
    """
    first = number // (group * columns) * group
    height, inside = min(group, rows - first), number % (group * columns)
    return first + inside % height, inside // height


def _is_numbered(kernel: FuncOp, ids: list[ProgramIdOp]) -> bool:
    """Whether a kernel reads the coordinates of its block along the last two axes only as one number."""
    row, columns = len(kernel.extents) - 2, kernel.extents[-1]
    read = [(use.operation, op.axis.value.data - row) for op in ids for use in op.result.uses]
    wholes = {user for user, axis in read if axis == 1}
    lines = {user for user, axis in read if axis == 0}
    if not wholes or not lines:
        return False
    below = {use.operation for line in lines for result in line.results for use in result.uses}
    lines_are = all(isinstance(line, arith.MuliOp) and columns in map(uniform, line.operands) for line in lines)
    return lines_are and below == wholes and all(isinstance(whole, arith.AddiOp) for whole in wholes)


def _renumber(kernel: FuncOp, ids: list[ProgramIdOp], group: int) -> None:
    axes = len(kernel.extents) - 2, len(kernel.extents) - 1
    (rows, columns), start = kernel.extents[-2:], kernel.body.block.first_op
    assert start is not None

    def add(op: Operation) -> SSAValue:
        insert_before(start, op)
        return op.results[0]

    def number(value: int) -> SSAValue:
        return add(arith.ConstantOp(IntegerAttr(value, INDEX)))

    own = [add(ProgramIdOp(axis)) for axis in axes]
    place = add(arith.AddiOp(add(arith.MuliOp(own[0], number(columns))), own[1]))
    size = number(group * columns)
    first = add(arith.MuliOp(add(arith.DivUIOp(place, size)), number(group)))
    height = number(group)
    if rows % group:
        height = add(arith.MinUIOp(height, add(arith.SubiOp(number(rows), first))))
    inside = add(arith.RemUIOp(place, size))
    row = add(arith.AddiOp(first, add(arith.RemUIOp(inside, height))))
    column = add(arith.DivUIOp(inside, height))
    for op in ids:
        if op.axis.value.data in axes:
            op.result.replace_all_uses_with((row, column)[axes.index(op.axis.value.data)])
