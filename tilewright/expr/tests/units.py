"""Units in the last place: how far results are apart, or from the truth."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_MANTISSAS = {"bfloat16": 7, "float16": 10, "float32": 23, "float64": 52}
_SMALLEST = {"bfloat16": -126, "float16": -14, "float32": -126, "float64": -1022}  # exponents of normal numbers


def units_between(found: Array, expected: Array) -> Array:
    """The distance of `found` from `expected` in units in the last place of the type of `found`, element by element.

    `expected` may be wider. A unit is that of the expected number, and no smaller than the spacing of denormal numbers.
    Numbers that only one of both has (NaN, an infinity) are infinitely far; bool and integers are 0 or infinitely far.
    """
    if found.dtype.kind in "iub":
        return np.where(found == expected, 0.0, np.inf)
    name = found.dtype.name
    one, other = found.astype(np.float64), expected.astype(np.float64)
    with np.errstate(all="ignore"):
        other = np.where(np.isinf(other.astype(found.dtype).astype(np.float64)), np.sign(other) * np.inf, other)
        exponent = np.maximum(np.frexp(np.where(np.isfinite(other), other, 1.0))[1] - 1, _SMALLEST[name])
        distance = np.abs(one - other) / np.ldexp(1.0, exponent - _MANTISSAS[name])
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    return np.where(same, 0.0, np.where(np.isfinite(one) & np.isfinite(other), distance, np.inf))
