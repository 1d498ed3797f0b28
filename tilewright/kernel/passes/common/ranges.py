"""What the ranges of loops, programs and tile coordinates decide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType, IntegerAttr, IntegerType, ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from tilewright.dataclass import dataclass
from tilewright.kernel.dialect import (
    BlockRankOp,
    BroadcastOp,
    CastOp,
    CompareOp,
    FuncOp,
    IotaOp,
    LoadOp,
    ProgramIdOp,
    ReshapeOp,
    SelectOp,
    StoreOp,
    element,
    shape,
)
from tilewright.kernel.elements import dtype_of
from tilewright.kernel.passes.common.rules.access import reloaded, restored
from tilewright.kernel.rewrite import replace, replace_by_number, replace_by_values, uniform

Range = tuple[int, int]
"""The smallest and the largest number that any element of a value can be; i1 is 0 or 1."""


@dataclass(frozen=True)
class RangesPass(ModulePass):
    """Decide comparisons, minima, remainders, choices and bounds by the smallest and largest values that occur.

    Before:  scf.for %i = %c0 to %c7 step %c1 { %r = arith.remsi %i, %c8   tile.load %v[%r] bounds(%c64) ... x 32 }
    After:   scf.for %i = %c0 to %c7 step %c1 { tile.load %v[%i] ... x 32 }
    Legal because a range holds every value that can occur: what may leave its type has none. Ranges come from
    loops, the grid, the threads of a block, counts along tiles and constants, through sums, products, quotients and
    remainders of them.
    """

    name = "ranges"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.body.ops:
            if isinstance(kernel, FuncOp):
                _Walk(kernel.extents, kernel.blocks, kernel.block).visit(kernel.body.block)


@dataclass
class _Walk:
    """One walk forward: operands are known before the operations that use them."""

    grid: tuple[int, ...]
    blocks: int
    threads: tuple[int, ...]
    known: dict[SSAValue, Range] = field(default_factory=dict)

    def visit(self, block: Block) -> None:
        op = block.first_op
        while op is not None:
            following = op.next_op
            if isinstance(op, scf.ForOp):
                counter = self.counter(op)
                if counter is not None:
                    self.known[op.body.block.args[0]] = counter
            for region in op.regions:
                for inner in region.blocks:
                    self.visit(inner)
            self.decide(op)
            op = following

    def range(self, value: SSAValue) -> Range | None:
        found = self.known.get(value)
        if found is None and isinstance(element(value), IntegerType | IndexType):
            number = uniform(value)
            if number is not None:
                found = (int(number) & 1,) * 2 if element(value) == _BIT else (int(number),) * 2
            elif element(value) == _BIT:
                found = 0, 1
        return found

    def counter(self, loop: scf.ForOp) -> Range | None:
        """What a loop counts; a loop of no trips may say anything."""
        low, high, step = self.range(loop.lb), self.range(loop.ub), self.range(loop.step)
        if low is None or high is None or step is None or step[0] < 1:
            return None
        last = max(high[1] - 1, low[0])
        if low[0] == low[1] and step[0] == step[1]:
            last -= (last - low[0]) % step[0]
        return low[0], last

    def decide(self, op: Operation) -> None:
        """Replace an operation that its ranges decide, or note the range of its result."""
        rule = _RULES.get(type(op))
        if rule is None:
            self.note_kind(op)
            return
        if not isinstance(element(op.results[0]), IntegerType | IndexType):
            return
        operands = [self.range(operand) for operand in op.operands]
        if any(operand is None for operand in operands):
            return
        if element(op.results[0]) == _BIT and type(op) not in _OF_BITS:
            return
        found = rule(op, *operands)
        if found is None or not _fits(found, op.results[0]):
            return
        same = _equal_operand(op, operands)
        if found[0] == found[1]:
            if uniform(op.results[0]) is None:  # else it is a number already
                replace_by_number(op, found[0])
        elif same is not None:
            replace_by_values(op, [op.operands[same]])
        else:
            self.known[op.results[0]] = found

    def note_kind(self, op: Operation) -> None:
        """Note what the kind of an operation says of its result; drop bounds of loads and stores."""
        if isinstance(op, LoadOp | StoreOp):
            self.drop_bounds(op)
        elif isinstance(op, ProgramIdOp):
            self.known[op.result] = (0, self.grid[op.axis.value.data] - 1)
        elif isinstance(op, BlockRankOp):
            self.known[op.result] = (0, self.blocks - 1)
        elif op.name == "simt.thread_id":
            axis = op.properties["axis"]
            assert isinstance(axis, IntegerAttr)
            self.known[op.results[0]] = (0, self.threads[axis.value.data] - 1)
        elif isinstance(op, IotaOp):
            self.known[op.result] = (0, shape(op.result)[op.axis.value.data] - 1)

    def drop_bounds(self, op: LoadOp | StoreOp) -> None:
        """Bounds that are never below the extents of the tile."""
        if not op.bounds:
            return
        limits = [self.range(bound) for bound in op.bounds]
        extents = shape(op.result) if isinstance(op, LoadOp) else shape(op.value)
        if any(limit is None or limit[0] < extent for limit, extent in zip(limits, extents, strict=True)):
            return
        if isinstance(op, LoadOp):
            replace(op, reloaded(op, (), op.mask))
        else:
            replace(op, restored(op, (), op.mask))


_BIT = IntegerType(1)


def _fits(found: Range, value: SSAValue) -> bool:
    """Whether a value of this type holds these numbers, so that none has wrapped."""
    if element(value) == _BIT:
        return found[0] >= 0 and found[1] <= 1
    bits = 8 * dtype_of(value.type).itemsize - 1
    return -(1 << bits) <= found[0] and found[1] < 1 << bits


def _equal_operand(op: Operation, operands: Sequence[Any]) -> int | None:
    """The operand that the result always is, of a minimum, a maximum, a remainder or a choice."""
    kind = type(op)
    if kind is SelectOp and operands[0][0] == operands[0][1]:
        return 1 if operands[0][0] else 2
    if kind is arith.MinSIOp:
        return next((n for n in (0, 1) if operands[n][1] <= operands[1 - n][0]), None)
    if kind is arith.MaxSIOp:
        return next((n for n in (0, 1) if operands[n][0] >= operands[1 - n][1]), None)
    if kind is arith.RemSIOp or kind is arith.RemUIOp:
        return 0 if operands[0][0] >= 0 and operands[0][1] < operands[1][0] else None
    return None


# Ranges of results from those of operands; None where nothing is known ------------------------------------------------

_Rule = Callable[..., Range | None]


def _of_corners(function: Callable[[int, int], int]) -> _Rule:
    """A function that is largest and smallest where its operands are."""

    def rule(op: Operation, a: Range, b: Range) -> Range:
        corners = [function(x, y) for x in a for y in b]
        return min(corners), max(corners)

    return rule


def _quotient(op: Operation, a: Range, b: Range) -> Range | None:
    """Rounded towards minus infinity; the other quotients are the same where nothing is negative."""
    if b[0] < 1 or (a[0] < 0 and not isinstance(op, arith.FloorDivSIOp)):
        return None
    return _of_corners(lambda x, y: x // y)(op, a, b)


def _remainder(op: Operation, a: Range, b: Range) -> Range | None:
    if b[0] < 1 or (a[0] < 0 and isinstance(op, arith.RemUIOp)):
        return None
    most = b[1] - 1
    return max(min(a[0], 0), -most), max(min(a[1], most), 0)


def _comparison(op: CompareOp, a: Range, b: Range) -> Range | None:
    if op.unsigned is not None and (a[0] < 0 or b[0] < 0):
        return None
    surely, never = {
        "lt": (a[1] < b[0], a[0] >= b[1]),
        "le": (a[1] <= b[0], a[0] > b[1]),
        "gt": (a[0] > b[1], a[1] <= b[0]),
        "ge": (a[0] >= b[1], a[1] < b[0]),
        "eq": (a[0] == a[1] == b[0] == b[1], a[1] < b[0] or b[1] < a[0]),
        "ne": (a[1] < b[0] or b[1] < a[0], a[0] == a[1] == b[0] == b[1]),
    }[op.predicate.data]
    return int(surely), int(not never)


def _bitwise(function: Callable[[int, int], int]) -> _Rule:
    """Of i1: the range of ``and`` and ``or`` goes from the ends of the operands to the ends of the result."""

    def rule(op: Operation, a: Range, b: Range) -> Range | None:
        return (function(a[0], b[0]), function(a[1], b[1])) if element(op.results[0]) == _BIT else None

    return rule


def _difference_of_bits(op: Operation, a: Range, b: Range) -> Range | None:
    if element(op.results[0]) != _BIT or a[0] != a[1] or b[0] != b[1]:
        return None
    return a[0] ^ b[0], a[0] ^ b[0]


def _same(op: Operation, a: Range) -> Range:
    return a


def _converted(op: CastOp, a: Range) -> Range | None:
    """A cast between integers keeps what fits; one to i1 compares, and one of negative numbers may wrap them first."""
    wraps = op.unsigned is not None and a[0] < 0
    return None if wraps or _BIT in (element(op.value), element(op.result)) else a


def _choice(op: Operation, condition: Range, yes: Range, no: Range) -> Range:
    if condition[0] == condition[1]:
        return yes if condition[0] else no
    return min(yes[0], no[0]), max(yes[1], no[1])


_RULES: dict[type[Operation], _Rule] = {
    arith.AddiOp: lambda op, a, b: (a[0] + b[0], a[1] + b[1]),
    arith.SubiOp: lambda op, a, b: (a[0] - b[1], a[1] - b[0]),
    arith.MuliOp: _of_corners(lambda x, y: x * y),
    arith.MinSIOp: _of_corners(min),
    arith.MaxSIOp: _of_corners(max),
    arith.FloorDivSIOp: _quotient,
    arith.DivSIOp: _quotient,
    arith.DivUIOp: _quotient,
    arith.RemSIOp: _remainder,
    arith.RemUIOp: _remainder,
    arith.AndIOp: _bitwise(lambda x, y: x & y),
    arith.OrIOp: _bitwise(lambda x, y: x | y),
    arith.XOrIOp: _difference_of_bits,
    arith.IndexCastOp: _same,
    BroadcastOp: _same,
    CastOp: _converted,
    CompareOp: _comparison,
    ReshapeOp: _same,
    SelectOp: _choice,
}

_OF_BITS = frozenset({arith.AndIOp, arith.OrIOp, arith.XOrIOp, BroadcastOp, CompareOp, ReshapeOp, SelectOp})
"""The operations that give i1 and count it as 0 and 1."""
