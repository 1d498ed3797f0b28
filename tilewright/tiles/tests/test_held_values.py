"""Numbers of values in memory, and which elements points read."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from tilewright.expr.core import Axis, Const, Read, Tensor
from tilewright.tiles.held_values import HeldValues, read_by_points
from tilewright.tiles.kernel import Kernel, Statement
from tilewright.tiles.notation import parse_tree

Array = np.ndarray[Any, Any]

PLACES = np.array([2, 5])


def touched(
    held: HeldValues, view: str, program: int | None, places: Array, writes: bool, own: bool, begins: bool,
    known: Array | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """One access, all of whose elements are alike."""
    flags = (np.full(len(places), flag) for flag in (writes, own, begins))
    return held.touched(view, program, places, *flags, np.zeros(len(places), np.int64) if known is None else known)


def test_an_element_that_is_written_again_holds_another_value() -> None:
    held = HeldValues()
    first, _ = touched(held, "view", 0, PLACES, True, False, False)
    read, ready = touched(held, "view", 0, PLACES, False, False, False)
    again, _ = touched(held, "view", 0, PLACES, True, False, False)
    assert (first == read).all()
    assert not ready.any()
    assert not (first == again).any()


def test_a_statement_that_reads_its_sum_goes_on_with_it() -> None:
    held = HeldValues()
    begun, _ = touched(held, "sums", 0, PLACES, True, False, True)
    read, ready = touched(held, "sums", 0, PLACES, False, True, False)
    added, _ = touched(held, "sums", 0, PLACES, True, True, False)
    _, later = touched(held, "sums", 0, PLACES, False, True, False)
    assert (begun == read).all()
    assert (read == added).all()
    assert ready.all()
    assert not later.any()


def test_what_is_copied_is_the_same_value_at_another_place() -> None:
    """Kept rows move to the beginning of their buffer, with what is known of them; the place is written again then."""
    held = HeldValues()
    border, _ = touched(held, "rows", 0, PLACES[:1], True, False, True)
    value, _ = touched(held, "rows", 0, PLACES[1:], True, False, False)
    held.copy("rows", 0, PLACES, False)
    held.copy("rows", 0, PLACES - 2, True)
    moved, ready = touched(held, "rows", 0, PLACES - 2, False, False, False)
    assert moved.tolist() == [*border, *value]
    assert ready.tolist() == [True, False]
    again, _ = touched(held, "rows", 0, PLACES, True, False, False)
    assert not set(again.tolist()) & set(moved.tolist())


def test_a_value_that_is_computed_again_has_the_number_that_it_had() -> None:
    held = HeldValues()
    first, _ = touched(held, "rows", 0, PLACES, True, True, False, np.array([-1, -2]))
    again, _ = touched(held, "rows", 0, PLACES, True, True, False, np.array([-2, -3]))
    read, _ = touched(held, "rows", 0, PLACES, False, False, False)
    assert [*first, *again] == [-1, -2, -2, -3]
    assert (read == again).all()


@pytest.mark.parametrize("seed", range(20))
def test_many_accesses_at_once_are_the_same_ones_in_turn(seed: int) -> None:
    """Up to which number a value has, which says nothing."""
    roll = random.Random(seed)
    rows = []
    for _ in range(60):
        writes, own = roll.random() < 0.5, roll.random() < 0.6
        begins = writes and not own and roll.random() < 0.3
        known = -1 - roll.randrange(5) if writes and roll.random() < 0.3 else 0
        rows.append((roll.randrange(4), writes, own, begins, known))
    turn, together = HeldValues(), HeldValues()
    one = [touched(turn, "v", 0, np.array([p]), w, o, b, np.array([k])) for p, w, o, b, k in rows]
    cut = roll.randrange(1, 60)
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    parts = [together.touched("v", 0, *(column[part] for column in columns)) for part in np.split(np.arange(60), [cut])]
    assert np.concatenate([ready for _, ready in parts]).tolist() == [ready[0] for _, ready in one]
    numbers = np.concatenate([number for number, _ in parts]).tolist()
    alike: dict[int, int] = {}
    for (number, _), other in zip(one, numbers, strict=True):
        assert alike.setdefault(int(number[0]), other) == other
        assert number[0] >= 0 or number[0] == other
    assert len(set(alike.values())) == len(alike)


def test_values_of_views_differ() -> None:
    held = HeldValues()
    one, _ = touched(held, "one", None, PLACES, True, False, False)
    two, _ = touched(held, "two", 0, PLACES, True, False, False)
    assert not set(one.tolist()) & set(two.tolist())


def test_elements_that_points_read() -> None:
    """Panels of 4 columns of which the loops have 3; data that says which elements are read says nothing here."""
    i, j = Axis("i", 2), Axis("j", 3)
    panels, table, rows = Tensor("P", (8,), "f32"), Tensor("T", (5,), "f32"), Tensor("R", (2,), "i64")
    body = Read(panels, (i * 4 + j,)) + Read(table, (Read(rows, (i,)),))
    statement = Statement(Tensor("Y", (6,), "f32"), (i, j), body, address=Const(0, "i64") + i * 3 + j)
    kernel = Kernel((statement,), parse_tree("@L2 for i:2, j:3 { @REG for once:1 { op Y } }"))
    found = read_by_points(kernel, "P", 8)
    assert found is not None
    assert np.flatnonzero(found).tolist() == [0, 1, 2, 4, 5, 6]
    assert read_by_points(kernel, "T", 5) is None
    assert read_by_points(kernel, "Y", 6) is None
