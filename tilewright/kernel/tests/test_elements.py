"""Element operations at the edges: wrapping, division by zero, shifts, casts, signs."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, bf16, f16, f32, f64, i1, i8, i32, i64
from xdsl.ir import Attribute

from tilewright.codegen import elementwise
from tilewright.errors import InvalidProgram
from tilewright.kernel.dialect import CastOp, CompareOp
from tilewright.kernel.elements import ELEMENT, cast, dtype_of, evaluate, tf32
from tilewright.kernel.passes.common.rules.arithmetic import EXACT_FUNCTIONS
from tilewright.kernel.tile_dialect import Tile


def constant(value: float, type_: Attribute) -> arith.ConstantOp:
    if isinstance(value, float):
        return arith.ConstantOp(FloatAttr(value, type_))
    return arith.ConstantOp(IntegerAttr(value, type_))


def compute(kind: type, type_: Attribute, *values: float) -> float:
    op = kind(*(constant(value, type_) for value in values))
    return evaluate(op, *(np.asarray(value).astype(dtype_of(type_)) for value in values)).item()


@pytest.mark.parametrize(
    ("kind", "type_", "values", "result"),
    [
        (arith.AddiOp, i8, (127, 1), -128),
        (arith.MuliOp, i32, (1 << 30, 4), 0),
        (arith.SubiOp, i8, (-128, 1), 127),
        (arith.DivSIOp, i32, (-7, 2), -3),
        (arith.DivSIOp, i32, (7, -2), -3),
        (arith.DivSIOp, i32, (7, 0), 0),
        (arith.DivSIOp, i8, (-128, -1), -128),
        (arith.DivSIOp, i64, ((1 << 62) + 1, 3), ((1 << 62) + 1) // 3),
        (arith.FloorDivSIOp, i32, (-7, 2), -4),
        (arith.FloorDivSIOp, i32, (7, 0), 0),
        (arith.FloorDivSIOp, i8, (-128, -1), -128),
        (arith.RemSIOp, i32, (-7, 2), -1),
        (arith.RemSIOp, i32, (7, 0), 0),
        (arith.RemSIOp, i8, (-128, -1), 0),
        (arith.DivUIOp, i8, (-2, 2), 127),
        (arith.RemUIOp, i8, (-1, 16), 15),
        (arith.RemUIOp, i8, (-1, 0), 0),
        (arith.ShLIOp, i8, (1, 7), -128),
        (arith.ShLIOp, i8, (1, 8), 0),
        (arith.ShLIOp, i8, (1, -1), 0),
        (arith.ShRSIOp, i8, (-128, 3), -16),
        (arith.ShRSIOp, i8, (-128, 100), -1),
        (arith.ShRUIOp, i8, (-128, 3), 16),
        (arith.ShRUIOp, i8, (-128, 8), 0),
        (arith.MaxSIOp, i8, (-1, 1), 1),
        (arith.MaxUIOp, i8, (-1, 1), -1),
        (arith.MinUIOp, i8, (-1, 1), 1),
        (arith.AddiOp, i1, (1, 1), False),
        (arith.MaxSIOp, i1, (1, 0), False),  # true is -1
        (arith.MaxUIOp, i1, (1, 0), True),
        (arith.XOrIOp, i1, (1, 0), True),
        (math.AbsIOp, i8, (-128,), -128),
        (math.RoundEvenOp, f32, (2.5,), 2.0),
        (math.RoundEvenOp, bf16, (3.5,), 4.0),
        (math.FmaOp, f32, (1.0 + 2.0**-23, 1.0 - 2.0**-23, -1.0), -(2.0**-46)),  # the product is not rounded
        (arith.AddfOp, f16, (2048.0, 1.0), 2048.0),
        (arith.MulfOp, bf16, (1.0078125, 1.0078125), 1.015625),
        (arith.DivfOp, f32, (1.0, 0.0), np.inf),
    ],
)
def test_edge(kind: type, type_: Attribute, values: tuple[float, ...], result: float) -> None:
    assert compute(kind, type_, *values) == result


@pytest.mark.parametrize("kind", [arith.MaximumfOp, arith.MinimumfOp])
@pytest.mark.parametrize("type_", [f16, bf16, f32, f64])
def test_nan_wins(kind: type, type_: Attribute) -> None:
    assert np.isnan(compute(kind, type_, float("nan"), 1.0))
    assert np.isnan(compute(kind, type_, 1.0, float("nan")))


@pytest.mark.parametrize("predicate", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_compare_with_nan(predicate: str) -> None:
    a, b = constant(float("nan"), f32), constant(1.0, f32)
    result = evaluate(CompareOp(predicate, a.result, b.result), np.float32("nan"), np.float32(1.0))
    assert result == (predicate == "ne")


def test_compare_unsigned() -> None:
    a, b = constant(-1, i8), constant(1, i8)
    values = np.asarray(-1, np.int8), np.asarray(1, np.int8)
    assert not evaluate(CompareOp("gt", a.result, b.result), *values)
    assert evaluate(CompareOp("gt", a.result, b.result, unsigned=True), *values)


@pytest.mark.parametrize(
    ("value", "source", "target", "unsigned", "result"),
    [
        (300.0, f32, i8, False, 127),
        (-300.0, f32, i8, False, -128),
        (300.0, f32, i8, True, -1),  # 255
        (-1.5, f32, i8, True, 0),
        (-1.9, f32, i32, False, -1),
        (float("nan"), f32, i32, False, 0),
        (float("inf"), f64, i64, False, (1 << 63) - 1),
        (float("-inf"), f64, i64, False, -(1 << 63)),
        (2.0**63, f64, i64, True, -(1 << 63)),
        (float("inf"), f64, i64, True, -1),
        (float("nan"), f16, i1, False, True),
        (-0.0, f16, i1, False, False),
        (0.25, f16, i1, False, True),
        (-1, i8, i32, False, -1),
        (-1, i8, i32, True, 255),
        (258, i32, i8, False, 2),
        (256, i32, i1, False, True),
        (1, i1, i32, False, 1),  # i1 counts as 0 and 1 with and without a sign
        (1, i1, f32, False, 1.0),
        (-1, i8, f32, True, 255.0),
        ((1 << 24) + 1, i32, f32, False, float(1 << 24)),
        (2049.0, f32, f16, False, 2048.0),
        (65520.0, f32, f16, False, np.inf),
        (1.00390625, f32, bf16, False, 1.0),  # half way: to even
        (1.01171875, f32, bf16, False, 1.015625),
        (1.0 + 2.0**-11 + 2.0**-40, f64, f16, False, 1.0 + 2.0**-10),  # rounded once, not by way of f32
    ],
)
def test_cast(value: float, source: Attribute, target: Attribute, unsigned: bool, result: float) -> None:
    op = CastOp(constant(value, source).result, target, unsigned=unsigned)
    assert evaluate(op, np.asarray(value).astype(dtype_of(source))).item() == result


@given(st.integers(-(2**15), 2**15 - 1), st.integers(-(2**15), 2**15 - 1))
def test_division_agrees_with_integers(a: int, b: int) -> None:
    wrap = lambda x: (x + (1 << 31)) % (1 << 32) - (1 << 31)  # noqa: E731
    quotient = 0 if b == 0 else int(a / b)
    assert compute(arith.DivSIOp, i32, a, b) == wrap(quotient)
    assert compute(arith.RemSIOp, i32, a, b) == (0 if b == 0 else a - b * quotient)
    assert compute(arith.FloorDivSIOp, i32, a, b) == (0 if b == 0 else a // b)


OPERATIONS = {kind.name: kind for dialect in (arith.Arith, math.Math) for kind in dialect.operations}


@pytest.mark.parametrize("table", [ELEMENT, elementwise.ELEMENT])
def test_tables_by_name_name_operations(table: dict[str, object]) -> None:
    """A name that no operation has would never be found."""
    assert set(table) <= {*OPERATIONS, *(kind.name for kind in Tile.operations)}
    assert set(elementwise.ELEMENT) >= elementwise.ARITHMETIC
    assert set(ELEMENT) >= EXACT_FUNCTIONS


@pytest.mark.parametrize(
    "kind", [OPERATIONS[name] for name in ELEMENT if name.startswith("math.") and name != math.AbsIOp.name]
)
@pytest.mark.parametrize("type_", [f16, bf16, f32, f64])
def test_functions_keep_their_type(kind: type, type_: Attribute) -> None:
    count = {math.FmaOp: 3, math.PowFOp: 2}.get(kind, 1)
    array = np.asarray([0.25, 0.5, 2.0]).astype(dtype_of(type_))
    op = kind(*(constant(0.5, type_).result for _ in range(count)))
    assert evaluate(op, *[array] * count).dtype == dtype_of(type_)


def test_bitcast_of_scalars_and_tiles() -> None:
    op = arith.BitcastOp(constant(1.0, f32).result, i32)
    assert evaluate(op, np.asarray(1.0, np.float32)).item() == 0x3F800000
    assert evaluate(op, np.ones((2, 3), np.float32)).shape == (2, 3)


def test_unknown_operations_are_named() -> None:
    op = arith.CmpfOp(constant(1.0, f32), constant(1.0, f32), "ogt")
    with pytest.raises(InvalidProgram, match=r"arith\.cmpf is not an operation of tile programs"):
        evaluate(op, np.float32(1), np.float32(1))


def test_cast_of_arrays_keeps_the_shape() -> None:
    array = np.zeros((2, 3), ml_dtypes.bfloat16)
    assert cast(array, np.dtype(np.int8), False).shape == (2, 3)


@given(st.floats(width=32))
def test_f32_as_tf32(number: float) -> None:
    """To nearest, ties away from zero, as f64 does it; high and low parts give the number again, which is exact."""
    x = np.float32(number)
    nearest, high, low = (float(tf32(kind, np.asarray(x))) for kind in ("nearest", "high", "low"))
    if np.isnan(x):
        assert np.isnan(low)
        assert np.isfinite(high)
        return
    unit = max(2.0 ** (np.frexp(x)[1] - 11), 2.0**-136) if np.isfinite(x) else 1.0
    rounded = np.copysign(np.floor(abs(number) / unit + 0.5) * unit, number) if np.isfinite(x) else number
    fits = abs(rounded) < 2.0**128
    assert nearest == (rounded if fits else np.copysign(np.inf, number))
    if fits:
        assert (high, high + low) == (nearest, number)
        assert abs(low - float(tf32("nearest", np.asarray(low, np.float32)))) <= max(unit * 2.0**-12, 2.0**-137)
    else:
        assert (high, low) == (np.copysign(1.0, number), float(x - np.float32(high)))
