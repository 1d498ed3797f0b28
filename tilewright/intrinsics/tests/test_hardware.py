"""`execute` against this machine's own instructions, bit for bit, through a function compiled for each."""

from __future__ import annotations

import ctypes
import platform
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.covering import tries
from tilewright.intrinsics.elements import storage
from tilewright.intrinsics.execute import execute
from tilewright.intrinsics.intrinsic import Intrinsic
from tilewright.intrinsics.registry import standard

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="instructions of x86-64")

# LLVM types of destination and sources in registers, and the body from %a, %b, %c to %d.
CALL = "%d = call {c} @{f}({c} %c, {a} %a, {b} %b)\n"
ADDED = "%p = call {c} @{f}({a} %a, {b} %b)\n%d = add {c} %p, %c\n"
FMA = "%d = call {c} @{f}({a} %a, {b} %b, {c} %c)\n"
SAT16 = """\
%p = call <32 x i16> @llvm.x86.avx512.pmaddubs.w.512(<64 x i8> %a, <64 x i8> %b)
%ones = insertelement <32 x i16> undef, i16 1, i32 0
%one = shufflevector <32 x i16> %ones, <32 x i16> undef, <32 x i32> zeroinitializer
%q = call <16 x i32> @llvm.x86.avx512.pmaddw.d.512(<32 x i16> %p, <32 x i16> %one)
%d = add <16 x i32> %c, %q
"""
SAT16_DECLARATIONS = """\
declare <32 x i16> @llvm.x86.avx512.pmaddubs.w.512(<64 x i8>, <64 x i8>)
declare <16 x i32> @llvm.x86.avx512.pmaddw.d.512(<32 x i16>, <32 x i16>)
"""
NAMES = (
    "vpdpbusd_full_16x4_u8s8_s32", "vpdpbusds_full_16x4_u8s8_s32", "vpdpbusd_full_8x4_u8s8_s32",
    "vdpbf16ps_full_16x2_bf16_f32", "fma_full_16_f32_f32", "fma_full_8_f64_f64", "gemv_16x4_sat16",
    "vpmaddwd_full_16x2_s16_s32", "vpmaddwd_full_8x2_s16_s32", "vpmaddwd_full_4x2_s16_s32",
)  # fmt: skip


@cache
def host_features() -> frozenset[str]:
    return frozenset(name for name, there in llvm.get_host_cpu_features().items() if there)


@cache
def compiled(name: str) -> Any:
    """A function (a, b, c, d: pointers) that runs the record's instruction once."""
    record = standard().find(name)
    lanes = record.destination.loops and record.shape(record.destination)[0]
    types = {"i32": "i32", "f32": "float", "f64": "double", "u8": "i8", "i8": "i8", "i16": "i16", "bf16": "bfloat"}
    group = record.macs // lanes
    a, b, c = (f"<{lanes * (group if place < 2 else 1)} x {types[o.dtype]}>" for place, o in enumerate(record.operands))
    if name == "gemv_16x4_sat16":
        body, declare = SAT16, SAT16_DECLARATIONS
    elif record.llvm.startswith("llvm.fma"):
        function = f"llvm.fma.v{lanes}f{record.destination.dtype[1:]}"
        body, declare = FMA.format(a=a, b=b, c=c, f=function), f"declare {c} @{function}({a}, {b}, {c})"
    elif record.emitter == "added_words":
        body, declare = ADDED.format(a=a, b=b, c=c, f=record.llvm), f"declare {c} @{record.llvm}({a}, {b})"
    else:
        words = f"<{lanes} x i32>" if "i8" in a else a  # LLVM's byte products took words until version 21
        function = record.functions[lanes]
        body, declare = CALL.format(a=a, b=b, c=c, f=function), f"declare {c} @{function}({c}, {a}, {b})"
        if words != a and not _accepts(declare):
            body = f"%x = bitcast {a} %a to {words}\n%y = bitcast {b} %b to {words}\n" + CALL.format(
                a=words, b=words, c=c, f=function
            ).replace("%a)", "%x)").replace("%a,", "%x,").replace("%b)", "%y)")
            declare = f"declare {c} @{function}({c}, {words}, {words})"
    text = f"""{declare}
define void @run(ptr %pa, ptr %pb, ptr %pc, ptr %pd) {{
%a = load {a}, ptr %pa, align 1
%b = load {b}, ptr %pb, align 1
%c = load {c}, ptr %pc, align 1
{body}store {c} %d, ptr %pd, align 1
ret void
}}
"""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=0
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), machine)
    engine.finalize_object()
    run = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)(engine.get_function_address("run"))
    return engine, run


def _accepts(declaration: str) -> bool:
    try:
        llvm.parse_assembly(declaration).verify()
    except RuntimeError:
        return False
    return True


def hardware(name: str, a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], c: np.ndarray[Any, Any]) -> Any:
    result = np.zeros_like(c)
    _, run = compiled(name)
    run(*(array.ctypes.data for array in (a, b, c, result)))
    return result


def operands(record: Intrinsic, seed: int, kind: str) -> list[np.ndarray[Any, Any]]:
    """Sources and destination: any bits, small exponents where sums underflow, or numbers that cancel."""
    random = np.random.default_rng(seed)
    found = []
    for operand in record.operands:
        shape, dtype = record.shape(operand), storage(operand.dtype)
        count = int(np.prod(shape))
        if kind == "bits" or dtype.kind in "iu":
            tile = np.frombuffer(random.bytes(count * dtype.itemsize), dtype).copy()
            if dtype.kind in "iu" and kind != "bits":
                tile = random.choice(np.array([np.iinfo(dtype).min, np.iinfo(dtype).max, 1], dtype), count)
        else:
            low, high = {"tiny": (-70, -55), "near": (-3, 3)}[kind]
            if operand.role == "Dst":
                low, high = 2 * low, 2 * high
            scale = np.ldexp(1.0, random.integers(low, high, count))
            tile = (random.choice([-1.0, 1.0], count) * (1 + random.integers(0, 128, count) / 128) * scale).astype(
                dtype
            )
        found.append(tile.reshape(shape))
    return found


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=tries(30, full=150), deadline=None)
@given(seed=st.integers(0, 1 << 32), kind=st.sampled_from(["bits", "tiny", "near"]))
def test_execute_is_what_the_instruction_does(name: str, seed: int, kind: str) -> None:
    record = standard().find(name)
    lacking = set(record.features) - host_features()
    if lacking:
        pytest.skip(f"this machine lacks {', '.join(lacking)}")
    a, b, c = operands(record, seed, kind)
    full = np.broadcast_to(a, b.shape).copy() if a.shape != b.shape else a
    expected, found = hardware(name, full, b, c), execute(record, c, a, b)
    if expected.dtype.kind == "f":
        nans = np.isnan(expected)
        np.testing.assert_array_equal(np.isnan(found), nans)
        expected, found = expected[~nans], found[~nans]
        np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))
    np.testing.assert_array_equal(found, expected)


def test_sums_that_are_tiny_after_rounding_are_flushed() -> None:
    """2**-126 minus products around half of the last place of the next smaller number of 24 bits."""
    name = "vdpbf16ps_full_16x2_bf16_f32"
    record = standard().find(name)
    if lacking := set(record.features) - host_features():
        pytest.skip(f"this machine lacks {', '.join(lacking)}")
    a, b = (np.zeros((16, 2), storage("bf16")) for _ in range(2))
    a[:, 0] = np.array([1, 1.0078125, 1.9921875, 0.5, 2, 1.5, 0.9921875, 4] * 2) * 2.0**-75
    b[:, 0] = -(2.0**-76)
    c = np.full(16, 2.0**-126, np.float32)
    result = execute(record, c, a, b)
    np.testing.assert_array_equal(result, hardware(name, a, b, c))
    assert set(result.tolist()) == {0.0, 2.0**-126}
