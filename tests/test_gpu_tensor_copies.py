"""Products of four warps on boxes that the copy engine brings: from tile form to PTX that runs, and what goes wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, IntegerAttr, ModuleOp
from xdsl.ir import Operation

import tilewright
from tests.covering import FULL, some
from tilewright import Options
from tilewright.codegen.nvptx import ptxas
from tilewright.codegen.nvptx.pipeline import PtxCode, generate
from tilewright.codegen.nvptx.target import target_for
from tilewright.compiler.compile import build
from tilewright.compiler.plan import ChooseProduct
from tilewright.emulator.isa.warpgroup import operand_addresses
from tilewright.emulator.tensor_maps import swizzled
from tilewright.errors import InvalidProgram
from tilewright.expr.graph import GraphBuilder
from tilewright.expr.ops import elementwise, linalg
from tilewright.instruction.block_tiles import Candidate, Ranking
from tilewright.kernel.hopper.simt_async import (
    FenceOp,
    MbarrierArriveOp,
    MbarrierInitOp,
    MbarrierWaitOp,
    TensorLoadOp,
    WarpBarrierOp,
)
from tilewright.kernel.hopper.simt_warpgroup import WarpgroupCommitOp, WarpgroupFenceOp, WarpgroupWaitOp
from tilewright.kernel.interpreter import run_kernel
from tilewright.kernel.passes.gpu.distribution.tests.programs import ragged_matmul
from tilewright.kernel.passes.gpu.distribution.warpgroup import operand_of
from tilewright.kernel.passes.table import run_pass, run_pipeline
from tilewright.kernel.rewrite import erase, insert_before, replace_by_values
from tilewright.kernel.simt import BarrierOp
from tilewright.kernel.text import parse_module, print_module
from tilewright.kernel.verify import verify
from tilewright.layouts.shared import NvmmaShared
from tilewright.machine.description import Gpu
from tilewright.machine.registry import resolve
from tilewright.runtime import emulated
from tilewright.runtime.cuda.module import DeviceModule

RNG = np.random.default_rng(0)
STEPS = ("tensor-copies", "tensor-stores", "persistent", "pipeline-tensor-copies", "pipeline-wgmma", "warp-specialize")
Sizes = tuple[int, int, int]


def gpu(name: str) -> Gpu:
    machine = resolve(name)
    assert isinstance(machine, Gpu)
    return machine


def program(sizes: Sizes, block: Sizes, dtype: str = "f16", blocks: int = 2) -> ModuleOp:
    """A product in tile form, for a machine of so many multiprocessors."""
    module = parse_module(ragged_matmul(sizes, block, f"mma_m16n8k16_{dtype}_f32", dtype))
    target = target_for(gpu("sm_90a"))
    few = replace(target, facts=replace(target.facts, multiprocessors=blocks))
    module.attributes["tile.target"] = few.attribute()
    return module


def distributed(sizes: Sizes, block: Sizes, dtype: str = "f16", disable: Sequence[str] = ()) -> ModuleOp:
    module = program(sizes, block, dtype)
    run_pipeline(module, "gpu", disable, verify_each=True)
    return module


def operands(sizes: Sizes, dtype: str = "f16") -> tuple[list[Any], Any]:
    """Arguments of the kernel, and the result: small whole numbers, whose sums are exact in any order."""
    m, n, k = sizes
    a, b = (RNG.integers(-3, 4, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    type_ = np.float16 if dtype == "f16" else ml_dtypes.bfloat16
    return [*(each.astype(type_).reshape(-1) for each in (a, b)), np.zeros(m * n, np.float32)], (a @ b).reshape(-1)


def emulate(code: PtxCode, arguments: Sequence[Any]) -> Any:
    """Diagnostics and counts; bf16 is the integers of its bits in the emulator."""
    plain = [each if each.dtype != ml_dtypes.bfloat16 else each.view(np.int16) for each in arguments]
    return emulated.run_kernel(code, "k", plain)


def check(code: PtxCode, sizes: Sizes, dtype: str = "f16") -> Any:
    """The counts of a run in the emulator that found nothing and gave the product."""
    arguments, wanted = operands(sizes, dtype)
    run = emulate(code, arguments)
    assert run.diagnostics == []
    np.testing.assert_array_equal(arguments[2], wanted)
    ((_, counts),) = run.counts
    return counts


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize(
    ("sizes", "block"),
    [
        ((128, 128, 128), (128, 128, 64)),
        ((136, 72, 72), (64, 64, 32)),
        ((136, 136, 72), (128, 256, 64)),
        ((64, 8, 16), (64, 64, 16)),
        ((72, 136, 136), (64, 128, 128)),
        *([((200, 136, 72), (64, 64, 32)), ((72, 328, 264), (64, 128, 128))] if FULL else []),
    ],
    ids=str,
)
def test_products(sizes: Sizes, block: Sizes, dtype: str) -> None:
    module = distributed(sizes, block, dtype)
    code = generate(module)
    resources = ptxas.check(code.ptx, "sm_90a")
    assert resources is None or (resources["k"].spills, resources["k"].warnings) == (0, ())
    assert "wgmma.mma_async" in code.ptx
    assert "cp.async.bulk.tensor.2d" in code.ptx
    assert check(code, sizes, dtype).total("shared", "conflicts") == 0
    arguments, wanted = operands(sizes, dtype)
    run_kernel(module, "k", arguments, order="random", seed=1)
    np.testing.assert_array_equal(arguments[2], wanted)


def stored_as(transposed: str, factors: Sequence[np.ndarray], sizes: Sizes) -> list[np.ndarray]:
    """The factors a and b of a product of m x n x k, those named in `transposed` by columns."""
    m, n, k = sizes
    return [
        each.reshape(shape).T.reshape(-1) if name in transposed else each
        for name, each, shape in zip("ab", factors, ((m, k), (k, n)), strict=True)
    ]


@pytest.mark.covering(1)
@pytest.mark.parametrize("transposed", ["a", "b", "ab"])
@pytest.mark.parametrize("block", [(64, 128, 64), (128, 64, 32), (64, 32, 16)], ids=str)
def test_operands_stored_by_columns(block: Sizes, transposed: str) -> None:
    sizes = (72, 136, 72)
    module = parse_module(ragged_matmul(sizes, block, transposed=transposed))
    module.attributes["tile.target"] = program(sizes, block).attributes["tile.target"]
    run_pipeline(module, "gpu", verify_each=True)
    (a, b, c), wanted = operands(sizes)
    stored = stored_as(transposed, (a, b), sizes)
    run_kernel(module, "k", [*stored, c])
    np.testing.assert_array_equal(c, wanted)
    code = generate(module)
    assert "wgmma" in code.ptx
    c[:] = 0
    assert emulate(code, [*stored, c]).diagnostics == []
    np.testing.assert_array_equal(c, wanted)


@pytest.mark.parametrize("swizzle", [32, 64, 128])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("index", [0, 1])
def test_descriptions_of_operands_are_those_of_their_layouts(swizzle: int, transposed: bool, index: int) -> None:
    """Where the emulator, which has formulas of its own, finds the elements of each part."""
    outer, depth = 128, 64
    form = NvmmaShared(swizzle, 16, transposed)
    shape = (outer, depth) if index == 0 else (depth, outer)
    places = form.offsets(shape) if index == 0 else form.offsets(shape).T
    operand = operand_of(str(form), outer, depth, 2, index)
    matrix, rows = operand.matrix, min(64, outer)
    for start in range(0, outer, rows):
        for k in range(0, depth, 16):
            first = 2 * operand.place(start, k)
            plain = operand_addresses(
                first, matrix.leading, matrix.stride, matrix.swizzle, rows, 16, 16, matrix.transposed
            )
            np.testing.assert_array_equal(swizzled(plain, swizzle) // 2, places[start : start + rows, k : k + 16])


def test_every_form_on_the_way_gives_the_product() -> None:
    sizes = (200, 136, 136)
    module = program(sizes, (64, 128, 32))
    for name in ("tensor-copies", "swizzle-blocks", "persistent", "pipeline-tensor-copies", "pipeline-wgmma"):
        run_pass(module, name)
        arguments, wanted = operands(sizes)
        run_kernel(parse_module(print_module(module)), "k", arguments)
        np.testing.assert_array_equal(arguments[2], wanted)


OFF = [*((step,) for step in STEPS), STEPS[1:]]
ELSEWHERE = {("tensor-stores",), ("persistent",), ("warp-specialize",)}  # of `test_results_leave_by_boxes`


@pytest.mark.parametrize("without", [steps for steps in OFF if FULL or steps not in ELSEWHERE], ids=",".join)
def test_every_step_can_be_switched_off(without: Sequence[str]) -> None:
    sizes = (136, 72, 72)
    code = generate(distributed(sizes, (64, 128, 32), disable=without))
    check(code, sizes)
    kernel = code.kernel("k")
    assert ("wgmma" in code.ptx) == ("tensor-copies" not in without)
    assert (kernel.grid == (2, 1, 1)) == (not {"persistent", "tensor-copies"} & set(without))
    assert (kernel.block == (256, 1, 1)) == (not {"warp-specialize", "tensor-copies"} & set(without))


def halves(sizes: Sizes, block: Sizes, disable: Sequence[str] = (), cluster: int = 1) -> ModuleOp:
    """The product as f16, perhaps by blocks in clusters."""
    (m, n, _), (rows, columns, _) = sizes, block
    wide, narrow = (f"tensor<{rows}x{columns}x{dtype}>" for dtype in ("f32", "f16"))
    cast = f"  %h = tile.cast %r : {wide} -> {narrow}\n  tile.store %h"
    before, store = ragged_matmul(sizes, block).split("  tile.store %r")
    text = before + cast + store.replace(wide, narrow)
    module = parse_module(text.replace(f"memref<{m * n}xf32>", f"memref<{m * n}xf16>"))
    module.attributes["tile.target"] = program(sizes, block).attributes["tile.target"]
    run_pipeline(module, "gpu", disable, verify_each=True, options={"multicast": {"cluster": cluster}})
    return module


@pytest.mark.covering(1)
@pytest.mark.parametrize("without", [(), ("tensor-stores",), ("persistent",), ("warp-specialize",)], ids=",".join)
@pytest.mark.parametrize(
    ("sizes", "block"),
    [((136, 136, 72), (64, 128, 32)), ((128, 256, 64), (128, 256, 64)), ((72, 136, 72), (128, 32, 32))],
    ids=str,
)
def test_results_leave_by_boxes(sizes: Sizes, block: Sizes, without: Sequence[str]) -> None:
    module = halves(sizes, block, without)
    (a, b, wide), wanted = operands(sizes)
    run_kernel(module, "k", [a, b, found := wide.astype(np.float16)], order="random", seed=1)
    np.testing.assert_array_equal(found, wanted)
    code = generate(module)
    assert ("cp.async.bulk.tensor.2d.global.shared" in code.ptx) == ("tensor-stores" not in without)
    assert ("stmatrix" in code.ptx) == ("tensor-stores" not in without)
    run = emulate(code, [a, b, again := np.zeros_like(found)])
    assert run.diagnostics == []
    np.testing.assert_array_equal(again, wanted)
    ((_, counts),) = run.counts
    assert counts.total("shared", "conflicts") == 0


def test_registers_move_to_the_warps_that_compute() -> None:
    code = generate(distributed((256, 256, 128), (128, 256, 64)))
    assert code.kernel("k").block == (384, 1, 1)
    assert "setmaxnreg.inc.sync.aligned.u32 240" in code.ptx
    check(code, (256, 256, 128))


def test_machines_without_the_units_keep_their_loads() -> None:
    module = parse_module(ragged_matmul((64, 64, 64), (64, 64, 32)))
    module.attributes["tile.target"] = target_for(gpu("sm_80")).attribute()
    run_pipeline(module, "gpu", verify_each=True)
    assert not [op for op in module.walk() if isinstance(op, TensorLoadOp)]


def test_warps_that_fill_leave_alone_what_comes_before_copies() -> None:
    """A store before the loop is done once, by those that compute."""
    sizes = (64, 64, 64)
    loop = "  %r = scf.for"
    store = "  tile.store %z, %e[%low] strides [64, 1] : tensor<64x64xf32>, memref<4096xf32>\n"
    text = ragged_matmul(sizes, (64, 64, 32)).replace(loop, store + loop)
    text = text.replace("%c: memref<4096xf32>)", "%c: memref<4096xf32>, %e: memref<4096xf32>)")
    module = parse_module(text)
    module.attributes["tile.target"] = target_for(gpu("sm_90a")).attribute()
    run_pipeline(module, "gpu", verify_each=True)
    arguments, wanted = operands(sizes)
    run_kernel(module, "k", [*arguments, np.ones(4096, np.float32)], races=True)
    np.testing.assert_array_equal(arguments[2], wanted)
    assert [op for op in module.walk() if isinstance(op, TensorLoadOp)]


def test_a_graph_gets_products_of_four_warps() -> None:
    b = GraphBuilder()
    graph = b.finish([linalg.matmul(b.input("x", (512, 64), "f16"), b.input("w", (64, 512), "f16"))])
    x, w = (RNG.integers(-3, 4, shape).astype(np.float16) for shape in ((512, 64), (64, 512)))
    module = tilewright.compile(graph, machine="sm_90a", options=Options(cache=False))
    assert b"wgmma.mma_async" in module.artifact.code
    np.testing.assert_array_equal(module(x, w), (x.astype(np.float32) @ w.astype(np.float32)).astype(np.float16))


def test_a_large_product_is_that_of_the_machine_by_default() -> None:
    """Tiles of 128 x 256 on warp groups, a buffer that fills shared memory, blocks that stay; nothing spills."""
    b = GraphBuilder()
    graph = b.finish([linalg.matmul(b.input("x", (4096, 4096), "f16"), b.input("w", (4096, 4096), "f16"))])
    module = tilewright.compile(graph, machine="sm_90a", options=Options(cache=False), device="emulator")
    text, machine = module.artifact.code.decode(), gpu("sm_90a")
    assert "128x256x64 on 8x1 warps with wgmma_m64n256k16_f16_f32, 4 stages" in module.explain(all=True)
    for part in ("cp.async.bulk.tensor.2d.shared", "cp.async.bulk.tensor.2d.global", "stmatrix", "setmaxnreg.inc",
                 "elect.sync", "wgmma.wait_group.sync.aligned 1"):  # fmt: skip
        assert part in text
    trip = text[text.index("wgmma.fence") : text.index("wgmma.commit_group")]
    assert trip.count("wgmma.mma_async") == 4
    assert len(re.findall(r"(?:bfe|shr)\.u32 .*, 4[,;]", trip)) == 2  # addresses become descriptions once per operand
    (kernel,) = module.manifest.kernels
    assert (kernel.grid, kernel.block) == ((machine.multiprocessors, 1, 1), (384, 1, 1))
    assert machine.shared_bytes_per_block - 8192 < kernel.shared_bytes <= machine.shared_bytes_per_block
    resources = ptxas.check(text, "sm_90a")
    assert resources is None or not any(each.spills or each.warnings for each in resources.values())


@pytest.mark.parametrize("dtype", ["f32", "i8"])
def test_other_types_where_both_operands_lie_along_k(dtype: str) -> None:
    sizes, block = (72, 144, 80), (64, 128, 32 if dtype == "f32" else 64)
    m, n, k = sizes
    text = ragged_matmul(sizes, block, f"mma_m16n8{'k8_tf32_f32' if dtype == 'f32' else 'k32_s8_s32'}", dtype, "b")
    if dtype == "i8":
        text = text.replace("xf32>", "xi32>").replace("dense<0.0>", "dense<0>")
    module = parse_module(text)
    module.attributes["tile.target"] = program(sizes, block).attributes["tile.target"]
    run_pipeline(module, "gpu", verify_each=True)
    a, b = (RNG.integers(-3, 4, shape).astype(np.float32 if dtype == "f32" else np.int8) for shape in ((m, k), (k, n)))
    c = np.zeros(m * n, np.float32 if dtype == "f32" else np.int32)
    given, wanted = [a.reshape(-1), b.T.reshape(-1).copy()], (a.astype(np.int64) @ b.astype(np.int64)).reshape(-1)
    run_kernel(module, "k", [*given, found := c.copy()])
    np.testing.assert_array_equal(found, wanted)
    code = generate(module)
    assert "wgmma.mma_async" in code.ptx
    run = emulate(code, [*given, found := c.copy()])
    assert run.diagnostics == []
    np.testing.assert_array_equal(found, wanted)
    ((_, counts),) = run.counts
    assert counts.total("shared", "conflicts") == 0


def read_by_threads(
    sizes: Sizes, block: Sizes, transposed: str = "", disable: Sequence[str] = ()
) -> tuple[ModuleOp, list[Any], Any]:
    """A product of f32 read as tf32, arguments and result; both factors along k is `transposed` "b"."""
    text = ragged_matmul(sizes, block, "mma_m16n8k8_tf32_f32", "f32", transposed)
    module = parse_module(text)
    module.attributes["tile.target"] = program(sizes, block).attributes["tile.target"]
    run_pipeline(module, "gpu", disable, verify_each=True)
    (m, n, k), arrays = sizes, [RNG.integers(-3, 4, size).astype(np.float32) for size in (sizes[::2], sizes[:0:-1])]
    given = stored_as(transposed, [each.reshape(-1) for each in arrays], (m, n, k))
    return module, [*given, np.full(m * n, np.nan, np.float32)], (arrays[0] @ arrays[1]).reshape(-1)


@pytest.mark.covering(1)
@pytest.mark.parametrize("transposed", ["", "ab"])
@pytest.mark.parametrize(
    ("sizes", "block"),
    [
        ((128, 128, 64), (64, 128, 32)),
        ((136, 136, 72), (128, 256, 32)),
        ((8, 100, 20), (64, 64, 16)),
        *([((72, 136, 68), (256, 128, 32)), ((64, 64, 24), (64, 64, 8))] if FULL else []),
    ],
    ids=str,
)  # fmt: skip
def test_threads_read_fragments_of_what_does_not_lie_along_k(sizes: Sizes, block: Sizes, transposed: str) -> None:
    """Without bank conflicts; ptxas serialises no products, although fragments change while some are under way."""
    if transposed and block[0] > block[1]:
        block = (block[1], block[0], block[2])
    module, arguments, wanted = read_by_threads(sizes, block, transposed)
    run_kernel(module, "k", arguments, order="random", seed=1)
    np.testing.assert_array_equal(arguments[2], wanted)
    code = generate(module)
    resources = ptxas.check(code.ptx, "sm_90a")
    assert resources is None or (resources["k"].spills, resources["k"].warnings) == (0, ())
    assert re.search(r"wgmma\.mma_async\S+ \{[^}]*\}, \{", code.ptx)  # a from registers
    arguments[2][:] = np.nan
    run = emulate(code, arguments)
    assert run.diagnostics == []
    np.testing.assert_array_equal(arguments[2], wanted)
    ((_, counts),) = run.counts
    assert counts.total("shared", "conflicts") == 0


@pytest.mark.parametrize("without", some(STEPS, 2))
def test_steps_that_fragments_need_not(without: str) -> None:
    module, arguments, wanted = read_by_threads((136, 72, 72), (64, 128, 32), disable=(without,))
    assert emulate(generate(module), arguments).diagnostics == []
    np.testing.assert_array_equal(arguments[2], wanted)


def test_neither_operand_along_k_stays_with_single_warps() -> None:
    module, arguments, wanted = read_by_threads((128, 128, 64), (64, 128, 32), "a")
    code = generate(module)
    assert "wgmma" not in code.ptx
    assert emulate(code, arguments).diagnostics == []
    np.testing.assert_array_equal(arguments[2], wanted)


@pytest.mark.parametrize("transposed", [False, True])
def test_batches_are_a_dimension_of_boxes(transposed: bool) -> None:
    """Ragged ones too: a box does not reach into the next batch."""

    def boxes(ranking: Ranking, node: str) -> Candidate:
        return next(each for each in ranking.candidates if each.warpgroup)

    b = GraphBuilder()
    stored = (2, 72, 136) if transposed else (2, 136, 72)
    graph = b.finish([linalg.matmul(b.input("x", (2, 136, 136), "f16"), b.input("w", stored, "f16"),
                                    transpose_b=transposed)])  # fmt: skip
    artifact = build(graph, resolve("sm_90a"), 1, Options(cache=False), choose=ChooseProduct(tile=boxes))
    module = DeviceModule(artifact, "emulator")
    assert b"cp.async.bulk.tensor.3d.shared" in module.artifact.code
    assert b"cp.async.bulk.tensor.3d.global" in module.artifact.code
    x, w = (RNG.integers(-2, 3, shape).astype(np.float16) for shape in ((2, 136, 136), stored))
    right = w.astype(np.float32).swapaxes(1, 2) if transposed else w.astype(np.float32)
    np.testing.assert_array_equal(module(x, w), (x.astype(np.float32) @ right).astype(np.float16))


@pytest.mark.parametrize("epilogue", ["bias", "residual"])
def test_epilogues_stay_where_products_lie(epilogue: str) -> None:
    """What an epilogue reads takes no memory beside the circular buffer; ptxas serialises no products."""
    b = GraphBuilder()
    x, w = b.input("x", (256, 64), "f16"), b.input("w", (64, 512), "f16")
    c = b.input("c", (512,) if epilogue == "bias" else (256, 512), "f16")
    graph = b.finish([elementwise.binary(linalg.matmul(x, w), c, "add")])
    module = tilewright.compile(graph, machine="sm_90a", options=Options(cache=False), device="emulator")
    text = module.artifact.code.decode()
    resources = ptxas.check(text, "sm_90a")
    assert resources is None or not any(each.spills or each.warnings for each in resources.values())
    (kernel,) = module.manifest.kernels
    assert kernel.shared_bytes <= gpu("sm_90a").shared_bytes_per_block
    arrays = [RNG.integers(-3, 4, tuple(t.shape)).astype(np.float16) for t in graph.inputs]  # type: ignore[arg-type]
    found = module(*arrays)  # raises for diagnostics
    wide = [each.astype(np.float32) for each in arrays]
    np.testing.assert_array_equal(found, (wide[0] @ wide[1] + wide[2]).astype(np.float16))


# Planted errors -------------------------------------------------------------------------------------------------------

Plant = Callable[[ModuleOp], None]


def at(kind: type[Operation], which: int, change: Callable[[Any], None]) -> Plant:
    return lambda module: change([each for each in module.walk() if isinstance(each, kind)][which])


def _drop(op: Operation) -> None:
    if op.results:
        replace_by_values(op, op.operands)
    else:
        erase(op)


def _other_phase(op: MbarrierWaitOp) -> None:
    one = arith.ConstantOp(IntegerAttr(1, IndexType()))
    other = arith.XOrIOp(op.parity, one.result)
    insert_before(op, one, other)
    op.operands[2] = other.result


def _fewer_bytes(op: MbarrierArriveOp) -> None:
    assert op.bytes is not None
    op.bytes = IntegerAttr(op.bytes.value.data - 16, 64)


def _one_more(op: MbarrierInitOp) -> None:
    op.arrivals = IntegerAttr(op.arrivals.value.data + 1, 64)


def _leaves_one(op: WarpgroupWaitOp) -> None:
    op.pending = IntegerAttr(op.pending.value.data + 1, 64)


UNWRITTEN, OVERRUN = "nothing has written|under way", "race|all arrivals|under way"
# What is planted, and what the interpreter and the emulator say; "" where they do not see it.
PLANTED: dict[str, tuple[Plant, str, str]] = {
    "no wait for the boxes": (at(MbarrierWaitOp, 0, _drop), UNWRITTEN, "uninitialised|early-read"),
    "a wait for the phase before": (at(MbarrierWaitOp, 0, _other_phase), UNWRITTEN,
                                    "uninitialised|early-read"),
    "no wait for a free slot": (at(MbarrierWaitOp, -1, _drop), OVERRUN, "mbarrier|race|overwritten"),
    "a wait for the wrong turn": (at(MbarrierWaitOp, -1, _other_phase), "everybody waits", "deadlock"),
    "no release": (at(MbarrierArriveOp, 0, _drop), "everybody waits", "deadlock"),
    "too few bytes": (at(MbarrierArriveOp, -1, _fewer_bytes), "everybody waits", "deadlock"),
    "no copy": (at(TensorLoadOp, -1, _drop), "everybody waits", "deadlock"),
    "one arrival too many": (at(MbarrierInitOp, -1, _one_more), "everybody waits", "deadlock"),
    "no mbarrier": (at(MbarrierInitOp, -1, _drop), "no mbarrier", "mbarrier"),
    "no barrier behind the making": (at(BarrierOp, 0, _drop), "race|no mbarrier", "race|mbarrier"),
    "no fence behind the making": (at(FenceOp, 0, _drop), "missing fence", ""),  # in one block hardware needs none
    "no commit": (at(WarpgroupCommitOp, 0, _drop), "under way", "overwritten|race|early"),
    "no wait for the products": (at(WarpgroupWaitOp, 0, _drop), "under way", "overwritten|race|early"),
    "a wait that leaves a product": (at(WarpgroupWaitOp, 0, _leaves_one), "under way|race", "overwritten|race|early"),
    "no barrier before what others staged": (at(BarrierOp, -1, _drop), "race", "race"),
}  # fmt: skip


def check_planted(module: ModuleOp, sizes: Sizes, planted: tuple[Plant, str, str]) -> None:
    """Plant an error; it shows in the interpreter and in the emulator as patterns say, in the latter perhaps not."""
    plant, interpreted, seen = planted
    plant(module)
    arguments, _ = operands(sizes)
    with pytest.raises(InvalidProgram) as caught:
        run_kernel(module, "k", arguments)
    assert re.search(interpreted, caught.value.message), caught.value.message
    arguments, _ = operands(sizes)
    diagnostics = emulate(generate(module), arguments).diagnostics
    assert bool(diagnostics) == bool(seen)
    assert not seen or re.search(seen, str(diagnostics[0])), str(diagnostics[0])


@cache
def right() -> ModuleOp:
    """The program in which errors are planted."""
    return distributed((128, 64, 320), (64, 64, 32))


@pytest.mark.emulator_only
@pytest.mark.parametrize("name", PLANTED)
def test_planted_errors_are_found(name: str) -> None:
    check_planted(right().clone(), (128, 64, 320), PLANTED[name])


@pytest.mark.emulator_only
@pytest.mark.parametrize(
    ("plant", "seen"),
    [(at(WarpBarrierOp, 0, _drop), "race"), (at(WarpgroupWaitOp, 1, _leaves_one), "overwritten")],
    ids=["no barrier before a slot is released", "a wait that leaves a product of the fragments read next"],
)
def test_errors_planted_where_threads_read_fragments(plant: Plant, seen: str) -> None:
    """Interpreted lanes go in step, and hold fragments as values: only the emulator sees these."""
    module, arguments, _ = read_by_threads((128, 128, 320), (64, 128, 32))
    plant(module)
    diagnostics = emulate(generate(module), arguments).diagnostics
    assert re.search(seen, str(diagnostics[0])), str(diagnostics[0])


@pytest.mark.emulator_only
def test_products_without_a_fence_are_refused() -> None:
    module = distributed((64, 64, 64), (64, 64, 32))
    at(WarpgroupFenceOp, 0, _drop)(module)
    with pytest.raises(InvalidProgram, match="come from a fence or from another product"):
        verify(module)
    arguments, _ = operands((64, 64, 64))
    diagnostics = emulate(generate(module), arguments).diagnostics
    assert "missing-fence" in str(diagnostics[0])
