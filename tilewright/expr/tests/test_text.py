"""The text form: exact both ways on random programs, errors with a place, no crash on any text."""

import math
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.covering import tries
from tests.random_graphs import computes, graphs
from tilewright.errors import CompileError, InvalidExpression
from tilewright.expr import Axis, Cast, Compute, Const, Dim, Expr, Graph, Tensor, apply, select
from tilewright.expr.core import FUNCTIONS
from tilewright.expr.evaluate import evaluate_compute
from tilewright.expr.text import parse_compute, parse_graph, print_compute, print_expr, print_graph

I, J = Axis("i", 4), Axis("j", 5)
X, Y, N = Tensor("x", (4, 5), "f32"), Tensor("y", (4, 5), "f32"), Tensor("n", (4, 5), "i32")
A, B, C, D = X[I, J], Y[I, J], N[I, J], (X[I, J] < Y[I, J])


def written(body: Expr) -> Compute:
    return Compute(Tensor("o", (4, 5), body.dtype), (I, J), body)


@settings(max_examples=tries(30, full=150), deadline=None)
@given(computes())
def test_computes_survive(compute: Compute) -> None:
    assert parse_compute(print_compute(compute)) == compute


@settings(max_examples=tries(15, full=60), deadline=None)
@given(graphs())
def test_graphs_survive(graph: Graph) -> None:
    assert print_graph(parse_graph(print_graph(graph), graph.constants)) == print_graph(graph)
    found = parse_graph(print_graph(graph), graph.constants)
    assert (found.inputs, found.outputs, found.nodes, found.name) == (
        graph.inputs,
        graph.outputs,
        graph.nodes,
        graph.name,
    )
    assert found.constants.keys() == graph.constants.keys()


floats = st.deferred(
    lambda: st.one_of(
        st.sampled_from((A, B)),
        st.floats(width=32).map(lambda value: Const(value, "f32")),
        st.tuples(st.sampled_from(("add", "sub", "mul", "div", "mod", "max", "pow")), floats, floats).map(
            lambda c: apply(*c)
        ),
        st.tuples(st.sampled_from(("neg", "exp", "abs")), floats).map(lambda c: apply(*c)),
        st.tuples(bools, floats, floats).map(lambda c: select(*c)),
        st.one_of(integers, bools, floats).map(lambda c: Cast(c, "f32")),
    )
)
integers = st.deferred(
    lambda: st.one_of(
        st.just(C),
        st.integers(-(2**31), 2**31 - 1).map(lambda value: Const(value, "i32")),
        st.tuples(
            st.sampled_from(("add", "sub", "mul", "floordiv", "mod", "and", "or", "xor", "shl", "shr")),
            integers,
            integers,
        ).map(lambda c: apply(*c)),
        st.tuples(st.sampled_from(("neg", "not")), integers).map(lambda c: apply(*c)),
        st.tuples(bools, integers, integers).map(lambda c: select(*c)),
        floats.map(lambda c: Cast(c, "i32")),
        st.just(Cast(I, "i32")),
    )
)
bools = st.deferred(
    lambda: st.one_of(
        st.booleans().map(lambda value: Const(value, "bool")),
        st.tuples(st.sampled_from(("lt", "le", "gt", "ge", "eq", "ne")), floats, floats).map(lambda c: apply(*c)),
        st.tuples(st.sampled_from(("lt", "eq")), integers, integers).map(lambda c: apply(*c)),
        st.tuples(st.sampled_from(("and", "or", "xor", "eq", "ne")), bools, bools).map(lambda c: apply(*c)),
        bools.map(lambda c: ~c),
        floats.map(lambda c: apply("isnan", c)),
    )
)


@settings(max_examples=tries(60, full=300), deadline=None)
@given(st.one_of(floats, integers, bools))
def test_expressions_survive(body: Expr) -> None:
    assert parse_compute(print_compute(written(body))).body == body


@pytest.mark.parametrize(("body", "text"), [
    (A * B + 1.0, "x[i, j] * y[i, j] + 1.0"), (A * (B + 1.0), "x[i, j] * (y[i, j] + 1.0)"),
    (A - (B - A), "x[i, j] - (y[i, j] - x[i, j])"), (-(A + B), "-(x[i, j] + y[i, j])"), (apply("neg", -A), "--x[i, j]"),
    (apply("neg", Const(1, "f32")), "-(1.0_f32)"), (Const(-1, "f32"), "-1.0_f32"), (Const(math.nan, "f32"), "nan_f32"),
    (apply("max", A, -math.inf), "max(x[i, j], -inf)"), (C.cast("f32"), "f32(n[i, j])"), (~C & 3, "~n[i, j] & 3"),
    (~D & D, "not x[i, j] < y[i, j] and x[i, j] < y[i, j]"), (Const(2, "i32") + Const(3, "i32"), "2_i32 + 3"),
    (select(D, A, 0), "x[i, j] < y[i, j] ? x[i, j] : 0.0"), (D.eq(D), "(x[i, j] < y[i, j]) == (x[i, j] < y[i, j])"),
    (Const(True, "bool"), "true"),
])  # fmt: skip
def test_how_expressions_look(body: Expr, text: str) -> None:
    assert print_expr(body) == text


def test_a_printed_compute() -> None:
    compute = parse_compute("C[i,j] += A[i,k] * B[k,j]", {"i": 64, "j": 64, "k": 32}, {"A": "f32", "B": "f32"})
    assert print_compute(compute) == (
        "input A: f32[64, 32]\ninput B: f32[32, 64]\nC: f32[i:64, j:64] += A[i, k] * B[k, j] over k:32\n"
    )


@pytest.mark.parametrize(("left", "right"), [
    ("C[i] = sum(A[i, k])", "C[i] += A[i, k]"), ("C[i] = max(A[i, k])", "C[i] max= A[i, k]"),
    ("C[i] = prod(A[i, k])", "C[i] *= A[i, k]"), ("C[i] = min(A[i, k])", "C[i] min= A[i, k]"),
    ("C[i] = 0 <= i < 3 ? A[i] : 1", "C[i] = select(0 <= i and i < 3, A[i], 1.0)"), ("C[i] = A[i] # x", "C[i]=A[(i)]"),
    ("C[i] = A[i] * f32(2)", "C[i] = A[i] * 2"), ("C[i] = i < 2 ? 1 : A[i]", "C[i] = i < 2 ? 1.0_f32 : A[i]"),
])  # fmt: skip
def test_two_ways_to_write_one_thing(left: str, right: str) -> None:
    sizes = {"i": 4, "k": 5}
    assert parse_compute(left, sizes) == parse_compute(right, sizes)


def test_every_function_can_be_called() -> None:
    for name, rule in FUNCTIONS.items():
        if name in ("and", "or"):
            continue  # operators only
        value = "true" if rule.kinds == "b" else "i" if "i" in rule.kinds else "f32(i)"
        args = ", ".join(["i < 2", value, value] if rule.result == "select" else [value] * rule.arity)
        parse_compute(f"C[i] = {name}({args})", {"i": 4})


@pytest.mark.parametrize("name", [
    "conv1/weight:0", "and", "inf", "nan_f32", 'quo"te', "new\nline", "ü", "1st", "x.1", "L['self']", "max",
    "f32", "x y",
])  # fmt: skip
def test_any_name_can_be_written(name: str) -> None:
    tensor, axis = Tensor(name, (4,), "f32"), Axis(name, 4)
    compute = Compute(Tensor(name + "'", (4,), "f32"), (axis,), tensor[axis] + tensor[axis])
    graph = Graph((tensor,), (compute.output,), (compute,), name=name)
    assert parse_graph(print_graph(graph)) == graph


def test_dimensions_constants_and_rank_0() -> None:
    n, m = Dim("N", 2, 512, 2), Dim("rows of it", 0, 7)
    x, w, i, j = Tensor("x", (n, m), "bf16"), Tensor("w", (), "bf16"), Axis("i", n), Axis("j", m)
    total = Compute(Tensor("t", (), "bf16"), (), x[i, j] * w[()], (j, i), "max")
    graph = Graph((x,), (total.output, x), (total,), {"w": np.ones((), "bfloat16")})
    text = print_graph(graph)
    assert "dim N in [2, 512] % 2" in text
    assert "const w: bf16[]" in text
    found = parse_graph(text, graph.constants)
    assert (found.inputs, found.outputs, found.nodes) == (graph.inputs, graph.outputs, graph.nodes)
    with pytest.raises(InvalidExpression, match="values of w are not given"):
        parse_graph(text)
    with pytest.raises(InvalidExpression, match="is given as float64"):
        parse_graph(text, {"w": np.ones(())})


def test_two_dimensions_of_one_name_cannot_be_written() -> None:
    x = Tensor("x", (Dim("N"), Dim("N", 5)), "f32")
    with pytest.raises(InvalidExpression, match="two dimensions are called N"):
        print_graph(Graph((x,), (x,), ()))


@pytest.mark.parametrize(("text", "place", "message"), [
    ("C[i] = A[i] +", "1:14", "expected a number"), ("C[i] = A[i", "1:11", "expected ','"),
    ("C[i] $ 3", "1:6", "starts nothing"),
    ("\n  C[i] = foo(3)", "2:10", "no function is called foo"), ("C[2*i] = A[i]", "1:3", "name of a loop"),
    ("C[i*2] = A[i]", "1:4", "loops alone"), ("C[i] = exp(1, 2)", "1:8", "exp takes 1 operands, got 2"),
    ("C[i] = A[i] + i", "1:13", "add of f32 and i64"), ("C[i] = 1 + sum(A[i])", "1:12", "is an accumulation"),
    ("C[i] = 0.5 * i", "1:8", "is not an i64"), ("C: i8[i] = A[i]", "1:12", "this is f32, and C is i8"),
    ("C: f31[i] = A[i]", "1:4", "a dtype"), ("C[i:Q] = A[i]", "1:5", "no dimension is called Q"),
    ("C[i:3] = A[i]", "1:3", "i has 3 values here and 4 before"),
    ("C[i] = A[i] ? 1 : 2", "1:13", "condition of dtype f32"),
    ('C[i] = "\\q"[i]', "1:8", "invalid escape"), ("C[i] = A[i] A[i]", "1:13", "the end of the line"),
    ("C[i] = 1" + "0" * 60, "1:8", "too long"), ("input A: f32[4]\ninput A: f32[4]", "2:7", "defined twice"),
    ("dim N in [4, 2]\nC[i] = A[i]", "1:5", "range"), ("C[i] = " + "(" * 300, "1:208", "nested more than 200"),
    ("C[i] = A[i]" + " + A[i]" * 300, None, "more than 200 levels"), ("", None, "not one statement"),
    ("C[i] = A[i]\nD[i] = A[i]", None, "not one statement"), ("C[i] => A[i]", "1:7", "found '>'"),
    ("C[i] += sum(A[i, k])", "1:9", "two accumulations"),
])  # fmt: skip
def test_parse_errors_name_the_place(text: str, place: str | None, message: str) -> None:
    with pytest.raises(InvalidExpression) as caught:
        parse_compute(text, {"i": 4, "k": 5}, where="f.txt")
    assert message in str(caught.value)
    if place is not None:
        assert caught.value.where == f"f.txt:{place}"


def test_an_error_shows_the_line() -> None:
    with pytest.raises(InvalidExpression) as caught:
        parse_compute("C[i] = A[i]\n     + ", {"i": 4})
    assert str(caught.value) == (
        "<text>:2:6: error[invalid-expression]: found '+', expected a tensor, or graph, dim, input, const, output\n"
        "  2 |      + \n"
        "    |      ^\n"
        "  = help: write a tensor, or graph, dim, input, const, output here"
    )


def test_graph_errors() -> None:
    for text, message in [
        ("input A: f32[4]\noutput B", "output B is not a tensor"), ("B[i] = A[i]", "tensor A is not known here"),
        ("input A: f32[4]\ngraph g", "comes first"), ("graph g\ngraph h", "comes first"),
        ("graph", "name of the graph"),
        ("input A: f32[4]\nA[i] = A[i]", "reads itself"), ("dim N in [1, 2]\ndim N in [1, 2]", "declared twice"),
    ]:  # fmt: skip
        with pytest.raises(InvalidExpression) as caught:
            parse_graph(text)
        assert message in str(caught.value)


def assert_placed(parse: Callable[[str], object], text: str) -> None:
    """It parses, or there is a CompileError with a place."""
    failure = None
    try:
        parse(text)
    except CompileError as error:
        failure = error
    assert failure is None or failure.where


@settings(max_examples=tries(60, full=300), deadline=None)
@given(st.text(max_size=80))
def test_any_text_gives_a_graph_or_a_compile_error(text: str) -> None:
    for parse in (parse_graph, lambda t: parse_compute(t, {"i": 4})):
        assert_placed(parse, text)


pieces = st.sampled_from((
    "C", "A", "i", "k", "[", "]", "(", ")", ",", "=", "+=", "max", "min=", "?", ":", "+", "-", "*", "//", "%", "<",
    "==", "and",
    "not", "or", "over", "f32", "i8", "1", "0.5", "9_u8", "inf", "nan_f16", "true", "sum", "exp", "select", "\n",
    "input",
    "const", "dim N in [1, 8]", "N", "output", "graph", '"x"', "~", "<<", "A[i]", "C[i] =", "1e999",
    "99999999999999999999",
))  # fmt: skip


@settings(max_examples=tries(80, full=400), deadline=None)
@given(st.lists(pieces, max_size=25).map(" ".join))
def test_any_tokens_give_a_compute_or_a_compile_error(text: str) -> None:
    assert_placed(lambda t: parse_compute("input A: f32[4]\nC[i] = " + t, {"i": 4, "k": 3}), text)


splinters = st.sampled_from(("", "0", "-", "]", "[", "i", " ", "9999", ":", "?", "\n", "_f16", "("))


@settings(max_examples=tries(60, full=300), deadline=None)
@given(graphs(nodes=3, points=64), st.data())
def test_a_mutated_program_gives_a_graph_or_a_compile_error(graph: Graph, data: st.DataObject) -> None:
    text = print_graph(graph)
    for _ in range(data.draw(st.integers(1, 3))):
        begin = data.draw(st.integers(0, len(text)))
        end = begin + data.draw(st.integers(0, 4))
        text = text[:begin] + data.draw(splinters) + text[end:]
    with suppress(CompileError):
        parse_graph(text, graph.constants)


def test_a_parsed_compute_runs() -> None:
    compute = parse_compute("C[i,j] += A[i,k] * B[k,j]", {"i": 3, "j": 4, "k": 5})
    a, b = np.arange(15, dtype=np.float32).reshape(3, 5), np.arange(20, dtype=np.float32).reshape(5, 4)
    assert np.array_equal(evaluate_compute(compute, {"A": a, "B": b}), a @ b)
