"""Views hold the elements that the node computes, in the places its layout says; what they cannot hold is copied."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.covering import tries
from tilewright.compiler.compile import compile_graph, rebuilt
from tilewright.compiler.views import view_of
from tilewright.expr.core import Axis, Compute, Const, Expr, Tensor
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops.conv import conv, conv_transpose
from tilewright.expr.ops.elementwise import binary, relu
from tilewright.expr.ops.shape import reshape, transpose
from tilewright.graph.passes.rewritten import Border
from tilewright.layouts import permuted
from tilewright.options import Options
from tilewright.runtime.module import Module

UNCACHED = Options(cache=False)
ZERO = Const(0.0, "f32")


@st.composite
def movements(draw: st.DrawFn) -> tuple[Compute, list[int], list[tuple[int, int]]]:
    """A node that splits, merges and permutes dimensions; an order and a border of its source."""
    digits = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))

    def cut(places: list[int]) -> list[list[int]]:
        found: list[list[int]] = []
        for place in places:
            if found and draw(st.booleans()):
                found[-1].append(place)
            else:
                found.append([place])
        return found

    source_dims = cut(list(range(len(digits))))
    result_dims = cut(list(draw(st.permutations(range(len(digits))))))
    axes, index = [], {}
    for number, places in enumerate(result_dims):
        axis = Axis(f"a{number}", prod(digits[place] for place in places))
        axes.append(axis)
        stride = 1
        for place in reversed(places):
            index[place] = axis // stride % digits[place] if len(places) > 1 else axis
            stride *= digits[place]
    indices: list[Expr] = []
    for places in source_dims:
        total: Expr = index[places[0]]
        for place in places[1:]:
            total = total * digits[place] + index[place]
        indices.append(total)
    source = Tensor("x", tuple(prod(digits[place] for place in places) for places in source_dims), "f32")
    result = Tensor("y", tuple(axis.extent for axis in axes), "f32")
    order = list(draw(st.permutations(range(source.rank))))
    halo = [(draw(st.integers(0, 1)), draw(st.integers(0, 2))) for _ in range(source.rank)]
    return Compute(result, tuple(axes), source[tuple(indices)]), order, halo


@settings(max_examples=tries(20, full=200), deadline=None)
@given(movements(), st.booleans(), st.booleans())
def test_a_view_is_what_the_node_computes(
    movement: tuple[Compute, list[int], list[tuple[int, int]]], bordered: bool, together: bool
) -> None:
    node, order, halo = movement
    view = view_of(node)
    if view is None:
        return
    (source,) = node.inputs()
    order = view.grouped(order) if together else order
    assert sorted(order) == list(range(source.rank))
    stored = permuted(source.shape, order, halo if bordered else None)
    layout = view.layout(stored)
    if layout is None:
        return
    values = np.arange(source.size, dtype=np.float32).reshape(source.shape)
    (expected,) = evaluate(Graph((source,), (node.output,), (node,)), [values])
    assert layout.size == stored.size
    np.testing.assert_array_equal(layout.unpack(stored.pack(values)), expected)


I, K, C = Axis("i", 5), Axis("k", 12), Axis("c", 3)

SPLIT = Tensor("x", (3, 4, 5), "f32")
MERGE = Compute(Tensor("y", (5, 12), "f32"), (I, K), SPLIT[K // 4, K % 4, I])


def test_dimensions_of_a_view_are_stored_together() -> None:
    view = view_of(MERGE)
    assert view is not None
    assert view.grouped([0, 2, 1]) == [2, 0, 1]
    assert view.grouped([1, 2, 0]) == [2, 0, 1]
    assert view.grouped([0, 1, 2]) == [0, 1, 2]
    assert view.order_of([1, 0]) == [0, 1, 2]
    assert view.layout(permuted((3, 4, 5), [0, 2, 1])) is None
    assert view.layout(permuted((3, 4, 5), [2, 1, 0])) is None  # together, but the smaller stride outside
    layout = view.layout(permuted((3, 4, 5), [2, 0, 1]))
    assert layout is not None
    assert layout.digits == ((0, 5), (1, 12))


def test_borders_of_whole_dimensions_pass_through_a_view() -> None:
    view = view_of(MERGE)
    assert view is not None
    assert view.border(Border(((1, 2), (0, 0)), ZERO)) == Border(((0, 0), (0, 0), (1, 2)), ZERO)
    assert view.border(Border(((0, 0), (1, 0)), ZERO)) is None
    assert view.layout(permuted((3, 4, 5), [2, 0, 1], [(0, 0), (1, 0), (0, 0)])) is None


@pytest.mark.parametrize(
    "node",
    [
        Compute(Tensor("y", (5, 12), "f32"), (I, K), SPLIT[K // 4, K % 4, I] * 2.0),
        Compute(Tensor("y", (5, 12), "f32"), (I, K), SPLIT[K % 3, K // 3, I]),  # cuts 12 as 4 x 3
        Compute(Tensor("y", (5, 3), "f32"), (I, C), SPLIT[C, 0, I]),
        Compute(Tensor("y", (5, 12), "f32"), (I, K), SPLIT[K // 4, K % 2, I]),
        Compute(Tensor("y", (12,), "f32"), (K,), Tensor("x", (12,), "f32")[K + (-1)]),
        Compute(Tensor("y", (5,), "f32"), (I,), Tensor("x", (5, 3), "f32")[I, C], (C,), "sum"),
        Compute(Tensor("y", (5,), "f64"), (I,), Tensor("x", (5,), "f32")[I].cast("f64")),
    ],
    ids=["computes", "other radixes", "leaves out", "repeats", "shifts", "sums", "converts"],
)
def test_what_is_no_view(node: Compute) -> None:
    found = view_of(node)
    if found is not None:  # the dimensions in another order of significance: never stored as one run
        assert all(found.layout(permuted(SPLIT.shape, order)) is None for order in ([2, 0, 1], [0, 1, 2]))


# Whole programs -------------------------------------------------------------------------------------------------------


def run(graph: Graph, seed: int = 0, threads: int = 1) -> Module:
    """Compile, compare with the evaluator, and compile once more from what is stored."""
    rng = np.random.default_rng(seed)
    inputs = [rng.uniform(-1, 1, tensor.shape).astype(np.float32) for tensor in graph.inputs]
    module = compile_graph(graph, threads=threads, options=UNCACHED)
    again = Module(rebuilt(module.artifact, "host", threads, UNCACHED), threads=threads)
    expected = evaluate(graph, inputs)
    for each in (module, again):
        results = each(*inputs)
        for found, wanted in zip(results if isinstance(results, tuple) else (results,), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-4)
    return module


def copies(module: Module) -> list[str]:
    """Launches that compute nothing and fill no border."""
    return [launch.name for launch in module.manifest.launches if not launch.flops and "border" not in launch.name]


@settings(max_examples=tries(2, full=40), deadline=None)
@given(st.data())
def test_random_grouped_convolutions(data: st.DataObject) -> None:
    """Between other nodes, which read the merged channels in windows, along sums, and point by point."""
    draw = data.draw
    rng = np.random.default_rng(draw(st.integers(0, 99), label="seed"))
    groups = draw(st.integers(1, 8), label="groups")
    inside, outside = draw(st.integers(1, 5), label="inputs"), draw(st.integers(1, 17), label="filters")
    size, kernel = draw(st.integers(3, 9), label="size"), draw(st.integers(1, 3), label="kernel")
    strides, pads = draw(st.integers(1, 2), label="strides"), draw(st.integers(0, 1), label="pads")
    transposed = draw(st.booleans(), label="transposed")
    following = draw(st.sampled_from(["", "relu", "window", "grouped", "sum", "shuffle"]), label="following")

    def weights(*shape: int) -> Tensor:
        values = rng.uniform(-1, 1, shape).astype(np.float32)
        return (
            b.constant(values) if draw(st.booleans(), label="constant") else b.input(f"w{len(b.inputs)}", shape, "f32")
        )

    b = GraphBuilder()
    c, k = groups * inside, groups * outside
    x = relu(b.input("x", (draw(st.integers(1, 2), label="batch"), c, size, size + 1), "f32"))
    bias = weights(k) if draw(st.booleans(), label="bias") else None
    if transposed:
        w = weights(c, outside, kernel, kernel)
        y = conv_transpose(x, w, bias, groups=groups, strides=strides, pads=min(pads, kernel - 1))
    else:
        w = weights(k, inside, kernel, kernel)
        y = conv(x, w, bias, groups=groups, strides=strides, pads=pads)
    if following:
        y = relu(y)
    shape = tuple(map(int, y.shape))
    if following == "window":
        y = conv(y, weights(3, k, 1, 2), pads=[0, 1, 0, 1])
    elif following == "grouped":
        y = conv(y, weights(k, outside, 1, 1), groups=groups)
    elif following == "sum":
        y = binary(y, conv(y, weights(k, k, 1, 1)), "add")
    elif following == "shuffle":
        y = reshape(y, (shape[0], groups, outside, *shape[2:]))
        y = conv(reshape(transpose(y, (0, 2, 1, 3, 4)), shape), weights(4, k, 1, 1))
    run(b.finish([y]), threads=2)


def block(groups: int, outputs: bool = False) -> Graph:
    rng = np.random.default_rng(0)

    def weights(*shape: int) -> Tensor:
        return b.constant(rng.uniform(-1, 1, shape).astype(np.float32))

    b = GraphBuilder()
    x = relu(conv(b.input("x", (1, 8, 6, 7), "f32"), weights(32, 8, 1, 1)))
    grouped = relu(conv(x, weights(32, 32 // groups, 3, 3), weights(32), groups=groups, pads=1), name="grouped")
    y = relu(conv(grouped, weights(16, 32, 3, 3), pads=1))
    return b.finish([y, grouped] if outputs else [y])


def test_a_grouped_convolution_is_a_product_without_copies() -> None:
    module = run(block(2))
    assert "instruction of grouped.split" not in module.explain(all=True)
    assert "(i j|k_1|rc rx ry)" in module.explain(all=True)
    assert "storage of grouped: that of grouped.split" in module.explain(all=True)
    assert "grouped" not in copies(module)


def test_a_view_that_is_an_output_too_is_copied() -> None:
    assert "storage of grouped: that of" not in run(block(2, outputs=True)).explain(all=True)


def test_without_the_pass_results_are_the_same() -> None:
    graph = block(4)
    x = np.random.default_rng(1).uniform(-1, 1, (1, 8, 6, 7)).astype(np.float32)
    one = compile_graph(graph, threads=1, options=UNCACHED)(x)
    other = compile_graph(graph, threads=1, options=Options(cache=False, disable=("split-channels",)))(x)
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_a_stored_graph_keeps_its_views() -> None:
    first = compile_graph(block(2), threads=1, options=UNCACHED)
    again = Module(rebuilt(first.artifact, "host", 1, UNCACHED), threads=1)
    assert "storage of grouped: that of grouped.split" in again.explain(all=True)
    assert [launch.name for launch in again.manifest.launches] == [launch.name for launch in first.manifest.launches]
