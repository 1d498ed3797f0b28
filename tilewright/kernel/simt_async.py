"""The distributed form: barriers in memory that count arrivals and bytes, copies of boxes that they wait for.

An mbarrier is an element of 8 bytes of the memory of a block. A phase is complete once as many threads have arrived as
it was initialised with and all bytes that were announced are there; then the next phase begins. Whoever has waited for
a phase sees what the arriving threads wrote before, and the copies that it counted. A box of a tensor is moved by the
copy engine for one thread; elements outside of the tensor are zeros when loaded and left out when stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import DenseArrayBase, IndexType, IntegerAttr, IntegerType, MemRefType, StringAttr, i64
from xdsl.ir import SSAValue
from xdsl.irdl import (
    IRDLOperation,
    eq,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect
from xdsl.utils.exceptions import VerifyException

from tilewright.kernel.simt import block_of, element_bytes, is_shared
from tilewright.kernel.tile_types import element, i64s

MBARRIER_BYTES = 8
MOST_ARRIVALS = (1 << 20) - 1  # PTX ISA, "mbarrier.init"
SWIZZLES = (0, 32, 64, 128)  # bytes of the rows whose 16-byte groups change places
BOX_EXTENT = 256  # the longest side of a box, CUDA driver API, cuTensorMapEncodeTiled
TENSOR_RANK = 5
ROW_MULTIPLE = 16  # bytes of which rows of a tensor and of a box are multiples
FENCES = ("async", "mbarrier")


def _number(value: int) -> IntegerAttr[IntegerType]:
    return IntegerAttr(value, 64)


def _verify_mbarriers(view: SSAValue) -> None:
    if not is_shared(view) or element(view) != i64:
        raise VerifyException(f'mbarriers are i64 in memory space "shared", not {view.type}')


@irdl_op_definition
class MbarrierInitOp(IRDLOperation):
    """Make an mbarrier whose phases take `arrivals` arrivals. Others may use it after a fence and a barrier."""

    name = "simt.mbarrier_init"
    WRITES: ClassVar[int] = 0
    barriers = operand_def(MemRefType)
    index = operand_def(IndexType)
    arrivals = prop_def(IntegerAttr.constr(eq(i64)))
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = "$barriers `[` $index `]` `arrivals` $arrivals attr-dict `:` type($barriers)"

    def __init__(self, barriers: SSAValue, index: SSAValue, arrivals: int) -> None:
        super().__init__(operands=[barriers, index], properties={"arrivals": _number(arrivals)})

    def verify_(self) -> None:
        block_of(self)
        _verify_mbarriers(self.barriers)
        if not 0 < self.arrivals.value.data <= MOST_ARRIVALS:
            raise VerifyException(f"{self.arrivals.value.data} arrivals; 1 to {MOST_ARRIVALS}")


@irdl_op_definition
class MbarrierArriveOp(IRDLOperation):
    """Arrive once, perhaps after announcing bytes that copies will bring in this phase."""

    name = "simt.mbarrier_arrive"
    barriers = operand_def(MemRefType)
    index = operand_def(IndexType)
    bytes = opt_prop_def(IntegerAttr.constr(eq(i64)))
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = "$barriers `[` $index `]` (`expect` $bytes^)? attr-dict `:` type($barriers)"

    def __init__(self, barriers: SSAValue, index: SSAValue, bytes: int | None = None) -> None:
        announced = None if bytes is None else _number(bytes)
        super().__init__(operands=[barriers, index], properties={"bytes": announced})

    def verify_(self) -> None:
        block_of(self)
        _verify_mbarriers(self.barriers)
        if self.bytes is not None and not 0 < self.bytes.value.data <= MOST_ARRIVALS:
            raise VerifyException(f"announces {self.bytes.value.data} bytes; 1 to {MOST_ARRIVALS}")


@irdl_op_definition
class MbarrierWaitOp(IRDLOperation):
    """Wait until the phase of this parity is complete: phases count from 0, and before phase 0 lies one of parity 1."""

    name = "simt.mbarrier_wait"
    barriers = operand_def(MemRefType)
    index = operand_def(IndexType)
    parity = operand_def(IndexType)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = "$barriers `[` $index `]` `parity` $parity attr-dict `:` type($barriers)"

    def __init__(self, barriers: SSAValue, index: SSAValue, parity: SSAValue) -> None:
        super().__init__(operands=[barriers, index, parity])

    def verify_(self) -> None:
        block_of(self)
        _verify_mbarriers(self.barriers)


@irdl_op_definition
class FenceOp(IRDLOperation):
    """What this thread wrote to shared memory before is seen by asynchronous operations that start later.

    Of kind "async", by copies and products of this thread and of those that meet it at a barrier; of kind "mbarrier",
    the mbarriers that it made are.
    """

    name = "simt.fence"
    kind = prop_def(StringAttr)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = "$kind attr-dict"

    def __init__(self, kind: str) -> None:
        super().__init__(properties={"kind": StringAttr(kind)})

    def verify_(self) -> None:
        block_of(self)
        if self.kind.data not in FENCES:
            raise VerifyException(f"unknown kind {self.kind.data!r}; one of {', '.join(FENCES)}")


class _TensorCopy(IRDLOperation):
    """Which tensor and which box: extents, strides in elements and box, outermost first; the last stride is 1.

    In shared memory the box lies row-major; with `swizzle`, its rows have so many bytes at most, and groups of 16 bytes
    change places: bits 4 and up of an address are XORed with bits 7 and up.
    """

    @property
    def tensor(self) -> SSAValue:
        raise NotImplementedError

    @property
    def memory(self) -> SSAValue:
        raise NotImplementedError

    def numbers(self, name: str) -> tuple[int, ...]:
        found = self.properties[name]
        assert isinstance(found, DenseArrayBase)
        return tuple(int(number) for number in found.get_values())

    @property
    def box_extents(self) -> tuple[int, ...]:
        return self.numbers("box")

    @property
    def span(self) -> int:
        found = self.properties["swizzle"]
        assert isinstance(found, IntegerAttr)
        return int(found.value.data)

    def verify_copy(self, coordinates: int) -> None:
        block_of(self)
        extents, strides, box = (self.numbers(name) for name in ("extents", "strides", "box"))
        size = element_bytes(self.tensor)
        if is_shared(self.tensor) or not is_shared(self.memory) or element(self.tensor) != element(self.memory):
            raise VerifyException(f"copies between {self.tensor.type} and {self.memory.type}; global and shared memory")
        if not len(extents) == len(strides) == len(box) == coordinates or not 1 <= coordinates <= TENSOR_RANK:
            raise VerifyException(f"{coordinates} coordinates, extents {extents}, strides {strides}, box {box}")
        if strides[-1] != 1 or any(stride * size % ROW_MULTIPLE or stride <= 0 for stride in strides[:-1]):
            raise VerifyException(f"strides {list(strides)}: the last is 1, others multiples of {ROW_MULTIPLE} bytes")
        if any(not 1 <= extent <= BOX_EXTENT for extent in box) or box[-1] * size % ROW_MULTIPLE:
            raise VerifyException(f"a box of {list(box)}: 1 to {BOX_EXTENT} each, rows of a multiple of 16 bytes")
        if self.span not in SWIZZLES or (self.span and box[-1] * size > self.span):
            raise VerifyException(f"rows of {box[-1] * size} bytes swizzled by {self.span}; 32, 64 or 128, no longer")
        elements = self.tensor.type.get_shape()[0]  # type: ignore[attr-defined]
        if sum((extent - 1) * stride for extent, stride in zip(extents, strides, strict=True)) >= elements:
            raise VerifyException(f"a tensor of {list(extents)} with strides {list(strides)} in {self.tensor.type}")


@irdl_op_definition
class TensorLoadOp(_TensorCopy):
    """Start copying the box whose first element has these coordinates to ``target[offset]``; an mbarrier counts its
    bytes, and whoever has waited for that phase sees it.
    """

    name = "simt.tensor_load"
    WRITES: ClassVar[int] = 1
    source = operand_def(MemRefType)
    target = operand_def(MemRefType)
    offset = operand_def(IndexType)
    barriers = operand_def(MemRefType)
    barrier = operand_def(IndexType)
    coordinates = var_operand_def(IndexType)
    extents = prop_def(DenseArrayBase.constr(eq(i64)))
    strides = prop_def(DenseArrayBase.constr(eq(i64)))
    box = prop_def(DenseArrayBase.constr(eq(i64)))
    swizzle = prop_def(IntegerAttr.constr(eq(i64)))
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = (
        "$source `[` $coordinates `]` `to` $target `[` $offset `]` `counted` $barriers `[` $barrier `]` "
        "`extents` $extents `strides` $strides `box` $box `swizzle` $swizzle attr-dict "
        "`:` type($source) `,` type($target) `,` type($barriers)"
    )

    def __init__(
        self, source: SSAValue, coordinates: Sequence[SSAValue], target: SSAValue, offset: SSAValue,
        barriers: SSAValue, barrier: SSAValue, extents: Sequence[int], strides: Sequence[int], box: Sequence[int],
        swizzle: int,
    ) -> None:  # fmt: skip
        super().__init__(
            operands=[source, target, offset, barriers, barrier, list(coordinates)],
            properties={
                "extents": i64s(extents),
                "strides": i64s(strides),
                "box": i64s(box),
                "swizzle": _number(swizzle),
            },
        )

    @property
    def tensor(self) -> SSAValue:
        return self.source

    @property
    def memory(self) -> SSAValue:
        return self.target

    def verify_(self) -> None:
        self.verify_copy(len(self.coordinates))
        _verify_mbarriers(self.barriers)


@irdl_op_definition
class TensorStoreOp(_TensorCopy):
    """Start copying ``source[offset]`` on to the box whose first element has these coordinates."""

    name = "simt.tensor_store"
    WRITES: ClassVar[int] = 2
    source = operand_def(MemRefType)
    offset = operand_def(IndexType)
    target = operand_def(MemRefType)
    coordinates = var_operand_def(IndexType)
    extents = prop_def(DenseArrayBase.constr(eq(i64)))
    strides = prop_def(DenseArrayBase.constr(eq(i64)))
    box = prop_def(DenseArrayBase.constr(eq(i64)))
    swizzle = prop_def(IntegerAttr.constr(eq(i64)))
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = (
        "$source `[` $offset `]` `to` $target `[` $coordinates `]` `extents` $extents `strides` $strides `box` $box "
        "`swizzle` $swizzle attr-dict `:` type($source) `,` type($target)"
    )

    def __init__(
        self, source: SSAValue, offset: SSAValue, target: SSAValue, coordinates: Sequence[SSAValue],
        extents: Sequence[int], strides: Sequence[int], box: Sequence[int], swizzle: int,
    ) -> None:  # fmt: skip
        super().__init__(
            operands=[source, offset, target, list(coordinates)],
            properties={
                "extents": i64s(extents),
                "strides": i64s(strides),
                "box": i64s(box),
                "swizzle": _number(swizzle),
            },
        )

    @property
    def tensor(self) -> SSAValue:
        return self.target

    @property
    def memory(self) -> SSAValue:
        return self.source

    def verify_(self) -> None:
        self.verify_copy(len(self.coordinates))


@irdl_op_definition
class TensorCommitOp(IRDLOperation):
    """The tensor stores that this thread has started since the last such commit are a group, perhaps an empty one."""

    name = "simt.tensor_commit"
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = "attr-dict"

    def __init__(self) -> None:
        super().__init__()

    def verify_(self) -> None:
        block_of(self)


@irdl_op_definition
class TensorWaitOp(IRDLOperation):
    """Wait until all but the `pending` latest groups of this thread's stores have read their shared memory."""

    name = "simt.tensor_wait"
    pending = prop_def(IntegerAttr.constr(eq(i64)))
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = "$pending attr-dict"

    def __init__(self, pending: int) -> None:
        super().__init__(properties={"pending": _number(pending)})

    def verify_(self) -> None:
        block_of(self)
        if self.pending.value.data < 0:
            raise VerifyException(f"waits for {self.pending.value.data} groups")
