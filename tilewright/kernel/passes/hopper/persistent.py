"""Blocks that stay: as many as the machine has multiprocessors, each of which computes one tile after the other."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from tilewright.dataclass import dataclass
from tilewright.kernel import circular_buffer
from tilewright.kernel.bulk_stores import FinishStoresOp
from tilewright.kernel.dialect import INDEX, BlockRankOp, FuncOp, ProgramIdOp, ReturnOp, operations
from tilewright.kernel.facts import facts_of
from tilewright.kernel.passes.common.effects import PURE
from tilewright.kernel.passes.common.settings import at_least
from tilewright.kernel.passes.hopper.linear_form import has_trip
from tilewright.kernel.passes.hopper.tensor_copies import trips_between
from tilewright.kernel.rewrite import insert_before, replace_by_values
from tilewright.kernel.tile_types import i64s


@dataclass(frozen=True)
class PersistentPass(ModulePass):
    """Run the programs of a kernel with circular buffers on one block per multiprocessor.

    Before:  tile.func grid [64, 32] { tile.circular_buffer  %m = tile.program_id 0  … }
    After:   tile.func grid [132] { tile.circular_buffer
               scf.for %t = (program_id 0) to 2048 step 132 { %m = %t / 32 mod 64  … } }
    Circular buffers go on from tile to tile, so that the copies of the next one start while this one is stored. Where
    some tiles use them more often than others, the loop carries the number of uses so far. Legal where the loops round
    what fills a circular buffer have as many trips in every program, or are seen to have one and have bounds that stand
    in the kernel itself. Grids of no more programs than `blocks` (the multiprocessors of the machine, where 0) stay;
    several blocks that run a program take as many. Comes after `tensor-copies`.
    """

    name = "persistent"
    blocks: int = 0

    def __post_init__(self) -> None:
        at_least(0, self, "blocks")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        blocks = self.blocks or facts_of(op).multiprocessors
        for kernel in op.body.ops:
            if not isinstance(kernel, FuncOp) or kernel.block:
                continue
            at_once = blocks // kernel.blocks
            if 0 < at_once < kernel.programs:
                found = [each for each in operations(kernel.body) if isinstance(each, circular_buffer.CircularOp)]
                if found and all(_is_counted(circular) for circular in found):
                    _stay(kernel, found, at_once)


def _is_counted(circular: circular_buffer.CircularOp) -> bool:
    """Whether a tile can say how often it uses a circular buffer: how many trips the loops round its fill have."""
    return all(
        all(map(_is_same_everywhere, bounds)) or (has_trip(loop) and all(map(_stands_in_kernel, bounds)))
        for loop in _loops_of(circular)
        for bounds in [(loop.lb, loop.ub, loop.step)]
    )


def _stands_in_kernel(value: SSAValue) -> bool:
    return isinstance(value.owner, Operation) and isinstance(value.owner.parent_op(), FuncOp)


def _is_used_alike(circular: circular_buffer.CircularOp) -> bool:
    """Whether the loops round what fills a circular buffer have as many trips in every program."""
    return all(_is_same_everywhere(bound) for loop in _loops_of(circular) for bound in (loop.lb, loop.ub, loop.step))


def _loops_of(circular: circular_buffer.CircularOp) -> list[scf.ForOp]:
    """The loops round what fills a circular buffer."""
    fills = [use.operation for use in circular.state.uses if isinstance(use.operation, circular_buffer.ProduceOp)]
    return [loop for fill in fills for loop in _loops_round(fill)]


def _loops_round(op: Operation) -> list[scf.ForOp]:
    parent = op.parent_op()
    if parent is None or isinstance(parent, FuncOp):
        return []
    return [*([parent] if isinstance(parent, scf.ForOp) else []), *_loops_round(parent)]


def _is_same_everywhere(value: SSAValue) -> bool:
    """Whether a number depends on no coordinate of the program, on no block of it, and on no counter of a loop."""
    owner = value.owner
    if not isinstance(owner, Operation) or isinstance(owner, ProgramIdOp | BlockRankOp) or owner.name not in PURE:
        return False
    return all(map(_is_same_everywhere, owner.operands))


def _stay(kernel: FuncOp, found: list[circular_buffer.CircularOp], blocks: int) -> None:
    extents, block = kernel.extents, kernel.body.block
    body = [op for op in block.ops if op not in found]
    last = body.pop()
    assert isinstance(last, ReturnOp)
    if body and isinstance(body[-1], FinishStoresOp):  # results leave while the next tile is computed
        last = body.pop()
    first = ProgramIdOp(0)
    high, step, none = (arith.ConstantOp(IntegerAttr(number, INDEX)) for number in (kernel.programs, blocks, 0))
    changing = [circular for circular in found if not _is_used_alike(circular)]
    inside = Block(arg_types=[INDEX, *(INDEX for _ in changing)])
    for op in body:
        block.detach_op(op)
        inside.add_op(op)
    loop = scf.ForOp(first.result, high.result, step.result, [none.result] * len(changing), inside)
    inside.add_op(scf.YieldOp(*inside.args[1:]))
    insert_before(last, first, high, step, none, loop)
    kernel.grid = i64s([blocks])
    for circular in found:
        _go_on(circular, loop, changing)
    _number_tiles(loop, extents)


def _number_tiles(loop: scf.ForOp, extents: tuple[int, ...]) -> None:
    """The coordinates of the program that a trip stands for."""
    for op in [each for each in operations(loop.body) if isinstance(each, ProgramIdOp)]:
        axis = op.axis.value.data
        own: SSAValue = loop.body.block.args[0]
        for kind, number in ((arith.DivUIOp, prod(extents[axis + 1 :])), (arith.RemUIOp, extents[axis])):
            divisor = arith.ConstantOp(IntegerAttr(number, INDEX))
            made = kind(own, divisor)
            insert_before(op, divisor, made)
            own = made.result
        replace_by_values(op, [own])


def _outside(value: SSAValue, loop: scf.ForOp, add: Callable[[Operation], SSAValue]) -> SSAValue:
    """A number of every program that is made within a loop, made again before it."""
    owner = value.owner
    if not isinstance(owner, Operation) or not loop.is_ancestor(owner):
        return value
    made = owner.clone({operand: _outside(operand, loop, add) for operand in owner.operands})
    return add(made)


def _go_on(circular: circular_buffer.CircularOp, outer: scf.ForOp, changing: list[circular_buffer.CircularOp]) -> None:
    """Uses are numbered on from tile to tile; `outer` carries how many there were of those that are `changing`."""
    users = {use.operation for result in circular.results for use in result.uses}
    users = {user for user in users if isinstance(user, circular_buffer.NUMBERED)}
    (number,) = {circular_buffer.numbers_of(user)[circular] for user in users}
    (fill,) = (user for user in users if isinstance(user, circular_buffer.ProduceOp))
    loop = fill.parent_op()
    loops: list[scf.ForOp] = []
    while loop is not outer:
        assert isinstance(loop, scf.ForOp), "uses of circular buffers are numbered by loops"
        loops.append(loop)
        loop = loop.parent_op()
    place = loops[-1] if loops else fill

    def add(op: Operation) -> SSAValue:
        insert_before(place, op)
        return op.results[0]

    def times_trips(total: SSAValue) -> SSAValue:
        for each in loops:
            bounds = [_outside(bound, loops[-1], add) for bound in (each.lb, each.ub, each.step)]
            total = add(arith.MuliOp(total, trips_between(bounds[0], bounds[1], bounds[2], add)))
        return total

    if circular in changing:
        index = changing.index(circular)
        total: SSAValue = outer.body.block.args[1 + index]
        one = add(arith.ConstantOp(IntegerAttr(1, INDEX)))
        last = outer.body.block.last_op
        assert last is not None, "a loop yields"
        last.operands[index] = add(arith.AddiOp(total, times_trips(one)))
    else:
        done = add(arith.SubiOp(outer.body.block.args[0], outer.lb))
        total = times_trips(add(arith.DivUIOp(done, outer.step)))
    on = arith.AddiOp(number, total)
    insert_before(fill, on)
    for user in users:
        user.operands[list(user.operands).index(number)] = on.result
