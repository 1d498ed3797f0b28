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


def own(name: str, dtype: str = "f32") -> Read:
    return Read(Tensor(name, (), dtype), ())


def functions(weight: Expr, largest: Expr = X, accum: str = "max") -> tuple[set[str], set[str]]:
    """The exponentials in the weights of a softmax, and in how its sum follows the largest value."""
    values = [
        Statement(Tensor("largest", (), largest.dtype), (), largest, accum=accum),
        Statement(Tensor("weight", (), weight.dtype), (), weight),
        Statement(Tensor("total", (), weight.dtype), (), own("weight", weight.dtype), accum="sum"),
    ]
    _, weights, total = nonpositive_exponentials(with_following(over((I,), (R,), values)))
    rule = total.follows
    followed = [] if rule is None or rule.factor is None else [rule.term, rule.factor]
    return exponentials(weights.body), {name for expr in followed for name in exponentials(expr)}


def exponentials(expr: Expr) -> set[str]:
    return {node.function for node in walk(expr) if isinstance(node, Apply) and node.function.startswith("exp")}


def exp(value: Expr) -> Expr:
    return Apply("exp", (value,), value.dtype)


def test_of_what_the_largest_value_is_subtracted_from() -> None:
    assert functions(exp(X - own("largest"))) == ({"exp_nonpositive"}, {"exp_nonpositive"})


OTHERS = {
    "of another value": (exp(Y - own("largest")), X, "max"),
    "the smallest": (exp(X - own("largest")), X, "min"),
    "the other way round": (exp(own("largest") - X), X, "max"),
    "a sum": (exp(X + own("largest")), X, "max"),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_other_exponentials_stay(other: tuple[Expr, Expr, str]) -> None:
    assert functions(*other)[0] == {"exp"}


def test_f64_stays() -> None:
    x = Tensor("x", (800,), "f64")[I * 100 + R]
    assert functions(exp(x - own("largest", "f64")), x) == ({"exp"}, {"exp"})
