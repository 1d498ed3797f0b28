"""Conversions between types, with rounding, saturation and packing of narrow floats."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.emulator.decode import Decoder
from tilewright.emulator.isa.floating import canonical
from tilewright.emulator.isa.table import Built, bytewise, elementwise, instruction
from tilewright.emulator.rounding import flush, from_bf16, saturate, to_bf16, to_f16, to_f32, to_tf32
from tilewright.emulator.scalars import CONTAINERS, SIGNED, WIDTHS, Array, numpy_type
from tilewright.emulator.syntax import Name

GROUP = "convert"
_TO_FLOAT = ("rn", "rz", "rm", "rp", "rna")
_TO_INTEGER = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_FLOATS = ("f16", "bf16", "f32", "tf32", "f64")
_PAIRS = {"f16x2": "f16", "bf16x2": "bf16", "e4m3x2": "e4m3", "e5m2x2": "e5m2"}


@instruction("cvt")
def convert(decoder: Decoder) -> Built:
    if decoder.flag("pack"):
        return _pack_integers(decoder)
    mode = decoder.one_of(*_TO_FLOAT, *_TO_INTEGER, default="")
    decoder.flag("satfinite")
    flushes, saturates, relu = decoder.flag("ftz"), decoder.flag("sat"), decoder.flag("relu")
    result, kind = decoder.types(2)

    def adjusted(values: Any) -> Any:
        values = flush(values) if flushes and values.dtype == np.float32 else values
        return np.fmax(values, values.dtype.type(0)) if relu else values

    if result in _PAIRS:
        return _pairs(decoder, result, kind, mode or "rn", adjusted)

    def converted(a: Any) -> Any:
        values = np.asarray(a)
        if kind in _FLOATS:
            values = from_bf16(values) if kind == "bf16" else values
            values = adjusted(values)
            if result in _FLOATS:
                if mode in _TO_INTEGER:
                    values = _TO_INTEGER[mode](values)
                found = narrowed(values, result, mode if mode in _TO_FLOAT else "rn")
                if saturates:
                    found = to_bf16(saturate(from_bf16(found))) if result == "bf16" else saturate(found)
                return flush(found) if flushes and result == "f32" else found
            return _to_integer(_TO_INTEGER.get(mode, np.trunc)(values), result)
        if result in _FLOATS:
            found = _from_integer(values, result, mode or "rn")
            return saturate(found) if saturates and result != "bf16" else found
        return _between_integers(values, result, saturates)

    built = elementwise(decoder, GROUP, converted, result, (kind,))
    if kind in _FLOATS or result in _FLOATS or saturates:
        return built
    read = np.uint8((1 << min(WIDTHS[kind], WIDTHS[result]) // 8) - 1)
    return bytewise(
        decoder, built, lambda masks: np.where(masks[0] & read, np.uint8(0xFF), np.uint8(0)) if masks else np.zeros(
            1, np.uint8)
    )  # fmt: skip


def narrowed(values: Any, kind: str, mode: str = "rn") -> Array:
    """Values of a floating type in another one, as registers hold it."""
    if kind == "f64":
        return canonical(np.asarray(values, np.float64))
    if kind == "f32":
        values = np.asarray(values)
        return canonical(to_f32(values, mode) if values.dtype == np.float64 else values.astype(np.float32))
    if kind == "f16":
        return canonical(to_f16(values, mode))
    if kind == "bf16":
        return to_bf16(values, mode)
    if kind == "tf32":
        return to_tf32(np.asarray(values), mode)
    return _to_f8(values, kind)


def _to_integer(values: Array, kind: str) -> Array:
    """Values without fraction; what does not fit becomes the nearest limit, NaN becomes 0 (or the top bit, 64 bits)."""
    dtype = np.dtype(f"{'int' if kind in SIGNED else 'uint'}{WIDTHS[kind]}")
    limits = np.iinfo(dtype)
    wide = np.asarray(values, np.float64)
    nan = np.isnan(wide)
    over, under = wide >= float(limits.max), wide <= float(limits.min)
    inside = np.where(nan | over | under, 0.0, wide)
    found = inside.astype(np.uint64 if dtype == np.uint64 else np.int64).astype(dtype)
    found = np.where(over, dtype.type(limits.max), np.where(under, dtype.type(limits.min), found))
    missing = dtype.type(limits.min if kind == "s64" else (1 << 63 if kind == "u64" else 0))
    return np.asarray(np.where(nan, missing, found))


def _from_integer(values: Array, kind: str, mode: str) -> Array:
    if kind == "f64" or (WIDTHS[kind] <= 32 and values.dtype.itemsize <= 4):
        wide = values.astype(np.float64)
        exact = values.dtype.itemsize <= 4
        if kind == "f64":
            return wide if exact or mode == "rn" else _large(values, np.float64, mode)
        return narrowed(wide, kind, mode)
    if kind == "f32":
        return values.astype(np.float32) if mode == "rn" else _large(values, np.float32, mode)
    odd = _integer_odd(values)
    return narrowed(odd, kind, mode)


def _integer_odd(values: Array) -> Array:
    """64-bit integers in f64 with a sticky last bit."""
    wide = _large(values, np.float64, "rz")
    inexact = np.array([int(w) != int(v) for w, v in zip(np.ravel(wide), np.ravel(values), strict=True)]).reshape(
        wide.shape
    )
    return np.asarray((wide.view(np.int64) | inexact).view(np.float64))


def _large(values: Array, dtype: Any, mode: str) -> Array:
    """64-bit integers rounded in a direction, by comparing with the exact value."""
    nearest = values.astype(dtype)
    found = []
    for near, exact in zip(np.ravel(nearest), np.ravel(values), strict=True):
        difference = int(near) - int(exact)
        down = mode == "rm" or (mode == "rz" and exact > 0)
        up = mode == "rp" or (mode == "rz" and exact < 0)
        if difference > 0 and down:
            near = np.nextafter(near, dtype(-np.inf))
        elif difference < 0 and up:
            near = np.nextafter(near, dtype(np.inf))
        found.append(near)
    return np.array(found, dtype).reshape(nearest.shape)


def _between_integers(values: Array, kind: str, saturates: bool) -> Array:
    dtype = np.dtype(f"{'int' if kind in SIGNED else 'uint'}{WIDTHS[kind]}")
    if saturates:
        limits = np.iinfo(dtype)
        own = np.iinfo(values.dtype)
        low, high = max(int(limits.min), int(own.min)), min(int(limits.max), int(own.max))
        values = np.clip(values, values.dtype.type(low), values.dtype.type(high))
    return values.astype(dtype)


def _pairs(decoder: Decoder, result: str, kind: str, mode: str, adjusted: Any) -> Built:
    """Two values into one register, the first in the upper half; or the two halves of one register."""
    element = _PAIRS[result]
    if kind == "f32":
        decoder.count(3)
        width = WIDTHS[element]
        container = CONTAINERS[2 * width].type

        def packed(a: Any, b: Any) -> Any:
            high, low = (np.asarray(narrowed(adjusted(np.asarray(each)), element, mode)) for each in (a, b))
            high, low = (each.view(CONTAINERS[width]).astype(container) for each in (high, low))
            return (high << container(width)) | low

        built = elementwise(decoder, GROUP, packed, result, ("f32", "f32"))
        part = np.uint8((1 << width // 8) - 1)
        parts = [part << np.uint8(shift) for number, shift in ((1, width // 8), (2, 0))
                 if isinstance(decoder.operand(number), Name)]  # fmt: skip
        return bytewise(decoder, built, lambda masks: _spread(masks, np.uint8(0x0F), parts))

    def halves(a: Any) -> Any:
        raw = np.ascontiguousarray(np.atleast_1d(a))
        if kind in ("e4m3x2", "e5m2x2"):
            values = _from_f8(raw.view(np.uint8), _PAIRS[kind])
        elif kind == "f16x2":
            values = raw.view(np.float16).astype(np.float32)
        else:
            values = from_bf16(raw.view(np.uint16))
        found = np.asarray(narrowed(adjusted(values), element, mode))
        return found.view(CONTAINERS[WIDTHS[element]]).view(CONTAINERS[WIDTHS[result]])

    built = elementwise(decoder, GROUP, halves, result, (kind,))
    taken, given = (np.uint8((1 << WIDTHS[each] // 8) - 1) for each in (_PAIRS[kind], element))
    above, over = (np.uint8(WIDTHS[each] // 8) for each in (_PAIRS[kind], element))
    return bytewise(
        decoder, built,
        lambda masks: _spread(masks, taken, [given]) | _spread(masks, taken << above, [given << over]),
    )  # fmt: skip


def _spread(masks: list[Array], read: np.uint8, written: list[np.uint8]) -> Array:
    """Undefined bytes of a result: those of `written` for each register that has one among the bytes `read`."""
    found = [np.where(mask & read, part, np.uint8(0)) for mask, part in zip(masks, written, strict=True)]
    return np.asarray(np.bitwise_or.reduce(found)) if found else np.zeros(1, np.uint8)


def _f8(kind: str) -> Any:
    import ml_dtypes

    return {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}[kind]


def _to_f8(values: Any, kind: str) -> Array:
    """To 8-bit floats, saturating to the largest finite value."""
    largest = {"e4m3": 448.0, "e5m2": 57344.0}[kind]
    wide = np.asarray(values, np.float32)
    clipped = np.where(np.isnan(wide), wide, np.clip(wide, -largest, largest))
    return np.asarray(np.where(np.isnan(wide), np.uint8(0x7F), clipped.astype(_f8(kind)).view(np.uint8)))


def _from_f8(raw: Array, kind: str) -> Array:
    return np.asarray(raw.view(_f8(kind)).astype(np.float32))


def _pack_integers(decoder: Decoder) -> Built:
    """``cvt.pack.sat``: two saturated integers into the low bits, the third operand's bits above them."""
    decoder.flag("sat")
    names = [name for name in decoder.modifiers if name in WIDTHS]
    decoder.types(len(names))
    kind, source = names[0], names[1]
    width = WIDTHS[kind]

    def packed(a: Any, b: Any, *rest: Any) -> Any:
        high, low = (
            _between_integers(np.asarray(each), kind, True).view(CONTAINERS[width]).astype(np.uint32) for each in (a, b)
        )
        found = (high << np.uint32(width)) | low
        return found if not rest else found | (rest[0] << np.uint32(2 * width))

    kinds = (source, source) if len(names) == 2 else (source, source, "b32")
    assert numpy_type(source) is not None, "a known type"
    return elementwise(decoder, GROUP, packed, "b32", kinds)
