"""Accesses of memory: bounds and masks that allow everything are dropped, those that allow nothing decide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.ir import SSAValue

from tilewright.kernel.dialect import GatherOp, LoadOp, StoreOp, shape, strides_of
from tilewright.kernel.elements import dtype_of
from tilewright.kernel.rewrite import Rule, erase, replace, replace_by_number, uniform


def _permits(op: Any, extents: tuple[int, ...]) -> tuple[bool, bool, bool]:
    """Whether the bounds allow all elements, whether the mask does, and whether one of them allows none."""
    limits = [uniform(bound) for bound in getattr(op, "bounds", ())]
    every = all(limit is not None and limit >= extent for limit, extent in zip(limits, extents, strict=False))
    mask = uniform(op.mask) if op.mask is not None else -1
    nothing = mask == 0 or any(limit is not None and limit <= 0 for limit in limits)
    return every, mask not in (None, 0), nothing


def load_permits(op: LoadOp) -> bool:
    """Drop what allows everything; a load that may touch nothing gives zeros."""
    if not op.bounds and op.mask is None:
        return False
    every, unmasked, nothing = _permits(op, shape(op.result))
    if nothing:
        replace_by_number(op, _zero(op.result))
        return True
    bounds, mask = _kept(op, every, unmasked)
    if bounds == tuple(op.bounds) and mask is op.mask:
        return False
    replace(op, reloaded(op, bounds, mask))
    return True


def store_permits(op: StoreOp) -> bool:
    """Drop what allows everything; a store that may touch nothing is erased."""
    if not op.bounds and op.mask is None:
        return False
    every, unmasked, nothing = _permits(op, shape(op.value))
    if nothing:
        erase(op)
        return True
    bounds, mask = _kept(op, every, unmasked)
    if bounds == tuple(op.bounds) and mask is op.mask:
        return False
    replace(op, restored(op, bounds, mask))
    return True


def gather_permits(op: GatherOp) -> bool:
    """The same for the mask of a gather."""
    if op.mask is None:
        return False
    _, unmasked, nothing = _permits(op, ())
    if nothing:
        replace_by_number(op, _zero(op.result))
    elif unmasked:
        replace(op, GatherOp(op.view, op.offsets))
    return nothing or unmasked


def reloaded(op: LoadOp, bounds: Sequence[SSAValue], mask: SSAValue | None) -> LoadOp:
    """The same load under other bounds and mask."""
    align = op.align.value.data if op.align is not None else None
    return LoadOp(op.view, op.offset, shape(op.result), strides_of(op), bounds, mask, align)


def restored(op: StoreOp, bounds: Sequence[SSAValue], mask: SSAValue | None) -> StoreOp:
    """The same store under other bounds and mask."""
    align, nontemporal = op.align.value.data if op.align is not None else None, op.nontemporal is not None
    return StoreOp(op.value, op.view, op.offset, strides_of(op), bounds, mask, nontemporal, align)


def _kept(op: LoadOp | StoreOp, every: bool, unmasked: bool) -> tuple[tuple[SSAValue, ...], SSAValue | None]:
    return () if every else tuple(op.bounds), None if unmasked else op.mask


def _zero(value: SSAValue) -> float:
    return 0 if dtype_of(value.type).kind in "ib" else 0.0


RULES: dict[str, list[Rule]] = {
    LoadOp.name: [load_permits],
    StoreOp.name: [store_permits],
    GatherOp.name: [gather_permits],
}
