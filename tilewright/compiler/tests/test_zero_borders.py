"""Borders of zeros are written once, with the arena: no kernel writes them, and no other tensor lies over them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.covering import tries
from tilewright.compiler.compile import build, compile_graph, plan_graph, resolve_target
from tilewright.compiler.plan import Plan
from tilewright.compiler.program import Placement
from tilewright.compiler.source import GraphSource
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import conv, elementwise, pool
from tilewright.options import Options
from tilewright.runtime.memory import align

OPTIONS = Options(cache=False)
EXTENTS = st.sampled_from([1, 2, 3, 5, 7, 11, 17])
CHANNELS = st.sampled_from([1, 3, 8, 17])


@st.composite
def networks(draw: st.DrawFn) -> Graph:
    """Layers of windows with padding, some of which read the result of an earlier layer once more."""
    b = GraphBuilder("g")
    channels = draw(CHANNELS)
    x = b.input("x", (draw(st.sampled_from([1, 2])), channels, draw(EXTENTS), draw(EXTENTS)), "f32")
    layers = [x]
    for number in range(draw(st.integers(2, 4))):
        kernel, filters = draw(st.sampled_from([(1, 3), (3, 3), (3, 1), (5, 3)])), draw(CHANNELS)
        pads = tuple(size // 2 for size in kernel)
        source = draw(st.sampled_from(layers[-2:]))
        w = np.random.default_rng(number).uniform(-1, 1, (filters, source.shape[1], *kernel)).astype(np.float32)
        y = conv.conv(source, b.constant(w, f"w{number}"), pads=pads, strides=draw(st.sampled_from([1, 1, 2])))
        layers.append(elementwise.relu(y))
    return b.finish([layers[-1]])


def inputs_of(graph: Graph, seed: int) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    return [rng.uniform(-1, 1, [int(str(n)) for n in t.shape]).astype(np.float32) for t in graph.inputs]


def plan_of(graph: Graph, machine: str = "x86-64-v3") -> Plan:
    return plan_graph(graph, resolve_target(machine, OPTIONS), 1, OPTIONS)


@given(networks())
@settings(max_examples=tries(2, 200), deadline=None)
def test_later_calls_find_the_border_as_it_was(graph: Graph) -> None:
    """After a call of which every value is NaN."""
    module = compile_graph(graph, "host", threads=1, options=OPTIONS)
    for arrays in ([np.full(np.shape(a), np.nan, np.float32) for a in inputs_of(graph, 0)], inputs_of(graph, 1)):
        (expected,) = evaluate(graph, arrays)
        np.testing.assert_allclose(module(*arrays), expected, rtol=2e-5, atol=2e-4)


@given(networks())
@settings(max_examples=tries(2, 40), deadline=None)
def test_later_calls_in_the_emulator_find_the_border_as_it_was(graph: Graph) -> None:
    module = compile_graph(graph, "sm_80", options=OPTIONS, device="emulator")
    for seed in range(2):
        arrays = inputs_of(graph, seed)
        (expected,) = evaluate(graph, arrays)
        np.testing.assert_allclose(module(*arrays), expected, rtol=2e-3, atol=5e-2)


@given(networks(), st.sampled_from(["x86-64-v3", "znver5", "sm_80", "gfx1201"]))
@settings(max_examples=tries(10, 300), deadline=None)
def test_only_tensors_with_the_same_border_share_its_memory(graph: Graph, machine: str) -> None:
    plan = plan_of(graph, machine)
    placement = Placement(plan)
    places = {
        name: range(placement.places[name].index, placement.places[name].index + stored.bytes)
        for name, stored in plan.stored.items()
        if stored.space == "arena" and name in placement.places and not stored.owner
    }
    zeroed = {name for name in places if plan.stored[name].zero_border}
    for name, place in places.items():
        assert (place.stop <= placement.zeroed_bytes) == (name in zeroed)
        assert (place.start < placement.zeroed_bytes) == (name in zeroed)
        for other in zeroed:
            if place.start < places[other].stop and places[other].start < place.stop:
                assert plan.stored[name].layout == plan.stored[other].layout
                assert place == places[other]


def window(value: float, size: int = 9) -> Graph:
    b = GraphBuilder("g")
    x = elementwise.relu(b.input("x", (1, 8, size, size), "f32"))
    w = b.constant(np.ones((8, 8, 3, 3), np.float32), "w")
    return b.finish([conv.conv(x, w, pads=1, pad_value=value)])


@pytest.mark.parametrize(("value", "kernels"), [(0.0, 0), (1.5, 2), (-0.0, 2)])
def test_borders_of_other_values_are_written_in_every_call(value: float, kernels: int) -> None:
    """The bytes of -0.0 are not 0."""
    plan = plan_of(window(value))
    assert sum("border" in kernel.name for kernel in plan.kernels) == kernels
    assert (Placement(plan).zeroed_bytes > 0) == (kernels == 0)


def test_a_pool_has_a_border_that_is_written() -> None:
    b = GraphBuilder("g")
    graph = b.finish([pool.max_pool(elementwise.relu(b.input("x", (1, 8, 9, 9), "f32")), (3, 3), pads=1)])
    assert Placement(plan_of(graph)).zeroed_bytes == 0


def test_the_border_of_a_large_tensor_is_written_on_a_cpu() -> None:
    """It takes a small part of the time in which the tensor is written, and the tensor may share memory."""
    graph = window(0.0, 200)
    assert Placement(plan_of(graph)).zeroed_bytes == 0
    assert Placement(plan_of(graph, "sm_80")).zeroed_bytes > 0


def test_the_manifest_says_which_bytes_are_zeros() -> None:
    artifact = build(GraphSource(window(0.0)), resolve_target("x86-64-v3", OPTIONS), 1, OPTIONS)
    manifest = artifact.manifest
    assert manifest.zeroed_bytes == align(11 * 11 * 8 * 4)
    assert f"arena {manifest.arena_bytes} zeroed {manifest.zeroed_bytes} " in artifact.program
