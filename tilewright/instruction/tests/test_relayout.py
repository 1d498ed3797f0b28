"""Generated relayouts as nodes of a graph: what runs, what is shared, folded, fused and cancelled."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from tilewright.errors import InvalidArgument
from tilewright.expr.core import Compute
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph
from tilewright.expr.infer import check_bounds
from tilewright.expr.text import parse_compute, parse_graph, print_graph
from tilewright.instruction.emulate import emulate, reference, small_values
from tilewright.instruction.mapping import mapping_of
from tilewright.instruction.matching import match
from tilewright.instruction.order import Digit
from tilewright.instruction.physical import PhysicalMapping, physical
from tilewright.instruction.relayout import (
    PREFIX,
    apply_mappings,
    fold_constants,
    fuse_producers,
    relayouts,
    undoes,
)  # fmt: skip
from tilewright.instruction.tests.sample_records import listed, matrix, operator, record
from tilewright.intrinsics.intrinsic import Movement

TWO = """graph two
input X: f32[2, 4, 6, 6]
const W: f32[4, 4, 3, 3]
const V: f32[6, 4]
Y: f32[n:2, k:4, p:4, q:4] += X[n, c, p + r, q + s] * W[k, c, r, s] over c:4, r:3, s:3
R: f32[n:2, k:4, p:4, q:4] = max(Y[n, k, p, q], 0.0)
Z: f32[n:2, k:6, p:4, q:4] += R[n, c, p, q] * V[k, c] over c:4
output Z
"""


def two(without_relu: bool = False) -> Graph:
    text = TWO.replace("R: f32[n:2, k:4, p:4, q:4] = max(Y[n, k, p, q], 0.0)\n", "").replace("+= R[", "+= Y[")
    generator = random.Random(0)
    constants = {"W": small_values("f32", (4, 4, 3, 3), generator), "V": small_values("f32", (6, 4), generator)}
    return parse_graph(text if without_relu else TWO, constants)


def chosen(graph: Graph, name: str, sets: list[str], *tile: int) -> PhysicalMapping:
    node = graph.producers()[name]
    return physical(mapping_of(match(node, matrix(*tile or (2,)))[0], sets))


def run(graph: Graph) -> np.ndarray:
    values = small_values("f32", (2, 4, 6, 6), random.Random(1))
    return evaluate(graph, [values])[0]


def test_a_graph_with_mapped_nodes_computes_the_same() -> None:
    graph = two()
    mapped = apply_mappings(
        graph, {"Y": chosen(graph, "Y", ["npq", "k", "crs"]), "Z": chosen(graph, "Z", ["npq", "k", "c"])}
    )
    check_bounds(mapped)
    np.testing.assert_array_equal(run(mapped), run(graph))
    assert parse_graph(print_graph(mapped), mapped.constants) == mapped


def test_constants_are_folded_and_maps_fused() -> None:
    graph = two()
    mapped = apply_mappings(
        graph, {"Y": chosen(graph, "Y", ["npq", "k", "crs"]), "Z": chosen(graph, "Z", ["npq", "k", "c"])}
    )
    folded = fold_constants(mapped)
    assert sum(node.name.startswith(PREFIX) for node in mapped.nodes) == 4
    assert sum(node.name.startswith(PREFIX) for node in folded.nodes) == 2
    assert set(folded.constants).isdisjoint({"W", "V"})
    fused = fuse_producers(folded)
    # What is left: pack X, multiply, pack with the maximum, multiply, unpack.
    assert len(fused.nodes) == 5
    np.testing.assert_array_equal(run(fused), run(graph))


@pytest.mark.parametrize(("computed", "fused"), [("max(X[n, c, p, q], 0.0)", False), ("X[n, c, q, p]", True)])
def test_what_windows_take_several_times_is_not_computed_again(computed: str, fused: bool) -> None:
    text = TWO.replace("Y: ", f"A: f32[n:2, c:4, p:6, q:6] = {computed}\nY: ").replace("+= X[", "+= A[")
    graph = parse_graph(text, dict(two().constants))
    mapped = apply_mappings(
        graph, {"Y": chosen(graph, "Y", ["npq", "k", "crs"]), "Z": chosen(graph, "Z", ["npq", "k", "c"])}
    )
    merged = fuse_producers(fold_constants(mapped))
    assert ("A" not in {node.name for node in merged.nodes}) == fused
    assert "R" not in {node.name for node in merged.nodes}  # of which each element is taken once
    np.testing.assert_array_equal(run(merged), run(graph))


def test_relayouts_that_undo_each_other_cancel() -> None:
    graph = two(without_relu=True)
    first, second = chosen(graph, "Y", ["npq", "k", "crs"]), chosen(graph, "Z", ["npq", "k", "c"])
    assert undoes(first, second, 0)
    mapped = fold_constants(apply_mappings(graph, {"Y": first, "Z": second}))
    assert [node.name.startswith(PREFIX) for node in mapped.nodes].count(True) == 1
    assert [node.name for node in mapped.nodes][1:] == ["Y.packed", "Z.packed", "Z"]
    np.testing.assert_array_equal(run(mapped), run(graph))


def test_elementwise_operators_move_behind_the_first_relayout() -> None:
    """Relu and a bias per channel between two products run on the packed result of the first."""
    text = TWO.replace("const V", "const B: f32[4]\nconst V").replace(
        "R: f32[n:2, k:4, p:4, q:4] = max(Y[n, k, p, q], 0.0)",
        "S: f32[n:2, k:4, p:4, q:4] = Y[n, k, p, q] + B[k]\nR: f32[n:2, k:4, p:4, q:4] = max(S[n, k, p, q], 0.0)",
    )
    constants = {**two().constants, "B": np.array([-9, 5, 0, 1], np.float32)}
    graph = parse_graph(text, constants)
    for tile in ((2, 2, 2), (4, 4, 4), (3, 2, 2)):  # 32 rows: the last leaves padding, in which 0 + B is not 0
        mapped = fold_constants(apply_mappings(
            graph,
            {"Y": chosen(graph, "Y", ["npq", "k", "crs"], *tile), "Z": chosen(graph, "Z", ["npq", "k", "c"], *tile)},
        ))  # fmt: skip
        assert len(mapped.nodes) == 5  # pack X, multiply, bias and relu, multiply, unpack
        between = mapped.nodes[2]
        assert [str(read.indices) for read in between.reads() if read.tensor.name == "Y.packed"] == [str(between.axes)]
        np.testing.assert_array_equal(run(mapped), run(graph))


def test_maps_that_also_read_elsewhere_stay() -> None:
    text = TWO.replace("max(Y[n, k, p, q], 0.0)", "Y[n, k, p, q] - Y[n, k, p, 0]")
    graph = parse_graph(text, dict(two().constants))
    mapped = apply_mappings(
        graph, {"Y": chosen(graph, "Y", ["npq", "k", "crs"]), "Z": chosen(graph, "Z", ["npq", "k", "c"])}
    )
    assert "R" in {node.name for node in mapped.nodes}
    np.testing.assert_array_equal(run(mapped), run(graph))


def test_results_that_are_read_elsewhere_are_still_written() -> None:
    graph = two()
    both = replace(graph, outputs=(*graph.outputs, graph.producers()["R"].output))
    mapped = apply_mappings(
        both, {"Y": chosen(graph, "Y", ["npq", "k", "crs"]), "Z": chosen(graph, "Z", ["npq", "k", "c"])}
    )
    values = small_values("f32", (2, 4, 6, 6), random.Random(1))
    for found, wanted in zip(evaluate(mapped, [values]), evaluate(both, [values]), strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("first", "second", "tile"),
    [
        (["npq", "k", "crs"], ["nq", "k", "c"], 2),  # other loops outside
        (["np", "k", "crs"], ["pq", "k", "c"], 2),
        (["npq", "k", "crs"], ["npq", "k", "c"], 3),  # 4 channels in tiles of 3: the padding may hold anything
    ],
)
def test_other_orders_and_padded_sums_do_not_cancel(first: list[str], second: list[str], tile: int) -> None:
    graph = two(without_relu=True)
    one, other = chosen(graph, "Y", first, tile), chosen(graph, "Z", second, tile)
    assert not undoes(one, other, 0)
    np.testing.assert_array_equal(run(apply_mappings(graph, {"Y": one, "Z": other})), run(graph))


def test_padding_of_a_cancelled_sum_would_leak() -> None:
    """Why padded reductions do not cancel: zeros times infinity are in the padding of the first result."""
    graph = two(without_relu=True)
    weights = graph.constants["W"].copy()
    weights[0] = np.inf
    spoiled = replace(graph, constants={**graph.constants, "W": weights})
    mapped = apply_mappings(
        spoiled, {"Y": chosen(graph, "Y", ["npq", "k", "crs"], 3), "Z": chosen(graph, "Z", ["npq", "k", "c"], 3)}
    )
    np.testing.assert_array_equal(np.isnan(run(mapped)), np.isnan(run(spoiled)))


def test_equal_relayouts_of_one_tensor_are_one_node() -> None:
    text = """graph shared
input A: f32[6, 5]
input B: f32[5, 4]
input C: f32[5, 4]
P: f32[i:6, j:4] += A[i, x] * B[x, j] over x:5
Q: f32[i:6, j:4] += A[i, x] * C[x, j] over x:5
output P
output Q
"""
    graph = parse_graph(text)
    mapped = apply_mappings(graph, {name: chosen(graph, name, ["i", "j", "x"]) for name in "PQ"})
    assert sum(node.name.startswith(PREFIX) for node in mapped.nodes) == 3


def test_names_of_operators_do_not_matter() -> None:
    one = operator("C2D")
    other = replace(one, source="anything", output=replace(one.output, name="Q"))
    for left, right in zip(listed(one, matrix(2)), listed(other, matrix(2)), strict=True):
        assert str(left) == str(right)
        assert [node.name for node in relayouts(physical(left))] == [node.name for node in relayouts(physical(right))]


@pytest.mark.parametrize("text", ["S[i] += A[i,x] * A[i,x]", "S[i,j] += A[i,x] * A[j,x]", "S[i,j] += A[i,x] * A[x,j]"])
def test_one_tensor_as_both_factors(text: str) -> None:
    node = parse_compute(text, {"i": 5, "j": 5, "x": 5} if "j" in text else {"i": 5, "x": 5})
    vector = record("Dst[i] += Src1[i, r] * Src2[r, i]", {"i": 2, "r": 2}) if "j" not in text else matrix(2)
    found = listed(node, vector, "signature")
    assert found
    graph = Graph(node.inputs(), (node.output,), (node,))
    values = small_values("f32", (5, 5), random.Random(0))
    for each in found:
        mapped = apply_mappings(graph, {"S": physical(each)})
        np.testing.assert_array_equal(evaluate(mapped, [values])[0], reference(node, {"A": values}))
        exact(physical(each), node)


def test_unknown_nodes_are_refused() -> None:
    graph = two()
    with pytest.raises(InvalidArgument, match="no node 'Nope'"):
        apply_mappings(graph, {"Nope": chosen(graph, "Y", ["n", "k", "c"])})


def exact(whole: PhysicalMapping, node: Compute) -> None:
    generator = random.Random(0)
    tensors = {each.name: small_values(each.dtype, each.shape, generator) for each in node.inputs()}  # type: ignore[arg-type]
    np.testing.assert_array_equal(emulate(whole, tensors), reference(node, tensors))


def test_layout_formulas_order_tiles() -> None:
    groups = record(
        "Dst[i1, i2] += Src1[i1, r1] * Src2[r1, i2]", {"i1": 2, "i2": 4, "r1": 4},
        layouts={"Src2": "r1 // 2 * 8 + i2 * 2 + r1 % 2"},
    )  # fmt: skip
    node = parse_compute("C[i,j] += A[i,x] * B[x,j]", {"i": 3, "j": 7, "x": 6})
    (mapping,) = listed(node, groups)
    whole = physical(mapping)
    assert whole.placements[1].digits == (Digit("r1", 2, 2), Digit("i2", 1, 4), Digit("r1", 1, 2))
    assert dict(whole.placements[1].strides) == {"r1": 1, "i2": 2}
    exact(whole, node)


def test_fractal_order() -> None:
    """Z inside of z: 16-element tiles of 2 x 2 in both directions, and a result in columns of tiles."""
    fractal = record(
        "Dst[i1, i2] += Src1[i1, r1] * Src2[r1, i2]", {"i1": 4, "i2": 4, "r1": 4},
        layouts={
            "Src1": "(i1 // 2 * 2 + r1 // 2) * 4 + i1 % 2 * 2 + r1 % 2",
            "Dst": "(i2 // 2 * 2 + i1 // 2) * 4 + i1 % 2 * 2 + i2 % 2",
        },
    )  # fmt: skip
    node = parse_compute("C[i,j] += A[i,x] * B[x,j]", {"i": 6, "j": 5, "x": 7})
    (mapping,) = listed(node, fractal)
    whole = physical(mapping)
    assert [digit.index for digit in whole.placements[2].digits] == ["i2", "i1", "i1", "i2"]
    exact(whole, node)


@pytest.mark.parametrize("layout", ["2 * i1 + r1 % 2", "8 * i1 + r1", "i1 // r1"])
def test_formulas_that_do_not_number_every_element_once_are_refused(layout: str) -> None:
    wrong = record(extents={"i1": 4, "i2": 4, "r1": 4}, layouts={"Src1": layout})
    node = parse_compute("C[i,j] += A[i,x] * B[x,j]", {"i": 6, "j": 5, "x": 7})
    (mapping,) = listed(node, wrong)
    with pytest.raises(InvalidArgument):
        _ = physical(mapping).placements


def test_movements_choose_the_order_of_a_tile() -> None:
    columns = record(
        memory=(Movement("ldb", "Src2", "reg", "shared", "addr + i2 * stride + r1", stride_multiple=2),),
        extents={"i1": 2, "i2": 2, "r1": 4},
    )
    node = parse_compute("C[i,j] += A[i,x] * B[x,j]", {"i": 3, "j": 7, "x": 6})
    (mapping,) = listed(node, columns)
    assert [loop.name for loop in physical(mapping).placements[1].loops] == ["i2", "r1"]
    exact(physical(mapping), node)
    exact(physical(mapping, storage="strided"), node)


def test_storage_is_checked() -> None:
    (mapping,) = listed(operator("GMM"), matrix(2))
    with pytest.raises(InvalidArgument, match="storage"):
        physical(mapping, storage=("packed",))
