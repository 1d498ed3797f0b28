"""Formulas: their values, what they refuse, and degrees."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.covering import tries
from tilewright.errors import InvalidIntrinsic
from tilewright.intrinsics.formula import formula

LEAVES = st.sampled_from(["lane", "e", "0", "1", "3", "17"])


def combined(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    binary = st.tuples(parts, st.sampled_from("+-*"), parts).map(lambda found: f"({found[0]} {found[1]} {found[2]})")
    divided = st.tuples(parts, st.sampled_from(["//", "%"]), st.sampled_from(["2", "3", "8"]))
    return (
        binary | divided.map(lambda found: f"({found[0]}) {found[1]} {found[2]}") | parts.map(lambda text: f"(-{text})")
    )


@settings(max_examples=tries(40, full=200), deadline=None)
@given(text=st.recursive(LEAVES, combined, max_leaves=8), lane=st.integers(0, 63), e=st.integers(0, 15))
def test_a_formula_is_python_arithmetic(text: str, lane: int, e: int) -> None:
    expected = eval(text, {"__builtins__": {}}, {"lane": lane, "e": e})
    found = formula(text)
    assert int(found({"lane": lane, "e": e})) == expected
    many = found({"lane": np.full((3, 1), lane), "e": np.full(2, e)})
    assert (np.broadcast_to(many, (3, 2)) == expected).all()


@pytest.mark.parametrize(
    "text",
    ["", "e **2", "e / 2", "f(e)", "e.real", "[e]", "e // 0", "e % -1", "e // lane", "1.5", "True", "'e'", "e = 1",
     "e; e", "e if 1 else 2", "lambda: e", "99999999999", "\u2603", "e" * 500, "(" * 80 + "e", "\x00"],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidIntrinsic):
        formula(text)


@settings(max_examples=tries(60, full=300), deadline=None)
@given(text=st.text(st.sampled_from("lane 0123456789+-*/%()e[].,:'\"\\\n"), max_size=30))
def test_garbage_is_a_formula_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidIntrinsic):
        formula(text)


@pytest.mark.parametrize(
    ("text", "affine"),
    [("addr + i * stride + r", True), ("2 * (i - r) * stride", True), ("i * r", False), ("i // 2", False),
     ("i * i", False), ("stride // 2 + i", True), ("-i + 3", True)],
)  # fmt: skip
def test_affine_forms(text: str, affine: bool) -> None:
    assert formula(text).is_affine(frozenset(("i", "r"))) is affine
