"""Offsets of factors: before and after in text form, and results bit for bit against the evaluator."""

from collections.abc import Callable
from dataclasses import dataclass
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.covering import tries
from tilewright.compiler.compile import compile_graph, rebuilt
from tilewright.compiler.stored import stored_graph
from tilewright.decision import Cost
from tilewright.expr.core import Axis, Cast, Compute, Expr, Tensor, select
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops.conv import conv
from tilewright.expr.ops.elementwise import axes_of, emit
from tilewright.expr.ops.linalg import centred, matmul_integer
from tilewright.expr.text import parse_graph, print_graph
from tilewright.graph.passes.offset_factors import OffsetFactors
from tilewright.graph.passes.rewritten import Rewritten
from tilewright.instruction.products import product_factors
from tilewright.intrinsics.registry import standard
from tilewright.options import Options
from tilewright.runtime.module import Module

Array = np.ndarray[Any, Any]
Constants = dict[str, Array]

BYTE = {"u8": np.uint8, "i8": np.int8}
NO_DOTS = standard().without(*(r.name for r in standard() if {"u8", "i8"} == {o.dtype for o in r.sources}))


def price(node: Compute) -> tuple[float, int] | None:
    """A machine with one instruction: u8 x i8, the first factor broadcast, in a tenth of the cycles of others."""
    factors = product_factors(node)
    if factors is None:
        return None
    fast = [read.dtype for read in factors] == ["u8", "i8"]
    return (0.1 if fast else 1.0), 0


def run(text: str, constants: Constants | None = None) -> Rewritten:
    return OffsetFactors(price).apply(Rewritten(parse_graph(dedent(text), constants or {})))


def lines(state: Rewritten) -> list[str]:
    """The nodes of a graph."""
    kinds = ("graph", "input", "const", "output")
    return [line for line in print_graph(state.graph).splitlines() if line and not line.startswith(kinds)]


# What it makes of graphs ------------------------------------------------------------------------------------------


def test_signed_factors_become_unsigned_and_the_constant_corrects() -> None:
    w = np.arange(-6, 6, dtype=np.int8).reshape(2, 6)
    state = run(
        """
        graph g
        input x: i8[4, 6]
        const w: i8[2, 6]
        y: i32[i:4, k:2] += i32(x[i, c]) * i32(w[k, c]) over c:6
        output y
        """,
        {"w": w},
    )
    (correction,) = (name for name in state.graph.constants if name != "w")
    assert lines(state) == [
        "x.u8: u8[i0:4, i1:6] = u8(x[i0, i1]) + 128",
        "y.dot: i32[i:4, k:2] += i32(x.u8[i, c]) * i32(w[k, c]) over c:6",
        f"y: i32[i:4, k:2] = y.dot[i, k] + {correction}[k]",
    ]
    np.testing.assert_array_equal(state.graph.constants[correction], -128 * w.astype(np.int32).sum(1))
    (decision,) = state.decisions
    assert decision.subject == "factors of y"
    assert decision.chosen == "u8 x.u8 and i8 w, corrected by constants"
    assert decision.reason == "0.1 cycles per multiply-add"
    assert (decision.runner_up, decision.runner_up_reason) == ("as they are", "1 cycles per multiply-add")
    assert (decision.cost, decision.runner_up_cost) == (Cost(cycles=pytest.approx(4.8)), Cost(cycles=48.0))


def test_padding_is_moved_with_what_it_pads() -> None:
    state = run(
        """
        graph g
        input x: i8[9]
        const w: i8[3]
        p: i8[i:11] = i - 1 >= 0 and i - 1 < 9 ? x[i - 1] : 0
        y: i32[i:9] += i32(p[i + r]) * i32(w[r]) over r:3
        output y
        """,
        {"w": np.array([1, 2, 3], np.int8)},
    )
    assert lines(state)[:2] == [
        "x.u8: u8[i0:9] = u8(x[i0]) + 128",
        "p.u8: u8[i:11] = i - 1 >= 0 and i - 1 < 9 ? x.u8[i - 1] : 128",
    ]


def test_a_padded_zero_point_is_a_byte() -> None:
    state = run(
        """
        graph g
        input x: u8[9]
        const w: i8[3]
        a: i32[i:9] = i32(x[i]) - i32(7_u8)
        p: i32[i:11] = i - 1 >= 0 and i - 1 < 9 ? a[i - 1] : 0
        y: i32[i:9] += p[i + r] * i32(w[r]) over r:3
        output y
        """,
        {"w": np.array([1, 2, 3], np.int8)},
    )
    assert lines(state) == [
        "p.u8: u8[i:11] = i - 1 >= 0 and i - 1 < 9 ? x[i + -1] : 7",
        "y.dot: i32[i:9] += i32(p.u8[i + r]) * i32(w[r]) over r:3",
        "y: i32[i:9] = y.dot[i] + -42",
    ]


def test_a_padding_that_no_byte_holds_stays() -> None:
    text = """
        graph g
        input x: u8[9]
        const w: i8[3]
        a: i32[i:9] = i32(x[i]) - 7
        p: i32[i:11] = i - 1 >= 0 and i - 1 < 9 ? a[i - 1] : 300
        y: i32[i:9] += p[i + r] * i32(w[r]) over r:3
        output y
        """
    constants = {"w": np.array([1, 2, 3], np.int8)}
    assert run(text, constants).graph == parse_graph(dedent(text), constants)


def test_an_offset_that_a_reduction_indexes_stays() -> None:
    text = """
        graph g
        input x: u8[4, 6]
        input z: u8[6]
        input w: i8[6, 3]
        a: i32[i:4, c:6] = i32(x[i, c]) - i32(z[c])
        y: i32[i:4, k:3] += a[i, c] * i32(w[c, k]) over c:6
        output y
        """
    assert run(text).graph == parse_graph(dedent(text), {})


def test_an_offset_under_a_guard_that_would_be_read_out_of_range_stays() -> None:
    text = """
        graph g
        input x: u8[9]
        input z: u8[9]
        input w: i8[3]
        p: i32[i:11] = i - 1 >= 0 and i - 1 < 9 ? i32(x[i - 1]) - i32(z[i - 1]) : 0
        y: i32[i:9] += p[i] * i32(w[r]) over r:3
        output y
        """
    assert run(text).graph == parse_graph(dedent(text), {})


def test_a_product_that_is_as_fast_stays() -> None:
    text = """
        graph g
        input x: u8[4, 6]
        input w: i8[6, 3]
        y: i32[i:4, k:3] += i32(x[i, c]) * i32(w[c, k]) over c:6
        output y
        """
    state = run(text)
    assert state.graph == parse_graph(dedent(text), {})
    assert not state.decisions


def test_constants_are_taken_by_their_values() -> None:
    """Weights in u8 around a zero point of 128 are bytes with a sign, and need no correction."""
    rng = np.random.default_rng(0)
    w = rng.integers(0, 256, (3, 6)) - 128
    state = run(
        """
        graph g
        input x: u8[4, 6]
        const w: i32[3, 6]
        y: i32[i:4, k:3] += i32(x[i, c]) * w[k, c] over c:6
        output y
        """,
        {"w": w.astype(np.int32)},
    )
    assert lines(state) == ["y: i32[i:4, k:3] += i32(x[i, c]) * i32(w.i8[k, c]) over c:6"]
    np.testing.assert_array_equal(state.graph.constants["w.i8"], w.astype(np.int8))


def test_an_offset_of_a_constant_is_one_per_slice() -> None:
    w = np.array([[0, 100, 127], [0, 200, 255], [-100, 0, 155]], np.int32)
    text = """
        graph g
        input x: u8[4, 3]
        const w: i32[3, 3]
        y: i32[i:4, k:3] += i32(x[i, c]) * w[k, c] over c:3
        output y
        """
    state = run(text, {"w": w})
    np.testing.assert_array_equal(state.graph.constants["w.i8"], w - [[0], [128], [28]])
    assert state.decisions[0].chosen.endswith("corrected by one sum over a variable")
    x = np.random.default_rng(0).integers(0, 256, (4, 3)).astype(np.uint8)
    np.testing.assert_array_equal(evaluate(state.graph, [x])[0], x.astype(np.int32) @ w.T)


def test_constants_too_far_apart_stay() -> None:
    w = np.array([[0, 256], [1, 2]], np.int32)
    text = """
        graph g
        input x: u8[4, 2]
        const w: i32[2, 2]
        y: i32[i:4, k:2] += i32(x[i, c]) * w[k, c] over c:2
        output y
        """
    assert run(text, {"w": w}).graph == parse_graph(dedent(text), {"w": w})


def test_other_readers_decode_and_outputs_keep_their_values() -> None:
    text = """
        graph g
        input x: f32[4, 6]
        input w: i8[6, 3]
        q: i8[i:4, c:6] = i8(min(max(x[i, c], -128.0), 127.0))
        y: i32[i:4, k:3] += i32(q[i, c]) * i32(w[c, k]) over c:6
        z: f32[i:4, c:6] = f32(q[i, c]) * 0.5
        output y
        output z
        """
    state = run(text)
    assert "q.u8: u8[i:4, c:6] = u8(i8(min(max(x[i, c], -128.0), 127.0))) + 128" in lines(state)
    assert "z: f32[i:4, c:6] = f32(i8(q.u8[i, c]) + -128) * 0.5" in lines(state)
    rng = np.random.default_rng(0)
    inputs = [(rng.standard_normal((4, 6)) * 90).astype(np.float32), rng.integers(-128, 128, (6, 3)).astype(np.int8)]
    for found, expected in zip(
        evaluate(state.graph, inputs), evaluate(parse_graph(dedent(text), {}), inputs), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


def test_a_tensor_that_is_an_output_is_copied() -> None:
    state = run(
        """
        graph g
        input x: i8[4, 6]
        input w: i8[6, 3]
        q: i8[i:4, c:6] = max(x[i, c], 0_i8)
        y: i32[i:4, k:3] += i32(q[i, c]) * i32(w[c, k]) over c:6
        output y
        output q
        """
    )
    assert {"q: i8[i:4, c:6] = max(x[i, c], 0)", "q.u8: u8[i0:4, i1:6] = u8(q[i0, i1]) + 128"} <= set(lines(state))


def test_extrema_between_products_move_with_their_source() -> None:
    state = run(
        """
        graph g
        input x: i8[8]
        const w: i8[3]
        q: i8[i:8] = max(x[i], 3_i8)
        p: i8[i:10] = i - 1 >= 0 and i - 1 < 8 ? q[i - 1] : -128_i8
        m: i8[i:8] max= p[i + r] over r:3
        y: i32[i:6] += i32(m[i + r]) * i32(w[r]) over r:3
        z: i32[i:8] = i32(m[i]) + 1
        output y
        output z
        """,
        {"w": np.array([1, 2, 3], np.int8)},
    )
    assert lines(state)[:3] == [
        "q.u8: u8[i:8] = u8(max(x[i], 3)) + 128",
        "p.u8: u8[i:10] = i - 1 >= 0 and i - 1 < 8 ? q.u8[i - 1] : 0",
        "m.u8: u8[i:8] max= p.u8[i + r] over r:3",
    ]
    assert "z: i32[i:8] = i32(i8(m.u8[i]) + -128) + 1" in lines(state)


def test_a_sum_of_bytes_is_copied() -> None:
    text = """
        graph g
        input x: i8[8, 4]
        const w: i8[3]
        s: i8[i:8] += x[i, k] over k:4
        y: i32[i:6] += i32(s[i + r]) * i32(w[r]) over r:3
        output y
        """
    constants = {"w": np.array([1, 2, 3], np.int8)}
    state = run(text, constants)
    assert "s.u8: u8[i0:8] = u8(s[i0]) + 128" in lines(state)
    x = byte_arrays(np.random.default_rng(0), "i8", (8, 4))
    before = evaluate(parse_graph(dedent(text), constants), [x])
    np.testing.assert_array_equal(evaluate(state.graph, [x])[0], before[0])


def test_the_correction_joins_the_map_that_follows() -> None:
    state = run(
        """
        graph g
        input x: i8[4, 6]
        const w: i8[3, 6]
        y: i32[i:4, k:3] += i32(x[i, c]) * i32(w[k, c]) over c:6
        z: f32[i:4, k:3] = f32(y[i, k]) * 0.5
        output z
        """,
        {"w": np.arange(18, dtype=np.int8).reshape(3, 6)},
    )
    assert [line.split(":")[0] for line in lines(state)] == ["x.u8", "y.dot", "z"]


# Results --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A product of bytes with zero points, and how it is used."""

    types: tuple[str, str]
    zeros: tuple[str, str]  # "none", "constant", "variable", for the second factor also "each"
    constant: bool  # the second factor is
    shape: tuple[int, ...]  # rows, sum, columns; or channels, filters, size, window, groups, stride, padding
    use: str  # what follows: "plain", "map", "two" readers of x, "again" a product, "pooled" extrema before that
    seed: int


def byte_arrays(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Array:
    limits = np.iinfo(BYTE[dtype])
    found: Array = rng.integers(limits.min, limits.max + 1, shape).astype(BYTE[dtype])
    return found


def graph_of(case: Case) -> tuple[Graph, list[Array]]:
    """The graph of a case, and inputs for it."""
    rng = np.random.default_rng(case.seed)
    b = GraphBuilder("case")
    given: list[Array] = []

    def tensor(name: str, array: Array, constant: bool) -> Tensor:
        if constant:
            return b.constant(array, name)
        given.append(array)
        return b.input(name, array.shape, "u8" if array.dtype == np.uint8 else "i8")

    def zero(number: int, slices: int) -> Tensor | None:
        kind = case.zeros[number]
        if kind == "none":
            return None
        shape = (slices,) if kind == "each" else ()
        return tensor(f"zero{number}", byte_arrays(rng, case.types[number], shape), kind != "variable")

    if len(case.shape) == 3:
        m, k, n = case.shape
        x = tensor("x", byte_arrays(rng, case.types[0], (m, k)), False)
        w = tensor("w", byte_arrays(rng, case.types[1], (k, n)), case.constant)
        y = matmul_integer(x, w, zero(0, m), zero(1, n), name="y")
    else:
        c, filters, size, window, groups, stride, pads = case.shape
        x = tensor("x", byte_arrays(rng, case.types[0], (1, c * groups, size, size + 1)), False)
        w = tensor("w", byte_arrays(rng, case.types[1], (filters * groups, c, window, window)), case.constant)
        left = centred(x, zero(0, 1), 0, name="y.x")
        right = centred(w, zero(1, filters * groups), 0, name="y.w")
        y = conv(left, right, strides=stride, pads=pads, groups=groups, accumulate="i32", out_dtype="i32", name="y")
    outputs = [y]
    axes = axes_of(y.shape)
    if case.use in ("map", "two"):
        outputs = [emit(b, axes, (y[axes].cast("f32") * 0.25 + 1.0).cast("i32"), name="scaled")]
    if case.use == "two":
        outputs.append(emit(b, axes_of(x.shape), x[axes_of(x.shape)].cast("i32") * 3, name="tripled"))
    if case.use in ("again", "pooled"):
        # requantised to the first type, and multiplied with itself
        first = case.types[0]
        low = float(np.iinfo(BYTE[first]).min)
        value = (y[axes].cast("f32") * 0.01) + (low + 128.0)
        limited = Cast(_clamped(value, low, low + 255.0), first)
        q = emit(b, axes, limited, name="q")
        if case.use == "pooled":
            window, count = Axis("p", min(2, int(q.shape[-1]))), int(q.shape[-1])  # type: ignore[arg-type]
            pooled = (*axes[:-1], Axis("o", count - int(window.extent) + 1))  # type: ignore[arg-type]
            q = emit(b, pooled, q[(*axes[:-1], pooled[-1] + window)], reduce=[window], accum="max", name="pooled")
        r = Axis("r", q.shape[-1])
        again = q[(*axes[:-1], r)].cast("i32") * q[(*axes[:-2], Axis("s", q.shape[-2]), r)].cast("i32")
        loops = (*axes[:-1], Axis("s", q.shape[-2]))
        outputs = [emit(b, loops, again, reduce=[r], accum="sum", name="again")]
    return b.finish(outputs), given


def _clamped(value: Expr, low: float, high: float) -> Expr:
    return select(value < low, low, select(value > high, high, value))


SIZES = st.integers(1, 40)
MATMULS = st.tuples(SIZES, SIZES, SIZES)
CONVS = st.tuples(
    st.integers(1, 9), st.integers(1, 20), st.integers(3, 9), st.sampled_from([1, 2, 3]), st.sampled_from([1, 1, 3]),
    st.sampled_from([1, 2]), st.sampled_from([0, 1, (0, 1, 2, 0)]),
)  # fmt: skip
CASES = st.builds(
    Case,
    st.tuples(st.sampled_from(["u8", "i8"]), st.sampled_from(["u8", "i8"])),
    st.tuples(
        st.sampled_from(["none", "constant", "variable"]), st.sampled_from(["none", "constant", "variable", "each"])
    ),
    st.booleans(),
    st.one_of(MATMULS, CONVS),
    st.sampled_from(["plain", "map", "two", "again", "pooled"]),
    st.integers(0, 999),
)


def module_of(graph: Graph, machine: str = "host", **options: Any) -> Module:
    return compile_graph(graph, machine, 1, Options(cache=False, **options))


def results(module: Module, inputs: list[Array]) -> list[Array]:
    found = module(*inputs)
    return list(found) if isinstance(found, tuple) else [found]


def check(case: Case, compiled: Callable[[Graph], Module]) -> None:
    graph, inputs = graph_of(case)
    for found, expected in zip(results(compiled(graph), inputs), evaluate(graph, inputs), strict=True):
        np.testing.assert_array_equal(found, expected)


@settings(max_examples=tries(4, full=25), deadline=None)
@given(CASES)
def test_results_are_equal_bit_for_bit(case: Case) -> None:
    check(case, module_of)


@settings(max_examples=tries(3, full=12), deadline=None)
@given(CASES)
def test_results_without_the_records_of_dot_products(case: Case) -> None:
    check(case, lambda graph: module_of(graph, intrinsics=NO_DOTS))


@settings(max_examples=tries(3, full=12), deadline=None)
@given(CASES)
def test_results_with_the_pass_switched_off(case: Case) -> None:
    check(case, lambda graph: module_of(graph, disable=("offset-factors",)))


@settings(max_examples=tries(7, full=60), deadline=None)
@given(CASES)
def test_the_rewritten_graph_evaluates_alike(case: Case) -> None:
    graph, inputs = graph_of(case)
    state = OffsetFactors(price).apply(Rewritten(graph))
    for found, expected in zip(evaluate(state.graph, inputs), evaluate(graph, inputs), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_module_is_compiled_again_from_constants_that_kernels_do_not_read() -> None:
    graph, inputs = graph_of(Case(("i8", "u8"), ("constant", "each"), True, (9, 33, 20), "map", 0))
    first = module_of(graph)
    assert stored_graph(first.artifact).constants.keys() < set(graph.constants) | {"y.b"}
    again = Module(rebuilt(first.artifact, "host", 1, Options(cache=False)), threads=1)
    np.testing.assert_array_equal(again(*inputs), evaluate(graph, inputs)[0])
