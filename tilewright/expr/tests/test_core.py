import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.errors import CompileError, ExtentMismatch, InvalidExpression
from tilewright.expr import Axis, Cast, Compute, Const, Dim, Graph, GraphBuilder, Tensor, apply, const, dtypes, select
from tilewright.expr.core import FUNCTIONS, identity, static_shape

I, J, K = Axis("i", 3), Axis("j", 4), Axis("k", 5)
X = Tensor("x", (3, 5), "f32")


def test_operators_give_python_numbers_the_dtype_of_the_other_side() -> None:
    assert X[I, K] + 1 == apply("add", X[I, K], Const(1.0, "f32"))
    assert apply("sub", Const(1, "i64"), I) == 1 - I
    assert (2.0 * X[I, K]).dtype == "f32"
    assert (X[I, K] < 0).dtype == "bool"
    assert select(I < 2, 0.5, X[I, K]).dtype == "f32"


def test_constants_compare_by_content() -> None:
    assert const(math.nan, "f32") == const(math.nan, "f32")
    assert hash(const(math.nan, "f32")) == hash(const(math.nan, "f32"))
    assert const(0.0, "f32") != const(-0.0, "f32")
    assert const(1, "i32") != const(1, "i64")
    assert const(1, "f32") == const(1.0, "f32")


def test_cast_to_the_same_dtype_is_nothing() -> None:
    assert X[I, K].cast("f32") == X[I, K]
    assert X[I, K].cast("f16") == Cast(X[I, K], "f16")


def test_narrow_indices_are_widened() -> None:
    index = Tensor("n", (3,), "i32")
    assert X[I, index[I]].indices[1] == Cast(index[I], "i64")


@pytest.mark.parametrize(("build", "message"), [
    (lambda: X[I], "read with 1 indices"), (lambda: X[I, 1.5], "not an i64"), (lambda: X[I, X[I, K]], "indexed by"),
    (lambda: X[I, K] + I, "add of f32 and i64"), (lambda: apply("exp", I), "not defined for i64"),
    (lambda: apply("nope", I), "unknown function"), (lambda: apply("exp"), "takes 1"),
    (lambda: select(I, J, K), "dtype i64"),
    (lambda: Const(300, "u8"), "does not fit u8"), (lambda: Const(0.5, "i8"), "not an i8"),
    (lambda: Tensor("t", (-1,), "f32"), "shape"), (lambda: Tensor("t", (1,), "f31"), "f31"),
    (lambda: Axis("i", -1), "-1"),
    (lambda: Dim("N", 5, 2), "range"), (lambda: static_shape((Dim("N"),)), "not known"),
    (lambda: Compute(Tensor("o", (3,), "f32"), (I,), X[I, K]), "not a loop"),
    (lambda: Compute(Tensor("o", (3,), "f32"), (I,), X[I, K], (K,)), "accumulation None"),
    (lambda: Compute(Tensor("o", (3,), "f32"), (I,), X[I, 0], (), "sum"), "accumulation sum"),
    (lambda: Compute(Tensor("o", (3,), "f32"), (I,), X[I, K], (K,), "mean"), "unknown accumulation"),
    (lambda: Compute(Tensor("o", (3,), "f16"), (I,), X[I, 0]), "dtype f32"),
    (lambda: Compute(Tensor("o", (3, 3), "f32"), (I, I), X[I, 0]), "one name"),
    (lambda: Compute(Tensor("o", (3, 3), "f32"), (I,), X[I, 0]), "written with 1 axes"),
    (lambda: Compute(Tensor("o", (4,), "f32"), (I,), X[I, 0]), "extent 3 writes a dimension of 4"),
])  # fmt: skip
def test_mistakes_are_named(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(CompileError) as caught:
        build()
    assert message in str(caught.value)


def test_reads_come_in_order_and_inputs_once() -> None:
    y = Tensor("y", (3,), "f32")
    compute = Compute(Tensor("o", (3,), "f32"), (I,), y[I] * X[I, 0] + y[I])
    assert compute.reads() == (y[I], X[I, 0], y[I])
    assert compute.inputs() == (y, X)


def test_source_does_not_take_part_in_equality() -> None:
    assert Compute(X, (I, K), X[I, K] + 1.0, source="a") == Compute(X, (I, K), X[I, K] + 1.0, source="b")


@pytest.mark.parametrize("dtype", dtypes.DTYPES)
@pytest.mark.parametrize("accum", ["sum", "prod", "max", "min"])
def test_identities_leave_values_unchanged(accum: str, dtype: str) -> None:
    if dtype == "bool" and accum in ("sum", "prod"):
        pytest.skip("not defined for bool")
    function = {"sum": "add", "prod": "mul"}.get(accum, accum)
    values = np.array([0, 1, 1, 0]).astype(dtypes.numpy_dtype(dtype))
    start = np.array(identity(accum, dtype).value).astype(values.dtype)
    assert np.array_equal(FUNCTIONS[function].numpy(start, values), values)


def test_dtypes_translate_both_ways() -> None:
    for dtype in dtypes.DTYPES:
        assert dtypes.from_numpy(dtypes.numpy_dtype(dtype)) == dtype
        assert dtypes.bits(dtype) == 8 * dtypes.size_bytes(dtype)
    with pytest.raises(InvalidExpression, match="complex64"):
        dtypes.from_numpy(np.complex64)


def doubled(name: str, x: Tensor) -> Compute:
    i = Axis("i", x.shape[0])
    return Compute(Tensor(name, x.shape, "f32"), (i,), x[i] * 2.0)


def test_graph_rules() -> None:
    x = Tensor("x", (3,), "f32")
    y = doubled("y", x)
    z = doubled("z", y.output)
    Graph((x,), (z.output,), (y, z))
    with pytest.raises(InvalidExpression, match="which no earlier node writes"):
        Graph((x,), (z.output,), (z, y))
    with pytest.raises(InvalidExpression, match="defined twice"):
        Graph((x,), (y.output,), (y, y))
    with pytest.raises(InvalidExpression, match="defined twice"):
        Graph((x, x), (), ())
    with pytest.raises(InvalidExpression, match="output"):
        Graph((x,), (z.output,), (y,))
    with pytest.raises(InvalidExpression, match="a constant of"):
        Graph((), (y.output,), (y,), {"x": np.zeros(4, np.float32)})


def test_builder_makes_names_unique() -> None:
    builder = GraphBuilder()
    x = builder.input("x", (3,), "f32")
    weights = np.asfortranarray(np.ones((2, 3), np.float32))
    w, v = builder.constant(weights, "w"), builder.constant(weights, "w")
    y = builder.add(doubled(builder.unique("x"), x))
    assert (w.name, v.name, y.name) == ("w", "w.1", "x.1")
    graph = builder.finish([y])
    assert graph.constants["w"].flags.c_contiguous
    assert set(graph.tensors()) == {"x", "x.1"}


def test_extent_mismatch_is_an_invalid_expression() -> None:
    assert issubclass(ExtentMismatch, InvalidExpression)
