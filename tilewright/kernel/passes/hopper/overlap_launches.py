"""Blocks that start while the kernel before theirs still runs, and wait for its end themselves."""

from __future__ import annotations

from math import ceil, inf

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.passes import ModulePass

from tilewright.dataclass import dataclass
from tilewright.kernel.attributes import MOST_RESIDENT
from tilewright.kernel.dialect import FuncOp
from tilewright.kernel.facts import facts_of
from tilewright.kernel.hopper.simt_launches import (
    LaunchDependentsOp,
    WaitForLaunchesOp,
    launch_operations,
    touches_global,
)
from tilewright.kernel.rewrite import insert_before
from tilewright.machine.units import DEPENDENT_LAUNCHES

FEW_BLOCKS = 3  # for each multiprocessor: of more, one more or less makes little difference


@dataclass(frozen=True)
class OverlapLaunchesPass(ModulePass):
    """Let the next kernel start at once, and wait for the kernels before where global memory is touched first.

    Before:  %t = simt.thread_id 0  %m = tile.program_id 0  simt.mbarrier_init %s  %x = tile.load %a[%m]
    After:   simt.launch_dependents  %t = simt.thread_id 0  %m = tile.program_id 0  simt.mbarrier_init %s
               simt.wait_for_launches  %x = tile.load %a[%m]
    Legal for every kernel: it ends after all kernels before it, so that whoever waits for it has waited for those.
    Blocks that start early go where there is room, so that multiprocessors which the kernel before left idle get more
    of them than others: of a grid with few blocks for each multiprocessor, none holds more than its even share.
    For machines with the unit griddepcontrol. A kernel that has one of the two operations stays as it is. Comes last:
    what other passes move to the front of a kernel stands before the wait where it touches no global memory.
    """

    name = "overlap-launches"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        facts = facts_of(op)
        if DEPENDENT_LAUNCHES not in facts.units:
            return
        for kernel in op.body.ops:
            if isinstance(kernel, FuncOp) and kernel.block and not any(launch_operations(kernel)):
                _overlap(kernel)
                _share_out(kernel, facts.multiprocessors)


def _share_out(kernel: FuncOp, multiprocessors: int) -> None:
    """Ask for no more blocks on a multiprocessor than its even share, where that is few."""
    share = ceil(kernel.programs * kernel.blocks / multiprocessors) if multiprocessors else inf
    if share <= FEW_BLOCKS and MOST_RESIDENT not in kernel.attributes:
        kernel.attributes[MOST_RESIDENT] = IntegerAttr(int(share), 64)


def _overlap(kernel: FuncOp) -> None:
    block = kernel.body.block
    first, last = block.first_op, block.last_op
    assert first is not None
    assert last is not None
    insert_before(next(filter(touches_global, block.ops), last), WaitForLaunchesOp())
    insert_before(block.first_op or last, LaunchDependentsOp())
