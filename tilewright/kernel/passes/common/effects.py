"""Which operations only compute, which read, and what memory others write.

Operations go by name: those of `simt` are not imported for a CPU.
"""

from __future__ import annotations

from collections.abc import Collection

from xdsl.dialects import arith
from xdsl.ir import Block, Operation, SSAValue

from tilewright.kernel.dialect import (
    AllocOp,
    BlockRankOp,
    BroadcastOp,
    ConvertOp,
    DotOp,
    FuncOp,
    GatherOp,
    IotaOp,
    LoadOp,
    ProgramIdOp,
    ReduceOp,
    ReshapeOp,
    ScanOp,
    operations,
    written_view,
)
from tilewright.kernel.elements import ELEMENT

PURE: frozenset[str] = frozenset(
    {
        *ELEMENT,
        *(kind.name for kind in (arith.ConstantOp, ProgramIdOp, BlockRankOp, IotaOp, BroadcastOp, ReshapeOp, ReduceOp)),
        *(kind.name for kind in (ScanOp, DotOp, ConvertOp)),
        "simt.thread_id", "simt.join", "simt.part",
    }
)  # fmt: skip
"""Names of operations that depend on their operands alone and can run at any time: none traps."""

READS: frozenset[str] = frozenset(
    {LoadOp.name, GatherOp.name, "simt.load_matrix", "simt.load_fragment", "simt.shuffle", "simt.mma"}
)
"""Names of operations that read a view, their first operand, or work with the other lanes of the warp: they may run
only where they surely would have."""

_WAITS = frozenset({"simt.barrier", "simt.cluster_barrier", "simt.wait", "simt.mbarrier_wait"})
_WAIT_FOR_LAUNCHES = "simt.wait_for_launches"


class Writes:
    """The views that operations of a kernel write, as one thread sees it.

    Barriers and waits show what other threads and asynchronous copies wrote: they count as writes to every view that
    is written in the kernel at all, but for the memory of one thread. A wait for other kernels shows what these wrote:
    it counts as a write to every argument. Shared views that have a place may lie over each other, and count as one.
    """

    def __init__(self, kernel: FuncOp) -> None:
        self.inside: dict[Operation, set[SSAValue]] = {}
        self.shown: frozenset[SSAValue] = frozenset()
        self.placed: frozenset[SSAValue] = frozenset()
        self.arguments: tuple[SSAValue, ...] = kernel.body.block.args
        if kernel.block:
            ops = operations(kernel.body)
            shared = (op for op in ops if op.name == "simt.shared" and "offset" in op.properties)
            self.placed = frozenset(op.results[0] for op in shared)
            written = {view for op in ops for view in self.of_one(op)}
            self.shown = frozenset(view for view in written if not isinstance(view.owner, AllocOp))
        self._note(kernel.body.block)

    def of(self, op: Operation) -> Collection[SSAValue]:
        """What an operation writes, with all that is inside of it."""
        return self.inside[op] if op.regions else self.of_one(op)

    def of_one(self, op: Operation) -> Collection[SSAValue]:
        if op.name in _WAITS:
            return self.shown
        if op.name == _WAIT_FOR_LAUNCHES:
            return self.arguments
        view = written_view(op)
        if view is None:
            return ()
        return self.placed if view in self.placed else (view,)

    def _note(self, block: Block) -> set[SSAValue]:
        stored: set[SSAValue] = set()
        for op in block.ops:
            if op.regions:
                inner = [self._note(block) for region in op.regions for block in region.blocks]
                self.inside[op] = set().union(*inner)
            stored.update(self.of(op))
        return stored
