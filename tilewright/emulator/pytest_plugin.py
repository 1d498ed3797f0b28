"""A fixture for tests of kernels: ``pytest_plugins = ["tilewright.emulator.pytest_plugin"]`` in `conftest.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tilewright.emulator.run import Result, run


@pytest.fixture
def emulate() -> Callable[..., Result]:
    """`tilewright.emulator.run`, which fails the test with everything that it finds wrong with the kernel."""

    def check(kernel: Any, *args: Any, **launch: Any) -> Result:
        result = run(kernel, *args, **launch)
        if result.diagnostics:
            count = len(result.diagnostics)
            lines = [f"{count} diagnostic{'s' * (count > 1)}", *map(str, result.diagnostics)]
            pytest.fail("\n".join(lines), pytrace=False)
        return result

    return check
