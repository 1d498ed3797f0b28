"""Every operator of the library, compiled at sizes that fit no vector, against the evaluator and its error bound."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.covering import FULL, rows, some
from tests.random_graphs import random_array
from tilewright.compiler.compile import compile_graph
from tilewright.compiler.tests.bounded import evaluate_bounded, violations
from tilewright.expr import dtypes
from tilewright.expr.core import Axis, Compute, Const, Tensor, apply, select
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import (
    attention,
    catalogue,
    conv,
    elementwise,
    indexing,
    linalg,
    norm,
    pool,
    reduce,
    shape,
    special_ops,
)
from tilewright.options import Options

MACHINES = os.environ.get("TILEWRIGHT_TEST_MACHINES", "host").split(",")
Array = np.ndarray[Any, Any]
Build = Callable[[GraphBuilder, str], Tensor | Sequence[Tensor]]


def check(graph: Graph, given: dict[str, Array] | None = None) -> None:
    """Compile, run, and hold every output against its bound."""
    inputs = {tensor.name: random_array(tensor, number) for number, tensor in enumerate(graph.inputs)}
    inputs.update(given or {})
    expected = evaluate_bounded(graph, inputs)
    for machine in MACHINES:
        module = compile_graph(graph, machine, 1, replace(Options(), cache=False))
        found = module(*(inputs[tensor.name] for tensor in graph.inputs))
        for tensor, result, bound in zip(
            graph.outputs, found if isinstance(found, tuple) else [found], expected, strict=True
        ):
            assert result.dtype == dtypes.numpy_dtype(tensor.dtype)
            wrong = violations(result, bound)
            assert result.shape == wrong.shape == tensor.shape
            if wrong.any():
                at = tuple(np.argwhere(wrong)[0])
                raise AssertionError(
                    f"{machine}: {tensor}: {int(wrong.sum())} of {wrong.size} wrong, first at {at}: "
                    f"{result[at]}, expected {bound[0][at]} within {bound[1][at]}"
                )


def built(build: Build, dtype: str) -> Graph:
    b = GraphBuilder("test")
    made = build(b, dtype)
    return b.finish([made] if isinstance(made, Tensor) else list(made))


def constant_weights(graph: Graph) -> Graph:
    """The graph with all inputs but the first made constants."""
    first, *weights = graph.inputs
    values = {tensor.name: random_array(tensor, 50 + number) for number, tensor in enumerate(weights)}
    return replace(graph, inputs=(first,), constants={**graph.constants, **values})


# The catalogue --------------------------------------------------------------------------------------------------------

ODD: dict[str, list[dict[str, int]]] = {
    "GMV": [{"rows": 17, "columns": 1}, {"rows": 37, "columns": 53}, *([{"rows": 1, "columns": 7}] if FULL else [])],
    "GMM": [
        {"m": m, "n": n, "k": k}
        for m, n, k in [
            (1, 1, 1),
            (1, 17, 7),
            (17, 7, 1),
            (13, 31, 29),
            (5, 16, 64),
            *([(7, 1, 17), (67, 71, 73), (33, 3, 5)] if FULL else []),
        ]
    ],
    "BIL": [{"n": 3, "m": 5, "k": 7, "l": 11}],
    "C1D": [{"batch": 2, "c": 3, "size": 17, "k": 5, "stride": 2}, {"batch": 1, "c": 7, "size": 9, "k": 19, "pad": 0}],
    "T1D": [{"batch": 2, "c": 3, "size": 7, "k": 5, "output_padding": 0}],
    "C2D": [
        {"batch": 2, "c": 3, "size": 11, "k": 7},
        {"batch": 1, "c": 5, "size": 13, "k": 17, "stride": 2},
        {"batch": 1, "c": 17, "size": 7, "k": 23, "kernel": 1, "pad": 0},
        {"batch": 1, "c": 1, "size": 5, "k": 1},
    ],
    "T2D": [{"batch": 1, "c": 3, "size": 5, "k": 7}],
    "C3D": [{"batch": 1, "c": 3, "size": 5, "k": 7, "depth": 3}],
    "T3D": [{"batch": 1, "c": 3, "size": 3, "k": 5, "depth": 2}],
    "GRP": [
        {"batch": 1, "c": 6, "size": 7, "k": 9, "groups": 3},
        {"batch": 2, "c": 34, "size": 5, "k": 34, "groups": 2},
    ],
    "DEP": [
        {"batch": 1, "c": 5, "size": 9, "multiplier": 1},
        {"batch": 2, "c": 3, "size": 7, "multiplier": 2, "stride": 2},
    ],
    "DIL": [{"batch": 1, "c": 3, "size": 11, "k": 5}],
    "CAP": [{"batch": 1, "c": 3, "size": 7, "k": 5, "kernel": 3, "capsules": 3}],
    "BCV": [{"batch": 3, "c": 3, "size": 7, "k": 5}],
    "GFC": [{"batch": 1, "c": 6, "k": 9, "groups": 3}, {"batch": 5, "c": 4, "k": 34, "groups": 2}],
    "BCM": [{"rows": 9, "columns": 6, "block": 3}],
    "SHO": [{"batch": 1, "size": 7, "c": 11}],
    "MEN": [{"batch": 3, "c": 7, "size": 5}],
    "VAR": [{"batch": 3, "c": 7, "size": 5}],
    "SCN": [{"m": 3, "n": 17, "k": 17}],
}


@pytest.mark.parametrize("short", ODD)
def test_catalogue(short: str) -> None:
    """In two of four types, those of every second operator; in all with `--full`."""
    every = ("f32", "f64", "bf16", "f16")
    dtypes = every if FULL else every[list(ODD).index(short) % 2 :: 2]
    for form, sizes, dtype, known in rows(
        catalogue.OPERATORS[short].forms, ODD[short], dtypes, (False, True), strength=1
    ):
        graph = catalogue.build(short, form=form, dtype=dtype, **sizes)
        check(constant_weights(graph) if known else graph)


@pytest.mark.parametrize("dtype", ["i8", "u8", "i16", "i32", "i64"])
def test_integer_products(dtype: str) -> None:
    rights = (dtype, {"u8": "i8", "i8": "u8"}[dtype]) if dtype in ("i8", "u8") else (dtype,)
    sizes = some([(5, 17, 7), (1, 1, 1), (19, 23, 31), (3, 1, 9), (2, 33, 64)], 3)
    for (m, n, k), right, known in rows(sizes, rights, (False, True), strength=1):
        product = linalg.matmul_integer if dtype in ("i8", "u8") else linalg.matmul
        graph = built(
            lambda b, t, of=product, r=right, m=m, n=n, k=k: of(b.input("a", (m, k), t), b.input("b", (k, n), r)),  # type: ignore[misc]
            dtype,
        )
        check(constant_weights(graph) if known else graph)


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32", "f64"])
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((3, 5), (5, 7)),
        ((2, 3, 5), (5, 7)),
        ((2, 3, 5), (2, 5, 7)),
        ((2, 1, 3, 5), (1, 4, 5, 7)),
        ((5,), (5, 7)),
        ((3, 5), (5,)),
        ((5,), (5,)),
        ((1, 1), (1, 1)),
        ((7, 2, 17, 33), (7, 2, 33, 19)),
        ((0, 5), (5, 3)),
        ((3, 0), (0, 5)),
    ],
)
def test_matmul(left: tuple[int, ...], right: tuple[int, ...], constant: bool, dtype: str) -> None:
    graph = built(lambda b, t: linalg.matmul(b.input("a", left, t), b.input("b", right, t)), dtype)
    check(constant_weights(graph) if constant else graph)


@pytest.mark.parametrize(
    "equation", ["ij,kj->ik", "ij,jk->ki", "bij,bjk->bik", "ij,ij->", "ij->ji", "ii->i", "i,j->ij", "bhij,bhkj->bihk"]
)
def test_einsum(equation: str) -> None:
    extents = dict(zip("bhijk", (2, 3, 5, 7, 11), strict=True))
    terms = equation.split("->")[0].split(",")
    for dtype in ("f32", "bf16"):
        check(built(lambda b, t: linalg.einsum(equation, [
            b.input(f"x{n}", tuple(extents[c] for c in term), t) for n, term in enumerate(terms)]), dtype))  # fmt: skip


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64"])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (3, 5, 7, 9), (2, 17, 17, 16), (1, 13, 33, 31)])
def test_attention(sizes: tuple[int, int, int, int], dtype: str) -> None:
    heads, rows, keys, depth = sizes

    def build(b: GraphBuilder, t: str, **more: Any) -> Tensor:
        q, k, v = (b.input(name, (2, heads, n, depth), t) for name, n in (("q", rows), ("k", keys), ("v", keys)))
        return attention.attention(q, k, v, scale=0.25, **more)

    check(built(build, dtype))
    check(built(lambda b, t: build(b, t, causal=True, causal_offset=2), dtype))
    check(built(lambda b, t: build(b, t, mask=b.input("mask", (rows, keys), t), softcap=3.0), dtype))


# Rows -----------------------------------------------------------------------------------------------------------------

SHAPES = [(1,), (7,), (17,), (64,), (3, 7), (17, 1), (1, 17), (2, 3, 5), (5, 16, 3), (2, 3, 4, 17), (37, 97)]
AXES = [(extents, axis) for extents in SHAPES for axis in range(len(extents))]


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize(("extents", "axis"), some(AXES, 10))
def test_rows(extents: tuple[int, ...], axis: int, dtype: str) -> None:
    """Softmax and norms over every axis, in one module."""

    def build(b: GraphBuilder, t: str) -> list[Tensor]:
        x = b.input("x", extents, t)
        tail = extents[axis:]
        weights = b.input("w", tail, t), b.input("c", tail, t)
        return [
            norm.softmax(x, axis=axis), norm.log_softmax(x, axis=axis), norm.lp_norm(x, axis=axis),
            norm.layer_norm(x, *weights, axis=axis), norm.rms_norm(x, weights[0], axis=axis),
            reduce.cum_sum(x, axis=axis) if dtype == "f32" else elementwise.relu(x),
        ]  # fmt: skip

    check(built(build, dtype))


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8", "i64", "u16"])
@pytest.mark.parametrize("extents", [(), (7,), (3, 17), (2, 3, 5), (5, 1, 7), (2, 3, 4, 5), (4, 0, 3), (3, 67, 5)])
def test_reductions_over_every_subset(extents: tuple[int, ...], dtype: str) -> None:
    def build(b: GraphBuilder, t: str) -> list[Tensor]:
        x = b.input("x", extents, t)
        made = []
        for count in range(len(extents) + 1):
            for axes in itertools.combinations(range(len(extents)), count):
                keep = bool(count % 2)
                made.append(reduce.reduce_sum(x, axes, keepdims=keep))
                made.append(reduce.reduce_max(x, axes, keepdims=keep))
                made.append(reduce.reduce_min(x, axes, keepdims=keep))
        made.append(reduce.reduce_prod(x))
        return made

    check(built(build, dtype))


def test_reductions_of_bool() -> None:
    def build(b: GraphBuilder, t: str) -> list[Tensor]:
        x = b.input("x", (5, 37), t)
        return [reduce.reduce_max(x, (axis,)) for axis in (0, 1)] + [reduce.reduce_min(x, (axis,)) for axis in (0, 1)]

    check(built(build, "bool"))


@pytest.mark.parametrize("extents", [(1,), (17,), (3, 7), (2, 5, 33)])
def test_arg_and_sorting(extents: tuple[int, ...]) -> None:
    def build(b: GraphBuilder, t: str) -> list[Tensor]:
        x = b.input("x", extents, t)
        made = []
        for axis in range(len(extents)):
            made += [reduce.arg_max(x, axis=axis), reduce.arg_min(x, axis=axis), reduce.hardmax(x, axis=axis)]
            made += list(reduce.top_k(x, k=1, axis=axis))
        return made

    check(built(build, "f32"))
    check(built(lambda b, t: [reduce.arg_max(b.input("x", extents, t), axis=0)], "i32"))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_image_norms(dtype: str) -> None:
    def build(b: GraphBuilder, t: str) -> list[Tensor]:
        x, y = b.input("x", (2, 6, 5, 7), t), [b.input(f"w{n}", (6,), t) for n in range(2)]
        stats = [b.constant(np.linspace(0.5, 1.5, 6).astype(dtypes.numpy_dtype(t)), f"s{n}") for n in range(2)]
        return [
            norm.batch_norm(x, *y, *stats), norm.instance_norm(x, *y), norm.group_norm(x, *y, groups=3),
            norm.local_response_norm(x, size=3),
        ]  # fmt: skip

    check(built(build, dtype))


# Windows --------------------------------------------------------------------------------------------------------------


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64"])
@pytest.mark.parametrize(
    ("extents", "kernel", "more"),
    [
        ((2, 3, 9), (3,), {"strides": 2}),
        ((1, 5, 7, 9), (3, 2), {"strides": 2, "pads": 1}),
        ((1, 17, 5, 5), (2, 2), {}),
        ((1, 2, 5, 6, 7), (2, 3, 2), {"pads": 1, "strides": 2}),
        ((1, 3, 11, 11), (3, 3), {"dilations": 2, "pads": 2}),
    ],
)
def test_pools(extents: tuple[int, ...], kernel: tuple[int, ...], more: dict[str, Any], dtype: str) -> None:
    def build(b: GraphBuilder, t: str) -> list[Tensor]:
        x = b.input("x", extents, t)
        return [
            pool.max_pool(x, kernel, **more), pool.average_pool(x, kernel, **more),
            *pool.max_pool_indices(x, kernel, **more), pool.lp_pool(x, kernel, **more),
            pool.global_average_pool(x), pool.global_max_pool(x),
        ]  # fmt: skip

    check(built(build, dtype))


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64"])
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(
    ("x", "w", "more"),
    [
        ((1, 3, 7, 9), (5, 3, 3, 2), {"pads": 1}),
        ((2, 4, 8, 8), (6, 2, 3, 3), {"groups": 2, "strides": 2, "pads": 1}),
        ((1, 17, 5, 5), (17, 1, 3, 3), {"groups": 17, "pads": 1}),
        ((1, 6, 9), (4, 6, 3), {"dilations": 2}),
        ((1, 3, 10, 10), (33, 3, 7, 7), {"strides": 4, "pads": 3}),
        ((3, 5, 1, 1), (7, 5, 1, 1), {}),
        ((1, 2, 5, 5, 5), (3, 2, 2, 2, 2), {"pads": 1}),
    ],
)
def test_convolutions(x: tuple[int, ...], w: tuple[int, ...], more: dict[str, Any], constant: bool, dtype: str) -> None:
    """With bias and an activation; padding folded or not, weights packed ahead of time or not."""

    def build(b: GraphBuilder, t: str) -> Tensor:
        image, weights, bias = b.input("x", x, t), b.input("w", w, t), b.input("c", (w[0],), t)
        y = conv.conv(elementwise.relu(image), weights, bias, **more)
        return elementwise.gelu(y)

    graph = built(build, dtype)
    check(constant_weights(graph) if constant else graph)


# Shapes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", some(["f32", "bf16", "i8", "bool", "i64", "f64"], 4))
def test_shapes(dtype: str) -> None:
    def build(b: GraphBuilder, t: str) -> list[Tensor]:
        x, y = b.input("x", (3, 5, 17), t), b.input("y", (3, 2, 17), t)
        made = [shape.transpose(x, perm) for perm in itertools.permutations(range(3))]
        made += [shape.reshape(x, size) for size in ((15, 17), (255,), (17, 15), (5, 51), (1, 3, 85, 1))]
        made += [shape.flip(x, axes) for axes in ((0,), (2,), (0, 1, 2))]
        made += [
            shape.pad(x, (1, 0, 3), (2, 1, 0), mode=mode)
            for mode in ("constant", "reflect", "edge", "wrap", "symmetric")
        ]
        made += [
            shape.pad(x, (0, -1, -2), (0, -2, 5)),
            shape.concat([x, y, x], axis=1),
            shape.stack([x, x], axis=2),
        ]
        made += [
            shape.slice_(x, (2, 1, 16), (2, 2, 6), (-1, 2, -3)),
            shape.tile(y, (2, 1, 3)),
            shape.roll(x, (1, 5), (0, 2)),
        ]
        made += [
            shape.expand(b.input("z", (5, 1), t), (2, 5, 7)),
            shape.trilu(x, 1),
            shape.trilu(x, -1, upper=False),
        ]
        d = b.input("d", (2, 8, 3, 5), t)
        made += [
            special_ops.depth_to_space(d, block=2),
            special_ops.space_to_depth(shape.pad(d, (0,) * 4, (0, 0, 1, 1)), block=2),
        ]
        return made

    check(built(build, dtype))


@pytest.mark.parametrize("dtype", some(["f32", "f16", "i8", "i64"], 2))
def test_gathers(dtype: str) -> None:
    def build(b: GraphBuilder, t: str) -> list[Tensor]:
        x = b.input("x", (5, 7, 17), t)
        i, wide = b.input("i", (3, 2), "i64"), b.input("e", (5, 3, 17), "i64")
        rows = b.input("n", (4, 2), "i32")
        made = [indexing.gather(x, i, axis=axis) for axis in range(3)]
        made += [indexing.gather_elements(x, wide, axis=1), indexing.gather_nd(x, rows)]
        made += [indexing.scatter_elements(x, wide, b.input("u", (5, 3, 17), t), axis=1, reduction="max")]
        made += [indexing.one_hot(i, 9, b.input("values", (2,), t), axis=-1)]
        return made

    generator = np.random.default_rng(0)
    given = {
        "i": generator.integers(-5, 5, (3, 2)), "e": generator.integers(-7, 7, (5, 3, 17)),
        "n": generator.integers(-5, 5, (4, 2)).astype(np.int32),
    }  # fmt: skip
    check(built(build, dtype), given)


@pytest.mark.parametrize("extents", [(0,), (0, 3), (3, 0), (2, 0, 5), ()])
def test_empty_and_scalar(extents: tuple[int, ...]) -> None:
    def build(b: GraphBuilder, t: str) -> list[Tensor]:
        x = b.input("x", extents, t)
        made = [
            elementwise.relu(x),
            elementwise.binary(x, x, "add"),
            reduce.reduce_sum(x),
            shape.stack([x, x]),
        ]
        return [*made, elementwise.cast(x, "i32"), x]

    for dtype in ("f32", "bf16"):
        check(built(build, dtype))


# One test per mistake that was once made ------------------------------------------------------------------------------


def test_a_part_of_a_row_is_no_row() -> None:
    """A sum over the first elements of a row does not share the loops of the sum over all of it."""

    def build(b: GraphBuilder, t: str) -> list[Tensor]:
        x = b.input("x", (3, 5), t)
        total = reduce.reduce_max(x, (1,))
        i, j, k = Axis("i", 3), Axis("j", 5), Axis("k", 3)
        shifted = b.add(Compute(Tensor("s", (3, 5), t), (i, j), x[i, j] - total[i, 0]))
        part = b.add(Compute(Tensor("p", (3,), t), (i,), shifted[i, k], (k,), "sum"))
        wide = Axis("w", 7)
        guarded = select(wide < 3, total[wide, 0], Const(0, t))
        return [part, b.add(Compute(Tensor("g", (7,), t), (wide,), guarded))]

    check(built(build, "f32"))


def test_gathered_operand_with_a_unit_loop() -> None:
    """b is read at ``[j + u, k]`` with u of extent 1: the copy that packs it has no such loop."""

    def build(b: GraphBuilder, t: str) -> Tensor:
        x, w = b.input("x", (70, 1, 8), t), b.input("w", (9, 8), t)
        i, u, j, k = Axis("i", 70), Axis("u", 1), Axis("j", 7), Axis("k", 8)
        return b.add(Compute(Tensor("y", (70, 1, 7), t), (i, u, j), x[i, u, k] * w[j + u + 1, k], (k,), "sum"))

    check(built(build, "f32"))


def test_rounding_of_a_quotient_by_a_row_value() -> None:
    """73.5 / 49 is 1.5 and rounds to 2; 73.5 times the reciprocal of 49 is less."""
    i, j, k = Axis("i", 2), Axis("j", 20), Axis("k", 20)
    x = Tensor("x", (2, 20), "f32")
    total = Compute(Tensor("total", (2,), "f32"), (i,), x[i, k], (k,), "sum")
    body = apply("round", x[i, j] / total.output[i])
    rounded = Compute(Tensor("rounded", (2, 20), "f32"), (i, j), body)
    graph = Graph((x,), (rounded.output,), (total, rounded), {}, "round")
    row = np.asarray([73.5, -24.5] + 18 * [0.0], np.float32)
    found = compile_graph(graph, "host", 1, replace(Options(), cache=False))(np.stack([row, row]))
    np.testing.assert_array_equal(found[:, :2], [[2.0, 0.0]] * 2)
