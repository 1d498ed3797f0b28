"""The golden counts of the tensor-core pipeline by WMMA 16x16x16, the instruction of the publications.

E1, E2 and W are those of `test_golden_pipeline.py`, which has them by mma.sync. By WMMA rows in memory and steps of
fragments are the published ones too: 3 (E1: 16, 16, 16; 72, 136, 8192), 4, 5, 9, 10, 11, 12, 13, 15, 17.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from tests.covering import some
from tilewright.codegen.nvptx import ptxas
from tilewright.codegen.nvptx.pipeline import generate
from tilewright.codegen.nvptx.target import target_for
from tilewright.errors import InvalidArgument
from tilewright.kernel.dialect import FuncOp, LoadOp, StoreOp, shape
from tilewright.kernel.indices import constant_index
from tilewright.kernel.passes.common.rules.control import trips
from tilewright.kernel.passes.table import pipeline, run_pass
from tilewright.kernel.simt import (
    AsyncCopyOp,
    BarrierOp,
    CommitOp,
    LoadFragmentOp,
    MmaOp,
    SharedOp,
    StoreFragmentOp,
    WaitOp,
    is_shared,
)
from tilewright.kernel.text import parse_module
from tilewright.machine.description import Gpu
from tilewright.machine.registry import resolve
from tilewright.reproduce.matmul import ablation
from tilewright.reproduce.matmul.switches import (
    INTRINSICS,
    LEFT_OUT,
    USUAL,
    Sizes,
    Tiling,
    closed,
    compiled,
    settings,
    tiles,
)
from tilewright.reproduce.tests.parts import every, kernel_of, loop_of
from tilewright.runtime import emulated

W = Tiling((32, 32, 16), (2, 2))
F16 = "wmma_16x16x16_f16_f16"


def chosen(level: str, warps: tuple[int, int], without: Iterable[str] = ()) -> Any:
    on = closed((*LEFT_OUT["wmma"], *without))[level]
    return settings(on, replace(USUAL, matrix=Tiling((128, 128, 64), warps)), "wmma")


@cache
def example(name: str) -> FuncOp:
    """E1 or E2 with all that the publication has."""
    size, warps = {"E1": (8192, (2, 4)), "E2": (1024, (4, 2))}[name]
    return kernel_of(compiled((size, size, size), chosen("L6", warps)))


def lines(found: Iterable[LoadFragmentOp | StoreFragmentOp]) -> set[int | None]:
    return {constant_index(op.stride) for op in found}


def test_3_rows() -> None:
    kernel = example("E1")
    assert {op.intrinsic.data for op in every(kernel, MmaOp)} == {INTRINSICS["wmma"]}
    loads = every(kernel, LoadFragmentOp)
    for letter, line in (("a", 72), ("b", 136), ("c", 8192)):
        assert lines(op for op in loads if op.operand.data == letter) == {line}
    assert lines(every(kernel, StoreFragmentOp)) == {8192}


def test_4_products_of_a_step() -> None:
    assert len(every(loop_of(example("E1")), MmaOp)) == 2 * 16  # of two steps of 32


def test_5_fragments() -> None:
    """Eight of c are carried, and are all that is loaded and stored of it; a trip loads 16 of a and 8 of b."""
    kernel = example("E1")
    loop = loop_of(kernel)
    assert [shape(value) for value in loop.iter_args if "f32" in str(value.type)] == [(64,)]  # 8 of 16x16, of 32 lanes
    letters = [op.operand.data for op in every(loop, LoadFragmentOp)]
    assert (letters.count("a"), letters.count("b"), letters.count("c")) == (16, 8, 0)
    assert sum(op.operand.data == "c" for op in every(kernel, LoadFragmentOp)) == 8
    assert len(every(kernel, StoreFragmentOp)) == 8


def test_6_and_9_a_trip() -> None:
    loop = loop_of(example("E1"))
    assert trips(loop) == 127
    loads = [op for op in every(loop, LoadOp) if not is_shared(op.view)]
    stores = [op for op in every(loop, StoreOp) if is_shared(op.view)]
    assert (len(loads), len(stores), len(every(loop, BarrierOp))) == (8, 8, 2)


def test_10_the_published_code() -> None:
    loop = loop_of(example("E2"))
    assert [shape(value) for value in loop.iter_args if "f32" in str(value.type)] == [(64,)]
    assert trips(loop) == 15
    assert len(every(loop, MmaOp)) == 4 * 8


@cache
def w(memory: str = "padded", until: str = "barriers", stage_c: str = "on", sizes: Sizes = (512, 512, 128)) -> FuncOp:
    """W behind a pass; what is not said is what the passes do by themselves."""
    module = parse_module(tiles(sizes, W, F16, "f16", ", stages = 3 : i64"))
    given = {
        "assign-layouts": f"stage_c={stage_c}",
        "pipeline-loads": f"memory={memory}",
        "distribute": f"memory={memory}",
    }
    for each in pipeline("gpu"):
        run_pass(module, f"{each.name}{{{given.get(each.name, '')}}}")
        if each.name == until:
            break
    return kernel_of(module)


def shared_elements(kernel: FuncOp) -> list[int]:
    return sorted(int(op.result.type.get_shape()[0]) for op in every(kernel, SharedOp))


def test_11_corners_of_the_warps_of_w() -> None:
    """Rows from 16 times the warp's row, columns from 16 times its column: in memory of 24 and 40 elements a row."""
    kernel = w(until="distribute")
    found = {}
    for op in every(loop_of(kernel), LoadFragmentOp):
        letter, line = op.operand.data, {"a": 24, "b": 40}[op.operand.data]
        slot = 32 * 24 if letter == "a" else 16 * 40
        found[letter] = [divmod(evaluated(op.offset, 32 * warp) % slot, line) for warp in range(4)]
    assert found == {"a": [(0, 0), (0, 0), (16, 0), (16, 0)], "b": [(0, 0), (0, 16), (0, 0), (0, 16)]}


def evaluated(value: SSAValue, thread: int) -> int:
    """An index for a thread, in the first block and trip."""
    owner = value.owner
    number = constant_index(value)
    if number is not None:
        return number
    if not isinstance(owner, Operation):
        return 0
    if owner.name == "simt.thread_id":
        return thread
    a, b = (evaluated(operand, thread) for operand in owner.operands) if len(owner.operands) == 2 else (0, 0)
    return {
        "arith.addi": a + b, "arith.muli": a * b, "arith.andi": a & b, "arith.shli": a << min(b, 31),
        "arith.shrui": a >> min(b, 31), "arith.xori": a ^ b, "arith.subi": a - b, "arith.divui": a // max(b, 1),
        "arith.remui": a % max(b, 1), "tile.program_id": 0,
    }[owner.name]  # fmt: skip


@pytest.mark.parametrize(("memory", "wanted"), [
    ("plain", [3 * 32 * 16, 3 * 16 * 32, 32 * 32, 32 * 32]), ("padded", [3 * 32 * 24, 3 * 16 * 40, 32 * 40, 32 * 40]),
    ("swizzled", [3 * 32 * 24, 3 * 16 * 40, 32 * 40, 32 * 40]),
])  # fmt: skip
def test_12_and_15_shapes_of_w(memory: str, wanted: list[int]) -> None:
    """Fragments are loaded from rows, so that swizzled is padded. c has memory before the loop, and behind it."""
    assert shared_elements(w(memory, "distribute")) == sorted(wanted)


def test_13_products_of_w() -> None:
    assert len(every(loop_of(w()), MmaOp)) == 1


def test_14_and_16_the_schedule_of_w() -> None:
    """Three groups before the loop, at most two pending, eight trips; copies of 64 bits, one of each operand."""
    kernel = w()
    loop = loop_of(kernel)
    assert len(every(kernel, CommitOp)) - len(every(loop, CommitOp)) == 3
    assert [op.pending.value.data for op in every(loop, WaitOp)] == [2]
    assert (len(every(loop, CommitOp)), len(every(loop, BarrierOp)), trips(loop)) == (1, 2, 8)
    assert [op.elements.value.data * 16 for op in every(loop, AsyncCopyOp)] == [64, 64]


def test_17_bytes_of_w() -> None:
    for memory, size in (("plain", 8192), ("padded", 11008)):
        *circular_buffer, c, _ = sorted(shared_elements(w(memory, "distribute")), reverse=True)
        assert 2 * (sum(circular_buffer) + c) == size


def test_w_without_memory_of_c() -> None:
    """The two copies of c, its memory and a barrier are gone; rows of c are 512 elements apart."""
    kernel = w(stage_c="auto")
    assert len(shared_elements(kernel)) == 2
    assert lines(op for op in every(kernel, LoadFragmentOp) if op.operand.data == "c") == {512}
    assert lines(every(kernel, StoreFragmentOp)) == {512}
    assert len(every(w(), BarrierOp)) > len(every(kernel, BarrierOp)) == 2


@pytest.mark.parametrize("stage_c", ["auto", "on"])
def test_w_computes_the_product(stage_c: str) -> None:
    """In the emulator, without diagnostics; the assembler takes it without spills.

    Fragments and copies of a and b have no bank conflicts. Threads that move c by 16 bytes do, as 8 of them touch two
    rows, which are 80 bytes apart: in each of 6 blocks 4 warps, in 4 passes, to and fro.
    """
    machine, (m, n, k) = resolve("nvidia-rtx-3090"), (64, 96, 128)
    assert isinstance(machine, Gpu)
    kernel = w(stage_c=stage_c, sizes=(m, n, k))
    module = kernel.parent_op()
    assert isinstance(module, ModuleOp)
    module.attributes["tile.target"] = target_for(machine).attribute()
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(-2, 3, extents) for extents in ((m, k), (k, n), (m, n)))
    arrays = [each.astype(np.float16).ravel() for each in (a, b, c)]
    code = generate(module)
    done = emulated.run_kernel(code, "k", arrays)
    assert done.diagnostics == []
    np.testing.assert_array_equal(arrays[2].reshape(m, n), c + a @ b)
    ((_, counts),) = done.counts
    assert counts.total("shared", "conflicts") == {"auto": 0, "on": 6 * 4 * 4 * 2}[stage_c]
    resources = ptxas.check(code.ptx, "sm_86")
    if resources is not None:
        assert resources["k"].spills == 0


def counted(on_level: str, without: Iterable[str] = ()) -> Any:
    """Counts of a block of E1 over three slices, which are right."""
    machine = resolve("nvidia-rtx-3090")
    assert isinstance(machine, Gpu)
    module = compiled((128, 128, 192), chosen(on_level, (2, 4), without), machine.shared_bytes_per_block)
    module.attributes["tile.target"] = target_for(machine).attribute()
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(-2, 3, extents) for extents in ((128, 192), (192, 128), (128, 128)))
    arrays: list[Any] = [a.astype(np.float16).ravel(), b.astype(np.float16).ravel(), c.astype(np.float32).ravel()]
    done = emulated.run_kernel(generate(module), "k", arrays)
    assert done.diagnostics == []
    np.testing.assert_array_equal(arrays[2].reshape(128, 128), c + a @ b)
    ((_, counts),) = done.counts
    return counts


def test_counters_of_e1() -> None:
    """Whole sectors and no conflicts; without padding fragments of a and b are read in 8 times as many wavefronts."""
    full, without = counted("L6"), counted("L6", ["padding"])
    assert full.total("shared", "conflicts") == 0
    assert full.total("global", "transactions") == full.total("global", "fewest")
    fragments = 24 * 8 * 3  # of a trip, warp and slice
    wavefronts = 4 * fragments
    assert without.total("shared", "wavefronts") - full.total("shared", "wavefronts") == 7 * wavefronts


ON_DEVICE = {"ablation on the device", "products on the device"}


def test_the_ladder() -> None:
    """Every level computes the product, claims are met, and the numbers are read back."""
    found = ablation.report(sizes=(1024, 4096), device="emulator", mma="wmma")
    assert {claim.name for claim in found.claims if claim.verdict != "met"} == ON_DEVICE
    assert found.steps[-1].slice.conflicts == 0
    assert ablation.Report.from_json(found.to_json()) == found
    rows = {row[0]: row for row in found.tables[-1].rows}
    assert rows["matrix-ops"][2] == "wmma"
    assert not set(LEFT_OUT["wmma"]) & set(rows)


@pytest.mark.parametrize("without", some(["padding", "unroll"], 1))
def test_the_ladder_without_a_switch_claims_what_the_route_can_meet(without: str) -> None:
    found = ablation.report([without], (1024, 4096), device="emulator", mma="wmma")
    assert {claim.name: claim.verdict for claim in found.claims} == {
        "ablation": "met",
        **dict.fromkeys(ON_DEVICE, "open"),
    }


def test_switches_that_the_route_has_not() -> None:
    with pytest.raises(InvalidArgument, match="ldmatrix with wmma"):
        settings(closed([])["L7"], USUAL, "wmma")
    with pytest.raises(InvalidArgument, match="no matrix instruction 'wgmma'"):
        ablation.report(mma="wgmma")
