"""Layouts: where the element of a logical index lives."""

from tilewright.layouts.packed import Packed, packed, permuted, row_major

__all__ = ["Packed", "packed", "permuted", "row_major"]
