"""A round of each attack of `tests.attack`."""

from __future__ import annotations

import pytest

from tests.attack import ATTACKS, attacked


@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_is_lost(name: str) -> None:
    assert attacked(name, seed=0) == ""
