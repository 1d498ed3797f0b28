"""One trip of a loop computed for another value of its counter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from xdsl.ir import Block, Operation, SSAValue

from tilewright.kernel.passes.common.effects import PURE
from tilewright.kernel.rewrite import insert_before


def computed(values: Iterable[SSAValue], body: Block) -> tuple[Operation, ...] | None:
    """The operations of a trip that compute values from the counter and from outside, in order; None if others do."""
    found: dict[Operation, None] = {}
    for value in values:
        owner = value.owner
        if value is body.args[0] or not (owner is body or (isinstance(owner, Operation) and owner.parent is body)):
            continue
        if not isinstance(owner, Operation) or owner.name not in PURE:
            return None  # carried from trip to trip, or read
        before = computed(owner.operands, body)
        if before is None:
            return None
        found |= dict.fromkeys((*before, owner))
    return tuple(found)


def only_user(value: SSAValue, body: Block) -> Operation | None:
    """The operation of a trip that alone uses a value."""
    uses = list(value.uses)
    return uses[0].operation if len(uses) == 1 and uses[0].operation.parent is body else None


def again(ops: Sequence[Operation], values: dict[SSAValue, SSAValue], place: Operation) -> dict[SSAValue, SSAValue]:
    """Copies of operations before `place`, on other values where `values` says so; it gets those of their results."""
    for op in ops:
        made = op.clone(value_mapper=values)
        made.location = op.location
        for old, new in zip(op.results, made.results, strict=True):
            values[old] = new
            new.name_hint = old.name_hint
        insert_before(place, made)
    return values
