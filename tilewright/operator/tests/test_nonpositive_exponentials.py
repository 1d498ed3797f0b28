"""Which exponentials of a kernel are those of numbers that are at most 0: differences from the largest value."""

from __future__ import annotations

import pytest

from tilewright.expr.core import Apply, Axis, Expr, Read, Tensor, walk
from tilewright.operator.rewrites.following import with_following
from tilewright.operator.rewrites.nonpositive_exponentials import nonpositive_exponentials
from tilewright.operator.statements import over
from tilewright.tiles.kernel import Statement

I, R = Axis("i", 8), Axis("r", 100)
X = Tensor("x", (800,), "f32")[I * 100 + R]
Y = Tensor("y", (800,), "f32")[I * 100 + R]


def value(name: str, dtype: str = "f32") -> Read:
    return Read(Tensor(name, (), dtype), ())


def functions(weight: Expr, largest: Expr = X, accum: str = "max", summed: str = "sum") -> tuple[set[str], set[str]]:
    """The exponentials in the weights of a softmax, and in how its sum follows the largest value."""
    values = [
        Statement(Tensor("largest", (), largest.dtype), (), largest, accum=accum),
        Statement(Tensor("weight", (), weight.dtype), (), weight),
        Statement(Tensor("total", (), weight.dtype), (), value("weight", weight.dtype), accum=summed),
    ]
    _, weights, total = nonpositive_exponentials(with_following(over((I,), (R,), values)))
    rule = total.follows
    followed = [] if rule is None or rule.factor is None else [rule.term, rule.factor]
    return exponentials(weights.body), {name for expr in followed for name in exponentials(expr)}


def exponentials(expr: Expr) -> set[str]:
    return {node.function for node in walk(expr) if isinstance(node, Apply) and node.function.startswith("exp")}


def exp(expr: Expr) -> Expr:
    return Apply("exp", (expr,), expr.dtype)


def test_of_what_the_largest_value_is_subtracted_from() -> None:
    assert functions(exp(X - value("largest"))) == ({"exp_nonpositive"}, {"exp_nonpositive"})


OTHERS = {
    "of another value": (exp(Y - value("largest")), X, "max"),
    "the smallest": (exp(X - value("largest")), X, "min"),
    "the other way round": (exp(value("largest") - X), X, "max"),
    "a sum": (exp(X + value("largest")), X, "max"),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_other_exponentials_stay(other: tuple[Expr, Expr, str]) -> None:
    assert functions(*other) == ({"exp"}, set())


def test_what_no_sum_reads_stays() -> None:
    """It is stored, where a denormal number is not 0."""
    assert functions(exp(X - value("largest")), summed="max") == ({"exp"}, set())


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_of_halves_that_are_converted(dtype: str) -> None:
    x = Tensor("x", (800,), dtype)[I * 100 + R]
    weight = exp(x.cast("f32") - value("largest", dtype).cast("f32"))
    assert functions(weight, x) == ({"exp_nonpositive"}, {"exp_nonpositive"})


def test_a_difference_that_is_a_value_of_its_own() -> None:
    """As in the logarithm of a softmax."""
    values = [
        Statement(Tensor("largest", (), "f32"), (), X, accum="max"),
        Statement(Tensor("difference", (), "f32"), (), X - value("largest")),
        Statement(Tensor("total", (), "f32"), (), exp(value("difference")), accum="sum"),
    ]
    *_, total = nonpositive_exponentials(with_following(over((I,), (R,), values)))
    assert exponentials(total.body) == {"exp_nonpositive"}


def test_the_largest_value_of_the_same_elements_counts() -> None:
    values = [
        Statement(Tensor("largest", (), "f32"), (), X, accum="max"),
        Statement(Tensor("other", (), "f32"), (), Y, accum="max"),
        Statement(Tensor("total", (), "f32"), (), exp(X - value("other")), accum="sum"),
    ]
    *_, total = nonpositive_exponentials(with_following(over((I,), (R,), values)))
    assert exponentials(total.body) == {"exp"}


def test_f64_stays() -> None:
    x = Tensor("x", (800,), "f64")[I * 100 + R]
    assert functions(exp(x - value("largest", "f64")), x) == ({"exp"}, {"exp"})
