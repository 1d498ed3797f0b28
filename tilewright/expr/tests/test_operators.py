"""The operators of tensors against NumPy, what they refuse, and that a tensor stays the value it was."""

from __future__ import annotations

import copy
import gc
import operator
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilewright.errors import CompileError, ExtentMismatch, InvalidArgument, InvalidExpression
from tilewright.expr import Axis, GraphBuilder, Read, Tensor
from tilewright.expr.dtypes import from_numpy, named, numpy_dtype
from tilewright.expr.evaluate import evaluate
from tilewright.expr.ops import elementwise, linalg

ROWS, COLUMNS = 5, 7
RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((ROWS, COLUMNS)).astype(np.float32)
Y = RANDOM.standard_normal(COLUMNS).astype(np.float32)
I, J = RANDOM.integers(-9, 9, (2, ROWS, COLUMNS)).astype(np.int32)
P, Q = X > 0, RANDOM.standard_normal((ROWS, COLUMNS)) > 0


def run(build: Callable[..., Tensor], *arrays: Any) -> Any:
    """What the tensor that `build` makes of inputs holds for these arrays."""
    b = GraphBuilder()
    result = build(*[b.input(f"x{n}", array.shape, array.dtype) for n, array in enumerate(arrays)])
    return evaluate(b.finish([result]), list(arrays))[0]


def check(formula: Callable[..., Any], *arrays: Any, exact: bool = True) -> None:
    """`formula` of tensors gives what it gives of arrays, in the same dtype and shape."""
    expected = np.asarray(formula(*arrays))
    found = run(formula, *arrays)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    if exact:
        np.testing.assert_array_equal(found, expected)
    else:
        np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv", "mod", "lt", "le", "gt", "ge"])
def test_arithmetic_of_floats(name: str) -> None:
    symbol: Callable[..., Any] = getattr(operator, name)
    check(symbol, X, Y)
    check(lambda x: symbol(x, 1.5), X)
    check(lambda x: symbol(2, x), X)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "and_", "or_", "xor", "lt", "ge"])
def test_arithmetic_of_integers(name: str) -> None:
    symbol: Callable[..., Any] = getattr(operator, name)
    check(symbol, I, J)
    check(lambda i: symbol(i, 3), I)
    check(lambda i: symbol(3, i), I)


def test_quotients_and_shifts_of_integers_round_as_in_numpy() -> None:
    check(lambda i: i // 4, I)
    check(lambda i: i % 4, I)
    check(lambda i: (i << 2) >> 1, I)
    check(lambda i, j: i // (j + 20), I, J)


def test_logic_of_bool() -> None:
    check(lambda p, q: (p & ~q) | (q ^ True), P, Q)


def test_unary_operators_and_powers() -> None:
    check(lambda x: -x + abs(x), X)
    check(lambda x: abs(x) ** 0.5 + x**2, X, exact=False)
    check(lambda x: 2.0**x, X, exact=False)
    check(lambda x, y: abs(x) ** y, X, Y, exact=False)


def test_equality_of_elements_has_a_name() -> None:
    found = run(lambda i, j: i.eq(j) | i.ne(3), I, J)
    np.testing.assert_array_equal(found, (I == J) | (I != 3))


def test_numbers_and_arrays_of_numpy() -> None:
    check(lambda x: np.float32(2) * x + np.float32(0.5), X)
    np.testing.assert_array_equal(run(lambda x: x * np.float64(0.1), X), X * np.float32(0.1))  # a number has no dtype
    check(lambda x: Y * x - Y, X)
    check(lambda x: np.arange(COLUMNS, dtype=np.float32) < x, X)


@pytest.mark.parametrize(("left", "right"), [((4, 3), (3, 5)), ((3,), (3, 5)), ((4, 3), (3,)), ((2, 4, 3), (3, 5))])
def test_products(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = (RANDOM.standard_normal(shape).astype(np.float32) for shape in (left, right))
    check(operator.matmul, a, b, exact=False)
    check(lambda x: x @ b, a, exact=False)
    check(lambda x: a @ x, b, exact=False)


def test_shapes_and_reductions() -> None:
    check(lambda x: x.T, X)
    check(lambda x: x.reshape(COLUMNS, -1).transpose(1, 0), X)
    check(lambda x: x.reshape((1, -1)), X)
    check(lambda x: x.sum(), X, exact=False)
    check(lambda x: x.mean(-1, keepdims=True), X, exact=False)
    check(lambda x: x.max(axis=(0, 1)) - x.min(0), X)
    check(lambda x: x.prod(axis=1), X, exact=False)
    np.testing.assert_array_equal(run(lambda x: x.cast(np.int8).cast("float32"), X), X.astype(np.int8))
    np.testing.assert_array_equal(run(lambda x: x.sum(), I), I.sum())


PARTS: list[Callable[[Any], Any]] = [
    lambda x: x[2], lambda x: x[-1, 3], lambda x: x[1:4], lambda x: x[..., 0], lambda x: x[:, ::-2], lambda x: x[9:],
    lambda x: x[None, :, 2:-1, None], lambda x: x[4:0:-3, ...], lambda x: x[:, None, np.int64(2)],
    lambda x: x[..., None],
    lambda x: x[None, 1, ..., None], lambda x: x[-100:100], lambda x: x[1][2],
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(PARTS)))
def test_parts(number: int) -> None:
    check(PARTS[number], X)


def test_rows_of_a_tensor() -> None:
    check(lambda x: sum(row * number for number, row in enumerate(x)), X, exact=False)
    b = GraphBuilder()
    x = b.input("x", (3, 4), "f32")
    assert len(x) == 3
    assert [row.shape for row in x] == [(4,)] * 3
    with pytest.raises(ExtentMismatch, match="no dimensions"):
        len(b.input("s", (), "f32"))


def test_indices_of_expressions_still_read_elements() -> None:
    x, i = Tensor("x", (4, 3), "f32"), Axis("i", 4)
    assert isinstance(x[i, 2], Read)
    assert isinstance(Tensor("s", (), "f32")[()], Read)


REFUSED: list[tuple[Callable[[Any, Any], Any], str]] = [
    (lambda x, i: x + i, r"x \+ i: .*x: f32\[3, 4\] and i: i32\[4\] have two dtypes\n.*'i32'\), or i\.cast\('f32'\)"),
    (lambda x, i: i * 1.5, r"i \* 1\.5: .*1\.5 beside elements of i: i32\[4\]\n.*i\.cast\('f32'\)"),
    (lambda x, i: i / 2, r"i / 2: .*/ of i: i32\[4\]: it is for floats\n.*i\.cast\('f32'\)"),
    (lambda x, i: x & 1, r"x & 1: .*it is for integers and bool\n.*x\.cast\('i32'\)"),
    (lambda x, i: x // 2, r"x // 2: .*it is for integers"),
    (lambda x, i: i + 2**40, r"i \+ 1099511627776: .*does not fit i32\n.*in \[-2147483648"),
    (lambda x, i: x + x.T, r"x \+ transpose: .*shapes \[3, 4\] and \[4, 3\] do not broadcast\n.*extents 3 and 4"),
    (lambda x, i: x @ x, r"x @ x: .*contracts 4 elements of x: f32\[3, 4\] with 3"),
    (lambda x, i: x @ np.ones((4, 2)), r"x @ ndarray: .*an array of float64 beside .*\n.*array\.astype\('float32'\)"),
    (lambda x, i: x[5], r"x\[5\]: .*index 5 of a dimension of extent 3\n.*\[-3, 2\]"),
    (lambda x, i: x[0, 0, 0], r"x\[0, 0, 0\]: .*3 indices of x: f32\[3, 4\], which has rank 2"),
    (lambda x, i: x[i], r"x\[i\]: .*an index is a Tensor\n.*gather"),
    (lambda x, i: x[1.0], r"x\[1\.0\]: .*an index is a float"),
    (lambda x, i: x[True], r"an index is a bool"),
    (lambda x, i: x[..., 0, ...], r"two ellipses"),
    (lambda x, i: x[::0], r"x\[::0\]: .*step"),
    (lambda x, i: x.reshape(5, -1), r"cannot reshape x: f32\[3, 4\] to \[5, -1\]\n.*divides 12"),
    (lambda x, i: bool(x > 0), r"no truth value(?s:.*)elementwise\.where"),
    (lambda x, i: np.asarray(x), r"has no elements before its graph runs"),
    (lambda x, i: i.eq("a"), r"i is compared with a str"),
    (lambda x, i: x.cast("float31"), r"unknown dtype 'float31'\n.*'float32', np\.float32"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_refusals_say_where_what_and_what_would_be_legal(number: int) -> None:
    formula, message = REFUSED[number]
    b = GraphBuilder()
    x, i = b.input("x", (3, 4), "f32"), b.input("i", (4,), "i32")
    with pytest.raises(CompileError, match=message):
        formula(x, i)


def test_other_types_are_no_operands() -> None:
    x = GraphBuilder().input("x", (3,), "f32")
    for formula in (lambda: x + "1", lambda: [1] @ x, lambda: x in x):
        with pytest.raises(TypeError):
            formula()  # type: ignore[no-untyped-call]


def test_tensors_of_two_builders_do_not_mix() -> None:
    one, other = GraphBuilder("one"), GraphBuilder("other")
    x, y = one.input("x", (3,), "f32"), other.input("y", (3,), "f32")
    for formula in (lambda: x + y, lambda: linalg.outer(x, y)):
        with pytest.raises(InvalidArgument, match=r"x: f32\[3\] and y: f32\[3\] are tensors of two graph builders"):
            formula()
    assert not one.nodes
    assert not other.nodes


def test_a_finished_graph_takes_no_more_operators() -> None:
    b = GraphBuilder("g")
    x = b.input("x", (3,), "f32")
    y = x + 1
    b.finish([y])
    for formula in (
        lambda: y + 1,
        lambda: b.input("z", (3,), "f32"),
        lambda: b.constant(Y),
        lambda: elementwise.relu(y),
    ):
        with pytest.raises(InvalidExpression, match="graph 'g' is finished"):
            formula()
    assert b.finish([y, x]).outputs == (y, x)


def test_a_tensor_without_builder_says_so() -> None:
    for tensor in (Tensor("x", (3,), "f32"), GraphBuilder().input("x", (3,), "f32")):
        gc.collect()
        with pytest.raises(InvalidArgument, match="graph builder"):
            tensor + 1


def test_a_builder_does_not_change_what_a_tensor_is() -> None:
    b = GraphBuilder()
    x, plain = b.input("x", (3,), "f32"), Tensor("x", (3,), "f32")
    assert x == plain
    assert hash(x) == hash(plain)
    assert repr(x) == repr(plain)
    for twin in (pickle.loads(pickle.dumps(x)), copy.copy(x), copy.deepcopy(x), replace(x)):
        assert twin == x
        with pytest.raises(InvalidArgument, match="no graph builder"):
            twin + 1


def test_a_graph_does_not_keep_its_builder() -> None:
    b = GraphBuilder()
    graph = b.finish([b.input("x", (3,), "f32") + 1])
    reference = graph.inputs[0]._builder
    del b
    assert reference() is None


@pytest.mark.parametrize("alias", ["float32", np.float32, np.dtype("float32"), "f32"])
def test_dtypes_by_the_names_of_numpy(alias: Any) -> None:
    b = GraphBuilder()
    x = b.input("x", (3,), alias)
    assert x.dtype == Tensor("y", (3,), alias).dtype == elementwise.cast(x, dtype=alias).dtype == "f32"
    assert elementwise.fill(b, (2,), 1, alias).dtype == "f32"
    assert linalg.outer(x, x, out_dtype=alias).dtype == "f32"
    assert x[Axis("i", 3)].cast(alias).dtype == "f32"


def test_names_of_dtypes() -> None:
    torch_like = type("dtype", (), {"__str__": lambda self: "torch.bfloat16"})()
    assert named(torch_like) == named("bfloat16") == named(numpy_dtype("bf16")) == "bf16"
    assert [named(from_numpy(kind)) for kind in (bool, np.int8, np.uint64)] == ["bool", "i8", "u64"]
    assert named("i8") == "i8"  # bits, not the bytes of NumPy
    for wrong in (None, "f4", "float", ">f4", np.dtype(">f4"), object, complex, 3, "", np.str_):
        with pytest.raises(InvalidExpression, match="unknown dtype"):
            named(wrong)
