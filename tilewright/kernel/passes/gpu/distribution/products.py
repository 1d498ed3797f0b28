"""What threads do to multiply tiles: matrix instructions of their warp, or multiply-adds of their own."""

from __future__ import annotations

from itertools import product

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import AnyFloat
from xdsl.ir import Attribute, SSAValue

from tilewright.kernel import dialect as tile
from tilewright.kernel import simt
from tilewright.kernel.dialect import element
from tilewright.kernel.passes.gpu.distribution.expansion import Expansion
from tilewright.kernel.passes.gpu.distribution.layout import assigned_layout
from tilewright.kernel.passes.gpu.distribution.matrix import fragments, is_transposed, one_warp, read_as
from tilewright.kernel.passes.gpu.distribution.multiply_add import rows_of
from tilewright.kernel.records import fragments_record


def dot(at: Expansion, op: tile.DotOp) -> SSAValue:
    """One instruction per fragment of the result and step of k; k outermost if neighbours are to be independent."""
    record = fragments_record(op)
    if record is None:
        return _multiply_add(at, op)
    layouts, precision = [assigned_layout(operand) for operand in op.operands], read_as(op)
    transposed = is_transposed(record, layouts[2])
    ones = one_warp(record, transposed)
    places = [fragments(layout, one) for layout, one in zip(layouts, ones, strict=True)]
    held = [at.values[operand] for operand in op.operands]
    a, b, c = (
        {start: at.picked(value, registers) for start, registers in places.items()}
        for value, places in zip(held, places, strict=True)
    )
    steps, sums = sorted({start[1] for start in a}), list(c)
    order = product(steps, sums) if at.settings.outer_product else ((k, sum_) for sum_, k in product(sums, steps))
    for k, (m, n) in order:
        left, right = (b[k, n], a[m, k]) if transposed else (a[m, k], b[k, n])
        c[m, n] = at.add(simt.MmaOp(op.intrinsic.data, left, right, c[m, n], precision)).results[0]
    joined = at.joined(list(c.values()))
    own = [register for registers in places[2].values() for register in registers]
    return at.picked(joined, [own.index(register) for register in range(len(own))])


def _multiply_add(at: Expansion, op: tile.DotOp) -> SSAValue:
    """Row by row of the thread's tile of c, k outermost: an element of a times a row of b."""
    rows = rows_of((assigned_layout(op.a), assigned_layout(op.b), assigned_layout(op.c)))
    a = _widened(at, op.a, element(op.c), "a" in op.unsigned.data)
    b = _widened(at, op.b, element(op.c), "b" in op.unsigned.data)
    sums = [at.picked(at.values[op.c], own) for own, _ in rows]
    for step in range(len(rows[0][1])):
        columns: dict[tuple[int, ...], SSAValue] = {}
        for number, (own, steps) in enumerate(rows):
            of_a, of_b = steps[step]
            if of_b not in columns:
                columns[of_b] = at.picked(b, of_b)
            factor = at.repeated(at.scalar(at.part(a, of_a)), len(own))
            sums[number] = _plus_product(at, sums[number], factor, columns[of_b])
    order = [register for own, _ in rows for register in own]
    return at.picked(at.joined(sums), [order.index(register) for register in range(len(order))])


def _widened(at: Expansion, operand: SSAValue, type_: Attribute, unsigned: bool) -> SSAValue:
    """The registers of a factor in the type of the sums."""
    value = at.values[operand]
    return value if element(value) == type_ else at.add(tile.CastOp(value, type_, unsigned)).results[0]


def _plus_product(at: Expansion, total: SSAValue, a: SSAValue, b: SSAValue) -> SSAValue:
    if isinstance(element(total), AnyFloat):
        return at.add(math.FmaOp(a, b, total)).results[0]
    return at.add(arith.AddiOp(total, at.add(arith.MuliOp(a, b)).results[0])).results[0]
