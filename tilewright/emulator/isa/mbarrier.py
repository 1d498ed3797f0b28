"""`mbarrier`: arrivals and waits of threads, bytes expected from copies."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.emulator.decode import Decoder
from tilewright.emulator.isa.load_store import space_of
from tilewright.emulator.isa.table import Built, instruction
from tilewright.emulator.lanes import Lanes
from tilewright.emulator.memory import SHARED_BASE
from tilewright.emulator.scalars import Array

GROUP = "mbarrier"
_BYTES = 8
_PHASE = 32  # a state token: the phase above, the pending arrivals below


def places(lanes: Lanes, addresses: Array, verb: str = "uses", *, stays: bool = True) -> tuple[Array, Array]:
    """Offsets of mbarriers and the numbers of the lanes whose address is fine."""
    own = np.where(addresses >= SHARED_BASE, addresses - SHARED_BASE, addresses)
    offsets, good = lanes.state.shared.place(lanes, own, _BYTES, f"{verb} an mbarrier of", stays=stays)
    return offsets, np.arange(lanes.count) if good is None else np.flatnonzero(good)


@instruction("mbarrier")
def mbarrier(decoder: Decoder) -> Built:
    what = decoder.one_of("init", "inval", "arrive", "arrive_drop", "test_wait", "try_wait", "expect_tx", "complete_tx",
                          "pending_count")  # fmt: skip
    expects = decoder.flag("expect_tx") if what.startswith("arrive") else False
    parity = decoder.flag("parity")
    decoder.flag("noComplete")
    decoder.flag("release", "acquire", "relaxed", "cta", "cluster")
    if what != "pending_count":
        space_of(decoder)
    decoder.type()
    if what == "pending_count":
        put, get = decoder.put(0, "b32"), decoder.get(1, "b64")
        return Built(
            lambda lanes: put(lanes, (np.asarray(get(lanes)) & np.uint64(0xFFFFFFFF)).astype(np.uint32)), GROUP
        )
    if what in ("init", "inval"):
        return _make(decoder, what)
    if what in ("arrive", "arrive_drop"):
        return _arrive(decoder, expects, drop=what == "arrive_drop")
    if what in ("expect_tx", "complete_tx"):
        return _bytes(decoder, 1 if what == "expect_tx" else -1)
    return _wait(decoder, parity=parity, blocks=what == "try_wait")


def _make(decoder: Decoder, what: str) -> Built:
    address, _, _ = decoder.address(0)
    decoder.count(2 if what == "init" else 1)
    count = decoder.get(1, "u32") if what == "init" else None

    def run(lanes: Lanes) -> None:
        state = lanes.state
        offsets, good = places(lanes, np.asarray(address(lanes)))
        positions = lanes.positions()
        if count is None:
            for number in good.tolist():
                if state.mbarriers.all.pop(int(offsets[number]), None) is None:
                    lanes.report("mbarrier", "invalidates what is no mbarrier", number)
            return
        counts = np.broadcast_to(np.asarray(count(lanes)), (lanes.count,))
        for number in good.tolist():
            if not 0 < int(counts[number]) < 1 << 20:
                lanes.report("mbarrier", f"initialised with {int(counts[number])} arrivals", number)
                continue
            state.mbarriers.make(int(offsets[number]), int(counts[number]), int(positions[number]))
        if len(good):
            cells = state.shared.cells(offsets[good], _BYTES)
            state.shared.check_write(lanes, good, positions[good], offsets[good], cells, None)
            state.shared.note_write(state.clocks.column(positions[good]), cells, 0)

    return Built(run, GROUP)


def _arrive(decoder: Decoder, expects: bool, *, drop: bool) -> Built:
    """Arrivals, perhaps with bytes that copies will bring; the result is the state before."""
    has_result = not decoder.is_address(0)
    first = 1 if has_result else 0
    put = decoder.put(0, "b64") if has_result else None
    address, _, _ = decoder.address(first)
    given = decoder.count(first + 1, first + 2)
    amount = decoder.get(first + 1, "u32") if given == first + 2 else None

    def control(lanes: Lanes, scheduler: Any, at: int) -> int | None:
        state = lanes.state
        offsets, good = places(lanes, np.asarray(address(lanes)))
        amounts = np.ones(lanes.count, np.int64)
        if amount is not None:
            amounts = np.broadcast_to(np.asarray(amount(lanes)).astype(np.int64), (lanes.count,))
        positions = lanes.positions()
        tokens = np.zeros(lanes.count, np.uint64)
        blocks = positions // state.threads
        for key in np.unique(offsets[good] * len(state.blocks) + blocks[good]).tolist():
            offset, block = divmod(key, len(state.blocks))
            mine = good[(offsets[good] == offset) & (blocks[good] == block)]
            barrier = state.mbarriers.find(lanes, mine, offset)
            if barrier is None:
                continue
            tokens[mine] = (barrier.phase << _PHASE) | barrier.pending
            if expects:
                barrier.bytes += int(amounts[mine].sum())
            count = len(mine) if expects else int(amounts[mine].sum())
            state.mbarriers.arrive(lanes, scheduler, barrier, offset, positions[mine], count, int(mine[0]), drop=drop)
        if put is not None:
            put(lanes, tokens)
        return at + 1

    return Built(group=GROUP, control=control)


def _bytes(decoder: Decoder, sign: int) -> Built:
    """Changes the bytes that an mbarrier waits for."""
    address, _, _ = decoder.address(0)
    decoder.count(2)
    amount = decoder.get(1, "u32")

    def control(lanes: Lanes, scheduler: Any, at: int) -> int | None:
        state = lanes.state
        offsets, good = places(lanes, np.asarray(address(lanes)))
        amounts = np.broadcast_to(np.asarray(amount(lanes)).astype(np.int64), (lanes.count,))
        for number in good.tolist():
            barrier = state.mbarriers.find(lanes, np.array([number]), int(offsets[number]))
            if barrier is not None:
                barrier.bytes += sign * int(amounts[number])
                if sign < 0:
                    state.mbarriers.settle(barrier, scheduler)
        return at + 1

    return Built(group=GROUP, control=control)


def _wait(decoder: Decoder, *, parity: bool, blocks: bool) -> Built:
    """Whether a phase is complete; `try_wait` lets the thread sleep until it is, or until nothing else can happen."""
    decoder.count(3, 4)
    put = decoder.put(0, "pred")
    address, _, _ = decoder.address(1)
    phase, shift = decoder.get(2, "u32" if parity else "b64"), 0 if parity else _PHASE

    def control(lanes: Lanes, scheduler: Any, at: int) -> int | None:
        state = lanes.state
        offsets, good = places(lanes, np.asarray(address(lanes)))
        phases = np.broadcast_to(np.asarray(phase(lanes)).astype(np.uint64), (lanes.count,)) >> np.uint64(shift)
        positions = lanes.positions()
        passed = np.zeros(lanes.count, np.bool_)
        for offset, wanted in sorted({(int(offsets[number]), int(phases[number])) for number in good.tolist()}):
            mine = good[(offsets[good] == offset) & (phases[good] == wanted)]
            barrier = state.mbarriers.find(lanes, mine, offset)
            if barrier is None:
                passed[mine] = True
                continue
            done = state.mbarriers.passed(barrier, positions[mine], wanted, parity=parity)
            if not done:
                state.mbarriers.finish_copies(lanes, scheduler, offset)
                state.mbarriers.deliver(barrier, scheduler)
                done = state.mbarriers.passed(barrier, positions[mine], wanted, parity=parity)
            passed[mine] = done
        returns = passed | scheduler.hurried[positions]
        if returns.all() or not blocks:
            scheduler.hurried[positions] = False
            put(lanes, passed)
            return at + 1
        scheduler.sleep(at, positions[~returns])
        if returns.any():
            ready = lanes.only(returns)
            scheduler.hurried[ready.index] = False
            put(ready, passed[returns])
            ready.define(lanes.step.writes)
            scheduler.push(at + 1, ready.positions())
        return None

    return Built(group=GROUP, control=control, own_taint=False)
