"""Elements that a mask hides, against masks written out: no element behind the last one is seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.covering import tries
from tilewright.expr.affine import Affine
from tilewright.expr.core import Axis, Expr
from tilewright.expr.evaluate import evaluate
from tilewright.expr.hidden import hidden_part, last_seen, without_mask
from tilewright.expr.text import parse_graph

Array = np.ndarray[Any, Any]
B, I, L = 3, 7, 11
SIDES = st.builds("{}*b + {}*i + {}".format, st.integers(-2, 2), st.integers(-3, 3), st.integers(-9, 14))
FACTORS = st.sampled_from(["1*l", "1*l", "1*l", "-1*l", "2*l", "0*l"])
COMPARED = st.builds("{} {} {}".format, FACTORS, st.sampled_from(["<=", "<", ">=", ">", "==", "!="]), SIDES)
CONDITIONS = st.one_of(COMPARED, st.builds("({}) {} ({})".format, COMPARED, st.sampled_from(["and", "or"]), COMPARED))


def masked(conditions: list[str], hidden: str = "-inf") -> tuple[Expr, tuple[Axis, ...], Array]:
    """Numbers behind masks, one in the other, the loops b, i and l, and which elements are seen."""
    body = "x[b, i, l]"
    for each in conditions:
        body = f"({each} ? {body} : {hidden})"
    graph = parse_graph(f"input x: f32[{B}, {I}, {L}]\ny: f32[b:{B}, i:{I}, l:{L}] = {body}\noutput y")
    (values,) = evaluate(graph, [np.ones((B, I, L), np.float32)])
    (node,) = graph.nodes
    return node.body, node.axes, np.isfinite(values)


def at(form: Affine, axes: tuple[Axis, ...]) -> Array:
    """The value of a form at every point of the loops."""
    grid = np.indices((B, I, L))
    moved = [form.coefficient(axis) * grid[n] for n, axis in enumerate(axes)]
    return np.asarray(form.constant + sum(moved))


@settings(max_examples=tries(100, full=1000), deadline=None)
@given(conditions=st.lists(CONDITIONS, max_size=3))
def test_nothing_is_seen_behind_the_last_one(conditions: list[str]) -> None:
    body, axes, seen = masked(conditions)
    last = last_seen(body, axes[2])
    points = np.indices((B, I, L))[2]
    if last is not None:
        assert not last.coefficient(axes[2])
        assert not seen[points > at(last, axes)].any()
        if without_mask(body, axes[2]) != body:
            inside, _, below = masked(conditions[:-1])
            assert without_mask(body, axes[2]) == inside
            np.testing.assert_array_equal(seen, below & (points <= at(last, axes)))
    else:
        assert without_mask(body, axes[2]) == body
        assert hidden_part(body, axes[2]) == 0


@pytest.mark.parametrize(
    ("condition", "constant", "step"),
    [
        ("l <= i + 3", 3, 1), ("l < i + 3", 2, 1), ("i + 3 >= l", 3, 1), ("i + 3 > l", 2, 1),
        ("l < 2*i", -1, 2), ("l - 5 <= -1*i", 5, -1), ("l <= 4", 4, 0), ("3*i > l + 1", -2, 3),
    ],
)  # fmt: skip
def test_the_last_one_is_exact(condition: str, constant: int, step: int) -> None:
    body, axes, seen = masked([condition])
    last = last_seen(body, axes[2])
    assert last is not None
    assert (last.constant, last.coefficient(axes[1])) == (constant, step)
    np.testing.assert_array_equal(seen, np.indices((B, I, L))[2] <= at(last, axes))
    assert hidden_part(body, axes[2]) == pytest.approx(1 - seen.mean())


@pytest.mark.parametrize("condition", ["l >= i", "2*l <= i", "l == i", "l % 4 <= i", "l <= i or l > 8"])
def test_what_has_no_last_one(condition: str) -> None:
    body, axes, _ = masked([condition])
    assert last_seen(body, axes[2]) is None


def test_a_number_does_not_hide() -> None:
    body, axes, _ = masked(["l <= i"], "-3.4e38")
    assert last_seen(body, axes[2]) is None
