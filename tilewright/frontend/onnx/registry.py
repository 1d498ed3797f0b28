"""The table of operator importers: one function per operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tilewright.expr.core import Tensor

if TYPE_CHECKING:
    from tilewright.frontend.onnx.node import Node

#: What a name stands for: a tensor, a sequence of tensors, or an absent optional.
Value = Tensor | list[Tensor] | None


class Definition:
    """What an importer returns to have the operator's ONNX definition imported instead."""


DEFINITION = Definition()

#: What an importer returns: the output, or one value per output, or `DEFINITION`.
Result = Value | tuple[Value, ...] | Definition
Importer = Callable[["Node"], Result]

IMPORTERS: dict[tuple[str, str], Importer] = {}


def op(*names: str, domain: str = "") -> Callable[[Importer], Importer]:
    """Register an importer for operators of `domain`."""

    def register(function: Importer) -> Importer:
        for name in names:
            assert (domain, name) not in IMPORTERS, f"two importers for {name}"
            IMPORTERS[domain, name] = function
        return function

    return register


def outputs_of(result: Value | tuple[Value, ...]) -> Sequence[Value]:
    return result if isinstance(result, tuple) else (result,)


def load_all() -> dict[tuple[str, str], Importer]:
    """The table, with every family registered."""
    import tilewright.frontend.onnx.operators  # noqa: F401  (registers)

    return IMPORTERS
