"""Loads and stores by space: the generic space is split into the windows of its addresses."""

from __future__ import annotations

import numpy as np

from tilewright.emulator.lanes import Lanes
from tilewright.emulator.memory import GLOBAL_BASE, LOCAL_BASE, SHARED_BASE, WINDOW
from tilewright.emulator.scalars import CONTAINERS, Array

#: Modifiers that name a space, and the space they mean.
NAMES = {
    "global": "global", "shared": "shared", "shared::cta": "shared", "shared::cluster": "shared", "local": "local",
    "const": "global", "param": "param", "param::entry": "param", "param::func": "param",
}  # fmt: skip


def load(
    lanes: Lanes, space: str, addresses: Array, width: int, count: int, *, order: str = ""
) -> tuple[Array, Array | None]:
    """Words of `width` bytes, (n,) or (n, count), and what of them is undefined.

    That is None, or which lanes got undefined words (n,), or one bit for each byte of each word (n, count).
    """
    if space == "global":
        return lanes.state.memory.load(lanes, addresses, width, count)
    if space == "shared":
        return lanes.state.shared.load(lanes, addresses, width, count, order=order)
    if space == "local":
        return lanes.state.local.load(lanes, addresses, width, count)
    values = np.zeros((lanes.count, count) if count > 1 else lanes.count, CONTAINERS[8 * width])
    undefined = np.zeros((lanes.count, count), np.uint8)
    for part, chosen, inner, own in parts(lanes, addresses):
        found, missing = load(part, inner, own, width, count, order=order)
        values[chosen] = found
        if missing is not None:
            undefined[chosen] = missing if missing.ndim == 2 else missing[:, None] * np.uint8(0xFF)
    return values, undefined if undefined.any() else None


def store(
    lanes: Lanes, space: str, addresses: Array, width: int, values: Array, undefined: Array | None,
    *, order: str = "", sums: str = "",
) -> None:  # fmt: skip
    """Words (n,) or (n, count) to memory; `undefined` has a bit for each byte of a word that nothing defined.

    `sums` is the type of floats whose sums they are, if they are.
    """
    lost = None if undefined is None else np.asarray(undefined.reshape(lanes.count, -1).any(axis=1))
    if space == "global":
        if lost is not None and lost.any():
            lanes.report("undefined-value", "a value that nothing defined is stored", np.flatnonzero(lost))
        lanes.state.memory.store(lanes, addresses, width, values)
    elif space == "shared":
        lanes.state.shared.store(lanes, addresses, width, values, lost, order=order, sums=sums)
    elif space == "local":
        lanes.state.local.store(lanes, addresses, width, values, undefined)
    else:
        for part, chosen, inner, own in parts(lanes, addresses):
            missing = None if undefined is None else undefined[chosen]
            store(part, inner, own, width, values[chosen], missing, order=order, sums=sums)


def parts(lanes: Lanes, addresses: Array) -> list[tuple[Lanes, Array, str, Array]]:
    """Generic addresses by window: lanes, their numbers, the space, and the addresses within it."""
    found = []
    shared = (addresses >= SHARED_BASE) & (addresses < SHARED_BASE + WINDOW)
    local = (addresses >= LOCAL_BASE) & (addresses < LOCAL_BASE + WINDOW)
    for mask, space, base in (
        (shared, "shared", SHARED_BASE),
        (local, "local", LOCAL_BASE),
        (~shared & ~local, "global", 0),
    ):
        if mask.all():
            return [(lanes, np.arange(lanes.count), space, addresses - base)]
        if mask.any():
            chosen = np.flatnonzero(mask)
            found.append((lanes.only(mask), chosen, space, addresses[chosen] - base))
    return found


def window(space: str) -> tuple[int, int]:
    """Start and length of the window of a space in generic addresses."""
    bases = {"global": GLOBAL_BASE, "shared": SHARED_BASE, "local": LOCAL_BASE}
    return bases[space], WINDOW
