"""The distributed form: products of four warps whose operands lie in shared memory, and what warps do apart.

Products are under way from their start until their group has been waited for: their results and accumulators may not
be used, nor their operands changed, before. The first product after other use of its registers stands behind a fence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from xdsl.dialects.builtin import DenseArrayBase, IndexType, MemRefType, StringAttr, TensorType
from xdsl.ir import SSAValue
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
    var_result_def,
)
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect, Pure
from xdsl.utils.exceptions import VerifyException

from tilewright.dataclass import dataclass
from tilewright.errors import CompileError
from tilewright.kernel.groups import Commit
from tilewright.kernel.hopper.simt_async import SWIZZLES
from tilewright.kernel.operation import NUMBER, NUMBERS, KernelOp, verify_word
from tilewright.kernel.records import extents_of_record, is_of_four_warps, record_of
from tilewright.kernel.simt import InBlock, block_of, element_bytes, is_shared
from tilewright.kernel.tile_types import I1, INDEX, element, i64s, shape

WARPS = 4  # of a group
ROWS = 64  # of a product
MOST_PENDING = 7  # groups that a wait can leave under way; PTX ISA, "wgmma.wait_group"
REGISTERS = ("grow", "shrink")


@dataclass(frozen=True)
class Matrix:
    """How an operand lies in shared memory, whatever its first byte: rows of `swizzle` bytes, 8 of which are a group.

    Not `transposed`, K runs along a row: rows m of A or n of B, `stride` bytes from one group to the next; without
    swizzle a row has 16 bytes, and `leading` lie between neighbours along K. `transposed`, m or n runs along a row: the
    rows are K, `stride` bytes from group to group, `leading` from one such column of rows to the next (without swizzle
    the two change roles). Bits 4 and up of an address are XORed with bits 7 and up, as many as the swizzle has.
    """

    leading: int
    stride: int
    swizzle: int
    transposed: bool

    def attribute(self) -> DenseArrayBase:
        return i64s([self.leading, self.stride, self.swizzle, int(self.transposed)])


def matrix_of(attribute: DenseArrayBase[Any]) -> Matrix:
    leading, stride, swizzle, transposed = (int(number) for number in attribute.get_values())
    return Matrix(leading, stride, swizzle, bool(transposed))


@irdl_op_definition
class WarpIdOp(InBlock):
    """The number of this thread's warp in its block: the same for all lanes, so that warps may branch on it."""

    name = "simt.warp_id"
    result = result_def(IndexType)
    traits = traits_def(Pure())
    assembly_format = "attr-dict"

    def __init__(self) -> None:
        super().__init__(results=[INDEX])


@irdl_op_definition
class ElectOp(InBlock):
    """Whether this lane is the one that acts for its warp, always the same one, all of whose lanes are there."""

    name = "simt.elect"
    result = result_def(I1)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = "attr-dict"

    def __init__(self) -> None:
        super().__init__(results=[I1])


@irdl_op_definition
class RegistersOp(KernelOp):
    """The threads of four warps hold `count` registers from here on: more than before ("grow"), or fewer ("shrink")."""

    name = "simt.registers"
    kind = prop_def(StringAttr)
    count = prop_def(NUMBER)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = "$kind $count attr-dict"

    def __init__(self, kind: str, count: int) -> None:
        super().__init__(kind=kind, count=count)

    def verify_(self) -> None:
        block_of(self)
        verify_word(self.kind, REGISTERS)
        if not 24 <= self.count.value.data <= 256 or self.count.value.data % 8:  # PTX ISA, "setmaxnreg"
            raise VerifyException(f"{self.count.value.data} registers; 24 to 256, a multiple of 8")


class _Passing(InBlock):
    """Passes registers on, so that nothing that uses them can be moved across."""

    values = var_operand_def(TensorType)
    made = var_result_def(TensorType)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    def verify_(self) -> None:
        super().verify_()
        if [value.type for value in self.operands] != [value.type for value in self.results]:
            raise VerifyException("results have not the types of the operands")


@irdl_op_definition
class WarpgroupFenceOp(_Passing):
    """These registers, written by other operations before, are ready for products."""

    name = "simt.warpgroup_fence"
    assembly_format = "$values attr-dict `:` type($values) `->` type($made)"

    def __init__(self, values: Sequence[SSAValue]) -> None:
        super().__init__(values, results=[[value.type for value in values]])


@irdl_op_definition
class WarpgroupMmaOp(KernelOp):
    """Four warps: start ``d = a * b + c``, by the record that `intrinsic` names.

    a is a fragment, or lies in shared memory from ``a[a_offset]`` on, as `a_matrix` says; b always does. a is M x K, b
    is N x K in the words of `Matrix`. A first element lies at the start of a group of rows, perhaps inside of a row.
    """

    name = "simt.warpgroup_mma"
    ACC: ClassVar = VarConstraint("ACC", base(TensorType))
    intrinsic = prop_def(StringAttr)
    a = operand_def(base(TensorType) | base(MemRefType))
    a_offset = opt_operand_def(IndexType)
    b = operand_def(MemRefType)
    b_offset = operand_def(IndexType)
    c = operand_def(ACC)
    a_matrix = opt_prop_def(NUMBERS)
    b_matrix = prop_def(NUMBERS)
    result = result_def(ACC)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = (
        "$intrinsic $a (`[` $a_offset^ `]` `matrix` $a_matrix)? `,` $b `[` $b_offset `]` `matrix` $b_matrix `,` $c "
        "attr-dict `:` type($a) `,` type($b) `,` type($c)"
    )

    def __init__(
        self, intrinsic: str, a: SSAValue, a_offset: SSAValue | None, a_matrix: Matrix | None, b: SSAValue,
        b_offset: SSAValue, b_matrix: Matrix, c: SSAValue,
    ) -> None:  # fmt: skip
        in_memory, b_form = None if a_matrix is None else a_matrix.attribute(), b_matrix.attribute()
        operands = (a, a_offset, b, b_offset, c)
        super().__init__(*operands, results=[c.type], intrinsic=intrinsic, a_matrix=in_memory, b_matrix=b_form)

    def verify_(self) -> None:
        block_of(self)
        try:
            record = record_of(self)
        except CompileError as error:
            raise VerifyException(error.message) from None
        if not is_of_four_warps(record):
            raise VerifyException(f"{record.name!r} is no product of four warps")
        _, n, k = extents_of_record(record)
        size = element_bytes(self.b)
        if k * size != 32:
            raise VerifyException(f"{self.intrinsic.data} on elements {element(self.b)}")
        if shape(self.c) != (n // 2,):
            raise VerifyException(f"a thread holds {n // 2} elements of the result, not {self.c.type}")
        if not isinstance(self.c.owner, WarpgroupMmaOp | WarpgroupFenceOp):
            raise VerifyException("the registers of c come from a fence or from another product")
        if isinstance(self.a.type, TensorType):
            if self.a_offset is not None or self.a_matrix is not None or shape(self.a) != (k // 2,):
                raise VerifyException(f"a thread holds {k // 2} elements of a, not {self.a.type}")
        elif self.a_offset is None or self.a_matrix is None:
            raise VerifyException("a lies in shared memory: it needs an offset and a matrix")
        for view, matrix in ((self.a, self.a_matrix), (self.b, self.b_matrix)):
            if matrix is None:
                continue
            if not is_shared(view) or element(view) != element(self.b):
                raise VerifyException(f"operands {self.a.type} and {self.b.type}: shared memory of one type")
            if len(matrix.get_values()) != 4:
                raise VerifyException("a matrix is leading and stride in bytes, swizzle, and whether it is transposed")
            form = matrix_of(matrix)
            if form.leading % 16 or form.stride % 16 or form.swizzle not in SWIZZLES:
                raise VerifyException(f"{form}: multiples of 16 bytes; swizzle 0, 32, 64 or 128")
            if form.transposed and size != 2:
                raise VerifyException(f"transposes elements of {size} bytes; only of 2")


@irdl_op_definition
class WarpgroupCommitOp(Commit, InBlock):
    """The products that these warps have started since the last such commit are a group."""

    name = "simt.warpgroup_commit"


@irdl_op_definition
class WarpgroupWaitOp(_Passing):
    """Wait until at most the `pending` latest groups of products are under way; passes accumulators on."""

    name = "simt.warpgroup_wait"
    pending = prop_def(NUMBER)
    assembly_format = "$pending $values attr-dict `:` type($values) `->` type($made)"

    def __init__(self, pending: int, values: Sequence[SSAValue]) -> None:
        super().__init__(values, results=[[value.type for value in values]], pending=pending)

    def verify_(self) -> None:
        super().verify_()
        if not 0 <= self.pending.value.data <= MOST_PENDING:
            raise VerifyException(f"waits for all but {self.pending.value.data} groups; 0 to {MOST_PENDING}")
