"""Tile program: circular buffers in shared memory that a copy engine fills and products read.

Use number n of a circular buffer is slot ``n % slots`` of it. A slot is filled once it is free: its use before, number
``n - slots``, has been released. Uses are numbered from 0, and each is filled, awaited and released once, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import IndexType, MemRefType, StringAttr, TensorType, UnitAttr, i64
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.irdl import (
    VarConstraint,
    base,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_result_def,
)
from xdsl.traits import MemoryAllocEffect, MemoryReadEffect, MemoryWriteEffect, NoTerminator
from xdsl.utils.exceptions import VerifyException

from tilewright.kernel.operation import NUMBER, KernelOp
from tilewright.kernel.programs import kernel_of
from tilewright.kernel.tensor_map_box import BulkCopy, TensorMapBox, of_tensor_map
from tilewright.kernel.tile_types import I1, element, element_bytes, shape, verify_view
from tilewright.layouts.copy_engine import FRAGMENT_BYTES

ROWS = 8  # of a swizzle: a box is cut between groups of them


def _circular(view: SSAValue) -> CircularOp:
    """The circular buffer that a buffer or its barriers are part of."""
    if not isinstance(view.owner, CircularOp):
        raise VerifyException(f"{view.type} is not of a circular buffer")
    return view.owner


@irdl_op_definition
class CircularOp(KernelOp):
    """Buffers of `slots` slots each, and what says which slots are free and which are filled."""

    name = "tile.circular_buffer"
    slots = prop_def(NUMBER)
    state = result_def(MemRefType)
    buffers = var_result_def(MemRefType)
    traits = traits_def(MemoryAllocEffect())
    assembly_format = "$slots attr-dict `:` type($state) `,` type($buffers)"

    def __init__(self, slots: int, state: Attribute, buffers: Sequence[Attribute]) -> None:
        super().__init__(results=[state, list(buffers)], slots=slots)

    def verify_(self) -> None:
        slots = self.slots.value.data
        for result in self.results:
            verify_view(result.type)
        if slots < 1 or element(self.state) != i64 or self.state.type.get_shape()[0] != 2 * slots:
            raise VerifyException(f"{slots} slots with a state of {self.state.type}; two i64 for each")
        if not self.buffers or any(buffer.type.get_shape()[0] % slots for buffer in self.buffers):
            raise VerifyException(f"{slots} slots in buffers {', '.join(str(each.type) for each in self.buffers)}")

    def slot_elements(self, buffer: SSAValue) -> int:
        assert isinstance(buffer.type, MemRefType)
        return int(buffer.type.get_shape()[0]) // self.slots.value.data


@irdl_op_definition
class ProduceOp(KernelOp):
    """Where `when` holds: wait until the slot of use `number` is free, and start its copies, those of the region."""

    name = "tile.produce"
    state = operand_def(MemRefType)
    number = operand_def(IndexType)
    when = operand_def(I1)
    body = region_def("single_block")
    traits = traits_def(NoTerminator(), MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = "$state `[` $number `]` `when` $when $body attr-dict `:` type($state)"

    def __init__(self, state: SSAValue, number: SSAValue, when: SSAValue, body: Block) -> None:
        super().__init__(state, number, when, regions=[Region(body)])

    def verify_(self) -> None:
        circular = _circular(self.state)
        for op in self.body.block.ops:
            if not isinstance(op, BulkLoadOp) or op.buffer not in circular.buffers:
                raise VerifyException(f"{op.name} in a fill; copies of boxes to buffers of the circular buffer")


@irdl_op_definition
class BulkLoadOp(BulkCopy):
    """Copy a box of a tensor in global memory to the slot that is being filled, from element `place` of it on.

    Elements of the box outside of the tensor are zeros. The blocks of a program copy a box `together` that is the same
    for all of them in every use of that number: each brings some of its rows to all.
    """

    name = "tile.bulk_load"
    view = operand_def(MemRefType)
    buffer = operand_def(MemRefType)
    place = prop_def(NUMBER)
    together = opt_prop_def(UnitAttr)
    assembly_format = (
        "$view `[` $coordinates `]` `to` $buffer `at` $place `extents` $extents `strides` $strides `box` $box "
        "`swizzle` $swizzle (`together` $together^)? attr-dict `:` type($view) `,` type($buffer)"
    )

    def __init__(
        self, view: SSAValue, coordinates: Sequence[SSAValue], buffer: SSAValue, place: int, box: TensorMapBox
    ) -> None:
        super().__init__(view, buffer, coordinates, **of_tensor_map(box), place=place)

    def verify_(self) -> None:
        self.verify_form(self.view, self.buffer)
        blocks = kernel_of(self).blocks
        if self.together is not None and (blocks == 1 or not can_be_cut(self.form, blocks)):
            raise VerifyException(f"{blocks} blocks copy a box of {list(self.form.sides)} together")


def can_be_cut(box: TensorMapBox, blocks: int) -> bool:
    """Whether each of some blocks can bring as many rows of a box, whole groups of them."""
    *outer, rows, _ = (1, *box.sides)
    return rows % (ROWS * blocks) == 0 and set(outer) <= {1}


class _OfUse(KernelOp):
    """Something about one use of a circular buffer."""

    state = operand_def(MemRefType)
    number = operand_def(IndexType)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = "$state `[` $number `]` attr-dict `:` type($state)"

    def __init__(self, state: SSAValue, number: SSAValue) -> None:
        super().__init__(state, number)

    def verify_(self) -> None:
        _circular(self.state)


@irdl_op_definition
class ConsumerWaitOp(_OfUse):
    """Wait until the copies of use `number` are there."""

    name = "tile.consumer_wait"


@irdl_op_definition
class ConsumerReleaseOp(_OfUse):
    """The slot of use `number` is read no more."""

    name = "tile.consumer_release"


@irdl_op_definition
class StagedDotOp(KernelOp):
    """``d = c + a * b`` of the tiles in the slot of use `number`: M x K in buffer a, K x N in b, as the memories say.

    a may lie in another circular buffer than b: in the slot of its use `a_number`. It may also be a tile that threads
    hold in registers, which has no memory.
    The product is under way until `tile.finish` has waited for it: only then are the slot free and d to be used.
    `registers` names the operand whose fragments threads read from the slot, as instructions take their first operand
    from registers; they read the other one, or without `registers` both, from shared memory themselves. With
    `registers` "b" instructions compute ``d^T = c^T + b^T * a^T``.
    """

    name = "tile.staged_dot"
    ACC: ClassVar = VarConstraint("ACC", base(TensorType))
    intrinsic = prop_def(StringAttr)
    a = operand_def(base(TensorType) | base(MemRefType))
    b = operand_def(MemRefType)
    number = operand_def(IndexType)
    c = operand_def(ACC)
    a_number = opt_operand_def(IndexType)
    depth = prop_def(NUMBER)
    a_memory = opt_prop_def(StringAttr)
    b_memory = prop_def(StringAttr)
    registers = opt_prop_def(StringAttr)
    result = result_def(ACC)
    traits = traits_def(MemoryReadEffect())
    assembly_format = (
        "$intrinsic $a (`memory` $a_memory^)? (`[` $a_number^ `]`)? `,` $b `memory` $b_memory `[` $number `]` "
        "`depth` $depth "
        "(`registers` $registers^)? `,` $c attr-dict `:` type($a) `,` type($b) `,` type($c)"
    )

    def __init__(
        self, intrinsic: str, a: SSAValue, a_memory: str, b: SSAValue, b_memory: str, number: SSAValue, depth: int,
        c: SSAValue, registers: str = "", a_number: SSAValue | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            a, b, number, c, a_number, results=[c.type], intrinsic=intrinsic, depth=depth, a_memory=a_memory or None,
            b_memory=b_memory, registers=registers or None,
        )  # fmt: skip

    @property
    def by_registers(self) -> str:
        """The operand whose fragments threads read, "" where there is none."""
        return "" if self.registers is None else str(self.registers.data)

    @property
    def holds_a(self) -> bool:
        """Whether threads hold a."""
        return isinstance(self.a.type, TensorType)

    @property
    def staged(self) -> tuple[tuple[SSAValue, str, SSAValue], ...]:
        """The operands that lie in circular buffers, a before b: buffer, memory, and the number of the use."""
        assert self.holds_a or self.a_memory is not None, "verified"
        b = (self.b, str(self.b_memory.data), self.number)
        if self.a_memory is None:
            return (b,)
        own = self.number if self.a_number is None else self.a_number
        return ((self.a, str(self.a_memory.data), own), b)

    @property
    def extents(self) -> tuple[int, int, int]:
        """M, N and K."""
        m, n = shape(self.c)
        return m, n, int(self.depth.value.data)

    def verify_(self) -> None:
        if len(shape(self.c)) != 2:
            raise VerifyException(f"adds a product of matrices to {self.c.type}")
        m, n, k = self.extents
        if self.holds_a != (self.a_memory is None):
            raise VerifyException(f"a of {self.a.type}: a buffer has a memory, a tile in registers none")
        if self.holds_a and (self.a_number is not None or self.by_registers or shape(self.a) != (m, k)):
            raise VerifyException(f"a of {self.a.type} in registers: a tile of {m}x{k}, which is of no use")
        if not self.holds_a and (self.a_number is None) != (_circular(self.a) is _circular(self.b)):
            raise VerifyException("a has the number of a use where it is of another circular buffer than b")
        for (view, _, _), elements in zip(self.staged[::-1], (k * n, m * k), strict=False):
            slot_elements = _circular(view).slot_elements(view)
            if slot_elements != elements:
                raise VerifyException(f"slots of {slot_elements} elements for a tile of {elements}")
        if element(self.a) != element(self.b):
            raise VerifyException(f"multiplies {self.a.type} and {self.b.type}")
        if self.by_registers not in ("", "a", "b"):
            raise VerifyException(f'registers "{self.by_registers}": of a or b')
        if self.by_registers and element_bytes(self.a) != FRAGMENT_BYTES:
            raise VerifyException(f"threads read fragments of {element(self.a)}; of elements of {FRAGMENT_BYTES} bytes")


@irdl_op_definition
class FinishOp(KernelOp):
    """Wait until all but the `pending` latest products are done."""

    name = "tile.finish"
    T: ClassVar = VarConstraint("T", base(TensorType))
    pending = prop_def(NUMBER)
    value = operand_def(T)
    result = result_def(T)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = "$pending $value attr-dict `:` type($value)"

    def __init__(self, pending: int, value: SSAValue) -> None:
        super().__init__(value, results=[value.type], pending=pending)

    def verify_(self) -> None:
        if self.pending.value.data < 0:
            raise VerifyException(f"waits for all but {self.pending.value.data} products")


OPERATIONS = (CircularOp, ProduceOp, BulkLoadOp, ConsumerWaitOp, ConsumerReleaseOp, StagedDotOp, FinishOp)
# Operations about one use of a circular buffer, or (products) one use of each of two.
NUMBERED = (ProduceOp, ConsumerWaitOp, ConsumerReleaseOp, StagedDotOp)


def numbers_of(op: ProduceOp | ConsumerWaitOp | ConsumerReleaseOp | StagedDotOp) -> dict[CircularOp, SSAValue]:
    """The number of the use of every circular buffer that an operation is about."""
    if isinstance(op, StagedDotOp):
        return {_circular(view): number for view, _, number in op.staged}
    return {_circular(op.state): op.number}
