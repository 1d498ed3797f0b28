"""Names of a package that are imported when they are first asked for: what a process does not use, it does not load."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from tilewright.collection import imports


def on_demand(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The functions `__getattr__` and `__dir__` of a package; `modules` maps its names to the modules that define them.

    >>> get, _ = on_demand("example", {"sqrt": "math"})
    >>> get("sqrt")(4.0)
    2.0
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with imports():
            value = getattr(import_module(modules[name]), name)
        if package in sys.modules:
            setattr(sys.modules[package], name, value)  # not asked again
        return value

    def names() -> list[str]:
        defined = vars(sys.modules[package]) if package in sys.modules else {}
        return sorted({*defined, *modules})

    return get, names
