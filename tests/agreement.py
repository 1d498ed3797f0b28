"""Whether two runs of a kernel agree: bit for bit where PTX defines its arithmetic, else within bounds.

Integers, moves, conversions, and additions, products, fused multiply-adds, quotients and roots of floats with IEEE
rounding are defined. Approximate functions have the errors that PTX ISA states for them; matrix units and atomic sums
of floats add in an order of their own; and products and sums that name no rounding may be contracted. What depends on
the order of threads (a value that an atomic operation gives back, a clock) is not compared.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tilewright import emulator
from tilewright.emulator.link import link
from tilewright.emulator.syntax import Instruction, Name

Array = np.ndarray[Any, Any]

# Errors relative to the largest result of each instruction: PTX ISA, "Floating Point Instructions", "Half Precision
# Floating Point Instructions"; for sums, of float32 results of thousands of terms and of float16 ones of hundreds.
_ERRORS = (
    (r"tanh\.approx", 2.0**-8),
    (r"(sin|cos)\.approx", 2.0**-14),  # of arguments up to 100 pi
    (r"(ex2|sin|cos|lg2|rsqrt|rcp|sqrt|div)\..*(approx|full).*(f16|bf16)", 2.0**-7),
    (r"(ex2|sin|cos|lg2|rsqrt|rcp|sqrt|div)\..*(approx|full)", 2.0**-20),
    (r"(mma|wmma\.mma|wgmma\.mma_async)\..*\.(s32|u32)\.", 0.0),
    (r"(mma|wmma\.mma|wgmma\.mma_async)\..*\.f64\.", 2.0**-45),
    (r"(mma|wmma\.mma|wgmma\.mma_async)\..*\.m\d+n\d+k\d+(\.row|\.col)*\.f16\.", 2.0**-8),
    (r"(mma|wmma\.mma|wgmma\.mma_async)\.", 2.0**-14),
    (r"(red|atom|cp\.reduce)\..*add.*\.(noftz\.)?b?f16", 2.0**-7),
    (r"(red|atom|cp\.reduce)\..*add.*\.f32", 2.0**-14),
    (r"(red|atom|cp\.reduce)\..*add.*\.f64", 2.0**-40),
    (r"cp\.reduce\.async\.bulk\.tensor.*\.add", 2.0**-7),  # the type is in the map
)
_AMPLIFIED = 16  # how much larger an error may become by what follows: e.g. the exponential function of a sum
_CONTRACTED = 2.0**-20
_OPEN = re.compile(r"atom\.|activemask|match\.|elect\.")
_OPEN_REGISTERS = re.compile(r"%(clock|globaltimer|smid|nsmid|warpid|nwarpid|gridid|pm|dynamic_smem)")
_PLAIN = re.compile(r"(mul|add|sub)\.(ftz\.|sat\.)*(f32|f64|f16|bf16|f16x2|bf16x2|f32x2)$")
_FLOATS = {
    2: (np.float16, ml_dtypes.bfloat16), 4: (np.float32,), 8: (np.float64,),
    1: (np.float32, np.float16, ml_dtypes.bfloat16, np.float64),
}  # fmt: skip


@dataclass(frozen=True)
class Arithmetic:
    """What of a kernel is open: results may differ by `error`, and cannot be compared where `order` names why."""

    error: float = 0.0
    order: str = ""


def arithmetic(module: emulator.Module, entry: str) -> Arithmetic:
    """By the instructions of a kernel and what it calls."""
    errors, plain = [0.0], set()
    for node, _ in link(module, entry).instructions:
        if why := _order(node):
            return Arithmetic(0.0, why)
        errors.append(next((error for pattern, error in _ERRORS if re.match(pattern, node.opcode)), 0.0))
        if found := _PLAIN.match(node.opcode):
            plain.add(found[1])
    if "mul" in plain and plain & {"add", "sub"}:
        errors.append(_CONTRACTED)
    return Arithmetic(max(errors))


def _order(node: Instruction) -> str:
    """The instruction or register that makes results depend on the order of threads; "" where none does."""
    if _OPEN.match(node.opcode):
        unused = bool(node.operands) and isinstance(node.operands[0], Name) and node.operands[0].text == "_"
        return "" if unused else node.opcode
    names = [each.text for each in node.operands if isinstance(each, Name)]
    return next((name for name in names if _OPEN_REGISTERS.match(name)), "")


def mismatch(one: Array, other: Array, allowed: Arithmetic) -> str:
    """The first element in which two arrays disagree, in words; "" if they agree.

    Not-a-number is equal to itself, whichever its bits. Where results may differ, arrays of integers and bytes agree
    too if they do as floats of their size (a test may hand over their bits), and integers may differ by 1.
    """
    if allowed.order:
        return ""
    kinds = [one.dtype] if one.dtype.kind not in "iub" else []
    if not kinds and allowed.error:
        kinds = [np.dtype(kind) for kind in _FLOATS[one.dtype.itemsize] if one.nbytes % np.dtype(kind).itemsize == 0]
    flat, others = (np.ascontiguousarray(each).reshape(-1) for each in (one, other))
    wrong = _different_bits(flat, others)
    if kinds == [one.dtype]:
        wrong &= _apart(flat, others, allowed.error)
    elif allowed.error and wrong.any():
        as_floats = any(not _apart(flat.view(kind), others.view(kind), allowed.error).any() for kind in kinds)
        near = abs(flat.astype(np.int64) - others.astype(np.int64)) <= 1
        if as_floats or (one.dtype.itemsize > 1 and near.all()):
            return ""
    if not wrong.any():
        return ""
    first = int(np.flatnonzero(wrong)[0])
    place = [int(each) for each in np.unravel_index(first, one.shape)]
    bound = f"within {allowed.error:.1e} x {_AMPLIFIED}" if allowed.error else "bit for bit"
    return (
        f"element {place}: {flat[first]} ({flat[first].tobytes()[::-1].hex()}) and {others[first]} "
        f"({others[first].tobytes()[::-1].hex()}); {int(wrong.sum())} of {wrong.size} do not agree {bound}"
    )


def _different_bits(one: Array, other: Array) -> Array:
    raw = f"u{one.dtype.itemsize}"
    wrong = np.asarray(one.view(raw) != other.view(raw))
    if one.dtype.kind not in "iub":
        wrong &= ~(np.isnan(one) & np.isnan(other))
    return wrong


def _apart(one: Array, other: Array, error: float) -> Array:
    """Which floats differ by more than the error allows, next to the largest one, and two units in the last place."""
    if not error:
        return _different_bits(one, other)
    a, b = one.astype(np.float64), other.astype(np.float64)
    with np.errstate(all="ignore"):
        finite = np.isfinite(a) & np.isfinite(b)
        largest = float(abs(a[finite]).max()) if finite.any() else 0.0
        bound = _AMPLIFIED * error * largest + 2 * float(ml_dtypes.finfo(one.dtype).eps) * abs(a)  # type: ignore[no-untyped-call]
        return np.asarray(np.where(finite, abs(a - b) > bound, _different_bits(one, other)))
