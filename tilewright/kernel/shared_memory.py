"""Tile program: shared memory, and tiles on their way into it while the program goes on. Part of `dialect`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import IndexType, MemRefType, StringAttr, TensorType
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def, traits_def, var_operand_def
from xdsl.traits import MemoryAllocEffect, MemoryReadEffect, MemoryWriteEffect
from xdsl.utils.exceptions import VerifyException

from tilewright.kernel.groups import Commit, Wait
from tilewright.kernel.operation import NUMBER, NUMBERS, KernelOp
from tilewright.kernel.tile_types import I1, element, shape, verify_view


@irdl_op_definition
class StagingOp(KernelOp):
    """Memory that the threads of a block share, in tile form; its contents are undefined at first."""

    name = "tile.staging"
    result = result_def(MemRefType)
    traits = traits_def(MemoryAllocEffect())
    assembly_format = "attr-dict `:` type($result)"

    def __init__(self, type_: MemRefType[Attribute]) -> None:
        super().__init__(results=[type_])

    def verify_(self) -> None:
        verify_view(self.result.type)


@irdl_op_definition
class StageOp(KernelOp):
    """Start copying a tile, read as a load reads it, into shared memory from ``buffer[place]`` on, if `when` holds.

    What lies outside `bounds` becomes 0 there and is not read. `type` is the tile with the layout of the threads that
    copy; element t lies where `memory` has it: a layout from offsets to elements, or rows with padding, ``#padded<…>``
    (row-major without). The copy is done when a wait says so.
    """

    name = "tile.stage"
    WRITES: ClassVar[int] = 2
    view = operand_def(MemRefType)
    offset = operand_def(IndexType)
    buffer = operand_def(MemRefType)
    place = operand_def(IndexType)
    when = operand_def(I1)
    bounds = var_operand_def(IndexType)
    strides = prop_def(NUMBERS)
    align = prop_def(NUMBER)
    memory = prop_def(StringAttr)
    type = prop_def(TensorType)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = (
        "$view `[` $offset `]` `to` $buffer `[` $place `]` `when` $when (`bounds` `(` $bounds^ `)`)? "
        "`strides` $strides `align` $align `memory` $memory $type attr-dict `:` type($view) `,` type($buffer)"
    )

    def __init__(
        self, view: SSAValue, offset: SSAValue, buffer: SSAValue, place: SSAValue, when: SSAValue,
        strides: Sequence[int], align: int, memory: str, type_: TensorType[Attribute],
        bounds: Sequence[SSAValue] = (),
    ) -> None:  # fmt: skip
        super().__init__(
            view, offset, buffer, place, when, bounds, strides=strides, align=align, memory=memory, type=type_
        )

    def verify_(self) -> None:
        if len(self.strides.get_values()) != len(shape(self.type)):
            raise VerifyException(f"{len(self.strides.get_values())} strides for {self.type}")
        if self.bounds and len(self.bounds) != len(shape(self.type)):
            raise VerifyException(f"{len(self.bounds)} bounds for {self.type}")
        if not element(self.view) == element(self.buffer) == element(self.type):
            raise VerifyException(f"stages {self.type} from {self.view.type} in {self.buffer.type}")


@irdl_op_definition
class CommitOp(Commit):
    """The copies started since the last commit are a group, perhaps an empty one."""

    name = "tile.commit"


@irdl_op_definition
class AwaitOp(Wait):
    """Wait until all groups but the `pending` latest have arrived; what was read before may be overwritten after."""

    name = "tile.await"


@irdl_op_definition
class BarrierOp(KernelOp):
    """What the block read of its memory before may be overwritten after."""

    name = "tile.barrier"
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = "attr-dict"


@irdl_op_definition
class UnstageOp(KernelOp):
    """Read the tile that `tile.stage` put at ``buffer[place]`` with the same `memory`."""

    name = "tile.unstage"
    buffer = operand_def(MemRefType)
    place = operand_def(IndexType)
    memory = prop_def(StringAttr)
    result = result_def(TensorType)
    traits = traits_def(MemoryReadEffect())
    assembly_format = "$buffer `[` $place `]` `memory` $memory attr-dict `:` type($buffer) `->` type($result)"

    def __init__(self, buffer: SSAValue, place: SSAValue, memory: str, type_: Attribute) -> None:
        super().__init__(buffer, place, results=[type_], memory=memory)

    def verify_(self) -> None:
        if element(self.buffer) != element(self.result):
            raise VerifyException(f"reads {self.result.type} from {self.buffer.type}")
