"""Loop-invariant code motion."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from tilewright.dataclass import dataclass
from tilewright.kernel.dialect import FuncOp
from tilewright.kernel.passes.common.effects import PURE, READS, Writes
from tilewright.kernel.passes.common.rules.control import trips


@dataclass(frozen=True)
class LicmPass(ModulePass):
    """Move what does not change from one trip to the next out of the loop.

    Before:  scf.for %i = ... { %t = tile.load %v[%o]     use(%t, %i) }
    After:   %t = tile.load %v[%o]     scf.for %i = ... { use(%t, %i) }
    Legal for operations that only compute and whose operands are defined outside. A load also needs that the loop
    writes nothing to its view, and that it surely runs: it is not inside a branch and the loop has constant bounds
    and at least one trip. A loop with a barrier or a wait counts as one that writes whatever these may show. Shuffles
    and products of a warp move as loads do.
    """

    name = "licm"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.body.ops:
            if isinstance(kernel, FuncOp):
                _Nest(Writes(kernel)).walk(kernel.body.block)


class _Nest:
    """The loops around a block, from the outermost that operations may leave; a branch is never left."""

    def __init__(self, stored: Writes) -> None:
        self.stored = stored
        self.loops: list[scf.ForOp] = []
        self.level: dict[SSAValue, int] = {}  # of what is defined inside: how many of the loops are around it

    def walk(self, block: Block) -> None:
        op = block.first_op
        while op is not None:
            following = op.next_op
            if op.regions:
                self.enter(op)
            elif self.loops:
                self.hoist(block, op)
            op = following

    def enter(self, op: Operation) -> None:
        if isinstance(op, scf.ForOp):
            self.define(op.results, len(self.loops))
            self.loops.append(op)
            self.define(op.body.block.args, len(self.loops))
            self.walk(op.body.block)
            self.loops.pop()
            return
        self.define(op.results, len(self.loops))
        for region in op.regions:
            for inner in region.blocks:
                _Nest(self.stored).walk(inner)

    def hoist(self, block: Block, op: Operation) -> None:
        depth = len(self.loops)
        level = depth
        kind = op.name
        if kind in PURE or kind in READS:
            level = max((self.level.get(operand, 0) for operand in op.operands), default=0)
            if level < depth and kind in READS:
                level = next((d for d in range(depth, level, -1) if not self.reads_alike(op, self.loops[d - 1])), level)
        if level < depth:
            outside = self.loops[level].parent
            assert outside is not None
            outside.insert_op_before(block.detach_op(op), self.loops[level])
        self.define(op.results, level)

    def reads_alike(self, op: Operation, loop: scf.ForOp) -> bool:
        """Whether a load in the loop reads the same before it, and may."""
        return op.operands[0] not in self.stored.of(loop) and (trips(loop) or 0) > 0

    def define(self, values: Sequence[SSAValue], level: int) -> None:
        if level:
            for value in values:
                self.level[value] = level
