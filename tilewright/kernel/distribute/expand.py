"""Every operation on tiles of a block becomes what each thread does with its registers, as the layouts say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import (
    AnyFloat,
    DenseIntOrFPElementsAttr,
    IntegerAttr,
    MemRefType,
    ModuleOp,
    TensorType,
    i8,
    i64,
)
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from tilewright.errors import InvalidProgram
from tilewright.kernel import dialect as tile
from tilewright.kernel import simt
from tilewright.kernel.dialect import I1, INDEX, FuncOp, element, shape, strides_of
from tilewright.kernel.distribute.layout import Share, held, layout_of, owners, projected, registers, shares
from tilewright.kernel.distribute.matrix import fragments, one_warp
from tilewright.kernel.distribute.staging import memory_of, places, staging
from tilewright.kernel.elements import ELEMENT
from tilewright.kernel.simt import element_bytes
from tilewright.layouts.access import MatrixLoad, matrix_load
from tilewright.layouts.linear import LinearLayout
from tilewright.layouts.reduction import reduction

ACCESS_BYTES = 16  # of the widest access of a thread
COMBINE_FLOATS = {"sum": arith.AddfOp, "prod": arith.MulfOp, "max": arith.MaximumfOp, "min": arith.MinimumfOp}
COMBINE_SIGNED = {"sum": arith.AddiOp, "prod": arith.MuliOp, "max": arith.MaxSIOp, "min": arith.MinSIOp}
COMBINE_UNSIGNED = {"sum": arith.AddiOp, "prod": arith.MuliOp, "max": arith.MaxUIOp, "min": arith.MinUIOp}
COMBINE_BITS = {"sum": arith.XOrIOp, "prod": arith.AndIOp, "max": arith.OrIOp, "min": arith.AndIOp}


@dataclass(frozen=True)
class DistributePass(ModulePass):
    """Expand every kernel whose tiles have layouts into what one thread of its block does.

    Before:  %y = arith.addf %x, %x : tensor<256xf32, "#linear<…>">
    After:   %y = arith.addf %x, %x : tensor<2xf32>, in a kernel with `threads`
    Legal where every tile has a layout: needs `assign-layouts` with the same number of warps. Afterwards no tile has
    one, and tiles have one dimension.
    """

    name = "distribute"
    warps: int = 4
    lanes: int = 32

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in list(op.body.ops):
            if isinstance(kernel, FuncOp) and not kernel.block:
                op.body.block.insert_op_before(distribute(kernel, self.warps, self.lanes), kernel)
                op.body.block.erase_op(kernel)


def distribute(kernel: FuncOp, warps: int, lanes: int) -> FuncOp:
    """The kernel in distributed form."""
    arguments = list(kernel.function_type.inputs.data)
    made = FuncOp(
        kernel.sym_name.data, arguments, kernel.extents, cost=kernel.cost, threads=(warps * lanes, 1, 1), warp=lanes
    )
    made.location = kernel.location
    values: dict[SSAValue, SSAValue] = dict(zip(kernel.body.block.args, made.body.block.args, strict=True))
    for old, new in values.items():
        new.name_hint = old.name_hint
    expansion = _Expansion(made.body.block, values)
    loads = (tile.LoadOp, tile.GatherOp)
    expansion.read = {op.operands[0] for op in tile.operations(kernel.body) if isinstance(op, loads)}
    expansion.block(kernel.body.block)
    return made


class _Expansion:
    """One block on its way: `values` says what stands for a value, of a tile what the thread holds of it."""

    def __init__(self, block: Block, values: dict[SSAValue, SSAValue], outside: _Expansion | None = None) -> None:
        self.target = self.entry = block
        self.values = values
        self.first: _Expansion = outside.first if outside is not None else self
        self.read: set[SSAValue] = set()  # views that the kernel loads from: its stores to them are seen by all threads
        self.numbers: dict[int, SSAValue] = {}
        self.threads: SSAValue | None = None
        self.parts: dict[tuple[tuple[int, int], ...], SSAValue] = {}

    def block(self, source: Block) -> None:
        for op in source.ops:
            before = self.target.last_op
            self.operation(op)
            self.locate(op, before)

    def locate(self, op: Operation, before: Operation | None) -> None:
        """What was made for an operation has its place in the source, and its results their names."""
        for result in op.results:
            value = self.values[result]
            value.name_hint = value.name_hint or result.name_hint
        made = self.target.first_op if before is None else before.next_op
        while made is not None:
            made.location = op.location
            made = made.next_op

    def operation(self, op: Operation) -> None:
        match op:
            case tile.LoadOp() if shape(op.result):
                self.values[op.result] = self.load(op)
            case tile.StoreOp() if shape(op.value):
                self.store(op)
            case tile.StoreOp():
                self.once(lambda: self.copy(op))
            case tile.GatherOp() if shape(op.result):
                self.values[op.result] = self.gather(op)
            case tile.IotaOp():
                layout = _layout(op.result)
                self.values[op.result] = self.coordinates(shares(layout)[op.axis.value.data])
            case tile.BroadcastOp():
                value = self.values[op.value]
                wide = shape(op.value) or not shape(op.result)
                self.values[op.result] = value if wide else self.repeated(value, registers(op.result))
            case tile.ReshapeOp() if shape(op.value):
                value = self.values[op.value]
                self.values[op.result] = value if shape(op.result) else self.scalar(self.part(value, 0))
            case tile.ReshapeOp():
                self.values[op.result] = self.repeated(self.values[op.value], registers(op.result))
            case tile.ConvertOp():
                self.values[op.result] = self.convert(op)
            case tile.StagingOp() | tile.AllocOp():
                count = int(op.result.type.get_shape()[0])
                self.values[op.result] = self.shared(count, element(op.result))
            case tile.StageOp():
                self.stage(op)
            case tile.CommitOp():
                self.add(simt.CommitOp())
            case tile.AwaitOp():
                self.add(simt.WaitOp(op.pending.value.data))
                self.add(simt.BarrierOp())
            case tile.UnstageOp():
                self.values[op.result] = self.unstage(op)
            case tile.ReduceOp():
                self.values[op.result] = self.reduce(op)
            case tile.DotOp():
                self.values[op.result] = self.dot(op)
            case arith.ConstantOp() if shape(op.result):
                self.values[op.result] = self.constant(op)
            case scf.ForOp():
                self.loop(op)
            case scf.IfOp():
                self.branch(op)
            case _:
                self.copy(op)

    # Memory

    def load(self, op: tile.LoadOp) -> SSAValue:
        layout = _layout(op.result)
        access = self.access(op, layout)
        mask = None if op.mask is None else self.values[op.mask]
        pieces = []
        for start in range(0, registers(op.result), access.width):
            offset, bounds, allowed = access.place(start)
            own = None if mask is None else self.part(mask, start, access.width)
            inside = self.together(allowed, own, access.width)
            extents, strides = (access.width,), (access.stride,)
            piece = tile.LoadOp(self.values[op.view], offset, extents, strides, bounds, inside, access.align)
            pieces.append(self.add(piece).results[0])
        return self.joined(pieces)

    def store(self, op: tile.StoreOp) -> None:
        layout = _layout(op.value)
        access = self.access(op, layout)
        mask = None if op.mask is None else self.values[op.mask]
        value = self.values[op.value]
        free, first = owners(layout)

        def write() -> None:
            for start in range(0, registers(op.value), access.width):
                if start not in first:
                    continue
                offset, bounds, allowed = access.place(start)
                own = None if mask is None else self.part(mask, start, access.width)
                inside = self.together(allowed, own, access.width)
                piece, view, strides = self.part(value, start, access.width), self.values[op.view], (access.stride,)
                streams = op.nontemporal is not None
                self.add(tile.StoreOp(piece, view, offset, strides, bounds, inside, streams, access.align))

        ordered = op.view in self.first.read
        if ordered:
            self.add(simt.BarrierOp())
        self.where_free_is_zero(free, write)
        if ordered:
            self.add(simt.BarrierOp())

    def gather(self, op: tile.GatherOp) -> SSAValue:
        mask = None if op.mask is None else self.values[op.mask]
        return self.add(tile.GatherOp(self.values[op.view], self.values[op.offsets], mask)).results[0]

    def access(self, op: tile.LoadOp | tile.StoreOp, layout: LinearLayout) -> _Access:
        return _Access(self, layout, strides_of(op), self.values[op.offset], [self.values[b] for b in op.bounds],
                       1 if op.align is None else op.align.value.data, element_bytes(op.view))  # fmt: skip

    def together(self, allowed: SSAValue | None, mask: SSAValue | None, width: int) -> SSAValue | None:
        """Both conditions of an access: one of the thread, one of each element."""
        if allowed is None:
            return mask
        repeated = self.repeated(allowed, width)
        return repeated if mask is None else self.add(arith.AndIOp(repeated, mask)).results[0]

    # Threads

    def thread(self) -> SSAValue:
        """The linear number of this thread."""
        first = self.first
        if first.threads is None:
            number = simt.ThreadIdOp(0)
            first.at_entry(number)
            first.threads = number.result
        return first.threads

    def where_free_is_zero(self, mask: int, body: Callable[[], None]) -> None:
        """Do something on the threads whose number has no bit of `mask`."""
        if not mask:
            body()
            return
        bits = self.add(arith.AndIOp(self.thread(), self.number(mask))).results[0]
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
            bits = self.add(arith.AndIOp(self.thread(), self.number(mask))).results[0]
            if shift > 0:
                bits = self.add(arith.ShLIOp(bits, self.number(shift))).results[0]
            elif shift < 0:
                bits = self.add(arith.ShRUIOp(bits, self.number(-shift))).results[0]
            total = bits if total is None else self.add(arith.XOrIOp(total, bits)).results[0]
        for bit, part in () if single else share.bits:
            own = self.add(arith.ShRUIOp(self.thread(), self.number(bit))).results[0]
            one = self.add(arith.AndIOp(own, self.number(1))).results[0]
            bits = self.add(arith.MuliOp(one, self.number(part))).results[0]
            total = bits if total is None else self.add(arith.XOrIOp(total, bits)).results[0]
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
            thread = self.add(arith.XOrIOp(thread, self.number(mixed))).results[0]
        return thread if own == mixed else self.add(arith.AddiOp(thread, self.number(own - mixed))).results[0]

    def coordinates(self, share: Share) -> SSAValue:
        """The coordinates of all registers, as i64."""
        made = TensorType(i64, [len(share.registers)])
        own = self.add(arith.ConstantOp(DenseIntOrFPElementsAttr.from_list(made, list(share.registers)))).results[0]
        thread = self.thread_part(share)
        if thread is None:
            return own
        number = self.add(arith.IndexCastOp(thread, i64)).results[0]
        return self.add(arith.XOrIOp(own, self.repeated(number, len(share.registers)))).results[0]

    # Products, reductions, conversions

    def dot(self, op: tile.DotOp) -> SSAValue:
        """One instruction per fragment of the result and step of k; k outermost, so that neighbours are independent."""
        name = op.intrinsic.data
        layouts, ones = [_layout(operand) for operand in op.operands], one_warp(name)
        places = [fragments(layout, one) for layout, one in zip(layouts, ones, strict=True)]
        held = [self.values[operand] for operand in op.operands]
        a, b, c = (
            {start: self.picked(value, registers) for start, registers in places.items()}
            for value, places in zip(held, places, strict=True)
        )
        for k in sorted({start[1] for start in a}):
            for m, n in c:
                c[m, n] = self.add(simt.MmaOp(name, a[m, k], b[k, n], c[m, n])).results[0]
        joined = self.joined(list(c.values()))
        order = [register for registers in places[2].values() for register in registers]
        return self.picked(joined, [order.index(register) for register in range(len(order))])

    def reduce(self, op: tile.ReduceOp) -> SSAValue:
        """Registers, then lanes by butterflies, then warps through shared memory; every copy of a result gets it."""
        layout, dim = _layout(op.value), op.axis.value.data
        steps = reduction(layout, dim)
        value = self.values[op.value]
        combine = self.combining(op)
        results = []
        for group in steps.registers:
            total = self.part(value, group[0])
            for register in group[1:]:
                total = combine(total, self.part(value, register))
            results.append(total)
        joined = self.joined(results)
        for bit in steps.lane_bits:
            other = self.add(simt.ShuffleOp("xor", joined, self.number(1 << bit))).results[0]
            joined = combine(joined, other)
        if steps.warp_bits:
            joined = self.across_warps(op, layout, joined, steps.registers, combine)
        # The result has as many registers as the operand: copies along the dimension that is gone.
        target = projected(layout, shape(op.result))
        places = {}
        parts = [share.registers for share in shares(target)]
        for number, group in enumerate(steps.registers):
            places[tuple(part[group[0]] for part in parts)] = number
        order = [places[tuple(part[r] for part in parts)] for r in range(target.in_size("register"))]
        return self.picked(joined, order)

    def across_warps(
        self, op: tile.ReduceOp, layout: LinearLayout, value: SSAValue, groups: Sequence[Sequence[int]],
        combine: Callable[[SSAValue, SSAValue], SSAValue],
    ) -> SSAValue:  # fmt: skip
        """Partial results of warps through shared memory: a row per result, a column per warp along the dimension."""
        dim = op.axis.value.data
        target = projected(layout, shape(op.result))
        lanes = len(layout.of("lane"))
        along = [bit for bit, base in enumerate(layout.of("warp")) if base[dim]]
        columns = 1 << len(along)
        rows = prod(shape(op.result))
        memory = self.shared(rows * columns, element(op.value))
        column = self.thread_part(Share(tuple((lanes + bit, 1 << place) for place, bit in enumerate(along)), (0,)))
        assert column is not None
        free, _ = owners(target)
        silent = free & ((1 << lanes) - 1)  # of lanes with the same result one writes
        warps = free >> lanes
        silent |= (warps & ~sum(1 << bit for bit in along)) << lanes
        firsts = [group[0] for group in groups]
        places = [self.linear(target, first, columns) for first in firsts]

        def write() -> None:
            for number, place in enumerate(places):
                offset = self.add(arith.AddiOp(place, column)).results[0]
                self.put(self.part(value, number), memory, offset)

        self.add(simt.BarrierOp())  # a trip before may still be reading
        self.where_free_is_zero(silent, write)
        self.add(simt.BarrierOp())
        results = []
        for place in places:
            total: SSAValue | None = None
            for other in range(columns):
                offset = self.add(arith.AddiOp(place, self.number(other))).results[0]
                loaded = self.get(memory, offset, 1, element(op.value))
                total = loaded if total is None else combine(total, loaded)
            assert total is not None
            results.append(total)
        return self.joined(results)

    def convert(self, op: tile.ConvertOp) -> SSAValue:
        """Other registers of the same thread where those hold what is wanted; else through shared memory."""
        source, target = _layout(op.value), _layout(op.result)
        value = self.values[op.value]
        order = _same_thread(source, target)
        if order is not None:
            return self.picked(value, order)
        type_ = element(op.value)
        memory, loads = staging(source, target, 8 if type_ == I1 else element_bytes(op.value) * 8)
        buffer = self.shared(1 << memory.in_bits, type_)
        free, firsts = owners(source)
        written = self.staged(places(source, memory), buffer)

        def write() -> None:
            for start in range(0, registers(op.value), written.width):
                if start in firsts:
                    self.put(self.part(value, start, written.width), buffer, written.place(start)[0], written.align)

        self.add(simt.BarrierOp())  # a trip before may still be reading
        self.where_free_is_zero(free, write)
        self.add(simt.BarrierOp())
        if loads is not None:
            return self.load_matrices(loads, buffer)
        wanted = self.staged(places(target, memory), buffer)
        starts = range(0, registers(op.result), wanted.width)
        found = [self.get(buffer, wanted.place(start)[0], wanted.width, type_, wanted.align) for start in starts]
        return self.joined(found)

    def staged(self, layout: LinearLayout, buffer: SSAValue, place: SSAValue | None = None) -> _Access:
        """Accesses to a tile in a buffer of the block; it begins at a multiple of 16 bytes."""
        start = self.number(0) if place is None else place
        return _Access(self, layout, (1,), start, (), ACCESS_BYTES, element_bytes(buffer))

    def load_matrices(self, loads: MatrixLoad, buffer: SSAValue, place: SSAValue | None = None) -> SSAValue:
        lanes = [(bit, part) for bit, part in enumerate(loads.lane_offsets) if part]
        warps = [(5 + bit, part) for bit, part in enumerate(loads.warp_offsets) if part]
        own = [0]
        for part in loads.instruction_offsets:
            own += [before ^ part for before in own]
        share = Share((*lanes, *warps), tuple(own))
        offsets = [self.coordinate(share, number) for number in range(loads.instructions)]
        if place is not None:
            offsets = [self.add(arith.AddiOp(place, offset)).results[0] for offset in offsets]
        transposed = loads.transposed
        return self.joined(
            [self.add(simt.LoadMatrixOp(buffer, offset, loads.count, transposed)).results[0] for offset in offsets]
        )

    def stage(self, op: tile.StageOp) -> None:
        """Copies of 4, 8 or 16 bytes by the threads, as many registers at once as both memories have side by side."""
        layout = _layout(op.type)
        size = element_bytes(op.view)
        source = _Access(self, layout, [int(stride) for stride in op.strides.get_values()], self.values[op.offset], (),
                         op.align.value.data, size)  # fmt: skip
        target = self.staged(places(layout, memory_of(op.memory.data, shape(op.type))), self.values[op.buffer],
                             self.values[op.place])  # fmt: skip
        width = min(source.width, target.width)
        free, firsts = owners(layout)

        def copy() -> None:
            for start in range(0, layout.in_size("register"), width):
                if start in firsts:
                    (here, *_), (there, *_) = source.place(start), target.place(start)
                    view, buffer, wide = self.values[op.view], self.values[op.buffer], width * size == ACCESS_BYTES
                    self.add(simt.AsyncCopyOp(view, here, buffer, there, width, bypass=wide))

        self.conditional(self.values[op.when], lambda: self.where_free_is_zero(free, copy))

    def unstage(self, op: tile.UnstageOp) -> SSAValue:
        layout, buffer, place = _layout(op.result), self.values[op.buffer], self.values[op.place]
        memory = memory_of(op.memory.data, shape(op.result))
        loads = matrix_load(layout, memory, element_bytes(buffer) * 8)
        if loads is not None:
            return self.load_matrices(loads, buffer, place)
        wanted = self.staged(places(layout, memory), buffer, place)
        starts = range(0, registers(op.result), wanted.width)
        type_ = element(op.result)
        found = [self.get(buffer, wanted.place(start)[0], wanted.width, type_, wanted.align) for start in starts]
        return self.joined(found)

    def linear(self, layout: LinearLayout, register: int, scale: int = 1) -> SSAValue:
        """`scale` times the row-major number of the element of a register."""
        total: SSAValue | None = None
        step = scale
        for share, extent in reversed(list(zip(shares(layout), layout.shape, strict=True))):
            if extent > 1:
                part = self.coordinate(share, register)
                if step > 1:
                    part = self.add(arith.MuliOp(part, self.number(step))).results[0]
                total = part if total is None else self.add(arith.AddiOp(total, part)).results[0]
            step *= extent
        return self.number(0) if total is None else total

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

    def combining(self, op: tile.ReduceOp) -> Callable[[SSAValue, SSAValue], SSAValue]:
        kind, type_ = op.kind.data, element(op.value)
        table: Mapping[str, Callable[[SSAValue, SSAValue], Operation]]
        table = COMBINE_UNSIGNED if op.unsigned is not None else COMBINE_SIGNED
        if isinstance(type_, AnyFloat):
            table = COMBINE_FLOATS
        elif type_ == I1:
            table = COMBINE_BITS

        def combine(first: SSAValue, second: SSAValue) -> SSAValue:
            return self.add(table[kind](first, second)).results[0]

        return combine

    # Control flow

    def loop(self, op: scf.ForOp) -> None:
        block = Block(arg_types=[held(argument.type) for argument in op.body.block.args])
        inner = _Expansion(block, {**self.values}, self)
        for old, new in zip(op.body.block.args, block.args, strict=True):
            inner.values[old] = new
            new.name_hint = old.name_hint
        inner.block(op.body.block)
        operands = [self.values[operand] for operand in op.operands]
        made = scf.ForOp(operands[0], operands[1], operands[2], operands[3:], block)
        self.add(made)
        self.values.update(zip(op.results, made.results, strict=True))

    def branch(self, op: scf.IfOp) -> None:
        regions = []
        for region in op.regions:
            made = Region()
            for block in region.blocks:
                inside = Block()
                _Expansion(inside, {**self.values}, self).block(block)
                made.add_block(inside)
            regions.append(made)
        yes, no = regions
        branch = scf.IfOp(self.values[op.cond], [held(result.type) for result in op.results], yes, no)
        self.add(branch)
        self.values.update(zip(op.results, branch.results, strict=True))

    # Small things

    def copy(self, op: Operation) -> None:
        """The same operation on what the thread holds."""
        if not (type(op) in ELEMENT or isinstance(op, _KEPT) or not any(map(shape, (*op.operands, *op.results)))):
            raise InvalidProgram(f"{op.name} on tiles of a block", help="expand it to element operations and accesses")
        made = type(op).create(
            operands=[self.values[operand] for operand in op.operands],
            result_types=[held(result.type) for result in op.results],
            properties=op.properties,
            attributes=op.attributes,
        )
        self.add(made)
        self.values.update(zip(op.results, made.results, strict=True))

    def constant(self, op: arith.ConstantOp) -> SSAValue:
        dense = op.properties["value"]
        assert isinstance(dense, DenseIntOrFPElementsAttr)
        made = held(op.result.type)
        assert isinstance(made, TensorType)
        size = dense.get_element_type().compile_time_size
        content = dense.data.data
        if content != content[:size] * (len(content) // size):
            raise InvalidProgram("a constant tile of different elements in a block", help="load it from memory")
        type_ = dense.data.__class__
        count = made.get_shape()[0]
        return self.add(arith.ConstantOp(DenseIntOrFPElementsAttr(made, type_(content[:size] * count)))).results[0]

    def number(self, value: int) -> SSAValue:
        if value not in self.numbers:
            self.numbers[value] = self.add(arith.ConstantOp(IntegerAttr(value, INDEX))).results[0]
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


_KEPT = (scf.YieldOp, tile.ReturnOp)


class _Access:
    """The accesses with which a thread reads or writes its registers of a tile, `width` registers at a time."""

    def __init__(
        self, expansion: _Expansion, layout: LinearLayout, strides: Sequence[int], offset: SSAValue,
        bounds: Sequence[SSAValue], align: int, size: int,
    ) -> None:  # fmt: skip
        self.expansion, self.shares, self.strides = expansion, shares(layout), strides
        self.offset, self.bounds = offset, bounds
        self.width, self.along = _width(layout, strides, max(1, ACCESS_BYTES // size))
        self.stride = strides[self.along] if self.along is not None else 1
        self.align = min(align, self.width * size) if align > 1 and self.aligned(layout) else None

    def aligned(self, layout: LinearLayout) -> bool:
        """Whether every group of registers begins at a multiple of its width from the start of the tile."""
        skipped = self.width.bit_length() - 1
        for name, vectors in layout.bases:
            for base in vectors[skipped if name == "register" else 0 :]:
                if sum(part * stride for part, stride in zip(base, self.strides, strict=True)) % self.width:
                    return False
        return True

    def place(self, start: int) -> tuple[SSAValue, list[SSAValue], SSAValue | None]:
        """Offset of registers `start` and following, bounds along them, and whether the thread may access them."""
        expansion = self.expansion
        offset: SSAValue = self.offset
        allowed: SSAValue | None = None
        bounds: list[SSAValue] = []
        for dim, (share, stride) in enumerate(zip(self.shares, self.strides, strict=True)):
            coordinate = expansion.coordinate(share, start)
            if stride and (share.bits or share.registers[start]):
                step = coordinate
                if stride != 1:
                    step = expansion.add(arith.MuliOp(coordinate, expansion.number(stride))).results[0]
                offset = expansion.add(arith.AddiOp(offset, step)).results[0]
            if not self.bounds:
                continue
            if dim == self.along:
                bounds = [expansion.add(arith.SubiOp(self.bounds[dim], coordinate)).results[0]]
                continue
            inside = expansion.add(tile.CompareOp("lt", coordinate, self.bounds[dim])).results[0]
            allowed = inside if allowed is None else expansion.add(arith.AndIOp(allowed, inside)).results[0]
        return offset, bounds, allowed


def _layout(value: SSAValue | Attribute) -> LinearLayout:
    layout = layout_of(value)
    if layout is None:
        type_ = value.type if isinstance(value, SSAValue) else value
        raise InvalidProgram(f"{type_} has no layout", help="run assign-layouts before distribute")
    return layout


def _width(layout: LinearLayout, strides: Sequence[int], most: int) -> tuple[int, int | None]:
    """How many registers follow each other in memory, at most `most`, and along which dimension; one has none."""
    bases = layout.of("register")
    dim = next((d for d, stride in enumerate(strides) if bases and stride == 1 and bases[0][d] == 1), None)
    if dim is None:
        return 1, None
    width = 1
    for base in bases:
        if base[dim] != width or any(part for d, part in enumerate(base) if d != dim) or width == most:
            break
        width *= 2
    skipped = width.bit_length() - 1
    others = [base[dim] for name, v in layout.bases for base in v[skipped if name == "register" else 0 :]]
    while width > 1 and any(part % width for part in others):  # XOR with those would change the order
        width //= 2
    return (width, dim) if width > 1 else (1, None)


def _same_thread(source: LinearLayout, target: LinearLayout) -> list[int] | None:
    """For each register of `target` the register of the same thread that holds its element in `source`, or None."""
    have, want = source.table(), target.table()
    found = []
    for register in range(want.shape[-1]):
        same = (have == want[..., register : register + 1]).all(axis=(0, 1))
        if not same.any():
            return None
        found.append(int(same.argmax()))
    return found


def _runs(bits: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """(mask of a thread's number, shift to the left) of bits that move by the same distance."""
    moved: dict[int, int] = {}
    for bit, part in bits:
        distance = part.bit_length() - 1 - bit
        moved[distance] = moved.get(distance, 0) | 1 << bit
    return [(mask, distance) for distance, mask in moved.items()]
