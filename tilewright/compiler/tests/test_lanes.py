"""Sums of products without a loop for the vector of an outer product: the record decides the lanes."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.compiler.compile import build, compile_graph
from tilewright.compiler.make_plan import make_plan
from tilewright.expr import GraphBuilder
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph
from tilewright.expr.ops import conv, linalg, reduce
from tilewright.intrinsics.registry import Registry, standard
from tilewright.layouts import permuted
from tilewright.machine import host, resolve_cpu
from tilewright.options import Options


def depthwise(channels: int, size: int = 9) -> Graph:
    """A depthwise 3x3 convolution after a 1x1 one, so that its input may be stored with channels innermost."""
    b = GraphBuilder()
    rng = np.random.default_rng(0)
    x = b.input("x", (1, 5, size, size), "f32")
    first = conv.conv(x, b.constant(rng.standard_normal((channels, 5, 1, 1)).astype("f4"), "v"), name="first")
    w = b.constant(rng.standard_normal((channels, 1, 3, 3)).astype("f4"), "w")
    second = conv.conv(first, w, pads=1, groups=channels, name="second")
    last = conv.conv(second, b.constant(rng.standard_normal((7, channels, 1, 1)).astype("f4"), "u"), name="last")
    return b.finish([last])


def chosen(graph: Graph, intrinsics: Registry | None = None) -> tuple[str, str]:
    """What the depthwise product runs on, and the program."""
    artifact = build(graph, resolve_cpu("x86-64-v4"), 1, Options(cache=False, intrinsics=intrinsics))
    decisions = artifact.stored_plan().decisions
    said = next((each.explain() for each in decisions if each.subject == "instruction of second"), "")
    return said.partition("\n")[0], artifact.program


@pytest.mark.parametrize("channels", [1, 7, 16, 33])
def test_depthwise_convolutions_agree(channels: int) -> None:
    graph = depthwise(channels)
    x = np.random.default_rng(1).standard_normal((1, 5, 9, 9)).astype("f4")
    module = compile_graph(graph, threads=1, options=Options(cache=False))
    (expected,) = evaluate(graph, [x], precise=True, wide=True)
    assert np.abs(module(x) - expected).max() <= 1e-5 * np.abs(expected).max()


def test_weights_lie_along_vectors_where_no_product_reads_the_result() -> None:
    """What reads the result wants no order, so that the order of what the convolution reads is asked for."""
    b = GraphBuilder()
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 5, 9, 9)).astype("f4")
    first = conv.conv(b.input("x", x.shape, "f32"), b.constant(rng.standard_normal((33, 5, 1, 1)).astype("f4"), "v"))
    w = b.constant(rng.standard_normal((33, 1, 3, 3)).astype("f4"), "w")
    second = conv.conv(first, w, pads=1, groups=33, name="second")
    graph = b.finish([reduce.reduce_mean(second, [2, 3], keepdims=True)])
    assert make_plan(graph, host(), 1).stored["w"].layout == permuted((33, 1, 3, 3), [1, 2, 3, 0])
    (expected,) = evaluate(graph, [x], precise=True, wide=True)
    found = compile_graph(graph, threads=1, options=Options(cache=False))(x)
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


def test_the_record_is_named_and_decides_the_lanes() -> None:
    graph = depthwise(32)
    wide, program = chosen(graph)
    assert "on fma_full_16_f32_f32" in wide
    narrow, other = chosen(graph, standard().without("fma_full_16_f32_f32"))
    assert "on fma_full_8_f32_f32" in narrow
    assert program != other


@pytest.mark.covering(1)
@pytest.mark.parametrize(("image", "kernel"), [("f32", "f32"), ("f64", "f64"), ("u8", "i8")])
@pytest.mark.parametrize("size", [5, 16, 33])
def test_lone_images_have_the_pixels_of_a_row_as_lanes(image: str, kernel: str, size: int) -> None:
    rng = np.random.default_rng(2)
    b = GraphBuilder()
    x = b.input("x", (2, 3, size, size), image)
    factor = rng.integers(-3, 4, (3, 1, 3, 3)).astype({"f32": "f4", "f64": "f8", "i8": "i1"}[kernel])
    w = b.constant(factor, "w")
    accumulate = "i32" if kernel == "i8" else None
    graph = b.finish([conv.conv(x, w, pads=1, strides=2, groups=3, name="second", accumulate=accumulate)])
    line, program = chosen(graph)
    record = {"f32": "fma_16_f32_f32", "f64": "fma_8_f64_f64", "i8": "widen_16_s8u8_s32"}[kernel]
    assert f"on {record}, because the loop indexes one factor" in line
    narrower, other = chosen(graph, standard().without(record))
    assert "because the loop indexes one factor" in narrower
    assert record not in narrower
    assert program != other or size < 33  # a row of 3 or 8 pixels is one vector with both
    value = rng.integers(0, 9, (2, 3, size, size)).astype({"f32": "f4", "f64": "f8", "u8": "u1"}[image])
    for intrinsics in (None, standard().without(record)):
        module = compile_graph(graph, threads=1, options=Options(cache=False, intrinsics=intrinsics))
        np.testing.assert_array_equal(module(value), evaluate(graph, [value])[0])


def test_without_any_record_it_is_a_plain_nest() -> None:
    names = [record.name for record in standard() if record.name.startswith("fma_")]
    line, _ = chosen(depthwise(32), standard().without(*names))
    assert line == "instruction of second: none, because no record has a mapping that reads its operands where they are"


@pytest.mark.parametrize(("columns", "lanes"), [(12, 4), (16, 8), (4, 4), (116, 8), (20, 8)])
def test_columns_that_are_no_whole_vectors_may_have_narrow_ones(columns: int, lanes: int) -> None:
    """On a Zen 1 three narrow multiply-adds take less than two of whole vectors, and five no less than three."""
    b = GraphBuilder()
    w = np.random.default_rng(0).standard_normal((64, columns)).astype("f4")
    graph = b.finish([linalg.matmul(b.input("x", (600, 64), "f32"), b.constant(w, "w"), name="y")])
    decisions = make_plan(graph, resolve_cpu("znver1"), 1).decisions
    (said,) = (each.chosen for each in decisions if each.subject == "instruction of y")
    assert said.endswith(f"on fma_{lanes}_f32_f32")
