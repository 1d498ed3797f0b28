import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.covering import tries
from tests.random_graphs import DTYPES, EXTENTS, computes, graphs, random_compute, random_graph, random_inputs
from tilewright.expr import Compute, Graph, Read
from tilewright.expr.core import walk
from tilewright.expr.evaluate import evaluate, evaluate_compute
from tilewright.expr.infer import check, check_bounds
from tilewright.expr.text import print_graph


@settings(max_examples=tries(25, full=100), deadline=None)
@given(computes(), st.integers(0, 99))
def test_computes_are_valid_finite_and_within_limits(compute: Compute, seed: int) -> None:
    check(compute)
    found = evaluate_compute(compute, random_inputs(compute, seed))
    assert np.isfinite(found.astype(np.float64)).all()
    assert all(axis.extent in EXTENTS for axis in compute.loops)


@settings(max_examples=tries(12, full=50), deadline=None)
@given(graphs(nodes=5))
def test_graphs_are_valid(graph: Graph) -> None:
    check_bounds(graph)
    assert 1 <= len(graph.nodes) <= 5
    for found, tensor in zip(evaluate(graph, random_inputs(graph)), graph.outputs, strict=True):
        assert found.shape == tensor.shape


def test_a_seed_gives_one_program() -> None:
    assert random_compute(7) == random_compute(7)
    assert print_graph(random_graph(7)) == print_graph(random_graph(7))
    assert print_graph(random_graph(7)) != print_graph(random_graph(8))


def test_what_programs_contain() -> None:
    """Everything a backend has to get right turns up within some hundred programs."""
    programs = [random_compute(seed) for seed in range(400)]
    functions = {getattr(node, "function", type(node).__name__) for p in programs for node in walk(p.body)}
    assert {"select", "floordiv", "mod", "Cast", "mul", "exp", "max", "and"} <= functions
    assert {p.accum for p in programs} == {None, "sum", "prod", "max", "min"}
    assert {p.output.dtype for p in programs} == set(DTYPES)
    assert {len(p.axes) for p in programs} == {0, 1, 2, 3, 4}
    indices = [index for p in programs for node in walk(p.body) if isinstance(node, Read) for index in node.indices]
    assert any(getattr(index, "function", "") == "add" for index in indices)
    graphs_found = [random_graph(seed) for seed in range(50)]
    assert any(len(users) > 1 for g in graphs_found for users in g.consumers().values())
    assert any(g.constants for g in graphs_found)
