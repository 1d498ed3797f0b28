"""The evaluator against a point-by-point interpreter of core.FUNCTIONS, and against NumPy formulas."""

import tracemalloc
import warnings
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.covering import tries
from tests.random_graphs import computes, random_array, random_inputs
from tilewright.errors import InvalidArgument, InvalidExpression
from tilewright.expr import Apply, Axis, Cast, Compute, Const, Dim, Expr, Graph, Read, Tensor, apply, dtypes, select
from tilewright.expr import evaluate as module
from tilewright.expr.core import ACCUMULATIONS, FUNCTIONS, identity
from tilewright.expr.evaluate import evaluate, evaluate_compute

Array = np.ndarray[Any, Any]


def value_at(expr: Expr, point: dict[Axis, int], tensors: dict[str, Array]) -> Any:
    """The definition: one element at a time, lazily in `select`."""
    if isinstance(expr, Axis):
        return np.int64(point[expr])
    if isinstance(expr, Const):
        return np.array(expr.value).astype(dtypes.numpy_dtype(expr.dtype))
    if isinstance(expr, Cast):
        return np.asarray(value_at(expr.arg, point, tensors)).astype(dtypes.numpy_dtype(expr.dtype))
    if isinstance(expr, Read):
        index = tuple(int(value_at(i, point, tensors)) for i in expr.indices)
        assert all(0 <= i < n for i, n in zip(index, tensors[expr.tensor.name].shape, strict=True))
        return tensors[expr.tensor.name][index]
    assert isinstance(expr, Apply)
    if expr.function == "select":
        return value_at(expr.args[1 if value_at(expr.args[0], point, tensors) else 2], point, tensors)
    args = [np.asarray(value_at(arg, point, tensors)) for arg in expr.args]
    return np.asarray(FUNCTIONS[expr.function].numpy(*args)).astype(dtypes.numpy_dtype(expr.dtype))


def pointwise(compute: Compute, tensors: dict[str, Array]) -> Array:
    shape = tuple(int(axis.extent) for axis in compute.axes)  # type: ignore[arg-type]
    wide = compute.accum in ("sum", "prod") and dtypes.is_float(compute.output.dtype)
    result = np.zeros(shape, np.float64 if wide else dtypes.numpy_dtype(compute.output.dtype))
    with np.errstate(all="ignore"):
        for place in np.ndindex(*shape):
            total: Any = None if compute.accum is None else np.asarray(
                identity(compute.accum, compute.output.dtype).value
            ).astype(result.dtype)  # fmt: skip
            for inner in product(*(range(int(axis.extent)) for axis in compute.reduce)):  # type: ignore[arg-type]
                point = dict(zip(compute.loops, (*place, *inner), strict=True))
                term = value_at(compute.body, point, tensors)
                if compute.accum is None:
                    total = term
                else:
                    step = FUNCTIONS[ACCUMULATIONS[compute.accum]].numpy
                    total = np.asarray(step(total, np.asarray(term).astype(result.dtype))).astype(result.dtype)
            result[place] = total
        return result.astype(dtypes.numpy_dtype(compute.output.dtype))


def assert_same(found: Array, expected: Array, terms: int) -> None:
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    if found.dtype.kind in "iub":
        assert np.array_equal(found, expected)
        return
    eps = 2.0**-8 if found.dtype.name == "bfloat16" else float(np.finfo(found.dtype).eps)
    a, b = found.astype(np.float64), expected.astype(np.float64)
    # The two sum in another order (float64) and round once; products under a sum may skip one rounding per factor.
    close = np.abs(a - b) <= eps * (4 * terms + 8) * np.maximum(1, np.abs(b))
    assert (close | (np.isnan(a) & np.isnan(b)) | (a == b)).all()


@settings(max_examples=tries(15, full=60), deadline=None)
@given(computes(points=300), st.integers(0, 1000))
def test_agrees_with_the_definition_on_random_computes(compute: Compute, seed: int) -> None:
    tensors = random_inputs(compute, seed)
    terms = int(np.prod([axis.extent for axis in compute.reduce]))
    assert_same(evaluate_compute(compute, tensors), pointwise(compute, tensors), terms)


@settings(max_examples=tries(12, full=40), deadline=None)
@given(computes())
def test_blocks_do_not_change_the_result(compute: Compute) -> None:
    tensors = random_inputs(compute)
    whole = evaluate_compute(compute, tensors)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK_ELEMENTS", 97)
        patch.setattr(module, "_FACTOR_ELEMENTS", 61)
        cut = evaluate_compute(compute, tensors)
    assert_same(cut, whole, 1)


def matmul(batch: int, m: int, n: int, k: int, dtype: str, accumulator: str) -> Compute:
    b, i, j, r = Axis("b", batch), Axis("i", m), Axis("j", n), Axis("k", k)
    left, right = Tensor("A", (batch, m, k), dtype), Tensor("B", (batch, k, n), dtype)
    body = left[b, i, r].cast(accumulator) * right[b, r, j].cast(accumulator)
    return Compute(Tensor("C", (batch, m, n), accumulator), (b, i, j), body, (r,), "sum")


@pytest.mark.parametrize(("dtype", "accumulator"), [
    ("f32", "f32"), ("f64", "f64"), ("f16", "f16"), ("bf16", "f32"), ("f16", "f32"), ("i8", "i32"), ("u8", "i32"),
    ("i8", "i8"), ("i64", "i64"), ("u64", "u64"), ("i32", "i32"),
])  # fmt: skip
def test_matrix_products(dtype: str, accumulator: str) -> None:
    compute = matmul(3, 17, 5, 31, dtype, accumulator)
    tensors = random_inputs(compute, 1)
    a, b = tensors["A"], tensors["B"]
    found = evaluate_compute(compute, tensors)
    if dtypes.is_float(dtype):
        expected = (a.astype(np.float64) @ b.astype(np.float64)).astype(found.dtype)
        assert_same(found, expected, 1)
    else:
        assert np.array_equal(found, np.matmul(a.astype(found.dtype), b.astype(found.dtype)))


def test_integer_products_wrap_where_float64_is_not_exact() -> None:
    compute = matmul(1, 2, 2, 3, "i64", "i64")
    tensors = {name: np.full(shape, 3 << 40, np.int64) for name, shape in (("A", (1, 2, 3)), ("B", (1, 3, 2)))}
    assert np.array_equal(evaluate_compute(compute, tensors), tensors["A"] @ tensors["B"])


@pytest.mark.parametrize(
    ("stride", "dilation", "pad", "kernel"), [(1, 1, 1, 3), (2, 1, 3, 7), (1, 2, 2, 3), (3, 1, 0, 1)]
)
def test_padded_convolution(stride: int, dilation: int, pad: int, kernel: int) -> None:
    size, out = 13, (13 + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
    image, weight = Tensor("I", (2, 5, size, size), "f32"), Tensor("W", (4, 5, kernel, kernel), "f32")
    n, k, p, q = axes = Axis("n", 2), Axis("k", 4), Axis("p", out), Axis("q", out)
    c, r, s = reduced = Axis("c", 5), Axis("r", kernel), Axis("s", kernel)
    y, x = p * stride + r * dilation - pad, q * stride + s * dilation - pad
    inside = (y >= 0) & (y < size) & (x >= 0) & (x < size)
    body = select(inside, image[n, c, y, x], 0.0) * weight[k, c, r, s]
    compute = Compute(Tensor("O", (2, 4, out, out), "f32"), axes, body, reduced, "sum")
    tensors = random_inputs(compute)
    padded = np.pad(tensors["I"].astype(np.float64), ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    expected = np.zeros((2, 4, out, out))
    for i, j in np.ndindex(kernel, kernel):
        rows = slice(i * dilation, i * dilation + (out - 1) * stride + 1, stride)
        columns = slice(j * dilation, j * dilation + (out - 1) * stride + 1, stride)
        expected += np.einsum("nchw,kc->nkhw", padded[:, :, rows, columns], tensors["W"][:, :, i, j].astype(np.float64))
    assert_same(evaluate_compute(compute, tensors), expected.astype(np.float32), 1)


def test_three_factors() -> None:
    i, j, k, l = (Axis(name, extent) for name, extent in zip("ijkl", (4, 5, 6, 7), strict=True))
    a, b, c = Tensor("A", (4, 6), "f64"), Tensor("B", (5, 6, 7), "f64"), Tensor("C", (4, 7), "f64")
    body = a[i, k] * b[j, k, l] * c[i, l]
    compute = Compute(Tensor("O", (4, 5), "f64"), (i, j), body, (k, l), "sum")
    t = random_inputs(compute)
    expected = np.einsum("ik,jkl,il->ij", t["A"], t["B"], t["C"])
    np.testing.assert_allclose(evaluate_compute(compute, t), expected, rtol=1e-13)


def test_a_loop_the_body_does_not_use_repeats_the_term() -> None:
    i, k, z = Axis("i", 3), Axis("k", 4), Axis("z", 5)
    a, b = Tensor("A", (3, 4), "i32"), Tensor("B", (4,), "i32")
    compute = Compute(Tensor("O", (3,), "i32"), (i,), a[i, k] * b[k], (k, z), "sum")
    t = random_inputs(compute)
    assert np.array_equal(evaluate_compute(compute, t), 5 * (t["A"] @ t["B"]))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_function_on_every_dtype_keeps_shape_dtype_and_silence(function: str) -> None:
    rule = FUNCTIONS[function]
    for dtype, shape in product(dtypes.DTYPES, [(), (7,), (0,)]):
        kind = "b" if dtype == "bool" else "f" if dtypes.is_float(dtype) else "i"
        if kind not in rule.kinds:
            continue
        axes = tuple(Axis("i", extent) for extent in shape)
        tensors = [Tensor(f"x{n}", shape, dtype) for n in range(rule.arity)]
        if function == "select":
            tensors[0] = Tensor("x0", shape, "bool")
        body = apply(function, *(tensor[axes] for tensor in tensors))
        compute = Compute(Tensor("o", shape, body.dtype), axes, body)
        inputs = {tensor.name: random_array(tensor, number) for number, tensor in enumerate(tensors)}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = evaluate_compute(compute, inputs)
        assert found.shape == shape
        assert found.dtype == dtypes.numpy_dtype(body.dtype)
        assert_same(found, pointwise(compute, inputs), 1)


@pytest.mark.parametrize("dtype", dtypes.DTYPES)
@pytest.mark.parametrize("accum", ["sum", "prod", "max", "min"])
def test_accumulations(accum: str, dtype: str) -> None:
    if dtype == "bool" and accum in ("sum", "prod"):
        pytest.skip("not defined for bool")
    x, i, k = Tensor("x", (5, 4), dtype), Axis("i", 5), Axis("k", 4)
    compute = Compute(Tensor("o", (5,), dtype), (i,), x[i, k], (k,), accum)
    inputs = random_inputs(compute)
    wide = inputs["x"].astype(np.float64) if dtypes.is_float(dtype) else inputs["x"]
    expected = getattr(np, accum)(wide, axis=1).astype(dtypes.numpy_dtype(dtype))
    assert_same(evaluate_compute(compute, inputs), expected, 1)


def test_division_and_power_of_integers() -> None:
    x, y, i = Tensor("x", (6,), "i32"), Tensor("y", (6,), "i32"), Axis("i", 6)
    inputs = {"x": np.array([7, -7, 7, -7, 5, -1], np.int32), "y": np.array([2, 2, -2, -2, 0, -3], np.int32)}

    def run(function: str) -> list[int]:
        found: list[int] = evaluate_compute(
            Compute(Tensor("o", (6,), "i32"), (i,), apply(function, x[i], y[i])), inputs
        ).tolist()
        return found

    assert run("div") == [3, -3, -3, 3, 0, 0]
    assert run("floordiv") == [3, -4, -4, 3, 0, 0]
    assert run("pow") == [49, 49, 0, 0, 1, -1]


@pytest.mark.parametrize("accum", ["max", "min"])
def test_maximum_and_minimum_return_nan(accum: str) -> None:
    x, k = Tensor("x", (3,), "f32"), Axis("k", 3)
    compute = Compute(Tensor("o", (), "f32"), (), x[k], (k,), accum)
    assert np.isnan(evaluate_compute(compute, {"x": np.array([1, np.nan, 2], np.float32)}))


def test_guarded_read_outside_does_not_fault() -> None:
    x, i = Tensor("x", (3,), "f32"), Axis("i", 9)
    guarded = select((i >= 3) & (i < 6), x[i - 3], -1.0)
    compute = Compute(Tensor("o", (9,), "f32"), (i,), guarded)
    found = evaluate_compute(compute, {"x": np.array([7, 8, 9], np.float32)})
    assert found.tolist() == [-1, -1, -1, 7, 8, 9, -1, -1, -1]


def test_the_other_branch_is_guarded_by_the_negation_and_guards_nest() -> None:
    x, i = Tensor("x", (2,), "i32"), Axis("i", 6)
    body = select(i < 2, x[i], select(i < 4, x[i - 2] * 10, select(i.eq(5), x[i - 4], 0)))
    compute = Compute(Tensor("o", (6,), "i32"), (i,), body)
    assert evaluate_compute(compute, {"x": np.array([1, 2], np.int32)}).tolist() == [1, 2, 10, 20, 0, 2]


def test_guarded_read_of_an_empty_tensor() -> None:
    x, i = Tensor("x", (0,), "f32"), Axis("i", 3)
    compute = Compute(Tensor("o", (3,), "f32"), (i,), select(i < 0, x[i], 4.0))
    assert evaluate_compute(compute, {"x": np.zeros(0, np.float32)}).tolist() == [4, 4, 4]


def test_read_outside_under_a_true_guard_names_tensor_index_and_place() -> None:
    x, i, j = Tensor("x", (3, 4), "f32"), Axis("i", 3), Axis("j", 4)
    compute = Compute(Tensor("o", (3, 4), "f32"), (i, j), select(j >= 2, x[i, j + 1], 0.0))
    with pytest.raises(InvalidExpression) as caught:
        evaluate_compute(compute, {"x": np.zeros((3, 4), np.float32)})
    assert "o reads x: f32[3, 4] with index 4 in dimension 1 at i = 0, j = 3" in str(caught.value)
    assert "an index in [0, 4)" in caught.value.help


def test_indices_from_data_are_checked() -> None:
    table, index, i, j = Tensor("t", (4, 2), "f32"), Tensor("n", (3,), "i32"), Axis("i", 3), Axis("j", 2)
    compute = Compute(Tensor("o", (3, 2), "f32"), (i, j), table[index[i], j])
    values = np.arange(8, dtype=np.float32).reshape(4, 2)
    found = evaluate_compute(compute, {"t": values, "n": np.array([3, 0, 3], np.int32)})
    assert np.array_equal(found, values[[3, 0, 3]])
    with pytest.raises(InvalidExpression, match=r"index -1 in dimension 0 at i = 1"):
        evaluate_compute(compute, {"t": values, "n": np.array([3, -1, 3], np.int32)})


@pytest.mark.parametrize(("accum", "expected"), [("sum", 0.0), ("prod", 1.0), ("max", -np.inf), ("min", np.inf)])
def test_zero_extents(accum: str, expected: float) -> None:
    i, k = Axis("i", 2), Axis("k", 0)
    x = Tensor("x", (2, 0), "f32")
    compute = Compute(Tensor("o", (2,), "f32"), (i,), x[i, k], (k,), accum)
    assert evaluate_compute(compute, {"x": np.zeros((2, 0), np.float32)}).tolist() == [expected] * 2
    none = Compute(Tensor("o", (0,), "f32"), (k,), Tensor("x", (0,), "f32")[k] * 2.0)
    assert evaluate_compute(none, {"x": np.zeros(0, np.float32)}).shape == (0,)


def test_half_precision_rounds_after_each_operation_and_precise_does_not() -> None:
    x = Tensor("x", (), "f16")
    compute = Compute(Tensor("o", (), "f16"), (), (x[()] + 1.0) - 1.0)
    tiny = {"x": np.array(2.0**-13, np.float16)}
    assert evaluate_compute(compute, tiny) == 0
    wide = evaluate_compute(compute, tiny, precise=True, wide=True)
    assert wide.dtype == np.float64
    assert wide == 2.0**-13
    assert evaluate_compute(compute, tiny, precise=True).dtype == np.float16


def test_wide_values_pass_between_nodes_in_precise_mode() -> None:
    x, i = Tensor("x", (3,), "f16"), Axis("i", 3)
    y = Compute(Tensor("y", (3,), "f16"), (i,), x[i] + 2048.0)
    z = Compute(Tensor("z", (3,), "f16"), (i,), y.output[i] - 2048.0)
    graph = Graph((x,), (z.output,), (y, z))
    value = np.array([0.25, 0.5, 0.75], np.float16)
    assert evaluate(graph, [value], precise=True)[0].tolist() == value.tolist()
    assert evaluate(graph, [value])[0].tolist() == [0, 0, 0]  # f16 has a step of 2 from 2048 on


def test_named_dimensions_take_the_size_of_the_arrays() -> None:
    n = Dim("N", 1, 64, 2)
    x, i, k = Tensor("x", (n, 3), "f32"), Axis("i", n), Axis("k", 3)
    compute = Compute(Tensor("o", (n,), "f32"), (i,), x[i, k], (k,), "sum")
    assert evaluate_compute(compute, {"x": np.ones((8, 3), np.float32)}).tolist() == [3.0] * 8
    with pytest.raises(InvalidArgument, match="shape"):
        evaluate_compute(compute, {"x": np.ones((7, 3), np.float32)})


def test_outputs_may_be_inputs_constants_and_repeats() -> None:
    x, w, i = Tensor("x", (2,), "f32"), Tensor("w", (2,), "f32"), Axis("i", 2)
    node = Compute(Tensor("y", (2,), "f32"), (i,), x[i] + w[i])
    graph = Graph((x,), (x, w, node.output, node.output), (node,), {"w": np.ones(2, np.float32)})
    found = evaluate(graph, {"x": np.array([1, 2], np.float32)})
    assert [array.tolist() for array in found] == [[1, 2], [1, 1], [2, 3], [2, 3]]


@pytest.mark.parametrize(("inputs", "message"), [
    ({}, "missing: \\['x'\\]"), ({"x": np.zeros(2, np.float32), "q": np.zeros(1)}, "unknown: \\['q'\\]"),
    ([], "0 inputs given"), ([np.zeros(2)], "given as float64"), ([np.zeros(3, np.float32)], "shape \\[3\\]"),
    ([np.zeros((2, 1), np.float32)], "shape \\[2, 1\\]"),
])  # fmt: skip
def test_inputs_that_do_not_fit(inputs: Any, message: str) -> None:
    x, i = Tensor("x", (2,), "f32"), Axis("i", 2)
    node = Compute(Tensor("y", (2,), "f32"), (i,), x[i])
    with pytest.raises(InvalidArgument, match=message):
        evaluate(Graph((x,), (node.output,), (node,)), inputs)


def test_temporaries_stay_bounded_and_dead_tensors_are_freed() -> None:
    size, i, j, r = 1 << 22, Axis("i", 1 << 22), Axis("j", 4), Axis("r", 9)
    x, w = Tensor("x", (size + 8,), "f32"), Tensor("w", (4, 9), "f32")
    layer = Compute(Tensor("y", (4, size), "f32"), (j, i), x[i + r] * w[j, r], (r,), "sum")  # im2col would be 300 MB
    nodes = [layer]
    for number in range(6):  # 64 MB each
        last = nodes[-1].output
        nodes.append(Compute(Tensor(f"y{number}", last.shape, "f32"), (j, i), apply("tanh", last[j, i]) + 1.0))
    graph = Graph((x, w), (nodes[-1].output,), tuple(nodes))
    inputs = {"x": np.ones(size + 8, np.float32), "w": np.ones((4, 9), np.float32)}
    tracemalloc.start()
    found = evaluate(graph, inputs)[0]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.shape == (4, size)
    # Two live tensors of 64 MB, a float64 accumulator of 128 MB, and temporaries.
    assert peak < (2 * 64 + 128 + 256) << 20
