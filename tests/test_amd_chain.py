"""From tile form to code of AMD GPUs: the distributed program by its interpreter, what LLVM makes of it by its text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import groupby

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from tests import amd_products
from tests.covering import some
from tests.working_passes import working_passes
from tilewright.codegen.amdgpu.pipeline import AmdCode, generate
from tilewright.codegen.amdgpu.target import target_for
from tilewright.instruction import MmaProblem, deduce_mma
from tilewright.instruction.block_tiles import sliced
from tilewright.intrinsics.registry import standard
from tilewright.kernel.dialect import FuncOp, LoadOp, StoreOp
from tilewright.kernel.interpreter import run_kernel
from tilewright.kernel.passes.gpu.distribution.tests import programs
from tilewright.kernel.passes.table import pipeline, run_pipeline
from tilewright.kernel.simt import BarrierOp, MmaOp, is_shared
from tilewright.kernel.target import ATTRIBUTE
from tilewright.kernel.text import parse_module, print_module
from tilewright.layouts import Blocked, DotOperand, Mma
from tilewright.machine.description import Gpu
from tilewright.machine.registry import resolve
from tilewright.operator.rules.gpu_product import BlockShape

RNG = np.random.default_rng(0)
MACHINES = ("gfx1100", "gfx1201", "gfx942")
PRODUCTS = [
    ("gfx1100", "wmmar3_16x16x16_f16_f32", "f16", "f32"),
    ("gfx1100", "wmmar3_16x16x16_bf16_f32", "bf16", "f32"),
    ("gfx1100", "wmmar3_16x16x16_f16_f16", "f16", "f16"),
    ("gfx1100", "wmmar3_16x16x16_s8_s32", "i8", "i32"),
    ("gfx1201", "wmmar4_16x16x16_f16_f32", "f16", "f32"),
    ("gfx1201", "wmmar4_16x16x16_bf16_f32", "bf16", "f32"),
    ("gfx1201", "wmmar4_16x16x16_f16_f16", "f16", "f16"),
    ("gfx1201", "wmmar4_16x16x16_s8_s32", "i8", "i32"),
    ("gfx942", "mfma_16x16x16_f16_f32", "f16", "f32"),
    ("gfx942", "mfma_16x16x16_bf16_f32", "bf16", "f32"),
    ("gfx942", "mfma_32x32x8_f16_f32", "f16", "f32"),
    ("gfx942", "vmfma_16x16x32_f16_f32", "f16", "f32"),
    ("gfx942", "mfma_16x16x32_s8_s32", "i8", "i32"),
    ("gfx942", "mfma_16x16x4_f64_f64", "f64", "f64"),
    ("gfx942", "mfma_16x16x4_f32_f32", "f32", "f32"),
]
TYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "i8": np.int8, "f32": np.float32, "f64": np.float64,
         "i32": np.int32}  # fmt: skip


@cache
def distributed(text: str, cpu: str, disable: tuple[str, ...] = ()) -> ModuleOp:
    machine = resolve(cpu)
    assert isinstance(machine, Gpu)
    target, module = target_for(machine), parse_module(text)
    assert target.lanes == machine.warp_sizes[0]
    module.attributes[ATTRIBUTE] = target.attribute()
    run_pipeline(module, "gpu", disable, verify_each=True, lanes=target.lanes)
    return module


@cache
def compiled(text: str, cpu: str, disable: tuple[str, ...] = ()) -> AmdCode:
    """Code that LLVM's verifier and back end have taken, without spilled registers."""
    code = generate(distributed(text, cpu, disable))
    resources = code.resources["k"]
    assert (resources.vector_spills, resources.scalar_spills, resources.private_bytes) == (0, 0, 0)
    assert resources.shared_bytes == code.kernel("k").shared_bytes
    assert resources.lanes == code.target.lanes
    return code


def check(
    text: str, arrays: Sequence[np.ndarray], cpu: str, exact: bool = True, disable: tuple[str, ...] = ()
) -> np.ndarray:
    """The last array after a run of the distributed program, which gives what whole tiles give, and compiles."""
    wanted, found = ([array.copy() for array in arrays] for _ in range(2))
    run_kernel(parse_module(text), "k", wanted)
    run_kernel(distributed(text, cpu, disable), "k", found)
    for one, other in zip(wanted, found, strict=True):
        if exact:
            np.testing.assert_array_equal(other, one)
        else:
            np.testing.assert_allclose(other, one, rtol=2e-5, atol=1e-5)
    compiled(text, cpu, disable)
    return found[-1]


def mnemonics(code: AmdCode) -> Counter[str]:
    return Counter(line.split()[0] for line in code.assembly.splitlines() if re.match(r"\t[a-z]+_", line))


def by_columns(text: str, n: int, k: int) -> str:
    """The product of `programs.matmul` with b stored column after column."""
    for old, new in (
        ("%kn = arith.muli %k, %width", "%kn = arith.muli %j, %depth"),
        ("%bo = arith.addi %kn, %j", "%bo = arith.addi %kn, %k"),
        (f"%b[%bo] strides [{n}, 1]", f"%b[%bo] strides [1, {k}]"),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text


@pytest.mark.covering(1)
@pytest.mark.parametrize("cpu", MACHINES)
@pytest.mark.parametrize("elements", [1, 255, 1000])
def test_element_work(elements: int, cpu: str) -> None:
    x = RNG.standard_normal(elements).astype(np.float32)
    check(programs.add(elements, 256), [x, np.zeros_like(x)], cpu, exact=False)


@pytest.mark.covering(1)
@pytest.mark.parametrize("cpu", MACHINES)
@pytest.mark.parametrize(("rows", "columns"), [(8, 128), (1, 512), (4, 8)])
def test_softmax(rows: int, columns: int, cpu: str) -> None:
    x = RNG.standard_normal(2 * rows * columns).astype(np.float32)
    check(programs.softmax(2, rows, columns), [x, np.zeros_like(x)], cpu, exact=False)


@pytest.mark.parametrize("cpu", MACHINES)
@pytest.mark.parametrize(
    ("kind", "rows", "columns", "axis", "dtype"),
    [("sum", 64, 32, 0, "i32"), ("max", 4, 128, 1, "f16"), ("min", 256, 2, 0, "i8"), ("sum", 1, 1024, 1, "i32")],
)
def test_reductions(kind: str, rows: int, columns: int, axis: int, dtype: str, cpu: str) -> None:
    x = RNG.integers(-100, 100, rows * columns).astype(TYPES[dtype])
    check(programs.reduction(kind, rows, columns, axis, dtype), [x, np.zeros_like(x)], cpu)


@pytest.mark.parametrize("cpu", MACHINES)
def test_transposition_and_loop(cpu: str) -> None:
    values = RNG.standard_normal(64 * 32).astype(np.float16)
    check(programs.transposition(64, 32, "f16"), [values, np.zeros_like(values)], cpu)
    x = RNG.integers(-8, 8, 64 * 32).astype(np.float32)
    check(programs.counted_sum(64, 32, 16), [x, np.zeros(32, np.float32)], cpu)


@pytest.mark.parametrize(("cpu", "intrinsic", "dtype", "result"), PRODUCTS, ids=lambda value: str(value))
def test_products(cpu: str, intrinsic: str, dtype: str, result: str) -> None:
    """Small whole numbers: exact in any order. Both against NumPy and against the program on whole tiles."""
    m, n, k = 32, 32, 64
    a, b = (RNG.integers(-3, 4, size).astype(TYPES[dtype]) for size in (m * k, k * n))
    text = programs.matmul((m, n, k), (32, 32, 32), intrinsic, dtype, result)
    c = check(text, [a, b, np.zeros(m * n, TYPES[result])], cpu)
    wide_a, wide_b = a.astype(np.float64).reshape(m, k), b.astype(np.float64).reshape(k, n)
    np.testing.assert_array_equal(c.reshape(m, n).astype(np.float64), wide_a @ wide_b)
    family = "v_mfma" if "mfma" in intrinsic else "v_wmma"
    found = mnemonics(compiled(text, cpu))
    assert sum(count for name, count in found.items() if name.startswith(family)) > 0


GEMM = [
    ("gfx1100", "wmmar3_16x16x16_f16_f32", (64, 128, 32)),
    ("gfx1201", "wmmar4_16x16x16_f16_f32", (64, 128, 64)),
    ("gfx942", "mfma_16x16x16_f16_f32", (64, 128, 64)),
    ("gfx942", "mfma_32x32x8_f16_f32", (64, 128, 32)),
]


@pytest.mark.parametrize(("cpu", "intrinsic"), [(cpu, intrinsic) for cpu, intrinsic, _ in GEMM])
def test_rows_of_b_are_turned_in_registers(cpu: str, intrinsic: str) -> None:
    text = programs.matmul((64, 64, 32), (64, 64, 32), intrinsic)
    found = mnemonics(compiled(text, cpu))
    assert not [name for name in found if re.match(r"(ds|global)_\w*_[bui](8|16)(_|$)", name)]


@pytest.mark.parametrize(("cpu", "intrinsic", "block"), GEMM, ids=lambda value: str(value))
def test_the_staged_product_moves_16_bytes_at_a_time(cpu: str, intrinsic: str, block: tuple[int, int, int]) -> None:
    """Global memory to registers a trip ahead, to shared memory, to fragments, in blocks that level 3 chooses.

    On RDNA 3, which holds fragments twice, with slices of half of k: all fragments of a slice are loaded at once.
    """
    chosen = deduce_mma(MmaProblem((1024,), (1024,), (1024,)), cpu).schedule
    assert chosen is not None
    if standard().find(chosen.intrinsic.name).name == intrinsic:
        assert (chosen.wg_m, chosen.wg_n) == block[:2]
    m, n, k = 64, 128, 3 * block[2]
    a, b = (RNG.integers(-3, 4, size).astype(np.float16) for size in (m * k, k * n))
    text = by_columns(programs.matmul((m, n, k), block, intrinsic), n, k)
    c = check(text, [a, b, np.zeros(m * n, np.float32)], cpu)
    whole = a.astype(np.float64).reshape(m, k) @ b.astype(np.float64).reshape(n, k).T
    np.testing.assert_array_equal(c.reshape(m, n), whole)
    found = mnemonics(compiled(text, cpu))
    loads = {name for name in found if re.match(r"global_load|buffer_load|flat_load|scratch", name)}
    assert loads <= {"buffer_load_b128", "buffer_load_dwordx4"}
    halves = {name for name in found if re.match(r"ds_\w*_[bui](8|16)(_|$)", name)}
    assert not halves, "elements are moved one by one"
    assert found["ds_load_b128"] + found["ds_read_b128"] > 0
    assert found["ds_store_b128"] + found["ds_write_b128"] > 0
    barriers = sum(op.name == "simt.barrier" for op in distributed(text, cpu).walk())
    made = found["s_barrier"] + found["s_barrier_wait"]
    assert barriers == made > 0


@pytest.mark.parametrize(("cpu", "intrinsic"), [case[:2] for case in GEMM[:3]])
def test_a_loop_tests_where_it_ends(cpu: str, intrinsic: str) -> None:
    """And nowhere else: what a trip hands on stays in its registers."""
    text = programs.matmul((64, 128, 256), (64, 128, 32), intrinsic)
    listing = compiled(text, cpu).assembly
    assert len(re.findall(r"\ts_c?branch", listing)) == 1
    loop = listing[listing.index(".LBB0_1:") : listing.index("s_cbranch")]
    assert len(re.findall("v_w?mf?ma", loop)) == 4 * 8 * 2 // 4  # boxes of 16 x 16 x 16, four warps


def test_both_operands_are_staged_before_one_barrier() -> None:
    """So that no fragment of a is in registers while b is written; the other barrier of a trip is before the writes."""
    text = programs.matmul((64, 128, 256), (64, 128, 32), GEMM[0][1])
    loop = next(op for op in distributed(text, "gfx1100").walk() if isinstance(op, scf.ForOp))
    steps = [_step(op) for op in loop.body.block.ops]
    wanted = ["barrier", "write", "barrier", "read", "product"]
    assert [name for name, _ in groupby(filter(None, steps))] == wanted


def _step(op: Operation) -> str:
    if isinstance(op, BarrierOp | MmaOp):
        return "barrier" if isinstance(op, BarrierOp) else "product"
    if isinstance(op, LoadOp | StoreOp) and is_shared(op.view):
        return "read" if isinstance(op, LoadOp) else "write"
    return ""


@pytest.mark.parametrize(
    ("cpu", "intrinsic", "result", "direct"),
    [("gfx1201", "wmmar4_16x16x16_f16_f16", "f16", True), ("gfx1201", "wmmar4_16x16x16_f16_f32", "f32", False),
     ("gfx942", "mfma_16x16x16_f16_f32", "f32", True), ("gfx1100", "wmmar3_16x16x16_f16_f16", "f16", False)],
)  # fmt: skip
def test_results_leave_as_lanes_hold_them(cpu: str, intrinsic: str, result: str, direct: bool) -> None:
    """Where lanes have 8 bytes of a row or more, and those of a store fill sectors: computed as ``c^T = b^T a^T``."""
    a, b = (RNG.integers(-3, 4, 64 * 64).astype(np.float16) for _ in range(2))
    text = programs.matmul((64, 64, 64), (64, 64, 32), intrinsic, "f16", result)
    c = check(text, [a, b, np.zeros(64 * 64, TYPES[result])], cpu)
    np.testing.assert_array_equal(c.reshape(64, 64), a.reshape(64, 64).astype(np.float64) @ b.reshape(64, 64))
    kernel = next(op for op in distributed(text, cpu).walk() if isinstance(op, FuncOp))
    steps = [name for name, _ in groupby(filter(None, map(_step, kernel.body.block.ops)))]
    assert (steps[-1] == "product") == direct
    found = mnemonics(compiled(text, cpu))
    stores = {name for name in found if name.startswith("buffer_store")}
    assert stores <= {"buffer_store_b128", "buffer_store_dwordx4"}


def test_results_by_columns_are_computed_as_they_are() -> None:
    """Lanes of MFMA have neighbours of a column."""
    a, b = (RNG.integers(-3, 4, 64 * 64).astype(np.float16) for _ in range(2))
    text = programs.matmul((64, 64, 64), (64, 64, 32), "mfma_16x16x16_f16_f32")
    assert text.count("%c[%co] strides [64, 1]") == 1
    text = text.replace("%c[%co] strides [64, 1]", "%c[%co] strides [1, 64]")
    c = check(text, [a, b, np.zeros(64 * 64, np.float32)], "gfx942")
    np.testing.assert_array_equal(c.reshape(64, 64).T, a.reshape(64, 64).astype(np.float64) @ b.reshape(64, 64))
    kernel = next(op for op in distributed(text, "gfx942").walk() if isinstance(op, FuncOp))
    steps = [name for name, _ in groupby(filter(None, map(_step, kernel.body.block.ops)))]
    assert steps[-1] == "product"


def test_operands_too_large_for_half_the_memory_are_staged_one_after_the_other() -> None:
    """A block has 64 KiB here; what else is in use has the other half."""
    text = programs.matmul((256, 256, 256), (256, 256, 64), GEMM[1][1])
    loop = next(op for op in distributed(text, "gfx1201").walk() if isinstance(op, scf.ForOp))
    found = [name for name, _ in groupby(filter(None, map(_step, loop.body.block.ops)))]
    assert found.count("write") == 2


@pytest.mark.parametrize(
    "name",
    some(["gfx1100-bf16-a-2048x2048x2048", "gfx1100-f16-2041x1037x1031", "gfx1201-bf16-2041x1037x1031",
          "gfx1201-f16-2048x2048x2048", "gfx942-i8-a-2048x2048x2048", "gfx1100-f16-2048x2048x2048"], 3),
)  # fmt: skip
def test_large_products_spill_no_registers(name: str) -> None:
    """Some of those that `python -m tests.amd_products` compiles; slices of k are as deep as registers hold."""
    each = next(each for each in amd_products.PRODUCTS if str(each) == name)
    found = amd_products.row(name, generate(amd_products.distributed(each)))
    assert (found["vector_spills"], found["scalar_spills"], found["private_bytes"]) == (0, 0, 0)
    assert found["matrix"] > 0


@pytest.mark.parametrize(
    ("cpu", "intrinsic", "deep"),
    [("gfx1100", GEMM[0][1], 32), ("gfx1100", "wmmar3_16x16x16_s8_s32", 64), ("gfx1201", GEMM[1][1], 64)],
)
def test_slices_are_as_deep_as_registers_hold(cpu: str, intrinsic: str, deep: int) -> None:
    """RDNA 3 holds fragments of a and b twice: 96 registers of 16-bit ones for every 32 of k, beside 64 of sums."""
    machine = resolve(cpu)
    assert isinstance(machine, Gpu)
    shape = BlockShape(64, 128, 64, (2, 2), intrinsic)
    assert sliced(shape, standard().find(intrinsic), machine) == replace(shape, k=deep)


def test_every_optimisation_can_be_switched_off() -> None:
    """Each of those that change the program."""
    a, b = (RNG.integers(-3, 4, 64 * 32).astype(np.float16) for _ in range(2))
    text, machine = programs.matmul((32, 32, 64), (32, 32, 16), "mfma_16x16x16_f16_f32"), resolve("gfx942")
    assert isinstance(machine, Gpu)
    target, module = target_for(machine), parse_module(text)
    module.attributes[ATTRIBUTE] = target.attribute()
    working = working_passes(module, pipeline("gpu", lanes=target.lanes))
    assert set(working) >= {"pipeline-registers", "barriers", "licm", "cse"}
    for name in working:
        check(text, [a, b, np.zeros(32 * 32, np.float32)], "gfx942", disable=(name,))


def test_loads_run_ahead_through_registers() -> None:
    """These machines have no asynchronous copies, as their files say."""
    text = programs.matmul((64, 64, 64), (64, 32, 16), "wmmar4_16x16x16_f16_f32")
    names = {op.name for op in distributed(text, "gfx1201").walk()}
    assert "simt.async_copy" not in names
    loops = [op for op in distributed(text, "gfx1201").walk() if op.name == "scf.for"]
    assert any(op.name == "tile.load" and "shared" not in str(op.operands[0].type) for op in loops[0].walk())


@pytest.mark.parametrize("cpu", MACHINES)
def test_the_same_program_gives_the_same_bytes(cpu: str) -> None:
    text = programs.softmax(2, 4, 8)
    again = parse_module(print_module(distributed(text, cpu)))
    assert generate(again) == compiled(text, cpu)


def test_no_lane_loads_for_another() -> None:
    """A tile that other warps want as an operand: matrix loads, where there are such."""
    source = Blocked((1, 8), (4, 8), (4, 1), (1, 0)).to_linear((64, 64))
    target = DotOperand(0, Mma(2, (2, 2)), 2).to_linear((64, 64))
    before, after = (f'tensor<64x64xf16, "{layout}">' for layout in (source, target))
    text = f"""\
tile.func @k(%a: memref<4096xf16>, %c: memref<4096xf16>) grid [1] {{
  %o = arith.constant 0 : index
  %x = tile.load %a[%o] strides [64, 1] align 16 : memref<4096xf16> -> {before}
  %y = tile.convert %x : {before} -> {after}
  tile.store %y, %c[%o] strides [64, 1] align 4 : {after}, memref<4096xf16>
  tile.return
}}
"""
    anywhere = parse_module(text)
    run_pipeline(anywhere, "gpu")
    assert "simt.load_matrix" in {op.name for op in anywhere.walk()}
    x = RNG.integers(-8, 8, 64 * 64).astype(np.float16)
    check(text, [x, np.zeros_like(x)], "gfx1100")
    assert "simt.load_matrix" not in {op.name for op in distributed(text, "gfx1100").walk()}
