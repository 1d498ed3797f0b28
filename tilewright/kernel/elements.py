"""What each element operation computes, in NumPy: the table behind the interpreter and behind constant folding.

Values are arrays (of no dimensions for scalars) of the dtype of their element type: index and integers are signed
arrays of their width, i1 is bool. Nothing traps: integers wrap, division by 0 gives 0, a shift by the width or more
shifts everything out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from xdsl.dialects.builtin import BFloat16Type, Float16Type, Float32Type, Float64Type, IndexType, IntegerType
from xdsl.ir import Attribute, Operation

from tilewright.errors import InvalidProgram
from tilewright.expr.dtypes import numpy_dtype
from tilewright.expr.special import erf, exp_nonpositive, normal_cdf, normal_cdf_tanh, sigmoid
from tilewright.kernel.dialect import (
    CastOp,
    CompareOp,
    ExpNonpositiveOp,
    NormalCdfOp,
    NormalCdfTanhOp,
    RemainderOp,
    SelectOp,
    SigmoidOp,
    Tf32Op,
    element,
)

Array = np.ndarray[Any, Any]
Element = Callable[..., Array]

# Of f32 as tf32: the bits that are kept, half a unit of the last one, and the first number that rounds to infinity.
TF32_MASK, TF32_HALF, TF32_LIMIT = 0xFFFFE000, 0x1000, float.fromhex("0x1.ffep127")

_FLOATS: dict[type[Attribute], str] = {
    BFloat16Type: "bf16", Float16Type: "f16", Float32Type: "f32", Float64Type: "f64"
}  # fmt: skip
_INTEGERS: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.bool_), 8: np.dtype(np.int8), 16: np.dtype(np.int16), 32: np.dtype(np.int32), 64: np.dtype(np.int64),
}  # fmt: skip
_UNSIGNED = {kind: np.dtype(f"u{kind.itemsize}") for kind in _INTEGERS.values() if kind.kind == "i"}
_COMPARISONS: dict[str, Element] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip


def dtype_of(type_: Attribute) -> np.dtype[Any]:
    """The NumPy dtype of an element type (or of the elements of a tile or view)."""
    bare = element(type_)
    if isinstance(bare, IndexType):
        return np.dtype(np.int64)
    if isinstance(bare, IntegerType):
        return _INTEGERS[bare.width.data]
    return numpy_dtype(_FLOATS[type(bare)])


def evaluate(op: Operation, *operands: Array) -> Array:
    """The result of an element operation; InvalidProgram for an operation that tile programs do not have."""
    function = ELEMENT.get(op.name)
    if function is None:
        raise InvalidProgram(f"{op.name} is not an operation of tile programs", help="see kernel.elements for those")
    with np.errstate(all="ignore"):
        return np.asarray(function(op, *operands))


def unsigned(value: Array) -> Array:
    """The same bits, read as unsigned integers; bool and floats as they are."""
    kind = _UNSIGNED.get(value.dtype)
    return value if kind is None else value.view(kind)


def is_float(value: Array) -> bool:
    return value.dtype.kind not in "iub"


def cast(value: Array, to: np.dtype[Any], from_unsigned: bool) -> Array:
    """`tile.cast` of an array: see `CastOp`."""
    if to == np.bool_:
        return np.asarray(value != 0)
    if is_float(value) and to.kind == "i":
        return _saturate(value.astype(np.float64), to, from_unsigned)
    return np.asarray((unsigned(value) if from_unsigned else value).astype(to))


def _saturate(value: Array, to: np.dtype[Any], to_unsigned: bool) -> Array:
    bits = 8 * to.itemsize - (0 if to_unsigned else 1)
    low, high = (0.0 if to_unsigned else -(2.0**bits)), 2.0**bits
    whole = np.trunc(np.where(np.isnan(value), 0.0, value))
    target = np.dtype(to.str.replace("i", "u")) if to_unsigned else to
    limits = np.iinfo(target)
    inside = (whole >= low) & (whole < high)
    result = np.where(inside, whole, 0.0).astype(target)
    result = np.where(whole >= high, target.type(limits.max), result)
    result = np.where(whole < low, target.type(limits.min), result)
    return np.asarray(result).astype(target).view(to)


def _plain(function: Element) -> Element:
    return lambda op, *operands: function(*operands)


def _float(function: Element) -> Element:
    """A function that NumPy may lack for a narrow type: computed in float64 and rounded once."""
    return lambda op, *operands: np.asarray(function(*(a.astype(np.float64) for a in operands))).astype(
        operands[0].dtype
    )


def _integer(function: Element, is_unsigned: bool = False) -> Element:
    """An integer function; i1 goes through i8, where it is 0 and -1 (0 and 1 unsigned), and wraps to its low bit."""

    def apply(op: Operation, *operands: Array) -> Array:
        dtype = operands[0].dtype
        if dtype.kind == "b":
            wide = [a.astype(np.int8) if is_unsigned else -a.astype(np.int8) for a in operands]
            return np.asarray(apply(op, *wide) & 1).astype(np.bool_)
        if is_unsigned:
            given = [unsigned(a) for a in operands]
            return np.asarray(function(*given)).astype(given[0].dtype).view(dtype)
        result = function(*operands)
        return result if result.dtype == dtype else np.asarray(result).astype(dtype)

    return apply


def _divide(a: Array, b: Array) -> Array:
    """Towards zero; by 0 gives 0, and the most negative value by -1 wraps."""
    quotient = _floor_divide(a, b)
    safe = np.where(b == 0, a.dtype.type(1), b)
    inexact = (a - quotient * safe != 0) & (b != 0) & (b != -1)
    return np.asarray(quotient + (inexact & ((a < 0) != (b < 0))))


def _floor_divide(a: Array, b: Array) -> Array:
    special = (b == 0) | (b == -1)
    quotient = np.floor_divide(a, np.where(special, a.dtype.type(1), b))
    return np.where(b == 0, a.dtype.type(0), np.where(b == -1, -a, quotient))


def _remainder(a: Array, b: Array) -> Array:
    special = (b == 0) | (b == -1)
    return np.where(special, a.dtype.type(0), np.fmod(a, np.where(special, a.dtype.type(1), b)))


def _divide_unsigned(a: Array, b: Array) -> Array:
    return np.where(b == 0, a.dtype.type(0), np.floor_divide(a, np.where(b == 0, a.dtype.type(1), b)))


def _remainder_unsigned(a: Array, b: Array) -> Array:
    return np.where(b == 0, a.dtype.type(0), np.fmod(a, np.where(b == 0, a.dtype.type(1), b)))


def _shift(function: Element, keeps_sign: bool = False) -> Element:
    def apply(op: Operation, a: Array, b: Array) -> Array:
        if a.dtype == np.bool_:
            return np.asarray(a & ~b) if not keeps_sign else a
        width = 8 * a.dtype.itemsize
        inside = (b >= 0) & (b < width)  # a negative amount is a large unsigned one
        if keeps_sign:
            return np.asarray(function(a, np.where(inside, b, a.dtype.type(width - 1))))
        bits = unsigned(a)
        shifted = function(bits, unsigned(np.where(inside, b, a.dtype.type(0))))
        return np.where(inside, shifted, bits.dtype.type(0)).view(a.dtype)

    return apply


def _fma(a: Array, b: Array, c: Array) -> Array:
    """``a * b + c``, in float64: the product is exact for narrower types, and not for f64."""
    return np.asarray(a * b + c)


def _index_cast(op: Operation, a: Array) -> Array:
    return a.astype(dtype_of(op.results[0].type))


def _bitcast(op: Operation, a: Array) -> Array:
    to = dtype_of(op.results[0].type)
    return a if to == a.dtype else np.ascontiguousarray(a).view(to).reshape(a.shape)


def _compare(op: Operation, a: Array, b: Array) -> Array:
    assert isinstance(op, CompareOp)
    compare = _COMPARISONS[op.predicate.data]
    return compare(unsigned(a), unsigned(b)) if op.unsigned else compare(a, b)


def _cast(op: Operation, a: Array) -> Array:
    assert isinstance(op, CastOp)
    return cast(a, dtype_of(op.result.type), op.unsigned is not None)


def tf32(kind: str, value: Array) -> Array:
    """`tile.tf32` of f32: see `Tf32Op`.

    >>> [tf32(kind, np.array([1 + 2.0**-11, np.inf], np.float32)).tolist() for kind in ("nearest", "high", "low")]
    [[1.0009765625, inf], [1.0009765625, 1.0], [-0.00048828125, inf]]
    """
    raw = np.ascontiguousarray(value, np.float32).view(np.uint32).reshape(value.shape)
    rounded = raw + np.uint32(TF32_HALF)
    with np.errstate(all="ignore"):
        if kind == "nearest":
            rounded = np.where(np.isfinite(value), rounded, raw)
            return np.asarray((rounded & np.uint32(TF32_MASK)).view(np.float32))
        mask = np.where(np.abs(value) < TF32_LIMIT, np.uint32(TF32_MASK), np.uint32(TF32_MASK & ~(1 << 30)))
        high = np.asarray((rounded & mask).view(np.float32))
        return high if kind == "high" else value - high


def _tf32(op: Operation, a: Array) -> Array:
    assert isinstance(op, Tf32Op)
    return tf32(op.kind.data, a)


ELEMENT: dict[str, Element] = {  # by the name of the operation
    "arith.addf": _plain(np.add),
    "arith.subf": _plain(np.subtract),
    "arith.mulf": _plain(np.multiply),
    "arith.divf": _plain(np.divide),
    "arith.negf": _plain(np.negative),
    "arith.maximumf": _plain(np.maximum),
    "arith.minimumf": _plain(np.minimum),
    "arith.addi": _integer(np.add),
    "arith.subi": _integer(np.subtract),
    "arith.muli": _integer(np.multiply),
    "arith.andi": _plain(np.bitwise_and),
    "arith.ori": _plain(np.bitwise_or),
    "arith.xori": _plain(np.bitwise_xor),
    "arith.divsi": _integer(_divide),
    "arith.divui": _integer(_divide_unsigned, is_unsigned=True),
    "arith.remsi": _integer(_remainder),
    "arith.remui": _integer(_remainder_unsigned, is_unsigned=True),
    "arith.floordivsi": _integer(_floor_divide),
    "arith.shli": _shift(np.left_shift),
    "arith.shrsi": _shift(np.right_shift, keeps_sign=True),
    "arith.shrui": _shift(np.right_shift),
    "arith.maxsi": _integer(np.maximum),
    "arith.minsi": _integer(np.minimum),
    "arith.maxui": _integer(np.maximum, is_unsigned=True),
    "arith.minui": _integer(np.minimum, is_unsigned=True),
    "arith.index_cast": _index_cast,
    "arith.bitcast": _bitcast,
    "math.absf": _plain(np.abs),
    "math.absi": _integer(np.abs),
    "math.sqrt": _plain(np.sqrt),
    "math.floor": _plain(np.floor),
    "math.ceil": _plain(np.ceil),
    "math.trunc": _plain(np.trunc),
    "math.roundeven": _plain(np.rint),
    "math.fma": _float(_fma),
    "math.exp": _float(np.exp),
    "math.exp2": _float(np.exp2),
    "math.expm1": _float(np.expm1),
    "math.log": _float(np.log),
    "math.log1p": _float(np.log1p),
    "math.tanh": _float(np.tanh),
    "math.erf": _plain(erf),
    "math.powf": _float(np.power),
    "math.sin": _float(np.sin),
    "math.cos": _float(np.cos),
    "math.tan": _float(np.tan),
    "math.asin": _float(np.arcsin),
    "math.acos": _float(np.arccos),
    "math.atan": _float(np.arctan),
    "math.sinh": _float(np.sinh),
    "math.cosh": _float(np.cosh),
    "math.asinh": _float(np.arcsinh),
    "math.acosh": _float(np.arccosh),
    "math.atanh": _float(np.arctanh),
    RemainderOp.name: _plain(np.fmod),
    ExpNonpositiveOp.name: _plain(exp_nonpositive),
    SigmoidOp.name: _float(sigmoid),
    NormalCdfOp.name: _plain(normal_cdf),
    NormalCdfTanhOp.name: _plain(normal_cdf_tanh),
    CompareOp.name: _compare,
    SelectOp.name: _plain(np.where),
    CastOp.name: _cast,
    Tf32Op.name: _tf32,
}
