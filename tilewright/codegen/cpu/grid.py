"""Coordinates of the programs that one call of a kernel runs, in the grid of the kernel.

LLVM takes addresses apart into parts that loops change and a constant; it keeps one register for the addresses that
differ in the constant only. It does not find the constant behind a quotient or a remainder. So the coordinates of the
first program are divided out of its number, and others follow from those of the program before.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from tilewright.codegen.values import I64


def coordinates_of(builder: ir.IRBuilder, extents: Sequence[int], number: ir.Value) -> list[ir.Value]:
    """The coordinates of a program by its number in the grid, of which the last axis is the fastest."""
    inner = []
    for extent in reversed(extents[1:]):
        inner.append(builder.urem(number, I64(extent)))
        number = builder.udiv(number, I64(extent))
    return [number, *reversed(inner)] if extents else []


def following(builder: ir.IRBuilder, extents: Sequence[int], coordinates: Sequence[ir.Value]) -> list[ir.Value]:
    """The coordinates of the program with the next number."""
    carry: ir.Value = I64(1)
    inner = []
    for extent, coordinate in zip(reversed(extents[1:]), reversed(coordinates[1:]), strict=True):
        moved = builder.add(coordinate, carry)
        wraps = builder.icmp_unsigned("==", moved, I64(extent))
        inner.append(builder.select(wraps, I64(0), moved))
        carry = builder.zext(wraps, I64)
    return [builder.add(coordinates[0], carry), *reversed(inner)] if extents else []
