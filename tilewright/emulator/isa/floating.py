"""Floating-point arithmetic in f32, f64, f16 and bf16, alone and in pairs, with all rounding modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.emulator.decode import Decoder
from tilewright.emulator.isa import integer
from tilewright.emulator.isa.table import Built, elementwise, instruction, pairwise
from tilewright.emulator.rounding import (
    directed,
    flush,
    fma_f64,
    from_bf16,
    product_error,
    saturate,
    sum_error,
    sum_odd,
    to_bf16,
    to_f16,
    to_f32,
)
from tilewright.emulator.scalars import WIDTHS, Array

GROUP = "float"
KINDS = ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2", "f32x2")
_ELEMENT = {"f16x2": "f16", "bf16x2": "bf16", "f32x2": "f32"}
Function = Callable[..., Any]

_NAN = {"f16": 0x7FFF, "f32": 0x7FFFFFFF}


def raw_elements(kind: str, function: Function) -> Function:
    """A function of values of one type, made one of registers: pairs are taken apart, bf16 becomes f32 and back."""
    element = _ELEMENT.get(kind, kind)
    dtype: Any = {"f16": np.float16, "bf16": np.uint16, "f32": np.float32}.get(element)
    if kind in ("f32", "f64", "f16"):
        return function
    if kind == "bf16":
        return lambda *values: to_bf16(function(*(from_bf16(value) for value in values)))

    def pairs(*values: Any) -> Array:
        parts = [np.ascontiguousarray(np.atleast_1d(value)).view(dtype) for value in values]
        if element == "bf16":
            found = to_bf16(function(*(from_bf16(part) for part in parts)))
        else:
            found = np.asarray(function(*parts))
        return np.ascontiguousarray(found.astype(dtype, copy=False)).view(values[0].dtype)

    return pairs


def _build(decoder: Decoder, kind: str, function: Function, count: int) -> Built:
    """With the modifiers that all arithmetic has: flushing of f32, saturation."""
    flushes, saturates, relu = decoder.flag("ftz"), decoder.flag("sat"), decoder.flag("relu")
    element = _ELEMENT.get(kind, kind)
    inner = function
    if flushes and element == "f32":
        unflushed = inner
        inner = lambda *values: flush(unflushed(*(flush(value) for value in values)))  # noqa: E731
    if saturates:
        free = inner
        inner = lambda *values: saturate(free(*values))  # noqa: E731
    if relu:
        signed = inner
        inner = lambda *values: np.fmax(signed(*values), 0)  # noqa: E731
    built = elementwise(decoder, GROUP, raw_elements(kind, inner), kind, (kind,) * count)
    return pairwise(decoder, built, WIDTHS[kind]) if kind in _ELEMENT else built


def _mode(decoder: Decoder) -> str:
    return decoder.one_of("rn", "rz", "rm", "rp", default="rn")


def add(decoder: Decoder, kind: str) -> Built:
    return _sum(decoder, kind, 1)


def sub(decoder: Decoder, kind: str) -> Built:
    return _sum(decoder, kind, -1)


def _sum(decoder: Decoder, kind: str, sign: int) -> Built:
    mode = _mode(decoder)
    plain = np.add if sign > 0 else np.subtract
    if mode == "rn":
        return _build(decoder, kind, plain, 2)
    if _ELEMENT.get(kind, kind) == "f32":
        return _build(decoder, kind, lambda a, b: to_f32(sum_odd(_wide(a), sign * _wide(b)), mode), 2)

    def exactly(a: Any, b: Any) -> Array:
        total = plain(a, b)
        return directed(total, sum_error(a, sign * b, total), mode)

    return _build(decoder, kind, exactly, 2)


def mul(decoder: Decoder, kind: str) -> Built:
    mode = _mode(decoder)
    if mode == "rn":
        return _build(decoder, kind, np.multiply, 2)
    if _ELEMENT.get(kind, kind) == "f32":
        return _build(decoder, kind, lambda a, b: to_f32(_wide(a) * _wide(b), mode), 2)

    def exactly(a: Any, b: Any) -> Array:
        product = a * b
        return directed(product, product_error(a, b, product), mode)

    return _build(decoder, kind, exactly, 2)


def fused(decoder: Decoder, kind: str) -> Built:
    """``a * b + c`` rounded once."""
    mode = _mode(decoder)
    element = _ELEMENT.get(kind, kind)
    if element == "f64":
        if mode != "rn":
            raise decoder.error("f64 is fused in mode .rn only")
        return _build(decoder, kind, fma_f64, 3)
    if element == "f32":
        return _build(decoder, kind, lambda a, b, c: to_f32(sum_odd(_wide(a) * _wide(b), _wide(c)), mode), 3)
    if element == "f16":
        return _build(decoder, kind, lambda a, b, c: to_f16(sum_odd(_wide(a) * _wide(b), _wide(c))), 3)
    return _build(decoder, kind, lambda a, b, c: sum_odd(_wide(a) * _wide(b), _wide(c)), 3)


def _wide(value: Any) -> Array:
    return np.asarray(value, np.float64)


def div(decoder: Decoder, kind: str) -> Built:
    """Correctly rounded; `approx` and `full`, which allow 2 ulp, give the same."""
    decoder.flag("approx", "full")
    mode = _mode(decoder)
    if mode == "rn":
        return _build(decoder, kind, np.divide, 2)
    if kind == "f32":
        # A quotient of two f32 is never so close to an f32 that its f64 rounding crosses it.
        return _build(decoder, kind, lambda a, b: to_f32(_wide(a) / _wide(b), mode), 2)

    def exactly(a: Any, b: Any) -> Array:
        found = a / b
        product = found * b
        rest = (a - product) - product_error(found, b, product)
        return directed(found, rest * np.sign(b), mode)

    return _build(decoder, kind, exactly, 2)


def minimum(decoder: Decoder, kind: str) -> Built:
    return _extremum(decoder, kind, np.minimum, np.fmin)


def maximum(decoder: Decoder, kind: str) -> Built:
    return _extremum(decoder, kind, np.maximum, np.fmax)


def _extremum(decoder: Decoder, kind: str, with_nan: Function, without: Function) -> Built:
    """-0 is less than +0; NaN counts as missing, or wins with `.NaN`."""
    keeps_nan, xors = decoder.flag("NaN"), decoder.flag("xorsign")
    if xors:
        decoder.flag("abs")
    smallest = with_nan is np.minimum

    def extreme(*values: Any) -> Array:
        found = np.asarray(values[0])
        signs = found
        for value in values[1:]:
            other = np.asarray(value)
            left, right = (np.abs(found), np.abs(other)) if xors else (found, other)
            result = (with_nan if keeps_nan else without)(left, right)
            zero = (left == 0) & (right == 0)
            if np.any(zero):
                negative = np.signbit(left) | np.signbit(right) if smallest else np.signbit(left) & np.signbit(right)
                result = np.where(zero, np.where(negative, -0.0, 0.0).astype(result.dtype), result)
            if xors:
                result = np.copysign(
                    result, np.where(np.signbit(signs) ^ np.signbit(other), -1, 1).astype(result.dtype)
                )
                signs = result
            found = result
        return canonical(found)

    return _build(decoder, kind, extreme, len(decoder.operands) - 1)


def canonical(values: Array) -> Array:
    """NaNs as the hardware writes them: all ones but the sign."""
    wrong = np.isnan(values)
    if not wrong.any():
        return values
    bits = {2: np.uint16(0x7FFF), 4: np.uint32(0x7FFFFFFF), 8: np.uint64(0x7FFFFFFFFFFFFFFF)}[values.dtype.itemsize]
    return np.asarray(np.where(wrong, np.asarray(bits).view(values.dtype), values))


def absolute(decoder: Decoder, kind: str) -> Built:
    return _sign(decoder, kind, lambda raw, top: raw & ~top)


def negative(decoder: Decoder, kind: str) -> Built:
    return _sign(decoder, kind, lambda raw, top: raw ^ top)


def _sign(decoder: Decoder, kind: str, change: Function) -> Built:
    """Sign bits changed, whatever else the value is."""
    flushes = decoder.flag("ftz")
    top: Any = {
        "f16": np.uint16(0x8000), "bf16": np.uint16(0x8000), "f16x2": np.uint32(0x80008000),
        "bf16x2": np.uint32(0x80008000), "f32": np.uint32(1 << 31), "f64": np.uint64(1 << 63),
        "f32x2": np.uint64((1 << 63) | (1 << 31)),
    }[kind]  # fmt: skip
    raw = f"b{8 * top.itemsize}"

    def changed(a: Any) -> Any:
        if flushes and kind == "f32":
            a = flush(np.asarray(a).view(np.float32)).view(np.uint32)
        return change(a, top)

    return elementwise(decoder, GROUP, changed, raw, (raw,))


_OPERATIONS = {
    "add": add, "sub": sub, "mul": mul, "mad": fused, "div": div, "min": minimum, "max": maximum, "abs": absolute,
    "neg": negative,
}  # fmt: skip


@instruction(*_OPERATIONS)
def arithmetic(decoder: Decoder) -> Built:
    """The instructions that exist for integers and floats."""
    kinds = [name for name in decoder.modifiers if name in KINDS]
    if len(kinds) == 2:  # sums of f32 with a narrow operand
        raise decoder.error("mixed precision is not emulated")
    kind = decoder.type()
    if kind in KINDS:
        return _OPERATIONS[decoder.name](decoder, kind)
    return integer.OPERATIONS[decoder.name](decoder, kind)


@instruction("fma")
def fma(decoder: Decoder) -> Built:
    kind = decoder.type()
    if decoder.flag("oob"):
        raise decoder.error("the form .oob is not emulated")
    return fused(decoder, kind)


@instruction("copysign")
def copysign(decoder: Decoder) -> Built:
    """The magnitude of `b` with the sign of `a`."""
    kind = decoder.type()
    return elementwise(decoder, GROUP, lambda a, b: np.copysign(b, a), kind, (kind, kind))


_CLASSES: dict[str, Function] = {
    "finite": np.isfinite, "infinite": np.isinf, "number": lambda a: ~np.isnan(a), "notanumber": np.isnan,
    "normal": lambda a: np.isfinite(a) & (np.abs(a) >= np.finfo(a.dtype).tiny),
    "subnormal": lambda a: (a != 0) & (np.abs(a) < np.finfo(a.dtype).tiny),
}  # fmt: skip


@instruction("testp")
def test_class(decoder: Decoder) -> Built:
    function = _CLASSES[decoder.one_of(*_CLASSES)]
    return elementwise(decoder, GROUP, function, "pred", (decoder.type(),))
