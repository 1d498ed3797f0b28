"""Which operations only compute, and what memory a region writes."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.ir import Operation, Region, SSAValue

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


def stored_views(region: Region) -> set[SSAValue]:
    """The views that a region writes."""
    return {op.view for op in region.walk() if type(op) is StoreOp}
