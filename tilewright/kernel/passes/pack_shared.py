"""Places for the memory of a block: buffers that are never in use at the same time lie over each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.ir import Block, Operation
from xdsl.passes import ModulePass

from tilewright.kernel.dialect import FuncOp, operations
from tilewright.kernel.passes.order import Order
from tilewright.kernel.rewrite import insert_before
from tilewright.kernel.simt import AsyncCopyOp, BarrierOp, SharedOp, WaitOp


@dataclass(frozen=True)
class PackSharedPass(ModulePass):
    """Give every buffer of block memory a place, first fit from the largest on, where that needs fewer bytes.

    Before:  %s = simt.shared align 16 : memref<4096xf16, "shared">   %t = simt.shared align 16 : memref<2048xf32, …>
    After:   %s = simt.shared align 16 at 0 : …                       %t = simt.shared align 16 at 0 : …
    Legal where the uses of one come to an end before those of the other begin (a loop counts as a whole); a barrier
    is put between, and asynchronous copies to the first are waited for there. Buffers of less than `least` bytes share
    with none: the barrier costs more. Needs `distribute`; `barriers` leaves out those that stood there already.
    """

    name = "pack-shared"
    least: int = 1024

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.body.ops:
            if isinstance(kernel, FuncOp) and kernel.block:
                _pack(kernel, self.least)


@dataclass(frozen=True)
class _Life:
    """A buffer, and the first and last operation of the kernel's own block that use it, by number."""

    buffer: SharedOp
    first: int
    last: int

    @property
    def align(self) -> int:
        return int(self.buffer.align.value.data)


def _pack(kernel: FuncOp, least: int) -> None:
    ops = operations(kernel.body)
    buffers = [op for op in ops if isinstance(op, SharedOp)]
    if len(buffers) < 2 or not Order(kernel).known or any(buffer.offset is not None for buffer in buffers):
        return
    lives = [_life(buffer, kernel.body.block) for buffer in buffers]

    def shares(one: _Life, other: _Life) -> bool:
        apart = one.last < other.first or other.last < one.first
        return apart and min(one.buffer.bytes, other.buffer.bytes) >= least

    places = _first_fit(lives, shares)
    if _end(places) >= sum(-(-life.buffer.bytes // 16) * 16 for life in lives):
        return
    copied = {op.target for op in ops if isinstance(op, AsyncCopyOp)}
    block = list(kernel.body.block.ops)
    orders: dict[int, bool] = {}  # before which operations memory is passed on, and whether copies were under way to it
    for life, start in places.items():
        life.buffer.offset = IntegerAttr(start, 64)
        for other in lives:
            if other.last < life.first and _lie_over(life, other, places):
                orders[life.first] = orders.get(life.first, False) or other.buffer.result in copied
    for number, waits in orders.items():
        insert_before(block[number], *([WaitOp(0)] if waits else []), BarrierOp())


def _life(buffer: SharedOp, block: Block) -> _Life:
    numbers = {op: number for number, op in enumerate(block.ops)}
    uses = [numbers[_at_top(use.operation, block)] for use in buffer.result.uses] or [numbers[buffer]]
    return _Life(buffer, min(uses), max(uses))


def _at_top(op: Operation, block: Block) -> Operation:
    while op.parent is not block:
        outer = op.parent_op()
        assert outer is not None
        op = outer
    return op


def _first_fit(lives: list[_Life], shares: Callable[[_Life, _Life], bool]) -> dict[_Life, int]:
    """The lowest place of every buffer that none in its way has, the largest first."""
    places: dict[_Life, int] = {}
    for life in sorted(lives, key=lambda each: -each.buffer.bytes):
        start = 0
        for other in sorted(places, key=lambda each: places[each]):
            end = places[other] + other.buffer.bytes
            if not shares(life, other) and start < end and places[other] < start + life.buffer.bytes:
                start = -(-end // life.align) * life.align
        places[life] = start
    return places


def _end(places: dict[_Life, int]) -> int:
    return max(start + life.buffer.bytes for life, start in places.items())


def _lie_over(one: _Life, other: _Life, places: dict[_Life, int]) -> bool:
    return places[one] < places[other] + other.buffer.bytes and places[other] < places[one] + one.buffer.bytes
