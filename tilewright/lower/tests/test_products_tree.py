"""Trees with two products: any legal one computes the chain, an illegal one is refused with its reason."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from math import lcm
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from xdsl.dialects.builtin import ModuleOp

from tests.covering import tries
from tilewright.errors import CompileError
from tilewright.expr.core import Axis, Const, Expr, Read, Tensor, apply, select
from tilewright.expr.dtypes import INDEX
from tilewright.kernel.interpreter import run_kernel
from tilewright.kernel.verify import verify
from tilewright.lower.module import lower_kernel
from tilewright.lower.steps import Step
from tilewright.machine.registry import resolve_cpu
from tilewright.operator.product_point import ProductPoint
from tilewright.operator.products_tree import products_tree
from tilewright.operator.rewrites.deferred_normalisation import deferred_normalisation
from tilewright.operator.rules.cpu_fused import FusedPoint, fused_kernel, point_of, step_of_rows
from tilewright.operator.statements import Statements
from tilewright.tiles.kernel import Kernel, Statement, with_names
from tilewright.tiles.legality import TooLarge, violations
from tilewright.tiles.loops import SpatialLoop
from tilewright.tiles.machines import program_resources
from tilewright.tiles.notation import parse_tree, print_tree
from tilewright.tiles.problem import problem_of
from tilewright.tiles.product import Operand, Product, flat_product
from tilewright.tiles.tree import InvalidTree, kernels

Array = np.ndarray[Any, Any]
Sizes = tuple[int, int, int, int, int]  # batch, m, n, k, l

LANES: Mapping[str, Any] = {"intrinsic": "fma_8_f32_f32", "lanes": 8}
ROOM = program_resources(resolve_cpu("x86-64-v3"))


def chain(sizes: Sizes, between: bool = False, after: bool = False, reversed_: bool = False) -> tuple[Product, Product]:
    """C[b, m, l] = f(sum A[b, m, k] * B[b, k, l]); E[b, m, n] = g(sum C[b, m, l] * D[b, l, n]).

    `reversed_`: C has its rows along m, and the second product reads it as vectors: E[b, n, m] from D[b, n, l], with
    vectors along m.
    """
    batch, m, n, k, l = (Axis(name, size) for name, size in zip("bmnkl", sizes, strict=True))
    a, b, d, e = (
        Tensor(name, (sizes[0] * x.size * y.size,), "f32")
        for name, x, y in (("A", m, k), ("B", k, l), ("D", l, n), ("E", m, n))
    )
    value, total = Tensor("C", (), "f32"), Tensor("C.sum" if between else "C", (), "f32")
    middle = apply("max", Read(total, ()) * 0.5, 0.0) if between else Read(total, ())
    of_a = Operand(a, (batch * m.size + m) * k.size + k)
    of_b = Operand(b, (batch * k.size + k) * l.size + l)
    if reversed_:  # B in rows of l, so that vectors along m are read from A
        of_a, of_b = Operand(b, (batch * l.size + l) * k.size + k), Operand(a, (batch * k.size + k) * m.size + m)
    rows, columns = (l, m) if reversed_ else (m, l)
    first = flat_product((batch,), (rows,), columns, (k,), of_a, of_b, total, middle, value, Const(0, INDEX), **LANES)
    *before, last = first.statements
    first = replace(first, statements=(*before, replace(last, address=None)))
    sums = Tensor("E.sum" if after else "E", (), "f32")
    ending = apply("min", Read(sums, ()), 40.0) if after else Read(sums, ())
    inner, other = Operand(value, Const(0, INDEX)), Operand(d, (batch * l.size + l) * n.size + n)
    rows, columns, factors, place = m, n, (inner, other), (batch * m.size + m) * n.size + n
    if reversed_:
        other = Operand(d, (batch * n.size + n) * l.size + l)
        rows, columns, factors, place = n, m, (other, inner), (batch * n.size + n) * m.size + m
    second = flat_product((batch,), (rows,), columns, (l,), *factors, sums, ending, e, place, **LANES)
    shapes = ((6, 3), (4, 4))
    return replace(first, shapes=shapes), replace(second, shapes=shapes)


def scheduled(
    works: tuple[Product, Product], heights: tuple[int, int], widths: tuple[int, int], blocks: tuple[int, int],
    programs: tuple[int, int], in_loop: bool = False,
) -> Kernel:  # fmt: skip
    """The kernel with register tiles of so many rows and vectors; blocks of so many units along m and l, 0 for none."""
    axes = {axis.name: axis for work in works for axis in (*work.spatial, *work.depth)}
    points = [
        ProductPoint((min(rows, work.rows[0].size),), min(vectors, -(-work.columns.size // 8)), order)
        for work, rows, vectors in zip(works, heights, widths, strict=True)
        for order in [(work.columns.name, work.rows[0].name)]
    ]
    tiles = [{**point.tile(work), work.depth[0].name: 4} for point, work in zip(points, works, strict=True)]
    loops = [SpatialLoop(axes["b"], 1, programs[0])]
    for name, units, share in (("m", blocks[0], programs[1]), ("l", blocks[1], 1)):
        size = units * lcm(*(tile[name] for tile in tiles if name in tile))
        if 0 < size < axes[name].size:
            loops.append(SpatialLoop(axes[name], size, share))
    return fused_kernel(works, FusedPoint(tuple(points), tuple(loops)), (in_loop, in_loop))


def run(kernel: Kernel, works: tuple[Product, Product], sizes: Sizes) -> tuple[Array, tuple[Array, Array, Array]]:
    """What the kernel computes in the interpreter, and from which factors."""
    batch, m, n, k, l = sizes
    generator = np.random.default_rng(0)
    flipped = works[0].columns.name == "m"
    shapes = ((k, m), (l, k), (n, l)) if flipped else ((m, k), (k, l), (l, n))
    a, b, d = (generator.integers(-3, 4, (batch, *shape)).astype(np.float32) for shape in shapes)
    tensors = [Tensor(name, (array.size,), "f32") for name, array in (("A", a), ("B", b), ("D", d))]
    tensors.append(works[1].output)
    func = lower_kernel(Step("f", kernel, tuple((tensor, tensor.size) for tensor in tensors)), "f", ROOM)
    module = ModuleOp([func])
    verify(module)
    e = np.full(batch * m * n, np.nan, np.float32)
    run_kernel(module, "f", [a.reshape(-1), b.reshape(-1), d.reshape(-1), e])
    return e.reshape((batch, n, m) if flipped else (batch, m, n)), (a, b, d)


def multiplied(works: tuple[Product, Product], a: Array, b: Array, d: Array) -> Array:
    """What NumPy makes of the factors of the chain."""
    flipped = works[0].columns.name == "m"
    c = b @ a if flipped else a @ b
    c = np.maximum(c * 0.5, 0) if works[0].has_epilogue else c
    expected = d @ c if flipped else c @ d
    return np.minimum(expected, 40) if works[1].has_epilogue else expected


@example(
    sizes=(2, 25, 17, 5, 70),
    heights=(3, 4),
    widths=(2, 2),
    blocks=(1, 1),
    programs=(2, 2),
    epilogues=(True, True),
    reversed_=False,
    in_loop=False,
)
@example(
    sizes=(1, 13, 31, 5, 37),
    heights=(2, 3),
    widths=(1, 2),
    blocks=(1, 2),
    programs=(1, 1),
    epilogues=(False, False),
    reversed_=True,
    in_loop=False,
)
@given(
    sizes=st.tuples(st.integers(1, 3), *[st.integers(2, 40)] * 2, st.integers(4, 20), st.integers(4, 80)),
    heights=st.tuples(st.integers(1, 4), st.integers(1, 4)), widths=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    blocks=st.tuples(st.integers(0, 2), st.integers(0, 2)), programs=st.tuples(st.integers(1, 2), st.integers(1, 3)),
    epilogues=st.tuples(st.booleans(), st.booleans()), reversed_=st.booleans(), in_loop=st.booleans(),
)  # fmt: skip
@settings(max_examples=tries(7, full=40), deadline=None)
def test_every_tree_computes_the_chain(
    sizes: Sizes, heights: tuple[int, int], widths: tuple[int, int], blocks: tuple[int, int],
    programs: tuple[int, int], epilogues: tuple[bool, bool], reversed_: bool, in_loop: bool,
) -> None:  # fmt: skip
    works = chain(sizes, *epilogues, reversed_)
    kernel = scheduled(works, heights, widths, blocks, programs, in_loop)
    read = Kernel(kernel.statements, parse_tree(print_tree(kernel.tree), kernels(kernel.tree)))
    assert read == kernel
    point = point_of(products_tree(kernel))
    assert fused_kernel(works, point, (in_loop and epilogues[0], in_loop and epilogues[1])) == kernel
    found, factors = run(kernel, works, sizes)
    np.testing.assert_array_equal(found, multiplied(works, *factors))


# A softmax between the products ---------------------------------------------------------------------------------------


def attending(sizes: Sizes, offset: int | None) -> tuple[tuple[Product, Product], Statements]:
    """The chain with a softmax of C along l, of which rows m see ``l <= m + offset`` where there is an offset."""
    (first, second), value = chain(sizes, between=True), Read(Tensor("C", (), "f32"), ())
    total, link = first.statements
    body: Expr = Read(total.tensor, ()) * 0.5
    axes = {axis.name: axis for axis in link.axes}
    if offset is not None:
        body = select(axes["l"] <= axes["m"] + offset, body, Const(-np.inf, "f32"))
    first = replace(first, statements=(total, replace(link, body=body)))
    outer = (axes["b"], axes["m"])
    largest, weight, weights = (Read(Tensor(name, (), "f32"), ()) for name in ("Max", "Exp", "Sum"))
    rows = (
        Statement(largest.tensor, outer, value, (axes["l"],), "max"),
        Statement(weight.tensor, link.axes, apply("exp", value - largest)),
        Statement(weights.tensor, outer, weight, (axes["l"],), "sum"),
        Statement(Tensor("P", (), "f32"), link.axes, weight / weights),
    )
    softmax = deferred_normalisation(rows)
    assert softmax is not None
    renamed = tuple(replace(each, body=with_names(each.body, {"C": "P"})) for each in second.statements)
    second = replace(second, statements=softmax.product(renamed))
    return (first, second), softmax.with_weights_once()


@example(sizes=(2, 25, 17, 5, 70), height=3, widths=(2, 2), blocks=(1, 1), programs=(2, 2), offset=20, in_loop=True)
@example(sizes=(1, 40, 9, 4, 150), height=4, widths=(1, 3), blocks=(1, 2), programs=(1, 1), offset=None, in_loop=False)
@example(sizes=(1, 33, 9, 4, 150), height=2, widths=(3, 1), blocks=(2, 0), programs=(1, 2), offset=-4, in_loop=False)
@given(
    sizes=st.tuples(st.integers(1, 2), *[st.integers(2, 30)] * 2, st.integers(4, 8), st.integers(8, 150)),
    height=st.integers(1, 4), widths=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    blocks=st.tuples(st.integers(0, 2), st.integers(0, 2)), programs=st.tuples(st.integers(1, 2), st.integers(1, 3)),
    offset=st.one_of(st.none(), st.integers(-30, 150)), in_loop=st.booleans(),
)  # fmt: skip
@settings(max_examples=tries(3, full=40), deadline=None)
def test_every_tree_computes_attention(
    sizes: Sizes, height: int, widths: tuple[int, int], blocks: tuple[int, int], programs: tuple[int, int],
    offset: int | None, in_loop: bool,
) -> None:  # fmt: skip
    """Whole rows, and blocks of them that go on; what no row of a block sees is not computed."""
    works, rows = attending(sizes, offset)
    machine, axes = resolve_cpu("x86-64-v3"), {axis.name: axis for axis in works[0].spatial}
    points = tuple(
        ProductPoint((min(height, work.rows[0].size),), min(vectors, -(-work.columns.size // 8)), order)
        for work, vectors in zip(works, widths, strict=True)
        for order in [(work.columns.name, work.rows[0].name)]
    )
    unit = lcm(step_of_rows(works[0], points[0].tile(works[0]), machine), 4, points[0].tile(works[0])["l"])
    loops = [SpatialLoop(axes["b"], 1, programs[0])]
    for name, size, share in (("m", blocks[0] * points[0].rows[0], programs[1]), ("l", blocks[1] * unit, 1)):
        if 0 < size < axes[name].size:
            loops.append(SpatialLoop(axes[name], size, share))
    kernel = fused_kernel(works, FusedPoint(points, tuple(loops)), (False, in_loop), {0: rows}, machine)
    found, factors = run(kernel, works, sizes)
    a, b, d = (each.astype(np.float64) for each in factors)
    scores = a @ b * 0.5
    if offset is not None:
        scores = np.where(np.arange(sizes[4]) <= np.arange(sizes[1])[:, None] + offset, scores, -np.inf)
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        expected = np.minimum(weights / weights.sum(-1, keepdims=True) @ d, 40)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_rows_that_do_not_go_on_are_refused() -> None:
    works, rows = attending(SIZES, None)
    points = tuple(ProductPoint((3,), 2, (work.columns.name, "m")) for work in works)
    loops = (SpatialLoop(works[0].outer[0]), SpatialLoop(works[0].columns, 32))
    kernel = fused_kernel(works, FusedPoint(points, loops), (False, False), {0: rows}, resolve_cpu("x86-64-v3"))
    plain = tuple(replace(each, follows=None) if each.name == "Sum" else each for each in kernel.statements)
    with pytest.raises(InvalidTree, match="blocks of l cut the rows behind C, of which Sum do not go on") as caught:
        products_tree(Kernel(plain, kernel.tree))
    assert caught.value.help


@pytest.mark.parametrize(("offset", "hint", "seen"), [
    (5, ' with seen("l", 32)', True),
    (5, "", False),
    (None, "", False),
])  # fmt: skip
def test_a_tree_says_whether_a_mask_ends_the_loop(offset: int | None, hint: str, seen: bool) -> None:
    found = products_tree(attended(offset, hint))
    assert found.seen == seen
    assert f"op C{hint} " in print_tree(found.tree())


@pytest.mark.parametrize(("offset", "hint"), [(5, ' with seen("l", 16)'), (None, ' with seen("l", 32)')])
def test_a_mask_that_ends_the_loop_elsewhere_is_refused(offset: int | None, hint: str) -> None:
    with pytest.raises(InvalidTree, match=re.escape(f"op C{hint} does not go with the rest")) as caught:
        products_tree(attended(offset, hint))
    assert caught.value.help == ('op C with seen("l", 32) in its place' if offset is not None else "op C in its place")


def attended(offset: int | None, hint: str) -> Kernel:
    """Attention with all of l in a block, whose mask has a hint."""
    works, rows = attending(SIZES, offset)
    points = tuple(ProductPoint((3,), 2, (work.columns.name, "m")) for work in works)
    loops = (SpatialLoop(works[0].outer[0]), SpatialLoop(works[0].rows[0], 6))
    kernel = fused_kernel(works, FusedPoint(points, loops), (False, False), {0: rows}, resolve_cpu("x86-64-v3"))
    text = re.sub(r"op C( with seen[^)]*\))? ", f"op C{hint} ", print_tree(kernel.tree))
    return Kernel(kernel.statements, parse_tree(text, kernels(kernel.tree)))


# Illegal trees --------------------------------------------------------------------------------------------------------

SIZES: Sizes = (2, 30, 20, 9, 70)


def edited(before: str, after: str, reversed_: bool = False) -> Kernel:
    works = chain(SIZES, between=True, after=True, reversed_=reversed_)
    kernel = scheduled(works, (3, 4), (2, 2), (1, 2), (2, 1))
    text = print_tree(kernel.tree)
    assert before in text, text
    return Kernel(kernel.statements, parse_tree(text.replace(before, after), kernels(kernel.tree)))


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("@L3 for l:3", "@L3 for l:4", "@L3 for l:4 does not go with"),
        ("@L3 for b:1, m:3", "@L3 for b:1, m:3, k:2", "L3 producer reduction: k:2 at L3 surrounds"),
        ("@L3 for b:1, m:3", "@L3 for b:1, m:3, n:2", "L4 foreign loop: n:2 at L3 is no loop of C"),
        ("l:2, m:4", "l:2, m:5", "a block of m has 15 in C, 12 in E"),
        ("@L1 for l:8", "@L1 for l:9", "a block of l has 32 in C, 36 in E"),
        ("stage E.sum in L2", "stage C in L2", "stage C in L2 slots 1 does not go with"),
        ("@L1 for k:3", "@L1 for k:2", "L1 coverage"),
    ],
)
def test_an_illegal_tree_is_refused(before: str, after: str, message: str) -> None:
    kernel = edited(before, after)
    tensors = [Tensor(name, (size,), "f32") for name, size in (("A", 540), ("B", 1260), ("D", 2800), ("E", 1200))]
    with pytest.raises(CompileError, match=re.escape(message)) as caught:
        lower_kernel(Step("f", kernel, tuple((tensor, tensor.size) for tensor in tensors)), "f", ROOM)
    assert caught.value.help


def test_vectors_across_the_rows_of_a_buffer_are_refused() -> None:
    """C is stored in rows along l, and the second product reads vectors of it along m: nothing stores it again."""
    first, _ = chain(SIZES)
    _, second = chain(SIZES, reversed_=True)
    with pytest.raises(InvalidTree, match="reads vectors along m of C, whose rows run along another loop") as caught:
        products_tree(scheduled((first, second), (3, 4), (2, 2), (0, 0), (1, 1)))
    assert caught.value.help


def test_buffers_that_do_not_fit_are_refused() -> None:
    """A block of C and the sums of its rows lie in L2, by the scope and by the stage of the tree."""
    kernel, held = edited("", ""), 4 * (12 * 32 + 12 * 20)

    def refusal(l2_bytes: int) -> CompileError | None:
        levels = tuple(replace(each, capacity_bytes=l2_bytes) if each.name == "L2" else each for each in ROOM.levels)
        found = violations(kernel.tree, problem_of(kernel), imperfect=True, resources=replace(ROOM, levels=levels))
        return next(found, None)

    assert refusal(held) is None
    refused = refusal(held - 1)
    assert isinstance(refused, TooLarge)
    assert refused.message == f"L8 resources: a program keeps {held} bytes of E.sum, C in L2, which holds {held - 1}"
    assert "tiles 2 times smaller" in (refused.help or "")
