"""What threads do to reduce tiles: over their registers, over lanes of the warp, over warps of the block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from xdsl.dialects import arith
from xdsl.dialects.builtin import AnyFloat
from xdsl.ir import Operation, SSAValue

from tilewright.kernel import dialect as tile
from tilewright.kernel import simt
from tilewright.kernel.dialect import I1, element, shape
from tilewright.kernel.passes.gpu.distribution.access import ACCESS_BYTES
from tilewright.kernel.passes.gpu.distribution.expansion import Expansion
from tilewright.kernel.passes.gpu.distribution.layout import Share, assigned_layout, owners, projected, shares
from tilewright.kernel.simt import element_bytes
from tilewright.layouts.linear import LinearLayout
from tilewright.layouts.reduction import reduction

_COMBINE_FLOATS = {"sum": arith.AddfOp, "prod": arith.MulfOp, "max": arith.MaximumfOp, "min": arith.MinimumfOp}
_COMBINE_SIGNED = {"sum": arith.AddiOp, "prod": arith.MuliOp, "max": arith.MaxSIOp, "min": arith.MinSIOp}
_COMBINE_UNSIGNED = {"sum": arith.AddiOp, "prod": arith.MuliOp, "max": arith.MaxUIOp, "min": arith.MinUIOp}
_COMBINE_BITS = {"sum": arith.XOrIOp, "prod": arith.AndIOp, "max": arith.OrIOp, "min": arith.AndIOp}


def reduce(at: Expansion, op: tile.ReduceOp) -> SSAValue:
    """Registers, then lanes by butterflies, then warps through shared memory; every copy of a result gets it."""
    layout, dim = assigned_layout(op.value), op.axis.value.data
    steps = reduction(layout, dim)
    value = at.values[op.value]
    combine = _combining(at, op)
    results = []
    for group in steps.registers:
        terms = [at.part(value, register) for register in group]
        while len(terms) > 1:  # by pairs: in a chain every step would wait for the one before
            pairs = zip(terms[::2], terms[1::2], strict=False)
            terms = [*(combine(*pair) for pair in pairs), *terms[len(terms) // 2 * 2 :]]
        results += terms
    joined = at.joined(results)
    for bit in steps.lane_bits:
        other = at.add(simt.ShuffleOp("xor", joined, at.number(1 << bit))).results[0]
        joined = combine(joined, other)
    if steps.warp_bits:
        joined = _across_warps(at, op, layout, joined, steps.registers, combine)
    # The result has as many registers as the operand: copies along the dimension that is gone.
    target = projected(layout, shape(op.result))
    places = {}
    parts = [share.registers for share in shares(target)]
    for number, group in enumerate(steps.registers):
        places[tuple(part[group[0]] for part in parts)] = number
    order = [places[tuple(part[r] for part in parts)] for r in range(target.in_size("register"))]
    return at.picked(joined, order)


def _combining(at: Expansion, op: tile.ReduceOp) -> Callable[[SSAValue, SSAValue], SSAValue]:
    """What makes one of two terms."""
    kind, type_ = op.kind.data, element(op.value)
    table: Mapping[str, Callable[[SSAValue, SSAValue], Operation]]
    table = _COMBINE_UNSIGNED if op.unsigned is not None else _COMBINE_SIGNED
    if isinstance(type_, AnyFloat):
        table = _COMBINE_FLOATS
    elif type_ == I1:
        table = _COMBINE_BITS

    def combine(first: SSAValue, second: SSAValue) -> SSAValue:
        return at.add(table[kind](first, second)).results[0]

    return combine


def _across_warps(
    at: Expansion, op: tile.ReduceOp, layout: LinearLayout, value: SSAValue, groups: Sequence[Sequence[int]],
    combine: Callable[[SSAValue, SSAValue], SSAValue],
) -> SSAValue:  # fmt: skip
    """Partial results of warps through shared memory, so many per result as there are warps along the dimension.

    Neighbouring lanes that hold different results write and read neighbouring places.
    """
    dim = op.axis.value.data
    target = projected(layout, shape(op.result))
    lanes = len(layout.of("lane"))
    along = [bit for bit, base in enumerate(layout.of("warp")) if base[dim]]
    columns = 1 << len(along)
    rows = prod(shape(op.result))
    memory = at.shared(rows * columns, element(op.value))
    column = at.thread_part(Share(tuple((lanes + bit, 1 << place) for place, bit in enumerate(along)), (0,)))
    assert column is not None
    free, _ = owners(target)
    silent = free & ((1 << lanes) - 1)  # of lanes with the same result one writes
    warps = free >> lanes
    silent |= (warps & ~sum(1 << bit for bit in along)) << lanes
    stride, places = _places_of_results(at, target, [group[0] for group in groups], columns)
    if stride > 1:
        column = at.add(arith.MuliOp(column, at.number(stride))).results[0]

    def write() -> None:
        for number, place in enumerate(places):
            offset = at.add(arith.AddiOp(place, column)).results[0]
            at.put(at.part(value, number), memory, offset)

    at.add(simt.BarrierOp())  # a trip before may still be reading
    at.where_free_is_zero(silent, write)
    at.add(simt.BarrierOp())
    results = []
    for place in places:
        type_ = element(op.value)
        wide = min(columns, ACCESS_BYTES // element_bytes(memory)) if stride == 1 else 1
        total: SSAValue | None = None
        for other in range(0, columns, wide):
            offset = at.add(arith.AddiOp(place, at.number(other * stride))).results[0]
            loaded = at.get(memory, offset, wide, type_, wide * element_bytes(memory) if wide > 1 else None)
            for number in range(wide):
                one = at.part(loaded, number)
                total = one if total is None else combine(total, one)
        assert total is not None
        results.append(total)
    return at.joined(results)


def _places_of_results(
    at: Expansion, target: LinearLayout, firsts: Sequence[int], columns: int
) -> tuple[int, list[SSAValue]]:
    """Distance of the partial results of one result, and where those of a thread's results begin."""
    bases = [*target.of("lane"), *target.of("warp")]
    free, _ = owners(target)
    if any(free >> bit & 1 and any(base) for bit, base in enumerate(bases)):  # copies that are sums of others
        return 1, [at.linear(target, first, columns) for first in firsts]
    own = [bit for bit in range(len(bases)) if not free >> bit & 1]
    stride = 1 << len(own)
    thread = at.thread_part(Share(tuple((bit, 1 << place) for place, bit in enumerate(own)), (0,)))
    places = []
    for number in range(len(firsts)):
        start = at.number(number * columns * stride)
        places.append(start if thread is None else at.add(arith.AddiOp(thread, start)).results[0])
    return stride, places
