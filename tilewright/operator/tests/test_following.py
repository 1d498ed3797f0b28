"""Which sums of a kernel can follow another reduction in its pass: squared deviations and sums of exponentials."""

from __future__ import annotations

import pytest

from tilewright.expr.core import Apply, Axis, Const, Expr, Read, Tensor
from tilewright.operator.rewrites.following import with_following
from tilewright.operator.statements import Statements, over
from tilewright.tiles.kernel import Statement

I, R = Axis("i", 8), Axis("r", 100)
X = Tensor("x", (800,), "f32")[I * 100 + R]
Y = Tensor("y", (800,), "f32")[I * 100 + R]


def own(name: str) -> Read:
    return Read(Tensor(name, (), "f32"), ())


def followed(given: Statements) -> dict[str, str]:
    """Sums that can follow another reduction, with the name of that."""
    return {each.name: each.follows.reduction for each in with_following(given) if each.follows is not None}


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
    assert followed(statements(mean, X - own("mean"))) == {"squares": "total"}


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
    assert followed(other) == {}


def exponentials(body: Expr, accum: str = "max", address: Expr | None = None, dtype: str = "f32") -> Statements:
    """The largest element of x, and a sum of what `body` is."""
    values = [
        Statement(Tensor("largest", (8,), dtype), (), X, accum=accum, address=address),
        Statement(Tensor("power", (), dtype), (), body),
        Statement(Tensor("total", (), dtype), (), own("power"), accum="sum"),
    ]
    return over((I,), (R,), values)


BELOW = Apply("exp", (X - own("largest"),), "f32")


def test_exponentials_of_what_lies_below_the_largest_value() -> None:
    assert followed(exponentials(BELOW)) == {"total": "largest"}


APART = {
    "of another value": exponentials(Apply("exp", (Y - own("largest"),), "f32")),
    "above the value": exponentials(Apply("exp", (own("largest") - X,), "f32")),
    "another function": exponentials(Apply("exp2", (X - own("largest"),), "f32")),
    "the smallest value": exponentials(BELOW, "min"),
    "a largest value that is stored": exponentials(BELOW, address=I),
    "of another type": exponentials(BELOW, dtype="f16"),
}


@pytest.mark.parametrize("other", APART.values(), ids=APART)
def test_other_sums_of_functions_take_their_own_passes(other: Statements) -> None:
    assert followed(other) == {}


def test_names_of_what_is_followed_change_with_it() -> None:
    found = with_following(exponentials(BELOW))[-1].renamed({"largest": "m", "total": "s"})
    assert found.name == "s"
    assert found.follows is not None
    assert found.follows.reduction == "m"
