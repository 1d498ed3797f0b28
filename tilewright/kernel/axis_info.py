"""What is known of the numbers of a tile along each of its dimensions: runs, what divides their beginnings, repeats.

Of a tile of offsets it says which of them lie side by side in memory, and how they are aligned; of a mask, which
elements are inside or outside together. Forward over the tile form; integers wrap, and what is said holds up to that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import gcd

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import DenseArrayBase, IndexType, IntegerType
from xdsl.ir import Block, Operation, SSAValue

from tilewright.dataclass import dataclass
from tilewright.kernel import dialect as tile
from tilewright.kernel.dialect import FuncOp, element, shape, strides_of
from tilewright.kernel.elements import ELEMENT
from tilewright.kernel.rewrite import uniform

ANYTHING = 1 << 62  # what is said to divide 0

HINTS = ("contiguity", "divisibility", "constancy")
"""Attributes of an operation, i64 arrays of a number per dimension, that promise more of its result than its rule."""


@dataclass(frozen=True)
class AxisInfo:
    """Facts of an integer tile, one number per dimension; a scalar counts as a tile of one dimension, of extent 1.

    Along dimension d the tile falls into groups of `contiguity[d]` elements, each of them 1 more than the one before;
    the first of every group is a multiple of `divisibility[d]`, a power of two. In groups of `constancy[d]` elements
    all are equal. `constant` is the value of all elements, and none is negative or larger than `most`, where known.
    """

    contiguity: tuple[int, ...]
    divisibility: tuple[int, ...]
    constancy: tuple[int, ...]
    constant: int | None = None
    most: int | None = None

    def divides(self, dim: int, run: int = 1) -> int:
        """What divides the first of every `run` elements along a dimension: the effective divisibility."""
        own = self.contiguity[dim]
        return self.divisibility[dim] if run % own == 0 else gcd(self.divisibility[dim], own, run)

    def every(self) -> int:
        """What divides all elements."""
        return max(self.divides(dim) for dim in range(len(self.divisibility)))


def unknown(rank: int) -> AxisInfo:
    ones = (1,) * max(1, rank)
    return AxisInfo(ones, ones, ones)


class AxisAnalysis:
    """The facts of all values of a kernel in tile form, with or without layouts."""

    def __init__(self, kernel: FuncOp) -> None:
        self.grid = kernel.extents
        self.known: dict[SSAValue, AxisInfo] = {}
        self.visit(kernel.body.block)

    def of(self, value: SSAValue) -> AxisInfo:
        while value not in self.known and isinstance(value.owner, tile.ConvertOp):
            value = value.owner.value
        return self.known.get(value) or unknown(len(shape(value)))

    def visit(self, block: Block) -> None:
        """Note the facts of all that a block makes; those of what it reads are known."""
        for op in block.ops:
            if isinstance(op, scf.ForOp):
                self.loop(op)
            elif isinstance(op, scf.IfOp):
                self.branch(op)
            else:
                for result in op.results:
                    if isinstance(element(result), IntegerType | IndexType):
                        self.known[result] = self.hinted(op, self.made(op, result))

    def made(self, op: Operation, result: SSAValue) -> AxisInfo:
        if isinstance(op, tile.ProgramIdOp):
            return replace(unknown(0), most=self.grid[op.axis.value.data] - 1)
        number = uniform(result)
        if number is not None:
            return _constant(int(number) & 1 if _bits(result) == 1 else int(number), result)
        rule = _RULES.get(type(op)) or (_element_wise if op.name in ELEMENT else None)
        if rule is None:
            return unknown(len(shape(result)))
        operands = [self.of(operand) for operand in op.operands]
        if op.name in ELEMENT and shape(result):  # a scalar beside tiles stands for a tile
            operands = [
                info if shape(operand) else _repeated(info, shape(result))
                for operand, info in zip(op.operands, operands, strict=True)
            ]
        return rule(_Case(op, result, shape(result) or (1,), operands))

    def hinted(self, op: Operation, info: AxisInfo) -> AxisInfo:
        runs, divides, same = (_promised(op, name, getattr(info, name)) for name in HINTS)
        return AxisInfo(runs, divides, same, info.constant, info.most)

    def loop(self, op: scf.ForOp) -> None:
        """What holds at first and, if it holds at the start of a trip, at its end; found by giving up what does not."""
        block = op.body.block
        low, high, step = self.of(op.lb), self.of(op.ub), self.of(op.step)
        most = None if low.most is None or high.most is None else max(high.most - 1, low.most)
        counter = AxisInfo((1,), (gcd(low.every(), step.every()),), (1,), most=most)
        carried = [self.of(value) for value in op.iter_args]
        while True:
            self.known[block.args[0]] = counter
            self.known.update(zip(block.args[1:], carried, strict=True))
            self.visit(block)
            last = block.last_op
            assert last is not None
            left = [_either(a, self.of(b)) for a, b in zip(carried, last.operands, strict=True)]
            if left == carried:
                break
            carried = left
        self.known.update(zip(op.results, carried, strict=True))

    def branch(self, op: scf.IfOp) -> None:
        left = []
        for region in op.regions:
            for block in region.blocks:
                self.visit(block)
                assert block.last_op is not None
                left.append([self.of(value) for value in block.last_op.operands])
        for result, yes, no in zip(op.results, *left, strict=True) if op.results else ():
            self.known[result] = _either(yes, no, largest=True)


# Rules ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Case:
    """An operation, and what is known of its operands; those beside tiles have the rank of the result."""

    op: Operation
    result: SSAValue
    extents: tuple[int, ...]
    operands: Sequence[AxisInfo]

    @property
    def dims(self) -> range:
        return range(len(self.extents))

    @property
    def constancy(self) -> tuple[int, ...]:
        """Where all operands repeat themselves."""
        return tuple(gcd(*(info.constancy[d] for info in self.operands)) for d in self.dims)

    @property
    def pair(self) -> tuple[AxisInfo, AxisInfo]:
        lhs, rhs = self.operands
        return lhs, rhs

    def bound(self, number: int | None) -> int | None:
        """A bound of the result, if no number up to it wraps."""
        return number if number is not None and number < 1 << (_bits(self.result) - 1) else None


def _bits(value: SSAValue) -> int:
    bare = element(value)
    return bare.width.data if isinstance(bare, IntegerType) else 64


def _constant(number: int, value: SSAValue) -> AxisInfo:
    extents = shape(value) or (1,)
    divides = (number & -number) or ANYTHING
    same = (min(divides, ANYTHING),) * len(extents)
    return AxisInfo((1,) * len(extents), same, extents, number, number if number >= 0 else None)


def _repeated(info: AxisInfo, extents: tuple[int, ...]) -> AxisInfo:
    """A scalar in all elements of a tile."""
    ones = (1,) * len(extents)
    return AxisInfo(ones, (info.divides(0),) * len(extents), extents, info.constant, info.most)


def _promised(op: Operation, name: str, own: tuple[int, ...]) -> tuple[int, ...]:
    given = op.attributes.get(name)
    if not isinstance(given, DenseArrayBase) or len(given) != len(own):
        return own
    return tuple(max(int(number), known) for number, known in zip(given.get_values(), own, strict=True))


def _either(a: AxisInfo, b: AxisInfo, largest: bool = False) -> AxisInfo:
    """What holds of both; bounds that differ only where one that is `largest` is wanted, as loops would raise them."""
    runs = tuple(map(gcd, a.contiguity, b.contiguity))
    most = a.most if a.most == b.most else None
    if largest and a.most is not None and b.most is not None:
        most = max(a.most, b.most)
    return AxisInfo(
        runs,
        tuple(gcd(a.divides(d, run), b.divides(d, run)) for d, run in enumerate(runs)),
        tuple(map(gcd, a.constancy, b.constancy)),
        a.constant if a.constant == b.constant else None,
        most,
    )


def _straight(info: AxisInfo, dim: int) -> int:
    """Elements in a row, each 1 more than the one before, between which nothing wraps: types hold as many at least."""
    return gcd(info.contiguity[dim], info.divisibility[dim])


def _element_wise(case: _Case) -> AxisInfo:
    """Equal operands give equal results; no more is known."""
    return replace(unknown(len(case.extents)), constancy=case.constancy)


def _sum(case: _Case) -> AxisInfo:
    (a, b), dims = case.pair, case.dims
    runs = tuple(max(gcd(a.constancy[d], b.contiguity[d]), gcd(a.contiguity[d], b.constancy[d])) for d in dims)
    most = None if a.most is None or b.most is None else case.bound(a.most + b.most)
    return AxisInfo(runs, _common(a, b, runs), case.constancy, most=most)


def _difference(case: _Case) -> AxisInfo:
    a, b = case.pair
    runs = tuple(map(gcd, a.contiguity, b.constancy))
    return AxisInfo(runs, _common(a, b, runs), case.constancy)


def _common(a: AxisInfo, b: AxisInfo, runs: Sequence[int]) -> tuple[int, ...]:
    return tuple(gcd(a.divides(d, run), b.divides(d, run)) for d, run in enumerate(runs))


def _product(case: _Case) -> AxisInfo:
    a, b = case.pair
    if 1 in (a.constant, b.constant):
        return b if a.constant == 1 else a
    divides = tuple(min(a.divides(d) * b.divides(d), ANYTHING) for d in case.dims)
    most = None if a.most is None or b.most is None else case.bound(a.most * b.most)
    return replace(_element_wise(case), divisibility=divides, most=most)


def _shifted_up(case: _Case) -> AxisInfo:
    value, count = case.pair
    if count.constant is None or not 0 <= count.constant < min(62, _bits(case.result)):
        return _element_wise(case)
    return _product(replace(case, operands=[value, _constant(1 << count.constant, case.result)]))


def _quotient(case: _Case) -> AxisInfo:
    """By a positive constant, rounded down: the other quotients are the same where nothing is negative."""
    value, by = case.pair
    p = by.constant
    if p is None or p < 1 or (p > 1 and isinstance(case.op, arith.DivSIOp) and value.most is None):
        return _element_wise(case)
    return _divided(case, value, p)


def _shifted_down(case: _Case) -> AxisInfo:
    value, count = case.pair
    if count.constant is None or not 0 <= count.constant < min(62, _bits(case.result)):
        return _element_wise(case)
    return _divided(case, value, 1 << count.constant)


def _divided(case: _Case, value: AxisInfo, p: int) -> AxisInfo:
    if p == 1:
        return value
    same = tuple(max(value.constancy[d], gcd(_straight(value, d), p)) for d in case.dims)
    exact = all(value.divides(d) % p == 0 for d in case.dims)
    divides = tuple(value.divides(d) // p if exact else 1 for d in case.dims)
    return replace(
        unknown(len(case.extents)), divisibility=divides, constancy=same,
        most=None if value.most is None else value.most // p,
    )  # fmt: skip


def _remainder(case: _Case) -> AxisInfo:
    """Of a division by a positive constant: up from 0 where nothing is negative, or without a sign."""
    value, by = case.pair
    p = by.constant
    if p is None or p < 1:
        return replace(_element_wise(case), divisibility=_common(value, by, (1,) * len(case.extents)))
    runs = (1,) * len(case.extents)
    if value.most is not None or isinstance(case.op, arith.RemUIOp):
        runs = tuple(gcd(_straight(value, d), p) for d in case.dims)
    divides = tuple(gcd(value.divides(d, run), p) for d, run in enumerate(runs))
    most = p - 1 if isinstance(case.op, arith.RemUIOp) else None
    if value.most is not None:
        most = min(value.most, p - 1)
    return AxisInfo(runs, divides, value.constancy, most=most)


def _and(case: _Case) -> AxisInfo:
    """With 2^k - 1 the remainder of a division by 2^k; zeros at the end stay."""
    for value, mask in (case.pair, case.pair[::-1]):
        if mask.constant is not None and 0 < mask.constant < ANYTHING and not mask.constant & (mask.constant + 1):
            p = mask.constant + 1
            runs = tuple(gcd(_straight(value, d), p) for d in case.dims)
            divides = tuple(gcd(value.divides(d, run), p) for d, run in enumerate(runs))
            return AxisInfo(runs, divides, value.constancy, most=mask.constant)
    a, b = case.pair
    bounds = [info.most for info in (a, b) if info.most is not None]
    divides = tuple(max(a.divides(d), b.divides(d)) for d in case.dims)
    return replace(_element_wise(case), divisibility=divides, most=min(bounds, default=None))


def _or(case: _Case) -> AxisInfo:
    return replace(_element_wise(case), divisibility=_common(*case.pair, (1,) * len(case.extents)))


def _smaller(case: _Case) -> AxisInfo:
    return replace(_or(case), most=_of_both(case, min))


def _larger(case: _Case) -> AxisInfo:
    return replace(_or(case), most=_of_both(case, max))


def _of_both(case: _Case, choose: Callable[[int, int], int]) -> int | None:
    a, b = case.pair
    return None if a.most is None or b.most is None or _bits(case.result) == 1 else choose(a.most, b.most)


def _compared(case: _Case) -> AxisInfo:
    """A run against a bound that is a multiple of its length: all of it is below, or none."""
    op, (a, b) = case.op, case.pair
    assert isinstance(op, tile.CompareOp)
    same = list(case.constancy)
    if isinstance(element(op.lhs), IntegerType | IndexType) and _bits(op.lhs) > 1:
        if op.predicate.data in ("gt", "le"):
            a, b = b, a
        if op.predicate.data in ("lt", "ge", "gt", "le"):
            for d in case.dims:
                same[d] = max(same[d], gcd(_straight(a, d), b.constancy[d], b.divides(d)))
    return replace(unknown(len(case.extents)), constancy=tuple(same), most=1)


def _chosen(case: _Case) -> AxisInfo:
    condition, yes, no = case.operands
    both = _either(yes, no, largest=True)
    runs = tuple(map(gcd, both.contiguity, condition.constancy))
    divides = tuple(both.divides(d, run) for d, run in enumerate(runs))
    return replace(both, contiguity=runs, divisibility=divides, constancy=case.constancy)


def _cast(case: _Case) -> AxisInfo:
    """Between integers: in runs in which no number of the narrower type wraps."""
    source, target = case.op.operands[0], case.result
    bits = min(_bits(source), _bits(target))
    if bits == 1 or not isinstance(element(source), IntegerType | IndexType):
        return _element_wise(case)
    value = case.operands[0]
    if _bits(source) == _bits(target):
        return value
    runs = tuple(gcd(_straight(value, d), 1 << (bits - 1)) for d in case.dims)
    divides = tuple(value.divides(d, run) for d, run in enumerate(runs))
    most = None if value.most is None else case.bound(value.most)
    return AxisInfo(runs, divides, value.constancy, value.constant if most is not None else None, most)


def _count(case: _Case) -> AxisInfo:
    """From 0 along one dimension, the same along the others."""
    assert isinstance(case.op, tile.IotaOp)
    axis, ones = case.op.axis.value.data, [1] * len(case.extents)
    runs, same, divides = list(ones), list(case.extents), list(ones)
    runs[axis], same[axis], divides[axis] = case.extents[axis], 1, ANYTHING
    return AxisInfo(tuple(runs), tuple(divides), tuple(same), most=case.extents[axis] - 1)


def _broadcast(case: _Case) -> AxisInfo:
    (info,), source = case.operands, shape(case.op.operands[0])
    if not source:
        return _repeated(info, case.extents)
    grown = [d for d in case.dims if source[d] != case.extents[d]]
    same = tuple(case.extents[d] if d in grown else info.constancy[d] for d in case.dims)
    return replace(info, constancy=same)


def _reshaped(case: _Case) -> AxisInfo:
    """Dimensions of extent 1 come and go; else the last one keeps the runs that do not go on in the next row."""
    (info,), source = case.operands, shape(case.op.operands[0]) or (1,)
    old, new = ([d for d, extent in enumerate(extents) if extent > 1] for extents in (source, case.extents))
    runs, same, divides = ([1] * len(case.extents) for _ in range(3))
    divides = [info.every()] * len(case.extents)
    pairs = list(zip(old, new, strict=True)) if [source[d] for d in old] == [case.extents[d] for d in new] else []
    for before, after in pairs or zip(old[-1:], new[-1:], strict=True):
        row = gcd(source[before], case.extents[after])
        runs[after], same[after] = gcd(info.contiguity[before], row), gcd(info.constancy[before], row)
        divides[after] = info.divides(before, runs[after])
    return AxisInfo(tuple(runs), tuple(divides), tuple(same), info.constant, info.most)


def _loaded(case: _Case) -> AxisInfo:
    """The same element where a load does not move."""
    op = case.op
    assert isinstance(op, tile.LoadOp)
    if not shape(case.result) or op.bounds or op.mask is not None:
        return unknown(len(case.extents))
    same = tuple(1 if stride else extent for stride, extent in zip(strides_of(op), case.extents, strict=True))
    return replace(unknown(len(case.extents)), constancy=same)


def _gathered(case: _Case) -> AxisInfo:
    return _element_wise(replace(case, operands=case.operands[1:]))


_RULES: dict[type[Operation], Callable[[_Case], AxisInfo]] = {
    arith.AddiOp: _sum,
    arith.SubiOp: _difference,
    arith.MuliOp: _product,
    arith.ShLIOp: _shifted_up,
    arith.FloorDivSIOp: _quotient,
    arith.DivSIOp: _quotient,
    arith.DivUIOp: _quotient,
    arith.ShRSIOp: _shifted_down,
    arith.ShRUIOp: _shifted_down,
    arith.RemSIOp: _remainder,
    arith.RemUIOp: _remainder,
    arith.AndIOp: _and,
    arith.OrIOp: _or,
    arith.XOrIOp: _or,
    arith.MinSIOp: _smaller,
    arith.MaxSIOp: _larger,
    arith.IndexCastOp: _cast,
    tile.CastOp: _cast,
    tile.CompareOp: _compared,
    tile.SelectOp: _chosen,
    tile.IotaOp: _count,
    tile.BroadcastOp: _broadcast,
    tile.ReshapeOp: _reshaped,
    tile.ConvertOp: lambda case: case.operands[0],
    tile.LoadOp: _loaded,
    tile.GatherOp: _gathered,
}
