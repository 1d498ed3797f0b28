"""Barriers of warps, blocks and clusters, and fences."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.emulator.barriers import BARRIERS
from tilewright.emulator.decode import Decoder
from tilewright.emulator.isa.table import Built, instruction, whole_warps
from tilewright.emulator.isa.warp import member_mask
from tilewright.emulator.lanes import Lanes
from tilewright.emulator.scalars import Array

GROUP = "synchronise"


@instruction("bar", "barrier")
def barrier(decoder: Decoder) -> Built:
    if decoder.flag("warp"):
        return _warp_barrier(decoder)
    if decoder.flag("cluster"):
        return _cluster_barrier(decoder)
    decoder.flag("cta")
    aligned = decoder.flag("aligned") or decoder.name == "bar"
    what = decoder.one_of("sync", "arrive", "red")
    if what == "red":
        return _reducing_barrier(decoder, aligned)
    given = decoder.count(1, 2)
    number = decoder.get(0, "u32")
    count = decoder.get(1, "u32") if given == 2 else None
    if what == "arrive" and count is None:
        raise decoder.error("arrive needs a number of threads")

    def control(lanes: Lanes, scheduler: Any, at: int) -> int | None:
        numbers, counts = _checked(lanes, number(lanes), None if count is None else count(lanes))
        passes = lanes.state.barriers.arrive(lanes, scheduler, at, numbers, counts, what == "sync")
        return at + 1 if passes else None

    return Built(group=GROUP, control=control, meeting=whole_warps if aligned else None)


def _checked(lanes: Lanes, numbers: Any, counts: Any) -> tuple[Array, Array | None]:
    numbers = np.broadcast_to(np.asarray(numbers).astype(np.int64), (lanes.count,))
    if (numbers >= BARRIERS).any():
        lanes.report("bad-operand", f"barrier {int(numbers.max())}, there are {BARRIERS}")
        numbers = numbers % BARRIERS
    if counts is None:
        return numbers, None
    counts = np.broadcast_to(np.asarray(counts).astype(np.int64), (lanes.count,))
    if (counts % 32).any() or (counts == 0).any():
        lanes.report("bad-operand", f"a barrier for {int(counts[0])} threads, which are no whole warps")
    return numbers, counts


def _reducing_barrier(decoder: Decoder, aligned: bool) -> Built:
    """All threads learn how many, whether all, or whether any of them hold a predicate."""
    operation = decoder.one_of("popc", "and", "or")
    kind = decoder.type()
    given = decoder.count(3, 4)
    put, number = decoder.put(0, kind), decoder.get(1, "u32")
    count = decoder.get(2, "u32") if given == 4 else None
    get = decoder.get(given - 1, "pred")
    slots = tuple(decoder.reads)

    def control(lanes: Lanes, scheduler: Any, at: int) -> int | None:
        state = lanes.state
        lanes.require(slots, "a reduction over the block")
        votes = state.extra.setdefault("votes", np.zeros(state.size, np.bool_))
        votes[lanes.index] = get(lanes)
        step = lanes.step

        def finish(positions: Array) -> None:
            found: Any = {"popc": votes[positions].sum(), "and": votes[positions].all(), "or": votes[positions].any()}
            value = found[operation]
            every = Lanes(state, np.sort(positions), len(positions), step)
            put(every, np.uint32(value) if operation == "popc" else np.bool_(value))
            every.define(step.writes)

        numbers, counts = _checked(lanes, number(lanes), None if count is None else count(lanes))
        passes = state.barriers.arrive(lanes, scheduler, at, numbers, counts, True, finish)
        return at + 1 if passes else None

    return Built(group=GROUP, control=control, meeting=whole_warps if aligned else None, own_taint=True)


def _warp_barrier(decoder: Decoder) -> Built:
    """Lanes of a mask meet, and memory accesses before are ordered with those after."""
    if not decoder.flag("sync"):
        raise decoder.error("needs .sync")
    decoder.count(1)
    mask = decoder.get(0, "b32")

    def run(lanes: Lanes) -> None:
        state = lanes.state
        masks = member_mask(lanes, mask)
        positions = lanes.positions()
        warps = state.warp_of[positions]
        full = np.unique(warps[masks == 0xFFFFFFFF])
        if len(full):
            state.clocks.warp_barrier(full)
        partial = masks != 0xFFFFFFFF
        if partial.any():
            keys = warps[partial].astype(np.int64) << 32 | masks[partial]
            for key in np.unique(keys):
                members = positions[partial][keys == key]
                own = members % state.threads
                state.clocks.meet(int(members[0] // state.threads), own, own)

    return Built(run, GROUP, meeting=lambda lanes: np.asarray(mask(lanes)).astype(np.uint32))


def _cluster_barrier(decoder: Decoder) -> Built:
    what = decoder.one_of("arrive", "wait")
    decoder.flag("release", "relaxed", "acquire")
    aligned = decoder.flag("aligned")
    decoder.count(0)

    def control(lanes: Lanes, scheduler: Any, at: int) -> int | None:
        barriers = lanes.state.barriers
        if what == "arrive":
            barriers.cluster_arrive(lanes, scheduler)
            return at + 1
        passed = barriers.cluster_passed(lanes)
        if passed.all():
            return at + 1
        positions = lanes.positions()
        scheduler.sleep(at, positions[~passed])
        scheduler.push(at + 1, positions[passed])
        return None

    return Built(group=GROUP, control=control, meeting=whole_warps if aligned else None)


@instruction("membar", "fence")
def fence(decoder: Decoder) -> Built:
    """Order between accesses; ``fence.proxy.async`` makes what a thread wrote visible to copy engines and products."""
    proxies, initial = decoder.flag("proxy"), decoder.flag("mbarrier_init")
    asynchronous = [name for name in decoder.modifiers if name == "async" or name.startswith("async::")]
    decoder.modifiers.clear()
    if not proxies and not initial:
        return Built(_fence_threads, GROUP)
    if not asynchronous:
        return Built(lambda lanes: None, GROUP)

    def run(lanes: Lanes) -> None:
        lanes.state.fenced_at[lanes.index] = lanes.state.clocks.now

    return Built(run, GROUP)


def _fence_threads(lanes: Lanes) -> None:
    if lanes.state.releases is not None:
        lanes.state.releases.fence(lanes)
