"""The kernels that errors are planted in: `FAMILIES`, each compiled and run by the emulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from tilewright import emulator
from tilewright.codegen.nvptx.pipeline import PtxCode, generate
from tilewright.codegen.nvptx.target import target_for
from tilewright.compiler.compile import build
from tilewright.expr.core import Tensor
from tilewright.expr.graph import GraphBuilder
from tilewright.expr.ops import attention, conv, elementwise, linalg, norm
from tilewright.kernel.passes.gpu.distribution.tests import programs
from tilewright.kernel.passes.table import run_pipeline
from tilewright.kernel.text import parse_module
from tilewright.kernel.tile_types import i64s
from tilewright.machine.description import Gpu
from tilewright.machine.registry import resolve
from tilewright.options import Options
from tilewright.runtime.emulated import run_module, with_maps

Array = np.ndarray[Any, Any]
MOST_INSTRUCTIONS = 1_000_000


@dataclass(frozen=True)
class Family:
    """A tile program of one kernel or a whole graph for a machine, with arguments, the last of which is the result.

    `slot` is how many bytes lie between one slot and the next.
    """

    program: str | Callable[[GraphBuilder], Tensor]
    machine: str
    arguments: Callable[[], list[Any]]  # those that are written hold NaN
    slot: int = 0
    disable: tuple[str, ...] = ()
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    warps: tuple[int, int] = (0, 0)  # of a block along m and n, where the passes are given them
    multiprocessors: int | None = None  # of the machine; for tile programs 2, if nothing else is said
    wanted: Callable[[Sequence[Array]], Array] | None = None  # the last argument afterwards
    tolerance: float = 1e-5


def _integers(*sizes: int, dtype: Any = np.float16) -> list[Any]:
    """Small whole numbers, none of them zero: their sums are exact in any order."""
    rng = np.random.default_rng(0)
    return [(rng.integers(1, 4, size) * rng.choice([-1, 1], size)).astype(dtype) for size in sizes]


def _product(
    m: int, n: int, k: int, dtype: Any = np.float16, parts: int = 0, result: Any = np.float32
) -> Callable[[], list[Any]]:
    memory = [np.full(parts * m * n, np.nan, np.float32)] if parts else []
    unwritten = -1 if np.issubdtype(result, np.integer) else np.nan
    return lambda: [
        *_integers(m * k, k * n, dtype=dtype), *(each.copy() for each in memory), np.full(m * n, unwritten, result)
    ]  # fmt: skip


def _floats(m: int, n: int, k: int, bits: int) -> Callable[[], list[Any]]:
    """Factors of a product, and memory for it: small whole numbers, b with so many bits of mantissa.

    With 0 all are such numbers only when they are rounded to tf32.
    """
    a, b = _integers(m * k, k * n, dtype=np.float32)
    if bits:
        b *= np.random.default_rng(1).integers(1 << bits - 1, 1 << bits, b.shape) | 1
    else:
        a, b = (each * np.float32(1 - 2.0**-13) for each in (a, b))
    return lambda: [a.copy(), b.copy(), np.full(m * n, np.nan, np.float32)]


def _times(m: int, n: int, k: int, by_columns: bool = False, whole: bool = False) -> Callable[[Sequence[Array]], Array]:
    """The product; `by_columns`: b is stored so; `whole`: of factors rounded to whole numbers."""

    def times(given: Sequence[Array]) -> Array:
        a, b = (np.rint(each) if whole else each.astype(np.float64) for each in given[:2])
        right = b.reshape(n, k).T if by_columns else b.reshape(k, n)
        return np.asarray(a.reshape(m, k) @ right).reshape(-1)

    return times


def _mapped(elements: int, results: int) -> Callable[[], list[Any]]:
    values = np.random.default_rng(0).standard_normal(elements).astype(np.float32)
    return lambda: [values.copy(), np.full(results, np.nan, np.float32)]


def _rows_of_heads(heads: int, rows: int, width: int) -> Callable[[], list[Any]]:
    size = heads * rows * width
    values = (np.random.default_rng(0).standard_normal((3, size)) * 2).astype(np.float16)
    return lambda: [*(each.copy() for each in values), np.full(size, np.nan, np.float32)]


def _attention(heads: int, rows: int, width: int) -> Callable[[Sequence[Array]], Array]:
    def wanted(given: Sequence[Array]) -> Array:
        q, k, v = (each.astype(np.float64).reshape(heads, rows, width) for each in given[:3])
        s = q @ k.transpose(0, 2, 1) / np.sqrt(width)
        e = np.exp(s - s.max(2, keepdims=True))
        return np.asarray(e / e.sum(2, keepdims=True) @ v).reshape(-1)

    return wanted


def _softmax(rows: int, columns: int) -> Callable[[Sequence[Array]], Array]:
    def wanted(given: Sequence[Array]) -> Array:
        x = given[0].reshape(rows, columns)
        e = np.exp(x - x.max(1, keepdims=True))
        return np.asarray(e / e.sum(1, keepdims=True)).reshape(-1)

    return wanted


def _normalised(rows: int, columns: int) -> Callable[[], list[Any]]:
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(size).astype(np.float32) for size in (rows * columns, columns, columns)]
    return lambda: [*(each.copy() for each in given), np.full(rows * columns, np.nan, np.float32)]


def _layer_norm(rows: int, columns: int) -> Callable[[Sequence[Array]], Array]:
    def wanted(given: Sequence[Array]) -> Array:
        x = given[0].reshape(rows, columns).astype(np.float64)
        scaled = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
        return np.asarray(scaled * given[1] + given[2]).reshape(-1)

    return wanted


def _convolution(given: Sequence[Array]) -> Array:
    x = np.pad(given[0].reshape(8, 6, 6).astype(np.float32), ((0, 0), (1, 1), (1, 1)))
    w = given[1].reshape(18, 8, 2, 2).astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(x, (2, 2), axis=(1, 2))
    return np.einsum("cijuv,ocuv->oij", windows, w).reshape(-1)


def _relu_of_sums(b: GraphBuilder) -> Tensor:
    """A product of bf16, a bias, and what is above zero."""
    product = linalg.matmul(b.input("x", (200, 136), "bf16"), b.input("w", (136, 264), "bf16"))
    return elementwise.relu(elementwise.binary(product, b.input("bias", (264,), "bf16"), "add"))


def _relu_of_sums_wanted(given: Sequence[Array]) -> Array:
    x, w, bias = (each.astype(np.float64) for each in given[:3])
    return np.asarray(np.maximum(x.reshape(200, 136) @ w.reshape(136, 264) + bias, 0)).reshape(-1)


_HISTOGRAM = """
tile.func @k(%x: memref<120xi32>, %out: memref<16xi32>) grid [2] threads [64, 1, 1] warp 32 {
  %t = simt.thread_id 0
  %p = tile.program_id 0
  %c16 = arith.constant 16 : index
  %c64 = arith.constant 64 : index
  %c120 = arith.constant 120 : index
  %zero = arith.constant 0 : i32
  %one = arith.constant 1 : i32
  %bins = simt.shared align 16 : memref<16xi32, "shared">
  %few = tile.compare "lt" %t, %c16 : index -> i1
  tile.store %zero, %bins[%t] mask %few : i1 strides [] : i32, memref<16xi32, "shared">
  simt.barrier
  %base = arith.muli %p, %c64 : index
  %at = arith.addi %base, %t : index
  %there = tile.compare "lt" %at, %c120 : index -> i1
  %v = tile.load %x[%at] mask %there : i1 strides [] : memref<120xi32> -> i32
  %bin = arith.index_cast %v : i32 to index
  %old = simt.atomic "add" %one, %bins[%bin] mask %there : i32, memref<16xi32, "shared"> -> i32
  simt.barrier
  %sum = tile.load %bins[%t] mask %few : i1 strides [] : memref<16xi32, "shared"> -> i32
  %all = simt.atomic "add" %sum, %out[%t] mask %few : i32, memref<16xi32> -> i32
  tile.return
}
"""  # every block counts in its memory, then adds to the counts of all
_M8 = "mma_m16n8k8_f16_f32"
FAMILIES: dict[str, Family] = {
    "copies ahead": Family(
        programs.ragged_matmul((40, 40, 136), (32, 32, 32)), "sm_80", _product(40, 40, 136), 2048,
        wanted=_times(40, 40, 136),
    ),
    "copies ahead, whole tiles": Family(
        programs.matmul((64, 32, 128), (32, 32, 32)), "sm_80", _product(64, 32, 128), 2048, wanted=_times(64, 32, 128),
    ),
    "one buffer": Family(
        programs.matmul((32, 32, 64), (32, 32, 32)), "sm_80", _product(32, 32, 64), 2048, ("pipeline-loads",),
        wanted=_times(32, 32, 64),
    ),
    "registers ahead": Family(
        programs.ragged_matmul((40, 40, 40), (32, 32, 16), _M8), "sm_75", _product(40, 40, 40), 1024,
        wanted=_times(40, 40, 40),
    ),
    "parts of k": Family(
        programs.matmul((32, 32, 128), (32, 32, 32)), "sm_80", _product(32, 32, 128, parts=2), 2048,
        options={"split-k": {"splits": 2}}, wanted=_times(32, 32, 128),
    ),
    "multiply-adds": Family(
        programs.ragged_matmul((39, 40, 20), (32, 32, 8), "fma", "f32"), "sm_80", _product(39, 40, 20, np.float32),
        1024, wanted=_times(39, 40, 20),
    ),
    "bf16": Family(
        programs.ragged_matmul((40, 40, 136), (32, 32, 32), "mma_m16n8k16_bf16_f32", "bf16"), "sm_80",
        _product(40, 40, 136, ml_dtypes.bfloat16), 2048, wanted=_times(40, 40, 136),
    ),
    "tf32": Family(
        programs.ragged_matmul((40, 40, 68), (32, 32, 16), "mma_m16n8k8_tf32_f32", "f32", "b"), "sm_80",
        _floats(40, 40, 68, 0), 2048, wanted=_times(40, 40, 68, by_columns=True, whole=True),
    ),
    "tf32x3": Family(
        programs.ragged_matmul((40, 40, 68), (32, 32, 16), "mma_m16n8k8_tf32_f32", "f32", "b", precision="tf32x3"),
        "sm_80", _floats(40, 40, 68, 12), 2048, wanted=_times(40, 40, 68, by_columns=True),
    ),
    "s8": Family(
        programs.ragged_matmul((40, 40, 80), (32, 32, 32), "mma_m16n8k32_s8_s32", "i8", "b", "i32"), "sm_80",
        _product(40, 40, 80, np.int8, result=np.int32), 2048, wanted=_times(40, 40, 80, by_columns=True),
    ),
    "f64": Family(
        programs.ragged_matmul((20, 20, 12), (16, 16, 8), "mma_m8n8k4_f64_f64", "f64", "", "f64"), "sm_80",
        _product(20, 20, 12, np.float64, result=np.float64), 1024, wanted=_times(20, 20, 12),
    ),
    "softmax of rows": Family(
        programs.softmax(2, 4, 64), "sm_80", _mapped(512, 512), wanted=_softmax(8, 64),
    ),
    "softmax of a long row": Family(
        programs.softmax(6, 1, 256), "sm_80", _mapped(1536, 1536), 8, wanted=_softmax(6, 256),
    ),
    "column sums": Family(
        programs.counted_sum(32, 32, 16), "sm_80", _mapped(32 * 32, 32), 128,
        wanted=lambda given: given[0].reshape(32, 32).sum(0) + np.arange(32, dtype=np.float32),
    ),
    "transposition": Family(
        programs.transposition(32, 32, "f32"), "sm_80", _mapped(32 * 32, 32 * 32), 512,
        wanted=lambda given: given[0].reshape(32, 32).T.reshape(-1),
    ),
    "element-wise": Family(
        programs.add(300, 256), "sm_80", _mapped(300, 300), wanted=lambda given: np.exp(given[0] + 1),
    ),
    "attention": Family(
        programs.attention((1, 72, 16), (32, 16), (2, 1)), "sm_80", _rows_of_heads(1, 72, 16), 512,
        wanted=_attention(1, 72, 16), tolerance=5e-3,
    ),
    # Four tiles of five slices for one block: those of a tile begin in each of the four slots.
    "boxes and four warps": Family(
        programs.ragged_matmul((72, 56, 136), (64, 32, 32)), "sm_90a", _product(72, 56, 136), 4096,
        wanted=_times(72, 56, 136), multiprocessors=1,
    ),
    "boxes, all warps alike": Family(
        programs.ragged_matmul((392, 32, 136), (128, 32, 32), "wgmma_m64n32k16_f16_f32"), "sm_90a",
        _product(392, 32, 136), 4096, ("warp-specialize",), warps=(8, 1), wanted=_times(392, 32, 136),
        multiprocessors=1,
    ),
    "boxes, a block per tile": Family(
        programs.matmul((64, 64, 288), (64, 64, 32)), "sm_90a", _product(64, 64, 288), 4096, ("persistent",),
        wanted=_times(64, 64, 288),
    ),
    # Two tiles of five slices for one block: 4 boxes of each leave by two buffers. What large products get.
    "large product": Family(
        lambda b: linalg.matmul(b.input("x", (256, 320), "f16"), b.input("w", (320, 256), "f16")), "sm_90a",
        _product(256, 256, 320, result=np.float16), 16384, wanted=_times(256, 256, 320), multiprocessors=1,
    ),
    "large product of bf16, bias, relu": Family(
        _relu_of_sums, "sm_90a", lambda: [*_integers(200 * 136, 136 * 264, 264, dtype=ml_dtypes.bfloat16),
        np.full(200 * 264, np.nan, ml_dtypes.bfloat16)], 16384, wanted=_relu_of_sums_wanted, multiprocessors=1,
        tolerance=2.0**-8,
    ),
    "boxes, parts of k": Family(
        programs.matmul((128, 64, 320), (64, 64, 32)), "sm_90a", _product(128, 64, 320, parts=2), 4096,
        options={"split-k": {"splits": 2}}, wanted=_times(128, 64, 320), multiprocessors=1,
    ),
    # Three pairs of tiles of five slices for a pair of blocks; the last one has no tile. They share b.
    "boxes, clusters": Family(
        programs.ragged_matmul((264, 104, 136), (64, 128, 32)), "sm_90a", _product(264, 104, 136), 4096,
        options={"multicast": {"cluster": 2}}, wanted=_times(264, 104, 136), multiprocessors=2,
    ),
    "atomics": Family(
        _HISTOGRAM, "sm_80", lambda: [np.random.default_rng(0).integers(0, 16, 120).astype(np.int32),
        np.zeros(16, np.int32)], 16, wanted=lambda given: np.bincount(given[0], minlength=16),
    ),
    "graph: softmax": Family(
        lambda b: norm.softmax(b.input("x", (3, 300), "f32")), "sm_80", _mapped(900, 900), 8,
        wanted=_softmax(3, 300),
    ),
    "graph: layer norm": Family(
        lambda b: norm.layer_norm(
            b.input("x", (5, 200), "f32"), b.input("scale", (200,), "f32"), b.input("bias", (200,), "f32")
        ), "sm_80", _normalised(5, 200), 8, wanted=_layer_norm(5, 200),
    ),
    "graph: convolution": Family(
        lambda b: conv.conv(b.input("x", (1, 8, 6, 6), "f16"), b.input("w", (18, 8, 2, 2), "f16"), pads=1), "sm_80",
        lambda: [*_integers(8 * 36, 18 * 32), np.full(18 * 49, np.nan, np.float16)], 512, wanted=_convolution,
    ),
    "graph: attention": Family(
        lambda b: attention.attention(*(b.input(x, (1, 40, 16), "f16") for x in "qkv"), scale=0.25), "sm_80",
        lambda: [*_rows_of_heads(1, 40, 16)()[:3], np.full(640, np.nan, np.float16)], 512,
        wanted=_attention(1, 40, 16), tolerance=5e-3,
    ),
}  # fmt: skip


@cache
def code_of(name: str) -> PtxCode:
    """The kernels of a family, compiled once."""
    family = FAMILIES[name]
    machine = resolve(family.machine)
    assert isinstance(machine, Gpu)
    if not isinstance(family.program, str):
        return generate(parse_module(_artifact(name).program))
    module, target = parse_module(family.program), target_for(machine)
    few = replace(target, facts=replace(target.facts, multiprocessors=family.multiprocessors or 2))
    module.attributes["tile.target"] = few.attribute()
    if family.warps != (0, 0):
        for func in module.body.block.ops:
            func.attributes["warps"] = i64s(family.warps)
    run_pipeline(module, "gpu", family.disable, options=family.options)
    return generate(module)


@cache
def _artifact(name: str) -> Any:
    """The graph of a family, built for its machine."""
    family, b = FAMILIES[name], GraphBuilder()
    assert not isinstance(family.program, str)
    machine = resolve(family.machine)
    assert isinstance(machine, Gpu)
    if family.multiprocessors is not None:
        machine = replace(machine, multiprocessors=family.multiprocessors)
    return build(b.finish([family.program(b)]), machine, 1, Options(cache=False, cluster=1))


def run(name: str, ptx: str, limit: int = MOST_INSTRUCTIONS) -> tuple[list[emulator.Diagnostic], list[Any], int]:
    """Diagnostics, arguments afterwards, and the instructions of all warps."""
    code, arguments = code_of(name), FAMILIES[name].arguments()
    if code.launches:
        constants = np.frombuffer(_artifact(name).constants, np.uint8)
        done = run_module(replace(code, ptx=ptx), arguments[:-1], arguments[-1:], constants, limit)
        return done.diagnostics, arguments, sum(sum(counts.warp_instructions.values()) for _, counts in done.counts)
    module, diagnostics, instructions = emulator.parse(ptx), [], 0
    for kernel in code.kernels:
        given = arguments
        if len(code.kernels) == 2:  # one writes the parts, the other adds them up
            given = arguments[:3] if kernel is code.kernels[0] else [arguments[3], arguments[2]]
        made = emulator.run(
            module, kernel.entry, kernel.grid, kernel.block, with_maps(kernel, given), kernel.shared_bytes,
            limit=limit,
        )  # fmt: skip
        diagnostics += made.diagnostics
        instructions += sum(made.counts.warp_instructions.values())
    return diagnostics, arguments, instructions
