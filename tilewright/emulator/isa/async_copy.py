"""Asynchronous copies of single threads (`cp.async`) and their groups; bulk copies are in `bulk`."""

from __future__ import annotations

import numpy as np

from tilewright.emulator import spaces
from tilewright.emulator.decode import Decoder
from tilewright.emulator.isa import bulk
from tilewright.emulator.isa.load_store import hints
from tilewright.emulator.isa.table import Built, instruction
from tilewright.emulator.lanes import Lanes
from tilewright.emulator.spaces import NAMES

GROUP = "asynchronous copy"


@instruction("cp")
def copy(decoder: Decoder) -> Built:
    if decoder.flag("reduce"):
        return bulk.bulk_copy(decoder, reduces=True)
    if not decoder.flag("async"):
        raise decoder.error("is not emulated")
    if decoder.flag("bulk"):
        return bulk.bulk_copy(decoder, reduces=False)
    if decoder.flag("mbarrier"):
        return bulk.arrive_when_copied(decoder)
    if decoder.flag("commit_group"):
        decoder.count(0)
        return Built(lambda lanes: lanes.state.copies.commit(lanes), GROUP)
    if decoder.flag("wait_group"):
        decoder.count(1)
        left = decoder.integer(0)
        return Built(lambda lanes: lanes.state.copies.wait(lanes, left), GROUP)
    if decoder.flag("wait_all"):
        decoder.count(0)
        return Built(lambda lanes: lanes.state.copies.wait(lanes, None), GROUP)
    return _copy_to_shared(decoder)


def _copy_to_shared(decoder: Decoder) -> Built:
    """4, 8 or 16 bytes from global to shared memory; bytes beyond the source size are zeros."""
    through = decoder.one_of("ca", "cg")
    for name in [name for name in decoder.modifiers if name in NAMES]:
        decoder.modifiers.remove(name)
    hints(decoder)
    given = decoder.count(3, 5)
    size = decoder.integer(2)
    if size not in (4, 8, 16) or (through == "cg" and size != 16):
        raise decoder.error(f"copies of {size} bytes do not exist")
    target, _, _ = decoder.address(0)
    source, _, _ = decoder.address(1)
    before = len(decoder.reads)
    is_predicate = given > 3 and decoder.is_predicate(3)
    ignored = decoder.get(3, "pred") if is_predicate else None
    length = decoder.get(3, "u32") if given > 3 and not is_predicate else None
    length_slots = tuple(decoder.reads[before:])
    width = min(size, 8)

    def run(lanes: Lanes) -> None:
        lanes.require(length_slots, "the size of a copy")
        shared = lanes.state.shared
        offsets, good = shared.place(lanes, np.asarray(target(lanes)), size, "copies", stays=False)
        addresses = np.asarray(source(lanes))
        taken = np.full(lanes.count, size, np.int64)
        if length is not None:
            taken = np.broadcast_to(np.asarray(length(lanes)).astype(np.int64), (lanes.count,))
            if (taken > size).any():
                wrong = np.flatnonzero(taken > size)
                lanes.report("bad-operand", f"copies {int(taken[wrong[0]])} of {size} bytes", wrong)
        elif ignored is not None:
            taken = np.where(ignored(lanes), 0, size)
        values = np.zeros((lanes.count, size), np.uint8)
        whole = taken >= size
        if whole.any():
            part = lanes if whole.all() else lanes.only(whole)
            words, _ = spaces.load(part, "global", addresses[whole], width, size // width)
            values[whole] = np.ascontiguousarray(words).view(np.uint8).reshape(-1, size)
        for count in np.unique(taken[(taken > 0) & ~whole]).tolist():
            chosen = taken == count
            part = lanes.only(chosen)
            for byte in range(count):
                values[chosen, byte], _ = spaces.load(part, "global", addresses[chosen] + byte, 1, 1)
        lanes.state.counts.bytes["shared_async_copy"] += size * lanes.count
        if whole.any():
            warps = lanes.state.warp_of[lanes.positions()[whole]]
            lanes.state.counts.shared_copy(lanes.step.place.line, warps, addresses[whole], size)
        numbers = np.arange(lanes.count) if good is None else np.flatnonzero(good)
        if len(numbers):
            lanes.state.copies.issue(lanes, numbers, offsets[numbers], values[numbers])

    return Built(run, GROUP)
