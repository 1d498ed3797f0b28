"""What shared code generation asks of a target: how it does element arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Arithmetic:
    """The parts of a target that element operations depend on; a target says what it has."""

    @property
    def fma(self) -> bool:
        """Whether multiply-adds round once without a call to a library."""
        return False

    @property
    def converts_halves(self) -> bool:
        """Whether f16 is converted to and from f32 in hardware."""
        return False

    @property
    def exponents(self) -> Callable[..., Any] | None:
        """``exponents(value, name, *others)`` for "scalef", "getexp" and "getmant", where instructions do that."""
        return None

    @property
    def power_of_two(self) -> Callable[..., Any] | None:
        """2 to the f32 value, within 2 ulp and 0 where that is denormal, where one instruction does that."""
        return None

    @property
    def reciprocal(self) -> Callable[..., Any] | None:
        """1 over an f32 value that is not denormal, within 1 ulp and 0 where that is, where one instruction does it."""
        return None
