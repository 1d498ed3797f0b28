"""Fragments read ahead: while products of one step of k run, those of the next step come from shared memory."""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from tilewright.dataclass import dataclass
from tilewright.kernel.dialect import CompareOp, FuncOp, LoadOp, SelectOp, operations
from tilewright.kernel.passes.common.rules.control import trips
from tilewright.kernel.passes.common.trip import again, computed
from tilewright.kernel.rewrite import insert_before, replace_by_values
from tilewright.kernel.simt import BarrierOp, JoinOp, LoadFragmentOp, LoadMatrixOp, MmaOp, PartOp, WaitOp, is_shared

Read = LoadMatrixOp | LoadFragmentOp | LoadOp


@dataclass(frozen=True)
class PrefetchFragmentsPass(ModulePass):
    """Read the fragments of the first step of k before the loop and at the end of the trip before; others a step ahead.

    Before:  for %k { wait  barrier  copy  %a0 = read  %a1 = read  mma %a0  mma %a1 }
    After:   wait  barrier  %f = read
             for %k iter(%a0 = %f) { copy  %a1 = read  mma %a0  mma %a1  wait  barrier  %n = read(%k + 1)  yield %n }
    Legal in loops of two trips or more whose only wait and barrier come before all reads of shared memory, which are in
    its first level and at places that only the counter decides, and whose products have two steps or more. The last
    trip, which has no next one, reads its own first step again. Comes after `distribute` and `canonicalise`.
    """

    name = "prefetch-fragments"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.body.ops:
            if isinstance(kernel, FuncOp) and kernel.block:
                for loop in [each for each in operations(kernel.body) if isinstance(each, scf.ForOp)]:
                    found = _found(loop)
                    if found is not None:
                        _rotate(loop, found)


@dataclass(frozen=True)
class _Found:
    """A loop's wait and barrier, its reads by the step of k that first wants them, and its products by step."""

    wait: WaitOp
    barrier: BarrierOp
    reads: dict[int, list[Read]]
    products: dict[int, list[MmaOp]]


def _found(loop: scf.ForOp) -> _Found | None:
    body = loop.body.block
    inside = [op for op in loop.walk() if isinstance(op, WaitOp | BarrierOp | scf.ForOp) and op is not loop]
    if len(inside) != 2 or (trips(loop) or 0) < 2 or any(op.parent is not body for op in inside):
        return None
    wait, barrier = inside
    if not isinstance(wait, WaitOp) or not isinstance(barrier, BarrierOp) or wait.next_op is not barrier:
        return None
    reads = [op for op in loop.walk() if isinstance(op, Read) and is_shared(op.view)]
    if any(op.parent is not body or not barrier.is_before_in_block(op) for op in reads):
        return None
    products = _steps(body)
    steps = {op: _first_step(op, products) for op in reads}
    if not products or max(products.values()) == 0 or None in steps.values():
        return None
    if computed(_addresses(reads), body) is None:
        return None
    levels = range(max(products.values()) + 1)
    return _Found(
        wait, barrier, {level: [op for op in reads if steps[op] == level] for level in levels},
        {level: [op for op, own in products.items() if own == level] for level in levels},
    )  # fmt: skip


def _addresses(reads: list[Read]) -> list[SSAValue]:
    return [value for op in reads for value in op.operands if value is not op.view]


def _steps(body: Block) -> dict[MmaOp, int]:
    """Products of a trip in order; how many products of the trip have added to the accumulator of each before."""
    found: dict[MmaOp, int] = {}
    for op in body.ops:
        if isinstance(op, MmaOp):
            before = op.c.owner
            found[op] = found[before] + 1 if isinstance(before, MmaOp) and before in found else 0
    return found


def _first_step(op: Operation, products: dict[MmaOp, int]) -> int | None:
    """The first step that wants a value, parts of it that nothing uses aside; None where something else than products
    does.
    """
    steps: list[int] = []
    for use in (use.operation for result in op.results for use in result.uses):
        step = products.get(use) if isinstance(use, MmaOp) else None
        if isinstance(use, PartOp | JoinOp):
            if use.result.first_use is None:
                continue
            step = _first_step(use, products)
        if step is None:
            return None
        steps.append(step)
    return min(steps, default=0)


def _rotate(loop: scf.ForOp, found: _Found) -> None:
    body, first = loop.body.block, found.reads[0]
    last = body.last_op
    assert isinstance(last, scf.YieldOp)
    for level in range(1, len(found.products)):
        _move(found.reads[level], found.products[level - 1][0])
    before = computed(_addresses(first), body)
    assert before is not None
    # Before the loop, and at the end of each trip for the next.
    insert_before(loop, found.wait.clone(), found.barrier.clone())  # of the same warps as in the loop
    ready = again([*before, *first], {body.args[0]: loop.lb}, loop)
    following = arith.AddiOp(body.args[0], loop.step)
    more = CompareOp("lt", following.result, loop.ub)
    counter = SelectOp(more.result, following.result, body.args[0])
    body.detach_op(found.wait)
    body.detach_op(found.barrier)
    insert_before(last, following, more, counter, found.wait, found.barrier)
    ahead = again([*before, *first], {body.args[0]: counter.result}, last)
    # The loop with the fragments as what it carries.
    carried = [*loop.iter_args, *(ready[op.results[0]] for op in first)]
    values = [(op.results[0], body.insert_arg(op.results[0].type, len(body.args))) for op in first]
    yielded = [*last.operands, *(ahead[op.results[0]] for op in first)]
    for old, new in values:
        new.name_hint = old.name_hint
        old.replace_all_uses_with(new)
    for op in first:
        body.erase_op(op)
    insert_before(last, scf.YieldOp(*yielded))
    body.erase_op(last)
    region = Region()
    loop.body.move_blocks(region)
    made = scf.ForOp(loop.lb, loop.ub, loop.step, carried, region)
    made.attributes = dict(loop.attributes)
    insert_before(loop, made)
    replace_by_values(loop, made.results[: len(loop.results)])


def _move(reads: list[Read], place: Operation) -> None:
    """Put reads, with what is made of them before `place` and where they read, right before it."""
    block = place.parent
    assert block is not None
    where = computed(_addresses(reads), block)
    assert where is not None, "otherwise the loop is left alone"
    moved: dict[Operation, None] = dict.fromkeys(op for op in where if place.is_before_in_block(op))
    moved |= dict.fromkeys(reads)
    for op in block.ops:
        if op is place:
            break
        if isinstance(op, PartOp | JoinOp) and any(_is_of(value, moved) for value in op.operands):
            moved[op] = None
    for op in moved:
        block.insert_op_before(block.detach_op(op), place)


def _is_of(value: SSAValue, ops: dict[Operation, None]) -> bool:
    return isinstance(value.owner, Operation) and value.owner in ops
