"""Golden cases 38 to 44 of the tile language, and its example 128 x 64 x 32, as the passes leave them.

| # | as given | here |
| --- | --- | --- |
| 38 | two loads, four stages: six groups before the loop, four may be pending, four slots | one group for all loads of a trip: three and two groups, each of two loads |
| 39 | one trip, three stages: the second copy ahead masked off, one product, all awaited | the same for a trip count that the program decides; one that is known has no loop |
| 40 | 64 of k: one slice read ahead, three in place | the same |
| 41 | a reduction over four warps | `layouts/tests/test_reduction.py` |
| 42 | 32 x 16 x 16: four products | the same |
| 43 | Philox | not here: the language has no random numbers yet |
| 44 | a walk over 4 x 4 blocks in groups of two rows | the same |
"""  # noqa: E501

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from xdsl.dialects import scf
from xdsl.dialects.builtin import MemRefType, ModuleOp

from tilewright.codegen.nvptx.pipeline import generate
from tilewright.codegen.nvptx.target import Target
from tilewright.kernel import dialect as tile
from tilewright.kernel.dialect import operations
from tilewright.kernel.passes.gpu.distribution.layout import layout_of
from tilewright.kernel.passes.gpu.distribution.tests import programs
from tilewright.kernel.passes.gpu.swizzle_blocks import ordered
from tilewright.kernel.passes.table import pipeline, run_pass
from tilewright.kernel.simt import AsyncCopyOp, BarrierOp, LoadMatrixOp, MmaOp
from tilewright.kernel.text import parse_module
from tilewright.reproduce.tests.parts import kernel_of
from tilewright.runtime import emulated

Block = tuple[int, int, int]


def product(sizes: Block, block: Block, warps: tuple[int, int], **types: str) -> str:
    text = programs.matmul(sizes, block, **types)
    return text.replace(" {", f" attributes {{warps = array<i64: {warps[0]}, {warps[1]}>}} {{", 1)


def passed(text: str, stages: int, until: str = "") -> ModuleOp:
    """A program behind a pass, the last one by default."""
    module = parse_module(text)
    module.attributes["tile.target"] = Target("sm_80", ("ptx80",)).attribute()
    for each in pipeline("gpu"):
        run_pass(module, f"{each.name}{{{f'stages={stages}' if each.name == 'pipeline-loads' else ''}}}")
        if each.name == until:
            break
    return module


def inside(module: ModuleOp, kind: Any) -> tuple[int, int]:
    """Operations of a kind before or behind the loop, and in it."""
    found = [op for op in operations(kernel_of(module).body) if isinstance(op, kind)]
    looped = sum(isinstance(op.parent_op(), scf.ForOp) for op in found)
    return len(found) - looped, looped


def run(module: ModuleOp, arrays: list[np.ndarray[Any, Any]]) -> Any:
    """The counts of a run that finds nothing."""
    done = emulated.run_kernel(generate(module), "k", arrays)
    assert done.diagnostics == []
    ((_, counts),) = done.counts
    return counts


def test_golden_38_groups_before_the_loop() -> None:
    """The copies under way are those of the case: six before the loop, four behind the wait."""
    module = passed(product((128, 64, 256), (128, 64, 32), (2, 2)), 4, "pipeline-loads")
    assert inside(module, tile.CommitOp) == (3, 1)
    assert inside(module, tile.StageOp) == (6, 2)
    (wait,) = [op for op in operations(kernel_of(module).body) if isinstance(op, tile.AwaitOp)]
    loads = 2
    assert wait.pending.value.data * loads == 4
    rings = [op.result.type.get_shape()[0] for op in operations(kernel_of(module).body)
             if isinstance(op, tile.StagingOp)]  # fmt: skip
    assert rings == [4 * 128 * 32, 4 * 32 * 64]


def of_own_depth(block: Block, most: int) -> str:
    """Block p of a column of them sums p + 1 slices of k."""
    m, n, k = block
    text = product((m * most, n, k * most), block, (2, 2)).replace("to %depth step", "to %end step")
    return text.replace(
        "  %z = ",
        "  %one = arith.constant 1 : index\n  %turn = arith.addi %p, %one : index\n"
        "  %end = arith.muli %turn, %bk : index\n  %z = ",
        1,
    )


def test_golden_39_a_loop_of_one_trip() -> None:
    """Of the two copies ahead, block 0 makes one, and awaits no other; block 3 makes them, and two in its loop."""
    (m, n, k), most = (64, 32, 32), 4
    module = passed(of_own_depth((m, n, k), most), 3)
    kernel = kernel_of(module)
    assert kernel.extents[0] == most
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, extents).astype(np.float16) for extents in ((m * most, k * most), (k * most, n)))
    c = np.zeros(m * most * n, np.float32)
    counts = run(module, [a.ravel(), b.ravel(), c])
    wanted = [a[m * p : m * (p + 1), : k * (p + 1)] @ b[: k * (p + 1)] for p in range(most)]
    np.testing.assert_array_equal(c.reshape(-1, n), np.concatenate(wanted))
    slices = sum(p + 1 for p in range(most))
    assert counts.bytes["global_load_sectors"] == slices * (m + n) * k * 2
    known = passed(product((m, n, k), (m, n, k), (2, 2)), 3)
    assert not any(isinstance(op, scf.ForOp) for op in operations(kernel_of(known).body))
    assert sum(inside(known, MmaOp)) == sum(inside(passed(product((m, n, 4 * k), (m, n, k), (2, 2)), 3), MmaOp))


def test_golden_40_slices_of_k_read_ahead() -> None:
    """Of 64 of k, fragments of 16 before the loop and at the end of a trip for the next one, three times 16 in place.

    An instruction that reads b brings 32 of k of 8 columns, so that those of two slices are read with the first one.
    """
    module = passed(product((64, 64, 256), (64, 64, 64), (2, 2)), 3)
    (loop,) = [op for op in operations(kernel_of(module).body) if isinstance(op, scf.ForOp)]
    kinds = [type(op) for op in loop.body.block.ops]
    barrier = kinds.index(BarrierOp)
    a, b = 2, 4  # of a warp, which has 32 x 32 of the result
    assert inside(module, LoadMatrixOp) == (a + b, 4 * a + 2 * b)
    assert kinds[barrier:].count(LoadMatrixOp) == a + b
    products = [number for number, kind in enumerate(kinds) if kind is MmaOp]
    assert len(products) == 4 * 2 * 4
    assert products[-1] < barrier
    starts = products[::8]  # of the slices
    reads = [kinds[start:end].count(LoadMatrixOp) for start, end in zip([0, *starts], [*starts, barrier], strict=True)]
    assert reads == [a, a + b, a, 0, 0]  # before the products of the slice before


def test_golden_42_products_of_one_warp() -> None:
    module = passed(product((32, 16, 16), (32, 16, 16), (1, 1)), 3)
    assert kernel_of(module).block == (32, 1, 1)
    assert sum(inside(module, MmaOp)) == 4


def test_golden_44_a_walk_over_blocks() -> None:
    found = [ordered(number, 4, 4, 2) for number in range(16)]
    assert found == [(number // 8 * 2 + number % 8 % 2, number % 8 // 2) for number in range(16)]


def test_example_of_128x64x32() -> None:
    """Four warps, three stages: the counts of the published compiler, but for b: 4 + 4 of 32 x 8 where it has 2 + 2 + 2
    of 16 x 16, the second slice of k with the first one.
    """
    module = passed(product((128, 64, 256), (128, 64, 32), (2, 2)), 3)
    ptx = generate(module).ptx
    counts = {
        name: len(re.findall(pattern, ptx))
        for name, pattern in {
            "copies": r"cp\.async\.cg", "a": r"ldmatrix\S*\.x4\.shared", "b": r"ldmatrix\S*\.x4\.trans",
            "products": r"mma\.sync\.aligned\.m16n8k16", "stores": r"st\.global\.v4\.b32",
        }.items()
    }  # fmt: skip
    assert counts == {"copies": 18, "a": 12, "b": 8, "products": 32, "stores": 16}


@pytest.mark.parametrize(
    ("block", "warps", "stages", "size"),
    [
        ((128, 128, 32), (2, 2), 4, 65536),
        ((128, 256, 32), (2, 4), 3, 73728),
        ((256, 128, 64), (4, 2), 3, 147456),
    ],
)
def test_spec4_10_1_typical_configurations(block: Block, warps: tuple[int, int], stages: int, size: int) -> None:
    """Bytes of the buffers, and what a warp has: 64 x 64 of the result each."""
    m, n, k = block
    module = passed(product((m, n, 4 * k), block, warps), stages, "distribute")
    kernel = kernel_of(module)
    assert kernel.block == (32 * warps[0] * warps[1], 1, 1)
    rings = {op.target for op in operations(kernel.body) if isinstance(op, AsyncCopyOp)}
    assert sum(2 * memory.element_count() for ring in rings if isinstance(memory := ring.type, MemRefType)) == size
    assert inside(module, MmaOp)[1] == (64 // 16) * (64 // 8) * (k // 16)


def multiplied(depth: int, intrinsic: str, dtype: str, result: str, block: Block) -> tuple[np.ndarray[Any, Any], ...]:
    """Random a and b, and their product by the emulator."""
    m, n, _ = block
    rng = np.random.default_rng(depth)
    types = {"f16": np.float16, "f32": np.float32}
    a, b = (rng.standard_normal(extents).astype(types[dtype]) for extents in ((m, depth), (depth, n)))
    c = np.zeros(m * n, types[result])
    text = product((m, n, depth), block, (2, 2), intrinsic=intrinsic, dtype=dtype, result=result)
    run(passed(text, 3), [a.ravel(), b.ravel(), c])
    return a.astype(np.float64), b.astype(np.float64), c.reshape(m, n).astype(np.float64)


@pytest.mark.parametrize("depth", [32, 96, 512])
def test_spec4_11_4_halves_summed_in_f32(depth: int) -> None:
    a, b, c = multiplied(depth, "mma_m16n8k16_f16_f32", "f16", "f32", (32, 32, 32))
    bound = (depth / 16 + 4) * 2**-20 * (np.abs(a) @ np.abs(b))
    assert (np.abs(c - a @ b) <= bound).all()
    assert np.abs(c - (a @ b).astype(np.float16)).max() > bound.min()  # sums in f16 would show


@pytest.mark.parametrize("depth", [32, 96, 512])
def test_spec4_11_4_halves_summed_in_halves(depth: int) -> None:
    a, b, c = multiplied(depth, "mma_m16n8k16_f16_f16", "f16", "f16", (32, 32, 32))
    total, largest = np.zeros(c.shape, np.float16), 0.0
    for start in range(0, depth, 16):
        step = slice(start, start + 16)
        total = (total + a[:, step] @ b[step]).astype(np.float16)
        largest = max(largest, float(np.abs(total).max()))
    assert np.abs(c - total).max() <= depth / 16 * 2**-11 * largest
    assert np.abs(c - a @ b).max() > (depth / 16 + 4) * 2**-20 * (np.abs(a) @ np.abs(b)).min()  # they are not f32


@pytest.mark.parametrize("depth", [32, 512])
def test_spec4_11_4_f32_read_as_tf32(depth: int) -> None:
    """Operands rounded to 10 bits of mantissa, then the bound of halves; 8 of k per instruction."""
    a, b, c = multiplied(depth, "mma_m16n8k8_tf32_f32", "f32", "f32", (32, 32, 16))
    bound = (depth / 8 + 4) * 2**-20 * (np.abs(a) @ np.abs(b))
    exact = [as_tf32(operand) for operand in (a, b)]
    assert (np.abs(c - exact[0] @ exact[1]) <= bound).all()
    assert (np.abs(c - a @ b) > bound).any()
    assert (np.abs(c - a @ b) <= 2 * 2**-11 * (np.abs(a) @ np.abs(b)) + bound).all()


def as_tf32(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """To nearest; f64 has the bits that ties away from zero need."""
    mantissas, exponents = np.frexp(values.astype(np.float64))
    rounded = np.sign(mantissas) * np.floor(np.abs(mantissas) * 2.0**11 + 0.5)
    return np.asarray(np.ldexp(rounded, exponents - 11))


Extents = tuple[int, int]


@pytest.mark.parametrize(
    ("extents", "size", "threads", "bits", "box", "copies"),
    [
        ((32, 32), 2, 128, 128, (32, 32), 1), ((128, 32), 2, 256, 128, (64, 32), 2),
        ((32, 16), 4, 128, 128, (32, 16), 1), ((32, 256), 2, 256, 128, (8, 256), 4),
        ((16, 32), 4, 128, 128, (16, 32), 1), ((128, 16), 4, 256, 128, (64, 16), 2),
        ((64, 64), 2, 128, 128, (16, 64), 4), ((16, 256), 4, 256, 128, (4, 256), 4),
        ((128, 64), 2, 256, 128, (32, 64), 4), ((64, 128), 2, 256, 128, (16, 128), 4),
        ((64, 16), 4, 128, 128, (32, 16), 2), ((256, 4), 4, 128, 128, (128, 4), 2),
        # Too few pieces of 128 bits for all threads: half as wide, one each.
        ((32, 16), 2, 128, 64, (32, 16), 1), ((16, 32), 2, 128, 64, (16, 32), 1),
        # What is no power of two becomes one, with bounds: the fourth row and rows 56 to 63 are left out.
        ((3, 512), 4, 128, 128, (1, 512), 3), ((56, 32), 4, 256, 128, (32, 32), 2),
    ],
)  # fmt: skip
def test_spec4_5_4_rounds_of_copies(
    extents: Extents, size: int, threads: int, bits: int, box: Extents, copies: int
) -> None:
    """What all threads move at once, and how often."""
    text = copied(extents, size).replace(" {", f" attributes {{warps = array<i64: {threads // 32}, 1>}} {{", 1)
    module = parse_module(text)
    run_pass(module, "canonicalise")
    for name in ("pad-tiles", "assign-layouts"):
        run_pass(module, f"{name}{{}}")
    (load,) = [op for op in operations(kernel_of(module).body) if isinstance(op, tile.LoadOp)]
    layout = layout_of(load.result)
    assert layout is not None
    vector = bits // 8 // size
    moved = [*layout.of("register")[: vector.bit_length() - 1], *layout.of("lane"), *layout.of("warp")]
    assert tuple(1 << sum(base[dim] > 0 for base in moved) for dim in range(2)) == box
    rounds = layout.in_size("register") // vector
    assert rounds == (4 if extents[0] == 3 else copies)  # of the row that is left out nothing is left in the code
    code = generate(passed(text, 3)).ptx
    assert len(re.findall(rf"ld\.global\S*\.v{bits // 32}\.b32", code)) == copies
    rows = np.arange(extents[0] * extents[1]).astype({2: np.float16, 4: np.float32}[size])
    arrays = [rows, np.zeros_like(rows)]
    assert run(passed(text, 3), arrays).total("global", "transactions") == 2 * rows.nbytes // 32
    np.testing.assert_array_equal(arrays[1], rows)


def copied(extents: Extents, size: int) -> str:
    rows, columns = extents
    memory, own = f"memref<{rows * columns}xf{8 * size}>", f"tensor<{rows}x{columns}xf{8 * size}>"
    return f"""tile.func @k(%a: {memory}, %b: {memory}) grid [1] {{
      %o = arith.constant 0 : index
      %x = tile.load %a[%o] strides [{columns}, 1] align 16 : {memory} -> {own}
      tile.store %x, %b[%o] strides [{columns}, 1] align 16 : {own}, {memory}
      tile.return
    }}"""


@pytest.mark.parametrize(("block", "grid"), [((64, 32), (4, 1)), ((64, 64), (4, 1)), ((16, 32), (1, 4))])
def test_8_4_warps_of_chained_products(block: tuple[int, int], grid: tuple[int, int]) -> None:
    """Attention, 64 wide, that says nothing of its warps: all of them along the longer side of what it sums."""
    text = programs.attention((1, 64, 64), block)
    text = re.sub(r"attributes \{warps = [^}]*\} ", "", text)
    module = parse_module(text)
    run_pass(module, "assign-layouts{}")
    dots = [op for op in operations(kernel_of(module).body) if isinstance(op, tile.DotOp)]
    layouts = [layout for op in dots if (layout := layout_of(op.result)) is not None]
    assert len(layouts) == 2
    found = {tuple(1 << sum(base[dim] > 0 for base in layout.of("warp")) for dim in range(2)) for layout in layouts}
    assert found == {grid}
    q, k, v = (np.random.default_rng(i).standard_normal(64 * 64).astype(np.float16) for i in range(3))
    o = np.zeros(64 * 64, np.float32)
    run(passed(text, 3), [q, k, v, o])
    scores = (q.reshape(64, 64).astype(np.float64) @ k.reshape(64, 64).T) / 8
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    wanted = shares / shares.sum(axis=1, keepdims=True) @ v.reshape(64, 64)
    np.testing.assert_allclose(o.reshape(64, 64), wanted, atol=4e-3)
