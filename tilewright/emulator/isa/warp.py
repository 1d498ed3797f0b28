"""What lanes of a warp do together: shuffles, votes, matches, reductions, election."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.emulator.decode import Decoder, Get
from tilewright.emulator.isa.table import Built, instruction
from tilewright.emulator.lanes import Lanes
from tilewright.emulator.scalars import Array, numpy_type, popcount

GROUP = "warp"


def _members(get: Get) -> Any:
    """For `meeting`: the member mask that each thread gives."""
    return lambda lanes: np.asarray(get(lanes)).astype(np.uint32)


def member_mask(lanes: Lanes, get: Get) -> Array:
    """Member masks, after a check that the threads belong to their own."""
    masks = np.broadcast_to(np.asarray(get(lanes)).astype(np.uint32), (lanes.count,))
    own = (masks >> lanes.state.lane_of[lanes.index].astype(np.uint32)) & 1
    if not own.all():
        wrong = np.flatnonzero(own == 0)
        lanes.report("bad-operand", f"the member mask {int(masks[wrong[0]]):#x} lacks the thread itself", wrong)
    return masks


def over_warps(lanes: Lanes, values: Any, fill: Any) -> tuple[Array, Array]:
    """Values spread into (warps, 32), `fill` for other lanes; and the row of each lane."""
    positions = lanes.positions()
    warps, rows = np.unique(lanes.state.warp_of[positions], return_inverse=True)
    array = np.broadcast_to(np.asarray(values), (lanes.count,))
    table = np.full((len(warps), 32), fill, array.dtype)
    table[rows, lanes.state.lane_of[positions]] = array
    return table, rows


def bits_of(table: Array) -> Array:
    """Rows of 32 flags as words."""
    packed = np.packbits(table.reshape(-1, 4, 8), axis=-1, bitorder="little").reshape(-1, 4)
    return np.asarray(packed.view("<u4")[:, 0])


@instruction("shfl")
def shuffle(decoder: Decoder) -> Built:
    """A register of another lane; `p` says whether that lane is in range, otherwise the lane's own value."""
    if not decoder.flag("sync"):
        raise decoder.error("shfl without .sync is not emulated")
    mode = decoder.one_of("up", "down", "bfly", "idx")
    decoder.type()
    decoder.count(5)
    target, flag = decoder.pair(0)
    put = decoder.target(target, "b32")
    put_flag = decoder.target(flag, "pred") if flag is not None else None
    a, b, c = (decoder.get(number, "b32") for number in (1, 2, 3))
    source_slots = tuple(decoder.reads[:1])
    mask = decoder.get(4, "b32")
    writes = tuple(decoder.writes)

    def run(lanes: Lanes) -> None:
        masks = member_mask(lanes, mask)
        positions = lanes.positions()
        lane = lanes.state.lane_of[positions]
        offset = np.asarray(b(lanes)).astype(np.int64) & 31
        control = np.asarray(c(lanes)).astype(np.int64)
        clamp, segment = control & 31, (control >> 8) & 31
        top = (lane & segment) | (clamp & ~segment & 31)
        low = lane & segment
        if mode == "up":
            source = lane - offset
            valid = source >= top
        elif mode == "down":
            source = lane + offset
            valid = source <= top
        elif mode == "bfly":
            source = lane ^ offset
            valid = source <= top
        else:
            source = low | (offset & ~segment & 31)
            valid = source <= top
        source = np.where(valid, source, lane)
        values = np.broadcast_to(np.asarray(a(lanes)), (lanes.count,))
        table, rows = over_warps(lanes, values, 0)
        here, _ = over_warps(lanes, np.ones(lanes.count, np.bool_), False)
        absent = ~here[rows, source] | ((masks >> source.astype(np.uint32)) & 1 == 0)
        taint = lanes.undefined(source_slots) if lanes.state.undefined else None
        put(lanes, table[rows, source])
        if put_flag is not None:
            put_flag(lanes, valid)
        if lanes.state.undefined or absent.any():
            if taint is not None:
                spread, _ = over_warps(lanes, taint, False)
                absent |= spread[rows, source]
            lanes.define(writes[:1], absent)
            lanes.define(writes[1:])

    return Built(run, GROUP, meeting=_members(mask), own_taint=True)


@instruction("vote")
def vote(decoder: Decoder) -> Built:
    if not decoder.flag("sync"):
        raise decoder.error("vote without .sync is not emulated")
    mode = decoder.one_of("all", "any", "uni", "ballot")
    decoder.type()
    decoder.count(3)
    put = decoder.put(0, "b32" if mode == "ballot" else "pred")
    get, mask = decoder.get(1, "pred"), decoder.get(2, "b32")
    slots = tuple(decoder.reads)

    def run(lanes: Lanes) -> None:
        lanes.require(slots, "a vote")
        masks = member_mask(lanes, mask)
        table, rows = over_warps(lanes, get(lanes), False)
        ballot = bits_of(table)[rows]
        ballot = ballot & masks
        if mode == "ballot":
            put(lanes, ballot)
            return
        present, _ = over_warps(lanes, np.ones(lanes.count, np.bool_), False)
        there = bits_of(present)[rows]
        everyone = ballot == (masks & there)
        put(lanes, {"all": everyone, "any": ballot != 0, "uni": everyone | (ballot == 0)}[mode])

    return Built(run, GROUP, meeting=_members(mask))


@instruction("match")
def match(decoder: Decoder) -> Built:
    """Which lanes hold the same value; `all` gives a mask only if every lane does."""
    decoder.flag("sync")
    mode = decoder.one_of("any", "all")
    kind = decoder.type()
    decoder.count(3)
    target, flag = decoder.pair(0)
    put = decoder.target(target, "b32")
    put_flag = decoder.target(flag, "pred") if flag is not None else None
    get, mask = decoder.get(1, kind), decoder.get(2, "b32")

    def run(lanes: Lanes) -> None:
        masks = member_mask(lanes, mask)
        table, rows = over_warps(lanes, get(lanes), 0)
        present, _ = over_warps(lanes, np.ones(lanes.count, np.bool_), False)
        equal = (table[rows] == np.asarray(get(lanes)).reshape(-1, 1)) & present[rows]
        found = bits_of(equal) & masks
        if mode == "any":
            put(lanes, found)
            return
        there = bits_of(present[rows])
        everyone = found == (masks & there)
        put(lanes, np.where(everyone, masks, np.uint32(0)))
        if put_flag is not None:
            put_flag(lanes, everyone)

    return Built(run, GROUP, meeting=_members(mask))


@instruction("activemask")
def active_mask(decoder: Decoder) -> Built:
    decoder.type()
    put = decoder.put(0, "b32")

    def run(lanes: Lanes) -> None:
        present, rows = over_warps(lanes, np.ones(lanes.count, np.bool_), False)
        put(lanes, bits_of(present)[rows])

    return Built(run, GROUP)


_REDUCTIONS: dict[str, Any] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}  # fmt: skip


@instruction("redux")
def reduce(decoder: Decoder) -> Built:
    """One result over the member lanes."""
    decoder.flag("sync")
    operation = decoder.one_of(*_REDUCTIONS)
    absolute, nan = decoder.flag("abs"), decoder.flag("NaN")
    kind = decoder.type()
    decoder.count(3)
    put, get, mask = decoder.put(0, kind), decoder.get(1, kind), decoder.get(2, "b32")
    function = _REDUCTIONS[operation]
    if kind == "f32" and not nan:
        function = np.fmin if operation == "min" else np.fmax
    slots = tuple(decoder.reads)

    def run(lanes: Lanes) -> None:
        lanes.require(slots, "a reduction over the warp")
        masks = member_mask(lanes, mask)
        values = np.asarray(get(lanes))
        table, rows = over_warps(lanes, np.abs(values) if absolute else values, 0)
        result = np.zeros(lanes.count, numpy_type(kind))
        keys = rows.astype(np.int64) << 32 | masks
        for key in np.unique(keys):
            chosen = keys == key
            row, members = int(key >> 32), int(key & 0xFFFFFFFF)
            inside = [lane for lane in range(32) if members >> lane & 1]
            with_lanes = np.isin(inside, lanes.state.lane_of[lanes.positions()[rows == row]])
            result[chosen] = function.reduce(table[row, np.array(inside)[with_lanes]])
        put(lanes, result)

    return Built(run, GROUP, meeting=_members(mask))


@instruction("elect")
def elect(decoder: Decoder) -> Built:
    """The predicate is true in the lowest member lane; `d` is that lane."""
    decoder.flag("sync")
    decoder.count(2)
    target, flag = decoder.pair(0)
    put = decoder.target(target, "b32")
    put_flag = decoder.target(flag, "pred") if flag is not None else None
    mask = decoder.get(1, "b32")

    def run(lanes: Lanes) -> None:
        masks = member_mask(lanes, mask)
        present, rows = over_warps(lanes, np.ones(lanes.count, np.bool_), False)
        there = bits_of(present)[rows]
        members = masks & there
        leader = popcount((members & (~members + np.uint32(1))) - np.uint32(1))
        put(lanes, leader.astype(np.uint32))
        if put_flag is not None:
            put_flag(lanes, leader == lanes.state.lane_of[lanes.index])

    return Built(run, GROUP, meeting=_members(mask))
