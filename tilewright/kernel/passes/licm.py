"""Loop-invariant code motion."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from tilewright.kernel.dialect import FuncOp, StoreOp
from tilewright.kernel.passes.effects import PURE, READS
from tilewright.kernel.passes.rules.control import trips


@dataclass(frozen=True)
class LicmPass(ModulePass):
    """Move what does not change from one trip to the next out of the loop.

    Before:  scf.for %i = ... { %t = tile.load %v[%o]     use(%t, %i) }
    After:   %t = tile.load %v[%o]     scf.for %i = ... { use(%t, %i) }
    Legal for operations that only compute and whose operands are defined outside. A load also needs that the loop
    writes nothing to its view, and that it surely runs: it is not inside a branch and the loop has constant bounds
    and at least one trip.
    """

    name = "licm"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.body.ops:
            if isinstance(kernel, FuncOp):
                _walk(kernel.body.block)


def _walk(block: Block) -> set[SSAValue]:
    """Hoist out of every loop of a block, the innermost first; gives the views that the block writes."""
    stored: set[SSAValue] = set()
    op = block.first_op
    while op is not None:
        if type(op) is StoreOp:
            stored.add(op.view)
        elif op.regions:
            for region in op.regions:
                for inner in region.blocks:
                    written = _walk(inner)
                    if isinstance(op, scf.ForOp):
                        _hoist(op, written)
                    stored |= written
        op = op.next_op
    return stored


def _hoist(loop: scf.ForOp, written: set[SSAValue]) -> None:
    body, outside = loop.body.block, loop.parent
    assert outside is not None
    runs: bool | None = None
    op: Operation | None = body.first_op
    while op is not None:
        following = op.next_op
        kind = type(op)
        if kind in PURE or kind in READS:
            operands = op.operands
            # A block argument or result of the body itself is what may change; deeper ones are not visible here.
            invariant = all(_block(operand) is not body for operand in operands)
            if invariant and kind in READS:
                if runs is None:
                    runs = (trips(loop) or 0) > 0
                invariant = runs and operands[0] not in written
            if invariant:
                outside.insert_op_before(body.detach_op(op), loop)
        op = following


def _block(value: SSAValue) -> Block | None:
    owner = value.owner
    return owner if isinstance(owner, Block) else owner.parent
