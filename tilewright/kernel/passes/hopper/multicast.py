"""Boxes that several blocks read: brought once for all of them, by blocks that run as one cluster."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, UnitAttr
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from tilewright.dataclass import dataclass
from tilewright.kernel import circular_buffer
from tilewright.kernel.attributes import CLUSTER, MOST_CLUSTER, cluster_of
from tilewright.kernel.dialect import INDEX, BlockRankOp, CompareOp, FuncOp, ProgramIdOp, operations, written_view
from tilewright.kernel.facts import facts_of
from tilewright.kernel.passes.common.effects import PURE
from tilewright.kernel.passes.common.settings import power_of_two
from tilewright.kernel.rewrite import erase, insert_before, replace_by_values
from tilewright.kernel.simt import element_bytes
from tilewright.kernel.tile_types import i64s
from tilewright.machine.units import CLUSTERS


@dataclass(frozen=True)
class MulticastPass(ModulePass):
    """Have `cluster` blocks, neighbours along one axis of the grid, copy the boxes together that are the same for all.

    Before:  tile.func grid [8, 4] { %m = tile.program_id 0  %n = tile.program_id 1
               for %k { produce { bulk_load %a[%m, %k]  bulk_load %b[%k, %n] } … } }
    After:   tile.func grid [4, 4] cluster 2 { %m = tile.program_id 0 * 2 + tile.block_rank  %n = tile.program_id 1
               for %k { produce { bulk_load %a[%m, %k]  bulk_load %b[%k, %n] together } … } }
    Legal for kernels with circular buffers that all blocks use alike: places that are the same for all depend on no
    coordinate along the axis, nor do loops around. The axis is the one along which the fewest bytes are left to bring;
    what a last cluster has beyond the grid repeats the last tile and stores nothing. For machines with the unit
    cluster. A kernel's attribute `cluster` is asked first; with 1 nothing changes. Comes after `tensor-copies` and
    `tensor-stores`, before `swizzle-blocks`, which then distributes clusters.
    """

    name = "multicast"
    cluster: int = 1

    def __post_init__(self) -> None:
        power_of_two(self, "cluster", most=MOST_CLUSTER)

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if CLUSTERS not in facts_of(op).units:
            return
        for kernel in op.body.ops:
            if isinstance(kernel, FuncOp) and not kernel.block and kernel.blocks == 1:
                blocks = cluster_of(kernel, self.cluster)
                found = _sharing(kernel, blocks) if blocks > 1 else None
                if found is not None:
                    _share(kernel, found, blocks)


@dataclass(frozen=True)
class _Sharing:
    """The axis of the grid along which blocks are neighbours, and the copies that are the same for them."""

    axis: int
    copies: tuple[circular_buffer.BulkLoadOp, ...]


def _sharing(kernel: FuncOp, blocks: int) -> _Sharing | None:
    """The axis that leaves the fewest bytes to bring; None where none leaves fewer than there are."""
    ops = operations(kernel.body)
    copies = [op for op in ops if isinstance(op, circular_buffer.BulkLoadOp)]
    best, least = None, float(sum(map(_bytes, copies)))
    for axis, extent in enumerate(kernel.extents):
        more = -extent % blocks
        if extent < blocks or (more and not _stores_last(kernel, ops)) or not _is_used_alike(ops, axis):
            continue
        cut = [copy for copy in copies if circular_buffer.can_be_cut(copy.form, blocks)]
        same = [copy for copy in cut if _is_same(copy.coordinates, axis)]
        left = sum(map(_bytes, copies)) - sum(map(_bytes, same)) * (1 - 1 / blocks)
        if left * (extent + more) / extent < least:
            best, least = _Sharing(axis, tuple(same)), left * (extent + more) / extent
    return best


def _bytes(copy: circular_buffer.BulkLoadOp) -> int:
    return prod(copy.form.sides) * element_bytes(copy.buffer)


def _is_used_alike(ops: list[Operation], axis: int) -> bool:
    """Whether blocks along an axis use all circular buffers at the same numbers, in loops of as many trips."""
    used = [op for op in ops if isinstance(op, circular_buffer.NUMBERED)]
    numbers = [number for op in used for number in circular_buffer.numbers_of(op).values()]
    numbers += [op.when for op in used if isinstance(op, circular_buffer.ProduceOp)]
    return _is_same(numbers, axis) and all(_is_reached_alike(op, axis) for op in used)


def _is_reached_alike(op: Operation, axis: int) -> bool:
    parent = op.parent_op()
    if parent is None or isinstance(parent, FuncOp):
        return True
    if not isinstance(parent, scf.ForOp) or not _is_same((parent.lb, parent.ub, parent.step), axis):
        return False
    return _is_reached_alike(parent, axis)


def _is_same(values: Iterable[SSAValue], axis: int) -> bool:
    """Whether numbers are computed from constants, counters of loops and coordinates along other axes alone."""
    return all(_is_same_along(value, axis) for value in values)


def _is_same_along(value: SSAValue, axis: int) -> bool:
    owner = value.owner
    if isinstance(owner, Block):
        loop = owner.parent_op()
        if not isinstance(loop, scf.ForOp) or value is not owner.args[0]:
            return False
        return _is_same((loop.lb, loop.ub, loop.step), axis)
    if isinstance(owner, ProgramIdOp):
        return owner.axis.value.data != axis
    return owner.name in PURE and _is_same(owner.operands, axis)


def _stores_last(kernel: FuncOp, ops: list[Operation]) -> bool:
    """Whether all that a kernel writes is stored by operations of its body itself, which can be left out."""
    return all(op.parent is kernel.body.block for op in ops if written_view(op) is not None)


def _share(kernel: FuncOp, found: _Sharing, blocks: int) -> None:
    axis, first, ops = found.axis, kernel.body.block.first_op, operations(kernel.body)
    extent = kernel.extents[axis]
    assert first is not None

    def add(op: Operation) -> SSAValue:
        insert_before(first, op)
        return op.results[0]

    def number(value: int) -> SSAValue:
        return add(arith.ConstantOp(IntegerAttr(value, INDEX)))

    before = add(arith.MuliOp(add(ProgramIdOp(axis)), number(blocks)))
    own = add(arith.AddiOp(before, add(BlockRankOp())))
    if extent % blocks:
        inside = add(CompareOp("lt", own, number(extent)))
        own = add(arith.MinUIOp(own, number(extent - 1)))
        for op in [op for op in ops if written_view(op) is not None]:
            _only_where(inside, op)
    for op in ops:
        if isinstance(op, ProgramIdOp) and op.axis.value.data == axis:
            replace_by_values(op, [own])
    for copy in found.copies:
        copy.together = UnitAttr()
    grid = list(kernel.extents)
    grid[axis] = -(-extent // blocks)
    kernel.grid, kernel.cluster = i64s(grid), IntegerAttr(blocks, 64)
    kernel.attributes.pop(CLUSTER, None)


def _only_where(condition: SSAValue, op: Operation) -> None:
    made = op.clone()
    made.location = op.location
    insert_before(op, scf.IfOp(condition, [], Region(Block([made, scf.YieldOp()])), Region()))
    erase(op)
