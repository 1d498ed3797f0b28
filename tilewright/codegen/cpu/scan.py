"""Prefix scans of vector registers: in each, every element is combined with those 1, 2, 4, … places before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from tilewright.codegen.values import I1, I32, lanes_of, splat, vector_type

Combine = Callable[[ir.Value, ir.Value], ir.Value]


def scan(
    builder: ir.IRBuilder, registers: Sequence[ir.Value], combine: Combine, reverse: bool
) -> tuple[list[ir.Value], ir.Value]:
    """The prefixes of the elements of a row of registers, and the last of them.

    `reverse` scans from the last element to the first.
    """
    found: list[ir.Value] = []
    total: ir.Value | None = None
    for register in reversed(registers) if reverse else registers:
        lanes = lanes_of(register)
        prefix = _in_register(builder, register, combine, reverse)
        if total is not None:
            prefix = combine(splat(builder, total, lanes), prefix)
        found.append(prefix)
        total = builder.extract_element(prefix, I32(0 if reverse else lanes - 1)) if lanes > 1 else prefix
    assert total is not None, "a tile has elements"
    return (found[::-1] if reverse else found), total


def _in_register(builder: ir.IRBuilder, register: ir.Value, combine: Combine, reverse: bool) -> ir.Value:
    lanes = lanes_of(register)
    distance = 1
    while distance < lanes:
        before = [lane + distance if reverse else lane - distance for lane in range(lanes)]
        exists = [0 <= place < lanes for place in before]
        places = [place % lanes for place in before]
        shifted = builder.shuffle_vector(register, register, ir.Constant(vector_type(I32, lanes), [*map(I32, places)]))
        chosen = ir.Constant(vector_type(I1, lanes), [*map(I1, exists)])
        register = builder.select(chosen, combine(shifted, register), register)
        distance *= 2
    return register
