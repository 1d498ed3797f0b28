"""Barriers that order nothing: what stands between their accesses already is ordered, or needs no order."""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from tilewright.dataclass import dataclass
from tilewright.kernel.dialect import FuncOp
from tilewright.kernel.passes.gpu.order import Course, Order, clash, overlapping, stretches
from tilewright.kernel.rewrite import erase
from tilewright.kernel.simt import BarrierOp


@dataclass(frozen=True)
class BarriersPass(ModulePass):
    """Leave out the barriers that are not needed, those in the deepest loops first.

    Before:  scf.for { barrier  store %x, %s  barrier  load %s  barrier  store %y, %t  barrier  load %t }
    After:   scf.for {          store %x, %s  barrier  load %s           store %y, %t  barrier  load %t }
    Legal where no two accesses to the same memory, one of them a write, come to stand without a barrier between them
    that had one before, in the same trip, the next or the one after that. A wait for copies counts as their writing.
    Kernels that order memory in another way, or have barriers in branches, stay as they are.
    """

    name = "barriers"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.body.ops:
            if isinstance(kernel, FuncOp) and kernel.block:
                for barrier in needless(kernel):
                    erase(barrier)


def needless(kernel: FuncOp) -> list[BarrierOp]:
    """Barriers that can all be left out."""
    order = Order(kernel)
    overlaps = overlapping(kernel)
    found: list[BarrierOp] = []

    def ordered(course: Course, without: list[BarrierOp]) -> bool:
        return not any(
            clash(one, other, overlaps)
            for together in stretches(course, without)
            for place, one in enumerate(together)
            for other in together[place + 1 :]
        )

    for barrier in sorted(order.barriers if order.known else (), key=_depth, reverse=True):
        if all(ordered(course, [*found, barrier]) for course in order.courses):
            found.append(barrier)
    return found


def _depth(op: Operation) -> int:
    """Loops around an operation."""
    parent = op.parent_op()
    return 0 if parent is None else _depth(parent) + isinstance(parent, scf.ForOp)
