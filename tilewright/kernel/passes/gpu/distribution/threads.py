"""What one thread of a block does, operation by operation: where its elements lie, shared memory, conditions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, MemRefType, TensorType, i8, i64
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from tilewright.kernel import dialect as tile
from tilewright.kernel import simt
from tilewright.kernel.dialect import I1, element, shape
from tilewright.kernel.integers import binary, index_constant
from tilewright.kernel.passes.gpu.distribution.layout import Share, shares
from tilewright.kernel.passes.gpu.distribution.rows import Rows
from tilewright.layouts.access import MatrixLoad
from tilewright.layouts.linear import LinearLayout


class Threads:
    """Emits into a block what its threads do; what they have computed about themselves is not computed again."""

    def __init__(self, block: Block, outside: Threads | None = None) -> None:
        self.target = self.entry = block
        self.first: Threads = outside.first if outside is not None else self
        self.numbers: dict[int, SSAValue] = {}
        self.own_number: SSAValue | None = None
        self.parts: dict[tuple[tuple[int, int], ...], SSAValue] = {}

    @property
    def kernel(self) -> tile.FuncOp:
        """The kernel in distributed form that is being made."""
        kernel = self.first.entry.parent_op()
        assert isinstance(kernel, tile.FuncOp)
        return kernel

    # The thread

    def thread(self) -> SSAValue:
        """The linear number of this thread."""
        first = self.first
        if first.own_number is None:
            number = simt.ThreadIdOp(0)
            first.at_entry(number)
            first.own_number = number.result
        return first.own_number

    def where_free_is_zero(self, mask: int, body: Callable[[], None]) -> None:
        """Do something on the threads whose number has no bit of `mask`."""
        if not mask:
            body()
            return
        bits = self.add(binary(arith.AndIOp, self.thread(), self.number(mask))).results[0]
        self.conditional(self.add(tile.CompareOp("eq", bits, self.number(0))).results[0], body)

    def once(self, body: Callable[[], None]) -> None:
        """Do something on one thread of the block."""
        self.conditional(self.add(tile.CompareOp("eq", self.thread(), self.number(0))).results[0], body)

    def conditional(self, condition: SSAValue, body: Callable[[], None]) -> None:
        inner = Block()
        outer, numbers, parts = self.target, dict(self.numbers), dict(self.parts)
        self.target = inner
        body()
        self.add(scf.YieldOp())
        self.target, self.numbers, self.parts = outer, numbers, parts
        self.add(scf.IfOp(condition, [], Region(inner), Region()))

    def thread_part(self, share: Share) -> SSAValue | None:
        """The thread's part of a coordinate; None where it is 0 for all."""
        if not share.bits:
            return None
        known = self.parts.get(share.bits)
        if known is not None:
            return known
        total: SSAValue | None = None
        single = all(part & (part - 1) == 0 for _, part in share.bits)
        for mask, shift in _runs(share.bits) if single else ():
            bits = self.add(binary(arith.AndIOp, self.thread(), self.number(mask))).results[0]
            if shift > 0:
                bits = self.add(binary(arith.ShLIOp, bits, self.number(shift))).results[0]
            elif shift < 0:
                bits = self.add(binary(arith.ShRUIOp, bits, self.number(-shift))).results[0]
            total = bits if total is None else self.add(binary(arith.XOrIOp, total, bits)).results[0]
        for bit, part in () if single else share.bits:
            own = self.add(binary(arith.ShRUIOp, self.thread(), self.number(bit))).results[0]
            one = self.add(binary(arith.AndIOp, own, self.number(1))).results[0]
            bits = self.add(binary(arith.MuliOp, one, self.number(part))).results[0]
            total = bits if total is None else self.add(binary(arith.XOrIOp, total, bits)).results[0]
        assert total is not None
        self.parts[share.bits] = total
        return total

    def coordinate(self, share: Share, register: int) -> SSAValue:
        """Where along a dimension the element of one register lies."""
        thread, own = self.thread_part(share), share.registers[register]
        if thread is None:
            return self.number(own)
        mixed = own & share.mask  # what XOR mixes with bits of the thread; the rest is a distance, the same for all
        if mixed:
            thread = self.add(binary(arith.XOrIOp, thread, self.number(mixed))).results[0]
        return thread if own == mixed else self.add(binary(arith.AddiOp, thread, self.number(own - mixed))).results[0]

    def coordinates(self, share: Share) -> SSAValue:
        """The coordinates of all registers, as i64."""
        made = TensorType(i64, [len(share.registers)])
        own = self.add(arith.ConstantOp(DenseIntOrFPElementsAttr.from_list(made, list(share.registers)))).results[0]
        thread = self.thread_part(share)
        if thread is None:
            return own
        number = self.add(arith.IndexCastOp(thread, i64)).results[0]
        return self.add(binary(arith.XOrIOp, own, self.repeated(number, len(share.registers)))).results[0]

    def linear(self, layout: LinearLayout, register: int, scale: int = 1) -> SSAValue:
        """`scale` times the row-major number of the element of a register."""
        total: SSAValue | None = None
        step = scale
        for share, extent in reversed(list(zip(shares(layout), layout.shape, strict=True))):
            if extent > 1:
                part = self.coordinate(share, register)
                if step > 1:
                    part = self.add(binary(arith.MuliOp, part, self.number(step))).results[0]
                total = part if total is None else self.add(binary(arith.AddiOp, total, part)).results[0]
            step *= extent
        return self.number(0) if total is None else total

    # Shared memory

    def shared(self, count: int, type_: Attribute) -> SSAValue:
        stored = i8 if type_ == I1 else type_
        allocation = simt.SharedOp(MemRefType(stored, [count], memory_space=simt.SHARED))
        self.first.at_entry(allocation)
        return allocation.result

    def at_entry(self, op: Operation) -> None:
        if self.entry.first_op is None:
            self.entry.add_op(op)
        else:
            self.entry.insert_op_before(op, self.entry.first_op)

    def put(self, value: SSAValue, memory: SSAValue, offset: SSAValue, align: int | None = None) -> None:
        if element(value) == I1:
            value = self.add(tile.CastOp(value, i8)).results[0]
        self.add(tile.StoreOp(value, memory, offset, (1,), align=align))

    def get(
        self, memory: SSAValue, offset: SSAValue, count: int, type_: Attribute, align: int | None = None
    ) -> SSAValue:
        loaded = self.add(tile.LoadOp(memory, offset, (count,), (1,), align=align)).results[0]
        return self.add(tile.CastOp(loaded, I1)).results[0] if type_ == I1 else loaded

    def load_matrices(
        self, loads: MatrixLoad, buffer: SSAValue, place: SSAValue | None = None, rows: Rows | None = None
    ) -> SSAValue:
        """Matrices from a tile that begins at `place`; `rows` says how long its rows are, where they have padding."""
        lanes = [(bit, part) for bit, part in enumerate(loads.lane_offsets) if part]
        warps = [(5 + bit, part) for bit, part in enumerate(loads.warp_offsets) if part]
        own = [0]
        for part in loads.instruction_offsets:
            own += [before ^ part for before in own]
        bits = (*lanes, *warps)
        if rows is None or not rows.pad:
            offsets = [self.coordinate(Share(bits, tuple(own)), number) for number in range(loads.instructions)]
        else:
            columns = rows.columns
            along = Share(tuple((bit, part % columns) for bit, part in bits if part % columns),
                          tuple(part % columns for part in own))  # fmt: skip
            down = Share(tuple((bit, part // columns) for bit, part in bits if part // columns),
                         tuple(part // columns for part in own))  # fmt: skip
            offsets = []
            for number in range(loads.instructions):
                row = self.add(binary(arith.MuliOp, self.coordinate(down, number), self.number(rows.line))).results[0]
                offsets.append(self.add(binary(arith.AddiOp, row, self.coordinate(along, number))).results[0])
        if place is not None:
            offsets = [self.add(binary(arith.AddiOp, place, offset)).results[0] for offset in offsets]
        transposed = loads.transposed
        return self.joined(
            [self.add(simt.LoadMatrixOp(buffer, offset, loads.count, transposed)).results[0] for offset in offsets]
        )

    # Registers

    def number(self, value: int) -> SSAValue:
        if value not in self.numbers:
            self.numbers[value] = self.add(index_constant(value)).results[0]
        return self.numbers[value]

    def repeated(self, value: SSAValue, count: int) -> SSAValue:
        return self.add(tile.BroadcastOp(value, (count,))).results[0]

    def scalar(self, value: SSAValue) -> SSAValue:
        return self.add(tile.ReshapeOp(value, ())).results[0]

    def part(self, value: SSAValue, start: int, count: int = 1) -> SSAValue:
        if shape(value) == (count,):
            return value
        return self.add(simt.PartOp(value, start, count)).results[0]

    def picked(self, value: SSAValue, order: Sequence[int]) -> SSAValue:
        """Registers of a value in another order, some perhaps several times."""
        if list(order) == list(range(shape(value)[0])):
            return value
        return self.joined([self.part(value, register) for register in order])

    def joined(self, parts: Sequence[SSAValue]) -> SSAValue:
        return parts[0] if len(parts) == 1 else self.add(simt.JoinOp(parts)).results[0]

    def add(self, op: Operation) -> Operation:
        self.target.add_op(op)
        return op


def _runs(bits: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """(mask of a thread's number, shift to the left) of bits that move by the same distance."""
    moved: dict[int, int] = {}
    for bit, part in bits:
        distance = part.bit_length() - 1 - bit
        moved[distance] = moved.get(distance, 0) | 1 << bit
    return [(mask, distance) for distance, mask in moved.items()]
