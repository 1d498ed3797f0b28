"""Accesses: what they read and write, and which instructions they become."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.codegen.gpu.memory import chunks_of
from tilewright.codegen.nvptx.tests.execute import agree, compiled, kernel


@pytest.mark.parametrize(
    ("extents", "strides", "size", "align", "lengths"),
    [
        ((8,), (1,), 2, 16, [8]),
        ((8,), (1,), 2, 4, [2, 2, 2, 2]),
        ((7,), (1,), 4, 16, [4, 2, 1]),
        ((2, 4), (32, 1), 4, 16, [4, 4]),
        ((2, 4), (33, 1), 4, 16, [4, 1, 2, 1]),
        ((4, 2), (1, 4), 4, 16, [4, 4]),  # along the first dimension
        ((4,), (0,), 4, 16, [1, 1, 1, 1]),
        ((3,), (-1,), 4, 16, [2, 1]),
        ((16,), (1,), 1, 16, [16]),
        ((4,), (1,), 8, 16, [2, 2]),
        ((), (), 4, 16, [1]),
    ],
)
def test_chunks(extents: tuple[int, ...], strides: tuple[int, ...], size: int, align: int, lengths: list[int]) -> None:
    """Every element once, in aligned powers of two of neighbours."""
    chunks = chunks_of(extents, strides, size, align)
    assert [len(chunk.numbers) for chunk in chunks] == lengths
    assert sorted(number for chunk in chunks for number in chunk.numbers) == list(range(int(np.prod(extents))))
    for chunk in chunks:
        assert chunk.offset * size % min(chunk.align, align) == 0
        assert len(chunk.numbers) * size <= max(chunk.align, size)


COPY = """
%t = simt.thread_id 0
%c = arith.constant {each} : index
%i = arith.muli %t, %c : index
%v = tile.load %a[%i] strides [1] {align}: memref<{n}x{type}> -> tensor<{each}x{type}>
tile.store %v, %o[%i] strides [1] {align}: tensor<{each}x{type}>, memref<{n}x{type}>
"""


@pytest.mark.parametrize(
    ("type_", "dtype", "each", "access"),
    [
        ("f32", np.float32, 4, "v4.b32"),
        ("f16", np.float16, 8, "v4.b32"),
        ("i8", np.int8, 16, "v4.b32"),
        ("f64", np.float64, 2, "v2.b64"),
        ("f16", np.float16, 4, "v2.b32"),
        ("f32", np.float32, 2, "v2.b32"),
        ("i8", np.int8, 3, "b8"),
    ],
)
def test_neighbours_become_wide_accesses(type_: str, dtype: type, each: int, access: str) -> None:
    """The alignment is seen in the factors of the offset; what is only read goes around the coherent cache."""
    n = 32 * each
    text = kernel(
        COPY.format(each=each, n=n, type=type_, align=""), f"%a: memref<{n}x{type_}>, %o: memref<{n}x{type_}>"
    )
    a = np.arange(n).astype(dtype)
    code = agree(text, [a, np.zeros(n, dtype)])
    assert f"ld.global.nc.{access}" in code.ptx
    assert f"st.global.{access}" in code.ptx


def test_what_the_kernel_writes_is_not_read_around_the_cache() -> None:
    body = """
    %t = simt.thread_id 0
    %c = arith.constant 4 : index
    %i = arith.muli %t, %c : index
    %v = tile.load %a[%i] strides [1] : memref<128xf32> -> tensor<4xf32>
    %w = arith.addf %v, %v : tensor<4xf32>
    tile.store %w, %a[%i] strides [1] : tensor<4xf32>, memref<128xf32>"""
    code = agree(kernel(body, "%a: memref<128xf32>"), [np.arange(128).astype(np.float32)])
    assert "ld.global.v4.b32" in code.ptx
    assert ".nc" not in code.ptx


def test_alignment_can_be_promised() -> None:
    """Of an offset about which nothing else is known: it comes from memory."""
    body = """
    %t = simt.thread_id 0
    %j = tile.load %n[%t] strides [] : memref<32xi32> -> i32
    %s = arith.index_cast %j : i32 to index
    %v = tile.load %a[%s] strides [1] {}: memref<128xf32> -> tensor<4xf32>
    tile.store %v, %o[%s] strides [1] align 16 : tensor<4xf32>, memref<128xf32>"""
    views = "%n: memref<32xi32>, %a: memref<128xf32>, %o: memref<128xf32>"
    arrays = [4 * np.arange(32, dtype=np.int32), np.arange(128).astype(np.float32), np.zeros(128, np.float32)]
    assert "ld.global.nc.v4" in agree(kernel(body.format("align 16 "), views), arrays).ptx
    assert "ld.global.nc.v2" in agree(kernel(body.format("align 8 "), views), arrays).ptx
    assert "ld.global.nc.v" not in agree(kernel(body.format(""), views), arrays).ptx


@pytest.mark.covering(1)
@pytest.mark.parametrize("type_", ["f16", "f32", "f64", "i8"])
@pytest.mark.parametrize("n", [128, 125, 1, 6])
def test_bounds_cut_at_any_element(n: int, type_: str) -> None:
    """Whole vectors inside, single elements at the edge, nothing touched outside."""
    body = f"""
    %t = simt.thread_id 0
    %c = arith.constant 4 : index
    %n = arith.constant {n} : index
    %i = arith.muli %t, %c : index
    %b = arith.subi %n, %i : index
    %v = tile.load %a[%i] bounds (%b) strides [1] : memref<{n}x{type_}> -> tensor<4x{type_}>
    tile.store %v, %o[%i] strides [1] : tensor<4x{type_}>, memref<128x{type_}>
    tile.store %v, %p[%i] bounds (%b) strides [1] : tensor<4x{type_}>, memref<{n}x{type_}>"""
    dtype = {"f16": np.float16, "f32": np.float32, "f64": np.float64, "i8": np.int8}[type_]
    a = (1 + np.arange(n)).astype(dtype)
    out, cut = np.full(128, 9, dtype), np.full(n, 9, dtype)
    views = f"%a: memref<{n}x{type_}>, %o: memref<128x{type_}>, %p: memref<{n}x{type_}>"
    agree(kernel(body, views), [a, out, cut])
    assert (out[:n] == a).all()
    assert (out[n:] == 0).all()
    assert (cut == a).all()


def test_one_condition_for_a_vector_is_a_predicate() -> None:
    """Bounds on another dimension than the contiguous one, and a mask, need no branch."""
    body = """
    %t = simt.thread_id 0
    %c8 = arith.constant 8 : index
    %c1 = arith.constant 1 : index
    %i = arith.muli %t, %c8 : index
    %n = arith.constant 16 : index
    %b = arith.subi %n, %t : index
    %v = tile.load %a[%i] bounds (%b, %c8) strides [4, 1] : memref<256xf32> -> tensor<2x4xf32>
    tile.store %v, %o[%i] bounds (%b, %c8) strides [4, 1] : tensor<2x4xf32>, memref<256xf32>"""
    code = agree(
        kernel(body, "%a: memref<256xf32>, %o: memref<256xf32>"),
        [np.arange(256).astype(np.float32), np.full(256, -1, np.float32)],
    )
    assert code.ptx.count("ld.global.nc.v4.b32") == 2
    assert "bra" not in code.ptx


def test_masks_and_strides() -> None:
    body = """
    %t = simt.thread_id 0
    %c6 = arith.constant 6 : index
    %i = arith.muli %t, %c6 : index
    %x = tile.iota 0 : tensor<2x3xi64>
    %y = tile.iota 1 : tensor<2x3xi64>
    %z = arith.addi %x, %y : tensor<2x3xi64>
    %u = arith.index_cast %t : index to i64
    %w = tile.broadcast %u : i64 -> tensor<2x3xi64>
    %s = arith.addi %z, %w : tensor<2x3xi64>
    %two = arith.constant dense<2> : tensor<2x3xi64>
    %r = arith.remui %s, %two : tensor<2x3xi64>
    %zero = arith.constant dense<0> : tensor<2x3xi64>
    %m = tile.compare "eq" %r, %zero : tensor<2x3xi64> -> tensor<2x3xi1>
    %v = tile.load %a[%i] mask %m : tensor<2x3xi1> strides [1, 2] : memref<192xf16> -> tensor<2x3xf16>
    tile.store %v, %o[%i] mask %m : tensor<2x3xi1> strides [3, 1] : tensor<2x3xf16>, memref<192xf16>"""
    arrays = [np.arange(192).astype(np.float16), np.full(192, -1, np.float16)]
    agree(kernel(body, "%a: memref<192xf16>, %o: memref<192xf16>"), arrays)


def test_gather_alloc_and_prefetch() -> None:
    body = """
    %t = simt.thread_id 0
    %c0 = arith.constant 0 : index
    %c2 = arith.constant 2 : index
    %m = tile.alloc : memref<4xf32>
    %u = arith.index_cast %t : index to i64
    %w = tile.broadcast %u : i64 -> tensor<2xi64>
    %k = tile.iota 0 : tensor<2xi64>
    %s = arith.addi %k, %w : tensor<2xi64>
    %n = arith.constant dense<31> : tensor<2xi64>
    %f = arith.subi %n, %s : tensor<2xi64>
    %z = arith.constant dense<0> : tensor<2xi64>
    %g = tile.compare "ge" %f, %z : tensor<2xi64> -> tensor<2xi1>
    %v = tile.gather %a[%f : tensor<2xi64>] mask %g : tensor<2xi1> : memref<32xf32> -> tensor<2xf32>
    tile.store %v, %m[%c0] strides [1] : tensor<2xf32>, memref<4xf32>
    tile.store %v, %m[%c2] strides [1] : tensor<2xf32>, memref<4xf32>
    %one = arith.constant 1 : index
    %at = arith.remui %t, %c2 : index
    %b = arith.addi %at, %one : index
    %r = tile.load %m[%b] strides [1] : memref<4xf32> -> tensor<2xf32>
    %i = arith.muli %t, %c2 : index
    tile.store %r, %o[%i] strides [1] : tensor<2xf32>, memref<64xf32>
    tile.prefetch %a[%i] 256 : memref<32xf32>"""
    code = agree(
        kernel(body, "%a: memref<32xf32>, %o: memref<64xf32>"),
        [np.arange(32).astype(np.float32), np.zeros(64, np.float32)],
    )
    assert code.ptx.count("prefetch.global.L2") == 2
    assert ".local" in code.ptx


def test_masked_store_to_memory_of_a_thread() -> None:
    body = """
    %t = simt.thread_id 0
    %c0 = arith.constant 0 : index
    %c3 = arith.constant 3 : index
    %m = tile.alloc : memref<4xf32>
    %z = arith.constant dense<0.0> : tensor<4xf32>
    tile.store %z, %m[%c0] strides [1] : tensor<4xf32>, memref<4xf32>
    %one = arith.constant dense<1.0> : tensor<4xf32>
    %b = arith.remui %t, %c3 : index
    tile.store %one, %m[%c0] bounds (%b) strides [1] : tensor<4xf32>, memref<4xf32>
    %r = tile.load %m[%c0] bounds (%c3) strides [1] : memref<4xf32> -> tensor<4xf32>
    %c4 = arith.constant 4 : index
    %i = arith.muli %t, %c4 : index
    tile.store %r, %o[%i] strides [1] : tensor<4xf32>, memref<128xf32>"""
    agree(kernel(body, "%o: memref<128xf32>"), [np.full(128, 7, np.float32)])


def test_aligned_constants_allow_wide_access_at_a_fixed_offset() -> None:
    """An offset of 0 is a multiple of everything; one of 2 floats allows pairs."""
    for offset, access in ((0, "v4"), (2, "v2")):
        body = f"""
        %c = arith.constant {offset} : index
        %v = tile.load %a[%c] strides [1] : memref<8xf32> -> tensor<4xf32>
        tile.store %v, %o[%c] strides [1] : tensor<4xf32>, memref<8xf32>"""
        code = compiled(kernel(body, "%a: memref<8xf32>, %o: memref<8xf32>", "1", "1, 1, 1", 1))
        assert f"ld.global.nc.{access}.b32" in code.ptx


def test_bounds_and_masks_in_shared_memory() -> None:
    """Predicated accesses take 32-bit addresses; a swizzled offset keeps its alignment."""
    body = """
    %t = simt.thread_id 0
    %c4 = arith.constant 4 : index
    %c8 = arith.constant 8 : index
    %c122 = arith.constant 122 : index
    %s = simt.shared align 16 : memref<128xf32, "shared">
    %i = arith.muli %t, %c4 : index
    %low = arith.divui %t, %c8 : index
    %mix = arith.muli %low, %c4 : index
    %at = arith.xori %i, %mix : index
    %z = arith.constant dense<5.0> : tensor<4xf32>
    tile.store %z, %s[%at] strides [1] : tensor<4xf32>, memref<128xf32, "shared">
    %b = arith.subi %c122, %at : index
    %v = tile.load %a[%i] strides [1] : memref<128xf32> -> tensor<4xf32>
    tile.store %v, %s[%at] bounds (%b) strides [1] : tensor<4xf32>, memref<128xf32, "shared">
    simt.barrier
    %w = tile.load %s[%i] bounds (%t) strides [1] : memref<128xf32, "shared"> -> tensor<4xf32>
    tile.store %w, %o[%i] strides [1] : tensor<4xf32>, memref<128xf32>"""
    code = agree(
        kernel(body, "%a: memref<128xf32>, %o: memref<128xf32>"),
        [np.arange(128).astype(np.float32), np.zeros(128, np.float32)],
    )
    assert "st.shared.v4.b32" in code.ptx
    assert "ld.shared.v4.b32" in code.ptx
    assert "ld.shared.b32" in code.ptx
