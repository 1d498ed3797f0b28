"""What can be wrong with PTX text or a launch before anything runs."""

from __future__ import annotations

from typing import NamedTuple

from tilewright.errors import CompileError


class InvalidPtx(CompileError):
    """PTX text that does not parse, names something unknown, or uses an instruction that is not emulated."""

    code = "invalid-ptx"


class Place(NamedTuple):
    """Line and column of PTX text, from 1, and the source line that `.loc` names: (file number, line, column)."""

    line: int
    column: int
    source: tuple[int, int, int] | None = None

    def __str__(self) -> str:
        return f"{self.line}:{self.column}"


def refuse(place: Place, message: str, help: str = "") -> InvalidPtx:
    """An error at a place, to be raised."""
    return InvalidPtx(message, where=f"PTX:{place}", help=help)
