"""Tile program: tiles that leave a block through its memory, as boxes that a copy engine moves while threads go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
from xdsl.dialects.builtin import MemRefType, StringAttr, TensorType
from xdsl.ir import Operation, SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, traits_def
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect
from xdsl.utils.exceptions import VerifyException

from tilewright.kernel.operation import NUMBER, KernelOp
from tilewright.kernel.tensor_map_box import BulkCopy, TensorMapBox, of_tensor_map
from tilewright.kernel.tile_types import shape

BUFFERS = 2  # of the memory that a turn takes: one is written while another one leaves


@irdl_op_definition
class BulkStoreOp(BulkCopy):
    """Store a tile as boxes side by side, the first of them where these coordinates say.

    The tile is what `intrinsic` leaves in the registers of four warps or more. It passes through the memory of the
    block in `turns` parts, each of some columns of every warp. Threads go on while it is on its way, until
    `tile.finish_stores`.
    """

    name = "tile.bulk_store"
    WRITES: ClassVar[int] = 1
    value = operand_def(TensorType)
    view = operand_def(MemRefType)
    intrinsic = prop_def(StringAttr)
    turns = prop_def(NUMBER)
    assembly_format = (
        "$value `to` $view `[` $coordinates `]` `extents` $extents `strides` $strides `box` $box `swizzle` $swizzle "
        "`by` $intrinsic `turns` $turns attr-dict `:` type($value) `,` type($view)"
    )

    def __init__(
        self, value: SSAValue, view: SSAValue, coordinates: Sequence[SSAValue], box: TensorMapBox, intrinsic: str,
        turns: int,
    ) -> None:  # fmt: skip
        super().__init__(value, view, coordinates, **of_tensor_map(box), intrinsic=intrinsic, turns=turns)

    def verify_(self) -> None:
        self.verify_form(self.view, self.value)
        form, extents, turns = self.form, shape(self.value), self.turns.value.data
        *batches, rows, columns = form.sides
        if len(extents) != 2 or set(batches) - {1} or extents[0] % rows or extents[1] % columns:
            raise VerifyException(f"stores {self.value.type} in boxes of {list(form.sides)}")
        if turns < 1 or extents[1] % (turns * columns):
            raise VerifyException(f"{extents[1]} columns in {turns} turns of boxes of {columns}")

    @property
    def buffers(self) -> int:
        """Parts of the tile that have shared memory at the same time."""
        return min(BUFFERS, self.turns.value.data)

    @property
    def buffer_elements(self) -> int:
        """Elements of one part."""
        rows, columns = shape(self.value)
        return rows * columns // self.turns.value.data


@irdl_op_definition
class FinishStoresOp(KernelOp):
    """Wait until all bulk stores have left shared memory."""

    name = "tile.finish_stores"
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = "attr-dict"


OPERATIONS = (BulkStoreOp, FinishStoresOp)


class Program(Protocol):
    """What the interpreter offers."""

    values: dict[SSAValue, Any]
    views: dict[SSAValue, Any]

    def scalar(self, value: SSAValue) -> int: ...
    def write(self, op: Operation, view: Any, places: Any, active: Any, value: Any) -> None: ...


def _store(program: Program, op: BulkStoreOp) -> None:
    """The whole tile at once, as one box."""
    form, start = op.form, [program.scalar(value) for value in op.coordinates]
    whole = TensorMapBox(form.extents, form.strides, (*form.sides[:-2], *shape(op.value)), form.swizzle)
    places, inside = whole.elements(start)
    value = np.asarray(program.values[op.value]).reshape(-1)
    program.write(op, program.views[op.view], places[inside], np.ones(int(inside.sum()), np.bool_), value[inside])


def _finish(program: Program, op: FinishStoresOp) -> None:
    """Nothing is under way in tile form."""


HANDLERS: dict[type[Operation], Any] = {BulkStoreOp: _store, FinishStoresOp: _finish}
