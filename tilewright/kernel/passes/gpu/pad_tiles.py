"""Tiles for layouts: every extent becomes a power of two, and what a tile did not have before is never seen."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    AnyFloat,
    DenseIntOrFPElementsAttr,
    IntegerAttr,
    IntegerType,
    ModuleOp,
    TensorType,
    i64,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidProgram
from tilewright.kernel import dialect as tile
from tilewright.kernel.dialect import I1, INDEX, FuncOp, element, operations, shape
from tilewright.kernel.rewrite import constant, dense_splat, insert_before, replace
from tilewright.layouts.bits import power_from

Extents = tuple[int, ...]


@dataclass(frozen=True)
class PadTilesPass(ModulePass):
    """Round the extents of all tiles of a kernel of blocks up to powers of two.

    Before:  %x = tile.load %v[%o] strides [1] : … -> tensor<100xf32>   %s = tile.reduce "max" %x, 0
    After:   %x = tile.load %v[%o] bounds(100) strides [1] : … -> tensor<128xf32>
             %s = tile.reduce "max" (tile.select (%count < 100), %x, -inf), 0
    Loads and stores get bounds, gathers a mask; a reduction sees its neutral element, a product zeros; elsewhere what a
    tile has more may be anything. Legal but for reshapes that take apart what is padded, and constants of different
    elements: these are refused with InvalidProgram. Afterwards every tile has extents that a linear layout holds.
    """

    name = "pad-tiles"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.body.ops:
            if isinstance(kernel, FuncOp) and not kernel.block:
                _Padding(kernel).run()


def _rounded(extents: Sequence[int]) -> Extents:
    return tuple(map(power_from, extents))


class _Padding:
    """One kernel: `before` has the extents that its tiles had, `zero` the values that are 0 beyond them."""

    def __init__(self, kernel: FuncOp) -> None:
        self.ops = operations(kernel.body)
        inner = [argument for op in self.ops for r in op.regions for block in r.blocks for argument in block.args]
        values = [*inner, *(result for op in self.ops for result in op.results)]
        self.before: dict[SSAValue, Extents] = {
            value: shape(value) for value in values if shape(value) != _rounded(shape(value))
        }
        self.zero: set[SSAValue] = set()

    def run(self) -> None:
        if not self.before:
            return
        for value in self.before:
            value._type = TensorType(element(value), list(_rounded(shape(value))))
        for op in self.ops:
            if any(value in self.before for value in (*op.operands, *op.results)):
                self.operation(op)

    def operation(self, op: Operation) -> None:
        match op:
            case tile.LoadOp():
                self.load(op)
            case tile.StoreOp():
                self.store(op)
            case tile.GatherOp():
                self.gather(op)
            case arith.ConstantOp():
                self.constant(op)
            case tile.ReduceOp() if op.value in self.before:
                self.fill(op, 0, (op.axis.value.data,), _neutral(op))
            case tile.DotOp():
                self.fill(op, 0, (1,), 0)
                self.fill(op, 1, (0,), 0)
            case tile.ReshapeOp():
                self.reshape(op)
            case tile.CastOp() if op.value in self.zero:
                self.zero.add(op.result)

    def load(self, op: tile.LoadOp) -> None:
        extents = self.before.pop(op.result)
        align = None if op.align is None else op.align.value.data
        bounds = self.bounds(op, extents)
        made = tile.LoadOp(op.view, op.offset, _rounded(extents), tile.strides_of(op), bounds, op.mask, align)
        replace(op, made)
        self.before[made.result] = extents
        self.zero.add(made.result)

    def store(self, op: tile.StoreOp) -> None:
        bounds, strides = self.bounds(op, self.before[op.value]), tile.strides_of(op)
        streams, align = op.nontemporal is not None, None if op.align is None else op.align.value.data
        replace(op, tile.StoreOp(op.value, op.view, op.offset, strides, bounds, op.mask, streams, align))

    def bounds(self, op: tile.LoadOp | tile.StoreOp, extents: Extents) -> list[SSAValue]:
        """How far an access may go: as far as before, where its tile has become larger."""
        found = []
        for dim, extent in enumerate(extents):
            own = arith.ConstantOp(IntegerAttr(extent, INDEX))
            insert_before(op, own)
            bound: SSAValue = own.result
            if op.bounds:
                least = arith.MinSIOp(own.result, op.bounds[dim])
                insert_before(op, least)
                bound = least.result
            found.append(bound)
        return found

    def gather(self, op: tile.GatherOp) -> None:
        extents = self.before.pop(op.result)
        inside = self.inside(op, extents, range(len(extents)))
        if op.mask is not None:
            both = arith.AndIOp(inside, op.mask)
            insert_before(op, both)
            inside = both.result
        made = tile.GatherOp(op.view, op.offsets, inside)
        replace(op, made)
        self.before[made.result] = extents
        self.zero.add(made.result)

    def constant(self, op: arith.ConstantOp) -> None:
        dense, type_ = op.properties["value"], op.result.type
        assert isinstance(dense, DenseIntOrFPElementsAttr)
        assert isinstance(type_, TensorType)
        if dense_splat(dense) is None:
            raise InvalidProgram(f"a constant tile of different elements: {op.result.type}", help="load it from memory")
        size = dense.get_element_type().compile_time_size
        count = 1
        for extent in shape(op.result):
            count *= extent
        op.properties["value"] = DenseIntOrFPElementsAttr(type_, type(dense.data)(dense.data.data[:size] * count))

    def reshape(self, op: tile.ReshapeOp) -> None:
        source, target = (self.before.get(value, shape(value)) for value in (op.value, op.result))
        if not _keeps_padding(source, target):
            text = ["x".join(map(str, extents)) for extents in (source, target)]
            help_ = "only the outermost of the dimensions that are joined or split is no power of two"
            raise InvalidProgram(f"a tile of {text[0]} as {text[1]} in a block", help=help_)
        if op.value in self.zero:
            self.zero.add(op.result)

    def fill(self, op: Operation, index: int, dims: Sequence[int], number: float) -> None:
        """Let `op` read an operand with a number where the operand was not before, along some dimensions."""
        value = op.operands[index]
        extents = self.before.get(value)
        if extents is None or (number == 0 and value in self.zero):
            return
        padded = [dim for dim in dims if extents[dim] != shape(value)[dim]]
        if not padded:
            return
        inside = self.inside(op, extents, padded)
        scalar = constant(number, element(value))
        others = tile.BroadcastOp(scalar.result, shape(value))
        chosen = tile.SelectOp(inside, value, others.result)
        insert_before(op, scalar, others, chosen)
        op.operands[index] = chosen.result

    def inside(self, op: Operation, extents: Extents, dims: Sequence[int]) -> SSAValue:
        """Which elements of a padded tile it had before, as far as some dimensions tell."""
        padded, found = _rounded(extents), None
        for dim in dims:
            if padded[dim] == extents[dim]:
                continue
            number = tile.IotaOp(padded, dim)
            limit = arith.ConstantOp(IntegerAttr(extents[dim], i64))
            limits = tile.BroadcastOp(limit.result, padded)
            below = tile.CompareOp("lt", number.result, limits.result)
            insert_before(op, number, limit, limits, below)
            if found is not None:
                both = arith.AndIOp(found, below.result)
                insert_before(op, both)
                found = both.result
            else:
                found = below.result
        assert found is not None, "asked of a padded tile"
        return found


def _neutral(op: tile.ReduceOp) -> float:
    """What changes no result of a reduction."""
    kind, type_ = op.kind.data, element(op.value)
    if kind in ("sum", "prod"):
        return 0 if kind == "sum" else -1 if type_ == I1 else 1
    lowest, highest = _limits(type_, op.unsigned is not None)
    return lowest if kind == "max" else highest


def _limits(type_: Attribute, unsigned: bool) -> tuple[float, float]:
    """The least and the greatest number of a type, as a signed integer of its bits where it is one."""
    if isinstance(type_, AnyFloat):
        return float("-inf"), float("inf")
    assert isinstance(type_, IntegerType)
    bits = type_.width.data
    if unsigned or bits == 1:
        return 0, -1
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def _keeps_padding(source: Extents, target: Extents) -> bool:
    """Whether dimensions are joined and split such that all but the outermost of each group are powers of two."""
    left, right = ([extent for extent in extents if extent != 1] for extents in (source, target))
    while left and right:
        groups = [left.pop()], [right.pop()]
        sizes = [groups[0][0], groups[1][0]]
        while sizes[0] != sizes[1]:
            number = 0 if sizes[0] < sizes[1] else 1
            others = (left, right)[number]
            if not others:
                return False
            groups[number].append(others.pop())
            sizes[number] *= groups[number][-1]
        if any(extent & (extent - 1) for group in groups for extent in group[:-1]):
            return False
    return not left and not right
