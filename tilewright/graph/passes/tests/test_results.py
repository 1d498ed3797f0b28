"""The passes together keep what graphs compute: under the evaluator, and compiled with any of them switched off."""

import re
from functools import cache
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.covering import FULL, rows, tries
from tests.random_graphs import graphs, random_inputs
from tilewright.compiler.compile import compile_graph
from tilewright.errors import InvalidArgument
from tilewright.expr.core import Compute, Const, Expr, Read, Tensor, select
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops.attention import attention
from tilewright.expr.ops.conv import conv
from tilewright.expr.ops.elementwise import binary, relu
from tilewright.expr.ops.linalg import matmul
from tilewright.expr.ops.norm import batch_norm, layer_norm
from tilewright.expr.ops.pool import max_pool
from tilewright.expr.ops.shape import reshape, transpose
from tilewright.expr.rewrite import transform
from tilewright.graph.passes.rewritten import Rewritten
from tilewright.graph.passes.table import NAMES, REQUIRED, fitting, run_passes, simplifying, storing
from tilewright.instruction.products import product_factors
from tilewright.kernel.passes.table import PIPELINES
from tilewright.options import Options


def is_product(node: Compute) -> bool:
    return product_factors(node) is not None


def price(node: Compute) -> tuple[float, int] | None:
    """Products run best on bytes without a sign."""
    factors = product_factors(node)
    return None if factors is None else (sum(read.dtype != "u8" for read in factors) + 1.0, 0)


def guarded(state: Rewritten) -> Graph:
    """The graph with every read of a border spelled out as a select, for the evaluator."""

    def rule(expr: Expr) -> Expr | None:
        if not isinstance(expr, Read) or expr.tensor.name not in state.borders:
            return None
        border = state.borders[expr.tensor.name]
        inside: Expr = Const(True, "bool")
        for index, extent, (before, after) in zip(expr.indices, expr.tensor.shape, border.widths, strict=True):
            if before or after:
                inside = inside & (index >= 0) & (index < int(extent))  # type: ignore[arg-type]
        return select(inside, expr, border.value)

    nodes = (Compute(n.output, n.axes, transform(n.body, rule), n.reduce, n.accum) for n in state.graph.nodes)
    return Graph(state.graph.inputs, state.graph.outputs, tuple(nodes), state.graph.constants)


@cache
def network() -> Graph:
    """Convolutions with batch norm and a residual, a depthwise one, pooling; then attention over the pixels."""
    rng = np.random.default_rng(0)
    b = GraphBuilder("small")

    def constant(*shape: int) -> Tensor:
        return b.constant((rng.standard_normal(shape) * 0.3).astype(np.float32))

    def normalised(x: Tensor) -> Tensor:
        variance = b.constant(rng.uniform(0.5, 2, 16).astype(np.float32))
        return batch_norm(x, constant(16), constant(16), constant(16), variance)

    x = b.input("image", (1, 3, 9, 10), "f32")
    first = relu(normalised(conv(x, constant(16, 3, 3, 3), pads=1)))
    second = normalised(conv(first, constant(16, 16, 3, 3), constant(16), pads=1))
    y = relu(binary(second, first, "add"))
    y = relu(normalised(conv(y, constant(16, 1, 3, 3), pads=1, groups=16)))
    y = max_pool(y, (3, 3), strides=2, pads=1)
    tokens = transpose(reshape(y, (1, 16, 25)), (0, 2, 1))
    heads = []
    for _ in range(3):
        projected = binary(matmul(tokens, constant(16, 16)), constant(16), "add")
        heads.append(transpose(reshape(projected, (1, 25, 2, 8)), (0, 2, 1, 3)))
    mixed = reshape(transpose(attention(*heads, scale=0.35), (0, 2, 1, 3)), (1, 25, 16))
    y = binary(matmul(mixed, constant(16, 16)), tokens, "add")
    return b.finish([layer_norm(y, constant(16), constant(16)), first])


def image() -> np.ndarray:  # type: ignore[type-arg]
    return np.random.default_rng(1).standard_normal((1, 3, 9, 10)).astype(np.float32)


@cache
def reference() -> list[np.ndarray]:  # type: ignore[type-arg]
    return evaluate(network(), [image()], precise=True, wide=True)


FOLDING = ("fold-constants", "fold-constant-parts")
"""They round constants to the dtypes of nodes; the others change nothing in exact arithmetic."""


@settings(max_examples=tries(7, full=60), deadline=None)
@given(graphs(nodes=6, points=1000), st.sets(st.sampled_from(NAMES)), st.integers(0, 99))
def test_random_graphs_keep_their_results(graph: Graph, disable: set[str], seed: int) -> None:
    inputs = random_inputs(graph, seed)
    # float64 throughout, so that rounding between nodes does not matter
    expected = evaluate(graph, inputs, precise=True, wide=True)
    state = run_passes(
        graph, (*simplifying(is_product), *fitting(price, lambda _: 1.0), *storing()), (*FOLDING, *disable)
    )
    found = evaluate(guarded(state), inputs, precise=True, wide=True)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=1e-9, atol=1e-9)


@settings(max_examples=tries(5, full=30), deadline=None)
@given(graphs(nodes=6, points=1000), st.integers(0, 99))
def test_folded_nodes_round_as_the_evaluator_does(graph: Graph, seed: int) -> None:
    inputs = random_inputs(graph, seed)
    names = [tensor.name for tensor in graph.inputs]
    constants = {name: inputs[name] for name in names[::2]}
    left = tuple(tensor for tensor in graph.inputs if tensor.name not in constants)
    partly = Graph(left, graph.outputs, graph.nodes, {**graph.constants, **constants})
    state = run_passes(partly, simplifying(is_product), tuple(name for name in NAMES if name != "fold-constants"))
    found = evaluate(state.graph, {tensor.name: inputs[tensor.name] for tensor in left})
    for a, b in zip(found, evaluate(graph, inputs), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_network_is_rewritten_as_it_should_be() -> None:
    state = run_passes(network(), (*simplifying(is_product), *storing()))
    moved = [n.name for n in state.graph.nodes if n.accum is None and isinstance(n.body, Read)]
    assert moved == ["image.copy", "transpose", "reshape.4"]  # the last two join or split loops of a product
    assert set(state.borders) == {"image.copy", "relu.1", "relu.2"}  # the first relu is an output
    folded = [decision.subject for decision in state.decisions if decision.chosen.startswith("folded into")]
    assert folded == ["scale of conv", "scale of conv.acc", "scale of conv.2"]
    found = evaluate(guarded(state), [image()], precise=True, wide=True)
    for a, b in zip(found, reference(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)  # weights are rounded once more


SETS = (
    combinations(NAMES[3:], 2)
    if FULL
    else [
        [name for name, off in zip(NAMES[3:], row, strict=True) if off]
        for row in rows(*[(False, True)] * len(NAMES[3:]))
    ]
)
"""Any two are off together in one of these, and one without the other in another."""
ALONE = NAMES if FULL else NAMES[:3]
"""Off alone: those that are in none of the sets."""


@pytest.mark.parametrize(
    "disable", dict.fromkeys([(), *((name,) for name in ALONE), *map(tuple, SETS), NAMES]), ids="+".join
)
def test_compiled_with_any_pass_switched_off(disable: tuple[str, ...]) -> None:
    module = compile_graph(network(), threads=1, options=Options(cache=False, disable=disable))
    for found, expected in zip(module(image()), reference(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4)


def test_an_unknown_name_cannot_be_switched_off() -> None:
    with pytest.raises(InvalidArgument, match="no pass 'fold-nothing'") as caught:
        compile_graph(network(), threads=1, options=Options(cache=False, disable=("fold-nothing",)))
    listed = set(re.findall(r"[a-z][a-z-]*", caught.value.help))
    assert listed >= {*NAMES, *(each.name for each in PIPELINES["cpu"])}
    assert "split-k" not in listed  # of another kind of machine
    assert not listed & REQUIRED


@pytest.mark.parametrize("name", sorted(REQUIRED))
def test_a_required_pass_cannot_be_switched_off(name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"pass '{name}' cannot be switched off"):
        compile_graph(network(), threads=1, options=Options(cache=False, disable=(name,)))


def test_a_copy_of_an_image_has_a_name_that_no_tensor_has() -> None:
    rng = np.random.default_rng(0)
    b = GraphBuilder()
    x = b.input("x", (1, 8, 9, 9), "f32")
    y = conv(x, b.constant(rng.standard_normal((8, 8, 3, 3)).astype(np.float32), "w"), pads=1, name="y")
    graph = b.finish([y, relu(x, name="x.copy")])
    value = rng.standard_normal((1, 8, 9, 9)).astype(np.float32)
    found = compile_graph(graph, threads=1, options=Options(cache=False))(value)
    for one, other in zip(found, evaluate(graph, [value], precise=True, wide=True), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
