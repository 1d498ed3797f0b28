"""Index arithmetic against brute force over small domains."""

import copy
import pickle
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.covering import tries
from tests.random_graphs import computes, random_inputs
from tilewright.expr import Axis, Compute, Const, Expr, Tensor, apply, const, select
from tilewright.expr import affine as affine_module
from tilewright.expr.affine import affine, bounds, rejoined, simplify
from tilewright.expr.evaluate import evaluate_compute

AXES = (Axis("i", 5), Axis("j", 7), Axis("k", 1))


def all_values(expr: Expr) -> np.ndarray:
    return evaluate_compute(Compute(Tensor("o", (5, 7, 1), expr.dtype), AXES, expr), {})


small = st.integers(-12, 12)
linear = st.deferred(
    lambda: st.one_of(
        st.sampled_from(AXES),
        small.map(lambda value: Const(value, "i64")),
        st.tuples(linear, linear).map(lambda pair: pair[0] + pair[1]),
        st.tuples(linear, linear).map(lambda pair: pair[0] - pair[1]),
        st.tuples(linear, small).map(lambda pair: pair[0] * pair[1]),
        linear.map(lambda value: -value),
    )
)
divisor = st.sampled_from((1, 2, 3, 4, 5, 7, 12))
index = st.deferred(
    lambda: st.one_of(
        linear,
        st.tuples(index, divisor).map(lambda pair: pair[0] // pair[1]),
        st.tuples(index, divisor).map(lambda pair: pair[0] % pair[1]),
        st.tuples(index, index).map(lambda pair: pair[0] + pair[1]),
        st.tuples(index, small).map(lambda pair: pair[0] * pair[1]),
        st.tuples(st.sampled_from(("min", "max")), index, index).map(lambda call: apply(*call)),
        st.tuples(condition, index, index).map(lambda parts: select(*parts)),
    )
)
condition = st.deferred(
    lambda: st.one_of(
        st.tuples(st.sampled_from(("lt", "le", "gt", "ge", "eq", "ne")), index, index).map(lambda call: apply(*call)),
        st.tuples(condition, condition).map(lambda pair: pair[0] & pair[1]),
        st.tuples(condition, condition).map(lambda pair: pair[0] | pair[1]),
        condition.map(lambda value: ~value),
    )
)


@pytest.mark.parametrize(("more", "rest"), [(-3, 0), (-5, -2), (2, 5)])
def test_constants_around_a_quotient_become_one(more: int, rest: int) -> None:
    quotient = (AXES[0] + AXES[1]) // 4
    assert simplify((quotient + 3) + more) == (quotient + rest if rest else quotient)
    assert simplify((quotient + 3) - -more) == (quotient + rest if rest else quotient)


@pytest.mark.parametrize("sign", [1, -1])
def test_constants_whose_sum_has_no_type_stay_two(sign: int) -> None:
    """Elements of tensors wrap around where an index has no such value."""
    element = Tensor("x", (1,), "i64")[const(0, "i64")]
    expr = (element + sign * (2**63 - 1)) + sign * 2
    assert simplify(expr) == expr


@settings(max_examples=tries(70, full=200), deadline=None)
@given(st.one_of(index, condition))
def test_simplify_keeps_every_value(expr: Expr) -> None:
    assert np.array_equal(all_values(simplify(expr)), all_values(expr))


@settings(max_examples=tries(70, full=200), deadline=None)
@given(index)
def test_simplify_twice_keeps_every_value(expr: Expr) -> None:
    once = simplify(expr)
    assert np.array_equal(all_values(simplify(once)), all_values(once))


@settings(max_examples=tries(70, full=200), deadline=None)
@given(index)
def test_bounds_contain_every_value(expr: Expr) -> None:
    low, high = bounds(expr)
    values = all_values(expr)
    assert low <= values.min()
    assert values.max() <= high


@settings(max_examples=tries(40, full=100), deadline=None)
@given(linear)
def test_affine_form_has_the_same_values_and_its_bounds_are_attained(expr: Expr) -> None:
    form = affine(expr)
    assert form is not None
    assert all(form.terms.values())
    values = all_values(expr)
    for point in product(range(5), range(7), range(1)):
        total = form.constant + sum(form.coefficient(axis) * at for axis, at in zip(AXES, point, strict=True))
        assert total == values[point]
    assert np.array_equal(all_values(form.expression()), values)
    assert bounds(expr) == (values.min(), values.max())


@pytest.mark.parametrize("expr", [AXES[0] * AXES[1], AXES[0] // 2, AXES[0] % 3, Tensor("t", (5,), "i64")[AXES[0]]])
def test_what_is_not_affine(expr: Expr) -> None:
    assert affine(expr) is None


i, j, _ = AXES


@pytest.mark.parametrize(("expr", "expected"), [
    ((i * 7 + j) // 7, i), ((i * 7 + j) % 7, j), ((i * 14 + j) // 7, i * 2), (i // 5, Const(0, "i64")), (i % 5, i),
    ((i * 7 + j + 14) // 7, i + 2), ((j // 2) // 2, j // 4), ((j % 6) % 3, j % 3), (i * 2 - i - i, Const(0, "i64")),
    ((i < 5) & (j > 3), j > 3), ((i >= 5) | (j > 3), j > 3), (apply("min", i, 4), i), (apply("max", j, -1), j),
    (select(i >= 0, j, i), j), (~(i < 5), Const(False, "bool")), (-i // 7, i * -1 // 7),
])  # fmt: skip
def test_what_ranges_decide(expr: Expr, expected: Expr) -> None:
    assert simplify(expr) == expected


@settings(max_examples=tries(25, full=60), deadline=None)
@given(computes(points=500), st.integers(0, 99))
def test_simplify_keeps_what_a_compute_computes(compute: Compute, seed: int) -> None:
    simple = Compute(compute.output, compute.axes, simplify(compute.body), compute.reduce, compute.accum)
    tensors = random_inputs(compute, seed)
    found, expected = evaluate_compute(simple, tensors), evaluate_compute(compute, tensors)
    if found.dtype.kind in "iub":
        assert np.array_equal(found, expected)
    else:
        # Only index arithmetic may change; a sum may be split into other blocks.
        eps = 2.0**-8 if found.dtype.name == "bfloat16" else float(np.finfo(found.dtype).eps)
        np.testing.assert_allclose(found.astype(np.float64), expected.astype(np.float64), rtol=4 * eps, atol=eps)


def test_simplify_leaves_value_arithmetic_alone() -> None:
    value = Tensor("x", (5,), "f32")[i // 5 + i]
    assert simplify(value * 1.0 + 0.0) == Tensor("x", (5,), "f32")[i] * 1.0 + 0.0


def test_simplify_does_not_fold_what_leaves_the_index_type() -> None:
    large = Const(1 << 62, "i64")
    expr = large * 4 + i
    assert np.array_equal(all_values(simplify(expr)), all_values(expr))


def test_a_long_sum_is_simplified_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    collected = affine_module._collected

    def counted(expr: Expr, factor: int, terms: dict[Axis, int]) -> int | None:
        steps.append(1)
        return collected(expr, factor, terms)

    monkeypatch.setattr(affine_module, "_collected", counted)

    def count(length: int) -> int:
        steps.clear()
        total: Expr = Axis("i", 5)
        for _ in range(length):
            total = apply("add", total * 1, 1)
        assert simplify(total) == Axis("i", 5) + length
        return len(steps)

    assert count(100) <= 10 * count(10)


def test_the_digits_of_a_value_are_put_together() -> None:
    i, j = Axis("i", 7), Axis("j", 6400)
    digits = i * 6400 + (j // 80) * 80 + j % 80
    assert rejoined(digits) == simplify(i * 6400 + j)
    three = (j // 1600) * 4800 + (j // 40 % 40) * 120 + (j % 40) * 3 + 5
    assert rejoined(three) == simplify(j * 3 + 5)
    assert rejoined((j % 1600 // 40) * 40 + j % 40) == simplify(j % 1600)
    other = (j // 80) * 81 + j % 80
    assert affine(rejoined(other)) is None


def test_a_copy_of_an_expression_has_its_affine_form() -> None:
    """What `affine` keeps with an expression is no part of it; nor is that it has not been asked yet."""
    i, j = Axis("i", 5), Axis("j", 7)
    expr = i * 7 + j
    for copied in (copy.deepcopy(expr), pickle.loads(pickle.dumps(expr))):
        form = affine(copied)
        assert form is not None
        assert (form.constant, dict(form.terms)) == (0, {i: 7, j: 1})
    assert affine(expr) is affine(expr)
    assert expr == copy.deepcopy(expr)
    assert hash(expr) == hash(i * 7 + j)
    assert repr(expr) == repr(i * 7 + j)
