"""Fragments in the interpreter: which element of a matrix each lane holds, and products, by the records of level 3."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.errors import CompileError, InvalidProgram
from tilewright.kernel.elements import Array
from tilewright.kernel.records import lanes_of

if TYPE_CHECKING:
    from tilewright.intrinsics.intrinsic import Fragment, Intrinsic

_OPERANDS = ("a", "b", "c")


@cache
def matrix_places(record: Intrinsic, operand: str, elements: int, lanes: int) -> tuple[Array, Array]:
    """Row and column of each element of a fragment, as (lanes, elements).

    A fragment whose layout the record does not tell has one all the same, so that programs run; they cannot know it.
    Raises InvalidProgram where the record does not fit.
    """
    from tilewright.intrinsics.fragments import places

    _check_lanes(record, lanes)
    found = places(_fragment(record, operand, elements, lanes))
    if len(found) != 2:
        raise InvalidProgram(f"{operand} of {record.name} has {len(found)} dimensions; matrices have 2")
    return found[0], found[1]


def check_element(record: Intrinsic, operand: str, dtype: np.dtype[Any], lanes: int) -> None:
    """InvalidProgram where an operand of the record is not made of such elements."""
    _check_lanes(record, lanes)
    role = record.operands[_OPERANDS.index(operand)]
    _stored(record, operand, role.dtype, dtype)


@cache
def granularity(record: Intrinsic, operand: str, lanes: int) -> tuple[int, int]:
    """Bytes to which a matrix in memory is aligned, and elements of which its stride is a multiple, both 1 if free.

    Only instructions that move whole fragments, whose layout is unspecified, are bound to that.
    """
    _check_lanes(record, lanes)
    one = record.operands[_OPERANDS.index(operand)]
    moves = [each for each in record.memory if each.operand == one.role and each.source != "constant"]
    if one.layout != "opaque" or not moves:
        return 1, 1
    return max(move.alignment_bytes for move in moves), max(move.stride_multiple for move in moves)


def multiply(record: Intrinsic, a: Array, b: Array, c: Array) -> Array:
    """``a * b + c`` on registers (warps, lanes, elements); InvalidProgram where the record does not fit."""
    from tilewright.intrinsics.execute import execute
    from tilewright.intrinsics.fragments import from_registers, to_registers

    lanes = a.shape[1]
    _check_lanes(record, lanes)
    if len(record.sources) != 2:
        raise InvalidProgram(f"{record.name} has {len(record.sources)} sources; products have 2")
    tiles, fragment = [], None
    for letter, operand, registers in zip(_OPERANDS, record.operands, (a, b, c), strict=True):
        fragment = _fragment(record, letter, registers.shape[2], lanes)
        held = np.ascontiguousarray(registers).view(_stored(record, letter, operand.dtype, registers.dtype))
        try:
            tiles.append(from_registers(fragment, held, record.shape(operand)))
        except CompileError as error:
            raise InvalidProgram(f"{letter} of {record.name}: {error.message}") from None
    assert fragment is not None
    return to_registers(fragment, execute(record, tiles[2], tiles[0], tiles[1])).view(c.dtype)


def multiply_tiles(record: Intrinsic, a: Array, b: Array, c: Array) -> Array:
    """``a * b + c`` of four warps: c on registers (groups, lanes, elements), b (N, K) from memory, a (M, K)
    from there or, with three axes, on registers too. InvalidProgram where the record does not fit.
    """
    from tilewright.intrinsics.execute import execute
    from tilewright.intrinsics.fragments import from_registers, to_registers

    lanes = c.shape[1]
    _check_lanes(record, lanes)
    tiles, fragment = [], None
    for letter, operand, given in zip(_OPERANDS, record.operands, (a, b.T, c), strict=True):
        held = np.ascontiguousarray(given).view(_stored(record, letter, operand.dtype, given.dtype))
        if given.ndim == 3:
            fragment = _fragment(record, letter, given.shape[2], lanes)
            held = from_registers(fragment, held, record.shape(operand))
        tiles.append(held)
    assert fragment is not None
    return to_registers(fragment, execute(record, tiles[2], tiles[0], tiles[1])).view(c.dtype)


def _check_lanes(record: Intrinsic, lanes: int) -> None:
    if lanes_of(record) != lanes:
        raise InvalidProgram(f"{record.name} is issued by {lanes_of(record)} lanes; warps here have {lanes}")


@cache
def _fragment(record: Intrinsic, letter: str, elements: int, lanes: int) -> Fragment:
    """The fragment of an operand, of so many elements per lane."""
    from tilewright.intrinsics.intrinsic import Fragment

    operand = record.operands[_OPERANDS.index(letter)]
    shape = record.shape(operand)
    if isinstance(operand.layout, Fragment):
        fragment = operand.layout
    elif operand.layout == "opaque" and len(shape) == 2 and elements * lanes % prod(shape) == 0:
        each = prod(shape) // lanes
        number = f"(lane * {each} + e % {each})"
        indices = (f"{number} // {shape[1]}", f"{number} % {shape[1]}")
        fragment = Fragment(lanes, elements, indices, replicated=elements > each)
    else:
        raise InvalidProgram(f"{letter} of {record.name}, {list(shape)} {operand.layout}, as {elements} per lane")
    if (fragment.lanes, fragment.elements) != (lanes, elements):
        raise InvalidProgram(f"{letter} of {record.name} has {fragment.elements} elements per lane, not {elements}")
    return fragment


def _stored(record: Intrinsic, letter: str, wanted: str, given: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of the elements that the record computes with; those of the program have the same bits."""
    from tilewright.intrinsics.elements import bits, storage

    dtype = storage(wanted)
    as_integers = given.kind == "i" and bits(wanted) == 8 * given.itemsize
    if dtype != given and not (as_integers and (dtype.kind == "u" or given.itemsize == 1)):
        raise InvalidProgram(f"{letter} of {record.name} has elements of {wanted}, not {given}")
    return dtype
