"""Products that are still under way while the next trip starts its own."""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from tilewright.dataclass import dataclass
from tilewright.kernel import circular_buffer
from tilewright.kernel import dialect as tile
from tilewright.kernel.dialect import INDEX, FuncOp, operations
from tilewright.kernel.passes.common.trip import again, computed
from tilewright.kernel.passes.hopper.tensor_copies import trips_of
from tilewright.kernel.rewrite import erase, insert_before


@dataclass(frozen=True)
class PipelineWgmmaPass(ModulePass):
    """Wait for the product of a trip in the next one, and release its slot there.

    Before:  scf.for %k iter(%c) { produce %r[%n + 3]  consumer_wait %r[%n]  %e = staged_dot %c  %d = finish 0 %e
                                   consumer_release %r[%n]  yield %d }
    After:   scf.for %k iter(%c) { consumer_wait %r[%n]  %e = staged_dot %c  %d = finish 1 %e
                                   if (%k > first) { consumer_release %r[%n - 1] }  produce %r[%n + 3]  yield %d }
             finish 0  release (the last)
    Legal for sums that only go round the loop, and circular buffers of 3 slots or more, of which one is now in use for
    longer. Comes after `pipeline-tensor-copies`.
    """

    name = "pipeline-wgmma"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.body.ops:
            if isinstance(kernel, FuncOp) and not kernel.block:
                for each in [each for each in operations(kernel.body) if isinstance(each, circular_buffer.FinishOp)]:
                    found = _found(each)
                    if found is not None:
                        _overlap(found)


@dataclass(frozen=True)
class _Trip:
    """What a trip does about its product, and which carried value the sums are."""

    loop: scf.ForOp
    fill: circular_buffer.ProduceOp
    finish: circular_buffer.FinishOp
    release: circular_buffer.ConsumerReleaseOp
    carried: int
    slice: tuple[Operation, ...]  # what computes the number of its use


def _found(finish: circular_buffer.FinishOp) -> _Trip | None:
    loop, dot = finish.parent_op(), finish.value.owner
    if (
        not isinstance(loop, scf.ForOp)
        or not isinstance(dot, circular_buffer.StagedDotOp)
        or dot.parent is not finish.parent
    ):
        return None
    body = loop.body.block
    last = body.last_op
    assert last is not None
    fills = [op for op in body.ops if isinstance(op, circular_buffer.ProduceOp)]
    releases = [op for op in body.ops if isinstance(op, circular_buffer.ConsumerReleaseOp)]
    circular = dot.b.owner
    assert isinstance(circular, circular_buffer.CircularOp), "verified"
    if len(fills) != 1 or len(releases) != 1 or circular.slots.value.data < 3 or finish.pending.value.data:
        return None
    if [use.operation for use in finish.result.uses] != [last] or list(last.operands).count(finish.result) != 1:
        return None
    carried = list(last.operands).index(finish.result)
    sums = body.args[1 + carried]
    number = computed([releases[0].number], body)
    if dot.c is not sums or [use.operation for use in sums.uses] != [dot] or number is None:
        return None
    return _Trip(loop, fills[0], finish, releases[0], carried, number)


def _overlap(trip: _Trip) -> None:
    loop, release = trip.loop, trip.release
    counter = loop.body.block.args[0]
    trip.finish.pending = IntegerAttr(1, 64)
    one = arith.ConstantOp(IntegerAttr(1, INDEX))
    before, later = arith.SubiOp(release.number, one.result), tile.CompareOp("gt", counter, loop.lb)
    inside = Block([circular_buffer.ConsumerReleaseOp(release.state, before.result), scf.YieldOp()])
    insert_before(release, one, before, later, scf.IfOp(later.result, [], Region(inside), Region()))
    loop.body.block.detach_op(trip.fill)
    insert_before(release, trip.fill)
    # Behind the loop: the last product.
    place = loop.next_op
    assert place is not None

    def add(op: Operation) -> SSAValue:
        insert_before(place, op)
        return op.results[0]

    done = circular_buffer.FinishOp(0, loop.results[trip.carried])
    loop.results[trip.carried].replace_all_uses_with(done.result)
    done.operands[0] = loop.results[trip.carried]
    insert_before(place, done)
    almost = add(arith.SubiOp(trips_of(loop, add), add(arith.ConstantOp(IntegerAttr(1, INDEX)))))
    final = add(arith.AddiOp(loop.lb, add(arith.MuliOp(almost, loop.step))))
    values = again(trip.slice, {counter: final}, place)
    runs = add(tile.CompareOp("lt", loop.lb, loop.ub))
    number = values.get(release.number, release.number)
    inside = Block([circular_buffer.ConsumerReleaseOp(release.state, number), scf.YieldOp()])
    insert_before(place, scf.IfOp(runs, [], Region(inside), Region()))
    erase(release)
