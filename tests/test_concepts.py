"""What has become one stays one."""

from __future__ import annotations

import pytest

from tests.concepts import NAMES, defined, machine_checks


@pytest.mark.parametrize(
    ("title", "most"), [("classes of schedules", 0), ("recognisers of products", 1), ("work types", 1)]
)
def test_there_are_not_more(title: str, most: int) -> None:
    assert len(defined(NAMES[title])) <= most


def test_what_is_there_is_found() -> None:
    assert defined(("Statement", "no_such_name")) == ["Statement"]
    assert len(machine_checks()) == 1
