"""Tile program: where no value may stay in a vector register."""

from __future__ import annotations

from xdsl.irdl import IRDLOperation, irdl_op_definition


@irdl_op_definition
class EmptyRegistersOp(IRDLOperation):
    """No value is in a vector register at this point: what is needed behind it waits in memory.

    It stands between a loop that needs all registers and what comes after it, whose constants LLVM would otherwise
    keep in registers, or load from the stack, in that loop.
    """

    name = "tile.empty_registers"
    assembly_format = "attr-dict"
