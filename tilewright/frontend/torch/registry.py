"""The table of operator importers: one function per operator, by its name in ATen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

#: Takes the call and the arguments of the ATen operator under their names there; returns its results.
Importer = Callable[..., Any]

IMPORTERS: dict[str, Importer] = {}


_F = TypeVar("_F", bound=Importer)


def aten(*names: str) -> Callable[[_F], _F]:
    """Register an importer for overloads such as "aten.add.Tensor"."""

    def register(function: _F) -> _F:
        for name in names:
            assert name not in IMPORTERS, f"two importers for {name}"
            IMPORTERS[name] = function
        return function

    return register


def load_all() -> dict[str, Importer]:
    """The table, with every family registered."""
    import tilewright.frontend.torch.operators  # noqa: F401  (registers)

    return IMPORTERS


COMPLEX: dict[str, Importer] = {}
"""Importers for calls that take or give complex numbers."""


def aten_complex(*names: str) -> Callable[[_F], _F]:
    """Register an importer of overloads for complex numbers; the one for real numbers stays."""

    def register(function: _F) -> _F:
        for name in names:
            assert name not in COMPLEX, f"two importers for {name} of complex numbers"
            COMPLEX[name] = function
        return function

    return register
