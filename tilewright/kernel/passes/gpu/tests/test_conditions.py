"""Kernels that break one condition of a pass, and no other, stay as they are; without the break they do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp

from tilewright.kernel import circular_buffer
from tilewright.kernel.bulk_stores import BulkStoreOp
from tilewright.kernel.dialect import FuncOp, LoadOp, StageOp, operations
from tilewright.kernel.interpreter import run_kernel
from tilewright.kernel.passes.gpu.distribution.tests import programs
from tilewright.kernel.passes.hopper.persistent import PersistentPass
from tilewright.kernel.passes.table import run_pass, run_pipeline
from tilewright.kernel.text import parse_module

RNG = np.random.default_rng(0)
SIZES = (64, 64, 128)
MACHINE = '"tile.target" = {units = "cp_async ldmatrix mbarrier mma tma wgmma", shared_bytes = 232448 : i64}'
Change = Callable[[str], str]

ENGINE = f"""\
builtin.module attributes {{{MACHINE}}} {{
tile.func @k(%a: memref<49152xf16>, %b: memref<16384xf16>, %c: memref<49152xf16>) grid [6] {{
  %p = tile.program_id 0
  %bm = arith.constant 64 : index
  %low = arith.constant 0 : index
  %bk = arith.constant 32 : index
  %depth = arith.constant 128 : index
  %width = arith.constant 128 : index
  %i = arith.muli %p, %bm : index
  %rows = arith.muli %i, %depth : index
  %z = arith.constant dense<0.0> : tensor<64x128xf32>
  %r = scf.for %k = %low to %depth step %bk iter_args(%acc = %z) -> (tensor<64x128xf32>) {{
    %ao = arith.addi %rows, %k : index
    %bo = arith.muli %k, %width : index
    %x = tile.load %a[%ao] strides [128, 1] align 16 : memref<49152xf16> -> tensor<64x32xf16>
    %y = tile.load %b[%bo] strides [128, 1] align 16 : memref<16384xf16> -> tensor<32x128xf16>
    %d = tile.dot "mma_m16n8k16_f16_f32" %x, %y, %acc unsigned "" : tensor<64x32xf16>, tensor<32x128xf16>, \
tensor<64x128xf32>
    scf.yield %d : tensor<64x128xf32>
  }}
  %h = tile.cast %r : tensor<64x128xf32> -> tensor<64x128xf16>
  %co = arith.muli %i, %width : index
  tile.store %h, %c[%co] strides [128, 1] align 16 : tensor<64x128xf16>, memref<49152xf16>
  tile.return
}}
}}
"""


def changed(text: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def written(text: str) -> str:
    """Every trip writes the slice of a that the next one reads."""
    view = text[text.index("%a: ") + 4 :].partition(",")[0]
    store = f"""\
    %gone = arith.subi %depth, %k : index
    %left = arith.subi %gone, %bk : index
    %next = arith.addi %ao, %bk : index
    %one = arith.constant dense<1.0> : tensor<64x32xf16>
    tile.store %one, %a[%next] bounds(%bm, %left) strides [128, 1] align 16 : tensor<64x32xf16>, {view}
"""
    return changed(text, ("    scf.yield", store + "    scf.yield"))


def used_twice(text: str) -> str:
    """A trip needs the tile of a for something else, too."""
    use = "    %also = tile.cast %x : tensor<64x32xf16> -> tensor<64x32xf32>\n"
    return changed(text, ("    scf.yield", use + "    scf.yield"))


def masked(text: str) -> str:
    mask = "    %on = arith.constant dense<true> : tensor<64x32xi1>\n    %x = tile.load"
    return changed(text, ("    %x = tile.load", mask), ("%a[%ao] ", "%a[%ao] mask %on : tensor<64x32xi1> "))


def carried(text: str) -> str:
    """Where a trip reads, the trip before decides."""
    tile = text[text.index("-> (") + 4 :].partition(")")[0]
    return changed(
        text, ("%r = scf.for", "%r, %end = scf.for"), ("iter_args(%acc = %z)", "iter_args(%acc = %z, %at = %low)"),
        (f"-> ({tile})", f"-> ({tile}, index)"), ("%ao = arith.addi %rows, %k", "%ao = arith.addi %rows, %at"),
        (f"    scf.yield %d : {tile}", f"    %on = arith.addi %at, %bk : index\n    scf.yield %d, %on : {tile}, index"),
    )  # fmt: skip


def narrow(text: str) -> str:
    """Nobody knows that rows of a begin at more than 2 bytes."""
    return changed(text, ("%a[%ao] strides [128, 1] align 16", "%a[%ao] strides [128, 1] align 2"))


def ended_by_the_block(text: str) -> str:
    """Blocks have different numbers of trips, the first has none."""
    high = "  %high = arith.muli %p, %bk : index\n"
    return changed(text, ("  %r = scf.for", high + "  %r = scf.for"), ("%low to %depth", "%low to %high"))


def touched_again(text: str) -> str:
    """Another store to the same memory."""
    store = text[text.index("  tile.store %h") :].partition("\n")[0] + "\n"
    return changed(text, (store, store + store))


def found(module: ModuleOp, kind: type, view: str = "") -> int:
    """Operations of a kind, on a view if one is named."""
    (kernel,) = [op for op in module.body.ops if isinstance(op, FuncOp)]
    ops = [op for op in operations(kernel.body) if isinstance(op, kind)]
    return sum(not view or any(operand.name_hint == view for operand in op.operands) for op in ops)


def before_the_loop(module: ModuleOp) -> list[str | None]:
    """Views that are loaded from before the loop."""
    (kernel,) = [op for op in module.body.ops if isinstance(op, FuncOp)]
    (loop,) = [op for op in kernel.body.block.ops if isinstance(op, scf.ForOp)]
    return [op.view.name_hint for op in kernel.body.block.ops if isinstance(op, LoadOp) and op.is_before_in_block(loop)]


def after(text: str, passes: Sequence[str]) -> ModuleOp:
    module = parse_module(text)
    for name in passes:
        run_pass(module, name)
    return module


PRODUCT = programs.matmul(SIZES, (64, 64, 32))


@pytest.mark.parametrize("change", [written, used_twice, masked, carried, narrow], ids=lambda each: each.__name__)
def test_what_is_not_copied_ahead(change: Change) -> None:
    passes = ("assign-layouts", "pipeline-loads")
    assert found(after(PRODUCT, passes), StageOp, "a") == 3  # two before the loop
    module = after(change(PRODUCT), passes)
    assert (found(module, StageOp, "a"), found(module, StageOp, "b")) == (0, 3)


@pytest.mark.parametrize("change", [written, used_twice, carried], ids=lambda each: each.__name__)
def test_what_is_not_read_ahead_into_registers(change: Change) -> None:
    passes = ("assign-layouts", "pipeline-registers")
    assert before_the_loop(after(PRODUCT, passes)) == ["a", "b"]
    assert before_the_loop(after(change(PRODUCT), passes)) == ["b"]


@pytest.mark.parametrize("disable", [(), ("pipeline-loads",)], ids=["copies", "registers"])
def test_a_slice_that_the_trip_before_writes_is_read_as_written(disable: tuple[str, ...]) -> None:
    text = written(PRODUCT)
    a = RNG.integers(-3, 4, SIZES[0] * SIZES[2]).astype(np.float16)
    b = RNG.integers(-3, 4, SIZES[2] * SIZES[1]).astype(np.float16)
    module = parse_module(text)
    run_pipeline(module, "gpu", disable, verify_each=True)
    result = np.zeros(SIZES[0] * SIZES[1], np.float32)
    run_kernel(module, "k", [a.copy(), b.copy(), result], races=True)
    seen = a.reshape(64, 128).astype(np.float32)
    seen[:, 32:] = 1
    np.testing.assert_array_equal(result.reshape(64, 64), seen @ b.reshape(128, 64).astype(np.float32))


@pytest.mark.parametrize("change", [written, used_twice, masked, carried], ids=lambda each: each.__name__)
def test_what_no_box_is_copied_for(change: Change) -> None:
    assert found(after(ENGINE, ["tensor-copies"]), circular_buffer.CircularOp) == 1
    assert found(after(change(ENGINE), ["tensor-copies"]), circular_buffer.CircularOp) == 0


def test_what_does_not_leave_as_a_box() -> None:
    passes = ("tensor-copies", "tensor-stores")
    assert found(after(ENGINE, passes), BulkStoreOp) == 1
    assert found(after(touched_again(ENGINE), passes), BulkStoreOp) == 0


def test_blocks_with_different_numbers_of_trips_do_not_stay() -> None:
    """Uses of a circular buffer could not be numbered on. Bounds say that what trips read is inside of the tensor."""
    ends = (
        "    %x = tile.load",
        "    %left = arith.subi %depth, %k : index\n    %all = arith.constant 384 : index\n"
        "    %under = arith.subi %all, %i : index\n    %x = tile.load",
    )
    bounds = (("%a[%ao] ", "%a[%ao] bounds(%under, %left) "), ("%b[%bo] ", "%b[%bo] bounds(%left, %width) "))
    passes = ("tensor-copies", "persistent{blocks=2}")
    (kernel,) = [op for op in after(changed(ENGINE, ends, *bounds), passes).body.ops if isinstance(op, FuncOp)]
    assert kernel.extents == (2,)
    module = after(ended_by_the_block(changed(ENGINE, ends, *bounds)), passes[:1])
    assert found(module, circular_buffer.CircularOp) == 1
    PersistentPass(blocks=2).apply(Context(), module)
    (kernel,) = [op for op in module.body.ops if isinstance(op, FuncOp)]
    assert kernel.extents == (6,)


def test_a_loop_that_may_have_no_trip_keeps_its_updates() -> None:
    """Such a block reads and writes nothing of c; another one may do so meanwhile."""
    view, tile = "memref<4096xf32>", "tensor<64x64xf32>"
    naive = changed(
        PRODUCT, (f"  %r = scf.for %k = %low to %depth step %bk iter_args(%acc = %z) -> ({tile}) {{",
                  "  %in = arith.muli %i, %width : index\n  %co = arith.addi %in, %j : index\n"
                  "  %r = scf.for %k = %low to %depth step %bk {"),
        ("    %d = ", f"    %acc = tile.load %c[%co] strides [64, 1] align 16 : {view} -> {tile}\n    %d = "),
        (f"    scf.yield %d : {tile}\n", f"    tile.store %d, %c[%co] strides [64, 1] align 16 : {tile}, {view}\n"),
        ("  }\n  %in = arith.muli %i, %width : index\n  %co = arith.addi %in, %j : index\n", "  }\n"),
        (f"  tile.store %r, %c[%co] strides [64, 1] align 16 : {tile}, {view}\n", ""),
    )  # fmt: skip
    for text, inside in ((naive, 0), (ended_by_the_block(naive), 1)):
        module = after(text.replace("%r = scf.for", "scf.for"), ["hoist-accumulators"])
        (kernel,) = [op for op in module.body.ops if isinstance(op, FuncOp)]
        c = kernel.body.block.args[2]
        loads = [op for op in operations(kernel.body) if isinstance(op, LoadOp) and op.view is c]
        assert [isinstance(op.parent_op(), scf.ForOp) for op in loads] == [bool(inside)]


@pytest.mark.parametrize("row", [64, 65, 66])
def test_results_in_rows_at_odd_distances(row: int) -> None:
    """The alignment of a store is of its first element: of the others, the distance of rows says more."""
    text = programs.matmul((128, 64, 64), (128, 64, 64), "wgmma_m64n64k16_f16_f32")
    text = changed(text, ("tile.store %r, %c[%co] strides [64, 1]", f"tile.store %r, %c[%co] strides [{row}, 1]"))
    text = text.replace("memref<8192xf32>", "memref<9000xf32>")
    module = parse_module(f"builtin.module attributes {{{MACHINE}}} {{{text}}}")
    for name in ("tensor-copies", "assign-layouts"):
        run_pass(module, name)
    a, b = (RNG.integers(-3, 4, size).astype(np.float16) for size in (128 * 64, 64 * 64))
    found = np.zeros(9000, np.float32)
    run_kernel(module, "k", [a, b, found])
    wanted = a.reshape(128, 64).astype(np.float32) @ b.reshape(64, 64).astype(np.float32)
    np.testing.assert_array_equal(np.lib.stride_tricks.as_strided(found, (128, 64), (4 * row, 4)), wanted)
