"""Arithmetic on two halves or four bytes of a register at a time, with sums over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.emulator.decode import Decoder
from tilewright.emulator.isa.table import Built, elementwise, instruction
from tilewright.emulator.scalars import Array

_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "sub": np.subtract, "absdiff": lambda a, b: np.abs(a - b), "min": np.minimum, "max": np.maximum,
}  # fmt: skip


@instruction(*(f"v{name}{parts}" for name in _FUNCTIONS for parts in (2, 4)))
def parts_of_registers(decoder: Decoder) -> Built:
    """``d = (f(a0, b0), f(a1, b1), …)``; with `.add` their sum plus `c`, and without it `c` has no part in it."""
    function, parts = _FUNCTIONS[decoder.name[1:-1]], int(decoder.name[-1])
    saturates, sums = decoder.flag("sat"), decoder.flag("add")
    result, first, second = (kind == "s32" for kind in decoder.types(3))
    bits = 32 // parts
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if result else (0, (1 << bits) - 1)

    def found(a: Any, b: Any, c: Any) -> Array:
        a, b, c = (np.atleast_1d(np.asarray(each)).astype(np.int64) for each in (a, b, c))
        total: Any = c & 0xFFFF_FFFF if sums else 0
        for part in range(parts):
            value = function(_part(a, part, bits, first), _part(b, part, bits, second))
            value = np.clip(value, low, high) if saturates else value
            total = total + (value if sums else (value & ((1 << bits) - 1)) << part * bits)
        return np.asarray(total & 0xFFFF_FFFF).astype(np.uint32)

    return elementwise(decoder, "integer", found, "b32", ("b32", "b32", "b32"))


def _part(values: Array, part: int, bits: int, signed: bool) -> Array:
    found = values >> part * bits & ((1 << bits) - 1)
    return np.where(found >> bits - 1 != 0, found - (1 << bits), found) if signed else found
