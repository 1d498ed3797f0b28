"""Atomic operations on global and shared memory; threads of one instruction take turns in their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.emulator import spaces
from tilewright.emulator.decode import Decoder
from tilewright.emulator.isa.load_store import effective, hints, ordering, space_of
from tilewright.emulator.isa.table import Built, instruction
from tilewright.emulator.lanes import Lanes
from tilewright.emulator.memory import Bytes
from tilewright.emulator.rounding import from_bf16, to_bf16
from tilewright.emulator.scalars import WIDTHS, Array, numpy_type

Update = Callable[[Any, Any], Any]


def _wrap_up(old: Any, limit: Any) -> Any:
    return np.where(old >= limit, old.dtype.type(0), old + old.dtype.type(1))


def _wrap_down(old: Any, limit: Any) -> Any:
    return np.where((old == 0) | (old > limit), limit, old - old.dtype.type(1))


_UPDATES: dict[str, Update] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "exch": lambda old, new: new, "inc": _wrap_up, "dec": _wrap_down,
}  # fmt: skip
_AT_ONCE = ("add", "min", "max", "and", "or", "xor")  # ufuncs that can accumulate without giving old values
_PAIRS = {"f16x2": np.float16, "bf16x2": np.uint16}


@instruction("atom", "red")
def atomic(decoder: Decoder) -> Built:
    gives = decoder.name == "atom"
    if decoder.flag("async"):
        raise decoder.error("red.async is not emulated")
    order = ordering(decoder) or "relaxed"
    space = space_of(decoder)
    operation = decoder.one_of(*_UPDATES, "cas")
    hints(decoder)
    decoder.flag("noftz")
    vector = int(decoder.one_of("v2", "v4", "v8", default="v1")[1:])
    kind = decoder.type()
    first = 1 if gives else 0
    targets = decoder.items(0) if gives else ()
    puts = [decoder.target(target, f"b{WIDTHS[kind]}") for target in targets]
    writes = tuple(decoder.writes)
    address, _, found = decoder.address(first)
    space = effective(decoder, space, found)
    before = len(decoder.reads)
    groups = [[decoder.value(item, kind) for item in decoder.items(first + 1)]]
    if operation == "cas":
        groups.append([decoder.value(item, kind) for item in decoder.items(first + 2)])
    values_read = tuple(decoder.reads[before:])
    if any(len(group) != vector for group in groups) or (gives and len(puts) != vector):
        raise decoder.error(f"operands are not vectors of {vector}")
    width = WIDTHS[kind] // 8

    def run(lanes: Lanes) -> None:
        lanes.require(values_read, "an operand of an atomic operation")
        where = np.asarray(address(lanes))
        for number in range(vector):
            operands = [np.broadcast_to(np.asarray(group[number](lanes)), (lanes.count,)) for group in groups]
            old = np.zeros(lanes.count, operands[0].dtype)
            pieces = (
                spaces.parts(lanes, where) if space == "generic" else [(lanes, np.arange(lanes.count), space, where)]
            )
            for part, chosen, inner, own in pieces:
                memory = part.state.shared if inner == "shared" else part.state.memory
                if inner == "local":
                    part.report("bad-operand", "an atomic operation on local memory")
                    continue
                offsets, kept = memory.atomic(part, own + number * width, width)
                if inner == "shared" and part.state.releases is not None:
                    positions = part.positions()[kept]
                    part.state.releases.read(positions, offsets, order)
                    part.state.releases.write(positions, offsets, order)
                if len(kept):
                    mine = [operand[chosen][kept] for operand in operands]
                    result = apply(memory.bytes, offsets, width, operation, kind, mine, gives=gives and bool(writes))
                    if result is not None:
                        whole = np.zeros(len(chosen), old.dtype)
                        whole[kept] = result
                        old[chosen] = whole
            if gives:
                puts[number](lanes, old)
        lanes.define(writes)

    return Built(run, "atomic", own_taint=True)


def apply(
    memory: Bytes, offsets: Array, width: int, operation: str, kind: str, operands: list[Array], *, gives: bool
) -> Array | None:
    """Performs the operations one after the other per address; returns the old values where they are wanted."""
    dtype = numpy_type(kind)
    view = memory.data[: len(memory.data) // width * width].view(dtype)
    index = offsets // width
    update = _update(operation, kind)
    plain = kind not in _PAIRS and kind != "bf16"
    if not gives and operation in _AT_ONCE and plain:
        update.at(view, index, operands[0])  # type: ignore[attr-defined]
        return None
    old = np.empty(len(index), dtype)
    for turn in _turns(index):
        before = view[index[turn]]
        old[turn] = before
        if operation == "cas":
            raw = before.view(operands[0].dtype)
            view[index[turn]] = np.where(raw == operands[0][turn], operands[1][turn], raw)
        else:
            view[index[turn]] = update(before, operands[0][turn])
    return old


def _turns(index: Array) -> list[Array]:
    """Positions so that no address occurs twice in a turn, and earlier threads come first."""
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    if len(starts) == len(index):
        return [np.arange(len(index))]
    rank = np.arange(len(index)) - np.repeat(starts, np.diff(np.append(starts, len(index))))
    by_rank = np.argsort(rank, kind="stable")
    borders = np.flatnonzero(np.diff(rank[by_rank])) + 1
    return [np.sort(order[part]) for part in np.split(by_rank, borders)]


def _update(operation: str, kind: str) -> Update:
    """The new value from the old one and the operand, in registers' form."""
    update = _UPDATES.get(operation, np.add)
    if kind == "bf16":
        return lambda old, new: to_bf16(update(from_bf16(old), from_bf16(new)))
    if kind in _PAIRS:

        def pairs(old: Any, new: Any) -> Array:
            first, second = (np.ascontiguousarray(each).view(_PAIRS[kind]) for each in (old, new))
            if kind == "bf16x2":
                return to_bf16(update(from_bf16(first), from_bf16(second))).view(np.uint32)
            return np.ascontiguousarray(update(first, second)).view(np.uint32)

        return pairs
    return update
