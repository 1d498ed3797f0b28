"""Predicted cycles of nests: what costs more is predicted to."""

from tilewright.compiler.compile import resolve_target
from tilewright.compiler.plan import make_plan
from tilewright.expr import GraphBuilder
from tilewright.expr.ops import elementwise, shape


def cycles(function: str, extent: int) -> float:
    b = GraphBuilder()
    x = b.input("x", (extent, extent), "f32")
    y = shape.transpose(x, (1, 0), name="y") if function == "transpose" else elementwise.unary(x, function)
    (kernel,) = make_plan(b.finish([y]), resolve_target("znver5"), 1).kernels
    return kernel.cycles


def test_cycles_grow_with_points_and_with_instructions() -> None:
    assert cycles("neg", 64) == 4 * cycles("neg", 32) > 0
    assert cycles("erf", 64) > 3 * cycles("neg", 64)


def test_elements_that_are_no_neighbours_cost_more() -> None:
    assert cycles("transpose", 64) > 4 * cycles("neg", 64)
