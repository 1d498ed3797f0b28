"""Which largest values of a kernel may pass over NaN: those of a softmax whose sum has them in every result."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.expr.core import Apply, Axis, Expr, Read, Tensor, apply, select
from tilewright.operator.rewrites.maxima_without_nan import maxima_without_nan
from tilewright.operator.statements import over
from tilewright.tiles.kernel import Statement

I, R = Axis("i", 8), Axis("r", 100)
X = Tensor("x", (800,), "f32")[I * 100 + R]
Y = Tensor("y", (800,), "f32")[I * 100 + R]


def value(name: str, dtype: str = "f32") -> Read:
    return Read(Tensor(name, (), dtype), ())


LARGEST, WEIGHT, TOTAL = value("largest"), value("weight"), value("total")
LOWER = apply("exp", X - LARGEST)


def ignores_nan(
    result: Expr, weight: Expr = LOWER, largest: Expr = X, accum: str = "max", stored: str = "", summed: str = "sum"
) -> bool:  # fmt: skip
    """Of the largest value of a softmax whose `result` is stored, and maybe another value."""
    values = [
        Statement(Tensor("largest", (), "f32"), (), largest, accum=accum),
        Statement(Tensor("weight", (), "f32"), (), weight),
        Statement(Tensor("total", (), "f32"), (), WEIGHT, accum=summed),
        Statement(Tensor("result", (), result.dtype), (), result),
    ]
    statements = over((I,), (R,), values)
    kept = {"result": I * 100 + R, stored: I * 100 + R if stored == "weight" else I}
    found = maxima_without_nan(tuple(replace(each, address=kept.get(each.name)) for each in statements))
    assert not any(each.ignores_nan for each in found[1:])
    return found[0].ignores_nan


RESULTS = {
    "weights by their sum": WEIGHT / TOTAL,
    "with the reciprocal": WEIGHT * (apply("exp", Y) / TOTAL),
    "logarithms": X - LARGEST - apply("log", TOTAL),
    "their logarithm": LARGEST + apply("log", TOTAL),
    "in halves": (WEIGHT / TOTAL).cast("f16"),
    "the largest of two": apply("max", WEIGHT / TOTAL, Y),
}


@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS)
def test_where_the_sum_is_in_the_result(result: Expr) -> None:
    assert ignores_nan(result)


OTHERS = {
    "weights alone": WEIGHT,
    "the largest value alone": X - LARGEST,
    "a sum that is asked about": select(apply("isnan", TOTAL), 0.0, WEIGHT / TOTAL),
    "a power, of which the zeroth is 1": apply("pow", WEIGHT / TOTAL, Y),
    "whole numbers": (WEIGHT / TOTAL).cast("i32"),
}


@pytest.mark.parametrize("result", OTHERS.values(), ids=OTHERS)
def test_where_the_result_may_be_a_number(result: Expr) -> None:
    assert not ignores_nan(result)


def test_not_where_the_value_itself_or_the_weights_are_results() -> None:
    assert not ignores_nan(WEIGHT / TOTAL, stored="largest")
    assert not ignores_nan(WEIGHT / TOTAL, stored="weight")
    assert ignores_nan(WEIGHT / TOTAL, stored="total")


def test_only_the_sum_of_exponentials_of_the_same_elements() -> None:
    assert not ignores_nan(WEIGHT / TOTAL, weight=apply("exp", Y - LARGEST))
    assert not ignores_nan(WEIGHT / TOTAL, largest=Y)
    assert not ignores_nan(WEIGHT / TOTAL, weight=Apply("exp2", (X - LARGEST,), "f32"))
    assert not ignores_nan(WEIGHT / TOTAL, weight=apply("exp", X + LARGEST))
    assert not ignores_nan(WEIGHT / TOTAL, accum="min")
    assert not ignores_nan(WEIGHT / TOTAL, summed="max")


def test_not_of_fewer_elements_in_the_sum() -> None:
    """A sum over a half of the elements has not every NaN."""
    largest = Statement(Tensor("largest", (), "f32"), (I,), X, (R,), "max")
    half = Axis("h", 50)
    part = Tensor("x", (800,), "f32")[I * 100 + half]
    total = Statement(Tensor("total", (), "f32"), (I,), apply("exp", part - LARGEST), (half,), "sum")
    result = Statement(Tensor("result", (), "f32"), (I,), TOTAL, address=I * 1)
    assert not maxima_without_nan((largest, total, result))[0].ignores_nan


def test_not_where_values_are_read_at_other_points() -> None:
    statements = [
        Statement(Tensor("largest", (8,), "f32"), (I,), X, (R,), "max"),
        Statement(Tensor("total", (), "f32"), (I,), LOWER, (R,), "sum"),
        Statement(Tensor("result", (), "f32"), (I,), TOTAL + Read(Tensor("largest", (8,), "f32"), (7 - I,)), address=I),
    ]
    assert not maxima_without_nan(tuple(statements))[0].ignores_nan
