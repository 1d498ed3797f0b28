"""The tile program: operations on views of memory and on statically shaped tiles.

Made by `lower` (and later by `language`); read by `kernel.passes`, `kernel.interpreter` and `codegen`. Element
arithmetic is `arith` and `math` on scalars and on tensors alike, control flow is `scf.for` and `scf.if`; this dialect
adds what those lack: programs, launches, views, tiles, products.

A view is a flat `memref<Nxt>`; an access gives an element offset and one static stride per tile dimension, so element
``t`` of a tile lies at ``offset + sum_d t[d] * strides[d]``. bool is stored as i8. Integers are signless; operations
whose meaning depends on the sign say `unsigned`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar

from xdsl.dialects.builtin import (
    AnyFloat,
    IndexType,
    IntegerType,
    MemRefType,
    StringAttr,
    TensorType,
    UnitAttr,
    f32,
    i64,
)
from xdsl.ir import Attribute, Operation, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    ParsePropInAttrDict,
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

from tilewright.kernel.host_loops import FirstOp as FirstOp
from tilewright.kernel.host_loops import LoopOp as LoopOp
from tilewright.kernel.host_loops import SliceOp as SliceOp
from tilewright.kernel.operation import NUMBER, NUMBERS, KernelOp, verify_word, with_direct_access
from tilewright.kernel.programs import BlockRankOp as BlockRankOp
from tilewright.kernel.programs import BufferOp as BufferOp
from tilewright.kernel.programs import FuncOp as FuncOp
from tilewright.kernel.programs import LaunchOp as LaunchOp
from tilewright.kernel.programs import MainOp as MainOp
from tilewright.kernel.programs import ProgramIdOp as ProgramIdOp
from tilewright.kernel.programs import ReturnOp as ReturnOp
from tilewright.kernel.registers import EmptyRegistersOp as EmptyRegistersOp
from tilewright.kernel.scans import ScanOp as ScanOp
from tilewright.kernel.shared_memory import AwaitOp as AwaitOp
from tilewright.kernel.shared_memory import BarrierOp as BarrierOp
from tilewright.kernel.shared_memory import CommitOp as CommitOp
from tilewright.kernel.shared_memory import StageOp as StageOp
from tilewright.kernel.shared_memory import StagingOp as StagingOp
from tilewright.kernel.shared_memory import UnstageOp as UnstageOp
from tilewright.kernel.tile_types import I1 as I1
from tilewright.kernel.tile_types import INDEX as INDEX
from tilewright.kernel.tile_types import element as element
from tilewright.kernel.tile_types import shape as shape
from tilewright.kernel.tile_types import tile_type as tile_type
from tilewright.kernel.tile_types import verify_view
from tilewright.options import INPUT_PRECISIONS

PREDICATES = ("eq", "ne", "lt", "le", "gt", "ge")
REDUCTIONS = ("sum", "prod", "max", "min")
TF32_KINDS = ("nearest", "high", "low")


def strides_of(op: LoadOp | StoreOp) -> tuple[int, ...]:
    return tuple(int(stride) for stride in op.strides.get_values())


# Memory ---------------------------------------------------------------------------------------------------------------


@irdl_op_definition
class AllocOp(KernelOp):
    """Scratch memory private to one program; its contents are undefined at first."""

    name = "tile.alloc"
    result = result_def(MemRefType)
    traits = traits_def(MemoryAllocEffect())
    assembly_format = "attr-dict `:` type($result)"

    def __init__(self, type_: MemRefType[Attribute]) -> None:
        super().__init__(results=[type_])

    def verify_(self) -> None:
        verify_view(self.result.type)


def _verify_access(op: LoadOp | StoreOp, tile: SSAValue) -> None:
    extents = shape(tile)
    if len(strides_of(op)) != len(extents):
        raise VerifyException(f"{len(strides_of(op))} strides for a tile of {len(extents)} dimensions")
    if op.bounds and len(op.bounds) != len(extents):
        raise VerifyException(f"{len(op.bounds)} bounds for a tile of {len(extents)} dimensions")
    if element(tile) != element(op.view):
        raise VerifyException(f"a tile of {element(tile)} from a view of {element(op.view)}")
    if op.mask is not None and (shape(op.mask) != extents or element(op.mask) != I1):
        raise VerifyException(f"mask {op.mask.type} for a tile {tile.type}")
    align = 1 if op.align is None else op.align.value.data
    if align < 1 or align & (align - 1):
        raise VerifyException(f"alignment of {align} bytes; a power of two")


@irdl_op_definition
class LoadOp(KernelOp):
    """Read a tile: ``d[t] = view[offset + sum t*strides]`` where ``t < bounds`` in every dimension and mask[t], else 0.

    Elements outside bounds or mask are not touched in memory, and may lie outside the view if another element of the
    access is read. An access of no element forms only places inside the view: processors take long over a masked load
    from memory that is not mapped. `align` promises that the tile begins at a multiple of so many bytes from the start
    of its memory.
    """

    name = "tile.load"
    view = operand_def(MemRefType)
    offset = operand_def(IndexType)
    bounds = var_operand_def(IndexType)
    mask = opt_operand_def()
    strides = prop_def(NUMBERS)
    align = opt_prop_def(NUMBER)
    result = result_def()
    irdl_options = (AttrSizedOperandSegments(as_property=True), ParsePropInAttrDict())
    traits = traits_def(MemoryReadEffect())
    assembly_format = (
        "$view `[` $offset `]` (`bounds` `(` $bounds^ `)`)? (`mask` $mask^ `:` type($mask))? "
        "`strides` $strides (`align` $align^)? attr-dict `:` type($view) `->` type($result)"
    )

    def __init__(
        self,
        view: SSAValue,
        offset: SSAValue,
        extents: Sequence[int] = (),
        strides: Sequence[int] = (),
        bounds: Sequence[SSAValue] = (),
        mask: SSAValue | None = None,
        align: int | None = None,
    ) -> None:
        super().__init__(
            view, offset, bounds, mask, results=[tile_type(extents, element(view))], strides=strides, align=align
        )

    def verify_(self) -> None:
        _verify_access(self, self.result)


@irdl_op_definition
class LoadBoxOp(KernelOp):
    """Read a box of a tensor: ``d[t] = view[sum (coordinates + t)*strides]`` inside of its extents, else 0.

    Coordinates may be negative. The result has the sides of the box. Elements outside of the tensor are not touched.
    """

    name = "tile.load_box"
    view = operand_def(MemRefType)
    coordinates = var_operand_def(IndexType)
    extents = prop_def(NUMBERS)
    strides = prop_def(NUMBERS)
    result = result_def(TensorType)
    traits = traits_def(MemoryReadEffect())
    assembly_format = (
        "$view `[` $coordinates `]` `extents` $extents `strides` $strides attr-dict `:` type($view) `->` type($result)"
    )

    def __init__(
        self, view: SSAValue, coordinates: Sequence[SSAValue], extents: Sequence[int], strides: Sequence[int],
        sides: Sequence[int],
    ) -> None:  # fmt: skip
        result = tile_type(sides, element(view))
        super().__init__(view, coordinates, results=[result], extents=extents, strides=strides)

    @property
    def tensor(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Extents and strides."""
        extents, strides = (tuple(int(n) for n in each.get_values()) for each in (self.extents, self.strides))
        return extents, strides

    def verify_(self) -> None:
        extents, strides = self.tensor
        ranks = {len(extents), len(strides), len(self.coordinates), len(shape(self.result))}
        if len(ranks) != 1:
            fact = f"extents {list(extents)}, strides {list(strides)}, {len(self.coordinates)} coordinates"
            raise VerifyException(f"{fact}, a box of {self.result.type}")
        if element(self.view) != element(self.result):
            raise VerifyException(f"reads {self.view.type} as {self.result.type}")
        verify_view(self.view.type)
        last = sum((extent - 1) * stride for extent, stride in zip(extents, strides, strict=True))
        assert isinstance(self.view.type, MemRefType)
        if min(extents) < 1 or min(strides) < 1 or last >= self.view.type.get_shape()[0]:
            raise VerifyException(f"a tensor of {list(extents)} with strides {list(strides)} in {self.view.type}")


@irdl_op_definition
class StoreOp(KernelOp):
    """Write a tile where bounds and mask allow: ``view[offset + sum t*strides] = value[t]``.

    `nontemporal` says that the data will not be read soon and may bypass the caches; `align` and what an access of no
    element may form are as for a load.
    """

    name = "tile.store"
    WRITES: ClassVar[int] = 1
    value = operand_def()
    view = operand_def(MemRefType)
    offset = operand_def(IndexType)
    bounds = var_operand_def(IndexType)
    mask = opt_operand_def()
    strides = prop_def(NUMBERS)
    nontemporal = opt_prop_def(UnitAttr)
    align = opt_prop_def(NUMBER)
    irdl_options = (AttrSizedOperandSegments(as_property=True), ParsePropInAttrDict())
    traits = traits_def(MemoryWriteEffect())
    assembly_format = (
        "$value `,` $view `[` $offset `]` (`bounds` `(` $bounds^ `)`)? (`mask` $mask^ `:` type($mask))? "
        "`strides` $strides (`nontemporal` $nontemporal^)? (`align` $align^)? attr-dict "
        "`:` type($value) `,` type($view)"
    )

    def __init__(
        self,
        value: SSAValue,
        view: SSAValue,
        offset: SSAValue,
        strides: Sequence[int] = (),
        bounds: Sequence[SSAValue] = (),
        mask: SSAValue | None = None,
        nontemporal: bool = False,
        align: int | None = None,
    ) -> None:
        super().__init__(value, view, offset, bounds, mask, strides=strides, nontemporal=nontemporal, align=align)

    def verify_(self) -> None:
        _verify_access(self, self.value)


@irdl_op_definition
class GatherOp(KernelOp):
    """Read single elements: ``d[t] = view[offsets[t]]`` where mask[t], else 0. Offsets are i64 elements.

    Where the mask leaves no element, all offsets lie inside the view, as for a load.
    """

    name = "tile.gather"
    view = operand_def(MemRefType)
    offsets = operand_def()
    mask = opt_operand_def()
    result = result_def()
    traits = traits_def(MemoryReadEffect())
    assembly_format = (
        "$view `[` $offsets `:` type($offsets) `]` (`mask` $mask^ `:` type($mask))? attr-dict "
        "`:` type($view) `->` type($result)"
    )

    def __init__(self, view: SSAValue, offsets: SSAValue, mask: SSAValue | None = None) -> None:
        super().__init__(view, offsets, mask, results=[tile_type(shape(offsets), element(view))])

    def verify_(self) -> None:
        if element(self.offsets) != i64:
            raise VerifyException(f"gathers with offsets of {element(self.offsets)}, not i64")
        if shape(self.offsets) != shape(self.result):
            raise VerifyException(f"gathers {self.result.type} with offsets {self.offsets.type}")
        if self.mask is not None and (shape(self.mask) != shape(self.result) or element(self.mask) != I1):
            raise VerifyException(f"mask {self.mask.type} for {self.result.type}")


@irdl_op_definition
class PrefetchOp(KernelOp):
    """A hint that `bytes` bytes from ``view[offset]`` on will be read soon; the place may lie outside the view."""

    name = "tile.prefetch"
    view = operand_def(MemRefType)
    offset = operand_def(IndexType)
    bytes = prop_def(NUMBER)
    assembly_format = "$view `[` $offset `]` $bytes attr-dict `:` type($view)"

    def __init__(self, view: SSAValue, offset: SSAValue, bytes: int) -> None:
        super().__init__(view, offset, bytes=bytes)

    def verify_(self) -> None:
        if self.bytes.value.data <= 0:
            raise VerifyException(f"prefetches {self.bytes.value.data} bytes")


# Tiles ----------------------------------------------------------------------------------------------------------------


@irdl_op_definition
class IotaOp(KernelOp):
    """Counts along one dimension: ``d[t] = t[axis]``, as i64."""

    name = "tile.iota"
    axis = prop_def(NUMBER)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$axis attr-dict `:` type($result)"

    def __init__(self, extents: Sequence[int], axis: int) -> None:
        super().__init__(results=[tile_type(extents, i64)], axis=axis)

    def verify_(self) -> None:
        if not 0 <= self.axis.value.data < len(shape(self.result)) or element(self.result) != i64:
            raise VerifyException(f"axis {self.axis.value.data} of {self.result.type}")


@irdl_op_definition
class BroadcastOp(KernelOp):
    """A scalar, or a tile of the same rank with extents of 1, repeated to a larger shape."""

    name = "tile.broadcast"
    value = operand_def()
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$value attr-dict `:` type($value) `->` type($result)"

    def __init__(self, value: SSAValue, extents: Sequence[int]) -> None:
        super().__init__(value, results=[tile_type(extents, element(value))])

    def verify_(self) -> None:
        source, target = shape(self.value), shape(self.result)
        ranks = not source or len(source) == len(target)
        if not ranks or any(s not in (1, t) for s, t in zip(source, target, strict=False)):
            raise VerifyException(f"cannot repeat {self.value.type} to {self.result.type}")
        if element(self.value) != element(self.result):
            raise VerifyException(f"changes the element type of {self.value.type} to {element(self.result)}")


@irdl_op_definition
class ReshapeOp(KernelOp):
    """The same elements in row-major order under another shape; a one-element tile may become a scalar."""

    name = "tile.reshape"
    value = operand_def()
    result = result_def()
    traits = traits_def(Pure())
    assembly_format = "$value attr-dict `:` type($value) `->` type($result)"

    def __init__(self, value: SSAValue, extents: Sequence[int]) -> None:
        super().__init__(value, results=[tile_type(extents, element(value))])

    def verify_(self) -> None:
        if prod(shape(self.value)) != prod(shape(self.result)):
            raise VerifyException(f"reshapes {self.value.type} to {self.result.type}")
        if element(self.value) != element(self.result):
            raise VerifyException(f"changes the element type of {self.value.type} to {element(self.result)}")


@irdl_op_definition
class ConvertOp(KernelOp):
    """The same tile in another layout: which thread and register hold which element."""

    name = "tile.convert"
    value = operand_def(TensorType)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$value attr-dict `:` type($value) `->` type($result)"

    def __init__(self, value: SSAValue, type_: Attribute) -> None:
        super().__init__(value, results=[type_])

    def verify_(self) -> None:
        if shape(self.value) != shape(self.result) or element(self.value) != element(self.result):
            raise VerifyException(f"converts {self.value.type} to {self.result.type}")


@irdl_op_definition
class RemainderOp(KernelOp):
    """``d = a - q * b`` on floats, q the quotient without its fraction: exact, with the sign of a; NaN for b = 0."""

    name = "tile.remainder"
    T: ClassVar = VarConstraint("T", base(Attribute))
    a = operand_def(T)
    b = operand_def(T)
    result = result_def(T)
    traits = traits_def(Pure())
    assembly_format = "$a `,` $b attr-dict `:` type($result)"

    def __init__(self, a: SSAValue, b: SSAValue) -> None:
        super().__init__(a, b, results=[a.type])

    def verify_(self) -> None:
        if not isinstance(element(self.a), AnyFloat):
            raise VerifyException(f"the remainder of {self.a.type}, which are no floats")


class _OfFloats(KernelOp):
    """A function of floats."""

    T: ClassVar = VarConstraint("T", base(Attribute))
    operand = operand_def(T)
    result = result_def(T)
    traits = traits_def(Pure())
    assembly_format = "$operand attr-dict `:` type($result)"

    def __init__(self, operand: SSAValue) -> None:
        super().__init__(operand, results=[operand.type])

    def verify_(self) -> None:
        if not isinstance(element(self.operand), AnyFloat):
            raise VerifyException(f"{self.name} of {self.operand.type}, which are no floats")


@irdl_op_definition
class ExpNonpositiveOp(_OfFloats):
    """e to an x of at most 0; where that is no normal number it may be 0. Of x above 0 any value."""

    name = "tile.exp_nonpositive"


@irdl_op_definition
class SigmoidOp(_OfFloats):
    """``1 / (1 + exp(-x))``."""

    name = "tile.sigmoid"


@irdl_op_definition
class NormalCdfOp(_OfFloats):
    """``(1 + erf(x / sqrt 2)) / 2``: what GELU multiplies by."""

    name = "tile.normal_cdf"


@irdl_op_definition
class NormalCdfTanhOp(_OfFloats):
    """``(1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2``: its approximation in GELU by tanh."""

    name = "tile.normal_cdf_tanh"


@irdl_op_definition
class CompareOp(KernelOp):
    """Element comparison; on floats every predicate but `ne` is false where an operand is NaN. i1 counts as 0 and 1."""

    name = "tile.compare"
    T: ClassVar = VarConstraint("T", base(Attribute))
    predicate = prop_def(StringAttr)
    unsigned = opt_prop_def(UnitAttr)
    lhs = operand_def(T)
    rhs = operand_def(T)
    result = result_def()
    traits = traits_def(Pure())
    assembly_format = "$predicate $lhs `,` $rhs (`unsigned` $unsigned^)? attr-dict `:` type($lhs) `->` type($result)"

    def __init__(self, predicate: str, lhs: SSAValue, rhs: SSAValue, unsigned: bool = False) -> None:
        super().__init__(lhs, rhs, results=[tile_type(shape(lhs), I1)], predicate=predicate, unsigned=unsigned)

    def verify_(self) -> None:
        verify_word(self.predicate, PREDICATES, "predicate")
        if shape(self.lhs) != shape(self.result) or element(self.result) != I1:
            raise VerifyException(f"compares {self.lhs.type} into {self.result.type}")


@irdl_op_definition
class SelectOp(KernelOp):
    """``d[t] = condition[t] ? yes[t] : no[t]``; both sides are evaluated. A scalar condition chooses for the tile."""

    name = "tile.select"
    T: ClassVar = VarConstraint("T", base(Attribute))
    condition = operand_def()
    yes = operand_def(T)
    no = operand_def(T)
    result = result_def(T)
    traits = traits_def(Pure())
    assembly_format = "$condition `,` $yes `,` $no attr-dict `:` type($condition) `,` type($result)"

    def __init__(self, condition: SSAValue, yes: SSAValue, no: SSAValue) -> None:
        super().__init__(condition, yes, no, results=[yes.type])

    def verify_(self) -> None:
        if element(self.condition) != I1 or shape(self.condition) not in ((), shape(self.yes)):
            raise VerifyException(f"condition {self.condition.type} for {self.yes.type}")


@irdl_op_definition
class CastOp(KernelOp):
    """Element conversion. Float to integer truncates (saturating, NaN to 0), integers wrap, to i1 is ``!= 0``.

    To a float rounds to nearest even. `unsigned` says that the integer side, or the source where both are integers, is
    unsigned. i1 counts as 0 and 1.
    """

    name = "tile.cast"
    value = operand_def()
    unsigned = opt_prop_def(UnitAttr)
    result = result_def()
    traits = traits_def(Pure())
    assembly_format = "$value (`unsigned` $unsigned^)? attr-dict `:` type($value) `->` type($result)"

    def __init__(self, value: SSAValue, element_type: Attribute, unsigned: bool = False) -> None:
        super().__init__(value, results=[tile_type(shape(value), element_type)], unsigned=unsigned)

    def verify_(self) -> None:
        if shape(self.value) != shape(self.result):
            raise VerifyException(f"casts {self.value.type} to {self.result.type}")


@irdl_op_definition
class Tf32Op(KernelOp):
    """f32 as numbers of 10 bits of mantissa, which stay f32: what instructions that read tf32 see of it.

    Kind "nearest" rounds, ties away from zero; what is too large becomes infinite, and of infinities and NaN the last
    13 bits go. "high" does the same to what rounds to something finite; of all else it gives a finite number, with
    the sign of an infinity. "low" is the rest, ``x - high(x)``, exact: 12 bits, so that reading it as tf32 costs one.
    """

    name = "tile.tf32"
    T: ClassVar = VarConstraint("T", base(Attribute))
    kind = prop_def(StringAttr)
    value = operand_def(T)
    result = result_def(T)
    traits = traits_def(Pure())
    assembly_format = "$kind $value attr-dict `:` type($result)"

    def __init__(self, kind: str, value: SSAValue) -> None:
        super().__init__(value, results=[value.type], kind=kind)

    def verify_(self) -> None:
        verify_word(self.kind, TF32_KINDS)
        if element(self.value) != f32:
            raise VerifyException(f"reads {self.value.type} as tf32, not f32")


@irdl_op_definition
class ReduceOp(KernelOp):
    """Combine along one dimension, which becomes 1; the order is open. `kind` is sum, prod, max or min (NaN wins).

    i1 counts as 0 and 1, and sums wrap to one bit. With `nnan` a NaN may be passed over. The flag
    means the same at `arith.maximumf` and `arith.minimumf`.
    """

    name = "tile.reduce"
    kind = prop_def(StringAttr)
    axis = prop_def(NUMBER)
    unsigned = opt_prop_def(UnitAttr)
    nnan = opt_prop_def(UnitAttr)
    value = operand_def(TensorType)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = (
        "$kind $value `,` $axis (`unsigned` $unsigned^)? (`nnan` $nnan^)? attr-dict `:` type($value) `->` type($result)"
    )

    def __init__(self, kind: str, value: SSAValue, axis: int, unsigned: bool = False, nnan: bool = False) -> None:
        extents = list(shape(value))
        extents[axis] = 1
        results = [tile_type(extents, element(value))]
        super().__init__(value, results=results, kind=kind, axis=axis, unsigned=unsigned, nnan=nnan)

    def verify_(self) -> None:
        extents = list(shape(self.value))
        axis = self.axis.value.data
        verify_word(self.kind, REDUCTIONS, "reduction")
        if not 0 <= axis < len(extents):
            raise VerifyException(f"reduces axis {axis} of {self.value.type}")
        extents[axis] = 1
        if tuple(extents) != shape(self.result) or element(self.value) != element(self.result):
            raise VerifyException(f"reduces axis {axis} of {self.value.type} to {self.result.type}")


@irdl_op_definition
class DotOp(KernelOp):
    """Multiply and accumulate: ``d[m, n] = c[m, n] + sum_k a[m, k] * b[k, n]``.

    With grouped operands b is ``K/g x N x g`` and stands for ``b[k // g, n, k % g]``, the order in which dot-product
    instructions read it. Products are formed and added in the element type of c; the order over k is open. `intrinsic`
    names the instruction chosen for it (level 3); `unsigned` lists the operands ("a", "b") whose integers are unsigned.
    `precision` says what factors of f32 may be read as: themselves ("ieee"), "tf32", or sums of two such ("tf32x3");
    what reads more of them serves as well. Without it, an instruction reads them as it does.
    """

    name = "tile.dot"
    ACC: ClassVar = VarConstraint("ACC", base(TensorType))
    a = operand_def(TensorType)  # M x K
    b = operand_def(TensorType)  # K x N, or K/g x N x g
    c = operand_def(ACC)  # M x N
    result = result_def(ACC)  # M x N
    intrinsic = prop_def(StringAttr)
    unsigned = prop_def(StringAttr)
    precision = opt_prop_def(StringAttr)
    traits = traits_def(Pure())
    assembly_format = (
        "$intrinsic $a `,` $b `,` $c `unsigned` $unsigned (`precision` $precision^)? attr-dict "
        "`:` type($a) `,` type($b) `,` type($c)"
    )

    def __init__(
        self, intrinsic: str, a: SSAValue, b: SSAValue, c: SSAValue, unsigned: str = "", precision: str = ""
    ) -> None:
        super().__init__(a, b, c, results=[c.type], intrinsic=intrinsic, unsigned=unsigned, precision=precision or None)

    def verify_(self) -> None:
        if len(shape(self.a)) != 2 or len(shape(self.c)) != 2 or len(shape(self.b)) not in (2, 3):
            raise VerifyException(f"multiplies {self.a.type} and {self.b.type} into {self.c.type}")
        (m, k), (rows, n, *group) = shape(self.a), shape(self.b)
        if rows * prod(group) != k:
            raise VerifyException(f"contracts {k} columns of a with {rows * prod(group)} rows of b")
        if shape(self.c) != (m, n):
            raise VerifyException(f"adds {m}x{n} products to c: {self.c.type}")
        kinds = {isinstance(element(tile), IntegerType | IndexType) for tile in (self.a, self.b, self.c)}
        if len(kinds) > 1:
            raise VerifyException(f"mixes integers and floats: {self.a.type}, {self.b.type}, {self.c.type}")
        if not set(self.unsigned.data) <= {"a", "b"}:
            raise VerifyException(f"unsigned operands {self.unsigned.data!r}; some of a and b")
        check_precision(self.precision, self.a, self.b)


def check_precision(precision: StringAttr | None, a: SSAValue, b: SSAValue) -> None:
    """VerifyException for a precision that there is not, or that a product of other factors than f32 has."""
    if precision is None:
        return
    verify_word(precision, INPUT_PRECISIONS, "precision")
    if element(a) != f32 or element(b) != f32:
        raise VerifyException(f"precision {precision.data!r} of a product of {a.type} and {b.type}, which is of f32")


#: The operations of a tile program, without those that only copy engines have (`tile_dialect`).
OPERATIONS = (
    FuncOp, ReturnOp, ProgramIdOp, BlockRankOp, MainOp, BufferOp, LaunchOp, LoopOp, SliceOp, FirstOp, AllocOp,
    LoadOp, LoadBoxOp, StoreOp, GatherOp, PrefetchOp, StagingOp, StageOp, CommitOp, AwaitOp, BarrierOp, UnstageOp,
    IotaOp, BroadcastOp, ReshapeOp, ConvertOp, RemainderOp, ExpNonpositiveOp, SigmoidOp, NormalCdfOp, NormalCdfTanhOp,
    CompareOp, SelectOp, CastOp, Tf32Op, ReduceOp, ScanOp, DotOp, EmptyRegistersOp,
)  # fmt: skip
with_direct_access(*OPERATIONS)


def written_view(op: Operation) -> SSAValue | None:
    """The view that an operation writes; None for one that writes none itself.

    Its class says in `WRITES` which operand it is, in whichever file it is defined.
    """
    place: int | None = getattr(op, "WRITES", None)
    return None if place is None else op.operands[place]


def operations(region: Region) -> list[Operation]:
    """Every operation of a region, nested ones included, in order."""
    found: list[Operation] = []
    for block in region.blocks:
        op = block.first_op
        while op is not None:
            found.append(op)
            for inner in op.regions:
                found += operations(inner)
            op = op._next_op
    return found
