"""Contractions as programs of blocks: tile form and distributed form against NumPy, with races and copies under way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from tilewright.expr import dtypes
from tilewright.expr.core import Axis, Expr, Read, Tensor, static_shape
from tilewright.kernel.dialect import FuncOp
from tilewright.kernel.interpreter import run_kernel
from tilewright.kernel.passes.table import run_pipeline
from tilewright.kernel.verify import verify
from tilewright.lower.blocks import lower_blocks
from tilewright.operator.rules.gpu_product import BlockShape, schedule_blocks
from tilewright.tiles.kernel import Kernel
from tilewright.tiles.notation import parse_tree, print_tree
from tilewright.tiles.parts import numbers_of
from tilewright.tiles.product import Operand, Product, flat_product
from tilewright.tiles.tree import InvalidTree, kernels

Array = np.ndarray[Any, Any]

SHAPES = {
    "f16": BlockShape(32, 16, 32, (2, 1), "mma_m16n8k16_f16_f32", 3),
    "f16 one buffer": BlockShape(32, 16, 16, (1, 2), "mma_m16n8k16_f16_f32", 1),
    "i8": BlockShape(16, 32, 32, (1, 2), "mma_m16n8k32_s8_s32", 2),
    "f32": BlockShape(32, 32, 8, (2, 1), "fma", 3),
    "f32 wide": BlockShape(128, 64, 8, (2, 4), "fma", 3),
    "i32": BlockShape(16, 64, 8, (1, 4), "fma", 2),
    "f64": BlockShape(16, 16, 4, (1, 1), "fma", 2),
}


def contraction(
    m_loops: tuple[Axis, ...], n_loop: Axis, k_loops: tuple[Axis, ...], a: Expr, b: Expr, index: Expr,
    sizes: tuple[int, int, int], dtype: str,
) -> Product:  # fmt: skip
    x, w, y = (Tensor(name, (size,), dtype) for name, size in zip("xwy", sizes, strict=True))
    y = Tensor("y", (sizes[2],), "i32" if dtype == "i8" else dtype)
    total = Tensor("sum", (), y.dtype)
    factors = Operand(x, a), Operand(w, b)
    return flat_product((), m_loops, n_loop, k_loops, *factors, total, Read(total, ()), y, index)


def check(work: Product, shape: BlockShape, wanted: Array, arrays: list[Array]) -> None:
    """The product as the rule schedules it."""
    check_kernel(work, schedule_blocks(work, shape, "y")[0], wanted, arrays)


def check_kernel(work: Product, scheduled: Kernel, wanted: Array, arrays: list[Array]) -> FuncOp:
    """Small whole numbers: every sum is exact, whatever its order. Returns the kernel in tile form."""
    tensors = (work.a.tensor, work.b.tensor, work.output)
    kernel = lower_blocks("k", scheduled, [(tensor, static_shape(tensor.shape)[0]) for tensor in tensors])
    module, lowered = ModuleOp([kernel]), kernel.clone()
    rows, columns = numbers_of(scheduled.tree, "warps")
    verify(module)
    for distributed in (False, True):
        if distributed:
            run_pipeline(module, "gpu", verify_each=True)
            (made,) = module.body.ops
            assert isinstance(made, FuncOp)
            assert made.block == (32 * rows * columns, 1, 1)
        found = np.zeros(static_shape(work.output.shape), dtypes.numpy_dtype(work.output.dtype))
        run_kernel(module, "k", [*(array.reshape(-1).copy() for array in arrays), found], races=distributed)
        np.testing.assert_array_equal(found.astype(np.float64), wanted.reshape(-1))
    return lowered


@pytest.mark.covering(1)
@pytest.mark.parametrize("sizes", [(32, 32, 64), (33, 17, 40), (5, 3, 7), (34, 20, 50)], ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_a_product(name: str, sizes: tuple[int, int, int]) -> None:
    (m, n, k), dtype = sizes, name.split()[0]
    rng, of = np.random.default_rng(0), dtypes.numpy_dtype(dtype)
    x, w = rng.integers(-3, 4, (m, k)).astype(of), rng.integers(-3, 4, (n, k)).astype(of)
    i, j, p = Axis("i", m), Axis("j", n), Axis("p", k)
    work = contraction((i,), j, (p,), i * k + p, j * k + p, i * n + j, (m * k, n * k, m * n), dtype)
    check(work, SHAPES[name], x.astype(np.float64) @ w.astype(np.float64).T, [x, w])


@pytest.mark.parametrize("name", ["f16", "f16 one buffer", "f32"])
@pytest.mark.parametrize("channels", [3, 16])
def test_windows_are_boxes_of_both(name: str, channels: int) -> None:
    """A convolution with stride 2, channels last: rows of the tile and slices of k have several loops each."""
    rows, columns, window, filters = 5, 7, 3, 20
    high, wide = 2 * rows + 1, 2 * columns + 1
    rng, of = np.random.default_rng(0), dtypes.numpy_dtype(name.split()[0])
    x, w = (
        rng.integers(-2, 3, (high, wide, channels)).astype(of),
        rng.integers(-2, 3, (filters, 9 * channels)).astype(of),
    )
    i, j, f = Axis("i", rows), Axis("j", columns), Axis("f", filters)
    r, s, c = Axis("r", window), Axis("s", window), Axis("c", channels)
    work = contraction(
        (i, j), f, (r, s, c), ((i * 2 + r) * wide + j * 2 + s) * channels + c, (f * 9 + r * 3 + s) * channels + c,
        (i * columns + j) * filters + f, (x.size, w.size, rows * columns * filters), name.split()[0],
    )  # fmt: skip
    patches = np.stack(
        [x[2 * a : 2 * a + 3, 2 * b : 2 * b + 3].reshape(-1) for a in range(rows) for b in range(columns)]
    )
    check(work, SHAPES[name], patches.astype(np.float64) @ w.astype(np.float64).T, [x, w])


def edited(kernel: Kernel, old: str, new: str) -> Kernel:
    """The kernel with another tree: its text with `new` in the place of `old`."""
    text = print_tree(kernel.tree)
    assert old in text, text
    return replace(kernel, tree=parse_tree(text.replace(old, new), kernels(kernel.tree)))


def square_product() -> tuple[Product, Kernel, list[Array]]:
    rng = np.random.default_rng(1)
    x, w = (rng.integers(-3, 4, (64, 64)).astype(np.float16) for _ in range(2))
    i, j, p = Axis("i", 64), Axis("j", 64), Axis("p", 64)
    work = contraction((i,), j, (p,), i * 64 + p, j * 64 + p, i * 64 + j, (64 * 64,) * 3, "f16")
    return work, schedule_blocks(work, SHAPES["f16"], "y")[0], [x, w]


@pytest.mark.parametrize(
    ("old", "new"),
    [("par i:2, j:4", "par j:4, i:2"), ("slots 3", "slots 2"), ("warps(2, 1)", "warps(1, 2)")],
    ids=["order of blocks", "buffers", "warps"],
)
def test_a_tree_that_is_changed_changes_the_code(old: str, new: str) -> None:
    work, kernel, (x, w) = square_product()
    wanted = x.astype(np.float64) @ w.astype(np.float64).T
    by_rule = check_kernel(work, kernel, wanted, [x, w])
    assert str(check_kernel(work, edited(kernel, old, new), wanted, [x, w])) != str(by_rule)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("par i:2", "par i:1", "par i:1, j:4 .* does not go with"),
        ("for p:2", "for p:3", "@L1 for p:3 does not go with"),
        ("stage w in SHARED slots 3", "stage w in SHARED slots 2", "slots"),
    ],
)
def test_a_tree_that_is_none_of_a_product_is_refused(old: str, new: str, message: str) -> None:
    work, kernel, arrays = square_product()
    with pytest.raises(InvalidTree, match=message):
        check_kernel(work, edited(kernel, old, new), np.zeros(64 * 64), arrays)
