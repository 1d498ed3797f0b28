"""Scalar expressions to tile operations: one body, evaluated for a whole tile of loop points at once.

Some loops of a body are *tile dimensions* (each point of the tile is one loop point), the others have a value. A value
that does not depend on a tile dimension has extent 1 there, or is a scalar; it is repeated only where it meets a larger
one. f16 and bf16 are computed in f32; only explicit casts and stores round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

import numpy as np
from xdsl.dialects import arith
from xdsl.dialects.builtin import MemRefType
from xdsl.dialects.utils import FastMathFlag
from xdsl.ir import Attribute, Operation, SSAValue

from tilewright.dataclass import dataclass
from tilewright.expr import dtypes
from tilewright.expr.affine import Affine, affine, affine_part
from tilewright.expr.affine import bounds as index_bounds
from tilewright.expr.core import EXACT, Apply, Axis, Cast, Const, Expr, Read, Tensor, walk
from tilewright.kernel import dialect as tile
from tilewright.lower.builder import KernelBuilder, element_type, view_type
from tilewright.lower.steps import Parameter
from tilewright.operator.statements import is_multiply_add


@dataclass(frozen=True)
class Value:
    """A tile or scalar in registers and the dtype it is computed in."""

    ssa: SSAValue
    dtype: dtypes.DType

    @property
    def shape(self) -> tuple[int, ...]:
        return tile.shape(self.ssa)


Provider = Callable[[Read], Value]


def providing(values: Mapping[str, Value]) -> dict[str, Provider]:
    """What gives reads of these names their values, as they are when they are read."""
    return dict.fromkeys(values, lambda read: values[read.tensor.name])


def computed_in(dtype: dtypes.DType) -> dtypes.DType:
    """The dtype in which values of `dtype` are computed."""
    return dtypes.wide(dtype)


def computed_value(number: Const) -> bool | float:
    """A literal in the dtype in which it is computed: rounded to its own before."""
    exact = computed_in(number.dtype) == number.dtype
    return number.value if exact else rounded(number.value, number.dtype)


def argument_types(views: Sequence[tuple[Tensor, int]], parameters: Sequence[Parameter] = ()) -> list[Attribute]:
    """The types of a kernel's arguments: tensors with the size of their storage in elements, then numbers."""
    numbers = (element_type(computed_in(parameter.dtype)) for parameter in parameters)
    return [*(view_type(tensor.dtype, size) for tensor, size in views), *numbers]


@dataclass
class BodyEmitter:
    """Evaluates expressions over one tile.

    `loops` gives the value of every loop outside the tile, `dims` the tile dimension of every loop inside it, `extents`
    the tile. `bounds[d]` is how many points of dimension `d` exist (None: all). `views` holds the memory of tensors and
    the numbers of parameters,
    `provided` computes reads of tensors that have no memory (an accumulator, a value of this kernel). With `branches`
    (on a CPU), a condition that all points share is a branch, and a load that might form addresses outside its tensor
    is skipped where its mask is empty: the processor takes long over a load of an unmapped page, masked or not. With
    `contract`, a product less something is rounded once; with `narrow`, indices are compared in 32 bits where they fit.
    """

    builder: KernelBuilder
    views: Mapping[str, SSAValue]
    loops: Mapping[Axis, SSAValue]
    dims: Mapping[Axis, int]
    extents: tuple[int, ...]
    bounds: Mapping[int, SSAValue] = field(default_factory=dict)
    provided: Mapping[str, Provider] = field(default_factory=dict)
    branches: bool = False
    contract: bool = False
    narrow: bool = False
    _known: dict[tuple[Expr, SSAValue | None], Value] = field(default_factory=dict)

    def emit(self, expr: Expr, mask: SSAValue | None = None) -> Value:
        """The value of `expr`; reads happen only where `mask` (an i1 scalar or tile) holds."""
        if (expr, None) in self._known:  # read where no mask holds either
            return self._known[expr, None]
        key = (expr, mask if _reads(expr) else None)
        if key not in self._known:
            self._known[key] = self._emit(expr, mask)
        return self._known[key]

    def store(self, value: Value, view: SSAValue, index: Expr, dtype: dtypes.DType, nontemporal: bool = False) -> None:
        """Write the value of every point of the tile at its linear index."""
        form = affine(index)
        assert form is not None, f"an output address is affine, not {index}"
        self.store_at(value, view, self.builder.affine(form, self.loops), form, dtype, nontemporal)

    def store_at(
        self,
        value: Value,
        view: SSAValue,
        offset: SSAValue,
        form: Affine,
        dtype: dtypes.DType,
        nontemporal: bool = False,
    ) -> None:
        """Write the value of every point of the tile, whose first one is at `offset`, with the steps of `form`."""
        stored = self.full(self.cast(value, dtype))
        if dtype == "bool":
            stored = self.builder.insert(tile.CastOp(stored, tile.element(view), unsigned=True))
        bounds = self._bounds(self.extents) if self.bounds else []
        self.builder.insert(tile.StoreOp(stored, view, offset, self._steps(form), bounds, nontemporal=nontemporal))

    def load_at(self, view: SSAValue, offset: SSAValue, form: Affine, dtype: dtypes.DType) -> Value:
        """The value of every point of the tile, from where `store_at` writes it."""
        bounds = self._bounds(self.extents) if self.bounds else []
        loaded = self.builder.insert(tile.LoadOp(view, offset, self.extents, self._steps(form), bounds))
        return self._as_value(loaded, dtype)

    def _steps(self, form: Affine) -> list[int]:
        strides = [0] * len(self.extents)
        for axis, dim in self.dims.items():
            strides[dim] = form.coefficient(axis)
        return strides

    def full(self, value: Value) -> SSAValue:
        """The value repeated to the extents of the tile."""
        return self._repeat(value.ssa, self.extents)

    def cast(self, value: Value, dtype: dtypes.DType) -> Value:
        """Conversion to the element type of `dtype`, which may be narrower than what it is computed in."""
        if value.dtype == dtype:
            return value
        source = value.dtype
        unsigned = dtypes.is_unsigned(source) if not dtypes.is_float(source) else dtypes.is_unsigned(dtype)
        op = tile.CastOp(value.ssa, element_type(dtype), unsigned)
        return Value(self.builder.insert(op), dtype)

    # Expressions ----------------------------------------------------------------------------------------------

    def _emit(self, expr: Expr, mask: SSAValue | None) -> Value:
        if isinstance(expr, Const):
            dtype = computed_in(expr.dtype)
            return Value(self.builder.number(computed_value(expr), dtype), dtype)
        if isinstance(expr, Parameter):
            return Value(self.views[expr.name], computed_in(expr.dtype))
        if isinstance(expr, Read):
            return self._read(expr, mask)
        if isinstance(expr, Cast):
            return self._explicit_cast(expr, mask)
        if expr.dtype == dtypes.INDEX:
            indexed = self._affine_index(expr)
            if indexed is not None:
                return indexed
        assert isinstance(expr, Apply)
        if expr.function == "select":
            return self._select(expr, mask)
        if self.contract and expr.function == "sub" and expr.dtype == "f32":
            contracted = self._contracted(expr, mask)
            if contracted is not None:
                return contracted
        if self.narrow and expr.function in tile.PREDICATES and expr.args[0].dtype == dtypes.INDEX:
            compared = self._compared(expr)
            if compared is not None:
                return compared
        args = self._joined([self.emit(arg, mask) for arg in expr.args])
        value = FUNCTIONS[expr.function](self.builder, args)
        return value if expr.function in EXACT else self._held(self.cast(value, expr.dtype))

    def added(self, expr: Expr, total: Value) -> Value:
        """A total plus `expr` at every point of the tile; a product is added by a multiply-add, rounded once."""
        if is_multiply_add(expr, total.dtype):
            assert isinstance(expr, Apply)
            a, b = (self.emit(factor) for factor in expr.args)
            return Value(self.builder.math("FmaOp", self.full(a), self.full(b), total.ssa), total.dtype)
        value = self.emit(expr)
        return combine("sum", self.builder, total, Value(self.full(value), value.dtype))

    def _contracted(self, expr: Apply, mask: SSAValue | None) -> Value | None:
        """A product less something in one step; None where there is no product."""
        product, subtracted = expr.args
        if not isinstance(product, Apply) or product.function != "mul":
            return None
        less = FUNCTIONS["neg"](self.builder, [self.emit(subtracted, mask)])
        a, b, c = self._joined([*(self.emit(factor, mask) for factor in product.args), less])
        return Value(self.builder.math("FmaOp", a.ssa, b.ssa, c.ssa), expr.dtype)

    def _explicit_cast(self, expr: Cast, mask: SSAValue | None) -> Value:
        return self._held(self.cast(self.emit(expr.arg, mask), expr.dtype))

    def _held(self, value: Value) -> Value:
        """A value in the type that values of its type are held in."""
        return self.cast(value, computed_in(value.dtype))

    def _affine_index(self, expr: Expr) -> Value | None:
        """An affine index: one scalar plus a multiple of the position along each tile dimension it uses."""
        form = affine(expr)
        return None if form is None else self._of_form(form, dtypes.INDEX)

    def _of_form(self, form: Affine, dtype: dtypes.DType) -> Value:
        """An affine form of loops, in a type of integers that holds it."""
        index = Value(self.builder.as_i64(self.builder.affine(form, self.loops)), dtypes.INDEX)
        total = self.cast(index, dtype)
        for axis, dim in self.dims.items():
            coefficient = form.coefficient(axis)
            if coefficient == 0 or self.extents[dim] == 1:
                continue
            shape = tuple(extent if d == dim else 1 for d, extent in enumerate(self.extents))
            steps = self.cast(Value(self.builder.insert(tile.IotaOp(shape, dim)), dtypes.INDEX), dtype)
            if coefficient != 1:
                factor = Value(self.builder.number(coefficient, dtype), dtype)
                steps = FUNCTIONS["mul"](self.builder, self._joined([steps, factor]))
            total = FUNCTIONS["add"](self.builder, self._joined([total, steps]))
        return total

    def _compared(self, expr: Apply) -> Value | None:
        """A comparison of affine indices in 32 bits; None where one is not affine or does not fit."""
        forms = [affine(arg) for arg in expr.args]
        if any(form is None or not all(abs(bound) < 1 << 31 for bound in form.bounds()) for form in forms):
            return None
        left, right = self._joined([self._of_form(form, "i32") for form in forms if form is not None])
        return Value(self.builder.insert(tile.CompareOp(expr.function, left.ssa, right.ssa)), "bool")

    def _select(self, expr: Apply, mask: SSAValue | None) -> Value:
        condition, yes, no = expr.args
        chosen = self.emit(condition, mask)
        if self.branches and not chosen.shape and _reads(expr) and not self._provides(yes, no):
            return self._branch(chosen, yes, no, mask)
        taken = self.emit(yes, self._and(mask, chosen.ssa) if _reads(yes) else mask)
        refused = mask
        if _reads(no):
            true = self.builder.number(True, "bool")
            opposite = self.builder.insert(arith.XOrIOp(chosen.ssa, self._repeat(true, chosen.shape)))
            refused = self._and(mask, opposite)
        other = self.emit(no, refused)
        taken, other = self._joined([taken, other])
        shape = _join(chosen.shape, taken.shape)
        both = [self._repeat(value.ssa, shape) for value in (taken, other)]
        picked = chosen.ssa if not chosen.shape else self._repeat(chosen.ssa, shape)
        return Value(self.builder.insert(tile.SelectOp(picked, *both)), taken.dtype)

    def _branch(self, chosen: Value, yes: Expr, no: Expr, mask: SSAValue | None) -> Value:
        """Only the arm that a scalar chooses is computed."""
        known, dtypes_ = self._known, list[dtypes.DType]()
        shape = _join(self._reach(yes, no), tile.shape(mask) if mask is not None else ())

        def arm(expr: Expr) -> list[SSAValue]:
            self._known = dict(known)  # what an arm computes is not known behind it
            value = self.emit(expr, mask)
            dtypes_.append(value.dtype)
            return [self._repeat(value.ssa, shape)]

        (merged,) = self.builder.either(chosen.ssa, lambda: arm(yes), lambda: arm(no))
        self._known = known
        return Value(merged, dtypes_[0])

    def _provides(self, *exprs: Expr) -> bool:
        """Whether an expression reads what has no memory: computing it may fill a buffer that others read."""
        reads = (node for expr in exprs for node in walk(expr) if isinstance(node, Read))
        return any(read.tensor.name in self.provided for read in reads)

    def _reach(self, *exprs: Expr) -> tuple[int, ...]:
        """The extents of a value that depends on the loops in `exprs`."""
        dims = {
            self.dims[node] for expr in exprs for node in walk(expr) if isinstance(node, Axis) and node in self.dims
        }
        shape = tuple(extent if dim in dims else 1 for dim, extent in enumerate(self.extents))
        return shape if dims else ()

    def _and(self, a: SSAValue | None, b: SSAValue) -> SSAValue:
        if a is None:
            return b
        shape = _join(tile.shape(a), tile.shape(b))
        return self.builder.insert(arith.AndIOp(self._repeat(a, shape), self._repeat(b, shape)))

    def _joined(self, values: Sequence[Value]) -> list[Value]:
        shape: tuple[int, ...] = ()
        for value in values:
            shape = _join(shape, value.shape)
        return [Value(self._repeat(value.ssa, shape), value.dtype) for value in values]

    def _repeat(self, ssa: SSAValue, shape: tuple[int, ...]) -> SSAValue:
        return ssa if tile.shape(ssa) == shape else self.builder.insert(tile.BroadcastOp(ssa, shape))

    # Memory ---------------------------------------------------------------------------------------------------

    def _read(self, read: Read, mask: SSAValue | None) -> Value:
        provider = self.provided.get(read.tensor.name)
        if provider is not None:
            return provider(read)
        view = self.views[read.tensor.name]
        form, rest = affine_part(read.indices[0])
        data = self._same_for_all(rest, view, mask) if rest else None
        if rest and data is None:
            loaded = self._gather(view, read, mask)
        else:
            strides = [0] * len(self.extents)
            for axis, dim in self.dims.items():
                strides[dim] = form.coefficient(axis)
            shape = tuple(e if stride else 1 for e, stride in zip(self.extents, strides, strict=True))
            if mask is not None:
                shape = _join(shape, tile.shape(mask))
            shape = shape if any(extent > 1 for extent in shape) else ()
            offset = self.builder.affine(form, self.loops)
            offset = offset if data is None else self.builder.add(offset, data)
            flag: SSAValue | None
            if not shape and mask is not None:
                flag = self.builder.insert(tile.ReshapeOp(mask, ())) if tile.shape(mask) else mask  # of one element
                access: Operation = tile.GatherOp(view, self.builder.as_i64(offset), flag)
            else:
                bounds = self._bounds(shape) if shape and self.bounds else []
                flag = self._repeat(mask, shape) if mask is not None else None
                used = [stride if extent > 1 else 0 for extent, stride in zip(shape, strides, strict=False)]
                access = tile.LoadOp(view, offset, shape, used, bounds, flag)
            loaded = self._loaded(access, flag, index_bounds(read.indices[0]), read.dtype)
        return self._as_value(loaded, read.dtype)

    def _loaded(
        self, access: Operation, mask: SSAValue | None, places: tuple[float, float], dtype: dtypes.DType
    ) -> SSAValue:
        """The result of a load of `places`; where some may lie outside, zeros instead if it takes no element."""
        builder, view = self.builder, access.operands[0].type
        assert isinstance(view, MemRefType)
        if mask is None or not self.branches or (places[0] >= 0 and places[1] < view.element_count()):
            return builder.insert(access)
        shape = tile.shape(access.results[0])

        def nothing() -> list[SSAValue]:
            number = builder.number(0, "i8" if dtype == "bool" else dtype)
            return [builder.insert(tile.BroadcastOp(number, shape)) if shape else number]

        (loaded,) = builder.either(self._any(self._existing(mask)), lambda: [builder.insert(access)], nothing)
        return loaded

    def _any(self, mask: SSAValue) -> SSAValue:
        """Whether some element of a mask is on."""
        if not tile.shape(mask):
            return mask
        for dim in range(len(tile.shape(mask))):
            mask = self.builder.insert(tile.ReduceOp("max", mask, dim, unsigned=True))
        return self.builder.insert(tile.ReshapeOp(mask, ()))

    def _existing(self, mask: SSAValue) -> SSAValue:
        """The mask without points beyond a bound."""
        for dim, bound in self.bounds.items():
            if tile.shape(mask) and tile.shape(mask)[dim] > 1:
                mask = self._and(mask, self._below(dim, bound))
        return mask

    def _below(self, dim: int, bound: SSAValue) -> SSAValue:
        """Which points along a dimension exist."""
        shape = tuple(extent if d == dim else 1 for d, extent in enumerate(self.extents))
        numbers = self.builder.insert(tile.IotaOp(shape, dim))
        limit = self._repeat(self.builder.as_i64(bound), shape)
        return self.builder.insert(tile.CompareOp("lt", numbers, limit))

    def _same_for_all(self, terms: Sequence[Expr], view: SSAValue, mask: SSAValue | None) -> SSAValue | None:
        """The sum of terms of an address that all points of the tile share, or None where they do not.

        They must be limited to the tensor by themselves, since nothing limits the address again: a row of a table. What
        they read must exist, for it is read whether a mask holds or not.
        """
        type_ = view.type
        assert isinstance(type_, MemRefType)
        nodes = [node for term in terms for node in walk(term)]
        low, high = (sum(end) for end in zip(*(index_bounds(term) for term in terms), strict=True))
        if any(node in self.dims for node in nodes if isinstance(node, Axis)):
            return None
        if low < 0 or high >= type_.element_count():
            return None
        for read in (node for node in nodes if isinstance(node, Read)):
            if read.tensor.name in self.provided:
                return None
            low, high = index_bounds(read.indices[0])
            if low < 0 or high >= read.tensor.size:
                return None
        total = self.builder.index(0)
        for term in terms:
            total = self.builder.add(total, self.builder.as_index(self.emit(term).ssa))
        return total

    def _gather(self, view: SSAValue, read: Read, mask: SSAValue | None) -> SSAValue:
        index = read.indices[0]
        places = self.emit(index, mask)
        if _reads(index):
            places = self._inside(places, view)
        flags = mask
        for dim, bound in self.bounds.items():
            if places.shape and places.shape[dim] > 1:
                flags = self._and(flags, self._below(dim, bound))
        if flags is None:
            return self.builder.insert(tile.GatherOp(view, places.ssa))
        shape = _join(places.shape, tile.shape(flags))
        wide = self._repeat(flags, shape)
        access = tile.GatherOp(view, self._repeat(places.ssa, shape), wide)
        return self._loaded(access, wide, (0, 0) if _reads(index) else index_bounds(index), read.dtype)

    def _inside(self, places: Value, view: SSAValue) -> Value:
        """Addresses that come from data, moved to the nearest element: a wrong index must not reach other memory."""
        type_ = view.type
        assert isinstance(type_, MemRefType)
        last = _like(self.builder, places, max(0, type_.element_count() - 1))
        above = self.builder.insert(arith.MaxSIOp(places.ssa, _like(self.builder, places, 0)))
        return Value(self.builder.insert(arith.MinSIOp(above, last)), places.dtype)

    def _as_value(self, loaded: SSAValue, dtype: dtypes.DType) -> Value:
        if dtype == "bool":
            return Value(self.builder.insert(tile.CastOp(loaded, tile.I1)), "bool")
        return self.cast(Value(loaded, dtype), computed_in(dtype))

    def _bounds(self, shape: tuple[int, ...]) -> list[SSAValue]:
        """Bounds of an access: the points that exist along dimensions it walks, its extent along others."""
        return [
            self.bounds[dim] if dim in self.bounds and extent > 1 else self.builder.index(extent)
            for dim, extent in enumerate(shape)
        ]


def rounded(value: bool | float, dtype: dtypes.DType) -> float:
    """A literal as its type holds it: zero or infinity where it is beyond that."""
    with np.errstate(over="ignore"):
        return float(np.asarray(value).astype(dtypes.numpy_dtype(dtype)))


def _reads(expr: Expr) -> bool:
    return any(isinstance(node, Read) for node in walk(expr))


def _join(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    if not a or not b:
        return a or b
    return tuple(max(x, y) for x, y in zip(a, b, strict=True))


# Functions ------------------------------------------------------------------------------------------------------------

Emit = Callable[[KernelBuilder, Sequence[Value]], Value]


def _like(builder: KernelBuilder, value: Value, number: bool | float) -> SSAValue:
    """A constant of the dtype and shape of `value`."""
    made = builder.number(number, value.dtype)
    return builder.insert(tile.BroadcastOp(made, value.shape)) if value.shape else made


def _by_kind(
    floating: type[Operation] | None, signed: type[Operation], unsigned: type[Operation] | None = None
) -> Emit:
    """One operation per kind of number."""

    def emit(builder: KernelBuilder, args: Sequence[Value]) -> Value:
        dtype = args[0].dtype
        if dtypes.is_float(dtype):
            assert floating is not None
            op = floating
        else:
            op = unsigned if unsigned is not None and dtypes.is_unsigned(dtype) else signed
        return Value(builder.insert(op(*(arg.ssa for arg in args))), dtype)

    return emit


def _float(operation: Callable[..., Operation]) -> Emit:
    """One operation on floats."""
    return lambda builder, args: Value(builder.insert(operation(*(arg.ssa for arg in args))), args[0].dtype)


def _math(kind: str) -> Emit:
    """One operation of the dialect `math`."""
    return lambda builder, args: Value(builder.math(kind, *(arg.ssa for arg in args)), args[0].dtype)


def _compare(predicate: str) -> Emit:
    def emit(builder: KernelBuilder, args: Sequence[Value]) -> Value:
        a, b = args
        unsigned = dtypes.is_unsigned(a.dtype)
        return Value(builder.insert(tile.CompareOp(predicate, a.ssa, b.ssa, unsigned)), "bool")

    return emit


def _negate(builder: KernelBuilder, args: Sequence[Value]) -> Value:
    (a,) = args
    if dtypes.is_float(a.dtype):
        return Value(builder.insert(arith.NegfOp(a.ssa)), a.dtype)
    return Value(builder.insert(arith.SubiOp(_like(builder, a, 0), a.ssa)), a.dtype)


def _absolute(builder: KernelBuilder, args: Sequence[Value]) -> Value:
    (a,) = args
    if dtypes.is_unsigned(a.dtype):
        return a
    return Value(builder.math("AbsFOp" if dtypes.is_float(a.dtype) else "AbsIOp", a.ssa), a.dtype)


def _sign(builder: KernelBuilder, args: Sequence[Value]) -> Value:
    (a,) = args
    zero, one = _like(builder, a, 0), _like(builder, a, 1)
    positive = builder.insert(tile.CompareOp("gt", a.ssa, zero, dtypes.is_unsigned(a.dtype)))
    if dtypes.is_unsigned(a.dtype):
        return Value(builder.insert(tile.SelectOp(positive, one, zero)), a.dtype)
    negative = builder.insert(tile.CompareOp("lt", a.ssa, zero))
    kept = builder.math("AbsFOp", a.ssa) if dtypes.is_float(a.dtype) else a.ssa  # 0 without its sign, and NaN
    rest = builder.insert(tile.SelectOp(negative, _like(builder, a, -1), kept))
    return Value(builder.insert(tile.SelectOp(positive, one, rest)), a.dtype)


def _not(builder: KernelBuilder, args: Sequence[Value]) -> Value:
    (a,) = args
    ones = True if a.dtype == "bool" else (1 << dtypes.bits(a.dtype)) - 1 if dtypes.is_unsigned(a.dtype) else -1
    return Value(builder.insert(arith.XOrIOp(a.ssa, _like(builder, a, ones))), a.dtype)


def _is_nan(builder: KernelBuilder, args: Sequence[Value]) -> Value:
    return Value(builder.insert(tile.CompareOp("ne", args[0].ssa, args[0].ssa)), "bool")


def _is_inf(builder: KernelBuilder, args: Sequence[Value]) -> Value:
    (a,) = args
    magnitude = builder.math("AbsFOp", a.ssa)
    return Value(builder.insert(tile.CompareOp("eq", magnitude, _like(builder, a, float("inf")))), "bool")


def _remainder(floored: bool) -> Emit:
    """`fmod` has the sign of the dividend; `mod` moves it to the sign of the divisor."""

    def emit(builder: KernelBuilder, args: Sequence[Value]) -> Value:
        a, b = args
        unsigned = dtypes.is_unsigned(a.dtype)
        if dtypes.is_float(a.dtype):
            rest = builder.insert(tile.RemainderOp(a.ssa, b.ssa))
        elif unsigned:
            return Value(builder.insert(arith.RemUIOp(a.ssa, b.ssa)), a.dtype)
        else:
            rest = builder.insert(arith.RemSIOp(a.ssa, b.ssa))
        if not floored:
            return Value(rest, a.dtype)
        zero = _like(builder, a, 0)
        apart = builder.insert(
            arith.XOrIOp(
                builder.insert(tile.CompareOp("lt", rest, zero)), builder.insert(tile.CompareOp("lt", b.ssa, zero))
            )
        )
        inexact = builder.insert(tile.CompareOp("ne", rest, zero))
        add = arith.AddfOp if dtypes.is_float(a.dtype) else arith.AddiOp
        moved = builder.insert(add(rest, b.ssa))
        wrong = builder.insert(arith.AndIOp(apart, inexact))
        return Value(builder.insert(tile.SelectOp(wrong, moved, rest)), a.dtype)

    return emit


def _power(builder: KernelBuilder, args: Sequence[Value]) -> Value:
    """Floats by `math.powf`; integers by repeated squaring over the bits of the exponent, wrapping as integers do."""
    a, b = args
    if dtypes.is_float(a.dtype):
        return Value(builder.math("PowFOp", a.ssa, b.ssa), a.dtype)
    one, zero = _like(builder, a, 1), _like(builder, a, 0)
    result, square, exponent = one, a.ssa, b.ssa
    for _ in range(dtypes.bits(a.dtype)):
        odd = builder.insert(tile.CompareOp("ne", builder.insert(arith.AndIOp(exponent, one)), zero))
        result = builder.insert(tile.SelectOp(odd, builder.insert(arith.MuliOp(result, square)), result))
        square = builder.insert(arith.MuliOp(square, square))
        exponent = builder.insert(arith.ShRUIOp(exponent, one))
    if dtypes.is_unsigned(a.dtype):
        return Value(result, a.dtype)
    # A negative exponent is the reciprocal, truncated: 1 for 1, +-1 for -1, 0 for all else.
    reciprocal = zero
    minus = _like(builder, a, -1)
    odd = builder.insert(tile.CompareOp("ne", builder.insert(arith.AndIOp(b.ssa, one)), zero))
    sign = builder.insert(tile.SelectOp(odd, minus, one))
    is_minus = builder.insert(tile.CompareOp("eq", a.ssa, minus))
    reciprocal = builder.insert(tile.SelectOp(is_minus, sign, reciprocal))
    reciprocal = builder.insert(tile.SelectOp(builder.insert(tile.CompareOp("eq", a.ssa, one)), one, reciprocal))
    negative = builder.insert(tile.CompareOp("lt", b.ssa, zero))
    return Value(builder.insert(tile.SelectOp(negative, reciprocal, result)), a.dtype)


def _extreme(
    floating: type[Operation], signed: type[Operation], unsigned: type[Operation], on_bool: type[Operation]
) -> Emit:
    numbers = _by_kind(floating, signed, unsigned)

    def emit(builder: KernelBuilder, args: Sequence[Value]) -> Value:
        if args[0].dtype == "bool":
            return Value(builder.insert(on_bool(*(arg.ssa for arg in args))), "bool")
        return numbers(builder, args)

    return emit


NO_NAN = arith.FastMathFlagsAttr([FastMathFlag.NO_NANS])

FUNCTIONS: dict[str, Emit] = {
    "add": _by_kind(arith.AddfOp, arith.AddiOp),
    "sub": _by_kind(arith.SubfOp, arith.SubiOp),
    "mul": _by_kind(arith.MulfOp, arith.MuliOp),
    "div": _by_kind(arith.DivfOp, arith.DivSIOp, arith.DivUIOp),
    "floordiv": _by_kind(None, arith.FloorDivSIOp, arith.DivUIOp),
    "mod": _remainder(floored=True),
    "fmod": _remainder(floored=False),
    "neg": _negate,
    "abs": _absolute,
    "sign": _sign,
    "min": _extreme(arith.MinimumfOp, arith.MinSIOp, arith.MinUIOp, arith.AndIOp),
    "max": _extreme(arith.MaximumfOp, arith.MaxSIOp, arith.MaxUIOp, arith.OrIOp),
    "pow": _power,
    "sigmoid": _float(tile.SigmoidOp),
    "isnan": _is_nan,
    "isinf": _is_inf,
    "and": _by_kind(None, arith.AndIOp),
    "or": _by_kind(None, arith.OrIOp),
    "xor": _by_kind(None, arith.XOrIOp),
    "not": _not,
    "shl": _by_kind(None, arith.ShLIOp),
    "shr": _by_kind(None, arith.ShRSIOp, arith.ShRUIOp),
    **{predicate: _compare(predicate) for predicate in tile.PREDICATES},
    "exp_nonpositive": _float(tile.ExpNonpositiveOp),
    "normal_cdf": _float(tile.NormalCdfOp),
    "normal_cdf_tanh": _float(tile.NormalCdfTanhOp),
    **{
        name: _math(kind)
        for name, kind in {
            "exp": "ExpOp", "exp2": "Exp2Op", "expm1": "ExpM1Op", "log": "LogOp", "log1p": "Log1pOp", "sqrt": "SqrtOp",
            "tanh": "TanhOp", "erf": "ErfOp", "sin": "SinOp", "cos": "CosOp", "tan": "TanOp", "asin": "AsinOp",
            "acos": "AcosOp", "atan": "AtanOp", "sinh": "SinhOp", "cosh": "CoshOp", "asinh": "AsinhOp",
            "acosh": "AcoshOp", "atanh": "AtanhOp", "floor": "FloorOp", "ceil": "CeilOp", "round": "RoundEvenOp",
            "trunc": "TruncOp",
        }.items()
    },
}  # fmt: skip


def combine(kind: str, builder: KernelBuilder, a: Value, b: Value, *, nnan: bool = False) -> Value:
    """One step of an accumulation: sum, prod, max or min. With `nnan` an extreme of floats may pass over NaN."""
    if nnan:
        operation = {"max": arith.MaximumfOp, "min": arith.MinimumfOp}[kind]
        return Value(builder.insert(operation(a.ssa, b.ssa, NO_NAN)), a.dtype)
    return FUNCTIONS[{"sum": "add", "prod": "mul", "max": "max", "min": "min"}[kind]](builder, [a, b])
