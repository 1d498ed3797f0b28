"""Random tile trees: the fast method counts what the walk counts."""

from __future__ import annotations

import pytest

from tests.covering import some, tries
from tests.fuzz_movement import difference, numbered_case


@pytest.mark.parametrize("first", some(range(0, 200, 25), 3))
def test_the_boundary_method_agrees_with_the_walk(first: int) -> None:
    for number in range(first, first + tries(8, full=25)):
        assert not difference(numbered_case(number)), f"tree {number}"
