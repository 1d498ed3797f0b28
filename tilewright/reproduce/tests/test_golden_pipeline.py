"""The golden counts of the tensor-core pipeline, read from the program as the passes leave it.

An instruction here is 16x8x16, half of the publications' 16x16x16. E1 is 8192x8192x8192 in blocks of 128x128x64 with
warps of 64x32, E2 1024x1024x1024 with warps of 32x64, W 512x512x128 in blocks of 32x32x16 with three buffers. Tests
without a file are in this one.

| # | what | test |
| --- | --- | --- |
| 1 | E1: steps of the loops | `test_1_…`; of nine loops three are left: blocks, warps and fragments are layouts |
| 2 | E1: bytes of the buffers | `test_2_…` |
| 3 | E1: steps of the instruction, lengths of rows | `test_3_…` |
| 4 | E1: products of a step of 32 | `test_4_…`: of the slice, which is one straight line |
| 5 | E1: fragments carried and loaded | `test_5_…` |
| 6 | E1: trips | `test_6_…` |
| 7 | E1: vectors per slice | `test_7_…` |
| 8 | E1: threads, warps, blocks | `test_8_…` |
| 9 | E1: loads, stores, barriers of a trip | `test_9_…` |
| 10 | E2: fragments carried, trips, steps, products | `test_10_…` |
| 11 | W: warps and their tiles | `test_11_…`; rows begin at 16 times the warp's row, columns at 8 times, 16 apart |
| 12 | W: shapes of the buffers | `test_12_…` |
| 13 | W: products of a warp and trip | `test_13_…` |
| 14 | W: widths and copies | `test_14_…` |
| 15 | W: shapes with padding | `test_15_…`, and the document `docs/worked/512x512x128.md` |
| 16 | W: groups, wait, trips, empty groups | `test_16_…`, the document, and in the emulator's counts |
| 17 | W: bytes | `test_17_…`; `instruction/mma/tests/test_tensor_core.py::test_spec4_example_w` |
| 18 | 32x32x32 in four stages: copies, groups, waits | `test_18_…` |
| 19 | 128x256x32: warps, their tiles, bytes | `test_19_…`; `test_tensor_core.py::test_spec4_structure_counts` |
| 20 | the same: copies | `test_20_…` |
| 21 | 64x64x64: products, copies, padded bytes | `test_21_…`; `test_tensor_core.py::test_spec4_structure_counts` |
| 22 | blocks in groups of eight rows | `test_22_…` |
| 23 | slots and phases of a circular buffer | `test_23_…` |

By WMMA, whose instruction is the published 16x16x16, those of E1, E2 and W are in `test_golden_fragments.py`.

The verdicts on configurations are in `test_tensor_core.py::test_spec4_verdicts` and its neighbours, the table of tiles
in `test_spec4_table_as_published`, padding and swizzles in `layouts/tests/test_golden_choices.py::test_spec4_…`, copies
of the publication's table in `test_copies_per_thread`, counters of E1 in `test_mlir_matmul.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from math import prod
from typing import Any

import numpy as np
import pytest
from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.ir import Operation, SSAValue

from tilewright.codegen.nvptx.pipeline import generate
from tilewright.codegen.nvptx.target import target_for
from tilewright.kernel import dialect as tile
from tilewright.kernel.circular_buffer import CircularOp
from tilewright.kernel.dialect import FuncOp, LoadOp, StoreOp, operations, shape
from tilewright.kernel.passes.common.rules.control import trips
from tilewright.kernel.passes.gpu.distribution import circular_buffer as expansion
from tilewright.kernel.passes.gpu.distribution.access import coalesced
from tilewright.kernel.passes.gpu.distribution.layout import layout_of
from tilewright.kernel.passes.gpu.swizzle_blocks import ordered
from tilewright.kernel.passes.table import pipeline, run_pass
from tilewright.kernel.rewrite import uniform
from tilewright.kernel.simt import (
    AsyncCopyOp,
    BarrierOp,
    CommitOp,
    LoadMatrixOp,
    MmaOp,
    SharedOp,
    WaitOp,
    is_shared,
)
from tilewright.kernel.text import parse_module
from tilewright.machine.description import Gpu
from tilewright.machine.registry import resolve
from tilewright.reproduce.matmul.switches import USUAL, Sizes, Tiling, closed, compiled, settings, tiles
from tilewright.reproduce.tests.parts import every, kernel_of, loop_of
from tilewright.runtime import emulated

F16 = "mma_m16n8k16_f16_f16"
W = Tiling((32, 32, 16), (2, 2))


@cache
def example(name: str, level: str = "L6", also: str = "") -> FuncOp:
    """E1 or E2 at a level of the ablation, perhaps with another switch."""
    size, warps = {"E1": (8192, (2, 4)), "E2": (1024, (4, 2))}[name]
    on = closed([])[level] | ({also} if also else set())
    chosen = settings(on, replace(USUAL, matrix=Tiling((128, 128, 64), warps)))
    return kernel_of(compiled((size, size, size), chosen))


@cache
def staged(
    sizes: Sizes, tiling: Tiling, stages: int, schedule: str, memory: str, until: str = "barriers", dtype: str = "f16"
) -> FuncOp:
    """A product with asynchronous copies, behind a pass."""
    intrinsic = F16 if dtype == "f16" else "mma_m16n8k16_f16_f32"
    module = parse_module(tiles(sizes, tiling, intrinsic, dtype))
    given = {
        "pipeline-loads": f"stages={stages} schedule={schedule} memory={memory}", "distribute": f"memory={memory}",
    }  # fmt: skip
    for each in pipeline("gpu"):
        run_pass(module, f"{each.name}{{{given.get(each.name, '')}}}")
        if each.name == until:
            break
    return kernel_of(module)


def w(memory: str = "padded", until: str = "barriers") -> FuncOp:
    return staged((512, 512, 128), W, 3, "load-first", memory, until)


def shared_elements(kernel: FuncOp) -> list[int]:
    return sorted(int(op.result.type.get_shape()[0]) for op in every(kernel, SharedOp))


def buffers(kernel: FuncOp) -> list[tuple[int, int, int]]:
    """Tiles, rows, and elements from row to row of the buffers, by the operations that fill them."""
    found = {}
    for op in every(kernel, tile.StageOp):
        rows, columns = shape(op.type)
        text = op.memory.data
        line = columns + (int(text.partition("pad=")[2].partition(",")[0]) if "pad=" in text else 0)
        found[op.buffer] = (int(op.buffer.type.get_shape()[0]) // (rows * line), rows, line)
    return list(found.values())


def test_1_steps_of_the_loops() -> None:
    module = parse_module(tiles((8192, 8192, 8192), USUAL.matrix, "mma_m16n8k16_f16_f32"))
    run_pass(module, "assign-layouts")
    kernel = kernel_of(module)
    loop = loop_of(kernel)
    assert kernel.extents == (8192 // 128, 8192 // 128)
    assert uniform(loop.step) == 64
    (dot,) = every(kernel, tile.DotOp)
    layout = layout_of(dot.result)
    assert layout is not None
    assert (shape(dot.result), 2 ** len(layout.of("warp"))) == ((128, 128), 8)
    assert 2 ** (len(layout.of("register")) + len(layout.of("lane"))) == 64 * 32  # the tile of a warp


def test_2_bytes_of_the_buffers() -> None:
    stored = {op.view.owner for op in every(loop_of(example("E1")), StoreOp) if is_shared(op.view)}
    assert sorted(op.bytes for op in stored if isinstance(op, SharedOp)) == [17408, 18432]


def test_3_instruction_and_rows() -> None:
    """Rows of a and b are 72 and 136 elements apart, those of c 8192."""
    kernel = example("E1")
    assert {op.intrinsic.data for op in every(kernel, MmaOp)} == {"mma_m16n8k16_f16_f32"}
    stored = {op.view.owner for op in every(loop_of(kernel), StoreOp) if is_shared(op.view)}
    b, a = sorted(op.bytes for op in stored if isinstance(op, SharedOp))
    assert (a // 2 // 128, b // 2 // 64) == (72, 136)
    program = parse_module(tiles((8192, 8192, 8192), USUAL.matrix, "mma_m16n8k16_f16_f32"))
    *_, c = every(kernel_of(program), LoadOp)
    assert tile.strides_of(c) == (8192, 1)


def test_4_products_of_a_step() -> None:
    assert len(every(loop_of(example("E1")), MmaOp)) == 2 * 16 * 2  # of two steps of 32, each instruction is half


def test_5_fragments() -> None:
    """Eight of 16x16 in f32 are 64 registers; four matrices of 8x8 at once are one of 16x16."""
    loop = loop_of(example("E1", "L6", "ldmatrix"))
    assert sum(prod(shape(value)) for value in loop.iter_args if "f32" in str(value.type)) == 8 * 16 * 16 // 32
    loads = every(loop, LoadMatrixOp)
    assert {op.count.value.data for op in loads} == {4}
    turned = sum(op.transpose is not None for op in loads)  # those of b
    assert (len(loads) - turned, turned) == (16, 8)


def test_6_trips() -> None:
    assert trips(loop_of(example("E1"))) == 127


def test_7_vectors_of_a_slice() -> None:
    loads = [op for op in every(loop_of(example("E1")), LoadOp) if not is_shared(op.view)]
    assert {prod(shape(op.result)) for op in loads} == {8}
    by_view = [sum(op.view is view for op in loads) * 256 for view in {op.view: None for op in loads}]
    assert by_view == [1024, 1024]


def test_8_threads_warps_blocks() -> None:
    kernel = example("E1")
    assert (kernel.block, kernel.extents, USUAL.matrix.warps) == ((256, 1, 1), (64, 64), (2, 4))


def test_9_a_trip() -> None:
    loop = loop_of(example("E1"))
    loads = [op for op in every(loop, LoadOp) if not is_shared(op.view)]
    stores = [op for op in every(loop, StoreOp) if is_shared(op.view)]
    assert (len(loads), len(stores), len(every(loop, BarrierOp))) == (8, 8, 2)


def test_10_the_published_code() -> None:
    loop = loop_of(example("E2"))
    assert sum(prod(shape(value)) for value in loop.iter_args if "f32" in str(value.type)) == 8 * 8
    assert trips(loop) == 15
    assert len(every(loop, MmaOp)) == 4 * 8 * 2  # four steps of 16


def test_11_warps_of_w() -> None:
    (dot,) = every(w(until="assign-layouts"), tile.DotOp)
    layout = layout_of(dot.result)
    assert layout is not None
    table = np.arange(32 * 32)[layout.table()]  # warp, lane, register
    for warp in range(4):
        rows, columns = (np.unique(part) for part in divmod(table[warp], 32))
        first = 16 * (warp // 2)
        assert rows.tolist() == list(range(first, first + 16))
        start = 8 * (warp % 2)
        assert columns.tolist() == [*range(start, start + 8), *range(start + 16, start + 24)]


def test_12_shapes_of_w() -> None:
    assert buffers(w("plain", "pipeline-loads")) == [(3, 32, 16), (3, 16, 32)]
    assert shared_elements(w("plain", "distribute")) == sorted([3 * 32 * 16, 3 * 16 * 32, 32 * 32, 32 * 32])


def test_13_products_of_w() -> None:
    assert len(every(loop_of(w()), MmaOp)) == 2 * 1


def test_14_copies_of_w() -> None:
    copies = every(loop_of(w()), AsyncCopyOp)
    assert [op.elements.value.data * 16 for op in copies] == [64, 64]
    assert len({op.source for op in copies}) == 2


def test_15_padded_shapes_of_w() -> None:
    assert buffers(w(until="pipeline-loads")) == [(3, 32, 24), (3, 16, 40)]
    assert shared_elements(w(until="distribute")) == sorted([3 * 32 * 24, 3 * 16 * 40, 32 * 40, 32 * 40])


def test_16_the_schedule_of_w() -> None:
    """Three groups before the loop, of eight trips the last three copy nothing: eight slices of each operand in all."""
    kernel = w()
    loop = loop_of(kernel)
    assert len(every(kernel, CommitOp)) - len(every(loop, CommitOp)) == 3
    assert [op.pending.value.data for op in every(loop, WaitOp)] == [2]
    assert (len(every(loop, CommitOp)), len(every(loop, BarrierOp)), trips(loop)) == (1, 2, 8)
    assert copied_slices((32, 32, 128), W, 3, "load-first") == 8
    assert copied_slices((32, 32, 48), W, 3, "load-first") == 3  # all of them before the loop


def copied_slices(sizes: Sizes, tiling: Tiling, stages: int, schedule: str) -> float:
    """Slices that the copies of a block bring, counted by the emulator; the product is right, and nothing found."""
    machine = resolve("sm_80")
    assert isinstance(machine, Gpu)
    kernel = staged(sizes, tiling, stages, schedule, "padded", dtype="f32")
    module = kernel.parent_op()
    assert isinstance(module, ModuleOp)
    module.attributes["tile.target"] = target_for(machine).attribute()
    (m, n, k), rng = sizes, np.random.default_rng(0)
    a, b, c = (rng.integers(-2, 3, extents) for extents in ((m, k), (k, n), (m, n)))
    arrays = [a.astype(np.float16).ravel(), b.astype(np.float16).ravel(), c.astype(np.float32).ravel()]
    done = emulated.run_kernel(generate(module), "k", arrays)
    assert done.diagnostics == []
    np.testing.assert_array_equal(arrays[2].reshape(m, n), c + a @ b)
    ((_, counts),) = done.counts
    operands = 2 * (m * k + k * n) + 4 * m * n
    assert counts.bytes["global_load_sectors"] == operands
    return (operands - 4 * m * n) / (2 * (m + n) * tiling.block[2])


def test_17_bytes_of_w() -> None:
    for memory, size in (("plain", 8192), ("padded", 11008)):
        *circular_buffer, c, _ = sorted(shared_elements(w(memory, "distribute")), reverse=True)
        assert 2 * (sum(circular_buffer) + c) == size


@pytest.mark.parametrize(("schedule", "groups", "wait"), [("load-first", 4, 3), ("tensor-core", 3, 2)])
def test_18_four_stages(schedule: str, groups: int, wait: int) -> None:
    kernel = staged((512, 512, 512), Tiling((32, 32, 32), (2, 2)), 4, schedule, "padded", "distribute")
    loop = loop_of(kernel)
    assert len(every(kernel, CommitOp)) - len(every(loop, CommitOp)) == groups
    assert [op.pending.value.data for op in every(loop, WaitOp)] == [wait]
    assert [op.elements.value.data * 16 for op in every(loop, AsyncCopyOp)] == [128, 128]


def large(until: str = "barriers") -> FuncOp:
    return staged((256, 512, 128), Tiling((128, 256, 32), (2, 4)), 3, "tensor-core", "plain", until, "f32")


def test_19_large_tiles() -> None:
    kernel = large("pipeline-loads")
    (dot,) = every(kernel, tile.DotOp)
    layout = layout_of(dot.result)
    assert layout is not None
    assert [sum(base[dim] != 0 for base in layout.of("warp")) for dim in range(2)] == [1, 2]  # 2 along m, 4 along n
    assert 2 ** (len(layout.of("register")) + len(layout.of("lane"))) == 64 * 64
    assert sum(2 * prod(extents) for extents in buffers(kernel)) == 73728


def test_20_copies_of_large_tiles() -> None:
    copies = every(loop_of(large("distribute")), AsyncCopyOp)
    assert {op.elements.value.data for op in copies} == {8}
    assert [sum(op.source is view for op in copies) for view in {op.source: None for op in copies}] == [2, 4]


def test_21_square_tiles() -> None:
    kernel = staged((128, 128, 256), Tiling((64, 64, 64), (2, 2)), 3, "tensor-core", "padded", "distribute", "f32")
    loop = loop_of(kernel)
    assert len(every(loop, MmaOp)) == 16 * 2
    assert len(every(loop, AsyncCopyOp)) == 4 + 4
    circular_buffer = [2 * op.view.type.get_shape()[0] for op in every(loop, LoadMatrixOp)]
    assert set(circular_buffer) == {3 * 64 * 72 * 2}  # of each operand, three times


def test_22_blocks_in_groups() -> None:
    found = [ordered(number, 12, 5, 8) for number in (0, 7, 8, 39, 40, 43, 44, 59)]
    assert found == [(0, 0), (7, 0), (0, 1), (7, 4), (8, 0), (11, 0), (8, 1), (11, 4)]


class Evaluated:
    """What an expansion asks for, with numbers for values."""

    def __init__(self) -> None:
        self.known: dict[SSAValue, int] = {}
        self.values: dict[SSAValue, SSAValue] = {}

    def number(self, value: int) -> SSAValue:
        made = arith.ConstantOp(IntegerAttr(value, tile.INDEX))
        self.known[made.result] = value
        return made.result

    def add(self, op: Operation) -> Operation:
        a, b = (self.known[operand] for operand in op.operands)
        self.known[op.results[0]] = {arith.DivUIOp: a // b, arith.RemUIOp: a % b, arith.AndIOp: a & b}[type(op)]
        return op


@pytest.mark.parametrize(("use", "slot", "phase"), [(0, 0, 0), (3, 3, 0), (4, 0, 1), (11, 3, 0)])
def test_23_slots_of_a_ring(use: int, slot: int, phase: int) -> None:
    module = parse_module("""
        tile.func @k() grid [1] {
          %s, %b = tile.circular_buffer 4 : memref<8xi64, "shared">, memref<64xf16, "shared">
          tile.return
        }""")
    (circular,) = [op for op in operations(kernel_of(module).body) if isinstance(op, CircularOp)]
    at: Any = Evaluated()
    number = at.number(use)
    at.values[number] = number
    found = expansion._slot(at, circular.state, number)
    assert tuple(at.known[value] for value in found) == (slot, phase)


@pytest.mark.parametrize(
    ("extents", "size", "threads", "copies"),
    [
        ((32, 32), 2, 128, 1), ((32, 16), 4, 128, 1), ((16, 32), 4, 128, 1), ((64, 64), 2, 128, 4),
        ((128, 64), 2, 256, 4), ((64, 16), 4, 128, 2), ((128, 32), 2, 256, 2), ((32, 256), 2, 256, 4),
        ((128, 16), 4, 256, 2), ((16, 256), 4, 256, 4), ((64, 128), 2, 256, 4), ((256, 4), 4, 128, 2),
    ],
)  # fmt: skip
def test_copies_per_thread(extents: Sequence[int], size: int, threads: int, copies: int) -> None:
    """128 bits each, neighbouring threads on neighbouring pieces of a row."""
    layout = coalesced(extents, (extents[1], 1), 16 // size, threads // 32, 32)
    assert layout.in_size("register") * size / 16 == copies
    first = layout.of("register")[: (16 // size).bit_length() - 1]
    assert [base[1] for base in first] == [1 << bit for bit in range(len(first))]
