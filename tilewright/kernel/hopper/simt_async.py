"""The distributed form: barriers in memory that count arrivals and bytes, copies of boxes that they wait for.

An mbarrier is an element of 8 bytes of shared memory. A phase is complete once as many threads have arrived as
it was initialised with and all bytes that were announced are there; then the next phase begins. Whoever has waited for
a phase sees what the arriving threads wrote before, and the copies that it counted. A box of a tensor is moved by the
copy engine for one thread; elements outside of the tensor are zeros when loaded and left out when stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from xdsl.dialects.builtin import IndexType, MemRefType, StringAttr, UnitAttr, i64
from xdsl.ir import Operation, SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, opt_operand_def, opt_prop_def, prop_def, traits_def
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect
from xdsl.utils.exceptions import VerifyException

from tilewright.kernel.groups import Commit, Wait
from tilewright.kernel.operation import NUMBER, KernelOp, verify_word
from tilewright.kernel.simt import InBlock, block_of, element_bytes, is_shared
from tilewright.kernel.tensor_map_box import BulkCopy, TensorMapBox, of_tensor_map
from tilewright.kernel.tile_types import element
from tilewright.layouts.copy_engine import BOX_EXTENT, ROW_MULTIPLE, SPANS, TENSOR_RANK, is_distance

MOST_ARRIVALS = (1 << 20) - 1  # PTX ISA, "mbarrier.init"
SWIZZLES = (0, *SPANS)
FENCES = ("async", "mbarrier")


def _verify_mbarriers(view: SSAValue) -> None:
    if not is_shared(view) or element(view) != i64:
        raise VerifyException(f'mbarriers are i64 in memory space "shared", not {view.type}')


@irdl_op_definition
class WarpBarrierOp(InBlock):
    """All lanes of a warp arrive before any goes on: the arrival of one at an mbarrier is then one of all."""

    name = "simt.warp_barrier"
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = "attr-dict"


@irdl_op_definition
class MbarrierInitOp(KernelOp):
    """Make an mbarrier whose phases take `arrivals` arrivals. Others may use it after a fence and a barrier."""

    name = "simt.mbarrier_init"
    WRITES: ClassVar[int] = 0
    barriers = operand_def(MemRefType)
    index = operand_def(IndexType)
    arrivals = prop_def(NUMBER)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = "$barriers `[` $index `]` `arrivals` $arrivals attr-dict `:` type($barriers)"

    def __init__(self, barriers: SSAValue, index: SSAValue, arrivals: int) -> None:
        super().__init__(barriers, index, arrivals=arrivals)

    def verify_(self) -> None:
        block_of(self)
        _verify_mbarriers(self.barriers)
        if not 0 < self.arrivals.value.data <= MOST_ARRIVALS:
            raise VerifyException(f"{self.arrivals.value.data} arrivals; 1 to {MOST_ARRIVALS}")


@irdl_op_definition
class MbarrierArriveOp(KernelOp):
    """Arrive once, perhaps after announcing bytes that copies will bring in this phase.

    With a `rank`, at the mbarrier of the same place in that block of the program.
    """

    name = "simt.mbarrier_arrive"
    barriers = operand_def(MemRefType)
    index = operand_def(IndexType)
    rank = opt_operand_def(IndexType)
    bytes = opt_prop_def(NUMBER)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = (
        "$barriers `[` $index `]` (`of` `block` $rank^)? (`expect` $bytes^)? attr-dict `:` type($barriers)"
    )

    def __init__(
        self, barriers: SSAValue, index: SSAValue, bytes: int | None = None, rank: SSAValue | None = None
    ) -> None:
        super().__init__(barriers, index, rank, bytes=bytes)

    def verify_(self) -> None:
        block_of(self)
        _verify_mbarriers(self.barriers)
        if self.rank is not None and self.bytes is not None:
            raise VerifyException("bytes are announced to mbarriers of one's own block")
        if self.bytes is not None and not 0 < self.bytes.value.data <= MOST_ARRIVALS:
            raise VerifyException(f"announces {self.bytes.value.data} bytes; 1 to {MOST_ARRIVALS}")


@irdl_op_definition
class MbarrierWaitOp(KernelOp):
    """Wait until the phase of this parity is complete: phases count from 0, and before phase 0 lies one of parity 1."""

    name = "simt.mbarrier_wait"
    barriers = operand_def(MemRefType)
    index = operand_def(IndexType)
    parity = operand_def(IndexType)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = "$barriers `[` $index `]` `parity` $parity attr-dict `:` type($barriers)"

    def __init__(self, barriers: SSAValue, index: SSAValue, parity: SSAValue) -> None:
        super().__init__(barriers, index, parity)

    def verify_(self) -> None:
        block_of(self)
        _verify_mbarriers(self.barriers)


@irdl_op_definition
class FenceOp(KernelOp):
    """What this thread wrote to shared memory before is seen by asynchronous operations that start later.

    Of kind "async", by copies and products of this thread and of those that meet it at a barrier; of kind "mbarrier",
    the mbarriers that it made are.
    """

    name = "simt.fence"
    kind = prop_def(StringAttr)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = "$kind attr-dict"

    def __init__(self, kind: str) -> None:
        super().__init__(kind=kind)

    def verify_(self) -> None:
        block_of(self)
        verify_word(self.kind, FENCES)


class _TensorCopy(BulkCopy):
    """A copy that an engine does, and what it can do."""

    def verify_form(self, tensor: SSAValue, memory: SSAValue) -> None:
        block_of(self)
        super().verify_form(tensor, memory)
        form, size = self.form, element_bytes(tensor)
        if is_shared(tensor) or not is_shared(memory):
            raise VerifyException(f"copies between {tensor.type} and {memory.type}; global and shared memory")
        if len(form.sides) > TENSOR_RANK:
            raise VerifyException(f"{len(form.sides)} coordinates; {TENSOR_RANK} at most")
        if not all(is_distance(stride * size) for stride in form.strides[:-1]):
            raise VerifyException(f"strides {list(form.strides)}: but for the last, multiples of {ROW_MULTIPLE} bytes")
        if any(not 1 <= side <= BOX_EXTENT for side in form.sides) or form.sides[-1] * size % ROW_MULTIPLE:
            raise VerifyException(f"a box of {list(form.sides)}: 1 to {BOX_EXTENT} each, rows a multiple of 16 bytes")
        row, span = form.sides[-1] * size, form.swizzle
        if span not in SWIZZLES or (span and row > span):
            raise VerifyException(f"rows of {row} bytes swizzled by {span}; 32, 64 or 128, no longer")
        elements = tensor.type.get_shape()[0]  # type: ignore[attr-defined]
        if sum((extent - 1) * stride for extent, stride in zip(form.extents, form.strides, strict=True)) >= elements:
            fact = f"a tensor of {list(form.extents)} with strides {list(form.strides)}"
            raise VerifyException(f"{fact} in {tensor.type}")


@irdl_op_definition
class TensorLoadOp(_TensorCopy):
    """Start copying the box whose first element has these coordinates to ``memory[offset]``; an mbarrier counts its
    bytes, and whoever has waited for that phase sees it. `everywhere`: to this place in every block of the program,
    where the mbarrier of the same place counts them.
    """

    name = "simt.tensor_load"
    WRITES: ClassVar[int] = 1
    tensor = operand_def(MemRefType)
    memory = operand_def(MemRefType)
    offset = operand_def(IndexType)
    barriers = operand_def(MemRefType)
    barrier = operand_def(IndexType)
    everywhere = opt_prop_def(UnitAttr)
    assembly_format = (
        "$tensor `[` $coordinates `]` `to` $memory `[` $offset `]` `counted` $barriers `[` $barrier `]` "
        "`extents` $extents `strides` $strides `box` $box `swizzle` $swizzle (`everywhere` $everywhere^)? attr-dict "
        "`:` type($tensor) `,` type($memory) `,` type($barriers)"
    )

    def __init__(
        self, tensor: SSAValue, coordinates: Sequence[SSAValue], memory: SSAValue, offset: SSAValue,
        barriers: SSAValue, barrier: SSAValue, box: TensorMapBox, everywhere: bool = False,
    ) -> None:  # fmt: skip
        operands = (tensor, memory, offset, barriers, barrier, coordinates)
        super().__init__(*operands, **of_tensor_map(box), everywhere=everywhere)

    def verify_(self) -> None:
        self.verify_form(self.tensor, self.memory)
        _verify_mbarriers(self.barriers)
        if self.everywhere is not None and block_of(self).blocks == 1:
            raise VerifyException("a copy to all blocks of a program, which has one")


@irdl_op_definition
class TensorStoreOp(_TensorCopy):
    """Start copying ``memory[offset]`` on to the box whose first element has these coordinates."""

    name = "simt.tensor_store"
    WRITES: ClassVar[int] = 2
    memory = operand_def(MemRefType)
    offset = operand_def(IndexType)
    tensor = operand_def(MemRefType)
    assembly_format = (
        "$memory `[` $offset `]` `to` $tensor `[` $coordinates `]` `extents` $extents `strides` $strides `box` $box "
        "`swizzle` $swizzle attr-dict `:` type($memory) `,` type($tensor)"
    )

    def __init__(
        self, memory: SSAValue, offset: SSAValue, tensor: SSAValue, coordinates: Sequence[SSAValue], box: TensorMapBox
    ) -> None:
        super().__init__(memory, offset, tensor, coordinates, **of_tensor_map(box))

    def verify_(self) -> None:
        self.verify_form(self.tensor, self.memory)


@irdl_op_definition
class TensorCommitOp(Commit, InBlock):
    """The tensor stores that this thread has started since the last such commit are a group, perhaps an empty one."""

    name = "simt.tensor_commit"


@irdl_op_definition
class TensorWaitOp(Wait, InBlock):
    """Wait until all but the `pending` latest groups of this thread's stores have read their shared memory."""

    name = "simt.tensor_wait"


OPERATIONS: Final[tuple[type[Operation], ...]] = (
    WarpBarrierOp, MbarrierInitOp, MbarrierArriveOp, MbarrierWaitOp, FenceOp, TensorLoadOp, TensorStoreOp,
    TensorCommitOp, TensorWaitOp,
)  # fmt: skip
"""All of these, for the dialect."""

VIEW_OPERANDS: Final[dict[type[Operation], tuple[int, ...]]] = {
    MbarrierInitOp: (0,), MbarrierArriveOp: (0,), MbarrierWaitOp: (0,), TensorLoadOp: (0, 1, 3), TensorStoreOp: (0, 2),
}  # fmt: skip
"""Which operands are views, for the verifier."""
