"""Passes on kernels of blocks: they compute what they did, need the barriers that they have, and leave no others."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp

from tilewright.errors import InvalidArgument, InvalidProgram
from tilewright.kernel import simt
from tilewright.kernel.bulk_stores import BulkStoreOp
from tilewright.kernel.dialect import FuncOp, LoadOp, StoreOp, operations, shape, written_view
from tilewright.kernel.facts import facts_of
from tilewright.kernel.hopper import simt_async
from tilewright.kernel.interpreter import run_kernel, run_main
from tilewright.kernel.passes.gpu.barriers import BarriersPass
from tilewright.kernel.passes.gpu.distribution.tests import programs
from tilewright.kernel.passes.gpu.swizzle_blocks import ordered
from tilewright.kernel.passes.table import run_pass, run_pipeline
from tilewright.kernel.simt_interpreter import Order
from tilewright.kernel.tests import kernels
from tilewright.kernel.text import parse_module, print_module

RNG = np.random.default_rng(0)
Array = np.ndarray
ROUTES = {"copies": (), "registers": ("pipeline-loads",), "one buffer": ("pipeline-loads", "pipeline-registers")}
ORDERS: tuple[Order, ...] = ("together", "descending", "random")


def compiled(text: str, disable: Sequence[str] = ()) -> ModuleOp:
    module = parse_module(text)
    run_pipeline(module, "gpu", disable, verify_each=True)
    return module


def kernel_of(module: ModuleOp, name: str = "k") -> FuncOp:
    return next(op for op in module.body.ops if isinstance(op, FuncOp) and op.sym_name.data == name)


def in_loops(module: ModuleOp, kind: type) -> int:
    """Operations of a kind in loops; those of loops in loops count once."""
    return sum(isinstance(op.parent_op(), scf.ForOp) for op in operations(kernel_of(module).body)
               if isinstance(op, kind))  # fmt: skip


def count(module: ModuleOp, kind: type) -> int:
    return sum(isinstance(op, kind) for op in operations(kernel_of(module).body))


def shared_bytes(module: ModuleOp) -> int:
    end = 0
    for op in operations(kernel_of(module).body):
        if isinstance(op, simt.SharedOp):
            end = end + op.bytes if op.offset is None else max(end, op.offset.value.data + op.bytes)
    return end


def product_operands(m: int, n: int, k: int) -> list[Array]:
    """Small whole numbers: sums are exact in any order."""
    a, b = (RNG.integers(-3, 4, size).astype(np.float16) for size in (m * k, k * n))
    return [a, b, np.zeros(m * n, np.float32)]


def check(module: ModuleOp, text: str, arrays: Sequence[Array], orders: Sequence[Order] = ORDERS) -> None:
    wanted = [array.copy() for array in arrays]
    run_kernel(parse_module(text), "k", wanted)
    for order in orders:
        found = [array.copy() for array in arrays]
        run_kernel(module, "k", found, races=True, order=order)
        for one, other in zip(wanted, found, strict=True):
            np.testing.assert_array_equal(other, one)


def check_that_every_barrier_is_needed(module: ModuleOp, arrays: Sequence[Array], name: str = "k") -> None:
    """Leaving out any one of them is a race in some order of warps."""
    for number, op in enumerate(operations(kernel_of(module, name).body)):
        if not isinstance(op, simt.BarrierOp):
            continue
        mutant = module.clone()
        barrier = operations(kernel_of(mutant, name).body)[number]
        assert barrier.parent is not None
        barrier.parent.erase_op(barrier)
        with pytest.raises(InvalidProgram, match=r"race|under way"):
            run_in_every_order(mutant, name, arrays)


def run_in_every_order(module: ModuleOp, name: str, arrays: Sequence[Array]) -> None:
    for order in ORDERS:
        run_kernel(module, name, [array.copy() for array in arrays], races=True, order=order)


@pytest.mark.parametrize(("route", "in_a_trip"), [("copies", 1), ("registers", 2), ("one buffer", 2)])
def test_barriers_of_a_product(route: str, in_a_trip: int) -> None:
    text, arrays = programs.matmul((64, 64, 128), (64, 64, 32)), product_operands(64, 64, 128)
    module = compiled(text, ROUTES[route])
    assert in_loops(module, simt.BarrierOp) == in_a_trip
    check(module, text, arrays)
    check_that_every_barrier_is_needed(module, arrays)
    assert count(module, simt.BarrierOp) < count(compiled(text, (*ROUTES[route], "barriers")), simt.BarrierOp)


@pytest.mark.parametrize("name", ["staged_gemm", "transpose", "row_sums", "histogram", "fragment_gemm"])
def test_hand_written_kernels_keep_the_barriers_that_they_need(name: str) -> None:
    sizes = {"staged_gemm": (64, 64, 128), "transpose": (20, 20), "row_sums": (2, 100), "histogram": (200, 70),
             "fragment_gemm": (32, 32, 48)}  # fmt: skip
    module = getattr(kernels, name)(*sizes[name])
    before = sum(isinstance(op, simt.BarrierOp) for op in operations(kernel_of(module, name).body))
    BarriersPass().apply(Context(), module)
    after = sum(isinstance(op, simt.BarrierOp) for op in operations(kernel_of(module, name).body))
    assert after == before


def test_shared_memory_of_the_result_lies_over_that_of_the_loop() -> None:
    text, arrays = programs.matmul((64, 64, 128), (64, 64, 32)), product_operands(64, 64, 128)
    packed, apart = compiled(text), compiled(text, ("allocate-shared",))
    slices, result = 3 * 2 * 64 * 32 * 2, 64 * 64 * 4
    assert shared_bytes(packed) == max(slices, result)
    assert shared_bytes(apart) == slices + result
    check(packed, text, arrays)


def test_packing_of_the_published_example() -> None:
    """Two buffers of 128 floats in use together and one of 32 behind them: 1024 bytes, the third lies at the start."""
    names = {"s": 128, "t": 128, "u": 32}
    views = {name: f'memref<{size}xf32, "shared">' for name, size in names.items()}
    lines = [f"  %{name} = simt.shared align 16 : {view}" for name, view in views.items()]
    for together in (["s", "t"], ["u"]):
        lines += [f"  tile.store %z, %{name}[%n] strides [] : f32, {views[name]}" for name in together]
        lines += ["  simt.barrier"]
        lines += [f"  %{name}v = tile.load %{name}[%n] strides [] : {views[name]} -> f32" for name in together]
    head = "  %n = simt.thread_id 0\n  %z = arith.constant 0.0 : f32\n"
    body = head + "\n".join(lines) + "\n  tile.return\n"
    module = parse_module(f"tile.func @k() grid [1] threads [32, 1, 1] warp 32 {{\n{body}}}")
    run_pass(module, "allocate-shared{least=16}")
    places = [op.offset.value.data for op in operations(kernel_of(module).body)
              if isinstance(op, simt.SharedOp) and op.offset is not None]  # fmt: skip
    assert places == [0, 512, 0]
    assert shared_bytes(module) == 1024
    run_kernel(module, "k", [], races=True, order="descending")


def test_reductions_in_turn_share_no_small_buffers() -> None:
    module = compiled(programs.softmax(2, 1, 512))
    assert all(op.offset is None for op in operations(kernel_of(module).body) if isinstance(op, simt.SharedOp))


def test_one_slice_is_loaded_while_another_is_multiplied() -> None:
    """E1 of the paper's route: 128x128x64 on 8 warps, over 3 slices: a thread has 8 loads, 8 stores, 2 barriers."""
    sizes = (128, 128, 192)
    text = programs.matmul(sizes, (128, 128, 64)).replace(" {", " attributes {warps = array<i64: 2, 4>} {", 1)
    module = compiled(text, ROUTES["registers"])
    assert kernel_of(module).block == (256, 1, 1)
    (loop,) = [op for op in operations(kernel_of(module).body) if isinstance(op, scf.ForOp)]
    kinds = [type(op) for op in loop.body.block.ops]
    loads = [op for op in loop.body.block.ops if isinstance(op, LoadOp) and not simt.is_shared(op.view)]
    assert [prod(shape(op.result)) for op in loads] == [8] * 8  # 16 bytes each: 4 of a, 4 of b
    assert kinds.count(simt.BarrierOp) == 2
    assert sum(isinstance(op, StoreOp) and simt.is_shared(op.view) for op in loop.body.block.ops) == 8
    first_use = min(kinds.index(simt.BarrierOp), kinds.index(simt.MmaOp))
    assert all(list(loop.body.block.ops).index(load) < first_use for load in loads)
    assert count(module, simt.AsyncCopyOp) == 0
    check(module, text, product_operands(*sizes), ("descending",))


@pytest.mark.covering(1)
@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("trips", [2, 3, 5])
def test_fragments_of_the_next_step_are_read_ahead(stages: int, trips: int) -> None:
    """Of the first step before the loop and at the end of a trip: products never wait for the reads right before."""
    text, arrays = programs.matmul((64, 64, 32 * trips), (64, 64, 32)), product_operands(64, 64, 32 * trips)
    module = parse_module(text)
    run_pipeline(module, "gpu", verify_each=True, options={"pipeline-loads": {"stages": stages}})
    loops = [op for op in operations(kernel_of(module).body) if isinstance(op, scf.ForOp)]
    kinds = [type(op) for op in loops[0].body.block.ops]
    last_product = len(kinds) - 1 - kinds[::-1].index(simt.MmaOp)
    assert kinds.index(simt.BarrierOp) > last_product
    assert simt.LoadMatrixOp in kinds[kinds.index(simt.BarrierOp) :]
    check(module, text, arrays)
    plain = compiled(text, ("prefetch-fragments",))
    assert count(plain, simt.LoadMatrixOp) < count(module, simt.LoadMatrixOp)


def test_what_is_read_ahead_takes_its_addresses_along() -> None:
    """Products of one trip read the second step of v, whose places are computed behind products with k."""
    text = programs.attention((1, 32, 16), (16, 16), (1, 1), intrinsic="mma_m16n8k8_tf32_f32").replace("f16", "f32")
    module = compiled(text)
    loop = next(op for op in operations(kernel_of(module).body) if isinstance(op, scf.ForOp))
    ops = list(loop.body.block.ops)
    reads = [number for number, op in enumerate(ops) if isinstance(op, LoadOp) and simt.is_shared(op.view)]
    assert reads
    assert reads[0] < [type(op) for op in ops].index(simt.MmaOp)


def naive(m: int, n: int, k: int) -> str:
    """``c += a b`` that reads and writes c in every trip."""
    text = programs.matmul((m, n, k), (32, 32, 16))
    start, end = text.index("  %z = "), text.index("  %r = scf.for")
    text = text[:start] + "  %in = arith.muli %i, %width : index\n  %co = arith.addi %in, %j : index\n" + text[end:]
    view, tile = f"memref<{m * n}xf32>", "tensor<32x32xf32>"
    text = text.replace(f"  %r = scf.for %k = %low to %depth step %bk iter_args(%acc = %z) -> ({tile}) {{",
                        "  scf.for %k = %low to %depth step %bk {")  # fmt: skip
    loaded = f"    %acc = tile.load %c[%co] strides [{n}, 1] align 16 : {view} -> {tile}\n    %d = "
    stored = f"    tile.store %d, %c[%co] strides [{n}, 1] align 16 : {tile}, {view}\n  }}\n  tile.return\n}}\n"
    return text.replace("    %d = ", loaded)[: text.replace("    %d = ", loaded).index("    scf.yield")] + stored


def test_an_accumulator_leaves_the_loop() -> None:
    text, arrays = naive(64, 64, 64), product_operands(64, 64, 64)
    hoisted, kept = compiled(text), compiled(text, ("hoist-accumulators",))
    for module, inside in ((hoisted, 0), (kept, 2)):
        loops = [op for op in operations(kernel_of(module).body) if isinstance(op, scf.ForOp)]
        c = kernel_of(module).body.block.args[2]
        accesses = [use.operation for use in c.uses if use.operation.parent_op() in loops]
        assert len({type(op) for op in accesses}) == inside
        check(module, text, arrays, ("together",))


@pytest.mark.parametrize(("rows", "columns", "group"), [(12, 5, 8), (1, 7, 8), (9, 9, 4), (3, 2, 8), (16, 16, 8)])
def test_blocks_in_another_order_are_all_blocks(rows: int, columns: int, group: int) -> None:
    found = [ordered(number, rows, columns, group) for number in range(rows * columns)]
    assert sorted(found) == [(row, column) for row in range(rows) for column in range(columns)]


def test_blocks_in_another_order_compute_the_product() -> None:
    text, arrays = programs.matmul((96, 64, 32), (32, 16, 16)), product_operands(96, 64, 32)
    module = parse_module(text)
    run_pipeline(module, "gpu", verify_each=True, options={"swizzle-blocks": {"group": 2}})
    check(module, text, arrays, ("together",))


@pytest.mark.parametrize("memory", ["padded", "plain"])
@pytest.mark.parametrize("matrix_loads", [True, False])
def test_tiles_without_swizzle(memory: str, matrix_loads: bool) -> None:
    text, arrays = programs.matmul((64, 64, 64), (64, 64, 32)), product_operands(64, 64, 64)
    module = parse_module(text)
    options: dict[str, dict[str, Any]]
    options = {"distribute": {"memory": memory, "matrix_loads": matrix_loads}, "assign-layouts": {"access_bytes": 4}}
    run_pipeline(module, "gpu", ("pipeline-loads",), verify_each=True, options=options)
    assert (count(module, simt.LoadMatrixOp) > 0) == matrix_loads
    check(module, text, arrays, ("together",))


@pytest.mark.parametrize(("splits", "trips"), [(2, 4), (3, 4), (4, 4), (2, 5)])
def test_blocks_that_share_a_tile_compute_the_product(splits: int, trips: int) -> None:
    """Parts of one length have a loop of constant bounds; a kernel with fewer trips than parts stays whole."""
    m, n, k = 64, 32, 16 * trips
    text, arrays = programs.matmul((m, n, k), (32, 32, 16)), product_operands(m, n, k)
    module = parse_module(text)
    run_pipeline(module, "gpu", verify_each=True, options={"split-k": {"splits": splits}})
    parts, kernel = kernel_of(module, "k_parts"), kernel_of(module)
    assert (parts.extents, kernel.extents) == ((splits, 2, 1), (2, 1))
    wanted = [array.copy() for array in arrays]
    run_kernel(parse_module(text), "k", wanted)
    memory = np.full(splits * m * n, np.nan, np.float32)
    run_kernel(module, "k_parts", [arrays[0], arrays[1], memory], races=True)
    run_kernel(module, "k", [arrays[2], memory], races=True)
    np.testing.assert_array_equal(arrays[2], wanted[2])
    whole = parse_module(text)
    run_pipeline(whole, "gpu", options={"split-k": {"splits": trips + 1}})
    assert [op.sym_name.data for op in whole.body.ops if isinstance(op, FuncOp)] == ["k"]


def test_settings_that_a_pass_does_not_have_are_refused() -> None:
    module = parse_module("tile.func @k() grid [1] { tile.return }")
    with pytest.raises(InvalidArgument, match="pass 'distribute' has no padding=8"):
        run_pass(module, "distribute{padding=8}")
    with pytest.raises(InvalidArgument, match="pass 'barriers' has no x=1"):
        run_pipeline(module, "gpu", options={"barriers": {"x": 1}})
    run_pass(module, "distribute{warps=2 memory=padded matrix_loads=false}")
    assert kernel_of(module).block == (64, 1, 1)


@pytest.mark.parametrize(
    "given",
    [
        "split-k{splits=0}", "split-k{splits=-1}", "swizzle-blocks{group=0}", "persistent{blocks=-1}",
        "pipeline-tensor-copies{stages=0}", "pipeline-loads{stages=0}", "pipeline-loads{memory=foo}",
        "pipeline-loads{schedule=late}", "assign-layouts{warps=0}", "assign-layouts{warps=3}",
        "assign-layouts{lanes=0}", "assign-layouts{access_bytes=3}", "assign-layouts{access_bytes=0}",
        "assign-layouts{access_bytes=32}", "assign-layouts{stage_c=maybe}", "distribute{memory=foo}",
        "distribute{warps=0}", "distribute{lanes=33}", "allocate-shared{least=-1}", "allocate-shared{most=-1}",
    ],
)  # fmt: skip
def test_settings_out_of_range_are_refused_before_a_program_is_looked_at(given: str) -> None:
    """The program has no layouts, of which a pass would complain."""
    name, _, setting = given.rstrip("}").partition("{")
    with pytest.raises(InvalidArgument, match=f"pass '{name}': {setting}\n  = help: "):
        run_pass(parse_module(programs.add(64, 64)), given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("distribute{memory", r"settings \{memory of pass 'distribute'\n  = help: in braces"),
        ("distribute{memory=padded", r"settings \{memory=padded of pass 'distribute'"),
        ("distribute{{memory=padded}}", r"settings \{\{memory=padded\}\} of pass 'distribute'"),
        ("distribute{memory}", "no value for 'memory' of pass 'distribute'"),
        ("distribute{warps=2 warps=4}", "two values for 'warps' of pass 'distribute'"),
        ("distribute}", r"no pass 'distribute\}'\n  = help: did you mean distribute\?"),
        ("pack-shared{least=16}", "pass 'pack-shared' has another name now\n  = help: write allocate-shared"),
        ("split-k{splits=two}", "pass 'split-k' has no splits=two\n  = help: it has splits=1"),
    ],
)
def test_settings_are_written_in_braces(given: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        run_pass(parse_module("tile.func @k() grid [1] { tile.return }"), given)


MACHINE = '"tile.target" = {units = "cp_async ldmatrix mbarrier mma tma wgmma", shared_bytes = 232448 : i64}'


def with_circular_buffer(results: int) -> str:
    """A product and multiples of it, stored as f16 in rows of 2002 bytes, which boxes cannot have."""
    memory, tile, operands = "memref<128128xf16>", "tensor<128x256xf16>", "tensor<128x64xf16>, tensor<64x256xf16>"
    numbers = range(results)
    arguments = ", ".join(["%a: memref<65536xf16>", "%b: memref<131072xf16>", *(f"%c{i}: {memory}" for i in numbers)])
    stores = "".join(
        f"  %f{i} = arith.constant dense<{i + 1}.0> : {tile}\n"
        f"  %h{i} = arith.mulf %h, %f{i} : {tile}\n"
        f"  tile.store %h{i}, %c{i}[%low] strides [1001, 1] align 2 : {tile}, {memory}\n"
        for i in numbers
    )
    return f"""\
builtin.module attributes {{{MACHINE}}} {{
tile.func @k({arguments}) grid [1] {{
  %low = arith.constant 0 : index
  %depth = arith.constant 512 : index
  %step = arith.constant 64 : index
  %width = arith.constant 256 : index
  %z = arith.constant dense<0.0> : tensor<128x256xf32>
  %r = scf.for %i = %low to %depth step %step iter_args(%acc = %z) -> (tensor<128x256xf32>) {{
    %bo = arith.muli %i, %width : index
    %x = tile.load %a[%i] strides [512, 1] align 16 : memref<65536xf16> -> tensor<128x64xf16>
    %y = tile.load %b[%bo] strides [256, 1] align 16 : memref<131072xf16> -> tensor<64x256xf16>
    %d = tile.dot "mma_m16n8k16_f16_f32" %x, %y, %acc unsigned "" : {operands}, tensor<128x256xf32>
    scf.yield %d : tensor<128x256xf32>
  }}
  %h = tile.cast %r : tensor<128x256xf32> -> {tile}
{stores}  tile.return
}}
}}
"""


@pytest.mark.parametrize("results", [1, 2])
def test_every_result_has_shared_memory_of_its_own_beside_a_circular_buffer(results: int) -> None:
    module = parse_module(with_circular_buffer(results))
    run_pipeline(module, "gpu")
    slot, result = (128 + 256) * 64 * 2, 128 * 256 * 2
    assert count(module, simt_async.TensorLoadOp)
    assert 2 * slot + results * result < shared_bytes(module) <= facts_of(module).shared_bytes


def test_a_layout_that_a_kernel_asks_for_has_its_warps_and_lanes() -> None:
    text = """\
tile.func @k(%x: memref<256xf32>) grid [1] attributes {{layout = "{}", warps = array<i64: 4, 1>}} {{
  %o = arith.constant 0 : index
  %a = tile.load %x[%o] strides [64, 1] : memref<256xf32> -> tensor<4x64xf32>
  tile.store %a, %x[%o] strides [64, 1] : tensor<4x64xf32>, memref<256xf32>
  tile.return
}}
"""
    lanes = "(0,2),(0,4),(0,8),(0,16),(0,32)"
    run_pass(parse_module(text.format(f"#linear<r=[(0,1)], l=[{lanes}], w=[(1,0),(2,0)]>")), "assign-layouts")
    for layout in (f"r=[], l=[{lanes}], w=[(0,1),(1,0),(2,0)]", f"r=[(0,1)], l=[{lanes},(1,0)], w=[(2,0),(0,0)]"):
        with pytest.raises(InvalidProgram, match=r"@k: .*tiles in #linear(.|\n)*4 warps of 32 lanes"):
            run_pass(parse_module(text.format(f"#linear<{layout}>")), "assign-layouts")


def test_results_that_leave_as_boxes_are_written() -> None:
    """An argument of a launch that boxes write shares its memory with no other one."""
    module = parse_module((Path(__file__).parents[2] / "hopper/tests/tensor_stores.mlir").read_text())
    run_pass(module, "tensor-copies")
    run_pass(module, "tensor-stores")
    kernel = kernel_of(module, "halves")
    stored = [written_view(op) for op in operations(kernel.body) if isinstance(op, BulkStoreOp)]
    assert stored == [kernel.body.block.args[2]]
    launch = """
tile.main arena 32768 constants 0 {
  %a = tile.buffer "input" 0 : memref<16384xf16>
  %b = tile.buffer "arena" 0 : memref<16384xf16>
  tile.launch @halves(%a, %b, %b) : memref<16384xf16>, memref<16384xf16>, memref<16384xf16>
}
"""
    program = parse_module(print_module(module).rstrip()[:-1] + launch + "}")
    with pytest.raises(InvalidProgram, match="arguments 1 and 2 share memory, which is written"):
        run_main(program, [np.ones(16384, np.float16)], [])
