"""Copies ahead of a loop: both schedules, every memory, any number of trips, zero included, and ragged tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.codegen.nvptx.pipeline import generate
from tilewright.codegen.nvptx.target import target_for
from tilewright.errors import InvalidArgument, InvalidProgram
from tilewright.kernel.dialect import FuncOp, operations
from tilewright.kernel.interpreter import run_kernel
from tilewright.kernel.passes.gpu.pipeline_loads import SCHEDULES, PipelineLoadsPass
from tilewright.kernel.passes.table import run_pass, run_pipeline
from tilewright.kernel.simt import BarrierOp, CommitOp
from tilewright.kernel.text import parse_module
from tilewright.machine.description import Gpu
from tilewright.machine.registry import resolve
from tilewright.runtime import emulated

RNG = np.random.default_rng(0)
SLICES = 6  # in memory; block p of six computes with the first p of them
MEMORIES = ("swizzled", "padded", "plain")


def parts(rows: int = 32, columns: int = 32, depth: int = 16 * SLICES) -> str:
    """Block p writes the product of p slices of 16: no trip, one, …; rows and columns outside are not there."""
    x, y, z = "tensor<32x16xf16>", "tensor<16x32xf16>", "tensor<32x32xf32>"
    a, b, c = f"memref<{rows * depth}xf16>", f"memref<{depth * columns}xf16>", f"memref<{SLICES * rows * columns}xf32>"
    edge, left = ("", "") if rows == columns == 32 else ("bounds(%rows, %step) ", "bounds(%step, %width) ")
    whole = "bounds(%rows, %width) " if edge else ""
    return f"""
tile.func @k(%a: {a}, %b: {b}, %c: {c}) grid [{SLICES}] attributes {{warps = array<i64: 2, 2>}} {{
  %p = tile.program_id 0
  %low = arith.constant 0 : index
  %step = arith.constant 16 : index
  %rows = arith.constant {rows} : index
  %width = arith.constant {columns} : index
  %size = arith.constant {rows * columns} : index
  %high = arith.muli %p, %step : index
  %o = arith.muli %p, %size : index
  %z = arith.constant dense<0.0> : tensor<32x32xf32>
  %r = scf.for %k = %low to %high step %step iter_args(%acc = %z) -> (tensor<32x32xf32>) {{
    %bo = arith.muli %k, %width : index
    %x = tile.load %a[%k] {edge}strides [{depth}, 1] align 16 : {a} -> tensor<32x16xf16>
    %y = tile.load %b[%bo] {left}strides [{columns}, 1] align 16 : {b} -> tensor<16x32xf16>
    %d = tile.dot "mma_m16n8k16_f16_f32" %x, %y, %acc unsigned "" : {x}, {y}, {z}
    scf.yield %d : tensor<32x32xf32>
  }}
  tile.store %r, %c[%o] {whole}strides [{columns}, 1] align 16 : tensor<32x32xf32>, {c}
  tile.return
}}
"""


def operands(rows: int, columns: int) -> tuple[list[Any], Any]:
    """Small whole numbers, whose sums are exact in any order, and what is to come out."""
    a = RNG.integers(-3, 4, (rows, 16 * SLICES)).astype(np.float16)
    b = RNG.integers(-3, 4, (16 * SLICES, columns)).astype(np.float16)
    wanted = [a[:, : 16 * p].astype(np.float32) @ b[: 16 * p].astype(np.float32) for p in range(SLICES)]
    return [a.ravel(), b.ravel(), np.full(SLICES * rows * columns, np.nan, np.float32)], np.asarray(wanted)


def compiled(text: str, **settings: Any) -> Any:
    module = parse_module(text)
    run_pipeline(module, "gpu", verify_each=True, options={"pipeline-loads": settings})
    return module


@pytest.mark.covering
@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_any_number_of_trips(schedule: str, memory: str, stages: int) -> None:
    arrays, wanted = operands(32, 32)
    module = compiled(parts(), schedule=schedule, memory=memory, stages=stages)
    run_kernel(module, "k", arrays, races=True, order="random" if stages == 3 else "together")
    np.testing.assert_array_equal(arrays[2].reshape(wanted.shape), wanted)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ragged_tiles(schedule: str) -> None:
    arrays, wanted = operands(20, 24)
    module = compiled(parts(20, 24), schedule=schedule, memory="padded", stages=3)
    run_kernel(module, "k", arrays, races=True)
    np.testing.assert_array_equal(arrays[2].reshape(wanted.shape), wanted)


@pytest.mark.parametrize("memory", ["swizzled", "padded"])
def test_load_first_in_the_emulator(memory: str) -> None:
    """No copy is read early, nothing is written while it is read, and neither memory has conflicts."""
    machine = resolve("sm_80")
    assert isinstance(machine, Gpu)
    arrays, wanted = operands(32, 32)
    module = compiled(parts(), schedule="load-first", memory=memory, stages=3)
    module.attributes["tile.target"] = target_for(machine).attribute()
    done = emulated.run_kernel(generate(module), "k", arrays)
    assert done.diagnostics == []
    np.testing.assert_array_equal(arrays[2].reshape(wanted.shape), wanted)
    ((_, counts),) = done.counts
    assert counts.total("shared", "conflicts") == 0


def test_a_trip_refills_its_buffer_behind_a_barrier_that_is_needed() -> None:
    """Without that barrier a thread overwrites what another has not read yet."""
    arrays, _ = operands(32, 32)
    module = compiled(parts(), schedule="load-first", stages=2)
    kernel = next(op for op in module.body.ops if isinstance(op, FuncOp))
    commits = [op for op in operations(kernel.body) if isinstance(op, CommitOp)]
    assert len(commits) == 3  # two before the loop
    body = commits[-1].parent
    assert body is not None
    last = [op for op in body.ops if isinstance(op, BarrierOp)][-1]
    body.erase_op(last)
    with pytest.raises(InvalidProgram, match="barrier"):
        run_kernel(module, "k", arrays, races=True)


def test_settings_that_there_are_not_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="pass 'pipeline-loads': schedule=late"):
        PipelineLoadsPass(schedule="late")
    module = parse_module(parts())
    run_pass(module, "assign-layouts")
    with pytest.raises(InvalidArgument, match="pass 'pipeline-loads': memory=soft"):
        run_pass(module, "pipeline-loads{memory=soft}")
