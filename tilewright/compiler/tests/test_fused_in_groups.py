"""Chains of products by instructions that take several neighbours at once: bf16 in pairs, bytes in fours."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, settings
from hypothesis import given as draws
from hypothesis import strategies as st

from tests.covering import tries
from tilewright.compiler.compile import compile_graph
from tilewright.compiler.make_plan import make_plan
from tilewright.compiler.plan import Plan
from tilewright.decision import Decision
from tilewright.expr import GraphBuilder
from tilewright.expr.core import static_shape
from tilewright.expr.dtypes import numpy_dtype
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph
from tilewright.expr.ops import conv, elementwise, linalg
from tilewright.expr.ops.attention import attention
from tilewright.expr.text import parse_graph
from tilewright.machine import resolve_cpu
from tilewright.operator.products_tree import products_tree
from tilewright.operator.rules import cpu_fused
from tilewright.options import Options
from tilewright.tiles.kernel import Kernel
from tilewright.tiles.notation import parse_tree, print_tree
from tilewright.tiles.tree import InvalidTree, kernels

Array = np.ndarray[Any, Any]
ALWAYS = Options(cache=False, fuse="always")
SMALL_L2 = 60_000  # bytes, of which a block of these sizes takes more, so that sums wait in scratch memory
SIZES = st.sampled_from([1, 7, 17, 33, 64, 97, 130])


def chain(rows: int, inner: int, columns: int, link: int, relu: bool = False) -> Graph:
    """Two products of bf16; between them values are rounded to bf16."""
    b = GraphBuilder("chain")
    first, second, last = (
        b.input(name, shape, "bf16")
        for name, shape in (("A", (2, rows, inner)), ("B", (2, inner, link)), ("D", (2, link, columns)))
    )
    between = linalg.matmul(first, second)
    return b.finish([linalg.matmul(elementwise.relu(between) if relu else between, last)])


def small_integers(graph: Graph) -> list[Array]:
    generator = np.random.default_rng(0)
    return [
        generator.integers(-2, 3, static_shape(each.shape)).astype(numpy_dtype(each.dtype)) for each in graph.inputs
    ]


def fusion(plan: Plan) -> Decision:
    (found,) = (each for each in plan.decisions if re.match(r"fusion of [\w.]+ \+ ", each.subject))
    return found


@settings(max_examples=tries(2, full=60), deadline=None)
@example(rows=97, inner=33, columns=17, link=301, relu=True, small=True, threads=2)
@example(rows=130, inner=7, columns=64, link=513, relu=False, small=True, threads=1)
@example(rows=64, inner=130, columns=7, link=2, relu=False, small=False, threads=1)  # vectors along rows are cheaper
@draws(
    rows=st.sampled_from([7, 17, 33, 64, 97]), inner=SIZES, columns=SIZES.filter(lambda size: size > 1),
    link=st.sampled_from([7, 17, 33, 64, 97, 130, 301, 513]), relu=st.booleans(), small=st.booleans(),
    threads=st.integers(1, 2),
)  # fmt: skip
def test_pairs_of_the_link_are_read_where_they_are(
    rows: int, inner: int, columns: int, link: int, relu: bool, small: bool, threads: int
) -> None:
    graph = chain(rows, inner, columns, link, relu)
    (expected,) = evaluate(graph, small_integers(graph))
    with patch.object(cpu_fused, "l2_bytes", lambda _: SMALL_L2 if small else 1 << 21):
        found = compile_graph(graph, threads=threads, options=ALWAYS)(*small_integers(graph))
    np.testing.assert_array_equal(found.astype(np.float32), expected.astype(np.float32))


def test_the_instruction_on_pairs_is_taken_for_both_products() -> None:
    plan = make_plan(chain(97, 64, 50, 301), resolve_cpu("znver5"), 1, ALWAYS)
    assert fusion(plan).chosen.startswith("one kernel")
    taken = [each.chosen for each in plan.decisions if each.subject.startswith("instruction of")]
    assert len(taken) == 2
    assert all("vdpbf16ps" in each for each in taken), taken


def test_blocks_of_the_link_are_whole_pairs() -> None:
    with patch.object(cpu_fused, "l2_bytes", lambda _: SMALL_L2):
        plan = make_plan(chain(97, 33, 50, 513), resolve_cpu("znver5"), 1, ALWAYS)
    (kernel,) = (each for each in plan.kernels if each.instruction)
    tree = products_tree(kernel.scheduled)
    (summed,) = tree.summed
    assert summed.quantum % tree.products[-1].work.group == 0
    assert tree.products[-1].work.group == 2


@pytest.mark.parametrize(("keys", "offset"), [(97, None), (130, 33), (301, 204)])
def test_attention_of_pairs_is_one_kernel(keys: int, offset: int | None) -> None:
    """As good as kernels apart, against float64."""
    b = GraphBuilder("attended")
    q, k, v = (b.input(name, (2, length, 64), "bf16") for name, length in (("q", 97), ("k", keys), ("v", keys)))
    causal = {} if offset is None else {"causal": True, "causal_offset": offset}
    graph = b.finish([attention(q, k, v, scale=0.125, **causal)])  # type: ignore[arg-type]
    plan = make_plan(graph, resolve_cpu("znver5"), 1, ALWAYS)
    assert fusion(plan).chosen.startswith("one kernel")
    assert "vdpbf16ps" in str(plan.trees()[plan.kernels[-1].name])
    generator = np.random.default_rng(0)
    values = [generator.standard_normal(static_shape(each.shape)).astype(numpy_dtype("bf16")) for each in graph.inputs]
    queries, all_keys, weighted = (each.astype(np.float64) for each in values)
    scores = queries @ all_keys.transpose(0, 2, 1) / 8
    if offset is not None:
        scores = np.where(np.arange(keys) <= np.arange(97)[:, None] + offset, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ weighted
    found, apart = (
        compile_graph(graph, threads=1, options=options)(*values).astype(np.float64)
        for options in (ALWAYS, Options(cache=False, fuse="never"))
    )
    error, other = (np.abs(each - expected).max() for each in (found, apart))
    assert error <= max(other, 2.0**-8 * np.abs(expected).max())


def test_a_quantised_perceptron_multiplies_bytes_in_one_kernel() -> None:
    """The link is requantised to bytes in the epilogue of the first product; odd sizes leave ragged groups of four."""
    graph = parse_graph(
        """
        graph perceptron
        input A: u8[61, 33]
        input B: i8[33, 75]
        input D: i8[75, 19]
        C: i32[m:61, l:75] += i32(A[m, k]) * i32(B[k, l]) over k:33
        F: u8[m:61, l:75] = u8(min(max(round(f32(C[m, l]) * f32(0.01)), f32(0.0)), f32(255.0)))
        E: i32[m:61, n:19] += i32(F[m, l]) * i32(D[l, n]) over l:75
        output E
        """
    )
    plan = make_plan(graph, resolve_cpu("znver5"), 1, ALWAYS)
    assert fusion(plan).chosen.startswith("one kernel")
    assert str(plan.trees()).count("vpdpbusd") >= 2
    generator = np.random.default_rng(0)
    limits = {"u8": (0, 256), "i8": (-128, 128)}
    values = [
        generator.integers(*limits[each.dtype], static_shape(each.shape)).astype(numpy_dtype(each.dtype))
        for each in graph.inputs
    ]
    (expected,) = evaluate(graph, values)
    np.testing.assert_array_equal(compile_graph(graph, threads=1, options=ALWAYS)(*values), expected)


@settings(max_examples=tries(2, full=60), deadline=None)
@example(image=(2, 7, 11, 9), middle=33, filters=17, kernel=3, depthwise=False, bias=True, threads=2)
@example(image=(1, 17, 13, 7), middle=17, filters=31, kernel=3, depthwise=True, bias=False, threads=1)
@draws(
    image=st.tuples(st.integers(1, 2), st.sampled_from([2, 7, 16, 33]), *[st.sampled_from([1, 3, 7, 11, 17])] * 2),
    middle=st.sampled_from([2, 7, 16, 33]), filters=st.sampled_from([2, 17, 48]), kernel=st.sampled_from([1, 3]),
    depthwise=st.booleans(), bias=st.booleans(), threads=st.integers(1, 2),
)  # fmt: skip
def test_convolutions_of_pairs_are_right(
    image: tuple[int, ...], middle: int, filters: int, kernel: int, depthwise: bool, bias: bool, threads: int
) -> None:
    """A convolution of bf16, perhaps depthwise, and a 1 x 1 one that reads its result in pairs of channels."""
    b = GraphBuilder("convolutions")
    x, channels = b.input("x", image, "bf16"), image[1]
    middle = channels if depthwise else middle
    window = b.input("w0", (middle, 1 if depthwise else channels, kernel, kernel), "bf16")
    added = b.input("v", (middle,), "bf16") if bias else None
    groups = channels if depthwise else 1
    first = elementwise.relu(conv.conv(x, window, added, groups=groups, pads=(kernel - 1) // 2))
    graph = b.finish([conv.conv(first, b.input("w1", (filters, middle, 1, 1), "bf16"))])
    (expected,) = evaluate(graph, small_integers(graph))
    found = compile_graph(graph, threads=threads, options=ALWAYS)(*small_integers(graph))
    np.testing.assert_array_equal(found.astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("depthwise", [False, True])
def test_convolutions_of_pairs_are_one_kernel(depthwise: bool) -> None:
    b = GraphBuilder("convolutions")
    x = b.input("x", (1, 32, 14, 14), "bf16")
    window = b.constant(np.ones((32, 1 if depthwise else 32, 3, 3), numpy_dtype("bf16")), "w0")
    first = conv.conv(x, window, groups=32 if depthwise else 1, pads=1)
    graph = b.finish([conv.conv(first, b.constant(np.ones((48, 32, 1, 1), numpy_dtype("bf16")), "w1"))])
    plan = make_plan(graph, resolve_cpu("znver5"), 1, ALWAYS)
    assert fusion(plan).chosen.startswith("one kernel"), fusion(plan).explain()
    assert "vdpbf16ps" in str(plan.trees())


# What stays apart -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "text", "message"),
    [
        ("[2, 7]", "E: f32[m:64, n:7] += C[m, l] * D[l, n] over l:2", "reads groups of 2 along l of C, whose rows run"),
        ("[7, 64]", "E: f32[n:7, l:2] += D[n, m] * C[m, l] over m:64", "reads C in groups of 2 points of each column"),
    ],
)  # fmt: skip
def test_a_tree_that_reads_groups_across_the_rows_of_the_link_is_refused(shape: str, text: str, message: str) -> None:
    """The tree of a chain of f32 whose second product is said to take pairs; rows of the link are as A is stored."""
    across = "over l" in text
    a, b, constant = ("A[k, m]", "B[l, k]", "A") if across else ("A[m, k]", "B[k, l]", "B")
    shapes = {"A": (130, 64) if across else (64, 130), "B": (2, 130) if across else (130, 2)}
    lines = [f"{'const' if name == constant else 'input'} {name}: f32{[*size]}" for name, size in shapes.items()]
    lines += [f"input D: f32{shape}", f"C: f32[m:64, l:2] += {a} * {b} over k:130", text, "output E"]
    graph = parse_graph("\n".join(["graph chain", *lines]), {constant: np.ones(shapes[constant], np.float32)})
    plan = make_plan(graph, resolve_cpu("znver5"), 1, ALWAYS)
    (kernel,) = (each.scheduled for each in plan.kernels if each.instruction)
    leaves = kernels(kernel.tree)
    last = [*leaves][-1]
    mapping = leaves[last].mapping
    assert mapping is not None
    pairs = replace(leaves[last], mapping=replace(mapping, group=2))
    tree = parse_tree(print_tree(kernel.tree), {**leaves, last: pairs})
    with pytest.raises(InvalidTree, match=message) as caught:
        products_tree(Kernel(kernel.statements, tree))
    assert caught.value.help
