"""Tiles that every trip of a loop reads and writes stay in registers while the loop runs."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from tilewright.dataclass import dataclass
from tilewright.kernel import dialect as tile
from tilewright.kernel.dialect import FuncOp, operations
from tilewright.kernel.passes.common.rules.control import trips
from tilewright.kernel.passes.common.trip import again, computed
from tilewright.kernel.rewrite import insert_before, replace_by_values


@dataclass(frozen=True)
class HoistAccumulatorsPass(ModulePass):
    """Load a tile before the loop whose trips all update it, carry it from trip to trip, and store it once behind.

    Before:  scf.for { %c = tile.load %v[%o]  %d = tile.dot %a, %b, %c  tile.store %d, %v[%o] }
    After:   %c = tile.load %v[%o]   %r = scf.for iter(%x = %c) { %d = tile.dot %a, %b, %x  yield %d }
             tile.store %r, %v[%o]
    Legal where load and store have the same place, bounds, mask (the same values) and type, none of which changes in
    the loop, nothing else in the loop touches the view, and the loop has at least one trip. Innermost loops come first,
    so that a tile leaves every loop around it. Comes before `assign-layouts`.
    """

    name = "hoist-accumulators"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.body.ops:
            if isinstance(kernel, FuncOp):
                for loop in reversed([each for each in operations(kernel.body) if isinstance(each, scf.ForOp)]):
                    _hoist(loop)


@dataclass(frozen=True)
class _Update:
    """A load and the store to the same place, and what in the loop computes the place."""

    load: tile.LoadOp
    store: tile.StoreOp
    place: tuple[Operation, ...]


def _hoist(loop: scf.ForOp) -> None:
    found = [update for op in loop.body.block.ops if (update := _update(op, loop)) is not None]
    if not found or not trips(loop):
        return
    body = loop.body.block
    first = again(_before(found), {}, loop)
    carried = [*loop.iter_args, *(first[update.load.result] for update in found)]
    types = [*(arg.type for arg in body.args), *(update.load.result.type for update in found)]
    made = scf.ForOp(loop.lb, loop.ub, loop.step, carried, Region(Block(arg_types=types)))
    insert_before(loop, made)
    inside = made.body.block
    values: dict[SSAValue, SSAValue] = {}
    values.update(zip((*body.args, *(update.load.result for update in found)), inside.args, strict=True))
    for old, new in values.items():
        new.name_hint = old.name_hint
    terminator = body.last_op
    assert terminator is not None
    inside.add_op(scf.YieldOp())
    end = inside.last_op
    assert end is not None
    gone: set[Operation] = {op for update in found for op in (update.load, update.store)}
    again([op for op in body.ops if op is not terminator and op not in gone], values, end)
    yielded = (*terminator.operands, *(update.store.value for update in found))
    inside.insert_op_before(scf.YieldOp(*(values.get(value, value) for value in yielded)), end)
    inside.erase_op(end)
    for update, result in zip(found, made.results[len(loop.results) :], strict=True):
        again([update.store], {**first, update.store.value: result}, loop)
    replace_by_values(loop, made.results[: len(loop.results)])


def _before(found: Sequence[_Update]) -> list[Operation]:
    """What the loads before the loop are made of, each operation once."""
    return list(dict.fromkeys(op for update in found for op in (*update.place, update.load)))


def _update(op: Operation, loop: scf.ForOp) -> _Update | None:
    """The update of a tile in place that begins with this load; None for other operations."""
    if not isinstance(op, tile.LoadOp) or op.view.owner is loop.body.block:
        return None
    touching = [use.operation for use in op.view.uses if _is_inside(use.operation, loop)]
    stores = [each for each in touching if isinstance(each, tile.StoreOp)]
    if len(touching) != 2 or len(stores) != 1 or stores[0].parent is not op.parent:
        return None
    if not op.is_before_in_block(stores[0]):
        return None
    store = stores[0]
    place = computed([value for value in op.operands if value is not op.view], loop.body.block)
    counter = loop.body.block.args[0]
    if place is None or any(counter in each.operands for each in (op, *place)) or store.value.type != op.result.type:
        return None
    own, other = ((each.offset, *each.bounds, each.mask) for each in (op, store))
    return _Update(op, store, place) if own == other and op.strides == store.strides else None


def _is_inside(op: Operation, loop: scf.ForOp) -> bool:
    parent = op.parent_op()
    return parent is not None and (parent is loop or _is_inside(parent, loop))
