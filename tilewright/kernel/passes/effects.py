"""Which operations only compute, and what memory a region writes."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.ir import Block, Operation, SSAValue

from tilewright.kernel.dialect import (
    BroadcastOp,
    DotOp,
    GatherOp,
    IotaOp,
    LoadOp,
    ProgramIdOp,
    ReduceOp,
    ReshapeOp,
    StoreOp,
)
from tilewright.kernel.elements import ELEMENT

PURE: frozenset[type[Operation]] = frozenset(
    {*ELEMENT, arith.ConstantOp, ProgramIdOp, IotaOp, BroadcastOp, ReshapeOp, ReduceOp, DotOp}
)
"""Operations that depend on their operands alone and can run at any time: none traps."""

READS: frozenset[type[Operation]] = frozenset({LoadOp, GatherOp})


def stored_views(block: Block, inside: dict[Operation, set[SSAValue]]) -> set[SSAValue]:
    """The views that a block writes; `inside` receives those of every loop and branch in it."""
    stored: set[SSAValue] = set()
    for op in block.ops:
        if type(op) is StoreOp:
            stored.add(op.view)
        elif op.regions:
            blocks = [inner for region in op.regions for inner in region.blocks]
            inside[op] = set().union(*(stored_views(inner, inside) for inner in blocks))
            stored |= inside[op]
    return stored
