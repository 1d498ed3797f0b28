"""Element operations on the emulated GPU: elementary functions within their bounds, casts and reductions exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.codegen.nvptx.tests.execute import agree, emulate, kernel
from tilewright.expr.special import erf

# Units in the last place of f32 that `codegen.math` promises; the square root is rounded correctly. The exponential
# and the hyperbolic tangent take powers of two from an instruction, which the emulator rounds correctly and devices
# within a relative error of 2^-22: 4 more, and `DEVICE_ERROR` of a result below 2.
BOUNDS = {
    "exp2": 0.6,
    "exp": 1.6, "expm1": 1.6, "tanh": 2.2, "sinh": 2.3, "cosh": 1.5, "log": 1.0, "log1p": 1.0, "asinh": 1.8,
    "acosh": 2.1, "atanh": 2.0, "erf": 1.9, "sin": 1.6, "cos": 1.6, "tan": 3.1, "asin": 2.4, "acos": 1.2,
    "atan": 1.9, "sqrt": 0.5,
}  # fmt: skip
FLUSHED = ("exp2",)  # 0 for what would be denormal
DEVICE_UNITS, DEVICE_ERROR = 4, 2.0**-21
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "exp2": np.exp2,
    "exp": np.exp, "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "tanh": np.tanh, "erf": erf,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "sinh": np.sinh, "cosh": np.cosh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "sqrt": np.sqrt,
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str, device: str) -> None:
    body = f"""
    %p = tile.program_id 0
    %t = simt.thread_id 0
    %c = arith.constant 128 : index
    %s = arith.muli %p, %c : index
    %i = arith.addi %s, %t : index
    %v = tile.load %a[%i] strides [] : memref<1024xf32> -> f32
    %e = math.{name} %v : f32
    tile.store %e, %o[%i] strides [] : f32, memref<1024xf32>"""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(1024) * 10.0 ** rng.uniform(-4, 4, 1024)).astype(np.float32)
    x[:9] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 1.0, 100.0, -1e30]
    got = np.zeros(1024, np.float32)
    text = kernel(body, "%a: memref<1024xf32>, %o: memref<1024xf32>", "8", "128, 1, 1")
    code = emulate(text, [x, got])
    bound = BOUNDS[name] + (DEVICE_UNITS if device == "cuda" and ".approx" in code.ptx else 0)
    with np.errstate(all="ignore"):
        truth = np.asarray(FUNCTIONS[name](x.astype(np.float64)))
        if name in FLUSHED:
            truth = np.where(np.abs(truth) < np.finfo(np.float32).tiny, 0.0, truth)
        rounded = truth.astype(np.float32)
        unit = np.spacing(np.maximum(np.abs(rounded), np.finfo(np.float32).tiny))
        ulps = np.abs(got.astype(np.float64) - truth) / unit
    special = ~np.isfinite(rounded)
    assert ((got == rounded) | (np.isnan(got) & np.isnan(rounded)))[special].all()
    assert ulps[~special].max() <= bound, x[~special][ulps[~special].argmax()]


@pytest.mark.parametrize("kind", ["nearest", "high", "low"])
@pytest.mark.parametrize("machine", ["sm_75", "sm_80", "sm_90a"])
def test_tf32(machine: str, kind: str) -> None:
    """To the bit, by the instruction where there is one."""
    body = f"""
    %t = simt.thread_id 0
    %c = arith.constant 4 : index
    %i = arith.muli %t, %c : index
    %v = tile.load %a[%i] strides [1] : memref<512xf32> -> tensor<4xf32>
    %e = tile.tf32 "{kind}" %v : tensor<4xf32>
    tile.store %e, %o[%i] strides [1] : tensor<4xf32>, memref<512xf32>"""
    ends = [0x7F7FEFFF, 0x7F7FF000, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FFFFFFF, 0xFFC01234, 0x7F801FFF, 0x1000,
            0xFFF, 0x80001000, 0x7FF000, 0x80000000, 0x3F801000, 0x3F803000, 0x3F800FFF]  # fmt: skip
    x = np.random.default_rng(0).integers(0, 1 << 32, 512, np.uint32)
    x[: len(ends)] = ends
    text = kernel(body, "%a: memref<512xf32>, %o: memref<512xf32>", threads="128, 1, 1")
    code = agree(text, [x.view(np.float32), np.zeros(512, np.float32)], machine)
    assert ("cvt.rna.tf32.f32" in code.ptx) == (kind == "nearest" and machine != "sm_75")


@pytest.mark.parametrize(
    ("body", "function", "bound"),
    [
        ("%e = math.erf %v : f32\n%r = arith.addf %e, %one : f32", lambda x: 1 + erf(x), 1.4e-7),
        ("%r = tile.sigmoid %v : f32", lambda x: 1 / (1 + np.exp(-x)), 2.0**-22),
    ],
    ids=["1 + erf", "sigmoid"],
)  # fmt: skip
def test_functions_by_few_instructions(
    body: str, function: Callable[[np.ndarray], np.ndarray], bound: float, device: str
) -> None:
    """Neither polynomials for both ends of erf nor a division."""
    text = f"""
    %p = tile.program_id 0
    %t = simt.thread_id 0
    %c = arith.constant 128 : index
    %s = arith.muli %p, %c : index
    %i = arith.addi %s, %t : index
    %one = arith.constant 1.0 : f32
    %v = tile.load %a[%i] strides [] : memref<1024xf32> -> f32
    {body}
    tile.store %r, %o[%i] strides [] : f32, memref<1024xf32>"""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-6, 6, 512), rng.standard_normal(512) * 10.0 ** rng.uniform(-4, 4, 512)])
    x[:9] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 1e30, -1e30, 88.5]
    x = x.astype(np.float32)
    got = np.zeros(1024, np.float32)
    code = emulate(kernel(text, "%a: memref<1024xf32>, %o: memref<1024xf32>", "8", "128, 1, 1"), [x, got])
    assert "div." not in code.ptx
    assert code.ptx.count("fma.rn.f32") < 10
    with np.errstate(over="ignore"):
        truth = function(x.astype(np.float64))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(x))
    assert np.nanmax(np.abs(got - truth)) <= bound + (DEVICE_ERROR if device == "cuda" else 0)


CASTS = ("f16", "bf16", "f32", "f64", "i8", "i16", "i32", "i64")
DTYPES = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64, "i8": np.int8, "i16": np.int16,
    "i32": np.int32, "i64": np.int64,
}  # fmt: skip


@pytest.mark.covering(1)
@pytest.mark.parametrize("machine", ["sm_75", "sm_80"])
@pytest.mark.parametrize("source", CASTS)
def test_casts(source: str, machine: str) -> None:
    """From every type to every type, signed and not; f32 to bf16 and f16 go in pairs where there is an instruction."""
    others = [name for name in CASTS if name != source]
    body = f"""
    %t = simt.thread_id 0
    %c = arith.constant 3 : index
    %i = arith.muli %t, %c : index
    %v = tile.load %a[%i] strides [1] : memref<96x{source}> -> tensor<3x{source}>
    """
    views = [f"%a: memref<96x{source}>"]
    rng = np.random.default_rng(0)
    dtype = np.dtype(DTYPES[source])
    if dtype.kind == "i":
        a = rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, 96, dtype, endpoint=True)
    else:
        a = (rng.standard_normal(96) * 10.0 ** rng.uniform(-3, 4, 96)).astype(dtype)
        a[:4] = [0, np.nan, np.inf, -np.inf]
    arrays = [a]
    for number, wanted in enumerate(others):
        for sign in ("", "unsigned "):
            name = f"{number}{'u' if sign else 's'}"
            body += f"%r{name} = tile.cast %v {sign}: tensor<3x{source}> -> tensor<3x{wanted}>\n"
            body += f"tile.store %r{name}, %o{name}[%i] strides [1] : tensor<3x{wanted}>, memref<96x{wanted}>\n"
            views.append(f"%o{name}: memref<96x{wanted}>")
            arrays.append(np.zeros(96, DTYPES[wanted]))
    agree(kernel(body, ", ".join(views)), arrays, machine)


@pytest.mark.covering(1)
@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("type_", ["f32", "f16", "bf16", "i32", "i8"])
def test_reductions(type_: str, kind: str) -> None:
    """Along both dimensions; numbers whose sums and products are exact."""
    body = f"""
    %t = simt.thread_id 0
    %c6 = arith.constant 6 : index
    %c3 = arith.constant 3 : index
    %c2 = arith.constant 2 : index
    %i = arith.muli %t, %c6 : index
    %j = arith.muli %t, %c3 : index
    %k = arith.muli %t, %c2 : index
    %v = tile.load %a[%i] strides [3, 1] : memref<192x{type_}> -> tensor<2x3x{type_}>
    %x = tile.reduce "{kind}" %v, 0 : tensor<2x3x{type_}> -> tensor<1x3x{type_}>
    %y = tile.reduce "{kind}" %v, 1 : tensor<2x3x{type_}> -> tensor<2x1x{type_}>
    tile.store %x, %o[%j] strides [3, 1] : tensor<1x3x{type_}>, memref<96x{type_}>
    tile.store %y, %p[%k] strides [1, 1] : tensor<2x1x{type_}>, memref<64x{type_}>"""
    a = np.random.default_rng(0).integers(-4, 5, 192).astype(DTYPES[type_])
    if a.dtype.kind not in "iu":
        a[5] = np.nan
    views = f"%a: memref<192x{type_}>, %o: memref<96x{type_}>, %p: memref<64x{type_}>"
    agree(kernel(body, views), [a, np.zeros(96, a.dtype), np.zeros(64, a.dtype)])


@pytest.mark.parametrize(("unsigned", "form"), [("", "s32.s32"), ("a", "u32.s32"), ("b", "s32.u32"), ("ab", "u32.u32")])
def test_products_of_bytes(unsigned: str, form: str) -> None:
    """Four neighbours along k at once, each operand with its own sign."""
    body = f"""
    %o = arith.constant 0 : index
    %a = tile.load %p[%o] strides [8, 1] : memref<16xi8> -> tensor<2x8xi8>
    %b = tile.load %q[%o] strides [12, 4, 1] : memref<24xi8> -> tensor<2x3x4xi8>
    %c = tile.load %r[%o] strides [3, 1] : memref<6xi32> -> tensor<2x3xi32>
    %d = tile.dot "dp4a" %a, %b, %c unsigned "{unsigned}" : tensor<2x8xi8>, tensor<2x3x4xi8>, tensor<2x3xi32>
    tile.store %d, %s[%o] strides [3, 1] : tensor<2x3xi32>, memref<6xi32>"""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-128, 128, count).astype(np.int8) for count in (16, 24))
    views = "%p: memref<16xi8>, %q: memref<24xi8>, %r: memref<6xi32>, %s: memref<6xi32>"
    text = kernel(body, views, threads="1, 1, 1", warp=1)
    code = agree(text, [a, b, np.arange(6, dtype=np.int32), np.zeros(6, np.int32)])
    assert code.ptx.count(f"dp4a.{form}") == 12


def test_products_of_floats() -> None:
    """Multiply-adds of the accumulator's type, of f16 and bf16 operands too."""
    for type_ in ("f16", "bf16", "f32"):
        body = f"""
        %o = arith.constant 0 : index
        %a = tile.load %p[%o] strides [3, 1] : memref<6x{type_}> -> tensor<2x3x{type_}>
        %b = tile.load %q[%o] strides [2, 1] : memref<6x{type_}> -> tensor<3x2x{type_}>
        %c = tile.load %r[%o] strides [2, 1] : memref<4xf32> -> tensor<2x2xf32>
        %d = tile.dot "" %a, %b, %c unsigned "" : tensor<2x3x{type_}>, tensor<3x2x{type_}>, tensor<2x2xf32>
        tile.store %d, %s[%o] strides [2, 1] : tensor<2x2xf32>, memref<4xf32>"""
        a, b = np.arange(6).astype(DTYPES[type_]), np.arange(3, 9).astype(DTYPES[type_])
        views = f"%p: memref<6x{type_}>, %q: memref<6x{type_}>, %r: memref<4xf32>, %s: memref<4xf32>"
        text = kernel(body, views, threads="1, 1, 1", warp=1)
        code = agree(text, [a, b, np.arange(4, dtype=np.float32), np.zeros(4, np.float32)])
        assert code.ptx.count("fma.rn.f32") == 12
