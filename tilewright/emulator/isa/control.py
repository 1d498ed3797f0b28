"""Branches, ends, and instructions that only concern the machine."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilewright.emulator.decode import Decoder
from tilewright.emulator.isa.bulk import abandon_stores
from tilewright.emulator.isa.table import Built, instruction, whole_warps
from tilewright.emulator.lanes import Lanes
from tilewright.emulator.link import Linked
from tilewright.emulator.syntax import Number
from tilewright.emulator.warpgroups import WARPGROUP

GROUP = "control"
# Of a multiprocessor, and of one of its threads: CUDA programming guide, technical specifications.
_REGISTERS, _MOST_WARPS = 65_536, 64
_LEAST_REGISTERS, _MOST_REGISTERS = 24, 255  # ptxas takes 24 for less


@instruction("bra")
def branch(decoder: Decoder) -> Built:
    decoder.flag("uni")
    decoder.count(1)
    target = decoder.label(decoder.operand(0))
    return Built(group=GROUP, control=lambda lanes, scheduler, at: target)


@instruction("brx")
def branch_by_index(decoder: Decoder) -> Built:
    """To the label that an index chooses."""
    decoder.flag("idx")
    decoder.flag("uni")
    decoder.count(2)
    get = decoder.get(0, "u32")
    targets = decoder.labels(decoder.operand(1))
    slots = tuple(decoder.reads)

    def control(lanes: Lanes, scheduler: Any, at: int) -> int | None:
        lanes.require(slots, "a branch")
        index = np.broadcast_to(np.asarray(get(lanes)).astype(np.int64), (lanes.count,))
        if (index >= len(targets)).any():
            lanes.report("bad-operand", f"index {int(index.max())} of {len(targets)} branch targets")
            index = np.minimum(index, len(targets) - 1)
        if (index == index[0]).all():
            return targets[int(index[0])]
        positions = lanes.positions()
        for number in np.unique(index).tolist():
            scheduler.push(targets[number], positions[index == number])
        return None

    return Built(group=GROUP, control=control)


def leave(lanes: Lanes, scheduler: Any, at: int) -> int | None:
    """The threads end; others may have waited for them."""
    positions = lanes.positions()
    state = lanes.state
    state.copies.abandon(lanes)
    abandon_stores(lanes)
    state.alive[positions] = False
    state.exits.leave(lanes)
    scheduler.unpark()
    state.barriers.gone(lanes, scheduler)
    return None


@instruction("exit", "ret")
def end(decoder: Decoder) -> Built:
    decoder.flag("uni")
    decoder.count(0)
    return Built(group=GROUP, control=leave)


@instruction("trap", "brkpt")
def trap(decoder: Decoder) -> Built:
    decoder.count(0)
    return Built(group=GROUP, control=_stop("trap", f"{decoder.name} is executed"))


def _stop(kind: str, message: str) -> Any:
    """The whole launch ends, as it does on a device."""

    def control(lanes: Lanes, scheduler: Any, at: int) -> int | None:
        lanes.report(kind, message, np.arange(lanes.count))
        scheduler.stop()
        return None

    return control


@instruction("call")
def call(decoder: Decoder) -> Built:
    """Calls of what the driver provides; all others were put in place by `link`."""
    name = ".".join(decoder.modifiers)
    decoder.modifiers.clear()
    if name == "vprintf":
        return Built(lambda lanes: None, GROUP)
    return Built(group=GROUP, control=_stop("trap", "an assertion fails"))


@instruction("setmaxnreg")
def registers_of_warps(decoder: Decoder) -> Built:
    """Groups of four warps give registers back to their block, or wait until there are enough to take.

    Nothing happens in kernels that do not limit the registers that a thread starts with, by ``.maxnreg`` or by
    threads of a block and blocks of a multiprocessor: ``ptxas`` drops the instruction there.
    """
    takes = decoder.one_of("inc", "dec") == "inc"
    decoder.flag("sync", "aligned")
    decoder.type()
    decoder.count(1)
    wanted = decoder.integer(0)
    if wanted % 8 or not 24 <= wanted <= 256:
        raise decoder.error(f"{wanted} registers; 24 to 256, a multiple of 8")
    first = _registers_at_first(decoder.linked)

    def control(lanes: Lanes, scheduler: Any, at: int) -> int | None:
        state, positions = lanes.state, lanes.positions()
        if first is None:
            return at + 1
        held = state.extra.setdefault("registers", np.full(state.size, first, np.int64))
        wrong = held[positions] > wanted if takes else held[positions] < wanted
        if wrong.any():
            lanes.report("bad-operand", f"{'inc' if takes else 'dec'} to {wanted} registers of "
                         f"{int(held[positions][wrong][0])}", np.flatnonzero(wrong))  # fmt: skip
        if not takes:
            held[positions] = wanted
            scheduler.happened()
            return at + 1
        got = np.zeros(len(positions), np.bool_)
        for start in range(0, len(positions), WARPGROUP):
            group = positions[start : start + WARPGROUP]
            block = int(group[0]) // state.threads * state.threads
            pool = held[block : block + state.threads]
            if pool.sum() + WARPGROUP * wanted - held[group].sum() <= first * state.threads:
                held[group] = wanted
                got[start : start + WARPGROUP] = True
        if got.all():
            return at + 1
        scheduler.sleep(at, positions[~got])
        scheduler.push(at + 1, positions[got])
        return None

    return Built(group=GROUP, control=control, meeting=whole_warps, warps=4)


def _registers_at_first(linked: Linked) -> int | None:
    """Registers that a thread has at the start of a launch, as ptxas 13.0 counts them; None where nothing limits them.

    All that the limits allow, but no more than the largest ``setmaxnreg.inc`` asks for, handed out in eights.
    """
    limits = linked.entry.limits
    allowed = [*limits.get("maxnreg", ())]
    threads = limits.get("reqntid") or limits.get("maxntid")
    if threads and "minnctapersm" in limits:
        warps = -(-math.prod(threads) // 32) * limits["minnctapersm"][0]
        if warps <= _MOST_WARPS:
            quarter = -(-warps // 4)  # a multiprocessor has four register files
            allowed.append(_REGISTERS // (4 * 32 * quarter) // 8 * 8)
    if not allowed:
        return None
    increases = [node for node, _ in linked.instructions if node.parts[:2] == ("setmaxnreg", "inc")]
    asked = [each.value for node in increases for each in node.operands if isinstance(each, Number)]
    first = max(_LEAST_REGISTERS, min(*allowed, max(asked, default=_MOST_REGISTERS), _MOST_REGISTERS))
    return -(-first // 8) * 8


@instruction("griddepcontrol")
def grid_control(decoder: Decoder) -> Built:
    """What kernels that may overlap say to each other."""
    action = decoder.one_of("launch_dependents", "wait")
    decoder.count(0)
    return Built(_wait_for_kernels if action == "wait" else lambda lanes: None, GROUP)


def _wait_for_kernels(lanes: Lanes) -> None:
    dependent = lanes.state.dependent
    assert dependent is not None, "the kernel has the instruction"
    dependent.wait(lanes)


@instruction("nanosleep", "pmevent")
def no_effect(decoder: Decoder) -> Built:
    """Time of the machine: nothing that results depend on."""
    decoder.modifiers.clear()
    return Built(lambda lanes: None, GROUP)
