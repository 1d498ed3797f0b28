"""Bits: logic, shifts, fields, permutations of bytes, counts."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.emulator.decode import Decoder
from tilewright.emulator.isa.table import Built, bytewise, elementwise, instruction
from tilewright.emulator.lanes import Lanes
from tilewright.emulator.scalars import CONTAINERS, SIGNED, WIDTHS, Array, numpy_type, popcount
from tilewright.emulator.syntax import Name, Number

GROUP = "logic"
_FUNCTIONS = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


@instruction("and", "or", "xor")
def logic(decoder: Decoder) -> Built:
    kind = decoder.type()
    function = _FUNCTIONS[decoder.name]
    if kind == "pred" and decoder.name != "xor":
        return _logic_of_predicates(decoder, function)
    built = elementwise(decoder, GROUP, function, kind, (kind, kind))
    constants = [operand.value for operand in decoder.operands[1:] if isinstance(operand, Number)]
    kept = _bytes_kept(constants[0], decoder.name) if constants else 0xFF
    return bytewise(decoder, built, lambda masks: _either(masks) & np.uint8(kept))


def _either(masks: list[Array]) -> Array:
    """Bytes that are undefined in any source: bits do not wander."""
    found = np.zeros(1, np.uint8)
    for mask in masks:
        found = found | mask
    return found


def _bytes_kept(constant: int, name: str) -> int:
    """The bytes on which the other operand has an influence."""
    absorbs = {"and": 0x00, "or": 0xFF}.get(name, -1)
    return sum(1 << byte for byte in range(8) if constant >> 8 * byte & 0xFF != absorbs)


def _logic_of_predicates(decoder: Decoder, function: Any) -> Built:
    """A defined false decides `and`, a defined true decides `or`, whatever the other operand is."""
    decoder.count(3)
    put, first, second = decoder.put(0, "pred"), decoder.get(1, "pred"), decoder.get(2, "pred")
    decides = decoder.name == "or"
    slots = tuple(decoder.reads)
    (target,) = decoder.writes or (-1,)

    def run(lanes: Lanes) -> None:
        a, b = first(lanes), second(lanes)
        known = lanes.state.undefined
        taint = None
        if known and len(slots) == 2 and not known.keys().isdisjoint((*slots, target)):
            left, right = lanes.undefined(slots[:1]), lanes.undefined(slots[1:])
            no = np.zeros(lanes.count, np.bool_)
            left, right = no if left is None else left, no if right is None else right
            taint = (left | right) & ~((~left & (a == decides)) | (~right & (b == decides)))
        put(lanes, function(a, b))
        if known and target >= 0:
            lanes.define((target,), taint if taint is not None and taint.any() else None)

    return Built(run, GROUP, own_taint=True)


@instruction("not", "cnot")
def complement(decoder: Decoder) -> Built:
    kind = decoder.type()
    if decoder.name == "cnot":
        return elementwise(decoder, GROUP, lambda a: np.equal(a, 0).astype(CONTAINERS[WIDTHS[kind]]), kind, (kind,))
    return elementwise(decoder, GROUP, np.invert, kind, (kind,))


@instruction("lop3")
def lop3(decoder: Decoder) -> Built:
    """Any function of three bits, given as the table ``f(0xF0, 0xCC, 0xAA)``."""
    decoder.type()
    if decoder.flag("or", "and", "BoolOp"):
        raise decoder.error("the form with a predicate is not emulated")
    decoder.count(5)
    table = decoder.integer(4) & 0xFF
    put = decoder.put(0, "b32")
    gets = [decoder.get(number, "b32") for number in (1, 2, 3)]

    def run(lanes: Lanes) -> None:
        values = [np.asarray(get(lanes)) for get in gets]
        found: Any = np.uint32(0)
        for row in range(8):
            if table >> row & 1:
                term: Any = np.uint32(0xFFFFFFFF)
                for value, bit in zip(values, (4, 2, 1), strict=True):
                    term = term & (value if row & bit else ~value)
                found = found | term
        put(lanes, found)

    return bytewise(decoder, Built(run, GROUP), _either)


@instruction("shl", "shr")
def shift(decoder: Decoder) -> Built:
    """Shifts; amounts beyond the width shift everything out."""
    kind = decoder.type()
    width = WIDTHS[kind]
    left, signed = decoder.name == "shl", kind in SIGNED
    dtype = numpy_type(kind)

    def shifted(a: Any, amount: Any) -> Any:
        if amount.ndim == 0 and amount < width:
            return (a << dtype.type(amount)) if left else (a >> dtype.type(amount))
        far = amount >= width
        small = np.where(far, 0, amount).astype(dtype)
        found = (a << small) if left else (a >> small)
        beyond = np.asarray(a) >> dtype.type(width - 1) if signed and not left else dtype.type(0)
        return np.where(far, beyond, found)

    built = elementwise(decoder, GROUP, lambda a, b: shifted(a, np.asarray(b)), kind, (kind, "u32"))
    amount = decoder.operand(2)
    if not isinstance(amount, Number) or signed:
        return built
    low, high = amount.value // 8, -(-amount.value // 8)
    whole = np.uint16((1 << width // 8) - 1)

    def moved(masks: list[Array]) -> Array:
        mask = masks[0].astype(np.uint16) & whole
        spread = (mask << low | mask << high) if left else (mask >> low | mask >> high)
        return (spread & whole).astype(np.uint8)

    return bytewise(decoder, built, moved) if amount.value < width else built


@instruction("shf")
def funnel(decoder: Decoder) -> Built:
    """Shifts of the 64 bits ``{b, a}``; `wrap` takes the amount modulo 32, `clamp` at most 32."""
    decoder.type()
    left = decoder.one_of("l", "r") == "l"
    wrap = decoder.one_of("wrap", "clamp") == "wrap"

    def shifted(a: Any, b: Any, c: Any) -> Any:
        both = (np.asarray(b).astype(np.uint64) << np.uint64(32)) | np.asarray(a).astype(np.uint64)
        amount = np.asarray(c).astype(np.uint64)
        amount = amount & np.uint64(31) if wrap else np.minimum(amount, np.uint64(32))
        found = (both << amount) >> np.uint64(32) if left else both >> amount
        return (found & np.uint64(0xFFFFFFFF)).astype(np.uint32)

    return elementwise(decoder, GROUP, shifted, "b32", ("b32", "b32", "u32"))


@instruction("bfe")
def extract(decoder: Decoder) -> Built:
    """`c` bits of `a` from bit `b`, extended by the sign of the field's top bit, or of the value's beyond its end."""
    kind = decoder.type()
    width, signed = WIDTHS[kind], kind in SIGNED
    unsigned = CONTAINERS[width].type

    def field(a: Any, start: Any, length: Any) -> Any:
        at, count = np.asarray(start).astype(np.int64) & 0xFF, np.asarray(length).astype(np.int64) & 0xFF
        raw = np.asarray(a).view(unsigned)
        moved = np.where(at >= width, unsigned(0), raw >> np.minimum(at, width - 1).astype(unsigned))
        mask = low_bits(np.minimum(count, np.maximum(width - at, 0)), width)
        if not signed:
            return moved & mask
        top = np.clip(at + count - 1, 0, width - 1).astype(unsigned)
        sign = ((raw >> top) & unsigned(1)) * (count > 0).astype(unsigned)
        return (moved & mask) | np.where(sign == 1, ~mask, unsigned(0))

    return elementwise(decoder, GROUP, field, kind, (kind, "u32", "u32"))


def low_bits(count: Array, width: int) -> Array:
    """A mask of so many low bits, 0 to `width`."""
    unsigned = CONTAINERS[width].type
    ones = (unsigned(1) << np.minimum(count, width - 1).astype(unsigned)) - unsigned(1)
    return np.asarray(np.where(count >= width, ~unsigned(0), ones))


@instruction("bfi")
def insert(decoder: Decoder) -> Built:
    """The low `d` bits of `a` put into `b` at bit `c`."""
    kind = decoder.type()
    width = WIDTHS[kind]
    unsigned = CONTAINERS[width].type

    def field(a: Any, b: Any, start: Any, length: Any) -> Any:
        at, count = np.asarray(start).astype(np.int64) & 0xFF, np.asarray(length).astype(np.int64) & 0xFF
        ones = low_bits(count, width)
        small = np.minimum(at, width - 1).astype(unsigned)
        mask = np.where(at >= width, unsigned(0), ones << small)
        return (b & ~mask) | ((a << small) & mask)

    built = elementwise(decoder, GROUP, field, kind, (kind, kind, "u32", "u32"))
    start, length = (decoder.operand(number) for number in (3, 4))
    registers = [isinstance(operand, Name) for operand in decoder.operands[1:3]]
    if not (isinstance(start, Number) and isinstance(length, Number)) or len(decoder.reads) != sum(registers):
        return built
    low, high = start.value, min(start.value + length.value, width)

    def put(masks: list[Array]) -> Array:
        sources = iter(masks)
        given, kept = [next(sources) if is_register else np.zeros(1, np.uint8) for is_register in registers]
        found: Any = np.uint8(0)
        for byte in range(width // 8):
            first, last = max(low, 8 * byte), min(high, 8 * byte + 8)  # its bits that are of `a`
            undefined: Any = (kept >> byte) & 1 if last - first < 8 else np.uint8(0)
            for source in range((first - low) // 8, (last - 1 - low) // 8 + 1) if first < last else ():
                undefined = undefined | ((given >> source) & 1)
            found = found | (undefined << byte)
        return np.asarray(found, np.uint8)

    return bytewise(decoder, built, put)


@instruction("bmsk")
def mask_of_bits(decoder: Decoder) -> Built:
    wrap = decoder.one_of("clamp", "wrap") == "wrap"
    kind = decoder.type()

    def mask(a: Any, b: Any) -> Any:
        at, count = (np.asarray(each).astype(np.uint64) for each in (a, b))
        if wrap:
            at, count = at & np.uint64(31), count & np.uint64(31)
        at, count = np.minimum(at, np.uint64(32)), np.minimum(count, np.uint64(32))
        one = np.uint64(1)
        return ((((one << count) - one) << at) & np.uint64(0xFFFFFFFF)).astype(np.uint32)

    return elementwise(decoder, GROUP, mask, kind, ("u32", "u32"))


@instruction("szext")
def extend(decoder: Decoder) -> Built:
    """The low `b` bits, extended by sign or with zeros."""
    wrap = decoder.one_of("clamp", "wrap") == "wrap"
    kind = decoder.type()

    def extended(a: Any, b: Any) -> Any:
        count = np.asarray(b).astype(np.int64)
        count = count & 31 if wrap else np.minimum(count, 32)
        value = np.asarray(a).view(np.uint32).astype(np.int64)
        low = value & ((np.int64(1) << count) - 1)
        if kind == "s32":
            low = np.where(
                (count > 0) & ((low >> np.maximum(count - 1, 0)) & 1 == 1), low - (np.int64(1) << count), low
            )
        return low.astype(np.int32).view(np.uint32)

    return elementwise(decoder, GROUP, extended, kind, (kind, "u32"))


@instruction("brev")
def reverse(decoder: Decoder) -> Built:
    kind = decoder.type()
    return elementwise(decoder, GROUP, lambda a: reversed_bits(np.asarray(a)), kind, (kind,))


def reversed_bits(values: Array) -> Array:
    raw = np.atleast_1d(values)
    parts = np.unpackbits(raw.view(np.uint8).reshape(len(raw), -1), axis=1, bitorder="little")
    return np.packbits(parts[:, ::-1], axis=1, bitorder="little").view(raw.dtype)[:, 0].reshape(values.shape)


@instruction("popc")
def count_bits(decoder: Decoder) -> Built:
    kind = decoder.type()
    return elementwise(decoder, GROUP, lambda a: popcount(np.asarray(a)), "u32", (kind,))


@instruction("clz")
def leading_zeros(decoder: Decoder) -> Built:
    kind = decoder.type()
    width = WIDTHS[kind]
    return elementwise(decoder, GROUP, lambda a: (width - 1 - top_bit(a)).astype(np.uint32), "u32", (kind,))


def top_bit(values: Any) -> Array:
    """The number of the highest set bit, -1 for zero."""
    left = np.asarray(values).astype(np.uint64)
    found = np.where(left == 0, -1, 0).astype(np.int64)
    for step in (32, 16, 8, 4, 2, 1):
        high = left >> np.uint64(step)
        move = high != 0
        found = found + np.where(move, step, 0)
        left = np.where(move, high, left)
    return found


@instruction("bfind")
def find_bit(decoder: Decoder) -> Built:
    """The highest bit that differs from the sign; `shiftamt` gives the shift that brings it to the top."""
    distance = decoder.flag("shiftamt")
    kind = decoder.type()
    width = WIDTHS[kind]

    def found(a: Any) -> Any:
        values = np.where(np.asarray(a) < 0, ~np.asarray(a), a) if kind in SIGNED else a
        top = top_bit(np.asarray(values).view(CONTAINERS[width]))
        if distance:
            top = np.where(top < 0, -1, width - 1 - top)
        return top.astype(np.int32).view(np.uint32)

    return elementwise(decoder, GROUP, found, "u32", (kind,))


@instruction("fns")
def nth_bit(decoder: Decoder) -> Built:
    """The position of the n-th set bit from a base."""
    decoder.type()

    def found(mask: Any, base: Any, offset: Any) -> Any:
        masks, bases, offsets = np.broadcast_arrays(*(np.atleast_1d(each) for each in (mask, base, offset)))
        result = np.full(masks.shape, 0xFFFFFFFF, np.uint32)
        for place in range(masks.size):
            word, start, count = int(masks[place]), int(bases[place]), int(np.int32(offsets[place]))
            steps = range(start, 32) if count >= 0 else range(start, -1, -1)
            bits = [bit for bit in steps if word >> bit & 1]
            wanted = abs(count) - 1
            if count == 0:
                bits = [start] if word >> start & 1 else []
                wanted = 0
            if wanted < len(bits):
                result[place] = bits[wanted]
        return result

    return elementwise(decoder, GROUP, found, "b32", ("b32", "b32", "s32"))


_PRMT_MODES = ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")


@instruction("prmt")
def permute(decoder: Decoder) -> Built:
    """Four bytes chosen from the eight of `a` and `b`; bit 3 of a choice replicates the byte's sign."""
    decoder.type()
    mode = decoder.one_of(*_PRMT_MODES, default="")

    def chosen(a: Any, b: Any, control: Any) -> Any:
        both = np.asarray(a).astype(np.uint64) | (np.asarray(b).astype(np.uint64) << np.uint64(32))
        which = np.asarray(control).astype(np.uint64)
        found: Any = np.uint64(0)
        for byte in range(4):
            if mode:
                select = _special_selection(mode, byte, which & np.uint64(3))
            else:
                select = (which >> np.uint64(4 * byte)) & np.uint64(15)
            value = (both >> ((select & np.uint64(7)) * np.uint64(8))) & np.uint64(0xFF)
            sign = np.where(value & np.uint64(0x80), np.uint64(0xFF), np.uint64(0))
            found = found | (np.where(select & np.uint64(8), sign, value) << np.uint64(8 * byte))
        return np.asarray(found).astype(np.uint32)

    built = elementwise(decoder, GROUP, chosen, "b32", ("b32", "b32", "b32"))
    control = decoder.operand(3)
    registers = [isinstance(operand, Name) for operand in decoder.operands[1:3]]
    if mode or not isinstance(control, Number):
        return built

    def selected(masks: list[Array]) -> Array:
        sources = iter(masks)
        both = [next(sources) if is_register else np.zeros(1, np.uint8) for is_register in registers]
        found: Any = np.uint8(0)
        for byte in range(4):
            select = control.value >> 4 * byte & 7
            found = found | ((both[select // 4] >> (select % 4) & 1) << byte)
        return np.asarray(found, np.uint8)

    return bytewise(decoder, built, selected) if len(decoder.reads) == sum(registers) else built


def _special_selection(mode: str, byte: int, control: Array) -> Array:
    at = control.astype(np.int64)
    table = {
        "f4e": at + byte, "b4e": (at - byte) & 7, "rc8": at, "ecl": np.maximum(at, byte), "ecr": np.minimum(at, byte),
        "rc16": 2 * (at & 1) + byte % 2,
    }  # fmt: skip
    return np.asarray(table[mode]).astype(np.uint64)
