"""Conversions between layouts that need not be: folded, moved out of loops, shared, or computed in the other layout.

`assign-layouts` leaves one wherever an operation wants a tile in another layout than it is in; each is a passage
through shared memory unless the threads hold the same elements.
"""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from tilewright.dataclass import dataclass
from tilewright.kernel import dialect as tile
from tilewright.kernel.dialect import I1, FuncOp, element, operations, shape
from tilewright.kernel.elements import ELEMENT
from tilewright.kernel.passes.gpu.distribution.exchange import price
from tilewright.kernel.passes.gpu.distribution.layout import give, layout_of, projected, registers, with_layout
from tilewright.kernel.rewrite import erase, insert_before, replace_by_values
from tilewright.kernel.simt import element_bytes
from tilewright.layouts.linear import LinearLayout
from tilewright.layouts.opaque import Opaque

_DEAR = 8.0  # of an element operation that is no single instruction
_CHEAP_DIALECTS = ("arith", "tile")
_DIVISIONS = (arith.DivfOp, arith.DivSIOp, arith.DivUIOp, arith.RemSIOp, arith.RemUIOp, arith.FloorDivSIOp)
_HELD_BYTES = 768  # of the 1020 that a thread has in registers; the others are addresses and what operations make


@dataclass(frozen=True)
class RemoveConversionsPass(ModulePass):
    """Leave out conversions of layouts that cost more than doing without.

    Before:  %m = arith.cmpi %i, %n   %c = tile.convert %m : L to K          with counts %i and constants %n in L
    After:   %c = arith.cmpi %i, %n                                          with both in K
    A conversion of a conversion is one; one of what a loop does not change is made before the loop, where a trip
    leaves registers for it; equal ones are made once. What element operations compute is computed again in the other
    layout where the conversions of what they read cost less: none of counts, constants and repeated rows that are
    small, half of what a cast makes wide. Costs are words through shared memory, two barriers, and operations that
    are then done twice. Legal always. Loads, products and reductions stay where they are. Needs `assign-layouts`.
    """

    name = "remove-conversions"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.body.ops:
            if isinstance(kernel, FuncOp) and not kernel.block:
                found = [each for each in operations(kernel.body) if isinstance(each, tile.ConvertOp)]
                while found:
                    each = found.pop(0)
                    if each.parent is not None:
                        found += _improved(each)
                _share(kernel.body.block, {})


def _improved(op: tile.ConvertOp) -> list[tile.ConvertOp]:
    """Fold, move or replace a conversion; gives the conversions that are new."""
    layout = layout_of(op.result)
    assert layout is not None
    while isinstance(op.value.owner, tile.ConvertOp):
        inner = op.value.owner
        op.operands[0] = inner.value
        _sweep(inner)
    if layout_of(op.value) == layout:
        source = op.value
        replace_by_values(op, [source])
        return []
    plan = _Plan()
    plan.visit(op.value, layout, once=True)
    if not isinstance(layout, Opaque) and plan.cost < _cost(op.value, layout):
        made: list[tile.ConvertOp] = []
        value = _again(op.value, layout, op, {}, made)
        source = op.value
        replace_by_values(op, [value])
        if isinstance(source.owner, Operation):
            _sweep(source.owner)
        return made
    _hoist(op)
    return []


class _Plan:
    """What it costs to have a value in another layout without a conversion of its own."""

    def __init__(self) -> None:
        self.cost = 0.0
        self.seen: set[tuple[SSAValue, LinearLayout]] = set()

    def visit(self, value: SSAValue, layout: LinearLayout, once: bool) -> None:
        """`once`: all that reads the value is computed again, so that the old one goes."""
        if layout_of(value) == layout or (value, layout) in self.seen:
            return
        self.seen.add((value, layout))
        own = _operation(value)
        if own is None:
            self.cost += _cost(value, layout)
            return
        once = once and value.has_one_use()
        if own.name in ELEMENT:
            more = layout.in_size("register") - (registers(value) if once else 0)
            self.cost += max(0, more) * _weight(own)
        for operand, wanted in _wanted(own, layout):
            self.visit(operand, wanted, once)


def _operation(value: SSAValue) -> Operation | None:
    """What makes a value and can make it in any layout."""
    owner = value.owner
    if not isinstance(owner, Operation):
        return None
    constant = isinstance(owner, arith.ConstantOp | tile.IotaOp | tile.BroadcastOp)
    return owner if constant or owner.name in ELEMENT else None


def _wanted(op: Operation, layout: LinearLayout) -> list[tuple[SSAValue, LinearLayout]]:
    """The tiles that an operation reads, in the layouts from which it makes its result in `layout`."""
    tiles = [operand for operand in op.operands if shape(operand)]
    if isinstance(op, tile.BroadcastOp):
        return [(each, projected(layout, shape(each))) for each in tiles]
    return [(each, layout) for each in tiles]


def _again(
    value: SSAValue, layout: LinearLayout, before: tile.ConvertOp, known: dict[tuple[SSAValue, LinearLayout], SSAValue],
    made: list[tile.ConvertOp],
) -> SSAValue:  # fmt: skip
    """A value in another layout, computed ahead of a conversion."""
    if layout_of(value) == layout:
        return value
    if (value, layout) not in known:
        own = _operation(value)
        if own is None:
            convert = tile.ConvertOp(value, with_layout(value.type, layout))
            insert_before(before, convert)
            made.append(convert)
            known[value, layout] = convert.result
        else:
            operands = {each: _again(each, wanted, before, known, made) for each, wanted in _wanted(own, layout)}
            clone = own.clone()
            for index, operand in enumerate(own.operands):
                clone.operands[index] = operands.get(operand, operand)
            insert_before(before, clone)
            clone.location = own.location
            result = clone.results[own.results.index(value)]
            give(result, layout)
            result.name_hint = value.name_hint
            known[value, layout] = result
    return known[value, layout]


def _cost(value: SSAValue, layout: LinearLayout) -> float:
    """Of a conversion, in instructions of a thread."""
    source = layout_of(value)
    assert source is not None
    return price(source, layout, 1 if element(value) == I1 else element_bytes(value))


def _weight(op: Operation) -> float:
    return _DEAR if isinstance(op, _DIVISIONS) or op.name.partition(".")[0] not in _CHEAP_DIALECTS else 1.0


def _hoist(op: tile.ConvertOp) -> None:
    """Out of the loops that do not make its value, unless their registers are needed."""
    while True:
        block, loop = op.parent, op.parent_op()
        if not isinstance(loop, scf.ForOp) or _is_inside(op.value, loop) or _held(loop) > _HELD_BYTES:
            return
        assert block is not None
        insert_before(loop, block.detach_op(op))


def _held(loop: scf.ForOp) -> int:
    """Bytes of a thread that a trip may hold at once, where the assembler moves loads of fragments up."""
    last = loop.body.block.last_op
    assert last is not None
    made = [each for op in operations(loop.body) if isinstance(op, tile.ConvertOp | tile.DotOp) for each in op.results]
    kept = set(last.operands)  # in the registers of the loop's arguments
    tiles = [each for each in (*loop.body.block.args, *made) if shape(each) and each not in kept]
    return sum(registers(each) * (1 if element(each) == I1 else element_bytes(each)) for each in tiles)


def _is_inside(value: SSAValue, loop: scf.ForOp) -> bool:
    block = value.owner if isinstance(value.owner, Block) else value.owner.parent
    while block is not None:
        if block is loop.body.block:
            return True
        block = block.parent_block()
    return False


def _share(block: Block, known: dict[tuple[SSAValue, LinearLayout | None], SSAValue]) -> None:
    """Let one conversion serve all behind it that give the same; `known` are those before the block."""
    known = dict(known)
    for op in list(block.ops):
        if isinstance(op, tile.ConvertOp):
            key = op.value, layout_of(op.result)
            if key in known:
                replace_by_values(op, [known[key]])
            else:
                known[key] = op.result
        for region in op.regions:
            for inner in region.blocks:
                _share(inner, known)


def _sweep(op: Operation) -> None:
    """Remove what a conversion read and nothing reads any more."""
    if not op.parent or any(result.first_use is not None for result in op.results):
        return
    if not (isinstance(op, tile.ConvertOp) or any(_operation(result) is op for result in op.results)):
        return
    operands = list(op.operands)
    erase(op)
    for operand in operands:
        if isinstance(operand.owner, Operation):
            _sweep(operand.owner)
