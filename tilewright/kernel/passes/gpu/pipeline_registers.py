"""Loads of a loop that are on their way while the trip before computes: through registers, on any GPU."""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from tilewright.dataclass import dataclass
from tilewright.kernel import dialect as tile
from tilewright.kernel.attributes import BLOCKS, blocks_of, registers_of
from tilewright.kernel.dialect import INDEX, FuncOp, operations, shape
from tilewright.kernel.passes.common.rules.control import trips
from tilewright.kernel.passes.common.trip import again, computed, only_user
from tilewright.kernel.rewrite import insert_before, replace, replace_by_values, uniform


@dataclass(frozen=True)
class PipelineRegistersPass(ModulePass):
    """Load the tiles of the next trip before this trip computes, into registers; the last trip is peeled.

    Before:  scf.for %k = 0 to 8 { %x = tile.load %a[%k]  %y = tile.convert %x  … }
    After:   %0 = tile.load %a[0]
             %n = scf.for %k = 0 to 7 iter(%x = %0) { %1 = tile.load %a[%k + 1]  %y = tile.convert %x  …  yield %1 }
             %y = tile.convert %n  …
    Legal for loads whose only use is a conversion, perhaps of another shape, of memory that the kernel does not write,
    at offsets and under bounds that only the loop's counter and values from outside decide, in loops of two trips or
    more. Needs `assign-layouts`. For what `pipeline-loads` leaves: on machines without asynchronous copies, all.
    A kernel of products that says nothing of its registers asks for those of one block on a multiprocessor: `ptxas`
    13.0 otherwise spills some to make room for further blocks (168 registers and 40 bytes instead of 196).
    """

    name = "pipeline-registers"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.body.ops:
            if isinstance(kernel, FuncOp) and not kernel.block:
                ops = operations(kernel.body)
                written = {each.view for each in ops if isinstance(each, tile.StoreOp)}
                loops = [each for each in ops if isinstance(each, scf.ForOp)]
                rotated = [_rotate(loop, written) for loop in loops]
                products = any(isinstance(each, tile.DotOp) for each in ops)
                if any(rotated) and products and blocks_of(kernel) is None and registers_of(kernel) is None:
                    kernel.attributes[BLOCKS] = IntegerAttr(1, 64)


def _rotate(loop: scf.ForOp, written: set[SSAValue]) -> bool:
    """Make the loads of a loop a trip earlier; whether there are such."""
    body, count = loop.body.block, trips(loop)
    found = {op: before for op in body.ops if (before := _ahead(op, body, written)) is not None}
    if not found or count is None or count < 2:
        return False
    terminator = body.last_op
    assert isinstance(terminator, scf.YieldOp)
    low, step = uniform(loop.lb), uniform(loop.step)
    assert low is not None
    assert step is not None
    end = _number(int(low + (count - 1) * step), loop)
    # The loads of the first trip, then a loop in which each trip makes those of the next.
    first = again(_all(found), {body.args[0]: loop.lb}, loop)
    rotated = scf.ForOp(loop.lb, end, loop.step, [*loop.iter_args, *(first[op.result] for op in found)], Region(
        Block(arg_types=[*(arg.type for arg in body.args), *(op.result.type for op in found)])
    ))  # fmt: skip
    insert_before(loop, rotated)
    inside = rotated.body.block
    inside.add_op(scf.YieldOp())
    assert inside.last_op is not None
    following = arith.AddiOp(inside.args[0], loop.step)
    insert_before(inside.last_op, following)
    ahead = again(_all(found), {body.args[0]: following.result}, inside.last_op)
    rest = [op for op in body.ops if op is not terminator and op not in found]
    values: dict[SSAValue, SSAValue] = {}
    values.update(zip((*body.args, *(op.result for op in found)), inside.args, strict=True))
    for old, new in values.items():
        new.name_hint = old.name_hint
    again(rest, values, inside.last_op)
    yielded = [values.get(value, value) for value in terminator.operands]
    replace(inside.last_op, scf.YieldOp(*yielded, *(ahead[op.result] for op in found)))
    # The last trip.
    values = {}
    values.update(zip((*body.args, *(op.result for op in found)), (end, *rotated.results), strict=True))
    again(rest, values, loop)
    replace_by_values(loop, [values.get(value, value) for value in terminator.operands])
    return True


def _ahead(op: Operation, body: Block, written: set[SSAValue]) -> tuple[Operation, ...] | None:
    """What computes the operands of a load that can be made a trip earlier; None for another operation."""
    if not isinstance(op, tile.LoadOp) or not shape(op.result) or op.view in written or op.view.owner is body:
        return None
    user = only_user(op.result, body)
    while isinstance(user, tile.ReshapeOp):
        user = only_user(user.result, body)
    return computed(op.operands, body) if isinstance(user, tile.ConvertOp) else None


def _all(found: dict[tile.LoadOp, tuple[Operation, ...]]) -> list[Operation]:
    """The loads with what they need, each operation once."""
    return list(dict.fromkeys(op for load, before in found.items() for op in (*before, load)))


def _number(value: int, place: Operation) -> SSAValue:
    made = arith.ConstantOp(IntegerAttr(value, INDEX))
    insert_before(place, made)
    return made.result
