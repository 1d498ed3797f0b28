"""The distributed form of the tile program: what one thread of a block does, beside the operations of `dialect`.

A kernel with `threads` is in distributed form: a program of its grid is a block of threads that run the body together,
tiles are what one thread holds, `tile.program_id` is the block, and views with memory space "shared" are memory of the
block. Warps are runs of `warp` threads in the order of their linear number, x fastest. Operations that say "warp" are
executed by all threads of a warp at once; a fragment is the part of a matrix that one lane holds, in the order of the
record of level 3 that the operation names.

An asynchronous copy is under way until the thread that started it has waited for its group; others see it after a
barrier behind that wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar

from xdsl.dialects.builtin import AnyFloat, IndexType, MemRefType, StringAttr, TensorType, UnitAttr
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import (
    VarConstraint,
    base,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import MemoryAllocEffect, MemoryReadEffect, MemoryWriteEffect, Pure
from xdsl.utils.exceptions import VerifyException

from tilewright.errors import CompileError
from tilewright.kernel.dialect import I1, INDEX, FuncOp, check_precision, element, shape
from tilewright.kernel.groups import Commit, Wait
from tilewright.kernel.operation import NUMBER, KernelOp, verify_word
from tilewright.kernel.programs import kernel_of
from tilewright.kernel.records import record_of
from tilewright.kernel.tile_types import element_bytes as element_bytes
from tilewright.kernel.tile_types import tile_type

SHARED = StringAttr("shared")
COPY_BYTES = (4, 8, 16)
SHUFFLES = ("xor", "up", "down", "index")
ATOMICS = ("add", "max", "min", "and", "or", "xor", "exchange")
BARRIERS = 16  # of a block; the one without a number is that of all threads
ROW_BYTES = 16  # of one row of the 8 x 8 matrices that ldmatrix moves
THREE_PRODUCTS = "tf32x3"  # the precision of a product of fragments that is to become three


def is_shared(view: SSAValue | Attribute) -> bool:
    """Whether a view is of shared memory."""
    type_ = view.type if isinstance(view, SSAValue) else view
    return isinstance(type_, MemRefType) and type_.memory_space == SHARED


def block_of(op: Operation) -> FuncOp:
    """The kernel in distributed form that an operation is part of; VerifyException where there is none."""
    kernel = kernel_of(op)
    if not kernel.block:
        raise VerifyException("outside of a kernel with threads")
    return kernel


class InBlock(KernelOp):
    """Something that threads of a block do."""

    def verify_(self) -> None:
        block_of(self)


# Threads --------------------------------------------------------------------------------------------------------------


@irdl_op_definition
class ThreadIdOp(KernelOp):
    """The coordinate of this thread in its block along one axis."""

    name = "simt.thread_id"
    axis = prop_def(NUMBER)
    result = result_def(IndexType)
    traits = traits_def(Pure())
    assembly_format = "$axis attr-dict"

    def __init__(self, axis: int) -> None:
        super().__init__(results=[INDEX], axis=axis)

    def verify_(self) -> None:
        if not 0 <= self.axis.value.data < len(block_of(self).block):
            raise VerifyException(f"axis {self.axis.value.data} of a block")


@irdl_op_definition
class BarrierOp(KernelOp):
    """All threads of the block arrive before any goes on; what they wrote before it is seen after it.

    With a `number` from 1 to 15, the threads of some warps, `threads` in all, meet apart from the others.
    """

    name = "simt.barrier"
    number = opt_prop_def(NUMBER)
    threads = opt_prop_def(NUMBER)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = "(`number` $number^ `of` $threads)? attr-dict"

    def __init__(self, number: int | None = None, threads: int | None = None) -> None:
        super().__init__(number=number, threads=threads)

    def verify_(self) -> None:
        kernel = block_of(self)
        if (self.number is None) != (self.threads is None):
            raise VerifyException("a barrier of some warps has a number and a count of threads")
        if self.number is not None and not 1 <= self.number.value.data < BARRIERS:
            raise VerifyException(f"barrier {self.number.value.data}; 1 to {BARRIERS - 1}")
        if self.threads is not None:
            threads = self.threads.value.data
            if threads % kernel.lanes or not 0 < threads <= prod(kernel.block):
                raise VerifyException(
                    f"{threads} threads meet; whole warps of {kernel.lanes}, {prod(kernel.block)} at most"
                )


@irdl_op_definition
class ClusterBarrierOp(InBlock):
    """All threads of the program's blocks arrive before any goes on; what they wrote before it is seen after it."""

    name = "simt.cluster_barrier"
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = "attr-dict"


@irdl_op_definition
class ShuffleOp(KernelOp):
    """The value of another lane of the warp: of lane ``l xor n``, ``l - n`` (up), ``l + n`` (down) or ``n`` (index).

    A lane whose source lies outside the warp keeps its own value.
    """

    name = "simt.shuffle"
    T: ClassVar = VarConstraint("T", base(Attribute))
    kind = prop_def(StringAttr)
    value = operand_def(T)
    lane = operand_def(IndexType)
    result = result_def(T)
    traits = traits_def(MemoryReadEffect())  # not to be moved where not all lanes are
    assembly_format = "$kind $value `,` $lane attr-dict `:` type($result)"

    def __init__(self, kind: str, value: SSAValue, lane: SSAValue) -> None:
        super().__init__(value, lane, results=[value.type], kind=kind)

    def verify_(self) -> None:
        block_of(self)
        verify_word(self.kind, SHUFFLES)


# Shared memory ----------------------------------------------------------------------------------------------------


@irdl_op_definition
class SharedOp(KernelOp):
    """Shared memory, undefined at first; `offset` is its place in bytes, once that is decided."""

    name = "simt.shared"
    align = prop_def(NUMBER)
    offset = opt_prop_def(NUMBER)
    result = result_def(MemRefType)
    traits = traits_def(MemoryAllocEffect())
    assembly_format = "`align` $align (`at` $offset^)? attr-dict `:` type($result)"

    def __init__(self, type_: MemRefType[Attribute], align: int = 16, offset: int | None = None) -> None:
        super().__init__(results=[type_], align=align, offset=offset)

    @property
    def bytes(self) -> int:
        return int(self.result.type.get_shape()[0]) * element_bytes(self.result)

    def verify_(self) -> None:
        block_of(self)
        align = self.align.value.data
        if not is_shared(self.result):
            raise VerifyException(f'{self.result.type} is not in memory space "shared"')
        if align < element_bytes(self.result) or align & (align - 1):
            raise VerifyException(f"alignment of {align} bytes; a power of two, at least {element_bytes(self.result)}")
        if self.offset is not None and (self.offset.value.data < 0 or self.offset.value.data % align):
            raise VerifyException(f"lies at byte {self.offset.value.data}, not a multiple of {align}")


@irdl_op_definition
class AsyncCopyOp(KernelOp):
    """Start copying `elements` elements from global to shared memory, 4, 8 or 16 bytes, both places aligned to that.

    Elements from number `valid` on become zero and are not read. `bypass` leaves the first cache alone (16 bytes only).
    """

    name = "simt.async_copy"
    WRITES: ClassVar[int] = 2
    source = operand_def(MemRefType)
    source_offset = operand_def(IndexType)
    target = operand_def(MemRefType)
    target_offset = operand_def(IndexType)
    valid = opt_operand_def(IndexType)
    elements = prop_def(NUMBER)
    bypass = opt_prop_def(UnitAttr)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = (
        "$source `[` $source_offset `]` `to` $target `[` $target_offset `]` $elements (`valid` $valid^)? "
        "(`bypass` $bypass^)? attr-dict `:` type($source) `,` type($target)"
    )

    def __init__(
        self,
        source: SSAValue,
        source_offset: SSAValue,
        target: SSAValue,
        target_offset: SSAValue,
        elements: int,
        valid: SSAValue | None = None,
        bypass: bool = False,
    ) -> None:
        super().__init__(source, source_offset, target, target_offset, valid, elements=elements, bypass=bypass)

    @property
    def bytes(self) -> int:
        return int(self.elements.value.data) * element_bytes(self.source)

    def verify_(self) -> None:
        block_of(self)
        if is_shared(self.source) or not is_shared(self.target):
            raise VerifyException(f"copies from global to shared memory, not from {self.source.type}")
        if element(self.source) != element(self.target):
            raise VerifyException(f"copies {element(self.source)} into {element(self.target)}")
        if self.bytes not in COPY_BYTES:
            raise VerifyException(f"copies {self.bytes} bytes; 4, 8 or 16")
        if self.bypass is not None and self.bytes != 16:
            raise VerifyException(f"only copies of 16 bytes bypass the first cache, not of {self.bytes}")


@irdl_op_definition
class CommitOp(Commit, InBlock):
    """The copies that this thread has started since the last commit are a group, perhaps an empty one."""

    name = "simt.commit"


@irdl_op_definition
class WaitOp(Wait, InBlock):
    """Wait until at most `pending` of this thread's groups, the latest ones, are still under way."""

    name = "simt.wait"


@irdl_op_definition
class AtomicOp(KernelOp):
    """``old = view[offset]; view[offset] = kind(old, value)`` in one step, where mask holds; relaxed order.

    Without the mask's consent nothing is touched and the result is 0.
    """

    name = "simt.atomic"
    WRITES: ClassVar[int] = 1
    kind = prop_def(StringAttr)
    value = operand_def()
    view = operand_def(MemRefType)
    offset = operand_def(IndexType)
    mask = opt_operand_def(I1)
    unsigned = opt_prop_def(UnitAttr)
    result = result_def()
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = (
        "$kind $value `,` $view `[` $offset `]` (`mask` $mask^)? (`unsigned` $unsigned^)? attr-dict "
        "`:` type($value) `,` type($view) `->` type($result)"
    )

    def __init__(
        self, kind: str, value: SSAValue, view: SSAValue, offset: SSAValue, mask: SSAValue | None = None,
        unsigned: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(value, view, offset, mask, results=[value.type], kind=kind, unsigned=unsigned)

    def verify_(self) -> None:
        block_of(self)
        verify_word(self.kind, ATOMICS)
        wrong = self.kind.data in ("and", "or", "xor") and isinstance(self.value.type, AnyFloat)
        if wrong or shape(self.value) or not self.value.type == element(self.view) == self.result.type:
            raise VerifyException(f"{self.kind.data} of {self.value.type} on {self.view.type}")


# Fragments ------------------------------------------------------------------------------------------------------------


def _verify_rows(op: LoadMatrixOp | StoreMatrixOp, tile: SSAValue) -> None:
    block_of(op)
    count, size = op.count.value.data, element_bytes(op.view)
    if count not in (1, 2, 4):
        raise VerifyException(f"moves {count} matrices; 1, 2 or 4")
    if not is_shared(op.view) or element(op.view) != element(tile):
        raise VerifyException(f"moves {tile.type} between registers and {op.view.type}, not shared memory of that type")
    if op.transpose is not None and size != 2:
        raise VerifyException(f"transposes elements of {size} bytes; only of 2")
    if shape(tile) != (4 // size * count,):
        raise VerifyException(f"{count} matrices are {4 // size * count} elements of a lane, not {tile.type}")


@irdl_op_definition
class LoadMatrixOp(KernelOp):
    """Warp: load `count` matrices of 8 rows of 16 bytes; lane ``8 i + r`` says where row r of matrix i lies.

    A lane gets 4 bytes of each matrix: of row ``lane // 4`` the bytes from ``4 (lane % 4)`` on. With `transpose`
    (elements of 2 bytes) it gets those of the transposed matrix.
    """

    name = "simt.load_matrix"
    view = operand_def(MemRefType)
    offset = operand_def(IndexType)
    count = prop_def(NUMBER)
    transpose = opt_prop_def(UnitAttr)
    result = result_def(TensorType)
    traits = traits_def(MemoryReadEffect())
    assembly_format = (
        "$view `[` $offset `]` $count (`transpose` $transpose^)? attr-dict `:` type($view) `->` type($result)"
    )

    def __init__(self, view: SSAValue, offset: SSAValue, count: int, transpose: bool = False) -> None:
        result = tile_type([4 // element_bytes(view) * count], element(view))
        super().__init__(view, offset, results=[result], count=count, transpose=transpose)

    def verify_(self) -> None:
        _verify_rows(self, self.result)


@irdl_op_definition
class StoreMatrixOp(KernelOp):
    """Warp: the inverse of `load_matrix`."""

    name = "simt.store_matrix"
    WRITES: ClassVar[int] = 1
    value = operand_def(TensorType)
    view = operand_def(MemRefType)
    offset = operand_def(IndexType)
    count = prop_def(NUMBER)
    transpose = opt_prop_def(UnitAttr)
    traits = traits_def(MemoryWriteEffect())
    assembly_format = (
        "$value `,` $view `[` $offset `]` $count (`transpose` $transpose^)? attr-dict `:` type($value) `,` type($view)"
    )

    def __init__(self, value: SSAValue, view: SSAValue, offset: SSAValue, count: int, transpose: bool = False) -> None:
        super().__init__(value, view, offset, count=count, transpose=transpose)

    def verify_(self) -> None:
        _verify_rows(self, self.value)


@irdl_op_definition
class LoadFragmentOp(KernelOp):
    """Warp: load the fragment of operand `operand` ("a", "b" or "c") of an intrinsic from a matrix in memory.

    Element [r, c] lies at ``offset + r * stride + c``, or ``offset + r + c * stride`` with `columns`.
    """

    name = "simt.load_fragment"
    intrinsic = prop_def(StringAttr)
    operand = prop_def(StringAttr)
    view = operand_def(MemRefType)
    offset = operand_def(IndexType)
    stride = operand_def(IndexType)
    columns = opt_prop_def(UnitAttr)
    result = result_def(TensorType)
    traits = traits_def(MemoryReadEffect())
    assembly_format = (
        "$intrinsic $operand $view `[` $offset `,` $stride `]` (`columns` $columns^)? attr-dict "
        "`:` type($view) `->` type($result)"
    )

    def __init__(
        self, intrinsic: str, operand: str, view: SSAValue, offset: SSAValue, stride: SSAValue, elements: int,
        columns: bool = False,
    ) -> None:  # fmt: skip
        results = [tile_type([elements], element(view))]
        super().__init__(view, offset, stride, results=results, intrinsic=intrinsic, operand=operand, columns=columns)

    def verify_(self) -> None:
        block_of(self)
        if self.operand.data not in ("a", "b", "c"):
            raise VerifyException(f"operand {self.operand.data!r}; a, b or c")
        if element(self.view) != element(self.result):
            raise VerifyException(f"a fragment {self.result.type} from a view of {element(self.view)}")


@irdl_op_definition
class StoreFragmentOp(KernelOp):
    """Warp: write the result fragment of an intrinsic to a matrix in memory, the inverse of loading "c"."""

    name = "simt.store_fragment"
    WRITES: ClassVar[int] = 1
    intrinsic = prop_def(StringAttr)
    value = operand_def(TensorType)
    view = operand_def(MemRefType)
    offset = operand_def(IndexType)
    stride = operand_def(IndexType)
    columns = opt_prop_def(UnitAttr)
    traits = traits_def(MemoryWriteEffect())
    assembly_format = (
        "$intrinsic $value `,` $view `[` $offset `,` $stride `]` (`columns` $columns^)? attr-dict "
        "`:` type($value) `,` type($view)"
    )

    def __init__(
        self, intrinsic: str, value: SSAValue, view: SSAValue, offset: SSAValue, stride: SSAValue, columns: bool = False
    ) -> None:
        super().__init__(value, view, offset, stride, intrinsic=intrinsic, columns=columns)

    def verify_(self) -> None:
        block_of(self)
        if element(self.view) != element(self.value):
            raise VerifyException(f"a fragment {self.value.type} to a view of {element(self.view)}")


@irdl_op_definition
class MmaOp(KernelOp):
    """Warp: ``d = a * b + c`` on fragments, by the record that `intrinsic` names.

    With `precision` "tf32x3", three products of a record that reads tf32: of low parts of a and high ones of b
    (`tile.tf32`), of high and low ones, of high ones; their sum is rounded before it is added to c.
    """

    name = "simt.mma"
    ACC: ClassVar = VarConstraint("ACC", base(TensorType))
    intrinsic = prop_def(StringAttr)
    precision = opt_prop_def(StringAttr)
    a = operand_def(TensorType)
    b = operand_def(TensorType)
    c = operand_def(ACC)
    result = result_def(ACC)
    traits = traits_def(MemoryReadEffect())  # not to be moved where not all lanes are
    assembly_format = (
        "$intrinsic $a `,` $b `,` $c (`precision` $precision^)? attr-dict `:` type($a) `,` type($b) `,` type($c)"
    )

    def __init__(self, intrinsic: str, a: SSAValue, b: SSAValue, c: SSAValue, precision: str = "") -> None:
        super().__init__(a, b, c, results=[c.type], intrinsic=intrinsic, precision=precision or None)

    def verify_(self) -> None:
        block_of(self)
        check_precision(self.precision, self.a, self.b)
        if self.precision is not None and (self.precision.data != THREE_PRODUCTS or not _reads_tf32(self)):
            what = f"precision {self.precision.data!r} of {self.intrinsic.data}"
            raise VerifyException(f"{what}; {THREE_PRODUCTS!r} of what reads tf32")


def _reads_tf32(op: MmaOp) -> bool:
    try:
        return record_of(op).sources[0].dtype == "tf32"
    except CompileError as error:
        raise VerifyException(error.message) from None


# Registers of a thread ------------------------------------------------------------------------------------------------


@irdl_op_definition
class JoinOp(KernelOp):
    """Tiles of one dimension, one after the other."""

    name = "simt.join"
    parts = var_operand_def(TensorType)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$parts attr-dict `:` type($parts) `->` type($result)"

    def __init__(self, parts: Sequence[SSAValue]) -> None:
        total = sum(shape(part)[0] for part in parts)
        super().__init__(parts, results=[tile_type([total], element(parts[0]))])

    def verify_(self) -> None:
        if any(len(shape(part)) != 1 or element(part) != element(self.result) for part in self.parts):
            raise VerifyException(f"joins {', '.join(str(part.type) for part in self.parts)} to {self.result.type}")
        if (sum(shape(part)[0] for part in self.parts),) != shape(self.result):
            raise VerifyException(f"joins {len(self.parts)} tiles to {self.result.type}")


@irdl_op_definition
class PartOp(KernelOp):
    """Elements `start` and following ones of a tile of one dimension."""

    name = "simt.part"
    value = operand_def(TensorType)
    start = prop_def(NUMBER)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$value `[` $start `]` attr-dict `:` type($value) `->` type($result)"

    def __init__(self, value: SSAValue, start: int, count: int) -> None:
        super().__init__(value, results=[tile_type([count], element(value))], start=start)

    def verify_(self) -> None:
        start = self.start.value.data
        if len(shape(self.value)) != 1 or len(shape(self.result)) != 1 or element(self.value) != element(self.result):
            raise VerifyException(f"takes {self.result.type} out of {self.value.type}")
        if not 0 <= start <= shape(self.value)[0] - shape(self.result)[0]:
            raise VerifyException(f"elements {start} to {start + shape(self.result)[0] - 1} of {self.value.type}")
