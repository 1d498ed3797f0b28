"""Tile program: loops of the host sequence, and views that move with their trips. Part of `dialect`."""

from __future__ import annotations

from xdsl.dialects.builtin import IndexType, MemRefType
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, region_def, result_def, traits_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import NoTerminator, Pure
from xdsl.utils.exceptions import VerifyException

from tilewright.kernel.operation import NUMBER, KernelOp
from tilewright.kernel.programs import LaunchOp, MainOp
from tilewright.kernel.tile_types import INDEX, verify_view


@irdl_op_definition
class LoopOp(KernelOp):
    """Run the views and launches of the body `trips` times, one trip after the other; its argument counts them."""

    name = "tile.loop"
    trips = prop_def(NUMBER)
    body = region_def("single_block")
    traits = traits_def(NoTerminator())

    def __init__(self, trips: int, body: Region | None = None) -> None:
        region = Region(Block(arg_types=[INDEX])) if body is None else body
        super().__init__(regions=[region], trips=trips)

    @property
    def count(self) -> int:
        return int(self.trips.value.data)

    def verify_(self) -> None:
        if self.count < 1:
            raise VerifyException(f"a loop of {self.count} trips; 1 or more")
        if tuple(self.body.block.arg_types) != (INDEX,):
            raise VerifyException("the body of tile.loop takes the number of the trip")
        if not isinstance(self.parent_op(), MainOp | LoopOp):
            raise VerifyException("tile.loop outside of tile.main")
        for op in self.body.block.ops:
            if not isinstance(op, LaunchOp | SliceOp | FirstOp | LoopOp):
                raise VerifyException(f"tile.loop holds views, launches and loops only, not {op.name}")

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.body.block.args[0])
        printer.print_string(f" of {self.count} ")
        printer.print_region(self.body, print_entry_block_args=False, print_empty_block=False)

    @classmethod
    def parse(cls, parser: Parser) -> LoopOp:
        trip = parser.parse_argument(expect_type=False)
        parser.parse_keyword("of")
        trips = parser.parse_integer()
        return cls(trips, parser.parse_region([trip.resolve(INDEX)]))


@irdl_op_definition
class SliceOp(KernelOp):
    """The part of a view that a trip uses, from element ``start + stride * trip``; a `period` is taken of the trip."""

    name = "tile.slice"
    whole = operand_def(MemRefType)
    trip = operand_def(IndexType)
    start = prop_def(NUMBER)
    stride = prop_def(NUMBER)
    period = prop_def(NUMBER)
    result = result_def(MemRefType)
    traits = traits_def(Pure())
    assembly_format = (
        "$whole `at` $trip `from` $start `by` $stride `period` $period attr-dict `:` type($whole) `->` type($result)"
    )

    def __init__(self, whole: SSAValue, trip: SSAValue, start: int, stride: int, period: int, type_: Attribute) -> None:
        super().__init__(whole, trip, results=[type_], start=start, stride=stride, period=period)

    def element(self, trip: int) -> int:
        """The element of the whole view at which the part of a trip begins."""
        period = int(self.period.value.data)
        return int(self.start.value.data) + int(self.stride.value.data) * (trip % period if period else trip)

    @property
    def elements(self) -> int:
        assert isinstance(self.result.type, MemRefType)
        return int(self.result.type.get_shape()[0])

    def verify_(self) -> None:
        verify_view(self.whole.type)
        verify_view(self.result.type)
        assert isinstance(self.whole.type, MemRefType)
        assert isinstance(self.result.type, MemRefType)
        if self.whole.type.element_type != self.result.type.element_type:
            raise VerifyException(f"a slice of {self.whole.type} as {self.result.type}")
        loop = self.trip.owner.parent_op() if isinstance(self.trip.owner, Block) else None
        if not isinstance(loop, LoopOp):
            raise VerifyException("the trip of tile.slice is the argument of a tile.loop")
        if int(self.period.value.data) < 0:
            raise VerifyException(f"a period of {self.period.value.data}; 0 for none")
        whole = self.whole.type.get_shape()[0]
        for trip in {0, loop.count - 1, min(loop.count, int(self.period.value.data) or 1) - 1}:
            begin = self.element(trip)
            if not (begin >= 0 and begin + self.elements <= whole):
                # The first trip of a state that is stacked is never read: `tile.first` takes the initial one.
                if trip == 0 and all(isinstance(use.operation, FirstOp) for use in self.result.uses):
                    continue
                raise VerifyException(f"trip {trip} takes elements {begin} to {begin + self.elements} of {whole}")


@irdl_op_definition
class FirstOp(KernelOp):
    """The view `first` in trip 0, `later` in every other one."""

    name = "tile.first"
    trip = operand_def(IndexType)
    first = operand_def(MemRefType)
    later = operand_def(MemRefType)
    result = result_def(MemRefType)
    traits = traits_def(Pure())
    assembly_format = "$trip `,` $first `,` $later attr-dict `:` type($first) `,` type($later) `->` type($result)"

    def __init__(self, trip: SSAValue, first: SSAValue, later: SSAValue) -> None:
        super().__init__(trip, first, later, results=[later.type])

    def verify_(self) -> None:
        if not self.first.type == self.later.type == self.result.type:
            raise VerifyException(f"{self.first.type} at first, {self.later.type} later, as {self.result.type}")
