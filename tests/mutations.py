"""Errors planted in the PTX of small kernels, one at a time, and what the emulator says of them.

    python -m tests.mutations [--family NAME] [--kind NAME] [--sample N --seed S] [--json]

Every kind of error is planted at every site of every family of kernels: a barrier, wait, commit, fence, copy, mbarrier
operation or mask gone, a wait that leaves one more, the other parity, an address one slot off, a swizzle without one
of its terms, another lane or block, a number that is not rounded. An error is found if there is a diagnostic, if the
text is refused, or if the result is not that of the kernel as it was, bit for bit. `EQUIVALENT` lists those that
change nothing that the PTX model defines, each with the reason. Exit status 1 where an error survives
that is not listed, or is found though it is.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np

from tests import equivalents
from tilewright import emulator
from tilewright.codegen.nvptx.pipeline import PtxCode, generate
from tilewright.codegen.nvptx.target import target_for
from tilewright.compiler.compile import build
from tilewright.errors import CompileError
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
PATIENCE = 20  # times the instructions of the kernel as it was, before a mutant is said not to end


# Kernels --------------------------------------------------------------------------------------------------------------


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
    warps: tuple[int, int] = (0, 0)  # of a block along m and n, where the passes are told
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
    return build(b.finish([family.program(b)]), machine, 1, Options(cache=False))


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


# Errors ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mutant:
    """One error: its kind, the line (from 1) and the text that stands there instead."""

    family: str
    kind: str
    line: int
    was: str
    text: str

    def __str__(self) -> str:
        return f"{self.family}: {self.kind}, line {self.line}: {self.was}  ->  {self.text or 'nothing'}"


@dataclass(frozen=True)
class Facts:
    """What errors ask of a kernel: registers with addresses of shared memory, those used as such, bytes of a slot.

    Masks in `always` are true by definition: to leave them out is no error.
    """

    shared: frozenset[str]
    direct: frozenset[str]
    slot: int
    always: frozenset[str]


Plant = Callable[[str, Facts], Iterator[str]]
_MBARRIER_BYTES = 8


def _gone(*patterns: str) -> Plant:
    """The instruction is not there."""

    def plant(line: str, facts: Facts) -> Iterator[str]:
        if any(re.match(pattern, line) for pattern in patterns):
            yield ""

    return plant


def _changed(pattern: str, change: Callable[[re.Match[str]], str | None]) -> Plant:
    """What the pattern matches becomes something else, unless that is None."""

    def plant(line: str, facts: Facts) -> Iterator[str]:
        for match in re.finditer(pattern, line):
            text = change(match)
            if text is not None:
                yield line[: match.start()] + text + line[match.end() :]

    return plant


def _other_slot(line: str, facts: Facts) -> Iterator[str]:
    """The address of one access to shared memory, or one that a description is made of, is a slot further."""
    if not facts.slot:
        return
    step = _MBARRIER_BYTES if line.startswith("mbarrier") or "mbarrier.try_wait" in line else facts.slot
    for number, match in enumerate(re.finditer(r"\[(%r\d+)(?:\+(\d+))?\]", line)):
        if match[1] in facts.shared:
            bytes_ = _MBARRIER_BYTES if number and line.startswith("cp.async.bulk") else step
            yield f"{line[: match.start()]}[{match[1]}+{int(match[2] or 0) + bytes_}]{line[match.end() :]}"
    if "mapa" in line:
        yield line.replace("[there]", f"[there+{_MBARRIER_BYTES}]")
    made = re.match(r"add\.s32 (%r\d+), (%r\d+), (\d+);", line)
    if made and made[2] in facts.shared and made[1] not in facts.direct:
        yield f"add.s32 {made[1]}, {made[2]}, {int(made[3]) + facts.slot};"


def _no_mask(line: str, facts: Facts) -> Iterator[str]:
    for match in re.finditer(r"@!?(%p\d+) (?=(ld|st|atom|red|cp)\.)", line):
        if match[1] not in facts.always:
            yield line[: match.start()] + line[match.end() :]


def _either_condition(line: str, facts: Facts) -> Iterator[str]:
    match = re.match(r"and\.pred (%p\d+), (%p\d+), (%p\d+);", line)
    if match:
        yield f"mov.pred {match[1]}, {match[2]};"
        yield f"mov.pred {match[1]}, {match[3]};"
    match = re.match(r"selp\.b32 (%r\d+), (?:0, (%r\d+)|(%r\d+), 0), %p\d+;", line)
    if match:
        yield f"mov.b32 {match[1]}, {match[2] or match[3]};"


def _one_term(line: str, facts: Facts) -> Iterator[str]:
    match = re.match(r"xor\.b32 (%r\d+), (%r\d+), (%r\d+);", line)
    if match:
        yield f"mov.b32 {match[1]}, {match[2]};"
        yield f"mov.b32 {match[1]}, {match[3]};"


def _other_blocks(line: str, facts: Facts) -> Iterator[str]:
    """A copy reaches one of two blocks only."""
    match = re.match(r"(cp\.async\.bulk.*\.multicast::cluster.*), %rs\d+;", line)
    for mask in (1, 2) if match else ():
        yield f"{{ .reg .b16 mask; mov.b16 mask, {mask}; {match[1]}, mask; }}"


def _more(match: re.Match[str]) -> str:
    return f"{match[1]} {int(match[2]) + 1};"


ERRORS: dict[str, Plant] = {
    "no barrier": _gone(r"bar\.sync|barrier\."),
    "no wait": _gone(r"cp\.async\.(bulk\.)?wait|wgmma\.wait_group"),
    "a wait leaves one more": _changed(
        r"^(cp\.async\.(?:bulk\.)?wait_group(?:\.read)?|wgmma\.wait_group\.sync\.aligned) (\d+);", _more
    ),
    "no commit": _gone(r"cp\.async\.(bulk\.)?commit_group|wgmma\.commit_group"),
    "no fence": _gone(r"fence\.", r"wgmma\.fence"),
    "no copy": _gone(r"cp\.async\.(ca|cg|bulk\.tensor)"),
    "no store to shared memory": _gone(r"(@!?%p\d+ )?(st\.shared|stmatrix)"),
    "no registers handed over": _gone(r"setmaxnreg"),
    "no atomic": _gone(r"(@!?%p\d+ )?(atom|red)\."),
    "not atomic": _changed(
        r"red\.relaxed\.\w+\.(\w+)\.add\.(u32) (\[.*\]), (%r\d+);",
        lambda match: (
            f"{{ .reg .b32 old; ld.{match[1]}.{match[2]} old, {match[3]}; add.{match[2]} old, old, {match[4]}; "
            f"st.{match[1]}.{match[2]} {match[3]}, old; }}"
        ),
    ),
    "other slot": _other_slot,
    "no term of a swizzle": _one_term,
    "a bit of a swizzle": _changed(
        r"^xor\.b32 (%r\d+), (%r\d+), (\d+);",
        lambda match: f"xor.b32 {match[1]}, {match[2]}, {int(match[3]) & (int(match[3]) - 1)};",
    ),
    "no mask": _no_mask,
    "no condition of a mask": _either_condition,
    "no bound of a copy": _changed(r"(?<=\], )(16|8|4), %r\d+;", lambda match: f"{match[1]};"),
    "no mbarrier": _gone(r"mbarrier\.init"),
    "no arrival": _gone(r"(\{.*)?mbarrier\.arrive"),
    "arrival in the own block": _changed(
        r"mapa\.\S+ there, (%r\d+), %r\d+;", lambda match: f"mov.b32 there, {match[1]};"
    ),
    "other blocks": _other_blocks,
    "no wait for an mbarrier": _gone(r"\{.*mbarrier\.try_wait"),
    "other parity": _changed(
        r"complete; wait: (.*), (%r\d+);(?= @)",
        lambda match: f"complete; .reg .b32 other; xor.b32 other, {match[2]}, 1; wait: {match[1]}, other;",
    ),
    "one arrival more": _changed(
        r"^(mbarrier\.init.*), (%r\d+);",
        lambda match: f"{{ .reg .b32 more; add.s32 more, {match[2]}, 1; {match[1]}, more; }}",
    ),
    "one arrival fewer": _changed(
        r"^(mbarrier\.init.*), (%r\d+);",
        lambda match: f"{{ .reg .b32 fewer; sub.s32 fewer, {match[2]}, 1; {match[1]}, fewer; }}",
    ),
    "fewer bytes": _changed(
        r"^(mbarrier\.arrive\.expect_tx.*), (%r\d+);",
        lambda match: f"{{ .reg .b32 fewer; sub.s32 fewer, {match[2]}, 16; {match[1]}, fewer; }}",
    ),
    "cut, not rounded": _changed(
        r"^cvt\.rna\.tf32\.f32 (%r\d+), (%r\d+);", lambda match: f"mov.b32 {match[1]}, {match[2]};"
    ),
    "a high part with all bits": _changed(r"^selp\.b32 (%r\d+), -8192, ", lambda match: f"selp.b32 {match[1]}, -1, "),
    "other lane": _changed(
        r"^(shfl\.sync\.bfly\.b32 .*), (\d+), 31, -1;",
        lambda match: f"{match[1]}, {int(match[2]) // 2 or 2}, 31, -1;",
    ),
}


@cache
def mutants(name: str) -> tuple[Mutant, ...]:
    """Every error at every site of a kernel, in the order of its lines."""
    lines = [_plain(line) for line in code_of(name).ptx.splitlines()]
    entries = [0, *(number for number, line in enumerate(lines) if ".entry" in line), len(lines)]
    return tuple(
        Mutant(name, kind, number, line, text)
        for start, end in pairwise(entries)
        for facts in (_facts(lines[start:end], FAMILIES[name].slot),)
        for number, line in enumerate(lines[start:end], start + 1)
        for kind, plant in ERRORS.items()
        for text in plant(line, facts)
        if text != line
    )


def _plain(line: str) -> str:
    return " ".join(line.split("//")[0].split())


def _facts(lines: Sequence[str], slot: int) -> Facts:
    shared: set[str] = set()
    for _ in range(3):  # registers of loops
        for line in lines:
            made = re.match(r"(?:add\.s32|mov\.b32) (%r\d+), ([^,;]+)(?:, ([^,;]+))?;", line)
            if made and {made[2], made[3]} & (shared | {"shared"}):
                shared.add(made[1])
    direct = frozenset(found for line in lines for found in re.findall(r"\[(%r\d+)", line))
    defined = [
        found for line in lines for found in re.findall(r"^(?:mov|setp\.\S+|and|or|not|xor)\S* (%p\d+), ?(.*);", line)
    ]
    constant = {name for name, value in defined if value == "-1"}
    always = constant - {name for name, value in defined if value != "-1"}
    return Facts(frozenset(shared), direct, slot, frozenset(always))


# What is found --------------------------------------------------------------------------------------------------------


@cache
def _unharmed(name: str) -> tuple[tuple[bytes, ...], int]:
    """The arguments after a run of the kernel as it was, which finds nothing, and the instructions."""
    diagnostics, arguments, instructions = run(name, code_of(name).ptx)
    assert not diagnostics, diagnostics
    return tuple(each.tobytes() for each in arguments), instructions


def seen(mutant: Mutant) -> str:
    """How an error shows: a kind of diagnostic, "refused", "wrong result"; "" where it does not."""
    lines = code_of(mutant.family).ptx.splitlines()
    lines[mutant.line - 1] = mutant.text
    wanted, instructions = _unharmed(mutant.family)
    try:
        diagnostics, arguments, _ = run(mutant.family, "\n".join(lines), PATIENCE * instructions)
    except CompileError:
        return "refused"
    if diagnostics:
        return diagnostics[0].kind
    return "" if tuple(each.tobytes() for each in arguments) == wanted else "wrong result"


_COPIES = "copies ahead.*|parts of k|attention|bf16|tf32|tf32x3|s8"
_NO_COPY_LEFT = (
    "A trip commits the slice two ahead and then waits for all but that group. Behind the loop the groups still open "
    "are those of slices beyond k, which hold no copy."
)
_NOTHING_VALID = (
    "A slice beyond k has nothing within the bounds: the copy reads nothing, and its zeros go to a slot that no trip "
    "reads any more."
)
_NO_COPY_BEYOND = "The last trip commits a slice beyond k, which holds no copy, and no wait follows."
_NOT_STORED = (
    "The bound of columns of b in a slice that other rows follow: what is read beyond it lies in b, and enters only "
    "columns of c that are beyond the bound of c, which are not stored."
)
_NOT_COPIED = (
    "A copy of a tensor into one with a border: loads and the store of a thread have one mask, and a load that is not "
    "masked reads another row of the tensor, which the thread does not store."
)
_FRESH_SLOT = "The first turn of a slot: nothing was in it, its mbarrier and the next one let go at once."
_NOBODY_WAITS = "The release of the last slot behind the last product: no box follows that waits for it."
_LATER_RELEASE = (
    "Boxes of a tile that in no tile come to the last slot: instead of the last release of their slot, "
    "that of the next slot is waited for, in the same turn. The warps that compute give it later: the wait is longer."
)
_OTHERS_BETWEEN = (
    "Before the bias of a tile is put where that of the tile before was read. Between the two stand the four barriers "
    "around the boxes of the result, of the same warps."
)
_SPILLED = (
    "Registers of PTX are as many as a kernel names: without those of the warps that fill, an assembler puts some of "
    "them into local memory."
)
_ONE_BLOCK = (
    "It orders the making of mbarriers before uses by other blocks of a cluster. The cluster is one block, whose "
    "threads are ordered by the barrier behind it."
)
_RELEASED = (
    "The barrier of the cluster behind it releases what its threads wrote, mbarriers among that. The fence is for "
    "arrivals that release nothing, and for the copy engine, which comes behind both."
)

EQUIVALENT: list[equivalents.Entry] = [
    (_COPIES, "no wait", r"cp\.async\.wait_group 0;", (0,), _NO_COPY_LEFT),
    (_COPIES, "a wait leaves one more", r"cp\.async\.wait_group 0;", (0,), _NO_COPY_LEFT),
    ("copies ahead|attention|bf16|tf32|tf32x3|s8", "no mask", r"cp\.async", (0, 1), _NOTHING_VALID),
    ("multiply-adds", "no mask", r"cp\.async", (0, 1, 2), _NOTHING_VALID),
    ("copies ahead", "no bound of a copy", r"\[%r\d+(\+2048)?\], .* 16, %r", (0, 1), _NOT_STORED),
    ("bf16", "no bound of a copy", r"\[%r\d+(\+2048)?\], .* 16, %r", (0, 1), _NOT_STORED),
    ("f64", "no mask", r"mov.b64 %rd\d+, 0; @%p\d+ ld\.global\.nc", (1,), _NOT_STORED),
    ("multiply-adds", "no bound of a copy", r"\[%r\d+(\+1024)?\], .* 8, %r", (0, 1), _NOT_STORED),
    ("registers ahead", "no mask", r"mov.b32 %r\d+, 0; mov.b32 .* ld\.global\.nc\.v2\.b32 .*\+0\]", (1,), _NOT_STORED),
    ("boxes, clusters", "no fence", r"fence\.mbarrier_init\.release\.cluster", (0,), _RELEASED),
    ("boxes, clusters", "other slot", r"mbarrier\.try_wait", (1,), _LATER_RELEASE),
    ("boxes(?!, clusters).*|large product.*", "no fence", r"fence\.mbarrier_init\.release\.cluster", (0,), _ONE_BLOCK),
    ("large product.*", "no registers handed over", r"setmaxnreg\.inc", (0,), _SPILLED),
    ("large product", "other slot", r"mbarrier\.try_wait", (1, 2), _LATER_RELEASE),
    ("large product of bf16, bias, relu", "other slot", r"mbarrier\.try_wait", (3, 4, 5), _LATER_RELEASE),
    ("large product of bf16, bias, relu", "no barrier", r"bar\.sync 1, 256", (0,), _OTHERS_BETWEEN),
    ("boxes, a block per tile", "other slot", r"mbarrier\.try_wait", (1, 2, 3), _FRESH_SLOT),
    ("boxes, a block per tile", "no wait for an mbarrier", r"mbarrier\.try_wait", (1, 2, 3), _FRESH_SLOT),
    ("boxes, a block per tile", "other slot", r"mbarrier\.arrive\.shared", (1,), _NOBODY_WAITS),
    ("boxes, a block per tile", "no arrival", r"mbarrier\.arrive\.shared", (1,), _NOBODY_WAITS),
    ("graph: convolution", "no commit", r"cp\.async\.commit_group", (3,), _NO_COPY_BEYOND),
    ("graph: convolution", "no mask", r"mov.b16 %rs\d+, 0; @%p1 ld\.global\.nc", range(7), _NOT_COPIED),
]  # fmt: skip
"""Errors that change nothing: family and kind, a pattern of the line, which of the sites that match, and why."""


def reason(mutant: Mutant) -> str:
    """Why an error changes nothing, from `EQUIVALENT`; "" where it is not listed."""
    return equivalents.reason(mutant, mutants(mutant.family), EQUIVALENT)


def plant(chosen: Sequence[Mutant]) -> dict[str, Any]:
    """Counts by family and by kind of error, how errors showed, and those that did not."""
    families: dict[str, Counter[str]] = {}
    kinds: dict[str, Counter[str]] = {}
    shown, survivors, listed = Counter[str](), [], list[str]()
    for mutant in chosen:
        how, why = seen(mutant), reason(mutant)
        outcome = "found" if how else "equivalent" if why else "survived"
        families.setdefault(mutant.family, Counter())[outcome] += 1
        kinds.setdefault(mutant.kind, Counter())[outcome] += 1
        if how:
            shown[how] += 1
            listed += [str(mutant)] if why else []
        else:
            survivors.append({"mutant": str(mutant), "reason": why})
    found = sum(each["found"] for each in families.values())
    return {
        "planted": len(chosen), "found": found, "share": round(found / max(1, len(chosen)), 4),
        "families": {name: dict(each) for name, each in families.items()},
        "kinds": {name: dict(each) for name, each in kinds.items()},
        "shown": dict(shown.most_common()), "survivors": survivors, "found though listed": listed,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__.split("\n\n")[0])
    parser.add_argument("--family", choices=FAMILIES, help="only this kernel")
    parser.add_argument("--kind", choices=ERRORS, help="only errors of this kind")
    parser.add_argument("--sample", type=int, help="so many errors, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    names = [options.family] if options.family else list(FAMILIES)
    chosen = [each for name in names for each in mutants(name) if options.kind in (None, each.kind)]
    if options.sample is not None:
        chosen = random.Random(options.seed).sample(chosen, min(options.sample, len(chosen)))
    result = plant(chosen)
    if options.json:
        print(json.dumps(result, indent=1))
    else:
        for title in ("families", "kinds"):
            for name, counts in result[title].items():
                outcomes = "  ".join(f"{what} {count}" for what, count in sorted(counts.items()))
                print(f"{name:36}{outcomes}{_share(counts)}")
            print()
        print("how they show:", ", ".join(f"{how} {count}" for how, count in result["shown"].items()), "\n")
        for each in result["survivors"]:
            print(each["mutant"], f"\n    {each['reason'] or 'SURVIVED'}")
        for each in result["found though listed"]:
            print("found though listed:", each)
        print(f"{result['found']} of {result['planted']} found: {100 * result['share']:.1f} %")
    return int(bool(result["found though listed"]) or any(not each["reason"] for each in result["survivors"]))


def _share(counts: Mapping[str, int]) -> str:
    """What is found of all, and of those that change something."""
    found, planted = counts.get("found", 0), sum(counts.values())
    change = planted - counts.get("equivalent", 0)
    return f"  {100 * found / planted:.1f} %, {100 * found / max(1, change):.1f} % without equivalents"


if __name__ == "__main__":
    sys.exit(main())
