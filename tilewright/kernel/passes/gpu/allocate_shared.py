"""Places for shared memory: buffers that are never in use at the same time lie over each other."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import IndexType, IntegerAttr, IntegerType, ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from tilewright.dataclass import dataclass
from tilewright.kernel.dialect import FuncOp, StoreOp, operations
from tilewright.kernel.facts import facts_of
from tilewright.kernel.passes.common.effects import PURE
from tilewright.kernel.passes.common.settings import at_least
from tilewright.kernel.passes.gpu.order import Order
from tilewright.kernel.rewrite import insert_before
from tilewright.kernel.simt import AsyncCopyOp, BarrierOp, SharedOp, StoreMatrixOp, WaitOp


@dataclass(frozen=True)
class AllocateSharedPass(ModulePass):
    """Give every buffer of shared memory a place, first fit from the largest on, where that needs fewer bytes.

    Before:  %s = simt.shared align 16 : memref<4096xf16, "shared">   %t = simt.shared align 16 : memref<2048xf32, …>
    After:   %s = simt.shared align 16 at 0 : …                       %t = simt.shared align 16 at 0 : …
    Legal where the uses of one come to an end before those of the other begin; a barrier is put between, and
    asynchronous copies to the first are waited for there. A loop counts as a whole. Only where a block may not have so
    much (`most` bytes; 0: what the module says of its machine), buffers that every trip writes anew share inside of a
    loop too, with a barrier before the first use of each. Buffers of less than `least` bytes share with none: the
    barrier costs more. Needs `distribute`; `barriers` leaves out those that stood there already.
    """

    name = "allocate-shared"
    least: int = 1024
    most: int = 0

    def __post_init__(self) -> None:
        at_least(0, self, "least", "most")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        most = self.most or facts_of(op).shared_bytes
        for kernel in op.body.ops:
            if isinstance(kernel, FuncOp) and kernel.block:
                _pack(kernel, self.least, most)


@dataclass(frozen=True)
class _Life:
    """A buffer, and the first and last operation of a block that use it, by number: of the kernel's own block, or of
    the body of the loop whose every trip writes it anew.
    """

    buffer: SharedOp
    block: Block
    first: int
    last: int


def _pack(kernel: FuncOp, least: int, most: int) -> None:
    ops = operations(kernel.body)
    buffers = [op for op in ops if isinstance(op, SharedOp)]
    if len(buffers) < 2 or not Order(kernel).known or any(buffer.offset is not None for buffer in buffers):
        return
    outer = kernel.body.block
    whole = {buffer: _life(buffer, outer) for buffer in buffers}
    inside: dict[SharedOp, _Life] = {}  # by buffers of loops

    def shares(one: SharedOp, other: SharedOp) -> bool:
        if min(one.bytes, other.bytes) < least:
            return False
        if one in inside and other in inside and inside[one].block is inside[other].block:
            return _apart(inside[one], inside[other])
        return _apart(whole[one], whole[other])

    places = _first_fit(buffers, shares)
    if most and _end(places) > most:
        inside |= {buffer: _life(buffer, body) for buffer in buffers if (body := _home(buffer)) is not None}
        places = _first_fit(buffers, shares)
    if _end(places) >= sum(-(-buffer.bytes // 16) * 16 for buffer in buffers):
        return
    copied = {op.target for op in ops if isinstance(op, AsyncCopyOp)}
    orders: dict[Operation, bool] = {}  # where memory is passed on, and whether copies were under way to it
    for buffer, start in places.items():
        buffer.offset = IntegerAttr(start, 64)
        for other in buffers:
            if other is buffer or not _lie_over(buffer, other, places):
                continue
            if buffer in inside and other in inside and inside[buffer].block is inside[other].block:
                life = inside[buffer]  # in the trip, or in the one before
            elif whole[other].last < whole[buffer].first:
                life = whole[buffer]
            else:
                continue
            first = list(life.block.ops)[life.first]
            orders[first] = orders.get(first, False) or other.result in copied
    for first, waits in orders.items():
        insert_before(first, *([WaitOp(0)] if waits else []), BarrierOp())


def _apart(one: _Life, other: _Life) -> bool:
    return one.last < other.first or other.last < one.first


def _life(buffer: SharedOp, block: Block) -> _Life:
    numbers = {op: number for number, op in enumerate(block.ops)}
    uses = [numbers[_at_top(use.operation, block)] for use in buffer.result.uses] or [numbers[buffer]]
    return _Life(buffer, block, min(uses), max(uses))


def _at_top(op: Operation, block: Block) -> Operation:
    while op.parent is not block:
        outer = op.parent_op()
        assert outer is not None
        op = outer
    return op


def _home(buffer: SharedOp) -> Block | None:
    """The body of a loop whose every trip writes a buffer before it reads it, at the same places.

    All uses stand in that body, the first one stores, and no address depends on the trip: what a trip reads and did not
    write nothing has written.
    """
    uses = sorted((use.operation for use in buffer.result.uses), key=lambda op: _number(op))
    body: Block | None = uses[0].parent if uses else None
    if body is None or not isinstance(body.parent_op(), scf.ForOp) or any(op.parent is not body for op in uses):
        return None
    if not isinstance(uses[0], StoreOp | StoreMatrixOp) or any(isinstance(op, AsyncCopyOp) for op in uses):
        return None
    varying: set[SSAValue] = set(body.args)
    for op in body.ops:
        if any(value in varying for each in op.walk() for value in each.operands):
            varying.update(op.results)
        elif op.name not in PURE:
            varying.update(result for result in op.results if isinstance(result.type, IndexType | IntegerType))
    for op in uses:
        if any(value in varying and isinstance(value.type, IndexType | IntegerType) for value in op.operands):
            return None
    return body


def _number(op: Operation) -> int:
    block = op.parent
    assert block is not None
    return block.get_operation_index(op)


def _first_fit(buffers: list[SharedOp], shares: Callable[[SharedOp, SharedOp], bool]) -> dict[SharedOp, int]:
    """The lowest place of every buffer that none in its way has, the largest first."""
    places: dict[SharedOp, int] = {}
    for buffer in sorted(buffers, key=lambda each: -each.bytes):
        start, align = 0, int(buffer.align.value.data)
        for other in sorted(places, key=lambda each: places[each]):
            end = places[other] + other.bytes
            if not shares(buffer, other) and start < end and places[other] < start + buffer.bytes:
                start = -(-end // align) * align
        places[buffer] = start
    return places


def _end(places: dict[SharedOp, int]) -> int:
    return max(start + buffer.bytes for buffer, start in places.items())


def _lie_over(one: SharedOp, other: SharedOp, places: dict[SharedOp, int]) -> bool:
    return places[one] < places[other] + other.bytes and places[other] < places[one] + one.bytes
