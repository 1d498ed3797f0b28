"""Integer arithmetic: wrapping, widening, high halves, carries, extrema, division, dot products of bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.emulator.decode import Decoder
from tilewright.emulator.isa.table import Built, elementwise, instruction
from tilewright.emulator.scalars import CONTAINERS, SIGNED, WIDTHS, Array

GROUP = "integer"


def wide_product(a: Any, b: Any, kind: str) -> Any:
    """The product of 8- to 32-bit numbers, exact in 64 bits."""
    wide = np.int64 if kind in SIGNED else np.uint64
    return np.asarray(a).astype(wide) * np.asarray(b).astype(wide)


def high_product(a: Any, b: Any, kind: str) -> Any:
    """The upper half of the product."""
    width = WIDTHS[kind]
    if width < 64:
        wide = wide_product(a, b, kind) >> (np.int64(width) if kind in SIGNED else np.uint64(width))
        return wide.astype(CONTAINERS[width])
    first, second = np.asarray(a).view(np.uint64), np.asarray(b).view(np.uint64)
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    a0, a1, b0, b1 = first & low, first >> shift, second & low, second >> shift
    middle = a1 * b0 + ((a0 * b0) >> shift)
    other = a0 * b1 + (middle & low)
    high = a1 * b1 + (middle >> shift) + (other >> shift)
    if kind in SIGNED:
        high = (
            high - np.where(np.asarray(a) < 0, second, np.uint64(0)) - np.where(np.asarray(b) < 0, first, np.uint64(0))
        )
    return high


def add(decoder: Decoder, kind: str) -> Built:
    if kind in ("u16x2", "s16x2"):
        return elementwise(decoder, GROUP, lambda a, b: _halves(np.add, a, b, kind), kind, (kind, kind))
    if decoder.flag("cc"):
        return _carrying(decoder, kind, lambda a, b, carry: _with_carry(a, b, np.zeros_like(carry)), keeps=True)
    if decoder.flag("sat"):
        return elementwise(decoder, GROUP, lambda a, b: _clamped(a.astype(np.int64) + b), kind, (kind, kind))
    return elementwise(decoder, GROUP, np.add, kind, (kind, kind))


def sub(decoder: Decoder, kind: str) -> Built:
    if kind in ("u16x2", "s16x2"):
        return elementwise(decoder, GROUP, lambda a, b: _halves(np.subtract, a, b, kind), kind, (kind, kind))
    if decoder.flag("cc"):
        return _carrying(decoder, kind, lambda a, b, carry: _with_borrow(a, b, np.zeros_like(carry)), keeps=True)
    if decoder.flag("sat"):
        return elementwise(decoder, GROUP, lambda a, b: _clamped(a.astype(np.int64) - b), kind, (kind, kind))
    return elementwise(decoder, GROUP, np.subtract, kind, (kind, kind))


def _clamped(wide: Any) -> Any:
    return np.clip(wide, -(1 << 31), (1 << 31) - 1).astype(np.int32)


def _halves(function: Any, a: Any, b: Any, kind: str) -> Any:
    dtype = np.int16 if kind[0] == "s" else np.uint16
    first, second = (np.atleast_1d(np.asarray(each)).view(dtype) for each in (a, b))
    return np.ascontiguousarray(function(first, second)).view(np.uint32)


def mul(decoder: Decoder, kind: str) -> Built:
    part = decoder.one_of("lo", "hi", "wide")
    if part == "wide":
        wide = f"{kind[0]}{2 * WIDTHS[kind]}"
        return elementwise(
            decoder, GROUP, lambda a, b: wide_product(a, b, kind).astype(_dtype(wide)), wide, (kind, kind)
        )
    if part == "hi":
        return elementwise(decoder, GROUP, lambda a, b: high_product(a, b, kind), kind, (kind, kind))
    return elementwise(decoder, GROUP, np.multiply, kind, (kind, kind))


def mad(decoder: Decoder, kind: str) -> Built:
    part = decoder.one_of("lo", "hi", "wide")
    if part == "wide":
        wide = f"{kind[0]}{2 * WIDTHS[kind]}"
        return elementwise(
            decoder, GROUP, lambda a, b, c: wide_product(a, b, kind).astype(_dtype(wide)) + c, wide, (kind, kind, wide)
        )  # fmt: skip
    if decoder.flag("cc"):
        return _multiply_carrying(decoder, kind, part, keeps=True, uses=False)
    saturated = decoder.flag("sat")
    if part == "hi":
        if saturated:
            return elementwise(
                decoder, GROUP,
                lambda a, b, c: _clamped(high_product(a, b, kind).view(np.int32).astype(np.int64) + c), kind,
                (kind,) * 3,
            )  # fmt: skip
        dtype = _dtype(kind)
        return elementwise(decoder, GROUP, lambda a, b, c: high_product(a, b, kind).view(dtype) + c, kind, (kind,) * 3)
    return elementwise(decoder, GROUP, lambda a, b, c: a * b + c, kind, (kind, kind, kind))


def _dtype(kind: str) -> Any:
    return {"s": "int", "u": "uint", "b": "uint"}[kind[0]] + str(WIDTHS[kind])


def div(decoder: Decoder, kind: str) -> Built:
    return elementwise(decoder, GROUP, quotient, kind, (kind, kind))


def quotient(a: Any, b: Any) -> Any:
    """Division that truncates; a division by zero gives all ones."""
    a, b = np.broadcast_arrays(np.asarray(a), np.asarray(b))
    zero = b == 0
    safe = np.where(zero, b.dtype.type(1), b)
    found = a // safe
    if a.dtype.kind == "i":
        found = found + ((found < 0) & (found * safe != a)).astype(a.dtype)
    return np.where(zero, ~a.dtype.type(0), found)


def remainder(a: Any, b: Any) -> Any:
    """The remainder of `quotient`, with the sign of the dividend; by zero all ones.

    PTX ISA leaves division by zero open. An H200 gives all ones for both, of 32 bits.
    """
    a, b = np.broadcast_arrays(np.asarray(a), np.asarray(b))
    safe = np.where(b == 0, b.dtype.type(1), b)
    return np.where(b == 0, ~a.dtype.type(0), a - quotient(a, safe) * safe)


def minimum(decoder: Decoder, kind: str) -> Built:
    return _extremum(decoder, kind, np.minimum)


def maximum(decoder: Decoder, kind: str) -> Built:
    return _extremum(decoder, kind, np.maximum)


def _extremum(decoder: Decoder, kind: str, function: Any) -> Built:
    relu = decoder.flag("relu")
    if kind in ("u16x2", "s16x2"):
        function_of_words = function
        function = lambda a, b: _halves(function_of_words, a, b, kind)  # noqa: E731
    if relu:
        inner = function
        function = lambda a, b: np.maximum(inner(a, b), 0)  # noqa: E731
    return elementwise(decoder, GROUP, function, kind, (kind, kind))


def absolute(decoder: Decoder, kind: str) -> Built:
    return elementwise(decoder, GROUP, np.abs, kind, (kind,))


def negative(decoder: Decoder, kind: str) -> Built:
    return elementwise(decoder, GROUP, np.negative, kind, (kind,))


#: Instructions that exist for integers and floats alike, found by `arithmetic`.
OPERATIONS = {
    "add": add, "sub": sub, "mul": mul, "mad": mad, "div": div, "min": minimum, "max": maximum, "abs": absolute,
    "neg": negative,
}  # fmt: skip


@instruction("rem")
def rem(decoder: Decoder) -> Built:
    kind = decoder.type()
    return elementwise(decoder, GROUP, remainder, kind, (kind, kind))


@instruction("mul24", "mad24")
def mul24(decoder: Decoder) -> Built:
    """Products of the low 24 bits: their low 32 bits, or bits 16 to 47."""
    kind = decoder.type()
    high = decoder.one_of("lo", "hi") == "hi"
    decoder.flag("sat")

    def product(a: Any, b: Any) -> Any:
        if kind == "s32":
            first, second = (((np.asarray(each).astype(np.int64) << 40) >> 40) for each in (a, b))
        else:
            first, second = (np.asarray(each).astype(np.int64) & 0xFFFFFF for each in (a, b))
        wide = first * second
        return ((wide >> 16) if high else wide).astype(_dtype(kind))

    if decoder.name == "mul24":
        return elementwise(decoder, GROUP, product, kind, (kind, kind))
    return elementwise(decoder, GROUP, lambda a, b, c: product(a, b) + c, kind, (kind, kind, kind))


@instruction("sad")
def sad(decoder: Decoder) -> Built:
    kind = decoder.type()
    return elementwise(
        decoder, GROUP, lambda a, b, c: c + np.where(a < b, b - a, a - b), kind, (kind, kind, kind)
    )  # fmt: skip


@instruction("addc", "subc", "madc")
def carried(decoder: Decoder) -> Built:
    kind = decoder.type()
    keeps = decoder.flag("cc")
    if decoder.name == "madc":
        return _multiply_carrying(decoder, kind, decoder.one_of("lo", "hi"), keeps=keeps, uses=True)
    return _carrying(decoder, kind, _with_carry if decoder.name == "addc" else _with_borrow, keeps=keeps)


def _carrying(decoder: Decoder, kind: str, function: Any, *, keeps: bool) -> Built:
    """An addition or subtraction with the thread's carry bit, which `keeps` says is written."""
    unsigned = f"u{WIDTHS[kind]}"
    decoder.count(3)
    put, first, second = decoder.put(0, unsigned), decoder.get(1, unsigned), decoder.get(2, unsigned)

    def run(lanes: Any) -> None:
        carry = lanes.state.extra.setdefault("carry", np.zeros(lanes.state.size, np.bool_))
        result, out = function(np.asarray(first(lanes)), np.asarray(second(lanes)), carry[lanes.index])
        if keeps:
            carry[lanes.index] = out
        put(lanes, result)

    return Built(run, GROUP)


def _multiply_carrying(decoder: Decoder, kind: str, part: str, *, keeps: bool, uses: bool) -> Built:
    """Half of a product plus an addend, with the thread's carry bit."""
    unsigned = f"u{WIDTHS[kind]}"
    decoder.count(4)
    put, addend = decoder.put(0, unsigned), decoder.get(3, unsigned)
    first, second = decoder.get(1, kind), decoder.get(2, kind)

    def run(lanes: Any) -> None:
        carry = lanes.state.extra.setdefault("carry", np.zeros(lanes.state.size, np.bool_))
        a, b = np.asarray(first(lanes)), np.asarray(second(lanes))
        product = high_product(a, b, kind) if part == "hi" else a * b
        before = carry[lanes.index] if uses else np.zeros(lanes.count, np.bool_)
        result, out = _with_carry(np.asarray(product).view(CONTAINERS[WIDTHS[kind]]), np.asarray(addend(lanes)), before)
        if keeps:
            carry[lanes.index] = out
        put(lanes, result)

    return Built(run, GROUP)


def _with_carry(a: Array, b: Array, carry: Array) -> tuple[Array, Array]:
    part = a + b
    total = part + carry.astype(part.dtype)
    return total, (part < a) | (total < part)


def _with_borrow(a: Array, b: Array, borrow: Array) -> tuple[Array, Array]:
    part = a - b
    total = part - borrow.astype(part.dtype)
    return total, (a < b) | (part < borrow.astype(part.dtype))


@instruction("dp4a", "dp2a")
def dot_of_bytes(decoder: Decoder) -> Built:
    """``d = c + Σ a_i * b_i`` of four bytes, or of two 16-bit numbers and two bytes."""
    upper = decoder.flag("hi")
    decoder.flag("lo")
    first, second = decoder.types(2)
    four = decoder.name == "dp4a"
    signed = "s32" in (first, second)

    def parts(value: Any, kind: str, bits: int) -> Array:
        dtype = {"s": "int", "u": "uint"}[kind[0]] + str(bits)
        return np.atleast_1d(np.asarray(value)).view(dtype).reshape(-1, 32 // bits).astype(np.int64)

    def dot(a: Any, b: Any, c: Any) -> Any:
        left = parts(a, first, 8 if four else 16)
        right = parts(b, second, 8)
        if not four:
            right = right[:, 2:] if upper else right[:, :2]
        return ((left * right).sum(axis=1) + np.asarray(c).astype(np.int64)).astype(np.uint32)

    kind = "s32" if signed else "u32"
    return elementwise(decoder, GROUP, dot, kind, ("b32", "b32", kind))
