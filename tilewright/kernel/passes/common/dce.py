"""Dead code."""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation
from xdsl.passes import ModulePass

from tilewright.dataclass import dataclass
from tilewright.kernel.dialect import AllocOp, FuncOp, StoreOp
from tilewright.kernel.passes.common.effects import PURE, READS
from tilewright.kernel.rewrite import erase


@dataclass(frozen=True)
class DcePass(ModulePass):
    """Remove what has no effect.

    Before:  %a = arith.addi %x, %y        with no use of %a
    After:   nothing
    Legal for operations that compute or read and whose results have no uses, for loops and branches without results
    and with nothing left inside, for scratch memory that is only written, with the stores to it, and for shared memory
    that nothing touches.
    """

    name = "dce"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.body.ops:
            if isinstance(kernel, FuncOp):
                _sweep(kernel.body.block)


REMOVABLE = PURE | READS | {"simt.shared"}


def _sweep(block: Block) -> None:
    """Backwards, so that an operation is seen after its users."""
    op = block.last_op
    while op is not None:
        before = op.prev_op
        if op.name in REMOVABLE:
            if op.results[0].first_use is None:
                erase(op)
        elif op.regions:
            for region in op.regions:
                for inner in region.blocks:
                    _sweep(inner)
            if _is_empty(op):
                erase(op)
        elif isinstance(op, AllocOp) and all(isinstance(use.operation, StoreOp) for use in op.result.uses):
            for store in {use.operation for use in op.result.uses}:
                erase(store)
            erase(op)
            before = block.last_op  # again from the end: what fed the stores may be dead now
        op = before


def _is_empty(op: Operation) -> bool:
    """A loop or branch without results whose regions hold terminators only."""
    if op.results or not isinstance(op, scf.ForOp | scf.IfOp):
        return False
    return all(block.first_op is block.last_op for region in op.regions for block in region.blocks)
