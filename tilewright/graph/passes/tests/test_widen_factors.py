"""Narrow factors of products, converted before them: before and after in text form, and the same results."""

from textwrap import dedent
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.covering import tries
from tilewright.expr.core import Compute
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph
from tilewright.expr.text import parse_graph, print_graph
from tilewright.graph.passes.rewritten import Rewritten
from tilewright.graph.passes.table import run_pass
from tilewright.graph.passes.widen_factors import BYTE_CYCLES, CONVERTED_CYCLES, WIDER
from tilewright.instruction.products import product_factors

Array = np.ndarray[Any, Any]
NUMPY = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "i8": np.int8, "u8": np.uint8, "f32": np.float32}
SLOW, FAST = 1.5, 0.5  # cycles for each multiply-add


def price(node: Compute) -> tuple[float, int] | None:
    """A machine that multiplies f32 and i16 fast."""
    factors = product_factors(node)
    if factors is None:
        return None
    fast = all(read.dtype in ("f32", "i16") for read in factors)
    return (FAST if fast else SLOW), 0


def run(text: str, constants: dict[str, Array] | None = None) -> Rewritten:
    graph = parse_graph(dedent(text), constants or {})
    return run_pass(graph, "widen-factors", lambda _: True, price)


def lines(state: Rewritten) -> list[str]:
    """The nodes and constants of a graph."""
    kinds = ("graph", "input", "output")
    return [line for line in print_graph(state.graph).splitlines() if line and not line.startswith(kinds)]


def product(a: str = "bf16", b: str = "bf16", rows: int = 20, result: str = "f32") -> str:
    return f"""
    graph g
    input x: {a}[{rows}, 30]
    const w: {b}[40, 30]
    y: {result}[i:{rows}, k:40] += {result}(x[i, c]) * {result}(w[k, c]) over c:30
    output y
    """


def ones(dtype: str, *shape: int) -> Array:
    return np.ones(shape, NUMPY[dtype])


@pytest.mark.parametrize(("a", "b", "wide", "result"), [
    ("bf16", "bf16", "f32", "f32"), ("f16", "f16", "f32", "f32"), ("u8", "i8", "i16", "i32"),
])  # fmt: skip
def test_both_factors_are_converted_before(a: str, b: str, wide: str, result: str) -> None:
    state = run(product(a, b, result=result), {"w": ones(b, 40, 30)})
    converted = (f"x.{wide}[i, c]", f"w.{wide}[k, c]")
    factors = " * ".join(converted if wide == result else (f"{result}({each})" for each in converted))
    assert lines(state) == [
        f"const w.{wide}: {wide}[40, 30]",
        f"x.{wide}: {wide}[i0:20, i1:30] = {wide}(x[i0, i1])",
        f"y: {result}[i:20, k:40] += {factors} over c:30",
    ]
    (decision,) = state.decisions
    conversion = CONVERTED_CYCLES * 600 + BYTE_CYCLES * 1200 * (2 if wide == "f32" else 1)
    assert decision.chosen == f"x to {wide} and w to {wide}, before the product"
    assert decision.cost is not None
    assert decision.runner_up_cost is not None
    assert (decision.cost.cycles, decision.runner_up_cost.cycles) == (24000 * FAST + conversion, 24000 * SLOW)


def test_only_narrow_factors_are_converted() -> None:
    state = run(product("f32", "bf16").replace("f32(x[i, c])", "x[i, c]"), {"w": ones("bf16", 40, 30)})
    assert lines(state)[1:] == ["y: f32[i:20, k:40] += x[i, c] * w.f32[k, c] over c:30"]


def test_few_rows_are_not_worth_longer_constants() -> None:
    saved = SLOW - FAST
    rows = int(2 * BYTE_CYCLES / saved) + 2
    assert run(product(rows=rows), {"w": ones("bf16", 40, 30)}).decisions
    text = product(rows=1).replace("40", "2")  # of each element of x two products
    assert not run(text, {"w": ones("bf16", 2, 30)}).decisions


def test_a_tensor_is_converted_once_for_all_products() -> None:
    text = """
    graph g
    input x: bf16[20, 30]
    const w: bf16[2, 30]
    const v: bf16[40, 30]
    y: f32[i:20, k:40] += f32(x[i, c]) * f32(v[k, c]) over c:30
    z: f32[i:20, k:2] += f32(x[i, c]) * f32(w[k, c]) over c:30
    output y
    output z
    """
    state = run(text, {"w": ones("bf16", 2, 30), "v": ones("bf16", 40, 30)})
    assert [line for line in lines(state) if "x[" in line] == ["x.f32: f32[i0:20, i1:30] = f32(x[i0, i1])"]
    assert len(state.decisions) == 2, "the second product alone would not pay"


def test_padding_is_converted_with_what_it_pads() -> None:
    text = """
    graph g
    input x: bf16[6, 30]
    const w: bf16[40, 3, 6]
    p: bf16[c:6, i:32] = (1 <= i < 31 ? x[c, i - 1] : 0)
    y: f32[k:40, i:30] += f32(p[c, i + r]) * f32(w[k, r, c]) over r:3, c:6
    output y
    """
    state = run(text, {"w": ones("bf16", 40, 3, 6)})
    assert lines(state)[1:] == [
        "x.f32: f32[i0:6, i1:30] = f32(x[i0, i1])",
        "p.f32: f32[c:6, i:32] = 1 <= i and i < 31 ? x.f32[c, i - 1] : 0.0",
        "y: f32[k:40, i:30] += p.f32[c, i + r] * w.f32[k, r, c] over r:3, c:6",
    ]


@pytest.mark.parametrize("text", [
    product("f32", "f32").replace("f32(x[i, c])", "x[i, c]").replace("f32(w[k, c])", "w[k, c]"),
    product().replace("+=", "max="),
    product().replace("f32(x[i, c]) *", "f32(x[i, c]) +"),
    product().replace("f32(x[i, c])", "exp(f32(x[i, c]))"),
])  # fmt: skip
def test_other_computes_stay(text: str) -> None:
    dtype = "f32" if "const w: f32" in text else "bf16"
    before = parse_graph(dedent(text), {"w": ones(dtype, 40, 30)})
    assert run_pass(before, "widen-factors", lambda _: True, price).graph.nodes == before.nodes


def test_nothing_is_converted_where_no_record_is_faster() -> None:
    before = parse_graph(dedent(product()), {"w": ones("bf16", 40, 30)})
    for other in (lambda _: (1.0, 0), lambda _: None):
        assert run_pass(before, "widen-factors", lambda _: True, other).graph is before


@settings(max_examples=tries(10, full=200), deadline=None)
@given(
    types=st.sampled_from([("f16", "f16"), ("bf16", "bf16"), ("f16", "f32"), ("u8", "i8"), ("i8", "i8"), ("u8", "u8")]),
    rows=st.integers(5, 20), seed=st.integers(0, 1 << 16),
)  # fmt: skip
def test_results_are_the_same_to_the_bit(types: tuple[str, str], rows: int, seed: int) -> None:
    a, b = types
    random = np.random.default_rng(seed)

    def values(dtype: str, *shape: int) -> Array:
        if dtype in ("u8", "i8"):
            return random.integers(0, 256, shape).astype(np.uint8).view(NUMPY[dtype])
        return (random.standard_normal(shape) * 100).astype(NUMPY[dtype])

    result = "i32" if a in ("u8", "i8") else "f32"
    before: Graph = parse_graph(dedent(product(a, b, rows, result)), {"w": values(b, 40, 30)})
    after = run_pass(before, "widen-factors", lambda _: True, price).graph
    assert after.nodes != before.nodes
    assert not {tensor.dtype for node in after.nodes if node.accum for tensor in node.inputs()} & WIDER.keys()
    x = values(a, rows, 30)
    np.testing.assert_array_equal(evaluate(after, [x])[0], evaluate(before, [x])[0])
