"""`pytest --full`, and the marker `covering` on tests whose parameters need not all meet each other."""

from __future__ import annotations

import os
from collections.abc import Hashable

import pytest
from hypothesis import settings

from tests import covering


def pytest_addoption(parser: pytest.Parser) -> None:
    help_ = "run every case of tests that else try a part: all combinations of parameters, more and new random examples"
    parser.addoption("--full", action="store_true", default=False, help=help_)


def pytest_configure(config: pytest.Config) -> None:
    line = "covering(strength=2): of the cases of a test so many that any two values of its parameters meet"
    config.addinivalue_line("markers", line)
    if config.getoption("--full"):
        os.environ["TILEWRIGHT_FULL"] = "1"
        covering.FULL = True
    examples = covering.tries(25, full=100)
    settings.register_profile("tilewright", max_examples=examples, derandomize=not covering.FULL)
    settings.load_profile("tilewright")


@pytest.hookimpl(trylast=True)  # of the tests that -k and -m leave
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Drop the cases of marked tests whose combinations of values are met by others."""
    if covering.FULL or config.getoption("--full"):
        return
    groups: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and item.get_closest_marker("covering"):
            groups.setdefault(item.nodeid.partition("[")[0], []).append(item)
    dropped: set[pytest.Item] = set()
    for cases in groups.values():
        kept = covering.chosen([_values(case) for case in cases], _strength(cases[0]))
        dropped |= set(cases) - {cases[number] for number in kept}
    if dropped:
        config.hook.pytest_deselected(items=[item for item in items if item in dropped])
        items[:] = [item for item in items if item not in dropped]


def _strength(item: pytest.Item) -> int:
    marker = item.get_closest_marker("covering")
    assert marker is not None
    return int(marker.args[0] if marker.args else marker.kwargs.get("strength", 2))


def _values(case: pytest.Function) -> list[Hashable]:
    """One for each `parametrize` of the test: several names of one of them are one parameter."""
    given, values = case.callspec.params, []
    for mark in case.iter_markers("parametrize"):
        names = mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0]
        values.append(tuple(_told_apart(given[name.strip()]) for name in names))
    return values


def _told_apart(value: object) -> Hashable:
    """Equal for one value of a parameter; cases share what cannot be compared."""
    try:
        hash(value)
    except TypeError:
        return id(value)
    return type(value), value
