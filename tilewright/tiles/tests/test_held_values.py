"""Numbers of values in memory, and which elements points read."""

from __future__ import annotations

import numpy as np

from tilewright.expr.core import Axis, Const, Read, Tensor
from tilewright.tiles.held_values import HeldValues, read_by_points
from tilewright.tiles.kernel import Kernel, Statement
from tilewright.tiles.notation import parse_tree

PLACES = np.array([2, 5])


def test_an_element_that_is_written_again_holds_another_value() -> None:
    held = HeldValues()
    first, _ = held.touched("view", 0, PLACES, True, False, False)
    read, ready = held.touched("view", 0, PLACES, False, False, False)
    again, _ = held.touched("view", 0, PLACES, True, False, False)
    assert (first == read).all()
    assert not ready.any()
    assert not (first == again).any()


def test_a_statement_that_reads_its_sum_goes_on_with_it() -> None:
    held = HeldValues()
    begun, _ = held.touched("sums", 0, PLACES, True, False, True)
    read, ready = held.touched("sums", 0, PLACES, False, True, False)
    added, _ = held.touched("sums", 0, PLACES, True, True, False)
    _, later = held.touched("sums", 0, PLACES, False, True, False)
    assert (begun == read).all()
    assert (read == added).all()
    assert ready.all()
    assert not later.any()


def test_what_is_copied_is_the_same_value_at_another_place() -> None:
    """Kept rows move to the beginning of their buffer, with what is known of them; the place is written again then."""
    held = HeldValues()
    border, _ = held.touched("rows", 0, PLACES[:1], True, False, True)
    value, _ = held.touched("rows", 0, PLACES[1:], True, False, False)
    held.copy("rows", 0, PLACES, False)
    held.copy("rows", 0, PLACES - 2, True)
    moved, ready = held.touched("rows", 0, PLACES - 2, False, False, False)
    assert moved.tolist() == [*border, *value]
    assert ready.tolist() == [True, False]
    again, _ = held.touched("rows", 0, PLACES, True, False, False)
    assert not set(again.tolist()) & set(moved.tolist())


def test_a_value_that_is_computed_again_has_the_number_that_it_had() -> None:
    held = HeldValues()
    first, _ = held.touched("rows", 0, PLACES, True, True, False, np.array([-1, -2]))
    again, _ = held.touched("rows", 0, PLACES, True, True, False, np.array([-2, -3]))
    read, _ = held.touched("rows", 0, PLACES, False, False, False)
    assert [*first, *again] == [-1, -2, -2, -3]
    assert (read == again).all()


def test_values_of_views_differ() -> None:
    held = HeldValues()
    one, _ = held.touched("one", None, PLACES, True, False, False)
    two, _ = held.touched("two", 0, PLACES, True, False, False)
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
