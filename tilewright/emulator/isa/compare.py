"""Comparisons, selections and moves of values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.emulator.decode import Decoder
from tilewright.emulator.isa.table import Built, bytewise, elementwise, instruction
from tilewright.emulator.lanes import Lanes
from tilewright.emulator.rounding import flush, from_bf16
from tilewright.emulator.scalars import CONTAINERS, WIDTHS, Array
from tilewright.emulator.syntax import Name

GROUP = "compare and select"
_FLOATS = ("f16", "bf16", "f32", "f64", "f16x2", "bf16x2")


def _unordered(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda a, b: function(a, b) | np.isnan(a) | np.isnan(b)


_ORDERED: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal, "ne": lambda a, b: np.not_equal(a, b) & ~(_nan(a) | _nan(b)), "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal, "hi": np.greater,
    "hs": np.greater_equal,
}  # fmt: skip
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    **_ORDERED,
    **{f"{name}u": _unordered(_ORDERED[name]) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "nan": lambda a, b: np.isnan(a) | np.isnan(b),
}
_COMBINES: dict[str, Callable[[Any, Any], Any]] = {
    "and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor
}  # fmt: skip


def _nan(value: Any) -> Any:
    array = np.asarray(value)
    return np.isnan(array) if array.dtype.kind == "f" else np.zeros(array.shape, np.bool_)


def _comparison(decoder: Decoder, kind: str) -> Callable[[Any, Any], Any]:
    """Compares values, or each half of pairs (last axis 2)."""
    compare = _COMPARISONS[decoder.one_of(*_COMPARISONS)]
    flushes = decoder.flag("ftz")

    def compared(a: Any, b: Any) -> Any:
        if kind in ("f16x2", "bf16x2"):
            a, b = (np.ascontiguousarray(np.atleast_1d(each)).view(np.uint16).reshape(-1, 2) for each in (a, b))
            if kind == "f16x2":
                a, b = a.view(np.float16), b.view(np.float16)
        if kind in ("bf16", "bf16x2"):
            a, b = from_bf16(a), from_bf16(b)
        elif flushes and kind == "f32":
            a, b = flush(a), flush(b)
        return compare(a, b)

    return compared


@instruction("setp")
def set_predicates(decoder: Decoder) -> Built:
    """``p|q = a <cmp> b``, combined with a third operand; `q` is the complement, or the upper half of pairs."""
    kind = decoder.type()
    compare = _comparison(decoder, kind)
    combine = _COMBINES.get(decoder.one_of(*_COMBINES, default=""))
    decoder.count(4 if combine else 3)
    first, second = decoder.pair(0)
    put = decoder.target(first, "pred")
    put_other = decoder.target(second, "pred") if second is not None else None
    a, b = decoder.get(1, kind), decoder.get(2, kind)
    c = decoder.get(3, "pred") if combine else None

    def run(lanes: Lanes) -> None:
        found = compare(a(lanes), b(lanes))
        if kind in ("f16x2", "bf16x2"):
            one, other = found[:, 0], found[:, 1]
        else:
            one, other = found, ~found
        if combine is not None and c is not None:
            extra = c(lanes)
            one, other = combine(one, extra), combine(other, extra)
        put(lanes, one)
        if put_other is not None:
            put_other(lanes, other)

    return Built(run, GROUP)


@instruction("set")
def set_values(decoder: Decoder) -> Built:
    """A comparison as a number: all ones or 1.0 where it holds."""
    names = [name for name in decoder.modifiers if name in WIDTHS]
    result, kind = decoder.types(2)
    assert [result, kind] == names, "types keep their order"
    compare = _comparison(decoder, kind)
    combine = _COMBINES.get(decoder.one_of(*_COMBINES, default=""))
    one: Any = {"f16": 0x3C00, "bf16": 0x3F80, "f32": 0x3F800000, "f16x2": 0x3C00, "bf16x2": 0x3F80}.get(result)
    pairs = result in ("f16x2", "bf16x2") or kind in ("f16x2", "bf16x2")
    container = CONTAINERS[16 if pairs else WIDTHS[result]]
    value = container.type(one if one is not None else (1 << 8 * container.itemsize) - 1)

    def found(a: Any, b: Any, *rest: Any) -> Any:
        holds = compare(a, b)
        if combine is not None:
            holds = combine(holds, rest[0])
        words = np.where(holds, value, container.type(0))
        return np.ascontiguousarray(words).view(np.uint32)[..., 0] if pairs else words

    kinds = (kind, kind, "pred") if combine else (kind, kind)
    return elementwise(decoder, GROUP, found, result, kinds)


@instruction("selp")
def select(decoder: Decoder) -> Built:
    """``c ? a : b``; only the chosen operand has to be defined."""
    kind = decoder.type()
    raw = f"b{WIDTHS[kind]}" if kind != "pred" else "pred"
    decoder.count(4)
    put = decoder.put(0, raw)
    a = decoder.get(1, kind)
    reads_a = tuple(decoder.reads)
    b = decoder.get(2, kind)
    reads_b = tuple(decoder.reads[len(reads_a) :])
    c = decoder.get(3, "pred")
    reads_c = tuple(decoder.reads[len(reads_a) + len(reads_b) :])
    writes = tuple(decoder.writes)

    def run(lanes: Lanes) -> None:
        chosen = c(lanes)
        known = lanes.state.undefined
        taint: Array | None = None
        if known and not known.keys().isdisjoint((*reads_a, *reads_b, *reads_c)):
            left, right, which = (lanes.undefined(reads) for reads in (reads_a, reads_b, reads_c))
            no = np.zeros(lanes.count, np.bool_)
            taint = np.where(chosen, no if left is None else left, no if right is None else right)
            taint = taint if which is None else taint | which
        put(lanes, np.where(chosen, a(lanes), b(lanes)))
        if known:
            lanes.define(writes, taint if taint is not None and taint.any() else None)

    return Built(run, GROUP, own_taint=True)


@instruction("slct")
def select_by_sign(decoder: Decoder) -> Built:
    """``c >= 0 ? a : b``."""
    flushes = decoder.flag("ftz")
    kind, sign = decoder.types(2)

    def chosen(a: Any, b: Any, c: Any) -> Any:
        return np.where((flush(c) if flushes and sign == "f32" else c) >= 0, a, b)

    return elementwise(decoder, GROUP, chosen, kind, (kind, kind, sign))


@instruction("mov")
def move(decoder: Decoder) -> Built:
    """A value, the address of a variable, or pieces of a register put together or taken apart."""
    kind = decoder.type()
    decoder.count(2)
    targets, sources = decoder.items(0), decoder.items(1)
    if len(targets) == len(sources) == 1:
        raw = kind if kind == "pred" else f"b{WIDTHS[kind]}"
        put, get = decoder.target(targets[0], raw), decoder.value(sources[0], kind)
        built = Built(lambda lanes: put(lanes, get(lanes)), "move")
        return bytewise(decoder, built, lambda masks: masks[0] if masks else np.zeros(1, np.uint8))
    width = WIDTHS[kind]
    if len(sources) > 1:
        part = width // len(sources)
        if part not in CONTAINERS or len(targets) > 1:
            raise decoder.error(f"{len(sources)} parts of {width} bits")
        gets = [decoder.value(source, f"b{part}") for source in sources]
        put = decoder.target(targets[0], f"b{width}")
        container = CONTAINERS[width].type

        def pack(lanes: Lanes) -> None:
            found: Any = container(0)
            for number, get in enumerate(gets):
                found = found | (np.asarray(get(lanes)).astype(container) << container(number * part))
            put(lanes, found)

        registers = [isinstance(source, Name) for source in sources]

        def packed(masks: list[Array]) -> Array:
            given, together = iter(masks), np.zeros(1, np.uint16)
            for number, is_register in enumerate(registers):
                if is_register:
                    own = next(given).astype(np.uint16) & np.uint16((1 << part // 8) - 1)
                    together = together | (own << np.uint16(number * part // 8))
            return together.astype(np.uint8)

        return bytewise(decoder, Built(pack, "move"), packed) if len(decoder.reads) == sum(registers) else Built(
            pack, "move")  # fmt: skip
    part = width // len(targets)
    if part not in CONTAINERS:
        raise decoder.error(f"{len(targets)} parts of {width} bits")
    puts = [decoder.target(target, f"b{part}") for target in targets]
    get = decoder.value(sources[0], f"b{width}")
    small = CONTAINERS[part]

    def unpack(lanes: Lanes) -> None:
        value = np.array(get(lanes))
        for number, put in enumerate(puts):
            put(lanes, (value >> value.dtype.type(number * part)).astype(small))

    whole, slots = tuple(decoder.reads), list(decoder.writes)
    numbers = [number for number, target in enumerate(targets) if not (isinstance(target, Name) and target.text == "_")]

    def spread(lanes: Lanes) -> None:
        mask = lanes.undefined_bytes(whole[0]) if whole else np.zeros(lanes.count, np.uint8)
        for slot, number in zip(slots, numbers, strict=True):
            lanes.define_bytes(slot, (mask >> np.uint8(number * part // 8)) & np.uint8((1 << part // 8) - 1))

    return Built(unpack, "move", taint=spread)
