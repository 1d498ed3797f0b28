"""Contractions against NumPy at odd extents, their result types, and their errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.errors import ExtentMismatch, InvalidExpression
from tilewright.expr import GraphBuilder, Tensor
from tilewright.expr.dtypes import from_numpy, is_float
from tilewright.expr.evaluate import evaluate
from tilewright.expr.ops import linalg

Array = np.ndarray[Any, Any]


def run(build: Callable[..., Tensor], *arrays: Array) -> Array:
    """The result of the operator that `build` adds for inputs of these arrays."""
    b = GraphBuilder()
    inputs = [b.input(f"x{n}", array.shape, from_numpy(array.dtype)) for n, array in enumerate(arrays)]
    out = build(*inputs)
    (value,) = evaluate(b.finish([out]), list(arrays))
    assert value.shape == out.shape
    assert from_numpy(value.dtype) == out.dtype
    return value


def node_count(build: Callable[..., Tensor], *arrays: Array) -> int:
    b = GraphBuilder()
    build(*[b.input(f"x{n}", array.shape, from_numpy(array.dtype)) for n, array in enumerate(arrays)])
    return len(b.nodes)


def random(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Array:
    generator = np.random.default_rng((seed, *shape))
    if is_float(from_numpy(np.dtype(dtype))):
        return generator.standard_normal(shape).astype(dtype)
    low, high = (0, 255) if dtype == np.uint8 else (-128, 127)
    return generator.integers(low, high, shape, endpoint=True).astype(dtype)


def assert_product(got: Array, want: Array, magnitude: Array, terms: int) -> None:
    """`got` within the error of a float32 sum of `terms` products. Higham 2002, section 3.1."""
    assert got.shape == want.shape
    assert (abs(got.astype(np.float64) - want) <= (terms + 2) * 2.0**-24 * magnitude + 1e-30).all()


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (7, 17, 5), (17, 1, 13), (3, 2, 0)])
@pytest.mark.parametrize("transposes", [(False, False), (True, False), (False, True), (True, True)])
def test_gemm_agrees_with_numpy(m: int, n: int, k: int, transposes: tuple[bool, bool]) -> None:
    a, w, bias = random(m, k), random(k, n, seed=1), random(n, seed=2)
    stored = (a.T if transposes[0] else a, w.T if transposes[1] else w, bias)
    got = run(
        lambda *t: linalg.gemm(*t, alpha=0.5, beta=2.0, transpose_a=transposes[0], transpose_b=transposes[1]),
        *(np.ascontiguousarray(array) for array in stored),
    )
    wide = 0.5 * (a.astype(np.float64) @ w) + 2.0 * bias
    assert_product(got, wide, 0.5 * abs(a.astype(np.float64)) @ abs(w) + 2.0 * abs(bias), k + 2)


def test_gemm_without_scale_and_bias_is_one_node() -> None:
    a, w = random(3, 4), random(4, 5)
    assert node_count(linalg.gemm, a, w) == 1
    assert node_count(lambda x, y: linalg.gemm(x, y, alpha=2.0), a, w) == 2
    assert node_count(linalg.gemm, a, w, random(5)) == 2


MATMUL_SHAPES = [
    ((7,), (7,)), ((7,), (7, 3)), ((3, 7), (7,)), ((2, 3, 7), (7,)), ((7,), (2, 7, 5)), ((5, 1, 3, 7), (2, 7, 1)),
    ((1, 1), (1, 1)), ((2, 3, 4), (2, 4, 5)), ((1, 3, 4), (6, 4, 2)), ((17, 13), (13, 11)),
]  # fmt: skip


@pytest.mark.parametrize(("left", "right"), MATMUL_SHAPES)
def test_matmul_follows_numpy_rules(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, w = random(*left), random(*right, seed=1)
    got = run(linalg.matmul, a, w)
    want = np.matmul(a.astype(np.float64), w.astype(np.float64))
    assert_product(got, want, np.matmul(abs(a).astype(np.float64), abs(w).astype(np.float64)), left[-1])


def test_matmul_with_transposed_operands() -> None:
    a, w = random(2, 7, 3), random(2, 5, 7, seed=1)
    got = run(lambda x, y: linalg.matmul(x, y, transpose_a=True, transpose_b=True), a, w)
    want = a.astype(np.float64).transpose(0, 2, 1) @ w.transpose(0, 2, 1)
    assert_product(got, want, abs(a).astype(np.float64).transpose(0, 2, 1) @ abs(w).transpose(0, 2, 1), 7)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_half_products_accumulate_in_float32_and_round_once(dtype: str) -> None:
    from tilewright.expr.dtypes import numpy_dtype

    a, w = random(7, 300, dtype=numpy_dtype(dtype)), random(300, 5, dtype=numpy_dtype(dtype), seed=1)
    b = GraphBuilder()
    out = linalg.matmul(b.input("a", a.shape, dtype), b.input("w", w.shape, dtype), name="o")
    assert [(node.name, node.output.dtype) for node in b.nodes] == [("o.acc", "f32"), ("o", dtype)]
    (got,) = evaluate(b.finish([out]), [a, w])
    wide = (a.astype(np.float64) @ w.astype(np.float64)).astype(np.float32)
    assert (got == wide.astype(got.dtype)).mean() > 0.95  # equal but for sums that lie next to a rounding boundary


def test_small_integers_accumulate_in_int32() -> None:
    a, w = random(7, 600, dtype=np.uint8), random(600, 5, dtype=np.int8, seed=1)
    got = run(linalg.matmul, a, w)
    assert got.dtype == np.int32
    assert (got == a.astype(np.int32) @ w.astype(np.int32)).all()


ZEROS_A = [None, np.uint8(3), np.array([200], np.uint8), random(7, dtype=np.uint8)]
ZEROS_B = [None, np.int8(-7), random(5, dtype=np.int8), random(1, 5, dtype=np.int8)]


@pytest.mark.parametrize("a_zero", ZEROS_A)
@pytest.mark.parametrize("b_zero", ZEROS_B)
def test_matmul_integer_subtracts_zero_points(a_zero: Array | None, b_zero: Array | None) -> None:
    a, w = random(2, 7, 13, dtype=np.uint8), random(13, 5, dtype=np.int8, seed=1)
    zeros = {"a_zero": a_zero, "b_zero": b_zero}
    given = {key: np.asarray(value) for key, value in zeros.items() if value is not None}
    names = list(given)
    got = run(lambda x, y, *z: linalg.matmul_integer(x, y, **dict(zip(names, z, strict=True))), a, w, *given.values())
    wide = {key: value.astype(np.int64) for key, value in given.items()}
    rows = wide.get("a_zero", np.zeros(1, np.int64)).reshape(-1, 1)
    assert (got == (a.astype(np.int64) - rows) @ (w.astype(np.int64) - wide.get("b_zero", 0))).all()


EQUATIONS = [
    ("ij,jk->ik", [(3, 7), (7, 5)]),
    ("ij,jk", [(3, 7), (7, 5)]),
    ("ii->i", [(5, 5)]),
    ("ii", [(5, 5)]),
    ("ij->ji", [(3, 7)]),
    ("...ij,...jk->...ik", [(2, 1, 3, 7), (4, 7, 5)]),
    ("...i->...", [(2, 3, 7)]),
    ("bhqd,bhkd->bhqk", [(2, 3, 5, 7), (2, 3, 4, 7)]),
    ("i,j->ij", [(3,), (1,)]),
    ("i,i->", [(7,), (7,)]),
    ("ik,jkl,il->ij", [(3, 4), (5, 4, 7), (3, 7)]),
    ("ij->", [(3, 7)]),
    ("a...,...b->b...a", [(3, 2, 5), (2, 5, 7)]),
    (" i j , j k -> i k ", [(3, 7), (7, 5)]),
]


@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS)
def test_einsum_agrees_with_numpy(equation: str, shapes: list[tuple[int, ...]]) -> None:
    arrays = [random(*shape, seed=n) for n, shape in enumerate(shapes)]
    got = run(lambda *t: linalg.einsum(equation, t), *arrays)
    want = np.einsum(equation, *[array.astype(np.float64) for array in arrays])
    magnitude = np.einsum(equation, *[abs(array).astype(np.float64) for array in arrays])
    assert_product(got, want, magnitude, 64)


def test_gemv_linear_bilinear_outer() -> None:
    a, x = random(7, 13), random(13, seed=1)
    assert np.allclose(run(linalg.gemv, a, x), a @ x, atol=1e-5)
    assert run(linalg.gemv, a, x[:, None]).shape == (7, 1)
    tokens, w, bias = random(2, 5, 13), random(3, 13, seed=2), random(3, seed=3)
    assert np.allclose(run(linalg.linear, tokens, w, bias), tokens @ w.T + bias, atol=1e-5)
    p, q, r = random(3, 4), random(5, 4, 7, seed=1), random(3, 7, seed=2)
    assert np.allclose(run(linalg.bilinear, p, q, r), np.einsum("ik,jkl,il->ij", p, q, r), atol=1e-4)
    assert (run(linalg.outer, x, x) == x[:, None] * x).all()


ERRORS = [
    (linalg.gemm, [(3, 4), (5, 6)], "contracts 4 elements of x0: f32[3, 4] with 5 of x1: f32[5, 6]", "extent 4"),
    (linalg.gemm, [(3,), (5, 6)], "x0: f32[3] has rank 1", "rank 2"),
    (linalg.gemm, [(3, 4), (4, 6), (5,)], "x2: f32[5] does not broadcast to [3, 6]", "[3, 6]"),
    (linalg.gemv, [(3, 4), (4, 2)], "is not a vector", "gemm"),
    (linalg.matmul, [(2, 3, 4), (3, 4, 5)], "do not broadcast", "one of them 1"),
    (linalg.matmul, [(), (3,)], "has rank 0", "at least 1"),
    (linalg.linear, [(3, 4), (5, 6)], "contracts 4 elements", "extent 4"),
]


@pytest.mark.parametrize(("build", "shapes", "message", "advice"), ERRORS)
def test_wrong_shapes_are_refused(
    build: Callable[..., Tensor], shapes: list[tuple[int, ...]], message: str, advice: str
) -> None:
    with pytest.raises(ExtentMismatch) as caught:
        run(build, *[random(*shape) for shape in shapes])
    assert message in caught.value.message
    assert advice in caught.value.help
    assert caught.value.where == build.__name__


@pytest.mark.parametrize(
    ("equation", "shapes", "message"),
    [
        ("ij,jk->ik", [(3, 4)], "has 2 operands, 1 were given"),
        ("ij->ik", [(3, 4)], "'k' of 'ij->ik' is in no operand"),
        ("i1->i", [(3, 4)], "cannot read 'i1'"),
        ("ij->ii", [(3, 4)], "repeats a letter"),
        ("ij,jk->ik", [(3, 4), (5, 6)], "'j' is 4 and, in x1: f32[5, 6], 5"),
        ("ijk->i", [(3, 4)], "has rank 2, its subscripts are 'ijk'"),
    ],
)
def test_bad_equations_are_refused(equation: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(InvalidExpression) as caught:
        run(lambda *t: linalg.einsum(equation, t), *[random(*shape) for shape in shapes])
    assert message in caught.value.message
