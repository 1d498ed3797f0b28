"""Which reductions of a nest are a sum and the squared deviations from its mean."""

from __future__ import annotations

import pytest

from tilewright.expr.core import Axis, Const, Expr, Read, Tensor
from tilewright.operator.moments import Moments, moments_of
from tilewright.operator.nest import Nest, NestNode, statements_of

I, R = Axis("i", 8), Axis("r", 100)
X = Tensor("x", (800,), "f32")[I * 100 + R]
Y = Tensor("y", (800,), "f32")[I * 100 + R]


def own(name: str) -> Read:
    return Read(Tensor(name, (), "f32"), ())


def nest(mean: Expr, deviation: Expr, squared: Expr | None = None, accum: str = "sum") -> Nest:
    """Total of x, a mean, deviations from it, and the sum of their squares."""
    values = [
        NestNode(Tensor("total", (), "f32"), X, accum),
        NestNode(Tensor("mean", (), "f32"), mean),
        NestNode(Tensor("centred", (), "f32"), deviation),
        NestNode(Tensor("squares", (), "f32"), own("centred") * own("centred") if squared is None else squared, "sum"),
    ]
    return Nest((I,), (R,), tuple(values))


@pytest.mark.parametrize("mean", [own("total") / Const(100.0, "f32"), own("total") * Const(1 / 100.0, "f32")])
def test_squares_of_what_deviates_from_the_mean(mean: Expr) -> None:
    assert moments_of(statements_of(nest(mean, X - own("mean")))) == Moments("total", "squares")


MEAN = own("total") / Const(100.0, "f32")
OTHERS = {
    "of another length": nest(own("total") / Const(99.0, "f32"), X - own("mean")),
    "of another value": nest(MEAN, Y - own("mean")),
    "a sum instead": nest(MEAN, X + own("mean")),
    "not squared": nest(MEAN, X - own("mean"), own("centred") * X),
    "a maximum": nest(MEAN, X - own("mean"), accum="max"),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_other_reductions_take_their_own_passes(other: Nest) -> None:
    assert moments_of(statements_of(other)) is None
