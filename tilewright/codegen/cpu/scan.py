"""Prefix scans of vector registers: in each, every element is combined with those 1, 2, 4, … places before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from llvmlite import ir

from tilewright.codegen.values import I32, lanes_of, splat, vector_type

Combine = Callable[[ir.Value, ir.Value], ir.Value]


def scan(
    builder: ir.IRBuilder, registers: Sequence[ir.Value], combine: Combine, nothing: ir.Constant, reverse: bool
) -> tuple[list[ir.Value], ir.Value]:
    """The prefixes of the elements of a row of registers, and the last of them.

    `nothing` is the identity of `combine`. `reverse` scans from the last element to the first.
    """
    found: list[ir.Value] = []
    total: ir.Value | None = None
    for register in reversed(registers) if reverse else registers:
        lanes = lanes_of(register)
        prefix = _in_register(builder, register, combine, nothing, reverse)
        if total is not None:
            prefix = combine(splat(builder, total, lanes), prefix)
        found.append(prefix)
        total = builder.extract_element(prefix, I32(0 if reverse else lanes - 1)) if lanes > 1 else prefix
    assert total is not None, "a tile has elements"
    return (found[::-1] if reverse else found), total


def identity(kind: str, type_: ir.Type, unsigned: bool) -> ir.Constant:
    """The element of a type that leaves every other one as it is, the sign of zero included."""
    if not isinstance(type_, ir.IntType):
        return ir.Constant(type_, {"sum": -0.0, "prod": 1.0, "max": -inf, "min": inf}[kind])
    if kind in ("sum", "prod"):
        return ir.Constant(type_, int(kind == "prod"))
    least, most = (0, (1 << type_.width) - 1) if unsigned else (-(1 << type_.width - 1), (1 << type_.width - 1) - 1)
    return ir.Constant(type_, least if kind == "max" else most)


def _in_register(
    builder: ir.IRBuilder, register: ir.Value, combine: Combine, nothing: ir.Constant, reverse: bool
) -> ir.Value:  # fmt: skip
    """The prefixes of one register. Elements that have none so far before them are combined with the identity.

    Choosing them afterwards would take more instructions, and LLVM would give their undefined partners any register,
    such as the one with the total so far: then all would wait for it.
    """
    lanes = lanes_of(register)
    nothings = ir.Constant(vector_type(nothing.type, lanes), [nothing] * lanes)
    distance = 1
    while distance < lanes:
        before = [lane + distance if reverse else lane - distance for lane in range(lanes)]
        places = [place if 0 <= place < lanes else lanes + lane for lane, place in enumerate(before)]
        order = ir.Constant(vector_type(I32, lanes), [*map(I32, places)])
        register = combine(builder.shuffle_vector(register, nothings, order), register)
        distance *= 2
    return register
