"""Chains of products: the second of a trip runs beside the first of the next one, and beside the work between them."""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from tilewright.dataclass import dataclass
from tilewright.kernel import circular_buffer
from tilewright.kernel.dialect import INDEX, CompareOp, FuncOp, operations
from tilewright.kernel.passes.common.trip import again, computed
from tilewright.kernel.passes.hopper.linear_form import has_trip, largest, linear_form
from tilewright.kernel.passes.hopper.tensor_copies import trips_of
from tilewright.kernel.rewrite import erase, insert_before

FEW = 2  # trips; of a loop of so many, the assembler makes the products of the last ones wait for each other


@dataclass(frozen=True)
class PipelineChainsPass(ModulePass):
    """Start the second product of a trip behind the first one of the next trip, and finish it when its sums are read.

    Before:  scf.for %k iter(%c) { %s = finish 0 (staged_dot %q, %t[%n])   %w, %u = work on %s; %d = work on %c, %u
                                   %e = finish 0 (staged_dot %w, %v[%n], %d)   yield %e }
    After:   the first trip up to %w and %d
             scf.for %k iter(%d', %w') { start staged_dot %q, %t[%n]   start staged_dot %w', %v[%n - 1], %d'
                                         %s = finish 1   %w, %u = work on %s   %c = finish 0   %d = work on %c, %u
                                         yield %d, %w }
             %e = finish 0 (staged_dot %w', %v[last], %d')
    Legal for two products in a loop that is seen to have a trip, and not two at most, where the first factor of the
    second one is a tile of the trip, and the work on its sums stands behind the first product. Circular buffers have 2
    slots at least. Comes after `pipeline-tensor-copies`.
    """

    name = "pipeline-chains"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.body.ops:
            if isinstance(kernel, FuncOp) and not kernel.block:
                for loop in [each for each in operations(kernel.body) if isinstance(each, scf.ForOp)]:
                    found = _found(loop)
                    if found is not None:
                        _overlap(found)


@dataclass(frozen=True)
class _Use:
    """What a trip does about one use of a circular buffer."""

    state: SSAValue
    number: SSAValue
    wait: circular_buffer.ConsumerWaitOp
    release: circular_buffer.ConsumerReleaseOp
    fill: circular_buffer.ProduceOp
    slice: tuple[Operation, ...]  # what computes the number

    def numbered(self, values: dict[SSAValue, SSAValue], place: Operation) -> SSAValue:
        """The number of the use where `values` says so of what it is computed from, before `place`."""
        return again(self.slice, values, place).get(self.number, self.number)


@dataclass(frozen=True)
class _Chain:
    """Two products of a trip, and which carried value the sums of the second one are."""

    loop: scf.ForOp
    first: circular_buffer.FinishOp
    second: circular_buffer.StagedDotOp
    finish: circular_buffer.FinishOp  # of the second product
    ahead: _Use  # by the first product
    use: _Use  # by the second product
    carried: int


def _found(loop: scf.ForOp) -> _Chain | None:
    body, ops = loop.body.block, list(loop.body.block.ops)
    finishes = [op for op in ops if isinstance(op, circular_buffer.FinishOp)]
    products = [op for op in ops if isinstance(op, circular_buffer.StagedDotOp)]
    if len(products) != 2 or [each.value.owner for each in finishes] != products or not _has_trips(loop):
        return None
    (first, finish), second = finishes, products[1]
    ahead, use = (_use(product, body) for product in products)
    if ahead is None or use is None or first.pending.value.data or finish.pending.value.data:
        return None
    last, made = body.last_op, second.a.owner
    assert last is not None
    if not second.holds_a or not isinstance(made, Operation) or made.parent is not body:
        return None
    if [each.operation for each in finish.result.uses] != [last] or list(last.operands).count(finish.result) != 1:
        return None
    carried = list(last.operands).index(finish.result)
    readers = _readers(body.args[1 + carried], loop)
    if not readers or ops.index(readers[0]) < ops.index(first):
        return None
    return _Chain(loop, first, second, finish, ahead, use, carried)


def _use(product: circular_buffer.StagedDotOp, body: Block) -> _Use | None:
    """What a trip does about the use that holds the second factor of a product."""
    circular = product.b.owner
    assert isinstance(circular, circular_buffer.CircularOp), "verified"
    users = [use.operation for use in circular.state.uses if use.operation.parent is body]
    waits = [op for op in users if isinstance(op, circular_buffer.ConsumerWaitOp)]
    releases = [op for op in users if isinstance(op, circular_buffer.ConsumerReleaseOp)]
    fills = [op for op in users if isinstance(op, circular_buffer.ProduceOp)]
    slice_ = computed([op.number for op in waits], body)
    if slice_ is None or circular.slots.value.data < 2 or not len(waits) == len(releases) == len(fills) == 1:
        return None
    return _Use(circular.state, waits[0].number, waits[0], releases[0], fills[0], slice_)


def _has_trips(loop: scf.ForOp) -> bool:
    """Whether a loop is seen to have one, and may have more than `FEW`."""
    most = largest(linear_form(loop.ub))
    low, step = (linear_form(bound).constant for bound in (loop.lb, loop.step))
    return has_trip(loop) and (most is None or most - low > FEW * step)


def _readers(value: SSAValue, loop: scf.ForOp) -> list[Operation]:
    """The operations of the body of a loop that use a value, or hold others that do, in order."""
    users = {use.operation for use in value.uses}
    return [op for op in loop.body.block.ops if any(each in users for each in op.walk())]


def _overlap(chain: _Chain) -> None:
    loop, block, last = chain.loop, chain.loop.body.block, chain.loop.body.block.last_op
    assert last is not None
    left_out = (chain.use.wait, chain.second, chain.finish, chain.use.release, last)
    values: dict[SSAValue, SSAValue] = dict(zip(block.args, (loop.lb, *loop.iter_args), strict=True))
    again([op for op in block.ops if op not in left_out], values, loop)
    carried = list(last.operands)
    carried[chain.carried] = chain.second.c
    carried.append(chain.second.a)
    started = [values.get(value, value) for value in carried]
    _next_trip(chain, carried)
    following = arith.AddiOp(loop.lb, loop.step)
    insert_before(loop, following)
    _wait_ahead(chain, following.result, loop)
    loop.body.detach_block(block)
    made = scf.ForOp(following.result, loop.ub, loop.step, started, block)
    insert_before(loop, made)
    for number, result in enumerate(loop.results):
        if number != chain.carried:
            result.replace_all_uses_with(made.results[number])
    _end(chain, made)
    erase(loop)


def _next_trip(chain: _Chain, carried: list[SSAValue]) -> None:
    """A trip of the loop: the second product is that of the trip before, and what it takes is carried."""
    second, first, use, block = chain.second, chain.first, chain.use, chain.loop.body.block
    sums, factor = block.args[1 + chain.carried], block.insert_arg(second.a.type, len(block.args))
    reader, last, made = _readers(sums, chain.loop)[0], block.last_op, second.a.owner
    assert last is not None
    assert isinstance(made, Operation)
    own, one = use.numbered({}, first), arith.ConstantOp(IntegerAttr(1, INDEX))
    before = arith.SubiOp(own, one.result)
    started = _with(second, factor, before.result, sums)
    done = circular_buffer.FinishOp(0, started.result)
    sums.replace_uses_with_if(done.result, lambda each: each.operation is not started)
    insert_before(first, one, before, circular_buffer.ConsumerWaitOp(use.state, before.result), started)
    first.pending = IntegerAttr(1, 64)
    following = arith.AddiOp(block.args[0], chain.loop.step)
    insert_before(reader, following)
    _wait_ahead(chain, following.result, reader)
    block.detach_op(use.fill)
    insert_before(reader, done, circular_buffer.ConsumerReleaseOp(use.state, before.result), use.fill)
    yielded = scf.YieldOp(*(done.result if value is sums else value for value in carried))
    insert_before(last, yielded)
    for op in (last, use.release, chain.finish, second, use.wait, chain.ahead.wait):
        erase(op)
    if all(each.operation is yielded for each in made.results[0].uses):  # it takes the registers of the factor before
        block.detach_op(made)
        insert_before(yielded, made)


def _wait_ahead(chain: _Chain, counter: SSAValue, place: Operation) -> None:
    """Before `place`, wait for the operand of the first product in the trip with this counter, if there is one.

    A wait is a loop: the assembler moves no work of the trip behind it, where the second product would be done.
    """
    there = CompareOp("lt", counter, chain.loop.ub)
    insert_before(place, there)
    number = chain.ahead.numbered({chain.loop.body.block.args[0]: counter}, place)
    inside = Block([circular_buffer.ConsumerWaitOp(chain.ahead.state, number), scf.YieldOp()])
    insert_before(place, scf.IfOp(there.result, [], Region(inside), Region()))


def _end(chain: _Chain, loop: scf.ForOp) -> None:
    """Behind the loop: the second product of the last trip."""
    place, counter, state = loop.next_op, loop.body.block.args[0], chain.use.state
    assert place is not None

    def add(op: Operation) -> SSAValue:
        insert_before(place, op)
        return op.results[0]

    almost = add(arith.SubiOp(trips_of(chain.loop, add), add(arith.ConstantOp(IntegerAttr(1, INDEX)))))
    final = add(arith.AddiOp(chain.loop.lb, add(arith.MuliOp(almost, chain.loop.step))))
    number = chain.use.numbered({counter: final}, place)
    # The loop gives the sums that the product adds to, and behind all else its first factor.
    started = _with(chain.second, loop.results[-1], number, loop.results[chain.carried])
    done = circular_buffer.FinishOp(0, started.result)
    wait, release = circular_buffer.ConsumerWaitOp(state, number), circular_buffer.ConsumerReleaseOp(state, number)
    insert_before(place, wait, started, done, release)
    chain.loop.results[chain.carried].replace_all_uses_with(done.result)


def _with(
    product: circular_buffer.StagedDotOp, a: SSAValue, number: SSAValue, c: SSAValue
) -> circular_buffer.StagedDotOp:
    """The product of other tiles in registers, with another use of its circular buffer."""
    return circular_buffer.StagedDotOp(
        product.intrinsic.data, a, "", product.b, product.b_memory.data, number, product.depth.value.data, c
    )
