"""Trees of products that are edited: a legal one is what runs, an illegal one is refused by its rule."""

from __future__ import annotations

import re
from math import gcd
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from xdsl.dialects.builtin import ModuleOp

from tests.covering import tries
from tilewright.expr.core import Axis, Read, Tensor, apply
from tilewright.kernel.interpreter import run_kernel
from tilewright.kernel.text import print_module
from tilewright.kernel.verify import verify
from tilewright.lower.product import lower_product
from tilewright.machine import resolve_cpu
from tilewright.operator.product_point import ProductPoint
from tilewright.operator.rules.cpu_product import scheduled_product
from tilewright.tiles.kernel import Kernel
from tilewright.tiles.notation import parse_tree, print_tree
from tilewright.tiles.product import Operand, Product, flat_product
from tilewright.tiles.tree import InvalidTree, kernels

Array = np.ndarray[Any, Any]

MACHINE = resolve_cpu("x86-64-v3")


def product(m: int, n: int, k: int) -> Product:
    """C[i, j] = max(sum A[i, k] * B[k, j] + bias[j], 0)."""
    i, j, l = Axis("i", m), Axis("j", n), Axis("k", k)
    a, b, c, bias = (Tensor(name, (size,), "f32") for name, size in zip("ABCD", (m * k, k * n, m * n, n), strict=True))
    total = Tensor("sum", (), "f32")
    epilogue = apply("max", Read(total, ()) + Read(bias, (j,)), 0.0)
    factors = Operand(a, i * k + l), Operand(b, l * n + j)
    return flat_product((), (i,), j, (l,), *factors, total, epilogue, c, i * n + j, intrinsic="fma_8_f32_f32", lanes=8)


def lowered(kernel: Kernel, work: Product) -> str:
    """The program of a kernel, which has run and was compared with NumPy."""
    m, n, k = (axis.size for axis in (work.rows[0], work.columns, work.depth[0]))
    generator = np.random.default_rng(0)
    a, b, bias = (generator.integers(-4, 5, shape).astype(np.float32) for shape in ((m, k), (k, n), (n,)))
    c = np.zeros(m * n, np.float32)
    tensors = [work.a.tensor, work.b.tensor, Tensor("D", (n,), "f32"), work.output]
    module = ModuleOp([lower_product("f", kernel, [(each, int(np.prod(each.shape))) for each in tensors])])
    verify(module)
    run_kernel(module, "f", [a.reshape(-1), b.reshape(-1), bias, c])
    np.testing.assert_array_equal(c.reshape(m, n), np.maximum(a @ b + bias, 0))
    return print_module(module)


@example(sizes=(1, 1, 1), rows=1, vectors=1, k_blocks=1, columns_first=False, shares=(1, 1), at_a_time=1)
@given(
    sizes=st.tuples(st.integers(1, 21), st.integers(1, 50), st.integers(1, 23)), rows=st.integers(1, 6),
    vectors=st.integers(1, 3), k_blocks=st.sampled_from((1, 2, 4)), columns_first=st.booleans(),
    shares=st.tuples(st.integers(1, 3), st.integers(1, 3)), at_a_time=st.integers(0, 3),
)  # fmt: skip
@settings(max_examples=tries(4, full=25), deadline=None)
def test_every_point_and_its_tree_from_text_compute_the_product(
    sizes: tuple[int, int, int], rows: int, vectors: int, k_blocks: int, columns_first: bool, shares: tuple[int, int],
    at_a_time: int,
) -> None:  # fmt: skip
    work = product(*sizes)
    order = ("j", "i") if columns_first else ("i", "j")
    blocked = k_blocks if columns_first and min(rows, sizes[0]) < sizes[0] else 1
    point = ProductPoint((min(rows, sizes[0]),), min(vectors, -(-sizes[1] // 8)), order, blocked)
    step = gcd(at_a_time, point.vectors) if sizes[1] >= 8 else min(at_a_time, 1)
    kernel = scheduled_product(work, point, {"i": shares[0], "j": shares[1]}, MACHINE, epilogue_vectors=step)
    text = print_tree(kernel.tree)
    read = Kernel(kernel.statements, parse_tree(text, kernels(kernel.tree)))
    assert lowered(read, work) == lowered(kernel, work)


UNROLLED = "@REG unroll i:4, j:2 { par j:8 { op C } }"


def edited(before: str, after: str, k_blocks: int = 1) -> tuple[Product, Kernel, Kernel]:
    """A product of 21 x 40 points with tiles of 4 x 16, and the same with other text in its tree."""
    work = product(21, 40, 30)
    kernel = scheduled_product(work, ProductPoint((4,), 2, ("j", "i"), k_blocks), {"i": 2}, MACHINE)
    text = print_tree(kernel.tree)
    assert before in text, text
    changed = parse_tree(text.replace(before, after), kernels(kernel.tree))
    return work, kernel, Kernel(kernel.statements, changed)


@pytest.mark.parametrize(
    ("before", "after", "k_blocks"),
    [
        ("j:3, i:3", "i:3, j:3", 1),
        ("@DRAM par i:2 { @L2 for j:3, i:3", "@DRAM par i:3 { @L2 for j:3, i:2", 1),
        ("@DRAM par i:2 { @L2 for j:3,", "@DRAM par i:2, j:3 { @L2 for j:1,", 1),
        ("@REG unroll i:4, j:2 {", "@L1 for i:4, j:2 { @REG", 1),
        (UNROLLED, "@L1 for i:4, j:1 { @REG unroll j:2 { par j:8 { op C } } }", 1),
        ("with prefetch_lines(64), prefetch_rows(64) ", "", 2),
        ("prefetch_lines(64), prefetch_rows(64)", "prefetch_rows(64)", 2),
        ("prefetch_lines(64), prefetch_rows(64)", "prefetch_lines(64)", 2),
    ],
)  # fmt: skip
def test_an_edited_tree_is_what_runs(before: str, after: str, k_blocks: int) -> None:
    work, kernel, changed = edited(before, after, k_blocks)
    assert lowered(changed, work) != lowered(kernel, work)


@pytest.mark.parametrize(
    ("before", "after", "k_blocks", "message"),
    [
        ("for j:3, i:3", "for j:3, i:2", 1, "@L2 for j:3, i:2 does not go with"),
        ("par i:2", "par i:9", 1, "@DRAM par i:9 does not go with"),
        ("for j:3, i:3", "for i:3", 1, "tiles of C have loops over i"),
        ("@L1 for k:8", "@L1 for k:7", 1, "@L1 for k:7 does not go with"),
        ("unroll i:4, j:2", "unroll i:2, j:2", 1, "@REG unroll i:2, j:2 does not go with"),
        (UNROLLED, "@L1 for i:4, j:1 { @REG unroll j:3 { par j:8 { op C } } }", 1, "has 3 of 2 vectors of a row"),
        (UNROLLED, "@L1 for i:4, j:2 { @REG unroll j:2 { par j:8 { op C } } }", 1, "@L1 for i:4, j:2 does not go with"),
        ("for k:2, i:3", "for k:3, i:3", 2, "@L2 for k:3, i:3 with prefetch_lines(64), prefetch_rows(64) does not go"),
        ("for k:2, i:3", "for i:3", 2, "no loop over blocks of k is inside"),
        ("@L2 for i:3 { @REG", "@L2 for i:2 { @REG", 2, "@L2 for i:2 does not go with"),
    ],
)
def test_an_illegal_tree_is_refused(before: str, after: str, k_blocks: int, message: str) -> None:
    work, _, changed = edited(before, after, k_blocks)
    with pytest.raises(InvalidTree, match=re.escape(message)) as caught:
        lowered(changed, work)
    assert caught.value.help
