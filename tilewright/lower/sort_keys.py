"""Keys of a sort: unsigned integers whose order is that of the elements, -0 as 0 and NaN above all numbers."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.ir import SSAValue

from tilewright.expr import dtypes
from tilewright.kernel import dialect as tile
from tilewright.kernel.tile_types import tile_type
from tilewright.lower.body import Value
from tilewright.lower.builder import KernelBuilder, element_type


def key_type(dtype: dtypes.DType) -> dtypes.DType:
    """The type of the keys of elements that are computed in `dtype`: as wide as they are."""
    return f"u{8 if dtype == 'bool' else dtypes.bits(dtype)}"


def sort_key(builder: KernelBuilder, value: Value, descending: bool) -> SSAValue:
    """The keys of a tile or scalar of elements; for descending order their complements."""
    key = key_type(value.dtype)
    bits = dtypes.bits(key)
    ones = (1 << bits) - 1
    ssa = value.ssa

    def like(number: float, dtype: dtypes.DType) -> SSAValue:
        made = builder.number(number, dtype)
        return builder.insert(tile.BroadcastOp(made, value.shape)) if value.shape else made

    if value.dtype == "bool":
        ssa = builder.insert(tile.CastOp(ssa, element_type(key), unsigned=True))
    elif dtypes.is_float(value.dtype):
        zero = like(0.0, value.dtype)
        is_zero = builder.insert(tile.CompareOp("eq", ssa, zero))
        is_nan = builder.insert(tile.CompareOp("ne", ssa, ssa))
        ssa = builder.insert(tile.SelectOp(is_zero, zero, ssa))
        ssa = builder.insert(arith.BitcastOp(ssa, tile_type(value.shape, element_type(key))))
        sign = builder.insert(arith.ShRSIOp(ssa, like(bits - 1, key)))
        flips = builder.insert(arith.OrIOp(sign, like(1 << (bits - 1), key)))
        ssa = builder.insert(arith.XOrIOp(ssa, flips))  # negative: all bits; others: the sign
        ssa = builder.insert(tile.SelectOp(is_nan, like(ones, key), ssa))
    elif not dtypes.is_unsigned(value.dtype):
        ssa = builder.insert(arith.XOrIOp(ssa, like(1 << (bits - 1), key)))
    if descending:
        ssa = builder.insert(arith.XOrIOp(ssa, like(ones, key)))
    return ssa
