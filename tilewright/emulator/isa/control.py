"""Branches, ends, and instructions that only concern the machine."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.emulator.decode import Decoder
from tilewright.emulator.isa.bulk import abandon_stores
from tilewright.emulator.isa.table import Built, instruction
from tilewright.emulator.lanes import Lanes

GROUP = "control"


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


@instruction("nanosleep", "pmevent", "setmaxnreg", "griddepcontrol")
def no_effect(decoder: Decoder) -> Built:
    """Time and registers of the machine: nothing that results depend on."""
    decoder.modifiers.clear()
    return Built(lambda lanes: None, GROUP)
