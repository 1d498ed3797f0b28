"""Kernels on the threads of a block compute what they do on whole tiles, without a race, for any number of warps."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from tests.covering import tries
from tilewright.errors import InvalidProgram
from tilewright.kernel.dialect import FuncOp, operations
from tilewright.kernel.interpreter import run_kernel
from tilewright.kernel.passes.gpu.assign_layouts import AssignLayoutsPass
from tilewright.kernel.passes.gpu.distribute import DistributePass
from tilewright.kernel.passes.gpu.distribution.tests import programs
from tilewright.kernel.passes.gpu.pipeline_loads import PipelineLoadsPass
from tilewright.kernel.passes.table import run_pass
from tilewright.kernel.simt import AsyncCopyOp, BarrierOp, CommitOp, MmaOp, SharedOp, ShuffleOp, WaitOp
from tilewright.kernel.text import parse_module, print_module

RNG = np.random.default_rng(0)
Array = np.ndarray


def distributed(text: str, warps: int, stages: int = 1) -> ModuleOp:
    """A program on threads, through the text form between the passes."""
    module = parse_module(text)
    AssignLayoutsPass(warps).apply(Context(), module)
    PipelineLoadsPass(stages).apply(Context(), module)
    module = parse_module(print_module(module))
    DistributePass(warps).apply(Context(), module)
    return parse_module(print_module(module))


def check(text: str, arrays: Sequence[Array], warps: int, exact: bool = False, stages: int = 1) -> ModuleOp:
    wanted, found = ([array.copy() for array in arrays] for _ in range(2))
    run_kernel(parse_module(text), "k", wanted)
    module = distributed(text, warps, stages)
    run_kernel(module, "k", found, races=True)
    for one, other in zip(wanted, found, strict=True):
        if exact:
            np.testing.assert_array_equal(other, one)
        else:
            np.testing.assert_allclose(other.astype(np.float64), one.astype(np.float64), rtol=2e-6, atol=2e-5)
    return module


def floats(count: int, dtype: object = np.float32) -> Array:
    return RNG.standard_normal(count).astype(dtype)


def count(module: ModuleOp, kind: type) -> int:
    (kernel,) = [op for op in module.body.ops if isinstance(op, FuncOp)]
    return sum(isinstance(op, kind) for op in operations(kernel.body))


@pytest.mark.covering(1)
@pytest.mark.parametrize("warps", [1, 2, 4, 8])
@pytest.mark.parametrize("elements", [1, 7, 256, 1000])
def test_element_work_with_a_ragged_end(elements: int, warps: int) -> None:
    check(programs.add(elements, 256), [floats(elements), np.zeros(elements, np.float32)], warps)


@pytest.mark.parametrize("warps", [1, 2, 4, 8])
@pytest.mark.parametrize(("rows", "columns"), [(8, 128), (1, 512), (32, 4), (2, 1)])
def test_softmax(rows: int, columns: int, warps: int) -> None:
    check(programs.softmax(2, rows, columns), [floats(2 * rows * columns), np.zeros(2 * rows * columns, "f4")], warps)


@pytest.mark.covering
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("kind", "dtype"), [("sum", "i32"), ("max", "f32"), ("min", "i8"), ("prod", "i64")])
@pytest.mark.parametrize("warps", [1, 4])
def test_reductions(kind: str, dtype: str, axis: int, warps: int) -> None:
    of = {"i32": np.int32, "f32": np.float32, "i8": np.int8, "i64": np.int64}[dtype]
    values = RNG.integers(-5, 6, 16 * 64).astype(of)
    check(programs.reduction(kind, 16, 64, axis, dtype), [values, np.zeros_like(values)], warps, exact=True)


def test_a_row_in_one_warp_needs_no_shared_memory() -> None:
    values = np.arange(128, dtype=np.int32)
    module = check(programs.reduction("sum", 4, 32, 1, "i32"), [values, np.zeros_like(values)], 4, exact=True)
    assert count(module, SharedOp) == count(module, BarrierOp) == 0
    assert count(module, ShuffleOp) == 5


def test_sums_of_a_thread_are_made_by_pairs() -> None:
    """16 registers in 4 steps, each as long as one addition, and 5 more over the lanes."""
    values = floats(512)
    module = check(programs.reduction("sum", 1, 512, 1, "f32"), [values, np.zeros_like(values)], 1)
    depth: dict[SSAValue, int] = {}
    for op in module.walk():
        before = max((depth.get(operand, 0) for operand in op.operands), default=0)
        depth.update(dict.fromkeys(op.results, before + isinstance(op, arith.AddfOp)))
    assert max(depth.values()) == 4 + 5


@pytest.mark.covering(1)
@pytest.mark.parametrize("warps", [1, 2, 4])
@pytest.mark.parametrize(("rows", "columns"), [(32, 32), (64, 8), (1, 128)])
def test_transposition_through_shared_memory(rows: int, columns: int, warps: int) -> None:
    values = floats(rows * columns, np.float16)
    check(programs.transposition(rows, columns, "f16"), [values, np.zeros_like(values)], warps, exact=True)


@pytest.mark.parametrize("warps", [1, 2, 8])
def test_loops_carry_tiles(warps: int) -> None:
    check(programs.counted_sum(64, 64, 16), [floats(4096), np.zeros(64, np.float32)], warps)


PRODUCTS = [
    ("mma_m16n8k16_f16_f32", "f16", "f32", np.float16, np.float32),
    ("mma_m16n8k16_bf16_f32", "bf16", "f32", ml_dtypes.bfloat16, np.float32),
    ("mma_m16n8k32_s8_s32", "i8", "i32", np.int8, np.int32),
    ("mma_m8n8k4_f64_f64", "f64", "f64", np.float64, np.float64),
    ("mma_m16n8k16_f64_f64", "f64", "f64", np.float64, np.float64),
    ("mma_m16n8k4_f64_f64", "f64", "f64", np.float64, np.float64),
]


@pytest.mark.covering(1)
@pytest.mark.parametrize(("intrinsic", "a", "c", "of", "to"), PRODUCTS, ids=[each[0] for each in PRODUCTS])
@pytest.mark.parametrize(
    ("warps", "block"), [(1, (16, 8, 32)), (4, (64, 64, 32)), (2, (32, 16, 64)), (8, (32, 64, 32))], ids=str
)
def test_products_on_matrix_instructions(
    intrinsic: str, a: str, c: str, of: type, to: type, warps: int, block: tuple[int, int, int]
) -> None:
    """Small whole numbers: every sum is exact, whatever its order."""
    m, n, k = block[0] * 2, block[1], 64
    left, right = (RNG.integers(-3, 4, size).astype(of) for size in (m * k, k * n))
    text = programs.matmul((m, n, k), block, intrinsic, a, c)
    module = check(text, [left, right, np.zeros(m * n, to)], warps, exact=True)
    assert count(module, MmaOp) >= 1


# Loads that run ahead ---------------------------------------------------------------------------------------------


@pytest.mark.covering(1)
@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("depth", [16, 32, 64, 112])
@pytest.mark.parametrize("warps", [1, 4])
def test_loads_run_ahead(stages: int, depth: int, warps: int) -> None:
    """More stages than trips, too; the interpreter finds what is read before it has arrived, or overwritten early."""
    m, n, step = 32, 32, 16
    a, b = (RNG.integers(-3, 4, size).astype(np.float16) for size in (m * depth, depth * n))
    text = programs.matmul((m, n, depth), (m, n, step))
    module = check(text, [a, b, np.zeros(m * n, np.float32)], warps, exact=True, stages=stages)
    assert count(module, AsyncCopyOp) >= 2 * stages
    assert count(module, WaitOp) == 1


def test_every_wait_and_commit_of_a_pipeline_is_needed() -> None:
    a, b = (RNG.integers(-3, 4, 32 * 64).astype(np.float16) for _ in range(2))
    text = programs.matmul((32, 32, 64), (32, 32, 16))
    for kind in (WaitOp, CommitOp, BarrierOp):
        module = distributed(text, 4, 3)
        (kernel,) = [op for op in module.body.ops if isinstance(op, FuncOp)]
        loop = next(op for op in operations(kernel.body) if isinstance(op, scf.ForOp))
        victim = next(op for op in operations(loop.body) if isinstance(op, kind))
        assert victim.parent is not None
        victim.parent.erase_op(victim)
        with pytest.raises(InvalidProgram):
            run_kernel(module, "k", [a, b, np.zeros(32 * 32, np.float32)], races=True)


def test_loads_that_depend_on_what_is_carried_stay() -> None:
    module = distributed(programs.counted_sum(64, 64, 16), 4, 3)
    assert count(module, AsyncCopyOp) == 0


@settings(max_examples=tries(4, full=25), deadline=None)
@given(
    rows=st.sampled_from([1, 2, 8, 32]), columns=st.sampled_from([1, 4, 32, 128]), warps=st.sampled_from([1, 2, 4, 8]),
    axis=st.integers(0, 1), kind=st.sampled_from(["sum", "max", "min"]),
)  # fmt: skip
def test_any_reduction(rows: int, columns: int, warps: int, axis: int, kind: str) -> None:
    values = RNG.integers(-99, 99, rows * columns).astype(np.int32)
    check(programs.reduction(kind, rows, columns, axis, "i32"), [values, np.zeros_like(values)], warps, exact=True)


# What is refused --------------------------------------------------------------------------------------------------


def test_extents_that_no_linear_layout_holds_are_refused_with_the_next_that_is() -> None:
    with pytest.raises(InvalidProgram, match="a tile of 48 elements") as caught:
        distributed(programs.add(100, 48), 4)
    assert caught.value.help == "extents are powers of two: 64 under bounds"


@pytest.mark.parametrize(
    ("intrinsic", "block", "message"),
    [
        ("dot", (16, 8, 16), "no intrinsic 'dot'"),
        ("mma_m16n8k16_f16_f32", (8, 8, 16), "a product of 8x8x16 on mma_m16n8k16_f16_f32"),
    ],
)
def test_products_that_no_instruction_takes(intrinsic: str, block: tuple[int, int, int], message: str) -> None:
    with pytest.raises(InvalidProgram, match=message):
        distributed(programs.matmul((16, 16, 16), block, intrinsic), 1)


def test_tiles_without_layouts_are_refused() -> None:
    module = parse_module(programs.add(256, 256))
    with pytest.raises(InvalidProgram, match="has no layout") as caught:
        DistributePass(4).apply(Context(), module)
    assert caught.value.help == "run assign-layouts before distribute"


@pytest.mark.parametrize("given", ["distribute", "distribute{warps=8 lanes=64}"])
def test_layouts_of_other_warps_are_refused(given: str) -> None:
    """Half of the tile would be nobody's."""
    module = parse_module(programs.add(4096, 1024))
    run_pass(module, "assign-layouts{warps=8}")
    with pytest.raises(InvalidProgram, match=r"kernel k: layouts of 8 warps of 32 lanes for (4 of 32|8 of 64)"):
        run_pass(module, given)


def test_conditions_are_not_read_by_matrix_loads() -> None:
    """They are bytes in shared memory: of 16 to a lane here, and a mask where lanes hold runs of four."""
    memory, t = "memref<512xf32>", "tensor<32x16xf32>"
    text = f"""\
tile.func @k(%x: {memory}, %q: memref<512xi8>, %y: {memory}) grid [1] {{
  %o = arith.constant 0 : index
  %z = arith.constant dense<0> : tensor<32x16xi8>
  %a = tile.load %x[%o] strides [16, 1] align 16 : {memory} -> {t}
  %b = tile.load %q[%o] strides [16, 1] align 16 : memref<512xi8> -> tensor<32x16xi8>
  %m = tile.compare "lt" %b, %z : tensor<32x16xi8> -> tensor<32x16xi1>
  tile.store %a, %y[%o] mask %m : tensor<32x16xi1> strides [16, 1] align 16 : {t}, {memory}
  tile.return
}}
"""
    arrays = [floats(512), RNG.integers(-9, 9, 512).astype(np.int8), np.zeros(512, np.float32)]
    check(text, arrays, 1, exact=True)


def test_a_scalar_becomes_a_tile_by_a_reshape() -> None:
    text = """\
tile.func @k(%x: memref<1xf32>, %y: memref<1xf32>) grid [1] {
  %o = arith.constant 0 : index
  %a = tile.load %x[%o] strides [] : memref<1xf32> -> f32
  %b = tile.reshape %a : f32 -> tensor<1xf32>
  tile.store %b, %y[%o] strides [1] : tensor<1xf32>, memref<1xf32>
  tile.return
}
"""
    check(text, [floats(1), np.zeros(1, np.float32)], 4, exact=True)
