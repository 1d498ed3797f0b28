"""Which reductions of a kernel are a sum and the squared deviations from its mean."""

from __future__ import annotations

import pytest

from tilewright.expr.core import Axis, Const, Expr, Read, Tensor
from tilewright.operator.moments import Moments, moments_of
from tilewright.operator.statements import Statements, over
from tilewright.tiles.kernel import Statement

I, R = Axis("i", 8), Axis("r", 100)
X = Tensor("x", (800,), "f32")[I * 100 + R]
Y = Tensor("y", (800,), "f32")[I * 100 + R]


def own(name: str) -> Read:
    return Read(Tensor(name, (), "f32"), ())


def statements(mean: Expr, deviation: Expr, squared: Expr | None = None, accum: str = "sum") -> Statements:
    """Total of x, a mean, deviations from it, and the sum of their squares."""
    values = [
        Statement(Tensor("total", (), "f32"), (), X, accum=accum),
        Statement(Tensor("mean", (), "f32"), (), mean),
        Statement(Tensor("centred", (), "f32"), (), deviation),
        Statement(
            Tensor("squares", (), "f32"),
            (),
            own("centred") * own("centred") if squared is None else squared,
            accum="sum",
        ),
    ]
    return over((I,), (R,), values)


@pytest.mark.parametrize("mean", [own("total") / Const(100.0, "f32"), own("total") * Const(1 / 100.0, "f32")])
def test_squares_of_what_deviates_from_the_mean(mean: Expr) -> None:
    assert moments_of(statements(mean, X - own("mean"))) == Moments("total", "squares")


MEAN = own("total") / Const(100.0, "f32")
OTHERS = {
    "of another length": statements(own("total") / Const(99.0, "f32"), X - own("mean")),
    "of another value": statements(MEAN, Y - own("mean")),
    "a sum instead": statements(MEAN, X + own("mean")),
    "not squared": statements(MEAN, X - own("mean"), own("centred") * X),
    "a maximum": statements(MEAN, X - own("mean"), accum="max"),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_other_reductions_take_their_own_passes(other: Statements) -> None:
    assert moments_of(other) is None
