"""Blocks that start while the kernel before theirs still runs, and wait for its end themselves."""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from tilewright.dataclass import dataclass
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


@dataclass(frozen=True)
class OverlapLaunchesPass(ModulePass):
    """Let the next kernel start at once, and wait for the kernels before where global memory is touched first.

    Before:  %t = simt.thread_id 0  %m = tile.program_id 0  simt.mbarrier_init %s  %x = tile.load %a[%m]
    After:   simt.launch_dependents  %t = simt.thread_id 0  %m = tile.program_id 0  simt.mbarrier_init %s
               simt.wait_for_launches  %x = tile.load %a[%m]
    Legal for every kernel: it ends after all kernels before it, so that whoever waits for it has waited for those.
    For machines with the unit griddepcontrol. A kernel that has one of the two operations stays as it is. Comes last:
    what other passes move to the front of a kernel stands before the wait where it touches no global memory.
    """

    name = "overlap-launches"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if DEPENDENT_LAUNCHES not in facts_of(op).units:
            return
        for kernel in op.body.ops:
            if isinstance(kernel, FuncOp) and kernel.block and not any(launch_operations(kernel)):
                _overlap(kernel)


def _overlap(kernel: FuncOp) -> None:
    block = kernel.body.block
    first, last = block.first_op, block.last_op
    assert first is not None
    assert last is not None
    insert_before(next(filter(touches_global, block.ops), last), WaitForLaunchesOp())
    insert_before(block.first_op or last, LaunchDependentsOp())
