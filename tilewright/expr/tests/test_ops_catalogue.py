"""The catalogue: every operator's nodes and loops as the specifications count them, and its values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.errors import ExtentMismatch, InvalidArgument
from tilewright.expr import Compute, Graph, GraphBuilder
from tilewright.expr.affine import affine
from tilewright.expr.core import Read, walk
from tilewright.expr.dtypes import numpy_dtype
from tilewright.expr.evaluate import evaluate
from tilewright.expr.infer import check_bounds
from tilewright.expr.ops import catalogue, special_ops

Array = np.ndarray[Any, Any]


def main_node(graph: Graph) -> Compute:
    """The last node that reduces."""
    return [node for node in graph.nodes if node.accum][-1]


# Spec 2, section 2.2: (spatial, reduction) loops per node, inputs per node.
SCHEDULE_FORM = {
    "GMV": ([(1, 1)], [2]),
    "GMM": ([(2, 1)], [2]),
    "BIL": ([(2, 2)], [3]),
    "C1D": ([(3, 0), (3, 2)], [1, 2]),
    "T1D": ([(3, 0), (3, 0), (3, 2)], [1, 1, 2]),
    "C2D": ([(4, 0), (4, 3)], [1, 2]),
    "T2D": ([(4, 0), (4, 0), (4, 3)], [1, 1, 2]),
    "C3D": ([(5, 0), (5, 4)], [1, 2]),
    "T3D": ([(5, 0), (5, 0), (5, 4)], [1, 1, 2]),
    "GRP": ([(4, 0), (4, 3)], [1, 2]),
    "DEP": ([(4, 0), (4, 2)], [1, 2]),
    "DIL": ([(4, 0), (4, 3)], [1, 2]),
    "BCM": ([(2, 1), (2, 0)], [1, 1]),
    "SHO": ([(4, 0), (4, 0)], [1, 2]),
}


@pytest.mark.parametrize("short", SCHEDULE_FORM)
def test_spec2_g1_mini_graph_counts(short: str) -> None:
    graph = catalogue.build(short)
    loops, inputs = SCHEDULE_FORM[short]
    assert [(len(node.axes), len(node.reduce)) for node in graph.nodes] == loops
    assert [len(node.inputs()) for node in graph.nodes] == inputs
    consumers = graph.consumers()
    assert [len(consumers.get(node.name, [])) for node in graph.nodes] == [1] * (len(graph.nodes) - 1) + [0]


def test_spec2_g1_main_counts_of_grouped_depthwise_dilated() -> None:
    counts = {s: (len(n.axes), len(n.reduce)) for s in ("GRP", "DEP", "DIL") if (n := main_node(catalogue.build(s)))}
    assert counts == {"GRP": (4, 3), "DEP": (4, 2), "DIL": (4, 3)}


def test_spec2_static_analysis_of_gemm() -> None:
    (node,) = catalogue.build("GMM", m=1024, n=1024, k=1024).nodes
    assert [axis.name for axis in node.loops] == ["i", "j", "k"]
    assert [axis.extent for axis in node.loops] == [1024, 1024, 1024]


# Spec 3, section 2.2: the ranks of output, first and second operand of the main node.
MAPPING_FORM = {
    "GMV": (2, 2, 2), "GMM": (2, 2, 2), "C1D": (3, 3, 3), "C2D": (4, 4, 4), "C3D": (5, 5, 5), "T2D": (4, 4, 4),
    "GRP": (5, 5, 5), "DIL": (4, 4, 4), "DEP": (5, 4, 4), "CAP": (5, 4, 5), "BCV": (4, 4, 5), "GFC": (3, 3, 3),
    "MEN": (2, 2, 2), "VAR": (2, 2, 2), "SCN": (2, 2, 2),
}  # fmt: skip


@pytest.mark.parametrize("short", MAPPING_FORM)
def test_spec3_mapping_forms_are_affine_products(short: str) -> None:
    node = main_node(catalogue.build(short, form="mapping"))
    left, right = node.body.children()
    assert isinstance(left, Read)
    assert isinstance(right, Read)
    assert (node.output.rank, left.tensor.rank, right.tensor.rank) == MAPPING_FORM[short]
    indices = [affine(index) for read in (left, right) for index in read.indices]
    assert all(form is not None for form in indices)


def test_every_operator_of_the_three_tables_is_there() -> None:
    names = "GMV GMM BIL C1D T1D C2D T2D C3D T3D GRP DEP DIL CAP BCV GFC BCM SHO MEN VAR SCN"
    assert list(catalogue.OPERATORS) == names.split()


@pytest.mark.parametrize("short", catalogue.OPERATORS)
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_reads_stay_in_bounds_and_types_are_kept(short: str, dtype: str) -> None:
    for form in catalogue.OPERATORS[short].forms:
        graph = catalogue.build(short, form=form, dtype=dtype)
        check_bounds(graph)
        assert graph.outputs[0].dtype == dtype
        assert graph.outputs == (graph.nodes[-1].output,)


ODD = {"batch": 2, "c": 6, "size": 7, "k": 10}
SMALL: dict[str, dict[str, int]] = {
    "GMV": {"rows": 7, "columns": 13}, "C1D": ODD, "C2D": ODD, "DIL": ODD | {"pad": 2}, "T2D": ODD,
    "C3D": {"batch": 1, "c": 3, "size": 5, "k": 2, "depth": 4}, "GRP": ODD | {"groups": 2},
    "DEP": {"batch": 2, "c": 3, "size": 7, "multiplier": 2},
}  # fmt: skip


@pytest.mark.parametrize("short", SMALL)
def test_both_forms_compute_the_same(short: str) -> None:
    flat, mapping = (catalogue.build(short, form=form, **SMALL[short]) for form in ("schedule", "mapping"))
    generator = np.random.default_rng(0)
    inputs = [generator.standard_normal(t.shape).astype(numpy_dtype(t.dtype)) for t in flat.inputs]
    (one,) = evaluate(flat, inputs)
    (two,) = evaluate(mapping, [array.reshape(t.shape) for array, t in zip(inputs, mapping.inputs, strict=True)])
    assert np.array_equal(one, two.reshape(one.shape))


def test_mapping_only_operators_agree_with_numpy() -> None:
    generator = np.random.default_rng(0)

    def run(short: str, **sizes: int) -> tuple[Array, list[Array]]:
        graph = catalogue.build(short, form="mapping", **sizes)
        inputs = [generator.standard_normal(t.shape).astype(np.float32) for t in graph.inputs]
        return evaluate(graph, inputs)[0], [array.astype(np.float64) for array in inputs]

    got, (x, w) = run("CAP", batch=2, c=3, size=7, k=2, kernel=3, stride=2, pad=1, capsules=5)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)]), (3, 3), (2, 3))
    assert np.allclose(got, np.einsum("ncpqrs,kcrsu->nkpqu", windows[:, :, ::2, ::2], w), atol=1e-5)
    got, (x, w) = run("BCV", batch=3, c=2, size=5, k=4)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)]), (3, 3), (2, 3))
    assert np.allclose(got, np.einsum("ncpqrs,nkcrs->nkpq", windows, w), atol=1e-5)
    got, (x, w) = run("GFC", batch=2, c=6, k=9, groups=3)
    assert np.allclose(got, np.einsum("ngc,gkc->ngk", x, w), atol=1e-6)
    got, (x,) = run("MEN", batch=3, c=5, size=7)
    assert np.allclose(got[:, 0], x.mean((0, 2, 3)), atol=1e-6)
    got, (x,) = run("VAR", batch=3, c=5, size=7)
    assert np.allclose(got[:, 0], x.var((0, 2, 3)), rtol=1e-5)
    got, (a,) = run("SCN", m=3, n=13, k=17)
    assert np.allclose(got, np.cumsum(a, 1)[:, :13], atol=1e-5)


def test_spec2_g30_compress() -> None:
    graph = catalogue.build("BCM", rows=8, columns=8, block=4)
    compress = Graph(graph.inputs, (graph.nodes[0].output,), graph.nodes[:1])
    deterministic = ((7 * np.arange(64)) % 11 - 5).reshape(8, 8).astype(np.float32)
    (z,) = evaluate(compress, [deterministic])
    assert z.shape == (2, 8)
    assert np.sum(np.arange(1, 17) * 4 * z.ravel()) == 21


def test_block_circulant_projection_is_idempotent_and_circulant() -> None:
    graph = catalogue.build("BCM", rows=6, columns=9, block=3)
    x = np.random.default_rng(0).standard_normal((6, 9)).astype(np.float32)
    (once,) = evaluate(graph, [x])
    (twice,) = evaluate(graph, [once])
    assert np.allclose(once, twice, atol=1e-6)
    for i in range(0, 6, 3):
        for j in range(0, 9, 3):
            block = once[i : i + 3, j : j + 3]
            for r in range(3):
                assert np.array_equal(block[r], np.roll(block[0], r))
                diagonal = [x[i + s, j + (s + r) % 3] for s in range(3)]
                assert np.isclose(block[0, r], np.mean(diagonal), atol=1e-6)


@pytest.mark.parametrize(("kernel", "dilation"), [(1, 1), (3, 1), (3, 2), (5, 1)])
def test_shift_moves_every_channel(kernel: int, dilation: int) -> None:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((2, 7, 5, 11)).astype(np.float32)
    positions = generator.integers(0, kernel * kernel, 11)
    b = GraphBuilder()
    out = special_ops.shift(b.input("x", x.shape, "f32"), b.input("p", (11,), "i64"), kernel=kernel, dilation=dilation)
    (got,) = evaluate(b.finish([out]), [x, positions])
    border = dilation * (kernel - 1) // 2
    padded = np.pad(x, [(0, 0), (border, border), (border, border), (0, 0)])
    for c, place in enumerate(positions):
        top, left = (place // kernel) * dilation, (place % kernel) * dilation
        assert np.array_equal(got[..., c], padded[:, top : top + 7, left : left + 5, c])


@pytest.mark.parametrize("order", ["DCR", "CRD"])
@pytest.mark.parametrize(("block", "sizes"), [(1, (3, 5)), (2, (3, 5)), (3, (1, 2)), (2, (5,)), (2, (2, 3, 1))])
def test_depth_to_space_and_back(order: Any, block: int, sizes: tuple[int, ...]) -> None:
    rank, depth = len(sizes), 3
    x = np.random.default_rng(0).standard_normal((2, depth * block**rank, *sizes)).astype(np.float32)
    b = GraphBuilder()
    spread = special_ops.depth_to_space(b.input("x", x.shape, "f32"), block=block, order=order)
    back = special_ops.space_to_depth(spread, block=block, order=order)
    graph = b.finish([spread, back])
    check_bounds(graph)
    got, again = evaluate(graph, [x])
    blocks = [block] * rank
    apart = x.reshape(2, *blocks, depth, *sizes) if order == "DCR" else x.reshape(2, depth, *blocks, *sizes)
    if order == "DCR":
        apart = np.moveaxis(apart, rank + 1, 1)
    pairs = [d for i in range(rank) for d in (2 + rank + i, 2 + i)]
    want = apart.transpose(0, 1, *pairs).reshape(2, depth, *(size * block for size in sizes))
    assert np.array_equal(got, want)
    assert np.array_equal(again, x)


def test_blocks_that_do_not_fit_are_refused() -> None:
    b = GraphBuilder()
    x = b.input("x", (1, 6, 5, 4), "f32")
    with pytest.raises(ExtentMismatch, match="6 channels of") as caught:
        special_ops.depth_to_space(x, block=2)
    assert caught.value.help == "give 4"
    with pytest.raises(ExtentMismatch, match="extent 5 of"):
        special_ops.space_to_depth(x, block=2)


def test_data_dependent_index_is_the_only_one_without_an_affine_form() -> None:
    graph = catalogue.build("SHO")
    reads = [node for node in walk(graph.nodes[-1].body) if isinstance(node, Read) and node.tensor.rank == 4]
    assert [affine(index) is None for index in reads[0].indices] == [False, True, True, False]


def test_wrong_requests_are_refused() -> None:
    for arguments, message in (
        ({"short": "XYZ"}, "unknown operator 'XYZ'"),
        ({"short": "BIL", "form": "mapping"}, "BIL has no mapping form"),
        ({"short": "GMM", "rows": 3}, "GMM has no size 'rows'"),
    ):
        with pytest.raises(InvalidArgument) as caught:
            catalogue.build(**arguments)  # type: ignore[arg-type]
        assert message in caught.value.message
        assert caught.value.help
    with pytest.raises(ExtentMismatch, match="5 groups do not divide 64 channels"):
        catalogue.build("GRP", groups=5)
    with pytest.raises(ExtentMismatch, match=r"40 columns .* not a multiple of the block 16"):
        catalogue.build("BCM", rows=1024, columns=40, block=16)
