"""Products that four warps were to compute together, by one warp each where their operands did not become boxes."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, i64
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidProgram
from tilewright.kernel.attributes import set_warps, warps_of
from tilewright.kernel.circular_buffer import StagedDotOp
from tilewright.kernel.dialect import (
    I1,
    INDEX,
    BroadcastOp,
    CompareOp,
    DotOp,
    FuncOp,
    IotaOp,
    LoadBoxOp,
    LoadOp,
    SelectOp,
    operations,
    shape,
)
from tilewright.kernel.passes.hopper.linear_form import largest, linear_form
from tilewright.kernel.records import (
    alike,
    extents_of_record,
    fragments_record,
    is_of_four_warps,
    record_of,
    registry_of,
)
from tilewright.kernel.rewrite import insert_before, replace

if TYPE_CHECKING:
    from tilewright.intrinsics.intrinsic import Intrinsic

ROWS, COLUMNS = 16, 8  # of a product of one warp


@dataclass(frozen=True)
class WarpProductsPass(ModulePass):
    """Let single warps compute what `tensor-copies` left to groups of four, and share the tile among them anew.

    Before:  %d = tile.dot "wgmma_m64n256k16_f16_f32" %a, %b, %c     in a kernel with warps [8, 1]
    After:   %d = tile.dot "mma_m16n8k16_f16_f32" %a, %b, %c         in a kernel with warps [2, 4]
    Legal everywhere. Parts of warps are as square as can be, and warps do not get fewer. Afterwards products of four
    warps have their operands in circular buffers, and no load is of a box.
    """

    name = "warp-products"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.body.ops:
            if isinstance(kernel, FuncOp) and not kernel.block:
                for load in [each for each in operations(kernel.body) if isinstance(each, LoadBoxOp)]:
                    _load_by_threads(load)
                ops = operations(kernel.body)
                alone = [each for each in ops if isinstance(each, DotOp) and _is_of_four_warps(each)]
                for dot in alone:
                    dot.intrinsic = StringAttr(_of_one_warp(dot).name)
                given = warps_of(kernel)
                if alone and given is not None and not any(isinstance(each, StagedDotOp) for each in ops):
                    m, n = shape(alone[0].c)
                    set_warps(kernel, distributed(m, n, prod(given)))


def _load_by_threads(load: LoadBoxOp) -> None:
    """Replace a load of a box that nothing copies by one with bounds, and a mask where coordinates may be negative."""
    (extents, strides), sides = load.tensor, shape(load.result)

    def add(op: Operation) -> SSAValue:
        insert_before(load, op)
        return op.results[0]

    def number(value: int) -> SSAValue:
        return add(arith.ConstantOp(IntegerAttr(value, INDEX)))

    offset, bounds, mask, some = number(0), [], None, add(arith.ConstantOp(IntegerAttr(1, I1)))
    for dim, (first, extent, stride, side) in enumerate(zip(load.coordinates, extents, strides, sides, strict=True)):
        offset = add(arith.AddiOp(offset, add(arith.MuliOp(first, number(stride)))))
        bounds.append(add(arith.SubiOp(number(extent), first)))
        form = linear_form(first)
        if form.constant >= 0 and largest(form) is not None:
            continue
        last = add(arith.AddiOp(first, number(side)))
        some = add(arith.AndIOp(some, add(CompareOp("gt", last, number(0)))))
        some = add(arith.AndIOp(some, add(CompareOp("lt", first, number(extent)))))
        start = add(BroadcastOp(add(arith.IndexCastOp(first, i64)), sides))
        places = add(arith.AddiOp(start, add(IotaOp(sides, dim))))
        zero = add(BroadcastOp(add(arith.ConstantOp(IntegerAttr(0, i64))), sides))
        inside = add(CompareOp("ge", places, zero))
        mask = inside if mask is None else add(arith.AndIOp(mask, inside))
    if mask is not None:  # a load of no element is at a place inside the view
        offset = add(SelectOp(some, offset, number(0)))
    replace(load, LoadOp(load.view, offset, sides, strides, bounds, mask))


def _is_of_four_warps(dot: DotOp) -> bool:
    record = fragments_record(dot)
    return record is not None and is_of_four_warps(record)


def _of_one_warp(dot: DotOp) -> Intrinsic:
    """The record of one warp that multiplies as four warps do; both read 32 bytes of k at a time.

    Raises InvalidProgram where there is none.
    """
    record = record_of(dot)
    _, _, k = extents_of_record(record)
    found = alike(record, registry_of(dot), "warp32", (ROWS, COLUMNS, k))
    if found is None:
        message = f"operands of {record.name} are not boxes, and no record of one warp multiplies its types"
        raise InvalidProgram(message, help=f"a record of {ROWS}x{COLUMNS}x{k} for one warp")
    return found


def distributed(m: int, n: int, warps: int) -> tuple[int, int]:
    """Warps along m and n of a tile, such that each has a part of it that is as square as can be.

    >>> distributed(128, 256, 8), distributed(64, 8, 4), distributed(16, 8, 4)
    ((2, 4), (4, 1), (4, 1))
    """
    grids = [(1 << bit, warps >> bit) for bit in range(warps.bit_length()) if warps >> bit << bit == warps]
    whole = [grid for grid in grids if m // grid[0] >= ROWS and n // grid[1] >= COLUMNS]
    return min(whole or [(warps, 1)], key=lambda grid: abs(m * grid[1] - n * grid[0]))
